"""Rows of a tool's output, one GPU at one time each, as columns of cells.

Cells hold what was written, not yet what it means. The same few values come again and again, so a
column stores each distinct cell once and a code per row; every distinct cell is interpreted once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes, gather

LARGEST_EXACT = float((1 << 53) - 1)
"""Whole numbers up to this are doubles of their own."""
Scalar = str | int | float | bool | None
INTEGER, DECIMAL, OTHER = range(3)
"""Kinds of numbers in `Slot`s: plain digits; with a decimal point; those whose text says more than the
number (zeros in front, as in 08:05; more digits than a double holds)."""


class Slot(NamedTuple):
    """Stands in a cell for a number that differs from row to row.

    Parameters
    ----------
    number
        Which number it is, counted from the first one that the cell may refer to.
    is_written
        True if the value is the number's text, false if it is a number of JSON.
    factor
        The value is the number times this.
    """

    number: int
    is_written: bool = True
    factor: float = 1.0


class TextNumbers(NamedTuple):
    """Numbers of a text, in its order.

    Parameters
    ----------
    data
        The text.
    value
        Each as a double; a rough one of kind `OTHER`.
    at, length
        Its place in the text, bytes.
    kind
        `INTEGER`, `DECIMAL` or `OTHER`.
    """

    data: Bytes
    value: Array
    at: Array
    length: Array
    kind: Array

    def text(self, number: int) -> str:
        """Return one number as it is written."""
        at = int(self.at[number])
        return self.data[at : at + int(self.length[number])].tobytes().decode()


class SlotColumn(NamedTuple):
    """Numbers of one slot, row by row.

    Parameters
    ----------
    value
        Each as a double; of kind `OTHER` the number of its text.
    form
        How each is written, or one for all: with the value that says its text. See `DECIMAL_FORM`.
    """

    value: Array
    form: Any

    def select(self, rows: Array | slice) -> SlotColumn:
        """Return the numbers of some rows."""
        return SlotColumn(self.value[rows], self.form[rows] if np.ndim(self.form) else self.form)

    def identity(self) -> tuple[Array, Array]:
        """Return whole numbers that are equal for numbers of equal texts, two for each."""
        form = np.broadcast_to(self.form, self.value.shape).astype(np.int64)
        return self.value.view(np.int64), form

    def text(self, row: int) -> str:
        """Return a number that is not of kind `OTHER` as it is written."""
        value, form = self.value[row], int(self.form[row] if np.ndim(self.form) else self.form)
        if form < DECIMAL_FORM:
            return str(int(value))
        decimals = form - DECIMAL_FORM - len(str(int(value))) - len(".")
        return f"{value:.{decimals}f}"


def has_others(column: SlotColumn) -> bool:
    """True if a number of a slot is of kind `OTHER`."""
    return bool(np.any(np.asarray(column.form) == OTHER_FORM))


def others_in(column: SlotColumn) -> Array:
    """Mask of the numbers of a slot that are of kind `OTHER`."""
    return np.broadcast_to(np.asarray(column.form) == OTHER_FORM, column.value.shape)


DECIMAL_FORM, OTHER_FORM = 64, 255
"""Forms of numbers: of `INTEGER` and `DECIMAL` their lengths, of 18 bytes at most, with `DECIMAL_FORM` added; of others `OTHER_FORM`."""


@dataclass(frozen=True)
class SlotNumbers:
    """Numbers of the slots in the cells of a column; none is of kind `OTHER`.

    Parameters
    ----------
    rows
        Number of the column's rows.
    parts
        For rows that are read by one layout each: which rows they are, and their numbers by slot.
    """

    rows: int
    parts: tuple[tuple[Array | slice, dict[int, SlotColumn]], ...]

    def column(self, slot: int) -> SlotColumn:
        """Return the numbers of a slot, 0 in rows whose cells do not refer to it."""
        parts = [(place, of_slot[slot]) for place, of_slot in self.parts if slot in of_slot]
        place, column = parts[0]
        if isinstance(place, slice) and place == slice(0, self.rows, 1):
            return column
        value, forms = np.zeros(self.rows), {column.form.tobytes() for _, column in parts}
        for place, column in parts:
            value[place] = column.value
        if len(forms) == 1 and not column.form.ndim:
            return SlotColumn(value, column.form)
        form = np.zeros(self.rows, np.uint8)
        for place, column in parts:
            form[place] = column.form
        return SlotColumn(value, form)

    def of_rows(self, slot: int, base: Array | None) -> SlotColumn:
        """Return the numbers of a slot in these rows, or in all."""
        column = self.column(slot)
        return column if base is None else column.select(base)


class Item(NamedTuple):
    """One value as it was written.

    Parameters
    ----------
    value
        Text of CSV, or a scalar of JSON; or a slot.
    unit
        Unit next to it, or empty.
    error
        Error that stands in place of the value.
    """

    value: Scalar | Slot
    unit: str = ""
    error: str = ""


class Cell(NamedTuple):
    """One value, or a list of them."""

    items: tuple[Item, ...]
    listed: bool = False


def slots_of(cell: Cell) -> list[int]:
    """Numbers of the slots of a cell."""
    return [i.value.number for i in cell.items if isinstance(i.value, Slot)]


@dataclass(frozen=True)
class CellColumn:
    """One column.

    Parameters
    ----------
    key
        Its name.
    row
        Rows that have a cell, ascending.
    code
        Index into `distinct` for each of these rows.
    distinct
        The different cells.
    numbers
        Numbers of the slots in cells.
    base
        Which row of `numbers` each row is; None if they are the same rows.
    whole
        The column that these rows were selected from, and which of its rows they are: cells of other
        rows still count where it is decided what a column holds.
    """

    key: str
    row: Array
    code: Array
    distinct: list[Cell]
    numbers: SlotNumbers | None = None
    base: Array | None = None
    whole: tuple[CellColumn, Array] | None = None

    def select(self, kept: Array) -> CellColumn:
        """Return the cells where a mask is true."""
        base = self.base
        if self.numbers is not None:
            base = np.flatnonzero(kept) if base is None else base[kept]
        whole, rows = self.whole or (self, np.arange(len(self.row)))
        row, code = self.row[kept], self.code[kept]
        return replace(self, row=row, code=code, base=base, whole=(whole, rows[kept]))

    def in_order(self) -> CellColumn:
        """Return the column with its cells in the order in which they come first."""
        if len(self.distinct) == 1:
            return replace(self, whole=None)
        first, code = gather.distinct(self.code)
        distinct = [self.distinct[number] for number in self.code[first].tolist()]
        return replace(self, code=code.astype(np.int32), distinct=distinct, whole=None)

    def uses(self) -> Array:
        """Return how many rows have each of the different cells."""
        if len(self.distinct) == 1:
            return np.array([len(self.row)])
        return np.bincount(self.code, minlength=len(self.distinct))

    def rows_of(self, code: int) -> Array | slice:
        """Return the positions of rows with a cell."""
        return slice(None) if len(self.distinct) == 1 else np.flatnonzero(self.code == code)

    def numbers_of(self, slot: int, rows: Array | slice = slice(None)) -> SlotColumn:
        """Return the numbers of a slot in some of the column's rows."""
        if self.numbers is None:
            raise ValueError("a column without numbers")
        column = self.numbers.of_rows(slot, self.base)
        is_all = isinstance(rows, slice) and rows == slice(None)
        return column if is_all else column.select(rows)

    def without_slots(self) -> CellColumn:
        """Return the column with a cell for each different number."""
        if self.numbers is None:
            return self
        if self.whole is not None:
            whole, rows = self.whole
            whole = whole.without_slots()
            return replace(whole, row=self.row, code=whole.code[rows])
        slots = [
            {i.value.number for i in cell.items if isinstance(i.value, Slot)}
            for cell in self.distinct
        ]
        columns, numbers = [self.code], dict[int, SlotColumn]()
        for slot in sorted(set[int]().union(*slots)):
            used = np.array([slot in of_cell for of_cell in slots])[self.code]
            numbers[slot] = self.numbers_of(slot)
            columns += [np.where(used, column, -1) for column in numbers[slot].identity()]
        first, code = gather.distinct(*columns)
        distinct = [_filled(self.distinct[self.code[row]], numbers, row) for row in first.tolist()]
        # A row that was read by itself may hold the same cell as one with slots.
        number = {cell: k for k, cell in enumerate(dict.fromkeys(distinct))}
        code = np.array([number[cell] for cell in distinct], np.int32)[code]
        return CellColumn(self.key, self.row, code, list(number))


