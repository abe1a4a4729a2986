"""Files as which SQLite databases can be opened without writing next to them.

That is the file itself, or a copy in a temporary folder. A copy is needed of a file that

* is compressed;
* has a journal or a write-ahead log next to it, whose changes belong to the database;
* ends within a page: SQLite would read null for the cells that are missing.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import Fault

if TYPE_CHECKING:
    from chopper_interop.issues import IssueLog

MAGIC = b"SQLite format 3\0"
"""First bytes of every database."""

PRAGMAS = (
    "PRAGMA writable_schema=ON",  # else a truncated file is refused
    "PRAGMA trusted_schema=OFF",
)
"""Run on each connection."""
LOGS = ("-wal", "-journal")
"""Endings of files next to a database whose changes belong to it."""
COMPANIONS = (*LOGS, "-shm")
"""Endings of all files that SQLite keeps next to a database; the last holds locks and an index."""
_TEXT_RATIO = 2
"""Bytes of a cell for each of the file's, at most: UTF-16 becomes up to 1.5 times as long in UTF-8."""
_MIN_LONGEST, _MAX_LONGEST = 1 << 20, 10**9
"""Bytes of a cell that are never refused (chosen: the program's own SQL must fit), and SQLite's own limit."""
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
_HEADER, _MIN_PAGE, _MAX_PAGE = 100, 512, 65536
"""Bytes of the header and of pages, as SQLite's file format defines them."""
_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""Begins the header of a rollback journal and ends the record that names a super-journal (SQLite's pager.c)."""
_LOG_HEADER, _FRAME_HEADER, _COMMIT, _SALTS = 32, 24, slice(4, 8), slice(8, 16)
"""Bytes of the headers of a write-ahead log and of each of its pages. The latter state the size of the database at the
last page of a transaction, else 0, and the salts, by which pages of an older log are known (SQLite's file format)."""
LOG_DAMAGED = Fault.loss(
    "database-log-damaged",
    "Transactions of a database's journal or write-ahead log were left out, because it is damaged.",
)
_COPIED = 1 << 20
"""Bytes that are copied at a time (chosen: few calls, little memory)."""


def plain_database(path: Path, make_folder: Callable[[], Path], issues: IssueLog) -> Path:
    """Return the database as a plain file of complete pages that nobody else writes.

    Parameters
    ----------
    path
        The file, plain or compressed.
    make_folder
        Makes a temporary folder, which the caller removes.
    issues
        Where to note that compressed data ends too early, or that a log is damaged.

    Raises
    ------
    ReadError
        It is no database, is not there, or cannot be copied.
    """
    try:
        size = path.stat().st_size
        with inputs.opened(path) as file:
            head = file.read(_HEADER)
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror or error}", path=path) from error
    try:
        if not head.startswith(MAGIC):
            return _decompressed(path, make_folder, issues)
        complete = _complete_size(path, head, size)
        candidates = [Path(f"{path}{end}") for end in LOGS]
        logs = [log for log in candidates if log.is_file() and log.stat().st_size]
        if not logs and complete == size:
            return path
        return _copied(path, make_folder() / "copy.db", logs, complete, issues)
    except OSError as error:
        reason = f"it cannot be copied to a temporary folder: {error.strerror or error}"
        raise ReadError(reason, path=path, hint="name a larger one in TMPDIR") from error


def connection(plain: Path, *, check_same_thread: bool = True) -> sqlite3.Connection:
    """Open a plain database to be read alone; its cells are no longer than the file.

    Raises
    ------
    OSError
        Something else took its place.
    """
    with inputs.opened_by_name(plain):
        opened = sqlite3.connect(uri(plain), uri=True, check_same_thread=check_same_thread)
    if hasattr(opened, "setlimit"):  # from Python 3.11 on
        longest = max(_TEXT_RATIO * plain.stat().st_size, _MIN_LONGEST)
        for limit, value in (("LENGTH", longest), ("ATTACHED", 0), ("TRIGGER_DEPTH", 0)):
            opened.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{limit}"), min(value, _MAX_LONGEST))
    for pragma in PRAGMAS:
        opened.execute(pragma)
    return opened


