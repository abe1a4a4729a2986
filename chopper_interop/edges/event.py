"""Edges from work before an event record to the first work after the wait for it on another stream.

There are four sources, the best first. Some profilers record which event a stream waited for. Some
write the stream and event handles that calls name. Otherwise only the order of the calls is known
(`wait_order`). Of work that was queued before the recording began, or where only GPU work was
traced, no calls are known (`wait_queued`), nor of that of graphs (`wait_graphs`).

A stream that waits for another also waits for all that the other one waits for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, nest
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any, unique
from chopper_interop.edges import wait_graphs, wait_order, wait_queued
from chopper_interop.edges.exclusive import slots_of_exclusive_devices
from chopper_interop.edges.ordering_calls import NO_HANDLE, OrderingCalls
from chopper_interop.edges.pair_table import empty_table, with_pair
from chopper_interop.edges.queues import NEVER_TOO_LATE, Queues, group_pairs
from chopper_interop.edges.sync import (
    RecordedWaits,
    last_launched,
    last_records,
    pairs_by_handle,
)
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind
from chopper_interop.schemas.names import LIBRARY_CALL, Role
from chopper_interop.trace import Trace

BY_ORDER = Fault.info(
    "event-by-order",
    "Stream waits whose streams are not recorded were resolved by the order of calls and by times: of "
    "the streams that their thread uses next and those that it used last, that pair between which calls "
    "lie least, whose work started right behind the other's or at least not before its end, in all "
    "steps, and which had not waited already; collectives are waited for in the order of their launches, and "
    "those of a stream of which the fewest are pending.",
)
AMBIGUOUS = Fault.info(
    "event-ambiguous",
    "Stream waits whose streams are not recorded could be between other streams as well: the "
    "order of calls does not decide, or it alone speaks for them, as nothing held up the work behind "
    "them. CUPTI's sync events record them (enable_cuda_sync_events=True of torch.profiler's "
    "_ExperimentalConfig).",
)
OF_LIBRARY = Fault.info(
    "event-of-library",
    "Stream waits that a communication library made within its own call, behind the launch of a collective, are of its "
    "own streams: no other work waits for the collective because of them.",
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
GRAPH = Fault.info(
    "event-within-graph",
    "Work of graphs started later than what it is known to wait for lets it: which branches fork from which work "
    "of a graph is not recorded.",
)
UNLAUNCHED = Fault.info(
    "event-without-launches",
    "No launches are recorded, so why work starts is not known. What started behind work of another queue depends on "
    "it where the times of both queues cannot be by chance: they take turns, or one starts right behind the other.",
)
EXCLUSIVE = Fault.info(
    "event-one-kernel-at-a-time",
    "Kernels depend on the one of another stream before them, as their device runs one at a time: none overlap, and those "
    "that were ready began right behind it.",
)
REPEATED = Fault.info(
    "event-by-repetition",
    "Communication that was queued before the recording began depends on the work that was launched before it "
    "on another stream, as all later communication on its stream does: its own waits were not recorded.",
)


def event_edges(
    trace: Trace, calls: OrderingCalls, queues: Queues, recorded: RecordedWaits, issues: IssueLog,
    evidence: wait_order.Evidence | None = None,
) -> tuple[Array, Array]:  # fmt: skip
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
        Waits that the profiler recorded. If a rank has any with the awaited stream, its calls are not searched.
    issues
        Log for the assumptions that were made.
    evidence
        What repetitions say of the waits of which only the order of calls is known (`waits_by_order`), where they are of
        other ranks as well; None if there are no others.
    """
    known = _known_waits(trace, calls, queues, recorded)
    _note_waits(OF_LIBRARY, calls.node[known.of_library], issues)
    joined = _joined(
        _recorded_waits(trace, queues, recorded, known.recorded),
        _named_waits(trace, calls, queues, known.by_name),
        _ordered_waits(_waits_by_order(trace, calls, queues, known, recorded), evidence, issues),
    )
    resolved = joined.source[joined.is_resolved], joined.target[joined.is_resolved]
    none = np.empty(0, np.int64)
    by_time = repeated = unlaunched = none, none
    if (queues.call < 0).any():
        unlaunched = wait_queued.slots_between_queues(queues, _ranks_with_dependencies(trace))
    if queues.queued_before.any():
        by_time = wait_queued.slots_by_time(queues)
        repeated = wait_queued.slots_by_repetition(trace, queues, *resolved)
    _note_waits(UNRESOLVED, joined.call[~joined.is_resolved], issues)
    _note_waits(QUEUED_BEFORE, queues.node[by_time[1]], issues)
    _note_waits(REPEATED, queues.node[repeated[1]], issues)
    _note_waits(UNLAUNCHED, queues.node[unlaunched[1]], issues)
    of_graphs = [none, none]
    launched = np.sort(queues.call[queues.call >= 0])
    several = launched[1:][launched[1:] == launched[:-1]]
    if several.size:
        ranks = unique(trace.array("rank")[several])
        *of_graphs, held_up = wait_graphs.slots_of_graphs(trace, queues, ranks)
        _note_waits(GRAPH, queues.node[held_up], issues)
    passed_on = _passed_on(queues, joined)
    waited = [np.concatenate(side) for side in zip(resolved, passed_on, of_graphs, strict=True)]
    exclusive = none, none
    by_streams = recorded.rank[recorded.rows(Role.RECORD)]
    if by_streams.size:  # by MTIA's streams; GPUs run kernels of several at once
        exclusive = slots_of_exclusive_devices(trace, queues, unique(by_streams), *waited)
    _note_waits(EXCLUSIVE, queues.node[exclusive[1]], issues)
    edges = resolved, passed_on, by_time, repeated, of_graphs, unlaunched, exclusive
    source, target = (np.concatenate(side) for side in zip(*edges, strict=True))
    return _last_of_each_lane(queues, source, target)


