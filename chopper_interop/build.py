"""Build traces: rows come in any order, `finish` sorts them into a `Trace`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, nest, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import NESTING, LaneKind
from chopper_interop.schemas.meta import Meta
from chopper_interop.tables import counters_by_node, require_row_numbers
from chopper_interop.trace import Text, Trace, empty

Column: TypeAlias = "Array | pa.Array | pa.ChunkedArray | int | float | str"

_SMALL_ROWS = 1 << 16
"""Rows of small tables that are joined at once (chosen: a megabyte a column)."""


@dataclass
class TraceBuilder:
    """Collect rows while a source is read; `finish` sorts them and builds the trace.

    Rows of `nodes` may come in any order and in many batches. `nodes` returns the number of the
    first node that it adds; edges and counters refer to nodes by these numbers.

    >>> import numpy as np
    >>> from chopper_interop.build import TraceBuilder
    >>> from chopper_interop.schemas.kinds import Kind, LaneKind
    >>> builder = TraceBuilder()
    >>> thread = builder.lane(rank=0, kind=LaneKind.THREAD, number=1, name="main")
    >>> builder.nodes(kind=int(Kind.CPU_OP), name="aten::mm", rank=0, lane=thread,
    ...               ts=np.array([2_000, 1_000]), dur=500)
    0
    >>> builder.finish().array("ts")
    array([   0, 1000])
    """

    meta: Meta = field(default_factory=Meta)
    _lanes: dict[tuple[int, int, int, int], tuple[int, str]] = field(default_factory=dict)
    _groups: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    _series: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _nodes: list[pa.Table] = field(default_factory=list)
    _edges: list[pa.Table] = field(default_factory=list)
    _samples: list[tuple[Array, Array, Array, Array | None]] = field(default_factory=list)
    """Series, times, values and which of these: a table for each series would cost more than to read most of them."""
    _counters: list[pa.Table] = field(default_factory=list)
    _text: list[Array] = field(default_factory=list)
    _rows: int = 0

    def lane(self, rank: int, kind: LaneKind, number: int, name: str, device: int = -1) -> int:
        """Return the row of a lane, which the first call creates and names."""
        key = (int(rank), int(device), int(kind), int(number))
        return self._lanes.setdefault(key, (len(self._lanes), name))[0]

    def lanes(self) -> list[tuple[int, int, int, int]]:
        """List rank, device, kind and number of each lane so far."""
        return list(self._lanes)

    def group(
        self, name: str, ranks: Iterable[int], description: str = "", backend: str = ""
    ) -> int:
        """Return the row of a process group, which the first call creates."""
        row = group_row(name, ranks, description, backend)
        return self._groups.setdefault(name, (len(self._groups), row))[0]

    def series(
        self,
        rank: int,
        name: str,
        unit: str,
        source: str,
        *,
        device: int = -1,
        uncertainty_ns: int = 0,
    ) -> int:
        """Return the row of a series, which the first call creates."""
        key = (int(rank), int(device), name, unit, source, int(uncertainty_ns))
        return self._series.setdefault(key, len(self._series))

    def nodes(  # noqa: PLR0913 # the columns that every reader has
        self,
        *,
        kind: Column,
        name: Column,
        rank: Column,
        lane: Column,
        ts: Array,
        dur: Column,
        correlation: Column = -1,
        args: tuple[Array, Array] | None = None,
        **annotations: Column,
    ) -> int:
        """Add nodes and return the number of the first.

        Parameters
        ----------
        kind, name, rank, lane, dur, correlation
            Columns as long as `ts`, or one value for all.
        ts
            Starts, nanoseconds on the clock of `meta`.
        args
            Offset of each node's arguments in the trace's text (see `text`), and their lengths.
        **annotations
            Further columns, usually of `hub.ANNOTATIONS`.
        """
        n = len(ts)
        values = {
            "kind": kind, "name": name, "rank": rank, "lane": lane, "ts": ts, "dur": dur,
            "parent": -1, "correlation": correlation, "args_at": args[0] if args else 0,
            "args_len": args[1] if args else 0,
        }  # fmt: skip
        columns = {c.name: _column(values[c.name], c.type, n) for c in hub.NODES}
        for key, value in annotations.items():
            columns[key] = _column(value, hub.ANNOTATION_TYPES.get(key), n)
        self._nodes.append(pa.table(columns))
        first, self._rows = self._rows, self._rows + n
        return first

    def text(self, buffer: Array) -> int:
        """Add bytes that hold arguments of nodes and return their offset in the trace's text."""
        start = sum(len(b) for b in self._text)
        # of bytes that cannot be written loops would be compiled again, for half a minute
        self._text.append(np.require(buffer, requirements="W"))
        return start

    def edges(self, src: Array, dst: Array, kind: int) -> None:
        """Add dependencies between nodes, by the numbers that `nodes` returned."""
        self._edges.append(_table("edges", {"src": src, "dst": dst, "kind": int(kind)}, len(src)))

    def samples(
        self, series: Array | int, ts: Array, value: Array, rows: Array | None = None
    ) -> None:
        """Add samples.

        Parameters
        ----------
        series
            Series of each, or of all.
        ts
            Times in nanoseconds on the clock of `meta`.
        value
            Their values.
        rows
            Which of the values they are; None for all. Values that are picked here would be held a second time.
        """
        ts = np.asarray(ts)
        if ts.dtype != np.int64:  # with others they would be float64, or wrap around
            ts = arrow.to_numpy(arrow.column(ts, pa.int64()))
        self._samples.append((np.broadcast_to(series, len(ts)), ts, value, rows))

    def counters(self, node: Array, name: Column, value: Array) -> None:
        """Add hardware counters of nodes, by the numbers that `nodes` returned."""
        self._counters.append(
            _table("counters", {"node": node, "name": name, "value": value}, len(node))
        )

    def finish(self, *, keep: bool = True, since: int | None = None) -> Trace:
        """Build the trace; without `keep` the builder has no nodes and samples any more, which it would hold a second time.

        Times count from the first node, or from `since` if that is earlier.
        """
        nodes = _concat("nodes", self._nodes)
        if not keep:
            self._nodes.clear()
        samples = self._sample_columns(keep=keep)
        lanes = self._lane_table()
        origin = _origin(nodes, samples["ts"])
        origin = origin if since is None else min(origin, since)
        samples["ts"] -= origin
        schema, columns = nodes.schema, dict(zip(nodes.schema.names, nodes.columns, strict=True))
        del nodes
        new_row = _sort_nodes(columns, lanes)
        nodes = pa.table(list(columns.values()), schema=schema)
        edges = _renumbered(_concat("edges", self._edges), ("src", "dst"), new_row)
        counters = _renumbered(_concat("counters", self._counters), ("node",), new_row)
        return Trace(
            nodes=_minus(nodes, origin),
            edges=edges,
            lanes=lanes,
            series=self._series_table(),
            samples=_sorted_samples(samples),
            counters=counters_by_node(counters),
            groups=self.group_table(),
            meta=replace(self.meta, origin_ns=origin),
            text=Text(tuple(self._text)),
        )

    def group_table(self) -> pa.Table:
        """Process groups as a table of the hub."""
        return group_table([row for _, row in self._groups.values()])

    def _sample_columns(self, *, keep: bool) -> dict[str, Array]:
        """Columns of the samples, of which nothing else has a part."""
        kinds = {"series": np.int32, "ts": np.int64, "value": np.float64}
        count = sum(len(ts) for _, ts, _, _ in self._samples)
        columns = {name: spill.empty(count, kind) for name, kind in kinds.items()}
        parts, start = deque(self._samples), 0
        if not keep:
            self._samples.clear()
        while parts:  # each of which is dropped where nothing else has it
            series, ts, value, rows = parts.popleft()
            stop = start + len(ts)
            part = series, ts, value if rows is None else value[rows]
            for column, values in zip(columns.values(), part, strict=True):
                column[start:stop] = values
            start = stop
        return columns

    def _lane_table(self) -> pa.Table:
        keys = list(self._lanes)
        columns = {
            "rank": [k[0] for k in keys],
            "device": [k[1] for k in keys],
            "kind": [k[2] for k in keys],
            "number": [k[3] for k in keys],
            "name": [name for _, name in self._lanes.values()],
        }
        return _table("lanes", columns, len(keys))

    def _series_table(self) -> pa.Table:
        if not self._series:
            return empty("series")
        names = ("rank", "device", "name", "unit", "source", "uncertainty_ns")
        columns = {n: [key[i] for key in self._series] for i, n in enumerate(names)}
        return _table("series", columns, len(self._series))


