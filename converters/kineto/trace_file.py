"""Kineto files as columns: their events and headers, pids and tids that are texts resolved.

Numbers may be anything in a file; `whole_number` and the like take those that can be true.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.arrays.gather import is_any
from chopper_interop.clocks.unstated_bases import SINCE_1970_NS
from chopper_interop.combined import NotTogetherError, SourceIssues
from chopper_interop.converters.kineto import begin_end
from chopper_interop.errors import ReadError
from chopper_interop.io import background, inputs, json_events, json_text, memory
from chopper_interop.io.inputs import TextWindow
from chopper_interop.io.json_events import HAS_TS
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.categories import PYTORCH
from chopper_interop.schemas.hub import MAX_RANK

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import numpy.typing as npt

    from chopper_interop.io.json_events import Select

    Choose: TypeAlias = Callable[[Callable[[Select], json_events.Events]], Select | None]


MALFORMED = Fault.loss_of_events(
    "event-malformed", "Pieces of the file that are not a proper JSON object were left out."
)
NOT_CLOSED = Fault.loss(
    "file-not-closed", "The file breaks off: the events after that are missing."
)
NO_BASE = Fault.error(
    "time-base-missing",
    "The file breaks off before it states what its times count from: dates are wrong by that.",
)
NAME_BYTES = Fault.loss(
    "name-not-utf8", "Names with bytes that are not UTF-8: U+FFFD stands for each of them."
)
BOUND_FLOW = Fault.loss(
    "flow-by-bind-id", "Arrows that spans declare by a ``bind_id`` of their own were left out."
)
SECOND_LIST = Fault.loss_of_events(
    "events-of-second-list",
    "Events of a second list, or of a second document after the first, were left out.",
)
BYTES_AFTER_END = Fault.loss(
    "bytes-after-end", "Bytes after the end of the document were left out."
)
HEADER_BROKEN = Fault.loss("header-malformed", "A part of the file's header is not proper JSON.")

_LIST, _QUOTE, _COLON = b'[":'
_EVENTS = b'"traceEvents"'
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER_IN_TEXT = re.compile(r"(?:stream\s+)?(?:(-?\d{1,18})|0x([0-9a-fA-F]{1,15}))\s*", re.ASCII)
_PROBED_BYTES = 64
"""Enough for the empty event that a list of rocmProfileData begins with, and blanks around it."""
_EMPTY_FIRST = re.compile(rb"\s*\[\s*\{\s*\}\s*,")
"""Beginning of a list of rocmProfileData."""
_MAX_DOCUMENTS = 64
"""Documents after the first that are counted; chosen: a bound for a file of many tiny ones, as each
costs a scan."""
MAX_ID = (1 << 31) - 1
"""Beyond this a number is no device, and no process id: the hub holds both as int32."""

_WHOLE_NUMBER = re.compile(r"\s*-?[0-9]{1,19}\s*", re.ASCII)
_MANY_EVENTS = 1 << 17
"""Events from which on threads part the columns (chosen: of fewer, handing over takes as long)."""
_MEMBER = "member"
_EXAMPLE_LENGTH = 60
"""Characters of a name in a message. Chosen: a line holds them."""


@dataclass(frozen=True)
class Member:
    """A file of those that are read together: what is not in the columns of its events.

    Parameters
    ----------
    path
        Path of the file.
    header
        All members of the top-level object but ``traceEvents``.
    labels
        Made-up id → text, for pids and tids that are texts without a number.
    base_ns
        Time that the events' times count from, in nanoseconds since 1970.
    since_boot
        True if times count from the node's boot, as in the traces of rocmProfileData.
    event_count
        Number of events in the file, also of those that could not be read.
    left_out
        Number of those that were not chosen.
    """

    path: Path
    header: dict[str, Any]
    labels: dict[int, str]
    base_ns: int
    since_boot: bool
    event_count: int
    left_out: int = 0


@dataclass(frozen=True)
class TraceFile:
    """The events of a Kineto file, or of several, one behind the other.

    Parameters
    ----------
    members
        The files.
    base_ns
        Time that the events' times count from, in nanoseconds since 1970.
    text
        The arguments of all events.
    text_at
        Offset of each file's arguments, and behind the last one the total length.
    columns
        Columns of the events, the fields of `json_events.EVENT`; pids and tids that were texts are resolved, and
        offsets of arguments are those in `text`. Of several files also the number of the file, and
        `name_number`, that of the name among the strings of its file.
    kind
        `Kind` of each event; 0 where its category is not known.
    texts
        The distinct strings of the events.
    """

    members: tuple[Member, ...]
    base_ns: int
    text: Array
    text_at: Array
    columns: dict[str, Array]
    kind: Array
    texts: list[str]

    @property
    def member(self) -> Array:
        """Number of the file of each event."""
        several = self.columns.get(_MEMBER)
        return np.broadcast_to(np.int32(0), len(self.kind)) if several is None else several

    def label(self, member: int, number: int) -> str | None:
        """Text that a pid or tid of a file stands for; None for a number."""
        return self.members[member].labels.get(number)

    def example(self, row: int) -> str:
        """Name of an event and its position in its file."""
        return f"{self.name(row)[:_EXAMPLE_LENGTH]!r} at byte {self.columns['at'][row]}"

    def is_empty(self, rows: Array) -> Array:
        """Mask of events at these rows that are ``{}``: a brace closes them right after the one that opens."""
        return np.asarray(self.columns["has"][rows] & json_events.IS_EMPTY != 0)

    def parted(self, chosen: Array) -> tuple[TraceFile, TraceFile]:
        """Return the events that a mask chooses, and the others; this file has none any more."""
        columns = {"kind": self.kind} | self.columns
        self.columns.clear()
        count = int(np.count_nonzero(chosen))
        others = {n: np.empty(len(c) - count, c.dtype) for n, c in columns.items()}
        by_threads = background.each if len(chosen) >= _MANY_EVENTS else map
        list(by_threads(lambda name: _part(columns[name], chosen, others[name]), columns))
        columns = {name: column[:count] for name, column in columns.items()}
        first, second = (
            replace(self, columns=part, kind=part.pop("kind")) for part in (columns, others)
        )
        return first, second

    def phase(self, *letters: str) -> Array:
        """Mask of events of these phases (``ph``)."""
        return is_any(self.columns["ph"], [ord(letter) for letter in letters])

    def numbers(self, rows: Array, *keys: str) -> tuple[Array, Array]:
        """Integer arguments of the events at these rows; see `json_events.extract_integers`.

        Returns
        -------
        values, present
            A row a key, a column an event.
        """
        at, length = self.columns["args_at"][rows], self.columns["args_len"][rows]
        return json_events.extract_integers(self.text, at, length, keys)

    def args(self, row: int) -> dict[str, Any]:
        """All arguments of one event; empty where they are not proper JSON."""
        at = self.columns["args_at"][row]
        raw = bytes(self.text[at : at + self.columns["args_len"][row]])
        try:
            return dict(msgspec.json.decode(raw)) if raw else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}

    def rows_named(self, phase: str, *names: str) -> Array:
        """Events of a phase with one of these names."""
        numbers = [i for i, text in enumerate(self.texts) if text in names]
        marked = self.phase(phase)
        return (
            np.flatnonzero(marked & is_any(self.columns["name"], numbers))
            if numbers
            else np.empty(0, np.int64)
        )

    def thread_of(self, row: int) -> tuple[int, int, int]:
        """File, pid and tid of one event."""
        columns = self.columns
        return int(self.member[row]), int(columns["pid"][row]), int(columns["tid"][row])

    def name(self, row: int) -> str:
        """Name of one event."""
        number = int(self.columns["name"][row])
        return self.texts[number] if number >= 0 else ""


def load(paths: Sequence[Path], issues: SourceIssues, choose: Choose | None = None) -> TraceFile:
    """Read files, one behind the other; losses go to `issues`.

    Of a file that is alone, `choose` is given what scans it and returns which events are kept, None for all.

    Raises
    ------
    ReadError
        The only one holds no list of events, or an empty one.
    NotTogetherError
        Some of several do.
    """
    if len(paths) == 1:
        files = [_read_file(paths[0], issues.logs[0], choose)]
    else:
        files = _read_all(paths, issues)
    file = _together(files)
    _note_replaced(file, issues)
    _resolve_ids(file, [of_file.texts for of_file in files])
    spans = np.flatnonzero(is_any(file.columns["ph"], begin_end.PHASES))
    for number in gather.unique_codes(file.member[spans]).tolist():
        rows = slice(*np.searchsorted(file.member, [number, number + 1]))
        begin_end.close_spans(
            {n: column[rows] for n, column in file.columns.items()}, file.text, issues.logs[number]
        )
    return file


class _File(NamedTuple):
    """A file that was read: its events, and their distinct strings."""

    member: Member
    events: json_events.Events
    texts: list[str]


def _read_all(paths: Sequence[Path], issues: SourceIssues) -> list[_File]:
    """Read several files, proper short ones by as few calls as can be."""
    short = [_short(path) for path in paths]
    scanned = iter(json_events.scan_short([of_file[1:] for of_file in short if of_file]))
    files: list[_File] = []
    unreadable = []
    for path, log, of_file in zip(paths, issues.logs, short, strict=True):
        events = next(scanned) if of_file else None
        try:
            if of_file is None or events is None or not events.count:
                files.append(_read_file(path, log))
            else:
                files.append(_file(path, of_file[0], events, events.count))
        except ReadError:
            unreadable.append(path)
    if unreadable:
        raise NotTogetherError(unreadable)
    return files


def _short(path: Path) -> tuple[dict[str, Any], bytes, int] | None:
    """Header of a file, its bytes, and where its list of events opens; None unless all of it is proper JSON."""
    try:
        with inputs.opened(path) as file:
            text = file.read()
        inputs.note_digest(path, text)
        events = bytes(_MEMBERS.decode(text).get("traceEvents", b""))
        at = text.find(b"[", text.find(_EVENTS))
        if not events or text.count(_EVENTS) != 1 or not text.startswith(events, at):
            return None
        rest = text[:at] + b"[]" + text[at + len(events) :]
        header = msgspec.json.decode(
            rest
        )  # each member, as `_MEMBERS` has the last of one name alone
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    del header["traceEvents"]
    # a second member of that name, which escapes would hide, is read otherwise
    return None if b"\\u" in rest else (header, text, at)


def _read_file(path: Path, issues: IssueLog, choose: Choose | None = None) -> _File:
    """Read one file, whatever it is; losses go to `issues`.

    Raises
    ------
    ReadError
        It holds no list of events, or an empty one.
    """
    with memory.sufficing("reading all of it", path):
        select = None if choose is None else choose(partial(_scanned, path))
        text = TextWindow(inputs.blocks(path, issues), expected=inputs.expected_bytes(path))
        empty_first = _EMPTY_FIRST.match(bytes(text.bytes[:_PROBED_BYTES])) is not None
        document = _read_documents(path, text, issues, select)
    events = document.events
    del text
    memory.give_back(events.end)
    _note_losses(document, issues)
    if not events.count:
        raise ReadError(
            "it holds no events", path=path, hint="was the profiler stopped before it was exported?"
        )
    count = events.count + events.malformed + events.left_out + document.left_out
    return _file(path, document.header, events, count, empty_first=empty_first)


def _scanned(path: Path, select: Select) -> json_events.Events:
    """Selected events of a file, whose losses another scan notes."""
    text = TextWindow(inputs.blocks(path, IssueLog()), expected=inputs.expected_bytes(path))
    return _read_document(path, text, IssueLog(), select).events


def _file(
    path: Path,
    header: dict[str, Any],
    events: json_events.Events,
    count: int,
    *,
    empty_first: bool = False,
) -> _File:
    since_boot = empty_first and _counts_since_boot(events)
    member = Member(path, header, {}, _base_ns(path, header), since_boot, count, events.left_out)
    return _File(member, events, events.texts())


def _base_ns(path: Path, header: dict[str, Any]) -> int:
    """Time that the events' times count from; raise `ReadError` for something else in its place."""
    stated = header.get("baseTimeNanoseconds") or 0
    base = whole_number(stated)
    if base is None:
        raise ReadError(
            f"baseTimeNanoseconds is {stated!r:.40}, from which no time can be counted", path=path
        )
    return base


