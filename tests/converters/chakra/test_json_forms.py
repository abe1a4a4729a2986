"""ETs as `chakra_jsonizer` writes them are what protobuf's own conversion of JSON makes of them."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, proto

from chopper_interop.converters.chakra import json as json_forms
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.chakra import message_class

ATTRIBUTES: list[Any] = [
    {"name": "a", "int64Val": "-5"}, {"name": "a", "int64Val": 5}, {"name": "a", "boolVal": False},
    {"name": "a", "doubleVal": 2.5}, {"name": "a", "doubleVal": 2}, {"name": "a", "doubleVal": "NaN"},
    {"name": "a", "doubleVal": float("inf")}, {"name": "a", "stringVal": "\u00e9\U0001d11e"},
    {"name": "a", "stringVal": "\ud800"}, {"name": "a", "int32Val": 1 << 31}, {"name": "a", "uint64Val": -1},
    {"name": "a", "int64List": {"values": ["1", "2"]}}, {"int64Val": "1", "name": "a"}, {"name": "a"},
    {"stringVal": "a", "string_val": "b"}, {"name": "a", "int64Val": None}, {"name": None, "int64Val": "1"},
    {"name": "a", "floatVal": 1.5}, {"name": "a", "boolVal": "true"}, {"name": "a", "unknown": 1},
    {"name": "a", "int64Val": "1", "docString": "d"}, ["name", "int64Val"], "ab", None, 5,
]  # fmt: skip
NODES: list[Any] = [
    {"id": "5", "name": "n", "type": "COMP_NODE", "ctrlDeps": ["1"], "dataDeps": ["2", "3"],
     "startTimeMicros": "7", "durationMicros": "8", "attr": [{"name": "a", "int64Val": "1"}]},
    {"id": 5.0, "type": 4}, {"id": " 5"}, {"id": "5_0"}, {"id": "1e3"}, {"id": "\t5"}, {"id": True},
    {"id": None, "name": None}, {"id": "-1"}, {"id": str(1 << 64)}, {"id": []}, {"name": 5}, {"name": "\ud800"},
    {"type": "NO"}, {"type": "4"}, {"id": 1, "unknown": 5}, {"ctrlDeps": "12"}, {"ctrlDeps": None},
    {"ctrl_deps": ["1"]}, {"ctrlDeps": ["1"], "ctrl_deps": ["2"]}, {"attr": None}, {"attr": {}}, {"attr": "ab"},
    {"attr": 5}, {"attr": []}, {"version": "1"}, {"inputs": {"values": "v"}}, {}, 5, "a", [1], None, True,
    *({"id": "1", "attr": [attribute, {"name": "last", "boolVal": True}]} for attribute in ATTRIBUTES),
]  # fmt: skip


@pytest.mark.parametrize("node", NODES)
def test_nodes_are_those_of_protobuf(node: Any) -> None:
    text = json.dumps({"version": "1"}) + json.dumps(node)
    expected, lost = io.BytesIO(), 0
    metadata = message_class("GlobalMetadata")(version="1")
    proto.serialize_length_prefixed(metadata, expected)
    try:
        made = json_format.ParseDict(
            json.loads(json.dumps(node)), message_class("Node")(), ignore_unknown_fields=True
        )
        proto.serialize_length_prefixed(made, expected)
    except (json_format.ParseError, AttributeError, TypeError, ValueError):
        lost = 1
    issues = IssueLog("x")
    read, count = json_forms.messages(np.frombuffer(bytearray(text.encode()), np.uint8), issues)
    assert (read.tobytes(), count) == (expected.getvalue(), lost)
