"""Nodes of rocprofv3's recordings: every row of every table in its kind, place and time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.converters import rocprof_args as arguments
from chopper_interop.converters import rocprof_checks
from chopper_interop.converters import rocprof_tables as tables
from chopper_interop.converters.rocprof_agents import UNKNOWN
from chopper_interop.converters.rocprof_lanes import Lanes, Place, constant
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.names import COMM_KERNEL

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows

NO_TIME = Fault(
    "event-without-time", Severity.LOSS, "Rows without a start were left out.", events=True
)
NEGATIVE = Fault(
    "duration-negative", Severity.LOSS, "Ends before their starts were taken as the starts."
)
NO_END = Fault(
    "event-without-end",
    Severity.LOSS,
    "Rows without an end: how long they last is not known, and taken as nothing.",
)
NO_NAME = Fault("name-unknown", Severity.LOSS, "Rows without a name.")
OTHER_DOMAIN = Fault(
    "domain-unknown", Severity.INFO, "Calls of a domain not known here are kept as `api`."
)
OTHER_RECORD = Fault(
    "record-unknown", Severity.INFO, "Records of a kind not known here are kept as `other`."
)

_GRAPH = "graph launch"
_HOST_CALLS = (Kind.RUNTIME, Kind.DRIVER, Kind.API)
"""Kinds that launch GPU work, those that are likelier to have done so first."""


@dataclass(frozen=True)
class Added:
    """What became of rows: their nodes, and what ties them to others.

    Parameters
    ----------
    rows
        Those that became nodes.
    node
        Their nodes.
    process
        Their processes.
    kind
        Their kinds.
    """

    rows: Rows
    node: Array
    process: Array
    kind: Array


@dataclass
class Nodes:
    """Adds the rows of tables to a trace.

    Parameters
    ----------
    builder
        The trace in the making.
    lanes
        Its lanes.
    rank
        Rank of each process.
    issues
        Where what is lost is counted.
    """

    builder: TraceBuilder
    lanes: Lanes
    rank: Array
    issues: IssueLog
    added: list[Added] = field(default_factory=list)

    def add(self, rows: Rows, process: Array, device: Array) -> Added:
        """Add the rows of a table.

        Parameters
        ----------
        rows
            The table.
        process, device
            Of each row: number of its process, and its device (-1 on the host).
        """
        timed = np.flatnonzero(self._timed(rows))
        rows, process, device = rows.take(timed), process[timed], device[timed]
        rank = self.rank[process].astype(np.int64)
        kind, place = self._kind_and_place(rows, rank, device)
        start, dur = self._times(rows)
        rocprof_checks.times(rows, self.issues)
        if rows.form in (tables.KERNELS, tables.COUNTERS):
            rocprof_checks.shapes(rows, self.issues)
        text, at, length = arguments.objects(rows)
        first = self.builder.nodes(
            kind=kind,
            name=self._names(rows),
            rank=rank,
            lane=self.lanes.rows(place),
            ts=start,
            dur=dur,
            correlation=_correlation(rows, kind),
            args=(self.builder.text(text) + at, length),
            **_bytes(rows),
        )
        added = Added(rows, np.arange(first, first + rows.count), process, kind)
        self.added.append(added)
        return added

    def _names(self, rows: Rows) -> pa.Array | str:
        if "name" not in rows.texts:
            return _GRAPH
        codes, names = rows.codes("name")
        nameless = np.array([*(not name for name in names), True])[codes]
        self.issues.add(NO_NAME, np.count_nonzero(nameless), rows.where)
        return rows.texts["name"]

    def _timed(self, rows: Rows) -> Array:
        """Which rows have a time; the others are counted."""
        timed = has_time(rows)
        lost = np.flatnonzero(~timed)
        self.issues.add(NO_TIME, lost.size, f"{rows.where}, row {lost[0] + 1}" if lost.size else "")
        return timed

    def _times(self, rows: Rows) -> tuple[Array, Array]:
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

    def _kind_and_place(self, rows: Rows, rank: Array, device: Array) -> tuple[Array, Place]:
        if rows.form in (tables.KERNELS, tables.COUNTERS):
            return _kernel_kinds(rows), self.lanes.of_kernels(rank, device, rows)
        if rows.form is tables.CALLS:
            host = np.full(rows.count, UNKNOWN, np.int64)
            place = constant(rank, host, LaneKind.THREAD, rows.number("thread", 0))
            return self._call_kinds(rows), place
        if rows.form is tables.COPIES:
            return _copy_kinds(rows), self.lanes.of_copies(rank, device, rows)
        if rows.form is tables.OTHERS:
            self.issues.add(OTHER_RECORD, rows.count, rows.where)
        kind, lane, number = _FIXED[rows.form.name]
        return _all(rows, kind), constant(rank, device, lane, rows.number(number, 0))

    def _call_kinds(self, rows: Rows) -> Array:
        """Kinds by domain; a marker that starts and ends at once is a moment."""
        codes, domains = rows.codes("domain")
        found = [tables.kind_of_domain(domain) for domain in domains]
        other = np.array([*(kind is None for kind in found), True])[codes]
        example = next((d for d, k in zip(domains, found, strict=True) if k is None), "")
        self.issues.add(OTHER_DOMAIN, np.count_nonzero(other), example)
        kind = np.array([*(int(k or Kind.API) for k in found), int(Kind.API)])[codes]
        at_once = rows.number("start") == rows.number("end")
        return np.where(at_once & (kind == Kind.ANNOTATION), int(Kind.INSTANT), kind)


_FIXED = {
    tables.ALLOCATIONS.name: (Kind.ALLOCATION, LaneKind.MEMORY, ""),
    tables.SCRATCH.name: (Kind.ALLOCATION, LaneKind.MEMORY, ""),
    tables.EVENTS.name: (Kind.GPU_SYNC, LaneKind.GPU_SYNC, "queue"),
    tables.GRAPHS.name: (Kind.GPU_ANNOTATION, LaneKind.GPU_ANNOTATION, "queue"),
    tables.OTHERS.name: (Kind.OTHER, LaneKind.PROFILER, ""),
}
"""Table → kind of its nodes, kind of their lanes, and the column that numbers these."""


def has_time(rows: Rows) -> Array:
    """Which rows have a start; two zeros are what the tool writes where it measured none."""
    start = rows.number("start", 0)
    nothing = (start == 0) & (rows.number("end", 0) == 0)
    known: Array = rows.is_known("start") & (start >= 0) & ~nothing
    return known


def link(nodes: Nodes) -> None:
    """Draw an edge from each call to all GPU work that carries its correlation id."""
    calls: list[Added] = []
    work: list[Added] = []
    for added in nodes.added:
        group = calls if added.rows.form is tables.CALLS else work
        if added.rows.form in (tables.CALLS, tables.KERNELS, tables.COUNTERS, tables.COPIES):
            group.append(added)
    if not calls or not work:
        return
    order = {int(kind): place for place, kind in enumerate(_HOST_CALLS)}
    kind = np.concatenate([c.kind for c in calls])
    place = np.array([order.get(k, len(order)) for k in range(int(max(Kind)) + 1)])[kind]
    call = _Ties.of(calls).where(place < len(order), place)
    done = _Ties.of(work)
    first, code = gather.distinct(
        np.concatenate([call.process, done.process]),
        np.concatenate([call.correlation, done.correlation]),
    )
    source = np.concatenate([call.node, np.full(len(done.node), -1)])[first]
    launch = source[code[len(call.node) :]]
    drawn = (launch >= 0) & (done.correlation > 0)
    nodes.builder.edges(launch[drawn], done.node[drawn], int(EdgeKind.LAUNCH))


@dataclass(frozen=True)
class _Ties:
    process: Array
    correlation: Array
    node: Array

    @classmethod
    def of(cls, added: list[Added]) -> _Ties:
        return cls(
            np.concatenate([a.process for a in added]),
            np.concatenate([a.rows.number("correlation", 0) for a in added]),
            np.concatenate([a.node for a in added]),
        )

    def where(self, which: Array, place: Array) -> _Ties:
        """Some of the ties, in order of `place`."""
        rows = np.flatnonzero(which)
        rows = rows[np.argsort(place[rows], kind="stable")]
        return _Ties(self.process[rows], self.correlation[rows], self.node[rows])


def _all(rows: Rows, kind: Kind) -> Array:
    return np.full(rows.count, int(kind), np.int64)


def _copy_kinds(rows: Rows) -> Array:
    codes, names = rows.codes("name")
    fills = np.array([*("fill" in n.lower() or "memset" in n.lower() for n in names), False])
    return np.where(fills[codes], int(Kind.MEMSET), int(Kind.MEMCPY))


def _kernel_kinds(rows: Rows) -> Array:
    codes, names = rows.codes("name")
    communicates = np.array([*(COMM_KERNEL.match(n) is not None for n in names), False])
    return np.where(communicates[codes], int(Kind.COMM), int(Kind.KERNEL))


def _correlation(rows: Rows, kind: Array) -> Array:
    """Correlation ids; markers carry one that ties nothing to them, and 0 stands for none."""
    value = rows.number("correlation", 0)
    marks = np.isin(kind, [int(Kind.ANNOTATION), int(Kind.INSTANT)])
    return np.where((value > 0) & ~marks, value, -1)


def _bytes(rows: Rows) -> dict[str, pa.Array]:
    """Bytes that are copied or allocated; of a release the table says 0."""
    if "size" not in rows.numbers:
        return {}
    size = rows.number("size", 0)
    return {"bytes": arrow.array(size, mask=(size <= 0) | ~rows.is_known("size"))}
