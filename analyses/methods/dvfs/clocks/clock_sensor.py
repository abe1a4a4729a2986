"""Evidence in a series of clocks: the sensor behind it, and the clock of kernels by its readings.

A sensor reports the mean clock of a window (0: the clock at an instant), updates at intervals (hold),
and is late (lag). A reading at time t is the mean over ``[u - lag - window, u - lag]``, where u is the
update before t. Updates are visible where readings are closer than they: values repeat.

Under one assumption of window and delay, `Readings.at_kernels` returns the expected clock of each kernel.
Where windows overlap or touch, it is ``m + r (y - m)`` with y, the mean of all readings whose window
contains the kernel, and ``r = Var(reading) / Var(y)``. Averaged over the position within the window,
the covariance of the clock with a reading is the variance of the reading, whatever the spectrum of
the clock. So slopes over this clock are those over the true one. Readings further apart are
interpolated, and drawn towards the GPU's mean clock by how much the clock changes from reading to
reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks.kriging import Kriged
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED
from chopper_interop.annotate.telemetry.gpus import gpus_with_telemetry
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK
from chopper_interop.arrays import Array
from chopper_interop.errors import OptionError
from chopper_interop.gpus.ratings import GpuRating, rate_gpus_of_nodes
from chopper_interop.schemas.clock_sensors import ClockField, field_of
from chopper_interop.schemas.time_units import NS_PER_UNIT
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.samples import Samples

GIVEN, KNOWN, ESTIMATED, UNKNOWN = "given", "known", "estimated", "unknown"
_PART = re.compile(r"(mean|hold|lag)\s*:\s*(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|ms|s)")
_INSTANT = "instant"
HINT = 'write "instant" or "mean:100ms", with ",hold:50ms" and ",lag:30ms" where known'
_HOLD_QUANTILES = (0.75, 0.5, 0.25, 0.1, 0.05, 0.02)
"""Quantiles of the steps between changes of value that may be one update, the longest first."""
_MIN_HOLD_PERIODS = 1.75
"""Updates that are this many sampling periods apart or more are seen as repeated values. Chosen: changes at
chance, with what is regular about them, are mistaken for shorter holds."""
_MIN_UPDATES = 8
"""Changes of value that show the usual time between updates. Chosen: the median of fewer is no period."""
_MAX_HOLD_MISFIT = 0.33
"""Mean square, in sampling periods, by which changes of value may differ from multiples of a hold; each counts
as 1 at most. Chosen: above the 1/4 that a hold of any length has by the sampling, below the 1/2 of chance."""
_MIN_CORRELATION = 0.3
"""Correlation of each reading with the next below which readings show nothing of the clock between them.
Chosen: half of that is what 40 independent readings show by chance."""
_MAX_DISTANCE_NS = 1e6
"""Distance of a kernel to the window of a reading up to which the reading shows its clock. Chosen: clocks take
1 ms (Ascend) to 15 ms (NVIDIA) to switch (ASPLOS 2025)."""
_MIN_READINGS = 1
"""Readings while a GPU worked, below which they show no mean clock."""
_MAX_QUANTUM = 15.0
"""Largest step of clocks, MHz, that few values are taken to show. Chosen: that of NVIDIA's GPUs."""
MIN_STEPS = 2.5
"""Steps that values must cover for their neighbours in the step to show what is usual. Chosen: of two, both neighbours are
of the other step, whose change counts twice, and of one they are those in time, which have the same change."""
NOISE_LEFT = 2 / 3
"""Part of the variance of noise that `apart_from_neighbours` leaves: that of a value less the mean of three."""
NOISE_IN_SLOPES = (35 / 18) ** 0.5
"""Standard error of a slope of values that `apart_from_neighbours` returns, both of which lost the same, over that by the products' scatter:
noise of one value is in three products. Of a value that is 1, and cos(a) in what it leaves of waves, (2/3)(1 - cos a), the mean fourth power
is 70/81, and the square of the mean square 4/9."""
_MAX_LEFT = 0.95
"""Largest part of readings' changes that may still be usual; keeps a quotient finite. Chosen: what is left says next to nothing."""
_TINY = 1e-9
_RATIO_LIMITS = (0.3, 3.0)
"""Range of the factor from readings to clocks. Chosen: beyond it, windows and readings contradict."""


