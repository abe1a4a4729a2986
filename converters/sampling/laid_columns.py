"""Columns of rows: of those that were read by layouts, and of those that were read one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.sampling.cells import (
    Cell,
    CellColumn,
    ColumnBuilder,
    Slot,
    SlotColumn,
    SlotNumbers,
    has_others,
    others_in,
    slots_of,
)
from chopper_interop.converters.sampling.layouts import (
    filled,
    literals_in,
    slots_in,
    with_slots,
)

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows

Key = TypeVar("Key", bound="Hashable")
_ALONE = -1
"""Code of rows of which the cell must be parsed by itself."""


def keys_of_rows(laid: LaidRows | None, others: Mapping[int, Sequence[int]]) -> list[Array]:
    """Return the time, GPU and part of all rows; those without a layout by their number."""
    count = len(others) + (len(laid) if laid else 0)
    columns = [np.empty(count, np.int64) for _ in range(3)]
    if laid:
        laid.put_wholes(columns)
    if others:
        for column, values in zip(columns, zip(*others.values(), strict=True), strict=True):
            column[list(others)] = values
    return columns


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
            parts = made.setdefault(key, _ColumnParts())
            parts.learn(number, cell, partial(parse, key))
            order.setdefault(key, (row, place))
    for key, single in singles.items():
        at = (single.rows[0], single.place)
        order[key] = min(order.get(key, at), at)
    columns: dict[Key, CellColumn] = {}
    joins = _Joins()
    for key in sorted(order, key=order.__getitem__):
        own_parse = partial(parse, key)
        if laid is None or key not in made:
            columns[key] = singles[key].finish(own_parse)
            continue
        column = made[key].column(str(key), laid, own_parse)
        if key in singles:
            column = joins.joined(column, singles[key].finish(own_parse))
        columns[key] = column
    return columns


@dataclass
class _ColumnParts:
    """Cells of one column by layout."""

    distinct: dict[Cell, int] = field(default_factory=dict)
    code: dict[int, int] = field(default_factory=dict)
    """Index into `distinct` by layout, or `_ALONE`."""
    slot: dict[int, int] = field(default_factory=dict)
    """The number that is the first that the cell may refer to, by layout."""
    texts: dict[int, str] = field(default_factory=dict)
    """Texts of the probes by layout, to be filled in where a row's cell must be parsed by itself."""
    known: dict[tuple[str, ...], tuple[Cell, int] | None] = field(default_factory=dict)

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
        places, rows = laid.places_of(list(self.code))
        row = laid.row if rows is None else laid.row[rows]
        place = dict(zip(self.code, places, strict=True))
        cells, distinct = list(self.distinct), dict(self.distinct)
        parts: list[tuple[Array | slice, dict[int, SlotColumn]]] = []
        alone: list[tuple[int, Array]] = []
        for layout, code in self.code.items():
            if code == _ALONE:
                alone.append((layout, np.arange(laid.count(layout))))
                continue
            first, slots = self.slot[layout], slots_of(cells[code])
            columns = {slot: laid.column(layout, first + slot) for slot in slots}
            if others := [others_in(column) for column in columns.values() if has_others(column)]:
                alone.append((layout, np.flatnonzero(np.logical_or.reduce(others))))
            if columns:
                parts.append((place[layout], columns))
        numbers = SlotNumbers(len(row), tuple(parts)) if parts else None
        if len(cells) == 1 and not alone:  # the usual case, for memory
            zeros = laid.zeros if rows is None else np.zeros(len(row), np.int32)
            return CellColumn(key, row, zeros, cells, numbers)
        codes = np.empty(len(row), np.int32)
        for layout, code in self.code.items():
            codes[place[layout]] = code
        if alone:
            of_piece, parsed = self._parsed_alone(alone, laid, parse)
            of_cell = [distinct.setdefault(cell, len(distinct)) for cell in parsed]
            number = np.array(of_cell, np.int32)[of_piece]
            at = np.concatenate([_among(place[layout], pieces) for layout, pieces in alone])
            codes[at] = number
        return CellColumn(key, row, codes, list(distinct), numbers).in_order()

    def _parsed_alone(
        self, alone: list[tuple[int, Array]], laid: LaidRows, parse: Callable[[str], Cell]
    ) -> tuple[Array, list[Cell]]:
        """Return the different cells of pieces that are parsed each by itself, and the number of each one's."""
        #   a cell of a layout    literals   number   literals   number …     equal cells are equal in all of these
        #   as whole numbers      of_text    value    form       value, form …
        literals: dict[tuple[str, ...], int] = {}
        slots = {layout: slots_in(self.texts[layout]) for layout, _ in alone}
        table = np.full((1 + 2 * max(map(len, slots.values())), sum(len(p) for _, p in alone)), -1)
        start = 0
        for layout, pieces in alone:
            part = table[:, start : start + len(pieces)]
            key = tuple(literals_in(self.texts[layout]))
            part[0] = literals.setdefault(key, len(literals))
            for k, slot in enumerate(slots[layout]):
                column = laid.column(layout, slot).select(pieces)
                part[1 + 2 * k], part[2 + 2 * k] = column.identity()
            start += len(pieces)
        first, number = gather.distinct(*table)
        begins = np.cumsum([0, *(len(pieces) for _, pieces in alone)])
        cells = []
        for at in first.tolist():
            which = int(np.searchsorted(begins, at, "right")) - 1
            layout, pieces = alone[which]
            piece = int(pieces[at - begins[which]])
            texts = {slot: laid.text(layout, slot, piece) for slot in slots[layout]}
            cells.append(parse(filled(self.texts[layout], texts)))
        return number, cells


