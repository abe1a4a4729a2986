"""Nodes of an ET in their wire format: a numba loop over columns.

Field numbers are those of ``schemas/chakra_et.proto``. Attributes are written with the types that
both of Chakra's feeders read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files import wire
from chopper_interop.files.wire import FIXED64, LENGTH, VARINT, fixed64, tag, varint

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

_ID, _NAME, _TYPE = tag(1, VARINT), tag(2, LENGTH), tag(3, VARINT)
_DATA_DEPS = tag(5, LENGTH)
_START, _DURATION = tag(6, VARINT), tag(7, VARINT)
_ATTR = tag(10, LENGTH)
_ATTR_NAME = tag(1, LENGTH)

DOUBLE_VAL = tag(3, FIXED64)
INT32_VAL = tag(7, VARINT)
INT64_VAL = tag(9, VARINT)
BOOL_VAL = tag(27, VARINT)
STRING_VAL = tag(29, LENGTH)
"""Tags of attribute values, which go with a column."""

_FIXED_MAX = 80
_ATTR_MAX = 48


class Nodes(NamedTuple):
    """Columns of the nodes; `name` numbers the texts of `Texts`."""

    type: Array
    name: Array
    start_us: Array
    slot_us: Array
    dep_first: Array
    dep: Array


class Texts(NamedTuple):
    """Texts one behind the other; text i is ``data[first[i]:first[i + 1]]``."""

    data: Bytes
    first: Array


class Numbers(NamedTuple):
    """Attributes that are numbers: a row of values a column, decimals as their bits."""

    name: Array
    tag: Array
    values: Array
    known: Array


class Words(NamedTuple):
    """Attributes that are texts: a row of text numbers a column, -1 where unknown."""

    name: Array
    values: Array


def texts(strings: list[str]) -> Texts:
    """Strings as the encoder wants them."""
    raws = [s.encode("utf-8", "replace") for s in strings]
    first = np.concatenate([[0], np.cumsum([len(r) for r in raws], dtype=np.int64)])
    return Texts(np.frombuffer(bytearray(b"".join(raws)) or bytearray(1), np.uint8), first)


@jit
def room_for(k: int, nodes: Nodes, table: Texts, numbers: Numbers, words: Words) -> int:
    """Bytes that node k takes at most."""
    room = _FIXED_MAX + 10 * (nodes.dep_first[k + 1] - nodes.dep_first[k])
    room += table.first[nodes.name[k] + 1] - table.first[nodes.name[k]]
    for c in range(len(numbers.name)):
        room += _ATTR_MAX + table.first[numbers.name[c] + 1] - table.first[numbers.name[c]]
    for c in range(len(words.name)):
        room += _ATTR_MAX + table.first[words.name[c] + 1] - table.first[words.name[c]]
        value = words.values[c, k]
        if value >= 0:
            room += table.first[value + 1] - table.first[value]
    return room


@jit
def _text(out: Bytes, i: int, key: int, table: Texts, which: int) -> int:
    return wire.text(out, i, key, table.data, table.first[which], table.first[which + 1])


@jit
def _attribute(out: Bytes, i: int, attribute: Bytes, size: int) -> int:
    return wire.text(out, i, _ATTR, attribute, 0, size)


@jit
def nodes_from(
    out: Bytes,
    k: int,
    nodes: Nodes,
    table: Texts,
    numbers: Numbers,
    words: Words,
    scratch: Bytes,
) -> tuple[int, int]:
    """Write nodes from the k-th on, each behind its length; ids are row numbers.

    Returns
    -------
    bytes, next
        How much was written, and the first node that found no room.
    """
    i, n, half = 0, len(nodes.type), len(scratch) // 2
    body, inner = scratch[:half], scratch[half:]
    while k < n:
        room = room_for(k, nodes, table, numbers, words)
        if i + room > len(out) or room > half:
            return i, k
        size = wire.number(body, 0, _ID, k) if k else 0
        size = _text(body, size, _NAME, table, nodes.name[k])
        size = wire.number(body, size, _TYPE, nodes.type[k])
        first, stop = nodes.dep_first[k], nodes.dep_first[k + 1]
        if stop > first:
            packed = 0
            for d in range(first, stop):
                packed = varint(inner, packed, nodes.dep[d])
            size = wire.text(body, size, _DATA_DEPS, inner, 0, packed)
        size = wire.number(body, size, _START, nodes.start_us[k])
        size = wire.number(body, size, _DURATION, nodes.slot_us[k])
        for c in range(len(numbers.name)):
            if numbers.known[c, k]:
                at = _text(inner, 0, _ATTR_NAME, table, numbers.name[c])
                at = varint(inner, at, numbers.tag[c])
                if numbers.tag[c] == DOUBLE_VAL:
                    at = fixed64(inner, at, numbers.values[c, k])
                else:
                    at = varint(inner, at, numbers.values[c, k])
                size = _attribute(body, size, inner, at)
        for c in range(len(words.name)):
            if words.values[c, k] >= 0:
                at = _text(inner, 0, _ATTR_NAME, table, words.name[c])
                at = _text(inner, at, STRING_VAL, table, words.values[c, k])
                size = _attribute(body, size, inner, at)
        i = varint(out, i, size)
        i = wire.copied(out, i, body, 0, size)
        k += 1
    return i, k
