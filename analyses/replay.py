"""How well a step's graph, with durations of other steps, tells how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, counterparts, gather, step_timing, timing_loops, windows
from chopper_interop.compiled import jit
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.step_timing import StepTiming
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

__all__ = ["replay"]

CONVENTIONS = ("gaps_kept", "gaps_removed", "hold_out", "hold_out_but_first")
"""What is replayed; rows bear these names."""
_BY = ("job", "rank")
_SHOWN = 10
_LEAST_STEPS = 2
_ON_LANES = (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.DURATION)
_WAITS = {
    EdgeKind.LAUNCH: "launch",
    EdgeKind.STREAM: "stream",
    EdgeKind.EVENT: "event",
    EdgeKind.SYNC: "sync",
    EdgeKind.HANDOVER: "handover",
}

_TOLD = {
    "gaps_kept": "each step with all times as measured: 0 by construction",
    "gaps_removed": "each step with what nothing explains (`delay_ns` of critical_path) left out; least "
    "latencies and the host's own time stay",
    "hold_out": "the graph of one step, and for every duration, transfer, wait and delay in it the median "
    "of its counterparts in all steps but the one that is predicted; what has none there keeps the "
    "graph's own. Nothing measured in the predicted step is used",
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
    "steps, summed by name over all steps (see `iteration` of the rows for how many)",
}


def replay(
    trace: Trace, *, by: str = "job", steps: str = "", ranks: str = "", graphs: int = 8
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
        (`difference_ns`, and `distance_ns` without regard to sign), greatest first.

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
    conventions = {
        "window": windows.described(steps or "each", ""),
        "ranks": f"{len(chosen)} of {len(trace.ranks)}",
        "graphs": f"the {graphs} nearest other steps predict each",
        **_TOLD,
    }
    if not found:
        conventions["no rows"] = "the trace has no training steps"
        return Result("replay", _table([], by=by), _summary([], None, []), conventions)
    model = step_timing.of(part, found)
    group, vertex = model.groups()
    lengths = [
        _Lengths("gaps_kept", *_own(model, model.delay_ns, by)),
        _Lengths("gaps_removed", *_own(model, np.zeros_like(model.delay_ns), by)),
    ]
    others = _others(model, group, vertex, first=0)
    lengths += _held_out("hold_out", model, others, by, graphs)
    if len(model.steps) > _LEAST_STEPS:
        later = _others(model, group, vertex, first=1)
        lengths += _held_out("hold_out_but_first", model, later, by, graphs)
    if len(model.steps) < _LEAST_STEPS:
        conventions["no hold_out"] = "there is one training step alone"
    elif len(model.steps) == _LEAST_STEPS:
        conventions["no hold_out_but_first"] = "there are two training steps alone"
        conventions["of two steps"] = "each has the durations of the other one"
    rows = _table(lengths, by=by)
    varies = _varies(part, model, others)
    return Result("replay", rows, _summary(lengths, others, varies), conventions)


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
class _Others:
    """What the other steps say of each edge and each vertex.

    Parameters
    ----------
    first
        Steps from this one on count.
    edge, vertex
        Groups of counterparts, whose numbers are below `sizes`.
    lag, delay
        Medians of all steps.
    lag_apart, delay_apart
        Medians of all steps but its own.
    known
        Of how many others that is, by edge.
    """

    first: int
    edge: Array
    vertex: Array
    lag: Array
    delay: Array
    lag_apart: Array
    delay_apart: Array
    known: Array


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


def _others(model: StepTiming, edge: Array, vertex: Array, first: int) -> _Others:
    step = model.step
    of_edge = step[model.after]
    counts = of_edge >= first
    lag, _ = counterparts.medians(model.lag_ns, edge, counts=counts, between=True)
    lag_apart, known = counterparts.medians(
        model.lag_ns, edge, counts=counts, apart=of_edge, between=True
    )
    counts = step >= first
    delay, _ = counterparts.medians(model.delay_ns, vertex, counts=counts, between=True)
    delay_apart, _ = counterparts.medians(
        model.delay_ns, vertex, counts=counts, apart=step, between=True
    )
    return _Others(first, edge, vertex, lag, delay, lag_apart, delay_apart, known)


def _held_out(
    convention: str, model: StepTiming, others: _Others, by: str, graphs: int
) -> list[_Lengths]:
    """Every step by the graphs of others: for each distance between them all steps at once."""
    by_rank, count = by == "rank", len(model.steps)
    step = model.window_step if by_rank else np.arange(count)
    numbers, rank = np.array(model.steps), _ranks(model, by)
    measured = model.lengths(model.at_ns, by_rank=by_rank)
    window = {key: k for k, key in enumerate(zip(step.tolist(), rank.tolist(), strict=True))}
    found = []
    for away in _distances(count - others.first, graphs):
        lag = _moved(others.edge, model.step[model.after], others.lag, others.lag_apart, away)
        delay = _moved(others.vertex, model.step, others.delay, others.delay_apart, away)
        predicted = model.lengths(model.retimed(lag, delay), by_rank=by_rank)
        target = [
            window.get((s + away, r), -1) for s, r in zip(step.tolist(), rank.tolist(), strict=True)
        ]
        of = np.array(target, np.int64)
        made = np.flatnonzero((of >= 0) & (step >= others.first) & (step + away >= others.first))
        of = of[made]
        found.append(
            _Lengths(
                convention,
                numbers[step[of]],
                numbers[step[made]],
                rank[made],
                measured[of],
                predicted[made],
            )  # fmt: skip
        )
    return found


def _distances(count: int, graphs: int) -> list[int]:
    """From the graph's step to the predicted one: 1, -1, 2, …"""
    return [sign * away for away in range(1, count) for sign in (1, -1)][:graphs]


