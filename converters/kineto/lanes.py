"""Lanes of Kineto's events: streams of devices, threads of the host, rows of the profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.members import is_any
from chopper_interop.converters.kineto import ranks
from chopper_interop.converters.kineto.numbers import is_id
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.kineto.trace_file import TraceFile
    from chopper_interop.trace import Trace

_DEVICE_LANES = {
    int(Kind.GPU_ANNOTATION): LaneKind.GPU_ANNOTATION,
    int(Kind.GPU_SYNC): LaneKind.GPU_SYNC,
}
_PROFILER_KINDS = (Kind.SPAN, Kind.OVERHEAD)
_TEXT_ID = -(1 << 61)
"""Below this, a pid or tid stands for a text of the file: half of `jsonscan.TEXT`."""


def lane_of_events(
    builder: TraceBuilder,
    file: TraceFile,
    owners: ranks.Owners,
    rows: Array,
    kind: Array,
    on_device: Array,
) -> Array:
    """Add the lanes and return that of each node: by device and stream, or by thread id.

    A stream's device and number are those of the arguments, or else `pid` and `tid`.
    """
    device = np.where(on_device, owners.raw_pid[rows], -1)
    number = file.columns["tid"][rows]
    values, present = file.numbers(rows[on_device], "device", "stream")
    device[on_device] = np.where(present[0], values[0], device[on_device])
    device[~is_id(device)] = -1  # a text, or no device
    number[on_device] = np.where(present[1], values[1], number[on_device])
    rank = owners.rank[rows].astype(np.int64)
    lane_kind = np.full(len(rows), int(LaneKind.THREAD), np.int64)
    profiler = is_any(kind, _PROFILER_KINDS) | (file.columns["pid"][rows] <= _TEXT_ID)
    lane_kind[profiler & ~on_device] = LaneKind.PROFILER
    lane_kind[on_device] = LaneKind.STREAM
    for node_kind, of_device in _DEVICE_LANES.items():
        lane_kind[kind == node_kind] = of_device
    first, code = gather.distinct(rank, device, lane_kind, number)
    names = ranks.thread_names(file)
    lanes = [
        builder.lane(
            int(rank[i]),
            LaneKind(int(lane_kind[i])),
            int(number[i]),
            _lane_name(LaneKind(int(lane_kind[i])), int(number[i]), names, file, int(rows[i])),
            int(device[i]),
        )
        for i in first.tolist()
    ]
    return np.array(lanes, np.int32)[code]


def _lane_name(
    kind: LaneKind, number: int, names: dict[tuple[int, int], str], file: TraceFile, row: int
) -> str:
    label = file.labels.get(number)
    if kind is LaneKind.STREAM:
        return f"stream {label if label is not None else number}"
    if kind is LaneKind.GPU_ANNOTATION:
        return f"annotations of stream {number}"
    if kind is LaneKind.GPU_SYNC:
        return f"waits of stream {number}" if number >= 0 else "waits of the device"
    name_in_file = names.get((int(file.columns["pid"][row]), int(file.columns["tid"][row])))
    return label or name_in_file or ("profiler" if label == "" else f"thread {number}")


def find_lanes(trace: Trace, kind: LaneKind, **columns: Array) -> Array:
    """Row of the lane of a kind at which each row of these columns lies; -1 if there is none.

    Parameters
    ----------
    trace
        The trace.
    kind
        Kind of lane.
    **columns
        Columns of `lanes`, as whole numbers: ``rank=…, number=…``.
    """
    rows = {
        tuple(lane[name] for name in columns): row
        for row, lane in enumerate(trace.lanes.to_pylist())
        if lane["kind"] == kind
    }
    first, code = gather.distinct(*(column.astype(np.int64) for column in columns.values()))
    keys = zip(*(column[first].tolist() for column in columns.values()), strict=True)
    return np.array([*(rows.get(key, -1) for key in keys), -1], np.int64)[code]
