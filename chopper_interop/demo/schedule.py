"""Times of all events: each rank runs its program step after step until it waits for others.

Every dependency points to something earlier in the order of the rank's program, or to what the
others start of what they communicate, so each instant is the maximum of what is known before it.

So the loops are sequential, and compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.demo import clock as clocks
from chopper_interop.demo import noise
from chopper_interop.demo.kernels import slowed_clock_mhz, times_ns
from chopper_interop.demo.parameters import MIN_MHZ, WINDOW_START_NS, DemoParameters
from chopper_interop.demo.program import COLLECTIVE, KERNEL, LAUNCH, SYNC

if TYPE_CHECKING:
    from chopper_interop.demo.tables import ProgramTables

LAUNCH_LATENCY_NS: Final = 2_500
"""From the end of the launching call (the begin of a copying one) until the GPU can start."""
EVENT_LATENCY_NS: Final = 1_200
"""From the end of what an event stands for until the waiting stream can go on."""
SYNC_LATENCY_NS: Final = 3_000
"""From the end of the last GPU operation until the host's wait for it returns."""
# Invented: standard deviations of durations as shares, a usual clock, how rarely a host pauses, and by how
# much hosts enter the window apart.
KERNEL_SPREAD: Final = 0.01
TRANSFER_SPREAD: Final = 0.02
_TYPICAL_MHZ = 1770.0
_RARE = 1 / 400
_START_SKEW_NS = 150_000


class Run(NamedTuple):
    """One run of the job: its noise, its size, and a constant clock [MHz] or 0."""

    seed: int
    ranks: int
    steps: int
    constant_mhz: float


class Timeline(NamedTuple):
    """Unix times in nanoseconds, arrays (rank, step, mark) and (rank, step, GPU operation).

    If a rank has fewer marks than others, the last one is repeated; GPU operations that it lacks
    are 0.
    """

    mark_ns: Array
    start_ns: Array
    end_ns: Array


def step_kernels(tables: ProgramTables, rank: int) -> tuple[Array, Array]:
    """Laws and activities of the kernels that a rank's compute stream runs in a step, in order."""
    p = tables.program[rank]
    ops = slice(tables.ops[p])
    rows = tables.kernel[p, ops][tables.kind[p, ops] == KERNEL]
    return tables.law[p, rows], tables.activity[p, rows]


def mean_activity(tables: ProgramTables, rank: int) -> float:
    """Activity of a rank's GPU averaged over the kernels of a step."""
    law, activity = step_kernels(tables, rank)
    time = times_ns(law[:, 0], law[:, 1], _TYPICAL_MHZ)
    return float((time * activity).sum() / time.sum())


def simulate(
    parameters: DemoParameters, tables: ProgramTables
) -> tuple[Timeline, clocks.ClockStates]:
    """Run the job; its instants, and the clocks over the window and `LEAD_NS` either side."""
    law, _ = step_kernels(tables, max(parameters.slow_rank, 0))
    slow_mhz = slowed_clock_mhz(law[:, 0], law[:, 1], _TYPICAL_MHZ, parameters.straggler_slowdown)
    clock = clocks.make_clock(
        parameters, slow_mhz / _TYPICAL_MHZ, parameters.steps * _longest_step_ns(tables)
    )
    activity = [mean_activity(tables, rank) for rank in range(parameters.ranks)]
    for gpu in range(parameters.ranks):
        clocks.spend(clock, gpu, WINDOW_START_NS, activity[gpu], 0.95)
    timeline = _empty_timeline(parameters, tables)
    _run(tables, Run(parameters.seed, parameters.ranks, parameters.steps, 0.0), clock, timeline)
    end_ns = int(timeline.mark_ns[:, -1, -1].max())
    for gpu in range(parameters.ranks):
        clocks.spend(clock, gpu, end_ns + clocks.LEAD_NS - clocks.TICK_NS, activity[gpu], 0.95)
    return timeline, clock


