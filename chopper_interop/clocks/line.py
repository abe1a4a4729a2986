"""Starts of the same kernels by two clocks: the line between them, and the pairs close to it.

Throughout `clocks.line`, `clocks.pairs` and `clocks.match`, `reference` is the work recorded on the
clock of the trace, `other` the work recorded by another tool on another clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def by_name(self) -> Array:
        """Rows in the order of names, those of one name in the order of starts; sorted once for all other records."""
        return np.argsort(self.name, kind="stable")

    @cached_property
    def with_own_id(self) -> Array:
        """Rows with a positive correlation id that no other row has."""
        _, first, counts = np.unique(self.correlation, return_index=True, return_counts=True)
        rows: Array = first[counts == 1]
        return rows[self.correlation[rows] > 0]


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
    # One number for name and start: names lie further apart than any two starts, so that the
    # nearest number of the same name is the nearest in time. What is outside of the time of both lies
    # at its edge, which is further than `within_ns` from what the other has.
    #     |--name 0: starts--|      |--name 1: starts--|      |--name 2 …
    #     0                  width                     2 * width
    width = high - low + 2 * within_ns + 4
    names = 1 + max(int(reference.name.max()), int(other.name.max()))
    if high - low < within_ns or width * names >= 1 << 62:  # too far apart, or for one number
        empty = np.zeros(0, np.int64)
        return empty, empty
    a, b = (
        work.name[work.by_name] * width + np.clip(start[work.by_name], low - 1, high + 1) - low
        for work, start in ((reference, reference.start), (other, moved))
    )
    to_b, to_a = _nearest(a, b), _nearest(b, a)
    mutual = to_a[to_b] == np.arange(len(a))
    paired = np.flatnonzero(mutual & (np.abs(a - b[to_b]) <= within_ns))
    row = np.full(len(a), -1, np.int64)
    row[reference.by_name[paired]] = other.by_name[to_b[paired]]
    i = np.flatnonzero(row >= 0)
    return i, row[i]


def _nearest(points: Array, candidates: Array) -> Array:
    """Position of the candidate nearest to each point, both ascending; of two that are equally near the first."""
    right = np.minimum(np.searchsorted(candidates, points), len(candidates) - 1)
    left = np.maximum(right - 1, 0)
    is_left = np.abs(points - candidates[left]) <= np.abs(candidates[right] - points)
    positions: Array = np.where(is_left, left, right)
    return positions
