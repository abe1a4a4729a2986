"""Energy of a GPU told twice: by its power as it is shown, and by its energy counter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import intervals
from chopper_interop.telemetry import energy, lines
from chopper_interop.telemetry.names import ENERGY_UNITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.gpus import Gpu, Source
    from chopper_interop.telemetry.lines import Lines
    from chopper_interop.telemetry.samples import Samples

NOT_SHOWN = "no power was shown in the window"
NOT_COUNTED = "no energy counter was sampled"
IN_PART = "the energy counter is not known of all of the time that power was shown, or was set back"


@dataclass(frozen=True)
class Check:
    """What power as it is shown and the energy counter say of the same time, joules.

    Parameters
    ----------
    trapezoid_j
        Energy of power as it is shown, of the time in the window that it is known of; None if of none.
    trapezoid_resolution_j
        What that may be wrong by as its samples are of times that far apart: one resolution of them
        at either end of each stretch. Filters and errors of sensors, which no tool tells, are not in it.
    counter_j
        What the energy counter rose by over that time; None if it does not tell all of it.
    counter_resolution_j
        How far that may be from what was drawn: what it rose by from the sample before to the one
        behind each end of that time, and what its tool rounds.
    why_not
        Why there are not both; empty if there are.
    """

    trapezoid_j: float | None = None
    trapezoid_resolution_j: float | None = None
    counter_j: float | None = None
    counter_resolution_j: float | None = None
    why_not: str = NOT_SHOWN


def of(gpu: Gpu, shown: Sequence[tuple[Source, Samples]], low: int, high: int) -> Check:
    """Both of them over a window.

    Parameters
    ----------
    gpu
        The GPU.
    shown
        As `telemetry.energy.shown_of` gives it.
    low, high
        The window, as ts.
    """
    power = lines.of_samples(samples for _, samples in shown).within(low, high)
    if not len(power):
        return Check()
    watt_ns = ((power.first + power.last) / 2 * (power.end - power.start)).sum()
    start, end = intervals.union(power.start, power.end)
    counter = _counted(gpu, [source.tool for source, _ in shown], start, end)
    why = "" if counter else IN_PART if gpu.counters else NOT_COUNTED
    rise, off = counter or (None, None)
    return Check(float(watt_ns) * 1e-9, _resolution(power, start, end), rise, off, why)


def _resolution(power: Lines, start: Array, end: Array) -> float:
    """Energy of one resolution at either end of each stretch."""
    first, last = np.searchsorted(power.start, start), np.searchsorted(power.end, end)
    at_start = power.first[first] * power.resolution[first]
    return float((at_start + power.last[last] * power.resolution[last]).sum()) * 1e-9


def _counted(
    gpu: Gpu, tools: Sequence[str], start: Array, end: Array
) -> tuple[float, float] | None:
    """What a counter rose by, and how far that may be off; of the first tool that tells."""
    for tool in dict.fromkeys((*tools, *gpu.counters)):
        counters = gpu.counters.get(tool, ())
        rise = energy.counted(counters, start, end)
        if rise is not None:
            rounded = abs(1 - ENERGY_UNITS.get(tool, 1.0)) * rise
            return rise, energy.around(counters, np.concatenate([start, end])) + rounded
    return None
