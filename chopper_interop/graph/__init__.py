"""The dependency graph of a trace as arrays: predecessors, successors, order, subgraphs.

There are two graphs, of one class::

    node graph        A ───▶ B            a vertex is a node of the trace; an edge says that B starts
                                          no sooner than A has started or ended
    endpoint graph    A.start ──▶ A.end   each node has two vertices, its endpoints; an edge says
                        │           │     exactly which endpoint of B waits for which of A
                        ▼           ▼     (`schemas.kinds.EDGE_ENDPOINTS`)
                      B.start ──▶ B.end

The node graph is for walking, counting and cutting; the endpoint graph is for timing.

Neither has cycles. Threads and streams are chains, and the edges between them follow time. Where
clocks contradict each other so far that edges form a cycle, those edges of it that point back in
time are left out and counted in `Graph.left_out`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, gather, row_numbers
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import UsageError
from chopper_interop.graph.chains import (
    is_within,
    next_on_lane,
    stream_orders,
    thread_endpoint_edges,
    thread_orders,
)
from chopper_interop.schemas.kinds import (
    DERIVED,
    EDGE_ENDPOINTS,
    GPU_LANES,
    OBSERVED,
    EdgeKind,
    Endpoint,
    LaneKind,
)

if TYPE_CHECKING:
    from chopper_interop.tables import TraceTables

    Edges = tuple[Array, Array, Array]

_BY_KIND = {int(kind): endpoints for kind, endpoints in EDGE_ENDPOINTS.items()}
_FROM, _TO = np.array(
    [_BY_KIND.get(kind, (Endpoint.END, Endpoint.START)) for kind in range(256)], np.int32
).T.copy()
"""Endpoint (0 start, 1 end) of an edge's source and of its destination, by the edge's kind; 32 bits, as their numbers."""


@dataclass(frozen=True)
class Graph:
    """Vertices and edges without cycles, as arrays of compressed sparse rows.

    Parameters
    ----------
    node
        Row of `trace.nodes` of each vertex.
    at_ns
        Time of each vertex on the axis of `ts`: the start of a node, or the time of an endpoint.
    first, after, kind
        Edges from vertex v lead to ``after[first[v]:first[v + 1]]`` and have the kinds
        ``kind[first[v]:first[v + 1]]``.
    order
        Topological order of the vertices: every edge leads from an earlier to a later position.
    left_out
        Number of edges left out because they would close a cycle, or because nothing follows them.
    of_endpoints
        True if vertices are endpoints, not nodes.
    """

    trace: TraceTables
    node: Array
    at_ns: Array
    first: Array
    after: Array
    kind: Array
    order: Array
    left_out: int = 0
    of_endpoints: bool = False

    def __len__(self) -> int:
        return len(self.node)

    def __repr__(self) -> str:
        return f"Graph({self.trace.meta.job!r}: {len(self):,} vertices, {len(self.after):,} edges)"

    def _repr_html_(self) -> str:
        from chopper_interop import notebook

        counts = self.counts()
        title = f"Graph of {self.trace.meta.job}: {len(self):,} vertices, {len(self.after):,} edges"
        table = pa.table({"kind": list(counts), "edges": pa.array(counts.values(), pa.int64())})
        return notebook.page(title, table)

    @cached_property
    def src(self) -> Array:
        """Source vertex of each edge; `after` has the destinations."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))

    def sources(self, edges: Array) -> Array:
        """Source vertex of some edges, found by binary search: for few of them `src` need not be made."""
        return np.searchsorted(self.first, edges, "right") - 1

    @cached_property
    def fixed(self) -> Array:
        """Mask of edges that are dependencies; the others were observed in this run (`kinds.OBSERVED`)."""
        return ~is_any(self.kind, OBSERVED)

    @cached_property
    def gap_ns(self) -> Array:
        """Time along each edge in ns, from the endpoint waited for to the start of the destination.

        Where the end of the destination waits and the destination began before that, the time to
        its end. Negative where clocks contradict each other.
        """
        begin, end = self.at_ns[self.src], self.at_ns[self.after]
        if not self.of_endpoints:
            dur = self.trace.array("dur")
            begin = begin + np.where(_FROM[self.kind], dur[self.node[self.src]], 0)
            began_before = (_TO[self.kind] == Endpoint.END) & (end < begin)
            end = end + np.where(began_before, dur[self.node[self.after]], 0)
        return end - begin

    @cached_property
    def _into(self) -> tuple[Array, Array]:
        return gather.group_values(self.after, self.src, len(self))

    def successors(self, vertex: int) -> Array:
        """Destinations of the edges from this vertex.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> graph = tiny_trace().graph()
        >>> graph.successors(1).tolist()  # the kernel launched, and the next call on the thread
        [2, 3]
        """
        return self.after[self.first[vertex] : self.first[vertex + 1]]

    def predecessors(self, vertex: int) -> Array:
        """Sources of the edges to this vertex.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> graph = tiny_trace().graph()
        >>> graph.predecessors(4).tolist()  # the kernel before on the stream, and the launch
        [2, 3]
        """
        first, before = self._into
        return before[first[vertex] : first[vertex + 1]]

    def counts(self) -> dict[str, int]:
        """Number of edges of each kind that occurs, by the kind's name.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> graph = tiny_trace().graph()
        >>> graph.counts()
        {'call': 2, 'order': 1, 'launch': 2, 'stream': 1}
        """
        number = np.bincount(self.kind, minlength=256)
        return {k.name.lower(): int(number[k]) for k in EdgeKind if number[k]}

    def subgraph(self, which: Array | str) -> Graph:
        """Graph of the chosen vertices and the edges between them.

        Parameters
        ----------
        which
            Truth value for each vertex, or a query of `pandas.DataFrame.query` on the columns
            of ``trace.to_pandas()``: ``"rank == 0 and kind == 'kernel' and dur > 10_000"``.
            A column of `hub.ANNOTATIONS` that the trace lacks is null.

        Raises
        ------
        UsageError
            There is not one truth value for each vertex, or pandas refuses the query.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> graph = tiny_trace().graph()
        >>> kernels = graph.subgraph("kind == 'kernel' and dur > 1_000")
        >>> kernels.node.tolist(), kernels.counts()
        ([2, 4], {'stream': 1})
        """
        if isinstance(which, str):
            from chopper_interop import pandas_view

            which = pandas_view.query_mask(self.trace, which)[self.node]
        which = np.asarray(which, bool)
        if len(which) != len(self):
            raise UsageError(f"{len(which):,} truth values for {len(self):,} vertices")
        new = np.cumsum(which, dtype=np.int32) - 1  # number of each chosen vertex in the subgraph
        inside = which[self.src] & which[self.after]
        src, dst, kind = new[self.src[inside]], new[self.after[inside]], self.kind[inside]
        # edges stay sorted by source: the offsets are the running sum of out-degrees
        first = _offsets(src, int(which.sum()))
        return Graph(
            self.trace,
            self.node[which],
            self.at_ns[which],
            first,
            dst,
            kind,
            new[self.order[which[self.order]]],
            self.left_out,
            self.of_endpoints,
        )


