"""Whether ETs run to the end: a simulator's rules for what may start when, without its network.

Rules are those of ASTRA-sim: for each rank a slot for host operations, one for compute and one
for communication, ready nodes by lowest id; collectives of a group are joined in order of issue,
broadcasts are only timed, a receive ends when its send has.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.compiled import jit

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

HOST, COMPUTE, COMM, NO_SLOT = 0, 1, 2, 3
PLAIN, JOINED, SEND, RECEIVE = 0, 1, 2, 3


class Job(NamedTuple):
    """Nodes of all ranks one behind the other.

    Parameters
    ----------
    rank, order
        Rank of each node, and its place by id among all nodes of the rank.
    slot
        HOST, COMPUTE, COMM or NO_SLOT.
    role
        PLAIN, JOINED (a collective), SEND or RECEIVE.
    partner
        Of a JOINED node, its group; of a RECEIVE, the node that sends, -1 if none does.
    members
        Of each group, how many ranks it has.
    duration
        Microseconds.
    first, after
        Nodes that depend on node i: ``after[first[i]:first[i + 1]]``.
    waits
        On how many nodes each node depends.
    """

    rank: Array
    order: Array
    slot: Array
    role: Array
    partner: Array
    members: Array
    duration: Array
    first: Array
    after: Array
    waits: Array


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    end_us
        When each node ended; -1 if it never did.
    started
        Whether each node was started.
    """

    end_us: Array
    started: Array

    @property
    def makespan_us(self) -> int:
        """When the last node ended."""
        return int(self.end_us.max(initial=0))


def run(job: Job, ranks: int) -> Outcome:
    """Run all nodes that can be run."""
    end, started = _run(job, ranks)
    return Outcome(end, started)


@jit
def _run(job: Job, ranks: int) -> tuple[Array, Array]:
    n, groups = len(job.rank), len(job.members)
    end = np.full(n, -1, np.int64)
    started = np.zeros(n, np.bool_)
    waits = job.waits.copy()
    busy = np.zeros((ranks, 4), np.bool_)
    ready = [[(np.int64(0), np.int64(0)) for _ in range(0)] for _ in range(4 * ranks)]
    waiting = np.full((groups, ranks), -1, np.int64)  # a rank has one slot, so one at a time
    present = np.zeros(groups, np.int64)
    receiver = np.full(n, -1, np.int64)
    for i in range(n):
        if job.role[i] == RECEIVE and job.partner[i] >= 0:
            receiver[job.partner[i]] = i
    heap = [(np.int64(0), np.int64(0)) for _ in range(0)]
    for i in range(n):
        if waits[i] == 0:
            heapq.heappush(ready[4 * job.rank[i] + job.slot[i]], (job.order[i], np.int64(i)))
    now = np.int64(0)
    changed = np.ones(ranks, np.bool_)
    while True:
        for r in range(ranks):
            if not changed[r]:
                continue
            changed[r] = False
            for s in range(4):
                queue = ready[4 * r + s]
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
                            shortest = job.duration[i]
                            for m in range(ranks):
                                if waiting[g, m] >= 0:
                                    shortest = min(shortest, job.duration[waiting[g, m]])
                            for m in range(ranks):
                                if waiting[g, m] >= 0:
                                    heapq.heappush(heap, (now + shortest, waiting[g, m]))
                                    waiting[g, m] = -1
                    elif job.role[i] == RECEIVE:
                        sender = job.partner[i]
                        if sender >= 0 and end[sender] >= 0:
                            heapq.heappush(heap, (now, i))
                    else:
                        heapq.heappush(heap, (now + job.duration[i], i))
        if len(heap) == 0:
            return end, started
        now, i = heapq.heappop(heap)
        end[i] = now
        busy[job.rank[i], job.slot[i]] = False
        changed[job.rank[i]] = True
        if receiver[i] >= 0 and started[receiver[i]]:
            heapq.heappush(heap, (now, receiver[i]))
        for e in range(job.first[i], job.first[i + 1]):
            d = job.after[e]
            waits[d] -= 1
            if waits[d] == 0:
                heapq.heappush(ready[4 * job.rank[d] + job.slot[d]], (job.order[d], np.int64(d)))