def _moved(group: Array, step: Array, every: Array, apart: Array, away: int) -> Array:
    """Medians of all steps but the one so far away; of what that lacks, of all."""
    used = np.flatnonzero(group >= 0)
    size = int(group.max(initial=-1)) + 1
    first, place = gather.places(group[used], size)
    return _taken(first, used[place], step, every, apart, away)


@jit
def _taken(
    first: Array, member: Array, step: Array, every: Array, apart: Array, away: int
) -> Array:
    found = every.copy()
    for g in range(len(first) - 1):
        for k in range(first[g], first[g + 1]):
            wanted = step[member[k]] + away
            for m in range(first[g], first[g + 1]):
                if step[member[m]] == wanted:
                    found[member[k]] = apart[member[m]]
                    break
    return found


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
    place = {name: k for k, name in enumerate(CONVENTIONS)}
    order = np.lexsort(
        (
            joined("rank"),
            joined("graph_iteration"),
            joined("iteration"),
            np.array([place[n] for n in names], np.int64),
        )
    )
    return table.take(arrow.array(order))


def _summary(
    lengths: list[_Lengths], others: _Others | None, varies: list[dict[str, Any]]
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in CONVENTIONS:
        parts = [one.error for one in lengths if one.convention == name]
        error = np.concatenate(parts) if parts else np.empty(0)
        error = error[~np.isnan(error)]
        made[f"{name}_predictions"] = len(error)
        for figure, of in (("mean", np.mean), ("median", np.median), ("max", np.max)):
            made[f"{name}_{figure}_error_share"] = float(of(error)) if error.size else None
    matched = None
    if others is not None and len(others.known):
        matched = float(np.count_nonzero(others.known) / len(others.known))
    return {**made, "matched_edges_share": matched, "varies": varies}


def _varies(trace: Trace, model: StepTiming, others: _Others) -> list[dict[str, Any]]:
    """Operations that took longer or shorter than in the other steps, on what bound each step."""
    if len(model.steps) < _LEAST_STEPS:
        return []
    rank = np.zeros(len(model.src), np.uint8)
    lag = model.lag_ns
    binding, _ = timing_loops.bound(model.at_ns, model.first, model.after, lag, rank)
    vertex = model.ends[0]
    order = np.lexsort((-vertex, model.at_ns[vertex], model.window_step[model.ends[1]]))
    last = vertex[order][
        np.flatnonzero(np.diff(model.window_step[model.ends[1]][order], append=-1))
    ]
    never = -int(timing_loops.NEVER)
    paths = [timing_loops.walk(binding, model.src, model.at_ns, int(v), never) for v in last]
    edges = np.concatenate(paths)
    after = model.after[edges]
    took = lag[edges] + model.delay_ns[after]
    usual = others.lag_apart[edges] + others.delay_apart[after]
    return _by_name(_whose(trace, model, edges), took, usual)


def _whose(trace: Trace, model: StepTiming, edges: Array) -> list[tuple[str, str]]:
    """Name of what each edge is the time of, and what that is."""
    graph = model.timing.graph
    node = np.append(graph.node, np.full(len(model.steps), -1))
    src, after, kind = model.src[edges], model.after[edges], model.kind[edges]
    owner = node[after].astype(np.int64)
    chain = np.isin(kind, [int(k) for k in _ON_LANES])
    before = node[src[chain]]
    inside = np.where(src[chain] % 2 == 0, before, trace.array("parent")[before])
    owner[chain] = inside
    names, name = trace.names(), trace.array("name")
    told = []
    for o, k in zip(owner.tolist(), kind.tolist(), strict=True):
        if k == step_timing.BORDER:
            told.append(("state at the start of the step", "border"))
        elif o < 0:
            told.append(("between operations of the host", "host"))
        else:
            told.append((names[name[o]], _WAITS.get(EdgeKind(k), "work")))
    return told


def _by_name(about: list[tuple[str, str]], took: Array, usual: Array) -> list[dict[str, Any]]:
    numbers: dict[tuple[str, str], int] = {}
    code = np.array([numbers.setdefault(key, len(numbers)) for key in about], np.int64)
    totals = {}
    for what, values in (
        ("count", np.ones_like(took)),
        ("took_ns", took),
        ("median_ns", usual),
        ("difference_ns", took - usual),
        ("distance_ns", np.abs(took - usual)),
    ):
        total = np.zeros(len(numbers), np.int64)
        np.add.at(total, code, values)
        totals[what] = total
    most = np.argsort(-totals["distance_ns"], kind="stable")[:_SHOWN]
    keys = list(numbers)
    return [
        {"name": keys[k][0], "what": keys[k][1]}
        | {what: int(total[k]) for what, total in totals.items()}
        for k in most.tolist()
        if totals["distance_ns"][k]
    ]
