"""Pipelines with another number of microbatches or stages.

The measured passes of a job are put in the order that the schedule would have (1F1B, or all forward
passes first, as measured), and timed again with the measured transfers between stages::

    stage 0   F0 F1 F2    B0 F3 B1    B2 B3
    stage 1      F0 B0 F1 B1    F2 B2 F3 B3

Microbatches that were not run are as long as those that were, in turns. Work moves between stages as layers
do in Lumos (MLSys 2025): each has an equal part of the model, and of each measured stage every part
takes equally long. What lies between the last pass
of a step and the first of the next stays as long as it was; with more stages it is shared as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.changes import passes
from chopper_interop.analyses.methods.changes.changer import (
    Change,
    ChangedJob,
    ChangedTimes,
    Changer,
)
from chopper_interop.analyses.methods.communication import stages
from chopper_interop.arrays import Array
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.changes.passes import Exchanges, StagePasses
    from chopper_interop.analyses.methods.communication.stages import Pipeline


def pipeline(changer: Changer, now: ChangedTimes, change: Change, _chosen: Array) -> None:
    """Plan to run the pipelines of a job with other microbatches or stages."""
    if change.query:
        raise UsageError(f"change={change.text}: it is of all pipelines, and takes no where")
    trace = changer.trace
    lines = stages.complete_pipelines(trace, stages.first_kernel_starts(trace))
    if not lines:
        raise UsageError(
            f"change={change.text}: no ranks send to each other as a pipeline does that is all in the trace"
        )
    now.plans["pipeline"] = partial(_carried_out, now, change, lines)


def one_f_one_b(stage: int, count: int, microbatches: int) -> str:
    """Order of passes of a stage: forward passes until the last stage has one, then one and one."""
    ahead = min(count - stage, microbatches)
    return "F" * ahead + "BF" * (microbatches - ahead) + "B" * ahead


def _all_forward(_stage: int, _count: int, microbatches: int) -> str:
    return "F" * microbatches + "B" * microbatches


_SCHEDULES = (one_f_one_b, _all_forward)


def _carried_out(
    now: ChangedTimes, change: Change, lines: list[Pipeline], job: ChangedJob
) -> ChangedJob:
    at = job.at_ns.copy()
    rank = job.timing.trace.array("rank")[job.timing.graph.node]
    measured = [_Measured(job, line, change) for line in lines]
    common = set.intersection(*({*one.steps} for one in measured))
    if not common:
        raise UsageError(f"change={change.text}: no step is complete in all pipelines")
    for one in measured:
        now.notes["steps of pipelines that are not complete, moved only"] += one.keep(common)
    together = _meet_between_steps(job.timing.trace, measured)
    before = _times(measured, [m.shape() for m in measured], together=together)
    counts = {change.verb: change.value, **change.options}
    shapes = [m.shape(counts["microbatches"], counts["stages"]) for m in measured]
    after = _times(measured, shapes, together=together)
    for one, was, will_be, shape in zip(measured, before, after, shapes, strict=True):
        now.notes["microbatches of a step, before"] += one.microbatches
        now.notes["microbatches of a step, now"] += shape.microbatches
        now.notes["stages, before"] += len(one.ranks)
        now.notes["stages, now"] += shape.stages
        for stage, of_rank in enumerate(one.ranks):
            like = round(stage * (shape.stages - 1) / max(len(one.ranks) - 1, 1))
            knots = one.bounds[:, stage].ravel()
            shift = (will_be[:, like] - was[:, stage]).ravel()
            rows = np.flatnonzero(rank == of_rank)
            at[rows] += np.rint(np.interp(job.at_ns[rows], knots, shift)).astype(np.int64)
    return ChangedJob(job.timing, job.lag_ns, job.delay_ns, at, has_paths=False)


@dataclass(frozen=True)
class _Shape:
    """Numbers of stages and microbatches, and the times that stages have for them.

    Parameters
    ----------
    forward, backward
        Times of passes (by step, stage and microbatch).
    between
        Time from the last pass of a step to when the stage is ready for the next step's first; before
        the first step since the first stage was (by step and stage).
    """

    stages: int
    microbatches: int
    forward: Array
    backward: Array
    between: Array


class _Measured:
    """A pipeline as it was measured."""

    def __init__(self, job: ChangedJob, line: Pipeline, change: Change) -> None:
        self.trace, self.change, self.at = job.timing.trace, change, job.at_ns
        self.ranks = line.ranks
        if len(line.stages) != len(line.ranks):
            self._refuse(
                "several ranks are known as one stage, and their passes are not distinguished"
            )
        step = self.trace.integers("iteration")
        self.steps = [int(n) for n in np.unique(step[step >= 0])]
        self.recorded_steps = len(self.steps)
        of_ranks = [passes.stage_passes(self.trace, r, self.steps) for r in self.ranks]
        self.passes: list[tuple[StagePasses, ...]] = list(zip(*of_ranks, strict=True))
        self._check()
        self.exchanges: Exchanges = passes.exchanges(job.timing, job.lag_ns, line)
        first = np.array([[one.first[0] for one in of_step] for of_step in self.passes])
        last = np.array([[one.last[-1] for one in of_step] for of_step in self.passes])
        self.bounds = np.stack([self.at[2 * first], self.at[2 * last + 1]], axis=2)
        self.gap_ns = self._shortest_gap_ns()

    def _refuse(self, reason: str) -> None:
        raise UsageError(f"change={self.change.text}: {reason}")

    def _check(self) -> None:
        """Leave out incomplete steps at both ends, and find the schedule that the others follow."""
        orders = [[one.order for one in of_step] for of_step in self.passes]
        all_orders = [order for of_step in orders for order in of_step]
        if not any(all_orders):
            self._refuse(
                "it is not known which kernels are of forward and which of backward passes"
            )
        even = [order.count("F") for order in all_orders if order.count("F") == order.count("B")]
        self.microbatches = max([1, *even])
        complete = [
            all(order.count("F") == order.count("B") == self.microbatches for order in of_step)
            for of_step in orders
        ]
        if any(complete):
            kept = slice(complete.index(True), len(complete) - complete[::-1].index(True))
            orders, self.steps, self.passes = orders[kept], self.steps[kept], self.passes[kept]
        count = len(self.ranks)
        for schedule in _SCHEDULES:
            expected = [schedule(stage, count, self.microbatches) for stage in range(count)]
            if all(of_step == expected for of_step in orders):
                self.schedule = schedule
                return
        self._refuse(
            "passes do not follow each other as in 1F1B, nor are all forward passes first: "
            + ", ".join(orders[0])
        )

    def keep(self, steps: set[int]) -> int:
        """Keep these steps alone; return the number of recorded ones that are left out."""
        kept = [k for k, step in enumerate(self.steps) if step in steps]
        self.steps = [self.steps[k] for k in kept]
        self.passes = [self.passes[k] for k in kept]
        self.bounds = self.bounds[kept]
        return self.recorded_steps - len(kept)

    def _shortest_gap_ns(self) -> int:
        """Shortest time between two passes of a stage."""
        gaps = [
            np.min(self.at[2 * one.first[1:]] - self.at[2 * one.last[:-1] + 1], initial=2**62)
            for of_step in self.passes
            for one in of_step
        ]
        return max(int(np.min(gaps)), 0) if np.min(gaps) < 2**62 else 0

    def shape(self, microbatches: int = 0, count: int = 0) -> _Shape:
        """Times of passes for other numbers; as measured if 0."""
        own = len(self.ranks)
        microbatches, count = microbatches or self.microbatches, count or own
        every = np.arange(microbatches) % self.microbatches

        def durations(*, forward: bool) -> Array:
            ns = [
                [
                    (self.at[2 * one.last + 1] - self.at[2 * one.first])[one.is_forward == forward]
                    for one in of_step
                ]
                for of_step in self.passes
            ]
            return np.array(ns, float)[:, :, every]

        times, between = [durations(forward=f) for f in (True, False)], self._time_between_steps()
        if count != own:
            times = [np.einsum("ksq,js->kjq", t, _shares(own, count)) for t in times]
            of_stage = np.rint(np.linspace(0, own - 1, count)).astype(int)
            share = np.ones((len(between), 1))
            share[1:] = own / count
            between = between[:, of_stage] * share
        return _Shape(count, microbatches, times[0], times[1], between)

    def _time_between_steps(self) -> Array:
        """Time from the last pass of a step until a stage is ready for the next step."""
        ready = self.bounds[:, :, 0].astype(float)
        receive = np.flatnonzero(self.trace.is_text("collective", (Collective.RECV,)))
        step, rank = self.trace.integers("iteration"), self.trace.array("rank")
        for k, number in enumerate(self.steps):
            for stage, of_rank in enumerate(self.ranks[1:], 1):
                own = receive[(rank[receive] == of_rank) & (step[receive] == number)]
                if own.size:
                    ready[k, stage] = min(ready[k, stage], self.at[2 * own].min())
        since = np.vstack([np.full(ready.shape[1], ready[0, 0]), self.bounds[:-1, :, 1]])
        return ready - since


def _shares(measured: int, planned: int) -> Array:
    """Share of each measured stage's work that each of other stages has, in the order of the model."""
    begin, end = (np.arange(k, planned + k)[:, None] / planned for k in (0, 1))
    first, last = (np.arange(k, measured + k)[None, :] / measured for k in (0, 1))
    return np.maximum(np.minimum(end, last) - np.maximum(begin, first), 0) * measured