class _Waits(NamedTuple):
    """Waits of streams; -1 where something is unknown.

    Parameters
    ----------
    call
        Row of `nodes`.
    source, target
        Slots of the last work before the event, and of the first behind the wait.
    awaited, waiting
        Queues of both streams.
    recorded, since
        Times of the event's record and of the wait, ns.
    """

    call: Array
    source: Array
    target: Array
    awaited: Array
    waiting: Array
    recorded: Array
    since: Array

    @property
    def is_resolved(self) -> Array:
        """True if both pieces of work are known."""
        return (self.source >= 0) & (self.target >= 0)


class _KnownWaits(NamedTuple):
    """Waits of streams by what is known of them: rows of those that were recorded, and of calls."""

    recorded: Array
    by_name: Array
    by_order: Array
    of_library: Array


def _known_waits(
    trace: Trace, calls: OrderingCalls, queues: Queues, recorded: RecordedWaits
) -> _KnownWaits:
    rank = trace.array("rank")[calls.node]
    rows = _with_awaited_stream(recorded, recorded.rows(Role.STREAM_WAIT))
    waits = calls.has_role(Role.STREAM_WAIT) & ~np.isin(rank, recorded.rank[rows])
    named = waits & (calls.stream != NO_HANDLE) & (calls.event != NO_HANDLE)
    has_queue, _ = pairs_by_handle(rank.astype(np.int64), calls.stream, queues)
    named &= np.isin(np.arange(len(named)), has_queue)  # else launches do not name their streams
    of_library = waits & ~named & _are_of_library(trace, calls, queues)
    by_order = waits & ~named & ~of_library
    return _KnownWaits(rows, *map(np.flatnonzero, (named, by_order, of_library)))


def waits_by_order(
    trace: Trace, calls: OrderingCalls, queues: Queues, recorded: RecordedWaits
) -> wait_order.Waits:
    """Return the waits of which only the order of calls is known; parameters as of `event_edges`."""
    known = _known_waits(trace, calls, queues, recorded)
    return _waits_by_order(trace, calls, queues, known, recorded)


def _waits_by_order(  # columns
    trace: Trace, calls: OrderingCalls, queues: Queues, known: _KnownWaits, recorded: RecordedWaits
) -> wait_order.Waits:  # fmt: skip
    """Waits of which only the order of calls is known, and of some the waiting stream."""
    waiting = _waiting_queues(trace, calls, queues, known.by_order, recorded)
    return wait_order.Waits(trace, calls, queues, known.by_order, waiting)


