"""Part of a trace: some of its nodes, under other ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace


def renumbered(trace: Trace, keep: Array, ranks: dict[int, Rank], tool: str) -> Trace:
    """Some nodes of a trace, on lanes that say which tool has them, under other ranks.

    Parameters
    ----------
    trace
        The trace.
    keep
        Which nodes stay; what they were called from is the nearest one that does.
    ranks
        Each of its ranks that has such nodes → what it is.
    tool
        What lanes say behind their names.
    """
    rows = np.flatnonzero(keep)
    new_row = np.full(len(keep) + 1, -1, np.int32)
    new_row[rows] = np.arange(len(rows), dtype=np.int32)
    used = np.unique(trace.array("lane")[rows])
    lane = np.zeros(trace.lanes.num_rows, np.int32)
    lane[used] = np.arange(len(used), dtype=np.int32)
    number = {old: rank.rank for old, rank in ranks.items()}
    nodes = arrow.take(trace.nodes, rows)
    nodes = arrow.replaced(nodes, "parent", new_row[_kept_parents(trace, keep)[rows]])
    nodes = _with_ranks(arrow.replaced(nodes, "lane", lane[arrow.numbers(nodes["lane"])]), number)
    order = np.argsort(arrow.numbers(nodes["rank"]), kind="stable")
    if not np.array_equal(order, np.arange(len(order))):  # ranks in another order than processes
        place = np.full(len(order) + 1, -1, np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        nodes = arrow.take(nodes, order)
        nodes = arrow.replaced(nodes, "parent", place[arrow.numbers(nodes["parent"])])
        new_row[rows] = place[: len(rows)]
    src, dst = (new_row[trace.array(c, "edges")] for c in ("src", "dst"))
    within = (src >= 0) & (dst >= 0)
    edges = arrow.take(trace.edges, within)
    edges = arrow.replaced(arrow.replaced(edges, "src", src[within]), "dst", dst[within])
    lanes = _with_ranks(arrow.take(trace.lanes, used), number)
    names = [f"{name} ({tool})" for name in lanes["name"].to_pylist()]
    return replace(
        trace,
        nodes=nodes,
        edges=edges,
        lanes=arrow.replaced(lanes, "name", pa.array(names, pa.string())),
        series=_with_ranks(trace.series, number),
        counters=trace.counters.slice(0, 0),
    ).with_meta(ranks=tuple(ranks.values()), devices=())


def _kept_parents(trace: Trace, keep: Array) -> Array:
    """For each node its innermost parent that stays; -1 if none does."""
    parent = trace.array("parent").astype(np.int64)
    while True:
        dropped = (parent >= 0) & ~keep[parent]
        if not dropped.any():
            return parent
        parent = np.where(dropped, parent[parent], parent)


def _with_ranks(table: pa.Table, number: dict[int, int]) -> pa.Table:
    rank = arrow.numbers(table["rank"])
    new = rank.copy()
    for old, to in number.items():
        new[rank == old] = to
    return arrow.replaced(table, "rank", new)
