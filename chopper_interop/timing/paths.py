"""What the time along edges of the timing model is spent on, and the path that binds a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.schemas.kinds import CALLS, EdgeKind, Kind
from chopper_interop.timing.model import EDGE_RANK

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.model import Timing

CLASSES = (
    "compute", "comm", "copy", "host", "runtime", "launch", "stream", "event", "sync", "handover",
    "dependency",
)  # fmt: skip
"""What a piece of a path is."""
CLASS = {name: number for number, name in enumerate(CLASSES)}
OF_EDGE = np.full(256, CLASS["dependency"], np.int8)
for _kind, _name in {
    EdgeKind.LAUNCH: "launch",
    EdgeKind.STREAM: "stream",
    EdgeKind.EVENT: "event",
    EdgeKind.SYNC: "sync",
    EdgeKind.HANDOVER: "handover",
    EdgeKind.COMM: "comm",
}.items():
    OF_EDGE[int(_kind)] = CLASS[_name]
OF_NODE = np.full(256, CLASS["host"], np.int8)
for _node, _name in {
    Kind.KERNEL: "compute",
    Kind.MEMSET: "compute",
    Kind.COMM: "comm",
    Kind.MEMCPY: "copy",
    **dict.fromkeys(CALLS, "runtime"),
}.items():
    OF_NODE[int(_node)] = CLASS[_name]
"""What the time along an edge is by its kind, and by the kind of the node that it is of."""
_HOST, _SIZE = CLASS["host"], len(CLASSES)
ON_LANES = (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION)
"""Kinds of edges along which nodes and threads last."""


def owners(timing: Timing) -> Array:
    """Whose own time passes along each edge: a node, -1 where it is a latency or nobody's.

    Of host threads it is the innermost node between two moments; of GPU work the work itself; of
    communication the member whose end the transfer leads to.
    """
    graph = timing.graph
    src, dst, kind = graph.src, graph.after, graph.kind
    lanes = np.zeros(256, bool)
    lanes[[int(k) for k in ON_LANES]] = True
    node = np.where(src % 2 == 0, src // 2, -1)
    ended = np.flatnonzero((src % 2 == 1) & (src < timing.meetings.start))
    node[ended] = graph.trace.array("parent")[src[ended] // 2]
    found = np.where(lanes[kind], node, np.int32(-1))
    transfer = np.flatnonzero((kind == EdgeKind.COMM) & (dst < timing.meetings.start))
    transfer = transfer[dst[transfer] % 2 == 1]
    found[transfer] = dst[transfer] // 2
    return found


def classes(timing: Timing, owner: Array) -> Array:
    """Class of the time along each edge, numbers of `CLASSES`.

    Parameters
    ----------
    timing
        The model.
    owner
        As `owners` gives it.
    """
    kind = timing.graph.kind
    found = OF_EDGE[kind]
    lanes = np.zeros(256, bool)
    lanes[[int(k) for k in ON_LANES]] = True
    on_lane = np.flatnonzero(lanes[kind])
    node = owner[on_lane]
    what = OF_NODE[timing.graph.trace.array("kind")[node]]
    found[on_lane] = np.where(node >= 0, what, CLASS["host"])
    return found


class Paths:
    """Paths of a model under any lags and delays: time on them by class.

    Parameters
    ----------
    timing
        The model.
    owner
        As `owners` gives it.
    what
        Class of the time along each edge, from 0 on; those of `CLASSES` if None.
    """

    def __init__(self, timing: Timing, owner: Array, what: Array | None = None) -> None:
        self._timing = timing
        self._class = classes(timing, owner) if what is None else what
        self._size = _SIZE if what is None else int(what.max(initial=0)) + 1
        self._into = gather.places(timing.graph.after, len(timing.graph))
        self._rank = EDGE_RANK[timing.graph.kind]

    def by_class(self, lag_ns: Array, at_ns: Array, last: int, start_ns: int) -> Array:
        """Time by class on what bound a moment; what no record explains counts as host.

        Parameters
        ----------
        lag_ns
            Least time along each edge.
        at_ns
            When each moment is under these.
        last
            The moment.
        start_ns
            Where the path begins.
        """
        first, edge = self._into
        src = self._timing.graph.src
        total = np.zeros(self._size, np.int64)
        other = _along(
            first, edge, src, lag_ns, at_ns, self._rank, self._class, last, start_ns, total
        )
        if self._size == _SIZE:
            total[_HOST] += other
        return total


@jit
def _along(  # noqa: PLR0913, PLR0917 # columns
    first: Array,
    edge: Array,
    src: Array,
    lag: Array,
    at: Array,
    rank: Array,
    what: Array,
    last: int,
    start: int,
    total: Array,
) -> int:
    """Add the time by class; what no record explains."""
    v, until = last, at[last]  # clocks may run backwards along an edge: no time counts twice
    while at[v] > start:
        best, reached = -1, 0
        for k in range(first[v], first[v + 1]):
            e = edge[k]
            time = at[src[e]] + lag[e]
            if best < 0 or time > reached or (time == reached and rank[e] < rank[best]):
                best, reached = e, time
        if best < 0:
            return int(until - start)
        v = src[best]
        since = max(min(until, at[v]), start)
        total[what[best]] += until - since
        until = since
    return 0
