"""One file of CharLLM-PPT: a time and a value a row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling.cells import ColumnBuilder
from chopper_interop.converters.sampling.faults import EMPTY
from chopper_interop.converters.sampling.laid_columns import columns_of
from chopper_interop.converters.sampling.stamps import times_of
from chopper_interop.converters.sampling.templates import read_lines
from chopper_interop.converters.sampling.text import decode_lines, encoded
from chopper_interop.converters.sampling.timestamps import EARLIEST_S, SECOND, nanoseconds
from chopper_interop.converters.zeus.rows import (
    cell_of_word,
    layout_of,
    numbers_of_cells,
)
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows
    from chopper_interop.converters.sampling.layouts import Layout
    from chopper_interop.converters.zeus import charllm_metrics as tables

UNKNOWN = Fault.info_of_events(
    "reading-failed",
    "Values of -1 or N/A, which stand for an error of the reading, were left out.",
)
CUT = Fault.loss_of_events("row-cut-short", "Rows that are not a time and a number were left out.")
CELL_CUT = Fault.loss_of_events(
    "row-perhaps-cut", "The file ends within a row, whose value may lack digits: it was left out."
)
OTHER_NAME = Fault.loss_of_events(
    "file-name-unknown",
    "Files of two columns of numbers, of which only the name could tell what they "
    "are, and none that CharLLM-PPT gives ({metric}_{rank}.csv, such as gpu_power_0.csv): they "
    "were left out. Rename them if they are its.",
)

_LARGEST = 1e19
"""Beyond what any counter holds."""
_NO_VALUE = frozenset({"n/a", "nan", "none", ""})
_ABSENT = -np.inf
"""In place of values that stand for an error."""
_BLANK = " \t\0"
"""Characters of lines without content."""


@dataclass(frozen=True)
class File:
    """Rows of one file that hold a time and a value, in its order."""

    path: Path
    named: tables.Named
    time: Array
    value: Array


class _PairReader:
    """Reads lines that have no layout."""

    def __init__(self) -> None:
        self.rows = self.state = self.wrong = 0
        self.is_cut = False
        self.times: dict[int, int] = {}
        self.value = ColumnBuilder("value")

    def effects(self) -> int:
        """Count what came out of lines so far."""
        return self.rows + self.wrong

    def layout(self, probe: str, sample: str) -> Layout | None:  # noqa: ARG002 - the probe is enough
        """Return the layout of a time and a value."""
        cells = [cell.strip() for cell in probe.split(",")]
        return layout_of(cells[0], [(0, cells[1])], EARLIEST_S) if len(cells) == 2 else None  # noqa: PLR2004

    def line(self, text: str, number: int, *, is_complete: bool) -> None:  # noqa: ARG002 - no message has it
        """Read a line."""
        if not text.strip(_BLANK):
            return
        cells = [cell.strip() for cell in text.split(",")]
        time = nanoseconds(cells[0]) if len(cells) == 2 and is_complete else None  # noqa: PLR2004
        self.is_cut |= not is_complete
        if time is not None and time >= EARLIEST_S * SECOND:
            self.times[self.rows] = time
            self.value.add(self.rows, cells[1])
            self.rows += 1
        else:
            self.wrong += is_complete

    def finish(self, laid: LaidRows) -> tuple[Array, Array, Array]:
        """Return times, values, and a mask of values that say that there is none."""
        time = np.empty(self.rows, np.int64)
        time[list(self.times)] = list(self.times.values())
        if len(laid.row):
            time[laid.row] = times_of(laid)
        singles = {0: self.value} if self.times else {}
        columns = columns_of(laid, singles, cell_of_word)
        value = numbers_of_cells(columns[0], _number) if columns else np.zeros(0)
        return time, np.where(value == _ABSENT, np.nan, value), value == _ABSENT


def read_file(path: Path, named: tables.Named | None, issues: IssueLog) -> tuple[File | None, int]:
    """Read the content of a file and its number of rows."""
    text = decode_lines(inputs.read(path, issues)).lstrip("\ufeff")
    if not text.endswith("\n"):
        text = text.rstrip(_BLANK + "\n")  # blank lines at the end are not what was cut
    reader = _PairReader()
    time, value, absent = reader.finish(read_lines(encoded(text), reader))
    lines = len(time) + reader.wrong + reader.is_cut
    if named is None:
        issues.add(OTHER_NAME, lines, path.name)
        return None, lines
    issues.add(EMPTY, int(not lines))
    issues.add(CELL_CUT, int(reader.is_cut), path.name)
    issues.add(UNKNOWN, np.count_nonzero(absent), path.name)
    good = ~np.isnan(value)
    issues.add(CUT, reader.wrong + np.count_nonzero(~good & ~absent), path.name)
    return File(path, named, time[good], value[good]), lines


def _number(text: str, _: int) -> float:
    """Return a value; `_ABSENT` if it says that there is none, NaN if it is no number."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if value == -1 or text.lower() in _NO_VALUE:
        return _ABSENT
    return value if abs(value) <= _LARGEST else np.nan
