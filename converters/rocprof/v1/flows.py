"""Launches by the flows of a Chrome trace, whose times are in microseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.rocm.rows import TableRows, first_match

_CALLS, _WORK = ("HIP", "HSA"), ("COPY", "OPS")
_COPIES = re.compile(r"Mem(cpy|set)|memory_async_copy")
"""Calls that launch copies and fills."""
_NS_PER_US = 1000
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

    A flow begins in its call, at the end or in newer releases in the middle, or with its operation
    if that starts earlier (``flow_json`` of ``bin/sqlitedb.py``): in the innermost call of its lane
    that spans its begin. A copy that starts before its call, as clocks differ, is of the next call
    of the lane that copies. A flow ends at the operation in its section, lane and microsecond; it
    links nothing if there are none or several of either.
    A fill of several operations has a flow to the last of them: one before it that began in the same
    call, and to which no flow leads, is of that call too.
    """
    calls = [name for name in _CALLS if name in tables]
    work = [name for name in _WORK if name in tables]
    count = len(begins.id)
    if not calls or not work or not count:
        return tables, count
    called = _concatenated([positions[n] for n in calls])
    spans = [tables[n].number("end", 0) - tables[n].number("start", 0) for n in calls]
    span_ns = np.maximum(np.concatenate(spans), 0)
    call = _spanning(begins, called, span_ns)
    end = first_match([ends.id], [begins.id], unique=True)
    _leave_out_earlier_calls(call, begins, np.append(ends.ts, -1)[end], called, span_ns)
    operations = _concatenated([positions[n] for n in work])
    operation_of_end = first_match(_keys(operations), _keys(ends), unique=True)
    operation = np.append(operation_of_end, -1)[end]
    is_copy = operation < (tables["COPY"].count if "COPY" in work else 0)  # they come first
    copies = np.concatenate([_copies(tables[n]) for n in calls])
    copies[call[call >= 0]] = False
    late = np.flatnonzero((call < 0) & (operation >= 0) & is_copy)
    call[late] = _next_calls(begins, late, called, np.flatnonzero(copies))
    linked = np.flatnonzero((call >= 0) & (operation >= 0))
    call_ids = np.zeros(sum(tables[n].count for n in calls), np.int64)
    work_ids = np.zeros(sum(tables[n].count for n in work), np.int64)
    call_ids[call[linked]] = call[linked] + 1
    work_ids[operation[linked]] = call[linked] + 1
    if "COPY" in work:  # comes first, and its ids are a view of those of all
        _add_preceding(work_ids[: tables["COPY"].count], positions["COPY"], called)
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


def _add_preceding(work_ids: Array, operations: EventPositions, calls: EventPositions) -> None:
    """Set the ids of operations without one that come before another of the same call, in place.

    Not for kernels, which may be of an earlier call where the queue is long.
    """
    order = np.lexsort((operations.ts, operations.tid, operations.pid))
    lane = np.stack([operations.pid[order], operations.tid[order]])
    before, after = order[:-1], order[1:]
    call = work_ids[after] - 1
    same = (lane[:, 1:] == lane[:, :-1]).all(axis=0) & (work_ids[before] == 0) & (call >= 0)
    inside = same & (operations.ts[before] >= calls.ts[np.maximum(call, 0)])
    work_ids[before[inside]] = call[inside] + 1


def _leave_out_earlier_calls(
    call: Array, begins: EventPositions, end_ts: Array, calls: EventPositions, span_ns: Array
) -> None:
    """Set the call of a flow to -1 where it is one before its own, in place.

    A flow begins with its operation if that starts before the middle of its call, and so in the call before if it starts
    in that. Where flows that begin before their operations do so up to the middle of a call, no later one is of that call::

        calls   [     |     ]   [ own | call ]     | middle, where their flows begin
        copy              [            ]           its flow begins with it, behind the middle of the call before
    """
    half_us = span_ns[call] // (2 * _NS_PER_US)
    behind = begins.ts - calls.ts[call] - half_us > 1  # all three are rounded down
    is_before_operation = (call >= 0) & (begins.ts < end_ts)
    if is_before_operation.any() and not behind[is_before_operation].any():
        call[behind] = -1


def _copies(calls: TableRows) -> Array:
    return calls.per_text("name", lambda n: _COPIES.search(n) is not None, absent=False)


def _next_calls(flows: EventPositions, late: Array, calls: EventPositions, chosen: Array) -> Array:
    """Return the first of the chosen calls of its lane that starts after each late flow, or -1.

    -1 also where several flows have the same one: each call has one flow to a section.
    """
    _, lane = gather.distinct(
        *(
            np.concatenate([of_calls[chosen], of_flows[late]])
            for of_calls, of_flows in ((calls.pid, flows.pid), (calls.tid, flows.tid))
        )
    )
    call_lane, flow_lane = lane[: len(chosen)], lane[len(chosen) :]
    order = np.lexsort((calls.ts[chosen], call_lane))
    key = call_lane[order] * _MAX_TIME + np.clip(calls.ts[chosen[order]], 0, _MAX_TIME - 1)
    at = np.searchsorted(key, flow_lane * _MAX_TIME + np.clip(flows.ts[late], 0, _MAX_TIME - 1))
    row = np.append(order, -1)[at]
    row[(row >= 0) & (np.append(call_lane, -1)[row] != flow_lane)] = -1
    distinct, uses = np.unique(row, return_counts=True)
    row[np.isin(row, distinct[uses > 1])] = -1
    return np.append(chosen, -1)[row]


def _keys(positions: EventPositions) -> list[Array]:
    return [positions.pid, positions.tid, positions.ts]


def _spanning(flows: EventPositions, calls: EventPositions, span_ns: Array) -> Array:
    """Return the call of its lane that spans each flow's begin; -1 for none or several.

    Calls are sorted by lane and start in one number, in which the begin of a flow is looked up. The
    last call that starts before it and the call before that are tried. Of two that start in the same
    microsecond and span it, the shorter one is within the other; else neither can be preferred.
    """
    lanes = [np.concatenate(pair) for pair in ((calls.pid, flows.pid), (calls.tid, flows.tid))]
    _, lane = gather.distinct(*lanes)
    ends = calls.ts + span_ns // 1000 + 1  # start and duration are rounded down
    call_lane, flow_lane = lane[: len(ends)], lane[len(ends) :]
    order = np.flatnonzero((calls.ts >= 0) & (calls.ts < _MAX_TIME))
    order = order[np.lexsort((-span_ns[order], calls.ts[order], call_lane[order]))]
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
    both = (latest >= 0) & (before >= 0)
    nested = both & (calls.ts[latest] == calls.ts[before]) & (span_ns[latest] < span_ns[before])
    one = np.maximum(latest, before)
    return np.where(both, np.where(nested, latest, -1), one)
