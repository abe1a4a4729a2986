"""Schedule of an ET: when a simulator starts each node, and the time that is missing to the measured start.

Times of nodes are exact nanoseconds; a simulator counts whole microseconds, and host pieces make up for
the rounding of those before them.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.heaps import empty_heap

HOST, COMPUTE, COMM, NO_SLOT = 0, 1, 2, 3
"""Slots of a simulator; receives need none."""
_SLOTS = 3
_TOLERATED_US = 5
"""Microseconds by which GPU work may start earlier than measured without a node for the difference.
Chosen: below what a launch takes, and small enough that few such differences stay unseen at a
synchronization, where they are corrected."""
MAX_LATENCY_US = 50
"""Longest latency of a launch that needs no node. Chosen: well above the time that a launch takes to
reach an idle GPU; longer ones are waits of a queue."""
_LATE_US = 50
"""A wait is written as time if what it waits for ends later in the schedule than measured by more."""


class Nodes(NamedTuple):
    """Nodes of ranks before gaps are known.

    Parameters
    ----------
    rank
        Number of its rank, of those that are planned at once.
    slot
        HOST, COMPUTE, COMM or NO_SLOT.
    is_return
        Mask of returns of waits: nodes that end when measured, with `known_ns` of their own.
    is_watch
        Mask of operations that only ask whether work has ended: they keep their time only while no GPU
        work runs.
    is_apart
        Mask of work that the NPU of a stream does, which is a receive here.
    start_ns
        Measured start; of returns the measured end.
    own_ns
        How long each holds its slot.
    known_ns
        Least latency of a return, or from its launch to GPU work; -1 without a launch.
    dep_first, dep
        Node i depends on ``dep[dep_first[i]:dep_first[i + 1]]``.
    began_ns
        Of GPU work, the last of the nodes, the measured start, by which simulators choose of nodes that wait; of work
        that has the end of its time for itself it is earlier than `start_ns`.
    notified_ns
        Of GPU work when the last other rank has notified it of what it waits for; -1 if none does.
    behind, behind_ns
        Of GPU work the node before it on its stream, and the least time until it begins behind that; -1 and 0 if
        there is none.
    """

    rank: Array
    slot: Array
    is_return: Array
    is_watch: Array
    is_apart: Array
    start_ns: Array
    own_ns: Array
    known_ns: Array
    dep_first: Array
    dep: Array
    began_ns: Array
    notified_ns: Array
    behind: Array
    behind_ns: Array


class Schedule(NamedTuple):
    """Times of the nodes in microseconds of a simulator.

    Parameters
    ----------
    slot_us
        How long each holds its slot.
    gap_us
        Time before it from when it could begin, 0 if there is none.
    unexplained_us
        Part of that of which nothing recorded is the cause.
    behind_us
        Of GPU work the time for which it also waits behind the work before it on its stream, which here is over
        before it begins.
    ended_us
        When it ends.
    anchor
        Node that it follows for want of any dependency, or that its gap follows; -1 if none.
    follows
        Node of its slot that it would overtake, as it is ready while the slot waits for that one; -1 if
        none, and of communication.
    kept
        Mask of the dependencies that hold in this schedule.
    binding
        Node that ended last of those that it waited for; -1 if none.
    """

    slot_us: Array
    gap_us: Array
    unexplained_us: Array
    behind_us: Array
    ended_us: Array
    anchor: Array
    follows: Array
    kept: Array
    binding: Array


@jit
def _micros(ns: int) -> int:
    """Nanoseconds rounded to microseconds."""
    return (ns + 500) // 1000


@jit
def schedule(  # noqa: C901, PLR0912, PLR0915
    order: Array,
    nodes: Nodes,
    with_gaps: bool,  # noqa: FBT001 # compiled functions take no keywords
) -> Schedule:
    """Run nodes by a simulator's rules, and insert what is missing to their measured times.

    Parameters
    ----------
    order
        Nodes in a topological order that follows their measured starts, rank after rank.
    nodes
        Their columns.
    with_gaps
        Insert what is missing; without, nodes start as soon as their dependencies allow.
    """
    # One sweep with a clock for each slot. What a node waits for ends at `begin` in simulated time;
    # where it started later than that in measured time, the rest is a gap that holds a slot:
    #
    #   measured   ...work|                 |node
    #   simulated  ...work|dep|latency|~gap~|node
    #
    # Work that waits for its host has time left behind the work before it; there the least time between the two is a
    # node that ends before what it begins with, unless that comes sooner or the host does:
    #
    #   host       ...call ────────────┐
    #   simulated  ...work|least time| └>|node
    slot, start, own = nodes.slot, nodes.start_ns, nodes.own_ns
    n, h = len(slot), len(slot) - len(nodes.behind)
    slot_us, gap_us, known_us = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    ended = np.zeros(n, np.int64)
    anchor, binding = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    kept = np.ones(len(nodes.dep), np.bool_)
    free = np.zeros(_SLOTS + 1, np.int64)
    last = np.full(_SLOTS + 1, -1, np.int64)
    busy_until = np.zeros(_SLOTS + 1, np.int64)  # measured
    rounded_off = np.zeros(_SLOTS, np.int64)
    # least times between work of a stream that no node stands for yet; few microseconds are not worth one
    behind_us, left_ns = np.zeros(n - h, np.int64), np.zeros(n - h, np.int64)
    # the last node of each slot that did not start as soon as the slot was free, and when it did; when the
    # last node of each slot started
    follows, opener = np.full(n, -1, np.int32), np.full(_SLOTS, -1, np.int64)
    opened, held, began = np.zeros((3, _SLOTS), np.int64)
    # what a host waits for begins behind other work when measured, so that the host need not make up for what is the
    # GPU's time
    awaited = np.zeros(n, np.bool_)
    for i in order:
        if nodes.is_return[i]:
            for e in range(nodes.dep_first[i], nodes.dep_first[i + 1]):
                awaited[nodes.dep[e]] = True
    rank = nodes.rank[order[0]] if len(order) else 0
    for i in order:
        if nodes.rank[i] != rank:  # its slots are other ones
            rank = nodes.rank[i]
            free[:], last[:], busy_until[:], rounded_off[:] = 0, -1, 0, 0
            opener[:], opened[:], held[:], began[:] = -1, 0, 0, 0
        s, g = slot[i], i - h
        begin, waits_for = free[s], last[s]
        measured_us = _micros(start[i])
        depends, ready = False, 0
        launched = -MAX_LATENCY_US  # when the host had done what GPU work waits for
        for e in range(nodes.dep_first[i], nodes.dep_first[i + 1]):
            d = nodes.dep[e]
            if nodes.is_return[i] and slot[d] != HOST and ended[d] > measured_us + _LATE_US:
                kept[e] = False
                continue
            depends = True
            if slot[d] == HOST:
                launched = max(launched, ended[d])
            ready = max(ready, ended[d])
            if ended[d] >= begin:
                begin, waits_for = ended[d], d
        if g >= 0 and nodes.notified_ns[g] >= 0:
            depends = True
            ready = max(ready, _micros(nodes.notified_ns[g]))
            begin = max(begin, ready)
        # work without a predecessor follows what had ended last when it started, and a host only a host, as
        # nothing says that it waited for the GPU; on an NPU of its own work keeps its time, as in the timing model
        if not depends and not nodes.is_apart[i]:
            latest = s
            for other in range(_SLOTS):
                if (
                    last[other] >= 0
                    and (s != HOST or other == HOST)
                    and busy_until[other] <= start[i]
                    and (
                        last[latest] < 0
                        or busy_until[latest] > start[i]
                        or busy_until[other] > busy_until[latest]
                    )
                ):
                    latest = other
            anchor[i] = last[latest]
            if anchor[i] >= 0 and ended[anchor[i]] > begin:
                begin, waits_for = ended[anchor[i]], anchor[i]
            if anchor[i] >= 0:
                ready = ended[anchor[i]]
        # other ranks wait for communication to start, so none may wait for other communication to end
        began_ns = nodes.began_ns[g] if g >= 0 else start[i]
        if with_gaps and s < COMM:
            if ready < opened[s]:
                follows[i] = opener[s]
            elif last[s] >= 0 and ready <= held[s] and began_ns < began[s]:
                follows[i] = last[s]
        if s == NO_SLOT:  # it may begin as soon as it can, and ends when the message has come
            slot_us[i] = max(_micros(start[i] + own[i]) - ready, 0)
            if nodes.is_apart[i]:
                gap_us[i] = max(measured_us - ready, 0)
                latency = min(_micros(max(nodes.known_ns[i], 0)), MAX_LATENCY_US)
                unexplained = measured_us - max(ready, launched + latency)
                known_us[i] = gap_us[i] - (unexplained if unexplained > _TOLERATED_US else 0)
            binding[i], ended[i] = waits_for, ready + slot_us[i]
            continue
        held_from = begin
        missing = max(measured_us - begin, 0) if with_gaps else 0
        if nodes.is_return[i]:
            slot_us[i] = min(missing, _micros(nodes.known_ns[i]))
            gap_us[i] = missing - slot_us[i]
        elif s == HOST:
            gap_us[i] = missing if missing > 1 else 0
            if nodes.is_watch[i] and start[i] < busy_until.max():
                gap_us[i] = 0
            rounding = min(max(start[i] - 1000 * (begin + gap_us[i]), -1000), 1000)
            slot_us[i] = max(_micros(own[i] + rounding), 0) if own[i] > 0 else 0
        else:
            latency = _micros(max(nodes.known_ns[i], 0))
            latency = latency if latency <= MAX_LATENCY_US else 0
            if s == COMPUTE:  # short delays of communication would hold up that of other streams
                latency = max(launched + latency - begin, 0)
            behind_work = s == COMPUTE and latency == 0
            tolerated = 0 if behind_work and awaited[i] else _TOLERATED_US
            if missing > latency + tolerated and start[i] >= busy_until[s]:
                gap_us[i] = missing - latency
                begin += gap_us[i]
                if anchor[i] < 0:
                    anchor[i] = last[s]
                busy_until[s] = start[i]
            elif with_gaps and nodes.behind[g] >= 0:
                left_ns[g] = left_ns[nodes.behind[g] - h] + nodes.behind_ns[g]
                if _micros(left_ns[g]) >= _TOLERATED_US and last[s] == nodes.behind[g]:
                    behind_us[g] = min(_micros(left_ns[g]), begin - free[s])
                    left_ns[g] -= 1000 * behind_us[g]
            # durations of a slot add up to what they are in nanoseconds
            slot_us[i] = max(_micros(own[i] + rounded_off[s]), 0)
            rounded_off[s] += own[i] - 1000 * slot_us[i]
        binding[i] = waits_for
        if s == HOST:
            begin += gap_us[i]
            # without this a gap might hold the slot before what it comes after
            if gap_us[i] and anchor[i] < 0:
                anchor[i] = last[HOST]
        ended[i] = begin + slot_us[i]
        # what has no time holds nothing up; what rounds to none must have its turn
        if ended[i] > held_from or nodes.is_return[i] or own[i] > 0:
            if held_from > free[s]:
                opened[s], opener[s] = held_from, i
            free[s], last[s], held[s], began[s] = ended[i], i, held_from, began_ns
        busy_until[s] = max(busy_until[s], start[i] + own[i])
    unexplained_us = np.maximum(gap_us - known_us, 0)
    return Schedule(
        slot_us, gap_us, unexplained_us, behind_us, ended, anchor, follows, kept, binding
    )


@jit
def unexplained_on_path(times: Schedule, rank: Array, ranks: int) -> tuple[Array, Array]:
    """Microseconds of unexplained gaps on the critical path of each rank's schedule, and its length."""
    last = np.full(ranks, -1, np.int64)
    for k in range(len(times.ended_us)):
        i = last[rank[k]]
        if i < 0 or times.ended_us[k] > times.ended_us[i]:
            last[rank[k]] = k
    unexplained, length = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for r in range(ranks):
        i = last[r]
        length[r] = times.ended_us[i] if i >= 0 else 0
        while i >= 0:
            unexplained[r] += times.unexplained_us[i]
            i = times.binding[i]
    return unexplained, length


