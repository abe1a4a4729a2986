"""Chrome traces of rocprof v1 (NAME.json), valid JSON or not.

Exact times stand in the arguments, as texts. Texts are not escaped, and without a trace the file
is a fragment of JSON without events. Launches are told by flows alone, which are in microseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow
from chopper_interop.converters.rocprof_reach import within
from chopper_interop.converters.rocprof_rows import Rows, interned
from chopper_interop.converters.rocprof_tables import (
    CALLS,
    DISPATCHES,
    INTEGERS,
    columns_of,
    is_left_out,
    measured,
)
from chopper_interop.converters.rocprof_v1_flows import Marks, linked
from chopper_interop.converters.rocprof_v1_sections import (
    DEVICE,
    KERN,
    NUMBERS,
    SECTIONS,
    TEXTS,
    Column,
    rows_of,
)
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array

REPAIRED = Fault(
    "event-repaired", Severity.INFO, "Events whose texts were not escaped were put together again."
)
UNREADABLE = Fault(
    "event-unreadable", Severity.LOSS, "Lines that are no whole event were left out.", events=True
)
OTHER_EVENT = Fault(
    "event-not-kept",
    Severity.LOSS,
    "Events of no section that is known were left out.",
    events=True,
)
NO_NUMBER = Fault(
    "number-unreadable",
    Severity.LOSS,
    "Texts that should hold a number and do not were taken as unknown.",
)
NO_FLOW = Fault(
    "launch-unknown",
    Severity.INFO,
    "Flows that begin in no call, or end at no operation that is the only one of its microsecond.",
)

_LABEL = rb'\{"args":\{"name":"[^"\n]*"\},"ph":"M","pid":\d+,"name":"process_name","sort_index":'
_BEGIN = re.compile(rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}\s*,\s*' + _LABEL)
_FRAGMENT = re.compile(rb"\s*," + _LABEL)
_EVENT = re.compile(rb"^,(?=\{)", re.MULTILINE)
_MEMBER = re.compile(r'\s*"([^"]+)":"(.*?)",?\s*')
_TIDS = re.compile(r'"tid":"?(\d+)')
_GPU = 6
_KEYS = (*NUMBERS, *TEXTS, DEVICE)
_FITS = 1 << 63


class Event(msgspec.Struct, gc=False):
    """An event as it stands there."""

    ph: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    id: Any = None
    args: dict[str, Any] = {}


class _File(msgspec.Struct, gc=False):
    traceEvents: list[Event] = []  # noqa: N815 # what the file calls it
    otherData: dict[str, Any] = {}  # noqa: N815


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a trace of rocprof v1."""
    return _BEGIN.match(head) is not None or _FRAGMENT.match(head) is not None


def tables_of(path: Path, issues: IssueLog) -> tuple[dict[str, Rows], list[Rows]]:
    """Tables of a trace: those of calls and operations by section, and those of dispatches.

    Raises
    ------
    ReadError
        It cannot be read at all.
    """
    events = [e for e in _events(path, issues) if e.ph in ("X", "s", "t")]
    sections: dict[str, list[Event]] = {}
    for event in events:
        if event.ph == "X":
            sections.setdefault(_section(event), []).append(event)
    lost = sections.pop("", [])
    issues.add(OTHER_EVENT, len(lost), f"{path.name}: {lost[0].name:.60}" if lost else "")
    dispatches = sections.pop(KERN, [])
    found = {
        section.name: _rows(section, sections[section.name], path.name, issues)
        for section in SECTIONS
        if section.name in sections
    }
    flows = [e for e in events if e.ph != "X"]
    found, missed = linked(found, {n: _marks(e) for n, e in sections.items()}, *_ends(flows))
    issues.add(NO_FLOW, missed, path.name)
    kern = _dispatches(dispatches, path.name, issues) if dispatches else None
    return found, [kern] if kern is not None else []


def _section(event: Event) -> str:
    """The section of an event; empty if it is none."""
    number = _number(event.pid)
    if number is None or not isinstance(event.args, dict):
        return ""
    if number >= _GPU:
        return KERN if "KernelName" in event.args else "OPS"
    return next((s.name for s in SECTIONS if s.number == number), "")


def _events(path: Path, issues: IssueLog) -> list[Event]:
    data = inputs.read(path, issues).tobytes()
    try:
        return msgspec.json.decode(data, type=_File).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return _one_by_one(path, data, issues)