def node_graph(trace: TraceTables, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
    """Build the graph whose vertices are the trace's nodes.

    Edges are those stored, with one exception: for a call that waits for work which it launched
    itself, such as a blocking copy, the node that follows the call on its thread depends on that
    work. In a graph of nodes call → work → call would be a cycle.

    Parameters
    ----------
    kinds
        Only edges of these kinds, by `EdgeKind` or name; all if None.
    """
    selected = selected_kinds(kinds)
    src, dst, kind = _stored_edges(trace, selected)
    blocking = np.flatnonzero(_waits_for_own_launch(trace, src, dst, kind))
    if blocking.size:
        dst = dst.copy()
        ts, dur, lane, threads = _lanes(trace)
        dst[blocking] = next_on_lane(ts, dur, lane, len(threads), dst[blocking])
    parts = [(src[dst >= 0], dst[dst >= 0], kind[dst >= 0])]
    parts += [_derived_edges(trace, k) for k in DERIVED if k in selected]
    rows = np.arange(trace.nodes.num_rows, dtype=np.int32)
    graph, _ = build_graph(trace, rows, trace.array("ts"), _concatenated(parts))
    return replace(graph, left_out=graph.left_out + int(np.count_nonzero(dst < 0)))


def _waits_for_own_launch(trace: TraceTables, src: Array, dst: Array, kind: Array) -> Array:
    """Mark edges to a call from work that this call, or one that it made, launched."""
    waits = np.flatnonzero((kind == EdgeKind.SYNC) & (trace.launch[src] >= 0))
    mask = np.zeros(len(kind), bool)
    mask[waits] = is_within(trace.launch[src[waits]], dst[waits], trace.array("parent"))
    return mask


def endpoint_graph(trace: TraceTables, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
    """Build the graph of endpoints: vertex 2i is the start of node i, vertex 2i + 1 its end.

    A thread is one chain of the endpoints of all its nodes. Work on a stream has an edge from its
    start to its end, and one from the end of the work before it.

    Parameters
    ----------
    kinds
        Only edges of these kinds, and durations; all if None.
    """
    src, dst, kind = endpoint_edges(trace, selected_kinds(kinds))
    ts = trace.array("ts")
    at = np.empty(2 * len(ts), np.int64)
    at[::2], at[1::2] = ts, ts + trace.array("dur")
    node = np.repeat(np.arange(len(ts), dtype=np.int32), 2)
    return build_graph(trace, node, at, (src, dst, kind), of_endpoints=True)[0]


def endpoint_edges(
    trace: TraceTables, kinds: set[EdgeKind], stream_before: Array | None = None
) -> Edges:
    """Edges between starts (vertices 2i) and ends (2i + 1) of nodes: sources, destinations, kinds.

    Parameters
    ----------
    kinds
        Kinds of edges; durations are always included.
    stream_before
        Row of the work before each node on its stream, as `chains.stream_orders` gives it, if
        the caller has it already.

    Raises
    ------
    TooLargeError
        There are more starts and ends than can be numbered.
    """
    require_endpoint_numbers(trace)
    src, dst, kind = _stored_edges(trace, kinds)
    parts = [(2 * src + _FROM[kind], 2 * dst + _TO[kind], kind)]
    ts, dur, lane, on_thread = _lanes(trace)
    with_threads = {EdgeKind.CALL, EdgeKind.ORDER} <= kinds
    if with_threads:  # these chains include the durations of nodes on threads
        parts.append(thread_endpoint_edges(ts, dur, lane, on_thread, trace.array("parent")))
    rest = np.flatnonzero(~on_thread[lane]) if with_threads else np.arange(len(ts))
    rest = rest.astype(np.int32)
    parts.append(_edges_of_kind(2 * rest, 2 * rest + 1, EdgeKind.DURATION))
    if EdgeKind.STREAM in kinds:
        before, after, stream_kinds = _derived_edges(trace, EdgeKind.STREAM, stream_before)
        parts.append((2 * before + 1, 2 * after, stream_kinds))
    return _concatenated(parts)


def require_endpoint_numbers(trace: TraceTables) -> None:
    """Raise `TooLargeError` if a trace has more starts and ends than can be numbered."""
    row_numbers.require(trace.nodes.num_rows, "nodes with a start and an end", rows_each=2)


def _concatenated(parts: list[Edges]) -> Edges:
    """Join edges column by column; parts are gone then, so that no more than one column is held twice."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    src, dst, kind = (np.concatenate(columns.pop(0)) for _ in range(3))
    return src.astype(np.int32, copy=False), dst.astype(np.int32, copy=False), kind


def selected_kinds(kinds: Iterable[EdgeKind | str] | None) -> set[EdgeKind]:
    """Resolve kinds of edges that are given as `EdgeKind` or by name; all if None."""
    if kinds is None:
        return set(EdgeKind)
    names = {k.name.lower(): k for k in EdgeKind}
    chosen = set()
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if isinstance(kind, str) and kind.lower() not in names:
            raise UsageError(f"there are no edges {kind!r}", hint=f"there are {', '.join(names)}")
        chosen.add(names[kind.lower()] if isinstance(kind, str) else EdgeKind(kind))
    return chosen


def _lanes(trace: TraceTables) -> tuple[Array, Array, Array, Array]:
    """Start, duration and lane of nodes, and a mask of lanes that are threads."""
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    return trace.array("ts"), trace.array("dur"), trace.array("lane"), threads


def _stored_edges(trace: TraceTables, kinds: set[EdgeKind]) -> Edges:
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    if len(kinds) < len(EdgeKind):
        selected = is_any(kind, kinds)
        src, dst, kind = src[selected], dst[selected], kind[selected]
    return src, dst, kind


def _derived_edges(trace: TraceTables, kind: EdgeKind, stream_before: Array | None = None) -> Edges:
    """Edges of a kind in `DERIVED`, which follow from parents, threads or streams."""
    ts, dur, lane, threads = _lanes(trace)
    if stream_before is not None:
        before = stream_before
    elif kind is EdgeKind.STREAM:
        on_gpu = is_any(trace.array("kind", "lanes"), GPU_LANES)
        before = stream_orders(ts, dur, lane, on_gpu)
    elif kind is EdgeKind.CALL:
        before = np.where(threads[lane], trace.array("parent"), -1)
    else:
        before = thread_orders(lane, threads, trace.array("parent"))
    after = np.flatnonzero(before >= 0).astype(np.int32)
    return _edges_of_kind(before[after], after, kind)


def _offsets(src: Array, n: int) -> Array:
    """Offset of the first edge of each of n vertices among edges sorted by their sources, and behind them their number."""
    first = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(src, minlength=n), dtype=np.int32, out=first[1:])
    return first


def _edges_of_kind(src: Array, dst: Array, kind: EdgeKind) -> Edges:
    return src, dst, np.full(len(src), int(kind), np.uint8)


def build_graph(
    trace: TraceTables, node: Array, at_ns: Array, edges: Edges, *, of_endpoints: bool = False
) -> tuple[Graph, Array]:
    """Build the graph of some edges, without those that would close a cycle.

    Parameters
    ----------
    trace, node, at_ns, of_endpoints
        As of `Graph`.
    edges
        Source vertex, destination vertex and kind of each edge, in any order.

    Returns
    -------
    graph, index
        The graph, and for each of its edges its index in `edges`.

    Raises
    ------
    TooLargeError
        There are more vertices or edges than can be numbered.
    """
    src, dst, kind = edges
    # of a large job each column is freed as soon as it is in order, if the caller has none
    del edges
    n = len(node)
    row_numbers.require(n, "vertices of a graph")
    row_numbers.require(len(src), "edges of a graph")
    # edges sorted by source, and the offset of each source
    first, edge = gather.group_rows(src, n, np.int32)
    del src
    after = dst[edge].astype(np.int32, copy=False)
    del dst
    order = gather.topological_order(first, after)
    if len(order) == n:
        return Graph(trace, node, at_ns, first, after, kind[edge], order, 0, of_endpoints), edge
    # A topological sort stops at cycles: forwards it does not reach vertices on or behind one,
    # backwards not those on or before one. Every cycle lies in the intersection. There, keep only
    # edges that lead forward in time, and among equal times to higher numbers: no cycle is left.
    src = np.repeat(np.arange(n, dtype=np.int32), np.diff(first))
    on_circles = np.ones(n, bool)
    on_circles[order] = False
    on_circles[gather.topological_order(*gather.group_values(after, src, n))] = False
    back = (at_ns[src] > at_ns[after]) | ((at_ns[src] == at_ns[after]) & (src >= after))
    keep = ~(on_circles[src] & on_circles[after] & back)
    first = _offsets(src[keep], n)
    after, edge = after[keep], edge[keep]
    order = gather.topological_order(first, after)
    lost = int(np.count_nonzero(~keep))
    return Graph(trace, node, at_ns, first, after, kind[edge], order, lost, of_endpoints), edge