def _counts_since_boot(events: json_events.Events) -> bool:
    """True if times of a list that begins with an empty event count from a boot (``rpd2tracing.py``)."""
    timed = events.columns["ts"][events.columns["has"] & HAS_TS != 0]
    return bool(timed.size) and bool(timed.max() < SINCE_1970_NS)


def _together(files: list[_File]) -> TraceFile:
    """The events of several files, one behind the other; of one file as they are.

    Strings get the numbers of their first occurrence in any file. Ids that stand for texts stay those of
    their file (`TraceFile.label`), and times count from 1970.
    """
    if len(files) == 1:
        ((only, events, texts),) = files
        text_at = np.array([0, len(events.args)])
        kind = _kinds(texts)[events.columns["cat"]]
        return TraceFile((only,), only.base_ns, events.args, text_at, events.columns, kind, texts)
    count = [file.events.count for file in files]
    member = np.repeat(np.arange(len(files), dtype=np.int32), count)
    columns = {
        name: np.concatenate([file.events.columns[name] for file in files])
        for name in json_events.EVENT.names or ()
    }
    number: dict[str, int] = {}
    # of each file in turn: -1 for no string, then the numbers of its strings
    numbers = [[-1, *(number.setdefault(t, len(number)) for t in file.texts)] for file in files]
    first = np.cumsum([0, *map(len, numbers)])[:-1] + 1
    number_of = np.array([n for of_file in numbers for n in of_file], np.int32)
    columns["name_number"] = columns["name"]
    for name in ("cat", "name"):
        columns[name] = number_of[columns[name] + first[member]]
    text_at = np.cumsum([0, *(len(file.events.args) for file in files)])
    columns["args_at"] += text_at[member]
    columns["ts"] += np.array([file.member.base_ns for file in files], np.int64)[member]
    columns[_MEMBER] = member
    return TraceFile(
        members=tuple(file.member for file in files),
        base_ns=0,
        text=np.concatenate([file.events.args for file in files]),
        text_at=text_at,
        columns=columns,
        kind=_kinds(list(number))[columns["cat"]],
        texts=list(number),
    )


