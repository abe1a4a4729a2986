"""Mean sensitivity of a job's kernels to the clock, by readings of its sensor and speeds of kernels.

The speed of a kernel, relative to its repeats at one place of the step, is ``b`` times the relative change of its
mean clock. Two products of what readings and durations show give b, the mean over all kernels by their time:

reverse
    Products of speeds with each other, over products of readings with speeds. Speeds are compared with those of other
    kernels that ran about then, so that the noise of durations, independent from kernel to kernel, is in neither
    product. Whatever else a reading shows, the clock at an instant within the kernel or what is usual at its place in
    the step, is not in them either.
forward
    Products of readings with speeds, over those of readings with each other. Only where readings show the mean clock
    of the very time over which speeds are averaged, so that they have no error but rounding.

`mean_sensitivity_of_gpus` compares the mean clocks of GPUs with their mean speeds, whatever the sensor of the clock.

Each is a condition that sums over blocks of time must meet up to their scatter from block to block. Both are combined
by that scatter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import (
    MIN_STEPS,
    NOISE_IN_SLOPES,
    NOISE_LEFT,
    Assumption,
    Cumulative,
    Readings,
    Work,
    apart_from_neighbours,
    covered_steps,
    phases_at,
    squares_by_neighbours,
    usual_left,
)
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED, jackknife, student
from chopper_interop.arrays import Array

_OUTLIER_DEVIATIONS = 6.0
"""Standard deviations beyond which the speed of a kernel has other reasons than the clock."""
_MIN_KERNELS_IN_WINDOW = 4
"""Kernels in a window from which on their means are compared with it. Chosen: those at its ends, of which a part
is outside, are less than half of it."""
_MIN_READINGS_IN_KERNEL = 2
"""Readings in a kernel from which on their mean is its clock; each half of them shows the rounding of the other."""
_MIN_COVERED_SHARE = 0.3
"""Share of a window in which kernels ran that a reading needs."""
_MIN_REPEATS_AT_PLACE = 5
"""Repeats of a place that show what is usual there. Chosen: of fewer, more than a fifth of changes is lost."""
_BLOCKS = 24
"""Blocks of time of all GPUs. Chosen: enough for a standard deviation, several readings in each."""
_MIN_READINGS = 4
"""Readings of a GPU, and blocks, below which they are not compared with kernels."""
_NEIGHBOURS = 4
"""Kernels before and after each whose speeds show the clock. Chosen: where kernels that follow it and others alternate, as products
and activations do, some of both."""
_ALIKE_NS = 8e6
"""Time between kernels in which what they show of each other's clock falls by e. Chosen: in the middle of clocks' 3 to 20 ms."""
_LOADING_ROUNDS = 3
"""Rounds of finding how much each kernel follows the others. Chosen: weights hardly change after two."""
_MIN_LOADING = 0.1
"""Smallest share by which a kernel is taken to follow the others, as estimates of it have errors."""
_LOADING_REPEATS = 10
"""Repeats as which the assumption counts that a kernel follows the clock as all others do. Chosen: few."""
_FORWARD_ERROR = 0.04
"""Error of what follows from readings as means, as a share. Chosen: deviations of generated jobs, as what is usual at
a place is not taken off whole."""
_USUAL_SHARE_LEFT = 0.04
"""Share of the square of what is usual at places of the step that is left. Chosen: deviations of generated jobs."""
_EXPECTED_SHOWN_SHARE = 0.6
"""The same share as it is expected. Chosen: that of jobs whose clock does not follow the step is 1."""
_MIN_REPEATS = 8
"""Repeats at each place on each GPU from which on readings show the sensitivity. Chosen: with fewer, what is
usual at a place is most of what they show."""
_MIN_RELATIVE_ERROR = 0.02
"""Smallest error as a share. Chosen: speeds of kernels that follow the clock in part are no straight line over it;
deviations of generated jobs whose clock changes by a third."""
GPU_TIME_SPREAD = 0.002
"""Standard deviation of the time of kernels between GPUs of one product at one clock, as a share. Chosen: twice the
0.1 % by which times of a real job differ; a kernel takes the same cycles on each."""
_GPU_SLOPE_ERROR = 0.05
"""Error of the mean sensitivity by differences between GPUs, as a share. Chosen: as kernels that follow the clock in
part are no straight line over it, and GPUs have clocks of their own in between."""
_MIN_ERROR = 1e-3
"""Smallest standard error, so that none has infinite weight. Chosen: far below all errors that matter."""
_MIN_SHOWN_SHARE = 0.2
"""Smallest share of readings' changes that is of the clock of the kernels that they are compared with, where readings
are not its mean. Chosen: the least of generated jobs under a power limit."""
_TINY = 1e-300
"""Keeps quotients finite; below all squares of what is measured."""


class _Compared(NamedTuple):
    """Readings of a GPU and the speeds of the kernels that ran then; one value each.

    Parameters
    ----------
    time
        Middle of the window, nanoseconds.
    place
        What is usual is alike for those of one number; None if `phase` says so.
    phase
        Part of the step.
    weight
        Time that each stands for, as a share of the mean.
    mean
        Relative deviation of the mean speed of all kernels in the window.
    speed
        The same twice, by different kernels where there are several.
    other
        The same of other kernels, without an error in common with `speed`.
    mhz
        Relative deviation of the reading, twice, with different errors of rounding where known.
    is_mean
        True if readings show the mean over the very time of the speeds.
    rounding
        Variance that both of `mhz` have in common by rounding.
    shown
        Marks those whose kernels have neighbours that show the clock better than the mean.
    """

    time: Array
    place: Array | None
    phase: Array
    weight: Array
    mean: Array
    speed: tuple[Array, Array]
    other: tuple[Array, Array]
    mhz: tuple[Array, Array]
    is_mean: bool
    rounding: float
    shown: Array

    @property
    def squares(self) -> Array:
        """Sums of squares of readings less those of their neighbours in the step, as `usual_left` takes them."""
        return (
            np.ones(2) if self.place is not None else squares_by_neighbours(self.mhz[0], self.phase)
        )

    @property
    def noise(self) -> float:
        """Error of slopes over readings, in terms of that by the scatter of blocks."""
        return NOISE_IN_SLOPES if self.place is None and self.phase.any() else 1.0


def mean_sensitivity(gpus: list[Readings], work: Work, assumed: Assumption) -> tuple[float, float]:
    """Return the mean sensitivity of the kernels of GPUs with one kind of sensor, and its standard error.

    Under one assumption on the sensor. It may lie outside 0 to 1; NaN and infinite where readings do not show it.
    """
    speeds = _speeds(work)
    every = [_compared(gpu, work, speeds, assumed) for gpu in gpus]
    compared = [one for one in every if one is not None]
    if not compared:
        return np.nan, np.inf
    products = [_products(one, max(_BLOCKS // len(compared), 1)) for one in compared]
    is_mean = all(one.is_mean for one in compared)
    repeats = work.usable.sum() / max(len(np.unique(work.place[work.usable])), 1)
    if repeats < _MIN_REPEATS * len(compared):  # what is usual of readings is that of each GPU
        return np.nan, np.inf
    noise = max(one.noise for one in compared)
    left = usual_left(np.sum([one.squares for one in compared], axis=0))
    return _solved(np.concatenate(products, axis=1), noise, left, is_mean=is_mean)


def mean_sensitivity_of_gpus(gpus: list[Readings], work: Work) -> tuple[float, float]:
    """Return the mean sensitivity by how GPUs differ, and its standard error; NaN and infinite where unknown."""
    clock, error = _mean_clocks(gpus, work)
    speed = _mean_speeds(gpus, work)
    some = np.isfinite(clock) & np.isfinite(speed)
    if some.sum() < 2:  # noqa: PLR2004
        return np.nan, np.inf
    clock, speed = (column[some] - column[some].mean() for column in (clock, speed))
    of_level = float(np.mean(error[some] ** 2))
    size = float(clock @ clock) - (len(clock) - 1) * of_level  # without what errors add
    if not size > _MIN_ERROR**2:
        return np.nan, np.inf
    beta = float(clock @ speed) / size
    left, degrees = speed - beta * clock, len(clock) - 2
    scatter = float(left @ left) / degrees if degrees else 0.0
    # Whatever they seem to follow, speeds may follow the clock in full, and what is wrong of it with that.
    variance = max(scatter, GPU_TIME_SPREAD**2) + max(beta**2, 1.0) * of_level
    return beta, float(np.hypot(np.sqrt(variance / size), _GPU_SLOPE_ERROR * beta))


def _mean_clocks(gpus: list[Readings], work: Work) -> tuple[Array, Array]:
    """Logarithm of each GPU's mean reading while it worked, and its error; NaN where too few show it."""
    inside = [gpu.mhz[(gpu.time >= gpu.start.min()) & (gpu.time <= gpu.end.max())] for gpu in gpus]
    degrees = sum(max(len(mhz) - 1, 0) for mhz in inside)
    clock, error = np.full((2, len(gpus)), np.nan)
    if degrees < _MIN_READINGS:
        return clock, error
    squares = sum(float(np.sum(_deviations(mhz) ** 2)) for mhz in inside)
    for number, (gpu, mhz) in enumerate(zip(gpus, inside, strict=True)):
        if len(mhz):
            own = float(mhz.std() / mhz.mean())
            spread = max(own, np.sqrt(squares / degrees), min_spread(gpu, work))
            clock[number] = np.log(mhz.mean())
            low, high = gpu.at_highest
            of_mean = spread * student(degrees) / TWO_SIDED / np.sqrt(len(mhz))
            error[number] = np.hypot(of_mean, (high - low) / 2 / TWO_SIDED)
    return clock, error


