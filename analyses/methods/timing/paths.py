"""Classes of the time along edges of the timing model, and binding paths under any lags."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind
from chopper_interop.timing.model import EDGE_PRIORITY, Timing
from chopper_interop.trace import Trace

CLASSES = (
    "compute", "comm", "copy", "host", "runtime", "launch", "stream", "event", "sync", "handover",
    "dependency",
)  # fmt: skip
"""Classes of a piece of a path."""
CLASS_GROUPS = {
    "compute": ("compute",), "comm": ("comm",), "copy": ("copy",),
    "host": ("host", "runtime", "handover"),
    "wait": ("launch", "stream", "event", "sync", "dependency"),
}  # fmt: skip
"""Classes put together where a line has no room for all: GPU work, the host's, latencies and waits."""
CLASS_CODE = {name: number for number, name in enumerate(CLASSES)}
CLASS_OF_EDGE = np.full(256, CLASS_CODE["dependency"], np.int8)
LATENCIES = {
    EdgeKind.LAUNCH: "launch", EdgeKind.STREAM: "stream", EdgeKind.EVENT: "event",
    EdgeKind.SYNC: "sync", EdgeKind.POLL: "sync", EdgeKind.HANDOVER: "handover",
}  # fmt: skip
"""Classes of waits and latencies by the kind of edge: their time is no node's own."""
for _kind, _name in {**LATENCIES, EdgeKind.COMM: "comm"}.items():
    CLASS_OF_EDGE[int(_kind)] = CLASS_CODE[_name]
CLASS_OF_NODE = np.full(256, CLASS_CODE["host"], np.int8)
for _node, _name in {
    Kind.KERNEL: "compute",
    Kind.MEMSET: "compute",
    Kind.COMM: "comm",
    Kind.MEMCPY: "copy",
    **dict.fromkeys(CALLS, "runtime"),
}.items():
    CLASS_OF_NODE[int(_node)] = CLASS_CODE[_name]
"""Class of the time along an edge by its kind, and by the kind of the node whose time it is."""
_SIZE = len(CLASSES)
OWN_TIME_EDGES = (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION)
"""Kinds of edges along which a node's or thread's own time passes; others are waits and latencies."""
MAX_TOTAL_NS = 2.0**62
"""Largest sum of all times, half of what 64 bits hold, so that no start or end overflows."""


def rounded(ns: Array) -> Array:
    """Round times to integers; those beyond 64 bits become long enough to be refused."""
    return np.minimum(np.rint(ns), MAX_TOTAL_NS).astype(np.int64)


def class_before(trace: Trace, node: int) -> int:
    """Class of the time before the node with which a path begins: of its host, or unknown where that is GPU work."""
    return CLASS_CODE["stream" if trace.array("kind")[node] in GPU_WORK else "host"]


def edge_owners(timing: Timing) -> Array:
    """Node whose own time passes along each edge of a model; see `owners`."""
    graph = timing.graph
    return owners(timing.trace, graph.src, graph.after, graph.kind)


