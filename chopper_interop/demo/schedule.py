"""When everything happens: the program of a step, run on all ranks step after step.

Every dependency points to something earlier in program order, so one pass in that order, over all
ranks at a time, gives each instant as the maximum of what it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from chopper_interop.compiled import jit
from chopper_interop.demo import clock as clocks
from chopper_interop.demo import noise
from chopper_interop.demo.kernels import LAWS, law_tables, slowed_clock_mhz, times_ns
from chopper_interop.demo.parameters import MIN_MHZ, WINDOW_START_NS
from chopper_interop.demo.program import COLLECTIVE, COMM, COMPUTE, KERNEL, LAUNCH, SYNC

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.demo.parameters import DemoParameters
    from chopper_interop.demo.program import Program

    Array = npt.NDArray[Any]

LAUNCH_LATENCY_NS: Final = 2_500
"""From the end of the launching call (the begin of a copying one) until the GPU can start."""
EVENT_LATENCY_NS: Final = 1_200
"""From the end of what an event stands for until the waiting stream can go on."""
SYNC_LATENCY_NS: Final = 3_000
"""From the end of the last GPU operation until the host's wait for it returns."""
KERNEL_SPREAD: Final = 0.01
TRANSFER_SPREAD: Final = 0.02
_TYPICAL_MHZ = 1770.0
_RARE = 1 / 400
_START_SKEW_NS = 150_000


class Tables(NamedTuple):
    """A `Program` as arrays, in the words of its classes; `tail` is the last operation by stream."""

    cost_ns: Array
    action: Array
    operand: Array
    kind: Array
    stream: Array
    kernel: Array
    mark: Array
    previous: Array
    waits_for: Array
    fixed_ns: Array
    tail: Array
    law: Array
    activity: Array


class Run(NamedTuple):
    """What one run of the job is: its noise, its size, and a constant clock [MHz] or 0."""

    seed: int
    ranks: int
    steps: int
    constant_mhz: float


class Timeline(NamedTuple):
    """Unix times in nanoseconds, arrays (rank, step, mark) and (rank, step, GPU operation)."""

    mark_ns: Array
    start_ns: Array
    end_ns: Array


def make_tables(program: Program) -> Tables:
    """Arrays of a program."""
    marks, gpu = program.marks, program.gpu
    slope, fixed = law_tables(program.kernels)
    activity = [LAWS[k.kind].activity if k.kind in LAWS else 0.0 for k in program.kernels]
    tail = [max(i for i, op in enumerate(gpu) if op.stream == s) for s in (COMPUTE, COMM)]
    return Tables(
        np.array([m.cost_ns for m in marks], dtype=np.float64),
        np.array([m.action for m in marks], dtype=np.int64),
        np.array([m.operand for m in marks], dtype=np.int64),
        np.array([op.kind for op in gpu], dtype=np.int64),
        np.array([op.stream for op in gpu], dtype=np.int64),
        np.array([op.kernel for op in gpu], dtype=np.int64),
        np.array([op.mark for op in gpu], dtype=np.int64),
        np.array([op.previous for op in gpu], dtype=np.int64),
        np.array([op.waits_for for op in gpu], dtype=np.int64),
        np.array([op.fixed_ns for op in gpu], dtype=np.float64),
        np.array(tail, dtype=np.int64),
        np.stack([slope, fixed], axis=1),
        np.array(activity),
    )


def step_kernels(tables: Tables) -> Array:
    """Rows of the kernels that the compute stream runs in a step, in order."""
    rows: Array = tables.kernel[tables.kind == KERNEL]
    return rows


def mean_activity(tables: Tables) -> float:
    """Activity of a GPU averaged over the kernels of a step."""
    rows = step_kernels(tables)
    time = times_ns(tables.law[rows, 0], tables.law[rows, 1], _TYPICAL_MHZ)
    return float((time * tables.activity[rows]).sum() / time.sum())


def simulate(p: DemoParameters, tables: Tables) -> tuple[Timeline, clocks.Clock]:
    """Run the job; its instants, and the clocks over the window and `LEAD_NS` either side."""
    rows = step_kernels(tables)
    law = tables.law[rows]
    slow_mhz = slowed_clock_mhz(law[:, 0], law[:, 1], _TYPICAL_MHZ, p.straggler_slowdown)
    clock = clocks.make_clock(p, slow_mhz / _TYPICAL_MHZ, p.steps * _longest_step_ns(tables))
    activity = mean_activity(tables)
    for gpu in range(p.ranks):
        clocks.spend(clock, gpu, WINDOW_START_NS, activity, 0.95)
    timeline = _empty_timeline(p, tables)
    _run(tables, Run(p.seed, p.ranks, p.steps, 0.0), clock, timeline)
    end_ns = int(timeline.mark_ns[:, -1, -1].max())
    for gpu in range(p.ranks):
        clocks.spend(clock, gpu, end_ns + clocks.LEAD_NS - clocks.TICK_NS, activity, 0.95)
    return timeline, clock


