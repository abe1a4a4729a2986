"""The timing model: when each node starts and ends, and why not sooner.

The model is an acyclic graph. A vertex is an *endpoint*, the start or the end of a node, or a
*collective barrier*, the time at which the last member of a collective has started. An edge says
that its target comes no sooner than its source plus a least time, the *lag* of the edge::

    time(v) = max over edges (u, v) of (time(u) + lag(u, v)) + delay(v)

The edge for which the maximum is reached is the one that *binds* v. The *delay* of v is the rest of
the measured time, of which the trace does not give the reason. With lags and delays as measured the
model gives the measured times exactly; with others it predicts what they would have been.

How edges are made of what the trace holds. Time runs to the right, "[" is the start of a node and "]"
its end, and the numbers tell which endpoints an edge joins::

    CALL, ORDER,  [ outer   [ inner ]    ]    host threads: 1 -> 2 -> 3 -> 4, each endpoint to the next
    DURATION      1         2       3    4    on its thread; lag: the time in between

    DURATION      [ kernel ]                  GPU work: 1 -> 2; lag: its duration
                  1        2

    LAUNCH        [ call ]  [ kernel ]        1 -> 3, or 2 -> 3 where the time since the call's end is
                  1      2  3                 steadier; lag: least latency

    STREAM        [ kernel ]  [ next ]        on one stream: 1 -> 2; lag: least latency, negative where
                           1  2               clocks make 2 seem to come before 1

    EVENT         [ kernel ]  [ next ]        from work before an event record to work behind the wait
                           1  2               for it: 1 -> 2; lag: least latency

    SYNC          [ kernel ]                  1 -> 2; lag: least latency, negative where clocks make 1
                     [ call  ]                seem to come behind 2. The host's own time within the call
                           1 2                becomes what such calls take without waiting

    POLL          [ kernel      w  ]          1 -> 2; lag: the measured time, negative where the kernel
              [ call ]             [ next ]   writes (w) before its end. The time before 2 becomes 0.
                                   1 2        Of a copy that outlasts its call 2 is the call's end

    HANDOVER      [ thread ]                  1 -> 2, if the second thread was idle until then; lag: the
                               [ thread 2     measured time. The idle time before 2 becomes 0
                           1   2

    COMM with     [ member 1     |     ]      1, 2, 3 -> B with lag 0, so that the barrier B comes with
    a barrier          [ member 2|  ]         the last start. B -> each end; lag: the transfer, from B
                                 [ member ]   to that end. Members have no DURATION edge
                  1    2         3=B

    COMM without  [ root      ]               one waits for one other: 1 -> 2; lag: the measured time,
    a barrier       [ leaf       ]            at most the leaf's duration, which becomes the lag of the
                  1              2            leaf's DURATION edge as well

    COMM of a     [ send ]                    1 -> 2; lag: the measured time. The receive's DURATION edge
    buffered send    [ receive ]              becomes what receives last whose data were there when they
                         1     2              began

    DEPENDENCY    through ranks that do not record yet, see `timing.unrecorded`, and

                  [ first of the step     ]   for GPU work of a training step to which nothing else leads:
                  1         [ kernel ]        1 -> 2, so that it moves with its step; lag: 0
                            2

Barriers are for collectives in which all wait for all, and for a send and its receive if that began
before the send's end. HTA's critical path analysis has similar edges within one rank (its types are
operator_kernel, dependency, kernel_launch_delay, kernel_kernel_delay, sync_dependency), no barriers.

Least latencies are taken from the trace itself, see `timing.latencies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import graph, rank_batches
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.arrays.statistics import NO_VALUE, lower_medians
from chopper_interop.edges.collectives import waits_together
from chopper_interop.schemas.kinds import (
    GPU_LANES,
    GPU_WORK,
    Collective,
    EdgeKind,
    Kind,
    LaneKind,
)
from chopper_interop.schemas.meta import COMPUTED
from chopper_interop.timing import latencies, loops, unrecorded
from chopper_interop.timing.populations import Populations, populations
from chopper_interop.timing.start_latencies import predecessors
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.graph import Graph

_BY_PRIORITY = (
    EdgeKind.DURATION, EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COMM, EdgeKind.LAUNCH,
    EdgeKind.SYNC, EdgeKind.POLL, EdgeKind.HANDOVER, EdgeKind.CALL, EdgeKind.ORDER,
)  # fmt: skip
EDGE_PRIORITY = np.full(256, len(_BY_PRIORITY), np.uint8)
"""Priority of each kind of edge: of several that are reached at once the lowest number binds.

