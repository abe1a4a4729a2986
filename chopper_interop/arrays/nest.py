"""Order and nesting of nodes in time: numba loops over columns."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit, jit_in_place

_LARGE_TIE = 64
"""Equal starts above which sorting them by insertion, quadratic in their number, costs more than
sorting all nodes again (chosen: real ties are of a few nodes)."""


def time_order(rank: Array, ts: Array, dur: Array) -> Array:
    """Permutation that orders nodes by (rank, ts, longest first, input order).

    Parameters
    ----------
    rank, ts, dur
        Columns of the same length; times in nanoseconds.
    """
    # two stable sorts of one column each, the less significant first, are faster than a lexsort
    # of three; files are nearly sorted, and few starts are equal
    order = np.argsort(ts, kind="stable")
    if rank.size and rank.min() != rank.max():
        order = order[np.argsort(rank[order], kind="stable")]
    if _order_ties(order, rank, ts, dur) > _LARGE_TIE:
        order = np.lexsort((-dur, ts, rank))
    return order


@jit  # one pass without memory, where columns of a job may be larger than memory
def is_in_order(rank: Array, ts: Array, dur: Array) -> bool:
    """Return True if nodes are in the order of `time_order`."""
    for i in range(1, len(rank)):
        if rank[i] != rank[i - 1]:
            if rank[i] < rank[i - 1]:
                return False
        elif ts[i] < ts[i - 1] or (ts[i] == ts[i - 1] and dur[i] > dur[i - 1]):
            return False
    return True


@jit_in_place
def _order_ties(order: Array, rank: Array, ts: Array, dur: Array) -> int:
    """Put the longest first among equal starts, in place, and return the size of the largest tie.

    By insertion, which is stable and needs no memory; stops at a tie larger than `_LARGE_TIE`.
    """
    largest, start, n = 0, 0, len(order)
    while start < n:
        stop = start + 1
        first = order[start]
        while stop < n and ts[order[stop]] == ts[first] and rank[order[stop]] == rank[first]:
            stop += 1
        largest = max(largest, stop - start)
        if stop - start > _LARGE_TIE:
            return largest
        for i in range(start + 1, stop):
            row, j = order[i], i
            while j > start and dur[order[j - 1]] < dur[row]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = row
        start = stop
    return largest


@jit
def parents(lane: Array, ts: Array, dur: Array, nests: Array) -> Array:
    """Innermost node around each node on the same lane, -1 if none.

    One pass in time order. `innermost` holds the last node of each lane, and the chain of its
    parents is the lane's stack: it is climbed past the nodes that have ended::

        A |----------------------|
        B    |--------|             parent A
        C       |--|                parent B
        D                 |--|      parent A: climbs from C past B

    Parameters
    ----------
    lane, ts, dur
        Columns of nodes in time order, longest first among equal starts.
    nests
        For each lane, True if what lies within a node of it was called from there.

    Notes
    -----
    A node that outlasts the one it started in belongs to the first that lasts long enough: host
    ranges do overrun the ranges around them (kineto.md: up to 2,104 times a file).
    """
    n = len(ts)
    parent = np.full(n, -1, np.int32)
    innermost = np.full(len(nests), -1, np.int32)
    for i in range(n):
        on = lane[i]
        if not nests[on]:
            continue
        start, end = ts[i], ts[i] + dur[i]
        p = innermost[on]
        while p >= 0 and (ts[p] + dur[p] <= start or ts[p] + dur[p] < end):
            p = parent[p]
        parent[i] = p
        innermost[on] = i
    return parent


@jit
def around(parent: Array, wanted: Array) -> Array:
    """Innermost wanted row around each row, itself left out; -1 where there is none.

    Compiled: parents come before their children, so what is around a skipped parent is already known.
    """
    result = np.full(len(parent), -1, np.int32)
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            result[i] = p if wanted[p] else result[p]
    return result


@jit
def inherited(parent: Array, own: Array) -> Array:
    """Return each row's own value, or that of the innermost row around it that has one; -1 for none.

    Compiled: parents come before their children, so values reach rows of any depth in one pass.
    """
    result = own.copy()
    for i in range(len(own)):
        if result[i] < 0 and parent[i] >= 0:
            result[i] = result[parent[i]]
    return result


@jit
def self_times(ts: Array, dur: Array, parent: Array) -> Array:
    """Time of each node in which none of those that it called ran.

    Parameters
    ----------
    ts, dur, parent
        Columns in the order of `time_order`; times in nanoseconds.

    Returns
    -------
    Array
        Nanoseconds; where nodes of one parent overlap, their common time is taken off once.
    """
    own = dur.copy()
    until = ts.copy()  # up to here the time of each node is taken off for those that it called
    for i in range(len(ts)):
        caller = parent[i]
        if caller >= 0:
            start, end = max(ts[i], until[caller]), ts[i] + dur[i]
            if end > start:
                own[caller] -= end - start
                until[caller] = end
    return own


@jit
def enlarged(values: Array, size: int) -> Array:
    """Return an array of a larger size that begins with these values, for a stack that is full.

    Compiled: what numba makes of an assignment to a slice takes a second to compile.
    """
    result = np.zeros(size, values.dtype)
    for i in range(len(values)):
        result[i] = values[i]
    return result
