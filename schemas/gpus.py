"""Table of GPUs by name, from data sheets, white papers and drivers.

A row describes one device as the system lists it: of an MI250X, one of its two dies. Each figure
has a source, a name of `SOURCES`: see `Gpu.source_of`. Rates are dense throughout; with structured
sparsity data sheets state twice as much.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any

SOURCES = {
    "specs": "ROCm documentation, AMD GPU specifications and the pages of MI100, MI250 and MI300",
    "sheet": "data sheet or product page of the maker",
    "cdna1": "Introducing AMD CDNA Architecture, table 1",
    "cdna2": "AMD CDNA 2 white paper, table 1",
    "cdna3": "AMD CDNA 3 white paper, table 1",
    "cdna4": "Introducing AMD CDNA 4 Architecture, table 1",
    "maf": "ROCm blog, Measuring Max-Achievable FLOPs part 2, 28 Feb 2025, table 1",
    "hotchips": "AMD at Hot Chips 2025",
    "volta": "NVIDIA Tesla V100 GPU Architecture, v1.1",
    "ampere": "NVIDIA A100 Tensor Core GPU Architecture, v1.0",
    "hopper": "NVIDIA H100 Tensor Core GPU Architecture, v1.04",
    "ga102": "NVIDIA Ampere GA102 GPU Architecture",
    "ada": "NVIDIA Ada GPU Architecture, v2.01",
    "gb202": "NVIDIA RTX Blackwell GPU Architecture, v1.1",
    "blackwell": "NVIDIA Blackwell Architecture Technical Brief, v2.1",
    "techpowerup": "TechPowerUp GPU database",
    "hmc": "hmc-tech.com GPU database",
    "agent": "HSA agents of real recordings",
    "cuda": "CUDA Programming Guide, technical specifications by compute capability",
    "driver": "what the driver reports of the device",
    "measured": "public measurements on such devices",
    "derived": "follows from a rate that a source states and other figures of the row",
    "unverified": "no source was found that states it",
}
"""Name of a source of figures → its title."""


@dataclass(frozen=True)
class Rates:
    """Rates of the units of an architecture: operations a cycle, floating-point or integer, by type.

    Parameters
    ----------
    matrix
        Rates of matrix cores, dense.
    vector
        Rates of vector units; a fused multiply-add counts as two operations.
    source
        A name of `SOURCES`.
    """

    matrix: dict[str, int] = field(default_factory=dict)
    vector: dict[str, int] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Gpu:
    """A product; what is not known is 0 or empty.

    Parameters
    ----------
    name
        Words of its name that identify it, without maker and series; "*" is any GPU.
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
    flop_per_cycle
        Dense rate of a unit's matrix cores, by type.
    bandwidth_gbs
        Bandwidth of a device's memory, in 10^9 bytes a second.
    power_w
        Power limit of the board.
    peak_mhz
        The clock at which data sheets state rates, where that is not the highest.
    at_boost
        Types whose rate data sheets state at the highest clock nevertheless.
    vector_flop_per_cycle
        Rate of a unit's vector units, by type.
    achievable
        Rate of the matrix cores that the maker measured, by type: TFLOP/s, and the clock in MHz of
        the measurement.
    sources
        Field → name of its source in `SOURCES`; the key "" stands for all other fields.
    """

    name: str
    arch: str = ""
    cus: int = 0
    xccs: int = 0
    simds_per_cu: int = 0
    waves_per_simd: int = 0
    max_mhz: int = 0
    flop_per_cycle: dict[str, int] = field(default_factory=dict)
    bandwidth_gbs: float = 0.0
    power_w: int = 0
    peak_mhz: int = 0
    at_boost: tuple[str, ...] = ()
    vector_flop_per_cycle: dict[str, int] = field(default_factory=dict)
    achievable: dict[str, tuple[float, int]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def peak_tflops(self, kind: str) -> float | None:
        """Return the dense rate of a device's matrix cores in TFLOP/s, as the data sheet states it."""
        rate = self.flop_per_cycle.get(kind)
        stated = self.max_mhz if kind in self.at_boost else self.peak_mhz or self.max_mhz
        return rate * self.cus * stated / 1e6 if rate and self.cus and stated else None

    def source_of(self, name: str) -> str:
        """Return the sources of a field's figure: names of `SOURCES`, with blanks between."""
        return self.sources.get(name, self.sources.get("", "unverified"))


