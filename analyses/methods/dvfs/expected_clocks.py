"""Clocks of kernels that readings of a sensor lead to expect, so that slopes over them are those over the clock.

Part of a clock follows what runs: it is lower in kernels that draw much power, again in each step. Readings mix the
kernels of a window, and those around a kernel differ by its place in the step, while its own clock need not. So slopes
are taken over changes from step to step: readings less what is usual for the places in their window (`Changes.rest`),
and durations less what is usual at their place (`Changes.apart`).

Such changes, spread over the kernels that readings cover, are followed by the clock to a share that depends on its
spectrum. Durations show this share, whatever their sensitivity: averaged as the sensor averages and spread like its
readings, they follow the readings in full; the share is how much less they do themselves.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED
from chopper_interop.analyses.methods.dvfs.mean_sensitivity import (
    mean_sensitivity,
    mean_sensitivity_of_gpus,
)

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clock_sensor import Assumption, Readings, Work
    from chopper_interop.arrays.types import Array

_ROUNDS = 8
"""Rounds of finding the usual clock of each place. Chosen: readings hardly show what more would change."""
_BLOCKS = 8
"""Blocks of time on each GPU, left out one after the other for the error of the share."""
_PROBES = 8
"""Random signs for readings by which degrees of freedom are counted. Chosen: good to some percent."""
_INSTANT_NS = 1e3
"""Window of an instant, so that it has a length."""
_MIN_WINDOW_SHARE = 1e-3
"""Share of a window that work must take, so that a reading counts."""
_FAR = 6.0
"""Standard deviations beyond which a duration has other reasons than the clock."""
_MIN_RELIABILITY = 0.2
"""Smallest share of readings' changes that is taken to be real. Chosen: below, nothing is known of slopes."""
_SIGNIFICANT = 3.0
"""Standard errors by which averaged durations must follow readings to show the share. Chosen: fewer are chance."""
_SHARE_ERROR = 0.15
"""Error of the share by the readings' own variances. Chosen: twice the deviations of generated jobs."""
_UNKNOWN_SHARE = 0.3, 0.2
"""Share and its error if readings show nothing of the clock in between. Chosen: all that is possible."""
_MIN_SHARE_ERROR = {False: 0.02, True: 0.06}
"""Smallest error of the share by durations, for readings that touch and for those apart. Chosen: deviations of
generated jobs, as the shape of the clock's spectrum is not known."""
_NOT_SHOWN = 0.5
"""Error of the share, as a share of it, where durations do not show that they follow the readings."""
_STILL = 0.3
"""Correlation of readings with the next below which they show nothing of the clock in between."""
_SWITCHING_NS = 3e6, 20e6
"""Shortest and longest correlation time of a clock that its readings do not show (ASPLOS 2025: 1 to 15 ms)."""
_RESOLVED = 0.8
"""Correlation from window to window from which on readings show the clock within them too."""
_MIN_CHANGE = 1e-3
"""Smallest standard deviation of a clock, as a share, that shows a sensitivity. Chosen: 2 MHz of 2000."""
_FEWEST_STEPS = 5
"""Repeats of each place on a GPU that show what is usual there. Chosen: of fewer, more than a fifth of the changes
would be taken for usual."""
_WITHIN = 0.5
"""Windows as a share of kernels' durations up to which readings show the clock of each kernel."""
_MIN_SPREAD_ERROR = 0.05
"""Smallest error of a mean sensitivity by readings spread over kernels, as a share of what it may be. Chosen: that of
the share which it needs."""
_GPUS_SHOW = 0.15
"""Error of the mean sensitivity by differences between GPUs below which it counts against all others. Chosen: a
quarter of what is possible lies within."""
FEWEST_WINDOWS = 4
"""Windows of a reading in the time of work, below which readings show nothing of changes. Chosen: they overlap, and
blocks of time that are shorter do not show errors."""
_MIN_PART = 0.25
"""Smallest part of the expected share that is possible where durations do not show it."""
_TINY = 1e-12
"""Keeps quotients finite; far below all values."""