def _filled(cell: Cell, numbers: dict[int, SlotColumn], row: int) -> Cell:
    """Return a cell with the numbers of a row in place of its slots."""
    items = [
        item._replace(value=_value_of(item.value, numbers[item.value.number].text(row)))
        if isinstance(item.value, Slot)
        else item
        for item in cell.items
    ]
    return Cell(tuple(items), cell.listed)


def _value_of(slot: Slot, text: str) -> Scalar:
    if slot.factor != 1.0:
        return float(text) * slot.factor
    if slot.is_written:
        return text
    return int(text) if text.isdigit() else float(text)


@dataclass
class Rows:
    """Rows of a file, in its order.

    Parameters
    ----------
    stamp
        Seconds since 1970 that are written next to each row; -1 if none are.
    gpu
        GPU of each row; -1 for what is no GPU.
    part
        Part of the GPU that each row is of (a partition, an instance); -1 for all of it.
    columns
        The values. A key may have several columns, of different rows.
    events
        Rows of the file, including those that could not be read.
    part_names
        Names of parts by their number. Without them parts are AMD's partitions, which are named
        only where a GPU has several.
    is_exact
        True if stamps are nanoseconds, as seconds with a fraction are written.
    """

    stamp: Array
    gpu: Array
    part: Array
    columns: list[CellColumn] = field(default_factory=list)
    events: int = 0
    part_names: tuple[str, ...] | None = None
    is_exact: bool = False

    @cached_property
    def place(self) -> Array:
        """Number of each row's GPU and part, in the order in which they come."""
        return gather.distinct(self.gpu, self.part)[1]

    def select(self, keep: Array) -> Rows:
        """Return the rows where a mask is true, renumbered; empty columns are dropped."""
        if keep.all():
            return self
        new_row = np.cumsum(keep) - 1
        columns = []
        for column in self.columns:
            kept = keep[column.row]
            if kept.any():
                selected = column.select(kept)
                columns.append(replace(selected, row=new_row[selected.row]))
        stamp, gpu, part = self.stamp[keep], self.gpu[keep], self.part[keep]
        return Rows(stamp, gpu, part, columns, self.events, self.part_names, self.is_exact)


