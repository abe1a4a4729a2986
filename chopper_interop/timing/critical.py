"""Critical paths of windows: what each consists of, and slack and drag of all nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind
from chopper_interop.timing import loops
from chopper_interop.timing.paths import CLASS, OF_EDGE, OF_NODE, ON_LANES

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.model import Timing
    from chopper_interop.timing.spans import Spans
    from chopper_interop.trace import Trace

_BETWEEN = [CLASS[c] for c in ("launch", "stream", "event", "sync", "handover")]
"""Classes of time that is no node's own."""


@dataclass(frozen=True)
class Path:
    """What the end of one window waited for, back to its start: pieces that tile it, first ones first.

    Parameters
    ----------
    iteration
        Training step; `windows.WHOLE` if it is not one.
    start_ns, end_ns
        The window.
    node
        Whose each piece is; -1 for the host before anything that was recorded.
    rank
        Of each piece.
    what
        Number of its class in `paths.CLASSES`.
    start, end, delay
        Of each piece: when it begins and ends, and what of it no least time explains.
    near, near_work_ns
        How many nodes are near-critical, and the durations of those that are GPU work.
    """

    iteration: int
    start_ns: int
    end_ns: int
    node: Array
    rank: Array
    what: Array
    start: Array
    end: Array
    delay: Array
    near: int = 0
    near_work_ns: int = 0


def paths(timing: Timing, spans: Spans, near_ns: int) -> tuple[list[Path], dict[str, Array]]:
    """The path of each window, and columns of all nodes.

    Parameters
    ----------
    timing
        The model.
    spans
        The windows, over all ranks of the model.
    near_ns
        Nodes with no more slack than this are near-critical.

    Returns
    -------
    paths
        In order of their windows.
    columns
        `critical_ns`, `critical_start_ns`, `critical_end_ns`, `slack_ns` and `drag_ns` of each node;
        -1 where nothing is known.
    """
    columns = _Columns(timing)
    start, end = spans.starts(timing.at_ns), spans.ends(timing.at_ns)
    last = spans.last(timing.at_ns)
    by_start = np.argsort(start, kind="stable")
    first, chosen = timing.windows(start[by_start], np.maximum.accumulate(end[by_start]))
    bounds = np.searchsorted(spans.end_of, np.arange(len(spans) + 1))
    found: dict[int, Path] = {}
    for place, k in enumerate(by_start.tolist()):
        order = chosen[first[place] : first[place + 1]]
        order = order[timing.at_ns[order] <= end[k]]
        ends = spans.end[bounds[k] : bounds[k + 1]]
        edges = timing.path(int(last[k]), int(start[k]))
        path = _path(timing, edges, (int(start[k]), int(end[k])), int(last[k]))
        near = columns.note(path, edges, order, ends, near_ns)
        iteration = int(spans.iteration[k])
        found[k] = replace(path, iteration=iteration, near=near[0], near_work_ns=near[1])
    return [found[k] for k in sorted(found)], columns.known()


