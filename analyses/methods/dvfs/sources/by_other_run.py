"""Times at other clocks by the run that counted cycles: the same kernels, one after the other, at other clocks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.repeats import mean_of
from chopper_interop.analyses.methods.dvfs.sources import by_prior, combination
from chopper_interop.analyses.methods.dvfs.sources.by_law import by_law
from chopper_interop.analyses.methods.dvfs.sources.combination import Estimate, Ratio
from chopper_interop.analyses.methods.dvfs.sources.laws import MIN_SPREAD
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.sources.evidence import Evidence

RUN_ERROR = 0.02
"""Standard deviation of a kernel's time between two runs at one clock, before laws show it: other
neighbours, caches, memory. Chosen: twice `_REPEAT_ERROR`."""
_MAX_RUN_ERRORS = 3.0
"""Runs that differ by more than so many `RUN_ERROR` contradict each other: three standard deviations."""
_REPEAT_ERROR = 0.01
"""Standard deviation of a kernel's time between repeats in one run at one clock. Chosen."""
_CURVATURE_ERROR = 0.12
"""Error of a sensitivity between the clocks of both runs where it is asked beyond the faster one; as of laws."""
_MIN_ALONE = 3
"""Repeats alone, and as many overlapped, that show how these differ. Chosen: the fewest with which one
outlier is not half of them."""


class Runs(NamedTuple):
    """Logarithm of how much longer kernels take in the run that counted cycles than in this one at one clock.

    Parameters
    ----------
    mean, spread
        Mean over kernels that have laws, and the standard deviation of one from it.
    error
        Standard error of that mean, by what all laws have in common.
    """

    mean: float
    spread: float
    error: float = 0.0

    @property
    def contradict(self) -> bool:
        """Return True if that is more than runs and laws differ."""
        return abs(self.mean) > _MAX_RUN_ERRORS * float(np.hypot(RUN_ERROR, self.error))

    @property
    def offset(self) -> float:
        """Difference that is subtracted from times in the other run; 0 if both contradict each other.

        The mean, as far as it is known better than by what runs usually differ.
        """
        trust = RUN_ERROR**2 / (RUN_ERROR**2 + self.error**2)
        return 0.0 if self.contradict else self.mean * trust

    @property
    def left(self) -> float:
        """Standard deviation of the differences that are left."""
        of_mean = self.error * RUN_ERROR / float(np.hypot(RUN_ERROR, self.error))
        return abs(self.mean) if self.contradict else float(np.hypot(self.spread, of_mean))


