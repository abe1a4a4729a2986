"""Wire format of protocol buffers in numba: building blocks of encoders and decoders.

Functions that write do so at offset `i` of a byte array and return the offset behind what they
wrote; callers make sure that there is room.

::

    field    tag | value                    tag = number << 3 | wire type
    text     tag | length | bytes           a varint has 7 bits a byte, the lowest first;
    number   tag | varint                   its last byte is below 128
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types."""


def tag(field: int, wire_type: int) -> int:
    """Return the number that precedes a field's value."""
    return field << 3 | wire_type


@jit_in_place
def write_varint(out: Bytes, i: int, value: int) -> int:
    """Write a varint; a negative number takes ten bytes, as int64 does."""
    rest = np.uint64(value)
    while rest >= np.uint64(128):
        out[i] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        i += 1
    out[i] = np.uint8(rest)
    return i + 1


@jit_in_place
def write_padded_varint(out: Bytes, i: int, size: int, value: int) -> None:
    """Write a varint in exactly `size` bytes, more than it needs: for lengths known afterwards."""
    rest = np.uint64(value)
    for k in range(size - 1):
        out[i + k] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
    out[i + size - 1] = np.uint8(rest)


@jit_in_place
def varint_size(value: int) -> int:
    """Return how many bytes `write_varint` needs."""
    rest, size = np.uint64(value) >> np.uint64(7), 1
    while rest:
        rest >>= np.uint64(7)
        size += 1
    return size


@jit_in_place
def write_fixed64(out: Bytes, i: int, value: int) -> int:
    """Write eight bytes, the lowest first."""
    rest = np.uint64(value)
    for k in range(8):
        out[i + k] = np.uint8(rest & np.uint64(255))
        rest >>= np.uint64(8)
    return i + 8


@jit_in_place
def copy_bytes(out: Bytes, i: int, data: Bytes, start: int, stop: int) -> int:
    """Copy data[start:stop]."""
    # an unsigned index is not checked for being negative: the loop is compiled to one of words
    source, target = np.uint64(start), np.uint64(i)
    for k in range(np.uint64(stop - start)):
        out[target + k] = data[source + k]
    return i + stop - start


@jit_in_place
def write_number(out: Bytes, i: int, key: int, value: int) -> int:
    """Write a field of an integer type, `key` being its tag."""
    return write_varint(out, write_varint(out, i, key), value)


@jit_in_place
def write_text(out: Bytes, i: int, key: int, data: Bytes, start: int, stop: int) -> int:
    """Write a field of bytes or text, data[start:stop], `key` being its tag."""
    i = write_varint(out, write_varint(out, i, key), stop - start)
    return copy_bytes(out, i, data, start, stop)


@jit_in_place
def begin_text(i: int, key: int) -> int:
    """Return where the bytes of a field at `i` begin if they are fewer than 128, as most are; `end_text` ends it."""
    return i + varint_size(key) + 1


@jit_in_place
def end_text(out: Bytes, i: int, key: int, stop: int) -> int:
    """Complete a field at `i` whose bytes, up to `stop`, were written from `begin_text` on.

    So a message is written where it stays, though its length precedes it; a long one moves by some bytes.
    """
    begin = begin_text(i, key)
    size = stop - begin
    more = varint_size(size) - 1
    if more:
        for k in range(size):
            out[stop + more - 1 - k] = out[stop - 1 - k]
    write_varint(out, write_varint(out, i, key), size)
    return stop + more


_MAX_FIELD = (1 << 29) - 1
"""Highest number of a field, as protobuf defines it; a higher one, cut to 32 bits, could seem another field's."""


@jit_in_place
def read_varint(buffer: Bytes, i: int, stop: int) -> tuple[np.uint64, int]:
    """Return the varint at `i` and the offset behind it; -1 if it does not end."""
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


@jit_in_place
def read_field(buffer: Bytes, i: int, stop: int) -> tuple[int, int, np.uint64, int, int]:
    """Return the field at `i`: number, wire type, value, offset of the value, offset behind it.

    The value is that of a varint or of fixed bytes; for bytes or text it is their length. The
    offset behind is -1 if the field is damaged.
    """
    key, i = read_varint(buffer, i, stop)
    number, wire = np.int64(key >> np.uint64(3)), np.int64(key & np.uint64(7))
    value = np.uint64(0)
    if i < 0 or not 0 < number <= _MAX_FIELD:
        return number, wire, value, 0, -1
    if wire == 0:
        value, end = read_varint(buffer, i, stop)
        return number, wire, value, i, end
    if wire == 2:
        value, i = read_varint(buffer, i, stop)
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


@jit_in_place
def read_fixed64(buffer: Bytes, i: int) -> np.uint64:
    """Return the eight bytes at `i` as a number, the lowest first."""
    value = np.uint64(0)
    for k in range(8):
        value |= np.uint64(buffer[i + k]) << np.uint64(8 * k)
    return value


@jit_in_place
def double_from_bits(bits: np.uint64) -> float:
    """Return the double of these 64 bits."""
    return np.uint64(bits).view(np.float64)


@jit_in_place
def next_number(
    buffer: Bytes,
    i: int,
    stop: int,
    wire: int,
    value: np.uint64,
    fixed: bool,  # noqa: FBT001 # compiled functions take no keywords
) -> tuple[np.uint64, int]:
    """Return the next number of a repeated field, and the offset behind it; -1 if it is cut short.

    `wire` and `value` are those of the field, buffer[i:stop] its content: one number, or a packed list of
    varints or, if `fixed`, of eight bytes each.
    """
    if wire != LENGTH:
        return value, stop
    if not fixed:
        return read_varint(buffer, i, stop)
    if i + 8 > stop:
        return value, -1
    return read_fixed64(buffer, i), i + 8


@jit_in_place
def next_message(buffer: Bytes, i: int, stop: int, field: int) -> tuple[int, int, int]:
    """Return the next field of that number that has a length: its range, and the offset behind.

    The offset is -1 if there is none, or what is before it is damaged.
    """
    while i < stop:
        number, wire, _, begin, i = read_field(buffer, i, stop)
        if i < 0:
            break
        if number == field and wire == LENGTH:
            return begin, i, i
    return 0, 0, -1


@jit_in_place
def read_varints(buffer: Bytes, i: int, stop: int, values: Array, given: Array) -> bool:
    """Read the varints of a message, by the numbers of their fields; return False where it is damaged."""
    values[:], given[:] = 0, False
    while i < stop:
        number, wire, value, _, i = read_field(buffer, i, stop)
        if i < 0:
            return False
        if wire == VARINT and number < len(values):
            values[number], given[number] = value, True
    return True
