"""Gradients reduced in buckets of another size, as with another ``bucket_cap_mb`` of DDP.

Gradients keep their order. A bucket is closed by the gradient with which it reaches the size, as
PyTorch's ``compute_bucket_assignment_by_size`` does; it is reduced when that gradient is ready on all
ranks and the bucket before has been reduced. Its time is that of its bytes in the measured
buckets, and the fixed time of one all-reduce: alpha + beta bytes, with the measured beta of each::

    measured   |== a b ==| |== c d ==|      (alpha + a b), (alpha + c d)
    requested      |==== a b c d ====|          alpha + a b c d

dPRO (MLSys 2022) fuses tensors in the same way: ready with the last, and the time of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.changes import gradients
from chopper_interop.analyses.methods.changes.changer import (
    Change,
    ChangedJob,
    ChangedTimes,
    Changer,
)
from chopper_interop.analyses.methods.changes.gradients import Buckets, FixedTime, Gradients
from chopper_interop.analyses.methods.communication import sizes
from chopper_interop.analyses.methods.timing.edited import NewEdges, edited
from chopper_interop.arrays import Array
from chopper_interop.errors import UsageError
from chopper_interop.grouping import grouped
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.timing.model import Timing


def plan_buckets(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Plan to reduce gradients in buckets of another size."""
    trace = changer.trace
    measured, others = gradients.find_buckets(trace, chosen & (trace.array("kind") == Kind.COMM))
    graph = changer.timing.graph
    has_transfer = np.zeros(len(graph), bool)
    has_transfer[graph.after[graph.kind == EdgeKind.COMM]] = True
    others += sum(one.row.size for one in measured if not has_transfer[2 * one.row + 1].all())
    measured = [one for one in measured if has_transfer[2 * one.row + 1].all()]
    now.notes[
        "all-reduces of which not all ranks, sizes or transfers are known, left unchanged"
    ] += others
    if not measured:
        raise UsageError(
            f"change={change.text}: no step has gradients that are reduced over ranks of the trace, "
            "with known sizes"
        )
    now.plans["buckets"] = partial(_apply, changer, now, change, measured)


def _apply(
    changer: Changer, now: ChangedTimes, change: Change, measured: list[Buckets], job: ChangedJob
) -> ChangedJob:
    plan = _Plan(changer, change, measured, job)
    timing = plan.build()
    now.notes["buckets, before"] += sum(len(one.size) for one in measured)
    now.notes["buckets, now"] += plan.count
    fixed_ns, error_ns = (max(column) for column in zip(*plan.fixed, strict=True))
    now.notes["ns of fixed time in an all-reduce"] += round(fixed_ns)
    now.notes["ns of uncertainty of that (two standard errors)"] += round(2 * error_ns)
    return ChangedJob(timing, timing.lag_ns, timing.delay_ns, timing.at_ns)


@dataclass(frozen=True)
class _Bucket:
    """A bucket as requested for.

    Parameters
    ----------
    transfer_ns
        Time of its transfer.
    measured, part
        The measured bucket that it ends in, and the number of the gradient there with which it ends.
    """

    transfer_ns: int
    measured: int
    part: int


