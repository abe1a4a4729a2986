"""SQLite databases as Arrow tables, read without a trace: nothing is left beside the file.

A file is opened as immutable, so that no lock, journal or shared memory is made; see
`chopper_interop.files.sqlite_files` for what is not opened where it lies.

Rows come by way of ADBC (``adbc-driver-sqlite``), which makes no Python objects of cells. It takes
the types of columns from the first rows, so that each query begins with a row that states them.
Cells of other types fail there; the query is then repeated with a check of each cell. What a
damaged file still gives is read row by row, from both ends of a table.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from chopper_interop.columns import arrow
from chopper_interop.errors import ReadError
from chopper_interop.files import sqlite_files
from chopper_interop.files.sqlite_cells import INTEGER, REAL, TEXT, quoted, stating, typed, wrongly
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Self

__all__ = ["BAD_TEXT", "DAMAGED", "INTEGER", "REAL", "TEXT", "WRONG_CELLS", "Database"]

WRONG_CELLS = Fault(
    "cells-of-wrong-type",
    Severity.LOSS,
    "Cells of a database that are no number, or no text, where their column should be one; they "
    "were taken for unknown.",
)
BAD_TEXT = Fault(
    "text-not-utf-8",
    Severity.INFO,
    "Texts that are not UTF-8; what is wrong in them was replaced.",
)
DAMAGED = Fault(
    "database-damaged",
    Severity.LOSS,
    "Parts of a table cannot be read, because the file is damaged or ends too early; the rows "
    "before and behind them were read.",
)

_BATCH = "262144"
_HINT = "copy it again from where it was recorded, or try sqlite3's .recover"


class Database:
    """An open database; a context manager. Its methods may be called from any thread.

    Parameters
    ----------
    path
        The file, plain or packed.
    issues
        Where to note what is damaged and which cells are of another type than their column.

    Attributes
    ----------
    tables, views
        Name → names of its columns, all as the database spells them.

    Raises
    ------
    ReadError
        It is no database, is encrypted, or cannot be opened.
    """

    def __init__(self, path: Path, issues: IssueLog) -> None:
        self.path = path
        self.issues = issues
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._adbc: Any = None
        self._plain: sqlite3.Connection | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: dict[tuple[str, tuple[str, ...], str], Future[pa.Table | None]] = {}
        try:
            placed = sqlite_files.placed(path, self._room, issues)
            self._uri = f"file:{quote(os.fsencode(placed.resolve()))}?mode=ro&immutable=1"
            self.tables = self._columns("table")
            self.views = self._columns("view")
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
        """Close it and remove what was unpacked; may be called twice."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._ahead.clear()
        for opened in (self._plain, self._adbc):
            if opened is not None:
                opened.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._plain = self._adbc = self._folder = self._pool = None

    def read(self, table: str, columns: Mapping[str, str], *, where: str = "") -> pa.Table:
        """Rows of a table in the order in which they are stored.

        Parameters
        ----------
        table
            Its name, as in `tables` or `views`.
        columns
            Name (in any case) → `INTEGER`, `REAL` or `TEXT`. Those that the table lacks are null.
        where
            SQL of a condition that rows must fulfil.

        Returns
        -------
        pyarrow.Table
            int64, float64 and string columns by the names that were asked for.
        """
        cells, source = self._selected(table, columns, where)
        try:
            begun = self._ahead.pop((table, tuple(columns), where), None)
            if begun is not None and (found := begun.result()) is not None:
                return self._valid(found, table)
            return self._checked(f"FROM {source}", cells, columns, table)
        except (OSError, ValueError) as error:
            if table not in self.tables:
                raise self._refused(error, table) from error
            return self._saved(table, source, cells, columns)

    def ahead(self, table: str, columns: Mapping[str, str], *, where: str = "") -> None:
        """Begin to read what `read` will be asked for with the same words, in another thread.

        SQLite runs without Python's lock, so that several tables are read at a time. What fails is
        read again when it is asked for, and then noted.
        """
        cells, source = self._selected(table, columns, where)
        plain = ", ".join(f"{cell} AS {quoted(n)}" for n, cell in cells.items())
        self._driver()  # made here, as it is made but once
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(4, cpu_count() or 1))
        sql = f"SELECT {plain} FROM {source}"  # noqa: S608 # names are quoted
        self._ahead[table, tuple(columns), where] = self._pool.submit(self._tried, sql, columns)

    def _tried(self, sql: str, columns: Mapping[str, str]) -> pa.Table | None:
        try:
            return self._fetched(sql, columns)
        except OSError:
            return None

    def _selected(
        self, table: str, columns: Mapping[str, str], where: str
    ) -> tuple[dict[str, str], str]:
        """SQL of each column, and of where they come from."""
        names = {name.lower(): name for name in self.columns(table)}
        cells = {
            name: quoted(names[name.lower()]) if name.lower() in names else "NULL"
            for name in columns
        }
        source = quoted(table) + (" NOT INDEXED" if table in self.tables else "")
        return cells, source + (f" WHERE {where}" if where else "")

    def query(self, sql: str, columns: Mapping[str, str]) -> pa.Table:
        """Result of a SELECT.

        Parameters
        ----------
        sql
            The statement.
        columns
            Those of its columns that are wanted → their types.

        Raises
        ------
        ReadError
            The statement fails.
        """
        cells = {name: quoted(name) for name in columns}
        try:
            return self._checked(f"FROM ({sql})", cells, columns, sql[:40])
        except (OSError, ValueError) as error:
            raise self._refused(error, sql[:40]) from error

    def columns(self, table: str) -> tuple[str, ...]:
        """Columns of a table or view; empty if there is none of that name."""
        return self.tables.get(table) or self.views.get(table) or ()

    def _room(self) -> Path:
        """A folder that goes when the database is closed."""
        self._folder = tempfile.TemporaryDirectory(prefix="chopper-")
        return Path(self._folder.name)

    def _columns(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Tables or views and their columns; those whose definition is damaged are left out."""
        try:
            plain = self._opened()
            names = plain.execute(
                "SELECT CAST(name AS TEXT) FROM sqlite_master WHERE type = ? ORDER BY rowid",
                (kind,),
            ).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._refused(error) from error
        found = {}
        for (name,) in names:
            try:
                cells = plain.execute(f"PRAGMA table_info({quoted(name)})").fetchall()
            except (sqlite3.Error, UnicodeDecodeError):
                self.issues.add(DAMAGED, 1, str(name))
                continue
            if cells:
                found[name] = tuple(cell[1] for cell in cells)
        return found

    def _opened(self) -> sqlite3.Connection:
        """A connection for what concerns few rows or needs care."""
        if self._plain is None:
            self._plain = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
            self._plain.text_factory = _text
            self._plain.execute("PRAGMA writable_schema=ON")  # else a file cut short is refused
        return self._plain

    def _checked(
        self, source: str, cells: dict[str, str], columns: Mapping[str, str], where: str
    ) -> pa.Table:
        """Rows, first as fast as can be, then with a check of each cell."""
        plain = ", ".join(f"{cell} AS {quoted(n)}" for n, cell in cells.items())
        try:
            return self._valid(self._fetched(f"SELECT {plain} {source}", columns), where)
        except OSError:
            pass
        mended = ", ".join(f"{typed(cell, columns[n])} AS {quoted(n)}" for n, cell in cells.items())
        wrong = " + ".join(wrongly(cell, columns[n]) for n, cell in cells.items())
        sql = f"SELECT {mended}, {wrong} AS wrong_cells {source}"
        found = self._fetched(sql, {**columns, "wrong_cells": INTEGER})
        count = int(arrow.numbers(found["wrong_cells"]).sum())
        self.issues.add(WRONG_CELLS, count, f"{where}")
        return self._valid(found.drop_columns(["wrong_cells"]), where)

    def _fetched(self, sql: str, columns: Mapping[str, str]) -> pa.Table:
        import pyarrow as pa
        from adbc_driver_manager import AdbcConnection, AdbcStatement, Error

        driver = self._driver()
        try:
            with closing(AdbcConnection(driver)) as made, closing(AdbcStatement(made)) as does:
                _run(does, "PRAGMA writable_schema=ON")
                does.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH})
                does.set_sql_query(f"{stating(columns)} UNION ALL {sql}")
                stream, _ = does.execute_query()
                # the stream is the statement's, and must be read before that is closed
                table = pa.RecordBatchReader._import_from_c(stream.address).read_all()  # noqa: SLF001
        except Error as error:
            raise OSError(str(error)) from error
        if [field.type for field in table.schema] != [_arrow(kind) for kind in columns.values()]:
            raise OSError("the first rows have cells of another type")  # and the others followed
        # in one piece: columns are asked for more than once
        return table.slice(1).combine_chunks().rename_columns(list(columns))

    def _driver(self) -> Any:
        if self._adbc is None:
            import adbc_driver_sqlite

            self._adbc = adbc_driver_sqlite.connect(self._uri)
        return self._adbc

    def _valid(self, table: pa.Table, where: str) -> pa.Table:
        """The table with texts that are UTF-8: SQLite stores any bytes as text."""
        import pyarrow as pa

        for at, name in enumerate(table.column_names):
            if table.schema.field(at).type != pa.string():
                continue
            try:
                table[name].validate(full=True)
            except pa.ArrowInvalid:
                raw = [
                    value and bytes(value) for value in table[name].cast(pa.binary()).to_pylist()
                ]
                texts = [value if value is None else _text(value) for value in raw]
                bad = sum(v is not None and _text(v).encode() != v for v in raw)
                self.issues.add(BAD_TEXT, bad, f"{where}.{name}")
                table = table.set_column(at, name, pa.array(texts, pa.string()))
        return table

    def _saved(
        self, table: str, source: str, cells: dict[str, str], columns: Mapping[str, str]
    ) -> pa.Table:
        """Rows of a damaged table: from its begin and from its end to the first damage."""
        import pyarrow as pa

        picked = ", ".join(typed(cell, columns[n]) for n, cell in cells.items())
        sql = f"SELECT rowid, {picked} FROM {source}"  # noqa: S608 # names are quoted
        rows = dict(self._rows(sql, "ASC"))
        rows |= dict(self._rows(sql, "DESC"))
        self.issues.add(DAMAGED, 1, table)
        kept = [rows[number] for number in sorted(rows)]
        made = [
            pa.array([row[at] for row in kept], _arrow(kind))
            for at, kind in enumerate(columns.values())
        ]
        return pa.table(made, names=list(columns))

    def _rows(self, sql: str, order: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
        try:
            for row in self._opened().execute(f"{sql} ORDER BY rowid {order}"):
                yield row[0], row[1:]
        except (sqlite3.Error, UnicodeDecodeError):  # names of columns may be damaged as well
            return

    def _refused(self, error: Exception, where: str | None = None) -> ReadError:
        told = " ".join(str(error).split())
        if isinstance(error, sqlite3.DatabaseError) and "not a database" in told:
            return sqlite_files.no_database(self.path)
        return ReadError(f"it cannot be read: {told}", path=self.path, at=where, hint=_HINT)


def _arrow(kind: str) -> pa.DataType:
    import pyarrow as pa

    return {INTEGER: pa.int64(), REAL: pa.float64(), TEXT: pa.string()}[kind]


def _run(statement: Any, sql: str) -> None:
    statement.set_sql_query(sql)
    statement.execute_update()


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
