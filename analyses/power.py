"""Components of each GPU's power by a fitted model, and the clock that a power cap allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.power import model as power_model
from chopper_interop.analyses.methods.power.clock import FOLLOWED
from chopper_interop.analyses.methods.power.response import FILTER, RATE, WINDOW, observed
from chopper_interop.annotate.telemetry.gpus import Gpu, gpus_with_telemetry
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK, POWER
from chopper_interop.arrays import intervals
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import OptionError, UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.model import PowerModel
    from chopper_interop.annotate.telemetry.samples import Samples

__all__ = ["power"]

_BY = ("rank", "class")
_IDLE = "idle"
_CONVENTIONS = {
    "model": "power = fixed + (idling + sum over classes of dynamic_w x share of time in which it "
    "ran) x (clock / f_ref_mhz)^exponent; idle_w = fixed + idling",
    "links": "all GPU work counts, launched by a recorded call or not",
    "classes": "matrix products and attention by the names of kernels, vector for all other kernels, "
    "comm, copy and fill by kind; kernels with 0.3 % of the work or more have a power of their own, and "
    "a class has their mean by time. Concurrent work of one class counts once, several classes add up",
    "memset": "class fill",
    "copies": "class copy; copies by kernels of the runtime (__amd_rocclr_*) are vector",
    "sensor": "averaging and delay of samples are fitted as well: sensor, sensor_ns and "
    "delay_ns, a filter to how power falls in idle times where samples determine that; energy "
    "counters give the mean between their readings, which are joined to 20 ms",
    "errors": "one standard error; consecutive correlated residuals count as one. cross_share is the error "
    "in tenths of the time left out of the fit, by the mean power",
    "expectations": "parameters that samples determine little stay near values typical of GPUs: idle "
    "0.31 +- 0.11 of the mean power, exponent 2.4 +- 0.5, classes by their ratio to matrix products; "
    "as_expected names them",
    "clock": "clock_from is the origin of the clock between its samples; an exponent is fitted only "
    "where samples follow the clock",
}
_WINDOW = (
    "of each GPU from the first start to the last end of all work on it; of that, the samples that "
    "cover nothing outside"
)
_CAPS_CONVENTION = (
    "the mean of the highest clock that keeps power, averaged as in the run, at the cap, "
    "with a 95 % confidence interval; the mix of work is as measured, though at another clock some of it "
    "takes longer and some does not; without held, the cap of the run, power may be up to 5 % "
    "below a cap"
)
_RESOLVED = {FILTER: 3.0, WINDOW: 1.0}
"""Widths of a sensor that an idle time must last to be seen. Chosen: a filter then shows all of it but 5 %, if its samples
do not determine how power falls; a mean over a window shows only its part."""
_FEWEST_IDLE = 3
"""Idle times that show a period. Chosen: two are once apart by any time."""
_TYPES = {
    "rank": pa.int64(), "device": pa.int64(), "samples": pa.int64(), "sensor_ns": pa.int64(),
    "delay_ns": pa.int64(), "source": pa.string(), "sensor": pa.string(),
    "clock_from": pa.string(), "as_expected": pa.string(), "class": pa.string(),
}  # fmt: skip
_GPU_COLUMNS = (
    "rank", "device", "fixed_w", "idle_w", "idle_error_w", "matrix_w", "matrix_error_w", "exponent_ratio",
    "exponent_error_ratio", "f_ref_mhz", "mean_power_w", "error_w", "explained_share", "cross_share",
    "samples", "source", "sensor", "sensor_ns", "delay_ns", "clock_from", "as_expected",
)  # fmt: skip
_CAP_COLUMNS = ("cap_w", "capped_mhz", "capped_low_mhz", "capped_high_mhz")
_CLASS_COLUMNS = (
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
        Ranks that count: ``0,4-7``; all by default.
    caps
        Power caps in watts, ``"500,600"``: a row for each, with the mean clock that it allows.
    held
        The power cap of the run in watts, if it is known and was reached: how far the GPUs stayed
        below it predicts how far they stay below other caps.

    Returns
    -------
    Result
        By rank: `fixed_w`, the constant power; `idle_w` while nothing runs, null where no sample shows
        that; `matrix_w` that matrix products draw above that, all at `f_ref_mhz`, the mean clock;
        `exponent_ratio`, the exponent of the clock, and standard errors; `mean_power_w` by the model;
        `error_w`, the root mean square of the residuals; `explained_share` (R²) and `cross_share`, the
        error in time left out of the fit by the mean power; `sensor`, the fitted model of the sensor. With
        `caps`, `cap_w`, `capped_mhz`, and its 95 % interval; none where the lowest clock considered, a
        fifth of the highest, draws more. By class: `dynamic_w` above idle while it runs, its error,
        `busy_share`, and its part of the mean power, `mean_power_w`, and of the energy. Unknown values are
        null.

    Notes
    -----
    The power of a GPU is the sum of idle power and that of the running work, scaled by the clock, as in Lit
    Silicon (2511.09861) and Kernel-level DVFS (2601.08539); published errors of such models are 1 % (Lit
    Silicon) and 4.62 % (Ascend, ASPLOS 2025). `chopper_interop.analyses.methods.power.model` has the
    formula, the sensor and the errors.
    """
    options.check_choice("by", by, _BY)
    caps_w = _parse_caps(caps)
    if not 0 <= held < math.inf:
        raise UsageError(f"held={held} is not a power", hint="write watts, such as 600")
    if caps_w and by != "rank":
        raise UsageError("caps need by=rank", hint="leave by out")
    selected = windows.chosen_ranks(trace, ranks)
    gpus_of_ranks, models = _fit_models(trace, selected)
    idles = [_idle(trace, gpu, model) for gpu, model in models]
    rows = [
        row
        for (gpu, model), idle in zip(models, idles, strict=True)
        for rank in gpu.ranks
        if rank in selected
        for row in (
            _class_rows(model, idle) if by == "class" else _rank_rows(model, idle, caps_w, held)
        )
        for row in [{"rank": rank, "device": _device(trace, gpu, rank)} | row]
    ]
    order = [row["rank"] for row in rows]
    rows = [rows[i] for i in np.argsort(order, kind="stable").tolist()]
    names = _CLASS_COLUMNS if by == "class" else (*_GPU_COLUMNS, *(_CAP_COLUMNS if caps_w else ()))
    conventions = _CONVENTIONS | ({"caps": _CAPS_CONVENTION} if caps_w else {})
    notes = {"window": _WINDOW} | _ranks_without_model(trace, selected, gpus_of_ranks, models)
    notes |= _caps_too_low(models, caps_w) | _idle_note(idles)
    summary = _summary([m for _, m in models], idles)
    return Result("power", _table(rows, names), summary, conventions, notes=notes)


