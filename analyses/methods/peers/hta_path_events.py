"""Events of a rank that Holistic Trace Analysis reads for its critical path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop import arguments, rank_batches
from chopper_interop.analyses.methods.peers import temporal
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.trace import Trace

_STEP = "ProfilerStep"
OF_DEVICE = ("Event Sync", "Context Sync")
"""Waits without a stream that count as a GPU's."""
_DROPPED_KINDS = (Kind.INSTANT, Kind.SPAN)
"""Kinds that HTA drops when it reads: events without duration, and the profiler's own brackets."""


@dataclass(frozen=True)
class HtaEvents:
    """Events of a rank in the order of the file; times in whole microseconds."""

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
    examined: Array
    """True for events that HTA examines: with several steps, those before the last."""

    def named_in(self, is_match: Array) -> Array:
        """Mark events whose name is marked in `is_match`, which has one value for each name."""
        return is_match[self.name]


def named(trace: Trace, *texts: str) -> Array:
    """Mark the trace's names that are one of these texts."""
    return np.array([*(name in texts for name in trace.names()), False])


def read_events(trace: Trace, rank: int) -> HtaEvents:
    """Read the events of a rank."""
    rows = trace.rank_rows[rank]
    node = np.arange(rows.start, rows.stop)
    node = node[~is_any(trace.array("kind")[rows], _DROPPED_KINDS)]
    has_text = trace.array("args_len")[node] > 0
    # order of the file: by position of the arguments; events without any follow the one before them
    file_position = np.maximum.accumulate(np.where(has_text, trace.array("args_at")[node], 0))
    file_position = np.where(has_text, trace.array("args_at")[node], file_position)
    node = node[np.argsort(file_position, kind="stable")]
    kind, name, ts, dur, lane, correlation = (
        trace.array(c)[node] for c in ("kind", "name", "ts", "dur", "lane", "correlation")
    )
    start, end = temporal.whole_microseconds(trace, rank, ts, dur)
    stream = _streams(trace, node, kind, lane)
    lanes = (np.append(trace.array(c, "lanes"), -1)[lane] for c in ("kind", "number", "device"))
    lane_kind, number, device = lanes  # of what has no lane, -1
    on_host = lane_kind == LaneKind.THREAD
    examined = temporal.before_last_step(trace, name, start, correlation, stream >= 0)
    gpu = ((stream >= 0) & (correlation >= 0)) | named(trace, *OF_DEVICE)[name]
    return HtaEvents(
        node, kind, name, start.astype(np.int64), end.astype(np.int64), stream,
        np.where(on_host, number, -1), on_host, device, correlation,
        _links(correlation, gpu), examined,
    )  # fmt: skip


def _streams(trace: Trace, node: Array, kind: Array, lane: Array) -> Array:
    """Return the stream in each event's arguments, else that of its lane; -1 for the host."""
    stream = np.full(len(node), -1, np.int64)
    with_stream = np.flatnonzero(temporal.has_stream(trace, node, kind))
    from_args, is_known = arguments.integers(trace, node[with_stream], "stream")
    stream[with_stream] = np.where(
        is_known, from_args, np.append(trace.array("number", "lanes"), -1)[lane[with_stream]]
    )
    return stream


def _links(correlation: Array, gpu: Array) -> Array:
    """Return the event at the other end of each launch, the last one in the file if there are several."""
    link = np.full(len(correlation), -1, np.int64)
    has = np.flatnonzero(correlation != -1)
    key, code = np.unique(correlation[has], return_inverse=True)
    last = np.full((2, len(key)), -1, np.int64)
    side = gpu[has].astype(np.int64)
    np.maximum.at(last, (side, code), has)
    link[has] = last[1 - side, code]
    return link


def window(trace: Trace, events: HtaEvents) -> tuple[int, int]:
    """Return the interval in which calls and operators must start to be in the window."""
    examined = events.examined
    is_step = _is_step(trace)
    if not trace.cached("steps of HTA's paths", _has_steps):
        return int(events.start[examined].min()), int(np.iinfo(np.int64).max)
    steps = np.flatnonzero(examined & events.named_in(is_step))
    if not steps.size:
        return 1, 0
    return int(events.start[steps[0]]), int(events.end[steps[0]])


def _is_step(trace: Trace) -> Array:
    """Mark the trace's names that are those of a step."""
    return np.array([*(_STEP in text for text in trace.names()), False])


def _has_steps(trace: Trace) -> bool:
    """Return True if any event of the job is a step."""
    is_step, name = _is_step(trace), trace.array("name")
    return any(bool(is_step[name[rows]].any()) for rows in rank_batches.blocks(trace))
