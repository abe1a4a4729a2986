"""Templates: pieces of a text with the numbers taken out, so that each different one is parsed once.

Telemetry repeats a few forms of lines millions of times, and only their numbers differ. `scan`, a
compiled loop, takes the numbers out of all pieces (lines, or blocks of lines) and numbers the texts
that are left, the templates. A format's reader then says once for each template what its row is, as a
`Layout`: which numbers say the time and the GPU, and which texts around which numbers are the cells.
`read` walks the pieces by these layouts in another compiled loop. A piece that has no layout (a rare
template, a header, a message, a line that is cut) is read by the format's reader itself, at its
place between the others.

A reader is learned from, not trusted: it gets a piece whose numbers are others that occur nowhere
else (`probe_of`), and where these come out again is where the numbers of all such pieces go. What
depends on a number's size is a `Guard`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.arrays.interning import (
    TextTable,
    empty_text_table,
    enlarged_text_table,
    intern_hashed,
)
from chopper_interop.converters.sampling.cells import (
    DECIMAL,
    INTEGER,
    OTHER,
    Cell,
    Column,
    Item,
    Numbers,
    Slot,
)
from chopper_interop.converters.sampling.text import NO_NUMBER, whole_number
from chopper_interop.io.json_text import byte_table

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from chopper_interop.arrays.types import Array, Bytes
    from chopper_interop.converters.sampling.cells import ColumnBuilder

Key = TypeVar("Key", bound="Hashable")
FEW = 3
"""Pieces of a template from which on it gets a layout (chosen: reading about two is what that costs)."""
_NUMBER, _GAP = 1, 2
"""Bytes of a template in place of a number, and in place of several spaces."""
_DIGITS, _DECIMAL_DIGITS = 18, 15
"""Longest numbers that become doubles: integers that 64 bits hold are rounded once; decimals of 15
digits are the quotient of two exact doubles, and keep all their digits."""
_LONGEST = 255
"""Longest number, as its length is a byte."""
_TINY = 1e-4
"""Decimals below are not taken out: Python writes them with an exponent, which is no decimal point."""
_UNAVAILABLE = (65535.0, 4294967295.0)
"""Numbers that mean "not available" stay in the template, which makes them a text of its own."""
_TEXTS = 1 << 10
"""Templates that the table has room for at first (chosen: most files have some ten)."""
_UNKNOWN, _ALONE, _NO_ROW = -3, -2, -1
"""A template in a state: not met yet; read one by one; without a row and without effect."""

_DIGIT = byte_table(b"0123456789")
_WORD = byte_table(
    bytes(b for b in range(256) if b >= ord("\x80") or chr(b).isalnum() or b == ord("_"))
)
"""Bytes next to which digits are part of a word: P8, 0x1f, MI300X."""
_BEFORE = _WORD | byte_table(b".-+")
"""Bytes behind which digits are no number of their own: a sign, a decimal point."""
_BEHIND = _WORD | byte_table(b".")
_ODD = byte_table(bytes(b for b in range(32) if b not in b"\t\n\r"))
"""Bytes that no tool prints; two of them mark numbers and gaps."""
_POWERS = 10.0 ** np.arange(_DIGITS + 1)
_SPACE, _DOT, _ZERO = ord(" "), ord("."), ord("0")


@dataclass(frozen=True)
class Pieces:
    """Pieces of a text, as `scan` returns them.

    Parameters
    ----------
    begin, end
        Where each is in the text, bytes.
    template
        Its template; -1 for one of fewer than `FEW` pieces.
    first
        Index of its first number.
    numbers
        All numbers.
    templates
        Texts of the templates.
    sample
        A piece of each template.
    """

    begin: Array
    end: Array
    template: Array
    first: Array
    numbers: Numbers
    templates: list[bytes]
    sample: Array

    def text(self, piece: int) -> str:
        """Return the text of a piece."""
        return str(self.numbers.data[self.begin[piece] : self.end[piece]].tobytes(), "utf-8")


def lines_of(data: Bytes) -> tuple[Array, Array]:
    """Return where the lines of a text begin and end, without their ends; the last may be empty."""
    ends = np.flatnonzero(data == ord("\n"))
    return np.concatenate([[0], ends + 1]), np.concatenate([ends, [len(data)]])


def scan(data: Bytes, begin: Array, end: Array, *, gaps: bool = False) -> Pieces:
    """Take the numbers out of pieces of a text.

    Parameters
    ----------
    data
        The text, UTF-8.
    begin, end
        The pieces, which do not overlap, ascending.
    gaps
        True to take two spaces and more for the same, as in tables whose columns are aligned.
    """
    count = _count_numbers(data)
    place = np.uint32 if len(data) < 1 << 32 else np.int64
    kinds = (np.float64, place, np.uint8, np.uint8)
    numbers = Numbers(data, *(np.empty(count, kind) for kind in kinds))
    first, template = np.zeros(len(begin) + 1, np.int64), np.empty(len(begin), np.int32)
    written = np.empty(len(data) + 1, np.uint8)  # pages of it are used as templates come
    table, used, start = empty_text_table(_TEXTS), np.zeros(1, np.int64), 0
    while True:
        start = _scan(numbers, begin, end, start, gaps, first, template, written, used, table)
        if start == len(begin):
            break
        table = enlarged_text_table(table)
    uses = np.bincount(template[template >= 0], minlength=int(table.used[0]))
    kept = np.flatnonzero(uses >= FEW)
    number = np.full(len(uses) + 1, -1, np.int32)
    number[kept] = np.arange(len(kept))
    sample = np.zeros(len(uses) + 1, np.int64)
    sample[template[::-1]] = np.arange(len(template))[::-1]
    view = written.data
    ranges = zip(table.start[kept].tolist(), table.length[kept].tolist(), strict=True)
    texts = [bytes(view[at : at + length]) for at, length in ranges]
    count = int(first[-1])
    numbers = Numbers(data, *(column[:count] for column in numbers[1:]))
    return Pieces(begin, end, number[template], first, numbers, texts, sample[kept])


@jit_in_place
def _count_numbers(data: Bytes) -> int:
    """Number of runs of digits, which is the most numbers that there can be."""
    count, before = 0, False
    for at in range(len(data)):
        is_digit = _DIGIT[data[at]]
        count += is_digit and not before
        before = is_digit
    return count


@jit_in_place
def _scan(  # noqa: C901, PLR0913, PLR0917 # one loop over the bytes of all pieces
    numbers: Numbers, begin: Array, end: Array, start: int, gaps: bool, first: Array,  # noqa: FBT001
    template: Array, written: Bytes, used: Array, table: TextTable,
) -> int:  # fmt: skip
    """Take the numbers out of pieces from `start` on; return the piece before which the table was full.

    Each byte of a piece is copied to its template, or belongs to what a mark stands for there; the
    template's hash is made on the way. A template that is known gives its room back.
    """
    data = numbers.data
    for piece in range(start, len(begin)):
        k, low, odd = first[piece], used[0], False
        write, hashed = low, np.uint64(14695981039346656037)  # FNV-1a
        at, stop, before = begin[piece], end[piece], np.uint8(_SPACE)
        while at < stop:
            byte, behind, mark = data[at], at + 1, np.uint8(0)
            if _DIGIT[byte] and not _BEFORE[before]:
                behind = _parse_number(numbers, at, stop, k)
                if behind < 0:
                    behind = -behind
                else:
                    mark, before = np.uint8(_NUMBER), byte
                    k += 1
            elif gaps and byte == _SPACE and behind < stop and data[behind] == _SPACE:
                while behind < stop and data[behind] == _SPACE:
                    behind += 1
                mark, before = np.uint8(_GAP), byte
            odd |= _ODD[byte]
            if mark:
                written[write] = mark
                hashed = (hashed ^ np.uint64(mark)) * np.uint64(1099511628211)
                write += 1
                at = behind
            while at < behind:
                before = data[at]
                written[write] = before
                hashed = (hashed ^ np.uint64(before)) * np.uint64(1099511628211)
                write += 1
                at += 1
        first[piece + 1] = k
        template[piece] = -1
        if not odd:
            hashed ^= hashed >> np.uint64(29)
            template[piece] = intern_hashed(written, low, write, hashed, table)
            if template[piece] < 0:
                return piece
            if table.start[template[piece]] == low:
                used[0] = write
    return len(begin)


@jit_in_place
def _parse_number(numbers: Numbers, at: int, stop: int, k: int) -> int:
    """Parse the number at `at` as the k-th; return where it ends, negative if it stays in the text."""
    data = numbers.data
    mantissa, digits, decimals, behind = np.int64(0), 0, 0, at
    while behind < stop and _DIGIT[data[behind]]:
        if digits < _DIGITS:
            mantissa = 10 * mantissa + np.int64(data[behind]) - _ZERO
        digits += 1
        behind += 1
    has_zeros = data[at] == _ZERO and digits > 1
    has_point = behind + 1 < stop and data[behind] == _DOT and _DIGIT[data[behind + 1]]
    if has_point:
        behind += 1
        while behind < stop and _DIGIT[data[behind]]:
            if digits < _DIGITS:
                mantissa = 10 * mantissa + np.int64(data[behind]) - _ZERO
                decimals += 1
            digits += 1
            behind += 1
    value = np.float64(mantissa) / _POWERS[decimals]
    is_part = behind < stop and _BEHIND[data[behind]]
    if is_part or behind - at > _LONGEST or value == _UNAVAILABLE[0] or value == _UNAVAILABLE[1]:
        return -behind
    is_long = digits > (_DECIMAL_DIGITS if has_point else _DIGITS)
    is_tiny = has_point and 0.0 < value < _TINY
    numbers.value[k], numbers.at[k], numbers.length[k] = value, at, behind - at
    kind = DECIMAL if has_point else INTEGER
    numbers.kind[k] = OTHER if has_zeros or is_long or is_tiny else kind
    return behind


_PROBE = 7_310_000
_PROBES = 10_000
"""First number of a probe, and how many there are (chosen: seven digits that fit an index, and that
no template has; no row of a tool has a tenth of as many numbers)."""
_PROBE_DIGITS = re.compile(rf"{_PROBE // _PROBES}\d{{4}}")


def probe_of(template: bytes) -> str | None:
    """Return a piece of a template with numbers that occur nowhere else, ascending; None if it has such."""
    parts = template.decode().replace(chr(_GAP), "  ").split(chr(_NUMBER))
    if len(parts) > _PROBES or any(_PROBE_DIGITS.search(part) for part in parts):
        return None
    numbers = [str(_PROBE + number) for number in range(len(parts) - 1)]
    return "".join(text for pair in zip(parts, [*numbers, ""], strict=True) for text in pair)


def probe_number(slot: int) -> int:
    """Return the number that a probe has in place of a number of the piece."""
    return _PROBE + slot


def slots_in(text: str) -> list[int]:
    """Numbers of the piece that a text of its probe holds, in the text's order."""
    return [int(match[0]) - _PROBE for match in _PROBE_DIGITS.finditer(text)]


