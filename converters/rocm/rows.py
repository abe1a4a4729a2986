"""Rows of one table as columns, whatever file they came from, and equal rows of two tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array, arrow, gather

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.converters.rocm.tables import TableFormat


@dataclass(frozen=True)
class TableRows:
    """Rows of one table.

    Parameters
    ----------
    form
        The table's format.
    count
        Number of rows.
    numbers
        Columns of integers by name (int64), 0 where unknown.
    known
        Truth values by name, for those columns of integers that are not known in all rows.
    texts
        Columns of text by name, dictionary-encoded.
    values
        The column of decimal numbers, empty if there is none.
    counters
        Values by counter (float64), for tables with one column for each counter.
    raw
        Columns of ready JSON values by key: Arrow arrays of bytes, null or empty where there is none.
    where
        Name of the source in examples.
    """

    form: TableFormat
    count: int
    numbers: dict[str, Array] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)
    texts: dict[str, pa.DictionaryArray] = field(default_factory=dict)
    values: Array = field(default_factory=lambda: np.empty(0))
    counters: dict[str, Array] = field(default_factory=dict)
    raw: dict[str, pa.Array] = field(default_factory=dict)
    where: str = ""

    def number(self, name: str, default: int = -1) -> Array:
        """Return a column of integers, `default` where it is unknown."""
        if name not in self.numbers:
            return np.full(self.count, default, np.int64)
        known = self.known.get(name)
        return self.numbers[name] if known is None else np.where(known, self.numbers[name], default)

    def is_known(self, name: str) -> Array:
        """Mark the rows in which a column of integers is known."""
        if name not in self.numbers:
            return np.zeros(self.count, bool)
        return self.known.get(name, np.ones(self.count, bool))

    def codes(self, name: str) -> tuple[Array, list[str]]:
        """Return a column of text as codes (-1 where unknown) and the texts of the codes."""
        column = self.texts.get(name)
        if column is None:
            return np.full(self.count, -1, np.int64), []
        codes = arrow.to_numpy(column, -1).astype(np.int64)
        return codes, column.dictionary.to_pylist()

    def per_text(self, name: str, function: Callable[[str], Any], absent: Any) -> Array:
        """Apply a function once to each distinct text of a column, and spread it to the rows.

        Parameters
        ----------
        name
            The column.
        function
            Returns a number or a truth value for a text.
        absent
            Result for rows without a text.
        """
        codes, texts = self.codes(name)
        # unknown texts have the code -1, which indexes the last entry
        return np.array([*(function(text) for text in texts), absent])[codes]

    def take(self, rows: Array) -> TableRows:
        """Return some of the rows, by their indices."""
        if len(rows) == self.count and np.array_equal(rows, np.arange(self.count)):
            return self
        return replace(
            self,
            count=len(rows),
            numbers={name: column[rows] for name, column in self.numbers.items()},
            known={name: column[rows] for name, column in self.known.items()},
            texts={name: arrow.take(column, rows) for name, column in self.texts.items()},
            values=self.values[rows] if len(self.values) else self.values,
            counters={name: column[rows] for name, column in self.counters.items()},
            raw={key: arrow.take(column, rows) for key, column in self.raw.items()},
        )

    def select(self, mask: Array) -> TableRows:
        """Return the rows that are marked."""
        return self.take(np.flatnonzero(mask))

    def only(self, numbers: Iterable[str], texts: Iterable[str]) -> TableRows:
        """Return the rows with only these columns, of those that they have."""
        kept = self.numbers.keys() & set(numbers)
        return TableRows(
            self.form,
            self.count,
            {name: self.numbers[name] for name in kept},
            {name: mask for name, mask in self.known.items() if name in kept},
            {name: self.texts[name] for name in texts if name in self.texts},
            where=self.where,
        )

    def with_numbers(self, **columns: Array) -> TableRows:
        """Return the rows with columns of integers set that are known in all rows."""
        known = {name: mask for name, mask in self.known.items() if name not in columns}
        return replace(self, numbers={**self.numbers, **columns}, known=known)


def interned(texts: list[str]) -> pa.DictionaryArray:
    """Return texts as a column in which equal ones are stored once."""
    return arrow.texts(texts).dictionary_encode()


def first_match(keys: Sequence[Array], queries: Sequence[Array], *, unique: bool = False) -> Array:
    """Return for each query the index of the first equal key, -1 if there is none.

    Parameters
    ----------
    keys, queries
        Columns of integers: as many of keys as of queries.
    unique
        Match only keys that occur once.
    """
    count = len(keys[0])
    # keys stand before queries, so that the first occurrence of a value is a key if any key has it
    first, code = gather.distinct(
        *(np.concatenate(pair) for pair in zip(keys, queries, strict=True))
    )
    matched = first < count
    if unique:
        matched &= np.bincount(code[:count], minlength=len(first)) == 1
    return np.asarray(np.where(matched, first, -1)[code[count:]])