def _mean_speeds(gpus: list[Readings], work: Work) -> Array:
    """Mean logarithm of the speed of each GPU's kernels, over the places that all GPUs have; NaN without any."""
    n = int(work.place.max(initial=-1)) + 1
    groups = [gpu.kernel[work.usable[gpu.kernel]] for gpu in gpus]
    count, log = (
        np.stack([np.bincount(work.place[k], values[k], n) for k in groups])
        for values in (np.ones(len(work.dur)), np.log(work.dur))
    )
    shared = (count > 0).all(axis=0)
    if not shared.any():
        return np.full(len(gpus), np.nan)
    mean = log[:, shared] / count[:, shared]
    time = np.exp(mean.mean(axis=0)) * count[:, shared].sum(axis=0)
    speed: Array = -mean @ time / time.sum()
    return speed


def min_spread(gpu: Readings, work: Work) -> float:
    """Least standard deviation of a GPU's clock, as a share, by the durations of its kernels.

    No duration changes by more than the clock does. Speeds are those relative to the kernel's mean; products of one
    with the next have no noise of durations.
    """
    order = np.argsort(gpu.start, kind="stable")
    k = gpu.kernel[order]
    k = k[work.usable[k]]
    if len(k) < 2:  # noqa: PLR2004
        return 0.0
    _, key = np.unique(work.key[k], return_inverse=True)
    mean = np.bincount(key, work.dur[k]) / np.bincount(key)
    speed = 1 - work.dur[k] / mean[key]
    time = np.sqrt(work.dur[k][1:] * work.dur[k][:-1])
    return float(np.sqrt(max((speed[1:] * speed[:-1]) @ time / time.sum(), 0.0)))