def _are_of_library(trace: Trace, calls: OrderingCalls, queues: Queues) -> Array:
    """Mark the calls that a communication library makes behind its launch::

        record_param_comms   [                                              ]
        nccl:all_reduce            [                                 ]
                              WAIT    launch of the collective  WAIT            the second one

    Such are 471 calls in recordings of 15 ranks, of all five jobs with NCCL that were looked at.
    """
    parent = trace.array("parent")[calls.node]
    launched = last_launched(trace, calls.node, queues)
    is_call = np.array([bool(LIBRARY_CALL.match(name)) for name in trace.names()] or [False])
    inside = (parent >= 0) & (launched >= 0)
    inside &= is_call[trace.array("name")[parent]]
    inside &= trace.array("parent")[queues.call[launched]] == parent
    return inside & np.append(queues.communicates, False)[launched]


def _joined(*parts: _Waits) -> _Waits:
    return _Waits(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _recorded_waits(trace: Trace, queues: Queues, recorded: RecordedWaits, rows: Array) -> _Waits:
    """Waits that the profiler recorded."""
    ts = trace.array("ts")
    record = recorded.record_call[rows]
    until = np.where(record >= 0, ts[record], recorded.since[rows])
    source_queue = _queue_of_stream(trace, queues, recorded, rows, recorded.event_stream[rows])
    target_queue = _queue_of_stream(trace, queues, recorded, rows, recorded.stream[rows])
    known = np.flatnonzero((source_queue >= 0) & (target_queue >= 0))
    source, target = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    # what the streams themselves recorded, the event and the wait, decides before when calls asked for it
    recorded_at, begun = recorded.recorded[rows[known]], recorded.begun[rows[known]]
    on_stream = recorded_at >= 0
    submitted = np.where(on_stream, NEVER_TOO_LATE, until[known])
    ended = np.where(on_stream, recorded_at, NEVER_TOO_LATE)
    source[known], _ = queues.last_before(source_queue[known], submitted, ended)
    target[known] = np.where(
        on_stream,
        queues.first_started_since(target_queue[known], begun),
        queues.first_submitted_since(target_queue[known], recorded.since[rows[known]]),
    )
    since = recorded.since[rows]
    return _Waits(recorded.call[rows], source, target, source_queue, target_queue, until, since)


def _ranks_with_dependencies(trace: Trace) -> Array:
    """Return ranks whose source itself states what GPU work depends on, other than its launch and other ranks."""
    dst, kind = (trace.array(c, "edges") for c in ("dst", "kind"))
    dst = dst[~is_any(kind, (EdgeKind.LAUNCH, EdgeKind.COMM)) & (dst >= 0)]
    return unique(trace.array("rank")[dst[is_any(trace.array("kind")[dst], GPU_WORK)]])


def _with_awaited_stream(recorded: RecordedWaits, rows: Array) -> Array:
    """Recorded waits, without those of ranks of which no awaited stream or no call is known.

    CUPTI of CUDA 13 records which stream waits, and neither the stream nor the call of the event's record.
    """
    rank, unknown = recorded.rank[rows], recorded.event_stream[rows] < 0
    stated = np.isin(rank, rank[~unknown])
    return rows[stated | (recorded.call[rows] < 0)]


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


def _named_waits(trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array) -> _Waits:
    """Waits that name stream and event: the last record of the event counts."""
    ts = trace.array("ts")
    record = last_records(trace, calls, rows)
    wait_rank = trace.array("rank")[calls.node[rows]].astype(np.int64)
    event_stream = np.where(record >= 0, calls.stream[record], NO_HANDLE)
    row, queue = pairs_by_handle(wait_rank, event_stream, queues)
    never = np.full(len(row), NEVER_TOO_LATE)
    last, _ = queues.last_before(queue, ts[calls.node[record[row]]], never)
    source = _min_of_groups(len(rows), row, last, -queues.submit)
    row, queue = pairs_by_handle(wait_rank, calls.stream[rows], queues)
    first = queues.first_submitted_since(queue, ts[calls.node[rows[row]]])
    target = _min_of_groups(len(rows), row, first, queues.submit)
    since = ts[calls.node[rows]]
    recorded = np.where(record >= 0, ts[calls.node[record]], since)
    return _with_queues(queues, calls.node[rows], source, target, recorded, since)


def _with_queues(  # columns
    queues: Queues, call: Array, source: Array, target: Array, recorded: Array, since: Array
) -> _Waits:
    """Waits of which the streams are those of their work."""
    queue = np.append(queues.queue, -1)
    return _Waits(call, source, target, queue[source], queue[target], recorded, since)


def _min_of_groups(n: int, group: Array, slot: Array, value: Array) -> Array:
    """For each of n groups the slot with the smallest value; -1 if it has none."""
    result = np.full(n, -1, np.int64)
    group, slot = group[slot >= 0], slot[slot >= 0]
    order = np.lexsort((-value[slot], group))
    result[group[order]] = slot[order]  # the smallest of a group is sorted, and written, last
    return result


def _ordered_waits(
    waits: wait_order.Waits, evidence: wait_order.Evidence | None, issues: IssueLog
) -> _Waits:
    """Waits of which only the order of calls is known."""
    trace, calls, queues, rows, _ = waits
    resolved = wait_order.resolve(waits, evidence)
    _note_waits(BY_ORDER, calls.node[rows[resolved.source >= 0]], issues)
    _note_waits(AMBIGUOUS, calls.node[rows[resolved.ambiguous]], issues)
    since = trace.array("ts")[calls.node[rows]]
    return _with_queues(queues, calls.node[rows], resolved.source, resolved.target, since, since)


def _waiting_queues(
    trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array, recorded: RecordedWaits
) -> Array:
    """Queue of the stream that waits by each call, where that was recorded; else -1."""
    known = recorded.rows(Role.STREAM_WAIT)
    known = known[recorded.call[known] >= 0]
    queue = _queue_of_stream(trace, queues, recorded, known, recorded.stream[known])
    of_node = np.full(len(trace.array("ts")), -1, np.int64)
    of_node[recorded.call[known]] = queue
    return of_node[calls.node[rows]]


def _passed_on(queues: Queues, waits: _Waits) -> tuple[Array, Array]:
    """Slots of work behind a wait, and of what the awaited stream was still waiting for."""
    known = np.flatnonzero((waits.awaited >= 0) & (waits.waiting >= 0))
    known = known[np.lexsort((waits.since[known], queues.rank[waits.awaited[known]]))]
    w = _Waits(*(column[known] for column in waits))
    never = np.full(len(known), NEVER_TOO_LATE)
    before, _ = queues.last_before(w.awaited, w.recorded, never)
    busy = np.where(before >= 0, queues.submit[before], np.iinfo(np.int64).min)
    return _pass_on(
        w.awaited, w.waiting, w.source, w.target, w.recorded, w.since, busy, len(queues.lane)
    )


# Compiled: what a stream waits for decides what others do that wait for it, before any work shows it.
#
#   stream a   [work]
#   stream b           WAIT a                 nothing is launched
#   stream c                     WAIT b   [work]   waits for that of a
@jit
def _pass_on(  # noqa: PLR0913, PLR0917 # columns
    awaited: Array, waiting: Array, source: Array, target: Array, recorded: Array, since: Array,
    busy: Array, queues: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Edges that follow from two waits or more; `busy` is when the awaited stream was last given work."""
    sources, targets = np.empty(16, np.int64), np.empty(16, np.int64)
    count = 0
    pending = empty_table(queues)
    for i in range(len(awaited)):
        a, w = awaited[i], waiting[i]
        entry = pending.head[a]
        while entry >= 0:
            slot, other, at = pending.slot[entry], pending.other[entry], pending.time_ns[entry]
            entry = pending.following[entry]
            if other == w or not busy[i] < at <= recorded[i]:
                continue
            pending = with_pair(pending, w, other, slot, since[i])
            if target[i] >= 0:
                if count == len(sources):
                    sources = nest.enlarged(sources, 2 * count)
                    targets = nest.enlarged(targets, 2 * count)
                sources[count], targets[count] = slot, target[i]
                count += 1
        if source[i] >= 0:
            pending = with_pair(pending, w, a, source[i], since[i])
    return sources[:count].copy(), targets[:count].copy()


def _note_waits(fault: Fault, wait: Array, issues: IssueLog) -> None:
    """Count waits, with the first of their calls that is recorded as the example."""
    known = wait[wait >= 0]
    issues.add(fault, wait.size, issues.node(known.min()) if known.size else "")


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
