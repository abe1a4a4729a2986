"""Tracks of a Kineto file that is written: pid and tid of every event, and the tracks' names.

Kineto separates lanes by `pid` and `tid` alone: a host thread has its process and thread id, a
stream its device and number, and the profiler's own rows have texts. Which of these it is follows
from the event's category. So the events of one lane may need several tracks (kernels and copies on
a stream, the user's ranges on another), and lanes of kinds that Kineto lacks (hardware queues, copy
engines) become streams; where two would then be the same track, one gets another number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.kineto import events_encode as encode
from chopper_interop.converters.kineto.categories import ON_DEVICE
from chopper_interop.converters.kineto.strict_json_text import json_bytes
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.trace import Trace

_NO_NUMBER = -(1 << 61)
"""Numbers of lanes below this stand for lanes that have a name only."""
_LOOKS_NUMERIC = re.compile(r"\s*(?:stream\s+)?(-?\d+|0x[0-9a-fA-F]+)\s*")
_THREAD_LABEL = re.compile(r"thread -?\d+ \((.+)\)$")
_GPU_SORT = 5_000_000
"""Order of GPUs among processes, as libkineto has it: after all process ids."""
_FIRST_DEVICE_PID = 1_000_000
"""First pid of devices in a fused file; chosen: round, and above the pids of most machines."""
_PIDS_PER_RANK = 10_000
"""Devices that each rank of a fused file has pids for; chosen: more than any machine has."""
_PROFILER = "Traces"

LANE_KIND_AS_READ: dict[Kind, LaneKind] = dict.fromkeys(ON_DEVICE, LaneKind.STREAM) | {
    Kind.GPU_ANNOTATION: LaneKind.GPU_ANNOTATION,
    Kind.GPU_SYNC: LaneKind.GPU_SYNC,
    Kind.SPAN: LaneKind.PROFILER,
    Kind.OVERHEAD: LaneKind.PROFILER,
}
"""Kind of node → kind of lane on which a reader of Kineto puts it; a host thread otherwise."""
_DEVICE_LANES = (LaneKind.STREAM, LaneKind.GPU_ANNOTATION, LaneKind.GPU_SYNC)


class _Track(NamedTuple):
    """The events of one lane that are of one kind of lane in Kineto."""

    rank: int
    device: int
    kind: LaneKind
    lane: int


@dataclass
class Tracks:
    """Tracks of all events of some ranks.

    Parameters
    ----------
    trace
        The trace.
    ranks
        Ranks that go into the file.
    """

    trace: Trace
    ranks: list[int]
    of_node: Array = field(init=False)
    """Track of each node."""
    texts: encode.OutTexts = field(init=False)
    """Each track as ``,"pid":…,"tid":…``."""
    device: Array = field(init=False)
    """Device of each track; -1 on the host."""
    stream: Array = field(init=False)
    """Stream of each track, as in ``args.stream``."""
    on_device: Array = field(init=False)
    """Mask of tracks of a device."""
    is_work: Array = field(init=False)
    """Mask of tracks of a device's work."""
    has_other_pid: Array = field(init=False)
    """Mask of tracks of a device whose pid is not the device's number."""
    has_number: Array = field(init=False)
    """Mask of tracks whose `stream` is a number."""
    raw_pid: Array = field(init=False)
    """Pid of each track outside of a fused file."""

    def __post_init__(self) -> None:
        self.fused = len(self.ranks) > 1
        self.lanes: list[dict[str, Any]] = self.trace.lanes.to_pylist()
        self.host_pids = self._host_pids()
        self.of_node, tracks = self._assign_tracks()
        tids = _assign_tids(tracks, self.lanes)
        self._tracks = [
            (track, self.pid(track), tid) for track, tid in zip(tracks, tids, strict=True)
        ]
        self.texts = encode.join_texts(
            b',"pid":%b,"tid":%b' % (json_bytes(pid), json_bytes(tid))
            for _, pid, tid in self._tracks
        )
        self.device = np.array([track.device for track in tracks], np.int64)
        self.on_device = np.array([track.kind in _DEVICE_LANES for track in tracks], bool)
        self.is_work = np.array([track.kind is LaneKind.STREAM for track in tracks], bool)
        self.has_other_pid = np.array(
            [track.kind in _DEVICE_LANES and pid != track.device for track, pid, _ in self._tracks],
            bool,
        )
        self.has_number = np.array([isinstance(tid, int) for tid in tids], bool)
        self.stream = np.array([tid if isinstance(tid, int) else 0 for tid in tids], np.int64)
        self.raw_pid = np.array([self._raw_pid(track) for track in tracks], np.int64)

    def _assign_tracks(self) -> tuple[Array, list[_Track]]:
        """Return the track of each node, and the tracks."""
        kind_as_read = np.full(256, int(LaneKind.THREAD), np.int64)
        for node_kind, lane_kind in LANE_KIND_AS_READ.items():
            kind_as_read[int(node_kind)] = int(lane_kind)
        lane = self.trace.array("lane")
        kind_of_lane = self.trace.array("kind", "lanes")[lane]
        read_as = kind_as_read[self.trace.array("kind")]
        on_profiler = (read_as == LaneKind.THREAD) & (kind_of_lane == LaneKind.PROFILER)
        read_as[on_profiler] = LaneKind.PROFILER
        first, code = gather.distinct(lane, read_as)
        tracks = []
        for row in first.tolist():
            row_of_lane, kind = self.lanes[lane[row]], LaneKind(int(read_as[row]))
            device = row_of_lane["device"] if kind in _DEVICE_LANES else -1
            tracks.append(_Track(row_of_lane["rank"], device, kind, int(lane[row])))
        return code.astype(np.int32), tracks

    def _host_pids(self) -> dict[int, int]:
        """Return the process id of each rank, no two alike; below 0 where it is not known."""
        known = {r.rank: r.pid for r in self.trace.meta.ranks if r.pid >= 0}
        used: set[int] = set()
        pids = {}
        for rank in self.ranks:
            pid = known.get(rank, -1 - max(rank, 0))
            if pid in used:  # another machine's process
                pid = -1 - max(rank, 0)
            used.add(pid)
            pids[rank] = pid
        return pids

    def pid(self, track: _Track) -> int | str:
        """Return the `pid` of a track in the file."""
        if track.kind is LaneKind.PROFILER:
            return f"{_PROFILER} of rank {track.rank}" if self.fused else _PROFILER
        if track.kind is LaneKind.THREAD:
            return self.host_pids[track.rank]
        if self.fused:
            return self._device_pid(track)
        return (
            track.device if track.device != self.host_pids[track.rank] else self._device_pid(track)
        )

    def _device_pid(self, track: _Track) -> int:
        """Return a pid for a device that no process has."""
        highest = max(self.host_pids.values(), default=0)
        first = max(_FIRST_DEVICE_PID, highest + 1)
        return first + track.rank * _PIDS_PER_RANK + track.device

    def _raw_pid(self, track: _Track) -> int:
        if track.kind is LaneKind.PROFILER:
            return -1
        if track.kind is LaneKind.THREAD:
            return max(self.host_pids[track.rank], -1)
        return track.device

    def metadata(self, *, rank_in_args: bool) -> list[dict[str, Any]]:
        """Make the events that name processes and threads, each process before its threads.

        Parameters
        ----------
        rank_in_args
            Whether events state their rank, so that these must too.
        """
        events: list[dict[str, Any]] = []
        for rank, host in self.host_pids.items():
            owner = {"rank": rank, "pid_raw": max(host, -1)} if rank_in_args else {}
            events += _process_events(host, f"rank {rank}", "CPU", rank, owner)
        seen: set[int | str] = set(self.host_pids.values())
        for (track, pid, tid), raw_pid in zip(self._tracks, self.raw_pid.tolist(), strict=True):
            if pid not in seen:
                seen.add(pid)
                owner = {"rank": track.rank, "pid_raw": raw_pid} if rank_in_args else {}
                events += _process_events(pid, *_process_name(track), owner)
            events.append(_name_event("thread_name", pid, self._thread_name(track, tid), tid))
        return events

    def _thread_name(self, track: _Track, tid: int | str) -> str:
        """Return a lane's name as Kineto writes it, so that readers find it again."""
        name: str = self.lanes[track.lane]["name"]
        if track.kind in _DEVICE_LANES or isinstance(tid, str):
            return name
        if name in ("", f"thread {tid}"):
            return f"thread {tid}"
        text = f"thread {tid} ({name})"
        return text if _THREAD_LABEL.match(text) else name


