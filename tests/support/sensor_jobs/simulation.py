"""A run of a program: when everything began and ended, and what clocks and power were.

Times are nanoseconds since the first sample of clock and power.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sensor_jobs.clocks import Clock
from sensor_jobs.signals import Steps

if TYPE_CHECKING:
    from sensor_jobs.programs import Program

CALL_NS = 4_000
OPERATOR_NS = 9_000
QUEUE_NS = 4_500
GAP_NS = 1_500
SYNC_NS = 12_000
COMMUNICATION_HEAT = 0.25
BEFORE_NS = AFTER_NS = 1_600_000_000


@dataclass(frozen=True)
class Ran:
    """One piece of GPU work: position in the step (-1: communication), launch, start and end."""

    step: int
    kernel: int
    launch_ns: int
    start_ns: int
    end_ns: int


@dataclass
class Gpu:
    """Record of one GPU and its host. `steps` has begin and end of each step on the host, the wait's start between."""

    clock: Clock
    work: list[Ran] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    mhz: Steps | None = None
    watts: Steps | None = None
    busy: Steps | None = None
    _activity: list[tuple[int, float, float]] = field(default_factory=list)

    def proceed(self, start_ns: float, work_ns: float, beta: float, heat: float) -> float:
        """Return the end of work that starts now; β is its sensitivity."""
        now_ns = self.wait(start_ns)
        self._activity.append((int(now_ns), heat, 1 - beta))
        while True:
            pace = (1 - beta) + beta / self.clock.shares[-1]
            end_ns = now_ns + work_ns * pace
            if end_ns <= self.clock.tick_end_ns:
                self._activity.append((int(end_ns), 0.0, 0.0))
                return end_ns
            work_ns -= (self.clock.tick_end_ns - now_ns) / pace
            now_ns = self.clock.tick_end_ns
            self.clock.tick(heat)

    def wait(self, until_ns: float, heat: float = 0.0) -> float:
        """Let time pass until the given time."""
        while self.clock.tick_end_ns <= until_ns:
            self.clock.tick(heat)
        return until_ns

    def communicate(self, start_ns: float, end_ns: float) -> None:
        """Communicate in the given interval."""
        self.wait(start_ns)
        self._activity.append((int(start_ns), COMMUNICATION_HEAT, 0.5))
        self.wait(end_ns, COMMUNICATION_HEAT)
        self._activity.append((int(end_ns), 0.0, 0.0))

    def finish(self, program: Program) -> None:
        """Determine clock, power and activity over the whole time."""
        self.mhz = self.clock.signal()
        times, heats, memories = (np.array(column) for column in zip(*self._activity, strict=True))
        times = np.append(times, times[-1] + 1)
        self.busy = Steps(times, (heats > 0).astype(float))
        edges = np.unique(np.concatenate([self.mhz.edges_ns, times]))
        heat, memory = (Steps(times, values).at(edges[:-1]) for values in (heats, memories))
        running = edges[:-1] >= times[0]
        share = self.mhz.at(edges[:-1]) / program.max_mhz
        core = program.core_watts * heat * share**program.power_exponent
        watts = program.idle_watts + running * (core + program.memory_watts * memory)
        self.watts = Steps(edges, watts)


@dataclass(frozen=True)
class Run:
    """A run; the first recorded step is `program.lead_steps`."""

    program: Program
    gpus: tuple[Gpu, ...]

    @property
    def recorded(self) -> range:
        """The steps that the profiler records."""
        first = self.program.lead_steps
        return range(first, first + self.program.steps)

    @property
    def step_ns(self) -> np.ndarray:
        """Length of each recorded step: to the last host's end, from that of the step before or the first host's begin."""
        end = np.array([[gpu.steps[s][2] for s in self.recorded] for gpu in self.gpus]).max(0)
        begin = min(gpu.steps[self.recorded[0]][0] for gpu in self.gpus)
        return np.diff(end, prepend=begin)


def simulate(program: Program) -> Run:
    """Run a program. Noise of kernels and clocks depends on the seed only, not on each other."""
    everything = program.lead_steps + program.steps + program.tail_steps
    gpus = tuple(
        Gpu(Clock(law, program.max_mhz, np.random.default_rng([program.seed, 1, i]), 0))
        for i, law in enumerate(program.laws)
    )
    noise = [np.random.default_rng([program.seed, 2, i]) for i in range(program.gpus)]
    now_ns = [float(BEFORE_NS)] * program.gpus
    for step in range(everything):
        _step(program, gpus, step, now_ns, noise)
    for gpu, end_ns in zip(gpus, now_ns, strict=True):
        gpu.wait(end_ns + AFTER_NS)
        gpu.finish(program)
    return Run(program, gpus)


def _step(
    program: Program, gpus: tuple[Gpu, ...], step: int, now_ns: list[float],
    noise: list[np.random.Generator],
) -> None:  # fmt: skip
    """Simulate one step on all GPUs, from and to the hosts' times."""
    kernels = program.kernels
    optimizer = len(program.forward) + len(program.backward)
    works = [
        np.array([k.work_ns for k in kernels])
        * np.exp(random.standard_normal(len(kernels)) * [k.noise for k in kernels])
        for random in noise
    ]
    begin_ns = list(now_ns)
    free_ns = list(now_ns)
    launch_ns = [t + OPERATOR_NS for t in now_ns]

    def queue(gpu: int, index: int) -> None:
        kernel = kernels[index]
        start = max(launch_ns[gpu] + CALL_NS + QUEUE_NS, free_ns[gpu] + GAP_NS)
        end = gpus[gpu].proceed(start, works[gpu][index], kernel.beta, kernel.heat)
        gpus[gpu].work.append(Ran(step, index, int(launch_ns[gpu]), int(start), int(end)))
        free_ns[gpu] = end
        launch_ns[gpu] += OPERATOR_NS + CALL_NS

    for gpu in range(program.gpus):
        for index in range(optimizer):
            queue(gpu, index)
    if program.gpus > 1:
        starts = [
            max(a + CALL_NS + QUEUE_NS, b + GAP_NS) for a, b in zip(launch_ns, free_ns, strict=True)
        ]
        end = max(starts) + program.transfer_ns
        for gpu, start in enumerate(starts):
            gpus[gpu].communicate(start, end)
            gpus[gpu].work.append(Ran(step, -1, int(launch_ns[gpu]), int(start), int(end)))
            free_ns[gpu] = end
            launch_ns[gpu] += 2 * OPERATOR_NS
    for gpu in range(program.gpus):
        for index in range(optimizer, len(kernels)):
            queue(gpu, index)
        sync_ns = launch_ns[gpu]
        end = max(free_ns[gpu], sync_ns) + SYNC_NS
        gpus[gpu].steps.append((int(begin_ns[gpu]), int(sync_ns), int(end)))
        now_ns[gpu] = end + program.bubble_ns
