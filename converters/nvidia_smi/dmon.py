"""Tables in columns of text: ``nvidia-smi dmon`` and ``dcgmi dmon``.

A line of names, a line of units, rows; both lines come again every few rows. ``dmon -o DT`` puts
date and time into columns of their own; scripts may put a stamp in front of every line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi.headers import DMON_HEADER, PMON_HEADER
from chopper_interop.converters.nvidia_smi.text_table import Identity, Table
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.text import numbered_lines
from chopper_interop.converters.sampling.timestamps import split_leading_timestamp

if TYPE_CHECKING:
    from chopper_interop.issues import IssueLog

PREFIX = "dmon_"
"""Begins the keys of ``nvidia-smi dmon``'s columns."""


@dataclass
class _DmonReader:
    table: Table
    day: str
    names: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    of_processes: bool = False
    midnight: int = 0
    clock: str = ""

    def read(self, text: str) -> None:
        for line, at, is_complete in numbered_lines(text):
            self._line(line.strip(), at, is_complete=is_complete)

    def _line(self, line: str, at: str, *, is_complete: bool) -> None:
        stamp, line = split_leading_timestamp(line)
        if line.startswith("#"):
            self._heading(line, at)
        elif not self.names:
            fault = own_faults.NO_HEADER if re.match(r"\d", line) else faults.NOT_A_ROW
            if fault is own_faults.NO_HEADER:
                self.table.lose(fault, at)
            else:
                self.table.issues.add(fault, 1, line[:80])
        elif not re.match(r"[\d-]", line):
            self.table.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.of_processes:
            self.table.lose(own_faults.PROCESS, at)
        else:
            self._row(stamp, line, at, is_complete=is_complete)

    def _heading(self, line: str, at: str) -> None:
        words = _cells(line.lstrip("# "))
        if DMON_HEADER.match(line) or PMON_HEADER.match(line):
            self.of_processes = PMON_HEADER.match(line) is not None
            self.names, self.units = [w.lower() for w in words], []
        elif len(words) == len(self.names) and not self.units:
            self.units = words
        elif words != self.units:
            self.table.issues.add(faults.NOT_A_ROW, 1, f"{at}: {line}"[:80])

    def _row(self, stamp: str, line: str, at: str, *, is_complete: bool) -> None:
        cells = _cells(line)
        if len(cells) != len(self.names):
            detail = f"{at}: {len(cells)} cells for {len(self.names)} columns"
            self.table.lose(faults.CUT, detail)
            return
        units = self.units or [""] * len(self.names)
        by_name = dict(zip(self.names, cells, strict=True))
        clock = by_name.get("time", "")
        if clock and not by_name.get("date") and not stamp and not self.day:
            self.table.lose(own_faults.NO_DATE, at)
            return
        stamp = stamp or self._stamp(by_name.get("date", ""), clock)
        own = ("date", "time", "gpu")
        values = [
            ((PREFIX + name, unit), cell)
            for name, unit, cell in zip(self.names, units, cells, strict=True)
            if name not in own
        ]
        gpu = Identity(number=by_name.get("gpu", ""))
        self.table.add(stamp, gpu, values)
        if not is_complete:
            self.table.drop_last_cell_if_cut()

    def _stamp(self, date: str, clock: str) -> str:
        """Date and time; a time of day that goes back by itself begins a new day."""
        if date or not clock:
            return f"{date} {clock}".strip()
        if self.clock and clock < self.clock and _hour(self.clock) - _hour(clock) > 12:  # noqa: PLR2004
            self.midnight += 1
        self.clock = clock
        return f"{next_day(self.day, self.midnight)} {clock}"


def _hour(clock: str) -> int:
    return int(clock[:2]) if clock[:2].isdigit() else 0


def next_day(day: str, later: int) -> str:
    """The date so many days later; empty if it is none."""
    from datetime import date, timedelta

    try:
        return (date.fromisoformat(day) + timedelta(days=later)).isoformat()
    except (ValueError, OverflowError):
        return ""


def _cells(line: str) -> list[str]:
    """Cells of text in columns, or of ``--format csv``."""
    return [c.strip() for c in line.split(",")] if "," in line else line.split()


def read(text: str, day: str | None, issues: IssueLog, columns: str = "") -> Table:
    """Rows of ``nvidia-smi dmon``.

    Parameters
    ----------
    text
        The file.
    day
        Date of the first row, for output with times of day alone.
    issues
        Log in which unreadable rows are counted.
    columns
        Names of the columns of rows in front of the first heading: those that `DMON_HEADER` has,
        without ``#``.
    """
    table = Table(issues)
    reader = _DmonReader(table, day or "")
    reader.names = [name.lower() for name in _cells(columns.lstrip("# "))]
    reader.read(text)
    return table
