"""How well a step's graph, with durations of other steps, tells how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import counterparts, windows
from chopper_interop.columns import arrow, gather, numbered
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.timing import loops as timing_loops
from chopper_interop.timing import steps as step_timing

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.steps import StepTiming
    from chopper_interop.trace import Trace

__all__ = ["replay"]

_CONVENTIONS = ("gaps_kept", "gaps_removed", "hold_out", "hold_out_but_first")
"""What is replayed; rows bear these names."""
_BY = ("job", "rank")
_SHOWN = 10
_LEAST_STEPS = 2
_ON_LANES = (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION)
_WHAT = ["work"] * 256
for _kind in (
    EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.SYNC, EdgeKind.HANDOVER,
):  # fmt: skip
    _WHAT[int(_kind)] = _kind.name.lower()
_WHAT[step_timing.BORDER] = "border"
_NO_NAME = {-1: "between operations of the host", -2: "state at the start of the step"}

_TOLD = {
    "gaps_kept": "each step with all times as measured: 0 by construction",
    "gaps_removed": "each step with what nothing explains (`delay_ns` of critical_path) left out; least "
    "latencies and the host's own time stay",
    "hold_out": "the graph of one step, and for every duration, transfer, wait and delay in it the median "
    "of its counterparts in all steps but the one that is predicted; what has none there keeps the "
    "graph's own. Nothing measured in the predicted step is used, but "
    "that it counts among all for the least latencies of the trace",
    "hold_out_but_first": "the same as if the first profiled step were not there, which often is a warm-up",
    "median": "of an even number half way between the two in the middle",
    "border": "what a step waits for that came before it (streams still at work, where its threads came "
    "from) counts as times since the step's start, and is taken from the other steps likewise",
    "length": "of a step, from the first start to the last end of the ranges that mark it, else of what "
    "its host did, else of its GPU work",
    "links": "all work counts; what has no recorded launch starts when it did",
    "memset": "counts as work",
    "copies": "count as work",
    "varies": "on what bound each predicted step as measured: its time there less the median of the other "
    "steps, summed by name over all steps",
}


def replay(
    trace: Trace, *, by: str = "job", steps: str = "", ranks: str = "", graphs: int = 4
) -> Result:
    """Error of replaying training steps, in three conventions that have little to do with each other.

    Parameters
    ----------
    trace
        Any trace with several training steps.
    by
        ``"job"``: length of a step from the first rank's start to the last one's end; ``"rank"``: of
        each rank's.
    steps
        Only these training steps (``"10-14"``), as if there were no others; all by default.
    ranks
        Ranks to look at (``"0,4-7"``); what these waited for of others stays as it was then.
    graphs
        Each step is predicted from the graphs of so many other ones, the nearest.

    Returns
    -------
    Result
        One row a prediction: `convention`, `iteration` that is predicted, `graph_iteration`, the step
        whose graph it is, `rank` if so asked, `measured_ns`, `predicted_ns`, `error_share` = their
        distance by the measured one. The summary has mean, median and greatest `error_share` of each
        convention; `matched_edges_share`, for how many durations of steps there are counterparts in
        others; and `varies`: which operations took longer or shorter than their median
        (`difference_ns`, and `distance_ns` without regard to sign) or have no counterparts there
        (`alone_ns`), greatest first.

    Notes
    -----
    A replay with all gaps kept is what LLMPrism (2025) gives, one without unexplained gaps is near to
    that of Lin et al. (OSDI 2025). The one that can fail is the hold-out over steps; with durations of
    other runs, Lumos (MLSys 2025) gives 3.3 % on average.
    """
    if by not in _BY:
        raise UsageError(f"by={by}: that is unknown", hint=f"there are {', '.join(_BY)}")
    if graphs < 1:
        raise UsageError(f"graphs={graphs}: it takes at least 1")
    chosen = windows.chosen_ranks(trace, ranks)
    part = trace if chosen == trace.ranks else trace.of_ranks(chosen)
    found = windows.of_ranks(part, steps or "each") if steps or windows.marked(part) else []
    notes = {
        "window": f"training steps {steps}, as if there were no others"
        if steps
        else "all training steps",
        "ranks": f"{len(chosen)} of {len(trace.ranks)}",
    }
    conventions = {"graphs": f"the {graphs} nearest other steps predict each", **_TOLD}
    if not found:
        notes["no rows"] = "the trace has no training steps"
        return Result("replay", _table([], by=by), _summary([]), conventions, notes=notes)
    model = step_timing.of(part, found)
    group, vertex = model.groups()
    lengths = [
        _Lengths("gaps_kept", *_own(model, model.delay_ns, by)),
        _Lengths("gaps_removed", *_own(model, np.zeros_like(model.delay_ns), by)),
    ]
    lags = _counterparts(model.lag_ns, group, model.step[model.after])
    delays = _delays(model, vertex)
    lengths += _held_out(model, lags, delays, by, graphs, since=0)
    if len(model.steps) > _LEAST_STEPS:
        lengths += _held_out(model, lags, delays, by, graphs, since=1)
    if len(model.steps) < _LEAST_STEPS:
        notes["no hold_out"] = "there is one training step alone"
    elif len(model.steps) == _LEAST_STEPS:
        notes["no hold_out_but_first"] = "there are two training steps alone"
        notes["of two steps"] = "each has the durations of the other one"
    rows = _table(lengths, by=by)
    summary = _summary(lengths)
    if len(model.steps) >= _LEAST_STEPS:
        own = np.arange(len(model.steps))
        usual, known = lags.without(own)
        summary["matched_edges_share"] = float(np.mean(known > 0)) if len(known) else None
        summary["varies"] = _varies(part, model, usual, delays.without(own)[0], known > 0)
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
        """By the measured length; NaN of a step without any."""
        size = np.where(self.measured > 0, self.measured, np.nan)
        return np.abs(self.predicted - self.measured) / size


@dataclass(frozen=True)
class _Counterparts:
    """Numbers of edges or vertices, ascending within each group of counterparts.

    Parameters
    ----------
    values
        A number each.
    step
        Which step each is in.
    first, member
        Those of group k are ``member[first[k]:first[k + 1]]``.
    """

    values: Array
    step: Array
    first: Array
    member: Array

    def without(self, away: Array, since: int = 0) -> tuple[Array, Array]:
        """For each the median of its counterparts but of one step; of how many.

        Parameters
        ----------
        away
            For each step the one that does not count for it; -1 if all do.
        since
            Steps from this one on count.
        """
        found, known = self.values.copy(), np.zeros(len(self.values), np.int64)
        value, step = self.values[self.member], self.step[self.member]  # side by side
        _without(value, step, self.first, self.member, since, away, found, known)
        return found, known


def _counterparts(values: Array, group: Array, step: Array) -> _Counterparts:
    first, place = gather.places(group, int(group.max(initial=-1)) + 1)
    several = np.diff(first) > 1
    of_one = np.repeat(~several, np.diff(first))  # nothing to choose from
    first = np.append(0, np.cumsum(np.diff(first)[several]))
    member = place[~of_one]
    counterparts.ascend(values, first, member)
    return _Counterparts(values, step, first, member)


def _delays(model: StepTiming, vertex: Array) -> _Counterparts:
    """Of vertices; most have none, nor have their counterparts."""
    late = np.zeros(int(vertex.max(initial=-1)) + 2, bool)
    late[vertex[model.delay_ns != 0]] = True
    late[-1] = False  # of what has no counterparts
    group = np.where(late[vertex], vertex, -1)
    used = np.flatnonzero(group >= 0)
    found = _counterparts(model.delay_ns[used], group[used], model.step[used])
    return _Counterparts(model.delay_ns, model.step, found.first, used[found.member])


@jit
def _without(  # noqa: PLR0913, PLR0917 # columns
    value: Array,
    step: Array,
    first: Array,
    member: Array,
    since: int,
    away: Array,
    found: Array,
    known: Array,
) -> None:
    of_step = np.full(
        len(away), -1, np.int64
    )  # of the group at hand, the first that counts of a step
    after = np.full(len(step), -1, np.int64)  # and the one of the same step behind each
    counting = np.empty(len(step), np.int64)
    for g in range(len(first) - 1):
        count = 0
        for m in range(first[g], first[g + 1]):
            if step[m] >= since:
                counting[count] = m
                count += 1
        for k in range(count - 1, -1, -1):
            after[k] = of_step[step[counting[k]]]
            of_step[step[counting[k]]] = k
        for m in range(first[g], first[g + 1]):
            left_out = away[step[m]]
            head = of_step[left_out] if left_out >= 0 else -1
            others = count
            k = head
            while k >= 0:
                others -= 1
                k = after[k]
            known[member[m]] = others
            if others:
                lower = value[counting[_place((others + 1) // 2 - 1, head, after)]]
                upper = value[counting[_place(others // 2, head, after)]]
                found[member[m]] = lower + (upper - lower) // 2
        for k in range(count):
            of_step[step[counting[k]]] = -1


@jit
def _place(place: int, head: int, after: Array) -> int:
    """Where what is at this place stands if those of a list, ascending, are not left out."""
    k = head
    while k >= 0 and k <= place:
        place += 1
        k = after[k]
    return place


def _own(model: StepTiming, delay: Array, by: str) -> tuple[Array, ...]:
    """Each step's graph with its own times, and these delays."""
    numbers = np.array(model.steps)
    at = model.retimed(model.lag_ns, delay)
    by_rank = by == "rank"
    step = model.window_step if by_rank else np.arange(len(numbers))
    measured = model.lengths(model.at_ns, by_rank=by_rank)
    predicted = model.lengths(at, by_rank=by_rank)
    return numbers[step], numbers[step], _ranks(model, by), measured, predicted


