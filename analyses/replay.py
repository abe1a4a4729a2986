"""Accuracy of predicting a step's length from its graph with durations of other steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import counterparts, step_times, windows
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.analyses.methods.timing import steps as step_timing
from chopper_interop.arrays import Array, arrow, gather, name_stems
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.result import Result
from chopper_interop.timing import loops as timing_loops
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans
    from chopper_interop.analyses.methods.timing.steps import StepTiming

__all__ = ["replay"]

_CONVENTIONS = ("gaps_kept", "gaps_removed", "hold_out", "hold_out_but_first")
"""Names of the conventions by which steps are replayed."""
_BY = ("job", "rank")
_MAX_VARYING = 10
"""Length of the list of operations that vary in the summary. Chosen: it fits a screen."""
_MIN_STEPS = 2
"""Steps that a replay needs: each is predicted from the others."""
_CAUSE_OF_EDGE = ["work"] * 256
for _kind, _name in paths.LATENCIES.items():
    _CAUSE_OF_EDGE[int(_kind)] = _name
_CAUSE_OF_EDGE[step_timing.BORDER_EDGE] = "border"
_NO_NODE, _BORDER = -1, -2
_NO_NAME = {_NO_NODE: "between operations of the host", _BORDER: "state at the start of the step"}

_CONVENTION_TEXTS = {
    "gaps_kept": "each step with all times as measured: error 0 by construction",
    "gaps_removed": "each step without unexplained delays (`delay_ns` of critical_path); minimum "
    "latencies and the host's own time stay",
    "hold_out": "the graph of one step, with each duration, transfer, wait and delay in it replaced by the "
    "median of its counterparts in all steps but the predicted one; those without counterparts there keep "
    "the graph's own. No measurement of the predicted step is used, except "
    "that it contributes to the minimum latencies of the trace",
    "hold_out_but_first": "the same without the first profiled step, which often is a warm-up",
    "median": "of an even number the middle between the two central values",
    "border": "dependencies of a step on work before it (streams that are still busy, the origin of its "
    "threads) count as times since the step's start, and are taken from the other steps likewise",
    "length": f"of a step, {step_times.DEFINITION}. A prediction takes what is before its begin from the "
    "other steps",
    "links": "all work counts; work without a recorded launch starts at its measured time",
    "memset": "counts as work",
    "copies": "count as work",
    "varies": "on the path that bounds each predicted step as measured: its time there less the median of "
    "the other steps, summed by name over all steps",
}


def replay(
    trace: Trace, *, by: str = "job", steps: str = "", ranks: str = "", graphs: int = 4
) -> Result:
    """Measure the error of replaying training steps, by three independent conventions.

    Parameters
    ----------
    trace
        Any trace with several training steps.
    by
        ``"job"``: length of each step of the job; ``"rank"``: of each rank's.
    steps
        Only these training steps (``"10-14"``), as if there were no others; all by default.
    ranks
        Ranks that are replayed (``"0,4-7"``); the times at which other ranks released them stay as
        measured.
    graphs
        Number of nearest other steps whose graphs predict each step. The default, 4, is chosen: more
        graphs cost time and lie further from the predicted step.

    Returns
    -------
    Result
        One row per prediction: `convention`, `iteration`, the predicted step, `graph_iteration`, the
        step whose graph is used, `rank` with by="rank", `measured_ns`, `predicted_ns`, `error_share`,
        the absolute difference of the two by the measured one. The summary has mean, median and maximum
        `error_share` of each convention; `matched_edges_share`, the share of durations with
        counterparts in other steps; and `varies`: operations that took longer or shorter than
        their median (`difference_ns`, and `distance_ns` without regard to sign) or have no
        counterparts (`alone_ns`), the largest first.

    Raises
    ------
    MissingDataError
        Operations have no times, only their order.

    Notes
    -----
    A replay with all gaps kept is what LLMPrism (2025) reports, one without unexplained gaps is close to
    that of Lin et al. (OSDI 2025). Only the hold-out over steps can fail; with durations of
    other runs, Lumos (MLSys 2025) reports 3.3 % on average.
    """
    options.check_choice("by", by, _BY)
    options.check_at_least(1, graphs=graphs)
    windows.check_has_times(trace)
    selected = windows.chosen_ranks(trace, ranks)
    part = trace if selected == trace.ranks else trace.select_ranks(selected)
    step_windows = (
        windows.marked_windows(part, steps or "each") if steps or windows.has_steps(part) else []
    )
    notes = {
        "window": f"training steps {steps}, as if there were no others"
        if steps
        else "all training steps",
        "ranks": f"{len(selected)} of {len(trace.ranks)}",
    }
    conventions = {"graphs": f"the {graphs} nearest other steps predict each"} | _CONVENTION_TEXTS
    if not step_windows:
        notes["no rows"] = "the trace has no training steps"
        return Result("replay", _table([], by=by), _summary([]), conventions, notes=notes)
    model = step_timing.step_timing(part, step_windows)
    group, vertex = model.groups()
    lengths = [
        _Lengths("gaps_kept", *_replay_own_times(model, model.delay_ns, by)),
        _Lengths("gaps_removed", *_replay_own_times(model, np.zeros_like(model.delay_ns), by)),
    ]
    lags = _counterparts(model.lag_ns, group, model.step[model.after])
    delays = _delays(model, vertex)
    lengths += _held_out(model, lags, delays, by, graphs, since=0)
    if len(model.steps) > _MIN_STEPS:
        lengths += _held_out(model, lags, delays, by, graphs, since=1)
    if len(model.steps) < _MIN_STEPS:
        notes["no hold_out"] = "there is only one training step"
    elif len(model.steps) == _MIN_STEPS:
        notes["no hold_out_but_first"] = "there are only two training steps"
        notes["of two steps"] = "each is predicted with the durations of the other one"
    rows = _table(lengths, by=by)
    summary = _summary(lengths)
    if len(model.steps) >= _MIN_STEPS:
        same_step = np.arange(len(model.steps))
        usual, known = lags.without(same_step)
        summary["matched_edges_share"] = float(np.mean(known > 0)) if len(known) else None
        summary["varies"] = _varies(part, model, usual, delays.without(same_step)[0], known > 0)
    return Result("replay", rows, summary, conventions, notes=notes)


@dataclass(frozen=True)
class _Lengths:
    """Predictions of one convention."""

    convention: str
    iteration: Array
    graph_iteration: Array
    rank: Array
    measured: Array
    predicted: Array

    @property
    def error(self) -> Array:
        """Absolute error by the measured length; NaN for a step of length 0."""
        size = np.where(self.measured > 0, self.measured, np.nan)
        return np.abs(self.predicted - self.measured) / size


@dataclass(frozen=True)
class _Counterparts:
    """Values of edges or vertices, ascending within each group of counterparts.

    Parameters
    ----------
    values
        Value of each edge or vertex.
    step
        Step of each edge or vertex.
    first, member
        Group k has the edges or vertices ``member[first[k]:first[k + 1]]``.
    """

    values: Array
    step: Array
    first: Array
    member: Array

    def without(self, excluded: Array, since: int = 0) -> tuple[Array, Array]:
        """Return the median of each value's counterparts in all steps but one, and their number.

        Parameters
        ----------
        excluded
            For each step the one that is left out for its values; -1 for none.
        since
            First step that counts.
        """
        medians, known = self.values.copy(), np.zeros(len(self.values), np.int64)
        value, step = self.values[self.member], self.step[self.member]  # in order of groups
        _medians_without(value, step, self.first, self.member, since, excluded, medians, known)
        return medians, known


def _counterparts(values: Array, group: Array, step: Array) -> _Counterparts:
    """Values by group of counterparts; groups of one are dropped, as they have no other value."""
    first, member = gather.group_rows(group, int(group.max(initial=-1)) + 1)
    several = np.diff(first) > 1
    is_single = np.repeat(~several, np.diff(first))
    first = np.append(0, np.cumsum(np.diff(first)[several]))
    member = member[~is_single]
    counterparts.sort_members(values, first, member)
    return _Counterparts(values, step, first, member)


def _delays(model: StepTiming, vertex: Array) -> _Counterparts:
    """Delays of vertices by group; groups without any delay, which are most, are dropped."""
    is_delayed = np.zeros(int(vertex.max(initial=-1)) + 2, bool)
    is_delayed[vertex[model.delay_ns != 0]] = True
    is_delayed[-1] = False  # group -1: vertices without counterparts
    group = np.where(is_delayed[vertex], vertex, -1)
    used = np.flatnonzero(group >= 0)
    delayed = _counterparts(model.delay_ns[used], group[used], model.step[used])
    return _Counterparts(model.delay_ns, model.step, delayed.first, used[delayed.member])


# Sorting each group again without each of its steps would cost its size squared. Instead each group
# is sorted once, and the members of each step are a linked list through it: the median without a step
# is found by its rank in the group, moved past the members of that list.
@jit
def _medians_without(  # noqa: PLR0913, PLR0917 # columns
    value: Array,
    step: Array,
    first: Array,
    member: Array,
    since: int,
    excluded: Array,
    medians: Array,
    known: Array,
) -> None:
    # of the current group: first counted member of each step, and the next of the same step after each
    head_of_step = np.full(len(excluded), -1, np.int64)
    after = np.full(len(step), -1, np.int64)
    counted = np.empty(len(step), np.int64)
    for g in range(len(first) - 1):
        count = 0
        for m in range(first[g], first[g + 1]):
            if step[m] >= since:
                counted[count] = m
                count += 1
        for k in range(count - 1, -1, -1):
            after[k] = head_of_step[step[counted[k]]]
            head_of_step[step[counted[k]]] = k
        for m in range(first[g], first[g + 1]):
            left_out = excluded[step[m]]
            head = head_of_step[left_out] if left_out >= 0 else -1
            others = count
            k = head
            while k >= 0:
                others -= 1
                k = after[k]
            known[member[m]] = others
            if others:
                lower = value[counted[_index_without((others + 1) // 2 - 1, head, after)]]
                upper = value[counted[_index_without(others // 2, head, after)]]
                medians[member[m]] = lower + (upper - lower) // 2
        for k in range(count):
            head_of_step[step[counted[k]]] = -1


@jit
def _index_without(rank: int, head: int, after: Array) -> int:
    """Index of the element of this rank among those not in an ascending linked list.

    Each list element up to it moves it on by one; numpy would copy all others for every step.
    """
    k = head
    while k >= 0 and k <= rank:
        rank += 1
        k = after[k]
    return rank


def _replay_own_times(model: StepTiming, delay: Array, by: str) -> tuple[Array, ...]:
    """Replay each step's graph with its own times and these delays; columns of `_Lengths`."""
    spans, step = _spans(model, by), _spans(model, by).iteration
    predicted = spans.lengths(model.retimed(model.lag_ns, delay))
    return step, step, spans.rank, spans.lengths(model.at_ns), predicted


