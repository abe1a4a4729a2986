"""Core clocks of GPU work by samples of its GPU's clock, and the errors of these clocks.

Where the series of the clock is at hand, `clock_sensor` predicts each kernel's clock by the readings,
under an assumption on the sensor that agrees with the durations of repeats (`sensor_fit`). Slopes
over such clocks are those over the true ones. What is left is common to all kernels: sparse readings
show the mean clock with an error, smoothing mixes the clocks of kernels that draw much power with
those of others, and with idle time.

Else clocks are the column of the nodes, with a change since the last sample as their error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks import clock_sensor, expected_clocks, sensor_fit
from chopper_interop.analyses.methods.dvfs.clocks.mean_sensitivity import (
    GPU_TIME_SPREAD,
    mean_sensitivity_of_gpus,
    min_spread,
)
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED, student
from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.arrays import Array
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import (
        Assumption,
        Readings,
        Sensor,
        Work,
    )
    from chopper_interop.analyses.methods.dvfs.clocks.sensor_fit import Accepted
    from chopper_interop.schemas.clock_sensors import ClockField

CLOCK, RESOLUTION = "gfxclk_mhz", "telemetry_ns"
COUNTED_ERROR = 0.02
"""Error of a clock by counted cycles, as a share. Chosen: cycles and times are not recorded by
the same tool at the same instants."""
PRIOR_SHARE = 0.06
"""Standard deviation of clocks within a training step, as a share, before samples show it: 3 to 8 % of
the clock where MI300X were sampled finely under a power limit; 1.062x between the GPUs of a node in
Lit Silicon (arXiv 2511.09861)."""
CHANGES_NS = 20e6
"""Correlation time of a clock: firmware filters power over tens of ms, and a switch itself takes 1 ms
(Ascend) to 15 ms (NVIDIA; ASPLOS 2025). Steps between samples further apart may be small only because
both are at the same place in training steps: they do not show that the clock is steady."""
_POWER_SPREAD = 0.05
"""Standard deviation of the logarithm of the clock over that of a kernel's sensitivity, from 0 to 1: kernels
that compute draw power and lower the clock. Chosen: the spread of clocks within a step, `PRIOR_SHARE`."""
_IDLE_SPREAD = 0.1
"""Standard deviation of the logarithm of the clock of an idle GPU over that of a busy one. Chosen: from the
clock under a power limit to the highest, as both are observed."""
_MIN_SPREAD_READINGS = 8
"""Readings below which `PRIOR_SHARE` counts for their spread. Chosen: with as many it hardly would."""
_PRIOR_FREEDOM = 3
"""Readings as which it counts. Chosen: few, so that clocks that throttle show it."""
_MIN_LEVEL = 0.002
"""Smallest error of the mean clock of a GPU, as a share. Chosen: one step of 4 MHz of 2000."""
_LOW_SHARE = 0.5
"""Share of the highest clock at which all that kernels may lack of it counts. Chosen: any that is low enough."""
LOWEST_SHARE = 0.05
"""Share of the highest clock below which no GPU runs a kernel: they go down to 0.06 (180 of 2842 MHz in arXiv 2501.08219)
to 0.3 of it. Chosen: a little beyond that."""
_TINY = 1e-12
"""Keeps quotients finite; far below all values."""


class Clocks(NamedTuple):
    """Core clocks of some nodes.

    Parameters
    ----------
    mhz
        Mean clock of each node while it ran; NaN where unknown.
    error_share
        Standard deviation of its error, as a share of the clock; `PRIOR_SHARE` where the time
        between samples is unknown.
    resolution_ns
        Time between the samples that the clock is from; 0 where unknown.
    is_counted
        Mark clocks by counted cycles. Their error is noise.
    is_sensed
        Mark clocks by a model of the sensor: slopes over them need no correction.
    is_resolved
        Mark those of them whose readings show the clock within their windows too.
    size_error
        Error of the size of the clock's changes, as a share of it; 0 unless sensed.
    apart
        Logarithm of how much longer each takes at its place in the step than its repeats in the mean; 0
        unless sensed.
    beta, beta_error
        Mean sensitivity of the kernels on GPUs with this sensor; NaN unless sensed.
    gpu_beta, gpu_beta_error
        The same by how GPUs differ, whatever the sensor; NaN and infinite where they do not show it.
    common
        Error that the clocks of all kernels of a GPU have in common, as a share; NaN unless sensed.
    scale_error
        Error that they have in comparison with another clock, by how readings are related to clocks, as a share;
        that clock is the highest unless `Sensitivities.at_readings` chooses another.
    read_mhz
        Clock of each as a tool reads it.
    highest
        Highest reading of its GPU, MHz; infinite unless sensed.
    at_highest
        Clock of kernels where that is read, as `ClockField.at_highest`, (node, end).
    readings
        Number of readings by its sensor while the GPUs worked; infinite unless sensed.
    """

    mhz: Array
    error_share: Array
    resolution_ns: Array
    is_counted: Array
    is_sensed: Array
    is_resolved: Array
    size_error: Array
    apart: Array
    beta: Array
    beta_error: Array
    gpu_beta: Array
    gpu_beta_error: Array
    common: Array
    readings: Array
    scale_error: Array
    read_mhz: Array
    highest: Array
    at_highest: Array


class SensedClocks(NamedTuple):
    """A kind of sensor: what it reads, and what is assumed of it.

    Parameters
    ----------
    field
        What is known of the field that was sampled.
    gpus
        Readings of GPUs.
    accepted
        Assumptions that agree with the durations of kernels.
    """

    field: ClockField
    gpus: list[Readings]
    accepted: Accepted

    def is_timed(self, assumed: Assumption) -> bool:
        """False if nothing says which part of a hold the windows of readings are in, so that they show no changes.

        Readings are held for longer than their window, and durations do not show by how much they are late.
        """
        hold = self.accepted.fixed.hold_ns or 0.0
        if not sensor_fit.hides_age(self.gpus, hold, assumed.window_ns):
            return True
        is_shown = self.accepted.origin == clock_sensor.ESTIMATED
        return is_shown and sensor_fit.is_narrow(self.accepted.spread[:, 1], hold)


def sensed_clocks(
    trace: Trace, node: Array, work: Work, sensor: Sensor | None
) -> list[SensedClocks]:
    """Return the sensors of a trace's GPUs whose series are known."""
    groups = clock_sensor.sensed_gpus(trace, node, sensor)
    each = [sensor_fit.aligned(one, work, sensor) for one in groups]
    return [
        SensedClocks(one.field, one.gpus, sensor_fit.accepted(one, work, sensor)) for one in each
    ]


