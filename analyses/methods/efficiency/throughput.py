"""Times of a job's steps, one after the other, and the energy of its GPUs in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import step_times, windows
from chopper_interop.analyses.methods.timing import spans
from chopper_interop.annotate.telemetry import energy, job
from chopper_interop.annotate.telemetry.quantity_series import POWER
from chopper_interop.arrays import Array
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.job import Board


@dataclass(frozen=True)
class Interval:
    """A training step as of `step_times`, or all of a job.

    Parameters
    ----------
    iteration
        The step; `windows.NO_STEP` for all.
    steps
        Steps that it consists of; none of a trace without steps.
    step_ns
        Length of a step; of all, their mean.
    extents
        Starts and ends of its time: several where steps in between were not recorded.
    measured_ns
        Part of that time that counts, where power is known by measured windows alone; None for all.
    """

    iteration: int
    steps: tuple[int, ...]
    step_ns: int | None
    extents: tuple[tuple[int, int], ...]
    measured_ns: int | None = None

    @property
    def time_ns(self) -> int:
        """Its time, as far as it counts."""
        if self.measured_ns is not None:
            return self.measured_ns
        return sum(end - start for start, end in self.extents)


def each(trace: Trace, ranks: str = "") -> list[Interval]:
    """Every training step of some ranks, by number; none where there are none."""
    if not windows.has_steps(trace, ranks):
        return []
    ranges = spans.spans_of_trace(trace, "each", ranks)
    at = step_times.MeasuredTimes(trace)
    columns = (ranges.iteration, ranges.starts(at), ranges.ends(at))
    steps = zip(*(column.tolist() for column in columns), strict=True)
    return [Interval(step, (step,), end - start, ((start, end),)) for step, start, end in steps]


def chosen(trace: Trace, steps: Sequence[Interval], wanted: str, ranks: str = "") -> list[Interval]:
    """Steps that are asked about, of all steps, as of `windows.rank_windows`."""
    numbers = {window.iteration for window in windows.rank_windows(trace, wanted, ranks)}
    return [one for one in steps if one.iteration in numbers]


def job_interval(trace: Trace, steps: Sequence[Interval], ranks: str = "") -> list[Interval]:
    """All steps as one interval, of their time alone; without steps, all that ran; empty if nothing ran."""
    if not steps:
        at = step_times.MeasuredTimes(trace)
        ranges = spans.spans_of_trace(trace, "", ranks)
        bounds = zip(ranges.starts(at).tolist(), ranges.ends(at).tolist(), strict=True)
        return [Interval(windows.NO_STEP, (), None, (bound,)) for bound in bounds]
    numbers = tuple(one.iteration for one in steps)
    mean_ns = round(sum(one.time_ns for one in steps) / len(steps))
    return [Interval(windows.NO_STEP, numbers, mean_ns, tuple(lasting(steps)))]


def lasting(steps: Sequence[Interval]) -> list[tuple[int, int]]:
    """Extents of steps: of those that follow each other as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(extent for step in steps for extent in step.extents):
        if merged and start == merged[-1][1]:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return merged


@dataclass(frozen=True)
class Power:
    """Power of the GPUs of some ranks.

    Parameters
    ----------
    boards
        These GPUs.
    """

    boards: Sequence[Board]

    @property
    def gpus(self) -> int:
        """Number of the GPUs."""
        return sum(len(board.dies) for board in self.boards)

    @property
    def unknown(self) -> int:
        """Number of those of which no power is known."""
        return sum(len(board.dies) for board in self.boards if not board.powers)

    def drawn(self, intervals: Sequence[Interval]) -> tuple[Array, Array, Array]:
        """Energy, mean power and share of the time in which power is known, of each interval.

        Energy is NaN unless all GPUs' power is known throughout; power unless it is of some time.
        """
        extents = [extent for one in intervals for extent in one.extents]
        start, end = np.array(extents, np.int64).reshape(-1, 2).T
        of_first = np.cumsum([0, *(len(one.extents) for one in intervals)])[:-1]
        length = np.array([one.time_ns for one in intervals], np.int64)
        joules, watts = np.zeros(len(intervals)), np.zeros(len(intervals))
        known = np.zeros(len(intervals), np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            for board in self.boards:
                drawn = energy.energy_drawn(board.powers, start, end)
                part, time = (np.add.reduceat(column, of_first) for column in drawn)
                joules += np.where(time == length, part, np.nan)
                watts += part / (time * 1e-9)
                known += time * len(board.dies)
            share = known / (self.gpus * length)
        if self.unknown or not self.boards:
            joules[:] = watts[:] = np.nan
        return joules, watts, share


def power(trace: Trace, ranks: str = "") -> Power:
    """Power of the GPUs on which these ranks work; of a trace without such work, of all GPUs."""
    selected = windows.chosen_ranks(trace, ranks) if ranks else None
    return Power(job.boards(trace, (POWER,), selected))


def telemetry_extent(power: Power) -> list[Interval]:
    """The time known by telemetry alone, as of `job.power_extent`, as one interval.

    Where all GPUs' power is known by the same windows alone, the time of these windows.
    """
    first, last = job.power_extent(power.boards) or (0, 0)
    if last <= first:
        return []
    return [Interval(windows.NO_STEP, (), None, ((first, last),), _measured(power, first, last))]


def _measured(power: Power, first: int, last: int) -> int | None:
    """Length of the windows by which alone power is known; None unless all GPUs' are equal."""
    edges = np.array([[first], [last]])
    lengths = set()
    for board in power.boards:
        powers = energy.energy_sources(board.gpu)
        if not powers or not all(source.pattern.is_window for source, _ in powers):
            return None
        lengths.add(int(energy.energy_drawn([part for _, part in powers], *edges)[1][0]))
    return lengths.pop() if len(lengths) == 1 else None
