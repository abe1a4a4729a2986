"""Lanes of recordings by ROCm's profilers: threads, streams, queues and copy engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.rocm.tables import DIRECTIONS
from chopper_interop.schemas.kinds import LaneKind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.rocm.rows import TableRows

MAX_STREAMS = 64
"""With more streams on a device, its queues are the lanes: HIP puts hundreds on a few queues.
Chosen: more lanes cannot be read in a picture, and programs that name streams use a few."""
ANY_DIRECTION = len(DIRECTIONS)
"""Number of the copy lane for copies in no known direction."""


@dataclass(frozen=True)
class LaneKeys:
    """Lane of each row of a table, in columns as long as the table.

    Parameters
    ----------
    rank, device
        Rank of each row, and its device, -1 on the host.
    kind, number
        Kind (`LaneKind`) and number of the lane.
    """

    rank: Array
    device: Array
    kind: Array
    number: Array

    def take(self, rows: Array) -> LaneKeys:
        """Return the lanes of some of the rows."""
        return LaneKeys(*(c[rows] for c in (self.rank, self.device, self.kind, self.number)))


class LaneAdder:
    """Decides on the lanes of a recording, and adds them to the trace.

    Parameters
    ----------
    builder
        Builder of the trace.
    work
        Rank, device and rows of each table of kernels and copies, which determine the devices on
        which streams are lanes.
    """

    def __init__(
        self, builder: TraceBuilder, work: Sequence[tuple[Array, Array, TableRows]]
    ) -> None:
        self.builder = builder
        self._by_stream = _devices_by_stream(work)

    def rows(self, keys: LaneKeys) -> Array:
        """Return the rows of `lanes` for these keys, adding new ones."""
        first, code = gather.distinct(keys.rank, keys.device, keys.kind, keys.number)
        lanes = []
        for i in first.tolist():
            kind, number = LaneKind(int(keys.kind[i])), int(keys.number[i])
            device = int(keys.device[i])
            name = _NAMES[kind](number)
            lanes.append(self.builder.lane(int(keys.rank[i]), kind, number, name, device))
        return np.array(lanes, np.int32)[code]

    def of_kernels(self, rank: Array, device: Array, rows: TableRows) -> LaneKeys:
        """Return the lanes of kernels: streams where they serve as lanes, else hardware queues."""
        by_stream = self._streams(rank, device) & rows.is_known("stream")
        kind = np.where(by_stream, int(LaneKind.STREAM), int(LaneKind.QUEUE))
        number = np.where(by_stream, rows.number("stream"), rows.number("queue"))
        return LaneKeys(rank, device, kind, number)

    def of_copies(self, rank: Array, device: Array, rows: TableRows) -> LaneKeys:
        """Return the lanes of copies: streams where they serve as lanes, else the directions."""
        by_stream = self._streams(rank, device) & rows.is_known("stream")
        kind = np.where(by_stream, int(LaneKind.STREAM), int(LaneKind.COPY))
        number = np.where(by_stream, rows.number("stream"), copy_directions(rows))
        return LaneKeys(rank, device, kind, number)

    def _streams(self, rank: Array, device: Array) -> Array:
        """Mark the rows on whose device streams are lanes."""
        first, code = gather.distinct(rank, device)
        marks = [self._by_stream.get((int(rank[i]), int(device[i])), False) for i in first.tolist()]
        return np.array([*marks, False], bool)[code]


def lanes_of_kind(rank: Array, device: Array, kind: LaneKind, number: Array) -> LaneKeys:
    """Return lanes that are all of one kind."""
    return LaneKeys(rank, device, np.full(len(rank), int(kind), np.int64), number)


def copy_directions(rows: TableRows) -> Array:
    """Return the direction of each copy: its index in `DIRECTIONS`, or `ANY_DIRECTION`."""
    return rows.per_text("name", _direction, ANY_DIRECTION).astype(np.int64, copy=False)


def _direction(name: str) -> int:
    ends = (i for i, (end, _) in enumerate(DIRECTIONS) if _plain(name).endswith(_plain(end)))
    return next(ends, ANY_DIRECTION)


def _plain(direction: str) -> str:
    """Remove the underscores that only some tools put between words (``CopyHostToDevice``)."""
    return direction.upper().replace("_", "")


def _devices_by_stream(
    work: Sequence[tuple[Array, Array, TableRows]],
) -> dict[tuple[int, int], bool]:
    """Return for each rank and device whether its streams are lanes.

    They are unless they are many, or one stream stands for the work of several queues.
    """
    if not work:
        return {}
    rank, device = (np.concatenate([w[i] for w in work]) for i in (0, 1))
    stream = np.concatenate([rows.number("stream") for _, _, rows in work])
    queue = np.concatenate([rows.number("queue") for _, _, rows in work])
    first, code = gather.distinct(rank, device)
    by_stream = {}
    for group, row in enumerate(first.tolist()):
        streams = np.unique(stream[code == group])
        queues = np.unique(queue[code == group])
        streams, queues = streams[streams >= 0], queues[queues >= 0]
        one_stands_for_all = streams.size == 1 and queues.size > 1
        few = 0 < streams.size <= MAX_STREAMS
        by_stream[int(rank[row]), int(device[row])] = few and not one_stands_for_all
    return by_stream


def _copy_lane(number: int) -> str:
    return f"copies {DIRECTIONS[number][1]}" if number < ANY_DIRECTION else "copies"


_NAMES: dict[LaneKind, Callable[[int], str]] = {
    LaneKind.THREAD: lambda n: f"thread {n}" if n > 0 else "ranges of the process",
    LaneKind.STREAM: lambda n: f"stream {n}",
    LaneKind.QUEUE: lambda n: f"queue {n}" if n >= 0 else "queue",
    LaneKind.COPY: _copy_lane,
    LaneKind.GPU_ANNOTATION: lambda n: f"graphs of queue {n}",
    LaneKind.GPU_SYNC: lambda n: f"waits of queue {n}",
    LaneKind.MEMORY: lambda _: "memory",
    LaneKind.PROFILER: lambda _: "system",
}
