"""Means of what telemetry tells of GPUs over their windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.telemetry import lines
from chopper_interop.telemetry.names import (
    EDGE,
    GFXCLK,
    POWER,
    TEMPERATURE,
    THROTTLE,
    Quantity,
    Told,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.fleet.places import Place
    from chopper_interop.telemetry.gpus import Gpu, Source
    from chopper_interop.telemetry.samples import Samples

_CELSIUS = {"°C": 1.0, "C": 1.0, "deg C": 1.0}
MEMORY = Quantity(
    "memory_temperature",
    "c",
    -273.15,
    1e4,
    (Told(r"temperature memory", _CELSIUS), Told(r"temperature HBM stack (?P<die>\d+)", _CELSIUS)),
    is_straight=True,
)
"""Of the memory; where only stacks are told, their mean."""
QUANTITIES = {
    "gfxclk_mhz": GFXCLK, "temperature_c": TEMPERATURE, "memory_temperature_c": MEMORY,
    "power_w": POWER, "throttle_share": THROTTLE,
}  # fmt: skip
"""What is told of each GPU, by the name of the column."""
_MOST = 0.9
"""Of several tools the finest holds that tells so much of the time that the best of them tells."""


class Means(NamedTuple):
    """Of one GPU in its windows.

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


def asked(*, edge: bool = False) -> tuple[Quantity, ...]:
    """What to look for in telemetry; the edge if its temperature stands for the GPU's."""
    return (*QUANTITIES.values(), *((EDGE,) if edge else ()))


def has_hotspot(places: Sequence[Place]) -> bool:
    """Whether the temperature of some GPU is told, and not that of its edge alone."""
    return any(TEMPERATURE.name in place.gpu.told for place in places)


def of(place: Place, *, edge: bool = False) -> Means:
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
        told = EDGE if edge and quantity is TEMPERATURE else quantity
        best = mean(place.gpu, told, start, end)
        values[column] = np.full(len(start), np.nan) if best is None else best.values
        used += [] if best is None else [best.source]
    coarsest = max((source.resolution_ns for source in used), default=0)
    return Means(values, coarsest, ", ".join(dict.fromkeys(source.tool for source in used)))


class Mean(NamedTuple):
    """Of one quantity of a GPU in some windows.

    Parameters
    ----------
    source
        What tells it.
    values
        A mean for each window; NaN where nothing is known.
    known_ns
        How long it is known in each.
    """

    source: Source
    values: Array
    known_ns: Array


def mean(gpu: Gpu, quantity: Quantity, start: Array, end: Array) -> Mean | None:
    """Means of a quantity by the finest source that tells nearly all that the best of them tells.

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
        None if no source tells it in any window.
    """
    ways = [
        Mean(source, *_of_source(source, start, end, is_share=quantity is THROTTLE))
        for source in gpu.told.get(quantity.name, ())
    ]
    told = [way for way in ways if np.isfinite(way.values).any()]
    most = max((int(way.known_ns.sum()) for way in told), default=0)
    return next((way for way in told if int(way.known_ns.sum()) >= _MOST * most), None)


def _of_source(source: Source, start: Array, end: Array, *, is_share: bool) -> tuple[Array, Array]:
    """Means by one tool, and how long each is known; of dies on average."""
    between = not source.told.is_shown or is_share  # of times, not of moments
    parts = [_over(samples, start, end, is_between=between) for _, samples in source.samples]
    means = np.stack([mean for mean, _ in parts])
    known = np.maximum.reduce([time for _, time in parts])
    count = np.isfinite(means).sum(axis=0)
    return np.nansum(means, axis=0) / np.where(count, count, np.nan), known


def _over(samples: Samples, start: Array, end: Array, *, is_between: bool) -> tuple[Array, Array]:
    """Means over windows; where nothing is known between samples, of these themselves."""
    mean, known = lines.of_samples([samples]).means(start, end)
    if samples.is_logged or is_between:
        return mean, known
    first = np.searchsorted(samples.ts, start, "left")
    last = np.searchsorted(samples.ts, end, "right")
    upto = np.append([0.0], np.cumsum(samples.value))
    alone = (known == 0) & (last > first)
    mean[alone] = ((upto[last] - upto[first]) / np.maximum(last - first, 1))[alone]
    return mean, known
