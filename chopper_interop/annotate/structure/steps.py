"""The training step of each host node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.names import STEP_RANGE

if TYPE_CHECKING:
    from chopper_interop.annotate.structure.names import Names
    from chopper_interop.arrays.types import Array
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
    "Training steps are not numbered: they were counted from 0, each until its optimizer is done.",
)
_RANGES = (Kind.CPU_OP, Kind.ANNOTATION)


def read_iterations(trace: Trace, names: Names, issues: IssueLog) -> Array:
    """Number of the step that each host node is in, by ranges of steps; -1 where it is in none."""
    name, kind = trace.array("name"), trace.array("kind")
    result = np.full(trace.nodes.num_rows, -1, np.int32)
    ranges = is_any(kind, _RANGES)
    step_kind = np.where(ranges, names.step_kind[name], -1)
    for rows in trace.rank_rows.values():
        kinds = np.unique(step_kind[rows][step_kind[rows] >= 0])
        if kinds.size:
            steps = np.flatnonzero(step_kind[rows] == kinds[0]) + rows.start
            result[rows] = _numbers_within(trace, rows, steps, names.step[name[steps]])
            if kinds[0] == len(_EXACT):
                issues.add(BY_NAMES, len(steps), repr(trace.names()[name[steps[0]]]))
    return result


_EXACT = (STEP_RANGE, "Iteration")
"""The first of the kinds of names of steps, which can have no other meaning."""


def _numbers_within(trace: Trace, rows: slice, steps: Array, number: Array) -> Array:
    """Number of the step that each node of a rank starts in; -1 for none."""
    ts, dur = trace.array("ts"), trace.array("dur")
    index = np.searchsorted(ts[steps], ts[rows], "right") - 1
    inside = (index >= 0) & (ts[rows] < (ts[steps] + dur[steps])[index])
    return np.where(inside, number[index], -1)


def count_iterations(
    trace: Trace, part: Array, optimizer: Array, backward: int, issues: IssueLog
) -> Array:
    """Count steps by the optimizers that end them; -1 on ranks without any.

    Parameters
    ----------
    trace, issues
        The trace, and the log for the steps that were counted.
    part
        Pass of each node by its name; -1 on ranks whose steps are numbered.
    optimizer
        Mask of nodes that are the outermost of an optimizer's step.
    backward
        Number of the backward pass.
    """
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    result = np.full(len(part), -1, np.int32)
    for rows in trace.rank_rows.values():
        ends = np.sort(end[rows][optimizer[rows]])
        backward_starts = np.sort(ts[rows][part[rows] == backward])
        if not ends.size or not backward_starts.size:
            continue
        # several optimizers one after the other, without a backward pass between, end one step
        before = np.searchsorted(backward_starts, ends)
        last = ends[np.append(before[1:] != before[:-1], True)]
        result[rows] = np.searchsorted(last, ts[rows], "right")
        issues.add(COUNTED, len(last), f"rank {int(trace.array('rank')[rows.start])}")
    return result
