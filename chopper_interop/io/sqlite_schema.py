"""Tables of a database, by which formats are distinguished.

The first bytes of a database show them only while its schema is there: tables that are created
late, a schema of several pages, ``VACUUM`` and write-ahead logs move the definitions elsewhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from chopper_interop.errors import ReadError
from chopper_interop.io import sqlite_files, temporary
from chopper_interop.issues import IssueLog

_MAX_SHOWN = 3
"""Tables of an unknown database that a message names (chosen: it stays one line)."""


def tables_of(path: Path) -> dict[str, str] | None:
    """Return a database's tables in the order of their creation: name → the SQL that created it.

    Parameters
    ----------
    path
        The file, plain or compressed. A write-ahead log next to it counts, and is not changed.

    Returns
    -------
    dict or None
        None if it is no database, or so damaged that its schema cannot be read.
    """
    files = [Path(f"{path}{end}") for end in ("", *sqlite_files.LOGS)]
    state = tuple((p.stat().st_size, p.stat().st_mtime_ns) for p in files if p.is_file())
    return _tables_of(path, state)


def has_tables(
    path: Path, head: bytes, beginnings: Iterable[str], others: Iterable[str] = ()
) -> bool:
    """Return True if names of a database's tables begin as `beginnings`, and none as `others`.

    Parameters
    ----------
    path, head
        The file and its first bytes, which are searched for names if its schema is damaged.
    beginnings, others
        Beginnings of names, in lower case.
    """
    if not head.startswith(sqlite_files.MAGIC):
        return False
    tables = tables_of(path)
    if tables is None:
        named = sqlite_files.mentions_table(head, *beginnings)
        return named and not sqlite_files.mentions_table(head, *others)
    names = [name.lower() for name in tables]
    required, excluded = tuple(beginnings), tuple(others)
    if any(name.startswith(excluded) for name in names):
        return False
    return any(name.startswith(required) for name in names)


def describe(path: Path, head: bytes) -> str:
    """Return a description of a database of unknown format, for a message; empty for other files."""
    if not head.startswith(sqlite_files.MAGIC):
        return ""
    tables = tables_of(path)
    if tables is None:
        return "an SQLite database whose schema is damaged"
    if not tables:
        return "an SQLite database without tables"
    more = f" and {len(tables) - _MAX_SHOWN} more" if len(tables) > _MAX_SHOWN else ""
    return f"an SQLite database with the tables {', '.join(list(tables)[:_MAX_SHOWN])}{more}"


@lru_cache(maxsize=64)
def _tables_of(path: Path, state: tuple[tuple[int, int], ...]) -> dict[str, str] | None:
    """`tables_of` a file, cached as long as `state`, sizes and times of change, stays the same."""
    del state
    with temporary.folder() as folder:
        try:
            plain = sqlite_files.plain_database(path, lambda: folder, IssueLog())
            with closing(sqlite_files.connection(plain)) as base:
                rows = base.execute(
                    "SELECT CAST(name AS TEXT), CAST(sql AS TEXT) FROM sqlite_master "
                    "WHERE type = 'table' AND rootpage > 0 AND name NOT LIKE 'sqlite~_%' ESCAPE '~' "
                    "ORDER BY rowid"
                ).fetchall()
        except (sqlite3.Error, UnicodeDecodeError, OSError, ReadError, MemoryError):
            return None  # SQLite may take a damaged length for one that no memory has
    return {str(name): str(sql) for name, sql in rows}
