"""rocm-smi's records as columns; outputs of a loop, which differ in numbers alone, are read by layouts.

Outputs are the pieces of `sampling.templates`. Each begins where records begin for certain: with a time
that a loop wrote, a title, a document. The reader of its form reads a probe of each template, and where
the numbers come out again in the records is where those of all such outputs go. Numbers that say which
card or key it is are the same in all pieces of a layout (`_pinned`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.converters.amd_smi import rocm_smi_lanes
from chopper_interop.converters.amd_smi.rocm_smi_records import SYSTEM, Record, Records
from chopper_interop.converters.sampling import layouts, stamps
from chopper_interop.converters.sampling.cells import (
    Cell,
    CellColumn,
    ColumnBuilder,
    Item,
    cell_of_text,
)
from chopper_interop.converters.sampling.laid_columns import columns_of, keys_of_rows
from chopper_interop.converters.sampling.layouts import Guard, Layout, PieceLayout
from chopper_interop.converters.sampling.pieces import GAP, NUMBER
from chopper_interop.converters.sampling.starts import BEGIN, NO_MARK, STAMP, starts_of
from chopper_interop.converters.sampling.templates import read_pieces
from chopper_interop.converters.sampling.text import encoded
from chopper_interop.converters.sampling.timestamps import Timestamp, parse_labelled_timestamp
from chopper_interop.io.json_text import byte_table
from chopper_interop.issues import Fault, Issue, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows

Key = tuple[str, str]
"""Kind of a column, and key of its values, or the clock whose levels it holds."""
VALUE, FACT, LEVELS = "", "\0fact", "\0levels"
"""Kinds of columns."""
_LONGEST_STAMP = 160
"""Longest line that is looked at as a time (chosen: twice what one may have without its blanks)."""
_EPOCH_SHAPE = re.compile(r"\W*(?:(?:time|date)\w{0,20}\s*[:=]?)?\W*", re.IGNORECASE)
_CLOCK_SHAPE = f":{chr(NUMBER)}:"
"""Templates of lines with a time hold this, or nothing else but one number and its label."""
_LARGEST_LEVEL = 1e6
"""MHz (chosen). Python writes whole levels up to this with all their digits and ``.0``, as it does those of a probe."""
_PINS = 3
"""Times that a probe is read with more of its numbers pinned: cards first, keys below them next."""


State = TypeVar("State", bound=Hashable)


class IrregularError(Exception):
    """A text cannot be read in pieces, but only from its begin to its end."""


class Place(NamedTuple):
    """Line and character of a text at which a part of it begins, from 1 and from 0."""

    line: int = 1
    character: int = 0


@dataclass(frozen=True)
class Form(Generic[State]):
    """Form of outputs.

    Parameters
    ----------
    read_part
        Reads some outputs from a state on; returns their records, and the state behind them.
    initial
        State in front of the first.
    begins
        True if with a line records begin in each of these states.
    no_mark
        First bytes of lines that hold no time and with which no output begins.
    gaps
        Whether several spaces are as good as two.
    is_whole
        True if nothing of an output is left out, nor a message in it.
    """

    read_part: Callable[[str, IssueLog, State, Place], tuple[Records, State]]
    initial: State
    begins: Callable[[str], bool]
    no_mark: bytes
    gaps: bool = False
    is_whole: bool = False


@dataclass(frozen=True)
class RecordTable:
    """Records of a file, in its order.

    Parameters
    ----------
    card
        Card of each; `SYSTEM` for the whole system.
    has_values
        Mask of those of cards that hold values in time.
    output
        Output of each.
    stamps, stamp, offset_ns
        Times, index of that of each record, and what to add; None for records without.
    columns
        Values, facts and levels by kind and key.
    lost
        Number of records that could not be read.
    """

    card: Array
    has_values: Array
    output: Array
    stamps: list[Timestamp | None]
    stamp: Array
    offset_ns: Array
    columns: dict[Key, CellColumn]
    lost: int


@dataclass
class RecordCollector:
    """Collects records that have no layout, and makes the table of all."""

    issues: IssueLog
    rows: int = 0
    """Number of records so far."""
    lost: int = 0
    keys: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Whether it has values, and its card, by row."""
    columns: dict[Key, ColumnBuilder] = field(default_factory=dict)
    begins: list[int] = field(default_factory=list)
    """Rows with which an output begins."""
    in_front: dict[int, Timestamp] = field(default_factory=dict)
    """Times by the row in front of which they stand."""
    own: dict[int, Timestamp] = field(default_factory=dict)
    """Times of records that have one of their own."""

    def effects(self) -> int:
        """Count what came out of pieces so far."""
        return self.rows + self.lost + self.issues.total() + len(self.in_front)

    def take(self, records: Records) -> None:
        """Take records that follow those so far, the first of which begins an output."""
        first_rows: dict[int, int] = {}
        for record in records.entries:
            first_rows.setdefault(record.output, self.rows)
            self.add(record, self.rows)
            self.rows += 1
        for output, stamp in records.before.items():
            self.in_front.setdefault(first_rows.get(output, self.rows), stamp)
        self.begins += first_rows.values()
        self.lost += records.lost

    def add(self, record: Record, row: int) -> None:
        """Add a record, whose row is behind those so far."""
        if record.moment is not None:
            self.own[row] = record.moment
        self.keys[row] = (_has_values(record), record.card, -1)
        for place, (key, text) in enumerate(cells_of(record)):
            column = self.columns.setdefault(key, ColumnBuilder(key[1], place=place))
            column.add(row, parsed(key, text))

    def note(self, laid: LaidRows | None) -> None:
        """Count the faults of pieces that had a layout."""
        for fault, count in laid.noted if laid is not None else ():
            self.issues.add(fault, count)

    def finish(self, laid: LaidRows | None) -> RecordTable:
        """Return the table of all records, those that had a layout included."""
        stated, card = keys_of_rows(laid, self.keys)[:2]
        has_values = stated > 0
        del stated
        begins = np.zeros(self.rows, bool)
        begins[self.begins] = True
        if laid is not None:
            begins[laid.of_first_rows().row] = True
        self.note(laid)
        output = np.cumsum(begins) - 1
        times, stamp, offset_ns = self._times(laid, begins)
        stamp, offset_ns = stamp[output], offset_ns[output]
        for row, time in self.own.items():
            stamp[row], offset_ns[row] = len(times), 0
            times.append(time)
        columns = columns_of(laid, self.columns, parsed)
        return RecordTable(card, has_values, output, times, stamp, offset_ns, columns, self.lost)

    def own_times(self, laid: LaidRows | None) -> tuple[list[Timestamp | None], Array, Array]:
        """Return times of rows that each have their own, and by row the index of it and what to add."""
        times: list[Timestamp | None] = [None]
        code, offset_ns = np.zeros(self.rows, np.int64), np.zeros(self.rows, np.int64)
        if laid is not None and len(laid.row):
            texts = stamps.texts_of(laid, 0, of_times=True)
            times += [parse_labelled_timestamp(text) for text in texts.distinct]
            code[laid.row], offset_ns[laid.row] = texts.code + 1, texts.offset_ns
        for row, time in self.own.items():
            code[row] = len(times)
            times.append(time)
        return times, code, offset_ns

    def _times(
        self, laid: LaidRows | None, begins: Array
    ) -> tuple[list[Timestamp | None], Array, Array]:
        """Return times, and by output the index of its own and what to add to it.

        They stand in front of outputs, or behind them if the first has none in front.
        """
        first = np.flatnonzero(begins)
        code, offset_ns = np.zeros(len(first) + 1, np.int64), np.zeros(len(first) + 1, np.int64)
        times: list[Timestamp | None] = [None]
        if laid is not None and len(laid.row):
            of_first = laid.of_first_rows()
            texts = stamps.texts_of(of_first, 0, of_times=True)
            of_texts = [parse_labelled_timestamp(text) for text in texts.distinct]
            if any(
                text and time is None for text, time in zip(texts.distinct, of_texts, strict=True)
            ):
                raise IrregularError
            times += of_texts
            output = np.searchsorted(first, of_first.row)
            code[output], offset_ns[output] = texts.code + 1, texts.offset_ns
        for row, time in self.in_front.items():
            place = int(np.searchsorted(first, row))
            code[place], offset_ns[place] = len(times), 0
            times.append(time)
        has_time = np.array([time is not None for time in times], bool)[code]
        if has_time.any() and not has_time[0]:
            code, offset_ns = np.roll(code, -1), np.roll(offset_ns, -1)
        return times, code, offset_ns


