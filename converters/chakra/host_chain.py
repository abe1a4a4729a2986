"""The host's part of an ET: what its threads do between the points at which others wait for them.

A thread is a chain of endpoints of the timing model. It is cut into pieces, each a node that holds the
host's slot for the thread's own time in it; what a thread waits for is a dependency, never time::

    thread       [ op      [ call waits        ]   ]        own time "=", waiting "."
    own time     ==========...................=====
    nodes        | op | call |          | return | rest of op |
    GPU work               [ kernel     ]
                                        └──> return: least latency of such waits, then what is unexplained

Pieces end where an operation starts or ends, where something else depends on the thread (a launch), and
where the thread depends on something else (a join, which becomes a return node of its own). Without
operations (mode gpu) only the latter two count, so that a node stands for all the host does in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather, nest
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges.ordering_calls import node_roles
from chopper_interop.graph.chains import thread_endpoint_edges
from chopper_interop.schemas.kinds import HOST_CALLS, RANGES, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.names import Role
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.timing.model import Timing

OPERATIONS = (*RANGES, *HOST_CALLS)
"""Kinds of host operations that become nodes; Python frames only say who called these."""


class HostChain(NamedTuple):
    """Host nodes, thread by thread, each thread's in order.

    Parameters
    ----------
    row
        Row of the trace's nodes of which this is the first piece; -1 for other pieces.
    owner
        Innermost operation that it is part of; -1 if none is open.
    thread
        Lane.
    vertex
        Endpoint at which a piece begins, or that a return ends with.
    at_ns
        Measured start of a piece, measured end of a return.
    own_ns
        The thread's own time in a piece; of returns 0.
    call_ns
        Of returns, the part of the call's own time that they have.
    in_operation
        Mask of the pieces that begin within an operation.
    is_return
        Mask of returns.
    ends_at, begins_at
        For each endpoint of the model, the last node that ends there, and the first that depends on
        what the endpoint depends on; -1 if there is none.
    """

    row: Array
    owner: Array
    thread: Array
    vertex: Array
    at_ns: Array
    own_ns: Array
    call_ns: Array
    in_operation: Array
    is_return: Array
    ends_at: Array
    begins_at: Array

    def previous(self, watches: Array) -> Array:
        """Return the node before each on its thread; -1 if there is none.

        Parameters
        ----------
        watches
            Mask of lanes whose operations follow no other of their thread.
        """
        before = np.arange(len(self.row)) - 1
        before[np.diff(self.thread, prepend=-1) != 0] = -1
        before[watches[self.thread] & (self.row >= 0)] = -1
        return before


def watching_threads(trace: Trace) -> Array:
    """Mask of the lanes of threads that do nothing but ask whether work has ended.

    Such a thread sleeps in between, however long the work takes.
    """
    return trace.cached("chakra.watching", _watching_threads)


def _watching_threads(trace: Trace) -> Array:
    lane = trace.array("lane")
    operation = is_operation(trace) & (trace.array("kind") != Kind.ANNOTATION)
    role = node_roles(trace)
    mask = np.zeros(trace.lanes.num_rows, bool)
    mask[lane[operation & (role == Role.POLL)]] = True
    # a thread that pins memory asks for attributes of pointers too
    mask[lane[operation & ~is_any(role, (Role.POLL, Role.UPKEEP))]] = False
    return mask


def is_operation(trace: Trace) -> Array:
    """Mask of the nodes that are operations of hosts, without those on the profiler's own lanes."""
    on_threads = (trace.array("kind", "lanes") == LaneKind.THREAD)[trace.array("lane")]
    return is_any(trace.array("kind"), OPERATIONS) & on_threads


class Threads(NamedTuple):
    """Endpoints of all threads, thread by thread in order.

    Parameters
    ----------
    vertex, thread
        Endpoint of the timing model, and its lane.
    own_ns
        The thread's own time before it.
    issues
        Mask of those of calls that wait for work that they issue first.
    """

    vertex: Array
    thread: Array
    own_ns: Array
    issues: Array


