"""Two sequences of the same program's steps, aligned: which step of one is which of the other.

First the stretch of the longer that the shorter fits best is found, by the offset for which most
rare short runs vote. Within it, runs that occur once in both are anchors, of which the longest
chain in order is kept (as patience sorting does); anchors are extended as far as both agree, and
what is left between them is aligned by longest common subsequence within a band. Cost grows
almost linearly with the lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

_RUNS = (32, 16, 8, 4, 2, 1)
LONGER = 1.25
"""From here on one sequence is longer than the other, and a stretch of it is looked for."""
_VOTERS, _MOST_VOTES, _ENOUGH = 4096, 1 << 21, 4
_CELLS = 1 << 26
"""Steps of a longest common subsequence that are looked at in one go."""
_BOTH, _OF_A, _OF_B = 1, 2, 3


def align(a: Array, b: Array) -> Array:
    """For each element of `a`, its place in `b`; -1 if it has none. Places ascend.

    Parameters
    ----------
    a, b
        Sequences of numbers; equal steps have equal numbers.
    """
    place = np.full(len(a), -1, np.int64)
    if not len(a) or not len(b):
        return place
    low, high, first, stop = 0, len(b), 0, len(a)
    if max(len(a), len(b)) > LONGER * min(len(a), len(b)):
        start, end = _offsets(a, b)
        low, high = max(start, 0), max(min(len(b), end + len(a)), 0)
        first, stop = max(-end, 0), max(min(len(a), len(b) - start), 0)
    if low >= high or first >= stop:
        return place
    part, other = a[first:stop], b[low:high]
    found = np.full(len(part), -1, np.int64)
    _extend(part, other, found, *_anchors(part, other))
    _fill(part, other, found, _CELLS)
    place[first:stop] = np.where(found >= 0, found + low, -1)
    return place


def likeness(a: Array, b: Array) -> int:
    """How many pairs of neighbours both sequences have."""
    return common(runs_of(a, 2), runs_of(b, 2))


def common(a: Array, b: Array) -> int:
    """How many elements both have, whatever their order."""
    values, counts = np.unique(a, return_counts=True)
    others, counts_2 = np.unique(b, return_counts=True)
    _, at, at_2 = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[at], counts_2[at_2]).sum())


def runs_of(x: Array, size: int) -> Array:
    """A number for each run of so many elements: equal ones for equal runs."""
    mixed = x.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    n = max(len(x) - size + 1, 0)
    made = np.zeros(n, np.uint64)
    for k in range(size):
        made = made * np.uint64(0xBF58476D1CE4E5B9) + mixed[k : k + n]
    return made


def _offsets(a: Array, b: Array) -> tuple[int, int]:
    """Between which offsets of `b` against `a` they agree best; the first of equal ones."""
    votes = np.zeros(1, np.int64)
    for size in _RUNS:
        runs, others = runs_of(a, size), runs_of(b, size)
        values, counts = np.unique(runs, return_counts=True)
        there = np.isin(values, others)
        if not there.any():
            continue
        rare = values[there & (counts == counts[there].min())]
        rare = rare[:: max(1, len(rare) // _VOTERS)]
        votes = votes_of(runs, others, rare)
        if len(rare) >= _ENOUGH:
            break
    width = max(8, min(len(a), len(b)) // 64)
    bins, counts = np.unique(votes // width, return_counts=True)
    behind = np.searchsorted(bins, bins + 1)
    next_ = np.minimum(behind, len(bins) - 1)
    both = counts + np.where(bins[next_] == bins + 1, counts[next_], 0)
    best = int(bins[both.argmax()])
    return (best - 1) * width, (best + 3) * width


def votes_of(runs: Array, others: Array, rare: Array) -> Array:
    """Offsets of `others` against `runs`, of all pairs of places at which both have a rare run."""
    mine = np.flatnonzero(np.isin(runs, rare))
    order = np.argsort(others, kind="stable")
    ordered = others[order]
    low, high = (np.searchsorted(ordered, runs[mine], side) for side in ("left", "right"))
    pairs = high - low
    step = max(1, int(pairs.sum()) // _MOST_VOTES)
    mine, low, pairs = mine[::step], low[::step], pairs[::step]
    start = np.repeat(low, pairs)
    within = np.arange(len(start)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    return order[start + within] - np.repeat(mine, pairs)


def _anchors(a: Array, b: Array) -> tuple[Array, Array]:
    """Places of runs that occur once in each, the longest chain of them in order."""
    for size in _RUNS[1:]:
        runs, others = runs_of(a, size), runs_of(b, size)
        once, at = _once(runs)
        once_2, at_2 = _once(others)
        _, i, j = np.intersect1d(once, once_2, assume_unique=True, return_indices=True)
        if len(i):
            order = np.argsort(at[i])
            i, j = at[i][order], at_2[j][order]
            kept = chain(j)
            return i[kept], j[kept]
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _once(runs: Array) -> tuple[Array, Array]:
    values, at, counts = np.unique(runs, return_index=True, return_counts=True)
    return values[counts == 1], at[counts == 1]


@jit
def chain(values: Array) -> Array:
    """Places of a longest ascending subsequence."""
    n = len(values)
    tails = np.empty(n, np.int64)
    before = np.full(n, -1, np.int64)
    length = 0
    for i in range(n):
        low, high = 0, length
        while low < high:
            middle = (low + high) // 2
            if values[tails[middle]] < values[i]:
                low = middle + 1
            else:
                high = middle
        before[i] = tails[low - 1] if low else -1
        tails[low] = i
        length = max(length, low + 1)
    kept = np.empty(length, np.int64)
    i = tails[length - 1] if length else -1
    for k in range(length - 1, -1, -1):
        kept[k] = i
        i = before[i]
    return kept


@jit
def _extend(a: Array, b: Array, place: Array, at: Array, at_2: Array) -> None:
    """Take anchors over, and what follows and precedes each as long as both agree."""
    reached = -1  # in b
    for k in range(len(at)):
        i, j = at[k], at_2[k]
        if place[i] >= 0 or j <= reached:
            continue
        place[i] = j
        back, other = i - 1, j - 1
        while back >= 0 and other > reached and place[back] < 0 and a[back] == b[other]:
            place[back] = other
            back, other = back - 1, other - 1
        last = at[k + 1] if k + 1 < len(at) else len(a)
        last_2 = at_2[k + 1] if k + 1 < len(at) else len(b)
        i, j = i + 1, j + 1
        while i < last and j < last_2 and a[i] == b[j]:
            place[i] = j
            i, j = i + 1, j + 1
        reached = j - 1


@jit
def _fill(a: Array, b: Array, place: Array, cells: int) -> None:
    """Align what is left between places that are known."""
    i, reached = 0, -1
    while i < len(a):
        if place[i] >= 0:
            reached = place[i]
            i += 1
            continue
        stop = i
        while stop < len(a) and place[stop] < 0:
            stop += 1
        end = place[stop] if stop < len(a) else len(b)
        _subsequence(a, i, stop, b, reached + 1, end, place, cells)
        i = stop


@jit
def _subsequence(  # noqa: C901, PLR0912, PLR0913, PLR0917 # one loop over columns
    a: Array, first: int, stop: int, b: Array, low: int, high: int, place: Array, cells: int
) -> None:
    """A longest common subsequence of two stretches, near to their diagonal if they are long."""
    n, m = stop - first, high - low
    if n == 0 or m <= 0:
        return
    half = min(m, max(16, cells // (2 * n + 2)))
    width = min(m, 2 * half) + 1
    step = np.zeros(
        (n + 1, width), np.uint8
    )  # what comes last: an element of both, or one of a or b alone
    before = np.zeros(width + 1, np.int32)
    now = np.zeros(width + 1, np.int32)
    start_before = 0
    for i in range(n + 1):
        start = min(max(i * m // n - half, 0), m + 1 - width)
        for c in range(width):
            j = start + c
            best, how = 0, 0
            if i and start_before <= j < start_before + width:
                best, how = before[j - start_before], _OF_A
            if c and now[c - 1] >= best:
                best, how = now[c - 1], _OF_B
            inside = i and j and start_before <= j - 1 < start_before + width
            if inside and a[first + i - 1] == b[low + j - 1]:
                both = before[j - 1 - start_before] + 1
                if both >= best:
                    best, how = both, _BOTH
            now[c], step[i, c] = best, how
        before, now = now, before
        start_before = start
    i, j = n, m
    while i > 0 or j > 0:
        start = min(max(i * m // n - half, 0), m + 1 - width)
        if not start <= j < start + width:
            return
        how = step[i, j - start]
        if how == _BOTH:
            place[first + i - 1] = low + j - 1
            i, j = i - 1, j - 1
        elif how == _OF_A:
            i -= 1
        elif how == _OF_B:
            j -= 1
        else:
            return
