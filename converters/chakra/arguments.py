"""Arguments of nodes from an ET: attributes without a column, as JSON objects.

Objects are put together of byte ranges, as a node has several and a file millions. Of three attributes of two nodes::

    {"num_ops": │ 8 │   │ , "cause": │ "work" │ } │ {"num_ops": │ 16 │ }
    key         value    key           value   end  key           value end
"""

from __future__ import annotations

import json
import math
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra.decode import REAL_FIELDS, TEXT_FIELDS, VALUE_FIELDS, EtFile
from chopper_interop.schemas.chakra import message_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.build import TraceBuilder

_AT_ONCE = 1 << 18
"""Attributes whose objects are put together at once. Chosen: some megabytes, and thousands of times the calls that they take."""
# Fields of et_def.proto's AttributeProto.
_UNSIGNED_FIELDS = (11, 13, 19, 21)
_BOOL = 27
_LISTS = {number + 1: f"{name.removesuffix('_val').capitalize()}List"
          for number, name in VALUE_FIELDS.items()}  # fmt: skip
"""Field number of a list → its message."""
_KNOWN = (0, *VALUE_FIELDS, *_LISTS)
"""Fields of values, and 0 of an attribute without one, which counts as the number 0."""
_BYTES = -1
"""Stands for fields that the schema lacks and whose values are bytes."""


class _Texts(NamedTuple):
    """Byte ranges of a buffer."""

    buffer: Array
    at: Array
    length: Array


def arguments(
    builder: TraceBuilder, et: EtFile, keep: Array, columns: Array
) -> tuple[Array, Array]:
    """Store attributes without a column as JSON objects; return their positions and lengths.

    Parameters
    ----------
    keep
        Rows of the file that become nodes.
    columns
        Mask of the attributes that become columns.
    """
    at, length = np.zeros(len(et.id), np.int64), np.zeros(len(et.id), np.int32)
    rows = np.flatnonzero(~columns & (et.attr_name >= 0))
    node, begin = et.attr_node[rows], 0
    while begin < len(rows):
        # attributes are in order of nodes, and an object is of one block
        of_last = node[min(begin + _AT_ONCE, len(rows)) - 1]
        end = int(np.searchsorted(node, of_last, "right"))
        nodes, objects = _objects(et, rows[begin:end])
        length[nodes] = objects.length
        at[nodes] = builder.text(objects.buffer) + objects.at
        begin = end
    return at[keep], length[keep]


def _objects(et: EtFile, rows: Array) -> tuple[Array, _Texts]:
    """Nodes of some attributes, ascending, and their objects, one behind the other."""
    node, name = et.attr_node[rows], et.attr_name[rows]
    row, is_first = rows.copy(), np.ones(len(rows), np.bool_)
    _replace_values(node, name, row, is_first, np.full(len(et.attr_names), -1, np.int64))
    node, name, row = node[is_first], name[is_first], row[is_first]
    begins = np.diff(node, prepend=-1) > 0
    ends = np.append(begins[1:], True)
    keys, values = _keys(et.attr_names), _values(et, row)
    closing = len(keys.buffer) - 1
    pieces = _Texts(
        np.concatenate([keys.buffer, values.buffer]),
        np.stack(
            [keys.at[2 * name + begins], values.at + len(keys.buffer), np.full(len(row), closing)],
            axis=1,
        ),
        np.stack([keys.length[2 * name + begins], values.length, ends.astype(np.int64)], axis=1),
    )
    first = np.flatnonzero(begins)
    length = np.add.reduceat(pieces.length.sum(axis=1), first)
    joined = gather.concatenate_ranges(
        [pieces.buffer], np.zeros(1, np.int64), pieces.at.ravel(), pieces.length.ravel()
    )
    return node[first], _Texts(joined, np.cumsum(length) - length, length)


def _keys(names: Sequence[str]) -> _Texts:
    """Of each name its key behind other members (even numbers) and as the first (odd ones); the last byte closes an object."""
    encoded = [encode_basestring_ascii(name) for name in names]
    return _joined([f"{sign}{text}: ".encode() for text in encoded for sign in (", ", "{")], b"}")


