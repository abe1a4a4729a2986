"""The time that a training step takes, and a job as a whole: one definition for all analyses.

A step ends with the last that it did: the range that marks it on its host, or without one what its hosts
do in it, and the work of GPUs that is launched in it, until that has ended. It begins where the step
before it has ended: steps add up to the time of the job, also where GPUs lag behind their hosts::

    host  [--- step 7 ---][--- step 8 ---]
    GPU         ┄[-------- 7 --------][-------- 8 --------]
    time        |<------ step 7 ----->|<----- step 8 ---->|

The first step begins with its range, but not before GPUs have done what was launched before the recording
(``┄``); so does one whose number does not follow that of the step before it, as steps in between were not
recorded. So do all steps where no launches were recorded: nothing says what lies between them. Of a rank its own
work counts; a step of the job ends with that of its last rank.

What threads other than the one with the range wait for in between is not known: they do not hold the step
up. GPU work without a known launch counts where nothing marks a step. The time of a job is that from the
begin of its first range to the end of its last step, with what GPUs had to do before it, or without steps all of
it, but for threads on which only Python's functions or queries of events were recorded: they wait for the profiler's
end as a rule, or for work of others (NCCL's watchdog).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import rank_batches, training_steps
from chopper_interop.analyses.methods.activity import host_waits
from chopper_interop.arrays import Array, gather, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges import ordering_calls
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.schemas.names import Role
from chopper_interop.timing.model import takes_time
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.host_waits import HostWaits

DEFINITION = (
    "from the end of the step before to the end of the last that the step did: of the range that marks it, "
    "and of the GPU work launched in it, on any rank; the first step, and one whose number does not follow, "
    "from the begin of its range, but not before GPUs have done what was launched before the recording"
)
"""The definition as conventions of results state it."""
NO_STEP = -1
"""Iteration of what is not one step."""
ALL_RANKS = -1
"""Rank of what is of the whole job."""


@dataclass(frozen=True)
class Spans:
    """Spans of time by endpoints of nodes, which may move: all of a job or of its ranks, or steps of these.

    Parameters
    ----------
    ranks, iterations
        Of each span; `ALL_RANKS` and `NO_STEP` where it is of no single one.
    begin, begin_of
        Endpoints that a span may begin with, and the number of that span, ascending.
    end, end_of
        Endpoints that it may end with, and the number of the span.
    sequence
        Numbers of the spans, by rank and begin.
    follows
        For each of `sequence`, whether it is the next step after the one before.
    late_ns
        Of each span: how long after its first endpoint it begins.
    chosen
        Numbers of the spans that count; all figures are of these.
    fixed_ns
        Of each span: when it begins, whatever moves; None if that is when the one before has ended.
    """

    ranks: Array
    iterations: Array
    begin: Array
    begin_of: Array
    end: Array
    end_of: Array
    sequence: Array
    follows: Array
    late_ns: Array
    chosen: Array
    fixed_ns: Array | None = None

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def rank(self) -> Array:
        """Rank of each span."""
        return self.ranks[self.chosen]

    @property
    def iteration(self) -> Array:
        """Step of each span."""
        return self.iterations[self.chosen]

    @property
    def is_next(self) -> Array:
        """Of each span, whether it begins where another ends: the step before it."""
        mask = np.zeros(len(self.ranks), bool)
        mask[self.sequence] = self.follows
        return mask[self.chosen]

    def of_steps(self, numbers: Collection[int]) -> Spans:
        """The same, of which only these steps count."""
        return replace(self, chosen=np.flatnonzero(np.isin(self.iterations, list(numbers))))

    def beginning_at(self, start_ns: Array) -> Spans:
        """The same, which begin at these times; one for each span, also of those that do not count."""
        return replace(self, fixed_ns=start_ns)

    def starts(self, at_ns: Array | MeasuredTimes) -> Array:
        """Start of each span, nanoseconds."""
        return self.bounds(at_ns)[0][self.chosen]

    def ends(self, at_ns: Array | MeasuredTimes) -> Array:
        """End of each span, nanoseconds."""
        return self.bounds(at_ns)[1][self.chosen]

    def lengths(self, at_ns: Array | MeasuredTimes) -> Array:
        """Length of each span, nanoseconds."""
        start, end = self.bounds(at_ns)
        return (end - start)[self.chosen]

    def last(self, at_ns: Array | MeasuredTimes) -> Array:
        """Endpoint that each span ends with."""
        end = np.maximum.reduceat(at_ns[self.end], _starts_of_runs(self.end_of))
        latest = np.flatnonzero(at_ns[self.end] == end[self.end_of])
        return self.end[latest[_starts_of_runs(self.end_of[latest])]][self.chosen]

    def may_end_with(self, nth: int) -> Array:
        """Endpoints that one of the spans may end with."""
        low, high = np.searchsorted(self.end_of, self.chosen[nth] + np.arange(2))
        return self.end[low:high]

    def own_starts(self, at_ns: Array | MeasuredTimes) -> Array:
        """Time at which each span's own nodes begin, whatever is before, also of those that do not count."""
        return np.minimum.reduceat(at_ns[self.begin], _starts_of_runs(self.begin_of)) + self.late_ns

    def bounds(self, at_ns: Array | MeasuredTimes) -> tuple[Array, Array]:
        """Start and end of each span, also of those that do not count, nanoseconds."""
        if not len(self.ranks):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        end = np.maximum.reduceat(at_ns[self.end], _starts_of_runs(self.end_of))
        if self.fixed_ns is not None:
            return self.fixed_ns, np.maximum(self.fixed_ns, end)
        start = self.own_starts(at_ns)
        order, rank = self.sequence, self.ranks[self.sequence]
        latest = _latest(end[order], rank)
        before = np.append(0, latest[:-1])  # when all that come before have ended
        own = start[order]
        of_rank = np.append(False, rank[1:] == rank[:-1])
        own = np.where(of_rank, np.where(self.follows, before, np.maximum(own, before)), own)
        start[order], end[order] = np.minimum(own, latest), latest
        return start, end


