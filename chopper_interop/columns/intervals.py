"""Unions and intersections of intervals in time: exact, in nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

    Union = tuple[Array, Array]

_NEVER = np.iinfo(np.int64).min
_NEAR = 8
"""So many intervals are looked at in turn before the place is searched for."""


def union(start: Array, end: Array) -> Union:
    """Intervals that cover the same time, sorted, without overlap and not touching.

    Parameters
    ----------
    start, end
        Nanoseconds; an interval that does not end after its start covers nothing.
    """
    some = end > start
    order = np.argsort(start[some], kind="stable")
    start, end = start[some][order], end[some][order]
    if not start.size:
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def length(intervals: Union) -> int:
    """Time that a union covers."""
    start, end = intervals
    return int((end - start).sum())


def common(a: Union, b: Union) -> int:
    """Time that two unions share."""
    both = union(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))
    return length(a) + length(b) - length(both)


def covered(start: Array, end: Array, by: Union) -> Array:
    """Time of each interval that a union covers: O(n log n).

    Parameters
    ----------
    start, end
        Any intervals, in any order; one that does not end after its start has none.
    by
        A union, as `union` gives it.
    """
    first, last = _whole(by[0]), _whole(by[1])
    before = np.zeros(len(first) + 1, np.int64)
    np.cumsum(last - first, out=before[1:])
    until = _covered_until(_whole(end), first, last, before)
    return np.maximum(until - _covered_until(_whole(start), first, last, before), 0)


def summed(start: Array, end: Array, by: Union) -> Array:
    """Time of each interval shared with each of other intervals, summed: O(n log n).

    Where the others overlap each other, their common time counts once for each.

    Parameters
    ----------
    start, end
        Any intervals that do not end before their start.
    by
        Starts and ends of any other such intervals.
    """
    begins, ends = np.sort(by[0]), np.sort(by[1])
    return _past(begins, end) - _past(begins, start) - _past(ends, end) + _past(ends, start)


def _past(moments: Array, time: Array) -> Array:
    """Sum, over moments before a time, of how long ago each was."""
    if not moments.size:
        return np.zeros(len(time), np.int64)
    origin = moments[0]  # so that sums stay small
    total = np.concatenate([[0], np.cumsum(moments - origin)])
    before = np.searchsorted(moments, time, "left")
    return before * (time - origin) - total[before]


def unions(cell: Array, start: Array, end: Array, n: int) -> tuple[Array, Array, Array]:
    """Union of the intervals of each of many cells.

    Parameters
    ----------
    cell
        Number of each interval's cell, from 0 to n - 1.
    start, end
        Nanoseconds; in each cell by ascending start.
    n
        How many cells there are.

    Returns
    -------
    cell, start, end
        Intervals without overlap and not touching; those of a cell ascend.
    """
    return _unions(_whole(cell), _whole(start), _whole(end), n)


def patterns(cell: Array, sort: Array, start: Array, end: Array, n: int, sorts: int) -> Array:
    """How long each combination of sorts of intervals was there at once, in each of many cells.

    Parameters
    ----------
    cell
        Number of each interval's cell, from 0 to n - 1.
    sort
        Number of each interval's sort, from 0 to sorts - 1.
    start, end
        Nanoseconds; in each cell by ascending start.
    n, sorts
        How many cells and sorts there are.

    Returns
    -------
    Array
        ``[cell, combination]``: bit s of a combination tells that something of sort s was there.
        That of none is 0.
    """
    return _patterns(_whole(cell), _whole(sort), _whole(start), _whole(end), n, sorts)


def _whole(values: Array) -> Array:
    return np.require(values, np.int64, ("C", "W"))


@jit
def _covered_until(time: Array, first: Array, last: Array, before: Array) -> Array:
    """Time that a union covers before each moment; most quickly if these ascend."""
    found = np.zeros(len(time), np.int64)
    begun = 0
    for i in range(len(time)):
        t = time[i]
        steps = 0
        while begun < len(first) and first[begun] <= t and steps < _NEAR:
            begun += 1
            steps += 1
        if steps == _NEAR or (begun > 0 and first[begun - 1] > t):
            begun = np.searchsorted(first, t, "right")
        if begun > 0:
            found[i] = before[begun - 1] + min(t, last[begun - 1]) - first[begun - 1]
    return found


@jit
def _unions(cell: Array, start: Array, end: Array, n: int) -> tuple[Array, Array, Array]:
    place = np.full(n, -1, np.int64)
    owner, first, last = np.empty_like(cell), np.empty_like(cell), np.empty_like(cell)
    count = 0
    for i in range(len(cell)):
        if end[i] <= start[i]:
            continue
        at = place[cell[i]]
        if at >= 0 and start[i] <= last[at]:
            last[at] = max(last[at], end[i])
        else:
            place[cell[i]] = count
            owner[count], first[count], last[count] = cell[i], start[i], end[i]
            count += 1
    return owner[:count].copy(), first[:count].copy(), last[:count].copy()


@jit
def _patterns(cell: Array, sort: Array, start: Array, end: Array, n: int, sorts: int) -> Array:
    reach = np.full((n, sorts), _NEVER, np.int64)
    now = np.full(n, _NEVER, np.int64)
    time = np.zeros((n, 1 << sorts), np.int64)
    for i in range(len(cell)):
        _pass(reach[cell[i]], time[cell[i]], now[cell[i]], start[i])
        now[cell[i]] = start[i]
        reach[cell[i], sort[i]] = max(reach[cell[i], sort[i]], end[i])
    for c in range(n):
        _pass(reach[c], time[c], now[c], reach[c].max())
    return time


@jit
def _pass(reach: Array, time: Array, now: int, until: int) -> None:
    """Count what is there from now until then."""
    while now < until:
        there, next_end = 0, until
        for s in range(len(reach)):
            if reach[s] > now:
                there |= 1 << s
                next_end = min(next_end, reach[s])
        if there == 0:
            return
        time[there] += next_end - now
        now = next_end
