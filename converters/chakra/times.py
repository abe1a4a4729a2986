"""Times of an ET's nodes: as recorded, else computed from durations and dependencies.

MLCommons' converter and generator give no start times at all. Then a node starts as soon as all
that it depends on has ended and its thread or stream is free; of those that wait, the lowest id
goes first, as in feeders. Such times are computed, not measured, and the trace's clock says so.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.heaps import empty_heap, empty_heaps
from chopper_interop.converters.chakra.values import has_integer, integers
from chopper_interop.errors import ReadError
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.decode import EtFile

SCHEDULED = Fault.info(
    "et-times-scheduled",
    "The ET has no start times: those here are computed, not measured. Each node starts as soon as "
    "all that it depends on has ended and its thread or stream is free, the lowest id first.",
)
OUT_OF_RANGE = Fault.loss(
    "et-time-out-of-range",
    "Starts and durations that are negative or of more than ten years were taken as 0.",
)
NO_DURATION = Fault.info(
    "et-no-duration", "Nodes without a duration, which a simulator computes, last 0 here."
)

MAX_NS = 315_360_000 * 10**9
"""Ten years. Chosen: more than any job runs, and sums of a few such times fit 64 bits."""
MAX_SUM_NS = 1 << 62
"""Half of what 64 bits hold, so that no sum of start and duration overflows."""


def measured(et: EtFile) -> bool:
    """True if any node has a start time."""
    return bool(has_integer(et, "start_ns").any() or et.start_us.any())


def times(et: EtFile, keep: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Recorded starts and durations of the nodes in rows `keep`, in nanoseconds."""
    invalid = np.zeros(len(et.id), bool)
    ts = _recorded_ns(et, "start_ns", et.start_us, invalid)
    dur = _recorded_ns(et, "duration_ns", et.duration_us, invalid)
    issues.add(OUT_OF_RANGE, np.count_nonzero(invalid[keep]))
    issues.add(NO_DURATION, np.count_nonzero(dur[keep] == 0))
    return ts[keep], dur[keep]


def _recorded_ns(et: EtFile, attribute: str, us: Array, invalid: Array) -> Array:
    """Time by its attribute in nanoseconds, else by its field in microseconds; 0 if `invalid`."""
    exact = has_integer(et, attribute)
    value_ns = integers(et, attribute, 0)
    min_ns = -MAX_NS if attribute == "start_ns" else 0
    valid = np.where(
        exact, (value_ns >= min_ns) & (value_ns <= MAX_NS), (us >= 0) & (us <= MAX_NS // 1000)
    )
    invalid |= ~valid
    return np.where(valid, np.where(exact, value_ns, np.where(valid, us, 0) * 1000), 0)


def scheduled(path: Path, ids: Array, lane: Array, dur: Array, edges: tuple[Array, Array]) -> Array:
    """Compute the start of each node from dependencies, which have no cycles, and lanes.

    Raises
    ------
    ReadError
        Durations add up to more than can be counted.
    """
    if dur.astype(np.float64).sum() > MAX_SUM_NS:
        raise ReadError("its durations add up to more than can be counted", path=path)
    n = len(ids)
    src, dst = edges
    first, after = gather.group_values(src, dst, n)
    id_order = np.empty(n, np.int64)
    id_order[np.argsort(ids, kind="stable")] = np.arange(n)
    waits = np.bincount(dst, minlength=n)
    return _simulate(dur, id_order, lane.astype(np.int64), waits, first, after)


@jit
def _simulate(
    dur: Array, id_order: Array, lane: Array, waits: Array, first: Array, after: Array
) -> Array:
    """Start of each node: a discrete-event simulation with one slot for each lane."""
    # `ready` of each lane and `running` are heaps, by id and by end. Slots are filled only after
    # all ends of a moment, as these may make nodes of lower ids ready.
    n = len(dur)
    start = np.zeros(n, np.int64)
    missing = waits.copy()
    lanes = lane.max() + 1 if n else 0
    ready = empty_heaps((np.int64(0), np.int64(0)), lanes)
    busy = np.zeros(lanes, np.bool_)
    running = empty_heap((np.int64(0), np.int64(0), np.int64(0)))
    for i in range(n):
        if missing[i] == 0:
            heapq.heappush(ready[lane[i]], (np.int64(id_order[i]), np.int64(i)))
    for k in range(lanes):
        _start_next(k, 0, dur, start, ready[k], busy, running)
    while running:
        now, _, i = heapq.heappop(running)
        busy[lane[i]] = False
        for e in range(first[i], first[i + 1]):
            d = after[e]
            missing[d] -= 1
            if missing[d] == 0:
                heapq.heappush(ready[lane[d]], (np.int64(id_order[d]), np.int64(d)))
        if running and running[0][0] == now:
            continue
        for k in range(lanes):
            _start_next(k, now, dur, start, ready[k], busy, running)
    return start


@jit
def _start_next(  # noqa: PLR0913, PLR0917 - a loop body, in one call
    k: int, now: int, dur: Array, start: Array, ready: Any, busy: Array, running: Any
) -> None:
    """Start the first of the nodes that wait for a lane if it is free."""
    if len(ready) and not busy[k]:
        order, node = heapq.heappop(ready)
        busy[k] = True
        start[node] = now
        heapq.heappush(running, (np.int64(now + dur[node]), order, node))
