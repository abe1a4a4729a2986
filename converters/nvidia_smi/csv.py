"""nvidia-smi's CSV as rows, and that of scripts around it.

``--query-gpu=… --format=csv[,noheader][,nounits] [-l N | -lms N]``: cells are parted by a comma
and a space, units stand in the header and, without ``nounits``, in the cells. A header comes again
where output was appended to a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chopper_interop.converters.nvidia_smi import calls
from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi import lanes as tables
from chopper_interop.converters.nvidia_smi.headers import (
    cells_of,
    is_apps,
    is_header,
    is_static,
    names_of,
)
from chopper_interop.converters.nvidia_smi.table_builder import (
    Identity,
    Table,
    TableReader,
    fact,
    layout,
)
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.facts import pci_of
from chopper_interop.converters.sampling.templates import read_lines
from chopper_interop.converters.sampling.text import encoded
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.layouts import Layout

_WORD = re.compile(r"[A-Za-z_]")


@dataclass
class _Layout:
    """Meaning of the columns below a header."""

    names: list[tuple[str, str]]
    number: int
    duplicates: list[str] = field(default_factory=list)
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
                self.duplicates.append(key)
            elif at not in self.stamp:
                self._place(at, name)
            seen.add(key)

    def _place(self, at: int, name: tuple[str, str]) -> None:
        key = name[0]
        for role, known in _OWN:
            if key in known:
                self.own.setdefault(role, at)
                return
        if key in tables.FACTS:
            self.facts.append((at, tables.FACTS[key]))
        elif not tables.TEXTS.fullmatch(key) and key not in tables.STAMP:
            self.values.append((at, name))

    def cells(self, cells: list[str]) -> list[tuple[tuple[str, str], str]]:
        """Return the facts and values of a row by key and unit."""
        facts = [(fact(name), cells[at]) for at, name in self.facts]
        return [*facts, *((name, cells[at]) for at, name in self.values)]


_OWN = (("number", tables.INDEX), ("uuid", tables.UUID), ("pci", tables.PCI), ("name", tables.NAME))


def _stamp_columns(keys: Sequence[str]) -> list[int]:
    """The column that says when; a date and a time of day may be two."""
    if "date" in keys and "time" in keys:
        return [keys.index("date"), keys.index("time")]
    return [at for at, key in enumerate(keys) if key in tables.STAMP][:1]


class _NvidiaCsvReader(TableReader):
    def __init__(self, issues: IssueLog) -> None:
        super().__init__(issues)
        self.layouts: list[_Layout] = []

    @property
    def columns(self) -> _Layout | None:
        return self.layouts[self.state - 1] if self.state else None

    def header(self, names: list[tuple[str, str]]) -> None:
        """Read a header; rows below equal ones are of the same columns."""
        equal = [known for known in self.layouts if known.names == names]
        self.layouts += [] if equal else [_Layout(names, len(self.layouts) + 1)]
        columns = equal[0] if equal else self.layouts[-1]
        self.state = columns.number
        for key in columns.duplicates:
            self.table.issues.add(own_faults.DUPLICATE, 1, key)

    def layout(self, probe: str, sample: str) -> Layout | None:  # noqa: ARG002 - the probe is enough
        line, columns = probe.strip(), self.columns
        cells = cells_of(line)
        if columns is None or columns.of_processes or _header_names(line, cells):
            return None
        is_alone = len(cells) == 1 and len(columns.names) > 1
        if is_alone or len(cells) != len(columns.names) or line.count('"') % 2:
            return None
        own = {role: cells[at] for role, at in columns.own.items()}
        day, clock = ["", "", *(cells[at] for at in columns.stamp)][-2:]
        return layout((day, clock), Identity(**own), columns.cells(cells))

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        line, at, columns = text.strip(), f"line {number}", self.columns
        if not line:
            return
        cells = cells_of(line)
        names = _header_names(line, cells)
        if names:
            self.header(names)
        elif len(cells) == 1 and (columns is None or len(columns.names) > 1):
            self._one_cell(line, at)
        elif columns is None:
            self.table.lose(own_faults.NO_HEADER, at)
        elif columns.of_processes:
            self.table.lose(own_faults.PROCESS, at)
        elif len(cells) != len(columns.names) or line.count('"') % 2:
            detail = f"{at}: {len(cells)} cells for {len(columns.names)} columns"
            self.table.lose(faults.CUT, detail)
        else:
            self._row(columns, cells, is_complete=is_complete)

    def _one_cell(self, line: str, at: str) -> None:
        if re.match(r"\d", line):
            self.table.lose(faults.CUT, at)
        else:
            self.table.issues.add(faults.NOT_A_ROW, 1, line[:80])

    def _row(self, columns: _Layout, cells: list[str], *, is_complete: bool) -> None:
        own = {role: cells[at] for role, at in columns.own.items()}
        own["pci"] = pci_of(own.get("pci", ""))
        stamp = " ".join(cells[at] for at in columns.stamp)
        self.table.add(stamp, Identity(**own), columns.cells(cells))
        if not is_complete:
            self.table.drop_last_cell_if_cut()


def _header_names(line: str, cells: list[str]) -> list[tuple[str, str]]:
    """Return the names of the columns if a line is a header; else none."""
    names = [tables.key_of(cell) for cell in cells] if _WORD.match(line) else []
    return names if names and is_header(names) else []


def read(text: str, columns: str | None, issues: IssueLog) -> Table:
    """Rows of a CSV file.

    Parameters
    ----------
    text
        The file.
    columns
        Names of the columns of rows in front of the first header.
    issues
        Log in which unreadable rows are counted.
    """
    text, ordered = calls.with_columns(text)
    issues.add(own_faults.BY_ORDER, ordered)
    reader = _NvidiaCsvReader(issues)
    if columns:
        reader.header(names_of(columns))
    return reader.table.finish(read_lines(encoded(text), reader))
