"""Critical paths of windows, piece by piece, and slack and drag of all nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.timing.paths import (
    CLASS_CODE,
    CLASS_OF_EDGE,
    CLASS_OF_NODE,
    LATENCIES,
    OWN_TIME_EDGES,
    class_before,
)
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind
from chopper_interop.timing import loops
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans
    from chopper_interop.timing.model import Timing

_LATENCIES = [CLASS_CODE[name] for name in LATENCIES.values()]


@dataclass(frozen=True)
class Path:
    """Binding path of one window from its start to its end: pieces that tile it, first ones first.

    Parameters
    ----------
    iteration
        Training step; `windows.NO_STEP` if it is not one.
    start_ns, end_ns
        The window.
    node
        Node of each piece; -1 before the first of which the path knows.
    rank
        Of each piece.
    class_code
        Number of its class in `paths.CLASSES`.
    start, end, delay
        Of each piece: when it begins and ends, and how much of it no least time explains.
    near_nodes, near_work_ns
        Count of near-critical nodes, and the durations of those that are GPU work.
    """

    iteration: int
    start_ns: int
    end_ns: int
    node: Array
    rank: Array
    class_code: Array
    start: Array
    end: Array
    delay: Array
    near_nodes: int = 0
    near_work_ns: int = 0


def critical_paths(
    timing: Timing, spans: Spans, near_ns: int
) -> tuple[list[Path], dict[str, Array]]:
    """Critical path of each window, and columns of all nodes.

    Parameters
    ----------
    spans
        The windows, over all ranks of the model.
    near_ns
        Nodes with no more slack than this are near-critical.

    Returns
    -------
    paths
        In order of their windows.
    columns
        `critical_ns`, `critical_start_ns`, `critical_end_ns`, `critical_delay_ns`, `slack_ns` and
        `drag_ns` of each node; -1 where unknown.
    """
    columns = _NodeColumns(timing)
    start, end = spans.starts(timing.at_ns), spans.ends(timing.at_ns)
    last = spans.last(timing.at_ns)
    by_start = np.argsort(start, kind="stable")
    first, chosen = timing.windows(start[by_start], np.maximum.accumulate(end[by_start]))
    by_window: dict[int, Path] = {}
    for nth, k in enumerate(by_start.tolist()):
        order = chosen[first[nth] : first[nth + 1]]
        order = order[timing.at_ns[order] <= end[k]]
        ends = spans.may_end_with(k)
        edges = timing.path(int(last[k]), int(start[k]))
        path = _path(timing, edges, (int(start[k]), int(end[k])), int(last[k]))
        near = columns.add(path, edges, order, ends, near_ns)
        iteration = int(spans.iteration[k])
        by_window[k] = replace(path, iteration=iteration, near_nodes=near[0], near_work_ns=near[1])
    return [by_window[k] for k in sorted(by_window)], columns.columns()


class _NodeColumns:
    """Columns of nodes, collected from one window after another."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        trace = timing.trace
        self._nodes = trace.nodes.num_rows
        self._work = is_any(trace.array("kind"), GPU_WORK)
        self._late = np.full(len(timing.graph), loops.UNCONSTRAINED)
        self._position = np.zeros(len(timing.graph), np.int64)
        self._ends = np.zeros(len(timing.graph), bool)
        self._min = {
            name: np.full(self._nodes, loops.NEVER) for name in ("slack_ns", "critical_start_ns")
        }
        self._max = {
            name: np.full(self._nodes, -1, np.int64)
            for name in ("drag_ns", "critical_ns", "critical_end_ns", "critical_delay_ns")
        }

    def add(
        self, path: Path, edges: Array, order: Array, ends: Array, near_ns: int
    ) -> tuple[int, int]:
        """Add a window: its path, its vertices in order, and those that it may end with.

        Returns
        -------
        nodes, work_ns
            Count of near-critical nodes, and the durations of those that are GPU work.
        """
        timing, graph = self._timing, self._timing.graph
        late, at = self._late, timing.at_ns
        timing.write_latest_times(order, ends, path.end_ns, late)
        self._ends[ends] = True
        parallel_slack = loops.min_parallel_slack(
            order, graph.first, graph.after, timing.lag_ns, timing.delay_ns, at, late,
            self._ends, path.end_ns, edges, graph.src, timing.is_barrier, self._position,
        )  # fmt: skip
        node_end = order[(order % 2 == 1) & (order < 2 * self._nodes)]
        node = graph.node[node_end]
        slack = np.minimum(late[node_end], path.end_ns) - at[node_end]
        self._min["slack_ns"][node] = np.minimum(self._min["slack_ns"][node], slack)
        self._add_drag(edges, parallel_slack, path.start_ns)
        self._add_pieces(path)
        late[order] = loops.UNCONSTRAINED
        late[ends] = loops.UNCONSTRAINED
        self._ends[ends] = False
        near = node[slack <= near_ns]
        work = near[self._work[near]]
        return len(near), int(graph.trace.array("dur")[work].sum())

    def _add_drag(self, edges: Array, parallel_slack: Array, start_ns: int) -> None:
        """Add the drag of GPU work on the path: by how much the window shrinks if it took no time.

        That is at most its own time, and at most the least slack of what runs in parallel to it.
        """
        timing, graph = self._timing, self._timing.graph
        kind, src, dst = graph.kind[edges], graph.src[edges], graph.after[edges]
        is_work = self._work[graph.node[dst]] & (
            (kind == EdgeKind.DURATION) | ((kind == EdgeKind.COMM) & (dst % 2 == 1))
        )
        node = np.where(timing.is_barrier[src], graph.node[src], graph.node[dst])
        within = timing.at_ns[dst] - np.maximum(timing.at_ns[src], start_ns)
        gain = np.minimum(np.minimum(timing.lag_ns[edges], within), parallel_slack)
        np.maximum.at(self._max["drag_ns"], node[is_work], gain[is_work])

    def _add_pieces(self, path: Path) -> None:
        """Add each node's own time on the path; of several windows the longest counts."""
        own = (path.node >= 0) & ~np.isin(path.class_code, _LATENCIES)
        node, start, end = path.node[own], path.start[own], path.end[own]
        used, code = np.unique(node, return_inverse=True)
        total = np.zeros(len(used), np.int64)
        np.add.at(total, code, end - start)
        longest = self._max["critical_ns"]
        longest[used] = np.maximum(longest[used], total)
        np.minimum.at(self._min["critical_start_ns"], node, start)
        np.maximum.at(self._max["critical_end_ns"], node, end)
        delay = np.zeros(self._nodes, np.int64)
        np.add.at(delay, path.node[path.node >= 0], path.delay[path.node >= 0])
        delays = self._max["critical_delay_ns"]
        delays[used] = np.maximum(delays[used], delay[used])

    def columns(self) -> dict[str, Array]:
        """All columns, -1 where unknown."""
        known_min = {n: np.where(v == loops.NEVER, -1, v) for n, v in self._min.items()}
        return known_min | self._max


