"""Energy and time of a run as CharLLM-PPT has them: its definitions, not ours.

Its scripts (dad5f278, ``vistools.py``, ``figure_4.py``) integrate the power of each GPU over all of its
samples by the trapezoid rule, whatever ran, however far samples are apart; the time of a run is from
the first to the last sample of the power of rank 0; efficiency is samples per second and megajoule,
with 128 samples a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.result import Result
from chopper_interop.telemetry.names import POWER

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

NAME = "charllm"
SAMPLES = 128
"""Samples of a run, whatever its length."""
CONVENTIONS = {
    "definition": "CharLLM-PPT (dad5f278): trapezoid rule over all samples of a GPU's power",
    "window": "all samples; the time of the run is from the first to the last sample of the GPU of "
    "the lowest rank (of node telemetry, of the lowest device)",
    "gaps": "are integrated over like any other time between samples",
    "left out": "samples that the tool marks as errors (-1), which CharLLM-PPT integrates; and it "
    "counts no GPU that has no power of its memory sampled beside",
    "of several tools": "the one with most samples of the GPU",
    "links": "what ran does not matter, nor whether anything did",
    "memset": "no difference: nothing that ran is looked at",
    "copies": "no difference: nothing that ran is looked at",
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
class Drawn:
    """Power samples of a GPU: times as ts, values in watts."""

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
        """From the first to the last sample."""
        return int(self.ts[-1] - self.ts[0])


def check(compat: str) -> None:
    """Raise `NoSuchDefinitionsError` for any other tool."""
    if compat != NAME:
        raise NoSuchDefinitionsError(f"compat={compat}: there is {NAME}")


def drawn(trace: Trace) -> list[Drawn]:
    """Power of every GPU that any tool sampled, by rank (-1: the node's) and device."""
    owner = trace.array("series", "samples")
    bounds = np.searchsorted(owner, np.arange(trace.series.num_rows + 1, dtype=owner.dtype))
    found: dict[tuple[int, int], Drawn] = {}
    for row, series in enumerate(trace.series.to_pylist()):
        told = next((t for t in POWER.told if t.match(series["name"]) and t.is_shown), None)
        if told is None or series["unit"] not in told.units:
            continue
        mine = slice(bounds[row], bounds[row + 1])
        ts, value = (trace.array(column, "samples")[mine] for column in ("ts", "value"))
        finite = np.isfinite(value)
        if not finite.any():
            continue
        place = series["rank"], series["device"]
        watts = value[finite] * told.units[series["unit"]]
        one = Drawn(*place, series["source"], ts[finite], watts)
        if place not in found or len(one.ts) > len(found[place].ts):
            found[place] = one
    return [found[place] for place in sorted(found)]


def execution_ns(found: list[Drawn]) -> int | None:
    """Time of the run, of the lowest rank that is told; None where there is none."""
    if not found:
        return None
    main = min(found, key=lambda gpu: (gpu.rank < 0, gpu.rank, gpu.device))
    return main.execution_ns or None


def energy(trace: Trace) -> Result:
    """Energy of each GPU and of all, and how long the run took."""
    found = drawn(trace)
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
        for gpu in found
    ]
    table = {n: pa.array([row[n] for row in rows], kind) for n, kind in _COLUMNS.items()}
    total = sum(gpu.energy_j for gpu in found) if found else None
    summary = {"energy_j": total, "execution_ns": execution_ns(found), "gpus": len(found)}
    none = {} if found else {"no rows": "no power was sampled"}
    return Result("energy", pa.table(table), summary, CONVENTIONS, notes=none)


def efficiency(trace: Trace, samples: int = 0) -> Result:
    """Samples per second and megajoule of a run.

    Parameters
    ----------
    trace
        Any trace with power.
    samples
        Of the whole run; 0 for the 128 of its scripts.
    """
    found = drawn(trace)
    count, time = samples or SAMPLES, execution_ns(found)
    joules = sum(gpu.energy_j for gpu in found)
    per_s = count / (time * 1e-9) if time else None
    row = {
        "run_samples": count,
        "execution_ns": time,
        "energy_j": joules if found else None,
        "samples_per_s": per_s,
        "samples_per_s_per_mj": per_s / (joules / 1e6) if per_s and joules else None,
    }
    types = dict.fromkeys(row, pa.float64()) | dict.fromkeys(
        ("run_samples", "execution_ns"), pa.int64()
    )
    rows = [row] if found else []
    table = pa.table({n: pa.array([one[n] for one in rows], kind) for n, kind in types.items()})
    told = {"run_samples": f"{count} of the whole run"}
    none = {} if found else {"no rows": "no power was sampled"}
    return Result("efficiency", table, row, CONVENTIONS, notes=told | none)
