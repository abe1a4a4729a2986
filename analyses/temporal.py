"""Where a GPU's time goes: computing, communicating, copying, waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import pieces, windows
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.members import is_any
from chopper_interop.peers import temporal as peers
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.activity.pieces import Cells, Pieces
    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

__all__ = ["temporal"]

_CONVENTIONS = {
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "devices": "a rank with several GPUs is busy when any of them is",
}
_GROUPS = (
    "figures of a group are unions over its own work on each rank, and sums of these over "
    "ranks: groups of a rank that run at once add up to more than its busy_ns"
)
_ROW = ("span", "busy", "compute", "comm", "memcpy", "overlap", "exposed_comm", "idle")
_SPLIT = ("compute_only", "comm_only", "memcpy_only", "overlapped")
_IN_TIME = {"rank", "stream", "iteration"}
"""Of groups by these alone one can say how long they were idle."""
_COMPUTE, _COMM, _COPY = (1 << sort for sort in (pieces.COMPUTE, pieces.COMM, pieces.COPY))
_ITERATIONS = (
    "from the first start to the last end of all work that an iteration launched on its rank: where a "
    "GPU lags behind its host these overlap, and their idle time does not add up to the whole; "
    "steps=each gives stretches of time that do not overlap"
)


def temporal(
    trace: Trace, *, by: str = "rank", steps: str = "", ranks: str = "", compat: str = ""
) -> Result:
    """Time of each rank's GPUs by interval union, so that nothing is counted twice.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    by
        What a row is of, names out of `grouping.GRAINS` separated by commas: ``rank``,
        ``rank,stream``, ``job``, ``rank,iteration``, ``phase``, ``layer``, ``kernel``, …
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself, as long as the range
        that marks it; else all of the trace.
    ranks
        These ranks, as ``0,4-7``; else all.
    compat
        ``hta`` or ``tracelens``: the definitions and columns of these tools instead.

    Returns
    -------
    Result
        One row a rank, or a group, all in nanoseconds: `span_ns` from the first start to the last
        end of GPU work, or of the step; `busy_ns` when anything runs; `compute_ns` when a kernel or
        fill runs; `comm_ns` when something communicates; `memcpy_ns` when something copies;
        `overlap_ns` when compute and communication run at once; `exposed_comm_ns` = `comm_ns` -
        `overlap_ns`; `idle_ns` = `span_ns` - `busy_ns`. For other groups than ranks, and in
        windows of steps, also the split of `busy_ns` into what ran alone (`compute_only_ns`,
        `comm_only_ns`, `memcpy_only_ns`) and `overlapped_ns`, when work of several sorts did. These
        four add up to `busy_ns` exactly. A stream's span is that of its rank (or iteration).
        `span_ns` and `idle_ns` are null where groups are not of ranks, streams and iterations
        alone, and for work outside of all iterations. Ranks without any GPU work have no rows, even
        where their steps are marked. The summary has sums over ranks.

    Notes
    -----
    The definitions are those of the temporal breakdown of Holistic Trace Analysis (traceinsight
    0.6.1) and of the GPU timeline of TraceLens (171dd747), on exact integer times and all of the
    GPU's work. With `compat`, what these tools themselves give, in microseconds; `peers` says how
    they come to it.
    """
    if compat:
        return peers.temporal(trace, compat, ranks, default=(by, steps) == ("rank", ""))
    at_work = _at_work(trace)
    found = [w for w in windows.of_ranks(trace, steps, ranks) if w.rank in at_work]
    work = pieces.within(trace, found)
    summary, whole = _summary(found, work)
    notes = pieces.notes(trace, found, work, steps, ranks)
    conventions = pieces.CONVENTIONS | _CONVENTIONS
    if by == "rank" and not steps:
        ranks_told = {"rank": arrow.array(np.array([w.rank for w in found], np.int64))}
        table = pa.table(ranks_told | _columns(_ROW, whole))
        return Result("temporal", table, summary, conventions, notes=notes)
    cells = pieces.cells(trace, found, work, by)
    figures = _figures(cells.summed(work.patterns(cells.code, len(cells))))
    figures["span"], known = _spans(trace, found, work, cells, by)
    figures["idle"] = figures["span"] - figures["busy"]
    columns = _columns((*_ROW, *_SPLIT), figures, {"span": known, "idle": known})
    keys = {name: cells.groups.keys[name] for name in cells.groups.keys.column_names}
    conventions |= {"groups": _GROUPS}
    if "iteration" in keys and not steps:
        notes["window"] = _ITERATIONS
    return Result("temporal", pa.table(keys | columns), summary, conventions, notes=notes)


def _at_work(trace: Trace) -> set[int]:
    """Ranks with any work on GPUs: of one without, idle time says nothing."""
    work = is_any(trace.array("kind"), GPU_WORK)
    return {rank for rank, rows in trace.rank_rows.items() if work[rows].any()}


def _figures(time: Array) -> dict[str, Array]:
    """Figures by the time of each combination of sorts of work."""
    combination = np.arange(time.shape[1])

    def total(which: Array) -> Array:
        return np.asarray(time[:, which].sum(axis=1))

    compute, comm, copy = (combination & bit > 0 for bit in (_COMPUTE, _COMM, _COPY))
    return {
        "busy": total(combination > 0),
        "compute": total(compute),
        "comm": total(comm),
        "memcpy": total(copy),
        "overlap": total(compute & comm),
        "exposed_comm": total(comm & ~compute),
        "compute_only": total(combination == _COMPUTE),
        "comm_only": total(combination == _COMM),
        "memcpy_only": total(combination == _COPY),
        "overlapped": total(compute & comm | compute & copy | comm & copy),
    }


def _summary(found: Sequence[Window], work: Pieces) -> tuple[dict[str, Any], dict[str, Array]]:
    """Sums over windows, and the figures of each window."""
    figures = _figures(work.patterns(work.window, len(found)))
    figures["span"] = np.array([window.span_ns for window in found], np.int64)
    figures["idle"] = figures["span"] - figures["busy"]
    sums = {f"{name}_ns": int(figures[name].sum()) for name in (*_ROW, *_SPLIT)}
    return {"ranks": len({window.rank for window in found})} | sums, figures


def _spans(
    trace: Trace, found: Sequence[Window], work: Pieces, cells: Cells, by: str
) -> tuple[Array, Array]:
    """Span of each group, and of which it is known."""
    names = set(pieces.names(found, by))
    if not names <= _IN_TIME:
        return np.zeros(len(cells.groups), np.int64), np.zeros(len(cells.groups), np.bool_)
    span = np.array([window.span_ns for window in found], np.int64)[cells.window]
    known = np.ones(len(cells), np.bool_)
    if "iteration" in names and not pieces.is_stepped(found):
        span, known = _of_iterations(trace, work, cells)
    return cells.summed(span), cells.summed((~known).astype(np.int64)) == 0


def _of_iterations(trace: Trace, work: Pieces, cells: Cells) -> tuple[Array, Array]:
    """From the first start to the last end of all work of a cell's iteration on its rank."""
    iteration = np.full(len(work), -1, np.int64)
    if "iteration" in trace.nodes.column_names:
        iteration = arrow.numbers(trace.nodes["iteration"], -1)[work.row]
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