def threads_of(timing: Timing, issue_ns: Array) -> Threads:
    """Threads of one rank with their own times.

    Parameters
    ----------
    timing
        Model of the rank.
    issue_ns
        For each node a time that replaces the own time up to its next endpoint; -1 if none does.
    """
    vertex, thread = _endpoints(timing.trace)
    own_ns = _own_times(timing, vertex, thread, issue_ns)
    return Threads(vertex, thread, own_ns, np.repeat(issue_ns >= 0, 2)[vertex])


def hide_time_of_polled_work(threads: Threads, at_ns: Array, resumed_ns: Array) -> None:
    """Take away own times of hosts that went on before the work ended that they polled for, up to its end.

    In an ET they go on at that end, of several the last, so that what they did before it takes no time of its own::

        thread   [ call     ]  [ op ] [ next ]       in the ET, "=" is time      waits      | op | = next
        work       [ copy      w       ]                                         == copy ===|

    Parameters
    ----------
    threads
        Their own times are changed.
    at_ns, resumed_ns
        For each endpoint when it was, and when it is in an ET.
    """
    vertex, thread, own, _ = threads
    until_ns = gather.running_max(thread, resumed_ns[vertex])
    # never below 0, so that nothing is taken from a thread's first endpoint, which has no own time
    own[1:] -= np.clip((until_ns - at_ns[vertex])[:-1], 0, own[1:])


def host_chain(
    trace: Trace,
    threads: Threads,
    return_ns: Array,
    sources: Array,
    watches: Array,
    *,
    operations: bool,
) -> HostChain:
    """Cut the threads of one rank into nodes.

    Parameters
    ----------
    trace, threads
        One rank, and its threads, whose own times are changed here.
    return_ns
        For endpoints at which a thread waits for something else, the least latency of its return; -1 for
        others.
    sources
        Mask of endpoints for which something else waits.
    watches
        Mask of the lanes of `watching_threads`.
    operations
        True to give each operation a node of its own.
    """
    is_open = is_operation(trace)
    planned = is_open if operations else np.zeros_like(is_open)
    vertex, thread, own, issues = threads
    own[_sleeps(vertex, watches[thread])] = 0
    behind = _behind_waits(own, return_ns[vertex], issues)
    own -= behind
    cuts = _cuts(vertex, thread, own, planned, return_ns >= 0, sources)
    endpoints = 2 * trace.nodes.num_rows
    return HostChain(
        **_nodes(trace, cuts, planned),
        call_ns=_of_returns(cuts, vertex, behind, endpoints),
        in_operation=_in_operation(trace, cuts, is_open),
        ends_at=_at_endpoints(cuts, cuts.piece - 1, endpoints),
        begins_at=_at_endpoints(cuts, cuts.first, endpoints),
    )


def _of_returns(cuts: _Cuts, vertex: Array, behind_ns: Array, endpoints: int) -> Array:
    """Part of the own time before endpoints that their returns have, by node."""
    at = np.zeros(endpoints, np.int64)
    at[vertex] = behind_ns
    return cuts.placed(np.zeros_like(cuts.piece_ns), at[cuts.vertex])


def _sleeps(vertex: Array, watches: Array) -> Array:
    """Mask of the endpoints before which a thread that only asks sleeps: starts of its operations."""
    sleeps = watches.copy()
    sleeps[1:] &= vertex[1:] % 2 == 0
    return sleeps


def _behind_waits(own_ns: Array, return_ns: Array, issues: Array) -> Array:
    """Part of the own time before each endpoint that a return has, if the endpoint ends a wait.

    A call takes no longer for its return if it need not wait, so what it does itself comes behind the
    wait, up to the latency of returns. Not so for calls that issue work first.
    """
    return np.where(issues, 0, np.clip(return_ns, 0, own_ns))


