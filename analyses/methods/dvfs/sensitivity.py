"""Sensitivity of each kernel's time to the core clock, by several sources, with errors.

Kernels that do the same are taken together (`repeats`). Several sources show how their times follow
the clock. Each gives, for a change from the clocks that they ran at to another, the ratio of their
times and its error, and they are combined by the inverses of their variances:

``regression``
    A law fitted to the repeats' times and clocks (`by_law`).
``counted``
    Times of the same kernels in the run in which their cycles were counted, one after the other (`by_other_run`).
``counters``
    Busy cycles of matrix and vector units, and bytes at the memory's peak bandwidth (`by_counters`).
``class``
    The laws of other kernels of their class in this trace (`by_class`), else the mean of all (`by_mean`).
``prior``
    The prior of their class; only where there is no other source (`by_prior`).

An error has three parts: a statistical one of each kernel; one that all have in common, of the
clocks themselves; and one of the form of the law, as where it is asked beyond the clocks it was
fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs import intervals, repeats
from chopper_interop.analyses.methods.dvfs.clocks import clock_sensor, kernel_clocks, sensor_fit
from chopper_interop.analyses.methods.dvfs.clocks.kernel_clocks import (
    Clocks,
    SensedClocks,
    like_highest,
)
from chopper_interop.analyses.methods.dvfs.sources import (
    by_class,
    by_law,
    by_mean,
    by_prior,
    combination,
    kernel_classes,
    kernel_counters,
    laws,
)
from chopper_interop.analyses.methods.dvfs.sources.by_counters import by_counters
from chopper_interop.analyses.methods.dvfs.sources.by_other_run import RUN_ERROR, OtherRun, Runs
from chopper_interop.analyses.methods.dvfs.sources.combination import (
    COUNTED,
    COUNTERS,
    REGRESSION,
    Estimate,
    Ratio,
)
from chopper_interop.analyses.methods.dvfs.sources.evidence import Evidence
from chopper_interop.analyses.methods.dvfs.sources.laws import MIN_SPREAD
from chopper_interop.arrays import Array
from chopper_interop.gpus import ratings
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import Assumption, Sensor
    from chopper_interop.analyses.methods.dvfs.clocks.sensor_fit import End
    from chopper_interop.analyses.methods.dvfs.repeats import Repeats

_MAX_CLOCK_ERRORS = 2.0
"""Errors of the clocks by which times may lie outside what is possible at the measured clocks: 95 %."""
_CURVATURE = (0.15, 0.17)
"""Sensitivity of a kernel at a clock less that between it and a faster clock, and its error. Chosen: 0 if
only the core bounds the kernel, more if memory bounds it at faster clocks."""
_NO_CHANGE = 1e-6
"""Relative change of a clock below which it counts as none: far below what clocks resolve."""
_MAX_DEVIATION_ERRORS = 3.0
"""Standard errors of a clock beyond which a deviating time has other reasons than the clock."""
_TINY = 1e-12
"""Keeps a division by a variance of 0 finite."""


@dataclass(frozen=True)
class Sensitivities(Evidence):
    """Sensitivities of a trace's kernels to the core clock.

    Parameters
    ----------
    sensors
        Sensors of the clock, and what is assumed of them.
    extremes
        The same under the assumptions on the sensors by which kernels take the least and the most time
        at a higher clock; None if only one assumption is left.
    """

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
        runs = None
        if not is_change:
            target = self.target_periods(mhz, is_change=False)
            runs = self._other_run.compared(target, by_law.by_law(self, target))
        for one, share in zip(self.extremes, self._shares, strict=True):
            clocks = self._new_mhz(one, mhz, is_change=is_change)
            ratio = one._ratio(clocks, is_change=is_change, runs=runs)[0]  # noqa: SLF001
            ratios.append(ratio.with_part_of_errors(share))
        return self._between_ends(together, ratios), each, weight

    def at_readings(
        self, mhz: Array, *, is_change: bool = False
    ) -> tuple[Sensitivities, Array, Array]:
        """Return the sensitivities towards clocks that a tool would read, with these clocks and their errors.

        How readings are related to clocks is one error that both clocks have: alike readings have none.

        Parameters
        ----------
        mhz
            Reading at the new clock of each repeat.
        is_change
            As of `ratio`.

        Returns
        -------
        known
            Sensitivities whose clocks have the error of their scale in comparison with the new ones.
        mhz
            New clock of each repeat, as `ratio` takes it.
        error
            Error of this clock against its own by their scale, as a share; 0 unless `is_change`.
        """
        clocks, zero = self.repeats.clocks, np.zeros(len(mhz))
        if (clocks.at_highest == 1).all():
            return self, mhz, zero
        factor, error = like_highest(clocks.at_highest, mhz / clocks.highest)
        if not is_change:
            return _with_scale_error(self, error), factor * mhz, zero
        read = self.read_mhz
        own, of_own = like_highest(clocks.at_highest, read / clocks.highest)
        new = np.minimum(self.mhz / read * (factor / own) * mhz, np.maximum(clocks.highest, mhz))
        new = np.where(mhz == read, self.mhz, new)
        return _with_scale_error(self, None), new, np.nan_to_num(np.abs(error - of_own))

    def _between_ends(self, together: Ratio, ratios: list[Ratio]) -> Ratio:
        """Return the ratio with the range of these, of which each end has the errors of its own assumption."""
        ns = np.bincount(self.repeats.key, self.repeats.dur)
        sums = [one.of_sum(ns) for one in ratios]
        low = min(range(len(sums)), key=lambda i: sums[i][0] - intervals.TWO_SIDED * sums[i][1])
        high = max(range(len(sums)), key=lambda i: sums[i][0] + intervals.TWO_SIDED * sums[i][1])
        ends, errors = [ratios[low], ratios[high]], [sums[low][1], sums[high][1]]
        return combination.between(together, ends, errors, ns)

    def change_of_all(self, mhz: Array) -> tuple[float, float]:
        """Return the logarithm of the change of all kernels' time at these clocks, and its standard error."""
        ratio = self._ratio(mhz, is_change=False)[0]
        return ratio.of_sum(np.bincount(self.repeats.key, self.repeats.dur))

    def contradicts_gpus(self, mhz: Array) -> bool:
        """True if laws at these clocks are not those by which GPUs differ, so that the assumption on the sensor is wrong."""
        target = self.target_periods(mhz, is_change=False)
        return by_mean.contradicts_gpus(self, by_law.by_law(self, target), target)

    @property
    def _shares(self) -> tuple[float, float]:
        """Part of the errors under both extremes that counts; of several sensors the largest."""
        accepted = [one.accepted for one in self.sensors]
        low, high = (
            max(one[0].share for one in ends)
            for ends in zip(*((a.low, a.high) for a in accepted), strict=True)
        )
        return low, high

    @property
    def _is_estimated(self) -> bool:
        """True if durations show which assumptions on the sensors are best."""
        return all(one.accepted.origin != clock_sensor.UNKNOWN for one in self.sensors)

    def _new_mhz(self, other: Sensitivities, mhz: Array, *, is_change: bool) -> Array:
        """New clocks under another assumption on the sensor: a change is as large as under this one."""
        return mhz * (other.mhz / self.mhz) if is_change else mhz

    @cached_property
    def _other_run(self) -> OtherRun:
        return OtherRun(self)

    def _ratio(
        self, mhz: Array, *, is_change: bool, runs: Runs | None = None
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
        target = self.target_periods(mhz, is_change=is_change)
        law = by_law.by_law(self, target)
        own = self._other_run.compared(target, law)
        if runs is not None and not runs.contradict:
            law = law._replace(form=np.hypot(law.form, abs(own.mean - runs.mean)))
            own = runs._replace(spread=RUN_ERROR)
        if is_change:
            counted = self.ratio_by(self._other_run.chord, target)
        else:
            counted = self._other_run.ratio(target, own)
        of_class = combination.first_known(
            by_class.by_class(self, law, target), by_mean.by_mean(self, target)
        )
        prior = by_prior.by_prior(self, target, self.clock_error * (not is_change))
        each = [law, counted, by_counters(self, target), of_class, prior]
        if is_change:  # an error that both clocks share
            each = [one._replace(clock=np.abs(one.log) * self.clock_error) for one in each]
            law = each[REGRESSION]
            size = by_law.size_error(self, law.log)
            each[REGRESSION] = law._replace(clock=np.hypot(law.clock, size))
        of_class = each[combination.CLASS]
        alike = by_class.common_error(self, each[REGRESSION])
        each[combination.CLASS] = of_class._replace(clock=np.fmax(of_class.clock, alike))
        together, weight = combination.combine_ratios(each)
        together = by_mean.with_mean(
            self, together, target, weight, is_estimated=self._is_estimated
        )
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
        in_full = np.log(self.target_periods(mhz, is_change=is_change) / self.period)
        low, high = (self.repeats.mean(end(in_full, 0.0)) for end in (np.minimum, np.maximum))
        unknown = np.isnan(low)  # another run may time kernels without clocks of their own
        low[unknown], high[unknown] = -np.inf, np.inf
        beyond = np.nan_to_num(_MAX_CLOCK_ERRORS * self.clock_error * (0.0 if is_change else 1.0))
        reach = np.maximum(-low, high) + beyond
        statistical, clock, form = (np.fmin(error, reach) for error in ratio[1:4])
        return ratio._replace(
            log=np.clip(ratio.log, low - beyond, high + beyond),
            statistical=statistical, clock=clock, form=form,
        )  # fmt: skip

    def chords(self, ratio: Ratio, mhz: Array, *, is_change: bool = False) -> Array:
        """Sensitivity of each kernel from the clocks that it ran at to others, from 0 to 1.

        Parameters
        ----------
        ratio, mhz, is_change
            Ratio by all sources for these clocks, and the clocks, as of `ratio`.
        """
        share = 1 - self.longer(self.target_periods(mhz, is_change=is_change))
        some = np.abs(share) > _NO_CHANGE
        chord = (1 - np.exp(ratio.log)) / np.where(some, share, 1)
        beta = np.where(some & ~np.isnan(chord), chord, by_prior.estimate(self).value)
        return np.clip(beta, 0.0, 1.0)

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
        target = self.target_periods(mhz, is_change=is_change)
        beta = self.chords(ratio, mhz, is_change=is_change)[r.key]
        mean, x, known = self.x[r.key], self.period, ~np.isnan(target)
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
        residual = np.clip(residual, -_MAX_DEVIATION_ERRORS * clock, _MAX_DEVIATION_ERRORS * clock)
        error = np.minimum(clock, np.sqrt(square))
        if is_change:
            by_clock[:] = error[:] = 0.0
        return new - now, np.nan_to_num(by_clock * residual), np.nan_to_num(error)

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
        share = 1 - self.longer(self.target_periods(mhz, is_change=False))
        share[np.abs(share) < MIN_SPREAD] = np.nan
        estimates = [by_law.slopes(self)]
        for one in (each[COUNTED], each[COUNTERS]):
            chord, error = (1 - np.exp(one.log)) / share, np.sqrt(one.variance) / np.abs(share)
            value = np.clip(np.clip(chord, 0.0, 1.0) + _CURVATURE[0], 0.0, 1.0)
            estimates.append(Estimate(value, np.hypot(error, _CURVATURE[1])))
        # Sensitivities of other kernels hold at other clocks.
        of_class = by_class.class_means(self, *estimates[REGRESSION])
        alike = np.nan_to_num(by_class.common_error(self, each[REGRESSION]) / np.abs(share))
        of_class = of_class._replace(error=np.hypot(of_class.error, alike))
        mean = self.mean_estimate
        of_class = Estimate(
            *(np.where(np.isnan(of_class.value), b, a) for a, b in zip(of_class, mean, strict=True))
        )
        for value, error in (of_class, by_prior.estimate(self)):
            estimates.append(Estimate(value, np.hypot(error, _CURVATURE[1])))
        together, weight = combination.combine_estimates(estimates)
        apart = np.zeros(len(share))
        for other in self.extremes or ():
            clocks = self._new_mhz(other, mhz, is_change=False)
            value = other.beta(other._ratio(clocks, is_change=False)[1], clocks)[0].value  # noqa: SLF001
            apart = np.fmax(apart, np.abs(value - together.value))
        error = together.error + apart / intervals.TWO_SIDED
        return together._replace(error=error), estimates, weight


def _with_scale_error(known: Sensitivities, error: Array | None) -> Sensitivities:
    """Return the same in comparison with clocks of this error of their scale; None for changes, which have no such error."""
    clocks = known.repeats.clocks
    apart = np.zeros(len(clocks.mhz))
    if error is not None:
        apart = np.nan_to_num(np.abs(error - clocks.scale_error))
    r = replace(known.repeats, clocks=clocks._replace(scale_error=apart))
    extremes = known.extremes
    if extremes is not None:
        low, high = (_with_scale_error(one, error) for one in extremes)
        extremes = low, high
    return replace(known, repeats=r, extremes=extremes)


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
    busy = kernel_counters.busy(trace, node, bandwidth)
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
    classes = kernel_classes.classes(trace, r.node[first]) if n else np.zeros(0, np.int64)
    counted = kernel_counters.counted_repeats(trace, r.node)
    bandwidth = ratings.bandwidths(trace, r.node)
    busy = kernel_counters.busy(trace, r.node, bandwidth)
    work = _work(r)
    sensors = tuple(kernel_clocks.sensed_clocks(trace, r.node, work, given))

    def under(*assumed: Assumption) -> Sensitivities:
        own = replace(r, clocks=_clocks(r, sensors, work, assumed))
        regression = laws.fit_repeats(own, classes)
        return Sensitivities(own, regression, counted, busy, classes, bandwidth, sensors)

    accepted = [one.accepted for one in sensors]
    known = under(*(one.central for one in accepted))
    if not any(one.is_range for one in accepted):
        return known
    sensors = tuple(_with_ends(sensors, under, work.highest))
    low = under(*(one.accepted.low[0].assumed for one in sensors))
    high = under(*(one.accepted.high[0].assumed for one in sensors))
    return replace(known, sensors=sensors, extremes=(low, high))


def _with_ends(
    sensors: tuple[SensedClocks, ...], under: Callable[..., Sensitivities], highest: Array
) -> Iterator[SensedClocks]:
    """Yield the sensors with the assumptions by which kernels take the least and the most, by laws, at the highest clock.

    Each sensor's while those of the others are the central ones.
    """
    central = [one.accepted.central for one in sensors]
    for number, sensor in enumerate(sensors):
        low, high = ends = sensor.accepted.low, sensor.accepted.high
        if len(low) > 1 or len(high) > 1:
            tried = {end.assumed for end in low + high}
            sums, contradicted = {}, set()
            for one in tried:
                known = under(*central[:number], one, *central[number + 1 :])
                sums[one] = known.change_of_all(highest)
                if known.contradicts_gpus(highest):
                    contradicted.add(one)
            low, high = (
                (max(_agreeing(of, contradicted), key=partial(_reach, sums, sign)),)
                for of, sign in zip(ends, (-1, 1), strict=True)
            )
        yield sensor._replace(accepted=sensor.accepted._replace(low=low, high=high))


def _agreeing(ends: tuple[End, ...], contradicted: set[Assumption]) -> tuple[End, ...]:
    """Return the ends under which laws agree with how GPUs differ; all if there are none."""
    return tuple(end for end in ends if end.assumed not in contradicted) or ends


def _reach(sums: dict[Assumption, tuple[float, float]], sign: int, end: End) -> float:
    """Logarithm of the time that kernels may take at most under an assumption, or the negative of the least."""
    change, error = sums[end.assumed]
    return sign * change + end.share * intervals.TWO_SIDED * error


def _work(r: Repeats) -> clock_sensor.Work:
    """Kernels by what they do, for comparison with readings of the clock."""
    devices, device = ratings.rate_gpus_of_nodes(r.trace, r.node)
    boost = np.array([gpu.boost_mhz or np.nan for gpu in devices.values()] + [np.nan], float)
    known = r.clocks.mhz[~np.isnan(r.clocks.mhz)]
    highest = np.nan_to_num(boost[device], nan=float(known.max(initial=1.0)))
    usable = r.solo & ~np.isnan(r.clocks.mhz)
    return clock_sensor.Work(r.key, r.dur, usable, highest, boost[device], *repeats.places(r))


def _clocks(
    same_work: Repeats,
    sensors: tuple[SensedClocks, ...],
    work: clock_sensor.Work,
    assumed: tuple[Assumption, ...],
) -> Clocks:
    """Clocks of repeats under an assumption on each sensor."""
    clocks = same_work.clocks
    for one, assumption in zip(sensors, assumed, strict=True):
        slopes = sensor_fit.straight_slopes(one.gpus, work, assumption)
        beta = np.clip(slopes, 0.0, 1.0)[same_work.key]
        clocks = kernel_clocks.with_sensor(clocks, one, work, assumption, beta)
        if not one.is_timed(assumption):
            clocks = kernel_clocks.without_changes(clocks, one.gpus, work)
    return clocks
