"""Order and nesting of nodes in time: numba loops over columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

_LARGE_TIE = 64
"""Above this many equal starts, sorting them one by one costs more than sorting all."""


def time_order(rank: Array, ts: Array, dur: Array) -> Array:
    """Permutation that orders nodes by (rank, ts, longest first, input order).

    Parameters
    ----------
    rank, ts, dur
        Columns of the same length; times in nanoseconds.
    """
    order = np.argsort(ts, kind="stable")
    if rank.size and rank.min() != rank.max():
        order = order[np.argsort(rank[order], kind="stable")]
    if _order_ties(order, rank, ts, dur) > _LARGE_TIE:
        order = np.lexsort((-dur, ts, rank))
    return order


@jit
def _order_ties(order: Array, rank: Array, ts: Array, dur: Array) -> int:
    """Put the longest first among equal starts, in place; the size of the largest tie."""
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

    Parameters
    ----------
    lane, ts, dur
        Columns of nodes in time order, longest first among equal starts.
    nests
        For each lane, whether what lies within on it was called from there.

    Notes
    -----
    A node that outlasts the one it started in belongs to the first that lasts long enough: host
    ranges do overrun the ranges around them (kineto.md: up to 2,104 times a file).
    """
    n = len(ts)
    parent = np.full(n, -1, np.int32)
    top = np.full(len(nests), -1, np.int32)
    for i in range(n):
        where = lane[i]
        if not nests[where]:
            continue
        start, end = ts[i], ts[i] + dur[i]
        p = top[where]
        while p >= 0 and (ts[p] + dur[p] <= start or ts[p] + dur[p] < end):
            p = parent[p]
        parent[i] = p
        top[where] = i
    return parent


@jit
def within(chosen: Array, parent: Array) -> Array:
    """Which nodes lie within a chosen one.

    Parameters
    ----------
    chosen
        Of each node, whether it is chosen (bool).
    parent
        The node around each, which comes before it; -1 if none.
    """
    inside = np.zeros(len(chosen), np.bool_)
    for i in range(len(chosen)):
        p = parent[i]
        inside[i] = p >= 0 and (chosen[p] or inside[p])
    return inside
