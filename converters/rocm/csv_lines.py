"""Lines of CSV files of ROCm's profilers: proper rows, and the repair of broken ones.

rocprofv3 puts texts between quotes and escapes nothing in them, so that a roctx message with a
quote or a line end breaks its row (``lib/output/csv.hpp``); ``rocpd convert`` doubles quotes as
RFC 4180 says. One fast scan of all bytes finds the lines that are not one proper row each. Those
few are put together by the fields around the free text, and written again by RFC 4180: the result
can be read by any CSV reader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.rocm import csv_headers
from chopper_interop.converters.rocm.csv_headers import split_csv_line
from chopper_interop.converters.rocm.tables import INTEGERS, VALUE, TableFormat
from chopper_interop.issues import Fault, IssueLog

UNREADABLE = Fault.loss_of_events(
    "row-unreadable", "Lines of a CSV file that are no row of its table were left out."
)
CUT_SHORT = Fault.loss_of_events(
    "row-cut-short", "A CSV file ends within a row: that row and what was to follow are missing."
)
REPAIRED = Fault.info(
    "row-repaired",
    "Rows whose text holds quotes, commas or line ends that were not escaped were "
    "put together again.",
)

_QUOTE, _COMMA, _NEWLINE, _RETURN, _ZERO, _NINE, _BLANK_UP_TO = b'",\n\r09 '
_FIELD_START, _PLAIN, _QUOTED, _CLOSED = range(4)
_ODD, _BLANK, _WORDS = range(3)
_NUMBER = r"(?:-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)?"
_TIME = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_TIMES = ("start", "end")
_PATTERNS = {
    "start": _TIME, "end": _TIME, "domain": r"[A-Z][A-Z0-9_]*", "kind": r"[A-Z][A-Za-z0-9_ ]*",
    "guid": r"[0-9a-fA-F-]*", "agent": r"(?:[A-Za-z]+ )?\d*", VALUE: r"[-+.\w]*",
}  # fmt: skip
"""Contents of columns, without quotes. Other columns of text are free of quotes and commas, and all
further columns hold integers or decimal numbers."""


@dataclass(frozen=True)
class CsvSection:
    """Rows of one table, below one header.

    Parameters
    ----------
    form
        The table.
    columns
        Its columns, by the names of `COLUMNS`.
    titles
        Their names in the header.
    pieces
        Bytes of the rows, each a proper row of CSV.
    longest
        Bytes of the longest row.
    folded
        Whether line ends stand within quotes.
    open_end
        Whether the last row lacks the line end that rocprofv3 writes.
    """

    form: TableFormat
    columns: list[str]
    titles: list[str]
    pieces: list[Any]
    longest: int
    folded: bool
    open_end: bool

    def buffer(self) -> Any:
        """Return all rows as one buffer; not copied if they are contiguous in the file."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(map(memoryview, self.pieces))


def csv_sections(data: Array, name: str, issues: IssueLog) -> list[CsvSection]:
    """Split a file into the rows below each of its headers: appended files have several.

    Parameters
    ----------
    data
        The file's bytes, which begin with the header of a known table.
    name
        Name of the file in examples.
    issues
        Log of what is lost.
    """
    sections = []
    at, number = _skip_blank(data)
    while at < len(data):
        body = min(_line_end(data, at) + 1, len(data))
        header = csv_headers.header_names(data[at:body].tobytes(), body - at)
        form, columns = csv_headers.table_format(header), csv_headers.column_names(header)
        assert form is not None  # noqa: S101 - only headers of known tables begin a section
        ending = "\r" if data[at:body].tobytes().endswith(b"\r\n") else ""
        odd, longest = _odd_lines(data, body, len(columns))
        stop = _next_header(data, odd)
        at = int(odd.start[stop]) if stop < len(odd.start) else len(data)
        repair = _RowRepair(RowPattern(form, columns), data, ending, f"{name}, line", issues)
        repair.run(odd, stop, at, number + 1)
        sections.append(
            CsvSection(
                form,
                columns,
                [title.strip(csv_headers.BLANKS + '"') for title in header],
                _pieces(data, (body, at), repair.replaced),
                longest + repair.longest,
                repair.folded,
                open_end=at == len(data) and at > body and data[at - 1] != _NEWLINE,
            )
        )
        number += 1 + int(odd.number[stop]) if stop < len(odd.start) else 0
    return sections


