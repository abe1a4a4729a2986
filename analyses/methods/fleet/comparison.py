"""The ranks and links of a job compared with each other, and which of them hold it up."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.fleet.compared_job import GAIN_COLUMNS, ComparedJob
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

THRESHOLD = 1.01
"""Slow-down from which on a rank or link is slow. Chosen: above noise."""


class Comparison:
    """Figures of all ranks and links, each made when it is first asked for.

    Parameters
    ----------
    trace
        A trace of which `why_not` says nothing.
    steps
        Training steps, as of `windows.rank_windows`; all if empty.
    threshold
        Slow-down from which on a rank or link is slow.
    causes_alone
        As of `ComparedJob.rank_rows`.
    """

    def __init__(
        self,
        trace: Trace,
        steps: str = "",
        threshold: float = THRESHOLD,
        *,
        causes_alone: bool = False,
    ) -> None:
        self.job = ComparedJob(trace, steps, threshold)
        self._causes_alone = causes_alone

    @cached_property
    def ranks(self) -> list[dict[str, Any]]:
        """Rows of ranks, in their order."""
        return self.job.rank_rows(causes_alone=self._causes_alone)

    @cached_property
    def by_gain(self) -> list[dict[str, Any]]:
        """Rows of ranks, the largest gain without its cause first."""
        return sorted(self.ranks, key=gain_of_cause, reverse=True)

    @cached_property
    def links(self) -> list[dict[str, Any]]:
        """Rows of links."""
        return self.job.link_rows()

    @cached_property
    def slow_link(self) -> dict[str, Any] | None:
        """The slow link without which the job would gain most; None if none counts."""
        return self.job.slowest_link(self.links)

    @cached_property
    def slow_ranks(self) -> tuple[list[int], int] | None:
        """Several ranks that hold the job up together, and the gain without that; None if there are none."""
        return self.job.slow_ranks(self.ranks)

    @cached_property
    def slow_stage(self) -> int | None:
        """The stage without which the job would gain most; None without a pipeline, or if none counts."""
        return self.job.slowest_stage()


def why_not(trace: Trace, steps: str = "") -> str | None:
    """Say why ranks cannot be compared; None if they can.

    Parameters
    ----------
    steps
        As of `windows.rank_windows`.
    """
    if len(trace.ranks) < 2:  # noqa: PLR2004
        return "one rank has nothing to be compared with"
    if not steps and not windows.has_steps(trace):
        return "the trace has no training steps, so that corresponding operations are unknown"
    chosen = windows.chosen_steps(trace, steps or "each")
    in_steps = np.isin(trace.integers("iteration"), chosen)
    work = is_any(trace.array("kind"), GPU_WORK) & in_steps
    return None if work.any() else "the training steps have no GPU work"


def gain_of_cause(row: dict[str, Any]) -> int:
    """Gain without the cause of a rank's lateness; 0 if nothing is to be gained."""
    return row[GAIN_COLUMNS[row["cause"]]] if row["cause"] else 0
