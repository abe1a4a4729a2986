"""Windows and delays of clock sensors that agree with the durations of repeats.

The durations of a kernel's repeats show when the clock changed: ``log t = const - b log f``. Averaged
over the window of a reading, with the kernels' sensitivities as weights, they must follow the
readings in proportion. Assumptions of window and delay are compared by how far they do not. Those
whose misfit exceeds that of the best by no more than the scatter between blocks of time are kept:
where durations hardly follow the clock, or readings are few, these are all.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks.best_mean import MIN_WINDOWS
from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import (
    ESTIMATED,
    GIVEN,
    KNOWN,
    UNKNOWN,
    Assumption,
    Cumulative,
    Readings,
    SensedGpus,
    Sensor,
    Work,
    phases_at,
)
from chopper_interop.analyses.methods.dvfs.clocks.expected_clocks import Shown, saved_time
from chopper_interop.analyses.methods.dvfs.clocks.series_windows import possible_windows
from chopper_interop.arrays import Array
from chopper_interop.arrays.statistics import mad_sigma
from chopper_interop.schemas import clock_sensors

if TYPE_CHECKING:
    from collections.abc import Iterator

_MS = 1e6
WINDOWS_NS = (
    np.array([0, 3, 5, 10, 14, 20, 28, 40, 57, 80, 100, 130, 180, 250, 400, 560, 750, 1000]) * _MS
)
"""Windows that are tried: from an instant to NVML's mean over one second, 1.4 times as long each."""
DELAYS_NS = np.array([0, 1, 2, 3, 5, 7, 10, 14, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200]) * _MS
_SHORTEST_NS = 1 * _MS
"""Time over which durations are averaged for a reading of an instant. Chosen: about one kernel."""
_MAX_UPDATES = 4000
"""Updates that are used of each GPU. Chosen: more hardly distinguish windows any better, and cost time."""
_MAX_KERNELS = 30_000
"""Kernels of each GPU by which predictions are compared."""
_BLOCKS = 24
"""Blocks of time of all GPUs whose scatter is the error of a misfit. Chosen: several times the longest
window even in short runs, and enough for a standard deviation."""
_MAX_EXCESS_ERRORS = 2.0
"""Standard errors by which the misfit of an assumption may exceed that of the best: 95 %, two-sided."""
_MAX_ESTIMATED = 16
"""Kept assumptions for which the answer is estimated. Chosen: the extremes of more are hardly wider."""
_MIN_REPEAT_DEVIATION = 1e-3
"""Smallest deviation of repeats. Chosen: far below all real ones; keeps weights finite."""
_MIN_READINGS = 5
"""Readings of a GPU, and blocks of time, below which they are not compared with durations."""
_TINY = 1e-12
_STEP_PARTS = 40, 100
"""Fewest and most parts of training steps whose usual readings are means. Chosen: about one for each kernel."""
_READINGS_PER_HARMONIC = 8
"""Readings for each harmonic of the step. Chosen: a quarter of what changes from step to step is lost."""
_MIN_SIGNIFICANCE = 3.0
"""Standard errors by which durations must explain readings, else they show nothing of the sensor and all
assumptions are kept. Chosen: above the two by which the best of several independent ones does by chance."""
_MIN_WEIGHT = 0.05
"""Smallest sensitivity as a weight of kernels, as estimates of it have errors."""
_MIN_TESTED_SHARE = 0.6
"""Share of the blocks of time in which an assumption must be comparable, where one that is fits."""
_CHANGE_QUANTILE = 0.98
"""Quantile of changes from reading to reading that limits the window. Chosen: below the largest, as samples
may have been missed."""
_MIN_COVERED_SHARE = 0.3
"""Share of a window in which kernels ran that a reading needs, of what is usual."""


class End(NamedTuple):
    """An assumption by which the range of answers may end.

    Parameters
    ----------
    assumed
        The assumption.
    share
        Part of the errors under it that the answer may be wrong by as well, as it agrees less than the best does:
        all that deviates together is within two standard errors (a profile likelihood).
    """

    assumed: Assumption
    share: float


