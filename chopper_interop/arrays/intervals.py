"""Unions and intersections of intervals in time: exact, in nanoseconds.

A union is a pair of arrays, starts and ends, ascending, without overlap and not touching::

    intervals   |-----|    |---|
                   |-----|     |--|
    union       |--------| |------|
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit

Intervals = tuple[Array, Array]
GroupIntervals = tuple[Array, Array, Array]
"""Group, start and end of intervals."""

_NEVER = np.iinfo(np.int64).min
_MAX_STEPS = 8
"""Intervals that are passed one by one before a position is searched for (chosen: about as many
steps as a binary search among hundreds takes)."""


def union(start: Array, end: Array) -> Intervals:
    """Intervals that cover the same time, sorted, without overlap and not touching.

    Parameters
    ----------
    start, end
        Nanoseconds; an interval that does not end after its start covers nothing.
    """
    positive = end > start
    order = np.argsort(start[positive], kind="stable")
    start, end = start[positive][order], end[positive][order]
    if not start.size:
        return start, end
    # a new interval begins where one starts after all before it have ended
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def total_length(intervals: Intervals) -> int:
    """Time that a union covers."""
    start, end = intervals
    return int((end - start).sum())


def overlap_length(a: Intervals, b: Intervals) -> int:
    """Time that two unions share."""
    both = union(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))
    return total_length(a) + total_length(b) - total_length(both)


def covered_time(start: Array, end: Array, by: Intervals) -> Array:
    """Time of each interval that a union covers: O(n log n).

    It is the difference of two running totals: what the union covers before the end of the
    interval, less what it covers before the start.

    Parameters
    ----------
    start, end
        Any intervals, in any order; one that does not end after its start has none.
    by
        A union, as `union` gives it.
    """
    return covered_in_groups(
        np.zeros(len(start), np.int64), start, end, (np.zeros_like(by[0]), *by), 1
    )


def covered_in_groups(group: Array, start: Array, end: Array, by: GroupIntervals, n: int) -> Array:
    """Time of each interval that the union of its group covers, as `covered_time` of each group, in one call for all.

    Parameters
    ----------
    group, start, end
        Any intervals, in any order; one that does not end after its start has none.
    by
        Unions, as `group_unions` returns them, the groups ascending.
    n
        How many groups there are.
    """
    first, last = _int64(by[1]), _int64(by[2])
    offsets = np.searchsorted(by[0], np.arange(n + 1))
    before = np.zeros(len(first) + 1, np.int64)
    np.cumsum(last - first, out=before[1:])
    unions, group = (offsets, first, last, before), _int64(group)
    until_end = _covered_until(group, _int64(end), *unions)
    return np.maximum(until_end - _covered_until(group, _int64(start), *unions), 0)


def overlap_sums(start: Array, end: Array, by: Intervals) -> Array:
    """Time that each interval shares with each of some others, summed over these: O(n log n).

    Where the others overlap each other, their common time counts once for each.

    Parameters
    ----------
    start, end
        Any intervals that do not end before their start.
    by
        Starts and ends of any other such intervals.
    """
    # of one other interval from b to e, the time before t is  since(b, t) - since(e, t)  with
    # since(x, t) = max(t - x, 0): summed over the others, and as a difference of t = end and start
    begins, ends = np.sort(by[0]), np.sort(by[1])
    return (
        _time_since(begins, end)
        - _time_since(begins, start)
        - _time_since(ends, end)
        + _time_since(ends, start)
    )


def _time_since(events: Array, time: Array) -> Array:
    """For each time, the sum of the times that have passed since each earlier event."""
    if not events.size:
        return np.zeros(len(time), np.int64)
    origin = events[0]  # so that sums stay small
    total = np.concatenate([[0], np.cumsum(events - origin)])
    earlier = np.searchsorted(events, time, "left")
    return earlier * (time - origin) - total[earlier]


def group_unions(group: Array, start: Array, end: Array, n: int) -> GroupIntervals:
    """Union of the intervals of each group.

    Parameters
    ----------
    group
        Number of each interval's group, from 0 to n - 1.
    start, end
        Nanoseconds; in each group by ascending start.
    n
        How many groups there are.

    Returns
    -------
    group, start, end
        Intervals without overlap and not touching; those of a group ascend, in the order of
        their first intervals.
    """
    return _group_unions(_int64(group), _int64(start), _int64(end), n)


def group_differences(a: GroupIntervals, b: GroupIntervals, n: int) -> GroupIntervals:
    """Time that a union of each of n groups covers and another does not, as unions.

    ::

        a           |--------|   |---|
        b              |--|          |---|
        difference  |--|  |--|   |---|

    Parameters
    ----------
    a, b
        As `group_unions` returns them, the groups ascending.
    """
    group, time = (np.concatenate([*x, *y]) for x, y in ((a[:1] * 2, b[:1] * 2), (a[1:], b[1:])))
    begins = np.repeat([1, -1, 1, -1], [len(a[0]), len(a[0]), len(b[0]), len(b[0])])
    order = np.lexsort((time, group))
    group, time, begins, of_b = group[order], time[order], begins[order], order >= 2 * len(a[0])
    # sums over all groups: at the end of each group they are zero
    covered = (np.cumsum(np.where(of_b, 0, begins)) > 0) & (
        np.cumsum(np.where(of_b, begins, 0)) == 0
    )
    piece = np.flatnonzero(covered)
    return group_unions(group[piece], time[piece], time[piece + 1], n)


def combination_times(
    group: Array, category: Array, start: Array, end: Array, n: int, categories: int
) -> Array:
    """Time for which each combination of categories of intervals was present, in each group.

    Parameters
    ----------
    group
        Number of each interval's group, from 0 to n - 1.
    category
        Number of each interval's category, from 0 to categories - 1.
    start, end
        Nanoseconds; in each group by ascending start.
    n, categories
        How many groups and categories there are.

    Returns
    -------
    Array
        ``[group, combination]``: bit c of a combination is set if an interval of category c was
        present. The time of the empty combination is not counted: it is 0. With two categories::

            category 0   |------|
            category 1       |-------|
            combination  1111333322222
    """
    return _combination_times(
        _int64(group), _int64(category), _int64(start), _int64(end), n, categories
    )


def _int64(values: Array) -> Array:
    return np.require(values, np.int64, ("C", "W"))


@jit
def _covered_until(  # columns
    group: Array, time: Array, offsets: Array, first: Array, last: Array, before: Array
) -> Array:
    """Time that unions up to that of a group cover before each time of the group; most quickly if these ascend.

    Where they do, the position in the union moves by few steps, and no search is needed.

    Parameters
    ----------
    group, time
        Any times, and the number of each one's union.
    offsets, first, last
        The union of group g is the intervals from ``offsets[g]`` to ``offsets[g + 1]``.
    before
        Time that the intervals before each one cover.
    """
    result = np.zeros(len(time), np.int64)
    begun = offsets.copy()  # of each union: behind its intervals that start at or before t
    for i in range(len(time)):
        t, low, high = time[i], offsets[group[i]], offsets[group[i] + 1]
        at = begun[group[i]]
        steps = 0
        while at < high and first[at] <= t and steps < _MAX_STEPS:
            at += 1
            steps += 1
        if steps == _MAX_STEPS or (at > low and first[at - 1] > t):
            at = low + np.searchsorted(first[low:high], t, "right")
        begun[group[i]] = at
        result[i] = before[at]
        if at > low:
            result[i] = before[at - 1] + min(t, last[at - 1]) - first[at - 1]
    return result


@jit
def _group_unions(group: Array, start: Array, end: Array, n: int) -> GroupIntervals:
    """One pass over intervals: each extends the last one of its group, or begins the next."""
    latest = np.full(n, -1, np.int64)  # row in the result of the last interval of each group
    owner, first, last = np.empty_like(group), np.empty_like(group), np.empty_like(group)
    count = 0
    for i in range(len(group)):
        if end[i] <= start[i]:
            continue
        row = latest[group[i]]
        if row >= 0 and start[i] <= last[row]:
            last[row] = max(last[row], end[i])
        else:
            latest[group[i]] = count
            owner[count], first[count], last[count] = group[i], start[i], end[i]
            count += 1
    return owner[:count].copy(), first[:count].copy(), last[:count].copy()


@jit
def _combination_times(
    group: Array, category: Array, start: Array, end: Array, n: int, categories: int
) -> Array:
    """One pass over intervals: a group's time is counted up to the start of its next interval.

    All that a group needs to remember is until when each category reaches.
    """
    reach = np.full((n, categories), _NEVER, np.int64)
    now = np.full(n, _NEVER, np.int64)
    time = np.zeros((n, 1 << categories), np.int64)
    for i in range(len(group)):
        _count_until(reach[group[i]], time[group[i]], now[group[i]], start[i])
        now[group[i]] = start[i]
        reach[group[i], category[i]] = max(reach[group[i], category[i]], end[i])
    for g in range(n):
        _count_until(reach[g], time[g], now[g], reach[g].max())
    return time


@jit
def _count_until(reach: Array, time: Array, now: int, until: int) -> None:
    """Add the time from `now` to `until` to the combinations that are present in it."""
    while now < until:
        present, next_end = 0, until
        for c in range(len(reach)):
            if reach[c] > now:
                present |= 1 << c
                next_end = min(next_end, reach[c])
        if present == 0:
            return
        time[present] += next_end - now
        now = next_end