def _spans(model: StepTiming, by: str) -> Spans:
    return model.of_ranks if by == "rank" else model.of_job


def _held_out(
    model: StepTiming, lags: _Counterparts, delays: _Counterparts, by: str, graphs: int, since: int
) -> list[_Lengths]:
    """Predict every step by the graphs of the nearest others, in each pass all graphs at once."""
    spans, numbers, count = _spans(model, by), np.array(model.steps), len(model.steps)
    step, rank = np.searchsorted(numbers, spans.iteration), spans.rank
    begins = _counterparts(spans.starts(model.at_ns), rank - rank.min(initial=0), step)
    measured = spans.lengths(model.at_ns)
    window = {key: k for k, key in enumerate(zip(step.tolist(), rank.tolist(), strict=True))}
    lengths = []
    for excluded in _passes(count, since, graphs):
        lag, delay = lags.without(excluded, since)[0], delays.without(excluded, since)[0]
        usual = begins.without(excluded, since)[0]
        predicted = np.maximum(spans.ends(model.retimed(lag, delay)) - usual, 0)
        pairs = zip(excluded[step].tolist(), rank.tolist(), strict=True)
        target = np.array([window.get(pair, -1) for pair in pairs], np.int64)
        at = np.flatnonzero(target >= 0)
        target = target[at]
        columns = (
            numbers[step[target]],
            numbers[step[at]],
            rank[at],
            measured[target],
            predicted[at],
        )
        lengths.append(_Lengths(_CONVENTIONS[2 + since], *columns))
    return lengths