def kernel_clocks(trace: Trace, node: Array) -> Clocks:
    """Return the clocks of these nodes, which are GPU work, by the columns of nodes."""
    mhz = trace.reals(CLOCK, node)
    mhz[~(mhz > 0)] = np.nan
    resolution = trace.integers(RESOLUTION, node, unknown=0).astype(float)
    resolution[np.isnan(mhz)] = 0.0
    dur = trace.array("dur")[node].astype(float)
    known = resolution > 0
    share = np.where(np.isnan(mhz), np.nan, PRIOR_SHARE)
    share[known] = changes_within(resolution[known])
    share[known] *= np.sqrt(_error_share_by_length(dur[known] / resolution[known]))
    counted_mhz = trace.reals(counter_metrics.CLOCK, node)
    is_counted = np.isnan(mhz) & np.isin(node, counter_metrics.counted_in_timing_run(trace))
    is_counted &= counted_mhz > 0
    mhz[is_counted] = counted_mhz[is_counted]
    share[is_counted], resolution[is_counted] = COUNTED_ERROR, dur[is_counted]
    unmarked, zero = np.zeros(len(node), bool), np.zeros(len(node))
    none = np.full(len(node), np.nan)
    times = resolution.astype(np.int64)
    every = np.full(len(node), np.inf)
    return Clocks(
        mhz, share, times, is_counted, unmarked, unmarked, zero, zero, none, none, none, every,
        none, every, zero, mhz, every, np.ones((len(node), 2)),
    )  # fmt: skip


