"""Compiled loops of the timing model over edges grouped by source and vertices in topological order.

All of them are compiled because each vertex depends on others that the same loop has just reached:
no numpy call does that at once. A graph is given as in `graph.Graph`: `order` is topological, and the
edges from vertex v lead to ``after[first[v]:first[v + 1]]``.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit

NEVER = np.iinfo(np.int64).max
_NEVER = int(NEVER)
UNCONSTRAINED = _NEVER // 2
"""Latest time of what nobody waits for. Half of the largest integer, so that sums do not overflow."""
_UNCONSTRAINED = UNCONSTRAINED


@jit
def find_binding(
    at: Array, first: Array, after: Array, lag: Array, priority: Array
) -> tuple[Array, Array]:
    """Find the edge into each vertex that is reached last, and how much later than that it was.

    Parameters
    ----------
    at
        Time of each vertex.
    first, after
        The graph.
    lag, priority
        Least time along each edge; of edges that are reached at once the one with the lowest
        priority number binds.

    Returns
    -------
    binding
        For each vertex the edge; -1 if none leads to it.
    delay
        For each vertex, how much later than along that edge it was; 0 if none leads to it.
    """
    n = len(at)
    binding = np.full(n, -1, np.int32)
    reached = np.zeros(n, np.int64)
    for v in range(n):
        for e in range(first[v], first[v + 1]):
            w, time = after[e], at[v] + lag[e]
            best = binding[w]
            if (
                best < 0
                or time > reached[w]
                or (time == reached[w] and priority[e] < priority[best])
            ):
                binding[w], reached[w] = e, time
    delay = reached  # in place: at each vertex one becomes the other
    for v in range(n):
        if binding[v] >= 0:
            delay[v] = at[v] - reached[v]
    return binding, delay


@jit
def first_endpoint_since(before: Array, at: Array, awaited: Array, endpoint: Array) -> Array:
    """Go back on a thread from each endpoint to the first one behind what the thread waited for.

    A thread that was handed over to often ends a range before it begins what is recorded as its next
    operation. That end waited already, so it is where the wait ends.

    Parameters
    ----------
    before
        For each endpoint the one before it on its thread; -1 if there is none.
    at
        Time of each endpoint.
    awaited, endpoint
        Endpoints that were waited for, and later ones on the threads that waited.
    """
    earliest = endpoint.copy()
    for k in range(len(endpoint)):
        v = endpoint[k]
        while before[v] >= 0 and at[before[v]] > at[awaited[k]]:
            v = before[v]
        earliest[k] = v
    return earliest


@jit
def earliest_times(
    order: Array, first: Array, after: Array, lag: Array, delay: Array, release: Array
) -> Array:
    """Time of each vertex: the longest path to it, over lags of edges and delays of vertices.

    Parameters
    ----------
    order, first, after
        The graph.
    lag, delay
        Of edges and of vertices.
    release
        Time of vertices to which no edge leads.
    """
    n = len(delay)
    at = np.full(n, -_NEVER, np.int64)
    for v in order:
        at[v] = release[v] if at[v] == -_NEVER else at[v] + delay[v]
        for e in range(first[v], first[v + 1]):
            at[after[e]] = max(at[after[e]], at[v] + lag[e])
    return at


@jit
def latest_times(
    order: Array, first: Array, after: Array, lag: Array, delay: Array, late: Array
) -> None:
    """Write into `late` the latest time of each vertex that does not move the end of a window.

    This is the pass backwards of the critical path method; ``late - at`` is the slack.

    Parameters
    ----------
    order
        Vertices of the window in topological order.
    first, after, lag, delay
        The graph and the times that pass in it.
    late
        The window's end for what it may end with, else `UNCONSTRAINED`.
    """
    for k in range(len(order) - 1, -1, -1):
        v = order[k]
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if late[w] < _UNCONSTRAINED:
                late[v] = min(late[v], late[w] - delay[w] - lag[e])


@jit
def vertices_by_window(order: Array, at: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """Vertices of each window, in the order given.

    Parameters
    ----------
    order
        Vertices in topological order.
    at
        Time of each vertex.
    start, end
        Of the windows, both ascending; windows may overlap.

    Returns
    -------
    first, chosen
        Those of window k are ``chosen[first[k]:first[k + 1]]``.
    """
    # two passes of a counting sort: how many each window has, then where each of them goes. Windows
    # low to stop - 1 are those that have not ended before the vertex and have begun by then
    size = len(start)
    first = np.zeros(size + 1, np.int64)
    for v in order:
        low = np.searchsorted(end, at[v])
        stop = np.searchsorted(start, at[v], "right")
        for k in range(low, stop):
            first[k + 1] += 1
    for k in range(size):
        first[k + 1] += first[k]
    free = first[:-1].copy()
    chosen = np.empty(first[size], np.int32)
    for v in order:
        low = np.searchsorted(end, at[v])
        stop = np.searchsorted(start, at[v], "right")
        for k in range(low, stop):
            chosen[free[k]] = v
            free[k] += 1
    return first, chosen


@jit
def binding_path(binding: Array, first: Array, at: Array, last: int, start: int) -> Array:
    """Edges of the path to a vertex along binding edges, back to `start`; first ones first.

    Edges from vertex v are those from ``first[v]`` to ``first[v + 1]``, so that the source of one is bisected for.
    """
    path = []
    v = last
    while binding[v] >= 0 and at[v] > start:
        path.append(binding[v])
        v = np.searchsorted(first, binding[v], "right") - 1
    edges = np.empty(len(path), np.int64)
    for k in range(len(path)):
        edges[k] = path[len(path) - 1 - k]
    return edges


@jit
def min_parallel_slack(  # noqa: C901, PLR0913, PLR0917 # one loop over columns
    order: Array,
    first: Array,
    after: Array,
    lag: Array,
    delay: Array,
    at: Array,
    late: Array,
    ends: Array,
    start: int,
    end: int,
    path: Array,
    path_src: Array,
    first_barrier: int,
    position: Array,
) -> Array:
    """Find the least slack of what runs in parallel to each edge of a path.

    The vertices stand in topological order at positions 1, 2, … Cut k lies just behind the source
    of the path's edge k. Every other way through the window crosses each cut once, too::

        position     1    2    3    4    5    6
        path         o---------o---------o----o     its edges 0, 1 and 2
        cut           |0        |1        |2
        another way  o----o---------o---------o     crosses cut 0, then 1, then 2

    So if edge k of the path shrinks, the end gains at most the least slack of the edges over cut k
    that are not the path's own. An edge crosses a row of neighbouring cuts, from the one at or
    behind its source to the last one before its target: each edge lowers one range of a table.

    Parameters
    ----------
    order
        Vertices of the window in topological order.
    first, after, lag, delay, at
        The graph and its times.
    late
        As `latest_times` gives it for the window.
    ends
        Mask of the vertices that the window may end with.
    start, end
        Of the window.
    path
        Edges of the path, first ones first.
    path_src
        Source of each of them.
    first_barrier
        From this vertex on they are collective barriers, from which all edges shrink together.
    position
        Scratch, one number a vertex of the graph: all 0 before and after.
    """
    m, size = len(order), len(path)
    for k in range(m):
        position[order[k]] = k + 1
    cuts, path_edge = _cuts_before(path_src, position, m)
    table = _range_table(size)
    entered = np.zeros(m + 1, np.bool_)  # by an edge from within the window
    if size and position[path_src[0]] == 0:
        _enter_from_before(
            first, after, lag, at, late, start, path[0], path_src[0], first_barrier, position, cuts,
            entered, table,
        )  # fmt: skip
    for k in range(m):
        v = order[k]
        p = k + 1
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if position[w] > 0:
                entered[position[w]] = True
                low, stop = cuts[p], cuts[position[w]]
                slack = late[w] - delay[w] - lag[e] - at[v]
                if path_edge[p] >= 0:
                    # the cut of this very source: the path's edge does not count against itself,
                    # and what leaves the same barrier shrinks as the path's edge does
                    if v >= first_barrier and path[path_edge[p]] != e:
                        _lower(table, low, min(low + 1, stop), slack + lag[e])
                    elif path[path_edge[p]] != e:
                        _lower(table, low, min(low + 1, stop), slack)
                    low += 1
                _lower(table, low, stop, slack)
        if ends[v]:  # another way may also end here
            _lower(table, cuts[p] + (path_edge[p] >= 0), size, end - at[v])
    for p in range(1, m + 1):
        if not entered[p]:  # or begin here
            _lower(table, 0, cuts[p], late[order[p - 1]] - at[order[p - 1]])
    for v in order:
        position[v] = 0
    return _lowest(table, size)


@jit
def _enter_from_before(  # noqa: PLR0913, PLR0917 # one loop over columns
    first: Array,
    after: Array,
    lag: Array,
    at: Array,
    late: Array,
    start: int,
    edge: int,
    src: int,
    first_barrier: int,
    position: Array,
    cuts: Array,
    entered: Array,
    table: Array,
) -> None:
    """Let a path's first edge, whose source is before the window, not count as another way that begins in it.

    Nor do other transfers from the same barrier, which shrink as the path's edge does, by what is in the window::

        window             |--------------
        path      barrier ---------o---        its edge 0, behind whose source the first cut is
        member    barrier ------------o--      shrinks too: its slack, and what it takes in the window
    """
    for e in range(first[src], first[src + 1]):
        p = position[after[e]]
        if p > 0 and (e == edge or src >= first_barrier):
            entered[p] = True
            if e != edge:
                end = at[after[e]]
                slack = late[after[e]] - end
                _lower(table, 0, 1, slack + min(lag[e], end - start))
                _lower(table, 1, cuts[p], slack)


@jit
def _cuts_before(path_src: Array, position: Array, m: int) -> tuple[Array, Array]:
    """Count cuts before each position, and find the path's edge from each position; -1 if none.

    Positions count from 1; what is at 0 is before the window.
    """
    cuts = np.zeros(m + 3, np.int32)
    path_edge = np.full(m + 1, -1, np.int32)
    for k in range(len(path_src)):
        p = position[path_src[k]]
        cuts[p + 1] += 1
        path_edge[p] = k
    for p in range(m + 2):
        cuts[p + 1] += cuts[p]
    return cuts, path_edge


# A table for minima over ranges of cuts (a sparse table, turned round). Entry [l, k] stands for the
# 2^l cuts from k on. A range is two such blocks that may overlap, so to lower one takes two entries
# however long it is; in the end each block hands its value down to its two halves.


@jit
def _range_table(size: int) -> Array:
    """Make a table for `size` cuts, all at the largest value."""
    levels = 1
    while (1 << levels) <= size:
        levels += 1
    return np.full((levels, size + 1), _NEVER, np.int64)


@jit
def _lower(table: Array, begin: int, stop: int, value: int) -> None:
    """Lower all cuts from begin to stop - 1 to at most this value."""
    if stop <= begin:
        return
    level = 0
    while (1 << (level + 1)) <= stop - begin:
        level += 1
    table[level, begin] = min(table[level, begin], value)
    second = stop - (1 << level)
    table[level, second] = min(table[level, second], value)


@jit
def _lowest(table: Array, size: int) -> Array:
    """Hand values down to single cuts; the least value of each."""
    for level in range(len(table) - 1, 0, -1):
        half = 1 << (level - 1)
        for k in range(size):
            value = table[level, k]
            if value < _NEVER:
                table[level - 1, k] = min(table[level - 1, k], value)
                second = min(k + half, size)
                table[level - 1, second] = min(table[level - 1, second], value)
    return table[0, :size].copy()
