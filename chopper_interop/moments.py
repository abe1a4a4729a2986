"""An order of the starts and ends of all nodes, in which dependencies point one way.

Times alone do not give one: of two moments at the same nanosecond either may depend on the other.
Here what lasted till then ends first, work of GPUs before what waits for it on the host and what
is called before its caller, and then things start in the order of the nodes; what takes no time
ends before the next starts. Nesting, threads and streams point that way too, so that edges which
keep to it make no circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import GPU_WORK, MOMENTS, EdgeKind, Moment

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_ENDS = (Moment.END, Moment.START)


def forward(trace: Trace, src: Array, dst: Array, kind: EdgeKind) -> Array:
    """Which edges of a kind point from an earlier moment to a later one.

    Parameters
    ----------
    trace
        The trace, its nodes in order.
    src, dst
        Rows of its nodes.
    kind
        Kind of all the edges; `MOMENTS` tells which moments they tie.
    """
    first, last = MOMENTS.get(kind, _ENDS)
    from_time, *from_place = _place(trace, src, first)
    to_time, *to_place = _place(trace, dst, last)
    before = from_time < to_time
    same = from_time == to_time
    for a, b in zip(from_place, to_place, strict=True):
        before |= same & (a < b)
        same &= a == b
    return before


def _place(trace: Trace, node: Array, moment: Moment) -> tuple[Array, Array, Array, Array]:
    """Time of a moment of each node, and three numbers that order moments of the same time."""
    ts, dur = trace.array("ts")[node], trace.array("dur")[node]
    node = node.astype(np.int64)
    if moment == Moment.START:
        return ts, np.full(len(node), 2), node, np.zeros(len(node), np.int64)
    on_gpu = is_any(trace.array("kind")[node], GPU_WORK)
    lasted = dur > 0
    when = np.where(lasted, np.where(on_gpu, 0, 1), 2)
    return ts + dur, when, np.where(lasted, -node, node), np.ones(len(node), np.int64)