def _speeds(work: Work) -> Array:
    """Relative deviation of each kernel's speed from the mean at its place; 0 of those that are not usable."""
    usable, place = work.usable, work.place
    count = np.bincount(place[usable], minlength=int(place.max(initial=-1)) + 1)
    mean = np.bincount(place[usable], work.dur[usable], len(count)) / np.maximum(count, 1)
    speed = np.where(usable, mean[place] / work.dur - 1.0, 0.0)
    limit = (
        _OUTLIER_DEVIATIONS * float(np.sqrt(np.mean(speed[usable] ** 2))) if usable.any() else 0.0
    )
    return np.clip(speed, -limit, limit)


def _compared(gpu: Readings, work: Work, speeds: Array, assumed: Assumption) -> _Compared | None:
    """Return what readings of a GPU are compared with; None if there is too little."""
    order = np.argsort(gpu.start, kind="stable")
    order = order[work.usable[gpu.kernel[order]]]
    if len(order) < _MIN_READINGS:
        return None
    k, start, end = gpu.kernel[order], gpu.start[order], gpu.end[order]
    length = float(np.average(end - start, weights=end - start))
    kernels = _Kernels(start, end, speeds[k], work.key[k], work.place[k], work.phase[k])
    if assumed.window_ns >= _MIN_KERNELS_IN_WINDOW * length:
        compared = _by_windows(gpu, kernels, assumed)
    elif max(assumed.window_ns, gpu.period_ns) <= length / (2 * _MIN_READINGS_IN_KERNEL):
        compared = _by_kernels(gpu, kernels, assumed)
    else:
        compared = _by_neighbours(gpu, kernels, assumed)
    is_known = not compared.phase.any() or covered_steps(compared.phase) >= MIN_STEPS
    return compared if is_known and len(compared.time) >= _MIN_READINGS else None


