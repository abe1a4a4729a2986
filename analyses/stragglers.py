"""Which ranks hold a job up: what it would gain if each were as its peers are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import counterparts, grouping, windows
from chopper_interop.columns import arrow, intervals
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.timing import paths, spans
from chopper_interop.timing.model import timing_of
from chopper_interop.timing.reduced import Reduced

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace

__all__ = ["stragglers"]

_COMPUTE, _COPY = (Kind.KERNEL, Kind.MEMSET), (Kind.MEMCPY,)
_BY = ("rank", "operation")
_PASSES = 16
"""So many ranks, operations, or operations of a rank are replaced in turn at most."""
_MOSTLY = 0.75
NONE = -1
"""Rank of a straggler where there is none."""


@dataclass(frozen=True)
class _Work:
    """Compute and copies that have counterparts on other ranks."""

    edge: Array
    """Of the timing model: the one that it lasts along."""
    node: Array
    rank: Array
    own: Array
    even: Array
    """Median of all ranks."""
    peers: Array
    """Median of the other ranks."""


def stragglers(
    trace: Trace,
    *,
    by: str = "rank",
    steps: str = "",
    ranks: str = "",
    threshold: float = 1.01,
) -> Result:
    """Ranks that are slower than their peers, and what each costs the job.

    Parameters
    ----------
    trace
        A trace of several ranks with training steps.
    by
        Rows: ``"rank"``, or ``"operation"`` for each operation of each rank.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all.
    ranks
        Ranks that are asked about (``"0,4-7"``); they are compared with all.
    threshold
        A rank is slow from this many times the median of the others on: less is noise.

    Returns
    -------
    Result
        Rows by rank: `kernel_time_ns` (sum over its kernels), `compute_ns` (when any runs, or a fill),
        `slowdown_factor` (`kernel_time_ns` by the median of the other ranks'), `excess_ns` (how much
        longer its operations took than their counterparts), `slower_share` (of its operations, those
        that took longer), `gain_ns` (what the job would gain if they took what their counterparts
        do), `gain_share` (of the gain if all ranks were even), `steps_slow` of `steps`, and
        `persistent`: slow in most steps; null for a single step. By operation the same of each
        operation of each rank, and `even_gain_ns`: if that operation were even over all ranks. The
        summary has `slow_rank` (-1: none) and its `slowdown_factor`, and of the job `before_ns`,
        `even_ns` and `job_slowdown_factor` S = before / even.

    Notes
    -----
    After the what-if analysis of stragglers of Lin et al. (OSDI 2025): S, and of each worker what the
    job gains without its slowness. There operations of one type take the mean of all steps and
    workers; here each takes the (lower) median of the very same operation of the same step on other
    ranks, and the graph of all moments is timed anew, hosts included. Transfers stay as measured.
    """
    if by not in _BY:
        raise UsageError(f"by={by}: there is no {by!r}", hint=f"there are {', '.join(_BY)}")
    if not 1 <= threshold < np.inf:
        raise UsageError(f"threshold={threshold}: it must be at least 1")
    mine = windows.chosen_ranks(trace, ranks)
    window = windows.described(steps, "all training steps")
    conventions = _conventions(threshold)
    notes = {
        "window": window + "; work belongs to the step that launched it, as a whole",
        "ranks": f"{len(mine)} of {len(trace.ranks)} are asked about; compared with all",
    }
    chosen = windows.of_ranks(trace, steps) if steps else windows.marked(trace)
    iterations = sorted({w.iteration for w in chosen})
    counted = _counted(trace, iterations)
    why = _nothing(trace, iterations, counted)
    work = _Work(*[np.empty(0, np.int64)] * 6) if why else _matched(trace, counted)
    if why is None and not work.edge.size:
        why = "no operation has a counterpart on another rank"
    if why is not None:
        notes["no rows"] = why
        return Result("stragglers", _ranks_table([]), _summary(None, []), conventions, notes=notes)
    replay = _Replay(timing_of(trace), work, spans.of(timing_of(trace), steps))
    found = _of_ranks(trace, counted, iterations, replay, threshold)
    found = [row for row in found if row["rank"] in mine]
    all_own = int(trace.array("dur")[counted].sum())
    notes["counterparts"] = (
        f"{len(work.edge):,} of {len(counted):,} operations have some, with "
        f"{work.own.sum() / max(all_own, 1):.1%} of the time; the others stay as measured"
    )
    rows = _operations_table(trace, replay, mine) if by == "operation" else _ranks_table(found)
    summary = _summary(replay, found, threshold)
    return Result("stragglers", rows, summary, conventions, notes=notes)


def _conventions(threshold: float) -> dict[str, str]:
    return {
        "operations": "kernels, fills and copies; transfers of collectives, hosts and waits stay as "
        "measured and move with what they wait for",
        "counterparts of an operation": "the same one of the same step on other ranks, see counterparts",
        "median": "of an even number the lower for operations, the mean of both for whole ranks",
        "slow": f"from {threshold:g} times the median of the other ranks on; persistent: in "
        f"{_MOSTLY:.0%} of the steps or more, of at least two",
        "gains": f"of at most {_PASSES} that took most in excess, null for the rest; they do not add up",
        "links": "all work of steps counts, whether its launch is recorded or not",
        "memset": "operations as others, and part of compute_ns; not of kernel_time_ns",
        "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as kernels",
    }


def _counted(trace: Trace, iterations: list[int]) -> Array:
    """Rows of the operations of these steps."""
    which = is_any(trace.array("kind"), (*_COMPUTE, *_COPY))
    if not iterations:
        return np.empty(0, np.int64)
    step = arrow.numbers(trace.nodes["iteration"], -1)
    return np.flatnonzero(which & np.isin(step, iterations))


def _nothing(trace: Trace, iterations: list[int], counted: Array) -> str | None:
    if len(trace.ranks) < 2:  # noqa: PLR2004
        return "one rank has nobody to be compared with"
    if not iterations:
        return "the trace has no training steps, so that nobody knows which operations correspond"
    return None if counted.size else "the training steps have no GPU work"


def _matched(trace: Trace, counted: Array) -> _Work:
    timing = timing_of(trace)
    owner = paths.owners(timing)
    wanted = np.zeros(trace.nodes.num_rows + 1, bool)
    wanted[counted] = True
    edge = np.flatnonzero(wanted[owner])
    node = owner[edge].astype(np.int64)
    group = counterparts.of(trace, across="ranks")[node]
    own, rank = timing.lag_ns[edge], trace.array("rank")[node].astype(np.int64)
    even, _ = counterparts.medians(own, group)
    peers, members = counterparts.medians(own, group, apart=rank)
    has = members > 0
    return _Work(edge[has], node[has], rank[has], own[has], even[has], peers[has])


class _Replay:
    """What the job gains if operations take what their counterparts do."""

    def __init__(self, timing: Timing, work: _Work, found: spans.Spans) -> None:
        self.work = work
        self._model = Reduced(timing, work.edge)
        self._moments = np.concatenate([found.begin, found.end])
        begins = np.arange(len(found.begin))
        ends = len(begins) + np.arange(len(found.end))
        self._spans = replace(found, begin=begins, end=ends)
        self.before = int(found.lengths(timing.at_ns).sum())
        self.even_gain = self.gain(np.ones(len(work.edge), bool), work.even)

    def gain(self, which: Array, instead: Array) -> int:
        """Gain if those operations take that time."""
        changed = which & (instead != self.work.own)
        if not changed.any():
            return 0
        at = self._model.retimed(np.where(changed, instead, self.work.own), self._moments)
        return self.before - int(self._spans.lengths(at).sum())


def _of_ranks(
    trace: Trace, counted: Array, iterations: list[int], replay: _Replay, threshold: float
) -> list[dict[str, Any]]:
    every = trace.ranks
    place = np.searchsorted(every, trace.array("rank")[counted])
    step = np.searchsorted(iterations, arrow.numbers(trace.nodes["iteration"], -1)[counted])
    kernel = trace.array("kind")[counted] == Kind.KERNEL
    times = np.zeros((len(every), len(iterations)), np.int64)
    np.add.at(times, (place[kernel], step[kernel]), trace.array("dur")[counted[kernel]])
    slow = _times_others(times) >= threshold
    slowdown = _times_others(times.sum(axis=1))
    work = replay.work
    excess = np.zeros(len(every), np.int64)
    np.add.at(excess, np.searchsorted(every, work.rank), work.own - work.peers)
    asked = set(np.argsort(-excess, kind="stable")[:_PASSES].tolist())
    compute = _compute(trace, counted, place, len(every))
    rows = []
    for k, rank in enumerate(every):
        own = work.rank == rank
        gain = replay.gain(own, work.peers) if k in asked else None
        total, known = times[k].sum(), np.isfinite(slowdown[k])
        persistent = None
        if len(iterations) > 1:
            mostly = slow[k].mean() >= _MOSTLY
            persistent = bool(known and slowdown[k] >= threshold and mostly)
        rows.append(
            {
                "rank": rank,
                "kernel_time_ns": int(total),
                "compute_ns": compute[k],
                "slowdown_factor": float(slowdown[k]) if known else None,
                "excess_ns": int(excess[k]),
                "slower_share": float((work.own > work.peers)[own].mean()) if own.any() else None,
                "gain_ns": gain,
                "gain_share": gain / replay.even_gain
                if gain is not None and replay.even_gain > 0
                else None,
                "steps": len(iterations),
                "steps_slow": int(slow[k].sum()),
                "persistent": persistent,
            }
        )
    return rows


def _times_others(times: Array) -> Array:
    """Each row's number by the median of the other rows'; not a number where that is 0."""
    found = np.full(times.shape, np.nan)
    for k in range(len(times)):
        others = np.median(np.delete(times, k, axis=0), axis=0)
        found[k] = np.divide(
            times[k], others, out=np.full(np.shape(others), np.nan), where=others > 0
        )
    return found


def _compute(trace: Trace, counted: Array, place: Array, size: int) -> list[int]:
    which = is_any(trace.array("kind")[counted], _COMPUTE)
    ts, dur = trace.array("ts"), trace.array("dur")
    found = []
    for k in range(size):
        mine = counted[which & (place == k)]
        found.append(intervals.length(intervals.union(ts[mine], ts[mine] + dur[mine])))
    return found


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


def _operations_table(trace: Trace, replay: _Replay, mine: list[int]) -> pa.Table:
    """Operations of each rank against those of its peers."""
    work = replay.work
    pairs = grouping.of(trace, work.node, "rank,operation")
    operations = grouping.of(trace, work.node, "operation")
    own, peers = pairs.sums(work.own), pairs.sums(work.peers)
    of_pair = np.zeros(len(pairs), np.int64)
    of_pair[pairs.code] = operations.code
    uneven = operations.sums(np.maximum(work.own - work.even, 0))
    even_gain = _gains(replay, operations.code, uneven, work.even)
    gain = _gains(replay, pairs.code, own - peers, work.peers)
    some = peers > 0
    slowdown = np.divide(own, peers, out=np.zeros(len(own)), where=some)
    slower = np.bincount(pairs.code, work.own > work.peers, len(pairs))
    number = np.bincount(pairs.code, minlength=len(pairs))
    table = pa.table(
        {
            "rank": pairs.keys["rank"],
            "operation": pairs.keys["operation"],
            "operations": arrow.array(number),
            "time_ns": arrow.array(own),
            "slowdown_factor": arrow.array(slowdown, mask=~some),
            "excess_ns": arrow.array(own - peers),
            "slower_share": arrow.array(slower / np.maximum(number, 1)),
            "gain_ns": arrow.array(np.array([g or 0 for g in gain], np.int64), mask=_missing(gain)),
            "even_gain_ns": _at(even_gain, of_pair),
        }
    )
    return arrow.take(table, np.isin(arrow.numbers(table["rank"]), mine))


def _gains(replay: _Replay, code: Array, excess: Array, instead: Array) -> list[int | None]:
    """Gain by each of those groups that took most in excess; None for the others."""
    asked = set(np.argsort(-excess, kind="stable")[:_PASSES].tolist())
    return [replay.gain(code == k, instead) if k in asked else None for k in range(len(excess))]


def _missing(values: list[int | None]) -> Array:
    return np.array([value is None for value in values], bool)


def _at(values: list[int | None], place: Array) -> Any:
    filled = np.array([value or 0 for value in values], np.int64)
    return arrow.array(filled[place], mask=_missing(values)[place])


def _summary(
    replay: _Replay | None, rows: list[dict[str, Any]], threshold: float = 1.0
) -> dict[str, Any]:
    slow = [r for r in rows if r["slowdown_factor"] and r["slowdown_factor"] >= threshold]
    worst = max(slow, key=lambda r: r["slowdown_factor"], default=None)
    if replay is None:
        figures = dict.fromkeys(("before_ns", "even_ns", "job_slowdown_factor"))
        return {"ranks": 0, "slow_rank": NONE, "slowdown_factor": None, **figures}
    even = replay.before - replay.even_gain
    return {
        "ranks": len(rows),
        "slow_rank": worst["rank"] if worst else NONE,
        "slowdown_factor": worst["slowdown_factor"] if worst else 1.0,
        "persistent": worst["persistent"] if worst else None,
        "before_ns": replay.before,
        "even_ns": even,
        "job_slowdown_factor": replay.before / even if even > 0 else None,
    }
