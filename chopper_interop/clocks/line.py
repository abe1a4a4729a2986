"""Starts of the same kernels by two clocks: the line between them, and the pairs close to it.

Throughout `clocks.line`, `clocks.pairs` and `clocks.match`, `reference` is the work recorded on the
clock of the trace, `other` the work recorded by another tool on another clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, statistics
from chopper_interop.clocks import rank_fit

_US = 1000
_FEW = 64
"""Times that are looked at before all. Chosen: too few to take time; of whole nanoseconds one in 1,000 is a microsecond."""
_MAX_DRIFT_PPB = 500_000
"""Crystals drift by less than 100 ppm; five times that is no drift."""
_MIN_SPAN_OF_DRIFT_NS = 100_000_000
"""Over less time a drift of 100 ppm is below 10 us; chosen: about what starts scatter by."""
_MIN_PAIRS_OF_DRIFT = 16
"""Pairs that a drift needs; chosen: eight slopes between the halves, of which the median is taken."""
_TAIL = 0.9
"""Quantile of the distances that a drift has to halve if it does not halve the median: where most work
is at one time, the drift moves only the rest."""


@dataclass(frozen=True)
class ProcessWork:
    """GPU work of a process; in the order of starts, but for the arguments of `match`.

    Parameters
    ----------
    name
        Codes of names from 0 on, the same for both tools.
    start, dur
        Nanoseconds.
    correlation
        Correlation ids, -1 where there is none.
    """

    name: Array
    start: Array
    dur: Array
    correlation: Array

    def select(self, rows: Any) -> ProcessWork:
        """Return the work of some rows."""
        columns = (self.name, self.start, self.dur, self.correlation)
        return ProcessWork(*(column[rows] for column in columns))


@dataclass(frozen=True)
class Line:
    """Offset of a clock that drifts: ``offset_ns + drift_ppb * (t - pivot_ns) / 1e9``."""

    offset_ns: int
    drift_ppb: int = 0
    pivot_ns: int = 0
    spread_ns: int = 0
    """Median distance of starts from the line."""

    def apply(self, ts: Array) -> Array:
        """Return times of the other clock on the reference clock."""
        moved: Array = ts + rank_fit.corrections(ts, self.offset_ns, self.drift_ppb, self.pivot_ns)
        return moved


def fit_line(reference: Array, other: Array) -> Line:
    """Fit the median of the differences and, over a long span, a drift that halves their spread.

    Parameters
    ----------
    reference, other
        Starts of the same work by both clocks, nanoseconds.
    """
    order = np.argsort(other, kind="stable")
    difference = (reference - other)[order]
    base = int(difference[0])
    residual = difference - base  # small numbers, of which float64 loses nothing
    middle = rounded_median(residual)
    spread = rounded_median(np.abs(residual - middle))
    ts = other[order]
    pivot = int(ts[len(ts) // 2])
    since = ts - pivot
    if len(residual) >= _MIN_PAIRS_OF_DRIFT and since[-1] - since[0] >= _MIN_SPAN_OF_DRIFT_NS:
        slope = statistics.median_slope(since, residual, [len(ts) // 2])
        ppb = round(slope * 1e9)
        level = residual - np.rint(since * (ppb / 1e9)).astype(np.int64)
        level_middle = rounded_median(level)
        level_spread = rounded_median(np.abs(level - level_middle))
        tail = np.quantile(np.abs(residual - middle), _TAIL)
        level_tail = np.quantile(np.abs(level - level_middle), _TAIL)
        halved = 2 * level_spread < spread or 2 * level_tail < tail
        if 0 < abs(ppb) <= _MAX_DRIFT_PPB and halved:
            return Line(base + level_middle, ppb, pivot, level_spread)
    return Line(base + middle, 0, pivot, spread)


def rounded_median(values: Array) -> int:
    """Median as a whole number."""
    return round(float(np.median(values)))


def resolution_ns(times: Array) -> int:
    """Resolution of times: 1000 where all are whole microseconds, as in some formats, else 1."""
    few = times[:_FEW]  # which show it of most records
    return _US if times.size and not (few % _US).any() and not (times % _US).any() else 1


def nearest_pairs(
    reference: ProcessWork, other: ProcessWork, line: Line, within_ns: int
) -> tuple[Array, Array]:
    """Pair work of the same name that is mutually nearest in time.

    Parameters
    ----------
    reference, other
        What two tools recorded.
    line
        Brings times of `other` to those of `reference`.
    within_ns
        Largest distance of the starts of a pair.

    Returns
    -------
    i, j
        Rows in `reference` and in `other`.
    """
    moved = line.apply(other.start)
    low = max(int(reference.start[0]), int(moved[0])) - within_ns
    high = min(int(reference.start[-1]), int(moved[-1])) + within_ns
    first, first_2 = (int(np.searchsorted(t, low)) for t in (reference.start, moved))
    stop, stop_2 = (int(np.searchsorted(t, high, "right")) for t in (reference.start, moved))
    # One number for name and start: names lie further apart than any two starts, so that the
    # nearest number of the same name is the nearest in time.
    #     |--name 0: starts--|      |--name 1: starts--|      |--name 2 …
    #     0                  width                     2 * width
    width = high - low + 2 * within_ns + 2
    empty = np.zeros(0, np.int64)
    names = 1 + max(int(reference.name.max()), int(other.name.max()))
    if stop <= first or stop_2 <= first_2 or width * names >= 1 << 62:
        return empty, empty
    a = reference.name[first:stop] * width + (reference.start[first:stop] - low)
    b = other.name[first_2:stop_2] * width + (moved[first_2:stop_2] - low)
    to_b, to_a = _nearest_rows(a, b), _nearest_rows(b, a)
    mutual = to_a[to_b] == np.arange(len(a))
    i = np.flatnonzero(mutual & (np.abs(a - b[to_b]) <= within_ns))
    return i + first, to_b[i] + first_2


def _nearest_rows(points: Array, candidates: Array) -> Array:
    """Row of the candidate nearest to each point, the first of equally near ones."""
    order = np.argsort(candidates, kind="stable")
    ascending = candidates[order]
    right = np.minimum(np.searchsorted(ascending, points), len(ascending) - 1)
    left = np.maximum(right - 1, 0)
    is_left = np.abs(points - ascending[left]) <= np.abs(ascending[right] - points)
    rows: Array = order[np.where(is_left, left, right)]
    return rows