class _Kernels(NamedTuple):
    """Usable kernels of a GPU by their start; speeds as of `_speeds`, the rest as of `Readings` and `Work`."""

    start: Array
    end: Array
    speed: Array
    key: Array
    place: Array
    phase: Array

    def at(self, time: Array) -> Array:
        """Return the last kernel that started before each time; the first one before all."""
        return np.maximum(np.searchsorted(self.start, time, side="right") - 1, 0)

    def followed(self) -> _Followed:
        """Return the clock by the kernels around each.

        Weighted by how much these follow the clock, as their own neighbours show it.
        """
        _, key = np.unique(self.key, return_inverse=True)
        loading = np.ones(int(key.max()) + 1)
        near = np.zeros(len(key))
        reach = range(1, min(_NEIGHBOURS, len(key) - 1) + 1)
        gaps = [np.maximum(self.start[n:] - self.end[:-n], 0.0) for n in reach]
        shares = [0.5**n * np.exp(-gap / _ALIKE_NS) for n, gap in zip(reach, gaps, strict=True)]
        for _ in range(_LOADING_ROUNDS):
            weight = loading[key]
            signal, square = weight * self.speed, weight**2
            near = _sum_of_neighbours(signal, shares)
            near /= np.maximum(_sum_of_neighbours(square, shares), _TINY)
            both = np.bincount(key, self.speed * near)
            prior = _LOADING_REPEATS * float(near @ near) / len(near)
            following = float(self.speed @ near) / max(float(near @ near), _TINY)
            own = np.bincount(key, near**2)
            loading = (both / max(following, _MIN_LOADING) + prior) / np.maximum(own + prior, _TINY)
            loading = np.clip(loading, _MIN_LOADING, 1 / _MIN_LOADING)
        varies = own / np.bincount(key) > float(near @ near) / len(near)
        return _Followed(near, loading[key], varies[key])


class _Followed(NamedTuple):
    """The clock by the kernels around each.

    Parameters
    ----------
    near
        Its change, up to a factor for all.
    loading
        How much each kernel follows it.
    shown
        Marks kernels around which it varies more than in the mean, by that of their repeats.
    """

    near: Array
    loading: Array
    shown: Array


def _sum_of_neighbours(values: Array, shares: list[Array]) -> Array:
    """Sum of the values before and after each, of which those of each distance count by these shares."""
    total = np.zeros(len(values))
    for distance, share in enumerate(shares, start=1):
        total[distance:] += share * values[:-distance]
        total[:-distance] += share * values[distance:]
    return total


