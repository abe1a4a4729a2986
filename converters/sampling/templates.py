"""Templates: pieces of a text with the numbers taken out, so that each different one is parsed once.

Telemetry repeats a few forms of lines millions of times, and only their numbers differ. `pieces.Scanner`, a
compiled loop, takes the numbers out of all pieces (lines, or blocks of lines) and numbers the texts
that are left, the templates. A format's reader then says once for each template what its row is, as a
`Layout`: which numbers say the time and the GPU, and which texts around which numbers are the cells.
`read_pieces` walks the pieces by these layouts in another compiled loop, a window of some megabytes
at a time, whose numbers then go into columns (`laid_rows`). A piece that has no layout (a rare
template, a header, a message, a line that is cut) is read by the format's reader itself, at its
place between the others.

A reader is learned from, not trusted: it gets a piece whose numbers are others that occur nowhere
else (`layouts.probe_of`), and where these come out again is where the numbers of all such pieces go. What
depends on a number's size is a `Guard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.sampling.cells import DECIMAL, INTEGER, TextNumbers
from chopper_interop.converters.sampling.laid_rows import LaidPieces, LaidRows, OddNumbers
from chopper_interop.converters.sampling.layouts import (
    ANY,
    EXACT,
    Layout,
    PieceLayout,
    are_within,
    probe_of,
)
from chopper_interop.converters.sampling.pieces import (
    NUMBER,
    Scanner,
    line_windows,
    piece_windows,
)

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


def read_lines(data: Bytes, reader: Reader, *, gaps: bool = False) -> LaidRows:
    """Read a text line by line: see the module.

    Parameters
    ----------
    data
        The text, UTF-8, whose lines end in line feeds.
    reader
        Reader of the lines that have no layout; it is asked for layouts.
    gaps
        See `Scanner`.
    """
    return _read(data, line_windows(data), reader, gaps=gaps)


def read_pieces(
    data: Bytes, begin: Array, end: Array, reader: Reader, *, gaps: bool = False
) -> LaidRows:
    """Read pieces of a text, as `read_lines` does lines: by their layouts, and those without one by their reader."""
    return _read(data, piece_windows(begin, end), reader, gaps=gaps)


def _read(
    data: Bytes, windows: Iterable[tuple[Array, Array]], reader: Reader, *, gaps: bool
) -> LaidRows:
    walk = _Walk(Scanner(data, gaps=gaps), reader)
    for begin, end in windows:
        walk.run(begin, end, is_last=end[-1] == len(data))
    return LaidRows(data, walk.laid, walk.odd)


@dataclass
class _Walk:
    """The walk over pieces: what a template does in a state is an entry of two tables."""

    scanner: Scanner
    reader: Reader
    laid: list[LaidPieces] = field(default_factory=list)
    """Pieces that were read by layouts, by the number that `action` has."""
    pieces_before: int = 0
    """Pieces of windows before the present one."""

    def __post_init__(self) -> None:
        self.action = np.empty((1, 0), np.int32)
        self.following = np.empty((1, 0), np.int32)
        self.place = np.zeros(4, np.int64)
        self.guards, self.guard_start = np.empty((0, 4)), np.zeros(1, np.int64)
        self.rows_of = np.empty(0, np.int64)
        """Rows of a piece, by the number that `action` has."""
        self.odd = OddNumbers(self.scanner.data)
        self.twins, self.twin = _Twins(self.scanner.data), np.empty(0, np.int64)

    def run(self, begin: Array, end: Array, *, is_last: bool) -> None:
        """Read the pieces of a window; the last of all, which nothing follows, is always read by the reader."""
        self.pieces = self.scanner.scan(begin, end)
        self._make_room(self.reader.state)
        laid = np.empty((3, len(begin)), np.int64)
        self.place[[0, _LAID]] = 0
        self._run(len(begin) - 1 if is_last else len(begin), laid)
        self._add(laid[:, : self.place[_LAID]], share=int(end[-1]) / max(len(self.scanner.data), 1))
        self.pieces_before += len(begin)

    def _add(self, laid: Array, share: float) -> None:
        """Add the pieces of a window that were read by layouts to those of their layout."""
        layout, row, first = laid
        if len(self.laid) == 1:
            starts = [0, len(layout)]
        else:  # of small numbers, which are sorted without comparing them
            order = np.argsort(layout.astype(np.min_scalar_type(len(self.laid))), kind="stable")
            first, row = first[order], row[order]
            starts = np.cumsum([0, *np.bincount(layout)]).tolist()
        for number, (start, stop) in enumerate(pairwise(starts)):
            if start < stop:
                numbers = self.pieces.numbers
                self.laid[number].add(numbers, first[start:stop], row[start:stop], share)

    def _run(self, last: int, laid: Array) -> None:
        """Walk over the pieces in front of the last one, and read that too if there is one."""
        pieces, reader, place = self.pieces, self.reader, self.place
        count = len(pieces.template)
        while True:
            self._make_room(reader.state)
            place[1:_LAID] = reader.state, reader.rows
            _advance(
                place, pieces.template[:last], pieces.first, pieces.begin, pieces.end, self.action,
                self.following, self.guards, self.guard_start, self.rows_of, self.twin,
                self.twins.arrays, pieces.numbers, laid,
            )  # fmt: skip
            at, reader.state, reader.rows, _ = place.tolist()
            if at == count:
                return
            template = int(pieces.template[at])
            is_new = template >= 0 and self.action[reader.state, template] == _UNKNOWN
            if is_new and at < last and self._learn(template):
                continue
            self._read_alone(at, template, is_complete=at < last)
            while at < last - 1 and self._is_alone(at + 1):  # without the cost of the loop above
                at += 1
                self._read_alone(at, int(pieces.template[at]), is_complete=True)
            place[0] = at + 1
            if at + 1 == count:
                return

    def _is_alone(self, at: int) -> bool:
        """True if a piece is known to be one that the reader must see."""
        template, state = self.pieces.template[at], self.reader.state
        known = template < 0 or state < len(self.action)
        return bool(known and (template < 0 or self.action[state, template] == _ALONE))

    def _make_room(self, state: int) -> None:
        """Give each state up to this one and each template an entry of both tables."""
        states, templates = self.action.shape
        more = (max(state + 1 - states, 0), len(self.scanner.templates) - templates)
        if any(more):
            wider = [(0, count) for count in more]
            self.action = np.pad(self.action, wider, constant_values=_UNKNOWN)
            self.following = np.pad(self.following, wider)

    def _learn(self, template: int) -> bool:
        """Learn the layout of a template; return True if the present piece is read by it."""
        scanner, reader, state = self.scanner, self.reader, self.reader.state
        text, learned = scanner.templates[template], None
        probe = probe_of(text) if NUMBER in text else None
        if probe is not None:
            learned = reader.layout(probe, scanner.sample_text(template))
        following, reader.state = reader.state, state
        if isinstance(learned, Layout):
            learned = PieceLayout((learned,))
        elif learned is not None and not isinstance(learned, PieceLayout):
            learned = PieceLayout(tuple(learned)) if learned else None
        texts = [text for layout in learned.rows for text in layout.texts] if learned else []
        if probe is None or learned is None or not are_within(texts, probe):
            self.action[state, template] = _ALONE
            return False
        self.action[state, template] = len(self.laid)
        self.following[state, template] = following
        self._make_room(following)
        self.laid.append(LaidPieces(learned, self.odd))
        self.rows_of = np.append(self.rows_of, len(learned.rows))
        guards = [guard for layout in learned.rows for guard in layout.guards] + [*learned.guards]
        self.guards = np.concatenate([self.guards, np.array(guards, np.float64).reshape(-1, 4)])
        self.guard_start = np.append(self.guard_start, len(self.guards))
        twin = self.twins.add(*scanner.sample[template]) if learned.has_columns else -1
        self.twin = np.append(self.twin, twin)
        return not learned.noted

    def _read_alone(self, at: int, template: int, *, is_complete: bool) -> None:
        """Have a piece read; if all it does is to change the state, that is what its template does."""
        pieces, reader = self.pieces, self.reader
        state, effects = reader.state, reader.effects()
        number = self.pieces_before + at + 1
        reader.line(pieces.text(at), number, is_complete=is_complete)
        has_numbers = pieces.first[at + 1] > pieces.first[at]
        if template >= 0 and not has_numbers and reader.effects() == effects:
            self.action[state, template] = _NO_ROW
            self.following[state, template] = reader.state
            self._make_room(reader.state)  # lines that are read next may lead on from it


class TwinArrays(NamedTuple):
    """Pieces with which others are compared: ranges of the text that are no numbers, and the first of each piece.

    The ranges of piece k are ``begin[first[k]:first[k + 1]]``.
    """

    begin: Array
    end: Array
    first: Array


class _Twins:
    """Pieces with which others of their template are compared."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.arrays = TwinArrays(
            np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64)
        )

    def add(self, begin: int, end: int) -> int:
        """Add a piece, and return its number."""
        numbers = Scanner(self.data).scan(np.array([begin]), np.array([end])).numbers
        at = numbers.at.astype(np.int64)
        begins, ends, first = self.arrays
        self.arrays = TwinArrays(
            np.concatenate([begins, [begin], at + numbers.length]),
            np.concatenate([ends, at, [end]]),
            np.append(first, len(begins) + len(at) + 1),
        )
        return len(first) - 1


