"""An ET's messages as columns: numba loops over the wire format.

Accepts the files of any writer: fields in any order, packed or single dependencies, every type of
attribute value. Nothing is interpreted here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit, jit_in_place, jit_inlined
from chopper_interop.arrays.gather import is_any
from chopper_interop.arrays.interning import TextTable, empty_text_table, intern_text
from chopper_interop.io.wire import read_field, read_varint

if TYPE_CHECKING:
    from io import BufferedReader

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

VALUE_FIELDS: dict[int, str] = {
    3: "double_val", 5: "float_val", 7: "int32_val", 9: "int64_val", 11: "uint32_val",
    13: "uint64_val", 15: "sint32_val", 17: "sint64_val", 19: "fixed32_val", 21: "fixed64_val",
    23: "sfixed32_val", 25: "sfixed64_val", 27: "bool_val", 29: "string_val", 31: "bytes_val",
}  # fmt: skip
"""Field number of an attribute's value → its type; the even numbers are lists."""

REAL_FIELDS = (3, 5)
TEXT_FIELDS = (29, 31)
_ZIGZAG_FIELDS = (15, 17)
_SFIXED32 = 23
_BLOCK = 1 << 23
"""Bytes of a file that are decoded at a time. Chosen: what processors' caches hold, and hundreds of times the largest
nodes known."""
_MAX_LENGTH = (1 << 31) - 1
"""Bytes that a value may have, as a message of protobuf."""
_MAX_NAMES = 4096
"""Distinct names of attributes that a file may have. Chosen: writers have some tens of names."""


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
        False if it begins with a node instead.
    id, type, start_us, duration_us
        Columns of the nodes.
    name_at, name_len
        Names of the nodes, as byte ranges of the buffer.
    data_first, data, ctrl_first, ctrl
        Ids that node i depends on: ``data[data_first[i]:data_first[i + 1]]``, and likewise.
    attr_node, attr_name, attr_field, attr_value, attr_len
        Attributes that were asked for, one by one: row of the node, number of the name in `attr_names` (-1 if it cannot
        be read), field number of the value, the value as int64 (floats by their bits; texts and
        lists by their position in the buffer), and the length of texts and lists.
    attr_names
        Distinct names of attributes.
    broken_at
        Byte from which on the file is no valid ET; -1 if it is valid to its end.
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
        """Text at a position of the file, with U+FFFD for bytes that are no UTF-8."""
        return self.buffer[at : at + length].tobytes().decode("utf-8", "replace")

    def name(self, row: int) -> str:
        """Name of a node."""
        return self.text(int(self.name_at[row]), int(self.name_len[row]))

    def attribute(self, name: str) -> tuple[Array, Array, Array]:
        """Nodes with an attribute of this name, field numbers of its values, and the values."""
        if name not in self.attr_names:
            empty = np.empty(0, np.int64)
            return empty, empty, empty
        named = self.attr_name == self.attr_names.index(name)
        return self.attr_node[named], self.attr_field[named], self.attr_value[named]

    def texts(self, name: str) -> tuple[Array, list[str]]:
        """Text attribute: a code for each node (-1 without), and the texts of the codes."""
        codes = np.full(len(self.id), -1, np.int64)
        if name not in self.attr_names:
            return codes, []
        named = self.attr_name == self.attr_names.index(name)
        named &= is_any(self.attr_field, TEXT_FIELDS)
        codes_of_named, texts = self.coded(self.attr_value[named], self.attr_len[named])
        codes[self.attr_node[named]] = codes_of_named
        return codes, texts

    def coded(self, at: Array, length: Array) -> tuple[Array, list[str]]:
        """Codes of byte ranges, and the distinct texts that the codes stand for."""
        codes, raws = self.coded_bytes(at, length)
        return codes, [raw.decode("utf-8", "replace") for raw in raws]

    def coded_bytes(self, at: Array, length: Array) -> tuple[Array, list[bytes]]:
        """Codes of byte ranges, and the distinct bytes that the codes stand for."""
        table = empty_text_table(len(at) + 1)
        codes = _number_all(self.buffer, at, length.astype(np.int64), table)
        return codes, table.texts(self.buffer)


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


_ATTRIBUTES = {
    "attr_node": np.int32, "attr_name": np.int32, "attr_field": np.int32, "attr_value": np.int64,
    "attr_len": np.int32,
}  # fmt: skip
"""Types of the columns of attributes, of which a node has ten."""


class _Names(NamedTuple):
    """Names of attributes: the bytes of each in a row, and how many these are."""

    texts: Array
    length: Array


