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

from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.members import is_any
from chopper_interop.edges.ordering_calls import node_roles
from chopper_interop.graph.chains import thread_endpoint_edges
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.timing.model import Timing

OPERATIONS = (Kind.CPU_OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.DRIVER, Kind.API)
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
        The thread's own time in a piece; 0 of returns.
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


def watching_threads(timing: Timing) -> Array:
    """Mask of the lanes of threads that do nothing but ask whether work has ended.

    Such a thread sleeps in between, however long the work takes.
    """
    trace = timing.trace
    lane = trace.array("lane")
    operation = is_operation(timing) & (trace.array("kind") != Kind.ANNOTATION)
    polls = node_roles(trace) == Role.POLL
    mask = np.zeros(trace.lanes.num_rows, bool)
    mask[lane[operation & polls]] = True
    mask[lane[operation & ~polls]] = False
    return mask


def is_operation(timing: Timing) -> Array:
    """Mask of the nodes that are operations of hosts, without those on the profiler's own lanes."""
    trace = timing.trace
    return is_any(trace.array("kind"), OPERATIONS) & _on_threads(timing)


def _on_threads(timing: Timing) -> Array:
    trace = timing.trace
    return (trace.array("kind", "lanes") == LaneKind.THREAD)[trace.array("lane")]


def host_chain(
    timing: Timing,
    joins: Array,
    sources: Array,
    issue_ns: Array,
    watches: Array,
    *,
    operations: bool,
) -> HostChain:
    """Cut the threads of one rank into nodes.

    Parameters
    ----------
    timing
        Model of one rank.
    joins
        Mask of endpoints at which a thread waits for something else.
    sources
        Mask of endpoints for which something else waits.
    issue_ns
        For each node a time that replaces the own time up to its next endpoint; -1 if none does.
    watches
        Mask of the lanes of `watching_threads`.
    operations
        True to give each operation a node of its own.
    """
    trace = timing.trace
    ts, dur, lane = (trace.array(c) for c in ("ts", "dur", "lane"))
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    vertex, thread = _endpoints(ts, dur, lane, threads, trace.array("parent"))
    own = _own_times(timing, vertex, thread, issue_ns)
    sleeps = watches[thread]
    sleeps[1:] &= vertex[1:] % 2 == 0  # the time before an operation starts
    own[sleeps] = 0
    is_open = is_operation(timing)
    planned = is_open.copy() if operations else np.zeros(len(ts), bool)
    at_cut = np.flatnonzero(planned[vertex // 2] | joins[vertex] | sources[vertex])
    elapsed = np.cumsum(own)
    piece_ns = np.append(np.diff(elapsed[at_cut]), 0)
    vertex, thread = vertex[at_cut], thread[at_cut]
    piece_ns[np.diff(thread, append=-1) != 0] = 0  # nothing follows the last cut of a thread
    starts_operation = planned[vertex // 2] & (vertex % 2 == 0)
    has_piece = (piece_ns > 0) | starts_operation
    has_return = joins[vertex]
    # numbers of nodes: at each cut first its return, then the piece that begins there
    before = np.cumsum(np.concatenate([[0], has_return.astype(np.int64) + has_piece]))
    piece = before[:-1] + has_return
    count = int(before[-1])
    node = vertex // 2
    around = _innermost(trace.array("parent"), planned)
    is_open &= trace.array("kind") != Kind.ANNOTATION  # a thread may wait in a range
    within = (is_open[node] & (vertex % 2 == 0)) | (
        _innermost(trace.array("parent"), is_open)[node] >= 0
    )
    owner = np.where(starts_operation, node, around[node])
    # a return belongs to the call that waited, which ends with it
    owner_of_return = np.where(planned[node], node, around[node])
    columns = {
        name: np.full(count, -1, np.int64) for name in ("row", "owner", "thread", "vertex", "at_ns")
    }
    own_ns, is_return = np.zeros(count, np.int64), np.zeros(count, bool)
    in_operation = np.zeros(count, bool)
    for mask, number, owners in (
        (has_piece, piece, owner),
        (has_return, before[:-1], owner_of_return),
    ):
        at = number[mask]
        columns["owner"][at] = owners[mask]
        columns["thread"][at] = thread[mask]
        columns["vertex"][at] = vertex[mask]
        columns["at_ns"][at] = timing.at_ns[vertex[mask]]
    columns["row"][piece[has_piece & starts_operation]] = node[has_piece & starts_operation]
    own_ns[piece[has_piece]] = piece_ns[has_piece]
    in_operation[piece[has_piece]] = within[has_piece]
    is_return[before[:-1][has_return]] = True
    ends_at, begins_at = np.full((2, len(timing.at_ns)), -1, np.int64)
    inside = piece > 0
    inside[inside] = columns["thread"][piece[inside] - 1] == thread[inside]
    ends_at[vertex] = np.where(inside, piece - 1, -1)
    next_node = np.where(has_return, before[:-1], piece)
    inside = next_node < count
    inside[inside] = columns["thread"][next_node[inside]] == thread[inside]
    begins_at[vertex] = np.where(inside, next_node, -1)
    return HostChain(
        **columns,
        own_ns=own_ns,
        in_operation=in_operation,
        is_return=is_return,
        ends_at=ends_at,
        begins_at=begins_at,
    )


def _endpoints(
    ts: Array, dur: Array, lane: Array, threads: Array, parent: Array
) -> tuple[Array, Array]:
    """Endpoints of all threads, thread by thread in order, and the thread of each."""
    src, dst, _ = thread_endpoint_edges(ts, dur, lane, threads, parent)
    # edges of a thread stand in a row: src 0 1 2, dst 1 2 3; a new thread begins with a new source
    first = np.flatnonzero(src != np.concatenate([[-1], dst[:-1]])) if len(src) else src
    vertex = np.insert(dst, first, src[first]).astype(np.int64)
    return vertex, lane[vertex // 2].astype(np.int64)


def _own_times(timing: Timing, vertex: Array, thread: Array, issue_ns: Array) -> Array:
    """Own time of the thread before each endpoint of `_endpoints`; 0 before its first.

    That is the lag of the edge along the thread, and where the thread waits for nothing else the delay
    as well.
    """
    graph = timing.graph
    src, dst = graph.src, graph.after
    before = np.full(len(timing.at_ns), -1, np.int64)
    before[vertex[1:]] = np.where(thread[1:] == thread[:-1], vertex[:-1], -1)
    lag = np.full(len(timing.at_ns), -1, np.int64)
    along = np.flatnonzero(
        is_any(graph.kind, (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION))
        & (before[dst] == src)
    )
    lag[dst[along]] = timing.lag_ns[along]
    measured = timing.at_ns[vertex] - timing.at_ns[before[vertex]]
    own = np.where(lag[vertex] >= 0, lag[vertex], measured)
    issue = np.full(len(timing.at_ns), -1, np.int64)
    issue[::2][: len(issue_ns)] = issue_ns
    of_issue = issue[before[vertex]]
    own = np.where((before[vertex] >= 0) & (of_issue >= 0), of_issue, own)
    return np.where(before[vertex] >= 0, np.maximum(own, 0), 0)


@jit
def _innermost(parent: Array, planned: Array) -> Array:
    """For each node, the innermost planned node around it; -1 if none."""
    # parents come before their children, so what is around a skipped parent is already known
    around = np.full(len(parent), -1, np.int64)
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            around[i] = p if planned[p] else around[p]
    return around
