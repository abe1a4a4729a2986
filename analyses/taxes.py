"""Three taxes of work on several GPUs: waiting for each other, launching, and going through memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import round_trips, windows
from chopper_interop.columns import gather, intervals
from chopper_interop.columns.members import is_any
from chopper_interop.communication import times as collective_times
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind
from chopper_interop.timing import spans
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

__all__ = ["taxes"]

_TIMES = (
    "window_ns", "wait_ns", "exposed_wait_ns", "sync_ns", "bulk_sync_ns", "gap_ns", "launch_ns",
    "overlap_ns", "taxed_ns", "critical_launch_ns", "locality_ns",
)  # fmt: skip
_CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "fills keep a GPU busy, and end no gap between kernels",
    "copies": "copies keep a GPU busy",
    "bulk_sync_ns": "wait_ns (members of collectives that wait for others, by union) + sync_ns (the "
    "GPU does nothing and the host is in a call that waits for it); the two share no time",
    "gap_ns": "between kernels that compute (Chopper's launch overhead, prep + call); launch_ns of "
    "it, when nothing ran on the GPU: neither communication nor copies, whatever the cause (`idle` tells "
    "causes); null where no launch is recorded",
    "overlap_ns": "in both sync_ns and launch_ns: the host could not launch since it waited. "
    "taxed_ns = bulk_sync_ns + launch_ns - overlap_ns",
    "critical_launch_ns": "from calls to the starts of what they launched, of the critical path over "
    "all ranks: of the training steps, else of everything, until what hosts launched there has ended; "
    "part of launch_ns only where the GPU did nothing else",
    "locality_ns": round_trips.CONVENTION + ". Null without counters; of kernels that start in the "
    "window. It lies within kernels that run: not in taxed_ns",
}


_IS_CALL = is_any(np.arange(256), CALLS)
_IS_WORK = is_any(np.arange(256), GPU_WORK)


@dataclass(frozen=True)
class _Gpu:
    """What ran on a GPU of a rank, as unions."""

    busy: intervals.Union
    compute: intervals.Union
    kernels: intervals.Union
    wait: intervals.Union
    is_waiting_known: bool
    is_launch_known: bool
    """Whether any of its kernels has a recorded launch."""
    reads: Array
    """When kernels start of which it is known how long they read what the one before wrote."""
    reading: Array
    """And how long, added up: one more than there are."""


def taxes(trace: Trace, *, steps: str = "", ranks: str = "") -> Result:
    """What ranks and steps lose by bulk synchrony, launches and round trips through memory.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all of the trace.
    ranks
        These ranks, as ``0,4-7``; else all.

    Returns
    -------
    Result
        One row for each GPU of a rank and each window, in nanoseconds: `wait_ns` in which
        communication waited for others (null if nothing tells, as of one rank), `exposed_wait_ns`
        of it without compute beside; `sync_ns` in which the GPU did nothing while the host waited
        for it (null if no calls are recorded); `bulk_sync_ns`, both; `gap_ns` between kernels, `launch_ns` of it with the GPU idle;
        `overlap_ns` of sync and launch; `taxed_ns`, bulk synchrony and launch by union, and
        `taxed_share` of `window_ns`; `critical_launch_ns`, launches of this GPU on the critical path
        (null where no launch is recorded); `locality_ns`, at most so much goes into reading again
        what the kernel before wrote (null without counters). The summary has sums.

    Notes
    -----
    The three taxes of "Eliminating Multi-GPU Performance Taxes" (arXiv 2511.02168), measured rather
    than modelled; gaps between kernels as Chopper has them (arXiv 2512.08242).
    """
    found = windows.of_ranks(trace, steps, ranks)
    calls = _waiting_calls(trace)
    gpus = _gpus(trace, sorted({w.rank for w in found}))
    critical = _critical_launches(trace, steps, ranks) if gpus else None
    rows = []
    for window in found:
        for device, gpu in gpus.get(window.rank, {}).items():
            row = _row(window, device, gpu, calls[window.rank])
            if critical is not None:
                key = (window.iteration, window.rank, device)
                row["critical_launch_ns"] = critical.get(key, 0)
            rows.append(row)
    summary = {name: _sum([row[name] for row in rows]) for name in _TIMES}
    about = windows.described(steps, "from the first start to the last end of a rank's GPU work")
    notes = {"window": about}
    if not rows:
        notes["no rows"] = "nothing ran on a GPU"
    return Result("taxes", _table(rows, steps), summary, _CONVENTIONS, notes=notes)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _waiting_calls(trace: Trace) -> dict[int, intervals.Union | None]:
    """By rank when the host was in calls that wait for GPUs; None where no calls are recorded."""
    edge = trace.array("kind", "edges") == EdgeKind.SYNC
    call = np.unique(trace.array("dst", "edges")[edge])
    rank, ts, dur = (trace.array(c)[call] for c in ("rank", "ts", "dur"))
    return {
        r: intervals.union(ts[rank == r], (ts + dur)[rank == r])
        if _IS_CALL[trace.array("kind")[rows]].any()
        else None
        for r, rows in trace.rank_rows.items()
    }


def _critical_launches(
    trace: Trace, steps: str, ranks: str
) -> dict[tuple[int, int, int], int] | None:
    """Time on the critical path between calls and what they launched, by step, rank and device.

    What is not there has none; None where no launches are recorded.
    """
    if not (trace.array("kind", "edges") == EdgeKind.LAUNCH).any():
        return None
    timing = timing_of(trace)
    graph, at = timing.graph, timing.at_ns
    rank, device = trace.array("rank"), trace.array("device", "lanes")[trace.array("lane")]
    found = spans.of(timing, steps, ranks)
    total: dict[tuple[int, int, int], int] = {}
    bounds = (found.iteration.tolist(), found.starts(at).tolist(), found.last(at).tolist())
    for step, start, last in zip(*bounds, strict=True):
        edges = timing.path(last, start)
        until = np.minimum.accumulate(at[graph.after[edges]][::-1])[::-1]  # no time counts twice
        took = until - np.clip(at[graph.src[edges]], start, until)
        launches = graph.kind[edges] == EdgeKind.LAUNCH
        node, took = graph.node[graph.after[edges[launches]]], took[launches]
        first, code = gather.distinct(rank[node], device[node])
        sums = gather.sums(code, took, len(first))
        columns = (rank[node[first]].tolist(), device[node[first]].tolist(), sums.tolist())
        total |= {(step, r, d): ns for r, d, ns in zip(*columns, strict=True)}
    return total


def _numbers(device: Array) -> list[int]:
    """Those that occur, ascending."""
    first, _ = gather.distinct(device)
    return sorted(device[first].tolist())


def _gpus(trace: Trace, ranks: list[int]) -> dict[int, dict[int, _Gpu]]:
    """What ran on the GPUs of ranks, by rank and device."""
    times = collective_times.of(trace)
    wait = np.full(trace.nodes.num_rows, -1, np.int64)
    wait[times.row] = times.wait
    trips = round_trips.of(trace)
    reading = np.where(trips.timed, trips.ns, -1)
    kind = trace.array("kind")
    device = trace.array("device", "lanes")[trace.array("lane")]
    found: dict[int, dict[int, _Gpu]] = {}
    for rank in ranks:
        at = trace.rank_rows[rank]
        rows = np.flatnonzero(_IS_WORK[kind[at]]) + at.start
        for number in _numbers(device[rows]):
            mine = rows[device[rows] == number]
            found.setdefault(rank, {})[number] = _gpu(trace, mine, wait[mine], reading[mine])
    return found


def _gpu(trace: Trace, rows: Array, wait: Array, reading: Array) -> _Gpu:
    kind, ts = trace.array("kind")[rows], trace.array("ts")[rows]
    end = ts + trace.array("dur")[rows]

    is_kernel, is_fill, waits = kind == Kind.KERNEL, kind == Kind.MEMSET, wait > 0
    kernels = intervals.union(ts[is_kernel], end[is_kernel])
    compute = is_kernel | is_fill
    return _Gpu(
        busy=intervals.union(ts, end),
        compute=intervals.union(ts[compute], end[compute]) if is_fill.any() else kernels,
        kernels=kernels,
        wait=intervals.union(ts[waits], (ts + wait)[waits]),
        is_waiting_known=bool((wait >= 0).any()) or not (kind == Kind.COMM).any(),
        is_launch_known=bool((is_kernel & (trace.launch[rows] >= 0)).any()),
        reads=ts[reading >= 0],
        reading=np.append(0, np.cumsum(reading[reading >= 0])),
    )


def _row(window: Window, device: int, gpu: _Gpu, calls: intervals.Union | None) -> dict[str, Any]:
    start, end = window.start_ns, window.end_ns
    busy, compute, kernels, wait = (
        _within(part, start, end) for part in (gpu.busy, gpu.compute, gpu.kernels, gpu.wait)
    )
    first, last = (int(kernels[0][0]), int(kernels[1][-1])) if len(kernels[0]) else (start, start)
    at_work = _within(busy, first, last)
    idle = last - first - intervals.length(at_work)
    launch = idle if gpu.is_launch_known else None
    row: dict[str, Any] = {
        "rank": window.rank,
        "device": device,
        "iteration": window.iteration,
        "window_ns": end - start,
        **dict.fromkeys((*_TIMES[1:], "taxed_share")),
        "gap_ns": last - first - intervals.length(kernels),
        "launch_ns": launch,
        "locality_ns": _locality(gpu, start, end),
    }
    if gpu.is_waiting_known:
        row["wait_ns"] = intervals.length(wait)
        row["exposed_wait_ns"] = _beyond(wait, compute)
    if calls is not None:
        row["sync_ns"] = _beyond(_within(calls, start, end), busy)
        if launch is not None:
            row["overlap_ns"] = _beyond(_within(calls, first, last), at_work)
    if gpu.is_waiting_known and calls is not None:
        row["bulk_sync_ns"] = row["wait_ns"] + row["sync_ns"]
    if launch is not None and row["bulk_sync_ns"] is not None:
        row["taxed_ns"] = row["bulk_sync_ns"] + launch - row["overlap_ns"]
        row["taxed_share"] = row["taxed_ns"] / (end - start) if end > start else None
    return row


def _locality(gpu: _Gpu, start: int, end: int) -> int | None:
    if not len(gpu.reads):
        return None
    first, last = np.searchsorted(gpu.reads, (start, end))
    return int(gpu.reading[last] - gpu.reading[first])


def _within(covered: intervals.Union, start: int, end: int) -> intervals.Union:
    """The part of a union in a window."""
    first = int(np.searchsorted(covered[1], start, "right"))
    last = int(np.searchsorted(covered[0], end, "left"))
    last = max(first, last)
    return np.maximum(covered[0][first:last], start), np.minimum(covered[1][first:last], end)


def _beyond(covered: intervals.Union, other: intervals.Union) -> int:
    """Time that one union covers and another does not."""
    return intervals.length(covered) - intervals.common(covered, other)


def _table(rows: list[dict[str, Any]], steps: str) -> pa.Table:
    numbers = ("rank", "device", *(["iteration"] if steps else []), *_TIMES)
    types = dict.fromkeys(numbers, pa.int64()) | {"taxed_share": pa.float64()}
    return pa.table({name: pa.array([row[name] for row in rows], t) for name, t in types.items()})
