"""Kinds and lanes of slices, by their tracks, categories, names and arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.perfetto.read import kinds
from chopper_interop.converters.perfetto.read.annotations_text import CPU, UNKNOWN
from chopper_interop.converters.perfetto.read.events_decode import (
    INSTANT,
    ON_ID,
    ON_THREAD,
    ON_TRACK,
    TrackEvents,
)
from chopper_interop.converters.perfetto.read.tracks import NO_PROCESS, TrackTable
from chopper_interop.schemas.categories import PERFETTO
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.perfetto.chopper_metadata import ChopperMetadata

_CHOPPER_GPU = re.compile(r"GPU(?: (?P<device>\d+))?(?: \(.*\))?$")
_CHOPPER_WORK = re.compile(r" \((compute|communication|copies|fills)\)$")
_CHOPPER_KINDS = {
    1: LaneKind.STREAM,
    2: LaneKind.COPY,
    3: LaneKind.GPU_ANNOTATION,
    4: LaneKind.GPU_SYNC,
    5: LaneKind.MEMORY,
}
"""Hundreds of a track's position in its group → kind of its lane, as our writer orders them."""
_LAST_NUMBER = re.compile(r"(\d{1,18})$")
_LANE_OF_KIND = {
    int(Kind.GPU_ANNOTATION): LaneKind.GPU_ANNOTATION,
    int(Kind.GPU_SYNC): LaneKind.GPU_SYNC,
    int(Kind.ALLOCATION): LaneKind.MEMORY,
}
_PROFILER = (Kind.SPAN, Kind.OVERHEAD, Kind.OTHER)
_ON_THREADS = (
    Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER, Kind.API, Kind.PYTHON, Kind.ANNOTATION
)  # fmt: skip
_UNNUMBERED = 1 << 40
"""Lanes are numbered from here on where their tracks have no number; beyond all thread ids."""
_UNSPECIFIED = -9
"""Device of a track whose name does not contain it."""


@dataclass(frozen=True)
class TrackLane:
    """The lane that a track stands for, as far as the track itself determines it.

    Parameters
    ----------
    pid
        Process that it belongs to.
    kind
        Kind of the lane, 0 if it follows from the slices on it.
    device, number
        As in its name; `_UNSPECIFIED` and a number from `_UNNUMBERED` on if they are not there.
    name
        Name of the lane.
    exact
        True if the metadata of our own writer has all of it.
    """

    pid: int
    kind: int
    device: int
    number: int
    name: str
    exact: bool = False


def track_lanes(
    events: TrackEvents, tracks: TrackTable, metadata: ChopperMetadata, *, from_chopper: bool
) -> tuple[Array, list[TrackLane]]:
    """Return for each event the index of its track, and the lane of each track.

    Parameters
    ----------
    events, tracks, metadata
        Of the trace.
    from_chopper
        True if our own writer wrote the trace.
    """
    # a track is identified by three numbers: the kind of its id, its uuid or id, and its thread
    on_id = events.track_kind == ON_ID
    track = np.where(events.track_kind == ON_THREAD, 0, events.track.view(np.int64))
    thread = np.where(events.track_kind == ON_THREAD, events.thread, 0)
    thread = np.where(on_id, events.thread >> 32, thread)
    kind = events.track_kind.astype(np.int64)
    if not len(kind):
        return np.zeros(0, np.int64), []
    first, code = gather.distinct(kind, track, thread)
    default_pid = _only_process(tracks)
    lanes = []
    for i, row in enumerate(first.tolist()):
        if kind[row] == ON_TRACK:
            uuid = int(events.track[row])
            lane = _described_lane(tracks, uuid, i, default_pid, from_chopper=from_chopper)
            if uuid in metadata.lanes:
                lane = TrackLane(lane.pid, *metadata.lanes[uuid], exact=True)
        elif kind[row] == ON_THREAD:
            pid, tid = int(thread[row]) >> 32, int(thread[row]) & 0xFFFFFFFF
            name = tracks.threads.get((pid, tid), f"thread {tid}")
            lane = TrackLane(pid, int(LaneKind.THREAD), -1, tid, name)
        elif kind[row] == ON_ID:
            pid = int(thread[row])
            lane = TrackLane(pid, 0, _UNSPECIFIED, _UNNUMBERED + i, "asynchronous")
        else:
            name = "events without a track"
            lane = TrackLane(default_pid, 0, _UNSPECIFIED, _UNNUMBERED + i, name)
        lanes.append(lane)
    return code, lanes


