"""Hosts and GPU on one clock, as simulators have it.

Where a GPU's clock is ahead of its host's, launches and waits return before the end of the work that they waited for, which
no dependency can say. So one of them is moved by as much: launches take that much less, and waits return that much later::

    as recorded   launch ···········> [ work ]            as planned       launch ─> [ work ]
                                  return                                                    └─> return
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.edges.queues import MAX_AHEAD_NS
from chopper_interop.schemas.kinds import EdgeKind, LaneKind
from chopper_interop.timing.populations import Populations, populations
from chopper_interop.trace import Trace


def on_one_clock(trace: Trace, origin_ns: int) -> Trace:
    """Return the trace of ranks with the GPU's work of each sooner by what its clock is surely ahead.

    Hosts are later by as much instead, where work would begin before `origin_ns`.
    """
    of = populations(trace, each_rank=True)
    ahead_ns = _ahead_ns(trace, of)
    if not ahead_ns.any():
        return trace
    ts, lane = trace.array("ts"), trace.array("lane")
    on_thread = (trace.array("kind", "lanes") == LaneKind.THREAD)[lane]
    first_ns = np.full(of.count, np.iinfo(np.int64).max)
    on_gpu = np.flatnonzero(~on_thread)
    np.minimum.at(first_ns, of.at(on_gpu), ts[on_gpu])
    sooner = (first_ns - ahead_ns >= origin_ns)[of.of_node]
    ahead_ns = ahead_ns[of.of_node]
    ts = ts + np.where(on_thread, np.where(sooner, 0, ahead_ns), np.where(sooner, -ahead_ns, 0))
    return replace(trace, nodes=arrow.replace_column(trace.nodes, "ts", ts))


def _ahead_ns(trace: Trace, of: Populations) -> Array:
    """Longest time before the end of their work at which a rank's waits return, if most do.

    No more than launches leave room for.
    """
    kind, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    waits = np.flatnonzero((kind == EdgeKind.SYNC) & (src >= 0) & (dst >= 0))
    early_ns = end[src[waits]] - end[dst[waits]]
    near = np.abs(early_ns) <= MAX_AHEAD_NS
    rank, early_ns = of.at(dst[waits][near]), early_ns[near]
    early = np.bincount(rank[early_ns > 0], minlength=of.count)
    most = 2 * early > np.bincount(rank, minlength=of.count)
    if not most.any():
        return np.zeros(of.count, np.int64)
    ahead_ns, room_ns = np.zeros(of.count, np.int64), np.full(of.count, MAX_AHEAD_NS)
    np.maximum.at(ahead_ns, rank, early_ns)
    launches = np.flatnonzero((kind == EdgeKind.LAUNCH) & (src >= 0) & (dst >= 0))
    np.minimum.at(room_ns, of.at(dst[launches]), (ts[dst] - ts[src])[launches])
    return np.where(most, np.maximum(np.minimum(ahead_ns, room_ns), 0), 0)
