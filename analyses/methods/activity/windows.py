"""Windows of time of a job that analyses look at: all of it or training steps, some ranks or all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chopper_interop import number_ranges, rank_batches, training_steps
from chopper_interop.analyses.methods.activity import step_times
from chopper_interop.analyses.methods.activity.step_times import ALL_RANKS, NO_STEP, Spans
from chopper_interop.arrays import Array, spill
from chopper_interop.arrays.gather import consecutive, is_any
from chopper_interop.errors import MissingDataError, UsageError
from chopper_interop.grouping import by_key
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import ORDER
from chopper_interop.trace import Trace

_APART = "ranks-apart"
"""Fault of recordings whose times do not overlap."""

__all__ = [
    "ALL_RANKS", "NO_STEP", "Window", "are_apart", "batches", "check_steps_and_ranks", "chosen_ranks", "chosen_steps",
    "describe", "has_steps", "job_windows", "marked_windows", "merged_windows", "overlapping_windows",
    "rank_windows", "starting_in_windows", "step_windows", "windows_with_job_time", "work_count", "work_notes",
]  # fmt: skip


@dataclass(frozen=True)
class Window:
    """An interval of time of a rank, or of the whole job; times on the axis of `ts`, nanoseconds.

    Parameters
    ----------
    rank
        Global rank, `ALL_RANKS` for all.
    iteration
        Training step, `NO_STEP` where the window is not one step.
    start_ns, end_ns
        Start and end.
    """

    rank: int
    iteration: int
    start_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """Length, nanoseconds."""
        return self.end_ns - self.start_ns


def chosen_ranks(trace: Trace, ranks: str = "", also: Collection[int] = ()) -> list[int]:
    """Ranks by numbers and ranges, ``"0,4-7"``; all where the text is empty.

    Parameters
    ----------
    ranks
        The text.
    also
        Ranks that exist in addition to those of nodes, such as those of telemetry.

    Raises
    ------
    UsageError
        The text is no list of numbers and ranges, or the trace lacks one of the ranks.
    """
    if not ranks:
        return trace.ranks
    requested = number_ranges.parse("ranks", ranks)
    present = {*trace.ranks, *also}
    if missing := [r for r in requested if r not in present]:
        raise UsageError(
            f"the trace has no rank {missing[0]}",
            hint=f"it has {number_ranges.describe(sorted(present))}",
        )
    return requested


def rank_windows(trace: Trace, steps: str = "", ranks: str = "") -> list[Window]:
    """Windows of each rank, in order of rank and step.

    Parameters
    ----------
    steps
        ``""``: from the first start to the last end of the rank's GPU work; ``"each"``: every
        training step by itself; ``"3"``, ``"3,5-7"``: these steps, each by itself, as `step_times`
        defines them.
    ranks
        As of `chosen_ranks`.

    Raises
    ------
    UsageError
        There are no training steps, or not these.
    """
    selected = chosen_ranks(trace, ranks)
    if not steps:
        return [w for w in (_work_window(trace, rank) for rank in selected) if w is not None]
    numbers, chosen = set(chosen_steps(trace, steps, ranks)), set(selected)
    return [w for w in step_windows(trace) if w.rank in chosen and w.iteration in numbers]


def batches(
    trace: Trace, rank_windows: Sequence[Window]
) -> Iterator[tuple[slice, Trace, list[Window]]]:
    """Yield the rows of each batch of ranks, the trace of these alone, and those of the windows that are theirs.

    Windows are in order of rank, and so are those of a batch.
    """
    of_ranks = by_key(rank_windows, lambda window: window.rank)
    for rows, part in rank_batches.batches(trace):
        yield rows, part, [window for rank in part.ranks for window in of_ranks.get(rank, ())]


def job_windows(trace: Trace, steps: str = "", ranks: str = "") -> list[Window]:
    """Windows of the job, over all chosen ranks: each step, or all of their GPU work.

    Parameters
    ----------
    steps, ranks
        As of `rank_windows`.
    """
    if not steps:
        return merged_windows(rank_windows(trace, "", ranks))
    spans = step_times.measured_spans(trace, chosen_ranks(trace, ranks))
    return _measured(trace, spans.of_steps(chosen_steps(trace, steps, ranks)))


def windows_with_job_time(
    trace: Trace, of_ranks: Sequence[Window], ranks: str = ""
) -> list[Window]:
    """Windows of ranks with the time of the same step of the job, or of all of it: shares are of the time over all ranks.

    Where recordings are of different times, nothing says how long all of it took, and ranks keep their own.
    """
    chosen = chosen_ranks(trace, ranks)
    every = _measured(trace, step_times.measured_spans(trace, chosen))
    if not are_apart(trace):
        every += _measured(trace, step_times.job_spans(trace, chosen))
    jobs = {window.iteration: window for window in every}
    return [replace(jobs.get(one.iteration, one), rank=one.rank) for one in of_ranks]


def are_apart(trace: Trace) -> bool:
    """True if ranks were recorded at different times: that from the first to the last says nothing."""
    return any(issue.code == _APART for issue in trace.meta.issues)


def merged_windows(of_ranks: Sequence[Window]) -> list[Window]:
    """Windows from the first start to the last end of those of each step."""
    by_step = by_key(of_ranks, lambda window: window.iteration)
    return [
        Window(ALL_RANKS, step, min(w.start_ns for w in same), max(w.end_ns for w in same))
        for step, same in sorted(by_step.items())
    ]


def step_windows(trace: Trace) -> list[Window]:
    """Every training step of every rank, in order of rank and start."""
    return _measured(trace, step_times.measured_spans(trace, trace.ranks, by_rank=True))


def marked_windows(trace: Trace, steps: str = "each") -> list[Window]:
    """Ranges that mark training steps: what hosts do in them, whenever GPUs follow."""
    numbers = set(chosen_steps(trace, steps))
    return [Window(*one) for one in training_steps.marked(trace) if one.iteration in numbers]


def has_steps(trace: Trace, ranks: str = "") -> bool:
    """True if the trace has training steps, on some ranks."""
    chosen = set(chosen_ranks(trace, ranks))
    return any(step.rank in chosen for step in training_steps.marked(trace))


def _measured(trace: Trace, spans: Spans) -> list[Window]:
    at = step_times.MeasuredTimes(trace)
    columns = (spans.rank, spans.iteration, spans.starts(at), spans.ends(at))
    order = np.lexsort((spans.iteration, columns[2], spans.rank))
    return [
        Window(*row) for row in zip(*(column[order].tolist() for column in columns), strict=True)
    ]


def describe(steps: str, if_all: str) -> str:
    """Description of a result's window, for its notes.

    Parameters
    ----------
    steps
        The option.
    if_all
        The description if no steps are chosen.
    """
    if not steps:
        return if_all
    chosen = "every training step" if steps == "each" else f"training steps {steps}"
    return f"{chosen} by itself, from the end of the one before; of work that reaches beyond, the part within"


def work_notes(trace: Trace, steps: str) -> dict[str, str]:
    """Notes on windows of ranks; those of all GPU work are not those of training steps, where there are any."""
    notes = {"window": describe(steps, "from the first start to the last end of a rank's GPU work")}
    if not steps and has_steps(trace):
        notes["steps"] = "from the first to the last GPU work; --steps each has the steps"
    return notes


def work_count(trace: Trace, ranks: str = "") -> int:
    """Number of pieces of GPU work of the chosen ranks."""
    count, kind = 0, trace.array("kind")
    for rank in chosen_ranks(trace, ranks):
        of_rank = kind[trace.rank_rows[rank]]
        count += int(np.count_nonzero(is_any(of_rank, GPU_WORK)))
        spill.copied(of_rank.nbytes)
    return count


def _work_window(trace: Trace, rank: int) -> Window | None:
    """Window of all GPU work of a rank; None without any."""
    rows = trace.rank_rows[rank]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    return _extent(trace, rank, np.flatnonzero(work) + rows.start) if work.any() else None


def _extent(trace: Trace, rank: int, rows: Array) -> Window:
    """Window from the first start to the last end of these nodes."""
    start = trace.array("ts")[rows]
    return Window(rank, NO_STEP, int(start.min()), int((start + trace.array("dur")[rows]).max()))


def chosen_steps(trace: Trace, steps: str, ranks: str = "") -> list[int]:
    """Numbers of the training steps that an option names, ascending; those of some ranks.

    Raises
    ------
    UsageError
        There are no training steps, or not these.
    """
    requested = [] if steps == "each" else number_ranges.parse("steps", steps)
    chosen = set(chosen_ranks(trace, ranks))
    present = sorted({one.iteration for one in training_steps.marked(trace) if one.rank in chosen})
    of = f" on ranks {ranks}" if ranks else ""
    if not present:
        raise UsageError(
            f"the trace has no training steps{of}", hint="leave steps out to ask about all of it"
        )
    if missing := [n for n in requested if n not in present]:
        raise UsageError(
            f"the trace has no training step {missing[0]}{of}",
            hint=f"it has {number_ranges.describe(present)}",
        )
    return present if steps == "each" else sorted(requested)


def check_steps_and_ranks(steps: str = "", ranks: str = "") -> None:
    """Raise `OptionError` for what names no steps or ranks in any trace."""
    for option, text in (("steps", steps), ("ranks", ranks)):
        if text and (option, text) != ("steps", "each"):
            number_ranges.parse(option, text)


def check_has_times(trace: Trace) -> None:
    """Raise `MissingDataError` for a trace whose operations are known by their order alone."""
    if trace.meta.clock == ORDER and trace.nodes.num_rows:
        raise MissingDataError(
            "no times of operations were recorded", hint="give a profile of the same job too"
        )


def starting_in_windows(
    trace: Trace, rows: Array, rank_windows: Sequence[Window]
) -> tuple[Array, Array]:
    """Nodes that start in windows of their rank.

    Returns
    -------
    position, window
        Positions in `rows`, and numbers of windows; one pair for each window that a node starts in.
    """
    ts, rank = trace.array("ts")[rows], trace.array("rank")[rows]
    positions, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, window in enumerate(rank_windows):
        low, high = np.searchsorted(rank, [window.rank, window.rank + 1])
        rank_ts = ts[low:high]
        # a window of all of a rank ends with its last work, which may begin there and take no time
        until = window.end_ns + (window.iteration < 0)
        first, stop = low + np.searchsorted(rank_ts, np.array([window.start_ns, until]))
        inside = np.arange(first, max(first, stop))
        positions.append(inside)
        numbers.append(np.full(len(inside), number, np.int64))
    return np.concatenate(positions), np.concatenate(numbers)


def overlapping_windows(
    lists: tuple[Array, Array],
    start: Array,
    end: Array,
    rank: Array,
    rank_windows: Sequence[Window],
) -> tuple[Array, Array]:
    """Pairs of intervals and the windows of their rank that they overlap.

    Parameters
    ----------
    lists
        Intervals by lane or the like, as `gather.group_rows` gives them: within each of these lists all
        are of one rank, and both starts and ends ascend.
    start, end, rank
        Of each interval.
    rank_windows
        Windows in order of rank.

    Returns
    -------
    at, window
        Positions of intervals, and numbers of windows; one each for every pair.
    """
    first, interval = lists
    ranks, begins, ends = (
        np.array([getattr(window, name) for window in rank_windows], np.int64)
        for name in ("rank", "start_ns", "end_ns")
    )
    empty = np.zeros(0, np.int64)
    at, numbers = [empty], [empty]
    for low, high in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        if low == high:
            continue
        listed = interval[low:high]
        same_rank = slice(*np.searchsorted(ranks, rank[listed[0]] + np.arange(2)))
        # each window overlaps a row of neighbours in the list: from the first that ends after the
        # window's start to the last that begins before its end
        since = np.searchsorted(end[listed], begins[same_rank], "right")
        count = np.maximum(np.searchsorted(start[listed], ends[same_rank], "left") - since, 0)
        at.append(listed[consecutive(since, count)])
        numbers.append(np.repeat(np.arange(same_rank.start, same_rank.stop), count))
    return np.concatenate(at), np.concatenate(numbers)
