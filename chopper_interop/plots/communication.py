"""Charts of communication: overlap, durations, bandwidth, and who is late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.plots import forms
from chopper_interop.plots.tables import frame_of, gpu_work, in_unit, named, summed
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.plots.forms import Chart

_OVERLAP = "overlap (%)"
# Share of an operation that counts as under communication, and variants that can be compared.
_HALF = 0.5
_BOTH = 2
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_ROWS = 240
"""Rows of collectives and ranks that fit a page."""


def hidden_by_kind(result: Result) -> Chart:
    """Exposed and hidden time of each kind of collective, of `overlap` by collective."""
    frame = summed(result, "collective").dropna(subset=["collective"])
    frame = frame.assign(hidden=frame["comm_ns"] - frame["exposed_comm_ns"])
    frame, unit = in_unit(frame, ["hidden", "exposed_comm_ns"])
    frame = frame.sort_values("comm_ns", ascending=False)
    parts = {"exposed": "exposed_comm_ns", "hidden": "hidden"}
    text = "Communication behind compute (hidden) and without (exposed), summed over ranks."
    return forms.stacked_bars(frame, "collective", parts, f"time ({unit})", text)


def overlap_of_each(result: Result) -> Chart:
    """Overlap of each collective over the run, of `overlap` by instance."""
    frame = frame_of(result)
    frame = frame.assign(**{
        "time (ms)": frame["start_ns"] / 1e6,
        _OVERLAP: 100 * frame["comm_overlap_share"],
        "duration (ms)": frame["comm_ns"] / frame["members"] / 1e6,
    })  # fmt: skip
    text = "Share of each collective during which its ranks compute, by when it starts."
    return forms.points(
        frame, ("time (ms)", _OVERLAP), "collective", text,
        tips=("instance", "iteration", "duration (ms)"),
    )  # fmt: skip


def overlap_and_duration(result: Result) -> Chart:
    """Duration of operations against how far they overlap, of `overlap` by operation_instance."""
    frame = frame_of(result)
    if not frame["overlap_share"].any():  # nothing communicates
        return None
    same = ["operation", "phase", "kernels"]
    usual = frame.groupby(same, dropna=False)["elapsed_ns"].transform("median")
    frame = frame.assign(**{
        _OVERLAP: 100 * frame["overlap_share"],
        forms.BY_MEDIAN: frame["elapsed_ns"] / usual.where(usual > 0),
    })  # fmt: skip
    longest_operations = (
        frame.groupby("operation", sort=False)["elapsed_ns"].sum().nlargest(forms.FEW).index
    )
    text = (
        f"Do operations take longer while something communicates? The {forms.FEW} with most time."
    )
    return forms.points(
        frame[frame["operation"].isin(longest_operations)], (_OVERLAP, forms.BY_MEDIAN),
        "operation", text, tips=("rank",),
    )  # fmt: skip


def overlap_by_rank(result: Result) -> Chart:
    """Distribution of the overlap of operations on each rank, of `overlap` by operation_instance."""
    frame = frame_of(result)
    if not frame["overlap_share"].any():
        return None
    frame = frame.assign(**{_OVERLAP: 100 * frame["overlap_share"]})
    frame = frame.assign(rank=[f"rank {rank}" for rank in frame["rank"]])
    text = "How far operations overlap communication on each rank: equal curves are equal ranks."
    return forms.distribution(frame[[_OVERLAP, "rank"]], _OVERLAP, "rank", text)


def solo_and_overlapped(trace: Trace) -> Chart:
    """Durations of kernels alone and under communication, of a trace annotated by `overlap`."""
    if not trace.has("overlap_share"):
        return None
    frame = gpu_work(trace, ["name", "dur", "overlap_share"], [Kind.KERNEL]).dropna()
    usual = frame.groupby("name", observed=True)["dur"].transform("median")
    value = forms.BY_MEDIAN
    where = (frame["overlap_share"] >= _HALF).map({True: "under communication", False: "alone"})
    table = frame.assign(**{value: frame["dur"] / usual, "kernels": where})[frame["dur"] > 0]
    if table["kernels"].nunique() < _BOTH:
        return None
    text = (
        "Durations of kernels by the median of their name, alone and while something communicates."
    )
    return forms.distribution(table[[value, "kernels"]], value, "kernels", text, logarithmic=True)


def collective_durations(result: Result) -> Chart:
    """Spread of the durations of collectives by kind and rank, of `kernels` by collective,rank."""
    frame = frame_of(result).dropna(subset=["collective"])
    if frame.empty:
        return None
    text = (
        "Durations of collectives on each rank: a rank that waits less is one that others wait for."
    )
    frame, text = forms.longest(frame, "total_ns", text, _ROWS)
    frame = frame.sort_values(["collective", "rank"])
    frame = named(frame.assign(of=[f"rank {rank}" for rank in frame["rank"]]), ["collective", "of"])
    columns = [f"{q}_ns" for q in ("p5", "p25", "median", "p75", "p95")]
    frame, unit = in_unit(frame, columns)
    return forms.spreads(frame, "name", "{}_ns", f"duration ({unit})", text, colour_by="collective")


def collective_waits(result: Result) -> Chart:
    """Waiting and transfer by kind of collective and size, of `collectives`."""
    frame = summed(result, "collective", "bytes")
    frame = frame.assign(transfer=frame["duration_ns"] - frame["wait_ns"])
    text = "Time of members: waiting for the last one to start, and transfer from then on."
    frame = frame.assign(size=[_size(size) for size in frame["bytes"]])
    frame, text = forms.longest(named(frame, ["collective", "size"]), "duration_ns", text)
    frame, unit = in_unit(frame, ["transfer", "wait_ns"])
    frame = frame.rename(columns={"name": "collective and size"})
    parts = {"waiting": "wait_ns", "transfer": "transfer"}
    return forms.stacked_bars(frame, "collective and size", parts, f"time ({unit})", text)


def collective_bandwidth(result: Result) -> Chart:
    """Bus bandwidth of collectives against their size, of `collectives` by instance."""
    frame = frame_of(result)
    axes = "size (bytes)", "bus bandwidth (GB/s)"
    frame = frame.assign(**{axes[0]: frame["size_bytes"], axes[1]: frame["busbw_gbps"]})
    text = "Bus bandwidth, as nccl-tests defines it, of each collective against its size."
    return forms.points(
        frame, axes, "collective", text, logarithmic=axes, tips=("instance", "group", "iteration")
    )


def late_ranks(result: Result) -> Chart:
    """Time that others waited for each rank, of the summary of `collectives`."""
    import pandas as pd

    frame = pd.DataFrame(result.summary.get("by_rank") or [])
    if frame.empty or not frame["caused_wait_ns"].any():
        return None
    frame, unit = in_unit(frame, ["caused_wait_ns"])
    text = "Time that the other ranks waited in collectives for each rank, summed over them."
    parts = {"waiting": "caused_wait_ns"}
    return forms.stacked_bars(frame, "rank", parts, f"caused waiting ({unit})", text)


def link_bytes(result: Result) -> Chart:
    """Bytes over each link by rank, of `traffic`."""
    frame = frame_of(result).dropna(subset=["bytes"])
    if frame.empty:
        return None
    frame = frame.assign(what=frame["link"] + " " + frame["direction"])
    wide = frame.pivot_table(index="rank", columns="what", values="bytes", aggfunc="sum") / 1e9
    parts = {c: c for c in wide.columns}
    text = "Bytes over the links of each rank's GPU, from counters of telemetry."
    return forms.stacked_bars(wide.reset_index(), "rank", parts, "GB", text)


def _size(count: float) -> str:
    """Bytes in a readable unit."""
    factor, unit = next(((f, u) for f, u in _SIZES if count >= f), (1.0, "B"))
    return f"{count / factor:.4g} {unit}" if count == count else "size unknown"  # noqa: PLR0124 # of NaN