def _passes(count: int, since: int, graphs: int) -> list[Array]:
    """For each pass, the step that the graph of each step predicts; -1 for none.

    Each step is predicted once by each of the nearest others, of equally near ones by the earlier
    first. A graph predicts one step a pass, so that all graphs are timed at once.
    """
    passes: list[Array] = []
    used = [0] * count
    for step in range(since, count):
        near = range(max(step - graphs, since), min(step + graphs + 1, count))
        others = sorted((abs(k - step), k) for k in near if k != step)
        for _, graph in others[:graphs]:
            if used[graph] == len(passes):
                passes.append(np.full(count, -1, np.int64))
            passes[used[graph]][graph] = step
            used[graph] += 1
    return passes


def _table(lengths: list[_Lengths], *, by: str) -> pa.Table:
    def joined(name: str) -> Array:
        return gather.joined([getattr(one, name) for one in lengths])

    names = [one.convention for one in lengths for _ in range(len(one.iteration))]
    error = joined("error").astype(np.float64)
    rank = {"rank": arrow.array(joined("rank").astype(np.int32))} if by == "rank" else {}
    table = pa.table(
        {
            "convention": arrow.texts(names),
            "iteration": arrow.array(joined("iteration").astype(np.int32)),
            "graph_iteration": arrow.array(joined("graph_iteration").astype(np.int32)),
            **rank,
            "measured_ns": arrow.array(joined("measured")),
            "predicted_ns": arrow.array(joined("predicted")),
            "error_share": arrow.nan_to_null(error),
        }
    )
    order_of = {name: k for k, name in enumerate(_CONVENTIONS)}
    order = np.lexsort(
        (
            joined("rank"),
            joined("graph_iteration"),
            joined("iteration"),
            np.array([order_of[n] for n in names], np.int64),
        )
    )
    return table.take(arrow.array(order))


