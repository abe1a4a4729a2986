"""Columns of rows: of those that were read by layouts, and of those that were read one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.sampling.cells import (
    OTHER,
    Cell,
    CellColumn,
    ColumnBuilder,
    Slot,
    TextNumbers,
)
from chopper_interop.converters.sampling.layouts import (
    filled,
    literals_in,
    moved,
    slots_in,
    with_slots,
)

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.templates import LaidRows

Key = TypeVar("Key", bound="Hashable")
_ALONE, _NO_CELL = -2, -1
"""Codes of rows of which the cell must be parsed by itself, and of rows without one."""


def keys_of_rows(laid: LaidRows | None, others: Mapping[int, Sequence[int]]) -> Array:
    """Return the time, GPU and part of all rows, 3 by rows; those without a layout by their number."""
    table = np.empty((3, len(others) + (len(laid.row) if laid else 0)), np.int64)
    if laid and len(laid.row):
        laid.put_wholes(table)
    if others:
        table[:, list(others)] = np.array(list(others.values()), np.int64).T
    return table


def columns_of(
    laid: LaidRows | None,
    singles: Mapping[Key, ColumnBuilder],
    parse: Callable[[Key, str], Cell],
) -> dict[Key, CellColumn]:
    """Return the columns of all rows, in the order in which their keys come in the text.

    Parameters
    ----------
    laid
        Rows that were read by layouts; None if there are none.
    singles
        Columns of the other rows, which have cells.
    parse
        Makes a cell of a column's key and a text.
    """
    made: dict[Key, _ColumnParts] = {}
    order: dict[Key, tuple[int, int]] = {}
    layouts = laid.layouts if laid is not None else []
    for number, row in laid.first_rows() if laid is not None else ():
        for place, (key, cell) in enumerate(layouts[number].cells):
            parts = made.setdefault(key, _ColumnParts(len(layouts)))
            parts.learn(number, cell, partial(parse, key))
            order.setdefault(key, (row, place))
    for key, single in singles.items():
        at = (single.rows[0], single.place)
        order[key] = min(order.get(key, at), at)
    columns: dict[Key, CellColumn] = {}
    for key in sorted(order, key=order.__getitem__):
        own_parse = partial(parse, key)
        pieces = [made[key].column(str(key), laid, own_parse)] if laid and key in made else []
        pieces += [singles[key].finish(own_parse)] if key in singles else []
        columns[key] = _joined(pieces)
    return columns


@dataclass
class _ColumnParts:
    """Cells of one column by layout."""

    layouts: int
    distinct: dict[Cell, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    """Texts of the probes by layout, to be filled in where a row's cell must be parsed by itself."""
    known: dict[tuple[str, ...], tuple[Cell, int] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.code, self.slot = (np.full(self.layouts, n, np.int64) for n in (_NO_CELL, 0))

    def learn(self, layout: int, cell: str | Cell, parse: Callable[[str], Cell]) -> None:
        """Note the cell of the rows of a layout."""
        with_place: tuple[Cell, int] | None
        if isinstance(cell, Cell):
            with_place = with_slots(cell)
        else:
            slots = slots_in(cell)
            first = min(slots, default=0)
            parts = (*literals_in(cell), *(str(slot - first) for slot in slots))
            if parts not in self.known:
                self.known[parts] = _parsed(cell, parse)
            known = self.known[parts]
            with_place = known and (known[0], first)
            if slots:
                self.texts[layout] = cell
        self.code[layout] = _ALONE
        if with_place is not None:
            self.code[layout] = self.distinct.setdefault(with_place[0], len(self.distinct))
            self.slot[layout] = with_place[1]

    def column(self, key: str, laid: LaidRows, parse: Callable[[str], Cell]) -> CellColumn:
        """Return the column of the rows that were read by layouts."""
        numbers = laid.numbers
        if len(self.distinct) == 1 and (self.code >= 0).all():  # the usual case, for speed
            (cell,), base, slot = self.distinct, laid.first, laid.of_rows(self.slot)
            if np.ndim(slot):
                base = base + slot
            else:  # all columns have the same base, which is no array of their own
                cell = moved(cell, int(slot))
            if not laid.has_other or not _has_other(numbers, base, cell):
                return CellColumn(key, laid.row, laid.zeros, [cell], numbers, base)
        code = self.code[laid.layout]
        kept = np.flatnonzero(code != _NO_CELL)
        code, layout = code[kept], laid.layout[kept]
        base = laid.first[kept] + self.slot[layout]
        alone = code == _ALONE
        width = np.array([*map(width_of, self.distinct), 0], np.int64)[np.where(alone, -1, code)]
        for number in range(int(width.max(initial=0))) if laid.has_other else ():
            place = np.where(number < width, base + number, 0)
            alone |= (number < width) & (numbers.kind[place] == OTHER)
        distinct = dict(self.distinct)
        rows = np.flatnonzero(alone)
        if len(rows):
            firsts = laid.first[kept[rows]]
            row, text = self._different_texts(layout[rows], firsts, numbers)
            parsed = [
                distinct.setdefault(parse(filled(self.texts[of], at, numbers)), len(distinct))
                for of, at in zip(layout[rows[row]].tolist(), firsts[row].tolist(), strict=True)
            ]
            code[rows] = np.array(parsed)[text]
        has_slots = bool(width.any())
        return CellColumn(
            key, laid.row[kept], code.astype(np.int32), list(distinct),
            numbers if has_slots else None, base if has_slots else None,
        ).in_order()  # fmt: skip

    def _different_texts(
        self, layout: Array, first: Array, numbers: TextNumbers
    ) -> tuple[Array, Array]:
        """`gather.distinct` of the texts of rows: they are equal where the literals and all numbers are.

        Parameters
        ----------
        layout
            Layout of each row.
        first
            Index of the first number of its piece.
        numbers
            Numbers of the text.
        """
        slots = {number: slots_in(text) for number, text in self.texts.items()}
        literals: dict[tuple[str, ...], int] = {}
        of_layout = np.full((self.layouts, 1 + max(map(len, slots.values()))), -1, np.int64)
        for number, text in self.texts.items():
            of_literals = literals.setdefault(tuple(literals_in(text)), len(literals))
            of_layout[number, : 1 + len(slots[number])] = of_literals, *slots[number]
        columns = [of_layout[layout, 0]]
        for of_slot in of_layout[:, 1:].T:
            slot = of_slot[layout]
            for column in numbers.identity(np.where(slot < 0, 0, first + slot)):
                column[slot < 0] = -1
                columns.append(column)
        return gather.distinct(*columns)


def _has_other(numbers: TextNumbers, base: Array, cell: Cell) -> bool:
    """True if a number of a cell is of kind `OTHER` in one of the rows of these bases."""
    return any((numbers.kind[base + number] == OTHER).any() for number in slots_of(cell))


def _parsed(text: str, parse: Callable[[str], Cell]) -> tuple[Cell, int] | None:
    """Return a cell with slots for all numbers of its text; None if it does not have all as items."""
    with_place = with_slots(parse(text))
    if with_place is None:
        return None
    slots = [
        i.value.number + with_place[1] for i in with_place[0].items if isinstance(i.value, Slot)
    ]
    return with_place if sorted(slots) == sorted(slots_in(text)) else None


def slots_of(cell: Cell) -> list[int]:
    """Return the numbers from a row's base on that a cell refers to."""
    return [i.value.number for i in cell.items if isinstance(i.value, Slot)]


def width_of(cell: Cell) -> int:
    """Return how many numbers from the row's base on a cell may refer to."""
    return max(slots_of(cell), default=-1) + 1


def _joined(pieces: list[CellColumn]) -> CellColumn:
    """Join parts of a column, of different rows."""
    if len(pieces) == 1:
        return pieces[0]
    laid, single = pieces
    distinct = {cell: code for code, cell in enumerate(laid.distinct)}
    number = np.array([distinct.setdefault(c, len(distinct)) for c in single.distinct], np.int32)
    place = np.searchsorted(laid.row, single.row)
    row = _inserted(laid.row, place, single.row)
    code = _inserted(laid.code, place, number[single.code])
    base = laid.base
    if base is not None:
        base = _inserted(base, place, np.zeros(len(place), np.int64))
    return CellColumn(laid.key, row, code, list(distinct), laid.numbers, base).in_order()


def _inserted(values: Array, place: Array, others: Array) -> Array:
    """`numpy.insert`, which takes thrice as long where all come last, as those of the last output do."""
    if place[0] == len(values):
        return np.concatenate([values, others])
    return np.insert(values, place, others)
