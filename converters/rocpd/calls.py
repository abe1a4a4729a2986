"""Calls and ranges of the host in a rocpd database, and marks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm import tables
from chopper_interop.converters.rocm.database_parts import Columns, Lookup, first_of
from chopper_interop.converters.rocm.json_texts import TextBytes
from chopper_interop.converters.rocpd.columns import READ
from chopper_interop.converters.rocpd.event_tables import EventTable, EventTableBuilder, values_at
from chopper_interop.converters.rocpd.events import arguments
from chopper_interop.converters.rocpd.names import domain_of

if TYPE_CHECKING:
    import pyarrow as pa


_MARKERS = "MARKER"


class Calls:
    """Makes the tables of one part that are of the host.

    Parameters
    ----------
    builder
        Builder of that part's tables.
    """

    def __init__(self, builder: EventTableBuilder) -> None:
        self.builder = builder

    def calls(self) -> EventTable:
        """Calls and ranges of the host."""
        regions, numbers, known = self.builder.read("region")
        name = self.builder.part.strings.column(regions.number("name_id"), regions.known("name_id"))
        return self._called(regions, numbers, known, name)

    def instants(self) -> EventTable:
        """Calls and marks that start and end at once."""
        samples = self.builder.part.read("sample", READ["sample"])
        tracks = self.builder.part.numbers("track", "id", "pid", "tid", "name_id")
        row = Lookup(tracks.number("id")).rows(
            samples.number("track_id"), samples.known("track_id")
        )
        there = row >= 0
        numbers: dict[str, Array] = {}
        known: dict[str, Array] = {}
        self.builder.correlate(samples, numbers, known)
        for column in ("start", "end"):
            numbers[column], known[column] = (
                samples.number("timestamp", 0),
                samples.known("timestamp"),
            )
        thread, has = self.builder.part.thread(tracks)
        numbers["thread"] = values_at(thread, row, 0)
        known["thread"] = values_at(has, row, fill=False) & there
        ids, named = tracks.number("name_id"), tracks.known("name_id")
        name = self.builder.part.strings.column(
            values_at(ids, row, -1), values_at(named, row, fill=False)
        )
        pid = np.where(
            values_at(tracks.known("pid"), row, fill=False),
            values_at(tracks.number("pid"), row, -1),
            -1,
        )
        return self._called(samples, numbers, known, name, pid)

    def _called(
        self,
        rows: Columns,
        numbers: dict[str, Array],
        known: dict[str, Array],
        name: pa.DictionaryArray,
        pid: Array | None = None,
    ) -> EventTable:
        """Calls, markers by their messages, with all other recorded values."""
        event = self.builder.events.event_rows(rows)
        domain, domains = self.builder.events.category(event)
        data, further = self.builder.events.extdata(event)
        self.builder.note_bad(int(np.append(further.is_bad, False)[data].sum()))
        plain = [domain_of(text) for text in domains]
        marks = np.array([*(text.startswith(_MARKERS) for text in plain), False])[domain]
        is_message = np.array([*(bool(m) for m in further.messages), False])
        message = np.where(is_message[data] & marks, data, -1)
        columns = {"domain": dictionary(domain, plain), "name": name}
        if (message >= 0).any():
            columns["name"] = first_of(dictionary(message, further.messages), name)
        raw = self._arguments(rows)
        if any(further.rest):
            rest = TextBytes.of(further.rest).column()
            raw["extdata"] = arrow.take_known(rest, data)
        table = self.builder.table(tables.CALLS, rows, numbers, known, columns, raw)
        return table if pid is None else EventTable(table.rows, pid, table.ids, table.events)

    def _arguments(self, columns: Columns) -> dict[str, pa.Array]:
        lookup, objects = self._args
        if not len(objects):
            return {}
        row = lookup.rows(columns.number("event_id"), columns.known("event_id"))
        return {"args": arrow.take_known(objects, row)}

    @cached_property
    def _args(self) -> tuple[Lookup, pa.Array]:
        return arguments(self.builder.part)