def _meet_between_steps(trace: Trace, measured: list[_Measured]) -> bool:
    """True if ranks of several stages or pipelines communicate between passes."""
    collective = (trace.array("kind") == Kind.COMM) & ~stages.is_exchange(trace)
    collective &= trace.integers("instance") >= 0
    row = np.flatnonzero(collective & np.isin(trace.integers("iteration"), measured[0].steps))
    rank, at = trace.array("rank")[row], measured[0].at[2 * row]
    outside = np.ones(len(row), bool)
    for one in measured:
        for stage, of_rank in enumerate(one.ranks):
            own = np.flatnonzero(rank == of_rank)
            begin, end = one.bounds[:, stage].T
            step = np.searchsorted(begin, at[own], side="right") - 1
            outside[own] = (step < 0) | (at[own] >= end[step])
    return bool(outside.any())


def _times(measured: list[_Measured], shapes: list[_Shape], *, together: bool) -> list[Array]:
    """Start of the first pass and end of the last one of each step and stage, of all pipelines.

    Parameters
    ----------
    together
        No stage begins a step before the last pass of all pipelines has ended.
    """
    steps = len(measured[0].steps)
    bounds = [np.zeros((steps, shape.stages, 2)) for shape in shapes]
    ended = [np.zeros(shape.stages) for shape in shapes]
    for step in range(steps):
        if together and step:
            last = max(end.max() for end in ended)
            was = max(one.bounds[step - 1, :, 1].max() for one in measured)
        for number, (one, shape) in enumerate(zip(measured, shapes, strict=True)):
            ready = ended[number] + shape.between[step]
            if together and step:
                own = one.bounds[step - 1, :, 1]
                like = np.rint(np.linspace(0, len(own) - 1, shape.stages)).astype(int)
                ready = last + shape.between[step] + own[like] - was
            bounds[number][step] = _step(one, shape, step, ready)
            ended[number] = bounds[number][step, :, 1]
    return bounds