def _skip_blank(data: Array) -> tuple[int, int]:
    """Return the offset and the number of the first line that is not blank."""
    at, number = 0, 1
    while at < len(data):
        end = _line_end(data, at)
        if _text(data, at, end).strip(csv_headers.BLANKS):
            break
        at, number = end + 1, number + 1
    return at, number


def _line_end(data: Array, at: int) -> int:
    """Return the offset of the line end of the line at `at`."""
    for start in range(at, len(data), csv_headers.MAX_HEADER):
        newlines = np.flatnonzero(data[start : start + csv_headers.MAX_HEADER] == _NEWLINE)
        if newlines.size:
            return start + int(newlines[0])
    return len(data)


def _text(data: Array, start: int, stop: int) -> str:
    return data[start:stop].tobytes().decode("utf-8", "surrogateescape")


class _OddLines(NamedTuple):
    """Lines that are no proper rows: their offsets, numbers from 0, and contents (`_ODD`, …)."""

    start: Array
    stop: Array
    number: Array
    content: Array


def _odd_lines(data: Array, at: int, width: int) -> tuple[_OddLines, int]:
    """Find lines from `at` on that are not `width` proper fields, and the length of the longest."""
    empty = _OddLines(*(np.empty(0, np.int64) for _ in range(4)))
    count, longest = _scan(data, at, width, empty)
    if not count:
        return empty, longest
    odd = _OddLines(*(np.empty(count, np.int64) for _ in range(4)))
    _scan(data, at, width, odd)
    return odd, longest


@jit_in_place
def _scan(data: Array, at: int, width: int, odd: _OddLines) -> tuple[int, int]:
    """Count lines that are no proper rows, and store them as far as there is room.

    A proper row has `width` fields, each free of quotes or within quotes of which inner ones are
    doubled, and somewhere a digit. Returns the count and the length of the longest line.
    """
    # compiled: a state machine over single bytes, which numpy cannot express
    count, longest, line, i, n = 0, 0, 0, at, len(data)
    while i < n:
        begin, fields, state, good, digit, blank = i, 1, _FIELD_START, True, False, True
        while i < n and data[i] != _NEWLINE:
            c = data[i]
            i += 1
            if c == _RETURN and (i == n or data[i] == _NEWLINE):
                continue
            blank = blank and c <= _BLANK_UP_TO
            digit = digit or _ZERO <= c <= _NINE
            if c == _QUOTE:
                good = good and state != _PLAIN
                state = _CLOSED if state == _QUOTED else _QUOTED
            elif c == _COMMA and state != _QUOTED:
                fields, state = fields + 1, _FIELD_START
            elif state != _QUOTED:
                good = good and state != _CLOSED and c != _RETURN
                state = _PLAIN
        longest = max(longest, i - begin)
        if not (good and digit and fields == width and state != _QUOTED):
            if count < len(odd.start):
                odd.start[count], odd.stop[count], odd.number[count] = begin, i, line
                odd.content[count] = _BLANK if blank else (_ODD if digit else _WORDS)
            count += 1
        line += 1
        i += 1
    return count, longest


def _next_header(data: Array, odd: _OddLines) -> int:
    """Return the index of the first odd line that is a header of a known table; their count if none."""
    for k in np.flatnonzero(odd.content == _WORDS).tolist():
        header = csv_headers.split_csv_line(
            _text(data, odd.start[k], odd.stop[k]).strip(csv_headers.BLANKS)
        )
        if header and csv_headers.table_format(header) is not None:
            return int(k)
    return len(odd.start)