def step_spans(trace: Trace, ranks: Sequence[int], *, by_rank: bool = False) -> Spans:
    """Spans of every training step, over these ranks or of each; none without steps.

    Parameters
    ----------
    ranks
        Ranks that count.
    by_rank
        Each rank by itself.
    """
    return trace.cached(
        f"step times {by_rank} {list(ranks)}",
        lambda _: _spans_of_steps(trace, ranks, by_rank=by_rank, measured=False),
    )


def measured_spans(trace: Trace, ranks: Sequence[int], *, by_rank: bool = False) -> Spans:
    """Spans as of `step_spans`, with the nodes alone that each begins and ends with on each rank as it was measured.

    ::

        of a rank and step    [--- A ---]  [- B -]  [--- C ---]
        may begin, may end    A, B, C      A, B, C
        as measured           A            C

    Of GPU work each piece may be the last of its step; of a job of many ranks that is much, and their times are enough.
    """
    return trace.cached(
        f"measured steps {by_rank} {list(ranks)}",
        lambda _: _spans_of_steps(trace, ranks, by_rank=by_rank, measured=True),
    )


def job_spans(trace: Trace, ranks: Sequence[int], *, by_rank: bool = False) -> Spans:
    """Spans of all steps as one, or without steps of all that these ranks do; else as of `step_spans`.

    They begin with the first range: of all that was recorded, work from before the recording is a part, which
    changes move as well.
    """
    starts, ends = _step_nodes(trace, _marked(trace, ranks))
    if not len(starts):
        starts = ends = _job_nodes(trace, ranks)
    both = np.concatenate([starts, ends])
    none = np.full(len(both), NO_STEP)
    span_rank = _span_ranks(trace, both, by_rank=by_rank)
    return spans_of_nodes(trace, none, span_rank, starts, ends, begins_late=False)


class MeasuredTimes:
    """Measured time of each endpoint of a trace, of starts and ends of its nodes by turns, where it is asked for."""

    def __init__(self, trace: Trace) -> None:
        self._ts, self._dur = trace.array("ts"), trace.array("dur")

    def __getitem__(self, endpoint: Array) -> Array:
        """Times of some endpoints, nanoseconds."""
        node = endpoint // 2
        return np.asarray(self._ts[node] + np.where(endpoint % 2, self._dur[node], 0))


