"""Training steps by the ranges that mark them, or counted by the optimizers that end them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import training_steps
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import GPU_WORK, RANGES
from chopper_interop.schemas.names import STEP_RANGE

if TYPE_CHECKING:
    from chopper_interop.annotate.structure.names import Names
    from chopper_interop.trace import Trace

BY_NAMES = Fault.info(
    "iterations-by-names",
    "Ranges that are called a step or iteration with a number were taken as "
    "the training steps, as the profiler marks none.",
)
COUNTED = Fault.info(
    "iterations-counted",
    "Training steps are not numbered: they were counted from 0, each until its optimizer is done; "
    "what starts after the last of these is in none.",
)
EMPTY = Fault.info(
    "steps-without-work",
    "Ranges of steps that launch nothing, where others of their rank do, are no steps, as the one that a profiler begins when it stops.",
)
REPEATED = Fault.info(
    "steps-repeated",
    "Ranges of steps whose number their thread had before, as after a restart, are steps of their own: the second "
    "step 5 is 1005, the third 2005; from 999 on thousands are ten thousands, and so on.",
)
IN_PIECES = Fault.info(
    "steps-in-pieces",
    "Ranges with a number that others of their thread had before were taken as the same step.",
)
_EXACT = (STEP_RANGE, "Iteration")
"""The first of the kinds of names of steps, which can have no other meaning."""


def read_iterations(trace: Trace, names: Names, issues: IssueLog) -> Array:
    """Number of the step that each host node is in, by ranges of steps; -1 where it is in none."""
    name, kind = trace.array("name"), trace.array("kind")
    result = np.full(trace.nodes.num_rows, -1, np.int32)
    ranges = is_any(kind, RANGES)
    step_kind = np.where(ranges, names.step_kind[name], -1)
    busy = _launches(trace)
    for rows in trace.rank_rows.values():
        kinds = np.unique(step_kind[rows][step_kind[rows] >= 0])
        if kinds.size:
            steps = np.flatnonzero(step_kind[rows] == kinds[0]) + rows.start
            within = _range_of(trace, rows, steps)
            exact = bool(kinds[0] < len(_EXACT))
            number, _ = _numbered(trace, names, steps, exact=exact)
            works = np.isin(number, number[within[busy[rows] & (within >= 0)]])
            if works.any() and not works.all():
                _note(issues, EMPTY, trace, steps[~works])
            else:
                works[:] = True
            steps = steps[works]
            known, in_pieces = _numbered(trace, names, steps, exact=exact)
            number[:] = -1
            number[works] = known
            result[rows] = np.append(number, -1)[within]
            _note(issues, REPEATED, trace, steps[known != names.step[name[steps]]])
            _note(issues, IN_PIECES, trace, steps[in_pieces])
            if kinds[0] == len(_EXACT):
                _note(issues, BY_NAMES, trace, steps)
    return result


def _note(issues: IssueLog, fault: Fault, trace: Trace, ranges: Array) -> None:
    """Note ranges, if there are any, with the name of the first."""
    if ranges.size:
        issues.add(fault, len(ranges), repr(trace.names()[trace.array("name")[ranges[0]]]))


def _launches(trace: Trace) -> Array:
    """Mark calls that launch GPU work, and GPU work whose launch is not known."""
    work = is_any(trace.array("kind"), GPU_WORK)
    result = work & (trace.launch < 0)
    result[trace.launch[work & (trace.launch >= 0)]] = True
    return result


def _range_of(trace: Trace, rows: slice, steps: Array) -> Array:
    """Position of the range of a step that each node of a rank starts in; -1 for none."""
    ts, dur = trace.array("ts"), trace.array("dur")
    index = np.searchsorted(ts[steps], ts[rows], "right") - 1
    inside = (index >= 0) & (ts[rows] < (ts[steps] + dur[steps])[index])
    return np.where(inside, index, -1)


def _numbered(trace: Trace, names: Names, steps: Array, *, exact: bool) -> tuple[Array, Array]:
    """Number of the step of each range, another one where a thread counts again; and which continue a step.

    Ranges in a row with the same number are one step, such as its forward pass and its optimizer, unless they are
    `exact`: the profiler marks a step by one range. A thread counts again where the range that begins such a row
    had its name before.
    """
    ts, lane = trace.array("ts")[steps], trace.array("lane")[steps]
    end = ts + trace.array("dur")[steps]
    name = trace.array("name")[steps]
    number = names.step[name].astype(np.int64)
    continues = np.zeros(len(steps), bool)
    for thread in np.unique(lane).tolist():
        own = np.flatnonzero(lane == thread)
        latest = np.maximum.accumulate(end[own])
        apart = np.append(False, ts[own][1:] >= latest[:-1])
        begins = (np.diff(number[own], prepend=-1) != 0) | (apart & exact)
        nth = _times_before(name[own[begins]])[np.cumsum(begins) - 1]
        number[own] = training_steps.counted_again(number[own], nth)
        continues[own] = apart & (_times_before(number[own]) > 0)
    return number, continues


def _times_before(code: Array) -> Array:
    """Count how often each value occurs before its place."""
    order = np.argsort(code, kind="stable")
    place = np.arange(len(code))
    starts = np.diff(code[order], prepend=-1) != 0
    result = np.empty(len(code), np.int64)
    result[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return result


def count_iterations(trace: Trace, backward: Array, updates: Array, issues: IssueLog) -> Array:
    """Count steps by the optimizers that end them; -1 after the last of these and on ranks without any.

    Parameters
    ----------
    trace, issues
        The trace, and the log for the steps that were counted.
    backward
        Mask of nodes of the backward pass.
    updates
        Mask of nodes that are the outermost of an optimizer's step, on ranks whose steps have no numbers.
    """
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    result = np.full(len(ts), -1, np.int32)
    for rows in trace.rank_rows.values():
        ends = np.sort(end[rows][updates[rows]])
        backward_starts = np.sort(ts[rows][backward[rows]])
        if not ends.size or not backward_starts.size:
            continue
        # several optimizers one after the other, without a backward pass between, end one step
        before = np.searchsorted(backward_starts, ends)
        last = ends[np.append(before[1:] != before[:-1], True)]
        step = np.searchsorted(last, ts[rows], "right")
        result[rows] = np.where(step < len(last), step, -1)
        issues.add(COUNTED, len(last), f"rank {int(trace.array('rank')[rows.start])}")
    return result
