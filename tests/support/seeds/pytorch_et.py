"""Host execution traces of PyTorch: the same small program in every schema."""

import gzip
import json
from typing import Any

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Reads, Refused, Seed, reads

Node = dict[str, Any]
FLAT, NESTED, STRIDED = "1.0.1", "1.0.2-chakra.0.0.4", "1.1.1-chakra.0.0.4"
SCHEMAS = (FLAT, NESTED, "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4", STRIDED)
PROCESS = "[pytorch|profiler|execution_trace|process]"
THREAD = "[pytorch|profiler|execution_trace|thread]"


def tensor(number: int, storage: int, offset: int = 0, elements: int = 4, size: int = 4) -> list:
    """A tensor as the observer writes it."""
    return [number, storage, offset, elements, size, "cuda:0"]


def node(
    number: int,
    name: str,
    parent: int,
    inputs: tuple = (),
    outputs: tuple = (),
    *,
    tid: int = 1,
    scope: int = 0,
    op_schema: str = "",
    **attrs: Any,
) -> Node:
    """A node in no schema's form; see `written`."""
    attributes = {
        "rf_id": number,
        "fw_parent": 0,
        "seq_id": -1,
        "scope": scope,
        "tid": tid,
        "fw_tid": 0,
    }
    attributes |= {"op_schema": op_schema, **attrs}
    return {
        "id": number,
        "name": name,
        "parent": parent,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "attrs": attributes,
    }


