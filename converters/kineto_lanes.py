"""Lanes of Kineto's events: streams of devices, threads of the host, the profiler's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.converters import kineto_ranks
from chopper_interop.converters.kineto_numbers import in_reach
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_events import TraceFile

_DEVICE_LANES = {
    int(Kind.GPU_ANNOTATION): LaneKind.GPU_ANNOTATION,
    int(Kind.GPU_SYNC): LaneKind.GPU_SYNC,
}
_PROFILER_KINDS = (Kind.SPAN, Kind.OVERHEAD)
_LABELLED = -(1 << 61)
"""Below this, a pid or tid is a text of the file."""


def lanes(
    builder: TraceBuilder,
    file: TraceFile,
    owners: kineto_ranks.Owners,
    chosen: Array,
    kind: Array,
    on_device: Array,
) -> Array:
    """Lane of each node: streams by device and stream, host threads by thread id."""
    rows = file.rows[chosen]
    device = np.where(on_device, owners.raw_pid[chosen], -1)
    number = rows["tid"].copy()
    values, found = file.numbers(chosen[on_device], "device", "stream")
    device[on_device] = np.where(found[0], values[0], device[on_device])
    device[~in_reach(device)] = -1  # a text, or no device
    number[on_device] = np.where(found[1], values[1], number[on_device])
    rank = owners.rank[chosen].astype(np.int64)
    lane_kind = np.full(len(chosen), int(LaneKind.THREAD), np.int64)
    profiler = is_any(kind, _PROFILER_KINDS) | (rows["pid"] <= _LABELLED)
    lane_kind[profiler & ~on_device] = LaneKind.PROFILER
    lane_kind[on_device] = LaneKind.STREAM
    for of_kind, lane in _DEVICE_LANES.items():
        lane_kind[kind == of_kind] = lane
    first, code = gather.distinct(rank, device, lane_kind, number)
    names = kineto_ranks.thread_names(file)
    made = [
        builder.lane(
            int(rank[i]),
            LaneKind(int(lane_kind[i])),
            int(number[i]),
            _lane_name(LaneKind(int(lane_kind[i])), int(number[i]), names, file, rows[i]),
            int(device[i]),
        )
        for i in first.tolist()
    ]
    return np.array(made, np.int32)[code]


def _lane_name(
    kind: LaneKind, number: int, names: dict[tuple[int, int], str], file: TraceFile, row: Any
) -> str:
    label = file.labels.get(number)
    if kind is LaneKind.STREAM:
        return f"stream {label if label is not None else number}"
    if kind is LaneKind.GPU_ANNOTATION:
        return f"annotations of stream {number}"
    if kind is LaneKind.GPU_SYNC:
        return f"waits of stream {number}" if number >= 0 else "waits of the device"
    given = names.get((int(row["pid"]), int(row["tid"])))
    return label or given or ("profiler" if label == "" else f"thread {number}")