def _one_by_one(path: Path, data: bytes, issues: IssueLog) -> list[Event]:
    """Events of a file that is no JSON: each begins a line with a comma and a brace."""
    starts = [found.end() for found in _EVENT.finditer(data)]
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
    """An event of which only the lines hold what they should; None if it is not whole."""
    lines = text.split("\n")
    head = re.match(r'\{"ph":"X",.*"pid":"?(?P<pid>\d+)', lines[0])
    if head is None or not text.rstrip().endswith("}") or "}" not in lines[-2:][0]:
        return None
    found = [_MEMBER.fullmatch(line) for line in lines[1:]]
    args = {m[1]: m[2] for m in found if m}
    tid, ts = _TIDS.search(lines[0]), re.search(r'"ts":"?(\d+)', lines[0])
    name = args.get("Name") or args.get("KernelName") or ""
    return Event("X", name, head["pid"], tid and tid[1], ts and ts[1], None, args)


def _rows(section: Any, events: list[Event], where: str, issues: IssueLog) -> Rows:
    keys = set().union(*(event.args for event in events))
    numbers = {
        key: _integers([event.args.get(key) for event in events], key, where, issues)
        for key in (*NUMBERS, DEVICE)
        if key in keys
    }
    texts = {
        key: interned([_text(event.args.get(key)) for event in events])
        for key in TEXTS
        if key in keys
    }
    texts.setdefault("Name", interned([event.name for event in events]))
    old = "proc-id" in keys or section.form is CALLS
    pids = numbers.get("pid")
    values = [] if pids is None else np.unique(pids.value[pids.known]).tolist()
    marked = not (old and values in ([], [section.number]))
    return rows_of(section, numbers, texts, marked=marked, where=where, issues=issues)


def _dispatches(events: list[Event], where: str, issues: IssueLog) -> Rows | None:
    titles = list(dict.fromkeys(key for event in events for key in event.args))
    names = columns_of(titles)
    if not DISPATCHES.needs <= set(names):
        issues.add(OTHER_EVENT, len(events), where)
        return None
    counters = measured(DISPATCHES, names)
    numbers: dict[str, Column] = {}
    texts: dict[str, Any] = {}
    values: dict[str, Array] = {}
    for title, name in zip(titles, names, strict=True):
        cells = [event.args.get(title) for event in events]
        if is_left_out(name):
            continue
        if name in INTEGERS:
            numbers[name] = _integers(cells, title, where, issues)
        elif name in counters:
            values[title] = np.array([_real(cell) for cell in cells])
        else:
            texts[name] = interned([_text(cell) for cell in cells])
    rows = Rows(
        DISPATCHES,
        len(events),
        numbers={name: column.value for name, column in numbers.items()},
        known={name: column.known for name, column in numbers.items()},
        texts=texts,
        counters=values,
        where=f"{where}, {KERN}",
    )
    return within(rows, issues)


def _integers(cells: list[Any], title: str, where: str, issues: IssueLog) -> Column:
    """Whole numbers of texts; texts that are none are unknown."""
    try:
        made = arrow.flat(pa.array(cells, pa.string()).cast(pa.int64()))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        found = [_number(cell) for cell in cells]
        wrong = [c for c, n in zip(cells, found, strict=True) if n is None and c not in (None, "")]
        example = f"{where}: {title} is {str(wrong[0])[:60]!r}" if wrong else ""
        issues.add(NO_NUMBER, len(wrong), example)
        made = pa.array(found, pa.int64())
    return Column(arrow.numbers(made), arrow.known(made))


def _number(cell: Any) -> int | None:
    try:
        value = int(cell) if isinstance(cell, int | str) and len(str(cell)) < 30 else None  # noqa: PLR2004
    except ValueError:
        return None
    return value if value is not None and -_FITS <= value < _FITS else None


def _real(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan


def _text(cell: Any) -> str:
    if isinstance(cell, str):
        return cell.encode("utf-8", "replace").decode()
    return "" if cell is None else str(cell)


def _ends(flows: list[Event]) -> tuple[Marks, Marks]:
    """Where flows begin and end."""
    begins = [e for e in flows if e.ph == "s"]
    return _marks(begins), _marks([e for e in flows if e.ph == "t"])


def _marks(events: list[Event]) -> Marks:
    """Places of events in the picture."""
    return Marks(
        pid=_places([e.pid for e in events]),
        tid=_places([e.tid for e in events]),
        ts=_places([e.ts for e in events]),
        id=_places([e.id for e in events]),
    )


def _places(cells: list[Any]) -> Array:
    """Whole numbers, -1 where there is none."""
    try:
        made = pa.array([c if isinstance(c, str) else str(c) for c in cells], pa.string())
        return arrow.numbers(made.cast(pa.int64()))
    except pa.ArrowInvalid:
        found = [_number(cell) for cell in cells]
        return np.array([-1 if n is None else n for n in found], np.int64)
