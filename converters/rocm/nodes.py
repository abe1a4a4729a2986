"""Nodes of recordings by ROCm's profilers: the kind, lane and times of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.rocm import row_checks, tables
from chopper_interop.converters.rocm.agents import UNKNOWN
from chopper_interop.converters.rocm.lanes import LaneAdder, LaneKeys, lanes_of_kind
from chopper_interop.converters.rocm.node_arguments import encode_arguments
from chopper_interop.converters.rocm.rows import TableRows, first_match
from chopper_interop.edges.communication import communicates
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import HOST_CALLS, EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.build import TraceBuilder

NO_TIME = Fault.loss_of_events("event-without-time", "Rows without a start were left out.")
NEGATIVE = Fault.loss("duration-negative", "Ends before their starts were taken as the starts.")
NO_END = Fault.loss(
    "event-without-end", "Rows without an end: their duration is unknown, and taken as 0."
)
NO_NAME = Fault.loss("name-unknown", "Rows without a name.")
OTHER_DOMAIN = Fault.info(
    "domain-unknown", "Calls of an unknown domain became nodes of the kind `api`."
)
OTHER_RECORD = Fault.info(
    "record-unknown", "Records of an unknown kind became nodes of the kind `other`."
)

_GRAPH = "graph launch"
_MATCHED = ("correlation", "dispatch", "start")
"""Columns of numbers by which calls and counters are matched with GPU work, besides its name."""


@dataclass(frozen=True)
class AddedNodes:
    """Rows that became nodes.

    Parameters
    ----------
    rows
        The rows, of which only the columns are kept by which calls and counters are matched.
    node, process, kind
        Node, process and kind of each.
    """

    rows: TableRows
    node: Array
    process: Array
    kind: Array


@dataclass
class NodeAdder:
    """Adds the rows of tables to a trace.

    Parameters
    ----------
    builder
        Builder of the trace.
    lanes
        Adds its lanes.
    rank
        Rank of each process.
    issues
        Log of what is lost.
    """

    builder: TraceBuilder
    lanes: LaneAdder
    rank: Array
    issues: IssueLog
    added: list[AddedNodes] = field(default_factory=list)

    def add(self, rows: TableRows, process: Array, device: Array) -> AddedNodes:
        """Add the rows of a table.

        Parameters
        ----------
        rows
            The table.
        process, device
            Number of each row's process, and its device (-1 on the host).
        """
        timed = np.flatnonzero(self._timed(rows))
        rows, process, device = rows.take(timed), process[timed], device[timed]
        rank = self.rank[process].astype(np.int64)
        kind, lane_keys = self._kind_and_lane(rows, rank, device)
        start, dur = self._start_and_duration(rows)
        row_checks.check_times(rows, self.issues)
        if rows.form in (tables.KERNELS, tables.COUNTERS):
            row_checks.check_launch_shapes(rows, self.issues)
        text, at, length = encode_arguments(rows, self.issues)
        first = self.builder.nodes(
            kind=kind,
            name=self._names(rows),
            rank=rank,
            lane=self.lanes.rows(lane_keys),
            ts=start,
            dur=dur,
            correlation=_correlation(rows, kind),
            args=(self.builder.text(text) + at, length),
            **_byte_column(rows),
        )
        added = AddedNodes(
            rows.only(_MATCHED, ("name",)), np.arange(first, first + rows.count), process, kind
        )
        self.added.append(added)
        return added

    def _names(self, rows: TableRows) -> pa.Array | str:
        if "name" not in rows.texts:
            return _GRAPH
        nameless = rows.per_text("name", lambda name: not name, absent=True)
        self.issues.add(NO_NAME, np.count_nonzero(nameless), rows.where)
        return rows.texts["name"]

    def _timed(self, rows: TableRows) -> Array:
        """Mark the rows that have a time, and count the others."""
        timed = has_time(rows)
        lost = np.flatnonzero(~timed)
        self.issues.add(NO_TIME, lost.size, f"{rows.where}, row {lost[0] + 1}" if lost.size else "")
        return timed

    def _start_and_duration(self, rows: TableRows) -> tuple[Array, Array]:
        start = rows.number("start")
        dur = np.maximum(rows.number("end", 0), 0) - start
        endless = ~rows.is_known("end")
        if "end" in rows.numbers:
            self.issues.add(NO_END, np.count_nonzero(endless), rows.where)
        dur[endless] = 0
        wrong = np.flatnonzero(dur < 0)
        where = f"{rows.where}, start {start[wrong[0]]}" if wrong.size else ""
        self.issues.add(NEGATIVE, wrong.size, where)
        return start, np.maximum(dur, 0)

    def _kind_and_lane(self, rows: TableRows, rank: Array, device: Array) -> tuple[Array, LaneKeys]:
        if rows.form in (tables.KERNELS, tables.COUNTERS):
            return _kernel_kinds(rows), self.lanes.of_kernels(rank, device, rows)
        if rows.form is tables.CALLS:
            host = np.full(rows.count, UNKNOWN, np.int64)
            threads = lanes_of_kind(rank, host, LaneKind.THREAD, rows.number("thread", 0))
            return self._call_kinds(rows), threads
        if rows.form is tables.COPIES:
            return _copy_kinds(rows), self.lanes.of_copies(rank, device, rows)
        if rows.form is tables.OTHERS:
            self.issues.add(OTHER_RECORD, rows.count, rows.where)
        kind, lane, number = _FIXED_KINDS[rows.form.name]
        return _same_kind(rows, kind), lanes_of_kind(rank, device, lane, rows.number(number, 0))

    def _call_kinds(self, rows: TableRows) -> Array:
        """Return kinds by domain; a marker that starts and ends at once is an instant."""
        unknown = rows.per_text("domain", lambda d: tables.kind_of_domain(d) is None, absent=True)
        domains = rows.codes("domain")[1]
        example = next((d for d in domains if tables.kind_of_domain(d) is None), "")
        self.issues.add(OTHER_DOMAIN, np.count_nonzero(unknown), example)
        kind = rows.per_text(
            "domain", lambda d: int(tables.kind_of_domain(d) or Kind.API), int(Kind.API)
        )
        at_once = rows.number("start") == rows.number("end")
        return np.where(at_once & (kind == Kind.ANNOTATION), int(Kind.INSTANT), kind)


_FIXED_KINDS = {
    tables.ALLOCATIONS.name: (Kind.ALLOCATION, LaneKind.MEMORY, ""),
    tables.SCRATCH.name: (Kind.ALLOCATION, LaneKind.MEMORY, ""),
    tables.EVENTS.name: (Kind.GPU_SYNC, LaneKind.GPU_SYNC, "queue"),
    tables.GRAPHS.name: (Kind.GPU_ANNOTATION, LaneKind.GPU_ANNOTATION, "queue"),
    tables.OTHERS.name: (Kind.OTHER, LaneKind.PROFILER, ""),
}
"""Table → kind of its nodes, kind of their lanes, and the column with the lanes' numbers."""


