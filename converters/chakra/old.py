"""ETs of schemas before October 2023, converted to the present one.

Schemas: the first schema (2022 to mid-2023: attributes are fields of the node, no
GlobalMetadata), the second (mid-2023: attributes of five types, `parent` dependencies), and the
third, the present one except that attributes of GlobalMetadata are in field 1 (until the end of
2023, when ``version`` took that).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.converters.chakra.messages import (
    FOUR_BYTES,
    LENGTH,
    VARINT,
    fields,
    length_prefix,
    split_messages,
)
from chopper_interop.schemas.chakra import CommType, NodeType, message_class

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.chakra.messages import Fields

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
"""Field of the first schema → attribute of the present one."""
_TEXTS = {5: ("inputs", "values"), 6: ("inputs", "shapes"), 7: ("inputs", "types"),
          8: ("outputs", "values"), 9: ("outputs", "shapes"), 10: ("outputs", "types")}  # fmt: skip
"""Field of the second schema → present texts of inputs and outputs."""


def to_present_schema(buffer: Array) -> Array:
    """Return the bytes of an ET, rewritten if they are of the first or second schema.

    What cannot be decoded, and all after it, stays as it is, for the decoder to say where the file is broken.
    """
    version = _version(buffer)
    if version is None:
        return buffer
    out, end = bytearray(), 0
    for raw, stop in split_messages(buffer):
        try:
            node = fields(raw)
        except ValueError:
            break
        end = stop
        if not any(number == 1 and wire == VARINT for number, wire, _ in node):
            out += b"\x00" if not out else b""  # GlobalMetadata
            continue
        written = (_from_first if version == 1 else _from_second)(node).SerializeToString()
        out += length_prefix(len(written)) + written
    out += buffer[end:].tobytes()
    return np.frombuffer(bytes(out), np.uint8)


def _version(buffer: Array) -> int | None:
    """Return 1 or 2 for the old schemas, None for the present one; each has fields of its own."""
    for _, (raw, _) in zip(range(_PROBED), split_messages(buffer), strict=False):
        try:
            numbers = {(number, wire) for number, wire, _ in fields(raw)}
        except ValueError:
            return None
        if (1, VARINT) not in numbers:
            continue
        if any(number > max(FIRST_FIELDS) + 2 for number, _ in numbers):
            return None
        if (11, LENGTH) in numbers:
            return 2
        if numbers & {(number, VARINT) for number in FIRST_FIELDS if number > 7}:  # noqa: PLR2004
            return 1
    return None


def _from_first(node: Fields) -> Any:
    """Convert a node of the first schema."""
    converted = message_class("Node")()
    for number, wire, value in node:
        if wire == LENGTH and number == 2:  # noqa: PLR2004
            converted.name = bytes(value).decode("utf-8", "replace")
        if wire != VARINT or not isinstance(value, int):
            continue
        if number == 1:
            converted.id = value
        elif number == 3:  # noqa: PLR2004
            converted.type = int(FIRST_TYPES.get(value, value)) & 0x7FFFFFFF
        elif number == 4:  # noqa: PLR2004
            converted.data_deps.append(value)
        elif number == 7:  # noqa: PLR2004
            converted.duration_micros = value
        elif number in FIRST_FIELDS:
            name = FIRST_FIELDS[number]
            stated = int(FIRST_COLLECTIVES.get(value, -1)) if name == "comm_type" else value
            if stated >= 0:
                converted.attr.add(name=name, uint64_val=stated)
    return converted


def _from_second(node: Fields) -> Any:
    """Convert a node of the second schema."""
    converted = message_class("Node")()
    for number, wire, value in node:
        if isinstance(value, bytes):
            text = value.decode("utf-8", "replace")
            if number == 2:  # noqa: PLR2004
                converted.name = text
            elif number in _TEXTS:
                side, part = _TEXTS[number]
                setattr(getattr(converted, side), part, text)
            elif number == 11:  # noqa: PLR2004
                _add_attribute(converted, value)
        elif wire == VARINT and number == 1:
            converted.id = value
        elif wire == VARINT and number == 3:  # noqa: PLR2004
            converted.type = value & 0x7FFFFFFF
        elif wire == VARINT and number == 4:  # noqa: PLR2004
            converted.data_deps.append(value)
    return converted


def _add_attribute(converted: Any, raw: bytes) -> None:
    """Convert an attribute of the second schema: fields 4-8 are bool, float, uint, int, text."""
    try:
        parsed = fields(raw)
    except ValueError:
        return
    name = next((v.decode("utf-8", "replace") for n, _, v in parsed
                 if n == 1 and isinstance(v, bytes)), "")  # fmt: skip
    for number, wire, value in parsed:
        if isinstance(value, int):
            if name == "runtime" and number in (6, 7):
                converted.duration_micros = value
            elif number == 4:  # noqa: PLR2004
                converted.attr.add(name=name, bool_val=bool(value))
            elif number in (6, 7):
                stated = int(SECOND_COLLECTIVES.get(value, value)) if name == "comm_type" else value
                signed = stated - (1 << 64) if stated >> 63 else stated
                converted.attr.add(name=name, int64_val=signed)
        elif number == 5 and wire == FOUR_BYTES:  # noqa: PLR2004
            converted.attr.add(name=name, float_val=float(np.frombuffer(value, "<f4")[0]))
        elif number == 8:  # noqa: PLR2004
            converted.attr.add(name=name, string_val=value.decode("utf-8", "replace"))
