"""What the power of each GPU is made of, and which clock a power cap leaves it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import windows
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.power import model as power_model
from chopper_interop.power.clock import FOLLOWED
from chopper_interop.power.response import RATE
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.telemetry.gpus import gpus
from chopper_interop.telemetry.names import GFXCLK, POWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.power.model import PowerModel
    from chopper_interop.telemetry.gpus import Gpu
    from chopper_interop.trace import Trace

__all__ = ["power"]

_BY = ("rank", "class")
_IDLE = "idle"
_CONVENTIONS = {
    "model": "power = fixed + (idling + sum over classes of dynamic_w x share of time in which they "
    "ran) x (clock / f_ref_mhz)^exponent; idle_w = fixed + idling",
    "links": "all GPU work counts, launched by a recorded call or not",
    "classes": "matrix products and attention by the names of kernels, vector for all other kernels, "
    "comm, copy and fill by kind; kernels of 0.3 % of the work or more have a power of their own, of "
    "which a class has the mean by time. Several of one class at once count once, several classes add",
    "memset": "class fill",
    "copies": "class copy; copies by kernels of the runtime (__amd_rocclr_*) are vector",
    "sensor": "how samples average power, and how late they are, is fitted too: sensor, sensor_ns and "
    "delay_ns; energy counters tell the mean between their readings, which are joined to 20 ms",
    "errors": "one standard error; residuals that follow each other count as one. cross_share is of "
    "tenths of the time left out of the fit, by the mean power",
    "expectations": "what samples tell little of stays near what is usual of GPUs: idle 0.31 +- 0.11 "
    "of the mean power, exponent 2.4 +- 0.5, classes by their ratio to matrix products; as_expected "
    "names what is so",
    "clock": "clock_from says how the clock is known between its samples; an exponent is fitted only "
    "where samples follow the clock",
}
_WINDOW = (
    "of each GPU from the first start to the last end of all work on it; of that, the samples that see "
    "nothing else"
)
_CAPPED = (
    "the mean of the highest clock that keeps power, averaged over a while as in the run, at the cap, "
    "with 95 % confidence; the mix of work is as measured, though at another clock some of it takes "
    "longer and some does not; where held, the cap of the run, is not given, power may be up to 5 % "
    "below a cap"
)
_NUMBERS = {
    "rank": pa.int64(), "device": pa.int64(), "samples": pa.int64(), "sensor_ns": pa.int64(),
    "delay_ns": pa.int64(), "source": pa.string(), "sensor": pa.string(),
    "clock_from": pa.string(), "as_expected": pa.string(), "class": pa.string(),
}  # fmt: skip
_OF_GPU = (
    "rank", "device", "fixed_w", "idle_w", "idle_error_w", "matrix_w", "matrix_error_w", "exponent_ratio",
    "exponent_error_ratio", "f_ref_mhz", "mean_power_w", "error_w", "explained_share", "cross_share",
    "samples", "source", "sensor", "sensor_ns", "delay_ns", "clock_from", "as_expected",
)  # fmt: skip
_OF_CAP = ("cap_w", "capped_mhz", "capped_low_mhz", "capped_high_mhz")
_OF_CLASS = (
    "rank", "device", "class", "dynamic_w", "dynamic_error_w", "busy_share", "mean_power_w",
    "energy_share",
)  # fmt: skip


def power(
    trace: Trace, *, by: str = "rank", ranks: str = "", caps: str = "", held: float = 0.0
) -> Result:
    """Fit a model of power to each GPU's telemetry.

    Parameters
    ----------
    trace
        Any trace with GPU work and samples of power.
    by
        ``rank``: a row for each rank and GPU that it works on; ``class``: a row for each class of
        work on it, and one for idle.
    ranks
        These ranks, as ``0,4-7``; else all.
    caps
        Power caps in watts, ``"500,600"``: a row for each, with the mean clock that it leaves.
    held
        The power cap of the run in watts, if it is known and was reached: what the GPUs left unused
        of it tells what they leave of others.

    Returns
    -------
    Result
        By rank: `fixed_w`, power that nothing changes; `idle_w` while nothing runs; `matrix_w` that
        matrix products draw above that, all at `f_ref_mhz`, the mean clock; `exponent_ratio`, exponent of the clock,
        and standard errors; `mean_power_w` by the model; `error_w`, root mean square of what samples
        differ by; `explained_share` (R²) and `cross_share`, the error of time left out of the fit by
        the mean power; `sensor`, how samples show power. With `caps`, `cap_w`, `capped_mhz`, and
        its 95 % interval; none where the lowest clock considered, a fifth of the highest, draws
        more. By class: `dynamic_w` above idle while it runs, its error, `busy_share`,
        and its part of the mean power, `mean_power_w`, and of the energy. Null where not known.

    Notes
    -----
    Power of a GPU as that of idle and of what runs, by the clock, as Lit Silicon (2511.09861) and
    Kernel-level DVFS (2601.08539) use it; published errors of such models are 1 % (Lit Silicon) and
    4.62 % (Ascend, ASPLOS 2025). The form, the sensor and the errors are told in
    `chopper_interop.power.model`.
    """
    if by not in _BY:
        raise UsageError(f"by={by}: there is no {by!r}", hint=f"there are {', '.join(_BY)}")
    capped = _caps(caps)
    if not 0 <= held < math.inf:
        raise UsageError(f"held={held} is no power", hint="write watts, as 600")
    if capped and by != "rank":
        raise UsageError("caps are asked by rank", hint="leave by out")
    chosen = windows.chosen_ranks(trace, ranks)
    found, models = _models(trace, chosen)
    rows = [
        row
        for gpu, model in models
        for rank in gpu.ranks
        if rank in chosen
        for row in (_by_class(model) if by == "class" else _by_rank(model, capped, held))
        for row in [{"rank": rank, "device": _device(trace, gpu, rank)} | row]
    ]
    order = [row["rank"] for row in rows]
    rows = [rows[i] for i in np.argsort(order, kind="stable").tolist()]
    names = _OF_CLASS if by == "class" else (*_OF_GPU, *(_OF_CAP if capped else ()))
    conventions = _CONVENTIONS | ({"caps": _CAPPED} if capped else {})
    notes = {"window": _WINDOW} | _untold(trace, chosen, found, models) | _too_low(models, capped)
    return Result(
        "power", _table(rows, names), _summary([m for _, m in models]), conventions, notes=notes
    )


def _caps(text: str) -> list[float]:
    """Caps in a text like ``"500,600"``."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise UsageError(f"caps={text}: {part!r} is no power", hint="write watts, as 500,600")
        found.append(value)
    return found


