"""What GPUs drew: while they computed, communicated and copied, and while nothing ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import energy as energy_of
from chopper_interop.node_telemetry_gpus import gpus, unowned
from chopper_interop.node_telemetry_names import POWER
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.node_telemetry_gpus import Gpu, Source
    from chopper_interop.node_telemetry_samples import Samples
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

__all__ = ["energy"]

_KINDS = {"compute": (Kind.KERNEL, Kind.MEMSET), "comm": (Kind.COMM,), "copy": (Kind.MEMCPY,)}
_CONVENTIONS = {
    "window": "from the first start to the last end of all work on a GPU; of that, what its power "
    "is known of counts (covered_ns)",
    "power": "goes straight from sample to sample (trapezoid rule); where no power was sampled, it "
    "is the rise of the energy counter between samples. Of several tools the finest counts wherever "
    "it tells power, the next one where it does not",
    "gaps": "between samples further apart than 6 median periods, power is not known",
    "sharing": "at every moment equally among what runs on the GPU; what it draws while nothing "
    "runs is idle_j, in equal parts of all ranks that compute on it",
    "cut": "cut_j is what was drawn by work for whose whole time power is not known: such nodes "
    "have no energy_j. energy_j = work_j + cut_j + idle_j",
    "memset": "counts as compute",
    "counter": "counter_j is the rise of the GPU's energy counter over the time that power "
    "is known of, straight between its samples, null if that time has gaps; difference_share is (energy_j - counter_j) / counter_j of the whole GPU. "
    "Counters of amd-smi and rocm-smi read 0.27 % high, as they round the unit of the hardware",
    "of GPUs": "power of a socket or board, memory included; hosts and networks are not in it",
}
_REALS = (
    "energy_j", "work_j", "cut_j", "idle_j", "compute_j", "comm_j", "copy_j",
    "mean_power_w", "peak_power_w", "counter_j", "difference_share",
)  # fmt: skip
_WHOLES = ("rank", "device", "window_ns", "covered_ns", "telemetry_ns")
_SUMS = ("energy_j", "work_j", "cut_j", "idle_j", "compute_j", "comm_j", "copy_j")


def energy(trace: Trace) -> Result:
    """Energy of each rank's GPUs by integration of their power.

    Parameters
    ----------
    trace
        Any trace with GPU work and telemetry.

    Returns
    -------
    Result
        One row for each rank and GPU that it works on: `device`; `window_ns` and how much of it
        power is known of, `covered_ns`; `telemetry_ns`, the time between samples of power, the
        longest of several tools; energy
        in joules: `energy_j` = `work_j` (of which `compute_j`, `comm_j`, `copy_j`) + `cut_j` +
        `idle_j`; `mean_power_w` and `peak_power_w` of the GPU; `counter_j`, the same by the GPU's
        energy counter, and `difference_share`; `source`, the tools that sampled power, the finest
        first. Null where it is not known, as on GPUs that tell no power. The summary has sums over the job, counts
        of ranks with and without known power, and of GPUs whose power was sampled but on which no
        rank is known to compute (`gpus_without_rank`). The conventions say why rows are blank.

    Notes
    -----
    A node's `energy_j` is its part as this says. Trapezoid rule as in CharLLM-PPT and InferenceX.
    """
    rows: list[dict[str, Any]] = []
    found = gpus(trace, quantities=(POWER,))
    for gpu in found:
        rows += _rows(trace, gpu)
    told = {(row["rank"], row["device"]) for row in rows}
    rows += [_blank(*place) for place in _working(trace) if place not in told]
    rows.sort(key=lambda row: (row["rank"], row["device"]))
    known = [row for row in rows if row["energy_j"] is not None]
    without = list(unowned(trace, found))
    summary: dict[str, Any] = {
        name: sum(row[name] for row in known) if known else None for name in _SUMS
    }
    summary |= {
        "ranks_known": len({row["rank"] for row in known}),
        "ranks_unknown": len({row["rank"] for row in rows if row["energy_j"] is None}),
        "gpus_without_rank": len({trace.series["device"][row].as_py() for row in without}),
    }
    blank = sorted({row["rank"] for row in rows if row["energy_j"] is None})
    unknown = _unknown(blank, found, summary["gpus_without_rank"])
    return Result("energy", _table(rows), summary, unknown | _CONVENTIONS)


def _unknown(blank: list[int], found: list[Gpu], n_without: int) -> dict[str, str]:
    """Why figures are blank, and of which ranks."""
    sampled = {r for gpu in found if energy_of.powers_of(gpu) for r in gpu.ranks}
    told = []
    if none := [r for r in blank if r not in sampled]:
        told.append(f"no power was sampled (or 0 W throughout) of {_of_ranks(none)}")
        if n_without:
            told[0] += (
                "; which ranks compute on GPUs of which it was is not known, --map-device can tell"
            )
    if beyond := [r for r in blank if r in sampled]:
        told.append(f"power was sampled, but not while they computed, of {_of_ranks(beyond)}")
    return {"blank rows": "; ".join(told)} if told else {}


def _of_ranks(ranks: list[int]) -> str:
    """Ranks for people, ascending: ``ranks 0-3, 5``."""
    new = np.flatnonzero(np.diff(ranks) != 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(np.array(ranks), new)]
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def _working(trace: Trace) -> list[tuple[int, int]]:
    """Ranks and devices with GPU work."""
    work = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    device = trace.array("device", "lanes")[trace.array("lane")[work]]
    pairs = np.unique(np.stack([trace.array("rank")[work], device]), axis=1)
    return [(int(rank), int(number)) for rank, number in pairs.T]


def _blank(rank: int, device: int) -> dict[str, Any]:
    empty = dict.fromkeys((*_WHOLES, *_REALS, "source"))
    return empty | {"rank": rank, "device": device}


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    types = dict.fromkeys(_WHOLES, pa.int64()) | dict.fromkeys(_REALS, pa.float64())
    types["source"] = pa.string()
    columns = ("rank", "device", "window_ns", "covered_ns", *_REALS, "telemetry_ns", "source")
    return pa.table({c: pa.array([row[c] for row in rows], types[c]) for c in columns})


@dataclass(frozen=True)
class _Whole:
    """A GPU's energy over its window, for all ranks that compute on it."""

    powers: list[tuple[Source, Samples]]
    """What counts in the window, the finest first."""
    start: Array
    end: Array
    window: tuple[int, int]
    shared: energy_of.Shared