def _by_windows(gpu: Readings, kernels: _Kernels, assumed: Assumption) -> _Compared:
    """Compare readings with the mean speed in their windows, by every second kernel and by the others."""
    stop = gpu.time - assumed.delay_ns
    begin = stop - assumed.window_ns
    # Drawn, so that each half has kernels of all kinds in every window.
    odd = np.random.default_rng(0).integers(2, size=len(kernels.start))
    followed = kernels.followed()
    loading = followed.loading

    def within(rate: Array) -> Array:
        return Cumulative(kernels.start, kernels.end, rate).between(begin, stop)

    speeds, clocks, good = [], [], np.ones(len(stop), bool)
    for some in (odd == 0, odd == 1, odd >= 0):
        covered = within(some.astype(float))
        good &= covered > _MIN_COVERED_SHARE / 4 * assumed.window_ns
        speeds.append(within(some * kernels.speed) / np.maximum(covered, 1.0))
        # Of the clock, whatever kernels are in this window: else windows in which more follow it would count for more.
        square = np.maximum(within(some * loading**2), _TINY)
        clocks.append(within(some * loading * kernels.speed) / square)
    good &= (begin >= kernels.start[0] - assumed.window_ns / 10) & (stop <= kernels.end.max())
    usual = float(np.average(followed.shown, weights=kernels.end - kernels.start))
    shown = within(followed.shown - usual) > 0
    first, second, mean = (speed[good] for speed in speeds)
    other = clocks[1][good], clocks[0][good]
    mhz = _deviations(gpu.mhz[good])
    middle = ((begin + stop) / 2)[good]
    phase = phases_at(middle, kernels.start, kernels.phase)
    rounding = (gpu.quantum_mhz / float(gpu.mhz.mean())) ** 2 / 12
    weight, halves = np.ones(len(mhz)), (first, second)
    return _Compared(
        middle, None, phase, weight, mean, halves, other, (mhz, mhz), True, rounding, shown[good],
    )  # fmt: skip


def _deviations(mhz: Array, weight: Array | None = None) -> Array:
    """Relative deviations from the mean."""
    deviation: Array = mhz / np.average(mhz, weights=weight) - 1.0 if mhz.size else mhz
    return deviation


def _by_kernels(gpu: Readings, kernels: _Kernels, assumed: Assumption) -> _Compared:
    """Compare kernels with the mean of all readings in each."""
    middle = gpu.centres(assumed)
    i = kernels.at(middle)
    reach = assumed.window_ns / 2
    inside = (middle - reach >= kernels.start[i]) & (middle + reach <= kernels.end[i])
    i, mhz = i[inside], gpu.mhz[inside]
    half = np.arange(len(i)) % 2
    n = len(kernels.start)
    counts = [np.bincount(i[half == number], minlength=n) for number in (0, 1)]
    means = [
        np.bincount(i[half == number], mhz[half == number], n) / np.maximum(count, 1)
        for number, count in enumerate(counts)
    ]
    good = (counts[0] > 0) & (counts[1] > 0)
    followed = kernels.followed()
    speed, near, shown = kernels.speed[good], followed.near[good], followed.shown[good]
    time = ((kernels.start + kernels.end) / 2)[good]
    place = np.unique(kernels.place[good], return_inverse=True)[1]
    phase = kernels.phase[good]
    weight = (kernels.end - kernels.start)[good]
    both = _deviations(means[0][good], weight), _deviations(means[1][good], weight)
    weight = weight / weight.mean() if weight.size else weight
    few = len(place) < _MIN_REPEATS_AT_PLACE * (int(place.max(initial=0)) + 1)
    place_or_none = None if few else place
    return _Compared(
        time, place_or_none, phase, weight, speed, (speed, speed), (near, near), both, True, 0.0, shown,
    )  # fmt: skip


def _by_neighbours(gpu: Readings, kernels: _Kernels, assumed: Assumption) -> _Compared:
    """Compare each reading with the kernel that it was taken in, and the kernels around that one."""
    middle = gpu.centres(assumed)
    i = kernels.at(middle)
    good = (middle >= kernels.start[i]) & (middle <= kernels.end[i])
    i, time = i[good], middle[good]
    followed = kernels.followed()
    mhz, speed, near = _deviations(gpu.mhz[good]), kernels.speed[i], followed.near[i]
    weight, twice = np.ones(len(mhz)), (speed, speed)
    phase = phases_at(time, kernels.start, kernels.phase)
    return _Compared(
        time, None, phase, weight, speed, twice, (near, near), (mhz, mhz), False, 0.0, followed.shown[i],
    )  # fmt: skip


