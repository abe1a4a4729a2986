"""Charts of idle GPUs and of the host that feeds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.plots import forms, style
from chopper_interop.plots.library import alt
from chopper_interop.plots.tables import in_unit, named, summed
from chopper_interop.result import Result

if TYPE_CHECKING:
    from chopper_interop.plots.forms import Chart

CAUSES = {
    "host late": "host_late_ns",
    "waits for the GPU": "sync_ns",
    "launch": "launch_ns",
    "between kernels": "kernel_to_kernel_ns",
    "event": "event_ns",
    "another rank": "peer_ns",
    "edge of the recording": "window_ns",
    "not recorded": "unknown_ns",
}
"""Causes of idle time, and their columns of `idle`."""


def idle_causes(result: Result) -> Chart:
    """Idle time of each rank's GPU by cause, of `idle` by rank."""
    frame, unit = in_unit(summed(result, "rank"), CAUSES.values())
    text = "Why each rank's GPU had no work, all steps together."
    return forms.stacked_bars(frame, "rank", CAUSES, f"idle ({unit})", text)


def idle_blame(result: Result) -> Chart:
    """Host operations that made GPUs wait, of the summary of `idle`."""
    import pandas as pd

    frame = pd.DataFrame(result.summary.get("blame") or [])
    if frame.empty:
        return None
    frame, unit = in_unit(named(frame, ["operation"]), ["host_late_ns"])
    frame = frame.rename(columns={"name": "host operation"})
    text = (
        "Host operations that issued work too late, by the idle time of GPUs behind them, "
        "summed over ranks and steps."
    )
    parts = {"host": "host_late_ns"}
    return forms.stacked_bars(frame, "host operation", parts, f"idle ({unit})", text)


def launch_overhead(result: Result) -> Chart:
    """Gaps before kernels by operation, of `launch` by phase,operation: host late, and launch."""
    frame = summed(result, "phase", "operation")
    frame = frame[frame["launch_ns"] > 0]
    text = (
        "Gaps before kernels, summed over ranks and steps: until the host asked for them "
        "(preparation), and from there (call), what they wait for on other streams included."
    )
    frame, text = forms.longest(named(frame, ["operation", "phase"]), "launch_ns", text)
    frame, unit = in_unit(frame, ["prep_ns", "call_ns"])
    parts = {"preparation": "prep_ns", "call": "call_ns"}
    frame = frame.rename(columns={"name": "operation"} | {"operation": "of"})
    return forms.stacked_bars(frame, "operation", parts, f"gaps ({unit})", text)


def empty_queues(result: Result) -> Chart:
    """Work that each GPU's queue holds, of the summary of `launch`."""
    import pandas as pd

    frame = pd.DataFrame(result.summary.get("queues") or [])
    # without launches, work counts as queued when it starts, whatever the host did
    if frame.empty or result.summary["unlinked"] == result.summary["kernels"]:
        return None
    # of each step that counts, and of each GPU of a rank, there is a row
    times = frame.groupby("rank", sort=False)[["empty_ns", "span_ns"]].sum().reset_index()
    frame = times.assign(empty=100 * times["empty_ns"] / times["span_ns"].clip(lower=1))
    text = "Share of the time in which nothing was queued for the GPU: the host is behind."
    chart = forms.stacked_bars(frame, "rank", {"idle": "empty"}, "queue empty (%)", text)
    return chart.encode(color=alt.value(style.GREEN)) if chart else None
