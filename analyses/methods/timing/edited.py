"""The timing model of a job with other dependencies: edges left out, new vertices and edges."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.timing import loops
from chopper_interop.timing.model import EDGE_PRIORITY, Timing


class NewEdges(NamedTuple):
    """Edges to add: sources, destinations, kinds and least times, one value each."""

    src: Array
    dst: Array
    kind: Array
    lag_ns: Array


def edited(
    timing: Timing, lag_ns: Array, delay_ns: Array, keep: Array, new: NewEdges, node: Array
) -> Timing | None:
    """Build the model of a job of which some edges are others.

    Parameters
    ----------
    timing
        The model of the job as it was.
    lag_ns, delay_ns
        Lags of its edges and delays of its vertices.
    keep
        Mask of the edges that stay.
    new
        Edges to add. New vertices are those from ``len(timing.graph)`` on.
    node
        Node of each new vertex.

    Returns
    -------
    Timing or None
        A model whose measured times are those that the job would have; None if something would wait
        for itself.
    """
    graph = timing.graph
    size = len(graph) + len(node)
    src, dst, kind, lag = (
        np.concatenate([old[keep], added.astype(old.dtype)])
        for old, added in zip((graph.src, graph.after, graph.kind, lag_ns), new, strict=True)
    )
    first, edge = gather.group_rows(src, size, np.int32)
    after = dst[edge].astype(np.int32, copy=False)
    order = gather.topological_order(first, after)
    if len(order) < size:
        return None
    kind, lag = kind[edge], lag[edge]
    release = np.concatenate([timing.at_ns, np.zeros(len(node), np.int64)])
    delay = np.concatenate([delay_ns, np.zeros(len(node), np.int64)])
    at = loops.earliest_times(order, first, after, lag, delay, release)
    nodes = np.concatenate([graph.node, node.astype(graph.node.dtype)])
    arranged = replace(
        graph, node=nodes, at_ns=at, first=first, after=after, kind=kind, order=order
    )
    binding, delay = loops.find_binding(at, first, after, lag, EDGE_PRIORITY[kind])
    return Timing(timing.trace, arranged, lag, binding, delay, timing.populations)
