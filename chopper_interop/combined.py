"""Traces of several small sources in one, as a reader makes them in one pass, and the trace of each.

What a call of NumPy's or Arrow's takes is more than what it takes a small source's rows, so that a reader works
on the rows of many sources at once. The trace of each is a range of rows of each table, with references of its
own. It is what reading that source alone gives, but for memory that all of them share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.errors import ReadError
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.trace import Text, Trace

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import Meta

NAME_ORDER = "name_order"
"""Column of the nodes by which a source's names are ordered, which the trace of a source does not have."""
_ALWAYS = frozenset({"bytes"})
"""Annotations that a trace has though all of them be null: a reader adds them with the nodes."""


class NotTogetherError(ReadError):
    """Sources that a reader does not read in one pass with others: each of them is read alone.

    Parameters
    ----------
    apart
        Their files.
    """

    def __init__(self, apart: Sequence[Path]) -> None:
        super().__init__("it is not read in one pass with others", path=apart[0])
        self.apart = frozenset(apart)


def _no_example(_: int) -> str:
    return ""


class SourceIssues:
    """Issues of each of several sources.

    Parameters
    ----------
    logs
        Log of each source.
    """

    def __init__(self, logs: list[IssueLog]) -> None:
        self.logs = logs

    def add_rows(
        self,
        fault: Fault,
        rows: Array,
        member: Array,
        example: Callable[[int], str] = _no_example,
    ) -> None:
        """Note a fault at rows of a table.

        Parameters
        ----------
        fault
            The fault.
        rows
            Its rows.
        member
            Number of the source of each row of the table; looked at if there are several.
        example
            Describes a row; called for the first row of each source.
        """
        if not len(rows):
            return
        if len(self.logs) == 1:
            self.logs[0].add(fault, len(rows), example(int(rows[0])))
            return
        sources, first, count = np.unique(member[rows], return_index=True, return_counts=True)
        for source, at, times in zip(sources.tolist(), first.tolist(), count.tolist(), strict=True):
            self.logs[source].add(fault, times, example(int(rows[at])))

    def add_where(
        self,
        fault: Fault,
        marked: Array,
        member: Array,
        example: Callable[[int], str] = _no_example,
    ) -> None:
        """Note a fault at marked rows of a table; parameters as of `add_rows`."""
        if marked.any():
            self.add_rows(fault, np.flatnonzero(marked), member, example)


@dataclass(frozen=True)
class Combined:
    """Traces of several sources in one; of a single source its trace as it is, with its own ranks.

    Parameters
    ----------
    trace
        Of several sources, nodes, lanes and series have the number of their source for their rank, ascending
        in each table; of nodes and lanes the row in this trace is referred to, of groups that in the source.
    metas
        Metadata of each source; origins are set here.
    groups
        First process group of each source, and behind the last one their number.
    texts
        Offset of the text of each source in that of the trace, and behind the last one its length.
    """

    trace: Trace
    metas: tuple[Meta, ...]
    groups: Array
    texts: Array

    def split(self) -> list[Trace]:
        """The trace of each source."""
        if len(self.metas) == 1:
            meta = replace(self.metas[0], origin_ns=self.trace.meta.origin_ns)
            return [replace(self.trace, meta=meta)]
        return _Splitting(self).traces()


