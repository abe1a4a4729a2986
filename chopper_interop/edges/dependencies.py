"""Dependencies that no source stated: between streams, from the GPU to the host, between threads.

What orders GPU work across streams and makes the host wait stands in the calls of the runtime, in
waits that some profilers record, and in when things happened. Each module beside this one finds
one kind of edge; here they are put together, and what contradicts the times is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import moments
from chopper_interop.columns.members import is_any
from chopper_interop.edges import calls as dependencies_calls
from chopper_interop.edges import event, handover, recorded, sync
from chopper_interop.edges import queues as dependencies_queues
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import COMPUTED, ORDER
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Pairs = tuple[Array, Array]

BACKWARD_IN_TIME = Fault(
    "dependency-backward-in-time",
    Severity.INFO,
    "Dependencies that calls and waits imply are left out, as what depends comes before what it "
    "depends on: clocks of host and GPU differ, or a stream was taken for another.",
)


FOUND = (EdgeKind.EVENT, EdgeKind.SYNC, EdgeKind.HANDOVER)
"""Kinds of edges that are found here."""


def complete(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with the dependencies that follow from its calls, waits and times.

    Parameters
    ----------
    trace
        A job. A rank that has edges of these kinds already is left as it is: its source told them.
    issues
        Where assumptions are counted, and what was not stored.
    """
    open_ = _open(trace)
    if trace.meta.clock in (ORDER, COMPUTED) or not open_.any():
        return trace
    log = IssueLog(issues.source)
    complete_ = trace
    for kind, (src, dst) in _found(trace, open_, log).items():
        complete_ = _with(complete_, src, dst, kind, log)
    known = {(issue.code, issue.count, issue.example) for issue in issues}
    issues.extend(i for i in log if (i.code, i.count, i.example) not in known)
    return complete_


def _open(trace: Trace) -> Array:
    """Which nodes are of ranks that have none of these edges yet."""
    rank = trace.array("rank")
    told = is_any(trace.array("kind", "edges"), FOUND)
    told &= trace.array("dst", "edges") >= 0
    return ~np.isin(rank, np.unique(rank[trace.array("dst", "edges")[told]]))


def _found(trace: Trace, open_: Array, issues: IssueLog) -> dict[EdgeKind, Pairs]:
    role = np.where(open_, dependencies_calls.roles(trace), Role.NONE).astype(np.int8)
    calls = dependencies_calls.calls(trace, role)
    waits = recorded.recorded(trace, open_)
    named = (calls.stream != dependencies_calls.NONE).any()
    handles = dependencies_calls.launch_handles(trace) if named else None
    queues = dependencies_queues.queues(trace, handles)
    found = {EdgeKind.HANDOVER: handover.edges(trace, open_, role, issues)}
    if len(queues.node):
        found[EdgeKind.EVENT] = event.edges(trace, calls, queues, waits, issues)
        found[EdgeKind.SYNC] = sync.edges(trace, calls, queues, waits, issues)
    return found


def _with(trace: Trace, src: Array, dst: Array, kind: EdgeKind, issues: IssueLog) -> Trace:
    """The trace with new edges, but for what contradicts its times."""
    holds = moments.forward(trace, src, dst, kind)
    lost = np.flatnonzero(~holds)
    issues.add(BACKWARD_IN_TIME, lost.size, _example(trace, src[lost], dst[lost], kind))
    return trace.with_edges(src[holds], dst[holds], kind) if holds.any() else trace


def _example(trace: Trace, src: Array, dst: Array, kind: EdgeKind) -> str:
    if not src.size:
        return ""
    names, name = trace.names(), trace.array("name")
    ends = " → ".join(f"{names[name[row]][:40]} (node {row})" for row in (src[0], dst[0]))
    return f"{kind.name.lower()}: {ends}"
