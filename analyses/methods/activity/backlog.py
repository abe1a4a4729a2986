"""Work that was launched before the recording began and that its first step waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import host_waits
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    from chopper_interop.trace import Trace


_LAUNCH_NS = 100_000
"""The most that work starts behind its launch on an idle GPU. Chosen: 2 to 20 µs are usual, and steps take milliseconds."""

_IDLE_CALL_NS = 100_000
"""The most that a call takes that waits for an idle GPU. Chosen: it took 6 µs on H100, 31 to 37 on MI300X."""


def backlog_ns(trace: Trace, ranks: Iterable[int], step: int, begin_ns: int) -> int:
    """Time that the first step waited for what was launched before the recording, on the rank that waited least.

    Its first work waited behind its launch, and its host in calls before that: in those that are longer than a
    call on an idle GPU.

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
            low, high = synced.first[trace.array("lane")[call[first]] + np.arange(2)]
            start, end = synced.start[low:high], synced.end[low:high]
            held = np.minimum(end, ts[call[first]]) - np.maximum(start, begin_ns)
            held[end - start <= _IDLE_CALL_NS] = 0
            behind = ts[work] - ts[call]
            alone = min(behind.min(), _LAUNCH_NS)
            queued = behind[first] - alone if behind[first] > _LAUNCH_NS else 0
            waits.append(int(queued + held[held > 0].sum()))
    return min(waits, default=0)