def _step(one: _Measured, shape: _Shape, step: int, ready: Array) -> Array:
    """Start of the first pass and end of the last one of each stage in one step."""
    count = shape.stages
    orders = [one.schedule(stage, count, shape.microbatches) for stage in range(count)]
    ended: dict[tuple[str, int, int], float] = {}
    free = ready.astype(float).copy()
    bounds = np.full((count, 2), -1.0)
    place = [{"F": 0, "B": 0, "all": 0} for _ in range(count)]
    remaining = sum(map(len, orders))
    while remaining:
        left = remaining
        for stage, order in enumerate(orders):
            while place[stage]["all"] < len(order):
                direction = order[place[stage]["all"]]
                batch = place[stage][direction]
                source = stage - 1 if direction == "F" else stage + 1
                arrival = -np.inf
                if 0 <= source < count:
                    if (direction, source, batch) not in ended:
                        break
                    arrival = _arrival(one.exchanges, ended[direction, source, batch], free[stage])
                elif direction == "B" and ("F", stage, batch) not in ended:
                    break
                gap = one.gap_ns if place[stage]["all"] else 0
                start = max(free[stage] + gap, arrival)
                ns = (shape.forward if direction == "F" else shape.backward)[step, stage, batch]
                ended[direction, stage, batch] = free[stage] = start + ns
                if not place[stage]["all"]:
                    bounds[stage, 0] = start
                bounds[stage, 1] = start + ns
                place[stage][direction] += 1
                place[stage]["all"] += 1
                remaining -= 1
        if remaining == left:
            raise AssertionError(f"a schedule that waits for itself: {orders}")
    return bounds


def _arrival(exchanges: Exchanges, sent: float, free: float) -> float:
    """Time at which a stage that was free since some time can use what another sent behind a pass."""
    begin = sent + exchanges.latency_ns
    if exchanges.after_passes and not exchanges.buffered:
        begin = max(begin, free + exchanges.latency_ns)
    arrived = begin + exchanges.transfer_ns
    if exchanges.after_passes and exchanges.buffered:
        arrived = max(arrived, free + exchanges.latency_ns)
    return arrived + exchanges.latency_ns
