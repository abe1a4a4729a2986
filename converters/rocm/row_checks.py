"""Contradictions between columns of the same row: they are counted, and left as recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows

BEFORE_DISPATCH = Fault.error(
    "kernel-before-dispatch",
    "Kernels that start before they were dispatched, by times of the same "
    "row: one of them is wrong. Times are left as they are.",
)
AFTER_COMPLETION = Fault.error(
    "kernel-after-completion",
    "Kernels that start after the host saw them complete, by times of the same row: the clock of "
    "the GPU is off by that much or more. Times are left as they are.",
)
OF_ANOTHER_RUN = Fault.info(
    "times-of-another-run",
    "No offset of a clock puts kernels between their dispatch and their completion, by times of "
    "the same rows: their starts and ends are those of another run, as rocprof-compute writes them.",
)
OTHER_DURATION = Fault.error(
    "duration-contradicts",
    "Rows whose duration is not their end less their start: start and end were taken.",
)
BEYOND_GRID = Fault.error(
    "workgroup-impossible",
    "Kernels with a workgroup that is larger than the grid or than 1,024 "
    "work-items, which no GPU runs: the two are swapped, or corrupt. They are left as they are.",
)

_CLOCK_RATES = 1000
"""Clocks of a GPU and its host differ by less than one part in this many. Chosen: far above the drift
of oscillators, below what kernels of two runs differ by (0.8 % of their span at least, in 11 tables)."""
_MAX_THREADS = 1024
"""Work-items of a workgroup at most, on all of AMD's GPUs (HIP's ``maxThreadsPerBlock``)."""
_PAIRS = (("grid", "workgroup"), *((f"grid_{a}", f"workgroup_{a}") for a in "xyz"))


def check_times(rows: TableRows, issues: IssueLog) -> None:
    """Count times of rows that contradict other columns of the same row."""
    start, end = rows.number("start"), rows.number("end")
    timed = rows.is_known("start")
    dispatched, completed = rows.number("dispatched"), rows.number("completed")
    early = np.flatnonzero(timed & (dispatched > 0) & (start < dispatched))
    late = np.flatnonzero(timed & (completed > 0) & (start > completed))
    if _of_another_run(start, end, dispatched, completed):
        issues.add(OF_ANOTHER_RUN, rows.count, rows.where)
    else:
        issues.add(
            BEFORE_DISPATCH,
            early.size,
            _example(rows, early, "starts at", start, "dispatched at", dispatched),
        )
        issues.add(
            AFTER_COMPLETION,
            late.size,
            _example(rows, late, "starts at", start, "completed at", completed),
        )
    if "duration" in rows.numbers:
        stated = rows.number("duration")
        comparable = timed & rows.is_known("end") & rows.is_known("duration")
        different = np.flatnonzero(comparable & (end - start != stated))
        issues.add(
            OTHER_DURATION,
            different.size,
            _example(rows, different, "lasts", end - start, "duration", stated),
        )


def _of_another_run(start: Array, end: Array, dispatched: Array, completed: Array) -> bool:
    """True if no offset of the GPU's clock puts kernels between dispatch and completion.

    A kernel alone, for which there is always one, is taken for one of another run.
    """
    outside = (start < dispatched) | (start > completed)
    if not (len(start) and outside.all() and (dispatched > 0).all() and (completed > 0).all()):
        return False
    min_offset, max_offset = (end - completed).max(), (start - dispatched).min()
    return len(start) == 1 or bool(
        min_offset - max_offset > (end.max() - start.min()) // _CLOCK_RATES
    )


def check_launch_shapes(rows: TableRows, issues: IssueLog, *, in_blocks: bool = False) -> None:
    """Count launches with impossible grids or workgroups.

    Parameters
    ----------
    rows
        A table with columns of `grid` and `workgroup`, in total or by axis.
    issues
        Log to which they are counted.
    in_blocks
        Whether grids count workgroups, rather than work-items.
    """
    wrong = np.zeros(rows.count, bool)
    for grid, workgroup in _PAIRS:
        if workgroup not in rows.numbers:
            continue
        workgroup_size, grid_size = rows.number(workgroup), rows.number(grid)
        wrong |= workgroup_size > _MAX_THREADS
        if not in_blocks:
            wrong |= (grid_size > 0) & (workgroup_size > grid_size)
    wrong |= _threads(rows) > _MAX_THREADS
    indices = np.flatnonzero(wrong)
    example = ""
    if indices.size:
        row = int(indices[0])
        grid, workgroup = (_shape_text(rows, shape, row) for shape in ("grid", "workgroup"))
        example = f"{rows.where}: {_name(rows, row)}workgroup {workgroup}, grid {grid}"
    issues.add(BEYOND_GRID, indices.size, example)


def _threads(rows: TableRows) -> Array:
    """Return work-items of a workgroup by its axes, 0 where one is unknown.

    Axes are clipped above the limit, so that the product of garbled ones does not overflow.
    """
    total = np.ones(rows.count, np.int64)
    for axis in "xyz":
        total *= np.clip(rows.number(f"workgroup_{axis}", 0), 0, _MAX_THREADS + 1)
    return total


def _shape_text(rows: TableRows, shape: str, row: int) -> str:
    columns = [c for c in (shape, *(f"{shape}_{a}" for a in "xyz")) if c in rows.numbers]
    return "x".join(str(rows.number(c)[row]) for c in columns)


def _name(rows: TableRows, row: int) -> str:
    codes, names = rows.codes("name")
    return f"{names[codes[row]][:60]!r} has " if codes[row] >= 0 else ""


def _example(
    rows: TableRows, indices: Array, first: str, values: Array, second: str, others: Array
) -> str:
    if not indices.size:
        return ""
    row = int(indices[0])
    return f"{rows.where}: {first} {values[row]}, {second} {others[row]}"