class Expected(NamedTuple):
    """Clocks of a GPU's kernels by its readings.

    Parameters
    ----------
    mhz
        Expected clock of each kernel.
    apart
        Logarithm of how much longer each takes at its place in the step than in the mean.
    size_error
        Error of the size of the clock's changes, as a share of it.
    is_resolved
        True if readings show the clock within their windows too.
    beta, beta_error
        Mean sensitivity of all kernels by how they follow these changes, and its standard error.
    unseen
        Standard deviation of the clocks of kernels around the expected, by the readings' changes, as a share.
    """

    mhz: Array
    apart: Array
    size_error: float
    is_resolved: bool
    beta: float
    beta_error: float
    unseen: float


def expected_clocks(gpus: list[Readings], work: Work, assumed: Assumption) -> list[Expected]:
    """Return the expected clocks of the kernels of GPUs with one kind of sensor."""
    changes = [Changes(gpu, work, assumed) for gpu in gpus]
    beta = _best_mean_beta(gpus, work, assumed, changes)
    share, error = _share(changes)
    # Where durations do not show the share, slopes over changes within a GPU say nothing of single kernels.
    used, error = (share, error / share) if _is_shown(changes) else (0.0, 0.0)
    apart = [one.unseen(used) for one in changes]
    between = [one.between for one in changes]
    if np.mean(np.square(between)) < np.mean(np.square(apart)):
        return [
            Expected(gpu.at_kernels(assumed), 0 * one.apart, one.size_error, True, *beta, unseen)
            for gpu, one, unseen in zip(gpus, changes, between, strict=True)
        ]
    return [
        Expected(one.clocks(used), one.apart, error, one.is_resolved, *beta, unseen)
        for one, unseen in zip(changes, apart, strict=True)
    ]


class _Overlaps:
    """Time that intervals of one kind have in common with others, as an operator on values of these.

    Parameters
    ----------
    start, end
        Intervals with values, nanoseconds.
    low, high
        Spans over which values are integrated.
    """

    def __init__(self, start: Array, end: Array, low: Array, high: Array) -> None:
        time = np.concatenate([start, end]).astype(float)
        self._order = np.argsort(time, kind="stable")
        self._time = time[self._order]
        self._length = np.append(np.diff(self._time), 0.0)
        self._ends = [
            np.maximum(np.searchsorted(self._time, at, side="right") - 1, 0) for at in (low, high)
        ]
        self._after = [
            np.maximum(at - self._time[i], 0.0)
            for at, i in zip((low, high), self._ends, strict=True)
        ]

    def sums(self, values: Array) -> Array:
        """Return the integral of the values over each span."""
        rates = np.cumsum(np.concatenate([values, -values])[self._order])
        rates[-1] = 0.0  # rounding
        area = np.append([0.0], np.cumsum(rates * self._length))
        low, high = (area[i] + rates[i] * t for i, t in zip(self._ends, self._after, strict=True))
        total: Array = high - low
        return total


