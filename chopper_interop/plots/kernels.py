"""Charts of kernels: rooflines, spreads of durations, and a GPU over the time of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.gpus import ratings
from chopper_interop.plots import forms, style
from chopper_interop.plots.library import alt
from chopper_interop.plots.tables import frame_of, gpu_work, in_unit, named, numbered
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.plots.forms import Chart

_MIN_SHARE = 0.001
"""Share of the time of all drawn kernels from which on one is drawn. Chosen: shorter ones stretch the axes, by rates of nearly 0."""
_AXES = "arithmetic intensity (FLOP/B)", "rate (TFLOP/s)"
_TYPES = ("bf16", "f32")
"""Types of elements whose peaks are drawn as roofs."""


def roofline(result: Result, trace: Trace | None = None) -> Chart:
    """Rate of kernels against their arithmetic intensity, of `kernels` by class,kernel.

    Parameters
    ----------
    result
        The result.
    trace
        The trace, for the roofs: peak rates of its first GPU. There are none without it.
    """
    frame = forms.concatenated([_points(frame_of(result), *way) for way in _WAYS])
    if frame.empty:
        return None
    time = frame["GPU time (ms)"]
    frame, text = forms.longest(frame[time >= _MIN_SHARE * time.sum()], "GPU time (ms)", _RATES)
    roofs = None if trace is None else _roofs(trace, frame)
    text += _NO_ROOFS if roofs is None else ""
    tips = ("kernel", "GPU time (ms)")
    chart = forms.points(frame, _AXES, "by", text, logarithmic=_AXES, tips=tips)
    if roofs is None:
        return chart
    line = forms.base(roofs, text).mark_line(color=style.GREY, strokeDash=[4, 3])
    drawn = line.encode(
        x=f"{_AXES[0]}:Q", y=f"{_AXES[1]}:Q", detail="roof:N", tooltip=[forms.tip("roof")]
    )
    ends = forms.base(roofs.groupby("roof", sort=False).tail(1), text)
    named_roofs = ends.mark_text(align="right", dy=-7, color=style.GREY).encode(
        x=f"{_AXES[0]}:Q", y=f"{_AXES[1]}:Q", text="label:N"
    )
    return (drawn + named_roofs + chart).properties(
        width="container", height=forms.HEIGHT, description=text
    )


_RATES = "Rates of kernels, by shapes and by counters, below the roofs of memory and matrix cores."
_NO_ROOFS = " The roofs are not known, as no source names a GPU of known rates."
_WAYS = (
    ("shapes", "intensity_flop_per_byte", "tflop_per_s"),
    ("counters", "intensity_flop_per_byte_counted", "tflop_per_s_counted"),
)


def _points(frame: pd.DataFrame, by: str, intensity: str, rate: str) -> pd.DataFrame:
    frame = frame.dropna(subset=[intensity, rate])
    frame = named(frame[(frame[intensity] > 0) & (frame[rate] > 0)], ["kernel"])
    return frame[["name"]].assign(**{
        "kernel": frame["name"], "by": by, _AXES[0]: frame[intensity], _AXES[1]: frame[rate],
        "GPU time (ms)": frame["total_ns"] / 1e6,
    })  # fmt: skip


def _roofs(trace: Trace, points: pd.DataFrame) -> pd.DataFrame | None:
    import pandas as pd

    rated = next(iter(ratings.rate_gpus(trace).values()), None)
    if rated is None or rated.bandwidth_gbs is None:
        return None
    peaks = {t: rated.peak_flop_per_s(t) for t in _TYPES}
    span = np.geomspace(points[_AXES[0]].min() / 2, points[_AXES[0]].max() * 2, 60)
    parts = [
        pd.DataFrame({
            _AXES[0]: span,
            _AXES[1]: np.minimum(span * rated.bandwidth_gbs / 1e3, peak / 1e12),
            "label": f"{kind} {peak / 1e12:,.0f} TFLOP/s",
            "roof": f"{kind}: {peak / 1e12:,.0f} TFLOP/s, {rated.bandwidth_gbs:,.0f} GB/s",
        })
        for kind, peak in peaks.items()
        if peak
    ]  # fmt: skip
    return pd.concat(parts) if parts else None


def kernel_durations(result: Result) -> Chart:
    """Spread of durations by operation and phase, of `kernels` by phase,operation,category."""
    columns = [f"{q}_ns" for q in ("p5", "p25", "median", "p75", "p95")]
    text = "Durations of kernels by operation and phase."
    frame, text = forms.longest(frame_of(result), "total_ns", text)
    parts = frame[["operation", "phase", "category"]].astype("string").fillna("(none)")
    is_shared = parts.duplicated(["operation", "phase"], keep=False)  # else the colour says it
    texts = zip(*(parts[name] for name in parts), is_shared, strict=True)
    names = style.joined_names([row if shared else row[:2] for *row, shared in texts])
    frame, unit = in_unit(frame.assign(operation=numbered(names)), columns)
    return forms.spreads(
        frame, "operation", "{}_ns", f"duration ({unit})", text, colour_by="category"
    )


def device_timeline(trace: Trace) -> Chart:
    """Use of the matrix cores and bandwidth of the first rank's kernels over time."""
    columns = ["rank", "name", "ts", "dur", "mfma_util", "mem_bytes", "mem_bytes_counted"]
    frame = gpu_work(trace, columns, [Kind.KERNEL])
    frame = frame[(frame["rank"] == frame["rank"].min()) & frame["mfma_util"].notna()]
    if frame.empty:
        return None
    frame = frame.assign(**{
        "time (ms)": frame["ts"] / 1e6, "matrix cores busy (%)": frame["mfma_util"],
        "duration (µs)": frame["dur"] / 1e3, "kernel": [style.shorten(str(n)) for n in frame["name"]],
        "rate of memory (GB/s)": frame["mem_bytes_counted"] / frame["dur"].clip(lower=1),
    })  # fmt: skip
    sample, text = forms.sampled(frame, "Use of the matrix cores by kernels of the first rank.")
    kept = [*sample.columns[-5:]]
    chart = forms.base(sample[kept], text).mark_point(filled=True, size=30, opacity=0.7)
    return chart.encode(
        x=alt.X("time (ms):Q", scale=alt.Scale(zero=False, nice=False)),
        y="matrix cores busy (%):Q",
        color=alt.Color("rate of memory (GB/s):Q", scale=alt.Scale(range=style.RAMP)),
        tooltip=[forms.tip(c) for c in kept],
    )
