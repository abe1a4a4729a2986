"""Order on lanes: the predecessor and the successor of each node on its thread or stream."""

from __future__ import annotations

import heapq

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.heaps import empty_heap, empty_heaps
from chopper_interop.schemas.kinds import EdgeKind

_ROUNDING_NS = 1_000
"""Work on a stream may appear to begin this much before the work ahead of it has ended.

Kineto before torch 2.2 rounds to whole microseconds, and timestamp counters of GPUs tick at 10 to
100 MHz: one microsecond covers both."""
_OVERLAP_SHARE = 100
"""Or this part of the earlier work. Chosen: times in seconds as 32-bit numbers, and ranges that are
recorded around work, are off by up to 0.2 %; streams that share a hardware queue overlap by far more."""

_CALL, _ORDER, _DURATION = int(EdgeKind.CALL), int(EdgeKind.ORDER), int(EdgeKind.DURATION)


@jit
def thread_orders(lane: Array, threads: Array, parent: Array) -> Array:
    """Find the previous sibling of each node on its thread.

    ::

        caller   ├──────────────────────┤
        nodes       ├ a ┤ ├ b ┤ ├ c ┤        before[b] = a, before[c] = b, before[a] = -1

    Parameters
    ----------
    lane, parent
        Columns of nodes in time order, longest first among equal starts.
    threads
        Mask of lanes that are threads.

    Returns
    -------
    Array
        int32, -1 for the first callee of a caller and the first node of a thread. Along these edges
        and those from callers, everything earlier on the thread can be reached.
    """
    n = len(lane)
    before = np.full(n, -1, np.int32)
    last = np.full(len(threads), -1, np.int32)
    for i in range(n):
        thread = lane[i]
        if threads[thread]:
            if last[thread] != parent[i]:  # the node before is the caller itself: CALL, not ORDER
                before[i] = last[thread]
            last[thread] = i
    return before


@jit
def stream_orders(ts: Array, dur: Array, lane: Array, on_gpu: Array) -> Array:
    """Find, for each piece of GPU work, the last work of its stream that had ended; -1 if none.

    That may not be the work that started just before: streams that share a hardware queue overlap.
    For each lane a heap holds the work that is running, by its end; work leaves it once ended.

    Parameters
    ----------
    ts, dur, lane
        Columns of nodes in time order.
    on_gpu
        Mask of lanes on which work runs one after the other.
    """
    n = len(ts)
    before = np.full(n, -1, np.int32)
    last = np.full(len(on_gpu), -1, np.int32)  # of the work that has ended, the one that ended last
    running = empty_heaps((np.int64(0), np.int64(0)), len(on_gpu))
    for i in range(n):
        stream = lane[i]
        if on_gpu[stream]:
            queue = running[stream]
            while len(queue) and queue[0][0] <= ts[i]:
                last[stream] = heapq.heappop(queue)[1]
            before[i] = last[stream]
            end = ts[i] + max(dur[i] - max(_ROUNDING_NS, dur[i] // _OVERLAP_SHARE), 0)
            heapq.heappush(queue, (np.int64(end), np.int64(i)))
    return before


@jit
def is_within(node: Array, caller: Array, parent: Array) -> Array:
    """Mark each ``node[k]`` that is ``caller[k]`` or was called by it, directly or not."""
    mask = np.zeros(len(node), np.bool_)
    for k in range(len(node)):
        ancestor = node[k]
        while ancestor > caller[k]:  # callers have lower rows than what they call
            ancestor = parent[ancestor]
        mask[k] = ancestor == caller[k]
    return mask


def next_on_lane(ts: Array, dur: Array, lane: Array, lanes: int, rows: Array) -> Array:
    """Find, for each of these rows, the first node on its lane that starts after its end; else -1."""
    first, by_lane = gather.group_rows(lane, lanes)
    return _next_on_lane(ts, dur, lane, first, by_lane, rows)


@jit
def _next_on_lane(  # columns
    ts: Array, dur: Array, lane: Array, first: Array, by_lane: Array, rows: Array
) -> Array:
    """Bisect among the rows of the lane, which are in order of start."""
    after = np.full(len(rows), -1, np.int32)
    for k in range(len(rows)):
        i = rows[k]
        end = ts[i] + dur[i]
        stop = first[lane[i] + 1]
        low, high = first[lane[i]], stop
        while low < high:
            middle = (low + high) // 2
            j = by_lane[middle]
            if j <= i or ts[j] < end:
                low = middle + 1
            else:
                high = middle
        if low < stop:
            after[k] = by_lane[low]
    return after


def thread_endpoint_edges(
    ts: Array, dur: Array, lane: Array, threads: Array, parent: Array
) -> tuple[Array, Array, Array]:
    """Chain the endpoints of each thread: vertices 2i and 2i + 1 are start and end of node i.

    ::

        nodes     ├───────── a ─────────┤
                      ├ b ┤    ├ c ┤
        chain     a.start → b.start → b.end → c.start → c.end → a.end
        kind              CALL    DURATION  ORDER  DURATION  CALL

    Parameters
    ----------
    ts, dur, lane, parent
        Columns of nodes in time order, longest first among equal starts.
    threads
        Mask of lanes that are threads.

    Returns
    -------
    src, dst, kind
        The kind is CALL from and to a caller, DURATION within a node that calls nothing, else ORDER.
    """
    first, by_lane = gather.group_rows(lane, len(threads))
    size = 2 * int(np.diff(first)[threads].sum())
    src, dst, kind = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.uint8)
    used = _chain_endpoints(ts, dur, parent, threads, first, by_lane, src, dst, kind)
    return src[:used], dst[:used], kind[:used]


@jit
def _chain_endpoints(  # noqa: PLR0913, PLR0917 # columns
    ts: Array,
    dur: Array,
    parent: Array,
    threads: Array,
    first: Array,
    by_lane: Array,
    src: Array,
    dst: Array,
    kind: Array,
) -> int:
    """Sweep each thread in time with a heap of open nodes; return the number of edges written."""
    used = 0
    for thread in range(len(threads)):
        if not threads[thread]:
            continue
        # (end, -position, row) of nodes that have not ended: of equal ends the last begun pops first
        open_nodes = empty_heap((np.int64(0), np.int64(0), np.int64(0)))
        last = -1  # the endpoint before
        for k in range(first[thread], first[thread + 1] + 1):
            has_node = k < first[thread + 1]  # the last pass closes what is still open
            i = by_lane[k] if has_node else -1
            while open_nodes and (not has_node or open_nodes[0][0] <= ts[i]):
                ended = heapq.heappop(open_nodes)[2]
                used = _add_edge(last, 2 * ended + 1, parent, src, dst, kind, used)
                last = 2 * ended + 1
            if not has_node:
                break
            used = _add_edge(last, 2 * i, parent, src, dst, kind, used)
            last = 2 * i
            heapq.heappush(open_nodes, (np.int64(ts[i] + dur[i]), np.int64(-k), np.int64(i)))
    return used


@jit
def _add_edge(  # noqa: PLR0913, PLR0917 # columns
    last: int, endpoint: int, parent: Array, src: Array, dst: Array, kind: Array, used: int
) -> int:
    """Write the edge from the endpoint before to this one; return the number of edges written."""
    if last < 0:
        return used
    a, b = last // 2, endpoint // 2
    src[used], dst[used] = last, endpoint
    if a == b:
        kind[used] = _DURATION
    elif (last % 2 == 0 and parent[b] == a) or (endpoint % 2 == 1 and parent[a] == b):
        kind[used] = _CALL
    else:
        kind[used] = _ORDER
    return used + 1
