"""Compiled loops of Holistic Trace Analysis' critical path: its edges, its longest path.

Vertices are starts and ends of events, numbered by time. An edge is a row (from, to, type, 1 if its
weight is 0). Of several edges between the same vertices the last one counts, at the first's position.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit

OPERATOR, DEPENDENCY, LAUNCH, KERNEL, SYNC = range(5)
"""Types of edges."""
WORK, STREAM_WAIT, EVENT_SYNC, STREAM_SYNC, CONTEXT_SYNC = range(5)
"""Types of events on a GPU."""
_KERNEL_GAP_US = 1500
"""Largest gap between work of a stream that an edge joins: the constant of HTA's CPGraph."""
_ONE = 1  # work outstanding after a launch into an empty stream
_LAUNCH, _KERNEL, _SYNC, _DEPENDENCY = LAUNCH, KERNEL, SYNC, DEPENDENCY
_WORK, _STREAM_WAIT, _EVENT_SYNC, _CONTEXT_SYNC = WORK, STREAM_WAIT, EVENT_SYNC, CONTEXT_SYNC


@jit
def lock_edges(event: Array, begins: Array, vertex: Array) -> Array:
    """Return edges between calls that hold the runtime's lock.

    Each end of a call waits for all calls that began before it. A compiled loop, as the stack of open
    calls at each endpoint depends on all endpoints before it.

    Parameters
    ----------
    event, begins, vertex
        Event, True for a start, and vertex of each start and end of such calls, by time.
    """
    edges = np.empty((2 * len(event), 4), np.int64)
    stack = np.empty(len(event), np.int64)
    size, depth = 0, 0
    for k in range(len(event)):
        if begins[k]:
            stack[depth] = k
            depth += 1
            continue
        while depth:
            depth -= 1
            opened = stack[depth]
            edge_type = 0 if event[opened] == event[k] else _DEPENDENCY
            edges[size] = vertex[opened], vertex[k], edge_type, 0
            size += 1
        if k and not begins[k - 1]:
            edges[size] = vertex[k - 1], vertex[k], _DEPENDENCY, 0
            size += 1
    return edges[:size].copy()


@jit
def _add_thread_edge(  # noqa: PLR0913, PLR0917 # columns
    edges: Array,
    size: int,
    last: int,
    vertex: int,
    edge_type: int,
    free: int,
    begins: Array,
    lock: Array,
) -> int:
    """Add an edge of a thread, unless the lock has one there; return the number of edges."""
    if last < 0 or (lock[last] and lock[vertex] and (begins[last] or not begins[vertex])):
        return size
    edges[size] = last, vertex, edge_type, free
    return size + 1


@jit
def thread_edges(  # noqa: PLR0913, PLR0917 # columns
    thread: Array,
    event: Array,
    enters: Array,
    start: Array,
    end: Array,
    begins: Array,
    lock: Array,
    blocking: Array,
) -> Array:
    """Return edges along host threads: from each start or end of an operator or call to the next.

    A compiled loop, as an end closes whatever range was entered last: the stack of open ranges
    depends on all endpoints before it.

    Parameters
    ----------
    thread, event, enters
        Thread, event and True for a start, for starts and ends of all ranges, thread by thread and
        by time.
    start, end
        Vertices of each event; -1 where it has none.
    begins, lock
        For each vertex: True for a start, and True for a call that holds the runtime's lock.
    blocking
        For each event, 1 if its time is spent waiting, else 0.
    """
    edges = np.empty((len(event) + 1, 4), np.int64)
    stack = np.empty(len(event) + 1, np.int64)
    size, height, depth, last = 0, 0, 0, -1
    for k in range(len(event) + 1):
        stop = k == len(event) or (k > 0 and thread[k] != thread[k - 1])
        leaves = height if stop else 0 if enters[k] else min(height, 1)
        for _ in range(leaves):
            height -= 1
            e = stack[height]
            if end[e] >= 0:
                size = _add_thread_edge(edges, size, last, end[e], 0, blocking[e], begins, lock)
                last = end[e]
                depth -= 1
        if k == len(event):
            break
        if stop:
            depth, last = 0, -1
        if enters[k]:
            e = event[k]
            stack[height] = e
            height += 1
            if start[e] >= 0:
                edge_type = _DEPENDENCY if depth == 0 else 0
                size = _add_thread_edge(edges, size, last, start[e], edge_type, 0, begins, lock)
                last = start[e]
                depth += 1
    return edges[:size].copy()


