"""Counters go to the dispatches that they are of, or nowhere."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts

import chopper_interop as ci
from chopper_interop.annotate.counters.join_passes import (
    PassCounters,
    carry_counters,
    match_pass,
    plain_name,
)
from chopper_interop.build import TraceBuilder
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Meta, Rank


def join_counters(timing: ci.Trace, run: ci.Trace, devices: dict, log: IssueLog) -> ci.Trace:
    """The timing run with the counters of another one."""
    return carry_counters(timing, [matched(timing, run, devices, log)])


def matched(timing: ci.Trace, run: ci.Trace, devices: dict, log: IssueLog) -> PassCounters:
    """Counters of a run on the nodes of the timing run."""
    return PassCounters(run, match_pass(timing, run, devices, log).target, log)


def run_of(names: str, *, counted: bool = False, device: int = 0, start: int = 0) -> ci.Trace:
    """A run of kernels named by letters; a counted one has the counter C, numbered in order from `start`."""
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", device)
    first = builder.nodes(
        kind=int(Kind.KERNEL), name=list(names), rank=0, lane=lane,
        ts=np.arange(len(names)) * 10, dur=np.full(len(names), 5),
    )  # fmt: skip
    if counted:
        node = np.arange(first, first + len(names))
        builder.counters(node, "C", start + node.astype(float))
    return builder.finish()


def joined(timing: str, counted: str) -> tuple[list[float | None], dict[str, int]]:
    """Counter of each kernel of the timing run, and what was noted."""
    log = IssueLog()
    trace = join_counters(run_of(timing), run_of(counted, counted=True), {0: 0}, log)
    values: list[float | None] = [None] * len(timing)
    for node, value in zip(*(trace.array(c, "counters") for c in ("node", "value")), strict=True):
        assert values[node] is None, "counted twice"
        values[node] = value
    return values, counts(log)


@pytest.mark.parametrize(
    ("timing", "counted", "values"),
    [
        ("abab", "abab", [0, 1, 2, 3]),
        ("abab", "aabb", [0, 2, 1, 3]),  # another order on other streams
        ("abx", "ab", [0, 1, None]),
        ("ababab", "ab", [None, None, None, None, 0, 1]),  # the last of three iterations
        ("aabaab", "aab", [None, None, None, 0, 1, 2]),
        ("aab", "ab", [None, None, 1]),  # which a is uncertain
        ("ab", "zab", [1, 2]),
        ("ab", "", [None, None]),
        ("", "ab", []),
    ],
)
def test_joins(timing: str, counted: str, values: list) -> None:
    actual, noted = joined(timing, counted)
    assert actual == values
    certain = sum(v is not None for v in values)
    assert noted.get("dispatch-joined", 0) == certain
    assert noted.get("dispatch-not-joined", 0) == len(counted) - certain


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


def job_of(  # what identifies a dispatch
    names: list[str], *, counted: bool = False, args: dict[str, object] | None = None,
    lanes: list[int] | None = None, ranks: tuple[Rank, ...] = (Rank(0),),
    rank: list[int] | None = None, numbers: list[int] | None = None,
) -> ci.Trace:  # fmt: skip
    """A run of kernels in order of time; a counted one has the counter C, numbered in order."""
    count = len(names)
    builder = TraceBuilder(meta=Meta(ranks=ranks))
    of_rank = np.array(rank or [ranks[0].rank] * count)
    lane = [
        builder.lane(int(r), LaneKind.STREAM, number, "s", 0)
        for r, number in zip(of_rank, lanes or [0] * count, strict=True)
    ]
    numbered = [{"dispatch_id": n} for n in numbers] if numbers else [{}] * count
    texts = [json.dumps({**(args or {}), **more}).encode() for more in numbered]
    length = np.array([len(t) for t in texts], np.int32)
    at = builder.text(np.frombuffer(b"".join(texts), np.uint8).copy()) + np.cumsum(length) - length
    first = builder.nodes(
        kind=int(Kind.KERNEL), name=names, rank=of_rank, lane=np.array(lane),
        ts=np.arange(count) * 10, dur=np.full(count, 5), args=(at, length),
    )  # fmt: skip
    if counted:
        builder.counters(np.arange(first, first + count), "C", np.arange(count, dtype=float))
    return builder.finish()


def join(timing: ci.Trace, run: ci.Trace) -> tuple[dict[int, float], dict[str, str]]:
    """Counter of each node that has one, and an example of each issue."""
    log = IssueLog()
    trace = join_counters(timing, run, {0: 0}, log)
    values = zip(*(trace.array(c, "counters").tolist() for c in ("node", "value")), strict=True)
    return dict(values), {i.code: i.example for i in log}


def test_a_pass_of_another_program_is_refused() -> None:
    actual, noted = join(job_of(list("abcdefghij")), job_of(list("aqrstuvwxy"), counted=True))
    assert actual == {}
    assert "counter-pass-refused" in noted
    actual, noted = join(job_of(list("abcdefghij")), job_of(list("jihgfedcba") * 3, counted=True))
    assert actual == {}
    assert "80%" in noted["counter-pass-refused"]


def test_a_device_that_did_little_proves_nothing_of_the_others() -> None:
    def run(names: str, seen: str, *, counted: bool = False) -> ci.Trace:
        builder = TraceBuilder()
        lanes = [builder.lane(0, LaneKind.STREAM, 0, "s", device) for device in (0, 1)]
        lane = np.array([lanes[0]] * len(names) + [lanes[1]] * len(seen))
        at = np.arange(len(lane))
        first = builder.nodes(
            kind=int(Kind.KERNEL), name=[*names, *seen], rank=0, lane=lane, ts=at * 10, dur=at * 0 + 5,
        )  # fmt: skip
        if counted:
            builder.counters(at + first, "C", np.ones(len(at)))
        return builder.finish()

    timing = run("abcdefghij", "xy")
    devices = {0: 0, 1: 1}
    assert not match_pass(timing, run("abcdefghij", "z", counted=True), devices, IssueLog()).doubt
    assert match_pass(timing, run("qrstuvwfgh", "xy", counted=True), devices, IssueLog()).doubt


def test_dispatches_that_both_runs_number_alike_are_the_same() -> None:
    timing = job_of(list("aaabaaacab"), numbers=list(range(5, 15)))
    run = job_of(list("aabaacab"), counted=True, numbers=[5, 6, 8, 9, 11, 12, 13, 14])
    actual, _ = join(timing, run)
    assert actual == {0: 0, 1: 1, 3: 2, 4: 3, 6: 4, 7: 5, 8: 6, 9: 7}


def test_numbers_that_are_moved_are_not_trusted() -> None:
    timing = job_of(list("abcdabcdx"), numbers=list(range(1, 10)))
    run = job_of(list("bcdabcdx"), counted=True, numbers=list(range(1, 9)))
    actual, _ = join(timing, run)
    assert actual == {i + 1: i for i in range(8)}


def test_shapes_distinguish_kernels_of_one_name() -> None:
    small, large = ({"grid_size": n, "workgroup_size": 64} for n in (64, 128))
    assert join(job_of(["k"] * 4, args=small), job_of(["k"] * 4, counted=True, args=small))[0]
    actual, noted = join(job_of(["k"] * 4, args=small), job_of(["k"] * 4, counted=True, args=large))
    assert len(actual) == 4  # no shape agrees: it is not compared, which is logged
    assert "compared: names" in noted["dispatch-shape-not-compared"]


def test_grids_in_workgroups_and_in_work_items_are_the_same() -> None:
    blocks = {"grid": [4, 2, 1], "block": [64, 2, 1]}
    items = {"grid": [256, 4, 1], "workgroup": [64, 2, 1]}
    names = [f"k{i}" for i in range(6)]
    actual, noted = join(job_of(names, args=blocks), job_of(names, counted=True, args=items))
    assert len(actual) == 6
    assert "dispatch-shape-not-compared" not in noted


def test_mangled_names_and_those_without_templates_are_compared_by_function() -> None:
    timing = job_of([f"void at::f{i}<int>(int)" for i in range(6)])
    for other in ("_ZN2at2f{i}IiEEvi", "f{i}", "f{i} [clone .kd]"):
        run = job_of([other.format(i=i) for i in range(6)], counted=True)
        actual, noted = join(timing, run)
        assert actual == {i: i for i in range(6)}
        assert "without templates" in noted["dispatch-shape-not-compared"]


def test_helpers_of_the_runtime_are_skipped() -> None:
    helper = "__amd_rocclr_copyBuffer.kd"
    timing = job_of(["a", "b", helper, "c", "d", "e"])
    run = job_of([helper, helper, "a", helper, "b", "c", "d", "e"], counted=True)
    actual, noted = join(timing, run)
    assert actual == {0: 2, 1: 4, 3: 5, 4: 6, 5: 7}
    assert "helper-dispatch-skipped" in noted
    assert "dispatch-not-joined" not in noted


def test_ranks_of_several_hosts_on_devices_of_one_number() -> None:
    ranks = (Rank(0, host="n0"), Rank(1, host="n1"))
    timing = job_of(list("abcabc"), ranks=ranks, rank=[0, 0, 0, 1, 1, 1])
    first = int(np.flatnonzero(timing.array("rank") == 1)[0])
    run = job_of(list("abc"), counted=True, ranks=(Rank(0, host="n1"),))
    assert join(timing, run)[0] == {first: 0, first + 1: 1, first + 2: 2}
    nobody = job_of(list("abc"), counted=True, ranks=(Rank(0),))
    actual, noted = join(timing, nobody)
    assert actual == {}
    assert "several ranks" in noted["counter-pass-refused"]


@given(st.data())
def test_streams_that_interleave_otherwise_pair_no_kernel_wrongly(data: st.DataObject) -> None:
    """Each kernel once, of two streams, in any interleaving, some lost on either side."""
    of_stream = [[f"{s}{i}" for i in range(data.draw(st.integers(1, 12)))] for s in "ab"]

    def run(*, counted: bool) -> tuple[list[str], ci.Trace]:
        left = [[n for n in s if data.draw(st.integers(0, 9))] for s in of_stream]
        lane: list[int] = []
        names: list[str] = []
        while left[0] or left[1]:
            which = 0 if not left[1] or (left[0] and data.draw(st.booleans())) else 1
            names.append(left[which].pop(0))
            lane.append(which)
        return names, job_of(names, counted=counted, lanes=lane)

    timed_names, timing = run(counted=False)
    counted_names, counted = run(counted=True)
    if not timed_names or not counted_names:
        return
    actual, noted = join(timing, counted)
    assert all(timed_names[node] == counted_names[int(value)] for node, value in actual.items())
    possible = set(timed_names) & set(counted_names)
    refused = "counter-pass-refused" in noted
    assert refused or len(actual) >= 0.8 * len(possible)


def test_of_passes_with_the_same_counter_the_first_counts_and_the_others_are_logged() -> None:
    timing = run_of("abc")
    logs = [IssueLog(source) for source in ("first", "second", "third")]
    runs = [run_of("abc", counted=True, start=start) for start in (0, 10, 20)]
    passes = [matched(timing, run, {0: 0}, log) for run, log in zip(runs, logs, strict=True)]
    trace = carry_counters(timing, passes)
    assert trace.array("node", "counters").tolist() == [0, 1, 2]
    assert trace.array("value", "counters").tolist() == [0.0, 1.0, 2.0]
    assert [counts(log).get("counter-of-several-runs", 0) for log in logs] == [0, 3, 3]


def test_the_log_counts_what_is_joined() -> None:
    actual, noted = join(job_of(list("xaaby")), job_of(list("xaby"), counted=True))
    assert len(actual) == 3
    assert "4 of 4 that both may have" in noted["dispatches-matched"]
    assert "3 are certain and joined" in noted["dispatches-matched"]
    assert "counters-of-last-repetition" not in noted


def test_a_repetition_that_was_chosen_is_logged() -> None:
    actual, noted = join(job_of(list("abcdef") * 6), job_of(list("abcdef") * 5, counted=True))
    assert actual == {i + 6: i for i in range(30)}
    assert "counters-of-last-repetition" in noted
    names = list("abcdef") * 6
    actual, _ = join(job_of(names), job_of(names[:14] + names[22:], counted=True))
    assert actual == {i + 8: i for i in range(14, 28)}
