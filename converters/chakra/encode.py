"""Nodes of an ET in their wire format: a numba loop over columns.

Field numbers are those of ``schemas/chakra_et.proto``. Attributes are written with the types that
both of Chakra's feeders read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.io import wire
from chopper_interop.io.wire import FIXED64, LENGTH, VARINT, tag, write_fixed64, write_varint

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_ID, _NAME, _TYPE = tag(1, VARINT), tag(2, LENGTH), tag(3, VARINT)
_DATA_DEPS = tag(5, LENGTH)
_START, _DURATION = tag(6, VARINT), tag(7, VARINT)
_ATTR = tag(10, LENGTH)
_ATTR_NAME = tag(1, LENGTH)

DOUBLE_VAL = tag(3, FIXED64)
INT32_VAL = tag(7, VARINT)
INT64_VAL = tag(9, VARINT)
UINT64_VAL = tag(13, VARINT)
BOOL_VAL = tag(27, VARINT)
STRING_VAL = tag(29, LENGTH)
"""Tags of attribute values, one for each column of attributes."""

_CONTINUES = 128
"""Bit of the bytes of a varint behind which more follow."""
_FIXED_MAX = 80
"""Bytes of a node without its name, dependencies and attributes: its own length, and 6 fields of a
key and a varint of at most 10 bytes each, which is 76."""
_ATTR_MAX = 48
"""Bytes of an attribute without its texts: 3 keys of at most 2 bytes (its own, its name's, its
value's), each before a varint of at most 10 bytes, which is 36."""


class Nodes(NamedTuple):
    """Columns of a part of the nodes, `name` by number in `Texts`; dependencies are those of all nodes."""

    type: Array
    name: Array
    start_us: Array
    slot_us: Array
    dep_first: Array
    dep: Array


class Texts(NamedTuple):
    """Texts one after the other; text i is ``data[first[i]:first[i + 1]]``."""

    data: Bytes
    first: Array


class Numbers(NamedTuple):
    """Attributes that are numbers of a part of the nodes: a row of values each, floats as their bits."""

    name: Array
    tag: Array
    values: Array
    known: Array


class Words(NamedTuple):
    """Attributes that are texts of a part of the nodes: a row of text numbers each, -1 where unknown."""

    name: Array
    values: Array


def text_table(strings: list[str]) -> Texts:
    """Encode strings one after the other."""
    raws = [s.encode("utf-8", "replace") for s in strings]
    first = np.concatenate([[0], np.cumsum([len(r) for r in raws], dtype=np.int64)])
    return Texts(np.frombuffer(bytearray(b"".join(raws)) or bytearray(1), np.uint8), first)


@jit
def room_for(k: int, begin: int, nodes: Nodes, table: Texts, numbers: Numbers, words: Words) -> int:
    """Upper bound of the bytes that node k takes; columns are those from node `begin` on."""
    room = _FIXED_MAX + 10 * (nodes.dep_first[k + 1] - nodes.dep_first[k])
    room += table.first[nodes.name[k - begin] + 1] - table.first[nodes.name[k - begin]]
    for c in range(len(numbers.name)):
        room += _ATTR_MAX + table.first[numbers.name[c] + 1] - table.first[numbers.name[c]]
    for c in range(len(words.name)):
        room += _ATTR_MAX + table.first[words.name[c] + 1] - table.first[words.name[c]]
        value = words.values[c, k - begin]
        if value >= 0:
            room += table.first[value + 1] - table.first[value]
    return room


@jit
def _text(out: Bytes, i: int, key: int, table: Texts, number: int) -> int:
    return wire.write_text(out, i, key, table.data, table.first[number], table.first[number + 1])


@jit
def _attribute(out: Bytes, i: int, attribute: Bytes, size: int) -> int:
    return wire.write_text(out, i, _ATTR, attribute, 0, size)


@jit
def write_nodes(
    out: Bytes,
    k: int,
    part: tuple[int, int],
    nodes: Nodes,
    table: Texts,
    numbers: Numbers,
    words: Words,
    scratch: Bytes,
    ids: Array,
    ends: Array,
) -> tuple[int, int]:
    """Write nodes from the k-th on, each after its length.

    Parameters
    ----------
    out, scratch
        What is written, and room for single nodes.
    k
        First node to write.
    part
        Nodes of which columns are given: from the first number on, and before the second.
    ids, ends
        Id of each node of the part, and where it ends in `out`, which is written here.

    nodes, table, numbers, words
        Columns of the part, all texts, and attributes of the part.

    Returns
    -------
    size, next
        Number of bytes written, and the first node for which there was no room.
    """
    # A message's length goes before it, so a node is built in the first half of `scratch`, each of
    # its attributes in the second, and then copied. Nodes are written whole or not at all.
    i, half = 0, len(scratch) // 2
    begin, n = part
    body, inner = scratch[:half], scratch[half:]
    while k < n:
        row = k - begin
        room = room_for(k, begin, nodes, table, numbers, words)
        if i + room > len(out) or room > half:
            return i, k
        size = wire.write_number(body, 0, _ID, ids[row]) if ids[row] else 0
        size = _text(body, size, _NAME, table, nodes.name[row])
        size = wire.write_number(body, size, _TYPE, nodes.type[row])
        first, stop = nodes.dep_first[k], nodes.dep_first[k + 1]
        if stop > first:
            packed = 0
            for d in range(first, stop):
                packed = write_varint(inner, packed, nodes.dep[d])
            size = wire.write_text(body, size, _DATA_DEPS, inner, 0, packed)
        size = wire.write_number(body, size, _START, nodes.start_us[row])
        size = wire.write_number(body, size, _DURATION, nodes.slot_us[row])
        for c in range(len(numbers.name)):
            if numbers.known[c, row]:
                at = _text(inner, 0, _ATTR_NAME, table, numbers.name[c])
                at = write_varint(inner, at, numbers.tag[c])
                if numbers.tag[c] == DOUBLE_VAL:
                    at = write_fixed64(inner, at, numbers.values[c, row])
                else:
                    at = write_varint(inner, at, numbers.values[c, row])
                size = _attribute(body, size, inner, at)
        for c in range(len(words.name)):
            if words.values[c, row] >= 0:
                at = _text(inner, 0, _ATTR_NAME, table, words.name[c])
                at = _text(inner, at, STRING_VAL, table, words.values[c, row])
                size = _attribute(body, size, inner, at)
        i = write_varint(out, i, size)
        i = wire.copy_bytes(out, i, body, 0, size)
        ends[row] = i
        k += 1
    return i, k


def extended(node: bytes, attributes: bytes) -> bytes:
    """One node with further attributes, which in protobuf follow it as they are.

    Parameters
    ----------
    node
        Its message behind its length.
    attributes
        The fields of a message of these alone.
    """
    width = 1
    while node[width - 1] & _CONTINUES:
        width += 1
    length, rest = bytearray(), len(node) - width + len(attributes)
    while rest >= _CONTINUES:
        length.append(rest % _CONTINUES + _CONTINUES)
        rest //= _CONTINUES
    return bytes([*length, rest]) + node[width:] + attributes
