"""Dependencies that no source stated: between streams, from the GPU to the host, between threads.

What orders GPU work across streams and makes the host wait stands in the calls of the runtime, in
waits that some profilers record, and in when things happened. Each module beside this one finds
one kind of edge; here they are put together, and what contradicts the times is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import (
    dependencies_calls,
    dependencies_event,
    dependencies_queues,
    dependencies_recorded,
    dependencies_sync,
    moments,
)
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import COMPUTED, ORDER

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]
    Pairs = tuple[Array, Array]

BACKWARD_IN_TIME = Fault(
    "dependency-backward-in-time",
    Severity.INFO,
    "Dependencies that calls and waits imply are left out, as what depends comes before what it "
    "depends on: clocks of host and GPU differ, or a stream was taken for another.",
)


def complete(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with the dependencies that follow from its calls, waits and times.

    Parameters
    ----------
    trace
        A job. Of a rank that has edges of a kind already, no more of that kind are derived.
    issues
        Where assumptions are counted, and what was not stored.
    """
    if trace.meta.clock in (ORDER, COMPUTED) or not trace.nodes.num_rows:
        return trace
    before = trace
    for kind, (src, dst) in _found(before, issues).items():
        trace = _with(trace, before, src, dst, kind, issues)
    return trace


def _found(trace: Trace, issues: IssueLog) -> dict[EdgeKind, Pairs]:
    calls = dependencies_calls.calls(trace)
    waits = dependencies_recorded.recorded(trace)
    named = (calls.stream >= 0).any()
    handles = dependencies_calls.launch_handles(trace) if named else None
    queues = dependencies_queues.queues(trace, handles)
    return {
        EdgeKind.EVENT: dependencies_event.edges(trace, calls, queues, waits, issues),
        EdgeKind.SYNC: dependencies_sync.edges(trace, calls, queues, waits, issues),
    }


def _with(
    trace: Trace, before: Trace, src: Array, dst: Array, kind: EdgeKind, issues: IssueLog
) -> Trace:
    """The trace with new edges, but where a rank has such edges, and what contradicts times."""
    rank = before.array("rank")
    stored = before.array("kind", "edges") == kind
    stated = np.unique(rank[before.array("dst", "edges")[stored]])
    new = ~np.isin(rank[dst], stated)
    src, dst = src[new], dst[new]
    holds = moments.forward(before, src, dst, kind)
    lost = np.flatnonzero(~holds)
    issues.add(BACKWARD_IN_TIME, lost.size, _example(before, src[lost], dst[lost], kind))
    return trace.with_edges(src[holds], dst[holds], kind) if holds.any() else trace


def _example(trace: Trace, src: Array, dst: Array, kind: EdgeKind) -> str:
    if not src.size:
        return ""
    names, name = trace.names(), trace.array("name")
    ends = " → ".join(f"{names[name[row]][:40]} (node {row})" for row in (src[0], dst[0]))
    return f"{kind.name.lower()}: {ends}"
