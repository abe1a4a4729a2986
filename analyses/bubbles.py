"""Measure pipeline bubbles: time in which a stage has nothing to compute, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.communication import stages
from chopper_interop.analyses.methods.communication.stage_times import StageTimes
from chopper_interop.errors import OptionError, similar
from chopper_interop.grouping import by_key
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.stages import Pipeline

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
    "bubble": "time in the window in which the rank runs neither compute (of any step) nor "
    "communication other than sends and receives",
    "pipelines": "ranks that send to and receive from each other along a line; else ranges that "
    "name stages (PP:0F1)",
    "ideal": "(p-1)/(m+p-1) for p stages and m microbatches of equal length; m is the largest number "
    "of sends from one rank to another in forward passes of the step",
}


def bubbles(
    trace: Trace, *, by: str = "rank,iteration", steps: str = "", ranks: str = ""
) -> Result:
    """Measure the time in which stages of a pipeline have nothing to compute.

    Parameters
    ----------
    trace
        Any trace. There are no rows for a job without a pipeline.
    by
        Names out of ``rank``, ``iteration`` and ``job``, separated by commas. Times are summed over
        the ones left out.
    steps
        Training steps, ``10`` or ``10-12``; all of them if empty or ``each``. Each step is measured
        by itself. A trace without training steps counts as one step.
    ranks
        Ranks to report, as ``0,4-7``; all if empty. Windows are always those of all ranks.

    Returns
    -------
    Result
        One row a rank and training step:

        - `pipeline`, `stage` (from 0), `stages`, `microbatches`
        - `start_ns` and `end_ns` of the window, since the trace's origin, and its length `span_ns`
        - of it, `compute_ns` (a kernel or fill runs), `p2p_ns` (a send or receive runs) and
          `bubble_ns` (neither compute nor other communication)
        - `bubble_ns` = `warmup_ns` (before the rank's first forward or backward kernel)
          + `steady_ns` + `cooldown_ns` (after its last)
        - of the bubble, `recv_ns` (a receive runs) and of that `recv_wait_ns` (its send has not
          started; null where that is not known)
        - `bubble_share` = `bubble_ns` / `span_ns`, and `ideal_bubble_share`

    Notes
    -----
    The ideal is that of GPipe and 1F1B with equal stages and no time for sending. An interleaved
    schedule sends v times as many messages for v parts of a stage, which the formula counts as
    microbatches. Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM", SC 2021, section 2.2. The paper has the ratio to the ideal time,
    (p-1)/m; `ideal_bubble_share` is the share of the whole time.
    """
    grains = _grains(by)
    chosen = set(windows.chosen_ranks(trace, ranks))
    requested = {w.iteration for w in windows.rank_windows(trace, steps)} if steps else None
    stage_times = StageTimes(trace)
    pipelines = stages.complete_pipelines(trace, stage_times.first_starts())
    rows = [
        _with_shares(row)
        for number, pipeline in enumerate(pipelines)
        for row in stage_times.rows(number, pipeline)
        if row["rank"] in chosen and (requested is None or row["iteration"] in requested)
    ]
    rows.sort(key=lambda row: (row["rank"], -1 if row["iteration"] is None else row["iteration"]))
    return Result(
        "bubbles", _table(rows, grains), _summary(pipelines, rows), _CONVENTIONS,
        notes=_left_out(stage_times, pipelines, rows),
    )  # fmt: skip


def _grains(by: str) -> set[str]:
    names = {name.strip() for name in by.split(",") if name.strip()}
    if wrong := sorted(names - set(_GRAINS)):
        raise OptionError(f"by={by}: there is no {wrong[0]!r}", hint=similar(wrong[0], _GRAINS))
    return names


def _left_out(
    stage_times: StageTimes, pipelines: list[Pipeline], rows: list[Row]
) -> dict[str, str]:
    """Say what is left out, and why there are no pipelines."""
    notes = {}
    if not pipelines:
        exchanged = bool(stage_times.exchange.any())
        notes["pipelines"] = (
            "none: ranks send and receive, but along no line of stages that are all in the trace, and no "
            "ranges name stages"
            if exchanged
            else "none: ranks send each other nothing, and no ranges name stages"
        )
    alone = set(stage_times.rank[stage_times.exchange].tolist()).difference(
        *(line.ranks for line in pipelines)
    )
    if pipelines and alone:
        notes["ranks"] = (
            f"{len(alone)} that send and receive are on no line of stages that are all in the trace, and have "
            "no rows"
        )
    if pipelines and not stage_times.has_passes:
        notes["passes"] = "not known: windows are of all kernels"
    if pipelines and not stage_times.has_steps:
        notes["steps"] = "not known: the whole trace is one window"
    if stage_times.unstepped:
        notes["left out"] = (
            f"{stage_times.unstepped} kernels outside of training steps, which do not extend a window"
        )
    if unknown := sum(row["recv_wait_ns"] is None for row in rows):
        notes["recv_wait_ns"] = (
            f"not known for {unknown} rows: the sends of their receives are not matched"
        )
    return notes


def _table(rows: list[Row], grains: set[str]) -> pa.Table:
    keys = sorted(grains - {"job"}, reverse=True)
    names = list(_TYPES)
    if len(keys) < 2:  # noqa: PLR2004 # by fewer than both keys
        rows = _summed(rows, keys)
        names = [*keys, *_ALIKE[:2], *_SUMS, "bubble_share", *_ALIKE[2:]]
    return pa.Table.from_pylist(rows, pa.schema([(name, _TYPES[name]) for name in names]))


def _summed(rows: list[Row], keys: list[str]) -> list[Row]:
    """Sum rows with equal keys; a sum is null where one of its values is."""
    sums = []
    for key, members in by_key(rows, lambda row: tuple(row[key] for key in keys)).items():
        total: Row = dict(zip(keys, key, strict=True))
        for name in _SUMS:
            values = [row[name] for row in members]
            total[name] = None if None in values else sum(values)
        for name in _ALIKE:
            alike = {row[name] for row in members}
            total[name] = alike.pop() if len(alike) == 1 else None
        sums.append(total | {"bubble_share": _share(total)})
    return sorted(sums, key=lambda row: [-1 if row[k] is None else row[k] for k in keys])


def _share(row: Row) -> float | None:
    return row["bubble_ns"] / row["span_ns"] if row["span_ns"] else None


def _with_shares(row: Row) -> Row:
    stage_count, batches = row["stages"], row["microbatches"]
    ideal = (stage_count - 1) / (batches + stage_count - 1) if batches else None
    return row | {"bubble_share": _share(row), "ideal_bubble_share": ideal}


def _summary(pipelines: list[Pipeline], rows: list[Row]) -> Row:
    total = (_summed(rows, []) or [dict.fromkeys((*_SUMS, "bubble_share", *_ALIKE))])[0]
    sums = {name: total[name] if rows else 0 for name in _SUMS}
    return {
        "pipelines": len(pipelines),
        "ranks": len({row["rank"] for row in rows}),
        "steps": len({row["iteration"] for row in rows}),
        **{name: total[name] for name in _ALIKE},
        **sums,
        "bubble_share": total["bubble_share"],
    }


_ALIKE = ("stages", "microbatches", "ideal_bubble_share")
"""Columns that a summed row has only if they are the same in all of its rows."""
