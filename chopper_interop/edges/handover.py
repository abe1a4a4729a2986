"""What one host thread did → what another, idle until then, began next.

No profiler records that a thread waits for another: autograd's thread for the operator that asked
for gradients, the main thread for the end of the backward pass. It shows in the times: of two
threads one stops and does nothing more for now, and soon afterwards one that had been idle goes
on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import nest
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

OBSERVED = Fault(
    "handover-observed",
    Severity.INFO,
    "Host threads went on within a millisecond of the end of what another did last: that they "
    "waited for it is taken from the times alone.",
)

IDLE_NS = 20_000
"""A thread that does nothing for longer is idle: between two operators Python takes 5 to 20 µs."""
WAKE_NS = 1_000_000
"""An idle thread goes on so soon after what it waited for: it wakes within tens of µs, and then
Python runs until its first operator begins (measured: 0.03 to 0.3 ms)."""

_OPERATIONS = (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER, Kind.API)
_WAITS = (
    Role.DEVICE_SYNC,
    Role.STREAM_SYNC,
    Role.EVENT_SYNC,
    Role.SIGNAL_WAIT,
    Role.POLL,
)


def edges(trace: Trace, chosen: Array, role: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Operation of one thread → the next of another, as rows of `nodes`.

    Parameters
    ----------
    trace
        The trace.
    chosen
        Which of its nodes count.
    role
        Of each node, a number of `Role`.
    issues
        Where the edges are counted.
    """
    operation, opens = _outermost(trace, role)
    node = np.flatnonzero(chosen & (operation | opens))
    lane, ts = trace.array("lane")[node], trace.array("ts")[node]
    opens = opens[node]
    end = ts + np.where(opens, 0, trace.array("dur")[node])
    # threads of one rank have numbers beside each other, so that only those are looked at
    rank_of = trace.array("rank", "lanes")
    threads = np.unique(lane)
    threads = threads[np.argsort(rank_of[threads], kind="stable")]
    number = np.full(len(rank_of), -1, np.int64)
    number[threads] = np.arange(len(threads))
    first = np.searchsorted(rank_of[threads], rank_of[threads], "left").astype(np.int64)
    stop = np.searchsorted(rank_of[threads], rank_of[threads], "right").astype(np.int64)
    waits = is_any(role[node], _WAITS)
    source = _handed(number[lane], ts, end, waits, opens, first, stop)
    found = np.flatnonzero(source >= 0)
    src, dst = node[source[found]], node[found]
    if found.size:
        names, name = trace.names(), trace.array("name")
        ends = " → ".join(f"{names[name[n]][:40]} (node {n})" for n in (src[0], dst[0]))
        issues.add(OBSERVED, found.size, ends)
    return src.astype(np.int32), dst.astype(np.int32)


def _outermost(trace: Trace, role: Array) -> tuple[Array, Array]:
    """Operations of host threads that no other is around, and ranges that open outside of any.

    Polls are no operations. A range may be the first that a thread does when it goes on.
    """
    on_thread = (trace.array("kind", "lanes") == LaneKind.THREAD)[trace.array("lane")]
    kind = trace.array("kind")
    operation = on_thread & is_any(kind, _OPERATIONS) & (role != Role.POLL)
    within = nest.within(operation, trace.array("parent"))
    return operation & ~within, on_thread & (kind == Kind.ANNOTATION) & ~within


@jit
def _handed(  # noqa: PLR0913, PLR0917 # columns
    thread: Array, ts: Array, end: Array, waits: Array, opens: Array, first: Array, stop: Array
) -> Array:
    """For each operation the one of another thread that it followed; -1 if it followed none.

    Operations come in order of their ranks and starts; those of a thread's rank are of the
    threads from `first` to `stop`. Of ranges (`opens`) the start alone counts, as what follows.
    """
    source = np.full(len(ts), -1, np.int64)
    following = np.full(len(ts), np.iinfo(np.int64).max, np.int64)
    last = np.full(len(first), -1, np.int64)  # what ended last on each thread
    for i in range(len(ts) - 1, -1, -1):
        if last[thread[i]] >= 0:
            following[i] = ts[last[thread[i]]]
        if not opens[i]:
            last[thread[i]] = i
    last[:] = -1
    active = np.full(len(first), np.iinfo(np.int64).min, np.int64)  # until when each thread was
    for i in range(len(ts)):
        mine = thread[i]
        since = active[mine]
        fresh = since == np.iinfo(np.int64).min  # then a range alone does not tell
        if not waits[i] and ((fresh and not opens[i]) or (not fresh and ts[i] - since > IDLE_NS)):
            for other in range(first[mine], stop[mine]):
                k = last[other]
                if other == mine or k < 0 or end[k] > ts[i] or end[k] <= since:
                    continue
                rests = following[k] > ts[i] and following[k] - end[k] > IDLE_NS
                latest = source[i] < 0 or end[k] > end[source[i]]
                if rests and latest and ts[i] - end[k] <= WAKE_NS:
                    source[i] = k
        active[mine] = max(since, end[i])
        if not opens[i] and (last[mine] < 0 or end[i] >= end[last[mine]]):
            last[mine] = i
    return source
