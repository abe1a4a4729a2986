"""rocm-smi's CSV: ``device,<keys>`` and a row a card, block below block; with or without times.

Loops put a time in front of each row and a header of their own above all, whose names are theirs.
Such a header may name more columns than the rows have.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chopper_interop.converters import amd_smi_csv, rocm_smi_time
from chopper_interop.converters import amd_smi_faults as faults
from chopper_interop.converters.rocm_smi_records import SYSTEM, Records, card_of
from chopper_interop.issues import Fault, Severity

if TYPE_CHECKING:
    from chopper_interop.issues import IssueLog

HEADER = re.compile(r"(?:(?:timestamp|time|date|datetime),\s*)?device,", re.IGNORECASE)
SYSTEM_HEADER = re.compile(r"name, ?value\s*$")
_FEW = 2
"""Rows that agree on fewer cells than their header names, if it is the header that is wrong."""

EMPTY_COLUMN = Fault(
    "column-without-cells",
    Severity.INFO,
    "Columns that the header names and no row has.",
)
NAMED_BY_HAND = Fault(
    "column-named-by-hand",
    Severity.INFO,
    "Columns that were named by whoever wrote the loop and not by rocm-smi: they were taken for "
    "what their names say.",
)
_OWN_NAME = re.compile(r"[A-Z (]")


@dataclass
class _Block:
    """Rows below a header."""

    names: list[str]
    rows: list[tuple[str, list[str], bool]] = field(default_factory=list)

    @property
    def timed(self) -> bool:
        """Whether each row has its time."""
        return self.names[0].lower() != "device"

    def width(self, issues: IssueLog) -> int:
        """Cells that a whole row has."""
        counts = Counter(len(cells) for _, cells, whole in self.rows if whole)
        most, rows = max(counts.items(), key=lambda c: c[1], default=(len(self.names), 0))
        if most < len(self.names) and rows >= _FEW and len(self.names) not in counts:
            issues.add(EMPTY_COLUMN, len(self.names) - most, ", ".join(self.names[most:]))
            return most
        return len(self.names)


def read(text: str, issues: IssueLog) -> Records:
    """Records of a file."""
    records = Records(issues)
    block: _Block | None = None
    system = False
    lines = text.split("\n")
    for number, raw in enumerate(lines, 1):
        line = raw.strip("\r \0")
        whole = number < len(lines)
        cells = [cell.strip() for cell in amd_smi_csv.cells_of(line)]
        told = None if block and block.timed else rocm_smi_time.moment(line)
        if HEADER.match(line):
            if whole and (block is None or block.names != cells):
                _finish(block, records)
                block = _Block(cells)
            system = False
        elif SYSTEM_HEADER.match(line):
            system = True
        elif told is not None:
            _finish(block, records)
            block = _Block(block.names) if block else None
            records.moment(told)
        elif system and len(cells) == len(("name", "value")):
            records.add(SYSTEM, *(cell.strip('"') for cell in cells))
        elif line and _card_in(cells) is None:
            cut = not whole and block is not None and block.timed
            issues.add(faults.FILE_CUT if cut else faults.NOT_A_ROW, 1, line[:80])
        elif line and block is None:
            records.lose(faults.NO_HEADER, f"line {number}")
        elif line and block:
            block.rows.append((f"line {number}", cells, whole))
    _finish(block, records)
    return records


def _card_in(cells: list[str]) -> str | None:
    return next((cell for cell in cells[:2] if card_of(cell) is not None), None)


def _finish(block: _Block | None, records: Records) -> None:
    """Add the rows of a block."""
    if block is None or not block.rows:
        return
    width = block.width(records.issues)
    place = _place(block.names)
    by_hand = [n for n in block.names[place + 1 : width] if not _OWN_NAME.search(n)]
    records.issues.add(NAMED_BY_HAND, len(by_hand), ", ".join(by_hand)[:80])
    for at, cells, whole in block.rows:
        if len(cells) != width:
            told = f"{at}: {len(cells)} cells for {len(block.names)} columns"
            records.lose(faults.CUT, told)
        else:
            _row(block.names, cells, at, records, whole=whole)


def _row(names: list[str], cells: list[str], at: str, records: Records, *, whole: bool) -> None:
    place = _place(names)
    card = card_of(cells[place]) if place < len(cells) else None
    told = rocm_smi_time.moment(cells[0]) if place else None
    if card is None:
        records.lose(faults.NO_GPU, at)
        return
    keys = names[place + 1 : len(cells)]
    values = cells[place + 1 :]
    if not whole and told:
        records.issues.add(faults.CELL_CUT, 1, at)
        values[-1:] = [""]
    records.record(card, tuple(keys), told)
    for key, value in zip(keys, values, strict=True):
        records.add(card, key, value, told)


def _place(names: list[str]) -> int:
    """Where the column of the cards stands."""
    return [name.lower() for name in names].index("device")
