"""Rows of Zeus' CSV: a time, and cells by the names in the header."""

from __future__ import annotations

from dataclasses import dataclass

from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.text import csv_cells
from chopper_interop.converters.sampling.timestamps import nanoseconds
from chopper_interop.issues import Fault, IssueLog

NO_NUMBER = Fault.loss_of_events("row-without-time", "Rows whose time is no number were left out.")


@dataclass(frozen=True)
class Row:
    """A row that has a time, in nanoseconds."""

    time: int
    cells: list[str]


def rows_of(text: str, issues: IssueLog) -> tuple[list[str], list[Row], int]:
    """Names of columns, rows that have a time, and how many rows there are."""
    names: list[str] = []
    rows: list[Row] = []
    events = 0
    lines = text.lstrip("\ufeff").split("\n")
    for number, line in enumerate(lines):
        if not line.strip(" \0"):
            continue
        cells = [cell.strip() for cell in csv_cells(line)] or [""]
        if cells[0].lower() in ("start_time", "time", "timestamp"):
            header = [cell.lower() for cell in cells]
            if names and header != names:
                issues.add(faults.NOT_A_ROW, 1, f"another header: {line}"[:80])
            names = names or header
            continue
        events += 1
        row = _row(names, cells, f"line {number + 1}", issues)
        if row is not None and number == len(lines) - 1 and number > 1:
            row.cells[-1] = ""  # it may lack digits
            issues.add(faults.CELL_CUT)
        rows += [row] if row is not None else []
    return names, rows, events


def _row(names: list[str], cells: list[str], at: str, issues: IssueLog) -> Row | None:
    if not names:
        issues.add(faults.NO_HEADER, 1, at)
        return None
    more = len(cells) - len(names)
    if more > 0 and names[1:2] == ["window_name"]:  # Zeus does not quote names with commas
        cells = [cells[0], ",".join(cells[1 : 2 + more]), *cells[2 + more :]]
    if len(cells) != len(names):
        issues.add(faults.CUT, 1, f"{at}: {len(cells)} cells for {len(names)} columns")
        return None
    time = nanoseconds(cells[0])
    if time is None or time < 0:
        issues.add(NO_NUMBER, 1, f"{at}: {cells[0]}"[:80])
        return None
    return Row(time, cells)
