"""Slow-down of a job by its stragglers, and the parts of it: of replicas, stages, types and workers.

After Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI 2025):

* ideal: all operations of a type take the same time, the mean of all of them; transfers of
  communication, from the last member's start on, their median
* T, T_ideal: lengths of the steps with measured and with ideal times, without unexplained delays
* S = T / T_ideal; S_x, if only the operations of x keep their own times, T_x / T_ideal
* S_w of a worker: the lower one of those of its replica and of its stage
* M_W, M_S: share of T - T_ideal that vanishes if the 3 % of the workers with the highest S_w, or the
  last stage, are ideal
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import operation_types
from chopper_interop.analyses.methods.communication import job_layout
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.timing.job_replay import JobReplay

_SLOWEST_PERCENT = 3
"""Percentage of the workers of which M_W is the share; the paper's."""
_MIN_REPLAYS, _MAX_REPLAYS, _MAX_EDGES = 16, 1024, 200_000_000
"""Groups that are replayed in turn: as many as take this many edges in all, within these limits.

Chosen: some seconds."""


@dataclass(frozen=True)
class OperationGroup:
    """One of the groups into which operations are divided.

    Parameters
    ----------
    key
        Its name or number.
    alone_factor
        Slow-down if only its operations keep their own times; None if it was not replayed.
    gain_ns
        Time the job would gain if its operations were ideal and the others as they are, the same.
    """

    key: str | int
    alone_factor: float | None
    gain_ns: int | None


class Slowdowns:
    """Slow-downs of a job.

    Attributes
    ----------
    replay
        The job.
    ideal_ns
        Ideal time along each of `JobReplay.edge`.
    types, places
        Types of the operations of these edges; places of ranks.
    before_ns, even_ns
        T and T_ideal, summed over steps.
    """

    def __init__(self, replay: JobReplay) -> None:
        self.replay = replay
        trace, node = replay.trace, replay.node
        # all steps determine what is ideal, also of a step that is asked about alone
        every, own = replay.every_node, replay.lag_ns[replay.every_edge]
        types = operation_types.operation_types(trace, every, own)
        ideal = operation_types.ideal_durations(trace, every, own, types.group)
        chosen = replay.is_chosen
        self.types = replace(types, code=types.code[chosen], group=types.group[chosen])
        self.ideal_ns = ideal[chosen]
        self.places = job_layout.job_layout(trace).places(trace.ranks)
        self._rank = np.searchsorted(trace.ranks, trace.array("rank")[node])
        self.before_ns = int(replay.lengths().sum())
        self.even_ns = int(replay.lengths(self.ideal_ns).sum())

    @property
    def factor(self) -> float | None:
        """S, without unexplained delays."""
        return _ratio(self.before_ns, self.even_ns)

    @cached_property
    def factor_with_delays(self) -> float | None:
        """S, with unexplained delays kept."""
        even = int(self.replay.lengths(self.ideal_ns, delays=True).sum())
        return _ratio(int(self.replay.measured_ns.sum()), even)

    def alone(self, mask: Array) -> float | None:
        """S if only the operations of this mask keep their own times."""
        own = np.where(mask, self.replay.own_ns, self.ideal_ns)
        return _ratio(int(self.replay.lengths(own).sum()), self.even_ns)

    def gain(self, mask: Array) -> int:
        """Time the job would gain if the operations of this mask were ideal."""
        own = np.where(mask, self.ideal_ns, self.replay.own_ns)
        return self.before_ns - int(self.replay.lengths(own).sum())

    def _parts(self, code: Array, keys: Sequence[str | int]) -> list[OperationGroup]:
        """Parts of the groups that `code` numbers; of those with the largest excess."""
        excess = np.zeros(len(keys), np.int64)
        np.add.at(excess, code, np.abs(self.replay.own_ns - self.ideal_ns))
        limit = min(max(_MAX_EDGES // max(len(self.replay.src), 1), _MIN_REPLAYS), _MAX_REPLAYS)
        replayed = set(np.argsort(-excess, kind="stable")[:limit].tolist())
        parts = []
        for k, key in enumerate(keys):
            if k not in replayed:  # nor are all operations looked at for it
                parts.append(OperationGroup(key, None, None))
                continue
            mask = code == k
            parts.append(OperationGroup(key, self.alone(mask), self.gain(mask)))
        return parts

    @cached_property
    def by_dp_rank(self) -> list[OperationGroup]:
        """Copies of the model."""
        copies = self.places.dp_rank
        return self._parts(copies[self._rank], list(range(int(copies.max()) + 1)))

    @cached_property
    def by_stage(self) -> list[OperationGroup]:
        """Stages of pipelines."""
        stage = self.places.stage
        return self._parts(stage[self._rank], list(range(int(stage.max()) + 1)))

    @cached_property
    def by_type(self) -> list[OperationGroup]:
        """Types of operations."""
        return self._parts(self.types.code, list(self.types.labels))

    @cached_property
    def by_rank(self) -> list[float | None]:
        """S_w of each rank."""
        of_copy = [part.alone_factor for part in self.by_dp_rank]
        of_stage = [part.alone_factor for part in self.by_stage]
        if len(of_stage) == 1:  # of no pipeline: the stage is all of the job
            return [of_copy[k] for k in self.places.dp_rank]
        pairs = zip(self.places.dp_rank, self.places.stage, strict=True)
        known = [(of_copy[d], of_stage[s]) for d, s in pairs]
        return [None if a is None or b is None else min(a, b) for a, b in known]

    @property
    def slowest_share(self) -> float | None:
        """M_W: share of the slow-down that the slowest workers explain."""
        score: dict[tuple[int, int], float] = {}
        for k, factor in enumerate(self.by_rank):
            if factor is not None:
                score[int(self.places.dp_rank[k]), int(self.places.stage[k])] = factor
        count = -(-len(score) * _SLOWEST_PERCENT // 100)
        slowest = set(sorted(score, key=lambda place: (-score[place], place))[:count])
        places = zip(self.places.dp_rank.tolist(), self.places.stage.tolist(), strict=True)
        of_rank = np.array([place in slowest for place in places], bool)
        return self._share(of_rank[self._rank])

    @property
    def last_stage_share(self) -> float | None:
        """M_S: share of the slow-down that the last stage explains; None without a pipeline."""
        last = int(self.places.stage.max())
        return self._share(self.places.stage[self._rank] == last) if last else None

    def _share(self, mask: Array) -> float | None:
        total = self.before_ns - self.even_ns
        return self.gain(mask) / total if total > 0 else None


def _ratio(before: int, after: int) -> float | None:
    return before / after if after > 0 else None
