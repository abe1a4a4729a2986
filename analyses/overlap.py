"""What communication costs although it runs beside compute: exposed time, slow-down, what was won."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.activity import (
    beside,
    grouping,
    operation_instances,
    pieces,
    slowdown,
    windows,
)
from chopper_interop.activity.grouping import Groups
from chopper_interop.activity.pieces import COMM, COMPUTE, Cells
from chopper_interop.activity.slowdown import Slowdown
from chopper_interop.columns import arrow, gather
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.peers import temporal as peers  # fmt: skip
from chopper_interop.result import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.activity.beside import Beside
    from chopper_interop.activity.pieces import Pieces
    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

__all__ = ["overlap"]

OPERATION_INSTANCE, INSTANCE = "operation_instance", "instance"
_CONVENTIONS = {
    "copies": "neither compute nor communication: exposed time may have copies beside it; copies "
    "by kernels of the runtime (__amd_rocclr_*) count as compute",
    "beside": "what runs at once on the same rank and device",
    "exposed": "by interval union: of a group's communication, the time without any compute on "
    "its GPU, whichever group that is of; of its compute, without any communication. Sums of "
    "these over GPUs",
    "slow-down": "kernels of which communication covers half of the time or more, against those of "
    "the same name, grid and sizes on the same rank of which it covers nothing; their medians (of two in the middle the lower), "
    "weighted by how many are overlapped. Where grid or sizes are known of some kernels of a name, "
    "those of which they are not are not compared; where of none, the name alone tells",
    "ideal": "c3_efficiency_share = (compute_ns + comm_ns - busy) / (compute_ns + comm_ns - max), "
    "busy being when either ran; kernels that communication slows down count as long as they were",
}
_ABOUT = ("iteration", "collective", "group")


def overlap(
    trace: Trace, *, by: str = "rank", steps: str = "", ranks: str = "", compat: str = ""
) -> Result:
    """Exposed communication and compute, slow-down under communication, share of the ideal.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    by
        What a row is of: names out of `grouping.GRAINS` separated by commas (``rank``,
        ``collective``, ``group``, ``layer``, ``rank,iteration``, ``kernel``, …); ``instance``: each
        communication, with all its members; ``operation_instance``: each time that a rank ran an
        operation.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself, as long as the range
        that marks it; else all of the trace.
    ranks
        These ranks, as ``0,4-7``; else all.
    compat
        ``hta`` or ``tracelens``: the definitions and columns of these tools instead; ``chopper``:
        operation instances by Chopper's own definition.

    Returns
    -------
    Result
        One row a group: `compute_ns` and `comm_ns`, when kernels and fills or communication of the
        group ran; `exposed_compute_ns` and `exposed_comm_ns`, the part of these without any of the
        other sort on the GPU; `compute_overlap_share` and `comm_overlap_share`, the rest as a share
        (0 to 1); `slowdown_factor` of its kernels beside communication, from `overlapped_kernels`
        of them and `solo_kernels` like them, null where there are none of either;
        `c3_efficiency_share`.

        By operation instance: `rank`, `device`, `iteration`, `phase`, `layer`, `operation`,
        `kernels`, `start_ns` since the trace's origin, `elapsed_ns` from the first start to the last
        end of its kernels, `overlap_ns` of it in which something communicates on the GPU, and
        `overlap_share` of both.

        The summary has sums over GPUs. Nodes get `exposed_ns` and `overlap_share`.

    Notes
    -----
    An operation instance is what a GPU ran of one `operation`, `layer`, `phase` and `iteration`
    without computing anything else in between. Its overlap ratio is that of Chopper (arXiv
    2512.08242, `trace_metrics.py` of v0.10), which sums over communication kernels and takes at
    most the elapsed time; here it is of their union, so that kernels that communicate at once do
    not count twice. Chopper's own form, and its end of the last kernel to start, with
    ``compat=chopper``.

    Share of the ideal overlap speed-up, after ConCCL (arXiv 2412.14335), where 1 is perfect and 0
    serial::

        c3_efficiency_share = (T_serial - T_measured) / (T_serial - max(T_compute, T_comm))

    with T_compute = `compute_ns`, T_comm = `comm_ns`, T_serial their sum and T_measured the time in
    which either ran, all of the group's own work on one GPU; of several GPUs, both sides are
    summed. Null where the denominator is 0.
    """
    if compat and compat != "chopper":
        return peers.overlap(trace, compat, ranks, default=(by, steps) == ("rank", ""))
    if compat and by not in ("rank", OPERATION_INSTANCE):
        raise NoSuchDefinitionsError(
            f"compat={compat} has rows of operation instances", hint="leave by out"
        )
    found = windows.of_ranks(trace, steps, ranks)
    work = pieces.within(trace, found)
    others = beside.of(trace, found, work)
    notes = pieces.notes(trace, found, work, steps, ranks)
    conventions = pieces.CONVENTIONS | _CONVENTIONS
    annotations = others.annotations(trace, work)
    figures = None
    if compat or by == OPERATION_INSTANCE:
        table, left_out = operation_instances.table(trace, work, others, chopper=bool(compat))
        conventions |= operation_instances.conventions(chopper=bool(compat))
        notes["operations"] = operation_instances.left_out_told(left_out)
    elif by == INSTANCE:
        table = _instances(trace, work, others)
    else:
        cells = pieces.cells(trace, found, work, by)
        keys = {name: cells.groups.keys[name] for name in cells.groups.keys.column_names}
        figures = _measured(trace, work, others, cells)
        table = pa.table(keys | figures.columns())
    if figures is None or (by, steps) != ("rank", ""):
        figures = _whole(trace, found, work, others)
    summary = {"ranks": len({window.rank for window in found})} | figures.total()
    return Result("overlap", table, summary, conventions, annotations, notes)


def _whole(trace: Trace, found: Sequence[Window], work: Pieces, others: Beside) -> _Figures:
    """All windows together."""
    one = Groups(np.zeros(len(work), np.int64), pa.table({"job": arrow.texts([trace.meta.job])}))
    cells = Cells(work.window, np.arange(len(found)), np.zeros(len(found), np.int64), one)
    return _measured(trace, work, others, cells)


class _Figures(NamedTuple):
    """Sums of each group that its figures are made of."""

    compute: Array
    exposed_compute: Array
    comm: Array
    exposed_comm: Array
    both: Array
    """When its compute and its communication ran at once."""
    ideal: Array
    """How long these could have: the lesser of them on each GPU."""
    slow: Slowdown

    def columns(self) -> dict[str, Any]:
        """Arrow columns."""
        slow = self.slow
        return {
            "compute_ns": arrow.array(self.compute),
            "exposed_compute_ns": arrow.array(self.exposed_compute),
            "compute_overlap_share": beside.share(
                self.compute - self.exposed_compute, self.compute
            ),
            "comm_ns": arrow.array(self.comm),
            "exposed_comm_ns": arrow.array(self.exposed_comm),
            "comm_overlap_share": beside.share(self.comm - self.exposed_comm, self.comm),
            "slowdown_factor": beside.share(slow.beside, slow.alone),
            "overlapped_kernels": arrow.array(slow.overlapped),
            "compared_kernels": arrow.array(slow.compared),
            "solo_kernels": arrow.array(slow.solo),
            "c3_efficiency_share": beside.share(self.both, self.ideal),
        }

    def total(self) -> dict[str, Any]:
        """Figures of all groups together, plain."""
        summed = {name: getattr(self, name).sum(keepdims=True) for name in self._fields[:-1]}
        slow = Slowdown(*(part.sum(keepdims=True) for part in self.slow))
        columns = self._replace(**summed, slow=slow).columns()
        return {name: column[0].as_py() for name, column in columns.items()}


def _measured(trace: Trace, work: Pieces, others: Beside, cells: Cells) -> _Figures:
    time, exposed = _times(work, others, cells), others.exposed(work, cells)
    slow = slowdown.of(trace, work, others.covered, cells.groups.code, len(cells.groups))
    compute, comm, both, ideal = (time[name] for name in ("compute", "comm", "both", "ideal"))
    return _Figures(compute, exposed[COMPUTE], comm, exposed[COMM], both, ideal, slow)


def _times(work: Pieces, others: Beside, cells: Cells) -> dict[str, Array]:
    """When compute, communication and both of a group ran; of several GPUs, sums."""
    at, alone = gather.distinct(cells.code, others.gpu)
    time = work.patterns(alone, len(at))
    combination = np.arange(time.shape[1])
    compute, comm = ((combination & 1 << sort) > 0 for sort in (COMPUTE, COMM))
    which = {"compute": compute, "comm": comm, "both": compute & comm}
    of_gpu = {name: time[:, those].sum(axis=1) for name, those in which.items()}
    of_gpu["ideal"] = np.minimum(of_gpu["compute"], of_gpu["comm"])
    of_cell = cells.code[at]
    return {
        name: cells.summed(gather.sums(of_cell, values, len(cells)))
        for name, values in of_gpu.items()
    }


def _instances(trace: Trace, work: Pieces, others: Beside) -> pa.Table:
    """One row a communication: all its members, or a kernel of which no instance is known."""
    communicates = np.flatnonzero(work.sort == COMM)
    work, others = work.where(communicates), others.where(communicates)
    stated = np.full(len(work), -1, np.int64)
    if "instance" in trace.nodes.column_names:
        stated = arrow.numbers(trace.nodes["instance"], -1)[work.row].astype(np.int64)
    told = np.where(stated >= 0, stated, -2 - work.row)
    at, number = gather.distinct(told)
    first, code = gather.distinct(work.window, number)
    groups = grouping.of(trace, work.row[at], ",".join(_ABOUT))
    about = {name: arrow.take(arrow.flat(groups.keys[name]), groups.code) for name in _ABOUT}
    cells = Cells(code, work.window[first], number[first], Groups(number, pa.table(about)))
    comm, exposed = _times(work, others, cells)["comm"], others.exposed(work, cells)[COMM]
    start, members = work.start[at], np.unique(work.row, return_index=True)[1]
    np.minimum.at(start, number, work.start)
    return pa.table(
        {
            "instance": arrow.array(stated[at], mask=stated[at] < 0),
            **about,
            "members": arrow.array(np.bincount(number[members], minlength=len(at))),
            "start_ns": arrow.array(start),
            "comm_ns": arrow.array(comm),
            "exposed_comm_ns": arrow.array(exposed),
            "comm_overlap_share": beside.share(comm - exposed, comm),
        }
    )
