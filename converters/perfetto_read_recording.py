"""A Perfetto trace as it was recorded: its events, tracks and clocks, and packets not taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.interning import interned
from chopper_interop.converters import perfetto_about
from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.converters import perfetto_read_packets_decode as wire_packets
from chopper_interop.converters.perfetto_columns import GROUP
from chopper_interop.converters.perfetto_read_annotations_text import numbers_of
from chopper_interop.converters.perfetto_read_clock import Clocks
from chopper_interop.converters.perfetto_read_decode import NO_STATE, NO_TIME, decode
from chopper_interop.converters.perfetto_read_tracks import Tracks, described
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs, outputs
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_events_decode import Events
    from chopper_interop.converters.perfetto_read_interned_decode import Texts
    from chopper_interop.converters.perfetto_read_lists_decode import Lists

BROKEN_PACKETS = Fault(
    "perfetto-packet-broken",
    Severity.LOSS,
    "Packets that are no proper messages were left out.",
    events=True,
)
NOT_TAKEN = Fault(
    "perfetto-other-data",
    Severity.INFO,
    "Packets of data sources other than track events were not taken over.",
    events=True,
)
WITHOUT_TIME = Fault(
    "event-without-time", Severity.LOSS, "Events without a time were left out.", events=True
)
WITHOUT_STATE = Fault(
    "event-state-lost",
    Severity.LOSS,
    "Events that refer to texts in packets that were dropped were left out.",
    events=True,
)
WITHOUT_CLOCK = Fault(
    "event-clock-unknown",
    Severity.LOSS,
    "Events on a clock that no snapshot ties to the trace's were left out.",
    events=True,
)
OUT_OF_REACH = Fault(
    "time-out-of-reach",
    Severity.LOSS,
    "Events with times that no clock shows were left out.",
    events=True,
)
BUFFER_FULL = Fault(
    "perfetto-buffer-full",
    Severity.LOSS,
    "The recorder's buffer was full, and pieces of the trace were dropped: record with a larger one "
    "(rocprofv3: --perfetto-buffer-size).",
)
OWN_CLOCK = Fault(
    "clock-of-its-own",
    Severity.INFO,
    "Times are on a clock of the writer's own, which the trace ties to no other: they were taken as "
    "nanoseconds since boot.",
)

_PACKET_NAMES = {1: "ftrace", 2: "process tree", 9: "process stats", 66: "perf samples"}
_ABOUT_TRACE = (0, 6, 33, 34, 35, 36, 43, 44, 45, 46, 60, 61, 64, 69, 72, 84, 89, 124, 126, 128)
"""Packets that tell of the trace, the system or tracks, and are no events."""
_LARGEST = 1 << 62
_OF_TEXTS = ("name_at", "name_len", "category_at", "category_len", "body_at", "body_len", "state")
"""Columns of events that are not needed when all texts are taken."""
_TRACE_STATS = 35


class Recording:
    """What a trace's packets hold.

    Parameters
    ----------
    path
        The file.
    issues
        Where what is not taken over is counted.

    Raises
    ------
    ReadError
        There is no whole packet in it.
    """

    def __init__(self, path: Path, issues: IssueLog) -> None:
        self.path, self.issues = path, issues
        self.packets = wire_packets.packets(inputs.read(path, issues), issues)
        if not len(self.packets.at):
            raise ReadError("there is no whole packet in it", path=path, hint="record it again")
        self.tracks: Tracks = described(self.packets, issues)
        events, lists, snapshots, texts, lost = decode(self.packets)
        self.events: Events = events
        self.lists: Lists = lists
        self.texts: Texts = texts
        used = [int(c) for c in np.unique(events.clock)]
        self.clocks = Clocks(snapshots, _primary(self.packets), used)
        issues.add(OWN_CLOCK, int(self.clocks.is_own))
        self.ours = self._is_ours()
        own = self.packets.of_kind(perfetto_about.PACKET) if self.ours else []
        self.about = perfetto_about.told(raw for _, raw in own)
        self.counted = self._count_packets(lost)
        issues.add(BUFFER_FULL, _dropped(self.packets))

    def _is_ours(self) -> bool:
        known = slice(0, int(self.texts.known[0]))
        first = np.flatnonzero((self.texts.field[known] == 3) & (self.texts.iid[known] == 1))  # noqa: PLR2004
        return any(
            self._text(int(self.texts.at[k]), int(self.texts.length[k])) == GROUP for k in first
        )

    def _text(self, at: int, length: int) -> str:
        return self.packets.buffer[at : at + length].tobytes().decode("utf-8", "replace")

    def _count_packets(self, lost: Array) -> int:
        """Note packets that hold no event that is taken; how many there are."""
        kind = self.packets.kind
        broken = np.flatnonzero(kind == wire_packets.BROKEN_PACKET)
        where = f"at byte {self.packets.at[broken[0]]}" if broken.size else ""
        self.issues.add(BROKEN_PACKETS, broken.size, where)
        self.issues.add(WITHOUT_TIME, np.count_nonzero(lost == NO_TIME))
        self.issues.add(WITHOUT_STATE, np.count_nonzero(lost == NO_STATE))
        known = (*_ABOUT_TRACE, wire_packets.TRACK_EVENT, wire_packets.BROKEN_PACKET)
        own = (perfetto_about.PACKET,) if self.ours else ()
        foreign = kind[~np.isin(kind, (*known, *own))]
        number, count = np.unique(foreign, return_counts=True)
        told = [f"{c:,} {_packet_name(n)}" for n, c in zip(number.tolist(), count, strict=True)]
        self.issues.add(NOT_TAKEN, foreign.size, ", ".join(told[:6]))
        lost_packets = broken.size + foreign.size + self.packets.damaged
        return lost_packets + np.count_nonzero(lost)

    def times(self) -> tuple[Array, Array]:
        """Times of all events, ns, and of which they are known."""
        ts, known = self.clocks.converted(self.events.ts, self.events.clock)
        self.issues.add(WITHOUT_CLOCK, np.count_nonzero(~known))
        far = known & ((ts < 0) | (ts > _LARGEST))
        self.issues.add(OUT_OF_REACH, np.count_nonzero(far))
        return np.where(known & ~far, ts, 0), known & ~far

    def named(self, at: Array, length: Array) -> tuple[list[str], Array]:
        """Distinct texts among byte ranges, and of each range which it is (-1 if it is none)."""
        ranges = np.unique(at + (length.astype(np.int64) << 40))
        table = interned(len(ranges) + 1)
        codes = numbers_of(self.packets.buffer, at, length, table)
        texts = table.texts(self.packets.buffer)
        return [t.decode("utf-8", "replace") for t in texts], codes

    def tool(self, categories: list[str]) -> str:
        """Who wrote it, as the categories of its slices tell."""
        if self.ours:
            return outputs.MARK
        for pattern, tool in kinds.SOURCES:
            if any(pattern.fullmatch(c) for c in categories):
                return tool
        return "Perfetto"

    def without_texts(self) -> None:
        """Let go of the packets, the largest that there is, once all texts are taken."""
        del self.packets
        self.events = self.events._replace(**dict.fromkeys(_OF_TEXTS, np.zeros(0, np.int64)))


def _packet_name(number: int) -> str:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    known = messages.TracePacket.DESCRIPTOR.fields_by_number.get(number)
    return _PACKET_NAMES.get(number) or (known.name if known else f"field {number}")


def _primary(packets: wire_packets.Packets) -> int:
    """The clock that the trace says it is on; 0 if it does not."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    for _, raw in packets.of_kind(wire_packets.CLOCK_SNAPSHOT):
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
        except DecodeError:
            continue
        if packet.clock_snapshot.primary_trace_clock:
            return int(packet.clock_snapshot.primary_trace_clock)
    return 0


def _dropped(packets: wire_packets.Packets) -> int:
    """Pieces that the recorder says it discarded or overwrote, by its last statistics."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    for _, raw in reversed(packets.of_kind(_TRACE_STATS)):
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
        except DecodeError:
            continue
        buffers = packet.trace_stats.buffer_stats
        return min(sum(b.chunks_discarded + b.chunks_overwritten for b in buffers), 1 << 62)
    return 0
