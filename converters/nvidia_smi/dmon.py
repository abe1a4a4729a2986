"""Tables in columns of text: ``nvidia-smi dmon`` and ``dcgmi dmon``.

A line of names, a line of units, rows; both lines come again every few rows. ``dmon -o DT`` puts
date and time into columns of their own; scripts may put a stamp in front of every line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi.headers import DMON_HEADER, PMON_HEADER
from chopper_interop.converters.nvidia_smi.table_builder import (
    Identity,
    Table,
    TableReader,
    layout,
    split_probe,
)
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.layouts import PieceLayout, slots_in
from chopper_interop.converters.sampling.templates import read_lines
from chopper_interop.converters.sampling.text import encoded
from chopper_interop.converters.sampling.timestamps import split_leading_timestamp
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.layouts import Layout

_GPM = "GPM:"
"""In front of units of ``--gpm-metrics``."""
PREFIX = "dmon_"
"""Begins the keys of ``nvidia-smi dmon``'s columns."""


class _Heading(NamedTuple):
    """Both lines of a heading, the second perhaps still to come."""

    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    of_processes: bool = False

    def values(self, cells: list[str]) -> list[tuple[tuple[str, str], str]]:
        """Return the values of a row by key and unit."""
        units = self.units or ("",) * len(self.names)
        known = zip(self.names, units, cells, strict=True)
        return [((PREFIX + name, unit), cell) for name, unit, cell in known if name not in _OWN]


_OWN = ("date", "time", "gpu")


class _DmonReader(TableReader):
    def __init__(self, heading: _Heading, day: str, issues: IssueLog) -> None:
        super().__init__(issues)
        self.headings = {heading: 0}
        self.day = day
        self.midnight = 0
        self.clock = ""

    @property
    def heading(self) -> _Heading:
        return list(self.headings)[self.state]

    def layout(self, probe: str, sample: str) -> Layout | PieceLayout | None:
        parts = split_probe(probe.strip(), sample.strip())
        heading = self.heading
        if parts and parts[0] and parts[1].startswith("#") and not slots_in(parts[1]):
            behind = self._heading_behind(parts[1])
            if behind is None:
                return None
            self.state = self.headings.setdefault(behind, len(self.headings))
            return PieceLayout(guards=parts[2])
        if parts is None or heading.of_processes or not re.match(r"[\d-]", parts[1]):
            return None
        cells = _cells(parts[1])
        if len(cells) != len(heading.names):
            return None
        by_name = dict(zip(heading.names, cells, strict=True))
        stamp = ("", parts[0]) if parts[0] else (by_name.get("date", ""), by_name.get("time", ""))
        if stamp[1] and not any((stamp[0], parts[0])):
            return None
        gpu = Identity(number=by_name.get("gpu", ""))
        return layout(stamp, gpu, heading.values(cells), parts[2])

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        if line := text.strip():
            self._line(line, f"line {number}", is_complete=is_complete)

    def _line(self, line: str, at: str, *, is_complete: bool) -> None:
        stamp, line = split_leading_timestamp(line)
        if line.startswith("#"):
            self._heading(line, at)
        elif not self.heading.names:
            fault = own_faults.NO_HEADER if re.match(r"\d", line) else faults.NOT_A_ROW
            if fault is own_faults.NO_HEADER:
                self.table.lose(fault, at)
            else:
                self.table.issues.add(fault, 1, line[:80])
        elif not re.match(r"[\d-]", line):
            self.table.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.heading.of_processes:
            self.table.lose(own_faults.PROCESS, at)
        else:
            self._row(stamp, line, at, is_complete=is_complete)

    def _heading(self, line: str, at: str) -> None:
        heading = self._heading_behind(line)
        if heading is None:
            self.table.issues.add(faults.NOT_A_ROW, 1, f"{at}: {line}"[:80])
        else:
            self.state = self.headings.setdefault(heading, len(self.headings))

    def _heading_behind(self, line: str) -> _Heading | None:
        """Return the heading that stands behind a line of names or units; None if it is neither."""
        words = [word.removeprefix(_GPM) for word in _cells(line.lstrip("# "))]
        heading = self.heading
        if DMON_HEADER.match(line) or PMON_HEADER.match(line):
            names = tuple(w.lower() for w in words)
            return _Heading(names, of_processes=PMON_HEADER.match(line) is not None)
        if len(words) == len(heading.names) and not heading.units:
            return heading._replace(units=tuple(words))
        return heading if words == list(heading.units) else None

    def _row(self, stamp: str, line: str, at: str, *, is_complete: bool) -> None:
        cells = _cells(line)
        heading = self.heading
        if len(cells) != len(heading.names):
            detail = f"{at}: {len(cells)} cells for {len(heading.names)} columns"
            self.table.lose(faults.CUT, detail)
            return
        by_name = dict(zip(heading.names, cells, strict=True))
        clock = by_name.get("time", "")
        if clock and not by_name.get("date") and not stamp and not self.day:
            self.table.lose(own_faults.NO_DATE, at)
            return
        stamp = stamp or self._stamp(by_name.get("date", ""), clock)
        gpu = Identity(number=by_name.get("gpu", ""))
        self.table.add(stamp, gpu, heading.values(cells))
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
    names = tuple(name.lower() for name in _cells(columns.lstrip("# ")))
    reader = _DmonReader(_Heading(names), day or "", issues)
    return reader.table.finish(read_lines(encoded(text), reader, gaps=True))
