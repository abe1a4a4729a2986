"""Kernels of the job and the law by which their time follows the core clock.

A kernel needs ``cycles(f) = max_i(a_i + b_i f)`` cycles at the core clock f: work in the core plus
a share that takes a fixed time, whichever combination is slowest. Its time is therefore
``t(f) = max_i(a_i / f + b_i)``, which is convex and piecewise linear in 1/f. The sensitivity
``-d ln t / d ln f`` changes with the clock and jumps where one segment hands over to the next, so
that no single ``t_ref (beta f_ref / f + 1 - beta)`` describes a kernel over the whole range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.demo.parameters import PEAK_MHZ

# AMD Instinct MI300X, data sheet: 8 XCDs, 304 compute units, wavefronts of 64 lanes.
XCC = 8
CU = 304
# Lanes of a wavefront, the same data sheet.
WAVE = 64
FLOP_PER_CYCLE = 2048 * CU
"""Dense BF16 operations of the matrix cores per core-clock cycle."""
MFMA_FLOP = 512
"""Operations that one count of SQ_INSTS_VALU_MFMA_MOPS stands for, and one cycle of one SIMD."""
# Data sheet: 5.3 TB/s.
PEAK_BYTES_PER_NS = 5300
STREAM_BYTES_PER_NS = 4100
"""Bandwidth of the memory as kernels that only move data reach it."""
SEGMENTS = 4
"""Most segments that a law has."""


@dataclass(frozen=True)
class Law:
    """Dependence of the time of a class of kernels on the clock.

    Parameters
    ----------
    betas
        Sensitivity of each segment at `PEAK_MHZ`, in the order of falling clocks.
    crossings_mhz
        Clocks below which the next segment is the slowest.
    activity
        Share of the dynamic power that the class draws.
    """

    betas: tuple[float, ...]
    crossings_mhz: tuple[float, ...]
    activity: float


LAWS = {
    "gemm": Law((0.78, 0.97), (1800.0,), 1.0),
    "gemm_skinny": Law((0.50, 0.86), (1760.0,), 0.80),
    "attention": Law((0.66, 0.93), (1840.0,), 0.90),
    "norm": Law((0.08, 0.45), (1820.0,), 0.40),
    "elementwise": Law((0.0, 0.35, 0.70), (1860.0, 1500.0), 0.42),
    "reduction": Law((0.15, 0.50), (1850.0,), 0.42),
    "optimizer": Law((0.0, 0.30), (1700.0,), 0.50),
    "copy": Law((0.0, 0.25), (1640.0,), 0.35),
}
"""Laws of the kernel classes. Collectives, copies by the copy engines and fills follow none."""


@dataclass(frozen=True)
class Kernel:
    """One kernel as it is launched: name, shape of the launch, work and registers.

    Parameters
    ----------
    name
        Symbol as the profilers print it.
    kind
        Class, a key of `LAWS` or "collective".
    api
        Runtime call that launches it.
    blocks, block
        Grid in work-groups and work-group in work-items.
    reference_ns
        Time of the first segment at `PEAK_MHZ`, nanoseconds.
    flop
        Operations of the matrix cores.
    read_bytes, write_bytes
        Traffic between L2 and memory.
    """

    name: str
    kind: str
    api: str
    blocks: tuple[int, int, int]
    block: tuple[int, int, int] = (256, 1, 1)
    reference_ns: float = 0.0
    flop: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    lds_bytes: int = 0
    vgprs: int = 32
    accum_vgprs: int = 4
    sgprs: int = 48

    @property
    def work_items(self) -> tuple[int, int, int]:
        """Grid in work-items."""
        x, y, z = (n * b for n, b in zip(self.blocks, self.block, strict=True))
        return x, y, z

    @property
    def waves(self) -> int:
        """Wavefronts of the whole grid."""
        per_block = -(-math.prod(self.block) // WAVE)
        return per_block * math.prod(self.blocks)

    @property
    def floor_ns(self) -> float:
        """Time below which the memory does not let the kernel get, nanoseconds."""
        return (self.read_bytes + self.write_bytes) / PEAK_BYTES_PER_NS

    def segments(self) -> list[tuple[float, float]]:
        """Segments (a, b) of the law, a in ns MHz and b in ns, so that a / f + b is a time."""
        law = LAWS.get(self.kind)
        if law is None:
            return [(0.0, self.reference_ns)]
        share, result = 1.0, []
        for i, beta in enumerate(law.betas):
            if i:
                ratio = PEAK_MHZ / law.crossings_mhz[i - 1]
                before = law.betas[i - 1]
                share *= (before * ratio + 1 - before) / (beta * ratio + 1 - beta)
            time_ns = share * self.reference_ns
            result.append((time_ns * beta * PEAK_MHZ, time_ns * (1 - beta)))
        return [*result, (0.0, self.floor_ns)]


def law_tables(kernels: list[Kernel]) -> tuple[Array, Array]:
    """Segments of many kernels, arrays (kernel, segment) of a [ns MHz] and b [ns]."""
    slope, fixed = np.zeros((2, max(len(kernels), 1), SEGMENTS))
    for i, kernel in enumerate(kernels):
        for j, (a, b) in enumerate(kernel.segments()):
            slope[i, j], fixed[i, j] = a, b
    return slope, fixed


def times_ns(slope: Array, fixed: Array, clock_mhz: Array | float) -> Array:
    """Apply the law: times in nanoseconds, for clocks that broadcast against the kernels.

    Parameters
    ----------
    slope, fixed
        Rows of the tables of `law_tables`, segments last.
    clock_mhz
        Core clocks.
    """
    clock = np.asarray(clock_mhz, dtype=float)[..., np.newaxis]
    return np.max(slope / clock + fixed, axis=-1)


def sensitivities(slope: Array, fixed: Array, clock_mhz: Array | float) -> Array:
    """Effective sensitivities ``-d ln t / d ln f`` at clocks [MHz], of the slowest segment."""
    clock = np.asarray(clock_mhz, dtype=float)[..., np.newaxis]
    times = slope / clock + fixed
    slowest = np.argmax(times, axis=-1, keepdims=True)
    core = np.take_along_axis(np.broadcast_to(slope / clock, times.shape), slowest, axis=-1)
    total = np.take_along_axis(times, slowest, axis=-1)
    return np.where(total > 0, core / np.where(total > 0, total, 1), 0.0)[..., 0]


def slowed_clock_mhz(slope: Array, fixed: Array, clock_mhz: float, slowdown: float) -> float:
    """Clock at which a set of kernels takes `slowdown` times as long as at `clock_mhz`.

    Parameters
    ----------
    slope, fixed
        Rows of the law tables, one for each launch.
    clock_mhz
        Clock of the others.
    slowdown
        Ratio of the times, at least 1.
    """
    goal = slowdown * float(times_ns(slope, fixed, clock_mhz).sum())
    low, high = 0.3 * clock_mhz, clock_mhz
    for _ in range(60):
        middle = 0.5 * (low + high)
        if float(times_ns(slope, fixed, middle).sum()) > goal:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
