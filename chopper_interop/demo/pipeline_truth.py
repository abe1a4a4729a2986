"""Ground truth of a pipeline: times without compute work on each rank, and their causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.demo.parameters import FIRST_STEP
from chopper_interop.demo.program import COLLECTIVE, KERNEL, MEMSET
from chopper_interop.demo.spans import free, overlap_ns, union

if TYPE_CHECKING:
    from chopper_interop.demo.job import Job
    from chopper_interop.demo.spans import Spans


def pipeline(job: Job) -> dict[str, Any]:
    """Return the entry `pipeline` of truth.json."""
    p = job.parameters
    rows = [_row(job, rank, step) for rank in range(p.ranks) for step in range(p.steps)]
    return {
        "stages": p.pipeline,
        "microbatches": p.microbatches,
        "schedule": "1F1B",
        "ideal_bubble_share": (p.pipeline - 1) / (p.microbatches + p.pipeline - 1),
        "steps": {key: [row[key] for row in rows] for key in rows[0]},
    }


def _row(job: Job, rank: int, step: int) -> dict[str, int]:
    copies = job.parameters.ranks // job.parameters.pipeline
    along = range(rank % copies, job.parameters.ranks, copies)
    extents = {r: _extent(job, r, step) for r in along}
    start, end = min(e[0] for e in extents.values()), max(e[1] for e in extents.values())
    compute, collective, exchange, receive, wait = _work(job, rank)
    busy = union(*(np.concatenate(pair) for pair in zip(compute, collective, strict=True)))
    bubble = free(busy, start, end)

    def within(spans: Spans, begin: int, stop: int) -> int:
        return overlap_ns(*spans, np.array([begin]), np.array([max(begin, stop)]))

    first, last = extents[rank]
    return {
        "rank": rank,
        "step": FIRST_STEP + step,
        "stage": rank // copies,
        "start_ns": start,
        "end_ns": end,
        "span_ns": end - start,
        "compute_ns": within(compute, start, end),
        "p2p_ns": within(exchange, start, end),
        "bubble_ns": within(bubble, start, end),
        "warmup_ns": within(bubble, start, first),
        "steady_ns": within(bubble, first, last),
        "cooldown_ns": within(bubble, last, end),
        "recv_ns": overlap_ns(*bubble, *receive),
        "recv_wait_ns": overlap_ns(*bubble, *wait),
    }


def _extent(job: Job, rank: int, step: int) -> tuple[int, int]:
    """Start of the first kernel of a forward or backward pass of a step, and end of the last."""
    gpu, passes = job.gpu(rank), job.programs[rank].passes
    start = min(int(gpu.start_ns[step, first]) for first, _ in passes)
    return start, max(int(gpu.end_ns[step, last]) for _, last in passes)


def _work(job: Job, rank: int) -> tuple[Spans, Spans, Spans, Spans, Spans]:
    """Times of computing, collectives, sends and receives, receives, and waits in receives."""
    gpu, program, met = job.gpu(rank), job.programs[rank], job.last_start_ns()[rank]
    compute = np.isin(gpu.kind, (KERNEL, MEMSET))
    exchange = np.array([op.exchange for op in program.gpu])
    receive = exchange & np.array([op.members[-1:] == (rank,) for op in program.gpu])
    collective = (gpu.kind == COLLECTIVE) & ~exchange
    ended = [(which, gpu.end_ns) for which in (compute, collective, exchange, receive)]
    ended.append((receive, met[:, : len(gpu.kind)]))
    one, two, three, four, five = (
        union(gpu.start_ns[:, which].ravel(), end[:, which].ravel()) for which, end in ended
    )
    return one, two, three, four, five
