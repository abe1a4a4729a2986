"""Attributes of an ET without a column become arguments, as protobuf and Python's JSON library read them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import proto
from hypothesis import given
from hypothesis import strategies as st
from protobuf_wire import framed
from seeds.chakra import VERSION as VERSION_MESSAGE
from seeds.chakra import node

import chopper_interop as ci
from chopper_interop import pipeline
from chopper_interop.converters.chakra import arguments
from chopper_interop.schemas.chakra import VERSION, NodeType, message_class
from chopper_interop.trace import Trace

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXTS = st.sampled_from(["", "work", 'a "quoted" \\ text\n', "π\u2028", "😀", "\x00"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "double_val": st.floats(), "float_val": st.floats(width=32), "bool_val": st.booleans(),
    "int32_val": INT32, "sint32_val": INT32, "sfixed32_val": INT32, "uint32_val": UINT32, "fixed32_val": UINT32,
    "int64_val": INT64, "sint64_val": INT64, "sfixed64_val": INT64, "uint64_val": UINT64, "fixed64_val": UINT64,
    "string_val": TEXTS, "bytes_val": st.binary(max_size=3),
    "int64_list": st.lists(INT64, max_size=3), "double_list": st.lists(st.floats(), max_size=3),
    "string_list": st.lists(TEXTS, max_size=3), "bytes_list": st.lists(st.binary(max_size=3), max_size=2),
}  # fmt: skip
ATTRIBUTE = st.sampled_from(sorted(VALUES)).flatmap(
    lambda kind: st.tuples(st.sampled_from(["a", "b", 'c"', "π"]), st.just(kind), VALUES[kind])
)


def written(path: Path, nodes: list[list[tuple[str, str, Any]]], behind: bytes = b"") -> Trace:
    """Read an ET whose nodes have these attributes, and `behind` as bytes at the end of the last one's."""
    with path.open("wb") as stream:
        proto.serialize_length_prefixed(message_class("GlobalMetadata")(version=VERSION), stream)
        for number, attributes in enumerate(nodes):
            node = message_class("Node")(id=number, name="x", type=4, duration_micros=1)
            for name, kind, value in attributes:
                attribute = node.attr.add(name=name)
                if kind.endswith("_list"):
                    getattr(attribute, kind).SetInParent()
                    getattr(attribute, kind).values.extend(value)
                else:
                    setattr(attribute, kind, value)
            if behind and number == len(nodes) - 1:
                node.MergeFromString(behind)
            proto.serialize_length_prefixed(node, stream)
    return pipeline.read(path)


def expected(value: Any) -> Any:
    """A value as JSON has it: bytes as text, and what is no number as its name."""
    if isinstance(value, list):
        return [expected(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@given(
    st.lists(st.lists(ATTRIBUTE, max_size=4), min_size=1, max_size=6),
    st.sampled_from([1, 3, 1 << 18]),
)
def test_arguments_are_the_attributes_of_each_node_the_last_of_equal_names(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[list[tuple[str, str, Any]]], at_once: int
) -> None:
    path = tmp_path_factory.mktemp("et") / "job.0.et"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_AT_ONCE", at_once)
        trace = written(path, nodes)
    for row, attributes in enumerate(nodes):
        of_node = {name: expected(value) for name, _, value in attributes}
        assert json.dumps(trace.args(row)) == json.dumps(of_node)


def test_a_value_of_a_later_schema_is_hexadecimal_digits(tmp_path: Path) -> None:
    text, number = b"\x0a\x01t\xaa\x02\x03abc", b"\x0a\x01n\xa0\x02\x05"
    behind = b"".join(b"\x52" + bytes([len(a)]) + a for a in (text, number))
    trace = written(tmp_path / "job.0.et", [[("a", "int64_val", 1)]], behind)
    assert trace.args(0) == {"a": 1, "t": b"abc".hex(), "n": 5}


@pytest.mark.parametrize("peer", [1 << 31, (1 << 63) - 1])
def test_a_peer_that_no_rank_can_be_is_none(peer: int, tmp_path: Path) -> None:
    """It ended in a defect of the program."""
    path = tmp_path / "job.0.et"
    sends = [
        node(k, type_=NodeType.COMM_SEND, comm_dst=("int64_val", rank))
        for k, rank in ((1, peer), (2, 3))
    ]
    path.write_bytes(b"".join(map(framed, [VERSION_MESSAGE, *sends])))
    assert ci.read(path).nodes["peer"].to_pylist() == [None, 3]
