"""Compute and exchanges of the ranks of a pipeline, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.communication import stages
from chopper_interop.arrays import Array, gather, intervals
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.stages import Pipeline

    Row = dict[str, Any]

_PASSES = ("forward", "backward")


class StageTimes:
    """Compute and exchanges of a trace's ranks by training step, as rows of a pipeline's windows."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        kind = trace.array("kind")
        self.ts = trace.array("ts")
        self.end = self.ts + trace.array("dur")
        self.rank = trace.array("rank")
        self.compute = (kind == Kind.KERNEL) | (kind == Kind.MEMSET)
        self.exchange = stages.is_exchange(trace)
        self.work = self.compute | ((kind == Kind.COMM) & ~self.exchange)
        self.receive = self.exchange & trace.is_text("collective", (Collective.RECV,))
        self.step = trace.integers("iteration")
        self._find_bounds()

    def _find_bounds(self) -> None:
        """Find the kernels that bound windows: those of passes and steps, as far as these are known."""
        passes = self.compute & self.trace.is_text("step_part", _PASSES)
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

    def first_starts(self) -> dict[int, int]:
        """First start of a kernel that bounds a window, by rank, nanoseconds."""
        starts: dict[int, int] = {}
        for (rank, _), (start, _) in self.extents.items():
            starts[rank] = min(start, starts.get(rank, start))
        return starts

    @cached_property
    def _max_exchanges(self) -> dict[tuple[int, int], int]:
        """Largest number of exchanges of a rank in one direction with one other, by rank and step."""
        forward = self.exchange & self.trace.is_text("step_part", _PASSES[:1])
        rows = np.flatnonzero(forward if forward.any() else self.exchange)
        peer = self.trace.integers("peer", rows)
        sends = self.trace.is_text("collective", (Collective.SEND,), rows)
        rows, peer, sends = rows[peer >= 0], peer[peer >= 0], sends[peer >= 0]
        step = self.step[rows] if self.has_steps else np.full(len(rows), -1)
        first, code = gather.distinct(self.rank[rows], step, peer, sends)
        count = np.bincount(code).tolist()
        keys = zip(self.rank[rows[first]].tolist(), step[first].tolist(), strict=True)
        largest: dict[tuple[int, int], int] = {}
        for key, times in zip(keys, count, strict=True):
            largest[key] = max(times, largest.get(key, 0))
        return largest

    @cached_property
    def _microbatches_by_ranges(self) -> int | None:
        """Microbatches by the ranges that name them."""
        return max((m for _, m in stages.pass_ranges(self.trace).values()), default=None)

    @cached_property
    def _send_starts(self) -> tuple[Array, Array]:
        """Start of each receive's send, cut to the receive, and a mask of receives whose send is known.

        Of other nodes their own start.
        """
        send = np.flatnonzero(self.exchange & self.trace.is_text("collective", (Collective.SEND,)))
        instance = self.trace.integers("instance")
        sender = np.full(int(instance.max(initial=-1)) + 2, -1)
        sender[instance[send]] = send
        sender[-1] = -1  # that of no instance
        sender = np.where(self.receive, sender[instance], -1)
        sent = np.clip(self.ts[sender], self.ts, self.end)
        return np.where(sender >= 0, sent, self.ts), sender >= 0

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
                steps = sorted(step for r, step in self.extents if r == rank)
                cuts = [(windows[s][0], *self.extents[rank, s], windows[s][1]) for s in steps]
                times = self._times(rank, np.array(cuts, np.int64).reshape(-1, 4))
                for nth, step in enumerate(steps):
                    yield {
                        "rank": rank,
                        "iteration": step if step >= 0 else None,
                        "pipeline": number,
                        "stage": stage,
                        "stages": len(line.stages),
                        "microbatches": self._microbatches(line, step),
                        "start_ns": cuts[nth][0],
                        "end_ns": cuts[nth][-1],
                        **{name: values[nth] for name, values in times.items()},
                    }

    def _microbatches(self, line: Pipeline, step: int) -> int | None:
        if line.by_ranges:
            return self._microbatches_by_ranges
        return (
            max((self._max_exchanges.get((rank, step), 0) for rank in line.ranks), default=0)
            or None
        )

    def _times(self, rank: int, cuts: Array) -> dict[str, list[int | None]]:
        """Columns of a rank's windows.

        Parameters
        ----------
        cuts
            Of each window its start, the first start and the last end of the rank's own kernels
            that bound it, and its end: warm-up, steady phase and cool-down lie in between.
        """
        rows = self.trace.rank_rows[rank]
        ts, end, work = (c[rows] for c in (self.ts, self.end, self.work))
        receive = self.receive[rows]
        sent, known = (c[rows] for c in self._send_starts)

        def covered(mask: Array, until: Array = end) -> Array:
            return _covered_between(intervals.union(ts[mask], until[mask]), cuts)

        busy = covered(work)
        free = np.diff(cuts, axis=1) - busy
        waited = (covered(work | known, np.where(known, sent, end)) - busy).sum(axis=1).tolist()
        unmatched = receive & ~known
        unknown = (covered(unmatched).sum(axis=1) > 0).tolist()
        parts = dict(zip(("warmup_ns", "steady_ns", "cooldown_ns"), free.T.tolist(), strict=True))
        return {
            "span_ns": (cuts[:, 3] - cuts[:, 0]).tolist(),
            "compute_ns": covered(self.compute[rows]).sum(axis=1).tolist(),
            "p2p_ns": covered(self.exchange[rows]).sum(axis=1).tolist(),
            "bubble_ns": free.sum(axis=1).tolist(),
            **parts,
            "recv_ns": (covered(work | receive) - busy).sum(axis=1).tolist(),
            "recv_wait_ns": [
                None if is_unknown else wait
                for wait, is_unknown in zip(waited, unknown, strict=True)
            ],
        }


def _covered_between(union: intervals.Intervals, cuts: Array) -> Array:
    """Time that a union covers between each two neighbouring cuts of a row."""
    start, end = union
    if not start.size:
        return np.zeros((len(cuts), cuts.shape[1] - 1), np.int64)
    # covered time before each cut: that of all intervals which have begun by then, without the part
    # of the last of these that lies beyond the cut
    total = np.concatenate([[0], np.cumsum(end - start)])
    begun = np.searchsorted(start, cuts, "left")
    beyond = np.where(begun > 0, np.maximum(0, end[begun - 1] - cuts), 0)
    return np.diff(total[begun] - beyond, axis=1)
