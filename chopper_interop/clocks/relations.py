"""Relations of clocks to the trace's: names of the methods, and `ClockFit` as text and JSON.

A `ClockFit` records how the times of a rank or a source became those of the trace. Every module
that converts times makes one; all of them are in ``meta.clocks`` and in every output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from chopper_interop.arrays import Array, arrow
from chopper_interop.clocks import rank_fit
from chopper_interop.schemas.meta import ClockFit, Meta
from chopper_interop.schemas.time_units import NS_PER_UNIT
from chopper_interop.trace import Trace

STATED = "stated"
"""The source states that its times are on the trace's clock."""
COLLECTIVE_ENDS = "collective ends"
"""Synchronising collectives end at one time on all their ranks."""
MATCHED_KERNELS = "matched kernels"
"""Two tools recorded the same kernels."""
CORRELATION_IDS = "correlation ids"
"""Two tools recorded the same kernels under the same correlation ids."""
THREE_CLOCKS = "three clocks"
"""A source read both clocks at one time."""
BUSY_AND_POWER = "busy and power"
"""An estimate: when GPUs are busy they draw power, and tools see them active."""
USER = "user"
"""The user states it."""
WALL_CLOCK_ZONE = "wall clock zone"
"""A wall clock without a zone: the only zone in which it and the trace overlap."""
UNSTATED_BASE = "overlap in time"
"""The trace's files do not state what its times count from: the only base with which they overlap."""
WHOLE_SECONDS = "whole seconds"
"""The source states it, and truncates its times to seconds."""

DIRECT = (USER, BUSY_AND_POWER)
"""Methods that relate a clock to the trace's directly, not to that of its host."""
ASSUMED = (BUSY_AND_POWER, WALL_CLOCK_ZONE, UNSTATED_BASE)
"""Methods whose result no source and no user states."""
WHOLE_SECONDS_NS = 500_000_000
"""Uncertainty of a time that was truncated to a second, placed in the middle of it."""

_RANK = "rank "
_INT64 = 1 << 63


def rank_label(rank: int) -> str:
    """`ClockFit.of` of a fit for a rank."""
    return f"{_RANK}{rank}"


def rank_of(fit: ClockFit) -> int:
    """Rank that a fit is of, -1 if it is of a source."""
    number = fit.of.removeprefix(_RANK)
    return int(number) if number != fit.of and number.isdigit() else -1


def ranks_set_by_user(meta: Meta) -> set[int]:
    """Ranks whose clock the user states; nothing else may move them."""
    return {rank_of(fit) for fit in meta.clocks if fit.method == USER} - {-1}


def shift_trace(trace: Trace, offset_ns: int, clock: str) -> Trace:
    """Return the trace with all times `offset_ns` later, on another clock."""
    return trace.with_meta(origin_ns=trace.meta.origin_ns + offset_ns, clock=clock)


def apply_fit(trace: Trace, fit: ClockFit, clock: str) -> Trace:
    """Return the trace on another clock, by the offset and the drift of a fit."""
    if not fit.drift_ppb:
        return shift_trace(trace, fit.offset_ns, clock)
    ts = trace.array("ts")
    start, end = (_with_drift(trace, t, fit) for t in (ts, ts + trace.array("dur")))
    nodes = arrow.replace_column(arrow.replace_column(trace.nodes, "ts", start), "dur", end - start)
    # order stays: a clock that drifts by parts of a million never runs back
    ts = _with_drift(trace, trace.array("ts", "samples"), fit)
    trace = replace(trace, nodes=nodes, samples=arrow.replace_column(trace.samples, "ts", ts))
    return shift_trace(trace, fit.offset_ns, clock)


def _with_drift(trace: Trace, ts: Array, fit: ClockFit) -> Array:
    """Times since the origin, with what the drift adds to them."""
    drifted: Array = ts + rank_fit.corrections(
        ts, 0, fit.drift_ppb, fit.pivot_ns - trace.meta.origin_ns
    )
    return drifted


def shift_ranks(trace: Trace, by: Mapping[int, int]) -> Trace:
    """Return the trace with some ranks, and their series, later by nanoseconds of `by`."""
    if not any(by.values()):
        return trace
    tables = {}
    for table in ("nodes", "samples"):
        rank = trace.array("rank", "nodes" if table == "nodes" else "series")
        if table == "samples":
            rank = rank[trace.array("series", "samples")]
        ts = trace.array("ts", table).copy()
        for number, offset_ns in by.items():
            ts[rank == number] += offset_ns
        tables[table] = ts
    first = tables["nodes" if trace.nodes.num_rows else "samples"]
    start = int(first.min()) if first.size else 0
    return replace(
        trace,
        nodes=arrow.replace_column(trace.nodes, "ts", tables["nodes"] - start),
        samples=arrow.replace_column(trace.samples, "ts", tables["samples"] - start),
    ).with_meta(origin_ns=trace.meta.origin_ns + start)


def from_json(value: Any) -> tuple[ClockFit, ...]:
    """Read fits from JSON values; what is not a fit is left out."""
    fits = []
    for entry in value if isinstance(value, list) else ():
        try:
            fit = msgspec.convert(entry, ClockFit)
        except msgspec.ValidationError:
            continue
        numbers = (fit.offset_ns, fit.drift_ppb, fit.pivot_ns, fit.uncertainty_ns, fit.pairs)
        if all(-_INT64 <= number < _INT64 for number in numbers):
            fits.append(fit)
    return tuple(fits)


def from_text(text: Any) -> tuple[ClockFit, ...]:
    """Read fits from JSON text; none if it is not JSON."""
    try:
        return from_json(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError):
        return ()


def duration_text(ns: int) -> str:
    """Length of time in the largest unit that it fills, with all its digits."""
    for name, unit in NS_PER_UNIT.items():
        if abs(ns) >= unit:
            units, part = divmod(abs(ns), unit)
            digits = f"{part:0{len(str(unit)) - 1}}".rstrip("0") if part else ""
            return f"{'-' if ns < 0 else ''}{units:,}{'.' if digits else ''}{digits} {name}"
    return "0"


def drift_text(fit: ClockFit) -> str:
    """Drift of a fit in ppm; empty if there is none."""
    return f"{fit.drift_ppb / 1000:+,.3f} ppm" if fit.drift_ppb else ""


def fit_text(fit: ClockFit) -> str:
    """Describe a fit in one line."""
    parts = [f"{fit.method}: {duration_text(fit.offset_ns)} from {fit.clock}", drift_text(fit)]
    parts += [f"± {duration_text(fit.uncertainty_ns)}" if fit.uncertainty_ns else ""]
    parts += [f"{fit.pairs:,} pairs" if fit.pairs else "", "" if fit.applied else "not applied"]
    return ", ".join(part for part in [*parts, fit.reason] if part)
