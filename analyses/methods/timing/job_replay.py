"""Lengths of a job's training steps under other durations, with unexplained delays and without.

Where it is recorded which calls launched the work, the job is re-timed as a whole: a step may begin
sooner if the one before ends sooner. Where it is not, what lies between steps is not known, and each step
is re-timed by itself, from when it began (`timing.steps`), and ends with its GPU work.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise, starmap
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts, step_times, windows
from chopper_interop.analyses.methods.timing import paths, spans
from chopper_interop.analyses.methods.timing.reduced import Ordered, ReducedTiming
from chopper_interop.analyses.methods.timing.steps import BORDER_EDGE, StepTiming, step_timing
from chopper_interop.arrays import Array, gather, sequences
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, HOST_WAITS, EdgeKind, LaneKind
from chopper_interop.tables import merged_rows
from chopper_interop.timing import loops, variation
from chopper_interop.timing.model import timing_of
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans

_ON_GPU = (
    EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COMM, EdgeKind.DATA, EdgeKind.DEPENDENCY,
    EdgeKind.DURATION,
)  # fmt: skip
"""Edges by which work waits for other work; by all others it waits for hosts."""

_ENDPOINTS = 1 << 20
"""Starts and ends on threads that are looked at at a time, unless one has more (chosen: a few megabytes for each array)."""
_WAITED_NS = 1_000_000
"""Time by which a piece of host code, in which no wait for a GPU is known, takes other ranks longer than a late
rank from which on they waited in it. Chosen: the same code differs by less."""


class JobReplay:
    """Re-times the training steps of a trace.

    Parameters
    ----------
    trace
        A trace with training steps.
    steps
        As of `windows.rank_windows`; all as one if empty.

    Attributes
    ----------
    by_step
        True if each step is re-timed by itself.
    edge, node
        Edges along which the own time of GPU work of the steps passes, and that work.
    own_ns
        This time.
    every_edge, every_node, is_chosen
        The same of all steps, also of those that `steps` leaves out, and a mask of the chosen ones.
    iterations
        Numbers of the steps, ascending.
    graph, src, kind
        The graph, and source and kind of each edge.
    lag_ns, delay_ns, at_ns
        As of `model.Timing`.
    on_thread
        Mask of the nodes on host threads.
    """

    def __init__(self, trace: Trace, steps: str = "") -> None:
        self.trace = trace
        self.iterations = windows.chosen_steps(trace, steps or "each")
        step = trace.integers("iteration")
        on_thread = trace.array("kind", "lanes")[trace.array("lane")] == LaneKind.THREAD
        work = is_any(trace.array("kind"), GPU_WORK) & (step >= 0)
        self.by_step = not (trace.launch[work] >= 0).any()
        if self.by_step:
            model = step_timing(trace, windows.marked_windows(trace))
            self.graph: Ordered = model
            self.src, self.kind = model.src, model.kind
            self.lag_ns, self.delay_ns, self.at_ns = model.lag_ns, model.delay_ns, model.at_ns
            self._spans = self._step_spans = _work_spans(model, work).of_steps(self.iterations)
        else:
            timing = timing_of(trace)
            self.graph, self.src, self.kind = timing.graph, timing.graph.src, timing.graph.kind
            self.lag_ns, self.delay_ns, self.at_ns = timing.lag_ns, timing.delay_ns, timing.at_ns
            self._spans = spans.spans_of_timing(timing, steps)
            self._step_spans = spans.spans_of_timing(timing, steps or "each")
        owner = paths.owners(trace, self.src, self.graph.after, self.kind)
        self.on_thread = on_thread
        self.every_edge = np.flatnonzero(np.append(work, False)[owner])
        self.is_chosen = np.isin(step[owner[self.every_edge]], self.iterations)
        self.edge = self.every_edge[self.is_chosen]
        self.every_node = owner[self.every_edge].astype(np.int64)
        self.node = self.every_node[self.is_chosen]
        self.own_ns = self.lag_ns[self.edge]
        both = (self._spans, self._step_spans)
        self._endpoints = np.concatenate([part for one in both for part in (one.begin, one.end)])
        self._local = _local_spans(both)

    @property
    def measured_ns(self) -> Array:
        """Measured lengths; all lengths are of `steps` one by one, or one for all of them."""
        return self._spans.lengths(self.at_ns)

    @property
    def measured_steps_ns(self) -> Array:
        """Measured length of each of `iterations`."""
        return self._step_spans.lengths(self.at_ns)

    def lengths(
        self, own_ns: Array | None = None, *, delays: bool = False, each: bool = False
    ) -> Array:
        """Lengths if GPU work takes these times.

        Parameters
        ----------
        own_ns
            Time along each of `edge`; as measured if None.
        delays
            Keep delays that nothing explains.
        each
            Lengths of all steps, one by one, however they were chosen.
        """
        model = self._with_delays if delays else self._without_delays
        at = model.retimed(self.own_ns if own_ns is None else own_ns)
        return self._local[int(each)].lengths(at)

    def lengths_with(
        self, lag_ns: Array, delay_ns: Array | None = None, release_ns: Array | None = None
    ) -> Array:
        """Lengths with these lags of all edges, and delays and releases of all vertices.

        Parameters
        ----------
        lag_ns, delay_ns
            Of edges and vertices; no delays if None.
        release_ns
            Time of vertices to which no edge leads, as measured if None.
        """
        delay = np.zeros_like(self.delay_ns) if delay_ns is None else delay_ns
        release = self.at_ns if release_ns is None else release_ns
        graph = self.graph
        at = loops.earliest_times(graph.order, graph.first, graph.after, lag_ns, delay, release)
        return self._spans.lengths(at)

    @cached_property
    def _with_delays(self) -> ReducedTiming:
        return self._reduced(self.delay_ns)

    @cached_property
    def _without_delays(self) -> ReducedTiming:
        return self._reduced(np.zeros_like(self.delay_ns))

    def _reduced(self, delay_ns: Array) -> ReducedTiming:
        """The model of which only the times of GPU work vary."""
        return ReducedTiming(
            self.graph, self.lag_ns, delay_ns, self.at_ns, self.edge, self._endpoints
        )

    @cached_property
    def host(self) -> HostTimes:
        """Times of host threads, compared with those of other ranks."""
        return HostTimes(self)

    def without_delays_of(self, rank: int) -> Array:
        """Lengths with delays kept, except for those of one rank."""
        delay = self.delay_ns.copy()
        delay[self.endpoints_of(rank)] = 0
        return self.lengths_with(self.lag_ns, delay)

    @property
    def usual_lag_ns(self) -> Array:
        """Lags with the delays that are usual for their kind of edge: without these hosts would be further ahead."""
        if self.by_step:
            return self.lag_ns
        timing = timing_of(self.trace)
        return variation.on_edges(timing, timing.lag_ns, timing.delay_ns)[0]

    def endpoints_of(self, rank: int) -> slice:
        """Vertices that are starts and ends of a rank's nodes."""
        rows = self.trace.rank_rows[rank]
        return slice(2 * rows.start, 2 * rows.stop)

    def delays(self) -> tuple[Array, Array]:
        """Delays of each node of GPU work behind the work that it waits for, nanoseconds.

        Returns
        -------
        caused, unexplained
            By hosts and what they wait for; and the rest, which no dependency explains.
        """
        trace, after = self.trace, self.graph.after
        nodes = trace.nodes.num_rows
        chosen = np.zeros(len(self.delay_ns), bool)
        chosen[2 * self.node] = True
        into = np.flatnonzero(chosen[after])
        reached = self.at_ns[self.src[into]] + self.lag_ns[into]
        on_gpu = is_any(self.kind[into], _ON_GPU) | (self.kind[into] == BORDER_EDGE)
        last = np.full(len(self.delay_ns), -loops.NEVER)
        last_on_gpu = last.copy()
        np.maximum.at(last, after[into], reached)
        np.maximum.at(last_on_gpu, after[into][on_gpu], reached[on_gpu])
        caused = np.where(last_on_gpu > -loops.NEVER, last - last_on_gpu, 0)[: 2 * nodes : 2]
        unexplained = np.where(chosen, self.delay_ns, 0)[: 2 * nodes : 2]
        return np.maximum(caused, 0), unexplained


