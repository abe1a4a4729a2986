"""The training step that each host node is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.structure.names import Names
    from chopper_interop.trace import Trace

BY_NAMES = Fault(
    "iterations-by-names",
    Severity.INFO,
    "Ranges that are called a step or iteration with a number were taken as the training steps, "
    "as the profiler marks none.",
)
COUNTED = Fault(
    "iterations-counted",
    Severity.INFO,
    "Nothing numbers the training steps: they were counted from 0, each until its optimizer is done.",
)
_RANGES = (Kind.CPU_OP, Kind.ANNOTATION)


def iterations(trace: Trace, names: Names, issues: IssueLog) -> Array:
    """Step of each host node by the host's steps; -1 where it is in none."""
    name, kind = trace.array("name"), trace.array("kind")
    result = np.full(trace.nodes.num_rows, -1, np.int32)
    ranges = is_any(kind, _RANGES)
    which = np.where(ranges, names.step_kind[name], -1)
    for mine in trace.rank_rows.values():
        ways = np.unique(which[mine][which[mine] >= 0])
        if ways.size:
            steps = np.flatnonzero(which[mine] == ways[0]) + mine.start
            result[mine] = _within(trace, mine, steps, names.step[name[steps]])
            if ways[0] == len(_EXACT):
                issues.add(BY_NAMES, len(steps), repr(trace.names()[name[steps[0]]]))
    return result


_EXACT = ("ProfilerStep#", "Iteration")
"""Ways to number steps that are sure."""


def _within(trace: Trace, mine: slice, steps: Array, number: Array) -> Array:
    ts, dur = trace.array("ts"), trace.array("dur")
    at = np.searchsorted(ts[steps], ts[mine], "right") - 1
    inside = (at >= 0) & (ts[mine] < (ts[steps] + dur[steps])[at])
    return np.where(inside, number[at], -1)


def counted(trace: Trace, part: Array, optimizer: Array, backward: int, issues: IssueLog) -> Array:
    """Steps counted by what ends them; for ranks of which nothing numbers any.

    Parameters
    ----------
    trace, issues
        The trace, and where to say so.
    part
        Pass of each node by its name.
    optimizer
        Whether each node is the outermost of an optimizer's step.
    backward
        Number of the backward pass.
    """
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    result = np.full(len(part), -1, np.int32)
    for mine in trace.rank_rows.values():
        ends = np.sort(end[mine][optimizer[mine]])
        passes = np.sort(ts[mine][part[mine] == backward])
        if not ends.size or not passes.size:
            continue
        # several optimizers one after the other end one step
        before = np.searchsorted(passes, ends)
        last = ends[np.append(before[1:] != before[:-1], True)]
        result[mine] = np.searchsorted(last, ts[mine], "right")
        issues.add(COUNTED, len(last), f"rank {int(trace.array('rank')[mine.start])}")
    return result
