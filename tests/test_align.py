"""Counters go to the dispatches that they are of, or nowhere."""

import numpy as np
import pytest

import chopper_interop as ci
from chopper_interop.align import join_counters, plain_name
from chopper_interop.build import TraceBuilder
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import Kind, LaneKind


def run_of(names: str, *, counted: bool = False, device: int = 0) -> ci.Trace:
    """A run of kernels named by letters; a counted one has the counter C, numbered in order."""
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", device)
    first = builder.nodes(
        kind=int(Kind.KERNEL), name=list(names), rank=0, lane=lane,
        ts=np.arange(len(names)) * 10, dur=np.full(len(names), 5),
    )  # fmt: skip
    if counted:
        node = np.arange(first, first + len(names))
        builder.counters(node, "C", node.astype(float))
    return builder.finish()


def joined(timing: str, counted: str) -> tuple[list[float | None], dict[str, int]]:
    """Counter of each kernel of the timing run, and what was noted."""
    log = IssueLog()
    trace = join_counters(run_of(timing), run_of(counted, counted=True), {0: 0}, log)
    values: list[float | None] = [None] * len(timing)
    for node, value in zip(*(trace.array(c, "counters") for c in ("node", "value")), strict=True):
        assert values[node] is None, "counted twice"
        values[node] = value
    return values, {i.code: i.count for i in log}


@pytest.mark.parametrize(
    ("timing", "counted", "values"),
    [
        ("abab", "abab", [0, 1, 2, 3]),
        ("abab", "aabb", [0, 2, 1, 3]),  # another order on other streams
        ("abx", "ab", [0, 1, None]),
        ("ababab", "ab", [None, None, None, None, 0, 1]),  # the last of three iterations
        ("aabaab", "aab", [None, None, None, 0, 1, 2]),
        ("aab", "ab", [None, None, 1]),  # which a is not sure
        ("ab", "zab", [1, 2]),
        ("ab", "", [None, None]),
        ("", "ab", []),
    ],
)
def test_joins(timing: str, counted: str, values: list) -> None:
    found, noted = joined(timing, counted)
    assert found == values
    sure = sum(v is not None for v in values)
    assert noted.get("dispatch-joined", 0) == sure
    assert noted.get("dispatch-not-joined", 0) == len(counted) - sure


def test_devices_are_kept_apart() -> None:
    log = IssueLog()
    other = run_of("ab", counted=True, device=4)
    assert join_counters(run_of("ab"), other, {0: 0}, log).counters.num_rows == 0
    assert join_counters(run_of("ab"), other, {4: 0}, log).counters.num_rows == 2


@pytest.mark.parametrize(
    "name", ["k(int)", "k(int).kd", "k(int) [clone .kd]", "k(int) (.kd)", '"k(int)"']
)
def test_names_are_compared_without_what_tools_add(name: str) -> None:
    assert plain_name(name) == "k(int)"