_CDNA1 = Rates(
    {"f16": 1024, "bf16": 512, "f32": 256, "i8": 1024}, {"f16": 256, "f32": 128, "f64": 64}, "cdna1"
)
_CDNA2 = Rates(
    {"f16": 1024, "bf16": 1024, "f32": 256, "f64": 256, "i8": 1024},
    {"f16": 256, "f32": 128, "packed f32": 256, "f64": 128},
    "cdna2 specs",
)
_CDNA3 = Rates(
    {"f16": 2048, "bf16": 2048, "f8": 4096, "xf32": 1024, "f32": 256, "f64": 256, "i8": 4096},
    {"f16": 256, "f32": 256, "f64": 128},
    "cdna3 specs",
)
_CDNA4 = Rates(
    {
        "f16": 4096, "bf16": 4096, "f8": 8192, "f6": 16384, "f4": 16384, "f32": 256, "f64": 128,
        "i8": 8192,
    },
    {"f16": 256, "f32": 256, "f64": 128},
    "cdna4",
)  # fmt: skip
_VEGA20 = Rates({}, {"f16": 256, "f32": 128, "f64": 64}, "derived")
_VOLTA = Rates({"f16": 1024}, {"f16": 256, "f32": 128, "f64": 64}, "volta")
_AMPERE = Rates(
    {"f16": 2048, "bf16": 2048, "tf32": 1024, "f64": 128, "i8": 4096},
    {"f16": 512, "bf16": 256, "f32": 128, "f64": 64},
    "ampere",
)
_HOPPER = Rates(
    {"f16": 4096, "bf16": 4096, "f8": 8192, "tf32": 2048, "f64": 256, "i8": 8192},
    {"f16": 512, "bf16": 512, "f32": 256, "f64": 128},
    "hopper",
)
_HOPPER_CUT = Rates(  # without most of its double precision: the sheet states 1 TFLOP/s in all
    {kind: rate for kind, rate in _HOPPER.matrix.items() if kind != "f64"},
    {kind: rate for kind, rate in _HOPPER.vector.items() if kind != "f64"},
    "sheet",
)
_BLACKWELL = Rates(  # sources do not agree on the rate of vector units in 16 bits
    {
        "f16": 8192, "bf16": 8192, "f8": 16384, "f6": 16384, "f4": 32768, "tf32": 4096, "f64": 128,
        "i8": 16384,
    },
    {"f32": 256, "f64": 128},
    "blackwell hmc",
)  # fmt: skip
_BLACKWELL_ULTRA = Rates(  # f4 half as much again, f64 and i8 all but gone
    {"f16": 8192, "bf16": 8192, "f8": 16384, "f6": 16384, "f4": 49152, "tf32": 4096},
    {"f16": 256, "bf16": 256, "f32": 256},
    "sheet measured",
)
_GA102 = Rates(
    {"f16": 1024, "bf16": 1024, "tf32": 512, "i8": 2048},
    {"f16": 256, "bf16": 256, "f32": 256},
    "ga102",
)
_ADA = Rates(
    {"f16": 1024, "bf16": 1024, "f8": 2048, "tf32": 512, "i8": 2048},
    {"f16": 256, "bf16": 256, "f32": 256},
    "ada",
)
# A GeForce adds up in 32 bits at half the rate of a data centre's GPU, which is how models train.
_ADA_GEFORCE = Rates(
    {"f16": 512, "bf16": 512, "f8": 1024, "tf32": 256, "i8": 2048},
    {"f16": 256, "bf16": 256, "f32": 256},
    "ada",
)
_GB202_GEFORCE = Rates(
    {"f16": 512, "bf16": 512, "f8": 1024, "f4": 4096, "tf32": 256, "i8": 2048},
    {"f16": 256, "bf16": 256, "f32": 256},
    "gb202",
)