def _models(trace: Trace, chosen: Sequence[int]) -> tuple[list[Gpu], list[tuple[Gpu, PowerModel]]]:
    """GPUs of these ranks, and the models of those that have one."""
    every = gpus(trace, quantities=(POWER, GFXCLK))
    found = [gpu for gpu in every if set(gpu.ranks) & set(chosen)]
    fitted = [(gpu, power_model.fitted(trace, gpu)) for gpu in found]
    return found, [(gpu, model) for gpu, model in fitted if model is not None]


def _device(trace: Trace, gpu: Gpu, rank: int) -> int:
    """Number of a GPU in the lanes of a rank."""
    row = gpu.rows[np.flatnonzero(trace.array("rank")[gpu.rows] == rank)[0]]
    return int(trace.array("device", "lanes")[trace.array("lane")[row]])


def _by_rank(model: PowerModel, caps: list[float], held: float) -> list[dict[str, Any]]:
    fit, response = model.fit, model.response
    dynamic, error = model.dynamic_w, model.dynamic_error_w
    ran = model.mean_busy["matrix"] > 0
    row = {
        "fixed_w": model.fixed_w,
        "idle_w": model.idle_w,
        "idle_error_w": model.idle_error_w,
        "matrix_w": dynamic["matrix"] if ran else None,
        "matrix_error_w": error["matrix"] if ran else None,
        "exponent_ratio": model.exponent if model.f_ref_mhz else None,
        "exponent_error_ratio": model.exponent_error if model.f_ref_mhz else None,
        "f_ref_mhz": model.f_ref_mhz,
        "mean_power_w": model.mean_power_w,
        "error_w": fit.error_w,
        "explained_share": fit.r2,
        "cross_share": fit.cross_share,
        "samples": fit.n,
        "source": model.source,
        "sensor": response.kind,
        "sensor_ns": None if response.kind == RATE else round(response.width_ns),
        "delay_ns": round(response.delay_ns),
        "clock_from": model.clock_known,
        "as_expected": ", ".join(model.told),
    }
    return [row | _capped(model, cap, held) for cap in caps] if caps else [row]


