"""Columns of an rpd database, joined: calls, the operations that they launched, and details."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.converters.rocm.database_parts import (
    Columns,
    DatabaseTables,
    Lookup,
    Strings,
    no_rows,
)
from chopper_interop.converters.rpd.tables import CALLS
from chopper_interop.io.sqlite import INTEGER, TEXT, Database

if TYPE_CHECKING:
    import pyarrow as pa


_SHAPE = [f"{shape}{axis}" for shape in ("grid", "workgroup") for axis in "XYZ"]


class RpdTables(DatabaseTables):
    """Tables of a database, in any case of their names.

    Parameters
    ----------
    base
        The database.
    """

    def __init__(self, base: Database) -> None:
        self.base = base
        self._names = {name.lower(): name for name in base.tables}

    def read(self, table: str, columns: Mapping[str, str]) -> Columns:
        """Columns of a table; empty if there is none, null if it lacks them."""
        name = self._names.get(table.lower())
        if name is None:
            return no_rows(columns)
        return Columns(self.base.read(name, columns))

    def has(self, table: str) -> bool:
        """True if there is such a table."""
        return table.lower() in self._names


@dataclass(frozen=True)
class Launches:
    """Pairs of a call and an operation that it launched.

    Parameters
    ----------
    call, operation
        Rows of their tables, a pair each.
    dangling
        Number of pairs of which the call or the operation is missing.
    """

    call: Array
    operation: Array
    dangling: int


def calls(tables: RpdTables) -> list[Columns]:
    """All tables of calls."""
    columns = ("id", "pid", "tid", "start", "end", "apiName_id", "args_id", "category_id")
    return [tables.numbers(table, *columns, "domain_id") for table in CALLS if tables.has(table)]


def operations(tables: RpdTables) -> Columns:
    """Read the operations that ran on GPUs."""
    columns = ("id", "gpuId", "queueId", "sequenceId", "start", "end", "description_id")
    return tables.numbers("rocpd_op", *columns, "opType_id")


def launches(tables: RpdTables, calls: Columns, operations: Columns) -> Launches:
    """Pairs of calls and operations."""
    pairs = tables.numbers("rocpd_api_ops", "api_id", "op_id")
    call = Lookup(calls.number("id")).rows(pairs.number("api_id"), pairs.known("api_id"))
    operation = Lookup(operations.number("id")).rows(pairs.number("op_id"), pairs.known("op_id"))
    is_paired = (call >= 0) & (operation >= 0)
    first, _ = gather.distinct(call[is_paired], operation[is_paired])
    return Launches(
        call[is_paired][first], operation[is_paired][first], int(np.count_nonzero(~is_paired))
    )


@dataclass(frozen=True)
class Details:
    """Details of calls in a table of their own.

    Parameters
    ----------
    table
        The table.
    row
        Row of each call in it; -1 if it has none.
    names
        Columns of numbers, and what they are called here.
    texts
        Columns of texts, by what they are called here.
    """

    table: Columns
    row: Array
    names: Mapping[str, str]
    texts: dict[str, pa.DictionaryArray]

    @classmethod
    def of_kernels(cls, tables: RpdTables, calls: Columns, strings: Strings) -> Details:
        """Shapes and streams of the kernels that calls launch."""
        numbers = dict.fromkeys(("api_ptr_id", "groupSegmentSize", "privateSegmentSize"), INTEGER)
        numbers |= dict.fromkeys((*_SHAPE, "kernelName_id"), INTEGER)
        table = tables.read("rocpd_kernelapi", {**numbers, "stream": TEXT})
        row = Lookup(table.number("api_ptr_id")).rows(calls.number("id"))
        ids, known = (
            _values_at(c, row)
            for c in (table.number("kernelName_id"), table.known("kernelName_id"))
        )
        texts = {"kernel": strings.column(ids, known.astype(bool) & (row >= 0))}
        names = {c: f"{c[:-1]}_{c[-1].lower()}" for c in _SHAPE}
        names |= {"groupSegmentSize": "group_segment", "privateSegmentSize": "scratch"}
        return cls(table, row, names, texts | {"stream": _texts(table, row, "stream")})

    @classmethod
    def of_copies(cls, tables: RpdTables, calls: Columns) -> Details:
        """Sizes and streams of what calls copy."""
        columns = dict.fromkeys(("api_ptr_id", "size", "kind"), INTEGER)
        table = tables.read("rocpd_copyapi", {**columns, "stream": TEXT})
        row = Lookup(table.number("api_ptr_id")).rows(calls.number("id"))
        names = {"size": "size", "kind": "copy_kind"}
        return cls(table, row, names, {"stream": _texts(table, row, "stream")})

    def add_to(
        self, numbers: dict[str, Array], known: dict[str, Array], calls: Array | None = None
    ) -> None:
        """Add the columns of numbers, and where they are known, of all calls or of those of some rows."""
        row = self.row if calls is None else self.row[calls]
        for column, name in self.names.items():
            numbers[name] = _values_at(self.table.number(column, 0), row)
            known[name] = _values_at(self.table.known(column), row).astype(bool) & (row >= 0)


def _values_at(values: Array, row: Array) -> Array:
    return values[np.maximum(row, 0)] if len(values) else np.zeros(len(row), values.dtype)


def _texts(columns: Columns, row: Array, column: str) -> pa.DictionaryArray:
    from chopper_interop.arrays.arrow import dictionary

    encoded = columns.encoded(column)
    codes = _values_at(arrow.to_numpy(encoded, -1).astype(np.int64), row)
    texts = [text or "" for text in encoded.dictionary.to_pylist()]
    return dictionary(np.where(row >= 0, codes, -1), texts)