def simulate_ideal(
    parameters: DemoParameters, tables: ProgramTables, clock: clocks.ClockStates
) -> Timeline:
    """Run the same job, with the same noise, at the highest clock."""
    timeline = _empty_timeline(parameters, tables)
    _run(
        tables,
        Run(parameters.seed, parameters.ranks, parameters.steps, float(parameters.peak_mhz)),
        clock,
        timeline,
    )
    return timeline


def _longest_step_ns(tables: ProgramTables) -> float:
    """More than a step can last: everything one after the other, at the lowest clock."""
    total = 0.0
    for p, ops in enumerate(tables.ops):
        rows = tables.kernel[p, :ops]
        law = tables.law[p, rows[rows >= 0]]
        kernels = times_ns(law[:, 0], law[:, 1], float(MIN_MHZ)).sum()
        latencies = ops * (LAUNCH_LATENCY_NS + EVENT_LATENCY_NS + SYNC_LATENCY_NS)
        fixed, cost = tables.fixed_ns[p].sum(), tables.cost_ns[p].sum()
        total += 1.2 * (kernels + fixed + 2 * cost + latencies)
    return float(total)


def _empty_timeline(parameters: DemoParameters, tables: ProgramTables) -> Timeline:
    gpu = (parameters.ranks, parameters.steps, tables.kind.shape[1])
    marks = np.zeros((parameters.ranks, parameters.steps, tables.action.shape[1]), dtype=np.int64)
    return Timeline(marks, np.zeros(gpu, dtype=np.int64), np.zeros(gpu, dtype=np.int64))


@jit
def _host_cost_ns(t: ProgramTables, run: Run, rank: int, step: int, mark: int) -> int:
    draw = noise.uniform(run.seed, noise.HOST_COST, rank, step, mark)
    factor = 0.8 + 0.4 * draw
    if noise.uniform(run.seed, noise.HOST_COST, rank, step, -1 - mark) < _RARE:
        factor *= 4.0
    return int(t.cost_ns[t.program[rank], mark] * factor) + 1


@jit
def _host(t: ProgramTables, run: Run, out: Timeline, where: tuple[int, int, int]) -> None:
    """Time of one mark on one rank."""
    rank, step, mark = where
    p = t.program[rank]
    if mark:
        before = out.mark_ns[rank, step, mark - 1]
    elif step:
        before = out.mark_ns[rank, step - 1, -1]
    else:
        skew = noise.uniform(run.seed, noise.HOST_COST, rank, -1, -1)
        before = WINDOW_START_NS + int(_START_SKEW_NS * skew)
    time = before + _host_cost_ns(t, run, rank, step, mark)
    if t.action[p, mark] == SYNC:
        time = max(time, out.end_ns[rank, step, t.operand[p, mark]] + SYNC_LATENCY_NS)
    out.mark_ns[rank, step, mark] = time
    if mark == t.marks[p] - 1:
        out.mark_ns[rank, step, mark:] = time


@jit
def _can_go(t: ProgramTables, out: Timeline, rank: int, step: int, mark: int) -> bool:
    """True if the ends of all operations that this mark and its launch wait for are known."""
    p = t.program[rank]
    op = t.operand[p, mark]
    if t.action[p, mark] == SYNC:
        return bool(out.end_ns[rank, step, op] > 0)
    if t.action[p, mark] != LAUNCH:
        return True
    previous, event = t.previous[p, op], t.waits_for[p, op]
    if event >= 0 and out.end_ns[rank, step, event] == 0:
        return False
    if previous < 0 and step:
        return bool(out.end_ns[rank, step - 1, t.tail[p, t.stream[p, op]]] > 0)
    return bool(previous < 0 or out.end_ns[rank, step, previous] > 0)


