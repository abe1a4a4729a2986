"""Tables of a job's profile: what a `Trace` holds, without its views.

The tables are Arrow tables that are never changed in place: `with_columns`, `with_edges` and
`with_meta` give a new object that shares every column they did not touch. What is built on the
tables (`graph`, `pandas_view`) takes a `TraceTables`; `trace.Trace` adds methods that lead there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, gather, row_numbers, spill
from chopper_interop.errors import SchemaError, UsageError, first_line
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from typing_extensions import Self

    from chopper_interop.schemas.meta import Meta

    Made = TypeVar("Made")
    Parts = Array | Sequence[Array]


_BLOCK = 1 << 16
"""Rows of which the extent of references is known (chosen: looking at a block costs as much as at the extents of
a table of a billion rows)."""
_SEARCHED = 1 << 12
"""Rows of a rank from which on ranks are searched for (chosen: a search takes as long as a pass over so many)."""
_EDGES_AT_ONCE = 1 << 20
"""Edges among which launches are looked for at once (chosen: a few megabytes)."""
EDGES_APART = "without call, order, stream"
"""Edges that the table does not hold: the kinds of `kinds.DERIVED`, which a graph adds."""


@cache
def empty(table: str) -> pa.Table:
    """Table of the hub without rows, with its core columns."""
    schema = hub.schema(table)
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


@dataclass(frozen=True)
class Text:
    """Bytes that `args_at` points into: the buffers of all sources, as if concatenated.

    Parameters
    ----------
    buffers
        Arrays of uint8, most often the input files themselves as they were read.
    """

    buffers: tuple[Array, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return _fields(self)

    @cached_property
    def starts(self) -> Array:
        """Offset of each buffer, and behind the last one the total length."""
        return np.cumsum([0, *(len(b) for b in self.buffers)])

    def block(self, at: Array, length: Array) -> tuple[Array, Array]:
        """One buffer that holds all these byte ranges, and the offset of each in it.

        Ranges that lie in one buffer of the text are not copied; others are.
        """
        has_bytes = length > 0
        if not has_bytes.any():
            return np.zeros(1, np.uint8), np.zeros(len(at), np.int64)
        if len(self.buffers) == 1:
            return self.buffers[0], np.where(has_bytes, at, 0)
        used = at[has_bytes]
        first, last = np.searchsorted(self.starts, [used.min(), used.max()], "right") - 1
        if first == last:
            return self.buffers[first], np.where(has_bytes, at - self.starts[first], 0)
        copied = gather.concatenate_ranges(self.buffers, self.starts, at, length)
        return copied, np.cumsum(length) - length


@dataclass(frozen=True, repr=False)
class TraceTables:
    """Tables of a job; `chopper_interop.schemas.hub` declares their columns.

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
    files: tuple[str, ...] = ()
    """Files that it was read from, which must not be overwritten; no output holds their names."""

    def __getstate__(self) -> dict[str, Any]:
        return _fields(self)  # what is cached is made again where it is needed

    def __post_init__(self) -> None:
        for name in hub.TABLES:
            data = getattr(self, name)
            _check(name, data)
            require_row_numbers(name, data.num_rows)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {text}" for name, text in self.sizes().items())
        return f"{type(self).__name__}({self.meta.job!r}: {parts}; ranks {list(self.ranks)})"

    def sizes(self) -> dict[str, str]:
        """Number of rows of each table, as text; of edges with what the table does not hold."""
        rows = {name: f"{getattr(self, name).num_rows:,}" for name in hub.TABLES}
        return rows | {"edges": f"{rows['edges']} ({EDGES_APART})"}

    @property
    def ranks(self) -> list[int]:
        """Ranks with nodes, ascending."""
        return list(self.rank_rows)

    @cached_property
    def rank_rows(self) -> dict[int, slice]:
        """Rows of each rank's nodes; ranks ascending."""
        rank, at = self.array("rank"), 0
        if len(rank) and rank[0] == rank[-1]:  # as before ranks are joined
            return {int(rank[0]): slice(0, len(rank))}
        if len(rank) and len(rank) < _SEARCHED * (int(rank[-1]) - int(rank[0]) + 1):
            starts = np.flatnonzero(np.diff(rank, prepend=rank[0] - 1))
            bounds = [*starts.tolist(), len(rank)]
            return dict(zip(rank[starts].tolist(), starmap(slice, pairwise(bounds)), strict=True))
        rows = {}
        while at < len(rank):  # in order of rank: no pass over all nodes
            is_last = rank[at] == rank[-1]
            stop = len(rank) if is_last else at + int(np.searchsorted(rank[at:], rank[at], "right"))
            rows[int(rank[at])] = slice(at, stop)
            at = stop
        return rows

    def rank_spans(self, max_nodes: int) -> list[slice]:
        """Rows of whole ranks that follow each other, so many nodes at most at a time, unless one rank has more."""
        return merged_rows(self.rank_rows.values(), max_nodes)

    @cached_property
    def sample_bounds(self) -> Array:
        """First sample of each series, and behind the last one their number: samples are in order of series."""
        owner = self.array("series", "samples")
        return np.searchsorted(owner, np.arange(self.series.num_rows + 1, dtype=owner.dtype))

    @cached_property
    def launch(self) -> Array:
        """Row of the call that launched each node; -1 where none is recorded."""
        call = spill.full(self.nodes.num_rows, -1, np.int32)
        src, dst, kind = (self.array(column, "edges") for column in ("src", "dst", "kind"))
        for at in range(0, len(kind), _EDGES_AT_ONCE):
            edges = slice(at, at + _EDGES_AT_ONCE)
            is_launch = kind[edges] == EdgeKind.LAUNCH
            call[dst[edges][is_launch]] = src[edges][is_launch]
            spill.copied(2 * kind[edges].nbytes + 3 * src[edges].nbytes)
        return call

    def cached(self, name: str, make: Callable[[Self], Made]) -> Made:
        """Return ``make(self)``, called once for each trace and name.

        Parameters
        ----------
        name
            Key of the cache, of which each module has its own.
        make
            Called the first time only.
        """
        if name not in self._cache:
            self._cache[name] = make(self)
        return self._cache[name]

    def forget(self, name: str) -> None:
        """Free what `cached` keeps under a name; it is made again when it is asked for."""
        self._cache.pop(name, None)

    @cached_property
    def _cache(self) -> dict[str, Any]:
        return {}

    @property
    def span_ns(self) -> int:
        """Time from the first start to the last end."""
        if not self.nodes.num_rows:
            return 0
        ts, dur = self.array("ts"), self.array("dur")
        parts = (slice(at, at + _BLOCK) for at in range(0, len(ts), _BLOCK))
        return max(int((ts[part] + dur[part]).max()) for part in parts) - int(ts.min())

    def array(self, column: str, table: str = "nodes") -> Array:
        """Core column as numpy, without a copy; a dictionary column gives its codes.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> trace.array("ts")
        array([   0, 1000, 3000, 4000, 9500])
        >>> [trace.names()[code] for code in trace.array("name")][2]
        'gemm'
        >>> trace.array("dst", "edges").tolist()
        [2, 4]
        """
        values = self._arrays.get((table, column))
        if values is None:
            values = arrow.to_numpy(getattr(self, table)[column])
            if not values.flags.owndata:  # a view of the table's memory: no column is held twice
                self._arrays[table, column] = values
        return values

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], Array]:
        return {}

    def names(self) -> list[str]:
        """Texts of the node names: ``names()[array("name")[i]]`` is node i's name."""
        return list(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        chunks = self.nodes["name"].chunks
        return tuple(chunks[0].dictionary.to_pylist()) if chunks else ()

    def values(self, column: str, rows: Array | None = None) -> Array:
        """Annotation column as numpy of objects or floats, None/NaN where unknown.

        Parameters
        ----------
        column
            Name of a nodes column; an absent one gives all None.
        rows
            Nodes, all if None.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> trace.values("phase")
        array([None, None, 'forward', None, 'forward'], dtype=object)
        """
        if not self.has(column):
            return np.full(self._count(rows), None, dtype=object)
        return arrow.to_objects(self._chosen(column, rows))

    def has(self, column: str) -> bool:
        """True if the nodes have this column."""
        return bool(self.nodes.schema.get_field_index(column) >= 0)

    def known(self, column: str) -> Array:
        """Mark the nodes with a value in this column; none where the column is absent."""
        if not self.has(column):
            return np.zeros(self.nodes.num_rows, np.bool_)
        return arrow.is_valid(self.nodes[column])

    def integers(
        self, column: str, rows: Array | slice | None = None, *, unknown: int = -1
    ) -> Array:
        """Integers of a column, of a dictionary column its codes.

        Parameters
        ----------
        column
            Name of a nodes column, which may be absent.
        rows
            Nodes, as numbers or as a slice, all if None.
        unknown
            What stands for null, and for all of an absent column.

        Returns
        -------
        Array
            int64, one a node.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> trace.integers("correlation")
        array([-1,  1,  1,  2,  2])
        >>> trace.integers("iteration", unknown=0)  # a column that this trace does not have
        array([0, 0, 0, 0, 0])
        """
        if not self.has(column):
            return np.full(self._count(rows), unknown, np.int64)
        if rows is None or isinstance(rows, slice):
            numbers = arrow.to_numpy(self._chosen(column, rows), unknown)
        else:
            numbers, known = arrow.values_at(self.nodes[column], np.asarray(rows))
            spill.gathered(self.nodes[column].nbytes, len(numbers))
            numbers[~known] = unknown
        return numbers.astype(np.int64, copy=not numbers.flags.owndata)

    def reals(self, column: str, rows: Array | None = None) -> Array:
        """Numbers of a column as float64, NaN where unknown or where the column is absent."""
        if not self.has(column):
            return np.full(self._count(rows), np.nan)
        chosen = self._chosen(column, rows)
        return np.where(arrow.is_valid(chosen), arrow.to_numpy(chosen).astype(np.float64), np.nan)

    def _count(self, rows: Array | slice | None) -> int:
        """Number of these nodes, of all if `rows` is None."""
        if isinstance(rows, slice):
            return int(rows.stop - rows.start)
        return int(self.nodes.num_rows) if rows is None else len(rows)

    def _chosen(self, column: str, rows: Array | slice | None) -> Any:
        """Values of a nodes column, of all nodes if `rows` is None."""
        values = arrow.single_chunk(self.nodes[column])
        if rows is None:
            return values
        if isinstance(rows, slice):
            return values.slice(rows.start, rows.stop - rows.start)
        chosen = arrow.take(values, np.asarray(rows))
        spill.gathered(values.nbytes, len(rows))
        return chosen

    def texts(self, column: str, rows: Array | None = None) -> tuple[Array, tuple[str, ...]]:
        """Codes of a dictionary column, -1 where unknown, and the texts that they stand for."""
        if not self.has(column):
            return self.integers(column, rows), ()
        names = arrow.single_chunk(self.nodes[column]).dictionary.to_pylist()
        return self.integers(column, rows), tuple(names)

    def is_text(self, column: str, texts: Iterable[str], rows: Array | None = None) -> Array:
        """Mark the nodes with one of these texts in a dictionary column, which may be absent."""
        codes, names = self.texts(column, rows)
        wanted = set(texts)
        chosen = np.array([*(name in wanted for name in names), False])
        return chosen[codes]

    def args(self, node: int) -> dict[str, Any]:
        """Arguments that the source recorded of a node and no column holds; empty if no valid JSON."""
        at, length = int(self.array("args_at")[node]), int(self.array("args_len")[node])
        if not length:
            return {}
        import msgspec

        # of one offset: numpy takes four times as long
        buffer = bisect_right(self.text.starts, at) - 1
        at -= int(self.text.starts[buffer])
        try:
            return dict(msgspec.json.decode(self.text.buffers[buffer][at : at + length].tobytes()))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def with_columns(self, **columns: Any) -> Self:
        """Trace with these nodes columns added or replaced.

        Parameters
        ----------
        **columns
            Name → Arrow array or what `pyarrow.array` takes, one value a node. Columns declared
            in `hub.ANNOTATIONS` are cast to their declared type.

        Raises
        ------
        SchemaError
            A column has another length than the nodes, or values that are not of the declared type.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> later = trace.with_columns(iteration=[0, 0, 0, 0, 1])
        >>> later.integers("iteration")
        array([0, 0, 0, 0, 1])
        >>> trace.has("iteration")  # the trace itself stays as it is
        False
        """
        nodes = self.nodes
        for name, values in columns.items():
            at = nodes.schema.get_field_index(name)
            try:
                array = arrow.column(values, hub.ANNOTATION_TYPES.get(name))
                nodes = (
                    nodes.append_column(name, array)
                    if at < 0
                    else nodes.set_column(at, nodes.schema.field(at), array)
                )
            except (pa.ArrowException, TypeError) as error:
                raise SchemaError(f"nodes.{name}: {first_line(error)}") from error
        return replace(self, nodes=nodes)

    def with_edges(self, src: Parts, dst: Parts, kind: int) -> Self:
        """Trace with further edges of an `EdgeKind`, from nodes `src` to nodes `dst`; in one array or several."""
        pieces = [(part,) if isinstance(part, np.ndarray) else tuple(part) for part in (src, dst)]
        size = sum(map(len, pieces[0]))
        if not size:
            return self
        columns = {
            "src": pieces[0],
            "dst": pieces[1],
            "kind": (np.full(size, int(kind), np.uint8),),
        }
        arrays = []
        for declared in self.edges.schema:
            more = [arrow.column(piece, declared.type) for piece in columns[declared.name]]
            parts = [arrow.single_chunk(self.edges[declared.name]), *more]
            arrays.append(spill.joined_column(parts, self.edges.num_rows + size, declared.type))
        return replace(self, edges=pa.table(arrays, schema=self.edges.schema))

    def with_meta(self, **changes: Any) -> Self:
        """Trace with these fields of `meta` replaced."""
        return replace(self, meta=replace(self.meta, **changes))

    def rank(self, rank: int) -> Self:
        """Trace of one rank: its nodes renumbered from 0, edges within it, its series.

        Lanes and groups stay whole, so that references to them hold.

        Raises
        ------
        UsageError
            The trace has no such rank.
        """
        rows = self.rank_rows.get(rank)
        if rows is None:
            raise UsageError(f"the trace has no rank {rank}", hint=f"it has {self.ranks}")
        return self.apart(rows)

    def apart(self, rows: slice) -> Self:
        """Trace of whole ranks that follow each other, each as if there were no other: edges within it, and its series.

        Nodes are renumbered from 0. Lanes and groups stay whole, so that references to them hold.
        """
        part = self.of_rows(rows)
        rank, owner = part.array("rank"), self.array("rank", "series")
        if len(rank) and rank[0] != rank[-1]:
            inside = rank[part.array("src", "edges")] == rank[part.array("dst", "edges")]
            if not inside.all():
                edges = arrow.rows(part.edges, np.flatnonzero(inside))
                part = replace(part, edges=edges)
        series = np.flatnonzero(np.isin(owner, part.ranks))
        bounds = self.sample_bounds  # found once: not a pass over all samples a rank
        counts = bounds[series + 1] - bounds[series]
        owner = np.repeat(np.arange(len(series), dtype=np.int32), counts)
        samples = arrow.rows(self.samples, gather.consecutive(bounds[series], counts))
        return replace(
            part,
            series=arrow.take(self.series, series),
            samples=arrow.replace_column(samples, "series", owner),
        )

    def of_rows(self, rows: slice) -> Self:
        """Trace of the nodes of whole ranks that follow each other, renumbered from 0, and edges within them.

        All other tables stay whole.
        """
        start, stop = rows.start, rows.stop
        spill.release()  # what the ranks before needed
        return replace(
            self,
            nodes=_shift(self.nodes.slice(start, stop - start), {"parent": -start}),
            edges=self._within("edges", ("src", "dst"), start, stop),
            counters=self._within("counters", ("node",), start, stop),
        )

    def with_own_lanes(self) -> Self:
        """Trace whose lanes are those of its nodes alone, renumbered in their order.

        What looks at all lanes for each rank of a job takes time that grows with the square of the ranks.
        """
        lane = self.array("lane")
        used = gather.unique_codes(lane)
        if len(used) == self.lanes.num_rows:
            return self
        number = np.zeros(self.lanes.num_rows, np.int32)
        number[used] = np.arange(len(used))
        return replace(
            self,
            nodes=arrow.replace_column(self.nodes, "lane", number[lane]),
            lanes=arrow.take(self.lanes, used),
        )

    def without_arguments(self) -> Self:
        """Trace whose nodes have no arguments; text that nobody else has is free then."""
        nodes = self.nodes
        for name in ("args_at", "args_len"):
            dtype = nodes.schema.field(name).type.to_pandas_dtype()
            none = spill.zeros_to_read(nodes.num_rows, dtype)
            nodes = arrow.replace_column(nodes, name, none)
        return replace(self, nodes=nodes, text=Text())

    def rows_to(self, table: str, column: str, start: int, stop: int) -> Array:
        """Rows of a table whose reference to nodes lies in [start, stop).

        Blocks of the table whose lowest and highest reference exclude such rows are skipped, so that of
        tables that are more or less in order of ranks each row is looked at for one rank.
        """
        values = self.array(column, table)
        lowest, highest = self._extents(table, column)
        row_blocks = [np.empty(0, np.int64)]
        for block in np.flatnonzero((highest >= start) & (lowest < stop)).tolist():
            part = values[block * _BLOCK : (block + 1) * _BLOCK]
            row_blocks.append(np.flatnonzero((part >= start) & (part < stop)) + block * _BLOCK)
        return np.concatenate(row_blocks)

    def _extents(self, table: str, column: str) -> tuple[Array, Array]:
        """Least and largest reference of each block of a table."""

        def find(_: Self) -> tuple[Array, Array]:
            values = self.array(column, table)
            starts = np.arange(0, len(values), _BLOCK)
            return np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)

        return self.cached(f"tables.extents.{table}.{column}", find)

    def _within(self, table: str, references: tuple[str, ...], start: int, stop: int) -> pa.Table:
        """Rows of a table whose references all lie in [start, stop), renumbered from start."""
        rows = self.rows_to(table, references[-1], start, stop)
        for name in references[:-1]:
            values = self.array(name, table)[rows]
            rows = rows[(values >= start) & (values < stop)]
        chosen = arrow.rows(getattr(self, table), rows)
        return _shift(chosen, dict.fromkeys(references, -start))

    def select_ranks(self, ranks: Iterable[int]) -> Self:
        """Trace of some ranks: their nodes renumbered from 0, edges within and between them.

        Lanes, groups, series and samples stay whole.
        """
        keep = np.isin(self.array("rank"), list(ranks))
        # new row of each node, -1 of those left out; a last -1, so that the reference -1 stays -1
        new = np.cumsum(keep, dtype=np.int32) - 1
        new = np.append(np.where(keep, new, -1), np.int32(-1)).astype(np.int32)
        nodes = arrow.take(self.nodes, keep)
        nodes = arrow.replace_column(nodes, "parent", new[arrow.to_numpy(nodes["parent"])])
        return replace(
            self,
            nodes=nodes,
            edges=renumbered(self.edges, ("src", "dst"), new),
            counters=renumbered(self.counters, ("node",), new),
        )


