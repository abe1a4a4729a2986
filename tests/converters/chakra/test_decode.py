"""Columns of ET files, where only some attributes are asked for."""

import numpy as np
import pytest

from chopper_interop.converters.chakra.decode import decode


def field(number: int, value: int | bytes) -> bytes:
    """A field of a message: a number, or bytes after their length."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def attribute(*fields: bytes) -> bytes:
    return field(10, b"".join(fields))


NAME, INT64, TEXT = 1, 9, 29
ATTRIBUTES = {
    "size": attribute(field(NAME, b"size"), field(INT64, 5)),
    "value before name": attribute(field(INT64, 6), field(NAME, b"size")),
    "named twice": attribute(field(NAME, b"sine"), field(NAME, b"size"), field(INT64, 7)),
    "of equal length": attribute(field(NAME, b"sine"), field(INT64, 8)),
    "renamed": attribute(field(NAME, b"size"), field(NAME, b"other"), field(INT64, 9)),
    "longer": attribute(field(NAME, b"sizes"), field(INT64, 10)),
    "without a name": attribute(field(INT64, 11)),
    "cut short": attribute(field(NAME, b"size"), bytes([INT64 << 3])),
}


@pytest.mark.parametrize("asked", [("size",), ("size", "other"), ("absent",), ("sizes", "sine")])
def test_attributes_that_are_asked_for_are_those_of_all(asked: tuple[str, ...]) -> None:
    nodes = [
        field(1, number) + b"".join(chosen)
        for number, chosen in enumerate([ATTRIBUTES.values(), [], [*ATTRIBUTES.values()][::-1]])
    ]
    metadata = field(1, b"0.0.4")
    raw = b"".join(bytes([len(m)]) + m for m in (metadata, *nodes))
    buffer = np.frombuffer(raw, np.uint8).copy()
    whole, part = decode(buffer), decode(buffer, asked)
    assert whole.broken_at == part.broken_at == -1
    assert part.id.tolist() == whole.id.tolist() == [0, 1, 2]
    for name in asked:
        for of_part, of_whole in zip(part.attribute(name), whole.attribute(name), strict=True):
            assert of_part.tolist() == of_whole.tolist()
    assert len(part.attribute("size")[2]) == (6 if "size" in asked else 0)
    assert len(part.attr_node) < len(whole.attr_node)
