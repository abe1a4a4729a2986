"""Warm-up: first steps of a recording that take longer than all that follow.

So does the one first step of a recording in which GPUs lag behind hosts: it counts from its own begin, and others from
the end of the step before (`activity.step_times`).

What rates or compares runs by their steps leaves them out, unless steps are chosen (``each`` has all of them).
What is of a whole recording keeps them, and says so.
"""

from __future__ import annotations

from chopper_interop import number_ranges, training_steps
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.schemas.meta import ORDER
from chopper_interop.trace import Trace

NOTE = "warm-up"
"""Key of the note that says which steps are a warm-up."""
STEPWISE = ("summary", "findings", "sweep", "compare", "efficiency")
"""Analyses that leave a warm-up out by themselves."""
_LONGER = 1.2
"""By how many times a warm-up exceeds the longest of the other steps. Chosen: more than steps vary."""
_MIN_OTHERS = 2
"""Steps that must be left, so that there is a longest of the others."""


def steps(trace: Trace) -> list[int]:
    """Numbers of the steps that are a warm-up."""
    return _split(trace)[0]


def later_steps(trace: Trace, ranks: str = "") -> str:
    """Steps of some ranks that are none, as text for an option; empty where there is no warm-up, and so all of them count."""
    first, others = _split(trace)
    selected = set(number_ranges.parse("ranks", ranks) if ranks else trace.ranks)
    present = {step.iteration for step in training_steps.marked(trace) if step.rank in selected}
    chosen = [step for step in others if step in present]
    return number_ranges.describe(chosen) if first and chosen else ""


def is_lag(trace: Trace) -> bool:
    """True if most of what the one step that is left out exceeds others by is no time of its ranges on hosts.

    ::

        host  [--- 7 ---][--- 8 ---][--- 9 ---]
        GPU        ┄┄┄┄┄[--- 7 ---][--- 8 ---][--- 9 ---]     ┄ waits, for what was not recorded
        time  |<----- step 7 ---->|<-- 8 -->|<-- 9 -->|
    """
    first, _ = _split(trace)
    if len(first) != 1:
        return False
    ranges: dict[int, int] = {}
    for step in training_steps.marked(trace):
        length = step.end_ns - step.start_ns
        ranges[step.iteration] = max(ranges.get(step.iteration, 0), length)
    spans = {w.iteration: w.span_ns for w in windows.job_windows(trace, "each")}
    return 2 * _excess(ranges, first[0]) < _excess(spans, first[0])


def _excess(lengths: dict[int, int], step: int) -> int:
    """Time by which a step exceeds the longest of the others."""
    return lengths[step] - max(length for number, length in lengths.items() if number != step)


def left_out(trace: Trace) -> dict[str, str]:
    """Say in a note which steps do not count; empty where there is no warm-up."""
    first = steps(trace)
    return (
        {NOTE: f"without {number_ranges.named('step', first)}; --steps each has all"}
        if first
        else {}
    )


def included(trace: Trace, ranks: str = "") -> dict[str, str]:
    """Say in a note which of the steps that count are a warm-up; empty where there is none."""
    first, others = steps(trace), later_steps(trace, ranks)
    if not others:
        return {}
    are, leaves = ("is a warm-up step", "it") if len(first) == 1 else ("are warm-up steps", "them")
    return {
        NOTE: f"{number_ranges.named('step', first)} {are}: --steps {others} leaves {leaves} out"
    }


def _split(trace: Trace) -> tuple[list[int], list[int]]:
    """Steps that are a warm-up, and the others."""
    return trace.cached("warm-up", _split_by_length)


def _split_by_length(trace: Trace) -> tuple[list[int], list[int]]:
    """Split where the first steps no longer exceed all that follow, by more than these vary.

    Of steps that vary by some factor among themselves the first may by chance be the longest by as much.
    """
    if trace.meta.clock == ORDER or not windows.has_steps(trace):
        return [], []
    every = windows.job_windows(trace, "each")
    length = [window.span_ns for window in every]
    first = 0
    for last in range(len(every) - _MIN_OTHERS):
        shortest, longest = min(length[last + 1 :]), max(length[last + 1 :])
        if length[last] <= _LONGER * longest:
            break
        if length[last] * shortest > longest**2:
            first = last + 1
    numbers = [window.iteration for window in every]
    return numbers[:first], sorted(numbers[first:])
