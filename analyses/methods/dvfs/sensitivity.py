"""Sensitivity of each kernel's time to the core clock, by several sources, with errors.

Kernels that do the same are taken together (`repeats`). Several sources show how their times follow
the clock. Each gives, for a change from the clocks that they ran at to another, the ratio of their
times and its error, and they are combined by the inverses of their variances:

``regression``
    A law fitted to the repeats' times and clocks (`sensitivity_fit`).
``counted``
    Times of the same kernels in the run in which their cycles were counted, one after the other.
``counters``
    Busy cycles of matrix and vector units, and bytes at the memory's peak bandwidth.
``class``
    The laws of other kernels of their class in this trace.
``prior``
    The prior of their class; only where the trace has too few laws of the class.

An error has three parts: a statistical one of each kernel; one that all have in common, of the
clocks themselves; and one of the form of the law, as where it is asked beyond the clocks it was
fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs import (
    clock_sensor,
    intervals,
    kernel_clocks,
    repeats,
    sensitivity_laws,
    sensitivity_sources,
    sensor_fit,
)
from chopper_interop.analyses.methods.dvfs import sensitivity_combination as combined
from chopper_interop.analyses.methods.dvfs.repeats import mean_of
from chopper_interop.analyses.methods.dvfs.sensitivity_combination import Ratio
from chopper_interop.analyses.methods.dvfs.sensitivity_laws import MIN_SPREAD
from chopper_interop.analyses.methods.dvfs.sensitivity_sources import CLASSES, PRIORS, Estimate
from chopper_interop.gpus import ratings

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clock_sensor import Assumption, Sensor
    from chopper_interop.analyses.methods.dvfs.kernel_clocks import Clocks, SensedClocks
    from chopper_interop.analyses.methods.dvfs.repeats import Repeats
    from chopper_interop.analyses.methods.dvfs.sensitivity_laws import Regression
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

_RUN_ERROR = 0.02
"""Standard deviation of a kernel's time between two runs at one clock, before laws show it: other
neighbours, caches, memory. Chosen: twice `_REPEAT_ERROR`."""
_RUN_LIMIT = 3.0
"""Runs that differ by more than so many `_RUN_ERROR` contradict each other: three standard deviations."""
_REPEAT_ERROR = 0.01
"""Standard deviation of a kernel's time between repeats in one run at one clock. Chosen."""
_BEYOND = 0.05
"""Share by which the range of a prior reaches beyond what is possible, which then limits it."""
_MIN_ALONE = 3
"""Repeats alone, and as many overlapped, that show how these differ. Chosen: the fewest with which one
outlier is not half of them."""
_CURVATURE = (0.15, 0.17)
"""Sensitivity of a kernel at a clock less that between it and a faster clock, and its error. Chosen: 0 if
only the core bounds the kernel, more if memory bounds it at faster clocks."""
_MIN_OF_CLASS = 6
"""Kernels with laws that a class needs. Chosen: twice what the expected spread counts as, so that the
trace outweighs it."""
_COMMON_CLOCK_SHARE = 0.5
"""Share of a clock's error that all kernels have in common however often it was sampled. Chosen: as each
clock lags behind where its step is, part of the error is the same in every step."""
_CLOCK_BEYOND = 2.0
"""Errors of the clocks by which times may lie outside what is possible at the measured clocks: 95 %."""
_NO_CHANGE = 1e-6
"""Relative change of a clock below which it counts as none: far below what clocks resolve."""
_TINY = 1e-12
"""Keeps a division by a variance of 0 finite."""
_MAX_DEVIATION = 3.0
"""Standard errors of a clock beyond which a deviating time has other reasons than the clock."""
_OF_ATTENUATION = 0.5
"""Error of the correction of a slope for the errors of its clocks, as a share of it. Chosen: wide, as that
error is itself an estimate."""
_MIN_BETA_ERROR = 0.01
"""Smallest error of a slope. Chosen: the spread of repeats at one clock."""
_MIN_RATIO = 0.05
"""Smallest ratio of times by a sensitivity, so that it has a logarithm. Chosen: reached
only where a sensitivity near 1 meets a clock twenty times as fast."""
_BEYOND_MEAN = 0.12
"""Error of the mean sensitivity beyond the clocks that were seen, as a share of it; as of laws."""
_OF_UNIFORM = 3.0
"""Share of the largest variance with the same mean: that of sensitivities that are uniform from 0 to 1."""
_BETWEEN = 0.12
"""Expected standard deviation of the sensitivities in a class. Chosen: somewhat less than the priors'
errors, which also hold what traces differ by."""


class _Runs(NamedTuple):
    """How much longer kernels take in the run that counted cycles than in this one at one clock, as a logarithm.

    Parameters
    ----------
    mean, spread
        Mean over kernels that have laws, and the standard deviation of one from it.
    """

    mean: float
    spread: float

    @property
    def contradict(self) -> bool:
        """Return True if that is more than runs differ."""
        return abs(self.mean) > _RUN_LIMIT * _RUN_ERROR

    @property
    def offset(self) -> float:
        """Mean difference, which is subtracted from times in the other run; 0 if they contradict each other."""
        return 0.0 if self.contradict else self.mean

    @property
    def error(self) -> float:
        """Standard deviation of the differences that are left."""
        return abs(self.mean) if self.contradict else self.spread


