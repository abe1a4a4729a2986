"""Framing of the first packets of a trace, field by field, for a quick look at a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
_PACKET = 1
"""The field of a trace that is a packet."""


def packets_of_head(head: bytes, number: int) -> Iterator[bytes]:
    """Yield the complete packets among the first bytes of a trace that have a field `number`."""
    at = 0
    while at < len(head):
        packet = wire_field(head, at)
        if packet is None or packet[:2] != (_PACKET, LENGTH) or packet[3] > len(head):
            return
        raw = head[packet[2] : packet[3]]
        if number in _numbers(raw):
            yield raw
        at = packet[3]


def _numbers(raw: bytes) -> set[int]:
    numbers, at = set(), 0
    while at < len(raw):
        field = wire_field(raw, at)
        if field is None:
            break
        numbers.add(field[0])
        at = field[3]
    return numbers


def wire_field(raw: bytes, at: int) -> tuple[int, int, int, int] | None:
    """Number, wire type, begin and end of a field; None if there is none."""
    key, at = _varint(raw, at)
    if at < 0 or key >> 3 == 0:
        return None
    wire = key & 7
    if wire == VARINT:
        _, end = _varint(raw, at)
        return None if end < 0 else (key >> 3, wire, at, end)
    if wire == LENGTH:
        size, at = _varint(raw, at)
        return None if at < 0 else (key >> 3, wire, at, at + size)
    sizes = {FIXED64: 8, FIXED32: 4}
    return (key >> 3, wire, at, at + sizes[wire]) if wire in sizes else None


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and the offset behind it; -1 if it does not end."""
    value = shift = 0
    while at < len(raw) and shift < 70:  # noqa: PLR2004 - ten bytes
        value |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:  # noqa: PLR2004
            return value, at
        shift += 7
    return 0, -1
