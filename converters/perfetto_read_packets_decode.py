"""Packets of a Perfetto trace: where each is, of what kind, and on which sequence.

Field numbers are those of ``trace_packet.proto`` (Perfetto v58).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files.wire import field_at, varint_at
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

CLOCK_SNAPSHOT, TRACK_EVENT, TRACK_DESCRIPTOR = 6, 11, 60
PROCESS_DESCRIPTOR, THREAD_DESCRIPTOR = 43, 44
SYSTEM_INFO = 45
COMPRESSED, COMPRESSED_ZSTD = 50, 133
BROKEN_PACKET = -1
"""Kind of a packet that is no proper message."""
SAYS_NOTHING = 0
"""Kind of a packet without a payload: what it interns or sets is for the others."""

CUT_SHORT = Fault(
    "perfetto-cut-short",
    Severity.LOSS,
    "The trace breaks off, or is damaged from some byte on; the packets before that are kept.",
)
UNPACKED_BADLY = Fault(
    "perfetto-compressed-damaged",
    Severity.LOSS,
    "Compressed packets that cannot be unpacked were left out.",
    events=True,
)

_ABOUT = np.zeros(256, np.bool_)
_ABOUT[[3, 8, 10, 12, 13, 41, 42, 58, 59, 79, 87, 98]] = True
"""Fields that say something of a packet and are not what it holds."""
_ENOUGH = 1 << 31
"""Bytes that a compressed packet may unpack to."""


@dataclass(frozen=True)
class Packets:
    """The packets of a trace.

    Parameters
    ----------
    buffer
        The trace, with compressed packets unpacked.
    at, length
        Where each begins, and its length.
    kind
        The number of the field that is its payload; `SAYS_NOTHING` or `BROKEN_PACKET`.
    sequence
        Number of its sequence, among `sequences` of them.
    sequences
        How many sequences there are.
    most
        Upper bounds for what all packets hold: interned texts, flows, further counters.
    damaged
        How many compressed packets there were that could not be unpacked.
    """

    buffer: Bytes
    at: Array
    length: Array
    kind: Array
    sequence: Array
    sequences: int
    most: Array
    damaged: int = 0

    def of_kind(self, *kinds: int) -> list[tuple[int, bytes]]:
        """Rows and bytes of the packets of these kinds."""
        rows = np.flatnonzero(np.isin(self.kind, kinds)).tolist()
        return [(r, self.buffer[self.at[r] : self.at[r] + self.length[r]].tobytes()) for r in rows]


def packets(buffer: Bytes, issues: IssueLog) -> Packets:
    """Find the packets of a trace."""
    if not buffer.flags.writeable or not buffer.flags.c_contiguous:
        buffer = buffer.copy()
    at, length, broken = _frames(buffer)
    kind, sequence, most = _survey(buffer, at, length, _ABOUT)
    damaged = 0
    if np.isin(kind, (COMPRESSED, COMPRESSED_ZSTD)).any():
        buffer, damaged = _unpacked(buffer, at, length, kind, issues)
        end = broken
        at, length, broken = _frames(buffer)
        broken = end if end >= 0 else broken
        kind, sequence, most = _survey(buffer, at, length, _ABOUT)
    issues.add(CUT_SHORT, int(broken >= 0), f"at byte {broken}")
    known, code = np.unique(sequence, return_inverse=True)
    sequence = code.reshape(-1)
    return Packets(buffer, at, length, kind, sequence, max(len(known), 1), most, damaged)


def _unpacked(
    buffer: Bytes, at: Array, length: Array, kind: Array, issues: IssueLog
) -> tuple[Bytes, int]:
    """The trace with what was compressed in its place, and how much could not be unpacked."""
    pieces: list[Any] = []
    done = damaged = 0
    for row in np.flatnonzero(np.isin(kind, (COMPRESSED, COMPRESSED_ZSTD))).tolist():
        start = _frame_start(buffer, int(at[row]), int(length[row]))
        pieces.append(buffer[done:start])
        done = int(at[row] + length[row])
        packed = _field_bytes(buffer, int(at[row]), done, int(kind[row]))
        found = _inflated(packed) if kind[row] == COMPRESSED else _from_zstd(packed)
        if found is None:
            damaged += 1
            issues.add(UNPACKED_BADLY, 1, f"at byte {start}")
        else:
            pieces.append(np.frombuffer(found, np.uint8))
    pieces.append(buffer[done:])
    return np.concatenate(pieces), damaged


def _frame_start(buffer: Bytes, at: int, length: int) -> int:
    """Where the field that holds a packet begins: its tag and length may be padded."""
    for start in range(at - 2, max(at - 22, -1), -1):
        number, wire, size, begin, _ = field_at(buffer, start, at + length)
        if number == 1 and wire == 2 and begin == at and int(size) == length:
            return start
    return at


def _field_bytes(buffer: Bytes, i: int, stop: int, wanted: int) -> bytes:
    while i < stop:
        number, _, _, begin, i = field_at(buffer, i, stop)
        if i < 0:
            break
        if number == wanted:
            return bytes(buffer[begin:i])
    return b""


def _inflated(packed: bytes) -> bytes | None:
    """What zlib or gzip packed; of what breaks off, the part before."""
    unpacker = zlib.decompressobj(wbits=47)
    try:
        return unpacker.decompress(packed, _ENOUGH) or None
    except zlib.error:
        return None


def _from_zstd(packed: bytes) -> bytes | None:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            return bytes(stream.read(_ENOUGH)) or None
    except OSError:
        return None


@jit
def _frames(buffer: Bytes) -> tuple[Array, Array, int]:
    """Where each packet begins and how long it is; the byte from which on there are none."""
    n, count, i = len(buffer), 0, 0
    at, length = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    while i < n:
        number, wire, size, begin, end = field_at(buffer, i, n)
        if end < 0:
            return at[:count].copy(), length[:count].copy(), i
        if number == 1 and wire == 2:
            if count == len(at):
                larger, longer = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
                larger[:count], longer[:count] = at, length
                at, length = larger, longer
            at[count], length[count] = begin, np.int64(size)
            count += 1
        i = end
    return at[:count].copy(), length[:count].copy(), -1


@jit
def _survey(buffer: Bytes, at: Array, length: Array, about: Array) -> tuple[Array, Array, Array]:
    """Kind and sequence id of each packet, and upper bounds of what they hold."""
    n = len(at)
    kind, sequence = np.zeros(n, np.int32), np.zeros(n, np.int64)
    most = np.zeros(3, np.int64)
    for row in range(n):
        i, stop = at[row], at[row] + length[row]
        while i < stop:
            number, wire, value, begin, i = field_at(buffer, i, stop)
            if i < 0:
                kind[row] = -1
                break
            if number == 10 and wire == 0:
                sequence[row] = np.int64(value)
            elif number == 12 and wire == 2:
                most[0] += _fields(buffer, begin, i)
            elif number == 11 and wire == 2:
                kind[row] = number
                if not _count(buffer, begin, i, most):
                    kind[row] = -1
                    break
            elif number >= 256 or not about[number]:
                kind[row] = number
    return kind, sequence, most


@jit
def _fields(buffer: Bytes, i: int, stop: int) -> int:
    """How many fields a message has."""
    count = 0
    while i < stop:
        _, _, _, _, i = field_at(buffer, i, stop)
        if i < 0:
            break
        count += 1
    return count


@jit
def _count(buffer: Bytes, i: int, stop: int, most: Array) -> bool:
    """Count flows and further counters of an event; whether it is a proper message."""
    while i < stop:
        number, wire, _, begin, i = field_at(buffer, i, stop)
        if i < 0:
            return False
        which = 1 if number in (36, 42, 47, 48) else 2 if number in (12, 46) else 0
        if which:
            packed = number in (46, 47, 48)
            most[which] += _listed(buffer, begin, i, packed) if wire == 2 else 1
    return True


@jit
def _listed(buffer: Bytes, i: int, stop: int, fixed: bool) -> int:  # noqa: FBT001 # compiled functions take no keywords
    """How many numbers a packed list has."""
    if fixed:
        return (stop - i) // 8
    count = 0
    while 0 <= i < stop:
        _, i = varint_at(buffer, i, stop)
        count += 1
    return count
