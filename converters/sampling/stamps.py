"""Timestamps of rows as they are written, each different one once, and seconds and their fractions apart.

A tool that samples ten times a second writes other digits in each row, but only the last ones: the
text before them is the same in many rows, and is parsed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, Bytes, arrow, gather
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.arrays.interning import (
    TextTable,
    empty_text_table,
    enlarged_text_table,
    intern_text,
)
from chopper_interop.converters.sampling.timestamps import SECOND, nanoseconds

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows

_DIGITS, _SECONDS = 10, 4
"""One more than the digits of a fraction and of seconds that are split off: these and the number of a
text are one number."""
_EPOCH_SECONDS, _CLOCK_SECONDS = 3, 2
"""Digits of seconds that are split off a number of seconds since 1970, and off a time of day."""
_EPOCH_DIGITS = 10
"""Digits of a time of today in seconds since 1970."""
_TEXTS = 1 << 12
"""Different texts that there is room for at first (chosen: the seconds of an hour)."""
_ZERO, _NINE, _DOT, _COLON, _FOUR, _SIX = (ord(c) for c in "09.:46")


@dataclass(frozen=True)
class RowTexts:
    """Texts of rows.

    Parameters
    ----------
    code
        Text of each row: index into `distinct`.
    distinct
        The different texts, with zeros in place of the digits that were split off.
    offset_ns
        What these digits say, nanoseconds; 0 for texts that are whole.
    digits
        How many of them are a fraction, and how many are seconds in front of it: for each of `distinct`.
    """

    code: Array
    distinct: list[str]
    offset_ns: Array
    digits: Array

    def text(self, row: int) -> str:
        """Return the text of a row as it is written."""
        text, offset = self.distinct[self.code[row]], int(self.offset_ns[row])
        fraction, seconds = self.digits[self.code[row]].tolist()
        if not seconds:
            return text
        written = f"{offset // SECOND:0{seconds}d}"
        if fraction:
            written += text[-1 - fraction] + f"{offset % SECOND:09d}"[:fraction]
        return text[: len(text) - len(written)] + written


def whole_texts(texts: Sequence[str]) -> RowTexts:
    """Return texts of rows, none of which is split."""
    encoded = arrow.texts(texts).dictionary_encode()
    code = arrow.to_numpy(encoded).astype(np.int64)
    distinct = encoded.dictionary.to_pylist()
    return RowTexts(
        code, distinct, np.zeros(len(code), np.int64), np.zeros((len(distinct), 2), np.int64)
    )


def texts_of(laid: LaidRows, column: int, *, of_times: bool = False) -> RowTexts:
    """Return texts of rows that were read by layouts.

    Parameters
    ----------
    laid
        The rows.
    column
        Which of `Layout.texts`.
    of_times
        True to split seconds and their fractions off.
    """
    constants, begin, end = laid.texts(column)
    data, count = laid.data, len(end)
    code, offset_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if begin is None:
        return RowTexts(end, constants, offset_ns, np.zeros((len(constants), 2), np.int64))
    table, start = empty_text_table(_TEXTS), 0
    while True:
        start = _number_texts(data, begin, end, start, of_times, table, code, offset_ns)
        if start == count:
            break
        table = enlarged_text_table(table)
    heads = [raw.decode() for raw in table.texts(data)]
    is_constant = begin < 0
    code[is_constant] = _SECONDS * _DIGITS * (len(heads) + ~begin[is_constant])
    first, number = gather.distinct(code)
    text, split = np.divmod(code[first], _SECONDS * _DIGITS)
    digits = np.stack(np.divmod(split, _SECONDS), axis=1)
    texts = [*heads, *constants]
    distinct = [
        _with_zeros(texts[n], seconds, fraction)
        for n, (fraction, seconds) in zip(text.tolist(), digits.tolist(), strict=True)
    ]
    return RowTexts(number, distinct, offset_ns, digits)


def times_of(laid: LaidRows) -> Array:
    """Return the times of rows that were read by layouts, whose first text is seconds since 1970; nanoseconds."""
    texts = texts_of(laid, 0, of_times=True)
    known = np.array([nanoseconds(text) or 0 for text in texts.distinct], np.int64)
    return known[texts.code] + texts.offset_ns


def _with_zeros(head: str, seconds: int, fraction: int) -> str:
    return head + "0" * seconds + ("." + "0" * fraction if fraction else "")


def pasted(first: RowTexts, second: RowTexts) -> RowTexts:
    """Return texts of two parts with a blank between them; only the second may be split."""
    row, code = gather.distinct(first.code, second.code)
    a, b = first.code[row], second.code[row]
    distinct = [
        f"{first.distinct[i]} {second.distinct[j]}".strip()
        for i, j in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return RowTexts(code, distinct, second.offset_ns, second.digits[b])


def merged(laid: RowTexts, rows: Array, others: RowTexts) -> RowTexts:
    """Return the texts of all rows: some rows', and those of the others in their order."""
    count = len(rows) + len(others.code)
    is_laid = np.zeros(count, bool)
    is_laid[rows] = True
    code, offset_ns = np.empty(count, np.int64), np.empty(count, np.int64)
    code[is_laid], code[~is_laid] = laid.code, others.code + len(laid.distinct)
    offset_ns[is_laid], offset_ns[~is_laid] = laid.offset_ns, others.offset_ns
    digits = np.concatenate([laid.digits, others.digits])
    return RowTexts(code, [*laid.distinct, *others.distinct], offset_ns, digits)


