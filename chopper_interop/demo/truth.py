"""Ground truth of the job, taken from the simulation rather than from the files.

Intervals of time are sorted lists of disjoint ones; compiled passes go over two at once.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.demo import clock as clocks
from chopper_interop.demo import paths, schedule
from chopper_interop.demo.comms import DTYPE_BYTES
from chopper_interop.demo.identity import correlations, external_ids, launches
from chopper_interop.demo.kernels import sensitivities
from chopper_interop.demo.parameters import (
    BASE_TIME_NS,
    FIRST_STEP,
    NODE,
    PIPELINE,
    POWER_W,
    DemoParameters,
)
from chopper_interop.demo.program import COLLECTIVE, HANDOVER_NS, KERNEL, MEMCPY, MEMSET, Program

if TYPE_CHECKING:
    from chopper_interop.demo.job import DemoJob
    from chopper_interop.demo.schedule import Timeline

    Columns = dict[str, list[Any]]

    Spans = tuple[Array, Array]

FORMAT = "chopper-interop demo"
"""Format that `truth.json` states."""


def truth(job: DemoJob) -> dict[str, Any]:
    """Return the content of truth.json."""
    p, timeline = job.parameters, job.timeline
    measured, ideal = _job_steps_ns(timeline), _job_steps_ns(job.ideal)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "parameters": _parameters(p),
        "constants": _constants(p),
        "clocks": {
            "node": NODE,
            "base_time_ns": BASE_TIME_NS,
            "realtime_minus_boottime_ns": p.boottime_offset_ns,
            "window_start_ns": int(timeline.mark_ns[:, 0, 0].min()),
            "window_end_ns": int(timeline.mark_ns[:, -1, -1].max()),
        },
        "measured_step_ns": measured.tolist(),
        "ideal_step_ns": ideal.tolist(),
        "mean_measured_step_ns": float(measured.mean()),
        "mean_ideal_step_ns": float(ideal.mean()),
        "straggler": _straggler(job),
        "steps": _steps(job),
        "collectives": _collectives(job),
        "critical_path": _critical_paths(job),
    }
    if p.pipeline:
        content["pipeline"] = pipeline(job)
    if p.truth_kernels:
        content["kernels"] = _kernels(job)
    return content


def _parameters(parameters: DemoParameters) -> dict[str, Any]:
    """Return the parameters; those of a pipeline where there is one, power where it is another."""
    every = asdict(parameters)
    if parameters.power_w == POWER_W:
        del every["power_w"]
    return every if parameters.pipeline else {k: v for k, v in every.items() if k not in PIPELINE}


def _constants(parameters: DemoParameters) -> dict[str, int]:
    return {
        "launch_latency_ns": schedule.LAUNCH_LATENCY_NS,
        "event_latency_ns": schedule.EVENT_LATENCY_NS,
        "sync_latency_ns": schedule.SYNC_LATENCY_NS,
        "handover_ns": HANDOVER_NS,
        "control_tick_ns": clocks.TICK_NS,
        "peak_mhz": parameters.peak_mhz,
    }


def _job_steps_ns(timeline: Timeline) -> Array:
    """Time of each step of the job: to the last rank's end, from that of the step before."""
    return np.diff(timeline.mark_ns[:, :, -1].max(axis=0), prepend=paths.begin_ns(timeline, 0))


def _straggler(job: DemoJob) -> dict[str, Any]:
    p = job.parameters
    times = np.zeros(p.ranks, dtype=np.int64)
    for rank in range(p.ranks):
        gpu = job.gpu(rank)
        times[rank] = (gpu.end_ns - gpu.start_ns)[:, gpu.kind == KERNEL].sum()
    others = np.delete(times, p.slow_rank) if p.slow_rank >= 0 else times
    slowdown = float(times[p.slow_rank] / np.median(others)) if p.slow_rank >= 0 else 1.0
    return {
        "rank": p.slow_rank,
        "requested_slowdown": p.straggler_slowdown if p.slow_rank >= 0 else 1.0,
        "slowdown": slowdown,
        "kernel_time_ns": times.tolist(),
    }


def _steps(job: DemoJob) -> Columns:
    p, timeline, ideal = job.parameters, job.timeline, job.ideal
    rows = []
    for rank in range(p.ranks):
        for step in range(p.steps):
            begin, end = (int(timeline.mark_ns[rank, step, i]) for i in (0, -1))
            row = {"rank": rank, "step": FIRST_STEP + step, "start_ns": begin, "end_ns": end}
            row["duration_ns"] = end - begin
            row["ideal_duration_ns"] = int(
                ideal.mark_ns[rank, step, -1] - ideal.mark_ns[rank, step, 0]
            )
            rows.append(row | _occupation(job, rank, step, end - begin))
    return {key: [row[key] for row in rows] for key in rows[0]}