@jit_in_place
def _advance(  # noqa: PLR0913, PLR0917 # one loop over columns
    place: Array, template: Array, first: Array, begin: Array, end: Array, action: Array,
    following: Array, guards: Array, guard_start: Array, rows_of: Array, twin: Array,
    twins: TwinArrays, numbers: TextNumbers, laid: Array,
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
            holds = twin[layout] < 0 or _are_alike(
                numbers, begin[at], end[at], first[at], first[at + 1], twins, twin[layout]
            )
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
            row += rows_of[layout]
        state = following[state, template[at]]
        at += 1
    place[0], place[1], place[2], place[_LAID] = at, state, row, known


@jit_in_place
def _are_alike(  # noqa: PLR0913, PLR0917 # one loop over columns
    numbers: TextNumbers, begin: int, end: int, first: int, behind: int, twins: TwinArrays, twin: int
) -> bool:  # fmt: skip
    """True if two pieces of a template are the same but for their numbers, with as many spaces in all gaps.

    Parameters
    ----------
    numbers
        Numbers of the text.
    begin, end
        Where the one is in it.
    first, behind
        Its first number, and the one behind its last.
    twins, twin
        Which the other is.
    """
    at = begin
    for k in range(behind - first + 1):
        other = twins.first[twin] + k
        is_last = first + k == behind
        stop = end if is_last else np.int64(numbers.at[first + k])
        if stop - at != twins.end[other] - twins.begin[other]:
            return False
        for byte in range(stop - at):
            if numbers.data[at + byte] != numbers.data[twins.begin[other] + byte]:
                return False
        if not is_last:
            at = stop + np.int64(numbers.length[first + k])
    return True