def _among(place: Array | slice, numbers: Array) -> Array:
    """Return some of the places of rows, by their numbers among these."""
    if isinstance(place, slice):
        return (place.start or 0) + (place.step or 1) * numbers
    return place[numbers]


def _parsed(text: str, parse: Callable[[str], Cell]) -> tuple[Cell, int] | None:
    """Return a cell with slots for all numbers of its text; None if it does not have all as items."""
    with_place = with_slots(parse(text))
    if with_place is None:
        return None
    slots = [
        i.value.number + with_place[1] for i in with_place[0].items if isinstance(i.value, Slot)
    ]
    return with_place if sorted(slots) == sorted(slots_in(text)) else None


class _Joins:
    """Joins columns of rows that were read by layouts and columns of others, whose rows are mostly the same for all."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], tuple[Array, Array, Array | None]] = {}
        self._first: list[Array] = []
        """Rows by whose addresses these are known, which must not become those of others."""

    def joined(self, laid: CellColumn, single: CellColumn) -> CellColumn:
        """Return the column of all rows."""
        row, place, base = self._joined_rows(laid.row, single.row)
        distinct = {cell: code for code, cell in enumerate(laid.distinct)}
        codes = [distinct.setdefault(cell, len(distinct)) for cell in single.distinct]
        code = _inserted(laid.code, place, np.array(codes, np.int32)[single.code])
        numbers = laid.numbers and replace(laid.numbers, rows=len(row))
        if base is None:  # and the cells are in the order in which they come first
            return CellColumn(laid.key, row, code, list(distinct), numbers)
        return CellColumn(laid.key, row, code, list(distinct), numbers, base).in_order()

    def _joined_rows(self, laid: Array, single: Array) -> tuple[Array, Array, Array | None]:
        """Return the rows of both, where the others are among the first, and which of the first each row has been.

        None if the others come behind all. Kept, as a file has hundreds of columns of the same rows.
        """
        key = (id(laid), single.tobytes())
        if key not in self._known:
            self._first.append(laid)
            place, base = np.searchsorted(laid, single), None
            if place[0] < len(laid):  # that of the others is not looked at
                base = np.insert(np.arange(len(laid)), place, 0)
            self._known[key] = _inserted(laid, place, single), place, base
        return self._known[key]


def _inserted(values: Array, place: Array, others: Array) -> Array:
    """`numpy.insert`, which takes thrice as long where all come last, as those of the last output do."""
    if place[0] == len(values):
        return np.concatenate([values, others])
    return np.insert(values, place, others)
