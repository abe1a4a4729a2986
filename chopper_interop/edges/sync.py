"""Edges from GPU work to the host calls that waited for it.

Some profilers record waits: the waiting and the awaited stream, and the record call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any, preceding_rows
from chopper_interop.edges.ordering_calls import NO_HANDLE, OrderingCalls
from chopper_interop.edges.queues import (
    MAX_AHEAD_NS,
    Queues,
    group_pairs,
    in_batches,
    last_work_of_devices,
)
from chopper_interop.graph.chains import next_on_lane
from chopper_interop.io import json_events
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import CALLS, Kind
from chopper_interop.schemas.names import (
    BLOCKING_COPY,
    CALL_DEVICE,
    CALL_STREAM,
    COPY_TO_HOST,
    GRAPH_LAUNCH,
    HOST_COPY,
    RECORD_NUMBER,
    RECORDED_WAITS,
    STAGED_COPY,
    STATED_WAITS,
    WAIT_STREAM,
    WAITED_RECORD,
    WAITED_STREAM,
    Role,
)
from chopper_interop.trace import Trace

BY_TIME = Fault.info(
    "wait-by-time",
    "Host waits for which neither a record nor an argument gives the stream were tied to the work "
    "that ended last during them.",
)
UNRESOLVED = Fault.info(
    "wait-unresolved",
    "Host waits for a stream or an event have no dependency: the stream is not known, and no work "
    "that was queued before them ended during them.",
)
CONTRADICTED = Fault.info(
    "wait-contradicted",
    "Host waits returned before work ended that was queued before them: the clocks of host and GPU "
    "differ, or the work was on another device. They depend on the work that had ended.",
)

BEHIND_WAIT = Fault.info(
    "wait-ends-early",
    "Work that host waits waited for seems to end behind them, as the GPU's clock is ahead of the host's by more than "
    "such waits take to return. They depend on it all the same.",
)

_SURE_RATIO = 8
"""How many times as long must have waited what returned before the work's end. Chosen: 8 µs of 4 ms are known (MI300X); work
on another device than assumed ends at any time."""
MIN_WAIT_NS = 5_000
"""A shorter call is not taken for a wait by its times alone. Chosen: kernels end every few
microseconds, so that the end of one within a short call proves nothing."""

_MAX_INLINE_BYTES = 64 * 1024
"""Copies from pageable memory of at most so many bytes do not wait (64 KB in CUDA's Programming Guide, "Concurrent execution
between host and device"; no recording at hand shows the limit itself)."""
_ALL_ENDED = (Role.FREE,)
"""Calls that waited only if all work queued before them had ended when they returned. It had in all of 572 calls that
found the GPU busy (560 of hipFree in a ResNet's job, 12 of cudaFree in three of torchrec)."""
_NO_NUMBER = 2**32 - 1
"""CUPTI's "invalid" id, as an unsigned number."""


@dataclass(frozen=True)
class _Questions:
    """Questions for the last work on a queue for which a call waited.

    Parameters
    ----------
    call
        Row of `nodes`.
    queue
        The queue.
    submitted
        Work that was submitted after this time was not waited for, ns.
    """

    call: Array
    queue: Array
    submitted: Array


@dataclass(frozen=True)
class _DeviceQuestions:
    """Questions for the last work on all queues of a device.

    Parameters
    ----------
    call
        Row of `nodes`.
    device
        The device; -1 for all of the call's rank.
    """

    call: Array
    device: Array

    def with_more(self, other: _DeviceQuestions) -> _DeviceQuestions:
        """Return both."""
        call, device = np.append(self.call, other.call), np.append(self.device, other.device)
        return _DeviceQuestions(call, device)


def sync_edges(
    trace: Trace, calls: OrderingCalls, queues: Queues, recorded: RecordedWaits, issues: IssueLog
) -> tuple[Array, Array]:
    """Find edges from the last work on each lane that a call waited for to the call.

    Work may seem to end up to `MAX_AHEAD_NS` behind the call (see `_behind_waits`).

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
        Log for the assumptions that were made.
    """
    by_record = _ask_recorded(trace, recorded, calls, queues)
    devices = _ask_recorded_devices(recorded, calls, queues)
    done = np.isin(calls.node, np.append(by_record.call, devices.call))
    questions = [by_record, *_ask_handles(trace, calls, queues, done)]
    devices = devices.with_more(_ask_devices(trace, calls, queues))
    slot, call = _answers(trace, queues, questions, devices, issues)
    ahead_ns = _clocks_ahead(trace, queues, slot, call)
    own = [_copied_within(trace, calls, queues), _launched_just_before(trace, calls, queues, ~done)]
    own_slot, own_call = (np.concatenate(side) for side in zip(*own, strict=True))
    unresolved = ~done & ~np.isin(calls.node, np.concatenate([call, own_call]))
    ended_slot, ended_call = _ended_before(trace, calls, queues, unresolved)
    unresolved &= ~np.isin(calls.node, ended_call)
    timed_slot, timed_call = _resolve_by_time(trace, calls, queues, unresolved, ahead_ns, issues)
    slot = np.concatenate([slot, own_slot, ended_slot, timed_slot])
    call = np.concatenate([call, own_call, ended_call, timed_call])
    early = gather.unique(call[queues.end[slot] > _ends(trace, call)])
    issues.add(BEHIND_WAIT, early.size, _example(trace, early, issues))
    return _last_of_each_lane(queues, slot, call)


def _ask_recorded(
    trace: Trace, recorded: RecordedWaits, calls: OrderingCalls, queues: Queues
) -> _Questions:
    """Questions of the waits for streams and events that a profiler recorded; polls wait for nothing."""
    rows = _recorded_rows(recorded, calls, Role.STREAM_SYNC, Role.EVENT_SYNC)
    of_event = recorded.role[rows] == Role.EVENT_SYNC
    stream = np.where(of_event, recorded.event_stream[rows], recorded.stream[rows])
    known = (stream >= 0) & (~of_event | (recorded.record_call[rows] >= 0))
    rows, of_event, stream = rows[known], of_event[known], stream[known]
    until = np.where(of_event, recorded.record_call[rows], recorded.call[rows])
    number = trace.array("number", "lanes")[queues.lane]
    row, queue = _pairs_of_same(
        (recorded.rank[rows], recorded.device[rows], stream), (queues.rank, queues.device, number)
    )
    return _Questions(recorded.call[rows][row], queue, trace.array("ts")[until[row]])


def _ask_recorded_devices(
    recorded: RecordedWaits, calls: OrderingCalls, queues: Queues
) -> _DeviceQuestions:
    """Questions of the waits for devices with GPU work that a profiler recorded."""
    rows = _recorded_rows(recorded, calls, Role.DEVICE_SYNC)
    rank, device = recorded.rank[rows], recorded.device[rows]
    _, group = gather.distinct(np.append(rank, queues.rank), np.append(device, queues.device))
    worked = np.isin(group[: len(rows)], group[len(rows) :])
    return _DeviceQuestions(recorded.call[rows[worked]], device[worked])


def _recorded_rows(recorded: RecordedWaits, calls: OrderingCalls, *roles: Role) -> Array:
    rows = recorded.rows(*roles)
    return rows[gather.among(recorded.call[rows], calls.node[~calls.has_role(Role.POLL)])]


def _pairs_of_same(rows: tuple[Array, ...], of_queues: tuple[Array, ...]) -> tuple[Array, Array]:
    """All pairs of a row and a queue with the same values: positions of rows, and queues."""
    columns = [np.append(*sides) for sides in zip(rows, of_queues, strict=True)]
    _, group = gather.distinct(*columns)
    return group_pairs(group[: len(rows[0])], group[len(rows[0]) :])


def _ask_devices(trace: Trace, calls: OrderingCalls, queues: Queues) -> _DeviceQuestions:
    """Questions of calls that wait for their whole device.

    If work on the thread's device ended later than the call, the thread must have changed devices:
    then it is the device whose last work ended during the call, if there is one.
    """
    node = calls.node[calls.has_role(Role.DEVICE_SYNC)]
    device = current_device(trace, node, queues)
    first, _ = gather.distinct(queues.rank, queues.device)
    ranks, count = np.unique(queues.rank[first], return_counts=True)
    several = np.flatnonzero(np.isin(trace.array("rank")[node], ranks[count > 1]) & (device >= 0))
    *_, contradicted = _last_work(trace, queues, _DeviceQuestions(node[several], device[several]))
    for rows in in_batches(several[contradicted], queues):
        device[rows] = _device_by_time(trace, node[rows], device[rows], queues)
    return _DeviceQuestions(node, device)


def _device_by_time(trace: Trace, node: Array, device: Array, queues: Queues) -> Array:
    """Device whose last work ended during each call; the given one if there is none."""
    row, queue = group_pairs(trace.array("rank")[node].astype(np.int64), queues.rank)
    ts = trace.array("ts")[node]
    end = ts + trace.array("dur")[node]
    last, later = queues.last_before(queue, ts[row], end[row])
    first, pair = gather.distinct(row, queues.device[queue])
    busy = np.zeros(len(first), bool)
    busy[pair[later]] = True
    fits = np.flatnonzero(~busy[pair] & (last >= 0))
    fits = fits[queues.end[last[fits]] >= ts[row[fits]]]
    chosen = fits[_max_of_groups(row[fits], queues.end[last[fits]])]
    result = device.copy()
    result[row[chosen]] = queues.device[queue[chosen]]
    return result


def _last_work(
    trace: Trace, queues: Queues, questions: _DeviceQuestions
) -> tuple[Array, Array, Array]:
    """Slots of the last work on each stream that calls waited for, and these calls; which calls returned before work ended."""
    node = questions.call
    ts, thread, rank = (trace.array(c)[node].astype(np.int64) for c in ("ts", "lane", "rank"))
    end = ts + trace.array("dur")[node]
    slot, row, later = last_work_of_devices(queues, thread, rank, questions.device, ts, end)
    return slot, node[row], later


def current_device(trace: Trace, node: Array, queues: Queues) -> Array:
    """Device of each host node: that of the last launch of its thread; -1 if there is none."""
    return np.append(queues.device[queues.queue], -1)[last_launched(trace, node, queues)]


def last_launched(trace: Trace, node: Array, queues: Queues) -> Array:
    """Slot of the work that the thread of each host node launched last before it; else -1."""
    launched = np.flatnonzero(queues.call >= 0)
    lane, ts = trace.array("lane"), trace.array("ts")
    call = queues.call[launched]
    return np.append(launched, -1)[preceding_rows(lane[call], ts[call], lane[node], ts[node])]


def _ask_handles(
    trace: Trace, calls: OrderingCalls, queues: Queues, done: Array
) -> list[_Questions]:
    """Questions of calls that name a stream or an event, except those marked as `done`."""
    ts, rank = trace.array("ts"), trace.array("rank")[calls.node].astype(np.int64)
    streams = np.flatnonzero(calls.has_role(Role.STREAM_SYNC) & (calls.stream != NO_HANDLE) & ~done)
    events = np.flatnonzero(calls.has_role(Role.EVENT_SYNC) & (calls.event != NO_HANDLE) & ~done)
    record = last_records(trace, calls, events)
    events, record = events[record >= 0], record[record >= 0]
    result = []
    for rows, handle, until in (
        (streams, calls.stream[streams], calls.node[streams]),
        (events, calls.stream[record], calls.node[record]),
    ):
        row, queue = pairs_by_handle(rank[rows], handle, queues)
        result.append(_Questions(calls.node[rows][row], queue, ts[until[row]]))
    return result


def pairs_by_handle(rank: Array, handle: Array, queues: Queues) -> tuple[Array, Array]:
    """All pairs of a row and a queue of the stream that it names: positions of rows, and queues."""
    known = np.flatnonzero(handle != NO_HANDLE)
    row, queue = _pairs_of_same((rank[known], handle[known]), (queues.rank, queues.handle))
    return known[row], queue


def last_records(trace: Trace, calls: OrderingCalls, rows: Array) -> Array:
    """Row of `calls` that recorded the event of each row last before it; -1 if there is none.

    Event handles are used again, so that the order on the host decides which record is meant.
    """
    records = np.flatnonzero(calls.has_role(Role.RECORD) & (calls.event != NO_HANDLE))
    rank = trace.array("rank")[calls.node].astype(np.int64)
    combined = np.concatenate([records, rows])
    _, event = gather.distinct(rank[combined], calls.event[combined])
    ts = trace.array("ts")[calls.node]
    n = len(records)
    return np.append(records, -1)[preceding_rows(event[:n], ts[records], event[n:], ts[rows])]


def _answers(
    trace: Trace,
    queues: Queues,
    questions: list[_Questions],
    devices: _DeviceQuestions,
    issues: IssueLog,
) -> tuple[Array, Array]:
    """Slots of the last work that each call waited for, and the calls."""
    call, queue, submitted = (
        np.concatenate([getattr(q, f) for q in questions]) for f in ("call", "queue", "submitted")
    )
    slot, later = queues.last_before(queue, submitted, _ends(trace, call))
    of_device, waited, too_soon = _last_work(trace, queues, devices)
    parts = [(call[later], queue[later], submitted[later])]
    for rows in in_batches(np.flatnonzero(too_soon), queues):
        asked, device = devices.call[rows], devices.device[rows]
        row, of_rank = _pairs_of_same((trace.array("rank")[asked],), (queues.rank,))
        fits = (device[row] < 0) | (device[row] == queues.device[of_rank])
        asked, of_rank = asked[row[fits]], of_rank[fits]
        parts.append((asked, of_rank, trace.array("ts")[asked]))
    early_slot, early = _behind_waits(trace, queues, *map(np.concatenate, zip(*parts, strict=True)))
    contradicted = gather.unique(np.append(call[later], devices.call[too_soon]))
    contradicted = contradicted[~gather.among(contradicted, early)]
    issues.add(CONTRADICTED, contradicted.size, _example(trace, contradicted, issues))
    known = slot >= 0
    slot = np.concatenate([slot[known], of_device, early_slot])
    return slot, np.concatenate([call[known], waited, early])


def _behind_waits(
    trace: Trace, queues: Queues, call: Array, queue: Array, submitted: Array
) -> tuple[Array, Array]:
    """Slots of the last work that calls waited for, if it seems to end some microseconds behind them, and the calls.

    With a GPU's clock that is ahead, by more than a wait takes to return::

        thread   [ wait           ] [ next operation ]
        stream     [ kernel         ]
    """
    slot = queues.last_submitted(queue, submitted)
    call, slot = call[slot >= 0], slot[slot >= 0]
    is_late, fits = queues.end[slot] > _ends(trace, call), _ends_about(trace, queues, slot, call)
    other = gather.unique(call[is_late & ~fits])  # of other work, perhaps of another device
    is_early = is_late & fits & ~gather.among(call, other)
    return slot[is_early], call[is_early]


def _clocks_ahead(trace: Trace, queues: Queues, slot: Array, call: Array) -> Array:
    """Least time by which the clock of each rank's GPU is ahead of its host's: work that was waited for had ended."""
    late_ns = queues.end[slot] - _ends(trace, call)
    rank = trace.array("rank")
    ahead_ns = np.zeros(int(rank.max(initial=-1)) + 1, np.int64)
    np.maximum.at(ahead_ns, rank[call], late_ns)
    return ahead_ns


def _ends_about(trace: Trace, queues: Queues, slot: Array, call: Array) -> Array:
    """Mask of work that ended before calls returned, or so little later that clocks which differ explain it."""
    late_ns = queues.end[slot] - _ends(trace, call)
    waited_ns = queues.end[slot] - trace.array("ts")[call]
    return (late_ns <= 0) | ((late_ns <= MAX_AHEAD_NS) & (waited_ns >= _SURE_RATIO * late_ns))


def _copied_within(trace: Trace, calls: OrderingCalls, queues: Queues) -> tuple[Array, Array]:
    """Copies and fills that ended within the blocking call that launched them, and the calls.

    Copies to the host had ended, though by a clock that is ahead they may seem to begin behind the call.
    """
    slot = np.flatnonzero(_is_waited_for_by_its_call(trace, calls, queues))
    call = queues.call[slot]
    within = queues.end[slot] <= _ends(trace, call)
    behind = queues.start[slot] >= _ends(trace, call)
    behind &= _are_named(trace, COPY_TO_HOST.match, queues.node[slot])
    within |= behind & _ends_about(trace, queues, slot, call)
    return slot[within], call[within]


def outlasting_copies(trace: Trace, calls: OrderingCalls, queues: Queues) -> tuple[Array, Array]:
    """Find edges from copies that end behind the blocking call that launched them to what its thread does next.

    They are rows of `nodes`. Such a call waits for what is queued before the copy, and copies while that runs: it
    returns when the last part of pageable memory has been copied to memory that is pinned, which the GPU then still
    has to read. Also where the clocks of host and GPU differ::

        thread   [ call waits                 ]  [ next operation ]
        stream     [ kernel ] [ copy             ]
    """
    slot = np.flatnonzero(_is_waited_for_by_its_call(trace, calls, queues))
    call = queues.call[slot]
    crosses = _are_named(trace, HOST_COPY.search, queues.node[slot])
    returned = _ends(trace, call)
    row = np.flatnonzero(crosses & (queues.start[slot] < returned) & (returned < queues.end[slot]))
    if not row.size:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    ts, dur, lane = (trace.array(c) for c in ("ts", "dur", "lane"))
    following = next_on_lane(ts, dur, lane, trace.lanes.num_rows, call[row])
    row, following = row[following >= 0], following[following >= 0]
    return queues.node[slot[row]].astype(np.int32), following


def _is_waited_for_by_its_call(trace: Trace, calls: OrderingCalls, queues: Queues) -> Array:
    """Mask of the slots of copies and fills behind which, or in the course of which, their call returns."""
    staged = _are_named(trace, STAGED_COPY.match, queues.node)
    staged &= trace.integers("bytes", queues.node) > _MAX_INLINE_BYTES
    blocks = staged | _are_named(trace, BLOCKING_COPY.match, queues.node)
    blocks &= ~_are_named(trace, GRAPH_LAUNCH.match, queues.call)
    copies = np.isin(queues.call, calls.node[calls.has_role(Role.COPY)])
    return (queues.call >= 0) & (copies | blocks)


def _are_named(trace: Trace, fits_name: Callable[[str], object], node: Array) -> Array:
    """Mask of the nodes with such names."""
    fits = np.array([bool(fits_name(name)) for name in trace.names()] or [False])
    return fits[trace.array("name")[node]]


def _ends(trace: Trace, node: Array) -> Array:
    return trace.array("ts")[node] + trace.array("dur")[node]


def _launched_just_before(
    trace: Trace, calls: OrderingCalls, queues: Queues, open_: Array
) -> tuple[Array, Array]:
    """Work that an operator launched right before it waited for a stream that it does not name.

    Values are fetched from the GPU in this way: a copy, then a wait for the stream of the copy.
    """
    rows = np.flatnonzero(open_ & calls.has_role(Role.STREAM_SYNC) & (calls.stream == NO_HANDLE))
    node, parent = calls.node[rows], trace.array("parent")
    slot = last_launched(trace, node, queues)
    fits = (slot >= 0) & (parent[node] >= 0)
    fits &= parent[queues.call[slot]] == parent[node]
    fits &= _ends_about(trace, queues, slot, node)
    return slot[fits], node[fits]


def _ended_before(
    trace: Trace, calls: OrderingCalls, queues: Queues, unresolved: Array
) -> tuple[Array, Array]:
    """Last work of the stream that was used last before an event's record, and short calls that wait for the event.

    They did not wait, as the work had ended, and would have waited for longer work. Records of waits of streams,
    which follow them at once, are not meant. If the work had not ended, the event was of another stream.
    """
    ts = trace.array("ts")
    rows = np.flatnonzero(unresolved & calls.has_role(Role.EVENT_SYNC))
    rows = rows[trace.array("dur")[calls.node[rows]] < MIN_WAIT_NS]
    records = np.flatnonzero(calls.has_role(Role.RECORD))
    if not rows.size or not records.size:
        return rows[:0], rows[:0]
    lane = trace.array("lane")
    node, record = calls.node[rows], calls.node[records]
    waits = calls.node[calls.has_role(Role.STREAM_WAIT)]
    follows = np.append(record, waits)  # what a thread does next, of records and waits
    order = np.lexsort((ts[follows], lane[follows]))
    at_once = np.zeros(len(follows), bool)
    same = lane[follows[order[1:]]] == lane[follows[order[:-1]]]
    at_once[order[:-1]] = same & (order[1:] >= len(record))
    record = record[~at_once[: len(record)]]
    at = preceding_rows(lane[record], ts[record], lane[node], ts[node])
    node, record = node[at >= 0], record[at[at >= 0]]
    slot = last_launched(trace, record, queues)
    ended = (slot >= 0) & (queues.end[slot] <= ts[node])
    return slot[ended], node[ended]


def _resolve_by_time(
    trace: Trace,
    calls: OrderingCalls,
    queues: Queues,
    unresolved: Array,
    ahead_ns: Array,
    issues: IssueLog,
) -> tuple[Array, Array]:
    """Work that ended last during calls whose streams are not known, and the calls, by clocks of ranks' GPUs so far ahead."""
    roles = (Role.STREAM_SYNC, Role.EVENT_SYNC, Role.SIGNAL_WAIT, *_ALL_ENDED)
    rows = np.flatnonzero(unresolved & calls.has_role(*roles))
    long_enough = trace.array("dur")[calls.node[rows]] >= MIN_WAIT_NS
    parts = [
        _last_ended_within(trace, calls, queues, batch, ahead_ns)
        for batch in in_batches(rows[long_enough], queues)
    ]
    empty = np.empty(0, np.int64)
    slot, row = (
        np.concatenate([empty, *side]) for side in zip((empty, empty), *parts, strict=True)
    )
    issues.add(BY_TIME, row.size, _example(trace, calls.node[row], issues))
    must_wait = is_any(calls.role[rows], (Role.STREAM_SYNC, Role.EVENT_SYNC))
    remaining = rows[must_wait & ~np.isin(rows, row)]
    issues.add(UNRESOLVED, remaining.size, _example(trace, calls.node[remaining], issues))
    return slot, calls.node[row]


def _last_ended_within(
    trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array, ahead_ns: Array
) -> tuple[Array, Array]:
    """Slot of the work that ended last within each call, if it can have waited for it; the row."""
    node, role = calls.node[rows], calls.role[rows]
    row, queue = group_pairs(trace.array("rank")[node].astype(np.int64), queues.rank)
    device = current_device(trace, node, queues)[row]
    same = (device < 0) | (queues.device[queue] == device)
    row, queue = row[same], queue[same]
    ts, returned = trace.array("ts")[node[row]], _ends(trace, node[row])
    returned += ahead_ns[trace.array("rank")[node[row]]]
    slot, later = queues.last_before(queue, ts, returned)
    fits = (slot >= 0) & (queues.end[slot] >= ts)
    fits &= (role[row] != Role.STREAM_SYNC) | ~later
    still_running = np.zeros(len(rows), bool)
    still_running[row[later]] = True
    fits &= ~is_any(role[row], _ALL_ENDED) | ~still_running[row]
    latest = _max_of_groups(row[fits], queues.end[slot[fits]])
    return slot[fits][latest], rows[row[fits][latest]]


def _max_of_groups(group: Array, value: Array) -> Array:
    """Position of the largest value of each group; of equal ones the last."""
    order = np.lexsort((value, group))
    last = np.append(np.diff(group[order]) != 0, True) if len(order) else np.zeros(0, bool)
    return order[last]


def _last_of_each_lane(queues: Queues, slot: Array, call: Array) -> tuple[Array, Array]:
    """Rows of nodes: for each call and lane the work that ended last, and the call."""
    lane = queues.lane[queues.queue[slot]]
    _, pair = gather.distinct(call, lane)
    latest = np.sort(_max_of_groups(pair, queues.end[slot]))
    return queues.node[slot[latest]].astype(np.int32), call[latest].astype(np.int32)


def _example(trace: Trace, node: Array, issues: IssueLog) -> str:
    if not node.size:
        return ""
    first = int(node[0])
    return f"{trace.names()[trace.array('name')[first]]} ({issues.node(first)})"


@dataclass(frozen=True)
class RecordedWaits:
    """Recorded waits, one per row.

    Parameters
    ----------
    role
        Kind of wait, a number of `Role`.
    call
        The call that waited or made a stream wait; -1 if it is not in the trace.
    rank, device
        Rank and device of the wait.
    since
        Start of the call, or of the wait itself if there is no call, ns.
    stream
        Stream that waits, or for which the host waited; -1 if unknown.
    event_stream
        Stream on which the awaited event was recorded; -1 if unknown.
    record_call
        The call that recorded the awaited event; -1 if unknown.
    begun, end
        Times of the wait itself, ns.
    recorded
        When the awaited event was recorded on its stream, ns; -1 if only the call is known.
    """

    role: Array
    call: Array
    rank: Array
    device: Array
    since: Array
    stream: Array
    event_stream: Array
    record_call: Array
    begun: Array
    end: Array
    recorded: Array

    def rows(self, *roles: Role) -> Array:
        """Rows with one of these roles."""
        return np.flatnonzero(is_any(self.role, roles))


def read_recorded_waits(trace: Trace, chosen: Array) -> RecordedWaits:
    """Read the waits that were recorded, among the nodes marked in `chosen`."""
    kind, name = trace.array("kind"), trace.array("name")
    role = np.zeros(len(kind), np.int8)
    for kinds, names in (((Kind.GPU_SYNC,), RECORDED_WAITS), (CALLS, STATED_WAITS)):
        of_name = np.array([int(names.get(n, Role.NONE)) for n in trace.names()] or [0], np.int8)
        of_kind = np.flatnonzero(is_any(kind, kinds) & chosen)
        role[of_kind] = of_name[name[of_kind]]
    node = np.flatnonzero(role)
    role, is_call = role[node], kind[node] != Kind.GPU_SYNC
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    keys = (WAIT_STREAM, WAITED_STREAM, WAITED_RECORD, RECORD_NUMBER, CALL_STREAM, CALL_DEVICE)
    values, present = json_events.extract_integers(buffer, at, length, keys)
    values = np.where(present & (values >= 0) & (values != _NO_NUMBER), values, -1)
    stream, event_stream, record_id, number, call_stream, call_device = values
    rank = trace.array("rank")[node].astype(np.int64)
    device = trace.array("device", "lanes")[trace.array("lane")[node]].astype(np.int64)
    call = _calls_by_correlation(trace, rank, trace.array("correlation")[node])
    call = np.where(is_call, node, call)
    ts = trace.array("ts")
    record = _records_on_streams(role, rank, device, stream, event_stream, number)
    record_call = _calls_by_correlation(trace, rank, record_id)
    return RecordedWaits(
        role=role,
        call=call,
        rank=rank,
        device=np.where(is_call, call_device, device),
        since=np.where(call >= 0, ts[call], ts[node]),
        stream=np.where(is_call, call_stream, stream),
        event_stream=event_stream,
        record_call=np.where(record >= 0, call[record], record_call),
        begun=ts[node],
        end=ts[node] + trace.array("dur")[node],
        recorded=np.where(record >= 0, ts[node[record]], -1),
    )


def _records_on_streams(  # columns
    role: Array, rank: Array, device: Array, stream: Array, event_stream: Array, number: Array
) -> Array:  # fmt: skip
    """For each wait of a stream, the row at which the stream that it names recorded the event of its number; else -1."""
    is_record = role == Role.RECORD
    _, event = gather.distinct(rank, device, np.where(is_record, stream, event_stream), number)
    row = np.full(len(role) + 1, -1, np.int64)
    row[event[is_record]] = np.flatnonzero(is_record)
    return np.where((role == Role.STREAM_WAIT) & (number >= 0), row[event], -1)


def _calls_by_correlation(trace: Trace, rank: Array, correlation: Array) -> Array:
    """The call with each correlation id, searched within its rank; -1 if there is none."""
    result = np.full(len(rank), -1, np.int64)
    kind, ids = trace.array("kind"), trace.array("correlation")
    for r, rank_rows in trace.rank_rows.items():
        requested = np.flatnonzero((rank == r) & (correlation > 0))
        if not requested.size:
            continue
        is_call = is_any(kind[rank_rows], CALLS) & (ids[rank_rows] > 0)
        call = np.flatnonzero(is_call) + rank_rows.start
        call = call[np.argsort(ids[call], kind="stable")]
        result[requested] = np.append(call, -1)[gather.find(ids[call], correlation[requested])]
    return result
