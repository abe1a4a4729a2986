"""When a job's steps ran, one after the other, and what its GPUs drew meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import windows
from chopper_interop.errors import UsageError
from chopper_interop.telemetry import energy, job
from chopper_interop.telemetry.names import POWER
from chopper_interop.timing import spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.job import Board
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Stretch:
    """A training step, or all of a job; steps are as of `spans.of`.

    Parameters
    ----------
    iteration
        The step; `windows.WHOLE` for all.
    steps
        Steps that it consists of; none of a trace without steps.
    step_ns
        How long its steps last on average, each from the first rank's start to the last rank's end.
    start_ns, end_ns
        The time that it has for itself: a step begins no sooner than the one before it has ended.
    measured_ns
        How much of that counts, where measured windows alone tell of it; None for all.
    """

    iteration: int
    steps: tuple[int, ...]
    step_ns: int | None
    start_ns: int
    end_ns: int
    measured_ns: int | None = None

    @property
    def time_ns(self) -> int:
        """The time that it has for itself, as far as it counts."""
        return self.end_ns - self.start_ns if self.measured_ns is None else self.measured_ns


def each(trace: Trace, ranks: str = "") -> list[Stretch]:
    """Every training step of some ranks, by number; none where there are none."""
    try:
        found = spans.of_trace(trace, "each", ranks)
    except UsageError:
        return []
    at = spans.measured(trace)
    starts, ends = found.starts(at), found.ends(at)
    before, made = -(1 << 62), []
    for i in np.lexsort((ends, starts)).tolist():
        step, start, end = int(found.iteration[i]), int(starts[i]), int(ends[i])
        made.append(Stretch(step, (step,), end - start, min(max(start, before), end), end))
        before = max(before, end)
    return sorted(made, key=lambda one: one.iteration)


def chosen(trace: Trace, steps: Sequence[Stretch], wanted: str, ranks: str = "") -> list[Stretch]:
    """Those of all steps that are asked about, as of `windows.of_ranks`."""
    numbers = {window.iteration for window in windows.of_ranks(trace, wanted, ranks)}
    return [one for one in steps if one.iteration in numbers]


def whole(trace: Trace, steps: Sequence[Stretch], ranks: str = "") -> list[Stretch]:
    """All steps as one stretch; without steps, all that ran; none if nothing did."""
    if not steps:
        at = spans.measured(trace)
        found = spans.of_trace(trace, "", ranks)
        bounds = zip(found.starts(at).tolist(), found.ends(at).tolist(), strict=True)
        return [Stretch(windows.WHOLE, (), None, start, end) for start, end in bounds]
    lengths = [one.step_ns for one in steps if one.step_ns is not None]
    start, end = min(one.start_ns for one in steps), max(one.end_ns for one in steps)
    numbers = tuple(one.iteration for one in steps)
    return [Stretch(windows.WHOLE, numbers, round(sum(lengths) / len(lengths)), start, end)]


def lasting(steps: Sequence[Stretch], chosen: Sequence[Stretch]) -> list[tuple[int, int]]:
    """From when to when chosen steps last: from the first's begin to the last's end.

    Parameters
    ----------
    steps
        All steps.
    chosen
        Those that count; between steps that follow each other nothing is left out.
    """
    numbers = {one.iteration for one in chosen}
    found: list[tuple[int, int]] = []
    is_new = True
    for one in sorted(steps, key=lambda step: (step.start_ns, step.end_ns)):
        if one.iteration not in numbers:
            is_new = True
            continue
        if is_new:
            found.append((one.start_ns, one.end_ns))
        else:
            found[-1] = found[-1][0], max(found[-1][1], one.end_ns)
        is_new = False
    return found


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
        """How many they are."""
        return sum(len(board.dies) for board in self.boards)

    @property
    def unknown(self) -> int:
        """Of how many no power is known."""
        return sum(len(board.dies) for board in self.boards if not board.powers)

    def drawn(self, found: Sequence[Stretch]) -> tuple[Array, Array, Array]:
        """Energy, mean power and share of the time in which power is known, of each stretch.

        Energy is NaN unless all GPUs' power is known throughout; power unless it is of some time.
        """
        start = np.array([one.start_ns for one in found], np.int64)
        end = np.array([one.end_ns for one in found], np.int64)
        length = np.array([one.time_ns for one in found], np.int64)
        joules, watts = np.zeros(len(found)), np.zeros(len(found))
        known = np.zeros(len(found), np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            for board in self.boards:
                part, time = energy.drawn(board.powers, start, end)
                joules += np.where(time == length, part, np.nan)
                watts += part / (time * 1e-9)
                known += time * len(board.dies)
            share = known / (self.gpus * length)
        if self.unknown or not self.boards:
            joules[:] = watts[:] = np.nan
        return joules, watts, share


def power(trace: Trace, ranks: str = "") -> Power:
    """Power of the GPUs on which these ranks work; of a trace without such work, of all GPUs."""
    mine = windows.chosen_ranks(trace, ranks) if ranks else None
    return Power(job.boards(trace, (POWER,), mine))


def of_telemetry(found: Power) -> list[Stretch]:
    """The time of which telemetry alone tells, as of `job.extent`, as one stretch.

    Of GPUs of which nothing but the same windows tells power, these windows.
    """
    first, last = job.extent(found.boards) or (0, 0)
    if last <= first:
        return []
    return [Stretch(windows.WHOLE, (), None, first, last, _measured(found, first, last))]


def _measured(found: Power, first: int, last: int) -> int | None:
    """How long the windows are that alone tell all GPUs' power; None unless they are of all alike."""
    edges = np.array([[first], [last]])
    lengths = set()
    for board in found.boards:
        powers = energy.best_of(board.gpu)
        if not powers or not all(source.told.is_window for source, _ in powers):
            return None
        lengths.add(int(energy.drawn([part for _, part in powers], *edges)[1][0]))
    return lengths.pop() if len(lengths) == 1 else None
