"""Decays of a filtered power in idle times, which show filter and idle power whatever work around them draws.

After idle times the clock of a limited GPU is above its mean, and power returns sooner than a model with another clock
has it. A fit of all samples then takes the filter for shorter, and idle power for up to twice what it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, statistics

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.bins import Bins
    from chopper_interop.analyses.methods.power.response import Observed

_LOG_WIDTHS = np.log(np.geomspace(0.3e6, 2e9, 48))
"""Time constants that are tried first, in ns. Chosen: those of `fit._WIDTHS_NS` and a factor of two, finely enough
that the best one has no other minimum next to it."""
_LOG_RAMPS = np.log(np.geomspace(0.3e6, 2e9, 200))
"""Lengths of windows that are tried, in ns. Chosen: twice as fine as `fit._WIDTHS_NS`, as nothing refines them."""
_REFINED = 3
"""Times that the steps between them are divided by 4. Chosen: to 0.3 %, below any error of a time constant."""
_FEWEST = 3
"""Samples of an idle time that show a decay: two lie on any that ends at a given power."""
_MAX_ERROR = 0.3
"""Error of the logarithm of the time constant up to which idle power is linear in it. Chosen: samples then span
a good part of it."""
_COUNTED = 2
"""Times that the samples of idle times count: here and in the fit that follows."""
_ALIKE_NS = 1e6
"""Times after the begin of an idle time that are taken for one. Chosen: the shortest periods of samples."""
_TINY = 1e-12
_ROUNDING = 1 / 12
"""Variance of values that are rounded to whole watts: that of a uniform distribution."""


@dataclass(frozen=True)
class Decay:
    """Filter and idle power by decays alone.

    Parameters
    ----------
    log_width, log_width_error
        Logarithm of the filter's time constant in ns, and its standard error.
    idle_w, idle_error_w
        Power that all decays approach if the time constant is this, and its standard error.
    idle_rise_w
        Change of that power by one more of `log_width`.
    """

    log_width: float
    log_width_error: float
    idle_w: float
    idle_error_w: float
    idle_rise_w: float


def idle_decay(bins: Bins, is_idle: Array, observed: Observed, delay_ns: float) -> Decay | None:
    """Fit one exponential decay to the samples of all idle times; None if they do not determine it, or fall evenly.

    Parameters
    ----------
    bins, is_idle
        Bins of time, and those in which nothing ran.
    observed
        Samples of power by a filter.
    delay_ns
        Time until a value shows.
    """
    # Each idle time has a height of its own, so that nothing is assumed of the power before it:
    #   sample = idle + height of its idle time x exp(-since / width)
    begins = is_idle.copy()
    begins[1:] &= ~is_idle[:-1] | (np.arange(1, bins.count) % bins.block == 0)
    start = np.flatnonzero(begins) * bins.width_ns
    at = observed.end - bins.start_ns
    bin_of_sample = np.clip(at // bins.width_ns, 0, bins.count - 1)
    run = np.cumsum(begins) - 1
    group = run[bin_of_sample]
    if not len(start):
        return None
    since = at - start[group]
    blur = observed.uncertainty_ns
    until = np.clip((at + blur) // bins.width_ns, 0, bins.count - 1)
    used = is_idle[bin_of_sample] & is_idle[until] & (run[until] == group)
    used &= since >= delay_ns + blur
    used &= np.bincount(group[used], minlength=len(start))[group] >= _FEWEST
    if not used.any():
        return None
    _, group = np.unique(group[used], return_inverse=True)
    return _fitted(since[used].astype(np.float64), group, observed.value[used])


def _fitted(since: Array, group: Array, value: Array) -> Decay | None:
    """Fit a decay to values so long after the begin of their idle times."""
    freedom = len(value) - (int(group.max()) + 1) - 2
    if freedom < 1:
        return None
    tried = _LOG_WIDTHS
    for _ in range(1 + _REFINED):
        left = np.exp(-since / np.exp(tried)[:, np.newaxis])
        idle, residual, lever = _without_falls(left, group, value)
        squares = (residual**2).sum(axis=1)
        best = int(np.argmin(squares))
        if not 0 < best < len(tried) - 1:
            return None
        step = float(tried[best] - tried[best - 1])
        log_width, tried = tried[best], tried[best] + step / 4 * np.arange(-4, 5)
    # a mean over a window falls evenly and is then at the idle power
    ramps = np.maximum(1 - since / np.exp(_LOG_RAMPS)[:, np.newaxis], 0.0)
    if (_without_falls(ramps, group, value)[1] ** 2).sum(axis=1).min() < squares[best]:
        return None
    variance = max(float(squares[best]) / freedom, _ROUNDING)
    variance *= _COUNTED * statistics.correlated_samples(residual[best])
    variance += _ROUNDING * (_repeated(since, value) - 1)
    curvature = float(squares[best - 1] + squares[best + 1] - 2 * squares[best]) / step**2
    error = math.sqrt(2 * variance / curvature) if curvature > 0 else math.inf
    if error > _MAX_ERROR or idle[best] <= 0:
        return None
    rise = float(idle[best + 1] - idle[best - 1]) / (2 * step)
    idle_error = math.sqrt(variance / float(lever[best]) + _ROUNDING)
    return Decay(float(log_width), error, float(idle[best]), idle_error, rise)


def _repeated(since: Array, value: Array) -> float:
    """Return how often samples repeat another one: those of a power that stays are all rounded alike, and say what one does."""
    distinct = np.unique(np.stack([np.rint(since / _ALIKE_NS), value]), axis=1).shape[1]
    return len(value) / distinct


def _without_falls(left: Array, group: Array, value: Array) -> tuple[Array, Array, Array]:
    """Take falls of any height off the values of each idle time.

    Returns the idle power by each way of falling (``left``, ``[way, sample]``, what is left of a height), the
    residuals (``[way, sample]``), and the weight of that power.
    """
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    total = np.maximum(np.add.reduceat(left**2, starts, axis=1), _TINY)

    def without_heights(values: Array) -> Array:
        height = np.add.reduceat(left * values, starts, axis=1) / total
        rest: Array = values - left * height[:, group]
        return rest

    ones, values = without_heights(np.ones(len(value))), without_heights(value)
    lever = np.maximum((ones**2).sum(axis=1), _TINY)
    idle = (ones * values).sum(axis=1) / lever
    return idle, values - ones * idle[:, np.newaxis], lever