def group_row(
    name: str, ranks: Iterable[int], description: str = "", backend: str = ""
) -> dict[str, Any]:
    """A process group as a row for `group_table`."""
    return {
        "name": name,
        "description": description,
        "backend": backend,
        "ranks": _numbers(ranks),
    }


def _numbers(ranks: Iterable[int]) -> Array:
    """Ranks as an array: a group of all ranks is listed by each of them, so that their square counts."""
    if isinstance(ranks, range):
        return _range(ranks.start, ranks.stop, ranks.step)
    return np.array(ranks if isinstance(ranks, tuple | list) else list(ranks), np.int64)


@lru_cache(maxsize=8)
def _range(start: int, stop: int, step: int) -> Array:
    """Numbers of a range, one array for all ranks whose job it is."""
    return np.arange(start, stop, step)


def group_table(groups: Sequence[dict[str, Any]]) -> pa.Table:
    """Process groups, of `group_row`, as a table of the hub."""
    if not groups:
        return empty("groups")
    columns = {c.name: [group[c.name] for group in groups] for c in hub.GROUPS}
    kind = hub.schema("groups").field("ranks").type
    columns["ranks"] = arrow.lists(columns["ranks"], kind)
    return _table("groups", columns, len(groups))


def concat(traces: Sequence[Trace], meta: Meta) -> Trace:
    """Concatenate traces: renumber references, unify the clocks' origins, sort the nodes.

    Parameters
    ----------
    traces
        Traces whose clocks agree. Equal process groups (name and ranks) become one.
    meta
        Metadata of the result; its origin is set here.

    Raises
    ------
    TooLargeError
        Together they have more nodes, or rows of another table, than can be numbered.
    """
    if len(traces) == 1:
        return replace(traces[0], meta=replace(meta, origin_ns=traces[0].meta.origin_ns))
    for name in hub.TABLES:  # before any number is moved
        require_row_numbers(name, sum(getattr(trace, name).num_rows for trace in traces))
    traces = sorted(traces, key=lambda t: t.ranks[0] if t.nodes.num_rows else -1)
    groups, group_rows = _joined_groups(traces)
    is_shared = len({id(trace.text) for trace in traces}) == 1  # of parts of one trace
    buffers = tuple(buffer for trace in traces for buffer in trace.text.buffers)
    text = traces[0].text if is_shared else Text(buffers)
    places = _places(traces, is_shared=is_shared)
    origin = _first_time(traces)
    moved = [p | {"ts": t.meta.origin_ns - origin} for p, t in zip(places, traces, strict=True)]
    tables = {"groups": groups}
    for name in hub.TABLES:
        if name != "groups":
            parts = [
                _TablePart(getattr(trace, name), by, rows)
                for trace, by, rows in zip(traces, moved, group_rows, strict=True)
            ]
            tables[name] = _joined(name, _with_small_together(parts))
    return _in_time_order(Trace(**tables, meta=replace(meta, origin_ns=origin), text=text))