class Sensor(NamedTuple):
    """Window, hold and lag of a clock sensor, nanoseconds; None where not known."""

    window_ns: float | None = None
    hold_ns: float | None = None
    lag_ns: float | None = None


def parse_sensor(text: str) -> Sensor | None:
    """Parse ``"mean:100ms,hold:50ms,lag:30ms"`` or ``"instant"``; None if empty.

    Raises
    ------
    UsageError
        The text describes no sensor.
    """
    if not text.strip():
        return None
    values: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",")):
        match = _PART.fullmatch(part)
        name = "mean" if part == _INSTANT else match[1] if match else ""
        if not name or name in values:
            raise OptionError(f"sensor={text}: {part or 'nothing'} describes no sensor", hint=HINT)
        values[name] = float(match[2]) * NS_PER_UNIT[match[3]] if match else 0.0
    return Sensor(values.get("mean"), values.get("hold"), values.get("lag"))


class Assumption(NamedTuple):
    """Window of the readings, and the time from its end to the update, nanoseconds."""

    window_ns: float
    delay_ns: float


@dataclass(frozen=True)
class Readings:
    """Updates of the clock sensor of a GPU.

    Parameters
    ----------
    kernel
        Its kernels: positions among those of the trace.
    start, end
        Their times, nanoseconds.
    time
        Times of updates, nanoseconds.
    mhz
        Value of each.
    period_ns
        Usual time between updates.
    hold_ns
        The same where updates were seen as such, else 0.
    quantum_mhz
        Smallest difference of values.
    at_highest
        Clock of kernels where the highest is read, as `ClockField.at_highest`.
    age_ns
        How much older each reading was than those of the GPU with the youngest, which `time` is without; NaN if not known.
    """

    kernel: Array
    start: Array
    end: Array
    time: Array
    mhz: Array
    period_ns: float
    hold_ns: float
    quantum_mhz: float
    at_highest: tuple[float, float] = (1.0, 1.0)
    age_ns: float = 0.0

    def is_sparse(self, assumed: Assumption) -> bool:
        """Return True if readings show nothing of the clock in between."""
        return assumed.window_ns < self.period_ns and self.correlation < _MIN_CORRELATION

    def centres(self, assumed: Assumption) -> Array:
        """Return the middles of the windows of updates."""
        return self.time - assumed.delay_ns - assumed.window_ns / 2

    def at_kernels(self, assumed: Assumption) -> Array:
        """Return the expected clock of each kernel, MHz."""
        return self._expected(self.mhz, assumed)

    def blurred(self, signal: Array, assumed: Assumption) -> Array:
        """Return what readings of any signal of the kernels would predict at each kernel.

        Parameters
        ----------
        signal
            Value of each kernel; 0 while none runs.
        """
        total = Cumulative(self.start, self.end, signal)
        width = max(assumed.window_ns, 1.0)
        stop = self.time - assumed.delay_ns
        return self._expected(total.between(stop - width, stop) / width, assumed)

    def unrecorded(self, assumed: Assumption) -> Array:
        """Return the share of each update's window before the first kernel and after the last."""
        first, last = float(self.start.min()), float(self.end.max())
        width = max(assumed.window_ns, 1.0)
        stop = self.time - assumed.delay_ns
        inside = np.minimum(stop, last) - np.maximum(stop - width, first)
        return 1.0 - np.clip(inside / width, 0.0, 1.0)

    def unrecorded_at_kernels(self, assumed: Assumption) -> Array:
        """Return that share in what readings predict at each kernel."""
        return np.clip(self._expected(self.unrecorded(assumed), assumed), 0.0, 1.0)

    def _expected(self, values: Array, assumed: Assumption) -> Array:
        """Predict `values` of updates at kernels, with the weights that suit readings of the clock."""
        centre, middle = self.centres(assumed), (self.start + self.end) / 2
        inside = slice(*np.searchsorted(centre, [self.start.min(), self.end.max()]))
        mean = float((values[inside] if values[inside].size else values).mean())
        if assumed.window_ns < self.period_ns or len(centre) < 3:  # noqa: PLR2004
            return mean + self._predict_between_readings(centre, middle, values - mean, assumed)
        half = assumed.window_ns / 2
        first, last = (np.searchsorted(centre, middle + side) for side in (-half, half))
        # Kernels whose windows were not read have the reading that is nearest.
        first = np.clip(first, 0, len(centre) - 1)
        count = np.maximum(last - first, 1)

        def of_windows(column: Array) -> Array:
            total = np.append([0.0], np.cumsum(column))
            return (total[first + count] - total[first]) / count

        own = of_windows(self.mhz)
        variance = float(self.mhz[inside].var()) if self.mhz[inside].size else 0.0
        ratio = max(variance - self.quantum_mhz**2 / 12, 0.0) / max(float(own.var()), _TINY)
        return mean + float(np.clip(ratio, *_RATIO_LIMITS)) * (of_windows(values) - mean)

    def _predict_between_readings(
        self, centre: Array, middle: Array, values: Array, assumed: Assumption
    ) -> Array:
        """Predict deviations between readings that are further apart than their windows.

        By the mean over each kernel of what the readings around it lead to expect (`Kriged`); where
        readings are not correlated, only by those whose windows are near.
        """
        alike = self.correlation
        if alike < _MIN_CORRELATION or len(centre) < 2:  # noqa: PLR2004
            return self._of_near(centre, middle, values, assumed)
        time = -self.period_ns / np.log(min(alike, 1 - 1e-4))
        return Kriged(centre, assumed.window_ns, values, time).means(self.start, self.end)

    def _of_near(self, centre: Array, middle: Array, values: Array, assumed: Assumption) -> Array:
        """Return the deviations of readings whose windows are near, 0 where none is."""
        after = np.clip(np.searchsorted(centre, middle), 1, max(len(centre) - 1, 1))
        before = after - 1
        after = np.minimum(after, len(centre) - 1)
        near, far = (
            np.maximum(np.abs(middle - centre[i]) - assumed.window_ns / 2, 0.0)
            for i in (before, after)
        )
        reach = np.maximum(_MAX_DISTANCE_NS, (self.end - self.start) / 2)
        weights = [(distance <= reach).astype(float) for distance in (near, far)]
        total = np.maximum(weights[0] + weights[1], 1.0)
        mean: Array = (weights[0] * values[before] + weights[1] * values[after]) / total
        return mean

    @property
    def correlation(self) -> float:
        """Correlation of each reading with the next while the GPU worked, without the noise of rounding.

        Idle GPUs run at other clocks, so that readings around the work are alike whatever these show. 0 where it is
        within what is chance.
        """
        mhz = self.mhz[(self.time >= self.start.min()) & (self.time <= self.end.max())]
        if len(mhz) < 3:  # noqa: PLR2004
            return 0.0
        deviation = mhz - mhz.mean()
        variance = float(np.mean(deviation**2)) - self.quantum_mhz**2 / 12
        if variance <= 0:
            return 0.0
        return beyond_chance(deviation[1:] * deviation[:-1], variance)