@dataclass(frozen=True)
class Sensitivities:
    """Sensitivities of a trace's kernels to the core clock.

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
    sensors
        Sensors of the clock, and what is assumed of them.
    extremes
        The same under the assumptions on the sensors by which kernels take the least and the most time
        at a higher clock; None if only one assumption is left.
    """

    repeats: Repeats
    regression: Regression
    counted: sensitivity_sources.Counted
    busy: sensitivity_sources.Busy
    classes: Array
    bandwidth: Array
    sensors: tuple[SensedClocks, ...] = ()
    extremes: tuple[Sensitivities, Sensitivities] | None = None

    def ratio(self, mhz: Array, *, is_change: bool = False) -> tuple[Ratio, list[Ratio], Array]:
        """Predict the times of kernels at other clocks.

        Parameters
        ----------
        mhz
            New clock of each repeat.
        is_change
            True if `mhz` is a change to the clock that each ran at, and not a clock of its own: then
            no time changes where no clock does.

        Returns
        -------
        together
            Ratio of each kernel by all sources.
        each
            The same by each of `SOURCES`; NaN where a source has no estimate.
        weight
            Weight of each source, (source, kernel).
        """
        together, each, weight = self._ratio(mhz, is_change=is_change)
        if self.extremes is None:
            return together._replace(sensor=np.zeros(len(together.log))), each, weight
        ratios = [together]
        runs = None if is_change else self._runs(mhz)
        for one, share in zip(self.extremes, self._shares, strict=True):
            clocks = self._of(one, mhz, is_change=is_change)
            ratio = one._ratio(clocks, is_change=is_change, runs=runs)[0]  # noqa: SLF001
            ratios.append(_with_errors(ratio, share))
        low, high = self._ends(ratios)
        log, reach = (low.log + high.log) / 2, (high.log - low.log) / 2
        # Each end of the interval has the errors of its own assumption.
        log = log + intervals.TWO_SIDED * (_common(high) - _common(low)) / 2
        statistical, clock, form = ((a + b) / 2 for a, b in zip(low[1:4], high[1:4], strict=True))
        sensor = np.nan_to_num(reach)
        settled = min(
            (one.settled for one in (low, high)),
            key=lambda v: 0.0 if v is None else float(v @ v),
        )
        shift = np.nan_to_num(log - together.log)
        ratio = Ratio(
            together.log, statistical, clock, form, sensor, together.direction, settled, shift
        )
        return ratio, each, weight

    def _ends(self, ratios: list[Ratio]) -> tuple[Ratio, Ratio]:
        """Return the ratios by which kernels together may take the least and the most time, within their errors."""
        ns = np.bincount(self.repeats.key, self.repeats.dur)
        sums = [(ns @ np.nan_to_num(one.log), ns @ np.nan_to_num(_common(one))) for one in ratios]
        low = min(range(len(sums)), key=lambda i: sums[i][0] - intervals.TWO_SIDED * sums[i][1])
        high = max(range(len(sums)), key=lambda i: sums[i][0] + intervals.TWO_SIDED * sums[i][1])
        return ratios[low], ratios[high]

    @property
    def _shares(self) -> tuple[float, float]:
        """Part of the errors under both extremes that counts; of several sensors the largest."""
        accepted = [one.accepted for one in self.sensors]
        return max(one.low_share for one in accepted), max(one.high_share for one in accepted)

    @property
    def _is_estimated(self) -> bool:
        """True if durations show which assumptions on the sensors are best."""
        return all(one.accepted.origin != clock_sensor.UNKNOWN for one in self.sensors)

    def _of(self, other: Sensitivities, mhz: Array, *, is_change: bool) -> Array:
        """New clocks under another assumption on the sensor: a change is as large as under this one."""
        return mhz * (other.mhz / self.mhz) if is_change else mhz

    def _ratio(
        self, mhz: Array, *, is_change: bool, runs: _Runs | None = None
    ) -> tuple[Ratio, list[Ratio], Array]:
        """Predict the times of kernels under one assumption on the sensors; as `ratio`.

        Parameters
        ----------
        mhz, is_change
            As of `ratio`.
        runs
            How the run that counted cycles differs from this one by the laws of the assumption that is most
            likely, if that is none. Its clock needs no sensor: where laws contradict it, they are wrong by that,
            and how much the runs differ is not known.
        """
        target = self._periods(mhz, is_change=is_change)
        law = self._by_law(target)
        own = self._compared_runs(self._in_other_run(target), law)
        if runs is not None and not runs.contradict:
            law = law._replace(form=np.hypot(law.form, abs(own.mean - runs.mean)))
            own = _Runs(runs.mean, _RUN_ERROR)
        counted = self._by_counted(target, own)
        if is_change:
            counted = self._by(self._chord_of_counted, target)
        each = [law, counted, self._by(self._by_counters, target)]
        of_class = self._by(self._of_class(each[combined.REGRESSION], target), target)
        each.append(combined.first_known(of_class, self._by_mean(target)))
        each.append(self._by_prior(target, self.clock_error * (not is_change)))
        if is_change:  # an error that both clocks share
            each = [one._replace(clock=np.abs(one.log) * self.clock_error) for one in each]
            law = each[combined.REGRESSION]
            each[combined.REGRESSION] = law._replace(clock=np.hypot(law.clock, self._size(law.log)))
        of_class = each[combined.CLASS]
        alike = self._alike_in_class(each[combined.REGRESSION])
        each[combined.CLASS] = of_class._replace(clock=np.fmax(of_class.clock, alike))
        together, weight = combined.combine_ratios(each)
        together = self._with_mean(together, target, weight)
        free = together.log
        together = self.held(together, mhz, is_change=is_change)
        return together._replace(log=free), each, weight

    def held(self, ratio: Ratio, mhz: Array, *, is_change: bool = False) -> Ratio:
        """Hold ratios between none of the time following the clock and all of it; no error is larger.

        They may lie outside by no more than clocks may be wrong: another run shows how long kernels
        take at a clock, whatever clock was recorded here. `ratio` does not hold them, as sums of many
        that are held would be off to one side.

        Parameters
        ----------
        ratio, mhz, is_change
            Ratio by all sources for these clocks, and the clocks, as of `ratio`.
        """
        in_full = np.log(self._periods(mhz, is_change=is_change) / self._period)
        low, high = (self.repeats.mean(end(in_full, 0.0)) for end in (np.minimum, np.maximum))
        unknown = np.isnan(low)  # another run may time kernels without clocks of their own
        low[unknown], high[unknown] = -np.inf, np.inf
        beyond = np.nan_to_num(_CLOCK_BEYOND * self.clock_error * (0.0 if is_change else 1.0))
        reach = np.maximum(-low, high) + beyond
        statistical, clock, form = (np.fmin(error, reach) for error in ratio[1:4])
        return ratio._replace(
            log=np.clip(ratio.log, low - beyond, high + beyond),
            statistical=statistical, clock=clock, form=form,
        )  # fmt: skip

    @cached_property
    def _chord_of_counted(self) -> Estimate:
        """Sensitivities between the clocks that kernels ran at and those when they were counted."""
        position, n = self.counted.position, len(self.repeats.count)
        every = np.ones(len(position), bool)
        period = mean_of(1000.0 / self.counted.mhz, self.repeats.key[position], every, n)
        target = period[self.repeats.key]
        share = 1 - self._longer(target)
        share[np.abs(share) < MIN_SPREAD] = np.nan
        runs = self._compared_runs(self._in_other_run(target), self._by_law(target))
        ratio = self._by_counted(target, runs)
        clock = self.clock_error * np.abs((1 - np.exp(ratio.log)) / share - 1)
        error = np.hypot(np.sqrt(ratio.variance), clock) / np.abs(share)
        return Estimate((1 - np.exp(ratio.log)) / share, error)

    @cached_property
    def x(self) -> Array:
        """Mean length of a clock period of each kernel's repeats, nanoseconds."""
        return self.repeats.mean(self.regression.x)

    @cached_property
    def clock_error(self) -> Array:
        """Error of the clocks of each kernel that all kernels have in common, as a share."""
        error = self.repeats.clocks.error_share
        unknown = np.isnan(error)  # taken to have run at the mean clock of the others
        square = self.repeats.mean(np.where(unknown, kernel_clocks.PRIOR_SHARE, error) ** 2)
        unreliable = np.sqrt(square) > MIN_SPREAD
        by_column = np.sqrt(square) * np.where(unreliable, 1.0, _COMMON_CLOCK_SHARE)
        sensed = np.sqrt(self.repeats.mean(self.repeats.clocks.common**2))
        return np.where(np.isnan(sensed), by_column, sensed)

    def chords(self, ratio: Ratio, mhz: Array, *, is_change: bool = False) -> Array:
        """Sensitivity of each kernel from the clocks that it ran at to others, from 0 to 1.

        Parameters
        ----------
        ratio, mhz, is_change
            Ratio by all sources for these clocks, and the clocks, as of `ratio`.
        """
        share = 1 - self.longer(mhz, is_change=is_change)
        some = np.abs(share) > _NO_CHANGE
        chord = (1 - np.exp(ratio.log)) / np.where(some, share, 1)
        beta = np.where(some & ~np.isnan(chord), chord, self._prior.value)
        return np.clip(beta, 0.0, 1.0)

    def longer(self, mhz: Array, *, is_change: bool = False) -> Array:
        """New periods of each kernel's clock over the measured; `mhz`, `is_change` as of `ratio`."""
        return self._longer(self._periods(mhz, is_change=is_change))

    @cached_property
    def mhz(self) -> Array:
        """Clock of each repeat; the mean of the others where its own is not known."""
        measured = self.repeats.clocks.mhz
        return np.where(np.isnan(measured), 1000.0 / self.x[self.repeats.key], measured)

    def _periods(self, mhz: Array, *, is_change: bool) -> Array:
        """New lengths of clock periods; those of a change start at the calibrated measured period."""
        if not is_change:
            return 1000.0 / mhz
        return self._period * (self.mhz / mhz)

    @cached_property
    def _period(self) -> Array:
        """Clock period of each repeat, ns; the mean of the others where its own is unknown."""
        x = self.regression.x
        return np.where(np.isnan(x), self.x[self.repeats.key], x)

    def _longer(self, target: Array) -> Array:
        """New periods of each kernel's clock over the measured, of the repeats with a new one."""
        r = self.repeats
        return r.mean(target) / r.mean(self._period, ~np.isnan(target))

    def shapes(
        self, ratio: Ratio, mhz: Array, *, is_change: bool = False
    ) -> tuple[Array, Array, Array]:
        """Predict how the times of single repeats differ from each other at other clocks.

        Parameters
        ----------
        ratio
            Ratio of kernels by all sources for these clocks.
        mhz, is_change
            New clock of each repeat, as of `ratio`.

        Returns
        -------
        shape
            Logarithm of the new time over the measured time, by the repeat's own clock; without
            meaning where the new clock is unknown.
        by_clock
            Part of the logarithm of its measured time that is due to its own clock where samples do
            not show that clock; at one clock for all this part would vanish.
        error
            Error of that part, in addition to the errors that all repeats of the kernel share.
        """
        r, regression = self.repeats, self.regression
        target = self._periods(mhz, is_change=is_change)
        beta = self.chords(ratio, mhz, is_change=is_change)[r.key]
        mean, x, known = self.x[r.key], self._period, ~np.isnan(target)
        now = np.nan_to_num(np.log(1 - beta + beta * x / mean))  # without any clock all alike
        new = np.nan_to_num(np.log(1 - beta + beta * target / mean))
        rows = np.flatnonzero(regression.possible[r.key])
        k = r.key[rows]
        at, to, _, _ = regression.within(k, x[rows], target[rows])
        now[rows] = np.log(regression.laws.times(k, at))
        new[rows] = np.log(regression.laws.times(k, to))
        residual = np.log(r.dur) - now
        residual -= r.mean(residual, known)[r.key]
        square = r.mean(residual**2, known)[r.key]
        clock = beta * np.nan_to_num(r.clocks.error_share, nan=kernel_clocks.PRIOR_SHARE)
        # Of the residuals' variance, the share that errors of the clocks explain.
        by_clock = np.clip(clock**2 / np.maximum(square, _TINY), 0.0, 1.0)
        residual = np.clip(residual, -_MAX_DEVIATION * clock, _MAX_DEVIATION * clock)
        error = np.minimum(clock, np.sqrt(square))
        if is_change:
            by_clock[:] = error[:] = 0.0
        return new - now, np.nan_to_num(by_clock * residual), np.nan_to_num(error)

    @cached_property
    def _by_counters(self) -> Estimate:
        """Sensitivities by counters; the time that these do not explain may be memory's or the core's."""
        core, memory = (self.repeats.mean(part) for part in (self.busy.core, self.busy.memory))
        core, not_memory = np.nan_to_num(core), 1 - np.nan_to_num(memory)
        low, high = np.minimum(core, not_memory), np.maximum(core, not_memory)
        known = ~np.isnan(self.repeats.mean(self.busy.core)) | (np.nan_to_num(memory) > 0)
        # Anything in between is as likely: the standard deviation of a uniform distribution.
        error = np.hypot((high - low) / 12**0.5, sensitivity_sources.MODEL_ERROR)
        return Estimate(np.where(known, (low + high) / 2, np.nan), np.where(known, error, np.nan))

    @cached_property
    def _prior(self) -> Estimate:
        """Prior of each kernel's class; its error is so wide that the interval holds all that is possible."""
        value = np.array(list(PRIORS.values()))[self.classes]
        return Estimate(value, np.maximum(value, 1 - value) / intervals.TWO_SIDED)

    def _by_law(self, target: Array) -> Ratio:
        """Ratios by laws, with errors that grow beyond the clocks that these were fitted to."""
        r, regression = self.repeats, self.regression
        laws, usable = regression.laws, regression.usable
        none = np.full(len(r.count), np.nan)
        rows = np.flatnonzero(usable[r.key] & ~np.isnan(regression.x) & ~np.isnan(target))
        if not rows.size:
            return Ratio(none, none, none, none)
        k = r.key[rows]
        x, to, beyond, slope_error = regression.within(k, regression.x[rows], target[rows])
        mean = self._mean_log(rows, np.log(laws.each(k, to) / laws.each(k, x)))
        log = np.sum(laws.weight * mean, axis=1)
        models = np.sum(laws.weight * (mean - log[:, None]) ** 2, axis=1)
        # Error propagation: the derivative of the mean logarithm by the best model's a, b and c.
        best = laws.best[k]
        pick = np.arange(len(k)), best
        new, now = laws.each(k, to)[pick], laws.each(k, x)[pick]
        knee = laws.knee[k, best]
        bent = np.maximum(0, to - knee) / new - np.maximum(0, x - knee) / now
        u = self._mean_log(rows, np.stack([1 / new - 1 / now, to / new - x / now, bent]).T)
        variance = np.maximum(np.einsum("ki,kij,kj->k", u, laws.covariance, u), 0.0)
        parts = np.einsum("ki,kci->kc", u, laws.parts)
        steep = np.einsum("ij,ij->i", laws.weight[k], laws.slopes(k, to)) / laws.times(k, to)
        form = self._mean_log(rows, (steep * beyond * slope_error)[:, None])[:, 0]
        core = np.maximum(self._mean_log(rows, (steep * to)[:, None])[:, 0], 0.0)
        columns = [
            log,
            np.sqrt(variance),
            np.hypot(core * self.clock_error, self._size(log)),
            np.sqrt(models + form**2),
        ]
        for column in columns:
            column[~usable] = np.nan
        length = np.sqrt(np.sum(parts**2, axis=1, keepdims=True))
        direction = parts / np.where(length > 0, length, np.inf)
        return Ratio(*columns)._replace(direction=direction)

    def _size(self, log: Array) -> Array:
        """Error of these ratios by the size of the clock's changes, which all laws have in common."""
        size: Array = self.repeats.mean(self.repeats.clocks.size_error) * np.abs(log)
        return size

    def _alike_in_class(self, law: Ratio) -> Array:
        """Error that laws of each kernel's class have in common, so that their mean has it too; NaN without laws."""
        mean = self._mean_of_class(law.clock)
        if law.direction is None:
            return mean
        parts = (law.direction * law.statistical[:, np.newaxis]).T
        square: Array = sum((self._mean_of_class(part) ** 2 for part in parts), mean**2)
        return np.sqrt(square)

    @cached_property
    def _mean_estimate(self) -> Estimate:
        """Mean sensitivity of all kernels on GPUs with a sensor, with the error of the mean."""
        clocks, mean = self.repeats.clocks, self.repeats.mean
        return Estimate(np.clip(mean(clocks.beta), 0.0, 1.0), mean(clocks.beta_error))

    def _by_mean(self, target: Array) -> Ratio:
        """Ratios by the mean sensitivity of all kernels; each deviates from it by what is possible."""
        beta, error = self._mean_estimate
        unsure = np.hypot(error, _BEYOND_MEAN * beta)
        ratio = self._by(Estimate(beta, unsure), target)
        # Of a sensitivity that may be more, errors of the clock are too.
        highest = np.minimum(np.hypot(beta, unsure), 1.0)
        ratio = ratio._replace(clock=highest * self.clock_error / np.exp(ratio.log))
        share = np.abs(1 - self._longer(target))
        deviation = np.sqrt(beta * (1 - beta) / _OF_UNIFORM) * share
        return ratio._replace(statistical=deviation)

    def _with_mean(self, ratio: Ratio, target: Array, weight: Array) -> Ratio:
        """Return ratios of which all together have the mean sensitivity, where it is known.

        Durations that do not show the sensor bound the mean under each assumption on it: it counts where it is known
        better than by laws.
        """
        r = self.repeats
        beta, error = self._mean_estimate
        known = ~np.isnan(beta) & ~np.isnan(ratio.log)
        if not known.any():
            return ratio
        has_target = ~np.isnan(target)
        ns = np.bincount(r.key[has_target], r.dur[has_target], len(r.count)) * known
        change = np.nan_to_num((1 - self._longer(target)) * ns)
        beyond = self._beyond(target)
        flatter, unsure = sensitivity_laws.BEYOND_FAST
        saved = np.nan_to_num(beta) * change
        error_ns = np.hypot(np.nan_to_num(error) @ np.abs(change), unsure * (saved @ beyond))
        changed_ns = ns.sum() - saved @ (1 - (1 - flatter) * beyond)
        of_level = np.nan_to_num(beta) * self.clock_error / np.exp(ratio.log)
        of_slope = np.abs(ratio.log) * weight[[combined.REGRESSION, combined.CLASS]].sum(axis=0)
        mean = combined.Mean(ns, float(changed_ns), float(error_ns), of_level, of_slope)
        together = combined.with_mean(ratio, mean)
        is_better = ns @ np.nan_to_num(_common(together)) < ns @ np.nan_to_num(_common(ratio))
        return together if self._is_estimated or is_better else ratio

    def _beyond(self, target: Array) -> Array:
        """Part of the way from each kernel's mean period to the new one beyond its shortest; 0 to longer ones."""
        r = self.repeats
        fastest = np.full(len(r.count), np.inf)
        np.minimum.at(fastest, r.key, self._period / (1 + 2 * self._unseen))
        to = np.nan_to_num(r.mean(target), nan=np.inf)
        mean = r.mean(self._period)
        way = np.maximum(mean - to, _TINY)
        return np.clip((np.minimum(fastest, mean) - to) / way, 0.0, 1.0)

    @property
    def _unseen(self) -> Array:
        """Standard deviation of each repeat's clock around what averaged readings show, as a share; else 0."""
        clocks = self.repeats.clocks
        return np.where(clocks.is_sensed, np.nan_to_num(clocks.error_share), 0.0)

    def _mean_of_class(self, values: Array) -> Array:
        """Mean of the known values of each kernel's class."""
        known = ~np.isnan(values)
        count = np.bincount(self.classes[known], minlength=len(CLASSES))
        total = np.bincount(self.classes[known], values[known], len(CLASSES))
        return (total / np.where(count > 0, count, np.nan))[self.classes]

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

    def beta(self, each: list[Ratio], mhz: Array) -> tuple[Estimate, list[Estimate], Array]:
        """Estimate the sensitivity -d ln t / d ln f of each kernel at the clocks that it ran at.

        Parameters
        ----------
        each
            Ratios by source, as `ratio` returns them for these clocks.
        mhz
            New clock of each repeat.

        Returns
        -------
        together
            Sensitivity by all sources, between 0 and 1.
        each
            Sensitivity by each of `SOURCES`.
        weight
            Weight of each source, (source, kernel).
        """
        share = 1 - self.longer(mhz)
        share[np.abs(share) < MIN_SPREAD] = np.nan
        estimates = [self._slope_of_law()]
        for one in (each[combined.COUNTED], each[combined.COUNTERS]):
            chord, error = (1 - np.exp(one.log)) / share, np.sqrt(one.variance) / np.abs(share)
            value = np.clip(np.clip(chord, 0.0, 1.0) + _CURVATURE[0], 0.0, 1.0)
            estimates.append(Estimate(value, np.hypot(error, _CURVATURE[1])))
        # Sensitivities of other kernels hold at other clocks.
        of_class = self._class_means(*estimates[combined.REGRESSION])
        alike = np.nan_to_num(self._alike_in_class(each[combined.REGRESSION]) / np.abs(share))
        of_class = of_class._replace(error=np.hypot(of_class.error, alike))
        mean = self._mean_estimate
        of_class = Estimate(
            *(np.where(np.isnan(of_class.value), b, a) for a, b in zip(of_class, mean, strict=True))
        )
        for value, error in (of_class, self._prior):
            estimates.append(Estimate(value, np.hypot(error, _CURVATURE[1])))
        together, weight = combined.combine_estimates(estimates)
        apart = np.zeros(len(share))
        for other in self.extremes or ():
            clocks = self._of(other, mhz, is_change=False)
            value = other.beta(other._ratio(clocks, is_change=False)[1], clocks)[0].value  # noqa: SLF001
            apart = np.fmax(apart, np.abs(value - together.value))
        error = together.error + apart / intervals.TWO_SIDED
        return together._replace(error=error), estimates, weight

    def _slope_of_law(self) -> Estimate:
        """Sensitivities by laws, at the clocks that kernels ran at."""
        r, regression = self.repeats, self.regression
        laws, usable = regression.laws, regression.usable
        none = np.full(len(r.count), np.nan)
        rows = np.flatnonzero(usable[r.key] & ~np.isnan(regression.x))
        if not rows.size:
            return Estimate(none, none)
        k = r.key[rows]
        x = np.clip(regression.x[rows], regression.fast[k], regression.slow[k])
        times = laws.each(k, x)
        each = laws.slopes(k, x) * x[:, None] / times
        mean = self._mean_log(rows, each)
        beta = np.sum(laws.weight * mean, axis=1)
        models = np.sum(laws.weight * (mean - beta[:, None]) ** 2, axis=1)
        # Error propagation: the derivative of the mean sensitivity by the best model's a, b and c.
        pick = np.arange(len(k)), laws.best[k]
        best_ns, best_beta, knee = times[pick], each[pick], laws.knee[k, laws.best[k]]
        over = np.maximum(0, x - knee)
        gradient = np.stack(
            [-best_beta, x * (1 - best_beta), x * (x > knee) - best_beta * over], axis=1
        )
        u = self._mean_log(rows, gradient / best_ns[:, None])
        mixed = np.sum(laws.weight[k] * each, axis=1)
        varies = self._mean_log(rows, ((mixed - beta[k]) ** 2)[:, None])[:, 0]
        variance = np.einsum("ki,kij,kj->k", u, laws.covariance, u) + models + varies
        variance += (_OF_ATTENUATION * regression.unreliable * beta) ** 2 + self._size(beta) ** 2
        estimate = Estimate(beta, np.sqrt(np.maximum(variance, 0)) + _MIN_BETA_ERROR)
        for column in estimate:
            column[~usable] = np.nan
        return estimate

    def _class_means(self, value: Array, error: Array) -> Estimate:
        """Mean of the known sensitivities of each class, and the deviation of one from it."""
        means = np.full((2, len(value)), np.nan)
        for number in range(len(CLASSES)):
            of_class = self.classes == number
            known = np.flatnonzero(of_class & ~np.isnan(value))
            if len(known) >= _MIN_OF_CLASS:
                mean, between = combined.random_effects(value[known], error[known], _BETWEEN)
                means[:, of_class] = [[mean], [between]]
        return Estimate(*means)

    def _mean_log(self, rows: Array, values: Array) -> Array:
        """Mean of columns over the repeats of each kernel, weighted with their durations."""
        r, n = self.repeats, len(self.repeats.count)
        weight = r.dur[rows]
        total = np.bincount(r.key[rows], weight, n)
        columns = [np.bincount(r.key[rows], weight * column, n) for column in values.T]
        return np.stack(columns, axis=1) / np.where(total > 0, total, 1.0)[:, None]

    def _runs(self, mhz: Array) -> _Runs:
        """Compare this run with the one that counted cycles, by the laws of kernels."""
        target = self._periods(mhz, is_change=False)
        return self._compared_runs(self._in_other_run(target), self._by_law(target))

    def _by_counted(self, target: Array, runs: _Runs) -> Ratio:
        """Ratios by the times of the same kernels in another run, at clocks near to the new ones."""
        ratio = self._in_other_run(target)
        form = np.hypot(runs.error, self._slower_by_overlap[1])
        return ratio._replace(log=ratio.log - runs.offset, form=form)

    def _in_other_run(self, target: Array) -> Ratio:
        """Times in the other run over those in this one, as if both were equally fast at one clock."""
        r, run = self.repeats, self.counted
        n = len(r.count)
        key, to = r.key[run.position], target[run.position]
        period, known, requested = 1000.0 / run.mhz, ~np.isnan(to), ~np.isnan(target)
        count, others = (np.bincount(k, minlength=n) for k in (key[known], r.key[requested]))
        new = mean_of(run.dur * (1 - self._prior.value[key] * (1 - to / period)), key, known, n)
        far = mean_of(np.abs(1 - to / period), key, known, n)
        log = np.log(new / mean_of(r.dur, r.key, requested, n)) + self._slower_by_overlap[0]
        repeats = 1 / np.where(count, count, np.nan) + 1 / np.maximum(others, 1)
        statistical = np.hypot(_REPEAT_ERROR * np.sqrt(repeats), far * self._prior.error)
        return Ratio(log, statistical, np.where(np.isnan(log), np.nan, 0.0), np.zeros(n))

    @staticmethod
    def _compared_runs(other: Ratio, law: Ratio) -> _Runs:
        """How much the two runs differ at one clock, as kernels that have laws show."""
        both = np.flatnonzero(~np.isnan(other.log) & ~np.isnan(law.log))
        if not both.size:
            return _Runs(0.0, _RUN_ERROR)
        independent = np.sqrt(law.variance + other.statistical**2)[both]
        return _Runs(*combined.random_effects((other.log - law.log)[both], independent, _RUN_ERROR))

    @cached_property
    def _slower_by_overlap(self) -> tuple[Array, Array]:
        """Logarithm of how much longer communication makes the mean of all repeats, and its error.

        All repeats are compared with those alone. A law separates what clocks explain of the
        difference; without a law any part of it may be due to clocks.
        """
        r, regression = self.repeats, self.regression
        usable, laws = regression.usable, regression.laws
        n, every = len(r.count), np.ones(len(r.key), bool)
        alone = np.bincount(r.key[r.solo], minlength=n)
        both = (alone >= _MIN_ALONE) & (r.count - alone >= _MIN_ALONE)
        longer = np.log(mean_of(r.dur, r.key, every, n) / mean_of(r.dur, r.key, r.solo, n))
        rows = usable[r.key] & ~np.isnan(regression.x)
        k = np.where(rows, r.key, 0)
        by_law = np.where(rows, laws.times(k, np.where(rows, regression.x, 1.0)), np.nan)
        solo, all_ = (mean_of(by_law, r.key, rows & mask, n) for mask in (r.solo, every))
        rest = np.where(both, np.nan_to_num(longer - np.log(all_ / solo)), 0.0)
        unexplained = np.where(both & ~usable, np.nan_to_num(longer), 0.0)
        slower = np.where(usable, np.maximum(rest, 0.0), np.maximum(unexplained, 0.0) / 2)
        return slower, np.where(usable, 0.0, np.abs(unexplained) / 2)

    def _by(self, estimate: Estimate, target: Array) -> Ratio:
        """Ratios by sensitivities between the measured clocks and the new ones."""
        share = 1 - self._longer(target)
        ratio = np.maximum(1 - estimate.value * share, _MIN_RATIO)
        error = np.abs(estimate.error * share) / ratio
        clock = np.abs(estimate.value) * self.clock_error / ratio
        return Ratio(np.log(ratio), error * 0.0, clock, error)

    def _by_prior(self, target: Array, clock_error: Array) -> Ratio:
        """Ratios by the prior, whose interval reaches from none of the time following the clock to all.

        A range is no normal distribution: what the clocks may be wrong by at its end is added to it.
        """
        ratio = self._by(self._prior, target)
        in_full = np.log(np.maximum(self._longer(target), _MIN_RATIO))
        reach = np.maximum(np.abs(ratio.log), np.abs(in_full - ratio.log))
        form = (1 + _BEYOND) * reach / intervals.TWO_SIDED + clock_error
        return ratio._replace(form=form, clock=0.0 * form)

    def _of_class(self, law: Ratio, target: Array) -> Estimate:
        """Sensitivities of classes by those of their kernels that have laws."""
        share = 1 - self._longer(target)
        good = ~np.isnan(law.log) & (np.abs(share) >= MIN_SPREAD)
        value = np.full(len(share), np.nan)
        value[good] = (1 - np.exp(law.log[good])) / share[good]
        error = np.full(len(share), np.nan)
        error[good] = np.hypot(law.statistical, law.form)[good] / np.abs(share[good])
        return self._class_means(value, error)