def _kinds(texts: list[str]) -> Array:
    """`Kind` of each string as a category; a last one of an event without a category."""
    return np.array([PYTORCH.get(t.lower(), 0) for t in texts] + [0], np.uint8)


def note_bind_ids(file: TraceFile, issues: SourceIssues) -> None:
    """Count arrows by ``bind_id``; PyTorch has none, so only files of others are searched.

    That it is one of others shows by spans of unknown kind, of which PyTorch's files have none.
    """
    unknown = np.flatnonzero((file.kind == 0) & file.phase("X"))
    if unknown.size:
        is_of_others = np.bincount(file.member[unknown], minlength=len(file.members)) > 0
        bound = file.columns["has"] & json_events.HAS_BIND_ID != 0
        issues.add_where(BOUND_FLOW, bound & is_of_others[file.member], file.member)


@dataclass
class _Document:
    """A JSON document with a list of events."""

    header: dict[str, Any]
    events: json_events.Events
    complete: bool
    """True if the document has its end."""
    end: int = 0
    """Offset after the document, if it is complete."""
    left_out: int = 0
    """Number of events of further lists."""


def _read_documents(
    path: Path, text: TextWindow, issues: IssueLog, select: Select | None
) -> _Document:
    """Read the first document; count the events of those after it, as of an appended file."""
    first = last = _read_document(path, text, issues, select)
    for _ in range(_MAX_DOCUMENTS):
        if not last.complete:
            break
        text.finish()
        n = len(text.bytes)
        start = json_text.skip_blank(text.bytes, min(last.end - text.base, n), n)
        rest, at = text.bytes[start:], f"byte {text.base + start}"
        if not rest.any():  # zeros are padding of file systems
            break
        text = TextWindow([rest], text.base + start)
        try:
            last = _read_document(path, text, IssueLog())
        except ReadError:
            issues.add(BYTES_AFTER_END, len(rest), at)
            break
        events = last.events.count + last.events.malformed + last.left_out
        first.left_out += events
        issues.add(SECOND_LIST, events, at)
    return first


