"""What slices carry beside name and time: annotation columns, counters, arguments, flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow
from chopper_interop.columns.interning import Interned, interned
from chopper_interop.converters import perfetto_encode as encode
from chopper_interop.schemas import hub

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

GROUP, COUNTERS = "chopper", "counters"
"""Dictionaries of a slice's arguments that hold annotation columns and hardware counters."""

_TEXTS_OF_A_BUFFER = 1 << 15
"""Texts of arguments that are told once; further ones stand where they occur."""
_CORE = {column.name for column in hub.NODES} - {"correlation"}


class NodeColumns:
    """A trace's annotation columns as the encoder wants them, with their interned names."""

    def __init__(self, trace: Trace, *, with_args: bool) -> None:
        self.trace = trace
        self.with_args = with_args
        self.names = [(i + 1, name) for i, name in enumerate(trace.names())]
        self.fixed_names: list[tuple[int, str]] = [(1, GROUP), (2, COUNTERS)]
        self.fixed_texts: list[tuple[int, str]] = []
        self._further = len(self.names) + 1
        self._ints: list[tuple[int, Array, Array]] = []
        self._floats: list[tuple[int, Array, Array]] = []
        self._texts: list[tuple[int, Array]] = []
        self._tables: dict[int, tuple[Interned, Interned]] = {}
        for name in trace.nodes.column_names:
            if name not in _CORE:
                self._add(name, arrow.flat(trace.nodes[name]))
        self._counter_iids = self._add_counters()
        owner = trace.array("node", "counters").astype(np.int64)
        self._counters = np.searchsorted(owner, np.arange(trace.nodes.num_rows + 1))
        self._next = [len(self.fixed_names) + 1, len(self.fixed_texts) + 1]

    def _name(self, name: str) -> int:
        self.fixed_names.append((len(self.fixed_names) + 1, name))
        return len(self.fixed_names)

    def _add(self, name: str, column: pa.Array) -> None:
        if pa.types.is_dictionary(column.type):
            first = len(self.fixed_texts) + 1
            texts = column.dictionary.to_pylist()
            self.fixed_texts += [(first + k, text) for k, text in enumerate(texts)]
            codes = arrow.numbers(column, -1).astype(np.int64)
            self._texts.append((self._name(name), np.where(codes >= 0, codes + first, -1)))
            return
        known = arrow.known(column)
        if name == "correlation":
            known = known & (arrow.numbers(column) >= 0)
        values = arrow.numbers(column)
        if pa.types.is_floating(column.type):
            self._floats.append((self._name(name), values.astype(np.float64), known))
        elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
            self._ints.append((self._name(name), values.astype(np.int64), known))

    def _add_counters(self) -> Array:
        column = self.trace.counters["name"]
        if not self.trace.counters.num_rows:
            return np.empty(0, np.int64)
        names = column.chunk(0).dictionary.to_pylist()
        return np.array([self._name(name) for name in names], np.int64)

    def further_names(self, texts: list[str]) -> list[int]:
        """Numbers for slice names that no node has."""
        first = self._further
        self._further += len(texts)
        return list(range(first, self._further))

    def interned(self, buffer: Array) -> tuple[Interned, Interned]:
        """Tables of the argument names and texts met in a buffer, kept from lane to lane."""
        key = id(buffer) if self.trace.text.buffers else 0
        if not any(buffer is known for known in self.trace.text.buffers):
            return self._new_tables()
        if key not in self._tables:
            self._tables[key] = self._new_tables()
        return self._tables[key]

    def _new_tables(self) -> tuple[Interned, Interned]:
        tables = tuple(interned(_TEXTS_OF_A_BUFFER, base) for base in self._next)
        self._next = [at + t.capacity for at, t in zip(self._next, tables, strict=True)]
        return tables[0], tables[1]

    def arguments(self, nodes: Array) -> encode.Arguments:
        """Arguments of these nodes."""
        length = self.trace.array("args_len")[nodes]
        if not self.with_args:
            length = np.zeros_like(length)
        buffer, at = self.trace.text.block(self.trace.array("args_at")[nodes], length)
        return encode.Arguments(buffer, at, length)

    def columns(self, nodes: Array) -> encode.Columns:
        """Annotation columns of these nodes; those that are null for all are left out."""
        ints = [(i, v[nodes], k[nodes]) for i, v, k in self._ints if k[nodes].any()]
        floats = [(i, v[nodes], k[nodes]) for i, v, k in self._floats if k[nodes].any()]
        texts = [(i, v[nodes]) for i, v in self._texts if (v[nodes] >= 0).any()]
        n = len(nodes)
        return encode.Columns(
            iid=1,
            ints=_stacked([v for _, v, _ in ints], n, np.int64),
            ints_known=_stacked([k for _, _, k in ints], n, np.bool_),
            ints_iid=np.array([i for i, _, _ in ints], np.int64),
            floats=_stacked([v for _, v, _ in floats], n, np.float64),
            floats_known=_stacked([k for _, _, k in floats], n, np.bool_),
            floats_iid=np.array([i for i, _, _ in floats], np.int64),
            texts=_stacked([v for _, v in texts], n, np.int64),
            texts_iid=np.array([i for i, _ in texts], np.int64),
        )

    def lists(self, nodes: Array, flows: tuple[Array, Array]) -> encode.Lists:
        """Flows and hardware counters of these nodes."""
        flow_first, flow = _rows_of(nodes, flows[0])
        counter_first, counter = _rows_of(nodes, self._counters)
        return encode.Lists(
            flow_first=flow_first,
            flow=flows[1][flow],
            counter_first=counter_first,
            counter_iid=self._counter_iids[self.trace.array("name", "counters")[counter]],
            counter_value=self.trace.array("value", "counters")[counter],
            counters_iid=2,
        )


def nothing(n: int) -> tuple[encode.Arguments, encode.Columns, encode.Lists]:
    """No arguments, columns and lists for n slices."""
    none = np.empty(0, np.int64)
    zeros = np.zeros(n + 1, np.int64)
    flat = np.empty((0, n))
    columns = encode.Columns(
        iid=0,
        ints=flat.astype(np.int64),
        ints_known=flat.astype(np.bool_),
        ints_iid=none,
        floats=flat,
        floats_known=flat.astype(np.bool_),
        floats_iid=none,
        texts=flat.astype(np.int64),
        texts_iid=none,
    )
    lists = encode.Lists(zeros, none, zeros, none, np.empty(0), 0)
    arguments = encode.Arguments(np.zeros(1, np.uint8), zeros[:n], np.zeros(n, np.int32))
    return arguments, columns, lists


def _stacked(columns: list[Array], n: int, dtype: Any) -> Array:
    return np.stack(columns) if columns else np.empty((0, n), dtype)


def _rows_of(nodes: Array, first: Array) -> tuple[Array, Array]:
    """The lists of some nodes, out of those of all: where each begins, and the rows of them."""
    count = first[nodes + 1] - first[nodes]
    bounds = np.concatenate([[0], np.cumsum(count)])
    at = np.arange(bounds[-1]) - np.repeat(bounds[:-1], count) + np.repeat(first[nodes], count)
    return bounds, at
