"""Charts of ranks that hold the others up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.analyses.methods.fleet.compared_job import GAIN_COLUMNS
from chopper_interop.plots import forms
from chopper_interop.plots.tables import averaged, frame_of, in_unit, labels
from chopper_interop.result import Result

if TYPE_CHECKING:
    from chopper_interop.plots.forms import Chart


def straggler_map(result: Result) -> Chart:
    """Computation of each rank in each step by the median of ranks, of `temporal` by rank,iteration."""
    frame = frame_of(result).dropna(subset=["iteration"])
    usual = frame.groupby("iteration")["compute_ns"].transform("median")
    value = "compute, from the median (%)"
    frame = frame[usual > 0].assign(**{value: 100 * (frame["compute_ns"] / usual - 1)})
    frame = frame.assign(step=frame["iteration"])
    if frame["rank"].nunique() == 1:
        return None
    text = "Time in which each rank computes in each step, by the median of ranks: red is slower."
    return forms.heat_map(frame, ("step", "rank"), value, text, middle=0.0)


def slow_operations(result: Result) -> Chart:
    """Slow-down of operations on each rank by their counterparts, of `stragglers` by operation."""
    frame = frame_of(result).dropna(subset=["slowdown_factor"])
    time = frame.groupby("operation", sort=False)["time_ns"].sum()
    longest = time.nlargest(forms.MAX_BARS).reset_index()[["operation"]]
    frame = longest.merge(frame, "left", on="operation")
    value = "slow-down (%)"
    frame = frame.assign(**{value: 100 * (frame["slowdown_factor"] - 1)})
    frame = frame.assign(operation=labels(frame["operation"]))
    text = (
        f"Operations of each rank by the same on other ranks; the {forms.MAX_BARS} with most time."
    )
    return forms.heat_map(frame, ("rank", "operation"), value, text, middle=0.0)


def straggler_gains(result: Result) -> Chart:
    """Gain of the job if what is slow of a rank was as that of others, of `stragglers` by rank."""
    frame = frame_of(result)
    if frame.empty:
        return None
    frame = frame[frame["cause"].notna()]
    if frame.empty and result.summary["slow_ranks"]:
        return f"Ranks {result.summary['slow_ranks']} hold up the others together, and none of them alone."
    if frame.empty:
        return "No rank holds up the others by more than could be noise."
    parts = {"GPU": "gpu", "host": "host", "delays": "delays"}
    for cause, column in GAIN_COLUMNS.items():
        frame = frame.assign(**{cause: frame[column].where(frame["cause"] == cause)})
    frame, unit = in_unit(frame, parts.values())
    text = (
        "Time that the job would gain, all steps together, if what is slow of a rank was as that of others: its "
        "GPU, host or delays. Ranks that are slow by chance are left out."
    )
    return forms.stacked_bars(frame, "rank", parts, f"gain ({unit})", text)


def rank_leads(result: Result) -> Chart:
    """Time by which each rank is ahead of the last one, of `imbalance` by rank."""
    frame = averaged(result, "rank").dropna(subset=["lead_median_ns"])
    frame, unit = in_unit(frame, ["lead_median_ns"])
    text = (
        "Median lead of each rank's kernels over the last rank's: who is late most of the time leads least, "
        "who is late now and then does not."
    )
    return forms.stacked_bars(frame, "rank", {"lead": "lead_median_ns"}, f"lead ({unit})", text)
