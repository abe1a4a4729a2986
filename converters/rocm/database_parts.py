"""The processes of a rocpd database: its tables, found by their names, and rows of them.

Tables carry the guid of their process (``rocpd_event_0198…``); a database may hold several sets of
them, or one set without guids in its names in which rows of several guids are mixed.

Format: rocprofiler-sdk's ``share/rocprofiler-sdk-rocpd/rocpd_tables.sql``, schemas 3 to 3.0.5.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.io.sqlite import INTEGER, REAL, TEXT, TIME, Database
from chopper_interop.issues import Fault, IssueLog

PREFIX = "rocpd_"
_ARROW_TYPES = {INTEGER: pa.int64(), REAL: pa.float64(), TEXT: pa.string(), TIME: pa.int64()}
EVENTS = (
    "kernel_dispatch", "region", "sample", "memory_copy", "memory_allocate", "graph_launch",
    "hip_event", "event_operation",
)  # fmt: skip
"""Tables whose rows are events."""
PC_SAMPLES = ("gpu_pc_sample", "pc_sampling")
"""Tables of samples of program counters: what they are called depends on the version."""
KNOWN = frozenset({
    *EVENTS, *PC_SAMPLES, "arg", "blob_event", "event", "metadata", "pmc_event", "string", "track",
})  # fmt: skip
"""Tables that are known in addition to those of ``info_``."""
NOT_READ = Fault.loss_of_events(
    "table-not-read",
    "Rows with times of tables of a database that are not known here were left out.",
)

NO_NAME = Fault.loss(
    "name-unknown",
    "Rows whose name is not in the database are called as their table, kernels by their number.",
)

_TIMES = frozenset({"start", "timestamp"})
_ANCHOR = re.compile(r"rocpd_(?:info_process|string)(?P<suffix>(?:_.*)?)", re.IGNORECASE)
_DENSE = 4
"""Range of ids, as a multiple of their count, up to which a table of the range finds them. Chosen: as many times
the memory of the ids is little next to the events."""


class Lookup:
    """Rows of a table by its ids; of equal ids, the first."""

    def __init__(self, ids: Array) -> None:
        count = len(ids)
        self._dense = bool(count) and ids.min() >= 0 and ids.max() < _DENSE * count + 1024
        if self._dense:
            self._rows = np.full(int(ids.max()) + 1, -1, np.int64)
            self._rows[ids[::-1]] = np.arange(count - 1, -1, -1)
        else:
            order = np.argsort(ids, kind="stable")
            self._ids, self._rows = ids[order], np.append(order, -1)

    def rows(self, ids: Array, known: Array | None = None) -> Array:
        """Row of each id; -1 where there is none, or where it is not known."""
        there = np.ones(len(ids), bool) if known is None else known
        if self._dense:
            there = there & (ids >= 0) & (ids < len(self._rows))
            return np.where(there, self._rows[np.where(there, ids, 0)], -1)
        return self._rows[np.where(there, gather.find(self._ids, ids), -1)]


class Strings:
    """Texts by their ids."""

    def __init__(self, ids: Array, texts: pa.Array) -> None:
        self._lookup = Lookup(ids)
        self._texts = texts

    def column(self, ids: Array, known: Array) -> pa.DictionaryArray:
        """The text of each id, null where there is none."""
        encoded = arrow.array(ids, mask=~known).dictionary_encode()
        distinct = arrow.to_numpy(encoded.dictionary)
        texts = arrow.take_known(self._texts, self._lookup.rows(distinct))
        has = np.append(arrow.is_valid(texts), False)
        codes = arrow.to_numpy(encoded, -1).astype(np.int64)
        return arrow.coded(np.where(has[codes], codes, -1), texts)


@dataclass(frozen=True)
class Columns:
    """Columns of a table, or of some of its rows.

    Parameters
    ----------
    table
        The columns.
    """

    table: pa.Table

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows)

    def number(self, name: str, null: int = -1) -> Array:
        """Whole numbers; `null` where unknown."""
        return arrow.to_numpy(self.table[name], null)

    def known(self, name: str) -> Array:
        """Mask of the rows in which a column is known."""
        return arrow.is_valid(self.table[name])

    def texts(self, name: str) -> list[str]:
        """Texts; empty where unknown."""
        return [value or "" for value in self.table[name].to_pylist()]

    def encoded(self, name: str) -> pa.DictionaryArray:
        """Texts, each kept once."""
        return arrow.single_chunk(self.table[name]).dictionary_encode()


class DatabaseTables(ABC):
    """Tables of a database by the names that they have here."""

    @abstractmethod
    def read(self, table: str, columns: Mapping[str, str]) -> Columns:
        """Columns of a table by their types; empty if there is none, null if it lacks them."""

    def numbers(self, table: str, *columns: str) -> Columns:
        """Columns of whole numbers."""
        return self.read(table, whole_numbers(columns))

    def strings_of(self, table: str) -> Strings:
        """A table of texts."""
        rows = self.read(table, {"id": INTEGER, "string": TEXT})
        return Strings(rows.number("id"), arrow.single_chunk(rows.table["string"]))


def whole_numbers(columns: Iterable[str]) -> dict[str, str]:
    """Types of columns of whole numbers: times may have a fraction, other numbers not."""
    return {name: TIME if name in _TIMES | {"end"} else INTEGER for name in columns}


def no_rows(columns: Mapping[str, str]) -> Columns:
    """Columns of a table that a database lacks, by their types."""
    nulls = [pa.nulls(0, _ARROW_TYPES[kind]) for kind in columns.values()]
    return Columns(pa.table(nulls, names=list(columns)))


@dataclass(frozen=True)
class DatabasePart(DatabaseTables):
    """Data of one guid in a database.

    Parameters
    ----------
    base
        The database.
    tables
        What its tables are called here (``kernel_dispatch``) → their names.
    guid
        The guid that rows must have; empty if all have the same.
    where
        What to call the source in examples.
    """

    base: Database
    tables: Mapping[str, str]
    guid: str
    where: str

    def has(self, table: str, *columns: str) -> bool:
        """True if there is a table with these columns."""
        names = {c.lower() for c in self.base.columns(self.tables.get(table, ""))}
        return table in self.tables and names.issuperset(columns)

    def read(self, table: str, columns: Mapping[str, str], where: str = "") -> Columns:
        """Columns of a table; empty if there is none, null if it lacks them.

        Parameters
        ----------
        table, columns
            What to read, and the types of the columns.
        where
            SQL of a condition that rows must fulfil.
        """
        if table not in self.tables:
            return no_rows(columns)
        conditions = " AND ".join(c for c in (self._condition(table), where) if c)
        return Columns(self.base.read(self.tables[table], columns, where=conditions))

    def ahead(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Begin to read tables that will be asked for, several at a time."""
        for table, columns in tables.items():
            if table in self.tables:
                self.base.read_ahead(self.tables[table], columns, where=self._condition(table))

    def count(self, table: str) -> int:
        """Number of rows of a table."""
        return self.numbers(table, "id").count

    @cached_property
    def strings(self) -> Strings:
        """All texts."""
        return self.strings_of("string")

    @cached_property
    def threads(self) -> tuple[Lookup, Array]:
        """Rows of threads by their ids, and the numbers that the system gives them."""
        columns = self.numbers("info_thread", "id", "tid")
        return Lookup(columns.number("id")), columns.number("tid")

    def thread(self, columns: Columns) -> tuple[Array, Array]:
        """System's number of the thread of each row, and where it is known."""
        lookup, tid = self.threads
        number, known = columns.number("tid"), columns.known("tid")
        rows = lookup.rows(number, known)
        return (np.where(rows >= 0, tid[rows], number) if len(tid) else number), known

    def unknown(self) -> list[str]:
        """Tables that have times and are not known here."""
        return [
            name
            for table, name in self.tables.items()
            if table not in KNOWN
            and not table.startswith("info_")
            and _TIMES & {c.lower() for c in self.base.columns(name)}
        ]

    def _condition(self, table: str) -> str:
        if not self.guid or not self.has(table, "guid"):
            return ""
        quoted = self.guid.replace("'", "''")
        return f"guid = '{quoted}'"


