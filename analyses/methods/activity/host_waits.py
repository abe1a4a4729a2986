"""Waits of host threads for GPUs, and the host operations that GPUs waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.analyses.methods.activity import gaps
from chopper_interop.arrays import Array, gather, spill
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges import ordering_calls
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind
from chopper_interop.schemas.names import ONLY_WAITS
from chopper_interop.trace import Trace

_EDGES_AT_ONCE = 1 << 20
"""Edges that are looked at together (chosen: a few megabytes)."""


@dataclass(frozen=True)
class HostWaits:
    """Intervals in which threads wait for GPUs, without overlap, in order of lane and time.

    Parameters
    ----------
    first
        Those of lane k are at ``first[k]:first[k + 1]``.
    start, end
        Nanoseconds.
    total
        Running sum of their lengths over all lanes, each included.
    """

    first: Array
    start: Array
    end: Array
    total: Array


def find_waits(trace: Trace, calls: Array | None = None) -> HostWaits:
    """Intervals in which threads wait for GPUs.

    These are calls that do nothing else, and calls that waited according to the trace's edges.

    Parameters
    ----------
    trace
        A trace, or a batch of its ranks.
    calls
        Of a batch, as of `calls_among`: edges may lead to it from other ranks.
    """
    is_sync = np.zeros(trace.nodes.num_rows, bool)
    is_sync[calls_that_waited(trace) if calls is None else calls] = True
    role = ordering_calls.node_roles(trace)
    is_sync |= is_any(role, ONLY_WAITS)
    is_sync &= ~is_any(trace.array("kind"), GPU_WORK)
    row = np.flatnonzero(is_sync)
    lane = trace.array("lane")[row]
    row = row[np.argsort(lane, kind="stable")]
    lane, n = trace.array("lane")[row], trace.lanes.num_rows
    start = trace.array("ts")[row]
    end = start + trace.array("dur")[row]
    since = np.maximum(start, gaps.latest_end_before(lane, n, end))
    end = np.maximum(since, end)
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(lane, minlength=n), out=first[1:])
    return HostWaits(first, since, end, np.cumsum(end - since))


def calls_among(trace: Trace, rows: slice) -> Array:
    """`calls_that_waited` of some ranks, numbered from the first node of these."""
    calls = trace.cached("calls that waited", calls_that_waited)
    first, stop = np.searchsorted(calls, [rows.start, rows.stop])
    return np.asarray(calls[first:stop] - rows.start)


def calls_that_waited(trace: Trace) -> Array:
    """Rows of calls that depend on work which had not ended when they began, or on their own copy, each once.

    A copy that ends behind its call has an edge to what the thread does next, though the wait is in the call.
    """
    kind = trace.array("kind", "edges")
    calls = [
        _waiting_calls(trace, slice(at, at + _EDGES_AT_ONCE))
        for at in range(0, len(kind), _EDGES_AT_ONCE)
    ]
    return gather.unique(gather.joined(calls))


def _waiting_calls(trace: Trace, edges: slice) -> Array:
    """`calls_that_waited` by some of the edges; one may be there several times."""
    kind = trace.array("kind", "edges")[edges]
    some = np.flatnonzero(is_any(kind, (EdgeKind.POLL, EdgeKind.SYNC)))
    work, call = (trace.array(column, "edges")[edges][some] for column in ("src", "dst"))
    own = (kind[some] == EdgeKind.POLL) & (trace.array("kind")[work] == Kind.MEMCPY)
    own &= trace.launch[work] >= 0
    call = np.where(own, trace.launch[work], call)
    waits = own | (kind[some] == EdgeKind.SYNC)
    work, call = work[waits], call[waits]
    ts, dur = trace.array("ts"), trace.array("dur")
    result = call[ts[work] + dur[work] > ts[call]].astype(np.int64)
    spill.gathered(ts.nbytes, 3 * len(some))
    return np.asarray(result)


def waiting_for_the_same(trace: Trace, calls: Array) -> Array:
    """Mark calls that depend on work of which one of these marked calls waited for the end.

    A value is fetched on CUDA by a copy that the call returns behind, and then its stream is waited for.
    """
    edges = trace.array("kind", "edges") == EdgeKind.SYNC
    work, call = (trace.array(c, "edges")[edges] for c in ("src", "dst"))
    awaited = np.zeros(len(calls), bool)
    awaited[work[calls[call]]] = True
    result = calls.copy()
    result[call[awaited[work]]] = True
    return result


def waited_ns(waits: HostWaits, lane: Array, at: Array) -> Array:
    """Time that each of these threads had waited for GPUs up to a point in time, nanoseconds.

    It includes all waits of threads of lower lanes: only the difference between two points in time
    of one thread has a meaning.

    Parameters
    ----------
    waits
        As of `find_waits`.
    lane
        The threads' lanes; -1 if not known, which gives 0.
    at
        Points in time.
    """
    return _waited(waits.first, waits.start, waits.end, waits.total, lane, at)


@jit
def _waited(first: Array, start: Array, end: Array, total: Array, lane: Array, at: Array) -> Array:
    """Waited time as `waited_ns`.

    Compiled: a binary search within the lane's part of the intervals, which differs for each.
    """
    waited = np.zeros(len(at), np.int64)
    for k in range(len(at)):
        if lane[k] < 0:
            continue
        low, high = first[lane[k]], first[lane[k] + 1]
        while low < high:
            middle = (low + high) // 2
            if start[middle] <= at[k]:
                low = middle + 1
            else:
                high = middle
        if low > first[lane[k]]:
            waited[k] = total[low - 1] - max(end[low - 1] - at[k], 0)
        elif low > 0:
            waited[k] = total[low - 1]
    return waited


def blamed_operations(
    trace: Trace, synced: HostWaits, thread: Array, before: Array, ask: Array
) -> Array:
    """Operation of the host that made each piece of GPU work late; -1 where none is to blame.

    It is the innermost one of the thread that covers half or more of the time from when the GPU had
    nothing to do (or the thread's last wait for a GPU since then ended) to the call.

    Parameters
    ----------
    synced
        As of `find_waits`.
    thread
        Lane of the call for each, -1 if not known.
    before
        End of the GPU's work before it, `gaps.NO_TIME` if there was none.
    ask
        Start of the call for it.
    """
    blame = np.full(len(ask), -1, np.int64)
    late = np.flatnonzero((before != gaps.NO_TIME) & (ask > before) & (thread >= 0))
    if late.size:
        lane, ts = trace.array("lane"), trace.array("ts")
        first, row = gather.group_rows(lane, trace.lanes.num_rows)
        end = ts + trace.array("dur")
        parent = trace.array("parent")
        waits = (synced.first, synced.start, synced.end)
        intervals = (thread[late].astype(np.int64), before[late], ask[late])
        blame[late] = _covering_node(first, row, ts, end, parent, waits, intervals)
    return blame


@jit
def _covering_node(  # noqa: PLR0913, PLR0917 # columns
    first: Array,
    row: Array,
    ts: Array,
    end: Array,
    parent: Array,
    waits: tuple[Array, Array, Array],
    intervals: tuple[Array, Array, Array],
) -> Array:
    """Innermost node of a thread that covers half or more of each interval; -1 if none does.

    An interval of a thread begins behind the last wait that ends within it. Whatever covers more
    than half of it covers its middle: so the search starts from the innermost node there, and goes
    up from parent to parent. Compiled: both are searches for each interval on its own.
    """
    wait_first, wait_start, wait_end = waits
    lane, since, until = intervals
    covering = np.full(len(lane), -1, np.int64)
    for k in range(len(lane)):
        thread, a, b = lane[k], since[k], until[k]
        low, high = wait_first[thread], wait_first[thread + 1]
        while low < high:
            middle = (low + high) // 2
            if wait_start[middle] < b:
                low = middle + 1
            else:
                high = middle
        if low > wait_first[thread] and a < wait_end[low - 1] < b:
            a = wait_end[low - 1]
        at = a + (b - a) // 2
        low, high = first[thread], first[thread + 1]
        while low < high:
            middle = (low + high) // 2
            if ts[row[middle]] <= at:
                low = middle + 1
            else:
                high = middle
        node = row[low - 1] if low > first[thread] else -1
        while node >= 0 and 2 * (min(end[node], b) - max(ts[node], a)) < b - a:
            node = parent[node]
        covering[k] = node
    return covering
