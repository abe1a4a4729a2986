"""Waits for a whole device of many streams: no more edges than needed, and answers as with all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from slow import slow_from

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.edges import inference
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

KEPT = 8
"""Edges that a wait keeps at most though earlier waits imply them."""
STREAMS = 40
Pairs = set[tuple[int, int]]


def job(seed: int, threads: int = 2) -> Trace:
    """Threads that launch work on streams and wait for the device in turn, also in calls within calls."""
    rng = np.random.default_rng(seed)
    builder = TraceBuilder()
    free = np.zeros(STREAMS, np.int64)
    launched: list[tuple[int, int]] = []
    lanes = [builder.lane(0, LaneKind.THREAD, k, f"thread {k}") for k in range(threads)]
    streams = [builder.lane(0, LaneKind.STREAM, k, f"stream {k}", 0) for k in range(STREAMS)]

    def node(kind: Kind, name: str, lane: int, ts: int, dur: int) -> int:
        times = {"ts": np.array([ts]), "dur": np.array([dur])}
        return builder.nodes(kind=int(kind), name=name, rank=0, lane=lane, **times)

    now = 0
    for _ in range(60):
        lane = lanes[rng.integers(threads)]
        for stream in rng.choice(STREAMS, rng.integers(0, 7), replace=False).tolist():
            call = node(Kind.RUNTIME, "hipLaunchKernel", lane, now, 5)
            free[stream] = max(free[stream], now + 8) + rng.integers(10, 900)
            length = int(rng.integers(5, 10))
            work = node(Kind.KERNEL, "k", streams[stream], int(free[stream]) - length, length)
            launched.append((call, work))
            now += 11
        # the clocks of some waits differ: they return before work has ended
        end = max(now + 20, int(free.max()) + 10 - 300 * int(rng.random() < 0.1))
        node(Kind.RUNTIME, "hipDeviceSynchronize", lane, now, end - now)
        if rng.random() < 0.3:
            node(Kind.RUNTIME, "hipDeviceSynchronize", lane, now + 2, end - now - 4)
        now = end + 7
    builder.edges(*np.array(launched).T, int(EdgeKind.LAUNCH))
    return inference.infer_edges(builder.finish(), IssueLog("test"))


def waits(trace: Trace) -> Pairs:
    chosen = trace.array("kind", "edges") == EdgeKind.SYNC
    return set(
        zip(*(trace.array(c, "edges")[chosen].tolist() for c in ("src", "dst")), strict=True)
    )


def all_waits(trace: Trace) -> Pairs:
    """By definition: of each stream the work that ended last by the end of the call, of what was launched before it."""
    ts, dur, lane, kind = (trace.array(c) for c in ("ts", "dur", "lane", "kind"))
    end, is_wait = ts + dur, np.array(trace.names())[trace.array("name")] == "hipDeviceSynchronize"
    parent = trace.array("parent")
    outermost = is_wait & ~((parent >= 0) & is_wait[parent])
    pairs = set()
    for call in np.flatnonzero(outermost).tolist():
        before = (kind == Kind.KERNEL) & (ts[trace.launch] <= ts[call]) & (end <= end[call])
        for stream in np.unique(lane[before]):
            work = np.flatnonzero(before & (lane == stream))
            pairs.add((int(work[np.argmax(end[work])]), call))
    return pairs


def with_waits(trace: Trace, pairs: Pairs) -> Trace:
    """The trace with these edges in place of its own."""
    keep = pa.array(trace.array("kind", "edges") != EdgeKind.SYNC)
    src, dst = np.array(sorted(pairs), np.int32).T
    return replace(trace, edges=trace.edges.filter(keep)).with_edges(src, dst, EdgeKind.SYNC)


@pytest.mark.parametrize("seed", slow_from(range(3), 1))
def test_what_has_no_edge_is_implied_by_an_earlier_wait_of_the_thread(seed: int) -> None:
    trace = job(seed)
    made, every = waits(trace), all_waits(trace)
    assert made <= every
    calls = {call for _, call in every}
    assert len(made) <= trace.nodes.num_rows + KEPT * len(calls) < len(every)
    lane, end = trace.array("lane"), trace.array("ts") + trace.array("dur")
    for work, call in every - made:
        assert any(
            lane[other] == lane[work] and end[other] >= end[work]
            and lane[earlier] == lane[call] and end[earlier] <= end[call]
            for other, earlier in made
        )  # fmt: skip
        assert sum(to == call for _, to in made) >= KEPT


@pytest.mark.parametrize("seed", slow_from(range(3), 1))
def test_analyses_answer_as_with_all_edges(seed: int) -> None:
    trace = job(seed)
    full = with_waits(trace, all_waits(trace))
    for analysis, change in (
        ("critical_path", ""), ("idle", ""), ("what_if", "scale=0.1 where kind == 'kernel'"),
        ("what_if", "scale=20 where lane < 12 and kind == 'kernel'"), ("what_if", "launch=5us"),
        ("what_if", "nowait where ts < 4000; scale=30 where ts < 4000"),
    ):  # fmt: skip
        options = {"change": change} if change else {}
        one, other = (ci.analyze(t, analysis, **options) for t in (trace, full))
        assert one.rows.equals(other.rows), (analysis, change)
        assert one.summary == other.summary


def test_few_streams_keep_all_edges() -> None:
    """A change of one wait leaves the next ones with all that they wait for."""
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "thread")
    for k in range(KEPT):
        stream = builder.lane(0, LaneKind.STREAM, k, f"stream {k}", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=stream, ts=np.array([k]), dur=5)
    for ts in (20, 40, 60):
        call = {"kind": int(Kind.RUNTIME), "name": "hipDeviceSynchronize", "rank": 0}
        builder.nodes(**call, lane=thread, ts=np.array([ts]), dur=9)
    trace = inference.infer_edges(builder.finish(), IssueLog("test"))
    assert len(waits(trace)) == 3 * KEPT


@pytest.mark.parametrize("number", [50, 200])
def test_is_waitfor_many_streams_have_edges_in_proportion(number: int) -> None:
    """Waits times streams were 1.3 GB of a file of 1.2 MB."""
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "thread")
    for k in range(number):
        stream = builder.lane(0, LaneKind.STREAM, k, f"stream {k}", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=stream, ts=np.array([k]), dur=5)
    ts = np.arange(number) * 10 + number + 20
    call = {"kind": int(Kind.RUNTIME), "name": "hipDeviceSynchronize", "rank": 0}
    builder.nodes(**call, lane=thread, ts=ts, dur=9)
    trace = inference.infer_edges(builder.finish(), IssueLog("test"))
    assert len(waits(trace)) == number + KEPT * (number - 1)
