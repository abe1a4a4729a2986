"""Protobuf messages one by one in plain Python: for what is rare or small, such as metadata."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from google.protobuf import proto
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array

VARINT, LENGTH = 0, 2
"""Wire types."""


def fields(raw: bytes) -> list[tuple[int, int, Any]]:
    """Number, wire type and value of a message's fields; raises `DecodeError` if it is none."""
    unknown: Any = UnknownFieldSet(Empty.FromString(raw))
    return [(field.field_number, field.wire_type, field.data) for field in unknown]


def split_messages(buffer: Array, message_class: Any) -> Iterator[tuple[Any, int]]:
    """Messages of a file, each after its length, up to the first broken one, and where each ends."""
    stream = io.BytesIO(buffer.data)
    while True:
        try:
            message = proto.parse_length_prefixed(message_class, stream)
        except (
            DecodeError,
            ValueError,
            OverflowError,
        ):  # broken, cut short, or a size above 64 bits
            return
        if message is None:
            return
        yield message, stream.tell()
