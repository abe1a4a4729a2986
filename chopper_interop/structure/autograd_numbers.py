"""Forward operators and the backward functions that they made, by the numbers that both bear.

PyTorch numbers the functions of the backward pass as they are made, on each thread of its own. An
operator of the forward pass bears the number of the next function: of all that bear it, the last
one made it. The function bears it in the backward pass, with a number of the thread that made it,
which is no thread id and can be any positive number. Source: ``generateForwardBackwardLinks`` of
torch 1.9 to 2.8.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


def operators_of(trace: Trace, sequence: Array, thread: Array) -> Array:
    """For each node the forward operator that made it, -1 for none (int32).

    Parameters
    ----------
    trace
        Any trace.
    sequence
        Sequence number of each node, below 0 for none.
    thread
        Number of the thread that made it, as functions state it; 0 of a forward operator.
    """
    forward = np.full(trace.nodes.num_rows, -1, np.int32)
    ts, lane = trace.array("ts"), trace.array("lane")
    for mine in trace.rank_rows.values():
        numbered = np.flatnonzero(sequence[mine] >= 0) + mine.start
        made, used = numbered[thread[numbered] == 0], numbered[thread[numbered] > 0]
        if not made.size or not used.size:
            continue
        both = np.concatenate([made, used])
        told = _lanes(sequence[both], ts[both], lane[made].astype(np.int64), thread[used])
        _, key = gather.distinct(np.concatenate([lane[made], told]), sequence[both])
        match = last_before(key, ts[both], len(made))
        forward[used] = np.where(match >= 0, both[match], -1)
    return forward


def _lanes(sequence: Array, ts: Array, lane: Array, thread: Array) -> Array:
    """Lane that made each function; -1 if none fits.

    Each thread counts for itself, so that a number fits several lanes. It stands for the one that
    has most of what its functions name, and no lane is that of two.

    Parameters
    ----------
    sequence, ts
        Of operators, then of functions.
    lane
        Of each operator.
    thread
        Of each function.
    """
    places, lane = np.unique(lane, return_inverse=True)
    _, thread = np.unique(thread, return_inverse=True)
    _, number = gather.distinct(sequence)
    order = np.argsort(ts[: len(lane)], kind="stable")  # the first of its number and lane counts
    entry, _ = gather.distinct(number[order], lane[order])
    entry = order[entry]
    first, entry = gather.lists(number[entry], entry, int(number.max()) + 1)
    of_thread, function = gather.places(thread, int(thread.max()) + 1)
    function += len(lane)
    free = np.ones(len(places), np.bool_)

    def best(told: int) -> tuple[int, int, int]:
        functions = function[of_thread[told] : of_thread[told + 1]]
        votes = _votes(functions, number, ts, first, entry, lane, free)
        return -int(votes.max()), told, int(votes.argmax())

    result = np.full(len(of_thread) - 1, -1, np.int64)
    waiting = [best(told) for told in range(len(result))]
    heapq.heapify(waiting)
    while waiting:
        votes, told, place = heapq.heappop(waiting)
        if not votes:
            break
        if free[place]:
            free[place] = False
            result[told] = places[place]
        else:  # another has taken it since
            heapq.heappush(waiting, best(told))
    return result[thread]


@jit
def _votes(  # noqa: PLR0913, PLR0917 # columns
    functions: Array,
    number: Array,
    ts: Array,
    first: Array,
    entry: Array,
    lane: Array,
    free: Array,
) -> Array:
    """How many of the functions have an operator of their number before them, by lane."""
    votes = np.zeros(len(free), np.int64)
    for f in functions:
        for e in range(first[number[f]], first[number[f] + 1]):
            i = entry[e]
            if ts[i] <= ts[f] and free[lane[i]]:
                votes[lane[i]] += 1
    return votes


def last_before(key: Array, ts: Array, operators: int) -> Array:
    """For each function the last operator with its key that started before it; -1 if none.

    Parameters
    ----------
    key, ts
        Of so many operators, then of functions.
    operators
        How many there are.
    """
    late = np.arange(len(key)) >= operators
    order = np.lexsort((late, ts, key))
    ordered, late = key[order], late[order]
    last = np.maximum.accumulate(np.where(late, -1, np.arange(len(order))))
    good = (last >= 0) & (ordered[last] == ordered)
    result = np.full(len(key), -1, np.int64)
    result[order] = np.where(good, order[last], -1)
    return result[operators:]