def with_slots(cell: Cell) -> tuple[Cell, int] | None:
    """Return a cell of a probe with slots in place of the numbers of the probe, and the first of these.

    None if a number is a part of an item's text, so that the cell must be parsed in each row.
    """
    items, slots = [], []
    for item in cell.items:
        if slots_in(item.unit):
            return None
        is_written = isinstance(item.value, str)
        if slots_in(str(item.value)):
            if not _PROBE_DIGITS.fullmatch(str(item.value)):
                return None
            slots.append(int(str(item.value)) - _PROBE)
            items.append(Item(Slot(slots[-1], is_written=is_written), item.unit))
        else:
            items.append(item)
    first = min(slots, default=0)
    moved = (
        i._replace(value=i.value._replace(number=i.value.number - first))
        if isinstance(i.value, Slot)
        else i
        for i in items
    )
    return Cell(tuple(moved), cell.listed), first


def constant(value: Array | int) -> Any:
    """Return what stands for a number from -1 on where others are slots; this is its own inverse."""
    return -2 - value


ANY, WHOLE, EXACT = range(3)
"""Demands on a number: none; that it is of kind `INTEGER`; that it is not of kind `OTHER`."""


class Guard(NamedTuple):
    """Bounds of a number, and its kind, without which a layout does not hold."""

    number: int
    low: float
    high: float
    kind: int = WHOLE


