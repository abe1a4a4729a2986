"""An ET's messages as columns: numba loops over the wire format.

Takes what any writer may have written: fields in any order, packed or single dependencies, every
type of attribute value. Nothing is interpreted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.columns.interning import Interned, interned, number_of
from chopper_interop.files.wire import field_at, varint_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

VALUE_FIELDS: dict[int, str] = {
    3: "double_val",
    5: "float_val",
    7: "int32_val",
    9: "int64_val",
    11: "uint32_val",
    13: "uint64_val",
    15: "sint32_val",
    17: "sint64_val",
    19: "fixed32_val",
    21: "fixed64_val",
    23: "sfixed32_val",
    25: "sfixed64_val",
    27: "bool_val",
    29: "string_val",
    31: "bytes_val",
}
"""Field number of an attribute's value → its type; the even numbers are lists."""

REAL_FIELDS = (3, 5)
TEXT_FIELDS = (29, 31)
_ZIGZAG_FIELDS = (15, 17)
_SFIXED32 = 23
_MOST_NAMES = 4096
"""Distinct names of attributes that a file may have."""


@dataclass(frozen=True)
class EtFile:
    """One file of an ET.

    Parameters
    ----------
    buffer
        Its bytes.
    metadata
        Its first message, the GlobalMetadata, as bytes.
    has_metadata
        Whether it has one; else it begins with a node.
    id, type, start_us, duration_us
        Columns of the nodes.
    name_at, name_len
        Names of the nodes, as byte ranges of the buffer.
    data_first, data, ctrl_first, ctrl
        Ids that node i depends on: ``data[data_first[i]:data_first[i + 1]]``, and likewise.
    attr_node, attr_name, attr_field, attr_value, attr_len
        Attributes one by one: of which node, the number of its name in `attr_names` (-1 if it
        can't be read), the field number of its value, the value as int64 (decimals by their bits;
        texts by where they begin in the buffer), and the length of texts.
    attr_names
        Distinct names of attributes.
    broken_at
        Byte at which the file is no ET any more; -1 if it is one to its end.
    """

    buffer: Bytes
    metadata: bytes
    has_metadata: bool
    id: Array
    type: Array
    start_us: Array
    duration_us: Array
    name_at: Array
    name_len: Array
    data_first: Array
    data: Array
    ctrl_first: Array
    ctrl: Array
    attr_node: Array
    attr_name: Array
    attr_field: Array
    attr_value: Array
    attr_len: Array
    attr_names: list[str]
    broken_at: int

    def text(self, at: int, length: int) -> str:
        """A text of the file; what is no UTF-8 is replaced by U+FFFD."""
        return self.buffer[at : at + length].tobytes().decode("utf-8", "replace")

    def name(self, row: int) -> str:
        """Name of a node."""
        return self.text(int(self.name_at[row]), int(self.name_len[row]))

    def attribute(self, name: str) -> tuple[Array, Array, Array]:
        """Nodes that have an attribute, the field numbers of its values, and the values."""
        if name not in self.attr_names:
            none = np.empty(0, np.int64)
            return none, none, none
        mine = self.attr_name == self.attr_names.index(name)
        return self.attr_node[mine], self.attr_field[mine], self.attr_value[mine]

    def texts(self, name: str) -> tuple[Array, list[str]]:
        """An attribute that is a text: for each node a code (-1 without), and what codes mean."""
        codes = np.full(len(self.id), -1, np.int64)
        if name not in self.attr_names:
            return codes, []
        mine = self.attr_name == self.attr_names.index(name)
        mine &= np.isin(self.attr_field, TEXT_FIELDS)
        found, texts = self.coded(self.attr_value[mine], self.attr_len[mine])
        codes[self.attr_node[mine]] = found
        return codes, texts

    def coded(self, at: Array, length: Array) -> tuple[Array, list[str]]:
        """Codes of byte ranges, and the distinct texts that they mean."""
        table = interned(len(at) + 1)
        codes = _number_all(self.buffer, at, length, table)
        return codes, [t.decode("utf-8", "replace") for t in table.texts(self.buffer)]


