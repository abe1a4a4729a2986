"""Charts of training steps: how long they take and what they consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.plots import forms, style
from chopper_interop.plots.library import alt
from chopper_interop.plots.tables import frame_of, in_unit, summed
from chopper_interop.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.plots.forms import Chart

PARTS = (
    "compute only", "compute and communication", "exposed communication", "copies", "idle",
)  # fmt: skip
"""Parts of the time of a GPU, which add up to its span."""


def step_times(result: Result) -> Chart:
    """Time of each step on each rank, of `temporal` by rank,iteration with steps=each."""
    frame = frame_of(result).dropna(subset=["iteration"])
    factor, unit = style.time_unit(frame["span_ns"])
    value = f"step ({unit})"
    frame = frame.assign(**{value: frame["span_ns"] / factor, "step": frame["iteration"]})
    return forms.heat_map(frame, ("step", "rank"), value, "Time of each training step by rank.")


def step_parts(result: Result) -> Chart:
    """Share of each rank's time that computes, communicates or is idle, of `temporal` by rank."""
    frame = summed(result, "rank")
    busy = frame["compute_ns"] + frame["exposed_comm_ns"]
    parts = (
        frame["compute_ns"] - frame["overlap_ns"], frame["overlap_ns"], frame["exposed_comm_ns"],
        frame["busy_ns"] - busy, frame["idle_ns"],
    )  # fmt: skip
    shares = {
        label: 100 * part / frame["span_ns"] for label, part in zip(PARTS, parts, strict=True)
    }
    text = "What each rank's GPU did, in % of the time; communication is exposed where no compute runs."
    labels = {label: label for label in PARTS}
    chart = forms.stacked_bars(
        frame[["rank"]].assign(**shares), "rank", labels, "% of the time", text
    )
    axis = alt.X("value:Q", title="% of the time", scale=alt.Scale(domain=[0, 100]))
    return chart.encode(x=axis) if chart else None


def step_throughput(result: Result) -> Chart:
    """Throughput of each step, of `efficiency` by iteration: tokens, or samples, per second."""
    frame = frame_of(result)
    if "iteration" not in frame:  # without training steps the job is one row
        return None
    for column, unit in (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s")):
        if frame[column].notna().any():
            frame = frame.assign(step=frame["iteration"], of="job").rename(columns={column: unit})
            text = f"Throughput of each training step, {unit}."
            chart = forms.lines(frame, ("step", unit), "of", text, stepped=False)
            axis = alt.X("step:O", axis=alt.Axis(labelAngle=0, labelOverlap=True))
            return chart.mark_line(point=True).encode(x=axis) if chart else None
    return None


def work_by_phase(result: Result) -> Chart:
    """GPU time of each phase by category of work, of `kernels` by phase,category."""
    frame = frame_of(result).assign(phase=lambda f: f["phase"].fillna("(none)"))
    wide = frame.pivot_table(
        index="phase", columns="category", values="total_ns", aggfunc="sum", sort=False
    )
    text = "GPU time of each phase by category of work, summed over ranks and steps."
    return _by_category(wide.reset_index(), "phase", text)


def work_by_rank(result: Result) -> Chart:
    """GPU time of each rank by category of work, of `kernels` by rank,category."""
    wide = frame_of(result).pivot_table(index="rank", columns="category", values="total_ns")
    return _by_category(
        wide.reset_index(), "rank", "GPU time of each rank by category of work, all steps together."
    )


def _by_category(wide: pd.DataFrame, key: str, text: str) -> Chart:
    columns = wide.columns.drop(key)
    frame, unit = in_unit(wide, columns)
    order = frame[columns].sum().sort_values(ascending=False).index
    return forms.stacked_bars(frame, key, {c: c for c in order}, f"GPU time ({unit})", text)


def pipeline_bubbles(result: Result) -> Chart:
    """Waits of a pipeline's stages by their cause, of `bubbles`."""
    parts = {"compute": "compute_ns", "before the first": "warmup_ns", "between": "steady_ns",
             "after the last": "cooldown_ns"}  # fmt: skip
    frame = frame_of(result)
    if frame.empty:
        return None
    grouped = frame.groupby("rank", sort=True)[list(parts.values())].sum().reset_index()
    grouped, unit = in_unit(grouped, parts.values())
    text = "Computation and bubbles of each rank's pipeline stage, all steps together."
    return forms.stacked_bars(grouped, "rank", parts, f"time ({unit})", text)
