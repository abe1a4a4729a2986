"""Chakra ETs: small sound ones, and unusual or damaged ones of other writers."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

from protobuf_wire import framed, varint

from chopper_interop.errors import ReadError
from chopper_interop.schemas.chakra import CommType, NodeType, message_class
from seeds import Odd, Refused, Seed, reads


def node(number: int, *, type_: int = NodeType.COMP, **more: Any) -> bytes:
    """Encode a node; keywords that are no fields are attributes, by type and value."""
    made = message_class("Node")(id=number, type=int(type_), name=more.pop("name", f"n{number}"))
    made.duration_micros = more.pop("duration", 5)
    made.start_time_micros = more.pop("start", 0)
    made.data_deps.extend(more.pop("deps", []))
    made.ctrl_deps.extend(more.pop("ctrl", []))
    for name, (kind, value) in more.items():
        attribute = made.attr.add(name=name)
        if isinstance(value, list):
            getattr(attribute, kind).values.extend(value)
        else:
            setattr(attribute, kind, value)
    return bytes(made.SerializeToString())


VERSION = bytes(message_class("GlobalMetadata")(version="0.0.4").SerializeToString())
METADATA = message_class("GlobalMetadata")(version="1.0.0")
for _name, _value in (("job", "job"), ("origin_ns", 10**18)):
    _attribute = METADATA.attr.add(name=_name)
    if isinstance(_value, str):
        _attribute.string_val = _value
    else:
        _attribute.int64_val = _value
HOST, GPU = {"is_cpu_op": ("bool_val", True)}, {"is_cpu_op": ("bool_val", False)}
REDUCE = {
    "type_": NodeType.COMM_COLL,
    "comm_type": ("int64_val", int(CommType.ALL_REDUCE)),
    "comm_size": ("int64_val", 4096),
    "pg_name": ("string_val", "1"),
    **GPU,
}
_STEP = [
    node(0, name="aten::mm", duration=20, **HOST),
    node(1, name="gemm", deps=[0], duration=50, **GPU, stream=("int64_val", 7)),
    node(2, name="ncclAllReduce", deps=[1], duration=30, **REDUCE),
    node(3, name="aten::add", ctrl=[0], duration=4, **HOST),
]
_N = len(_STEP)
_MEASURED = [
    node(k, start=100 + 10 * k, duration=8, start_ns=("int64_val", 100_000 + 10_000 * k), **GPU)
    for k in range(3)
]
_GRAPH = {
    "workload_graph": [
        {"Id": 1, "Name": "aten::mm", "NodeType": 4, "is_cpu_op": True, "runtime": 20},
        {"Id": 2, "Name": "gemm", "NodeType": 4, "is_cpu_op": False, "runtime": 5, "data_deps": [1]},
        {"Id": 3, "Name": "reduce", "NodeType": 7, "is_cpu_op": False, "runtime": 9,
         "data_deps": [2], "ctrlDeps": [1], "comm_type": 0, "comm_size": 64},
    ],
    "workload_name": "step",
}  # fmt: skip


def jsonized(*nodes: bytes) -> bytes:
    """Convert an ET as MLCommons' jsonizer does."""
    from google.protobuf.json_format import MessageToJson

    messages = [message_class("GlobalMetadata").FromString(VERSION)]
    messages += [message_class("Node").FromString(raw) for raw in nodes]
    return "".join(MessageToJson(one) for one in messages).encode()


_ET = framed(VERSION, *_STEP)
_TIMED = framed(bytes(METADATA.SerializeToString()), *_MEASURED)
SEEDS = [
    Seed("chakra", "step.0.et", _ET, others={"groups.json": b'{"1": [0, 1]}'}),
    Seed("chakra", "step.1.et", _TIMED),
    Seed("chakra", "step.2.json", json.dumps(_GRAPH, indent=1).encode()),
    Seed("chakra", "step.3.json", jsonized(*_STEP)),
]


