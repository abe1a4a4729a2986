"""Launch overhead of GPU work: late hosts, launches, queues, and launch-bound regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.analyses.methods import distributions, options
from chopper_interop.analyses.methods.activity import gaps, grouping, launch_split, windows
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.arrays import Array, arrow, gather, intervals, spill
from chopper_interop.grouping import by_key
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window

    Columns = dict[str, Array]

__all__ = ["launch"]

_WORK = {
    "kernels": (Kind.KERNEL,),
    "compute": (Kind.KERNEL, Kind.MEMSET),
    "kernels,comm": (Kind.KERNEL, Kind.COMM),
    "all": (Kind.KERNEL, Kind.MEMSET, Kind.COMM, Kind.MEMCPY),
}
_WORK_TEXTS = {
    "kernels": "kernels that compute; not communication, copies nor fills",
    "compute": "kernels that compute and fills; not communication nor copies",
    "kernels,comm": "kernels that compute or communicate; not copies nor fills",
    "all": "all GPU work: kernels, communication, copies and fills",
}
_COMPAT = ("", "chopper")
_SPLIT = ("prep_ns", "call_ns", "launch_ns")


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
    """Split the gap before each kernel into host-late and launch time, and measure each GPU's queue.

    With `before` the end of all kernels of the same GPU and training step that started earlier, and
    `called` the start of the call that launched the kernel::

        launch = max(0, start - before)
        prep   = max(0, called - before)            # the host launched too late
        call   = min(start - called, launch)        # from the call, or the gap's begin, to the start

    so that prep + call = launch wherever launch > 0. The first kernel of a step on its GPU has
    prep = launch = 0 and call = start - called. Where one call launches several kernels, such as a
    graph, all but the first were requested before: the gap before them is call, and they are no launches.

    Parameters
    ----------
    by
        Columns that identify a row: names of `grouping.GRAINS` separated by commas.
    steps
        Training steps, each by itself: "each", "3,5-7"; "" for all of the trace. A kernel counts in
        the step in whose time it starts.
    ranks
        Ranks that count: "0,4-7"; "" for all.
    work
        Work that counts as a kernel: "kernels", "compute" (and fills), "kernels,comm", "all" GPU work.
    top
        Number of launch-bound regions in the summary, the longest first.
    compat
        "chopper": `before` is the end of the previous kernel by start, as Chopper defines it.

    Returns
    -------
    Result
        One row per group: `kernels`; `unlinked`, those without a recorded launch, which count only
        in `unlinked_gap_ns`, the gaps before them; `calls` that launched the others, each counted with
        the first of its kernels; sums `prep_ns`, `call_ns`, `launch_ns` and their medians over kernels;
        `calls_per_s`, calls by the time from the first start to the last end of these kernels, summed
        over ranks. The summary has the sums, the queues of all GPU work (`queues`: a row for each
        GPU and window) and launch-bound regions (`regions`): maximal runs of kernels on a GPU that were
        each requested when the GPU had no work left; `idle_ns` of a region is the time before its
        kernels in which the GPU was idle.

        Annotations `prep_ns`, `call_ns`, `launch_ns`, null where no launch is recorded, and
        `queue_depth`: work that had been requested and had not ended on that GPU when this was
        requested. Work without a known call is taken to be requested as it starts.

    Notes
    -----
    The split is that of Chopper (arXiv 2512.08242, v0.10 `common/trace_metrics.py`) with the running
    maximum of ends in place of the previous kernel's end, which reports gaps that do not exist where
    kernels of several streams overlap.
    """
    options.check_choice("work", work, _WORK)
    options.check_compat(compat, _COMPAT)
    options.check_at_least(0, top=top)
    selected = windows.rank_windows(trace, steps, ranks)
    measured = _LaunchTimes(trace, by, work, compat, stepped=bool(steps), top=top)
    for batch in windows.batches(trace, selected):
        measured.add(*batch)
    columns = measured.columns()
    keys = measured.keys(trace)
    table = pa.table(dict(zip(keys.column_names, keys.columns, strict=True)) | columns)
    summary = _summary(columns, measured)
    annotations = measured.annotations.joined()
    notes = _notes(trace, steps, summary)
    return Result("launch", table, summary, _conventions(work, compat), annotations, notes)


class _LaunchTimes:
    """Figures of the groups of all batches of a trace so far, and annotations of its nodes."""

    def __init__(  # options
        self, trace: Trace, by: str, work: str, compat: str, *, stepped: bool, top: int
    ) -> None:
        self._work, self._compat, self._top = work, compat, top
        self._further: dict[str, None] = {"iteration": None} if stepped else {}
        names = grouping.parse_grains(by)
        self._grains = tuple(name for name in names if name not in self._further)
        self._totals = Totals()
        self._values: list[tuple[Array, ...]] = []
        """Group of each kernel whose launch is known, and its `_SPLIT`."""
        self._regions: list[Columns] = []
        self.region_sums = dict.fromkeys(("regions", "kernels", "ns", "idle_ns"), 0)
        self.queues: list[dict[str, Any]] = []
        self.contradicted = 0
        self.annotations = rank_batches.JoinedColumns(trace)

    def add(self, nodes: slice, part: Trace, all_windows: list[Window]) -> None:
        """Measure a batch."""
        rows = gaps.work_rows(part, _WORK[self._work])
        split, contradicted = launch_split.split_gaps(part, rows, self._compat)
        all_rows = rows if self._work == "all" else gaps.work_rows(part)
        depth = _queue_depths(part, all_rows)
        index, window = windows.starting_in_windows(part, rows, all_windows)
        codes = grouping.codes_of(part, rows[index], self._grains)
        codes += [_iterations(all_windows)[window]] if self._further else []
        code, keys = grouping.keys_of((*self._grains, *self._further), codes, len(index))
        self._add_groups(
            part,
            rows[index],
            (code, self._totals.numbers(keys)),
            {name: values[index] for name, values in split.items()},
            gaps.is_first_of_call(part, rows)[index],
        )
        self.contradicted += int(np.count_nonzero(contradicted[index]))
        self.queues += _queues(part, all_rows, all_windows)
        in_window = np.zeros(len(rows), bool)
        in_window[index] = True
        self._add_regions(_regions(part, all_rows, depth, rows[in_window]))
        self.annotations.add(nodes, _annotations(part, rows, split, all_rows, depth))

    def _add_groups(
        self,
        part: Trace,
        rows: Array,
        groups: tuple[Array, Array],
        split: Columns,
        is_first: Array,
    ) -> None:
        """Add the split of kernels by group: the number of each kernel's in the batch, and those in the whole."""
        code, numbers = groups
        linked = split["called"] != gaps.NO_TIME
        figures = {name: np.where(linked, split[name], 0) for name in _SPLIT}
        figures["kernels"] = np.ones(len(code), np.int64)
        figures["unlinked"] = (~linked).astype(np.int64)
        figures["calls"] = is_first.astype(np.int64)
        figures["unlinked_gap_ns"] = np.where(linked, 0, split["gap_ns"])
        self._totals.add(numbers[code], **figures)
        self._totals.add(numbers, extent=_extents(part, code, len(numbers), rows))
        kept = (numbers[code][linked].astype(np.int32), *(split[name][linked] for name in _SPLIT))
        self._values.append(tuple(map(spill.kept, kept)))

    def _add_regions(self, regions: Columns) -> None:
        """Add sums of regions of a batch, and the longest, of which equal ones are in order of GPUs."""
        length = regions["end_ns"] - regions["start_ns"]
        for name, values in (
            ("regions", np.ones_like(length)),
            ("kernels", regions["kernels"]),
            ("ns", length),
            ("idle_ns", regions["idle_ns"]),
        ):
            self.region_sums[name] += int(values.sum())
        longest = np.argsort(-length, kind="stable")[: self._top]
        self._regions.append({name: values[longest] for name, values in regions.items()})

    def longest_regions(self) -> list[dict[str, int]]:
        """Return the longest regions of all batches."""
        joined = {
            name: gather.joined([regions[name] for regions in self._regions])
            for name in self._regions[0]
        }
        order = np.lexsort((joined.pop("gpu"), joined["start_ns"] - joined["end_ns"]))
        return [
            {name: int(values[i]) for name, values in joined.items()}
            for i in order[: self._top].tolist()
        ]

    def keys(self, trace: Trace) -> pa.Table:
        """Keys of all groups."""
        return self._totals.ordered()[0].table(trace, further=self._further)

    def columns(self) -> dict[str, Any]:
        """Figures of all groups, in the order of their keys."""
        sums, order = self._totals.figures(), self._totals.order()
        names = ("kernels", "unlinked", "calls", *_SPLIT)
        columns: dict[str, Any] = {name: arrow.array(sums[name][order]) for name in names}
        for at, name in enumerate(_SPLIT, 1):
            parts = [(values[0], values[at]) for values in self._values]
            of_groups = distributions.joined_distributions(parts, len(order))
            columns[name.replace("_ns", "_median_ns")] = arrow.array(
                of_groups.median[order], mask=of_groups.count[order] == 0
            )
        columns["unlinked_gap_ns"] = arrow.array(sums["unlinked_gap_ns"][order])
        extent, calls = sums["extent"][order], sums["calls"][order]
        rate = calls * 1e9 / np.maximum(extent, 1)
        columns["calls_per_s"] = arrow.array(rate, mask=(extent == 0) | (calls == 0))
        return columns


