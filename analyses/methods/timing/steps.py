"""The timing model cut at the borders of training steps: each step as a graph of its own.

What happens in a step waits for what happened before it too: its streams still work for the step
before, its threads come from there. That state at the border is kept as times since the step's start:
edges from a source that each step has::

    step 3              | step 4
    o---5-->o----20-----|-->o--3-->o      measured: 12 of the 20 lie behind the border
                        S--12->o          in the graph of step 4: an edge from its source S

What waits for nothing, or only for what was over before the step began, waits for the start of its step:
an edge from the source with the time 0, and the rest is its delay. So without delays it happens at once.
On host threads the rest is the thread's own time, as between any two of its operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts, windows
from chopper_interop.arrays import gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, LaneKind
from chopper_interop.timing import loops
from chopper_interop.timing.model import EDGE_PRIORITY, Timing, timing_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.analyses.methods.activity.windows import Window
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

BORDER_EDGE = 255
"""Kind of the edges from a step's source: the last number, which no `EdgeKind` has."""
_KINDS = 256
"""Kinds that a byte distinguishes, `BORDER_EDGE` among them."""


@dataclass(frozen=True)
class StepTiming:
    """Graphs of all steps in one, not connected to each other.

    Parameters
    ----------
    timing
        The complete model. Its vertices come first here, then the source of each step.
    steps
        Numbers of the steps, ascending.
    step
        For each vertex, which of `steps` it is in; -1 for none.
    src, kind, first, after, lag_ns
        Edges, as of `graph.Graph`, and the least time along them.
    delay_ns, at_ns
        Of vertices: how much later than that each was, and when, since the start of its step.
    order
        Vertices of steps in topological order.
    windows
        Windows of ranks in steps.
    window_step
        Position in `steps` of each window.
    begins, ends
        Vertices with which windows begin and end, the first and the last of these; and behind them
        the window of each.
    """

    timing: Timing
    steps: list[int]
    step: Array
    src: Array
    kind: Array
    first: Array
    after: Array
    lag_ns: Array
    delay_ns: Array
    at_ns: Array
    order: Array
    windows: Sequence[Window]
    window_step: Array
    begins: tuple[Array, Array]
    ends: tuple[Array, Array]

    def retimed(self, lag_ns: Array, delay_ns: Array) -> Array:
        """Time of each vertex since its step's start, with other lags and delays."""
        release = np.zeros(len(self.step), np.int64)
        return loops.earliest_times(self.order, self.first, self.after, lag_ns, delay_ns, release)

    def lengths(self, at_ns: Array, *, by_rank: bool = False) -> Array:
        """Lengths of steps by these times, of the job or of each window of a rank, nanoseconds."""
        row = np.arange(len(self.windows)) if by_rank else self.window_step
        size = len(self.windows) if by_rank else len(self.steps)
        begin = np.full(size, loops.NEVER)
        end = np.full(size, -loops.NEVER)
        np.minimum.at(begin, row[self.begins[1]], at_ns[self.begins[0]])
        np.maximum.at(end, row[self.ends[1]], at_ns[self.ends[0]])
        return end - begin

    def groups(self) -> tuple[Array, Array]:
        """Counterparts of edges and of vertices in other steps: numbers that they share.

        Vertices are numbered in three ranges: endpoints by the counterpart group of their node and
        which end it is, barriers by the lowest group of their members, and sources of steps. An edge
        is known by the numbers of its two vertices and its kind, put together in one integer.
        """
        graph = self.timing.graph
        of_node = counterparts.counterpart_groups(self.timing.trace, across="iterations")
        nodes, size = len(of_node), int(of_node.max(initial=-1)) + 1
        vertex = np.full(len(self.step), -1, np.int64)
        vertex[: 2 * nodes : 2], vertex[1 : 2 * nodes : 2] = 2 * of_node, 2 * of_node + 1
        into = np.flatnonzero(self.timing.is_barrier[graph.after])
        lowest = np.full(len(self.step), loops.NEVER)  # of a barrier's members
        np.minimum.at(lowest, graph.after[into], of_node[graph.node[graph.src[into]]])
        vertex[self.timing.barriers] = 2 * size + lowest[self.timing.barriers]
        vertex[len(graph) :] = 3 * size
        vertex[self.step < 0] = -1
        key = (vertex[self.src] * (3 * size + 1) + vertex[self.after]) * _KINDS + self.kind
        return gather.distinct(key)[1], vertex


def step_timing(trace: Trace, rank_steps: Sequence[Window]) -> StepTiming:
    """Graphs of a trace's training steps.

    Parameters
    ----------
    rank_steps
        Windows of ranks in steps, as `windows.of_ranks` gives them.
    """
    timing = timing_of(trace)
    graph = timing.graph
    steps = sorted({w.iteration for w in rank_steps})
    window_step = np.searchsorted(steps, [w.iteration for w in rank_steps])
    start = _start_ns(rank_steps, window_step, len(steps))
    number = trace.integers("iteration")
    of_node = np.minimum(np.searchsorted(steps, number), len(steps) - 1)
    of_node[np.array(steps)[of_node] != number] = -1
    step = np.concatenate([of_node[graph.node], np.arange(len(steps))])
    at = np.append(timing.at_ns, start)
    at -= np.where(step >= 0, start[step], 0)
    src, after, kind, lag = _cut(timing, step, at, start)
    first, edge = gather.group_rows(src, len(step))
    src, after, kind, lag = src[edge], after[edge], kind[edge], lag[edge]
    _, delay = loops.find_binding(at, first, after, lag, EDGE_PRIORITY[kind])
    sources = len(graph) + np.arange(len(steps), dtype=np.int32)
    inside = graph.order[step[graph.order] >= 0]
    begins, ends = _bounds(trace, rank_steps, steps, of_node)
    return StepTiming(
        timing, steps, step, src, kind, first, after, lag, delay, at,
        np.concatenate([sources, inside]), rank_steps, window_step, begins, ends,
    )  # fmt: skip