def beyond_chance(products: Array, variance: float) -> float:
    """Return the correlation of readings by their products, from 0 to 1; 0 where it is within what is chance."""
    alike = float(products.mean()) / variance
    return float(np.clip(alike, 0.0, 1.0)) if alike > TWO_SIDED / np.sqrt(len(products)) else 0.0


class Cumulative:
    """Integral over time of a quantity that each of some intervals has a constant rate of.

    Parameters
    ----------
    start, end
        Begin and end of each interval, nanoseconds.
    rate
        Rate while it lasts.
    """

    def __init__(self, start: Array, end: Array, rate: Array) -> None:
        time = np.concatenate([start, end]).astype(float)
        change = np.concatenate([rate, -rate])
        order = np.argsort(time, kind="stable")
        self._time = time[order]
        rates = np.cumsum(change[order])
        self._area = np.append([0.0], np.cumsum(rates[:-1] * np.diff(self._time)))

    def between(self, low: Array, high: Array) -> Array:
        """Return the integral over each of these spans."""
        high_area, low_area = (np.interp(t, self._time, self._area) for t in (high, low))
        return high_area - low_area


def phases_at(time: Array, start: Array, phase: Array) -> Array:
    """Return the part of the training step at each time, of which kernels that start at `start` have `phase`.

    Within a kernel it goes on evenly: a long one is no point of the step.
    """
    turns = phase + np.append([0.0], np.cumsum(np.diff(phase) < 0))
    at: Array = np.interp(time, start, turns) % 1.0
    return at


