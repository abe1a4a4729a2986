"""Hosts and GPU on one clock, as simulators have it.

Where a GPU's clock is ahead of its host's, launches and waits return before the end of the work that they waited for, which
no dependency can say. So one of them is moved by as much: launches take that much less, and waits return that much later::

    as recorded   launch ···········> [ work ]            as planned       launch ─> [ work ]
                                  return                                                    └─> return
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.edges.queues import MAX_AHEAD_NS
from chopper_interop.schemas.kinds import EdgeKind, LaneKind
from chopper_interop.trace import Trace


def on_one_clock(trace: Trace, origin_ns: int) -> Trace:
    """Return the trace of a rank with its GPU's work sooner by what its clock is surely ahead.

    Hosts are later by as much instead, where work would begin before `origin_ns`.
    """
    ahead_ns = _ahead_ns(trace)
    if not ahead_ns:
        return trace
    ts, lane = trace.array("ts"), trace.array("lane")
    on_thread = (trace.array("kind", "lanes") == LaneKind.THREAD)[lane]
    sooner = ts[~on_thread].min(initial=np.iinfo(np.int64).max) - ahead_ns >= origin_ns
    ts = ts - np.where(on_thread, 0, ahead_ns) if sooner else ts + np.where(on_thread, ahead_ns, 0)
    return replace(trace, nodes=arrow.replace_column(trace.nodes, "ts", ts))


def _ahead_ns(trace: Trace) -> int:
    """Longest time before the end of their work at which waits return, if most do; no more than launches leave room for."""
    kind, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    waits = (kind == EdgeKind.SYNC) & (src >= 0) & (dst >= 0)
    early_ns = (end[src] - end[dst])[waits]
    early_ns = early_ns[np.abs(early_ns) <= MAX_AHEAD_NS]
    if 2 * np.count_nonzero(early_ns > 0) <= len(early_ns):
        return 0
    launches = (kind == EdgeKind.LAUNCH) & (src >= 0) & (dst >= 0)
    room_ns = (ts[dst] - ts[src])[launches]
    return max(min(int(early_ns.max()), int(room_ns.min(initial=MAX_AHEAD_NS))), 0)
