"""Durations of kernels at the clocks of one target, with their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs import ideal
from chopper_interop.analyses.methods.dvfs.clocks.kernel_clocks import PRIOR_SHARE
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED, Limits
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.ideal import Durations
    from chopper_interop.analyses.methods.dvfs.sensitivity import Sensitivities
    from chopper_interop.analyses.methods.dvfs.target_clocks import Target


class Case:
    """Durations of kernels at the clocks of one target."""

    def __init__(self, known: Sensitivities, target: Target, highest: Array) -> None:
        change = target.is_change
        known, mhz, scale_error = known.at_readings(target.mhz, is_change=change)
        target = target._replace(mhz=mhz, scale_error=scale_error)
        self.mhz, self.clocks = mhz, target.clocks
        self.is_of_core = target.memory is None
        ratio, self.each, self.weight = known.ratio(target.mhz, is_change=change)
        slope = known.chords(ratio, target.mhz, is_change=change)
        error = np.hypot(target.error_share, known.repeats.mean(scale_error)) * slope
        ratio = ratio._replace(clock=np.hypot(ratio.clock, error))
        durations = ideal.measured(known)
        if target.core:
            durations = ideal.durations(known, ratio, target.mhz, is_change=change)
        if target.memory is not None:
            durations = durations.with_memory(
                known,
                target.memory,
                known.longer(known.target_periods(target.mhz, is_change=change)),
            )
        if target.ranks is not None:
            durations = durations.only(np.isin(known.repeats.trace.array("rank"), target.ranks))
        self.durations = durations
        self.limits = duration_limits(known, target, durations, highest)

    @property
    def unknown(self) -> int:
        """Number of kernels that keep their duration because one of their clocks is not known."""
        return int(np.count_nonzero(self.durations.unknown))

    @property
    def is_known(self) -> bool:
        """True if the duration of any kernel is known."""
        return bool((self.durations.key >= 0).any())


_STEP_RUN_ERROR = 6e-4
"""Share by which the time of a step differs from run to run at one clock, at the least. Chosen: below the
0.1 % by which steps of real jobs differ from each other, above the 0.04 % between bursts and sustained work of an fft on an H200."""


def duration_limits(known: Sensitivities, target: Target, new: Durations, highest: Array) -> Limits:
    """Return the bounds of the durations of GPU work at other clocks.

    Parameters
    ----------
    known
        Sensitivities of the trace's kernels.
    target
        Other clocks.
    new
        Predicted durations at these clocks.
    highest
        Highest clock of each repeat's GPU, MHz; NaN where unknown.
    """
    # The clock may change by as much as was asked for under any assumption on its sensor.
    every = (known, *(() if target.is_change else known.extremes or ()))
    lows, highs = zip(*(_kernel_limits(one, target, highest) for one in every), strict=True)
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    margin = TWO_SIDED * new.error  # of all other work, and of kernels without a clock
    lower = new.log - (0.0 if (low >= 0).all() else margin)
    upper = new.log + (0.0 if (high <= 0).all() else margin)
    node = known.repeats.node
    bounded = (new.key[node] >= 0) & ~np.isnan(low)
    lower[node[bounded]], upper[node[bounded]] = low[bounded], high[bounded]
    return Limits(lower, upper)


def _kernel_limits(known: Sensitivities, target: Target, highest: Array) -> tuple[Array, Array]:
    """Bounds of each repeat by its clocks alone; NaN where one is unknown.

    Whatever the error of its clock, it ran no faster than at the highest of its GPU, or than was measured.
    """
    r = known.repeats
    all_core = np.log(known.mhz / target.mhz)
    error = np.full(len(all_core), target.error_share)
    bound = np.where(r.clocks.is_sensed, r.clocks.common, r.clocks.error_share)
    if not target.is_change:
        error = np.hypot(error, np.nan_to_num(bound, nan=PRIOR_SHARE))
    # A lower reading is no higher clock, however readings are related to clocks.
    with_scale = np.hypot(error, r.clocks.scale_error + target.scale_error)
    below = TWO_SIDED * np.where(all_core > 0, error, with_scale)
    above = TWO_SIDED * np.where(all_core < 0, error, with_scale)
    fastest = np.log(np.fmax(known.mhz, highest) / target.mhz)
    fastest[np.isnan(highest)] = np.nan
    low = np.minimum(all_core - below, 0.0)
    high = np.maximum(np.fmin(all_core + above, fastest), 0.0)
    floor = np.log(np.maximum(known.floors(target.mhz), 1.0) / r.dur)
    if not target.is_change:
        low, high = low - _STEP_RUN_ERROR, high + _STEP_RUN_ERROR
    if target.memory is None:
        return np.maximum(low, np.minimum(floor, 0.0)), high
    # Each nanosecond follows one clock or the other, so the clock that changes more bounds both.
    all_memory = np.nan_to_num(np.log(target.memory))
    return np.minimum(low, all_memory), np.maximum(high, all_memory)