@dataclass(frozen=True)
class Layout:
    """Where the values of a row are in the pieces of a template.

    Parameters
    ----------
    wholes
        Whole numbers that say which row it is: each the slot of a number, or `constant` of its value.
    texts
        Texts of the probe that say which row it is.
    cells
        Cells by key: texts of the probe, or cells with its numbers.
    guards
        What the numbers must be.
    """

    wholes: tuple[int, ...]
    texts: tuple[str, ...]
    cells: tuple[tuple[Any, str | Cell], ...]
    guards: tuple[Guard, ...] = ()


def layout_of_row(
    wholes: Iterable[tuple[str, int]],
    cells: Iterable[tuple[Hashable, str | Cell]],
    *,
    needed: int,
) -> Layout | None:
    """Return the layout of a row of a probe; None if it must be read by itself.

    Parameters
    ----------
    wholes
        Cells of whole numbers that say which row it is, and the largest that each may be; cells of
        a layout that hold none are `NO_NUMBER`.
    cells
        See `Layout`.
    needed
        Index of the one of `wholes` that must be a number.
    """
    slots, guards = [], []
    for text, largest in wholes:
        if match := _PROBE_DIGITS.fullmatch(text.strip()):
            slots.append(int(match[0]) - _PROBE)
            guards.append(Guard(slots[-1], 0, largest))
        elif slots_in(text):
            return None
        else:
            slots.append(constant(whole_number(text, largest)))
    if slots[needed] == constant(NO_NUMBER):
        return None
    return Layout(tuple(slots), (), tuple(cells), tuple(guards))


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

    def layout(self, probe: str, sample: str) -> Layout | Sequence[Layout] | None:
        """Return the layout of the pieces of a template in this state, or that of each of their rows.

        None if they are read alone.

        Parameters
        ----------
        probe, sample
            A piece with other numbers, and a piece as it is.
        """

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        """Read one piece, which is not blank; pieces are numbered from 1."""


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
    """

    numbers: Numbers
    row: Array
    layout: Array
    first: Array
    layouts: list[Layout]

    @cached_property
    def has_other(self) -> bool:
        """True if a number of the text is of kind `OTHER`."""
        return bool((self.numbers.kind == OTHER).any())

    def first_rows(self) -> Iterator[tuple[int, int]]:
        """Yield each layout that has rows, and the first of these, in the order of these."""
        first, _ = gather.distinct(self.layout)
        yield from zip(self.layout[first].tolist(), self.row[first].tolist(), strict=True)

    def wholes(self) -> Array:
        """Return the whole numbers of each row: columns by rows of `Layout.wholes`."""
        if not self.layouts:
            return np.empty((0, 0), np.int64)
        slot = np.array([layout.wholes for layout in self.layouts], np.int64).T[:, self.layout]
        value = self.numbers.value[self.first + np.maximum(slot, 0)]
        return np.where(slot < 0, constant(slot), value.astype(np.int64))

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
                literals = _PROBE_DIGITS.split(text)
                around = (len(literals[k].encode()) for k in (0, -1))
                table[number] = (slots[0], slots[-1], *around, 0)
            else:
                table[number, 4] = ~constants.setdefault(text, len(constants))
        if (table[:, 4] < 0).all():
            return list(constants), None, ~table[self.layout, 4]
        if len(table) == 1:
            low, high, before, behind, constant = (np.int64(n) for n in table[0])
        else:
            low, high, before, behind, constant = table.T[:, self.layout]
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


def read_pieces(pieces: Pieces, reader: Reader) -> LaidRows:
    """Read pieces by their layouts, and those without one by their reader."""
    walk = _Walk(pieces, reader)
    walk.run()
    laid = np.flatnonzero(walk.laid[0] >= 0)
    layout, row = walk.laid[:, laid]
    first = pieces.first[laid]
    layout_start = np.array(walk.layout_start, np.int64)
    if len(walk.layouts) >= len(layout_start):  # some pieces have several rows
        rows = np.diff(layout_start)[layout]
        nth = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
        layout, row = (np.repeat(n, rows) + nth for n in (layout_start[layout], row))
        first = np.repeat(first, rows)
    return LaidRows(pieces.numbers, row, layout, first, walk.layouts)


@dataclass
class _Walk:
    """The walk over pieces: what a template does in a state is an entry of two tables."""

    pieces: Pieces
    reader: Reader
    layouts: list[Layout] = field(default_factory=list)
    layout_start: list[int] = field(default_factory=lambda: [0])
    """First of the layouts of the rows of a piece, by the number that `action` has."""

    def __post_init__(self) -> None:
        shape = (1, len(self.pieces.templates))
        self.action = np.full(shape, _UNKNOWN, np.int32)
        self.following = np.zeros(shape, np.int32)
        self.laid = np.full((2, len(self.pieces.template)), -1, np.int64)
        self.guards, self.guard_start = np.empty((0, 4)), np.zeros(1, np.int64)

    def run(self) -> None:
        """Read all pieces; the last one, which nothing follows, is always read by the reader."""
        pieces, reader = self.pieces, self.reader
        last = len(pieces.template) - 1
        place = np.zeros(3, np.int64)
        while True:
            self._make_room(reader.state)
            place[1:] = reader.state, reader.rows
            _advance(
                place, pieces.template[:last], pieces.first, self.action, self.following,
                self.guards, self.guard_start, np.array(self.layout_start), pieces.numbers, self.laid,
            )  # fmt: skip
            at, reader.state, reader.rows = place.tolist()
            template = int(pieces.template[at])
            is_new = template >= 0 and self.action[reader.state, template] == _UNKNOWN
            if is_new and at < last:
                self._learn(template)
                if self.action[reader.state, template] >= 0:
                    continue
            self._read_alone(at, template, is_complete=at < last)
            while (
                at < last - 1 and pieces.template[at + 1] < 0
            ):  # without the cost of the loop below
                at += 1
                self._read_alone(at, -1, is_complete=True)
            if at == last:
                return
            place[0] = at + 1

    def _make_room(self, state: int) -> None:
        while state >= len(self.action):
            self.action = np.concatenate([self.action, np.full_like(self.action, _UNKNOWN)])
            self.following = np.concatenate([self.following, np.zeros_like(self.following)])

    def _learn(self, template: int) -> None:
        pieces, reader = self.pieces, self.reader
        text, learned = pieces.templates[template], None
        probe = probe_of(text) if _NUMBER in text else None
        if probe is not None:
            learned = reader.layout(probe, pieces.text(int(pieces.sample[template])))
        layouts = [learned] if isinstance(learned, Layout) else list(learned or ())
        texts = [text for layout in layouts for text in layout.texts]
        if probe is None or not layouts or not _are_within(texts, probe):
            self.action[reader.state, template] = _ALONE
            return
        self.action[reader.state, template] = len(self.layout_start) - 1
        self.following[reader.state, template] = reader.state
        self.layouts += layouts
        self.layout_start.append(len(self.layouts))
        guards = [guard for layout in layouts for guard in layout.guards]
        self.guards = np.concatenate([self.guards, np.array(guards, np.float64).reshape(-1, 4)])
        self.guard_start = np.append(self.guard_start, len(self.guards))

    def _read_alone(self, at: int, template: int, *, is_complete: bool) -> None:
        """Have a piece read; if all it does is to change the state, that is what its template does."""
        pieces, reader = self.pieces, self.reader
        state, effects = reader.state, reader.effects()
        text = pieces.text(at)
        if text.strip():
            reader.line(text, at + 1, is_complete=is_complete)
        has_numbers = pieces.first[at + 1] > pieces.first[at]
        if template >= 0 and not has_numbers and reader.effects() == effects:
            self.action[state, template] = _NO_ROW
            self.following[state, template] = reader.state


def _are_within(texts: Iterable[str], probe: str) -> bool:
    """True if texts with numbers stand in a probe as they are, so that they are ranges of the piece."""
    ranges = [text for text in texts if _PROBE_DIGITS.search(text)]
    return all(text in probe and "  " not in text for text in ranges)


@jit_in_place
def _advance(  # noqa: PLR0913, PLR0917 # one loop over columns
    place: Array, template: Array, first: Array, action: Array, following: Array,
    guards: Array, guard_start: Array, layout_start: Array, numbers: Numbers, laid: Array,
) -> None:  # fmt: skip
    """Walk from `place` (piece, state, row) to the next piece that the reader must see."""
    at, state, row = place[0], place[1], place[2]
    while at < len(template) and template[at] >= 0:
        layout = action[state, template[at]]
        if layout < _NO_ROW:
            break
        if layout >= 0:
            holds = True
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
            laid[0, at], laid[1, at] = layout, row
            row += layout_start[layout + 1] - layout_start[layout]
        state = following[state, template[at]]
        at += 1
    place[0], place[1], place[2] = at, state, row


def keys_of_rows(laid: LaidRows | None, others: Mapping[int, Sequence[int]]) -> Array:
    """Return the time, GPU and part of all rows, 3 by rows; those without a layout by their number."""
    table = np.empty((3, len(others) + (len(laid.row) if laid else 0)), np.int64)
    if laid and len(laid.row):
        table[:, laid.row] = laid.wholes()
    if others:
        table[:, list(others)] = np.array(list(others.values()), np.int64).T
    return table


def columns_of(
    laid: LaidRows | None,
    singles: Mapping[Key, ColumnBuilder],
    parse: Callable[[Key, str], Cell],
) -> dict[Key, Column]:
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
    columns: dict[Key, Column] = {}
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
        self.code, self.slot = (np.full(self.layouts, n, np.int64) for n in (_NO_ROW, 0))

    def learn(self, layout: int, cell: str | Cell, parse: Callable[[str], Cell]) -> None:
        """Note the cell of the rows of a layout."""
        with_place: tuple[Cell, int] | None
        if isinstance(cell, Cell):
            with_place = with_slots(cell)
        else:
            slots = slots_in(cell)
            first = min(slots, default=0)
            parts = (*_PROBE_DIGITS.split(cell), *(str(slot - first) for slot in slots))
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

    def column(self, key: str, laid: LaidRows, parse: Callable[[str], Cell]) -> Column:
        """Return the column of the rows that were read by layouts."""
        numbers = laid.numbers
        if (
            self.layouts == 1 and self.code[0] >= 0 and not laid.has_other
        ):  # the usual case, for speed
            same = np.full(len(laid.row), self.code[0], np.int32)
            first = laid.first + self.slot[0]
            return Column(key, laid.row, same, list(self.distinct), numbers, first)
        code = self.code[laid.layout]
        kept = np.flatnonzero(code != _NO_ROW)
        code, layout = code[kept], laid.layout[kept]
        base = laid.first[kept] + self.slot[layout]
        alone = code == _ALONE
        width = np.array([*map(width_of, self.distinct), 0], np.int64)[np.where(alone, -1, code)]
        for number in range(int(width.max(initial=0))) if laid.has_other else ():
            place = np.where(number < width, base + number, 0)
            alone |= (number < width) & (numbers.kind[place] == OTHER)
        distinct = dict(self.distinct)
        parsed: dict[str, int] = {}
        for row in np.flatnonzero(alone).tolist():
            text = filled(self.texts[int(layout[row])], int(laid.first[kept[row]]), numbers)
            if text not in parsed:
                parsed[text] = distinct.setdefault(parse(text), len(distinct))
            code[row] = parsed[text]
        has_slots = bool(width.any())
        return Column(
            key, laid.row[kept], code.astype(np.int32), list(distinct),
            numbers if has_slots else None, base if has_slots else None,
        ).in_order()  # fmt: skip


def _parsed(text: str, parse: Callable[[str], Cell]) -> tuple[Cell, int] | None:
    """Return a cell with slots for all numbers of its text; None if it does not have all as items."""
    with_place = with_slots(parse(text))
    if with_place is None:
        return None
    slots = [
        i.value.number + with_place[1] for i in with_place[0].items if isinstance(i.value, Slot)
    ]
    return with_place if sorted(slots) == sorted(slots_in(text)) else None


def width_of(cell: Cell) -> int:
    """Return how many numbers from the row's base on a cell may refer to."""
    return max((i.value.number + 1 for i in cell.items if isinstance(i.value, Slot)), default=0)


def filled(text: str, first: int, numbers: Numbers) -> str:
    """Return a text of a probe with the numbers of a piece, the first of which is given."""
    return _PROBE_DIGITS.sub(lambda match: numbers.text(first + int(match[0]) - _PROBE), text)


def _joined(pieces: list[Column]) -> Column:
    """Join parts of a column, of different rows."""
    if len(pieces) == 1:
        return pieces[0]
    laid, single = pieces
    distinct = {cell: code for code, cell in enumerate(laid.distinct)}
    number = np.array([distinct.setdefault(c, len(distinct)) for c in single.distinct], np.int32)
    row = np.concatenate([laid.row, single.row])
    code = np.concatenate([laid.code, number[single.code]])
    order = np.argsort(row, kind="stable")
    base = None
    if laid.base is not None:
        base = np.concatenate([laid.base, np.zeros(len(single.row), np.int64)])[order]
    return Column(laid.key, row[order], code[order], list(distinct), laid.numbers, base).in_order()