def simulate_ideal(p: DemoParameters, tables: Tables, clock: clocks.Clock) -> Timeline:
    """Run the same job, with the same noise, at the highest clock."""
    timeline = _empty_timeline(p, tables)
    _run(tables, Run(p.seed, p.ranks, p.steps, float(p.peak_mhz)), clock, timeline)
    return timeline


def _longest_step_ns(tables: Tables) -> float:
    """More than a step can last: everything one after the other, at the lowest clock."""
    rows = tables.kernel[tables.kernel >= 0]
    kernels = times_ns(tables.law[rows, 0], tables.law[rows, 1], float(MIN_MHZ)).sum()
    latencies = len(tables.kind) * (LAUNCH_LATENCY_NS + EVENT_LATENCY_NS + SYNC_LATENCY_NS)
    return float(1.2 * (kernels + tables.fixed_ns.sum() + 2 * tables.cost_ns.sum() + latencies))


def _empty_timeline(p: DemoParameters, tables: Tables) -> Timeline:
    gpu = (p.ranks, p.steps, len(tables.kind))
    marks = np.zeros((p.ranks, p.steps, len(tables.action)), dtype=np.int64)
    return Timeline(marks, np.zeros(gpu, dtype=np.int64), np.zeros(gpu, dtype=np.int64))


@jit
def _host_cost_ns(t: Tables, run: Run, rank: int, step: int, mark: int) -> int:
    draw = noise.uniform(run.seed, noise.HOST_COST, rank, step, mark)
    factor = 0.8 + 0.4 * draw
    if noise.uniform(run.seed, noise.HOST_COST, rank, step, -1 - mark) < _RARE:
        factor *= 4.0
    return int(t.cost_ns[mark] * factor) + 1


@jit
def _host(t: Tables, run: Run, out: Timeline, where: tuple[int, int, int]) -> None:
    """Time of one mark on one rank."""
    rank, step, mark = where
    if mark:
        before = out.mark_ns[rank, step, mark - 1]
    elif step:
        before = out.mark_ns[rank, step - 1, -1]
    else:
        skew = noise.uniform(run.seed, noise.HOST_COST, rank, -1, -1)
        before = WINDOW_START_NS + int(_START_SKEW_NS * skew)
    time = before + _host_cost_ns(t, run, rank, step, mark)
    if t.action[mark] == SYNC:
        time = max(time, out.end_ns[rank, step, t.operand[mark]] + SYNC_LATENCY_NS)
    out.mark_ns[rank, step, mark] = time


@jit
def _start_ns(t: Tables, out: Timeline, rank: int, step: int, op: int) -> int:
    """Latest of launch, the operation before on the stream, and the event waited for."""
    start: int = out.mark_ns[rank, step, t.mark[op]] + LAUNCH_LATENCY_NS
    if t.previous[op] >= 0:
        start = max(start, out.end_ns[rank, step, t.previous[op]])
    elif step:
        start = max(start, out.end_ns[rank, step - 1, t.tail[t.stream[op]]])
    if t.waits_for[op] >= 0:
        start = max(start, out.end_ns[rank, step, t.waits_for[op]] + EVENT_LATENCY_NS)
    return start


@jit
def _finish(
    t: Tables, run: Run, clock: clocks.Clock, out: Timeline, where: tuple[int, int, int]
) -> None:
    """Start and end of one GPU operation that concerns its rank alone."""
    rank, step, op = where
    start = _start_ns(t, out, rank, step, op)
    out.start_ns[rank, step, op] = start
    if t.kind[op] == COLLECTIVE:
        return
    factor = noise.lognormal(KERNEL_SPREAD, run.seed, noise.KERNEL_TIME, rank, step, op)
    row = t.kernel[op]
    if t.kind[op] != KERNEL:
        end = start + clocks.whole_ns(t.fixed_ns[op] * factor)
    elif run.constant_mhz > 0:
        time = clocks.law_ns(t.law[row, 0], t.law[row, 1], run.constant_mhz)
        end = start + clocks.whole_ns(time * factor)
    else:
        end = clocks.run_kernel(clock, rank, start, t.law[row], factor, t.activity[row])
    out.end_ns[rank, step, op] = end


@jit
def _meet(t: Tables, run: Run, out: Timeline, step: int, op: int) -> None:
    """End of a collective: the transfer begins when its last member has started."""
    factor = noise.lognormal(TRANSFER_SPREAD, run.seed, noise.TRANSFER_TIME, step, op, 0)
    transfer = clocks.whole_ns(t.law[t.kernel[op], 1, 0] * factor)
    last = out.start_ns[0, step, op]
    for rank in range(run.ranks):
        last = max(last, out.start_ns[rank, step, op])
    for rank in range(run.ranks):
        out.end_ns[rank, step, op] = last + transfer


@jit
def _run(t: Tables, run: Run, clock: clocks.Clock, out: Timeline) -> None:
    for step in range(run.steps):
        for mark in range(len(t.action)):
            for rank in range(run.ranks):
                _host(t, run, out, (rank, step, mark))
                if t.action[mark] == LAUNCH:
                    _finish(t, run, clock, out, (rank, step, t.operand[mark]))
            if t.action[mark] == LAUNCH and t.kind[t.operand[mark]] == COLLECTIVE:
                _meet(t, run, out, step, t.operand[mark])