def _places(traces: Sequence[Trace], *, is_shared: bool) -> list[dict[str, int]]:
    """For each trace what is added to its references to other rows, by the name of the column."""
    first = dict.fromkeys(("nodes", "lanes", "series", "text"), 0)
    places = []
    for trace in traces:
        places.append(
            dict.fromkeys(("node", "src", "dst", "parent"), first["nodes"])
            | {"lane": first["lanes"], "series": first["series"], "args_at": first["text"]}
        )
        for name in ("nodes", "lanes", "series"):
            first[name] += getattr(trace, name).num_rows
        first["text"] += 0 if is_shared else int(trace.text.starts[-1])
    return places


def _first_time(traces: Sequence[Trace]) -> int:
    """Time of the first node of all traces, or if there are none of the first sample; else 0."""
    for table in ("nodes", "samples"):
        starts = [
            trace.meta.origin_ns + int(trace.array("ts", table).min())
            for trace in traces
            if getattr(trace, table).num_rows
        ]
        if starts:
            return min(starts)
    return 0


class _TablePart(NamedTuple):
    """A table of a trace, or of several small ones, that is joined to others.

    Parameters
    ----------
    table
        The table.
    moved
        What is added to its references and times, by the name of the column: a number, or one a row.
    group_rows
        New rows of process groups.
    first_group
        Where those of the trace of each row begin in `group_rows`.
    """

    table: pa.Table
    moved: dict[str, Any]
    group_rows: Array
    first_group: Any = 0


