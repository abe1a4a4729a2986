"""DCGM's telemetry: ``dcgmi dmon``, a table of text that says no times.

Three forms of the first line are known, ``#Entity``, ``# Entity`` and, with a stamp that a script
put in front of every line, either. What a column is, its short name tells (`dcgmi_tables`). Rows
are of GPUs, or of parts of them and other things (``GPU-I 3``, ``GPU-CI 5``, ``CPU 0``), whose
lanes end in their name, for of which GPU they are the table does not say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chopper_interop.build import TraceBuilder
from chopper_interop.converters import dcgmi_tables
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.telemetry_emit import emit, meta_of
from chopper_interop.converters.telemetry_given import Given
from chopper_interop.converters.telemetry_owners import owners_of
from chopper_interop.converters.telemetry_place import clock_of, placed
from chopper_interop.converters.telemetry_prefix import split_stamp
from chopper_interop.converters.telemetry_table import Identity, Table
from chopper_interop.converters.telemetry_text import lines_of
from chopper_interop.converters.telemetry_zone import zone
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

SOURCE = "dcgmi"
FRACTIONS = Fault(
    "fraction-as-percent",
    Severity.INFO,
    "Columns of DCGM's profiling fields, which are fractions, became per cent.",
)

HEADER = re.compile(r"#\s*Entity\b", re.IGNORECASE)
_UNITS = re.compile(r"#?\s*ID\b", re.IGNORECASE)
_ROW = re.compile(r"(GPU|GPU-I|GPU-CI|Switch|Link|CPU|CPU Core|Core|vGPU|None|ConnectX) (\d+)\b")
_SHORT = re.compile(r"[A-Z][A-Z0-9#]{2,14}")
_LINES = 40


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is the table of ``dcgmi dmon``."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    for written in [n for n in text.split("\n")[:_LINES] if n.strip()]:
        line = split_stamp(written.strip())[1]
        if HEADER.match(line):
            names = line.lstrip("# ").split()[1:]
            return bool(names) and all(_SHORT.fullmatch(name) for name in names)
        if line[:1] in ("{", "[", "<") or "," in line:
            return False
    return False


@dataclass
class _Reader:
    table: Table
    names: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    mended: bool = False

    def read(self, lines: list[str]) -> None:
        last = len(lines) - 1
        for number, line in enumerate(lines):
            if line.strip():
                self._line(line.rstrip(), f"line {number + 1}", whole=number < last)

    def _line(self, line: str, at: str, *, whole: bool) -> None:
        stamp, behind = split_stamp(line.strip())
        line = behind if stamp else line  # units are told by their place in the line
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
            self._row(stamp, row[1], row[2], behind[row.end() :], at, whole=whole)

    def _heading(self, line: str) -> None:
        found = list(re.finditer(r"\S+", re.sub(r"#( +)E", r"\1#E", line, count=1)))[1:]
        self.names = [word.group() for word in found]
        self.starts = [word.start() for word in found]
        self.units = [""] * len(self.names)

    def _units(self, line: str) -> None:
        """Units stand below their names: those of columns without any are told by their place."""
        words = list(re.finditer(r"\S+", line))[1:]
        if len(words) == len(self.names):
            self.units = [word.group() for word in words]
            return
        for word in words:
            below = [n for n, start in enumerate(self.starts) if start <= word.start() + 1]
            if below:
                self.units[below[-1]] = word.group()

    def _row(self, stamp: str, kind: str, number: str, rest: str, at: str, *, whole: bool) -> None:
        cells = rest.split()
        if len(cells) != len(self.names):
            told = f"{at}: {len(cells)} cells for {len(self.names)} columns"
            self.table.lose(faults.CUT, told)
            return
        gpu = Identity(number=number) if kind == "GPU" else Identity(entity=f"{kind} {number}")
        units = [dcgmi_tables.unit_of(*pair) for pair in zip(self.names, self.units, strict=True)]
        known = zip(self.names, units, cells, strict=True)
        values = [((n, u), c) for n, u, c in known if n not in dcgmi_tables.WORDS]
        self.table.add(stamp, gpu, values)
        row = len(self.table.stamp) - 1
        if not whole and gpu in self.table.gpu[:row] and self.table.without_last_number(row):
            self.table.issues.add(faults.CELL_CUT)


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
    at_ns
        When the last rows of a file without times were taken, epoch nanoseconds.
    period_ms
        Time between rows, milliseconds (dcgmi's ``-d``, by default 1000).
    at
        ``"mtime"`` to take the time at which the file was last changed for that of the last rows.

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
    issues = IssueLog(str(path))
    zone(tz)
    given = Given(at_ns, at, period_ms)
    table = Table(issues)
    _Reader(table).read(lines_of(inputs.read(path, issues)).split("\n"))
    issues.add(faults.EMPTY, int(not table.events))
    owners = owners_of(table.gpu, SOURCE)
    unknown = owners.device < -1
    timed, times = placed(table, unknown, owners, tz, given=given, path=path)
    fractions = [key for key, unit in table.columns if unit == "ratio"]
    issues.add(FRACTIONS, len(fractions), " ".join(fractions)[:80])
    builder = TraceBuilder(meta_of(path, table, owners, DCGMI.name, SOURCE, clock_of(times)))
    issues.add(faults.SAMPLED, len(timed.row))
    emit(builder, table, owners, timed, SOURCE, dcgmi_tables.meaning)
    return builder.finish().with_meta(issues=tuple(issues))


_OTHERS = re.compile(
    r"\s*(?:\d+ GPUs? found\.|Successfully (?:retrieved|ran|obtained)\b.*\b(?:statistics|diagnostic|health)"
    r"|\+[-=]+\+\s*\n\| (?:Diagnostic |GPU ID: \d+, Device|Successfully|Execution Stats|NVLink))"
)


def is_other(head: bytes) -> bool:
    """Whether a file that begins so is what dcgmi prints once."""
    return _OTHERS.match(head.decode("utf-8", "replace").lstrip("\ufeff")) is not None


DCGMI = Converter(
    name="dcgmi",
    description="telemetry of NVIDIA GPUs: dcgmi dmon",
    versions="tables of DCGM 1.7 to 4.x, also with a stamp in front of every line",
    suffixes=(".txt", ".log"),
    sniff=sniff,
    read=read,
    carries="device fields (power, clocks, temperatures, utilization, memory, ECC, energy) and "
    "throttle reasons bit by bit, and "
    "profiling fields (SM, tensor, DRAM, FP activity, PCIe, NVLink); others under their short name",
)

DCGMI_OTHERS = Converter(
    name="dcgmi-others",
    description="what dcgmi prints once (discovery, stats, diag, health, nvlink)",
    sniff=is_other,
    not_read_because="it holds no samples in time; record with dcgmi dmon -e 155,100,1002,1005 "
    "-d 100, a time in front of every line (… | ts '%s')",
)
