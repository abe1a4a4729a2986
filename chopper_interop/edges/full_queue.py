"""Edges from GPU work to launches that wait until a full queue takes more."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.issues import Fault

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.edges.queues import Queues
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

FULL_QUEUE = Fault.info(
    "queue-full",
    "Launches took long whenever a certain number of kernels was queued on their stream: each waits "
    "for the work that many places before it.",
)

_LONG_RATIO = 4
"""A launch waited if it took so many times the median. Chosen: launches that do not wait vary by less."""
_MIN_WAITS = 8
"""Launches of a stream that must have waited. Chosen: fewer can agree on a number by chance."""
_MIN_PLACES = 4
"""Least places of a queue. Chosen: where the host is slower than the GPU, the most that is ever queued
is one or two kernels, at every launch, long or not."""
_RETURNING = 2
"""Kernels that may start while a launch that waited returns, after the one that made room. Seen on an
A100: of 1,154 such launches 696 leave a full queue, 388 one with a free place, 51 with two."""
_AGREEING = 0.8
"""Share of long launches that leave a full queue. Chosen: a launch may take long for another reason."""


def full_queue_edges(trace: Trace, queues: Queues, issues: IssueLog) -> tuple[Array, Array]:
    """Find edges from work to the launches for which its end made room, as rows of `nodes`.

    A queue has room again when its next kernel starts, and that is when the one before it has ended.
    How many places it has is learned from launches that took long: then all of its places were taken.

    Parameters
    ----------
    trace
        The trace.
    queues
        GPU work in its queues.
    issues
        Log in which the launches that waited are counted.
    """
    lane = queues.lane[queues.queue]
    slots = np.lexsort((queues.start, queues.submit, lane))
    bounds = np.flatnonzero(np.diff(lane[slots], prepend=-1, append=-1))
    src, dst = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first, stop in pairwise(bounds.tolist()):
        work = slots[first:stop]
        call = queues.call[work]
        launched = _last_of_each_call(call)
        depth, waits = _learned_depth(trace, queues, work, launched)
        if depth:
            issues.add(FULL_QUEUE, len(waits), f"{depth} places; node {call[waits[0]]}")
            waiting = launched[launched > depth]
            src.append(queues.node[work[waiting - depth - 1]])
            dst.append(call[waiting])
    source, target = np.concatenate(src), np.concatenate(dst)
    ts, dur = trace.array("ts"), trace.array("dur")
    in_time = ts[source] + dur[source] <= ts[target] + dur[target]
    return source[in_time].astype(np.int32), target[in_time].astype(np.int32)


def _last_of_each_call(call: Array) -> Array:
    """Positions of work with a recorded launch, of work of one call the last."""
    known = np.flatnonzero(call >= 0)[::-1]
    _, last = np.unique(call[known], return_index=True)
    return np.sort(known[last])


def _learned_depth(trace: Trace, queues: Queues, work: Array, launched: Array) -> tuple[int, Array]:
    """Places of a lane's queue, and positions of launches that waited; 0 if it never was full."""
    never_full = 0, launched[:0]
    if len(launched) < _MIN_WAITS:
        return never_full
    call = queues.call[work[launched]]
    ts, dur = trace.array("ts")[call], trace.array("dur")[call]
    begun = np.sort(queues.start[work])
    queued = launched + 1 - np.searchsorted(begun, ts + dur, "right")
    depth = int(queued.max())
    long = dur > _LONG_RATIO * np.median(dur[queued < depth]) if (queued < depth).any() else dur > 0
    full = long & (queued >= depth - _RETURNING)
    if depth < _MIN_PLACES or full.sum() < max(_MIN_WAITS, _AGREEING * long.sum()):
        return never_full
    return depth, launched[full]
