"""Templates: pieces of a text with the numbers taken out, so that each different one is parsed once.

Telemetry repeats a few forms of lines millions of times, and only their numbers differ. `pieces.scan`, a
compiled loop, takes the numbers out of all pieces (lines, or blocks of lines) and numbers the texts
that are left, the templates. A format's reader then says once for each template what its row is, as a
`Layout`: which numbers say the time and the GPU, and which texts around which numbers are the cells.
`read_pieces` walks the pieces by these layouts in another compiled loop. A piece that has no layout (a rare
template, a header, a message, a line that is cut) is read by the format's reader itself, at its
place between the others.

A reader is learned from, not trusted: it gets a piece whose numbers are others that occur nowhere
else (`layouts.probe_of`), and where these come out again is where the numbers of all such pieces go. What
depends on a number's size is a `Guard`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from chopper_interop.arrays import Array, Bytes, gather
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.sampling.cells import DECIMAL, INTEGER, OTHER, TextNumbers
from chopper_interop.converters.sampling.layouts import (
    ANY,
    EXACT,
    Layout,
    PieceLayout,
    are_within,
    constant,
    literals_in,
    probe_of,
    slots_in,
)
from chopper_interop.converters.sampling.pieces import NUMBER, TextPieces, lines_of, scan
from chopper_interop.issues import Fault

_UNKNOWN, _ALONE, _NO_ROW = -3, -2, -1
"""A template in a state: not met yet; read one by one; without a row and without effect."""


_LAID = 3
"""Index of the number of pieces that were read by layouts so far in the place of a walk."""


class Reader(Protocol):
    """Reader of a format whose pieces have templates.

    Parameters
    ----------
    rows
        Number of rows so far.
    state
        Number of all that decides how the next piece is read.
    """

    rows: int
    state: int

    def effects(self) -> int:
        """Count what came out of pieces so far, rows and issues."""

    def layout(self, probe: str, sample: str) -> Layout | Sequence[Layout] | PieceLayout | None:
        """Return the layout of the pieces of a template in this state, or that of each of their rows.

        None if they are read alone. The state is then that in which such a piece leaves the reader.

        Parameters
        ----------
        probe, sample
            A piece with other numbers, and a piece as it is.
        """

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        """Read one piece, which may be blank; pieces are numbered from 1."""


@dataclass(frozen=True)
class LaidRows:
    """Rows that were read by layouts, in the order of the text.

    Parameters
    ----------
    numbers
        Numbers of the text.
    row
        Number of each among all rows.
    layout
        Its layout.
    first
        Index of its piece's first number.
    layouts
        All layouts.
    begins
        Mask of the layouts that are the first of their piece.
    noted
        Faults of pieces that were read by layouts, and how often they had them.
    """

    numbers: TextNumbers
    row: Array
    layout: Array
    first: Array
    layouts: list[Layout]
    begins: Array
    noted: list[tuple[Fault, int]]

    @cached_property
    def has_other(self) -> bool:
        """True if a number of the text is of kind `OTHER`."""
        return bool((self.numbers.kind == OTHER).any())

    @cached_property
    def zeros(self) -> Array:
        """Codes of rows that all have one cell, the same array for all such columns."""
        return np.zeros(len(self.row), np.int32)

    def select(self, kept: Array) -> LaidRows:
        """Return some rows, where a mask is true."""
        return replace(self, row=self.row[kept], layout=self.layout[kept], first=self.first[kept])

    def first_rows(self) -> Iterator[tuple[int, int]]:
        """Yield each layout that has rows, and the first of these, in the order of these."""
        first, _ = gather.distinct(self.layout)
        yield from zip(self.layout[first].tolist(), self.row[first].tolist(), strict=True)

    def put_wholes(self, table: Array) -> None:
        """Set the whole numbers of the rows, `Layout.wholes`, in a table of columns by all rows."""
        slots = np.array([layout.wholes for layout in self.layouts], np.int64).T
        rows: Array | slice = self.row
        if self.row[-1] - self.row[0] + 1 == len(self.row):
            rows = slice(self.row[0], self.row[-1] + 1)
        for slot, whole in zip(slots, table, strict=True):
            if (slot < 0).all():
                whole[rows] = self.of_rows(constant(slot))
                continue
            of_row = self.of_rows(slot)
            value = self.numbers.value[self.first + np.maximum(of_row, 0)]
            if (slot < 0).any():
                value = np.where(of_row < 0, constant(of_row), value)
            whole[rows] = value

    def of_rows(self, of_layout: Array) -> Any:
        """Return a number of each row's layout; one number if all layouts have the same."""
        return of_layout[0] if (of_layout == of_layout[0]).all() else of_layout[self.layout]

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
        table = np.zeros((len(self.layouts), 5), np.int64)
        for number, layout in enumerate(self.layouts):
            text = layout.texts[column]
            slots = slots_in(text)
            if slots:
                literals = literals_in(text)
                around = (len(literals[k].encode()) for k in (0, -1))
                table[number] = (slots[0], slots[-1], *around, 0)
            else:
                table[number, 4] = ~constants.setdefault(text, len(constants))
        if (table[:, 4] < 0).all():
            codes = np.broadcast_to(~self.of_rows(table[:, 4]), len(self.layout))
            return list(constants), None, codes
        low, high, before, behind, constant = map(self.of_rows, table.T)
        at, length = self.numbers.at, self.numbers.length
        begin = at[self.first + low].astype(np.int64) - before
        last = self.first + high
        end = at[last].astype(np.int64) + length[last] + behind
        if not np.any(constant):
            return [], begin, end
        return list(constants), np.where(constant, constant, begin), np.where(constant, 0, end)


