"""All edges that no source recorded, inferred in one stage.

They join the members of a collective, GPU work across streams, GPU work and the host calls that
waited for it, and host threads. What orders GPU work shows in runtime calls, in waits that some
profilers record, and in times. A module for each kind finds them; here they are put together, and
edges that contradict the times are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, spill
from chopper_interop.arrays.gather import is_any, unique
from chopper_interop.edges.collectives import add_collective_edges
from chopper_interop.edges.communication import polled_kernels
from chopper_interop.edges.event import event_edges
from chopper_interop.edges.handover import handover_edges
from chopper_interop.edges.ordering_calls import (
    NO_HANDLE,
    launch_handles,
    node_roles,
    read_ordering_calls,
)
from chopper_interop.edges.polls import poll_edges
from chopper_interop.edges.queues import MAX_AHEAD_NS, build_queues, full_queue_edges
from chopper_interop.edges.sync import outlasting_copies, read_recorded_waits, sync_edges
from chopper_interop.graph import endpoints
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import COMPUTED, ORDER
from chopper_interop.schemas.names import ONLY_WAITS, Role
from chopper_interop.trace import Trace

if TYPE_CHECKING:
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
    for rows, part in rank_batches.batches(trace):
        incomplete = _ranks_without_dependencies(part)
        if incomplete.any():
            of_part = IssueLog(issues.source, rows.start)
            role = node_roles(part)
            role[~incomplete] = Role.NONE
            for kind, ends in _find_dependencies(part, incomplete, role, of_part).items():
                src, dst = _forward(part, *ends, kind, role, of_part)
                if src.size:
                    of_kind = pairs_of_kind.setdefault(kind, ([], []))
                    for side, ends_of_part in zip(of_kind, (src, dst), strict=True):
                        side.append(spill.kept((ends_of_part + rows.start).astype(np.int32)))
            log.extend(of_part)
    for kind in DEPENDENCY_KINDS:
        if kind in pairs_of_kind:
            trace = trace.with_edges(*pairs_of_kind[kind], kind)
    known = {(issue.code, issue.count, issue.example) for issue in issues}
    issues.extend(i for i in log if (i.code, i.count, i.example) not in known)
    return trace


def _ranks_without_dependencies(trace: Trace) -> Array:
    """Mark the nodes of ranks that have none of these edges yet."""
    rank = trace.array("rank")
    dst = trace.array("dst", "edges")
    present = is_any(trace.array("kind", "edges"), DEPENDENCY_KINDS) & (dst >= 0)
    return ~np.isin(rank, unique(rank[dst[present]]))


def _find_dependencies(
    trace: Trace, chosen: Array, role: Array, issues: IssueLog
) -> dict[EdgeKind, EdgeEnds]:
    """Edges of each kind among the chosen nodes, as rows of nodes; `role` is of these."""
    calls = read_ordering_calls(trace, role)
    waits = read_recorded_waits(trace, chosen)
    has_handles = bool((calls.stream != NO_HANDLE).any())
    queues = build_queues(trace, launch_handles(trace) if has_handles else None)
    edges = {EdgeKind.HANDOVER: handover_edges(trace, chosen, role, issues)}
    if len(queues.node):
        edges[EdgeKind.EVENT] = event_edges(trace, calls, queues, waits, issues)
        edges[EdgeKind.SYNC] = _joined(
            sync_edges(trace, calls, queues, waits, issues),
            full_queue_edges(trace, queues, issues),
        )
        polls = [outlasting_copies(trace, calls, queues)]
        polled = polled_kernels(trace, chosen)
        if polled.size:
            polls.append(poll_edges(trace, polled, issues))
        edges[EdgeKind.POLL] = _joined(*polls)
    # work is looked for on the queues of all ranks
    return {kind: (src[chosen[dst]], dst[chosen[dst]]) for kind, (src, dst) in edges.items()}


def _joined(*edges: EdgeEnds) -> EdgeEnds:
    """Edges of several sources as one."""
    src, dst = (np.concatenate(side) for side in zip(*edges, strict=True))
    return src, dst


def _forward(  # columns
    trace: Trace, src: Array, dst: Array, kind: EdgeKind, role: Array, issues: IssueLog
) -> EdgeEnds:
    """New edges that point forward in time, but for clocks of GPUs that are ahead; the others are counted as issues."""
    forward = endpoints.forward(trace, src, dst, kind)
    if kind == EdgeKind.SYNC:
        ts, dur = trace.array("ts"), trace.array("dur")
        waits = is_any(role[dst], (*ONLY_WAITS, Role.NONE)) | (trace.launch[src] == dst)
        forward |= waits & (ts[src] + dur[src] <= ts[dst] + dur[dst] + MAX_AHEAD_NS)
    backward = np.flatnonzero(~forward)
    example = _example(trace, src[backward], dst[backward], kind, issues)
    issues.add(BACKWARD_IN_TIME, backward.size, example)
    return src[forward], dst[forward]


def _example(trace: Trace, src: Array, dst: Array, kind: EdgeKind, issues: IssueLog) -> str:
    if not src.size:
        return ""
    names, name = trace.names(), trace.array("name")
    ends = (f"{names[name[row]][:40]} ({issues.node(row)})" for row in (src[0], dst[0]))
    return f"{kind.name.lower()}: {' → '.join(ends)}"