def is_tensor(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 6 and isinstance(value[5], str)


def type_of(value: Any) -> str:
    if is_tensor(value):
        return "Tensor(float)"
    if isinstance(value, list):
        return f"GenericList[{','.join(type_of(v) for v in value)}]"
    return {str: "String", bool: "Bool", int: "Int", float: "Double"}.get(type(value), "None")


def shape_of(value: Any) -> list:
    if is_tensor(value):
        return [value[3]]
    return [shape_of(v) for v in value] if isinstance(value, list) else []


def written(one: Node, schema: str) -> Node:
    """A node as the observer of that schema writes it."""
    lists = {
        side: {
            "values": one[side],
            "shapes": [shape_of(v) for v in one[side]],
            "types": [type_of(v) for v in one[side]],
        }
        for side in ("inputs", "outputs")
    }
    if schema == FLAT:
        flat = {"name": one["name"], "id": one["id"], "parent": one["parent"], **one["attrs"]}
        for side in ("inputs", "outputs"):
            flat |= {side: lists[side]["values"], f"{side[:-1]}_shapes": lists[side]["shapes"]}
            flat |= {f"{side[:-1]}_types": lists[side]["types"]}
        return flat
    if schema == STRIDED:
        for side in lists.values():
            side["strides"] = [[1] if s else [] for s in side["shapes"]]
    kinds = {int: "uint64", str: "string"}
    attrs = [{"name": k, "type": kinds[type(v)], "value": v} for k, v in one["attrs"].items()]
    head = {"id": one["id"], "name": one["name"], "ctrl_deps": one["parent"]}
    return head | lists | {"attrs": attrs}


def document(nodes: list[Node], schema: str = NESTED, pid: int = 77, *, end: bool = True) -> bytes:
    """A file, one node a line."""
    head = f'{{\n  "schema": "{schema}", "pid": {pid}, "time": "2024-01-01 00:00:00", '
    head += '"start_ts": 5,\n  "nodes": [\n'
    lines = ",\n".join(json.dumps(written(n, schema)) for n in nodes)
    return (head + lines + ('\n  ],\n  "finish_ts": 9\n}' if end else ",\n")).encode()


def program() -> list[Node]:
    """A linear layer and its use, as the observer writes it: at the end of each call."""
    pure = "aten::t(Tensor(a) self) -> Tensor(a)"
    return [
        node(2, THREAD, 1, scope=7),
        node(7, "aten::t", 6, (tensor(10, 11),), (tensor(12, 11),), op_schema=pure),
        node(9, "aten::empty", 8, ([4],), (tensor(14, 15),)),
        node(8, "aten::addmm", 6, (tensor(13, 16), tensor(12, 11)), (tensor(14, 15),)),
        node(6, "aten::linear", 3, (tensor(13, 16), tensor(10, 11)), (tensor(14, 15),)),
        node(20, "aten::relu", 3, (tensor(14, 15), float("inf")), (tensor(21, 22),)),
        node(3, "## forward ##", 2, scope=7),
        node(24, THREAD, 1, scope=7, tid=2),
        node(25, "ReluBackward0", 24, (tensor(21, 22),), (tensor(30, 31),), tid=2, scope=1),
        node(1, PROCESS, 1, scope=7, tid=0),
    ]


NODES = 7
_SOUND = {schema: document(program(), schema) for schema in SCHEMAS}


def _records(data: bytes) -> frozenset[bytes]:
    """Lines that are one operator each."""
    lines = [line.rstrip(b",") for line in data.splitlines()]
    return frozenset(line for line in lines if b'"name"' in line and b"execution_trace" not in line)


SEEDS = tuple(
    Seed("pytorch-et", f"et_{schema}.json", data, records=_records(data))
    for schema, data in _SOUND.items()
)


def _odd(name: str, data: bytes, outcome: Reads | Refused, file: str = "x.json") -> Odd:
    return Odd(f"host ET: {name}", {file: data}, outcome)


def _reads(nodes: int = NODES, **issues: int) -> Reads:
    return reads(nodes, no_times=1, **issues)


_GOOD = _SOUND[NESTED]
_OPEN = document(program()[:-1], end=False)
_HEADER = b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "", "start_ts": 1, "nodes": ['
_HUGE = [*program()[:-1], node(2**53 + 1, "a", 2), node(2**53 + 2, "b", 2), node(2**64 - 1, "c", 2)]
ODD = (
    _odd("not closed, as the program crashed", _OPEN, _reads(et_not_closed=1)),
    _odd(
        "cut within a node",
        _GOOD[: _GOOD.index(b'"## forward ##"') + 40],
        # three lose their caller with it
        _reads(5, et_not_closed=1, et_node_malformed=1, et_parent_missing=2),
    ),
    _odd("a second document", _GOOD + b"\n" + _GOOD, _reads(2 * NODES)),
    _odd("a second document in an open one", _OPEN + _GOOD, _reads(2 * NODES, et_not_closed=1)),
    _odd("text after the end", _GOOD + b"\nhello", _reads(et_text_after_end=1)),
    _odd("gzip", gzip.compress(_GOOD), _reads(), "x.json.gz"),
    _odd("UTF-16", _GOOD.decode().encode("utf-16"), _reads()),
    _odd("byte order mark", b"\xef\xbb\xbf" + _GOOD, _reads()),
    _odd("CRLF", _GOOD.replace(b"\n", b"\r\n"), _reads()),
    _odd("Latin-1 in a name", _GOOD.replace(b"forward", b"vorw\xe4rts"), _reads()),
    _odd("ids above 2**53", document(_HUGE), _reads(NODES + 3)),
    _odd(
        "a quote that is not escaped",
        _GOOD.replace(b"## forward ##", b'## "forward" ##'),
        _reads(NODES - 1, et_node_malformed=1, et_parent_missing=2),
    ),
    _odd(
        "a line break in a name",
        _GOOD.replace(b"## forward ##", b"## for\nward ##"),
        _reads(NODES - 1, et_node_malformed=1, et_parent_missing=2),
    ),
    _odd("bare infinity", _GOOD.replace(b"Infinity", b"inf"), _reads()),
    _odd("every node twice", document(program() + program()[:-1]), _reads(et_node_duplicate=9)),
    _odd("parents that are not there", document([n for n in program() if n["id"] not in (3, 24)]),
        _reads(6, et_parent_missing=3)),
    _odd("nodes without id",
        document(program()).replace(b'{"id": 20, ', b"{").replace(b'"id": 25', b'"id": "x"'),
        _reads(5, et_node_without_id=2)),
    _odd("text lost between two nodes",
        _GOOD[: _GOOD.index(b'"fw_tid"')] + _GOOD[_GOOD.index(b'"name": "aten::t"') :],
        _reads(NODES - 1, et_node_malformed=1, et_parent_missing=1)),
    _odd("no nodes", _HEADER + b"]}", Refused(ReadError, "holds no operators")),
    _odd("not an object among nodes", _HEADER + b"7, []]}",
        Refused(ReadError, "not a proper JSON")),
    _odd("header alone", _HEADER[:-2], Refused(UnknownFormatError, "no format that is known")),
    _odd("NUL bytes", _GOOD.replace(b"\n", b"\x00\n", 5), Refused(UnknownFormatError, "no format")),
)  # fmt: skip