def merged_rows(of_ranks: Iterable[slice], max_nodes: int) -> list[slice]:
    """Merge rows that follow each other into spans of so many nodes at most, unless one rank has more."""
    spans: list[slice] = []
    for rows in of_ranks:
        if spans and rows.stop - spans[-1].start <= max_nodes:
            spans[-1] = slice(spans[-1].start, rows.stop)
        else:
            spans.append(rows)
    return spans


def _fields(made: Text | TraceTables) -> dict[str, Any]:
    """Fields of a dataclass, without what is cached: what is sent to other processes."""
    return {declared.name: getattr(made, declared.name) for declared in fields(made)}


def require_row_numbers(table: str, count: int) -> None:
    """Raise `TooLargeError` if a table has more rows than others can refer to; nothing refers to those of samples."""
    if count > row_numbers.MOST and table not in _NOT_REFERRED_TO:
        row_numbers.require(count, table)


_NOT_REFERRED_TO = ("samples", "counters")


def _check(table: str, data: pa.Table) -> None:
    if not isinstance(data, pa.Table):
        raise SchemaError(f"{table} is a {type(data).__name__}, not an Arrow table")
    schema = data.schema
    if schema.equals(hub.schema(table)):
        return
    for column in hub.TABLES[table]:
        at = schema.get_field_index(column.name)
        if at < 0:
            raise SchemaError(f"{table} has no column {column.name!r}")
        actual = schema.field(at).type
        if actual != column.type:
            raise SchemaError(f"{table}.{column.name} is {actual}, not {column.type}")


def _shift(table: pa.Table, by: dict[str, int]) -> pa.Table:
    """Table with an amount added to references that are not -1."""
    for column, amount in by.items():
        values = arrow.to_numpy(table[column])
        table = arrow.replace_column(table, column, np.where(values >= 0, values + amount, -1))
    return table


def counters_by_node(counters: pa.Table) -> pa.Table:
    """Counters in the order of their nodes."""
    if not counters.num_rows:
        return counters
    return arrow.take(counters, np.argsort(arrow.to_numpy(counters["node"]), kind="stable"))


def renumbered(table: pa.Table, references: Iterable[str], new: Array) -> pa.Table:
    """Rows whose references are all renumbered, with the new numbers; the others are dropped."""
    numbers = {name: new[arrow.to_numpy(table[name])] for name in references}
    keep = np.logical_and.reduce([values >= 0 for values in numbers.values()])
    table = arrow.take(table, keep)
    for name, values in numbers.items():
        table = arrow.replace_column(table, name, values[keep])
    return table
