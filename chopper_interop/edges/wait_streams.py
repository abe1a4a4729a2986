"""Streams that a wait can be between, as the order of calls has it.

The streams that a thread uses next may wait, and those that it used last may be awaited. The order of
calls speaks against those that are farther away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.schemas.names import Role
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.edges.ordering_calls import OrderingCalls
    from chopper_interop.edges.queues import Queues

_STREAMS = 6
"""Streams that are tried on each side of a wait. Chosen: programs use up to five at once."""

_WINDOW = 1_000
"""Calls between two joins that are looked at. Chosen: more than a step between joins, and little time."""

# Costs, in the units of `wait_order`.
_CROSSED = 1.0
"""For each group of waits between a wait and the work on either side."""
_MAX_CROSSED = 2
"""So many of them count. Chosen: data is prefetched a whole step ahead, behind any number of other waits."""
_USED_NEXT, _USED_LAST = 0.1, 0.15
"""For each other stream that the thread uses between the wait and the work on either side."""
_NOT_CURRENT = 2.0
"""For each such stream if communication waits for it: it waits for the current stream."""
_SERVED = 1.5
"""If another wait stands directly before the waiting work."""
_OTHER_THREAD = 2.0
"""For a stream on which another thread launches."""


@dataclass(frozen=True)
class Sequence:
    """Launches, records and waits of all threads, one thread after the other, each in its order.

    Parameters
    ----------
    node, ts, thread
        Row of `nodes` of each call, its start, and its lane.
    queue
        For a launch the queue of its work, else -1.
    slot
        For a launch the first work that it launched, else -1.
    communicates
        True for launches of communication.
    wait
        For a wait its position among those asked for, else -1.
    run
        How many groups of waits the thread had begun by then. Waits for communication are not counted.
    served
        True for launches directly behind a wait.
    for_communication
        True for waits directly before a launch of communication.
    event
        For the record of an event that others may wait for later the work before it; else -1.
    behind_record
        True for waits directly behind the record of their event.
    first_for_event
        For a wait without a record of its own the one behind the last record of its thread, if that was waited for at once: its
        event may be the same; else -1.
    """

    node: Array
    ts: Array
    thread: Array
    queue: Array
    slot: Array
    communicates: Array
    wait: Array
    run: Array
    served: Array
    for_communication: Array
    event: Array
    behind_record: Array
    first_for_event: Array

    def in_order_of_time(self, group: Array) -> Sequence:
        """All calls of a group in one order, whatever their thread."""
        order = np.lexsort((self.node, self.ts, group))
        columns = (getattr(self, name)[order] for name in self.__dataclass_fields__)
        return replace(Sequence(*columns), thread=group[order])


def read_sequence(
    trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array, for_older: Array
) -> Sequence:
    """Put launches, records and the waits `rows` of `calls` in order.

    Waits of the mask `for_older` are not for an event that was recorded right before them.
    """
    lane, start = trace.array("lane"), trace.array("ts")
    launched, unknown = np.flatnonzero(queues.call >= 0), np.flatnonzero(queues.call < 0)
    call, first = np.unique(queues.call[launched], return_index=True)
    records = calls.node[calls.has_role(Role.RECORD)]
    # what was launched before the recording is there too, as if by threads of its own
    node = np.concatenate([call, queues.node[unknown], calls.node[rows], records])
    launches = len(call) + len(unknown)
    ts = start[node]
    ts[len(call) : launches] = queues.submit[unknown]
    slot, wait = np.full((2, len(node)), -1, np.int64)
    slot[:launches] = np.concatenate([launched[first], unknown])
    wait[launches : launches + len(rows)] = np.arange(len(rows))
    order = np.lexsort((node, ts, lane[node]))
    node, ts, slot, wait = node[order], ts[order], slot[order], wait[order]
    thread = lane[node].astype(np.int64)
    communicates = (slot >= 0) & queues.communicates[slot]
    queue = np.where(slot >= 0, queues.queue[slot], -1)
    runs = _runs(thread, queue, communicates, wait)
    events = _events(thread, queue, slot, communicates, wait, for_older)
    return Sequence(node, ts, thread, queue, slot, communicates, wait, *runs, *events)


def _events(
    thread: Array, queue: Array, slot: Array, communicates: Array, wait: Array, for_older: Array
) -> tuple[Array, Array, Array]:
    """Work before each event that may be waited for later, when more have been recorded; waits for the others, and the first.

    ::

        thread   [ launch ] [ record ] [ launch ]               for later: the work of the first launch
        thread   [ launch ] [ record ] [ wait ]                 for this wait
        thread   [ launch of communication ] [ record ] [ wait ]    its end, which may be waited for later
    """
    place = np.arange(len(thread))
    last = np.maximum.accumulate(np.where(queue >= 0, place, -1))
    launched = (last >= 0) & (thread[last] == thread)
    records = (queue < 0) & (wait < 0)
    for_newest = (wait >= 0) & ~np.append(for_older, False)[wait]
    at_once = np.append(for_newest[1:] & (thread[1:] == thread[:-1]), False)
    at_once &= ~(launched & (last == place - 1) & communicates[last])
    event = np.where(records & launched & ~at_once, slot[last], -1)
    behind_record = np.append(False, (records & at_once)[:-1])
    recorded = np.maximum.accumulate(np.where(records, place, -1))
    shares = (wait >= 0) & ~behind_record & (recorded >= 0) & (thread[recorded] == thread)
    first = np.append(wait[1:], -1)[recorded]
    return event, behind_record, np.where(shares & at_once[recorded], first, -1)


# Compiled: one pass over the calls of each thread, backwards to see what a wait stands before, then
# forwards to count.
#
#   launch a   WAIT WAIT   launch b  launch c   WAIT   launch d (communication)   WAIT   launch e
#   run   0       1   1           1         1      -          1                      2          2
@jit
def _runs(
    thread: Array, queue: Array, communicates: Array, wait: Array
) -> tuple[Array, Array, Array]:
    """Number of each call's group of waits; launches right behind a wait; waits for communication."""
    n = len(thread)
    run = np.zeros(n, np.int64)
    served = np.zeros(n, np.bool_)
    for_communication = np.zeros(n, np.bool_)
    before_communication = False
    for i in range(n - 1, -1, -1):
        if i + 1 == n or thread[i + 1] != thread[i] or queue[i] >= 0:
            before_communication = communicates[i]
        elif wait[i] >= 0:
            for_communication[i] = before_communication
            before_communication = False
    in_waits, number = False, 0
    for i in range(n):
        if i == 0 or thread[i - 1] != thread[i]:
            in_waits, number = False, 0
        if wait[i] >= 0 and not for_communication[i]:
            number += not in_waits
            in_waits = True
        elif queue[i] >= 0 and not communicates[i]:
            served[i] = in_waits
            in_waits = False
        run[i] = number
    return run, served, for_communication


