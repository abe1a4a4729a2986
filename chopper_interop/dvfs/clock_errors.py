"""How well the core clock of each piece of GPU work is known from samples of its GPU's clock.

A sampled clock is right at its moment. A kernel between two samples is taken to run at the one
before it, and how wrong that is follows from how much the clock changes from sample to sample: in
the mean square, half of the square of a step, and less where it runs beyond the next (`_averaged`).
Such a clock varies as much as the true one and follows it only in part (`followed`); one of counted
cycles is the true one with noise, and varies more. Samples further apart than the clock takes to change
tell what it is at random moments, not at the kernel's; then it is wrong by as much as the clock
varies at all, whatever was averaged, as kernels that draw much power run at lower clocks than others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.counters import counted
from chopper_interop.telemetry.gpus import gpus
from chopper_interop.telemetry.names import GFXCLK

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.samples import Samples
    from chopper_interop.trace import Trace

CLOCK, RESOLUTION = "gfxclk_mhz", "telemetry_ns"
COUNTED_ERROR = 0.02
"""Error of a clock by cycles that were counted, as a share: they and times are taken apart."""
PRIOR_SHARE = 0.06
"""How much clocks vary within a training step where they were sampled finely, as a standard
deviation: 3 to 8 % of the clock on MI300X under a power limit."""
PRIOR_WEIGHT = 4
"""So many samples it counts as."""
CHANGES_NS = 20e6
"""About how long a clock takes to forget what it was: firmware filters power over tens of ms. Of
samples further apart, steps from one to the next may be small because both are at the same place in
training steps: these do not tell that it is steady."""


class Clocks(NamedTuple):
    """Core clocks of some nodes.

    Parameters
    ----------
    mhz
        Mean clock of each while it ran; not a number where it is not known.
    error_share
        Standard deviation of its error, as a share of it; `PRIOR_SHARE` where the resolution is
        not known.
    resolution_ns
        Time between the samples that it is from; 0 where it is not known.
    is_counted
        Which are by cycles that were counted: their error is noise; of the others it is what the
        clock changed by since a sample.
    """

    mhz: Array
    error_share: Array
    resolution_ns: Array
    is_counted: Array


def of(trace: Trace, node: Array) -> Clocks:
    """Clocks of GPU work.

    Parameters
    ----------
    trace
        Any trace.
    node
        Rows of its nodes.
    """
    mhz = _column(trace, CLOCK, node)
    mhz[~(mhz > 0)] = np.nan
    resolution = _column(trace, RESOLUTION, node)
    resolution[np.isnan(mhz)] = 0.0
    dur = trace.array("dur")[node].astype(float)
    known = resolution > 0
    share = np.where(np.isnan(mhz), np.nan, PRIOR_SHARE)
    share[known] = _prior(resolution[known])
    place = np.full(trace.nodes.num_rows, -1, np.int64)
    place[node] = np.arange(len(node))
    for one in _changes(trace):
        mine = place[one.rows]
        mine = mine[mine >= 0]
        mine = mine[known[mine]]
        like = resolution[mine] < _LIKE * one.period_ns
        prior = _prior(resolution[mine]) ** 2
        told = (prior * PRIOR_WEIGHT + one.square * one.steps) / (PRIOR_WEIGHT + one.steps)
        told = np.where(resolution[mine] < CHANGES_NS, told, np.maximum(told, prior))
        share[mine] = np.sqrt(np.where(like, told, prior))
    share[known] *= np.sqrt(_averaged(dur[known] / resolution[known]))
    own = np.isnan(mhz) & np.isin(node, counted.in_own_run(trace))
    own &= _column(trace, counted.CLOCK, node) > 0  # counted, so that it is of its own cycles
    mhz[own] = _column(trace, counted.CLOCK, node)[own]
    share[own], resolution[own] = COUNTED_ERROR, dur[own]
    return Clocks(mhz, share, resolution.astype(np.int64), own)


def _averaged(samples: Array) -> Array:
    """Share of the squared error at a moment that the mean over a kernel has, which begins anywhere.

    Exact for a clock of independent changes that are small from sample to sample.

    Parameters
    ----------
    samples
        How long kernels are, in periods of the sampler.
    """
    longer = np.maximum(samples, 1.0)
    short = 1 - samples * (2 / 3 - samples / 6)
    return np.where(samples < 1, short, (2 / 3 - 1 / (6 * longer)) / longer)


def followed(changed: Array) -> Array:
    """Slope of the true clock by the sampled one: what a sample still tells of kernels after it.

    The correlation of a clock that forgets evenly, ``exp(-t / T)``, over the times since a sample.
    A sampled clock varies as much as the true one, so that errors that are small take off half of
    what noise of their size would.

    Parameters
    ----------
    changed
        Square of the error by changes since samples, as a share of the clocks' variance.
    """
    some = np.clip(changed, 1e-9, 1.0)
    with np.errstate(divide="ignore"):
        return np.where(some < 1, -some / np.log1p(-some), 0.0)


_LIKE = 1.5
"""Samples whose times are known to much less than their period tell how it changes over one."""


def _prior(resolution_ns: Array) -> Array:
    """How much a clock is expected to change within this time, as a share of it."""
    return PRIOR_SHARE * np.sqrt(-np.expm1(-resolution_ns / CHANGES_NS))


class _Changes(NamedTuple):
    """How much a GPU's clock changes from sample to sample.

    Parameters
    ----------
    rows
        The GPU's work.
    source
        What sampled it: tool and series.
    period_ns
        Time between samples.
    square, steps
        Half the mean square of steps, as shares of the clock, and how many steps tell it.
    """

    rows: Array
    source: tuple[str, str]
    period_ns: int
    square: float
    steps: int


def _changes(trace: Trace) -> list[_Changes]:
    """Of each GPU, by its own samples and those of others that were sampled alike."""
    found = []
    for gpu in gpus(trace, quantities=(GFXCLK,)):
        sources = gpu.told.get(GFXCLK.name, ())
        start = trace.array("ts")[gpu.rows]
        end = start + trace.array("dur")[gpu.rows]
        window = int(start.min()), int(end.max())
        for source in sources[:1]:
            steps = [_steps(samples, *window) for _, samples in source.samples]
            squares = np.concatenate(steps)
            if squares.size:
                period = max(s.resolution_ns for _, s in source.samples)
                name, half = (source.tool, source.told.name), float(squares.mean()) / 2
                found.append(_Changes(gpu.rows, name, period, half, len(squares)))
    return _pooled(found)


def _pooled(found: list[_Changes]) -> list[_Changes]:
    """GPUs that were sampled alike tell of each other how much a clock changes."""
    groups: list[list[_Changes]] = []
    for one in sorted(found, key=lambda c: (c.source, c.period_ns)):
        first = groups[-1][0] if groups else None
        if first and first.source == one.source and one.period_ns <= _LIKE * first.period_ns:
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


def _column(trace: Trace, name: str, node: Array) -> Array:
    if name not in trace.nodes.column_names:
        return np.zeros(len(node))
    return arrow.numbers(trace.nodes[name], 0)[node].astype(float)
