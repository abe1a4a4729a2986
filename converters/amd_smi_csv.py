"""amd-smi's CSV as rows: headers that come again, lists in cells, rows that break off."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import amd_smi_faults as own_faults
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.amd_smi_processes import Processes
from chopper_interop.converters.telemetry_cells import Column, Rows, column_of_texts
from chopper_interop.converters.telemetry_numbers import (
    LARGEST_INDEX,
    LATEST_S,
    NOT_TOLD,
    cells_of,
    whole_number,
)

if TYPE_CHECKING:
    from chopper_interop.issues import Fault, IssueLog

OWN = ("timestamp", "gpu", "xcp")
"""Columns that say which row it is."""

HEADER = re.compile(r"^(?:(?:timestamp,)?gpu(?:,|\s*$)|error,code\s*$)", re.MULTILINE)
"""How headers begin."""
_WATCHING = re.compile(r"'CTRL' \+ 'C'")
_DATA = re.compile(r"\d")
LARGEST = dict(zip(OWN, (LATEST_S, LARGEST_INDEX, LARGEST_INDEX), strict=True))
"""The largest numbers that `OWN` can hold."""
_ERROR_HEADER = ("error", "code")
_PROCESS = {"pid", "name"}

_METRIC = {"edge", "hotspot"}
_MONITOR = {
    "power_usage",
    "hotspot_temperature",
    "memory_temperature",
    "gfx",
    "gfx_clk",
    "gfx_clock",
    "mem_clock",
    "encoder",
    "decoder",
    "vram_used",
    "pviol",
    "pcie_bw",
    "single_bit_ecc",
}


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
            if name not in OWN
        ]


class _Reader:
    def __init__(self, text: str, issues: IssueLog) -> None:
        self.issues = issues
        self.lines = text.split("\n")
        self.blocks: dict[tuple[str, ...], _Block] = {}
        self.block: _Block | None = None
        self.own: list[tuple[int, int, int]] = []
        self.processes = Processes(issues)
        self.events = 0

    def read(self) -> Rows:
        last = len(self.lines) - 1
        for number, line in enumerate(self.lines):
            stripped = line.strip()
            if stripped:
                self._line(stripped, f"line {number + 1}", whole=number < last)
        columns = [c for b in self.blocks.values() if b.rows for c in b.columns()]
        columns += self.processes.finish()
        own = np.array(self.own, np.int64).reshape(-1, len(OWN))
        return Rows(own[:, 0], own[:, 1], own[:, 2], columns, self.events)

    def _line(self, line: str, at: str, *, whole: bool) -> None:
        header = HEADER.match(line) is not None
        if not whole and (header or (self._watched and not _DATA.match(line))):
            self.issues.add(faults.FILE_CUT, 1, at)
        elif header:
            names = tuple(name.strip() for name in cells_of(line))
            self.block = self.blocks.setdefault(names, _Block(names))
        elif _WATCHING.match(line):
            self.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.block and self.block.names == _ERROR_HEADER:
            self._lost(own_faults.ERROR, line)
        elif not _DATA.match(line):
            self.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif self.block is None:
            self._lost(faults.NO_HEADER, at)
        elif self.block.of_processes:
            self._process(self.block, line, at)
        else:
            self._row(self.block, line, at, whole=whole)

    @property
    def _watched(self) -> bool:
        return bool(self.block and self.block.names[:1] == OWN[:1])

    def _row(self, block: _Block, line: str, at: str, *, whole: bool) -> None:
        cells = cells_of(line)
        if len(cells) != len(block.names):
            cells = with_lists_joined(cells)
        if len(cells) != len(block.names) or line.count('"') % 2:
            self._lost(own_faults.CUT, f"{at}: {len(cells)} cells for {len(block.names)} columns")
            return
        by_name = dict(zip(block.names, cells, strict=True))
        stamp, gpu, xcp = (whole_number(by_name.get(name, ""), LARGEST[name]) for name in OWN)
        if gpu == NOT_TOLD:
            self._lost(faults.NO_GPU, at)
            return
        if not whole and stamp != NOT_TOLD:  # a stream that was cut, not a file that was edited
            self.issues.add(faults.CELL_CUT, 1, at)
            cells[-1] = ""
        block.rows.append(len(self.own))
        self.processes.rows[stamp, gpu] = len(self.own)
        block.cells.append(cells)
        self.own.append((stamp, gpu, xcp))
        self.events += 1

    def _process(self, block: _Block, line: str, at: str) -> None:
        told = dict(zip(block.names, cells_of(line), strict=False))
        stamp, gpu = (whole_number(told.get(name, ""), LARGEST[name]) for name in OWN[:2])
        self.events += 1
        self.processes.add(stamp, gpu, told, at)

    def _lost(self, fault: Fault, example: str) -> None:
        self.events += 1
        self.issues.add(fault, 1, example[:80])


def read(text: str, issues: IssueLog) -> Rows:
    """Rows of a CSV file.

    Parameters
    ----------
    text
        The file.
    issues
        Where rows that cannot be read are counted.
    """
    return _Reader(text, issues).read()


def with_lists_joined(cells: list[str]) -> list[str]:
    """Cells of a row whose lists stand without quotes, as amd-smi of 2022 wrote them."""
    joined: list[str] = []
    for cell in cells:
        if joined and joined[-1].startswith("[") and not joined[-1].endswith("]"):
            joined[-1] += "," + cell
        else:
            joined.append(cell)
    return joined


def keys_of(names: tuple[str, ...]) -> list[str]:
    """Keys of the columns below a header: names that mean two things, told by those beside.

    `mem` is a temperature in ``metric`` and a utilisation in ``monitor``. In a full ``metric``
    the fan's `speed` overwrote that of PCIe, although it stands in PCIe's place.
    """
    there = set(names)
    meant: dict[str, str] = {}
    if there & _METRIC:
        meant["mem"] = "temperature.mem"
    elif there & _MONITOR:
        meant["mem"] = "monitor.mem"
    if "gfx_usage" in there:
        meant["mem_usage"] = "usage.mem_usage"
    if "rpm" in there:
        meant |= {name: f"fan.{name}" for name in ("speed", "max", "usage")}
    elif "width" in there:
        meant["speed"] = "pcie.speed"
    return [meant.get(name, name) for name in names]
