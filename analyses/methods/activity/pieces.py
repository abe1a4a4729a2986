"""Pieces of GPU work within windows, which analyses of occupation add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping, windows
from chopper_interop.analyses.methods.activity.grouping import Groups
from chopper_interop.arrays import Array, arrow, gather, intervals
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window

CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "counts as compute",
}
"""Conventions of all analyses of pieces."""
COMPUTE, COMM, COPY = range(3)
"""Numbers of the classes of GPU work, as of `grouping.CLASSES`."""
_CLASS = np.full(256, -1, np.int8)
_CLASS[[int(Kind.KERNEL), int(Kind.MEMSET)]] = COMPUTE
_CLASS[int(Kind.COMM)] = COMM
_CLASS[int(Kind.MEMCPY)] = COPY


@dataclass(frozen=True)
class WorkPieces:
    """Parts of GPU work that lie within windows, window by window in order of start.

    Parameters
    ----------
    row
        Node of each piece.
    window
        Number of the window among those requested.
    work_class
        `COMPUTE`, `COMM` or `COPY`.
    start, end
        Nanoseconds, within the window.
    """

    row: Array
    window: Array
    work_class: Array
    start: Array
    end: Array

    def __len__(self) -> int:
        return len(self.row)

    def where(self, which: Array) -> WorkPieces:
        """Some of the pieces, by a mask or positions."""
        return WorkPieces(
            self.row[which],
            self.window[which],
            self.work_class[which],
            self.start[which],
            self.end[which],
        )

    def patterns(self, cell: Array, n: int) -> Array:
        """Nanoseconds of each combination of classes in each cell: see `intervals.combination_times`."""
        return intervals.combination_times(cell, self.work_class, self.start, self.end, n, 3)


def class_times(time: Array) -> dict[str, Array]:
    """Times by class from those of each combination of classes in a row, as `WorkPieces.patterns` has them."""
    combination = np.arange(time.shape[1])  # bit c of a combination is class c
    bits = (1 << c for c in (COMPUTE, COMM, COPY))
    compute, comm, copy = ((combination & bit) > 0 for bit in bits)
    is_single = (combination & (combination - 1)) == 0

    def total(mask: Array) -> Array:
        return np.asarray(time[:, mask].sum(axis=1))

    return {
        "busy": total(combination > 0),
        "compute": total(compute),
        "comm": total(comm),
        "memcpy": total(copy),
        "overlap": total(compute & comm),
        "exposed_comm": total(comm & ~compute),
        "compute_only": total(compute & is_single),
        "comm_only": total(comm & is_single),
        "memcpy_only": total(copy & is_single),
        "overlapped": total(~is_single),
    }


def pieces_in_windows(trace: Trace, rank_windows: Sequence[Window]) -> WorkPieces:
    """Pieces of all GPU work of the ranks of these windows, within them."""
    work = WorkByRank(trace)
    parts = [work.within(i, window) for i, window in enumerate(rank_windows)]
    columns = [np.concatenate(part) for part in zip(*parts, strict=True)] if parts else []
    return WorkPieces(*(columns or [np.zeros(0, np.int64)] * 5))


class WorkByRank:
    """GPU work of each rank, by start."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._by_rank: dict[int, tuple[Array, Array, Array, Array, Array]] = {}

    def of_rank(self, rank: int) -> tuple[Array, Array, Array, Array, Array]:
        """Row, class, start, end and running maximum of ends of a rank's work."""
        if rank not in self._by_rank:
            self._by_rank[rank] = self._columns_of(rank)
        return self._by_rank[rank]

    def within(self, number: int, window: Window) -> tuple[Array, Array, Array, Array, Array]:
        """Row, number, class, start and end of parts within a window."""
        row, work_class, start, end, reach = self.of_rank(window.rank)
        # ends need not ascend, their running maximum does: nothing before `first` reaches the window
        first = int(np.searchsorted(reach, window.start_ns, "left"))
        stop = int(np.searchsorted(start, window.end_ns, "right"))
        at = np.arange(first, max(first, stop))
        if window.iteration != windows.NO_STEP:  # work that only touches a step is not in it
            touches = (end[at] > window.start_ns) & (start[at] < window.end_ns)
            at = at[touches & (end[at] > start[at])]
        return (
            row[at],
            np.full(len(at), number),
            work_class[at],
            np.maximum(start[at], window.start_ns),
            np.minimum(end[at], window.end_ns),
        )

    def _columns_of(self, rank: int) -> tuple[Array, Array, Array, Array, Array]:
        rows = self._trace.rank_rows[rank]
        work_class = _CLASS[self._trace.array("kind")[rows]]
        row = np.flatnonzero(work_class >= 0) + rows.start
        start = self._trace.array("ts")[row]
        end = start + self._trace.array("dur")[row]
        reach = np.maximum.accumulate(end)
        return row, work_class[work_class >= 0].astype(np.int64), start, end, reach


