"""Shares of work that runs concurrently where a simulator has one slot for it.

A simulator runs one piece of work at a time in a slot. Of work that was measured at the same time, that
on the stream with the most work keeps its whole duration, so that it reacts to changes as measured;
other work gets the time that it has for itself last::

    stream 1   [ a    ]  [ b    ]        keeps its durations
    stream 2      [ copy    ..  ]  ]     has the end of it for itself: after b, from b's end on
    slot       [ a    ]  [ b    ][c]
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.heaps import empty_heaps


class Shares(NamedTuple):
    """Share of its slot that each piece of work gets.

    Parameters
    ----------
    start_ns, end_ns
        The last time that it has for itself; both its start if there is none.
    after
        The work whose end that time begins with; -1 if it begins with the work itself.
    """

    start_ns: Array
    end_ns: Array
    after: Array


def in_turn(start_ns: Array, end_ns: Array, ordered: Array, rank: Array) -> tuple[Array, Array]:
    """Starts and ends of work of which some has its slot in a given order, one piece after the other.

    Each piece of it begins with the latest end so far, or has no time where that is later than its own end::

        first     [      ]          [      ]
        second   [          ]               [   ]
        third      [  ]             (none)

    Parameters
    ----------
    start_ns, end_ns
        Of each piece of work.
    ordered
        Those that keep an order, in this order, those of each rank for themselves.
    rank
        Of each piece of work.
    """
    if len(ordered) <= 1:
        return start_ns, end_ns
    start, end = start_ns.copy(), end_ns.copy()
    of_rank = rank[ordered]
    behind = np.flatnonzero(of_rank[1:] == of_rank[:-1])
    free = gather.running_max(of_rank, end[ordered])[behind]
    later = ordered[1:][behind]
    start[later] = np.maximum(start[later], free)
    none = later[end[later] <= free]
    start[none] = end[none] = start_ns[none]
    return start, end


def shares(
    start_ns: Array, end_ns: Array, slot: Array, stream: Array, rank: Array, is_free: Array
) -> Shares:
    """Divide the time of slots among work that runs concurrently.

    Parameters
    ----------
    start_ns, end_ns
        Of each piece of work.
    slot
        Number of its slot, from 0 on; no two ranks have the same ones.
    stream
        Number of its stream or thread, from 0 on.
    rank
        Work of lower rank keeps its duration before all of higher rank, whatever its stream.
    is_free
        Mask of the work that needs no slot, and keeps its duration.
    """
    ends = np.where(is_free, start_ns, end_ns)
    first = rank == 0
    streams = int(stream.max(initial=0)) + 1
    busy = np.bincount(stream[first], weights=(end_ns - start_ns)[first], minlength=streams)
    order = np.lexsort((start_ns, np.argsort(np.argsort(-busy, kind="stable"))[stream], rank))
    priority = np.empty(len(order), np.int64)
    priority[order] = np.arange(len(order))
    events = np.argsort(start_ns, kind="stable"), np.argsort(ends, kind="stable")
    share = Shares(*_shares(start_ns, ends, slot, priority, order, events))
    return share._replace(end_ns=np.where(is_free, end_ns, share.end_ns))


@jit
def _shares(
    start: Array,
    end: Array,
    slot: Array,
    priority: Array,
    by_priority: Array,
    events: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    """Sweep starts and ends, given in order of time each, ends first.

    A heap for each slot holds what is running by priority; at its head is the work that the time
    until the next event belongs to.
    """
    n = len(start)
    own_start, own_end = start.copy(), start.copy()
    after = np.full(n, -1, np.int64)
    slots = slot.max() + 1 if n else 0
    running = empty_heaps(np.int64(0), slots)
    ended = np.zeros(n, np.bool_)
    by_start, by_end = events
    begun, over = 0, 0
    while over < n:
        begins = begun < n and start[by_start[begun]] < end[by_end[over]]
        if begins:
            i = by_start[begun]
            begun += 1
        else:
            i = by_end[over]
            over += 1
        if end[i] == start[i]:
            continue
        heap = running[slot[i]]
        now = start[i] if begins else end[i]
        head = by_priority[heap[0]] if len(heap) else -1
        if begins:
            heapq.heappush(heap, priority[i])
        else:
            ended[i] = True
            while len(heap) and ended[by_priority[heap[0]]]:
                heapq.heappop(heap)
        new = by_priority[heap[0]] if len(heap) else -1
        if new == head:
            continue
        if head >= 0:
            own_end[head] = now
        if new >= 0:
            own_start[new] = now
            after[new] = -1 if new == i else head
    return own_start, own_end, after


def bypassed(
    order: Array, is_hidden: Array, side: Array, start_ns: Array, first: Array, dep: Array
) -> tuple[Array, Array]:
    """Lead dependencies on hidden nodes around these, to what they depend on.

    Of all that a hidden node depends on these are two nodes, those that start last on each side.

    Nodes without a share wait for a slot that others hold, for as long as these take, so nothing else
    should::

        launch ──> hidden work ──> return       becomes       launch ──> return

    Parameters
    ----------
    order
        Nodes in topological order.
    is_hidden
        Mask of the nodes to go around.
    side
        Mask of the nodes of one of two sides: the host and the GPU, or communication and computation.
    start_ns
        Of each node.
    first, dep
        Node i depends on ``dep[first[i]:first[i + 1]]``.

    Returns
    -------
    src, dst
        Pairs of nodes of which the second depends on the first.
    """
    if not is_hidden.any():
        return dep, np.repeat(np.arange(len(first) - 1), np.diff(first))
    src, dst = _bypassed(order, is_hidden, side, start_ns, first, dep)
    return src[src >= 0], dst[src >= 0]


@jit
def _bypassed(
    order: Array, is_hidden: Array, side: Array, start: Array, first: Array, dep: Array
) -> tuple[Array, Array]:
    """Find for hidden nodes the last node of each side that they depend on.

    Compiled: hidden nodes may depend on hidden nodes that the same loop has just reached.
    """
    n = len(is_hidden)
    one, other = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    src, dst = np.full(2 * len(dep), -1, np.int32), np.full(2 * len(dep), -1, np.int32)
    for i in order:
        for e in range(first[i], first[i + 1]):
            d = dep[e]
            of_one = one[d] if is_hidden[d] else (d if side[d] else -1)
            of_other = other[d] if is_hidden[d] else (-1 if side[d] else d)
            if is_hidden[i]:
                if of_one >= 0 and (one[i] < 0 or start[of_one] > start[one[i]]):
                    one[i] = of_one
                if of_other >= 0 and (other[i] < 0 or start[of_other] > start[other[i]]):
                    other[i] = of_other
                src[2 * e], dst[2 * e] = d, i
            else:
                src[2 * e], dst[2 * e] = of_one, i
                src[2 * e + 1], dst[2 * e + 1] = of_other, i
    return src, dst
