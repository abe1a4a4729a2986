"""What is true of the job, measured where it was made rather than in the files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.compiled import jit
from chopper_interop.demo import clock as clocks
from chopper_interop.demo import paths, schedule
from chopper_interop.demo.fsdp import DTYPE_BYTES
from chopper_interop.demo.identity import correlations, external_ids, identity, launches, numbering
from chopper_interop.demo.kernels import sensitivities
from chopper_interop.demo.parameters import BASE_TIME_NS, FIRST_STEP, NODE
from chopper_interop.demo.program import COLLECTIVE, COMM, COMPUTE, HANDOVER_NS, KERNEL, MEMSET

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.demo.identity import Identity
    from chopper_interop.demo.parameters import DemoParameters
    from chopper_interop.demo.program import Program
    from chopper_interop.demo.schedule import Tables, Timeline

    Array = npt.NDArray[Any]
    Columns = dict[str, list[Any]]

FORMAT = "chopper-interop demo"
"""What `truth.json` says it is."""


@dataclass(frozen=True)
class Job:
    """Everything known of one job."""

    parameters: DemoParameters
    program: Program
    tables: Tables
    timeline: Timeline
    ideal: Timeline
    clock: clocks.Clock

    def who(self, rank: int) -> Identity:
        """Return the numbers of a rank's process."""
        return identity(self.parameters.seed, rank)


def truth(job: Job) -> dict[str, Any]:
    """Return the content of truth.json."""
    p, timeline = job.parameters, job.timeline
    measured, ideal = _job_steps_ns(timeline), _job_steps_ns(job.ideal)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "parameters": asdict(p),
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
    if p.truth_kernels:
        content["kernels"] = _kernels(job)
    return content


def _constants(p: DemoParameters) -> dict[str, int]:
    return {
        "launch_latency_ns": schedule.LAUNCH_LATENCY_NS,
        "event_latency_ns": schedule.EVENT_LATENCY_NS,
        "sync_latency_ns": schedule.SYNC_LATENCY_NS,
        "handover_ns": HANDOVER_NS,
        "control_tick_ns": clocks.TICK_NS,
        "peak_mhz": p.peak_mhz,
    }


def _job_steps_ns(timeline: Timeline) -> Array:
    """Time from the first rank's start to the last rank's end of each step."""
    result: Array = timeline.mark_ns[:, :, -1].max(axis=0) - timeline.mark_ns[:, :, 0].min(axis=0)
    return result


def _straggler(job: Job) -> dict[str, Any]:
    p, kernels = job.parameters, job.tables.kind == KERNEL
    times = (job.timeline.end_ns - job.timeline.start_ns)[:, :, kernels].sum(axis=(1, 2))
    others = np.delete(times, p.slow_rank) if p.slow_rank >= 0 else times
    slowdown = float(times[p.slow_rank] / np.median(others)) if p.slow_rank >= 0 else 1.0
    return {
        "rank": p.slow_rank,
        "requested_slowdown": p.straggler_slowdown if p.slow_rank >= 0 else 1.0,
        "slowdown": slowdown,
        "kernel_time_ns": times.tolist(),
    }


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


def _steps(job: Job) -> Columns:
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


def _occupation(job: Job, rank: int, step: int, duration_ns: int) -> dict[str, int]:
    """Measure what the GPU did in a step; operations of one stream are disjoint."""
    tables = job.tables
    start, end = job.timeline.start_ns[rank, step], job.timeline.end_ns[rank, step]
    compute, comm = np.isin(tables.kind, (KERNEL, MEMSET)), tables.stream == COMM
    both = overlap_ns(start[compute], end[compute], start[comm], end[comm])
    stream = tables.stream == COMPUTE
    shared = overlap_ns(start[stream], end[stream], start[comm], end[comm])
    total = {"compute": compute, "communication": comm, "copy": stream & ~compute}
    times = {f"{name}_ns": int((end - start)[rows].sum()) for name, rows in total.items()}
    busy = sum(times.values()) - shared
    return {
        **times,
        "overlap_ns": both,
        "exposed_communication_ns": times["communication_ns"] - both,
        "busy_ns": busy,
        "idle_ns": duration_ns - busy,
    }


def _kernels(job: Job) -> Columns:
    """Table of all kernels, rank by rank and in each in the order of the launches."""
    columns: Columns = {}
    for rank in range(job.parameters.ranks):
        for key, values in _rank_kernels(job, rank).items():
            columns.setdefault(key, []).extend(values)
    return columns


