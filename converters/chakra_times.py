"""When an ET's nodes ran: as it states, else computed from durations and dependencies.

MLCommons' converter and generator give no start times at all. Then a node starts as soon as what
it depends on has ended and its thread or stream is free; of those that wait, the lowest id goes
first, as in feeders. Such times are computed, not measured, and the trace's clock says so.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.converters.chakra_values import has, integers
from chopper_interop.errors import ReadError
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.chakra_decode import EtFile

SCHEDULED = Fault(
    "et-times-scheduled",
    Severity.INFO,
    "The ET has no start times: those here are computed, not measured. Each node starts as soon as "
    "what it depends on has ended and its thread or stream is free, the lowest id first.",
)
OUT_OF_RANGE = Fault(
    "et-time-out-of-range",
    Severity.LOSS,
    "Starts and durations that are negative or of more than ten years were taken as 0.",
)
NO_DURATION = Fault(
    "et-no-duration",
    Severity.INFO,
    "Nodes without a duration, which a simulator works out, last 0 here.",
)

_MOST_NS = 315_360_000 * 10**9
"""Ten years."""
_SUM_NS = 1 << 62


def measured(et: EtFile) -> bool:
    """Whether any node states when it started."""
    return bool(has(et, "start_ns").any() or et.start_us.any())


def times(et: EtFile, keep: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Starts and durations of the kept nodes as they are stated, in nanoseconds."""
    wrong = np.zeros(len(et.id), bool)
    ts = _stated(et, "start_ns", et.start_us, wrong)
    dur = _stated(et, "duration_ns", et.duration_us, wrong)
    issues.add(OUT_OF_RANGE, np.count_nonzero(wrong[keep]))
    issues.add(NO_DURATION, np.count_nonzero(dur[keep] == 0))
    return ts[keep], dur[keep]


def _stated(et: EtFile, attribute: str, us: Array, wrong: Array) -> Array:
    """A time by its attribute in nanoseconds, else by its field in microseconds."""
    exact = has(et, attribute)
    stated = integers(et, attribute, 0)
    least = -_MOST_NS if attribute == "start_ns" else 0
    good = np.where(
        exact, (stated >= least) & (stated <= _MOST_NS), (us >= 0) & (us <= _MOST_NS // 1000)
    )
    wrong |= ~good
    return np.where(good, np.where(exact, stated, np.where(good, us, 0) * 1000), 0)


def scheduled(path: Path, ids: Array, lane: Array, dur: Array, edges: tuple[Array, Array]) -> Array:
    """The start of each node by dependencies, which have no circles, and lanes.

    Raises
    ------
    ReadError
        Durations add up to more than can be counted.
    """
    if dur.astype(np.float64).sum() > _SUM_NS:
        raise ReadError("its durations add up to more than can be counted", path=path)
    n = len(ids)
    src, dst = edges
    first, after = gather.lists(src, dst, n)
    place = np.empty(n, np.int64)
    place[np.argsort(ids, kind="stable")] = np.arange(n)
    waits = np.bincount(dst, minlength=n)
    return _run(dur, place, lane.astype(np.int64), waits, first, after)


@jit
def _run(dur: Array, place: Array, lane: Array, waits: Array, first: Array, after: Array) -> Array:
    n = len(dur)
    start = np.zeros(n, np.int64)
    left = waits.copy()
    lanes = lane.max() + 1 if n else 0
    ready = [[(np.int64(0), np.int64(0)) for _ in range(0)] for _ in range(lanes)]
    busy = np.zeros(lanes, np.bool_)
    running = [(np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
    for i in range(n):
        if left[i] == 0:
            heapq.heappush(ready[lane[i]], (np.int64(place[i]), np.int64(i)))
    for k in range(lanes):
        _begin(k, 0, dur, start, ready[k], busy, running)
    while running:
        now, _, i = heapq.heappop(running)
        busy[lane[i]] = False
        for e in range(first[i], first[i + 1]):
            d = after[e]
            left[d] -= 1
            if left[d] == 0:
                heapq.heappush(ready[lane[d]], (np.int64(place[d]), np.int64(d)))
        if running and running[0][0] == now:
            continue  # what ends at this moment as well may free nodes of lower ids
        for k in range(lanes):
            _begin(k, now, dur, start, ready[k], busy, running)
    return start


@jit
def _begin(  # noqa: PLR0913, PLR0917 - a loop body, in one call
    k: int, now: int, dur: Array, start: Array, ready: Any, busy: Array, running: Any
) -> None:
    """Start the first of the nodes that wait for a lane, if it is free."""
    if len(ready) and not busy[k]:
        place, node = heapq.heappop(ready)
        busy[k] = True
        start[node] = now
        heapq.heappush(running, (np.int64(now + dur[node]), place, node))