def _path(timing: Timing, edges: Array, window: tuple[int, int], last: int) -> Path:
    """Pieces of a path, neighbours of one node and class joined."""
    graph, trace = timing.graph, timing.trace
    src, dst, kind = graph.src[edges], graph.after[edges], graph.kind[edges]
    node, class_code = graph.node[dst].astype(np.int64), CLASS_OF_EDGE[kind].copy()
    own_time = is_any(kind, OWN_TIME_EDGES)
    node[own_time] = _innermost(trace, src[own_time])
    # communication is of the member from whose start the transfer counts
    sent = timing.is_barrier[src] | (kind == EdgeKind.COMM)
    node[sent] = graph.node[src[sent]]
    inside = own_time & (node >= 0)
    class_code[inside] = CLASS_OF_NODE[trace.array("kind")[node[inside]]]
    class_code[own_time & (node < 0)] = CLASS_CODE["host"]
    rank = trace.array("rank")[graph.node[np.where(sent, src, dst)]]
    begin = int(timing.at_ns[src[0]]) if edges.size else window[1]
    first = graph.node[src[0]] if edges.size else graph.node[last]
    # where clocks run backwards along an edge, the later edge counts, so that pieces tile the window
    end = np.append(begin, timing.at_ns[dst])
    start = np.append(window[0], np.maximum(timing.at_ns[src], window[0]))
    start = np.minimum.accumulate(start[::-1])[::-1]
    end = np.append(start[1:], window[1])
    node, class_code = np.append(-1, node), np.append(class_before(trace, int(first)), class_code)
    rank = np.append(trace.array("rank")[first], rank)
    delay = np.minimum(np.append(0, timing.delay_ns[dst]), end - start)
    delay[0] = 0 if class_code[0] == CLASS_CODE["host"] else end[0] - start[0]
    lasts = end > start
    columns = node, class_code, rank, start, delay
    node, class_code, rank, start, delay = (column[lasts] for column in columns)
    new = np.ones(len(node), bool)
    new[1:] = (np.diff(node) != 0) | (np.diff(class_code) != 0) | (np.diff(rank) != 0)
    at = np.flatnonzero(new)
    total = np.add.reduceat(delay, at)
    stop = np.append(start[at][1:], window[1])[: len(at)]
    return Path(-1, *window, node[at], rank[at], class_code[at], start[at], stop, total)


def _innermost(trace: Trace, endpoint: Array) -> Array:
    """Innermost node behind each endpoint: the one that starts there, or the parent of the one that ends."""
    node = endpoint // 2
    return np.where(endpoint % 2 == 0, node, trace.array("parent")[node]).astype(np.int64)
