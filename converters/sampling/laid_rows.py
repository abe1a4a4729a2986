"""Rows that were read by layouts: their numbers, column by column.

The numbers of a text come a window at a time (`pieces`), and row by row. Here they are put into columns, one
for each number of a layout that something refers to, so that what is kept of a text of any size is about what its
values take: eight bytes a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.arrays.interning import (
    TextTable,
    empty_text_table,
    enlarged_text_table,
    intern_text,
)
from chopper_interop.converters.sampling.cells import (
    DECIMAL,
    DECIMAL_FORM,
    LARGEST_EXACT,
    OTHER,
    OTHER_FORM,
    Cell,
    SlotColumn,
    TextNumbers,
)
from chopper_interop.converters.sampling.layouts import (
    Layout,
    PieceLayout,
    constant,
    literals_in,
    slots_in,
)
from chopper_interop.issues import Fault

_TEXTS = 1 << 8
"""Numbers of kind `OTHER` that there is room for at first (chosen: the parts of addresses, which have zeros in front)."""
_TOGETHER = 1 << 12
"""Pieces that are put into columns at once. Chosen: each column takes some 10 us, as long as a few thousand of its numbers."""
_ROOM = 1.02
"""Room for values over what the text so far suggests. Chosen: lines of one form differ by less, and pages that are not
used take no memory."""


class OddNumbers:
    """Texts of numbers of kind `OTHER`, each different one once."""

    def __init__(self, data: Bytes) -> None:
        self.data, self.table = data, empty_text_table(_TEXTS)

    def text(self, number: int) -> str:
        """Return the text of a number."""
        at = int(self.table.start[number])
        return self.data[at : at + int(self.table.length[number])].tobytes().decode()


class LaidPieces:
    """Pieces that were read by one layout.

    Parameters
    ----------
    learned
        The layout.
    odd
        Where texts of numbers of kind `OTHER` are put.
    """

    def __init__(self, learned: PieceLayout, odd: OddNumbers) -> None:
        self.layouts, self.noted, self._odd = learned.rows, learned.noted, odd
        self.count = 0
        """Number of these pieces."""
        self._sizes: list[int] = []
        """Number of pieces that were put into columns at once."""
        self._waiting: list[tuple[Array, Array]] = []
        """Values and forms of pieces that are not in columns yet, numbers by pieces."""
        self._waits = 0
        """Number of these pieces."""
        self._row = _Growing(np.int64)
        self._slots = np.array(sorted(set[int]().union(*map(_slots_of, self.layouts))), np.int64)
        self._values = [_Growing(np.float64) for _ in self._slots]
        self._forms: list[list[Array | np.uint8]] = [[] for _ in self._slots]
        self._ranges = {
            text: (_Growing(np.int64), _Growing(np.int64))
            for layout in self.layouts
            for text in layout.texts
            if slots_in(text)
        }

    def add(self, numbers: TextNumbers, first: Array, row: Array, share: float) -> None:
        """Add pieces of a window.

        Parameters
        ----------
        numbers
            Numbers of the window.
        first
            Index of the first number of each piece.
        row
            Number of the first row of each.
        share
            Share of the text that has been read with them.
        """
        self.count += len(row)
        self._row.room(len(row), share)[:] = row
        value = np.empty((len(self._slots), len(row)))
        form = np.empty(value.shape, np.uint8)
        start = 0
        while True:
            start = _put(numbers, first, start, self._slots, value, form, self._odd.table)
            if start == len(first):
                break
            self._odd.table = enlarged_text_table(self._odd.table)
        self._waiting.append((value, form))
        self._waits += len(row)
        if self._waits >= _TOGETHER:
            self._put_waiting(share)
        for text, ranges in self._ranges.items():
            for growing, places in zip(ranges, _range_of(text, numbers, first), strict=True):
                growing.room(len(row), share)[:] = places

    def _put_waiting(self, share: float) -> None:
        """Put numbers that wait into the columns; of few pieces each column would cost more than its numbers."""
        for k in range(len(self._slots)):
            values = self._values[k].room(self._waits, share)
            np.concatenate([value[k] for value, _ in self._waiting], out=values)
            forms = np.concatenate([form[k] for _, form in self._waiting])
            self._forms[k].append(forms[0] if (forms == forms[0]).all() else forms)
        self._sizes.append(self._waits)
        self._waiting.clear()
        self._waits = 0

    def row(self) -> Array:
        """Return the number of each piece's first row."""
        return self._row.values()

    def column(self, slot: int) -> SlotColumn:
        """Return the numbers of a slot of all pieces."""
        k = int(np.searchsorted(self._slots, slot))
        if self._waiting and not self._sizes:  # all are few, and may stay together
            if len(self._waiting) > 1:
                value, form = (np.concatenate(b, axis=1) for b in zip(*self._waiting, strict=True))
                self._waiting = [(value, form)]
            ((value, form),) = self._waiting
            return SlotColumn(value[k], form[k])
        if self._waiting:
            self._put_waiting(1.0)
        forms = self._forms[k]
        if len(forms) > 1:
            if any(form.ndim or form != forms[0] for form in forms):
                parts = zip(forms, self._sizes, strict=True)
                forms[0] = np.concatenate([np.broadcast_to(form, size) for form, size in parts])
            del forms[1:]
        return SlotColumn(self._values[k].values(), forms[0])

    def range_of(self, text: str) -> tuple[Array, Array]:
        """Return where a text of the layout begins and ends in all pieces."""
        begin, end = self._ranges[text]
        return begin.values(), end.values()