class OtherRun:
    """Times of kernels in the run that counted their cycles.

    Parameters
    ----------
    known
        Kernels of this run, and those that were counted.
    """

    def __init__(self, known: Evidence) -> None:
        self._known = known

    def ratio(self, target: Array, runs: Runs) -> Ratio:
        """Ratios by the times in the other run, at clocks near to the new ones.

        Parameters
        ----------
        target
            New clock period of each repeat, nanoseconds.
        runs
            How both runs differ.
        """
        ratio = self._times(target)
        form = np.hypot(ratio.form, np.hypot(runs.left, self._slower_by_overlap[1]))
        return ratio._replace(log=ratio.log - runs.offset, form=form)

    def compared(self, target: Array, law: Ratio) -> Runs:
        """Return how much the two runs differ at one clock, as kernels that have laws show."""
        other = self._times(target)
        both = np.flatnonzero(~np.isnan(other.log) & ~np.isnan(law.log))
        if not both.size:
            return Runs(0.0, RUN_ERROR)
        independent = np.sqrt(law.variance + other.variance)[both]
        apart = (other.log - law.log)[both]
        mean, spread = combination.random_effects(apart, independent, RUN_ERROR)
        weight = 1 / (independent**2 + RUN_ERROR**2)
        return Runs(mean, spread, float(weight @ law.common[both] / weight.sum()))

    @cached_property
    def chord(self) -> Estimate:
        """Sensitivities between the clocks that kernels ran at and those when they were counted."""
        known, target = self._known, self._counted_periods
        share = self._share
        ratio = self.ratio(target, self.compared(target, by_law(known, target)))
        clock = known.clock_error * np.abs((1 - np.exp(ratio.log)) / share - 1)
        error = np.hypot(np.sqrt(ratio.variance), clock) / np.abs(share)
        return Estimate((1 - np.exp(ratio.log)) / share, error)

    @cached_property
    def _counted_periods(self) -> Array:
        """Mean clock period of each repeat's kernel when it was counted, nanoseconds."""
        r, run = self._known.repeats, self._known.counted
        every = np.ones(len(run.position), bool)
        return mean_of(1000.0 / run.mhz, r.key[run.position], every, len(r.count))[r.key]

    @cached_property
    def _share(self) -> Array:
        """Part by which the counted period of each kernel is shorter than the measured; NaN where both are alike."""
        share = 1 - self._known.longer(self._counted_periods)
        share[np.abs(share) < MIN_SPREAD] = np.nan
        return share

    @cached_property
    def _beyond(self) -> Estimate:
        """Sensitivity at clocks beyond the counted one, by the prior and by the times of both runs."""
        r, run, prior = self._known.repeats, self._known.counted, by_prior.estimate(self._known)
        n, every = len(r.count), np.ones(len(r.key), bool)
        counted = mean_of(run.dur, r.key[run.position], every[: len(run.position)], n)
        longer = counted / mean_of(r.dur, r.key, every, n) * np.exp(self._slower_by_overlap[0])
        chord, error = (
            np.clip((1 - longer) / self._share, 0.0, 1.0),
            RUN_ERROR / np.abs(self._share),
        )
        weight = prior.error**-2, np.nan_to_num(1 / (error**2 + _CURVATURE_ERROR**2))
        total = weight[0] + weight[1]
        value = (weight[0] * prior.value + weight[1] * np.nan_to_num(chord)) / total
        return Estimate(value, total**-0.5)

    def _times(self, target: Array) -> Ratio:
        """Times in the other run over those in this one, as if both were equally fast at one clock.

        Kernels may follow the clock less, or more, than expected all at once: that is an error of the form.
        """
        r, run, beyond = self._known.repeats, self._known.counted, self._beyond
        n = len(r.count)
        key, to = r.key[run.position], target[run.position]
        period, known, requested = 1000.0 / run.mhz, ~np.isnan(to), ~np.isnan(target)
        count, others = (np.bincount(k, minlength=n) for k in (key[known], r.key[requested]))
        new = mean_of(run.dur * (1 - beyond.value[key] * (1 - to / period)), key, known, n)
        far = mean_of(np.abs(1 - to / period), key, known, n)
        log = np.log(new / mean_of(r.dur, r.key, requested, n)) + self._slower_by_overlap[0]
        repeats = 1 / np.where(count, count, np.nan) + 1 / np.maximum(others, 1)
        statistical, none = _REPEAT_ERROR * np.sqrt(repeats), np.where(np.isnan(log), np.nan, 0.0)
        return Ratio(log, statistical, none, far * beyond.error)

    @cached_property
    def _slower_by_overlap(self) -> tuple[Array, Array]:
        """Logarithm of how much longer communication makes the mean of all repeats, and its error.

        All repeats are compared with those alone. A law separates what clocks explain of the
        difference; without a law any part of it may be due to clocks.
        """
        r, regression = self._known.repeats, self._known.regression
        usable, laws = regression.usable, regression.laws
        n, every = len(r.count), np.ones(len(r.key), bool)
        alone = np.bincount(r.key[r.solo], minlength=n)
        both = (alone >= _MIN_ALONE) & (r.count - alone >= _MIN_ALONE)
        longer = np.log(mean_of(r.dur, r.key, every, n) / mean_of(r.dur, r.key, r.solo, n))
        rows = usable[r.key] & ~np.isnan(regression.x)
        k = np.where(rows, r.key, 0)
        expected = np.where(rows, laws.times(k, np.where(rows, regression.x, 1.0)), np.nan)
        solo, all_ = (mean_of(expected, r.key, rows & mask, n) for mask in (r.solo, every))
        rest = np.where(both, np.nan_to_num(longer - np.log(all_ / solo)), 0.0)
        unexplained = np.where(both & ~usable, np.nan_to_num(longer), 0.0)
        slower = np.where(usable, np.maximum(rest, 0.0), np.maximum(unexplained, 0.0) / 2)
        return slower, np.where(usable, 0.0, np.abs(unexplained) / 2)
