"""Host threads that follow another at the same place of every training step, and those that do not.

A thread that goes on behind another's work either waited for it or computed on its own, which profilers do
not record. One step cannot tell these apart. Several can: what a thread waits for comes sooner or later from step to
step, and the thread as much later again::

    step 1    thread 1   [ a ]                thread 2   [ x ]        [ y ]
    step 2    thread 1        [ a ]           thread 2   [ x ]             [ y ]

Here the time from a to y is steady, and y follows a. Where that from x to y is, thread 2 computed in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import preceding_rows

_MIN_STEPS = 3
"""Steps from which times are known to be steady. Chosen: two may agree by chance."""
_STEADIER = 3
"""By how many times one time varies less than another that surely explains less. Measured on two threads that work
by turns (104 changes of 16 programs on an H200): with 2 to 5 the mean error stays within 0.03 % of the job."""
BACK = 8
"""Rows of another thread that are tried before a handover is refuted: it may go on behind what it hands over.
Chosen: the steps of one operation of PyTorch, and a few more."""
MIN_RESTS = 4
"""Rests from which a wait is known by turns; measured with `handover_turns._STEADIER`."""
WAITED_SHARE = 0.1
"""A range that waits goes on when less of it than this remains, or within 20 µs, after another thread's work; and so
does a thread that was idle. Measured: of 28,032 ranges that compute while a second thread works (624 recordings of an
H200) 7 % end so by chance, and at most 33 % of a recording, with 0.03 to 0.1 alike (0.2: 8 and 33 %, 0.5: 12 and 56 %);
of 38 that wait (an inference server) all from 0.05 on. Most of a name decide, so that 0.05 to 0.2 tell both apart."""
NEVER = np.iinfo(np.int64).min // 2
"""Stands for when a thread that has done nothing yet was active; half of the lowest integer, so that times since
then do not overflow."""


@dataclass(frozen=True)
class HostWork:
    """Operations and ranges of host threads, one per row, by rank and start.

    Parameters
    ----------
    thread, name
        Numbers of the thread and of the name.
    ts, end
        Times, ns; ranges in which their thread rests end with their start.
    step
        Which step of its rank each is in, counted from 0; -1 for none.
    can_end
        Mask of what others may follow.
    since
        Until when the thread was active before; `NEVER` if it has done nothing yet.
    first, stop
        Threads of the rank of each thread: from ``first`` to ``stop - 1``.
    """

    thread: Array
    name: Array
    ts: Array
    end: Array
    step: Array
    can_end: Array
    since: Array
    first: Array
    stop: Array

    @cached_property
    def ordinal(self) -> Array:
        """Number of rows of its thread and step before each."""
        order = np.lexsort((self.step, self.thread))
        new = np.ones(len(order), bool)
        new[1:] = (np.diff(self.step[order]) != 0) | (np.diff(self.thread[order]) != 0)
        at = np.arange(len(order))
        result = np.empty(len(order), np.int64)
        result[order] = at - np.maximum.accumulate(np.where(new, at, 0))
        return result

    @cached_property
    def first_place(self) -> Array:
        """Number of the first place of each thread, and behind them the number of all places.

        A place is what is the nth row of a thread in each step of its rank. A thread has as many as rows in the step
        with the fewest, so that one long step makes no long table.
        """
        inside = np.flatnonzero(self.step >= 0)
        steps = np.zeros(len(self.first), np.int64)  # of each rank, by its first thread
        np.maximum.at(steps, self.first[self.thread[inside]], self.step[inside] + 1)
        steps = steps[self.first]
        size = np.where(steps >= _MIN_STEPS, self.ordinal.max(initial=-1) + 1, 0)
        # the last row of each thread and step says how many there are
        order = inside[np.lexsort((self.step[inside], self.thread[inside]))]
        last = np.ones(len(order), bool)
        last[:-1] = np.diff(self.step[order]) != 0
        last[:-1] |= np.diff(self.thread[order]) != 0
        last = order[last]
        np.minimum.at(size, self.thread[last], self.ordinal[last] + 1)
        size[np.bincount(self.thread[last], minlength=len(size)) < steps] = 0
        return np.append(0, np.cumsum(size))

    @cached_property
    def row(self) -> Array:
        """Row at each place in each step; -1 at places that are not of one name in all steps of their rank."""
        size = np.diff(self.first_place)
        listed = np.flatnonzero((self.step >= 0) & (self.ordinal < size[self.thread]))
        table = np.full((self.first_place[-1], self.step.max(initial=-1) + 1), -1, np.int64)
        table[self.place(self.thread, self.ordinal)[listed], self.step[listed]] = listed
        alike = (table < 0) | (self.name[table] == self.name[table[:, :1]])
        table[~alike.all(axis=1)] = -1
        return table

    @cached_property
    def at_place(self) -> Array:
        """Mask of what stands in `row`."""
        result = np.zeros(len(self.step), bool)
        result[self.row[self.row >= 0]] = True
        return result

    def place(self, thread: Array, ordinal: Array) -> Array:
        """Number of the place of the nth row of a thread."""
        return self.first_place[thread] + ordinal


def sources_by_steps(work: HostWork, source: Array, possible: Array, wake_ns: int) -> Array:
    """Rows that others followed: with those that steps prove, and without those that they refute.

    Parameters
    ----------
    work
        What host threads did.
    source
        For each row the one that it followed as its times suggest; -1 for none.
    possible
        Mask of rows whose thread may have waited for another: it was idle.
    wake_ns
        Within which time a thread goes on.
    """
    result = source.copy()
    if work.step.max(initial=-1) + 1 < _MIN_STEPS:
        return result
    place = np.flatnonzero(((work.row >= 0) & possible[work.row]).sum(axis=1) >= _MIN_STEPS)
    target = work.row[place]
    own = np.where(work.since[target] > NEVER, work.ts[target] - work.since[target], np.nan)
    own_spread = _spreads(np.where(target >= 0, own, np.nan))
    cause, spread, min_spread = _causes(work, target, wake_ns)
    suggested = source[target]
    known = (target >= 0) & (suggested >= 0) & work.at_place[suggested]
    # what goes on at the very end of a long rest did not compute for all of it, however steady that is
    at_end = work.ts[target] - work.end[suggested] <= WAITED_SHARE * own
    at_end = np.logical_and.reduce(at_end | ~known | np.isnan(own), axis=1)
    is_alike = min_spread <= _STEADIER * own_spread  # of none the spread is not a number
    refuted = ~at_end & ~is_alike
    result[target[known & refuted[:, None]]] = -1
    proven = (_STEADIER * spread < own_spread)[:, None] & (target >= 0) & (cause >= 0)
    result[target[proven]] = cause[proven]
    return result


def _spreads(values: Array) -> Array:
    """Mean distance from the median of each line; not a number where fewer than `_MIN_STEPS` are known."""
    enough = np.isfinite(values).sum(axis=1) >= _MIN_STEPS
    result = np.full(len(values), np.nan)
    lines = values[enough]
    middle = np.nanmedian(lines, axis=1, keepdims=True)
    result[enough] = np.nanmean(np.abs(lines - middle), axis=1)
    return result


def _causes(work: HostWork, target: Array, wake_ns: int) -> tuple[Array, Array, Array]:
    """Rows of another thread that rows at one place may have followed, at one place themselves.

    Returns
    -------
    cause, spread
        Of the last that had ended before in every step, on the thread where the time since then is steadiest; and
        how that time varies.
    min_spread
        The smallest variation of that time, of these and the rows before them.
    """
    line, other = recent_threads(work, target[:, 1], np.arange(len(target) + 1), wake_ns)
    before, nth = _last_places(work, target[line], other)
    cause, spread = _since_place(work, target[line], (other, nth, before), wake_ns)
    smallest = spread
    for back in range(1, BACK):
        earlier = _since_place(work, target[line], (other, nth - back, before), wake_ns)[1]
        smallest = np.fmin(smallest, earlier)
    causes, spreads = np.full_like(target, -1), np.full(len(target), np.nan)
    order = np.lexsort((spread, line))  # not a number is last
    first, at = np.unique(line[order], return_index=True)
    causes[first], spreads[first] = cause[order[at]], spread[order[at]]
    min_spreads = np.full(len(target), np.nan)
    min_spreads[first] = np.fmin.reduceat(smallest[order], at)
    return causes, spreads, min_spreads


def recent_threads(work: HostWork, rows: Array, first: Array, wake_ns: int) -> tuple[Array, Array]:
    """Pairs of a group of rows and another thread of their rank that ended work in the `wake_ns` before each of them.

    Their own thread was idle then. A row follows such threads alone, in every step, so that those of one step are all
    that need be tried.

    Parameters
    ----------
    work
        What host threads did.
    rows, first
        Group g has the rows ``rows[first[g]:first[g + 1]]``.
    wake_ns
        Within which time a thread goes on.
    """
    ends = np.flatnonzero(work.can_end)
    ends = ends[np.lexsort((work.end[ends], work.first[work.thread[ends]]))]
    rank, end, of_rank = (
        work.first[work.thread[ends]],
        work.end[ends],
        work.first[work.thread[rows]],
    )
    last = preceding_rows(rank, end, of_rank, work.ts[rows])
    args = (
        *(work.thread[ends], end, np.searchsorted(rank, of_rank), last, first),
        *(work.thread[rows], np.maximum(work.ts[rows] - wake_ns, work.since[rows] + 1)),
    )
    group, other = np.empty(0, np.int64), np.empty(0, np.int64)
    count = _list_recent(*args, np.full(len(work.first), -1, np.int64), group, other)
    group, other = np.empty(count, np.int64), np.empty(count, np.int64)
    _list_recent(*args, np.full(len(work.first), -1, np.int64), group, other)
    return group, other


# Compiled: from each row it goes back in time, over as many rows as ended within a millisecond; `seen` has the row before
# which a thread was met last. A group ends with its first row before which none is left: of many threads at work few
# are met before two or three rows. Called with columns of no rows it only counts.
@jit
def _list_recent(  # noqa: PLR0913, PLR0917 # columns
    thread: Array,
    end: Array,
    begin: Array,
    last: Array,
    first: Array,
    own: Array,
    from_ns: Array,
    seen: Array,
    group: Array,
    other: Array,
) -> int:
    """List threads of rows ``last``, ``last - 1``, … not before ``begin`` that end at ``from_ns`` or later; count them."""
    count = 0
    for g in range(len(first) - 1):
        for i in range(first[g], first[g + 1]):
            met = False
            k = last[i]
            while k >= begin[i] and end[k] >= from_ns[i]:
                t = thread[k]
                if t != own[i] and (seen[t] == i - 1 if i > first[g] else seen[t] < i):
                    seen[t] = i
                    met = True
                    if i == first[g + 1] - 1:
                        if len(group) > 0:
                            group[count], other[count] = g, t
                        count += 1
                k -= 1
            if not met:
                break
    return count


def _last_places(work: HostWork, rows: Array, thread: Array) -> tuple[Array, Array]:
    """Place of the last row of a thread that had ended before rows of one place in every step.

    Returns
    -------
    before, nth
        If it is one of the step before; its ordinal.
    """
    ends = np.flatnonzero(work.can_end)
    of_thread = np.repeat(thread, rows.shape[1])
    last = preceding_rows(work.thread[ends], work.end[ends], of_thread, work.ts[rows].ravel())
    last = np.append(ends, -1)[last].reshape(rows.shape)
    asked = rows >= 0
    earlier = asked & (work.step[rows] > 0) & (work.step[last] < work.step[rows])
    before = np.logical_or.reduce(earlier, axis=1)
    in_step = asked & (last >= 0) & (work.step[last] == work.step[rows] - before[:, None])
    nth = np.where(in_step, work.ordinal[last], np.iinfo(np.int64).max).min(axis=1)
    return before, nth


def _since_place(
    work: HostWork, rows: Array, place: tuple[Array, Array, Array], wake_ns: int
) -> tuple[Array, Array]:
    """Rows at a thread's place in each step, and how the time since then varies; not a number unless rows may follow.

    Parameters
    ----------
    rows
        In each step, those of one place.
    place
        Thread, ordinal, and if it is one of the step before.
    wake_ns
        Within which time a thread goes on.
    """
    thread, nth, before = place
    exists = (nth >= 0) & (nth < np.diff(work.first_place)[thread])
    cause = np.full(rows.shape, -1)
    cause[exists] = work.row[work.place(thread, nth)[exists]]
    cause[before, 1:] = cause[before, :-1]
    cause[before, 0] = -1
    known = (rows >= 0) & (cause >= 0)
    since = np.where(known, work.ts[rows] - work.end[cause], 0)
    follows = work.can_end[cause] & (since >= 0) & (since <= wake_ns)
    follows &= work.end[cause] > work.since[rows]
    may_follow = (follows | ~known).all(axis=1)
    return cause, _spreads(np.where(known & may_follow[:, None], since, np.nan))
