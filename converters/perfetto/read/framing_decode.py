"""Packets of a Perfetto trace: position, kind and sequence of each.

Field numbers are those of ``trace_packet.proto`` (Perfetto v58).

A message says its length only at its begin, so that packets are found one after the other, in compiled
loops.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.converters.perfetto.read.lists_decode import (
    EXTRA_VALUE_FIELDS,
    FIXED_LIST_FIELDS,
    FLOW_FIELDS,
)
from chopper_interop.io import inputs
from chopper_interop.io.wire import LENGTH, VARINT, read_field, read_varint
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.perfetto import (
    PACKET_COMPRESSED_PACKETS,
    PACKET_FIRST_PACKET_ON_SEQUENCE,
    PACKET_INCREMENTAL_STATE_CLEARED,
    PACKET_INTERNED_DATA,
    PACKET_MACHINE_ID,
    PACKET_PREVIOUS_PACKET_DROPPED,
    PACKET_SEQUENCE_FLAGS,
    PACKET_TIMESTAMP,
    PACKET_TIMESTAMP_CLOCK_ID,
    PACKET_TRACE_PACKET_DEFAULTS,
    PACKET_TRACK_EVENT,
    PACKET_TRUSTED_PACKET_SEQUENCE_ID,
    PACKET_TRUSTED_PID,
    PACKET_TRUSTED_UID,
    PACKET_ZSTD_COMPRESSED_PACKETS,
    TRACE_PACKET,
)

BROKEN_PACKET = -1
"""Kind of a packet that is no proper message."""
NO_PAYLOAD = 0
"""Kind of a packet without a payload, which interns texts or sets defaults for other packets."""

CUT_SHORT = Fault.loss(
    "perfetto-cut-short",
    "The trace breaks off, or is damaged from some byte on; the packets before that are kept.",
)
UNPACKED_BADLY = Fault.loss_of_events(
    "perfetto-compressed-damaged", "Compressed packets that cannot be unpacked were left out."
)

_HEADER_FIELDS = np.zeros(256, np.bool_)
_HEADER_FIELDS[[
    PACKET_TRUSTED_UID, PACKET_TIMESTAMP, PACKET_TRUSTED_PACKET_SEQUENCE_ID, PACKET_INTERNED_DATA,
    PACKET_SEQUENCE_FLAGS, PACKET_INCREMENTAL_STATE_CLEARED, PACKET_PREVIOUS_PACKET_DROPPED,
    PACKET_TIMESTAMP_CLOCK_ID, PACKET_TRACE_PACKET_DEFAULTS, PACKET_TRUSTED_PID,
    PACKET_FIRST_PACKET_ON_SEQUENCE, PACKET_MACHINE_ID,
]] = True  # fmt: skip
"""Fields of a packet's header, as opposed to its payload."""


@dataclass(frozen=True)
class Packets:
    """The packets of a trace.

    Parameters
    ----------
    buffer
        The trace, with compressed packets unpacked.
    at, length
        Offset and length of each, bytes.
    kind
        The number of the field that is its payload; `NO_PAYLOAD` or `BROKEN_PACKET`.
    sequence
        Number of its sequence, among `sequences` of them.
    sequences
        Number of sequences.
    upper_bounds
        Of the numbers of interned texts, flows and extra counter values in all packets.
    damaged
        Number of compressed packets that could not be unpacked.
    """

    buffer: Bytes
    at: Array
    length: Array
    kind: Array
    sequence: Array
    sequences: int
    upper_bounds: Array
    damaged: int = 0

    def of_kind(self, *kinds: int) -> list[tuple[int, bytes]]:
        """Return rows and bytes of the packets of these kinds."""
        rows = np.flatnonzero(np.isin(self.kind, kinds)).tolist()
        return [(r, self.buffer[self.at[r] : self.at[r] + self.length[r]].tobytes()) for r in rows]


def read_packets(buffer: Bytes, issues: IssueLog, path: Path) -> Packets:
    """Find the packets of a trace.

    Raises
    ------
    ReadError
        Its compressed packets have more bytes when unpacked than a file may have.
    """
    if not buffer.flags.writeable or not buffer.flags.c_contiguous:
        buffer = buffer.copy()
    at, length, broken = _find_packets(buffer)
    kind, sequence, upper_bounds = _scan_packets(buffer, at, length, _HEADER_FIELDS)
    damaged = 0
    if np.isin(kind, (PACKET_COMPRESSED_PACKETS, PACKET_ZSTD_COMPRESSED_PACKETS)).any():
        buffer, damaged = _decompress_packets(buffer, at, length, kind, issues, path)
        end = broken
        at, length, broken = _find_packets(buffer)
        broken = end if end >= 0 else broken
        kind, sequence, upper_bounds = _scan_packets(buffer, at, length, _HEADER_FIELDS)
    issues.add(CUT_SHORT, int(broken >= 0), f"at byte {broken}")
    ids, code = np.unique(sequence, return_inverse=True)
    sequence = code.reshape(-1)
    return Packets(buffer, at, length, kind, sequence, max(len(ids), 1), upper_bounds, damaged)


