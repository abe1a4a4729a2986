"""Queues of which no launches are recorded: what follows what shows in times alone, and not by chance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gpu_work import Work
from gpu_work import trace as gpu_trace
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.edges.inference import infer_edges
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _read(works: list[Work]) -> ci.Trace:
    return infer_edges(gpu_trace(sorted(works, key=lambda w: w.start)), IssueLog())


def _read_queues(spans: list[tuple[np.ndarray, np.ndarray]]) -> ci.Trace:
    """The trace of queues, each of kernels with these starts and durations."""
    builder = TraceBuilder()
    for stream, (start, dur) in enumerate(spans):
        lane = builder.lane(0, LaneKind.STREAM, stream, f"s{stream}", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=lane, ts=start, dur=dur)
    return infer_edges(builder.finish(), IssueLog())


def _events(trace: ci.Trace) -> int:
    return int((trace.array("kind", "edges") == EdgeKind.EVENT).sum())


def _path(trace: ci.Trace) -> dict[str, int]:
    return ci.analyze(trace, "critical_path").summary


def _turns(count: int) -> Iterator[Work]:
    """One queue computes, the other copies its result, and the host waits for that."""
    at = 0
    for i in range(count):
        yield Work(Kind.KERNEL, at, 60_000 + 1_000 * (i % 7), stream=0)
        at += 75_000 + 1_000 * (i % 7)
        yield Work(Kind.KERNEL, at, 3_000, stream=1)
        at += 20_000


def test_queues_that_take_turns_follow_each_other() -> None:
    trace = _read(list(_turns(10)))
    assert _events(trace) == 19
    path = _path(trace)
    assert path["compute_ns"] == int(trace.array("dur").sum())
    assert path["unknown_ns"] > 0
    assert path["unknown_busy_ns"] == 0


def test_a_few_turns_may_be_chance() -> None:
    trace = _read(list(_turns(3)))
    assert _events(trace) == 0
    path = _path(trace)
    # the last copy's queue alone: nothing says whether the kernels that ran in its gaps were waited for
    assert path["compute_ns"] == 9_000
    assert path["unknown_busy_ns"] == 60_000 + 61_000 + 62_000


def test_what_starts_right_behind_another_queue_waited_for_it() -> None:
    rng = np.random.default_rng(5)
    works, at, compute, comm = [], 0, 0, 0
    for _ in range(40):
        short, long = (int(x) for x in rng.integers((20_000, 80_000), (60_000, 200_000)))
        works += [
            Work(Kind.KERNEL, at, 10_000, stream=0),
            Work(Kind.COMM, at + 14_000, long, stream=1, name="nccl"),  # waits for the kernel
            Work(Kind.KERNEL, at + 11_000, short, stream=0),  # runs meanwhile
        ]
        compute, comm = compute + 10_000, comm + long
        at += 14_000 + long + int(rng.integers(4_000, 6_000))  # and the next waits for both
    works.append(Work(Kind.KERNEL, at, 10_000, stream=0))
    path = _path(_read(works))
    assert path["comm_ns"] == comm
    assert path["compute_ns"] >= compute
    assert path["unknown_busy_ns"] < 0.01 * path["path_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("busy", slow_from([0.8, 0.2, 0.5], 1))
def test_independent_queues_do_not_follow_each_other(busy: float) -> None:
    rng = np.random.default_rng(int(10 * busy))
    wrong = 0
    for _ in range(30):
        spans = []
        for _ in range(2):
            dur = rng.integers(5_000, 100_000, 60)
            idle = rng.exponential(dur.mean() * (1 - busy) / busy, 60).astype(int)
            spans.append((np.cumsum(dur + idle) - dur, dur))
        wrong += _events(_read_queues(spans)) > 0
    assert wrong <= 1  # of 60 pairs; 3 standard deviations allow one of 740


@pytest.mark.slow
def test_short_gaps_behind_long_work_are_no_turns() -> None:
    """What starts in a pause of the other queue, that is longer than its own gaps, meets nothing there by chance too."""
    wrong = 0
    for seed in range(12):
        rng, spans = np.random.default_rng(seed), []
        for busy_ns, idle_ns in ((1_000_000, 1_000_000), (2_000, 20_000)):
            count = 30_000_000 // (busy_ns + idle_ns)
            dur, idle = (rng.integers(0.8 * ns, 1.2 * ns, count) for ns in (busy_ns, idle_ns))
            spans.append((np.cumsum(dur + idle) - dur + rng.integers(idle_ns), dur))
        wrong += _events(_read_queues(spans)) > 0
    assert wrong <= 1


@pytest.mark.parametrize("queues", slow_from([4, 8, 32], 1))
def test_the_last_of_many_independent_queues_is_not_waited_for(queues: int) -> None:
    """What ended last of many ended shortly before, whatever starts then."""
    rng, spans = np.random.default_rng(queues), []
    for _ in range(queues):
        busy_ns, idle_ns = 10 ** rng.uniform(4, 6, 2)
        count = int(40_000_000 / (busy_ns + idle_ns))
        dur, idle = (rng.exponential(ns, count).astype(int) for ns in (busy_ns, idle_ns))
        spans.append((np.cumsum(dur + idle) - dur, dur))
    trace = _read_queues(spans)
    waits = trace.array("kind", "edges") == EdgeKind.EVENT
    lane = trace.array("lane")
    src, dst = (lane[trace.array(side, "edges")[waits]] for side in ("src", "dst"))
    ways = len(set(zip(src.tolist(), dst.tolist(), strict=True)))
    assert ways <= 0.01 * queues * (queues - 1)  # 3 standard deviations allow one of 740


@pytest.mark.parametrize(("name", "busy"), [("v3_json_mi350x", 0.03), ("v1_gfx942", 0.005)])
def test_paths_of_kernel_traces_have_gaps_only_where_the_gpu_is_idle(
    name: str, busy: float
) -> None:
    """Or nearly: of five queues what two of them wait for does not show beyond chance."""
    trace = read_once(real(f"rocprof/{name}"))
    path, time = _path(trace), ci.analyze(trace, "temporal").summary
    assert path["stream_ns"] + path["event_ns"] == pytest.approx(time["idle_ns"], rel=0.01 + busy)
    assert path["unknown_busy_ns"] < busy * path["path_ns"]
    assert path["host_ns"] == 0


def test_work_queued_before_that_took_no_time_is_waited_for_by_nothing(tmp_path: Path) -> None:
    def slice_of(category: str, correlation: int, **place: int) -> dict[str, Any]:
        arguments = {"correlation": correlation, **place}
        return {"ph": "X", "cat": category, "name": category, "pid": 1, "tid": 1, "ts": 5, "dur": 0, "args": arguments}  # fmt: skip

    slices = [slice_of("cuda_runtime", 2), slice_of("kernel", 1, device=0, stream=7)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": slices}))
    trace = ci.read(path)
    assert trace.nodes.num_rows == 2
    assert _events(trace) == 0
