"""Relation of two clocks that recorded the same events: an offset, and a drift if there is one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, statistics

MIN_PAIRS = 5
"""Pairs of times that a fit needs: among fewer, two bad ones decide the median and the deviation."""
_MIN_PAIRS_OF_DRIFT = 10
"""Pairs that a drift needs; chosen: two parameters, with twice the pairs of one."""
_OUTLIER_SIGMAS = 4.0
"""Pairs further off the line are no part of its least squares; chosen: of normal deviations, one
in 16,000 is lost."""
_CERTAIN_ERRORS = 5.0
"""A drift is believed if it is so many times its standard error; chosen: a drift that is none is
worse than one that is missed."""
_ROUNDS = 5
"""Rounds of least squares without outliers; chosen: which pairs are outliers settles in fewer."""
_WIDE_SHARE = 0.9
"""Share of the pairs that lie within `Fit.widest_ns`."""
_MAX_DRIFT = 1e-3
"""Crystals drift by less than 100 ppm; ten times that is no drift."""
_STRIDE_SHARES = (0.5, 0.62, 0.38)
"""Distances of the points paired for a first slope, as shares of all points: far apart, so that
scatter matters little, and at unequal distances, so that periodic errors do not repeat."""
_S = 10**9


@dataclass(frozen=True)
class Fit:
    """Time t on one clock is ``t + offset_ns + drift_ppb * (t - pivot_ns) / 1e9`` on the other.

    Parameters
    ----------
    sigma_ns
        Standard deviation of the residuals, from their median absolute size.
    widest_ns
        90 % of the pairs deviate by less.
    largest_ns, typical_ns
        Largest and mean size of the correction within the time of the pairs.
    pairs
        Number of pairs.
    """

    offset_ns: int
    drift_ppb: int
    pivot_ns: int
    sigma_ns: int
    widest_ns: int
    largest_ns: int
    typical_ns: int
    pairs: int

    @property
    def residual_ns(self) -> int:
        """Size that a correction must exceed to be applied."""
        return max(3 * self.sigma_ns, self.widest_ns)

    @property
    def is_needed(self) -> bool:
        """True if the correction is larger than the residuals that it leaves."""
        return self.largest_ns > self.residual_ns


IDENTITY = Fit(0, 0, 0, 0, 0, 0, 0, 0)


def corrections(times: Array, offset_ns: int, drift_ppb: int, pivot_ns: int) -> Array:
    """Nanoseconds to add to times `times` to get those of the other clock; exact to 1 ns.

    ``drift_ppb * (times - pivot_ns)`` may exceed int64, so seconds and the rest are multiplied apart.
    """
    if not drift_ppb:
        return np.full(len(times), offset_ns, np.int64)
    seconds, rest = np.divmod(times - pivot_ns, _S)
    return offset_ns + drift_ppb * seconds + drift_ppb * rest // _S


def fit_clock(times: Array, reference: Array) -> Fit:
    """Fit robustly what brings times `times` to those of a reference clock.

    Parameters
    ----------
    times, reference
        Times of the same events by both clocks, nanoseconds; at least `MIN_PAIRS`.
    """
    difference = reference - times
    offset = statistics.lower_median(difference)
    pivot = statistics.lower_median(times)
    residual = (difference - offset).astype(np.float64)
    time = (times - pivot).astype(np.float64)
    slope, start = _certain_line(time, residual)
    drift = round(slope * _S)
    if drift:
        residual -= slope * time + start
        offset += round(start)
    corners = [offset + drift * int(x) // _S for x in (time.min(), 0, time.max())]
    return Fit(
        offset_ns=offset,
        drift_ppb=drift,
        pivot_ns=pivot,
        sigma_ns=round(statistics.mad_sigma(residual)),
        widest_ns=round(float(np.quantile(np.abs(residual), _WIDE_SHARE))),
        largest_ns=max(map(abs, corners)),
        typical_ns=round(float(np.abs(offset + drift / _S * time).mean())),
        pairs=len(times),
    )


def _certain_line(time: Array, residual: Array) -> tuple[float, float]:
    """Slope and value at 0 of a line; (0, 0) where it is uncertain or corrects less than scatter."""
    span = float(time.max() - time.min())
    if len(time) < _MIN_PAIRS_OF_DRIFT or not span:
        return 0.0, 0.0
    slope = _first_slope(time, residual)
    start = float(np.median(residual - slope * time))
    used = np.ones(len(time), np.bool_)
    for _ in range(_ROUNDS):  # least squares of the points that are no outliers of the last line
        away = np.abs(residual - slope * time - start)
        used = away <= max(_OUTLIER_SIGMAS * statistics.mad_sigma(away), 1.0)
        t, x = time[used], residual[used]
        square = float(((t - t.mean()) ** 2).sum())
        if not square:
            return 0.0, 0.0
        slope = float(((t - t.mean()) * (x - x.mean())).sum()) / square
        start = float(x.mean() - slope * t.mean())
    t, x = time[used], residual[used] - slope * time[used] - start
    error = np.sqrt(float((x**2).sum()) / max(len(t) - 2, 1) / square)
    widest = float(np.quantile(np.abs(residual - slope * time - start), _WIDE_SHARE))
    certain = abs(slope) > _CERTAIN_ERRORS * error and abs(slope) < _MAX_DRIFT
    return (slope, start) if certain and abs(slope) * span > widest else (0.0, 0.0)


def _first_slope(time: Array, residual: Array) -> float:
    """Median slope of points far apart in time, from which least squares start."""
    order = np.argsort(time, kind="stable")
    strides = [max(1, int(len(time) * share)) for share in _STRIDE_SHARES]
    return statistics.median_slope(time[order], residual[order], strides)
