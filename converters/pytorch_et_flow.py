"""Which operator made the data that another reads, by the tensors of a host execution trace.

A tensor is a range of bytes in a storage. Operators are taken in the order of the program; each
reads its inputs, then writes its outputs and those inputs that its schema marks with ``!``. What
is read comes from the last operator that wrote it, byte for byte. Only operators count in which
no other was recorded, as those around them show the same tensors once more. Allocations make no
data and forget what was in their memory before. A view writes nothing; who reads it depends on
the view as well as on who wrote the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

ALLOCATIONS = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::empty_quantized",
    "aten::new_empty",
    "aten::new_empty_strided",
)
"""Operators that give memory without data."""

_READ, _WRITE, _VIEW, _FORGET = 1, 2, 4, 8


class _Pieces(NamedTuple):
    """Ranges of storages with who wrote each, as one linked list a storage."""

    head: Array
    start: Array
    stop: Array
    writer: Array
    next: Array
    used: Array


def mutated(schema: str) -> list[bool]:
    """Which arguments an operator with this schema writes to."""
    opening = schema.find("(")
    if "!" not in schema or opening < 0:
        return []
    found, depth, start = [], 0, opening + 1
    for i in range(opening, len(schema)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(schema[i], 0)
        if (schema[i] == "," and depth == 1) or depth == 0:
            found.append("!" in schema[start:i])
            start = i + 1
        if depth == 0:
            break
    return found


def leaves(parent: Array, allocates: Array) -> Array:
    """Nodes in which nothing but allocations was recorded; `parent` is a row or -1."""
    leaf = ~allocates
    inner = (parent >= 0) & ~allocates
    leaf[parent[inner]] = False
    return leaf


def positions(parent: Array, leaf: Array, allocates: Array) -> Array:
    """When each node has its effect: what an operator allocates comes before what it does."""
    position = 2 * np.arange(len(parent))
    owner = parent.copy()
    inner = allocates & (owner >= 0)
    while True:
        further = inner & (owner >= 0) & allocates[owner]
        if not further.any():
            break
        owner[further] = parent[owner[further]]
    within = inner & (owner >= 0) & leaf[owner]
    position[within] = 2 * owner[within] - 1
    return position


def flow(tensors: Array, position: Array, leaf: Array, allocates: Array, access: Array) -> Array:
    """Pairs of nodes, as columns: who made data, and who read it.

    Parameters
    ----------
    tensors
        Rows of `pytorch_et_decode.TENSOR`.
    position
        See `positions`.
    leaf, allocates
        Which nodes count, and which are allocations.
    access
        What is done with each of the tensors; see `accesses`.
    """
    node = tensors["node"]
    kept = np.flatnonzero(leaf[node] | (allocates[node] & tensors["out"]))
    order = kept[np.argsort(position[node[kept]], kind="stable")]
    rows, did = tensors[order], access[order]
    _, storage = gather.distinct(rows["storage"])
    _, tensor = gather.distinct(rows["tensor"])
    columns = (rows["node"].copy(), storage, tensor, rows["start"].copy(), rows["stop"].copy())
    room = 4 * len(rows) + 64
    while True:
        out = np.empty((2, room), np.int64)
        count = _flow(*columns, did, out)
        if count <= room:
            return _unique(out[:, :count])
        room = count


def accesses(tensors: Array, schema: Array, schemas: list[str], allocates: Array) -> Array:
    """What is done with each tensor: bits of reading, writing, making a view, forgetting.

    Parameters
    ----------
    tensors
        Rows of `pytorch_et_decode.TENSOR`.
    schema
        Number of each node's schema among `schemas`; -1 for none.
    """
    marks = [mutated(text) for text in schemas] + [[]]
    width = max(len(mark) for mark in marks) + 1
    table = np.zeros((len(marks), width), np.bool_)
    for row, mark in zip(table, marks, strict=True):
        row[: len(mark)] = mark
    node, out = tensors["node"], tensors["out"]
    of = schema[node]
    writes_in = table[of, np.minimum(tensors["arg"], width - 1)]
    pure = np.array([bool(text) and "!" not in text for text in schemas] + [False])
    alias = out & pure[of] & _shares(node, tensors["storage"], out)
    access = np.where(
        out, np.where(alias, _VIEW, _WRITE), np.where(writes_in, _READ | _WRITE, _READ)
    )
    access[allocates[node]] = _FORGET
    return access


def _shares(node: Array, storage: Array, out: Array) -> Array:
    """Of which tensors an input of the same node lies in the same storage."""
    first, code = gather.distinct(node, storage)
    read = np.zeros(len(first), np.bool_)
    read[code[~out]] = True
    return read[code]


def _unique(pairs: Array) -> Array:
    first, _ = gather.distinct(pairs[0], pairs[1])
    return pairs[:, first]


@jit
def _flow(  # noqa: PLR0913, PLR0917 # columns
    node: Array, storage: Array, tensor: Array, start: Array, stop: Array, did: Array, out: Array
) -> int:
    n, count = len(node), 0
    storages = storage.max() + 1 if n else 0
    room = 3 * n + 1  # a write adds at most itself and the rest of a piece that it splits
    pieces = _Pieces(
        np.full(storages, -1, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.zeros(1, np.int64),
    )
    made_by = np.full(tensor.max() + 1 if n else 0, -1, np.int64)
    first = 0
    while first < n:
        last = first
        while last < n and node[last] == node[first]:
            last += 1
        for k in range(first, last):
            if did[k] & _READ:
                maker = made_by[tensor[k]]
                count = _note(maker, node[k], out, count)
                count = _read(pieces, storage[k], start[k], stop[k], node[k], out, count)
        for k in range(first, last):
            if did[k] & _FORGET:
                pieces.head[storage[k]] = -1
                made_by[tensor[k]] = -1
            elif did[k] & _WRITE:
                _write(pieces, storage[k], start[k], stop[k], node[k])
                made_by[tensor[k]] = -1
            elif did[k] & _VIEW:
                made_by[tensor[k]] = node[k]
        first = last
    return count


@jit
def _note(src: int, dst: int, out: Array, count: int) -> int:
    if src < 0 or src == dst:
        return count
    if count < out.shape[1]:
        out[0, count], out[1, count] = src, dst
    return count + 1


@jit
def _read(  # noqa: PLR0913, PLR0917 # columns
    pieces: _Pieces, storage: int, start: int, stop: int, node: int, out: Array, count: int
) -> int:
    i = pieces.head[storage]
    while i >= 0:
        if pieces.start[i] < stop and pieces.stop[i] > start:
            count = _note(pieces.writer[i], node, out, count)
        i = pieces.next[i]
    return count


@jit
def _add(pieces: _Pieces, storage: int, start: int, stop: int, writer: int) -> None:
    i = pieces.used[0]
    pieces.start[i], pieces.stop[i], pieces.writer[i] = start, stop, writer
    pieces.next[i] = pieces.head[storage]
    pieces.head[storage] = i
    pieces.used[0] = i + 1


@jit
def _write(pieces: _Pieces, storage: int, start: int, stop: int, writer: int) -> None:
    """Put a range over those that are there: what of them it covers is gone."""
    i, before = pieces.head[storage], -1
    while i >= 0:
        after = pieces.next[i]
        low, high = pieces.start[i], pieces.stop[i]
        if low < stop and high > start:
            if low < start and high > stop:  # the front stays, the rest becomes another
                pieces.stop[i] = start
                _add(pieces, storage, stop, high, pieces.writer[i])
                break
            if low < start:
                pieces.stop[i] = start
            elif high > stop:
                pieces.start[i] = stop
            else:
                if before < 0:
                    pieces.head[storage] = after
                else:
                    pieces.next[before] = after
                i = after
                continue
        before, i = i, after
    _add(pieces, storage, start, stop, writer)
