"""nvidia-smi's CSV as rows, and that of scripts around it.

``--query-gpu=… --format=csv[,noheader][,nounits] [-l N | -lms N]``: cells are parted by a comma
and a space, units stand in the header and, without ``nounits``, in the cells. A header comes again
where output was appended to a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi import lanes as tables
from chopper_interop.converters.nvidia_smi.headers import (
    cells_of,
    is_apps,
    is_header,
    is_static,
    names_of,
)
from chopper_interop.converters.nvidia_smi.text_table import Identity, Table
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.facts import pci_of
from chopper_interop.converters.sampling.text import numbered_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.issues import IssueLog

_WORD = re.compile(r"[A-Za-z_]")


@dataclass
class _Layout:
    """Meaning of the columns below a header."""

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


_OWN = (("number", tables.INDEX), ("uuid", tables.UUID), ("pci", tables.PCI), ("name", tables.NAME))


def _stamp_columns(keys: Sequence[str]) -> list[int]:
    """The column that says when; a date and a time of day may be two."""
    if "date" in keys and "time" in keys:
        return [keys.index("date"), keys.index("time")]
    return [at for at, key in enumerate(keys) if key in tables.STAMP][:1]


@dataclass
class _NvidiaCsvReader:
    table: Table
    layout: _Layout | None = None

    def read(self, text: str) -> None:
        for line, at, is_complete in numbered_lines(text):
            self._line(line.strip(), at, is_complete=is_complete)

    def _line(self, line: str, at: str, *, is_complete: bool) -> None:
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
            detail = f"{at}: {len(cells)} cells for {len(self.layout.names)} columns"
            self.table.lose(faults.CUT, detail)
        else:
            self._row(self.layout, cells, is_complete=is_complete)

    def _one_cell(self, line: str, at: str) -> None:
        if re.match(r"\d", line):
            self.table.lose(faults.CUT, at)
        else:
            self.table.issues.add(faults.NOT_A_ROW, 1, line[:80])

    def _row(self, layout: _Layout, cells: list[str], *, is_complete: bool) -> None:
        table = self.table
        own = {what: cells[at] for what, at in layout.own.items()}
        own["pci"] = pci_of(own.get("pci", ""))
        stamp = " ".join(cells[at] for at in layout.stamp)
        table.facts |= {name: cells[at] for at, name in layout.facts}
        table.add(stamp, Identity(**own), ((name, cells[at]) for at, name in layout.values))
        if not is_complete:
            table.drop_last_cell_if_cut()


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
    reader = _NvidiaCsvReader(Table(issues))
    if columns:
        reader.layout = _Layout(names_of(columns), issues)
    reader.read(text)
    return reader.table
