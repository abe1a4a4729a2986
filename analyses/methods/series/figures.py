"""Means, medians and extremes of samples over intervals of time: numba loops over columns.

Within an interval samples make pieces: parts of the time between two samples, over which a value
holds or goes straight. Their time is the covered time. A mean is the integral over it divided by
its length; a median is the value with as much of that time below it as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.series.averaging import AveragingWindows
    from chopper_interop.annotate.telemetry.samples import Samples

_HALVINGS = 60
_NEAR = 1e-9
"""A median that is so near to a sample, as a share of the range, is the sample."""


@dataclass(frozen=True)
class SamplePieces:
    """Pieces of the samples of one series within intervals of time.

    Parameters
    ----------
    cell
        Cell of each piece.
    width
        Length of each, nanoseconds.
    first, last
        Values at its begin and end.
    moment_cell, moment
        Cell and value of each sample that was taken within an interval.
    """

    cell: Array
    width: Array
    first: Array
    last: Array
    moment_cell: Array
    moment: Array


def pieces(samples: Samples, windows: AveragingWindows, *, is_ended: bool = False) -> SamplePieces:
    """Return the pieces of samples within intervals of time.

    Parameters
    ----------
    samples
        Samples of one series.
    windows
        The intervals, the ends included.
    is_ended
        True if the last entry is no sample, but the time until which the one before holds.
    """
    s = samples
    at = (windows.cell, windows.start, windows.end)
    begin = np.searchsorted(s.ts, windows.start, "right") - 1
    taken = s.ts[:-1] if is_ended else s.ts
    first_inside = np.searchsorted(taken, windows.start, "left")
    stop = np.searchsorted(taken, windows.end, "right")
    count = _count(s.ts, s.unknown, begin, *at[1:])
    out = (np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count), np.empty(count))
    _cut(s.ts, s.value, s.unknown, s.is_linear, begin, *at, *out)
    if s.is_linear:  # between two samples is neither more nor less than at them
        for ends in out[2:]:
            np.clip(ends, s.value.min(), s.value.max(), out=ends)
    inside = stop - first_inside
    row = gather.consecutive(first_inside, inside)
    return SamplePieces(*out, np.repeat(windows.cell, inside), s.value[row])


@dataclass(frozen=True)
class CellFigures:
    """Figures of each cell; NaN where nothing is known.

    Parameters
    ----------
    covered
        Time in which something is known, nanoseconds.
    area
        Integral over it, value times nanoseconds.
    mean, median
        Weighted by time; where no time is covered, the mean is not known and the median is that
        of samples.
    minimum, maximum
        Of all values in its time, those of single samples included.
    samples
        Number of samples that were taken in it.
    """

    covered: Array
    area: Array
    mean: Array
    median: Array
    minimum: Array
    maximum: Array
    samples: Array


def figures(parts: Sequence[SamplePieces], n: int, *, has_medians: bool = True) -> CellFigures:
    """Figures of the pieces of one or several series together.

    Parameters
    ----------
    parts
        Pieces of each series.
    n
        Number of cells.
    has_medians
        True to compute medians; they are NaN otherwise.
    """
    one = parts[0] if len(parts) == 1 else _joined(parts)
    order, bounds = _by_cell(one.cell, n)
    width, first, last = (
        c if order is None else c[order] for c in (one.width, one.first, one.last)
    )
    covered, area, minimum, maximum = _sums(bounds, width, first, last)
    m_order, m_bounds = _by_cell(one.moment_cell, n)
    moment = one.moment if m_order is None else one.moment[m_order]
    _reach(m_bounds, moment, minimum, maximum)
    median = np.full(n, np.nan)
    if has_medians:
        median = _medians(bounds, width, first, last, covered)
        for cell in np.flatnonzero((covered == 0) & (np.diff(m_bounds) > 0)).tolist():
            median[cell] = np.median(moment[m_bounds[cell] : m_bounds[cell + 1]])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(covered > 0, area / covered, np.nan)
    minimum[minimum == np.inf], maximum[maximum == -np.inf] = np.nan, np.nan
    mean = np.minimum(np.maximum(mean, minimum), maximum)
    return CellFigures(covered, area, mean, median, minimum, maximum, np.diff(m_bounds))


def _joined(parts: Sequence[SamplePieces]) -> SamplePieces:
    names = ("cell", "width", "first", "last", "moment_cell", "moment")
    return SamplePieces(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _by_cell(cell: Array, n: int) -> tuple[Array | None, Array]:
    """Order of cells, None where they are in order, and where each begins in it."""
    if n == 1:
        return None, np.array([0, len(cell)])
    order = np.argsort(cell, kind="stable")
    return order, np.searchsorted(cell[order], np.arange(n + 1))


# Counts the pieces that `_cut` writes, so that its columns are allocated once.
@jit
def _count(ts: Array, unknown: Array, begin: Array, start: Array, end: Array) -> int:
    count = 0
    for k in range(len(begin)):
        i = max(begin[k], 0)
        while i + 1 < len(ts) and ts[i] < end[k]:
            if not unknown[i] and ts[i + 1] > start[k]:
                count += 1
            i += 1
    return count


# Writes a piece for each overlap of an interval k with the time from sample i to i + 1. Samples
# and intervals both ascend, so the loop over i begins at the first sample that can overlap.
@jit
def _cut(  # noqa: PLR0913, PLR0917 # one loop over columns
    ts: Array,
    value: Array,
    unknown: Array,
    straight: bool,  # noqa: FBT001
    begin: Array,
    cell: Array,
    start: Array,
    end: Array,
    of: Array,
    width: Array,
    first: Array,
    last: Array,
) -> None:
    count = 0
    for k in range(len(begin)):
        i = max(begin[k], 0)
        while i + 1 < len(ts) and ts[i] < end[k]:
            if not unknown[i] and ts[i + 1] > start[k]:
                low, high = max(ts[i], start[k]), min(ts[i + 1], end[k])
                of[count], width[count] = cell[k], high - low
                first[count], last[count] = value[i], value[i]
                if straight:
                    slope = (value[i + 1] - value[i]) / (ts[i + 1] - ts[i])
                    first[count] = value[i] + slope * (low - ts[i])
                    last[count] = value[i] + slope * (high - ts[i])
                    if high == ts[i + 1]:
                        last[count] = value[i + 1]
                count += 1
            i += 1


# One pass over the pieces of each cell; the integral is summed with Kahan's compensation, as many
# small areas add up to a large one.
@jit
def _sums(
    bounds: Array, width: Array, first: Array, last: Array
) -> tuple[Array, Array, Array, Array]:
    n = len(bounds) - 1
    covered, area = np.zeros(n, np.int64), np.zeros(n)
    minimum, maximum = np.full(n, np.inf), np.full(n, -np.inf)
    for c in range(n):
        total, lost = 0.0, 0.0  # a sum and its rounding error
        for i in range(bounds[c], bounds[c + 1]):
            covered[c] += width[i]
            part = (first[i] + last[i]) / 2 * width[i] - lost
            new = total + part
            lost = (new - total) - part
            total = new
            minimum[c] = min(minimum[c], first[i], last[i])
            maximum[c] = max(maximum[c], first[i], last[i])
        area[c] = total
    return covered, area, minimum, maximum


# Widens the extremes of each cell by the samples in it, which may lie in no piece.
@jit
def _reach(bounds: Array, moment: Array, minimum: Array, maximum: Array) -> None:
    for c in range(len(bounds) - 1):
        for i in range(bounds[c], bounds[c + 1]):
            minimum[c] = min(minimum[c], moment[i])
            maximum[c] = max(maximum[c], moment[i])


@jit
def _medians(bounds: Array, width: Array, first: Array, last: Array, covered: Array) -> Array:
    """Return the lowest value that half of the time of each cell is at or below."""
    n = len(bounds) - 1
    median = np.full(n, np.nan)
    for c in range(n):
        if covered[c] > 0:
            at = slice(bounds[c], bounds[c + 1])
            median[c] = _median(width[at], first[at], last[at], covered[c] / 2)
    return median


@jit
def _median(  # noqa: C901, PLR0912 # one search over columns
    width: Array, first: Array, last: Array, half: float
) -> float:
    """Find the median by bisection; a result that equals a sample but for rounding is that sample.

    Pieces entirely below or above the remaining range, or that span it, are counted together from
    then on, so that each step of the bisection looks at fewer pieces.
    """
    minimum, maximum = np.minimum(first, last), np.maximum(first, last)
    low, high = minimum.min(), maximum.max()
    at, left = np.arange(len(width)), len(width)
    below, slope = 0.0, 0.0  # at or below `low`; more of it for each unit above, of all across
    room = (high - low) * _NEAR
    for i in range(left):
        if maximum[i] <= low:
            below += width[i]
    if below >= half:
        return low
    below = 0.0
    for _ in range(_HALVINGS):
        if high - low <= room / 8:
            break
        middle = low + (high - low) / 2
        within = below + slope * (middle - low)
        for k in range(left):
            within += _part(width[at[k]], minimum[at[k]], maximum[at[k]], middle)
        if within >= half:
            high = middle
        else:
            below += slope * (middle - low)
            low = middle
        kept = 0
        for k in range(left):
            i = at[k]
            if maximum[i] <= low:
                below += width[i]
            elif minimum[i] <= low and maximum[i] >= high and maximum[i] > minimum[i]:
                below += _part(width[i], minimum[i], maximum[i], low)
                slope += width[i] / (maximum[i] - minimum[i])
            elif minimum[i] < high:
                at[kept] = i
                kept += 1
        left = kept
    nearest, near = high, room
    for i in range(len(width)):
        for value in (minimum[i], maximum[i]):
            if abs(value - high) <= near:
                nearest, near = value, abs(value - high)
    return nearest


@jit
def _part(width: float, minimum: float, maximum: float, value: float) -> float:
    """Return the part of a piece's width in which it is at or below a value."""
    if maximum <= value:
        return width
    if minimum >= value:
        return 0.0
    return width * ((value - minimum) / (maximum - minimum))