class Forks(NamedTuple):
    """Waits between two times at which a stream waits for all others that were used since.

    Parameters
    ----------
    joined_by
        Queue of that stream, for each wait before the later of them; -1 elsewhere.
    since
        Time of the earlier one.
    """

    joined_by: Array
    since: Array


def forks_of(sequence: Sequence, waits: int) -> Forks:
    """Find waits between two joins of the stream from which others fork off.

    Parameters
    ----------
    sequence
        Calls, one thread after the other.
    waits
        How many waits it has.
    """
    s, queues = sequence, max(int(sequence.queue.max()), 0) + 1
    forks = Forks(np.full(waits, -1, np.int64), np.zeros(waits, np.int64))
    last = np.full((2, queues), -1, np.int64)
    _find_forks(s.thread, s.queue, s.communicates, s.wait, s.ts, last, *forks)
    return forks


# Compiled: one pass over the calls of each thread, and one back from each group of waits.
#
#   thread   WAIT  [ launch a ]  WAIT  [ launch u ]  WAIT  [ launch v ]   WAIT WAIT   [ launch a ]
#                  last join …   from a …                                 as many waits as other streams since
@jit
def _find_forks(  # noqa: PLR0913, PLR0917 # columns
    thread: Array, queue: Array, communicates: Array, wait: Array, ts: Array, last: Array,
    joined_by: Array, since: Array,
) -> None:  # fmt: skip
    """Fill the columns of `Forks`; `last` has -1 for each queue, twice."""
    begin, waited = 0, False
    for i in range(len(thread)):
        if i == 0 or thread[i - 1] != thread[i]:
            begin, waited, of_thread = i, False, i
        if wait[i] >= 0 and not waited:
            begin, waited = i, True
        if queue[i] < 0:
            continue
        if waited and not communicates[i]:
            first = max(last[0, queue[i]], of_thread, begin - _WINDOW)
            streams = _forked(queue, communicates, wait, first, begin, queue[i], last[1])
            if 1 < streams <= (wait[begin:i] >= 0).sum():
                for k in range(first, begin):
                    if wait[k] >= 0:
                        joined_by[wait[k]], since[wait[k]] = queue[i], ts[first]
            last[0, queue[i]] = i
        waited = False