def _rows(trace: Trace, gpu: Gpu) -> list[dict[str, Any]]:
    """A row for each rank that computes on a GPU."""
    powers = energy_of.powers_of(gpu)
    start = trace.array("ts")[gpu.rows]
    end = start + trace.array("dur")[gpu.rows]
    window = int(start.min()), int(end.max())
    shared = energy_of.shared([samples for _, samples in powers], start, end, window)
    used = [power for power, ns in zip(powers, shared.covered_of, strict=True) if ns]
    if not used:
        return []
    whole = _Whole(used, start, end, window, shared)
    common = _common(gpu, whole)
    return [_row(trace, gpu, whole, rank) | common for rank in gpu.ranks]


def _common(gpu: Gpu, whole: _Whole) -> dict[str, Any]:
    """What is of the GPU, whoever computes on it."""
    told, (start, end) = whole.shared, whole.window
    tools = list(dict.fromkeys(source.tool for source, _ in whole.powers))
    parts = [samples for _, samples in whole.powers]
    counter = _counted(gpu, whole, tools)
    return {
        "window_ns": end - start,
        "covered_ns": told.covered_ns,
        "mean_power_w": told.total / (told.covered_ns * 1e-9),
        "peak_power_w": energy_of.peak(parts, start, end),
        "counter_j": counter,
        "difference_share": (told.total - counter) / counter if counter else None,
        "telemetry_ns": max(samples.resolution_ns for samples in parts),
        "source": ", ".join(tools),
    }


def _counted(gpu: Gpu, whole: _Whole, tools: list[str]) -> float | None:
    """What a counter rose by while power is known, of the first tool whose counter tells it."""
    if any(source.told.is_counter for source, _ in whole.powers):
        return None
    first = max(whole.window[0], min(int(samples.ts[0]) for _, samples in whole.powers))
    last = min(whole.window[1], max(int(samples.ts[-1]) for _, samples in whole.powers))
    if whole.shared.covered_ns != last - first:
        return None
    rises = [energy_of.counted(gpu.counters[t], first, last) for t in tools if t in gpu.counters]
    return next((rise for rise in rises if rise is not None), None)


def _row(trace: Trace, gpu: Gpu, whole: _Whole, rank: int) -> dict[str, Any]:
    """What is of one rank."""
    shared = whole.shared
    mine = trace.array("rank")[gpu.rows] == rank
    kind, of_each = trace.array("kind")[gpu.rows], shared.of_each
    by_kind = {
        f"{name}_j": float(np.nansum(of_each[mine & np.isin(kind, [int(k) for k in kinds])]))
        for name, kinds in _KINDS.items()
    }
    work = float(np.nansum(of_each[mine]))
    cut = float(shared.cut[mine].sum())
    idle = shared.idle / len(gpu.ranks)
    device = trace.array("device", "lanes")[trace.array("lane")[gpu.rows[mine][0]]]
    energies = {"energy_j": work + cut + idle, "work_j": work, "cut_j": cut, "idle_j": idle}
    return {"rank": rank, "device": int(device)} | energies | by_kind