class HostTimes:
    """Times of what hosts did, compared with the hosts of other ranks.

    Attributes
    ----------
    late_ns
        For each node how much later it began than its counterparts on other ranks, by their
        median.
    known
        Mask of the nodes on host threads that have counterparts, in the order of those.
    """

    def __init__(self, replay: JobReplay) -> None:
        self._replay = replay
        trace = replay.trace
        nodes = trace.nodes.num_rows
        group = counterparts.counterpart_groups(trace, across="ranks")
        self._group = group = np.where(replay.on_thread, group, -1)
        rank = trace.array("rank").astype(np.int64)
        of_peers = np.zeros(2 * nodes, np.int64)
        known = np.zeros(2 * nodes, bool)
        for end in (0, 1):
            at = replay.at_ns[end : 2 * nodes : 2]
            of_peers[end::2], members = counterparts.group_medians(
                at, group, apart=rank, between=True
            )
            known[end::2] = members > 0
        self._endpoint, self._lane = self._in_order()
        known = self._follows(known, of_peers)
        late = np.where(known, replay.at_ns[: 2 * nodes] - of_peers, 0)
        del of_peers
        self.late_ns, self.known = late[::2].copy(), known[::2]
        self._lag_ns = replay.usual_lag_ns
        graph, kind = replay.graph, replay.kind
        waits = np.zeros(len(replay.at_ns), bool)
        waits[graph.after[is_any(kind, HOST_WAITS)]] = True
        filled = self._filled(known, np.maximum(late, 0), waits)
        del late
        self._late = self._since_begin(filled)
        del filled
        passes = is_any(kind, paths.OWN_TIME_EDGES) & (graph.after < 2 * nodes)
        self._edge = np.flatnonzero(passes & (replay.src < 2 * nodes))
        self._edge = self._edge[replay.on_thread[graph.after[self._edge] // 2]]
        self._edge = self._edge[~waits[graph.after[self._edge]]]
        others_wait = np.zeros(2 * (group.max(initial=0) + 1), bool)
        into = np.flatnonzero(is_any(kind, HOST_WAITS) & (graph.after < 2 * nodes))
        self._wait = into[group[graph.after[into] // 2] >= 0]
        others_wait[self._counterpart(graph.after[self._wait])] = True
        paired = group[graph.after[self._edge] // 2] >= 0
        self._others_wait = paired & others_wait[self._counterpart(graph.after[self._edge])]
        self._return_ns = self._usual_returns(rank)

    def _usual_returns(self, rank: Array) -> Array:
        """Time from what each of `_wait` waits for to its end: that of the other ranks, where it is less."""
        node = self._replay.graph.after[self._wait] // 2
        own = self._lag_ns[self._wait]
        usual, _ = counterparts.group_medians(
            own, self._group[node], apart=rank[node], between=True
        )
        return np.minimum(own, usual)

    def _in_order(self) -> tuple[Array, Array]:
        """Endpoints on threads by lane and time, and their lanes."""
        trace = self._replay.trace
        endpoint = np.flatnonzero(np.repeat(self._replay.on_thread, 2)).astype(np.int32)
        lane = np.repeat(trace.array("lane"), 2)[endpoint]
        order = np.lexsort((self._replay.at_ns[endpoint], lane))
        return endpoint[order], lane[order]

    def _follows(self, known: Array, of_peers: Array) -> Array:
        """Mark the known endpoints whose counterparts come in the order of their lane: a longest run.

        Where ranks repeat a call differently often, as they poll, the n-th of one is no counterpart
        of the n-th of another, and lateness would jump there.
        """
        chosen = known[self._endpoint]
        endpoint = self._endpoint[chosen]
        place = np.empty(len(endpoint), np.int64)
        place[np.lexsort((of_peers[endpoint], self._lane[chosen]))] = np.arange(len(endpoint))
        follows = np.zeros(len(known), bool)
        follows[endpoint[sequences.longest_ascending(place)]] = True
        return follows

    def _filled(self, known: Array, late: Array, waits: Array) -> Array:
        """Lateness of each endpoint on a thread; without counterparts that of the one before it.

        Where it rises until the next counterpart, as by an operation that no other rank has, it rises evenly
        over the time between them that is not spent waiting.
        """
        filled = np.zeros(len(late), np.int64)
        begins = np.flatnonzero(np.diff(self._lane, prepend=-1)).tolist()
        lanes = starmap(slice, pairwise([*begins, len(self._lane)]))
        for rows in merged_rows(lanes, _ENDPOINTS):
            self._fill(self._endpoint[rows], self._lane[rows], known, late, waits, filled)
        return filled

    def _fill(  # columns
        self,
        endpoint: Array,
        lane: Array,
        known: Array,
        late: Array,
        waits: Array,
        filled: Array,
    ) -> None:
        """Write the lateness of the endpoints of some lanes, as of `_filled`."""
        has, count = known[endpoint], len(endpoint)
        place = np.arange(count)
        before = np.maximum.accumulate(np.where(has, place, -1))
        behind = np.minimum.accumulate(np.where(has, place, count)[::-1])[::-1]
        before = np.where(lane[before] == lane, before, -1)
        behind = np.where(np.append(lane, -1)[behind] == lane, behind, -1)
        before, behind = np.where(before < 0, behind, before), np.where(behind < 0, before, behind)
        inside = np.flatnonzero(before >= 0)
        before, behind = before[inside], behind[inside]
        spent = np.diff(self._replay.at_ns[endpoint], prepend=0)
        clock = np.cumsum(np.where(waits[endpoint], 0, spent))
        first, rise = late[endpoint[before]], late[endpoint[behind]] - late[endpoint[before]]
        share = (clock[inside] - clock[before]) / np.maximum(clock[behind] - clock[before], 1)
        filled[endpoint[inside]] = first + np.rint(np.maximum(rise, 0) * share).astype(np.int64)

    def _since_begin(self, late: Array) -> Array:
        """Lateness less that with which a rank began to record, as far as it has not caught up since.

        What happened before the recording is no gain within it.
        """
        trace, at = self._replay.trace, self._replay.at_ns
        number = np.searchsorted(trace.ranks, trace.array("rank")[self._endpoint // 2])
        first, row = gather.group_rows(number, len(trace.ranks), np.int32)
        del number
        since = late.copy()
        for begin, stop in pairwise(first.tolist()):
            of_rank = self._endpoint[row[begin:stop]]
            of_rank = of_rank[np.argsort(at[of_rank], kind="stable")]
            since[of_rank] -= np.minimum.accumulate(late[of_rank])
        return since

    def gain_ns(self, rank: int) -> int:
        """Time by which the steps are shorter if the host of a rank was never later than its counterparts."""
        return self._before_ns - int(self._lengths(rank).sum())

    @cached_property
    def _before_ns(self) -> int:
        return int(self._replay.lengths_with(self._lag_ns).sum())

    def _lengths(self, rank: int) -> Array:
        """Lengths with usual delays alone if the host of a rank was never later than its counterparts.

        Waits for GPUs take as long as these still do. Others may wait for a late rank where nothing
        that was recorded says so, as they poll: there it catches up. It does not wait in their place, and
        they wait less.
        """
        replay = self._replay
        own = replay.endpoints_of(rank)
        # edges are in order of their sources, and those of threads lead to endpoints of the same rank
        of_rank = slice(
            *np.searchsorted(self._edge, replay.graph.first[[own.start, own.stop]]).tolist()
        )
        edge = self._edge[of_rank]
        lag, release = self._lag_ns.copy(), replay.at_ns.copy()
        later = self._late[replay.graph.after[edge]] - self._late[replay.src[edge]]
        caught_up = later < -_WAITED_NS
        self._wait_less(lag, edge[caught_up], -later[caught_up])
        later[caught_up] = 0
        # where others waited and this rank was so late that all was done, it would wait for its own GPU work,
        # which nothing ties: it is ahead of that then, and not as long as others waited for the late rank
        all_done = self._others_wait[of_rank] & (later < 0)
        later[all_done] = 0
        lag[edge] = np.maximum(lag[edge] - later, np.minimum(lag[edge], 0))
        ends = replay.graph.after[self._wait]
        returns = (own.start <= ends) & (ends < own.stop)
        lag[self._wait[returns]] = self._return_ns[returns]
        release[own] -= self._late[own]
        return replay.lengths_with(lag, release_ns=release)

    def _wait_less(self, lag_ns: Array, edge: Array, waited_ns: Array) -> None:
        """Shorten what other ranks waited for one along the counterparts of its edges, to its time at least.

        ::

            late rank   ──own──▶          its edge, which took less than others' by `waited`
            others      ──own──┄waited┄▶  the counterparts of its edge: they end when it has caught up

        `waited` and `own` are indexed by `_counterpart`, which all of them share.
        """
        after = self._replay.graph.after
        waited = np.zeros(2 * (self._group.max(initial=-1) + 1), np.int64)
        own = np.full_like(waited, loops.NEVER)
        np.maximum.at(waited, self._counterpart(after[edge]), waited_ns)
        np.minimum.at(own, self._counterpart(after[edge]), lag_ns[edge])
        of_others = self._edge[self._group[after[self._edge] // 2] >= 0]
        of_others = np.setdiff1d(of_others, edge, assume_unique=True)
        key = self._counterpart(after[of_others])
        of_others, key = of_others[waited[key] > 0], key[waited[key] > 0]
        lag = lag_ns[of_others]
        lag_ns[of_others] = np.maximum(lag - waited[key], np.minimum(lag, own[key]))

    def _counterpart(self, vertex: Array) -> Array:
        """Number that a start, or an end, has in common with its counterparts on other ranks.

        Vertices 2 i and 2 i + 1 are start and end of node i; so are these numbers of group i.
        """
        return 2 * self._group[vertex // 2] + vertex % 2


def _work_spans(model: StepTiming, work: Array) -> Spans:
    """Spans of the model's steps by their GPU work, which a mask marks: ranges may not mark all that work is of."""
    trace = model.timing.trace
    step = trace.integers("iteration")
    rows = np.flatnonzero(work & np.isin(step, model.steps))
    step = np.tile(step[rows], 2)
    ranks = np.full(len(step), windows.ALL_RANKS)
    spans = step_times.spans_of_nodes(trace, step, ranks, rows, rows)
    begin = spans.own_starts(step_times.MeasuredTimes(trace))
    return spans.beginning_at(
        begin - model.start_ns[np.searchsorted(model.steps, spans.iterations)]
    )


def _local_spans(both: tuple[Spans, ...]) -> tuple[Spans, ...]:
    """Spans whose endpoints are positions in the concatenation of all their begins and ends."""
    local, at = [], 0
    for one in both:
        begin, end = len(one.begin), len(one.end)
        local.append(replace(one, begin=at + np.arange(begin), end=at + begin + np.arange(end)))
        at += begin + end
    return tuple(local)
