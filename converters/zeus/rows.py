"""Rows of Zeus' CSV: a time, and cells by the names in the header.

A record of power is read by templates (`sampling.templates`); a log of windows line by line, as each row
has a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import Cell, CellColumn, ColumnBuilder, Item, Slot
from chopper_interop.converters.sampling.laid_columns import columns_of
from chopper_interop.converters.sampling.layouts import ANY, Guard, Layout, probe_number, slots_in
from chopper_interop.converters.sampling.stamps import times_of
from chopper_interop.converters.sampling.templates import read_lines
from chopper_interop.converters.sampling.text import csv_cells, encoded
from chopper_interop.converters.sampling.timestamps import LATEST_S, nanoseconds
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows

NO_NUMBER = Fault.loss_of_events("row-without-time", "Rows whose time is no number were left out.")
WINDOW_NAME = "window_name"
"""Column that a log of windows has."""
_FIRST_NAMES = ("start_time", "time", "timestamp")


@dataclass(frozen=True)
class Row:
    """A row that has a time, in nanoseconds."""

    time: int
    cells: list[str]


@dataclass(frozen=True)
class Table:
    """Rows of a file that have a time, in its order.

    Parameters
    ----------
    names
        Names of the columns.
    time
        Nanoseconds.
    windows
        The rows as texts, of a log of windows.
    columns
        The cells but for the time by the number of their column, of a record of power.
    events
        Rows of the file, including those that could not be read.
    """

    names: list[str]
    time: Array
    windows: list[Row]
    columns: dict[int, CellColumn]
    events: int


class _RowReader:
    """Reads lines that have no layout."""

    def __init__(self, issues: IssueLog) -> None:
        self.issues = issues
        self.names: list[str] = []
        self.state = 0
        """1 below the header."""
        self.rows = 0
        self.alone: list[tuple[int, Row]] = []
        self.lost = 0

    def effects(self) -> int:
        """Count what came out of lines so far."""
        return self.rows + self.lost + self.issues.total()

    def layout(self, probe: str, sample: str) -> Layout | None:  # noqa: ARG002 - the probe is enough
        """Return the layout of a row of a record of power."""
        cells = _cells(probe)
        if len(cells) != len(self.names) or WINDOW_NAME in self.names:
            return None
        return layout_of(cells[0], enumerate(cells[1:], 1), 0)

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        """Read a line."""
        if not text.strip(" \0"):
            return
        cells = _cells(text)
        if cells[0].lower() in _FIRST_NAMES:
            self._header([cell.lower() for cell in cells], text)
            return
        row = _row(self.names, cells, f"line {number}", self.issues)
        if row is None:
            self.lost += 1
            return
        if not is_complete and number > 2:  # noqa: PLR2004 - a header and a row
            row.cells[-1] = ""  # it may lack digits
            self.issues.add(faults.CELL_CUT)
        self.alone.append((self.rows, row))
        self.rows += 1

    def _header(self, names: list[str], line: str) -> None:
        if self.names and names != self.names:
            self.issues.add(faults.NOT_A_ROW, 1, f"another header: {line}"[:80])
        self.names, self.state = self.names or names, 1

    def finish(self, laid: LaidRows) -> Table:
        """Return the table of all rows."""
        time = np.empty(self.rows, np.int64)
        if len(laid.row):
            time[laid.row] = times_of(laid)
        time[[number for number, _ in self.alone]] = [row.time for _, row in self.alone]
        rows = [row for _, row in self.alone]
        columns: dict[int, CellColumn] = {}
        if WINDOW_NAME not in self.names:
            rows = []
            columns = columns_of(laid, self._columns(), cell_of_word)
        return Table(self.names, time, rows, columns, self.rows + self.lost)

    def _columns(self) -> dict[int, ColumnBuilder]:
        columns = {at: ColumnBuilder(name, place=at) for at, name in enumerate(self.names)}
        for number, row in self.alone:
            for at, cell in enumerate(row.cells[1:], 1):
                columns[at].add(number, cell)
        return {at: column for at, column in columns.items() if column.rows}


def rows_of(text: str, issues: IssueLog) -> Table:
    """Return the rows of a text that have a time."""
    reader = _RowReader(issues)
    return reader.finish(read_lines(encoded(text.lstrip("\ufeff")), reader))


def numbers_of_cells(column: CellColumn, number: Callable[[str, int], float]) -> Array:
    """Return the numbers of a column's cells.

    Parameters
    ----------
    column
        Column of cells of one item.
    number
        Makes a number of a text that is none in the template of its rows, of which there are so many.
    """
    value = np.full(len(column.row), np.nan)
    uses = column.uses().tolist()
    for code, cell in enumerate(column.distinct):
        item, rows = cell.items[0].value, column.rows_of(code)
        if isinstance(item, Slot):
            value[rows] = column.numbers_of(item.number, rows).value
        elif uses[code]:
            value[rows] = number(str(item), uses[code])
    return value


def cell_of_word(_: Hashable, text: str) -> Cell:
    """Return a cell that holds a text as it is."""
    return Cell((Item(text),))


def layout_of(time: str, cells: Iterable[tuple[int, str]], earliest_s: int) -> Layout | None:
    """Return the layout of a row of a probe; None if its time is no number, so that it is read alone."""
    slots = slots_in(time)
    if len(slots) != 1 or time != str(probe_number(slots[0])):
        return None
    return Layout((), (time,), tuple(cells), (Guard(slots[0], earliest_s, LATEST_S - 1, ANY),))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in csv_cells(line)] or [""]


def _row(names: list[str], cells: list[str], at: str, issues: IssueLog) -> Row | None:
    if not names:
        issues.add(faults.NO_HEADER, 1, at)
        return None
    more = len(cells) - len(names)
    if more > 0 and names[1:2] == [WINDOW_NAME]:  # Zeus does not quote names with commas
        cells = [cells[0], ",".join(cells[1 : 2 + more]), *cells[2 + more :]]
    if len(cells) != len(names):
        issues.add(faults.CUT, 1, f"{at}: {len(cells)} cells for {len(names)} columns")
        return None
    time = nanoseconds(cells[0])
    if time is None or time < 0:
        issues.add(NO_NUMBER if time is None else faults.BEFORE_1970, 1, f"{at}: {cells[0]}"[:80])
        return None
    return Row(time, cells)
