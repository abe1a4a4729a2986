"""Charts of what the clock costs: ideal times, sensitivity, and Chopper's breakdown."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.plots import forms, style
from chopper_interop.plots.library import alt
from chopper_interop.plots.tables import frame_of, gpu_work, in_unit, labels, named
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.plots.forms import Chart

_FACTORS = {
    "more instructions": "o_inst_ratio",
    "idle matrix cores": "o_util_ratio",
    "concurrent communication": "o_ovl_ratio",
    "reduced clock": "o_freq_ratio",
    "not explained": "o_rest_ratio",
}
"""Ratios of `breakdown` in the order of their product."""
_NAMES = {"peak": "at the highest clock", "achievable": "at the achievable clock"}


def ideal_times(result: Result) -> Chart:
    """Steps as measured and at each ceiling of the clock with its 95 % interval, of `dvfs`."""
    columns = ["measured_ns", "ideal_ns", "ideal_low_ns", "ideal_high_ns"]
    frame, unit = in_unit(frame_of(result), columns)
    if frame.empty:
        return None
    measured = frame[frame["ceiling"] == frame["ceiling"].iloc[0]].assign(ceiling="measured")
    measured = measured.assign(ideal_ns=measured["measured_ns"], ideal_low_ns=np.nan)
    table = forms.concatenated([measured, frame.replace({"ceiling": _NAMES})])
    value = f"step ({unit})"
    table = table.rename(columns={"ideal_ns": value, "iteration": "step"})
    text = "Each step as measured, and at the ceilings of the clock with the 95 % interval."
    names = list(dict.fromkeys(table["ceiling"]))
    chart = forms.base(table[["step", "ceiling", value, "ideal_low_ns", "ideal_high_ns"]], text)
    x = alt.X("step:O", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    offset = alt.XOffset("ceiling:N", sort=names)
    tips = [forms.tip(c) for c in ("step", "ceiling", value, "ideal_low_ns", "ideal_high_ns")]
    bars = chart.mark_bar().encode(
        x=x, xOffset=offset, y=f"{value}:Q", color=forms.colour("ceiling", names), tooltip=tips
    )
    rules = chart.mark_rule(color=style.GREY, strokeWidth=2).encode(
        x=x, xOffset=offset, y=alt.Y("ideal_low_ns:Q", title=value), y2="ideal_high_ns:Q"
    )
    return (bars + rules).properties(width="container", height=forms.HEIGHT, description=text)


def clock_loss(result: Result) -> Chart:
    """Time that reduced clocks cost by operation, of `dvfs` by operation,phase."""
    frame = frame_of(result)
    frame = frame[(frame["ceiling"] == "peak") & (frame["loss_ns"] > 0)]
    text = "GPU time that would be saved at the highest clock, by operation, summed over ranks."
    frame, text = forms.longest(named(frame, ["operation", "phase"]), "loss_ns", text)
    frame, unit = in_unit(frame.drop(columns="operation"), ["loss_ns"])
    frame = frame.rename(columns={"name": "operation"})
    return forms.stacked_bars(
        frame, "operation", {"reduced clock": "loss_ns"}, f"loss ({unit})", text
    )


def operation_breakdown(result: Result) -> Chart:
    """Chopper's breakdown: ideal time of operations and what each ratio adds, of `breakdown`."""
    frame = frame_of(result).dropna(subset=["t_thr_ns", *_FACTORS.values()])
    if frame.empty:
        return None
    text = (
        "Time of operations: of their FLOPs at the peak rate, and what each ratio adds in the order "
        "of the legend; a ratio below 1 takes off, to the left of 0."
    )
    frame, text = forms.longest(named(frame, ["operation", "phase"]), "known_ns", text)
    product = frame[["t_thr_ns", *_FACTORS.values()]].cumprod(axis=1)
    parts = {"at the peak rate": frame["t_thr_ns"]} | {
        label: product[column] - product[before]
        for label, (before, column) in zip(_FACTORS, pairwise(product.columns), strict=True)
    }
    table, unit = in_unit(frame[["name"]].assign(**parts), parts)
    table = table.rename(columns={"name": "operation"})
    labels = {label: label for label in parts}
    return forms.stacked_bars(table, "operation", labels, f"GPU time ({unit})", text)


def clock_and_duration(trace: Trace) -> Chart:
    """Durations of kernels against the clock they ran at, of a trace with telemetry."""
    if not trace.has("gfxclk_mhz"):
        return None
    columns = ["name", "dur", "gfxclk_mhz", "rank", "flops", "mem_bytes"]
    frame = gpu_work(trace, columns, [Kind.KERNEL]).dropna(subset=["gfxclk_mhz"])
    totals = frame.groupby("name", observed=True)["dur"].transform("sum")
    largest_totals = sorted(totals.unique())[-forms.FEW :]
    frame = frame[totals.isin(largest_totals)]
    same = frame.groupby(["name", "flops", "mem_bytes"], observed=True, dropna=False)["dur"]
    usual = same.transform("median")
    value = forms.BY_MEDIAN
    frame = frame.assign(**{value: frame["dur"] / usual, "core clock (MHz)": frame["gfxclk_mhz"]})
    frame = frame.assign(kernel=labels(frame["name"]))
    text = (
        f"Duration of the {forms.FEW} kernels with most time against the core clock meanwhile, by the "
        "median of the same work."
    )
    return forms.points(
        frame[["kernel", "rank", "core clock (MHz)", value]], ("core clock (MHz)", value), "kernel",
        text, tips=("rank",),
    )  # fmt: skip