def _with_errors(ratio: Ratio, share: float) -> Ratio:
    """Return the ratio with this part of its errors."""
    statistical, clock, form = (share * error for error in ratio[1:4])
    return ratio._replace(statistical=statistical, clock=clock, form=form)


def _common(ratio: Ratio) -> Array:
    """Errors that ratios of kernels have in common."""
    blocks = 0.0 if ratio.direction is None else np.sum(ratio.direction**2, axis=1)
    error: Array = np.sqrt(ratio.clock**2 + ratio.form**2 + blocks * ratio.statistical**2)
    return error


def kernel_sensitivities(trace: Trace, gpus: str = "", sensor: str = "") -> Sensitivities:
    """Return the sensitivities of a trace's kernels, computed once for each trace and sensor.

    Parameters
    ----------
    trace
        Trace with clocks by telemetry or counters.
    gpus
        Path of the user's file of GPUs; the bandwidth of their memory matters here.
    sensor
        Sensor of the clock as of `clock_sensor.parse_sensor`.
    """
    given = clock_sensor.parse_sensor(sensor)
    known = trace.cached(f"sensitivity {given}", lambda t: _estimate(t, given))
    if not gpus:
        return known
    node = known.repeats.node
    bandwidth = ratings.bandwidths(trace, node, gpus)
    busy = sensitivity_sources.busy(trace, node, bandwidth)
    extremes = known.extremes
    if extremes is not None:
        low, high = (replace(one, busy=busy, bandwidth=bandwidth) for one in extremes)
        extremes = low, high
    return replace(known, busy=busy, bandwidth=bandwidth, extremes=extremes)


