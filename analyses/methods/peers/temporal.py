"""Temporal breakdown and overlap by the definitions of two other tools.

Both compute in the microseconds of JSON: whole numbers, or float64 where any time has a fraction,
which at an epoch of 1.7e15 µs is a grid of 0.25 µs. This module does the same, so that figures agree.

Holistic Trace Analysis (traceinsight 0.6.1) counts events with a stream, whatever their category,
which includes waits that CUPTI records and host operators of Triton. It classifies by name: names
that begin with nccl (or hip) communicate, names that begin with Memcpy, Memset or dma are memory,
waits are neither, and the rest computes. Times with fractions are rounded inwards to whole
microseconds (a kernel within one gets a negative duration). With several ProfilerSteps in the job,
the last is left out, and so is GPU work that was not launched by a call before it.

TraceLens (171dd747), GPU timeline of all events: kernels, copies and fills count; kernels with
"nccl" in their name communicate, copies copy, the rest computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from chopper_interop import arguments, rank_batches
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.arrays import Array, intervals, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import NoSuchDefinitionsError, similar
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.schemas.meta import SINCE_1970, TIME_BASE
from chopper_interop.schemas.time_units import KINETO_BASE_NS
from chopper_interop.trace import Trace

COMM, MEMORY, COMPUTE, _NEITHER = range(4)
"""Types of events."""
_HTA_NAMES = (
    (COMM, re.compile(r"nccl|hip")),
    (MEMORY, re.compile(r"Memcpy|Memset|dma")),
    (_NEITHER, re.compile(r".*(Memcpy|Memset|dma|Sync|Stream Wait Event)|cuda.*LaunchKernel|runFunction")),
)  # fmt: skip
_WITHOUT_CORRELATION = ("Event Sync", "Context Sync")
_STEP = "ProfilerStep"

CONVENTIONS = {
    "hta": {
        "definition": "Holistic Trace Analysis (traceinsight 0.6.1)",
        "window": "with two or more ProfilerSteps in the job, GPU events that a call before the last "
        "of them launched; else all. From the first start to the last end",
        "links": "where the last step is left out, GPU events without a recorded call are too",
        "events": "everything with a stream: CUPTI's waits and Triton's host operators count as busy",
        "memset": "counts as memory, as copies do; so neither compute nor communication",
        "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute",
        "rounding": "where times have fractions of microseconds, starts up and ends down to whole ones",
    },
    "tracelens": {
        "definition": "TraceLens (171dd747), GPU timeline of all events (not its default, which "
        "leaves out GPU events below no host operator)",
        "window": "from the first start to the last end of kernels, copies and fills",
        "links": "all count, whether their launch is recorded or not",
        "memset": "counts as compute",
        "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute; exposed copies "
        "are those that overlap neither compute nor communication",
        "rounding": "float64 microseconds: a grid of 0.25 µs where times count from 1970",
    },
}
"""Conventions of each tool's figures."""


@dataclass(frozen=True)
class ToolEvents:
    """Events that a tool counts: type, start and end in microseconds."""

    event_type: Array
    start: Array
    end: Array
    left_out: int = 0

    def intervals_of(self, *types: int) -> tuple[Array, Array]:
        """Return starts and ends of the events of some types."""
        selected = np.isin(self.event_type, types)
        return self.start[selected], self.end[selected]


def temporal(trace: Trace, compat: str, ranks: str, *, default: bool) -> Result:
    """Compute the temporal breakdown as another tool does: a row a rank, microseconds."""
    rows = {"hta": _hta_breakdown, "tracelens": _tracelens_timeline}
    return _result("temporal", trace, compat, ranks, rows, default=default)


def overlap(trace: Trace, compat: str, ranks: str, *, default: bool) -> Result:
    """Compute the overlap of communication and compute as another tool does: a row a rank."""
    rows = {"hta": _hta_overlap, "tracelens": _tracelens_overlap}
    return _result("overlap", trace, compat, ranks, rows, default=default)