@dataclass(frozen=True)
class Cells:
    """Groups of pieces, and within each group the cells: parts that are measured alone and added up.

    A cell is the part of a group in one window. Intervals are united within a cell, so that work of
    several streams at once counts once, and never across ranks or steps.

    Parameters
    ----------
    code
        Cell of each piece.
    window, group
        Window and group of each cell.
    groups
        The groups' keys.
    """

    code: Array
    window: Array
    group: Array
    groups: Groups

    def __len__(self) -> int:
        return len(self.group)

    def summed(self, values: Array) -> Array:
        """Sum over the cells of each group, of one or several numbers of a cell."""
        total = np.zeros((len(self.groups), *values.shape[1:]), values.dtype)
        np.add.at(total, self.group, values)
        return total


def notes(
    trace: Trace, rank_windows: Sequence[Window], pieces: WorkPieces, steps: str, ranks: str
) -> dict[str, str]:
    """Notes of a result about its window and about what it leaves out."""
    chosen = windows.chosen_ranks(trace, ranks)
    text = windows.work_notes(trace, steps)
    inside = np.zeros(trace.nodes.num_rows, np.bool_)
    inside[pieces.row] = True
    out = sum(
        _work_count(trace, rank) - int(inside[trace.rank_rows[rank]].sum()) for rank in chosen
    )
    without = len(set(chosen) - {window.rank for window in rank_windows})
    parts = [f"{out} nodes of GPU work outside of these steps"] if steps else []
    parts += [f"{without} ranks without GPU work or steps"] if without else []
    text["left out"] = ", ".join(parts) or "nothing"
    if not rank_windows:
        text["no rows"] = "there is no GPU work in the trace"
    return text


def _work_count(trace: Trace, rank: int) -> int:
    """Number of nodes of GPU work of a rank."""
    rows = trace.rank_rows[rank]
    return int(np.count_nonzero(_CLASS[trace.array("kind")[rows]] >= 0))


def grain_names(rank_windows: Sequence[Window], by: str) -> tuple[str, ...]:
    """Grains by which pieces are grouped; in windows of steps, the step is one of them."""
    grains = grouping.parse_grains(by)
    return grouping.with_iteration(grains) if is_stepped(rank_windows) else grains


def is_stepped(rank_windows: Sequence[Window]) -> bool:
    """True if windows are training steps."""
    return any(window.iteration != windows.NO_STEP for window in rank_windows)


def group_cells(trace: Trace, rank_windows: Sequence[Window], pieces: WorkPieces, by: str) -> Cells:
    """Groups of pieces by `grouping.GRAINS`; in windows of steps, each step is a group as well.

    Where groups are of ranks and steps alone, each window
    is a cell, even if nothing ran in it.
    """
    grains = grain_names(rank_windows, by)
    of_window = {"rank": np.array([w.rank for w in rank_windows], np.int64)}
    if is_stepped(rank_windows):
        of_window["iteration"] = np.array([w.iteration for w in rank_windows], np.int64)
    node_grains = [name for name in grains if name not in of_window]
    if node_grains:
        by_node = grouping.group_nodes(trace, pieces.row, ",".join(node_grains))
        first, code = gather.distinct(pieces.window, by_node.code)
        window, node_group = pieces.window[first], by_node.code[first]
    else:
        by_node, code = None, pieces.window
        window, node_group = np.arange(len(rank_windows)), np.zeros(len(rank_windows), np.int64)
    window_keys = [of_window[name][window] for name in grains if name in of_window]
    at, group = _ordered(*window_keys, node_group)
    keys = {
        name: arrow.array(of_window[name][window[at]].astype(np.int32))
        if by_node is None or name in of_window
        else arrow.take(arrow.single_chunk(by_node.keys[name]), node_group[at])
        for name in grains
    }
    table = pa.table(keys or {"job": arrow.texts([trace.meta.job] * len(at))})
    return Cells(code, window, group, Groups(group[code], table))


def _ordered(*columns: Array) -> tuple[Array, Array]:
    """Distinct rows of columns in ascending order: position of the first of each, number of each row."""
    order = np.lexsort(tuple(reversed(columns)))
    first, number = gather.distinct(*(column[order] for column in columns))
    group = np.empty(len(order), np.int64)
    group[order] = number
    return order[first], group