def _read_document(
    path: Path, text: TextWindow, issues: IssueLog, select: Select | None = None
) -> _Document:
    """Read header and events of a document in object or list form, from the beginning of the window on.

    Raises
    ------
    ReadError
        It is empty or has no list of events.
    """
    i = _first_byte(path, text)
    if text.bytes[i] == _LIST:
        events = json_events.scan(text, i, select)
        return _Document({}, events, events.closed, events.end)
    header: dict[str, Any] = {}
    lists: list[json_events.Events] = []
    broken = text.bytes[i] != json_text.OPEN
    i += 1
    while not broken:
        member = _next_member(text, i)
        if member is None:
            break
        if member.is_events:
            lists.append(json_events.scan(text, member.value, select if not lists else None))
            i = 0  # the window begins behind them
            continue
        i = member.end
        if i < 0:
            issues.add(HEADER_BROKEN, example=member.key)
            broken = True
            break
        _decode_member(header, member.key, bytes(text.bytes[member.value : i]), issues)
    if not lists:
        raise ReadError(
            "it has no list `traceEvents`",
            path=path,
            at=f"byte {text.base + i}" if i > 0 else None,
            hint="it is not a trace of the PyTorch profiler, or its writer was interrupted",
        )
    left_out = sum(more.count + more.malformed for more in lists[1:])
    issues.add(SECOND_LIST, left_out)
    if broken:
        return _Document(header, lists[0], complete=False, left_out=left_out)
    n = len(text.bytes)
    end = json_text.skip_blank(text.bytes, i, n)
    complete = end < n and text.bytes[end] == json_text.CLOSE
    if not complete:
        text.finish()
        issues.add(BYTES_AFTER_END, len(text.bytes) - end, f"byte {text.base + end}")
    return _Document(header, lists[0], complete, text.base + end + 1, left_out)