def _pieces(
    data: Array, span: tuple[int, int], replaced: list[tuple[int, int, bytes]]
) -> list[Any]:
    """Return the bytes of a span, with some of its lines replaced."""
    at, end = span
    pieces: list[Any] = []
    for start, stop, row in replaced:
        if start > at:
            pieces.append(data[at:start])
        if row:
            pieces.append(row)
        at = min(stop + 1, end)
    if at < end or not pieces:
        pieces.append(data[at:end])
    return pieces


class _RowRepair:
    """Makes proper rows of odd lines; `ending` is a carriage return if one precedes line ends."""

    def __init__(
        self, pattern: RowPattern, data: Array, ending: str, where: str, issues: IssueLog
    ) -> None:
        self.pattern, self.data, self.ending = pattern, data, ending
        self.where, self.issues = where, issues
        self.replaced: list[tuple[int, int, bytes]] = []
        self.folded = False
        self.longest = 0
        self.repaired = 0
        self._last_repaired = 0
        self._open: list[str] = []
        self._begun = 0
        self._stray = False
        self._at = 0

    def run(self, odd: _OddLines, count: int, end: int, first: int) -> None:
        """Process the first `count` of the odd lines, all of which are before `end`.

        `first` is the number of the line that `odd.number` counts as 0.
        """
        spans = (odd.start[:count], odd.stop[:count], odd.number[:count], odd.content[:count])
        number = 0
        for start, stop, offset, content in zip(*(s.tolist() for s in spans), strict=True):
            self._complete(start, number + 1)
            self._give_up(UNREADABLE, adjacent=start == self._at)
            number = first + offset
            self._take(start, stop, number, content)
        self._complete(end, number + 1)
        self.issues.add(REPAIRED, self.repaired, f"{self.where} {self._last_repaired}")
        self._give_up(CUT_SHORT if self._at > len(self.data) else UNREADABLE)

    def _complete(self, end: int, number: int) -> None:
        """Append the lines up to `end` to the open row, up to one that may begin a row itself."""
        while self._open and not self._stray and self._at < end:
            stop = _line_end(self.data, self._at)
            if self.pattern.begins_row(_text(self.data, self._at, stop), self._open[0]):
                return
            self._take(self._at, stop, number, _ODD)
            number += 1

    def _take(self, start: int, stop: int, number: int, content: int) -> None:
        text = _text(self.data, start, stop).removesuffix(self.ending)
        self.replaced.append((start, stop, self._line(text, number, content)))
        self._at = stop + 1

    def _line(self, text: str, number: int, content: int) -> bytes:
        """Take a line, and return the row that it completes; empty if it completes none."""
        if self._stray:
            self._give_up(UNREADABLE)
        begins = self.pattern.begins_row(text, self._open[0] if self._open else "")
        if self._open and not begins and self.pattern.ends_row(text):
            row = self.pattern.proper("\n".join([*self._open, text]))
            if row:
                self._open, self._stray = [], False
                return self._row(row, number)
        row = self.pattern.proper(text)
        if row:
            self._give_up(UNREADABLE)
            return self._row(row, number)
        if begins:
            self._give_up(UNREADABLE)
            self._open, self._begun = [text], number
        elif self._open:
            self._open.append(text)
        elif content != _BLANK and text.strip(csv_headers.BLANKS):
            self._open, self._begun, self._stray = [text], number, True
        return b""

    def _row(self, text: str, number: int) -> bytes:
        row = text.encode("utf-8", "surrogateescape")
        self.folded = self.folded or b"\n" in row or b"\r" in row
        self.longest = max(self.longest, len(row) + 1)
        self.repaired, self._last_repaired = self.repaired + 1, number
        return row + b"\n"

    def _give_up(self, fault: Fault, *, adjacent: bool = False) -> None:
        """Count an open row as lost; not if the next odd line is `adjacent`, as that may complete the row."""
        if self._open and not adjacent:
            example = f"{self.where} {self._begun}: {self._open[0][:60]!r}"
            self.issues.add(fault, len(self._open), example)
            self._open, self._stray = [], False