def first_of(column: pa.DictionaryArray, other: pa.DictionaryArray) -> pa.DictionaryArray:
    """Texts of a column, and of the other one where it has none."""
    codes, texts = arrow.to_numpy(column, -1).astype(np.int64), column.dictionary
    has = np.append(arrow.text_lengths(texts) > 0, False)[codes]
    if has.all() and len(codes):
        return column
    more = arrow.to_numpy(other, -1).astype(np.int64)
    code = np.where(has, codes, np.where(more >= 0, more + len(texts), -1))
    return arrow.coded(code, pa.concat_arrays([texts, other.dictionary]))


def named(
    column: pa.DictionaryArray, instead: str, issues: IssueLog, where: str
) -> pa.DictionaryArray:
    """Names of rows; those that have none are called otherwise, and counted."""
    codes = arrow.to_numpy(column, -1)
    issues.add(NO_NAME, np.count_nonzero(codes < 0), where)
    if not (codes < 0).any():
        return column
    return first_of(column, dictionary(np.zeros(len(codes), np.int64), [instead]))


def parts_of(base: Database, where: str) -> list[DatabasePart]:
    """The parts of a database, in order of their names."""
    suffixes = {m["suffix"] for m in map(_ANCHOR.fullmatch, base.tables) if m}
    parts = []
    for suffix in sorted(suffixes):
        others = [s for s in suffixes if len(s) > len(suffix)]
        tables = {
            name[len(PREFIX) : len(name) - len(suffix)].lower(): name
            for name in base.tables
            if name.lower().startswith(PREFIX)
            and name.endswith(suffix)
            and not any(name.endswith(other) for other in others)
        }
        parts += [DatabasePart(base, tables, guid, where) for guid in _guids(base, tables, where)]
    return parts


def _guids(base: Database, tables: Mapping[str, str], where: str) -> list[str]:
    """The guids that are mixed in tables; an empty one alone if there is but one."""
    all_rows = DatabasePart(base, tables, "", where)
    guids = {g for t in ("info_process", "info_node") for g in _distinct(all_rows, t)}
    return sorted(guids) if len(guids) > 1 else [""]


def _distinct(part: DatabasePart, table: str) -> list[str]:
    return [g for g in part.read(table, {"guid": TEXT}).texts("guid") if g]
