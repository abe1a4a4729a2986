"""Pipelined jobs, simulated operation by operation, in the form of the published straggler traces.

Each worker runs one forward and one backward pass in turns (1F1B) over its microbatches. When an
operation starts and ends is asked of those that it waits for, so that the same job can be simulated with
other durations: that is the truth of its slow-down.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable

_MEANS_S = {
    "forward-compute": 0.06, "backward-compute": 0.12, "forward-send": 0.0005, "forward-recv": 0.0005,
    "backward-send": 0.0005, "backward-recv": 0.0005, "params-all-gather": 0.02,
    "layernorm-grads-all-reduce": 0.001, "embedding-grads-all-reduce": 0.01,
    "grads-reduce-scatter": 0.03, "optimizer-clip-main-grad": 0.005, "optimizer": 0.02,
}  # fmt: skip
_COMPUTES = ("forward-compute", "backward-compute", "optimizer")
Op = tuple[int, int, int, str, int]
"""Step, replica, stage, type and number of an operation."""


@dataclass(frozen=True)
class Pipeline:
    """A job.

    Parameters
    ----------
    imbalance
        Standard deviation of the logarithm of the length of each microbatch's passes: sequences differ.
    end_scatter_s, delay_s
        Standard deviation of the ends of members of collectives, and mean of launch delays.
    last_stage
        Factor of compute on the last stage.
    """

    replicas: int = 4
    stages: int = 4
    microbatches: int = 8
    steps: int = 6
    imbalance: float = 0.3
    end_scatter_s: float = 0.0
    delay_s: float = 0.0
    last_stage: float = 1.0
    seed: int = 1


class Simulation:
    """Times of all operations of a job, from these own times and delays of them."""

    def __init__(
        self, job: Pipeline, own_s: Callable[[Op], float], delay_s: Callable[[Op], float]
    ) -> None:
        self.job, self._own, self._delay = job, own_s, delay_s
        self.start = cache(self._start)
        self.end = cache(self._end)

    def order(self, stage: int) -> list[tuple[str, int]]:
        """Passes of a worker in their order: one forward and one backward pass in turns."""
        count = self.job.microbatches
        ahead = min(self.job.stages - stage - 1, count)
        passes = [("forward", q) for q in range(ahead)]
        for q in range(count - ahead):
            passes += [("forward", ahead + q), ("backward", q)]
        return passes + [("backward", q) for q in range(count - ahead, count)]

    def _waits_for(self, op: Op) -> list[Op]:  # the program's rules, one after the other
        step, replica, stage, kind, q = op
        last = self.job.stages - 1

        def same(other: str, number: int) -> Op:
            return (step, replica, stage, other, number)

        direction, _, what = kind.partition("-")
        first_stage = 0 if direction == "forward" else last
        if what == "compute":
            passes = self.order(stage)
            at = passes.index((direction, q))
            before = [same(f"{passes[at - 1][0]}-compute", passes[at - 1][1])] if at else []
            if stage != first_stage:
                before.append(same(f"{direction}-recv", q))
            if direction == "forward" and not q:
                before.append(same("params-all-gather", 0))
            return before
        if what == "recv":
            return [same(kind, q - 1), same(f"{direction}-compute", q - 1)] if q else []
        if what == "send":
            return [same(f"{direction}-compute", q)] + ([same(kind, q - 1)] if q else [])
        tail = ["layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
                "optimizer-clip-main-grad", "optimizer"]  # fmt: skip
        if stage not in (0, last):
            tail.remove("embedding-grads-all-reduce")
        if kind == "params-all-gather":
            return []
        if kind == tail[0]:
            return [same("backward-compute", self.job.microbatches - 1)]
        return [same(tail[tail.index(kind) - 1], 0)]

    def _members(self, op: Op) -> list[Op]:
        step, replica, stage, kind, q = op
        last = self.job.stages - 1
        every = range(self.job.replicas)
        if kind in ("params-all-gather", "grads-reduce-scatter"):
            return [(step, r, stage, kind, q) for r in every]
        if kind == "optimizer-clip-main-grad":
            return [(step, r, s, kind, q) for r in every for s in range(last + 1)]
        if kind == "embedding-grads-all-reduce":
            return [(step, replica, s, kind, q) for s in (0, last)]
        direction, _, what = kind.partition("-")
        if what in ("send", "recv"):
            towards = 1 if (direction == "forward") == (what == "send") else -1
            other = "recv" if what == "send" else "send"
            return [op, (step, replica, stage + towards, f"{direction}-{other}", q)]
        return [op]

    def _start(self, op: Op) -> float:
        return max((self.end(other) for other in self._waits_for(op)), default=0.0) + self._delay(
            op
        )

    def _end(self, op: Op) -> float:
        return max(self.start(member) for member in self._members(op)) + self._own(op)

    def operations(self) -> list[Op]:
        """All operations."""
        job, ops = self.job, []
        last = job.stages - 1
        for step in range(job.steps):
            for replica in range(job.replicas):
                for stage in range(job.stages):
                    kinds = [
                        k
                        for k in _MEANS_S
                        if "compute" not in k and not k.endswith(("send", "recv"))
                    ]
                    if stage not in (0, last):
                        kinds.remove("embedding-grads-all-reduce")
                    numbered = [(kind, 0) for kind in kinds]
                    for q in range(job.microbatches):
                        numbered += [("forward-compute", q), ("backward-compute", q)]
                        numbered += [("forward-recv", q), ("backward-send", q)] if stage else []
                        numbered += (
                            [("forward-send", q), ("backward-recv", q)] if stage < last else []
                        )
                    ops += [(step, replica, stage, kind, q) for kind, q in numbered]
        return ops

    def step_s(self, step: int) -> float:
        """Length of a step."""
        workers = [(r, s) for r in range(self.job.replicas) for s in range(self.job.stages)]
        return max(self.end((step, r, s, "optimizer", 0)) for r, s in workers)


def measured_and_ideal(job: Pipeline) -> tuple[Simulation, Simulation, Simulation]:
    """The job as it is, without launch delays, and with ideal durations in addition."""
    chance = random.Random(job.seed)  # noqa: S311 # not for secrets
    own: dict[Op, float] = {}
    delay: dict[Op, float] = {}
    length: dict[tuple[int, int, int], float] = {}
    plain = Simulation(job, own.__getitem__, lambda _: 0.0)
    for op in plain.operations():
        step, replica, stage, kind, q = op
        own[op] = _MEANS_S[kind] * chance.lognormvariate(0, 0.02)
        if kind.endswith("compute"):
            batch = (step, replica, q)
            length.setdefault(batch, chance.lognormvariate(0, job.imbalance))
            own[op] *= length[batch] * (job.last_stage if stage == job.stages - 1 else 1.0)
        elif kind not in _COMPUTES:
            own[op] = max(own[op] + chance.gauss(0, job.end_scatter_s), 1e-6)
        delay[op] = chance.expovariate(1 / job.delay_s) if job.delay_s else 0.0
    ideal: dict[str, float] = {}
    for kind in _MEANS_S:
        values = sorted(value for op, value in own.items() if op[3] == kind)
        middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
        ideal[kind] = sum(values) / len(values) if kind in _COMPUTES else middle
    measured = Simulation(job, own.__getitem__, delay.__getitem__)
    return measured, plain, Simulation(job, lambda op: ideal[op[3]], lambda _: 0.0)


def table(simulation: Simulation) -> pd.DataFrame:
    """Operations in the form of the published traces."""
    job = simulation.job
    rows = []
    for op in simulation.operations():
        step, replica, stage, kind, q = op
        start = simulation.start(op)
        rows.append(
            {
                "dp_rank": replica, "stage": stage, "rank": stage * job.replicas + replica,
                "step": step, "optype": kind, "start_ts": start,
                "duration": max(simulation.end(op) - start, 0.0), "seq_id": q,
                "mc": 0 if kind.endswith("compute") or kind == "params-all-gather" else -1,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
