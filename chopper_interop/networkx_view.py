"""A graph as networkx has it: for a few hundred thousand nodes and any algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import networkx as nx

from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.graph import Graph


def of(nodes: pd.DataFrame, graph: Graph) -> nx.DiGraph[int]:
    """The graph, with these columns as attributes of its nodes where they are not null.

    The graph itself tells `name`, `clock`, `origin_ns` and `left_out`, and in `clocks`, as JSON, how
    clocks were brought together (`Meta.clocks`).
    """
    meta = graph.trace.meta
    made: nx.DiGraph[int] = nx.DiGraph(
        name=meta.job,
        clock=meta.clock,
        origin_ns=meta.origin_ns,
        clocks=msgspec.json.encode(meta.clocks).decode(),
        left_out=graph.left_out,
    )
    made.add_nodes_from(range(len(nodes)))
    for column in nodes.columns:
        known = nodes[column].notna()
        values = nodes.loc[known, column]
        for i, value in zip(values.index.tolist(), values.tolist(), strict=True):
            made.nodes[i][str(column)] = value
    names = {int(k): k.name.lower() for k in EdgeKind}
    edges = (graph.src, graph.after, graph.kind, graph.gap_ns)
    for src, dst, kind, gap_ns in zip(*(column.tolist() for column in edges), strict=True):
        before = made.edges.get((src, dst))
        kinds = names[kind] if before is None else f"{before['kind']}+{names[kind]}"
        made.add_edge(src, dst, kind=kinds, gap_ns=gap_ns)
    return made
