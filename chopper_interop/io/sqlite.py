"""SQLite databases as Arrow tables; reading leaves no other files next to the database.

A file is opened as immutable, so that SQLite makes no lock, journal or shared memory;
`chopper_interop.io.sqlite_files` copies the files with which that is impossible.

What reads rows (`sqlite_rows`) fails at cells of another type than their column; the query is then repeated with a
check of each cell. Of a damaged file, rows are read one by one, from both ends of a table up to the damage.

A database may be hostile: it is opened to be read alone, no statement of its schema runs (views, triggers, virtual
tables and generated columns are not read), and rows and texts can't be many times the file.
`chopper_interop.io.sqlite_pages` finds tables whose rows would never end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from os import cpu_count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from chopper_interop.arrays import arrow
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs, sqlite_files, sqlite_pages, sqlite_rows, temporary
from chopper_interop.io.sqlite_rows import INTEGER, REAL, TEXT, TIME, arrow_type, quote_name
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self


__all__ = [
    "BAD_TEXT", "DAMAGED", "INTEGER", "REAL", "ROUNDED", "TEXT", "TIME", "WRONG_CELLS", "Database",
]  # fmt: skip

WRONG_CELLS = Fault.loss(
    "cells-of-wrong-type",
    "Cells of a database that are no number, or no text, where their column "
    "should be one; their values were taken as unknown.",
)
ROUNDED = Fault.info(
    "time-with-fraction",
    "Times of a database with a fraction, as scripts compute them, were rounded to a nanosecond.",
)
BAD_TEXT = Fault.info(
    "text-not-utf-8", "Texts that are not UTF-8; the bytes that are wrong in them were replaced."
)
DAMAGED = Fault.loss(
    "database-damaged",
    "Parts of a table cannot be read, because the file is damaged or ends too "
    "early; the rows before and behind them were read.",
)

_MAX_THREADS = 4
"""Tables that are read at a time (chosen: converters begin with few large ones)."""
_NOT_INDEXED = " NOT INDEXED"
"""As SQL says that rows are wanted in the order in which they are stored."""
_SIZES = {"n": INTEGER, "size": INTEGER}
_TEXT_RATIO, _TEXT_ROOM = 4, 64
"""Bytes of texts that a table may have: so many times its file's, and so many more a row. Chosen: UTF-16 becomes up
to 1.5 times as long in UTF-8, and a default text is in the file once."""
_HINT = "copy it again from where it was recorded, or try sqlite3's .recover"
_MAX_TIME = "9.2e18"
"""Real times below it are integers of 64 bits when rounded."""


class Database:
    """An open database; a context manager. Its methods may be called from any thread.

    Parameters
    ----------
    path
        The file, plain or packed.
    issues
        Where to note damaged parts, and cells of another type than their column.

    Attributes
    ----------
    tables
        Name → names of its columns, all as the database spells them. Views, virtual tables and generated columns
        are not among them: these run what a file says.

    Raises
    ------
    ReadError
        It is no database, is encrypted, or cannot be opened.
    """

    def __init__(self, path: Path, issues: IssueLog) -> None:
        self.path = path
        self.issues = issues
        self._folder = ExitStack()
        self._reader: sqlite_rows.Adbc | sqlite_rows.Python | None = None
        self._plain: sqlite3.Connection | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: dict[tuple[str, tuple[str, ...], str], Future[pa.Table | None]] = {}
        try:
            self._file = sqlite_files.plain_database(path, self._room, issues)
            self._bytes = inputs.size(self._file)
            roots = self._roots()
            self._refuse_endless(roots.values())
            self.tables = self._columns(roots)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it and remove its temporary copy, if there is one; may be called twice."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._ahead.clear()
        for opened in (self._plain, self._reader):
            if opened is not None:
                opened.close()
        self._folder.close()
        self._plain = self._reader = self._pool = None

    def read(self, table: str, columns: Mapping[str, str], *, where: str = "") -> pa.Table:
        """Read rows of a table, in the order in which they are stored.

        Parameters
        ----------
        table
            Its name, as in `tables`.
        columns
            Name (in upper or lower case) → `INTEGER`, `REAL`, `TEXT` or `TIME`. A column that the table
            lacks is null.
        where
            SQL of a condition on rows; all if empty.

        Returns
        -------
        pyarrow.Table
            int64, float64 and string columns, named as in `columns`.

        Raises
        ------
        ReadError
            Its texts are many times the file. (Of a damaged table, rows are missing, which is noted.)
        """
        cells, source = self._select(table, columns, where)
        try:
            begun = self._ahead.pop((table, tuple(columns), where), None)
            if begun is not None and (rows := begun.result()) is not None:
                return self._with_valid_texts(rows, table)
            return self._read_checked(source, cells, columns, table)
        except (OSError, ValueError):
            return self._read_around_damage(table, source, cells, columns)

    def read_ahead(self, table: str, columns: Mapping[str, str], *, where: str = "") -> None:
        """Begin to read rows in another thread; a later `read` with the same arguments returns them.

        SQLite runs without Python's lock, so that several tables are read at a time. If it fails,
        `read` reads them again, and notes what is wrong.
        """
        cells, source = self._select(table, columns, where)
        self._driver()  # opened here, before threads share it
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(_MAX_THREADS, cpu_count() or 1))
        self._ahead[table, tuple(columns), where] = self._pool.submit(
            self._fetched_or_none, source, cells, columns
        )

    def _fetched_or_none(
        self, source: str, cells: dict[str, str], columns: Mapping[str, str]
    ) -> pa.Table | None:
        try:
            return self._fetched_plain(source, cells, columns)
        except OSError:
            return None

    def _select(
        self, table: str, columns: Mapping[str, str], where: str
    ) -> tuple[dict[str, str], str]:
        """SQL of each column, by its name, and of what follows FROM."""
        names = {name.lower(): name for name in self.columns(table)}
        cells = {
            name: quote_name(names[name.lower()]) if name.lower() in names else "NULL"
            for name in columns
        }
        source = quote_name(table) + _NOT_INDEXED
        return cells, source + (f" WHERE {where}" if where else "")

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table; empty if there is none of that name."""
        return self.tables.get(table, ())

    def _room(self) -> Path:
        """Make a folder that is removed when the database is closed."""
        return self._folder.enter_context(temporary.folder())

    def _refuse_endless(self, roots: Iterable[int]) -> None:
        """Raise `ReadError` if rows of tables have no end, or about the square of the file's bytes."""
        if sqlite_pages.never_ends(self._file, roots):
            raise ReadError("pages of its tables repeat many times", path=self.path, hint=_HINT)

    def _roots(self) -> dict[str, int]:
        """Tables and their first pages; virtual tables have none."""
        try:
            rows = self._connection().execute(
                "SELECT CAST(name AS TEXT), rootpage FROM sqlite_master "
                "WHERE type = 'table' AND typeof(rootpage) = 'integer' AND rootpage > 0 ORDER BY rowid"
            )
            return dict(rows.fetchall())
        except (sqlite3.Error, UnicodeDecodeError, OSError, MemoryError) as error:
            # a damaged length may be one that no memory has
            raise self._read_error(error) from error

    def _columns(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Columns of tables; tables whose definition is damaged are left out."""
        plain = self._connection()
        columns = {}
        for name in names:
            try:
                cells = plain.execute(f"PRAGMA table_info({quote_name(name)})").fetchall()
            except (sqlite3.Error, UnicodeDecodeError):
                self.issues.add(DAMAGED, 1, str(name))
                continue
            if cells:
                columns[name] = tuple(cell[1] for cell in cells)
        return columns

    def _connection(self) -> sqlite3.Connection:
        """The connection of Python's own driver, for few rows and for damaged ones."""
        if self._plain is None:
            self._plain = sqlite_files.connection(self._file, check_same_thread=False)
            self._plain.text_factory = _decode
        return self._plain

    def _read_checked(
        self, source: str, cells: dict[str, str], columns: Mapping[str, str], where: str
    ) -> pa.Table:
        """Rows, read without a check of cells; if that fails, again with a check of each cell."""
        try:
            return self._with_valid_texts(self._fetched_plain(source, cells, columns), where)
        except OSError:
            pass
        converted = ", ".join(
            f"{cast_cell(cell, columns[n])} AS {quote_name(n)}" for n, cell in cells.items()
        )
        wrong = " + ".join(mismatch(cell, columns[n]) for n, cell in cells.items())
        rounded = " + ".join(
            [
                "0",
                *(
                    f"ifnull({_is_rounded(cell)}, 0)"
                    for n, cell in cells.items()
                    if columns[n] == TIME
                ),
            ]
        )
        counts = {"wrong_cells": (wrong, WRONG_CELLS), "rounded_cells": (rounded, ROUNDED)}
        counted = ", ".join(f"{cell} AS {name}" for name, (cell, _) in counts.items())
        sql = f"SELECT {converted}, {counted} FROM {source}"  # noqa: S608 # names are quoted
        rows = self._driver().rows(sql, {**columns, **dict.fromkeys(counts, INTEGER)})
        for name, (_, fault) in counts.items():
            self.issues.add(fault, int(arrow.to_numpy(rows[name]).sum()), f"{where}")
        return self._with_valid_texts(rows.drop_columns(list(counts)), where)

    def _fetched_plain(
        self, source: str, cells: dict[str, str], columns: Mapping[str, str]
    ) -> pa.Table:
        """Rows without a check of their cells; `OSError` if that fails."""
        self._refuse_large_texts(source, [cells[n] for n, kind in columns.items() if kind == TEXT])
        plain = ", ".join(f"{cell} AS {quote_name(n)}" for n, cell in cells.items())
        return self._driver().rows(f"SELECT {plain} FROM {source}", columns)  # noqa: S608 # names are quoted

    def _refuse_large_texts(self, source: str, cells: Sequence[str]) -> None:
        """Raise `ReadError` if texts are many times the file: rows can share one, or have it by default."""
        if not cells:
            return
        driver = self._driver()
        total = " + ".join(f"ifnull({driver.octets.format(cell)}, 0)" for cell in cells)
        sql = f"SELECT count(*) AS n, ifnull(sum({total}), 0) AS size FROM {source}"  # noqa: S608 # same
        ((count, size),) = zip(*driver.rows(sql, _SIZES).to_pydict().values(), strict=True)
        if size > _TEXT_RATIO * self._bytes + _TEXT_ROOM * count:
            reason = f"texts of one of its tables have {size:,} bytes, many times the file"
            raise ReadError(reason, path=self.path, at=source.removesuffix(_NOT_INDEXED))

    def _driver(self) -> sqlite_rows.Adbc | sqlite_rows.Python:
        """The database as what reads its rows opened it, once."""
        if self._reader is None:
            self._reader = sqlite_rows.reader(self._file)
        return self._reader

    def _with_valid_texts(self, table: pa.Table, where: str) -> pa.Table:
        """The table with texts in UTF-8, others replaced and noted: SQLite stores any bytes as text."""
        import pyarrow as pa

        for index, name in enumerate(table.column_names):
            if table.schema.field(index).type != pa.string():
                continue
            try:
                table[name].validate(full=True)
            except pa.ArrowInvalid:
                raw = [
                    value and bytes(value) for value in table[name].cast(pa.binary()).to_pylist()
                ]
                texts = [value if value is None else _decode(value) for value in raw]
                bad = sum(v is not None and _decode(v).encode() != v for v in raw)
                self.issues.add(BAD_TEXT, bad, f"{where}.{name}")
                table = table.set_column(index, name, pa.array(texts, pa.string()))
        return table

    def _read_around_damage(
        self, table: str, source: str, cells: dict[str, str], columns: Mapping[str, str]
    ) -> pa.Table:
        """Rows of a damaged table: from its start and from its end to the first damage."""
        import pyarrow as pa

        picked = ", ".join(cast_cell(cell, columns[n]) for n, cell in cells.items())
        sql = f"SELECT rowid, {picked} FROM {source}"  # noqa: S608 # names are quoted
        rows = dict(self._rows(sql, "ASC"))
        rows |= dict(self._rows(sql, "DESC"))
        self.issues.add(DAMAGED, 1, table)
        ordered = [rows[number] for number in sorted(rows)]
        arrays = [
            pa.array([row[index] for row in ordered], arrow_type(kind))
            for index, kind in enumerate(columns.values())
        ]
        return pa.table(arrays, names=list(columns))

    def _rows(self, sql: str, order: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Row numbers and rows, in one direction, up to the first that cannot be read."""
        room = _TEXT_RATIO * self._bytes
        try:
            for row in self._connection().execute(f"{sql} ORDER BY rowid {order}"):
                room -= sum(len(cell) for cell in row if isinstance(cell, str | bytes))
                if room < 0:
                    return
                yield row[0], row[1:]
        except (sqlite3.Error, UnicodeDecodeError):  # names of columns may be damaged as well
            return

    def _read_error(self, error: Exception) -> ReadError:
        """The error that users see for one of SQLite's or ADBC's."""
        reason = " ".join(str(error).split()) or "its schema is damaged"  # MemoryError says nothing
        if isinstance(error, sqlite3.DatabaseError) and "not a database" in reason:
            return sqlite_files.not_a_database(self.path)
        return ReadError(f"it cannot be read: {reason}", path=self.path, hint=_HINT)


def _decode(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def cast_cell(cell: str, kind: str) -> str:
    """Return SQL for a cell as a type, if it is of that type or can be without loss; else NULL."""
    if kind == TEXT:
        return f"CAST({cell} AS TEXT)"
    as_type = REAL if kind == REAL else INTEGER
    integral = f"WHEN CAST(CAST({cell} AS INTEGER) AS TEXT) = {cell} THEN CAST({cell} AS {as_type})"
    if kind in (INTEGER, TIME):
        real = (
            f"WHEN typeof({cell}) = 'real' AND abs({cell}) < {_MAX_TIME} THEN CAST(round({cell}) AS INTEGER) "
            # the digits of a text, as its number would be a real, which has 15 of them
            f"WHEN {_has_fraction_as_text(cell)} "
            f"THEN CAST({cell} AS INTEGER) + ({_fraction(cell)} >= '5') "
            if kind == TIME
            else ""
        )
        return f"CASE WHEN typeof({cell}) = 'integer' THEN {cell} {real}{integral} END"
    return (
        f"CASE WHEN typeof({cell}) IN ('integer', 'real') THEN CAST({cell} AS REAL) "
        f"WHEN CAST(CAST({cell} AS REAL) AS TEXT) = {cell} THEN CAST({cell} AS REAL) {integral} END"
    )


def _has_fraction_as_text(cell: str) -> str:
    """Return SQL that is true for a text of digits, a point and digits, of a time in 64 bits."""
    return (
        f"(typeof({cell}) = 'text' AND {cell} GLOB '[0-9]*.[0-9]*' AND {cell} NOT GLOB '*[^0-9.]*' "
        f"AND {cell} NOT GLOB '*.*.*' AND CAST({cell} AS INTEGER) < {_MAX_TIME})"
    )


def _fraction(cell: str) -> str:
    """Return SQL for the digits behind the point of a text."""
    return f"substr({cell}, instr({cell}, '.') + 1)"


def _is_rounded(cell: str) -> str:
    """Return SQL that is true for a time whose fraction is lost."""
    return (
        f"(typeof({cell}) = 'real' AND {cell} <> {cast_cell(cell, TIME)} "
        f"OR {_has_fraction_as_text(cell)} AND rtrim({_fraction(cell)}, '0') <> '')"
    )


def mismatch(cell: str, kind: str) -> str:
    """Return SQL that is true for a cell of another type that cannot be converted without loss.

    An empty text in a column of numbers is not one: some tools write it for an absent number.
    """
    return f"({cell} IS NOT NULL AND {cell} <> '' AND {cast_cell(cell, kind)} IS NULL)"
