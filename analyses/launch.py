"""What it takes to get work onto a GPU: host late, launch, queue, and where that bounds the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import gaps, launch_split, windows
from chopper_interop.columns import arrow, distributions, gather, intervals
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.activity.grouping import Groups
    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Columns = dict[str, Array]

__all__ = ["launch"]

_WORK = {
    "kernels": (Kind.KERNEL,),
    "compute": (Kind.KERNEL, Kind.MEMSET),
    "kernels,comm": (Kind.KERNEL, Kind.COMM),
    "all": (Kind.KERNEL, Kind.MEMSET, Kind.COMM, Kind.MEMCPY),
}
_SAID = {
    "kernels": "kernels that compute; not communication, copies nor fills",
    "compute": "kernels that compute and fills; not communication nor copies",
    "kernels,comm": "kernels that compute or communicate; not copies nor fills",
    "all": "all GPU work: kernels, communication, copies and fills",
}
_COMPAT = ("", "chopper")


def launch(  # noqa: PLR0913 # each choice is an option
    trace: Trace,
    *,
    by: str = "rank",
    steps: str = "",
    ranks: str = "",
    work: str = "kernels",
    top: int = 5,
    compat: str = "",
) -> Result:
    """Split of the gap before each kernel into host-late and launch, and what queues on each GPU.

    With `before` the end of all kernels of the same GPU and training step that started earlier, and
    `called` the start of the call that launched the kernel::

        launch = max(0, start - before)
        prep   = max(0, called - before)            # the host asked too late
        call   = min(start - called, launch)        # from the call, or the gap's begin, to the start

    so that prep + call = launch wherever launch > 0. The first kernel of a step on its GPU has
    prep = launch = 0 and call = start - called. Of the kernels that one call launches, as a graph,
    all but the first were asked for already: the gap before them is call, and they are no launches.

    Parameters
    ----------
    trace
        Any trace.
    by
        Granularity of the rows, names of `grouping.GRAINS` separated by commas.
    steps
        All of the trace; "each" training step, or "3,5-7", by itself. A kernel counts in the step
        in whose time it starts.
    ranks
        Ranks by numbers and ranges, "0,4-7"; all if empty.
    work
        What counts as a kernel: "kernels", "compute" (and fills), "kernels,comm", "all" GPU work.
    top
        How many launch-bound regions the summary lists, the longest first.
    compat
        "chopper": `before` is the end of the kernel that started last before, as Chopper has it.

    Returns
    -------
    Result
        One row a group: `kernels`; `unlinked`, those without a recorded launch, which count in
        nothing but `unlinked_gap_ns`, the gaps before them; `calls` that launched the others, each with the first of
        its kernels; sums
        `prep_ns`, `call_ns`, `launch_ns` and medians of these over kernels; `calls_per_s`, by the
        time from the first start to the last end of these kernels, summed over ranks. The summary
        has the sums, what all GPU work queued (`queues`: a row for each GPU and window) and
        launch-bound regions (`regions`): maximal runs of kernels on a GPU each of which was asked
        for when nothing was left to do on it; `idle_ns` of a region is the time before its kernels
        in which the GPU did nothing.

        Annotations `prep_ns`, `call_ns`, `launch_ns`, null where no launch is recorded, and
        `queue_depth`: work that was asked for and had not ended on that GPU when this was asked for.
        Work of which the call is not known is taken to be asked for as it starts.

    Notes
    -----
    The split is that of Chopper (arXiv 2512.08242, v0.10 `common/trace_metrics.py`) with the running
    maximum of ends in place of the previous kernel's, which gives gaps that are none where kernels of
    several streams overlap.
    """
    gaps.chosen("work", work, _WORK)
    gaps.chosen_compat(compat, _COMPAT)
    found = windows.of_ranks(trace, steps, ranks)
    rows = gaps.work_rows(trace, _WORK[work])
    split, contradicted = launch_split.of(trace, rows, compat)
    every = rows if work == "all" else gaps.work_rows(trace)
    depth = _depths(trace, every)
    place, window = gaps.in_windows(trace, rows, found)
    further = {"iteration": _iterations(found)[window]} if steps else {}
    groups = gaps.groups(trace, rows[place], by, further)
    chosen = {name: values[place] for name, values in split.items()}
    leads = gaps.is_first_of_call(trace, rows)[place]
    columns = _columns(trace, groups, rows[place], chosen, leads)
    table = pa.table({n: groups.keys[n] for n in groups.keys.column_names} | columns)
    queues = _queues(trace, every, found)
    bound = _regions(trace, every, depth, rows[_used(place, len(rows))])
    summary = _summary(columns, queues, bound, top)
    summary["contradicted"] = int(np.count_nonzero(contradicted[place]))
    known = _annotations(trace, rows, split, every, depth)
    notes = _notes(trace, steps, summary)
    return Result("launch", table, summary, _conventions(work, compat), known, notes)


def _depths(trace: Trace, rows: Array) -> Array:
    """Work asked for and not ended on its GPU when each piece of all work was asked for."""
    ask, end = _lives(trace, rows)
    depth = np.zeros(len(rows), np.int64)
    for mine in _each_gpu(trace, rows):
        lives = mine[end[mine] > ask[mine]]
        asks, ends = np.sort(ask[lives], kind="stable"), np.sort(end[lives], kind="stable")
        at = ask[mine]
        depth[mine] = np.searchsorted(asks, at, "left") - np.searchsorted(ends, at, "right")
    return depth


def _lives(trace: Trace, rows: Array) -> tuple[Array, Array]:
    """When each piece of work was asked for and when it ended."""
    start = trace.array("ts")[rows]
    called = gaps.asked(trace, rows)
    ask = np.where(called == gaps.NEVER, start, np.minimum(called, start))
    return ask, start + trace.array("dur")[rows]


def _each_gpu(trace: Trace, rows: Array) -> list[Array]:
    code, n = gaps.gpus(trace, rows)
    order = np.argsort(code, kind="stable")
    parts = np.split(order, np.searchsorted(code[order], np.arange(1, n)))
    return [part for part in parts if part.size]


def _used(place: Array, n: int) -> Array:
    used = np.zeros(n, bool)
    used[place] = True
    return used


def _queues(trace: Trace, rows: Array, found: list[Window]) -> list[dict[str, Any]]:
    """What was queued over time on each GPU, in each window."""
    ask, end = _lives(trace, rows)
    rank, device = trace.array("rank")[rows], gaps.devices(trace, rows)
    told = []
    for mine in _each_gpu(trace, rows):
        mine = mine[np.argsort(ask[mine], kind="stable")]  # noqa: PLW2901
        lives = ask[mine], end[mine], np.maximum.accumulate(end[mine])
        for window in found:
            if window.rank == rank[mine[0]]:
                row = {"rank": window.rank, "device": int(device[mine[0]])}
                row |= {} if window.iteration < 0 else {"iteration": window.iteration}
                told.append(row | _queue(*lives, window))
    return sorted(told, key=lambda row: (row["rank"], row["device"]))


def _queue(ask: Array, end: Array, reach: Array, window: Window) -> dict[str, Any]:
    """What was queued in a window, of work in order of when it was asked for.

    `reach` is the running maximum of ends.
    """
    here = slice(
        np.searchsorted(reach, window.start_ns, "right"), np.searchsorted(ask, window.end_ns)
    )
    ask, end = np.maximum(ask[here], window.start_ns), np.minimum(end[here], window.end_ns)
    some = end > ask
    ask, end = ask[some], np.sort(end[some], kind="stable")
    depth = np.arange(1, len(ask) + 1) - np.searchsorted(end, ask, "right")
    empty = window.span_ns - intervals.length(intervals.union(ask, end))
    return {
        "span_ns": window.span_ns,
        "queued_ns": int((end - ask).sum()),
        "mean_queued_per_gpu": _share(int((end - ask).sum()), window.span_ns),
        "max_queued": int(depth.max(initial=0)),
        "empty_ns": empty,
        "empty_share": _share(empty, window.span_ns),
    }


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _regions(trace: Trace, every: Array, depth: Array, rows: Array) -> Columns:
    """Runs of kernels on a GPU each of which was asked for when nothing was left to do there."""
    start = trace.array("ts")[every]
    end = start + trace.array("dur")[every]
    gpu, gpus = gaps.gpus(trace, every)
    before = gaps.reach(gpu, gpus, start, end)
    bound = (depth == 0) & gaps.is_first_of_call(trace, every)
    at = np.searchsorted(every, rows)
    at = at[np.argsort(gpu[at], kind="stable")]
    ask, _ = _lives(trace, every[at])
    since = np.where(before[at] == gaps.NEVER, start[at], before[at])
    idle = np.maximum(start[at] - since, 0)
    begin = np.where(before[at] == gaps.NEVER, ask, np.minimum(since, start[at]))
    is_bound, of = bound[at], gpu[at]
    new = is_bound & np.append(True, ~is_bound[:-1] | (of[1:] != of[:-1]))[: len(at)]
    head = np.flatnonzero(new)
    kept = np.flatnonzero(is_bound)
    run = np.cumsum(new)[kept] - 1
    edges = np.searchsorted(run, np.arange(len(head)))
    return {
        "start_ns": begin[head],
        "end_ns": _reduced(np.maximum, end[at][kept], edges),
        "rank": trace.array("rank")[every[at]][head].astype(np.int64),
        "device": gaps.devices(trace, every[at])[head].astype(np.int64),
        "kernels": np.bincount(run, minlength=len(head)),
        "idle_ns": _reduced(np.add, idle[kept], edges),
    }


def _reduced(function: np.ufunc, values: Array, edges: Array) -> Array:
    return function.reduceat(values, edges) if edges.size else np.zeros(0, np.int64)


def _columns(
    trace: Trace, groups: Groups, rows: Array, split: Columns, leads: Array
) -> dict[str, Any]:
    linked = split["called"] != gaps.NEVER
    n = len(groups)
    code = groups.code[linked]
    columns: dict[str, Any] = {
        "kernels": _counts(groups.code, n),
        "unlinked": _counts(groups.code[~linked], n),
        "calls": _counts(groups.code[leads], n),
    }
    names = ("prep_ns", "call_ns", "launch_ns")
    columns |= {name: arrow.array(groups.sums(np.where(linked, split[name], 0))) for name in names}
    for name in names:
        columns[name.replace("_ns", "_median_ns")] = _medians(code, n, split[name][linked])
    gap = groups.sums(np.where(linked, 0, split["gap_ns"]))
    columns["unlinked_gap_ns"] = arrow.array(gap)
    extent = _extents(trace, groups, rows)
    calls = arrow.numbers(columns["calls"])
    rate = calls * 1e9 / np.maximum(extent, 1)
    columns["calls_per_s"] = arrow.array(rate, mask=(extent == 0) | (calls == 0))
    return columns


def _counts(code: Array, n: int) -> Any:
    return arrow.array(np.bincount(code, minlength=n).astype(np.int64))


def _medians(code: Array, n: int, values: Array) -> Any:
    found = distributions.of(code, values, n)
    return arrow.array(found.median, mask=found.count == 0)


def _extents(trace: Trace, groups: Groups, rows: Array) -> Array:
    """From the first start to the last end of each group on each rank, summed over ranks."""
    first, pair = gather.distinct(groups.code, trace.array("rank")[rows])
    start = trace.array("ts")[rows]
    low = np.full(len(first), np.iinfo(np.int64).max)
    high = np.full(len(first), gaps.NEVER)
    np.minimum.at(low, pair, start)
    np.maximum.at(high, pair, start + trace.array("dur")[rows])
    extent = np.zeros(len(groups), np.int64)
    np.add.at(extent, groups.code[first], high - low)
    return extent


def _iterations(found: list[Window]) -> Array:
    return np.array([window.iteration for window in found], np.int64)


def _summary(
    columns: dict[str, Any],
    queues: list[dict[str, Any]],
    bound: Columns,
    top: int,
) -> dict[str, Any]:
    names = ("kernels", "unlinked", "calls", "prep_ns", "call_ns", "launch_ns", "unlinked_gap_ns")
    summary: dict[str, Any] = {name: int(arrow.numbers(columns[name]).sum()) for name in names}
    span = sum(row["span_ns"] for row in queues)
    summary["mean_queued_per_gpu"] = _share(sum(row["queued_ns"] for row in queues), span)
    summary["max_queued"] = max((row["max_queued"] for row in queues), default=0)
    summary["empty_queue_share"] = _share(sum(row["empty_ns"] for row in queues), span)
    summary["launch_bound_regions"] = len(bound["start_ns"])
    summary["launch_bound_kernels"] = int(bound["kernels"].sum())
    summary["launch_bound_ns"] = int((bound["end_ns"] - bound["start_ns"]).sum())
    summary["launch_bound_idle_ns"] = int(bound["idle_ns"].sum())
    longest = np.argsort(bound["start_ns"] - bound["end_ns"], kind="stable")[: max(top, 0)]
    summary["regions"] = [
        {name: int(values[i]) for name, values in bound.items()} for i in longest.tolist()
    ]
    summary["queues"] = queues
    return summary


def _conventions(work: str, compat: str) -> dict[str, str]:
    return {
        "work": _SAID[work],
        "memset": "counts as compute" if work in ("compute", "all") else "left out of gaps; queues",
        "copies": "count" if work == "all" else "left out of gaps; they queue as all GPU work does",
        "links": "kernels without a recorded launch have no split; the gaps before them are "
        "unlinked_gap_ns, and they delimit those of others",
        "before": "the end of the kernel that started last before (Chopper)"
        if compat
        else "the end of all kernels of the same GPU and training step that started before",
        "first": "the first kernel of a GPU's step has no prep and no launch, and all of the time since "
        "its call as call: so sums of prep and call exceed that of launch by these",
        "medians": distributions.PERCENTILES,
        "clocks": "of kernels that started before the call for them, as clocks contradict each other, "
        "the call counts from their start",
    }


def _notes(trace: Trace, steps: str, summary: dict[str, Any]) -> dict[str, str]:
    window = windows.described(steps, "all of the trace").partition(";")[0]
    told = {"window": f"{window}; a kernel counts where it starts"}
    if unlinked := summary["unlinked"]:
        told["links"] = f"{unlinked:,} kernels are without a recorded launch"
    if contradicted := summary["contradicted"]:
        told["clocks"] = f"{contradicted:,} kernels started before the call for them"
    if not summary["kernels"]:
        told["no rows"] = "the trace has no such kernels there"
    elif "iteration" not in trace.nodes.column_names:
        told["steps"] = "no training steps are known: the first kernel of a GPU has no gap"
    return told


def _annotations(
    trace: Trace, rows: Array, split: Columns, every: Array, depth: Array
) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name in ("prep_ns", "call_ns", "launch_ns"):
        full = np.full(trace.nodes.num_rows, -1, np.int64)
        full[rows] = split[name]
        told[name] = arrow.array(full, mask=full < 0)
    linked = trace.launch[every] >= 0
    full = np.full(trace.nodes.num_rows, -1, np.int32)
    full[every[linked]] = depth[linked]
    return told | {"queue_depth": arrow.array(full, mask=full < 0)}