def _summary(lengths: list[_Lengths]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name in _CONVENTIONS:
        parts = [one.error for one in lengths if one.convention == name]
        error = np.concatenate(parts) if parts else np.empty(0)
        error = error[~np.isnan(error)]
        figures[f"{name}_predictions"] = len(error)
        for figure, reduce in (("mean", np.mean), ("median", np.median), ("max", np.max)):
            figures[f"{name}_{figure}_error_share"] = float(reduce(error)) if error.size else None
    return {**figures, "matched_edges_share": None, "varies": []}


def _varies(
    trace: Trace, model: StepTiming, lag: Array, delay: Array, known: Array
) -> list[dict[str, Any]]:
    """List operations that took longer or shorter than in the other steps, on the binding paths.

    Parameters
    ----------
    trace, model
        Trace and timing of its steps.
    lag, delay
        Medians of the other steps.
    known
        True for edges with counterparts there.
    """
    edges = _binding_edges(model)
    after = model.after[edges]
    took, usual = model.lag_ns[edges] + model.delay_ns[after], lag[edges] + delay[after]
    owners, code = _edge_owners(trace, model, edges)
    totals = {
        figure: gather.group_sums(code, values, len(owners))
        for figure, values in (
            ("count", np.ones_like(took)),
            ("took_ns", took),
            ("median_ns", usual),
            ("difference_ns", took - usual),
            ("distance_ns", np.abs(took - usual)),
            ("alone_ns", np.where(known[edges], 0, took)),
        )
    }
    differs = totals["distance_ns"] + totals["alone_ns"]
    largest = np.argsort(-differs, kind="stable")[:_MAX_VARYING]
    return [
        owners[k] | {figure: int(total[k]) for figure, total in totals.items()}
        for k in largest.tolist()
        if differs[k]
    ]


def _binding_edges(model: StepTiming) -> Array:
    """Edges of the path that bounds each step as measured, back from its last endpoint."""
    none = np.zeros(len(model.src), np.uint8)
    binding, _ = timing_loops.find_binding(
        model.at_ns, model.first, model.after, model.lag_ns, none
    )
    last = model.of_job.last(model.at_ns)
    never = -int(timing_loops.NEVER)
    paths = [
        timing_loops.binding_path(binding, model.first, model.at_ns, int(v), never) for v in last
    ]
    return np.concatenate(paths)


def _edge_owners(
    trace: Trace, model: StepTiming, edges: Array
) -> tuple[list[dict[str, Any]], Array]:
    """Return the distinct owners of the edges' time, by name and cause, and the owner of each edge."""
    node = np.append(model.timing.graph.node, np.full(len(model.steps), -1))
    src, after, kind = model.src[edges], model.after[edges], model.kind[edges]
    owner = node[after].astype(np.int64)
    is_barrier = src < len(model.timing.graph)
    is_barrier[is_barrier] = model.timing.is_barrier[src[is_barrier]]
    # time along a lane is of the node that began, or of the parent of the one that ended; even
    # vertices are starts
    inside = is_any(kind, paths.OWN_TIME_EDGES) & ~is_barrier
    before = node[src[inside]]
    owner[inside] = np.where(src[inside] % 2 == 0, before, trace.array("parent")[before])
    cause = np.array(_CAUSE_OF_EDGE)[kind]
    name = np.where(owner >= 0, trace.array("name")[owner], _NO_NODE)
    name[kind == step_timing.BORDER_EDGE] = _BORDER
    first, code = gather.distinct(name, np.unique(cause, return_inverse=True)[1])
    names = trace.names()
    # names that contain the number of their step, such as ProfilerStep#7, are one over all steps
    stems, number = name_stems.split_numbers(names)
    step_number = np.array(model.steps)[model.step[after[first]]]
    texts = [
        _NO_NAME.get(n) or (stems[n] if number[n] == step else names[n])
        for n, step in zip(name[first].tolist(), step_number.tolist(), strict=True)
    ]
    numbers: dict[tuple[str, str], int] = {}
    keys = list(zip(texts, cause[first].tolist(), strict=True))
    merged = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    return [{"name": n, "what": w} for n, w in numbers], merged[code]