def _parse_caps(text: str) -> list[float]:
    """Parse power caps in watts, such as ``"500,600"``."""
    caps_w = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise OptionError(
                f"caps={text}: {part!r} is not a power", hint="write watts, such as 500,600"
            )
        caps_w.append(value)
    return caps_w


def _fit_models(
    trace: Trace, ranks: Sequence[int]
) -> tuple[list[Gpu], list[tuple[Gpu, PowerModel]]]:
    """Return the GPUs of these ranks, and the models of those that have one."""
    all_gpus = gpus_with_telemetry(trace, quantities=(POWER, GFXCLK))
    gpus_of_ranks = [gpu for gpu in all_gpus if set(gpu.ranks) & set(ranks)]
    fitted = [(gpu, power_model.fit_power(trace, gpu)) for gpu in gpus_of_ranks]
    return gpus_of_ranks, [(gpu, model) for gpu, model in fitted if model is not None]


class _Idle(NamedTuple):
    """Verdict on samples of power that may show an idle GPU.

    Parameters
    ----------
    longest_ns
        Longest time in which nothing ran, between the first work and the last.
    resolved_ns
        Shortest idle time that samples can show: by the width of their sensor, and their period.
    lowest_w
        Lowest sample meanwhile.
    """

    longest_ns: float
    resolved_ns: float
    lowest_w: float

    @property
    def is_seen(self) -> bool:
        """True if any sample can be of the idle GPU alone."""
        return self.longest_ns >= self.resolved_ns


