"""Headers of CSV files: the names of their columns, and which table a header is of."""

from __future__ import annotations

import csv
from functools import lru_cache
from typing import TYPE_CHECKING

from chopper_interop.converters.rocm import tables

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.tables import TableFormat

BLANKS = " \t\r\n\0\ufeff"
"""Characters around a line that are no part of its fields."""
MAX_HEADER = 16 * 1024
"""Bytes of a header at most. Chosen: room for hundreds of counters' names; a file that is no table
may be one endless line, which is not searched further."""
_LAST_FILES = 2
"""Beginnings of files whose header is kept. Chosen: a dozen formats ask for that of one file after the other."""


def split_csv_line(text: str) -> list[str] | None:
    """Return the fields of a line by RFC 4180; None if it is no such line."""
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None


def header_names(head: bytes, limit: int = MAX_HEADER) -> list[str]:
    """Return the fields of the first line that is not blank; none if that is no line of CSV."""
    for line in head[:limit].split(b"\n"):
        text = line.decode("utf-8", "replace").strip(BLANKS)
        if text:
            return split_csv_line(text) or []
    return []


def plain_names(header: list[str]) -> frozenset[str]:
    """Return the names of a header in lower case, without blanks and quotes around them."""
    return frozenset(_plain(name) for name in header)


@lru_cache(_LAST_FILES)
def names_in(head: bytes) -> frozenset[str]:
    """Return the plain names of the header with which a file begins."""
    return plain_names(header_names(head, len(head)))


@lru_cache(_LAST_FILES)
def format_in(head: bytes) -> TableFormat | None:
    """Return the table with whose header a file begins; None if it is none of those that are read."""
    return table_format(header_names(head))


def column_names(header: list[str]) -> list[str]:
    """Return the columns of a header by the names of `COLUMNS`; unknown ones keep their names.

    Of a name that occurs twice the first counts: the others are called ``#4`` by their position.
    """
    plain = [_plain(name).replace(" ", "_") for name in header]
    names = [tables.COLUMNS.get(name, name) for name in plain]
    if "pid" in names:
        stands_for = "guid" if "process" in names else "process"
        names = [stands_for if name == "pid" else name for name in names]
    first = {name: i for i, name in reversed(list(enumerate(names)))}
    return [n if first[n] == i and n else f"#{i}" for i, n in enumerate(names)]


def counter_columns(form: TableFormat, columns: list[str]) -> frozenset[str]:
    """Return the columns of a wide table that hold the values of counters."""
    if not form.wide:
        return frozenset()
    known = set(tables.COLUMNS.values())
    return frozenset(c for c in columns if c not in known and not is_ignored(c))


def is_ignored(column: str) -> bool:
    """True if a column repeats another: such as ``wave_size_1``, which a merge of passes leaves."""
    base, _, number = column.rpartition("_")
    repeats = number.isdecimal() and (base in tables.OLD_COLUMNS or base in tables.MERGED)
    return column in tables.IGNORED or column.startswith("#") or repeats


def table_format(header: list[str]) -> TableFormat | None:
    """Return the table with this header; None if it is none of those that are read."""
    plain = plain_names(header)
    if is_statistics(plain) or is_samples(plain):
        return None
    names = set(column_names(header))
    fits = (f for f in tables.TABLE_FORMATS if f.required <= names and not f.excluded & names)
    return next(fits, None)


def is_statistics(plain: frozenset[str]) -> bool:
    """True if these plain names are of a table of statistics."""
    return plain >= tables.STATISTICS


def is_samples(plain: frozenset[str]) -> bool:
    """True if these plain names are of a table of samples."""
    spm, bare = tables.SPM_SAMPLES
    has_span = "start_timestamp" in plain
    return plain >= tables.PC_SAMPLES or (plain >= spm and not has_span) or plain == bare


def _plain(name: str) -> str:
    return name.strip().strip('"').strip().lower()
