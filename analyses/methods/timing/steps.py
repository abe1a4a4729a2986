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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts, step_times, windows
from chopper_interop.arrays import Array, gather, row_numbers
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, LaneKind
from chopper_interop.timing import loops
from chopper_interop.timing.model import EDGE_PRIORITY, Timing, timing_of
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans
    from chopper_interop.analyses.methods.activity.windows import Window

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
    start_ns
        Of each step: the time that others are relative to, on the axis of `ts`.
    of_job, of_ranks
        Spans of steps as `step_times` defines them, of the job and of each rank, that begin when they did.
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
    start_ns: Array
    of_job: Spans
    of_ranks: Spans

    def retimed(self, lag_ns: Array, delay_ns: Array) -> Array:
        """Time of each vertex since its step's start, with other lags and delays."""
        release = np.zeros(len(self.step), np.int64)
        return loops.earliest_times(self.order, self.first, self.after, lag_ns, delay_ns, release)

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
        Ranges of ranks' steps, as `windows.marked_windows` gives them.
    """
    timing = timing_of(trace)
    graph = timing.graph
    steps = sorted({w.iteration for w in rank_steps})
    start = _start_ns(rank_steps, steps)
    number = trace.integers("iteration")
    of_node = np.minimum(np.searchsorted(steps, number), len(steps) - 1)
    of_node[np.array(steps)[of_node] != number] = -1
    step = np.concatenate([of_node[graph.node], np.arange(len(steps))])
    at = np.append(timing.at_ns, start)
    at -= np.where(step >= 0, start[step], 0)
    of_job, of_ranks = (
        relative_spans(
            trace, step_times.step_spans(trace, trace.ranks, by_rank=by_rank), steps, start
        )
        for by_rank in (False, True)
    )
    row_numbers.require(len(graph) + len(steps), "vertices of graphs of steps")
    src, after, kind, lag = _cut(timing, step, at, start)
    first, edge = gather.group_rows(src, len(step), np.int32)
    src, after, kind, lag = src[edge], after[edge], kind[edge], lag[edge]
    _, delay = loops.find_binding(at, first, after, lag, EDGE_PRIORITY[kind])
    sources = len(graph) + np.arange(len(steps), dtype=np.int32)
    inside = graph.order[step[graph.order] >= 0]
    return StepTiming(
        timing, steps, step, src, kind, first, after, lag, delay, at,
        np.concatenate([sources, inside]), start, of_job, of_ranks,
    )  # fmt: skip


def timing_of_steps(trace: Trace) -> Timing:
    """Timing model for lengths of steps: where no launches are recorded, each begins when it did."""
    work = is_any(trace.array("kind"), GPU_WORK) & (trace.integers("iteration") >= 0)
    if not work.any() or (trace.launch[work] >= 0).any():
        return timing_of(trace)
    return isolated_steps(trace, windows.marked_windows(trace))


def is_isolated(timing: Timing) -> bool:
    """True if it is a model as of `isolated_steps`."""
    return bool(timing.graph.kind.max(initial=0) == BORDER_EDGE)


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
    at = np.concatenate([graph.at_ns, model.start_ns])
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
    return Timing(trace, isolated, lag, binding, delay, model.timing.populations)


def _start_ns(rank_steps: Sequence[Window], steps: list[int]) -> Array:
    """Start of each step: that of the first of its ranges."""
    start = np.full(len(steps), loops.NEVER)
    step = np.searchsorted(steps, [one.iteration for one in rank_steps])
    np.minimum.at(start, step, np.array([one.start_ns for one in rank_steps], np.int64))
    return start


def relative_spans(trace: Trace, spans: Spans, steps: list[int], start: Array) -> Spans:
    """Spans of these steps, that begin when they did since the start of each."""
    begin, _ = spans.bounds(step_times.MeasuredTimes(trace))
    step = np.minimum(np.searchsorted(steps, spans.iterations), len(steps) - 1)
    return spans.of_steps(steps).beginning_at(begin - start[step])


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
