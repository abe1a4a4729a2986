"""amd-smi's form for people as rows: the blocks of ``metric`` and the table of ``monitor``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import amd_smi_faults as own_faults
from chopper_interop.converters import amd_smi_json, amd_smi_yaml
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.amd_smi_csv import LARGEST, OWN
from chopper_interop.converters.amd_smi_processes import Processes
from chopper_interop.converters.telemetry_cells import Cell, ColumnBuilder, Rows, of_text
from chopper_interop.converters.telemetry_numbers import whole_number
from chopper_interop.converters.telemetry_text import without_tabs
from chopper_interop.converters.telemetry_units import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chopper_interop.issues import Fault, IssueLog

HEADER = re.compile(r"\s*(?:TIMESTAMP +)?GPU +[A-Z][A-Z0-9_%]*(?: +[A-Z0-9_%/]+)*\s*$")
"""The head of a table."""
_STAMP_IN_FRONT = re.compile(r"TIMESTAMP: ")
_PROCESS = "PID"
_ROW = re.compile(r"\s*\d+ ")
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_CELL = re.compile(
    rf"\[[^\]]*\]|NOT ACTIVE|(?:[-+]?\d[\d.]*(?:/\d[\d.]*)?|N/A(?:/N/A)?)(?: (?:{_UNIT})(?=\s|$))?"
    r"(?=\s|$)|\S+"
)

COLUMNS = {
    "POWER": "power_usage",
    "PWR_CAP": "max_power",
    "GPU_TEMP": "hotspot_temperature",
    "GPU_T": "hotspot_temperature",
    "MEM_TEMP": "memory_temperature",
    "MEM_T": "memory_temperature",
    "GFX_UTIL": "gfx",
    "GFX%": "gfx",
    "MEM_UTIL": "monitor.mem",
    "MEM%": "monitor.mem",
    "ENC_UTIL": "encoder",
    "ENC%": "encoder",
    "ENC_CLOCK": "encoder_clock",
    "DEC_UTIL": "decoder",
    "DEC%": "decoder",
    "DEC_CLOCK": "decoder_clock",
    "THROTTLE": "throttle_status",
    "SINGLE_ECC": "single_bit_ecc",
    "DOUBLE_ECC": "double_bit_ecc",
    "VRAM%": "vram_percent",
}
"""Heads of columns that differ from the names in CSV by more than their capitals."""
_USAGE = "VRAM_USAGE"
_DEGREE = re.compile(r"(?<=\d )\S{1,3}(?=C\b)")
_GARBLED = ("Â°", "\ufffd", "┬░", "ø", "?")
"""What the sign of a degree becomes under a wrong encoding."""


@dataclass
class _Table:
    issues: IssueLog
    own: list[tuple[int, int, int]] = field(default_factory=list)
    columns: dict[str, ColumnBuilder] = field(default_factory=dict)
    events: int = 0
    heads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.processes = Processes(self.issues)

    def add(self, own: tuple[int, int, int], cells: Iterator[tuple[str, Cell]], at: str) -> None:
        """Add a row; one that names no GPU is counted."""
        if own[1] < 0:
            self.lost(faults.NO_GPU, at)
            return
        for key, cell in dict(cells).items():
            self.columns.setdefault(key, ColumnBuilder(key)).add(len(self.own), cell)
        self.processes.rows[own[:2]] = len(self.own)
        self.own.append(own)
        self.events += 1

    def lost(self, fault: Fault, example: str) -> None:
        self.events += 1
        self.issues.add(fault, 1, example[:80])

    def rows(self) -> Rows:
        own = np.array(self.own, np.int64).reshape(-1, len(OWN))
        columns = [c.finish() for c in self.columns.values()]
        columns += self.processes.finish()
        return Rows(own[:, 0], own[:, 1], own[:, 2], columns, self.events)


def read(text: str, issues: IssueLog) -> Rows:
    """Rows of a text.

    Parameters
    ----------
    text
        The file.
    issues
        Where rows that cannot be read are counted.
    """
    text = _with_degrees(without_tabs(text))
    table = _Table(issues)
    for reader, first, part in _parts(text):
        reader(part, first, table)
    return table.rows()


def _parts(text: str) -> Iterator[tuple[Callable[[str, int, _Table], None], int, str]]:
    """Parts of a text that are blocks or tables, with the line on which each begins."""
    reader, first, lines = _lines, 1, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        block = amd_smi_yaml.BLOCK.match(line) or _STAMP_IN_FRONT.match(line)
        begun = _blocks if block else _lines if HEADER.match(line) else reader
        if begun is not reader:
            yield reader, first, "\n".join([*lines, ""])
            reader, first, lines = begun, number, []
        lines.append(line)
    yield reader, first, "\n".join(lines)


def _with_degrees(text: str) -> str:
    """The text with degrees as they were written, before it was taken for another encoding."""
    return _DEGREE.sub(lambda sign: "°" if sign[0] in _GARBLED else sign[0], text)


def _blocks(text: str, first: int, table: _Table) -> None:
    for block in amd_smi_yaml.read(text, table.issues):
        at = f"line {first + block.line - 1}"
        if block.kind != "GPU":
            table.lost(own_faults.OTHER_PART, f"{at}: {block.kind}")
            continue
        told = (block.stamp, block.number, str(block.tree.pop("xcp", "")))
        own = tuple(whole_number(t, LARGEST[n]) for t, n in zip(told, OWN, strict=True))
        leaves = amd_smi_json.leaves(block.tree)
        cells = ((key, of_text(str(leaf))) for key, leaf in leaves if leaf != {})
        table.add(own, cells, at)  # type: ignore[arg-type] # as many as OWN has


def _lines(text: str, first: int, table: _Table) -> None:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        stripped = line.strip(" \r\0")
        if stripped:
            _line(stripped, f"line {first + number - 1}", table, whole=number < len(lines))


def _line(line: str, at: str, table: _Table, *, whole: bool) -> None:
    watched = "TIMESTAMP" in table.heads
    if HEADER.match(line):
        if whole:
            table.heads = tuple(line.split())
        else:
            table.issues.add(faults.FILE_CUT, 1, at)
    elif not _ROW.match(line):
        fault = faults.NOT_A_ROW if whole or not watched else faults.FILE_CUT
        table.issues.add(fault, 1, line[:80])
    elif not table.heads:
        table.lost(faults.NO_HEADER, at)
    elif _PROCESS in table.heads:
        _process(line, at, table)
    else:
        _row(
            line, at, table, cut=not whole and (watched or amd_smi_yaml.ENDS_IN_NUMBER.search(line))
        )


def _row(line: str, at: str, table: _Table, *, cut: object) -> None:
    cells = _CELL.findall(line)
    if len(cells) != len(table.heads):
        table.lost(own_faults.CUT, f"{at}: {len(cells)} cells for {len(table.heads)} columns")
        return
    if cut:
        table.issues.add(faults.CELL_CUT, 1, at)
        cells[-1] = ""
    told = {head.lower(): cell for head, cell in zip(table.heads, cells, strict=True)}
    own = tuple(whole_number(told.pop(name, ""), LARGEST[name]) for name in OWN)
    table.add(own, _named(told), at)  # type: ignore[arg-type] # as many as OWN has


def _process(line: str, at: str, table: _Table) -> None:
    cells = _CELL.findall(line)
    told = {h.lower(): c for h, c in zip(table.heads, cells, strict=False)}
    if len(cells) != len(table.heads):
        table.lost(own_faults.CUT, f"{at}: {len(cells)} cells for {len(table.heads)} columns")
        return
    stamp, gpu = (whole_number(told.get(name, ""), LARGEST[name]) for name in OWN[:2])
    table.events += 1
    table.processes.add(stamp, gpu, told, at)


def _named(told: dict[str, str]) -> Iterator[tuple[str, Cell]]:
    """Cells by the keys that CSV has for them; what is used of how much becomes two."""
    for name, text in told.items():
        head = name.upper()
        if head == _USAGE:
            amounts, _, unit = text.partition(" ")
            used, _, total = amounts.partition("/")
            yield "vram_used", of_text(f"{used} {unit}")
            yield "vram_total", of_text(f"{total} {unit}")
        else:
            yield COLUMNS.get(head, name), of_text(text)
