"""View of a graph as a networkx graph: any algorithm, for up to some hundred thousand nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import networkx as nx
import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.schemas.kinds import EdgeKind, Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.graph import Graph


def to_networkx(nodes: pa.Table, graph: Graph) -> nx.DiGraph[int]:
    """Convert a graph; known values of the columns of `nodes` become attributes, integers as integers.

    Attributes of the graph itself are `name`, `clock`, `origin_ns`, `left_out` and, as JSON, `clocks`:
    how the sources' clocks were aligned (`Meta.clocks`).
    """
    meta = graph.trace.meta
    result: nx.DiGraph[int] = nx.DiGraph(
        name=meta.job,
        clock=meta.clock,
        origin_ns=meta.origin_ns,
        clocks=msgspec.json.encode(meta.clocks).decode(),
        left_out=graph.left_out,
    )
    result.add_nodes_from(range(nodes.num_rows))
    kinds_of_nodes = {int(k): k.name.lower() for k in Kind}
    for name, chunks in zip(nodes.column_names, nodes.columns, strict=True):
        column = arrow.single_chunk(chunks)
        known = np.flatnonzero(arrow.is_valid(column)).tolist()
        for i, value in zip(known, column.drop_null().to_pylist(), strict=True):
            result.nodes[i][name] = kinds_of_nodes[value] if name == "kind" else value
    names = {int(k): k.name.lower() for k in EdgeKind}
    edges = (graph.src, graph.after, graph.kind, graph.gap_ns)
    for src, dst, kind, gap_ns in zip(*(column.tolist() for column in edges), strict=True):
        before = result.edges.get((src, dst))
        kinds = names[kind] if before is None else f"{before['kind']}+{names[kind]}"
        result.add_edge(src, dst, kind=kinds, gap_ns=gap_ns)
    return result