def _amd(  # noqa: PLR0913, PLR0917 # columns of the table
    name: str, arch: str, cus: int, mhz: int, rates: Rates, memory: float, power: int,
    *, xccs: int = 1, waves: int = 8, maf: dict[str, tuple[float, int]] | None = None,
    but: dict[str, str] | None = None,
) -> Gpu:  # fmt: skip
    """Row of an AMD Instinct: data sheets state rates at the highest clock."""
    return Gpu(
        name, arch, cus, xccs, 4, waves, mhz, rates.matrix, memory, power,
        vector_flop_per_cycle=rates.vector, achievable=maf or {}, sources=_field_sources(rates, but),
    )  # fmt: skip


def _nvidia(  # noqa: PLR0913, PLR0917 # columns of the table
    name: str, arch: str, sms: int, mhz: int, rates: Rates, memory: float, power: int,
    *, peak: int = 0, waves: int = 16, but: dict[str, str] | None = None,
) -> Gpu:  # fmt: skip
    """Row of an NVIDIA GPU.

    From Hopper on, data sheets of data-centre GPUs state rates of matrix cores at a lower clock
    (`peak`), except for f64.
    """
    return Gpu(
        name, arch, sms, 1, 4, waves, mhz, rates.matrix, memory, power, peak,
        ("f64",) if peak else (),
        rates.vector, {}, _field_sources(rates, but),
    )  # fmt: skip


def _field_sources(rates: Rates, but: dict[str, str] | None) -> dict[str, str]:
    """Sources of a row: the maker's data sheet, but for the fields in `but`."""
    source = rates.source or "unverified"
    of_rates = {"flop_per_cycle": source, "vector_flop_per_cycle": source}
    return {"": "sheet", "achievable": "maf", **of_rates, **(but or {})}


_MI300X_MAF = {"f16": (654.0, 1115), "bf16": (708.0, 1207), "f8": (1273.0, 1230)}
_MI325X_MAF = {"f16": (794.0, 1354), "bf16": (843.0, 1447), "f8": (1519.0, 1464)}

_NO_SHEET = {"bandwidth_gbs": "techpowerup", "power_w": "techpowerup", "max_mhz": "derived"}
_SXM5 = {"": "hopper", "bandwidth_gbs": "sheet", "power_w": "sheet"}
_HOPPER_NVL = {"cus": "driver", "max_mhz": "driver", "peak_mhz": "derived"}
_GRACE = {"cus": "driver", "max_mhz": "driver", "peak_mhz": "hopper"}
_H800 = {"cus": "derived", "max_mhz": "derived", "peak_mhz": "derived"}
_B200 = {
    "max_mhz": "techpowerup driver", "peak_mhz": "hmc", "cus": "hmc driver",
    "waves_per_simd": "cuda driver",
}  # fmt: skip
_GRACE_BLACKWELL = {
    "cus": "driver", "max_mhz": "driver", "peak_mhz": "derived", "waves_per_simd": "cuda",
}  # fmt: skip
_B300 = _GRACE_BLACKWELL | {"bandwidth_gbs": "driver"}
_CARD = {"cus": "techpowerup", "max_mhz": "techpowerup", "waves_per_simd": "cuda"}
_GEFORCE = {"": "ada", "waves_per_simd": "cuda"}
_SECOND_HAND = {"power_w": "unverified"}
_MI308X = {"cus": "driver", "xccs": "driver", "bandwidth_gbs": "measured"}
_AGENT = {"cus": "agent", "xccs": "agent", "max_mhz": "agent"}

