"""Means of GPUs' telemetry over their windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.annotate.telemetry import lines
from chopper_interop.annotate.telemetry.quantity_series import (
    CELSIUS,
    EDGE,
    GFXCLK,
    POWER,
    TEMPERATURE,
    THROTTLE,
    Quantity,
    SeriesPattern,
)
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.fleet.places import GpuPlace
    from chopper_interop.annotate.telemetry.gpus import Gpu
    from chopper_interop.annotate.telemetry.samples import Samples
    from chopper_interop.annotate.telemetry.source_reader import Source

MEMORY = Quantity(
    "memory_temperature",
    "c",
    -273.15,
    1e4,
    (
        SeriesPattern(r"temperature memory", CELSIUS),
        SeriesPattern(r"temperature HBM stack (?P<die>\d+)", CELSIUS),
    ),
    is_linear=True,
)
"""Temperature of the memory; if only those of stacks are known, their mean."""
QUANTITIES = {
    "gfxclk_mhz": GFXCLK, "temperature_c": TEMPERATURE, "memory_temperature_c": MEMORY,
    "power_w": POWER, "throttle_share": THROTTLE,
}  # fmt: skip
"""Quantities of each GPU, by the name of the column."""
_NEARLY_ALL = 0.9
"""Of several tools the finest is used that covers this share of the best one's time. Chosen: tools that
start seconds apart count as covering the same."""


class Means(NamedTuple):
    """Means of one GPU in its windows.

    Parameters
    ----------
    values
        By name of `QUANTITIES` a mean for each window; NaN where nothing is known.
    resolution_ns
        Time between samples, the longest of these quantities; 0 if nothing is known.
    source
        Tools that sampled them.
    """

    values: dict[str, Array]
    resolution_ns: int
    source: str


def quantities(*, edge: bool = False) -> tuple[Quantity, ...]:
    """Quantities to look for in telemetry; with the edge if it stands for the GPU's temperature."""
    return (*QUANTITIES.values(), *((EDGE,) if edge else ()))


def has_hotspot(places: Sequence[GpuPlace]) -> bool:
    """True if some GPU's temperature is known, and not that of its edge alone."""
    return any(TEMPERATURE.name in place.gpu.sources for place in places)


def window_means(place: GpuPlace, *, edge: bool = False) -> Means:
    """Means of a GPU over the time that is known of each of its windows.

    Parameters
    ----------
    place
        The GPU.
    edge
        Whether the temperature of the edge stands for that of the GPU, for all are to be of one
        kind.
    """
    start = np.array([w.start_ns for w in place.windows], np.int64)
    end = np.array([w.end_ns for w in place.windows], np.int64)
    values: dict[str, Array] = {}
    used: list[Source] = []
    for column, quantity in QUANTITIES.items():
        chosen = EDGE if edge and quantity is TEMPERATURE else quantity
        best = mean(place.gpu, chosen, start, end)
        values[column] = np.full(len(start), np.nan) if best is None else best.values
        used += [] if best is None else [best.source]
    coarsest = max((source.resolution_ns for source in used), default=0)
    return Means(values, coarsest, ", ".join(dict.fromkeys(source.tool for source in used)))


class Mean(NamedTuple):
    """Means of one quantity of a GPU in some windows.

    Parameters
    ----------
    source
        The source of the values.
    values
        A mean for each window; NaN where nothing is known.
    known_ns
        Time in each window in which it is known.
    """

    source: Source
    values: Array
    known_ns: Array


def mean(gpu: Gpu, quantity: Quantity, start: Array, end: Array) -> Mean | None:
    """Means of a quantity by the finest source that covers nearly as much time as any.

    Parameters
    ----------
    gpu
        The GPU.
    quantity
        The quantity.
    start, end
        The windows, nanoseconds.

    Returns
    -------
    Mean or None
        None if no source covers any of the windows.
    """
    ways = [
        Mean(source, *_of_source(source, start, end, is_share=quantity is THROTTLE))
        for source in gpu.sources.get(quantity.name, ())
    ]
    known = [way for way in ways if np.isfinite(way.values).any()]
    longest_ns = max((int(way.known_ns.sum()) for way in known), default=0)
    return next((way for way in known if int(way.known_ns.sum()) >= _NEARLY_ALL * longest_ns), None)


def _of_source(source: Source, start: Array, end: Array, *, is_share: bool) -> tuple[Array, Array]:
    """Means by one tool, and how long each is known; of dies on average."""
    between = not source.pattern.is_instantaneous or is_share  # of intervals, not of instants
    parts = [_means_in(samples, start, end, is_between=between) for _, samples in source.samples]
    means = np.stack([mean for mean, _ in parts])
    known = np.maximum.reduce([time for _, time in parts])
    count = np.isfinite(means).sum(axis=0)
    return np.nansum(means, axis=0) / np.where(count, count, np.nan), known


def _means_in(
    samples: Samples, start: Array, end: Array, *, is_between: bool
) -> tuple[Array, Array]:
    """Means over windows; where nothing is known between samples, of these themselves."""
    mean, known = lines.from_samples([samples]).means(start, end)
    if samples.is_logged or is_between:
        return mean, known
    first = np.searchsorted(samples.ts, start, "left")
    last = np.searchsorted(samples.ts, end, "right")
    upto = np.append([0.0], np.cumsum(samples.value))
    alone = (known == 0) & (last > first)
    mean[alone] = ((upto[last] - upto[first]) / np.maximum(last - first, 1))[alone]
    return mean, known