class _Windows:
    """Windows of readings and the intervals of work within them."""

    def __init__(self, gpu: Readings, assumed: Assumption, start: Array, end: Array) -> None:
        middle = gpu.centres(assumed)
        window = max(assumed.window_ns, _INSTANT_NS)
        reach = max(assumed.window_ns, gpu.period_ns)
        low, high = middle - window / 2, middle + window / 2
        self._read = _Overlaps(start, end, low, high)
        self._spread = _Overlaps(middle - reach / 2, middle + reach / 2, start, end)
        self._own = _Overlaps(low, high, start, end) if reach > window else self._spread
        self._min_ns = _MIN_WINDOW_SHARE * window
        inside = (low >= gpu.start.min()) & (high <= gpu.end.max())
        self.weight = self._read.sums(np.ones(len(start))) * inside
        self.weight[self.weight < self._min_ns] = 0.0
        total = self._spread.sums(self.weight)
        self._total = np.where(total > self._min_ns, total, np.inf)

    def read(self, values: Array, counts: Array | None = None) -> Array:
        """Return the mean of a quantity of the intervals in each window; 0 where there is none.

        Parameters
        ----------
        values
            Value of each interval.
        counts
            Mark intervals that have one; all if None.
        """
        weight = self.weight if counts is None else self._read.sums(counts.astype(float))
        good = (weight >= self._min_ns) & (self.weight > 0)
        mean: Array = self._read.sums(values) / np.where(good, weight, np.inf)
        return mean

    def holds(self, counts: Array) -> Array:
        """Mark windows with marked intervals."""
        some: Array = (self._read.sums(counts.astype(float)) >= self._min_ns) & (self.weight > 0)
        return some

    def at_places(self, readings: Array, place: Array) -> Array:
        """Return the mean of the readings in whose windows intervals of each one's place are; 0 where in none."""
        total, weight = (
            np.bincount(place, self._own.sums(v * self.weight))
            for v in (readings, readings * 0 + 1)
        )
        mean: Array = np.divide(
            total, weight, out=np.zeros(len(total)), where=weight > self._min_ns
        )
        return mean[place]

    def spread(self, readings: Array) -> Array:
        """Return the mean of the readings that cover each interval; 0 where none does."""
        mean: Array = self._spread.sums(readings * self.weight) / self._total
        return mean


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
        few = self._n < _FEWEST_STEPS * len(np.unique(work.place[gpu.kernel]))
        by_key = few or self.is_sparse or self._is_within_kernels
        place = (work.key if by_key else work.place)[gpu.kernel]
        gaps = _gaps(gpu.start, gpu.end)
        start, end = np.append(gpu.start, gaps.start), np.append(gpu.end, gaps.end)
        number = np.append(2 * place, 2 * place[gaps.after] + 1)
        self._length, self._place = end - start, np.unique(number, return_inverse=True)[1]
        self._windows = _Windows(gpu, assumed, start, end)
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
        return longest <= _WITHIN * float(np.average(length, weights=length))

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
        """Return what is usual in each interval by readings, and what is left of these."""
        left, usual = readings.copy(), np.zeros(len(self._length))
        for _ in range(_ROUNDS):  # Landweber's iteration
            more = self._means(self._windows.spread(left))
            usual += more
            left -= self._windows.read(more)
        return usual, left

    @cached_property
    def _freedom(self) -> float:
        """Share of the readings' degrees of freedom that is left without what is usual (Hutchinson's estimate)."""
        inside = self._windows.weight > 0
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (_PROBES, len(inside))) * inside
        left = sum(float(probe @ self._split(probe)[1]) for probe in signs)
        return left / max(_PROBES * int(inside.sum()), 1)

    def _unusual(self, readings: Array, usable: Array) -> Array:
        """Return what is left of readings of usable intervals without what is usual at the places read."""
        shown = self._windows.holds(usable)
        left: Array = np.where(shown, readings, 0.0)
        for _ in range(_ROUNDS):
            left = left - self._windows.read(
                self._windows.at_places(left, self._place) * usable, usable
            )
        return left

    def _means(self, values: Array) -> Array:
        """Mean of a quantity of the intervals at each one's place, by time."""
        time = np.bincount(self._place, self._length)
        return (np.bincount(self._place, values * self._length) / time)[self._place]

    def _durations(self, log: Array) -> tuple[Array, Array]:
        """Deviation of each place's durations from those of its kernel, and of each one's speed from its place's."""
        some = self._usable.astype(float)

        def mean(group: Array) -> Array:
            count = np.bincount(group, some)
            return (np.bincount(group, log * some) / np.where(count > 0, count, np.nan))[group]

        of_place = mean(self._place[: self._n])
        faster = np.where(self._usable, of_place - log, 0.0)
        limit = _FAR * float(np.sqrt(np.mean(faster[self._usable] ** 2))) if some.any() else 0.0
        return np.nan_to_num(of_place - mean(self._key)), np.clip(faster, -limit, limit)

    @cached_property
    def sums(self) -> Array:
        """Products by block of time, of kernels whose durations show the clock.

        Of what kernels see of readings: with their speed, with itself. Of readings whose windows hold such kernels:
        with speed as read, with themselves; both lose what is usual alike, so that readings which are too few to
        show it count for less.
        """
        usable = np.append(self._usable, np.zeros(len(self._length) - self._n, bool))
        faster = np.append(self._faster, np.zeros(len(usable) - self._n))
        changes = self._gpu.mhz / self.mean - 1 if self.mean > 0 else self.rest
        as_read, in_full = (
            self._windows.spread(self._unusual(readings, usable))
            for readings in (self._windows.read(faster, usable), changes)
        )
        start, seen = self._gpu.start, in_full - self._means(in_full)
        block = ((start - start.min()) * _BLOCKS / max(float(np.ptp(start)) + 1, 1.0)).astype(
            np.int64
        )
        own = np.append(self._seen, np.zeros(len(usable) - self._n))
        time = (self._length * usable)[: self._n]
        products = (own * faster, own * own, seen * as_read, seen * in_full)
        return np.stack([np.bincount(block, time * v[: self._n], _BLOCKS) for v in products])

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
            return _UNKNOWN_SHARE
        if (
            not self.is_sparse
        ):  # the covariance of a clock with the means that cover it is their variance
            return self._variance / of_seen, _SHARE_ERROR
        alike = self._correlation
        if alike < _STILL:
            return _UNKNOWN_SHARE
        half = -np.log(min(alike, 1 - 1e-6)) / 2
        return float(-np.expm1(-half) / half), _SHARE_ERROR

    @cached_property
    def _correlation(self) -> float:
        """Correlation of what is unusual in a reading with the next window's."""
        step = max(round(self._assumed.window_ns / self._gpu.period_ns), 1)
        good = (self._windows.weight[step:] > 0) & (self._windows.weight[:-step] > 0)
        if not good.any():
            return 0.0
        covariance = float(np.mean((self.rest[step:] * self.rest[:-step])[good]))
        return float(np.clip(covariance / max(self._variance, _TINY), 0.0, 1.0))

    @property
    def resolution(self) -> float:
        """Correlation of what is unusual from window to window; 1 if readings show the clock within them too."""
        return self._correlation

    @property
    def is_resolved(self) -> bool:
        """True if readings show the clock within their windows too."""
        return self.resolution >= _RESOLVED

    @cached_property
    def reliability(self) -> float:
        """Share of what kernels see of the readings' changes that is no rounding of these."""
        count = max(self._assumed.window_ns / self._gpu.period_ns, 1.0)
        noise = (self._gpu.quantum_mhz / self.mean) ** 2 / 12 / count * self.time
        return float(np.clip(1 - noise / max(self.size, _TINY), _MIN_RELIABILITY, 1.0))

    @cached_property
    def of_kernels(self) -> tuple[float, float]:
        """Variance of the mean clock of a kernel over that of the clock at an instant, and its error."""
        if not self.is_sparse:
            return 1.0, 0.0
        length = self._length[: self._n]
        length = length * np.minimum(1.0, (self._gpu.period_ns / length) ** 2)  # several readings
        if self._correlation >= _STILL:
            time = -self._gpu.period_ns / np.log(min(self._correlation, 1 - 1e-6))
            share = _variance_of_mean(length, time)
            return share, (1 - share) / 2
        low, high = (_variance_of_mean(length, time) for time in _SWITCHING_NS)
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
        alike = float(np.mean((left[1:] * left[:-1])[both])) / variance
        return variance**0.5, float(np.clip(alike, 0.0, 1.0))

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

    def unseen(self, share: float) -> float:
        """Standard deviation of the mean clocks of kernels around those that `clocks` returns, as a share.

        What is usual has an error as well, where it is of few readings (generalised cross-validation).
        """
        explained = share**2 * self.size / self.time
        variance = self._variance / max(self._freedom, _MIN_WINDOW_SHARE) ** 2
        return float(np.sqrt(max(self.of_kernels[0] * variance - explained, 0.0)))

    def clocks(self, share: float) -> Array:
        """Expected clock of each kernel, MHz."""
        usual, time = self._usual[: self._n], self._length[: self._n]
        of_kernel = np.bincount(self._key, usual * time) / np.bincount(self._key, time)
        return self.mean * (1 + of_kernel[self._key] + share * self._seen)