@dataclass
class _OutputReader(RecordCollector):
    """Reads outputs that have no layout."""

    form: Form[Any] = field(kw_only=True)
    lines: Array = field(kw_only=True)
    """Number of lines in front of each."""
    last_character: int = field(kw_only=True)
    """Characters in front of the last."""
    state: int = 0

    def __post_init__(self) -> None:
        self.states = {self.form.initial: 0}

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        """Read the output of a number."""
        first_line = text.partition("\n")[0]
        state = list(self.states)[self.state]
        place = Place(int(self.lines[number - 1]) + 1, 0 if is_complete else self.last_character)
        records, behind = self.form.read_part(text, self.issues, state, place)
        begins = number == 1 or _mark(first_line, self.form) != NO_MARK
        if not begins or (is_complete and self.form.is_whole and records.lost):
            raise IrregularError
        self.take(records)
        self.state = self.states.setdefault(behind, len(self.states))

    def layout(self, probe: str, sample: str) -> PieceLayout | None:
        """Return the layout of the outputs of a template."""
        stamp, line_end, rest = probe.partition("\n")
        first_line, _, rest_of_sample = sample.partition("\n")
        if parse_labelled_timestamp(first_line) is None:
            stamp, rest, rest_of_sample = "", probe, sample
        numbers = layouts.numbers_of(probe, sample)
        state = list(self.states)[self.state]
        read = self._read(rest_of_sample, state)
        begins = _mark(first_line, self.form) != NO_MARK
        if numbers is None or read is None or not begins or not line_end:
            return None
        pins: dict[int, str] = {}
        for _ in range(_PINS):
            rest = layouts.with_numbers(rest, pins)
            read_probe = self._read(rest, state)
            if read_probe is None:
                return None
            slots = _pinned(read_probe[0])
            if not slots:
                break
            pins |= {slot: numbers[slot] for slot in slots}
        else:
            return None
        if _shape(read) != _shape(read_probe) or not all(map(_is_plain, pins.values())):
            return None
        records, noted, behind = read_probe
        rows = [layout_of(record, stamp.strip()) for record in records]
        if self.form.gaps and any("  " in str(text) for row in rows for _, text in row.cells):
            return None
        self.state = self.states.setdefault(behind, len(self.states))
        guards = [Guard(slot, int(text), int(text)) for slot, text in pins.items()]
        levels = " ".join(text for record in records for text in _levels_of(record))
        guards += [Guard(slot, 0, _LARGEST_LEVEL) for slot in layouts.slots_in(levels)]
        return PieceLayout(tuple(rows), noted, tuple(guards))

    def _read(self, text: str, state: Hashable) -> _Read | None:
        """Read one output behind its time; None if it is not to be read by a layout."""
        issues = IssueLog()
        records, behind = self.form.read_part(text, issues, state, Place())
        outputs = {record.output for record in records.entries}
        if (
            outputs != {0}
            or records.lost
            or records.before
            or (self.form.is_whole and issues.total())
        ):
            return None
        if any(record.moment is not None for record in records.entries):
            return None
        noted = tuple((_fault_of(issue), issue.count) for issue in issues)
        return records.entries, noted, behind