def _first_byte(path: Path, text: TextWindow) -> int:
    """Return where the document begins in the window, behind blanks."""
    while True:
        i = json_text.skip_blank(text.bytes, 0, len(text.bytes))
        if i < len(text.bytes):
            return i
        if text.complete:
            raise ReadError("it is empty", path=path)
        text.extend()


class _Member(NamedTuple):
    """A member of the top-level object: where its value begins in the window, and ends (negative: broken)."""

    key: str
    value: int
    end: int
    is_events: bool


def _next_member(text: TextWindow, i: int) -> _Member | None:
    """Return the next member of the top-level object, with all of it in the window; None at its end."""
    while True:
        member = _member(text.bytes, i, len(text.bytes))
        if text.complete or (member is not None and (member.end >= 0 or member.is_events)):
            return member
        text.extend()


def _member(buffer: Array, i: int, n: int) -> _Member | None:
    i = json_text.skip_blank(buffer, i, n)
    if i < n and buffer[i] == ord(","):
        i = json_text.skip_blank(buffer, i + 1, n)
    if i >= n or buffer[i] != _QUOTE:
        return None
    end = json_text.skip_string(buffer, i, n)
    colon = json_text.skip_blank(buffer, end, n) if end > 0 else n
    if colon >= n or buffer[colon] != _COLON:
        return None
    key = json_events.unescape(bytes(buffer[i + 1 : end - 1]))
    value = json_text.skip_blank(buffer, colon + 1, n)
    is_events = key == "traceEvents" and value < n and buffer[value] == _LIST
    end = -1 if is_events or value >= n else json_text.skip_value(buffer, value, n)
    return _Member(key, value, end, is_events)


