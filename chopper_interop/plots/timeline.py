"""One step of all ranks: what each GPU ran and where the critical path was, as rectangles of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.activity import grouping, windows
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.plots import forms, style
from chopper_interop.plots.library import alt
from chopper_interop.plots.tables import frame_of
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.plots.forms import Chart

MAX_SLICES = 40_000
"""Rectangles that a browser draws at each movement, in some milliseconds."""
_FIGURE_SLICES = 4_000
"""Rectangles of a printed figure: it shows no more."""
PATH, GPUS = "critical path", "GPUs"
"""Parts of a timeline, each with colours of its own: classes of the path, and categories of GPU work."""
_COMPUTE, _COMM = "compute", "communication"
_COLUMNS = ("row", "start_ns", "dur_ns", "category", "name", "critical")


@dataclass(frozen=True, eq=False)
class Timeline:
    """Work that ran in one step.

    Parameters
    ----------
    title
        The step, or all of the trace where it has none.
    start_ns, end_ns
        Its time, since the trace's origin.
    rows
        Names of its rows from top to bottom: the critical path, and two of each rank.
    slices
        What ran, ordered by row and start: `row` (an index of `rows`), `start_ns` (since the step's
        start), `dur_ns`, `category`, `name`, `critical` (whether any of it is on the critical path).
    merged
        Number of pieces of work that were joined with neighbours, as they are too short to be seen.
    """

    title: str
    start_ns: int
    end_ns: int
    rows: tuple[str, ...]
    slices: pd.DataFrame
    merged: int


def timeline_of(
    trace: Trace, path: Result | None = None, limit: int = MAX_SLICES
) -> Timeline | None:
    """Collect what ran on all ranks in the step of the path, else in the one of median length.

    Parameters
    ----------
    trace
        Any trace; annotated by `critical_path`, work on the path is marked.
    path
        Result of `critical_path` by piece; without it there is no row of the path.
    limit
        Slices to keep; of more, short neighbours of one category are joined.
    """
    import pandas as pd

    window = _window(trace, _step_of(path))
    if window is None:
        return None
    ranks = list(trace.rank_rows)
    names = [f"rank {rank} {what}" for rank in ranks for what in (_COMPUTE, _COMM)]
    parts = [_gpu_slices(trace, window, ranks)]
    if path is not None and path.rows.num_rows:
        parts.append(_path_slices(path, window))
    frame = pd.concat(parts, ignore_index=True).sort_values(["row", "start_ns"], kind="stable")
    kept = _joined(frame, window.span_ns, limit)
    number = window.iteration
    title = f"step {number}" if number != windows.NO_STEP else "all of the trace"
    merged = len(frame) - len(kept)
    return Timeline(title, window.start_ns, window.end_ns, (PATH, *names), kept, merged)


def step_timeline(result: Result, trace: Trace) -> Chart:
    """Draw one step of all ranks and the critical path, of `critical_path` by piece and the trace."""
    shown = timeline_of(trace, result, limit=_FIGURE_SLICES)
    if shown is None or shown.slices.empty:
        return None
    frame = shown.slices
    table = frame[["category", "row"]].assign(
        of=[shown.rows[i] for i in frame["row"]],
        name=[style.shorten(name) for name in frame["name"]],
        start=frame["start_ns"] / 1e6, end=(frame["start_ns"] + frame["dur_ns"]) / 1e6,
    )  # fmt: skip
    text = f"What each GPU ran in {shown.title}, and the critical path of the job."
    if shown.merged:
        text += f" {shown.merged:,} short pieces are joined with their neighbours."
    bars = forms.base(table, text, frame["row"].nunique()).mark_bar().encode(
        x=alt.X("start:Q", title="time in the step (ms)", scale=alt.Scale(nice=False)),
        x2="end:Q", y=forms.rows_axis("of", is_number=False),
        tooltip=[forms.tip(c) for c in ("of", "name", "category", "start", "end")],
    )  # fmt: skip
    parts = {PATH: "datum.row == 0", GPUS: "datum.row > 0"}
    of_path = table["row"] == 0
    layers = [
        bars.transform_filter(parts[title]).encode(
            color=forms.colour("category", list(names), f"{title}:")
        )
        for title, names in table.groupby(np.where(of_path, PATH, GPUS))["category"]
    ]
    return alt.layer(*layers).properties(description=text).resolve_scale(color="independent")


def _step_of(path: Result | None) -> int | None:
    """The first step of a path that has steps."""
    if path is None:
        return None
    known = frame_of(path)["iteration"].dropna()
    return int(known.iloc[0]) if len(known) else None


def _window(trace: Trace, step: int | None) -> windows.Window | None:
    """The step, or that of median length; all GPU work where there are no steps."""
    steps = windows.job_windows(trace, "each") if windows.has_steps(trace) else []
    chosen = [w for w in steps if step is None or w.iteration == step]
    if chosen:
        return sorted(chosen, key=lambda w: w.span_ns)[(len(chosen) - 1) // 2]
    return next(iter(windows.job_windows(trace)), None)


def _gpu_slices(trace: Trace, window: windows.Window, ranks: list[int]) -> pd.DataFrame:
    import pandas as pd

    ts, dur = trace.array("ts"), trace.array("dur")
    inside = (ts < window.end_ns) & (ts + dur > window.start_ns)
    rows = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK) & inside)
    start = np.maximum(ts[rows], window.start_ns)
    end = np.minimum(ts[rows] + dur[rows], window.end_ns)
    place = {rank: 1 + 2 * i for i, rank in enumerate(ranks)}
    is_comm = grouping.work_classes(trace, rows) == 1
    first = np.array([place[rank] for rank in trace.array("rank")[rows].tolist()], np.int64)
    categories = kernel_categories.node_categories(trace, rows)
    label = np.array(kernel_categories.CATEGORIES, object)[categories]
    names = np.array(trace.names(), object)[trace.array("name")[rows]]
    return pd.DataFrame({
        "row": first + is_comm, "start_ns": start - window.start_ns, "dur_ns": end - start,
        "category": label, "name": np.where(is_comm, label + " · " + names, names),
        "critical": _is_critical(trace, rows),
    })  # fmt: skip


def _is_critical(trace: Trace, rows: Array) -> Array:
    if not trace.has("critical_ns"):
        return np.zeros(len(rows), np.bool_)
    return np.nan_to_num(trace.nodes["critical_ns"].to_numpy()[rows]) > 0


def _path_slices(path: Result, window: windows.Window) -> pd.DataFrame:
    frame = frame_of(path)
    end = np.minimum(frame["start_ns"] + frame["dur_ns"], window.end_ns)
    start = np.maximum(frame["start_ns"], window.start_ns)
    ranks = frame["rank"].astype("Int64").astype("string").fillna("?")
    table = frame.assign(
        row=0, start_ns=start - window.start_ns, dur_ns=end - start, category=frame["class"],
        name="rank " + ranks + ": " + frame["name"].astype("string").fillna(""), critical=True,
    )  # fmt: skip
    return table.loc[table["dur_ns"] > 0, list(_COLUMNS)]


def _joined(frame: pd.DataFrame, span_ns: int, limit: int) -> pd.DataFrame:
    """Join short neighbours of one category until there are few enough."""
    shortest = span_ns * max(frame["row"].nunique(), 1) // limit
    while len(frame) > limit and shortest < span_ns:
        frame = _joined_below(frame, shortest)
        shortest *= 2
    return frame


def _joined_below(frame: pd.DataFrame, shortest_ns: int) -> pd.DataFrame:
    """Join neighbours of one row and category that are shorter than this and no further apart."""
    same = (frame["row"] == frame["row"].shift()) & (frame["category"] == frame["category"].shift())
    end = frame["start_ns"] + frame["dur_ns"]
    is_near = frame["start_ns"] - end.shift().fillna(0) < shortest_ns
    is_short = frame["dur_ns"] < shortest_ns
    group = (~(same & is_near & is_short & is_short.shift(fill_value=False))).cumsum()
    grouped = frame.assign(end=end).groupby(group, sort=False)
    table: Any = grouped.agg(
        row=("row", "first"), start_ns=("start_ns", "first"), end=("end", "max"),
        category=("category", "first"), name=("name", "first"), critical=("critical", "any"),
        count=("row", "size"),
    )  # fmt: skip
    several = table["count"] > 1
    table.loc[several, "name"] = table["name"] + " and others"
    return table.assign(dur_ns=table["end"] - table["start_ns"])[list(_COLUMNS)]
