"""Lanes of rocprofv3's recordings: on which thread, stream, queue or copy engine things ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.converters.rocprof_tables import DIRECTIONS
from chopper_interop.schemas.kinds import LaneKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows

MANY_STREAMS = 64
"""With more streams on a device, its queues are the lanes: HIP puts hundreds on a few queues."""
ANY_DIRECTION = len(DIRECTIONS)
"""Number of the copy lane for what goes in no known direction."""


@dataclass(frozen=True)
class Place:
    """Where rows of a table ran: columns as long as the table.

    Parameters
    ----------
    rank, device
        Whose they are, and on which device; -1 on the host.
    kind, number
        Kind (`LaneKind`) and number of the lane.
    """

    rank: Array
    device: Array
    kind: Array
    number: Array

    def take(self, rows: Array) -> Place:
        """The places of some of the rows."""
        return Place(*(c[rows] for c in (self.rank, self.device, self.kind, self.number)))


class Lanes:
    """Decides which lanes a recording has.

    Parameters
    ----------
    builder
        Where they are made.
    work
        Rank, device and rows of each table of kernels and copies: from them it follows on which
        devices streams are lanes.
    """

    def __init__(self, builder: TraceBuilder, work: Sequence[tuple[Array, Array, Rows]]) -> None:
        self.builder = builder
        self._by_stream = _told_by_stream(work)

    def rows(self, place: Place) -> Array:
        """Rows of `lanes` for these places."""
        first, code = gather.distinct(place.rank, place.device, place.kind, place.number)
        found = []
        for i in first.tolist():
            kind, number = LaneKind(int(place.kind[i])), int(place.number[i])
            device = int(place.device[i])
            name = _NAMES[kind](number)
            found.append(self.builder.lane(int(place.rank[i]), kind, number, name, device))
        return np.array(found, np.int32)[code]

    def of_kernels(self, rank: Array, device: Array, rows: Rows) -> Place:
        """Streams where they tell things apart, else hardware queues."""
        by_stream = self._streams(rank, device) & rows.is_known("stream")
        kind = np.where(by_stream, int(LaneKind.STREAM), int(LaneKind.QUEUE))
        number = np.where(by_stream, rows.number("stream"), rows.number("queue"))
        return Place(rank, device, kind, number)

    def of_copies(self, rank: Array, device: Array, rows: Rows) -> Place:
        """The stream on a device where streams are lanes, else a lane for each direction."""
        by_stream = self._streams(rank, device) & rows.is_known("stream")
        kind = np.where(by_stream, int(LaneKind.STREAM), int(LaneKind.COPY))
        number = np.where(by_stream, rows.number("stream"), directions(rows))
        return Place(rank, device, kind, number)

    def _streams(self, rank: Array, device: Array) -> Array:
        """Whether streams are lanes on the device of each row."""
        first, code = gather.distinct(rank, device)
        told = [self._by_stream.get((int(rank[i]), int(device[i])), False) for i in first.tolist()]
        return np.array([*told, False], bool)[code]


def constant(rank: Array, device: Array, kind: LaneKind, number: Array) -> Place:
    """Places that are all on lanes of one kind."""
    return Place(rank, device, np.full(len(rank), int(kind), np.int64), number)


def directions(rows: Rows) -> Array:
    """Direction of each copy: its place in `DIRECTIONS`, or `ANY_DIRECTION`."""
    codes, texts = rows.codes("name")
    numbers = [
        next(
            (i for i, (end, _) in enumerate(DIRECTIONS) if _plain(t).endswith(_plain(end))),
            ANY_DIRECTION,
        )
        for t in texts
    ]
    return np.array([*numbers, ANY_DIRECTION], np.int64)[codes]


def _plain(direction: str) -> str:
    """A direction without what only some tools put between its words (``CopyHostToDevice``)."""
    return direction.upper().replace("_", "")


def _told_by_stream(work: Sequence[tuple[Array, Array, Rows]]) -> dict[tuple[int, int], bool]:
    """(Rank, device) → whether its streams tell more than its queues and are few enough."""
    if not work:
        return {}
    rank, device = (np.concatenate([w[i] for w in work]) for i in (0, 1))
    stream = np.concatenate([rows.number("stream") for _, _, rows in work])
    queue = np.concatenate([rows.number("queue") for _, _, rows in work])
    first, code = gather.distinct(rank, device)
    told = {}
    for group, row in enumerate(first.tolist()):
        streams = np.unique(stream[code == group])
        queues = np.unique(queue[code == group])
        streams, queues = streams[streams >= 0], queues[queues >= 0]
        one_stands_for_all = streams.size == 1 and queues.size > 1
        few = 0 < streams.size <= MANY_STREAMS
        told[int(rank[row]), int(device[row])] = few and not one_stands_for_all
    return told


def _copies(number: int) -> str:
    return f"copies {DIRECTIONS[number][1]}" if number < ANY_DIRECTION else "copies"


_NAMES: dict[LaneKind, Callable[[int], str]] = {
    LaneKind.THREAD: lambda n: f"thread {n}" if n > 0 else "ranges of the process",
    LaneKind.STREAM: lambda n: f"stream {n}",
    LaneKind.QUEUE: lambda n: f"queue {n}" if n >= 0 else "queue",
    LaneKind.COPY: _copies,
    LaneKind.GPU_ANNOTATION: lambda n: f"graphs of queue {n}",
    LaneKind.GPU_SYNC: lambda n: f"waits of queue {n}",
    LaneKind.MEMORY: lambda _: "memory",
    LaneKind.PROFILER: lambda _: "system",
}
