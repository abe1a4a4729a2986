"""Pieces of GPU work within windows, which analyses of occupation add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.activity import grouping, windows
from chopper_interop.arrays import Array, gather, intervals
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.grouping import Keys
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


class WorkBatch(NamedTuple):
    """A batch of whole ranks of a trace, and the GPU work in their windows.

    Parameters
    ----------
    rows
        Rows of its nodes in the trace.
    trace
        The batch itself.
    windows
        The windows of its ranks.
    work
        Pieces within them.
    """

    rows: slice
    trace: Trace
    windows: list[Window]
    work: WorkPieces

    @property
    def nodes(self) -> int:
        """Number of nodes of which pieces are within windows; one that several windows cut counts once."""
        is_inside = np.zeros(self.trace.nodes.num_rows, np.bool_)
        is_inside[self.work.row] = True
        return int(np.count_nonzero(is_inside))


def work_of_batches(trace: Trace, rank_windows: Sequence[Window]) -> Iterator[WorkBatch]:
    """Yield the GPU work within windows of ranks, which are in order of rank, for a batch of ranks at a time."""
    for rows, part, of_batch in windows.batches(trace, rank_windows):
        yield WorkBatch(rows, part, of_batch, pieces_in_windows(part, of_batch))


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
    keys
        The groups' keys.
    """

    code: Array
    window: Array
    group: Array
    keys: Keys

    def __len__(self) -> int:
        return len(self.group)

    def summed(self, values: Array) -> Array:
        """Sum over the cells of each group, of one or several numbers of a cell."""
        total = np.zeros((len(self.keys), *values.shape[1:]), values.dtype)
        np.add.at(total, self.group, values)
        return total


def notes(
    trace: Trace, rank_windows: Sequence[Window], counted: int, steps: str, ranks: str
) -> dict[str, str]:
    """Notes of a result about its window and about what it leaves out.

    Parameters
    ----------
    counted
        Number of nodes of which pieces are within windows.
    """
    chosen = windows.chosen_ranks(trace, ranks)
    text = windows.work_notes(trace, steps)
    without = len(set(chosen) - {window.rank for window in rank_windows})
    parts = []
    if steps:
        out = windows.work_count(trace, ranks) - counted
        parts = [f"{out} nodes of GPU work outside of these steps"]
    parts += [f"{without} ranks without GPU work or steps"] if without else []
    text["left out"] = ", ".join(parts) or "nothing"
    if not rank_windows:
        text["no rows"] = "there is no GPU work in the trace"
    return text


def grain_names(rank_windows: Sequence[Window], by: str) -> tuple[str, ...]:
    """Grains by which pieces are grouped; in windows of steps, the step is one of them."""
    grains = grouping.parse_grains(by)
    return grouping.with_iteration(grains) if is_stepped(rank_windows) else grains


def is_stepped(rank_windows: Sequence[Window]) -> bool:
    """True if windows are training steps."""
    return any(window.iteration != windows.NO_STEP for window in rank_windows)


@dataclass(frozen=True)
class PieceGroups:
    """Groups of pieces by `grouping.GRAINS`; in windows of steps, each step is a group as well.

    Where groups are of ranks and steps alone, each window is a cell, even if nothing ran in it.

    Parameters
    ----------
    grains
        Names of the keys.
    of_windows
        Those of them that are known by the window.
    """

    grains: tuple[str, ...]
    of_windows: tuple[str, ...]

    @classmethod
    def by(cls, rank_windows: Sequence[Window], by: str) -> PieceGroups:
        """Groups by some grains, of all windows that are asked for."""
        grains = grain_names(rank_windows, by)
        known = ("rank", "iteration") if is_stepped(rank_windows) else ("rank",)
        return cls(grains, tuple(name for name in grains if name in known))

    @property
    def _of_nodes(self) -> tuple[str, ...]:
        return tuple(name for name in self.grains if name not in self.of_windows)

    def cells(self, batch: WorkBatch) -> Cells:
        """Cells of the pieces of a batch."""
        pieces, of_nodes = batch.work, self._of_nodes
        if of_nodes:
            node_code, node_keys = grouping.code_nodes(batch.trace, pieces.row, ",".join(of_nodes))
            first, code = gather.distinct(pieces.window, node_code)
            window = pieces.window[first]
            node_codes = [codes[node_code[first]] for codes in node_keys.codes]
        else:
            code, window, node_codes = pieces.window, np.arange(len(batch.windows)), []
        of_window = [
            np.array([getattr(one, name) for one in batch.windows], np.int64)[window]
            for name in self.of_windows
        ]
        names = (*self.of_windows, *of_nodes)
        group, keys = grouping.keys_of(names, [*of_window, *node_codes], len(window))
        return Cells(code, window, group, keys)

    def columns(self, trace: Trace, keys: Keys) -> dict[str, Any]:
        """Keys of groups as columns of a table."""
        table = keys.table(trace, self.grains, apart="rank" not in self._of_nodes)
        return dict(zip(table.column_names, table.columns, strict=True))