def _decompress_packets(
    buffer: Bytes, at: Array, length: Array, kind: Array, issues: IssueLog, path: Path
) -> tuple[Bytes, int]:
    """Put what was compressed in its place; return the trace, and the number of damaged packets."""
    pieces: list[Any] = []
    done = damaged = 0
    limit = room = inputs.max_unpacked(len(buffer), path)
    for row in np.flatnonzero(
        np.isin(kind, (PACKET_COMPRESSED_PACKETS, PACKET_ZSTD_COMPRESSED_PACKETS))
    ).tolist():
        start = _frame_start(buffer, int(at[row]), int(length[row]))
        pieces.append(buffer[done:start])
        done = int(at[row] + length[row])
        packed = _field_bytes(buffer, int(at[row]), done, int(kind[row]))
        unpack = _inflate if kind[row] == PACKET_COMPRESSED_PACKETS else _unpack_zstd
        unpacked = unpack(packed, room + 1)
        room -= len(unpacked or b"")
        if room < 0:
            raise inputs.too_large_unpacked(limit, len(buffer), path)
        if unpacked is None:
            damaged += 1
            issues.add(UNPACKED_BADLY, 1, f"at byte {start}")
        else:
            pieces.append(np.frombuffer(unpacked, np.uint8))
    pieces.append(buffer[done:])
    return np.concatenate(pieces), damaged


def _frame_start(buffer: Bytes, at: int, length: int) -> int:
    """Find where the field that holds a packet begins: its tag and length may be padded varints."""
    for start in range(at - 2, max(at - 22, -1), -1):
        number, wire, size, begin, _ = read_field(buffer, start, at + length)
        if number == TRACE_PACKET and wire == LENGTH and begin == at and int(size) == length:
            return start
    return at


def _field_bytes(buffer: Bytes, i: int, stop: int, field: int) -> bytes:
    """Return the content of the first field of this number; empty if there is none."""
    while i < stop:
        number, _, _, begin, i = read_field(buffer, i, stop)
        if i < 0:
            break
        if number == field:
            return bytes(buffer[begin:i])
    return b""


def _inflate(packed: bytes, at_most: int) -> bytes | None:
    """Unpack what zlib or gzip packed; of what breaks off, the part before; None if damaged."""
    unpacker = zlib.decompressobj(wbits=47)  # 32 more than the largest window: zlib or gzip
    try:
        return unpacker.decompress(packed, at_most) or None
    except zlib.error:
        return None


def _unpack_zstd(packed: bytes, at_most: int) -> bytes | None:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            unpacked = bytearray()
            while len(unpacked) < at_most and (block := stream.read(inputs.BLOCK_BYTES)):
                unpacked += block
            return bytes(unpacked[:at_most]) or None
    except OSError:
        return None


@jit
def _find_packets(buffer: Bytes) -> tuple[Array, Array, int]:
    """Find all packets: their offsets and lengths, and the byte where the trace breaks off, or -1.

    Compiled: a trace has millions of packets. The arrays double as they fill.
    """
    n, count, i = len(buffer), 0, 0
    at, length = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    while i < n:
        number, wire, size, begin, end = read_field(buffer, i, n)
        if end < 0:
            return at[:count].copy(), length[:count].copy(), i
        if number == TRACE_PACKET and wire == LENGTH:
            if count == len(at):
                larger, longer = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
                larger[:count], longer[:count] = at, length
                at, length = larger, longer
            at[count], length[count] = begin, np.int64(size)
            count += 1
        i = end
    return at[:count].copy(), length[:count].copy(), -1


@jit
def _scan_packets(
    buffer: Bytes, at: Array, length: Array, is_header: Array
) -> tuple[Array, Array, Array]:
    """Return kind and sequence id of each packet, and the upper bounds of `Packets`.

    The columns of all events are allocated by these bounds before the events are decoded.
    """
    n = len(at)
    kind, sequence = np.full(n, NO_PAYLOAD, np.int32), np.zeros(n, np.int64)
    upper_bounds = np.zeros(3, np.int64)
    for row in range(n):
        i, stop = at[row], at[row] + length[row]
        while i < stop:
            number, wire, value, begin, i = read_field(buffer, i, stop)
            if i < 0:
                kind[row] = BROKEN_PACKET
                break
            if number == PACKET_TRUSTED_PACKET_SEQUENCE_ID and wire == VARINT:
                sequence[row] = np.int64(value)
            elif number == PACKET_INTERNED_DATA and wire == LENGTH:
                upper_bounds[0] += _count_fields(buffer, begin, i)
            elif number == PACKET_TRACK_EVENT and wire == LENGTH:
                kind[row] = number
                if not _count_lists(buffer, begin, i, upper_bounds):
                    kind[row] = BROKEN_PACKET
                    break
            elif number >= 256 or not is_header[number]:
                kind[row] = number
    return kind, sequence, upper_bounds


@jit_in_place
def _count_fields(buffer: Bytes, i: int, stop: int) -> int:
    """Count the fields of a message."""
    count = 0
    while i < stop:
        _, _, _, _, i = read_field(buffer, i, stop)
        if i < 0:
            break
        count += 1
    return count


@jit_in_place
def _count_lists(buffer: Bytes, i: int, stop: int, upper_bounds: Array) -> bool:
    """Count flows and extra counter values of an event; return False if it is no proper message."""
    while i < stop:
        number, wire, _, begin, i = read_field(buffer, i, stop)
        if i < 0:
            return False
        entry = 1 if number in FLOW_FIELDS else 2 if number in EXTRA_VALUE_FIELDS else 0
        if entry:
            fixed = number in FIXED_LIST_FIELDS
            upper_bounds[entry] += _count_packed(buffer, begin, i, fixed) if wire == LENGTH else 1
    return True


@jit_in_place
def _count_packed(buffer: Bytes, i: int, stop: int, fixed: bool) -> int:  # noqa: FBT001 # compiled functions take no keywords
    """Count the numbers of a packed list; `fixed` are those of eight bytes each."""
    if fixed:
        return (stop - i) // 8
    count = 0
    while 0 <= i < stop:
        _, i = read_varint(buffer, i, stop)
        count += 1
    return count
