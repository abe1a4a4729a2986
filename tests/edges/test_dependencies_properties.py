"""Dependencies of random programs: against a search by hand, and without cycles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.arrays.gather import preceding_rows
from chopper_interop.build import TraceBuilder
from chopper_interop.edges import inference
from chopper_interop.edges.queues import build_queues
from chopper_interop.graph import endpoints
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import (
    EDGE_ENDPOINTS,
    GPU_LANES,
    GPU_WORK,
    EdgeKind,
    Endpoint,
    Kind,
    LaneKind,
)

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

CALLS = (
    "hipLaunchKernel", "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize",
    "hipMemcpy", "hipFree", "hipEventRecord", "hipStreamWaitEvent", "hipEventQuery",
    "hsa_signal_wait_scacquire", "aten::add",
)  # fmt: skip
TIMES = st.integers(0, 40)
SPANS = st.one_of(st.just(0), st.integers(0, 12))


@dataclass(frozen=True)
class Host:
    name: str
    thread: int
    ts: int
    dur: int
    handle: int
    works: tuple[tuple[int, int, int, bool], ...]


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    name = draw(st.sampled_from(CALLS))
    launches = name in ("hipLaunchKernel", "hipMemcpy")
    work = st.tuples(st.integers(1, 3), TIMES, SPANS, st.booleans())
    works = draw(st.lists(work, min_size=1, max_size=2)) if launches else []
    return Host(
        name, draw(st.integers(1, 2)), draw(TIMES), draw(SPANS), draw(st.integers(-1, 2)),
        tuple(works),
    )  # fmt: skip


def made(program: list[Host], scale: int) -> Trace:
    """A trace of a program, its times multiplied."""
    b = TraceBuilder()
    for host in program:
        lane = b.lane(0, LaneKind.THREAD, host.thread, "thread")
        text = f'{{"stream": "0x{host.handle:x}", "event": {host.handle}}}'.encode()
        text = text if host.handle >= 0 else b"{}"
        kind = Kind.CPU_OP if "::" in host.name else Kind.RUNTIME
        args = (np.array([b.text(np.frombuffer(text, np.uint8).copy())]), np.array([len(text)]))
        call = b.nodes(
            kind=int(kind), name=host.name, rank=0, lane=lane, args=args,
            ts=np.array([host.ts * scale]), dur=host.dur * scale,
        )  # fmt: skip
        for stream, ts, dur, communicates in host.works:
            lane = b.lane(0, LaneKind.STREAM, stream, "stream", 0)
            kind = Kind.COMM if communicates else Kind.KERNEL
            node = b.nodes(
                kind=int(kind), name="work", rank=0, lane=lane,
                ts=np.array([ts * scale]), dur=dur * scale,
            )  # fmt: skip
            b.edges(np.array([call]), np.array([node]), int(EdgeKind.LAUNCH))
    return b.finish()


def events_graph(trace: Trace) -> nx.DiGraph[int]:
    """Starts (2 i) and ends (2 i + 1): nesting, order on lanes, and all edges of a trace."""
    ts, dur, parent, lane = (trace.array(c) for c in ("ts", "dur", "parent", "lane"))
    end = ts + dur
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from((2 * i, 2 * i + 1) for i in range(len(ts)))
    for i in np.flatnonzero(parent >= 0).tolist():
        graph.add_edge(2 * int(parent[i]), 2 * i)
        graph.add_edge(2 * i + 1, 2 * int(parent[i]) + 1)
    for on in np.unique(lane).tolist():
        selected = np.flatnonzero(lane == on).tolist()
        graph.add_edges_from((2 * a + 1, 2 * b) for a, b in pairwise(selected) if end[a] <= ts[b])
    columns = (trace.array(c, "edges").tolist() for c in ("src", "dst", "kind"))
    for src, dst, kind in zip(*columns, strict=True):
        if kind != EdgeKind.LAUNCH:
            first, last = EDGE_ENDPOINTS.get(EdgeKind(kind), (Endpoint.END, Endpoint.START))
            graph.add_edge(2 * src + first, 2 * dst + last)
    return graph


@given(st.lists(hosts(), min_size=1, max_size=14), st.sampled_from([1, 3_000, 10**15]))
def test_random_programs_have_no_cycle_and_come_back_the_same(
    program: list[Host], scale: int
) -> None:
    issues = IssueLog("test")
    trace = inference.infer_edges(made(program, scale), issues)
    assert nx.is_directed_acyclic_graph(events_graph(trace))
    kind, lane = trace.array("kind"), trace.array("lane")
    lanes = trace.array("kind", "lanes")
    columns = (trace.array(c, "edges").tolist() for c in ("src", "dst", "kind"))
    pairs = list(zip(*columns, strict=True))
    assert len(set(pairs)) == len(pairs)
    for src, dst, edge in pairs:
        on_gpu = (kind[src] in GPU_WORK, kind[dst] in GPU_WORK)
        assert edge not in inference.DEPENDENCY_KINDS or lane[src] != lane[dst]
        if edge == EdgeKind.EVENT:
            assert on_gpu == (True, True)
        elif edge in (EdgeKind.SYNC, EdgeKind.POLL):
            assert on_gpu == (True, False)
            assert lanes[lane[src]] in GPU_LANES
        elif edge == EdgeKind.HANDOVER:
            assert on_gpu == (False, False)
    again = IssueLog("test")
    again.extend(issues)
    assert inference.infer_edges(trace, again).edges.equals(trace.edges)
    assert list(again) == list(issues)


@given(st.lists(hosts(), min_size=1, max_size=8), st.data())
def test_any_edges_that_point_forward_make_no_cycle(
    program: list[Host], data: st.DataObject
) -> None:
    trace = made(program, 1)
    node = st.integers(0, trace.nodes.num_rows - 1)
    for kind in (EdgeKind.EVENT, EdgeKind.SYNC, EdgeKind.COMM, EdgeKind.CALL):
        actual = data.draw(st.lists(st.tuples(node, node), max_size=30))
        src, dst = (np.array([pair[i] for pair in actual], np.int32) for i in (0, 1))
        holds = endpoints.forward(trace, src, dst, kind)
        trace = trace.with_edges(src[holds], dst[holds], kind)
    assert nx.is_directed_acyclic_graph(events_graph(trace))


@given(st.lists(hosts(), min_size=1, max_size=14), st.data())
def test_queues_answer_as_a_search_by_hand(program: list[Host], data: st.DataObject) -> None:
    queues = build_queues(made(program, 1))
    if not len(queues.node):
        return
    asked = data.draw(st.lists(
        st.tuples(st.integers(0, len(queues.lane) - 1), TIMES, TIMES), min_size=1, max_size=9
    ))  # fmt: skip
    queue, submitted, ended = np.array(asked, np.int64).T
    place, later = queues.last_before(queue, submitted, ended)
    behind = queues.first_submitted_since(queue, submitted)
    for i, (q, by, until) in enumerate(asked):
        rows = range(queues.first[q], queues.first[q + 1])
        by_then = [r for r in rows if queues.submit[r] <= by]
        in_time = [r for r in by_then if queues.end[r] <= until]
        assert (place[i] >= 0) == bool(in_time)
        if in_time:
            assert queues.end[place[i]] <= until
            assert queues.submit[place[i]] <= by
            if len(in_time) <= 8:
                assert queues.end[place[i]] == max(queues.end[r] for r in in_time)
        assert later[i] == (bool(by_then) and queues.end[by_then[-1]] > until)
        assert behind[i] == next((r for r in rows if queues.submit[r] >= by), -1)


@given(
    st.lists(st.tuples(st.integers(0, 2), TIMES), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), TIMES), min_size=1, max_size=8),
)
def test_what_precedes_is_found_within_the_group(
    rows: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    group, time = np.array(rows, np.int64).reshape(-1, 2).T
    of_group, at = np.array(asked, np.int64).T
    actual = preceding_rows(group, time, of_group, at)
    for row, (g, t) in zip(actual.tolist(), asked, strict=True):
        times = [b for a, b in rows if a == g and b <= t]
        assert (row >= 0) == bool(times)
        assert row < 0 or rows[row] == (g, max(times))
