"""The numbers by which files name things: processes, threads, correlations, External ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.demo import noise
from chopper_interop.demo.parameters import CPU_AGENTS
from chopper_interop.demo.program import AUTOGRAD, MAIN, Event, Program

STREAMS: Final = (0, 4, 5)
"""Numbers of the streams in Kineto: their HSA queues."""
_COUNTED = ("cpu_op", "user_annotation")


@dataclass(frozen=True)
class Identity:
    """The numbers of one rank's process.

    Parameters
    ----------
    device
        HSA agent of its GPU, which counts the CPU sockets first.
    correlation, external, sequence
        First numbers of runtime calls, of operators and annotations, and of autograd nodes.
    """

    rank: int
    pid: int
    autograd_tid: int
    device: int
    correlation: int
    external: int
    sequence: int

    def tid(self, thread: int) -> int:
        """System thread of a host thread."""
        return {MAIN: self.pid, AUTOGRAD: self.autograd_tid}[thread]


def identity(seed: int, rank: int, run: int = 0) -> Identity:
    """Numbers of a rank in the timing run (0) or a counter run (1, 2)."""
    draws = [noise.uniform(seed, noise.IDENTITY, rank, run, i) for i in range(3)]
    pid = 23_170 + 4_000 * run + rank
    return Identity(
        rank=rank,
        pid=pid,
        autograd_tid=pid + 900 + int(700 * draws[0]) * 8,
        device=CPU_AGENTS + rank,
        correlation=4_000 + int(3_000 * draws[1]),
        external=1 + int(20_000 * draws[2]),
        sequence=31_415,
    )


@dataclass(frozen=True)
class Numbering:
    """Places of a program's events among those of their kind, -1 where they are not counted.

    Parameters
    ----------
    external
        Among operators and annotations.
    call
        Among runtime calls.
    row
        Among operators and annotations by thread, as the profiler's "Ev Idx" counts them.
    memory
        Among allocations and releases.
    counts
        Number of each in a step, in the same order without `row`.
    """

    external: Array
    call: Array
    row: Array
    memory: Array
    counts: tuple[int, int, int]


def numbering(program: Program) -> Numbering:
    """Count the events of a step."""
    events = program.events
    counted = _count([e.category in _COUNTED for e in events])
    call = _count([e.category == "cuda_runtime" for e in events])
    memory = _count([e.category == "memory" for e in events])
    order = sorted((e.thread, i) for i, e in enumerate(events) if e.category in _COUNTED)
    row = np.full(len(events), -1, dtype=np.int64)
    row[[i for _, i in order]] = np.arange(len(order))
    counts = tuple(int(column.max()) + 1 for column in (counted, call, memory))
    return Numbering(counted, call, row, memory, (counts[0], counts[1], counts[2]))


def _count(flags: list[bool]) -> Array:
    chosen = np.array(flags)
    return np.where(chosen, np.cumsum(chosen) - 1, -1)


def external_ids(who: Identity, numbers: Numbering, step: Array | int, events: Array) -> Array:
    """External ids of events in a step, -1 for those that have none; the arguments broadcast."""
    ids = who.external + np.asarray(step) * numbers.counts[0] + numbers.external[events]
    return np.where(numbers.external[events] >= 0, ids, -1)


def correlations(who: Identity, numbers: Numbering, step: Array | int, events: Array) -> Array:
    """Correlations of events in a step, -1 for those that are no runtime calls."""
    ids = who.correlation + np.asarray(step) * numbers.counts[1] + numbers.call[events]
    return np.where(numbers.call[events] >= 0, ids, -1)


def launches(events: list[Event]) -> Array:
    """Events of the calls that launch, in the order of the GPU operations."""
    rows = [i for i, event in enumerate(events) if event.gpu >= 0]
    return np.array(sorted(rows, key=lambda i: events[i].gpu), dtype=np.int64)
