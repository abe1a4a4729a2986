"""Breakdown of GPU time into compute, communication, copies and idle time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import pieces, windows
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.analyses.methods.peers import temporal as peers
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.pieces import (
        Cells,
        PieceGroups,
        WorkBatch,
        WorkPieces,
    )
    from chopper_interop.analyses.methods.activity.windows import Window

__all__ = ["temporal"]

_CONVENTIONS = {
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "devices": "a rank with several GPUs is busy when any of them is",
}
_GROUPS = (
    "figures of a group are unions over its own work on each rank, and sums of these over "
    "ranks: concurrent groups of a rank add up to more than its busy_ns"
)
_ROW = ("span", "busy", "compute", "comm", "memcpy", "overlap", "exposed_comm", "idle")
_SPLIT = ("compute_only", "comm_only", "memcpy_only", "overlapped")
_SPAN_KEYS = {"rank", "stream", "iteration"}
"""Only groups by these have a span, and so idle time."""
_ITERATION_WINDOW = (
    "from the first start to the last end of all work that an iteration launched on its rank: where a "
    "GPU lags behind its host these windows overlap, and their idle times do not add up to the total; "
    "steps=each gives windows that do not overlap"
)


def temporal(
    trace: Trace, *, by: str = "rank", steps: str = "", ranks: str = "", compat: str = ""
) -> Result:
    """Break down the time of each rank's GPUs by interval union, so that no time counts twice.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    by
        Columns that identify a row: names of `grouping.GRAINS` separated by commas (``rank``,
        ``rank,stream``, ``job``, ``rank,iteration``, ``phase``, ``layer``, ``kernel``, …).
    steps
        Training steps, each by itself, with the length of the range that marks it: ``each``, ``10``,
        ``10-12``; all of the trace by default.
    ranks
        Ranks that count: ``0,4-7``; all by default.
    compat
        ``hta`` or ``tracelens``: the definitions and columns of these tools.

    Returns
    -------
    Result
        One row per rank or group, all in nanoseconds: `span_ns` from the first start to the last
        end of GPU work, or of the step; `busy_ns`, the time in which anything runs; `compute_ns`, in
        which a kernel or fill runs; `comm_ns`, in which communication runs; `memcpy_ns`, in which a
        copy runs; `overlap_ns`, in which compute and communication run at once; `exposed_comm_ns` =
        `comm_ns` - `overlap_ns`; `idle_ns` = `span_ns` - `busy_ns`. Groups other than ranks, and
        windows of steps, also have the split of `busy_ns` into the time in which work of one class ran
        alone (`compute_only_ns`, `comm_only_ns`, `memcpy_only_ns`) and `overlapped_ns`, in which
        several classes ran. These four add up to `busy_ns` exactly. A stream's span is that of its rank
        (or iteration). `span_ns` and `idle_ns` are null where groups are not only of ranks, streams
        and iterations, and for work outside of all iterations. Ranks without any GPU work have no
        rows, even where their steps are marked. The summary has sums over ranks.

    Notes
    -----
    The definitions are those of the temporal breakdown of Holistic Trace Analysis (traceinsight
    0.6.1) and of the GPU timeline of TraceLens (171dd747), on exact integer times and all
    GPU work. With `compat`, the results of these tools themselves, in microseconds; `peers` explains
    how they compute them.
    """
    if compat:
        return peers.temporal(trace, compat, ranks, default=(by, steps) == ("rank", ""))
    with_work = _ranks_with_work(trace)
    selected = [w for w in windows.rank_windows(trace, steps, ranks) if w.rank in with_work]
    is_of_ranks = by == "rank" and not steps  # whose groups are windows
    groups = pieces.PieceGroups.by(selected, by)
    totals, of_windows, counted = Totals(), [], 0
    for batch in pieces.work_of_batches(trace, selected):
        work = batch.work
        counted += batch.nodes
        of_windows.append(work.patterns(work.window, len(batch.windows)))
        if is_of_ranks:
            continue
        cells = groups.cells(batch)
        time = cells.summed(work.patterns(cells.code, len(cells)))
        span, unknown = _spans(batch, cells, groups)
        totals.add(totals.numbers(cells.keys), time=time, span=span, unknown=unknown)
    figures = _figures(np.concatenate(of_windows), _lengths(selected))
    sums = {f"{name}_ns": int(figures[name].sum()) for name in (*_ROW, *_SPLIT)}
    summary: dict[str, Any] = {"ranks": len({window.rank for window in selected})} | sums
    notes = pieces.notes(trace, selected, counted, steps, ranks)
    conventions = pieces.CONVENTIONS | _CONVENTIONS
    if is_of_ranks:
        rank = {"rank": arrow.array(np.array([w.rank for w in selected], np.int64))}
        table = pa.table(rank | _columns(_ROW, figures))
        return Result("temporal", table, summary, conventions, notes=notes)
    keys, total = totals.ordered()
    known = total["unknown"] == 0
    of_groups = _figures(total["time"], total["span"])
    columns = _columns((*_ROW, *_SPLIT), of_groups, {"span": known, "idle": known})
    conventions |= {"groups": _GROUPS}
    if "iteration" in groups.grains and not steps:
        notes["window"] = _ITERATION_WINDOW
    table = pa.table(groups.columns(trace, keys) | columns)
    return Result("temporal", table, summary, conventions, notes=notes)


def _ranks_with_work(trace: Trace) -> set[int]:
    """Ranks with any GPU work; idle time of the others is meaningless."""
    kind = trace.array("kind")
    return {rank for rank, rows in trace.rank_rows.items() if is_any(kind[rows], GPU_WORK).any()}


def _lengths(selected: Sequence[Window]) -> Array:
    return np.array([window.span_ns for window in selected], np.int64)


def _figures(time: Array, span: Array) -> dict[str, Array]:
    """Figures of windows or groups by their time of each combination of classes, and their span."""
    figures = pieces.class_times(time) | {"span": span}
    return figures | {"idle": span - figures["busy"]}


def _spans(batch: WorkBatch, cells: Cells, groups: PieceGroups) -> tuple[Array, Array]:
    """Return the span of each group, and its number of cells of which none is known."""
    if not set(groups.grains) <= _SPAN_KEYS:
        return np.zeros(len(cells.keys), np.int64), np.ones(len(cells.keys), np.int64)
    span = _lengths(batch.windows)[cells.window]
    known = np.ones(len(cells), np.bool_)
    if "iteration" in groups.grains and "iteration" not in groups.of_windows:
        span, known = _iteration_spans(batch.trace, batch.work, cells)
    return cells.summed(span), cells.summed((~known).astype(np.int64))


def _iteration_spans(trace: Trace, work: WorkPieces, cells: Cells) -> tuple[Array, Array]:
    """Return each cell's span of its iteration on its rank, and a mask of cells with an iteration."""
    iteration = trace.integers("iteration", work.row)
    at, code = gather.distinct(work.window, iteration)
    first, last = work.start[at], work.end[at]
    np.minimum.at(first, code, work.start)
    np.maximum.at(last, code, work.end)
    of_cell = np.zeros(len(cells), np.int64)
    of_cell[cells.code] = code
    return (last - first)[of_cell], (iteration[at] >= 0)[of_cell]


def _columns(
    names: Sequence[str], figures: dict[str, Array], known: dict[str, Array] | None = None
) -> dict[str, Any]:
    masks = {name: ~mask for name, mask in (known or {}).items()}
    return {f"{name}_ns": arrow.array(figures[name], mask=masks.get(name)) for name in names}