def owners(trace: Trace, src: Array, dst: Array, kind: Array) -> Array:
    """Node whose own time passes along each edge; -1 where it is a latency or of no node.

    Of host threads it is the innermost node between two endpoints; of GPU work the work itself; of
    communication the member whose end the transfer leads to.

    Parameters
    ----------
    trace
        The trace of which vertices 2i and 2i + 1 are start and end of node i.
    src, dst, kind
        The edges.
    """
    endpoints = 2 * trace.nodes.num_rows
    # behind a start (2i) a lane is in node i, behind an end (2i + 1) in the parent of node i
    node = np.where(src % 2 == 0, src // 2, -1)
    ended = np.flatnonzero((src % 2 == 1) & (src < endpoints))
    node[ended] = trace.array("parent")[src[ended] // 2]
    owner = np.where(is_any(kind, OWN_TIME_EDGES), node, np.int32(-1))
    transfer = np.flatnonzero((kind == EdgeKind.COMM) & (dst < endpoints))
    transfer = transfer[dst[transfer] % 2 == 1]
    owner[transfer] = dst[transfer] // 2
    return owner


def edge_classes(timing: Timing, owner: Array) -> Array:
    """Class of the time along each edge, numbers of `CLASSES`.

    Parameters
    ----------
    owner
        As `edge_owners` gives it.
    """
    kind = timing.graph.kind
    code = CLASS_OF_EDGE[kind]
    own_time = np.flatnonzero(is_any(kind, OWN_TIME_EDGES))
    node = owner[own_time]
    of_node = CLASS_OF_NODE[timing.trace.array("kind")[node]]
    code[own_time] = np.where(node >= 0, of_node, CLASS_CODE["host"])
    return code


class BindingPaths:
    """Binding paths of a model under any lags and delays: time on them by class.

    Parameters
    ----------
    owner
        As `edge_owners` gives it.
    code
        Class of the time along each edge, from 0 on; those of `CLASSES` if None.
    """

    def __init__(self, timing: Timing, owner: Array, code: Array | None = None) -> None:
        self._timing = timing
        self._class = edge_classes(timing, owner) if code is None else code
        self._size = _SIZE if code is None else int(code.max(initial=0)) + 1
        self._entering = gather.group_rows(timing.graph.after, len(timing.graph), np.int32)
        self._priority = EDGE_PRIORITY[timing.graph.kind]

    def by_class(self, lag_ns: Array, at_ns: Array, last: int, start_ns: int) -> Array:
        """Time by class on the binding path of a vertex; that before its first edge is of `class_before`.

        Parameters
        ----------
        lag_ns
            Least time along each edge.
        at_ns
            Time of each vertex under these.
        last
            The vertex.
        start_ns
            Where the path begins.
        """
        total, unexplained, _, first = self._along(lag_ns, at_ns, last, start_ns)
        if self._size == _SIZE:
            node = int(self._timing.graph.node[first])
            total[class_before(self._timing.trace, node)] += unexplained
        return total

    def delay_ns(self, lag_ns: Array, at_ns: Array, last: int, start_ns: int) -> int:
        """Sum of the delays on the binding path of a vertex; parameters as of `by_class`.

        They are part of the time of the classes whose edges they follow.
        """
        return self._along(lag_ns, at_ns, last, start_ns)[2]

    def _along(
        self, lag_ns: Array, at_ns: Array, last: int, start_ns: int
    ) -> tuple[Array, int, int, int]:
        """Time by class along a binding path, time before its first edge, delays, and its first vertex."""
        first, edge = self._entering
        src = self._timing.graph.src
        total = np.zeros(self._size, np.int64)
        unexplained, delay, vertex = _add_along_path(
            first, edge, src, lag_ns, at_ns, self._priority, self._class, last, start_ns, total
        )
        return total, int(unexplained), int(delay), int(vertex)


@jit
def _add_along_path(  # noqa: PLR0913, PLR0917 # columns
    first: Array,
    edge: Array,
    src: Array,
    lag: Array,
    at: Array,
    priority: Array,
    code: Array,
    last: int,
    start: int,
    total: Array,
) -> tuple[int, int, int]:
    """Add the time of each class to `total`; return the time before the first edge, all delays, and the first vertex.

    Compiled: each step back depends on which edge into the vertex is reached last there.
    """
    delay = 0
    v, until = last, at[last]  # clocks may run backwards along an edge: no time counts twice
    while at[v] > start:
        best, reached = -1, 0
        for k in range(first[v], first[v + 1]):
            e = edge[k]
            time = at[src[e]] + lag[e]
            if best < 0 or time > reached or (time == reached and priority[e] < priority[best]):
                best, reached = e, time
        if best < 0:
            return until - start, delay, v
        late = at[v] - reached
        v = src[best]
        since = max(min(until, at[v]), start)
        total[code[best]] += until - since
        delay += min(late, until - since)
        until = since
    return 0, delay, v
