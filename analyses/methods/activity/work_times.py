"""Times until which each piece of GPU work waited: for the host, its launch, work on other streams, other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.activity import gaps, host_waits
from chopper_interop.arrays import Array
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.timing import start_latencies
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.host_waits import HostWaits
    from chopper_interop.timing.start_latencies import LeastTimes

_LONGEST_LAUNCH_NS = 100_000
"""Work that begins so long after its launch is due and the call has returned waited for something else. Chosen: as the
finding `unrecorded-wait`; a launch takes some 10 µs."""


class Known(NamedTuple):
    """Facts of a batch.

    Parameters
    ----------
    least
        Least latencies of the job.
    waited_until
        Of each node the end of its wait for other ranks by `communication.times`, else `gaps.NO_TIME`.
    calls
        Calls that waited, as of `host_waits.calls_among`.
    """

    least: LeastTimes
    waited_until: Array
    calls: Array


@dataclass(frozen=True)
class WorkTimes:
    """Times before which each piece of GPU work could not begin (ns), one value a piece.

    Parameters
    ----------
    row
        The work.
    start, end
        Start and end of the work.
    waited_until
        End of its own wait for another rank; `gaps.NO_TIME` for none.
    ask
        Start of the call for it, no later than its own; `gaps.NO_TIME` if not known.
    bound
        True if the launch came last of all that it waited for, with minimum latencies of the trace.
    reached
        When the launch was due on the GPU and its call had returned, if the work began long after; else its start.
    thread
        Lane of that call, -1 if not known.
    event_end
        End of the work for which it waits by an event; `gaps.NO_TIME` for none.
    peer_start, peer_end
        Interval in which that other work waited for another rank; `gaps.NO_TIME` for none.
    synced
        Waits of threads for GPUs.
    blame
        Host operation (node) that made it late, -1 for none.
    before
        End of the work before it on the GPU; `gaps.NO_TIME` for the first.
    """

    row: Array
    start: Array
    end: Array
    waited_until: Array
    ask: Array
    bound: Array
    reached: Array
    thread: Array
    event_end: Array
    peer_start: Array
    peer_end: Array
    synced: HostWaits
    blame: Array
    before: Array


def work_times(trace: Trace, rows: Array, facts: Known) -> WorkTimes:
    """Return what the GPU work of these rows, in the order of time, waited for."""
    start = trace.array("ts")[rows]
    end = start + trace.array("dur")[rows]
    called = gaps.call_times(trace, rows)
    known = called != gaps.NO_TIME
    ask = np.where(known, np.minimum(called, start), gaps.NO_TIME)
    call = trace.launch[rows]
    thread = np.where(known, trace.array("lane")[np.maximum(call, 0)], -1)
    synced = host_waits.find_waits(trace, facts.calls)
    gpu, gpus = gaps.gpu_numbers(trace, rows)
    before = gaps.latest_end_before(gpu, gpus, end)
    blame = host_waits.blamed_operations(trace, synced, thread, before, ask)
    launched, others = _ready_times(trace, rows, facts.least)
    bound = known & (launched > others)
    due = np.maximum(launched, (trace.array("ts") + trace.array("dur"))[call])
    reached = np.where(known & (start - due >= _LONGEST_LAUNCH_NS), due, start)
    events, own_waits = _events(trace, rows, facts.waited_until), facts.waited_until[rows]
    return WorkTimes(
        rows, start, end, own_waits, ask, bound, reached, thread, *events, synced, blame, before
    )


def _ready_times(trace: Trace, rows: Array, least: LeastTimes) -> tuple[Array, Array]:
    """Times at which the launch of each piece of work had reached the GPU, and all else had ended that it waits for.

    As in `timing.Timing.binding`, with the minimum latency of each kind added.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    before = start_latencies.predecessors(trace)
    min_ns, from_end = start_latencies.start_latencies(trace, before, least)
    end = ts + dur
    ready = np.where(from_end | (kind == EdgeKind.EVENT), end[src], ts[src]) + min_ns
    ready_by_kind = {}
    for edge_kind in (EdgeKind.LAUNCH, EdgeKind.EVENT):
        of_kind = kind == edge_kind
        ready_by_kind[edge_kind] = np.full(len(ts), gaps.NO_TIME)
        np.maximum.at(ready_by_kind[edge_kind], dst[of_kind], ready[of_kind])
    predecessor = before[rows]
    gap = ts[rows] - end[predecessor]
    min_gap = np.minimum(least.stream_ns, gap)
    free = np.where(predecessor >= 0, end[predecessor] + min_gap, gaps.NO_TIME)
    others = np.maximum(free, ready_by_kind[EdgeKind.EVENT][rows])
    return ready_by_kind[EdgeKind.LAUNCH][rows], others


def _events(trace: Trace, rows: Array, until: Array) -> tuple[Array, Array, Array]:
    """Return the end of what each waits for by an event, and the interval of its wait for a rank."""
    event_edges = np.flatnonzero(trace.array("kind", "edges") == EdgeKind.EVENT)
    src, dst = (trace.array(c, "edges")[event_edges] for c in ("src", "dst"))
    end = trace.array("ts") + trace.array("dur")
    order = np.argsort(end[src], kind="stable")
    source = np.full(trace.nodes.num_rows, -1, np.int64)
    source[dst[order]] = src[order]  # of several sources the one that ends last is written last
    source = source[rows]
    known = source >= 0
    awaited = np.maximum(source, 0)
    waits = known & (until[awaited] != gaps.NO_TIME)
    no_time = np.full(len(source), gaps.NO_TIME)
    return (
        np.where(known, end[awaited], no_time),
        np.where(waits, trace.array("ts")[awaited], no_time),
        np.where(waits, until[awaited], no_time),
    )
