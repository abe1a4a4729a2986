"""Rows of one of rocprofv3's tables as columns, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_tables import Format


@dataclass(frozen=True)
class Rows:
    """Rows of one table.

    Parameters
    ----------
    form
        Which table.
    count
        How many rows.
    numbers
        Columns of whole numbers by name (int64), 0 where unknown.
    known
        For columns of numbers that are not known in all rows, where they are.
    texts
        Columns of text by name, dictionary-encoded.
    values
        The column of decimal numbers, empty if there is none.
    counters
        Columns of decimal numbers by the counter that they are of, where each has its own.
    raw
        Columns of ready JSON values (lists of bytes, empty where there is none) by key.
    where
        What to call the source in examples.
    """

    form: Format
    count: int
    numbers: dict[str, Array] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)
    texts: dict[str, pa.DictionaryArray] = field(default_factory=dict)
    values: Array = field(default_factory=lambda: np.empty(0))
    counters: dict[str, Array] = field(default_factory=dict)
    raw: dict[str, list[bytes]] = field(default_factory=dict)
    where: str = ""

    def number(self, name: str, default: int = -1) -> Array:
        """A column of whole numbers, `default` where it is unknown."""
        if name not in self.numbers:
            return np.full(self.count, default, np.int64)
        known = self.known.get(name)
        return self.numbers[name] if known is None else np.where(known, self.numbers[name], default)

    def is_known(self, name: str) -> Array:
        """In which rows a column of whole numbers is known."""
        if name not in self.numbers:
            return np.zeros(self.count, bool)
        return self.known.get(name, np.ones(self.count, bool))

    def codes(self, name: str) -> tuple[Array, list[str]]:
        """A column of text as codes (-1 where unknown) and the texts that they stand for."""
        column = self.texts.get(name)
        if column is None:
            return np.full(self.count, -1, np.int64), []
        codes = arrow.numbers(column, -1).astype(np.int64)
        return codes, column.dictionary.to_pylist()

    def take(self, rows: Array) -> Rows:
        """Some of the rows, by number."""
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
            raw={key: [column[i] for i in rows.tolist()] for key, column in self.raw.items()},
        )


def dictionary(codes: Array, texts: list[str]) -> pa.DictionaryArray:
    """Texts by codes; -1 stands for an unknown one."""
    return arrow.dictionary(codes, texts, mask=codes < 0)


def interned(texts: list[str]) -> pa.DictionaryArray:
    """Texts as a column in which equal ones are kept once."""
    return arrow.texts(texts).dictionary_encode()
