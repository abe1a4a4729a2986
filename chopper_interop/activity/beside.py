"""What runs beside what: communication and compute of one GPU at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.activity import pieces
from chopper_interop.activity.pieces import COMM, COMPUTE
from chopper_interop.columns import arrow, gather, intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.activity.pieces import Cells, Pieces
    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.intervals import Union
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_OTHER = {COMPUTE: COMM, COMM: COMPUTE}


@dataclass(frozen=True)
class Beside:
    """GPUs of pieces, and how long the other sort (of compute and communication) ran beside each.

    Parameters
    ----------
    gpu
        Number of each piece's GPU: a device of a rank.
    covered
        Nanoseconds of each piece; 0 for copies.
    when
        For each GPU, when anything of each sort ran on it.
    """

    gpu: Array
    covered: Array
    when: list[dict[int, Union]]

    def where(self, which: Array) -> Beside:
        """Of some of the pieces."""
        return Beside(self.gpu[which], self.covered[which], self.when)

    def beside(self, sort: int, gpu: Array, start: Array, end: Array) -> Array:
        """Time of any intervals in which this sort ran on their GPU."""
        found = np.zeros(len(gpu), np.int64)
        for number, rows in _by_gpu(gpu, len(self.when)):
            found[rows] = intervals.covered(start[rows], end[rows], self.when[number][sort])
        return found

    def annotations(self, trace: Trace, work: Pieces) -> dict[str, Any]:
        """Exposed time and overlapped share of each node, of the part that lies within windows."""
        counts = work.sort != pieces.COPY
        row, n = work.row[counts], trace.nodes.num_rows
        covered = gather.sums(row, self.covered[counts], n)
        length = gather.sums(row, (work.end - work.start)[counts], n)
        unknown = np.ones(n, np.bool_)
        unknown[row] = False
        return {
            "exposed_ns": arrow.array(length - covered, mask=unknown),
            "overlap_share": share(covered, length),
        }

    def exposed(self, work: Pieces, cells: Cells) -> dict[int, Array]:
        """Time of compute and of communication of each group without the other sort beside it."""
        found = {}
        for sort, other in _OTHER.items():
            which = np.flatnonzero(work.sort == sort)
            at, alone = gather.distinct(cells.code[which], self.gpu[which])
            place, start, end = intervals.unions(alone, work.start[which], work.end[which], len(at))
            first = which[at][place]
            left = end - start - self.beside(other, self.gpu[first], start, end)
            found[sort] = cells.summed(gather.sums(cells.code[first], left, len(cells)))
        return found


def of(trace: Trace, found: Sequence[Window], work: Pieces) -> Beside:
    """What runs beside each piece; copies count as neither."""
    device = trace.array("device", "lanes")[trace.array("lane")[work.row]]
    first, gpu = gather.distinct(trace.array("rank")[work.row], device)
    order = np.arange(len(work))
    if pieces.is_stepped(found):  # steps may overlap
        order = np.argsort(work.start, kind="stable")
    sort = work.sort[order]
    cell, start, end = intervals.unions(
        3 * gpu[order] + sort, work.start[order], work.end[order], 3 * len(first)
    )
    when: list[dict[int, Union]] = [{} for _ in first]
    for number, rows in _by_gpu(cell, 3 * len(first)):
        when[number // 3][number % 3] = start[rows], end[rows]
    nothing = np.zeros(0, np.int64)
    for one in when:
        for sort_ in _OTHER:
            one.setdefault(sort_, (nothing, nothing))
    told = Beside(gpu, np.zeros(len(work), np.int64), when)
    for sort_, other in _OTHER.items():
        mine = np.flatnonzero(work.sort == sort_)
        told.covered[mine] = told.beside(other, gpu[mine], work.start[mine], work.end[mine])
    return told


def share(part: Array, whole: Array) -> Any:
    """Shares as an Arrow array; null of nothing."""
    nothing = whole <= 0
    return arrow.array(part / np.where(nothing, 1, whole), mask=nothing)


def _by_gpu(number: Array, n: int) -> list[tuple[int, Array]]:
    """Rows of each number that occurs, in their order."""
    if n == 1 and len(number):
        return [(0, np.arange(len(number)))]
    first, place = gather.places(number, n)
    return [(k, place[first[k] : first[k + 1]]) for k in np.flatnonzero(np.diff(first)).tolist()]
