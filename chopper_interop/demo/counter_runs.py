"""Counter runs: the same program under rocprofv3, once for each pass, its kernels serialised.

Its loop over kernels is compiled: each starts after the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.demo import noise
from chopper_interop.demo.catalogue import spread, stream
from chopper_interop.demo.clock import QUANTUM_MHZ, law_ns, whole_ns
from chopper_interop.demo.kernels import MFMA_FLOP, XCC, Kernel, law_tables
from chopper_interop.demo.program import COLLECTIVE, KERNEL, MEMCPY, MEMSET, Program
from chopper_interop.demo.schedule import KERNEL_SPREAD

if TYPE_CHECKING:
    from chopper_interop.demo.job import DemoJob
    from chopper_interop.demo.parameters import DemoParameters

PASSES: Final = (
    ("GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_VALU_MFMA_BUSY_CYCLES", "SQ_INSTS_VALU_MFMA_MOPS_BF16"),
    ("GRBM_GUI_ACTIVE", "FETCH_SIZE", "WRITE_SIZE"),
)
OVERHEAD_CYCLES: Final = 15_200
"""Cycles for which each XCC counts as active around a serialised kernel."""
# Invented: pauses between dispatches and passes, spread of clocks, and dispatches with one clock.
_PAUSE_NS = 38_000
_BETWEEN_PASSES_NS = 90_000_000_000
_CLOCK_SPAN_MHZ = 130
_SAME_CLOCK = 16
FIRST_DISPATCH: Final = 42


@dataclass(frozen=True)
class Dispatch:
    """One kernel of a step in a counter run.

    Parameters
    ----------
    number
        Its place among all dispatches of the step, the collectives that are not profiled included.
    thread
        Host thread that launches it.
    """

    kernel: Kernel
    number: int
    thread: int


def dispatches(program: Program) -> list[Dispatch]:
    """Dispatches of a step in order: kernels, and fills and copies, which kernels do here."""
    parts = []
    for number, op in enumerate(program.gpu):
        if op.kind == COLLECTIVE:
            continue
        kernel = program.kernels[op.kernel] if op.kind == KERNEL else _blit(op.kind, op.bytes)
        parts.append(Dispatch(kernel, number, program.events[op.call].thread))
    return parts


def start_up() -> list[Dispatch]:
    """Return what the runtime itself dispatches before the first step."""
    kernels = [_blit(MEMSET, 4096), _blit(MEMCPY, 65536), _blit(MEMCPY, 256)]
    return [Dispatch(kernel, number, 0) for number, kernel in enumerate(kernels)]


def _blit(kind: int, size: int) -> Kernel:
    """Return the runtime's own kernel for a fill or a copy of `size` bytes."""
    name = "__amd_rocclr_fillBufferAligned" if kind == MEMSET else "__amd_rocclr_copyBuffer"
    reads = 0 if kind == MEMSET else size
    return stream(name, "copy", (reads, size), spread(size, 512 * 16), (512, 1, 1))


def counters(kernel: Kernel) -> dict[str, float]:
    """Counters that the work of a kernel determines, summed over the GPU; sizes in KiB."""
    mops = kernel.flop / MFMA_FLOP
    return {
        "SQ_WAVES": kernel.waves,
        "SQ_VALU_MFMA_BUSY_CYCLES": mops,
        "SQ_INSTS_VALU_MFMA_MOPS_BF16": mops,
        "FETCH_SIZE": kernel.read_bytes / 1024,
        "WRITE_SIZE": kernel.write_bytes / 1024,
    }


@dataclass(frozen=True)
class CounterTimes:
    """Times (BOOTTIME, nanoseconds) and GRBM_GUI_ACTIVE of the dispatches of a step."""

    start_ns: Array
    end_ns: Array
    gui_active: Array


def counter_times(
    job: DemoJob, kernels: list[Dispatch], law: Array, where: tuple[int, int, int], begin_ns: int
) -> CounterTimes:
    """Place the dispatches of one step of a rank in a pass in time.

    Parameters
    ----------
    law
        Segments of the kernels, array (kernel, 2, segment).
    where
        Pass (from 1), rank and step (from 0; -1 for the start-up).
    begin_ns
        Time at which the first dispatch may start.
    """
    out = np.zeros((3, len(kernels)), dtype=np.int64)
    highest = float(job.clock.highest_mhz[where[1]])
    _serialise(law, highest, job.parameters.seed, where, begin_ns, out)
    return CounterTimes(*out)


def dispatch_laws(kernels: list[Dispatch]) -> Array:
    """Segments of the kernels of dispatches, array (kernel, 2, segment)."""
    return np.stack(law_tables([d.kernel for d in kernels]), axis=1)


def pass_begin_ns(parameters: DemoParameters, number: int, rank: int) -> int:
    """BOOTTIME at which a rank's process dispatches its first kernel in a pass."""
    return parameters.boottime_ns + number * _BETWEEN_PASSES_NS + 731_003 * rank


@jit
def _serialise(
    law: Array,
    highest_mhz: float,
    seed: int,
    where: tuple[int, int, int],
    begin_ns: int,
    out: Array,
) -> None:
    """Rows start, end and GRBM_GUI_ACTIVE: one kernel after the other, at this run's own clock."""
    run, rank, step = where
    purpose = noise.COUNTER_RUN + 3 * run
    now = begin_ns
    for i in range(out.shape[1]):
        draw = noise.uniform(seed, purpose, rank, step, i // _SAME_CLOCK)
        mhz = QUANTUM_MHZ * int((highest_mhz - _CLOCK_SPAN_MHZ * draw) / QUANTUM_MHZ)
        factor = noise.lognormal(KERNEL_SPREAD, seed, purpose + 1, rank, step, i)
        time = whole_ns(law_ns(law[i, 0], law[i, 1], mhz) * factor)
        pause = noise.uniform(seed, purpose + 2, rank, step, i)
        out[0, i] = now + int(_PAUSE_NS * (0.7 + 0.6 * pause))
        out[1, i] = now = out[0, i] + time
        out[2, i] = XCC * ((time * mhz + 500) // 1000 + OVERHEAD_CYCLES)