def _rank_kernels(job: Job, rank: int) -> Columns:
    p, tables, program = job.parameters, job.tables, job.program
    chosen = np.flatnonzero(tables.kernel >= 0)
    comm = tables.kind[chosen] == COLLECTIVE
    start = job.timeline.start_ns[rank][:, chosen]
    end = job.timeline.end_ns[rank][:, chosen]
    shape = start.shape
    mean = clocks.mean_mhz(job.clock, rank, start.ravel(), end.ravel()).reshape(shape)
    law = tables.law[tables.kernel[chosen]]
    ideal = (job.ideal.end_ns - job.ideal.start_ns)[rank][:, chosen]
    transfer = job.timeline.end_ns[rank] - job.timeline.start_ns.max(axis=0)
    ideal[:, comm] = transfer[:, chosen][:, comm]
    kinds = [program.kernels[row].kind for row in tables.kernel[chosen]]
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


def _launch_ids(job: Job, rank: int) -> Array:
    """Correlations of the GPU operations of a rank, array (step, operation)."""
    numbers, rows = numbering(job.program), launches(job.program.events)
    steps = np.arange(job.parameters.steps)[:, np.newaxis]
    return correlations(job.who(rank), numbers, steps, rows)


def _launch_split(job: Job, rank: int, chosen: Array) -> dict[str, Array]:
    """Launch gaps of compute kernels: all of it, what the host was late, what the call took."""
    begins = np.array([job.program.events[op.call].begin for op in job.program.gpu])
    kernels = np.flatnonzero(job.tables.kind == KERNEL)
    start = job.timeline.start_ns[rank][:, kernels]
    end = np.maximum.accumulate(job.timeline.end_ns[rank][:, kernels], axis=1)
    called = job.timeline.mark_ns[rank][:, begins[kernels]]
    before = end[:, :-1]
    split = np.zeros((3, *start.shape), dtype=np.int64)
    split[0, :, 1:] = np.maximum(0, called[:, 1:] - before)
    split[2, :, 1:] = np.maximum(0, start[:, 1:] - before)
    split[1, :, 1:] = np.minimum(start - called, split[2])[:, 1:]
    split[1, :, 0] = (start - called)[:, 0]
    full = np.full((3, len(start), len(job.tables.kind)), -1, dtype=np.int64)
    full[:, :, kernels] = split
    return {f"{name}_ns": full[i][:, chosen] for i, name in enumerate(("prep", "call", "launch"))}


def _collectives(job: Job) -> Columns:
    """Table of all collectives, in the order in which every rank starts them."""
    p, program, timeline = job.parameters, job.program, job.timeline
    ids = np.stack([_launch_ids(job, rank) for rank in range(p.ranks)])
    rows = []
    for step in range(p.steps):
        for op in program.collectives:
            starts = timeline.start_ns[:, step, op]
            last = int(starts.max())
            row = {"step": FIRST_STEP + step, **_message(program, op)}
            row["transfer_ns"] = int(timeline.end_ns[0, step, op]) - last
            row["max_start_ns"], row["end_ns"] = last, int(timeline.end_ns[0, step, op])
            row["starts_ns"], row["waits_ns"] = starts.tolist(), (last - starts).tolist()
            row["correlations"] = ids[:, step, op].tolist()
            rows.append(row)
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


def _critical_paths(job: Job) -> dict[str, Any]:
    spans, steps = paths.host_spans(job.program), job.parameters.steps
    windows = [range(steps), *(range(i, i + 1) for i in range(steps))]
    found = [
        _path_columns(job, paths.critical_path(job.tables, job.timeline, spans, window))
        for window in windows
    ]
    steps_found = {str(FIRST_STEP + i): path for i, path in enumerate(found[1:])}
    return {"window": found[0], "steps": steps_found}


def _path_columns(job: Job, path: paths.CriticalPath) -> dict[str, Any]:
    """Give the pieces of a path the names that they have in the files."""
    start_ns, end_ns = int(path.ts_ns[0]), int(path.ts_ns[-1] + path.dur_ns[-1])
    if start_ns + int(path.dur_ns.sum()) != end_ns or int(path.dur_ns.min()) <= 0:
        raise AssertionError("the pieces of the critical path do not tile its window")
    on_gpu = (path.kind < paths.KINDS.index("host")) | (
        (path.kind >= paths.KINDS.index("launch_latency"))
        & (path.kind <= paths.KINDS.index("event_latency"))
    )
    calls = np.array([op.call for op in job.program.gpu], dtype=np.int64)
    event = np.where(on_gpu, calls[np.where(on_gpu, path.item, 0)], path.item)
    known, numbers = event >= 0, numbering(job.program)
    correlation, external = np.full((2, len(event)), -1, dtype=np.int64)
    for rank in np.unique(path.rank):
        mine, who = known & (path.rank == rank), job.who(int(rank))
        correlation[mine] = correlations(who, numbers, path.step[mine], event[mine])
        external[mine] = external_ids(who, numbers, path.step[mine], event[mine])
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