# Compiled: called by the loop above.
@jit
def _forked(  # noqa: PLR0913, PLR0917 # columns
    queue: Array, communicates: Array, wait: Array, first: int, begin: int, w: int, counted: Array
) -> int:
    """Count streams that are used between two places, but queue w; none if its work is not right before the first wait.

    `counted` has for each queue the end of the part in which it was counted last.
    """
    streams, before, forks = 0, -1, False
    for k in range(first, begin):
        if wait[k] >= 0 and not forks:
            forks = True
            if before >= 0 and before != w:
                return 0
        if queue[k] < 0 or communicates[k]:
            continue
        before = queue[k]
        streams += before != w and counted[before] != begin
        counted[before] = begin
    return streams


@dataclass(frozen=True)
class Side:
    """Streams that may wait, or be awaited: a row for each wait, the nearest first.

    Parameters
    ----------
    queue
        The queue; -1 for none.
    cost
        What the order of calls says against it.
    crossed
        The part of it for groups of waits between.
    event
        Last work on the queue before an event that was recorded there and not waited for at once; -1 for
        none.
    served
        True if another wait stands directly before the work.
    elsewhere
        True for streams of other threads.
    """

    queue: Array
    cost: Array
    crossed: Array
    event: Array
    served: Array
    elsewhere: Array

    @classmethod
    def empty(cls, waits: int) -> Side:
        """No streams."""
        shape = waits, _STREAMS
        queue, event = np.full((2, *shape), -1, np.int64)
        return cls(queue, np.zeros(shape), np.zeros(shape), event, *np.zeros((2, *shape), bool))


# Compiled: each wait sees the streams that its thread uses next. They are kept in a list in which each
# launch moves its stream to the front.
@jit
def _next_streams(  # noqa: PLR0913, PLR0917 # columns
    thread: Array, queue: Array, communicates: Array, wait: Array, run: Array, served: Array,
    for_communication: Array, streams: Array, cost: Array, is_served: Array,
) -> None:  # fmt: skip
    """Fill the columns of a side with streams that may wait."""
    width = streams.shape[1]
    recent, recent_run = np.full(width, -1, np.int64), np.zeros(width, np.int64)
    recent_served = np.zeros(width, np.bool_)
    communication = -1
    for i in range(len(thread) - 1, -1, -1):
        if i + 1 == len(thread) or thread[i + 1] != thread[i]:
            recent[:] = -1
        if communicates[i]:
            communication = queue[i]
        elif queue[i] >= 0:
            _to_front(recent, recent_run, recent_served, queue[i])
            recent_run[0], recent_served[0] = run[i], served[i]
        elif wait[i] >= 0 and for_communication[i]:
            streams[wait[i], 0] = communication
        elif wait[i] >= 0:
            for k in range(width):
                crossed = min(recent_run[k] - run[i], _MAX_CROSSED)
                streams[wait[i], k] = recent[k]
                is_served[wait[i], k] = crossed > 0 and recent_served[k]
                cost[wait[i], k] = _CROSSED * crossed + _USED_NEXT * k
                cost[wait[i], k] += _SERVED * is_served[wait[i], k]


