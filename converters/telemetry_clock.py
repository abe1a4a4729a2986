"""Clocks that step back while a tool writes: rows earlier than one above them of the same GPU.

Tools that print the wall clock repeat an hour when summer time ends, and go back where the clock
is set. Such rows keep the time that they have, so that samples of two moments lie beside each
other; that is said and not mended, for nothing tells by how much the clock was off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.telemetry_numbers import SECOND
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

TOLERANCE_NS = SECOND
"""No more than this back is the order in which rows were written, or rounding to seconds."""

STEPPED_BACK = Fault(
    "clock-stepped-back",
    Severity.ERROR,
    "Rows have times more than 1 s before that of an earlier row of the same GPU: the clock was "
    "set back (summer time ended, or it was corrected), or files were put together out of order. "
    "They stand at the times that were written; of a wall clock, -O tz=<zone> may tell the hours "
    "apart where the format has that option.",
)


def note_steps(time: Array, whose: Array, issues: IssueLog, where: str = "") -> None:
    """Count rows that are earlier than one above them of the same GPU.

    Parameters
    ----------
    time
        Nanoseconds, rows in the order of the file.
    whose
        Number of what each row is of: a GPU, or a part of it.
    issues
        Where they are counted.
    where
        What to put in front of the example.
    """
    if not len(time):
        return
    order = np.argsort(whose, kind="stable")
    begins = np.flatnonzero(np.diff(whose[order])) + 1
    latest = [np.maximum.accumulate(part) for part in np.split(time[order], begins)]
    behind = np.empty(len(time), np.int64)
    behind[order] = np.concatenate(latest) - time[order]
    rows = np.flatnonzero(behind > TOLERANCE_NS)
    if len(rows):
        row = int(rows[0])
        told = f"row {row + 1} of those with a time is {behind[row] / SECOND:.3f} s back"
        issues.add(STEPPED_BACK, len(rows), f"{where}: {told}" if where else told)