class Accepted(NamedTuple):
    """Assumptions on a sensor that agree with the data.

    Parameters
    ----------
    best
        The one that agrees best; the last resort, where times do not show it, is an instant, without delay.
    low, high
        The ones by which kernels may take the least and the most at a higher clock, as far as that is known without laws.
    spread
        All, (assumption, window and delay), nanoseconds.
    origin
        `GIVEN`, `KNOWN`, `ESTIMATED` or `UNKNOWN`.
    fixed
        What was given, or is known.
    is_given
        True if the window was given.
    shown
        What readings show under those of which it is known.
    """

    best: Assumption
    low: tuple[End, ...]
    high: tuple[End, ...]
    spread: Array
    origin: str
    fixed: Sensor
    is_given: bool
    shown: dict[Assumption, Shown]

    def described(self, gpus: list[Readings]) -> dict[str, float | str | None]:
        """Describe the sensor of these GPUs by columns of results; None for what is not known."""
        low, high = self.spread.min(axis=0), self.spread.max(axis=0)
        high[1] += np.nan_to_num([gpu.age_ns for gpu in gpus]).max()
        hold_ns = max(gpu.hold_ns for gpu in gpus) or None
        # What was given or is known shows, also where times do not show the rest.
        window, lag = (
            value if self.origin != UNKNOWN or fixed is not None else None
            for value, fixed in zip(
                self.central, (self.fixed.window_ns, self.fixed.lag_ns), strict=True
            )
        )
        return {
            "sensor_window_ns": window,
            "sensor_window_low_ns": low[0],
            "sensor_window_high_ns": high[0],
            "sensor_lag_ns": lag,
            "sensor_lag_low_ns": low[1],
            "sensor_lag_high_ns": high[1],
            "sensor_hold_ns": hold_ns if self.fixed.hold_ns is None else self.fixed.hold_ns,
            "sensor_origin": GIVEN if self.is_given else self.origin,
        }

    @property
    def central(self) -> Assumption:
        """The best assumption; where times do not show it, the shortest window and delay."""
        return self.best if self.origin != UNKNOWN else Assumption(*self.spread.min(axis=0))

    @property
    def is_range(self) -> bool:
        """True if other assumptions than the central one remain."""
        return any(end.assumed != self.central for end in (*self.low, *self.high))


