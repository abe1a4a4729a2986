"""What Holistic Trace Analysis reads of a rank for its critical path (`peers.critical_path`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.columns.members import is_any
from chopper_interop.peers import temporal
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_STEP = "ProfilerStep"
OF_DEVICE = ("Event Sync", "Context Sync")
"""Waits that count as a GPU's without a stream."""
_NOT_THERE = (Kind.INSTANT, Kind.SPAN)
"""What it drops when it reads: what has no duration, and the profiler's own brackets."""


@dataclass(frozen=True)
class Events:
    """What it reads of a rank, in the order of the file; times in whole microseconds."""

    node: Array
    kind: Array
    name: Array
    start: Array
    end: Array
    stream: Array
    """-1 for the host."""
    thread: Array
    """Number of the host thread; -1 elsewhere."""
    on_host: Array
    device: Array
    correlation: Array
    link: Array
    """Event at the other end of the launch; -1 if there is none."""
    kept: Array
    """What it looks at: with several steps, not the last."""

    def like(self, is_one: Array) -> Array:
        """Whether each event's name is one of those."""
        return is_one[self.name]


def named(trace: Trace, *texts: str) -> Array:
    """Whether each name of the trace is one of these."""
    return np.array([*(name in texts for name in trace.names()), False])


def read(trace: Trace, rank: int) -> Events:
    """What it reads of a rank."""
    rows = trace.rank_rows[rank]
    node = np.arange(rows.start, rows.stop)
    node = node[~is_any(trace.array("kind")[rows], _NOT_THERE)]
    has_text = trace.array("args_len")[node] > 0
    place = np.maximum.accumulate(np.where(has_text, trace.array("args_at")[node], 0))
    place = np.where(has_text, trace.array("args_at")[node], place)
    node = node[np.argsort(place, kind="stable")]
    kind, name, ts, dur, lane, correlation = (
        trace.array(c)[node] for c in ("kind", "name", "ts", "dur", "lane", "correlation")
    )
    start, end = temporal.whole_microseconds(trace, rank, ts, dur)
    stream = _streams(trace, node, kind, lane)
    lanes = (np.append(trace.array(c, "lanes"), -1)[lane] for c in ("kind", "number", "device"))
    lane_kind, number, device = lanes  # of what has no lane, -1
    on_host = lane_kind == LaneKind.THREAD
    kept = temporal.before_last_step(trace, name, start, correlation, stream >= 0)
    gpu = ((stream >= 0) & (correlation >= 0)) | named(trace, *OF_DEVICE)[name]
    return Events(
        node, kind, name, start.astype(np.int64), end.astype(np.int64), stream,
        np.where(on_host, number, -1), on_host, device, correlation,
        _links(correlation, gpu), kept,
    )  # fmt: skip


def _streams(trace: Trace, node: Array, kind: Array, lane: Array) -> Array:
    """Number of the stream that each says of itself, else that of its lane; -1 for the host."""
    stream = np.full(len(node), -1, np.int64)
    on = np.flatnonzero(temporal.has_stream(trace, node, kind))
    told, known = arguments.numbers(trace, node[on], "stream")
    stream[on] = np.where(known, told, np.append(trace.array("number", "lanes"), -1)[lane[on]])
    return stream


def _links(correlation: Array, gpu: Array) -> Array:
    """The other end by correlation; the last one in the file where there are several."""
    link = np.full(len(correlation), -1, np.int64)
    has = np.flatnonzero(correlation != -1)
    key, code = np.unique(correlation[has], return_inverse=True)
    last = np.full((2, len(key)), -1, np.int64)
    side = gpu[has].astype(np.int64)
    np.maximum.at(last, (side, code), has)
    link[has] = last[1 - side, code]
    return link


def window(trace: Trace, events: Events) -> tuple[int, int]:
    """When calls and operators must start to be in it."""
    kept = events.kept
    texts = trace.names()
    is_step = np.array([*(_STEP in text for text in texts), False])
    used = np.zeros(len(is_step), np.bool_)
    used[trace.array("name")] = True
    if not (is_step & used).any():
        return int(events.start[kept].min()), int(np.iinfo(np.int64).max)
    steps = np.flatnonzero(kept & events.like(is_step))
    if not steps.size:
        return 1, 0
    return int(events.start[steps[0]]), int(events.end[steps[0]])
