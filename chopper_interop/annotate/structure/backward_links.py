"""Forward operators and the backward functions that they made, by the numbers that both have.

PyTorch numbers the functions of the backward pass as they are made, on each thread separately. An
operator of the forward pass has the number of the next function: of all operators with that number,
the last one made it. The function has the number in the backward pass, together with a number of the
thread that made it, which is no thread id and can be any positive number. Source:
``generateForwardBackwardLinks`` of torch 1.9 to 2.8.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace


def forward_operators(trace: Trace, sequence: Array, thread: Array) -> Array:
    """For each node the forward operator that made it, -1 for none (int32).

    Parameters
    ----------
    trace
        Any trace.
    sequence
        Sequence number of each node, below 0 for none.
    thread
        Number of the thread that made it, as functions state it; 0 for a forward operator.
    """
    forward = np.full(trace.nodes.num_rows, -1, np.int32)
    ts, lane = trace.array("ts"), trace.array("lane")
    for rank_rows in trace.rank_rows.values():
        numbered = np.flatnonzero(sequence[rank_rows] >= 0) + rank_rows.start
        operators, functions = numbered[thread[numbered] == 0], numbered[thread[numbered] > 0]
        if not operators.size or not functions.size:
            continue
        nodes = np.concatenate([operators, functions])
        operator_lane = lane[operators].astype(np.int64)
        made_on = _lanes_of_functions(sequence[nodes], ts[nodes], operator_lane, thread[functions])
        _, key = gather.distinct(np.concatenate([lane[operators], made_on]), sequence[nodes])
        match = last_before(key, ts[nodes], len(operators))
        forward[functions] = np.where(match >= 0, nodes[match], -1)
    return forward


def _lanes_of_functions(sequence: Array, ts: Array, lane: Array, thread: Array) -> Array:
    """Lane on which each function was made; -1 if none fits.

    Each thread counts separately, so that a number occurs on several lanes. A thread number is
    assigned to the lane that has most of the numbers of its functions, and no lane to two of them.

    Parameters
    ----------
    sequence, ts
        Of operators, then of functions.
    lane
        Of each operator.
    thread
        Of each function.
    """
    lanes, lane = np.unique(lane, return_inverse=True)
    _, thread = np.unique(thread, return_inverse=True)
    _, number = gather.distinct(sequence)
    order = np.argsort(ts[: len(lane)], kind="stable")  # the first of its number and lane counts
    entry, _ = gather.distinct(number[order], lane[order])
    entry = order[entry]
    first, entry = gather.group_values(number[entry], entry, int(number.max()) + 1)
    of_thread, function = gather.group_rows(thread, int(thread.max()) + 1)
    function += len(lane)
    free = np.ones(len(lanes), np.bool_)

    def best(t: int) -> tuple[int, int, int]:
        functions = function[of_thread[t] : of_thread[t + 1]]
        votes = _votes(functions, number, ts, first, entry, lane, free)
        return -int(votes.max()), t, int(votes.argmax())

    # greedy assignment: the thread with the most votes takes its lane, and one whose lane was taken
    # in the meantime votes again among those that are free
    result = np.full(len(of_thread) - 1, -1, np.int64)
    waiting = [best(t) for t in range(len(result))]
    heapq.heapify(waiting)
    while waiting:
        votes, t, index = heapq.heappop(waiting)
        if not votes:
            break
        if free[index]:
            free[index] = False
            result[t] = lanes[index]
        else:
            heapq.heappush(waiting, best(t))
    return result[thread]


# Compiled: for each function, all lanes on which its number occurs.
@jit
def _votes(  # noqa: PLR0913, PLR0917 # columns
    functions: Array, number: Array, ts: Array, first: Array, entry: Array, lane: Array, free: Array
) -> Array:
    """Number of functions that have an operator of their number before them, by lane."""
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
        Of operators, then of functions.
    operators
        Number of operators.
    """
    # sorted by key and time, operators first among equals: a running maximum of the operators'
    # positions gives each function the operator sorted last before it, of its key or of another
    is_function = np.arange(len(key)) >= operators
    order = np.lexsort((is_function, ts, key))
    ordered, is_function = key[order], is_function[order]
    last = np.maximum.accumulate(np.where(is_function, -1, np.arange(len(order))))
    same_key = (last >= 0) & (ordered[last] == ordered)
    result = np.full(len(key), -1, np.int64)
    result[order] = np.where(same_key, order[last], -1)
    return result[operators:]
