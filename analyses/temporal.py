"""Where a GPU's time goes: computing, communicating, copying, waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, intervals
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

__all__ = ["temporal"]

_CONVENTIONS = {
    "window": "from the first start to the last end of a rank's GPU work",
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "counts as compute",
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute",
}


def temporal(trace: Trace) -> Result:
    """Time of each rank's GPUs by interval union, so that nothing is counted twice.

    Parameters
    ----------
    trace
        Any trace with GPU work.

    Returns
    -------
    Result
        One row a rank, all in nanoseconds: `span_ns` from the first start to the last end of GPU
        work; `busy_ns` when anything runs; `compute_ns` when a kernel or fill runs; `comm_ns`
        when something communicates; `memcpy_ns` when something copies; `overlap_ns` when compute
        and communication run at once; `exposed_comm_ns` = `comm_ns` - `overlap_ns`; `idle_ns` =
        `span_ns` - `busy_ns`. The summary has their sums over ranks.

    Notes
    -----
    The definitions are those of the temporal breakdown of Holistic Trace Analysis, on exact
    integer times and all of the GPU's work.
    """
    rows = [_rank(trace, rank) for rank in trace.ranks]
    names = ("span", "busy", "compute", "comm", "memcpy", "overlap", "exposed_comm", "idle")
    columns = ("rank", *(f"{name}_ns" for name in names))
    table = pa.table(
        {name: arrow.array(np.array([row[name] for row in rows], np.int64)) for name in columns}
    )
    total = {f"{name}_ns": sum(row[f"{name}_ns"] for row in rows) for name in names}
    return Result("temporal", table, {"ranks": len(rows)} | total, _CONVENTIONS)


def _rank(trace: Trace, rank: int) -> dict[str, int]:
    nodes = trace.rank(rank)
    kind, ts = nodes.array("kind"), nodes.array("ts")
    end = ts + nodes.array("dur")

    def covered(*kinds: Kind) -> intervals.Union:
        which = np.isin(kind, [int(k) for k in kinds])
        return intervals.union(ts[which], end[which])

    work = np.isin(kind, [int(k) for k in GPU_WORK])
    span = int(end[work].max() - ts[work].min()) if work.any() else 0
    busy = intervals.length(covered(*GPU_WORK))
    compute, comm = covered(Kind.KERNEL, Kind.MEMSET), covered(Kind.COMM)
    overlap = intervals.common(compute, comm)
    return {
        "rank": rank,
        "span_ns": span,
        "busy_ns": busy,
        "compute_ns": intervals.length(compute),
        "comm_ns": intervals.length(comm),
        "memcpy_ns": intervals.length(covered(Kind.MEMCPY)),
        "overlap_ns": overlap,
        "exposed_comm_ns": intervals.length(comm) - overlap,
        "idle_ns": span - busy,
    }
