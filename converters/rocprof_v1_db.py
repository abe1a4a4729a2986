"""Databases of rocprof v1 (NAME.db)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.converters.rocprof_reach import within
from chopper_interop.converters.rocprof_rows import Rows
from chopper_interop.converters.rocprof_tables import (
    DISPATCHES,
    INTEGERS,
    columns_of,
    is_left_out,
    measured,
)
from chopper_interop.converters.rocprof_v1_sections import (
    DEVICE,
    KERN,
    MARKED,
    NUMBERS,
    SECTIONS,
    TEXTS,
    Column,
    rows_of,
)
from chopper_interop.files import sqlite_look
from chopper_interop.files.sqlite_files import MAGIC

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.issues import IssueLog

_TABLE = re.compile(
    rb'CREATE TABLE "?(?:KERN|HIP|HSA|OPS|COPY|rocTX)"?\s*\(\s*"(?:Index|BeginNs)"', re.IGNORECASE
)


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a database of rocprof v1."""
    return head.startswith(MAGIC) and _TABLE.search(head) is not None


def confirms(path: Path, head: bytes) -> bool:
    """Whether a database has a table of rocprof v1, whatever its first bytes say."""
    if not head.startswith(MAGIC):
        return False
    tables = sqlite_look.tables_of(path)
    if tables is None:
        return sniff(head)
    return any(_TABLE.match(sql.encode()) for sql in tables.values())


def tables_of(path: Path, issues: IssueLog) -> tuple[dict[str, Rows], list[Rows]]:
    """Tables of a database: those of calls and operations by name, and those of dispatches.

    Raises
    ------
    ReadError
        It cannot be read at all.
    """
    from chopper_interop.files.sqlite import INTEGER, TEXT, Database

    found: dict[str, Rows] = {}
    with Database(path, issues) as database:
        for section in SECTIONS:
            names = database.columns(section.name)
            wanted = {n: INTEGER for n in names if n in NUMBERS or n == DEVICE}
            texts = {n: TEXT for n in names if n in TEXTS}
            if not wanted or not texts:
                continue
            table = database.read(section.name, {**wanted, **texts})
            if table.num_rows:
                found[section.name] = rows_of(
                    section,
                    {n: _integers(table[n]) for n in wanted},
                    {n: encoded(table[n]) for n in texts},
                    marked=MARKED in names,
                    where=path.name,
                    issues=issues,
                )
        dispatches = _dispatches(database, path.name, issues)
    return found, [dispatches] if dispatches.count else []


def _dispatches(database: Any, where: str, issues: IssueLog) -> Rows:
    from chopper_interop.files.sqlite import INTEGER, REAL, TEXT

    titles = list(database.columns(KERN))
    names = columns_of(titles)
    if not DISPATCHES.needs <= set(names):
        return Rows(DISPATCHES, 0)
    counters = measured(DISPATCHES, names)
    types = {
        title: INTEGER if name in INTEGERS else REAL if name in counters else TEXT
        for title, name in zip(titles, names, strict=True)
        if not is_left_out(name)
    }
    table = database.read(KERN, types)
    of = dict(zip(titles, names, strict=True))
    numbers = {of[t]: _integers(table[t]) for t, kind in types.items() if kind == INTEGER}
    rows = Rows(
        DISPATCHES,
        table.num_rows,
        numbers={name: column.value for name, column in numbers.items()},
        known={name: column.known for name, column in numbers.items()},
        texts={of[t]: encoded(table[t]) for t, kind in types.items() if kind == TEXT},
        counters={t: _reals(table[t]) for t, kind in types.items() if kind == REAL},
        where=f"{where}, {KERN}",
    )
    return within(rows, issues)


def _integers(column: Any) -> Column:
    flat = arrow.flat(column)
    return Column(arrow.numbers(flat), arrow.known(flat))


def _reals(column: Any) -> Any:
    return np.array(arrow.numbers(arrow.flat(column), np.nan), np.float64)


def encoded(column: Any) -> Any:
    """A column of text as a dictionary of its distinct texts."""
    return arrow.flat(column.dictionary_encode().unify_dictionaries())
