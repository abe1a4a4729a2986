"""Texts as JSON, many at a time: columns of Arrow in, the bytes of all one after the other out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from chopper_interop.arrays import Array, Bytes, arrow
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io import wire

if TYPE_CHECKING:
    import pyarrow as pa

_OPEN, _CLOSE, _COMMA, _COLON, _QUOTE = b'{},:"'
_NULL, _NULL_SIZE = tuple(b"null"), len(b"null")
_ASCII = 1 << 7
"""Bytes from here on are parts of other characters, in UTF-8."""
_ESCAPED = [msgspec.json.encode(chr(code))[1:-1] for code in range(_ASCII)]
_ESCAPES = np.frombuffer(bytearray(b"".join(_ESCAPED)), np.uint8)
"""Each character of ASCII as a text of JSON has it, one after the other; all others are written as they are."""
_ESCAPE_BOUNDS = np.cumsum([0, *map(len, _ESCAPED)])
"""Begin of each in `_ESCAPES`, and the end of the last."""


@dataclass(frozen=True)
class TextBytes:
    """Texts one after the other.

    Parameters
    ----------
    data
        Their bytes.
    bounds
        Begin of each in `data`, and the end of the last.
    """

    data: Bytes
    bounds: Array

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> TextBytes:
        """Texts of Python."""
        data = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
        return cls(data, np.cumsum([0, *map(len, texts)]))

    @classmethod
    def of_column(cls, column: pa.Array) -> TextBytes:
        """Texts or bytes of an Arrow array; null is an empty one. Nothing is copied but what their bounds take."""
        _, offsets, data = column.buffers()
        kind = np.int64 if str(column.type).startswith("large") else np.int32
        if offsets is None or not len(column):
            return cls.of([b""] * len(column))
        bounds = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1]
        octets = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
        return cls(octets, bounds.astype(np.int64) - bounds[0])

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> bytes:
        return bytes(self.data[self.bounds[number] : self.bounds[number + 1]])

    def __add__(self, other: TextBytes) -> TextBytes:
        data = np.concatenate([self.data, other.data])
        return TextBytes(data, np.append(self.bounds, other.bounds[1:] + self.bounds[-1]))

    def with_replaced(self, numbers: Array, others: TextBytes) -> TextBytes:
        """The texts with others in place of some, which are given by their numbers."""
        if not len(numbers):
            return self
        source = np.arange(len(self))
        source[numbers] = len(self) + np.arange(len(others))
        return TextBytes.of_column(arrow.take((self + others).column(), source))

    @property
    def lengths(self) -> Array:
        """Bytes of each."""
        return np.diff(self.bounds)

    def column(self, kind: pa.DataType | None = None) -> pa.Array:
        """The texts as an Arrow array, of ``large_binary`` if not of another type; not copied but for their bounds."""
        import pyarrow as pa

        kind = pa.large_binary() if kind is None else kind
        bounds = self.bounds.astype(np.int64 if str(kind).startswith("large") else np.int32)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(kind, len(self), buffers)


def quoted(texts: TextBytes, known: Array | None = None) -> TextBytes:
    """Each text as JSON; one that is not known as null."""
    known = np.ones(len(texts), bool) if known is None else known
    data = np.require(texts.data, requirements="W")  # of others the loops would be compiled again
    bounds = np.zeros(len(texts) + 1, np.int64)
    _measure(data, texts.bounds, known, _ESCAPE_BOUNDS, bounds)
    np.cumsum(bounds, out=bounds)
    out = np.empty(int(bounds[-1]), np.uint8)
    _write(data, texts.bounds, known, _ESCAPES, _ESCAPE_BOUNDS, out)
    return TextBytes(out, bounds)


def objects(names: TextBytes, values: TextBytes, first: Array) -> TextBytes:
    """JSON objects of names and values.

    Parameters
    ----------
    names, values
        As JSON, those of one object behind those of the other.
    first
        First row of each object, and behind the last one the number of rows.
    """
    # {name:value,name:value}   two bytes more for each pair, and one for each object
    bounds = (names.bounds + values.bounds)[first] + 2 * first + np.arange(len(first))
    out = np.empty(int(bounds[-1]), np.uint8)
    _join(names.data, names.bounds, values.data, values.bounds, first, out)
    return TextBytes(out, bounds)


# compiled: a loop over the bytes of texts, each of which has a length of its own
@jit_in_place
def _measure(data: Bytes, bounds: Array, known: Array, escape_bounds: Array, sizes: Array) -> None:
    for k in range(len(known)):
        size = _NULL_SIZE
        if known[k]:
            size = 2 + bounds[k + 1] - bounds[k]
            for at in range(bounds[k], bounds[k + 1]):
                code = data[at]
                if code < _ASCII:
                    size += escape_bounds[code + 1] - escape_bounds[code] - 1
        sizes[k + 1] = size


# compiled: as above
@jit_in_place
def _write(
    data: Bytes, bounds: Array, known: Array, escapes: Bytes, escape_bounds: Array, out: Bytes
) -> None:
    i = 0
    for k in range(len(known)):
        if not known[k]:
            for code in _NULL:
                out[i] = code
                i += 1
            continue
        out[i] = _QUOTE
        i += 1
        for at in range(bounds[k], bounds[k + 1]):
            code = data[at]
            if code >= _ASCII or escape_bounds[code + 1] - escape_bounds[code] == 1:
                out[i] = code
                i += 1
            else:
                i = wire.copy_bytes(out, i, escapes, escape_bounds[code], escape_bounds[code + 1])
        out[i] = _QUOTE
        i += 1


# compiled: as above
@jit_in_place
def _join(
    name: Bytes, name_bounds: Array, value: Bytes, value_bounds: Array, first: Array, out: Bytes
) -> None:
    i = 0
    for k in range(len(first) - 1):
        for row in range(first[k], first[k + 1]):
            out[i] = _COMMA if row > first[k] else _OPEN
            i = wire.copy_bytes(out, i + 1, name, name_bounds[row], name_bounds[row + 1])
            out[i] = _COLON
            i = wire.copy_bytes(out, i + 1, value, value_bounds[row], value_bounds[row + 1])
        out[i] = _CLOSE
        i += 1
