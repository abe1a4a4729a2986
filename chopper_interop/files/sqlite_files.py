"""Where an SQLite database can be opened without a trace: where it lies, or a copy of it.

A copy in a temporary folder is taken of what is packed, of what has a journal or a write-ahead log
beside it, which count too, and of what ends within a page, of which SQLite would take the missing
cells for null.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.errors import ReadError
from chopper_interop.files import inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.issues import IssueLog

MAGIC = b"SQLite format 3\0"
"""How every database begins."""

_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
_HEADER, _SMALLEST_PAGE, _LARGEST_PAGE = 100, 512, 65536


def placed(path: Path, room: Callable[[], Path], issues: IssueLog) -> Path:
    """The database as a plain file of whole pages that nobody else writes.

    Parameters
    ----------
    path
        The file, plain or packed.
    room
        Makes a temporary folder, which is the caller's to remove.
    issues
        Where to note that compressed data ends too early.

    Raises
    ------
    ReadError
        It is no database, is not there, or cannot be copied.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEADER)
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror or error}", path=path) from error
    try:
        if not head.startswith(MAGIC):
            return _unpacked(path, room, issues)
        whole = _whole(path, head, size)
        logs = [Path(f"{path}{end}") for end in ("-wal", "-journal")]
        used = [log for log in logs if log.is_file() and log.stat().st_size]
        return _copied(path, room() / "copy.db", used, whole) if used or whole < size else path
    except OSError as error:
        told = f"it cannot be copied to a temporary folder: {error.strerror or error}"
        raise ReadError(told, path=path, hint="name a larger one in TMPDIR") from error


def names_table(head: bytes, *names: str) -> bool:
    """Whether a file begins as a database whose first pages name one of these tables.

    The definitions of the first tables that are made lie there. Texts are in UTF-8 or UTF-16.
    """
    if not head.startswith(MAGIC):
        return False
    return any(n.encode(code) in head for n in names for code in _ENCODINGS)


def no_database(path: Path) -> ReadError:
    """What is raised for other files."""
    return ReadError("it is no SQLite database, or an encrypted one", path=path)


def _copied(path: Path, to: Path, logs: list[Path], whole: int) -> Path:
    """A copy of so many bytes; with logs, of what they make of it."""
    shutil.copyfile(path, to)
    if not logs:
        os.truncate(to, whole)
        return to
    for log in logs:
        shutil.copyfile(log, f"{to}{log.name[len(path.name) :]}")
    try:
        with closing(sqlite3.connect(to)) as made:
            made.execute("PRAGMA writable_schema=ON")
            made.execute("SELECT count(*) FROM sqlite_master").fetchall()
            made.execute("PRAGMA journal_mode=DELETE").fetchall()
    except sqlite3.Error:
        shutil.copyfile(path, to)  # a log is damaged: the file as it stands
    return to


def _unpacked(path: Path, room: Callable[[], Path], issues: IssueLog) -> Path:
    data = inputs.read(path, issues)
    head = bytes(data[:_HEADER])
    if not head.startswith(MAGIC):
        raise no_database(path)
    to = room() / "unpacked.db"
    data[: _whole(path, head, len(data))].tofile(to)
    return to


def _whole(path: Path, head: bytes, size: int) -> int:
    """Bytes of its whole pages; the header states their size."""
    stated = int.from_bytes(head[16:18], "big")
    page = _LARGEST_PAGE if stated == 1 else max(stated, _SMALLEST_PAGE)
    if size < page:
        raise ReadError("it ends within its first page", path=path)
    return size - size % page
