"""Host threads that wait for room, or for the next item, in a queue between them: a loader that is some batches ahead.

The thread that is waited for goes on with its own work at once, so that neither rests for the other. Repetition shows
the wait::

    trainer   [ take 1 ][ step ]       [ take 2 ][ step        ]      [ take 3 ] …
    loader    [ load 3 ]    rests         [ load 4 ]      rests          [ load 5 ] …     two batches of room

Each load that the loader had rested for follows a take, always as many loads for as many takes, and as soon as a thread
wakes, however long the rest and the turn were; and no load begins before the take that makes its room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import preceding_rows
from chopper_interop.arrays.statistics import lower_medians
from chopper_interop.edges.handover_steps import BACK, MIN_RESTS, recent_threads

if TYPE_CHECKING:
    from chopper_interop.edges.handover_steps import HostWork

_STEADIER = 6
"""By how many times rests and turns must vary more than the time behind the cause, of `MIN_RESTS`. Measured: of 6,000
simulated pairs of threads that compute in lockstep or freely, 5 have a wait by chance (by the rests alone 11; with 3 of
them and 3 times 243 of 4,500, with 5 and 5 13 of 6,000)."""


class _Places(NamedTuple):
    """Rows by what is repeated: those of a thread of one name behind rows of one name.

    Parameters
    ----------
    place
        Number of each row's place.
    ordinal
        How many rows of its place are before each row.
    first, rows
        Place p has the rows ``rows[first[p]:first[p + 1]]``.
    """

    place: Array
    ordinal: Array
    first: Array
    rows: Array


class _Pairs(NamedTuple):
    """Rows and rows of another thread that they may have followed, by the numbers of their places together.

    Parameters
    ----------
    number
        Of both places, ascending from 0.
    row, cause
        In order of time.
    """

    number: Array
    row: Array
    cause: Array

    @property
    def begin(self) -> Array:
        """First row of each number."""
        return np.flatnonzero(np.diff(self.number, prepend=-1))


def sources_by_turns(work: HostWork, possible: Array, wake_ns: int) -> Array:
    """Find rows of other threads that rows followed whenever their thread had rested; -1 for none.

    Parameters
    ----------
    work
        What host threads did.
    possible
        Mask of rows whose thread may have waited for another: it was idle.
    wake_ns
        Within which time a thread goes on.
    """
    result = np.full(len(work.ts), -1, np.int64)
    has_others = (work.stop - work.first)[work.thread] > 1
    rests = np.flatnonzero(possible & has_others)
    places = _places_of(work)
    count = np.bincount(places.place[rests], minlength=len(places.first))
    rests = rests[count[places.place[rests]] >= MIN_RESTS]
    pairs = _repeated_pairs(work, places, rests, wake_ns)
    if not pairs.row.size:  # as in most traces, which then need no medians
        return result
    spread = _spreads(pairs.number, work.ts[pairs.row] - work.end[pairs.cause])
    own_spread = _spreads(pairs.number, work.ts[pairs.row] - work.since[pairs.row])
    own_spread = np.minimum(own_spread, _period_spreads(work, places, pairs))
    proven = (_STEADIER * spread < own_spread) & _are_in_turn(work, places, pairs)
    row, cause = (values[proven[pairs.number]] for values in (pairs.row, pairs.cause))
    by_end = np.argsort(work.end[cause], kind="stable")  # of several the last is written last
    result[row[by_end]] = cause[by_end]
    return result


def _places_of(work: HostWork) -> _Places:
    """Places of all rows."""
    before = np.full(len(work.ts), -1, np.int64)
    by_thread = np.argsort(work.thread, kind="stable")
    same = np.diff(work.thread[by_thread]) == 0
    before[by_thread[1:][same]] = work.name[by_thread[:-1][same]]
    of_place, place = gather.distinct(work.thread, work.name, before)
    first, rows = gather.group_rows(place, len(of_place))
    ordinal = np.empty(len(place), np.int64)
    ordinal[rows] = np.arange(len(rows)) - first[place[rows]]
    return _Places(place, ordinal, first, rows)


def _repeated_pairs(work: HostWork, places: _Places, rests: Array, wake_ns: int) -> _Pairs:
    """Pairs of places of which every row of the one that rested may have followed one of the other."""
    rests = rests[np.argsort(places.place[rests], kind="stable")]
    begin = np.flatnonzero(np.diff(places.place[rests], prepend=-1))
    count = np.diff(begin, append=len(rests))
    line, other = recent_threads(work, rests, np.append(begin, len(rests)), wake_ns)
    row = rests[_ranges(begin[line], count[line])]
    other = np.repeat(other, count[line])
    ends = np.flatnonzero(work.can_end)
    ends = ends[np.lexsort((work.end[ends], work.thread[ends]))]
    last = preceding_rows(work.thread[ends], work.end[ends], other, work.ts[row])
    tried = [np.where(last >= back, ends[np.maximum(last - back, 0)], -1) for back in range(BACK)]
    row, cause = np.tile(row, BACK), np.concatenate(tried)
    # an earlier row: of two that take no time, at one time, each would follow the other
    follows = (cause >= 0) & (cause < row)
    follows &= work.thread[cause] == np.tile(other, BACK)
    follows &= (work.end[cause] > work.since[row]) & (work.ts[row] - work.end[cause] <= wake_ns)
    row, cause = row[follows], cause[follows]
    # of several rows of one place the last
    last, _ = gather.distinct(row, places.place[cause])
    row, cause = row[last], cause[last]
    of_number, number = gather.distinct(places.place[row], places.place[cause])
    rested = np.bincount(places.place[rests], minlength=len(places.first))
    every = (np.bincount(number) == rested[places.place[row[of_number]]])[number]
    row, cause = row[every], cause[every]
    _, number = gather.distinct(number[every])
    order = np.lexsort((row, number))
    return _Pairs(number[order], row[order], cause[order])


def _ranges(begin: Array, count: Array) -> Array:
    """Numbers from each of `begin` on, `count` of each, one after the other."""
    return np.repeat(begin - np.cumsum(count) + count, count) + np.arange(count.sum())


def _spreads(number: Array, values: Array) -> Array:
    """Mean distance from the median of the values of each number."""
    count = np.bincount(number)
    distance = np.abs(values - lower_medians(number, values, len(count))[number])
    return np.bincount(number, distance) / count


def _period_spreads(work: HostWork, places: _Places, pairs: _Pairs) -> Array:
    """`_spreads` of the time for one turn: a thread that a timer wakes goes on in turn with others of as long a period."""
    same = np.flatnonzero(np.diff(pairs.number) == 0)
    time, turns = (np.diff(of[pairs.row])[same] for of in (work.ts, places.ordinal))
    return _spreads(pairs.number[same], time // turns)


#   ordinal of rests at their place   4   5     7         steps 1, 2: period 1
#   ordinal of causes at theirs       2   4     8         steps 2, 4: period 2, as 2 of them go with each row
#                                           6             the row between did not rest: it must not begin before the end of this
def _are_in_turn(work: HostWork, places: _Places, pairs: _Pairs) -> Array:
    """Mark numbers of pairs that skip as many rows as causes, and of which no row began before its cause."""
    begin = pairs.begin
    steps = [np.diff(places.ordinal[of], prepend=0) for of in (pairs.row, pairs.cause)]
    for step in steps:
        step[begin] = 0
    of_row, of_cause = (np.gcd.reduceat(step, begin) for step in steps)
    in_turn = steps[0] * of_cause[pairs.number] == steps[1] * of_row[pairs.number]
    result = np.logical_and.reduceat(in_turn, begin)
    row, cause = pairs.row[begin], pairs.cause[begin]
    first, size = places.first[:-1], np.where(result, np.diff(places.first)[places.place[row]], 0)
    number = np.repeat(np.arange(len(begin)), size)
    repeated = places.rows[_ranges(first[places.place[row]], size)]
    turns = places.ordinal[repeated] - places.ordinal[row][number]
    # one between two turns is behind the cause of the first
    nth = places.ordinal[cause][number] + turns // of_row[number] * of_cause[number]
    of_place = places.place[cause][number]
    has_cause = (nth >= 0) & (nth < np.diff(places.first)[of_place])
    awaited = places.rows[(first[of_place] + nth)[has_cause]]
    early = work.ts[repeated[has_cause]] < work.end[awaited]
    result[number[has_cause][early]] = False
    return result
