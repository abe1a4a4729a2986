"""Charts of the critical path, and of what would shorten it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.plots import forms
from chopper_interop.plots.library import alt
from chopper_interop.plots.tables import frame_of, gpu_work, in_unit, labels, summed
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.plots.forms import Chart


def path_classes(result: Result) -> Chart:
    """Time on the critical path by class, of `critical_path` by class."""
    frame, unit = in_unit(frame_of(result), ["dur_ns"])
    frame = frame.assign(where="path").pivot_table(
        index="where", columns="class", values="dur_ns", aggfunc="sum", sort=False
    )
    order = frame.sum().sort_values(ascending=False).index
    text = "What the critical path of all steps consists of: shortening anything else does not shorten the job."
    parts = {c: c for c in order}
    chart = forms.stacked_bars(
        frame.reset_index(), "where", parts, f"time on the path ({unit})", text
    )
    row = alt.Y("where:O", axis=None)
    return chart.encode(y=row).properties(height=40) if chart else None


def path_operations(result: Result) -> Chart:
    """Operations with most time on the critical path, of `critical_path` by class,operation."""
    if not result.rows.num_rows:
        return None
    frame = frame_of(result)
    frame = frame.assign(operation=labels(frame["operation"]))
    totals = frame.groupby("operation", sort=False)["dur_ns"].sum().reset_index()
    longest, text = forms.longest(
        totals, "dur_ns", "Time on the critical path of all steps by operation."
    )
    ordered = longest[["operation"]].merge(frame, "left", on="operation")
    return _path_bars(ordered, "operation", "operation", text)


def path_layers(result: Result) -> Chart:
    """Time on the critical path by layer, of `critical_path` by layer,class."""
    if not result.rows.num_rows:
        return None
    frame = frame_of(result).dropna(subset=["layer"])
    return _path_bars(
        frame, "layer", "layer", "Time on the critical path of all steps by layer of the model."
    )


def _path_bars(frame: pd.DataFrame, key: str, title: str, text: str) -> Chart:
    if frame.empty:
        return None
    rows, unit = in_unit(frame, ["dur_ns"])
    wide = rows.pivot_table(index=key, columns="class", values="dur_ns", aggfunc="sum", sort=False)
    parts = {c: c for c in wide.columns}
    wide = wide.reset_index().rename(columns={key: title})
    return forms.stacked_bars(wide, title, parts, f"time on the path ({unit})", text)


def slack_by_layer(trace: Trace) -> Chart:
    """Slack of GPU work by layer, of a trace annotated by `critical_path`: 0 is critical."""
    if not trace.has("slack_ns") or not trace.has("layer"):
        return None
    frame = gpu_work(trace, ["layer", "slack_ns"]).dropna()
    if frame.empty:
        return None
    shares = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}
    grouped = frame.groupby(frame["layer"].astype(int))["slack_ns"]
    table = grouped.quantile(list(shares.values())).unstack()  # noqa: PD010 # of an index
    table.columns = [f"{name} slack" for name in shares]
    table, unit = in_unit(table.reset_index(), list(table.columns))
    text = (
        "How much later GPU work of each layer could end without delaying the job; 0 is critical."
    )
    return forms.spreads(table, "layer", "{} slack", f"slack ({unit})", text, logarithmic=False)


def change_gains(result: Result) -> Chart:
    """Time that changes would save, of `what_if`."""
    frame = summed(result, "change")
    frame = frame[frame["change"] != "as measured"].dropna(subset=["gain_ns"])
    before, unit = in_unit(frame, ["before_ns"])
    whole = f"{before['before_ns'].max():.4g} {unit}"
    frame, unit = in_unit(frame, ["gain_ns"])
    frame = frame.sort_values("gain_ns", ascending=False)
    text = (
        f"Time that the job would save of its {whole} after one change, by re-timing of all ranks."
    )
    parts = {"saved": "gain_ns"}
    return forms.stacked_bars(frame, "change", parts, f"saved ({unit})", text)