def _process_name(track: _Track) -> tuple[str, str, int]:
    """Return name, label and order of a process that stands for a device or the profiler."""
    if track.kind is LaneKind.PROFILER:
        return f"profiler of rank {track.rank}", "CPU", 0
    device = f"GPU {track.device}" if track.device >= 0 else "GPU"
    order = _GPU_SORT + track.rank * _PIDS_PER_RANK + max(track.device, 0)
    return f"rank {track.rank} {device}", device, order


def _process_events(
    pid: int | str, name: str, label: str, order: int, owner: dict[str, int]
) -> list[dict[str, Any]]:
    """Make the events that name a process."""
    event = {"ph": "M", "pid": pid, "tid": 0}
    return [
        _name_event("process_name", pid, name, 0, owner),
        event | {"name": "process_labels", "args": {"labels": label} | owner},
        event | {"name": "process_sort_index", "args": {"sort_index": order} | owner},
    ]


def _name_event(
    kind: str, pid: int | str, name: str, tid: int | str, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name} | (more or {})}


def _assign_tids(tracks: list[_Track], lanes: list[dict[str, Any]]) -> list[int | str]:
    """Return the `tid` of each track: the lane's number, unless another track has it already.

    Lanes that Kineto has come first, so that they keep their numbers.
    """
    tids: list[int | str] = [0] * len(tracks)
    used_tids: dict[tuple[int, int, LaneKind], set[int | str]] = {}
    same_kind_first = sorted(
        range(len(tracks)), key=lambda k: (lanes[tracks[k].lane]["kind"] != tracks[k].kind, k)
    )
    for k in same_kind_first:
        rank, device, kind, lane = tracks[k]
        used = used_tids.setdefault((rank, device, kind), set())
        tid = _id_of_lane(kind, lanes[lane])
        if tid is None or tid in used:
            tid = _unused_number(used, lanes)
        used.add(tid)
        tids[k] = tid
    return tids


def _id_of_lane(kind: LaneKind, lane: dict[str, Any]) -> int | str | None:
    """Return a lane's number; its name if it has none, None if that looks like a number."""
    if lane["number"] > _NO_NUMBER:
        return int(lane["number"])
    name = str(lane["name"])
    if kind is LaneKind.STREAM:
        name = name.removeprefix("stream ")
    return None if _LOOKS_NUMERIC.fullmatch(name) or kind in _DEVICE_LANES[1:] else name


def _unused_number(used: Iterable[int | str], lanes: list[dict[str, Any]]) -> int:
    """Return a number that no lane has."""
    numbers = [tid for tid in used if isinstance(tid, int)]
    return max([*numbers, *(int(lane["number"]) for lane in lanes), 0]) + 1