def covered_steps(phase: Array) -> float:
    """Return how many training steps pass from the first to the last of some times in order; 0 without steps."""
    if not phase.any():
        return 0.0
    return float(np.count_nonzero(np.diff(phase) < 0) + phase[-1] - phase[0])


def apart_from_neighbours(values: Array, phase: Array, reach: int = 1) -> Array:
    """Return the values without what is usual in their part of the training step: the mean with their neighbours in it.

    Neighbours are of any steps, and three the fewest that leave out a straight change from the first to the last. More of them, or
    smooth waves over the step, do not follow a clock that falls and rises within kernels, in each step alike: what they left
    was taken for changes. They must be of `MIN_STEPS`; the mean alone is left out without steps. `reach` is how far the neighbours are.
    """
    if not phase.any():
        rest: Array = values - values.mean() if values.size else values
        return rest
    order = np.argsort(phase, kind="stable")
    cycle, rest = values[order], np.empty(len(values))
    rest[order] = cycle - (np.roll(cycle, reach) + cycle + np.roll(cycle, -reach)) / 3
    return rest


def squares_by_neighbours(values: Array, phase: Array) -> Array:
    """Return the sums of squares of what `apart_from_neighbours` leaves, by the nearest and by those twice as far."""
    rests = (apart_from_neighbours(values, phase, reach) for reach in (1, 2))
    return np.array([np.sum(rest**2) for rest in rests])


def usual_left(squares: Array) -> float:
    """Return the part of what `apart_from_neighbours` leaves that may still be usual, by sums of `squares_by_neighbours`.

    Changes from step to step do not depend on how far neighbours are. What a clock that jumps within the step leaves is in
    proportion to that, and what a smooth one leaves grows faster: so it is no more than those twice as far leave more.
    """
    near, far = squares
    return float(np.clip(far / near - 1, 0.0, _MAX_LEFT)) if near > 0 else 0.0


class Work(NamedTuple):
    """Kernels of a trace by what they do.

    Parameters
    ----------
    key
        Number that repeats share.
    dur
        Durations, nanoseconds.
    usable
        Mark kernels whose durations show the clock: those without concurrent communication.
    highest
        Highest clock of each one's GPU, MHz; where it is not known, that of all kernels.
    rated
        The same, NaN where it is not known.
    place
        Number that those share which do the same at the same place of training steps.
    phase
        Share of its step's kernels that started before each.
    """

    key: Array
    dur: Array
    usable: Array
    highest: Array
    rated: Array
    place: Array
    phase: Array


class SensedGpus(NamedTuple):
    """Readings of GPUs by one kind of sensor.

    Parameters
    ----------
    field
        What is known of the field that was sampled.
    gpus
        Readings of each GPU.
    """

    field: ClockField
    gpus: list[Readings]


def sensed_gpus(trace: Trace, node: Array, sensor: Sensor | None) -> list[SensedGpus]:
    """Return the readings of clocks of the GPUs that these kernels ran on, by kind of sensor.

    Logs of changes (rpd) are not among them, as they have no samples between changes, nor are GPUs with
    too few readings, or readings of one time.
    """
    position = np.full(trace.nodes.num_rows, -1, np.int64)
    position[node] = np.arange(len(node))
    start = trace.array("ts")[node].astype(float)
    end = start + trace.array("dur")[node]
    ratings, which = rate_gpus_of_nodes(trace, node)
    gpu_names = np.array([_searched_name(one) for one in ratings.values()], object)
    groups: dict[ClockField, list[Readings]] = {}
    for gpu in gpus_with_telemetry(trace, quantities=(GFXCLK,)):
        rows = position[gpu.rows]
        rows = rows[rows >= 0]
        sources = gpu.sources.get(GFXCLK.name, ())
        if not rows.size or not sources or sources[0].pattern.is_logged:
            continue
        time, mhz, period = _mean_of_dies([samples for _, samples in sources[0].samples])
        if not time.size or not period > 0:  # samples of one time show no clock of any kernel
            continue
        names = set(gpu_names[which[rows]])
        name = names.pop() if len(names) == 1 else ""  # hosts with different GPUs: none is matched
        field = field_of(sources[0].tool, sources[0].pattern.name, name)
        given = sensor or Sensor(field.window_ns, field.hold_ns, field.lag_ns)
        rows = rows[_is_sampled(start[rows], end[rows], (time, period), given)]
        if not rows.size:
            continue
        if (
            np.count_nonzero((time >= start[rows].min()) & (time <= end[rows].max()))
            < _MIN_READINGS
        ):
            continue
        readings = _readings(rows, start[rows], end[rows], (time, mhz, period), given)
        groups.setdefault(field, []).append(replace(readings, at_highest=field.at_highest))
    return [SensedGpus(field, gpus) for field, gpus in groups.items()]