def _ranks(model: StepTiming, by: str) -> Array:
    size = len(model.steps)
    return np.array([w.rank for w in model.windows] if by == "rank" else [-1] * size, np.int64)


def _held_out(
    model: StepTiming, lags: _Counterparts, delays: _Counterparts, by: str, graphs: int, since: int
) -> list[_Lengths]:
    """Every step by the graphs of the nearest others, in each pass all graphs at once."""
    by_rank, count = by == "rank", len(model.steps)
    step = model.window_step if by_rank else np.arange(count)
    numbers, rank = np.array(model.steps), _ranks(model, by)
    measured = model.lengths(model.at_ns, by_rank=by_rank)
    window = {key: k for k, key in enumerate(zip(step.tolist(), rank.tolist(), strict=True))}
    found = []
    for away in _passes(count, since, graphs):
        lag, delay = lags.without(away, since)[0], delays.without(away, since)[0]
        predicted = model.lengths(model.retimed(lag, delay), by_rank=by_rank)
        pairs = zip(away[step].tolist(), rank.tolist(), strict=True)
        of = np.array([window.get(pair, -1) for pair in pairs], np.int64)
        made = np.flatnonzero(of >= 0)
        of = of[made]
        name = _CONVENTIONS[2 + since]
        graph = numbers[step[made]]
        told = _Lengths(name, numbers[step[of]], graph, rank[made], measured[of], predicted[made])
        found.append(told)
    return found


