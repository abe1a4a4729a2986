"""Idle time of streams by Holistic Trace Analysis' definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import gaps, windows
from chopper_interop.arrays import arrow, gather
from chopper_interop.arrays.members import is_any
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.analyses.methods.activity.windows import Window
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace


def idle(trace: Trace, rank_windows: Sequence[Window], steps: str, threshold_ns: int) -> Result:
    """Classify the gaps of each stream as HTA does: host wait, kernel wait or other, as a whole.

    Parameters
    ----------
    trace
        Any trace.
    rank_windows
        Windows of ranks, from `windows.rank_windows`.
    steps
        The option that chose them; the last step is left out only if it is empty.
    threshold_ns
        Shorter gaps that the host did not cause are `kernel_wait_ns`.
    """
    rows = gaps.work_rows(trace, (*GPU_WORK, Kind.GPU_SYNC))
    in_window, _ = gaps.starting_in_windows(trace, rows, rank_windows)
    rows = rows[np.unique(in_window)]
    call_start = _call_starts(trace, rows)
    lane = trace.array("lane")[rows]
    stream = trace.array("number", "lanes")[lane] if lane.size else lane.astype(np.int64)
    selected = (stream != -1) & (
        np.ones(len(rows), bool) if steps else _before_last_step(trace, rows, call_start)
    )
    rows, stream, call_start = rows[selected], stream[selected], call_start[selected]
    rank = trace.array("rank")[rows].astype(np.int64)
    first, code = gather.distinct(rank, stream)
    order = np.lexsort((stream[first], rank[first]))
    start = trace.array("ts")[rows]
    before = gaps.previous_end(code, len(first), start, start + trace.array("dur")[rows])
    gap = np.where(before == gaps.NO_TIME, 0, start - before)
    is_host_wait = (call_start > before) & (before != gaps.NO_TIME)
    is_kernel_wait = ~is_host_wait & (gap < threshold_ns)
    columns: dict[str, Any] = {"rank": rank[first][order].astype(np.int32)}
    columns["stream"] = stream[first][order]
    for name, mask in {
        "host_wait": is_host_wait,
        "kernel_wait": is_kernel_wait,
        "other": ~is_host_wait & ~is_kernel_wait,
    }.items():
        total = np.zeros(len(first), np.int64)
        np.add.at(total, code[mask], gap[mask])
        columns[f"{name}_ns"] = total[order]
    columns["idle_ns"] = sum(columns[f"{n}_ns"] for n in ("host_wait", "kernel_wait", "other"))
    summary = {name: int(c.sum()) for name, c in columns.items() if name.endswith("_ns")}
    full_window = (
        "all of the trace; for a rank with several ranges ProfilerStep, work whose call began before "
        "the last of them"
    )
    notes = {
        "window": windows.describe(steps, full_window),
        "left out": f"{int(np.count_nonzero(~selected)):,} pieces of work",
    }
    conventions = {
        "definition": "Holistic Trace Analysis: for each gap between work of a stream in order of "
        "start, host wait if the call for the next work began in the gap, else kernel wait below "
        f"{threshold_ns:,} ns, else other; where work overlaps, gaps are below 0",
        "links": "all GPU work counts; without a recorded launch it is never host wait",
        "memset": "counts as work",
        "copies": "count as work; so do recorded waits of streams",
        "rounding": "none; HTA rounds times that are not whole microseconds inwards",
    }
    table = pa.table({name: arrow.array(column) for name, column in columns.items()})
    return Result("idle", table, summary, conventions, notes=notes)


def _call_starts(trace: Trace, rows: Array) -> Array:
    """Return when the call for each began, by its recorded launch, else by equal correlation number."""
    call_start = gaps.call_times(trace, rows)
    number = trace.array("correlation")[rows]
    missing = np.flatnonzero((call_start == gaps.NO_TIME) & (number > 0))
    calls = np.flatnonzero(is_any(trace.array("kind"), CALLS))
    both = np.concatenate([calls, rows[missing]])
    if missing.size and calls.size:
        first, code = gather.distinct(trace.array("rank")[both], trace.array("correlation")[both])
        caller = both[first[code[len(calls) :]]]
        is_call = is_any(trace.array("kind")[caller], CALLS)
        call_start[missing[is_call]] = trace.array("ts")[caller[is_call]]
    return call_start


def _before_last_step(trace: Trace, rows: Array, call_start: Array) -> Array:
    """Mark work that HTA includes: if a rank has several ranges ProfilerStep, that before the last."""
    is_step = np.array([n.startswith("ProfilerStep") for n in trace.names()] or [False])
    steps = is_step[trace.array("name")] & (trace.array("kind") == Kind.ANNOTATION)
    included = np.ones(len(rows), bool)
    for rank, rank_slice in trace.rank_rows.items():
        starts = np.unique(trace.array("ts")[rank_slice][steps[rank_slice]])
        if len(starts) > 1:
            of_rank = trace.array("rank")[rows] == rank
            included[of_rank] = (call_start[of_rank] != gaps.NO_TIME) & (
                call_start[of_rank] < starts[-1]
            )
    return included
