"""Chrome traces of rocprof v1 (NAME.json), valid JSON or not.

Exact times are in the arguments, as texts. Texts are not escaped, and without a trace the file is a
fragment of JSON without events. Only flows, whose times are in microseconds, relate calls to GPU
work.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.rocm.csv_columns import NO_NUMBER
from chopper_interop.converters.rocm.csv_headers import column_names, counter_columns, is_ignored
from chopper_interop.converters.rocm.rows import TableRows, interned
from chopper_interop.converters.rocm.tables import CALLS, DISPATCHES, INTEGERS
from chopper_interop.converters.rocprof.v1 import sections as v1_sections
from chopper_interop.converters.rocprof.v1.flows import EventPositions, link_by_flows
from chopper_interop.errors import ReadError
from chopper_interop.grouping import by_key
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog

REPAIRED = Fault.info(
    "event-repaired", "Events whose texts were not escaped were put together again."
)
UNREADABLE = Fault.loss_of_events(
    "event-unreadable", "Lines that are no complete event were left out."
)
OTHER_EVENT = Fault.loss_of_events("event-not-kept", "Events of unknown sections were left out.")
NO_FLOW = Fault.info(
    "launch-unknown",
    "Flows that begin in no call, or end at no operation that is the only one of its microsecond.",
)

_EVENT = re.compile(rb"^,(?=\{)", re.MULTILINE)
_MEMBER = re.compile(r'\s*"([^"]+)":"(.*?)",?\s*')
_TIDS = re.compile(r'"tid":"?(\d+)')
_FIRST_GPU = 6
"""``pid`` of the first GPU's events; smaller ones are numbers of sections."""
_INT64_LIMIT = 1 << 63
_MAX_DIGITS = 30
"""Characters of a number at most: more than 64 bits need."""


class Event(msgspec.Struct, gc=False):
    """An event of the file."""

    ph: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    id: Any = None
    args: dict[str, Any] = {}


class _File(msgspec.Struct, gc=False):
    traceEvents: list[Event] = []  # noqa: N815 # the file's name
    otherData: dict[str, Any] = {}  # noqa: N815


def read_trace(path: Path, issues: IssueLog) -> tuple[dict[str, TableRows], list[TableRows]]:
    """Read a trace: its tables of calls and operations by section, and those of dispatches.

    Raises
    ------
    ReadError
        It cannot be read at all.
    """
    events = [e for e in _events(path, issues) if e.ph in ("X", "s", "t")]
    sections = by_key((event for event in events if event.ph == "X"), _section)
    lost = sections.pop("", [])
    issues.add(OTHER_EVENT, len(lost), f"{path.name}: {lost[0].name:.60}" if lost else "")
    dispatches = sections.pop(v1_sections.KERN, [])
    tables = {
        section.name: _event_rows(section, sections[section.name], path.name, issues)
        for section in v1_sections.SECTIONS
        if section.name in sections
    }
    flows = [e for e in events if e.ph != "X"]
    positions = {name: _positions(group) for name, group in sections.items()}
    begins, ends = (_positions([e for e in flows if e.ph == phase]) for phase in ("s", "t"))
    tables, unlinked = link_by_flows(tables, positions, begins, ends)
    issues.add(NO_FLOW, unlinked, path.name)
    kern = _dispatches(dispatches, path.name, issues) if dispatches else None
    return tables, [kern] if kern is not None else []


def _section(event: Event) -> str:
    """Return the section of an event; empty if it is unknown."""
    number = _number(event.pid)
    if number is None or not isinstance(event.args, dict):
        return ""
    if number >= _FIRST_GPU:
        return v1_sections.KERN if "KernelName" in event.args else "OPS"
    return next((s.name for s in v1_sections.SECTIONS if s.number == number), "")


def _events(path: Path, issues: IssueLog) -> list[Event]:
    data = inputs.read(path, issues).tobytes()
    try:
        return msgspec.json.decode(data, type=_File).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return _one_by_one(path, data, issues)


def _one_by_one(path: Path, data: bytes, issues: IssueLog) -> list[Event]:
    """Read the events of a file that is no JSON: each begins a line with a comma and a brace."""
    starts = [match.end() for match in _EVENT.finditer(data)]
    if not starts:
        raise ReadError("there are no events in it", path=path, hint="was it cut short?")
    stop = data.find(b'],\n"otherData"', starts[-1])
    ends = [start - 1 for start in starts[1:]] + [stop if stop >= 0 else len(data)]
    events = []
    repaired = 0
    for start, end in zip(starts, ends, strict=True):
        text = data[start:end].rstrip(b" \r\n\t\0")
        try:
            events.append(msgspec.json.decode(text, type=Event))
            continue
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = _mended(text.decode("utf-8", "replace"))
        if event is None:
            where = f"{path.name}, byte {start}: {text[:60].decode('utf-8', 'replace')!r}"
            issues.add(UNREADABLE, 1, where)
        else:
            repaired += 1
            events.append(event)
    issues.add(REPAIRED, repaired, path.name)
    return events