def read_lines(data: Bytes, reader: Reader, *, gaps: bool = False) -> LaidRows:
    """Read a text line by line: see the module.

    Parameters
    ----------
    data
        The text, UTF-8, whose lines end in line feeds.
    reader
        Reader of the lines that have no layout; it is asked for layouts.
    gaps
        See `scan`.
    """
    return read_pieces(scan(data, *lines_of(data), gaps=gaps), reader)


def read_pieces(pieces: TextPieces, reader: Reader) -> LaidRows:
    """Read pieces by their layouts, and those without one by their reader."""
    walk = _Walk(pieces, reader)
    walk.run()
    layout, row, first = walk.laid[:, : walk.place[_LAID]]
    layout_start = np.array(walk.layout_start, np.int64)
    pieces_of = np.bincount(layout, minlength=len(walk.noted))
    noted = [
        (fault, int(pieces_of[group]) * count)
        for group, faults in enumerate(walk.noted)
        for fault, count in faults
    ]
    begins = np.zeros(len(walk.layouts), bool)
    begins[layout_start[:-1][np.diff(layout_start) > 0]] = True
    if (np.diff(layout_start) != 1).any():  # some pieces have several rows, or none
        of_rows = np.empty((3, int(np.diff(layout_start)[layout].sum())), np.int64)
        _spread_over_rows(walk.laid, len(layout), layout_start, of_rows)
        layout, row, first = of_rows
    return LaidRows(pieces.numbers, row, layout, first, walk.layouts, begins, noted)


@dataclass
class _Walk:
    """The walk over pieces: what a template does in a state is an entry of two tables."""

    pieces: TextPieces
    reader: Reader
    layouts: list[Layout] = field(default_factory=list)
    layout_start: list[int] = field(default_factory=lambda: [0])
    """First of the layouts of the rows of a piece, by the number that `action` has."""
    noted: list[tuple[tuple[Fault, int], ...]] = field(default_factory=list)
    """Faults of a piece, by the same number."""

    def __post_init__(self) -> None:
        shape = (1, len(self.pieces.templates))
        self.action = np.full(shape, _UNKNOWN, np.int32)
        self.following = np.zeros(shape, np.int32)
        self.place = np.zeros(4, np.int64)
        self.laid = np.empty(
            (3, len(self.pieces.template)), np.int64
        )  # pages are used as pieces come
        self.guards, self.guard_start = np.empty((0, 4)), np.zeros(1, np.int64)
        self.twin = np.empty(0, np.int64)

    def run(self) -> None:
        """Read all pieces; the last one, which nothing follows, is always read by the reader."""
        pieces, reader = self.pieces, self.reader
        last = len(pieces.template) - 1
        place = self.place
        while True:
            self._make_room(reader.state)
            place[1:_LAID] = reader.state, reader.rows
            _advance(
                place, pieces.template[:last], pieces.first, pieces.begin, pieces.end, self.action,
                self.following, self.guards, self.guard_start, np.array(self.layout_start), self.twin,
                pieces.numbers, self.laid,
            )  # fmt: skip
            at, reader.state, reader.rows, _ = place.tolist()
            template = int(pieces.template[at])
            is_new = template >= 0 and self.action[reader.state, template] == _UNKNOWN
            if is_new and at < last and self._learn(template):
                continue
            self._read_alone(at, template, is_complete=at < last)
            while at < last - 1 and self._is_alone(at + 1):  # without the cost of the loop above
                at += 1
                self._read_alone(at, int(pieces.template[at]), is_complete=True)
            if at == last:
                return
            place[0] = at + 1

    def _is_alone(self, at: int) -> bool:
        """True if a piece is known to be one that the reader must see."""
        template, state = self.pieces.template[at], self.reader.state
        known = template < 0 or state < len(self.action)
        return bool(known and (template < 0 or self.action[state, template] == _ALONE))

    def _make_room(self, state: int) -> None:
        while state >= len(self.action):
            self.action = np.concatenate([self.action, np.full_like(self.action, _UNKNOWN)])
            self.following = np.concatenate([self.following, np.zeros_like(self.following)])

    def _learn(self, template: int) -> bool:
        """Learn the layout of a template; return True if the present piece is read by it."""
        pieces, reader, state = self.pieces, self.reader, self.reader.state
        text, learned = pieces.templates[template], None
        probe = probe_of(text) if NUMBER in text else None
        if probe is not None:
            learned = reader.layout(probe, pieces.text(int(pieces.sample[template])))
        following, reader.state = reader.state, state
        if isinstance(learned, Layout):
            learned = PieceLayout((learned,))
        elif learned is not None and not isinstance(learned, PieceLayout):
            learned = PieceLayout(tuple(learned)) if learned else None
        texts = [text for layout in learned.rows for text in layout.texts] if learned else []
        if probe is None or learned is None or not are_within(texts, probe):
            self.action[state, template] = _ALONE
            return False
        self.action[state, template] = len(self.layout_start) - 1
        self.following[state, template] = following
        self._make_room(following)
        self.layouts += learned.rows
        self.layout_start.append(len(self.layouts))
        self.noted.append(learned.noted)
        guards = [guard for layout in learned.rows for guard in layout.guards] + [*learned.guards]
        self.guards = np.concatenate([self.guards, np.array(guards, np.float64).reshape(-1, 4)])
        self.guard_start = np.append(self.guard_start, len(self.guards))
        self.twin = np.append(self.twin, pieces.sample[template] if learned.has_columns else -1)
        return not learned.noted

    def _read_alone(self, at: int, template: int, *, is_complete: bool) -> None:
        """Have a piece read; if all it does is to change the state, that is what its template does."""
        pieces, reader = self.pieces, self.reader
        state, effects = reader.state, reader.effects()
        reader.line(pieces.text(at), at + 1, is_complete=is_complete)
        has_numbers = pieces.first[at + 1] > pieces.first[at]
        if template >= 0 and not has_numbers and reader.effects() == effects:
            self.action[state, template] = _NO_ROW
            self.following[state, template] = reader.state
            self._make_room(reader.state)  # lines that are read next may lead on from it


