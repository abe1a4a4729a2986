"""Means, medians and extremes of samples over stretches of time: numba loops over columns.

Within a stretch samples make pieces: parts of the time between two samples, over which a value
holds or goes straight. Their time is what is covered; a mean is the integral over it by its
length, and a median the value that as much of it lies below as above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.series.stretches import Stretches
    from chopper_interop.telemetry.samples import Samples

_HALVINGS = 60
_NEAR = 1e-9
"""A median that is so near to a sample, as a share of the range, is the sample."""


@dataclass(frozen=True)
class Pieces:
    """What samples say of stretches of time.

    Parameters
    ----------
    cell
        Cell of each piece.
    width
        How long it is, nanoseconds.
    first, last
        Values at its begin and end.
    moment_cell, moment
        Cell and value of each sample that was taken within a stretch.
    """

    cell: Array
    width: Array
    first: Array
    last: Array
    moment_cell: Array
    moment: Array


def pieces(samples: Samples, stretches: Stretches, *, is_ended: bool = False) -> Pieces:
    """What samples say of stretches of time.

    Parameters
    ----------
    samples
        Samples of one series.
    stretches
        The stretches, the ends included.
    is_ended
        Whether the last of the samples is none, but says until when the one before holds.
    """
    s = samples
    at = (stretches.cell, stretches.start, stretches.end)
    begin = np.searchsorted(s.ts, stretches.start, "right") - 1
    taken = s.ts[:-1] if is_ended else s.ts
    moments = np.searchsorted(taken, stretches.start, "left")
    stop = np.searchsorted(taken, stretches.end, "right")
    count = _count(s.ts, s.unknown, begin, *at[1:])
    out = (np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count), np.empty(count))
    _cut(s.ts, s.value, s.unknown, s.is_straight, begin, *at, *out)
    if s.is_straight:  # between two samples is neither more nor less than at them
        for ends in out[2:]:
            np.clip(ends, s.value.min(), s.value.max(), out=ends)
    inside = stop - moments
    row = np.repeat(moments - (np.cumsum(inside) - inside), inside) + np.arange(inside.sum())
    return Pieces(*out, np.repeat(stretches.cell, inside), s.value[row])


@dataclass(frozen=True)
class Figures:
    """Figures of each cell; NaN where nothing is known.

    Parameters
    ----------
    covered
        How long something is known, nanoseconds.
    area
        Integral over it, value times nanoseconds.
    mean, median
        Weighted by time; where no time is covered, the mean is not known and the median is that
        of samples.
    least, most
        Of all values in its time, samples of moments included.
    samples
        How many samples were taken in it.
    """

    covered: Array
    area: Array
    mean: Array
    median: Array
    least: Array
    most: Array
    samples: Array


def figures(parts: Sequence[Pieces], n: int, *, has_medians: bool = True) -> Figures:
    """Figures of the pieces of one or several series together.

    Parameters
    ----------
    parts
        Pieces of each series.
    n
        How many cells there are.
    has_medians
        Whether medians are wanted; they are NaN otherwise.
    """
    one = parts[0] if len(parts) == 1 else _joined(parts)
    order, bounds = _by_cell(one.cell, n)
    width, first, last = (
        c if order is None else c[order] for c in (one.width, one.first, one.last)
    )
    covered, area, least, most = _sums(bounds, width, first, last)
    m_order, m_bounds = _by_cell(one.moment_cell, n)
    moment = one.moment if m_order is None else one.moment[m_order]
    _reach(m_bounds, moment, least, most)
    median = np.full(n, np.nan)
    if has_medians:
        median = _medians(bounds, width, first, last, covered)
        for cell in np.flatnonzero((covered == 0) & (np.diff(m_bounds) > 0)).tolist():
            median[cell] = np.median(moment[m_bounds[cell] : m_bounds[cell + 1]])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(covered > 0, area / covered, np.nan)
    least[least == np.inf], most[most == -np.inf] = np.nan, np.nan
    mean = np.minimum(np.maximum(mean, least), most)
    return Figures(covered, area, mean, median, least, most, np.diff(m_bounds))


def _joined(parts: Sequence[Pieces]) -> Pieces:
    names = ("cell", "width", "first", "last", "moment_cell", "moment")
    return Pieces(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _by_cell(cell: Array, n: int) -> tuple[Array | None, Array]:
    """Order of cells, None where they are in order, and where each begins in it."""
    if n == 1:
        return None, np.array([0, len(cell)])
    order = np.argsort(cell, kind="stable")
    return order, np.searchsorted(cell[order], np.arange(n + 1))


@jit
def _count(ts: Array, unknown: Array, begin: Array, start: Array, end: Array) -> int:
    found = 0
    for k in range(len(begin)):
        i = max(begin[k], 0)
        while i + 1 < len(ts) and ts[i] < end[k]:
            if not unknown[i] and ts[i + 1] > start[k]:
                found += 1
            i += 1
    return found


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
    found = 0
    for k in range(len(begin)):
        i = max(begin[k], 0)
        while i + 1 < len(ts) and ts[i] < end[k]:
            if not unknown[i] and ts[i + 1] > start[k]:
                low, high = max(ts[i], start[k]), min(ts[i + 1], end[k])
                of[found], width[found] = cell[k], high - low
                first[found], last[found] = value[i], value[i]
                if straight:
                    slope = (value[i + 1] - value[i]) / (ts[i + 1] - ts[i])
                    first[found] = value[i] + slope * (low - ts[i])
                    last[found] = value[i] + slope * (high - ts[i])
                    if high == ts[i + 1]:
                        last[found] = value[i + 1]
                found += 1
            i += 1


@jit
def _sums(
    bounds: Array, width: Array, first: Array, last: Array
) -> tuple[Array, Array, Array, Array]:
    n = len(bounds) - 1
    covered, area = np.zeros(n, np.int64), np.zeros(n)
    least, most = np.full(n, np.inf), np.full(n, -np.inf)
    for c in range(n):
        total, lost = 0.0, 0.0  # a sum and its rounding error
        for i in range(bounds[c], bounds[c + 1]):
            covered[c] += width[i]
            part = (first[i] + last[i]) / 2 * width[i] - lost
            new = total + part
            lost = (new - total) - part
            total = new
            least[c] = min(least[c], first[i], last[i])
            most[c] = max(most[c], first[i], last[i])
        area[c] = total
    return covered, area, least, most


@jit
def _reach(bounds: Array, moment: Array, least: Array, most: Array) -> None:
    for c in range(len(bounds) - 1):
        for i in range(bounds[c], bounds[c + 1]):
            least[c] = min(least[c], moment[i])
            most[c] = max(most[c], moment[i])


@jit
def _medians(bounds: Array, width: Array, first: Array, last: Array, covered: Array) -> Array:
    """The least value that half of the time of each cell is at or below."""
    n = len(bounds) - 1
    found = np.full(n, np.nan)
    for c in range(n):
        if covered[c] > 0:
            at = slice(bounds[c], bounds[c + 1])
            found[c] = _median(width[at], first[at], last[at], covered[c] / 2)
    return found


@jit
def _median(  # noqa: C901, PLR0912 # one search over columns
    width: Array, first: Array, last: Array, half: float
) -> float:
    """By halving of where it can lie; one that is a sample but for rounding is that sample.

    Pieces that lie wholly below or above that range, or reach from one end of it to the other, are
    counted together from then on, so that each halving looks at fewer of them.
    """
    least, most = np.minimum(first, last), np.maximum(first, last)
    low, high = least.min(), most.max()
    at, left = np.arange(len(width)), len(width)
    below, slope = 0.0, 0.0  # at or below `low`; more of it for each unit above, of all across
    room = (high - low) * _NEAR
    for i in range(left):
        if most[i] <= low:
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
            within += _part(width[at[k]], least[at[k]], most[at[k]], middle)
        if within >= half:
            high = middle
        else:
            below += slope * (middle - low)
            low = middle
        kept = 0
        for k in range(left):
            i = at[k]
            if most[i] <= low:
                below += width[i]
            elif least[i] <= low and most[i] >= high and most[i] > least[i]:
                below += _part(width[i], least[i], most[i], low)
                slope += width[i] / (most[i] - least[i])
            elif least[i] < high:
                at[kept] = i
                kept += 1
        left = kept
    found, near = high, room
    for i in range(len(width)):
        for value in (least[i], most[i]):
            if abs(value - high) <= near:
                found, near = value, abs(value - high)
    return found


@jit
def _part(width: float, least: float, most: float, value: float) -> float:
    """How long a piece is at or below a value."""
    if most <= value:
        return width
    if least >= value:
        return 0.0
    return width * ((value - least) / (most - least))
