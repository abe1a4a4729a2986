"""Run ETs by a simulator's rules for when nodes may start, without its network.

Rules are those of ASTRA-sim: for each rank a slot for host operations, one for compute and one for
communication; of the nodes that are ready, the lowest id starts. Collectives of a group are joined in order
of issue, and never end if they differ in kind or size. Broadcasts are only timed; a receive ends when its
send has, and a send whose receive has begun takes the shorter of both times. Nodes that end at the same
moment are seen in order of their start, a receive with its send.

Compiled, as which node starts next depends on all that ended before.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.heaps import empty_heap, empty_heaps

HOST, COMPUTE, COMM, NO_SLOT = 0, 1, 2, 3
PLAIN, JOINED, SEND, RECEIVE = 0, 1, 2, 3
ROUNDING_NS = 20_000
"""Deviation of a rank's end that is none whatever its span: nodes last whole microseconds."""


class JobNodes(NamedTuple):
    """Nodes of all ranks one after the other.

    Parameters
    ----------
    rank, order
        Rank of each node, and its position by id among the nodes of the rank.
    slot
        HOST, COMPUTE, COMM or NO_SLOT; higher ones are slots of other NPUs of the rank.
    role
        PLAIN, JOINED (a collective), SEND or RECEIVE.
    partner
        Of a JOINED node, its group; of a RECEIVE, the node that sends, -1 if none does.
    kind, size
        Of a JOINED node, its `CommType` and its bytes.
    members
        Number of ranks of each group.
    duration
        Nanoseconds.
    first, after
        Nodes that depend on node i: ``after[first[i]:first[i + 1]]``.
    waits
        Number of nodes that each node depends on.
    """

    rank: Array
    order: Array
    slot: Array
    role: Array
    partner: Array
    kind: Array
    size: Array
    members: Array
    duration: Array
    first: Array
    after: Array
    waits: Array


TYPES = {
    "rank": np.int32, "order": np.int64, "slot": np.int32, "role": np.int8, "partner": np.int32, "kind": np.int64,
    "size": np.int64, "duration": np.int64, "waits": np.int32,
}  # fmt: skip
"""Columns of the nodes of a job and their types, the same for all jobs: other ones are another compilation."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Parameters
    ----------
    end_ns
        End of each node; -1 if it never ended.
    started
        Mask of the nodes that were started.
    mismatch
        Of each group, the first collective that differs between ranks: the number of collectives
        before it, and two nodes that differ; -1 if there is none.
    last
        Of each rank the node that was seen to end last, also of several that end at the same moment; -1 if none ended.
    """

    end_ns: Array
    started: Array
    mismatch: Array
    last: Array

    @property
    def makespan_us(self) -> int:
        """End of the last node."""
        return (int(self.end_ns.max(initial=0)) + 500) // 1000


def run(job: JobNodes, ranks: int) -> Outcome:
    """Run all nodes that can be run."""
    return Outcome(*_simulate(job, ranks))


@jit
def _find_mismatch(job: JobNodes, waiting: Array) -> tuple[int, int]:
    """First of the nodes that wait, and one that differs from it in kind or size, -1 if none."""
    first = -1
    for node in waiting:
        if node >= 0 and first < 0:
            first = node
        elif node >= 0 and (job.kind[node] != job.kind[first] or job.size[node] != job.size[first]):
            return first, node
    return first, -1


@jit
def _receivers(job: JobNodes) -> Array:
    """Node that receives what each node sends, -1 if none does; empty if none receives, as in most jobs of one rank."""
    n = len(job.rank)
    receiver = np.empty(0, np.int64)
    for i in range(n):
        if job.role[i] == RECEIVE and job.partner[i] >= 0:
            if len(receiver) == 0:
                receiver = np.full(n, -1, np.int64)
            receiver[job.partner[i]] = i
    return receiver


@jit_in_place
def _place(job: JobNodes, i: int) -> int:
    """Place of a node in the order of ranks and ids."""
    return (np.int64(job.rank[i]) << 40) + job.order[i]


