"""Overlap of communication and compute: exposed time, slow-down, share of the ideal speed-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.analyses.methods import distributions
from chopper_interop.analyses.methods.activity import (
    comm_overlap,
    grouping,
    operation_instances,
    pieces,
    slowdown,
    windows,
)
from chopper_interop.analyses.methods.activity.grouping import Keys
from chopper_interop.analyses.methods.activity.pieces import COMM, COMPUTE, Cells, PieceGroups
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.analyses.methods.peers import temporal as peers
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.comm_overlap import Overlap
    from chopper_interop.analyses.methods.activity.pieces import WorkBatch, WorkPieces

__all__ = ["overlap"]

_OPERATION_INSTANCE, _INSTANCE = "operation_instance", "instance"
_CONVENTIONS = {
    "copies": "neither compute nor communication: exposed time may overlap copies; copies "
    "by kernels of the runtime (__amd_rocclr_*) count as compute",
    "overlap": "work overlaps that runs at the same time on the same rank and device",
    "exposed": "by interval union: of a group's communication, the time without any compute on "
    "its GPU, of whichever group; of its compute, the time without any communication. Sums of "
    "these over GPUs",
    "slow-down": "kernels that communication covers for half of their time or more, against kernels of "
    "the same name, grid and sizes on the same rank that it does not cover; ratio of their medians (the "
    "lower of two in the middle), weighted by the number of overlapped kernels. Where grid or sizes are "
    "known for some kernels of a name only, the others are not compared; where they are known for "
    "none, the name alone decides",
    "ideal": "c3_efficiency_share = (compute_ns + comm_ns - busy) / (compute_ns + comm_ns - max), "
    "where busy is the time in which either ran; kernels slowed down by communication count with their "
    "measured duration",
}
_INSTANCE_KEYS = ("iteration", "collective", "group")


def overlap(
    trace: Trace, *, by: str = "rank", steps: str = "", ranks: str = "", compat: str = ""
) -> Result:
    """Exposed communication and compute, slow-down under communication, share of the ideal.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    by
        Columns that identify a row: names of `grouping.GRAINS` separated by commas (``rank``,
        ``collective``, ``group``, ``layer``, ``rank,iteration``, ``kernel``, …); ``instance``: each
        communication, with all its members; ``operation_instance``: each execution of an operation
        on a rank.
    steps
        Training steps, each by itself, with the length of the range that marks it: ``each``, ``10``,
        ``10-12``; all of the trace by default.
    ranks
        Ranks that count: ``0,4-7``; all by default.
    compat
        ``hta`` or ``tracelens``: the definitions and columns of these tools; ``chopper``: operation
        instances by Chopper's definition.

    Returns
    -------
    Result
        One row per group: `compute_ns` and `comm_ns`, the time in which its kernels and fills or its
        communication ran; `exposed_compute_ns` and `exposed_comm_ns`, the part of these without any
        work of the other class on the GPU; `compute_overlap_share` and `comm_overlap_share`, the rest
        as a share (0 to 1); `slowdown_factor` of its kernels during communication, from
        `overlapped_kernels`, the `compared_kernels` of them and `solo_kernels` of the same kind on the
        rank, in whichever of the steps they are, null where either are missing; `c3_efficiency_share`.

        By operation instance: `rank`, `device`, `iteration`, `phase`, `layer`, `operation`,
        `kernels`, `start_ns` since the trace's origin, `elapsed_ns` from the first start to the last
        end of its kernels, `overlap_ns` of it in which communication runs on the GPU, and
        `overlap_share`, its share of elapsed_ns.

        The summary has sums over GPUs. Nodes get `exposed_ns` and `overlap_share`.

    Notes
    -----
    An operation instance consists of consecutive compute kernels of one `operation`, `layer`, `phase`
    and `iteration` on a GPU. Its overlap ratio is that of Chopper (arXiv 2512.08242,
    ``trace_metrics.py`` of v0.10), which sums over communication kernels and limits the sum to the elapsed
    time; here it is of their union, so that concurrent communication kernels do not count twice.
    ``compat=chopper`` gives Chopper's sum, and as end that of the kernel that starts last.

    Share of the ideal overlap speed-up, after ConCCL (arXiv 2412.14335), where 1 is perfect and 0
    serial::

        c3_efficiency_share = (T_serial - T_measured) / (T_serial - max(T_compute, T_comm))

    with T_compute = `compute_ns`, T_comm = `comm_ns`, T_serial their sum and T_measured the time in
    which either ran, all of the group's work on one GPU; over several GPUs, numerator and
    denominator are summed. Null where the denominator is 0.
    """
    if compat and compat != "chopper":
        return peers.overlap(trace, compat, ranks, default=(by, steps) == ("rank", ""))
    if compat and by not in ("rank", _OPERATION_INSTANCE):
        raise NoSuchDefinitionsError(
            f"compat={compat} has rows of operation instances", hint="leave by out"
        )
    selected = windows.rank_windows(trace, steps, ranks)
    job = _ByGroup(PieceGroups((), ()))
    rows: _ByGroup | _ByInstance | _ByOperation
    if compat or by == _OPERATION_INSTANCE:
        rows = _ByOperation(is_chopper=bool(compat))
    elif by == _INSTANCE:
        rows = _ByInstance()
    else:
        rows = _ByGroup(PieceGroups.by(selected, by))
    # ranks add up to the job
    is_of_ranks = isinstance(rows, _ByGroup) and (by, steps) == ("rank", "")
    counted, annotations = 0, rank_batches.JoinedColumns(trace)
    for batch in pieces.work_of_batches(trace, selected):
        concurrent = comm_overlap.measure_overlap(batch.trace, batch.windows, batch.work)
        rows.add(batch, concurrent)
        if not is_of_ranks:
            job.add(batch, concurrent)
        counted += batch.nodes
        annotations.add(batch.rows, concurrent.annotations(batch.trace, batch.work))
    notes = pieces.notes(trace, selected, counted, steps, ranks)
    conventions = pieces.CONVENTIONS | _CONVENTIONS
    if isinstance(rows, _ByOperation):
        conventions |= operation_instances.conventions(chopper=bool(compat))
        notes["operations"] = operation_instances.left_out_note(rows.left_out)
    figures = rows.figures() if is_of_ranks and isinstance(rows, _ByGroup) else job.figures()
    summary = {"ranks": len({window.rank for window in selected})} | figures.total()
    return Result("overlap", rows.table(trace), summary, conventions, annotations.joined(), notes)


class _Figures(NamedTuple):
    """Sums of each group from which its figures are computed."""

    compute: Array
    exposed_compute: Array
    comm: Array
    exposed_comm: Array
    both: Array
    """Time in which its compute and its communication ran at once."""
    ideal: Array
    """Upper bound of `both`: the shorter of compute and communication on each GPU."""
    slow_ns: Array
    alone_ns: Array
    overlapped: Array
    compared: Array
    solo: Array
    """As of `Slowdown`."""

    def columns(self) -> dict[str, Any]:
        """Return the figures as Arrow columns."""
        return {
            "compute_ns": arrow.array(self.compute),
            "exposed_compute_ns": arrow.array(self.exposed_compute),
            "compute_overlap_share": distributions.ratios(
                self.compute - self.exposed_compute, self.compute
            ),
            "comm_ns": arrow.array(self.comm),
            "exposed_comm_ns": arrow.array(self.exposed_comm),
            "comm_overlap_share": distributions.ratios(self.comm - self.exposed_comm, self.comm),
            "slowdown_factor": distributions.ratios(self.slow_ns, self.alone_ns),
            "overlapped_kernels": arrow.array(self.overlapped),
            "compared_kernels": arrow.array(self.compared),
            "solo_kernels": arrow.array(self.solo),
            "c3_efficiency_share": distributions.ratios(self.both, self.ideal),
        }

    def total(self) -> dict[str, Any]:
        """Figures of all groups together, as plain numbers."""
        columns = _Figures(*(values.sum(keepdims=True) for values in self)).columns()
        return {name: column[0].as_py() for name, column in columns.items()}


class _ByGroup:
    """Rows of groups of work."""

    def __init__(self, groups: PieceGroups) -> None:
        self._groups = groups
        self._totals = Totals()

    def add(self, batch: WorkBatch, concurrent: Overlap) -> None:
        """Measure a batch."""
        cells = self._groups.cells(batch)
        time = _union_times(batch.work, concurrent, cells)
        exposed = concurrent.exposed(batch.work, cells)
        slow = slowdown.measure_slowdown(
            batch.trace, batch.work, concurrent.overlap_ns, cells.group[cells.code], len(cells.keys)
        )
        figures = _Figures(
            time["compute"],
            exposed[COMPUTE],
            time["comm"],
            exposed[COMM],
            time["both"],
            time["ideal"],
            *slow,
        )
        self._totals.add(self._totals.numbers(cells.keys), **figures._asdict())

    def figures(self) -> _Figures:
        """Figures of all groups."""
        return _Figures(**self._totals.ordered()[1])

    def table(self, trace: Trace) -> pa.Table:
        """One row a group."""
        keys = self._totals.ordered()[0]
        return pa.table(self._groups.columns(trace, keys) | self.figures().columns())


class _ByOperation:
    """Rows of instances of operations."""

    def __init__(self, *, is_chopper: bool) -> None:
        self._is_chopper = is_chopper
        self._tables: list[pa.Table] = []
        self.left_out = 0

    def add(self, batch: WorkBatch, concurrent: Overlap) -> None:
        """Measure a batch."""
        table, left_out = operation_instances.instance_table(
            batch.trace, batch.work, concurrent, chopper=self._is_chopper
        )
        self._tables.append(table)
        self.left_out += left_out

    def table(self, _: Trace) -> pa.Table:
        """One row an instance."""
        return pa.concat_tables(self._tables).combine_chunks()


class _ByInstance:
    """Rows of communication, with all its members, or of a kernel whose instance is unknown."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._codes: list[list[Array]] = []

    def add(self, batch: WorkBatch, concurrent: Overlap) -> None:
        """Measure a batch; members of an instance may be in several."""
        communicates = np.flatnonzero(batch.work.work_class == COMM)
        work, concurrent = batch.work.where(communicates), concurrent.where(communicates)
        instance = batch.trace.integers("instance", work.row)
        # work of unknown instance gets a key of its own: negative and below -1
        key = np.where(instance >= 0, instance, -2 - batch.rows.start - work.row)
        at, number = gather.distinct(key)
        first, code = gather.distinct(work.window, number)
        keys = Keys((_INSTANCE,), (key[at],), len(at))
        cells = Cells(code, work.window[first], number[first], keys)
        start = work.start[at]
        np.minimum.at(start, number, work.start)
        # a member in several windows has several pieces and counts once
        members = np.unique(work.row, return_index=True)[1]
        before = len(self._totals.keys)
        numbers = self._totals.numbers(keys)
        self._totals.add(
            numbers,
            comm=_union_times(work, concurrent, cells)["comm"],
            exposed=concurrent.exposed(work, cells)[COMM],
            members=np.bincount(number[members], minlength=len(at)),
        )
        self._totals.least(numbers, start=start)
        of_new = work.row[at[numbers >= before]]
        self._codes.append(grouping.codes_of(batch.trace, of_new, _INSTANCE_KEYS))

    def table(self, trace: Trace) -> pa.Table:
        """One row a communication, in order of occurrence."""
        figures, instance = self._totals.figures(), self._totals.keys.codes[0]
        keys = Keys(_INSTANCE_KEYS, tuple(np.concatenate(self._codes, axis=1)), len(instance))
        named = keys.table(trace)
        comm, exposed = figures["comm"], figures["exposed"]
        return pa.table(
            {
                "instance": arrow.array(instance, mask=instance < 0),
                **dict(zip(named.column_names, named.columns, strict=True)),
                "members": arrow.array(figures["members"]),
                "start_ns": arrow.array(figures["start"]),
                "comm_ns": arrow.array(comm),
                "exposed_comm_ns": arrow.array(exposed),
                "comm_overlap_share": distributions.ratios(comm - exposed, comm),
            }
        )


def _union_times(work: WorkPieces, concurrent: Overlap, cells: Cells) -> dict[str, Array]:
    """Time in which compute, communication and both of a group ran, summed over GPUs."""
    # a cell is split by GPU first: `ideal` is the shorter of two unions of the same GPU
    first, code = gather.distinct(cells.code, concurrent.gpu)
    time = work.patterns(code, len(first))  # by combination of classes that ran, one bit a class
    combination = np.arange(time.shape[1])
    compute, comm = ((combination & 1 << work_class) > 0 for work_class in (COMPUTE, COMM))
    masks = {"compute": compute, "comm": comm, "both": compute & comm}
    of_gpu = {name: time[:, mask].sum(axis=1) for name, mask in masks.items()}
    of_gpu["ideal"] = np.minimum(of_gpu["compute"], of_gpu["comm"])
    of_cell = cells.code[first]
    return {
        name: cells.summed(gather.group_sums(of_cell, values, len(cells)))
        for name, values in of_gpu.items()
    }