def _mended(text: str) -> Event | None:
    """Return an event by its lines, whose texts are not escaped; None if it is not complete."""
    lines = text.split("\n")
    head = re.match(r'\{"ph":"X",.*"pid":"?(?P<pid>\d+)', lines[0])
    if head is None or not text.rstrip().endswith("}") or "}" not in lines[-2:][0]:
        return None
    members = [_MEMBER.fullmatch(line) for line in lines[1:]]
    args = {m[1]: m[2] for m in members if m}
    tid, ts = _TIDS.search(lines[0]), re.search(r'"ts":"?(\d+)', lines[0])
    name = args.get("Name") or args.get("KernelName") or ""
    return Event("X", name, head["pid"], tid and tid[1], ts and ts[1], None, args)


def _event_rows(
    section: v1_sections.Section, events: list[Event], where: str, issues: IssueLog
) -> TableRows:
    keys = set().union(*(event.args for event in events))
    numbers = {
        key: _integers([event.args.get(key) for event in events], key, where, issues)
        for key in (*v1_sections.NUMBERS, v1_sections.DEVICE)
        if key in keys
    }
    texts = {
        key: interned([_text(event.args.get(key)) for event in events])
        for key in v1_sections.TEXTS
        if key in keys
    }
    texts.setdefault("Name", interned([event.name for event in events]))
    old = "proc-id" in keys or section.form is CALLS
    pids = numbers.get("pid")
    values = [] if pids is None else np.unique(pids.value[pids.known]).tolist()
    marked = not (old and values in ([], [section.number]))
    return v1_sections.section_rows(
        section, numbers, texts, marked=marked, where=where, issues=issues
    )


def _dispatches(events: list[Event], where: str, issues: IssueLog) -> TableRows | None:
    titles = list(dict.fromkeys(key for event in events for key in event.args))
    names = column_names(titles)
    if not DISPATCHES.required <= set(names):
        issues.add(OTHER_EVENT, len(events), where)
        return None
    counters = counter_columns(DISPATCHES, names)
    numbers: dict[str, v1_sections.IntegerColumn] = {}
    texts: dict[str, Any] = {}
    values: dict[str, Array] = {}
    for title, name in zip(titles, names, strict=True):
        cells = [event.args.get(title) for event in events]
        if is_ignored(name):
            continue
        if name in INTEGERS:
            numbers[name] = _integers(cells, title, where, issues)
        elif name in counters:
            values[title] = np.array([_real(cell) for cell in cells])
        else:
            texts[name] = interned([_text(cell) for cell in cells])
    return v1_sections.dispatch_rows(len(events), numbers, texts, values, where, issues)


def _integers(
    cells: list[Any], title: str, where: str, issues: IssueLog
) -> v1_sections.IntegerColumn:
    """Parse integers; texts that are no integers are unknown."""
    try:
        parsed = pa.array(cells, pa.string()).cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        numbers = [_number(cell) for cell in cells]
        wrong = [
            c for c, n in zip(cells, numbers, strict=True) if n is None and c not in (None, "")
        ]
        example = f"{where}: {title} is {str(wrong[0])[:60]!r}" if wrong else ""
        issues.add(NO_NUMBER, len(wrong), example)
        parsed = pa.array(numbers, pa.int64())
    return v1_sections.IntegerColumn.from_arrow(parsed)


def _number(cell: Any) -> int | None:
    try:
        value = int(cell) if isinstance(cell, int | str) and len(str(cell)) < _MAX_DIGITS else None
    except ValueError:
        return None
    return value if value is not None and -_INT64_LIMIT <= value < _INT64_LIMIT else None


def _real(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan


def _text(cell: Any) -> str:
    if isinstance(cell, str):
        return cell.encode("utf-8", "replace").decode()
    return "" if cell is None else str(cell)


def _positions(events: list[Event]) -> EventPositions:
    return EventPositions(
        pid=_integers_or_none([e.pid for e in events]),
        tid=_integers_or_none([e.tid for e in events]),
        ts=_integers_or_none([e.ts for e in events]),
        id=_integers_or_none([e.id for e in events]),
    )


def _integers_or_none(cells: list[Any]) -> Array:
    """Parse integers, -1 where there is none."""
    try:
        texts = pa.array([c if isinstance(c, str) else str(c) for c in cells], pa.string())
        return arrow.to_numpy(texts.cast(pa.int64()))
    except pa.ArrowInvalid:
        numbers = [_number(cell) for cell in cells]
        return np.array([-1 if n is None else n for n in numbers], np.int64)