@jit
def _start_ns(t: ProgramTables, out: Timeline, rank: int, step: int, op: int) -> int:
    """Latest of launch, the operation before on the stream, and the event waited for."""
    p = t.program[rank]
    start: int = out.mark_ns[rank, step, t.mark[p, op]] + LAUNCH_LATENCY_NS
    if t.previous[p, op] >= 0:
        start = max(start, out.end_ns[rank, step, t.previous[p, op]])
    elif step:
        start = max(start, out.end_ns[rank, step - 1, t.tail[p, t.stream[p, op]]])
    if t.waits_for[p, op] >= 0:
        start = max(start, out.end_ns[rank, step, t.waits_for[p, op]] + EVENT_LATENCY_NS)
    return start


@jit
def _finish(
    t: ProgramTables,
    run: Run,
    clock: clocks.ClockStates,
    out: Timeline,
    where: tuple[int, int, int],
) -> None:
    """Start of a GPU operation, and its end if it concerns its rank alone or is the last to come."""
    rank, step, op = where
    p = t.program[rank]
    start = _start_ns(t, out, rank, step, op)
    out.start_ns[rank, step, op] = start
    if t.kind[p, op] == COLLECTIVE:
        _run_barrier(t, run, out, step, t.barrier[rank, op])
        return
    factor = noise.lognormal(KERNEL_SPREAD, run.seed, noise.KERNEL_TIME, rank, step, op)
    row = t.kernel[p, op]
    if t.kind[p, op] != KERNEL:
        end = start + clocks.whole_ns(t.fixed_ns[p, op] * factor)
    elif run.constant_mhz > 0:
        time = clocks.law_ns(t.law[p, row, 0], t.law[p, row, 1], run.constant_mhz)
        end = start + clocks.whole_ns(time * factor)
    else:
        end = clocks.run_kernel(clock, rank, start, t.law[p, row], factor, t.activity[p, row])
    out.end_ns[rank, step, op] = end


@jit
def _run_barrier(t: ProgramTables, run: Run, out: Timeline, step: int, barrier: int) -> None:
    """End of what communicates: the transfer begins when the last member has started."""
    last = 0
    for i in range(t.first[barrier], t.first[barrier + 1]):
        start = out.start_ns[t.member[i, 0], step, t.member[i, 1]]
        if start == 0:
            return
        last = max(last, start)
    rank, op = t.member[t.first[barrier]]
    p = t.program[rank]
    factor = noise.lognormal(TRANSFER_SPREAD, run.seed, noise.TRANSFER_TIME, step, op, rank)
    transfer = clocks.whole_ns(t.law[p, t.kernel[p, op], 1, 0] * factor)
    for i in range(t.first[barrier], t.first[barrier + 1]):
        out.end_ns[t.member[i, 0], step, t.member[i, 1]] = last + transfer


@jit
def _advance(
    t: ProgramTables, run: Run, clock: clocks.ClockStates, out: Timeline, rank: int, at: Array
) -> bool:
    """Run a rank on from `at` (step, mark) until it waits for others; True if it moved on."""
    p, moved = t.program[rank], False
    while at[0] < run.steps and _can_go(t, out, rank, at[0], at[1]):
        step, mark = at[0], at[1]
        _host(t, run, out, (rank, step, mark))
        if t.action[p, mark] == LAUNCH:
            _finish(t, run, clock, out, (rank, step, t.operand[p, mark]))
        at[1] += 1
        if at[1] == t.marks[p]:
            at[0], at[1] = step + 1, 0
        moved = True
    return moved


@jit
def _run_ranks(t: ProgramTables, run: Run, clock: clocks.ClockStates, out: Timeline) -> bool:
    """Run all ranks to the end; False if they wait for each other for ever."""
    at = np.zeros((run.ranks, 2), np.int64)
    moved = True
    while moved:
        moved = False
        for rank in range(run.ranks):
            moved |= _advance(t, run, clock, out, rank, at[rank])
    return bool((at[:, 0] == run.steps).all())


def _run(t: ProgramTables, run: Run, clock: clocks.ClockStates, out: Timeline) -> None:
    if not _run_ranks(t, run, clock, out):
        raise AssertionError("ranks wait for each other for ever")
