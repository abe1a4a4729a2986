"""Pattern of a table's rows around their free text, by which broken rows are put together."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from chopper_interop.converters.rocm.csv_headers import split_csv_line
from chopper_interop.converters.rocm.tables import INTEGERS, VALUE

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.tables import TableFormat

_NUMBER = r"(?:-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)?"
_TIME = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_TIMES = ("start", "end")
_PATTERNS = {
    "start": _TIME, "end": _TIME, "domain": r"[A-Z][A-Z0-9_]*", "kind": r"[A-Z][A-Za-z0-9_ ]*",
    "guid": r"[0-9a-fA-F-]*", "agent": r"(?:[A-Za-z]+ )?\d*", VALUE: r"[-+.\w]*",
}  # fmt: skip
"""Contents of columns, without quotes. Other columns of text are free of quotes and commas, and all
further columns hold integers or decimal numbers."""


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
        patterns = [_field_pattern(name) for name in columns]
        begin = "".join(f"{p}," for p in patterns[: max(self.free, 0)])
        end = "".join(f",{p}" for p in patterns[self.free + 1 :]) + r"\s*"
        self._begin = re.compile(begin)
        self._end = re.compile(f".*{end}", re.DOTALL)
        self._row = re.compile(f"(?P<begin>{begin})(?P<free>.*?)(?P<after>{end})", re.DOTALL)
        self._checks = [re.compile(p) for p in patterns]
        self._has_times = {"start", "end"} <= set(columns)

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
