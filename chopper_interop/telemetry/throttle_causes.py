"""Which series tell why a clock is held down, and how well: one table over all tools."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.telemetry import counters
from chopper_interop.telemetry.names import COUNTED_CAUSES, THROTTLE, Told
from chopper_interop.telemetry.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


ANY = "any"
POWER, THERMAL, HARDWARE, SETTING, IDLE = "power", "thermal", "hardware", "setting", "idle"
HOLDING = frozenset({POWER, THERMAL, HARDWARE})
"""Classes of causes that hold a clock down: the others are what was set, and a GPU without work."""

RESIDENCY, TIME, ACTIVITY, STATUS, REASONS = "residency", "time", "activity", "status", "reasons"
METHODS = (RESIDENCY, TIME, ACTIVITY, STATUS, REASONS)
"""What tells it, the best first: firmware intervals counted between samples; time counted by the
driver; the tool's own measurement at a sample; whether it held at the moment of a sample, by cause
or in a mask."""

_CLASSES: tuple[tuple[str, str], ...] = (
    (r"low utilization|GPU idle", IDLE),
    (r"applications clocks.*|display clock.*|SW thermal limit", SETTING),
    (r".*(?:thermal|heat).*|PROCHOT", THERMAL),
    (r"PPT|.*power.*|board limit", POWER),
)
"""Cause → class, the first that matches; others are of the hardware."""

_BITS = (
    (0x1, "GPU idle"),
    (0x2, "applications clocks setting"),
    (0x4, "SW power cap"),
    (0x8, "HW slowdown"),
    (0x10, "sync boost"),
    (0x20, "SW thermal slowdown"),
    (0x40, "HW thermal slowdown"),
    (0x80, "HW power brake slowdown"),
    (0x100, "display clock setting"),
)
"""Bits of NVML's mask of reasons."""
UNTOLD = "not told"
"""Cause where a tool says only that the clock is held down."""

_TOLD = (
    *zip(THROTTLE.told, (RESIDENCY, TIME, TIME, ACTIVITY, STATUS), strict=True),
    (Told(r"throttle reasons active(?P<cause>)", {"": 1.0}), REASONS),
)


@dataclass(frozen=True)
class Share:
    """The share of time in which one cause held, from 0 to 1.

    Parameters
    ----------
    cause
        Name of the cause.
    method
        One of `METHODS`.
    samples
        Shares, each until the next sample.
    impossible
        Samples that say what cannot be: counters that fell or ran faster than time.
    """

    cause: str
    method: str
    samples: Samples
    impossible: int = 0


def is_told(name: str, unit: str) -> bool:
    """Whether a series tells a cause."""
    return _told(name, unit) is not None


def class_of(cause: str) -> str:
    """Class of a cause: one of power, thermal, hardware, setting and idle."""
    found = (kind for pattern, kind in _CLASSES if re.fullmatch(pattern, cause))
    return next(found, HARDWARE)


def shares(name: str, unit: str, samples: Samples) -> Iterator[Share]:
    """What a series tells: one cause, or of a mask each one that it has ever held."""
    found = _told(name, unit)
    if found is None:
        return
    told, method, cause = found
    if method == REASONS:
        yield from _of_mask(samples)
        return
    if told.is_counter:
        yield _counted(COUNTED_CAUSES.get(cause, cause), told, unit, samples)
        return
    value = samples.value * told.units[unit]
    value = np.sign(value) if told.is_status else value
    possible = (value >= 0) & (value <= 1)
    held = samples.held(np.where(possible, value, 0.0), samples.unknown | ~possible)
    yield Share(cause or UNTOLD, method, held, int(np.count_nonzero(~possible)))


def _told(name: str, unit: str) -> tuple[Told, str, str] | None:
    """What a series is called, and by which method it tells which cause."""
    for told, method in _TOLD:
        found = told.match(name)
        if found and unit in told.units:
            return told, method, found["cause"] or ""
    return None


def _of_mask(samples: Samples) -> Iterator[Share]:
    mask = samples.value.astype(np.int64)
    known = 0
    for bit, cause in _BITS:
        known |= bit
        if (mask & bit).any():
            held = ((mask & bit) > 0).astype(np.float64)
            yield Share(cause, REASONS, samples.held(held, samples.unknown))
    other = (mask & ~known) > 0
    if other.any() or not (mask & known).any():
        yield Share(UNTOLD, REASONS, samples.held(other.astype(np.float64), samples.unknown))


def _counted(cause: str, told: Told, unit: str, samples: Samples) -> Share:
    """Rise of a counter of time by the time that it took; one that fell was set back."""
    slack = samples.resolution_ns
    found = counters.rises(samples, 1.0, factor=told.units[unit], slack_ns=slack)
    held = found.rates.held(np.minimum(found.rates.value, 1.0), found.rates.unknown)
    return Share(cause, TIME, held, len(found.impossible))


def rank(method: str, parts: Sequence[Samples]) -> tuple[int, int]:
    """How well a tool's series tell a cause, the best first: by method, then by their resolution."""
    return METHODS.index(method), max(s.resolution_ns for s in parts)


def of_gpu(told: Iterable[tuple[str, Share]]) -> tuple[str, Samples] | None:
    """The share of time in which the clock of a GPU was held down, by whatever tells each cause best.

    Parameters
    ----------
    told
        Tools, and what they tell of it.

    Returns
    -------
    tuple or None
        Tools, and shares until the next sample; None if nothing is known.
    """
    by_cause: dict[str, dict[tuple[str, str], list[Samples]]] = {}
    for tool, share in told:
        if class_of(share.cause) in HOLDING:
            of_cause = by_cause.setdefault(share.cause, {})
            of_cause.setdefault((share.method, tool), []).append(share.samples)
    if not by_cause:
        return None
    best = {
        cause: min(ways.items(), key=lambda way: rank(way[0][0], way[1]))
        for cause, ways in by_cause.items()
    }
    found = together({cause: parts for cause, (_, parts) in best.items()})
    tools = ", ".join(sorted({tool for (_, tool), _ in best.values()}))
    return None if found.unknown.all() else (tools, found)


def together(by_cause: dict[str, list[Samples]]) -> Samples:
    """At every moment the share of the cause that has most, which is at least known to be held.

    Parameters
    ----------
    by_cause
        Shares of one GPU by cause; several of one cause are its dies, and count on average.
    """
    every = [s for parts in by_cause.values() for s in parts]
    ts = every[0].ts
    if any(not np.array_equal(s.ts, ts) for s in every):
        ts = np.sort(np.concatenate([s.ts for s in every]))
        ts = ts[np.append(ts[1:] != ts[:-1], [True])]
    most, here = np.full(len(ts), np.nan), np.arange(len(ts))
    for parts in by_cause.values():
        total, count = np.zeros(len(ts)), np.zeros(len(ts))
        for samples in parts:
            at = np.searchsorted(samples.ts, ts, "right") - 1 if len(samples.ts) < len(ts) else here
            known = (at >= 0) & ~samples.unknown[at]
            total += np.where(known, samples.value[at], 0.0)
            count += known
        with np.errstate(invalid="ignore"):
            most = np.fmax(most, total / np.where(count, count, np.nan))
    unknown = np.isnan(most)
    unknown[-1] = True
    return Samples(
        ts,
        np.nan_to_num(most),
        unknown,
        False,
        max(s.uncertainty_ns for s in every),
        max(s.period_ns for s in every),
    )