def _queue_depths(trace: Trace, rows: Array) -> Array:
    """Number of pieces of work in the queue of its GPU when each piece was requested.

    The depth at a time is the number of requests before it less the number of ends up to it, over
    work that ends after its request.
    """
    request, end = _queue_times(trace, rows)
    depth = np.zeros(len(rows), np.int64)
    for of_gpu in _by_gpu(trace, rows):
        queued = of_gpu[end[of_gpu] > request[of_gpu]]
        requests = np.sort(request[queued], kind="stable")
        ends = np.sort(end[queued], kind="stable")
        at = request[of_gpu]
        requested = np.searchsorted(requests, at, "left")
        depth[of_gpu] = requested - np.searchsorted(ends, at, "right")
    return depth


def _queue_times(trace: Trace, rows: Array) -> tuple[Array, Array]:
    """Time of request and end of each piece of work, between which it counts as queued."""
    start = trace.array("ts")[rows]
    called = gaps.call_times(trace, rows)
    request = np.where(called == gaps.NO_TIME, start, np.minimum(called, start))
    return request, start + trace.array("dur")[rows]


def _by_gpu(trace: Trace, rows: Array) -> list[Array]:
    """Indices into `rows` of the work of each GPU."""
    code, n = gaps.gpu_numbers(trace, rows)
    order = np.argsort(code, kind="stable")
    parts = np.split(order, np.searchsorted(code[order], np.arange(1, n)))
    return [part for part in parts if part.size]


