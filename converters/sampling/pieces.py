"""Pieces of a text with the numbers taken out: the texts that are left are their templates.

Compiled loops over the bytes: telemetry is millions of lines of few forms, and no library reads numbers
and forms in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.arrays.interning import (
    TextTable,
    empty_text_table,
    enlarged_text_table,
    intern_hashed,
)
from chopper_interop.converters.sampling.cells import DECIMAL, INTEGER, OTHER, TextNumbers
from chopper_interop.io.json_text import byte_table

FEW = 3
"""Pieces of a template from which on it gets a layout (chosen: reading about two is what that costs)."""
WINDOW_BYTES = 1 << 22
"""Bytes of a text whose numbers are looked at at once. Chosen: their arrays take some ten times as much, which still is
little; of outputs of all GPUs, half a megabyte each, some are in it."""
NUMBER, GAP = 1, 2
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
_SPACE, _DOT, _ZERO, _LINE_FEED = (ord(c) for c in " .0\n")
_LOWER = 0x20
"""Bit by which small letters differ from capitals."""
_DEGREE, _DEGREE_END = "\N{DEGREE SIGN}".encode()
_C, _H, _M, _W, _Z = b"chmwz"


@dataclass(frozen=True)
class TextPieces:
    """Pieces of a text that follow each other, as `Scanner.scan` returns them.

    Parameters
    ----------
    begin, end
        Where each is in the text, bytes.
    template
        Its template; -1 for one of fewer than `FEW` pieces so far.
    first
        Index of its first number.
    numbers
        All their numbers.
    """

    begin: Array
    end: Array
    template: Array
    first: Array
    numbers: TextNumbers

    def text(self, piece: int) -> str:
        """Return the text of a piece."""
        return str(self.numbers.data[self.begin[piece] : self.end[piece]].tobytes(), "utf-8")


def line_windows(data: Bytes) -> Iterator[tuple[Array, Array]]:
    """Yield where the lines of a text begin and end, without their ends, some `WINDOW_BYTES` of it at a time.

    The last line may be empty: it is what follows the last line feed.
    """
    low = 0
    while True:
        stop = _behind_line_feed(data, min(low + WINDOW_BYTES, len(data)) - 1)
        part = data[low:stop]
        begin, end = (np.empty(_count_lines(part), np.int64) for _ in range(2))
        _find_lines(part, begin, end)
        begin += low
        end += low
        if stop == len(data):
            yield begin, end
            return
        yield begin[:-1], end[:-1]  # behind the last line feed the next window begins
        low = stop


def piece_windows(begin: Array, end: Array) -> Iterator[tuple[Array, Array]]:
    """Yield ranges of pieces that follow each other, some `WINDOW_BYTES` of their text at a time."""
    low = 0
    while low < len(begin):
        stop = int(np.searchsorted(end, begin[low] + WINDOW_BYTES, "right"))
        stop = max(stop, low + 1)
        yield begin[low:stop], end[low:stop]
        low = stop


@jit_in_place
def _behind_line_feed(data: Bytes, at: int) -> int:
    """Return where the line that holds a byte has ended, its line feed included."""
    while at >= 0 and at < len(data):
        if data[at] == _LINE_FEED:
            return at + 1
        at += 1
    return len(data)


@jit_in_place
def _count_lines(data: Bytes) -> int:
    """Number of line feeds, and one."""
    count = 1
    for byte in data:
        count += byte == _LINE_FEED
    return count


@jit_in_place
def _find_lines(data: Bytes, begin: Array, end: Array) -> None:
    """Set where lines begin and end. Compiled: numpy makes a mask of all bytes and three arrays of all lines."""
    line = 0
    begin[0] = 0
    for at in range(len(data)):
        if data[at] == _LINE_FEED:
            end[line] = at
            line += 1
            begin[line] = at + 1
    end[line] = len(data)


class Scanner:
    """Takes the numbers out of pieces of a text, which come in its order, and numbers their templates.

    Parameters
    ----------
    data
        The text, UTF-8.
    gaps
        True to take two spaces and more for the same, as in tables whose columns are aligned.
    """

    def __init__(self, data: Bytes, *, gaps: bool = False) -> None:
        self.data, self.gaps = data, gaps
        self.templates: list[bytes] = []
        """Texts of the templates."""
        self.sample: list[tuple[int, int]] = []
        """Where a piece of each begins and ends."""
        self._place = np.uint32 if len(data) < 1 << 32 else np.int64
        self._numbers: TextNumbers | None = None
        self._written = np.empty(len(data) + 1, np.uint8)  # pages of it are used as templates come
        self._table, self._used = empty_text_table(_TEXTS), np.zeros(1, np.int64)
        self._uses = np.zeros(0, np.int64)
        """Pieces by the entry of the table."""
        self._number = np.full(1, -1, np.int32)
        """Template by the entry; the last is that of pieces without one."""

    def scan(self, begin: Array, end: Array) -> TextPieces:
        """Take the numbers out of further pieces, which do not overlap, ascending.

        The numbers are those of these pieces until others are scanned, whose numbers take their place.
        """
        text = self.data[begin[0] : end[-1]] if len(begin) else self.data[:0]
        numbers = self._with_room_for(_count_numbers(text))
        first, entry = np.zeros(len(begin) + 1, np.int64), np.empty(len(begin), np.int32)
        start = 0
        while True:
            start = _scan(
                numbers, begin, end, start, self.gaps, first, entry, self._written, self._used, self._table
            )  # fmt: skip
            if start == len(begin):
                break
            self._table = enlarged_text_table(self._table)
        self._count(entry, begin, end)
        count = int(first[-1])
        numbers = TextNumbers(self.data, *(column[:count] for column in numbers[1:]))
        return TextPieces(begin, end, self._number[entry], first, numbers)

    def _with_room_for(self, count: int) -> TextNumbers:
        """Return arrays of so many numbers, the same for all windows, as memory that is touched first takes long."""
        if self._numbers is None or count > len(self._numbers.value):
            kinds = (np.float64, self._place, np.uint8, np.uint8)
            self._numbers = TextNumbers(self.data, *(np.empty(count, kind) for kind in kinds))
        return self._numbers

    def sample_text(self, template: int) -> str:
        """Return a piece of a template."""
        begin, end = self.sample[template]
        return str(self.data[begin:end].tobytes(), "utf-8")

    def _count(self, entry: Array, begin: Array, end: Array) -> None:
        """Count the pieces of each entry; those that now have enough of them become templates."""
        entries = int(self._table.used[0])
        uses = np.bincount(entry[entry >= 0], minlength=entries)
        uses[: len(self._uses)] += self._uses
        self._uses = uses
        number = np.full(entries + 1, -1, np.int32)
        number[: len(self._number) - 1] = self._number[:-1]
        kept = np.flatnonzero((uses >= FEW) & (number[:-1] < 0))
        number[kept] = len(self.templates) + np.arange(len(kept))
        self._number = number
        if not len(kept):
            return
        sample = np.zeros(entries + 1, np.int64)
        sample[entry[::-1]] = np.arange(len(entry))[::-1]
        at = sample[kept]
        self.sample += zip(begin[at].tolist(), end[at].tolist(), strict=True)
        view, table = self._written.data, self._table
        ranges = zip(table.start[kept].tolist(), table.length[kept].tolist(), strict=True)
        self.templates += [bytes(view[at : at + length]) for at, length in ranges]


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
    numbers: TextNumbers, begin: Array, end: Array, start: int, gaps: bool, first: Array,  # noqa: FBT001
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
                    mark, before = np.uint8(NUMBER), byte
                    k += 1
            elif gaps and byte == _SPACE and behind < stop and data[behind] == _SPACE:
                while behind < stop and data[behind] == _SPACE:
                    behind += 1
                mark, before = np.uint8(GAP), byte
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
def _parse_number(numbers: TextNumbers, at: int, stop: int, k: int) -> int:
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
    if is_part:
        unit = _unit_behind(data, behind, stop, has_point)
        is_part = unit == behind or (unit < stop and _BEHIND[data[unit]])
    if is_part or behind - at > _LONGEST or value == _UNAVAILABLE[0] or value == _UNAVAILABLE[1]:
        return -behind
    is_long = digits > (_DECIMAL_DIGITS if has_point else _DIGITS)
    is_tiny = has_point and 0.0 < value < _TINY
    numbers.value[k], numbers.at[k], numbers.length[k] = value, at, behind - at
    kind = DECIMAL if has_point else INTEGER
    numbers.kind[k] = OTHER if has_zeros or is_long or is_tiny else kind
    return behind


@jit_in_place
def _unit_behind(data: Bytes, at: int, stop: int, has_point: bool) -> int:  # noqa: FBT001
    """Return where a unit that is glued to a number ends; where it would begin if none is.

    Those that rocm-smi writes so, MHz, W and C, and no others: "5Z" belongs to a time, 0f, 1d and 3C
    to an address, 80GB to a name. A "C" is one of degrees behind a decimal point or the sign of degrees.
    """
    begin = at
    if at + 1 < stop and data[at] == _DEGREE and data[at + 1] == _DEGREE_END:
        at, has_point = at + 2, True
    elif at + 2 < stop and data[at] | _LOWER == _M:
        is_hertz = data[at + 1] | _LOWER == _H and data[at + 2] | _LOWER == _Z
        return at + 3 if is_hertz else begin
    elif at < stop and data[at] | _LOWER == _W:
        return at + 1
    is_heat = has_point and at < stop and data[at] | _LOWER == _C
    return at + 1 if is_heat else begin
