"""Instances of operations on GPUs: kernels of one operation that ran with no other in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import distributions
from chopper_interop.analyses.methods.activity import pieces
from chopper_interop.arrays import Array, arrow, intervals
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.comm_overlap import Overlap
    from chopper_interop.analyses.methods.activity.pieces import WorkPieces

_KEYS = ("iteration", "phase", "layer", "operation")


def instance_table(
    trace: Trace, work: WorkPieces, overlaps: Overlap, *, chopper: bool = False
) -> tuple[pa.Table, int]:
    """One row an instance, in order of windows and start, and the number of kernels in none.

    Parameters
    ----------
    work
        Pieces of the trace's GPU work.
    overlaps
        Their overlap with communication.
    chopper
        By Chopper's definition: the last kernel to start ends it, and communication that runs at once
        counts several times, up to the elapsed time.
    """
    computes = np.flatnonzero(work.work_class == pieces.COMPUTE)
    rows = computes[np.lexsort((computes, overlaps.gpu[computes], work.window[computes]))]
    compute = work.where(rows)
    gpu = overlaps.gpu[rows]
    codes = {name: trace.integers(name, compute.row) for name in _KEYS}
    keys = (compute.window, gpu, *codes.values())
    new = np.zeros(len(rows), np.bool_)
    new[:1] = True
    for column in keys:  # an instance is a run of rows with equal keys
        new[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, len(rows)))
    start = compute.start[first]
    end = np.maximum.reduceat(compute.end, first)
    if chopper:
        end = compute.end[first + size - 1]
    known = codes["operation"][first] >= 0
    first, size, start, end = first[known], size[known], start[known], end[known]
    overlap = _overlap(work, overlaps, gpu[first], start, end, chopper=chopper)
    device = trace.array("device", "lanes")[trace.array("lane")[compute.row[first]]]
    columns = {
        "rank": arrow.array(trace.array("rank")[compute.row[first]]),
        "device": arrow.array(device.astype(np.int32)),
        **{name: _texts(trace, name, codes[name][first]) for name in _KEYS},
        "kernels": arrow.array(size.astype(np.int64)),
        "start_ns": arrow.array(start),
        "elapsed_ns": arrow.array(end - start),
        "overlap_ns": arrow.array(overlap),
        "overlap_share": distributions.ratios(overlap, end - start),
    }
    return pa.table(columns), len(rows) - int(size.sum())


def left_out_note(left_out: int) -> str:
    """Note on kernels that are not in the table."""
    return f"left out are {left_out} kernels and fills whose operation is not known"


def conventions(*, chopper: bool) -> dict[str, str]:
    """Conventions of the table."""
    texts = {
        "instance": "kernels and fills of one operation, layer, phase and iteration that a GPU ran "
        "without computing anything else in between",
    }
    if chopper:
        texts["definition"] = (
            "Chopper v0.10: from the first start to the end of the kernel that started last; overlap "
            "is summed over communication kernels and cut at the elapsed time, so what communicates "
            "at once counts several times"
        )
    return texts


def _overlap(
    work: WorkPieces, overlaps: Overlap, gpu: Array, start: Array, end: Array, *, chopper: bool
) -> Array:
    """Time in which something communicates on the GPU of each instance, nanoseconds."""
    if not chopper:
        return overlaps.overlap_with(pieces.COMM, gpu, start, end)
    total = np.zeros(len(gpu), np.int64)
    for number in range(overlaps.gpus):
        comm = (overlaps.gpu == number) & (work.work_class == pieces.COMM)
        rows = gpu == number
        comm_intervals = work.start[comm], work.end[comm]
        total[rows] = intervals.overlap_sums(start[rows], end[rows], comm_intervals)
    return np.minimum(total, end - start)


def _texts(trace: Trace, name: str, code: Array) -> Any:
    """Values of a column by its codes."""
    unknown = code < 0
    if name in ("iteration", "layer"):
        return arrow.array(code.astype(np.int32), mask=unknown)
    names = trace.texts(name)[1]
    return pa.array([None if c < 0 else names[c] for c in code.tolist()], pa.string())