def _searched_name(gpu: GpuRating) -> str:
    """Product of a GPU with its own name and architecture, by which fields are looked up."""
    return " ".join((gpu.product.name if gpu.product else "", gpu.name, gpu.arch))


def _is_sampled(start: Array, end: Array, samples: tuple[Array, float], sensor: Sensor) -> Array:
    """Mark kernels in the time that samples cover: the best source may end before others."""
    time, period = samples
    before = sum(ns or 0.0 for ns in (sensor.window_ns, sensor.lag_ns))
    inside: Array = (end >= time[0] - max(before, period)) & (start <= time[-1] + period)
    return inside


def _mean_of_dies(parts: list[Samples]) -> tuple[Array, Array, float]:
    """Times, mean values and period of the samples of a GPU's dies."""
    first = parts[0]
    time = first.ts.astype(float)
    values = [np.interp(time, part.ts.astype(float), part.value) for part in parts]
    mhz = np.mean(values, axis=0)
    good = mhz > 0
    return time[good], mhz[good], float(first.period_ns)


def _readings(
    kernel: Array,
    start: Array,
    end: Array,
    samples: tuple[Array, Array, float],
    sensor: Sensor,
) -> Readings:
    """Reduce samples to the updates of a sensor, where samples are closer than these."""
    time, mhz, period = samples
    changed = np.flatnonzero(np.diff(mhz) != 0) + 1
    hold = sensor.hold_ns
    if hold is None and len(changed) > _MIN_UPDATES:
        hold = _regular_step(time[changed], period)
    quantum = _quantum(mhz)
    if not hold or hold < _MIN_HOLD_PERIODS * period or len(changed) < 2:  # noqa: PLR2004
        return Readings(kernel, start, end, time, mhz, period, 0.0, quantum)
    # Values first seen after a change; more of the same where the clock stayed for several updates.
    first = np.append([0], changed)
    count = np.maximum(np.rint(np.diff(np.append(time[first], time[-1] + period)) / hold), 1)
    repeat = np.repeat(np.arange(len(first)), count.astype(np.int64))
    nth = _nth(count)
    return Readings(
        kernel, start, end, time[first][repeat] - period / 2 + nth * hold, mhz[first][repeat],
        hold, hold, quantum,
    )  # fmt: skip


def _regular_step(time: Array, period: float) -> float:
    """Longest time of which all steps between these times are multiples, nanoseconds; 0 if there is none.

    An update is as likely to show as not where the clock is still, so that steps may be of several. Changes at
    chance come sooner as well, in multiples of the sampling period from one on.
    """
    steps = np.diff(time)
    for candidate in np.quantile(steps, _HOLD_QUANTILES):
        number = np.append([0.0], np.cumsum(np.maximum(np.rint(steps / candidate), 1)))
        hold, first = np.polyfit(number, time, 1)
        if (
            np.minimum(((time - first - number * hold) / period) ** 2, 1.0).mean()
            <= _MAX_HOLD_MISFIT
        ):
            return float(hold)
    return 0.0


def _nth(count: Array) -> Array:
    """0, 1, … of each run of these lengths."""
    total = np.cumsum(count)
    return np.arange(int(total[-1])) - np.repeat(total - count, count.astype(np.int64))


def _quantum(mhz: Array) -> float:
    """Step of which all values are multiples, MHz, if they are whole; else the smallest difference between them.

    A clock that has few values does not show the step by how far these are apart; 0 if there is one value alone.
    """
    values = np.unique(mhz)
    steps = np.diff(values)
    if not steps.size:
        return 0.0
    whole = np.rint(values)
    is_whole = np.array_equal(values, whole)
    step = np.gcd.reduce(whole.astype(np.int64)) if is_whole else steps.min()
    return min(float(step), _MAX_QUANTUM)
