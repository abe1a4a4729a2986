"""Three taxes of work on several GPUs: waiting for each other, launching, and going through memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import collective_times, intervals, windows
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.trace import Trace
    from chopper_interop.windows import Window

    Array = npt.NDArray[Any]

__all__ = ["taxes"]

_TIMES = (
    "window_ns", "wait_ns", "exposed_wait_ns", "sync_ns", "bulk_sync_ns", "gap_ns", "launch_ns",
    "overlap_ns", "taxed_ns",
)  # fmt: skip
_CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "fills keep a GPU busy, and end no gap between kernels",
    "copies": "copies keep a GPU busy",
    "bulk_sync_ns": "wait_ns (members of collectives that wait for others, by union) + sync_ns (the "
    "GPU does nothing and the host is in a call that waits for it); the two share no time",
    "gap_ns": "between kernels that compute (Chopper's launch overhead, prep + call); launch_ns of "
    "it, when nothing ran on the GPU: neither communication nor copies",
    "overlap_ns": "in both sync_ns and launch_ns: the host could not launch since it waited. "
    "taxed_ns = bulk_sync_ns + launch_ns - overlap_ns",
    "locality": "not in taxed_ns: it lies within kernels that run",
}


@dataclass(frozen=True)
class _Gpu:
    """What ran on a GPU of a rank, as unions."""

    busy: intervals.Union
    compute: intervals.Union
    kernels: intervals.Union
    wait: intervals.Union
    is_waiting_known: bool


def taxes(trace: Trace, *, steps: str = "", ranks: str = "") -> Result:
    """What ranks and steps lose by bulk synchrony, launches and round trips through memory.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    steps, ranks
        As of all analyses.

    Returns
    -------
    Result
        One row for each GPU of a rank and each window, in nanoseconds: `wait_ns` in which
        communication waited for others (null if nothing tells, as of one rank), `exposed_wait_ns`
        of it without compute beside; `sync_ns` in which the GPU did nothing while the host waited
        for it; `bulk_sync_ns`, both; `gap_ns` between kernels, `launch_ns` of it with the GPU idle;
        `overlap_ns` of sync and launch; `taxed_ns`, bulk synchrony and launch by union, and
        `taxed_share` of `window_ns`. The summary has sums.

    Notes
    -----
    The three taxes of "Eliminating Multi-GPU Performance Taxes" (arXiv 2511.02168), measured rather
    than modelled; gaps between kernels as Chopper has them (arXiv 2512.08242).
    """
    found = windows.of_ranks(trace, steps, ranks)
    calls = _waiting_calls(trace)
    gpus = _gpus(trace, sorted({w.rank for w in found}))
    rows = [
        _row(window, device, gpu, calls[window.rank])
        for window in found
        for device, gpu in gpus.get(window.rank, {}).items()
    ]
    summary = {name: _sum([row[name] for row in rows]) for name in _TIMES}
    window = windows.described(steps, "from the first start to the last end of a rank's GPU work")
    told = {"window": window, **_CONVENTIONS}
    if not rows:
        told["no rows"] = "nothing ran on a GPU"
    return Result("taxes", _table(rows, steps), summary, told)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _waiting_calls(trace: Trace) -> dict[int, intervals.Union]:
    """By rank when the host was in calls that wait for GPUs."""
    edge = trace.array("kind", "edges") == EdgeKind.SYNC
    call = np.unique(trace.array("dst", "edges")[edge])
    rank, ts, dur = (trace.array(c)[call] for c in ("rank", "ts", "dur"))
    return {r: intervals.union(ts[rank == r], (ts + dur)[rank == r]) for r in trace.ranks}


def _gpus(trace: Trace, ranks: list[int]) -> dict[int, dict[int, _Gpu]]:
    """What ran on the GPUs of ranks, by rank and device."""
    times = collective_times.of(trace)
    wait = np.full(trace.nodes.num_rows, -1, np.int64)
    wait[times.row] = times.wait
    kind = trace.array("kind")
    device = trace.array("device", "lanes")[trace.array("lane")]
    found: dict[int, dict[int, _Gpu]] = {}
    for rank in ranks:
        at = trace.rank_rows[rank]
        rows = np.flatnonzero(np.isin(kind[at], [int(k) for k in GPU_WORK])) + at.start
        for number in np.unique(device[rows]).tolist():
            mine = rows[device[rows] == number]
            found.setdefault(rank, {})[number] = _gpu(trace, mine, wait[mine])
    return found


def _gpu(trace: Trace, rows: Array, wait: Array) -> _Gpu:
    kind, ts = trace.array("kind")[rows], trace.array("ts")[rows]
    end = ts + trace.array("dur")[rows]

    def covered(*kinds: Kind) -> intervals.Union:
        which = np.isin(kind, [int(k) for k in kinds])
        return intervals.union(ts[which], end[which])

    return _Gpu(
        busy=covered(*GPU_WORK),
        compute=covered(Kind.KERNEL, Kind.MEMSET),
        kernels=covered(Kind.KERNEL),
        wait=intervals.union(ts, ts + np.maximum(wait, 0)),
        is_waiting_known=bool((wait >= 0).any()) or not (kind == Kind.COMM).any(),
    )


def _row(window: Window, device: int, gpu: _Gpu, calls: intervals.Union) -> dict[str, Any]:
    start, end = window.start_ns, window.end_ns
    busy, compute, kernels, wait, sync = (
        _within(part, start, end) for part in (gpu.busy, gpu.compute, gpu.kernels, gpu.wait, calls)
    )
    waited, idle_sync = intervals.length(wait), _beyond(sync, busy)
    gap = launch = shared = 0
    if len(kernels[0]):
        between = int(kernels[0][0]), int(kernels[1][-1])
        gap = between[1] - between[0] - intervals.length(kernels)
        at_work = _within(busy, *between)
        launch = between[1] - between[0] - intervals.length(at_work)
        shared = _beyond(_within(sync, *between), at_work)
    taxed = waited + idle_sync + launch - shared
    return {
        "rank": window.rank,
        "device": device,
        "iteration": window.iteration,
        "window_ns": end - start,
        "wait_ns": waited if gpu.is_waiting_known else None,
        "exposed_wait_ns": _beyond(wait, compute) if gpu.is_waiting_known else None,
        "sync_ns": idle_sync,
        "bulk_sync_ns": waited + idle_sync,
        "gap_ns": gap,
        "launch_ns": launch,
        "overlap_ns": shared,
        "taxed_ns": taxed,
        "taxed_share": taxed / (end - start) if end > start else None,
    }


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
