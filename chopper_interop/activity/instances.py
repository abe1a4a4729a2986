"""GPU work as whole instances: what statistics count, in which steps and on which ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import windows
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

LINKS = "all GPU work counts, whether its launch is recorded or not"


@dataclass(frozen=True)
class Instances:
    """GPU work that is counted.

    Parameters
    ----------
    rows
        Its nodes, ascending.
    left_out
        How much GPU work of the chosen ranks is in none of the chosen steps.
    windows
        Steps of ranks, or the whole of each rank.
    """

    rows: Array
    left_out: int
    windows: list[windows.Window]


def chosen(trace: Trace, steps: str = "", ranks: str = "") -> Instances:
    """GPU work of some ranks and some steps, whole: of a step is what it asked for.

    Parameters
    ----------
    trace
        Any trace.
    steps, ranks
        As of `windows.of_ranks`.
    """
    work = is_any(trace.array("kind"), GPU_WORK)
    found = windows.of_ranks(trace, steps, ranks)
    if steps:
        taken = _in_steps(trace, found)
    else:
        taken = np.zeros(len(work), np.bool_)
        for window in found:
            taken[trace.rank_rows[window.rank]] = True
    rows = np.flatnonzero(work & taken)
    of_ranks = [trace.rank_rows[r] for r in windows.chosen_ranks(trace, ranks)]
    there = sum(int(np.count_nonzero(work[mine])) for mine in of_ranks)
    return Instances(rows, there - len(rows), found)


def _in_steps(trace: Trace, found: list[windows.Window]) -> Array:
    """What is of these steps: by the step that asked for it, else by where it starts."""
    ts, taken = trace.array("ts"), np.zeros(trace.nodes.num_rows, np.bool_)
    of_node = np.full(len(ts), -1, np.int64)
    if "iteration" in trace.nodes.column_names:
        of_node[:] = arrow.numbers(trace.nodes["iteration"], -1)
    for rank in sorted({w.rank for w in found}):
        mine, steps = trace.rank_rows[rank], [w for w in found if w.rank == rank]
        taken[mine] = np.isin(of_node[mine], [w.iteration for w in steps])
        for window in steps:
            a, b = np.searchsorted(ts[mine], [window.start_ns, window.end_ns]) + mine.start
            taken[a:b] |= of_node[a:b] < 0
    return taken


def described(steps: str) -> str:
    """What a result says of its window."""
    if not steps:
        return "all of the GPU work of each rank"
    which = "every training step" if steps == "each" else f"training steps {steps}"
    return f"{which}: GPU work that it asked for, whole; what nothing asked for, where it starts"


def covered(trace: Trace, rows: Array, code: Array, count: int) -> Array:
    """Time in which something of each group ran, by the union of its intervals on each GPU.

    Parameters
    ----------
    trace
        Any trace.
    rows
        Rows of nodes, ascending.
    code
        Group of each, from 0 to count - 1.
    count
        How many groups there are.

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
    """Time that each part covers; within it, starts ascend."""
    total = np.zeros(count, np.int64)
    reach = np.full(count, np.iinfo(np.int64).min)
    for i in range(len(part)):
        p = part[i]
        if end[i] > reach[p]:
            total[p] += end[i] - max(start[i], reach[p])
            reach[p] = end[i]
    return total
