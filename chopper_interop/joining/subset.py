"""Select some nodes of a trace and renumber its ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import arrow

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace


def renumbered(trace: Trace, keep: Array, ranks: dict[int, Rank], tool: str) -> Trace:
    """Select nodes, name the tool in the names of their lanes, and renumber the ranks.

    Parameters
    ----------
    trace
        The trace.
    keep
        Mask of the nodes that stay; their parent becomes the nearest ancestor that stays.
    ranks
        New description of each rank that has such nodes, by its present number.
    tool
        Suffix of the lanes' names.
    """
    rows = np.flatnonzero(keep)
    new_row = np.full(len(keep) + 1, -1, np.int32)
    new_row[rows] = np.arange(len(rows), dtype=np.int32)
    used = np.unique(trace.array("lane")[rows])
    lane = np.zeros(trace.lanes.num_rows, np.int32)
    lane[used] = np.arange(len(used), dtype=np.int32)
    number = {old: rank.rank for old, rank in ranks.items()}
    nodes = arrow.take(trace.nodes, rows)
    nodes = arrow.replace_column(nodes, "parent", new_row[_kept_parents(trace, keep)[rows]])
    nodes = _with_ranks(
        arrow.replace_column(nodes, "lane", lane[arrow.to_numpy(nodes["lane"])]), number
    )
    order = np.argsort(arrow.to_numpy(nodes["rank"]), kind="stable")
    if not np.array_equal(order, np.arange(len(order))):  # ranks in another order than processes
        position = np.full(len(order) + 1, -1, np.int32)
        position[order] = np.arange(len(order), dtype=np.int32)
        nodes = arrow.take(nodes, order)
        nodes = arrow.replace_column(nodes, "parent", position[arrow.to_numpy(nodes["parent"])])
        new_row[rows] = position[: len(rows)]
    src, dst = (new_row[trace.array(c, "edges")] for c in ("src", "dst"))
    within = (src >= 0) & (dst >= 0)
    edges = arrow.take(trace.edges, within)
    edges = arrow.replace_column(
        arrow.replace_column(edges, "src", src[within]), "dst", dst[within]
    )
    lanes = _with_ranks(arrow.take(trace.lanes, used), number)
    names = [f"{name} ({tool})" for name in lanes["name"].to_pylist()]
    return replace(
        trace,
        nodes=nodes,
        edges=edges,
        lanes=arrow.replace_column(lanes, "name", pa.array(names, pa.string())),
        series=_with_ranks(trace.series, number),
        counters=trace.counters.slice(0, 0),
    ).with_meta(ranks=tuple(ranks.values()), devices=())


def _kept_parents(trace: Trace, keep: Array) -> Array:
    """Find the innermost ancestor of each node that stays; -1 if none does."""
    parent = trace.array("parent").astype(np.int64)
    while True:
        dropped = (parent >= 0) & ~keep[parent]
        if not dropped.any():
            return parent
        parent = np.where(dropped, parent[parent], parent)


def _with_ranks(table: pa.Table, number: dict[int, int]) -> pa.Table:
    rank = arrow.to_numpy(table["rank"])
    new = rank.copy()
    for old, to in number.items():
        new[rank == old] = to
    return arrow.replace_column(table, "rank", new)