def _occupation(job: DemoJob, rank: int, step: int, duration_ns: int) -> dict[str, int]:
    """Measure what the GPU did in a step."""
    gpu = job.gpu(rank)
    start, end = gpu.start_ns[step], gpu.end_ns[step]
    kinds = {"compute": (KERNEL, MEMSET), "communication": (COLLECTIVE,), "copy": (MEMCPY,)}
    rows = {name: np.isin(gpu.kind, of) for name, of in kinds.items()}
    unions = {name: union(start[of], end[of]) for name, of in rows.items()}
    times = {f"{name}_ns": length_ns(of) for name, of in unions.items()}
    both = overlap_ns(*unions["compute"], *unions["communication"])
    busy = length_ns(union(start, end))
    return {
        **times,
        "overlap_ns": both,
        "exposed_communication_ns": times["communication_ns"] - both,
        "busy_ns": busy,
        "idle_ns": duration_ns - busy,
    }


def _kernels(job: DemoJob) -> Columns:
    """Table of all kernels, rank by rank and in each in the order of the launches."""
    columns: Columns = {}
    for rank in range(job.parameters.ranks):
        for key, values in _rank_kernels(job, rank).items():
            columns.setdefault(key, []).extend(values)
    return columns


def _rank_kernels(job: DemoJob, rank: int) -> Columns:
    p, gpu, program = job.parameters, job.gpu(rank), job.programs[rank]
    chosen = np.flatnonzero(gpu.kernel >= 0)
    comm = gpu.kind[chosen] == COLLECTIVE
    start, end = gpu.start_ns[:, chosen], gpu.end_ns[:, chosen]
    shape = start.shape
    mean = clocks.mean_mhz(job.clock, rank, start.ravel(), end.ravel()).reshape(shape)
    law = job.tables.law[job.tables.program[rank], gpu.kernel[chosen]]
    ideal = (job.ideal.end_ns - job.ideal.start_ns)[rank][:, chosen]
    transfer = end - job.last_start_ns()[rank][:, chosen]
    ideal[:, comm] = transfer[:, comm]
    kinds = [program.kernels[row].kind for row in gpu.kernel[chosen]]
    columns: dict[str, Array] = {
        "rank": np.full(shape, rank),
        "correlation": _launch_ids(job, rank)[:, chosen],
        "step": np.repeat(FIRST_STEP + np.arange(p.steps), len(chosen)),
        "class": np.tile(np.array(kinds, dtype=object), p.steps),
        "ts_ns": start,
        "dur_ns": end - start,
        "mean_clock_mhz": np.round(mean, 6),
        "ideal_dur_ns": ideal,
        "beta": np.round(sensitivities(law[:, 0], law[:, 1], mean), 6),
        **_launch_split(job, rank, chosen),
    }
    return {key: column.ravel().tolist() for key, column in columns.items()}


def _launch_ids(job: DemoJob, rank: int) -> Array:
    """Correlations of the GPU operations of a rank, array (step, operation)."""
    steps = np.arange(job.parameters.steps)[:, np.newaxis]
    calls = launches(job.programs[rank].events)
    return correlations(job.who(rank), job.numbers(rank), steps, calls)


def _launch_split(job: DemoJob, rank: int, chosen: Array) -> dict[str, Array]:
    """Launch gaps of compute kernels: all of it, what the host was late, what the call took."""
    program, gpu = job.programs[rank], job.gpu(rank)
    begins = np.array([program.events[op.call].begin for op in program.gpu])
    kernels = np.flatnonzero(gpu.kind == KERNEL)
    start = gpu.start_ns[:, kernels]
    end = np.maximum.accumulate(gpu.end_ns[:, kernels], axis=1)
    called = job.timeline.mark_ns[rank][:, begins[kernels]]
    before = end[:, :-1]
    split = np.zeros((3, *start.shape), dtype=np.int64)
    split[0, :, 1:] = np.maximum(0, called[:, 1:] - before)
    split[2, :, 1:] = np.maximum(0, start[:, 1:] - before)
    split[1, :, 1:] = np.minimum(start - called, split[2])[:, 1:]
    split[1, :, 0] = (start - called)[:, 0]
    full = np.full((3, len(start), len(gpu.kind)), -1, dtype=np.int64)
    full[:, :, kernels] = split
    return {f"{name}_ns": full[i][:, chosen] for i, name in enumerate(("prep", "call", "launch"))}


def _collectives(job: DemoJob) -> Columns:
    """Table of all that is communicated, in the order in which every rank starts it."""
    p, first, member = job.parameters, job.tables.first, job.tables.member
    ids = [_launch_ids(job, rank) for rank in range(p.ranks)]
    rows = []
    for step in range(p.steps):
        for begin, stop in pairwise(first.tolist()):
            ranks, ops = member[begin:stop].T
            starts = job.timeline.start_ns[ranks, step, ops]
            last, end = int(starts.max()), int(job.timeline.end_ns[ranks[0], step, ops[0]])
            row = {"step": FIRST_STEP + step, **_message(job.programs[ranks[0]], ops[0])}
            if p.pipeline:
                row["ranks"] = ranks.tolist()
            row["transfer_ns"], row["max_start_ns"], row["end_ns"] = end - last, last, end
            row["starts_ns"], row["waits_ns"] = starts.tolist(), (last - starts).tolist()
            row["correlations"] = [int(ids[r][step, op]) for r, op in member[begin:stop]]
            rows.append(row)
    if p.pipeline:
        rows.sort(key=lambda row: (row["step"], row["max_start_ns"]))
    return {key: [row[key] for row in rows] for key in rows[0]}


