"""Tables of a rocpd database that describe rows of others: events, messages and arguments.

``stack_id`` of an event is the correlation id that calls and GPU work share; its
``correlation_id`` is the external one, which the tool leaves 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.rocm import json_texts
from chopper_interop.converters.rocm.database_parts import Columns, DatabasePart, Lookup
from chopper_interop.converters.rocpd.columns import READ
from chopper_interop.io.sqlite import INTEGER, TEXT
from chopper_interop.issues import Fault

NO_EVENT = Fault.loss(
    "event-record-missing",
    "Rows whose record in the table of events is not in the database, or "
    "does not tell its stack: which calls launched what is unknown for them, and so are domains "
    "and messages of calls.",
)
BAD_EXTDATA = Fault.loss(
    "extdata-unreadable",
    "Further data (`extdata`, `environment`) that are no JSON object were left "
    "out: messages of markers, arguments, ranks or facts of processors may have been in there.",
)

_LARGE = pa.large_string()


class PartEvents:
    """Events of a part, by their ids.

    Parameters
    ----------
    part
        The part.
    """

    def __init__(self, part: DatabasePart) -> None:
        self.part = part
        self._columns = part.read("event", READ["event"])
        self._lookup = Lookup(self._columns.number("id"))

    def event_rows(self, rows: Columns) -> Array:
        """The event of each row; -1 where it has none."""
        return self._lookup.rows(rows.number("event_id"), rows.known("event_id"))

    def missing(self, rows: Columns, event: Array) -> int:
        """Number of rows that name an event of which nothing is recorded."""
        lost = rows.known("event_id") & (rows.number("event_id") > 0)
        if self.part.has("event", "stack_id"):
            lost &= event < 0
        return int(np.count_nonzero(lost))

    def correlation(self, event: Array) -> tuple[Array, Array]:
        """Correlation id of each event, and where it is known."""
        if not self._columns.count:
            return np.zeros(len(event), np.int64), np.zeros(len(event), bool)
        known = (event >= 0) & self._columns.known("stack_id")[event]
        return np.where(known, self._columns.number("stack_id", 0)[event], 0), known

    def category(self, event: Array) -> tuple[Array, list[str]]:
        """Category of each event as codes (-1 if unknown) and the texts that they stand for."""
        if not self._columns.count:
            return np.full(len(event), -1, np.int64), []
        ids = self._columns.number("category_id")[event]
        known = (event >= 0) & self._columns.known("category_id")[event]
        column = self.part.strings.column(ids, known)
        return arrow.to_numpy(column, -1).astype(np.int64), column.dictionary.to_pylist()

    def extdata(self, event: Array) -> tuple[Array, FurtherData]:
        """Further data of each event: codes (-1 if there is none), and what they stand for."""
        lookup, codes, data = self._extdata
        if not len(codes):
            return np.full(len(event), -1, np.int64), data
        ids = self._columns.number("id")[event]
        row = lookup.rows(ids, event >= 0)
        return np.where(row >= 0, codes[row], -1), data

    @cached_property
    def _extdata(self) -> tuple[Lookup, Array, FurtherData]:
        """Additional data of events, where there are any: most have ``{}``."""
        has = self.part.has("event", "extdata")
        columns = {"id": INTEGER, "extdata": TEXT}
        table = self.part.read(
            "event", columns, "extdata NOT IN ('{}', '', 'null')" if has else "0"
        )
        column = table.encoded("extdata")
        codes = arrow.to_numpy(column, -1).astype(np.int64)
        return Lookup(table.number("id")), codes, FurtherData.of(column.dictionary.to_pylist())


@dataclass(frozen=True)
class FurtherData:
    """Members of further data of events, each of them decoded once.

    Parameters
    ----------
    messages
        The message of a marker; empty if there is none.
    rest
        The text, where it has more than a message; else empty.
    is_bad
        Mask of those that are no JSON object.
    """

    messages: list[str]
    rest: list[bytes]
    is_bad: Array

    @classmethod
    def of(cls, texts: list[str]) -> FurtherData:
        """Decode texts."""
        messages, rest, is_bad = [], [], np.zeros(len(texts), bool)
        for k, text in enumerate(texts):
            decoded = _decoded(text)
            members = decoded if isinstance(decoded, dict) else {}
            message = members.get("message")
            messages.append(message if isinstance(message, str) else "")
            rest.append(b"" if members.keys() <= {"message"} else text.encode())
            is_bad[k] = bool(text.strip()) and not isinstance(decoded, dict | None)
        return cls(messages, rest, is_bad)


def document(text: str) -> dict[str, Any]:
    """A JSON object; empty if the text is none."""
    decoded = _decoded(text)
    return decoded if isinstance(decoded, dict) else {}


def is_unreadable(text: str) -> bool:
    """True if a text is no JSON object, though it should be; empty and null are allowed."""
    return bool(text.strip()) and not isinstance(_decoded(text), dict | None)


def _decoded(text: str) -> Any:
    """Decode a text as JSON; False if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def arguments(part: DatabasePart) -> tuple[Lookup, pa.Array]:
    """Arguments of calls: rows by event id, and for each a JSON object of names and values."""
    rows = part.read("arg", {"event_id": INTEGER, "position": INTEGER, "name": TEXT, "value": TEXT})
    table = _of_events_in_order(rows)
    if not table.num_rows:
        return Lookup(np.empty(0, np.int64)), pa.nulls(0, pa.large_binary())
    event = arrow.to_numpy(table["event_id"])
    first = np.flatnonzero(np.append(True, event[1:] != event[:-1]))
    name, value = (_quoted(table[column]) for column in ("name", "value"))
    made = json_texts.objects(name, value, np.append(first, len(event)))
    return Lookup(event[first]), made.column()


def _of_events_in_order(rows: Columns) -> pa.Table:
    """Arguments that name an event, in order of event and position, as tools write them."""
    event, position = rows.number("event_id"), rows.number("position")
    step = np.diff(event)
    in_order = not np.any((step < 0) | ((step == 0) & (np.diff(position) < 0)))
    known = rows.known("event_id")
    if in_order and known.all():
        return rows.table
    order = np.lexsort((position, event))
    return arrow.take(_with_large_texts(rows.table), order[known[order]])


def _with_large_texts(rows: pa.Table) -> pa.Table:
    """The table with texts of any total length: offsets of int32 reach no more than 2 GB of a column."""
    kinds = [_LARGE if kind == pa.string() else kind for kind in rows.schema.types]
    return rows.cast(pa.schema(list(zip(rows.schema.names, kinds, strict=True))))


def _quoted(column: pa.ChunkedArray) -> json_texts.TextBytes:
    """Texts as JSON; unknown ones as null."""
    texts = arrow.single_chunk(column)
    return json_texts.quoted(json_texts.TextBytes.of_column(texts), arrow.is_valid(texts))
