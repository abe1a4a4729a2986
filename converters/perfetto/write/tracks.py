"""Layout of the picture that Perfetto draws: tracks, their groups and their order.

A process for each rank with its threads; in it a group for its GPU with iterations and phases,
a track for each stream, and a group of counter lanes for each tool that measured something.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop import rank_batches
from chopper_interop.arrays import Array
from chopper_interop.converters.perfetto.chopper_metadata import CONSTANT_SUFFIX, RATES_SOURCE
from chopper_interop.converters.perfetto.write.derived_tracks import DERIVED_TRACKS
from chopper_interop.grouping import grouped
from chopper_interop.schemas.kinds import GPU_LANES, Kind, LaneKind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.write.counter_lanes import CounterLane
    from chopper_interop.schemas.meta import Rank

CRITICAL_PATH = "critical path"
"""Name of the group of the tracks of the critical path."""
FINDINGS = "findings"
"""Name of the group of the marks of analyses."""
_EXPLICIT = proto.TrackDescriptor.ChildTracksOrdering.EXPLICIT
_UNITS = {
    "ns": proto.CounterDescriptor.UNIT_TIME_NS,
    "B": proto.CounterDescriptor.UNIT_SIZE_BYTES,
    "": proto.CounterDescriptor.UNIT_COUNT,
}
_GPU_POSITIONS = {
    LaneKind.STREAM: 100, LaneKind.QUEUE: 100, LaneKind.COPY: 200, LaneKind.GPU_ANNOTATION: 300,
    LaneKind.GPU_SYNC: 400, LaneKind.MEMORY: 500,
}  # fmt: skip
"""Position of a GPU's tracks within its group, by kind of lane; the reader takes kinds from it."""
_WORK_LABELS = {
    int(Kind.KERNEL): " (compute)",
    int(Kind.COMM): " (communication)",
    int(Kind.MEMCPY): " (copies)",
    int(Kind.MEMSET): " (fills)",
}
_FIRST_COUNTERS = ("socket power", "gfx clock", "GFX activity", "memory activity", "temperature")
"""Counter lanes that come first in their group."""
_RATES_POSITION, _COUNTERS_POSITION = 900, 1000
"""Counters come below all streams and other tracks, whose positions end at 599."""
_MAX_PID = 2**31 - 1
_FIRST_MADE_UP_PID = 2**30
"""Process ids from here on are made up; beyond those that Linux gives (``PID_MAX_LIMIT``, 2**22)."""


