"""Rows of a rocpd database as tables of the same columns as rocprofv3's other files have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm import tables
from chopper_interop.converters.rocm.database_parts import (
    NO_NAME,
    Columns,
    Lookup,
    first_of,
    whole_numbers,
)
from chopper_interop.converters.rocpd.columns import WHO
from chopper_interop.converters.rocpd.event_tables import EventTable, EventTableBuilder, values_at
from chopper_interop.converters.rocpd.events import document
from chopper_interop.converters.rocpd.names import handles_of, operations
from chopper_interop.io.sqlite import INTEGER, TEXT

if TYPE_CHECKING:
    import pyarrow as pa


_REGISTERS = ("arch_vgpr_count", "accum_vgpr_count", "sgpr_count")
_SCRATCH = "SCRATCH"
_HANDLES = ("hip_event_handle", "event_handle", "hip_event", "event_obj", "handle")
"""Columns that name the event that was recorded or waited for, by version of the table."""
_DIGITS = 19
"""Digits from which on a number may exceed int64."""


class PartTables:
    """Makes the tables of one part that are of GPUs and memory.

    Parameters
    ----------
    builder
        Builder of that part's tables.
    renamed
        True if the user asked for kernels to be named by the ranges in which they were launched.
    """

    def __init__(self, builder: EventTableBuilder, *, renamed: bool) -> None:
        self.builder = builder
        self.renamed = renamed

    def kernels(self) -> EventTable:
        """Dispatches."""
        dispatches, numbers, known = self.builder.read("kernel_dispatch")
        name = self._names_of_kernels(dispatches, numbers, known)
        region = self.builder.part.strings.column(
            dispatches.number("region_name_id"), dispatches.known("region_name_id")
        )
        texts = {"agent": self.builder.agents_of(dispatches, "agent_id")}
        if self.renamed:
            texts["name"] = first_of(region, name)
        else:
            texts |= {"name": name, "region": region}
        return self.builder.table(tables.KERNELS, dispatches, numbers, known, texts)

    def copies(self) -> EventTable:
        """Copies."""
        table, numbers, known = self.builder.read("memory_copy")
        texts = {
            "name": self.builder.part.strings.column(
                table.number("name_id"), table.known("name_id")
            ),
            "source_agent": self.builder.agents_of(table, "src_agent_id"),
            "destination_agent": self.builder.agents_of(table, "dst_agent_id"),
        }
        return self.builder.table(tables.COPIES, table, numbers, known, texts)

    def allocations(self) -> list[EventTable]:
        """Allocations and releases of memory, and those of scratch."""
        table, numbers, known = self.builder.read("memory_allocate")
        level, kind = (table.encoded(c) for c in ("level", "type"))
        texts = {
            "name": operations(level, kind),
            "agent": self.builder.agents_of(table, "agent_id"),
            "address": handles_of(table.number("address", 0), table.known("address")),
        }
        self._flags(table, numbers, known)
        records = self.builder.table(tables.ALLOCATIONS, table, numbers, known, texts)
        levels = level.dictionary.to_pylist()
        scratch = np.array([*(t == _SCRATCH for t in levels), False])[arrow.to_numpy(level, -1)]
        return [
            _selected(records, np.flatnonzero(which), form)
            for which, form in ((~scratch, tables.ALLOCATIONS), (scratch, tables.SCRATCH))
        ]

    def graphs(self) -> EventTable:
        """Launches of graphs, as they reached a queue."""
        table, numbers, known = self.builder.read("graph_launch")
        texts = {"agent": self.builder.agents_of(table, "agent_id")}
        return self.builder.table(tables.GRAPHS, table, numbers, known, texts)

    def syncs(self) -> list[EventTable]:
        """Records of events and waits for them on queues."""
        return [
            self._syncs(table)
            for table in ("hip_event", "event_operation")
            if table in self.builder.part.tables
        ]

    def _syncs(self, table: str) -> EventTable:
        has = self.builder.part.base.columns(self.builder.part.tables[table])
        handle = next((c for c in _HANDLES if c in has), _HANDLES[0])
        wanted = ["agent_id", "queue_id", "stream_id", "source_queue_id", "name_id", handle]
        columns = whole_numbers(("id", *WHO, *wanted))
        rows = self.builder.part.read(table, columns | dict.fromkeys(("type", "operation"), TEXT))
        numbers, known = self.builder.common(rows)
        for column in wanted[1:4]:
            self.builder.take(rows, column, numbers, known)
        name = self.builder.part.strings.column(rows.number("name_id"), rows.known("name_id"))
        for other in ("operation", "type"):
            name = first_of(name, rows.encoded(other))
        texts = {
            "name": name,
            "agent": self.builder.agents_of(rows, "agent_id"),
            "event_handle": handles_of(rows.number(handle), rows.known(handle)),
        }
        return self.builder.table(tables.EVENTS, rows, numbers, known, texts)

    def _names_of_kernels(
        self, dispatches: Columns, numbers: dict[str, Array], known: dict[str, Array]
    ) -> pa.DictionaryArray:
        """Names of kernels; adds the registers that each takes."""
        columns = dict.fromkeys(("display_name", "kernel_name"), TEXT)
        columns |= dict.fromkeys(("id", *_REGISTERS), INTEGER)
        symbols = self.builder.part.read("info_kernel_symbol", columns)
        lookup = Lookup(symbols.number("id"))
        ids = dispatches.number("kernel_id")
        row = lookup.rows(ids, dispatches.known("kernel_id"))
        for column in _REGISTERS:
            name = tables.COLUMNS[column]
            numbers[name] = values_at(symbols.number(column), row, 0)
            known[name] = values_at(symbols.known(column), row, fill=False) & (row >= 0)
        first, code = gather.distinct(row, np.where(row >= 0, 0, ids))
        display, plain = (symbols.texts(c) for c in ("display_name", "kernel_name"))
        texts, nameless = [], []
        for i in first.tolist():
            r = int(row[i])
            shown = (display[r] or plain[r]) if r >= 0 else ""
            texts.append(shown or f"kernel {ids[i]}")
            nameless.append(not shown)
        lost = np.flatnonzero(np.array([*nameless, False])[code])
        example = f"{self.builder.part.where}: {texts[code[lost[0]]]}" if lost.size else ""
        self.builder.issues.add(NO_NAME, lost.size, example)
        return dictionary(code, texts)

    def _flags(self, columns: Columns, numbers: dict[str, Array], known: dict[str, Array]) -> None:
        column = columns.encoded("extdata")
        codes = arrow.to_numpy(column, -1)
        given = [text or "" for text in column.dictionary.to_pylist()]
        self.builder.note_unreadable(given, np.bincount(codes[codes >= 0], minlength=len(given)))
        flags = [str(document(text).get("flags")) for text in given]
        numbers_of_flags = [int(f) if f.isdecimal() and len(f) < _DIGITS else -1 for f in flags]
        values = np.array([*numbers_of_flags, -1], np.int64)[codes]
        numbers["flags"], known["flags"] = np.maximum(values, 0), values >= 0


def _selected(table: EventTable, which: Array, form: tables.TableFormat) -> EventTable:
    rows = replace(table.rows.take(which), form=form)
    return EventTable(rows, table.pid[which], table.ids[which], table.events[which])
