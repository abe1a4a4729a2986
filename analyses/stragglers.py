"""Ranks that hold a job up, and the gain if each were as fast as its peers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import counterparts, gaps, grouping, windows
from chopper_interop.analyses.methods.timing import paths, spans
from chopper_interop.analyses.methods.timing.model import timing_of
from chopper_interop.analyses.methods.timing.reduced import ReducedTiming
from chopper_interop.arrays import arrow, intervals
from chopper_interop.arrays.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.timing.model import Timing
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

__all__ = ["stragglers"]

_COMPUTE, _COPY = (Kind.KERNEL, Kind.MEMSET), (Kind.MEMCPY,)
_BY = ("rank", "operation")
_MAX_REPLAYS = 16
"""Largest number of ranks, operations, or operations of a rank that are replaced in turn.

Chosen: each takes a replay of the whole graph. Those with the largest excess are replaced, so that only
small gains are unknown.
"""
_PERSISTENT_SHARE = 0.75
"""Share of the steps in which a persistent straggler is slow. Chosen: a few fast steps are tolerated."""
_NO_RANK = -1
"""Rank of the straggler where there is none."""


@dataclass(frozen=True)
class _Work:
    """Compute and copies that have counterparts on other ranks."""

    edge: Array
    """Edge of the timing model whose length is the duration of the operation."""
    node: Array
    rank: Array
    measured: Array
    """Its own duration."""
    even: Array
    """Median duration of the counterparts on all ranks."""
    peers: Array
    """Median duration of the counterparts on the other ranks."""


def stragglers(
    trace: Trace,
    *,
    by: str = "rank",
    steps: str = "",
    ranks: str = "",
    threshold: float = 1.01,
) -> Result:
    """Find ranks that are slower than their peers, and the time each costs the job.

    Parameters
    ----------
    trace
        A trace of several ranks with training steps.
    by
        Rows: ``"rank"``, or ``"operation"`` for each operation of each rank.
    steps
        Training steps, each by itself: ``each``, ``10``, ``10-12``; all by default.
    ranks
        Ranks with a row (``"0,4-7"``); they are compared with all ranks.
    threshold
        Slow-down from which on a rank is slow, by the median of the others; the default, 1 %, is
        chosen to be above noise.

    Returns
    -------
    Result
        Rows by rank: `kernel_time_ns` (sum over its kernels), `compute_ns` (time in which a kernel or
        fill runs), `slowdown_factor` (`kernel_time_ns` by the median of the other ranks'), `excess_ns`
        (time by which its operations exceeded their counterparts), `slower_share` (share of its
        operations that took longer), `gain_ns` (gain of the job if they took the time of their
        counterparts), `gain_share` (of the gain if all ranks were even), `steps_slow` of `steps`, and
        `persistent`: slow in most steps; null for a single step. By operation the same of each
        operation of each rank, and `even_gain_ns`: gain if that operation were even over all ranks.
        The summary has `slow_rank` (-1: none) and its `slowdown_factor`, and of the job `before_ns`,
        `even_ns` and `job_slowdown_factor` S = before / even.

    Notes
    -----
    After the what-if analysis of stragglers of Lin et al. (OSDI 2025): S, and for each worker the gain
    of the job without its slowness. There, operations of one type take the mean of all steps and
    workers; here, each takes the (lower) median of the very same operation of the same step on other
    ranks, and the graph of all endpoints is re-timed, hosts included. Transfers stay as measured.
    """
    gaps.check_choice("by", by, _BY)
    if not 1 <= threshold < np.inf:
        raise UsageError(f"threshold={threshold}: it must be at least 1")
    selected = windows.chosen_ranks(trace, ranks)
    window = windows.describe(steps, "all training steps")
    conventions = _conventions(threshold)
    notes = {
        "window": window + "; work belongs to the step that launched it, as a whole",
        "ranks": f"{len(selected)} of {len(trace.ranks)} have rows; compared with all",
    }
    step_windows = windows.rank_windows(trace, steps) if steps else windows.step_windows(trace)
    iterations = sorted({w.iteration for w in step_windows})
    rows = _operation_rows(trace, iterations)
    no_rows = _why_no_rows(trace, iterations, rows)
    work = _Work(*[np.empty(0, np.int64)] * 6) if no_rows else _matched_work(trace, rows)
    if no_rows is None and not work.edge.size:
        no_rows = "no operation has a counterpart on another rank"
    if no_rows is not None:
        notes["no rows"] = no_rows
        return Result("stragglers", _ranks_table([]), _summary(None, []), conventions, notes=notes)
    replay = _Replay(timing_of(trace), work, spans.spans_of_timing(timing_of(trace), steps))
    of_ranks = _rank_figures(trace, rows, iterations, replay, threshold)
    of_ranks = [row for row in of_ranks if row["rank"] in selected]
    total = int(trace.array("dur")[rows].sum())
    notes["counterparts"] = (
        f"{len(work.edge):,} of {len(rows):,} operations have counterparts, with "
        f"{work.measured.sum() / max(total, 1):.1%} of the time; the others stay as measured"
    )
    by_operation = by == "operation"
    table = _operations_table(trace, replay, selected) if by_operation else _ranks_table(of_ranks)
    summary = _summary(replay, of_ranks, threshold)
    return Result("stragglers", table, summary, conventions, notes=notes)


def _conventions(threshold: float) -> dict[str, str]:
    return {
        "operations": "kernels, fills and copies; transfers of collectives, host work and waits keep "
        "their measured duration and move with the work they wait for",
        "counterparts of an operation": "the same operation of the same step on other ranks, see counterparts",
        "median": "of an even number the lower for operations, the mean of both for sums of ranks",
        "slow": f"at {threshold:g} times the median of the other ranks or more; persistent: in "
        f"{_PERSISTENT_SHARE:.0%} of the steps or more, of at least two",
        "gains": f"of the {_MAX_REPLAYS} with the largest excess, null for the rest; they do not add up",
        "links": "all work of steps counts, whether its launch is recorded or not",
        "memset": "count as operations and in compute_ns, but not in kernel_time_ns",
        "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as kernels",
    }


def _operation_rows(trace: Trace, iterations: list[int]) -> Array:
    """Rows of the operations of these steps."""
    is_operation = is_any(trace.array("kind"), (*_COMPUTE, *_COPY))
    return np.flatnonzero(is_operation & np.isin(trace.integers("iteration"), iterations))


def _why_no_rows(trace: Trace, iterations: list[int], rows: Array) -> str | None:
    if len(trace.ranks) < 2:  # noqa: PLR2004
        return "one rank has nothing to be compared with"
    if not iterations:
        return "the trace has no training steps, so that corresponding operations are unknown"
    return None if rows.size else "the training steps have no GPU work"


def _matched_work(trace: Trace, rows: Array) -> _Work:
    """Operations of these rows with counterparts on other ranks, and the medians of these."""
    timing = timing_of(trace)
    owner = paths.edge_owners(timing)
    is_row = np.zeros(trace.nodes.num_rows + 1, bool)  # the last one for edges without an owner, -1
    is_row[rows] = True
    edge = np.flatnonzero(is_row[owner])
    node = owner[edge].astype(np.int64)
    group = counterparts.counterpart_groups(trace, across="ranks")[node]
    measured, rank = timing.lag_ns[edge], trace.array("rank")[node].astype(np.int64)
    even, _ = counterparts.group_medians(measured, group)
    peers, members = counterparts.group_medians(measured, group, apart=rank)
    has = members > 0
    return _Work(edge[has], node[has], rank[has], measured[has], even[has], peers[has])


class _Replay:
    """Gains of the job if operations take the time of their counterparts."""

    def __init__(self, timing: Timing, work: _Work, job_spans: spans.Spans) -> None:
        self.work = work
        self._model = ReducedTiming(timing, work.edge)
        # only the times of the spans' endpoints are computed: spans then index these, not vertices
        self._endpoints = np.concatenate([job_spans.begin, job_spans.end])
        begins = np.arange(len(job_spans.begin))
        ends = len(begins) + np.arange(len(job_spans.end))
        self._spans = replace(job_spans, begin=begins, end=ends)
        self.before = int(job_spans.lengths(timing.at_ns).sum())
        self.even_gain = self.gain(np.ones(len(work.edge), bool), work.even)

    def gain(self, mask: Array, duration: Array) -> int:
        """Gain if the operations of this mask take these durations."""
        changed = mask & (duration != self.work.measured)
        if not changed.any():
            return 0
        at = self._model.retimed(np.where(changed, duration, self.work.measured), self._endpoints)
        return self.before - int(self._spans.lengths(at).sum())


def _rank_figures(
    trace: Trace, rows: Array, iterations: list[int], replay: _Replay, threshold: float
) -> list[dict[str, Any]]:
    ranks = trace.ranks
    rank_index = np.searchsorted(ranks, trace.array("rank")[rows])
    step = np.searchsorted(iterations, trace.integers("iteration", rows))
    is_kernel = trace.array("kind")[rows] == Kind.KERNEL
    times = np.zeros((len(ranks), len(iterations)), np.int64)
    np.add.at(times, (rank_index[is_kernel], step[is_kernel]), trace.array("dur")[rows[is_kernel]])
    slow = _ratio_to_others(times) >= threshold
    slowdown = _ratio_to_others(times.sum(axis=1))
    work = replay.work
    excess = np.zeros(len(ranks), np.int64)
    np.add.at(excess, np.searchsorted(ranks, work.rank), work.measured - work.peers)
    replayed = _largest(excess)
    compute = _compute_times(trace, rows, rank_index, len(ranks))
    figures = []
    for k, rank in enumerate(ranks):
        of_rank = work.rank == rank
        gain = replay.gain(of_rank, work.peers) if k in replayed else None
        total, known = times[k].sum(), np.isfinite(slowdown[k])
        slower = (work.measured > work.peers)[of_rank]
        persistent = None
        if len(iterations) > 1:
            is_mostly_slow = slow[k].mean() >= _PERSISTENT_SHARE
            persistent = bool(known and slowdown[k] >= threshold and is_mostly_slow)
        figures.append(
            {
                "rank": rank,
                "kernel_time_ns": int(total),
                "compute_ns": compute[k],
                "slowdown_factor": float(slowdown[k]) if known else None,
                "excess_ns": int(excess[k]),
                "slower_share": float(slower.mean()) if of_rank.any() else None,
                "gain_ns": gain,
                "gain_share": gain / replay.even_gain
                if gain is not None and replay.even_gain > 0
                else None,
                "steps": len(iterations),
                "steps_slow": int(slow[k].sum()),
                "persistent": persistent,
            }
        )
    return figures


def _largest(excess: Array) -> set[int]:
    """Indices of the largest values, of as many as are replayed."""
    return set(np.argsort(-excess, kind="stable")[:_MAX_REPLAYS].tolist())


def _ratio_to_others(times: Array) -> Array:
    """Each row's number by the median of the other rows'; NaN where that is 0."""
    ratio = np.full(times.shape, np.nan)
    for k in range(len(times)):
        others = np.median(np.delete(times, k, axis=0), axis=0)
        ratio[k] = np.divide(
            times[k], others, out=np.full(np.shape(others), np.nan), where=others > 0
        )
    return ratio


def _compute_times(trace: Trace, rows: Array, rank_index: Array, count: int) -> list[int]:
    """Time of each rank in which a kernel or fill runs."""
    is_compute = is_any(trace.array("kind")[rows], _COMPUTE)
    ts, dur = trace.array("ts"), trace.array("dur")
    times = []
    for k in range(count):
        of_rank = rows[is_compute & (rank_index == k)]
        times.append(
            intervals.total_length(intervals.union(ts[of_rank], ts[of_rank] + dur[of_rank]))
        )
    return times


_COLUMNS = {
    "rank": pa.int32(), "kernel_time_ns": pa.int64(), "compute_ns": pa.int64(),
    "slowdown_factor": pa.float64(), "excess_ns": pa.int64(), "slower_share": pa.float64(),
    "gain_ns": pa.int64(), "gain_share": pa.float64(), "steps": pa.int32(),
    "steps_slow": pa.int32(), "persistent": pa.bool_(),
}  # fmt: skip


def _ranks_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in _COLUMNS.items()}
    )


def _operations_table(trace: Trace, replay: _Replay, selected: list[int]) -> pa.Table:
    """Compare the operations of each rank with those of its peers."""
    work = replay.work
    pairs = grouping.group_nodes(trace, work.node, "rank,operation")
    operations = grouping.group_nodes(trace, work.node, "operation")
    measured, peers = pairs.sums(work.measured), pairs.sums(work.peers)
    operation_of_pair = np.zeros(len(pairs), np.int64)
    operation_of_pair[pairs.code] = operations.code
    uneven = operations.sums(np.maximum(work.measured - work.even, 0))
    even_gain = _gains(replay, operations.code, uneven, work.even)
    gain = _gains(replay, pairs.code, measured - peers, work.peers)
    has_peers = peers > 0
    slowdown = np.divide(measured, peers, out=np.zeros(len(measured)), where=has_peers)
    slower = np.bincount(pairs.code, work.measured > work.peers, len(pairs))
    number = np.bincount(pairs.code, minlength=len(pairs))
    table = pa.table(
        {
            "rank": pairs.keys["rank"],
            "operation": pairs.keys["operation"],
            "operations": arrow.array(number),
            "time_ns": arrow.array(measured),
            "slowdown_factor": arrow.array(slowdown, mask=~has_peers),
            "excess_ns": arrow.array(measured - peers),
            "slower_share": arrow.array(slower / np.maximum(number, 1)),
            "gain_ns": _known_integers(gain),
            "even_gain_ns": arrow.take(_known_integers(even_gain), operation_of_pair),
        }
    )
    return arrow.take(table, np.isin(arrow.to_numpy(table["rank"]), selected))


def _gains(replay: _Replay, code: Array, excess: Array, duration: Array) -> list[int | None]:
    """Gain by each of the groups with the largest excess; None for the others."""
    replayed = _largest(excess)
    return [replay.gain(code == k, duration) if k in replayed else None for k in range(len(excess))]


def _known_integers(values: list[int | None]) -> Any:
    return pa.array(values, pa.int64())


def _summary(
    replay: _Replay | None, rows: list[dict[str, Any]], threshold: float = 1.0
) -> dict[str, Any]:
    slow = [r for r in rows if r["slowdown_factor"] and r["slowdown_factor"] >= threshold]
    worst = max(slow, key=lambda r: r["slowdown_factor"], default=None)
    if replay is None:
        figures = dict.fromkeys(("before_ns", "even_ns", "job_slowdown_factor"))
        return {"ranks": 0, "slow_rank": _NO_RANK, "slowdown_factor": None, **figures}
    even = replay.before - replay.even_gain
    return {
        "ranks": len(rows),
        "slow_rank": worst["rank"] if worst else _NO_RANK,
        "slowdown_factor": worst["slowdown_factor"] if worst else 1.0,
        "persistent": worst["persistent"] if worst else None,
        "before_ns": replay.before,
        "even_ns": even,
        "job_slowdown_factor": replay.before / even if even > 0 else None,
    }