@jit_in_place
def _advance(  # noqa: PLR0913, PLR0917 # one loop over columns
    place: Array, template: Array, first: Array, begin: Array, end: Array, action: Array,
    following: Array, guards: Array, guard_start: Array, layout_start: Array, twin: Array,
    numbers: TextNumbers, laid: Array,
) -> None:  # fmt: skip
    """Walk from `place` (piece, state, row, pieces by a layout) to the next piece that the reader must see.

    Of each piece by a layout `laid` gets the layout, the row, and the index of its first number.
    """
    at, state, row, known = place[0], place[1], place[2], place[_LAID]
    while at < len(template) and template[at] >= 0:
        layout = action[state, template[at]]
        if layout < _NO_ROW:
            break
        if layout >= 0:
            holds = twin[layout] < 0 or _are_alike(numbers, begin, end, first, at, twin[layout])
            for k in range(guard_start[layout], guard_start[layout + 1]):
                number = first[at] + np.int64(guards[k, 0])
                holds &= guards[k, 1] <= numbers.value[number] <= guards[k, 2]
                kind = numbers.kind[number]
                holds &= (
                    kind == INTEGER
                    or guards[k, 3] == ANY
                    or (kind == DECIMAL and guards[k, 3] == EXACT)
                )
            if not holds:
                break
            laid[0, known], laid[1, known], laid[2, known] = layout, row, first[at]
            known += 1
            row += layout_start[layout + 1] - layout_start[layout]
        state = following[state, template[at]]
        at += 1
    place[0], place[1], place[2], place[_LAID] = at, state, row, known


@jit_in_place
def _spread_over_rows(laid: Array, count: int, layout_start: Array, of_rows: Array) -> None:
    """Set the layout, the row and the first number of each row of so many pieces, of `laid` of `_advance`.

    Compiled: as repeated columns of numpy it takes four more arrays of all rows.
    """
    at = 0
    for piece in range(count):
        start = layout_start[laid[0, piece]]
        for number in range(layout_start[laid[0, piece] + 1] - start):
            of_rows[0, at] = start + number
            of_rows[1, at] = laid[1, piece] + number
            of_rows[2, at] = laid[2, piece]
            at += 1


@jit_in_place
def _are_alike(  # one loop over columns
    numbers: TextNumbers, begin: Array, end: Array, first: Array, piece: int, other: int
) -> bool:
    """True if two pieces of a template are the same but for their numbers, with as many spaces in all gaps."""
    count = first[piece + 1] - first[piece]
    at, at_other = begin[piece], begin[other]
    for k in range(count + 1):
        stop, stop_other = end[piece], end[other]
        if k < count:
            stop = np.int64(numbers.at[first[piece] + k])
            stop_other = np.int64(numbers.at[first[other] + k])
        if stop - at != stop_other - at_other:
            return False
        for byte in range(stop - at):
            if numbers.data[at + byte] != numbers.data[at_other + byte]:
                return False
        if k < count:
            at = stop + numbers.length[first[piece] + k]
            at_other = stop_other + numbers.length[first[other] + k]
    return True
