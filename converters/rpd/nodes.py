"""Nodes of an rpd database: its calls and operations, and what ties them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.rocm import database_parts, node_arguments, row_checks
from chopper_interop.converters.rocm.dispatch_counters import COUNTER_ROW
from chopper_interop.converters.rocm.file_names import path_info
from chopper_interop.converters.rocm.json_texts import TextBytes
from chopper_interop.converters.rocm.lanes import LaneAdder, LaneKeys, lanes_of_kind
from chopper_interop.converters.rocm.nodes import NEGATIVE, NO_END, NO_TIME
from chopper_interop.converters.rocm.rows import TableRows
from chopper_interop.converters.rpd import joined_tables
from chopper_interop.converters.rpd import tables as rpd_tables
from chopper_interop.converters.rpd.monitor import add_monitors
from chopper_interop.converters.rpd.ranks import ranks_of
from chopper_interop.edges.communication import communicates
from chopper_interop.io import inputs, memory
from chopper_interop.io.sqlite import INTEGER, REAL
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import Device

DEPENDENCY_LOST = Fault.loss(
    "dependency-without-ends",
    "Dependencies of operations that are not in the database, or of one on itself, were left out.",
)
DANGLING = Fault.loss(
    "launch-without-ends", "Launches whose call or operation is not in the database were left out."
)
COUNTER_ALONE = Fault.loss_of_events(
    "counter-without-event",
    "Rows of counters that belong to no dispatch and no moment were left out.",
)
SHARED_SIZE = Fault.info(
    "size-of-several", "Sizes of copies that took several operations were left with their calls."
)

_KNOWN = frozenset({*(name.lower() for name in rpd_tables.CALLS), "rocpd_op", "rocpd_monitor"})
_NO_NODE = -1


@dataclass
class DatabaseNodes:
    """The reading of one database; `add` makes all of it nodes of `builder`."""

    tables: joined_tables.RpdTables
    path: Path
    given: int | None
    issues: IssueLog
    events: int = 0

    def __post_init__(self) -> None:
        self.size = inputs.size(self.path)
        self.builder = TraceBuilder()
        self.lanes = LaneAdder(self.builder, ())
        self.strings = self.tables.strings_of("rocpd_string")
        unique = self.tables.has("rocpd_ustring")
        self.texts = self.tables.strings_of("rocpd_ustring") if unique else self.strings
        self.calls = joined_tables.calls(self.tables)
        self.operations = joined_tables.operations(self.tables)
        first = self.calls[0] if self.calls else self.tables.numbers("rocpd_api", "id")
        self.launches = joined_tables.launches(self.tables, first, self.operations)
        self.issues.add(DANGLING, self.launches.dangling, self.path.name)
        info = path_info(self.path)
        self.owners = ranks_of(
            self.calls, self.operations, self.launches, info, self.given, self.issues
        )
        used = np.unique(self.owners.device)
        self.devices = tuple(Device("", int(n), "", "rpd") for n in used if n >= 0)

    def add(self) -> None:
        """Add everything to the trace."""
        node = [self._add_calls(calls, first=not i) for i, calls in enumerate(self.calls)]
        works = self._add_operations()
        if node:
            source, target = node[0][self.launches.call], works[self.launches.operation]
            is_paired = (source >= 0) & (target >= 0)
            self.builder.edges(source[is_paired], target[is_paired], int(EdgeKind.LAUNCH))
        self._add_dependencies(works)
        self._add_counters(works)
        numbers = {device.device for device in self.devices}
        self.events += add_monitors(self.builder, self.tables, numbers, self.issues)
        self._count_others()

    def _add_calls(self, columns: database_parts.Columns, *, first: bool) -> Array:
        """Add a table of calls; node of each of its rows."""
        self.events += columns.count
        name = self._text(columns, "apiName_id", self.strings)
        text = self._text(columns, "args_id", self.texts)
        at_once = columns.number("start") == columns.number("end")
        kind, shown, rest = _kinds_and_names_of_calls(name, text, at_once)
        details = (
            [
                joined_tables.Details.of_kernels(self.tables, columns, self.strings),
                joined_tables.Details.of_copies(self.tables, columns),
            ]
            if first
            else []
        )
        texts = {"text": rest}
        for column in ("domain", "category"):
            texts[column] = self._text(columns, f"{column}_id", self.strings)
        numbers: dict[str, Array] = {}
        known: dict[str, Array] = {}
        for detail in details:
            detail.add_to(numbers, known)
            stream = texts.get("stream")
            texts |= detail.texts
            if stream is not None:
                texts["stream"] = database_parts.first_of(stream, detail.texts["stream"])
        if first:
            self.details, self.stream = details, texts["stream"]
        rows = TableRows(
            rpd_tables.CALL, columns.count, numbers, known, texts, where=self.path.name
        )
        row_checks.check_launch_shapes(rows, self.issues, in_blocks=True)
        rank = self.owners.calls[0 if first else 1]
        thread = np.where(columns.known("tid"), columns.number("tid"), 0)
        has_work = np.zeros(columns.count, bool)
        if first:
            has_work[self.launches.call] = True
        correlation = np.where(has_work, columns.number("id"), -1)
        no_device = np.full(columns.count, -1)
        place = lanes_of_kind(rank, no_device, LaneKind.THREAD, np.maximum(thread, 0))
        node = self._nodes(columns, rows, kind, shown, place, correlation)
        del rows, texts, numbers, known
        memory.give_back(self.size)
        return node

    def _add_operations(self) -> Array:
        """Add what ran on GPUs; node of each row."""
        operations = self.operations
        self.events += operations.count
        kind_name = self._text(operations, "opType_id", self.strings)
        described = self._text(operations, "description_id", self.strings)
        kind, name = _kinds_and_names_of_operations(kind_name, described)
        call = np.full(operations.count, -1)
        call[self.launches.operation] = self.launches.call
        each = np.bincount(self.launches.call, minlength=1)
        alone = (call >= 0) & (each[np.maximum(call, 0)] == 1) if len(each) else call >= 0
        numbers, known, texts = self._of_launch(call, alone, kind)
        for column, source in (("queue", "queueId"), ("sequence", "sequenceId")):
            numbers[column], known[column] = operations.number(source, 0), operations.known(source)
        size, sized = numbers.pop("size", None), known.pop("size", np.zeros(0, bool))
        rows = TableRows(
            rpd_tables.OPERATION,
            operations.count,
            numbers,
            known,
            {"type": kind_name, **texts},
            where=self.path.name,
        )
        correlation = np.full(operations.count, -1)
        if self.calls:
            ids = self.calls[0].number("id")
            correlation = (
                np.where(call >= 0, ids[np.maximum(call, 0)], -1) if len(ids) else correlation
            )
        more = {}
        if size is not None:
            more["bytes"] = arrow.array(size, mask=~sized | (size <= 0))
        queue = np.maximum(operations.number("queueId"), 0)
        place = lanes_of_kind(self.owners.operations, self.owners.device, LaneKind.QUEUE, queue)
        return self._nodes(operations, rows, kind, name, place, correlation, **more)

    def _of_launch(
        self, call: Array, alone: Array, kind: Array
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Any]]:
        """Columns of operations that come from the one call that launched them."""
        if not self.calls or not self.calls[0].count:
            return {}, {}, {}
        at = np.maximum(call, 0)
        kernel, copy = self.details
        fits = {
            id(kernel): alone & np.isin(kind, (int(Kind.KERNEL), int(Kind.COMM))),
            id(copy): alone & np.isin(kind, (int(Kind.MEMCPY), int(Kind.MEMSET))),
        }
        numbers: dict[str, Array] = {}
        known: dict[str, Array] = {}
        for details in (kernel, copy):
            details.add_to(numbers, known, at)
        is_shared_copy = (call >= 0) & ~alone & known["size"] & (kind == int(Kind.MEMCPY))
        self.issues.add(SHARED_SIZE, np.count_nonzero(is_shared_copy), self.path.name)
        for details in (kernel, copy):
            for name in details.names.values():
                known[name] &= fits[id(details)]
        del numbers["copy_kind"], known["copy_kind"]
        codes, streams = _codes_of(self.stream)
        return numbers, known, {"stream": dictionary(np.where(call >= 0, codes[at], -1), streams)}

    def _nodes(
        self,
        columns: database_parts.Columns,
        rows: TableRows,
        kind: Array,
        name: Any,
        place: LaneKeys,
        correlation: Array,
        **more: Any,
    ) -> Array:
        """Add rows that have a time; node of each row, -1 for the others."""
        start, end = columns.number("start", 0), columns.number("end", 0)
        timed = columns.known("start") & (start > 0)
        lost = np.flatnonzero(~timed)
        self.issues.add(NO_TIME, lost.size, self.path.name)
        kept = np.flatnonzero(timed)
        self.issues.add(NO_END, np.count_nonzero(timed & ~columns.known("end")), self.path.name)
        dur = np.where(columns.known("end"), np.maximum(end, 0) - start, 0)[kept]
        self.issues.add(NEGATIVE, np.count_nonzero(dur < 0), self.path.name)
        text, at, length = node_arguments.encode_arguments(rows.take(kept), self.issues)
        place = place.take(kept)
        first = self.builder.nodes(
            kind=kind[kept],
            name=arrow.take(
                database_parts.named(name, rows.form.name, self.issues, self.path.name), kept
            ),
            rank=place.rank,
            lane=self.lanes.rows(place),
            ts=start[kept],
            dur=np.maximum(dur, 0),
            correlation=correlation[kept],
            args=(self.builder.text(text) + at, length),
            **{key: arrow.take(column, kept) for key, column in more.items()},
        )
        node = np.full(columns.count, _NO_NODE)
        node[kept] = np.arange(first, first + len(kept))
        return node

    def _add_dependencies(self, works: Array) -> None:
        """Signals for which operations waited."""
        pairs = self.tables.numbers("rocpd_op_inputSignals", "from_op_id", "to_op_id")
        ids = database_parts.Lookup(self.operations.number("id"))
        ends = [ids.rows(pairs.number(c), pairs.known(c)) for c in ("from_op_id", "to_op_id")]
        is_paired = (ends[0] >= 0) & (ends[1] >= 0)
        source, target = (works[e[is_paired]] for e in ends)
        both = (source >= 0) & (target >= 0) & (source != target)
        self.issues.add(DEPENDENCY_LOST, pairs.count - np.count_nonzero(both), self.path.name)
        if both.any():
            self.builder.edges(source[both], target[both], int(EdgeKind.DEPENDENCY))

    def _add_counters(self, works: Array) -> None:
        """Counters of operations (schema 3): sums, where there are several values."""
        columns = {"op_id": INTEGER, "name_id": INTEGER, "value": REAL}
        table = self.tables.read("rocpd_counter", columns)
        self.events += table.count
        row = database_parts.Lookup(self.operations.number("id")).rows(
            table.number("op_id"), table.known("op_id")
        )
        node = np.where(row >= 0, works[np.maximum(row, 0)], -1) if len(works) else row
        name = self._text(table, "name_id", self.strings)
        codes, _ = _codes_of(name)
        value = arrow.to_numpy(table.table["value"], np.nan)
        kept = np.flatnonzero((node >= 0) & (codes >= 0) & np.isfinite(value))
        self.issues.add(COUNTER_ALONE, table.count - len(kept), self.path.name)
        self.issues.add(COUNTER_ROW, len(kept), self.path.name)
        if not kept.size:
            return
        first, code = gather.distinct(node[kept], codes[kept])
        total = np.bincount(code, value[kept], minlength=len(first))
        self.builder.counters(node[kept][first], arrow.take(name, kept[first]), total)

    def _count_others(self) -> None:
        """Count rows with times of tables that are not known here."""
        for name, columns in self.tables.base.tables.items():
            plain = {c.lower() for c in columns}
            if (
                name.lower() in _KNOWN
                or not name.lower().startswith("rocpd_")
                or "start" not in plain
            ):
                continue
            rows = self.tables.base.read(name, {"id": INTEGER}).num_rows
            self.issues.add(database_parts.NOT_READ, rows, name)
            self.events += rows

    def _text(
        self, columns: database_parts.Columns, column: str, strings: database_parts.Strings
    ) -> Any:
        return strings.column(columns.number(column), columns.known(column))


def _codes_of(column: pa.DictionaryArray) -> tuple[Array, list[str]]:
    """Codes of a column of texts (-1 where unknown), and what they stand for."""
    return arrow.to_numpy(column, -1).astype(np.int64), column.dictionary.to_pylist()


def _kinds_and_names_of_calls(
    name: pa.DictionaryArray, text: pa.DictionaryArray, at_once: Array
) -> tuple[Array, pa.DictionaryArray, pa.DictionaryArray]:
    """Kinds and names of calls, and what else their text says.

    Parameters
    ----------
    name, text
        Of each call, its name and the text that is its argument.
    at_once
        Mask of calls that end as they start.
    """
    code, names = _codes_of(name)
    text_code, texts = arrow.to_numpy(text, -1).astype(np.int64), text.dictionary
    kind = np.array([*(int(rpd_tables.kind_of_call(n)) for n in names), int(Kind.API)])[code]
    marks = np.array([*(n == rpd_tables.MARKER for n in names), False])[code] & (text_code >= 0)
    operator, shown_texts, rest = _operators(texts)
    runs = np.append(operator, False)[text_code]
    marked = np.where(runs, int(Kind.CPU_OP), int(Kind.ANNOTATION))
    marked = np.where(at_once & ~runs, int(Kind.INSTANT), marked)
    shown = database_parts.first_of(arrow.coded(np.where(marks, text_code, -1), shown_texts), name)
    # whole texts only of calls that are no markers: those of markers are often all there are
    others, place = np.unique(text_code[~marks & (text_code >= 0)], return_inverse=True)
    left = text_code.copy()
    left[~marks & (text_code >= 0)] = len(rest) + place
    every = pa.concat_arrays([rest, arrow.take(texts, others)])
    return np.where(marks, marked, kind), shown, arrow.coded(left, every)


def _operators(texts: pa.Array) -> tuple[Array, pa.Array, pa.Array]:
    """Mask of the texts that PyTorch set around an operator, what to show of each, and the facts behind it.

    ::

        aten::mm, seq = 3, op_id = 12       a text; others are shown whole
        --------  -------------------       what is shown, and the facts
    """
    octets = TextBytes.of_column(texts)
    at = arrow.to_numpy(arrow.find(texts, rpd_tables.OPERATOR_FACTS))
    end = octets.bounds[1:]
    stop = np.where(at >= 0, octets.bounds[:-1] + at, end)
    # no beginning of an operator's name has a separator: it is looked for in what is before the facts
    name = arrow.encoded(_split(octets, stop)[0])
    runs = [rpd_tables.OPERATOR.match(text) is not None for text in name.dictionary.to_pylist()]
    operator = np.array(runs, bool)[arrow.to_numpy(name)]
    return operator, *_split(octets, np.where(operator, stop, end))


def _split(texts: TextBytes, stop: Array) -> tuple[pa.Array, pa.Array]:
    """Split each text at a separator, which begins at `stop`; where that is the text's end, nothing is behind it."""
    behind = np.minimum(stop + len(rpd_tables.SEPARATOR), texts.bounds[1:])
    # three pieces of each text, the second of them the separator: begin, stop, behind | begin, ...
    bounds = np.append(np.stack([texts.bounds[:-1], stop, behind], axis=1), texts.bounds[-1])
    pieces = TextBytes(texts.data, bounds).column(pa.string())
    first = 3 * np.arange(len(texts))
    return arrow.take(pieces, first), arrow.take(pieces, first + 2)


def _kinds_and_names_of_operations(
    kind_name: pa.DictionaryArray, described: pa.DictionaryArray
) -> tuple[Array, pa.DictionaryArray]:
    """Kinds and names of operations, by their types and descriptions."""
    type_code, types = _codes_of(kind_name)
    kind = np.array([*(int(rpd_tables.kind_of_operation(t)) for t in types), int(Kind.KERNEL)])[
        type_code
    ]
    name = database_parts.first_of(described, kind_name)
    code, names = _codes_of(name)
    is_comm = np.array([*(communicates(n) for n in names), False])[code]
    return np.where((kind == Kind.KERNEL) & is_comm, int(Kind.COMM), kind), name
