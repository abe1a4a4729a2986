"""Starts of the same kernels by two clocks: the line between them, and what is near it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.clocks import rank_fit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

_US = 1000
_MOST_DRIFT_PPB, _DRIFT_FROM_NS, _DRIFT_PAIRS = 500_000, 100_000_000, 16


@dataclass(frozen=True)
class Work:
    """What ran on the GPUs of a process; but for `match`, in the order of starts.

    Parameters
    ----------
    name
        Numbers of names from 0 on, the same of both tools.
    start, dur
        Nanoseconds.
    correlation
        -1 if there is none.
    """

    name: Array
    start: Array
    dur: Array
    correlation: Array

    def part(self, rows: Any) -> Work:
        """Some of it."""
        columns = (self.name, self.start, self.dur, self.correlation)
        return Work(*(column[rows] for column in columns))


@dataclass(frozen=True)
class Line:
    """Offset of a clock as it drifts: ``offset + drift * (t - pivot)``."""

    offset_ns: int
    drift_ppb: int = 0
    pivot_ns: int = 0
    spread_ns: int = 0
    """Median distance of starts from it."""

    def applied(self, ts: Array) -> Array:
        """Times on the other clock."""
        moved: Array = ts + rank_fit.shifts(ts, self.offset_ns, self.drift_ppb, self.pivot_ns)
        return moved


def fit(ours: Array, theirs: Array) -> Line:
    """Median of the differences and, over a long span, the drift that halves their spread."""
    order = np.argsort(theirs, kind="stable")
    difference = (ours - theirs)[order]
    base = int(difference[0])
    rest = difference - base
    middle = median(rest)
    spread = median(np.abs(rest - middle))
    ts = theirs[order]
    pivot = int(ts[len(ts) // 2])
    since = ts - pivot
    if len(rest) >= _DRIFT_PAIRS and since[-1] - since[0] >= _DRIFT_FROM_NS:
        slope = _slope(since, rest)
        ppb = round(slope * 1e9)
        level = rest - np.rint(since * (ppb / 1e9)).astype(np.int64)
        flat = median(level)
        narrow = median(np.abs(level - flat))
        if 0 < abs(ppb) <= _MOST_DRIFT_PPB and 2 * narrow < spread:
            return Line(base + flat, ppb, pivot, narrow)
    return Line(base + middle, 0, pivot, spread)


def _slope(ts: Array, values: Array) -> float:
    """By medians of the first and the last third."""
    third = len(ts) // 3
    rise = median(values[-third:]) - median(values[:third])
    run = median(ts[-third:]) - median(ts[:third])
    return rise / run if run > 0 else 0.0


def median(values: Array) -> int:
    """The median as a whole number."""
    return round(float(np.median(values)))


def grain(times: Array) -> int:
    """Nanoseconds to which times are cut: some formats have whole microseconds."""
    return _US if times.size and not (times % _US).any() else 1


def nearest(ours: Work, theirs: Work, line: Line, within_ns: int) -> tuple[Array, Array]:
    """Pairs of one name that are each other's nearest, at most so far apart."""
    moved = line.applied(theirs.start)
    low = max(int(ours.start[0]), int(moved[0])) - within_ns
    high = min(int(ours.start[-1]), int(moved[-1])) + within_ns
    first, first_2 = (int(np.searchsorted(t, low)) for t in (ours.start, moved))
    stop, stop_2 = (int(np.searchsorted(t, high, "right")) for t in (ours.start, moved))
    width = high - low + 2 * within_ns + 2
    none = np.zeros(0, np.int64)
    names = 1 + max(int(ours.name.max()), int(theirs.name.max()))
    if stop <= first or stop_2 <= first_2 or width * names >= 1 << 62:
        return none, none
    a = ours.name[first:stop] * width + (ours.start[first:stop] - low)
    b = theirs.name[first_2:stop_2] * width + (moved[first_2:stop_2] - low)
    to_b, to_a = _closest(a, b), _closest(b, a)
    i = np.flatnonzero((to_a[to_b] == np.arange(len(a))) & (np.abs(a - b[to_b]) <= within_ns))
    return i + first, to_b[i] + first_2


def _closest(points: Array, among: Array) -> Array:
    """For each point the place of the nearest among others, the first of equally near ones."""
    order = np.argsort(among, kind="stable")
    ordered = among[order]
    right = np.minimum(np.searchsorted(ordered, points), len(ordered) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.abs(points - ordered[left]) <= np.abs(ordered[right] - points)
    found: Array = order[np.where(nearer, left, right)]
    return found
