"""Where slices belong: which rank's, which kind they are, on which lane."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.converters.perfetto_read_annotations_text import CPU, UNKNOWN
from chopper_interop.converters.perfetto_read_events_decode import (
    INSTANT,
    ON_ID,
    ON_THREAD,
    ON_TRACK,
)
from chopper_interop.converters.perfetto_read_tracks import NOBODY, Tracks
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_about import About
    from chopper_interop.converters.perfetto_read_events_decode import Events

_OUR_GPU = re.compile(r"GPU(?: (?P<device>\d+))?(?: \(.*\))?$")
_OUR_USE = re.compile(r" \((compute|communication|copies|fills)\)$")
_OUR_PLACES = {
    1: LaneKind.STREAM,
    2: LaneKind.COPY,
    3: LaneKind.GPU_ANNOTATION,
    4: LaneKind.GPU_SYNC,
    5: LaneKind.MEMORY,
}
"""Hundreds of the place of a track in its group → kind of its lane, as our writer orders them."""
_LAST_NUMBER = re.compile(r"(\d{1,18})$")
_BY_KIND = {
    int(Kind.GPU_ANNOTATION): LaneKind.GPU_ANNOTATION,
    int(Kind.GPU_SYNC): LaneKind.GPU_SYNC,
    int(Kind.ALLOCATION): LaneKind.MEMORY,
}
_PROFILER = (int(Kind.SPAN), int(Kind.OVERHEAD), int(Kind.OTHER))
_ON_THREADS = [
    int(k) for k in (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER, Kind.API, Kind.PYTHON, Kind.ANNOTATION)
]
_NAMELESS = 1 << 40
"""From here on lanes are numbered whose tracks have no number."""
_NOT_TOLD = -9


@dataclass(frozen=True)
class Place:
    """What a track is.

    Parameters
    ----------
    pid
        Process that it belongs to.
    kind
        Kind of its lane, 0 if that follows from what lies on it.
    device, number
        As its name tells; `_NOT_TOLD` if it does not.
    name
        Name for people.
    exact
        Whether our own writer said all of it.
    """

    pid: int
    kind: int
    device: int
    number: int
    name: str
    exact: bool = False


def places(
    events: Events, tracks: Tracks, about: About, *, ours: bool
) -> tuple[Array, list[Place]]:
    """Which track each event is on, and what the tracks are."""
    on_id = events.track_kind == ON_ID
    track = np.where(events.track_kind == ON_THREAD, 0, events.track.view(np.int64))
    thread = np.where(events.track_kind == ON_THREAD, events.thread, 0)
    thread = np.where(on_id, events.thread >> 32, thread)
    kind = events.track_kind.astype(np.int64)
    if not len(kind):
        return np.zeros(0, np.int64), []
    first, code = gather.distinct(kind, track, thread)
    sole = _sole(tracks)
    found = []
    for i, row in enumerate(first.tolist()):
        if kind[row] == ON_TRACK:
            uuid = int(events.track[row])
            place = _of_track(tracks, uuid, i, sole, ours=ours)
            if uuid in about.lanes:
                place = Place(place.pid, *about.lanes[uuid], exact=True)
        elif kind[row] == ON_THREAD:
            pid, tid = int(thread[row]) >> 32, int(thread[row]) & 0xFFFFFFFF
            name = tracks.threads.get((pid, tid), f"thread {tid}")
            place = Place(pid, int(LaneKind.THREAD), -1, tid, name)
        elif kind[row] == ON_ID:
            place = Place(int(thread[row]), 0, _NOT_TOLD, _NAMELESS + i, "asynchronous")
        else:
            place = Place(sole, 0, _NOT_TOLD, _NAMELESS + i, "events without a track")
        found.append(place)
    return code, found


def _sole(tracks: Tracks) -> int:
    """The process that all belongs to if there is but one."""
    pids = {t.pid for t in tracks.by_uuid.values() if t.pid != NOBODY}
    return pids.pop() if len(pids) == 1 else NOBODY


def _of_track(tracks: Tracks, uuid: int, ordinal: int, sole: int, *, ours: bool) -> Place:
    line = tracks.line(uuid)
    owner = tracks.owner(uuid)
    pid = sole if owner == NOBODY else owner
    if not line:
        return Place(pid, 0, _NOT_TOLD, _NAMELESS + ordinal, f"track {uuid}")
    track = line[0]
    if track.tid >= 0:
        return Place(pid, int(LaneKind.THREAD), -1, track.tid, track.name or f"thread {track.tid}")
    if ours:
        return _of_ours(tracks, uuid, ordinal, pid)
    parents = " ".join(t.name for t in line[1:] if t.name)
    for pattern, kind in kinds.TRACKS:
        told = pattern.match(track.name) or pattern.search(f"{parents} {track.name}".strip())
        if told:
            parts = told.groupdict()
            device = parts.get("device")
            on = -1 if kind is LaneKind.THREAD else _NOT_TOLD
            on = on if device is None or parts.get("host") else int(device)
            number = int(parts.get("number") or 0)
            if kind is LaneKind.COPY:
                number += 100 * (max(0, on))
            return Place(
                pid, int(kind), on, min(number, _NAMELESS), _name(kind, number, track.name)
            )
    return Place(pid, 0, _NOT_TOLD, _NAMELESS + ordinal, track.name or f"track {uuid}")


def _name(kind: LaneKind, number: int, name: str) -> str:
    labels = {LaneKind.STREAM: "stream", LaneKind.QUEUE: "queue", LaneKind.THREAD: "thread"}
    return f"{labels[kind]} {number}" if kind in labels else name


def _of_ours(tracks: Tracks, uuid: int, ordinal: int, pid: int) -> Place:
    """What our own writer made a track of."""
    track = tracks.by_uuid[uuid]
    parent = tracks.by_uuid.get(track.parent)
    gpu = _OUR_GPU.match(parent.name) if parent is not None and parent.pid == NOBODY else None
    kind = _OUR_PLACES.get(track.place // 100)
    if gpu is None or kind is None:
        same = [t.tid for t in tracks.by_uuid.values() if t.tid >= 0 and t.name == track.name]
        same = [t for t in same if tracks.threads.get((pid, t)) == track.name]
        if same:  # what overlaps on a thread
            return Place(pid, int(LaneKind.THREAD), -1, same[0], track.name)
        return Place(pid, 0, -1, _NAMELESS + ordinal, track.name)
    name = _OUR_USE.sub("", track.name)
    device = int(gpu["device"]) if gpu["device"] else -1
    told = _LAST_NUMBER.search(name)
    number = int(told.group(1)) if told else track.place % 100
    if kind is LaneKind.STREAM and "queue" in name:
        kind = LaneKind.QUEUE
    if kind is LaneKind.COPY:
        number = track.place % 100
    return Place(pid, int(kind), device, number, name)


def kinds_of(  # noqa: PLR0913, PLR0917 # columns of one table
    type_: Array, category: Array, categories: list[str], name: Array, names: list[str],
    on_gpu: Array, values: dict[str, Array],
) -> Array:  # fmt: skip
    """Kind of each slice.

    Parameters
    ----------
    type_
        Type of the event that begins it.
    category, categories, name, names
        Numbers of categories (-1 without one) and names, and their texts.
    on_gpu
        Whether its track is a GPU's.
    values
        Its arguments.
    """
    n = len(type_)
    plain = [c.lower() for c in categories]
    told = np.array([*(int(kinds.CATEGORIES.get(c, 0)) for c in plain), 0], np.int64)[category]
    work = np.array([*(int(kinds.of_work(t)) for t in names), int(Kind.KERNEL)])[name]
    labelled = np.array([*(bool(c) for c in categories), False])[category]
    calls = np.array(
        [*((int(kinds.of_call(t, "x")), int(kinds.of_call(t, ""))) for t in names),
         (int(Kind.OTHER), int(Kind.CPU_OP))]
    )  # fmt: skip
    call = np.where(labelled, calls[name, 0], calls[name, 1])
    dispatch = has(values, n, "kernel_id")
    copy = has(values, n, "copy_bytes", "dst_agent", "dst_agent_id")
    guess = np.where(on_gpu, work, call)
    guess = np.where(type_ == INSTANT, int(Kind.INSTANT), guess)
    guess = np.where(copy, int(Kind.MEMCPY), np.where(dispatch, work, guess))
    kind = np.where(told > 0, told, guess)
    return np.where((kind == Kind.KERNEL) & (work == Kind.COMM), int(Kind.COMM), kind)


def has(values: dict[str, Array], n: int, *names: str) -> Array:
    """Which slices have one of these arguments."""
    found = np.zeros(n, np.bool_)
    for name in names:
        if name in values:
            found |= values[name] != UNKNOWN
    return found


def first_of(values: dict[str, Array], n: int, *names: str) -> Array:
    """The first of some arguments that each slice has; `UNKNOWN` without any."""
    found = np.full(n, UNKNOWN, np.int64)
    for name in names:
        if name in values:
            found = np.where(found == UNKNOWN, values[name], found)
    return found


def lanes(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, rank: Array, track: Array, told: list[Place], kind: Array,
    values: dict[str, Array], way: Array, *, ours: bool,
) -> Array:  # fmt: skip
    """Lane of each slice; `way` is what `ways` says of copies."""
    n = len(track)
    if not n:
        return np.zeros(0, np.int32)
    lane_kind, device, number = (
        np.array([getattr(p, c) for p in told], np.int64)[track]
        for c in ("kind", "device", "number")
    )
    exact = np.array([p.exact for p in told])[track]
    said = lane_kind, device, number
    gpu = is_any(kind, GPU_WORK)
    host = np.isin(lane_kind, [0, int(LaneKind.THREAD)])
    stream = first_of(values, n, "stream", "stream_id", "stream_ID")
    moved = gpu & host
    number = np.where(moved & (stream != UNKNOWN), stream, number)
    work_kind = np.where((stream != UNKNOWN) | (lane_kind > 0), LaneKind.STREAM, LaneKind.QUEUE)
    lane_kind = np.where(moved, work_kind, lane_kind)
    for of_kind, lane in _BY_KIND.items():
        mine = (kind == of_kind) & ((lane_kind == 0) | np.isin(lane_kind, (2, 3)))
        if of_kind in (Kind.ALLOCATION, Kind.GPU_SYNC):
            mine &= lane_kind > 0
        lane_kind = np.where(mine, int(lane), lane_kind)
    profiler = (lane_kind == 0) & np.isin(kind, _PROFILER)
    if ours:  # a track of which no call nor operator is known is the profiler's own
        lively = np.zeros(len(told), np.bool_)
        lively[track[np.isin(kind, _ON_THREADS)]] = True
        profiler = (lane_kind == 0) & ~lively[track]
    lane_kind = np.where(profiler, int(LaneKind.PROFILER), lane_kind)
    lane_kind = np.where(lane_kind == 0, int(LaneKind.THREAD), lane_kind)
    device = _devices(device, lane_kind, values, way, ours=ours)
    lane_kind, device, number = (
        np.where(exact, theirs, ours_) for theirs, ours_ in
        zip(said, (lane_kind, device, number), strict=True)
    )  # fmt: skip
    first, code = gather.distinct(rank, lane_kind, device, number)
    rows = [
        builder.lane(
            int(rank[i]), LaneKind(int(lane_kind[i])), int(number[i]), _label(told[track[i]],
            LaneKind(int(lane_kind[i])), int(number[i])), int(device[i]),
        )
        for i in first.tolist()
    ]  # fmt: skip
    return np.array(rows, np.int32)[code]


def _label(place: Place, kind: LaneKind, number: int) -> str:
    if place.kind == kind or number >= _NAMELESS:
        return place.name
    return f"{kind.name.lower().replace('_', ' ')} {number}"


def ways(names: list[str], name: Array) -> Array:
    """Which way copies go by their names: 1 to the host, 2 to a device, 0 if they do not say."""
    told = [
        1 if kinds.TO_HOST.search(text) else 2 if kinds.TO_DEVICE.search(text) else 0
        for text in names
    ]
    return np.array([*told, 0])[name]


def _devices(
    device: Array, lane_kind: Array, values: dict[str, Array], way: Array, *, ours: bool
) -> Array:
    """Devices as tracks or arguments tell; of a copy, the end that is no processor.

    rocprofv3 numbers the agents of arguments as it is told to, those of the tracks of copies by
    their node: arguments count more. Our own tracks say it exactly.
    """
    n = len(device)
    on_host = np.isin(lane_kind, (int(LaneKind.THREAD), int(LaneKind.PROFILER)))
    own = first_of(values, n, "device", "agent", "agent_id", "Agent ID")
    target = first_of(values, n, "dst_agent", "dst_agent_id")
    source = first_of(values, n, "src_agent", "src_agent_id")
    gpus = np.unique(np.concatenate([own[own >= 0], device[(device >= 0) & (target == UNKNOWN)]]))
    to_host = (target == CPU) | ((source >= 0) & np.isin(source, gpus) & ~np.isin(target, gpus))
    to_host = np.where(way > 0, way == 1, to_host)
    copied = np.where(to_host & (source >= 0), source, target)
    found = np.where(own != UNKNOWN, own, copied)
    told = (found >= 0) & (found < 1 << 31)
    if ours:
        told &= device < 0
    found = np.where(told, found, device)
    return np.where(on_host, -1, np.where(found < 0, np.where(device == -1, -1, 0), found))
