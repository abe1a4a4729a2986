"""All edges that no source recorded, inferred in one stage.

They join the members of a collective, GPU work across streams, GPU work and the host calls that
waited for it, and host threads. What orders GPU work shows in runtime calls, in waits that some
profilers record, and in times. A module for each kind finds them; here they are put together, and
edges that contradict the times are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, spill
from chopper_interop.arrays.gather import is_any, unique
from chopper_interop.edges.collectives import add_collective_edges
from chopper_interop.edges.communication import polled_kernels
from chopper_interop.edges.event import event_edges, waits_by_order
from chopper_interop.edges.handover import handover_edges
from chopper_interop.edges.ordering_calls import (
    NO_HANDLE,
    OrderingCalls,
    launch_handles,
    makes_calls,
    node_roles,
    read_ordering_calls,
)
from chopper_interop.edges.polls import poll_edges
from chopper_interop.edges.queues import MAX_AHEAD_NS, Queues, build_queues, full_queue_edges
from chopper_interop.edges.sync import (
    RecordedWaits,
    outlasting_copies,
    read_recorded_waits,
    sync_edges,
)
from chopper_interop.graph import endpoints
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import COMPUTED, ORDER
from chopper_interop.schemas.names import ONLY_WAITS, Role
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.edges import wait_order

    EdgeEnds = tuple[Array, Array]

BACKWARD_IN_TIME = Fault.info(
    "dependency-backward-in-time",
    "Dependencies implied by calls and waits were left out because the dependent work comes before "
    "the work that it depends on: the clocks of host and GPU differ, or the wrong stream was found.",
)


DEPENDENCY_KINDS = (EdgeKind.HANDOVER, EdgeKind.EVENT, EdgeKind.SYNC, EdgeKind.POLL)
"""Kinds of edges that `infer_dependencies` adds, in the order of the table."""


def infer_edges(trace: Trace, issues: IssueLog) -> Trace:
    """Return the trace with all edges that follow from its nodes: COMM, then dependencies.

    Edges that are in the trace already are kept and not made again: COMM edges of the whole trace
    (see `collectives.add_collective_edges`), dependencies of single ranks (see
    `infer_dependencies`). So a second call changes nothing.

    Parameters
    ----------
    trace
        A job, on one clock, with the column `instance` where collectives were matched.
    issues
        Log for the assumptions that were made, and for edges that were left out.
    """
    return infer_dependencies(add_collective_edges(trace, issues), issues)


def infer_dependencies(trace: Trace, issues: IssueLog) -> Trace:
    """Return the trace with EVENT, SYNC, POLL and HANDOVER edges that follow from calls and times.

    Parameters
    ----------
    trace
        A job. A rank that has edges of these kinds already is left as it is: its source has them.
        A trace without measured times is returned unchanged.
    issues
        Log for the assumptions that were made, and for edges that were left out.
    """
    if trace.meta.clock in (ORDER, COMPUTED):
        return trace
    log = IssueLog(issues.source)
    pairs_of_kind: dict[EdgeKind, tuple[list[Array], list[Array]]] = {}
    evidence = _evidence_of_waits(trace)
    for (rows, part), of_waits in zip(rank_batches.batches(trace), evidence, strict=True):
        of_part = IssueLog(issues.source, rows.start)
        for kind, (src, dst) in _dependencies(part, of_waits, of_part).items():
            if src.size:
                of_kind = pairs_of_kind.setdefault(kind, ([], []))
                for side, ends_of_part in zip(of_kind, (src, dst), strict=True):
                    side.append(spill.kept((ends_of_part + rows.start).astype(np.int32)))
        log.extend(of_part)
    for kind in DEPENDENCY_KINDS:
        if kind in pairs_of_kind:
            trace = trace.with_edges(*pairs_of_kind[kind], kind)
    known = {(issue.code, issue.count, issue.example) for issue in issues}
    new = (i for i in log if (i.code, i.count, i.example) not in known)
    issues.extend(sorted(new, key=attrgetter("code")))  # whichever batch has them first
    return trace


def _ranks_without_dependencies(trace: Trace) -> Array:
    """Mark the nodes of ranks that have none of these edges yet."""
    rank = trace.array("rank")
    dst = trace.array("dst", "edges")
    present = is_any(trace.array("kind", "edges"), DEPENDENCY_KINDS) & (dst >= 0)
    return ~np.isin(rank, unique(rank[dst[present]]))


@dataclass(frozen=True)
class _Batch:
    """Some ranks, with what their dependencies are inferred from."""

    trace: Trace

    @cached_property
    def chosen(self) -> Array:
        """Mask of the nodes of ranks that have no dependencies yet."""
        return _ranks_without_dependencies(self.trace)

    @cached_property
    def role(self) -> Array:
        """Role of each of those."""
        return np.where(self.chosen, node_roles(self.trace), np.int8(Role.NONE))

    @cached_property
    def calls(self) -> OrderingCalls:
        """Calls of those that order GPU work."""
        return read_ordering_calls(self.trace, self.role)

    @cached_property
    def recorded(self) -> RecordedWaits:
        """Waits of those that the profiler recorded."""
        return read_recorded_waits(self.trace, self.chosen)

    @cached_property
    def queues(self) -> Queues:
        """GPU work of all ranks, by handles of streams on ranks of which calls name any."""
        rank = self.trace.array("rank")
        ranks = unique(rank[self.calls.node[self.calls.stream != NO_HANDLE]])
        if not ranks.size:
            return build_queues(self.trace)
        handle = launch_handles(self.trace)
        if ranks.size < len(self.trace.ranks):
            handle[~np.isin(rank, ranks)] = NO_HANDLE
        return build_queues(self.trace, handle)


def _evidence_of_waits(trace: Trace) -> list[wait_order.Evidence | None]:
    """Return what repetitions in all batches of ranks say of the waits of each; None for a batch that is alone."""
    spans = rank_batches.spans(trace)
    if len(spans) < 2 or not makes_calls(trace, Role.STREAM_WAIT):  # noqa: PLR2004
        return [None] * max(len(spans), 1)
    from chopper_interop.edges import wait_evidence

    return wait_evidence.of_job([partial(_waits_by_order, trace, rows) for rows in spans])


def _waits_by_order(trace: Trace, rows: slice) -> wait_order.Waits | None:
    """Waits of some ranks of which only the order of calls is known; None if there are none."""
    batch = _Batch(trace.of_rows(rows))
    if not batch.calls.has_role(Role.STREAM_WAIT).any() or not len(batch.queues.node):
        return None
    waits = waits_by_order(batch.trace, batch.calls, batch.queues, batch.recorded)
    return waits if waits.rows.size else None


def _dependencies(
    trace: Trace, evidence: wait_order.Evidence | None, issues: IssueLog
) -> dict[EdgeKind, EdgeEnds]:
    """New edges of each kind among some ranks, as rows of nodes, that point forward in time."""
    batch = _Batch(trace)
    if not batch.chosen.any():
        return {}
    found = _find_dependencies(batch, evidence, issues)
    forward = {kind: _is_forward(batch, *ends, kind) for kind, ends in found.items()}
    _note_backward(trace, found, forward, issues)
    return {kind: (src[forward[kind]], dst[forward[kind]]) for kind, (src, dst) in found.items()}


def _find_dependencies(
    batch: _Batch, evidence: wait_order.Evidence | None, issues: IssueLog
) -> dict[EdgeKind, EdgeEnds]:
    """Edges of each kind among the chosen nodes, as rows of nodes."""
    trace, chosen, calls, queues = batch.trace, batch.chosen, batch.calls, batch.queues
    waits = batch.recorded
    edges = {EdgeKind.HANDOVER: handover_edges(trace, chosen, batch.role, issues)}
    if len(queues.node):
        edges[EdgeKind.EVENT] = event_edges(trace, calls, queues, waits, issues, evidence)
        edges[EdgeKind.SYNC] = _joined(
            trace,
            sync_edges(trace, calls, queues, waits, issues),
            full_queue_edges(trace, queues, issues),
        )
        polls = [outlasting_copies(trace, calls, queues)]
        polled = polled_kernels(trace, chosen)
        if polled.size:
            polls.append(poll_edges(trace, polled, issues))
        edges[EdgeKind.POLL] = _joined(trace, *polls)
    # work is looked for on the queues of all ranks
    return {kind: (src[chosen[dst]], dst[chosen[dst]]) for kind, (src, dst) in edges.items()}


def _joined(trace: Trace, *edges: EdgeEnds) -> EdgeEnds:
    """Edges of several sources as one, rank by rank."""
    src, dst = (np.concatenate(side) for side in zip(*edges, strict=True))
    by_rank = np.argsort(trace.array("rank")[dst], kind="stable")
    return src[by_rank], dst[by_rank]


def _is_forward(batch: _Batch, src: Array, dst: Array, kind: EdgeKind) -> Array:
    """Mask of edges that point forward in time, but for clocks of GPUs that are ahead."""
    trace = batch.trace
    forward = endpoints.forward(trace, src, dst, kind)
    if kind == EdgeKind.SYNC:
        ts, dur = trace.array("ts"), trace.array("dur")
        waits = is_any(batch.role[dst], (*ONLY_WAITS, Role.NONE)) | (trace.launch[src] == dst)
        forward |= waits & (ts[src] + dur[src] <= ts[dst] + dur[dst] + MAX_AHEAD_NS)
    return forward


def _note_backward(
    trace: Trace,
    edges: dict[EdgeKind, EdgeEnds],
    forward: dict[EdgeKind, Array],
    issues: IssueLog,
) -> None:
    """Count edges that point backward, with one of the first rank that has any as the example."""
    rank, names, name = trace.array("rank"), trace.names(), trace.array("name")
    examples, count = [], 0
    for kind, (src, dst) in edges.items():
        backward = np.flatnonzero(~forward[kind])
        count += backward.size
        if backward.size:
            first = backward[rank[dst[backward]].argmin()]
            examples.append((int(rank[dst[first]]), kind, src[first], dst[first]))
    if examples:
        _, kind, *nodes = min(examples, key=itemgetter(0))
        ends = (f"{names[name[row]][:40]} ({issues.node(row)})" for row in nodes)
        issues.add(BACKWARD_IN_TIME, count, f"{kind.name.lower()}: {' → '.join(ends)}")
