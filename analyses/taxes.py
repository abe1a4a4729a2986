"""Three taxes of multi-GPU work: waiting for other ranks, launches, and round trips through memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import host_waits, round_trips, windows
from chopper_interop.analyses.methods.communication import times as collective_times
from chopper_interop.analyses.methods.timing import spans
from chopper_interop.arrays import Array, gather, intervals
from chopper_interop.arrays.gather import is_any
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind
from chopper_interop.timing.model import timing_of
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window

__all__ = ["taxes"]

_TIMES = (
    "window_ns", "wait_ns", "exposed_wait_ns", "sync_ns", "bulk_sync_ns", "gap_ns", "launch_ns",
    "overlap_ns", "taxed_ns", "critical_launch_ns", "locality_ns",
)  # fmt: skip
_CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "fills keep a GPU busy, but do not end a gap between kernels",
    "copies": "copies keep a GPU busy",
    "bulk_sync_ns": "wait_ns (members of collectives that wait for others, by union) + sync_ns (the "
    "GPU is idle and the host is in a call that waits for it); the two share no time",
    "gap_ns": "between kernels that compute (Chopper's launch overhead, prep + call); launch_ns is the "
    "part with an idle GPU: neither communication nor copies, whatever the cause (`idle` splits it by "
    "cause); null where no launch is recorded",
    "overlap_ns": "in both sync_ns and launch_ns: the host could not launch because it waited. "
    "taxed_ns = bulk_sync_ns + launch_ns - overlap_ns",
    "critical_launch_ns": "from calls to the starts of the work they launched, on the critical path over "
    "all ranks: of the training steps, else of everything, until the work launched there has ended; "
    "part of launch_ns only where the GPU was idle",
    "locality_ns": round_trips.CONVENTION + ". Null without counters; of kernels that start in the "
    "window. It is within the time of kernels: not in taxed_ns",
}


@dataclass(frozen=True)
class _GpuIntervals:
    """Work on a GPU of a rank, as unions of intervals."""

    busy: intervals.Intervals
    compute: intervals.Intervals
    kernels: intervals.Intervals
    wait: intervals.Intervals
    is_waiting_known: bool
    is_launch_known: bool
    """True if any of its kernels has a recorded launch."""
    round_trip_starts: Array
    """Starts of the kernels with a known round-trip time."""
    round_trip_sums: Array
    """Running sum of these times, 0 first: one more than there are starts."""


def taxes(trace: Trace, *, steps: str = "", ranks: str = "") -> Result:
    """Time lost on ranks and steps to bulk synchrony, launches and round trips through memory.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    steps
        Training steps, each by itself: ``each``, ``10``, ``10-12``; all of the trace by default.
    ranks
        Ranks that count: ``0,4-7``; all by default.

    Returns
    -------
    Result
        One row for each GPU of a rank and each window, in nanoseconds: `wait_ns` in which
        communication waited for others (null if unknown, for example with one rank), and
        `exposed_wait_ns` of it without concurrent compute; `sync_ns` in which the GPU was idle while
        the host waited for it (null if no calls are recorded); `bulk_sync_ns`, both; `gap_ns` between
        kernels, and `launch_ns` of it with the GPU idle; `overlap_ns` of sync and launch; `taxed_ns`,
        bulk synchrony and launch by union, and `taxed_share` of `window_ns`; `critical_launch_ns`,
        launches of this GPU on the critical path (null where no launch is recorded); `locality_ns`,
        an upper bound of the time for reading what the previous kernel wrote (null without
        counters). The summary has sums.

    Notes
    -----
    The three taxes of "Eliminating Multi-GPU Performance Taxes" (arXiv 2511.02168), measured rather
    than modelled; gaps between kernels as Chopper has them (arXiv 2512.08242).
    """
    selected = windows.rank_windows(trace, steps, ranks)
    calls = _waiting_calls(trace)
    gpus = _gpus_of_ranks(trace, sorted({w.rank for w in selected}))
    critical = _critical_launches(trace, steps, ranks) if gpus else None
    rows = []
    for window in selected:
        for device, gpu in gpus.get(window.rank, {}).items():
            row = _row(window, device, gpu, calls[window.rank])
            if critical is not None:
                key = (window.iteration, window.rank, device)
                row["critical_launch_ns"] = critical.get(key, 0)
            rows.append(row)
    summary = {name: _known_sum([row[name] for row in rows]) for name in _TIMES}
    notes = windows.work_notes(trace, steps)
    if not rows:
        notes["no rows"] = "nothing ran on a GPU"
    return Result("taxes", _table(rows, steps), summary, _CONVENTIONS, notes=notes)


def _known_sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _waiting_calls(trace: Trace) -> dict[int, intervals.Intervals | None]:
    """Union of the host calls that wait for GPUs by rank; None where no calls are recorded."""
    call = host_waits.calls_that_waited(trace)
    rank, ts, dur = (trace.array(c)[call] for c in ("rank", "ts", "dur"))
    return {
        r: intervals.union(ts[rank == r], (ts + dur)[rank == r])
        if is_any(trace.array("kind")[rows], CALLS).any()
        else None
        for r, rows in trace.rank_rows.items()
    }


def _critical_launches(
    trace: Trace, steps: str, ranks: str
) -> dict[tuple[int, int, int], int] | None:
    """Time on the critical path between calls and the work they launched, by step, rank and device.

    Keys without launches on the path are missing; None where no launches are recorded.
    """
    if not (trace.array("kind", "edges") == EdgeKind.LAUNCH).any():
        return None
    timing = timing_of(trace)
    graph, at = timing.graph, timing.at_ns
    rank, device = trace.array("rank"), trace.array("device", "lanes")[trace.array("lane")]
    step_spans = spans.spans_of_timing(timing, steps, ranks)
    total: dict[tuple[int, int, int], int] = {}
    iterations, starts = step_spans.iteration.tolist(), step_spans.starts(at).tolist()
    bounds = zip(iterations, starts, step_spans.last(at).tolist(), strict=True)
    for step, start, last in bounds:
        edges = timing.path(last, start)
        # ends may not ascend along the path: each edge counts up to the smallest end of those after it,
        # so that no time counts twice
        until = np.minimum.accumulate(at[graph.after[edges]][::-1])[::-1]
        took = until - np.clip(at[graph.src[edges]], start, until)
        launches = graph.kind[edges] == EdgeKind.LAUNCH
        node, took = graph.node[graph.after[edges[launches]]], took[launches]
        first, code = gather.distinct(rank[node], device[node])
        sums = gather.group_sums(code, took, len(first))
        columns = (rank[node[first]].tolist(), device[node[first]].tolist(), sums.tolist())
        total |= {(step, r, d): ns for r, d, ns in zip(*columns, strict=True)}
    return total


def _device_numbers(device: Array) -> list[int]:
    """Distinct device numbers, ascending."""
    first, _ = gather.distinct(device)
    return sorted(device[first].tolist())


def _gpus_of_ranks(trace: Trace, ranks: list[int]) -> dict[int, dict[int, _GpuIntervals]]:
    """Work on the GPUs of ranks, by rank and device."""
    times = collective_times.communication_times(trace)
    wait = np.full(trace.nodes.num_rows, -1, np.int64)
    wait[times.row] = times.wait
    trips = round_trips.find_round_trips(trace)
    round_trip = np.where(trips.timed, trips.ns, -1)
    kind = trace.array("kind")
    device = trace.array("device", "lanes")[trace.array("lane")]
    gpus: dict[int, dict[int, _GpuIntervals]] = {}
    for rank in ranks:
        rank_rows = trace.rank_rows[rank]
        rows = np.flatnonzero(is_any(kind[rank_rows], GPU_WORK)) + rank_rows.start
        for number in _device_numbers(device[rows]):
            of_gpu = rows[device[rows] == number]
            gpu = _gpu(trace, of_gpu, wait[of_gpu], round_trip[of_gpu])
            gpus.setdefault(rank, {})[number] = gpu
    return gpus


def _gpu(trace: Trace, rows: Array, wait: Array, round_trip: Array) -> _GpuIntervals:
    kind, ts = trace.array("kind")[rows], trace.array("ts")[rows]
    end = ts + trace.array("dur")[rows]

    is_kernel, is_fill, waits = kind == Kind.KERNEL, kind == Kind.MEMSET, wait > 0
    kernels = intervals.union(ts[is_kernel], end[is_kernel])
    compute = is_kernel | is_fill
    return _GpuIntervals(
        busy=intervals.union(ts, end),
        compute=intervals.union(ts[compute], end[compute]) if is_fill.any() else kernels,
        kernels=kernels,
        wait=intervals.union(ts[waits], (ts + wait)[waits]),
        is_waiting_known=bool((wait >= 0).any()) or not (kind == Kind.COMM).any(),
        is_launch_known=bool((is_kernel & (trace.launch[rows] >= 0)).any()),
        round_trip_starts=ts[round_trip >= 0],
        round_trip_sums=np.append(0, np.cumsum(round_trip[round_trip >= 0])),
    )


def _row(
    window: Window, device: int, gpu: _GpuIntervals, calls: intervals.Intervals | None
) -> dict[str, Any]:
    start, end = window.start_ns, window.end_ns
    busy, compute, kernels, wait = (
        _clipped(part, start, end) for part in (gpu.busy, gpu.compute, gpu.kernels, gpu.wait)
    )
    first, last = (int(kernels[0][0]), int(kernels[1][-1])) if len(kernels[0]) else (start, start)
    busy_between = _clipped(busy, first, last)
    idle = last - first - intervals.total_length(busy_between)
    launch = idle if gpu.is_launch_known else None
    row: dict[str, Any] = {
        "rank": window.rank,
        "device": device,
        "iteration": window.iteration,
        "window_ns": end - start,
        **dict.fromkeys((*_TIMES[1:], "taxed_share")),
        "gap_ns": last - first - intervals.total_length(kernels),
        "launch_ns": launch,
        "locality_ns": _locality(gpu, start, end),
    }
    if gpu.is_waiting_known:
        row["wait_ns"] = intervals.total_length(wait)
        row["exposed_wait_ns"] = _beyond(wait, compute)
    if calls is not None:
        row["sync_ns"] = _beyond(_clipped(calls, start, end), busy)
        if launch is not None:
            row["overlap_ns"] = _beyond(_clipped(calls, first, last), busy_between)
    if gpu.is_waiting_known and calls is not None:
        row["bulk_sync_ns"] = row["wait_ns"] + row["sync_ns"]
    if launch is not None and row["bulk_sync_ns"] is not None:
        row["taxed_ns"] = row["bulk_sync_ns"] + launch - row["overlap_ns"]
        row["taxed_share"] = row["taxed_ns"] / (end - start) if end > start else None
    return row


def _locality(gpu: _GpuIntervals, start: int, end: int) -> int | None:
    if not len(gpu.round_trip_starts):
        return None
    first, last = np.searchsorted(gpu.round_trip_starts, (start, end))
    return int(gpu.round_trip_sums[last] - gpu.round_trip_sums[first])


def _clipped(covered: intervals.Intervals, start: int, end: int) -> intervals.Intervals:
    """Clip a union of intervals to a window."""
    first = int(np.searchsorted(covered[1], start, "right"))
    last = int(np.searchsorted(covered[0], end, "left"))
    last = max(first, last)
    return np.maximum(covered[0][first:last], start), np.minimum(covered[1][first:last], end)


def _beyond(covered: intervals.Intervals, other: intervals.Intervals) -> int:
    """Time that one union covers and another does not."""
    return intervals.total_length(covered) - intervals.overlap_length(covered, other)


def _table(rows: list[dict[str, Any]], steps: str) -> pa.Table:
    numbers = ("rank", "device", *(["iteration"] if steps else []), *_TIMES)
    types = dict.fromkeys(numbers, pa.int64()) | {"taxed_share": pa.float64()}
    return pa.Table.from_pylist(rows, pa.schema(types))