def _products(one: _Compared, blocks: int) -> Array:
    """Sums of products in each block of time, (shown or not, block, 6).

    Both terms of the two conditions, what is usual squared, and the square of the speed, with its noise.
    """
    speed, mhz = ([_without_usual(one, v) for v in both] for both in (one.speed, one.mhz))
    n = len(one.time)
    count = max(min(blocks, n // 2), min(n, _MIN_READINGS))
    block = np.argsort(np.argsort(one.time, kind="stable"), kind="stable") * count // n
    rows, w = [np.zeros(n)] * 6, one.weight / 2
    mean = _without_usual(one, one.mean)
    left = NOISE_LEFT if one.phase.any() else 1 - 1 / n
    # Speeds lack what is usual at their place, and lose again what readings do with it: else they would follow these too much.
    for a, b in ((0, 1), (1, 0)):
        columns = [one.other[a] * speed[a], one.other[a] * mhz[a]]
        columns += [mhz[a] * mean, mhz[a] * mhz[b] - left * one.rounding]
        columns += [one.mhz[a] * one.mhz[b] - mhz[a] * mhz[b], mean * one.mean]
        rows = [row + w * column for row, column in zip(rows, columns, strict=True)]
    block = block + count * one.shown
    sums = np.stack([np.bincount(block, row, 2 * count) for row in rows], axis=1)
    return sums.reshape(2, count, len(rows))


def _without_usual(one: _Compared, values: Array) -> Array:
    """Return the values without what is alike in each step, by the mean at their place or by their neighbours in it."""
    if one.place is None:
        return apart_from_neighbours(values, one.phase)
    mean = np.bincount(one.place, values) / np.maximum(np.bincount(one.place), 1)
    rest: Array = values - mean[one.place]
    return rest


def _solved(products: Array, noise: float, left: float, *, is_mean: bool) -> tuple[float, float]:
    """Mean sensitivity that meets both conditions best, and its standard error.

    `left` is the part of readings' changes that may be usual in the step still: speeds do not follow it.
    """
    groups, products = products, products.sum(axis=0)
    reverse = _condition(products[:, 0], products[:, 1])
    lacking, unsure = _lacking_and_error(groups, reverse)
    value, error = _condition(products[:, 2], products[:, 3])
    highest = (abs(value) + TWO_SIDED * noise * error) / (1 - left)
    error = (highest - abs(value)) / TWO_SIDED
    if not products[:, 3].sum() > 0:  # readings that stay vary by less than their rounding
        error = np.inf
    if is_mean:
        usual = abs(products[:, 4].sum() / max(products[:, 3].sum(), _TINY))
        share = np.hypot(_FORWARD_ERROR, min(_USUAL_SHARE_LEFT * usual, 1.0))
        forward = value, float(np.hypot(error, share * abs(value)))
        square = _condition(products[:, 0], products[:, 3])
        # Squares are compared: the root of one that is 0 but for its error is above that by chance.
        of_value = np.hypot(forward[1], lacking)
        if np.isfinite(of_value) and square[0] - value**2 > TWO_SIDED * np.hypot(
            square[1], 2 * value * of_value
        ):
            return _by_variances(*square)
        # Halves of the kernels ran at other times: a clock that changes between them is taken for noise. What it lacks forward has.
        highest = reverse[0] * products[:, 5].sum() / max(products[:, 0].sum(), _TINY)
        error = float(np.hypot(reverse[1], lacking))
        reverse = float(np.clip(value, reverse[0], max(highest, reverse[0]))), error
    else:
        reverse = reverse[0] + lacking, float(np.hypot(reverse[1], unsure))
        # Readings show the clocks of kernels to an unknown share.
        highest = (value + TWO_SIDED * error) / _MIN_SHOWN_SHARE
        value /= _EXPECTED_SHOWN_SHARE
        forward = value, max(abs(highest - value), abs(value) + TWO_SIDED * error) / TWO_SIDED
    values, errors = np.array([reverse, forward]).T
    errors = np.maximum(errors, _MIN_ERROR)
    weight = errors**-2.0
    if not weight.sum() > 0:
        return np.nan, np.inf
    value = float(weight @ np.where(weight > 0, values, 0.0) / weight.sum())
    apart = float(weight @ np.where(weight > 0, (values - value) ** 2, 0.0))
    error = float(np.sqrt(max(apart, 1.0) / weight.sum()))  # Birge's ratio
    return value, float(np.hypot(error, _MIN_RELATIVE_ERROR * abs(value)))


def _lacking_and_error(groups: Array, reverse: tuple[float, float]) -> tuple[float, float]:
    """Return what the mean by neighbours lacks, as kernels count for more where these follow the clock, and its standard error.

    Where kernels that follow the clock run for longer than it takes to change, and then others, these hardly count. Slopes over readings,
    of which each counts alike, say by how much both differ, up to the share that readings show.
    """
    if not np.isfinite(reverse[1]):
        return 0.0, 0.0
    total = groups.sum(axis=1)
    without = (total[:, np.newaxis] - groups).swapaxes(0, 1)
    return float(_lacking(total, reverse)), jackknife(_lacking(without, reverse))


def _lacking(sums: Array, reverse: tuple[float, float]) -> Array:
    """Mean sensitivity of kernels that count by readings less that of those that count by neighbours, (…, shown or not, 6)."""
    slope = sums[..., 2] / np.maximum(sums[..., 3], _TINY)
    counted = np.sum(_shares(sums[..., 1]) * slope, axis=-1)
    # The share that readings show is as expected where the sensitivity is too small to show it.
    value, variance = reverse[0], reverse[1] ** 2
    share = value * counted + variance * _EXPECTED_SHOWN_SHARE
    share /= max(value**2 + variance, _TINY)
    lacking = np.sum(_shares(sums[..., 3]) * slope, axis=-1) - counted
    apart: Array = lacking / np.clip(share, _MIN_SHOWN_SHARE, 1.0)
    return apart


def _shares(sizes: Array) -> Array:
    """Part of each group in the sum of all, along the last axis; none where that is not above 0."""
    sizes = np.maximum(sizes, 0.0)
    shares: Array = sizes / np.maximum(sizes.sum(axis=-1, keepdims=True), _TINY)
    return shares


def _by_variances(square: float, error: float) -> tuple[float, float]:
    """Mean sensitivity by the variances of speeds over those of readings, and its standard error.

    It needs no time of readings: those taken earlier or later than assumed follow speeds less, but vary as much.
    """
    low, value, high = np.sqrt(
        np.maximum([square - TWO_SIDED * error, square, square + TWO_SIDED * error], 0.0)
    )
    return float(value), float(np.hypot((high - low) / 2 / TWO_SIDED, _FORWARD_ERROR * value))


def _condition(top: Array, bottom: Array) -> tuple[float, float]:
    """Ratio of sums over blocks, and its standard error; infinite where any ratio is possible."""
    n = len(top)
    if n < _MIN_READINGS or not bottom.any():
        return 0.0, np.inf
    value = float(top.sum() / bottom.sum())
    unsure = student(n - 1)
    if abs(bottom.sum()) <= unsure * _scatter(bottom):
        return value, np.inf
    # By the range of ratios that the scatter of blocks does not exclude (Fieller).
    a = bottom.sum() ** 2 - unsure**2 * _scatter(bottom) ** 2
    both = n / (n - 1) * float((top - top.mean()) @ (bottom - bottom.mean()))
    b = top.sum() * bottom.sum() - unsure**2 * both
    c = top.sum() ** 2 - unsure**2 * _scatter(top) ** 2
    reach = np.sqrt(max(b * b - a * c, 0.0)) / a
    return value, float(reach + abs(b / a - value)) / TWO_SIDED


def _scatter(values: Array) -> float:
    """Standard error of a sum over blocks."""
    n = len(values)
    return float(np.sqrt(n / (n - 1) * np.sum((values - values.mean()) ** 2)))
