"""Time by type of kernel by Holistic Trace Analysis' definition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.peers import temporal
from chopper_interop.arrays import Array
from chopper_interop.errors import NoSuchDefinitionsError, similar
from chopper_interop.result import Result
from chopper_interop.trace import Trace

_TYPES = (
    (temporal.COMPUTE, "COMPUTATION"),
    (temporal.COMM, "COMMUNICATION"),
    (temporal.MEMORY, "MEMORY"),
)
_CONVENTIONS = temporal.CONVENTIONS["hta"] | {
    "definition": "Holistic Trace Analysis (traceinsight 0.6.1), get_gpu_kernel_breakdown with "
    "memory kernels: for each type the time in which it alone ran, and for overlapping types "
    "the time in which just these ran, by interval union, summed over ranks; waits are in none",
}


def kernels(trace: Trace, compat: str, ranks: str, *, default: bool) -> Result:
    """Sum time by type of kernel as another tool does: a row for each type and overlap of types.

    Parameters
    ----------
    compat
        "hta"; "charllm" is handled by `peers.charllm_kernels`.
    ranks
        As in `windows.chosen_ranks`.
    default
        True if all other options have their defaults.
    """
    if compat != "hta":
        hint = similar(compat, ("charllm", "hta"))
        raise NoSuchDefinitionsError(f"compat={compat}: there is no {compat!r}", hint=hint)
    if not default:
        raise NoSuchDefinitionsError(
            "compat=hta has rows of types of kernels and a window of its own",
            hint="leave by and steps out",
        )
    chosen_ranks = windows.chosen_ranks(trace, ranks)
    total = np.sum([_times_of_rank(trace, rank) for rank in chosen_ranks] or [np.zeros(8)], axis=0)
    names = [
        " overlapping ".join(name for bit, (_, name) in enumerate(_TYPES) if mask >> bit & 1)
        for mask in range(8)
    ]
    order = [m for m in np.argsort(-total, kind="stable").tolist() if m and total[m] > 0]
    sum_us = float(total[1:].sum())
    rows = pa.table(
        {
            "kernel_type": pa.array([names[m] for m in order], pa.string()),
            "sum_us": pa.array([float(total[m]) for m in order], pa.float64()),
            "percent": pa.array([round(100 * total[m] / sum_us, 1) for m in order], pa.float64()),
        }
    )
    notes = {} if order else {"no rows": "the chosen ranks have no GPU work"}
    summary = {"ranks": len(chosen_ranks), "sum_us": sum_us}
    return Result("kernels", rows, summary, _CONVENTIONS, notes=notes)


def _times_of_rank(trace: Trace, rank: int) -> Array:
    """Return microseconds in which just these types run, by bit mask of types."""
    events = temporal.hta_events(trace, rank)
    by_mask = np.zeros(8)
    if not events.start.size:
        return by_mask
    # sweep over starts and ends: each adds or removes its type's bit, so that the running sum is the
    # mask of types that run until the next one
    parts, changes = [], []
    for bit, (event_type, _) in enumerate(_TYPES):
        start, end = temporal.merged(*events.intervals_of(event_type))
        parts += [start, end]
        changes += [np.full(len(start), 1 << bit), np.full(len(end), -(1 << bit))]
    times = np.concatenate(parts)
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.concatenate(changes)[order])[:-1]
    lasting = np.diff(times[order])
    counts = (lasting > 0) & (running > 0) & (running < len(by_mask))
    by_mask += np.bincount(running[counts], lasting[counts], len(by_mask))
    return by_mask
