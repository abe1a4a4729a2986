"""Launches that only the flows of a picture tell, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows

_CALLS, _WORK = ("HIP", "HSA"), ("COPY", "OPS")
_FAR = 1 << 42
"""Microseconds that no clock shows."""


@dataclass(frozen=True)
class Marks:
    """Places in the picture; -1 where they are not told.

    Parameters
    ----------
    pid, tid
        Section and lane.
    ts
        Microseconds.
    id
        Of flows, which.
    """

    pid: Array
    tid: Array
    ts: Array
    id: Array


def linked(
    tables: dict[str, Rows], marks: dict[str, Marks], begins: Marks, ends: Marks
) -> tuple[dict[str, Rows], int]:
    """Tables with correlation ids by flows, and how many flows tie nothing.

    A flow begins in the call of its lane around its begin, if that is one alone, and ends at the
    operation that is alone in its section, lane and microsecond.
    """
    calls = [name for name in _CALLS if name in tables]
    work = [name for name in _WORK if name in tables]
    count = len(begins.id)
    if not calls or not work or not count:
        return tables, count
    call = _around(begins, _joined([marks[n] for n in calls]), _ends_of(tables, marks, calls))
    end = _equal([ends.id], [begins.id])
    target = _equal(*(_keys(m) for m in (_joined([marks[n] for n in work]), ends)))
    target = np.where(end >= 0, target[end] if len(target) else -1, -1)
    tied = np.flatnonzero((call >= 0) & (target >= 0))
    ours = np.zeros(sum(tables[n].count for n in calls), np.int64)
    theirs = np.zeros(sum(tables[n].count for n in work), np.int64)
    ours[call[tied]] = call[tied] + 1
    theirs[target[tied]] = call[tied] + 1
    found = dict(tables)
    for names, ids in ((calls, ours), (work, theirs)):
        bounds = np.cumsum([tables[n].count for n in names])[:-1]
        for name, part in zip(names, np.split(ids, bounds), strict=True):
            rows = tables[name]
            found[name] = replace(rows, numbers={**rows.numbers, "correlation": part})
    return found, count - len(tied)


def _joined(marks: list[Marks]) -> Marks:
    columns = zip(*((m.pid, m.tid, m.ts, m.id) for m in marks), strict=True)
    return Marks(*(np.concatenate(column) for column in columns))


def _keys(marks: Marks) -> list[Array]:
    return [marks.pid, marks.tid, marks.ts]


def _equal(ours: list[Array], theirs: list[Array]) -> Array:
    """For each of theirs the one of ours that is equal; -1 if there is none or several."""
    first, code = gather.distinct(
        *(np.concatenate(pair) for pair in zip(ours, theirs, strict=True))
    )
    mine = code[: len(ours[0])]
    alone = np.bincount(mine, minlength=len(first)) == 1
    return np.asarray(np.where(alone, first, -1)[code[len(mine) :]])


def _ends_of(tables: dict[str, Rows], marks: dict[str, Marks], names: list[str]) -> Array:
    """When calls end, in microseconds of the picture; one more, as both ends are rounded down."""
    spans = [
        np.maximum(tables[n].number("end", 0) - tables[n].number("start", 0), 0) for n in names
    ]
    begins = np.concatenate([marks[n].ts for n in names])
    return np.asarray(begins + np.concatenate(spans) // 1000 + 1)


def _around(flows: Marks, calls: Marks, ends: Array) -> Array:
    """The call of its lane in which each flow begins; -1 if there is none or it may be either."""
    lanes = [np.concatenate(pair) for pair in ((calls.pid, flows.pid), (calls.tid, flows.tid))]
    _, lane = gather.distinct(*lanes)
    mine, theirs = lane[: len(ends)], lane[len(ends) :]
    possible = (calls.ts >= 0) & (calls.ts < _FAR)
    order = np.flatnonzero(possible)
    order = order[np.lexsort((calls.ts[order], mine[order]))]
    place = np.concatenate([[-1], mine[order] * _FAR + calls.ts[order]])
    in_reach = (flows.ts >= 0) & (flows.ts < _FAR)
    last = np.searchsorted(place, theirs * _FAR + np.where(in_reach, flows.ts, 0), "right") - 1
    found = []
    for at in (last, last - 1):
        row = np.concatenate([[-1], order])[np.maximum(at, 0)]
        fits = in_reach & (row >= 0) & (mine[row] == theirs) & (flows.ts <= ends[row])
        found.append(np.where(fits, row, -1))
    latest, before = found
    return np.where((latest >= 0) != (before >= 0), np.maximum(latest, before), -1)
