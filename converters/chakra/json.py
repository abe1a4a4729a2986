"""ETs as JSON, converted to protobuf messages.

Two forms: ``workload_graph``, which MLCommons' feeder reads (one object; keys in several
spellings), and the output of ``chakra_jsonizer``: protobuf's JSON of GlobalMetadata and of each
node, one after the other, which is no JSON document.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

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
FLAGS = ("is_cpu_op",)
"""Members that are truth values, however they are written."""


def messages(buffer: Array, issues: IssueLog) -> tuple[Array, int]:
    """Convert to the bytes of an equal ET; also count the nodes that could not be converted."""
    text = buffer.tobytes().decode("utf-8", "replace")
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
    facts = {}
    try:
        document = json.loads(text)
        facts = {k: v for k, v in document.items() if isinstance(v, str | int | float)}
    except (ValueError, RecursionError):
        pass
    metadata = message_class("GlobalMetadata")(version=_text(facts.pop("schema", "workload_graph")))
    for name, value in facts.items():
        metadata.attr.add(name=_text(name), string_val=_text(value))
    yield metadata, 0
    for value in _values(text, start, _LISTED):
        yield _graph_node(value) if isinstance(value, dict) else None


def _text(value: str | float) -> str:
    """Text of a fact; a question mark stands for half a surrogate pair, which protobuf refuses."""
    return str(value).encode("utf-8", "replace").decode()


def _jsonizer_messages(text: str) -> Iterator[tuple[Any, int] | None]:
    """GlobalMetadata and nodes of the jsonizer; None for each piece that is neither."""
    from google.protobuf import json_format

    name = "GlobalMetadata"
    for value in _values(text, 0, _ABUTTING):
        empty = message_class(name)()
        name = "Node"
        try:
            yield json_format.ParseDict(value, empty, ignore_unknown_fields=True), 0
        except (json_format.ParseError, AttributeError, TypeError, ValueError, RecursionError):
            yield None


_BETWEEN = re.compile(r"[\s,]*")
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
        field = MEMBERS.get(key.lower().replace("_", ""))
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


def _node_type(value: Any) -> int:
    """Number of a type given by number or name; 0 (INVALID) if there is no such type."""
    if isinstance(value, str) and not value.isdigit():
        return int(NodeType.__members__.get(value.upper().removesuffix("_NODE"), 0))
    number = _unsigned(value)
    return number if number in set(NodeType) else 0


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