GPUS = (
    _amd("MI50", "gfx906", 60, 1725, _VEGA20, 1024, 300, waves=10, but=_NO_SHEET),
    _amd("MI60", "gfx906", 64, 1800, _VEGA20, 1024, 300, waves=10, but=_NO_SHEET),
    _amd("MI100", "gfx908", 120, 1502, _CDNA1, 1228.8, 300, waves=10, but=_SECOND_HAND),
    _amd("MI210", "gfx90a", 104, 1700, _CDNA2, 1638.4, 300),
    _amd("MI250X", "gfx90a", 110, 1700, _CDNA2, 1638.4, 560),
    _amd("MI250", "gfx90a", 104, 1700, _CDNA2, 1638.4, 560, but={"cus": "specs"}),
    _amd("MI300A", "gfx942", 228, 2100, _CDNA3, 5300, 550, xccs=6, but=_AGENT | _SECOND_HAND),
    _amd("MI300X", "gfx942", 304, 2100, _CDNA3, 5300, 750, xccs=8, maf=_MI300X_MAF, but=_AGENT),
    _amd("MI308X", "gfx942", 80, 0, _CDNA3, 5300, 0, xccs=4, but=_MI308X),
    _amd("MI325X", "gfx942", 304, 2100, _CDNA3, 6000, 1000, xccs=8, maf=_MI325X_MAF,
            but=_SECOND_HAND),
    _amd("MI350X", "gfx950", 256, 2200, _CDNA4, 8000, 1000, xccs=8, but=_AGENT),
    _amd("MI355X", "gfx950", 256, 2400, _CDNA4, 8000, 1400, xccs=8, but={"": "hotchips"}),
    _nvidia("V100-SXM2", "sm_70", 80, 1530, _VOLTA, 900, 300),
    _nvidia("V100-PCIE", "sm_70", 80, 1380, _VOLTA, 900, 250, peak=1370,
            but={"max_mhz": "driver", "peak_mhz": "derived"}),
    _nvidia("A100-SXM4-40GB", "sm_80", 108, 1410, _AMPERE, 1555, 400),
    _nvidia("A100-SXM4-80GB", "sm_80", 108, 1410, _AMPERE, 2039, 400),
    _nvidia("A100-PCIE-40GB", "sm_80", 108, 1410, _AMPERE, 1555, 250),
    _nvidia("A100 80GB PCIe", "sm_80", 108, 1410, _AMPERE, 1935, 300),
    _nvidia("A100", "sm_80", 108, 1410, _AMPERE, 0, 0),
    _nvidia("A800-SXM4-80GB", "sm_80", 108, 1410, _AMPERE, 2039, 400),
    _nvidia("A800 80GB PCIe", "sm_80", 108, 1410, _AMPERE, 1935, 300),
    _nvidia("H200", "sm_90", 132, 1980, _HOPPER, 4800, 700, peak=1830, but={"max_mhz": "driver"}),
    _nvidia("H200 NVL", "sm_90", 132, 1785, _HOPPER, 4800, 600, peak=1545, but=_HOPPER_NVL),
    _nvidia("H100 NVL", "sm_90", 132, 1785, _HOPPER, 3938, 400, peak=1545, but=_HOPPER_NVL),
    _nvidia("H100 PCIe", "sm_90", 114, 1755, _HOPPER, 2039, 350, peak=1620,
            but={"peak_mhz": "derived", "bandwidth_gbs": "techpowerup"}),
    _nvidia("H100 80GB HBM3", "sm_90", 132, 1980, _HOPPER, 3350, 700, peak=1830, but=_SXM5),
    _nvidia("H100 SXM5", "sm_90", 132, 1980, _HOPPER, 3350, 700, peak=1830, but=_SXM5),
    _nvidia("H800", "sm_90", 132, 1980, _HOPPER_CUT, 3350, 700, peak=1830, but=_H800),
    _nvidia("H800 PCIe", "sm_90", 114, 1755, _HOPPER_CUT, 2039, 350, peak=1620, but=_H800),
    _nvidia("H20", "sm_90", 78, 0, Rates(), 4000, 400, but={"cus": "driver"}),
    _nvidia("GH200 480GB", "sm_90", 132, 1980, _HOPPER, 4000, 1000, peak=1830, but=_GRACE),
    _nvidia("GH200 144G HBM3e", "sm_90", 132, 1980, _HOPPER, 4900, 1000, peak=1830, but=_GRACE),
    _nvidia("B200", "sm_100", 148, 1965, _BLACKWELL, 7700, 1000, peak=1860, but=_B200),
    _nvidia("GB200", "sm_100", 152, 2062, _BLACKWELL, 8000, 1200, peak=2008, but=_GRACE_BLACKWELL),
    _nvidia("B300", "sm_103", 148, 2032, _BLACKWELL_ULTRA, 7672, 1100, peak=1860, but=_B300),
    _nvidia("GB300", "sm_103", 152, 2070, _BLACKWELL_ULTRA, 8000, 1400, peak=2008,
            but=_GRACE_BLACKWELL),
    _nvidia("A10", "sm_86", 72, 1695, _GA102, 600, 150, waves=12, but=_CARD),
    _nvidia("L4", "sm_89", 58, 2040, _ADA, 300, 72, waves=12, but=_CARD),
    _nvidia("L40S", "sm_89", 142, 2520, _ADA, 864, 350, waves=12, but=_CARD),
    _nvidia("RTX 4090", "sm_89", 128, 2520, _ADA_GEFORCE, 1008, 450, waves=12, but=_GEFORCE),
    _nvidia("RTX 5090", "sm_120", 170, 2407, _GB202_GEFORCE, 1792, 575, waves=12,
            but=_GEFORCE | {"": "gb202"}),
)  # fmt: skip
"""Of names that contain each other the longer one holds."""