def _spans_of_steps(trace: Trace, ranks: Sequence[int], *, by_rank: bool, measured: bool) -> Spans:
    starts, ends = _step_nodes(trace, _marked(trace, ranks), measured=measured)
    both = np.concatenate([starts, ends])
    iteration = trace.integers("iteration", both)
    span_rank = _span_ranks(trace, both, by_rank=by_rank)
    return spans_of_nodes(trace, iteration, span_rank, starts, ends)


def _marked(trace: Trace, ranks: Collection[int]) -> list[training_steps.Step]:
    chosen = set(ranks)
    return [step for step in training_steps.marked(trace) if step.rank in chosen]


def _span_ranks(trace: Trace, nodes: Array, *, by_rank: bool) -> Array:
    """Rank of the span of each of these nodes."""
    return trace.array("rank")[nodes] if by_rank else np.full(len(nodes), ALL_RANKS, np.int32)


def spans_of_nodes(
    trace: Trace,
    step: Array,
    span_rank: Array,
    starts: Array,
    ends: Array,
    *,
    begins_late: bool = True,
) -> Spans:
    """Spans, one for each distinct step and rank that has both nodes to begin and to end with.

    Parameters
    ----------
    step, span_rank
        Of each of `starts`, and then of each of `ends`: which span it is of.
    starts, ends
        Nodes that spans may begin with, and those that they may end with.
    begins_late
        True if the first of each rank waits for what GPUs had to do from before the recording.
    """
    first, code = gather.distinct(step, span_rank)
    of_starts, of_ends = code[: len(starts)], code[len(starts) :]
    begun, ended = np.zeros((2, len(first)), bool)
    begun[of_starts], ended[of_ends] = True, True
    complete = begun & ended
    # number the complete ones by step and rank; the others keep -1 and their endpoints go
    order = np.lexsort((span_rank[first], step[first]))
    order = order[complete[order]]
    number = np.full(len(first), -1)
    number[order] = np.arange(len(order))
    examples = first[order]  # one node of each span
    begin, begin_of = _by_span(2 * starts, number[of_starts])
    end, end_of = _by_span(2 * ends + 1, number[of_ends])
    rank, iteration = span_rank[examples].astype(np.int32), step[examples].astype(np.int32)
    none = np.zeros(len(rank), np.int64)
    spans = Spans(
        rank, iteration, begin, begin_of, end, end_of, none, none > 0, none, np.arange(len(rank))
    )
    return _in_sequence(trace, spans, begins_late=begins_late) if len(rank) else spans


def _in_sequence(trace: Trace, spans: Spans, *, begins_late: bool) -> Spans:
    """Put spans in order, and find when the first of each rank begins."""
    at = MeasuredTimes(trace)
    start = np.minimum.reduceat(at[spans.begin], _starts_of_runs(spans.begin_of))
    sequence = np.lexsort((spans.iterations, start, spans.ranks))
    rank, number = spans.ranks[sequence], spans.iterations[sequence]
    is_first = np.append(True, rank[1:] != rank[:-1])
    follows = ~is_first & (number == np.append(0, number[:-1] + 1))
    if _lacks_launches(trace):
        follows[:] = False  # nothing says what lies between steps
    late = np.zeros(len(rank), np.int64)
    if begins_late and training_steps.marked(trace):
        firsts = sequence[is_first]
        late[firsts] = _backlogs_ns(trace, spans, firsts, start[firsts])
    return replace(spans, sequence=sequence, follows=follows, late_ns=late)


def _lacks_launches(trace: Trace) -> bool:
    """True if there is GPU work, and no launch of any is known."""
    has_work = False
    for rows in rank_batches.blocks(trace):
        work = is_any(trace.array("kind")[rows], GPU_WORK)
        has_work |= bool(work.any())
        if (trace.launch[rows][work] >= 0).any():
            return False
    return has_work


def _by_span(endpoint: Array, span: Array) -> tuple[Array, Array]:
    """Endpoints in order of their span's number, without those of none, and these numbers."""
    endpoint, span = endpoint[span >= 0], span[span >= 0]
    order = np.argsort(span, kind="stable")
    return endpoint[order], span[order]


