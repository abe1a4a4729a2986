"""Pieces of the wire format of protobuf, for files that no library writes."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Encode a number as protobuf does."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def framed(*parts: bytes) -> bytes:
    """Put messages into one file as Chakra has them: each after its length."""
    return b"".join(varint(len(part)) + part for part in parts)
