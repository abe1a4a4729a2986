"""Data of slices besides name and time: annotation columns, counters, arguments, flows.

Flows are arrows: ids that two slices share, for the edges of a trace and along its critical path.
Perfetto lets an arrow point forward in time, and each needs an id of its own: one that several slices
carry would lead from each of them to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, arrow, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.arrays.interning import TextTable, empty_text_table
from chopper_interop.converters.perfetto.chopper_metadata import COLUMNS_GROUP, COUNTERS_GROUP
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.converters.perfetto.write.critical_path import (
    CLASS_NAMES,
    CriticalPath,
    node_classes,
)
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.trace import Trace

_TEXTS_PER_BUFFER = 1 << 15
"""Distinct texts of a buffer's arguments that are interned; further ones stand where they occur.

Chosen: room for the names that recur, in tables of 1 MB.
"""
_BYTES_PER_TEXT = 4
"""Bytes of JSON that each name of an argument takes at least, and so does each of its texts: ``"":0``."""
PART = 1 << 15
"""Slices whose columns are taken at a time (chosen: some megabytes, which stay in the processor's cache)."""
_CORE_COLUMNS = {column.name for column in hub.NODES} - {"correlation"}
ARROW_KINDS = (
    EdgeKind.LAUNCH,
    EdgeKind.FWDBWD,
    EdgeKind.EVENT,
    EdgeKind.SYNC,
    EdgeKind.POLL,
    EdgeKind.COMM,
    EdgeKind.DATA,
    EdgeKind.HANDOVER,
)
"""Edges that are drawn; calls and orders can be seen without."""


class AnnotationColumn(NamedTuple):
    """An annotation column: its interned name, and of texts the number of the first."""

    iid: int
    name: str
    values: pa.Array
    first_text: int

    @property
    def is_text(self) -> bool:
        """True if its values are codes of texts."""
        return bool(pa.types.is_dictionary(self.values.type))

    @property
    def is_real(self) -> bool:
        """True if its values are floating-point numbers."""
        return bool(pa.types.is_floating(self.values.type))

    def has_any(self, nodes: Array) -> bool:
        """True if it has a value of any of some nodes."""
        if self.name == "correlation":
            return bool(self.at(nodes)[1].any())
        return bool(arrow.known_at(self.values, nodes).any())

    def at(self, nodes: Array) -> tuple[Array, Array]:
        """Values of some nodes, and a mask of those that are known."""
        values, known = arrow.values_at(self.values, nodes)
        return values, known & (values >= 0) if self.name == "correlation" else known


class NodeValues(NamedTuple):
    """Values of some nodes that the encoder takes, by node."""

    ts: Array
    dur: Array
    name: Array
    category: Array
    columns: encode.Columns
    lists: encode.Lists

    def on_tracks(self, uuid: Array, row: Array) -> encode.Slices:
        """Return the nodes as slices on these tracks."""
        return encode.Slices(self.ts, self.dur, uuid, row, self.name, self.category)


def parts_of(count: int) -> Iterator[slice]:
    """Rows of so many slices, a part of them at a time."""
    return (slice(k, min(k + PART, count)) for k in range(0, count, PART))


class NodeColumns:
    """Annotation columns of a trace as the encoder takes them, with their interned names.

    Parameters
    ----------
    with_args
        False if slices shall not carry their nodes' arguments.
    """

    def __init__(self, trace: Trace, *, with_args: bool) -> None:
        self.trace = trace
        self.with_args = with_args
        self.names = [(i + 1, name) for i, name in enumerate(trace.names())]
        self.fixed_names: list[tuple[int, str]] = [(1, COLUMNS_GROUP), (2, COUNTERS_GROUP)]
        self.fixed_texts: list[tuple[int, str]] = []
        self._others: dict[str, int] = {}
        self._columns: list[AnnotationColumn] = []
        self._batch = slice(0, 0)  # nodes of the ranks that are written together
        self._tables: dict[int, tuple[TextTable, TextTable]] = {}
        self._recent: set[int] = set()
        self._buffers = {id(buffer) for buffer in trace.text.buffers}
        for name in trace.nodes.column_names:
            if name not in _CORE_COLUMNS:
                self._add(name, arrow.single_chunk(trace.nodes[name]))
        self._counter_iids = self._add_counters()
        self._class_iid, self._share_iid = self._name("class"), self._name("share")
        first = len(self.fixed_texts) + 1
        self.fixed_texts += [(first + k, name) for k, name in enumerate(CLASS_NAMES)]
        self._first_class = first
        self._counted = trace.array("node", "counters")  # in ascending order
        self._next = [len(self.fixed_names) + 1, len(self.fixed_texts) + 1]

    def _name(self, name: str) -> int:
        """Intern the name of an argument."""
        self.fixed_names.append((len(self.fixed_names) + 1, name))
        return len(self.fixed_names)

    def _add(self, name: str, column: pa.Array) -> None:
        if pa.types.is_dictionary(column.type):
            first = len(self.fixed_texts) + 1
            texts = column.dictionary.to_pylist()
            self.fixed_texts += [(first + k, text) for k, text in enumerate(texts)]
            self._columns.append(AnnotationColumn(self._name(name), name, column, first))
        elif pa.types.is_primitive(column.type):
            self._columns.append(AnnotationColumn(self._name(name), name, column, 0))

    def used_by(self, nodes: Array) -> list[AnnotationColumn]:
        """Return the annotation columns with a value in any of these nodes, which are written next."""
        if not len(nodes):
            return []
        first, last = int(nodes.min()), int(nodes.max())
        if not (self._batch.start <= first and last < self._batch.stop):
            spans = [
                s for s in rank_batches.spans(self.trace) if s.stop > first and s.start <= last
            ]
            self._batch = slice(spans[0].start, spans[-1].stop)
            # texts of sources that the batch before did not have either
            self._tables = {key: self._tables[key] for key in self._tables if key in self._recent}
            self._recent = set()
        parts = [nodes[rows] for rows in parts_of(len(nodes))]
        return [c for c in self._columns if any(map(c.has_any, parts))]

    def _add_counters(self) -> Array:
        column = self.trace.counters["name"]
        if not self.trace.counters.num_rows:
            return np.empty(0, np.int64)
        names = column.chunk(0).dictionary.to_pylist()
        return np.array([self._name(name) for name in names], np.int64)

    def further_names(self, texts: list[str]) -> tuple[Array, list[tuple[int, str]]]:
        """Return interned numbers for slice names that no node has, and those that are new."""
        new = [text for text in dict.fromkeys(texts) if text not in self._others]
        first = len(self.names) + len(self._others) + 1
        self._others |= {text: first + k for k, text in enumerate(new)}
        numbers = np.array([self._others[text] for text in texts], np.int64)
        return numbers, [(self._others[text], text) for text in new]

    def interned(self, buffer: Array) -> tuple[TextTable, TextTable]:
        """Return the tables of argument names and texts of a buffer, kept from lane to lane.

        A buffer that is not of the trace's text, so a copy, has tables of its own.
        """
        if id(buffer) not in self._buffers:
            return self._new_tables(len(buffer))
        self._recent.add(id(buffer))
        if id(buffer) not in self._tables:
            self._tables[id(buffer)] = self._new_tables(len(buffer))
        return self._tables[id(buffer)]

    def _new_tables(self, size: int) -> tuple[TextTable, TextTable]:
        """Return tables for the texts that a buffer of `size` bytes can have."""
        capacity = min(size // _BYTES_PER_TEXT + 1, _TEXTS_PER_BUFFER)
        names, texts = (empty_text_table(capacity, base) for base in self._next)
        self._next = [base + _TEXTS_PER_BUFFER for base in self._next]
        return names, texts

    def arguments_of_parts(self, nodes: Array, parts: list[slice]) -> list[encode.Arguments]:
        """Return for each part of these nodes their arguments, in one buffer of the trace if those of the part lie in one.

        The parts follow each other and have all nodes among them. Offsets are of all nodes, those of each part in its buffer.
        """
        at, length = (self.trace.array(column)[nodes] for column in ("args_at", "args_len"))
        if not self.with_args:
            length = np.zeros_like(length)
        text = self.trace.text
        starts = np.array([part.start for part in parts])
        # the buffers of the first and of the last byte range of each part; ranges without bytes count for none
        has = length > 0
        low = np.minimum.reduceat(np.where(has, at, np.iinfo(at.dtype).max), starts)
        high = np.maximum.reduceat(np.where(has, at, -1), starts)
        first, last = (np.searchsorted(text.starts, ends, "right") - 1 for ends in (low, high))
        within = at
        if len(text.buffers) > 1:
            begins = text.starts[np.minimum(first, len(text.buffers) - 1)]
            within = at - np.repeat(begins, np.diff([*starts, len(at)]))
        arguments = []
        for part, one, other, top in zip(
            parts, first.tolist(), last.tolist(), high.tolist(), strict=True
        ):
            if top >= 0 and one == other:
                buffer = text.buffers[one]
            else:
                buffer, within[part] = text.block(at[part], length[part])
            arguments.append(encode.Arguments(buffer, within, length))
        return arguments

    def columns(self, nodes: Array, used: Sequence[AnnotationColumn]) -> encode.Columns:
        """Return some annotation columns of these nodes."""
        n = len(nodes)
        texts = [c for c in used if c.is_text]
        floats = [c for c in used if c.is_real]
        ints = [c for c in used if not c.is_text and not c.is_real]
        made = encode.Columns(
            iid=1,
            ints=np.empty((len(ints), n), np.int64),
            ints_known=np.empty((len(ints), n), np.bool_),
            ints_iid=np.array([c.iid for c in ints], np.int64),
            floats=np.empty((len(floats), n), np.float64),
            floats_known=np.empty((len(floats), n), np.bool_),
            floats_iid=np.array([c.iid for c in floats], np.int64),
            texts=np.empty((len(texts), n), np.int64),
            texts_iid=np.array([c.iid for c in texts], np.int64),
        )
        for k, column in enumerate(ints):
            made.ints[k], made.ints_known[k] = column.at(nodes)
        for k, column in enumerate(floats):
            made.floats[k], made.floats_known[k] = column.at(nodes)
        for k, column in enumerate(texts):
            codes, known = column.at(nodes)
            made.texts[k] = np.where(known, codes + np.int64(column.first_text), -1)
        return made

    def path_columns(self, path: CriticalPath) -> encode.Columns:
        """Return the columns of the nodes on a path, with their class and share of the path."""
        columns, n = self.columns(path.nodes, self.used_by(path.nodes)), len(path.nodes)
        own = self.trace.integers("critical_ns", path.nodes, unknown=0)
        length = int((path.ts + path.dur).max() - path.ts.min())
        code = node_classes(self.trace, path.nodes) + self._first_class
        return columns._replace(
            floats=np.concatenate([columns.floats, (own / length)[None]]),
            floats_known=np.concatenate([columns.floats_known, np.ones((1, n), np.bool_)]),
            floats_iid=np.append(columns.floats_iid, self._share_iid),
            texts=np.concatenate([columns.texts, code[None]]),
            texts_iid=np.append(columns.texts_iid, self._class_iid),
        )

    def lists(
        self, nodes: Array, flows: tuple[Array, Array], gpu_events: tuple[Array, Array] | None
    ) -> encode.Lists:
        """Return the flows, typed GPU events and hardware counters of these nodes.

        Parameters
        ----------
        nodes
            Rows of nodes.
        flows
            For all nodes where their flow ids begin, and the ids.
        gpu_events
            Likewise the numbers of typed GPU events, as in `encode.Lists`; None where none are written.
        """
        flow_first, flow = _ragged_rows(flows[0][nodes], flows[0][nodes + 1])
        gpu_first, gpu_event = np.zeros(len(nodes) + 1, np.int64), np.empty(0, np.int64)
        if gpu_events:
            first, numbers = gpu_events
            gpu_first, rows = _ragged_rows(first[nodes], first[nodes + 1])
            gpu_event = numbers[rows]
        bounds = (np.searchsorted(self._counted, nodes, side) for side in ("left", "right"))
        counter_first, counter = _ragged_rows(*bounds)
        return encode.Lists(
            flow_first=flow_first,
            flow=flows[1][flow],
            gpu_first=gpu_first,
            gpu_event=gpu_event,
            counter_first=counter_first,
            counter_iid=self._counter_iids[self.trace.array("name", "counters")[counter]],
            counter_value=self.trace.array("value", "counters")[counter],
            counters_iid=2,
        )


def no_slice_data(
    n: int, flows: tuple[Array, Array] | None = None
) -> tuple[encode.Arguments, encode.Columns, encode.Lists]:
    """Return arguments, columns and lists of n slices that have none, or no lists but flows.

    Parameters
    ----------
    n
        Number of slices.
    flows
        Where the flow ids of each begin, and the ids.
    """
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
    flow_first, flow = flows or (zeros, none)
    lists = encode.Lists(flow_first, flow, zeros, none, zeros, none, np.empty(0), 0)
    arguments = encode.Arguments(np.zeros(1, np.uint8), zeros[:n], np.zeros(n, np.int32))
    return arguments, columns, lists


def _ragged_rows(first: Array, stop: Array) -> tuple[Array, Array]:
    """Join lists, of rows from `first` to `stop` each: where each begins in the result, and its rows."""
    count = stop - first
    bounds = np.concatenate([[0], np.cumsum(count)])
    # row = position within the list + where the list begins
    rows = np.arange(bounds[-1]) - np.repeat(bounds[:-1], count) + np.repeat(first, count)
    return bounds, rows


class Flows:
    """Flow ids of a trace's edges and critical paths.

    Parameters
    ----------
    base
        Number before the first track id of the file.
    paths
        Nodes of each critical path that is drawn.
    """

    def __init__(self, trace: Trace, base: int, paths: Sequence[Array]) -> None:
        edges = np.flatnonzero(has_arrow(trace))
        kind, src, dst = (trace.array(c, "edges")[edges] for c in ("kind", "src", "dst"))
        key = kind.astype(np.int64) * 2 + _is_reversed(trace, src, dst)
        order = np.argsort(key, kind="stable")
        self._next = (base << 31) + 1
        ids = self.further(len(key))
        self.runs = _runs(ids, key[order])
        """First id, number, kind and direction of consecutive ids; see `ChopperMetadata.flows`."""
        self.of_paths = [self.further(len(nodes)) for nodes in paths]
        """Ids of each path's nodes: arrows from the nodes to their slices on the path."""
        # both ends of an edge carry its id: sorted by node, those of node i are first[i]:first[i + 1]
        node = np.concatenate([src[order], dst[order], *paths])
        by_node = np.argsort(node, kind="stable")
        self.of_nodes = (
            _first_of_nodes(trace, node[by_node]),
            spill.kept(np.concatenate([ids, ids, *self.of_paths])[by_node]),
        )
        """For each node where its flow ids begin, and the ids."""

    def further(self, count: int) -> Array:
        """Return so many ids that no slice has."""
        first, self._next = self._next, self._next + count
        return np.arange(first, self._next, dtype=np.int64)

    def chain(self, count: int) -> tuple[Array, Array]:
        """Return ids by which so many slices lead from each to the next: where those of each begin, and all."""
        ids = self.further(max(count - 1, 0))
        # slice k carries the id of the arrow from slice k - 1, and then that of the arrow from itself
        return np.clip(2 * np.arange(count + 1) - 1, 0, 2 * len(ids)), np.repeat(ids, 2)


def _first_of_nodes(trace: Trace, node: Array) -> Array:
    """For each node, and behind the last, the first place among ascending nodes that is not before it."""
    first = spill.empty(trace.nodes.num_rows + 1, np.int32)
    first[0] = 0
    for rows in rank_batches.blocks(trace):
        begin, end = np.searchsorted(node, [rows.start, rows.stop])
        count = np.bincount(node[begin:end] - rows.start, minlength=rows.stop - rows.start)
        np.cumsum(count, out=count)
        count += begin
        first[rows.start + 1 : rows.stop + 1] = count
    return first


def _runs(ids: Array, key: Array) -> list[tuple[int, int, int, int]]:
    keys, at, count = np.unique(key, return_index=True, return_counts=True)
    return [
        (int(ids[a]), n, k // 2, k % 2)
        for k, a, n in zip(keys.tolist(), at.tolist(), count.tolist(), strict=True)
    ]


def has_arrow(trace: Trace) -> Array:
    """Mark the edges that have arrows: of dependencies of no kind, those between tracks only."""
    kind, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
    lane = trace.array("lane")
    between = (kind == EdgeKind.DEPENDENCY) & (lane[src] != lane[dst])
    spill.gathered(lane.nbytes, 2 * len(src))
    return np.asarray(is_any(kind, ARROW_KINDS) | between)


def _is_reversed(trace: Trace, src: Array, dst: Array) -> Array:
    """Mark the edges whose source is read after their target: by time, then position in the file.

    Perfetto lets arrows point forward in this order, so the metadata notes those that do not.
    """
    later, equal = np.zeros(len(src), np.bool_), np.ones(len(src), np.bool_)
    for column in ("ts", "rank", "lane"):
        values = trace.array(column)
        a, b = values[src], values[dst]
        spill.gathered(values.nbytes, 2 * len(src))
        later |= equal & (a > b)
        equal &= a == b
    return later | (equal & (src > dst))
