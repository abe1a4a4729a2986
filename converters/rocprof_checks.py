"""What the columns of dispatches say against each other: it is told, and left as recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows

BEFORE_DISPATCH = Fault(
    "kernel-before-dispatch",
    Severity.ERROR,
    "Kernels that start before they were dispatched, by times of the same row: one of them is "
    "wrong. Times are left as they are.",
)
OTHER_DURATION = Fault(
    "duration-contradicts",
    Severity.ERROR,
    "Rows whose duration is not their end less their start: start and end were taken.",
)
BEYOND_GRID = Fault(
    "workgroup-impossible",
    Severity.ERROR,
    "Kernels with a workgroup that is larger than the grid or than 1,024 work-items, which no GPU "
    "runs: the two are swapped, or corrupt. They are left as they are.",
)

_MOST_THREADS = 1024
_PAIRS = (("grid", "workgroup"), *((f"grid_{a}", f"workgroup_{a}") for a in "xyz"))


def times(rows: Rows, issues: IssueLog) -> None:
    """Count times of rows that contradict other columns of the same row."""
    start, end = rows.number("start"), rows.number("end")
    timed = rows.is_known("start")
    if "dispatched" in rows.numbers:
        dispatched = rows.number("dispatched")
        early = np.flatnonzero(timed & (dispatched > 0) & (start < dispatched))
        issues.add(
            BEFORE_DISPATCH,
            early.size,
            _example(rows, early, "starts at", start, "dispatched at", dispatched),
        )
    if "duration" in rows.numbers:
        told = rows.number("duration")
        whole = timed & rows.is_known("end") & rows.is_known("duration")
        other = np.flatnonzero(whole & (end - start != told))
        issues.add(
            OTHER_DURATION,
            other.size,
            _example(rows, other, "lasts", end - start, "duration", told),
        )


def shapes(rows: Rows, issues: IssueLog, *, in_blocks: bool = False) -> None:
    """Count launch shapes that cannot be.

    Parameters
    ----------
    rows
        A table with columns of `grid` and `workgroup`, whole or by axis.
    issues
        Where they are counted.
    in_blocks
        Whether the grid is one of workgroups, and not of work-items.
    """
    wrong = np.zeros(rows.count, bool)
    for grid, workgroup in _PAIRS:
        if workgroup not in rows.numbers:
            continue
        theirs, whole = rows.number(workgroup), rows.number(grid)
        wrong |= theirs > _MOST_THREADS
        if not in_blocks:
            wrong |= (whole > 0) & (theirs > whole)
    wrong |= _threads(rows) > _MOST_THREADS
    found = np.flatnonzero(wrong)
    example = ""
    if found.size:
        row = int(found[0])
        grid, workgroup = (_shape(rows, what, row) for what in ("grid", "workgroup"))
        example = f"{rows.where}: {_name(rows, row)}workgroup {workgroup}, grid {grid}"
    issues.add(BEYOND_GRID, found.size, example)


def _threads(rows: Rows) -> Array:
    """Work-items of a workgroup by its axes; 0 where one is not known, more than fits as most."""
    total = np.ones(rows.count, np.int64)
    for axis in "xyz":
        size = np.clip(rows.number(f"workgroup_{axis}", 0), 0, _MOST_THREADS + 1)
        total *= size
    return total


def _shape(rows: Rows, what: str, row: int) -> str:
    columns = [c for c in (what, *(f"{what}_{a}" for a in "xyz")) if c in rows.numbers]
    return "x".join(str(rows.number(c)[row]) for c in columns)


def _name(rows: Rows, row: int) -> str:
    codes, names = rows.codes("name")
    return f"{names[codes[row]][:60]!r} has " if codes[row] >= 0 else ""


def _example(
    rows: Rows, found: Array, first: str, values: Array, second: str, others: Array
) -> str:
    if not found.size:
        return ""
    row = int(found[0])
    return f"{rows.where}: {first} {values[row]}, {second} {others[row]}"