class _Nodes(NamedTuple):
    id: Array
    type: Array
    start_us: Array
    duration_us: Array
    name_at: Array
    name_len: Array
    data_count: Array
    ctrl_count: Array


class _Lists(NamedTuple):
    data: Array
    ctrl: Array
    attr_node: Array
    attr_name: Array
    attr_field: Array
    attr_value: Array
    attr_len: Array


def decode(buffer: Bytes) -> EtFile:
    """Columns of an ET file."""
    at, length, broken = _messages(buffer)
    headed = not len(at) or not _is_node(buffer, at[0], at[0] + length[0])
    metadata = bytes(buffer[at[0] : at[0] + length[0]]) if headed and len(at) else b""
    at, length = (at[1:], length[1:]) if headed else (at, length)
    counts = np.zeros(3, np.int64)
    n = _count(buffer, at, length, counts)
    if n < len(at):
        broken = int(at[n])
    at, length = at[:n], length[:n]
    nodes = _Nodes(
        *(np.zeros(n, np.uint64 if i == 0 else np.int64) for i in range(len(_Nodes._fields)))
    )
    lists = _Lists(
        np.zeros(counts[0], np.uint64),
        np.zeros(counts[1], np.uint64),
        *(np.zeros(counts[2], np.int64) for _ in range(5)),
    )
    names = interned(_MOST_NAMES)
    _fill(buffer, at, length, nodes, lists, names)
    return EtFile(
        buffer=buffer,
        metadata=metadata,
        has_metadata=headed,
        id=nodes.id,
        type=nodes.type,
        start_us=nodes.start_us,
        duration_us=nodes.duration_us,
        name_at=nodes.name_at,
        name_len=nodes.name_len,
        data_first=_firsts(nodes.data_count),
        data=lists.data,
        ctrl_first=_firsts(nodes.ctrl_count),
        ctrl=lists.ctrl,
        attr_node=lists.attr_node,
        attr_name=lists.attr_name,
        attr_field=lists.attr_field,
        attr_value=lists.attr_value,
        attr_len=lists.attr_len,
        attr_names=[t.decode("utf-8", "replace") for t in names.texts(buffer)],
        broken_at=broken,
    )


def _firsts(count: Array) -> Array:
    return np.concatenate([[0], np.cumsum(count)])


@jit
def _number_all(buffer: Bytes, at: Array, length: Array, table: Interned) -> Array:
    codes = np.empty(len(at), np.int64)
    for i in range(len(at)):
        codes[i] = number_of(buffer, at[i], at[i] + length[i], table)
    return codes


@jit
def _messages(buffer: Bytes) -> tuple[Array, Array, int]:
    """Where each message begins and how long it is; the byte at which that ends too early."""
    n, count, i = len(buffer), 0, 0
    room = 1024
    at, length = np.zeros(room, np.int64), np.zeros(room, np.int64)
    while i < n:
        size, begin = varint_at(buffer, i, n)
        if begin < 0 or size > np.uint64(n - begin):
            return at[:count], length[:count], i
        if count == room:
            room *= 2
            larger, longer = np.zeros(room, np.int64), np.zeros(room, np.int64)
            larger[:count], longer[:count] = at, length
            at, length = larger, longer
        at[count], length[count] = begin, np.int64(size)
        count += 1
        i = begin + np.int64(size)
    return at[:count], length[:count], -1


@jit
def _count(buffer: Bytes, at: Array, length: Array, counts: Array) -> int:
    """How many messages are whole, from the first.

    In `counts`: what these have of data dependencies, control dependencies and attributes.
    """
    for k in range(len(at)):
        i, stop = at[k], at[k] + length[k]
        data, ctrl, attrs = counts
        while i < stop:
            number, wire, _, begin, end = field_at(buffer, i, stop)
            whole = end >= 0
            if whole and number in (4, 5):
                found = _varints(buffer, begin, end) if wire == 2 else np.int64(wire == 0)
                whole = found >= 0
                data += found if number == 5 else 0
                ctrl += found if number == 4 else 0
            attrs += number == 10 and wire == 2
            if not whole:
                return k
            i = end
        counts[0], counts[1], counts[2] = data, ctrl, attrs
    return len(at)


