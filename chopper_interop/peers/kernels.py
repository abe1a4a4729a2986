"""Time by type of kernel as Holistic Trace Analysis tells it, on what it counts (`peers`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.activity import windows
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.peers import temporal
from chopper_interop.result import Result

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_TYPES = (
    (temporal.COMPUTE, "COMPUTATION"),
    (temporal.COMM, "COMMUNICATION"),
    (temporal.MEMORY, "MEMORY"),
)
_CONVENTIONS = temporal.CONVENTIONS["hta"] | {
    "definition": "Holistic Trace Analysis (traceinsight 0.6.1), get_gpu_kernel_breakdown with "
    "memory kernels: of each type the time in which it alone ran, and of types beside each other "
    "the time in which just these did, by interval union, summed over ranks; waits are in none",
}


def kernels(trace: Trace, compat: str, ranks: str, *, default: bool) -> Result:
    """Time by type of kernel as another tool gives it: a row for each type and overlap of types.

    Parameters
    ----------
    trace
        Any trace.
    compat
        "hta"; "charllm" is answered by `peers.charllm_kernels`.
    ranks
        As of `windows.chosen_ranks`.
    default
        Whether the other options are as they are by default.
    """
    if compat != "hta":
        raise NoSuchDefinitionsError(f"compat={compat}: there are charllm, hta")
    if not default:
        raise NoSuchDefinitionsError(
            "compat=hta has rows of types of kernels and a window of its own",
            hint="leave by and steps out",
        )
    chosen = windows.chosen_ranks(trace, ranks)
    total = np.sum([_of_rank(trace, rank) for rank in chosen] or [np.zeros(8)], axis=0)
    names = [
        " overlapping ".join(name for bit, (_, name) in enumerate(_TYPES) if mask >> bit & 1)
        for mask in range(8)
    ]
    order = [m for m in np.argsort(-total, kind="stable").tolist() if m and total[m] > 0]
    whole = float(total[1:].sum())
    rows = pa.table(
        {
            "kernel_type": pa.array([names[m] for m in order], pa.string()),
            "sum_us": pa.array([float(total[m]) for m in order], pa.float64()),
            "percent": pa.array([round(100 * total[m] / whole, 1) for m in order], pa.float64()),
        }
    )
    nothing = {} if order else {"no rows": "there is no GPU work in what was asked about"}
    summary = {"ranks": len(chosen), "sum_us": whole}
    return Result("kernels", rows, summary, _CONVENTIONS, notes=nothing)


def _of_rank(trace: Trace, rank: int) -> Array:
    """Microseconds in which just these types run, by a mask of types."""
    events = temporal.hta_events(trace, rank)
    found = np.zeros(8)
    if not events.start.size:
        return found
    moments, changes = [], []
    for bit, (sort, _) in enumerate(_TYPES):
        start, end = temporal.merged(*events.of(sort))
        moments += [start, end]
        changes += [np.full(len(start), 1 << bit), np.full(len(end), -(1 << bit))]
    moment = np.concatenate(moments)
    order = np.argsort(moment, kind="stable")
    running = np.cumsum(np.concatenate(changes)[order])[:-1]
    lasting = np.diff(moment[order])
    some = (lasting > 0) & (running > 0) & (running < len(found))
    found += np.bincount(running[some], lasting[some], len(found))
    return found
