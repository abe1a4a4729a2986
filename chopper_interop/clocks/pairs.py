"""Kernels of two records that may be the same: proposed by ids, by order, or by a vote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.clocks import line as clock_line
from chopper_interop.clocks.line import Line, ProcessWork

_US = 1000
_MIN_SPAN_IN_SPREADS = 2_000
"""Pairs by vote must span so many times their spread, or the resolution of times; chosen: short
kernels in a row look alike at every offset."""
_MIN_SAME_NAMES = 0.9
"""Share of the kernels of one correlation id that must have one name; chosen: ids of two processes
agree in names by chance only."""
_BIN_NS, _FINE_BIN_NS = 200_000, 5_000
"""Widths of the bins of the two votes; chosen: the first holds any drift within a sample of
kernels, the second what starts of one run scatter by."""
_MAX_VOTES = 1 << 20
"""Largest number of pairs that vote; bounds time and memory, as frequent kernels have millions."""
_SAMPLE = 16_384
"""Kernels of which the offset is sought first; chosen: enough rare ones, and a fraction of a
second."""
_WITHIN_NS = (200_000, 50_000, 50_000)
"""Largest distance of pairs in each step of refinement: first the width of a bin, then less."""
_WRONG_OFFSETS_NS = (1_700_003, -1_700_003, 13_100_011, -13_100_011)
"""Offsets that are wrong, for comparison: of the order of a kernel's and of a step's period, and no
multiples of round ones."""


def pairs_by_correlation(reference: ProcessWork, other: ProcessWork) -> tuple[Array, Array]:
    """Pair kernels by ids that occur once in each; none if names contradict the ids."""
    own, own_2 = reference.with_own_id, other.with_own_id
    _, at, at_2 = np.intersect1d(
        reference.correlation[own], other.correlation[own_2], True, return_indices=True
    )
    i, j = own[at], own_2[at_2]
    same = reference.name[i] == other.name[j]
    agree = same.sum() >= _MIN_SAME_NAMES * same.size
    return (i[same], j[same]) if agree else (i[:0], j[:0])


def pairs_by_order(reference: ProcessWork, other: ProcessWork) -> tuple[Array, Array]:
    """Pair the k-th kernel of each, if both have the same names in the same order."""
    same = np.array_equal(reference.name, other.name)
    rows = np.arange(len(reference.name) if same else 0)
    return rows, rows


def pairs_by_votes(reference: ProcessWork, other: ProcessWork) -> tuple[Array, Array]:
    """Pair kernels at the offset for which a sample of the shorter record votes, then all of it."""
    swapped = len(other.start) < len(reference.start)
    short, long = (other, reference) if swapped else (reference, other)
    sample, _ = _middle(short, _SAMPLE)
    empty = np.zeros(0, np.int64)
    for keys in _keys(sample, long):
        line = _voted_line(sample, long, *keys)
        i, j = _refined_pairs(sample, long, keys, line) if line is not None else (empty, empty)
        if _is_distinct(sample, long, i, j):
            line = clock_line.fit_line(sample.start[i], long.start[j])
            i, j = _pairs_of_all(short, long, line)
            return (j, i) if swapped else (i, j)
    return empty, empty


def _middle(work: ProcessWork, count: int) -> tuple[ProcessWork, int]:
    """Return `count` kernels in the middle, and how many are before them."""
    first = max((len(work.start) - count) // 2, 0)
    return work.select(slice(first, first + count)), first


def _pairs_of_all(short: ProcessWork, long: ProcessWork, line: Line) -> tuple[Array, Array]:
    """Pairs of all kernels by a line known of a sample, which is fitted again as that grows.

    Each sample is four times the one before, so that a drift too small for the first line does not
    carry later kernels away from it.
    """
    count = _SAMPLE
    while True:
        sample, first = _middle(short, count)
        i, j = clock_line.nearest_pairs(sample, long, line, _WITHIN_NS[-1])
        if count >= len(short.start) or not len(i):
            return i + first, j
        line = clock_line.fit_line(sample.start[i], long.start[j])
        count *= 4


def _keys(reference: ProcessWork, other: ProcessWork) -> list[tuple[Array, Array]]:
    """Keys by which kernels are compared: name and duration in ns, then in us; then name alone."""
    keys = []
    for resolution in (1, _US):
        shortest = min(int(reference.dur.min()), int(other.dur.min())) // resolution
        durations = [w.dur // resolution - shortest for w in (reference, other)]
        size = max(int(d.max()) for d in durations) + 1
        if size < 1 << 40:  # so that no key exceeds int64
            keys.append((reference.name * size + durations[0], other.name * size + durations[1]))
    return [*keys, (reference.name, other.name)]


def _voted_line(
    reference: ProcessWork, other: ProcessWork, key: Array, key_2: Array
) -> Line | None:
    """Offset for which most pairs of equal rare keys vote; None if there are none."""
    keys, a = np.unique(key, return_inverse=True)
    b = np.searchsorted(keys, key_2)
    known = np.flatnonzero(keys[np.minimum(b, len(keys) - 1)] == key_2)
    b = b[known]
    count, count_2 = (np.bincount(c, minlength=len(keys)) for c in (a, b))
    # keys with the fewest pairs vote first, until there are enough votes
    pairs = count * count_2
    rare = np.argsort(pairs, kind="stable")
    rare = rare[pairs[rare] > 0]
    rare = rare[np.cumsum(pairs[rare]) <= _MAX_VOTES]
    if not rare.size:
        return None
    i, j = _all_pairs(a, b, np.sort(rare), count, count_2)
    j = known[j]
    difference = reference.start[i] - other.start[j]
    base = int(difference.min())
    near = difference[_in_fullest_bins((difference - base) // _BIN_NS)]
    near = near[_in_fullest_bins((near - base) // _FINE_BIN_NS)]
    start = int(near.min())
    return Line(start + clock_line.rounded_median(near - start))


def _all_pairs(
    a: Array, b: Array, keys: Array, count: Array, count_2: Array
) -> tuple[Array, Array]:
    """Rows of all pairs of equal keys.

    Rows of each side are sorted by key, so that those of a key are contiguous. The pairs of a key
    are counted from 0: pair p takes row ``p // count_2`` of one side and ``p % count_2`` of the
    other, as the cells of a table of ``count`` by ``count_2``.
    """
    order, order_2 = (np.argsort(c, kind="stable") for c in (a, b))
    first = np.cumsum(count) - count
    first_2 = np.cumsum(count_2) - count_2
    n = (count * count_2)[keys]
    which = np.repeat(np.arange(len(keys)), n)
    within = gather.consecutive(np.zeros_like(n), n)
    width = count_2[keys][which]
    i = order[first[keys][which] + within // width]
    j = order_2[first_2[keys][which] + within % width]
    return i, j


def _in_fullest_bins(bins: Array) -> Array:
    """Mark what is in the fullest bin or in one next to it, as a peak may lie across an edge."""
    values, counts = np.unique(bins, return_counts=True)
    fullest = int(values[counts.argmax()])
    mask: Array = np.abs(bins - fullest) <= 1
    return mask


def _refined_pairs(
    reference: ProcessWork, other: ProcessWork, keys: tuple[Array, Array], line: Line
) -> tuple[Array, Array]:
    """Pairs near a first line, which is fitted again: to kernels of equal keys, then to all.

    Of short kernels in a row the nearest of a name is often another one, and always one nearer to
    the line, so that a drift would be underestimated; one of the same duration as well is rare.
    """
    codes = np.unique(np.concatenate(keys), return_inverse=True)[1].astype(np.int64)
    keyed = (
        replace(reference, name=codes[: len(keys[0])]),
        replace(other, name=codes[len(keys[0]) :]),
    )
    for within in _WITHIN_NS[:-1]:
        pairs = clock_line.nearest_pairs(*keyed, line, within)
        if len(pairs[0]):
            line = clock_line.fit_line(reference.start[pairs[0]], other.start[pairs[1]])
    return clock_line.nearest_pairs(reference, other, line, _WITHIN_NS[-1])


def _is_distinct(reference: ProcessWork, other: ProcessWork, i: Array, j: Array) -> bool:
    """True if wrong offsets explain the starts much worse."""
    if not len(i):
        return False
    line = clock_line.fit_line(reference.start[i], other.start[j])
    resolution = max(map(clock_line.resolution_ns, (reference.start, other.start)))
    if np.ptp(reference.start[i]) < _MIN_SPAN_IN_SPREADS * max(line.spread_ns, resolution):
        return False
    for shift in _WRONG_OFFSETS_NS:
        wrong = Line(line.offset_ns + shift, line.drift_ppb, line.pivot_ns)
        at, at_2 = clock_line.nearest_pairs(reference, other, wrong, _WITHIN_NS[-1])
        if len(at) * 2 < len(i):
            continue
        away = np.abs(reference.start[at] - wrong.apply(other.start[at_2]))
        if clock_line.rounded_median(away) < 3 * max(line.spread_ns, 1):
            return False
    return True