class _Growing:
    """An array whose values come a part at a time, with room for about as many as the text will have.

    To join the parts at the end took as much memory again.
    """

    def __init__(self, dtype: type) -> None:
        self._array: Array = np.empty(0, dtype)
        self._count = 0

    def room(self, more: int, share: float) -> Array:
        """Return where values of a part go, with which this share of the text has been read."""
        before, count = self._count, self._count + more
        if count > len(self._array):
            larger = np.empty(max(count, int(count / share * _ROOM)), self._array.dtype)
            larger[:before] = self._array[:before]
            self._array = larger
        self._count = count
        return self._array[before:count]

    def values(self) -> Array:
        """Return the values so far."""
        return self._array[: self._count]


def _slots_of(layout: Layout) -> set[int]:
    """Numbers that a layout's whole numbers and cells refer to."""
    slots = {slot for slot in layout.wholes if slot >= 0}
    for _, cell in layout.cells:
        texts = [str(i.value) for i in cell.items] if isinstance(cell, Cell) else [cell]
        slots.update(slot for text in texts for slot in slots_in(text))
    return slots


def _range_of(text: str, numbers: TextNumbers, first: Array) -> tuple[Array, Array]:
    """Return where a text of a probe begins and ends in pieces."""
    slots, literals = slots_in(text), literals_in(text)
    last = first + slots[-1]
    begin = numbers.at[first + slots[0]].astype(np.int64) - len(literals[0].encode())
    end = numbers.at[last].astype(np.int64) + numbers.length[last] + len(literals[-1].encode())
    return begin, end


@jit_in_place
def _put(  # noqa: PLR0913, PLR0917 # one loop over columns
    numbers: TextNumbers, first: Array, start: int, slots: Array, value: Array, form: Array, odd: TextTable,
) -> int:  # fmt: skip
    """Put numbers of pieces from `start` on into columns; return the piece before which the table of texts was full."""
    for piece in range(start, len(first)):
        for k in range(len(slots)):
            number = first[piece] + slots[k]
            kind, of_number = numbers.kind[number], numbers.value[number]
            written = np.uint8(numbers.length[number])
            if kind == OTHER or of_number > LARGEST_EXACT:
                at = np.int64(numbers.at[number])
                text = intern_text(numbers.data, at, at + np.int64(numbers.length[number]), odd)
                if text < 0:
                    return piece
                of_number, written = np.float64(text), np.uint8(OTHER_FORM)
            elif kind == DECIMAL:
                written = np.uint8(written + DECIMAL_FORM)
            value[k, piece], form[k, piece] = of_number, written
    return len(first)


