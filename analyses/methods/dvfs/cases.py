"""Durations of kernels at the clocks of one target, with their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs import ideal, limits
from chopper_interop.arrays import Array

if TYPE_CHECKING:
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
        self.limits = limits.duration_limits(known, target, durations, highest)

    @property
    def unknown(self) -> int:
        """Number of kernels that keep their duration because one of their clocks is not known."""
        return int(np.count_nonzero(self.durations.unknown))

    @property
    def is_known(self) -> bool:
        """True if the duration of any kernel is known."""
        return bool((self.durations.key >= 0).any())
