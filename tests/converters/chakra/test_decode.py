"""Columns of ET files, where only some attributes are asked for, or blocks are read."""

import io
from dataclasses import fields

import numpy as np
import pytest

from chopper_interop.converters.chakra import decode as chakra_decode
from chopper_interop.converters.chakra.decode import EtFile, decode, decode_blocks


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


def messages(*nodes: bytes) -> bytes:
    return b"".join(bytes([len(m)]) + m for m in (field(1, b"0.0.4"), *nodes))


def named(number: int, *more: bytes) -> bytes:
    """A node with a name, a dependency and attributes."""
    return (
        field(1, number)
        + field(2, b"node %d" % (number % 7))
        + field(5, max(number - 1, 0))
        + b"".join(more)
    )


GROUP = attribute(
    field(NAME, b"pg_name"), bytes([TEXT << 3 & 127 | 2 | 128, TEXT >> 4, 3]) + b"abc"
)
NODES = [
    named(k, *[[ATTRIBUTES["size"]], [GROUP], [GROUP, ATTRIBUTES["longer"]]][k % 3])
    for k in range(40)
]
FILES = {
    "whole": messages(*NODES),
    "cut short": messages(*NODES)[:-5],
    "broken node": messages(*NODES[:20], bytes([8]), *NODES[20:]),
    "without metadata": messages(*NODES)[8:],
    "metadata alone": messages(),
    "empty": b"",
    "no messages": b"\xff" * 40,
}


def columns(et: EtFile) -> dict[str, object]:
    """All that a file says; texts for their positions."""
    named = {f.name: getattr(et, f.name) for f in fields(et)}
    positions = ("buffer", "name_at", "attr_value")
    plain = {
        n: v.tolist() if isinstance(v, np.ndarray) else v
        for n, v in named.items()
        if n not in positions
    }
    numbers = [
        (name, et.attribute(name)[2][~np.isin(et.attribute(name)[1], (TEXT,))].tolist())
        for name in et.attr_names
    ]
    codes, texts = et.texts("pg_name")
    groups = [texts[code] if code >= 0 else None for code in codes]
    return plain | {
        "names": [et.name(k) for k in range(len(et.id))],
        "numbers": numbers,
        "groups": groups,
    }


@pytest.mark.parametrize("block", [8, 37, 1000])
@pytest.mark.parametrize("name", FILES)
def test_blocks_of_a_file_are_the_whole(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chakra_decode, "_BLOCK", block)
    whole = decode(np.frombuffer(FILES[name], np.uint8).copy())
    in_blocks = decode_blocks(io.BufferedReader(io.BytesIO(FILES[name])))
    assert columns(in_blocks) == columns(whole)
    assert len(whole.id) == {"broken node": 20, "cut short": 39}.get(name, 40 if "w" in name else 0)
