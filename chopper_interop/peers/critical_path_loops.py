"""Loops of Holistic Trace Analysis' critical path (`peers.critical_path`): its edges, its longest path.

Vertices are starts and ends of events, numbered by time. An edge is a row (from, to, sort, costs
nothing); where two edges join the same vertices the last one counts, in the place of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

OPERATOR, DEPENDENCY, LAUNCH, KERNEL, SYNC = range(5)
"""Sorts of edges."""
WORK, STREAM_WAIT, EVENT_SYNC, STREAM_SYNC, CONTEXT_SYNC = range(5)
"""What runs on a GPU."""
_KERNEL_GAP_US = 1500
_ONE = 1  # work that is outstanding when a launch adds the only one
_LAUNCH, _KERNEL, _SYNC, _DEPENDENCY = LAUNCH, KERNEL, SYNC, DEPENDENCY
_WORK, _STREAM_WAIT, _EVENT_SYNC, _CONTEXT_SYNC = WORK, STREAM_WAIT, EVENT_SYNC, CONTEXT_SYNC


@jit
def of_locks(event: Array, begins: Array, vertex: Array) -> Array:
    """Edges between calls that hold the runtime's lock: each waits for all that began before its end.

    Parameters
    ----------
    event, begins, vertex
        Of starts and ends of such calls, by time.
    """
    found = np.empty((2 * len(event), 4), np.int64)
    stack = np.empty(len(event), np.int64)
    size, depth = 0, 0
    for k in range(len(event)):
        if begins[k]:
            stack[depth] = k
            depth += 1
            continue
        while depth:
            depth -= 1
            since = stack[depth]
            sort = 0 if event[since] == event[k] else _DEPENDENCY
            found[size] = vertex[since], vertex[k], sort, 0
            size += 1
        if k and not begins[k - 1]:
            found[size] = vertex[k - 1], vertex[k], _DEPENDENCY, 0
            size += 1
    return found[:size].copy()


@jit
def _along(  # noqa: PLR0913, PLR0917 # columns
    found: Array,
    size: int,
    last: int,
    vertex: int,
    sort: int,
    free: int,
    begins: Array,
    lock: Array,
) -> int:
    """Note one more edge of a thread, unless the lock makes it; how many there are now."""
    if last < 0 or (lock[last] and lock[vertex] and (begins[last] or not begins[vertex])):
        return size
    found[size] = last, vertex, sort, free
    return size + 1


@jit
def of_threads(  # noqa: PLR0913, PLR0917 # columns
    thread: Array,
    event: Array,
    enters: Array,
    start: Array,
    end: Array,
    begins: Array,
    lock: Array,
    blocking: Array,
) -> Array:
    """Edges along host threads: from each start or end of an operator or call to the next.

    Parameters
    ----------
    thread, event, enters
        Of starts and ends of all ranges of threads, thread by thread and by time; an end leaves
        whatever was entered last.
    start, end
        Vertices of each event; -1 where it has none.
    begins, lock
        Of each vertex: whether it is a start, and of a call that holds the runtime's lock.
    blocking
        Of each event, 1 if the time in it is that of something it waits for, else 0.
    """
    found = np.empty((len(event) + 1, 4), np.int64)
    stack = np.empty(len(event) + 1, np.int64)
    size, height, depth, last = 0, 0, 0, -1
    for k in range(len(event) + 1):
        stop = k == len(event) or (k > 0 and thread[k] != thread[k - 1])
        leaves = height if stop else 0 if enters[k] else min(height, 1)
        for _ in range(leaves):
            height -= 1
            e = stack[height]
            if end[e] >= 0:
                size = _along(found, size, last, end[e], 0, blocking[e], begins, lock)
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
                sort = _DEPENDENCY if depth == 0 else 0
                size = _along(found, size, last, start[e], sort, 0, begins, lock)
                last = start[e]
                depth += 1
    return found[:size].copy()


@jit
def of_work(  # noqa: C901, PLR0912, PLR0913, PLR0917 # one pass, columns
    event: Array,
    sort: Array,
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
    """Edges into, through and out of GPU work, and whether the tool gets through.

    Parameters
    ----------
    event, sort, stream, call
        What runs on a GPU, as the tool orders it: kind of thing, number of its stream, event that
        asked for it (-1 for none).
    queued, queued_at_call
        Work outstanding on the stream at its start, and at its launch; negative if unknown.
    source, target
        Of waits for events: the work before the record, the work behind the wait; -1 if unknown.
    start, end
        Vertices of each event; -1 where it has none.
    at
        Time of each vertex.
    began
        Start of each event.
    streams
        How many streams there are.
    """
    last = np.full(streams + 1, -1, np.int64)
    used = np.empty(streams + 1, np.int64)
    waits = np.full(len(start), -1, np.int64)
    room = 3 * len(event) + streams * (sort == _CONTEXT_SYNC).sum()
    found = np.empty((room, 4), np.int64)
    size, known = 0, 0
    for k in range(len(event)):
        e, s, c = event[k], stream[k], call[k]
        what = sort[k]
        if what != _WORK:
            if what in {_STREAM_WAIT, _EVENT_SYNC}:
                if source[k] < 0:
                    continue
                if what == _STREAM_WAIT:
                    if target[k] >= 0:
                        waits[target[k]] = source[k]
                elif end[source[k]] >= 0 and c >= 0 and end[c] >= 0:
                    found[size] = end[source[k]], end[c], _SYNC, 0
                    size += 1
                continue
            for j in range(known if what == _CONTEXT_SYNC else 1):
                other = used[j] if what == _CONTEXT_SYNC else s
                if last[other] >= 0 and c >= 0 and end[c] >= 0:
                    found[size] = last[other], end[c], _SYNC, 0
                    size += 1
            continue
        if start[e] < 0:
            continue
        found[size] = start[e], end[e], 0, 0
        size += 1
        before = end[waits[e]] if waits[e] >= 0 else -1
        waits[e] = -1
        if before >= 0:
            found[size] = before, start[e], _SYNC, 0
            size += 1
        asked = began[c] if c >= 0 else 0
        alone = queued_at_call[k] == _ONE and queued[k] == 0
        if alone and (last[s] < 0 or at[last[s]] < asked) and (before < 0 or at[before] < asked):
            if c < 0 or start[c] < 0:
                return found[:size].copy(), False
            found[size] = start[c], start[e], _LAUNCH, 0
            size += 1
        elif (
            last[s] >= 0
            and at[start[e]] - at[last[s]] < _KERNEL_GAP_US
            and (before < 0 or at[before] < at[last[s]])
        ):
            found[size] = last[s], start[e], _KERNEL, 0
            size += 1
        if last[s] < 0:
            used[known] = s
            known += 1
        last[s] = end[e]
    return found[:size].copy(), True


@jit
def longest(  # noqa: C901, PLR0913, PLR0917 # one pass, columns
    seeds: Array, first: Array, after: Array, into: Array, edge: Array, src: Array, weight: Array
) -> Array:
    """Vertices of the longest path, first ones first; none if the edges go round in a circle.

    Of paths as long as each other it is the one that networkx.dag_longest_path (3.6) gives.

    Parameters
    ----------
    seeds
        Vertices in the order in which they came into the graph.
    first, after
        Edges from vertex v lead to ``after[first[v]:first[v + 1]]``, in their order.
    into, edge
        Edges to vertex v are ``edge[into[v]:into[v + 1]]``, in their order.
    src, weight
        Of each edge.
    """
    n = len(first) - 1
    open_ = into[1:] - into[:-1]
    order = np.empty(len(seeds), np.int64)
    size = 0
    for v in seeds:
        if open_[v] == 0:
            order[size] = v
            size += 1
    k = 0
    while k < size:
        v = order[k]
        k += 1
        for e in range(first[v], first[v + 1]):
            w = after[e]
            open_[w] -= 1
            if open_[w] == 0:
                order[size] = w
                size += 1
    if size < len(seeds) or size == 0:
        return np.empty(0, np.int64)
    length = np.zeros(n, np.int64)
    come = np.full(n, -1, np.int64)
    best = order[0]
    for v in order:
        for j in range(into[v], into[v + 1]):
            e = edge[j]
            reached = length[src[e]] + weight[e]
            if come[v] < 0 or reached > length[v]:
                length[v], come[v] = reached, src[e]
        if length[v] > length[best]:
            best = v
    count, v = 1, best
    while come[v] >= 0:
        count += 1
        v = come[v]
    path = np.empty(count, np.int64)
    v = best
    for k in range(count - 1, -1, -1):
        path[k] = v
        v = come[v]
    return path