_OTHERS = (
    "H100 80GB HBM2e", "H800 NVL", "H20-3e", "GB300-WS", "RTX 4090 D", "RTX 4090 Laptop GPU",
    "RTX 5090 D", "RTX 5090 Laptop GPU",
)  # fmt: skip
"""Products with other figures whose names contain names of the table."""
ANY_GPU = "*"
"""Name of a user's row that describes any GPU."""
SINGLE_DIE_ARCHS = re.compile(r"gfx(9(0[0-9a]|1[0-9])|1[0-2][0-9a-f]{2})")
"""Architectures whose devices have one accelerator complex die."""
WAVES_PER_SIMD = {"gfx900": 10, "gfx906": 10, "gfx908": 10, "gfx90a": 8, "gfx942": 8, "gfx950": 8}
"""Waves that can be resident on a SIMD, by architecture ("specs")."""


_FACTS = ("arch", "cus", "xccs", "simds_per_cu", "waves_per_simd", "max_mhz")


def candidates(
    name: str, arch: str = "", cus: int = -1, rows: tuple[Gpu, ...] = GPUS
) -> tuple[Gpu, ...]:
    """Return the products that a device may be; none if what is known contradicts its name.

    Parameters
    ----------
    name
        Name as a tool reports it.
    arch
        Architecture, if it is known; the product's must be the same.
    cus
        Units, if they are known: they distinguish products of one name, or devices without one.
        A named device may have an integral part of the product's units, as a partition has.
    rows
        Products to choose from.
    """
    named = _named_in_table(name) if rows is GPUS else _named(name, rows)
    fits = [g for g in named or rows if arch in {"", g.arch} or not g.arch]
    exact = [g for g in fits if g.cus == cus]
    if not named:
        return tuple(exact) if arch else ()
    if cus < 0 or exact:
        return tuple(exact or fits)
    return tuple(g for g in fits if not g.cus or g.cus % cus == 0) if cus else ()


def common_facts(name: str, arch: str = "", cus: int = -1) -> dict[str, Any]:
    """Return what all products that a device may be have in common, by fields of `Gpu`."""
    products = candidates(name, arch, cus)
    values = {fact: {getattr(g, fact) for g in products} for fact in _FACTS}
    return {fact: distinct.pop() for fact, distinct in values.items() if len(distinct) == 1}


def find_gpu(name: str, arch: str = "", cus: int = -1, rows: tuple[Gpu, ...] = GPUS) -> Gpu | None:
    """Return the product that a device is; None if what is known fits none, or several."""
    products = candidates(name, arch, cus, rows)
    return products[0] if len(products) == 1 else None


@lru_cache(256)
def _named_in_table(name: str) -> tuple[Gpu, ...]:
    return _named(name, GPUS)


def _named(name: str, rows: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Products whose words are in a name; if one's words are part of another's, only the longer."""
    named = [g for g in rows if _has_name(g, name)]
    return tuple(g for g in named if not any(_is_part(g, other) for other in named))


def _is_part(product: Gpu, other: Gpu) -> bool:
    """True if the words of a product's name are part of another's, but not all of them."""
    return _has_name(product, other.name) and not _has_name(other, product.name)


def _has_name(product: Gpu, name: str) -> bool:
    """True if the words of a product's name are in a device's, and it is none of `_OTHERS`."""
    if product.name == ANY_GPU:
        return True
    if any(product is g for g in GPUS) and any(
        _name_pattern(other).search(name) for other in _OTHERS
    ):
        return False
    return bool(_name_pattern(product.name).search(name))


@cache
def _name_pattern(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9a-z]){re.escape(text)}(?![0-9a-z])", re.IGNORECASE)


GPU_FIELDS = tuple(f.name for f in fields(Gpu))
"""Fields of a row, which users can set."""