def _with_small_together(parts: list[_TablePart]) -> list[_TablePart]:
    """The parts, of which small ones that follow each other are one if their columns are the same.

    Of thousands of traces, calls for each column of each would take most of the time.
    """
    runs: list[list[_TablePart]] = []
    rows = 0
    for part in parts:
        count = part.table.num_rows
        fits = rows + count <= _SMALL_ROWS
        if runs and fits and part.table.schema.equals(runs[-1][0].table.schema):
            runs[-1].append(part)
            rows += count
        else:
            runs.append([part])
            rows = count
    return [run[0] if len(run) == 1 else _one_part(run) for run in runs]


def _one_part(run: list[_TablePart]) -> _TablePart:
    table = pa.concat_tables([part.table for part in run]).unify_dictionaries().combine_chunks()
    count = [part.table.num_rows for part in run]
    groups = np.cumsum([0, *(len(part.group_rows) for part in run)])[:-1]
    return _TablePart(
        table,
        {name: np.repeat([part.moved[name] for part in run], count) for name in run[0].moved},
        np.concatenate([part.group_rows for part in run]),
        np.repeat(groups, count),
    )


def _joined(name: str, parts: list[_TablePart]) -> pa.Table:
    """Join a table of several traces, column by column."""
    schema = pa.unify_schemas([part.table.schema for part in parts], promote_options="default")
    core, count = hub.schema(name), sum(part.table.num_rows for part in parts)
    fields = [core.field(f.name) if f.name in core.names else f for f in schema]
    columns_of = [dict(zip(p.table.schema.names, p.table.columns, strict=True)) for p in parts]

    def piece(k: int, field: pa.Field) -> pa.Array | int:
        column = columns_of[k].get(field.name)
        if column is None or column.type != field.type:  # the type of null
            return parts[k].table.num_rows
        column = arrow.single_chunk(column)
        if name == "nodes" and field.name == "group" and len(parts[k].group_rows):
            known = arrow.is_valid(column)
            old = np.where(known, arrow.to_numpy(column) + parts[k].first_group, 0)
            return arrow.array(parts[k].group_rows[old], mask=~known)
        by = parts[k].moved.get(field.name, 0)
        if not np.any(by):
            return column
        values = arrow.to_numpy(column)
        if field.name != "ts":
            return arrow.array(np.where(values >= 0, values + by, -1), field.type)
        return arrow.array(values + by)

    with_rows = [k for k, part in enumerate(parts) if part.table.num_rows]

    def column(field: pa.Field) -> pa.Array:
        if len(with_rows) == 1 and pa.types.is_primitive(field.type):  # as samples of one recording
            only = piece(with_rows[0], field)
            if not isinstance(only, int) and only.type == field.type:
                return only
        return spill.joined_column((piece(k, field) for k in range(len(parts))), count, field.type)

    return pa.table([column(field) for field in fields], schema=pa.schema(fields))


def reordered(tables: dict[str, pa.Table], meta: Meta, text: Text) -> Trace:
    """Build a trace of tables with absolute times and nodes that may be out of order.

    Parameters
    ----------
    tables
        All tables of the hub; times count from 0 of the trace's clock.
    meta
        Metadata; its origin is set here.
    text
        Text that the nodes' arguments point into.
    """
    origin = _origin(tables["nodes"], arrow.to_numpy(tables["samples"]["ts"]))
    for name in ("nodes", "samples"):
        tables[name] = _minus(tables[name], origin)
    return _in_time_order(Trace(**tables, meta=replace(meta, origin_ns=origin), text=text))


def _in_time_order(trace: Trace) -> Trace:
    """Trace with its nodes in order, and what refers to them renumbered."""
    rank, ts, dur = (trace.array(column) for column in ("rank", "ts", "dur"))
    if nest.is_in_order(rank, ts, dur):
        return trace
    order = nest.time_order(rank, ts, dur)
    new_row = np.empty(len(order), np.int32)
    new_row[order] = np.arange(len(order), dtype=np.int32)
    return replace(
        trace,
        nodes=_renumbered(arrow.take(trace.nodes, order), ("parent",), new_row),
        edges=_renumbered(trace.edges, ("src", "dst"), new_row),
        counters=counters_by_node(_renumbered(trace.counters, ("node",), new_row)),
    )


