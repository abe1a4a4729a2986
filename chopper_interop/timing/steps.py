"""The timing model cut at the borders of training steps: each step as a graph of its own.

What happens in a step waits for what happened before it too: its streams still work for the step
before, its threads come from there. That state at the border is kept as times since the step's start:
edges from a source that each step has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import counterparts
from chopper_interop.columns import arrow, gather
from chopper_interop.schemas.kinds import GPU_WORK, LaneKind
from chopper_interop.timing import loops
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace

BORDER = 255
"""Kind of the edges from a step's source."""
_KINDS = 256
_WORK = [int(k) for k in GPU_WORK]


@dataclass(frozen=True)
class StepTiming:
    """Graphs of steps, side by side in one.

    Parameters
    ----------
    timing
        The whole model. Its vertices come first here, then the source of each step.
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
        Which of `steps` each window is.
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
        """When each vertex would be since its step's start, with other lags and delays."""
        release = np.zeros(len(self.step), np.int64)
        return loops.earliest(self.order, self.first, self.after, lag_ns, delay_ns, release)

    def lengths(self, at_ns: Array, *, by_rank: bool = False) -> Array:
        """How long the steps are by these times, of the job or of each window of a rank."""
        where = np.arange(len(self.windows)) if by_rank else self.window_step
        size = len(self.windows) if by_rank else len(self.steps)
        begin = np.full(size, loops.NEVER)
        end = np.full(size, -loops.NEVER)
        np.minimum.at(begin, where[self.begins[1]], at_ns[self.begins[0]])
        np.maximum.at(end, where[self.ends[1]], at_ns[self.ends[0]])
        return end - begin

    def groups(self) -> tuple[Array, Array]:
        """Counterparts of edges and of vertices in other steps: numbers that they share."""
        graph = self.timing.graph
        of_node = counterparts.of(graph.trace, across="iterations")
        nodes, size = len(of_node), int(of_node.max(initial=-1)) + 1
        vertex = np.full(len(self.step), -1, np.int64)
        vertex[: 2 * nodes : 2], vertex[1 : 2 * nodes : 2] = 2 * of_node, 2 * of_node + 1
        into = np.flatnonzero(self.timing.meets[graph.after])
        least = np.full(len(self.step), loops.NEVER)  # of whom a collective is made up
        np.minimum.at(least, graph.after[into], of_node[graph.node[graph.src[into]]])
        vertex[self.timing.meetings] = 2 * size + least[self.timing.meetings]
        vertex[len(graph) :] = 3 * size
        vertex[self.step < 0] = -1
        key = (vertex[self.src] * (3 * size + 1) + vertex[self.after]) * _KINDS + self.kind
        return gather.distinct(key)[1], vertex


def of(trace: Trace, found: Sequence[Window]) -> StepTiming:
    """Graphs of steps.

    Parameters
    ----------
    trace
        A trace with training steps.
    found
        Windows of ranks in steps, as `windows.of_ranks` gives them.
    """
    timing = timing_of(trace)
    graph = timing.graph
    steps = sorted({w.iteration for w in found})
    window_step = np.searchsorted(steps, [w.iteration for w in found])
    start = np.full(len(steps), loops.NEVER)
    np.minimum.at(start, window_step, np.array([w.start_ns for w in found], np.int64))
    number = arrow.numbers(trace.nodes["iteration"], -1).astype(np.int64)
    of_node = np.minimum(np.searchsorted(steps, number), len(steps) - 1)
    of_node[np.array(steps)[of_node] != number] = -1
    step = np.concatenate([of_node[graph.node], np.arange(len(steps))])
    at = np.append(timing.at_ns, start)
    at -= np.where(step >= 0, start[step], 0)
    src, after, kind, lag = _cut(timing, step, at, start)
    first, edge = gather.places(src, len(step))
    sources = len(graph) + np.arange(len(steps), dtype=np.int32)
    inside = graph.order[step[graph.order] >= 0]
    begins, ends = _bounds(trace, found, steps, of_node)
    delay = np.append(timing.delay_ns, np.zeros(len(steps), np.int64))
    return StepTiming(
        timing, steps, step, src[edge], kind[edge], first, after[edge], lag[edge], delay, at,
        np.concatenate([sources, inside]), found, window_step, begins, ends,
    )  # fmt: skip


def _cut(timing: Timing, step: Array, at: Array, start: Array) -> tuple[Array, ...]:
    """Edges within steps, and from each step's source to what waits for nothing within it alone."""
    graph, size = timing.graph, len(timing.graph)
    src, after = graph.src, graph.after
    of_src, of_after = step[src], step[after]
    within = (of_src == of_after) & (of_src >= 0)
    across = np.flatnonzero((of_src != of_after) & (of_after >= 0))
    release = np.full(size, -loops.NEVER)
    since = start[of_after[across]]
    reached = timing.at_ns[src[across]] + timing.lag_ns[across] - since
    np.maximum.at(release, after[across], reached)
    entered = np.zeros(size, bool)
    entered[after] = True
    alone = np.flatnonzero(~entered & (step[:size] >= 0))
    release[alone] = at[alone]
    border = np.flatnonzero(release > -loops.NEVER)
    return (
        np.concatenate([src[within], size + step[border]]).astype(np.int32),
        np.concatenate([after[within], border]).astype(np.int32),
        np.concatenate([graph.kind[within], np.full(len(border), BORDER, np.uint8)]),
        np.concatenate([timing.lag_ns[within], release[border]]),
    )


def _bounds(
    trace: Trace, found: Sequence[Window], steps: list[int], step: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Vertices with which windows begin and end: of the range that is as long, else of all of its sort."""
    ranks = trace.ranks
    table = np.full((len(ranks), len(steps)), -1, np.int64)
    of_rank = np.searchsorted(ranks, [one.rank for one in found])
    table[of_rank, np.searchsorted(steps, [one.iteration for one in found])] = np.arange(len(found))
    rows = np.flatnonzero(step >= 0)
    window = table[np.searchsorted(ranks, trace.array("rank")[rows]), step[rows]]
    rows, window = rows[window >= 0], window[window >= 0]
    ts = trace.array("ts")[rows]
    end = ts + trace.array("dur")[rows]
    host = (trace.array("kind", "lanes")[trace.array("lane")] == LaneKind.THREAD)[rows]
    starts = ts == np.array([w.start_ns for w in found], np.int64)[window]
    stops = end == np.array([w.end_ns for w in found], np.int64)[window]
    ranged = np.zeros(len(found), bool)
    is_range = starts & stops & host
    ranged[window[is_range]] = True
    on_host = np.zeros(len(found), bool)
    on_host[window[starts & host]] = True
    chosen = np.where(ranged[window], is_range, host == on_host[window])
    chosen &= host | np.isin(trace.array("kind")[rows], _WORK)
    vertex, window = 2 * rows[chosen], window[chosen]
    return (vertex, window), (vertex + 1, window)
