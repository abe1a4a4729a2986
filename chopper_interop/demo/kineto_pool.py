"""The numbers of one step of one rank in the order in which the Kineto templates refer to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.demo.identity import Numbering, correlations, external_ids, launches, numbering
from chopper_interop.demo.parameters import BASE_TIME_NS, FIRST_STEP
from chopper_interop.grouping import grouped

if TYPE_CHECKING:
    from chopper_interop.demo.job import DemoJob
    from chopper_interop.demo.program import Program


@dataclass(frozen=True)
class GpuSpan:
    """Extent of a user annotation on a stream: its event, the first operation and the last."""

    event: int
    stream: int
    first: int
    last: int


def gpu_spans(program: Program) -> list[GpuSpan]:
    """Extents on the GPU of the annotations of a step; the innermost around a launch counts."""
    of_call = [event.annotation for event in program.events]
    spans_of = grouped(
        ((of_call[op.call], op.stream), row)
        for row, op in enumerate(program.gpu)
        if of_call[op.call] >= 0
    )
    return [GpuSpan(*key, rows[0], rows[-1]) for key, rows in sorted(spans_of.items())]


class PoolLayout:
    """Places of all numbers in the pool."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: Numbering = numbering(program)
        self.spans = gpu_spans(program)
        self.launches = launches(program.events)
        self._begins = np.array([e.begin for e in program.events])
        self._ends = np.array([e.begin if e.end < 0 else e.end for e in program.events])
        events, gpu = len(program.events), len(program.gpu)
        sizes = {
            "fixed": 6, "mark": len(program.marks), "dur": events, "external": events,
            "correlation": events, "row": events, "memory": events, "sequence": program.sequences,
            "flow": len(program.flows), "gpu_ts": gpu, "gpu_dur": gpu, "bandwidth": gpu,
            "span_ts": len(self.spans), "span_dur": len(self.spans),
        }  # fmt: skip
        first = np.concatenate([[0], np.cumsum(list(sizes.values()))])
        self.at = dict(zip(sizes, first.tolist(), strict=False))
        self.pid, self.device, self.rank, self.step = 0, 3, 4, 5

    def tid(self, thread: int) -> int:
        """Place of a thread's number."""
        return 1 + thread

    def pool(self, job: DemoJob, rank: int, step: int) -> Array:
        """Collect the numbers of a step (counted from 0) of a rank."""
        who, numbers, program = job.who(rank), self.numbers, self.program
        gpu = job.gpu(rank)
        mark_ns = job.timeline.mark_ns[rank, step, : len(program.marks)] - BASE_TIME_NS
        gpu_ts, gpu_end = (ns[step] - BASE_TIME_NS for ns in (gpu.start_ns, gpu.end_ns))
        sizes = np.array([op.bytes for op in program.gpu])
        every = np.arange(len(program.events))
        first = [span.first for span in self.spans]
        last = [span.last for span in self.spans]
        operators = numbers.counts[0] * job.parameters.steps
        fixed = [who.tid(0), who.tid(0), who.tid(1), who.device, rank, FIRST_STEP + step]
        return np.concatenate([
            fixed,
            mark_ns,
            mark_ns[self._ends] - mark_ns[self._begins],
            external_ids(who, numbers, step, every),
            correlations(who, numbers, step, every),
            step * numbers.counts[0] + numbers.row,
            operators + step * numbers.counts[2] + numbers.memory,
            who.sequence + step * program.sequences + np.arange(program.sequences),
            1 + step * len(program.flows) + np.arange(len(program.flows)),
            gpu_ts,
            gpu_end - gpu_ts,
            sizes * 1_000_000 // (gpu_end - gpu_ts),
            gpu_ts[first] - 1,
            gpu_end[last] - gpu_ts[first] + 2,
        ]).astype(np.int64)  # fmt: skip