def _queues(trace: Trace, rows: Array, selected: list[Window]) -> list[dict[str, Any]]:
    """Figures of the queue of each GPU in each window, in order of GPUs."""
    request, end = _queue_times(trace, rows)
    rank, device = trace.array("rank")[rows], gaps.device_numbers(trace, rows)
    of_rank, queues = by_key(selected, lambda window: window.rank), []
    for of_gpu in _by_gpu(trace, rows):
        ordered = of_gpu[np.argsort(request[of_gpu], kind="stable")]
        times = request[ordered], end[ordered], np.maximum.accumulate(end[ordered])
        for window in of_rank.get(int(rank[ordered[0]]), ()):
            row = {"rank": window.rank, "device": int(device[ordered[0]])}
            row |= {} if window.iteration < 0 else {"iteration": window.iteration}
            queues.append(row | _queue(*times, window))
    return queues


def _queue(request: Array, end: Array, max_end: Array, window: Window) -> dict[str, Any]:
    """Figures of a queue in a window, of work in order of its requests.

    `max_end` is the running maximum of ends: ascending, so that it can be searched for the first
    work that reaches into the window.
    """
    inside = slice(
        np.searchsorted(max_end, window.start_ns, "right"),
        np.searchsorted(request, window.end_ns),
    )
    request = np.maximum(request[inside], window.start_ns)
    end = np.minimum(end[inside], window.end_ns)
    queued = end > request
    request, end = request[queued], np.sort(end[queued], kind="stable")
    # depth right after each request: requests so far less ends so far
    depth = np.arange(1, len(request) + 1) - np.searchsorted(end, request, "right")
    empty = window.span_ns - intervals.total_length(intervals.union(request, end))
    return {
        "span_ns": window.span_ns,
        "queued_ns": int((end - request).sum()),
        "mean_queued_per_gpu": _share(int((end - request).sum()), window.span_ns),
        "max_queued": int(depth.max(initial=0)),
        "empty_ns": empty,
        "empty_share": _share(empty, window.span_ns),
    }


def _share(part: float, total: float) -> float | None:
    return float(part / total) if total else None


def _regions(trace: Trace, all_rows: Array, depth: Array, rows: Array) -> Columns:
    """Runs of kernels on a GPU that were each requested when it had no work left.

    ::

        GPU       |k1 |     |k2 |   |k3  |k4  |
        requests       k2        k3   k4
        is_bound  k1 and k2 and k3: nothing ran or waited when they were requested; k4 was queued
    """
    start = trace.array("ts")[all_rows]
    end = start + trace.array("dur")[all_rows]
    gpu, gpus = gaps.gpu_numbers(trace, all_rows)
    before = gaps.latest_end_before(gpu, gpus, end)
    launch_bound = (depth == 0) & gaps.is_first_of_call(trace, all_rows)
    # both are ascending; the stable sort puts the kernels of each GPU behind each other, by start
    at = np.searchsorted(all_rows, rows)
    at = at[np.argsort(gpu[at], kind="stable")]
    request, _ = _queue_times(trace, all_rows[at])
    since = np.where(before[at] == gaps.NO_TIME, start[at], before[at])
    idle = np.maximum(start[at] - since, 0)
    begin = np.where(before[at] == gaps.NO_TIME, request, np.minimum(since, start[at]))
    is_bound, of_gpu = launch_bound[at], gpu[at]
    # a region begins at a bound kernel after one that is not, or that is of another GPU
    begins = is_bound & np.append(True, ~is_bound[:-1] | (of_gpu[1:] != of_gpu[:-1]))[: len(at)]
    head = np.flatnonzero(begins)
    bound = np.flatnonzero(is_bound)
    region = np.cumsum(begins)[bound] - 1
    bounds = np.searchsorted(region, np.arange(len(head)))
    return {
        "start_ns": begin[head],
        "end_ns": np.maximum.reduceat(end[at][bound], bounds),
        "rank": trace.array("rank")[all_rows[at]][head].astype(np.int64),
        "device": gaps.device_numbers(trace, all_rows[at])[head].astype(np.int64),
        "gpu": of_gpu[head],
        "kernels": np.bincount(region, minlength=len(head)),
        "idle_ns": np.add.reduceat(idle[bound], bounds),
    }