def _fault_of(issue: Issue) -> Fault:
    return Fault(issue.code, issue.severity, issue.meaning, issue.events)


_Read = tuple[list[Record], tuple[tuple[Fault, int], ...], Hashable]


def _shape(read: _Read) -> Any:
    """Return what of an output's records must not depend on its numbers."""
    records, noted, behind = read
    of_records = [
        (r.card, list(r.values), [(c, len(levels)) for c, levels in r.levels.items()])
        for r in records
    ]
    return of_records, noted, behind


def _pinned(records: Iterable[Record]) -> set[int]:
    """Return the numbers of a probe that say which card or key something is."""
    texts = [
        text for record in records for text in (str(record.card), *record.values, *record.levels)
    ]
    return {slot for text in texts for slot in layouts.slots_in(text)}


def _levels_of(record: Record) -> list[str]:
    return [repr(level) for levels in record.levels.values() for level in levels]


def _is_plain(text: str) -> bool:
    """True if no other whole number that is written plainly has the same value."""
    return text.isdigit() and text == str(int(text))


def layout_of(record: Record, stamp: str) -> Layout:
    """Return the layout of a record of a probe, and of the time that it has, empty if none."""
    wholes = (_has_values(record), record.card, -1)
    return Layout(tuple(map(layouts.constant, wholes)), (stamp,), tuple(cells_of(record)))


