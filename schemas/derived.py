"""What hardware counters tell of a dispatch: formulas as data.

A formula is a sum of products of counters, over a product. Counters are called as tools name them,
without ``_sum`` behind, and ``TCC_EA0_…`` (gfx94x, gfx950) as ``TCC_EA_…`` (before them). Of several
formulas for a metric the first holds whose architecture fits and whose counters were counted.

Operands that are no counters: ``xccs``, ``cus``, ``simds_per_cu``, ``waves_per_cu`` of the device,
and metrics above in the table.

Definitions: ``counter_defs.yaml`` of rocprofiler-sdk (ROCm 6.2 to 7.2), and rocprofiler-compute's
``0200_system_speed_of_light.yaml`` and ``1700_L2_cache.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Formula:
    """One way to a metric.

    Parameters
    ----------
    terms
        Of a sum: a factor, and counters whose product it is a factor of.
    over
        Operands whose product the sum is divided by.
    archs
        How architectures begin for which it holds; all if there is none.
    partial
        Whether terms that were not counted may be absent: the sum is of what was counted.
    """

    terms: tuple[tuple[float, tuple[str, ...]], ...]
    over: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    partial: bool = False


@dataclass(frozen=True)
class Metric:
    """What is derived.

    Parameters
    ----------
    name
        Its name; that of an annotation column where there is one.
    unit
        Its unit.
    meaning
        For people.
    formulas
        Ways to it, the best first.
    most
        What it cannot exceed; 0 if there is no such bound.
    largest
        Whether the largest of the formulas holds, as each may lack a part, and not the first.
    """

    name: str
    unit: str
    meaning: str
    formulas: tuple[Formula, ...]
    most: float = 0.0
    largest: bool = False


def _one(counter: str, factor: float = 1.0) -> Formula:
    return Formula(((factor, (counter,)),))


_MFMA = "SQ_INSTS_VALU_MFMA_MOPS_"
_VALU = "SQ_INSTS_VALU_"
_PER_MOP, _LANES = 512.0, 64.0
_MFMA_TYPES = ("F16", "BF16", "F32", "F64", "F8", "XF32", "F6F4")
_VALU_TYPES = ("F16", "F32", "F64")
_VALU_WORK = (("ADD", 1.0), ("MUL", 1.0), ("TRANS", 1.0), ("FMA", 2.0))
_NO_BUBBLE = ("gfx906", "gfx908", "gfx90a")
_BUBBLE = ("gfx94", "gfx95")


def _of_type(kind: str) -> str:
    return f"flops_mfma_{kind.lower()}"


METRICS = (
    *(
        Metric(
            _of_type(kind),
            "FLOP",
            f"Floating-point operations of the matrix cores of type {kind}.",
            (_one(_MFMA + kind, _PER_MOP), _one(f"MfmaFlops{kind}")),
        )
        for kind in _MFMA_TYPES
    ),
    Metric(
        "cycles",
        "cycles",
        "Core clocks of the dispatch on each die, what the profiler adds around it included.",
        (Formula(((1.0, ("GRBM_GUI_ACTIVE",)),), over=("xccs",)),),
    ),
    Metric(
        "mfma_busy",
        "cycles",
        "Core clocks in which matrix cores were busy, summed over them.",
        (_one("SQ_VALU_MFMA_BUSY_CYCLES"),),
    ),
    Metric(
        "flops_mfma",
        "FLOP",
        "Floating-point operations of the matrix cores; integer ones are none.",
        (
            Formula(tuple((1.0, (_of_type(t),)) for t in _MFMA_TYPES), partial=True),
            _one("MfmaFlops"),
        ),
        largest=True,
    ),
    Metric(
        "flops_valu",
        "FLOP",
        "Floating-point operations of the vector units, each wave as 64 lanes.",
        (
            Formula(
                tuple(
                    (_LANES * factor, (f"{_VALU}{work}_{t}",))
                    for t in _VALU_TYPES
                    for work, factor in _VALU_WORK
                ),
                partial=True,
            ),
        ),
    ),
    Metric(
        "flops_counted",
        "FLOP",
        "Floating-point operations.",
        (Formula(((1.0, ("flops_mfma",)), (1.0, ("flops_valu",))), partial=True),),
    ),
    Metric(
        "bytes_read",
        "B",
        "Bytes that L2 read from the fabric: memory, the cache before it, and other devices.",
        (
            _one("FETCH_SIZE", 1024.0),
            _one("FetchSize", 1024.0),
            Formula(
                (
                    (64.0, ("TCC_EA_RDREQ",)),
                    (64.0, ("TCC_BUBBLE",)),
                    (-32.0, ("TCC_EA_RDREQ_32B",)),
                ),
                archs=_BUBBLE,
            ),
            Formula(((64.0, ("TCC_EA_RDREQ",)), (-32.0, ("TCC_EA_RDREQ_32B",))), archs=_NO_BUBBLE),
        ),
    ),
    Metric(
        "bytes_written",
        "B",
        "Bytes that L2 wrote to the fabric.",
        (
            _one("WRITE_SIZE", 1024.0),
            _one("WriteSize", 1024.0),
            Formula(
                ((32.0, ("TCC_EA_WRREQ",)), (32.0, ("TCC_EA_WRREQ_64B",))),
                archs=(*_NO_BUBBLE, *_BUBBLE),
            ),
        ),
    ),
    Metric(
        "mem_bytes_counted",
        "B",
        "Bytes between L2 and memory.",
        (Formula(((1.0, ("bytes_read",)), (1.0, ("bytes_written",)))),),
    ),
    Metric(
        "intensity",
        "FLOP/B",
        "Arithmetic intensity.",
        (Formula(((1.0, ("flops_counted",)),), over=("mem_bytes_counted",)),),
    ),
    Metric(
        "mfma_util",
        "%",
        "Share of cycles in which matrix cores were busy.",
        (
            Formula(
                ((100.0, ("SQ_VALU_MFMA_BUSY_CYCLES",)),), over=("cycles", "cus", "simds_per_cu")
            ),
            _one("MfmaUtil"),
        ),
        most=100.0,
    ),
    Metric(
        "valu_util",
        "%",
        "Share of cycles in which vector units issued an instruction.",
        (
            Formula(((100.0, ("SQ_ACTIVE_INST_VALU",)),), over=("cycles", "cus")),
            _one("VALUBusy"),
        ),
        most=100.0,
    ),
    Metric(
        "occupancy",
        "%",
        "Waves that were resident, of those that fit.",
        (
            _one("OccupancyPercent"),
            Formula(((100.0, ("MeanOccupancyPerCU",)),), over=("waves_per_cu",)),
            Formula(((100.0, ("SQ_LEVEL_WAVES_ACCUM",)),), over=("cycles", "cus", "waves_per_cu")),
            # the counter is in steps of four cycles
            Formula(((400.0, ("SQ_WAVE_CYCLES",)),), over=("cycles", "cus", "waves_per_cu")),
        ),
        most=100.0,
    ),
)
"""Each after those that it is made of."""

BUSY_CYCLES = "GRBM_GUI_ACTIVE"
"""Cycles in which the GPU was active, summed over its dies: the mean clock over a known time."""


ONLY_ON = {
    _of_type("F8"): ("gfx94", "gfx95"),
    _of_type("XF32"): ("gfx94",),
    _of_type("F6F4"): ("gfx95",),
}
"""Metrics of what not every architecture can → how the names of those begin that can."""
FLOPS = (
    *(_of_type(kind) for kind in _MFMA_TYPES),
    *(f"{_VALU}{work}_{kind}" for kind in _VALU_TYPES for work, _ in _VALU_WORK),
)
"""Counters and metrics that together count every floating-point operation."""


def canonical(counter: str) -> str:
    """A counter's name as the table has it."""
    name = counter.removesuffix("_sum")
    return name.replace("TCC_EA0_", "TCC_EA_", 1) if name.startswith("TCC_EA0_") else name
