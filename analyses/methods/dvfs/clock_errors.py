"""Core clocks of GPU work by samples of its GPU's clock, and the errors of these clocks.

A sampled clock is right at the time of its sample. A kernel between two samples is taken to run at
the clock of the first, and the error of that follows from how much the clock changes from sample to
sample: in the mean square, half of the square of a step, and less where the kernel runs beyond the
next sample (`_error_share_by_length`). Such a clock varies as much as the true one and follows it only
in part (`attenuation`); a clock by counted cycles is the true one with noise, and varies more.

Samples further apart than the clock takes to change show it at random times and not at the time of
the kernel. Then the error is as large as the clock's whole variation, however many kernels are
averaged, as kernels that draw much power run at lower clocks than others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.annotate.telemetry.gpus import gpus_with_telemetry
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.samples import Samples
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

CLOCK, RESOLUTION = "gfxclk_mhz", "telemetry_ns"
COUNTED_ERROR = 0.02
"""Error of a clock by counted cycles, as a share. Chosen: cycles and times are not recorded by
the same tool at the same instants."""
PRIOR_SHARE = 0.06
"""Standard deviation of clocks within a training step, as a share, before samples show it: 3 to 8 % of
the clock where MI300X were sampled finely under a power limit; 1.062x between the GPUs of a node in
Lit Silicon (arXiv 2511.09861)."""
PRIOR_WEIGHT = 4
"""Number of samples that `PRIOR_SHARE` counts as. Chosen: few, so that ten steps outweigh it."""
CHANGES_NS = 20e6
"""Correlation time of a clock: firmware filters power over tens of ms, and a switch itself takes 1 ms
(Ascend) to 15 ms (NVIDIA; ASPLOS 2025). Steps between samples further apart may be small only because
both are at the same place in training steps: they do not show that the clock is steady."""


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
        Mark clocks by counted cycles. Their error is noise; the error of the others is the change
        of the clock since the last sample.
    """

    mhz: Array
    error_share: Array
    resolution_ns: Array
    is_counted: Array


def kernel_clocks(trace: Trace, node: Array) -> Clocks:
    """Return the clocks of these nodes, which are GPU work."""
    mhz = trace.reals(CLOCK, node)
    mhz[~(mhz > 0)] = np.nan
    resolution = trace.integers(RESOLUTION, node, unknown=0).astype(float)
    resolution[np.isnan(mhz)] = 0.0
    dur = trace.array("dur")[node].astype(float)
    known = resolution > 0
    share = np.where(np.isnan(mhz), np.nan, PRIOR_SHARE)
    share[known] = _prior_share(resolution[known])
    position = np.full(trace.nodes.num_rows, -1, np.int64)
    position[node] = np.arange(len(node))
    for gpu in _clock_steps(trace):
        rows = position[gpu.rows]
        rows = rows[rows >= 0]
        rows = rows[known[rows]]
        same_period = resolution[rows] < _SAME_PERIOD * gpu.period_ns
        prior = _prior_share(resolution[rows]) ** 2
        square = (prior * PRIOR_WEIGHT + gpu.square * gpu.steps) / (PRIOR_WEIGHT + gpu.steps)
        square = np.where(resolution[rows] < CHANGES_NS, square, np.maximum(square, prior))
        share[rows] = np.sqrt(np.where(same_period, square, prior))
    share[known] *= np.sqrt(_error_share_by_length(dur[known] / resolution[known]))
    counted_mhz = trace.reals(counter_metrics.CLOCK, node)
    is_counted = np.isnan(mhz) & np.isin(node, counter_metrics.counted_in_timing_run(trace))
    is_counted &= counted_mhz > 0
    mhz[is_counted] = counted_mhz[is_counted]
    share[is_counted], resolution[is_counted] = COUNTED_ERROR, dur[is_counted]
    return Clocks(mhz, share, resolution.astype(np.int64), is_counted)


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


_SAME_PERIOD = 1.5
"""Ratio of sampling periods up to which GPUs count as sampled alike. Chosen: above the jitter of one
sampler, below the next rate that tools offer (a factor of 2)."""


def _prior_share(resolution_ns: Array) -> Array:
    """Expected change of a clock within this time, as a share of the clock."""
    return PRIOR_SHARE * np.sqrt(-np.expm1(-resolution_ns / CHANGES_NS))


class _ClockSteps(NamedTuple):
    """Changes of a GPU's clock from sample to sample.

    Parameters
    ----------
    rows
        Rows of the GPU's work.
    source
        Tool and series that sampled the clock.
    period_ns
        Time between samples.
    square, steps
        Half the mean square of steps, as shares of the clock, and the number of steps.
    """

    rows: Array
    source: tuple[str, str]
    period_ns: int
    square: float
    steps: int


def _clock_steps(trace: Trace) -> list[_ClockSteps]:
    """Measure the steps of each GPU's clock, pooled over GPUs that were sampled alike."""
    measured = []
    for gpu in gpus_with_telemetry(trace, quantities=(GFXCLK,)):
        sources = gpu.sources.get(GFXCLK.name, ())
        start = trace.array("ts")[gpu.rows]
        end = start + trace.array("dur")[gpu.rows]
        window = int(start.min()), int(end.max())
        for source in sources[:1]:
            steps = [_steps(samples, *window) for _, samples in source.samples]
            squares = np.concatenate(steps)
            if squares.size:
                period = max(s.resolution_ns for _, s in source.samples)
                series, half = (source.tool, source.pattern.name), float(squares.mean()) / 2
                measured.append(_ClockSteps(gpu.rows, series, period, half, len(squares)))
    return _pooled(measured)


def _pooled(gpus_steps: list[_ClockSteps]) -> list[_ClockSteps]:
    """Give GPUs that were sampled alike the mean of their steps."""
    groups: list[list[_ClockSteps]] = []
    for one in sorted(gpus_steps, key=lambda c: (c.source, c.period_ns)):
        first = groups[-1][0] if groups else None
        if first and first.source == one.source and one.period_ns <= _SAME_PERIOD * first.period_ns:
            groups[-1].append(one)
        else:
            groups.append([one])
    pooled = []
    for group in groups:
        steps = sum(one.steps for one in group)
        square = sum(one.square * one.steps for one in group) / steps
        pooled += [one._replace(square=square, steps=steps) for one in group]
    return pooled


def _steps(samples: Samples, start: int, end: int) -> Array:
    """Squares of the steps from sample to sample within a window, as shares of the clock."""
    inside = np.flatnonzero((samples.ts >= start) & (samples.ts <= end))
    if inside.size < 2:  # noqa: PLR2004
        return np.zeros(0)
    value = samples.value[inside]
    known = ~samples.unknown[inside[:-1]] & (value[:-1] > 0) & (value[1:] > 0)
    return np.diff(np.log(np.maximum(value, 1e-9)))[known] ** 2
