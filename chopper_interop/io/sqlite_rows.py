"""Rows of an SQLite database as Arrow columns, by the fastest driver that is installed.

ADBC (``adbc-driver-sqlite``, the extra ``sqlite``) makes no Python objects of cells, runs without Python's lock, and
takes a fifth of the time. It infers the types of columns from the first rows, so that each query begins with a row of
the right types, and fails at cells of other types. Python's own driver does the same here, some rows at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop.io import inputs, memory, sqlite_files

if TYPE_CHECKING:
    import pyarrow as pa

INTEGER, REAL, TEXT, TIME = "integer", "real", "text", "time"
"""Types as which columns are read; a time is an integer, rounded where it is stored with a fraction."""
_SEED = {INTEGER: "0", REAL: "0.0", TEXT: "''", TIME: "0"}
_BATCH = 262_144
"""Rows that ADBC returns at a time (chosen: few batches, of some megabytes each)."""
_OBJECTS = 16_384
"""Rows that are Python objects at a time (chosen: some megabytes, where more are no faster)."""


def reader(file: Path) -> Adbc | Python:
    """Open a plain database, from whichever thread; its `rows` may be called from any."""
    return Adbc(file) if find_spec("adbc_driver_sqlite") else Python(file)


class Adbc:
    """A database as ADBC opened it."""

    octets = "octet_length({})"
    """SQL of the bytes of a text."""

    def __init__(self, file: Path) -> None:
        import adbc_driver_sqlite
        from adbc_driver_manager import Error

        self._file = file
        self._free: list[Any] = []
        try:
            with inputs.opened_by_name(file):
                self._database: Any = adbc_driver_sqlite.connect(sqlite_files.uri(file))
        except Error as error:
            raise OSError(str(error)) from error

    def rows(self, sql: str, columns: Mapping[str, str]) -> pa.Table:
        """Return the result of a SELECT as int64, float64 and string columns; texts may be any bytes.

        Raises
        ------
        OSError
            It fails, or cells are of another type than their column.
        """
        import pyarrow as pa
        from adbc_driver_manager import AdbcStatement, Error

        try:
            with (
                self._free_connection() as connection,
                closing(AdbcStatement(connection)) as statement,
            ):
                statement.set_options(**{"adbc.sqlite.query.batch_rows": f"{_BATCH}"})
                statement.set_sql_query(f"{_type_row(columns)} UNION ALL {sql}")
                stream, _ = statement.execute_query()
                # the stream ends with the statement, and must be read before that is closed
                table = pa.RecordBatchReader._import_from_c(stream.address).read_all()  # noqa: SLF001
        except Error as error:
            raise OSError(str(error)) from error
        if table.schema.types != [arrow_type(kind) for kind in columns.values()]:
            raise OSError("the first rows have cells of another type")  # the column took that type
        # in one piece: columns are asked for more than once
        whole = table.slice(1).combine_chunks().rename_columns(list(columns))
        del table
        memory.give_back(whole.nbytes)
        return whole

    @contextmanager
    def _free_connection(self) -> Iterator[Any]:
        """Lend a connection that no other thread uses; to open one takes as long as reading 1,000 rows."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._opened()
        try:
            yield connection
        finally:
            self._free.append(connection)

    def _opened(self) -> Any:
        """Another connection."""
        from adbc_driver_manager import AdbcConnection, AdbcStatement

        with inputs.opened_by_name(self._file):
            connection = AdbcConnection(self._database)
        with closing(AdbcStatement(connection)) as statement:
            for pragma in sqlite_files.PRAGMAS:
                statement.set_sql_query(pragma)
                statement.execute_update()
        return connection

    def close(self) -> None:
        """Close the connections and the database."""
        for connection in self._free:
            connection.close()
        self._free.clear()
        self._database.close()


class Python:
    """A database that Python's own driver reads, with a connection for each query, as threads may ask."""

    octets = Adbc.octets if sqlite3.sqlite_version_info >= (3, 43) else "length(CAST({} AS BLOB))"
    """As `Adbc.octets`, which has an SQLite of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def rows(self, sql: str, columns: Mapping[str, str]) -> pa.Table:
        """Return the result of a SELECT, as `Adbc.rows` does."""
        import pyarrow as pa

        schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
        batches = []
        try:
            with closing(sqlite_files.connection(self._file)) as connection:
                connection.text_factory = bytes
                cursor = connection.execute(sql)
                while rows := cursor.fetchmany(_OBJECTS):
                    cells = zip(zip(*rows, strict=True), schema.types, strict=True)
                    arrays = [_array(values, kind) for values, kind in cells]
                    batches.append(pa.record_batch(arrays, schema=schema))
        except (sqlite3.Error, pa.ArrowException, OverflowError, TypeError) as error:
            raise OSError(str(error)) from error
        return pa.Table.from_batches(batches, schema).combine_chunks()

    def close(self) -> None:
        """Do nothing: no connection is kept."""


def arrow_type(kind: str) -> pa.DataType:
    """Return the type of a column that is read as `INTEGER`, `REAL`, `TEXT` or `TIME`."""
    import pyarrow as pa

    types = {INTEGER: pa.int64(), REAL: pa.float64(), TEXT: pa.string(), TIME: pa.int64()}
    return types[kind]


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    """Cells as a column, where they are of its type."""
    import pyarrow as pa

    if kind == pa.string():  # Python's texts would have to be valid
        return pa.array(values, pa.binary()).view(kind)
    if kind == pa.int64() and float in set(map(type, values)):
        raise TypeError("cells of a column of integers are real")  # Arrow takes 1.0 for 1
    return pa.array(values, kind)


def _type_row(columns: Mapping[str, str]) -> str:
    """Return SQL of one row whose cells have the types of the columns."""
    cells = (f"{_SEED[kind]} AS {quote_name(name)}" for name, kind in columns.items())
    return f"SELECT {', '.join(cells)}"


def quote_name(name: str) -> str:
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'
