"""Rows of amd-smi's CSV: repeated headers, lists in cells, rows that are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.layout import (
    CSV_HEADER,
    LARGEST,
    ROW_KEYS,
    keys_of,
    names_of,
)
from chopper_interop.converters.amd_smi.row_reader import RowReader, is_unreadable, no_time
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import CellColumn, ColumnBuilder, Rows
from chopper_interop.converters.sampling.layouts import (
    ANY,
    Guard,
    Layout,
    layout_of_row,
    probe_number,
    slots_in,
)
from chopper_interop.converters.sampling.stamps import times_of
from chopper_interop.converters.sampling.templates import read_lines
from chopper_interop.converters.sampling.text import (
    NO_NUMBER,
    csv_cells,
    encoded,
    whole_number,
)
from chopper_interop.converters.sampling.timestamps import nanoseconds
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    _Key = tuple[int, int, str]
    """Number of a block, place of a column below its header, and its key."""

_WATCHING = re.compile(r"'CTRL' \+ 'C'")
_DATA = re.compile(r"-?\d")
_WITH_FRACTION = re.compile(r"\n[ \t]*\d+\.\d+[ \t]*,")
"""A row whose time has a fraction, as scripts around amd-smi write it; a header stands above it."""
_TIME, _GPU, _ = ROW_KEYS
_ERROR_HEADER = ("error", "code")
_PROCESS = {"pid", "name"}
_PROCESS_COLUMN = "pid"
"""Without it no rows are of processes, which refer to rows above."""


@dataclass
class _Block:
    """Rows below equal headers."""

    number: int
    names: tuple[str, ...]
    of_processes: bool = False

    def __post_init__(self) -> None:
        self.of_processes = set(self.names) >= _PROCESS
        self.keys = [(self.number, place, key) for place, key in enumerate(keys_of(self.names))]

    def values(self, cells: list[str]) -> list[tuple[_Key, str]]:
        """Return the cells of a row that are values, by their columns."""
        named = zip(self.keys, self.names, cells, strict=True)
        return [(key, cell) for key, name, cell in named if name not in ROW_KEYS]


class _CsvReader(RowReader):
    def __init__(self, text: str, issues: IssueLog) -> None:
        super().__init__(issues)
        self.text = text
        self.has_processes = _PROCESS_COLUMN in text
        self.is_exact = _WITH_FRACTION.search(text) is not None
        """Whether times are read to the nanosecond."""
        self.blocks: dict[tuple[str, ...], _Block] = {}
        self.order: list[_Block] = []
        self.state = 0
        """Number of the present block, from 1; 0 in front of the first header."""

    @property
    def block(self) -> _Block | None:
        return self.order[self.state - 1] if self.state else None

    def read(self) -> Rows:
        laid = read_lines(encoded(self.text), self)
        rows = self.finish(laid)
        if self.is_exact and len(laid.row):
            rows.stamp[laid.row] = times_of(laid)
        return replace(rows, is_exact=self.is_exact)

    def in_order(self, columns: dict[_Key, CellColumn]) -> Iterable[CellColumn]:
        """Return the columns of one block after the other, by their keys."""
        return [replace(columns[key], key=key[2]) for key in sorted(columns)]

    def layout(self, probe: str, sample: str) -> Layout | None:  # noqa: ARG002 - the probe is enough
        block, line = self.block, probe.strip()
        is_other = CSV_HEADER.match(line) or _WATCHING.match(line) or not _DATA.match(line)
        if block is None or is_other or self.has_processes or block.names == _ERROR_HEADER:
            return None
        cells, is_whole = _cells(block, line)
        if not is_whole:
            return None
        by_name = dict(zip(block.names, cells, strict=True))
        time = by_name.pop(_TIME, "") if self.is_exact else ""
        if is_unreadable(by_name.get(_TIME, "")):
            return None
        layout = layout_of_row(
            [(by_name.get(name, ""), LARGEST[name]) for name in ROW_KEYS],
            block.values(cells),
            needed=ROW_KEYS.index("gpu"),
        )
        return _with_exact_time(layout, time) if self.is_exact and layout else layout

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        if line := text.strip():
            self._line(line, f"line {number}", complete=is_complete)

    def _line(self, line: str, at: str, *, complete: bool) -> None:
        header = CSV_HEADER.match(line) is not None
        if not complete and (header or (self._watched and not _DATA.match(line))):
            self.issues.add(faults.FILE_CUT, 1, at)
        elif header:
            names = names_of(line)
            if names not in self.blocks:
                self.blocks[names] = _Block(len(self.blocks) + 1, names)
                self.order.append(self.blocks[names])
            self.state = self.blocks[names].number
        elif _WATCHING.match(line):
            self.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.block and self.block.names == _ERROR_HEADER:
            self.lose(own_faults.ERROR, line)
        elif not _DATA.match(line):
            self.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.block is None:
            self.lose(faults.NO_HEADER, at)
        elif self.block.of_processes:
            self._process(self.block, line, at)
        else:
            self._row(self.block, line, at, complete=complete)

    @property
    def _watched(self) -> bool:
        return bool(self.block and self.block.names[:1] == ROW_KEYS[:1])

    def _row(self, block: _Block, line: str, at: str, *, complete: bool) -> None:
        cells, is_whole = _cells(block, line)
        if not is_whole:
            self.lose(own_faults.CUT, f"{at}: {len(cells)} cells for {len(block.names)} columns")
            return
        by_name = dict(zip(block.names, cells, strict=True))
        time, *others = (by_name.get(name, "").strip() for name in ROW_KEYS)
        stamp = self._stamp(time)
        gpu, xcp = map(whole_number, others, [LARGEST[name] for name in ROW_KEYS[1:]])
        if gpu == NO_NUMBER:
            self.lose(faults.NO_GPU, at)
            return
        if not complete and stamp != NO_NUMBER:  # a stream that was cut, not a file that was edited
            self.issues.add(faults.CELL_CUT, 1, at)
            cells[-1] = ""
        for key, cell in block.values(cells):
            self.columns.setdefault(key, ColumnBuilder(key[2])).add(self.rows, cell)
        self.processes.rows[stamp, gpu] = self.rows
        self.row_keys[self.rows] = (no_time(time) if stamp == NO_NUMBER else stamp, gpu, xcp)
        self.rows += 1

    def _stamp(self, text: str) -> int:
        """Return a time in seconds, or in nanoseconds where times have fractions; `NO_NUMBER` if it is none."""
        if not self.is_exact:
            return whole_number(text, LARGEST[_TIME])
        time = nanoseconds(text)
        return NO_NUMBER if time is None or time < 0 else time

    def _process(self, block: _Block, line: str, at: str) -> None:
        values = dict(zip(block.names, csv_cells(line), strict=False))
        stamp = self._stamp(values.get(_TIME, ""))
        gpu = whole_number(values.get(_GPU, ""), LARGEST[_GPU])
        self.lost += 1
        self.processes.add(stamp, gpu, values, at)


def _with_exact_time(layout: Layout, time: str) -> Layout | None:
    """Return the layout of rows with a time as text; None if it is no number, so that they are read alone."""
    slots = slots_in(time)
    if len(slots) != 1 or time.strip() != str(probe_number(slots[0])):
        return None
    guard = Guard(slots[0], 0, LARGEST[_TIME] - 1, ANY)
    return replace(layout, texts=(time.strip(),), guards=(*layout.guards, guard))


def _cells(block: _Block, line: str) -> tuple[list[str], bool]:
    """Return the cells of a row, and whether there are as many as in the header."""
    cells = csv_cells(line)
    if len(cells) != len(block.names):
        cells = with_lists_joined(cells)
    return cells, len(cells) == len(block.names) and line.count('"') % 2 == 0


def read(text: str, issues: IssueLog) -> Rows:
    """Read the rows of a CSV file.

    Parameters
    ----------
    text
        The file.
    issues
        Where rows that cannot be read are counted.
    """
    return _CsvReader(text, issues).read()


def with_lists_joined(cells: list[str]) -> list[str]:
    """Join the cells of lists that are not quoted, as amd-smi of 2022 wrote them."""
    joined: list[str] = []
    for cell in cells:
        if joined and joined[-1].startswith("[") and not joined[-1].endswith("]"):
            joined[-1] += "," + cell
        else:
            joined.append(cell)
    return joined