def _only_process(tracks: TrackTable) -> int:
    """Return the id of the only process, to which all belongs; `NO_PROCESS` if there are several."""
    pids = {t.pid for t in tracks.by_uuid.values() if t.pid != NO_PROCESS}
    return pids.pop() if len(pids) == 1 else NO_PROCESS


def _described_lane(
    tracks: TrackTable, uuid: int, ordinal: int, default_pid: int, *, from_chopper: bool
) -> TrackLane:
    """Return the lane of a track with a uuid, by its descriptor and its name."""
    ancestry = tracks.ancestry(uuid)
    owner = tracks.process_of(uuid)
    pid = default_pid if owner == NO_PROCESS else owner
    number = _UNNUMBERED + ordinal
    if not ancestry:
        return TrackLane(pid, 0, _UNSPECIFIED, number, f"track {uuid}")
    track = ancestry[0]
    if track.tid >= 0:
        name = track.name or f"thread {track.tid}"
        return TrackLane(pid, int(LaneKind.THREAD), -1, track.tid, name)
    if from_chopper:
        return _chopper_lane(tracks, uuid, number, pid)
    parents = " ".join(t.name for t in ancestry[1:] if t.name)
    for pattern, kind in kinds.TRACK_NAMES:
        match = pattern.match(track.name) or pattern.search(f"{parents} {track.name}".strip())
        if match:
            return _named_lane(kind, match, track.name, pid)
    return TrackLane(pid, 0, _UNSPECIFIED, number, track.name or f"track {uuid}")


def _named_lane(kind: LaneKind, match: re.Match[str], name: str, pid: int) -> TrackLane:
    """Return the lane of a track whose name is one of `kinds.TRACK_NAMES`."""
    parts = match.groupdict()
    device = -1 if kind is LaneKind.THREAD else _UNSPECIFIED
    if parts.get("device") is not None and not parts.get("host"):
        device = int(parts["device"])
    number = int(parts.get("number") or 0)
    if kind is LaneKind.COPY:  # threads of several devices may have the same number
        number += 100 * max(0, device)
    labels = {LaneKind.STREAM: "stream", LaneKind.QUEUE: "queue", LaneKind.THREAD: "thread"}
    label = f"{labels[kind]} {number}" if kind in labels else name
    return TrackLane(pid, int(kind), device, min(number, _UNNUMBERED), label)


