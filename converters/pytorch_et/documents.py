"""A host execution trace in a file: one document, or several of a restarted observer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.pytorch_et import nodes_decode as decode
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs, json_events, json_text
from chopper_interop.issues import Fault, IssueLog

MALFORMED = Fault.loss_of_events(
    "et-node-malformed", "Pieces of the file that are not a proper JSON object were left out."
)
NOT_CLOSED = Fault.loss(
    "et-not-closed",
    "The file breaks off, as the observer was not stopped: operators that were "
    "still running or to come are missing.",
)
RESTARTED = Fault.info(
    "et-observer-restarted", "The file holds several documents, whose operators follow each other."
)
TEXT_AFTER_END = Fault.loss(
    "et-text-after-end",
    "Text after the end of the document is not another document, and was left out.",
)

_LIST, _OPEN, _CLOSE, _QUOTE, _COLON, _COMMA = b'[{}":,'


@dataclass
class HostTrace:
    """All nodes of a file.

    Parameters
    ----------
    buffer
        Text of the file.
    headers
        Members of each document but its nodes.
    rows
        The nodes, rows of `NODE`, in the order of the text.
    document
        Index of the document that each is of.
    texts
        Names and schemas by number.
    malformed
        Number of pieces that are not nodes.
    """

    buffer: Array
    headers: list[dict[str, Any]] = field(default_factory=list)
    rows: Array = field(default_factory=lambda: np.zeros(0, decode.NODE))
    document: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    texts: list[str] = field(default_factory=list)
    malformed: int = 0


def load(path: Path, issues: IssueLog) -> HostTrace:
    """Read one file; losses go to `issues`.

    Raises
    ------
    ReadError
        It holds no list of nodes.
    """
    buffer = _utf8(inputs.read(path, issues))
    trace = HostTrace(buffer)
    walk = decode.Walk(buffer)
    parts = []
    i, n = json_text.skip_blank(buffer, 0, len(buffer)), len(buffer)
    while i < n and buffer[i] == _OPEN:
        header: dict[str, Any] = {}
        start = _read_header(buffer, i + 1, header)
        if start < 0:
            break
        nodes, i, status = walk.nodes(start)
        trace.headers.append(header)
        parts.append(nodes)
        if status == decode.DONE:
            i = _read_tail(buffer, i, header)
        else:
            issues.add(NOT_CLOSED, example=f"byte {i}")
        i = json_text.skip_blank(buffer, i, n)
    if not parts:
        raise ReadError(
            "it has no list `nodes`",
            path=path,
            hint="it is not a host execution trace of PyTorch, or its writer was interrupted",
        )
    if i < n:
        issues.add(TEXT_AFTER_END, example=f"byte {i}")
    issues.add(RESTARTED, len(parts) - 1)
    trace.rows = np.concatenate(parts)
    trace.document = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    trace.texts = [json_events.unescape(raw) for raw in walk.texts.texts(buffer)]
    trace.malformed = int(walk.malformed[0])
    at = int(walk.malformed_at[0])
    issues.add(MALFORMED, trace.malformed, f"byte {at}")
    return trace


def _utf8(buffer: Any) -> Array:
    """Return the text as UTF-8; other bytes become U+FFFD, so that arguments stay readable."""
    try:
        str(memoryview(buffer), "utf-8")
    except UnicodeDecodeError:
        replaced = str(memoryview(buffer), "utf-8", "replace").encode()
        return np.frombuffer(bytearray(replaced), np.uint8)
    return buffer


def _read_header(buffer: Array, i: int, header: dict[str, Any]) -> int:
    """Read members from `i` on into the header; return where the list of nodes opens, or -1."""
    n = len(buffer)
    while True:
        i = json_text.skip_blank(buffer, i, n)
        if i < n and buffer[i] == _COMMA:
            i = json_text.skip_blank(buffer, i + 1, n)
        key_end, value, end = decode.member(buffer, i, n)
        if key_end <= i or value >= n:
            return -1
        key = json_events.unescape(bytes(buffer[i + 1 : key_end]))
        if key == "nodes" and buffer[value] == _LIST:
            return int(value)
        if end < 0:
            return -1
        try:
            header[key] = msgspec.json.decode(bytes(buffer[value:end]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            header[key] = None
        i = end


def _read_tail(buffer: Array, i: int, header: dict[str, Any]) -> int:
    """Read the members after the list of nodes into the header; return the document's end."""
    n = len(buffer)
    while True:
        i = json_text.skip_blank(buffer, i, n)
        if i < n and buffer[i] == _COMMA:
            i = json_text.skip_blank(buffer, i + 1, n)
        if i < n and buffer[i] == _CLOSE:
            return i + 1
        key_end, value, end = decode.member(buffer, i, n)
        if key_end <= i or end < 0:
            return int(i)
        text = bytes(buffer[value:end])
        key = json_events.unescape(bytes(buffer[i + 1 : key_end]))
        header[key] = int(text) if text.isdigit() else json_events.unescape(text)
        i = end
