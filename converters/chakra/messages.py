"""Protobuf messages one by one in plain Python: for what is rare or small, such as metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array

    Fields = list[tuple[int, int, int | bytes]]

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
"""Wire types."""
_CONTINUES = 128
"""Bit of a varint's byte that is set in all but the last."""


def fields(raw: bytes) -> Fields:
    """Fields of a message: number, wire type, value; raises `ValueError` if it is no message."""
    parsed: Fields = []
    i = 0
    while i < len(raw):
        key, i = read_varint(raw, i)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value: int | bytes
            value, i = read_varint(raw, i)
        elif wire in (EIGHT_BYTES, FOUR_BYTES, LENGTH):
            if wire == LENGTH:
                size, i = read_varint(raw, i)
            else:
                size = 8 if wire == EIGHT_BYTES else 4
            if size > len(raw) - i:
                raise ValueError("a field runs over the end")
            value, i = raw[i : i + size], i + size
        else:
            raise ValueError(f"wire type {wire}")
        if not number:
            raise ValueError("field 0")
        parsed.append((number, wire, value))
    return parsed


def split_messages(buffer: Array) -> Iterator[tuple[bytes, int]]:
    """Messages of a file, each after its length, up to the first that is cut short, and where each ends."""
    i, n = 0, len(buffer)
    while i < n:
        head = bytes(buffer[i : i + 10])
        try:
            size, width = read_varint(head, 0)
        except ValueError:
            return
        i += width
        if size > n - i:
            return
        i += size
        yield bytes(buffer[i - size : i]), i


def read_varint(raw: bytes, i: int) -> tuple[int, int]:
    """Value of the varint at `i`, as 64 bits, and the index after it; `ValueError` if cut short."""
    value = 0
    for shift in range(0, 70, 7):
        if i >= len(raw):
            break
        byte = raw[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < _CONTINUES:
            return value & ((1 << 64) - 1), i
    raise ValueError("a number does not end")


def length_prefix(size: int) -> bytes:
    """Varint that goes before a message of so many bytes."""
    out = bytearray()
    while size >= _CONTINUES:
        out.append(size & 127 | _CONTINUES)
        size >>= 7
    return bytes([*out, size])
