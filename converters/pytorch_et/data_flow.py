"""Flow of data between the operators of a host execution trace, by the bytes of their tensors.

A tensor is a range of bytes in a storage. Operators are taken in the order of the program; each
reads its inputs, then writes its outputs and those inputs that its schema marks with ``!``. Data
comes from the last operator that wrote it, byte for byte. Only operators count in which no other
was recorded, as those around them show the same tensors once more. Allocations make no data and
forget what was in their memory before. A view writes nothing; its reader depends on the view as
well as on the operator that wrote the data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit, jit_in_place

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
"""Bits of an access."""


class _Pieces(NamedTuple):
    """Ranges of storages with the node that wrote each, as one linked list for each storage.

    Arrays of fixed size in place of objects: `head` is the first piece of each storage, `next` the
    one after each piece (-1: none), ``used[0]`` the number of pieces made so far.
    """

    head: Array
    start: Array
    stop: Array
    writer: Array
    next: Array
    used: Array


def mutated(schema: str) -> list[bool]:
    """Mark the arguments that an operator with this schema writes to."""
    opening = schema.find("(")
    if "!" not in schema or opening < 0:
        return []
    marks, depth, start = [], 0, opening + 1
    for i in range(opening, len(schema)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(schema[i], 0)
        if (schema[i] == "," and depth == 1) or depth == 0:
            marks.append("!" in schema[start:i])
            start = i + 1
        if depth == 0:
            break
    return marks


def leaves(parent: Array, allocates: Array) -> Array:
    """Mark nodes in which nothing but allocations was recorded; `parent` is a row or -1."""
    leaf = ~allocates
    inner = (parent >= 0) & ~allocates
    leaf[parent[inner]] = False
    return leaf


def positions(parent: Array, leaf: Array, allocates: Array) -> Array:
    """Position of each node's effect: allocations come before the operator within which they are.

    Positions are even, so that allocations within a leaf operator fit in just before it.
    """
    position = 2 * np.arange(len(parent))
    owner = parent.copy()
    inner = allocates & (owner >= 0)
    while True:
        nested = inner & (owner >= 0) & allocates[owner]
        if not nested.any():
            break
        owner[nested] = parent[owner[nested]]
    within = inner & (owner >= 0) & leaf[owner]
    position[within] = 2 * owner[within] - 1
    return position


def data_flow(
    tensors: Array, position: Array, leaf: Array, allocates: Array, access: Array
) -> Array:
    """Pairs of nodes, as columns: the ones that made data, and those that read it.

    Parameters
    ----------
    tensors
        Rows of `TENSOR`.
    position
        See `positions`.
    leaf, allocates
        Masks of the nodes that count, and of allocations.
    access
        Access to each of the tensors; see `accesses`.
    """
    node = tensors["node"]
    relevant = np.flatnonzero(leaf[node] | (allocates[node] & tensors["out"]))
    order = relevant[np.argsort(position[node[relevant]], kind="stable")]
    rows, ordered_access = tensors[order], access[order]
    _, storage = gather.distinct(rows["storage"])
    _, tensor = gather.distinct(rows["tensor"])
    columns = (rows["node"].copy(), storage, tensor, rows["start"].copy(), rows["stop"].copy())
    room = 4 * len(rows) + 64  # a guess; if there are more pairs, they are made again
    while True:
        out = np.empty((2, room), np.int64)
        count = _trace_data(*columns, ordered_access, out)
        if count <= room:
            return _unique(out[:, :count])
        room = count


def accesses(tensors: Array, schema: Array, schemas: list[str], allocates: Array) -> Array:
    """Access of a node to each of its tensors: bits of read, write, make a view, forget.

    Parameters
    ----------
    tensors
        Rows of `TENSOR`.
    schema
        Number of each node's schema among `schemas`; -1 for none.
    schemas
        Texts by number.
    allocates
        Mask of nodes that are allocations.
    """
    marks = [mutated(text) for text in schemas] + [[]]
    width = max(len(mark) for mark in marks) + 1
    table = np.zeros((len(marks), width), np.bool_)
    for row, mark in zip(table, marks, strict=True):
        row[: len(mark)] = mark
    node, out = tensors["node"], tensors["out"]
    of_node = schema[node]
    writes_input = table[of_node, np.minimum(tensors["arg"], width - 1)]
    pure = np.array([bool(text) and "!" not in text for text in schemas] + [False])
    is_view = out & pure[of_node] & _shares_storage_with_input(node, tensors["storage"], out)
    access = np.where(
        out, np.where(is_view, _VIEW, _WRITE), np.where(writes_input, _READ | _WRITE, _READ)
    )
    access[allocates[node]] = _FORGET
    return access


def _shares_storage_with_input(node: Array, storage: Array, out: Array) -> Array:
    """Mark tensors in whose storage an input of the same node lies, too."""
    first, code = gather.distinct(node, storage)
    has_input = np.zeros(len(first), np.bool_)
    has_input[code[~out]] = True
    return has_input[code]


def _unique(pairs: Array) -> Array:
    """Return each pair once, in order of its first occurrence."""
    first, _ = gather.distinct(pairs[0], pairs[1])
    return pairs[:, first]


@jit
def _trace_data(  # noqa: PLR0913, PLR0917 # columns
    node: Array, storage: Array, tensor: Array, start: Array, stop: Array, access: Array, out: Array
) -> int:
    """Write pairs of maker and reader to `out`; return how many there are, even if more than fit.

    A loop over the tensors in the order of the program, as each access depends on what all before
    left in the storages. Of each node the inputs come first, then what it writes.
    """
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
    view_of = np.full(tensor.max() + 1 if n else 0, -1, np.int64)
    first = 0
    while first < n:
        last = first
        while last < n and node[last] == node[first]:
            last += 1
        for k in range(first, last):
            if access[k] & _READ:
                maker = view_of[tensor[k]]  # the node that made this view, if it is one
                count = _add_pair(maker, node[k], out, count)
                count = _read_range(pieces, storage[k], start[k], stop[k], node[k], out, count)
        for k in range(first, last):
            if access[k] & _FORGET:
                pieces.head[storage[k]] = -1
                view_of[tensor[k]] = -1
            elif access[k] & _WRITE:
                _write_range(pieces, storage[k], start[k], stop[k], node[k])
                view_of[tensor[k]] = -1
            elif access[k] & _VIEW:
                view_of[tensor[k]] = node[k]
        first = last
    return count


@jit_in_place
def _add_pair(src: int, dst: int, out: Array, count: int) -> int:
    if src < 0 or src == dst:
        return count
    if count < out.shape[1]:
        out[0, count], out[1, count] = src, dst
    return count + 1


@jit_in_place
def _read_range(  # noqa: PLR0913, PLR0917 # columns
    pieces: _Pieces, storage: int, start: int, stop: int, node: int, out: Array, count: int
) -> int:
    i = pieces.head[storage]
    while i >= 0:
        if pieces.start[i] < stop and pieces.stop[i] > start:
            count = _add_pair(pieces.writer[i], node, out, count)
        i = pieces.next[i]
    return count


@jit_in_place
def _add_piece(pieces: _Pieces, storage: int, start: int, stop: int, writer: int) -> None:
    i = pieces.used[0]
    pieces.start[i], pieces.stop[i], pieces.writer[i] = start, stop, writer
    pieces.next[i] = pieces.head[storage]
    pieces.head[storage] = i
    pieces.used[0] = i + 1


@jit_in_place
def _write_range(pieces: _Pieces, storage: int, start: int, stop: int, writer: int) -> None:
    """Write a range: the parts of others that it covers are gone.

        before     aaaaaaaa  bbbbbbbb
        written         wwwwwwww
        after      aaaaawwwwwwwwbbbbb

    A piece that is covered completely is dropped; one that reaches beyond both ends is split.
    """
    i, previous = pieces.head[storage], -1
    while i >= 0:
        following = pieces.next[i]
        low, high = pieces.start[i], pieces.stop[i]
        if low < stop and high > start:
            if low < start and high > stop:  # the front stays, the rest becomes another piece
                pieces.stop[i] = start
                _add_piece(pieces, storage, stop, high, pieces.writer[i])
                break
            if low < start:
                pieces.stop[i] = start
            elif high > stop:
                pieces.start[i] = stop
            else:
                if previous < 0:
                    pieces.head[storage] = following
                else:
                    pieces.next[previous] = following
                i = following
                continue
        previous, i = i, following
    _add_piece(pieces, storage, start, stop, writer)
