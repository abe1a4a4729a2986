"""Charts of several runs side by side."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.plots import forms, style
from chopper_interop.plots.tables import frame_of, in_unit, labels, named
from chopper_interop.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.plots.forms import Chart

_PARTS = {
    "compute": "compute_ns",
    "exposed communication": "exposed_comm_ns",
    "idle": "idle_ns",
}
_RATES = {
    "tokens_per_s_per_gpu": "tokens/s of a GPU",
    "samples_per_s_per_gpu": "samples/s of a GPU",
}
_LINKS = ("pcie_bytes", "nvlink_bytes", "xgmi_bytes")
_KINDS = (
    "matmul", "attention", "convolution", "normalization", "elementwise", "other", "copy", "fill",
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "other_comm",
)  # fmt: skip


def run_steps(result: Result) -> Chart:
    """Parts of a step of each run, of `sweep`."""
    frame, unit = in_unit(_valid(result, *_PARTS.values()), _PARTS.values())
    text = "Time of a rank in a step of each run."
    return forms.stacked_bars(frame, "run", _PARTS, f"time ({unit})", text)


def run_kernels(result: Result) -> Chart:
    """GPU time of each run by kind of work, of `sweep`."""
    frame = _valid(result)
    parts = {kind: f"{kind}_ns" for kind in _KINDS if f"{kind}_ns" in frame}
    frame, unit = in_unit(frame, parts.values())
    text = "GPU time of a rank in a step of each run, by kind of work."
    return forms.stacked_bars(frame, "run", parts, f"time ({unit})", text)


def run_power(result: Result) -> Chart:
    """Mean and peak power of a GPU in each run, of `sweep`."""
    return _mean_and_peak(result, "power (W)", "mean_power_w", "peak_power_w")


def run_temperature(result: Result) -> Chart:
    """Mean and peak temperature of GPUs in each run, of `sweep`."""
    names = "mean_temperature_c", "peak_temperature_c"
    return _mean_and_peak(result, "temperature (°C)", *names)


def run_clock(result: Result) -> Chart:
    """Mean and highest core clock in each run, of `sweep`."""
    return _mean_and_peak(result, "core clock (MHz)", "gfxclk_mhz", "peak_gfxclk_mhz")


def run_efficiency(result: Result) -> Chart:
    """Efficiency of each run by the best one of its model, of `sweep`."""
    frame = _valid(result, "efficiency_share").dropna(subset=["efficiency_share"])
    frame = frame.assign(percent=100 * frame["efficiency_share"])
    text = "Throughput by energy of each run, in % of the best run of the model."
    return forms.stacked_bars(frame, "run", {"efficiency": "percent"}, "% of the best", text)


def run_throughput(result: Result) -> Chart:
    """Throughput of each run by GPU, of `sweep`; runs that are invalid are named."""
    frame = named(_rows(result, *_RATES), ["run"])
    for column, unit in _RATES.items():
        if frame[column].notna().any():
            broken = frame.loc[frame["status"] == "invalid", "name"]
            lost = f" Invalid, without a bar: {', '.join(broken)}." if len(broken) else ""
            frame = frame.drop(columns="run").rename(columns={"name": "run"})
            parts = {"throughput": column}
            return forms.stacked_bars(frame, "run", parts, unit, f"Throughput of each run.{lost}")
    return None


def _gpu_map(frame: pd.DataFrame, value: str, label: str) -> Chart:
    frame = frame.dropna(subset=[value]).rename(columns={"gpu": "GPU", value: label})
    frame = frame.assign(run=labels(frame["run"]))
    text = f"{label[:1].upper()}{label[1:]} of each GPU of each run."
    return forms.heat_map(frame, ("GPU", "run"), label, text)


def _gpu_figure(column: str, label: str, result: Result) -> Chart:
    """Figure of each GPU in each run, of `sweep` by run,gpu."""
    return _gpu_map(_rows(result, column), column, label)


run_gpu_power = partial(_gpu_figure, "mean_power_w", "mean power (W)")
run_gpu_peak_power = partial(_gpu_figure, "peak_power_w", "highest power (W)")
run_gpu_temperature = partial(_gpu_figure, "mean_temperature_c", "mean temperature (°C)")
run_gpu_peak_temperature = partial(_gpu_figure, "peak_temperature_c", "highest temperature (°C)")
run_gpu_clock = partial(_gpu_figure, "gfxclk_mhz", "mean core clock (MHz)")
run_gpu_peak_clock = partial(_gpu_figure, "peak_gfxclk_mhz", "highest core clock (MHz)")


def run_gpu_utilisation(result: Result) -> Chart:
    """Utilisation that each GPU reports in each run, of `sweep` by run,gpu."""
    frame = _rows(result, "utilization_share")
    frame = frame.assign(utilisation=100 * frame["utilization_share"])
    return _gpu_map(frame, "utilisation", "utilisation (%)")


def run_gpu_busy(result: Result) -> Chart:
    """Share of the time in which each GPU of each run is busy, of `sweep` by run,gpu."""
    frame = _rows(result, "busy_share")
    return _gpu_map(frame.assign(busy=100 * frame["busy_share"]), "busy", "busy (%)")


def run_gpu_bytes(result: Result) -> Chart:
    """Bytes over the links of each GPU in each run, of `sweep` by run,gpu."""
    frame = frame_of(result)
    columns = [column for column in _LINKS if column in frame]
    frame = frame.assign(bytes=frame[columns].sum(axis=1, min_count=1) / 1e9)
    return _gpu_map(frame.dropna(subset=["bytes"]), "bytes", "bytes over links (GB)")


def changed_kernels(result: Result) -> Chart:
    """Kernels whose time changed most between two jobs, of `compare`."""
    frame = frame_of(result)
    units, others = (max(result.summary[name], 1) for name in ("units", "units_against"))
    is_as_often = frame["count"] * others == frame["count_against"] * units
    is_noise = is_as_often & (frame["is_significant"] == False)  # noqa: E712 # where known
    frame = frame[~is_noise & (frame["delta_ns"] != 0)]
    if frame.empty:
        return "No work takes more or less time than in the other job by more than it varies."
    frame = frame.assign(change=np.abs(frame["delta_ns"]))
    text = (
        "Change of GPU time by rank and step against the other job: to the right is slower. Work that varies "
        "as much by itself is left out."
    )
    frame, text = forms.longest(named(frame.assign(of=_place(frame)), ["of"]), "change", text)
    frame, unit = in_unit(frame, ["delta_ns"])
    frame = frame.rename(columns={"name": "work"})
    return forms.stacked_bars(frame, "work", {"change": "delta_ns"}, f"change ({unit})", text)


def kinds_by_rank(result: Result) -> Chart:
    """GPU time of each rank by kind of work in two jobs, of `compare` by rank,category."""
    import pandas as pd

    frame = frame_of(result)
    if frame.empty or not {"rank", "category"} <= {*frame}:
        return None
    ranks = frame["rank"].nunique()
    sides = {"": ("total_ns", "units"), " of the other": ("total_against_ns", "units_against")}
    parts = []
    for side, (column, units) in sides.items():
        of_step = frame.assign(ns=frame[column] * ranks / max(result.summary[units], 1))
        wide = of_step.pivot_table(index="rank", columns="category", values="ns", aggfunc="sum")
        parts.append(wide.reset_index().assign(side=side))
    wide = pd.concat(parts).sort_values(["rank", "side"], ignore_index=True)
    wide = wide.assign(job="rank " + wide["rank"].astype(str) + wide["side"])
    kinds = wide.columns.drop(["rank", "side", "job"])
    wide, unit = in_unit(wide, kinds)
    order = wide[kinds].sum().sort_values(ascending=False).index
    text = "GPU time of each rank in a step by kind of work, in this job and in the other."
    return forms.stacked_bars(wide, "job", {kind: kind for kind in order}, f"time ({unit})", text)


def _place(frame: pd.DataFrame) -> list[str]:
    """Kernel, operation or category of each row, with its phase and layer where they are known."""
    keys = [c for c in ("kernel", "operation", "category") if c in frame][:1]
    columns = [c for c in (*keys, "phase", "layer") if c in frame]
    texts = frame[columns].astype("string")
    if "layer" in columns:
        texts["layer"] = "layer " + texts["layer"].str.removesuffix(".0")
    known = [[t for t in row if isinstance(t, str)] for row in texts.itertuples(index=False)]
    return style.joined_names([row or ["(none)"] for row in known])


def _mean_and_peak(result: Result, title: str, mean: str, peak: str) -> Chart:
    frame = _valid(result, mean, peak).dropna(subset=[mean])
    if frame.empty:
        return None
    frame = frame.assign(above=(frame[peak] - frame[mean]).fillna(0))
    text = f"Mean and, above it, highest {title} of each run."
    parts = {"mean": mean, "up to the highest": "above"}
    return forms.stacked_bars(frame, "run", parts, title, text)


def _rows(result: Result, *columns: str) -> pd.DataFrame:
    """Rows of `sweep` with these columns, which it leaves out where no run has a value."""
    frame = frame_of(result)
    return frame.reindex(columns=[*frame.columns, *(c for c in columns if c not in frame)])


def _valid(result: Result, *columns: str) -> pd.DataFrame:
    frame = _rows(result, *columns)
    frame = named(frame[frame["status"] != "invalid"], ["run"])
    return frame.drop(columns="run").rename(columns={"name": "run"})
