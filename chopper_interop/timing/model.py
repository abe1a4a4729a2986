"""When things happen, and why not sooner: the graph of moments as a model of time.

Each moment is reached when the last of what it waits for has happened and the least time along that
edge has passed; what it was later than that is its *delay*, of which the trace does not say why.
With lags and delays as measured the model gives the measured times exactly. With others it says when
things would have happened.

Least times are durations of GPU work, the time that hosts pass between moments, what a collective
transfers once its last member has started, and, for launches, events, waits and streams, the least
latencies that the trace shows (`latencies`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import graph
from chopper_interop.columns import arrow
from chopper_interop.columns.members import is_any
from chopper_interop.edges.collectives import TOGETHER
from chopper_interop.graph_chains import streams
from chopper_interop.schemas.kinds import GPU_LANES, Collective, EdgeKind, LaneKind
from chopper_interop.timing import latencies, loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.graph import Graph
    from chopper_interop.trace import Trace

_FIRST = (
    EdgeKind.DURATION, EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COMM, EdgeKind.LAUNCH,
    EdgeKind.SYNC, EdgeKind.HANDOVER, EdgeKind.CALL, EdgeKind.ORDER,
)  # fmt: skip
EDGE_RANK = np.full(256, len(_FIRST), np.uint8)
"""Of edges that are reached at once the one whose kind stands first here is said to bind."""
EDGE_RANK[[int(k) for k in _FIRST]] = np.arange(len(_FIRST))


@dataclass(frozen=True)
class Timing:
    """A graph whose vertices are moments, and the time that passes along its edges.

    Parameters
    ----------
    graph
        Starts (2i) and ends (2i + 1) of nodes, and behind them a moment for each collective: when
        its last member has started. The node of such a moment is that member.
    lag_ns
        Least time along each edge.
    binding
        For each moment the edge that was reached last; -1 if nothing leads to it.
    delay_ns
        For each moment, how much later than that it was.
    """

    graph: Graph
    lag_ns: Array
    binding: Array
    delay_ns: Array

    @property
    def at_ns(self) -> Array:
        """When each moment was, on the axis of `ts`."""
        return self.graph.at_ns

    @property
    def meetings(self) -> slice:
        """Vertices that are moments of collectives."""
        return slice(2 * self.graph.trace.nodes.num_rows, len(self.graph))

    @cached_property
    def meets(self) -> Array:
        """Which vertices are moments of collectives."""
        found = np.zeros(len(self.graph), bool)
        found[self.meetings] = True
        return found

    def retimed(self, lag_ns: Array | None = None, delay_ns: Array | None = None) -> Array:
        """When each moment would be with other lags and delays; as measured with neither.

        Moments to which nothing leads stay where they are.

        Parameters
        ----------
        lag_ns, delay_ns
            Instead of those of the model, as they are there.
        """
        own = self.graph
        lag = self.lag_ns if lag_ns is None else np.ascontiguousarray(lag_ns, np.int64)
        delay = self.delay_ns if delay_ns is None else np.ascontiguousarray(delay_ns, np.int64)
        return loops.earliest(own.order, own.first, own.after, lag, delay, self.at_ns)

    def windows(self, start_ns: Array, end_ns: Array) -> tuple[Array, Array]:
        """Moments of each window in topological order: ``chosen[first[k]:first[k + 1]]``.

        Those that wait for nothing and that nothing waits for, as of ranges made of others, are in none.

        Parameters
        ----------
        start_ns, end_ns
            Of windows; both ascending.
        """
        tied = self.binding >= 0
        tied[self.graph.src] = True
        order = self.graph.order[tied[self.graph.order]]
        return loops.by_window(order, self.at_ns, start_ns, end_ns)

    def latest(self, order: Array, ends: Array, end_ns: int, late_ns: Array) -> None:
        """Write how late each moment of a window may be for its end to be no later.

        Parameters
        ----------
        order
            Moments of the window in topological order.
        ends
            Those that the window may end with.
        end_ns
            End of the window.
        late_ns
            One place for each moment of the graph: `timing.loops.AT_ANY_TIME`, as also afterwards of
            moments outside of the window, and of those that its end does not wait for.
        """
        own = self.graph
        lag, delay = self.lag_ns, self.delay_ns
        late_ns[ends] = end_ns
        loops.latest(order, own.first, own.after, lag, delay, late_ns)

    def path(self, last: int, start_ns: int) -> Array:
        """Edges along what bound each moment, from `start_ns` on to the vertex `last`."""
        return loops.walk(self.binding, self.graph.src, self.at_ns, last, start_ns)


def timing_of(trace: Trace) -> Timing:
    """The model of a trace; made once for each.

    Parameters
    ----------
    trace
        Any trace.
    """
    return trace.kept("timing", _made)


def _made(trace: Trace) -> Timing:
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    on_gpu = is_any(trace.array("kind", "lanes"), GPU_LANES)
    before = streams(ts, trace.array("dur"), trace.array("lane"), on_gpu)
    told = latencies.of(trace, before)
    src, dst, kind = graph.moment_edges(trace, set(EdgeKind), before)
    stored = len(told.least_ns)
    src[:stored] += told.from_end  # the first ones are the trace's, in order
    at = np.empty(2 * len(ts), np.int64)
    at[::2], at[1::2] = ts, end
    handed = np.flatnonzero(kind[:stored] == EdgeKind.HANDOVER)
    dst[handed] = loops.first_since(
        _before_on_thread(src, dst, kind, stored, len(at)), at, src[handed], dst[handed]
    )
    lag = at[dst] - at[src]
    fixed = (EdgeKind.HANDOVER, EdgeKind.COMM)
    loose = ~is_any(kind[:stored], fixed)
    lag[:stored][loose] = np.minimum(told.least_ns, lag[:stored])[loose]
    _wait_on_hosts(src, dst, kind, lag, told, stored)
    edges = _Edges(src, dst, kind, lag)
    after_work = np.flatnonzero(kind == EdgeKind.STREAM)
    least = latencies.of_streams(ts, end, before)
    early = after_work[lag[after_work] < 0]  # clocks of GPUs tick
    dst[early] += 1  # so that the end of one bounds the other's
    lag[after_work] = np.minimum(least, lag[after_work])
    lag[early] = at[dst[early]] - at[src[early]]
    return _model(trace, at, edges, stored)


@dataclass
class _Edges:
    """Edges under construction."""

    src: Array
    dst: Array
    kind: Array
    lag: Array

    def replaced(self, keep: Array, src: Array, dst: Array, lag: Array) -> _Edges:
        """Some of them, and further ones of collectives."""
        kind = np.full(len(src), int(EdgeKind.COMM), np.uint8)
        parts = ((self.src, src), (self.dst, dst), (self.kind, kind), (self.lag, lag))
        return _Edges(*(np.concatenate([old[keep], new.astype(old.dtype)]) for old, new in parts))


def _chain(kind: Array, stored: int) -> Array:
    """Which edges lead from each moment of a thread to the next."""
    found = is_any(kind, (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION))
    found[:stored] = False
    return found


def _before_on_thread(src: Array, dst: Array, kind: Array, stored: int, moments: int) -> Array:
    """For each moment the one before it on its thread; -1 if there is none."""
    before = np.full(moments, -1, np.int32)
    chain = _chain(kind, stored)
    before[dst[chain]] = src[chain]
    return before


def _wait_on_hosts(  # columns
    src: Array, dst: Array, kind: Array, lag: Array, told: latencies.Latencies, stored: int
) -> None:
    """Shorten the host's time within calls that wait for GPUs, and between those that are handed over."""
    n = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    least = np.full(n, -1, np.int64)  # of moments that end a wait, by edges from the host
    waits = np.flatnonzero(told.own_ns >= 0)
    least[dst[waits]] = told.own_ns[waits]
    handed = np.flatnonzero(kind[:stored] == EdgeKind.HANDOVER)
    least[dst[handed]] = 0
    held = np.flatnonzero(_chain(kind, stored) & (least[dst] >= 0))
    lag[held] = np.minimum(lag[held], least[dst[held]])


