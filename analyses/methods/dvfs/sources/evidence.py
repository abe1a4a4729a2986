"""Evidence on the sensitivity of a trace's kernels: their repeats, laws, counters, classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks import kernel_clocks
from chopper_interop.analyses.methods.dvfs.sources.combination import Estimate, Ratio
from chopper_interop.analyses.methods.dvfs.sources.laws import MIN_SPREAD, Regression
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.repeats import Repeats
    from chopper_interop.analyses.methods.dvfs.sources.kernel_counters import Busy, Counted

_COMMON_CLOCK_SHARE = 0.5
"""Share of a clock's error that all kernels have in common however often it was sampled. Chosen: as each
clock lags behind where its step is, part of the error is the same in every step."""
MIN_RATIO = 0.05
"""Smallest ratio of times by a sensitivity, so that it has a logarithm. Chosen: reached
only where a sensitivity near 1 meets a clock twenty times as fast."""


@dataclass(frozen=True)
class Evidence:
    """Evidence on the kernels of a trace: their repeats, laws, counters, classes and clocks.

    Parameters
    ----------
    repeats
        Kernels of the trace.
    regression
        Laws of those kernels that have one.
    counted
        Kernels that were counted in another run.
    busy
        Busy cycles and bytes of each repeat.
    classes
        Class of each kernel, an index of `CLASSES`.
    bandwidth
        Peak bandwidth of the memory of each repeat's GPU, 1e9 byte/s; NaN where unknown.
    """

    repeats: Repeats
    regression: Regression
    counted: Counted
    busy: Busy
    classes: Array
    bandwidth: Array

    @cached_property
    def x(self) -> Array:
        """Mean length of a clock period of each kernel's repeats, nanoseconds."""
        return self.repeats.mean(self.regression.x)

    @cached_property
    def mhz(self) -> Array:
        """Clock of each repeat; the mean of the others where its own is not known."""
        measured = self.repeats.clocks.mhz
        return np.where(np.isnan(measured), 1000.0 / self.x[self.repeats.key], measured)

    @cached_property
    def lift(self) -> Array:
        """Mean clock of each kernel's repeats over what tools read."""
        return self.repeats.mean(self.repeats.clocks.mhz / self.repeats.clocks.read_mhz)

    @cached_property
    def read_mhz(self) -> Array:
        """Clock of each repeat as tools read it; by the mean of the others where its own is not known."""
        measured = self.repeats.clocks.read_mhz
        return np.where(np.isnan(measured), self.mhz / self.lift[self.repeats.key], measured)

    @cached_property
    def mean_read_mhz(self) -> Array:
        """Mean clock of each kernel as tools read it."""
        return 1000.0 / (self.x * self.lift)

    @cached_property
    def period(self) -> Array:
        """Clock period of each repeat, ns; the mean of the others where its own is unknown."""
        x = self.regression.x
        return np.where(np.isnan(x), self.x[self.repeats.key], x)

    @cached_property
    def clock_error(self) -> Array:
        """Error of the clocks of each kernel that all kernels have in common, as a share."""
        error = self.repeats.clocks.error_share
        unknown = np.isnan(error)  # taken to have run at the mean clock of the others
        square = self.repeats.mean(np.where(unknown, kernel_clocks.PRIOR_SHARE, error) ** 2)
        unreliable = np.sqrt(square) > MIN_SPREAD
        by_column = np.sqrt(square) * np.where(unreliable, 1.0, _COMMON_CLOCK_SHARE)
        clocks = self.repeats.clocks
        sensed = np.sqrt(self.repeats.mean(np.hypot(clocks.common, clocks.scale_error) ** 2))
        return np.where(np.isnan(sensed), by_column, sensed)

    @cached_property
    def mean_estimate(self) -> Estimate:
        """Mean sensitivity of all kernels on GPUs with a sensor, with the error of the mean."""
        clocks, mean = self.repeats.clocks, self.repeats.mean
        return Estimate(np.clip(mean(clocks.beta), 0.0, 1.0), mean(clocks.beta_error))

    def target_periods(self, mhz: Array, *, is_change: bool) -> Array:
        """New lengths of clock periods; those of a change start at the calibrated measured period."""
        if not is_change:
            return 1000.0 / mhz
        return self.period * (self.mhz / mhz)

    def longer(self, target: Array) -> Array:
        """New periods of each kernel's clock over the measured, of the repeats with a new one (`target`)."""
        r = self.repeats
        return r.mean(target) / r.mean(self.period, ~np.isnan(target))

    def ratio_by(self, estimate: Estimate, target: Array) -> Ratio:
        """Ratios of times by sensitivities between the measured clocks and the new periods `target`."""
        share = 1 - self.longer(target)
        ratio = np.maximum(1 - estimate.value * share, MIN_RATIO)
        error = np.abs(estimate.error * share) / ratio
        clock = np.abs(estimate.value) * self.clock_error / ratio
        return Ratio(np.log(ratio), error * 0.0, clock, error)

    def floors(self, mhz: Array) -> Array:
        """Shortest possible time of each repeat, ns, by its busy cycles and its bytes; 0 if unknown.

        Parameters
        ----------
        mhz
            New clock of each repeat.
        """
        cycles = self.repeats.mean(self.busy.core_cycles)[self.repeats.key]
        moved = self.repeats.mean(self.busy.memory_ns)[self.repeats.key]
        return np.fmax(np.nan_to_num(1000.0 * cycles / mhz), np.nan_to_num(moved))