def marked(values: Array, keep: Array) -> Array:
    """Return the values where a mask is true, which is most often all of it: then they are not copied."""
    return values if keep.all() else values[keep]


def renumbered(rows: Array, keep: Array) -> Array:
    """Return the numbers of rows among those where a mask is true; as `marked`."""
    return rows if keep.all() else (np.cumsum(keep) - 1)[rows]


def rows_from_keys(
    keys: Sequence[tuple[int, int, int]], columns: list[CellColumn], events: int
) -> Rows:
    """Return rows whose timestamp, GPU and partition come as tuples."""
    table = np.array(keys, np.int64).reshape(-1, 3)
    return Rows(table[:, 0], table[:, 1], table[:, 2], columns, events)


_WITH_UNIT = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([^\s\d.,]\S*)?")


_WITHOUT_COMMAS = re.compile(r"\[(?:(?:[-+]?\d+(?:\.\d+)?|'?N/A'?)(?: +|(?=\]))){2,}\]")
"""Several numbers in brackets, as rocm-smi writes lists to CSV."""


def cell_of_text(text: str) -> Cell:
    """Parse a cell of CSV: a number with or without unit, a word, or a Python list in brackets."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return Cell(tuple(_item_of_word(str(v)) for v in _elements(text)), listed=True)
    return Cell((_item_of_word(text),))


def _elements(text: str) -> Sequence[Any]:
    """Elements of a list, also of one whose words are not quoted, or whose commas were removed."""
    if _WITHOUT_COMMAS.fullmatch(text):
        return [part.strip("'") for part in text[1:-1].split()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [part.strip(" '\"") for part in text[1:-1].split(",")] if text[1:-1].strip() else []
    return value if isinstance(value, list) else [text]


def _item_of_word(text: str) -> Item:
    text = text.strip()
    match = _WITH_UNIT.fullmatch(text)
    return Item(match.group(1), match.group(2) or "") if match else Item(text)


def cell_of_json(value: Any) -> Cell:
    """Convert a leaf of JSON: a scalar, ``{"value", "unit"}``, or a list of these."""
    if isinstance(value, list):
        flat = [inner for v in value for inner in (v if isinstance(v, list) else [v])]
        return Cell(tuple(_item_of_leaf(v) for v in flat), listed=True)
    return Cell((_item_of_leaf(value),))


def cell_of(value: Any) -> Cell:
    """Convert a value that is either text or a leaf of JSON."""
    return cell_of_text(value) if isinstance(value, str) else cell_of_json(value)


def is_quantity(value: Any) -> bool:
    """True if a value of JSON holds a number and its unit, as amd-smi has them since 6.1."""
    return isinstance(value, dict) and "value" in value and set(value) <= {"value", "unit"}


def _item_of_leaf(value: Any) -> Item:
    unit = ""
    if is_quantity(value):
        unit, value = str(value.get("unit") or "").strip(), value["value"]
    if isinstance(value, str) and not unit:
        return _item_of_word(value)
    if isinstance(value, dict | list):
        value = str(value)
    return Item(value, unit)


@dataclass
class ColumnBuilder:
    """Collects the cells of a column one by one."""

    key: str
    rows: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    distinct: dict[Cell | str, int] = field(default_factory=dict)
    place: int = 0
    """Its place among the cells of its first row."""

    def add(self, row: int, cell: Cell | str) -> None:
        """Add the cell of a row, or its text; rows come in ascending order."""
        self.rows.append(row)
        self.codes.append(self.distinct.setdefault(cell, len(self.distinct)))

    def finish(self, parse: Callable[[str], Cell] = cell_of_text) -> CellColumn:
        """Return the column, whose texts are parsed."""
        return CellColumn(
            self.key,
            np.array(self.rows, np.int64),
            np.array(self.codes, np.int32),
            [parse(cell) if isinstance(cell, str) else cell for cell in self.distinct],
        )
