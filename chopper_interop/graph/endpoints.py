"""A total order of all endpoints in which dependencies point forward.

Times alone do not order endpoints: of two at the same nanosecond either may depend on the other.
Among equal times the order is: ends of nodes that lasted (GPU work before host work that waits for
it, callees before callers), then starts by row; a node without duration ends before the next one
starts. Nesting, threads and streams follow this order too, so edges that follow it form no cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import EDGE_ENDPOINTS, GPU_WORK, EdgeKind, Endpoint

if TYPE_CHECKING:
    from chopper_interop.tables import TraceTables

_ENDS = (Endpoint.END, Endpoint.START)


def forward(trace: TraceTables, src: Array, dst: Array, kind: EdgeKind) -> Array:
    """Mark the edges of a kind that lead from an earlier endpoint to a later one.

    Parameters
    ----------
    src, dst
        Rows of its nodes.
    kind
        Kind of all the edges; `EDGE_ENDPOINTS` says which endpoints they connect.
    """
    first, last = EDGE_ENDPOINTS.get(kind, _ENDS)
    before = np.zeros(len(src), bool)
    same = np.ones(len(src), bool)
    for a, b in zip(_sort_keys(trace, src, first), _sort_keys(trace, dst, last), strict=True):
        before |= same & (a < b)
        same &= a == b
    return before


def _sort_keys(
    trace: TraceTables, node: Array, endpoint: Endpoint
) -> tuple[Array, Array, Array, Array]:
    """Sort keys of one endpoint of each node, most significant first: time, class, row, endpoint."""
    ts, dur = trace.array("ts")[node], trace.array("dur")[node]
    node = node.astype(np.int64)
    if endpoint == Endpoint.START:
        return ts, np.full(len(node), 2), node, np.zeros(len(node), np.int64)
    on_gpu = is_any(trace.array("kind")[node], GPU_WORK)
    lasted = dur > 0
    order_class = np.where(lasted, np.where(on_gpu, 0, 1), 2)
    return ts + dur, order_class, np.where(lasted, -node, node), np.ones(len(node), np.int64)
