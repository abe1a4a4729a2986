"""Arguments of nodes: one JSON object for each row, encoded from columns.

Two compiled passes over the rows, one to measure and one to write, so that the text is allocated once at its
full size. Names and texts are escaped once for each distinct one. Rows whose arguments are long and equal share
one object: a text that many calls refer to is in a database once, and so it is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from chopper_interop.arrays import Array, Bytes, arrow, gather
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.rocm import json_texts
from chopper_interop.converters.rocm.json_texts import TextBytes
from chopper_interop.converters.rocm.tables import COLUMNS
from chopper_interop.io import wire
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.converters.rocm.rows import TableRows

SHORTENED = Fault.loss(
    "shared-text-shortened",
    "A long text that very many rows share is whole in the first of them, and cut in the others.",
)

_OPEN, _CLOSE, _COMMA, _MINUS, _ZERO = b"{},-0"
_BLOCK_ROWS = 1 << 16
"""Rows that are encoded at once. Chosen: bounds the memory of their stacked columns, and spreads the
cost of a call over many rows."""
_LONG = 1 << 12
"""Bytes from which equal objects are stored once. Chosen: longer than the arguments of nearly all calls, so
that comparing rows costs little."""
_COPIES, _ROOM = 4, 1 << 28
"""Bytes that long objects of all rows may have in sum: so many times their texts, and so many more. Chosen: outputs go
through the object of each row, or copy it, so that their time and memory stay in proportion to the file; a quarter of
a gigabyte takes a second."""
_SHORT = 1000
"""Characters of a text that is cut (chosen: a message's)."""
_KNOWN_COLUMNS = frozenset(COLUMNS.values())
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_IN_NO_NUMBER = "[!-,/:-~]"
"""Characters of ASCII that no number has, nor white space around it."""
_AGENTS = frozenset({"agent", "source_agent", "destination_agent"})


@dataclass(frozen=True)
class _ArgumentColumn:
    """One value of each row's arguments.

    Parameters
    ----------
    before, after
        Text around the value.
    value
        The number or, if there are `texts`, the index of one of them.
    known
        Whether the value is known, so that it is written.
    texts
        JSON texts of values; None for numbers.
    continues
        Whether it continues the list that the column before it began. Both are known in the same
        rows.
    is_raw
        Whether each row has a text of its own, equal ones or not.
    """

    before: bytes
    after: bytes
    value: Array
    known: Array
    texts: TextBytes | None = None
    continues: bool = False
    is_raw: bool = False

    def take(self, rows: Array) -> _ArgumentColumn:
        """Return the values of some rows."""
        return replace(self, value=self.value[rows], known=self.known[rows])

    def with_distinct_texts(self) -> _ArgumentColumn:
        """Return the column with each text once."""
        if self.texts is None or not self.is_raw:
            return self
        coded = arrow.encoded(self.texts.column())
        value, texts = arrow.to_numpy(coded).astype(np.int64), TextBytes.of_column(coded.dictionary)
        return replace(self, value=value, texts=texts, is_raw=False)

    def shortened(self, rows: Array) -> _ArgumentColumn:
        """Return the column with long texts cut in some rows, but for the first row of each text."""
        if self.texts is None or not (is_long := self.texts.lengths > _LONG).any():
            return self
        users = np.flatnonzero(self.known & is_long[np.where(self.known, self.value, 0)])
        _, first = np.unique(self.value[users], return_index=True)
        cut_rows = np.intersect1d(np.delete(users, first), np.flatnonzero(rows), assume_unique=True)
        code = np.cumsum(is_long) - 1 + len(self.texts)
        value = self.value.copy()
        value[cut_rows] = code[value[cut_rows]]
        cut = TextBytes.of([_cut(self.texts[k]) for k in np.flatnonzero(is_long).tolist()])
        return replace(self, value=value, texts=self.texts + cut)


def encode_arguments(rows: TableRows, issues: IssueLog) -> tuple[Array, Array, Array]:
    """Encode the arguments of rows that the format of their table lists.

    Parameters
    ----------
    rows
        The rows.
    issues
        Where to note texts that were cut.

    Returns
    -------
    text, at, length
        The text (bytes), and the offset and the length of each row's object in it; the length is 0
        for rows without known arguments. Equal objects may have the same offset.
    """
    columns = list(_argument_columns(rows))
    if not columns or not rows.count:
        return np.empty(0, np.uint8), np.zeros(rows.count, np.int64), np.zeros(rows.count, np.int32)
    length = _lengths(columns, rows.count)
    is_long = length > _LONG
    if is_long.any():
        columns = [column.with_distinct_texts() for column in columns]
    cut = _over_budget(columns, length)
    if cut.any():
        columns = [column.shortened(cut) for column in columns]
        before, length = length, _lengths(columns, rows.count)
        issues.add(SHORTENED, np.count_nonzero(length != before), rows.where)
    row, code = _distinct_rows(columns, is_long)
    if len(row) < rows.count:
        columns, length = [column.take(row) for column in columns], length[row]
    text, at = _written(columns, length)
    return text, at[code], length[code].astype(np.int32)


def _lengths(columns: list[_ArgumentColumn], count: int) -> Array:
    """Bytes of each row's object (int64)."""
    pool = _TextPool(columns)
    length = np.empty(count, np.int64)
    for start in range(0, count, _BLOCK_ROWS):
        value, known = _block(columns, start)
        _measure(value, known, pool.spans, pool.firsts, length[start : start + _BLOCK_ROWS])
    return length


def _written(columns: list[_ArgumentColumn], length: Array) -> tuple[Array, Array]:
    """All objects one after the other, and the offset of each."""
    pool = _TextPool(columns)
    pool_text = pool.text()
    at = np.cumsum(length) - length
    text = np.empty(int(at[-1]) + int(length[-1]), np.uint8)
    for start in range(0, len(length), _BLOCK_ROWS):
        value, known = _block(columns, start)
        _write(value, known, pool.spans, pool.firsts, pool_text, text[at[start] :])
    return text, at


def _distinct_rows(columns: list[_ArgumentColumn], is_long: Array) -> tuple[Array, Array]:
    """Rows to encode, all but repeated long ones; and for each row, which of them is equal to it."""
    long = np.flatnonzero(is_long)
    row = np.arange(len(is_long))
    keys = [key for c in columns for key in (np.where(c.known, c.value, 0)[long], c.known[long])]
    first, code = gather.distinct(*keys) if len(long) else (long, long)
    if len(first) == len(long):
        return row, row
    row[long] = long[first[code]]
    kept, place = np.unique(row, return_inverse=True)
    return kept, place.reshape(-1)


def _over_budget(columns: list[_ArgumentColumn], length: Array) -> Array:
    """Mask of the long rows for which there is no room: objects of all rows may take a multiple of their texts."""
    texts = sum(len(column.texts.data) for column in columns if column.texts is not None)
    is_long = length > _LONG
    return is_long & (np.cumsum(np.where(is_long, length, 0)) > _COPIES * texts + _ROOM)


def _argument_columns(rows: TableRows) -> Iterator[_ArgumentColumn]:
    for key, names in rows.form.args:
        title = msgspec.json.encode(key) + b":"
        present = [column for name in names if (column := _values(rows, name)) is not None]
        if len(present) < len(names):
            continue
        if len(present) == 1:
            yield replace(present[0], before=title)
            continue
        all_known = np.logical_and.reduce([column.known for column in present])
        for i, column in enumerate(present):
            before = b"," if i else title + b"["
            after = b"]" if i == len(present) - 1 else b""
            yield replace(column, before=before, after=after, known=all_known, continues=bool(i))
    listed = _KNOWN_COLUMNS.union(*(names for _, names in rows.form.args))
    for name in (c for c in rows.texts if c not in listed and not c.startswith("#")):
        extra = _values(rows, name)
        if extra is not None:
            yield replace(extra, before=msgspec.json.encode(name) + b":")
    for key, ready in rows.raw.items():
        texts = TextBytes.of_column(ready)
        before = msgspec.json.encode(key) + b":"
        yield _ArgumentColumn(
            before, b"", np.arange(len(texts)), texts.lengths > 0, texts, is_raw=True
        )


def _values(rows: TableRows, column: str) -> _ArgumentColumn | None:
    if column in rows.numbers:
        # as they are, also where unknown: those are not looked at
        return _ArgumentColumn(b"", b"", rows.numbers[column], rows.is_known(column))
    if column not in rows.texts:
        return None
    coded = rows.texts[column]
    codes, texts = arrow.to_numpy(coded, -1), TextBytes.of_column(coded.dictionary)
    known = np.append(texts.lengths > 0, False)[codes]
    as_number = column in _AGENTS or column not in _KNOWN_COLUMNS
    encoded = _with_numbers(texts, coded.dictionary) if as_number else json_texts.quoted(texts)
    return _ArgumentColumn(b"", b"", np.maximum(codes, 0), known, encoded)


def _with_numbers(texts: TextBytes, column: pa.Array) -> TextBytes:
    """Texts as JSON, those that are numbers as numbers."""
    maybe = np.flatnonzero(~arrow.to_numpy(arrow.matches(column, _IN_NO_NUMBER)))
    plain = [texts[k].decode().strip() for k in maybe.tolist()]
    is_number = [_NUMBER.fullmatch(text) is not None for text in plain]
    encoded = json_texts.quoted(texts)
    numbers = TextBytes.of(
        [t.encode() for t, number in zip(plain, is_number, strict=True) if number]
    )
    return encoded.with_replaced(maybe[is_number], numbers)


def _cut(value: bytes) -> bytes:
    """Begin of a text as a text, both in JSON; of another value, that of its JSON."""
    text = msgspec.json.decode(value) if value.startswith(b'"') else value.decode(errors="replace")
    return msgspec.json.encode(f"{text[:_SHORT]}…")


def _block(columns: list[_ArgumentColumn], start: int) -> tuple[Array, Array]:
    stop = start + _BLOCK_ROWS
    # stacked by column, as they lie in memory: stacking by row would interleave them
    value = np.stack([c.value[start:stop] for c in columns], dtype=np.int64, casting="unsafe")
    known = np.stack([c.known[start:stop] for c in columns])
    return value.T, known.T


class _TextPool:
    """All text that is not a number, as if in one buffer.

    Parameters
    ----------
    columns
        The columns.

    Attributes
    ----------
    spans
        Begin and end of texts in the buffer: for each column the text before its value, the text after
        it, and then the texts of its values.
    firsts
        For each column: the first of its rows in `spans`, the number of its values' texts (0 for
        numbers), and whether it continues a list.
    """

    def __init__(self, columns: list[_ArgumentColumn]) -> None:
        self._parts = [
            part
            for column in columns
            for part in (TextBytes.of([column.before, column.after]), column.texts)
            if part is not None
        ]
        counts = [0 if column.texts is None else len(column.texts) for column in columns]
        rows = np.cumsum([0, *(2 + count for count in counts)])[:-1]
        self.firsts = np.stack([rows, counts, [column.continues for column in columns]], axis=1)
        bounds = np.cumsum(np.concatenate([[0], *(part.lengths for part in self._parts)]))
        self.spans = np.stack([bounds[:-1], bounds[1:]], axis=1)

    def text(self) -> Bytes:
        """The buffer."""
        return np.concatenate([*(part.data for part in self._parts), np.zeros(1, np.uint8)])


@jit_in_place
def _measure(value: Array, known: Array, spans: Array, firsts: Array, length: Array) -> None:
    # compiled: a loop over rows and columns, with a branch for each value, which numpy lacks
    for row in range(len(value)):
        total, some = 0, False
        for column in range(value.shape[1]):
            if not known[row, column]:
                continue
            first, texts, continues = firsts[column, 0], firsts[column, 1], firsts[column, 2]
            total += spans[first, 1] - spans[first, 0] + spans[first + 1, 1] - spans[first + 1, 0]
            total += 1 if some and not continues else 0
            some = True
            if texts:
                span = spans[first + 2 + value[row, column]]
                total += span[1] - span[0]
            else:
                total += _digits(value[row, column])
        length[row] = total + 2 if some else 0


@jit_in_place
def _write(
    value: Array, known: Array, spans: Array, firsts: Array, pool: Array, out: Array
) -> None:
    # compiled: where a row is written depends on the lengths of all values before it
    i = 0
    for row in range(len(value)):
        begin = i
        for column in range(value.shape[1]):
            if not known[row, column]:
                continue
            first, texts, continues = firsts[column, 0], firsts[column, 1], firsts[column, 2]
            if i == begin or not continues:
                out[i] = _OPEN if i == begin else _COMMA
                i += 1
            i = wire.copy_bytes(out, i, pool, spans[first, 0], spans[first, 1])
            if texts:
                span = spans[first + 2 + value[row, column]]
                i = wire.copy_bytes(out, i, pool, span[0], span[1])
            else:
                i = _decimal(out, i, value[row, column])
            i = wire.copy_bytes(out, i, pool, spans[first + 1, 0], spans[first + 1, 1])
        if i > begin:
            out[i] = _CLOSE
            i += 1


@jit_in_place
def _digits(value: int) -> int:
    """Return the number of characters of an integer."""
    size = 2 if value < 0 else 1
    rest = np.uint64(-value if value < 0 else value) // np.uint64(10)
    while rest:
        rest //= np.uint64(10)
        size += 1
    return size


@jit_in_place
def _decimal(out: Array, i: int, value: int) -> int:
    """Write an integer, and return the offset after it."""
    size = _digits(value)
    rest = np.uint64(-value if value < 0 else value)
    if value < 0:
        out[i] = _MINUS
    at = i + size - 1
    while True:
        out[at] = np.uint8(_ZERO) + np.uint8(rest % np.uint64(10))
        rest //= np.uint64(10)
        at -= 1
        if not rest:
            return i + size