def _field(number: int, value: bytes | str | float) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def _old(*fields: tuple[int, Any]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


FIRST = framed(
    _old((1, 1), (2, "load"), (3, 1), (5, 2), (6, 512)),
    _old((1, 2), (2, "comp"), (3, 4), (4, 1), (7, 40), (12, 1000), (6, 64)),
    _old((1, 3), (2, "coll"), (3, 7), (4, 2), (13, 3), (18, 2048), (14, 1)),
)
"""The first schema: all-gather is 3, and dependencies are parents."""
SECOND = framed(
    _old((1, _old((1, "schema"), (2, 4), (8, "x")))),
    _old((1, 1), (2, "comp"), (3, 4), (5, "[1]"), (11, _old((1, "runtime"), (2, 2), (6, 25)))),
    _old(
        (1, 2), (2, "coll"), (3, 7), (4, 1),
        (11, _old((1, "comm_type"), (2, 2), (6, 2))),
        (11, _old((1, "comm_size"), (2, 2), (6, 4096))),
        (11, _old((1, "is_cpu_op"), (2, 0), (4, 0))),
    ),
)  # fmt: skip
THIRD = framed(_old((1, _old((1, "schema"), (29, "1.0.2")))), *_STEP)
"""Attributes of GlobalMetadata in field 1."""


def _read(name: str, data: bytes, nodes: int = _N, file: str = "step.0.et", **counts: int) -> Odd:
    return Odd(f"chakra {name}", {file: data}, reads(nodes, **counts))


def _nodes(name: str, *nodes: bytes, **counts: int) -> Odd:
    return _read(name, framed(VERSION, *nodes), len(nodes), **counts)


def _refused(
    name: str, data: bytes, error: type[Exception], text: str, file: str = "a.0.et"
) -> Odd:
    return Odd(f"chakra {name}", {file: data}, Refused(error, text))


_ALL = _N
ODD = [
    Odd(
        "chakra of MLCommons' converter",
        {"feeder_tests_chakra.0.et": "chakra/feeder_tests_chakra.0.et"},
        reads(3664, et_dependency_dangling=1277, et_dependency_circular=937,
              et_times_scheduled=3664, et_no_duration=157),
    ),
    Odd(
        "chakra workload_graph of MLCommons",
        {"small_chakra.0.json": "chakra/small_chakra.0.json"},
        reads(7, et_dependency_dangling=7, et_times_scheduled=7),
    ),
    _read("without starts", _ET, et_times_scheduled=_ALL),
    _read("with starts", _TIMED, 3),
    _read("gzip", gzip.compress(_ET), et_times_scheduled=_ALL),
    _read("gzip cut short", gzip.compress(_ET, 0)[:-20], compressed_data_cut_short=1, et_cut_short=1, nodes=3),
    _read("without rank in its name", _ET, file="step.et", rank_assumed=1),
    _read("without metadata", framed(*_STEP), et_without_metadata=1),
    _read("metadata of no length", framed(b"", *_STEP)),
    _read("attributes of metadata in field 1", THIRD),
    _read("first schema", FIRST, 3, et_times_scheduled=3, et_without_metadata=1),
    _read("second schema", SECOND, 2, et_times_scheduled=2, et_no_duration=1),
    _read("nodes of no length", framed(VERSION, _STEP[0], b"", *_STEP[1:]), et_node_empty=1),
    _read("tail of NUL bytes", _ET + bytes(5), et_node_empty=5),
    _read("rubbish after the end", _ET + b"\xff\xff\xff", et_cut_short=1),
    _read("last node cut short", _ET[:-9], _N - 1, et_cut_short=1),
    _read("a node whose fields break", framed(VERSION, *_STEP[:2], b"\x08\x01\x12\x7fx"), 2,
          et_cut_short=1),
    _read("without nodes", framed(VERSION, *_STEP[:1]), 1),
    _refused("metadata alone", framed(VERSION), ReadError, "no nodes"),
    _refused("nothing but metadata nodes", framed(VERSION, node(1, type_=NodeType.METADATA)), ReadError,
         "no nodes"),
    _read("metadata nodes", framed(VERSION, node(9, type_=NodeType.METADATA), *_STEP),
          et_metadata_node=1),
    _nodes("id twice", node(1, **GPU), node(1, **GPU), node(2, deps=[1], **GPU), et_id_twice=1),
    _nodes("dependency on itself", node(1, deps=[1], **GPU), node(2, deps=[1], **GPU),
           et_dependency_circular=1),
    _nodes("cycle", node(1, deps=[2], **GPU), node(2, deps=[1], **GPU), node(3, deps=[2], **GPU),
           et_dependency_circular=1),
    _nodes("forward reference to a node behind a cycle", node(4, deps=[5], **GPU), node(5, deps=[1], **GPU),
           node(1, deps=[2], **GPU), node(2, deps=[1], **GPU), et_dependency_circular=1),
    _nodes("dangling", node(1, deps=[7], **GPU), node(2, ctrl=[8], **GPU), et_dependency_dangling=2),
    _nodes("ids of 64 bits", node(2**64 - 1, **GPU), node(2**63 + 5, deps=[2**64 - 1], **GPU)),
    _nodes("endless durations", node(1, duration=2**64 - 1, **GPU), node(2, duration=2**60, **GPU),
           et_time_out_of_range=2, et_no_duration=2),
    _refused("durations that add up to too much",
         framed(VERSION, *(node(k, duration=3 * 10**14, **GPU) for k in range(20))), ReadError,
         "add up to more"),
    _nodes("attributes of other types", node(1, comm_size=("string_val", "8"),
           stream=("int64_list", [3]), kind=("int64_val", 3), **GPU), et_attribute_type=3),
    _nodes("nothing but pieces of a host", node(1, kind=("string_val", "host_gap"), cause=("string_val", "latency"),
           start_ns=("int64_val", 5), **GPU), et_recorded_unreadable=1),
    _nodes("of no type", node(1, type_=NodeType.INVALID, **GPU)),
    _nodes("name that is no UTF-8", node(1, **GPU).replace(b"n1", b"\xff\xfe"), node(2, **GPU)),
    _read("as workload_graph", json.dumps(_GRAPH).encode(), 3, "step.0.json", et_times_scheduled=3),
    _read("workload_graph with broken nodes", json.dumps(_GRAPH).encode().replace(
          b'"Id": 2', b'"Id": -2'), 3, "step.0.json", et_json_value=1, et_dependency_dangling=1),
    _read("workload_graph with half a surrogate pair in a fact", json.dumps({"\ud800": "\udfff", **_GRAPH}).encode(),
          3, "step.0.json", et_times_scheduled=3),
    _read("workload_graph cut short", json.dumps(_GRAPH, indent=1).encode()[:330], 2, "step.0.json",
          et_json_malformed=1),
    _read("as the jsonizer writes it", jsonized(*_STEP), _N, "step.0.json", et_times_scheduled=_N),
    _read("the jsonizer's cut short", jsonized(*_STEP)[:-20], _N - 1, "step.0.json",
          et_json_malformed=1),
    Odd("chakra two ranks and groups",
        {"job.v2.0.et": _ET, "job.v2.1.et": _ET, "comm_group.json": b'{"0": [0, 1], "1": [0, 1]}'},
        reads(2 * _N, et_times_scheduled=_N)),
    Odd("chakra groups of two files that differ",
        {"job.0.et": _ET, "job.comm_groups.json": b'{"1": [0, 1]}', "groups.json": b'{"1": [0]}'},
        reads(_N, et_groups_differ=1)),
    _refused("groups alone", b'{"0": [0, 1]}', ReadError, "process groups alone", "comm_group.json"),
    _refused("groups of no ranks", b'{"0": [0, "x"]}', ReadError, "groups alone", "g.json"),
]  # fmt: skip
