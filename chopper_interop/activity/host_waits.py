"""When threads of hosts waited for GPUs, and which of their operations made GPUs wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import gaps
from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.edges import calls as dependencies_calls
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_WAITS = (Role.DEVICE_SYNC, Role.STREAM_SYNC, Role.EVENT_SYNC, Role.SIGNAL_WAIT)


@dataclass(frozen=True)
class Waits:
    """Times in which threads wait for GPUs, each moment of a thread once, in order of lane and time.

    Parameters
    ----------
    first
        Those of lane k are at ``first[k]:first[k + 1]``.
    start, end
        Time.
    total
        How long all of them up to each took together.
    """

    first: Array
    start: Array
    end: Array
    total: Array


def of(trace: Trace) -> Waits:
    """Where threads wait for GPUs: in calls that do nothing else, or that a trace tells to have.

    Parameters
    ----------
    trace
        Any trace.
    """
    is_sync = np.zeros(trace.nodes.num_rows, bool)
    edges = trace.array("kind", "edges") == EdgeKind.SYNC
    is_sync[trace.array("dst", "edges")[edges]] = True
    role = dependencies_calls.roles(trace)
    is_sync |= is_any(role, _WAITS)
    is_sync &= ~is_any(trace.array("kind"), GPU_WORK)
    row = np.flatnonzero(is_sync)
    lane = trace.array("lane")[row]
    row = row[np.argsort(lane, kind="stable")]
    lane, n = trace.array("lane")[row], trace.lanes.num_rows
    start = trace.array("ts")[row]
    end = start + trace.array("dur")[row]
    since = np.maximum(start, gaps.reach(lane, n, start, end))
    end = np.maximum(since, end)
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(lane, minlength=n), out=first[1:])
    return Waits(first, since, end, np.cumsum(end - since))


def waited_ns(waits: Waits, lane: Array, at: Array) -> Array:
    """How long each of these threads had waited for GPUs at a time, since the first thread began.

    Of a thread only differences between two times mean something.

    Parameters
    ----------
    waits
        As of `of`.
    lane
        The threads' lanes, -1 if not known: that has not waited.
    at
        Times.
    """
    return _waited(waits.first, waits.start, waits.end, waits.total, lane, at)


@jit
def _waited(first: Array, start: Array, end: Array, total: Array, lane: Array, at: Array) -> Array:
    found = np.zeros(len(at), np.int64)
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
            found[k] = total[low - 1] - max(end[low - 1] - at[k], 0)
        elif low > 0:
            found[k] = total[low - 1]
    return found


def blamed(trace: Trace, synced: Waits, thread: Array, before: Array, ask: Array) -> Array:
    """The operation of the host that made each piece of GPU work late; -1 where none is to blame.

    It is the innermost one of the thread that covers half or more of the time from when the GPU had
    nothing to do (or the thread had waited for it since) to the call.

    Parameters
    ----------
    trace
        Any trace.
    synced
        As of `of`.
    thread
        Lane of the call for each, -1 if not known.
    before
        When the GPU had done what was asked for before, `gaps.NEVER` if nothing was.
    ask
        When the call for it began.
    """
    blame = np.full(len(ask), -1, np.int64)
    late = np.flatnonzero((before != gaps.NEVER) & (ask > before) & (thread >= 0))
    if late.size:
        lane, ts = trace.array("lane"), trace.array("ts")
        first, place = gather.places(lane, trace.lanes.num_rows)
        end = ts + trace.array("dur")
        parent = trace.array("parent")
        waits = (synced.first, synced.start, synced.end)
        of = (thread[late].astype(np.int64), before[late], ask[late])
        blame[late] = _covering(first, place, ts, end, parent, waits, of)
    return blame


@jit
def _covering(  # noqa: PLR0913, PLR0917 # columns
    first: Array,
    place: Array,
    ts: Array,
    end: Array,
    parent: Array,
    waits: tuple[Array, Array, Array],
    of: tuple[Array, Array, Array],
) -> Array:
    """The innermost node of a thread that covers half or more of a stretch; -1 if none does.

    The stretch begins behind the last wait within it. What covers more than half covers its middle.
    """
    wait_first, wait_start, wait_end = waits
    lane, since, until = of
    found = np.full(len(lane), -1, np.int64)
    for k in range(len(lane)):
        where, a, b = lane[k], since[k], until[k]
        low, high = wait_first[where], wait_first[where + 1]
        while low < high:
            middle = (low + high) // 2
            if wait_start[middle] < b:
                low = middle + 1
            else:
                high = middle
        if low > wait_first[where] and a < wait_end[low - 1] < b:
            a = wait_end[low - 1]
        at = a + (b - a) // 2
        low, high = first[where], first[where + 1]
        while low < high:
            middle = (low + high) // 2
            if ts[place[middle]] <= at:
                low = middle + 1
            else:
                high = middle
        node = place[low - 1] if low > first[where] else -1
        while node >= 0 and 2 * (min(end[node], b) - max(ts[node], a)) < b - a:
            node = parent[node]
        found[k] = node
    return found
