"""GPU work → the host call that waited for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.edges.calls import NONE
from chopper_interop.edges.queues import pairs, portions, preceding
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.edges.calls import Calls
    from chopper_interop.edges.queues import Queues
    from chopper_interop.edges.recorded import Recorded
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

BY_TIME = Fault(
    "wait-by-time",
    Severity.INFO,
    "Waits of the host of which neither a record nor an argument tells the stream were tied to the "
    "work that ended last while they lasted.",
)
UNTOLD = Fault(
    "wait-untold",
    Severity.INFO,
    "Waits of the host for a stream or an event have no dependency: nothing tells which stream, "
    "and no work that was queued before ended while they lasted.",
)
LATE = Fault(
    "wait-contradicted",
    Severity.INFO,
    "Waits of the host returned before work ended that was queued before them: clocks of host and "
    "GPU differ, or it was on another device. They depend on what had ended.",
)

SHORTEST_NS = 5_000
"""A call that is over sooner waited for nothing: kernels end so often that one within proves
nothing."""


@dataclass(frozen=True)
class _Asked:
    """Questions: what a call waited for on a queue.

    Parameters
    ----------
    call
        Row of `nodes`.
    queue
        The queue.
    submitted
        What was queued later it did not wait for.
    """

    call: Array
    queue: Array
    submitted: Array


def edges(
    trace: Trace, calls: Calls, queues: Queues, recorded: Recorded, issues: IssueLog
) -> tuple[Array, Array]:
    """Work → call: of each call one edge a lane, from the last work on it that it waited for.

    Parameters
    ----------
    trace
        The trace.
    calls
        Calls that order GPU work.
    queues
        GPU work in its queues.
    recorded
        Waits that the profiler recorded.
    issues
        Where assumptions are counted.
    """
    told = _recorded_waits(trace, recorded, calls, queues)
    done = np.isin(calls.node, told.call)
    asked = [told, _devices(trace, calls, queues), *_by_handle(trace, calls, queues, done)]
    place, call = _answers(trace, queues, asked, issues)
    own = [_own_work(trace, calls, queues), _just_asked(trace, calls, queues, ~done)]
    own_place, own_call = (np.concatenate(side) for side in zip(*own, strict=True))
    untold = ~done & ~np.isin(calls.node, np.concatenate([call, own_call]))
    shown_place, shown_call = _shown(trace, calls, queues, untold, issues)
    place = np.concatenate([place, own_place, shown_place])
    call = np.concatenate([call, own_call, shown_call])
    return _one_a_lane(queues, place, call)


def _recorded_waits(trace: Trace, recorded: Recorded, calls: Calls, queues: Queues) -> _Asked:
    """Questions of the waits that a profiler recorded; polls wait for nothing."""
    rows = recorded.rows(Role.DEVICE_SYNC, Role.STREAM_SYNC, Role.EVENT_SYNC)
    rows = rows[np.isin(recorded.call[rows], calls.node[~calls.of(Role.POLL)])]
    role = recorded.role[rows]
    stream = np.where(role == Role.EVENT_SYNC, recorded.waited[rows], recorded.stream[rows])
    known = (role == Role.DEVICE_SYNC) | (stream >= 0)
    known &= (role != Role.EVENT_SYNC) | (recorded.record[rows] >= 0)
    rows, role, stream = rows[known], role[known], stream[known]
    until = np.where(role == Role.EVENT_SYNC, recorded.record[rows], recorded.call[rows])
    which, queue = pairs(recorded.rank[rows], queues.rank)
    same = queues.device[queue] == recorded.device[rows][which]
    number = trace.array("number", "lanes")[queues.lane[queue]]
    same &= (role[which] == Role.DEVICE_SYNC) | (number == stream[which])
    which, queue = which[same], queue[same]
    return _Asked(recorded.call[rows][which], queue, trace.array("ts")[until[which]])


def _devices(trace: Trace, calls: Calls, queues: Queues) -> _Asked:
    """Questions of calls that wait for all of their device."""
    node = calls.node[calls.of(Role.DEVICE_SYNC)]
    which, queue = pairs(trace.array("rank")[node].astype(np.int64), queues.rank)
    device = _that_returned(trace, node, queues, which, queue)[which]
    same = (device < 0) | (queues.device[queue] == device)
    which, queue = which[same], queue[same]
    return _Asked(node[which], queue, trace.array("ts")[node[which]])


def _that_returned(trace: Trace, node: Array, queues: Queues, which: Array, queue: Array) -> Array:
    """Device that each call waits for, of those in its pairs with queues.

    Where work of the thread's device ended later than the call, the thread has changed devices:
    then it is the one whose last work ended while the call lasted, if there is any.
    """
    device, ts = device_of(trace, node, queues), trace.array("ts")[node]
    end = ts + trace.array("dur")[node]
    last, later = queues.last_before(queue, ts[which], end[which])
    on = queues.device[queue]
    wrong = np.zeros(len(node), bool)
    wrong[which[later & (on == device[which])]] = True
    first, pair = gather.distinct(which, on)
    busy = np.zeros(len(first), bool)
    busy[pair[later]] = True
    fits = np.flatnonzero(wrong[which] & ~busy[pair] & (last >= 0))
    fits = fits[queues.end[last[fits]] >= ts[which[fits]]]
    best = fits[_latest(which[fits], queues.end[last[fits]])]
    device[which[best]] = on[best]
    return device


def device_of(trace: Trace, node: Array, queues: Queues) -> Array:
    """Device that each host node works on: where its thread launched something last before.

    -1 if it launched nothing.
    """
    place = last_launched(trace, node, queues)
    if not len(queues.node):
        return place
    return np.where(place >= 0, queues.device[queues.queue[place]], -1)


def last_launched(trace: Trace, node: Array, queues: Queues) -> Array:
    """Work that the thread of each host node launched last before it; -1 if it launched none."""
    known = np.flatnonzero(queues.call >= 0)
    if not known.size:
        return np.full(len(node), -1, np.int64)
    lane, ts = trace.array("lane"), trace.array("ts")
    call = queues.call[known]
    at = preceding(lane[call], ts[call], lane[node], ts[node])
    return np.where(at >= 0, known[np.maximum(at, 0)], -1)


def _by_handle(trace: Trace, calls: Calls, queues: Queues, done: Array) -> list[_Asked]:
    """Questions of calls that name a stream or an event."""
    ts, rank = trace.array("ts"), trace.array("rank").astype(np.int64)
    streams = np.flatnonzero(calls.of(Role.STREAM_SYNC) & (calls.stream != NONE) & ~done)
    events = np.flatnonzero(calls.of(Role.EVENT_SYNC) & (calls.event != NONE) & ~done)
    record = last_record(trace, calls, events)
    events, record = events[record >= 0], record[record >= 0]
    result = []
    for rows, handle, until in (
        (streams, calls.stream[streams], calls.node[streams]),
        (events, calls.stream[record], calls.node[record]),
    ):
        which, queue = of_handle(rank[calls.node[rows]], handle, queues)
        result.append(_Asked(calls.node[rows][which], queue, ts[until[which]]))
    return result


def of_handle(rank: Array, handle: Array, queues: Queues) -> tuple[Array, Array]:
    """Every row with every queue of the stream that it names: positions of rows, and queues."""
    _, group = gather.distinct(np.append(rank, queues.rank), np.append(handle, queues.handle))
    named = np.where(handle != NONE, group[: len(rank)], -1)
    return pairs(named, group[len(rank) :])


def last_record(trace: Trace, calls: Calls, rows: Array) -> Array:
    """Row of `calls` that recorded the event of each row last before it; -1 if none did.

    Handles are used again, so the order on the host tells which record is meant.
    """
    records = np.flatnonzero(calls.of(Role.RECORD) & (calls.event != NONE))
    rank = trace.array("rank")[calls.node].astype(np.int64)
    both = np.concatenate([records, rows])
    _, code = gather.distinct(rank[both], calls.event[both])
    ts = trace.array("ts")[calls.node]
    if not records.size:
        return np.full(len(rows), -1, np.int64)
    n = len(records)
    at = preceding(code[:n], ts[records], code[n:], ts[rows])
    return np.where(at >= 0, records[np.maximum(at, 0)], -1)


def _answers(
    trace: Trace, queues: Queues, asked: list[_Asked], issues: IssueLog
) -> tuple[Array, Array]:
    call, queue, submitted = (
        np.concatenate([getattr(a, f) for a in asked]) for f in ("call", "queue", "submitted")
    )
    end = trace.array("ts")[call] + trace.array("dur")[call]
    place, later = queues.last_before(queue, submitted, end)
    late = np.unique(call[later])
    issues.add(LATE, late.size, _example(trace, late))
    return place[place >= 0], call[place >= 0]


def _own_work(trace: Trace, calls: Calls, queues: Queues) -> tuple[Array, Array]:
    """Copies and fills that ended within the call that asked for them."""
    node = calls.node[calls.of(Role.COPY)]
    place = np.flatnonzero(np.isin(queues.call, node))
    call = queues.call[place]
    end = trace.array("ts")[call] + trace.array("dur")[call]
    within = queues.end[place] <= end
    return place[within], call[within]


def _just_asked(trace: Trace, calls: Calls, queues: Queues, asked: Array) -> tuple[Array, Array]:
    """Work that an operator asked for right before it waited for a stream it does not name.

    So are values fetched from the GPU: a copy, then the wait for the stream of the copy.
    """
    rows = np.flatnonzero(asked & calls.of(Role.STREAM_SYNC) & (calls.stream == NONE))
    node, parent = calls.node[rows], trace.array("parent")
    place = last_launched(trace, node, queues)
    same = (place >= 0) & (parent[node] >= 0)
    same &= parent[queues.call[place]] == parent[node]
    end = trace.array("ts")[node] + trace.array("dur")[node]
    same &= queues.end[place] <= end
    return place[same], node[same]


_ALL_SHOW = (Role.FREE,)
"""Calls that waited only if all that was queued before had ended when they returned."""


def _shown(
    trace: Trace, calls: Calls, queues: Queues, untold: Array, issues: IssueLog
) -> tuple[Array, Array]:
    """What ended last within calls that do not tell what they wait for."""
    roles = (Role.STREAM_SYNC, Role.EVENT_SYNC, Role.SIGNAL_WAIT, *_ALL_SHOW)
    rows = np.flatnonzero(untold & calls.of(*roles))
    lasts = trace.array("dur")[calls.node[rows]] >= SHORTEST_NS
    found = [_ended_within(trace, calls, queues, part) for part in portions(rows[lasts], queues)]
    none = np.empty(0, np.int64)
    place, which = (
        np.concatenate([none, *side]) for side in zip((none, none), *found, strict=True)
    )
    issues.add(BY_TIME, which.size, _example(trace, calls.node[which]))
    tells = np.isin(calls.role[rows], [int(Role.STREAM_SYNC), int(Role.EVENT_SYNC)])
    left = rows[tells & ~np.isin(rows, which)]
    issues.add(UNTOLD, left.size, _example(trace, calls.node[left]))
    return place, calls.node[which]


def _ended_within(trace: Trace, calls: Calls, queues: Queues, rows: Array) -> tuple[Array, Array]:
    """The work that ended last within each call, if that can be what it waited for; the call."""
    node, role = calls.node[rows], calls.role[rows]
    which, queue = pairs(trace.array("rank")[node].astype(np.int64), queues.rank)
    device = device_of(trace, node, queues)[which]
    same = (device < 0) | (queues.device[queue] == device)
    which, queue = which[same], queue[same]
    ts = trace.array("ts")[node[which]]
    place, later = queues.last_before(queue, ts, ts + trace.array("dur")[node[which]])
    fits = (place >= 0) & (queues.end[place] >= ts)
    fits &= (role[which] != Role.STREAM_SYNC) | ~later
    works = np.zeros(len(rows), bool)
    works[which[later]] = True
    fits &= ~is_any(role[which], _ALL_SHOW) | ~works[which]
    best = _latest(which[fits], queues.end[place[fits]])
    return place[fits][best], rows[which[fits][best]]


def _latest(group: Array, value: Array) -> Array:
    """Position of the greatest value of each group."""
    order = np.lexsort((value, group))
    last = np.append(np.diff(group[order]) != 0, True) if len(order) else np.zeros(0, bool)
    return order[last]


def _one_a_lane(queues: Queues, place: Array, call: Array) -> tuple[Array, Array]:
    """Of each call and lane the work that ended last."""
    if not place.size:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    lane = queues.lane[queues.queue[place]]
    _, pair = gather.distinct(call, lane)
    kept = np.sort(_latest(pair, queues.end[place]))
    return queues.node[place[kept]].astype(np.int32), call[kept].astype(np.int32)


def _example(trace: Trace, node: Array) -> str:
    if not node.size:
        return ""
    first = int(node[0])
    return f"{trace.names()[trace.array('name')[first]]} (node {first})"
