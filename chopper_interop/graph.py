"""The dependency graph of a trace as arrays: predecessors, successors, order, parts of it.

There are two of them, of the same make. In the graph of *nodes* a vertex is a node of the trace, and
an edge says that one starts no sooner than another has started or ended: enough to walk, to count and
to cut. In the graph of *moments* each node has two vertices, its start and its end, so that calls,
waits and collectives are told exactly (`schemas.kinds.MOMENTS`): the one for timing.

Neither has circles. Threads and streams are chains, and what is recorded between them follows time;
where clocks contradict each other so far that edges run in a circle, those of the circle that
point back in time are left out and counted in `Graph.left_out`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.graph_chains import (
    behind,
    is_within,
    moments_of_threads,
    streams,
    thread_orders,
)
from chopper_interop.schemas.kinds import (
    DERIVED,
    GPU_LANES,
    MOMENTS,
    OBSERVED,
    EdgeKind,
    LaneKind,
    Moment,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Edges = tuple[Array, Array, Array]

_MOMENTS = {int(kind): ends for kind, ends in MOMENTS.items()}
_FROM, _TO = np.array(
    [_MOMENTS.get(kind, (Moment.END, Moment.START)) for kind in range(256)], np.int64
).T.copy()
"""Moments of the source and of the destination of an edge, by its kind."""


@dataclass(frozen=True)
class Graph:
    """Vertices and edges without circles, as arrays of compressed sparse rows.

    Parameters
    ----------
    trace
        Whose graph it is.
    node
        Row of `trace.nodes` of each vertex.
    at_ns
        Time of each vertex on the axis of `ts`: of a node its start, of a moment that moment.
    first, after, kind
        Edges from vertex v lead to ``after[first[v]:first[v + 1]]``, and are of those kinds.
    order
        A topological order of the vertices: every edge leads to one that stands further behind.
    left_out
        How many edges were left out so that none runs in a circle, or as nothing follows them.
    of_moments
        Whether vertices are moments, not nodes.
    """

    trace: Trace
    node: Array
    at_ns: Array
    first: Array
    after: Array
    kind: Array
    order: Array
    left_out: int = 0
    of_moments: bool = False

    def __len__(self) -> int:
        return len(self.node)

    def __repr__(self) -> str:
        return f"Graph({self.trace.meta.job!r}: {len(self):,} vertices, {len(self.after):,} edges)"

    @cached_property
    def src(self) -> Array:
        """Vertex from which each edge leads; `after` has the ones to which they lead."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))

    @cached_property
    def fixed(self) -> Array:
        """Which edges are dependencies; the others were observed in this run (`kinds.OBSERVED`)."""
        return ~is_any(self.kind, OBSERVED)

    @cached_property
    def gap_ns(self) -> Array:
        """Time along each edge, from what it waits for until its target begins.

        Until that ends where it is the end that waits, and it began before. Below 0 where clocks
        contradict each other.
        """
        since, until = self.at_ns[self.src], self.at_ns[self.after]
        if not self.of_moments:
            dur = self.trace.array("dur")
            since = since + np.where(_FROM[self.kind], dur[self.node[self.src]], 0)
            midst = (_TO[self.kind] == Moment.END) & (until < since)
            until = until + np.where(midst, dur[self.node[self.after]], 0)
        return until - since

    @cached_property
    def _into(self) -> tuple[Array, Array]:
        return gather.lists(self.after, self.src, len(self))

    def successors(self, vertex: int) -> Array:
        """Vertices to which edges lead from this one."""
        return self.after[self.first[vertex] : self.first[vertex + 1]]

    def predecessors(self, vertex: int) -> Array:
        """Vertices from which edges lead to this one."""
        first, before = self._into
        return before[first[vertex] : first[vertex + 1]]

    def counts(self) -> dict[str, int]:
        """How many edges there are of each kind, by the kind's name."""
        number = np.bincount(self.kind, minlength=256)
        return {k.name.lower(): int(number[k]) for k in EdgeKind if number[k]}

    def subgraph(self, which: Array | str) -> Graph:
        """The part whose vertices are chosen, and the edges between them.

        Parameters
        ----------
        which
            A truth value for each vertex, or a query of `pandas.DataFrame.query` on the columns
            of ``trace.to_pandas()``: ``"rank == 0 and kind == 'kernel' and dur > 10_000"``.
            A column of `hub.ANNOTATIONS` that the trace lacks is null.
        """
        if isinstance(which, str):
            from chopper_interop import pandas_view

            which = pandas_view.rows(self.trace, which)[self.node]
        which = np.asarray(which, bool)
        if len(which) != len(self):
            raise UsageError(f"{len(which):,} truth values for {len(self):,} vertices")
        new = np.cumsum(which, dtype=np.int32) - 1
        kept = which[self.src] & which[self.after]
        src, dst, kind = new[self.src[kept]], new[self.after[kept]], self.kind[kept]
        first = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=int(which.sum())))])
        return Graph(
            self.trace,
            self.node[which],
            self.at_ns[which],
            first,
            dst,
            kind,
            new[self.order[which[self.order]]],
            self.left_out,
            self.of_moments,
        )


