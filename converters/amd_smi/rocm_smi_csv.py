"""rocm-smi's CSV: ``device,<keys>`` and a row a card, block below block; with or without times.

Loops put a time in front of each row and a header above all rows, with names of their own choice.
Such a header may name more columns than the rows have.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.amd_smi.rocm_smi_records import SYSTEM, Record, Records, card_of
from chopper_interop.converters.amd_smi.rocm_smi_table import (
    Form,
    IrregularError,
    Place,
    RecordCollector,
    RecordTable,
    layout_of,
    parsed,
    read_outputs,
)
from chopper_interop.converters.amd_smi.sniff import ROCM_SMI_CSV, ROCM_SMI_SYSTEM
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import marked, renumbered
from chopper_interop.converters.sampling.laid_columns import columns_of, keys_of_rows
from chopper_interop.converters.sampling.layouts import PieceLayout, slots_in
from chopper_interop.converters.sampling.templates import read_lines
from chopper_interop.converters.sampling.text import csv_cells, encoded
from chopper_interop.converters.sampling.ticks import ticks_of
from chopper_interop.converters.sampling.timestamps import Timestamp, parse_labelled_timestamp
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows

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
    def place(self) -> int:
        """Index of the column of the cards."""
        return [name.lower() for name in self.names].index("device")

    @property
    def timed(self) -> bool:
        """True if each row has its time."""
        return self.names[0].lower() != "device"

    def counts(self) -> Counter[int]:
        """Rows by their number of cells."""
        return Counter(len(cells) for _, cells, is_complete in self.rows if is_complete)

    def width(self, counts: Counter[int], issues: IssueLog) -> int:
        """Cells that a whole row has; what that says of the columns is noted."""
        width, rows = max(counts.items(), key=lambda c: c[1], default=(len(self.names), 0))
        if width < len(self.names) and rows >= _FEW and len(self.names) not in counts:
            issues.add(EMPTY_COLUMN, len(self.names) - width, ", ".join(self.names[width:]))
        else:
            width = len(self.names)
        by_hand = [n for n in self.names[self.place + 1 : width] if not _OWN_NAME.search(n)]
        issues.add(NAMED_BY_HAND, len(by_hand), ", ".join(by_hand)[:80])
        return width


class _State(NamedTuple):
    """Decides with the line how a line is read.

    Parameters
    ----------
    names
        Names of the header above; None in front of the first.
    system
        True if the lines are those below ``name, value``.
    """

    names: tuple[str, ...] | None = None
    system: bool = False


class _RocmSmiCsvReader:
    def __init__(self, issues: IssueLog, state: _State) -> None:
        self.records = Records(issues)
        self.block = None if state.names is None else _Block(list(state.names))
        self.system = state.system

    @property
    def state(self) -> _State:
        return _State(None if self.block is None else tuple(self.block.names), self.system)

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


def _read_part(text: str, issues: IssueLog, state: _State, place: Place) -> tuple[Records, _State]:
    reader = _RocmSmiCsvReader(issues, state)
    if reader.block is not None and reader.block.timed:  # a time in a line of its own is no begin
        raise IrregularError
    lines = text.split("\n")
    for number, raw in enumerate(lines, place.line):
        line = raw.strip("\r \0")
        if line:
            is_complete = number < place.line + len(lines) - 1
            reader.line(line, f"line {number}", is_complete=is_complete)
    _finish(reader.block, reader.records)
    return reader.records, reader.state


_FORM = Form(_read_part, _State(), begins=lambda _: False, no_mark=b"c")


def read(text: str, issues: IssueLog) -> RecordTable:
    """Records of a file."""
    if not _has_times_between(text):
        here = IssueLog(issues.source)
        reader = _RowReader(here)
        with suppress(IrregularError):
            table = reader.finish(read_lines(encoded(text), reader))
            issues.extend(here)
            return table
    return read_outputs(text, _FORM, issues)


def _has_times_between(text: str) -> bool:
    """True if one of the first lines is a time."""
    lines = text[: inputs.HEAD_BYTES].split("\n")
    return any(parse_labelled_timestamp(line) is not None for line in lines)


class _RowReader(RecordCollector):
    """Reads lines below one header, which may come again, with a time in each or with none."""

    def __init__(self, issues: IssueLog) -> None:
        super().__init__(issues)
        self.block: _Block | None = None
        self.state = 0
        """1 below the header."""
        self.width = 0
        """Cells of the first row."""
        self.alone: list[int] = []
        """Rows of the block that have no layout."""

    def layout(self, probe: str, sample: str) -> PieceLayout | None:  # noqa: ARG002 - the probe is enough
        line, block = probe.strip("\r \0"), self.block
        cells = [cell.strip() for cell in csv_cells(line)]
        if block is None or ROCM_SMI_CSV.match(line):
            return None
        if _card_in(cells) is None:
            return PieceLayout(noted=((faults.NOT_A_ROW, 1),)) if block.timed else None
        self.width = self.width or len(cells)
        records = Records(IssueLog())
        if len(cells) == self.width <= len(block.names):
            _row(block.names, block.place, cells, "", records, is_complete=True)
        if len(records.entries) != 1 or slots_in(str(records.entries[0].card)):
            return None
        return PieceLayout((layout_of(records.entries[0], cells[0] if block.timed else ""),))

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        """Read a line; a row is kept until it is known how many cells a whole one has."""
        line, at, block = text.strip("\r \0"), f"line {number}", self.block
        cells = [cell.strip() for cell in csv_cells(line)]
        is_timed, card = block is not None and block.timed, _card_in(cells)
        if not line:
            return
        if not is_timed and parse_labelled_timestamp(line) is not None:
            raise IrregularError
        if not is_complete and (card is None or block is None):
            self.issues.add(faults.FILE_CUT, 1, line[:80])
        elif ROCM_SMI_CSV.match(line):
            self._header(cells)
        elif ROCM_SMI_SYSTEM.match(line):
            raise IrregularError
        elif card is None:
            self.issues.add(faults.NOT_A_ROW, 1, line[:80])
        elif block is None:
            self.lost += 1
            self.issues.add(faults.NO_HEADER, 1, at)
        else:
            self.width = self.width or len(cells)
            block.rows.append((at, cells, is_complete))
            self.alone.append(self.rows)
            self.rows += 1

    def _header(self, names: list[str]) -> None:
        if self.block is not None and self.block.names != names:
            raise IrregularError
        self.block, self.state = self.block or _Block(names), 1

    def finish(self, laid: LaidRows | None) -> RecordTable:
        """Return the table of all rows."""
        block = self.block or _Block(["device"])
        is_read = self._read_alone(block, laid)
        self.note(laid)
        has_values, card, _ = keys_of_rows(laid, self.keys)
        times, stamp, offset_ns = self.own_times(laid)
        card, has_values, stamp, offset_ns = (
            marked(column, is_read) for column in (card, has_values > 0, stamp, offset_ns)
        )
        output = ticks_of(gather.distinct(card)[1])
        columns = {
            key: replace(column, row=renumbered(column.row, is_read))
            for key, column in columns_of(laid, self.columns, parsed).items()
        }
        return RecordTable(card, has_values, output, times, stamp, offset_ns, columns, self.lost)

    def _read_alone(self, block: _Block, laid: LaidRows | None) -> Array:
        """Read rows without a layout; return a mask of all rows that could be read."""
        counts = Counter[int]()
        first = int(laid.row[0]) if laid is not None and len(laid.row) else -1
        for row, (_, cells, is_complete) in zip(self.alone, block.rows, strict=True):
            if 0 <= first < row:
                counts.setdefault(self.width, 0)
            counts[len(cells)] += is_complete
        if laid is not None:
            counts[self.width] += len(laid.row)
        is_read = np.ones(self.rows, bool)
        if not self.rows:
            return is_read
        width, place = block.width(+counts, self.issues), block.place
        keys = block.names[place + 1 : width]
        if (first >= 0 and width != self.width) or len(set(keys)) < max(len(keys), 1):
            raise IrregularError
        for number, cells_of_row in zip(self.alone, block.rows, strict=True):
            records = Records(self.issues)
            _add_row(block.names, place, width, cells_of_row, records)
            is_read[number] = bool(records.entries)
            self.add((records.entries or [Record(SYSTEM, 0)])[0], number)
        self.lost += int(np.count_nonzero(~is_read))
        return is_read


def _card_in(cells: list[str]) -> str | None:
    return next((cell for cell in cells[:2] if card_of(cell) is not None), None)


def _finish(block: _Block | None, records: Records) -> None:
    """Add the rows of a block."""
    if block is None or not block.rows:
        return
    width, place = block.width(block.counts(), records.issues), block.place
    for row in block.rows:
        _add_row(block.names, place, width, row, records)


def _add_row(
    names: list[str], place: int, width: int, row: tuple[str, list[str], bool], records: Records
) -> None:
    at, cells, is_complete = row
    if len(cells) == width:
        _row(names, place, cells, at, records, is_complete=is_complete)
    else:
        records.lose(faults.CUT, f"{at}: {len(cells)} cells for {len(names)} columns")


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