class _Splitting:
    """Tables of all sources with each source's own references, of which each has a range of rows."""

    def __init__(self, combined: Combined) -> None:
        trace = combined.trace
        self.metas, self.count = combined.metas, len(combined.metas)
        (self.text,) = trace.text.buffers
        self.text_at = combined.texts
        owner = {name: trace.array("rank", name) for name in ("nodes", "lanes", "series")}
        edge_owner = owner["nodes"][trace.array("src", "edges")]
        by_source = np.argsort(edge_owner, kind="stable")
        sample_owner = owner["series"][trace.array("series", "samples")]
        owners = owner | {"edges": edge_owner[by_source], "samples": sample_owner}
        self.start = {name: self._starts(numbers) for name, numbers in owners.items()}
        self.start["groups"] = combined.groups
        self.start["counters"] = np.zeros(self.count + 1, np.int64)
        self.origin = self._origins(trace)
        rank = np.array([self._rank(meta) for meta in self.metas], np.int32)
        earlier = trace.meta.origin_ns - self.origin
        self.nodes = _moved(
            trace.nodes,
            rank=rank[owner["nodes"]],
            lane=trace.array("lane") - self.start["lanes"][owner["nodes"]],
            ts=trace.array("ts") + earlier[owner["nodes"]],
            parent=_shifted(trace.array("parent"), self.start["nodes"][owner["nodes"]]),
            args_at=trace.array("args_at") - self.text_at[owner["nodes"]],
        )
        first = self.start["nodes"][edge_owner[by_source]]
        edges = arrow.take(trace.edges, by_source)
        self.edges = _moved(
            edges,
            **{end: arrow.to_numpy(edges[end]) - first for end in ("src", "dst")},
        )
        self.lanes = _moved(trace.lanes, rank=rank[owner["lanes"]])
        self.series = _moved(trace.series, rank=rank[owner["series"]])
        self.samples = _moved(
            trace.samples,
            series=trace.array("series", "samples") - self.start["series"][sample_owner],
            ts=trace.array("ts", "samples") + earlier[sample_owner],
        )
        self.groups, self.counters = trace.groups, trace.counters

    def traces(self) -> list[Trace]:
        """The trace of each source."""
        columns = self._node_columns()
        return [self._trace(source, columns[source]) for source in range(self.count)]

    def _trace(self, source: int, nodes: pa.Table) -> Trace:
        tables = {
            name: getattr(self, name).slice(*self._range(name, source))
            for name in hub.TABLES
            if name != "nodes"
        }
        meta = replace(self.metas[source], origin_ns=int(self.origin[source]))
        text = Text((self.text[slice(*self.text_at[source : source + 2])],))
        return Trace(nodes=nodes, **tables, meta=meta, text=text)

    def _range(self, name: str, source: int) -> tuple[int, int]:
        """First row and number of rows of a source."""
        first, behind = self.start[name][source : source + 2].tolist()
        return first, behind - first

    def _starts(self, owner: Array) -> Array:
        return np.searchsorted(owner, np.arange(self.count + 1))

    def _origins(self, trace: Trace) -> Array:
        """Time of the first node of each source, of one without nodes that of the first sample; else 0."""
        origin = np.zeros(self.count, np.int64)
        for table in ("samples", "nodes"):
            ts, start = trace.array("ts", table), self.start[table]
            has_rows = np.flatnonzero(np.diff(start))
            if has_rows.size:
                first = np.minimum.reduceat(ts, start[has_rows])
                origin[has_rows] = first + trace.meta.origin_ns
        return origin

    @staticmethod
    def _rank(meta: Meta) -> int:
        return meta.ranks[0].rank if meta.ranks else -1

    def _node_columns(self) -> list[pa.Table]:
        """Nodes of each source, without annotations of which it has none."""
        order = arrow.to_numpy(self.nodes[NAME_ORDER])
        table = self.nodes.drop_columns([NAME_ORDER])
        core = set(hub.schema("nodes").names) | _ALWAYS
        columns = {name: arrow.single_chunk(table[name]) for name in table.column_names}
        coded = {
            name: self._own_dictionaries(column, order if name == "name" else None)
            for name, column in columns.items()
            if pa.types.is_dictionary(column.type)
        }
        known = {name: self._known(columns[name]) for name in columns if name not in core}
        schemas: dict[tuple[str, ...], pa.Schema] = {}
        tables = []
        for source in range(self.count):
            names = tuple(n for n in columns if n not in known or known[n][source])
            if names not in schemas:
                schemas[names] = pa.schema([table.schema.field(n) for n in names])
            rows = self._range("nodes", source)
            arrays = [
                coded[n].of_source(source, *rows) if n in coded else columns[n].slice(*rows)
                for n in names
            ]
            tables.append(pa.Table.from_arrays(arrays, schema=schemas[names]))
        return tables

    def _known(self, column: pa.Array) -> list[bool]:
        """For each source whether it has a value in a column of the nodes."""
        counted = np.concatenate([[0], np.cumsum(arrow.is_valid(column))])
        return (np.diff(counted[self.start["nodes"]]) > 0).tolist()

    def _own_dictionaries(self, column: pa.DictionaryArray, order: Array | None) -> _Dictionaries:
        """Codes of a column by a dictionary of each source's own texts, in an order or by their first rows."""
        code = arrow.to_numpy(column, -1)
        rows = np.flatnonzero(code >= 0)
        source = np.repeat(np.arange(self.count), np.diff(self.start["nodes"]))[rows]
        order = rows if order is None else order[rows]
        by_text = np.lexsort((order, code[rows], source))
        text, owner = code[rows][by_text], source[by_text]
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = (text[1:] != text[:-1]) | (owner[1:] != owner[:-1])
        entry = np.empty(len(rows), np.int64)
        entry[by_text] = np.cumsum(is_first) - 1
        firsts = np.flatnonzero(is_first)
        by_place = np.lexsort((order[by_text][firsts], owner[firsts]))
        start = np.searchsorted(owner[firsts][by_place], np.arange(self.count + 1))
        place = np.empty(len(firsts), np.int64)
        place[by_place] = np.arange(len(firsts))
        own = np.full(len(code), -1, np.int32)
        own[rows] = place[entry] - start[source]
        texts = arrow.take(column.dictionary, text[firsts][by_place])
        return _Dictionaries(arrow.array(own, mask=own < 0), texts, start)


@dataclass(frozen=True)
class _Dictionaries:
    """Codes of texts by a dictionary of each source, which follow each other."""

    codes: pa.Array
    texts: pa.Array
    start: Array

    def of_source(self, source: int, first: int, count: int) -> pa.DictionaryArray:
        """The column of a source, whose rows begin at `first`."""
        begin, behind = self.start[source : source + 2].tolist()
        texts = self.texts.slice(begin, behind - begin)
        codes = self.codes.slice(first, count)
        return pa.DictionaryArray.from_arrays(codes, texts, safe=False)


def _moved(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        table = arrow.replace_column(table, name, values)
    return table


def _shifted(row: Array, first: Array) -> Array:
    """References by the rows of their source; -1 stays."""
    return np.where(row >= 0, row - first, -1)
