"""Perfetto traces: native protobuf with every slice at its exact time, counters, arrows.

Files are recognised by the framing of their first packets, field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

_FIRST_PACKETS = 32
"""Packets that are checked. Chosen: enough that other data does not match by chance, and quick."""
_TYPICAL_PAYLOADS = frozenset({1, 2, 6, 11, 33, 35, 36, 43, 44, 45, 50, 60, 69, 89, 133})
"""Fields of ``trace_packet.proto`` that traces begin with: descriptors, clocks, events, statistics."""
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
_PACKET = 1
"""The field of a trace that is a packet."""


def sniff(head: bytes) -> bool:
    """Recognise a Perfetto trace by the fields of its first packets.

    Parameters
    ----------
    head
        The first bytes of a file.
    """
    if head[:1] != b"\n":  # the tag of ``Trace.packet``
        return False
    at, is_typical = 0, False
    for _ in range(_FIRST_PACKETS):
        if at >= len(head):
            break
        field = wire_field(head, at)
        if field is None or field[:2] != (1, LENGTH):
            return is_typical and field is None and at > 0
        _, _, begin, end = field
        numbers = _packet_fields(head[begin : min(end, len(head))], complete=end <= len(head))
        if numbers is None:
            return is_typical  # damaged, if there was a sound packet before
        is_typical = is_typical or bool(numbers & _TYPICAL_PAYLOADS)
        at = end
    return is_typical


def _packet_fields(raw: bytes, *, complete: bool) -> set[int] | None:
    """Numbers of a packet's fields; None if it is not a packet."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    types = messages.TracePacket.DESCRIPTOR.fields_by_number
    payloads = {
        field.number for field in messages.TracePacket.DESCRIPTOR.oneofs_by_name["data"].fields
    }
    numbers: set[int] = set()
    at = 0
    while at < len(raw):
        field = wire_field(raw, at)
        if field is None or (field[3] > len(raw) and complete):
            return None if complete else numbers
        number, wire, _, at = field
        if wire != _wire_type(types.get(number)):
            return None
        if number in payloads and not payloads.isdisjoint(numbers):
            return None  # a packet has one payload; XLA's planes have fields of the same types
        numbers.add(number)
    return numbers


def _wire_type(field: FieldDescriptor | None) -> int:
    """Wire type of a field; of one that is not known, that of messages, as all new payloads are."""
    if field is None or field.message_type:
        return LENGTH
    by_type = {
        field.TYPE_STRING: LENGTH,
        field.TYPE_BYTES: LENGTH,
        field.TYPE_DOUBLE: FIXED64,
        field.TYPE_FIXED64: FIXED64,
        field.TYPE_SFIXED64: FIXED64,
    }
    return by_type.get(field.type, VARINT)


PERFETTO = Converter(
    name="perfetto",
    description="Perfetto trace (protobuf track events)",
    versions="track events of any producer up to v58: rocprofv3 of ROCm 6.2 to 7.1, rocpd's "
    "conversion, rocprofv2's plugin, rocprofiler-systems, Omnitrace, this package; "
    "written as v58 defines it, for trace processors since v40",
    suffixes=(".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz"),
    sniff=sniff,
    memory_ratio=7.0,
    read="chopper_interop.converters.perfetto.read.reader:read",
    write="chopper_interop.converters.perfetto.write.writer:write",
    carries="read: slices with their arguments, kinds by category, threads, streams, queues, "
    "counters of kernels, counter tracks as series, flows as launches, all clocks that snapshots tie together; "
    "written: every node as a slice with its arguments, series as counter lanes that end with their "
    "samples, launches, forward to backward and other recorded edges as arrows (dependencies of no kind "
    "between tracks only; the others are counted), as tracks iterations, phases, layers, exposed "
    "communication, rates of kernels, and of analyses the critical path, idle time and findings; marks "
    "of the profiler far from all work are counted",
)


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