def with_sensor(
    clocks: Clocks, sensor: SensedClocks, work: Work, assumed: Assumption, beta: Array
) -> Clocks:
    """Return the clocks with those of the GPUs of a sensor under one assumption on it.

    Parameters
    ----------
    clocks
        Clocks by columns; those that are unknown there stay unknown.
    sensor
        The sensor, with its readings.
    work
        Kernels of the trace.
    assumed
        Window and delay.
    beta
        Sensitivity of each node by straight lines, for the effect of its power on the clock.
    """
    new, gpus = Clocks(*(column.copy() for column in clocks)), sensor.gpus
    shown = sensor.accepted.shown.get(assumed)
    every = expected_clocks.expected_clocks(gpus, work, assumed, shown)
    levels = [_level_error(gpu, assumed, min_spread(gpu, work)) for gpu in gpus]
    means = [
        float(np.average(one.mhz, weights=work.dur[g.kernel]))
        for one, g in zip(every, gpus, strict=True)
    ]
    drawn = _drawn_together(means, levels)
    readings = sum(
        int(np.count_nonzero((g.time >= g.start.min()) & (g.time <= g.end.max()))) for g in gpus
    )
    by_gpus = mean_sensitivity_of_gpus(gpus, work)
    for gpu, one, mean, level_mhz, error in zip(gpus, every, means, drawn, levels, strict=True):
        known = ~np.isnan(clocks.mhz[gpu.kernel]) & ~clocks.is_counted[gpu.kernel]
        if not known.any():
            continue
        k = gpu.kernel[known]
        new.highest[gpu.kernel] = np.fmax(work.highest[gpu.kernel], gpu.mhz.max())
        new.at_highest[gpu.kernel] = gpu.at_highest
        highest = new.highest[k]
        expected = one.mhz[known] + level_mhz - mean
        is_possible = expected >= LOWEST_SHARE * highest
        new.read_mhz[k] = mhz = np.minimum(np.where(is_possible, expected, level_mhz), highest)
        factor, new.scale_error[k] = like_highest(gpu.at_highest, float(np.mean(mhz / highest)))
        new.mhz[k] = np.minimum(factor * mhz, highest)
        new.common[k] = _common_error(gpu, assumed, beta[gpu.kernel], error)[known]
        new.error_share[k] = max(
            one.unseen, 0.0 if _is_followed(gpu, assumed) else _hidden(gpu, assumed)
        )
        # Of a kernel whose readings lead to a clock that no GPU has nothing is known but the mean of its GPU.
        new.error_share[k[~is_possible]] = max(one.unseen, PRIOR_SHARE)
        new.is_sensed[k], new.is_resolved[k], new.readings[k] = True, one.is_resolved, readings
        new.size_error[k], new.apart[k] = one.size_error, one.apart[known]
        new.beta[k], new.beta_error[k] = one.beta, one.beta_error
        new.gpu_beta[k], new.gpu_beta_error[k] = by_gpus
    if gpus:
        of_gpu = np.hypot(levels, [one.usual_error for one in every])
        # The error of a slope over means of several GPUs, of which each has an error of its own.
        _spread_size_errors(new, gpus, work, float(np.sqrt(np.mean(of_gpu**2) / len(gpus))))
    return new


def without_changes(clocks: Clocks, gpus: list[Readings], work: Work) -> Clocks:
    """Return the clocks of GPUs whose readings show no more than the mean of each: differences between GPUs alone."""
    value, error = mean_sensitivity_of_gpus(gpus, work)
    k = np.concatenate([gpu.kernel for gpu in gpus])
    columns = {name: getattr(clocks, name).copy() for name in ("beta", "beta_error", "readings")}
    columns["readings"][k] = 0
    columns["beta"][k], columns["beta_error"][k] = value, error if np.isfinite(error) else np.nan
    return clocks._replace(**columns)


