"""How clocks were brought together: names of the methods, and fits as text and as JSON.

A `ClockFit` says of a rank or a source how its times became those of the trace. Whoever brings
times together makes one; all of them stand in ``meta.clocks`` and in every output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from chopper_interop.clocks import rank_fit
from chopper_interop.columns import arrow
from chopper_interop.schemas.meta import ClockFit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chopper_interop.schemas.meta import Meta
    from chopper_interop.trace import Trace

STATED = "stated"
"""The source says it: its times are on the trace's clock."""
COLLECTIVE_ENDS = "collective ends"
"""Synchronising collectives end at one time on all their ranks."""
MATCHED_KERNELS = "matched kernels"
"""Two tools recorded the same kernels."""
CORRELATION_IDS = "correlation ids"
"""Two tools recorded the same kernels, under the same correlation ids."""
THREE_CLOCKS = "three clocks"
"""Somebody read both clocks at one time."""
BUSY_AND_POWER = "busy and power"
"""An estimate: when GPUs are busy they draw power, and the tools see them active."""
USER = "user"
"""The user says it."""
WALL_CLOCK_ZONE = "wall clock zone"
"""A wall clock's only zone in which it and the trace overlap."""
WHOLE_SECONDS = "whole seconds"
"""The source says it, and cuts its times to seconds."""

DIRECT = (USER, BUSY_AND_POWER)
"""Methods that relate a clock to the trace's itself, and not to that of its host."""
ASSUMED = (BUSY_AND_POWER, WALL_CLOCK_ZONE)
"""Methods that no source and no user vouches for."""
WHOLE_SECONDS_NS = 500_000_000
"""Uncertainty from which on times are those of whole seconds."""

_RANK = "rank "
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
_INT64 = 1 << 63


def of_rank(rank: int) -> str:
    """What a fit is `of` that is of a rank."""
    return f"{_RANK}{rank}"


def rank_of(fit: ClockFit) -> int:
    """The rank that a fit is of, -1 if it is of a source."""
    number = fit.of.removeprefix(_RANK)
    return int(number) if number != fit.of and number.isdigit() else -1


def told_by_user(meta: Meta) -> set[int]:
    """Ranks of which the user says what their clock is; nobody else may move them."""
    return {rank_of(fit) for fit in meta.clocks if fit.method == USER} - {-1}


def moved(trace: Trace, offset_ns: int, clock: str) -> Trace:
    """A trace all times of which are so much later, on another clock."""
    return trace.with_meta(origin_ns=trace.meta.origin_ns + offset_ns, clock=clock)


def fitted(trace: Trace, fit: ClockFit, clock: str) -> Trace:
    """A trace on another clock, by a fit of which the drift counts as well."""
    if not fit.drift_ppb:
        return moved(trace, fit.offset_ns, clock)
    ts = trace.array("ts")
    start, end = (_drifted(trace, t, fit) for t in (ts, ts + trace.array("dur")))
    nodes = arrow.replaced(arrow.replaced(trace.nodes, "ts", start), "dur", end - start)
    samples = _drifted(trace, trace.array("ts", "samples"), fit)
    trace = replace(
        trace, nodes=nodes, samples=arrow.replaced(trace.samples, "ts", samples)
    )  # order stays: a clock that drifts by parts of a million never runs back
    return moved(trace, fit.offset_ns, clock)


def _drifted(trace: Trace, ts: Any, fit: ClockFit) -> Any:
    """Times since the origin, with what the drift adds."""
    return ts + rank_fit.shifts(ts, 0, fit.drift_ppb, fit.pivot_ns - trace.meta.origin_ns)


def with_ranks_moved(trace: Trace, by: Mapping[int, int]) -> Trace:
    """A trace with the times of some ranks, and of their series, so many nanoseconds later."""
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
        nodes=arrow.replaced(trace.nodes, "ts", tables["nodes"] - start),
        samples=arrow.replaced(trace.samples, "ts", tables["samples"] - start),
    ).with_meta(origin_ns=trace.meta.origin_ns + start)


def distinct(fits: Iterable[ClockFit]) -> tuple[ClockFit, ...]:
    """Fits in their order, each once."""
    return tuple(dict.fromkeys(fits))


def to_json(fits: Iterable[ClockFit]) -> list[dict[str, Any]]:
    """Fits as plain values, for formats that have no columns for them."""
    return [msgspec.to_builtins(fit) for fit in fits]


def from_json(value: Any) -> tuple[ClockFit, ...]:
    """Fits of plain values; what is none of them is left out."""
    fits = []
    for one in value if isinstance(value, list) else ():
        try:
            fit = msgspec.convert(one, ClockFit)
        except msgspec.ValidationError:
            continue
        numbers = (fit.offset_ns, fit.drift_ppb, fit.pivot_ns, fit.uncertainty_ns, fit.pairs)
        if all(-_INT64 <= number < _INT64 for number in numbers):
            fits.append(fit)
    return tuple(fits)


def from_text(text: Any) -> tuple[ClockFit, ...]:
    """Fits of JSON text; of what is none, none."""
    try:
        return from_json(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError):
        return ()


def duration(ns: int) -> str:
    """A length of time for people, in the largest unit that it fills, without loss."""
    for unit, name in _UNITS:
        if abs(ns) >= unit:
            whole, part = divmod(abs(ns), unit)
            digits = f"{part:0{len(str(unit)) - 1}}".rstrip("0") if part else ""
            return f"{'-' if ns < 0 else ''}{whole:,}{'.' if digits else ''}{digits} {name}"
    return "0"


def drift(fit: ClockFit) -> str:
    """Its drift for people; empty if there is none."""
    return f"{fit.drift_ppb / 1000:+,.3f} ppm" if fit.drift_ppb else ""


def text(fit: ClockFit) -> str:
    """A fit in one line."""
    parts = [f"{fit.method}: {duration(fit.offset_ns)} from {fit.clock}", drift(fit)]
    parts += [f"± {duration(fit.uncertainty_ns)}" if fit.uncertainty_ns else ""]
    parts += [f"{fit.pairs:,} pairs" if fit.pairs else "", "" if fit.applied else "not applied"]
    return ", ".join(part for part in [*parts, fit.reason] if part)
