"""When a job's steps ran, one after the other, and what its GPUs drew meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.activity import windows
from chopper_interop.columns import gather
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.telemetry import energy
from chopper_interop.telemetry.gpus import gpus, without_work
from chopper_interop.telemetry.names import POWER
from chopper_interop.timing import spans

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from chopper_interop.telemetry.samples import Samples
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]
    Powers = list[list[Samples]]


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
    """

    iteration: int
    steps: tuple[int, ...]
    step_ns: int | None
    start_ns: int
    end_ns: int

    @property
    def time_ns(self) -> int:
        """The time that it has for itself."""
        return self.end_ns - self.start_ns


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
    of_each
        Samples of each GPU whose power is known of any time.
    unknown
        GPUs whose power is not.
    """

    of_each: Powers
    unknown: int

    @property
    def gpus(self) -> int:
        """All of them."""
        return len(self.of_each) + self.unknown

    def drawn(self, found: Sequence[Stretch]) -> tuple[Array, Array, Array]:
        """Energy, mean power and share of the time in which power is known, of each stretch.

        Energy is NaN unless all GPUs' power is known throughout; power unless it is of some time.
        """
        start = np.array([one.start_ns for one in found], np.int64)
        end = np.array([one.end_ns for one in found], np.int64)
        joules, watts = np.zeros(len(found)), np.zeros(len(found))
        known = np.zeros(len(found), np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            for powers in self.of_each:
                part, time = energy.drawn(powers, start, end)
                joules += np.where(time == end - start, part, np.nan)
                watts += part / (time * 1e-9)
                known += time
            share = known / (self.gpus * (end - start))
        if self.unknown or not self.of_each:
            joules[:] = watts[:] = np.nan
        return joules, watts, share


def power(trace: Trace, mine: Collection[int]) -> Power:
    """Power of the GPUs on which these ranks work; of a trace without such work, of all GPUs."""
    work = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    if not work.any():
        told = [energy.best_of(gpu) for gpu in without_work(trace, (), (POWER,))]
        return Power([[samples for _, samples in powers] for powers in told if powers], 0)
    places = _places(trace, np.flatnonzero(work))
    of_each: Powers = []
    for gpu in gpus(trace, quantities=(POWER,)):
        powers = [samples for _, samples in energy.best_of(gpu)]
        if powers:
            places -= _places(trace, gpu.rows)
            if set(gpu.ranks) & set(mine):
                of_each.append(powers)
    return Power(of_each, sum(rank in mine for rank, _ in places))


def _places(trace: Trace, rows: Array) -> set[tuple[int, int]]:
    """Ranks and devices of these nodes."""
    device = trace.array("device", "lanes")[trace.array("lane")[rows]]
    rank = trace.array("rank")[rows]
    first, _ = gather.distinct(rank, device)
    return set(zip(rank[first].tolist(), device[first].tolist(), strict=True))


def of_telemetry(found: Power) -> list[Stretch]:
    """The time of which the power of all GPUs was sampled, as one stretch."""
    first = max((min(one.ts[0] for one in powers) for powers in found.of_each), default=0)
    last = min((max(one.ts[-1] for one in powers) for powers in found.of_each), default=0)
    return [Stretch(windows.WHOLE, (), None, int(first), int(last))] if last > first else []