def accepted(sensed: SensedGpus, work: Work, given: Sensor | None) -> Accepted:
    """Return the assumptions on a sensor that agree with all that is known."""
    sensor = _assumed_or_known(sensed, given)
    grid = _grid(sensed, sensor)
    origin = GIVEN if given is not None else KNOWN
    kept, apart = grid, np.zeros(len(grid))
    if len(grid) > 1:
        is_shown = not np.isnan([gpu.age_ns for gpu in sensed.gpus]).any()
        if is_shown:
            kept, apart, is_shown = _Fit(sensed.gpus, work).compare(grid)
        origin = ESTIMATED if is_shown else UNKNOWN
        if not is_shown:
            kept = _of_possible_windows(sensed.gpus, work, kept)
            apart = np.zeros(len(kept))
    best = kept[0]
    chosen = np.arange(len(kept))
    if len(kept) > _MAX_ESTIMATED:
        some = np.append(
            np.arange(_MAX_ESTIMATED // 2),
            np.linspace(0, len(kept) - 1, _MAX_ESTIMATED // 2).astype(int),
        )
        chosen = np.union1d(some, _corners(kept))
    reach = np.sqrt(np.maximum(_MAX_EXCESS_ERRORS**2 - apart[chosen] ** 2, 0.0))
    assumed = [Assumption(*row) for row in kept[chosen]]
    saved = [saved_time(sensed.gpus, work, *one) for one in zip(assumed, reach, strict=True)]
    least, most, error = np.array([one[:3] for one in saved]).T
    ends = [
        End(one, float(part)) for one, part in zip(assumed, reach / _MAX_EXCESS_ERRORS, strict=True)
    ]
    low, high = (tuple(ends[i] for i in _extremes(time, error)) for time in (-most, least))
    is_given = given is not None and given.window_ns is not None
    shown = {one: time.shown for one, time in zip(assumed, saved, strict=True)}
    return Accepted(Assumption(*best), low, high, kept, origin, sensor, is_given, shown)


def aligned(sensed: SensedGpus, work: Work, given: Sensor | None) -> SensedGpus:
    """Return the readings of GPUs as if those of all were as old, where each GPU shows how old its own are.

    Where samples are too far apart to show updates, the age of what they read is anything up to the hold, and another one for each
    GPU. Under one delay for all, readings of some are compared with other kernels than those in their windows.
    """
    sensor = _assumed_or_known(sensed, given)
    if len(sensed.gpus) == 1 or not hides_age(sensed.gpus, sensor.hold_ns, sensor.window_ns):
        return sensed
    each = _Fit(sensed.gpus, work).of_each()
    grid = _grid(sensed, sensor)
    ages = np.array([one.age(grid, sensor.hold_ns or 0.0) for one in each])
    gpus = [
        replace(gpu, time=gpu.time - np.nan_to_num(age), age_ns=age)
        for gpu, age in zip(sensed.gpus, (ages - ages.min()).tolist(), strict=True)
    ]
    return sensed._replace(gpus=gpus)


def hides_age(gpus: list[Readings], hold_ns: float | None, window_ns: float | None) -> bool:
    """Return True if nothing but durations may show which part of a hold the windows of readings are in."""
    return not any(gpu.hold_ns for gpu in gpus) and (hold_ns or 0.0) > (window_ns or 0.0)


def is_narrow(ages: Array, hold_ns: float) -> bool:
    """Return True if these ages of readings are of one part of a hold."""
    return float(np.ptp(ages)) < hold_ns / 2


def _assumed_or_known(sensed: SensedGpus, given: Sensor | None) -> Sensor:
    """Sensor as it is given, else as far as it is known."""
    sensor = given or Sensor(sensed.field.window_ns, sensed.field.hold_ns, sensed.field.lag_ns)
    if sensed.field.shows == clock_sensors.INSTANT and given is None:
        sensor = sensor._replace(window_ns=0.0)
    return sensor


def _extremes(time: Array, error: Array) -> list[int]:
    """Positions of the assumptions that may be the one with the least time, by the errors of these, the least first."""
    order = np.argsort(time, kind="stable")
    least = order[0]
    further = time[order] - time[least] > np.hypot(error[order], error[least])
    positions: list[int] = order[~further].tolist()
    return positions


def _of_possible_windows(gpus: list[Readings], work: Work, kept: Array) -> Array:
    """Return the assumptions of windows that readings do not rule out.

    Where durations show the sensor, these decide, as averages may have other weights than those of a window.
    """
    windows, row = np.unique(kept[:, 0], return_inverse=True)
    highest = np.array([work.rated[gpu.kernel].max() for gpu in gpus])
    possible = possible_windows(gpus, windows, highest)[row]
    return kept[possible] if possible.any() else kept


def _corners(kept: Array) -> Array:
    """Positions of the assumptions with the shortest and longest windows and delays."""
    window, delay = kept.T
    orders = [
        np.lexsort(keys)
        for sign in (1, -1)
        for keys in ((sign * window, delay), (sign * delay, window))
    ]
    return np.unique([order[end] for order in orders for end in (0, -1)])


def _grid(sensed: SensedGpus, sensor: Sensor) -> Array:
    """Assumptions that are possible, (assumption, window and delay)."""
    seen = max(gpu.hold_ns for gpu in sensed.gpus)
    period = max(gpu.period_ns for gpu in sensed.gpus)
    windows = WINDOWS_NS if sensor.window_ns is None else np.array([sensor.window_ns])
    if sensed.field.shows == clock_sensors.MEAN and sensor.window_ns is None:
        windows = windows[1:]
    # A hold that is not seen delays readings by half of it on average.
    hold = sensor.hold_ns
    if seen:
        ages = np.zeros(1)
    else:
        ages = np.array([0, 0.25, 0.5]) * period if hold is None else np.array([hold / 2])
    if sensor.lag_ns is not None:
        delays = sensor.lag_ns + ages
    else:
        delays = np.append(DELAYS_NS, ages[ages > DELAYS_NS[-1]])
    windows = windows[windows <= max(_longest_ns(sensed.gpus), windows.min())]
    grid = np.stack(np.meshgrid(windows, delays, indexing="ij"), axis=-1)
    return grid.reshape(-1, 2)


def straight_slopes(gpus: list[Readings], work: Work, assumed: Assumption) -> Array:
    """Return the sensitivity of each kernel by a straight line, under one assumption."""
    return _Fit(gpus, work).slopes(assumed)[0]


def _thinned(gpu: Readings, some: Array) -> Readings:
    """Return the readings with some of these kernels of the GPU, at most twice `_MAX_KERNELS`."""
    some = some[:: max(len(some) // _MAX_KERNELS, 1)]
    return replace(gpu, kernel=gpu.kernel[some], start=gpu.start[some], end=gpu.end[some])


class _Fit:
    """Comparison of assumptions on one kind of sensor, over all of its GPUs.

    `variance` is that of the deviations of each kernel's durations.
    """

    def __init__(self, gpus: list[Readings], work: Work) -> None:
        self.gpus, self.work = [_unusual(gpu, work.phase[gpu.kernel]) for gpu in gpus], work
        self.n = int(work.key.max(initial=-1)) + 1
        self.log = np.log(work.dur)
        usable = work.usable
        # What is usual at a place of the step is none of what readings are compared with.
        count = np.bincount(work.place[usable], minlength=int(work.place.max(initial=-1)) + 1)
        total = np.bincount(work.place[usable], self.log[usable], len(count))
        mean = total / np.where(count > 0, count, np.nan)
        rest = np.nan_to_num(self.log - mean[work.place])
        # Repeats that deviate by far have other reasons than the clock.
        spread = mad_sigma(rest[usable]) if usable.any() else 0.0
        self.rest = np.clip(rest, -6 * max(spread, 0.01), 6 * max(spread, 0.01))
        count = np.bincount(work.key[usable], minlength=self.n)
        square = np.bincount(work.key[usable], self.rest[usable] ** 2, self.n)
        self.variance: Array = square / np.maximum(count, 1)

    @property
    def _samples(self) -> list[Readings]:
        """Readings with the kernels whose durations show the clock."""
        some = ((gpu, np.flatnonzero(self.work.usable[gpu.kernel])) for gpu in self.gpus)
        return [_thinned(gpu, rows) for gpu, rows in some if rows.size]

    def of_each(self) -> Iterator[_Fit]:
        """Yield the comparison over each GPU alone."""
        for gpu in self.gpus:
            one = copy(self)
            one.gpus = [gpu]
            yield one

    def age(self, grid: Array, hold_ns: float) -> float:
        """Return how old readings are in the middle of their windows; NaN if durations do not show it to a part of the hold."""
        kept, _, is_shown = self.compare(grid)
        age = kept[:, 1] + kept[:, 0] / 2
        return float(age[0]) if is_shown and is_narrow(age, hold_ns) else np.nan

    def slopes(self, assumed: Assumption) -> tuple[Array, Array]:
        """Sensitivity of each kernel by a straight line, and the variance of what it leaves."""
        sums = np.zeros((6, self.n))
        for gpu in self._samples:
            k = gpu.kernel
            x = np.log(np.maximum(gpu.at_kernels(assumed), 1.0))
            y, key = self.rest[k], self.work.key[k]
            columns = (np.ones(len(k)), x, y, x * x, x * y, y * y)
            sums += np.stack([np.bincount(key, column, self.n) for column in columns])
        count = np.maximum(sums[0], 1)
        xx, xy = sums[3] - sums[1] ** 2 / count, sums[4] - sums[1] * sums[2] / count
        yy = sums[5] - sums[2] ** 2 / count
        slope = -xy / np.where(xx > 0, xx, np.inf)
        return slope, np.maximum(yy - slope**2 * xx, 0.0) / np.maximum(count - 2, 1)

    @property
    def _longest_work(self) -> float:
        """Time from the first kernel of a GPU to its last, nanoseconds; the longest."""
        return max(float(np.ptp(gpu.start)) for gpu in self.gpus)

    def compare(self, grid: Array) -> tuple[Array, Array, bool]:
        """Return the assumptions that agree, the best first, and whether durations show the sensor.

        Also by how many standard errors the misfit of each exceeds that of the best.
        """
        weight = 1 / np.maximum(self.variance, _MIN_REPEAT_DEVIATION**2)
        for _ in range(2):  # by all kernels, then by those that follow the clock
            losses = self._losses(grid, weight)
            blocks = (~np.isnan(losses)).sum(axis=1)
            testable = blocks >= _MIN_TESTED_SHARE * blocks.max(initial=1)
            total = np.where(testable, np.nansum(losses, axis=1) / np.maximum(blocks, 1), np.inf)
            best = int(np.argmin(total))
            order = np.argsort(total, kind="stable")
            gain, error = _mean_and_error(-self._of_windows(losses[best], grid[best, 0]))
            is_short = grid[best, 0] * MIN_WINDOWS > self._longest_work
            if (
                is_short
                or blocks[best] < _MIN_READINGS
                or not gain[0] > _MIN_SIGNIFICANCE * error[0]
            ):
                return grid[order], np.zeros(len(grid)), False
            beta, variance = self.slopes(Assumption(*grid[best]))
            weight = np.clip(beta, _MIN_WEIGHT, 1.0) / np.maximum(
                variance, _MIN_REPEAT_DEVIATION**2
            )
        excess, error = _mean_and_error(losses - losses[best])
        keep = testable & (excess <= _MAX_EXCESS_ERRORS * error)
        keep[best] = True
        kept = order[keep[order]]
        apart = np.maximum(excess, 0.0) / np.maximum(error, _TINY)
        apart[best] = 0.0
        return grid[kept], apart[kept], True

    def _of_windows(self, losses: Array, window_ns: float) -> Array:
        """Return the misfit in blocks of time that are no shorter than the window, (1, block).

        Readings of shorter ones have windows in common, and their scatter is no error of their mean.
        """
        of_gpu = losses.reshape(len(self.gpus), -1)
        each = of_gpu.shape[1]
        merged = int(np.clip(np.ceil(window_ns * each / self._longest_work), 1, each))
        starts = np.arange(0, each - merged + 1, merged)  # what is left over goes to the last
        known = ~np.isnan(of_gpu)
        total = np.add.reduceat(np.where(known, of_gpu, 0.0), starts, axis=1)
        count = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(1, -1)

    def _losses(self, grid: Array, weight: Array) -> Array:
        """Misfit of each assumption in each block of time, with these weights of kernels."""
        parts = [self._part(gpu, weight) for gpu in self.gpus]
        fewest = min(len(part.time) for part in parts) // _MIN_READINGS
        each = max(min(_BLOCKS // len(parts), fewest), 3)
        for number, part in enumerate(parts):
            low, high = part.time.min(initial=0.0), part.time.max(initial=1.0)
            share = (part.time - low) / max(high - low, 1.0)
            block = np.minimum((share * each).astype(np.int64), each - 1)
            parts[number] = part._replace(block=number * each + block)
        losses = np.zeros((len(grid), each * len(parts)))
        for row, (window, delay) in enumerate(grid):
            losses[row] = _loss(parts, window, delay, losses.shape[1])
        return losses

    def _part(self, gpu: Readings, weight: Array) -> _Part:
        """Durations of a GPU's kernels as a signal over time, and its readings."""
        k = gpu.kernel
        weights = np.where(self.work.usable[k], weight[self.work.key[k]], 0.0)
        clock = Cumulative(gpu.start, gpu.end, -weights * self.rest[k])
        total = Cumulative(gpu.start, gpu.end, weights)
        inside = np.flatnonzero(
            (gpu.time >= gpu.start.min()) & (gpu.time <= gpu.end.max() + DELAYS_NS[-1])
        )
        inside = inside[:: max(len(inside) // _MAX_UPDATES, 1)]
        shortest = max(float(np.median(gpu.end - gpu.start)), _SHORTEST_NS)
        return _Part(
            gpu.time[inside],
            np.log(gpu.mhz[inside]),
            inside * 0,
            clock,
            total,
            min(shortest, 20 * _MS),
        )


def _unusual(gpu: Readings, phase: Array) -> Readings:
    """Return the readings without what is usual in their part of training steps.

    Windows and delays shift what is usual within the step, and leave it usual.
    """
    order = np.argsort(gpu.start, kind="stable")
    inside = (gpu.time >= gpu.start.min()) & (gpu.time <= gpu.end.max())
    if not inside.any() or not phase.any():
        return gpu
    steps = np.count_nonzero(np.diff(phase[order]) < 0) + 1
    mhz, of_step = gpu.mhz[inside], phases_at(gpu.time[inside], gpu.start[order], phase[order])
    usual = _usual(mhz, of_step, len(mhz) // steps)
    left = gpu.mhz.copy()
    left[inside] = np.maximum(mhz - usual + mhz.mean(), 1.0)
    return replace(gpu, mhz=left)


def _usual(values: Array, phase: Array, of_step: int) -> Array:
    """Mean of values at their phase of the step; `of_step` are read in each."""
    if of_step >= _STEP_PARTS[0]:
        parts = min(of_step, _STEP_PARTS[1])
        part = np.minimum(phase * parts, parts - 1).astype(np.int64)
        count = np.maximum(np.bincount(part, minlength=parts), 1)
        mean: Array = (np.bincount(part, values, parts) / count)[part]
        return mean
    # Too few for each part of a step: its first harmonics.
    turn = (
        2
        * np.pi
        * np.outer(
            phase, np.arange(1, min(len(values) // _READINGS_PER_HARMONIC, _STEP_PARTS[0] // 2) + 1)
        )
    )
    waves = np.hstack([np.ones((len(values), 1)), np.cos(turn), np.sin(turn)])
    # By its few columns' products, as an SVD of all rows takes many times as long.
    fitted: Array = waves @ np.linalg.lstsq(waves.T @ waves, waves.T @ values, rcond=None)[0]
    return fitted


def _longest_ns(gpus: list[Readings]) -> float:
    """Longest window with which readings can change as fast as they do.

    Within a time d, the mean over a window w changes by at most d / w of all that clocks can change.
    """
    longest = np.inf
    for gpu in gpus:
        step = np.abs(np.diff(gpu.mhz))
        if step.size and step.max() > 0:
            largest = float(np.quantile(step, _CHANGE_QUANTILE))
            longest = min(longest, gpu.period_ns * float(gpu.mhz.max()) / max(largest, _TINY))
    return longest


class _Part(NamedTuple):
    """Readings of a GPU, and its clock by durations.

    Parameters
    ----------
    time, log
        Time and logarithm of each reading.
    block
        Block of time of each.
    clock, weight
        Integrals of the weighted logarithm of the clock by durations, and of the weights.
    shortest_ns
        Time in which there are several kernels.
    """

    time: Array
    log: Array
    block: Array
    clock: Cumulative
    weight: Cumulative
    shortest_ns: float


def _loss(parts: list[_Part], window: float, delay: float, count: int) -> Array:
    """Change of the readings' squares in each block if durations explain a part, from -1 (all) to 1.

    Under one assumption; as a share of the larger, as readings vary by far more in some blocks than in others.
    """
    columns: list[list[Array]] = [[], [], []]
    for part in parts:
        width = max(window, part.shortest_ns)
        stop = part.time - delay + (width - window) / 2
        weight = part.weight.between(stop - width, stop)
        usual = float(np.median(weight[weight > 0])) if (weight > 0).any() else np.inf
        good = weight > _MIN_COVERED_SHARE * usual
        if good.sum() < _MIN_READINGS:
            continue
        clock = part.clock.between(stop - width, stop)[good] / weight[good]
        of_gpu = clock - clock.mean(), part.log[good] - part.log[good].mean(), part.block[good]
        for column, values in zip(columns, of_gpu, strict=True):
            column.append(values)
    if not columns[0]:
        return np.full(count, np.nan)
    x, y, block = (np.concatenate(column) for column in columns)
    # A falling clock that goes with shorter times is none of the sensor.
    # Sums of products: a BLAS spreads them over threads that wait for each other longer than they compute.
    slope = max(float(np.sum(x * y)), 0.0) / max(float(np.sum(x * x)), _TINY)
    of_block = np.bincount(block, minlength=count) > 0
    left, whole = np.bincount(block, (y - slope * x) ** 2, count), np.bincount(block, y**2, count)
    relative = (left - whole) / np.maximum(np.maximum(left, whole), _TINY)
    return np.where(of_block, relative, np.nan)


def _mean_and_error(values: Array) -> tuple[Array, Array]:
    """Mean of the known values of each row, and its error."""
    known = ~np.isnan(values)
    count = np.maximum(known.sum(axis=1), 1)
    mean = np.where(known, values, 0.0).sum(axis=1) / count
    square = (np.where(known, values - mean[:, np.newaxis], 0.0) ** 2).sum(axis=1)
    return mean, np.sqrt(square / np.maximum(count - 1, 1) / count)
