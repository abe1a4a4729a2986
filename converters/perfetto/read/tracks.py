"""Tracks of a Perfetto trace: their names, processes, parents and counters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.perfetto import (
    PACKET_PROCESS_DESCRIPTOR,
    PACKET_THREAD_DESCRIPTOR,
    PACKET_TRACK_DESCRIPTOR,
)

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    from chopper_interop.converters.perfetto.read.framing_decode import Packets

BROKEN = Fault.loss(
    "perfetto-descriptor-broken", "Descriptors of tracks that cannot be read were left out."
)

NO_PROCESS = -1
"""Process id of tracks without a process."""
_UNITS = {1: "ns", 2: "", 3: "B"}
_MAX_ANCESTORS = 100
"""Levels of tracks, as in the trace processor (``track_event_tracker.cc``); a bound on cycles."""
_RANK = re.compile(r"\brank\s{0,8}[:#_-]?\s{0,8}(\d{1,7})\b", re.IGNORECASE)


@dataclass
class Track:
    """A track as its descriptors define it.

    Parameters
    ----------
    parent
        Uuid of its parent, 0 for none.
    name
        Its name.
    pid, tid
        Process and thread; -1 if it is neither.
    order_rank
        Its position among its siblings.
    is_counter
        True if it is a counter.
    unit, multiplier, incremental
        Unit of its values, factor of its values, and True if each is added to the one before.
    """

    parent: int = 0
    name: str = ""
    pid: int = NO_PROCESS
    tid: int = -1
    order_rank: int = 0
    is_counter: bool = False
    unit: str = ""
    multiplier: int = 1
    incremental: bool = False


@dataclass
class TrackTable:
    """All tracks that have descriptors, and the names of processes and threads.

    Parameters
    ----------
    by_uuid
        The tracks.
    processes
        Process id → its name and labels.
    threads
        Process and thread id → the thread's name.
    """

    by_uuid: dict[int, Track] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)

    def process_of(self, uuid: int) -> int:
        """Return the process id of a track: its own or that of its nearest ancestor with one."""
        for track in self.ancestry(uuid):
            if track.pid != NO_PROCESS:
                return track.pid
        return NO_PROCESS

    def ancestry(self, uuid: int) -> list[Track]:
        """Return a track and its ancestors, outwards."""
        tracks: list[Track] = []
        while uuid in self.by_uuid and len(tracks) < _MAX_ANCESTORS:
            tracks.append(self.by_uuid[uuid])
            uuid = tracks[-1].parent
            if uuid == 0:
                break
        return tracks

    def rank_of(self, pid: int) -> int | None:
        """Return the rank in a process' name or labels; None if there is none."""
        match = _RANK.search(self.processes.get(pid, ""))
        return int(match.group(1)) if match else None


def read_tracks(packets: Packets, issues: IssueLog) -> TrackTable:
    """Read all descriptors of tracks, processes and threads."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    tracks = TrackTable()
    for row, raw in packets.of_kind(
        PACKET_TRACK_DESCRIPTOR, PACKET_PROCESS_DESCRIPTOR, PACKET_THREAD_DESCRIPTOR
    ):
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
            _add_packet(tracks, packet)
        except (DecodeError, UnicodeDecodeError):
            issues.add(BROKEN, 1, f"packet {row}")
    return tracks


def _add_packet(tracks: TrackTable, packet: proto.TracePacket) -> None:
    if packet.HasField("track_descriptor"):
        _add_track(tracks, packet.track_descriptor)
    elif packet.HasField("thread_descriptor"):
        _add_thread(tracks, packet.thread_descriptor)
    elif packet.HasField("process_descriptor"):
        _add_process(tracks, packet.process_descriptor)


def _add_track(tracks: TrackTable, descriptor: proto.TrackDescriptor) -> None:
    track = tracks.by_uuid.setdefault(descriptor.uuid, Track())
    track.parent = descriptor.parent_uuid or track.parent
    track.name = (
        _plain(descriptor.name or descriptor.static_name or descriptor.atrace_name) or track.name
    )
    track.order_rank = descriptor.sibling_order_rank or track.order_rank
    if descriptor.HasField("process"):
        track.pid = descriptor.process.pid
        _add_process(tracks, descriptor.process)
    if descriptor.HasField("chrome_process") and descriptor.HasField("process"):
        label = _plain(descriptor.chrome_process.host_app_package_name)
        tracks.processes[track.pid] = f"{tracks.processes[track.pid]} {label}".strip()
    if descriptor.HasField("thread"):
        track.pid, track.tid = descriptor.thread.pid, descriptor.thread.tid
        _add_thread(tracks, descriptor.thread)
        track.name = tracks.threads.get((track.pid, track.tid), track.name)
    if descriptor.HasField("counter"):
        _set_counter(track, descriptor.counter)


def _add_process(tracks: TrackTable, descriptor: Any) -> None:
    names = [
        descriptor.process_name or next(iter(descriptor.cmdline), ""),
        *getattr(descriptor, "process_labels", ()),
    ]
    text = " ".join(_plain(name) for name in names if name)
    tracks.processes[descriptor.pid] = text or tracks.processes.get(descriptor.pid, "")


def _add_thread(tracks: TrackTable, descriptor: Any) -> None:
    if descriptor.thread_name:
        tracks.threads[descriptor.pid, descriptor.tid] = _plain(descriptor.thread_name)


def _set_counter(track: Track, descriptor: proto.CounterDescriptor) -> None:
    track.is_counter = True
    track.unit = _plain(descriptor.unit_name) or _UNITS.get(descriptor.unit, "")
    track.multiplier = descriptor.unit_multiplier or 1
    track.incremental = descriptor.is_incremental


def _plain(text: str | bytes) -> str:
    """Return a text of a message as str; protobuf gives bytes where they are no UTF-8."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
