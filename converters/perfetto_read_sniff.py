"""Whether a file is a Perfetto trace, by the fields of its first packets."""

from __future__ import annotations

_FIRST_PACKETS = 32
_TELLING = frozenset({1, 2, 6, 11, 33, 35, 36, 43, 44, 45, 50, 60, 69, 89, 133})
"""Payloads that traces begin with."""


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a Perfetto trace, by the fields of its first packets."""
    if head[:1] != b"\n":
        return False
    at, told = 0, False
    for _ in range(_FIRST_PACKETS):
        if at >= len(head):
            break
        field = _field(head, at)
        if field is None or field[:2] != (1, 2):
            return told and field is None and at > 0
        _, _, begin, end = field
        fields = _packet_fields(head[begin : min(end, len(head))], whole=end <= len(head))
        if fields is None:
            return told  # damaged, if there was a sound packet before
        told = told or bool(fields & _TELLING)
        at = end
    return told


def _packet_fields(raw: bytes, *, whole: bool) -> set[int] | None:
    """Numbers of a packet's fields; None if it is none."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    types = messages.TracePacket.DESCRIPTOR.fields_by_number
    found: set[int] = set()
    at = 0
    while at < len(raw):
        field = _field(raw, at)
        if field is None or (field[3] > len(raw) and whole):
            return None if whole else found
        number, wire, _, at = field
        known = types.get(number)
        expected = 2 if known is None or known.message_type or known.type in (9, 12) else 0
        if known is not None and known.type in (1, 6, 16):
            expected = 1
        if wire != expected:
            return None
        found.add(number)
    return found


def _field(raw: bytes, at: int) -> tuple[int, int, int, int] | None:
    """Number, wire type, begin and end of a field; None if there is none."""
    key, at = _varint(raw, at)
    if at < 0 or key >> 3 == 0:
        return None
    wire = key & 7
    if wire == 0:
        _, end = _varint(raw, at)
        return None if end < 0 else (key >> 3, 0, at, end)
    if wire == 2:  # noqa: PLR2004
        size, at = _varint(raw, at)
        return None if at < 0 else (key >> 3, 2, at, at + size)
    sizes = {1: 8, 5: 4}
    return (key >> 3, wire, at, at + sizes[wire]) if wire in sizes else None


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:  # noqa: PLR2004 - ten bytes
        value |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:  # noqa: PLR2004
            return value, at
        shift += 7
    return 0, -1
