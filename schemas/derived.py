"""Metrics of a dispatch that are derived from hardware counters: formulas as data.

A formula is a sum of products of counters, divided by a product::

    mfma_util = 100 * SQ_VALU_MFMA_BUSY_CYCLES / (cycles * cus * simds_per_cu)

Counters have the names that tools give them, without ``_sum`` at the end, and with ``TCC_EA_…``
for ``TCC_EA0_…`` (gfx94x, gfx950). Of several formulas for a metric the first one counts whose
architecture fits and whose counters were recorded.

Operands other than counters: ``xccs``, ``cus``, ``simds_per_cu``, ``waves_per_cu`` of the device,
and metrics that come earlier in the table.

Definitions: ``counter_defs.yaml`` of rocprofiler-sdk (ROCm 6.2 to 7.2), and rocprofiler-compute's
``0200_system_speed_of_light.yaml`` and ``1700_L2_cache.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True)
class Formula:
    """One way to compute a metric.

    Parameters
    ----------
    terms
        Terms of the sum: a factor, and the operands by whose product it is multiplied.
    divisors
        Operands by whose product the sum is divided.
    archs
        Beginnings of the architectures for which it holds; all if empty.
    allows_missing
        True if terms that were not recorded may be missing: the sum is of those that were.
    """

    terms: tuple[tuple[float, tuple[str, ...]], ...]
    divisors: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    allows_missing: bool = False


@dataclass(frozen=True)
class Metric:
    """A derived quantity.

    Parameters
    ----------
    name
        Its name, and that of its annotation column if it has one.
    unit
        Its unit.
    meaning
        Explanation.
    formulas
        Ways to compute it, the best first.
    max_value
        Value that it cannot exceed; 0 if there is no such bound.
    takes_max
        True if the largest result of the formulas counts, not the first: each may lack a part.
    """

    name: str
    unit: str
    meaning: str
    formulas: tuple[Formula, ...]
    max_value: float = 0.0
    takes_max: bool = False


def _formula(text: str, archs: tuple[str, ...] = (), *, allows_missing: bool = False) -> Formula:
    """Parse ``a * X - b * Y / (U * V)``: a sum of counters with factors, divided by a product."""
    dividend, _, divisor = text.partition(" / ")
    terms = tuple(
        (float(f"{sign}{factor or 1}"), (counter,))
        for sign, factor, counter in re.findall(
            r"([+-]?) ?(?:([\d.]+) \* )?([A-Za-z]\w*)", dividend
        )
    )
    return Formula(
        terms, tuple(divisor.strip("()").split(" * ")) if divisor else (), archs, allows_missing
    )


def _metric(
    name: str,
    unit: str,
    meaning: str,
    *formulas: Formula | str,
    max_value: float = 0.0,
    takes_max: bool = False,
) -> Metric:
    parsed = tuple(_formula(f) if isinstance(f, str) else f for f in formulas)
    return Metric(name, unit, meaning, parsed, max_value, takes_max)


_MFMA = "SQ_INSTS_VALU_MFMA_MOPS_"
_VALU = "SQ_INSTS_VALU_"
_PER_MOP, _LANES = 512.0, 64.0
"""Operations for which one count of MOPS stands, and lanes of a wave (AMD's descriptions of the counters)."""
_MFMA_TYPES = ("F16", "BF16", "F32", "F64", "F8", "XF32", "F6F4")
_VALU_TYPES = ("F16", "F32", "F64")
_VALU_WORK = (("ADD", 1.0), ("MUL", 1.0), ("TRANS", 1.0), ("FMA", 2.0))
_NO_BUBBLE = ("gfx906", "gfx908", "gfx90a")
_BUBBLE = ("gfx94", "gfx95")


def _mfma_metric(kind: str) -> str:
    return f"flops_mfma_{kind.lower()}"


_ALL_MFMA = " + ".join(map(_mfma_metric, _MFMA_TYPES))
_ALL_VALU = " + ".join(
    f"{_LANES * factor} * {_VALU}{work}_{kind}"
    for kind in _VALU_TYPES
    for work, factor in _VALU_WORK
)
METRICS = (
    *(
        _metric(_mfma_metric(kind), "FLOP", f"Floating-point operations of the matrix cores of type {kind}.",
                f"{_PER_MOP} * {_MFMA}{kind}", f"MfmaFlops{kind}")
        for kind in _MFMA_TYPES
    ),
    _metric("cycles", "cycles",
            "Core clocks of the dispatch on each die, what the profiler adds around it included.",
            "GRBM_GUI_ACTIVE / xccs"),
    _metric("mfma_busy", "cycles", "Core clocks in which matrix cores were busy, summed over them.",
            "SQ_VALU_MFMA_BUSY_CYCLES"),
    _metric("flops_mfma", "FLOP", "Floating-point operations of the matrix cores; integer ones are none.",
            _formula(_ALL_MFMA, allows_missing=True), "MfmaFlops", takes_max=True),
    _metric("flops_valu", "FLOP", "Floating-point operations of the vector units, each wave as 64 lanes.",
            _formula(_ALL_VALU, allows_missing=True)),
    _metric("flops_counted", "FLOP", "Floating-point operations.",
            _formula("flops_mfma + flops_valu", allows_missing=True)),
    _metric("bytes_read", "B",
            "Bytes that L2 read from the fabric: memory, the cache before it, and other devices.",
            "1024 * FETCH_SIZE", "1024 * FetchSize",
            _formula("64 * TCC_EA_RDREQ + 64 * TCC_BUBBLE - 32 * TCC_EA_RDREQ_32B", _BUBBLE),
            _formula("64 * TCC_EA_RDREQ - 32 * TCC_EA_RDREQ_32B", _NO_BUBBLE)),
    _metric("bytes_written", "B", "Bytes that L2 wrote to the fabric.",
            "1024 * WRITE_SIZE", "1024 * WriteSize",
            _formula("32 * TCC_EA_WRREQ + 32 * TCC_EA_WRREQ_64B", (*_NO_BUBBLE, *_BUBBLE))),
    _metric("mem_bytes_counted", "B", "Bytes between L2 and memory.", "bytes_read + bytes_written"),
    _metric("intensity", "FLOP/B", "Arithmetic intensity.", "flops_counted / mem_bytes_counted"),
    _metric("mfma_util", "%", "Share of cycles in which matrix cores were busy.",
            "100 * SQ_VALU_MFMA_BUSY_CYCLES / (cycles * cus * simds_per_cu)", "MfmaUtil",
            max_value=100.0),
    _metric("valu_util", "%", "Share of cycles in which vector units issued an instruction.",
            "100 * SQ_ACTIVE_INST_VALU / (cycles * cus)", "VALUBusy", max_value=100.0),
    _metric("occupancy", "%", "Waves that were resident, of those that fit.",
            "OccupancyPercent", "100 * MeanOccupancyPerCU / waves_per_cu",
            "100 * SQ_LEVEL_WAVES_ACCUM / (cycles * cus * waves_per_cu)",
            # the counter is in steps of four cycles
            "400 * SQ_WAVE_CYCLES / (cycles * cus * waves_per_cu)", max_value=100.0),
)  # fmt: skip
"""Each behind those from which it is computed."""

BUSY_CYCLES = "GRBM_GUI_ACTIVE"
"""Cycles in which the GPU was active, summed over its dies; over a known time, its mean clock."""


ONLY_ON = {
    _mfma_metric("F8"): ("gfx94", "gfx95"),
    _mfma_metric("XF32"): ("gfx94",),
    _mfma_metric("F6F4"): ("gfx95",),
}
"""Metrics of types that few architectures have → beginnings of the names of those that do."""
FLOPS = (
    *(_mfma_metric(kind) for kind in _MFMA_TYPES),
    *(f"{_VALU}{work}_{kind}" for kind in _VALU_TYPES for work, _ in _VALU_WORK),
)
"""Counters and metrics that together count all floating-point operations."""


def canonical(counter: str) -> str:
    """Return a counter's name as the table has it."""
    name = counter.removesuffix("_sum")
    return name.replace("TCC_EA0_", "TCC_EA_", 1) if name.startswith("TCC_EA0_") else name


def is_computable(metric: str, counters: AbstractSet[str]) -> bool:
    """True if a metric can be computed of these counters, on some GPU."""
    formulas = next(known.formulas for known in METRICS if known.name == metric)
    return any({name for _, names in f.terms for name in names} <= counters for f in formulas)
