"""What power a GPU may draw: by what is set, or by what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.fleet import places as gpu_places
from chopper_interop.gpus import own as own_gpus
from chopper_interop.gpus import rated
from chopper_interop.schemas.meta import Device
from chopper_interop.telemetry import lines
from chopper_interop.telemetry.names import GFXCLK, POWER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.fleet.places import Place
    from chopper_interop.schemas.gpus import Gpu as GpuRow
    from chopper_interop.telemetry.gpus import Gpu
    from chopper_interop.telemetry.lines import Lines
    from chopper_interop.trace import Trace

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
    trace: Trace,
    places: Sequence[Place],
    powers: Sequence[Lines],
    limit_w: float = 0.0,
    gpus: str = "",
) -> list[Limit | None]:
    """The limit of each GPU for the time in which its power is known; None if nothing tells one.

    The first of these that is known: the option, what the user's file states, the limit that
    telemetry tells (as it changes over time), the cap that a source states, and the board power of
    the product.

    Parameters
    ----------
    trace
        The trace.
    places
        The GPUs.
    powers
        Of each its power, watts, where it is known at all.
    limit_w
        What the user says; 0 if nothing.
    gpus
        The user's file of GPUs (`gpus.own`); empty if there is none.
    """
    told, rows = _told(trace), own_gpus.read(gpus)
    found: list[Limit | None] = []
    for place, power in zip(places, powers, strict=True):
        start, end = int(power.start.min()), int(power.end.max())  # windows may come in any order
        by_user = ((limit_w, OPTION), _own(place, rows, gpus))
        by_others = (_stated(trace, place), _board(place))
        samples = told.get((place.gpu.rank, place.gpu.device))
        limit = _constant(by_user, start, end)
        if limit is None and samples is not None:
            limit = Limit(lines.held(*samples, start, end), SERIES)
        found.append(limit or _constant(by_others, start, end))
    return found


def _constant(told: Iterable[tuple[float, str]], start: int, end: int) -> Limit | None:
    """The first limit that is known, watts and by what, all the time."""
    known = ((watts, by) for watts, by in told if watts > 0)
    return next((Limit(lines.constant(watts, start, end), by) for watts, by in known), None)


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
    every = _told(trace)
    found = []
    for gpu in gpus:
        place = places.get((gpu.rank, gpu.device))
        told = None if place is None else every.get((gpu.rank, gpu.device))
        if told is not None:
            start = trace.array("ts")[gpu.rows]
            end = start + trace.array("dur")[gpu.rows]
            first, last = np.array([start.min()]), np.array([end.max()])
            mean, _ = lines.held(*told, int(first[0]), int(last[0])).means(first, last)
            found.append(float(mean[0]))
        else:
            found.append(0.0 if place is None else _stated(trace, place)[0])
    return [watts if np.isfinite(watts) and watts > 0 else 0.0 for watts in found]


def _told(trace: Trace) -> dict[tuple[int, int], tuple[Array, Array]]:
    """Samples of limits by rank and device of their series; not those of several GPUs together."""
    owner = trace.array("series", "samples")
    bounds = np.searchsorted(owner, np.arange(trace.series.num_rows + 1, dtype=owner.dtype))
    by_name: dict[str, dict[tuple[int, int], list[tuple[Array, Array]]]] = {n: {} for n in _SERIES}
    for row, series in enumerate(trace.series.to_pylist()):
        if series["name"] not in _SERIES or series["unit"] not in _WATTS:
            continue
        mine = slice(bounds[row], bounds[row + 1])
        value = trace.array("value", "samples")[mine] * _WATTS[series["unit"]]
        sound = np.isfinite(value) & (value > 0)
        if sound.any():
            places = by_name[series["name"]]
            samples = (trace.array("ts", "samples")[mine][sound], value[sound])
            places.setdefault((series["rank"], series["device"]), []).append(samples)
    found: dict[tuple[int, int], tuple[Array, Array]] = {}
    for name in reversed(_SERIES):
        found |= {place: one[0] for place, one in by_name[name].items() if _are_one(one)}
    return found


def _are_one(several: Sequence[tuple[Array, Array]]) -> bool:
    """Whether series tell the same limits: else they are of several GPUs under one number."""
    return all(np.array_equal(value, several[0][1]) for _, value in several)


def _stated(trace: Trace, place: Place) -> tuple[float, str]:
    facts = trace.meta.facts
    text = facts.get(f"{_FACT}[{place.index}]", facts.get(_FACT, ""))
    try:
        watts = float(text)
    except ValueError:
        return 0.0, FACT
    return (watts if np.isfinite(watts) else 0.0), FACT


def _own(place: Place, rows: tuple[GpuRow, ...], gpus: str) -> tuple[float, str]:
    """What the user's file states of it."""
    own = rated.rate(place.product or Device("", -1), rows, gpus).own if rows else None
    return (float(own.power_w or 0) if own else 0.0), BOARD.format(gpus)


def _board(place: Place) -> tuple[float, str]:
    if place.product is None:
        return 0.0, ""
    board = rated.rate(place.product)
    return board.power_w or 0.0, BOARD.format(board.told.get("power_w", ""))
