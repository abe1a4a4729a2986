"""Share of a trace for which each of the columns of `structure` is known."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

COLUMNS = ("iteration", "phase", "step_part", "layer", "module", "operation")


def coverage(trace: Trace) -> dict[str, Array]:
    """Share of GPU time for which each column is known.

    Returns
    -------
    dict
        Column → share of the durations of GPU work (kernels, communication, copies and fills), of each rank
        that has any, in order of the ranks.
    """
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    rank, dur = trace.array("rank")[work], trace.array("dur")[work]
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    if not first.size:
        return {}
    total = np.add.reduceat(dur, first)
    shares = {}
    for column in filter(trace.has, COLUMNS):
        _, known = arrow.values_at(trace.nodes[column], work)
        shares[column] = np.add.reduceat(dur * known, first)[total > 0] / total[total > 0]
    return shares
