"""Contents that a recording must have for each analysis to have an answer, and those of a trace."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.communication import stages
from chopper_interop.analyses.methods.power import limits
from chopper_interop.analyses.methods.series import link_counters
from chopper_interop.annotate.telemetry import throttle_causes
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK
from chopper_interop.schemas import derived
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable


class Content(Enum):
    """Something that a recording holds or not."""

    WORK = auto()
    """Operations of GPUs with their times."""
    COMMUNICATION = auto()
    PIPELINE = auto()
    """Sends between ranks, or ranges that name stages."""
    STEPS = auto()
    """Training steps."""
    RANKS = auto()
    """Operations of two ranks or more."""
    BYTES_READ = auto()
    """Hardware counters of bytes read."""
    BYTES_WRITTEN = auto()
    CLOCK = auto()
    """Core clocks of the GPUs that ranks compute on, by telemetry or by counters."""
    POWER = auto()
    POWER_OF_RANKS = auto()
    """Power of the GPUs that ranks compute on, or of any GPU where there are no operations."""
    LIMIT = auto()
    """Limits of power."""
    THROTTLING = auto()
    LINKS = auto()
    GPUS = auto()
    """Telemetry of GPUs."""
    SAMPLES = auto()
    """Telemetry, be it of the host alone."""
    OTHER_JOB = auto()
    """Another job to compare with, which is in no recording."""


C = Content
NEEDS: dict[str, tuple[set[Content], ...]] = {
    "breakdown": ({C.WORK},), "bubbles": ({C.WORK, C.PIPELINE},), "collectives": ({C.COMMUNICATION},),
    "compare": ({C.OTHER_JOB},), "critical_path": ({C.WORK},), "dvfs": ({C.WORK, C.CLOCK},),
    "efficiency": ({C.WORK}, {C.POWER}), "energy": ({C.POWER_OF_RANKS},), "excursions": ({C.POWER, C.LIMIT},),
    "findings": ({C.WORK},), "idle": ({C.WORK},), "imbalance": ({C.WORK}, {C.GPUS}),
    "kernels": ({C.WORK},), "launch": ({C.WORK},), "memory_round_trips": ({C.WORK, C.BYTES_READ, C.BYTES_WRITTEN},),
    "overlap": ({C.WORK},), "power": ({C.WORK, C.POWER_OF_RANKS, C.CLOCK},), "replay": ({C.WORK, C.STEPS},),
    "stragglers": ({C.WORK, C.STEPS, C.RANKS},), "summary": (set(),), "sweep": ({C.OTHER_JOB},),
    "taxes": ({C.WORK},), "telemetry": ({C.SAMPLES},), "temporal": ({C.WORK},),
    "throttling": ({C.THROTTLING},), "traffic": ({C.LINKS},), "what_if": ({C.WORK},),
}  # fmt: skip
"""Analysis → alternatives, of which one must be held whole."""
ARGUMENTS = {
    "breakdown", "dvfs", "efficiency", "findings", "overlap", "summary", "sweep", "what_if",
}  # fmt: skip
"""Analyses that look at arguments of operations: types of elements, shapes of inputs, grids of kernels."""
OF_RANKS = {C.CLOCK, C.POWER_OF_RANKS}
"""Contents of telemetry that say something of operations only where its GPUs are matched with ranks."""

_POWER_UNITS = ("W", "mW", "J")


def supported(held: set[Content]) -> list[str]:
    """Return the analyses that have an answer, in order; the summary of any trace is not among them."""
    return [name for name, ways in NEEDS.items() if any(way and way <= held for way in ways)]


def held(trace: Trace) -> set[Content]:
    """Return what a trace holds."""
    return {content for content, is_held in _held(trace) if is_held}


def _held(trace: Trace) -> Iterable[tuple[Content, Any]]:
    kind = trace.array("kind")
    work = np.isin(kind, GPU_WORK)
    yield C.WORK, work.any()
    yield C.COMMUNICATION, (kind == Kind.COMM).any()
    yield C.PIPELINE, stages.is_exchange(trace).any() or stages.pass_ranges(trace)
    yield C.STEPS, windows.has_steps(trace)
    yield C.RANKS, len(np.unique(trace.array("rank")[work])) > 1
    counters = {derived.canonical(name) for name in trace.counters["name"].unique().to_pylist()}
    yield C.BYTES_READ, derived.is_computable("bytes_read", counters)
    yield C.BYTES_WRITTEN, derived.is_computable("bytes_written", counters)
    yield C.CLOCK, derived.BUSY_CYCLES in counters
    yield C.SAMPLES, trace.samples.num_rows
    yield C.LIMIT, limits.is_any_known(trace)
    for series in trace.series.to_pylist():
        name, unit = series["name"], series["unit"]
        of_rank = series["rank"] >= 0 or not trace.nodes.num_rows
        if series["device"] >= 0:
            yield C.GPUS, True
            yield C.POWER, unit in _POWER_UNITS
            yield C.POWER_OF_RANKS, of_rank and unit in _POWER_UNITS
            yield (
                C.CLOCK,
                of_rank and any(p.match(name) and unit in p.units for p in GFXCLK.patterns),
            )
            yield C.THROTTLING, throttle_causes.is_cause(name, unit)
            yield C.LINKS, link_counters.parse_link_series(name, unit)
