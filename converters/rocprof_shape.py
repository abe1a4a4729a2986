"""What a row of a table looks like around its free text: how broken rows are told and split."""

from __future__ import annotations

import csv
import re
from decimal import Decimal
from typing import TYPE_CHECKING

from chopper_interop.converters.rocprof_tables import INTEGERS, VALUE

if TYPE_CHECKING:
    from chopper_interop.converters.rocprof_tables import Format

_NUMBER = r"(?:-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)?"
_TIME = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_TIMES = ("start", "end")
_PATTERNS = {
    "start": _TIME,
    "end": _TIME,
    "domain": r"[A-Z][A-Z0-9_]*",
    "kind": r"[A-Z][A-Za-z0-9_ ]*",
    "guid": r"[0-9a-fA-F-]*",
    "agent": r"(?:[A-Za-z]+ )?\d*",
    VALUE: r"[-+.\w]*",
}
"""What stands in a column, without quotes; texts are otherwise free of quotes and commas, and all
other columns hold whole or decimal numbers."""


class Shape:
    """How rows of a table begin and end.

    Parameters
    ----------
    form
        The table.
    columns
        Its columns, as a file has them.
    """

    def __init__(self, form: Format, columns: list[str]) -> None:
        self.columns = columns
        self.free = columns.index(form.free) if form.free in columns else -1
        patterns = [_field(name) for name in columns]
        begin = "".join(f"{p}," for p in patterns[: max(self.free, 0)])
        end = "".join(f",{p}" for p in patterns[self.free + 1 :]) + r"\s*"
        self._begin = re.compile(begin)
        self._end = re.compile(f".*{end}", re.DOTALL)
        self._row = re.compile(f"(?P<begin>{begin})(?P<free>.*?)(?P<after>{end})", re.DOTALL)
        self._checks = [re.compile(p) for p in patterns]
        self._has_times = {"start", "end"} <= set(columns)

    def begins_row(self, text: str, like: str = "") -> bool:
        """Whether a row may begin with this line, its quotes as in another that is begun."""
        begin = self._begin.match(text) if self.free > 0 else None
        return begin is not None and (not like or self._quotes(text) == self._quotes(like))

    def _quotes(self, text: str) -> tuple[bool, bool]:
        """Whether a row's first field is within quotes, and whether its free text is."""
        begin = self._begin.match(text)
        return text.startswith('"'), begin is not None and text.startswith('"', begin.end())

    def ends_row(self, text: str) -> bool:
        """Whether a row may end with this line: what follows the free text is all there."""
        return self.free >= 0 and self._end.fullmatch(text) is not None

    def proper(self, text: str) -> str | None:
        """A row as RFC 4180 has it; None if the text is no row, however its quotes are read."""
        if text.count(",") < len(self.columns) - 1:
            return None
        row = split(text)
        if row is not None and len(row) == len(self.columns) and self._plausible(row):
            return text
        found = self._row.fullmatch(text) if self.free >= 0 else None
        if found is None:
            return None
        begin, free, end = found["begin"], found["free"], found["after"]
        message = _unquoted(free)
        if message is None or not self._in_order(found):
            return None
        escaped = message.replace('"', '""')
        return f'{begin}"{escaped}"{end.rstrip()}'

    def _in_order(self, row: re.Match[str]) -> bool:
        """Whether the end is not before the start: a row with a field too many shows so."""
        if not self._has_times:
            return True
        start, end = (row[name].strip('"') for name in ("start", "end"))
        return not (start.isdecimal() and end.isdecimal()) or Decimal(start) <= Decimal(end)

    def _plausible(self, row: list[str]) -> bool:
        return all(
            i == self.free or check.fullmatch(value)
            for i, (check, value) in enumerate(zip(self._checks, row, strict=True))
        )


def split(text: str) -> list[str] | None:
    """The fields of a line as RFC 4180 has it; None if it is no such line."""
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None


def _field(name: str) -> str:
    inner = _PATTERNS.get(name, _NUMBER if name in INTEGERS else None)
    if inner is None:
        return r'(?:"[^"\n]*"|[^",\n]*)'
    group = f"?P<{name}>" if name in _TIMES else "?:"
    return rf'({group}"{inner}"|{inner})'


def _unquoted(text: str) -> str | None:
    """Free text without the quotes around it; None if there is a quote at its begin alone."""
    if not text.startswith('"'):
        return text
    return text[1:-1] if len(text) > 1 and text.endswith('"') else None