def cut(host: HostChain, node: Array, at_ns: Array) -> HostChain:
    """Cut nodes at times within them, so that others can wait for the part before."""
    inside = (at_ns > host.at_ns[node]) & (at_ns < (host.at_ns + host.own_ns)[node])
    if not inside.any():
        return host
    node, at_ns = np.unique(np.stack([node[inside], at_ns[inside]]), axis=1)
    nodes = np.arange(len(host.row))
    of = np.sort(np.append(nodes, node), kind="stable")
    later = np.diff(of, prepend=-1) == 0
    start, end = host.at_ns[of], (host.at_ns + host.own_ns)[of]
    start[later] = at_ns
    end[np.flatnonzero(later) - 1] = at_ns
    first, last = np.searchsorted(of, nodes), np.searchsorted(of, nodes, side="right") - 1
    return HostChain(
        row=np.where(later, -1, host.row[of]),
        owner=host.owner[of],
        thread=host.thread[of],
        vertex=np.where(later, -1, host.vertex[of]),
        at_ns=start,
        own_ns=end - start,
        call_ns=host.call_ns[of],
        in_operation=host.in_operation[of],
        is_return=host.is_return[of],
        ends_at=np.where(host.ends_at >= 0, last[host.ends_at], -1).astype(np.int32),
        begins_at=np.where(host.begins_at >= 0, first[host.begins_at], -1).astype(np.int32),
    )


class _Cuts(NamedTuple):
    """Endpoints at which threads are cut: at each first a return may be, then a piece that begins there.

    Parameters
    ----------
    vertex, thread
        Endpoint, and its thread.
    piece_ns
        The thread's own time from there to its next cut.
    starts_operation
        Mask of starts of operations that are nodes.
    has_return, has_piece
        Masks of cuts with these nodes.
    number
        How many nodes come before each cut, and of all.
    """

    vertex: Array
    thread: Array
    piece_ns: Array
    starts_operation: Array
    has_return: Array
    has_piece: Array
    number: Array

    @property
    def total(self) -> int:
        """Number of nodes."""
        return int(self.number[-1])

    @property
    def first(self) -> Array:
        """Number of the first node at or behind each cut."""
        return self.number[:-1]

    @property
    def piece(self) -> Array:
        """Number of the piece at each cut, or of the next node if it has none."""
        return self.first + self.has_return

    def placed(self, of_pieces: Array, of_returns: Array) -> Array:
        """One value a node, from values of cuts."""
        values = np.zeros(self.total, of_pieces.dtype)
        values[self.piece[self.has_piece]] = of_pieces[self.has_piece]
        values[self.first[self.has_return]] = of_returns[self.has_return]
        return values


