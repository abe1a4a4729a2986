"""Loops of the timing model: over edges grouped by source, and vertices in topological order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

NEVER = np.iinfo(np.int64).max
_NEVER = int(NEVER)
AT_ANY_TIME = _NEVER // 2
"""How late what nobody waits for may be; far from the bounds of what can be computed with."""
_AT_ANY_TIME = AT_ANY_TIME


@jit
def bound(at: Array, first: Array, after: Array, lag: Array, rank: Array) -> tuple[Array, Array]:
    """Which edge into each vertex is reached last.

    Parameters
    ----------
    at
        Time of each vertex.
    first, after
        Edges from vertex v lead to ``after[first[v]:first[v + 1]]``.
    lag, rank
        Least time along each edge; of edges that are reached at once the one of lowest rank counts.

    Returns
    -------
    binding
        For each vertex the edge; -1 if none leads to it.
    delay
        For each vertex, how much later than along that edge it was; 0 if none leads to it.
    """
    n = len(at)
    binding = np.full(n, -1, np.int64)
    reached = np.zeros(n, np.int64)
    for v in range(n):
        for e in range(first[v], first[v + 1]):
            w, time = after[e], at[v] + lag[e]
            old = binding[w]
            if old < 0 or time > reached[w] or (time == reached[w] and rank[e] < rank[old]):
                binding[w], reached[w] = e, time
    delay = np.zeros(n, np.int64)
    for v in range(n):
        if binding[v] >= 0:
            delay[v] = at[v] - reached[v]
    return binding, delay


@jit
def first_since(before: Array, at: Array, since: Array, moment: Array) -> Array:
    """The first moment on a thread behind what it waited for, of a later one on that thread.

    A thread that was handed over to often ends a range before it begins what is seen as the next
    operation: that end waited already.

    Parameters
    ----------
    before
        For each moment the one before it on its thread; -1 if there is none.
    at
        Time of each moment.
    since, moment
        Moments that were waited for, and the later ones.
    """
    found = moment.copy()
    for k in range(len(moment)):
        v = moment[k]
        while before[v] >= 0 and at[before[v]] > at[since[k]]:
            v = before[v]
        found[k] = v
    return found


@jit
def earliest(
    order: Array, first: Array, after: Array, lag: Array, delay: Array, release: Array
) -> Array:
    """When each vertex is reached, if edges last `lag` and vertices wait `delay` for no reason known.

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
def latest(order: Array, first: Array, after: Array, lag: Array, delay: Array, late: Array) -> None:
    """Write into `late` how late each vertex of a window may be for its end to be no later.

    Parameters
    ----------
    order
        Vertices of the window in topological order.
    first, after, lag, delay
        The graph and the times that pass in it.
    late
        The window's end for what it may end with, else `AT_ANY_TIME`.
    """
    for k in range(len(order) - 1, -1, -1):
        v = order[k]
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if late[w] < _AT_ANY_TIME:
                late[v] = min(late[v], late[w] - delay[w] - lag[e])


@jit
def by_window(order: Array, at: Array, start: Array, end: Array) -> tuple[Array, Array]:
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
def walk(binding: Array, src: Array, at: Array, last: int, start: int) -> Array:
    """Edges of the path to a vertex, along what bound each, back to `start`; first ones first."""
    path = []
    v = last
    while binding[v] >= 0 and at[v] > start:
        path.append(binding[v])
        v = src[binding[v]]
    found = np.empty(len(path), np.int64)
    for k in range(len(path)):
        found[k] = path[len(path) - 1 - k]
    return found


@jit
def least_beside(  # noqa: C901, PLR0913, PLR0917 # one loop over columns
    order: Array,
    first: Array,
    after: Array,
    lag: Array,
    delay: Array,
    at: Array,
    late: Array,
    ends: Array,
    end: int,
    path: Array,
    src: Array,
    meets: Array,
    place: Array,
) -> Array:
    """The least slack of all that runs beside each edge of a path: of what does not take that edge.

    In an order of the vertices every path to the end passes the place behind an edge's source once,
    by that edge or by another one. So what the end can gain of an edge is at most the least slack
    of those others.

    Parameters
    ----------
    order
        Vertices of the window in topological order.
    first, after, lag, delay, at
        The graph and its times.
    late
        As `latest` gives it for the window.
    ends
        Which vertices the window may end with.
    end
        When it ends.
    path
        Edges of the path, first ones first.
    src
        Source of each edge.
    meets
        Sources of edges that shrink together, as all those from where a collective has met.
    place
        Room for a number each vertex: all 0, and so again in the end.
    """
    m, size = len(order), len(path)
    for k in range(m):
        place[order[k]] = k + 1
    cuts, step = _cuts(path, src, place, m)
    table = _table(size)
    entered = np.zeros(m + 1, np.bool_)  # by an edge from within
    for k in range(m):
        v = order[k]
        p = k + 1
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if place[w] > 0:
                entered[place[w]] = True
                low, stop = cuts[p], cuts[place[w]]
                beside = late[w] - delay[w] - lag[e] - at[v]
                if step[p] >= 0:
                    if meets[v] and path[step[p]] != e:  # it shrinks as the path's own does
                        _lower(table, low, min(low + 1, stop), beside + lag[e])
                    elif path[step[p]] != e:
                        _lower(table, low, min(low + 1, stop), beside)
                    low += 1
                _lower(table, low, stop, beside)
        if ends[v]:  # a path may also end here
            _lower(table, cuts[p] + (step[p] >= 0), size, end - at[v])
    for p in range(1, m + 1):
        if not entered[p]:  # or begin here
            _lower(table, 0, cuts[p], late[order[p - 1]] - at[order[p - 1]])
    for v in order:
        place[v] = 0
    return _settled(table, size)


@jit
def _cuts(path: Array, src: Array, place: Array, m: int) -> tuple[Array, Array]:
    """How many sources of a path's edges stand before each place, and whose source stands there.

    Places count from 1; what is at 0 is before the window.
    """
    cuts = np.zeros(m + 3, np.int64)
    step = np.full(m + 1, -1, np.int64)
    for k in range(len(path)):
        p = place[src[path[k]]]
        cuts[p + 1] += 1
        step[p] = k
    for p in range(m + 2):
        cuts[p + 1] += cuts[p]
    return cuts, step


@jit
def _table(size: int) -> Array:
    """A table for `_lower`: place k of level l stands for 2^l places from k on."""
    levels = 1
    while (1 << levels) <= size:
        levels += 1
    return np.full((levels, size + 1), _NEVER, np.int64)


@jit
def _settled(table: Array, size: int) -> Array:
    """The least value noted for each place."""
    for level in range(len(table) - 1, 0, -1):
        half = 1 << (level - 1)
        for k in range(size):
            value = table[level, k]
            if value < _NEVER:
                table[level - 1, k] = min(table[level - 1, k], value)
                other = min(k + half, size)
                table[level - 1, other] = min(table[level - 1, other], value)
    return table[0, :size].copy()


@jit
def _lower(table: Array, begin: int, stop: int, value: int) -> None:
    """Note a value for places from begin to stop: of which each is the least in the end."""
    if stop <= begin:
        return
    level = 0
    while (1 << (level + 1)) <= stop - begin:
        level += 1
    table[level, begin] = min(table[level, begin], value)
    other = stop - (1 << level)
    table[level, other] = min(table[level, other], value)