@jit
def topological_order(position: Array, first: Array, after: Array) -> Array:
    """Kahn's order, which takes of all ready nodes the one with the lowest `position`.

    Shorter than the number of nodes if some lie on cycles.
    """
    # the heap holds positions, from which `by_position` gives the node
    n = len(position)
    waiting = np.zeros(n, np.int32)
    for d in after:
        waiting[d] += 1
    by_position = np.empty(n, np.int64)
    for i in range(n):
        by_position[position[i]] = i
    heap = empty_heap(np.int64(0))
    for i in range(n):
        if waiting[i] == 0:
            heapq.heappush(heap, np.int64(position[i]))
    order = np.empty(n, np.int64)
    k = 0
    while heap:
        i = by_position[heapq.heappop(heap)]
        order[k] = i
        k += 1
        for e in range(first[i], first[i + 1]):
            waiting[after[e]] -= 1
            if waiting[after[e]] == 0:
                heapq.heappush(heap, np.int64(position[after[e]]))
    return order[:k]


@jit
def leading_to(order: Array, goal: Array, dep_first: Array, dep: Array) -> Array:
    """Mask of the nodes that nodes of the mask `goal` depend on, directly or not, and of these."""
    mask = goal.copy()
    for k in range(len(order) - 1, -1, -1):
        i = order[k]
        if mask[i]:
            for e in range(dep_first[i], dep_first[i + 1]):
                mask[dep[e]] = True
    return mask
