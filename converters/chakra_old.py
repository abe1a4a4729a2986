"""ETs of schemas before October 2023, as ETs of today's.

Versions: the first schema (2022 to mid-2023: a node's facts are fields of its own, no
GlobalMetadata), the second (mid-2023: attributes of five types, `parent` dependencies), and the
third, today's but for attributes of GlobalMetadata in field 1 (until the end of 2023, when
``version`` took that).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.schemas.chakra import CommType, NodeType, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.columns.types import Array

    Fields = list[tuple[int, int, int | bytes]]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_PROBED = 64

FIRST_TYPES = {1: NodeType.MEM_LOAD, 2: NodeType.MEM_LOAD}
"""Types of the first schema that have another number today (2 loaded and computed at once)."""
FIRST_COLLECTIVES = {
    1: CommType.ALL_REDUCE,
    2: CommType.ALL_TO_ALL,
    3: CommType.ALL_GATHER,
    4: CommType.REDUCE_SCATTER,
}
SECOND_COLLECTIVES = {
    0: CommType.ALL_REDUCE,
    1: CommType.ALL_TO_ALL,
    2: CommType.ALL_GATHER,
    3: CommType.REDUCE_SCATTER,
    4: CommType.BROADCAST,
}
FIRST_FIELDS = {
    5: "tensor_loc",
    6: "tensor_size",
    8: "input_tensor_loc",
    9: "input_tensor_size",
    10: "output_tensor_loc",
    11: "output_tensor_size",
    12: "num_ops",
    13: "comm_type",
    15: "communicator_id",
    16: "comm_src",
    17: "comm_dst",
    18: "comm_size",
    19: "comm_tag",
    20: "comm_priority",
}
"""Field of the first schema → attribute of today's."""
_TEXTS = {5: ("inputs", "values"), 6: ("inputs", "shapes"), 7: ("inputs", "types"),
          8: ("outputs", "values"), 9: ("outputs", "shapes"), 10: ("outputs", "types")}  # fmt: skip
"""Field of the second schema → today's texts of inputs and outputs."""


def fields(raw: bytes) -> Fields:
    """Fields of a message: number, wire type, value; raises `ValueError` if it is none."""
    found: Fields = []
    i = 0
    while i < len(raw):
        key, i = _varint(raw, i)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value: int | bytes
            value, i = _varint(raw, i)
        elif wire in (_EIGHT, _FOUR, _BYTES):
            if wire == _BYTES:
                size, i = _varint(raw, i)
            else:
                size = 8 if wire == _EIGHT else 4
            if size > len(raw) - i:
                raise ValueError("a field runs over the end")
            value, i = raw[i : i + size], i + size
        else:
            raise ValueError(f"wire type {wire}")
        if not number:
            raise ValueError("field 0")
        found.append((number, wire, value))
    return found


def modern(buffer: Array) -> Array:
    """The bytes of an ET, rewritten if they are of the first or second schema."""
    version = _version(buffer)
    if version is None:
        return buffer
    out = bytearray()
    for raw in _messages(buffer):
        try:
            node = fields(raw)
        except ValueError:
            break
        if not any(number == 1 and wire == _VARINT for number, wire, _ in node):
            out += b"\x00" if not out else b""  # GlobalMetadata
            continue
        told = (_first if version == 1 else _second)(node).SerializeToString()
        out += length(len(told)) + told
    return np.frombuffer(bytes(out), np.uint8)


def _version(buffer: Array) -> int | None:
    """1 or 2 for the old schemas, None for today's: by fields that only these have."""
    for _, raw in zip(range(_PROBED), _messages(buffer), strict=False):
        try:
            numbers = {(number, wire) for number, wire, _ in fields(raw)}
        except ValueError:
            return None
        if (1, _VARINT) not in numbers:
            continue
        if any(number > max(FIRST_FIELDS) + 2 for number, _ in numbers):
            return None
        if (11, _BYTES) in numbers:
            return 2
        if numbers & {(number, _VARINT) for number in FIRST_FIELDS if number > 7}:  # noqa: PLR2004
            return 1
    return None


def _first(node: Fields) -> Any:
    """A node of the first schema as one of today's."""
    made = message("Node")()
    for number, wire, found in node:
        if wire == _BYTES and number == 2:  # noqa: PLR2004
            made.name = bytes(found).decode("utf-8", "replace")
        if wire != _VARINT or not isinstance(found, int):
            continue
        if number == 1:
            made.id = found
        elif number == 3:  # noqa: PLR2004
            made.type = int(FIRST_TYPES.get(found, found)) & 0x7FFFFFFF
        elif number == 4:  # noqa: PLR2004
            made.data_deps.append(found)
        elif number == 7:  # noqa: PLR2004
            made.duration_micros = found
        elif number in FIRST_FIELDS:
            name = FIRST_FIELDS[number]
            told = int(FIRST_COLLECTIVES.get(found, -1)) if name == "comm_type" else found
            if told >= 0:
                made.attr.add(name=name, uint64_val=told)
    return made


def _second(node: Fields) -> Any:
    """A node of the second schema as one of today's."""
    made = message("Node")()
    for number, wire, found in node:
        if isinstance(found, bytes):
            text = found.decode("utf-8", "replace")
            if number == 2:  # noqa: PLR2004
                made.name = text
            elif number in _TEXTS:
                side, part = _TEXTS[number]
                setattr(getattr(made, side), part, text)
            elif number == 11:  # noqa: PLR2004
                _attribute(made, found)
        elif wire == _VARINT and number == 1:
            made.id = found
        elif wire == _VARINT and number == 3:  # noqa: PLR2004
            made.type = found & 0x7FFFFFFF
        elif wire == _VARINT and number == 4:  # noqa: PLR2004
            made.data_deps.append(found)
    return made


def _attribute(made: Any, raw: bytes) -> None:
    """An attribute of the second schema: bool, float, unsigned, signed, text in fields 4 to 8."""
    try:
        told = fields(raw)
    except ValueError:
        return
    name = next((v.decode("utf-8", "replace") for n, _, v in told
                 if n == 1 and isinstance(v, bytes)), "")  # fmt: skip
    for number, wire, found in told:
        if isinstance(found, int):
            if name == "runtime" and number in (6, 7):
                made.duration_micros = found
            elif number == 4:  # noqa: PLR2004
                made.attr.add(name=name, bool_val=bool(found))
            elif number in (6, 7):
                value = SECOND_COLLECTIVES.get(found, found) if name == "comm_type" else found
                signed = value - (1 << 64) if value >> 63 else int(value)
                made.attr.add(name=name, int64_val=signed)
        elif number == 5 and wire == _FOUR:  # noqa: PLR2004
            made.attr.add(name=name, float_val=float(np.frombuffer(found, "<f4")[0]))
        elif number == 8:  # noqa: PLR2004
            made.attr.add(name=name, string_val=found.decode("utf-8", "replace"))


def _messages(buffer: Array) -> Iterator[bytes]:
    i, n = 0, len(buffer)
    while i < n:
        head = bytes(buffer[i : i + 10])
        try:
            size, width = _varint(head, 0)
        except ValueError:
            return
        i += width
        if size > n - i:
            return
        yield bytes(buffer[i : i + size])
        i += size


def _varint(raw: bytes, i: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if i >= len(raw):
            break
        byte = raw[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004
            return value & ((1 << 64) - 1), i
    raise ValueError("a number does not end")


def length(size: int) -> bytes:
    """The varint that goes before a message of so many bytes."""
    out = bytearray()
    while size > 127:  # noqa: PLR2004
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size])
