"""ETs of schemas before October 2023, converted to the present one.

Schemas: the first schema (2022 to mid-2023: attributes are fields of the node, no
GlobalMetadata), the second (mid-2023: attributes of five types), and the third,
the present one except that attributes of GlobalMetadata are in field 1 (until the end of
2023, when ``version`` took that).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from google.protobuf import proto
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra.files import LENGTH, VARINT, fields
from chopper_interop.schemas.chakra import CommType, NodeType, message_class

_PROBED = 64
"""Messages by which a file's schema is determined. Chosen: the first node mostly suffices, but one
with few fields fits several schemas."""

FIRST_TYPES = {1: NodeType.MEM_LOAD, 2: NodeType.MEM_LOAD}
"""Types of the first schema that have another number now (2 loaded and computed at once)."""
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
_BROKEN = (DecodeError, ValueError, OverflowError)
"""Errors of a message that is damaged or cut short, or of a size above 64 bits."""
_ENUM_BITS = 0x7FFFFFFF
"""Enums are 32 bits: what is larger is no type, and must not be an error."""


def to_present_schema(buffer: Array) -> Array:
    """Return the bytes of an ET, rewritten if they are of the first or second schema.

    What cannot be decoded, and all after it, stays as it is, for the decoder to say where the file is broken.
    """
    version = _version(buffer)
    if version is None:
        return buffer
    convert = {"FirstNode": _from_first, "SecondNode": _from_second}[version]
    out, end = io.BytesIO(), 0
    for node, stop in _split_messages(buffer, message_class(version)):
        end = stop
        if node.HasField("id"):
            proto.serialize_length_prefixed(convert(node), out)
        elif not out.tell():
            out.write(b"\x00")  # GlobalMetadata
    out.write(buffer[end:].data)
    return np.frombuffer(out.getbuffer(), np.uint8)


def _split_messages(buffer: Array, message_class: Any) -> Iterator[tuple[Any, int]]:
    """Messages of a file, each after its length, up to the first broken one, and where each ends."""
    stream = io.BytesIO(buffer.data)
    while True:
        try:
            message = proto.parse_length_prefixed(message_class, stream)
        except _BROKEN:
            return
        if message is None:
            return
        yield message, stream.tell()


def _version(buffer: Array) -> str | None:
    """Return the message of an old schema's nodes, None for the present one; each has fields of its own."""
    first = message_class("FirstNode").DESCRIPTOR.fields
    last = max(field.number for field in first)
    for _, (message, _) in zip(range(_PROBED), _split_messages(buffer, Empty), strict=False):
        numbers = {(number, wire) for number, wire, _ in fields(message.SerializeToString())}
        if (1, VARINT) not in numbers:
            continue
        if any(number > last + 2 for number, _ in numbers):
            return None
        if (11, LENGTH) in numbers:
            return "SecondNode"
        if numbers & {(field.number, VARINT) for field in first if field.number > 7}:  # noqa: PLR2004
            return "FirstNode"
    return None


def _from_first(node: Any) -> Any:
    """Convert a node of the first schema."""
    converted = message_class("Node")(
        id=node.id,
        name=_text(node.name),
        type=int(FIRST_TYPES.get(node.type, node.type)) & _ENUM_BITS,
        data_deps=node.data_deps,
        duration_micros=node.duration_micros,
    )
    for field, value in node.ListFields():
        if field.name == "comm_type":
            if value in FIRST_COLLECTIVES:
                converted.attr.add(name=field.name, uint64_val=FIRST_COLLECTIVES[value])
        elif field.has_presence and field.name != "id":
            converted.attr.add(name=field.name, uint64_val=value)
    return converted


def _from_second(node: Any) -> Any:
    """Convert a node of the second schema."""
    converted = message_class("Node")(
        id=node.id, name=_text(node.name), type=node.type & _ENUM_BITS, data_deps=node.data_deps
    )
    for field, value in node.ListFields():
        side, _, part = field.name.partition("_")
        if side in ("inputs", "outputs"):
            setattr(getattr(converted, side), part, _text(value))
    for raw in node.attr:
        with suppress(DecodeError):
            _add_attribute(converted, message_class("SecondAttribute").FromString(raw))
    return converted


def _add_attribute(converted: Any, attribute: Any) -> None:
    """Convert an attribute of the second schema."""
    name = _text(attribute.name)
    for field, value in attribute.ListFields():
        if field.name in ("uint_val", "int_val"):
            if name == "runtime":
                converted.duration_micros = value
                continue
            stated = int(SECOND_COLLECTIVES.get(value, value)) if name == "comm_type" else value
            signed = stated - (1 << 64) if stated >> 63 else stated
            converted.attr.add(name=name, int64_val=signed)
        elif field.name == "bool_val":
            converted.attr.add(name=name, bool_val=bool(value))
        elif field.name == "float_val":
            converted.attr.add(name=name, float_val=value)
        elif field.name == "string_val":
            converted.attr.add(name=name, string_val=_text(value))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
