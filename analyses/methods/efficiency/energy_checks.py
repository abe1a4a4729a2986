"""Energy of a GPU measured twice: by its displayed power, and by its energy counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry import energy, lines
from chopper_interop.annotate.telemetry.quantity_series import ENERGY_UNITS
from chopper_interop.arrays import Array, intervals

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.gpus import Gpu
    from chopper_interop.annotate.telemetry.lines import PiecewiseLinear
    from chopper_interop.annotate.telemetry.samples import Samples
    from chopper_interop.annotate.telemetry.source_reader import Source

NOT_SHOWN = "no power was shown in the window"
NOT_COUNTED = "no energy counter was sampled"
IN_PART = "the energy counter is not known of all of the time that power was shown, or was set back"


@dataclass(frozen=True)
class Check:
    """Energy of the same time by displayed power and by the energy counter, joules.

    Parameters
    ----------
    trapezoid_j
        Integral of displayed power over the time in the window in which it is known; None if it
        is known at no time.
    trapezoid_resolution_j
        Possible error of that due to the time between samples: one resolution at either end of
        each interval. Filters and errors of sensors, which no tool reports, are not included.
    counter_j
        Rise of the energy counter over that time; None if the counter does not cover all of it.
    counter_resolution_j
        Possible error of that: the rise from the sample before to the sample after each end of
        that time, and the rounding of its tool.
    why_not
        Reason for which one of the two is missing; empty if both are there.
    """

    trapezoid_j: float | None = None
    trapezoid_resolution_j: float | None = None
    counter_j: float | None = None
    counter_resolution_j: float | None = None
    why_not: str = NOT_SHOWN


def check_energy(gpu: Gpu, shown: Sequence[tuple[Source, Samples]], low: int, high: int) -> Check:
    """Both of them over a window.

    Parameters
    ----------
    gpu
        The GPU.
    shown
        As `energy.power_sources` gives it.
    low, high
        The window, as ts.
    """
    power = lines.from_samples(samples for _, samples in shown).within(low, high)
    if not len(power):
        return Check()
    watt_ns = ((power.first + power.last) / 2 * (power.end - power.start)).sum()
    start, end = intervals.union(power.start, power.end)
    counter = _counted(gpu, [source.tool for source, _ in shown], start, end)
    why = "" if counter else IN_PART if gpu.counters else NOT_COUNTED
    rise, off = counter or (None, None)
    return Check(float(watt_ns) * 1e-9, _resolution(power, start, end), rise, off, why)


def _resolution(power: PiecewiseLinear, start: Array, end: Array) -> float:
    """Energy of one resolution at either end of each interval."""
    first, last = np.searchsorted(power.start, start), np.searchsorted(power.end, end)
    at_start = power.first[first] * power.resolution[first]
    return float((at_start + power.last[last] * power.resolution[last]).sum()) * 1e-9


def _counted(
    gpu: Gpu, tools: Sequence[str], start: Array, end: Array
) -> tuple[float, float] | None:
    """Rise of a counter and its possible error, of the first tool that covers the time."""
    for tool in dict.fromkeys((*tools, *gpu.counters)):
        counters = gpu.counters.get(tool, ())
        rise = energy.counter_rise(counters, start, end)
        if rise is not None:
            rounded = abs(1 - ENERGY_UNITS.get(tool, 1.0)) * rise
            return rise, energy.counter_step(counters, np.concatenate([start, end])) + rounded
    return None
