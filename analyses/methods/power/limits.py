"""Power limits of GPUs: by an option, telemetry, a recorded cap, or the product's board power."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.fleet import places as gpu_places
from chopper_interop.annotate.telemetry import lines
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK, POWER
from chopper_interop.arrays import Array
from chopper_interop.gpus import ratings
from chopper_interop.gpus import user_gpus as own_gpus
from chopper_interop.schemas.meta import Device
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.fleet.places import GpuPlace
    from chopper_interop.annotate.telemetry.gpus import Gpu
    from chopper_interop.annotate.telemetry.lines import PiecewiseLinear
    from chopper_interop.schemas.gpus import Gpu as GpuRow

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
        Limit in watts over time.
    by
        Source of the limit.
    """

    lines: PiecewiseLinear
    by: str


def check(places: Sequence[GpuPlace], gpus: str) -> None:
    """Raise `UsageError` if the user's file describes none of these GPUs."""
    rows = own_gpus.read_gpus(gpus)
    if rows and places:
        ratings.refuse_unused_rows([p.product or Device("", -1) for p in places], rows, gpus)


def power_limits(
    trace: Trace,
    places: Sequence[GpuPlace],
    powers: Sequence[PiecewiseLinear],
    limit_w: float = 0.0,
    gpus: str = "",
) -> list[Limit | None]:
    """Return the limit of each GPU for the time of its known power; None where no source has one.

    The first known of: the option, the user's file, the limit in telemetry (as it changes over
    time), the cap recorded by a source, and the board power of the product.

    Parameters
    ----------
    trace
        Trace of the job.
    places
        GPUs.
    powers
        Known power of each GPU, watts.
    limit_w
        Limit that the user sets; 0 if none.
    gpus
        Path of the user's file of GPUs (`gpus.own`); empty if there is none.
    """
    by_telemetry, rows = _limit_samples(trace), own_gpus.read_gpus(gpus)
    limits: list[Limit | None] = []
    for place, power in zip(places, powers, strict=True):
        start, end = int(power.start.min()), int(power.end.max())  # windows may come in any order
        by_user = ((limit_w, OPTION), _by_file(place, rows, gpus))
        by_others = (_recorded_cap(trace, place), _board_power(place))
        samples = by_telemetry.get((place.gpu.rank, place.gpu.device))
        limit = _constant(by_user, start, end)
        if limit is None and samples is not None:
            limit = Limit(lines.steps(*samples, start, end), SERIES)
        limits.append(limit or _constant(by_others, start, end))
    return limits


def _constant(candidates: Iterable[tuple[float, str]], start: int, end: int) -> Limit | None:
    """First known limit out of (watts, source), constant over the time."""
    known = ((watts, by) for watts, by in candidates if watts > 0)
    return next((Limit(lines.constant(watts, start, end), by) for watts, by in known), None)


def known_w(trace: Trace, gpus: Sequence[Gpu]) -> list[float]:
    """Mean limit of each GPU, watts, by telemetry or recorded by a source; 0 where neither has one.

    Parameters
    ----------
    trace
        Trace of the job.
    gpus
        GPUs of `telemetry.gpus.gpus` for power and clock.
    """
    places = {(p.gpu.rank, p.gpu.device): p for p in gpu_places.find_places(trace, (POWER, GFXCLK))}
    by_telemetry = _limit_samples(trace)
    limits = []
    for gpu in gpus:
        place = places.get((gpu.rank, gpu.device))
        samples = None if place is None else by_telemetry.get((gpu.rank, gpu.device))
        if samples is not None:
            start = trace.array("ts")[gpu.rows]
            end = start + trace.array("dur")[gpu.rows]
            first, last = np.array([start.min()]), np.array([end.max()])
            mean, _ = lines.steps(*samples, int(first[0]), int(last[0])).means(first, last)
            limits.append(float(mean[0]))
        else:
            limits.append(0.0 if place is None else _recorded_cap(trace, place)[0])
    return [watts if np.isfinite(watts) and watts > 0 else 0.0 for watts in limits]


def is_any_known(trace: Trace) -> bool:
    """True if a source states a limit of any GPU."""
    stated = any(fact.partition("[")[0] == _FACT for fact in trace.meta.facts)
    products = (ratings.rate_device(device).power_w for device in trace.meta.devices)
    return stated or bool(_limit_samples(trace)) or any(products)


def _limit_samples(trace: Trace) -> dict[tuple[int, int], tuple[Array, Array]]:
    """Samples of limits by (rank, device) of their series; without those of several GPUs together."""
    bounds = trace.sample_bounds
    by_name: dict[str, dict[tuple[int, int], list[tuple[Array, Array]]]] = {n: {} for n in _SERIES}
    for row, series in enumerate(trace.series.to_pylist()):
        if series["name"] not in _SERIES or series["unit"] not in _WATTS:
            continue
        rows = slice(bounds[row], bounds[row + 1])
        value = trace.array("value", "samples")[rows] * _WATTS[series["unit"]]
        valid = np.isfinite(value) & (value > 0)
        if valid.any():
            by_gpu = by_name[series["name"]]
            samples = (trace.array("ts", "samples")[rows][valid], value[valid])
            by_gpu.setdefault((series["rank"], series["device"]), []).append(samples)
    limits: dict[tuple[int, int], tuple[Array, Array]] = {}
    for name in reversed(_SERIES):  # the first name wins
        limits |= {key: several[0] for key, several in by_name[name].items() if _are_equal(several)}
    return limits


def _are_equal(several: Sequence[tuple[Array, Array]]) -> bool:
    """True if series hold the same limits: others are of several GPUs under one number."""
    return all(np.array_equal(value, several[0][1]) for _, value in several)


def _recorded_cap(trace: Trace, place: GpuPlace) -> tuple[float, str]:
    """Cap of a GPU that a source recorded, watts, and its name; 0 if none."""
    facts = trace.meta.facts
    text = facts.get(f"{_FACT}[{place.index}]", facts.get(_FACT, ""))
    try:
        watts = float(text)
    except ValueError:
        return 0.0, FACT
    return (watts if np.isfinite(watts) else 0.0), FACT


def _by_file(place: GpuPlace, rows: tuple[GpuRow, ...], gpus: str) -> tuple[float, str]:
    """Board power of a GPU in the user's file, watts, and its name; 0 if none."""
    own = (
        ratings.rate_device(place.product or Device("", -1), rows, gpus).user_row if rows else None
    )
    return (float(own.power_w or 0) if own else 0.0), BOARD.format(gpus)


def _board_power(place: GpuPlace) -> tuple[float, str]:
    """Board power of a GPU's product, watts, and its name; 0 if unknown."""
    if place.product is None:
        return 0.0, ""
    board = ratings.rate_device(place.product)
    return board.power_w or 0.0, BOARD.format(board.sources.get("power_w", ""))