def has_time(rows: TableRows) -> Array:
    """Mark rows with a start; where the tool measured none, it writes 0 for start and end."""
    start = rows.number("start", 0)
    unmeasured = (start == 0) & (rows.number("end", 0) == 0)
    return rows.is_known("start") & (start >= 0) & ~unmeasured


def link_launches(nodes: NodeAdder) -> None:
    """Add an edge from each call to all GPU work with its correlation id."""
    calls = [a for a in nodes.added if a.rows.form is tables.CALLS]
    work_forms = (tables.KERNELS, tables.COUNTERS, tables.COPIES)
    work = [a for a in nodes.added if a.rows.form in work_forms]
    if not calls or not work:
        return
    # where several calls share an id, the first of these kinds launched the work
    preference = {int(kind): position for position, kind in enumerate(HOST_CALLS)}
    of_kind = np.array([preference.get(k, len(preference)) for k in range(int(max(Kind)) + 1)])
    call_preference = of_kind[np.concatenate([c.kind for c in calls])]
    call = _CorrelatedNodes.concatenated(calls).ordered(call_preference, len(preference))
    launched = _CorrelatedNodes.concatenated(work)
    # of several calls with one id the first is matched: the calls are in order of preference
    match = first_match([call.process, call.correlation], [launched.process, launched.correlation])
    launch = np.append(call.node, -1)[match]
    linked = (launch >= 0) & (launched.correlation > 0)
    nodes.builder.edges(launch[linked], launched.node[linked], int(EdgeKind.LAUNCH))


@dataclass(frozen=True)
class _CorrelatedNodes:
    process: Array
    correlation: Array
    node: Array

    @classmethod
    def concatenated(cls, added: list[AddedNodes]) -> _CorrelatedNodes:
        return cls(
            np.concatenate([a.process for a in added]),
            np.concatenate([a.rows.number("correlation", 0) for a in added]),
            np.concatenate([a.node for a in added]),
        )

    def ordered(self, preference: Array, limit: int) -> _CorrelatedNodes:
        """Return the nodes whose preference is below the limit, in order of preference."""
        rows = np.flatnonzero(preference < limit)
        rows = rows[np.argsort(preference[rows], kind="stable")]
        return _CorrelatedNodes(self.process[rows], self.correlation[rows], self.node[rows])


def _same_kind(rows: TableRows, kind: Kind) -> Array:
    return np.full(rows.count, int(kind), np.int64)


def _copy_kinds(rows: TableRows) -> Array:
    is_fill = rows.per_text(
        "name", lambda name: "fill" in name.lower() or "memset" in name.lower(), absent=False
    )
    return np.where(is_fill, int(Kind.MEMSET), int(Kind.MEMCPY))


def _kernel_kinds(rows: TableRows) -> Array:
    is_comm = rows.per_text("name", communicates, absent=False)
    return np.where(is_comm, int(Kind.COMM), int(Kind.KERNEL))


def _correlation(rows: TableRows, kind: Array) -> Array:
    """Return correlation ids, -1 for none (0) and for markers, whose ids relate to no work."""
    value = rows.number("correlation", 0)
    is_marker = is_any(kind, (Kind.ANNOTATION, Kind.INSTANT))
    return np.where((value > 0) & ~is_marker, value, -1)


def _byte_column(rows: TableRows) -> dict[str, pa.Array]:
    """Return the bytes that are copied or allocated; the table says 0 for a release."""
    if "size" not in rows.numbers:
        return {}
    size = rows.number("size", 0)
    return {"bytes": arrow.array(size, mask=(size <= 0) | ~rows.is_known("size"))}
