"""Which tables a database has, for telling formats apart.

The first bytes of a database tell it only while its schema lies there: tables that are made late,
a schema of several pages, ``VACUUM`` and write-ahead logs move the definitions elsewhere.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from chopper_interop.errors import ReadError
from chopper_interop.files import sqlite_files
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN = 3


def tables_of(path: Path) -> dict[str, str] | None:
    """A database's tables in the order in which they were made: name → the SQL that made it.

    Parameters
    ----------
    path
        The file, plain or packed. What lies beside it (``-wal``) counts, and stays as it is.

    Returns
    -------
    dict or None
        None if it is no database, or so damaged that its schema cannot be read.
    """
    about = [Path(f"{path}{end}") for end in ("", "-wal", "-journal")]
    state = tuple((p.stat().st_size, p.stat().st_mtime_ns) for p in about if p.is_file())
    return _tables_of(path, state)


def has_tables(
    path: Path, head: bytes, beginnings: Iterable[str], others: Iterable[str] = ()
) -> bool:
    """Whether a database has tables whose names begin so, and none that begin as others do.

    Parameters
    ----------
    path, head
        The file and its first bytes, which tell if the schema cannot be read.
    beginnings, others
        Beginnings of names, in lower case.
    """
    if not head.startswith(sqlite_files.MAGIC):
        return False
    found = tables_of(path)
    if found is None:
        named = sqlite_files.names_table(head, *beginnings)
        return named and not sqlite_files.names_table(head, *others)
    names = [name.lower() for name in found]
    own, foreign = tuple(beginnings), tuple(others)
    return any(n.startswith(own) for n in names) and not any(n.startswith(foreign) for n in names)


def described(path: Path, head: bytes) -> str:
    """What people are told of a database of no known format; empty for other files."""
    if not head.startswith(sqlite_files.MAGIC):
        return ""
    found = tables_of(path)
    if found is None:
        return "an SQLite database whose schema is damaged"
    if not found:
        return "an SQLite database without tables"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"an SQLite database with the tables {', '.join(list(found)[:_SHOWN])}{more}"


@lru_cache(maxsize=64)
def _tables_of(path: Path, state: tuple[tuple[int, int], ...]) -> dict[str, str] | None:
    del state  # a file that changed is another one
    with tempfile.TemporaryDirectory(prefix="chopper-") as folder:
        try:
            placed = sqlite_files.placed(path, lambda: Path(folder), IssueLog())
            uri = f"file:{quote(os.fsencode(placed.resolve()))}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as base:
                base.execute("PRAGMA writable_schema=ON")  # else a file cut short is refused
                rows = base.execute(
                    "SELECT CAST(name AS TEXT), CAST(sql AS TEXT) FROM sqlite_master "
                    "WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY rowid"
                ).fetchall()
        except (sqlite3.Error, UnicodeDecodeError, ReadError):
            return None
    return {str(name): str(sql) for name, sql in rows}