def _idle(trace: Trace, gpu: Gpu, model: PowerModel) -> _Idle:
    """Compare the longest idle time of a GPU with the time that a sample of its power shows."""
    start = trace.array("ts")[gpu.rows]
    first, last = intervals.union(start, start + trace.array("dur")[gpu.rows])
    gaps = first[1:] - last[:-1]
    longest = float(gaps.max(initial=0))
    samples = model.source.samples[0][1]
    inside = samples.value[(samples.ts >= first[0]) & (samples.ts <= last[-1])]
    resolved = max(_shown_ns(model, samples), samples.resolution_ns)
    if model.response.kind == WINDOW and longest >= resolved:
        resolved += _hidden_period(model, last[:-1][gaps >= resolved])
    return _Idle(longest, resolved, float(inside.min()) if inside.size else model.mean_power_w)


def _shown_ns(model: PowerModel, samples: Samples) -> float:
    """Time that a sample of power shows; 0 where samples within shorter ones determined how power falls."""
    if model.response.kind == RATE:
        means = observed(samples, is_rate=True)
        return float(np.median(means.end - means.start))
    if model.fit.shows_decay:
        return 0.0
    return _RESOLVED[model.response.kind] * model.response.width_ns


def _hidden_period(model: PowerModel, idle_from: np.ndarray) -> float:
    """Time between idle times that the window of samples may be longer by; 0 if it cannot be.

    A mean over a whole number of steps and a little more looks like that over the little, of a power that changes
    less. It is possible if idle power would not be below 0.
    """
    if len(idle_from) < _FEWEST_IDLE:
        return 0.0
    period = float(np.median(np.diff(idle_from)))
    width = model.response.width_ns
    longer = model.mean_power_w - (model.mean_power_w - model.idle_w) * (width + period) / width
    return period if longer >= 0 else 0.0


def _idle_note(idles: Sequence[_Idle]) -> dict[str, str]:
    """Note of GPUs that no sample shows idle."""
    unseen = [idle for idle in idles if not idle.is_seen]
    if not unseen:
        return {}
    closest = max(unseen, key=lambda idle: idle.longest_ns / idle.resolved_ns)
    return {
        "idle was never seen": f"of {len(unseen)} of {len(idles)} GPUs: nothing ran for "
        f"{closest.longest_ns / 1e6:,.3g} ms at the most where samples show {closest.resolved_ns / 1e6:,.3g} ms "
        "or more, on the GPU where this is closest. idle_w is not known; it is "
        f"below the lowest sample, {max(i.lowest_w for i in unseen):,.0f} W"
    }


def _device(trace: Trace, gpu: Gpu, rank: int) -> int:
    """Number of a GPU in the lanes of a rank."""
    row = gpu.rows[np.flatnonzero(trace.array("rank")[gpu.rows] == rank)[0]]
    return int(trace.array("device", "lanes")[trace.array("lane")[row]])


def _rank_rows(
    model: PowerModel, idle: _Idle, caps: list[float], held: float
) -> list[dict[str, Any]]:
    fit, response = model.fit, model.response
    dynamic, error = model.dynamic_w, model.dynamic_error_w
    has_matrix = model.mean_busy["matrix"] > 0
    row = {
        "fixed_w": model.fixed_w,
        "idle_w": model.idle_w if idle.is_seen else None,
        "idle_error_w": model.idle_error_w if idle.is_seen else None,
        "matrix_w": dynamic["matrix"] if has_matrix else None,
        "matrix_error_w": error["matrix"] if has_matrix else None,
        "exponent_ratio": model.exponent if model.f_ref_mhz else None,
        "exponent_error_ratio": model.exponent_error if model.f_ref_mhz else None,
        "f_ref_mhz": model.f_ref_mhz,
        "mean_power_w": model.mean_power_w,
        "error_w": fit.error_w,
        "explained_share": fit.r2,
        "cross_share": fit.cross_share,
        "samples": fit.n,
        "source": model.source.tool,
        "sensor": response.kind,
        "sensor_ns": None if response.kind == RATE else round(response.width_ns),
        "delay_ns": round(response.delay_ns),
        "clock_from": model.clock_known,
        "as_expected": ", ".join(model.as_expected),
    }
    return [row | _clock_at_cap(model, cap, held) for cap in caps] if caps else [row]