class RowPattern:
    """Pattern of the rows of a table in a file.

    Parameters
    ----------
    form
        The table.
    columns
        Its columns, in the order of the file.
    """

    def __init__(self, form: TableFormat, columns: list[str]) -> None:
        self.columns = columns
        self.free = columns.index(form.free_text) if form.free_text in columns else -1
        self._fields = [_field_pattern(name) for name in columns]
        self._before = "".join(f"{p}," for p in self._fields[: max(self.free, 0)])
        self._after = "".join(f",{p}" for p in self._fields[self.free + 1 :]) + r"\s*"
        self._has_times = {"start", "end"} <= set(columns)

    # compiling takes longer than reading a short table, and only rows with quotes or faults need it

    @cached_property
    def _begin(self) -> re.Pattern[str]:
        return re.compile(self._before)

    @cached_property
    def _end(self) -> re.Pattern[str]:
        return re.compile(f".*{self._after}", re.DOTALL)

    @cached_property
    def _row(self) -> re.Pattern[str]:
        groups = f"(?P<begin>{self._before})(?P<free>.*?)(?P<after>{self._after})"
        return re.compile(groups, re.DOTALL)

    @cached_property
    def _checks(self) -> list[re.Pattern[str]]:
        return [re.compile(p) for p in self._fields]

    def begins_row(self, text: str, like: str = "") -> bool:
        """True if a row may begin with this line, with quotes as in another row's first line."""
        begin = self._begin.match(text) if self.free > 0 else None
        return begin is not None and (not like or self._quotes(text) == self._quotes(like))

    def _quotes(self, text: str) -> tuple[bool, bool]:
        """Return whether a row's first field is within quotes, and whether its free text is."""
        begin = self._begin.match(text)
        return text.startswith('"'), begin is not None and text.startswith('"', begin.end())

    def ends_row(self, text: str) -> bool:
        """True if a row may end with this line: all columns after the free text are in it."""
        return self.free >= 0 and self._end.fullmatch(text) is not None

    def proper(self, text: str) -> str | None:
        """Return a row by RFC 4180; None if the text is no row, however its quotes are read."""
        if text.count(",") < len(self.columns) - 1:
            return None
        row = split_csv_line(text)
        if row is not None and len(row) == len(self.columns) and self._has_valid_fields(row):
            return text
        match = self._row.fullmatch(text) if self.free >= 0 else None
        if match is None:
            return None
        begin, free, end = match["begin"], match["free"], match["after"]
        message = _unquoted(free)
        if message is None or not self._in_order(match):
            return None
        escaped = message.replace('"', '""')
        return f'{begin}"{escaped}"{end.rstrip()}'

    def _in_order(self, row: re.Match[str]) -> bool:
        """True unless the end is before the start, as in a row that was split wrongly."""
        if not self._has_times:
            return True
        start, end = (row[name].strip('"') for name in ("start", "end"))
        return not (start.isdecimal() and end.isdecimal()) or Decimal(start) <= Decimal(end)

    def _has_valid_fields(self, row: list[str]) -> bool:
        return all(
            i == self.free or check.fullmatch(value)
            for i, (check, value) in enumerate(zip(self._checks, row, strict=True))
        )


def _field_pattern(name: str) -> str:
    inner = _PATTERNS.get(name, _NUMBER if name in INTEGERS else None)
    if inner is None:
        return r'(?:"[^"\n]*"|[^",\n]*)'
    group = f"?P<{name}>" if name in _TIMES else "?:"
    return rf'({group}"{inner}"|{inner})'


def _unquoted(text: str) -> str | None:
    """Remove the quotes around free text; None if there is only one, at its beginning."""
    if not text.startswith('"'):
        return text
    return text[1:-1] if len(text) > 1 and text.endswith('"') else None