# Compiled: as above, the other way.
@jit
def _last_streams(  # noqa: PLR0913, PLR0917 # columns
    thread: Array, queue: Array, communicates: Array, wait: Array, run: Array,
    for_communication: Array, event: Array, queue_of_slot: Array, streams: Array, cost: Array,
    crossings: Array, events: Array,
) -> None:  # fmt: skip
    """Fill the columns of a side with streams that may be awaited."""
    width = streams.shape[1]
    recent, recent_run = np.full(width, -1, np.int64), np.zeros(width, np.int64)
    communication = np.zeros(width, np.bool_)
    recorded = np.full(queue_of_slot.max() + 1, -1, np.int64)
    for i in range(len(thread)):
        if i == 0 or thread[i - 1] != thread[i]:
            recent[:] = -1
            recorded[:] = -1  # threads go on at the same time: others may record later
        if queue[i] >= 0:
            _to_front(recent, recent_run, communication, queue[i])
            recent_run[0], communication[0] = run[i], communicates[i]
        elif event[i] >= 0:
            recorded[queue_of_slot[event[i]]] = event[i]
        elif wait[i] >= 0:
            used = 0
            for k in range(width):
                if recent[k] < 0 or (for_communication[i] and communication[k]):
                    continue
                streams[wait[i], used], events[wait[i], used] = recent[k], recorded[recent[k]]
                if for_communication[i]:
                    cost[wait[i], used] = _NOT_CURRENT * used
                else:
                    crossed = 0 if communication[k] else run[i] - 1 - recent_run[k]
                    crossings[wait[i], used] = _CROSSED * min(max(crossed, 0), _MAX_CROSSED)
                    cost[wait[i], used] = crossings[wait[i], used] + _USED_LAST * used
                used += 1


# Compiled: called for each launch by the loops above.
@jit
def _to_front(recent: Array, run: Array, flag: Array, queue: int) -> None:
    """Move a queue to the front of a list, or put it there instead of the last one."""
    at = len(recent) - 1
    for k in range(len(recent)):
        if recent[k] == queue:
            at = k
            break
    for k in range(at, 0, -1):
        recent[k], run[k], flag[k] = recent[k - 1], run[k - 1], flag[k - 1]
    recent[0] = queue


def streams_of(
    sequence: Sequence, waits: int, rank: Array, queue_of_slot: Array
) -> tuple[Side, Side]:
    """Streams that may wait and be awaited, those of the same thread first.

    Parameters
    ----------
    sequence
        Calls, with at least one launch.
    waits
        How many waits it has.
    rank
        Rank of each call.
    queue_of_slot
        Queue of each slot.
    """
    waiting, awaited = _streams_in_order(sequence, waits, queue_of_slot)
    # the same with the calls of all threads of a rank in one order, for streams that others use
    in_order = sequence.in_order_of_time(rank)
    next_of_all, last_of_all = _streams_in_order(in_order, waits, queue_of_slot)
    # a collective is launched by the thread that lets its stream wait
    next_of_all.queue[sequence.wait[sequence.for_communication]] = -1
    for side, of_all in ((waiting, next_of_all), (awaited, last_of_all)):
        _append(side.queue, side.cost, side.event, side.elsewhere, of_all.queue, of_all.event)
    return waiting, awaited


def _streams_in_order(s: Sequence, waits: int, queue_of_slot: Array) -> tuple[Side, Side]:
    waiting, awaited = Side.empty(waits), Side.empty(waits)
    _next_streams(
        s.thread, s.queue, s.communicates, s.wait, s.run, s.served, s.for_communication,
        waiting.queue, waiting.cost, waiting.served,
    )  # fmt: skip
    _last_streams(
        s.thread, s.queue, s.communicates, s.wait, s.run, s.for_communication, s.event,
        queue_of_slot, awaited.queue, awaited.cost, awaited.crossed, awaited.event,
    )  # fmt: skip
    return waiting, awaited


# Compiled: a few columns, compared with each other in each row.
@jit
def _append(  # columns
    queue: Array, cost: Array, event: Array, elsewhere: Array, others: Array, other_events: Array
) -> None:  # fmt: skip
    """Append streams that other threads use, where columns are free."""
    width = queue.shape[1]
    for i in range(len(queue)):
        own = 0
        while own < width and queue[i, own] >= 0:
            own += 1
        used = own
        for k in range(width):
            known = others[i, k] < 0
            for j in range(own):
                known = known or queue[i, j] == others[i, k]
            if not known and used < width:
                queue[i, used], event[i, used] = others[i, k], other_events[i, k]
                cost[i, used], elsewhere[i, used] = _OTHER_THREAD, True
                used += 1