def saved_time(
    gpus: list[Readings], work: Work, assumed: Assumption, reach: float
) -> tuple[float, float]:
    """Return the least and the most time that kernels would save at the highest clock.

    With one sensitivity of all kernels, which may be wrong by `reach` standard errors.
    """
    changes = [Changes(gpu, work, assumed) for gpu in gpus]
    share, _ = _share(changes)
    beta, wide = _best_mean_beta(gpus, work, assumed, changes)
    in_full = 0.0
    for gpu, one in zip(gpus, changes, strict=True):
        k = gpu.kernel
        in_full += float(np.nansum(work.dur[k] * (1 - one.clocks(share) / work.highest[k])))
    if np.isnan(beta):
        beta, wide = 0.5, 0.25
    low, high = in_full * np.clip([beta - reach * wide, beta + reach * wide], 0.0, 1.0)
    return min(low, high), max(low, high)


def _best_mean_beta(
    gpus: list[Readings], work: Work, assumed: Assumption, changes: list[Changes]
) -> tuple[float, float]:
    """Mean sensitivity of all kernels by the source with the smaller error, and that error; NaN if none shows it.

    Readings that show nothing of the clock in between are not spread over kernels: whatever is usual at their places
    would be taken for changes.
    """
    by_gpus = mean_sensitivity_of_gpus(gpus, work)
    if assumed.window_ns * FEWEST_WINDOWS > max(float(np.ptp(gpu.start)) for gpu in gpus):
        return by_gpus if np.isfinite(by_gpus[1]) else (np.nan, np.nan)
    by_products = mean_sensitivity(gpus, work, assumed)
    is_sparse = any(one.is_sparse and one.resolution < _STILL for one in changes)
    by_spread = (np.nan, np.nan) if is_sparse else _mean_beta(changes)
    best, highest = by_spread, min(abs(by_spread[0]) + TWO_SIDED * by_spread[1], 1.0)
    if np.isnan(by_spread[0]) or by_products[1] < max(by_spread[1], _MIN_SPREAD_ERROR * highest):
        best = by_products if np.isfinite(by_products[1]) else (np.nan, np.nan)
    return _with_gpus(best, by_gpus)