class _Columns:
    """What windows tell of nodes, one window after another."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        trace = timing.graph.trace
        self._nodes = trace.nodes.num_rows
        self._work = is_any(trace.array("kind"), GPU_WORK)
        self._late = np.full(len(timing.graph), loops.AT_ANY_TIME)
        self._place = np.zeros(len(timing.graph), np.int64)
        self._ends = np.zeros(len(timing.graph), bool)
        self._least = {
            name: np.full(self._nodes, loops.NEVER) for name in ("slack_ns", "critical_start_ns")
        }
        self._most = {
            name: np.full(self._nodes, -1, np.int64)
            for name in ("drag_ns", "critical_ns", "critical_end_ns")
        }

    def note(
        self, path: Path, edges: Array, order: Array, ends: Array, near_ns: int
    ) -> tuple[int, int]:
        """Take up a window: its path, its moments, and those that it may end with.

        Returns
        -------
        nodes, work_ns
            How many nodes are near-critical, and the durations of those that are GPU work.
        """
        timing, graph = self._timing, self._timing.graph
        late, at = self._late, timing.at_ns
        timing.latest(order, ends, path.end_ns, late)
        self._ends[ends] = True
        beside = loops.least_beside(
            order, graph.first, graph.after, timing.lag_ns, timing.delay_ns, at, late,
            self._ends, path.end_ns, edges, graph.src, timing.meets, self._place,
        )  # fmt: skip
        moment = order[(order % 2 == 1) & (order < 2 * self._nodes)]
        node = graph.node[moment]
        slack = np.minimum(late[moment], path.end_ns) - at[moment]
        self._least["slack_ns"][node] = np.minimum(self._least["slack_ns"][node], slack)
        self._drag(edges, beside, path.start_ns)
        self._pieces(path)
        late[order] = loops.AT_ANY_TIME
        late[ends] = loops.AT_ANY_TIME
        self._ends[ends] = False
        near = node[slack <= near_ns]
        work = near[self._work[near]]
        return len(near), int(graph.trace.array("dur")[work].sum())

    def _drag(self, edges: Array, beside: Array, start_ns: int) -> None:
        """Of GPU work on the path."""
        timing, graph = self._timing, self._timing.graph
        kind, src, dst = graph.kind[edges], graph.src[edges], graph.after[edges]
        lasting = self._work[graph.node[dst]] & (
            (kind == EdgeKind.DURATION) | ((kind == EdgeKind.COMM) & (dst % 2 == 1))
        )
        node = np.where(timing.meets[src], graph.node[src], graph.node[dst])
        within = timing.at_ns[dst] - np.maximum(timing.at_ns[src], start_ns)
        gain = np.minimum(np.minimum(timing.lag_ns[edges], within), beside)
        np.maximum.at(self._most["drag_ns"], node[lasting], gain[lasting])

    def _pieces(self, path: Path) -> None:
        own = (path.node >= 0) & ~np.isin(path.what, _BETWEEN)
        node, start, end = path.node[own], path.start[own], path.end[own]
        used, code = np.unique(node, return_inverse=True)
        total = np.zeros(len(used), np.int64)
        np.add.at(total, code, end - start)
        most = self._most["critical_ns"]
        most[used] = np.maximum(most[used], total)
        np.minimum.at(self._least["critical_start_ns"], node, start)
        np.maximum.at(self._most["critical_end_ns"], node, end)

    def known(self) -> dict[str, Array]:
        """All columns, -1 where nothing is known."""
        least = {n: np.where(v == loops.NEVER, -1, v) for n, v in self._least.items()}
        return least | self._most


def _path(timing: Timing, edges: Array, window: tuple[int, int], last: int) -> Path:
    """Pieces of a path, neighbours of one node and class joined."""
    graph, trace = timing.graph, timing.graph.trace
    src, dst, kind = graph.src[edges], graph.after[edges], graph.kind[edges]
    node, what = graph.node[dst].astype(np.int64), OF_EDGE[kind].copy()
    lanes = is_any(kind, ON_LANES)
    node[lanes] = _innermost(trace, src[lanes])
    sent = timing.meets[src] | (kind == EdgeKind.COMM)  # whose start the transfer counts from
    node[sent] = graph.node[src[sent]]
    inside = lanes & (node >= 0)
    what[inside] = OF_NODE[trace.array("kind")[node[inside]]]
    what[lanes & (node < 0)] = CLASS["host"]
    rank = trace.array("rank")[graph.node[np.where(sent, src, dst)]]
    begin = int(timing.at_ns[src[0]]) if edges.size else window[1]
    first = graph.node[src[0]] if edges.size else graph.node[last]
    # before the first the host of its rank had not come; where clocks run backwards, what is
    # behind counts
    end = np.append(begin, timing.at_ns[dst])
    start = np.append(window[0], np.maximum(timing.at_ns[src], window[0]))
    start = np.minimum.accumulate(start[::-1])[::-1]
    end = np.append(start[1:], window[1])
    node, what = np.append(-1, node), np.append(CLASS["host"], what)
    rank = np.append(trace.array("rank")[first], rank)
    delay = np.minimum(np.append(0, timing.delay_ns[dst]), end - start)
    lasts = end > start
    node, what, rank, start, delay = (c[lasts] for c in (node, what, rank, start, delay))
    new = np.ones(len(node), bool)
    new[1:] = (np.diff(node) != 0) | (np.diff(what) != 0) | (np.diff(rank) != 0)
    at = np.flatnonzero(new)
    total = np.add.reduceat(delay, at) if at.size else delay
    stop = np.append(start[at][1:], window[1])[: len(at)]
    return Path(-1, *window, node[at], rank[at], what[at], start[at], stop, total)


def _innermost(trace: Trace, moment: Array) -> Array:
    """What a lane is in behind each moment: the node that starts there, or what is around the one that ends."""
    node = moment // 2
    return np.where(moment % 2 == 0, node, trace.array("parent")[node]).astype(np.int64)
