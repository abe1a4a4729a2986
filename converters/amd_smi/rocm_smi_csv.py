"""rocm-smi's CSV: ``device,<keys>`` and a row a card, block below block; with or without times.

Loops put a time in front of each row and a header above all rows, with names of their own choice.
Such a header may name more columns than the rows have.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from chopper_interop.converters.amd_smi.rocm_smi_records import SYSTEM, Records, card_of
from chopper_interop.converters.amd_smi.sniff import ROCM_SMI_CSV, ROCM_SMI_SYSTEM
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.text import csv_cells
from chopper_interop.converters.sampling.timestamps import Timestamp, parse_labelled_timestamp
from chopper_interop.issues import Fault, IssueLog

_FEW = 2
"""Rows that must agree on fewer cells than their header names: a single one may be cut off."""

EMPTY_COLUMN = Fault.info("column-without-cells", "Columns that the header names and no row has.")
NAMED_BY_HAND = Fault.info(
    "column-named-by-hand",
    "Columns that were named by whoever wrote the loop and not by rocm-smi: "
    "they were taken for what their names say.",
)
_OWN_NAME = re.compile(r"[A-Z (]|^\d+$")


@dataclass
class _Block:
    """Rows below a header."""

    names: list[str]
    rows: list[tuple[str, list[str], bool]] = field(default_factory=list)

    @property
    def timed(self) -> bool:
        """True if each row has its time."""
        return self.names[0].lower() != "device"

    def width(self, issues: IssueLog) -> int:
        """Cells that a whole row has."""
        counts = Counter(len(cells) for _, cells, is_complete in self.rows if is_complete)
        width, rows = max(counts.items(), key=lambda c: c[1], default=(len(self.names), 0))
        if width < len(self.names) and rows >= _FEW and len(self.names) not in counts:
            issues.add(EMPTY_COLUMN, len(self.names) - width, ", ".join(self.names[width:]))
            return width
        return len(self.names)


@dataclass
class _RocmSmiCsvReader:
    records: Records
    block: _Block | None = None
    system: bool = False
    """True if the lines are those below ``name, value``."""

    def line(self, line: str, at: str, *, is_complete: bool) -> None:
        cells = [cell.strip() for cell in csv_cells(line)]
        block = self.block
        stamp = None if block and block.timed else parse_labelled_timestamp(line)
        card = _card_in(cells)
        if stamp is not None:
            self._moment(stamp)
        elif not is_complete and (card is None or block is None):
            self.records.issues.add(faults.FILE_CUT, 1, line[:80])
        elif ROCM_SMI_CSV.match(line):
            self._header(cells)
        elif ROCM_SMI_SYSTEM.match(line):
            self.system = True
        elif self.system and len(cells) == len(("name", "value")):
            key, value = (cell.strip('"') for cell in cells)
            self.records.add(SYSTEM, key, value)
        elif card is None:
            self.records.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif block is None:
            self.records.lose(faults.NO_HEADER, at)
        else:
            block.rows.append((at, cells, is_complete))

    def _header(self, names: list[str]) -> None:
        self.system = False
        if self.block is None or self.block.names != names:
            _finish(self.block, self.records)
            self.block = _Block(names)

    def _moment(self, timestamp: Timestamp) -> None:
        _finish(self.block, self.records)
        self.block = _Block(self.block.names) if self.block else None
        self.records.moment(timestamp)


def read(text: str, issues: IssueLog) -> Records:
    """Records of a file."""
    reader = _RocmSmiCsvReader(Records(issues))
    lines = text.split("\n")
    for number, raw in enumerate(lines, 1):
        line = raw.strip("\r \0")
        if line:
            reader.line(line, f"line {number}", is_complete=number < len(lines))
    _finish(reader.block, reader.records)
    return reader.records


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
    for at, cells, is_complete in block.rows:
        if len(cells) != width:
            detail = f"{at}: {len(cells)} cells for {len(block.names)} columns"
            records.lose(faults.CUT, detail)
        else:
            _row(block.names, place, cells, at, records, is_complete=is_complete)


def _row(  # what is the same in all rows of a block is found once
    names: list[str], place: int, cells: list[str], at: str, records: Records, *, is_complete: bool
) -> None:
    card = card_of(cells[place]) if place < len(cells) else None
    stamp = parse_labelled_timestamp(cells[0]) if place else None
    if card is None:
        records.lose(faults.NO_GPU, at)
        return
    keys = names[place + 1 : len(cells)]
    values = cells[place + 1 :]
    if not is_complete and (stamp or records.before):
        records.issues.add(faults.CELL_CUT, 1, at)
        values[-1:] = [""]
    records.record(card, tuple(keys), stamp)
    for key, value in zip(keys, values, strict=True):
        records.add(card, key, value, stamp)


def _place(names: list[str]) -> int:
    """Index of the column of the cards."""
    return [name.lower() for name in names].index("device")
