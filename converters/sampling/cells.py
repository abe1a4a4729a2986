"""Rows of a tool's output, one GPU at one time each, as columns of cells.

Cells hold what was written, not yet what it means. The same few values come again and again, so a
column stores each distinct cell once and a code per row; every distinct cell is interpreted once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.arrays import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.arrays.types import Array

Scalar = str | int | float | bool | None


class Item(NamedTuple):
    """One value as it was written.

    Parameters
    ----------
    value
        Text of CSV, or a scalar of JSON.
    unit
        Unit next to it, or empty.
    """

    value: Scalar
    unit: str = ""


class Cell(NamedTuple):
    """One value, or a list of them."""

    items: tuple[Item, ...]
    listed: bool = False


@dataclass(frozen=True)
class Column:
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
    """

    key: str
    row: Array
    code: Array
    distinct: list[Cell]


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
    """

    stamp: Array
    gpu: Array
    part: Array
    columns: list[Column] = field(default_factory=list)
    events: int = 0
    part_names: tuple[str, ...] | None = None

    def select(self, keep: Array) -> Rows:
        """Return the rows where a mask is true, renumbered; empty columns are dropped."""
        new_row = np.cumsum(keep) - 1
        columns = []
        for column in self.columns:
            kept = keep[column.row]
            if kept.any():
                row, code = new_row[column.row[kept]], column.code[kept]
                columns.append(Column(column.key, row, code, column.distinct))
        stamp, gpu, part = self.stamp[keep], self.gpu[keep], self.part[keep]
        return Rows(stamp, gpu, part, columns, self.events, self.part_names)


def rows_from_keys(
    keys: Sequence[tuple[int, int, int]], columns: list[Column], events: int
) -> Rows:
    """Return rows whose timestamp, GPU and partition come as tuples."""
    table = np.array(keys, np.int64).reshape(-1, 3)
    return Rows(table[:, 0], table[:, 1], table[:, 2], columns, events)


_WITH_UNIT = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([^\s\d.,]\S*)?")


def cell_of_text(text: str) -> Cell:
    """Parse a cell of CSV: a number with or without unit, a word, or a Python list in brackets."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return Cell(tuple(_item_of_word(str(v)) for v in _elements(text)), listed=True)
    return Cell((_item_of_word(text),))


def _elements(text: str) -> Sequence[Any]:
    """Elements of a list, also of one whose words are not quoted."""
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


def column_of_texts(key: str, row: Array, texts: Sequence[str]) -> Column:
    """Return a column of CSV."""
    encoded = arrow.texts(texts).dictionary_encode()
    distinct = [cell_of_text(text) for text in encoded.dictionary.to_pylist()]
    return Column(key, row, arrow.to_numpy(encoded), distinct)


@dataclass
class ColumnBuilder:
    """Collects the cells of a column one by one."""

    key: str
    rows: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    distinct: dict[Cell, int] = field(default_factory=dict)

    def add(self, row: int, cell: Cell) -> None:
        """Add the cell of a row; rows come in ascending order."""
        self.rows.append(row)
        self.codes.append(self.distinct.setdefault(cell, len(self.distinct)))

    def finish(self) -> Column:
        """Return the column."""
        return Column(
            self.key,
            np.array(self.rows, np.int64),
            np.array(self.codes, np.int32),
            list(self.distinct),
        )
