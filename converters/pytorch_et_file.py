"""A host execution trace as it lies in a file: one document, or several of a restarted observer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.converters import pytorch_et_decode as decode
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs, jsonscan, jsontext
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array

MALFORMED = Fault(
    "et-node-malformed",
    Severity.LOSS,
    "Pieces of the file that are no proper JSON object were left out.",
    events=True,
)
NOT_CLOSED = Fault(
    "et-not-closed",
    Severity.LOSS,
    "The file breaks off, as the observer was not stopped: operators that were still running or "
    "to come are missing.",
)
RESTARTED = Fault(
    "et-observer-restarted",
    Severity.INFO,
    "The file holds further documents behind the first, whose operators come behind those before.",
)
BEHIND = Fault(
    "et-text-behind",
    Severity.LOSS,
    "Text behind the end of the document is none, and was left out.",
)

_LIST, _OPEN, _CLOSE, _QUOTE, _COLON, _COMMA = b'[{}":,'


@dataclass
class HostTrace:
    """All nodes of a file.

    Parameters
    ----------
    buffer
        The text.
    headers
        What stands beside the nodes, of each document.
    rows
        The nodes (`pytorch_et_decode.NODE`), in the order of the text.
    document
        Which document each is of.
    texts
        Names and schemas by number.
    malformed
        How many pieces were no node.
    """

    buffer: Array
    headers: list[dict[str, Any]] = field(default_factory=list)
    rows: Array = field(default_factory=lambda: np.zeros(0, decode.NODE))
    document: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    texts: list[str] = field(default_factory=list)
    malformed: int = 0


def load(path: Path, issues: IssueLog) -> HostTrace:
    """Read one file, noting what was lost.

    Raises
    ------
    ReadError
        It holds no list of nodes.
    """
    buffer = _utf8(inputs.read(path, issues))
    found = HostTrace(buffer)
    walk = decode.Walk(buffer)
    parts = []
    i, n = jsontext.blank(buffer, 0, len(buffer)), len(buffer)
    while i < n and buffer[i] == _OPEN:
        header: dict[str, Any] = {}
        start = _members(buffer, i + 1, header)
        if start < 0:
            break
        nodes, i, status = walk.nodes(start)
        found.headers.append(header)
        parts.append(nodes)
        if status == decode.DONE:
            i = _behind(buffer, i, header)
        else:
            issues.add(NOT_CLOSED, example=f"byte {i}")
        i = jsontext.blank(buffer, i, n)
    if not parts:
        raise ReadError(
            "it has no list `nodes`",
            path=path,
            hint="it is no host execution trace of PyTorch, or its writer was interrupted",
        )
    if i < n:
        issues.add(BEHIND, example=f"byte {i}")
    issues.add(RESTARTED, len(parts) - 1)
    found.rows = np.concatenate(parts)
    found.document = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    found.texts = [jsonscan.unescape(raw) for raw in walk.texts.texts(buffer)]
    found.malformed = int(walk.malformed[0])
    at = int(walk.malformed_at[0])
    issues.add(MALFORMED, found.malformed, f"byte {at}")
    return found


def _utf8(buffer: Any) -> Array:
    """The text as UTF-8; what is none is replaced, so that arguments stay readable."""
    try:
        str(memoryview(buffer), "utf-8")
    except UnicodeDecodeError:
        replaced = str(memoryview(buffer), "utf-8", "replace").encode()
        return np.frombuffer(bytearray(replaced), np.uint8)
    return buffer


def _members(buffer: Array, i: int, header: dict[str, Any]) -> int:
    """Take the members from `i` on into the header; where the list of nodes opens, or -1."""
    n = len(buffer)
    while True:
        i = jsontext.blank(buffer, i, n)
        if i < n and buffer[i] == _COMMA:
            i = jsontext.blank(buffer, i + 1, n)
        key_end, value, end = decode.member(buffer, i, n)
        if key_end <= i or value >= n:
            return -1
        key = jsonscan.unescape(bytes(buffer[i + 1 : key_end]))
        if key == "nodes" and buffer[value] == _LIST:
            return int(value)
        if end < 0:
            return -1
        try:
            header[key] = msgspec.json.decode(bytes(buffer[value:end]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            header[key] = None
        i = end


def _behind(buffer: Array, i: int, header: dict[str, Any]) -> int:
    """Take what stands between the list of nodes and the document's end; where that is."""
    n = len(buffer)
    while True:
        i = jsontext.blank(buffer, i, n)
        if i < n and buffer[i] == _COMMA:
            i = jsontext.blank(buffer, i + 1, n)
        if i < n and buffer[i] == _CLOSE:
            return i + 1
        key_end, value, end = decode.member(buffer, i, n)
        if key_end <= i or end < 0:
            return int(i)
        text = bytes(buffer[value:end])
        key = jsonscan.unescape(bytes(buffer[i + 1 : key_end]))
        header[key] = int(text) if text.isdigit() else jsonscan.unescape(text)
        i = end