def uri(plain: Path) -> str:
    """Return the URI of a plain database that opens it as immutable."""
    return f"file:{quote(os.fsencode(plain.resolve()))}?mode=ro&immutable=1"


def mentions_table(head: bytes, *names: str) -> bool:
    """Return True if a file begins as a database whose first pages name one of these tables.

    The definitions of the tables that were created first are there, in UTF-8 or UTF-16.
    """
    if not head.startswith(MAGIC):
        return False
    return any(n.encode(code) in head for n in names for code in _ENCODINGS)


def not_a_database(path: Path) -> ReadError:
    """Return the error for a file that is no database."""
    return ReadError("it is no SQLite database, or an encrypted one", path=path)


def _copied(path: Path, to: Path, logs: list[Path], complete: int, issues: IssueLog) -> Path:
    """Copy so many bytes of a database; if it has logs, the database with their changes."""
    _copy(path, to)
    if not logs:
        os.truncate(to, complete)
        return to
    for log in logs:
        copied = Path(f"{to}{log.name[len(path.name) :]}")
        _copy(log, copied)
        if _names_another_file(copied):
            reason = (
                "its journal is of a transaction over several databases, whose end is not known"
            )
            hint = f"copy it where it was written: sqlite3 {path.name} '.backup COPY'"
            raise ReadError(reason, path=path, hint=hint)
    try:
        with closing(sqlite3.connect(to)) as copy:
            copy.execute("PRAGMA writable_schema=ON")
            copy.execute("SELECT count(*) FROM sqlite_master").fetchall()
            (_, applied, _) = copy.execute("PRAGMA wal_checkpoint").fetchone()
            issues.add(LOG_DAMAGED, _transactions_behind(applied, Path(f"{to}-wal")), path.name)
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()
    except sqlite3.Error:
        issues.add(LOG_DAMAGED, 1, path.name)
        _copy(path, to)  # the file as it is
    return to


def _transactions_behind(applied: int, log: Path) -> int:
    """Count transactions of a write-ahead log behind the pages that SQLite applied: it stops at the first damaged one.

    A transaction without its last page was not finished. Pages of other salts are left of an older log.
    """
    if not log.exists():
        return 0
    with log.open("rb") as file:
        header = np.frombuffer(file.read(_LOG_HEADER).ljust(_LOG_HEADER, b"\0"), np.uint8)
    page = int.from_bytes(header[8:12], "big")
    if not _MIN_PAGE <= page <= _MAX_PAGE:
        return 1
    frame = page + _FRAME_HEADER
    count = (log.stat().st_size - _LOG_HEADER) // frame
    if count <= 0:
        return 0
    frames = np.memmap(log, np.uint8, "r", _LOG_HEADER, (count, frame))
    behind = frames[max(applied, 0) :]
    stated = (header[16:24], frames[0, _SALTS])  # equal but for damage
    same_log = np.any([(behind[:, _SALTS] == salts).all(axis=1) for salts in stated], axis=0)
    return int((same_log & behind[:, _COMMIT].any(axis=1)).sum())


def _names_another_file(journal: Path) -> bool:
    """True if a journal ends with the name of a file of others, which SQLite would open, and remove at the end."""
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - len(_JOURNAL)))
        return file.read() == _JOURNAL


def _copy(path: Path, to: Path) -> None:
    with inputs.opened(path) as file, to.open("wb") as copy:
        shutil.copyfileobj(file, copy, _COPIED)


def _decompressed(path: Path, make_folder: Callable[[], Path], issues: IssueLog) -> Path:
    data = inputs.read(path, issues)
    head = bytes(data[:_HEADER])
    if not head.startswith(MAGIC):
        raise not_a_database(path)
    to = make_folder() / "unpacked.db"
    data[: _complete_size(path, head, len(data))].tofile(to)
    return to


def _complete_size(path: Path, head: bytes, size: int) -> int:
    """Bytes of the complete pages of a file; its header states the size of a page."""
    stated = int.from_bytes(head[16:18], "big")
    page = _MAX_PAGE if stated == 1 else max(stated, _MIN_PAGE)
    if size < page:
        raise ReadError("it ends within its first page", path=path)
    return size - size % page
