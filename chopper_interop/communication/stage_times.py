"""When the ranks of a pipeline compute, what they send and receive meanwhile, step by step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import arrow, gather, intervals
from chopper_interop.communication import stages
from chopper_interop.schemas.kinds import Collective, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.columns.types import Array
    from chopper_interop.communication.stages import Pipeline
    from chopper_interop.trace import Trace

    Row = dict[str, Any]

_PASSES = ("forward", "backward")


class StageTimes:
    """Columns of a trace that tell what its GPUs compute and exchange, and in which step."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        kind = trace.array("kind")
        self.ts = trace.array("ts")
        self.end = self.ts + trace.array("dur")
        self.rank = trace.array("rank")
        self.compute = (kind == Kind.KERNEL) | (kind == Kind.MEMSET)
        self.exchange = stages.exchanges(trace)
        self.work = self.compute | ((kind == Kind.COMM) & ~self.exchange)
        self.receive = self.exchange & stages.valued(trace, "collective", (Collective.RECV,))
        self.step = _numbers(trace, "iteration")
        self._bounds()

    def _bounds(self) -> None:
        """What bounds windows: kernels of passes and steps, as far as these are known."""
        passes = self.compute & stages.valued(self.trace, "step_part", _PASSES)
        self.has_passes = bool(passes.any())
        rows = np.flatnonzero(passes if self.has_passes else self.compute)
        stepped = self.step[rows] >= 0
        self.has_steps = bool(stepped.any())
        self.unstepped = int(np.count_nonzero(~stepped)) if self.has_steps else 0
        self.extents = self._extents(rows[stepped] if self.has_steps else rows)

    def _extents(self, rows: Array) -> dict[tuple[int, int], tuple[int, int]]:
        """First start and last end of these nodes by rank and step, -1 for none."""
        first, code = gather.distinct(self.rank[rows], self.step[rows])
        start = np.full(len(first), np.iinfo(np.int64).max)
        end = np.full(len(first), np.iinfo(np.int64).min)
        np.minimum.at(start, code, self.ts[rows])
        np.maximum.at(end, code, self.end[rows])
        keys = zip(self.rank[rows[first]].tolist(), self.step[rows[first]].tolist(), strict=True)
        return dict(zip(keys, zip(start.tolist(), end.tolist(), strict=True), strict=True))

    def began(self) -> dict[int, int]:
        """When each rank first computed."""
        found: dict[int, int] = {}
        for (rank, _), (start, _) in self.extents.items():
            found[rank] = min(start, found.get(rank, start))
        return found

    @cached_property
    def _sent(self) -> dict[tuple[int, int], int]:
        """The most that a rank exchanges one way with one other in a step, by rank and step."""
        forward = self.exchange & stages.valued(self.trace, "step_part", _PASSES[:1])
        rows = np.flatnonzero(forward if forward.any() else self.exchange)
        peer = _numbers(self.trace, "peer")[rows]
        sends = stages.valued(self.trace, "collective", (Collective.SEND,))[rows]
        rows, peer, sends = rows[peer >= 0], peer[peer >= 0], sends[peer >= 0]
        step = self.step[rows] if self.has_steps else np.full(len(rows), -1)
        first, code = gather.distinct(self.rank[rows], step, peer, sends)
        count = np.bincount(code).tolist()
        keys = zip(self.rank[rows[first]].tolist(), step[first].tolist(), strict=True)
        found: dict[tuple[int, int], int] = {}
        for key, times in zip(keys, count, strict=True):
            found[key] = max(times, found.get(key, 0))
        return found

    @cached_property
    def _ranged(self) -> int | None:
        """Microbatches by the ranges that name them."""
        return max((m for _, m in stages.ranges(self.trace).values()), default=None)

    @cached_property
    def _came(self) -> tuple[Array, Array]:
        """When what a receive gets was sent, within the receive; and which receives know it."""
        send = np.flatnonzero(
            self.exchange & stages.valued(self.trace, "collective", (Collective.SEND,))
        )
        instance = _numbers(self.trace, "instance")
        sender = np.full(int(instance.max(initial=-1)) + 2, -1)
        sender[instance[send]] = send
        sender[-1] = -1  # that of no instance
        sender = np.where(self.receive, sender[instance], -1)
        came = np.clip(self.ts[sender], self.ts, self.end)
        return np.where(sender >= 0, came, self.ts), sender >= 0

    def rows(self, number: int, line: Pipeline) -> Iterator[Row]:
        """Rows of all ranks of a pipeline, by rank and step."""
        members = set(line.ranks)
        windows: dict[int, tuple[int, int]] = {}
        for (rank, step), (start, end) in self.extents.items():
            if rank in members:
                low, high = windows.get(step, (start, end))
                windows[step] = min(low, start), max(high, end)
        for stage, ranks in enumerate(line.stages):
            for rank in ranks:
                mine = sorted(step for r, step in self.extents if r == rank)
                cuts = [(windows[s][0], *self.extents[rank, s], windows[s][1]) for s in mine]
                times = self._times(rank, np.array(cuts, np.int64).reshape(-1, 4))
                for place, step in enumerate(mine):
                    yield {
                        "rank": rank,
                        "iteration": step if step >= 0 else None,
                        "pipeline": number,
                        "stage": stage,
                        "stages": len(line.stages),
                        "microbatches": self._microbatches(line, step),
                        "start_ns": cuts[place][0],
                        "end_ns": cuts[place][-1],
                        **{name: of[place] for name, of in times.items()},
                    }

    def _microbatches(self, line: Pipeline, step: int) -> int | None:
        if line.by_ranges:
            return self._ranged
        return max((self._sent.get((rank, step), 0) for rank in line.ranks), default=0) or None

    def _times(self, rank: int, cuts: Array) -> dict[str, list[int | None]]:
        """Times of windows, cut at the first and last of the rank's own kernels that bound them."""
        rows = self.trace.rank_rows[rank]
        ts, end, work, exchange = (c[rows] for c in (self.ts, self.end, self.work, self.exchange))
        receive = exchange & stages.valued(self.trace, "collective", (Collective.RECV,))[rows]
        came, known = (c[rows] for c in self._came)

        def covered(which: Array, until: Array = end) -> Array:
            return _between(intervals.union(ts[which], until[which]), cuts)

        busy = covered(work)
        free = np.diff(cuts, axis=1) - busy
        waited = (covered(work | known, np.where(known, came, end)) - busy).sum(axis=1).tolist()
        lost = receive & ~known
        unknown = (covered(lost).sum(axis=1) > 0).tolist()
        parts = dict(zip(("warmup_ns", "steady_ns", "cooldown_ns"), free.T.tolist(), strict=True))
        return {
            "span_ns": (cuts[:, 3] - cuts[:, 0]).tolist(),
            "compute_ns": covered(self.compute[rows]).sum(axis=1).tolist(),
            "p2p_ns": covered(self.exchange[rows]).sum(axis=1).tolist(),
            "bubble_ns": free.sum(axis=1).tolist(),
            **parts,
            "recv_ns": (covered(work | receive) - busy).sum(axis=1).tolist(),
            "recv_wait_ns": [
                None if open_ else wait for wait, open_ in zip(waited, unknown, strict=True)
            ],
        }


def _numbers(trace: Trace, column: str) -> Array:
    """Integers of an annotation column; -1 where unknown."""
    if column not in trace.nodes.column_names:
        return np.full(trace.nodes.num_rows, -1, np.int64)
    return np.asarray(arrow.numbers(trace.nodes[column], -1)).astype(np.int64)


def _between(union: intervals.Union, cuts: Array) -> Array:
    """Time that a union covers between each two neighbouring cuts of a row."""
    start, end = union
    if not start.size:
        return np.zeros((len(cuts), cuts.shape[1] - 1), np.int64)
    total = np.concatenate([[0], np.cumsum(end - start)])
    begun = np.searchsorted(start, cuts, "left")
    beyond = np.where(begun > 0, np.maximum(0, end[begun - 1] - cuts), 0)
    return np.diff(total[begun] - beyond, axis=1)
