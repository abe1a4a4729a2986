"""The sample job as it was simulated: programs, tables of operations, measured and ideal times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.demo.identity import Identity, Numbering, identity, numbering
from chopper_interop.demo.program import distinct

if TYPE_CHECKING:
    from chopper_interop.demo import clock as clocks
    from chopper_interop.demo.parameters import DemoParameters
    from chopper_interop.demo.program import Program
    from chopper_interop.demo.schedule import Timeline
    from chopper_interop.demo.tables import ProgramTables


@dataclass(frozen=True)
class GpuWork:
    """GPU operations of a rank: what they are, and arrays (step, operation) of when they ran."""

    kind: Array
    kernel: Array
    start_ns: Array
    end_ns: Array


@dataclass(frozen=True)
class DemoJob:
    """Everything known of one job."""

    parameters: DemoParameters
    programs: tuple[Program, ...]
    tables: ProgramTables
    timeline: Timeline
    ideal: Timeline
    clock: clocks.ClockStates

    def who(self, rank: int) -> Identity:
        """Return the numbers of a rank's process."""
        return identity(self.parameters.seed, rank)

    def numbers(self, rank: int) -> Numbering:
        """Return how the events of a rank's program are counted."""
        return self._numberings[id(self.programs[rank])]

    @cached_property
    def _numberings(self) -> dict[int, Numbering]:
        return {id(program): numbering(program) for program in distinct(self.programs)}

    def gpu(self, rank: int) -> GpuWork:
        """Return the GPU operations of a rank."""
        p = self.tables.program[rank]
        ops = slice(self.tables.ops[p])
        columns = (c[p, ops] for c in (self.tables.kind, self.tables.kernel))
        times = (c[rank, :, ops] for c in (self.timeline.start_ns, self.timeline.end_ns))
        return GpuWork(*columns, *times)

    def last_start_ns(self) -> Array:
        """Start of the last member of what each operation takes part in, (rank, step, operation)."""
        start, first, member = self.timeline.start_ns, self.tables.first, self.tables.member
        rank, op = np.nonzero(self.tables.barrier >= 0)
        result = start.copy()
        if len(member):
            last = np.maximum.reduceat(start[member[:, 0], :, member[:, 1]], first[:-1])
            result[rank, :, op] = last[self.tables.barrier[rank, op]]
        return result
