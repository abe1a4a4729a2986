"""Samples of ``dcgmi dmon``, a table of text that has no times.

Three forms of the first line are known, ``#Entity``, ``# Entity`` and, with a timestamp that a
script put in front of every line, either. A column's short name says its field (`dcgmi_fields`).
Rows are of GPUs, or of parts of them and other things (``GPU-I 3``, ``GPU-CI 5``, ``CPU 0``), whose
lanes end in their name, as the table does not say to which GPU they belong.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.converters.nvidia_smi import dcgmi_fields, nvml
from chopper_interop.converters.nvidia_smi.dcgmi_fields import HEADER
from chopper_interop.converters.nvidia_smi.nvml_lanes import PREFERRED
from chopper_interop.converters.nvidia_smi.table_builder import (
    Identity,
    TableReader,
    layout,
    split_probe,
)
from chopper_interop.converters.nvidia_smi.text_table import owners_of, timed_rows
from chopper_interop.converters.sampling import faults, rows
from chopper_interop.converters.sampling.layouts import PieceLayout, slots_in
from chopper_interop.converters.sampling.templates import read_lines
from chopper_interop.converters.sampling.text import decode_lines, encoded
from chopper_interop.converters.sampling.time_options import OF_LAST_ROWS, TimeOptions
from chopper_interop.converters.sampling.timestamps import split_leading_timestamp
from chopper_interop.converters.sampling.wall_clock import parse_zone
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.layouts import Layout

SOURCE = "dcgmi"
RULES = rows.LaneRules(nvml.named_by(dcgmi_fields.meaning), PREFERRED)
FRACTIONS = Fault.info(
    "fraction-as-percent",
    "Columns of DCGM's profiling fields, which are fractions, became per cent.",
)

_UNITS = re.compile(r"#?\s*ID\b", re.IGNORECASE)
_ROW = re.compile(r"(GPU|GPU-I|GPU-CI|Switch|Link|CPU|CPU Core|Core|vGPU|None|ConnectX) (\d+)\b")


@with_option_texts(OF_LAST_ROWS)
def read(
    paths: list[Path],
    *,
    tz: str | None = None,
    at_ns: int | None = None,
    period_ms: float | None = None,
    at: str | None = None,
) -> Trace:
    """Read one file of ``dcgmi dmon``.

    Parameters
    ----------
    paths
        The file, alone in a list.
    tz
        Zone of stamps in front of the lines, if there are any without.
    period_ms
        Time between rows, milliseconds (dcgmi's ``-d``, by default 1000).

    Returns
    -------
    Trace
        Without nodes: one series for each field of each GPU, and its samples.

    Raises
    ------
    ReadError
        It cannot be opened.
    UsageError
        An option makes no sense.
    """
    (path,) = paths
    options = TimeOptions(at_ns, at, period_ms)
    issues = IssueLog(str(path))
    parse_zone(tz)  # which may be wrong, although no row needs it
    reader = _DmonReader(issues)
    text = decode_lines(inputs.read(path, issues))
    table = reader.table.finish(read_lines(encoded(text), reader, gaps=True))
    issues.add(faults.EMPTY, int(not table.events))
    owners = owners_of(table, SOURCE)
    no_gpu = np.zeros(len(table.gpu), bool)
    timed = timed_rows(table, no_gpu, owners, tz, options=options, path=path)
    fractions = [key for key, unit in table.columns if unit == "ratio"]
    issues.add(FRACTIONS, len(fractions), " ".join(fractions)[:80])
    source = rows.source_of_file(path, "dcgmi", SOURCE, table.events)
    return rows.trace_of_rows(timed, source, owners.devices, table.facts, RULES, issues)


class _Heading(NamedTuple):
    """Names of columns, where each begins in its line, and their units."""

    names: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    units: tuple[str, ...] = ()

    def values(self, cells: list[str]) -> list[tuple[tuple[str, str], str]]:
        """Return the values of a row by key and unit."""
        units = [dcgmi_fields.unit_of(*pair) for pair in zip(self.names, self.units, strict=True)]
        known = zip(self.names, units, cells, strict=True)
        return [((n, u), c) for n, u, c in known if n not in dcgmi_fields.WORDS]


class _DmonReader(TableReader):
    def __init__(self, issues: IssueLog) -> None:
        super().__init__(issues)
        self.headings = {_Heading(): 0}

    @property
    def heading(self) -> _Heading:
        return list(self.headings)[self.state]

    def layout(self, probe: str, sample: str) -> Layout | PieceLayout | None:
        parts = split_probe(probe.strip(), sample.strip())
        _, behind = split_leading_timestamp(sample.strip())
        if parts and parts[0] and not slots_in(parts[1]) and self._read_heading(behind, behind):
            return PieceLayout(guards=parts[2], has_columns=True)
        row = _ROW.match(parts[1]) if parts else None
        if parts is None or row is None:
            return None
        cells = parts[1][row.end() :].split()
        if len(cells) != len(self.heading.names):
            return None
        return layout(("", parts[0]), _gpu(row), self.heading.values(cells), parts[2])

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        line, at = text.rstrip(), f"line {number}"
        if not line:
            return
        stamp, behind = split_leading_timestamp(line.strip())
        line = behind if stamp else line  # units are matched by their position in the line
        row = _ROW.match(behind)
        if self._read_heading(behind, line):
            return
        if not row:
            self.table.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif not self.heading.names:
            self.table.lose(faults.NO_HEADER, at)
        else:
            self._row(stamp, row, behind[row.end() :], at, is_complete=is_complete)

    def _read_heading(self, behind: str, line: str) -> bool:
        """Read a line of names or of units; return False if it is neither."""
        if HEADER.match(behind):
            heading = _heading_of(line)
        elif not _ROW.match(behind) and _UNITS.match(behind) and self.heading.names:
            heading = _with_units(self.heading, line)
        else:
            return False
        self.state = self.headings.setdefault(heading, len(self.headings))
        return True

    def _row(
        self, stamp: str, row: re.Match[str], rest: str, at: str, *, is_complete: bool
    ) -> None:
        cells = rest.split()
        if len(cells) != len(self.heading.names):
            detail = f"{at}: {len(cells)} cells for {len(self.heading.names)} columns"
            self.table.lose(faults.CUT, detail)
            return
        self.table.add(stamp, _gpu(row), self.heading.values(cells))
        if not is_complete:
            self.table.drop_last_cell_if_cut()


def _gpu(row: re.Match[str]) -> Identity:
    return Identity(number=row[2]) if row[1] == "GPU" else Identity(entity=f"{row[1]} {row[2]}")


def _heading_of(line: str) -> _Heading:
    words = list(re.finditer(r"\S+", re.sub(r"#( +)E", r"\1#E", line, count=1)))[1:]
    names = tuple(word.group() for word in words)
    return _Heading(names, tuple(word.start() for word in words), ("",) * len(names))


def _with_units(heading: _Heading, line: str) -> _Heading:
    """Read units, which stand below names; if some lack one, match by position."""
    words = list(re.finditer(r"\S+", line))[1:]
    if len(words) == len(heading.names):
        return heading._replace(units=tuple(word.group() for word in words))
    units = list(heading.units)
    for word in words:
        below = [n for n, start in enumerate(heading.starts) if start <= word.start() + 1]
        if below:
            units[below[-1]] = word.group()
    return heading._replace(units=tuple(units))