def _values(et: EtFile, rows: Array) -> _Texts:
    """JSON of the values of some attributes."""
    field = np.where(
        is_any(et.attr_field[rows], _KNOWN) | (et.attr_len[rows] == 0), et.attr_field[rows], _BYTES
    )
    at, length = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    buffers: list[Array] = []
    size = 0
    for of_field in gather.unique(field).tolist():
        those = np.flatnonzero(field == of_field)
        texts = _values_of(et, of_field, rows[those])
        at[those], length[those] = texts.at + size, texts.length
        buffers.append(texts.buffer)
        size += len(texts.buffer)
    return _Texts(gather.joined(buffers), at, length)


def _values_of(et: EtFile, field: int, rows: Array) -> _Texts:
    """JSON of values of one type."""
    stored = et.attr_value[rows]
    if field in TEXT_FIELDS:
        codes, distinct = et.coded(stored, et.attr_len[rows])
        return _coded(codes, [encode_basestring_ascii(text) for text in distinct])
    if field in _LISTS:
        codes, raws = et.coded_bytes(stored, et.attr_len[rows])
        return _coded(codes, [json.dumps(_list(_LISTS[field], raw)) for raw in raws])
    if field == _BYTES:
        codes, raws = et.coded_bytes(stored, et.attr_len[rows])
        return _coded(codes, [f'"{raw.hex()}"' for raw in raws])
    if field in REAL_FIELDS:
        first, codes = gather.distinct(stored)
        distinct_reals = stored[first].view(np.float64).tolist()
        return _coded(codes, [json.dumps(_scalar(value)) for value in distinct_reals])
    if field == _BOOL:
        return _coded((stored != 0).astype(np.int64), ["false", "true"])
    numbers = stored.view(np.uint64) if field in _UNSIGNED_FIELDS else stored
    return _of_arrow(pa.array(numbers).cast(pa.large_string()))


def _coded(codes: Array, texts: list[str]) -> _Texts:
    """Texts by their numbers."""
    distinct = _joined([text.encode() for text in texts])
    return _Texts(distinct.buffer, distinct.at[codes], distinct.length[codes])


def _joined(texts: list[bytes], behind: bytes = b"") -> _Texts:
    """Texts one behind the other."""
    length = np.array([len(text) for text in texts], np.int64)
    buffer = np.frombuffer(bytearray(b"".join([*texts, behind])), np.uint8)
    return _Texts(buffer, np.cumsum(length) - length, length)


def _of_arrow(texts: pa.LargeStringArray) -> _Texts:
    """Ranges of an array of texts that has no nulls and was not cut."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64, len(texts) + 1)
    return _Texts(np.frombuffer(data, np.uint8), ends[:-1], np.diff(ends))


def _list(name: str, raw: bytes) -> Any:
    """Parse a list message; as hexadecimal digits where it is none."""
    try:
        return [_scalar(v) for v in message_class(name).FromString(raw).values]
    except Exception:  # noqa: BLE001 - protobuf's own error class differs between its versions
        return raw.hex()


def _scalar(value: Any) -> Any:
    """Replace bytes and infinite numbers, which JSON lacks, by texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@jit_in_place
def _replace_values(
    node: Array, name: Array, row: Array, is_first: Array, last_of_name: Array
) -> None:
    """Of attributes of a node with one name, keep the first place and the last value, as objects of Python do.

    `last_of_name` has for each name the place of its last attribute, of whichever node. Compiled, as it looks at each::

        node, name  3 a   3 b   3 a
        row         7     5     7      the value of the first is that of the third
        is_first    1     1     0
    """
    for i in range(len(node)):
        before = last_of_name[name[i]]
        if before >= 0 and node[before] == node[i]:
            row[before] = row[i]
            is_first[i] = False
        else:
            last_of_name[name[i]] = i