class _Plan:
    """New vertices and edges: the start and the end of each bucket's transfer."""

    def __init__(
        self, changer: Changer, change: Change, measured: list[Buckets], job: ChangedJob
    ) -> None:
        self.changer, self.change, self.measured = changer, change, measured
        self.trace, self.timing = changer.trace, job.timing
        self.lag, self.delay = job.lag_ns.copy(), job.delay_ns.copy()
        graph = self.timing.graph
        self.keep = np.ones(len(graph.after), bool)
        self.edges: list[tuple[int, int, int, int]] = []
        self.nodes: list[int] = []
        self.count = 0
        self._removed: list[Array] = []
        ends = np.concatenate([2 * one.row.ravel() + 1 for one in measured])
        self._into = self._edges_by(graph.after, ends, EdgeKind.COMM)
        starts = np.concatenate([2 * one.row.ravel() for one in measured])
        self._stream = self._edges_by(graph.after, starts, EdgeKind.STREAM)
        self._event = self._edges_by(graph.after, starts, EdgeKind.EVENT)
        self._launch = self._edges_by(graph.after, starts, EdgeKind.LAUNCH)
        self.fixed = self._fixed_times()

    def _edges_by(self, end: Array, vertices: Array, kind: EdgeKind) -> dict[int, list[int]]:
        """Edges of a kind at each of some vertices."""
        wanted = np.zeros(len(self.timing.graph), bool)
        wanted[vertices] = True
        edge = np.flatnonzero(wanted[end] & (self.timing.graph.kind == kind))
        return grouped(zip(end[edge].tolist(), edge.tolist(), strict=True))

    def _transfers(self, one: Buckets) -> Array:
        """Time of each bucket's transfer: to the last end of a member."""
        of_rows = [
            [max(int(self.lag[e]) for e in self._into[2 * row + 1]) for row in rows]
            for rows in one.row.tolist()
        ]
        return np.array([max(times) for times in of_rows], np.int64)

    def _fixed_times(self) -> list[FixedTime]:
        """Fixed time of an all-reduce of each step and group."""
        latency = self.change.options["latency"]
        if latency is not None:
            kind = np.zeros(1, np.int64)
            steps = [
                sizes.ring_steps(kind, (Collective.ALL_REDUCE,), np.array([one.ranks]))[0]
                for one in self.measured
            ]
            return [FixedTime(float(n) * latency, 0.0) for n in steps]
        rank = self.trace.array("rank")
        by_group = grouped((rank[one.row[0]].tobytes(), k) for k, one in enumerate(self.measured))
        fixed = [FixedTime(0.0, 0.0)] * len(self.measured)
        for members in by_group.values():
            size = np.concatenate([self.measured[k].size for k in members])
            transfer = np.concatenate([self._transfers(self.measured[k]) for k in members])
            known = gradients.fixed_time(size, transfer)
            if known is None:
                raise UsageError(
                    f"change={self.change.text}: all measured buckets are of about one size, so that "
                    "the time of one that does not depend on size is unknown",
                    hint="state it: latency=5us for each step of a ring",
                )
            for k in members:
                fixed[k] = known
        return fixed

    def build(self) -> Timing:
        for one, fixed in zip(self.measured, self.fixed, strict=True):
            self._add(one, fixed.ns)
        self._remove_operators(np.concatenate(self._removed))
        columns = (np.array(column, np.int64) for column in zip(*self.edges, strict=True))
        nodes = np.array(self.nodes, np.int64)
        timing = edited(self.timing, self.lag, self.delay, self.keep, NewEdges(*columns), nodes)
        if timing is None:
            raise UsageError(
                f"change={self.change.text}: work before a bucket is complete waits for a part of it, "
                "so that they cannot be reduced together",
                hint="choose the all-reduces of gradients, as by where group == 0",
            )
        return timing

    def _requested(
        self, one: Buckets, fixed_ns: float
    ) -> tuple[list[_Bucket], list[Gradients] | None]:
        """Buckets of the size requested for."""
        cap, first = self.change.value, self.change.options["first"]
        parts = gradients.gradients_of(self.trace, one)
        transfer = self._transfers(one)
        if parts is None and (one.size > cap).any():
            raise UsageError(
                f"change={self.change.text}: buckets of {int(one.size.max()):,} bytes would be divided, "
                "and the trace does not say which gradients they hold",
                hint="PyTorch's profiler records that with record_shapes=True",
            )
        requested, size, time, limit = [], 0, 0.0, first or cap
        for k, whole in enumerate(one.size.tolist()):
            of_gradients = [whole] if parts is None else parts[k].size.tolist()
            per_byte = max(float(transfer[k]) - fixed_ns, 0.0) / whole
            for g, each in enumerate(of_gradients):
                size, time = size + each, time + each * per_byte
                is_last = k == len(one.size) - 1 and g == len(of_gradients) - 1
                if size >= limit or is_last:
                    requested.append(_Bucket(round(fixed_ns + time), k, g))
                    size, time, limit = 0, 0.0, cap
        return requested, parts

    def _add(self, one: Buckets, fixed_ns: float) -> None:
        """Add the buckets of one step and group, and take the measured ones out."""
        requested, parts = self._requested(one, fixed_ns)
        self.count += len(requested)
        rows = one.row.tolist()
        operator = gradients.issuing_operator(self.trace, one.row)
        closing = {(b.measured, b.part) for b in requested}
        last = [0] * len(rows) if parts is None else [len(p.size) - 1 for p in parts]
        self._removed.append(
            operator[[k for k in range(len(rows)) if (k, last[k]) not in closing]].ravel()
        )
        gap_ns = self._drop_stream_edges(rows)
        before = -1
        opened = 0  # the first measured bucket that has not ended yet
        kernels = (
            None if parts is None else [gradients.last_kernels(self.trace, p.host) for p in parts]
        )
        for bucket in requested:
            k, g = bucket.measured, bucket.part
            begin = len(self.timing.graph) + len(self.nodes)
            end = begin + 1
            self.nodes += [rows[k][0], rows[k][0]]
            if g == last[k]:
                self.edges += [(2 * row, begin, EdgeKind.COMM, 0) for row in rows[k]]
            elif parts is not None and kernels is not None:
                self._add_ready(begin, rows[k], operator[k], parts[k].host[g], kernels[k][g])
            if before < 0:
                self._follow(begin, rows[0])
            else:
                self.edges.append((before, begin, EdgeKind.STREAM, gap_ns))
            self.edges.append((begin, end, EdgeKind.COMM, bucket.transfer_ns))
            while opened < len(rows) and (opened < k or (opened == k and g == last[k])):
                self.edges += [(end, 2 * row + 1, EdgeKind.COMM, 0) for row in rows[opened]]
                opened += 1
            before = end
        for row in one.row.ravel().tolist():
            into = self._into.get(2 * row + 1, [])
            self.lag[into] = np.minimum(self.lag[into], 0)

    def _drop_stream_edges(self, rows: list[list[int]]) -> int:
        """Let measured buckets not follow each other on their stream; return the least time between two."""
        edges = [
            edge
            for k in range(1, len(rows))
            for row in rows[k]
            for edge in self._stream.get(2 * row, [])
            if self.timing.graph.src[edge] // 2 in rows[k - 1]
        ]
        self.keep[edges] = False
        return max(int(self.lag[edges].max(initial=0)), 0)

    def _remove_operators(self, operator: Array) -> None:
        """Let hosts take no time to issue what is not issued any more."""
        chosen = np.zeros(self.trace.nodes.num_rows, bool)
        chosen[operator[operator >= 0]] = True
        if chosen.any():
            edge = self.changer.edges(self.changer.within(chosen))
            self.lag[edge] = np.minimum(self.lag[edge], 0)

    def _follow(self, begin: int, rows: list[int]) -> None:
        """Let the first bucket follow what its measured one followed on the stream."""
        for row in rows:
            for edge in self._stream.get(2 * row, []):
                source = int(self.timing.graph.src[edge])
                self.edges.append((source, begin, EdgeKind.STREAM, int(self.lag[edge])))

    def _add_ready(
        self, begin: int, rows: list[int], operator: Array, host: Array, kernel: Array
    ) -> None:
        """Let a bucket begin when a gradient within a measured bucket is ready, and it is issued."""
        ts = self.trace.array("ts")
        dur = self.trace.array("dur")
        for row, issued, at, work in zip(
            rows, operator.tolist(), host.tolist(), kernel.tolist(), strict=True
        ):
            event = [int(self.lag[e]) for e in self._event.get(2 * row, [])]
            if work >= 0:
                self.edges.append((2 * work + 1, begin, EdgeKind.EVENT, min(event, default=0)))
            graph = self.timing.graph
            issue_ns = min(
                (
                    int(self.changer.timing.at_ns[graph.src[e]] - ts[issued] + self.lag[e])
                    for e in self._launch.get(2 * row, [])
                ),
                default=0,
            )
            # the host issues it and goes on behind that
            self.edges.append((2 * at + 1, begin, EdgeKind.LAUNCH, issue_ns - int(dur[issued])))
            self.delay[2 * at + 1] += int(dur[issued])
