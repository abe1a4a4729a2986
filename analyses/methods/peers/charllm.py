"""Energy and time of a run by CharLLM-PPT's definitions.

Its scripts (dad5f278, ``vistools.py``, ``figure_4.py``) integrate the power of each GPU over all of its
samples by the trapezoid rule, regardless of what ran and of the time between samples. The time of a run
is from the first to the last sample of the power of rank 0. Efficiency is samples per second and
megajoule, with 128 samples a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from chopper_interop.annotate.telemetry.quantity_series import POWER
from chopper_interop.arrays import Array
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.result import Result
from chopper_interop.trace import Trace

NAME = "charllm"
SAMPLES = 128
"""Samples of a run in CharLLM-PPT's scripts, whatever its length."""
CONVENTIONS = {
    "definition": "CharLLM-PPT (dad5f278): trapezoid rule over all samples of a GPU's power",
    "window": "all samples; the time of the run is from the first to the last sample of the GPU of "
    "the lowest rank (of node telemetry, of the lowest device)",
    "gaps": "are integrated over like any other time between samples",
    "left out": "samples that the tool marks as errors (-1), which CharLLM-PPT integrates. It also "
    "leaves out GPUs without samples of the power of their memory, which are counted here",
    "of several tools": "the one with most samples of the GPU",
    "links": "not relevant: work is not examined",
    "memset": "not relevant: work is not examined",
    "copies": "not relevant: work is not examined",
}
_COLUMNS = {
    "rank": pa.int64(),
    "device": pa.int64(),
    "samples": pa.int64(),
    "execution_ns": pa.int64(),
    "energy_j": pa.float64(),
    "mean_power_w": pa.float64(),
    "source": pa.string(),
}


@dataclass(frozen=True)
class GpuPower:
    """Power samples of a GPU: times (ns, since the trace's origin) and watts."""

    rank: int
    device: int
    source: str
    ts: Array
    watts: Array

    @property
    def energy_j(self) -> float:
        """Energy by the trapezoid rule over all samples."""
        width = np.diff(self.ts) * 1e-9
        return float(np.sum((self.watts[1:] + self.watts[:-1]) / 2 * width))

    @property
    def execution_ns(self) -> int:
        """Time from the first to the last sample."""
        return int(self.ts[-1] - self.ts[0])


def check_compat(compat: str) -> None:
    """Raise `NoSuchDefinitionsError` for any other tool."""
    if compat != NAME:
        raise NoSuchDefinitionsError(f"compat={compat}: there is {NAME}")


def gpu_powers(trace: Trace) -> list[GpuPower]:
    """Return the power of every sampled GPU, in order of rank (-1: the node's) and device."""
    bounds = trace.sample_bounds
    by_gpu: dict[tuple[int, int], GpuPower] = {}
    for row, series in enumerate(trace.series.to_pylist()):
        quantity = next(
            (t for t in POWER.patterns if t.match(series["name"]) and t.is_instantaneous), None
        )
        if quantity is None or series["unit"] not in quantity.units:
            continue
        own_samples = slice(bounds[row], bounds[row + 1])
        ts, value = (trace.array(column, "samples")[own_samples] for column in ("ts", "value"))
        finite = np.isfinite(value)
        if not finite.any():
            continue
        key = series["rank"], series["device"]
        watts = value[finite] * quantity.units[series["unit"]]
        gpu = GpuPower(*key, series["source"], ts[finite], watts)
        if key not in by_gpu or len(gpu.ts) > len(by_gpu[key].ts):
            by_gpu[key] = gpu
    return [by_gpu[key] for key in sorted(by_gpu)]


def run_time_ns(gpus: list[GpuPower]) -> int | None:
    """Return the time of the run, that of the lowest known rank; None without GPUs."""
    if not gpus:
        return None
    first_gpu = min(gpus, key=lambda gpu: (gpu.rank < 0, gpu.rank, gpu.device))
    return first_gpu.execution_ns or None


def energy(trace: Trace) -> Result:
    """Measure the energy of each GPU and of all, and the time of the run."""
    gpus = gpu_powers(trace)
    rows = [
        {
            "rank": gpu.rank if gpu.rank >= 0 else None,
            "device": gpu.device if gpu.device >= 0 else None,
            "samples": len(gpu.ts),
            "execution_ns": gpu.execution_ns,
            "energy_j": gpu.energy_j,
            "mean_power_w": gpu.energy_j / (gpu.execution_ns * 1e-9) if gpu.execution_ns else None,
            "source": gpu.source,
        }
        for gpu in gpus
    ]
    table = pa.Table.from_pylist(rows, pa.schema(_COLUMNS))
    total = sum(gpu.energy_j for gpu in gpus) if gpus else None
    summary = {"energy_j": total, "execution_ns": run_time_ns(gpus), "gpus": len(gpus)}
    notes = {} if gpus else {"no rows": "no power was sampled"}
    return Result("energy", table, summary, CONVENTIONS, notes=notes)


def efficiency(trace: Trace, samples: int = 0) -> Result:
    """Measure samples per second and megajoule of a run.

    Parameters
    ----------
    trace
        A trace with power.
    samples
        Samples of the whole run; 0 for the 128 of CharLLM-PPT's scripts.
    """
    gpus = gpu_powers(trace)
    count, time = samples or SAMPLES, run_time_ns(gpus)
    joules = sum(gpu.energy_j for gpu in gpus)
    per_s = count / (time * 1e-9) if time else None
    row = {
        "run_samples": count,
        "execution_ns": time,
        "energy_j": joules if gpus else None,
        "samples_per_s": per_s,
        "samples_per_s_per_mj": per_s / (joules / 1e6) if per_s and joules else None,
    }
    types = dict.fromkeys(row, pa.float64()) | dict.fromkeys(
        ("run_samples", "execution_ns"), pa.int64()
    )
    table = pa.Table.from_pylist([row] if gpus else [], pa.schema(types))
    notes = {"run_samples": f"{count} of the whole run"}
    no_rows = {} if gpus else {"no rows": "no power was sampled"}
    return Result("efficiency", table, row, CONVENTIONS, notes=notes | no_rows)
