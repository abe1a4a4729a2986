"""Layout of the picture that Perfetto draws: tracks, their groups and their order.

A process for each rank with its threads; in it a group for its GPU with iterations and phases,
a track for each stream, and a group of counter lanes for each tool that measured something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop.arrays import gather
from chopper_interop.converters.perfetto.chopper_metadata import CONSTANT_SUFFIX, DISPATCH_SOURCE
from chopper_interop.schemas.kinds import GPU_LANES, Kind, LaneKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace

DERIVED_TRACKS = {"iterations": "iteration", "phases": "phase", "layers": "layer"}
"""Tracks of slices that stand for no event, from the top, and the columns they are made of."""

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
_COUNTERS_POSITION = 1000
"""Counters come below all streams and other tracks, whose positions end at 599."""
_MAX_PID = 2**31 - 1
_FIRST_MADE_UP_PID = 2**30
"""Process ids from here on are made up; beyond those that Linux gives (``PID_MAX_LIMIT``, 2**22)."""


@dataclass(frozen=True)
class CounterLane:
    """Name of a counter lane and all that decides on its position.

    Parameters
    ----------
    rank, device
        Rank (-1: the node) and device (-1: the host) that it belongs to.
    source, name, unit
        Tool that measured it, its name, and the unit of its values.
    uncertainty_ns
        The better times are known, the nearer the tool's group stands to the GPU's work.
    steady
        True if it never changes: such lanes go last, into a group of their own.
    """

    rank: int
    device: int
    source: str
    name: str
    unit: str
    uncertainty_ns: int = 0
    steady: bool = False


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
        if kind in _GPU_POSITIONS:
            parent = self._gpu(lane["rank"], lane["device"])
            position = _GPU_POSITIONS[kind] + min(max(lane["number"], 0), 99)
            work = self._work_labels[row] if kind in GPU_LANES else ""
            return self._track(("lane", row, part), lane["name"] + work, parent, position)
        parent = self.process(lane["rank"])
        if kind is LaneKind.THREAD and part == 0 and lane["number"] >= 0:
            return self._thread(row, lane)
        return self._track(("lane", row, part), lane["name"], parent, 0)

    def lanes_and_uncertainty(self) -> tuple[dict[int, dict[str, Any]], dict[int, int]]:
        """Return, by uuid of the tracks so far, the lanes and the uncertainty of samples' times."""
        lanes, uncertainty = {}, {}
        for key, uuid in self._uuids.items():
            if key[0] == "lane":
                lanes[uuid] = self.lanes[key[1]]
            elif key[0] == "counter":
                uncertainty[uuid] = key[1].uncertainty_ns
        return lanes, uncertainty

    def derived(self, rank: int, device: int, name: str) -> int:
        """Return the track of a GPU's iterations, phases or layers."""
        position = 1 + list(DERIVED_TRACKS).index(name)
        return self._track((name, rank, device), name, self._gpu(rank, device), position)

    def critical(self, rank: int, name: str, position: int) -> int:
        """Return a track of the critical path, of a rank (-1: of the job), above all ranks."""
        top = self._uuids.get(("critical", -1))
        if top is None:
            track = self._new_track(("critical", -1), name="critical path")
            track.sibling_order_rank = -1000  # above all else
            track.child_ordering = _EXPLICIT
            top = int(track.uuid)
        label = name if rank < 0 else f"rank {rank} {name}"
        return self._track(("critical", rank, name, position), label, top, position)

    def counter(self, lane: CounterLane) -> int:
        """Return the track of a counter lane, in a group for the tool that measured it."""
        key = ("counter", lane)
        known = self._uuids.get(key)
        if known is not None:
            return known
        rank, device, source = lane.rank, lane.device, lane.source
        parent = self._gpu(rank, device) if device >= 0 else self.process(rank)
        position = _COUNTERS_POSITION + min(lane.uncertainty_ns // 10**6, 10**6)
        if lane.steady:
            source, position = source + CONSTANT_SUFFIX, position + 10**7
        group = self._track(
            ("source", rank, device, source), source, parent, position, ordered=True
        )
        track = self._new_track(key, parent_uuid=group, name=lane.name)
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
        """Label of the kind of work that takes most of each lane's time."""
        kinds = max(Kind) + 1
        # total time per (lane, kind), as one histogram over the pair's number
        key = self.trace.array("lane").astype(np.int64) * kinds + self.trace.array("kind")
        time = np.bincount(key, self.trace.array("dur"), minlength=kinds * len(self.lanes))
        return [_WORK_LABELS.get(int(k), "") for k in time.reshape(-1, kinds).argmax(axis=1)]

    def process(self, rank: int) -> int:
        """Return the track of a rank; -1 stands for the node."""
        known = self._uuids.get(("process", rank))
        if known is not None:
            return known
        metadata = self._rank_metadata(rank)
        hosts = {r.host for r in self.trace.meta.ranks}
        track = self._new_track(("process", rank))
        track.process.pid = self._pid(rank)
        name = f"rank {rank}" if rank >= 0 else "node"
        if metadata and len(hosts) > 1:
            name = f"{name} on {metadata.host}"
        track.process.process_name = name
        track.process.legacy_sort_index = rank
        return int(track.uuid)

    def _rank_metadata(self, rank: int) -> Rank | None:
        return {r.rank: r for r in self.trace.meta.ranks}.get(rank)

    def _pid(self, rank: int) -> int:
        """Return the id of the rank's process where it is known and no other rank has it too.

        On several nodes two ranks may have the same.
        """
        metadata = self._rank_metadata(rank)
        pids = [r.pid for r in self.trace.meta.ranks]
        if metadata and 0 < metadata.pid <= _MAX_PID and pids.count(metadata.pid) == 1:
            return metadata.pid
        return _FIRST_MADE_UP_PID + rank + 1

    def _thread(self, row: int, lane: dict[str, Any]) -> int:
        track = self._new_track(("lane", row, 0), parent_uuid=self.process(lane["rank"]))
        track.thread.pid = self._pid(lane["rank"])
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
        track = self._new_track(("gpu", rank, device), parent_uuid=self.process(rank), name=label)
        track.child_ordering = _EXPLICIT
        return int(track.uuid)

    def _model(self, rank: int, device: int) -> str:
        """Return the model of a GPU: that of its number, or that of all GPUs of the host."""
        host = {r.rank: r.host for r in self.trace.meta.ranks}.get(rank, "")
        devices = [d for d in self.trace.meta.devices if d.name and d.host in ("", host)]
        models = {d.name for d in devices}
        if len(models) == 1:
            return models.pop()
        return next((d.name for d in devices if d.device == device), "")

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


def sampled_lanes(
    trace: Trace, window: tuple[int, int] | None
) -> Iterator[tuple[CounterLane, Array, Array, int]]:
    """Yield the lanes of the trace's series.

    Parameters
    ----------
    trace
        Any trace.
    window
        First and last `ts` to draw, ns; all if None.

    Yields
    ------
    lane, ts, value, outside
        A lane, its samples, possibly none, and how many were left out as outside of the window. The
        value with which the window begins is drawn at its beginning.
    """
    bounds = np.searchsorted(trace.array("series", "samples"), np.arange(len(trace.series) + 1))
    all_ts, all_values = trace.array("ts", "samples"), trace.array("value", "samples")
    for row, series in enumerate(trace.series.to_pylist()):
        ts, value = (a[bounds[row] : bounds[row + 1]] for a in (all_ts, all_values))
        total = len(ts)
        if window is not None and total:
            first = max(int(np.searchsorted(ts, window[0], "right")) - 1, 0)
            stop = int(np.searchsorted(ts, window[1], "right"))
            ts, value = np.maximum(ts[first:stop], window[0]), value[first:stop]
        lane = CounterLane(
            series["rank"],
            series["device"],
            series["source"],
            series["name"],
            series["unit"],
            series["uncertainty_ns"],
            steady=len(value) > 0 and bool((value == value[0]).all()),
        )
        yield lane, ts, value, total - len(ts)


def dispatch_lanes(trace: Trace) -> Iterator[tuple[CounterLane, Array, Array]]:
    """Yield the lanes of hardware counters: a dispatch's value while it runs, and then 0."""
    if not trace.counters.num_rows:
        return
    node, code, value = (trace.array(c, "counters") for c in ("node", "name", "value"))
    names = trace.counters["name"].chunk(0).dictionary.to_pylist()
    rank = trace.array("rank")[node]
    device = trace.array("device", "lanes")[trace.array("lane")[node]]
    first, group = gather.distinct(rank, device, code)
    bounds, rows = gather.group_values(group, np.arange(len(node)), len(first))
    for g, row in enumerate(first.tolist()):
        lane_rows = rows[bounds[g] : bounds[g + 1]]
        ts, steps = _steps(trace, node[lane_rows], value[lane_rows])
        name = names[code[row]]
        unit = "ns" if name.endswith("_ns") else ""
        lane = CounterLane(int(rank[row]), int(device[row]), DISPATCH_SOURCE, name, unit)
        yield lane, ts, steps


def _steps(trace: Trace, nodes: Array, value: Array) -> tuple[Array, Array]:
    """Values from each node's start on, and 0 from its end unless the next has begun by then."""
    order = np.argsort(trace.array("ts")[nodes], kind="stable")
    start, value = trace.array("ts")[nodes][order], value[order]
    end = start + trace.array("dur")[nodes][order]
    falls = np.append(end[:-1] < start[1:], [True])
    ts = np.concatenate([start, end[falls]])
    steps = np.concatenate([value, np.zeros(np.count_nonzero(falls))])
    by_time = np.argsort(ts, kind="stable")
    return ts[by_time], steps[by_time]