def _capped(model: PowerModel, cap: float, held: float) -> dict[str, Any]:
    found = None if _is_below(model, cap) else model.clock_mhz(cap, model.mean_busy, held)
    return dict(zip(_OF_CAP, (cap, *(found or (None, None, None))), strict=True))


def _is_below(model: PowerModel, cap: float) -> bool:
    return cap < model.least_w(model.mean_busy)


def _too_low(models: Sequence[tuple[Gpu, PowerModel]], caps: list[float]) -> dict[str, str]:
    """Caps that no clock is held at."""
    of_cap = {cap: [m for _, m in models if _is_below(m, cap)] for cap in caps}
    told = [
        f"{cap:g} W of {len(below)} GPUs, which draw {min(m.least_w(m.mean_busy) for m in below):,.0f} W "
        "or more at the lowest clock considered"
        for cap, below in of_cap.items()
        if below
    ]
    return {"caps that no clock is held at": "; ".join(told)} if told else {}


def _by_class(model: PowerModel) -> list[dict[str, Any]]:
    total = model.mean_power_w
    parts = model.mean_by_class_w
    powers, errors = model.dynamic_w, model.dynamic_error_w
    rows: list[dict[str, Any]] = [
        {
            "class": name,
            "dynamic_w": powers[name],
            "dynamic_error_w": errors[name],
            "busy_share": busy,
            "mean_power_w": parts[name],
        }
        for name, busy in model.mean_busy.items()
        if busy > 0
    ]
    idle = total - sum(row["mean_power_w"] for row in rows)
    rows.append(
        {
            "class": _IDLE,
            "dynamic_w": model.idle_w,
            "dynamic_error_w": model.idle_error_w,
            "busy_share": None,
            "mean_power_w": idle,
        }
    )
    return [row | {"energy_share": row["mean_power_w"] / total if total else None} for row in rows]


def _summary(models: list[PowerModel]) -> dict[str, Any]:
    def over(values: list[float | None], of: Any) -> float | None:
        known = [v for v in values if v is not None]
        return float(of(known)) if known else None

    exponents = [m.exponent for m in models if m.clock_known == FOLLOWED]
    return {
        "gpus": len(models),
        "idle_w": over([m.idle_w for m in models], np.mean),
        "exponent_ratio": over(list(exponents), np.mean),
        "mean_power_w": over([m.mean_power_w for m in models], np.mean),
        "worst_cross_share": over([m.fit.cross_share for m in models], max),
        "least_explained_share": over([m.fit.r2 for m in models], min),
    }


def _untold(
    trace: Trace, chosen: Sequence[int], found: list[Gpu], models: list[tuple[Gpu, PowerModel]]
) -> dict[str, str]:
    """Why ranks have no rows."""
    reasons: dict[str, list[int]] = {}
    known = {rank for gpu, _ in models for rank in gpu.ranks}
    for gpu in found:
        for rank in set(gpu.ranks) - known:
            reasons.setdefault(power_model.why_not(trace, gpu), []).append(rank)
    seen = {rank for gpu in found for rank in gpu.ranks}
    work = is_any(trace.array("kind"), GPU_WORK)
    for rank in chosen:
        if rank not in seen:
            rows = trace.rank_rows[rank]
            why = "no telemetry of its GPU" if work[rows].any() else "no GPU work"
            reasons.setdefault(why, []).append(rank)
    if not trace.ranks:
        return {"no rows": "the trace has no operations"}
    text = "; ".join(
        f"{why}: ranks {', '.join(map(str, sorted(who)))}" for why, who in sorted(reasons.items())
    )
    return {"without a model": text} if text else {}


def _table(rows: list[dict[str, Any]], names: Sequence[str]) -> pa.Table:
    return pa.table(
        {
            name: pa.array([row[name] for row in rows], _NUMBERS.get(name, pa.float64()))
            for name in names
        }
    )