def decode(buffer: Bytes, attributes: Collection[str] = ()) -> EtFile:
    """Decode an ET file.

    Parameters
    ----------
    buffer
        Bytes of the file.
    attributes
        Names of the attributes of nodes to decode; all if none are given.
    """
    at, length, broken = _messages(buffer)
    metadata, at, length = _without_metadata(buffer, at, length)
    part = _part(buffer, at, length, _names_of(attributes))
    whole = _Whole()
    whole.add(part)
    return whole.file(buffer, metadata, part.broken if part.broken >= 0 else broken)


def decode_blocks(file: BufferedReader, attributes: Collection[str] = ()) -> EtFile:
    """Decode an ET file as `decode` does, without all of it in memory at a time.

    The buffer of the result holds texts alone.
    """
    chosen = _names_of(attributes)
    room, filled, base, broken = np.empty(_BLOCK, np.uint8), 0, 0, -1
    texts, begins, metadata, whole = _Texts(), True, None, _Whole()
    while broken < 0:
        if filled == len(room):  # a message that is longer
            room = np.concatenate([room, np.empty_like(room)])
        count = file.readinto(room[filled:].data)
        filled += count
        at, length, cut = _messages(room[:filled])
        used = filled if cut < 0 else cut
        if begins and (len(at) or not count):
            metadata, at, length = _without_metadata(room, at, length)
            begins = False
        part = _part(room, at, length, chosen)
        whole.add(texts.of_part(room, part))
        broken = base + part.broken if part.broken >= 0 else -1
        if not count:
            broken = base + cut if broken < 0 and cut >= 0 else broken
            break
        room[: filled - used] = room[used:filled].copy()
        filled, base = filled - used, base + used
    return whole.file(texts.buffer(), metadata, broken)


class _Texts:
    """Texts of parts of a file, each once a part, one after the other."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._size = 0

    def of_part(self, buffer: Bytes, part: _Part) -> _Part:
        """Return the part with the positions that its texts have here."""
        nodes, lists = part.nodes, part.lists
        is_text = lists.attr_len > 0
        at = np.concatenate([nodes.name_at, lists.attr_value[is_text]])
        length = np.concatenate([nodes.name_len, lists.attr_len[is_text]])
        table = empty_text_table(len(at) + 1)
        codes = _number_all(buffer, at, length, table)
        texts = table.texts(buffer)
        first = self._size + _firsts(np.array([len(text) for text in texts], np.int64))
        self._texts += texts
        self._size = int(first[-1])
        value = lists.attr_value
        value[is_text] = first[codes[len(nodes.name_at) :]]
        return part._replace(
            nodes=nodes._replace(
                name_at=first[codes[: len(nodes.name_at)]],
                name_len=nodes.name_len.astype(np.int32),
                data_count=nodes.data_count.astype(np.int32),
                ctrl_count=nodes.ctrl_count.astype(np.int32),
            ),
            lists=lists,
        )

    def buffer(self) -> Bytes:
        """All texts."""
        return np.frombuffer(bytearray(b"".join(self._texts)), np.uint8)


class _Part(NamedTuple):
    """Nodes of consecutive messages.

    Parameters
    ----------
    names
        Distinct names of attributes.
    broken
        Position of the first message that is none; -1 if all are.
    """

    nodes: _Nodes
    lists: _Lists
    names: list[str]
    broken: int


def _without_metadata(buffer: Bytes, at: Array, length: Array) -> tuple[bytes | None, Array, Array]:
    """First message, if it is GlobalMetadata or there is none, and positions of the others."""
    if len(at) and _is_node(buffer, at[0], at[0] + length[0]):
        return None, at, length
    return bytes(buffer[at[0] : at[0] + length[0]]) if len(at) else b"", at[1:], length[1:]


def _part(buffer: Bytes, at: Array, length: Array, chosen: _Names) -> _Part:
    """Decode messages in two passes: how many values there are at most, and the values."""
    counts = np.zeros(3, np.int64)
    n = _count(buffer, at, length, counts)
    broken = int(at[n]) if n < len(at) else -1
    at, length = at[:n], length[:n]
    nodes = _Nodes(
        *(np.zeros(n, np.uint64 if i == 0 else np.int64) for i in range(len(_Nodes._fields)))
    )
    # pages of memory that are never written to take none
    lists = _Lists(
        np.empty(counts[0], np.uint64),
        np.empty(counts[1], np.uint64),
        **{name: np.empty(counts[2], dtype) for name, dtype in _ATTRIBUTES.items()},
    )
    names = empty_text_table(_MAX_NAMES)
    chosen_count = _fill(buffer, at, length, nodes, lists, names, chosen)
    lists = lists._replace(**{n: getattr(lists, n)[:chosen_count] for n in _ATTRIBUTES})
    return _Part(nodes, lists, [t.decode("utf-8", "replace") for t in names.texts(buffer)], broken)


class _Whole:
    """Nodes of consecutive parts of a file, each column in one array that grows in place.

    Arrays of parts that are joined at the end would take their memory twice, and leave it in pieces.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._names: list[str] = []
        self._nodes = 0

    def add(self, part: _Part) -> None:
        """Add the nodes of the next part."""
        self._names = list(dict.fromkeys([*self._names, *part.names]))
        number = np.array([*(self._names.index(name) for name in part.names), -1], np.int64)
        part.lists.attr_node[:] += self._nodes
        part.lists.attr_name[:] = number[part.lists.attr_name]
        self._nodes += len(part.nodes.id)
        for name, values in (part.nodes._asdict() | part.lists._asdict()).items():
            if name in self._columns:
                self._columns[name].add(values)
            else:
                self._columns[name] = _Column(values)

    def file(self, buffer: Bytes, metadata: bytes | None, broken: int) -> EtFile:
        """All of them as a file."""
        whole = {name: column.values() for name, column in self._columns.items()}
        return EtFile(
            buffer=buffer,
            metadata=metadata or b"",
            has_metadata=metadata is not None,
            data_first=_firsts(whole.pop("data_count")),
            ctrl_first=_firsts(whole.pop("ctrl_count")),
            attr_names=self._names,
            broken_at=broken,
            **whole,
        )


