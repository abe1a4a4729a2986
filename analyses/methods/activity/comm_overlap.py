"""Overlap of communication and compute on each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods import distributions
from chopper_interop.analyses.methods.activity import pieces
from chopper_interop.analyses.methods.activity.pieces import COMM, COMPUTE, Cells, WorkPieces
from chopper_interop.arrays import Array, arrow, gather, intervals
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window
    from chopper_interop.arrays.intervals import GroupIntervals

_OPPOSITE = {COMPUTE: COMM, COMM: COMPUTE}
"""Class of work with which each class overlaps; copies are neither."""


@dataclass(frozen=True)
class Overlap:
    """Overlap of each piece of GPU work with the opposite class, compute or communication.

    Parameters
    ----------
    gpu
        Number of each piece's GPU: a device of a rank.
    overlap_ns
        Nanoseconds of each piece in which the opposite class ran on its GPU; 0 for copies.
    busy
        Unions of the intervals in which each class ran on each GPU, by their cell: `_cell`, ascending.
    gpus
        How many GPUs there are.
    """

    gpu: Array
    overlap_ns: Array
    busy: GroupIntervals
    gpus: int

    def where(self, which: Array) -> Overlap:
        """Overlap of some of the pieces, by a mask or rows."""
        return Overlap(self.gpu[which], self.overlap_ns[which], self.busy, self.gpus)

    def overlap_with(self, work_class: int, gpu: Array, start: Array, end: Array) -> Array:
        """Nanoseconds of any intervals in which this class of work ran on their GPU."""
        return intervals.covered_in_groups(
            _cell(gpu, work_class), start, end, self.busy, _cell(self.gpus, 0)
        )

    def annotations(self, trace: Trace, work: WorkPieces) -> dict[str, Any]:
        """Exposed time and overlapped share of each node, of the part that lies within windows."""
        counts = work.work_class != pieces.COPY
        row, n = work.row[counts], trace.nodes.num_rows
        overlap = gather.group_sums(row, self.overlap_ns[counts], n)
        length = gather.group_sums(row, (work.end - work.start)[counts], n)
        unknown = np.ones(n, np.bool_)
        unknown[row] = False
        return {
            "exposed_ns": arrow.array(length - overlap, mask=unknown),
            "overlap_share": distributions.ratios(overlap, length),
        }

    def exposed(self, work: WorkPieces, cells: Cells) -> dict[int, Array]:
        """Time of compute and of communication of each group that overlaps with no opposite work.

        Of the union of a group's intervals on each GPU, summed over GPUs and windows; by class.
        """
        exposed = {}
        for work_class, opposite in _OPPOSITE.items():
            of_class = np.flatnonzero(work.work_class == work_class)
            at, alone = gather.distinct(cells.code[of_class], self.gpu[of_class])
            number, start, end = intervals.group_unions(
                alone, work.start[of_class], work.end[of_class], len(at)
            )
            example = of_class[at][number]  # a piece of the same group and GPU as each interval
            rest = end - start - self.overlap_with(opposite, self.gpu[example], start, end)
            exposed[work_class] = cells.summed(
                gather.group_sums(cells.code[example], rest, len(cells))
            )
        return exposed


def measure_overlap(trace: Trace, rank_windows: Sequence[Window], work: WorkPieces) -> Overlap:
    """Overlap of each piece of GPU work within windows; copies count as neither class.

    Parameters
    ----------
    rank_windows
        The windows.
    work
        Pieces of work within them.
    """
    device = trace.array("device", "lanes")[trace.array("lane")[work.row]]
    first, gpu = gather.distinct(trace.array("rank")[work.row], device)
    order = np.arange(len(work))
    if pieces.is_stepped(rank_windows):  # steps may overlap
        order = np.argsort(work.start, kind="stable")
    cells = _cell(len(first), 0)
    busy = intervals.group_unions(
        _cell(gpu[order], work.work_class[order]), work.start[order], work.end[order], cells
    )
    _, ascending = gather.group_rows(busy[0], cells)
    cell, start, end = (column[ascending] for column in busy)
    overlap = Overlap(gpu, np.zeros(len(work), np.int64), (cell, start, end), len(first))
    for work_class, opposite in _OPPOSITE.items():
        rows = np.flatnonzero(work.work_class == work_class)
        overlap.overlap_ns[rows] = overlap.overlap_with(
            opposite, gpu[rows], work.start[rows], work.end[rows]
        )
    return overlap


def _cell(gpu: Any, work_class: Any) -> Any:
    """Number of each GPU and class of work, of which there are three."""
    return 3 * gpu + work_class
