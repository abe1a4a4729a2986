"""Protocol buffers' wire format in numba: what coders of hot messages are made of.

Functions that write do so at `i` of a byte array and give the offset behind what they wrote; the
callers see to it that there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types."""


def tag(field: int, wire_type: int) -> int:
    """The number that goes before a field's value."""
    return field << 3 | wire_type


@jit
def varint(out: Bytes, i: int, value: int) -> int:
    """A varint; negative numbers take ten bytes, as int64 does."""
    rest = np.uint64(value)
    while rest >= np.uint64(128):
        out[i] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        i += 1
    out[i] = np.uint8(rest)
    return i + 1


@jit
def padded(out: Bytes, i: int, size: int, value: int) -> None:
    """A varint that takes `size` bytes, more than it needs: for lengths known afterwards."""
    rest = np.uint64(value)
    for k in range(size - 1):
        out[i + k] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
    out[i + size - 1] = np.uint8(rest)


@jit
def varint_size(value: int) -> int:
    """Bytes that `varint` takes."""
    rest, size = np.uint64(value) >> np.uint64(7), 1
    while rest:
        rest >>= np.uint64(7)
        size += 1
    return size


@jit
def fixed64(out: Bytes, i: int, value: int) -> int:
    """Eight bytes, little end first."""
    rest = np.uint64(value)
    for k in range(8):
        out[i + k] = np.uint8(rest & np.uint64(255))
        rest >>= np.uint64(8)
    return i + 8


@jit
def copied(out: Bytes, i: int, data: Bytes, start: int, stop: int) -> int:
    """Bytes as they are."""
    # an index that cannot be below 0 is not asked whether it is: the loop becomes one of words
    source, target = np.uint64(start), np.uint64(i)
    for k in range(np.uint64(stop - start)):
        out[target + k] = data[source + k]
    return i + stop - start


@jit
def number(out: Bytes, i: int, key: int, value: int) -> int:
    """A field of an integer type, `key` being its tag."""
    return varint(out, varint(out, i, key), value)


@jit
def text(out: Bytes, i: int, key: int, data: Bytes, start: int, stop: int) -> int:
    """A field of bytes or text, `key` being its tag."""
    i = varint(out, varint(out, i, key), stop - start)
    return copied(out, i, data, start, stop)


@jit
def varint_at(buffer: Bytes, i: int, stop: int) -> tuple[np.uint64, int]:
    """The varint at `i` and the offset behind it; -1 if it does not end."""
    if i < stop and buffer[i] < 128:  # tags, lengths and most values
        return np.uint64(buffer[i]), i + 1
    value, shift = np.uint64(0), np.uint64(0)
    while i < stop and shift < np.uint64(70):
        byte = np.uint64(buffer[i])
        value |= (byte & np.uint64(127)) << shift
        i += 1
        if byte < np.uint64(128):
            return value, i
        shift += np.uint64(7)
    return np.uint64(0), -1


@jit
def field_at(buffer: Bytes, i: int, stop: int) -> tuple[int, int, np.uint64, int, int]:
    """The field at `i`: number, wire type, value, where it begins, the offset behind it (or -1).

    The value is that of a varint or of fixed bytes; of what has a length, the length.
    """
    key, i = varint_at(buffer, i, stop)
    number, wire = np.int64(key >> np.uint64(3)), np.int64(key & np.uint64(7))
    value = np.uint64(0)
    if i < 0 or number == 0:
        return number, wire, value, 0, -1
    if wire == 0:
        value, end = varint_at(buffer, i, stop)
        return number, wire, value, i, end
    if wire == 2:
        value, i = varint_at(buffer, i, stop)
        if i < 0 or value > np.uint64(stop - i):
            return number, wire, value, i, -1
        return number, wire, value, i, i + np.int64(value)
    if wire in (1, 5):
        size = 8 if wire == 1 else 4
        if i + size > stop:
            return number, wire, value, i, -1
        for k in range(size):
            value |= np.uint64(buffer[i + k]) << np.uint64(8 * k)
        return number, wire, value, i, i + size
    return number, wire, value, i, -1


@jit
def fixed64_at(buffer: Bytes, i: int) -> np.uint64:
    """The eight bytes at `i` as a number."""
    value = np.uint64(0)
    for k in range(8):
        value |= np.uint64(buffer[i + k]) << np.uint64(8 * k)
    return value


@jit
def real_of(bits: np.uint64) -> float:
    """The double that these bits are."""
    box = np.empty(1, np.uint64)
    box[0] = bits
    return box.view(np.float64)[0]