def _job_nodes(trace: Trace, ranks: Sequence[int]) -> Array:
    """Nodes that a job without steps consists of; only where there are no others, of those that end nothing.

    These are profilers' own records, and threads on which nothing but Python's functions and queries was recorded.
    """
    kind, lane = trace.array("kind"), trace.array("lane")
    metadata = (Kind.SPAN, Kind.INSTANT, Kind.OVERHEAD)
    timed = np.isin(trace.array("rank"), ranks) & takes_time(trace)
    shown = timed & ~is_any(kind, metadata)
    only_waits = (kind == Kind.PYTHON) | (ordering_calls.node_roles(trace) == Role.POLL)
    has_others = np.zeros(trace.lanes.num_rows, bool)
    has_others[lane[shown & ~only_waits]] = True
    nodes = next((some for some in (shown & has_others[lane], shown) if some.any()), timed)
    return np.flatnonzero(nodes)


def _step_nodes(
    trace: Trace, marked: list[training_steps.Step], *, measured: bool = False
) -> tuple[Array, Array]:
    """Nodes that steps may begin with, and those that they may end with; or of each rank those that they did."""
    if not marked:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    known = np.array(marked, np.int64)  # rank, iteration, start, end
    begins, ends = [], []
    for span in rank_batches.spans(trace):  # each with all nodes of its ranks
        of_span = np.isin(known[:, 0], trace.array("rank")[span])
        if of_span.any():
            nodes = np.flatnonzero(takes_time(trace, span)) + span.start
            of_begins, of_ends = _step_nodes_among(trace, known[of_span], nodes)
            if measured:
                of_begins = _least(trace, of_begins, trace.array("ts")[of_begins])
                end = trace.array("ts")[of_ends] + trace.array("dur")[of_ends]
                of_ends = _least(trace, of_ends, -end)
            begins.append(of_begins)
            ends.append(of_ends)
        spill.release()
    return gather.joined(begins), gather.joined(ends)


def _least(trace: Trace, nodes: Array, value: Array) -> Array:
    """Of the nodes of each rank and step the first one with the least value."""
    if not nodes.size:
        return nodes
    first, code = gather.distinct(trace.array("rank")[nodes], trace.integers("iteration", nodes))
    least = value[first]
    np.minimum.at(least, code, value)
    at = np.flatnonzero(value == least[code])
    return np.asarray(nodes[at[gather.distinct(code[at])[0]]])


def _step_nodes_among(trace: Trace, known: Array, nodes: Array) -> tuple[Array, Array]:
    """`_step_nodes` among the nodes of some ranks that take time, whose steps are known by rank, iteration, start, end."""
    iteration = trace.integers("iteration", nodes)
    rows, iteration = nodes[iteration >= 0], iteration[iteration >= 0]
    rank, ts = trace.array("rank")[rows], trace.array("ts")[rows]
    end = ts + trace.array("dur")[rows]
    # ranges and nodes get common codes by rank and step, which lead from each node to its range
    pairs = [
        np.concatenate([known[:, 0], rank]),
        np.concatenate([known[:, 1], iteration]),
    ]
    _, code = gather.distinct(*pairs)
    range_of_code = np.full(int(code.max()) + 1, -1)
    range_of_code[code[: len(known)]] = np.arange(len(known))
    of_node = range_of_code[code[len(known) :]]
    is_known = of_node >= 0
    rows, ts, end, of_node = (values[is_known] for values in (rows, ts, end, of_node))
    start, stop = known[of_node, 2], known[of_node, 3]
    call = trace.launch[rows]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    called = trace.array("ts")[call]
    launched = work & (call >= 0) & (called >= start) & (called < stop)
    marks = (ts == start) & (end == stop) & ~work
    has_mark = np.zeros(len(known), bool)
    has_mark[of_node[marks]] = True
    bounds = marks | ~has_mark[of_node]
    return rows[(ts >= start) & bounds], rows[((end <= stop) & bounds) | launched]