def _chopper_lane(tracks: TrackTable, uuid: int, number: int, pid: int) -> TrackLane:
    """Return the lane of a track that an older version of our writer made, without metadata."""
    track = tracks.by_uuid[uuid]
    parent = tracks.by_uuid.get(track.parent)
    gpu = _CHOPPER_GPU.match(parent.name) if parent and parent.pid == NO_PROCESS else None
    kind = _CHOPPER_KINDS.get(track.order_rank // 100)
    if gpu is None or kind is None:
        same = [t.tid for t in tracks.by_uuid.values() if t.tid >= 0 and t.name == track.name]
        same = [t for t in same if tracks.threads.get((pid, t)) == track.name]
        if same:  # slices that overlap on a thread
            return TrackLane(pid, int(LaneKind.THREAD), -1, same[0], track.name)
        return TrackLane(pid, 0, -1, number, track.name)
    name = _CHOPPER_WORK.sub("", track.name)
    device = int(gpu["device"]) if gpu["device"] else -1
    match = _LAST_NUMBER.search(name)
    number = int(match.group(1)) if match else track.order_rank % 100
    if kind is LaneKind.STREAM and "queue" in name:
        kind = LaneKind.QUEUE
    if kind is LaneKind.COPY:
        number = track.order_rank % 100
    return TrackLane(pid, int(kind), device, number, name)


def slice_kinds(  # noqa: PLR0913, PLR0917 # columns of one table
    type_: Array, category: Array, categories: list[str], name: Array, names: list[str],
    on_gpu: Array, values: dict[str, Array],
) -> Array:  # fmt: skip
    """Return the kind of each slice: by its category, else by arguments, name and track.

    Parameters
    ----------
    type_
        Type of the event that begins it.
    category, categories, name, names
        Numbers of categories (-1 without one) and names, and their texts.
    on_gpu
        Mask of the slices whose track is a GPU's.
    values
        Arguments as columns.
    """
    # tables over the distinct texts, with one entry more: index -1 stands for no text
    n = len(type_)
    plain = [c.lower() for c in categories]
    by_category = np.array([*(int(PERFETTO.get(c, 0)) for c in plain), 0], np.int64)
    has_category = np.array([*(bool(c) for c in categories), False])[category]
    by_call = np.array(
        [*((int(kinds.call_kind(t, "x")), int(kinds.call_kind(t, ""))) for t in names),
         (int(Kind.OTHER), int(Kind.CPU_OP))]
    )  # fmt: skip
    call = np.where(has_category, by_call[name, 0], by_call[name, 1])
    is_dispatch = has_argument(values, n, "kernel_id")
    is_copy = has_argument(values, n, "copy_bytes", "dst_agent", "dst_agent_id")
    on_queue = on_gpu | is_dispatch | (by_category[category] == Kind.KERNEL)
    by_work = np.full(len(names) + 1, int(Kind.KERNEL))
    used = gather.unique_codes(name[on_queue])
    by_work[used] = [int(kinds.gpu_work_kind(names[i])) for i in used.tolist()]
    work = by_work[name]
    guess = np.where(on_gpu, work, call)
    guess = np.where(type_ == INSTANT, int(Kind.INSTANT), guess)
    guess = np.where(is_copy, int(Kind.MEMCPY), np.where(is_dispatch, work, guess))
    kind = np.where(by_category[category] > 0, by_category[category], guess)
    return np.where((kind == Kind.KERNEL) & (work == Kind.COMM), int(Kind.COMM), kind)


def has_argument(values: dict[str, Array], slices: int, *names: str) -> Array:
    """Mark the slices that have one of these arguments."""
    mask = np.zeros(slices, np.bool_)
    for name in names:
        if name in values:
            mask |= values[name] != UNKNOWN
    return mask


def first_argument(values: dict[str, Array], slices: int, *names: str) -> Array:
    """Return the first of these arguments that each slice has; `UNKNOWN` without any."""
    first = np.full(slices, UNKNOWN, np.int64)
    for name in names:
        if name in values:
            first = np.where(first == UNKNOWN, values[name], first)
    return first


def slice_lanes(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, rank: Array, track: Array, lanes: list[TrackLane], kind: Array,
    values: dict[str, Array], direction: Array, *, from_chopper: bool,
) -> Array:  # fmt: skip
    """Add the lanes of slices to the builder, and return the lane of each slice.

    Parameters
    ----------
    builder
        Builder of the trace.
    rank, track, kind
        Columns of the slices.
    lanes
        Lanes of the tracks.
    values
        Arguments as columns.
    direction
        Directions of copies, see `copy_directions`.
    from_chopper
        True if our own writer wrote the trace.
    """
    n = len(track)
    if not n:
        return np.zeros(0, np.int32)
    lane_kind, device, number = (
        np.array([getattr(lane, c) for lane in lanes], np.int64)[track]
        for c in ("kind", "device", "number")
    )
    exact = np.array([lane.exact for lane in lanes])[track]
    recorded = lane_kind, device, number
    stream = first_argument(values, n, "stream", "stream_id", "stream_ID")
    # GPU work on a thread's track goes to a lane of its stream
    moved = is_any(kind, GPU_WORK) & is_any(lane_kind, (0, LaneKind.THREAD))
    number = np.where(moved & (stream != UNKNOWN), stream, number)
    work_kind = np.where((stream != UNKNOWN) | (lane_kind > 0), LaneKind.STREAM, LaneKind.QUEUE)
    lane_kind = np.where(moved, work_kind, lane_kind)
    lane_kind = _special_lanes(lane_kind, kind, track, len(lanes), from_chopper=from_chopper)
    device = _devices(device, lane_kind, values, direction, from_chopper=from_chopper)
    lane_kind, device, number = (
        np.where(exact, known, derived) for known, derived in
        zip(recorded, (lane_kind, device, number), strict=True)
    )  # fmt: skip
    first, code = gather.distinct(rank, lane_kind, device, number)
    rows = [
        builder.lane(
            int(rank[i]), LaneKind(int(lane_kind[i])), int(number[i]), _label(lanes[track[i]],
            LaneKind(int(lane_kind[i])), int(number[i])), int(device[i]),
        )
        for i in first.tolist()
    ]  # fmt: skip
    return np.array(rows, np.int32)[code]


def _special_lanes(
    lane_kind: Array, kind: Array, track: Array, tracks: int, *, from_chopper: bool
) -> Array:
    """Return kinds of lanes, with those of annotations, waits, allocations and the profiler."""
    for of_kind, lane in _LANE_OF_KIND.items():
        rows = (kind == of_kind) & is_any(lane_kind, (0, LaneKind.STREAM, LaneKind.QUEUE))
        if of_kind in (Kind.ALLOCATION, Kind.GPU_SYNC):
            rows &= lane_kind > 0
        lane_kind = np.where(rows, int(lane), lane_kind)
    is_profiler = (lane_kind == 0) & is_any(kind, _PROFILER)
    if from_chopper:  # a track without any call or operator is the profiler's
        with_calls = np.zeros(tracks, np.bool_)
        with_calls[track[is_any(kind, _ON_THREADS)]] = True
        is_profiler = (lane_kind == 0) & ~with_calls[track]
    lane_kind = np.where(is_profiler, int(LaneKind.PROFILER), lane_kind)
    return np.where(lane_kind == 0, int(LaneKind.THREAD), lane_kind)


def _label(lane: TrackLane, kind: LaneKind, number: int) -> str:
    if lane.kind == kind or number >= _UNNUMBERED:
        return lane.name
    return f"{kind.name.lower().replace('_', ' ')} {number}"


def copy_directions(names: list[str], name: Array) -> Array:
    """Return the direction of copies by their names: 1 to the host, 2 to a device, 0 if unknown."""
    by_name = [
        1 if kinds.TO_HOST.search(text) else 2 if kinds.TO_DEVICE.search(text) else 0
        for text in names
    ]
    return np.array([*by_name, 0])[name]


def _devices(
    device: Array,
    lane_kind: Array,
    values: dict[str, Array],
    direction: Array,
    *,
    from_chopper: bool,
) -> Array:
    """Return devices by arguments and tracks; of a copy, the end that is no processor.

    rocprofv3 numbers the agents of arguments by the option that chooses how, those of the tracks
    of copies by their node: arguments take precedence. Tracks of our own writer are exact.
    """
    n = len(device)
    on_host = is_any(lane_kind, (LaneKind.THREAD, LaneKind.PROFILER))
    agent = first_argument(values, n, "device", "agent", "agent_id", "Agent ID")
    target = first_argument(values, n, "dst_agent", "dst_agent_id")
    source = first_argument(values, n, "src_agent", "src_agent_id")
    gpus = np.concatenate([agent[agent >= 0], device[(device >= 0) & (target == UNKNOWN)]])
    to_host = (target == CPU) | ((source >= 0) & np.isin(source, gpus) & ~np.isin(target, gpus))
    to_host = np.where(direction > 0, direction == 1, to_host)
    copied = np.where(to_host & (source >= 0), source, target)
    argument = np.where(agent != UNKNOWN, agent, copied)
    known = (argument >= 0) & (argument < 1 << 31)
    if from_chopper:
        known &= device < 0
    result = np.where(known, argument, device)
    unknown = np.where(device == -1, -1, 0)
    return np.where(on_host, -1, np.where(result < 0, unknown, result))
