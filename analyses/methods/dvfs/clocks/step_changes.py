"""Changes of a GPU's clock from step to step by its readings, and of its kernels' durations.

Part of a clock follows what runs: it is lower in kernels that draw much power, again in each step. Readings mix the
kernels of a window, and those around a kernel differ by its place in the step, while its own clock need not. So slopes
are taken over changes from step to step: readings less what is usual for the places in their window (`Changes.rest`),
and durations less what is usual at their place (`Changes.apart`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import (
    MIN_STEPS,
    NOISE_LEFT,
    apart_from_neighbours,
    beyond_chance,
    covered_steps,
    phases_at,
    squares_by_neighbours,
)
from chopper_interop.analyses.methods.dvfs.clocks.kernel_windows import Windows
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import (
        Assumption,
        Readings,
        Work,
    )

_USUAL_ROUNDS = 8
"""Rounds of finding the usual clock of each place. Chosen: readings hardly show what more would change."""
_BLOCKS = 8
"""Blocks of time on each GPU, left out one after the other for the error of the share."""
_PROBES = 8
"""Random signs for readings by which degrees of freedom are counted. Chosen: good to some percent."""
_OUTLIER_DEVIATIONS = 6.0
"""Standard deviations beyond which a duration has other reasons than the clock."""
MIN_RELIABILITY = 0.2
"""Smallest share of readings' changes that is taken to be real. Chosen: below, nothing is known of slopes."""
_VARIANCE_SHARE_ERROR = 0.15
"""Error of the share by the readings' own variances. Chosen: twice the deviations of generated jobs."""
_SHARE_WITHOUT_SIGNAL = 0.3, 0.2
"""Share and its error if readings show nothing of the clock in between. Chosen: all that is possible."""
_MIN_CORRELATION = 0.3
"""Correlation of readings with the next below which they show nothing of the clock in between."""
_CORRELATION_TIMES_NS = 3e6, 20e6
"""Shortest and longest correlation time of a clock that its readings do not show (ASPLOS 2025: 1 to 15 ms)."""
_RESOLVED_CORRELATION = 0.8
"""Correlation from window to window from which on readings show the clock within them too."""
_MIN_REPEATS_AT_PLACE = 5
"""Repeats of each place on a GPU that show what is usual there. Chosen: of fewer, more than a fifth of the changes
would be taken for usual."""
_MAX_WINDOW_IN_KERNELS = 0.5
"""Windows as a share of kernels' durations up to which readings show the clock of each kernel."""
_MIN_FREEDOM = 1e-3
"""Smallest share of degrees of freedom; keeps a quotient finite."""
_TINY = 1e-12
"""Keeps quotients finite; far below all values."""


