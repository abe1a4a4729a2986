"""The picture that Perfetto draws: which tracks there are, under what, in which order.

A process for each rank with its threads; in it a group for its GPU with iterations and phases,
a track for each stream, and a group of counter lanes for each tool that measured something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop.schemas.kinds import GPU_LANES, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace

DERIVED = {"iterations": "iteration", "phases": "phase", "layers": "layer"}
"""Tracks of slices that no event stands behind, from the top, and the columns that make them."""

_EXPLICIT = proto.TrackDescriptor.ChildTracksOrdering.EXPLICIT
_UNITS = {
    "ns": proto.CounterDescriptor.UNIT_TIME_NS,
    "B": proto.CounterDescriptor.UNIT_SIZE_BYTES,
    "": proto.CounterDescriptor.UNIT_COUNT,
}
_ORDER = {
    LaneKind.STREAM: 100,
    LaneKind.QUEUE: 100,
    LaneKind.COPY: 200,
    LaneKind.GPU_ANNOTATION: 300,
    LaneKind.GPU_SYNC: 400,
    LaneKind.MEMORY: 500,
}
"""Place of a GPU's tracks within its group, by kind."""
_USES = {
    int(Kind.KERNEL): " (compute)",
    int(Kind.COMM): " (communication)",
    int(Kind.MEMCPY): " (copies)",
    int(Kind.MEMSET): " (fills)",
}
_FIRST_LANES = ("socket power", "gfx clock", "GFX activity", "memory activity", "temperature")
"""Counter lanes that come first in their group."""
_COUNTERS_LAST = 1000
_LARGEST_PID = 2**31 - 1
_NODE_PID = 2**30


@dataclass(frozen=True)
class CounterLane:
    """What names a counter lane and puts it in its place.

    Parameters
    ----------
    rank, device
        Whose it is; -1 for the node, and for the host.
    source, name, unit
        Tool that measured it, what it is, and in what unit.
    uncertainty_ns
        The better times are known, the nearer the tool's group stands to the GPU's work.
    steady
        Whether it never changes: such lanes go last, into a group of their own.
    """

    rank: int
    device: int
    source: str
    name: str
    unit: str
    uncertainty_ns: int = 0
    steady: bool = False


