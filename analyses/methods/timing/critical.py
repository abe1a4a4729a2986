"""Critical paths of windows, piece by piece, and slack and drag of all nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.timing.paths import (
    CLASS_CODE,
    CLASS_OF_EDGE,
    CLASS_OF_NODE,
    LATENCIES,
    OWN_TIME_EDGES,
    class_before,
)
from chopper_interop.arrays import Array, gather, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind
from chopper_interop.timing import loops
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans
    from chopper_interop.timing.model import Timing

_BLOCK = 1 << 20
"""Vertices whose slack is found at a time (chosen: a few megabytes for each array)."""
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


class OwnTime(NamedTuple):
    """Nodes whose own time is on a path, each once: sum of it, its first start, last end, and delays."""

    node: Array
    critical_ns: Array
    critical_start_ns: Array
    critical_end_ns: Array
    critical_delay_ns: Array


@dataclass(frozen=True)
class NodeColumns:
    """Columns of nodes by paths of windows, each of which is made when it is asked for: few nodes are on a path.

    Parameters
    ----------
    nodes
        How many nodes there are.
    slack_ns
        Of each node the least of all windows; `loops.NEVER` where it is in none.
    own_times
        Of the path of each window.
    drags
        Of each window, nodes of GPU work on its path, and their drags.
    """

    NAMES = (
        "slack_ns", "critical_start_ns", "drag_ns", "critical_ns", "critical_end_ns",
        "critical_delay_ns",
    )  # fmt: skip

    nodes: int
    slack_ns: Array
    own_times: list[OwnTime] = field(default_factory=list)
    drags: list[tuple[Array, Array]] = field(default_factory=list)

    def column(self, name: str) -> Array:
        """One of `NAMES` for all nodes, -1 where unknown; of several windows the longest time and the least slack count."""
        if name == "slack_ns":
            column = spill.empty(self.nodes, np.int64)
            column[:] = self.slack_ns
        else:
            is_least = name == "critical_start_ns"
            column = spill.full(self.nodes, loops.NEVER if is_least else -1, np.int64)
            parts = self.drags
            if name != "drag_ns":
                parts = [(own.node, getattr(own, name)) for own in self.own_times]
            for node, values in parts:
                (np.minimum if is_least else np.maximum).at(column, node, values)
        column[column == loops.NEVER] = -1
        return column


def critical_paths(timing: Timing, spans: Spans, near_ns: int) -> tuple[list[Path], NodeColumns]:
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
        `NodeColumns.NAMES` of each node.
    """
    collector = _Collector(timing)
    start, end = spans.starts(timing.at_ns), spans.ends(timing.at_ns)
    last = spans.last(timing.at_ns)
    by_start = np.argsort(start, kind="stable")
    latest = np.maximum.accumulate(end[by_start])
    first, chosen = timing.windows(start[by_start], latest)
    by_window: dict[int, Path] = {}
    for nth, k in enumerate(by_start.tolist()):
        order = chosen[first[nth] : first[nth + 1]]
        if end[k] < latest[nth]:
            order = order[timing.at_ns[order] <= end[k]]
        ends = spans.may_end_with(k)
        edges = timing.path(int(last[k]), int(start[k]))
        path = _path(timing, edges, (int(start[k]), int(end[k])), int(last[k]))
        near = collector.add(path, edges, order, ends, near_ns)
        iteration = int(spans.iteration[k])
        by_window[k] = replace(path, iteration=iteration, near_nodes=near[0], near_work_ns=near[1])
    return [by_window[k] for k in sorted(by_window)], collector.columns


class _Collector:
    """Columns of nodes, collected from one window after another."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        trace = timing.trace
        self._nodes = trace.nodes.num_rows
        self._work = is_any(trace.array("kind"), GPU_WORK)
        self._late = np.full(len(timing.graph), loops.UNCONSTRAINED)
        self._position = np.zeros(len(timing.graph), np.int32)
        self._ends = np.zeros(len(timing.graph), bool)
        self.columns = NodeColumns(self._nodes, np.full(self._nodes, loops.NEVER))

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
        src = graph.sources(edges)
        parallel_slack = loops.min_parallel_slack(
            order, graph.first, graph.after, timing.lag_ns, timing.delay_ns, at, late,
            self._ends, path.start_ns, path.end_ns, edges, src, timing.barriers.start, self._position,
        )  # fmt: skip
        dur, near_nodes, near_work_ns = graph.trace.array("dur"), 0, 0
        for begin in range(0, len(order), _BLOCK):
            some = order[begin : begin + _BLOCK]
            node_end = some[(some % 2 == 1) & (some < 2 * self._nodes)]
            node = graph.node[node_end]
            slack = np.minimum(late[node_end], path.end_ns) - at[node_end]
            least = self.columns.slack_ns
            least[node] = np.minimum(least[node], slack)
            near = node[slack <= near_ns]
            near_nodes += len(near)
            near_work_ns += int(dur[near[self._work[near]]].sum())
            late[some] = loops.UNCONSTRAINED
        late[ends] = loops.UNCONSTRAINED
        self._ends[ends] = False
        self._add_drag(edges, src, parallel_slack, path.start_ns)
        self.columns.own_times.append(_own_time(path))
        return near_nodes, near_work_ns

    def _add_drag(self, edges: Array, src: Array, parallel_slack: Array, start_ns: int) -> None:
        """Add the drag of GPU work on the path: by how much the window shrinks if it took no time.

        That is at most its own time, and at most the least slack of what runs in parallel to it.
        """
        timing, graph = self._timing, self._timing.graph
        kind, dst = graph.kind[edges], graph.after[edges]
        is_end = (dst % 2 == 1) & (dst < timing.barriers.start)
        is_work = self._work[graph.node[dst]] & (
            (kind == EdgeKind.DURATION) | ((kind == EdgeKind.COMM) & is_end)
        )
        node = np.where(src >= timing.barriers.start, graph.node[src], graph.node[dst])
        within = timing.at_ns[dst] - np.maximum(timing.at_ns[src], start_ns)
        gain = np.minimum(np.minimum(timing.lag_ns[edges], within), parallel_slack)
        self.columns.drags.append((node[is_work], gain[is_work]))


def _own_time(path: Path) -> OwnTime:
    """Own time on a path."""
    own = (path.node >= 0) & ~np.isin(path.class_code, _LATENCIES)
    start, end = path.start[own], path.end[own]
    used, code = np.unique(path.node[own], return_inverse=True)
    total, last = np.zeros(len(used), np.int64), np.full(len(used), -1, np.int64)
    first, delay = np.full(len(used), loops.NEVER), np.zeros(len(used), np.int64)
    np.add.at(total, code, end - start)
    np.minimum.at(first, code, start)
    np.maximum.at(last, code, end)
    place = gather.find(used, path.node)  # also of their pieces that are latencies
    np.add.at(delay, place[place >= 0], path.delay[place >= 0])
    return OwnTime(used, total, first, last, delay)


def _path(timing: Timing, edges: Array, window: tuple[int, int], last: int) -> Path:
    """Pieces of a path, neighbours of one node and class joined."""
    graph, trace = timing.graph, timing.trace
    src, dst, kind = graph.sources(edges), graph.after[edges], graph.kind[edges]
    node, class_code = graph.node[dst].astype(np.int64), CLASS_OF_EDGE[kind].copy()
    own_time = is_any(kind, OWN_TIME_EDGES)
    node[own_time] = _innermost(trace, src[own_time])
    # communication is of the member from whose start the transfer counts
    sent = (src >= timing.barriers.start) | (kind == EdgeKind.COMM)
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
