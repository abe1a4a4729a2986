"""Cells of amd-smi's output, and columns of them: what was written, not yet what it means.

The same few values come again and again, so a column holds each distinct cell once and numbers
for the rest; what a cell means is worked out once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.columns import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array

Scalar = str | int | float | bool | None


class Item(NamedTuple):
    """One value as it was written.

    Parameters
    ----------
    value
        Text of CSV, or a scalar of JSON.
    unit
        Unit that stood beside it, or empty.
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
        For each, which of `distinct` it is.
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
        Epoch seconds that stand beside each row; -1 if none.
    gpu, xcp
        GPU and partition of each row; a partition of -1 if none is told.
    columns
        The rest. A key may have several columns, of different rows.
    events
        Rows of the file, those included that could not be read.
    """

    stamp: Array
    gpu: Array
    xcp: Array
    columns: list[Column] = field(default_factory=list)
    events: int = 0


_WITH_UNIT = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([^\s\d.,]\S*)?")


def of_text(text: str) -> Cell:
    """A cell of CSV: a number with or without unit, a word, or a Python list in brackets."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return Cell(tuple(_of_word(str(v)) for v in _list(text)), listed=True)
    return Cell((_of_word(text),))


def _list(text: str) -> Sequence[Any]:
    """Elements of a list, also of one whose words stand without quotes."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [part.strip(" '\"") for part in text[1:-1].split(",")] if text[1:-1].strip() else []
    return found if isinstance(found, list) else [text]


def _of_word(text: str) -> Item:
    text = text.strip()
    found = _WITH_UNIT.fullmatch(text)
    return Item(found.group(1), found.group(2) or "") if found else Item(text)


def of_json(value: Any) -> Cell:
    """A leaf of JSON: a scalar, ``{"value", "unit"}``, or a list of these."""
    if isinstance(value, list):
        flat = [inner for v in value for inner in (v if isinstance(v, list) else [v])]
        return Cell(tuple(_of_leaf(v) for v in flat), listed=True)
    return Cell((_of_leaf(value),))


def is_quantity(value: Any) -> bool:
    """Whether it is a value with its unit, as JSON has them since 6.1."""
    return isinstance(value, dict) and "value" in value and set(value) <= {"value", "unit"}


def _of_leaf(value: Any) -> Item:
    unit = ""
    if is_quantity(value):
        unit, value = str(value.get("unit") or "").strip(), value["value"]
    if isinstance(value, str) and not unit:
        return _of_word(value)
    if isinstance(value, dict | list):
        value = str(value)
    return Item(value, unit)


def column_of_texts(key: str, row: Array, texts: Sequence[str]) -> Column:
    """A column of CSV."""
    encoded = arrow.texts(texts).dictionary_encode()
    distinct = [of_text(text) for text in encoded.dictionary.to_pylist()]
    return Column(key, row, arrow.numbers(encoded), distinct)


@dataclass
class ColumnBuilder:
    """Collects the cells of a column of JSON one by one."""

    key: str
    rows: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    distinct: dict[Cell, int] = field(default_factory=dict)

    def add(self, row: int, cell: Cell) -> None:
        """Add the cell of a row; rows come in ascending order."""
        self.rows.append(row)
        self.codes.append(self.distinct.setdefault(cell, len(self.distinct)))

    def finish(self) -> Column:
        """The column."""
        return Column(
            self.key,
            np.array(self.rows, np.int64),
            np.array(self.codes, np.int32),
            list(self.distinct),
        )


def rows_where(rows: Rows, keep: Array) -> Rows:
    """The rows for which `keep` is true, renumbered; columns without any are left out."""
    new = np.cumsum(keep) - 1
    columns = []
    for column in rows.columns:
        mine = keep[column.row]
        if mine.any():
            row, code = new[column.row[mine]], column.code[mine]
            columns.append(Column(column.key, row, code, column.distinct))
    return Rows(rows.stamp[keep], rows.gpu[keep], rows.xcp[keep], columns, rows.events)
