"""ETs as JSON, rewritten as the messages that they tell of.

Two forms: ``workload_graph``, which MLCommons' feeder reads (one object; keys in several
spellings), and the output of ``chakra_jsonizer``: protobuf's JSON of GlobalMetadata and of each
node, one behind the other, which is no JSON document.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.converters.chakra_old import length
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.chakra import NodeType, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.columns.types import Array

MALFORMED = Fault(
    "et-json-malformed",
    Severity.LOSS,
    "Nodes that are no proper JSON objects of an ET were left out.",
    events=True,
)
VALUE = Fault(
    "et-json-value",
    Severity.LOSS,
    "Members of nodes whose value does not fit their name were left out.",
)

_GRAPH = re.compile(rb'\s*\{[^{}\[\]]*"workload_graph"\s*:\s*\[')
_FIRST = re.compile(rb'\s*\{\s*(?:"version"\s*:|"attr"\s*:\s*\[|\}\s*\{)')
_NODE = re.compile(
    rb'\}\s*\{[^{}\[\]]*"type"\s*:\s*"(?:INVALID|METADATA|MEM_LOAD|MEM_STORE|COMP|COMM_\w+)_NODE"'
)
_LONGEST = (1 << 64) - 1

MEMBERS: dict[str, str] = {
    "id": "id",
    "name": "name",
    "nodetype": "type",
    "type": "type",
    "datadeps": "data_deps",
    "ctrldeps": "ctrl_deps",
    "runtime": "duration_micros",
    "duration": "duration_micros",
    "durationmicros": "duration_micros",
    "starttimemicros": "start_time_micros",
}
"""Member of a node in ``workload_graph``, in lower case and without underscores → field."""
FLAGS = ("is_cpu_op",)


def is_json(head: bytes) -> bool:
    """Whether a file that begins so is an ET as JSON."""
    if _GRAPH.match(head):
        return True
    return _FIRST.match(head) is not None and _NODE.search(head) is not None


def messages(buffer: Array, issues: IssueLog) -> tuple[Array, int]:
    """The bytes of an ET that says the same; and how many nodes could not be made."""
    text = buffer.tobytes().decode("utf-8", "replace")
    made = _graph(text) if _GRAPH.match(bytes(buffer[: 1 << 16])) else _jsonized(text)
    out, lost, members, place = bytearray(), 0, 0, ""
    for about in made:
        built, strange = (None, 0) if about is None else about
        members += strange
        if built is None:
            lost += 1
            place = place or f"behind byte {len(out)} of nodes"
            continue
        raw = built.SerializeToString()
        out += length(len(raw)) + raw
    issues.add(MALFORMED, lost)
    issues.add(VALUE, members)
    return np.frombuffer(bytes(out), np.uint8), lost


def _graph(text: str) -> Iterator[tuple[Any, int] | None]:
    """Metadata and nodes of ``workload_graph``; None for each piece that is no node."""
    start = text.index("[", text.index('"workload_graph"')) + 1
    facts = {}
    try:
        document = json.loads(text)
        facts = {k: v for k, v in document.items() if isinstance(v, str | int | float)}
    except (ValueError, RecursionError):
        pass
    metadata = message("GlobalMetadata")(version=str(facts.pop("schema", "workload_graph")))
    for name, value in facts.items():
        metadata.attr.add(name=name, string_val=str(value))
    yield metadata, 0
    for found in _objects(text, start, _LISTED):
        yield _described(found) if isinstance(found, dict) else None


def _jsonized(text: str) -> Iterator[tuple[Any, int] | None]:
    """GlobalMetadata and nodes of the jsonizer."""
    from google.protobuf import json_format

    name = "GlobalMetadata"
    for found in _objects(text, 0, _ABUTTING):
        made = message(name)()
        name = "Node"
        try:
            yield json_format.ParseDict(found, made, ignore_unknown_fields=True), 0
        except (json_format.ParseError, AttributeError, TypeError, ValueError, RecursionError):
            yield None


_BETWEEN = re.compile(r"[\s,]*")
_LISTED, _ABUTTING = re.compile(r"\}\s*,\s*(?=\{)"), re.compile(r"\}\s*(?=\{)")
"""What stands between nodes, in which attributes are objects as well."""


def _objects(text: str, at: int, between: re.Pattern[str]) -> Iterator[Any]:
    """Values one behind the other, to the end of a list or of the text; None for broken ones."""
    parser = json.JSONDecoder()
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if at >= len(text) or text[at] == "]" or text[at] == "\0":
            return
        try:
            found, at = parser.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            following = between.search(text, at + 1)
            if following is None:
                return
            at = following.end()
            continue
        yield found


def _described(found: dict[str, Any]) -> tuple[Any, int]:
    """A node of ``workload_graph``, and how many of its members could not be taken."""
    made, strange = message("Node")(), 0
    for key, value in found.items():
        field = MEMBERS.get(key.lower().replace("_", ""))
        try:
            if field is None:
                _attribute(made, key, value)
            elif field in ("data_deps", "ctrl_deps"):
                getattr(made, field).extend([_whole(v) for v in value])
            elif field == "name":
                made.name = str(value)
            elif field == "type":
                made.type = _type(value)
            else:
                setattr(made, field, _whole(value))
        except (ValueError, TypeError, OverflowError):
            strange += 1
    return made, strange


def _type(value: Any) -> int:
    if isinstance(value, str) and not value.isdigit():
        return int(NodeType[value.upper().removesuffix("_NODE")]) if _known(value) else 0
    found = _whole(value)
    return found if found in set(NodeType) else 0


def _known(value: str) -> bool:
    return value.upper().removesuffix("_NODE") in NodeType.__members__


def _attribute(made: Any, key: str, value: Any) -> None:
    """A member that is no field of a node, as an attribute."""
    if isinstance(value, bool) or key in FLAGS:
        made.attr.add(name=key, bool_val=bool(value))
    elif isinstance(value, int):
        made.attr.add(name=key, int64_val=value)
    elif isinstance(value, float):
        made.attr.add(name=key, double_val=value)
    elif value is not None:
        made.attr.add(name=key, string_val=value if isinstance(value, str) else json.dumps(value))


def _whole(value: Any) -> int:
    """A number from 0 on; raises `ValueError` where it is none."""
    if isinstance(value, bool):
        raise ValueError("a truth value")  # noqa: TRY004 - all that does not fit is one error
    found = int(value)
    if not 0 <= found <= _LONGEST or found != float(value):
        raise ValueError("no whole number")
    return found
