"""A Kineto file as columns: events, header, and who is who among pids and tids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.converters import kineto_labels, kineto_pairs
from chopper_interop.converters.kineto_numbers import whole
from chopper_interop.converters.kineto_tables import CATEGORIES
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs, jsonscan, jsontext
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array

MALFORMED = Fault(
    "event-malformed",
    Severity.LOSS,
    "Pieces of the file that are no proper JSON object were left out.",
    events=True,
)
NOT_CLOSED = Fault(
    "file-not-closed",
    Severity.LOSS,
    "The file breaks off: events that were still to come are missing.",
)
NO_BASE = Fault(
    "time-base-missing",
    Severity.ERROR,
    "The file breaks off before it says what its times count from: dates are wrong by that.",
)
NAME_BYTES = Fault(
    "name-not-utf8",
    Severity.LOSS,
    "Names with bytes that are no UTF-8: U+FFFD stands for each of them.",
)
BOUND_FLOW = Fault(
    "flow-by-bind-id",
    Severity.LOSS,
    "Arrows that spans tell of by a `bind_id` of their own were left out.",
)
SECOND_LIST = Fault(
    "events-of-second-list",
    Severity.LOSS,
    "Events of a second list, or of a second document behind the first, were left out.",
    events=True,
)
BEHIND_END = Fault(
    "bytes-behind-end", Severity.LOSS, "Bytes behind the end of the document were left out."
)
HEADER_BROKEN = Fault(
    "header-malformed", Severity.LOSS, "A part of the file's header is no proper JSON."
)

_LIST, _QUOTE, _COLON = b'[":'
_END_OBJECT = ord("}")
_NUMBER = re.compile(r"(?:stream\s+)?(?:(-?\d{1,18})|0x([0-9a-fA-F]{1,15}))\s*", re.ASCII)


@dataclass(frozen=True)
class TraceFile:
    """One Kineto file.

    Parameters
    ----------
    path
        Where it lies.
    header
        Everything beside ``traceEvents``.
    events
        The events as `jsonscan` found them; pids and tids that were texts are resolved.
    kind
        For each event, its `Kind`; 0 where its category is not known.
    texts
        The distinct strings of the events.
    labels
        Made-up id → text, for pids and tids that are no numbers.
    left_out
        Number of events that are not among `events`.
    """

    path: Path
    header: dict[str, Any]
    events: jsonscan.Events
    kind: Array
    texts: list[str]
    labels: dict[int, str]
    left_out: int = 0

    @property
    def rows(self) -> Array:
        """The events' rows (`jsonscan.EVENT`)."""
        return self.events.rows

    @property
    def base_ns(self) -> int:
        """What the events' times count from, epoch nanoseconds."""
        stated = self.header.get("baseTimeNanoseconds") or 0
        base = whole(stated)
        if base is None:
            raise ReadError(
                f"baseTimeNanoseconds is {stated!r:.40}, from which no time can be counted",
                path=self.path,
            )
        return base

    @property
    def since_boot(self) -> bool:
        """Whether times count from the node's boot, as in the traces of rocmProfileData.

        These are lists that begin with an empty event (``rpd2tracing.py``).
        """
        start = bytes(self.events.buffer[:_BEGIN])
        timed = self.rows["ts"][self.rows["has"] & jsonscan.HAS_TS != 0]
        return (
            re.match(rb"\s*\[\s*\{\s*\}\s*,", start) is not None
            and bool(timed.size)
            and timed.max() < _SINCE_1970_NS
        )

    @property
    def is_empty(self) -> Array:
        """Which events are ``{}``."""
        behind = np.minimum(self.rows["at"] + 1, max(len(self.events.buffer) - 1, 0))
        return np.asarray(self.events.buffer[behind] == _END_OBJECT)

    def phase(self, *letters: str) -> Array:
        """Which events are of these phases (``ph``)."""
        return np.isin(self.rows["ph"], [ord(letter) for letter in letters])

    def numbers(self, which: Array, *keys: str) -> tuple[Array, Array]:
        """Integer arguments of the events at these rows; see `jsonscan.extract`."""
        rows = self.rows[which]
        return jsonscan.extract(self.events.buffer, rows["args_at"], rows["args_len"], keys)

    def args(self, row: int) -> dict[str, Any]:
        """All arguments of one event; empty where they are no proper JSON."""
        event = self.rows[row]
        raw = bytes(self.events.buffer[event["args_at"] : event["args_at"] + event["args_len"]])
        try:
            return dict(msgspec.json.decode(raw)) if raw else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}

    def name(self, row: int) -> str:
        """Name of one event."""
        number = int(self.rows[row]["name"])
        return self.texts[number] if number >= 0 else ""


