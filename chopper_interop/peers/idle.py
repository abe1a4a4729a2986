"""Idle time of streams as Holistic Trace Analysis tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import gaps, windows
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.members import is_any
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


def idle(trace: Trace, found: Sequence[Window], steps: str, threshold_ns: int) -> Result:
    """Idle time of each stream as another tool tells it: each gap is one of three as a whole.

    Parameters
    ----------
    trace
        Any trace.
    found
        What is asked about, as of `windows.of_ranks`.
    steps
        The option that chose them; only without one the last step is left out.
    threshold_ns
        A gap below this, which the host did not make, is `kernel_wait_ns`.
    """
    rows = gaps.work_rows(trace, (*GPU_WORK, Kind.GPU_SYNC))
    at, _ = gaps.in_windows(trace, rows, found)
    rows = rows[np.unique(at)]
    asked = _asked_by_number(trace, rows)
    lane = trace.array("lane")[rows]
    stream = trace.array("number", "lanes")[lane] if lane.size else lane.astype(np.int64)
    kept = (stream != -1) & (np.ones(len(rows), bool) if steps else _keeps(trace, rows, asked))
    rows, stream, asked = rows[kept], stream[kept], asked[kept]
    rank = trace.array("rank")[rows].astype(np.int64)
    first, code = gather.distinct(rank, stream)
    order = np.lexsort((stream[first], rank[first]))
    start = trace.array("ts")[rows]
    before = gaps.previous(code, len(first), start, start + trace.array("dur")[rows])
    gap = np.where(before == gaps.NEVER, 0, start - before)
    host = (asked > before) & (before != gaps.NEVER)
    kernel = ~host & (gap < threshold_ns)
    columns: dict[str, Any] = {"rank": rank[first][order].astype(np.int32)}
    columns["stream"] = stream[first][order]
    for name, which in {"host_wait": host, "kernel_wait": kernel, "other": ~host & ~kernel}.items():
        total = np.zeros(len(first), np.int64)
        np.add.at(total, code[which], gap[which])
        columns[f"{name}_ns"] = total[order]
    columns["idle_ns"] = sum(columns[f"{n}_ns"] for n in ("host_wait", "kernel_wait", "other"))
    summary = {name: int(c.sum()) for name, c in columns.items() if name.endswith("_ns")}
    whole = (
        "all of the trace; of a rank with several ranges ProfilerStep, what was asked for before "
        "the last of them"
    )
    notes = {
        "window": windows.described(steps, whole),
        "left out": f"{int(np.count_nonzero(~kept)):,} pieces of work",
    }
    conventions = {
        "definition": "Holistic Trace Analysis: of each stream and gap between work in order of "
        "start, host wait if the call for it began in the gap, else kernel wait below "
        f"{threshold_ns:,} ns, else other; where work overlaps, gaps are below 0",
        "links": "all GPU work counts; without a recorded launch it is never host wait",
        "memset": "counts as work",
        "copies": "count as work; so do recorded waits of streams",
        "rounding": "none; HTA rounds times that are no whole microseconds inwards",
    }
    table = pa.table({name: arrow.array(column) for name, column in columns.items()})
    return Result("idle", table, summary, conventions, notes=notes)


def _asked_by_number(trace: Trace, rows: Array) -> Array:
    """When the call for each began, by its recorded launch or else by the number that they share."""
    asked = gaps.asked(trace, rows)
    number = trace.array("correlation")[rows]
    missing = np.flatnonzero((asked == gaps.NEVER) & (number > 0))
    calls = np.flatnonzero(is_any(trace.array("kind"), CALLS))
    both = np.concatenate([calls, rows[missing]])
    if missing.size and calls.size:
        first, code = gather.distinct(trace.array("rank")[both], trace.array("correlation")[both])
        caller = both[first[code[len(calls) :]]]
        found = is_any(trace.array("kind")[caller], CALLS)
        asked[missing[found]] = trace.array("ts")[caller[found]]
    return asked


def _keeps(trace: Trace, rows: Array, asked: Array) -> Array:
    """What HTA keeps: of several ranges ProfilerStep of a rank, it leaves out the last."""
    is_step = np.array([n.startswith("ProfilerStep") for n in trace.names()] or [False])
    steps = is_step[trace.array("name")] & (trace.array("kind") == Kind.ANNOTATION)
    kept = np.ones(len(rows), bool)
    for rank, mine in trace.rank_rows.items():
        starts = np.unique(trace.array("ts")[mine][steps[mine]])
        if len(starts) > 1:
            of = trace.array("rank")[rows] == rank
            kept[of] = (asked[of] != gaps.NEVER) & (asked[of] < starts[-1])
    return kept
