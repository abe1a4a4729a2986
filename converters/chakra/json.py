"""ETs as JSON, converted to protobuf messages.

Two forms: ``workload_graph``, which MLCommons' feeder reads (one object; keys in several
spellings), and the output of ``chakra_jsonizer``: protobuf's JSON of GlobalMetadata and of each
node, one after the other, which is no JSON document.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from google.protobuf import proto

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra.files import JSON_GRAPH
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.chakra import NodeType, message_class

MALFORMED = Fault.loss_of_events(
    "et-json-malformed", "Nodes that are no valid JSON objects of an ET were left out."
)
VALUE = Fault.loss(
    "et-json-value", "Members of nodes whose value does not fit their name were left out."
)

_UINT64_MAX = (1 << 64) - 1

MEMBERS: dict[str, str] = {
    "id": "id", "name": "name", "nodetype": "type", "type": "type", "datadeps": "data_deps",
    "ctrldeps": "ctrl_deps", "runtime": "duration_micros", "duration": "duration_micros",
    "durationmicros": "duration_micros", "starttimemicros": "start_time_micros",
}  # fmt: skip
"""Member of a node in ``workload_graph``, in lower case and without underscores → field."""
_TYPES = frozenset(int(kind) for kind in NodeType)
FLAGS = ("is_cpu_op",)
"""Members that are truth values, however they are written."""


def messages(buffer: Array, issues: IssueLog) -> tuple[Array, int]:
    """Convert to the bytes of an equal ET; also count the nodes that could not be converted."""
    text = codecs.decode(buffer.data, "utf-8", "replace")
    is_graph = JSON_GRAPH.match(bytes(buffer[: inputs.HEAD_BYTES])) is not None
    out, lost, unfitting_members = io.BytesIO(), 0, 0
    for converted in _graph_messages(text) if is_graph else _jsonizer_messages(text):
        if converted is None:
            lost += 1
            continue
        built, unfitting = converted
        unfitting_members += unfitting
        proto.serialize_length_prefixed(built, out)
    issues.add(MALFORMED, lost)
    issues.add(VALUE, unfitting_members)
    return np.frombuffer(out.getbuffer(), np.uint8), lost


def _graph_messages(text: str) -> Iterator[tuple[Any, int] | None]:
    """Metadata and nodes of ``workload_graph``; None for each piece that is no node."""
    start = text.index("[", text.index('"workload_graph"')) + 1
    facts = {k: v for k, v in _members(text).items() if isinstance(v, str | int | float)}
    metadata = message_class("GlobalMetadata")(version=_text(facts.pop("schema", "workload_graph")))
    for name, value in facts.items():
        metadata.attr.add(name=_text(name), string_val=_text(value))
    yield metadata, 0
    for value in _values(text, start, _LISTED):
        yield _graph_node(value) if isinstance(value, dict) else None


def _members(text: str) -> dict[str, Any]:
    """Members of a JSON object, without lists and objects; none if the text is not one."""
    try:  # nodes are not decoded: all at once they take ten times their text
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        raw = {k: bytes(v) for k, v in members.items() if bytes(memoryview(v)[:1]) not in _NESTED}
        return {name: json.loads(value) for name, value in raw.items()}
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:  # which allows more: NaN, and half a surrogate pair
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return {}


def _text(value: str | float) -> str:
    """Text of a fact; a question mark stands for half a surrogate pair, which protobuf refuses."""
    return str(value).encode("utf-8", "replace").decode()


def _jsonizer_messages(text: str) -> Iterator[tuple[Any, int] | None]:
    """GlobalMetadata and nodes of the jsonizer; None for each piece that is neither."""
    name = "GlobalMetadata"
    for value in _values(text, 0, _ABUTTING):
        kind = message_class(name)
        name = "Node"
        built = _as_jsonizer_writes(value, kind) or _as_protobuf_allows(value, kind)
        yield None if built is None else (built, 0)


def _as_protobuf_allows(value: Any, kind: Any) -> Any:
    """A message of any JSON that protobuf allows; None if it is none."""
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(value, kind(), ignore_unknown_fields=True)
    except (json_format.ParseError, AttributeError, TypeError, ValueError, RecursionError):
        return None


def _as_jsonizer_writes(value: Any, kind: Any) -> Any:
    """A message whose members are all written as the jsonizer does; else None.

    protobuf's own conversion of JSON is written in Python, and takes five times as long.
    """
    try:
        fields, attributes = {}, []
        for key, member in value.items():
            if key == "attr":
                attributes = _of_type(member, list)
            else:
                field, converted = _FIELDS[key]
                fields[field] = converted(member)
        built = kind(**fields)
        add = built.attr.add
        for attribute in attributes:
            _, key = attribute  # two members: the first has no other name
            field, converted = _VALUES[key]
            add(name=_of_type(attribute["name"], str), **{field: converted(attribute[key])})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return built


def _of_type(value: Any, kind: type) -> Any:
    """The value, if it is of a type itself; raises `TypeError` if not."""
    if type(value) is not kind:
        raise TypeError("of another type")
    return value


def _integer(value: Any) -> int:
    """A whole number, which protobuf writes as a text if it may have 64 bits."""
    if type(value) is str and " " not in value:
        return int(value)
    return int(_of_type(value, int))


def _integers(value: Any) -> list[int]:
    """Whole numbers."""
    return [_integer(number) for number in _of_type(value, list)]


def _real(value: Any) -> float:
    """A finite number."""
    if not math.isfinite(_of_type(value, float)):
        raise ValueError("not finite")
    return float(value)


_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "id": ("id", _integer), "name": ("name", lambda v: _of_type(v, str)),
    "type": ("type", lambda v: _of_type(v, str)), "version": ("version", lambda v: _of_type(v, str)),
    "ctrlDeps": ("ctrl_deps", _integers), "dataDeps": ("data_deps", _integers),
    "startTimeMicros": ("start_time_micros", _integer),
    "durationMicros": ("duration_micros", _integer),
}  # fmt: skip
"""Member as the jsonizer writes it → field, and the value."""
_VALUES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "boolVal": ("bool_val", lambda v: _of_type(v, bool)), "doubleVal": ("double_val", _real),
    "stringVal": ("string_val", lambda v: _of_type(v, str)),
    **{f"{kind}Val": (f"{kind}_val", _integer) for kind in ("int32", "int64", "uint32", "uint64")},
}  # fmt: skip
"""The same of attributes."""


_BETWEEN = re.compile(r"[\s,]*")
_NESTED = (b"[", b"{")
_LISTED, _ABUTTING = re.compile(r"\}\s*,\s*(?=\{)"), re.compile(r"\}\s*(?=\{)")
"""Separators of nodes, by which reading goes on after a broken one; attributes are objects too."""


def _values(text: str, at: int, between: re.Pattern[str]) -> Iterator[Any]:
    """JSON values one after the other, to the end of a list or of the text; None for broken ones."""
    parser = json.JSONDecoder()
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if at >= len(text) or text[at] == "]" or text[at] == "\0":
            return
        try:
            value, at = parser.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            following = between.search(text, at + 1)
            if following is None:
                return
            at = following.end()
            continue
        yield value


def _graph_node(members: dict[str, Any]) -> tuple[Any, int]:
    """Convert a node of ``workload_graph``; also count its members whose values do not fit."""
    node, unfitting = message_class("Node")(), 0
    for key, value in members.items():
        field = _field(key)
        try:
            if field is None:
                _add_attribute(node, key, value)
            elif field in ("data_deps", "ctrl_deps"):
                getattr(node, field).extend([_unsigned(v) for v in value])
            elif field == "name":
                node.name = str(value)
            elif field == "type":
                node.type = _node_type(value)
            else:
                setattr(node, field, _unsigned(value))
        except (ValueError, TypeError, OverflowError):
            unfitting += 1
    return node, unfitting


@lru_cache(maxsize=1024)
def _field(key: str) -> str | None:
    """Field of a member; None of an attribute."""
    return MEMBERS.get(key.lower().replace("_", ""))


def _node_type(value: Any) -> int:
    """Number of a type given by number or name; 0 (INVALID) if there is no such type."""
    if isinstance(value, str) and not value.isdigit():
        return int(NodeType.__members__.get(value.upper().removesuffix("_NODE"), 0))
    number = _unsigned(value)
    return number if number in _TYPES else 0


def _add_attribute(node: Any, key: str, value: Any) -> None:
    """Add a member that is no field of a node as an attribute."""
    if isinstance(value, bool) or key in FLAGS:
        node.attr.add(name=key, bool_val=bool(value))
    elif isinstance(value, int):
        node.attr.add(name=key, int64_val=value)
    elif isinstance(value, float):
        node.attr.add(name=key, double_val=value)
    elif value is not None:
        node.attr.add(name=key, string_val=value if isinstance(value, str) else json.dumps(value))


def _unsigned(value: Any) -> int:
    """Convert to an integer of 64 bits without sign; raises `ValueError` if it is none."""
    if isinstance(value, bool):
        raise ValueError("a truth value")  # noqa: TRY004 - all that does not fit is one error
    number = int(value)
    if not 0 <= number <= _UINT64_MAX or number != float(value):
        raise ValueError("no whole number")
    return number