def load(path: Path, issues: IssueLog) -> TraceFile:
    """Read one file, noting what was lost.

    Raises
    ------
    ReadError
        It holds no list of events, or an empty one.
    """
    buffer = inputs.read(path, issues)
    walked = _walk(path, buffer, issues)
    events = walked.events
    _note_losses(walked, issues)
    if not len(events.rows):
        raise ReadError(
            "it holds no events", path=path, hint="was the profiler stopped before it was exported?"
        )
    texts = events.texts()
    _note_replaced(events.rows, texts, issues)
    labels = _resolve_ids(events.rows, texts)
    kineto_pairs.close(events.rows, issues)
    kinds = np.array([CATEGORIES.get(t.lower(), 0) for t in texts] + [0], np.uint8)
    kind = kinds[events.rows["cat"]]
    file = TraceFile(path, walked.header, events, kind, texts, labels, walked.left_out)
    kineto_labels.tell(file)
    if (file.kind[file.phase("X")] == 0).any():  # not PyTorch's, which has no such arrows
        issues.add(BOUND_FLOW, len(_BOUND.findall(buffer.data)))
    return file


_BEGIN = 64
_BOUND = re.compile(rb'"bind_id"\s*:')


def header_of(head: bytes) -> bool:
    """Whether a file that begins so is a trace of events as Kineto or Chrome write it."""
    start = head.lstrip()
    if start[:1] == b"[":
        # rocmProfileData's begins with an empty event
        return re.match(rb'\[\s*(?:\{\s*\}\s*,\s*)?\{[^{}]*"ph"\s*:\s*"', start) is not None
    if _ROCPROF_V1.match(start):
        return False
    return start[:1] == b"{" and any(key in head for key in _TELLING)


_ROCPROF_V1 = re.compile(
    rb'\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}\s*,\s*\{"args":\{"name":"[^"\n]*"\},"ph":"M","pid":\d+,'
    rb'"name":"process_name","sort_index":'
)
"""How a Chrome trace of rocprof v1 begins: with an empty event, and labels of sections."""

_TELLING = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"baseTimeNanoseconds"')


@dataclass
class _Walked:
    """What a walk over a document found."""

    header: dict[str, Any]
    events: jsonscan.Events
    whole: bool
    """Whether the document has its end."""
    end: int
    left_out: int = 0


def _walk(path: Path, buffer: Array, issues: IssueLog) -> _Walked:
    """Header and events of a file in object or list form, and what stands behind its end."""
    walked = _document(path, buffer, issues)
    more = walked
    start = 0
    for _ in range(_MOST_DOCUMENTS):
        start = jsontext.blank(buffer, start + more.end, len(buffer))
        rest = buffer[start:]
        if not more.whole or not rest.any():  # zeros are padding of file systems
            break
        try:
            more = _document(path, rest, IssueLog())
        except ReadError:
            issues.add(BEHIND_END, len(rest), f"byte {start}")
            break
        found = len(more.events.rows) + more.events.malformed + more.left_out
        walked.left_out += found
        issues.add(SECOND_LIST, found, f"byte {start}")
    return walked


_MOST_DOCUMENTS = 64


