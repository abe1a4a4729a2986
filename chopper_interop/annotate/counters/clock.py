"""Mean clock of dispatches, from their counted cycles.

A dispatch that is counted runs alone, and the profiler's own work around it counts as active: a
number of cycles that is the same however long the kernel is (about 15,200, fitted over 301 dispatches
of an MI300X). This makes a short kernel seem to run at twice its clock. Cycles over time are fitted
as ``clock + overhead / time``, robustly, as the clock varies; the overhead is then taken off each
dispatch. Where it cannot be fitted, only dispatches get a clock that are long enough for it not to
matter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, statistics
from chopper_interop.issues import Fault, IssueLog

FITTED = Fault.info(
    "counted-clock-overhead",
    "Cycles that the profiler adds to every dispatch were fitted and taken "
    "off before clocks were derived from cycles.",
)
NOT_FITTED = Fault.info(
    "counted-clock-not-fitted",
    "The cycles that the profiler adds to every dispatch cannot be "
    "determined from so few or so similar ones: clocks of long dispatches include them.",
)
TOO_SHORT = Fault.loss(
    "counted-clock-too-short",
    "Dispatches too short for a clock: the profiler's own cycles may be more than 5 % of theirs.",
)
TOO_FAST = Fault.loss(
    "counted-clock-impossible",
    "Cycles of dispatches that ask for more than the GPU's highest "
    "clock, or for none: their clock is not known.",
)
NO_TIME = Fault.loss(
    "counted-clock-without-time",
    "Dispatches of which cycles were counted and no duration is known: their clock is not known.",
)

_MIN_DISPATCHES, _MIN_RATIO = 12, 4.0
"""Chosen: dispatches needed for a fit, and ratio of the longest to the shortest of them. A line
through durations that are closer together has no reliable slope."""
_HUBER = 1.345
"""Huber's constant for M-estimation: 95 % efficiency for normal errors."""
_MAX_ROUNDS = 50
"""Chosen: reweighting converges linearly, in fewer rounds or not at all."""
_UNFITTED_CYCLES = 20_000.0
"""An upper bound for overheads: the largest that was measured is 15,200 cycles (MI300X)."""
_MAX_ERROR = 0.05
"""Chosen: largest relative error of a clock that is reported, see `TOO_SHORT`."""
_CLOCK_TOLERANCE = 1.02
"""Chosen: a clock may seem to exceed the highest by this factor, as cycles and times are taken at
different times."""
_MIN_MHZ = 50.0
"""Chosen: below the lowest clock of any GPU that is busy."""


class Overhead(NamedTuple):
    """Cycles that each dispatch has in addition to its own."""

    cycles: float
    error: float
    """One standard deviation."""


def fit_overhead(cycles: Array, duration_ns: Array) -> Overhead | None:
    """Fit the cycles that each dispatch has in addition to its own; None if that is not possible.

    Iteratively reweighted least squares with Huber's weights.

    Parameters
    ----------
    cycles
        Cycles of dispatches on one die.
    duration_ns
        Their durations.
    """
    x, y = 1.0 / duration_ns, cycles / duration_ns
    if len(x) < _MIN_DISPATCHES or x.max() < _MIN_RATIO * x.min():
        return None
    weight = np.ones(len(x))
    slope = error = 0.0
    for _ in range(_MAX_ROUNDS):
        previous = slope
        mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
        spread = float(np.sum(weight * (x - mean_x) ** 2))
        if spread <= 0:
            return None
        slope = float(np.sum(weight * (x - mean_x) * (y - mean_y)) / spread)
        residual = y - mean_y - slope * (x - mean_x)
        sigma = statistics.mad_sigma(residual - np.median(residual))
        error = sigma / spread**0.5
        if sigma <= 0 or abs(slope - previous) <= 1e-9 * abs(slope):
            break
        weight = np.minimum(1.0, _HUBER * sigma / np.maximum(np.abs(residual), 1e-300))
    if slope < -2 * error or slope > 100 * _UNFITTED_CYCLES:
        return None
    return Overhead(max(slope, 0.0), error)


def mean_clocks_mhz(cycles: Array, duration_ns: Array, max_mhz: Array, issues: IssueLog) -> Array:
    """Mean clock of each dispatch of one GPU in MHz; NaN where it is not known.

    Parameters
    ----------
    cycles
        Cycles on one die; NaN where they were not counted.
    duration_ns
        Duration of the dispatch when they were counted; 0 if unknown.
    max_mhz
        The GPU's highest clock in MHz; NaN if unknown.
    issues
        Log of how clocks were derived, and of those that are not known.
    """
    result = np.full(len(cycles), np.nan)
    counted = cycles > 0
    issues.add(NO_TIME, np.count_nonzero(counted & ~(duration_ns > 0)))
    rows = np.flatnonzero(counted & (duration_ns > 0))
    if not rows.size:
        return result
    cycles, time = cycles[rows], duration_ns[rows]
    fit = fit_overhead(cycles, time)
    if fit is None:
        own, error = cycles, np.full(len(rows), _UNFITTED_CYCLES)
        issues.add(NOT_FITTED, len(rows))
    else:
        own, error = cycles - fit.cycles, np.full(len(rows), 2 * fit.error)
        text = f"{fit.cycles:,.0f} ± {fit.error:,.0f} cycles on each die"
        issues.add(FITTED, len(rows), text)
    short = np.flatnonzero(error > _MAX_ERROR * np.maximum(own, 1.0))
    issues.add(TOO_SHORT, short.size, f"{time[short].max():,.0f} ns" if short.size else "")
    clock = 1000.0 * own / time
    clock[short] = np.nan
    wrong = np.flatnonzero((clock > _CLOCK_TOLERANCE * max_mhz[rows]) | (clock < _MIN_MHZ))
    example = f"{clock[wrong[0]]:,.0f} MHz over {time[wrong[0]]:,.0f} ns" if wrong.size else ""
    issues.add(TOO_FAST, wrong.size, example)
    clock[wrong] = np.nan
    result[rows] = clock
    return result
