"""Work of GPUs within windows: what analyses of occupation count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping, windows
from chopper_interop.activity.grouping import Groups
from chopper_interop.columns import arrow, gather, intervals
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_WHOLE = "from the first start to the last end of a rank's GPU work"
CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "counts as compute",
}
"""What holds of all pieces."""
COMPUTE, COMM, COPY = range(3)
"""Sorts of work: kernels and fills; communication; copies."""
_SORT = np.full(256, -1, np.int8)
_SORT[[int(Kind.KERNEL), int(Kind.MEMSET)]] = COMPUTE
_SORT[int(Kind.COMM)] = COMM
_SORT[int(Kind.MEMCPY)] = COPY


@dataclass(frozen=True)
class Pieces:
    """Parts of GPU work that lie within windows, window by window in order of start.

    Parameters
    ----------
    row
        Its node.
    window
        Number of the window among those that were asked for.
    sort
        `COMPUTE`, `COMM` or `COPY`.
    start, end
        Nanoseconds, within the window.
    """

    row: Array
    window: Array
    sort: Array
    start: Array
    end: Array

    def __len__(self) -> int:
        return len(self.row)

    def where(self, which: Array) -> Pieces:
        """Some of them."""
        return Pieces(
            self.row[which],
            self.window[which],
            self.sort[which],
            self.start[which],
            self.end[which],
        )

    def patterns(self, cell: Array, n: int) -> Array:
        """Nanoseconds of each combination of sorts in each cell: see `intervals.patterns`."""
        return intervals.patterns(cell, self.sort, self.start, self.end, n, 3)


def within(trace: Trace, found: Sequence[Window]) -> Pieces:
    """Parts of all GPU work of the ranks of these windows."""
    work = Work(trace)
    parts = [work.within(i, window) for i, window in enumerate(found)]
    columns = [np.concatenate(part) for part in zip(*parts, strict=True)] if parts else []
    return Pieces(*(columns or [np.zeros(0, np.int64)] * 5))


class Work:
    """GPU work of each rank, by start."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._of_rank: dict[int, tuple[Array, Array, Array, Array, Array]] = {}

    def of_rank(self, rank: int) -> tuple[Array, Array, Array, Array, Array]:
        """Row, sort, start, end and running maximum of ends."""
        if rank not in self._of_rank:
            self._of_rank[rank] = self._found(rank)
        return self._of_rank[rank]

    def within(self, number: int, window: Window) -> tuple[Array, Array, Array, Array, Array]:
        """Row, number, sort, start and end of parts within a window."""
        row, sort, start, end, reach = self.of_rank(window.rank)
        first = int(np.searchsorted(reach, window.start_ns, "left"))
        stop = int(np.searchsorted(start, window.end_ns, "right"))
        at = np.arange(first, max(first, stop))
        if window.iteration != windows.WHOLE:  # what only touches it is not in it
            touches = (end[at] > window.start_ns) & (start[at] < window.end_ns)
            at = at[touches & (end[at] > start[at])]
        return (
            row[at],
            np.full(len(at), number),
            sort[at],
            np.maximum(start[at], window.start_ns),
            np.minimum(end[at], window.end_ns),
        )

    def _found(self, rank: int) -> tuple[Array, Array, Array, Array, Array]:
        rows = self._trace.rank_rows[rank]
        sort = _SORT[self._trace.array("kind")[rows]]
        row = np.flatnonzero(sort >= 0) + rows.start
        start = self._trace.array("ts")[row]
        end = start + self._trace.array("dur")[row]
        reach = np.maximum.accumulate(end)
        return row, sort[sort >= 0].astype(np.int64), start, end, reach


@dataclass(frozen=True)
class Cells:
    """Groups of pieces, and within each group the parts that are measured alone and added up.

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
    trace: Trace, found: Sequence[Window], pieces: Pieces, steps: str, ranks: str
) -> dict[str, str]:
    """What a result says of its window and of what it leaves out."""
    chosen = windows.chosen_ranks(trace, ranks)
    told = {"window": windows.described(steps, _WHOLE)}
    inside = np.zeros(trace.nodes.num_rows, np.bool_)
    inside[pieces.row] = True
    out = sum(_work_of(trace, rank) - int(inside[trace.rank_rows[rank]].sum()) for rank in chosen)
    without = len(set(chosen) - {window.rank for window in found})
    parts = [f"{out} nodes of GPU work outside of these steps"] if steps else []
    parts += [f"{without} ranks without GPU work or steps"] if without else []
    told["left out"] = ", ".join(parts) or "nothing"
    if not found:
        told["no rows"] = "there is no GPU work in the trace"
    return told


def _work_of(trace: Trace, rank: int) -> int:
    rows = trace.rank_rows[rank]
    return int(np.count_nonzero(_SORT[trace.array("kind")[rows]] >= 0))


def names(found: Sequence[Window], by: str) -> tuple[str, ...]:
    """Grains by which pieces are grouped; in windows of steps, the step is one of them."""
    told = list(grouping.grains(by))
    if is_stepped(found) and "iteration" not in told:
        told.insert(told.index("rank") + 1 if "rank" in told else 0, "iteration")
    return tuple(told)


def is_stepped(found: Sequence[Window]) -> bool:
    """Whether windows are training steps."""
    return any(window.iteration != windows.WHOLE for window in found)


def cells(trace: Trace, found: Sequence[Window], pieces: Pieces, by: str) -> Cells:
    """Groups of pieces by `grouping.GRAINS`; in windows of steps, each step is a group as well.

    Ranks and steps never mix within a cell. Where groups are of ranks and steps alone, each window
    is a cell, even if nothing ran in it.
    """
    grains = names(found, by)
    of_window = {"rank": np.array([w.rank for w in found], np.int64)}
    if is_stepped(found):
        of_window["iteration"] = np.array([w.iteration for w in found], np.int64)
    rest = [name for name in grains if name not in of_window]
    if rest:
        others = grouping.of(trace, pieces.row, ",".join(rest))
        first, code = gather.distinct(pieces.window, others.code)
        window, other = pieces.window[first], others.code[first]
    else:
        others, code = None, pieces.window
        window, other = np.arange(len(found)), np.zeros(len(found), np.int64)
    told = [of_window[name][window] for name in grains if name in of_window]
    at, group = _ordered(*told, other)
    keys = {
        name: arrow.array(of_window[name][window[at]].astype(np.int32))
        if others is None or name in of_window
        else arrow.take(arrow.flat(others.keys[name]), other[at])
        for name in grains
    }
    table = pa.table(keys or {"job": arrow.texts([trace.meta.job] * len(at))})
    return Cells(code, window, group, Groups(group[code], table))


def _ordered(*columns: Array) -> tuple[Array, Array]:
    """Distinct rows of columns in ascending order: where the first of each is, and number of each."""
    order = np.lexsort(tuple(reversed(columns)))
    first, number = gather.distinct(*(column[order] for column in columns))
    group = np.empty(len(order), np.int64)
    group[order] = number
    return order[first], group
