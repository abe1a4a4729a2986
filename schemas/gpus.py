"""GPUs by name: what data sheets and drivers tell of them.

A row is of one device as the system lists it: of an MI250X that is one of two dies. Sources:

D  data sheet of the product
R  ROCm documentation, "Accelerator and GPU hardware specifications", and the architecture's page
C  rocprofiler-compute, ``0200_system_speed_of_light.yaml``: FLOP per cycle and unit
N  NVIDIA's architecture whitepaper (V100, A100, H100, B200)

Dense rates throughout; with structured sparsity twice as much is stated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """A product.

    Parameters
    ----------
    name
        Words of the name by which it is told, without maker and series.
    arch
        Architecture as compilers name it.
    cus
        Compute units or streaming multiprocessors of a device.
    xccs
        Accelerator complex dies of a device.
    simds_per_cu
        SIMDs or sub-partitions of a unit.
    waves_per_simd
        Waves (warps) that can be resident.
    max_mhz
        Highest clock.
    peak_mhz
        The clock at which data sheets state rates, where that is not the highest.
    flop_per_cycle
        Of a unit's matrix cores, by type, dense.
    bandwidth_gbs
        Of a device's memory, in 10^9 bytes a second.
    power_w
        Of the board at most.
    at_boost
        Types whose rate data sheets state at the highest clock all the same.
    sources
        Letters of this module's description.
    """

    name: str
    arch: str
    cus: int
    xccs: int
    simds_per_cu: int
    waves_per_simd: int
    max_mhz: int
    flop_per_cycle: dict[str, int] = field(default_factory=dict)
    bandwidth_gbs: float = 0.0
    power_w: int = 0
    peak_mhz: int = 0
    at_boost: tuple[str, ...] = ()
    sources: str = "DR"

    def peak_tflops(self, kind: str) -> float | None:
        """Dense rate of a device's matrix cores in TFLOP/s, as the data sheet states it."""
        rate = self.flop_per_cycle.get(kind)
        stated = self.max_mhz if kind in self.at_boost else self.peak_mhz or self.max_mhz
        return None if rate is None else rate * self.cus * stated / 1e6


_CDNA1 = {"f16": 1024, "bf16": 512, "f32": 256, "i8": 1024}
_CDNA2 = {"f16": 1024, "bf16": 1024, "f32": 256, "f64": 256, "i8": 1024}
_CDNA3 = {"f16": 2048, "bf16": 2048, "f8": 4096, "xf32": 1024, "f32": 256, "f64": 256, "i8": 4096}
_CDNA4 = {"f16": 4096, "bf16": 4096, "f8": 8192, "f4": 16384, "f32": 256, "f64": 128, "i8": 8192}
_VOLTA = {"f16": 1024}
_AMPERE = {"f16": 2048, "bf16": 2048, "tf32": 1024, "f64": 128, "i8": 4096}
_HOPPER = {"f16": 4096, "bf16": 4096, "f8": 8192, "tf32": 2048, "f64": 256, "i8": 8192}
_BLACKWELL = {"f16": 8192, "bf16": 8192, "f8": 16384, "f4": 32768, "tf32": 4096}

