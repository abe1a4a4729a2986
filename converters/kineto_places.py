"""Where events of a Kineto file stand: process and thread ids of lanes, and their names.

Kineto tells lanes apart by `pid` and `tid` alone: a host thread by its process and thread id, a
stream by its device and number, and what is the profiler's own by texts. Which of these it is
follows from the event's category. So what lies on one of our lanes may stand on several of
Kineto's (kernels and copies on a stream, the user's ranges on another), and lanes of which Kineto
has no kind (hardware queues, copy engines) become streams; where two would then be the same, one
gets another number.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.converters import kineto_encode as encode
from chopper_interop.converters.kineto_tables import ON_DEVICE
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

NO_NUMBER = -(1 << 61)
"""A lane's number below this was made up for one that has a name only."""
_NUMERIC = re.compile(r"\s*(?:stream\s+)?(-?\d+|0x[0-9a-fA-F]+)\s*")
_WITH_NUMBER = re.compile(r"thread -?\d+ \((.+)\)$")
_GPU_SORT = 5_000_000
_FUSED_PID = 1_000_000
_RANKS_APART = 10_000
_PROFILER = "Traces"

LANE_OF: dict[Kind, LaneKind] = dict.fromkeys(ON_DEVICE, LaneKind.STREAM) | {
    Kind.GPU_ANNOTATION: LaneKind.GPU_ANNOTATION,
    Kind.GPU_SYNC: LaneKind.GPU_SYNC,
    Kind.SPAN: LaneKind.PROFILER,
    Kind.OVERHEAD: LaneKind.PROFILER,
}
"""Kind of node → the kind of lane on which a reader of Kineto puts it; a host thread otherwise."""
_DEVICE_LANES = (LaneKind.STREAM, LaneKind.GPU_ANNOTATION, LaneKind.GPU_SYNC)


class _Place(NamedTuple):
    """One of our lanes as one kind of Kineto's."""

    rank: int
    device: int
    kind: LaneKind
    lane: int


@dataclass
class Places:
    """Where all events of some ranks stand.

    Parameters
    ----------
    trace
        The trace.
    ranks
        Those that go into the file.
    """

    trace: Trace
    ranks: list[int]
    of_node: Array = field(init=False)
    """For each node the number of its place."""
    texts: encode.Texts = field(init=False)
    """Each place as ``,"pid":…,"tid":…``."""
    device: Array = field(init=False)
    """Device of each place; -1 on the host."""
    stream: Array = field(init=False)
    """Stream of each place, as ``args.stream`` tells it."""
    on_device: Array = field(init=False)
    """Whether a place is one of a device."""
    works: Array = field(init=False)
    """Whether a place is one of a device's work."""
    stands_aside: Array = field(init=False)
    """Whether a place of a device has a pid that is not the device's number."""
    numbered: Array = field(init=False)
    """Whether `stream` is a number that can be told."""
    raw_pid: Array = field(init=False)
    """What a place's pid is outside of a fused file."""

    def __post_init__(self) -> None:
        self.fused = len(self.ranks) > 1
        self.lanes: list[dict[str, Any]] = self.trace.lanes.to_pylist()
        self.hosts = self._host_pids()
        self.of_node, places = self._places()
        tids = _thread_ids(places, self.lanes)
        self._rows = [
            (place, self.pid(place), tid) for place, tid in zip(places, tids, strict=True)
        ]
        self.texts = encode.texts(
            f',"pid":{json.dumps(pid, ensure_ascii=False)},"tid":{json.dumps(tid, ensure_ascii=False)}'.encode()
            for _, pid, tid in self._rows
        )
        self.device = np.array([place.device for place in places], np.int64)
        self.on_device = np.array([place.kind in _DEVICE_LANES for place in places], bool)
        self.works = np.array([place.kind is LaneKind.STREAM for place in places], bool)
        self.stands_aside = np.array(
            [place.kind in _DEVICE_LANES and pid != place.device for place, pid, _ in self._rows],
            bool,
        )
        self.numbered = np.array([isinstance(tid, int) for tid in tids], bool)
        self.stream = np.array([tid if isinstance(tid, int) else 0 for tid in tids], np.int64)
        self.raw_pid = np.array([self._raw_pid(place) for place in places], np.int64)

    def _places(self) -> tuple[Array, list[_Place]]:
        """Place of each node, and the places."""
        lane_of = np.full(256, int(LaneKind.THREAD), np.int64)
        for of_kind, lane_kind in LANE_OF.items():
            lane_of[int(of_kind)] = int(lane_kind)
        lane = self.trace.array("lane")
        own = self.trace.array("kind", "lanes")[lane]
        read_as = lane_of[self.trace.array("kind")]
        profilers = (read_as == LaneKind.THREAD) & (own == LaneKind.PROFILER)
        read_as[profilers] = LaneKind.PROFILER
        first, code = gather.distinct(lane, read_as)
        places = []
        for row in first.tolist():
            about, kind = self.lanes[lane[row]], LaneKind(int(read_as[row]))
            device = about["device"] if kind in _DEVICE_LANES else -1
            places.append(_Place(about["rank"], device, kind, int(lane[row])))
        return code.astype(np.int32), places

    def _host_pids(self) -> dict[int, int]:
        """Process id of each rank, no two alike; below 0 where it is not known."""
        known = {r.rank: r.pid for r in self.trace.meta.ranks if r.pid >= 0}
        taken: set[int] = set()
        pids = {}
        for rank in self.ranks:
            pid = known.get(rank, -1 - max(rank, 0))
            if pid in taken:  # of another machine
                pid = -1 - max(rank, 0)
            taken.add(pid)
            pids[rank] = pid
        return pids

    def pid(self, place: _Place) -> int | str:
        """What stands as `pid` in the file."""
        if place.kind is LaneKind.PROFILER:
            return f"{_PROFILER} of rank {place.rank}" if self.fused else _PROFILER
        if place.kind is LaneKind.THREAD:
            return self.hosts[place.rank]
        if self.fused:
            return self._device_pid(place)
        return place.device if place.device != self.hosts[place.rank] else self._device_pid(place)

    def _device_pid(self, place: _Place) -> int:
        """A pid for a device that no process has."""
        highest = max(self.hosts.values(), default=0)
        first = max(_FUSED_PID, highest + 1)
        return first + place.rank * _RANKS_APART + place.device

    def _raw_pid(self, place: _Place) -> int:
        if place.kind is LaneKind.PROFILER:
            return -1
        if place.kind is LaneKind.THREAD:
            return max(self.hosts[place.rank], -1)
        return place.device

    def metadata(self, *, stated: bool) -> list[dict[str, Any]]:
        """Events that name processes and threads, each process before its threads.

        Parameters
        ----------
        stated
            Whether events say their rank, so that these must too.
        """
        events: list[dict[str, Any]] = []
        for rank, host in self.hosts.items():
            owner = {"rank": rank, "pid_raw": max(host, -1)} if stated else {}
            events += _process(host, f"rank {rank}", "CPU", rank, owner)
        seen: set[int | str] = set(self.hosts.values())
        for (place, pid, tid), raw_pid in zip(self._rows, self.raw_pid.tolist(), strict=True):
            if pid not in seen:
                seen.add(pid)
                owner = {"rank": place.rank, "pid_raw": raw_pid} if stated else {}
                events += _process(pid, *_process_name(place), owner)
            events.append(_named("thread_name", pid, self._thread_name(place, tid), tid))
        return events

    def _thread_name(self, place: _Place, tid: int | str) -> str:
        """A lane's name as Kineto writes it, so that readers find it again."""
        name: str = self.lanes[place.lane]["name"]
        if place.kind in _DEVICE_LANES or isinstance(tid, str):
            return name
        if name in ("", f"thread {tid}"):
            return f"thread {tid}"
        text = f"thread {tid} ({name})"
        return text if _WITH_NUMBER.match(text) else name