def _document(path: Path, buffer: Array, issues: IssueLog) -> _Walked:
    n = len(buffer)
    i = jsontext.blank(buffer, 0, n)
    if i == n:
        raise ReadError("it is empty", path=path)
    if buffer[i] == _LIST:
        events = jsonscan.scan(buffer, i)
        return _Walked({}, events, events.closed, events.end)
    header: dict[str, Any] = {}
    lists: list[jsonscan.Events] = []
    i += 1
    broken = buffer[i - 1] != jsontext.OPEN
    while not broken:
        member = _member(buffer, i, n)
        if member is None:
            break
        key, value = member
        if key == "traceEvents" and value < n and buffer[value] == _LIST:
            lists.append(jsonscan.scan(buffer, value))
            i = lists[-1].end
            continue
        i = jsontext.skip_value(buffer, value, n) if value < n else -1
        if i < 0:
            issues.add(HEADER_BROKEN, example=key)
            broken = True
            break
        _take(header, key, bytes(buffer[value:i]), issues)
    if not lists:
        raise ReadError(
            "it has no list `traceEvents`",
            path=path,
            at=f"byte {i}" if i > 0 else None,
            hint="it is no trace of the PyTorch profiler, or its writer was interrupted",
        )
    end = n if broken else jsontext.blank(buffer, i, n)
    whole = end < n and buffer[end] == jsontext.CLOSE
    if not (whole or broken):
        issues.add(BEHIND_END, n - end, f"byte {end}")
    left_out = sum(len(more.rows) + more.malformed for more in lists[1:])
    issues.add(SECOND_LIST, left_out)
    return _Walked(header, lists[0], whole, end + 1, left_out)


def _member(buffer: Array, i: int, n: int) -> tuple[str, int] | None:
    """Key and offset of the value of the next member of the top-level object; None at its end."""
    i = jsontext.blank(buffer, i, n)
    if i < n and buffer[i] == ord(","):
        i = jsontext.blank(buffer, i + 1, n)
    if i >= n or buffer[i] != _QUOTE:
        return None
    end = jsontext.skip_string(buffer, i, n)
    colon = jsontext.blank(buffer, end, n) if end > 0 else n
    if colon >= n or buffer[colon] != _COLON:
        return None
    key = jsonscan.unescape(bytes(buffer[i + 1 : end - 1]))
    return key, jsontext.blank(buffer, colon + 1, n)


def _take(header: dict[str, Any], key: str, raw: bytes, issues: IssueLog) -> None:
    try:
        header[key] = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        issues.add(HEADER_BROKEN, example=key)


def _note_losses(walked: _Walked, issues: IssueLog) -> None:
    events = walked.events
    at = f"byte {events.malformed_at[0]}" if events.malformed_at else ""
    issues.add(MALFORMED, events.malformed, at)
    if not events.closed:
        issues.add(NOT_CLOSED, example=f"byte {events.end}")
    if not walked.whole and "baseTimeNanoseconds" not in walked.header:
        timed = events.rows["ts"][events.rows["has"] & jsonscan.HAS_TS != 0]
        if timed.size and timed.max() < _SINCE_1970_NS and "schemaVersion" in walked.header:
            issues.add(NO_BASE)


_SINCE_1970_NS = 315_360_000 * 10**9
"""Ten years: times below it do not count from 1970 themselves."""


def _note_replaced(rows: Array, texts: list[str], issues: IssueLog) -> None:
    """Count names of which bytes were replaced."""
    replaced = [number for number, text in enumerate(texts) if "\N{REPLACEMENT CHARACTER}" in text]
    if replaced:
        which = np.flatnonzero(np.isin(rows["name"], replaced))
        if which.size:
            text = texts[int(rows["name"][which[0]])]
            at = rows["at"][which[0]]
            issues.add(NAME_BYTES, len(which), f"{text[:60]!r} at byte {at}")


def _resolve_ids(rows: Array, texts: list[str]) -> dict[int, str]:
    """Make numbers of pids and tids that are texts; the texts of those that say no number."""
    labels: dict[int, str] = {}
    for field in ("pid", "tid", "id"):
        values = rows[field]
        textual = values < jsonscan.TEXT + len(texts)
        for value in np.unique(values[textual]):
            text = texts[int(value) - jsonscan.TEXT]
            number = _NUMBER.fullmatch(text)
            if number:
                decimal, hexadecimal = number.groups()
                rows[field][values == value] = int(decimal or hexadecimal, 10 if decimal else 16)
            else:
                labels[int(value)] = text
    return labels