def _estimate(trace: Trace, given: Sensor | None) -> Sensitivities:
    """Collect all that is known of the sensitivities of a trace's kernels."""
    r = repeats.kernel_repeats(trace)
    n = len(r.count)
    first = np.full(n, 0)
    first[r.key[::-1]] = np.arange(len(r.key) - 1, -1, -1)  # the last write is the first repeat
    classes = sensitivity_sources.classes(trace, r.node[first]) if n else np.zeros(0, np.int64)
    counted = sensitivity_sources.counted_repeats(trace, r.node)
    bandwidth = ratings.bandwidths(trace, r.node)
    busy = sensitivity_sources.busy(trace, r.node, bandwidth)
    work = _work(r)
    sensors = tuple(kernel_clocks.sensed_clocks(trace, r.node, work, given))

    def under(*assumed: Assumption) -> Sensitivities:
        own = replace(r, clocks=_clocks(r, sensors, work, assumed))
        laws = sensitivity_laws.fit_repeats(own, classes)
        return Sensitivities(own, laws, counted, busy, classes, bandwidth, sensors)

    accepted = [one.accepted for one in sensors]
    known = under(*(one.central for one in accepted))
    if not any(one.is_range for one in accepted):
        return known
    low = under(*(one.low for one in accepted))
    high = under(*(one.high for one in accepted))
    return replace(known, extremes=(low, high))


