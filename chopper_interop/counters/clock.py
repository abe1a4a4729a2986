"""Mean clock of dispatches by the cycles that were counted.

A dispatch that is counted stands alone, and the profiler's own work around it counts as active: so
many cycles however long the kernel is (about 15,000 on MI300X). A short kernel seems to run at
twice its clock for it. Cycles over time are fitted as ``clock + overhead / time``, robustly, as the
clock varies; the overhead is then taken off each dispatch. Where it cannot be fitted, clocks are
told of dispatches alone that are long enough for it not to matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

FITTED = Fault(
    "counted-clock-overhead",
    Severity.INFO,
    "Cycles that the profiler adds to every dispatch were fitted and taken off before clocks were "
    "derived from cycles.",
)
NOT_FITTED = Fault(
    "counted-clock-not-fitted",
    Severity.INFO,
    "The cycles that the profiler adds to every dispatch can't be told from so few or so similar "
    "ones: clocks of long dispatches are with them.",
)
TOO_SHORT = Fault(
    "counted-clock-too-short",
    Severity.LOSS,
    "Dispatches too short for a clock: the profiler's own cycles may be more than 5 % of theirs.",
)
TOO_FAST = Fault(
    "counted-clock-impossible",
    Severity.LOSS,
    "Cycles of dispatches that ask for more than the GPU's highest clock, or for none: their clock "
    "is not known.",
)
NO_TIME = Fault(
    "counted-clock-without-time",
    Severity.LOSS,
    "Dispatches of which cycles were counted and no duration is known: their clock is not known.",
)

_LEAST, _SPREAD = 12, 4.0
_HUBER, _ROUNDS = 1.345, 50
_MAD = 1.4826
_UNFITTED_CYCLES = 20_000.0
"""More than any overhead that was seen."""
_ERROR = 0.05
_ABOVE = 1.02
"""A clock may seem so much higher than it can be, as cycles and times are taken apart."""
_LOWEST_MHZ = 50.0


class Overhead(NamedTuple):
    """Cycles that each dispatch has beyond its own."""

    cycles: float
    error: float
    """One standard deviation."""


def overhead(cycles: Array, duration_ns: Array) -> Overhead | None:
    """Cycles that each dispatch has beyond its own; None if they can't be told.

    Parameters
    ----------
    cycles
        Cycles of dispatches on one die.
    duration_ns
        How long these took.
    """
    x, y = 1.0 / duration_ns, cycles / duration_ns
    if len(x) < _LEAST or x.max() < _SPREAD * x.min():
        return None
    weight = np.ones(len(x))
    slope = error = 0.0
    for _ in range(_ROUNDS):
        before = slope
        mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
        spread = float(np.sum(weight * (x - mean_x) ** 2))
        if spread <= 0:
            return None
        slope = float(np.sum(weight * (x - mean_x) * (y - mean_y)) / spread)
        rest = y - mean_y - slope * (x - mean_x)
        scale = _MAD * float(np.median(np.abs(rest - np.median(rest))))
        error = scale / spread**0.5
        if scale <= 0 or abs(slope - before) <= 1e-9 * abs(slope):
            break
        weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(rest), 1e-300))
    if slope < -2 * error or slope > 100 * _UNFITTED_CYCLES:
        return None
    return Overhead(max(slope, 0.0), error)


def mhz(cycles: Array, duration_ns: Array, most: Array, issues: IssueLog) -> Array:
    """Mean clock of each dispatch of one GPU in MHz; not a number where it is not known.

    Parameters
    ----------
    cycles
        Cycles on one die; not a number where they were not counted.
    duration_ns
        How long the dispatch took when they were; 0 where that is not known.
    most
        The GPU's highest clock in MHz; not a number if unknown.
    issues
        Where it is told how it was done, and what is not known.
    """
    found = np.full(len(cycles), np.nan)
    counted = cycles > 0
    issues.add(NO_TIME, np.count_nonzero(counted & ~(duration_ns > 0)))
    rows = np.flatnonzero(counted & (duration_ns > 0))
    if not rows.size:
        return found
    cycles, time = cycles[rows], duration_ns[rows]
    fit = overhead(cycles, time)
    if fit is None:
        own, error = cycles, np.full(len(rows), _UNFITTED_CYCLES)
        issues.add(NOT_FITTED, len(rows))
    else:
        own, error = cycles - fit.cycles, np.full(len(rows), 2 * fit.error)
        told = f"{fit.cycles:,.0f} ± {fit.error:,.0f} cycles on each die"
        issues.add(FITTED, len(rows), told)
    short = np.flatnonzero(error > _ERROR * np.maximum(own, 1.0))
    issues.add(TOO_SHORT, short.size, f"{time[short].max():,.0f} ns" if short.size else "")
    clock = 1000.0 * own / time
    clock[short] = np.nan
    wrong = np.flatnonzero((clock > _ABOVE * most[rows]) | (clock < _LOWEST_MHZ))
    example = f"{clock[wrong[0]]:,.0f} MHz over {time[wrong[0]]:,.0f} ns" if wrong.size else ""
    issues.add(TOO_FAST, wrong.size, example)
    clock[wrong] = np.nan
    found[rows] = clock
    return found
