"""How each kernel's time follows the core clock, what that is known from, and how well.

Kernels are taken together that do the same (`repeats`). Several sources tell how their times follow
the clock; each gives, for a change from the clocks that they ran at to another, the ratio of their
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
    What is known of their class; only where no class of the trace tells it.

An error has three parts: a statistical one of each kernel; one that all have in common, of the
clocks themselves; and one of the form of the law, as where it is asked beyond the clocks it was
fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.dvfs import (
    clock_errors,
    sensitivity_laws,
    sensitivity_repeats,
    sensitivity_sources,
)
from chopper_interop.dvfs import sensitivity_together as joined
from chopper_interop.dvfs.sensitivity_laws import LEAST_SPREAD
from chopper_interop.dvfs.sensitivity_repeats import mean_of
from chopper_interop.dvfs.sensitivity_sources import CLASSES, PRIORS, Told
from chopper_interop.dvfs.sensitivity_together import Ratio
from chopper_interop.gpus import rated

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.sensitivity_laws import Regression
    from chopper_interop.dvfs.sensitivity_repeats import Repeats
    from chopper_interop.trace import Trace

_RUN_ERROR = 0.02
"""How far times of a kernel are apart in two runs at one clock: other neighbours, caches, memory."""
_RUN_LIMIT = 3.0
"""Runs that are so many times further apart than that contradict each other."""
_REPEAT_ERROR = 0.01
"""How far repeats of a kernel in one run are apart at one clock."""
_FEW_ALONE = 3
"""So many repeats alone, and beside communication, tell how these differ."""
_CURVATURE = (0.15, 0.17)
"""How much more sensitive a kernel is at a clock than between it and a faster one, and its error:
none of what only the core bounds, more of what memory bounds at faster clocks; our choice."""
_LEAST_OF_CLASS = 6
"""Kernels with laws, by fewer of which a class is not known."""
_CLOCK_COMMON = 0.5
"""Share of a clock's error that all kernels have in common however often it was sampled."""
_CLOCK_BEYOND = 2.0
"""Errors of the clocks by which times may lie outside what is possible at the clocks as told."""
_NO_CHANGE, _NOTHING = 1e-6, 1e-12
_FAR = 3.0
"""Standard errors of a clock, beyond which a time has other reasons than that."""
_OF_ATTENUATION, _LEAST_BETA_ERROR = 0.5, 0.01
"""Error of a slope by what its clocks' errors take off it, as a share of that; the least of all."""
_BETWEEN = 0.12
"""How much sensitivities of kernels of a class differ, before the trace tells."""