def _clock_at_cap(model: PowerModel, cap: float, held: float) -> dict[str, Any]:
    clocks = None if _is_below(model, cap) else model.clock_mhz(cap, model.mean_busy, held)
    return dict(zip(_CAP_COLUMNS, (cap, *(clocks or (None, None, None))), strict=True))


def _is_below(model: PowerModel, cap: float) -> bool:
    """True if the GPU draws more than this cap even at the lowest clock considered."""
    return cap < model.min_w(model.mean_busy)


def _caps_too_low(models: Sequence[tuple[Gpu, PowerModel]], caps: list[float]) -> dict[str, str]:
    """Note of the caps that no clock is held at."""
    of_cap = {cap: [m for _, m in models if _is_below(m, cap)] for cap in caps}
    texts = [
        f"{cap:g} W of {len(below)} GPUs, which draw {min(m.min_w(m.mean_busy) for m in below):,.0f} W "
        "or more at the lowest clock considered"
        for cap, below in of_cap.items()
        if below
    ]
    return {"caps that no clock is held at": "; ".join(texts)} if texts else {}


def _class_rows(model: PowerModel, seen: _Idle) -> list[dict[str, Any]]:
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
            "dynamic_w": model.idle_w if seen.is_seen else None,
            "dynamic_error_w": model.idle_error_w if seen.is_seen else None,
            "busy_share": None,
            "mean_power_w": idle,
        }
    )
    return [row | {"energy_share": row["mean_power_w"] / total if total else None} for row in rows]


def _summary(models: list[PowerModel], idles: Sequence[_Idle]) -> dict[str, Any]:
    def over_known(values: list[float | None], reduce: Any) -> float | None:
        known = [v for v in values if v is not None]
        return float(reduce(known)) if known else None

    exponents = [m.exponent for m in models if m.clock_known == FOLLOWED]
    return {
        "gpus": len(models),
        "idle_w": over_known(
            [m.idle_w if i.is_seen else None for m, i in zip(models, idles, strict=True)], np.mean
        ),
        "exponent_ratio": over_known(list(exponents), np.mean),
        "mean_power_w": over_known([m.mean_power_w for m in models], np.mean),
        "worst_cross_share": over_known([m.fit.cross_share for m in models], max),
        "min_explained_share": over_known([m.fit.r2 for m in models], min),
    }


def _ranks_without_model(
    trace: Trace,
    selected: Sequence[int],
    gpus_of_ranks: list[Gpu],
    models: list[tuple[Gpu, PowerModel]],
) -> dict[str, str]:
    """Note why ranks have no rows."""
    reasons: dict[str, list[int]] = {}
    with_model = {rank for gpu, _ in models for rank in gpu.ranks}
    for gpu in gpus_of_ranks:
        for rank in set(gpu.ranks) - with_model:
            reasons.setdefault(power_model.why_not(trace, gpu), []).append(rank)
    with_gpu = {rank for gpu in gpus_of_ranks for rank in gpu.ranks}
    work = is_any(trace.array("kind"), GPU_WORK)
    for rank in selected:
        if rank not in with_gpu:
            rows = trace.rank_rows[rank]
            reason = "no telemetry of its GPU" if work[rows].any() else "no GPU work"
            reasons.setdefault(reason, []).append(rank)
    if not trace.ranks:
        return {"no rows": "the trace has no operations"}
    text = "; ".join(
        f"{reason}: ranks {', '.join(map(str, sorted(ranks)))}"
        for reason, ranks in sorted(reasons.items())
    )
    return {"without a model": text} if text else {}


def _table(rows: list[dict[str, Any]], names: Sequence[str]) -> pa.Table:
    types = pa.schema([(name, _TYPES.get(name, pa.float64())) for name in names])
    return pa.Table.from_pylist(rows, types)