def _with_gpus(best: tuple[float, float], by_gpus: tuple[float, float]) -> tuple[float, float]:
    """Mean sensitivity by one GPU's changes and by the differences between GPUs, and its error.

    The latter are the same whatever the sensor, so that what contradicts them is wrong of it.
    """
    if not np.isfinite(by_gpus[1]):
        return best
    apart = abs(best[0] - by_gpus[0])
    if np.isnan(best[0]) or apart > TWO_SIDED * np.hypot(best[1], by_gpus[1]):
        return by_gpus if np.isnan(best[0]) or by_gpus[1] < _GPUS_SHOW else best
    weight = np.array([best[1], by_gpus[1]]) ** -2.0
    return float(weight @ [best[0], by_gpus[0]] / weight.sum()), float(weight.sum() ** -0.5)


def _mean_beta(changes: list[Changes]) -> tuple[float, float]:
    """Mean sensitivity of all kernels by their time, and its error.

    Averaged as the sensor averages, durations of kernels that follow the clock change as readings do.
    """
    weights = [one.size for one in changes]
    own, of_seen, as_read, in_full = _sums(changes)
    kept, lost = (_average([one.of_kernels[i] for one in changes], weights) for i in (0, 1))
    min_error = _MIN_SHARE_ERROR[any(one.is_sparse for one in changes)]
    true = _average([one.reliability for one in changes], weights)
    is_still = not in_full.sum() > _MIN_CHANGE**2 * sum(one.time for one in changes)
    if is_still or true <= _MIN_RELIABILITY:
        return np.nan, np.nan
    beta = float(as_read.sum() / in_full.sum()) / (kept * true)
    of_size = np.sqrt((lost / kept) ** 2 + min_error**2 + _vague(changes) ** 2)
    error = float(np.hypot(_ratio_error(as_read, in_full) / (kept * true), beta * of_size))
    if _is_shown(changes):
        return beta, error
    # Single durations that do not follow are a bound, whatever the share is within its limits.
    share = max(_share(changes)[0], _TINY)
    single = float(own.sum() / of_seen.sum()) / share
    single_error = np.hypot(_ratio_error(own, of_seen) / (_MIN_PART * share), single)
    weight = np.maximum([error, single_error], _TINY) ** -2.0
    return float(weight @ [beta, single] / weight.sum()), float(weight.sum() ** -0.5)


