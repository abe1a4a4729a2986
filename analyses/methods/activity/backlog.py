"""Work that was launched before the recording began and that its first step waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import host_waits
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.trace import Trace


_LAUNCH_NS = 100_000
"""The most that work starts behind its launch on an idle GPU. Chosen: 2 to 20 µs are usual, and steps take milliseconds."""


def backlog_ns(trace: Trace, ranks: Iterable[int], step: int, begin_ns: int) -> int:
    """Time that the first step waited for what was launched before the recording, on the rank that waited least.

    Its first work waited behind its launch, and its host in calls before that.

    Parameters
    ----------
    trace, ranks
        Some ranks of a job.
    step, begin_ns
        Their first step, and when it began on the axis of `ts`.
    """
    waits = []
    synced = trace.cached("host waits", host_waits.find_waits)
    ts, iteration = trace.array("ts"), trace.integers("iteration")
    for rank in ranks:
        rows = trace.rank_rows[rank]
        launched = is_any(trace.array("kind")[rows], GPU_WORK) & (trace.launch[rows] >= 0)
        work = np.flatnonzero(launched & (iteration[rows] == step)) + rows.start
        if work.size:
            call = trace.launch[work]
            first = np.argmin(ts[call])
            lane = trace.array("lane")[call[[first, first]]].astype(np.int64)
            at = np.array([begin_ns, ts[call[first]]], np.int64)
            before, until = host_waits.waited_ns(synced, lane, at)
            behind = ts[work] - ts[call]
            alone = min(behind.min(), _LAUNCH_NS)
            queued = behind[first] - alone if behind[first] > _LAUNCH_NS else 0
            waits.append(int(queued + until - before))
    return max(min(waits, default=0), 0)
