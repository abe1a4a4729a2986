"""Edges from work before an event record to the first work after the wait for it on another stream.

There are four sources, the best first. Some profilers record which event a stream waited for. Some
write the stream and event handles that calls name. Otherwise only the order of the calls is known:
the waiting stream is taken to be the one on which the thread submits work next, and the awaited
work is searched among what had been submitted by then. Of work that was queued before the recording
began, no calls are known: it waited for the work of another stream right after which it started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.edges.ordering_calls import NO_HANDLE
from chopper_interop.edges.queues import group_pairs, in_batches, preceding_rows
from chopper_interop.edges.sync import last_records, pairs_by_handle
from chopper_interop.issues import Fault
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.edges.ordering_calls import OrderingCalls
    from chopper_interop.edges.queues import Queues
    from chopper_interop.edges.sync import RecordedWaits
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

BY_ORDER = Fault.info(
    "event-by-order",
    "Stream waits whose streams are not recorded were resolved by the order of calls: the waiting "
    "stream is the one that their thread used next. It waits for the stream that the thread had used "
    "last if the next work is communication, else for the last work of another stream that had ended "
    "by then, of several streams the one right after which it started, else the one used last; "
    "collectives are waited for in the order of their launches.",
)
UNRESOLVED = Fault.info(
    "event-unresolved",
    "Stream waits have no dependency: the trace has no work that was queued before or after them.",
)
QUEUED_BEFORE = Fault.info(
    "event-by-time",
    "Work that was queued before the recording began depends on the work of another stream right "
    "after which it started: its waits were not recorded, and nothing on its own stream held it up.",
)
IMMEDIATE_START_NS = 20_000
"""Work that could have started earlier, and started so soon after the end of work elsewhere, waited
for that work. Chosen: an event reaches a waiting queue within some microseconds; a larger bound would
take chance neighbours for dependencies."""

_NEVER_TOO_LATE = np.iinfo(np.int64).max


def event_edges(
    trace: Trace, calls: OrderingCalls, queues: Queues, recorded: RecordedWaits, issues: IssueLog
) -> tuple[Array, Array]:
    """Find edges from work to work of another stream that waits for it, as rows of `nodes`.

    Parameters
    ----------
    trace
        The trace.
    calls
        Calls that order GPU work.
    queues
        GPU work in its queues.
    recorded
        Waits that the profiler recorded. If a rank has any, its calls are not searched.
    issues
        Log for the assumptions that were made.
    """
    rank = trace.array("rank")[calls.node]
    recorded_rows = recorded.rows(Role.STREAM_WAIT)
    waits = calls.has_role(Role.STREAM_WAIT) & ~np.isin(rank, recorded.rank[recorded_rows])
    named = waits & (calls.stream != NO_HANDLE) & (calls.event != NO_HANDLE)
    has_queue, _ = pairs_by_handle(rank.astype(np.int64), calls.stream, queues)
    named &= np.isin(np.arange(len(named)), has_queue)  # else launches do not name their streams
    by_name, by_order = np.flatnonzero(named), np.flatnonzero(waits & ~named)
    slots = [
        _recorded_slots(trace, queues, recorded, recorded_rows),
        _named_slots(trace, calls, queues, by_name),
        _ordered_slots(trace, calls, queues, by_order, issues),
    ]
    unrecorded = _slots_by_time(queues)
    source, target = (np.concatenate(side) for side in zip(*slots, strict=True))
    wait = np.concatenate([recorded.call[recorded_rows], calls.node[by_name], calls.node[by_order]])
    resolved = (source >= 0) & (target >= 0)
    _note_waits(UNRESOLVED, wait[~resolved], issues)
    _note_waits(QUEUED_BEFORE, queues.node[unrecorded[1]], issues)
    source = np.concatenate([source[resolved], unrecorded[0]])
    target = np.concatenate([target[resolved], unrecorded[1]])
    return _last_of_each_lane(queues, source, target)


def _recorded_slots(
    trace: Trace, queues: Queues, recorded: RecordedWaits, rows: Array
) -> tuple[Array, Array]:
    """Slots of the awaited and of the waiting work of recorded waits; -1 if unknown."""
    ts = trace.array("ts")
    record = recorded.record_call[rows]
    until = np.where(record >= 0, ts[record], recorded.since[rows])
    source_queue = _queue_of_stream(trace, queues, recorded, rows, recorded.event_stream[rows])
    target_queue = _queue_of_stream(trace, queues, recorded, rows, recorded.stream[rows])
    known = np.flatnonzero((source_queue >= 0) & (target_queue >= 0))
    never = np.full(len(known), _NEVER_TOO_LATE)
    source, target = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    source[known], _ = queues.last_before(source_queue[known], until[known], never)
    target[known] = queues.first_submitted_since(target_queue[known], recorded.since[rows[known]])
    return source, target


def _queue_of_stream(
    trace: Trace, queues: Queues, recorded: RecordedWaits, rows: Array, stream: Array
) -> Array:
    """Queue of a stream on the device of each recorded wait; -1 if unknown or without work."""
    row, queue = group_pairs(recorded.rank[rows], queues.rank)
    same = queues.device[queue] == recorded.device[rows][row]
    same &= trace.array("number", "lanes")[queues.lane[queue]] == stream[row]
    same &= stream[row] >= 0
    result = np.full(len(rows), -1, np.int64)
    result[row[same]] = queue[same]
    return result


def _named_slots(
    trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array
) -> tuple[Array, Array]:
    """Slots of waits that name stream and event: the last record of the event counts."""
    ts, rank = trace.array("ts"), trace.array("rank").astype(np.int64)
    record = last_records(trace, calls, rows)
    wait_rank = rank[calls.node[rows]]
    event_stream = np.where(record >= 0, calls.stream[record], NO_HANDLE)
    row, queue = pairs_by_handle(wait_rank, event_stream, queues)
    never = np.full(len(row), _NEVER_TOO_LATE)
    last, _ = queues.last_before(queue, ts[calls.node[record[row]]], never)
    source = _min_of_groups(len(rows), row, last, -queues.submit)
    row, queue = pairs_by_handle(wait_rank, calls.stream[rows], queues)
    first = queues.first_submitted_since(queue, ts[calls.node[rows[row]]])
    return source, _min_of_groups(len(rows), row, first, queues.submit)


def _min_of_groups(n: int, group: Array, slot: Array, value: Array) -> Array:
    """For each of n groups the slot with the smallest value; -1 if it has none."""
    result = np.full(n, -1, np.int64)
    group, slot = group[slot >= 0], slot[slot >= 0]
    order = np.lexsort((-value[slot], group))
    result[group[order]] = slot[order]  # the smallest of a group is sorted, and written, last
    return result


@dataclass(frozen=True)
class _CallSequence:
    """Launches and waits of all threads, one thread after the other, each in its order.

    Parameters
    ----------
    thread
        Lane of each call.
    slot
        For a launch the first work that it launched, -1 for a wait.
    wait
        For a wait its position among those asked for, -1 for a launch.
    """

    thread: Array
    slot: Array
    wait: Array


def _call_sequence(
    trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array
) -> _CallSequence:
    lane, ts = trace.array("lane"), trace.array("ts")
    launched = np.flatnonzero(queues.call >= 0)
    call, first = np.unique(queues.call[launched], return_index=True)
    node = np.concatenate([call, calls.node[rows]])
    slot = np.concatenate([launched[first], np.full(len(rows), -1)])
    wait = np.concatenate([np.full(len(call), -1), np.arange(len(rows))])
    order = np.lexsort((node, ts[node], lane[node]))
    return _CallSequence(lane[node][order], slot[order], wait[order])


def _ordered_slots(
    trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array, issues: IssueLog
) -> tuple[Array, Array]:
    """Slots of waits of which only the order of calls is known."""
    sequence = _call_sequence(trace, calls, queues, rows)
    next_work, awaited_work = _neighbouring_launches(
        sequence.thread, sequence.slot, sequence.wait, queues.communicates, len(rows)
    )
    ts = trace.array("ts")[calls.node[rows]]
    target = np.full(len(rows), -1, np.int64)
    has_next = np.flatnonzero(next_work >= 0)
    # work of any thread counts: one may make a stream wait and another go on with it
    target[has_next] = queues.first_submitted_since(queues.queue[next_work[has_next]], ts[has_next])
    target[_has_other_handle(calls, queues, rows, target)] = -1
    source = np.full(len(rows), -1, np.int64)
    known = np.flatnonzero((target >= 0) & (awaited_work >= 0))
    until = queues.start[target[known]]
    source[known], later = queues.last_before(queues.queue[awaited_work[known]], ts[known], until)
    source[known[later]] = -1  # the target started before that work ended: it did not wait for it
    unknown = np.flatnonzero((target >= 0) & (awaited_work < 0))
    certain = np.zeros(len(rows), bool)
    for batch in in_batches(unknown, queues):
        source[batch], certain[batch] = _awaited_elsewhere(queues, target[batch], ts[batch])
    source[unknown] = _collectives_in_launch_order(
        queues, target[unknown], source[unknown], certain[unknown], ts[unknown]
    )
    _note_waits(BY_ORDER, calls.node[rows[source >= 0]], issues)
    return source, target


def _note_waits(fault: Fault, wait: Array, issues: IssueLog) -> None:
    """Count waits, with the first of their calls that is recorded as the example."""
    first = wait[wait >= 0][:1]
    issues.add(fault, wait.size, issues.node(first[0]) if first.size else "")


def _has_other_handle(calls: OrderingCalls, queues: Queues, rows: Array, target: Array) -> Array:
    """Mark targets that were submitted under another handle than the one their waits name."""
    stream = calls.stream[rows]
    handle = queues.handle[queues.queue[target]]
    return (target >= 0) & (stream != NO_HANDLE) & (handle != NO_HANDLE) & (handle != stream)


# Compiled: one pass backwards and one forwards over the launches and waits of each thread, which carry
# the nearest launch along.
#
#   thread:  launch k1   WAIT a   launch c1 (communication)   WAIT b   launch k2
#            a: c1 waits, for k1 (last before)                b: k2 waits (awaited: searched later)
@jit
def _neighbouring_launches(
    thread: Array, slot: Array, wait: Array, communicates: Array, waits: int
) -> tuple[Array, Array]:
    """Work on the stream that waits and, if that is communication, the awaited work; else -1.

    A wait directly before a launch of communication holds for that launch, and awaits what the
    thread launched before: libraries that give collectives their own stream do so. Any other wait
    holds for the stream of the thread's next work that is no communication, or of its last if there
    is none.
    """
    target = np.full(waits, -1, np.int64)
    source = np.full(waits, -1, np.int64)
    next_plain, next_any = -1, -1
    for i in range(len(thread) - 1, -1, -1):
        if i + 1 == len(thread) or thread[i + 1] != thread[i]:
            next_plain, next_any = -1, -1
        if wait[i] < 0:
            next_any = slot[i]
            next_plain = next_plain if communicates[slot[i]] else slot[i]
        else:
            target[wait[i]] = next_any if next_any >= 0 and communicates[next_any] else next_plain
            next_any = -1
    last_plain = -1
    for i in range(len(thread)):
        if i == 0 or thread[i - 1] != thread[i]:
            last_plain = -1
        if wait[i] < 0:
            last_plain = last_plain if communicates[slot[i]] else slot[i]
        elif target[wait[i]] < 0:
            target[wait[i]] = last_plain
        elif communicates[target[wait[i]]]:
            source[wait[i]] = last_plain
    return target, source


def _awaited_elsewhere(queues: Queues, target: Array, submitted: Array) -> tuple[Array, Array]:
    """Find the last work of another stream for which each target can have waited.

    Returns
    -------
    source
        Slot of that work; if several streams are possible and the times decide for none, it is of
        the one on which work was launched last.
    certain
        True if the target started right at its end, which shows that it waited for it.
    """
    target_queue = queues.queue[target]
    row, queue = group_pairs(queues.rank[target_queue], queues.rank)
    elsewhere = queues.lane[queue] != queues.lane[target_queue[row]]
    elsewhere &= queues.device[queue] == queues.device[target_queue[row]]
    row, queue = row[elsewhere], queue[elsewhere]
    start = queues.start[target]
    last, _ = queues.last_before(queue, submitted[row], start[row])
    never = np.full(len(row), _NEVER_TOO_LATE)
    newest, _ = queues.last_before(queue, submitted[row], never)
    row, newest, last = row[last >= 0], newest[last >= 0], last[last >= 0]
    could_start = np.maximum(queues.submit[target], _end_of_previous(queues, target))
    end = queues.end[last]
    immediate = (end > could_start[row]) & (start[row] - end <= IMMEDIATE_START_NS)
    certain = _min_of_groups(len(target), row[immediate], last[immediate], -queues.end)
    likely = np.full(len(target), -1, np.int64)
    order = np.argsort(queues.submit[newest], kind="stable")
    likely[row[order]] = last[order]  # that of the queue used last is written last
    return np.where(certain >= 0, certain, likely), certain >= 0


def _slots_by_time(queues: Queues) -> tuple[Array, Array]:
    """Slots of work, and of work queued before the recording that started right at its end.

    Work that was queued starts when the work before it on its lane has ended, if it waits for
    nothing else. So what ended later on the same device, right before the start, held it up, unless
    the time since the work before it is the usual one.
    """
    target = np.flatnonzero(queues.queued_before)
    if not target.size:
        return target, target
    lane = queues.lane[queues.queue]
    _, device = gather.distinct(queues.rank, queues.device)
    device = device[queues.queue]
    start = queues.start[target]
    lasting = np.flatnonzero(queues.end > queues.start)  # what takes no time holds nothing up
    last, own = (
        preceding_rows(group[lasting], queues.end[lasting], group[target], start)
        for group in (device, lane)
    )
    gap = np.where(own >= 0, start - queues.end[lasting[own]], _NEVER_TOO_LATE)
    known, last = last >= 0, lasting[last]
    elsewhere = lane[last] != lane[target]
    behind_own = known & ~elsewhere & (gap <= IMMEDIATE_START_NS)
    usual = np.median(gap[behind_own]) if behind_own.any() else 0
    held = known & elsewhere & (gap > usual)
    held &= start - queues.end[last] <= IMMEDIATE_START_NS
    return last[held], target[held]


def _end_of_previous(queues: Queues, slot: Array) -> Array:
    """End of the work before on the same queue; the smallest integer if there is none."""
    first = slot == queues.first[queues.queue[slot]]
    return np.where(first, np.iinfo(np.int64).min, queues.end[slot - 1])


def _collectives_in_launch_order(
    queues: Queues, target: Array, latest: Array, certain: Array, at: Array
) -> Array:
    """Replace awaited communication by the first collective that has not been waited for yet.

    A call that waits does not say for which collective. But a program keeps its collectives in a
    list and goes through it, so that each wait of a stream is for the first one for which that
    stream has not waited yet.

    Parameters
    ----------
    queues
        GPU work in its queues.
    target
        Slot of the first work after each wait; -1 if there is none.
    latest
        Slot of the last work that each wait can be for, by the times; -1 if there is none.
    certain
        True if the times show that it is for this very work, and so for all before it.
    at
        Time of each wait, ns.

    Returns
    -------
    source
        As `latest`, with collectives replaced; -1 also where the stream had waited for all of them.
    """
    source = latest.copy()
    rows = np.flatnonzero((latest >= 0) & (target >= 0))
    rows = rows[queues.communicates[latest[rows]]]
    rows = rows[np.argsort(at[rows], kind="stable")]
    queue = queues.queue
    source_queue = queue[latest[rows]]
    _, pair = gather.distinct(queues.lane[queue[target[rows]]], source_queue)
    source[rows] = _first_due(
        queues.communicates, latest[rows], queues.first[source_queue], pair, certain[rows]
    )
    return source


# Compiled: how far a stream has waited already decides what its next wait is for.
@jit
def _first_due(
    communicates: Array, latest: Array, first: Array, pair: Array, certain: Array
) -> Array:
    """First collective up to `latest` that is due for each pair of a waiting and awaited queue."""
    source = np.full(len(latest), -1, np.int64)
    due = np.zeros(len(latest), np.int64)  # by pair of queues, of which there are at most as many
    for i in range(len(latest)):
        last, p = latest[i], pair[i]
        slot = last if certain[i] else max(due[p], first[i])
        while slot < last and not communicates[slot]:
            slot += 1
        if slot <= last:
            source[i] = slot
            due[p] = max(due[p], slot + 1)
    return source


def _last_of_each_lane(queues: Queues, source: Array, target: Array) -> tuple[Array, Array]:
    """Rows of nodes: for each target and source lane the last to end; nothing within one lane."""
    queue = queues.queue
    apart = queues.lane[queue[source]] != queues.lane[queue[target]]
    source, target = source[apart], target[apart]
    order = np.lexsort((queues.end[source], queues.lane[queue[source]], target))
    source, target = source[order], target[order]
    lane = queues.lane[queue[source]]
    last = np.ones(len(source), bool)
    last[:-1] = (target[1:] != target[:-1]) | (lane[1:] != lane[:-1])
    return queues.node[source[last]].astype(np.int32), queues.node[target[last]].astype(np.int32)