@dataclass
class Tracks:
    """Hands out tracks, describing each before its first use.

    Parameters
    ----------
    trace
        What is drawn.
    first_uuid
        Where this file's track ids begin.
    """

    trace: Trace
    first_uuid: int
    described: list[proto.TrackDescriptor] = field(default_factory=list)
    _uuids: dict[Any, int] = field(default_factory=dict)

    def new(self) -> list[proto.TrackDescriptor]:
        """Descriptors since the last call."""
        fresh, self.described = self.described, []
        return fresh

    def lane(self, row: int, part: int = 0) -> int:
        """Track of a lane; parts beyond the first hold what overlaps there."""
        known = self._uuids.get(("lane", row, part))
        if known is not None:
            return known
        lane = self.lanes[row]
        kind = LaneKind(lane["kind"])
        if kind in _ORDER:
            parent = self._gpu(lane["rank"], lane["device"])
            place = _ORDER[kind] + min(max(lane["number"], 0), 99)
            use = self._uses[row] if kind in GPU_LANES else ""
            return self._track(("lane", row, part), lane["name"] + use, parent, place)
        parent = self.process(lane["rank"])
        if kind is LaneKind.THREAD and part == 0 and lane["number"] >= 0:
            return self._thread(row, lane)
        return self._track(("lane", row, part), lane["name"], parent, 0)

    def told(self) -> tuple[dict[int, dict[str, Any]], dict[int, int]]:
        """By uuid of the tracks so far: the lanes, and how well samples' times are known."""
        lanes, uncertainty = {}, {}
        for key, uuid in self._uuids.items():
            if key[0] == "lane":
                lanes[uuid] = self.lanes[key[1]]
            elif key[0] == "counter":
                uncertainty[uuid] = key[1].uncertainty_ns
        return lanes, uncertainty

    def derived(self, rank: int, device: int, name: str) -> int:
        """Track of a GPU's iterations, phases or layers."""
        place = 1 + list(DERIVED).index(name)
        return self._track((name, rank, device), name, self._gpu(rank, device), place)

    def critical(self, rank: int, name: str, place: int) -> int:
        """Track of the critical path, of a rank (-1: of the job), above all ranks."""
        top = self._uuids.get(("critical", -1))
        if top is None:
            track = self._described(("critical", -1), name="critical path")
            track.sibling_order_rank = -1000  # above all else
            track.child_ordering = _EXPLICIT
            top = int(track.uuid)
        label = name if rank < 0 else f"rank {rank} {name}"
        return self._track(("critical", rank, name, place), label, top, place)

    def counter(self, lane: CounterLane) -> int:
        """Counter lane, in a group for the tool that measured it."""
        key = ("counter", lane)
        known = self._uuids.get(key)
        if known is not None:
            return known
        rank, device, source = lane.rank, lane.device, lane.source
        parent = self._gpu(rank, device) if device >= 0 else self.process(rank)
        place = _COUNTERS_LAST + min(lane.uncertainty_ns // 10**6, 10**6)
        if lane.steady:
            source, place = f"{source} (constant)", place + 10**7
        group = self._track(("source", rank, device, source), source, parent, place, ordered=True)
        track = self._described(key, parent_uuid=group, name=lane.name)
        first = (i for i, begin in enumerate(_FIRST_LANES) if lane.name.startswith(begin))
        track.sibling_order_rank = next(first, len(_FIRST_LANES)) * 10**6 + len(self._uuids)
        unit = lane.unit
        if unit in _UNITS:
            track.counter.unit = _UNITS[unit]
        else:
            track.counter.unit_name = unit
        return int(track.uuid)

    @cached_property
    def lanes(self) -> list[dict[str, Any]]:
        """The trace's lanes as dictionaries."""
        rows: list[dict[str, Any]] = self.trace.lanes.to_pylist()
        return rows

    @cached_property
    def _uses(self) -> list[str]:
        """What each lane does most of the time, to be read at a glance."""
        kinds = max(Kind) + 1
        key = self.trace.array("lane").astype(np.int64) * kinds + self.trace.array("kind")
        time = np.bincount(key, self.trace.array("dur"), minlength=kinds * len(self.lanes))
        return [_USES.get(int(k), "") for k in time.reshape(-1, kinds).argmax(axis=1)]

    def process(self, rank: int) -> int:
        """Track of a rank; -1 stands for the node."""
        known = self._uuids.get(("process", rank))
        if known is not None:
            return known
        about = {r.rank: r for r in self.trace.meta.ranks}.get(rank)
        hosts = {r.host for r in self.trace.meta.ranks}
        track = self._described(("process", rank))
        track.process.pid = self._pid(rank, about)
        name = f"rank {rank}" if rank >= 0 else "node"
        track.process.process_name = f"{name} on {about.host}" if about and len(hosts) > 1 else name
        track.process.legacy_sort_index = rank
        return int(track.uuid)

    def _pid(self, rank: int, about: Rank | None) -> int:
        """The process' own id where it is known; on several nodes two ranks may share one."""
        pids = [r.pid for r in self.trace.meta.ranks]
        if about and 0 < about.pid <= _LARGEST_PID and pids.count(about.pid) == 1:
            return about.pid
        return _NODE_PID + rank + 1

    def _thread(self, row: int, lane: dict[str, Any]) -> int:
        track = self._described(("lane", row, 0), parent_uuid=self.process(lane["rank"]))
        about = {r.rank: r for r in self.trace.meta.ranks}.get(lane["rank"])
        track.thread.pid = self._pid(lane["rank"], about)
        track.thread.tid = lane["number"]
        track.thread.thread_name = lane["name"]
        track.thread.legacy_sort_index = row
        return int(track.uuid)

    def _gpu(self, rank: int, device: int) -> int:
        known = self._uuids.get(("gpu", rank, device))
        if known is not None:
            return known
        name = f"GPU {device}" if device >= 0 else "GPU"
        model = self._model(rank, device)
        label = f"{name} ({model})" if model else name
        track = self._described(("gpu", rank, device), parent_uuid=self.process(rank), name=label)
        track.child_ordering = _EXPLICIT
        return int(track.uuid)

    def _model(self, rank: int, device: int) -> str:
        """What the GPU is: by its number, or if all GPUs are the same."""
        host = {r.rank: r.host for r in self.trace.meta.ranks}.get(rank, "")
        mine = [d for d in self.trace.meta.devices if d.name and d.host in ("", host)]
        models = {d.name for d in mine}
        if len(models) == 1:
            return models.pop()
        return next((d.name for d in mine if d.device == device), "")

    def _track(self, key: Any, name: str, parent: int, place: int, *, ordered: bool = False) -> int:
        known = self._uuids.get(key)
        if known is not None:
            return known
        track = self._described(key, parent_uuid=parent, name=name)
        track.sibling_order_rank = place
        if ordered:
            track.child_ordering = _EXPLICIT
        return int(track.uuid)

    def _described(self, key: Any, **fields: Any) -> proto.TrackDescriptor:
        uuid = self.first_uuid + len(self._uuids) + 1
        self._uuids[key] = uuid
        track = proto.TrackDescriptor(uuid=uuid, **fields)
        self.described.append(track)
        return track
