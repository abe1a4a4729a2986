"""Samples of ``dcgmi dmon``, a table of text that has no times.

Three forms of the first line are known, ``#Entity``, ``# Entity`` and, with a timestamp that a
script put in front of every line, either. A column's short name says its field (`dcgmi_fields`).
Rows are of GPUs, or of parts of them and other things (``GPU-I 3``, ``GPU-CI 5``, ``CPU 0``), whose
lanes end in their name, as the table does not say to which GPU they belong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.nvidia_smi import dcgmi_fields, nvml
from chopper_interop.converters.nvidia_smi.dcgmi_fields import HEADER
from chopper_interop.converters.nvidia_smi.nvml_lanes import PREFERRED
from chopper_interop.converters.nvidia_smi.text_table import Identity, Table, owners_of, timed_rows
from chopper_interop.converters.sampling import faults, rows
from chopper_interop.converters.sampling.text import decode_lines, numbered_lines
from chopper_interop.converters.sampling.time_options import OF_LAST_ROWS, TimeOptions
from chopper_interop.converters.sampling.timestamps import split_leading_timestamp
from chopper_interop.converters.sampling.wall_clock import parse_zone
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import with_option_texts

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

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
    table = Table(issues)
    _DmonReader(table).read(decode_lines(inputs.read(path, issues)))
    issues.add(faults.EMPTY, int(not table.events))
    owners = owners_of(table.gpu, SOURCE)
    no_gpu = np.zeros(len(table.gpu), bool)
    timed = timed_rows(table, no_gpu, owners, tz, options=options, path=path)
    fractions = [key for key, unit in table.columns if unit == "ratio"]
    issues.add(FRACTIONS, len(fractions), " ".join(fractions)[:80])
    source = rows.source_of_file(path, "dcgmi", SOURCE, table.events)
    return rows.trace_of_rows(timed, source, owners.devices, table.facts, RULES, issues)


@dataclass
class _DmonReader:
    table: Table
    names: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    mended: bool = False

    def read(self, text: str) -> None:
        for line, at, is_complete in numbered_lines(text):
            self._line(line.rstrip(), at, is_complete=is_complete)

    def _line(self, line: str, at: str, *, is_complete: bool) -> None:
        stamp, behind = split_leading_timestamp(line.strip())
        line = behind if stamp else line  # units are matched by their position in the line
        row = _ROW.match(behind)
        if HEADER.match(behind):
            self._heading(line)
        elif not row and _UNITS.match(behind) and self.names:
            self._units(line)
        elif not row:
            self.table.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif not self.names:
            self.table.lose(faults.NO_HEADER, at)
        else:
            self._row(stamp, row[1], row[2], behind[row.end() :], at, is_complete=is_complete)

    def _heading(self, line: str) -> None:
        words = list(re.finditer(r"\S+", re.sub(r"#( +)E", r"\1#E", line, count=1)))[1:]
        self.names = [word.group() for word in words]
        self.starts = [word.start() for word in words]
        self.units = [""] * len(self.names)

    def _units(self, line: str) -> None:
        """Read units, which stand below names; if some lack one, match by position."""
        words = list(re.finditer(r"\S+", line))[1:]
        if len(words) == len(self.names):
            self.units = [word.group() for word in words]
            return
        for word in words:
            below = [n for n, start in enumerate(self.starts) if start <= word.start() + 1]
            if below:
                self.units[below[-1]] = word.group()

    def _row(
        self, stamp: str, kind: str, number: str, rest: str, at: str, *, is_complete: bool
    ) -> None:
        cells = rest.split()
        if len(cells) != len(self.names):
            detail = f"{at}: {len(cells)} cells for {len(self.names)} columns"
            self.table.lose(faults.CUT, detail)
            return
        gpu = Identity(number=number) if kind == "GPU" else Identity(entity=f"{kind} {number}")
        units = [dcgmi_fields.unit_of(*pair) for pair in zip(self.names, self.units, strict=True)]
        known = zip(self.names, units, cells, strict=True)
        values = [((n, u), c) for n, u, c in known if n not in dcgmi_fields.WORDS]
        self.table.add(stamp, gpu, values)
        if not is_complete:
            self.table.drop_last_cell_if_cut()