class _Column:
    """Values in an array that grows in place."""

    def __init__(self, values: Array) -> None:
        self._room = values
        self._count = len(values)

    def add(self, values: Array) -> None:
        """Add values behind those that there are."""
        end = self._count + len(values)
        if end > len(self._room):
            if self._room.base is not None:  # part of another array, which does not grow
                self._room = self._room.copy()
            # by an eighth, as numpy fills what is new: few moves, and little memory that stays unused
            self._room.resize(max(end, self._count + self._count // 8), refcheck=False)
        self._room[self._count : end] = values
        self._count = end

    def values(self) -> Array:
        """All values."""
        if self._count < len(self._room):
            self._room.resize(self._count, refcheck=False)
        return self._room


def _names_of(attributes: Collection[str]) -> _Names:
    encoded = [name.encode() for name in attributes]
    length = np.array([len(name) for name in encoded], np.int64)
    texts = np.zeros((len(encoded), int(length.max(initial=0))), np.uint8)
    for row, name in zip(texts, encoded, strict=True):
        row[: len(name)] = np.frombuffer(name, np.uint8)
    return _Names(texts, length)


def _firsts(count: Array) -> Array:
    """Offsets of lists of these lengths that are stored one after the other."""
    return np.concatenate([[0], np.cumsum(count)])


@jit
def _number_all(buffer: Bytes, at: Array, length: Array, table: TextTable) -> Array:
    """Code of each byte range; equal bytes have the same code."""
    codes = np.empty(len(at), np.int64)
    for i in range(len(at)):
        codes[i] = intern_text(buffer, at[i], at[i] + length[i], table)
    return codes


@jit
def _messages(buffer: Bytes) -> tuple[Array, Array, int]:
    """Position and length of each message; and where the file breaks off, -1 if it does not."""
    # each message is after its length; how many there are is unknown, so the columns are doubled
    n, count, i = len(buffer), 0, 0
    room = 1024
    at, length = np.zeros(room, np.int64), np.zeros(room, np.int64)
    while i < n:
        size, begin = read_varint(buffer, i, n)
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


@jit_in_place
def _count(buffer: Bytes, at: Array, length: Array, counts: Array) -> int:
    """Count the valid messages before the first invalid one.

    Writes into `counts` how many data dependencies, control dependencies and attributes these have, chosen or not,
    so that `_fill` can write into columns that are long enough.
    """
    for k in range(len(at)):
        i, stop = at[k], at[k] + length[k]
        data, ctrl, attrs = counts
        while i < stop:
            number, wire, _, begin, end = read_field(buffer, i, stop)
            valid = end >= 0
            if valid and number in (4, 5):
                ids = _count_varints(buffer, begin, end) if wire == 2 else np.int64(wire == 0)
                valid = ids >= 0
                data += ids if number == 5 else 0
                ctrl += ids if number == 4 else 0
            if number == 10 and wire == 2:
                attrs += 1
            if not valid:
                return k
            i = end
        counts[0], counts[1], counts[2] = data, ctrl, attrs
    return len(at)


@jit_in_place
def _is_node(buffer: Bytes, i: int, stop: int) -> bool:
    """True if a message has fields that GlobalMetadata lacks: a number as field 1, or field 3 on."""
    while i < stop:
        number, wire, _, _, end = read_field(buffer, i, stop)
        if end < 0:
            return False
        if number > 2 or (number == 1 and wire == 0):
            return True
        i = end
    return False


@jit_in_place
def _count_varints(buffer: Bytes, i: int, stop: int) -> int:
    """Count the varints of a packed list; -1 if the last does not end."""
    count = 0
    while i < stop:
        _, i = read_varint(buffer, i, stop)
        if i < 0:
            return -1
        count += 1
    return count


@jit_in_place
def _fill(
    buffer: Bytes,
    at: Array,
    length: Array,
    nodes: _Nodes,
    lists: _Lists,
    names: TextTable,
    chosen: _Names,
) -> int:
    """Write the fields of all messages into columns, which `_count` has found to be long enough.

    Returns the number of attributes that were chosen.
    """
    data, ctrl, attrs = 0, 0, 0
    for k in range(len(at)):
        i, stop = at[k], at[k] + length[k]
        while i < stop:
            number, wire, _, begin, end = read_field(buffer, i, stop)
            if wire == 0 and number in (1, 3, 6, 7):
                value, _ = read_varint(buffer, begin, end)
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
                    value, begin = read_varint(buffer, begin, end)
                    if number == 5:
                        lists.data[data] = value
                        nodes.data_count[k] += 1
                        data += 1
                    else:
                        lists.ctrl[ctrl] = value
                        nodes.ctrl_count[k] += 1
                        ctrl += 1
            elif number == 10 and wire == 2 and _is_chosen(buffer, begin, end, chosen):
                lists.attr_node[attrs] = k
                lists.attr_field[attrs], lists.attr_value[attrs], lists.attr_len[attrs] = 0, 0, 0
                _attribute(buffer, begin, end, lists, attrs, names)
                attrs += 1
            i = end
    return attrs


@jit_in_place
def _is_chosen(buffer: Bytes, i: int, stop: int, chosen: _Names) -> bool:
    """True if an attribute has one of these names; any attribute does if there are none."""
    is_chosen = len(chosen.length) == 0
    while i < stop and len(chosen.length):
        number, _, _, begin, end = read_field(buffer, i, stop)
        if end < 0:
            return False
        if number == 1:
            is_chosen = _is_any(buffer, begin, end, chosen)
        i = end
    return is_chosen


@jit_in_place
def _is_any(buffer: Bytes, i: int, stop: int, names: _Names) -> bool:
    """True if these bytes are one of the names."""
    for row in range(len(names.length)):
        if names.length[row] == stop - i:
            k = 0
            while k < stop - i and buffer[i + k] == names.texts[row, k]:
                k += 1
            if k == stop - i:
                return True
    return False


@jit_inlined
def _attribute(buffer: Bytes, i: int, stop: int, lists: _Lists, row: int, names: TextTable) -> None:
    """Write one attribute into row `row` of its columns; its name stays -1 if it is cut short."""
    # fields of values: varints (wire type 0, some in zigzag), fixed 8 or 4 bytes (1, 5), else bytes
    lists.attr_name[row] = -1
    while i < stop:
        number, wire, _, begin, end = read_field(buffer, i, stop)
        if end < 0 or end - begin > _MAX_LENGTH:
            lists.attr_name[row] = -1
            return
        if number == 1:
            lists.attr_name[row] = intern_text(buffer, begin, end, names)
        elif number > 2:
            lists.attr_field[row], lists.attr_len[row] = number, 0
            if wire == 0:
                value, _ = read_varint(buffer, begin, end)
                if number in _ZIGZAG_FIELDS:
                    half = np.int64(value >> np.uint64(1))
                    lists.attr_value[row] = -half - 1 if value & np.uint64(1) else half
                else:
                    lists.attr_value[row] = np.int64(value)
            elif wire in (1, 5):
                value = np.uint64(0)
                for k in range(end - begin):
                    value |= np.uint64(buffer[begin + k]) << np.uint64(8 * k)
                lists.attr_value[row] = np.int64(value)
                if number == 5:  # the bits of a float become those of the double of this value
                    bits = lists.attr_value[row : row + 1]
                    bits.view(np.float64)[0] = bits.view(np.float32)[0]
                elif number == _SFIXED32:
                    lists.attr_value[row] = np.int64(np.int32(np.uint32(value)))
            else:
                lists.attr_value[row], lists.attr_len[row] = begin, end - begin
        i = end