@jit
def _is_node(buffer: Bytes, i: int, stop: int) -> bool:
    """Whether a message has fields that only nodes have: a number as id or type, anything else."""
    while i < stop:
        number, wire, _, _, end = field_at(buffer, i, stop)
        if end < 0:
            return False
        if number > 2 or (number == 1 and wire == 0):
            return True
        i = end
    return False


@jit
def _varints(buffer: Bytes, i: int, stop: int) -> int:
    """How many varints there are; -1 if the last does not end."""
    count = 0
    while i < stop:
        _, i = varint_at(buffer, i, stop)
        if i < 0:
            return -1
        count += 1
    return count


@jit
def _fill(
    buffer: Bytes, at: Array, length: Array, nodes: _Nodes, lists: _Lists, names: Interned
) -> None:
    data, ctrl, attrs = 0, 0, 0
    for k in range(len(at)):
        i, stop = at[k], at[k] + length[k]
        while i < stop:
            number, wire, _, begin, end = field_at(buffer, i, stop)
            if wire == 0 and number in (1, 3, 6, 7):
                value, _ = varint_at(buffer, begin, end)
                if number == 1:
                    nodes.id[k] = value
                elif number == 3:
                    nodes.type[k] = np.int64(value)
                elif number == 6:
                    nodes.start_us[k] = np.int64(value)
                else:
                    nodes.duration_us[k] = np.int64(value)
            elif number == 2 and wire == 2:
                nodes.name_at[k], nodes.name_len[k] = begin, end - begin
            elif number in (4, 5) and wire in (0, 2):
                while begin < end:
                    value, begin = varint_at(buffer, begin, end)
                    if number == 5:
                        lists.data[data] = value
                        nodes.data_count[k] += 1
                        data += 1
                    else:
                        lists.ctrl[ctrl] = value
                        nodes.ctrl_count[k] += 1
                        ctrl += 1
            elif number == 10 and wire == 2:
                lists.attr_node[attrs] = k
                _attribute(buffer, begin, end, lists, attrs, names)
                attrs += 1
            i = end


@jit
def _attribute(buffer: Bytes, i: int, stop: int, lists: _Lists, row: int, names: Interned) -> None:
    lists.attr_name[row] = -1
    while i < stop:
        number, wire, _, begin, end = field_at(buffer, i, stop)
        if end < 0:
            lists.attr_name[row] = -1
            return
        if number == 1:
            lists.attr_name[row] = number_of(buffer, begin, end, names)
        elif number > 2:
            lists.attr_field[row], lists.attr_len[row] = number, 0
            if wire == 0:
                value, _ = varint_at(buffer, begin, end)
                if number in _ZIGZAG_FIELDS:
                    half = np.int64(value >> np.uint64(1))
                    lists.attr_value[row] = -half - 1 if value & np.uint64(1) else half
                else:
                    lists.attr_value[row] = np.int64(value)
            elif wire in (1, 5):
                value = np.uint64(0)
                for k in range(end - begin):
                    value |= np.uint64(buffer[begin + k]) << np.uint64(8 * k)
                if number == 5:
                    single = np.empty(1, np.uint32)
                    single[0] = np.uint32(value)
                    double = np.empty(1, np.float64)
                    double[0] = single.view(np.float32)[0]
                    lists.attr_value[row] = double.view(np.int64)[0]
                elif number == _SFIXED32:
                    lists.attr_value[row] = np.int64(np.int32(np.uint32(value)))
                else:
                    lists.attr_value[row] = np.int64(value)
            else:
                lists.attr_value[row], lists.attr_len[row] = begin, end - begin
        i = end