@dataclass(frozen=True)
class Sensitivities:
    """Sensitivities of a trace's kernels to the core clock.

    Parameters
    ----------
    repeats
        The kernels.
    regression
        Laws of those that have one.
    counted
        Those that were counted in another run.
    busy
        What busy cycles and bytes tell of each repeat.
    classes
        Class of each kernel, a number of `CLASSES`.
    bandwidth
        Peak bandwidth of the memory of each repeat's GPU, 1e9 byte/s; not a number where unknown.
    """

    repeats: Repeats
    regression: Regression
    counted: sensitivity_sources.Counted
    busy: sensitivity_sources.Busy
    classes: Array
    bandwidth: Array

    def ratio(self, mhz: Array, *, is_change: bool = False) -> tuple[Ratio, list[Ratio], Array]:
        """Times of kernels at other clocks.

        Parameters
        ----------
        mhz
            Clock of each repeat then.
        is_change
            Whether this is a change to the clock that it ran at, whatever that was, and not a clock
            of its own: then where no clock changes no time does.

        Returns
        -------
        together
            Of each kernel by all sources.
        each
            The same by each of `SOURCES`; not a number where one tells nothing.
        weight
            Weight of each source, (source, kernel).
        """
        target = self._periods(mhz, is_change=is_change)
        law = self._by_law(target)
        counted = self._by_counted(target, law)
        if is_change:
            counted = self._by(self._chord_of_counted, target)
        told = [law, counted, self._by(self._by_counters, target)]
        told.append(self._by(self._of_class(told[joined.REGRESSION], target), target))
        told.append(self._by(self._prior, target))
        if is_change:  # what is wrong with both clocks alike
            told = [t._replace(clock=np.abs(t.log) * self.clock_error) for t in told]
        together, weight = joined.ratios(told)
        beyond = _CLOCK_BEYOND * self.clock_error * (0.0 if is_change else 1.0)
        log = self._possible(together.log, target, np.nan_to_num(beyond))
        return together._replace(log=log), told, weight

    def _possible(self, log: Array, target: Array, beyond: Array) -> Array:
        """Logarithms of ratios, between none of the time following the clock and all of it.

        Beyond that by no more than clocks may be wrong: another run tells how long kernels take at
        a clock, whatever their clock was said to be here.
        """
        own = self.regression.x
        every = np.log(target / np.where(np.isnan(own), self.x[self.repeats.key], own))
        low, high = (self.repeats.mean(end(every, 0.0)) for end in (np.minimum, np.maximum))
        unknown = np.isnan(low)  # another run tells of kernels without clocks of their own
        low[unknown], high[unknown] = -np.inf, np.inf
        return np.clip(log, low - beyond, high + beyond)

    @cached_property
    def _chord_of_counted(self) -> Told:
        """Sensitivities between the clocks that kernels ran at and those when they were counted."""
        place, n = self.counted.place, len(self.repeats.count)
        every = np.ones(len(place), bool)
        then = mean_of(1000.0 / self.counted.mhz, self.repeats.key[place], every, n)
        target = then[self.repeats.key]
        share = 1 - self._longer(target)
        share[np.abs(share) < LEAST_SPREAD] = np.nan
        told = self._by_counted(target, self._by_law(target))
        clock = self.clock_error * np.abs((1 - np.exp(told.log)) / share - 1)
        error = np.hypot(np.sqrt(told.variance), clock) / np.abs(share)
        return Told((1 - np.exp(told.log)) / share, error)

    @cached_property
    def x(self) -> Array:
        """Mean length of a clock period of each kernel's repeats, nanoseconds."""
        return self.repeats.mean(self.regression.x)

    @cached_property
    def clock_error(self) -> Array:
        """Error of the clocks of each kernel that all kernels have in common, as a share."""
        own = self.repeats.clocks.error_share
        unknown = np.isnan(own)  # taken to have run at the mean clock of the others
        square = self.repeats.mean(np.where(unknown, clock_errors.PRIOR_SHARE, own) ** 2)
        unreliable = np.sqrt(square) > LEAST_SPREAD
        return np.sqrt(square) * np.where(unreliable, 1.0, _CLOCK_COMMON)

    def chords(self, ratio: Ratio, mhz: Array, *, is_change: bool = False) -> Array:
        """Sensitivity of each kernel from the clocks that it ran at to others, from 0 to 1.

        Parameters
        ----------
        ratio, mhz, is_change
            Of kernels by all sources for these clocks, as of `ratio`.
        """
        share = 1 - self.longer(mhz, is_change=is_change)
        some = np.abs(share) > _NO_CHANGE
        chord = (1 - np.exp(ratio.log)) / np.where(some, share, 1)
        beta = np.where(some & ~np.isnan(chord), chord, self._prior.value)
        return np.clip(beta, 0.0, 1.0)

    def longer(self, mhz: Array, *, is_change: bool = False) -> Array:
        """Periods of each kernel's clock then over those before; `mhz`, `is_change` as of `ratio`."""
        return self._longer(self._periods(mhz, is_change=is_change))

    @cached_property
    def mhz(self) -> Array:
        """Clock of each repeat; the mean of the others where its own is not known."""
        own = self.repeats.clocks.mhz
        return np.where(np.isnan(own), 1000.0 / self.x[self.repeats.key], own)

    def _periods(self, mhz: Array, *, is_change: bool) -> Array:
        """Lengths of clock periods then; of a change from what is believed of the clock before."""
        if not is_change:
            return 1000.0 / mhz
        return self._own * (self.mhz / mhz)

    @cached_property
    def _own(self) -> Array:
        """Length of a clock period of each repeat; the mean of the others where its own is unknown."""
        own = self.regression.x
        return np.where(np.isnan(own), self.x[self.repeats.key], own)

    def _longer(self, target: Array) -> Array:
        """Periods of each kernel's clock then over those before, of the repeats that have one then."""
        r = self.repeats
        return r.mean(target) / r.mean(self._own, ~np.isnan(target))

    def shapes(
        self, ratio: Ratio, mhz: Array, *, is_change: bool = False
    ) -> tuple[Array, Array, Array]:
        """How the times of single repeats change, before what is known of all of a kernel's.

        Parameters
        ----------
        ratio
            Of kernels by all sources, for these clocks.
        mhz, is_change
            Clock of each repeat then, as of `ratio`.

        Returns
        -------
        shape
            Logarithm of the time then over the time measured, by the repeat's own clock; it means
            nothing where the clock then is not known.
        by_clock
            What of the logarithm of its time is no more than its own clock, which its samples do
            not tell: it would not be so at one clock.
        error
            What it may be off by for that, beside the errors of all of its kernel's repeats.
        """
        r, own = self.repeats, self.regression
        target = self._periods(mhz, is_change=is_change)
        beta = self.chords(ratio, mhz, is_change=is_change)[r.key]
        mean, x, known = self.x[r.key], self._own, ~np.isnan(target)
        now = np.nan_to_num(np.log(1 - beta + beta * x / mean))  # without any clock all alike
        then = np.nan_to_num(np.log(1 - beta + beta * target / mean))
        rows = np.flatnonzero(own.possible[r.key])
        k = r.key[rows]
        at, to, _, _ = self.regression.within(k, x[rows], target[rows])
        now[rows] = np.log(own.laws.times(k, at))
        then[rows] = np.log(own.laws.times(k, to))
        rest = np.log(r.dur) - now
        rest -= r.mean(rest, known)[r.key]
        square = r.mean(rest**2, known)[r.key]
        clock = beta * np.nan_to_num(r.clocks.error_share, nan=clock_errors.PRIOR_SHARE)
        unknown = np.clip(clock**2 / np.maximum(square, _NOTHING), 0.0, 1.0)
        rest = np.clip(rest, -_FAR * clock, _FAR * clock)  # what is further away has other reasons
        error = np.minimum(clock, np.sqrt(square))
        if is_change:
            unknown[:] = error[:] = 0.0
        return then - now, np.nan_to_num(unknown * rest), np.nan_to_num(error)

    @cached_property
    def _by_counters(self) -> Told:
        """Between all of the time that counters do not explain being memory's, and all the core's."""
        core, memory = (self.repeats.mean(part) for part in (self.busy.core, self.busy.memory))
        core, most = np.nan_to_num(core), 1 - np.nan_to_num(memory)
        low, high = np.minimum(core, most), np.maximum(core, most)
        known = ~np.isnan(self.repeats.mean(self.busy.core)) | (np.nan_to_num(memory) > 0)
        error = np.hypot((high - low) / 12**0.5, sensitivity_sources.MODEL_ERROR)
        return Told(np.where(known, (low + high) / 2, np.nan), np.where(known, error, np.nan))

    @cached_property
    def _prior(self) -> Told:
        table = np.array(list(PRIORS.values()))
        return Told(*table[self.classes].T)

    def _by_law(self, target: Array) -> Ratio:
        """By laws, as far as clocks are not far beyond those that they were fitted to."""
        r, own = self.repeats, self.regression
        n = len(r.count)
        none = np.full(n, np.nan)
        rows = np.flatnonzero(own.usable[r.key] & ~np.isnan(own.x) & ~np.isnan(target))
        if not rows.size:
            return Ratio(none, none, none, none)
        k, laws = r.key[rows], own.laws
        x, to, beyond, doubt = self.regression.within(k, own.x[rows], target[rows])
        each = laws.each(k, to) / laws.each(k, x)
        mean = self._mean_log(rows, np.log(each))
        log = np.sum(laws.weight * mean, axis=1)
        models = np.sum(laws.weight * (mean - log[:, None]) ** 2, axis=1)
        best = laws.best[k]
        pick = np.arange(len(k)), best
        there, here = laws.each(k, to)[pick], laws.each(k, x)[pick]
        knee = laws.knee[k, best]
        bent = np.maximum(0, to - knee) / there - np.maximum(0, x - knee) / here
        gradient = np.stack([1 / there - 1 / here, to / there - x / here, bent]).T
        u = self._mean_log(rows, gradient)
        statistical = np.sqrt(np.maximum(np.einsum("ki,kij,kj->k", u, laws.covariance, u), 0.0))
        steep = np.einsum("ij,ij->i", laws.weight[k], laws.slopes(k, to)) / laws.times(k, to)
        form = self._mean_log(rows, (steep * beyond * doubt)[:, None])[:, 0]
        core = np.maximum(self._mean_log(rows, (steep * to)[:, None])[:, 0], 0.0)
        clock = core * self.clock_error
        unusable = ~own.usable
        found = [log, statistical, clock, np.sqrt(models + form**2)]
        for column in found:
            column[unusable] = np.nan
        return Ratio(*found)

    def floors(self, mhz: Array) -> Array:
        """Times below which no repeat can get, ns: of its busy cycles, and of its bytes; 0 if unknown.

        Parameters
        ----------
        mhz
            Clock of each repeat then.
        """
        cycles = self.repeats.mean(self.busy.core_cycles)[self.repeats.key]
        moved = self.repeats.mean(self.busy.memory_ns)[self.repeats.key]
        return np.fmax(np.nan_to_num(1000.0 * cycles / mhz), np.nan_to_num(moved))

    def beta(self, each: list[Ratio], mhz: Array) -> tuple[Told, list[Told], Array]:
        """Sensitivity -d ln t / d ln f of each kernel at the clocks that it ran at.

        Parameters
        ----------
        each
            Ratios by source, as `ratio` gives them for these clocks.
        mhz
            Clock of each repeat then.

        Returns
        -------
        together
            By all sources, between 0 and 1.
        each
            By each of `SOURCES`.
        weight
            Weight of each, (source, kernel).
        """
        share = 1 - self.longer(mhz)
        share[np.abs(share) < LEAST_SPREAD] = np.nan
        told = [self._slope_of_law()]
        for one in (each[joined.COUNTED], each[joined.COUNTERS]):
            chord, error = (1 - np.exp(one.log)) / share, np.sqrt(one.variance) / np.abs(share)
            value = np.clip(np.clip(chord, 0.0, 1.0) + _CURVATURE[0], 0.0, 1.0)
            told.append(Told(value, np.hypot(error, _CURVATURE[1])))
        of_class = self._class_means(*told[joined.REGRESSION])  # of other kernels, at other clocks
        told.append(Told(of_class.value, np.hypot(of_class.error, _CURVATURE[1])))
        told.append(Told(self._prior.value, np.hypot(self._prior.error, _CURVATURE[1])))
        together, weight = joined.values(told)
        return together, told, weight

    def _slope_of_law(self) -> Told:
        r, own = self.repeats, self.regression
        none = np.full(len(r.count), np.nan)
        rows = np.flatnonzero(own.usable[r.key] & ~np.isnan(own.x))
        if not rows.size:
            return Told(none, none)
        k, laws = r.key[rows], own.laws
        x = np.clip(own.x[rows], own.fast[k], own.slow[k])
        times = laws.each(k, x)
        each = laws.slopes(k, x) * x[:, None] / times
        mean = self._mean_log(rows, each)
        beta = np.sum(laws.weight * mean, axis=1)
        models = np.sum(laws.weight * (mean - beta[:, None]) ** 2, axis=1)
        pick = np.arange(len(k)), laws.best[k]
        best_ns, own_beta, knee = times[pick], each[pick], laws.knee[k, laws.best[k]]
        over = np.maximum(0, x - knee)
        gradient = np.stack(
            [-own_beta, x * (1 - own_beta), x * (x > knee) - own_beta * over], axis=1
        )
        u = self._mean_log(rows, gradient / best_ns[:, None])
        mixed = np.sum(laws.weight[k] * each, axis=1)
        varies = self._mean_log(rows, ((mixed - beta[k]) ** 2)[:, None])[:, 0]
        variance = np.einsum("ki,kij,kj->k", u, laws.covariance, u) + models + varies
        variance += (_OF_ATTENUATION * own.unreliable * beta) ** 2
        found = Told(beta, np.sqrt(np.maximum(variance, 0)) + _LEAST_BETA_ERROR)
        for column in found:
            column[~own.usable] = np.nan
        return found

    def _class_means(self, value: Array, error: Array) -> Told:
        """Mean of the kernels of each class of which it is known, and how far one is from it."""
        found = np.full((2, len(value)), np.nan)
        for number in range(len(CLASSES)):
            of_class = self.classes == number
            mine = np.flatnonzero(of_class & ~np.isnan(value))
            if len(mine) >= _LEAST_OF_CLASS:
                mean, between = joined.random_effects(value[mine], error[mine], _BETWEEN)
                found[:, of_class] = [[mean], [between]]
        return Told(*found)

    def _mean_log(self, rows: Array, values: Array) -> Array:
        """Mean of columns over the repeats of each kernel, weighted with their durations."""
        r, n = self.repeats, len(self.repeats.count)
        weight = r.dur[rows]
        total = np.bincount(r.key[rows], weight, n)
        columns = [np.bincount(r.key[rows], weight * column, n) for column in values.T]
        return np.stack(columns, axis=1) / np.where(total > 0, total, 1.0)[:, None]

    def _by_counted(self, target: Array, law: Ratio) -> Ratio:
        """By the times of the same kernels in another run, at clocks near to the ones asked.

        How far the two runs are apart at one clock is learned from kernels that have laws.
        """
        r, told = self.repeats, self.counted
        n = len(r.count)
        key, to = r.key[told.place], target[told.place]
        first, known, asked = 1000.0 / told.mhz, ~np.isnan(to), ~np.isnan(target)
        count, others = (np.bincount(k, minlength=n) for k in (key[known], r.key[asked]))
        then = mean_of(told.dur * (1 - self._prior.value[key] * (1 - to / first)), key, known, n)
        far = mean_of(np.abs(1 - to / first), key, known, n)
        log = np.log(then / mean_of(r.dur, r.key, asked, n))
        slower, doubt = self._slower_beside
        log += slower
        repeats = 1 / np.where(count, count, np.nan) + 1 / np.maximum(others, 1)
        statistical = np.hypot(_REPEAT_ERROR * np.sqrt(repeats), far * self._prior.error)
        apart, error = 0.0, _RUN_ERROR
        both = np.flatnonzero(~np.isnan(log) & ~np.isnan(law.log))
        if both.size:
            own = np.sqrt(law.variance + statistical**2)[both]
            apart, error = joined.random_effects((log - law.log)[both], own, _RUN_ERROR)
            if abs(apart) > _RUN_LIMIT * _RUN_ERROR:  # they contradict each other: nothing to learn
                apart, error = 0.0, abs(apart)
        form = np.hypot(error, doubt)
        return Ratio(log - apart, statistical, np.where(np.isnan(log), np.nan, 0.0), form)

    @cached_property
    def _slower_beside(self) -> tuple[Array, Array]:
        """How much longer repeats are for communication beside some of them, and the error of that.

        By how much all of them are longer than those alone: what a law does not explain by their
        clocks; without a law it may be their clocks or not.
        """
        r, own = self.repeats, self.regression
        n, every = len(r.count), np.ones(len(r.key), bool)
        alone = np.bincount(r.key[r.solo], minlength=n)
        both = (alone >= _FEW_ALONE) & (r.count - alone >= _FEW_ALONE)
        apart = np.log(mean_of(r.dur, r.key, every, n) / mean_of(r.dur, r.key, r.solo, n))
        rows = own.usable[r.key] & ~np.isnan(own.x)
        k = np.where(rows, r.key, 0)
        by_law = np.where(rows, own.laws.times(k, np.where(rows, own.x, 1.0)), np.nan)
        solo, all_ = (mean_of(by_law, r.key, rows & which, n) for which in (r.solo, every))
        rest = np.where(both, np.nan_to_num(apart - np.log(all_ / solo)), 0.0)
        unexplained = np.where(both & ~own.usable, np.nan_to_num(apart), 0.0)
        slower = np.where(own.usable, np.maximum(rest, 0.0), np.maximum(unexplained, 0.0) / 2)
        return slower, np.where(own.usable, 0.0, np.abs(unexplained) / 2)

    def _by(self, told: Told, target: Array) -> Ratio:
        """By a sensitivity between the clocks measured and those asked."""
        share = 1 - self._longer(target)
        ratio = np.maximum(1 - told.value * share, 0.05)
        error = np.abs(told.error * share) / ratio
        clock = np.abs(told.value) * self.clock_error / ratio
        return Ratio(np.log(ratio), error * 0.0, clock, error)

    def _of_class(self, law: Ratio, target: Array) -> Told:
        """Sensitivities of classes by those of their kernels that have laws."""
        share = 1 - self._longer(target)
        good = ~np.isnan(law.log) & (np.abs(share) >= LEAST_SPREAD)
        value = np.full(len(share), np.nan)
        value[good] = (1 - np.exp(law.log[good])) / share[good]
        error = np.full(len(share), np.nan)
        error[good] = np.hypot(law.statistical, law.form)[good] / np.abs(share[good])
        return self._class_means(value, error)


def of(trace: Trace, gpus: str = "") -> Sensitivities:
    """Sensitivities of a trace's kernels; found once for each trace.

    Parameters
    ----------
    trace
        Any trace.
    gpus
        The user's file of GPUs; what their memory can do matters here.
    """
    found = trace.kept("sensitivity", _made)
    if not gpus:
        return found
    node = found.repeats.node
    bandwidth = rated.bandwidths(trace, node, gpus)
    busy = sensitivity_sources.busy(trace, node, bandwidth)
    return replace(found, busy=busy, bandwidth=bandwidth)


def _made(trace: Trace) -> Sensitivities:
    r = sensitivity_repeats.of(trace)
    n = len(r.count)
    first = np.full(n, 0)
    first[r.key[::-1]] = np.arange(len(r.key) - 1, -1, -1)
    klass = sensitivity_sources.classes(trace, r.node[first]) if n else np.zeros(0, np.int64)
    counted = sensitivity_sources.counted_repeats(trace, r.node)
    bandwidth = rated.bandwidths(trace, r.node)
    busy = sensitivity_sources.busy(trace, r.node, bandwidth)
    return Sensitivities(r, sensitivity_laws.of(r, klass), counted, busy, klass, bandwidth)