def _work(r: Repeats) -> clock_sensor.Work:
    """Kernels by what they do, for comparison with readings of the clock."""
    devices, device = ratings.rate_gpus_of_nodes(r.trace, r.node)
    boost = np.array([gpu.boost_mhz or np.nan for gpu in devices.values()] + [np.nan], float)
    known = r.clocks.mhz[~np.isnan(r.clocks.mhz)]
    highest = np.nan_to_num(boost[device], nan=float(known.max(initial=1.0)))
    usable = r.solo & ~np.isnan(r.clocks.mhz)
    return clock_sensor.Work(r.key, r.dur, usable, highest, *repeats.places(r))


def _clocks(
    r: Repeats,
    sensors: tuple[SensedClocks, ...],
    work: clock_sensor.Work,
    assumed: tuple[Assumption, ...],
) -> Clocks:
    """Clocks of repeats under an assumption on each sensor."""
    clocks = r.clocks
    for one, assumption in zip(sensors, assumed, strict=True):
        slopes = sensor_fit.straight_slopes(one.gpus, work, assumption)
        beta = np.clip(slopes, 0.0, 1.0)[r.key]
        clocks = kernel_clocks.with_sensor(clocks, one.gpus, work, assumption, beta)
        if not one.is_timed(assumption):
            clocks = kernel_clocks.without_changes(clocks, one.gpus, work)
    return clocks