def _sums(changes: list[Changes]) -> Array:
    """`Changes.sums` of all GPUs."""
    return np.concatenate([one.sums for one in changes], axis=1)


def _ratio_error(part: Array, whole: Array) -> float:
    """Error of the ratio of two sums, by leaving out one block after the other."""
    return _jackknife((part.sum() - part) / (whole.sum() - whole))


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


def _share(changes: list[Changes]) -> tuple[float, float]:
    """Share to which clocks follow the readings spread over kernels, and its error.

    By durations where these follow the readings, left out in blocks of time for the error, and by the
    readings' variances; both by the inverses of their variances.
    """
    weights = [one.size for one in changes]
    share = _average([one.expected_share[0] for one in changes], weights)
    error = max(one.expected_share[1] for one in changes)
    true = _average([one.reliability for one in changes], weights)
    sums = _sums(changes)
    vague = _vague(changes) * share
    if _is_shown(changes):
        kept, lost = (_average([one.of_kernels[i] for one in changes], weights) for i in (0, 1))
        total = sums.sum(axis=1, keepdims=True)
        value = kept * float(_follow(total)[0])
        own_error = np.hypot(kept * _jackknife(_follow(total - sums)), value * lost / kept)
        own_error = np.hypot(own_error, _MIN_SHARE_ERROR[any(one.is_sparse for one in changes)])
        inverse = np.maximum([error, own_error], _TINY) ** -2.0
        share, error = float(inverse @ [share, value] / inverse.sum()), float(inverse.sum() ** -0.5)
    return max(share, _MIN_WINDOW_SHARE) * true, float(np.hypot(error, vague)) * true


def _follow(sums: Array) -> Array:
    """Slope of durations over what kernels see of readings, over that of durations as read; by `Changes.sums`."""
    own, of_seen, as_read, in_full = sums
    slope: Array = (own / of_seen) / (as_read / in_full)
    return slope


def _vague(changes: list[Changes]) -> float:
    """Error of the share, as a share of it, as kernels may differ in it where windows hide most of the clock."""
    as_read = _sums(changes)[2]
    unseen = 1 - min(one.resolution for one in changes)
    return unseen * _NOT_SHOWN * min(_SIGNIFICANT / max(_significance(as_read), _TINY), 1.0)


def _is_shown(changes: list[Changes]) -> bool:
    """True if durations follow the readings by more than chance."""
    return _significance(_sums(changes)[2]) > _SIGNIFICANT


def _significance(parts: Array) -> float:
    """Absolute value of a sum over its error."""
    total = float(parts.sum())
    return abs(total) / max(_jackknife(total - parts), _TINY)


def _average(values: list[float], weights: list[float]) -> float:
    return float(np.average(values, weights=np.maximum(weights, _TINY)))


def _jackknife(without: Array) -> float:
    """Error of an estimate by its values without one block after the other."""
    n = len(without)
    return float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))