def _process_name(place: _Place) -> tuple[str, str, int]:
    """Name, label and order of a process that is no rank's own."""
    if place.kind is LaneKind.PROFILER:
        return f"profiler of rank {place.rank}", "CPU", 0
    device = f"GPU {place.device}" if place.device >= 0 else "GPU"
    order = _GPU_SORT + place.rank * _RANKS_APART + max(place.device, 0)
    return f"rank {place.rank} {device}", device, order


def _process(
    pid: int | str, name: str, label: str, order: int, owner: dict[str, int]
) -> list[dict[str, Any]]:
    """Events that name a process."""
    about = {"ph": "M", "pid": pid, "tid": 0}
    return [
        _named("process_name", pid, name, 0, owner),
        about | {"name": "process_labels", "args": {"labels": label} | owner},
        about | {"name": "process_sort_index", "args": {"sort_index": order} | owner},
    ]


def _named(
    what: str, pid: int | str, name: str, tid: int | str, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name} | (more or {})}


def _thread_ids(places: list[_Place], lanes: list[dict[str, Any]]) -> list[int | str]:
    """`tid` of each place: a lane's own number, unless another stands there already."""
    tids: list[int | str] = [0] * len(places)
    taken: dict[tuple[int, int, LaneKind], set[int | str]] = {}
    own_first = sorted(
        range(len(places)), key=lambda k: (lanes[places[k].lane]["kind"] != places[k].kind, k)
    )
    for k in own_first:
        rank, device, kind, lane = places[k]
        used = taken.setdefault((rank, device, kind), set())
        tid = _own_id(kind, lanes[lane])
        if tid is None or tid in used:
            tid = _fresh(used, lanes)
        used.add(tid)
        tids[k] = tid
    return tids


def _own_id(kind: LaneKind, lane: dict[str, Any]) -> int | str | None:
    """A lane's number; its name if it has no number, None if that looks like one."""
    if lane["number"] > NO_NUMBER:
        return int(lane["number"])
    name = str(lane["name"])
    if kind is LaneKind.STREAM:
        name = name.removeprefix("stream ")
    return None if _NUMERIC.fullmatch(name) or kind in _DEVICE_LANES[1:] else name


def _fresh(used: Iterable[int | str], lanes: list[dict[str, Any]]) -> int:
    """A number that no lane has."""
    numbers = [tid for tid in used if isinstance(tid, int)]
    return max([*numbers, *(int(lane["number"]) for lane in lanes), 0]) + 1
