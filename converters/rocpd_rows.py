"""Rows of a rocpd database as tables of the same columns as rocprofv3's other files have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arrow, gather
from chopper_interop.converters import rocprof_tables as tables
from chopper_interop.converters.rocpd_columns import GRAPH, READ, TAKEN, WHO
from chopper_interop.converters.rocpd_events import Events, arguments, document, message_in
from chopper_interop.converters.rocpd_names import domain_of, handles_of, operations
from chopper_interop.converters.rocpd_parts import Columns, Lookup, Part, first_of, named
from chopper_interop.converters.rocprof_rows import Rows, dictionary
from chopper_interop.sqlite import INTEGER, TEXT

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from chopper_interop.issues import IssueLog

    Array = npt.NDArray[Any]

_REGISTERS = ("arch_vgpr_count", "accum_vgpr_count", "sgpr_count")
_MARKERS = "MARKER"
_SCRATCH = "SCRATCH"


@dataclass(frozen=True)
class Made:
    """A table that was made.

    Parameters
    ----------
    rows
        The table.
    pid
        Process id of each row; -1 where unknown.
    ids, events
        Id of each row in the database, and id of its event; -1 if none.
    """

    rows: Rows
    pid: Array
    ids: Array
    events: Array


class Tables:
    """Makes tables of the rows of one part.

    Parameters
    ----------
    part
        The part.
    issues
        Where it is counted what is missing.
    renamed
        Whether the user asked that kernels be called as the ranges in which they were launched.
    """

    def __init__(self, part: Part, issues: IssueLog, *, renamed: bool) -> None:
        self.part = part
        self.issues = issues
        self.renamed = renamed
        self.events = Events(part)
        agents = part.numbers("info_agent", "id", "absolute_index")
        number = np.where(
            agents.known("absolute_index"), agents.number("absolute_index"), agents.number("id")
        )
        self._agent = Lookup(agents.number("id")), number

    def kernels(self) -> Made:
        """Dispatches."""
        found, numbers, known = self._read("kernel_dispatch")
        name = self._names_of_kernels(found, numbers, known)
        region = self.part.strings.column(
            found.number("region_name_id"), found.known("region_name_id")
        )
        texts = {"agent": self._agents(found, "agent_id")}
        if self.renamed:
            texts["name"] = first_of(region, name)
        else:
            texts |= {"name": name, "region": region}
        return self._made(tables.KERNELS, found, numbers, known, texts)

    def copies(self) -> Made:
        """Copies."""
        found, numbers, known = self._read("memory_copy")
        texts = {
            "name": self.part.strings.column(found.number("name_id"), found.known("name_id")),
            "source_agent": self._agents(found, "src_agent_id"),
            "destination_agent": self._agents(found, "dst_agent_id"),
        }
        return self._made(tables.COPIES, found, numbers, known, texts)

    def allocations(self) -> list[Made]:
        """Allocations and releases of memory, and those of scratch."""
        found, numbers, known = self._read("memory_allocate")
        level, kind = (found.encoded(c) for c in ("level", "type"))
        texts = {
            "name": operations(level, kind),
            "agent": self._agents(found, "agent_id"),
            "address": handles_of(found.number("address", 0), found.known("address")),
        }
        self._flags(found, numbers, known)
        whole = self._made(tables.ALLOCATIONS, found, numbers, known, texts)
        levels = level.dictionary.to_pylist()
        scratch = np.array([*(t == _SCRATCH for t in levels), False])[arrow.numbers(level, -1)]
        return [
            _some(whole, np.flatnonzero(which), form)
            for which, form in ((~scratch, tables.ALLOCATIONS), (scratch, tables.SCRATCH))
        ]

    def calls(self) -> Made:
        """Calls and ranges of the host."""
        found, numbers, known = self._read("region")
        name = self.part.strings.column(found.number("name_id"), found.known("name_id"))
        return self._called(found, numbers, known, name)

    def moments(self) -> Made:
        """Calls and marks that start and end at once."""
        found = self.part.read("sample", READ["sample"])
        tracks = self.part.numbers("track", "id", "pid", "tid", "name_id")
        row = Lookup(tracks.number("id")).rows(found.number("track_id"), found.known("track_id"))
        there = row >= 0
        numbers: dict[str, Array] = {}
        known: dict[str, Array] = {}
        self._correlate(found, numbers, known)
        for column in ("start", "end"):
            numbers[column], known[column] = found.number("timestamp", 0), found.known("timestamp")
        thread, has = self.part.thread(tracks)
        numbers["thread"] = _at(thread, row, 0)
        known["thread"] = _at(has, row, fill=False) & there
        ids, named = tracks.number("name_id"), tracks.known("name_id")
        name = self.part.strings.column(_at(ids, row, -1), _at(named, row, fill=False))
        pid = np.where(
            _at(tracks.known("pid"), row, fill=False), _at(tracks.number("pid"), row, -1), -1
        )
        return self._called(found, numbers, known, name, pid)

    def graphs(self) -> Made:
        """Launches of graphs, as they reached a queue."""
        found, numbers, known = self._read("graph_launch")
        texts = {"agent": self._agents(found, "agent_id")}
        return self._made(tables.GRAPHS, found, numbers, known, texts)

    def syncs(self) -> list[Made]:
        """Records of events and waits for them on queues."""
        return [
            self._syncs(table)
            for table in ("hip_event", "event_operation")
            if table in self.part.tables
        ]

    def _syncs(self, table: str) -> Made:
        has = self.part.base.columns(self.part.tables[table])
        handle = next((c for c in _HANDLES if c in has), _HANDLES[0])
        wanted = ["agent_id", "queue_id", "stream_id", "source_queue_id", "name_id", handle]
        columns = dict.fromkeys(("id", *WHO, *wanted), INTEGER)
        found = self.part.read(table, columns | dict.fromkeys(("type", "operation"), TEXT))
        numbers, known = self._common(found)
        for column in wanted[1:4]:
            self._take(found, column, numbers, known)
        name = self.part.strings.column(found.number("name_id"), found.known("name_id"))
        for other in ("operation", "type"):
            name = first_of(name, found.encoded(other))
        texts = {
            "name": name,
            "agent": self._agents(found, "agent_id"),
            "event_handle": handles_of(found.number(handle), found.known(handle)),
        }
        return self._made(tables.EVENTS, found, numbers, known, texts)

    def agents(self, ids: Array, known: Array) -> Array:
        """Number of the agent of each row; -1 where there is none."""
        lookup, number = self._agent
        row = lookup.rows(ids, known)
        return np.where(row >= 0, _at(number, row, -1), np.where(known, ids, -1))

    def _read(self, table: str) -> tuple[Columns, dict[str, Array], dict[str, Array]]:
        """A table, what is taken over of it as it is, and where that is known."""
        found = self.part.read(table, READ[table])
        numbers, known = self._common(found)
        for column in TAKEN.get(table, ()):
            self._take(found, column, numbers, known)
        return found, numbers, known

    def _common(self, found: Columns) -> tuple[dict[str, Array], dict[str, Array]]:
        """Columns that all tables have: times, threads, correlation."""
        numbers: dict[str, Array] = {}
        known: dict[str, Array] = {}
        for column in ("start", "end"):
            self._take(found, column, numbers, known)
        numbers["thread"], known["thread"] = self.part.thread(found)
        self._correlate(found, numbers, known)
        return numbers, known

    def _correlate(
        self, found: Columns, numbers: dict[str, Array], known: dict[str, Array]
    ) -> None:
        numbers["correlation"], known["correlation"] = self.events.correlation(
            self.events.of(found)
        )

    def _take(
        self, found: Columns, column: str, numbers: dict[str, Array], known: dict[str, Array]
    ) -> None:
        """Take a column over, under the name that it has here; not at all if it is empty."""
        there = found.known(column)
        if column in GRAPH:
            there = there & (found.number(column, 0) != 0)
        if not there.any() and column not in ("start", "end"):
            return
        name = tables.COLUMNS.get(column) or _NAMES.get(column, column)
        numbers[name], known[name] = found.number(column, 0), there

    def _agents(self, found: Columns, column: str) -> pa.DictionaryArray:
        number = self.agents(found.number(column), found.known(column))
        first, code = gather.distinct(number)
        texts = [f"Agent {n}" if n >= 0 else "" for n in number[first].tolist()]
        return dictionary(np.where(number >= 0, code, -1), texts)

    def _names_of_kernels(
        self, found: Columns, numbers: dict[str, Array], known: dict[str, Array]
    ) -> pa.DictionaryArray:
        """Names of kernels; adds the registers that each takes."""
        columns = dict.fromkeys(("display_name", "kernel_name"), TEXT)
        columns |= dict.fromkeys(("id", *_REGISTERS), INTEGER)
        symbols = self.part.read("info_kernel_symbol", columns)
        lookup = Lookup(symbols.number("id"))
        ids = found.number("kernel_id")
        row = lookup.rows(ids, found.known("kernel_id"))
        for column in _REGISTERS:
            name = tables.COLUMNS[column]
            numbers[name] = _at(symbols.number(column), row, 0)
            known[name] = _at(symbols.known(column), row, fill=False) & (row >= 0)
        first, code = gather.distinct(row, np.where(row >= 0, 0, ids))
        display, plain = (symbols.texts(c) for c in ("display_name", "kernel_name"))
        texts = []
        for i in first.tolist():
            r = int(row[i])
            told = (display[r] or plain[r]) if r >= 0 else ""
            texts.append(told or f"kernel {ids[i]}")
        return dictionary(code, texts)

    def _called(
        self,
        found: Columns,
        numbers: dict[str, Array],
        known: dict[str, Array],
        name: pa.DictionaryArray,
        pid: Array | None = None,
    ) -> Made:
        """Calls, markers by their messages, with what else is told of them."""
        event = self.events.of(found)
        domain, domains = self.events.category(event)
        plain = [domain_of(text) for text in domains]
        data, texts = self.events.extdata(event)
        marks = np.array([*(text.startswith(_MARKERS) for text in plain), False])[domain]
        messages = [message_in(text) for text in texts]
        message = np.where(np.array([*(bool(m) for m in messages), False])[data] & marks, data, -1)
        columns = {"domain": dictionary(domain, plain), "name": name}
        if (message >= 0).any():
            columns["name"] = first_of(dictionary(message, messages), name)
        raw = self._arguments(found)
        rest = [b"" if document(t).keys() <= {"message"} else t.encode() for t in texts]
        if any(rest):
            raw["extdata"] = [rest[i] if i >= 0 else b"" for i in data.tolist()]
        made = self._made(tables.CALLS, found, numbers, known, columns, raw)
        return made if pid is None else Made(made.rows, pid, made.ids, made.events)

    def _arguments(self, found: Columns) -> dict[str, list[bytes]]:
        lookup, objects = self._args
        if not len(objects):
            return {}
        row = lookup.rows(found.number("event_id"), found.known("event_id"))
        mine = arrow.take(objects, np.maximum(row, 0)).to_pylist()
        return {
            "args": [
                text.encode() if r >= 0 else b"" for r, text in zip(row.tolist(), mine, strict=True)
            ]
        }

    @cached_property
    def _args(self) -> tuple[Lookup, pa.Array]:
        return arguments(self.part)

    def _flags(self, found: Columns, numbers: dict[str, Array], known: dict[str, Array]) -> None:
        column = found.encoded("extdata")
        told = [document(text or "").get("flags") for text in column.dictionary.to_pylist()]
        flags = [str(flag) for flag in told]
        whole = [int(f) if f.isdecimal() and len(f) < _DIGITS else -1 for f in flags]
        values = np.array([*whole, -1], np.int64)[arrow.numbers(column, -1)]
        numbers["flags"], known["flags"] = np.maximum(values, 0), values >= 0

    def _made(
        self,
        form: tables.Format,
        found: Columns,
        numbers: dict[str, Array],
        known: dict[str, Array],
        texts: dict[str, pa.DictionaryArray],
        raw: dict[str, list[bytes]] | None = None,
    ) -> Made:
        if "name" in texts:
            texts["name"] = named(texts["name"], form.name, self.issues, self.part.where)
        rows = Rows(form, found.count, numbers, known, texts, raw=raw or {}, where=self.part.where)
        names = found.table.column_names
        pid = found.number("pid") if "pid" in names else np.full(found.count, -1, np.int64)
        return Made(rows, pid, found.number("id"), found.number("event_id"))


_HANDLES = ("hip_event_handle", "event_handle", "hip_event", "event_obj", "handle")
"""Columns that name the event that was recorded or waited for, by version of the table."""
_NAMES = {"source_queue_id": "source_queue"}
_DIGITS = 19


def _some(made: Made, which: Array, form: tables.Format) -> Made:
    rows = replace(made.rows.take(which), form=form)
    return Made(rows, made.pid[which], made.ids[which], made.events[which])


def _at(values: Array, rows: Array, fill: Any) -> Array:
    """Values of rows, `fill` where a row is -1."""
    if not len(values):
        return np.full(len(rows), fill, values.dtype)
    return np.where(rows >= 0, values[rows], fill)
