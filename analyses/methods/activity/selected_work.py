"""Selection of GPU work by steps and ranks, each node as a whole: what statistics count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.grouping import by_key
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

LINKS = "all GPU work counts, whether its launch is recorded or not"


@dataclass(frozen=True)
class SelectedWork:
    """GPU work of selected steps and ranks.

    Parameters
    ----------
    rows
        Its nodes, ascending.
    left_out
        Number of nodes of GPU work of the selected ranks that are in none of the selected steps.
    windows
        Steps of ranks, or all of each rank.
    """

    rows: Array
    left_out: int
    windows: list[windows.Window]


class SelectedBatch(NamedTuple):
    """Selected GPU work of a batch of ranks.

    Parameters
    ----------
    first
        Row of the batch's first node in the trace.
    trace
        The batch itself.
    rows
        Its nodes that are selected, ascending.
    """

    first: int
    trace: Trace
    rows: Array


def select_work(trace: Trace, steps: str = "", ranks: str = "") -> SelectedWork:
    """Select GPU work of some ranks and some steps, uncut: work is of the step that launched it.

    Parameters
    ----------
    steps, ranks
        As of `windows.rank_windows`.
    """
    rank_windows = windows.rank_windows(trace, steps, ranks)
    rows = selected(trace, rank_windows, steps)
    return SelectedWork(rows, windows.work_count(trace, ranks) - len(rows), rank_windows)


def batches(
    trace: Trace, rank_windows: list[windows.Window], steps: str = ""
) -> Iterator[SelectedBatch]:
    """Yield the work of `select_work` for a batch of ranks at a time; windows are those of `windows.rank_windows`."""
    for rows, part, of_batch in windows.batches(trace, rank_windows):
        yield SelectedBatch(rows.start, part, selected(part, of_batch, steps))


def selected(trace: Trace, rank_windows: list[windows.Window], steps: str) -> Array:
    """Rows of the GPU work in windows of steps, or without steps of their ranks; windows as of `batches`."""
    if steps:
        inside = _is_in_steps(trace, rank_windows)
    else:
        inside = np.zeros(trace.nodes.num_rows, np.bool_)
        for window in rank_windows:
            inside[trace.rank_rows[window.rank]] = True
    return np.flatnonzero(is_any(trace.array("kind"), GPU_WORK) & inside)


def _is_in_steps(trace: Trace, rank_windows: list[windows.Window]) -> Array:
    """Mark nodes of these steps: by the step that launched them, else by where they start."""
    ts, inside = trace.array("ts"), np.zeros(trace.nodes.num_rows, np.bool_)
    iteration = trace.integers("iteration")
    for rank, steps in by_key(rank_windows, lambda window: window.rank).items():
        rows = trace.rank_rows[rank]
        inside[rows] = np.isin(iteration[rows], [w.iteration for w in steps])
        for window in steps:  # rows of a rank are in order of time
            a, b = np.searchsorted(ts[rows], [window.start_ns, window.end_ns]) + rows.start
            inside[a:b] |= iteration[a:b] < 0
    return inside


def describe(steps: str) -> str:
    """Description of a result's window, for its notes."""
    if not steps:
        return "all of the GPU work of each rank"
    chosen = "every training step" if steps == "each" else f"training steps {steps}"
    return f"{chosen}: GPU work that it asked for, whole; what nothing asked for, where it starts"


def covered_ns(trace: Trace, rows: Array, code: Array, count: int) -> Array:
    """Time in which something of each group ran, by the union of its intervals on each GPU.

    Parameters
    ----------
    rows
        Rows of nodes, ascending.
    code
        Group of each, from 0 to count - 1.
    count
        Number of groups.

    Returns
    -------
    numpy.ndarray
        Nanoseconds, summed over ranks and their devices.
    """
    device = trace.array("device", "lanes")[trace.array("lane")[rows]]
    first, part = gather.distinct(code, trace.array("rank")[rows], device)
    start = trace.array("ts")[rows]
    of_part = _covered(part, start, start + trace.array("dur")[rows], len(first))
    total = np.zeros(count, np.int64)
    np.add.at(total, code[first], of_part)
    return total


@jit
def _covered(part: Array, start: Array, end: Array, count: int) -> Array:
    """Time that each part covers; within it, starts ascend.

    Compiled: how far the part's intervals reach is carried along, for many interleaved parts.
    """
    total = np.zeros(count, np.int64)
    reach = np.full(count, np.iinfo(np.int64).min)
    for i in range(len(part)):
        p = part[i]
        if end[i] > reach[p]:
            total[p] += end[i] - max(start[i], reach[p])
            reach[p] = end[i]
    return total