def _message(program: Program, op: int) -> dict[str, Any]:
    fields = program.events[program.events[program.gpu[op].call].operator].extra
    size = DTYPE_BYTES[fields["dtype"]]
    sent, received = fields["In msg nelems"] * size, fields["Out msg nelems"] * size
    return {
        "name": fields["Collective name"],
        "bytes": max(sent, received),
        "in_bytes": sent,
        "out_bytes": received,
    }


def _critical_paths(job: DemoJob) -> dict[str, Any]:
    spans, steps = paths.host_spans(job.programs, job.tables), job.parameters.steps
    windows = [range(steps), *(range(i, i + 1) for i in range(steps))]
    window_paths = [
        _path_columns(job, paths.critical_path(job.tables, job.timeline, spans, window))
        for window in windows
    ]
    path_of_step = {str(FIRST_STEP + i): path for i, path in enumerate(window_paths[1:])}
    return {"window": window_paths[0], "steps": path_of_step}


def _path_columns(job: DemoJob, path: paths.CriticalPath) -> dict[str, Any]:
    """Give the pieces of a path the names that they have in the files."""
    start_ns, end_ns = int(path.ts_ns[0]), int(path.ts_ns[-1] + path.dur_ns[-1])
    if start_ns + int(path.dur_ns.sum()) != end_ns or int(path.dur_ns.min()) <= 0:
        raise AssertionError("the pieces of the critical path do not tile its window")
    on_gpu = (path.kind < paths.KINDS.index("host")) | (
        (path.kind >= paths.KINDS.index("launch_latency"))
        & (path.kind <= paths.KINDS.index("event_latency"))
    )
    correlation, external = np.full((2, len(path.item)), -1, dtype=np.int64)
    for rank in np.unique(path.rank):
        program, who = job.programs[rank], job.who(int(rank))
        numbers, rows = job.numbers(rank), np.flatnonzero(path.rank == rank)
        calls = np.array([op.call for op in program.gpu], dtype=np.int64)
        item, gpu = path.item[rows], on_gpu[rows]
        event = np.where(gpu, calls[np.where(gpu, item, 0)], item)
        rows, event = rows[event >= 0], event[event >= 0]
        correlation[rows] = correlations(who, numbers, path.step[rows], event)
        external[rows] = external_ids(who, numbers, path.step[rows], event)
    return {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "kind": [paths.KINDS[k] for k in path.kind],
        "rank": path.rank.tolist(),
        "step": (FIRST_STEP + path.step).tolist(),
        "correlation": correlation.tolist(),
        "external_id": external.tolist(),
        "ts_ns": path.ts_ns.tolist(),
        "dur_ns": path.dur_ns.tolist(),
    }


def pipeline(job: DemoJob) -> dict[str, Any]:
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


def _row(job: DemoJob, rank: int, step: int) -> dict[str, int]:
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


def _extent(job: DemoJob, rank: int, step: int) -> tuple[int, int]:
    """Start of the first kernel of a forward or backward pass of a step, and end of the last."""
    gpu, passes = job.gpu(rank), job.programs[rank].passes
    start = min(int(gpu.start_ns[step, first]) for first, _ in passes)
    return start, max(int(gpu.end_ns[step, last]) for _, last in passes)


def _work(job: DemoJob, rank: int) -> tuple[Spans, Spans, Spans, Spans, Spans]:
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


def union(start: Array, end: Array) -> Spans:
    """Disjoint sorted intervals that cover the same time."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    new = np.ones(len(start), dtype=bool)
    new[1:] = start[1:] > reach[:-1]
    return start[new], reach[np.append(new[1:], True)] if len(new) else reach


def length_ns(spans: Spans) -> int:
    """Time that disjoint intervals cover."""
    return int((spans[1] - spans[0]).sum())


def free(spans: Spans, begin: int, end: int) -> Spans:
    """Disjoint sorted intervals of what others leave free between two instants."""
    starts, ends = (np.clip(of, begin, end) for of in spans)
    return np.append(begin, ends), np.append(starts, end)


@jit
def overlap_ns(start_a: Array, end_a: Array, start_b: Array, end_b: Array) -> int:
    """Time that two sorted lists of disjoint intervals have in common."""
    i, j, total = 0, 0, 0
    while i < len(start_a) and j < len(start_b):
        total += max(0, min(end_a[i], end_b[j]) - max(start_a[i], start_b[j]))
        if end_a[i] < end_b[j]:
            i += 1
        else:
            j += 1
    return total