@dataclass(frozen=True)
class LaidRows:
    """Rows that were read by layouts, in the order of the text.

    Parameters
    ----------
    data
        The text.
    pieces
        Pieces by the number of their layout; only those that there are have rows.
    odd
        Texts of numbers of kind `OTHER`.
    first_only
        True for the first row of each piece alone.
    """

    data: Bytes
    pieces: Sequence[LaidPieces]
    odd: OddNumbers
    first_only: bool = False

    @property
    def _rows_a_piece(self) -> int | None:
        return 1 if self.first_only else None

    @cached_property
    def layouts(self) -> list[Layout]:
        """The layouts of rows that there are."""
        return [layout for layout, _, _ in self._rows_of]

    @cached_property
    def _rows_of(self) -> list[tuple[Layout, LaidPieces, int]]:
        """Layouts of rows, their pieces, and which row of a piece it is."""
        return [
            (layout, pieces, number)
            for pieces in self.pieces
            if pieces.count
            for number, layout in enumerate(pieces.layouts[: self._rows_a_piece])
        ]

    @cached_property
    def _places(self) -> list[Array | slice]:
        """Places of the rows of each layout among all."""
        used = [pieces for pieces in self.pieces if pieces.count and pieces.layouts]
        counts = [len(pieces.layouts[: self._rows_a_piece]) for pieces in used]
        if not used:
            return []
        if len(used) == 1:
            return [slice(n, len(self), counts[0]) for n in range(counts[0])]
        #   pieces of one layout     r0    r1       r2     number of the first row of each, ascending
        #   those of another            r0    r1           number of pieces before, times their rows: places
        order = np.argsort(np.concatenate([pieces.row() for pieces in used]), kind="stable")
        rows = np.repeat(counts, [pieces.count for pieces in used])
        place = np.empty(len(order), np.int64)
        place[order] = np.cumsum(rows[order]) - rows[order]
        at = np.split(place, np.cumsum([pieces.count for pieces in used])[:-1])
        return [
            of + number for of, count in zip(at, counts, strict=True) for number in range(count)
        ]

    def __len__(self) -> int:
        return sum(pieces.count for _, pieces, _ in self._rows_of)

    @cached_property
    def row(self) -> Array:
        """Number of each row among all rows."""
        row = np.empty(len(self), np.int64)
        for (_, pieces, number), place in zip(self._rows_of, self._places, strict=True):
            row[place] = pieces.row() + number
        return row

    @cached_property
    def zeros(self) -> Array:
        """Codes of rows that all have one cell, the same array for all such columns."""
        return np.zeros(len(self), np.int32)

    @property
    def noted(self) -> list[tuple[Fault, int]]:
        """Faults of pieces that were read by layouts, and how often they had them."""
        return [(fault, p.count * count) for p in self.pieces for fault, count in p.noted]

    def of_first_rows(self) -> LaidRows:
        """Return the first rows of the pieces."""
        return LaidRows(self.data, self.pieces, self.odd, first_only=True)

    def first_rows(self) -> Iterator[tuple[int, int]]:
        """Yield each layout that has rows, and the first of these, in the order of these."""
        firsts = [int(pieces.row()[0]) + number for _, pieces, number in self._rows_of]
        yield from sorted(enumerate(firsts), key=lambda layout: layout[1])

    def count(self, layout: int) -> int:
        """Number of rows of a layout."""
        return self._rows_of[layout][1].count

    def places_of(self, layouts: list[int]) -> tuple[list[Array | slice], Array | None]:
        """Return where the rows of each of these layouts are among those of all of these, and which rows these are.

        None stands for all rows.
        """
        if len(layouts) == len(self.layouts):
            return [self._places[layout] for layout in layouts], None
        is_of = np.zeros(len(self), bool)
        for layout in layouts:
            is_of[self._places[layout]] = True
        if len(layouts) == 1:
            rows = np.flatnonzero(is_of)
            return [slice(0, len(rows), 1)], rows
        number = np.cumsum(is_of) - 1
        return [number[self._places[layout]] for layout in layouts], np.flatnonzero(is_of)

    def column(self, layout: int, slot: int) -> SlotColumn:
        """Return the numbers of a slot in the rows of a layout."""
        return self._rows_of[layout][1].column(slot)

    def text(self, layout: int, slot: int, piece: int) -> str:
        """Return the number of a slot in one of the rows of a layout as it is written."""
        column = self.column(layout, slot)
        form = column.form[piece] if np.ndim(column.form) else column.form
        return self.odd.text(int(column.value[piece])) if form == OTHER_FORM else column.text(piece)

    def put_wholes(self, table: Sequence[Array]) -> None:
        """Set the whole numbers of the rows, `Layout.wholes`, in columns of all rows."""
        for layout, pieces, number in self._rows_of:
            row = pieces.row() + number
            is_run = row[-1] - row[0] + 1 == len(row)
            rows = slice(row[0], row[-1] + 1) if is_run else row
            for slot, whole in zip(layout.wholes, table, strict=True):
                whole[rows] = constant(slot) if slot < 0 else pieces.column(slot).value

    def texts(self, column: int) -> tuple[list[str], Array | None, Array]:
        """Return texts of the rows, `Layout.texts` [column]: constants, and where others are.

        Returns
        -------
        constants
            Texts without numbers.
        begin, end
            Byte range of each row's text; ``~k`` and 0 for the k-th constant. If all are constants, None
            and their numbers.
        """
        constants: dict[str, int] = {}
        begin, end = np.empty(len(self), np.int64), np.zeros(len(self), np.int64)
        are_constant = True
        for (layout, pieces, _), place in zip(self._rows_of, self._places, strict=True):
            text = layout.texts[column]
            if slots_in(text):
                begin[place], end[place] = pieces.range_of(text)
                are_constant = False
            else:
                begin[place] = ~constants.setdefault(text, len(constants))
        return (list(constants), None, ~begin) if are_constant else (list(constants), begin, end)
