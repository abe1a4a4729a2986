"""Two runs of one program, matched by order: which step of one is which of the other.

A longest common subsequence keeps the order and loses no step that both have. Where several are as
long, steps stay together: the longest stretches that agree grow at the cost of shorter ones. What
still fits elsewhere as well is not sure and is left out, such as each of three equal steps in a
row where the other run has two. If one run repeats what the other did once, the last repetition
is taken.

The longest common subsequence is that of E. W. Myers, "An O(ND) difference algorithm", 1986.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import sequences
from chopper_interop.compiled import jit

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_MOST_EDITS = 6000
_SLACK = 1024
"""So many steps around the stretch that fits best may belong to it, as steps are missing."""
_RUNS = (32, 16, 8, 4, 2, 1)
_VOTERS, _MOST_VOTES, _CANDIDATES = 1024, 1 << 20, 32
_NEAR = 64
_TOGETHER = 3
"""Shorter stretches amid differences on both sides are taken for chance."""


class Match(NamedTuple):
    """How two runs match."""

    place: Array
    """For each step of the first, its place in the second; -1 if it has none, or not surely."""
    pairs: int
    """Steps that both have in the same order, also those that are not sure."""


def match(a: Array, b: Array) -> Match:
    """Match two sequences of numbers; equal steps have equal numbers."""
    place = np.full(len(a), -1, np.int64)
    mine, theirs = np.flatnonzero(np.isin(a, b)), np.flatnonzero(np.isin(b, a))
    if not mine.size:
        return Match(place, 0)
    x, y = (np.ascontiguousarray(s, np.int64) for s in (a[mine], b[theirs]))
    found = _common(x, y)
    _together(x, y, found)
    pairs = int(np.count_nonzero(found >= 0))
    sure = _sure(x, y, found) & ~_chance(x, y, found)
    place[mine[sure]] = theirs[found[sure]]
    return Match(place, pairs)


def _common(a: Array, b: Array) -> Array:
    """For each element of `a` its place in `b` by a longest common subsequence; -1 for none."""
    place = np.full(len(a), -1, np.int64)
    (low, high), (first, stop) = _stretches(a, b)
    # backwards, so that of equal ones the last is found
    part, other = a[low:high][::-1].copy(), b[first:stop][::-1].copy()
    found = _edits(part, other, _MOST_EDITS)
    if found.size != part.size:
        found = sequences.align(part, other)
    found = found[::-1]
    place[low:high] = np.where(found >= 0, stop - 1 - found, -1)
    return place


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
    """Where in the longer `a` the beginning of `b` fits best; the last of equal places."""
    for size in _RUNS:
        runs, others = _hashes(a, size), _hashes(b, size)
        shared = np.intersect1d(runs, others)
        if shared.size:
            break
    else:
        return 0
    values, counts = np.unique(others[np.isin(others, shared)], return_counts=True)
    rare = values[np.argsort(counts, kind="stable")[:_VOTERS]]
    mine, theirs = np.flatnonzero(np.isin(runs, rare)), np.flatnonzero(np.isin(others, rare))
    step = max(1, len(mine) // _MOST_VOTES)
    mine = mine[::step]
    order = np.argsort(others[theirs], kind="stable")
    at = theirs[order][np.searchsorted(others[theirs][order], runs[mine])]
    offsets, votes = np.unique(mine - at, return_counts=True)
    best = offsets[np.argsort(votes, kind="stable")[::-1][:_CANDIDATES]]
    agreed = [(_agreeing(a, b, int(d)), int(d)) for d in best]
    return max(agreed)[1]


def _agreeing(a: Array, b: Array, at: int) -> int:
    """How many elements agree if `b` begins at this place of `a`."""
    low, high = max(at, 0), min(at + len(b), len(a))
    return int(np.count_nonzero(a[low:high] == b[low - at : high - at])) if low < high else 0


def _hashes(x: Array, size: int) -> Array:
    """A number for each run of so many elements: equal ones for equal runs."""
    mixed = x.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    n = max(len(x) - size + 1, 0)
    made = np.zeros(n, np.uint64)
    for k in range(size):
        made = made * np.uint64(0xBF58476D1CE4E5B9) + mixed[k : k + n]
    return made


@jit
def _edits(a: Array, b: Array, most: int) -> Array:
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
def _is_right(reached: Array, zero: int, k: int, d: int, n: int, m: int) -> bool:
    """Whether the furthest way to a diagonal leaves out an element of the first."""
    right = reached[zero + k - 1] + 1 if k > -d and reached[zero + k - 1] >= 0 else -1
    down = reached[zero + k + 1] if k < d else -1
    right = right if right <= n else -1
    down = down if down - k <= m else -1
    return right > down


@jit
def _step(reached: Array, zero: int, k: int, d: int, n: int, m: int) -> int:
    """Where a diagonal is entered with one more edit; -1 if it is out of reach."""
    right = reached[zero + k - 1] + 1 if k > -d and reached[zero + k - 1] >= 0 else -1
    down = reached[zero + k + 1] if k < d else -1
    right = right if right <= n else -1
    down = down if down - k <= m else -1
    return max(right, down)


@jit
def _together(a: Array, b: Array, place: Array) -> None:
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
def _sure(a: Array, b: Array, place: Array) -> Array:
    """Which pairs fit nowhere else."""
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
    for k in range(count):
        for side in range(2):
            x, at = (a, mine) if side == 0 else (b, theirs)
            gap = at[k + 1] - at[k] - 1
            if gap == 0:
                continue
            ends = k == 0 or k == count - 1
            alike = _alike(x, at[k] + 1, at[k + 1])
            before, after = 0, 0
            if not ends or alike:
                while k - before > 0 and _moves(x, at, k - before, gap, k, 1):
                    before += 1
                while k + 1 + after < count and _moves(x, at, k + 1 + after, -gap, k + 1, -1):
                    after += 1
            moved = before + after
            repeats = moved >= gap and not alike
            if moved and not repeats and (moved < total):
                for c in range(k - before + 1, k + 1 + after):
                    sure[mine[c]] = False
            if not ends and gap <= _NEAR and not repeats:
                for c in (k, k + 1):
                    if _occurs(x, at[k] + 1, at[k + 1], x[at[c]]):
                        sure[mine[c]] = False
    return sure


@jit
def _moves(x: Array, at: Array, c: int, by: int, edge: int, step: int) -> bool:
    """Whether a pair next to a gap, and all between, could stand on its other side."""
    if at[c] != at[edge] - step * abs(c - edge):  # not in one stretch with the edge
        return False
    return bool(x[at[c]] == x[at[c] + by])


@jit
def _alike(x: Array, first: int, stop: int) -> bool:
    for i in range(first + 1, stop):
        if x[i] != x[first]:
            return False
    return True


@jit
def _occurs(x: Array, first: int, stop: int, value: int) -> bool:
    for i in range(first, stop):
        if x[i] == value:
            return True
    return False


def _chance(a: Array, b: Array, place: Array) -> Array:
    """Pairs of few steps that stand alone amid differences, and are not the only of their kind."""
    chance = np.zeros(len(a), np.bool_)
    at = np.flatnonzero(place >= 0)
    if not at.size:
        return chance
    both = (np.diff(at) > 1) & (np.diff(place[at]) > 1)
    cut = (np.diff(at) > 1) | (np.diff(place[at]) > 1)
    stretch = np.concatenate([[0], np.cumsum(cut)])
    size = np.bincount(stretch)[stretch]
    lonely = np.concatenate([[False], both]) | np.concatenate([both, [False]])
    amid = np.bincount(stretch, lonely)[stretch] > 1
    keys, counts = np.unique(np.concatenate([a, b]), return_counts=True)
    single = counts[np.searchsorted(keys, a[at])] == 2  # once in each
    chance[at] = (size < _TOGETHER) & amid & ~single
    return chance
