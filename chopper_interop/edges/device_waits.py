"""The work for which calls that wait for a whole device waited, without what earlier waits imply.

A thread that waited for a piece of work once has waited for it at all its later waits, which need no edge
from it: so there are as many edges as work and waits, and not as many as waits times streams::

    stream 1   [ a ]                                  a -> wait 1
    stream 2   [   b   ]   [ c ]                      b -> wait 1, c -> wait 2; a and b -> wait 2 is implied
    thread     [ wait 1 ]     [ wait 2 ]

But `_KEPT` streams stay at each wait, as what if an earlier wait were none is asked as well.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, nest
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.edges.queues import NEVER_TOO_LATE, Queues, last_ended

_KEPT = 8
"""Streams that ended last, of which a wait keeps the work whatever earlier waits imply. Chosen: more than jobs
wait for at a time, of which each wait then has all edges."""


def last_work(
    queues: Queues, thread: Array, rank: Array, device: Array, start: Array, end: Array
) -> tuple[Array, Array, Array]:
    """Find the last work on each queue that calls waited for.

    Parameters
    ----------
    queues
        GPU work in its queues.
    thread, rank, device, start, end
        Of each call; a device of -1 stands for all of its rank. Work that was submitted after the start does not
        count, nor does any that ended after the end.

    Returns
    -------
    slot, call
        Pairs of work and position of the call, without those that are implied.
    later
        Mask of calls of which work that was submitted in time ended too late.
    """
    order = np.lexsort((start, end, thread))
    of_rank = np.argsort(queues.rank, kind="stable")
    ranks = queues.rank[of_rank]
    slot, call, later = _last_work(
        order, thread, device, start, end,
        np.searchsorted(ranks, rank), np.searchsorted(ranks, rank, "right"), of_rank,
        queues.device, queues.first, queues.submit, queues.end, *queues.jumps,
    )  # fmt: skip
    by_call = np.lexsort((slot, call))
    return slot[by_call], call[by_call], later


# Compiled: visits each pair of a wait and a queue. What nothing was submitted to since the thread's last wait costs two
# comparisons. Calls are in the order of their ends, and so are those ends in the graph, also of calls within others.
#
#   slot     of each queue: the last work that the thread has waited for; all that ended before it is implied
#   at, now  of each queue: the last work submitted before the last wait began, at `asked`, and the last of it to end in
#            time; `settled` if none of it ended too late
@jit
def _last_work(  # noqa: PLR0913, PLR0917 # columns
    order: Array, thread: Array, device: Array, start: Array, end: Array,
    low: Array, high: Array, of_rank: Array, queue_device: Array, first: Array,
    submit: Array, work_end: Array, ended_sooner: Array, jump: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    n = len(queue_device)
    awaited, now = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    at, asked, settled = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    slot, call = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    later = np.zeros(len(order), np.bool_)
    latest = np.zeros(_KEPT, np.int64)
    size = 0
    for step in range(len(order)):
        row = order[step]
        is_first = step == 0 or thread[row] != thread[order[step - 1]]
        kept = 0
        for k in range(low[row], high[row]):
            q = of_rank[k]
            if is_first:
                awaited[q], settled[q] = -1, False
            if device[row] >= 0 and queue_device[q] != device[row]:
                continue
            behind = at[q] + 1
            is_same = settled[q] and start[row] >= asked[q]
            asked[q] = start[row]
            if not (is_same and (behind == first[q + 1] or submit[behind] > start[row])):
                until = np.searchsorted(submit[first[q] : first[q + 1]], start[row], "right")
                at[q] = first[q] + until - 1
                now[q] = -1
                settled[q] = True
                if until > 0:
                    low_slot = first[q]
                    now[q] = last_ended(low_slot, work_end, ended_sooner, jump, at[q], end[row])
                    whole = last_ended(
                        low_slot, work_end, ended_sooner, jump, at[q], NEVER_TOO_LATE
                    )
                    settled[q] = now[q] == whole
                    later[row] |= work_end[at[q]] > end[row]
            work = now[q]
            if work < 0:
                continue
            if awaited[q] < 0 or work_end[work] > work_end[awaited[q]]:
                awaited[q] = work
                slot, call, size = _with_pair(slot, call, size, work, row)
            else:
                kept = _with_latest(latest, kept, work, work_end)
        for k in range(kept):
            slot, call, size = _with_pair(slot, call, size, latest[k], row)
    return slot[:size], call[:size], later


# Compiled: called by the loop above, as below.
@jit
def _with_pair(
    slot: Array, call: Array, size: int, work: int, row: int
) -> tuple[Array, Array, int]:
    """Add a pair; returns the arrays, enlarged if they were full, and the number of pairs."""
    if size == len(slot):
        slot, call = nest.enlarged(slot, 2 * size), nest.enlarged(call, 2 * size)
    slot[size], call[size] = work, row
    return slot, call, size + 1


@jit_in_place
def _with_latest(latest: Array, kept: int, work: int, work_end: Array) -> int:
    """Insert work among those that ended last, the latest first; returns their number."""
    if kept == len(latest) and work_end[work] <= work_end[latest[kept - 1]]:
        return kept
    place = min(kept, len(latest) - 1)
    while place > 0 and work_end[latest[place - 1]] < work_end[work]:
        latest[place] = latest[place - 1]
        place -= 1
    latest[place] = work
    return min(kept + 1, len(latest))