@jit
def work_edges(  # noqa: C901, PLR0912, PLR0913, PLR0917 # one pass, columns
    event: Array,
    event_type: Array,
    stream: Array,
    call: Array,
    queued: Array,
    queued_at_call: Array,
    source: Array,
    target: Array,
    start: Array,
    end: Array,
    at: Array,
    began: Array,
    streams: int,
) -> tuple[Array, bool]:
    """Return edges into, through and out of GPU work, and False if the tool fails.

    A compiled loop, as each piece of work depends on the last one of its stream and on waits that
    were recorded before it.

    Parameters
    ----------
    event, event_type, stream, call
        Events of a GPU in the tool's order: event, type, index of its stream, event of its call (-1
        for none).
    queued, queued_at_call
        Work outstanding on the stream at its start, and at its launch; negative if unknown.
    source, target
        For waits for events: the work before the record, the work after the wait; -1 if unknown.
    start, end
        Vertices of each event; -1 where it has none.
    at
        Time of each vertex.
    began
        Start of each event.
    streams
        Number of streams.
    """
    last = np.full(streams + 1, -1, np.int64)
    used = np.empty(streams + 1, np.int64)
    waits = np.full(len(start), -1, np.int64)
    room = 3 * len(event) + streams * (event_type == _CONTEXT_SYNC).sum()
    edges = np.empty((room, 4), np.int64)
    size, known = 0, 0
    for k in range(len(event)):
        e, s, c = event[k], stream[k], call[k]
        this_type = event_type[k]
        if this_type != _WORK:
            if this_type in {_STREAM_WAIT, _EVENT_SYNC}:
                if source[k] < 0:
                    continue
                if this_type == _STREAM_WAIT:
                    if target[k] >= 0:
                        waits[target[k]] = source[k]
                elif end[source[k]] >= 0 and c >= 0 and end[c] >= 0:
                    edges[size] = end[source[k]], end[c], _SYNC, 0
                    size += 1
                continue
            for j in range(known if this_type == _CONTEXT_SYNC else 1):
                other = used[j] if this_type == _CONTEXT_SYNC else s
                if last[other] >= 0 and c >= 0 and end[c] >= 0:
                    edges[size] = last[other], end[c], _SYNC, 0
                    size += 1
            continue
        if start[e] < 0:
            continue
        edges[size] = start[e], end[e], 0, 0
        size += 1
        before = end[waits[e]] if waits[e] >= 0 else -1
        waits[e] = -1
        if before >= 0:
            edges[size] = before, start[e], _SYNC, 0
            size += 1
        call_start = began[c] if c >= 0 else 0
        queue_was_empty = queued_at_call[k] == _ONE and queued[k] == 0
        if (
            queue_was_empty
            and (last[s] < 0 or at[last[s]] < call_start)
            and (before < 0 or at[before] < call_start)
        ):
            if c < 0 or start[c] < 0:
                return edges[:size].copy(), False
            edges[size] = start[c], start[e], _LAUNCH, 0
            size += 1
        elif (
            last[s] >= 0
            and at[start[e]] - at[last[s]] < _KERNEL_GAP_US
            and (before < 0 or at[before] < at[last[s]])
        ):
            edges[size] = last[s], start[e], _KERNEL, 0
            size += 1
        if last[s] < 0:
            used[known] = s
            known += 1
        last[s] = end[e]
    return edges[:size].copy(), True


@jit
def longest_path(  # noqa: C901, PLR0913, PLR0917 # one pass, columns
    seeds: Array, first: Array, after: Array, into: Array, edge: Array, src: Array, weight: Array
) -> Array:
    """Return the vertices of the longest path in its order, empty if the edges have a cycle.

    Of equally long paths it is the one that networkx.dag_longest_path (3.6) gives: a topological
    sort (Kahn) in the order of `seeds`, then one pass over it. A compiled loop, as each vertex depends
    on its predecessors.

    Parameters
    ----------
    seeds
        Vertices in the order in which they were added to the graph.
    first, after
        Edges from vertex v lead to ``after[first[v]:first[v + 1]]``, in their order.
    into, edge
        Edges to vertex v are ``edge[into[v]:into[v + 1]]``, in their order.
    src, weight
        Source and weight of each edge.
    """
    n = len(first) - 1
    unmet = into[1:] - into[:-1]
    order = np.empty(len(seeds), np.int64)
    size = 0
    for v in seeds:
        if unmet[v] == 0:
            order[size] = v
            size += 1
    k = 0
    while k < size:
        v = order[k]
        k += 1
        for e in range(first[v], first[v + 1]):
            w = after[e]
            unmet[w] -= 1
            if unmet[w] == 0:
                order[size] = w
                size += 1
    if size < len(seeds) or size == 0:
        return np.empty(0, np.int64)
    length = np.zeros(n, np.int64)
    predecessor = np.full(n, -1, np.int64)
    best = order[0]
    for v in order:
        for j in range(into[v], into[v + 1]):
            e = edge[j]
            reached = length[src[e]] + weight[e]
            if predecessor[v] < 0 or reached > length[v]:
                length[v], predecessor[v] = reached, src[e]
        if length[v] > length[best]:
            best = v
    count, v = 1, best
    while predecessor[v] >= 0:
        count += 1
        v = predecessor[v]
    path = np.empty(count, np.int64)
    v = best
    for k in range(count - 1, -1, -1):
        path[k] = v
        v = predecessor[v]
    return path
