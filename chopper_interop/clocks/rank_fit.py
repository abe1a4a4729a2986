"""What relates two clocks that saw the same moments: an offset, and a drift where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

FEWEST = 5
"""Of fewer pairs two bad ones decide what is the median and what deviates from it."""
_FEWEST_OF_LINE = 10
_SIGMA = 1.4826
"""Standard deviation of normal deviations by their median size."""
_OUTLIER, _CERTAIN, _ROUNDS = 4.0, 5.0, 5
_WIDEST = 0.9
_STEEPEST = 1e-3
"""Crystals drift by less than 100 ppm; more is no drift."""
_PARTNERS = (0.5, 0.62, 0.38)
_S = 10**9


@dataclass(frozen=True)
class Fit:
    """Time t on one clock is ``t + offset_ns + drift_ppb * (t - pivot_ns) / 1e9`` on the other.

    Parameters
    ----------
    sigma_ns
        Standard deviation of what is left, by its median size.
    widest_ns
        Nine of ten pairs deviate by less.
    largest_ns
        The largest correction within the time of the pairs.
    pairs
        How many there were.
    """

    offset_ns: int
    drift_ppb: int
    pivot_ns: int
    sigma_ns: int
    widest_ns: int
    largest_ns: int
    pairs: int

    @property
    def residual_ns(self) -> int:
        """What a correction must exceed to be one."""
        return max(3 * self.sigma_ns, self.widest_ns)

    @property
    def is_needed(self) -> bool:
        """Whether it corrects more than what it leaves."""
        return self.largest_ns > self.residual_ns


NONE = Fit(0, 0, 0, 0, 0, 0, 0)


def shifts(t: Array, offset_ns: int, drift_ppb: int, pivot_ns: int) -> Array:
    """Nanoseconds to add to times, exactly."""
    if not drift_ppb:
        return np.full(len(t), offset_ns, np.int64)
    whole, rest = np.divmod(t - pivot_ns, _S)
    return offset_ns + drift_ppb * whole + drift_ppb * rest // _S


def fit(t: Array, other: Array) -> Fit:
    """How to bring times `t` to those of the other clock, robustly.

    Parameters
    ----------
    t, other
        The same moments by both clocks, nanoseconds; at least `FEWEST`.
    """
    difference = other - t
    offset = _median(difference)
    pivot = _median(t)
    left = (difference - offset).astype(np.float64)
    time = (t - pivot).astype(np.float64)
    slope, start = _line(time, left)
    drift = round(slope * _S)
    if drift:
        left -= slope * time + start
        offset += round(start)
    away = np.abs(left)
    ends = [offset + drift * int(x) // _S for x in (time.min(), 0, time.max())]
    return Fit(
        offset_ns=offset,
        drift_ppb=drift,
        pivot_ns=pivot,
        sigma_ns=round(_SIGMA * float(np.median(away))),
        widest_ns=round(float(np.quantile(away, _WIDEST))),
        largest_ns=max(map(abs, ends)),
        pairs=len(t),
    )


def _median(values: Array) -> int:
    """The lower of the two middle values: exact, for times since 1970 have no float64."""
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])


def _line(time: Array, left: Array) -> tuple[float, float]:
    """Slope and value at 0 of a line, (0, 0) where it is not certain or changes nothing."""
    span = float(time.max() - time.min())
    if len(time) < _FEWEST_OF_LINE or not span:
        return 0.0, 0.0
    slope = _steep(time, left)
    start = float(np.median(left - slope * time))
    used = np.ones(len(time), np.bool_)
    for _ in range(_ROUNDS):  # least squares of what is not far off
        away = np.abs(left - slope * time - start)
        used = away <= max(_OUTLIER * _SIGMA * float(np.median(away)), 1.0)
        t, x = time[used], left[used]
        square = float(((t - t.mean()) ** 2).sum())
        if not square:
            return 0.0, 0.0
        slope = float(((t - t.mean()) * (x - x.mean())).sum()) / square
        start = float(x.mean() - slope * t.mean())
    t, x = time[used], left[used] - slope * time[used] - start
    error = np.sqrt(float((x**2).sum()) / max(len(t) - 2, 1) / square)
    widest = float(np.quantile(np.abs(left - slope * time - start), _WIDEST))
    certain = abs(slope) > _CERTAIN * error and abs(slope) < _STEEPEST
    return (slope, start) if certain and abs(slope) * span > widest else (0.0, 0.0)


def _steep(time: Array, left: Array) -> float:
    """Median slope of pairs far apart (Theil and Sen, of some pairs for each moment)."""
    order = np.argsort(time, kind="stable")
    time, left = time[order], left[order]
    slopes = []
    for share in _PARTNERS:
        apart = max(1, int(len(time) * share))
        run, rise = time[apart:] - time[:-apart], left[apart:] - left[:-apart]
        slopes.append(rise[run > 0] / run[run > 0])
    every = np.concatenate(slopes)
    return float(np.median(every)) if every.size else 0.0