def _result(
    analysis: str,
    trace: Trace,
    compat: str,
    ranks: str,
    definitions: Mapping[str, Callable[[ToolEvents], dict[str, Any]]],
    *,
    default: bool,
) -> Result:
    if compat not in definitions:
        hint = similar(compat, sorted(definitions))
        raise NoSuchDefinitionsError(f"compat={compat}: there is no {compat!r}", hint=hint)
    if not default:
        raise NoSuchDefinitionsError(
            f"compat={compat} has rows of ranks and a window of its own",
            hint="leave by and steps out",
        )
    read_events = {"hta": hta_events, "tracelens": _tracelens_events}[compat]
    rows: list[dict[str, Any]] = []
    left_out = 0
    for rank in windows.chosen_ranks(trace, ranks):
        events = read_events(trace, rank)
        left_out += events.left_out
        if len(events.event_type):
            rows.append({"rank": rank} | definitions[compat](events))
        spill.release()
    names = list(rows[0]) if rows else ["rank"]
    types = {name: pa.int64() if name == "rank" else pa.float64() for name in names}
    table = pa.Table.from_pylist(rows, pa.schema(types))
    notes = {"left out": f"{left_out} GPU events"}
    failed = [row["rank"] for row in rows if any(value is None for value in row.values())]
    if failed and analysis == "temporal":
        notes["failed"] = (
            f"on rank {failed[0]} the tool itself fails (AssertionError): durations that its "
            "rounding makes negative add up to more than the whole time"
        )
    if not rows:
        notes["no rows"] = "there is no GPU work in the trace"
    return Result(analysis, table, {"ranks": len(rows)}, CONVENTIONS[compat], notes=notes)


def _hta_breakdown(events: ToolEvents) -> dict[str, Any]:
    busy, compute = merged(events.start, events.end), merged(*events.intervals_of(COMPUTE))
    span = float(busy[1][-1] - busy[0][0])
    idle = span - float((busy[1] - busy[0]).sum())
    computing = float((compute[1] - compute[0]).sum())
    non_compute = span - computing - idle
    times = {"idle": idle, "compute": computing, "non_compute": non_compute, "kernel": span}
    fails = idle > span or computing > span or non_compute < 0
    row: dict[str, Any] = {f"{name}_time_us": time for name, time in times.items()}
    for name in ("idle", "compute", "non_compute"):
        row[f"{name}_time_percent"] = round(100 * times[name] / span, 2) if span else None
    return dict.fromkeys(row) if fails else row


def _hta_overlap(events: ToolEvents) -> dict[str, Any]:
    comm, compute = merged(*events.intervals_of(COMM)), merged(*events.intervals_of(COMPUTE))
    total = float((comm[1] - comm[0]).sum())
    if not total:
        return {"comp_comm_overlap_percent": None}
    ran = [intervals.union(*merged) for merged in (comm, compute)]  # drops negative durations
    concurrent = _length(ran[0]) + _length(ran[1]) - _length(_union_of(*ran))
    return {"comp_comm_overlap_percent": round(100 * concurrent / total, 2)}


def hta_events(trace: Trace, rank: int) -> ToolEvents:
    """Return the events of a rank that Holistic Trace Analysis counts, by start."""
    rows = trace.rank_rows[rank]
    kind, ts, dur, name, correlation = (
        trace.array(column)[rows] for column in ("kind", "ts", "dur", "name", "correlation")
    )
    start, end = whole_microseconds(trace, rank, ts, dur)
    stream = has_stream(trace, np.arange(rows.start, rows.stop), kind)
    is_counted = stream & before_last_step(trace, name, start, correlation, stream)
    order = np.argsort(start[is_counted], kind="stable")
    event_type = np.array([*(hta_event_type(text) for text in trace.names()), 0], np.int64)[
        name[is_counted]
    ]
    left_out = int(np.count_nonzero(stream & ~is_counted))
    return ToolEvents(event_type[order], start[is_counted][order], end[is_counted][order], left_out)


def hta_event_type(name: str) -> int:
    """Return the type of an event by its name, as Holistic Trace Analysis classifies it."""
    return next((event_type for event_type, pattern in _HTA_NAMES if pattern.match(name)), COMPUTE)


def has_stream(trace: Trace, rows: Array, kind: Array) -> Array:
    """Mark events that have a stream: all GPU work, and others with a stream among their arguments."""
    stream = is_any(kind, GPU_WORK)
    others = np.flatnonzero(~stream & (trace.array("args_len")[rows] > 0) & (kind != Kind.INSTANT))
    code, values = arguments.values(trace, rows[others], "stream")
    is_stream = [isinstance(v, int) and not isinstance(v, bool) and v != -1 for v in values]
    stream[others] = np.array([*is_stream, False])[code]
    lane = trace.array("lane")[rows]
    is_wait = (kind == Kind.GPU_SYNC) & (trace.array("args_len")[rows] == 0)
    stream[is_wait] = (trace.array("number", "lanes")[lane] >= 0)[is_wait]
    return stream