def _spread_size_errors(clocks: Clocks, gpus: list[Readings], work: Work, of_gpu: float) -> None:
    """Write the error of the size of changes of repeats' clocks, within GPUs and between them.

    Mean clocks of GPUs are known whatever the sensor, up to `of_gpu`, a share. But kernels of one may be slower than those of another
    at one clock, or the clock of one be less of its readings.
    """
    k = np.concatenate([gpu.kernel for gpu in gpus])
    gpu_of_kernel = np.repeat(np.arange(len(gpus)), [len(gpu.kernel) for gpu in gpus])
    _, key = np.unique(work.key[k], return_inverse=True)
    _, both = np.unique(np.stack([key, gpu_of_kernel]), axis=1, return_inverse=True)
    mhz = clocks.mhz[k]
    within, of_all = (
        (np.bincount(key, _deviations(mhz, group) ** 2) / np.bincount(key))[key]
        for group in (both, key)
    )
    share = np.clip(within / np.maximum(of_all, _TINY), 0.0, 1.0)
    between = np.sqrt(np.maximum(of_all - within, _TINY**2))
    by_scale = max(like_highest(gpu.at_highest, _LOW_SHARE)[1] for gpu in gpus)
    apart = np.sqrt(GPU_TIME_SPREAD**2 + by_scale**2 + of_gpu**2)
    by_gpus = np.minimum(apart / between, 1.0) * (1 - share)
    clocks.size_error[k] = np.hypot(clocks.size_error[k] * share, by_gpus)


def _deviations(mhz: Array, group: Array) -> Array:
    """Relative deviation of each known clock from the mean of its group; 0 of others."""
    good = ~np.isnan(mhz)
    count = np.bincount(group[good], minlength=int(group.max()) + 1)
    mean = np.bincount(group[good], mhz[good], len(count)) / np.maximum(count, 1)
    return np.where(good, mhz / np.maximum(mean[group], 1.0) - 1, 0.0)


def like_highest(
    at_highest: Array | tuple[float, float], of_highest: Array | float
) -> tuple[Array, Array]:
    """Clock over its readings if the highest reading is the clock that kernels run at then, and its standard error.

    Where the highest clock is read, kernels that draw much current run below it; at lower readings they do not. So
    a lower clock is nearer to that of the highest reading than readings say: by 1 / `at_highest`, but never above
    it. The factor is the middle of what is possible, and the error covers all of that.
    """
    low, high = np.moveaxis(np.asarray(at_highest), -1, 0)
    of_highest = np.clip(of_highest, _TINY, 1.0)
    least, most = np.maximum(1 / high, of_highest), np.minimum(1 / low, 1 / of_highest)
    return (least + most) / 2, (most - least) / 2 / TWO_SIDED


def _common_error(gpu: Readings, assumed: Assumption, beta: Array, level: float) -> Array:
    """Error of each kernel's clock that its repeats have in common, as a share."""
    apart, unrecorded = _unrecorded_level(gpu, assumed), gpu.unrecorded_at_kernels(assumed)
    span = float(gpu.end.max() - gpu.start.min())
    mixed = []
    for signal in (beta, np.ones(len(beta))):  # as much outside as is usual within
        usual = float(signal @ (gpu.end - gpu.start)) / span
        mixed.append(gpu.blurred(signal, assumed) + min(usual, 1.0) * unrecorded)
    by_power = _POWER_SPREAD * np.abs(beta - mixed[0])
    by_idle = _IDLE_SPREAD * np.clip(1 - mixed[1], 0.0, 1.0)
    return np.sqrt(level**2 + _MIN_LEVEL**2 + by_power**2 + by_idle**2 + (apart * unrecorded) ** 2)


def _unrecorded_level(gpu: Readings, assumed: Assumption) -> float:
    """Difference of the clock before the first kernel and after the last from the mean, as a share of that.

    By readings whose windows are outside in part: whatever ran there, they show whether it changes what they mix.
    """
    share = gpu.unrecorded(assumed)
    middle = gpu.centres(assumed)
    first, last = gpu.start.min(), gpu.end.max()
    near = (middle > first - assumed.window_ns) & (middle < last + assumed.window_ns) & (share > 0)
    inside = gpu.mhz[share == 0]
    windows = assumed.window_ns / gpu.period_ns  # readings, of which one is independent of the next
    square = float(share[near] @ share[near])
    if square < max(windows, 1.0) or len(inside) <= max(windows, 1.0):
        return _IDLE_SPREAD
    usual = float(inside.mean())
    deviation, squares = gpu.mhz / usual - 1, 0.0
    for side in (middle < (first + last) / 2, middle >= (first + last) / 2):
        # a higher clock before and a lower one after do not make up for each other
        here = share[near & side]
        squares += float(here @ deviation[near & side]) ** 2 / max(float(here @ here), _TINY)
    noise = float(inside.std()) / usual * np.sqrt(max(windows, 1.0) / square)
    return float(np.hypot(np.sqrt(squares / square), noise))


