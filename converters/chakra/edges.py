"""Dependencies among the nodes of an ET."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.decode import EtFile

DANGLING = Fault.loss(
    "et-dependency-dangling", "Dependencies on nodes that are not in the file were left out."
)
CIRCULAR = Fault.loss("et-dependency-circular", "Dependencies that form cycles were left out.")
ID_TWICE = Fault.error(
    "et-id-twice",
    "Nodes with the id of an earlier node: nodes that depend on this id depend on the first of them "
    "here, and on the last in simulators.",
)


def dependencies(et: EtFile) -> tuple[Array, Array]:
    """Rows of (node that must end, node that waits for it), data dependencies before control.

    Dependencies on ids that do not exist are left out; of nodes with the same id the first counts.
    """
    rows = np.arange(len(et.id))
    sides = [
        (_rows_of(et.id, ids), np.repeat(rows, np.diff(first)))
        for ids, first in ((et.data, et.data_first), (et.ctrl, et.ctrl_first))
    ]
    src, dst = (np.concatenate(side) for side in zip(*sides, strict=True))
    exists = src >= 0
    return (src, dst) if exists.all() else (src[exists], dst[exists])


def _rows_of(ids: Array, wanted: Array) -> Array:
    """Row of each wanted id, the first of equal ones; -1 where there is none."""
    # stable, so that the leftmost of equal ids is the first in the file
    order = np.argsort(ids, kind="stable")
    return np.append(order, -1)[gather.find(ids[order], wanted)]


def edges(et: EtFile, keep: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Dependencies among the nodes in rows `keep`, by their positions there, without cycles."""
    n = len(keep)
    issues.add(ID_TWICE, n - len(gather.unique(et.id[keep])))
    src, dst = dependencies(et)
    issues.add(DANGLING, len(et.data) + len(et.ctrl) - len(src))
    position = np.full(len(et.id), -1, np.int64)
    position[keep] = np.arange(n)
    src, dst = position[src], position[dst]
    inside = (src >= 0) & (dst >= 0)
    # one number for each pair, so that a dependency that is listed twice counts once
    pairs = gather.unique(src[inside] * max(n, 1) + dst[inside])
    src, dst = pairs // max(n, 1), pairs % max(n, 1)
    # nodes on a cycle are behind one in both directions; without the edges among these that point
    # backward, what is left of each cycle points forward
    on_circle = _behind_circles(src, dst, n) & _behind_circles(dst, src, n)
    circular = (src >= dst) & on_circle[src] & on_circle[dst]
    issues.add(CIRCULAR, np.count_nonzero(circular))
    return src[~circular], dst[~circular]


class ReadNodes(NamedTuple):
    """Columns of the nodes that edges are between."""

    kind: Array
    lane: Array
    ts: Array
    dur: Array
    correlation: Array


Edges = tuple[Array, Array, EdgeKind]
"""Rows that edges of one kind lead from and to."""


def edges_of_nodes(nodes: ReadNodes, dependencies: tuple[Array, Array]) -> list[Edges]:
    """Launches and dependencies."""
    launched = _launches(nodes)
    ends = _of_whole_operations(nodes, dependencies, launched)
    return [(*launched, EdgeKind.LAUNCH), (*ends, EdgeKind.DEPENDENCY)]


def _launches(nodes: ReadNodes) -> tuple[Array, Array]:
    """Calls and the GPU work that they launched, by correlation id: of several calls with one id the first.

    In simulators work waits for the end of the call's first piece, if its stream does not make it wait longer. As in the
    job's own trace, waits of hosts are for the work that their calls launched.
    """
    known = nodes.correlation > 0
    calls = np.flatnonzero(known & is_any(nodes.kind, CALLS))
    work = np.flatnonzero(known & is_any(nodes.kind, GPU_WORK))
    at = _rows_of(nodes.correlation[calls], nodes.correlation[work])
    return calls[at[at >= 0]], work[at >= 0]


def _of_whole_operations(
    nodes: ReadNodes, ends: tuple[Array, Array], launched: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Dependencies without those that hold for pieces of host operations alone, where operations have pieces.

    For simulators an operation that calls others is the piece before the first of these; read back it lasts until
    all of them, and pieces behind them, have ended. So what depends on it and begins before that waits for its
    start; that it is called or launched says so already. Pieces on one slot follow each other.
    """
    src, dst = ends
    kind, lane, ts, end = nodes.kind, nodes.lane, nodes.ts, nodes.ts + nodes.dur
    piece = kind == Kind.HOST_GAP
    if not piece.any():
        return ends
    call_of = np.full(len(kind), -1)
    call_of[launched[1]] = launched[0]
    operation = ~piece & ~is_any(kind, GPU_WORK)
    within = operation[dst] & (ts[dst] >= ts[src]) & (end[dst] <= end[src])
    begun = operation[src] & ((end[src] > ts[dst]) | within)
    keep = ~begun & (call_of[dst] != src) & ~(piece[dst] & (lane[src] == lane[dst]))
    return src[keep], dst[keep]


def _behind_circles(src: Array, dst: Array, n: int) -> Array:
    """Mask of the nodes on cycles, and of all behind them."""
    return gather.blocked_by_cycles(*gather.group_values(src, dst, n))
