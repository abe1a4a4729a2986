"""Launches by the flows of a Chrome trace, whose times are in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.converters.rocm.rows import first_match

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.rocm.rows import TableRows

_CALLS, _WORK = ("HIP", "HSA"), ("COPY", "OPS")
_MAX_TIME = 1 << 42
"""Microseconds (51 days) that times are below, so that lane and time fit into one 64-bit number."""


@dataclass(frozen=True)
class EventPositions:
    """Positions of events in the trace; -1 where unknown.

    Parameters
    ----------
    pid, tid
        Section and lane.
    ts
        Microseconds.
    id
        Id of each flow.
    """

    pid: Array
    tid: Array
    ts: Array
    id: Array


def link_by_flows(
    tables: dict[str, TableRows],
    positions: dict[str, EventPositions],
    begins: EventPositions,
    ends: EventPositions,
) -> tuple[dict[str, TableRows], int]:
    """Set the correlation ids of tables by flows, and count the flows that link nothing.

    A flow begins in the call of its lane that spans its begin, and ends at the operation in its
    section, lane and microsecond; it links nothing if there are none or several of either.
    """
    calls = [name for name in _CALLS if name in tables]
    work = [name for name in _WORK if name in tables]
    count = len(begins.id)
    if not calls or not work or not count:
        return tables, count
    call = _spanning(
        begins, _concatenated([positions[n] for n in calls]), _call_ends(tables, positions, calls)
    )
    end = first_match([ends.id], [begins.id], unique=True)
    operations = _concatenated([positions[n] for n in work])
    operation_of_end = first_match(_keys(operations), _keys(ends), unique=True)
    operation = np.append(operation_of_end, -1)[end]
    linked = np.flatnonzero((call >= 0) & (operation >= 0))
    call_ids = np.zeros(sum(tables[n].count for n in calls), np.int64)
    work_ids = np.zeros(sum(tables[n].count for n in work), np.int64)
    call_ids[call[linked]] = call[linked] + 1
    work_ids[operation[linked]] = call[linked] + 1
    result = dict(tables)
    for names, ids in ((calls, call_ids), (work, work_ids)):
        bounds = np.cumsum([tables[n].count for n in names])[:-1]
        for name, part in zip(names, np.split(ids, bounds), strict=True):
            rows = tables[name]
            result[name] = replace(rows, numbers={**rows.numbers, "correlation": part})
    return result, count - len(linked)


def _concatenated(parts: list[EventPositions]) -> EventPositions:
    columns = zip(*((p.pid, p.tid, p.ts, p.id) for p in parts), strict=True)
    return EventPositions(*(np.concatenate(column) for column in columns))


def _keys(positions: EventPositions) -> list[Array]:
    return [positions.pid, positions.tid, positions.ts]


def _call_ends(
    tables: dict[str, TableRows], positions: dict[str, EventPositions], names: list[str]
) -> Array:
    """Return the ends of calls in microseconds, plus one, as start and duration are rounded down."""
    spans = [
        np.maximum(tables[n].number("end", 0) - tables[n].number("start", 0), 0) for n in names
    ]
    begins = np.concatenate([positions[n].ts for n in names])
    return np.asarray(begins + np.concatenate(spans) // 1000 + 1)


def _spanning(flows: EventPositions, calls: EventPositions, ends: Array) -> Array:
    """Return the call of its lane that spans each flow's begin; -1 for none or several.

    Calls are sorted by lane and start in one number, in which the begin of a flow is looked up. The
    last call that starts before it and the call before that are tried: of two that span it, neither
    can be preferred.
    """
    lanes = [np.concatenate(pair) for pair in ((calls.pid, flows.pid), (calls.tid, flows.tid))]
    _, lane = gather.distinct(*lanes)
    call_lane, flow_lane = lane[: len(ends)], lane[len(ends) :]
    possible = (calls.ts >= 0) & (calls.ts < _MAX_TIME)
    order = np.flatnonzero(possible)
    order = order[np.lexsort((calls.ts[order], call_lane[order]))]
    key = np.concatenate([[-1], call_lane[order] * _MAX_TIME + calls.ts[order]])
    in_range = (flows.ts >= 0) & (flows.ts < _MAX_TIME)
    last = (
        np.searchsorted(key, flow_lane * _MAX_TIME + np.where(in_range, flows.ts, 0), "right") - 1
    )
    candidates = []
    for at in (last, last - 1):
        row = np.concatenate([[-1], order])[np.maximum(at, 0)]
        fits = in_range & (row >= 0) & (call_lane[row] == flow_lane) & (flows.ts <= ends[row])
        candidates.append(np.where(fits, row, -1))
    latest, before = candidates
    return np.where((latest >= 0) != (before >= 0), np.maximum(latest, before), -1)
