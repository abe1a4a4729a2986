"""Alignment of two sequences of the same program's steps: which of one is which of the other.

1. The part of the longer sequence that the shorter fits best is found: rare runs of steps vote for
   the offset at which both have them.
2. Within it, runs that occur once in both are anchors. The longest chain of anchors that ascends in
   both is taken (as patience sorting does), and each anchor is extended as far as both agree.
3. What is left between anchors is aligned by longest common subsequence, within a band.

::

    a   x y [p q r] y  z [s t u] v
    b     y [p q r] w  w [s t u] v       anchors in brackets; v extends the second one

Cost grows almost linearly with the lengths.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit

_RUN_LENGTHS = (32, 16, 8, 4, 2, 1)
"""Elements of the runs that are compared, the longest first: long runs are rarer, short ones
occur in sequences that differ more (chosen)."""
MAX_LENGTH_RATIO = 1.25
"""Ratio of lengths beyond which only a part of the longer sequence is aligned (chosen: two
recordings of the same steps differ by less)."""
_MAX_VOTERS, _MAX_VOTES, _MIN_VOTERS = 4096, 1 << 21, 4
"""Rare runs that vote for an offset, votes in all, and rare runs that suffice (chosen: the limits
bound time and memory, far above what determines an offset)."""
_MAX_CELLS = 1 << 26
"""Cells of the table of a longest common subsequence: its bytes (chosen: 64 MiB)."""
_MIN_HALF_BAND = 16
"""Cells to each side of the diagonal that are looked at, at least, in a part of any length (chosen: a short
part is then compared completely)."""
_BOTH, _OF_A, _OF_B = 1, 2, 3
"""Last step of a common subsequence: an element of both, of `a` alone, of `b` alone."""


def align(a: Array, b: Array) -> Array:
    """Index in `b` of each element of `a`, -1 for none; indices ascend.

    Parameters
    ----------
    a, b
        Sequences of numbers; equal steps have equal numbers.
    """
    index = np.full(len(a), -1, np.int64)
    if not len(a) or not len(b):
        return index
    # a[first:stop] is aligned with b[low:high]
    low, high, first, stop = 0, len(b), 0, len(a)
    if max(len(a), len(b)) > MAX_LENGTH_RATIO * min(len(a), len(b)):
        start, end = _best_offsets(a, b)
        low, high = max(start, 0), max(min(len(b), end + len(a)), 0)
        first, stop = max(-end, 0), max(min(len(a), len(b) - start), 0)
    if low >= high or first >= stop:
        return index
    part_a, part_b = a[first:stop], b[low:high]
    matched = np.full(len(part_a), -1, np.int64)
    _extend_anchors(part_a, part_b, matched, *_anchors(part_a, part_b))
    _fill_gaps(part_a, part_b, matched, _MAX_CELLS)
    index[first:stop] = np.where(matched >= 0, matched + low, -1)
    return index


def common_pairs(a: Array, b: Array) -> int:
    """Number of pairs of neighbours that both sequences have."""
    return common_elements(run_hashes(a, 2), run_hashes(b, 2))


def common_elements(a: Array, b: Array) -> int:
    """Number of elements that both have, in any order; one that occurs twice in both counts twice."""
    values_a, counts_a = np.unique(a, return_counts=True)
    values_b, counts_b = np.unique(b, return_counts=True)
    _, in_a, in_b = np.intersect1d(values_a, values_b, assume_unique=True, return_indices=True)
    return int(np.minimum(counts_a[in_a], counts_b[in_b]).sum())


def run_hashes(x: Array, size: int) -> Array:
    """Hash of the run of `size` elements that begins at each element: equal for equal runs."""
    # elements are mixed (by a constant of splitmix64), then added up as digits of a number whose
    # base is odd, so that order counts; all modulo 2**64
    mixed = x.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    n = max(len(x) - size + 1, 0)
    hashes = np.zeros(n, np.uint64)
    for k in range(size):
        hashes = hashes * np.uint64(0xBF58476D1CE4E5B9) + mixed[k : k + n]
    return hashes


def _best_offsets(a: Array, b: Array) -> tuple[int, int]:
    """Lowest and highest offset of `b` against `a` at which they may agree best.

    Offsets are counted in bins; the two neighbouring bins with the most votes win, the first of
    equal ones, with a bin more to either side.
    """
    votes = np.zeros(1, np.int64)
    for size in _RUN_LENGTHS:
        runs_a, runs_b = run_hashes(a, size), run_hashes(b, size)
        values, counts = np.unique(runs_a, return_counts=True)
        shared = np.isin(values, runs_b)
        if not shared.any():
            continue
        rare = values[shared & (counts == counts[shared].min())]
        rare = rare[:: max(1, len(rare) // _MAX_VOTERS)]
        votes = offset_votes(runs_a, runs_b, rare)
        if len(rare) >= _MIN_VOTERS:
            break
    width = max(8, min(len(a), len(b)) // 64)
    bins, counts = np.unique(votes // width, return_counts=True)
    # votes of each bin and of the next one, if there is one of the next number
    next_bin = np.minimum(np.searchsorted(bins, bins + 1), len(bins) - 1)
    pair_votes = counts + np.where(bins[next_bin] == bins + 1, counts[next_bin], 0)
    best = int(bins[pair_votes.argmax()])
    return (best - 1) * width, (best + 3) * width


def offset_votes(runs_a: Array, runs_b: Array, rare: Array) -> Array:
    """Offsets of `b` against `a`, of all pairs of positions at which both have the same rare run.

    Parameters
    ----------
    runs_a, runs_b
        Hashes of runs, as of `run_hashes`.
    rare
        Hashes of those that vote.

    Returns
    -------
    Array
        Position in `b` less position in `a`. Of too many pairs only those of every k-th position
        in `a`.
    """
    in_a = np.flatnonzero(np.isin(runs_a, rare))
    order = np.argsort(runs_b, kind="stable")
    sorted_b = runs_b[order]
    low, high = (np.searchsorted(sorted_b, runs_a[in_a], side) for side in ("left", "right"))
    pairs = high - low
    step = max(1, int(pairs.sum()) // _MAX_VOTES)
    in_a, low, pairs = in_a[::step], low[::step], pairs[::step]
    return order[gather.consecutive(low, pairs)] - np.repeat(in_a, pairs)


def _anchors(a: Array, b: Array) -> tuple[Array, Array]:
    """Positions in `a` and `b` of runs that occur once in each: a longest chain that ascends."""
    for size in _RUN_LENGTHS[1:]:
        once_a, at_a = _unique_runs(run_hashes(a, size))
        once_b, at_b = _unique_runs(run_hashes(b, size))
        _, i, j = np.intersect1d(once_a, once_b, assume_unique=True, return_indices=True)
        if len(i):
            order = np.argsort(at_a[i])
            i, j = at_a[i][order], at_b[j][order]
            chain = longest_ascending(j)
            return i[chain], j[chain]
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _unique_runs(runs: Array) -> tuple[Array, Array]:
    """Hashes of runs that occur once, and their positions."""
    values, position, counts = np.unique(runs, return_index=True, return_counts=True)
    return values[counts == 1], position[counts == 1]


@jit
def longest_ascending(values: Array) -> Array:
    """Indices of a longest ascending subsequence: O(n log n), as patience sorting.

    ``tails[k]`` is the index of the smallest value with which an ascending subsequence of k + 1
    elements ends so far; these values ascend, so that each element finds its own by bisection.
    """
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
    chain = np.empty(length, np.int64)
    i = tails[length - 1] if length else -1
    for k in range(length - 1, -1, -1):
        chain[k] = i
        i = before[i]
    return chain


@jit
def _extend_anchors(a: Array, b: Array, matched: Array, at_a: Array, at_b: Array) -> None:
    """Match the anchors, and what precedes and follows each as long as both agree.

    Parameters
    ----------
    a, b
        The sequences.
    matched
        Index in `b` of each element of `a`, -1 for none so far; written to.
    at_a, at_b
        Positions of the anchors, ascending in both.
    """
    reached = -1  # last index of b that is matched
    for k in range(len(at_a)):
        i, j = at_a[k], at_b[k]
        if matched[i] >= 0 or j <= reached:
            continue
        matched[i] = j
        back_a, back_b = i - 1, j - 1
        while back_a >= 0 and back_b > reached and matched[back_a] < 0 and a[back_a] == b[back_b]:
            matched[back_a] = back_b
            back_a, back_b = back_a - 1, back_b - 1
        stop_a = at_a[k + 1] if k + 1 < len(at_a) else len(a)
        stop_b = at_b[k + 1] if k + 1 < len(at_a) else len(b)
        i, j = i + 1, j + 1
        while i < stop_a and j < stop_b and a[i] == b[j]:
            matched[i] = j
            i, j = i + 1, j + 1
        reached = j - 1


@jit
def _fill_gaps(a: Array, b: Array, matched: Array, max_cells: int) -> None:
    """Align the elements of `a` between matched ones with those of `b` between the same."""
    i, reached = 0, -1
    while i < len(a):
        if matched[i] >= 0:
            reached = matched[i]
            i += 1
            continue
        stop = i
        while stop < len(a) and matched[stop] < 0:
            stop += 1
        end = matched[stop] if stop < len(a) else len(b)
        _match_subsequence(a, i, stop, b, reached + 1, end, matched, max_cells)
        i = stop


@jit
def _match_subsequence(  # noqa: C901, PLR0912, PLR0913, PLR0917 # one loop over columns
    a: Array, first: int, stop: int, b: Array, low: int, high: int, matched: Array, max_cells: int
) -> None:
    """Match a longest common subsequence of a[first:stop] and b[low:high].

    The usual table of n by m cells, but of each row only a band around the diagonal, so wide that
    all fit `max_cells`; of lengths only the last two rows stay, of steps all::

        row i, column j:  the longest common subsequence of the first i of a and the first j of b
        band of row i:    columns  start .. start + width - 1,  start = i * m // n - half
    """
    n, m = stop - first, high - low
    if n == 0 or m <= 0:
        return
    half = min(m, max(_MIN_HALF_BAND, max_cells // (2 * n + 2)))
    width = min(m, 2 * half) + 1
    step = np.zeros((n + 1, width), np.uint8)
    before = np.zeros(width + 1, np.int32)  # lengths in the row above
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
    # from the last cell back along the steps
    i, j = n, m
    while i > 0 or j > 0:
        start = min(max(i * m // n - half, 0), m + 1 - width)
        if not start <= j < start + width:
            return
        how = step[i, j - start]
        if how == _BOTH:
            matched[first + i - 1] = low + j - 1
            i, j = i - 1, j - 1
        elif how == _OF_A:
            i -= 1
        elif how == _OF_B:
            j -= 1
        else:
            return
