"""Arrows: ids that two slices share, for the edges of a trace and along its critical path.

Perfetto lets an arrow point forward in time, and each needs an id of its own: one that several slices
carry would lead from each of them to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays.members import is_any
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

ARROW_KINDS = (
    EdgeKind.LAUNCH,
    EdgeKind.FWDBWD,
    EdgeKind.EVENT,
    EdgeKind.SYNC,
    EdgeKind.COMM,
    EdgeKind.DATA,
    EdgeKind.HANDOVER,
)
"""Edges that are drawn; calls and orders can be seen without."""


class Flows:
    """Flow ids of a trace's edges and critical paths.

    Parameters
    ----------
    trace
        Any trace.
    base
        Number before the first track id of the file.
    paths
        Nodes of each critical path that is drawn.
    """

    def __init__(self, trace: Trace, base: int, paths: Sequence[Array]) -> None:
        edges = np.flatnonzero(has_arrow(trace))
        kind, src, dst = (trace.array(c, "edges")[edges] for c in ("kind", "src", "dst"))
        key = kind.astype(np.int64) * 2 + _is_reversed(trace, src, dst)
        order = np.argsort(key, kind="stable")
        self._next = (base << 31) + 1
        ids = self.further(len(key))
        self.runs = _runs(ids, key[order])
        """First id, number, kind and direction of consecutive ids; see `ChopperMetadata.flows`."""
        self.of_paths = [self.further(len(nodes)) for nodes in paths]
        """Ids of each path's nodes: arrows from the nodes to their slices on the path."""
        # both ends of an edge carry its id: sorted by node, those of node i are first[i]:first[i + 1]
        node = np.concatenate([src[order], dst[order], *paths])
        by_node = np.argsort(node, kind="stable")
        first = np.searchsorted(node[by_node], np.arange(trace.nodes.num_rows + 1))
        self.of_nodes = first, np.concatenate([ids, ids, *self.of_paths])[by_node]
        """For each node where its flow ids begin, and the ids."""

    def further(self, n: int) -> Array:
        """Return n ids that no slice has."""
        first, self._next = self._next, self._next + n
        return np.arange(first, self._next, dtype=np.int64)

    def chain(self, n: int) -> tuple[Array, Array]:
        """Return ids by which n slices lead from each to the next: where those of each begin, and all."""
        ids = self.further(max(n - 1, 0))
        # slice k carries the id of the arrow from slice k - 1, and then that of the arrow from itself
        return np.clip(2 * np.arange(n + 1) - 1, 0, 2 * len(ids)), np.repeat(ids, 2)


def _runs(ids: Array, key: Array) -> list[tuple[int, int, int, int]]:
    keys, at, count = np.unique(key, return_index=True, return_counts=True)
    return [
        (int(ids[a]), n, k // 2, k % 2)
        for k, a, n in zip(keys.tolist(), at.tolist(), count.tolist(), strict=True)
    ]


def has_arrow(trace: Trace) -> Array:
    """Mark the edges that have arrows: of dependencies of no kind, those between tracks only."""
    kind, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
    lane = trace.array("lane")
    between = (kind == EdgeKind.DEPENDENCY) & (lane[src] != lane[dst])
    return np.asarray(is_any(kind, ARROW_KINDS) | between)


def _is_reversed(trace: Trace, src: Array, dst: Array) -> Array:
    """Mark the edges whose source is read after their target: by time, then position in the file.

    Perfetto lets arrows point forward in this order, so the metadata notes those that do not.
    """
    later, equal = np.zeros(len(src), np.bool_), np.ones(len(src), np.bool_)
    for column in ("ts", "rank", "lane"):
        a, b = (trace.array(column)[node] for node in (src, dst))
        later |= equal & (a > b)
        equal &= a == b
    return later | (equal & (src > dst))