def _latest(end: Array, rank: Array) -> Array:
    """Latest of the ends up to each within its rank; equal ranks are together."""
    times, place = np.unique(end, return_inverse=True)
    # each rank's places lie above those of the one before it, so that one running maximum serves all of them; times
    # themselves do not fit where clocks of many ranks differ
    shift = np.cumsum(np.append(0, rank[1:] != rank[:-1])) * len(times)
    return np.asarray(times[np.maximum.accumulate(place + shift) - shift])


def _starts_of_runs(code: Array) -> Array:
    """Positions at which ascending codes change: where `reduceat` begins a group."""
    return np.flatnonzero(np.diff(code, prepend=-1))


_LAUNCH_NS = 100_000
"""The most that work starts behind its launch on an idle GPU. Chosen: 2 to 20 µs are usual, and steps take milliseconds."""

_IDLE_CALL_NS = 100_000
"""The most that a call takes that waits for an idle GPU. Chosen: it took 6 µs on H100, 31 to 37 on MI300X."""

_MAX_BACKLOGS_OF_WAITS = 10
"""The most that a backlog lasts, in times that its waits took. Chosen: what only seems to wait, as a copy that begins
0.16 ms behind its call while the host fills a buffer, must not take 70 ms from a step."""


def _backlogs_ns(trace: Trace, spans: Spans, firsts: Array, begin_ns: Array) -> list[int]:
    """Time from the begin of each of these first steps until what was launched before the recording is done.

    It is that of the first rank of which it is. The first work of a step waited behind its launch, and its host in calls before
    that, longer than in a call on an idle GPU: the last of these waits ends when it is done. What the host did meanwhile does
    not count, as in later steps.

    Parameters
    ----------
    trace, spans
        A job and its steps.
    firsts, begin_ns
        Numbers of the first steps, and when each began on the axis of `ts`.
    """
    of_ranks: dict[int, list[tuple[int, int]]] = {}
    """By rank: positions of first steps that it has, and their iterations."""
    for position, span in enumerate(firsts.tolist()):
        low, high = np.searchsorted(spans.begin_of, (span, span + 1))
        node = spans.begin[low:high] // 2
        earliest = node[np.argmin(trace.array("ts")[node])]
        step = int(trace.integers("iteration", np.array([earliest]))[0])
        for rank in gather.unique(trace.array("rank")[node]).tolist():
            of_ranks.setdefault(rank, []).append((position, step))
    backlogs: list[list[int]] = [[] for _ in firsts]
    for rows, part in rank_batches.batches(trace):
        synced = host_waits.find_waits(part, host_waits.calls_among(trace, rows))
        for rank in part.ranks:
            for position, step in of_ranks.get(rank, ()):
                backlogs[position] += _backlog(part, synced, rank, step, int(begin_ns[position]))
    return [min(of_step, default=0) for of_step in backlogs]


def _backlog(trace: Trace, synced: HostWaits, rank: int, step: int, begin_ns: int) -> list[int]:
    """Backlog of a rank, nanoseconds; none without work of that step whose launch is known."""
    ts, rows = trace.array("ts"), trace.rank_rows[rank]
    launched = is_any(trace.array("kind")[rows], GPU_WORK) & (trace.launch[rows] >= 0)
    work = np.flatnonzero(launched & (trace.integers("iteration", rows) == step)) + rows.start
    if not work.size:
        return []
    call = trace.launch[work]
    first = np.argmin(ts[call])
    low, high = synced.first[trace.array("lane")[call[first]] + np.arange(2)]
    start, end = synced.start[low:high], synced.end[low:high]
    since, until = np.maximum(start, begin_ns), np.minimum(end, ts[call[first]])
    held = (end - start > _IDLE_CALL_NS) & (until > since)
    behind = ts[work] - ts[call]
    is_queued = behind[first] > _LAUNCH_NS
    queued = int(behind[first] - min(behind.min(), _LAUNCH_NS)) if is_queued else 0
    done = ts[call[first]] + queued if is_queued else until[held].max(initial=begin_ns)
    waited = queued + int((until - since)[held].sum())
    return [min(int(done) - begin_ns, _MAX_BACKLOGS_OF_WAITS * waited)]
