"""Edges that follow from threads and streams: what lies before and behind each node on its lane."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

_ROUNDING_NS = 1_000
"""Work on one stream may seem to begin this much before the work ahead of it has ended: clocks of
GPUs tick, and profilers round."""

_CALL, _ORDER, _DURATION = int(EdgeKind.CALL), int(EdgeKind.ORDER), int(EdgeKind.DURATION)


@jit
def thread_orders(lane: Array, threads: Array, parent: Array) -> Array:
    """What each node on a thread follows: the one before it there, unless that is its caller.

    Parameters
    ----------
    lane, parent
        Columns of nodes in time order, longest first among equal starts.
    threads
        For each lane, whether it is a thread.

    Returns
    -------
    Array
        A node each, -1 if it follows none. Along these edges and those from callers, everything
        that came before on the thread can be reached.
    """
    n = len(lane)
    before = np.full(n, -1, np.int32)
    last = np.full(len(threads), -1, np.int32)
    for i in range(n):
        where = lane[i]
        if threads[where]:
            if last[where] != parent[i]:
                before[i] = last[where]
            last[where] = i
    return before


@jit
def streams(ts: Array, dur: Array, lane: Array, on_gpu: Array) -> Array:
    """What each piece of GPU work follows on its stream: the last that had ended; -1 if none.

    Work of several streams on one queue overlaps, so that this may not be the one just before it.

    Parameters
    ----------
    ts, dur, lane
        Columns of nodes in time order.
    on_gpu
        For each lane, whether work there runs one behind the other.
    """
    n = len(ts)
    before = np.full(n, -1, np.int32)
    last = np.full(len(on_gpu), -1, np.int32)  # what ended last of all that has ended
    running = [[(np.int64(0), np.int64(0)) for _ in range(0)] for _ in range(len(on_gpu))]
    for i in range(n):
        where = lane[i]
        if on_gpu[where]:
            queue = running[where]
            while len(queue) and queue[0][0] <= ts[i]:
                last[where] = heapq.heappop(queue)[1]
            before[i] = last[where]
            end = ts[i] + max(dur[i] - _ROUNDING_NS, 0)
            heapq.heappush(queue, (np.int64(end), np.int64(i)))
    return before


@jit
def is_within(node: Array, caller: Array, parent: Array) -> Array:
    """Whether each node is the caller beside it, or was called by it, directly or not."""
    found = np.zeros(len(node), np.bool_)
    for k in range(len(node)):
        p = node[k]
        while p > caller[k]:  # callers come first
            p = parent[p]
        found[k] = p == caller[k]
    return found


def behind(ts: Array, dur: Array, lane: Array, lanes: int, rows: Array) -> Array:
    """For each of these rows, the first node on its lane that starts when it has ended; else -1."""
    first, place = gather.places(lane, lanes)
    return _behind(ts, dur, lane, first, place, rows)


@jit
def _behind(ts: Array, dur: Array, lane: Array, first: Array, place: Array, rows: Array) -> Array:
    found = np.full(len(rows), -1, np.int32)
    for k in range(len(rows)):
        i = rows[k]
        end = ts[i] + dur[i]
        stop = first[lane[i] + 1]
        low, high = first[lane[i]], stop
        while low < high:
            middle = (low + high) // 2
            j = place[middle]
            if j <= i or ts[j] < end:
                low = middle + 1
            else:
                high = middle
        if low < stop:
            found[k] = place[low]
    return found


def moments_of_threads(
    ts: Array, dur: Array, lane: Array, threads: Array, parent: Array
) -> tuple[Array, Array, Array]:
    """Edges from each moment of a thread to the next: vertices 2i and 2i + 1 are node i's.

    Parameters
    ----------
    ts, dur, lane, parent
        Columns of nodes in time order, longest first among equal starts.
    threads
        For each lane, whether it is a thread.

    Returns
    -------
    src, dst, kind
        The kind is CALL from and to a caller, DURATION within a node that calls nothing, else ORDER.
    """
    first, place = gather.places(lane, len(threads))
    size = 2 * int(np.diff(first)[threads].sum())
    src, dst, kind = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.uint8)
    used = _chains(ts, dur, parent, threads, first, place, src, dst, kind)
    return src[:used], dst[:used], kind[:used]


@jit
def _chains(  # noqa: PLR0913, PLR0917 # columns
    ts: Array,
    dur: Array,
    parent: Array,
    threads: Array,
    first: Array,
    place: Array,
    src: Array,
    dst: Array,
    kind: Array,
) -> int:
    used = 0
    for where in range(len(threads)):
        if not threads[where]:
            continue
        # what has not ended, by its end; of equal ones what began last ends first
        is_open = [(np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
        last = -1  # the moment before
        for k in range(first[where], first[where + 1] + 1):
            now = k < first[where + 1]
            i = place[k] if now else -1
            while is_open and (not now or is_open[0][0] <= ts[i]):
                ended = heapq.heappop(is_open)[2]
                used = _link(last, 2 * ended + 1, parent, src, dst, kind, used)
                last = 2 * ended + 1
            if not now:
                break
            used = _link(last, 2 * i, parent, src, dst, kind, used)
            last = 2 * i
            heapq.heappush(is_open, (np.int64(ts[i] + dur[i]), np.int64(-k), np.int64(i)))
    return used


@jit
def _link(  # noqa: PLR0913, PLR0917 # columns
    last: int, moment: int, parent: Array, src: Array, dst: Array, kind: Array, used: int
) -> int:
    """Write the edge from the moment before to this one; how many are written then."""
    if last < 0:
        return used
    a, b = last // 2, moment // 2
    src[used], dst[used] = last, moment
    if a == b:
        kind[used] = _DURATION
    elif (last % 2 == 0 and parent[b] == a) or (moment % 2 == 1 and parent[a] == b):
        kind[used] = _CALL
    else:
        kind[used] = _ORDER
    return used + 1
