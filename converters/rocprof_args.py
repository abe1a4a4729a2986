"""Arguments of nodes: one JSON object a row, made of columns.

Two passes over the rows, one to measure and one to write, so that the text is made in one piece
of the right size. Names and texts are escaped once for each distinct one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.converters.rocprof_tables import COLUMNS
from chopper_interop.files import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows

_OPEN, _CLOSE, _COMMA, _MINUS, _ZERO = b"{},-0"
_AT_ONCE = 1 << 16
_KNOWN = frozenset(COLUMNS.values())
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_AGENTS = frozenset({"agent", "source_agent", "destination_agent"})


@dataclass(frozen=True)
class _Part:
    """What stands for one value: text before it and behind it, the value, and where it is known.

    Numbers have no `pieces`; else a value is the number of one of them. A part that continues a
    list is written where the part that began it is.
    """

    before: bytes
    behind: bytes
    value: Array
    known: Array
    pieces: tuple[bytes, ...] = ()
    continues: bool = False


def objects(rows: Rows) -> tuple[Array, Array, Array]:
    """Arguments of rows, as their table says.

    Returns
    -------
    text, at, length
        The text (bytes), and where in it each row's object begins and how long it is; the length
        is 0 for rows of which nothing is known.
    """
    parts = list(_parts(rows))
    if not parts or not rows.count:
        return np.empty(0, np.uint8), np.zeros(rows.count, np.int64), np.zeros(rows.count, np.int32)
    fixed = _Fixed.of(parts)
    length = np.empty(rows.count, np.int32)
    for start in range(0, rows.count, _AT_ONCE):
        value, known = _block(parts, start)
        _measure(value, known, fixed.spans, fixed.firsts, length[start : start + _AT_ONCE])
    at = np.cumsum(length, dtype=np.int64) - length
    text = np.empty(int(at[-1]) + int(length[-1]), np.uint8)
    for start in range(0, rows.count, _AT_ONCE):
        value, known = _block(parts, start)
        _write(value, known, fixed.spans, fixed.firsts, fixed.text, text[at[start] :])
    return text, at, length


def _parts(rows: Rows) -> Iterator[_Part]:
    for key, columns in rows.form.args:
        name = msgspec.json.encode(key) + b":"
        found = [_values(rows, column) for column in columns]
        if any(part is None for part in found):
            continue
        parts = [part for part in found if part is not None]
        if len(parts) == 1:
            yield replace(parts[0], before=name)
            continue
        everywhere = np.logical_and.reduce([part.known for part in parts])
        for i, part in enumerate(parts):
            before = b"," if i else name + b"["
            behind = b"]" if i == len(parts) - 1 else b""
            yield replace(part, before=before, behind=behind, known=everywhere, continues=bool(i))
    for column in (c for c in rows.texts if c not in _KNOWN and not c.startswith("#")):
        found = [_values(rows, column)]
        yield from (replace(p, before=msgspec.json.encode(column) + b":") for p in found if p)
    for key, ready in rows.raw.items():
        has = np.array([bool(value) for value in ready])
        before = msgspec.json.encode(key) + b":"
        yield _Part(before, b"", np.arange(rows.count), has, tuple(ready))


def _values(rows: Rows, column: str) -> _Part | None:
    if column in rows.numbers:
        return _Part(b"", b"", rows.number(column), rows.is_known(column))
    if column not in rows.texts:
        return None
    codes, texts = rows.codes(column)
    given = np.array([bool(text) for text in [*texts, ""]])
    as_number = column in _AGENTS or column not in _KNOWN
    pieces = [_piece(text, as_number=as_number) for text in texts]
    return _Part(b"", b"", np.maximum(codes, 0), given[codes], tuple(pieces))


def _piece(text: str, *, as_number: bool) -> bytes:
    """A text as JSON; as a number if it is one and may be."""
    plain = text.strip()
    if as_number and _NUMBER.fullmatch(plain):
        return plain.encode()
    return msgspec.json.encode(text)


def _block(parts: list[_Part], start: int) -> tuple[Array, Array]:
    stop = start + _AT_ONCE
    # column by column, which is how they lie: rows side by side would have to be woven
    value = np.stack([part.value[start:stop] for part in parts], dtype=np.int64, casting="unsafe")
    known = np.stack([part.known[start:stop] for part in parts])
    return value.T, known.T


@dataclass(frozen=True)
class _Fixed:
    """All text that is not a number, in one buffer.

    Parameters
    ----------
    text
        The buffer.
    spans
        Begin and end of pieces in it: of each part what stands before its value and behind it,
        then its pieces.
    firsts
        For each part: row of `spans` where its own begin, how many pieces it has (0 for numbers),
        and whether it continues a list.
    """

    text: Array
    spans: Array
    firsts: Array

    @classmethod
    def of(cls, parts: list[_Part]) -> _Fixed:
        texts: list[bytes] = []
        firsts = []
        for part in parts:
            firsts.append((len(texts), len(part.pieces), int(part.continues)))
            texts += [part.before, part.behind, *part.pieces]
        bounds = np.concatenate([[0], np.cumsum([len(t) for t in texts])])
        spans = np.stack([bounds[:-1], bounds[1:]], axis=1).astype(np.int64)
        text = np.frombuffer(bytearray(b"".join(texts) or b"\0"), np.uint8)
        return cls(text, np.ascontiguousarray(spans), np.array(firsts, np.int64))


@jit
def _measure(value: Array, known: Array, spans: Array, firsts: Array, length: Array) -> None:
    for row in range(len(value)):
        total, some = 0, False
        for part in range(value.shape[1]):
            if not known[row, part]:
                continue
            first, pieces, continues = firsts[part, 0], firsts[part, 1], firsts[part, 2]
            total += spans[first, 1] - spans[first, 0] + spans[first + 1, 1] - spans[first + 1, 0]
            total += 1 if some and not continues else 0
            some = True
            if pieces:
                span = spans[first + 2 + value[row, part]]
                total += span[1] - span[0]
            else:
                total += _digits(value[row, part])
        length[row] = total + 2 if some else 0


@jit
def _write(
    value: Array, known: Array, spans: Array, firsts: Array, fixed: Array, out: Array
) -> None:
    i = 0
    for row in range(len(value)):
        begin = i
        for part in range(value.shape[1]):
            if not known[row, part]:
                continue
            first, pieces, continues = firsts[part, 0], firsts[part, 1], firsts[part, 2]
            if i == begin or not continues:
                out[i] = _OPEN if i == begin else _COMMA
                i += 1
            i = wire.copied(out, i, fixed, spans[first, 0], spans[first, 1])
            if pieces:
                span = spans[first + 2 + value[row, part]]
                i = wire.copied(out, i, fixed, span[0], span[1])
            else:
                i = _decimal(out, i, value[row, part])
            i = wire.copied(out, i, fixed, spans[first + 1, 0], spans[first + 1, 1])
        if i > begin:
            out[i] = _CLOSE
            i += 1


@jit
def _digits(value: int) -> int:
    """Characters of a whole number."""
    size = 2 if value < 0 else 1
    rest = np.uint64(-value if value < 0 else value) // np.uint64(10)
    while rest:
        rest //= np.uint64(10)
        size += 1
    return size


@jit
def _decimal(out: Array, i: int, value: int) -> int:
    """Write a whole number; the offset behind it."""
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
