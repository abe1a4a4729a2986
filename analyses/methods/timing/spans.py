"""Lengths of a job or its training steps, by endpoints of the timing model, however these move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.arrays import gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.timing.model import takes_time

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Spans:
    """Spans of time, each from the first of some endpoints to the last of others.

    Parameters
    ----------
    rank, iteration
        Of each span; `windows.ALL_RANKS` and `windows.NO_STEP` where it is of no single one.
    begin, begin_of
        Endpoints that a span may begin with, and the number of that span, ascending.
    end, end_of
        Endpoints that it may end with, and the number of the span.
    """

    rank: Array
    iteration: Array
    begin: Array
    begin_of: Array
    end: Array
    end_of: Array

    def __len__(self) -> int:
        return len(self.rank)

    def starts(self, at_ns: Array) -> Array:
        """Start of each span, nanoseconds."""
        if not len(self):
            return np.empty(0, np.int64)
        return np.minimum.reduceat(at_ns[self.begin], _starts_of_runs(self.begin_of))

    def ends(self, at_ns: Array) -> Array:
        """End of each span, nanoseconds."""
        if not len(self):
            return np.empty(0, np.int64)
        return np.maximum.reduceat(at_ns[self.end], _starts_of_runs(self.end_of))

    def lengths(self, at_ns: Array) -> Array:
        """Length of each span, nanoseconds."""
        return self.ends(at_ns) - self.starts(at_ns)

    def last(self, at_ns: Array) -> Array:
        """Endpoint that each span ends with."""
        latest = np.flatnonzero(at_ns[self.end] == self.ends(at_ns)[self.end_of])
        return self.end[latest[_starts_of_runs(self.end_of[latest])]]


def spans_of_timing(
    timing: Timing, steps: str = "", ranks: str = "", *, by_rank: bool = False
) -> Spans:
    """Spans of a job: of all of it or of training steps, over all its ranks or of each.

    A step is the range that marks it, or where there is none what its hosts do, and the work of GPUs
    that is launched in it until it has ended. What threads other than the one with the range wait
    for in between is not known: they do not hold the step up. All of a job is all of its steps, or
    where it has none everything.

    Parameters
    ----------
    steps, ranks
        As of `windows.rank_windows`.
    by_rank
        Each rank by itself.
    """
    return spans_of_trace(timing.trace, steps, ranks, by_rank=by_rank)


def endpoint_times(trace: Trace) -> Array:
    """Measured time of each endpoint of a trace: starts and ends of its nodes by turns."""
    at = np.repeat(trace.array("ts"), 2)
    at[1::2] += trace.array("dur")
    return at


def spans_of_trace(
    trace: Trace, steps: str = "", ranks: str = "", *, by_rank: bool = False
) -> Spans:
    """Spans as of `spans_of_timing`, for a trace that needs no timing model."""
    selected = windows.chosen_ranks(trace, ranks)
    marked = windows.step_windows(trace) if not steps else windows.rank_windows(trace, steps)
    chosen = set(selected)
    marked = [w for w in marked if w.rank in chosen]
    rank = trace.array("rank")
    if marked:
        starts, ends, iteration = _step_nodes(trace, marked)
    else:
        starts = ends = _job_nodes(trace, selected)
        iteration = np.full(len(rank), windows.NO_STEP)
    step = iteration if steps else np.full(len(rank), windows.NO_STEP)
    span_rank = rank if by_rank else np.full(len(rank), windows.ALL_RANKS, rank.dtype)
    return _build_spans(step, span_rank, starts, ends)


def _build_spans(step: Array, span_rank: Array, starts: Array, ends: Array) -> Spans:
    """Spans, one for each distinct step and rank that has both nodes to begin and to end with.

    Parameters
    ----------
    step, span_rank
        Of each node: which span it is of.
    starts, ends
        Nodes that spans may begin with, and those that they may end with.
    """
    both = np.concatenate([starts, ends])
    first, code = gather.distinct(step[both], span_rank[both])
    of_starts, of_ends = code[: len(starts)], code[len(starts) :]
    complete = np.zeros(len(first), bool)
    complete[of_starts] = True
    complete[np.setdiff1d(of_starts, of_ends)] = False
    # number the complete ones by step and rank; the others keep -1 and their endpoints go
    order = np.lexsort((span_rank[both][first], step[both][first]))
    order = order[complete[order]]
    number = np.full(len(first), -1)
    number[order] = np.arange(len(order))
    examples = both[first[order]]  # one node of each span
    begin, begin_of = _by_span(2 * starts, number[of_starts])
    end, end_of = _by_span(2 * ends + 1, number[of_ends])
    rank, iteration = span_rank[examples].astype(np.int32), step[examples].astype(np.int32)
    return Spans(rank, iteration, begin, begin_of, end, end_of)


def _by_span(endpoint: Array, span: Array) -> tuple[Array, Array]:
    """Endpoints in order of their span's number, without those of none, and these numbers."""
    endpoint, span = endpoint[span >= 0], span[span >= 0]
    order = np.argsort(span, kind="stable")
    return endpoint[order], span[order]


def _job_nodes(trace: Trace, ranks: list[int]) -> Array:
    """Nodes that a job without steps consists of; profilers' own records only where there are no others."""
    metadata = (Kind.SPAN, Kind.INSTANT, Kind.OVERHEAD)
    timed = np.isin(trace.array("rank"), ranks) & takes_time(trace)
    work = timed & ~is_any(trace.array("kind"), metadata)
    return np.flatnonzero(work if work.any() else timed)


def _step_nodes(trace: Trace, marked: list[windows.Window]) -> tuple[Array, Array, Array]:
    """Nodes that steps may begin with, those that they may end with, and the step of each node."""
    iteration = trace.integers("iteration")
    rank = trace.array("rank")
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    rows = np.flatnonzero((iteration >= 0) & takes_time(trace))
    known = np.array([(w.rank, w.iteration, w.start_ns, w.end_ns) for w in marked], np.int64)
    # windows and nodes get common codes by rank and step, which lead from each node to its window
    pairs = [
        np.concatenate([known[:, 0], rank[rows]]),
        np.concatenate([known[:, 1], iteration[rows]]),
    ]
    _, code = gather.distinct(*pairs)
    window_of_code = np.full(int(code.max()) + 1, -1)
    window_of_code[code[: len(known)]] = np.arange(len(known))
    window = window_of_code[code[len(known) :]]
    rows, window = rows[window >= 0], window[window >= 0]
    start, stop = known[window, 2], known[window, 3]
    call = trace.launch[rows]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    called = ts[call]
    launched = work & (call >= 0) & (called >= start) & (called < stop)
    marks = (ts[rows] == start) & (end[rows] == stop) & ~work
    has_mark = np.zeros(len(known), bool)
    has_mark[window[marks]] = True
    bounds = marks | ~has_mark[window]
    starts = rows[(ts[rows] >= start) & bounds]
    ends = rows[((end[rows] <= stop) & bounds) | launched]
    return starts, ends, iteration


def _starts_of_runs(code: Array) -> Array:
    """Positions at which ascending codes change: where `reduceat` begins a group."""
    return np.flatnonzero(np.diff(code, prepend=-1))
