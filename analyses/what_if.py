"""Predicted duration of a job under changes to its work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import number_ranges
from chopper_interop.analyses.methods import distributions, options
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.changes import values, verbs
from chopper_interop.analyses.methods.changes.changer import Change, ChangedJob, Changer
from chopper_interop.analyses.methods.changes.overwriting import OverwritingError
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.analyses.methods.timing import paths, spans
from chopper_interop.analyses.methods.timing.steps import timing_of_steps
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import HOST_KINDS, EdgeKind, Kind
from chopper_interop.timing.model import Timing, timing_of
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans

__all__ = ["what_if"]

_STANDARD_CHANGES = (
    Change("scale", 1 / 1.1, kinds=(Kind.KERNEL,), text="kernels 10 % faster"),
    Change(
        "bandwidth",
        values.Speed(2.0, is_factor=True),
        options={"latency": 0, "ranks": 0},
        text="communication twice as fast",
    ),
    Change("scale", 0.0, kinds=(Kind.COMM,), text="communication takes no time"),
    Change("scale", 0.0, kinds=(Kind.MEMCPY, Kind.MEMSET), text="copies take no time"),
    Change("launch", values.Time(0, False), text="launches reach the GPU at once"),
    Change("scale", 0.0, kinds=HOST_KINDS, text="operators and calls of hosts take no time"),
    Change("delays", 0.0, text="no delays without a known reason"),
    Change("median", "ranks", kinds=(Kind.KERNEL,), text="kernels even over ranks"),
)
"""Changes that are evaluated if none is given."""
_MIN_BINDING = 0.005
"""Smallest share of what binds that is written: less would read 0 %."""
_MIN_GAIN_SHARE = 0.001
"""Share of the window from which a change gains anything. Chosen: less is within the noise of any run."""
_MAX_BINDING = 3
"""Classes that a note names. Chosen: more say nothing about what binds."""
_MEASURED, _TOGETHER = "as measured", "all together"
_BY = ("job", "rank", "class")

_CONVENTIONS = {
    "model": "the graph of starts and ends of all nodes and ranks; each happens as soon as its "
    "dependencies and the minimum time since them allow, plus its measured delay; endpoints without "
    "dependencies stay",
    "own time": "of GPU work its duration; of collectives the transfer, from the last member's start "
    "on; of host nodes the host's time in them and the calls in them, without waits for GPUs",
    "what stays": "the order of work on streams and of members in collectives, and the set of edges; "
    "kernels do not get slower or faster by concurrent work",
    "median": "of an even number the lower; it is of the same operation on other ranks, while S of "
    "`stragglers` compares with the mean of all operations of a type (ideal)",
    "single steps": "where no launches are recorded each of them begins when it did",
    "steps": "the job is re-timed as one, and borders of steps move with it: time that one step gains by "
    "beginning sooner may prolong the next; over all steps the gain is that of the job",
    "standard changes": "those that are evaluated where none is given change the chosen steps alone",
    "links": "all work counts; work without a recorded launch starts at its measured time, or after its "
    "stream's previous work",
    "memset": "counts as compute",
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "network": "bandwidth=50GB/s: a collective of S bytes on n ranks takes that of a ring, all_reduce "
    "2 (n-1) (S / (n B) + latency), all_gather and reduce_scatter (n-1) (S / (n B) + latency), all_to_all "
    "the same by direct exchange, others S / B + latency; waiting for members comes on top",
    "buckets": "gradients in their order, a bucket closed by the one that reaches the size; reduced when "
    "that one is ready on all ranks, in the time of its bytes in the measured buckets, and a fixed time "
    "that the measured sizes show",
    "pipelines": "microbatches and stages: the measured passes in the same schedule, with measured "
    "transfers; stages have equal parts of the model; times of passes are not split by class",
    "clock": "kernels follow it by their known sensitivity (see dvfs); with beta by "
    "beta x measured / new clock + 1 - beta; kernels without a known clock stay",
    "path": "path_*: time by class on the path that determines the end of the window, see critical_path",
}


def what_if(
    trace: Trace,
    *,
    change: str | None = None,
    by: str = "job",
    steps: str = "",
    ranks: str = "",
) -> Result:
    """Predict the duration of a job or a step if its work were different.

    Parameters
    ----------
    change
        The change: ``"scale=0.5 where kind == 'kernel' and operation == 'aten::mm'"``.
        ``scale=F``, ``remove``, ``median=both|ranks|iterations``, ``ideal``, ``launch=0|5us|+2us``,
        ``calls=0|5us|+2us``, ``bandwidth=F|50GB/s [latency=5us] [ranks=16]``, ``ranks=16
        [latency=5us]``, ``insert=50us``, ``fuse[=F]``, ``clock=1900|0.9x|max1900 [beta=0..1]``, ``delays=F``, ``nowait``,
        ``buckets=25MB [latency=5us] [first=1MB]``, ``microbatches=16 [stages=8]``, ``stages=8 [microbatches=16]``,
        optionally with ``where`` and a query on the nodes' columns, which at least one node must
        match. Several changes are separated by ``;``: each is evaluated alone, then all together
        in this order, unless one would overwrite another, of which a note says. By
        default a list of standard changes, each alone, of the chosen steps.
    by
        Rows: ``"job"`` one per window, ``"rank"`` one per rank and window, ``"class"`` the path of each
        window by class.
    steps
        Training steps, each by itself: ``each``, ``10``, ``10-12``; all as one by default.
    ranks
        Ranks whose time is measured (``"0,4-7"``); all ranks are re-timed.

    Returns
    -------
    Result
        Rows: `change`, `iteration`, (`rank`), `before_ns`, `after_ns`, `gain_ns` = before - after,
        `speedup_ratio` = before / after, and by job ``path_CLASS_ns`` of the critical path after the
        change; by class `class`, `before_ns`, `after_ns` and `gain_ns` of the path. By job and class
        the first rows are as measured. The summary has the sums over windows, and the change with the
        largest gain. Of a change that gains nothing a note says what binds, and of steps that get longer why.

    Raises
    ------
    MissingDataError
        Operations have no times, only their order.

    Notes
    -----
    Changes to the dependency graph and a replay as Daydream (USENIX ATC 2020) and Lumos (MLSys 2025)
    do; the model is `chopper_interop.timing.model`. `methods.changes.verbs.VERBS` describes the changes.
    """
    options.check_choice("by", by, _BY)
    requested = [] if change is None else verbs.parse_changes(change)
    windows.check_has_times(trace)
    timing = timing_of_steps(trace) if steps else timing_of(trace)
    window_spans = spans.spans_of_timing(timing, steps, ranks, by_rank=by == "rank")
    notes = _notes(trace, steps, ranks)
    cases: list[tuple[str, list[Change]]] = [
        (one.text, [one]) for one in requested or _standard_changes(steps, window_spans)
    ]
    if len(requested) > 1:
        cases.append((_TOGETHER, requested))
    if not len(window_spans):
        notes["no rows"] = "the trace has no operations"
        cases = []
    notes |= parallelism.unread_ranks(trace)
    notes |= _unmatched(timing, int(window_spans.lengths(timing.at_ns).sum()))
    replay = _Replay(timing, window_spans, with_paths=by != "rank")
    for text, parts in cases:
        notes |= replay.add(text, parts, is_requested=bool(requested))
    rows = replay.by_class() if by == "class" else replay.rows()
    return Result("what_if", rows, replay.summary(), _CONVENTIONS, notes=notes)


def _standard_changes(steps: str, window_spans: Spans) -> tuple[Change, ...]:
    """Changes that are evaluated if none is given, of the chosen steps: not of a warm-up that is left out."""
    if steps in ("", "each") or not len(window_spans):
        return _STANDARD_CHANGES
    chosen = f"iteration in {np.unique(window_spans.iteration).tolist()}"
    return tuple(replace(one, query=chosen) for one in _STANDARD_CHANGES)


def _notes(trace: Trace, steps: str, ranks: str) -> dict[str, str]:
    all_steps = "from the first start to the last end of all training steps, else of everything"
    selected = windows.chosen_ranks(trace, ranks)
    return {
        "window": windows.describe(steps, all_steps)
        + "; a step lasts until the work that its host launched has ended",
        "ranks": f"{len(selected)} of {len(trace.ranks)}; all are re-timed",
    }


def _unmatched(timing: Timing, length_ns: int) -> dict[str, str]:
    """Note about communication that waited for members which are not in the trace."""
    trace, graph = timing.trace, timing.graph
    is_alone = (trace.array("kind") == Kind.COMM) & (trace.integers("instance") < 0)
    lasts = np.flatnonzero(graph.kind == EdgeKind.DURATION)
    lasts = lasts[is_alone[graph.node[graph.src[lasts]]]]
    wait = timing.at_ns[graph.after[lasts]] - timing.at_ns[graph.src[lasts]] - timing.lag_ns[lasts]
    lasts, wait = lasts[wait > 0], wait[wait > 0]
    if not lasts.size or not length_ns:
        return {}
    rank = trace.array("rank")[graph.node[graph.src[lasts]]]
    longest = int(np.bincount(rank, wait).max())
    return {
        "unmatched": f"{len(lasts):,} pieces of communication waited for members that are not in the "
        "trace, as where recordings of ranks begin at different times; these waits end as long as they did "
        "behind the messages that were exchanged with these ranks before, and stay as long as they were "
        f"where there were none, up to {longest / 1e6:,.3f} ms on one rank ({longest / length_ns:.1%}): "
        "predictions are uncertain by as much"
    }


class _Replay:
    """Lengths of windows under one case after the other."""

    def __init__(self, timing: Timing, window_spans: Spans, *, with_paths: bool) -> None:
        self._timing, self._spans = timing, window_spans
        self._changer = Changer(timing)
        self._paths = (
            paths.BindingPaths(timing, self._changer.owner)
            if with_paths and len(window_spans)
            else None
        )
        self._before = window_spans.lengths(timing.at_ns)
        self._cases: list[str] = []
        self._after: list[Array] = []
        self._on_path: list[Array] = []
        if self._paths:
            job = ChangedJob(timing, timing.lag_ns, timing.delay_ns, timing.at_ns)
            self._record(_MEASURED, job, self._paths)

    def add(self, text: str, parts: list[Change], *, is_requested: bool) -> dict[str, str]:
        """Re-time the job under these changes, and return the note about them."""
        try:
            changed = verbs.apply_changes(self._changer, parts)
        except OverwritingError as error:
            return {f"no row: {text}": str(error)}
        job = verbs.changed_job(self._changer, changed)
        binding = self._paths
        if binding and job.timing is not self._timing:
            binding = paths.BindingPaths(job.timing, paths.edge_owners(job.timing))
        if not job.has_paths:
            binding = None
        self._record(text, job, binding)
        counts = ", ".join(f"{count:,} {name}" for name, count in changed.notes.items() if count)
        notes = {f"change: {text}": counts or "no node is selected"} if is_requested else {}
        before, gain = int(self._before.sum()), int((self._before - self._after[-1]).sum())
        if binding and len(self._spans) and gain < _MIN_GAIN_SHARE * before:
            notes[f"gains nothing: {text}"] = self._binding(binding, job)
        if longer := self._prolonged(job):
            notes[f"longer steps: {text}"] = longer
        return notes

    def _prolonged(self, job: ChangedJob) -> str:
        """Say which steps get longer although they end sooner, as those before them gain more; empty if none does."""
        at = self._timing.at_ns
        begun_ns = self._spans.starts(at) - self._begins(job)
        ended_ns = self._spans.ends(at) - self._spans.ends(job.at_ns)
        lost_ns = begun_ns - ended_ns
        longer = np.flatnonzero((ended_ns > 0) & (lost_ns > _MIN_GAIN_SHARE * self._before))
        if not longer.size:
            return ""
        worst = longer[np.argmax(lost_ns[longer])]
        steps = np.unique(self._spans.iteration[longer]).tolist()
        return (
            f"{number_ranges.named('step', steps)}, as the step before gains more: step "
            f"{self._spans.iteration[worst]} begins {begun_ns[worst] / 1e6:,.3f} ms sooner and ends "
            f"{ended_ns[worst] / 1e6:,.3f} ms sooner. Hosts that were ahead of their GPUs are so by less; the gain of the job "
            "is that over all steps, from its begin to its end"
        )

    def _binding(self, binding: paths.BindingPaths, job: ChangedJob) -> str:
        """Parts of the paths that determine the ends of windows."""
        lag, at = job.lag_ns, job.at_ns
        total = self._on_path[-1].sum(axis=0)
        order = np.argsort(-total, kind="stable")[:_MAX_BINDING]
        whole = max(int(total.sum()), 1)
        smallest = _MIN_BINDING * whole
        shares = [
            f"{total[k] / whole:.0%} {paths.CLASSES[k]}" for k in order if total[k] >= smallest
        ]
        ends = zip(self._spans.last(at).tolist(), self._begins(job).tolist(), strict=True)
        delay = sum(binding.delay_ns(lag, at, last, start) for last, start in ends)
        text = f"what binds then is {', '.join(shares)}"
        if delay >= smallest:
            text += f"; {delay / whole:.0%} of it are delays without a known reason"
        return text

    def _begins(self, job: ChangedJob) -> Array:
        """Begin of each window; as measured for all steps of another pipeline, as its plan moves ranks."""
        begin = self._spans.starts(job.at_ns)
        if job.has_paths:
            return begin
        is_all = self._spans.iteration == windows.NO_STEP
        return np.where(is_all, self._spans.starts(self._timing.at_ns), begin)

    def _record(self, text: str, job: ChangedJob, binding: paths.BindingPaths | None) -> None:
        """Append the lengths of windows of a job, and their paths; -1 where none explains them."""
        at = job.at_ns
        job_spans, begin = self._spans, self._begins(job)
        self._cases.append(text)
        self._after.append(job_spans.ends(at) - begin)
        if binding:
            ends = zip(job_spans.last(at).tolist(), begin.tolist(), strict=True)
            table = [binding.by_class(job.lag_ns, at, last, start) for last, start in ends]
            self._on_path.append(np.array(table, np.int64))
        elif self._paths:
            self._on_path.append(np.full((len(job_spans), len(paths.CLASSES)), -1, np.int64))

    def rows(self) -> pa.Table:
        cases, size = len(self._cases), len(self._spans)
        before, after = np.tile(self._before, cases), gather.joined(self._after)
        columns = self._keys()
        columns["before_ns"], columns["after_ns"] = arrow.array(before), arrow.array(after)
        columns["gain_ns"] = arrow.array(before - after)
        columns["speedup_ratio"] = distributions.ratios(before, after)
        if self._paths:
            table = gather.joined(self._on_path).reshape(cases * size, len(paths.CLASSES))
            for number, name in enumerate(paths.CLASSES):
                path_ns = np.ascontiguousarray(table[:, number])
                columns[f"path_{name}_ns"] = arrow.negative_to_null(path_ns)
        return pa.table(columns)

    def _keys(self, times: int = 1) -> dict[str, Any]:
        """Columns of change, step and rank; each case and window has `times` rows."""
        cases, job_spans = len(self._cases), self._spans
        step = np.tile(np.repeat(job_spans.iteration, times), cases)
        columns = {
            "change": pa.array(
                np.repeat(self._cases, len(job_spans) * times).tolist(), pa.string()
            ),
            "iteration": arrow.array(step, mask=step == windows.NO_STEP),
        }
        if not self._paths and len(job_spans):
            columns["rank"] = arrow.array(np.tile(job_spans.rank, cases))
        return columns

    def by_class(self) -> pa.Table:
        classes = len(paths.CLASSES)
        after = gather.joined([table.ravel() for table in self._on_path])
        if (after < 0).any():
            raise UsageError("by=class: no path explains times of another pipeline", hint="by=job")
        before = np.tile(self._on_path[0].ravel() if self._on_path else after, len(self._cases))
        columns = self._keys(classes)
        names = list(paths.CLASSES) * (len(self._cases) * len(self._spans))
        columns["class"] = pa.array(names, pa.string())
        columns["before_ns"], columns["after_ns"] = arrow.array(before), arrow.array(after)
        columns["gain_ns"] = arrow.array(before - after)
        table = pa.table(columns)
        return arrow.take(table, (before > 0) | (after > 0))

    def summary(self) -> dict[str, Any]:
        before = int(self._before.sum())
        gains = {
            text: before - int(after.sum())
            for text, after in zip(self._cases, self._after, strict=True)
            if text != _MEASURED
        }
        single = [text for text in gains if text != _TOGETHER]
        best = max(single, key=lambda text: gains[text], default="")
        helps = gains.get(best, 0) > 0
        return {
            "windows": len(self._spans),
            "before_ns": before,
            "changes": [
                {"change": text, "after_ns": before - gain, "gain_ns": gain}
                for text, gain in gains.items()
            ],
            "max_gain_by": best if helps else None,
            "max_gain_ns": gains[best] if helps else None,
        }
