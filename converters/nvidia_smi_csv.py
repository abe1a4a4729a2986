"""nvidia-smi's CSV as rows, and that of scripts around it.

``--query-gpu=… --format=csv[,noheader][,nounits] [-l N | -lms N]``: cells are parted by a comma
and a space, units stand in the header and, without ``nounits``, in the cells. A header comes again
where output was appended to a file.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chopper_interop.converters import nvidia_smi_faults as own_faults
from chopper_interop.converters import nvidia_smi_tables as tables
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.telemetry_facts import pci_of
from chopper_interop.converters.telemetry_table import Identity, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.issues import IssueLog

APPS = frozenset(
    {
        "process_name",
        "used_gpu_memory",
        "used_memory",
        "gpu_utilization",
        "mem_utilization",
        "max_memory_usage",
        "gpu_bus_id",
        "gpu_uuid",
        "gpu_name",
        "vgpu_instance",
    }
)
"""Columns beside ``pid`` of ``--query-compute-apps`` and ``--query-accounted-apps``."""
STATIC = (
    frozenset({"memory", "graphics"}),
    frozenset({"retired_pages_address"}),
    frozenset({"retired_pages_timestamp"}),
    frozenset({"remapped_rows_correctable"}),
    frozenset({"remapped_rows_uncorrectable"}),
)
"""Columns of which ``--query-supported-clocks`` and the like have all of one set."""
LOCAL_STAMP = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}")
_UNIT_CELL = re.compile(r"[-+]?\d+(?:\.\d+)? (?:W|MHz|%|MiB)")
_LABEL = re.compile(r"\s*[A-Za-z_][\w ]*:")
_WORD = re.compile(r"[A-Za-z_]")


def names_of(line: str) -> list[tuple[str, str]]:
    """Keys and units of a line, if it is a header."""
    return [tables.key_of(cell) for cell in cells_of(line)]


def is_header(names: Sequence[tuple[str, str]]) -> bool:
    """Whether these are names of columns of which at least one is known."""
    keys = [key for key, _ in names]
    if not all(re.match("[a-z]", key) for key in keys if key):
        return False
    return (
        is_apps(keys) or is_static(keys) or any(tables.is_own(k) or tables.meaning(k) for k in keys)
    )


def is_apps(keys: Sequence[str]) -> bool:
    """Whether these are columns of a query about processes."""
    return "pid" in keys and bool(APPS & set(keys))


def is_static(keys: Sequence[str]) -> bool:
    """Whether these are columns of a query about what does not change."""
    return any(known <= set(keys) for known in STATIC)


def is_row_without_header(line: str) -> bool:
    """Whether a line can only be a row of ``--format=csv,noheader``."""
    cells = cells_of(line)
    if _LABEL.match(line) or any(c.count("[") != c.count("]") for c in cells):
        return False  # a list of values in the form for people of amd-smi
    stamped = bool(cells) and LOCAL_STAMP.fullmatch(cells[0]) is not None and len(cells) > 1
    return stamped or sum(_UNIT_CELL.fullmatch(c) is not None for c in cells) > 1


def cells_of(line: str) -> list[str]:
    """Cells of one line, without the space in front."""
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        cells = line.split(",")
    return [cell.strip() for cell in cells]


@dataclass
class _Layout:
    """What the columns below a header are."""

    names: list[tuple[str, str]]
    issues: IssueLog
    stamp: list[int] = field(default_factory=list)
    own: dict[str, int] = field(default_factory=dict)
    facts: list[tuple[int, str]] = field(default_factory=list)
    values: list[tuple[int, tuple[str, str]]] = field(default_factory=list)
    of_processes: bool = False

    def __post_init__(self) -> None:
        keys = [key for key, _ in self.names]
        self.of_processes = is_apps(keys) or is_static(keys)
        self.stamp = _stamp_columns(keys)
        seen = set()
        for at, name in enumerate(self.names):
            key = name[0]
            if key in seen:
                self.issues.add(own_faults.DUPLICATE, 1, key)
            elif at not in self.stamp:
                self._place(at, name)
            seen.add(key)

    def _place(self, at: int, name: tuple[str, str]) -> None:
        key = name[0]
        for what, known in _OWN:
            if key in known:
                self.own.setdefault(what, at)
                return
        if key in tables.FACTS:
            self.facts.append((at, tables.FACTS[key]))
        elif not tables.TEXTS.fullmatch(key) and key not in tables.STAMP:
            self.values.append((at, name))


_OWN = (
    ("number", tables.INDEX),
    ("uuid", tables.UUID),
    ("pci", tables.PCI),
    ("name", tables.NAME),
)


def _stamp_columns(keys: Sequence[str]) -> list[int]:
    """The column that says when; a date and a time of day may be two."""
    if "date" in keys and "time" in keys:
        return [keys.index("date"), keys.index("time")]
    return [at for at, key in enumerate(keys) if key in tables.STAMP][:1]


@dataclass
class _Reader:
    table: Table
    layout: _Layout | None = None

    def read(self, lines: list[str]) -> None:
        last = len(lines) - 1
        for number, line in enumerate(lines):
            if line.strip():
                self._line(line.strip(), f"line {number + 1}", whole=number < last)

    def _line(self, line: str, at: str, *, whole: bool) -> None:
        cells = cells_of(line)
        names = [tables.key_of(cell) for cell in cells] if _WORD.match(line) else []
        if names and is_header(names):
            self.layout = _Layout(names, self.table.issues)
        elif len(cells) == 1 and (self.layout is None or len(self.layout.names) > 1):
            self._one_cell(line, at)
        elif self.layout is None:
            self.table.lose(own_faults.NO_HEADER, at)
        elif self.layout.of_processes:
            self.table.lose(own_faults.PROCESS, at)
        elif len(cells) != len(self.layout.names) or line.count('"') % 2:
            told = f"{at}: {len(cells)} cells for {len(self.layout.names)} columns"
            self.table.lose(faults.CUT, told)
        else:
            self._row(self.layout, cells, whole=whole)

    def _one_cell(self, line: str, at: str) -> None:
        if re.match(r"\d", line):
            self.table.lose(faults.CUT, at)
        else:
            self.table.issues.add(faults.NOT_A_ROW, 1, line[:80])

    def _row(self, layout: _Layout, cells: list[str], *, whole: bool) -> None:
        table = self.table
        own = {what: cells[at] for what, at in layout.own.items()}
        own["pci"] = pci_of(own.get("pci", ""))
        stamp = " ".join(cells[at] for at in layout.stamp)
        table.facts |= {name: cells[at] for at, name in layout.facts}
        table.add(stamp, Identity(**own), ((name, cells[at]) for at, name in layout.values))
        row = len(table.stamp) - 1
        if not whole and table.gpu[row] in table.gpu[:row] and table.without_last_number(row):
            table.issues.add(faults.CELL_CUT)


def read(text: str, columns: str | None, issues: IssueLog) -> Table:
    """Rows of a CSV file.

    Parameters
    ----------
    text
        The file.
    columns
        Names of the columns of rows in front of the first header.
    issues
        Where rows that cannot be read are counted.
    """
    reader = _Reader(Table(issues))
    if columns:
        reader.layout = _Layout(names_of(columns), issues)
    reader.read(text.split("\n"))
    return reader.table