class Changes:
    """Changes from step to step of a GPU's clock by its readings, and of its kernels' durations.

    Parameters
    ----------
    gpu
        Readings.
    work
        Kernels of the trace.
    assumed
        Window and delay of the readings.
    """

    def __init__(self, gpu: Readings, work: Work, assumed: Assumption) -> None:
        self._gpu, self._assumed = gpu, assumed
        self._n = len(gpu.kernel)
        self._usable = work.usable[gpu.kernel]
        # Readings that are too few do not show what is usual at each place; those within kernels are their own.
        few = self._n < _MIN_REPEATS_AT_PLACE * len(np.unique(work.place[gpu.kernel]))
        by_key = few or self.is_sparse or self._is_within_kernels
        place = (work.key if by_key else work.place)[gpu.kernel]
        gaps = _gaps(gpu.start, gpu.end)
        start, end = np.append(gpu.start, gaps.start), np.append(gpu.end, gaps.end)
        number = np.append(2 * place, 2 * place[gaps.after] + 1)
        self._length, self._place = end - start, np.unique(number, return_inverse=True)[1]
        self._windows = Windows(gpu, assumed, start, end)
        order = np.argsort(gpu.start, kind="stable")
        of_kernels = work.phase[gpu.kernel][order]
        self._phase = phases_at(gpu.centres(assumed), gpu.start[order], of_kernels)
        self.mean, self._usual, self.rest = self._without_usual()
        seen = self._windows.spread(self.rest)
        self._seen = (seen - self._means(seen))[: self._n]
        _, self._key = np.unique(work.key[gpu.kernel], return_inverse=True)
        self.apart, self._faster = self._durations(np.log(work.dur[gpu.kernel]))

    @property
    def is_sparse(self) -> bool:
        """True if windows of readings leave gaps between them."""
        return self._assumed.window_ns < self._gpu.period_ns

    @property
    def _is_within_kernels(self) -> bool:
        """True if windows are so short that kernels contain several."""
        length = self._gpu.end - self._gpu.start
        longest = max(self._assumed.window_ns, self._gpu.period_ns)
        return longest <= _MAX_WINDOW_IN_KERNELS * float(np.average(length, weights=length))

    def _without_usual(self) -> tuple[float, Array, Array]:
        """Mean clock, its usual deviation in each interval, and what is left of the readings; as shares."""
        gpu, windows = self._gpu, self._windows
        covered = windows.spread(gpu.mhz)
        some = covered > 0
        time = np.where(some, self._length, 0.0)[: self._n]
        mean = (
            float(covered[: self._n] @ time / time.sum()) if time.any() else float(gpu.mhz.mean())
        )
        left = np.where(windows.weight > 0, gpu.mhz / mean - 1, 0.0)
        return mean, *self._split(left)

    def _split(self, readings: Array) -> tuple[Array, Array]:
        """Return what is usual in each interval by readings, and what is left of these; of each row."""
        left, usual = readings.copy(), np.zeros((*readings.shape[:-1], len(self._length)))
        for _ in range(_USUAL_ROUNDS):  # Landweber's iteration
            more = self._means(self._windows.spread(left))
            usual += more
            left -= self._windows.read(more)
        return usual, left

    @cached_property
    def _freedom(self) -> float:
        """Share of the readings' degrees of freedom that is left without what is usual (Hutchinson's estimate)."""
        inside = self._windows.weight > 0
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (_PROBES, len(inside))) * inside
        _, left = self._split(signs)
        kept = sum(float(probe @ rest) for probe, rest in zip(signs, left, strict=True))
        return kept / max(_PROBES * int(inside.sum()), 1)

    def _means(self, values: Array) -> Array:
        """Mean of a quantity of the intervals at each one's place, by time; of each row."""
        products = np.atleast_2d(values * self._length)
        sums = np.stack([np.bincount(self._place, row) for row in products])
        means: Array = (sums / self._place_time)[:, self._place].reshape(values.shape)
        return means

    @cached_property
    def _place_time(self) -> Array:
        return np.bincount(self._place, self._length)

    def _durations(self, log: Array) -> tuple[Array, Array]:
        """Deviation of each place's durations from those of its kernel, and of each one's speed from its place's."""
        some = self._usable.astype(float)

        def mean(group: Array) -> Array:
            count = np.bincount(group, some)
            return (np.bincount(group, log * some) / np.where(count > 0, count, np.nan))[group]

        of_place = mean(self._place[: self._n])
        faster = np.where(self._usable, of_place - log, 0.0)
        limit = (
            _OUTLIER_DEVIATIONS * float(np.sqrt(np.mean(faster[self._usable] ** 2)))
            if some.any()
            else 0.0
        )
        return np.nan_to_num(of_place - mean(self._key)), np.clip(faster, -limit, limit)

    @cached_property
    def sums(self) -> Array:
        """Products by block of time, of kernels whose durations show the clock.

        Of what kernels see of readings: with their speed, with itself. Of readings whose windows hold such kernels:
        with speed as read, with themselves.
        """
        usable = np.append(self._usable, np.zeros(len(self._length) - self._n, bool))
        faster = np.append(self._faster, np.zeros(len(usable) - self._n))
        changes = self._gpu.mhz / self.mean - 1 if self.mean > 0 else self.rest
        shown = self._windows.holds(usable)
        as_read, in_full = (
            self._windows.spread(readings)
            for readings in self._unusual(self._windows.read(faster, usable), changes, shown)
        )
        start, seen = self._gpu.start, in_full - self._means(in_full)
        block = ((start - start.min()) * _BLOCKS / max(float(np.ptp(start)) + 1, 1.0)).astype(
            np.int64
        )
        own = np.append(self._seen, np.zeros(len(usable) - self._n))
        time = (self._length * usable)[: self._n]
        products = (own * faster, own * own, seen * as_read, seen * in_full)
        return np.stack([np.bincount(block, time * v[: self._n], _BLOCKS) for v in products])

    def _unusual(self, speeds: Array, changes: Array, shown: Array) -> tuple[Array, Array]:
        """Return the speeds as read and the readings' changes, of readings that are shown, without what is usual.

        Speeds deviate from those of their place, which has been left out of them. With no steps, or few, both lose the same.
        """
        speeds, left = np.where(shown, speeds, 0.0), np.where(shown, changes, 0.0)
        if covered_steps(self._phase[shown]) < MIN_STEPS:
            return self._split(speeds)[1], self._split(left)[1]
        left[shown] = apart_from_neighbours(changes[shown], self._phase[shown])
        return speeds, left

    @cached_property
    def squares(self) -> Array:
        """Sums of squares of readings less those of their neighbours in the step, as `usual_left` takes them, and of `rest`."""
        inside = self._windows.weight > 0
        if covered_steps(self._phase[inside]) < MIN_STEPS:
            return np.ones(3)
        near = squares_by_neighbours(self._gpu.mhz[inside] / self.mean, self._phase[inside])
        left = NOISE_LEFT * np.sum(self.rest[inside] ** 2) / max(self._freedom, _MIN_FREEDOM)
        return np.append(near, left)

    @property
    def time(self) -> float:
        """Time of all kernels, nanoseconds."""
        return float(self._length[: self._n].sum())

    @cached_property
    def size(self) -> float:
        """Sum over time of the squares of what kernels see of the readings' changes."""
        return float(self._seen**2 @ self._length[: self._n])

    @cached_property
    def _variance(self) -> float:
        weight = self._windows.weight
        if not weight.any() or self.mean <= 0:
            return 0.0
        noise = (self._gpu.quantum_mhz / self.mean) ** 2 / 12
        return max(float(np.average(self.rest**2, weights=weight)) - noise, 0.0)

    @cached_property
    def expected_share(self) -> tuple[float, float]:
        """Share by the variances of readings, and its error."""
        of_seen = self.size / self.time
        if self._variance <= 0 or of_seen <= 0:
            return _SHARE_WITHOUT_SIGNAL
        if (
            not self.is_sparse
        ):  # the covariance of a clock with the means that cover it is their variance
            return self._variance / of_seen, _VARIANCE_SHARE_ERROR
        alike = self._correlation
        if alike < _MIN_CORRELATION:
            return _SHARE_WITHOUT_SIGNAL
        half = -np.log(min(alike, 1 - 1e-6)) / 2
        return float(-np.expm1(-half) / half), _VARIANCE_SHARE_ERROR

    @cached_property
    def _correlation(self) -> float:
        """Correlation of what is unusual in a reading with the next window's."""
        step = max(round(self._assumed.window_ns / self._gpu.period_ns), 1)
        good = (self._windows.weight[step:] > 0) & (self._windows.weight[:-step] > 0)
        if not good.any():
            return 0.0
        products = (self.rest[step:] * self.rest[:-step])[good]
        return beyond_chance(products, max(self._variance, _TINY))

    @property
    def resolution(self) -> float:
        """Correlation of what is unusual from window to window; 1 if readings show the clock within them too."""
        return self._correlation

    @property
    def is_hidden(self) -> bool:
        """True if readings show nothing of the clock between their windows."""
        return self.is_sparse and self.resolution < _MIN_CORRELATION

    @property
    def is_resolved(self) -> bool:
        """True if readings show the clock within their windows too."""
        return self.resolution >= _RESOLVED_CORRELATION

    @cached_property
    def reliability(self) -> float:
        """Share of what kernels see of the readings' changes that is no rounding of these."""
        count = max(self._assumed.window_ns / self._gpu.period_ns, 1.0)
        noise = (self._gpu.quantum_mhz / self.mean) ** 2 / 12 / count * self.time
        return float(np.clip(1 - noise / max(self.size, _TINY), MIN_RELIABILITY, 1.0))

    @cached_property
    def of_kernels(self) -> tuple[float, float]:
        """Variance of the mean clock of a kernel over that of the clock at an instant, and its error."""
        if not self.is_sparse:
            return 1.0, 0.0
        length = self._length[: self._n]
        length = length * np.minimum(1.0, (self._gpu.period_ns / length) ** 2)  # several readings
        if self._correlation >= _MIN_CORRELATION:
            time = -self._gpu.period_ns / np.log(min(self._correlation, 1 - 1e-6))
            share = _variance_of_mean(length, time)
            return share, (1 - share) / 2
        low, high = (_variance_of_mean(length, time) for time in _CORRELATION_TIMES_NS)
        return (low + high) / 2, (high - low) / 12**0.5

    @cached_property
    def _steady(self) -> tuple[float, float]:
        """Standard deviation of readings of work as a share, and their correlation with the next."""
        inside = self._windows.weight > 0
        left = np.where(inside, self._gpu.mhz / max(self.mean, 1.0) - 1, 0.0)
        both = inside[1:] & inside[:-1]
        variance = float(left @ left) / max(int(inside.sum()), 1)
        if not both.any() or variance <= 0:
            return variance**0.5, 0.0
        return variance**0.5, beyond_chance((left[1:] * left[:-1])[both], variance)

    @property
    def between(self) -> float:
        """Standard deviation of clocks around those between readings, as a share; infinite if readings average.

        Taken as if all that one reading does not share with the next were of single kernels.
        """
        spread, alike = self._steady
        return spread * (1 - alike) ** 0.5 if self.is_sparse else np.inf

    @property
    def size_error(self) -> float:
        """Error of the size of changes between readings, as a share of it, if what one reading shows is noise."""
        return 1 - self._steady[1]

    @property
    def is_steady(self) -> bool:
        """True if readings are so alike that they show the clock between them too."""
        return self._steady[1] >= _RESOLVED_CORRELATION

    @property
    def usual_error(self) -> float:
        """Error of what is usual for a kernel, as a share of the clock, by what it leaves of the readings.

        It is no more than how far readings are apart, of which few leave nothing.
        """
        left = self._variance / max(self._freedom, _MIN_FREEDOM)
        return float(np.sqrt(min(left, self._steady[0] ** 2) * max(1 - self._freedom, 0.0)))

    def unseen(self, share: float) -> float:
        """Standard deviation of the mean clocks of kernels around those that `clocks` returns, as a share.

        What is usual has an error as well, where it is of few readings (generalised cross-validation).
        """
        explained = share**2 * self.size / self.time
        variance = self._variance / max(self._freedom, _MIN_FREEDOM) ** 2
        return float(np.sqrt(max(self.of_kernels[0] * variance - explained, 0.0)))

    @cached_property
    def usual(self) -> Array:
        """Usual deviation of the clock of each kernel from the mean, as a share, alike for its repeats."""
        return self._of_kernels(self._usual)

    @cached_property
    def usual_variance(self) -> Array:
        """Variance of the error of `usual`: what blocks of the rest of the readings leave of it with random signs."""
        time = self._gpu.time
        block = ((time - time[0]) * _BLOCKS / (time[-1] - time[0] + 1)).astype(np.int64)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (_PROBES, _BLOCKS))[:, block]
        usual, _ = self._split(signs * self.rest)
        squares = np.mean([self._of_kernels(row) ** 2 for row in usual], axis=0)
        variance: Array = squares / max(self._freedom, _MIN_FREEDOM)
        return variance

    def _of_kernels(self, values: Array) -> Array:
        """Mean of a quantity of the intervals over the repeats of each kernel, by time."""
        time = self._length[: self._n]
        total = np.bincount(self._key, values[: self._n] * time)
        mean: Array = (total / np.bincount(self._key, time))[self._key]
        return mean

    def clocks(self, share: float, usual: Array | None = None) -> Array:
        """Return the expected clock of each kernel, MHz; `usual` is that of the readings unless it is known better."""
        return self.mean * (1 + (self.usual if usual is None else usual) + share * self._seen)


def _variance_of_mean(length: Array, time: float) -> float:
    """Variance of the mean over intervals of an exponentially correlated clock, as a share of its variance."""
    x = np.maximum(length / time, 1e-3)
    return float(np.average(2 * (x - 1 + np.exp(-x)) / x**2, weights=length))


class _Gaps(NamedTuple):
    """Times without kernels: begin, end, and the kernel before."""

    start: Array
    end: Array
    after: Array


def _gaps(start: Array, end: Array) -> _Gaps:
    order = np.argsort(start, kind="stable")
    until, begin = np.maximum.accumulate(end[order])[:-1], start[order][1:]
    gap = begin > until
    return _Gaps(until[gap], begin[gap], order[:-1][gap])
