"""Calls and ranges of the host in a rocpd database, and marks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.converters import rocprof_tables as tables
from chopper_interop.converters.rocpd_columns import READ
from chopper_interop.converters.rocpd_events import arguments, document, message_in
from chopper_interop.converters.rocpd_made import Made, Maker, at
from chopper_interop.converters.rocpd_names import domain_of
from chopper_interop.converters.rocpd_parts import Columns, Lookup, first_of
from chopper_interop.converters.rocprof_rows import dictionary

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array

_MARKERS = "MARKER"


class Calls:
    """Makes the tables of one part that are of the host.

    Parameters
    ----------
    maker
        What makes tables of that part.
    """

    def __init__(self, maker: Maker) -> None:
        self.maker = maker

    def calls(self) -> Made:
        """Calls and ranges of the host."""
        found, numbers, known = self.maker.read("region")
        name = self.maker.part.strings.column(found.number("name_id"), found.known("name_id"))
        return self._called(found, numbers, known, name)

    def moments(self) -> Made:
        """Calls and marks that start and end at once."""
        found = self.maker.part.read("sample", READ["sample"])
        tracks = self.maker.part.numbers("track", "id", "pid", "tid", "name_id")
        row = Lookup(tracks.number("id")).rows(found.number("track_id"), found.known("track_id"))
        there = row >= 0
        numbers: dict[str, Array] = {}
        known: dict[str, Array] = {}
        self.maker.correlate(found, numbers, known)
        for column in ("start", "end"):
            numbers[column], known[column] = found.number("timestamp", 0), found.known("timestamp")
        thread, has = self.maker.part.thread(tracks)
        numbers["thread"] = at(thread, row, 0)
        known["thread"] = at(has, row, fill=False) & there
        ids, named = tracks.number("name_id"), tracks.known("name_id")
        name = self.maker.part.strings.column(at(ids, row, -1), at(named, row, fill=False))
        pid = np.where(
            at(tracks.known("pid"), row, fill=False), at(tracks.number("pid"), row, -1), -1
        )
        return self._called(found, numbers, known, name, pid)

    def _called(
        self,
        found: Columns,
        numbers: dict[str, Array],
        known: dict[str, Array],
        name: pa.DictionaryArray,
        pid: Array | None = None,
    ) -> Made:
        """Calls, markers by their messages, with what else is told of them."""
        event = self.maker.events.of(found)
        domain, domains = self.maker.events.category(event)
        data, texts = self.maker.events.extdata(event)
        self.maker.note_unreadable(texts, np.bincount(data[data >= 0], minlength=len(texts)))
        plain = [domain_of(text) for text in domains]
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
        made = self.maker.made(tables.CALLS, found, numbers, known, columns, raw)
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
        return arguments(self.maker.part)
