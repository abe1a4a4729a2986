"""Small column operations that Arrow and numpy lack or do slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array


def distinct(*columns: Array) -> tuple[Array, Array]:
    """Distinct rows of integer columns.

    Returns
    -------
    first
        Row of the first occurrence of each distinct row, in order of occurrence.
    code
        For each row, which of the distinct ones it is.
    """
    columns = tuple(np.asarray(column, np.int64) for column in columns)
    key, size = _places(columns)
    if size:
        return _by_place(key, size)
    code = np.zeros(len(columns[0]), np.int64)
    for place, column in enumerate(columns):
        encoded = arrow.array(np.asarray(column, np.int64)).dictionary_encode()
        if place:
            both = code * len(encoded.dictionary) + arrow.numbers(encoded)
            encoded = arrow.array(both).dictionary_encode()
        code = arrow.numbers(encoded).astype(np.int64)
    # codes are given in order of occurrence, so that each is greater than all before its first
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
    return first, code


def used(codes: Array) -> Array:
    """The numbers from 0 on that occur, ascending; for small numbers, such as codes of texts."""
    return np.flatnonzero(np.bincount(codes[codes >= 0]))


_ROOM = 4
"""So many places for each row at most, for rows to be told apart by a table instead of hashes."""


def _places(columns: Sequence[Array]) -> tuple[Array, int]:
    """One number for each row, below the size that is given; 0 if they are too far apart."""
    count = len(columns[0])
    key = np.zeros(count, np.int64)
    size = min(count, 1)
    for column in columns if count else ():
        low, high = int(column.min()), int(column.max())
        size *= high - low + 1
        if size > _ROOM * count + 1024:
            return key, 0
        if high > low:
            key = key * (high - low + 1) + (column - low)
    return key, size


def _by_place(key: Array, size: int) -> tuple[Array, Array]:
    count = len(key)
    row = np.full(size, count, np.int64)
    row[key[::-1]] = np.arange(count - 1, -1, -1)  # of equal ones the first is written last
    used = np.flatnonzero(row < count)
    order = np.argsort(row[used], kind="stable")
    first = row[used[order]]
    row[used[order]] = np.arange(len(order))
    return first, row[key]


def ranges(buffers: Sequence[Array], starts: Array, at: Array, length: Array) -> Array:
    """Byte ranges of a text that lies in several buffers, one behind the other.

    Parameters
    ----------
    buffers, starts
        The text's pieces, and where each begins in it.
    at, length
        The ranges; none crosses from one piece into the next.
    """
    target = np.cumsum(length) - length
    out = np.empty(int(np.sum(length)), np.uint8)
    which = np.searchsorted(starts, at, "right") - 1
    for piece, buffer in enumerate(buffers):
        mine = np.flatnonzero((which == piece) & (length > 0))
        _copy(buffer, at[mine] - starts[piece], target[mine], length[mine], out)
    return out


@jit
def _copy(buffer: Array, source: Array, target: Array, length: Array, out: Array) -> None:
    for row in range(len(source)):
        for k in range(length[row]):
            out[target[row] + k] = buffer[source[row] + k]


def lists(key: Array, value: Array, n: int) -> tuple[Array, Array]:
    """Values by key: those of key k are ``values[first[k]:first[k + 1]]``.

    Returns
    -------
    first, values
        `first` has n + 1 entries; equal keys keep their order.
    """
    first, place = places(key, n)
    return first, value[place]


def places(key: Array, n: int) -> tuple[Array, Array]:
    """Places of each key: those of key k are ``place[first[k]:first[k + 1]]``, ascending.

    Parameters
    ----------
    key
        Numbers from 0 to n - 1.
    n
        How many keys there are.
    """
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(key, minlength=n), out=first[1:])
    return first, _by_key(np.ascontiguousarray(key), first[:-1].copy())


@jit
def _by_key(key: Array, free: Array) -> Array:
    place = np.empty(len(key), np.int64)
    for i in range(len(key)):
        place[free[key[i]]] = i
        free[key[i]] += 1
    return place


def sums(code: Array, values: Array, n: int) -> Array:
    """Sum of whole numbers by code, from 0 to n - 1; exact."""
    return _sums(np.ascontiguousarray(code, np.int64), np.ascontiguousarray(values, np.int64), n)


@jit
def _sums(code: Array, values: Array, n: int) -> Array:
    total = np.zeros(n, np.int64)
    for i in range(len(code)):
        total[code[i]] += values[i]
    return total


def unreached(first: Array, after: Array) -> Array:
    """Which nodes of a graph never become free: those on circles, and all behind them.

    Parameters
    ----------
    first, after
        Nodes that depend on node i: ``after[first[i]:first[i + 1]]``.
    """
    left = np.ones(len(first) - 1, np.bool_)
    left[topological(first, after)] = False
    return left


@jit
def topological(first: Array, after: Array) -> Array:
    """Kahn's order of a graph's nodes; those on circles, and all behind them, are not in it.

    Parameters
    ----------
    first, after
        Nodes that depend on node i: ``after[first[i]:first[i + 1]]``.
    """
    n = len(first) - 1
    waits = np.zeros(n, np.int32)
    for v in after:
        waits[v] += 1
    order = np.empty(n, np.int32)
    known = 0
    for v in range(n):
        if waits[v] == 0:
            order[known] = v
            known += 1
    done = 0
    while done < known:
        v = order[done]
        done += 1
        for e in range(first[v], first[v + 1]):
            waits[after[e]] -= 1
            if waits[after[e]] == 0:
                order[known] = after[e]
                known += 1
    return order[:known]
