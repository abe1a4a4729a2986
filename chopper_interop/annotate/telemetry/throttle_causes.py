"""Causes that hold a clock down: the series that report them, how precisely, and their shares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chopper_interop.annotate.telemetry import counter_rates
from chopper_interop.annotate.telemetry.quantity_series import (
    COUNTED_CAUSES,
    THROTTLE,
    SeriesPattern,
)
from chopper_interop.annotate.telemetry.samples import Samples

ANY = "any"
POWER, THERMAL, HARDWARE, SETTING, IDLE = "power", "thermal", "hardware", "setting", "idle"
HOLDING = frozenset({POWER, THERMAL, HARDWARE})
"""Classes of causes that hold a clock down; the others are settings, and a GPU without work."""

RESIDENCY, TIME, ACTIVITY, STATUS, REASONS = "residency", "time", "activity", "status", "reasons"
METHODS = (RESIDENCY, TIME, ACTIVITY, STATUS, REASONS)
"""Methods, the most precise first: firmware intervals counted between samples; time counted by the
driver; the tool's own measurement at a sample; state at the time of a sample, by cause or in a
mask."""

_CLASSES: tuple[tuple[str, str], ...] = (
    (r"low utilization|GPU idle", IDLE),
    (r"applications clocks.*|display clock.*|SW thermal limit", SETTING),
    (r".*(?:thermal|heat).*|PROCHOT", THERMAL),
    (r"PPT|.*power.*|board limit", POWER),
)
"""Cause → class, the first that matches; other causes are of the hardware."""

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
_UNSPECIFIED = "unspecified"
"""Cause where a tool reports only that the clock is held down."""

_PATTERNS = (
    *zip(THROTTLE.patterns, (RESIDENCY, TIME, TIME, ACTIVITY, STATUS), strict=True),
    (SeriesPattern(r"throttle reasons active(?P<cause>)", {"": 1.0}), REASONS),
)


@dataclass(frozen=True)
class Share:
    """Share of time in which one cause held, from 0 to 1.

    Parameters
    ----------
    cause
        Name of the cause.
    method
        One of `METHODS`.
    samples
        Shares, each until the next sample.
    impossible
        Number of impossible samples: shares beyond 1, counters that fell or ran faster than time.
    """

    cause: str
    method: str
    samples: Samples
    impossible: int = 0


def is_cause(name: str, unit: str) -> bool:
    """True if a series reports a cause."""
    return _match_series(name, unit) is not None


def class_of(cause: str) -> str:
    """Class of a cause: one of power, thermal, hardware, setting and idle."""
    classes = (class_ for pattern, class_ in _CLASSES if re.fullmatch(pattern, cause))
    return next(classes, HARDWARE)


def shares(name: str, unit: str, samples: Samples) -> Iterator[Share]:
    """Yield the share of the cause that a series reports; of a mask, of each cause it ever had."""
    matched = _match_series(name, unit)
    if matched is None:
        return
    pattern, method, cause = matched
    if method == REASONS:
        yield from _shares_of_mask(samples)
        return
    if pattern.is_counter:
        yield _share_of_counter(COUNTED_CAUSES.get(cause, cause), pattern, unit, samples)
        return
    value = samples.value * pattern.units[unit]
    value = np.sign(value) if pattern.is_status else value
    possible = (value >= 0) & (value <= 1)
    steps = samples.as_steps(np.where(possible, value, 0.0), samples.unknown | ~possible)
    yield Share(cause or _UNSPECIFIED, method, steps, int(np.count_nonzero(~possible)))


def _match_series(name: str, unit: str) -> tuple[SeriesPattern, str, str] | None:
    """Pattern of a series, its method, and its cause; None if it reports none."""
    for pattern, method in _PATTERNS:
        match = pattern.match(name)
        if match and unit in pattern.units:
            return pattern, method, match["cause"] or ""
    return None


def _shares_of_mask(samples: Samples) -> Iterator[Share]:
    mask = samples.value.astype(np.int64)
    known = 0
    for bit, cause in _BITS:
        known |= bit
        if (mask & bit).any():
            is_set = ((mask & bit) > 0).astype(np.float64)
            yield Share(cause, REASONS, samples.as_steps(is_set, samples.unknown))
    other = (mask & ~known) > 0
    if other.any() or not (mask & known).any():
        steps = samples.as_steps(other.astype(np.float64), samples.unknown)
        yield Share(_UNSPECIFIED, REASONS, steps)


def _share_of_counter(cause: str, pattern: SeriesPattern, unit: str, samples: Samples) -> Share:
    """Divide the rise of a counter of time by the time that it took; one that fell was reset."""
    slack = samples.resolution_ns
    counted = counter_rates.counter_rates(samples, 1.0, factor=pattern.units[unit], slack_ns=slack)
    share = np.minimum(counted.rates.value, 1.0)
    steps = counted.rates.as_steps(share, counted.rates.unknown)
    return Share(cause, TIME, steps, len(counted.impossible))


def precision_key(method: str, parts: Sequence[Samples]) -> tuple[int, int]:
    """Sort key of a tool's series of a cause, the most precise first: method, then resolution."""
    return METHODS.index(method), max(s.resolution_ns for s in parts)