def _passes(count: int, since: int, graphs: int) -> list[Array]:
    """Which step is predicted by the graph of each in one pass after the other; -1 if none is.

    Each step is once by each of the nearest others, of equally near ones by the earlier first.
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
        parts = [getattr(one, name) for one in lengths]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

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
            "error_share": arrow.array(error, mask=np.isnan(error)),
        }
    )
    place = {name: k for k, name in enumerate(_CONVENTIONS)}
    order = np.lexsort(
        (
            joined("rank"),
            joined("graph_iteration"),
            joined("iteration"),
            np.array([place[n] for n in names], np.int64),
        )
    )
    return table.take(arrow.array(order))


def _summary(lengths: list[_Lengths]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in _CONVENTIONS:
        parts = [one.error for one in lengths if one.convention == name]
        error = np.concatenate(parts) if parts else np.empty(0)
        error = error[~np.isnan(error)]
        made[f"{name}_predictions"] = len(error)
        for figure, of in (("mean", np.mean), ("median", np.median), ("max", np.max)):
            made[f"{name}_{figure}_error_share"] = float(of(error)) if error.size else None
    return {**made, "matched_edges_share": None, "varies": []}


def _varies(
    trace: Trace, model: StepTiming, lag: Array, delay: Array, known: Array
) -> list[dict[str, Any]]:
    """Operations that took longer or shorter than in the other steps, on what bound each step.

    Parameters
    ----------
    trace, model
        What was asked about.
    lag, delay
        Medians of the other steps.
    known
        Which edges have counterparts there.
    """
    none = np.zeros(len(model.src), np.uint8)
    binding, _ = timing_loops.bound(model.at_ns, model.first, model.after, model.lag_ns, none)
    vertex, window = model.ends
    step = model.window_step[window]
    order = np.lexsort((-vertex, model.at_ns[vertex], step))
    last = vertex[order][np.flatnonzero(np.diff(step[order], append=-1))]
    never = -int(timing_loops.NEVER)
    paths = [timing_loops.walk(binding, model.src, model.at_ns, int(v), never) for v in last]
    edges = np.concatenate(paths)
    after = model.after[edges]
    took, usual = model.lag_ns[edges] + model.delay_ns[after], lag[edges] + delay[after]
    about, code = _whose(trace, model, edges)
    totals = {
        what: gather.sums(code, values, len(about))
        for what, values in (
            ("count", np.ones_like(took)),
            ("took_ns", took),
            ("median_ns", usual),
            ("difference_ns", took - usual),
            ("distance_ns", np.abs(took - usual)),
            ("alone_ns", np.where(known[edges], 0, took)),
        )
    }
    differs = totals["distance_ns"] + totals["alone_ns"]
    most = np.argsort(-differs, kind="stable")[:_SHOWN]
    return [
        about[k] | {what: int(total[k]) for what, total in totals.items()}
        for k in most.tolist()
        if differs[k]
    ]


def _whose(trace: Trace, model: StepTiming, edges: Array) -> tuple[list[dict[str, Any]], Array]:
    """What the time of each edge is: names, and which of them is whose."""
    node = np.append(model.timing.graph.node, np.full(len(model.steps), -1))
    src, after, kind = model.src[edges], model.after[edges], model.kind[edges]
    owner = node[after].astype(np.int64)
    chain = is_any(kind, _ON_LANES)
    meets = src < len(model.timing.graph)
    meets[meets] = model.timing.meets[src[meets]]
    inside = chain & ~meets
    before = node[src[inside]]
    owner[inside] = np.where(src[inside] % 2 == 0, before, trace.array("parent")[before])
    what = np.array(_WHAT)[kind]
    name = np.where(owner >= 0, trace.array("name")[owner], -1)
    name[kind == step_timing.BORDER] = -2
    first, code = gather.distinct(name, np.unique(what, return_inverse=True)[1])
    names = trace.names()
    stems, number = numbered.split(names)
    own = np.array(model.steps)[model.step[after[first]]]
    told = [
        _NO_NAME.get(n) or (stems[n] if number[n] == step else names[n])
        for n, step in zip(name[first].tolist(), own.tolist(), strict=True)
    ]
    numbers: dict[tuple[str, str], int] = {}
    both = list(zip(told, what[first].tolist(), strict=True))
    merged = np.array([numbers.setdefault(key, len(numbers)) for key in both], np.int64)
    return [{"name": n, "what": w} for n, w in numbers], merged[code]
