"""The hub: a job's profile as a handful of Arrow tables.

Readers make a `Trace`, writers and analyses take one, nobody changes one: `annotate` and
friends give a new `Trace` that shares all columns it did not touch. pandas and networkx are
views on it, never its storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow, gather
from chopper_interop.errors import SchemaError, UsageError
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    import networkx as nx
    import pandas as pd

    from chopper_interop.columns.types import Array
    from chopper_interop.graph import Graph
    from chopper_interop.schemas.meta import Meta

    Made = TypeVar("Made")


def empty(table: str) -> pa.Table:
    """A table of the hub without rows."""
    schema = hub.schema(table)
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


@dataclass(frozen=True)
class Text:
    """The bytes that `args_at` points into: buffers of all sources, as if one behind the other.

    Parameters
    ----------
    buffers
        Arrays of uint8, most often the input files themselves as they were read.
    """

    buffers: tuple[Array, ...] = ()

    @cached_property
    def starts(self) -> Array:
        """Where each buffer begins, and the whole length."""
        return np.cumsum([0, *(len(b) for b in self.buffers)])

    def block(self, at: Array, length: Array) -> tuple[Array, Array]:
        """One buffer that holds all these ranges, and where in it each begins.

        Costs nothing if they lie in one buffer of the text; else they are copied into one.
        """
        used = at[length > 0]
        if not used.size:
            return np.zeros(1, np.uint8), np.zeros(len(at), np.int64)
        which = np.searchsorted(self.starts, [used.min(), used.max()], "right") - 1
        if which[0] == which[1]:
            return self.buffers[which[0]], np.where(length > 0, at - self.starts[which[0]], 0)
        copied = gather.ranges(self.buffers, self.starts, at, length)
        return copied, np.cumsum(length) - length


@dataclass(frozen=True)
class Trace:
    """A job's profile; see `chopper_interop.schemas.hub` for the tables' columns.

    Nodes are ordered by (rank, ts, longest first), so that a rank is a contiguous slice.
    """

    nodes: pa.Table
    edges: pa.Table
    lanes: pa.Table
    series: pa.Table
    samples: pa.Table
    counters: pa.Table
    groups: pa.Table
    meta: Meta
    text: Text = field(default_factory=Text)

    def __post_init__(self) -> None:
        for name in hub.TABLES:
            _check(name, getattr(self, name))

    def __repr__(self) -> str:
        parts = ", ".join(f"{n} {getattr(self, n).num_rows:,}" for n in hub.TABLES)
        return f"Trace({self.meta.job!r}: {parts}; ranks {list(self.ranks)})"

    @property
    def ranks(self) -> list[int]:
        """Ranks that have nodes, ascending."""
        return list(self.rank_rows)

    @cached_property
    def rank_rows(self) -> dict[int, slice]:
        """Rows of each rank's nodes; ranks ascending."""
        rank = self.array("rank")
        changes = np.flatnonzero(rank[1:] != rank[:-1]) + 1
        bounds = [0, *changes.tolist(), len(rank)] if len(rank) else [0]
        return {int(rank[a]): slice(a, b) for a, b in pairwise(bounds)}

    @cached_property
    def launch(self) -> Array:
        """For each node, the call that launched it; -1 if none is recorded."""
        drawn = self.array("kind", "edges") == EdgeKind.LAUNCH
        call = np.full(self.nodes.num_rows, -1, np.int32)
        call[self.array("dst", "edges")[drawn]] = self.array("src", "edges")[drawn]
        return call

    def kept(self, name: str, make: Callable[[Trace], Made]) -> Made:
        """What `make` gives for this trace; made once, as what `cached_property` marks.

        Parameters
        ----------
        name
            Tells it from all else that is kept, so begins with the name of the module.
        make
            Called at the first time only.
        """
        kept = self._kept
        if name not in kept:
            kept[name] = make(self)
        found: Made = kept[name]
        return found

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        if not self.nodes.num_rows:
            return 0
        ts = self.array("ts")
        return int((ts + self.array("dur")).max() - ts.min())

    def array(self, column: str, table: str = "nodes") -> Array:
        """Core column as numpy, without a copy; a dictionary column gives its codes."""
        return arrow.numbers(getattr(self, table)[column])

    def names(self) -> list[str]:
        """Texts of the node names: ``names()[array("name")[i]]`` is node i's name."""
        chunks = self.nodes["name"].chunks
        return list(chunks[0].dictionary.to_pylist()) if chunks else []

    def annotated(self, column: str) -> Array:
        """Annotation column as numpy of objects or floats, None/NaN where unknown.

        Parameters
        ----------
        column
            Name of a nodes column; one that is absent gives all None.
        """
        if column not in self.nodes.column_names:
            return np.full(self.nodes.num_rows, None, dtype=object)
        return arrow.objects(self.nodes[column])

    def has(self, column: str) -> bool:
        """Whether the nodes have this column."""
        return column in self.nodes.column_names

    def known(self, column: str) -> Array:
        """Mark the nodes with a value in this column; none where the column is absent."""
        if not self.has(column):
            return np.zeros(self.nodes.num_rows, np.bool_)
        return arrow.known(self.nodes[column])

    def integers(self, column: str, rows: Array | None = None, *, unknown: int = -1) -> Array:
        """Integers of a column, of a dictionary column its codes.

        Parameters
        ----------
        column
            Name of a nodes column, which may be absent.
        rows
            Nodes, all if None.
        unknown
            What stands for null, and for all of an absent column.

        Returns
        -------
        Array
            int64, one a node.
        """
        if not self.has(column):
            count = self.nodes.num_rows if rows is None else len(rows)
            return np.full(count, unknown, np.int64)
        values = arrow.numbers(self.nodes[column], unknown)
        return (values if rows is None else values[rows]).astype(np.int64)

    def reals(self, column: str, rows: Array | None = None) -> Array:
        """Numbers of a column as float64, NaN where unknown or where the column is absent."""
        if not self.has(column):
            return np.full(self.nodes.num_rows if rows is None else len(rows), np.nan)
        values = arrow.numbers(self.nodes[column]).astype(np.float64)
        values = np.where(arrow.known(self.nodes[column]), values, np.nan)
        return values if rows is None else values[rows]

    def texts(self, column: str, rows: Array | None = None) -> tuple[Array, tuple[str, ...]]:
        """Codes of a dictionary column, -1 where unknown, and the texts that they stand for."""
        if not self.has(column):
            return self.integers(column, rows), ()
        names = arrow.flat(self.nodes[column]).dictionary.to_pylist()
        return self.integers(column, rows), tuple(names)

    def is_text(self, column: str, texts: Iterable[str], rows: Array | None = None) -> Array:
        """Mark the nodes with one of these texts in a dictionary column, which may be absent."""
        codes, names = self.texts(column, rows)
        wanted = set(texts)
        chosen = np.array([*(name in wanted for name in names), False])
        return chosen[codes]

    def args(self, node: int) -> dict[str, Any]:
        """What the source said of a node beyond the hub's columns; empty if no proper JSON."""
        at, length = int(self.array("args_at")[node]), int(self.array("args_len")[node])
        if not length:
            return {}
        import msgspec

        buffer = int(np.searchsorted(self.text.starts, at, "right")) - 1
        at -= int(self.text.starts[buffer])
        try:
            return dict(msgspec.json.decode(self.text.buffers[buffer][at : at + length].tobytes()))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def annotate(self, **columns: Any) -> Trace:
        """Trace with these nodes columns added or replaced.

        Parameters
        ----------
        **columns
            Name → Arrow array or what `pyarrow.array` takes, one value a node. Columns declared
            in `hub.ANNOTATIONS` are cast to their declared type.
        """
        nodes = self.nodes
        for name, values in columns.items():
            array = arrow.column(values, hub.ANNOTATION_TYPES.get(name))
            at = nodes.schema.get_field_index(name)
            nodes = (
                nodes.append_column(name, array)
                if at < 0
                else nodes.set_column(at, nodes.schema.field(at), array)
            )
        return replace(self, nodes=nodes)

    def with_edges(self, src: Array, dst: Array, kind: int) -> Trace:
        """Trace with further edges of an `EdgeKind`, from nodes `src` to nodes `dst`."""
        columns = {"src": src, "dst": dst, "kind": np.full(len(src), int(kind), np.uint8)}
        schema = self.edges.schema
        arrays = [arrow.column(columns[field.name], field.type) for field in schema]
        more = pa.table(arrays, schema=schema)
        return replace(self, edges=pa.concat_tables([self.edges, more]).combine_chunks())

    def with_meta(self, **changes: Any) -> Trace:
        """Trace with these fields of `meta` replaced."""
        return replace(self, meta=replace(self.meta, **changes))

    def rank(self, rank: int) -> Trace:
        """One rank alone: its nodes renumbered from 0, edges within it, its series.

        Lanes and groups stay whole, so that references to them hold.
        """
        rows = self.rank_rows.get(rank)
        if rows is None:
            raise UsageError(f"the trace has no rank {rank}", hint=f"it has {self.ranks}")
        start, stop = rows.start, rows.stop
        mine = np.flatnonzero(self.array("rank", "series") == rank)
        renumber = np.full(self.series.num_rows, -1, np.int32)
        renumber[mine] = np.arange(len(mine), dtype=np.int32)
        owner = renumber[self.array("series", "samples")]
        samples = arrow.take(self.samples, owner >= 0)
        return replace(
            self,
            nodes=_shift(self.nodes.slice(start, stop - start), {"parent": -start}),
            edges=_within(self.edges, ("src", "dst"), start, stop),
            counters=_within(self.counters, ("node",), start, stop),
            series=arrow.take(self.series, mine),
            samples=arrow.replaced(samples, "series", owner[owner >= 0]),
        )

    def of_ranks(self, ranks: Iterable[int]) -> Trace:
        """Some ranks alone: their nodes renumbered from 0, edges within and between them.

        Lanes, groups, series and samples stay whole.
        """
        keep = np.isin(self.array("rank"), list(ranks))
        new = np.cumsum(keep, dtype=np.int32) - 1
        new = np.append(np.where(keep, new, -1), np.int32(-1)).astype(np.int32)  # -1 stays -1
        nodes = arrow.take(self.nodes, keep)
        nodes = arrow.replaced(nodes, "parent", new[arrow.numbers(nodes["parent"])])
        return replace(
            self,
            nodes=nodes,
            edges=_renumbered(self.edges, ("src", "dst"), new),
            counters=_renumbered(self.counters, ("node",), new),
        )

    def to_pandas(self, table: str = "nodes", columns: Iterable[str] | None = None) -> pd.DataFrame:
        """A table as pandas, kinds by name; of nodes, without where their arguments lie.

        Parameters
        ----------
        table
            Name of one of `hub.TABLES`.
        columns
            These alone, in this order. One that the hub declares and the trace lacks, as nothing
            is known of it, is null.
        """
        from chopper_interop import pandas_view

        return pandas_view.of(self, table, columns)

    def graph(self, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
        """Nodes and what each waits for, as arrays without circles; see `graph.of_nodes`.

        Parameters
        ----------
        kinds
            Edges of these kinds alone, by `EdgeKind` or name (``("launch", "stream")``).
        """
        from chopper_interop import graph

        return graph.of_nodes(self, kinds)

    def moments(self, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
        """Starts and ends of nodes and what each waits for; see `graph.of_moments`."""
        from chopper_interop import graph

        return graph.of_moments(self, kinds)

    def to_networkx(
        self,
        *,
        rank: int | None = None,
        kinds: Iterable[EdgeKind | str] | None = None,
        max_nodes: int = 1_000_000,
    ) -> nx.DiGraph[int]:
        """`graph` as a networkx graph without circles; node id = row number.

        Nodes have the trace's columns as attributes, where something is known. Edges have `kind`,
        names joined by "+" where there are several, and `gap_ns`, the time that passes along them.

        Parameters
        ----------
        rank
            This rank alone, all if None; its nodes are numbered from 0 then.
        kinds
            Edges of these kinds alone, by `EdgeKind` or name.
        max_nodes
            Refuse beyond this: networkx takes 1.5 kB a node.
        """
        from chopper_interop import networkx_view

        trace = self if rank is None else self.rank(rank)
        if trace.nodes.num_rows > max_nodes:
            raise UsageError(
                f"{trace.nodes.num_rows:,} nodes are more than max_nodes={max_nodes:,}",
                hint="choose a rank or raise max_nodes",
            )
        return networkx_view.of(trace.to_pandas(), trace.graph(kinds))


def _check(table: str, data: pa.Table) -> None:
    for column in hub.TABLES[table]:
        at = data.schema.get_field_index(column.name)
        if at < 0:
            raise SchemaError(f"{table} has no column {column.name!r}")
        if data.schema.field(at).type != column.type:
            found = data.schema.field(at).type
            raise SchemaError(f"{table}.{column.name} is {found}, not {column.type}")


def _shift(table: pa.Table, by: dict[str, int]) -> pa.Table:
    """Add to references that are not -1."""
    for column, amount in by.items():
        values = arrow.numbers(table[column])
        table = arrow.replaced(table, column, np.where(values >= 0, values + amount, -1))
    return table


def _renumbered(table: pa.Table, references: Iterable[str], new: Array) -> pa.Table:
    """Rows whose references all have a new number, with that."""
    numbers = {name: new[arrow.numbers(table[name])] for name in references}
    keep = np.logical_and.reduce([values >= 0 for values in numbers.values()])
    table = arrow.take(table, keep)
    for name, values in numbers.items():
        table = arrow.replaced(table, name, values[keep])
    return table


def _within(table: pa.Table, references: Iterable[str], start: int, stop: int) -> pa.Table:
    """Rows whose references all lie in [start, stop), renumbered from start."""
    names = list(references)
    keep = np.ones(table.num_rows, bool)
    for name in names:
        values = arrow.numbers(table[name])
        keep &= (values >= start) & (values < stop)
    return _shift(arrow.take(table, keep), dict.fromkeys(names, -start))