def _decode_member(header: dict[str, Any], key: str, raw: bytes, issues: IssueLog) -> None:
    try:
        header[key] = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        issues.add(HEADER_BROKEN, example=key)


def _note_losses(document: _Document, issues: IssueLog) -> None:
    events = document.events
    at = f"byte {events.malformed_at[0]}" if events.malformed_at else ""
    issues.add(MALFORMED, events.malformed, at)
    if not events.closed:
        issues.add(NOT_CLOSED, example=f"byte {events.end}")
    if not document.complete and "baseTimeNanoseconds" not in document.header:
        timed = events.columns["ts"][events.columns["has"] & json_events.HAS_TS != 0]
        if timed.size and timed.max() < SINCE_1970_NS and "schemaVersion" in document.header:
            issues.add(NO_BASE)


def _note_replaced(file: TraceFile, issues: SourceIssues) -> None:
    """Count names of which bytes were replaced."""
    replaced = [n for n, text in enumerate(file.texts) if "\N{REPLACEMENT CHARACTER}" in text]
    if replaced:
        is_replaced = np.isin(file.columns["name"], replaced)
        issues.add_where(NAME_BYTES, is_replaced, file.member, file.example)


def _resolve_ids(file: TraceFile, texts: list[list[str]]) -> None:
    """Replace pids, tids and ids that are texts of numbers; enter the other texts as labels of their file."""
    count = np.array([len(of_file) for of_file in texts])
    for field in ("pid", "tid", "id"):
        values = file.columns[field]
        rows = np.flatnonzero(values < json_events.TEXT_ID + count.max())
        rows = rows[values[rows] < json_events.TEXT_ID + count[file.member[rows]]]
        first, code = gather.distinct(file.member[rows], values[rows])
        numbers = values[rows[first]]
        for k, row in enumerate(rows[first].tolist()):
            member, value = int(file.member[row]), int(values[row])
            text = texts[member][value - json_events.TEXT_ID]
            number = _NUMBER_IN_TEXT.fullmatch(text)
            if number:
                decimal, hexadecimal = number.groups()
                numbers[k] = int(decimal or hexadecimal, 10 if decimal else 16)
            else:
                file.members[member].labels[value] = text
        values[rows] = numbers[code]


def whole_number(value: Any, minimum: int = 0, maximum: int = (1 << 62) - 1) -> int | None:
    """Return an integer, also of the text of one; None if it is none or out of these bounds."""
    if type(value) is not int:  # and no bool
        if not isinstance(value, str) or not _WHOLE_NUMBER.fullmatch(value):
            return None
        value = int(value)
    return value if minimum <= value <= maximum else None


def rank_list(value: Any) -> tuple[int, ...] | None:
    """Return a list of ranks; None if it is empty, no list, or holds something else."""
    listed = value if isinstance(value, list) else []
    if set(map(type, listed)) == {int}:  # as PyTorch writes them
        return tuple(listed) if min(listed) >= 0 and max(listed) <= MAX_RANK else None
    ranks = [whole_number(rank, maximum=MAX_RANK) for rank in listed]
    known = tuple(rank for rank in ranks if rank is not None)
    return known if known and len(known) == len(ranks) else None


def is_id(values: npt.NDArray[Any], maximum: int = MAX_ID) -> npt.NDArray[np.bool_]:
    """Mark numbers that can be devices, process ids or, up to `MAX_RANK`, ranks; -1 is none."""
    return np.asarray((values >= -1) & (values <= maximum))


@jit_in_place
def _part(column: Array, chosen: Array, others: Array) -> None:
    """Move the values that a mask chooses to the beginning of a column, and write the others to a column of theirs.

    Compiled, as it is one pass without new memory for most: a file has as many bytes of columns as of text.
    """
    i = j = np.uint64(0)
    one = np.uint64(1)
    for row in range(len(column)):
        if chosen[row]:
            column[i] = column[row]
            i += one
        else:
            others[j] = column[row]
            j += one