@jit
def _simulate(job: JobNodes, ranks: int) -> tuple[Array, Array, Array, Array]:
    """Return the fields of `Outcome`: a discrete-event simulation."""
    # One event at a time: start all that is ready on the ranks whose state has changed, then go on
    # to the next end, which frees its slot and may make other nodes ready. `ready` is a heap by id
    # for each rank and slot; `heap` has the ends to come. It ends when nothing is left to end.
    n, groups = len(job.rank), len(job.members)
    end, last = np.full(n, -1, np.int64), np.full(ranks, -1, np.int64)
    started = np.zeros(n, np.bool_)
    waits = job.waits.copy()
    slots = max(job.slot.max() + 1, NO_SLOT + 1) if n else 0
    busy = np.zeros((ranks, slots), np.bool_)
    ready = empty_heaps((np.int64(0), np.int64(0)), slots * ranks)
    waiting = np.full((groups, ranks), -1, np.int64)  # a rank has one slot, so one at a time
    present = np.zeros(groups, np.int64)
    joined = np.zeros(groups, np.int64)
    mismatch = np.full((groups, 3), -1, np.int64)
    receiver = _receivers(job)
    # a simulator sees ends of one moment in the order in which they were planned: by round of starts, `_place`
    heap = empty_heap((np.int64(0), np.int64(0), np.int64(0), np.int64(0)))
    turn = np.int64(0)
    for i in range(n):
        if waits[i] == 0:
            heapq.heappush(ready[slots * job.rank[i] + job.slot[i]], (job.order[i], np.int64(i)))
    now = np.int64(0)
    from_rank, to_rank = 0, ranks  # all at first, then that of the node that ended
    # slots in which something may start: all at first, then that of the node that ended and of those that it made ready
    touched, is_touched = np.arange(slots), np.ones(slots, np.bool_)
    count = slots
    while True:
        turn += 1
        for r in range(from_rank, to_rank):
            for s in touched[:count]:
                queue = ready[slots * r + s]
                while len(queue) and not (busy[r, s] and s != NO_SLOT):
                    i = heapq.heappop(queue)[1]
                    started[i] = True
                    busy[r, s] = True
                    if job.role[i] == JOINED:
                        g = job.partner[i]
                        waiting[g, r] = i
                        present[g] += 1
                        if present[g] == job.members[g]:
                            present[g] = 0
                            one, other = _find_mismatch(job, waiting[g])
                            if other >= 0:
                                mismatch[g, 0], mismatch[g, 1], mismatch[g, 2] = (
                                    joined[g],
                                    one,
                                    other,
                                )
                                continue
                            joined[g] += 1
                            shortest = job.duration[i]
                            for m in range(ranks):
                                if waiting[g, m] >= 0:
                                    shortest = min(shortest, job.duration[waiting[g, m]])
                            for m in range(ranks):
                                w = waiting[g, m]
                                if w >= 0:
                                    heapq.heappush(heap, (now + shortest, turn, _place(job, w), w))
                                    waiting[g, m] = -1
                    elif job.role[i] == RECEIVE:
                        sender = job.partner[i]
                        if sender >= 0 and end[sender] >= 0:
                            heapq.heappush(heap, (now, turn, _place(job, i), i))
                    else:
                        lasts = job.duration[i]
                        if len(receiver) and receiver[i] >= 0 and started[receiver[i]]:
                            lasts = min(lasts, job.duration[receiver[i]])
                        heapq.heappush(heap, (now + lasts, turn, _place(job, i), i))
        if len(heap) == 0:
            return end, started, mismatch, last
        now, planned, at, i = heapq.heappop(heap)
        end[i], last[job.rank[i]] = now, i
        for k in range(count):
            is_touched[touched[k]] = False
        touched[0], count = job.slot[i], 1
        is_touched[job.slot[i]] = True
        busy[job.rank[i], job.slot[i]] = False
        from_rank, to_rank = job.rank[i], job.rank[i] + 1
        if len(receiver) and receiver[i] >= 0 and started[receiver[i]]:
            heapq.heappush(heap, (now, planned, at, receiver[i]))  # with its send, before all else
        for e in range(job.first[i], job.first[i + 1]):
            d = job.after[e]
            waits[d] -= 1
            if waits[d] == 0:
                s = job.slot[d]
                heapq.heappush(ready[slots * job.rank[d] + s], (job.order[d], np.int64(d)))
                if not is_touched[s]:
                    touched[count], is_touched[s] = s, True
                    count += 1