def _model(trace: Trace, at: Array, edges: _Edges, stored: int) -> Timing:
    nodes = trace.nodes.num_rows
    edges, meeting = _met(trace, at, edges, stored)
    node = np.concatenate([np.repeat(np.arange(nodes, dtype=np.int32), 2), meeting])
    at = np.concatenate([at, trace.array("ts")[meeting]])
    told = edges.src, edges.dst, edges.kind
    made, kept = graph.arranged(trace, node, at, told, of_moments=True)
    lag = edges.lag[kept]
    gap = at[made.after] - at[made.src]
    lag = np.minimum(lag, gap)
    binding, delay = loops.bound(at, made.first, made.after, lag, EDGE_RANK[made.kind])
    return Timing(made, lag, binding, delay)


def _met(trace: Trace, at: Array, edges: _Edges, stored: int) -> tuple[_Edges, Array]:
    """Edges with a moment for each collective in which all wait for all, and the last member of each.

    So do a send and a receive that began before the send's end. Of other communication, what waited
    for another member lasts from that one's start on.
    """
    comm = np.flatnonzero(edges.kind[:stored] == EdgeKind.COMM)
    last, member = edges.src[comm] // 2, edges.dst[comm] // 2
    paired = _of_kind(trace, last, (Collective.SEND,)) & (at[2 * member] < at[2 * last + 1])
    late = paired & (at[2 * member] > at[2 * last])  # the receive came last
    last, member = np.where(late, member, last), np.where(late, last, member)
    together = paired | _of_kind(trace, last, TOGETHER)
    heads, of_edge = np.unique(last[together], return_inverse=True)
    members = np.concatenate([heads, member[together]])
    meeting = len(at) + np.concatenate([np.arange(len(heads)), of_edge])
    start = at[2 * heads]
    transfer = at[2 * members + 1] - start[meeting - len(at)]
    waiting = start[meeting - len(at)] - at[2 * members]
    own = np.full(len(at) // 2, -1, np.int64)  # what each lasts by itself; -1 if not a member
    own[members] = 0
    others = np.flatnonzero(~together)
    rest = np.full(len(own), np.iinfo(np.int64).max)
    dur = at[1::2] - at[::2]
    np.minimum.at(rest, member[others], np.minimum(edges.lag[comm[others]], dur[member[others]]))
    edges.lag[comm[others]] = rest[member[others]]
    takes = edges.kind == EdgeKind.DURATION
    takes[:stored] = False
    node = edges.src // 2
    keep = ~(takes & ((own[node] == 0) | ~lasting(trace)[node]))
    keep[comm[together]] = False
    shorter = np.flatnonzero(takes)
    edges.lag[shorter] = np.minimum(edges.lag[shorter], rest[node[shorter]])
    src = np.concatenate([2 * members, meeting])
    dst = np.concatenate([meeting, 2 * members + 1])
    lag = np.concatenate([np.minimum(waiting, 0), transfer])
    last_to_start = np.full(len(heads), len(at), np.int64)  # of equal ones the first
    ties = members[waiting == 0]
    np.minimum.at(last_to_start, meeting[waiting == 0] - len(at), ties)
    return edges.replaced(keep, src, dst, lag), last_to_start.astype(np.int32)


def lasting(trace: Trace) -> Array:
    """Which nodes take time themselves, so which the model moves.

    Those of host threads and of streams, queues and copy engines; no ranges made of others.

    Parameters
    ----------
    trace
        Any trace.
    """
    lanes = (LaneKind.THREAD, *GPU_LANES)
    return is_any(trace.array("kind", "lanes"), lanes)[trace.array("lane")]


def _of_kind(trace: Trace, node: Array, wanted: Sequence[str]) -> Array:
    """Which members are of collectives of these kinds."""
    if "collective" not in trace.nodes.column_names:
        return np.zeros(len(node), bool)
    column = arrow.flat(trace.nodes["collective"])
    kinds = column.dictionary.to_pylist()
    chosen = np.array([*(kind in wanted for kind in kinds), False])
    return chosen[arrow.numbers(column, -1)[node]]
