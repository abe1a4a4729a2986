"""Databases of rocprof v1 (NAME.db)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.converters.rocm.csv_headers import column_names, counter_columns, is_ignored
from chopper_interop.converters.rocm.tables import DISPATCHES, INTEGERS
from chopper_interop.converters.rocprof.v1 import sections
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows
    from chopper_interop.io.sqlite import Database


def read_database(path: Path, issues: IssueLog) -> tuple[dict[str, TableRows], list[TableRows]]:
    """Read a database: its tables of calls and operations by name, and those of dispatches.

    Raises
    ------
    ReadError
        It cannot be read at all.
    """
    from chopper_interop.io.sqlite import INTEGER, TEXT, Database

    tables: dict[str, TableRows] = {}
    with Database(path, issues) as database:
        for section in sections.SECTIONS:
            names = database.columns(section.name)
            integers = {n: INTEGER for n in names if n in sections.NUMBERS or n == sections.DEVICE}
            texts = {n: TEXT for n in names if n in sections.TEXTS}
            if not integers or not texts:
                continue
            table = database.read(section.name, {**integers, **texts})
            if table.num_rows:
                tables[section.name] = sections.section_rows(
                    section,
                    {n: sections.IntegerColumn.from_arrow(table[n]) for n in integers},
                    {n: _encoded(table[n]) for n in texts},
                    marked=sections.MARKED in names,
                    where=path.name,
                    issues=issues,
                )
        dispatches = _read_dispatches(database, path.name, issues)
    return tables, dispatches


def _read_dispatches(database: Database, where: str, issues: IssueLog) -> list[TableRows]:
    from chopper_interop.io.sqlite import INTEGER, REAL, TEXT

    titles = list(database.columns(sections.KERN))
    names = column_names(titles)
    if not DISPATCHES.required <= set(names):
        return []
    counters = counter_columns(DISPATCHES, names)
    types = {
        title: INTEGER if name in INTEGERS else REAL if name in counters else TEXT
        for title, name in zip(titles, names, strict=True)
        if not is_ignored(name)
    }
    table = database.read(sections.KERN, types)
    name_of = dict(zip(titles, names, strict=True))
    rows = sections.dispatch_rows(
        table.num_rows,
        {
            name_of[t]: sections.IntegerColumn.from_arrow(table[t])
            for t, kind in types.items()
            if kind == INTEGER
        },
        {name_of[t]: _encoded(table[t]) for t, kind in types.items() if kind == TEXT},
        {t: _reals(table[t]) for t, kind in types.items() if kind == REAL},
        where,
        issues,
    )
    return [rows] if rows.count else []


def _reals(column: Any) -> Any:
    return np.array(arrow.to_numpy(arrow.single_chunk(column), np.nan), np.float64)


def _encoded(column: Any) -> Any:
    """Return a column of text as a dictionary of its distinct texts."""
    return arrow.single_chunk(column.dictionary_encode().unify_dictionaries())