def _is_followed(gpu: Readings, assumed: Assumption) -> bool:
    """True if readings of parts of the time show the clock in between."""
    return assumed.window_ns < gpu.period_ns and not gpu.is_sparse(assumed)


def _hidden(gpu: Readings, assumed: Assumption) -> float:
    """Expected deviation of the clock from what readings show, as a share of it, where they hide its changes."""
    return float(changes_within(max(assumed.window_ns, gpu.period_ns)))


def _drawn_together(values: list[float], errors: list[float]) -> list[float]:
    """Mean clocks of GPUs, drawn together by as much as their errors explain of the differences.

    A slope over differences that are errors would be too flat (James and Stein's estimate).
    """
    means = np.array(values)
    all_gpus = float(means.mean())
    squares = float(np.sum((means / all_gpus - 1) ** 2))
    noise = float(np.mean(np.square(errors))) * (len(means) + 1)
    trust = max(1 - noise / squares, 0.0) if squares > 0 else 1.0
    return [float(all_gpus + trust * (mean - all_gpus)) for mean in means]


def _level_error(gpu: Readings, assumed: Assumption, min_spread_share: float) -> float:
    """Error of the mean clock of a GPU by readings that do not cover all of the time, as a share.

    `min_spread_share` is the least that the clock may vary by.
    """
    inside = (gpu.time >= gpu.start.min()) & (gpu.time <= gpu.end.max())
    count = max(int(inside.sum()), 1)
    if assumed.window_ns >= gpu.period_ns:
        return 0.0
    mhz = gpu.mhz[inside]
    spread = float(mhz.std(ddof=1) / mhz.mean()) if len(mhz) > 1 else 0.0
    freedom = count - 1
    if count < _MIN_SPREAD_READINGS:  # few readings do not show how far clocks are apart
        of_prior = _PRIOR_FREEDOM * PRIOR_SHARE**2
        spread = np.sqrt((of_prior + freedom * spread**2) / (_PRIOR_FREEDOM + freedom))
        freedom += _PRIOR_FREEDOM
    spread = max(spread, min_spread_share)
    unsure = student(freedom) / TWO_SIDED
    if not gpu.is_sparse(assumed):
        # Between two readings a clock of independent changes deviates from the straight line by a third
        # of the mean square of half their difference.
        between = float(gpu.mhz.std() / gpu.mhz.mean() * np.sqrt((1 - gpu.correlation) / 3))
        return between * unsure / np.sqrt(count)
    return spread * unsure * np.sqrt((1 - assumed.window_ns / gpu.period_ns) / count)


def changes_within(time_ns: Array | float) -> Array:
    """Expected change of a clock within this time, as a share of the clock."""
    change: Array = PRIOR_SHARE * np.sqrt(-np.expm1(-np.asarray(time_ns) / CHANGES_NS))
    return change


def _error_share_by_length(samples: Array) -> Array:
    """Squared error of the mean clock over a kernel, as a share of that at one point in time.

    For kernels that begin anywhere between samples; exact for a clock of independent changes that
    are small from sample to sample.

    Parameters
    ----------
    samples
        Durations of kernels, in periods of the sampler.
    """
    longer = np.maximum(samples, 1.0)
    short = 1 - samples * (2 / 3 - samples / 6)
    return np.where(samples < 1, short, (2 / 3 - 1 / (6 * longer)) / longer)


def attenuation(changed: Array) -> Array:
    """Slope of the true clock over the sampled clock, for kernels between samples; from 0 to 1.

    The mean autocorrelation of a clock with correlation ``exp(-t / T)`` over the times since a
    sample. A sampled clock varies as much as the true one, so small errors reduce the slope by half
    of what noise of their size would.

    Parameters
    ----------
    changed
        Squared error by changes since the sample, as a share of the clocks' variance.
    """
    some = np.clip(changed, 1e-9, 1.0)
    with np.errstate(divide="ignore"):
        return np.where(some < 1, -some / np.log1p(-some), 0.0)