GPUS = (
    Gpu("MI50", "gfx906", 60, 1, 4, 10, 1725, {}, 1024, 300),
    Gpu("MI60", "gfx906", 64, 1, 4, 10, 1800, {}, 1024, 300),
    Gpu("MI100", "gfx908", 120, 1, 4, 10, 1502, _CDNA1, 1228.8, 300),
    Gpu("MI210", "gfx90a", 104, 1, 4, 8, 1700, _CDNA2, 1638.4, 300, sources="DRC"),
    Gpu("MI250X", "gfx90a", 110, 1, 4, 8, 1700, _CDNA2, 1638.4, 560, sources="DRC"),
    Gpu("MI250", "gfx90a", 104, 1, 4, 8, 1700, _CDNA2, 1638.4, 560, sources="DRC"),
    Gpu("MI300A", "gfx942", 228, 6, 4, 8, 2100, _CDNA3, 5300, 550, sources="DRC"),
    Gpu("MI300X", "gfx942", 304, 8, 4, 8, 2100, _CDNA3, 5300, 750, sources="DRC"),
    Gpu("MI325X", "gfx942", 304, 8, 4, 8, 2100, _CDNA3, 6000, 1000, sources="DRC"),
    Gpu("MI350X", "gfx950", 256, 8, 4, 8, 2200, _CDNA4, 8000, 1000),
    Gpu("MI355X", "gfx950", 256, 8, 4, 8, 2400, _CDNA4, 8000, 1400),
    Gpu("V100-SXM2", "sm_70", 80, 1, 4, 16, 1530, _VOLTA, 900, 300, sources="DN"),
    Gpu("A100-SXM4-40GB", "sm_80", 108, 1, 4, 16, 1410, _AMPERE, 1555, 400, sources="DN"),
    Gpu("A100-SXM4-80GB", "sm_80", 108, 1, 4, 16, 1410, _AMPERE, 2039, 400, sources="DN"),
    Gpu("A100", "sm_80", 108, 1, 4, 16, 1410, _AMPERE, 0, 0, sources="N"),
    Gpu("H200", "sm_90", 132, 1, 4, 16, 1980, _HOPPER, 4800, 700, 1830, ("f64",), "DN"),
    Gpu("H100 PCIe", "sm_90", 114, 1, 4, 16, 1755, _HOPPER, 2039, 350, 1620, ("f64",), "DN"),
    Gpu("H100 80GB HBM3", "sm_90", 132, 1, 4, 16, 1980, _HOPPER, 3350, 700, 1830, ("f64",), "DN"),
    Gpu("H100 SXM5", "sm_90", 132, 1, 4, 16, 1980, _HOPPER, 3350, 700, 1830, ("f64",), "DN"),
    Gpu("B200", "sm_100", 148, 1, 4, 16, 1980, _BLACKWELL, 7700, 1000, 1860, sources="D"),
)
"""Of names that contain each other the longer one holds."""

_OTHERS = ("H200 NVL", "H100 NVL", "H100 80GB HBM2e")
"""Products of other figures, whose names contain those of the table."""
ONE_DIE = re.compile(r"gfx(9(0[0-9a]|1[0-9])|1[0-2][0-9a-f]{2})")
"""Architectures whose devices have one accelerator complex die."""
WAVES_PER_SIMD = {"gfx900": 10, "gfx906": 10, "gfx908": 10, "gfx90a": 8, "gfx942": 8, "gfx950": 8}
"""Waves that can be resident on a SIMD, by architecture (R)."""


_FACTS = ("arch", "cus", "xccs", "simds_per_cu", "waves_per_simd", "max_mhz")


def candidates(name: str, arch: str = "", cus: int = -1) -> tuple[Gpu, ...]:
    """The products that a device may be; none if what is known contradicts the name.

    Parameters
    ----------
    name
        Name as a tool gives it.
    arch
        Architecture; that of a name must be the same.
    cus
        Units, which tell products of one name, or of none, apart. A named device may have fewer,
        as of a partition: a whole part of the product's.
    """
    named = [g for g in GPUS if _is_called(g, name)]
    named = [g for g in named if not any(g is not o and _is_called(g, o.name) for o in named)]
    fits = [g for g in named or GPUS if arch in {"", g.arch}]
    exact = [g for g in fits if g.cus == cus]
    if not named:
        return tuple(exact) if arch else ()
    if cus < 0 or exact:
        return tuple(exact or fits)
    return tuple(g for g in fits if g.cus % cus == 0) if cus else ()


def known(name: str, arch: str = "", cus: int = -1) -> dict[str, Any]:
    """What all products that a device may be have in common, by the names of `Gpu`."""
    found = candidates(name, arch, cus)
    values = {fact: {getattr(g, fact) for g in found} for fact in _FACTS}
    return {fact: one.pop() for fact, one in values.items() if len(one) == 1}


def gpu(name: str, arch: str = "", cus: int = -1) -> Gpu | None:
    """The product that a device is; None if what is known tells none, or several."""
    found = candidates(name, arch, cus)
    return found[0] if len(found) == 1 else None


def _is_called(product: Gpu, name: str) -> bool:
    """Whether the words of a product's name are in a device's."""
    if any(_words(other).search(name) for other in _OTHERS):
        return False
    return bool(_words(product.name).search(name))


def _words(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9a-z]){re.escape(text)}(?![0-9a-z])", re.IGNORECASE)