def _column(value: Any, declared: pa.DataType | None, n: int) -> pa.Array:
    if isinstance(value, str | int | float | np.generic):
        if declared is not None and pa.types.is_dictionary(declared):
            return arrow.dictionary(np.zeros(n, np.int32), [str(value)])
        is_number = declared is not None and pa.types.is_primitive(declared)
        value = np.full(n, value, declared.to_pandas_dtype() if declared and is_number else None)
    return arrow.column(value, declared)


def _table(name: str, columns: dict[str, Any], n: int) -> pa.Table:
    arrays = [_column(columns[c.name], c.type, n) for c in hub.TABLES[name]]
    return pa.table(arrays, schema=hub.schema(name))


def _concat(name: str, tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables; columns that some lack are null there."""
    if not tables:
        return empty(name)
    require_row_numbers(name, sum(table.num_rows for table in tables))
    table = tables[0]
    if len(tables) > 1:
        table = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
    arrays = [c if c.num_chunks == 1 else c.combine_chunks() for c in table.columns]
    core = hub.schema(name)
    names = set(core.names)
    fields = [core.field(f.name) if f.name in names else f for f in table.schema]
    return pa.table(arrays, schema=pa.schema(fields))


def _origin(nodes: pa.Table, of_samples: Array) -> int:
    ts = arrow.to_numpy(nodes["ts"]) if nodes.num_rows else of_samples
    return int(ts.min()) if ts.size else 0


def _sort_nodes(columns: dict[str, Any], lanes: pa.Table) -> Array:
    """Sort nodes, set their parents, and return the new row of each old one.

    Columns are replaced one by one, so that only one of them is held twice.
    """
    keys = [arrow.to_numpy(columns[name]) for name in ("rank", "ts", "dur")]
    new_row = np.arange(len(keys[0]), dtype=np.int32)
    if not nest.is_in_order(*keys):
        order = nest.time_order(*keys)
        for name, column in columns.items():
            columns[name] = arrow.taken(column, order)
        new_row[order] = np.arange(len(order), dtype=np.int32)
    lane, ts, dur = (arrow.to_numpy(columns[name]) for name in ("lane", "ts", "dur"))
    nests = is_any(arrow.to_numpy(lanes["kind"]), NESTING)
    columns["parent"] = arrow.array(nest.parents(lane, ts, dur, nests), pa.int32())
    return new_row


def _sorted_samples(columns: dict[str, Array]) -> pa.Table:
    ts, series = columns["ts"], columns["series"]
    samples = _table("samples", columns, len(ts))
    if nest.is_in_order(series, ts, ts):  # as most readers add them
        return samples
    return arrow.take(samples, np.lexsort((ts, series)))


def _renumbered(table: pa.Table, references: Iterable[str], new_row: Array) -> pa.Table:
    if not table.num_rows:
        return table
    for name in references:
        old = arrow.to_numpy(table[name])
        values = np.where(old >= 0, new_row[old], -1) if len(new_row) else old
        table = arrow.replace_column(table, name, values)
    return table


def _minus(table: pa.Table, origin: int) -> pa.Table:
    """Table with times that count from an origin."""
    if not table.num_rows:
        return table
    ts = arrow.to_numpy(table["ts"])
    return arrow.replace_column(
        table, "ts", np.subtract(ts, origin, out=spill.empty(len(ts), ts.dtype))
    )


def _joined_groups(traces: Sequence[Trace]) -> tuple[pa.Table, list[Array]]:
    """Merge the process groups of all traces; also return the new rows of each trace's groups."""
    rows: dict[tuple[str, bytes], int] = {}
    table: list[dict[str, Any]] = []
    mapping = []
    for trace in traces:
        new_rows = []
        for group in _groups_of(trace.groups):
            key = (group["name"], group["ranks"].tobytes())
            if key not in rows:
                rows[key] = len(table)
                table.append(group)
            new_rows.append(rows[key])
        mapping.append(np.array(new_rows, np.int32))
    return group_table(table), mapping


def _groups_of(table: pa.Table) -> list[dict[str, Any]]:
    """Process groups of a table, their ranks as arrays."""
    lists = arrow.single_chunk(table["ranks"])
    offsets, ranks = arrow.to_numpy(lists.offsets), arrow.to_numpy(lists.values)
    groups: list[dict[str, Any]] = table.drop_columns("ranks").to_pylist()
    for group, start, stop in zip(groups, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        group["ranks"] = ranks[start:stop]
    return groups