def cells_of(record: Record) -> Iterable[tuple[Key, str]]:
    """Yield the texts of a record by column."""
    for key, text in record.values.items():
        if record.card != SYSTEM and is_value(key):
            yield (VALUE, key), text
        if is_fact(key):
            yield (FACT, key), text
    for clock, levels in record.levels.items():
        yield (LEVELS, clock), " ".join(map(repr, levels))


def parsed(key: Key, text: str) -> Cell:
    """Return the cell of a text in a column."""
    return cell_of_text(text) if key[0] == VALUE else Cell((Item(text),))


@lru_cache(maxsize=1 << 14)  # the same keys come in every row
def is_value(key: str) -> bool:
    """True if a key is one of values in time."""
    return not rocm_smi_lanes.DESCRIBING.fullmatch(key)


@lru_cache(maxsize=1 << 14)
def is_fact(key: str) -> bool:
    """True if a key is one of names and facts of cards."""
    return any(re.fullmatch(known, key, re.IGNORECASE) for known in rocm_smi_lanes.OF_CARDS)


def _has_values(record: Record) -> bool:
    return record.card != SYSTEM and any(is_value(key) for key in record.values)


def table_of(records: Records) -> RecordTable:
    """Return the table of records that were read one by one."""
    collector = RecordCollector(records.issues)
    collector.take(records)
    return collector.finish(None)


def read_outputs(text: str, form: Form[Any], issues: IssueLog) -> RecordTable:
    """Read a text of outputs.

    Parameters
    ----------
    text
        The file.
    form
        Its form.
    issues
        Where it is counted what could not be read.
    """
    here = IssueLog(issues.source)
    try:
        table = _read_by_layouts(text, form, here)
    except IrregularError:
        return table_of(form.read_part(text, issues, form.initial, Place())[0])
    issues.extend(here)
    return table


def _read_by_layouts(text: str, form: Form[Any], issues: IssueLog) -> RecordTable:
    data = encoded(text)
    starts, places = _starts(data, form)
    last = data[places[-1] :].tobytes().decode()
    reader = _OutputReader(issues, form=form, lines=starts, last_character=len(text) - len(last))
    ends = np.append(places[1:], len(data))
    return reader.finish(read_pieces(data, places, ends, reader, gaps=form.gaps))


def _starts(data: Bytes, form: Form[Any]) -> tuple[Array, Array]:
    """Return the lines with which outputs begin, a time or else what marks their begin, and where these are."""
    line, place = starts_of(
        data,
        byte_table(form.no_mark, but=True),
        lambda template, _: _mark_of(template, form),
        lambda line: _mark(line, form),
    )
    if len(place) and place[0] == 0:
        return line, place
    return np.append([0], line), np.append([0], place)


def _mark_of(template: str, form: Form[Any]) -> int:
    """Return what lines of a template mark; those that look like a time are taken for one."""
    if chr(NUMBER) not in template:
        return _mark(template.replace(chr(GAP), "  "), form)
    line = template.strip()
    if form.begins(line.replace(chr(NUMBER), "1")):
        return BEGIN
    if len(line) > _LONGEST_STAMP:
        return NO_MARK
    is_epoch = line.count(chr(NUMBER)) == 1 and _EPOCH_SHAPE.fullmatch(line)
    return STAMP if _CLOCK_SHAPE in line or is_epoch else NO_MARK


def _mark(line: str, form: Form[Any]) -> int:
    if form.begins(line.rstrip("\r \0")):
        return BEGIN
    return STAMP if parse_labelled_timestamp(line) is not None else NO_MARK
