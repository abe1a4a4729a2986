"""What power a GPU may draw: by what is set, or by what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.fleet import places as gpu_places
from chopper_interop.gpus import own as own_gpus
from chopper_interop.gpus import rated
from chopper_interop.schemas.meta import Device
from chopper_interop.telemetry import lines
from chopper_interop.telemetry.names import GFXCLK, POWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from chopper_interop.fleet.places import Place
    from chopper_interop.telemetry.gpus import Gpu
    from chopper_interop.telemetry.lines import Lines
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

OPTION, SERIES, FACT = "limit_w", "power limit by telemetry", "power cap as the source states it"
BOARD = "board power ({})"
_SERIES = ("power limit enforced", "power limit")
_WATTS = {"W": 1.0, "mW": 1e-3}
_FACT = "power_cap_w"


@dataclass(frozen=True)
class Limit:
    """A limit of power over time.

    Parameters
    ----------
    lines
        Watts.
    by
        What tells it.
    """

    lines: Lines
    by: str


def check(places: Sequence[Place], gpus: str) -> None:
    """Raise `UsageError` if the user's file is of none of some GPUs."""
    rows = own_gpus.read(gpus)
    if rows and places:
        rated.check([p.product or Device("", -1) for p in places], rows, gpus)


def of(
    trace: Trace, place: Place, power: Lines, limit_w: float = 0.0, gpus: str = ""
) -> Limit | None:
    """The limit of a GPU for the time in which its power is known; None if nothing tells one.

    The first of these that is known: the option, what the user's file states, the limit that
    telemetry tells (as it changes over time), the cap that a source states, and the board power of
    the product.

    Parameters
    ----------
    trace
        The trace.
    place
        The GPU.
    power
        Its power, watts.
    limit_w
        What the user says; 0 if nothing.
    gpus
        The user's file of GPUs (`gpus.own`); empty if there is none.
    """
    if not len(power):
        return None
    start, end = int(power.start.min()), int(power.end.max())  # windows may come in any order
    if limit_w > 0:
        return Limit(lines.constant(limit_w, start, end), OPTION)
    own, by = _own(place, gpus)
    if own > 0:
        return Limit(lines.constant(own, start, end), by)
    told = _told(trace, place)
    if told is not None:
        return Limit(lines.held(*told, start, end), SERIES)
    for watts, by in (_stated(trace, place), _board(place)):
        if watts > 0:
            return Limit(lines.constant(watts, start, end), by)
    return None


def known_w(trace: Trace, gpus: Sequence[Gpu]) -> list[float]:
    """The limit of each GPU in the mean, watts, if telemetry or a source tells it, else 0.

    Parameters
    ----------
    trace
        The trace.
    gpus
        GPUs, of `telemetry.gpus.gpus` for power and clock.
    """
    places = {(p.gpu.rank, p.gpu.device): p for p in gpu_places.of(trace, (POWER, GFXCLK))}
    found = []
    for gpu in gpus:
        place = places.get((gpu.rank, gpu.device))
        told = None if place is None else _told(trace, place)
        if told is not None:
            start = trace.array("ts")[gpu.rows]
            end = start + trace.array("dur")[gpu.rows]
            first, last = np.array([start.min()]), np.array([end.max()])
            mean, _ = lines.held(*told, int(first[0]), int(last[0])).means(first, last)
            found.append(float(mean[0]))
        else:
            found.append(0.0 if place is None else _stated(trace, place)[0])
    return [watts if np.isfinite(watts) and watts > 0 else 0.0 for watts in found]


def _told(trace: Trace, place: Place) -> tuple[Array, Array] | None:
    """Samples of the GPU's limit; None if there are none, or those of several GPUs."""
    mine = [
        (row, series)
        for row, series in enumerate(trace.series.to_pylist())
        if (series["rank"], series["device"]) == (place.gpu.rank, place.gpu.device)
        and series["name"] in _SERIES
        and series["unit"] in _WATTS
    ]
    owner = trace.array("series", "samples")
    for name in _SERIES:
        found = []
        for row, series in mine:
            if series["name"] != name:
                continue
            a, b = np.searchsorted(owner, [row, row + 1])
            value = trace.array("value", "samples")[a:b] * _WATTS[series["unit"]]
            sound = np.isfinite(value) & (value > 0)
            found.append((trace.array("ts", "samples")[a:b][sound], value[sound]))
        found = [one for one in found if one[0].size]
        same = len({tuple(value.tolist()) for _, value in found}) == 1
        if found and (same or len(found) == 1):
            return found[0]
    return None


def _stated(trace: Trace, place: Place) -> tuple[float, str]:
    facts = trace.meta.facts
    text = facts.get(f"{_FACT}[{place.index}]", facts.get(_FACT, ""))
    try:
        watts = float(text)
    except ValueError:
        return 0.0, FACT
    return (watts if np.isfinite(watts) else 0.0), FACT


def _own(place: Place, gpus: str) -> tuple[float, str]:
    """What the user's file states of it."""
    rows = own_gpus.read(gpus)
    own = rated.rate(place.product or Device("", -1), rows, gpus).own if rows else None
    return (float(own.power_w or 0) if own else 0.0), BOARD.format(gpus)


def _board(place: Place) -> tuple[float, str]:
    if place.product is None:
        return 0.0, ""
    board = rated.rate(place.product)
    return board.power_w or 0.0, BOARD.format(board.told.get("power_w", ""))