def throttle_source(shares_by_tool: Iterable[tuple[str, Share]]) -> tuple[str, Samples] | None:
    """Share of time in which a GPU's clock was held down, by the most precise series per cause.

    Parameters
    ----------
    shares_by_tool
        Tools, and shares that they report of the GPU.

    Returns
    -------
    tuple or None
        Tools, and shares until the next sample; None if nothing is known.
    """
    by_cause: dict[str, dict[tuple[str, str], list[Samples]]] = {}
    for tool, share in shares_by_tool:
        if class_of(share.cause) in HOLDING:
            of_cause = by_cause.setdefault(share.cause, {})
            of_cause.setdefault((share.method, tool), []).append(share.samples)
    if not by_cause:
        return None
    best = {
        cause: min(series.items(), key=lambda item: precision_key(item[0][0], item[1]))
        for cause, series in by_cause.items()
    }
    combined = combine_causes({cause: parts for cause, (_, parts) in best.items()})
    tools = ", ".join(sorted({tool for (_, tool), _ in best.values()}))
    return None if combined.unknown.all() else (tools, combined)


def combine_causes(by_cause: dict[str, list[Samples]]) -> Samples:
    """Take at every time the share of the cause with the highest: a lower bound of their union.

    Parameters
    ----------
    by_cause
        Shares of one GPU by cause; several of one cause are its dies, and are averaged.
    """
    all_samples = [s for parts in by_cause.values() for s in parts]
    ts = all_samples[0].ts
    if any(not np.array_equal(s.ts, ts) for s in all_samples):
        ts = np.sort(np.concatenate([s.ts for s in all_samples]))
        ts = ts[np.append(ts[1:] != ts[:-1], [True])]
    highest, indexes = np.full(len(ts), np.nan), np.arange(len(ts))
    for parts in by_cause.values():
        total, count = np.zeros(len(ts)), np.zeros(len(ts))
        for samples in parts:
            index = indexes
            if len(samples.ts) < len(ts):
                index = np.searchsorted(samples.ts, ts, "right") - 1
            known = (index >= 0) & ~samples.unknown[index]
            total += np.where(known, samples.value[index], 0.0)
            count += known
        with np.errstate(invalid="ignore"):
            highest = np.fmax(highest, total / np.where(count, count, np.nan))
    unknown = np.isnan(highest)
    unknown[-1] = True
    return Samples(
        ts,
        np.nan_to_num(highest),
        unknown,
        False,
        max(s.uncertainty_ns for s in all_samples),
        max(s.period_ns for s in all_samples),
    )
