"""Two runs of one program, matched by order: which step of one is which of the other.

A longest common subsequence keeps the order and loses no step that both have. Where several are as
long, steps stay together: the longest stretches that agree grow at the cost of shorter ones. What
still fits elsewhere as well is not sure and is left out, such as each of three equal steps in a
row where the other run has two. If one run repeats what the other did once, the last repetition
is taken.

The longest common subsequence is that of E. W. Myers, "An O(ND) difference algorithm", 1986.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns import sequences
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

_MOST_EDITS = 6000
_SLACK = 1024
"""So many steps around the stretch that fits best may belong to it, as steps are missing."""
_RUNS = (32, 16, 8, 4, 2, 1)
_MOST_VOTES, _NEARLY = 1 << 20, 0.98
_PIECE, _KEPT = 16384, 12288
_NEAR = 64
_TOGETHER, _APART = 3, 2
"""Stretches that are shorter, or differences so many times as long, are taken for chance."""


class Match(NamedTuple):
    """How two runs match."""

    place: Array
    """For each step of the first, its place in the second; -1 if it has none, or not surely."""
    pairs: int
    """Steps that both have in the same order, also those that are not sure."""
    repeated: bool
    """Whether what is matched fits as well one or several repetitions earlier or later."""


def match(a: Array, b: Array) -> Match:
    """Match two sequences of numbers; equal steps have equal numbers."""
    place = np.full(len(a), -1, np.int64)
    mine, theirs = np.flatnonzero(np.isin(a, b)), np.flatnonzero(np.isin(b, a))
    if not mine.size:
        return Match(place, 0, repeated=False)
    x, y = (np.ascontiguousarray(s, np.int64) for s in (a[mine], b[theirs]))
    found = _common(x, y)
    _together(x, y, found)
    pairs = int(np.count_nonzero(found >= 0))
    sure, repeated = _sure(x, y, found)
    sure &= ~_chance(x, y, found)
    place[mine[sure]] = theirs[found[sure]]
    return Match(place, pairs, bool(repeated))


def _common(a: Array, b: Array) -> Array:
    """For each element of `a` its place in `b` by a longest common subsequence; -1 for none.

    If one is longer by far, it is searched for the stretch that fits, and as a whole if that does
    not have all of the shorter: what is missing may be missing here and there.
    """
    whole = (0, len(a)), (0, len(b))
    stretches = _stretches(a, b)
    place = _common_within(a, b, *stretches)
    pairs = np.count_nonzero(place >= 0)
    if stretches == whole or pairs == min(len(a), len(b)):
        return place
    other = _common_within(a, b, *whole)
    return other if np.count_nonzero(other >= 0) > pairs else place


def _common_within(a: Array, b: Array, mine: tuple[int, int], theirs: tuple[int, int]) -> Array:
    place = np.full(len(a), -1, np.int64)
    (low, high), (first, stop) = mine, theirs
    # backwards, so that of equal ones the last is found
    part, other = a[low:high][::-1].copy(), b[first:stop][::-1].copy()
    found = _edits(part, other, _MOST_EDITS)
    if found.size != part.size:
        found = _in_pieces(part, other)
    found = found[::-1]
    place[low:high] = np.where(found >= 0, stop - 1 - found, -1)
    return place


def _in_pieces(a: Array, b: Array) -> Array:
    """As `_edits`, piece by piece, of each of which the end is left to the next."""
    found = np.full(len(a), -1, np.int64)
    i = j = 0
    while i < len(a) and j < len(b):
        left, left_2 = len(a) - i, len(b) - j  # what is missing is so evenly
        size, size_2 = (max(_PIECE * x // max(left, left_2), 1) for x in (left, left_2))
        part, other = a[i : i + size], b[j : j + size_2]
        place = _edits(part, other, _MOST_EDITS)
        if place.size != part.size:
            place = sequences.align(part, other)
        ends = i + size >= len(a) or j + size_2 >= len(b)
        kept = len(part) if ends else max(size * _KEPT // _PIECE, 1)
        place = place[:kept]
        found[i : i + kept] = np.where(place >= 0, place + j, -1)
        i, j = i + kept, j + int(place.max(initial=-1)) + 1
    return found


def _stretches(a: Array, b: Array) -> tuple[tuple[int, int], tuple[int, int]]:
    """The stretch of each within which the other lies."""
    n, m = len(a), len(b)
    if abs(n - m) <= _SLACK:
        return (0, n), (0, m)
    if n < m:
        theirs, ours = _stretches(b, a)
        return ours, theirs
    at = _offset(a, b)
    low, high = max(at - _SLACK, 0), min(at + m + _SLACK, n)
    return (low, high), (max(-at - _SLACK, 0), m)


def _offset(a: Array, b: Array) -> int:
    """Where in the longer `a` the beginning of `b` fits best; the last of equal places.

    Runs of steps that are rare in both vote for offsets; as steps are missing, those near to each
    other are of one place.
    """
    for size in _RUNS:
        runs, others = sequences.runs_of(a, size), sequences.runs_of(b, size)
        shared = np.intersect1d(runs, others)
        if shared.size:
            break
    else:
        return 0
    counts = np.bincount(np.searchsorted(shared, runs[np.isin(runs, shared)]))
    counts *= np.bincount(np.searchsorted(shared, others[np.isin(others, shared)]))
    rarest = np.argsort(counts, kind="stable")
    kept = max(int(np.searchsorted(np.cumsum(counts[rarest]), _MOST_VOTES)), 1)
    told = -sequences.votes_of(runs, others, shared[rarest[:kept]])
    offsets, votes = np.unique(told, return_counts=True)
    inside = (offsets >= -_SLACK) & (offsets <= len(a) - len(b) + _SLACK)
    if inside.any():
        offsets, votes = offsets[inside], votes[inside]
    total = np.concatenate([[0], np.cumsum(votes)])
    low = np.searchsorted(offsets, offsets - _SLACK // 2)
    high = np.searchsorted(offsets, offsets + _SLACK // 2, "right")
    around = total[high] - total[low]
    last = int(np.flatnonzero(around >= _NEARLY * around.max())[-1])
    most = int(low[last] + np.argmax(votes[low[last] : high[last]]))
    return int(offsets[most])


@jit
def _edits(a: Array, b: Array, most: int) -> Array:  # noqa: C901, PLR0912 # one loop
    """Places in `b` by the fewest insertions and deletions; empty if these are more than `most`."""
    n, m = len(a), len(b)
    reached = np.full(2 * most + 3, -1, np.int64)  # how far in a, by diagonal
    rows = np.empty(1024, np.int32)
    zero = most + 1
    last = -1
    for d in range(most + 1):
        begin = d * (d + 1) // 2
        if begin + d + 1 > len(rows):
            larger = np.empty(2 * (begin + d + 1), np.int32)
            larger[:begin] = rows[:begin]
            rows = larger
        for k in range(-d, d + 1, 2):
            x = 0 if d == 0 else _step(reached, zero, k, d, n, m)
            while 0 <= x < n and x - k < m and a[x] == b[x - k]:
                x += 1
            reached[zero + k] = x
            if x >= n and x - k >= m:
                last = d
        for c in range(d + 1):
            rows[begin + c] = reached[zero - d + 2 * c]
        if last >= 0:
            break
    if last < 0:
        return np.empty(0 if n else 1, np.int64)
    place = np.full(n, -1, np.int64)
    x, y = n, m
    for d in range(last, 0, -1):
        k = x - y
        before = np.int64(d - 1) * d // 2
        for c in range(d):
            reached[zero - (d - 1) + 2 * c] = rows[before + c]
        start = _step(reached, zero, k, d, n, m)
        while x > start:
            x, y = x - 1, y - 1
            place[x] = y
        right = k > -d and reached[zero + k - 1] >= 0 and reached[zero + k - 1] + 1 == start
        down = k < d and reached[zero + k + 1] == start
        if right and not (down and not _is_right(reached, zero, k, d, n, m)):
            x -= 1
        else:
            y -= 1
    while x > 0 and y > 0:
        x, y = x - 1, y - 1
        place[x] = y
    return place


@jit
def _is_right(  # all numbers of one loop
    reached: Array, zero: int, k: int, d: int, n: int, m: int
) -> bool:
    """Whether the furthest way to a diagonal leaves out an element of the first."""
    right = reached[zero + k - 1] + 1 if k > -d and reached[zero + k - 1] >= 0 else -1
    down = reached[zero + k + 1] if k < d else -1
    right = right if right <= n else -1
    down = down if down - k <= m else -1
    return right > down


@jit
def _step(  # all numbers of one loop
    reached: Array, zero: int, k: int, d: int, n: int, m: int
) -> int:
    """Where a diagonal is entered with one more edit; -1 if it is out of reach."""
    right = reached[zero + k - 1] + 1 if k > -d and reached[zero + k - 1] >= 0 else -1
    down = reached[zero + k + 1] if k < d else -1
    right = right if right <= n else -1
    down = down if down - k <= m else -1
    return max(right, down)


@jit
def _together(  # noqa: C901, PLR0912 # one loop over columns
    a: Array, b: Array, place: Array
) -> None:
    """Move pairs so that the longest stretches that agree are as long as can be."""
    n, m = len(a), len(b)
    back = np.full(m, -1, np.int64)
    begin = np.empty(n, np.int64)
    size = np.zeros(n, np.int64)
    runs = 0
    for i in range(n):
        if place[i] < 0:
            continue
        back[place[i]] = i
        if i and place[i - 1] >= 0 and place[i - 1] + 1 == place[i]:
            size[runs - 1] += 1
        else:
            begin[runs], size[runs] = i, 1
            runs += 1
    taken, taken_2 = np.zeros(n, np.bool_), np.zeros(m, np.bool_)
    target = place.copy()
    for r in np.argsort(-size[:runs]):
        first, stop = begin[r], begin[r] + size[r]
        while first < stop and (taken[first] or place[first] != target[first]):
            first += 1
        while first < stop and (taken[stop - 1] or place[stop - 1] != target[stop - 1]):
            stop -= 1
        if first == stop:
            continue
        shift = target[first] - first
        for i in range(first, stop):
            taken[i], taken_2[i + shift] = True, True
        for step in (-1, 1):
            i = first - 1 if step < 0 else stop
            while 0 <= i < n and 0 <= i + shift < m and a[i] == b[i + shift]:
                j = i + shift
                if taken[i] or taken_2[j]:
                    break
                if place[i] >= 0:
                    back[place[i]] = -1
                if back[j] >= 0:
                    place[back[j]] = -1
                place[i], back[j] = j, i
                taken[i], taken_2[j] = True, True
                i += step


@jit
def _sure(  # noqa: C901, PLR0912 # one loop over gaps
    a: Array, b: Array, place: Array
) -> tuple[Array, bool]:
    """Which pairs fit nowhere else, and whether repetitions were taken for the last of them.

    A repetition fits elsewhere, but as a whole. That is taken where it is the only difference, or
    where one run is longer by half; else what is missing besides may as well be of the same hole.
    """
    n = len(a)
    sure = place >= 0
    mine, theirs = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    mine[0], theirs[0] = -1, -1
    count = 1
    for i in range(n):
        if place[i] >= 0:
            mine[count], theirs[count] = i, place[i]
            count += 1
    mine[count], theirs[count] = n, len(b)
    total = count - 1
    gaps = np.count_nonzero(np.diff(mine[: count + 1]) > 1)
    gaps += np.count_nonzero(np.diff(theirs[: count + 1]) > 1)
    longer = max(n, len(b)) - total >= total // 2
    repeated = False
    for k in range(count):
        for side in range(2):
            x, at = (a, mine) if side == 0 else (b, theirs)
            gap = at[k + 1] - at[k] - 1
            if gap == 0:
                continue
            ends = k == 0 or k == count - 1
            alike = _alike(x, at[k] + 1, at[k + 1])
            before, after = _movable(x, at, k, count, gap)
            moved = before + after
            whole = max(before, after) == total and not alike
            repeats = moved >= gap and not alike
            exempt = (repeats and gaps == 1) or (longer and ends and not alike)
            repeated = repeated or exempt or whole or _repeats(x, at, k, count, gap)
            if whole:  # what is next to the gap alone may be of the other side
                while before > 0 and at[k - before + 1] != at[k] - before + 1:
                    before -= 1
                while after > 0 and at[k + after] != at[k + 1] + after - 1:
                    after -= 1
            if moved and not exempt and (before + after < total):
                for c in range(k - before + 1, k + 1 + after):
                    sure[mine[c]] = False
            if not ends and gap <= _NEAR and not exempt:
                for c in (k, k + 1):
                    if _occurs(x, at[k] + 1, at[k + 1], x[at[c]]):
                        sure[mine[c]] = False
    return sure, repeated


@jit
def _repeats(x: Array, at: Array, k: int, count: int, gap: int) -> bool:
    """Whether pairs next to a gap could stand elsewhere in it, as many as they move by or more."""
    for by in range(_TOGETHER, gap + 1):
        before, after = _movable(x, at, k, count, by)
        if before >= by or after >= by:
            return True
    return False


@jit
def _movable(x: Array, at: Array, k: int, count: int, by: int) -> tuple[int, int]:
    """How many pairs before a gap, and after it, could stand so much further into it."""
    before, after = 0, 0
    while k - before > 0 and x[at[k - before]] == x[at[k - before] + by]:
        before += 1
    while k + 1 + after < count and x[at[k + 1 + after]] == x[at[k + 1 + after] - by]:
        after += 1
    return before, after


@jit
def _alike(x: Array, first: int, stop: int) -> bool:
    """Whether all of a stretch are equal."""
    return bool(np.all(x[first:stop] == x[first]))


@jit
def _occurs(x: Array, first: int, stop: int, value: int) -> bool:
    """Whether a value is in a stretch."""
    return bool(np.any(x[first:stop] == value))


def _chance(a: Array, b: Array, place: Array) -> Array:
    """Short stretches between differences that are larger, which so much else fits as well.

    Not those whose steps are the only ones of their kind in one of the runs.
    """
    chance = np.zeros(len(a), np.bool_)
    at = np.flatnonzero(place >= 0)
    if not at.size:
        return chance
    gap = np.maximum(np.diff(at), np.diff(place[at])) - 1
    stretch = np.concatenate([[0], np.cumsum(gap > 0)])
    size = np.bincount(stretch)
    around = np.concatenate([[0], gap[gap > 0], [0]])  # nothing is told by where a run begins
    least = np.minimum(around[:-1], around[1:])
    alone = (size < _TOGETHER) & (least >= _TOGETHER) | (least >= _APART * size)
    once = np.isin(a, _single(a)) | np.isin(a, _single(b))
    chance[at] = alone[stretch] & (least > 0)[stretch] & ~once[at]
    return chance


def _single(x: Array) -> Array:
    """Values that occur once."""
    values, counts = np.unique(x, return_counts=True)
    found: Array = values[counts == 1]
    return found
