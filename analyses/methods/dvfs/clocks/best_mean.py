"""Mean sensitivity of all kernels under one assumption on the sensor, by the source that knows it best.

Sources are products of readings and speeds, differences between GPUs (`mean_sensitivity`), and durations averaged as
the sensor averages, which change as its readings do (`step_changes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks import followed_share as followed
from chopper_interop.analyses.methods.dvfs.clocks.mean_sensitivity import (
    mean_sensitivity,
    mean_sensitivity_of_gpus,
)
from chopper_interop.analyses.methods.dvfs.clocks.step_changes import MIN_RELIABILITY, Changes
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import (
        Assumption,
        Readings,
        Work,
    )

_MIN_CHANGE = 1e-3
"""Smallest standard deviation of a clock, as a share, that shows a sensitivity. Chosen: 2 MHz of 2000."""
_MIN_SPREAD_ERROR = 0.05
"""Smallest error of a mean sensitivity by readings spread over kernels, as a share of what it may be. Chosen: that of
the share which it needs."""
DECISIVE_GPU_ERROR = 0.15
"""Error of the mean sensitivity by differences between GPUs below which it counts against all others. Chosen: a
quarter of what is possible lies within."""
MIN_WINDOWS = 4
"""Windows of a reading in the time of work, below which readings show nothing of changes. Chosen: they overlap, and
blocks of time that are shorter do not show errors."""
_MIN_FOLLOWED_PART = 0.25
"""Smallest part of the expected share that is possible where durations do not show it."""
_TINY = 1e-12
"""Keeps quotients finite; far below all values."""


def best_mean(
    gpus: list[Readings], work: Work, assumed: Assumption, changes: list[Changes]
) -> tuple[float, float]:
    """Return the mean sensitivity of all kernels by the source with the smaller error, and that error; NaN if none shows it.

    Readings that show nothing of the clock in between are not spread over kernels: whatever is usual at their places
    would be taken for changes.
    """
    by_gpus = mean_sensitivity_of_gpus(gpus, work)
    if assumed.window_ns * MIN_WINDOWS > max(float(np.ptp(gpu.start)) for gpu in gpus):
        return by_gpus if np.isfinite(by_gpus[1]) else (np.nan, np.nan)
    by_products = mean_sensitivity(gpus, work, assumed)
    is_hidden = any(one.is_hidden for one in changes)
    by_spread = (np.nan, np.nan) if is_hidden else _mean_beta(changes)
    best, highest = by_spread, min(abs(by_spread[0]) + TWO_SIDED * by_spread[1], 1.0)
    if np.isnan(by_spread[0]) or by_products[1] < max(by_spread[1], _MIN_SPREAD_ERROR * highest):
        best = by_products if np.isfinite(by_products[1]) else (np.nan, np.nan)
    return _with_gpus(best, by_gpus)


def _with_gpus(best: tuple[float, float], by_gpus: tuple[float, float]) -> tuple[float, float]:
    """Mean sensitivity by one GPU's changes and by the differences between GPUs, and its error.

    The latter are the same whatever the sensor, so that what contradicts them is wrong of it.
    """
    if not np.isfinite(by_gpus[1]):
        return best
    apart = abs(best[0] - by_gpus[0]) / np.hypot(best[1], by_gpus[1])
    if np.isnan(best[0]) or (apart > TWO_SIDED and by_gpus[1] < DECISIVE_GPU_ERROR):
        return by_gpus
    weight = np.array([best[1], by_gpus[1]]) ** -2.0
    wider = max(float(apart) / TWO_SIDED, 1.0)  # Birge's ratio, from where it is no chance
    value = float(weight @ [best[0], by_gpus[0]] / weight.sum())
    return value, wider * float(weight.sum() ** -0.5)


def _mean_beta(changes: list[Changes]) -> tuple[float, float]:
    """Mean sensitivity of all kernels by their time, and its error.

    Averaged as the sensor averages, durations of kernels that follow the clock change as readings do.
    """
    weights = [one.size for one in changes]
    own, of_seen, as_read, in_full = followed.summed(changes)
    kept, lost = (followed.average([one.of_kernels[i] for one in changes], weights) for i in (0, 1))
    min_error = followed.MIN_SHARE_ERROR[any(one.is_sparse for one in changes)]
    true = followed.average([one.reliability for one in changes], weights)
    is_still = not in_full.sum() > _MIN_CHANGE**2 * sum(one.time for one in changes)
    if is_still or true <= MIN_RELIABILITY:
        return np.nan, np.nan
    beta = float(as_read.sum() / in_full.sum()) / (kept * true)
    of_size = np.sqrt((lost / kept) ** 2 + min_error**2 + followed.vagueness(changes) ** 2)
    flatter, flatter_single = followed.flatter(changes)
    of_readings = flatter * followed.ratio_error(as_read, in_full)
    error = float(np.hypot(of_readings / (kept * true), beta * of_size))
    if followed.is_shown(changes):
        return beta, error
    # Single durations that do not follow are a bound, whatever the share is within its limits.
    share = max(followed.followed_share(changes)[0], _TINY)
    single = float(own.sum() / of_seen.sum()) / share
    single_error = np.hypot(
        flatter_single * followed.ratio_error(own, of_seen) / (_MIN_FOLLOWED_PART * share), single
    )
    weight = np.maximum([error, single_error], _TINY) ** -2.0
    return float(weight @ [beta, single] / weight.sum()), float(weight.sum() ** -0.5)
