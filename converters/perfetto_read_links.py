"""Arrows of a Perfetto trace as dependencies: flows, and correlation ids where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array

_WORK = [int(k) for k in GPU_WORK]
_ON_GPU = [*_WORK, int(Kind.GPU_SYNC), int(Kind.GPU_ANNOTATION)]
_FAR = 99


def ours(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, flow: Array, node: Array, kind: Array, rank: Array, ts: Array,
    waits: Array, correlation: Array, told: list[tuple[int, int, int, int]],
) -> None:  # fmt: skip
    """Edges of our own arrows: each has an id of its own, that its two slices carry.

    Older versions of this package did not tell of what kind they are.

    Parameters
    ----------
    builder
        Where they go.
    flow, node
        Ids and the nodes that carry them.
    kind, rank, ts, waits, correlation
        Of all nodes; `waits` is whether it is a call that waits.
    told
        Kind and direction by id; see `perfetto_about.About.flows`.
    """
    order = np.lexsort((ts[node], flow))
    flow, node = flow[order], node[order]
    pair = np.flatnonzero(flow[1:] == flow[:-1])
    a, b = node[pair], node[pair + 1]
    work_a, work_b = np.isin(kind[a], _ON_GPU), np.isin(kind[b], _ON_GPU)
    launch = (correlation[a] == correlation[b]) & (correlation[a] >= 0)
    swap = work_a & ~work_b & (launch | ~waits[b])
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    work_a, work_b = np.isin(kind[a], _ON_GPU), np.isin(kind[b], _ON_GPU)
    edge = np.full(len(a), int(EdgeKind.FWDBWD))
    edge[~work_a & work_b] = int(EdgeKind.LAUNCH)
    edge[work_a & ~work_b] = int(EdgeKind.SYNC)
    edge[work_a & work_b] = int(EdgeKind.EVENT)
    edge[rank[a] != rank[b]] = int(EdgeKind.COMM)
    stated, turned, which = _told(flow[pair], told)
    early, late = node[pair[which]], node[pair[which] + 1]
    edge[which] = stated
    a[which], b[which] = np.where(turned, late, early), np.where(turned, early, late)
    for one in np.unique(edge).tolist():
        builder.edges(a[edge == one], b[edge == one], one)


def _told(flow: Array, told: list[tuple[int, int, int, int]]) -> tuple[Array, Array, Array]:
    """Kind and direction of those arrows of which they are told, and which these are."""
    first, count, kind, turned = np.array(sorted(told), np.int64).reshape(-1, 4).T
    at = np.searchsorted(first, flow, "right") - 1
    which = np.flatnonzero(at >= 0)
    which = which[flow[which] - first[at[which]] < count[at[which]]]
    return kind[at[which]], turned[at[which]] > 0, which


def launches(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, flow: Array, node: Array, kind: Array, rank: Array, ts: Array,
    correlation: Array,
) -> None:  # fmt: skip
    """Edges from calls to the GPU work that shares a flow or a correlation id with them.

    Where an id joins other things, each follows the one before it.
    """
    first, code = gather.distinct(flow)
    launched = _from_calls(builder, code, node, kind, len(first), correlation)
    tied = np.flatnonzero(correlation > 0)
    tied = tied[~np.isin(kind[tied], _WORK) | ~launched[tied]]
    if len(tied):
        groups, by_id = gather.distinct(rank[tied], correlation[tied])
        _from_calls(builder, by_id, tied, kind, len(groups), correlation)
    if not len(node):
        return
    with_work = np.zeros(len(first), np.bool_)
    with_work[code[np.isin(kind[node], _WORK)]] = True
    other = np.flatnonzero(~with_work[code])
    order = other[np.lexsort((ts[node[other]], code[other]))]
    step = np.flatnonzero(
        (code[order[1:]] == code[order[:-1]]) & (node[order[1:]] != node[order[:-1]])
    )
    builder.edges(node[order[step]], node[order[step + 1]], int(EdgeKind.DEPENDENCY))


def _from_calls(
    builder: TraceBuilder, code: Array, node: Array, kind: Array, groups: int, correlation: Array
) -> Array:
    """Draw an edge from the likeliest call of each group to its GPU work; what was reached."""
    reached = np.zeros(len(kind), np.bool_)
    place_of = np.full(int(max(Kind)) + 1, _FAR)
    for order, call in enumerate(kinds.HOST_CALLS):
        place_of[int(call)] = order
    place = place_of[kind[node]]
    calls = np.flatnonzero(place < _FAR)
    calls = calls[np.argsort(place[calls], kind="stable")[::-1]]
    source = np.full(groups, -1, np.int64)
    source[code[calls]] = node[calls]
    work = np.flatnonzero(np.isin(kind[node], _WORK))
    work = work[(source[code[work]] >= 0) & (correlation[node[work]] != 0)]
    builder.edges(source[code[work]], node[work], int(EdgeKind.LAUNCH))
    reached[node[work]] = True
    return reached


def waiting(name: Array, names: list[str]) -> Array:
    """Which nodes are calls that wait, by their names."""
    return np.array([*(kinds.WAITS.search(n) is not None for n in names), False])[name]