def timing_of_steps(trace: Trace) -> Timing:
    """Timing model for lengths of steps: where no launches are recorded, each begins when it did."""
    work = is_any(trace.array("kind"), GPU_WORK) & (trace.integers("iteration") >= 0)
    if not work.any() or (trace.launch[work] >= 0).any():
        return timing_of(trace)
    return isolated_steps(trace, windows.step_windows(trace))


def isolated_steps(trace: Trace, rank_steps: Sequence[Window]) -> Timing:
    """Timing model of a trace whose steps do not wait for each other, but begin when they did.

    Parameters
    ----------
    rank_steps
        As of `step_timing`.
    """
    model = step_timing(trace, rank_steps)
    graph = model.timing.graph
    size = len(graph)
    # a vertex of each step, by which its source has a node
    present, vertex = np.unique(model.step[:size], return_index=True)
    example = np.zeros(len(model.steps), np.int64)
    example[present[present >= 0]] = vertex[present >= 0]
    start = _start_ns(rank_steps, model.window_step, len(model.steps))
    at = np.concatenate([graph.at_ns, start])
    lag = np.minimum(model.lag_ns, at[model.after] - at[model.src])
    outside = np.flatnonzero(model.step[:size] < 0).astype(model.order.dtype)
    isolated = replace(
        graph,
        node=np.concatenate([graph.node, graph.node[example]]),
        at_ns=at,
        first=model.first,
        after=model.after,
        kind=model.kind,
        order=np.concatenate([model.order, outside]),
    )
    binding, delay = loops.find_binding(
        at, model.first, model.after, lag, EDGE_PRIORITY[model.kind]
    )
    return Timing(trace, isolated, lag, binding, delay)


def _start_ns(rank_steps: Sequence[Window], window_step: Array, steps: int) -> Array:
    """Start of each step: that of the first of its windows."""
    start = np.full(steps, loops.NEVER)
    np.minimum.at(start, window_step, np.array([w.start_ns for w in rank_steps], np.int64))
    return start


def _cut(timing: Timing, step: Array, at: Array, start: Array) -> tuple[Array, ...]:
    """Edges within steps, and from each step's source to what waits for nothing within it alone."""
    graph, size = timing.graph, len(timing.graph)
    src, after = graph.src, graph.after
    of_src, of_after = step[src], step[after]
    within = (of_src == of_after) & (of_src >= 0)
    across = np.flatnonzero((of_src != of_after) & (of_after >= 0))
    # time since the step's start at which the last edge from outside releases each vertex
    release = np.full(size, -loops.NEVER)
    since = start[of_after[across]]
    reached = timing.at_ns[src[across]] + timing.lag_ns[across] - since
    np.maximum.at(release, after[across], np.minimum(np.maximum(reached, 0), at[after[across]]))
    entered = np.zeros(size, bool)
    entered[after[within]] = True
    alone = ~entered & (release == -loops.NEVER) & (step[:size] >= 0)
    on_host = timing.trace.array("kind", "lanes")[timing.trace.array("lane")] == LaneKind.THREAD
    release[alone] = np.where(on_host[graph.node], at[:size], 0)[alone]
    border = np.flatnonzero(release > -loops.NEVER)
    return (
        np.concatenate([src[within], size + step[border]]).astype(np.int32),
        np.concatenate([after[within], border]).astype(np.int32),
        np.concatenate([graph.kind[within], np.full(len(border), BORDER_EDGE, np.uint8)]),
        np.concatenate([timing.lag_ns[within], release[border]]),
    )


def _bounds(
    trace: Trace, rank_steps: Sequence[Window], steps: list[int], step: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Vertices with which windows begin and end, and their windows.

    Those of the range that is as long as its window; without one, of all of the host's nodes if the
    window begins with one of these, else of all GPU work.
    """
    ranks = trace.ranks
    table = np.full((len(ranks), len(steps)), -1, np.int64)
    of_rank = np.searchsorted(ranks, [one.rank for one in rank_steps])
    table[of_rank, np.searchsorted(steps, [one.iteration for one in rank_steps])] = np.arange(
        len(rank_steps)
    )
    rows = np.flatnonzero(step >= 0)
    window = table[np.searchsorted(ranks, trace.array("rank")[rows]), step[rows]]
    rows, window = rows[window >= 0], window[window >= 0]
    ts = trace.array("ts")[rows]
    end = ts + trace.array("dur")[rows]
    on_host = (trace.array("kind", "lanes")[trace.array("lane")] == LaneKind.THREAD)[rows]
    starts = ts == np.array([w.start_ns for w in rank_steps], np.int64)[window]
    stops = end == np.array([w.end_ns for w in rank_steps], np.int64)[window]
    ranged = np.zeros(len(rank_steps), bool)
    is_range = starts & stops & on_host
    ranged[window[is_range]] = True
    host_bounds = np.zeros(len(rank_steps), bool)
    host_bounds[window[starts & on_host]] = True
    chosen = np.where(ranged[window], is_range, on_host == host_bounds[window])
    chosen &= on_host | is_any(trace.array("kind")[rows], GPU_WORK)
    vertex, window = 2 * rows[chosen], window[chosen]
    return (vertex, window), (vertex + 1, window)