@dataclass
class TrackAllocator:
    """Allocates the tracks of a file, and describes each before its first use.

    Parameters
    ----------
    trace
        The trace that is drawn.
    first_uuid
        The number before this file's first track id.
    """

    trace: Trace
    first_uuid: int
    descriptors: list[proto.TrackDescriptor] = field(default_factory=list)
    _uuids: dict[Any, int] = field(default_factory=dict)
    _models: dict[str, tuple[str, dict[int, str]]] = field(default_factory=dict)

    def new_descriptors(self) -> list[proto.TrackDescriptor]:
        """Return the descriptors of the tracks that were allocated since the last call."""
        new, self.descriptors = self.descriptors, []
        return new

    def lane(self, row: int, part: int = 0) -> int:
        """Return the track of a lane; parts beyond the first hold what overlaps there."""
        known = self._uuids.get(("lane", row, part))
        if known is not None:
            return known
        lane = self.lanes[row]
        kind = LaneKind(lane["kind"])
        label = self._lane_labels[row]
        if kind in _GPU_POSITIONS:
            parent = self._gpu(lane["rank"], lane["device"])
            position = _GPU_POSITIONS[kind] + min(max(lane["number"], 0), 99)
            return self._track(("lane", row, part), label, parent, position)
        parent = self.process(lane["rank"])
        if kind is LaneKind.THREAD and part == 0 and lane["number"] >= 0:
            return self._thread(row, lane)
        return self._track(("lane", row, part), label, parent, 0)

    def drawn_lanes(self) -> dict[int, dict[str, Any]]:
        """Return the lanes of the tracks so far, by the uuids of these."""
        return {uuid: self.lanes[key[1]] for key, uuid in self._uuids.items() if key[0] == "lane"}

    def drawn_counters(self) -> dict[int, CounterLane]:
        """Return the counter lanes so far, by the uuids of their tracks."""
        return {uuid: key[1] for key, uuid in self._uuids.items() if key[0] == "counter"}

    def derived(self, rank: int, device: int, name: str) -> int:
        """Return a track of a GPU that stands for no event, above its streams."""
        position = 1 + DERIVED_TRACKS.index(name)
        return self._track((name, rank, device), name, self._gpu(rank, device), position)

    def critical(self, rank: int, name: str, position: int) -> int:
        """Return a track of the critical path, of a rank (-1: of the job), above all ranks."""
        top = self._uuids.get(("critical", -1))
        if top is None:
            track = self._new_track(("critical", -1), name=CRITICAL_PATH)
            track.sibling_order_rank = -1000  # above all else
            track.child_ordering = _EXPLICIT
            top = int(track.uuid)
        label = name if rank < 0 else f"rank {rank} {name}"
        return self._track(("critical", rank, name, position), label, top, position)

    def marks(self, rank: int, name: str, row: int) -> int:
        """Return a row of a lane of marks: of a rank, or (-1) in a group of their own."""
        parent = self.process(rank) if rank >= 0 else self._findings()
        return self._track(("mark", rank, name, row), name, parent, 0)

    def _findings(self) -> int:
        known = self._uuids.get(("findings",))
        if known is not None:
            return known
        return int(self._new_track(("findings",), name=FINDINGS).uuid)

    def counter(self, lane: CounterLane) -> int:
        """Return the track of a counter lane, in a group for the tool that measured it."""
        key = ("counter", lane)
        known = self._uuids.get(key)
        if known is not None:
            return known
        rank, device, source = lane.rank, lane.device, lane.source
        parent = self._gpu(rank, device) if device >= 0 else self._owner(rank)
        position = _COUNTERS_POSITION + min(lane.uncertainty_ns // 10**6, 10**6)
        if source == RATES_SOURCE:
            position = _RATES_POSITION
        if lane.steady:
            source, position = source + CONSTANT_SUFFIX, position + 10**7
        group = self._track(
            ("source", rank, device, source), source, parent, position, ordered=True
        )
        track = self._new_track(key, parent_uuid=group, name=lane.label)
        first = (i for i, begin in enumerate(_FIRST_COUNTERS) if lane.name.startswith(begin))
        track.sibling_order_rank = next(first, len(_FIRST_COUNTERS)) * 10**6 + len(self._uuids)
        unit = lane.unit
        if unit in _UNITS:
            track.counter.unit = _UNITS[unit]
        else:
            track.counter.unit_name = unit
        return int(track.uuid)

    @cached_property
    def lanes(self) -> list[dict[str, Any]]:
        """The trace's lanes as dictionaries."""
        return self.trace.lanes.to_pylist()

    @cached_property
    def _work_labels(self) -> list[str]:
        """Label of the kind of work that takes most of the time of each lane of a GPU."""
        kinds = max(Kind) + 1
        # total time per (lane, kind), as one histogram over the pair's number
        time = np.zeros(kinds * len(self.lanes))
        lane, kind, dur = (self.trace.array(name) for name in ("lane", "kind", "dur"))
        for rows in rank_batches.blocks(self.trace):
            key = lane[rows].astype(np.int64) * kinds + kind[rows]
            time += np.bincount(key, dur[rows], minlength=len(time))
        longest_kinds = time.reshape(-1, kinds).argmax(axis=1).tolist()
        return [
            _WORK_LABELS.get(kind, "") if LaneKind(lane["kind"]) in GPU_LANES else ""
            for kind, lane in zip(longest_kinds, self.lanes, strict=True)
        ]

    @cached_property
    def _lane_labels(self) -> list[str]:
        """Name of each lane as it is drawn: with the work on it, and its number if others have it."""
        names = [
            (lane["rank"], lane["device"], lane["name"] + work)
            for lane, work in zip(self.lanes, self._work_labels, strict=True)
        ]
        count = Counter(names)
        return [
            name[2] if count[name] == 1 else f"{name[2]} [{_kind_text(lane)} {lane['number']}]"
            for name, lane in zip(names, self.lanes, strict=True)
        ]

    def _owner(self, rank: int) -> int:
        """Return the track that what belongs to a rank is under; -1 stands for the host."""
        return self.process(rank) if rank >= 0 else self._host()

    def _host(self) -> int:
        """Return the track of the host; not a process, of which the UI would show a number."""
        known = self._uuids.get(("host",))
        if known is not None:
            return known
        track = self._new_track(("host",), name=self.host_name())
        track.child_ordering = _EXPLICIT
        return int(track.uuid)

    def host_name(self) -> str:
        """Return the name of the group of what belongs to no rank."""
        hosts = self._hosts_of_ranks | {d.host for d in self.trace.meta.devices}
        hosts.discard("")
        return f"host {hosts.pop()}" if len(hosts) == 1 else "hosts" if hosts else "host"

    def process(self, rank: int) -> int:
        """Return the track of a rank; -1 stands for what ran on a host and has no rank."""
        known = self._uuids.get(("process", rank))
        if known is not None:
            return known
        track = self._new_track(("process", rank))
        track.process.pid = self.pid(rank)
        track.process.process_name = self.process_name(rank)
        track.sibling_order_rank = rank  # as `root` says, and the first processes of v57
        return int(track.uuid)

    def process_name(self, rank: int) -> str:
        """Return the name of a rank's process, with its host if there are several."""
        metadata = self._ranks.get(rank)
        name = f"rank {rank}" if rank >= 0 else "node"
        several = len(self._hosts_of_ranks) > 1
        return f"{name} on {metadata.host}" if metadata and several else name

    @staticmethod
    def root() -> proto.TrackDescriptor:
        """Return the descriptor by which processes and threads are in the order of their ranks."""
        return proto.TrackDescriptor(
            uuid=0,
            process_ordering=proto.TrackDescriptor.PROCESS_ORDERING_EXPLICIT,
            thread_ordering=proto.TrackDescriptor.THREAD_ORDERING_EXPLICIT,
        )

    @cached_property
    def _ranks(self) -> dict[int, Rank]:
        """Known properties of each rank."""
        return {r.rank: r for r in self.trace.meta.ranks}

    @cached_property
    def _hosts_of_ranks(self) -> set[str]:
        return {r.host for r in self.trace.meta.ranks}

    @cached_property
    def _ranks_by_pid(self) -> Counter[int]:
        """Number of ranks that have each process id."""
        return Counter(r.pid for r in self.trace.meta.ranks)

    def pid(self, rank: int) -> int:
        """Return the id of the rank's process where it is known and no other rank has it too.

        On several nodes two ranks may have the same.
        """
        metadata = self._ranks.get(rank)
        if metadata and 0 < metadata.pid <= _MAX_PID and self._ranks_by_pid[metadata.pid] == 1:
            return metadata.pid
        return _FIRST_MADE_UP_PID + rank + 1

    def _thread(self, row: int, lane: dict[str, Any]) -> int:
        track = self._new_track(("lane", row, 0), parent_uuid=self.process(lane["rank"]))
        track.thread.pid = self.pid(lane["rank"])
        track.thread.tid = lane["number"]
        if lane["name"] != f"thread {lane['number']}":  # which the UI calls it by itself
            track.thread.thread_name = lane["name"]
        track.sibling_order_rank = self._thread_positions[row]
        return int(track.uuid)

    @cached_property
    def _thread_positions(self) -> Array:
        """Position of each lane among the threads: the main thread, then the busiest first."""
        nodes, lane = np.zeros(len(self.lanes), np.int64), self.trace.array("lane")
        for rows in rank_batches.blocks(self.trace):
            nodes += np.bincount(lane[rows], minlength=len(nodes))
        pids = {rank: r.pid for rank, r in self._ranks.items()}
        is_main = np.array([lane["number"] == pids.get(lane["rank"]) for lane in self.lanes])
        position = np.empty(len(self.lanes), np.int64)
        position[np.lexsort((-nodes, ~is_main))] = np.arange(len(self.lanes))
        return position

    def _gpu(self, rank: int, device: int) -> int:
        known = self._uuids.get(("gpu", rank, device))
        if known is not None:
            return known
        label = self.gpu_name(rank, device)
        track = self._new_track(("gpu", rank, device), parent_uuid=self._owner(rank), name=label)
        track.sibling_order_rank = device
        track.child_ordering = _EXPLICIT
        return int(track.uuid)

    def gpu_name(self, rank: int, device: int) -> str:
        """Return the number of a GPU, with its model if known."""
        name = f"GPU {device}" if device >= 0 else "GPU"
        model = self._model(rank, device)
        return f"{name} ({model})" if model else name

    def lane_label(self, row: int) -> str:
        """Return the name of a lane as it is drawn."""
        return self._lane_labels[row]

    def _model(self, rank: int, device: int) -> str:
        """Return the model of a GPU: that of its number, or that of all GPUs of the host."""
        host = self._ranks[rank].host if rank in self._ranks else ""
        if host not in self._models:
            self._models[host] = self._models_of_host(host)
        of_all, of_number = self._models[host]
        return of_all or of_number.get(device, "")

    def _models_of_host(self, host: str) -> tuple[str, dict[int, str]]:
        """Model of all GPUs of a host, empty if they differ, and the first model of each number."""
        named = self._rows_of_named_devices
        hosts = named if not host else {"", host} & named.keys()  # of an unknown host any may be
        devices = [
            self.trace.meta.devices[row] for row in sorted(r for h in hosts for r in named[h])
        ]
        models = {d.name for d in devices}
        of_number = {d.device: d.name for d in reversed(devices)}
        return (models.pop() if len(models) == 1 else ""), of_number

    @cached_property
    def _rows_of_named_devices(self) -> dict[str, list[int]]:
        """Positions of the devices whose model is known, by host."""
        devices = enumerate(self.trace.meta.devices)
        return grouped((device.host, row) for row, device in devices if device.name)

    def _track(
        self, key: Any, name: str, parent: int, position: int, *, ordered: bool = False
    ) -> int:
        """Return the track of a key, which is made if there is none; `ordered` is of its children."""
        known = self._uuids.get(key)
        if known is not None:
            return known
        track = self._new_track(key, parent_uuid=parent, name=name)
        track.sibling_order_rank = position
        if ordered:
            track.child_ordering = _EXPLICIT
        return int(track.uuid)

    def _new_track(self, key: Any, **fields: Any) -> proto.TrackDescriptor:
        uuid = self.first_uuid + len(self._uuids) + 1
        self._uuids[key] = uuid
        track = proto.TrackDescriptor(uuid=uuid, **fields)
        self.descriptors.append(track)
        return track


def _kind_text(lane: dict[str, Any]) -> str:
    return LaneKind(lane["kind"]).name.lower().replace("_", " ")