def before_last_step(
    trace: Trace, name: Array, start: Array, correlation: Array, stream: Array
) -> Array:
    """Mark events that are launched before the last step; all if the job has fewer than two."""
    texts = trace.names()
    is_step = np.array([*(text.startswith(_STEP) for text in texts), False])
    if trace.cached("names of steps", _step_names) < 2:  # noqa: PLR2004
        return np.ones(len(name), np.bool_)
    without_correlation = np.array([*(text in _WITHOUT_CORRELATION for text in texts), False])[name]
    on_gpu = (stream & (correlation >= 0)) | without_correlation
    steps = is_step[name] & ~on_gpu
    host = np.flatnonzero(~on_gpu)
    if not host.size:
        return np.ones(len(name), np.bool_)
    last = start[steps].max() if steps.any() else start[host].min()
    before = ~on_gpu & (start < last)
    return before | (on_gpu & np.isin(correlation, np.unique(correlation[before])))


def _step_names(trace: Trace) -> int:
    """Count the names of steps that any events of the job have."""
    used = np.zeros(len(trace.names()) + 1, np.bool_)
    name = trace.array("name")
    for rows in rank_batches.blocks(trace):
        used[name[rows]] = True
    is_step = [text.startswith(_STEP) for text in trace.names()]
    return int(np.count_nonzero(used[:-1] & is_step))


def merged(start: Array, end: Array) -> tuple[Array, Array]:
    """Merge intervals as Holistic Trace Analysis does: negative durations reduce the sum."""
    if not start.size:
        return start, end
    reach = np.maximum.accumulate(end)
    # a merged interval begins at each start that lies beyond all ends before it
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    return start[first], np.maximum.reduceat(end, first)


def _tracelens_events(trace: Trace, rank: int) -> ToolEvents:
    rows = trace.rank_rows[rank]
    kind = trace.array("kind")[rows]
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    ts, dur = (trace.array(column)[rows][work] for column in ("ts", "dur"))
    start, end = microseconds(trace, rank, ts, dur)
    nccl = np.array([*("nccl" in text for text in trace.names()), False])
    event_type = np.where(nccl[trace.array("name")[rows][work]], COMM, COMPUTE)
    event_type[kind[work] == Kind.MEMCPY] = MEMORY
    return ToolEvents(event_type, start, end)


def _tracelens_timeline(events: ToolEvents) -> dict[str, Any]:
    compute, comm, memory = (
        intervals.union(*events.intervals_of(event_type)) for event_type in (COMPUTE, COMM, MEMORY)
    )
    busy = intervals.union(events.start, events.end)
    compute_or_comm = _union_of(compute, comm)
    total = float(events.end.max() - events.start.min())
    return {
        "computation_time_us": _length(compute),
        "exposed_comm_time_us": _length(compute_or_comm) - _length(compute),
        "exposed_memcpy_time_us": _length(busy) - _length(compute_or_comm),
        "busy_time_us": _length(busy),
        "idle_time_us": total - _length(busy),
        "total_time_us": total,
        "total_comm_time_us": _length(comm),
        "total_memcpy_time_us": _length(memory),
    }


def _tracelens_overlap(events: ToolEvents) -> dict[str, Any]:
    times = _tracelens_timeline(events)
    names = ("computation", "total_comm", "exposed_comm")
    return {f"{name}_time_us": times[f"{name}_time_us"] for name in names}


def _union_of(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    return intervals.union(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))


def _length(union: tuple[Array, Array]) -> float:
    return float((union[1] - union[0]).sum())


def whole_microseconds(trace: Trace, rank: int, ts: Array, dur: Array) -> tuple[Array, Array]:
    """Return starts and ends as Holistic Trace Analysis rounds them: inwards."""
    start, end = microseconds(trace, rank, ts, dur)
    return (np.ceil(start), np.floor(end)) if (start % 1).any() else (start, end)


def microseconds(trace: Trace, rank: int, ts: Array, dur: Array) -> tuple[Array, Array]:
    """Return starts and ends as a tool that reads JSON has them: by the rank's own clock."""
    fits = (fit for fit in trace.meta.clocks if fit.applied and fit.of == f"rank {rank}")
    since = trace.meta.origin_ns - _base_ns(trace) - sum(fit.offset_ns for fit in fits)
    start = _as_json_float(ts + since)
    return start, start + _as_json_float(dur)


def _as_json_float(ns: Array) -> Array:
    """Return the float64 nearest to a decimal number of microseconds with three decimals."""
    microseconds = ns // 1000
    return microseconds.astype(np.float64) + (ns - 1000 * microseconds) / 1000


def _base_ns(trace: Trace) -> int:
    """Return the time (ns) that times in the files count from: 1970, or the base that Kineto would state."""
    if trace.meta.facts.get(TIME_BASE) == SINCE_1970:
        return 0
    return trace.meta.origin_ns // KINETO_BASE_NS * KINETO_BASE_NS
