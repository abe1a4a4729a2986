"""Spans of a job or its training steps by options, for a trace or its timing model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.analyses.methods.activity import step_times, windows
from chopper_interop.analyses.methods.timing.steps import is_isolated
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans
    from chopper_interop.timing.model import Timing


def spans_of_timing(
    timing: Timing, steps: str = "", ranks: str = "", *, by_rank: bool = False
) -> Spans:
    """Spans of a job, of all of it or of training steps as `step_times` defines them, over all its ranks or of each.

    Of a model whose steps begin when they did (`steps.isolated_steps`) spans do so too.

    Parameters
    ----------
    steps, ranks
        As of `windows.rank_windows`.
    by_rank
        Each rank by itself.
    """
    spans = spans_of_trace(timing.trace, steps, ranks, by_rank=by_rank)
    if steps and is_isolated(timing):
        return spans.beginning_at(spans.own_starts(timing.at_ns))
    return spans


def spans_of_trace(
    trace: Trace, steps: str = "", ranks: str = "", *, by_rank: bool = False
) -> Spans:
    """Spans as of `spans_of_timing`, for a trace that needs no timing model."""
    selected = windows.chosen_ranks(trace, ranks)
    if not steps:
        return step_times.job_spans(trace, selected, by_rank=by_rank)
    numbers = windows.chosen_steps(trace, steps, ranks)
    return step_times.step_spans(trace, selected, by_rank=by_rank).of_steps(numbers)
