"""A Perfetto trace as it was recorded: its events, tracks and clocks, and packets not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.interning import empty_text_table
from chopper_interop.converters.perfetto import chopper_metadata
from chopper_interop.converters.perfetto.read import framing_decode as wire_packets
from chopper_interop.converters.perfetto.read import kinds
from chopper_interop.converters.perfetto.read.annotations_text import intern_ranges
from chopper_interop.converters.perfetto.read.clocks import TraceClocks
from chopper_interop.converters.perfetto.read.packets_decode import NO_STATE, NO_TIME, decode
from chopper_interop.converters.perfetto.read.tracks import TrackTable, read_tracks
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs, outputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.perfetto import (
    INTERNED_DEBUG_ANNOTATION_NAMES,
    PACKET_CLOCK_SNAPSHOT,
    PACKET_TRACK_EVENT,
)

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.read.events_decode import TrackEvents
    from chopper_interop.converters.perfetto.read.interned_decode import InternedTexts
    from chopper_interop.converters.perfetto.read.lists_decode import ListRows

BROKEN_PACKETS = Fault.loss_of_events(
    "perfetto-packet-broken", "Packets that are no proper messages were left out."
)
NOT_READ = Fault.info_of_events(
    "perfetto-other-data", "Packets of data sources other than track events were not read."
)
WITHOUT_TIME = Fault.loss_of_events("event-without-time", "Events without a time were left out.")
WITHOUT_STATE = Fault.loss_of_events(
    "event-state-lost", "Events that refer to texts in packets that were dropped were left out."
)
WITHOUT_CLOCK = Fault.loss_of_events(
    "event-clock-unknown",
    "Events on a clock that no snapshot relates to the trace's were left out.",
)
OUT_OF_RANGE = Fault.loss_of_events(
    "time-out-of-range", "Events with times that no clock shows were left out."
)
BUFFER_FULL = Fault.loss(
    "perfetto-buffer-full",
    "The recorder's buffer was full, and pieces of the trace were dropped: "
    "record with a larger one (rocprofv3: --perfetto-buffer-size).",
)
UNRELATED_CLOCK = Fault.info(
    "clock-not-in-snapshots",
    "Times are on a clock that the writer defined and the trace relates to "
    "no other: they were taken as nanoseconds since boot.",
)

_PACKET_NAMES = {1: "ftrace", 2: "process tree", 9: "process stats", 66: "perf samples"}
_METADATA_PACKETS = (
    0, 6, 33, 34, 35, 36, 43, 44, 45, 46, 60, 61, 64, 69, 72, 84, 89, 124, 126, 128,
)  # fmt: skip
"""Packets that describe the trace, the system or tracks, and are no events."""
_MAX_TIME = 1 << 62
"""Latest time, ns: 146 years. Sums and differences of such times do not overflow."""
_TEXT_COLUMNS = (
    "name_at", "name_len", "category_at", "category_len", "body_at", "body_len", "state",
)  # fmt: skip
"""Columns of events that are not needed once all texts are copied."""
_TRACE_STATS = 35
_FIRST_ANNOTATION_NAME = 1
"""Number that our writer gives to the name of its dictionary, by which its traces are recognised."""


class DecodedPackets:
    """Decoded packets of a trace.

    Parameters
    ----------
    path
        The file.
    issues
        Log in which packets that are not read are counted.

    Raises
    ------
    ReadError
        There is no complete packet in it.
    """

    def __init__(self, path: Path, issues: IssueLog) -> None:
        self.path, self.issues = path, issues
        self.packets = wire_packets.read_packets(inputs.read(path, issues), issues, path)
        if not len(self.packets.at):
            raise ReadError("there is no complete packet in it", path=path, hint="record it again")
        self.tracks: TrackTable = read_tracks(self.packets, issues)
        events, lists, snapshots, texts, lost = decode(self.packets)
        self.events: TrackEvents = events
        self.lists: ListRows = lists
        self.texts: InternedTexts = texts
        used = [int(c) for c in np.unique(events.clock)]
        self.clocks = TraceClocks(snapshots, _primary_clock(self.packets), used)
        issues.add(UNRELATED_CLOCK, int(self.clocks.is_private))
        self.from_chopper = self._is_from_chopper()
        packets = self.packets.of_kind(chopper_metadata.PACKET) if self.from_chopper else []
        self.metadata = chopper_metadata.parse_metadata(raw for _, raw in packets)
        self.event_count = self._count_packets(lost)
        issues.add(BUFFER_FULL, _dropped_chunks(self.packets))

    def _is_from_chopper(self) -> bool:
        """Recognise traces of our own writer by the first annotation name of a sequence."""
        texts, rows = self.texts, slice(0, int(self.texts.known[0]))
        is_name = texts.field[rows] == INTERNED_DEBUG_ANNOTATION_NAMES
        first = np.flatnonzero(is_name & (texts.iid[rows] == _FIRST_ANNOTATION_NAME))
        names = (self._text(int(texts.at[k]), int(texts.length[k])) for k in first)
        return chopper_metadata.COLUMNS_GROUP in names

    def _text(self, at: int, length: int) -> str:
        return self.packets.buffer[at : at + length].tobytes().decode("utf-8", "replace")

    def _count_packets(self, lost: Array) -> int:
        """Count packets without an event that is read; return their number."""
        kind = self.packets.kind
        broken = np.flatnonzero(kind == wire_packets.BROKEN_PACKET)
        where = f"at byte {self.packets.at[broken[0]]}" if broken.size else ""
        self.issues.add(BROKEN_PACKETS, broken.size, where)
        self.issues.add(WITHOUT_TIME, np.count_nonzero(lost == NO_TIME))
        self.issues.add(WITHOUT_STATE, np.count_nonzero(lost == NO_STATE))
        known = (*_METADATA_PACKETS, PACKET_TRACK_EVENT, wire_packets.BROKEN_PACKET)
        metadata = (chopper_metadata.PACKET,) if self.from_chopper else ()
        unread = kind[~np.isin(kind, (*known, *metadata))]
        number, count = np.unique(unread, return_counts=True)
        texts = [f"{c:,} {_packet_name(n)}" for n, c in zip(number.tolist(), count, strict=True)]
        self.issues.add(NOT_READ, unread.size, ", ".join(texts[:6]))
        lost_packets = broken.size + unread.size + self.packets.damaged
        return lost_packets + np.count_nonzero(lost)

    def event_times(self) -> tuple[Array, Array]:
        """Return times of all events, ns, and the mask of those that are known."""
        ts, known = self.clocks.convert(self.events.ts, self.events.clock)
        self.issues.add(WITHOUT_CLOCK, np.count_nonzero(~known))
        far = known & ((ts < 0) | (ts > _MAX_TIME))
        self.issues.add(OUT_OF_RANGE, np.count_nonzero(far))
        return np.where(known & ~far, ts, 0), known & ~far

    def distinct_texts(self, at: Array, length: Array) -> tuple[list[str], Array]:
        """Return the distinct texts among byte ranges, and the index of each range's text.

        A negative length stands for no text, and gives -1.
        """
        # most ranges are equal, as names are interned: their number bounds that of the texts
        ranges = np.unique(at + (length.astype(np.int64) << 40))
        table = empty_text_table(len(ranges) + 1)
        codes = intern_ranges(self.packets.buffer, at, length, table)
        texts = table.texts(self.packets.buffer)
        return [t.decode("utf-8", "replace") for t in texts], codes

    def tool(self, categories: list[str]) -> str:
        """Return the tool that wrote the trace, by the categories of its slices."""
        if self.from_chopper:
            return outputs.MARK
        for pattern, tool in kinds.TOOL_CATEGORIES:
            if any(pattern.fullmatch(c) for c in categories):
                return tool
        return "Perfetto"

    def release_texts(self) -> None:
        """Release the packets, which take most of the memory, once all texts are copied."""
        del self.packets
        self.events = self.events._replace(**dict.fromkeys(_TEXT_COLUMNS, np.zeros(0, np.int64)))


def _packet_name(number: int) -> str:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    known = messages.TracePacket.DESCRIPTOR.fields_by_number.get(number)
    return _PACKET_NAMES.get(number) or (known.name if known else f"field {number}")


def _primary_clock(packets: wire_packets.Packets) -> int:
    """Return the id of the trace's clock as its first snapshot has it; 0 if it has none."""
    for packet in _messages(packets.of_kind(PACKET_CLOCK_SNAPSHOT)):
        if packet.clock_snapshot.primary_trace_clock:
            return int(packet.clock_snapshot.primary_trace_clock)
    return 0


def _dropped_chunks(packets: wire_packets.Packets) -> int:
    """Return how many chunks the recorder discarded or overwrote, by its last statistics."""
    for packet in _messages(reversed(packets.of_kind(_TRACE_STATS))):
        buffers = packet.trace_stats.buffer_stats
        return min(sum(b.chunks_discarded + b.chunks_overwritten for b in buffers), 1 << 62)
    return 0


def _messages(packets: Iterable[tuple[int, bytes]]) -> Iterator[Any]:
    """Yield packets as messages; those that cannot be decoded are passed over."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    for _, raw in packets:
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
        except DecodeError:
            continue
        yield packet