Chosen: GPU work before what the host did for it, so that a path stays on GPUs where both explain it.
"""
EDGE_PRIORITY[[int(k) for k in _BY_PRIORITY]] = np.arange(len(_BY_PRIORITY))
_CACHED, _CACHED_RANKS = "timing", "timing of ranks"
"""Names under which a trace keeps its model, and that of its ranks."""


@dataclass(frozen=True)
class Timing:
    """A graph of endpoints and collective barriers, and the time that passes along its edges.

    Parameters
    ----------
    graph
        Vertices 2i and 2i + 1 are the start and the end of node i; behind them comes one vertex for
        each collective barrier, whose node is the member that started last.
    lag_ns
        Least time along each edge.
    binding
        For each vertex the edge that was reached last; -1 if nothing leads to it.
    delay_ns
        For each vertex, how much later than that it was.
    populations
        Populations of nodes of which least latencies are.
    """

    trace: Trace
    graph: Graph
    lag_ns: Array
    binding: Array
    delay_ns: Array
    populations: Populations

    @property
    def at_ns(self) -> Array:
        """Measured time of each vertex, on the axis of `ts`."""
        return self.graph.at_ns

    @property
    def barriers(self) -> slice:
        """Vertices that are collective barriers."""
        return slice(2 * self.trace.nodes.num_rows, len(self.graph))

    @cached_property
    def is_barrier(self) -> Array:
        """Mask of the vertices that are collective barriers."""
        mask = np.zeros(len(self.graph), bool)
        mask[self.barriers] = True
        return mask

    def cached(self, name: str, make: Callable[[Timing], Array]) -> Array:
        """Return ``make(self)``, called once for each model and name, as `Trace.cached`."""
        if name not in self._cache:
            self._cache[name] = make(self)
        return self._cache[name]

    @cached_property
    def _cache(self) -> dict[str, Array]:
        return {}

    def retimed(self, lag_ns: Array | None = None, delay_ns: Array | None = None) -> Array:
        """Time of each vertex under other lags and delays, in nanoseconds; as measured with neither.

        Vertices to which nothing leads keep their measured time: the first ones of the trace.

        Parameters
        ----------
        lag_ns, delay_ns
            For each edge and each vertex; those of the model if None.
        """
        edges = self.graph
        lag = self.lag_ns if lag_ns is None else np.ascontiguousarray(lag_ns, np.int64)
        delay = self.delay_ns if delay_ns is None else np.ascontiguousarray(delay_ns, np.int64)
        return loops.earliest_times(edges.order, edges.first, edges.after, lag, delay, self.at_ns)

    def windows(self, start_ns: Array, end_ns: Array) -> tuple[Array, Array]:
        """Vertices of each window in topological order: ``chosen[first[k]:first[k + 1]]``.

        Vertices without any edge, such as endpoints of ranges on lanes of their own, are in none.

        Parameters
        ----------
        start_ns, end_ns
            Of the windows; both ascending.
        """
        connected = self.binding >= 0
        connected |= self.graph.first[1:] > self.graph.first[:-1]
        order = self.graph.order[connected[self.graph.order]]
        return loops.vertices_by_window(order, self.at_ns, start_ns, end_ns)

    def write_latest_times(self, order: Array, ends: Array, end_ns: int, late_ns: Array) -> None:
        """Write the latest time of each vertex of a window that does not move the window's end.

        Parameters
        ----------
        order
            Vertices of the window in topological order.
        ends
            Those that the window may end with.
        end_ns
            End of the window.
        late_ns
            One value a vertex of the graph, written here. All `timing.loops.UNCONSTRAINED` before,
            which stays for vertices outside of the window and those that its end does not wait for.
        """
        edges = self.graph
        late_ns[ends] = end_ns
        loops.latest_times(order, edges.first, edges.after, self.lag_ns, self.delay_ns, late_ns)

    def path(self, last: int, start_ns: int) -> Array:
        """Edges of the binding path from `start_ns` on to the vertex `last`, first ones first."""
        return loops.binding_path(self.binding, self.graph.first, self.at_ns, last, start_ns)


def timing_of(trace: Trace) -> Timing:
    """Timing model of a trace, built once for each."""
    return trace.cached(_CACHED, lambda whole: _build_timing(whole, each_rank=False))


def timing_of_ranks(trace: Trace) -> Timing:
    """Timing models of the ranks of a trace in one, each as if the rank were all that there is; built once for each.

    No rank may communicate with another one or itself in the trace, nor with one that is not recorded, unless it is a
    single rank: statistics of messages are not taken of each rank.
    """
    return trace.cached(_CACHED_RANKS, lambda ranks: _build_timing(ranks, each_rank=True))


def release_timing(trace: Trace) -> None:
    """Free the timing models of a trace, a hundred bytes a node, that nobody needs any more."""
    trace.forget(_CACHED)
    trace.forget(_CACHED_RANKS)


def _build_timing(trace: Trace, *, each_rank: bool) -> Timing:
    """Build the graph of the module's picture: edges of endpoints, their lags, then barriers."""
    graph.require_endpoint_numbers(trace)  # before minutes of work on so many
    of = populations(trace, each_rank=each_rank)
    at = np.empty(2 * trace.nodes.num_rows, np.int64)
    at[::2] = trace.array("ts")
    np.add(trace.array("ts"), trace.array("dur"), out=at[1::2])
    edges, stored = _endpoint_edges(trace, at, of)
    is_entered = np.zeros(len(at), bool)
    is_entered[edges.dst] = True
    first, alone = _anchors(trace, is_entered)
    anchors = _new_edges(2 * first, 2 * alone, np.zeros_like(alone), EdgeKind.DEPENDENCY)
    keep, new, last_member = _barriers(trace, at, edges, stored, is_entered)
    edges.change(keep, [anchors, *new])
    del keep, new
    return _arranged(trace, at, edges, last_member, of)