@jit_in_place
def _number_texts(  # noqa: PLR0913, PLR0917 # one loop over columns
    data: Bytes, begin: Array, end: Array, start: int, of_times: bool,  # noqa: FBT001
    table: TextTable, code: Array, offset_ns: Array,
) -> int:  # fmt: skip
    """Number the texts of rows from `start` on; return the row before which the table was full.

    The code of a text is its number, the number of digits of the fraction and of the seconds that were
    split off behind it, each a digit of a number of mixed base.
    """
    known, known_at, known_length = np.int64(0), np.int64(0), np.int64(-1)
    for row in range(start, len(begin)):
        if begin[row] < 0:
            continue
        low, stop, fraction, seconds = begin[row], end[row], 0, 0
        if of_times:
            fraction, seconds = _digits_of_seconds(data, low, stop)
        point = stop - fraction - (1 if fraction else 0)
        length, number = point - seconds - low, known
        is_known = length == known_length  # that of the row above, as in most rows
        for k in range(length if is_known else 0):
            is_known &= data[low + k] == data[known_at + k]
        if not is_known:
            number = np.int64(intern_text(data, low, point - seconds, table))
            if number < 0:
                return row
            known, known_at, known_length = number, low, length
        code[row] = (_DIGITS * number + fraction) * _SECONDS + seconds
        value = np.int64(0)
        for at in range(point - seconds, point):
            value = 10 * value + np.int64(data[at]) - _ZERO
        for at in range(point + 1, point + _DIGITS):
            value = 10 * value + (np.int64(data[at]) - _ZERO if at < stop else 0)
        offset_ns[row] = value if seconds else 0
    return len(begin)


@jit_in_place
def _digits_of_seconds(data: Bytes, low: int, stop: int) -> tuple[int, int]:
    """Count the digits of a time that are a fraction of a second and seconds; 0 and 0 if it is none.

    What stands before them is ``…:``, or seven digits below 4 · 10⁶ that with three more are seconds
    since 1970: there they mean the same whatever they are, but for a leap second.
    """
    point = stop
    while point > low and _ZERO <= data[point - 1] <= _NINE:
        point -= 1
    fraction = 0
    if stop - _DIGITS < point < stop and point > low and data[point - 1] == _DOT:
        fraction, point = stop - point, point - 1
    else:
        point = stop
    count = 0
    while count < point - low and _ZERO <= data[point - 1 - count] <= _NINE:
        count += 1
    if count == point - low and count == _EPOCH_DIGITS and data[low] < _FOUR:
        return fraction, _EPOCH_SECONDS
    if count == _CLOCK_SECONDS and point - low > count and data[point - 1 - count] == _COLON:
        return (fraction, _CLOCK_SECONDS) if data[point - count] < _SIX else (0, 0)
    return 0, 0
