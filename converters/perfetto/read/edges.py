"""Edges from the arrows of a Perfetto trace: flows, and correlation ids where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.perfetto.read import kinds
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder

_ON_GPU = (*GPU_WORK, Kind.GPU_SYNC, Kind.GPU_ANNOTATION)
_NO_CALL = 99
"""Likelihood rank of kinds that do not launch work; beyond that of all that do."""


def add_chopper_edges(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, flow: Array, node: Array, kind: Array, rank: Array, ts: Array,
    waits: Array, correlation: Array, runs: list[tuple[int, int, int, int]],
) -> None:  # fmt: skip
    """Add the edges of arrows that our writer drew: each has an id that only its two slices carry.

    Older versions of this package did not write of what kind they are; it is derived from the
    kinds of the nodes.

    Parameters
    ----------
    builder
        Builder of the trace.
    flow, node
        Ids, and the nodes that carry them.
    kind, rank, ts, waits, correlation
        Columns of all nodes; `waits` marks calls that wait.
    runs
        Kind and direction by id; see `ChopperMetadata.flows`.
    """
    # sorted by (flow, time), both ends of an arrow are neighbours, the earlier one first:
    #   flow  7 7 8 9 9        pair  0 3        a  A D
    #   node  A B C D E                         b  B E
    order = np.lexsort((ts[node], flow))
    flow, node = flow[order], node[order]
    pair = np.flatnonzero(flow[1:] == flow[:-1])
    a, b = node[pair], node[pair + 1]
    work_a, work_b = is_any(kind[a], _ON_GPU), is_any(kind[b], _ON_GPU)
    launch = (correlation[a] == correlation[b]) & (correlation[a] >= 0)
    swap = work_a & ~work_b & (launch | ~waits[b])
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    work_a, work_b = is_any(kind[a], _ON_GPU), is_any(kind[b], _ON_GPU)
    edge = np.full(len(a), int(EdgeKind.FWDBWD))
    edge[~work_a & work_b] = int(EdgeKind.LAUNCH)
    edge[work_a & ~work_b] = int(EdgeKind.SYNC)
    edge[work_a & work_b] = int(EdgeKind.EVENT)
    edge[rank[a] != rank[b]] = int(EdgeKind.COMM)
    recorded, reverse, rows = _recorded(flow[pair], runs)
    early, late = node[pair[rows]], node[pair[rows] + 1]
    edge[rows] = recorded
    a[rows], b[rows] = np.where(reverse, late, early), np.where(reverse, early, late)
    for edge_kind in np.unique(edge).tolist():
        builder.edges(a[edge == edge_kind], b[edge == edge_kind], edge_kind)


def _recorded(flow: Array, runs: list[tuple[int, int, int, int]]) -> tuple[Array, Array, Array]:
    """Kind and direction of the arrows for which the metadata has them, and the rows of these."""
    first, count, kind, reverse = np.array(sorted(runs), np.int64).reshape(-1, 4).T
    run = np.searchsorted(first, flow, "right") - 1  # the run that begins at or before each id
    rows = np.flatnonzero(run >= 0)
    rows = rows[flow[rows] - first[run[rows]] < count[run[rows]]]
    return kind[run[rows]], reverse[run[rows]] > 0, rows


def add_launches(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, flow: Array, node: Array, kind: Array, rank: Array, ts: Array,
    correlation: Array,
) -> None:  # fmt: skip
    """Add edges from calls to the GPU work that shares a flow or a correlation id with them.

    Where a flow joins other things, each depends on the one before it.

    Parameters
    ----------
    builder
        Builder of the trace.
    flow, node
        Ids, and the nodes that carry them.
    kind, rank, ts, correlation
        Columns of all nodes.
    """
    first, code = gather.distinct(flow)
    launched = _add_from_calls(builder, code, node, kind, len(first), correlation)
    # work that no flow reached, and all calls that may have launched it
    tied = np.flatnonzero(correlation > 0)
    tied = tied[~is_any(kind[tied], GPU_WORK) | ~launched[tied]]
    if len(tied):
        groups, by_id = gather.distinct(rank[tied], correlation[tied])
        _add_from_calls(builder, by_id, tied, kind, len(groups), correlation)
    if not len(node):
        return
    # flows without GPU work: each node depends on the one before it with the same id
    with_work = np.zeros(len(first), np.bool_)
    with_work[code[is_any(kind[node], GPU_WORK)]] = True
    rows = np.flatnonzero(~with_work[code])
    order = rows[np.lexsort((ts[node[rows]], code[rows]))]
    step = np.flatnonzero(
        (code[order[1:]] == code[order[:-1]]) & (node[order[1:]] != node[order[:-1]])
    )
    builder.edges(node[order[step]], node[order[step + 1]], int(EdgeKind.DEPENDENCY))


def _add_from_calls(
    builder: TraceBuilder, code: Array, node: Array, kind: Array, groups: int, correlation: Array
) -> Array:
    """Add edges from the likeliest call of each group to its GPU work; mark the nodes reached."""
    reached = np.zeros(len(kind), np.bool_)
    order_of_kind = np.full(int(max(Kind)) + 1, _NO_CALL)
    for position, call in enumerate(kinds.HOST_CALLS):
        order_of_kind[int(call)] = position
    order = order_of_kind[kind[node]]
    calls = np.flatnonzero(order < _NO_CALL)
    # of several calls in a group the likeliest is assigned last, so that it stays
    calls = calls[np.argsort(order[calls], kind="stable")[::-1]]
    source = np.full(groups, -1, np.int64)
    source[code[calls]] = node[calls]
    work = np.flatnonzero(is_any(kind[node], GPU_WORK))
    work = work[(source[code[work]] >= 0) & (correlation[node[work]] != 0)]
    builder.edges(source[code[work]], node[work], int(EdgeKind.LAUNCH))
    reached[node[work]] = True
    return reached


def is_waiting_call(name: Array, names: list[str]) -> Array:
    """Mark the nodes that are calls which wait, by their names."""
    return np.array([*(kinds.WAITS.search(n) is not None for n in names), False])[name]