def of_nodes(trace: Trace, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
    """The graph whose vertices are the trace's nodes.

    Edges are as they are stored, but for a call that waits for what it launched itself, as a copy
    that blocks: then what follows the call on its thread depends on that work.

    Parameters
    ----------
    trace
        Any trace.
    kinds
        Edges of these kinds alone, by `EdgeKind` or name; all if None.
    """
    wanted = chosen_kinds(kinds)
    src, dst, kind = _stored(trace, wanted)
    own = np.flatnonzero(_waits_for_own(trace, src, dst, kind))
    if own.size:
        dst = dst.copy()
        ts, dur, lane, threads = _lanes(trace)
        dst[own] = behind(ts, dur, lane, len(threads), dst[own])
    parts = [(src[dst >= 0], dst[dst >= 0], kind[dst >= 0])]
    parts += [_chain(trace, k) for k in DERIVED if k in wanted]
    rows = np.arange(trace.nodes.num_rows, dtype=np.int32)
    found = made(trace, rows, trace.array("ts"), _joined(parts))
    return replace(found, left_out=found.left_out + int(np.count_nonzero(dst < 0)))


def _waits_for_own(trace: Trace, src: Array, dst: Array, kind: Array) -> Array:
    """Which edges are of a call that waits for work which it, or what it called, launched."""
    waits = np.flatnonzero((kind == EdgeKind.SYNC) & (trace.launch[src] >= 0))
    found = np.zeros(len(kind), bool)
    found[waits] = is_within(trace.launch[src[waits]], dst[waits], trace.array("parent"))
    return found


def of_moments(trace: Trace, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
    """The graph whose vertices are starts and ends: vertex 2i is the start of node i, 2i + 1 its end.

    Threads are chains of moments, from each to the next; work on streams lasts from start to end
    and begins behind the one before it.

    Parameters
    ----------
    trace
        Any trace.
    kinds
        Edges of these kinds alone, and durations; all if None.
    """
    src, dst, kind = moment_edges(trace, chosen_kinds(kinds))
    ts = trace.array("ts")
    at = np.empty(2 * len(ts), np.int64)
    at[::2], at[1::2] = ts, ts + trace.array("dur")
    node = np.repeat(np.arange(len(ts), dtype=np.int32), 2)
    return made(trace, node, at, (src, dst, kind), of_moments=True)


def moment_edges(trace: Trace, wanted: set[EdgeKind], behind: Array | None = None) -> Edges:
    """Edges between starts (vertices 2i) and ends (2i + 1) of nodes: sources, targets and kinds.

    Parameters
    ----------
    trace
        Any trace.
    wanted
        Kinds of edges, and durations.
    behind
        What each node follows on its stream, where that is known already; as `graph_chains.streams`.
    """
    src, dst, kind = _stored(trace, wanted)
    parts = [(2 * src + _FROM[kind], 2 * dst + _TO[kind], kind)]
    ts, dur, lane, on_thread = _lanes(trace)
    orders = {EdgeKind.CALL, EdgeKind.ORDER} <= wanted
    if orders:
        parts.append(moments_of_threads(ts, dur, lane, on_thread, trace.array("parent")))
    alone = np.flatnonzero(~on_thread[lane]) if orders else np.arange(len(ts))
    parts.append(_of_kind(2 * alone, 2 * alone + 1, EdgeKind.DURATION))
    if EdgeKind.STREAM in wanted:
        before, after, kinds_ = _chain(trace, EdgeKind.STREAM, behind)
        parts.append((2 * before + 1, 2 * after, kinds_))
    return _joined(parts)


def _joined(parts: list[Edges]) -> Edges:
    src, dst, kind = (np.concatenate(column) for column in zip(*parts, strict=True))
    return src.astype(np.int32, copy=False), dst.astype(np.int32, copy=False), kind


def chosen_kinds(kinds: Iterable[EdgeKind | str] | None) -> set[EdgeKind]:
    """Kinds of edges by themselves or by name; all if None."""
    if kinds is None:
        return set(EdgeKind)
    names = {k.name.lower(): k for k in EdgeKind}
    chosen = set()
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if isinstance(kind, str) and kind.lower() not in names:
            raise UsageError(f"there are no edges {kind!r}", hint=f"there are {', '.join(names)}")
        chosen.add(names[kind.lower()] if isinstance(kind, str) else EdgeKind(kind))
    return chosen


def _lanes(trace: Trace) -> tuple[Array, Array, Array, Array]:
    """Times and lanes of nodes, and which lanes are threads."""
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    return trace.array("ts"), trace.array("dur"), trace.array("lane"), threads


def _stored(trace: Trace, wanted: set[EdgeKind]) -> Edges:
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    if len(wanted) < len(EdgeKind):
        chosen = is_any(kind, wanted)
        src, dst, kind = src[chosen], dst[chosen], kind[chosen]
    return src, dst, kind


def _chain(trace: Trace, kind: EdgeKind, behind: Array | None = None) -> Edges:
    """Edges that follow from parents, threads or streams."""
    ts, dur, lane, threads = _lanes(trace)
    if behind is not None:
        before = behind
    elif kind is EdgeKind.STREAM:
        before = streams(ts, dur, lane, _is_gpu(trace))
    elif kind is EdgeKind.CALL:
        before = np.where(threads[lane], trace.array("parent"), -1)
    else:
        before = thread_orders(lane, threads, trace.array("parent"))
    after = np.flatnonzero(before >= 0).astype(np.int32)
    return _of_kind(before[after], after, kind)


def _is_gpu(trace: Trace) -> Array:
    return is_any(trace.array("kind", "lanes"), GPU_LANES)


def _of_kind(src: Array, dst: Array, kind: EdgeKind) -> Edges:
    return src, dst, np.full(len(src), int(kind), np.uint8)


def made(
    trace: Trace, node: Array, at_ns: Array, edges: Edges, *, of_moments: bool = False
) -> Graph:
    """The graph of these edges, without those that would close circles."""
    return arranged(trace, node, at_ns, edges, of_moments=of_moments)[0]


def arranged(
    trace: Trace, node: Array, at_ns: Array, edges: Edges, *, of_moments: bool = False
) -> tuple[Graph, Array]:
    """The graph of these edges, without those that would close circles, and which each of its own is."""
    src, dst, kind = edges
    n = len(node)
    first, edge = gather.places(src, n)
    after = dst[edge].astype(np.int32)
    order = gather.topological(first, after)
    if len(order) == n:
        return Graph(trace, node, at_ns, first, after, kind[edge], order, 0, of_moments), edge
    # every circle lies between the vertices that cannot be reached from the front and those that
    # cannot be from the back; with edges there that all lead forward in time, and among equal times
    # to higher numbers, there can be none
    src = src[edge]
    on_circles = np.ones(n, bool)
    on_circles[order] = False
    on_circles[gather.topological(*gather.lists(after, src, n))] = False
    back = (at_ns[src] > at_ns[after]) | ((at_ns[src] == at_ns[after]) & (src >= after))
    kept = ~(on_circles[src] & on_circles[after] & back)
    first = np.concatenate([[0], np.cumsum(np.bincount(src[kept], minlength=n))])
    after, edge = after[kept], edge[kept]
    order = gather.topological(first, after)
    lost = int(np.count_nonzero(~kept))
    return Graph(trace, node, at_ns, first, after, kind[edge], order, lost, of_moments), edge
