"""Tables of events of a rocpd database, joined: what all of them have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm import tables
from chopper_interop.converters.rocm.database_parts import Columns, DatabasePart, Lookup, named
from chopper_interop.converters.rocm.rows import TableRows
from chopper_interop.converters.rocpd.columns import GRAPH, READ, TAKEN
from chopper_interop.converters.rocpd.events import BAD_EXTDATA, NO_EVENT, PartEvents, is_unreadable
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    import pyarrow as pa


NO_AGENT = Fault.loss(
    "agent-unknown",
    "Rows of an agent that the database does not describe: its id is taken as its "
    "number, and which GPU it is cannot be determined.",
)

_NAMES = {"source_queue_id": "source_queue"}
"""Columns that are called otherwise here."""


@dataclass(frozen=True)
class EventTable:
    """A table of events.

    Parameters
    ----------
    rows
        The table.
    pid
        Process id of each row; -1 where unknown.
    ids, events
        Id of each row in the database, and id of its event; -1 if none.
    """

    rows: TableRows
    pid: Array
    ids: Array
    events: Array


class EventTableBuilder:
    """Makes tables of the rows of one part.

    Parameters
    ----------
    part
        The part.
    issues
        Log in which missing rows are counted.
    """

    def __init__(self, part: DatabasePart, issues: IssueLog) -> None:
        self.part = part
        self.issues = issues
        self.events = PartEvents(part)
        agents = part.numbers("info_agent", "id", "absolute_index")
        number = np.where(
            agents.known("absolute_index"), agents.number("absolute_index"), agents.number("id")
        )
        self._agent = Lookup(agents.number("id")), number

    def read(self, table: str) -> tuple[Columns, dict[str, Array], dict[str, Array]]:
        """A table, what is taken over of it as it is, and where that is known."""
        rows = self.part.read(table, READ[table])
        numbers, known = self.common(rows)
        for column in TAKEN.get(table, ()):
            self.take(rows, column, numbers, known)
        return rows, numbers, known

    def common(self, columns: Columns) -> tuple[dict[str, Array], dict[str, Array]]:
        """Columns that all tables have: times, threads, correlation."""
        numbers: dict[str, Array] = {}
        known: dict[str, Array] = {}
        for column in ("start", "end"):
            self.take(columns, column, numbers, known)
        numbers["thread"], known["thread"] = self.part.thread(columns)
        self.correlate(columns, numbers, known)
        return numbers, known

    def correlate(
        self, columns: Columns, numbers: dict[str, Array], known: dict[str, Array]
    ) -> None:
        """Take over the correlation ids of the rows' events."""
        event = self.events.event_rows(columns)
        self.issues.add(NO_EVENT, self.events.missing(columns, event), self.part.where)
        numbers["correlation"], known["correlation"] = self.events.correlation(event)

    def note_unreadable(self, texts: list[str], count: Array | None = None) -> None:
        """Count further data that are no JSON object, of each as often as it is there."""
        bad = np.array([is_unreadable(text) for text in texts], bool)
        self.note_bad(int(np.sum(bad if count is None else count[bad])))

    def note_bad(self, count: int) -> None:
        """Count further data that are no JSON object."""
        self.issues.add(BAD_EXTDATA, count, self.part.where)

    def take(
        self, columns: Columns, column: str, numbers: dict[str, Array], known: dict[str, Array]
    ) -> None:
        """Take a column over, under the name that it has here; not at all if it is empty."""
        there = columns.known(column)
        if column in GRAPH:
            there = there & (columns.number(column, 0) != 0)
        if not there.any() and column not in ("start", "end"):
            return
        name = tables.COLUMNS.get(column) or _NAMES.get(column, column)
        numbers[name], known[name] = columns.number(column, 0), there

    def agents(self, ids: Array, known: Array) -> Array:
        """Number of the agent of each row; -1 where there is none."""
        lookup, number = self._agent
        row = lookup.rows(ids, known)
        lost = np.flatnonzero(known & (row < 0) & (ids >= 0))
        example = f"{self.part.where}: agent {ids[lost[0]]}" if lost.size else ""
        self.issues.add(NO_AGENT, lost.size, example)
        return np.where(row >= 0, values_at(number, row, -1), np.where(known, ids, -1))

    def agents_of(self, columns: Columns, column: str) -> pa.DictionaryArray:
        """The agent of each row as rocprofv3's other files write it."""
        number = self.agents(columns.number(column), columns.known(column))
        first, code = gather.distinct(number)
        texts = [f"Agent {n}" if n >= 0 else "" for n in number[first].tolist()]
        return dictionary(np.where(number >= 0, code, -1), texts)

    def table(
        self,
        form: tables.TableFormat,
        columns: Columns,
        numbers: dict[str, Array],
        known: dict[str, Array],
        texts: dict[str, pa.DictionaryArray],
        raw: dict[str, pa.Array] | None = None,
    ) -> EventTable:
        """A table of what was taken over; rows without a name are called as it, and counted."""
        if "name" in texts:
            texts["name"] = named(texts["name"], form.name, self.issues, self.part.where)
        known = {name: mask for name, mask in known.items() if not mask.all()}
        rows = TableRows(
            form, columns.count, numbers, known, texts, raw=raw or {}, where=self.part.where
        )
        names = columns.table.column_names
        pid = columns.number("pid") if "pid" in names else np.full(columns.count, -1, np.int64)
        return EventTable(rows, pid, columns.number("id"), columns.number("event_id"))


def values_at(values: Array, rows: Array, fill: Any) -> Array:
    """Values of rows, `fill` where a row is -1."""
    if not len(values):
        return np.full(len(rows), fill, values.dtype)
    return np.where(rows >= 0, values[rows], fill)