def _extents(trace: Trace, code: Array, n: int, rows: Array) -> Array:
    """Time from the first start to the last end of each of n groups on each rank, summed over ranks."""
    first, pair = gather.distinct(code, trace.array("rank")[rows])
    start = trace.array("ts")[rows]
    low = np.full(len(first), np.iinfo(np.int64).max)
    high = np.full(len(first), gaps.NO_TIME)
    np.minimum.at(low, pair, start)
    np.maximum.at(high, pair, start + trace.array("dur")[rows])
    return gather.group_sums(code[first], high - low, n)


def _iterations(selected: list[Window]) -> Array:
    return np.array([window.iteration for window in selected], np.int64)


def _summary(columns: dict[str, Any], measured: _LaunchTimes) -> dict[str, Any]:
    names = ("kernels", "unlinked", "calls", *_SPLIT, "unlinked_gap_ns")
    summary: dict[str, Any] = {name: int(arrow.to_numpy(columns[name]).sum()) for name in names}
    queues = sorted(measured.queues, key=lambda row: (row["rank"], row["device"]))
    span = sum(row["span_ns"] for row in queues)
    summary["mean_queued_per_gpu"] = _share(sum(row["queued_ns"] for row in queues), span)
    summary["max_queued"] = max((row["max_queued"] for row in queues), default=0)
    summary["empty_queue_share"] = _share(sum(row["empty_ns"] for row in queues), span)
    summary |= {f"launch_bound_{name}": of for name, of in measured.region_sums.items()}
    summary["regions"] = measured.longest_regions()
    summary["queues"] = queues
    summary["contradicted"] = measured.contradicted
    return summary


def _conventions(work: str, compat: str) -> dict[str, str]:
    return {
        "work": _WORK_TEXTS[work],
        "memset": "counts as compute" if work in ("compute", "all") else "left out of gaps; queues",
        "copies": "count" if work == "all" else "left out of gaps; they queue as all GPU work does",
        "links": "kernels without a recorded launch have no split; the gaps before them are "
        "unlinked_gap_ns, and they still delimit the gaps of others",
        "before": "the end of the previous kernel by start (Chopper)"
        if compat
        else "the end of all kernels of the same GPU and training step that started earlier",
        "first": "the first kernel of a GPU's step has no prep and no launch, and all of the time since "
        "its call is call: the sums of prep and call exceed that of launch by these",
        "medians": distributions.PERCENTILE_DEFINITION,
        "clocks": "a kernel that starts before the call for it, as clocks contradict each other, counts "
        "as called at its start",
    }


def _notes(trace: Trace, steps: str, summary: dict[str, Any]) -> dict[str, str]:
    window = windows.describe(steps, "all of the trace").partition(";")[0]
    notes = {"window": f"{window}; a kernel counts where it starts"}
    if unlinked := summary["unlinked"]:
        notes["links"] = f"{unlinked:,} kernels have no recorded launch"
    if contradicted := summary["contradicted"]:
        notes["clocks"] = f"{contradicted:,} kernels started before the call for them"
    if not summary["kernels"]:
        notes["no rows"] = "no such kernels in the selected steps and ranks"
    elif not trace.has("iteration"):
        notes["steps"] = "no training steps are known: the first kernel of a GPU has no gap"
    return notes


def _annotations(
    trace: Trace, rows: Array, split: Columns, all_rows: Array, depth: Array
) -> dict[str, Any]:
    annotations: dict[str, Any] = {}
    for name in _SPLIT:
        values = np.full(trace.nodes.num_rows, -1, np.int64)
        values[rows] = split[name]
        annotations[name] = arrow.negative_to_null(values)
    linked = trace.launch[all_rows] >= 0
    values = np.full(trace.nodes.num_rows, -1, np.int32)
    values[all_rows[linked]] = depth[linked]
    return annotations | {"queue_depth": arrow.negative_to_null(values)}
