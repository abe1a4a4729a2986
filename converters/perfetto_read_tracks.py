"""Tracks of a Perfetto trace: what they are called, whose they are, what they count."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.perfetto_read_packets_decode import (
    PROCESS_DESCRIPTOR,
    THREAD_DESCRIPTOR,
    TRACK_DESCRIPTOR,
    Packets,
)
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

BROKEN = Fault(
    "perfetto-descriptor-broken",
    Severity.LOSS,
    "Descriptions of tracks that cannot be read were left out.",
)

NOBODY = -1
"""Process id of what belongs to no process."""
_UNITS = {1: "ns", 2: "", 3: "B"}
_MOST_ANCESTORS = 100
_RANK = re.compile(r"\brank\s*[:#_-]?\s*(\d{1,7})\b", re.IGNORECASE)


@dataclass
class Track:
    """A track as its descriptors say.

    Parameters
    ----------
    parent
        Uuid of its parent, 0 for none.
    name
        Its name.
    pid, tid
        Process and thread; -1 if it is neither.
    place
        Its place among its siblings.
    counts
        Whether it is a counter.
    unit, multiplier, incremental
        Unit of its values, by what to multiply them, and whether each adds to the one before.
    """

    parent: int = 0
    name: str = ""
    pid: int = NOBODY
    tid: int = -1
    place: int = 0
    counts: bool = False
    unit: str = ""
    multiplier: int = 1
    incremental: bool = False


@dataclass
class Tracks:
    """All tracks that are described, and what processes are called.

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

    def owner(self, uuid: int) -> int:
        """Process id of a track: its own or that of what it lies in."""
        for track in self.line(uuid):
            if track.pid != NOBODY:
                return track.pid
        return NOBODY

    def line(self, uuid: int) -> list[Track]:
        """A track and what it lies in, outwards."""
        found: list[Track] = []
        while uuid in self.by_uuid and len(found) < _MOST_ANCESTORS:
            found.append(self.by_uuid[uuid])
            uuid = found[-1].parent
            if uuid == 0:
                break
        return found

    def rank_of(self, pid: int) -> int | None:
        """The rank that a process' name or labels say."""
        told = _RANK.search(self.processes.get(pid, ""))
        return int(told.group(1)) if told else None


def described(packets: Packets, issues: IssueLog) -> Tracks:
    """Read all descriptions of tracks, processes and threads."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    tracks = Tracks()
    for row, raw in packets.of_kind(TRACK_DESCRIPTOR, PROCESS_DESCRIPTOR, THREAD_DESCRIPTOR):
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
            _take(tracks, packet)
        except (DecodeError, UnicodeDecodeError):
            issues.add(BROKEN, 1, f"packet {row}")
    return tracks


def _take(tracks: Tracks, packet: proto.TracePacket) -> None:
    if packet.HasField("track_descriptor"):
        _add(tracks, packet.track_descriptor)
    elif packet.HasField("thread_descriptor"):
        _thread(tracks, packet.thread_descriptor)
    elif packet.HasField("process_descriptor"):
        _process(tracks, packet.process_descriptor)


def _add(tracks: Tracks, told: proto.TrackDescriptor) -> None:
    track = tracks.by_uuid.setdefault(told.uuid, Track())
    track.parent = told.parent_uuid or track.parent
    track.name = _plain(told.name or told.static_name or told.atrace_name) or track.name
    track.place = told.sibling_order_rank or track.place
    if told.HasField("process"):
        track.pid = told.process.pid
        _process(tracks, told.process)
    if told.HasField("chrome_process") and told.HasField("process"):
        label = _plain(told.chrome_process.host_app_package_name)
        tracks.processes[track.pid] = f"{tracks.processes[track.pid]} {label}".strip()
    if told.HasField("thread"):
        track.pid, track.tid = told.thread.pid, told.thread.tid
        _thread(tracks, told.thread)
        track.name = tracks.threads.get((track.pid, track.tid), track.name)
    if told.HasField("counter"):
        _counter(track, told.counter)


def _process(tracks: Tracks, told: Any) -> None:
    names = [
        told.process_name or next(iter(told.cmdline), ""),
        *getattr(told, "process_labels", ()),
    ]
    text = " ".join(_plain(name) for name in names if name)
    tracks.processes[told.pid] = text or tracks.processes.get(told.pid, "")


def _thread(tracks: Tracks, told: Any) -> None:
    if told.thread_name:
        tracks.threads[told.pid, told.tid] = _plain(told.thread_name)


def _counter(track: Track, told: proto.CounterDescriptor) -> None:
    track.counts = True
    track.unit = _plain(told.unit_name) or _UNITS.get(told.unit, "")
    track.multiplier = told.unit_multiplier or 1
    track.incremental = told.is_incremental


def _plain(text: str | bytes) -> str:
    """A text of a message, which gives bytes where they are no UTF-8."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
