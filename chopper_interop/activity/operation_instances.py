"""Instances of operations on GPUs: what ran of one operation with nothing else in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import beside, pieces
from chopper_interop.columns import arrow, intervals

if TYPE_CHECKING:
    from chopper_interop.activity.beside import Beside
    from chopper_interop.activity.pieces import Pieces
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_TOLD = ("iteration", "phase", "layer", "operation")


def table(
    trace: Trace, work: Pieces, others: Beside, *, chopper: bool = False
) -> tuple[pa.Table, int]:
    """One row an instance, in order of windows and start, and how many kernels are in none.

    Parameters
    ----------
    trace
        The trace.
    work
        Pieces of its GPU work.
    others
        What runs beside them.
    chopper
        As Chopper has it: the last kernel to start ends it, and communication that runs at once
        counts several times, up to the whole.
    """
    computes = np.flatnonzero(work.sort == pieces.COMPUTE)
    rows = computes[np.lexsort((computes, others.gpu[computes], work.window[computes]))]
    mine = work.where(rows)
    gpu = others.gpu[rows]
    codes = {name: _codes(trace, name, mine.row) for name in _TOLD}
    told = (mine.window, gpu, *codes.values())
    new = np.zeros(len(rows), np.bool_)
    new[:1] = True
    for column in told:
        new[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, len(rows)))
    start = mine.start[first]
    end = np.maximum.reduceat(mine.end, first) if first.size else start
    if chopper:
        end = mine.end[first + size - 1]
    known = codes["operation"][first] >= 0
    first, size, start, end = first[known], size[known], start[known], end[known]
    overlap = _overlap(work, others, gpu[first], start, end, chopper=chopper)
    device = trace.array("device", "lanes")[trace.array("lane")[mine.row[first]]]
    columns = {
        "rank": arrow.array(trace.array("rank")[mine.row[first]]),
        "device": arrow.array(device.astype(np.int32)),
        **{name: _texts(trace, name, codes[name][first]) for name in _TOLD},
        "kernels": arrow.array(size.astype(np.int64)),
        "start_ns": arrow.array(start),
        "elapsed_ns": arrow.array(end - start),
        "overlap_ns": arrow.array(overlap),
        "overlap_share": beside.share(overlap, end - start),
    }
    return pa.table(columns), len(rows) - int(size.sum())


def left_out_told(left_out: int) -> str:
    """What is said of operations that are not in the table."""
    return f"left out are {left_out} kernels and fills whose operation is not known"


def conventions(*, chopper: bool) -> dict[str, str]:
    """What rows are."""
    told = {
        "instance": "kernels and fills of one operation, layer, phase and iteration that a GPU ran "
        "without computing anything else in between",
    }
    if chopper:
        told["definition"] = (
            "Chopper v0.10: from the first start to the end of the kernel that started last; overlap "
            "is summed over communication kernels and cut at the elapsed time, so what communicates "
            "at once counts several times"
        )
    return told


def _overlap(
    work: Pieces, others: Beside, gpu: Array, start: Array, end: Array, *, chopper: bool
) -> Array:
    if not chopper:
        return others.beside(pieces.COMM, gpu, start, end)
    total = np.zeros(len(gpu), np.int64)
    for number in range(len(others.when)):
        comm = (others.gpu == number) & (work.sort == pieces.COMM)
        mine = gpu == number
        by = work.start[comm], work.end[comm]
        total[mine] = intervals.summed(start[mine], end[mine], by)
    return np.minimum(total, end - start)


def _codes(trace: Trace, name: str, row: Array) -> Array:
    if name not in trace.nodes.column_names:
        return np.full(len(row), -1, np.int64)
    return arrow.numbers(trace.nodes[name], -1)[row].astype(np.int64)


def _texts(trace: Trace, name: str, code: Array) -> Any:
    """Values of a column by its codes."""
    unknown = code < 0
    if name in ("iteration", "layer"):
        return arrow.array(code.astype(np.int32), mask=unknown)
    if name not in trace.nodes.column_names:
        return pa.nulls(len(code), pa.string())
    values = arrow.flat(trace.nodes[name]).dictionary.to_pylist()
    return pa.array([None if c < 0 else values[c] for c in code.tolist()], pa.string())
