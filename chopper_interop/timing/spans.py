"""How long a job or its training steps last, by moments of the timing model, however these move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import windows
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.timing.model import lasting

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Spans:
    """Stretches from the first of some moments to the last of others.

    Parameters
    ----------
    rank, iteration
        Of each stretch; `windows.EVERY_RANK` and `windows.WHOLE` where it is of no single one.
    begin, begin_of
        Moments that a stretch may begin with, and the number of that stretch, ascending.
    end, end_of
        Moments that it may end with.
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
        """When each begins."""
        if not len(self):
            return np.empty(0, np.int64)
        return np.minimum.reduceat(at_ns[self.begin], _firsts(self.begin_of))

    def ends(self, at_ns: Array) -> Array:
        """When each ends."""
        if not len(self):
            return np.empty(0, np.int64)
        return np.maximum.reduceat(at_ns[self.end], _firsts(self.end_of))

    def lengths(self, at_ns: Array) -> Array:
        """How long each is."""
        return self.ends(at_ns) - self.starts(at_ns)

    def last(self, at_ns: Array) -> Array:
        """The moment that each ends with."""
        latest = np.flatnonzero(at_ns[self.end] == self.ends(at_ns)[self.end_of])
        return self.end[latest[_firsts(self.end_of[latest])]]


def of(timing: Timing, steps: str = "", ranks: str = "", *, by_rank: bool = False) -> Spans:
    """Stretches of a job: of all of it or of training steps, over all its ranks or of each.

    A step is the range that marks it, or where there is none what its hosts do, and the work of GPUs
    that is launched in it until it has ended. Of threads beside the one with the range nobody knows
    what they wait for in between: they do not hold it up. All of a job is all of its steps, or where
    it has none everything.

    Parameters
    ----------
    timing
        The model.
    steps, ranks
        As of `windows.of_ranks`.
    by_rank
        Each rank by itself.
    """
    return of_trace(timing.graph.trace, steps, ranks, by_rank=by_rank)


def measured(trace: Trace) -> Array:
    """When each moment of a trace was: starts and ends of its nodes by turns."""
    at = np.repeat(trace.array("ts"), 2)
    at[1::2] += trace.array("dur")
    return at


def of_trace(trace: Trace, steps: str = "", ranks: str = "", *, by_rank: bool = False) -> Spans:
    """As `of`, for a trace that nothing is to be timed anew in."""
    mine = windows.chosen_ranks(trace, ranks)
    marked = windows.marked(trace) if not steps else windows.of_ranks(trace, steps)
    marked = [w for w in marked if w.rank in mine]
    rank = trace.array("rank")
    if marked:
        starts, ends, iteration = _of_steps(trace, marked)
    else:
        starts = ends = _of_all(trace, mine)
        iteration = np.full(len(rank), windows.WHOLE)
    step = iteration if steps else np.full(len(rank), windows.WHOLE)
    who = rank if by_rank else np.full(len(rank), windows.EVERY_RANK, rank.dtype)
    return _made(step, who, starts, ends)


def _made(step: Array, who: Array, starts: Array, ends: Array) -> Spans:
    both = np.concatenate([starts, ends])
    first, code = gather.distinct(step[both], who[both])
    of_starts, of_ends = code[: len(starts)], code[len(starts) :]
    whole = np.zeros(len(first), bool)  # what begins and ends
    whole[of_starts] = True
    whole[np.setdiff1d(of_starts, of_ends)] = False
    order = np.lexsort((who[both][first], step[both][first]))
    order = order[whole[order]]
    number = np.full(len(first), -1)
    number[order] = np.arange(len(order))
    rows = both[first[order]]  # one of each
    begin, begin_of = _sorted(2 * starts, number[of_starts])
    end, end_of = _sorted(2 * ends + 1, number[of_ends])
    rank, iteration = who[rows].astype(np.int32), step[rows].astype(np.int32)
    return Spans(rank, iteration, begin, begin_of, end, end_of)


def _sorted(moment: Array, of: Array) -> tuple[Array, Array]:
    moment, of = moment[of >= 0], of[of >= 0]
    order = np.argsort(of, kind="stable")
    return moment[order], of[order]


def _of_all(trace: Trace, ranks: list[int]) -> Array:
    """Nodes that a job without steps consists of."""
    about = (Kind.SPAN, Kind.INSTANT, Kind.OVERHEAD)
    told = np.isin(trace.array("rank"), ranks) & lasting(trace)
    work = told & ~is_any(trace.array("kind"), about)
    return np.flatnonzero(work if work.any() else told)


def _of_steps(trace: Trace, marked: list[windows.Window]) -> tuple[Array, Array, Array]:
    """Nodes that steps may begin with, those that they may end with, and the step of each node."""
    iteration = arrow.numbers(trace.nodes["iteration"], -1).astype(np.int64)
    rank = trace.array("rank")
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    rows = np.flatnonzero((iteration >= 0) & lasting(trace))
    told = np.array([(w.rank, w.iteration, w.start_ns, w.end_ns) for w in marked], np.int64)
    both = [np.concatenate([told[:, 0], rank[rows]]), np.concatenate([told[:, 1], iteration[rows]])]
    _, code = gather.distinct(*both)
    window = np.full(int(code.max()) + 1, -1)
    window[code[: len(told)]] = np.arange(len(told))
    of_row = window[code[len(told) :]]
    rows, of_row = rows[of_row >= 0], of_row[of_row >= 0]
    start, stop = told[of_row, 2], told[of_row, 3]
    call = trace.launch[rows]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    at = ts[call]
    launched = work & (call >= 0) & (at >= start) & (at < stop)
    marks = (ts[rows] == start) & (end[rows] == stop) & ~work
    has_mark = np.zeros(len(told), bool)
    has_mark[of_row[marks]] = True
    tells = marks | ~has_mark[of_row]
    starts = rows[(ts[rows] >= start) & tells]
    ends = rows[((end[rows] <= stop) & tells) | launched]
    return starts, ends, iteration


def _firsts(code: Array) -> Array:
    return np.flatnonzero(np.diff(code, prepend=-1))