def _endpoint_edges(trace: Trace, at: Array, of: Populations) -> tuple[_Edges, int]:
    """Edges between starts and ends without barriers, and how many of them are of the trace's table: the first ones."""
    before = predecessors(trace)
    known = latencies.edge_latencies(trace, before, of)
    src, dst, kind = graph.endpoint_edges(trace, set(EdgeKind), before)
    stored = len(known.min_ns)  # edges of the trace's table come first, in its order
    src[:stored] += known.from_end  # the start of a call is 2i, its end 2i + 1
    is_chain = _is_derived_chain(kind, stored)
    previous = _previous_on_thread(src, dst, is_chain, len(at))
    handover, poll = (
        np.flatnonzero(kind[:stored] == ended) for ended in (EdgeKind.HANDOVER, EdgeKind.POLL)
    )
    awaited = np.append(src[handover], _begun_polls(trace, at, src[poll] // 2))
    moved = np.append(handover, poll)
    dst[moved] = loops.first_endpoint_since(previous, at, awaited, dst[moved])
    rested_ns = at[dst[poll]] - at[previous[dst[poll]]]
    del previous
    lag = at[dst]
    lag -= at[src]
    has_latency = ~is_any(kind[:stored], (EdgeKind.HANDOVER, EdgeKind.COMM, EdgeKind.POLL))
    lag[:stored][has_latency] = np.minimum(known.min_ns, lag[:stored])[has_latency]
    polling = of.at(src[poll] // 2)
    lag[poll], known.call_ns[poll] = latencies.poll_returns(lag[poll], rested_ns, polling, of.count)
    _shorten_waiting_hosts(dst, kind, lag, known, is_chain, len(at))
    lag[_is_idle_slot(trace, src, dst, is_chain)] = 0
    _bound_stream_edges(src, kind, lag, known.stream_ns, of)
    return _Edges(src, dst, kind, lag), stored


def _begun_polls(trace: Trace, at: Array, work: Array) -> Array:
    """Endpoint since which the host waited for each work: its start, or what came later of its launch.

    That is the end of a launch, and the start of a call that copies, which waits itself.
    """
    launch, is_launched = trace.launch[work], trace.array("kind")[work] != Kind.MEMCPY
    called = np.where(launch >= 0, 2 * launch + is_launched, 2 * work)
    return np.where(at[called] > at[2 * work], called, 2 * work)


def _anchors(trace: Trace, is_entered: Array) -> tuple[Array, Array]:
    """Work of training steps that waits for nothing, and the first node of its rank in its step.

    It is anchored there: if the step begins sooner, so does the work. All that is not known of it is its
    delay.
    """
    rank, kind = trace.array("rank"), trace.array("kind")
    parts = []
    # of whole ranks, so that memory does not grow with their number
    for rows in rank_batches.spans(trace):
        step = trace.integers("iteration", rows)
        inside = np.flatnonzero(step >= 0)
        node = inside + rows.start
        alone = is_any(kind[node], GPU_WORK) & ~is_entered[2 * node]
        if alone.any():
            # nodes of a rank are in order of start
            first, code = gather.distinct(rank[node], step[inside])
            begin = node[first][code[alone]]
            parts.append(np.stack([begin, node[alone]])[:, begin != node[alone]])
    begin, work = np.concatenate([np.empty((2, 0), np.int64), *parts], axis=1)
    return begin, work


def _bound_stream_edges(
    src: Array, kind: Array, lag: Array, min_ns: Array, of: Populations
) -> None:
    """Set lags of STREAM edges to the least latency of their population, at most the measured time.

    Clocks of GPUs tick, so work may seem to start before the end of what it follows: its lag is
    negative then, and the order stays.
    """
    in_stream = np.flatnonzero(kind == EdgeKind.STREAM)
    lag[in_stream] = np.minimum(min_ns[of.at(src[in_stream] // 2)], lag[in_stream])


@dataclass
class _Edges:
    """Edges under construction, one value each."""

    src: Array
    dst: Array
    kind: Array
    lag: Array

    def change(self, keep: Array, new: Sequence[_Edges]) -> None:
        """Leave out edges that a mask does not keep, and add new ones behind the others.

        It is done column by column, so that of a large job no more than one is held twice.
        """
        for name in ("src", "dst", "kind", "lag"):
            old = getattr(self, name)
            more = [getattr(edges, name).astype(old.dtype) for edges in new]
            setattr(self, name, np.concatenate([old[keep], *more]))

    def taken(self, name: str) -> Array:
        """Return a column, which is gone from here: it is free as soon as who asked for it needs it no more."""
        column: Array = vars(self).pop(name)
        return column


def _new_edges(src: Array, dst: Array, lag: Array, kind: EdgeKind) -> _Edges:
    """Edges of one kind."""
    return _Edges(src, dst, np.full(len(src), int(kind), np.uint8), lag)


def _is_derived_chain(kind: Array, stored: int) -> Array:
    """Mask of the derived edges from each endpoint of a thread to the next, and of durations."""
    mask = is_any(kind, (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION))
    mask[:stored] = False
    return mask


def _previous_on_thread(src: Array, dst: Array, is_chain: Array, endpoints: int) -> Array:
    """For each endpoint the one before it on its thread; -1 if there is none."""
    before = np.full(endpoints, -1, np.int32)
    before[dst[is_chain]] = src[is_chain]
    return before


def _shorten_waiting_hosts(  # columns
    dst: Array,
    kind: Array,
    lag: Array,
    known: latencies.Latencies,
    is_chain: Array,
    endpoints: int,
) -> None:
    """Take waiting out of the host's own time, so that it vanishes with what was waited for.

    A call that waits keeps what such calls take at least; an idle thread that was handed over to, or polled,
    keeps nothing. They get their measured time from the SYNC, HANDOVER or POLL edge instead.
    """
    waits = np.flatnonzero(known.call_ns >= 0)
    handover = np.flatnonzero(kind[: len(known.call_ns)] == EdgeKind.HANDOVER)
    # endpoints that end a wait, and the host's own time until there
    ends = dst[np.append(waits, handover)]
    own_ns = np.append(known.call_ns[waits], np.zeros_like(handover))
    ends_wait = np.zeros(endpoints, bool)
    ends_wait[ends] = True
    waiting = np.flatnonzero(is_chain & ends_wait[dst])
    order = np.argsort(ends, kind="stable")  # of several of one endpoint the last counts
    last = np.searchsorted(ends[order], dst[waiting], "right") - 1
    lag[waiting] = np.minimum(lag[waiting], own_ns[order[last]])


def _is_idle_slot(trace: Trace, src: Array, dst: Array, is_chain: Array) -> Array:
    """Mark edges from the end of a host's operation to a start that has another reason: time between is no work.

    So it is in simulations, and of the pieces of operations that ETs have: they start as soon as what they depend on
    has ended and their slot is free.
    """
    idles = trace.array("kind") == Kind.HOST_GAP
    if trace.meta.clock == COMPUTED:
        idles[:] = True
    if not idles.any():
        return np.empty(0, np.int64)
    slots = np.flatnonzero(is_chain & (src % 2 == 1) & (dst % 2 == 0))
    return slots[idles[dst[slots] // 2]]


def _arranged(
    trace: Trace, at: Array, edges: _Edges, last_member: Array, of: Populations
) -> Timing:
    """Put edges in order, and find what binds each vertex; those of barriers are behind the others."""
    nodes = trace.nodes.num_rows
    node = np.concatenate([np.repeat(np.arange(nodes, dtype=np.int32), 2), last_member])
    at = np.concatenate([at, trace.array("ts")[last_member]])
    arranged, edge = graph.build_graph(
        trace,
        node,
        at,
        (edges.taken("src"), edges.taken("dst"), edges.taken("kind")),
        of_endpoints=True,
    )
    lag = edges.taken("lag")[edge]
    del edge
    measured_ns = at[arranged.after]
    measured_ns -= np.repeat(at, np.diff(arranged.first))
    np.minimum(lag, measured_ns, out=lag)
    del measured_ns
    priority = EDGE_PRIORITY[arranged.kind]
    binding, delay = loops.find_binding(at, arranged.first, arranged.after, lag, priority)
    return Timing(trace, arranged, lag, binding, delay, of)


def _barriers(
    trace: Trace, at: Array, edges: _Edges, stored: int, is_entered: Array
) -> tuple[Array, list[_Edges], Array]:
    """Replace COMM edges of collectives in which all wait for all by edges through a barrier.

    Of other communication, a waiting member lasts from the start of the awaited one on, and a receive
    of a buffered send from its end on.

    Returns
    -------
    keep
        Mask of the edges that stay.
    new
        Edges of barriers, which are the vertices from ``len(at)`` on, and through ranks that do not record yet.
    last_member
        Node of each barrier: the member that started last.
    """
    comm = np.flatnonzero(edges.kind[:stored] == EdgeKind.COMM)
    last, member, joint, buffered = _barrier_pairs(
        trace, at, edges.src[comm] // 2, edges.dst[comm] // 2
    )
    # the trace has an edge from the last member to each other one: a star for each barrier
    heads, of_edge = np.unique(last[joint], return_inverse=True)
    members = np.concatenate([heads, member[joint]])
    number = np.concatenate([np.arange(len(heads)), of_edge])
    barrier_at = at[2 * heads][number]
    transfer = at[2 * members + 1] - barrier_at
    waiting = barrier_at - at[2 * members]
    all_durations = np.flatnonzero(edges.kind[stored:] == EdgeKind.DURATION) + stored
    communicates = trace.array("kind") == Kind.COMM
    communicates[last] = communicates[member] = True
    durations = all_durations[communicates[edges.src[all_durations] // 2]]
    waits = ~joint & ~buffered
    _shorten_waiting_members(at, edges, comm[waits], member[waits], durations)
    size = trace.integers("bytes", last[buffered])
    received_ns = _follow_sends(at, edges, comm[buffered], last[buffered], member[buffered], size)
    _limit_durations(edges, durations, member[buffered], received_ns)
    own = np.full(len(at) // 2, -1, np.int64)  # without what is waited for; -1 if that is unknown
    own[last[~joint]] = at[2 * last[~joint] + 1] - at[2 * last[~joint]]
    own[member[waits]] = edges.lag[comm[waits]]
    own[member[buffered]] = received_ns
    own[members] = transfer
    usual_ns = _shorten_unmatched(trace, own, edges, durations)
    through_unrecorded = unrecorded.links(trace, at, usual_ns, is_entered)
    lasts = takes_time(trace)  # members last from the barrier on instead, ranges do not last at all
    lasts[members] = False
    keep = np.ones(len(edges.src), bool)
    keep[all_durations] = lasts[edges.src[all_durations] // 2]
    keep[comm[joint]] = False
    barrier = len(at) + number
    src = np.concatenate([2 * members, barrier])
    dst = np.concatenate([barrier, 2 * members + 1])
    lag = np.concatenate([np.minimum(waiting, 0), transfer])
    last_member = np.full(len(heads), len(at), np.int64)  # of several that start last the first
    started_last = waiting == 0
    np.minimum.at(last_member, number[started_last], members[started_last])
    new = [
        _new_edges(src, dst, lag, EdgeKind.COMM),
        _new_edges(*through_unrecorded, EdgeKind.DEPENDENCY),
    ]
    return keep, new, last_member.astype(np.int32)


def _barrier_pairs(
    trace: Trace, at: Array, last: Array, member: Array
) -> tuple[Array, Array, Array, Array]:
    """Pairs of a last member and another one, and masks of those that meet at a barrier, and of buffered sends.

    At a barrier are members of collectives in which all wait for all, and a send and its receive if that
    began before the send's end: the one that started last comes first then.
    """
    paired = np.flatnonzero(trace.is_text("collective", (Collective.SEND,), last))
    size = trace.integers("bytes")[last[paired]]
    send, receive = last[paired], member[paired]
    waits_for_nobody = is_buffered(at[2 * send], at[2 * send + 1], at[2 * receive], size)
    at_barrier, buffered = np.zeros((2, len(last)), bool)
    at_barrier[paired[~waits_for_nobody]] = True
    buffered[paired[waits_for_nobody]] = True
    receive_last = at_barrier & (at[2 * member] > at[2 * last])
    last, member = np.where(receive_last, member, last), np.where(receive_last, last, member)
    kind, kinds = trace.texts("collective", last)
    # of unknown kind only what was matched: sources may connect anything
    matched = (kind >= 0) | (trace.integers("instance", last) >= 0)
    joint = at_barrier | (waits_together(kind, kinds) & matched)
    return last, member, joint, buffered & ~joint


def is_buffered(send_ns: Array, send_end_ns: Array, receive_ns: Array, size: Array) -> Array:
    """Mark sends that wait for nobody: of sizes up to one of which more had ended than waited when receives began.

    Clocks of ranks differ, so that single sends that wait may seem to end before their receive begins.

    Parameters
    ----------
    send_ns, send_end_ns, receive_ns
        Start and end of each send, and start of its receive.
    size
        Bytes of each.
    """
    early = receive_ns >= send_end_ns
    if not early.any():
        return early
    # a send waited if its receive began later than sends last that did not wait
    own_ns = int(np.median((send_end_ns - send_ns)[early]))
    waited = ~early & (receive_ns > send_ns + own_ns)
    sizes, of_size = np.unique(size, return_inverse=True)
    votes = np.bincount(of_size, early.astype(np.int64) - waited, len(sizes))
    up_to = np.flatnonzero((votes > 0) & (np.cumsum(votes) > 0))
    return of_size <= up_to.max(initial=-1)


def _shorten_waiting_members(
    at: Array, edges: _Edges, comm: Array, waiting: Array, durations: Array
) -> None:
    """Let members that wait for one other last from the start of that one on.

    The COMM edges `comm` lead to the ends of the nodes `waiting`. Their lags become at most the
    node's duration, and so does that of the node's DURATION edge: it lasts as long behind its own
    start as behind the start of what it waits for.
    """
    dur = at[2 * waiting + 1] - at[2 * waiting]
    node, code = np.unique(waiting, return_inverse=True)
    rest = np.full(len(node), NO_VALUE)
    np.minimum.at(rest, code, np.minimum(edges.lag[comm], dur))
    edges.lag[comm] = rest[code]
    _limit_durations(edges, durations, node, rest)


def _follow_sends(
    at: Array, edges: _Edges, comm: Array, send: Array, receive: Array, size: Array
) -> Array:
    """Let receives end behind the ends of buffered sends, along the COMM edges `comm`.

    Returns
    -------
    own
        How long each receive lasts without waiting: as others of its size, else any, that began behind
        the end of their send.
    """
    dur = at[2 * receive + 1] - at[2 * receive]
    was_there = at[2 * receive] >= at[2 * send + 1]
    there = np.flatnonzero(was_there)
    _, code = gather.distinct(size)
    usual = lower_medians(code[there], dur[there], int(code.max(initial=-1)) + 1)
    any_size = lower_medians(np.zeros(len(there), np.int64), dur[there], 1)
    own = np.minimum(dur, np.where(usual == NO_VALUE, any_size, usual)[code])
    edges.src[comm] = 2 * send + 1
    behind = at[2 * receive + 1] - at[2 * send + 1]
    usual_behind = np.median(behind[~was_there]) if (~was_there).any() else 0
    edges.lag[comm] = np.where(was_there, np.minimum(behind, int(usual_behind)), behind)
    return own


def _limit_durations(edges: _Edges, durations: Array, node: Array, limit_ns: Array) -> None:
    """Let DURATION edges of some nodes take at most that long."""
    limited, code = np.unique(node, return_inverse=True)
    limit = np.full(len(limited), NO_VALUE)
    np.minimum.at(limit, code, limit_ns)
    place = gather.find(limited, edges.src[durations] // 2)
    edge, place = durations[place >= 0], place[place >= 0]
    edges.lag[edge] = np.minimum(edges.lag[edge], limit[place])


def _shorten_unmatched(trace: Trace, own: Array, edges: _Edges, durations: Array) -> Array:
    """Let communication of which no other member is known last as long as others of its kind and size.

    The rest of its time it waits, as where the recording of another rank began later, for what is unknown.
    Where its size is unknown, it keeps its time; barriers have none and are all alike.

    Parameters
    ----------
    own
        Time of each node's own transfer; -1 if it has none, or is unknown.

    Returns
    -------
    usual_ns
        How long others like each node last; `NO_VALUE` if that is unknown.
    """
    row = np.flatnonzero(trace.array("kind") == Kind.COMM)
    usual_ns = np.full(len(own), NO_VALUE)
    if not row.size or (own[row] < 0).all():
        return usual_ns
    kind, _ = trace.texts("collective", row)
    size = trace.integers("bytes", row)
    has_size = (size >= 0) | trace.is_text("collective", (Collective.BARRIER,), row)
    _, code = gather.distinct(kind, size)
    known = np.flatnonzero((own[row] >= 0) & (kind >= 0) & has_size)
    usual = lower_medians(code[known], own[row[known]], int(code.max()) + 1)
    alone = own[row] < 0
    _limit_durations(edges, durations, row[alone], usual[code[alone]])
    usual_ns[row] = usual[code]
    return usual_ns


def takes_time(trace: Trace, rows: slice = slice(None)) -> Array:
    """Mask of the nodes that take time themselves and that the model moves, of all or of some.

    Those on host threads and on streams, queues and copy engines; not ranges on lanes of their own.
    """
    lanes = (LaneKind.THREAD, *GPU_LANES)
    return is_any(trace.array("kind", "lanes"), lanes)[trace.array("lane")[rows]]
