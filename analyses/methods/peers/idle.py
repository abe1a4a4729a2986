"""Idle time of streams by Holistic Trace Analysis' definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import gaps, windows
from chopper_interop.analyses.methods.peers import temporal
from chopper_interop.arrays import Array, arrow, gather, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.grouping import by_key
from chopper_interop.result import Result
from chopper_interop.schemas.categories import WITHIN_CATEGORY
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window

_MTIA_WAITS = frozenset(
    name for (_, name), kind in WITHIN_CATEGORY.items() if kind == Kind.GPU_SYNC
)
"""Names of MTIA's records and waits, which have the category of its work."""


def idle(trace: Trace, rank_windows: Sequence[Window], steps: str, threshold_ns: int) -> Result:
    """Classify the gaps of each stream as HTA does: host wait, kernel wait or other, as a whole.

    Parameters
    ----------
    rank_windows
        Windows of ranks, from `windows.rank_windows`.
    steps
        The option that chose them; the last step is left out only if it is empty.
    threshold_ns
        Shorter gaps that the host did not cause are `kernel_wait_ns`.
    """
    of_ranks = by_key(rank_windows, lambda window: window.rank)
    none = (np.zeros(0, np.int64),) * 4
    of_streams = [_waits_of_streams(trace, *none, threshold_ns)]
    left_out = 0
    for rank in trace.ranks:
        work = _work(trace, trace.rank_rows[rank])
        in_window, _ = windows.starting_in_windows(trace, work, of_ranks.get(rank, ()))
        work = work[np.unique(in_window)]
        events = _events(trace, work, rank, every=bool(steps))
        left_out += len(work) - len(events[0])
        of_streams.append(_waits_of_streams(trace, *events, threshold_ns))
        spill.release()
    columns = {
        name: np.concatenate([of_rank[name] for of_rank in of_streams]) for name in of_streams[0]
    }
    summary = {name: int(c.sum()) for name, c in columns.items() if name.endswith("_ns")}
    full_window = (
        "all of the trace; with two or more ProfilerSteps in the job, work whose call began before the "
        "last of them"
    )
    notes = {
        "window": windows.describe(steps, full_window),
        "left out": f"{left_out:,} pieces of work",
    }
    conventions = {
        "definition": "Holistic Trace Analysis: for each gap between work of a stream in order of "
        "start, host wait if the call for the next work began in the gap, else kernel wait below "
        f"{threshold_ns:,} ns, else other; where work overlaps, gaps are below 0",
        "links": "all GPU work counts; without a recorded launch it is never host wait, where HTA takes the "
        "first event of the file for its call",
        "memset": "counts as work",
        "copies": "count as work; recorded waits of streams do not, but for MTIA's",
        "rounding": "where times have fractions of microseconds, starts up and ends down to whole ones",
    }
    table = pa.table({name: arrow.array(column) for name, column in columns.items()})
    return Result("idle", table, summary, conventions, notes=notes)


def _waits_of_streams(  # columns of events
    trace: Trace, rows: Array, start: Array, end: Array, call_start: Array, threshold_ns: int
) -> dict[str, Array]:
    """Columns of the result for the streams of a rank, by the columns of `_events`."""
    lane = trace.array("lane")[rows]
    stream = trace.array("number", "lanes")[lane] if lane.size else lane.astype(np.int64)
    first, code = gather.distinct(stream)
    order = np.argsort(stream[first], kind="stable")
    before = gaps.previous_end(code, len(first), end)
    gap = np.where(before == gaps.NO_TIME, 0, start - before)
    is_host_wait = (call_start > before) & (before != gaps.NO_TIME)
    is_kernel_wait = ~is_host_wait & (gap < threshold_ns)
    columns: dict[str, Array] = {"rank": trace.array("rank")[rows[first[order]]].astype(np.int32)}
    columns["stream"] = stream[first][order]
    for name, mask in {
        "host_wait": is_host_wait,
        "kernel_wait": is_kernel_wait,
        "other": ~is_host_wait & ~is_kernel_wait,
    }.items():
        columns[f"{name}_ns"] = gather.group_sums(code[mask], gap[mask], len(first))[order]
    parts = (columns[f"{name}_ns"] for name in ("host_wait", "kernel_wait", "other"))
    columns["idle_ns"] = np.sum([*parts], axis=0)
    return columns


def _work(trace: Trace, of_rank: slice) -> Array:
    """Rows of the events of a rank that HTA includes: GPU work, and of MTIA's streams their records and waits."""
    kind, name = (trace.array(column)[of_rank] for column in ("kind", "name"))
    is_work = is_any(kind, GPU_WORK)
    waits = np.array([name in _MTIA_WAITS for name in trace.names()] or [False])
    is_work |= waits[name] & (kind == Kind.GPU_SYNC)
    return np.flatnonzero(is_work) + of_rank.start


def _events(
    trace: Trace, work: Array, rank: int, *, every: bool
) -> tuple[Array, Array, Array, Array]:
    """Rows, starts, ends and starts of calls of the work of a rank that HTA includes.

    Times are nanoseconds, rounded as HTA rounds them; `gaps.NO_TIME` where there is no call.
    """
    of_rank = trace.rank_rows[rank]
    ts, dur, name, correlation, kind, number = (
        trace.array(column)[of_rank]
        for column in ("ts", "dur", "name", "correlation", "kind", "lane")
    )
    start, end = temporal.whole_microseconds(trace, rank, ts, dur)
    own = work[(work >= of_rank.start) & (work < of_rank.stop)] - of_rank.start
    own = own[trace.array("number", "lanes")[number[own]] != -1] if own.size else own
    if not every:
        stream = temporal.has_stream(trace, np.arange(of_rank.start, of_rank.stop), kind)
        included = temporal.before_last_step(trace, name, start, correlation, stream)
        own = own[included[own]]
    calls = _calls(trace, own + of_rank.start, of_rank)
    start_ns, end_ns = _nanoseconds(start), _nanoseconds(end)
    called = start_ns[np.maximum(calls - of_rank.start, 0)]
    call_ns = np.where(calls >= 0, called, gaps.NO_TIME)
    return own + of_rank.start, start_ns[own], end_ns[own], call_ns


def _nanoseconds(time: Array) -> Array:
    whole = np.floor(time)
    return 1000 * whole.astype(np.int64) + np.rint(1000 * (time - whole)).astype(np.int64)


def _calls(trace: Trace, rows: Array, of_rank: slice) -> Array:
    """Call of each event of a rank by its recorded launch, else by equal correlation number; -1 if there is none."""
    call: Array = trace.launch[rows].astype(np.int64)
    number = trace.array("correlation")[rows]
    missing = np.flatnonzero((call < 0) & (number > 0))
    calls = np.flatnonzero(is_any(trace.array("kind")[of_rank], CALLS)) + of_rank.start
    both = np.concatenate([calls, rows[missing]])
    if missing.size and calls.size:
        first, code = gather.distinct(trace.array("correlation")[both])
        caller = both[first[code[len(calls) :]]]
        is_call = is_any(trace.array("kind")[caller], CALLS)
        call[missing[is_call]] = caller[is_call]
    return call
