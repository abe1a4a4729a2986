"""Bubbles of pipelines: when a stage has nothing to compute, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.activity import windows
from chopper_interop.communication import stages
from chopper_interop.communication.stage_times import StageTimes
from chopper_interop.errors import UsageError
from chopper_interop.result import Result

if TYPE_CHECKING:
    from chopper_interop.communication.stages import Pipeline
    from chopper_interop.trace import Trace

    Row = dict[str, Any]

__all__ = ["bubbles"]

_GRAINS = ("job", "rank", "iteration")
_SUMS = (
    "span_ns", "compute_ns", "p2p_ns", "bubble_ns", "warmup_ns", "steady_ns", "cooldown_ns",
    "recv_ns", "recv_wait_ns",
)  # fmt: skip
_TYPES = {
    "rank": pa.int32(), "iteration": pa.int32(), "pipeline": pa.int32(), "stage": pa.int32(),
    "stages": pa.int32(), "microbatches": pa.int32(), "start_ns": pa.int64(), "end_ns": pa.int64(),
    **dict.fromkeys(_SUMS, pa.int64()),
    "bubble_share": pa.float64(), "ideal_bubble_share": pa.float64(),
}  # fmt: skip
_CONVENTIONS = {
    "window": "of each training step, over all stages of a pipeline: from the first start to the "
    "last end of its forward and backward kernels; where passes are not known, of all its kernels",
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "counts as compute",
    "copies": "do not count: a rank that only copies has nothing to compute",
    "bubble": "time in the window in which the rank runs neither compute, of whatever step, nor "
    "communication other than sends and receives",
    "pipelines": "ranks that send to and receive from each other along a line; else ranges that "
    "name stages (PP:0F1)",
    "ideal": "(p-1)/(m+p-1) for p stages and m microbatches of equal length; m is the most that a "
    "rank sends another in forward passes of the step",
}


def bubbles(
    trace: Trace, *, by: str = "rank,iteration", steps: str = "", ranks: str = ""
) -> Result:
    """Time in which stages of a pipeline have nothing to compute.

    Parameters
    ----------
    trace
        Any trace; of a job without pipeline there are no rows.
    by
        Names out of ``rank``, ``iteration`` and ``job``, separated by commas: times are summed over
        what is not named.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all of them,
        each too. Without training steps the whole trace is one.
    ranks
        These ranks are told about, as ``0,4-7``, else all; windows are those of all.

    Returns
    -------
    Result
        One row a rank and training step: `pipeline`, `stage` (from 0), `stages`, `microbatches`;
        `start_ns` and `end_ns` of the window, as ts, and `span_ns`; of this `compute_ns` (a kernel
        or fill runs), `p2p_ns` (a send or receive runs) and `bubble_ns` (neither compute nor other
        communication), which is `warmup_ns` (before the rank's first forward or backward kernel)
        + `steady_ns` + `cooldown_ns` (after its last); of the bubble `recv_ns` (a receive
        runs) and `recv_wait_ns` (and its send has not started; null where that is not known);
        `bubble_share` = `bubble_ns` / `span_ns`, and `ideal_bubble_share`.

    Notes
    -----
    The ideal is that of GPipe and 1F1B with equal stages and no time for sending; an interleaved
    schedule sends v times as many messages for v parts of a stage, which the formula counts as
    microbatches. Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM", SC 2021, section 2.2, whose ratio to the ideal time is
    (p-1)/m; ours is the share of the whole time.
    """
    grains = _grains(by)
    chosen = set(windows.chosen_ranks(trace, ranks))
    wanted = {w.iteration for w in windows.of_ranks(trace, steps)} if steps else None
    job = StageTimes(trace)
    lines = stages.pipelines(trace, job.began())
    rows = [
        _with_shares(row)
        for number, line in enumerate(lines)
        for row in job.rows(number, line)
        if row["rank"] in chosen and (wanted is None or row["iteration"] in wanted)
    ]
    rows.sort(key=lambda row: (row["rank"], -1 if row["iteration"] is None else row["iteration"]))
    return Result(
        "bubbles", _table(rows, grains), _summary(lines, rows), _CONVENTIONS,
        notes=_left_out(job, lines, rows),
    )  # fmt: skip


def _grains(by: str) -> set[str]:
    names = {name.strip() for name in by.split(",") if name.strip()}
    if wrong := sorted(names - set(_GRAINS)):
        raise UsageError(
            f"by={by}: there is no {wrong[0]!r}", hint=f"there are {', '.join(_GRAINS)}"
        )
    return names


def _left_out(job: StageTimes, lines: list[Pipeline], rows: list[Row]) -> dict[str, str]:
    """What is left out, and why there is nothing."""
    told = {}
    if not lines:
        exchanged = bool(job.exchange.any())
        told["pipelines"] = (
            "none: ranks send and receive, but along no line of stages, and no ranges name stages"
            if exchanged
            else "none: ranks send each other nothing, and no ranges name stages"
        )
    if lines and not job.has_passes:
        told["passes"] = "not known: windows are of all kernels"
    if lines and not job.has_steps:
        told["steps"] = "not known: the whole trace is one window"
    if job.unstepped:
        told["left out"] = f"{job.unstepped} kernels of no training step bound no window"
    if unknown := sum(row["recv_wait_ns"] is None for row in rows):
        told["recv_wait_ns"] = (
            f"not known of {unknown} rows: sends of their receives are not matched"
        )
    return told


def _table(rows: list[Row], grains: set[str]) -> pa.Table:
    keys = sorted(grains - {"job"}, reverse=True)
    names = list(_TYPES)
    if len(keys) < 2:  # noqa: PLR2004 # not by both
        rows = _summed(rows, keys)
        names = [*keys, *_ALIKE[:2], *_SUMS, "bubble_share", *_ALIKE[2:]]
    return pa.table({name: pa.array([row[name] for row in rows], _TYPES[name]) for name in names})


def _summed(rows: list[Row], keys: list[str]) -> list[Row]:
    """Rows summed over all but their keys; null where one of them is."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for key, mine in groups.items():
        total: Row = dict(zip(keys, key, strict=True))
        for name in _SUMS:
            values = [one[name] for one in mine]
            total[name] = None if None in values else sum(values)
        for name in _ALIKE:
            alike = {one[name] for one in mine}
            total[name] = alike.pop() if len(alike) == 1 else None
        found.append(total | {"bubble_share": _share(total)})
    return sorted(found, key=lambda row: [-1 if row[k] is None else row[k] for k in keys])


def _share(row: Row) -> float | None:
    return row["bubble_ns"] / row["span_ns"] if row["span_ns"] else None


def _with_shares(row: Row) -> Row:
    stages_, batches = row["stages"], row["microbatches"]
    ideal = (stages_ - 1) / (batches + stages_ - 1) if batches else None
    return row | {"bubble_share": _share(row), "ideal_bubble_share": ideal}


def _summary(lines: list[Pipeline], rows: list[Row]) -> Row:
    total = (_summed(rows, []) or [dict.fromkeys((*_SUMS, "bubble_share", *_ALIKE))])[0]
    sums = {name: total[name] if rows else 0 for name in _SUMS}
    return {
        "pipelines": len(lines),
        "ranks": len({row["rank"] for row in rows}),
        "steps": len({row["iteration"] for row in rows}),
        **{name: total[name] for name in _ALIKE},
        **sums,
        "bubble_share": total["bubble_share"],
    }


_ALIKE = ("stages", "microbatches", "ideal_bubble_share")
"""What is told of many rows only if it is the same in all of them."""