def _cuts(
    vertex: Array, thread: Array, own_ns: Array, planned: Array, joins: Array, sources: Array
) -> _Cuts:
    """Cut threads where an operation starts or ends, something waits for them, or they wait."""
    at_cut = np.flatnonzero(planned[vertex // 2] | joins[vertex] | sources[vertex])
    piece_ns = np.append(np.diff(np.cumsum(own_ns)[at_cut]), 0)
    vertex, thread = vertex[at_cut], thread[at_cut]
    piece_ns[np.diff(thread, append=-1) != 0] = 0  # nothing follows the last cut of a thread
    starts_operation = planned[vertex // 2] & (vertex % 2 == 0)
    has_piece, has_return = (piece_ns > 0) | starts_operation, joins[vertex]
    number = np.zeros(len(vertex) + 1, np.int32)
    np.cumsum(has_return.astype(np.int8) + has_piece, out=number[1:])
    return _Cuts(vertex, thread, piece_ns, starts_operation, has_return, has_piece, number)


def _nodes(trace: Trace, cuts: _Cuts, planned: Array) -> dict[str, Array]:
    """Columns of the nodes, except for `in_operation`."""
    node = cuts.vertex // 2
    around = nest.around(trace.array("parent"), planned)[node]
    none, at_ns = np.full_like(node, -1), trace.array("ts")[node]
    at_ns += np.where(cuts.vertex % 2 == 1, trace.array("dur")[node], 0)
    return {
        "row": cuts.placed(np.where(cuts.starts_operation, node, -1), none),
        # a return belongs to the call that waited, which ends with it
        "owner": cuts.placed(
            np.where(cuts.starts_operation, node, around), np.where(planned[node], node, around)
        ),
        "thread": cuts.placed(cuts.thread, cuts.thread),
        "vertex": cuts.placed(cuts.vertex, cuts.vertex),
        "at_ns": cuts.placed(at_ns, at_ns),
        "own_ns": cuts.placed(cuts.piece_ns, np.zeros_like(cuts.piece_ns)),
        "is_return": cuts.placed(np.zeros(len(node), bool), np.ones(len(node), bool)),
    }


def _in_operation(trace: Trace, cuts: _Cuts, is_operation: Array) -> Array:
    """Mask of the pieces that begin within an operation; in a mere range a thread may wait."""
    is_open = is_operation & (trace.array("kind") != Kind.ANNOTATION)
    node = cuts.vertex // 2
    begins = is_open[node] & (cuts.vertex % 2 == 0)
    within = begins | (nest.around(trace.array("parent"), is_open)[node] >= 0)
    return cuts.placed(within, np.zeros_like(within))


def _at_endpoints(cuts: _Cuts, number: Array, endpoints: int) -> Array:
    """Nodes of cuts by endpoint, if they are of the same thread; else -1."""
    thread = cuts.placed(cuts.thread, cuts.thread)
    inside = (number >= 0) & (number < cuts.total)
    inside[inside] = thread[number[inside]] == cuts.thread[inside]
    nodes = np.full(endpoints, -1, np.int32)
    nodes[cuts.vertex] = np.where(inside, number, -1)
    return nodes


def _endpoints(trace: Trace) -> tuple[Array, Array]:
    """Endpoints of all threads, thread by thread in order, and the thread of each."""
    ts, dur, lane, parent = (trace.array(c) for c in ("ts", "dur", "lane", "parent"))
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    src, dst, _ = thread_endpoint_edges(ts, dur, lane, threads, parent)
    # edges of a thread stand in a row: src 0 1 2, dst 1 2 3; a new thread begins with a new source
    first = np.flatnonzero(src != np.concatenate([[-1], dst[:-1]])) if len(src) else src
    vertex = np.insert(dst, first, src[first])
    return vertex, lane[vertex // 2]


def _own_times(timing: Timing, vertex: Array, thread: Array, issue_ns: Array) -> Array:
    """Own time of the thread before each endpoint of `_endpoints`; 0 before its first.

    That is the lag of the edge along the thread, and where the thread waits for nothing else the delay
    as well.
    """
    graph = timing.graph
    src, dst = graph.src, graph.after
    before = np.full(len(timing.at_ns), -1, np.int32)
    before[vertex[1:]] = np.where(thread[1:] == thread[:-1], vertex[:-1], -1)
    lag = np.full(len(timing.at_ns), -1, np.int64)
    along = np.flatnonzero(
        is_any(graph.kind, (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION))
        & (before[dst] == src)
    )
    lag[dst[along]] = timing.lag_ns[along]
    own, before = lag[vertex], before[vertex]
    del lag, along
    unknown = np.flatnonzero(own < 0)
    own[unknown] = timing.at_ns[vertex[unknown]] - timing.at_ns[before[unknown]]
    # of starts of calls alone
    issued = np.flatnonzero((before >= 0) & (before % 2 == 0))
    of_issue = issue_ns[before[issued] // 2]
    own[issued[of_issue >= 0]] = of_issue[of_issue >= 0]
    np.maximum(own, 0, out=own)
    own[before < 0] = 0
    return own
