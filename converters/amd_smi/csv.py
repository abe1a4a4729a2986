"""Rows of amd-smi's CSV: repeated headers, lists in cells, rows that are cut."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.layout import CSV_HEADER, LARGEST, ROW_KEYS, keys_of
from chopper_interop.converters.amd_smi.processes import Processes
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import Column, Rows, column_of_texts, rows_from_keys
from chopper_interop.converters.sampling.text import (
    NO_NUMBER,
    csv_cells,
    numbered_lines,
    whole_number,
)

if TYPE_CHECKING:
    from chopper_interop.issues import Fault, IssueLog

_WATCHING = re.compile(r"'CTRL' \+ 'C'")
_DATA = re.compile(r"\d")
_ERROR_HEADER = ("error", "code")
_PROCESS = {"pid", "name"}


@dataclass
class _Block:
    """Rows below equal headers."""

    names: tuple[str, ...]
    rows: list[int] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    of_processes: bool = False

    def __post_init__(self) -> None:
        self.of_processes = set(self.names) >= _PROCESS

    def columns(self) -> list[Column]:
        keys = keys_of(self.names)
        row = np.array(self.rows, np.int64)
        return [
            column_of_texts(key, row, texts)
            for key, name, texts in zip(
                keys, self.names, zip(*self.cells, strict=True), strict=True
            )
            if name not in ROW_KEYS
        ]


class _CsvReader:
    def __init__(self, text: str, issues: IssueLog) -> None:
        self.issues = issues
        self.text = text
        self.blocks: dict[tuple[str, ...], _Block] = {}
        self.block: _Block | None = None
        self.row_keys: list[tuple[int, int, int]] = []
        self.processes = Processes(issues)
        self.events = 0

    def read(self) -> Rows:
        for line, at, complete in numbered_lines(self.text):
            self._line(line.strip(), at, complete=complete)
        columns = [c for b in self.blocks.values() if b.rows for c in b.columns()]
        columns += self.processes.finish()
        return rows_from_keys(self.row_keys, columns, self.events)

    def _line(self, line: str, at: str, *, complete: bool) -> None:
        header = CSV_HEADER.match(line) is not None
        if not complete and (header or (self._watched and not _DATA.match(line))):
            self.issues.add(faults.FILE_CUT, 1, at)
        elif header:
            names = tuple(name.strip() for name in csv_cells(line))
            self.block = self.blocks.setdefault(names, _Block(names))
        elif _WATCHING.match(line):
            self.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.block and self.block.names == _ERROR_HEADER:
            self._lose(own_faults.ERROR, line)
        elif not _DATA.match(line):
            self.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.block is None:
            self._lose(faults.NO_HEADER, at)
        elif self.block.of_processes:
            self._process(self.block, line, at)
        else:
            self._row(self.block, line, at, complete=complete)

    @property
    def _watched(self) -> bool:
        return bool(self.block and self.block.names[:1] == ROW_KEYS[:1])

    def _row(self, block: _Block, line: str, at: str, *, complete: bool) -> None:
        cells = csv_cells(line)
        if len(cells) != len(block.names):
            cells = with_lists_joined(cells)
        if len(cells) != len(block.names) or line.count('"') % 2:
            self._lose(own_faults.CUT, f"{at}: {len(cells)} cells for {len(block.names)} columns")
            return
        by_name = dict(zip(block.names, cells, strict=True))
        stamp, gpu, xcp = (whole_number(by_name.get(name, ""), LARGEST[name]) for name in ROW_KEYS)
        if gpu == NO_NUMBER:
            self._lose(faults.NO_GPU, at)
            return
        if not complete and stamp != NO_NUMBER:  # a stream that was cut, not a file that was edited
            self.issues.add(faults.CELL_CUT, 1, at)
            cells[-1] = ""
        block.rows.append(len(self.row_keys))
        self.processes.rows[stamp, gpu] = len(self.row_keys)
        block.cells.append(cells)
        self.row_keys.append((stamp, gpu, xcp))
        self.events += 1

    def _process(self, block: _Block, line: str, at: str) -> None:
        values = dict(zip(block.names, csv_cells(line), strict=False))
        stamp, gpu = (whole_number(values.get(name, ""), LARGEST[name]) for name in ROW_KEYS[:2])
        self.events += 1
        self.processes.add(stamp, gpu, values, at)

    def _lose(self, fault: Fault, example: str) -> None:
        self.events += 1
        self.issues.add(fault, 1, example[:80])


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
