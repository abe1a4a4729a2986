"""Work before the record of an event → the first work behind the wait for it, on another stream.

A few profilers record which event a stream waited for, some write the handles that calls name.
Else there is the order of the calls alone: of a wait it tells the stream, which is the one that
its thread puts work on next, and of what it waits for it tells what had been queued by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.edges.calls import NONE
from chopper_interop.edges.queues import pairs, portions
from chopper_interop.edges.sync import last_record, of_handle
from chopper_interop.edges.turns import in_turn
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.edges.calls import Calls
    from chopper_interop.edges.queues import Queues
    from chopper_interop.edges.recorded import Recorded
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

BY_ORDER = Fault(
    "event-by-order",
    Severity.INFO,
    "Waits of streams of which nothing tells the streams were tied by the order of calls: what "
    "waits is the stream that their thread used next, on what it had used last if that is communication, "
    "else on the last work of another stream that had ended by then, collectives in their turn.",
)
UNTOLD = Fault(
    "event-untold",
    Severity.INFO,
    "Waits of streams have no dependency: nothing tells for which of several streams, or no work "
    "in the trace was queued before or behind them.",
)
AT_ONCE_NS = 20_000
"""Work that starts so soon after the end of work elsewhere, and could have started before that,
waited for it. Events reach a waiting queue within some microseconds."""


def edges(
    trace: Trace, calls: Calls, queues: Queues, recorded: Recorded, issues: IssueLog
) -> tuple[Array, Array]:
    """Work → work of another stream that waits for it, as rows of `nodes`.

    Parameters
    ----------
    trace
        The trace.
    calls
        Calls that order GPU work.
    queues
        GPU work in its queues.
    recorded
        Waits that the profiler recorded; a rank that has any has all that matter.
    issues
        Where assumptions are counted.
    """
    rank = trace.array("rank")[calls.node]
    told = recorded.rows(Role.STREAM_WAIT)
    waits = calls.of(Role.STREAM_WAIT) & ~np.isin(rank, recorded.rank[told])
    named = waits & (calls.stream != NONE) & (calls.event != NONE)
    queued, _ = of_handle(rank.astype(np.int64), calls.stream, queues)
    named &= np.isin(np.arange(len(named)), queued)  # else launches name none
    by_name, by_order = np.flatnonzero(named), np.flatnonzero(waits & ~named)
    found = [
        _recorded_edges(trace, queues, recorded, told),
        _named_edges(trace, calls, queues, by_name),
        _ordered_edges(trace, calls, queues, by_order, issues),
    ]
    before, behind = (np.concatenate(side) for side in zip(*found, strict=True))
    wait = np.concatenate([recorded.call[told], calls.node[by_name], calls.node[by_order]])
    whole = (before >= 0) & (behind >= 0)
    _count(UNTOLD, wait[~whole], issues)
    before, behind = before[whole], behind[whole]
    return _latest_alone(queues, before, behind)


def _recorded_edges(
    trace: Trace, queues: Queues, recorded: Recorded, rows: Array
) -> tuple[Array, Array]:
    ts = trace.array("ts")
    record = recorded.record[rows]
    until = np.where(record >= 0, ts[record], recorded.since[rows])
    source = _queue_of(trace, queues, recorded, rows, recorded.waited[rows])
    target = _queue_of(trace, queues, recorded, rows, recorded.stream[rows])
    both = np.flatnonzero((source >= 0) & (target >= 0))
    never = np.full(len(both), np.iinfo(np.int64).max)
    before, behind = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    before[both], _ = queues.last_before(source[both], until[both], never)
    behind[both] = queues.first_behind(target[both], recorded.since[rows[both]])
    return before, behind


def _queue_of(
    trace: Trace, queues: Queues, recorded: Recorded, rows: Array, stream: Array
) -> Array:
    """Queue of a stream of each wait's device; -1 if it is not known or no work ran there."""
    which, queue = pairs(recorded.rank[rows], queues.rank)
    same = queues.device[queue] == recorded.device[rows][which]
    same &= trace.array("number", "lanes")[queues.lane[queue]] == stream[which]
    same &= stream[which] >= 0
    result = np.full(len(rows), -1, np.int64)
    result[which[same]] = queue[same]
    return result


def _named_edges(trace: Trace, calls: Calls, queues: Queues, rows: Array) -> tuple[Array, Array]:
    """Edges of waits that name stream and event: the last record of the event counts."""
    ts, rank = trace.array("ts"), trace.array("rank").astype(np.int64)
    record = last_record(trace, calls, rows)
    of_rank = rank[calls.node[rows]]
    stream = np.where(record >= 0, calls.stream[record], NONE)
    which, queue = of_handle(of_rank, stream, queues)
    never = np.full(len(which), np.iinfo(np.int64).max)
    last, _ = queues.last_before(queue, ts[calls.node[record[which]]], never)
    before = _best(len(rows), which, last, -queues.submit)
    which, queue = of_handle(of_rank, calls.stream[rows], queues)
    first = queues.first_behind(queue, ts[calls.node[rows[which]]])
    return before, _best(len(rows), which, first, queues.submit)


def _best(n: int, group: Array, place: Array, least: Array) -> Array:
    """Of each group the place whose value is least; -1 if it has none."""
    result = np.full(n, -1, np.int64)
    group, place = group[place >= 0], place[place >= 0]
    order = np.lexsort((-least[place], group))
    result[group[order]] = place[order]  # of equal groups the last is written last
    return result


@dataclass(frozen=True)
class _Program:
    """Launches and waits of all threads, one thread after the other, each in its order.

    Parameters
    ----------
    thread, ts
        Lane and start of each call.
    place
        Of a launch the first work that it launched, -1 for a wait.
    wait
        Of a wait its position among those asked for, -1 for a launch.
    """

    thread: Array
    ts: Array
    place: Array
    wait: Array


def _program(trace: Trace, calls: Calls, queues: Queues, rows: Array) -> _Program:
    lane, ts = trace.array("lane"), trace.array("ts")
    launched = np.flatnonzero(queues.call >= 0)
    call, first = np.unique(queues.call[launched], return_index=True)
    node = np.concatenate([call, calls.node[rows]])
    place = np.concatenate([launched[first], np.full(len(rows), -1)])
    wait = np.concatenate([np.full(len(call), -1), np.arange(len(rows))])
    order = np.lexsort((node, ts[node], lane[node]))
    return _Program(lane[node][order], ts[node][order], place[order], wait[order])


def _ordered_edges(
    trace: Trace, calls: Calls, queues: Queues, rows: Array, issues: IssueLog
) -> tuple[Array, Array]:
    """Edges of waits of which only the order of calls is known."""
    program = _program(trace, calls, queues, rows)
    following, source = _neighbours(
        program.thread, program.place, program.wait, queues.communicates, len(rows)
    )
    ts = trace.array("ts")[calls.node[rows]]
    target = np.full(len(rows), -1, np.int64)
    some = np.flatnonzero(following >= 0)
    # whichever thread puts it there: one may let a stream wait and another go on with it
    target[some] = queues.first_behind(queues.queue[following[some]], ts[some])
    target[_of_another(calls, queues, rows, target)] = -1
    before = np.full(len(rows), -1, np.int64)
    known = np.flatnonzero((target >= 0) & (source >= 0))
    until = queues.start[target[known]]
    before[known], later = queues.last_before(queues.queue[source[known]], ts[known], until)
    before[known[later]] = -1  # then it did not wait for that
    open_ = np.flatnonzero((target >= 0) & (source < 0))
    sure = np.zeros(len(rows), bool)
    for part in portions(open_, queues):
        before[part], sure[part] = _elsewhere(queues, target[part], ts[part])
    before[open_] = in_turn(queues, target[open_], before[open_], sure[open_], ts[open_])
    _count(BY_ORDER, calls.node[rows[before >= 0]], issues)
    return before, target


def _count(fault: Fault, wait: Array, issues: IssueLog) -> None:
    """Count waits, by their calls as far as these are recorded."""
    first = wait[wait >= 0][:1]
    issues.add(fault, wait.size, f"node {first[0]}" if first.size else "")


def _of_another(calls: Calls, queues: Queues, rows: Array, target: Array) -> Array:
    """Which targets were put under another handle than the one that their waits name."""
    stream = calls.stream[rows]
    handle = queues.handle[queues.queue[target]]
    return (target >= 0) & (stream != NONE) & (handle != NONE) & (handle != stream)


@jit
def _neighbours(
    thread: Array, place: Array, wait: Array, communicates: Array, waits: int
) -> tuple[Array, Array]:
    """Work on the stream that waits and, if that is communication, what it waits for; else -1.

    A wait right before a launch of communication is of that, for what the thread launched before:
    so do libraries that give collectives a stream of their own. Any other is of the stream of the
    thread's next work that is no communication, or of its last if there is none.
    """
    target = np.full(waits, -1, np.int64)
    source = np.full(waits, -1, np.int64)
    plain, following = -1, -1
    for i in range(len(thread) - 1, -1, -1):
        if i + 1 == len(thread) or thread[i + 1] != thread[i]:
            plain, following = -1, -1
        if wait[i] < 0:
            following = place[i]
            plain = plain if communicates[place[i]] else place[i]
        else:
            target[wait[i]] = following if following >= 0 and communicates[following] else plain
            following = -1
    last = -1
    for i in range(len(thread)):
        if i == 0 or thread[i - 1] != thread[i]:
            last = -1
        if wait[i] < 0:
            last = last if communicates[place[i]] else place[i]
        elif target[wait[i]] < 0:
            target[wait[i]] = last
        elif communicates[target[wait[i]]]:
            source[wait[i]] = last
    return target, source


def _elsewhere(queues: Queues, target: Array, submitted: Array) -> tuple[Array, Array]:
    """The last work of another stream that each target can have waited for; -1 if not sure which.

    And whether its end shows that it waited for this.
    """
    own = queues.queue[target]
    which, queue = pairs(queues.rank[own], queues.rank)
    other = queues.lane[queue] != queues.lane[own[which]]
    other &= queues.device[queue] == queues.device[own[which]]
    which, queue = which[other], queue[other]
    start = queues.start[target]
    last, _ = queues.last_before(queue, submitted[which], start[which])
    which, last = which[last >= 0], last[last >= 0]
    behind = np.maximum(queues.submit[target], _end_before(queues, target))
    end = queues.end[last]
    at_once = (end > behind[which]) & (start[which] - end <= AT_ONCE_NS)
    result = _best(len(target), which[at_once], last[at_once], -queues.end)
    alone = np.bincount(which, minlength=len(target)) == 1
    only = np.full(len(target), -1, np.int64)
    only[which] = last
    return np.where(result >= 0, result, np.where(alone, only, -1)), result >= 0


def _end_before(queues: Queues, place: Array) -> Array:
    """End of what runs before on the same queue; the least number if nothing does."""
    first = place == queues.first[queues.queue[place]]
    return np.where(first, np.iinfo(np.int64).min, queues.end[place - 1])


def _latest_alone(queues: Queues, before: Array, behind: Array) -> tuple[Array, Array]:
    """Rows of nodes: for each target and lane the last to end; nothing within one lane."""
    queue = queues.queue
    apart = queues.lane[queue[before]] != queues.lane[queue[behind]]
    before, behind = before[apart], behind[apart]
    order = np.lexsort((queues.end[before], queues.lane[queue[before]], behind))
    before, behind = before[order], behind[order]
    lane = queues.lane[queue[before]]
    last = np.ones(len(before), bool)
    last[:-1] = (behind[1:] != behind[:-1]) | (lane[1:] != lane[:-1])
    return queues.node[before[last]].astype(np.int32), queues.node[behind[last]].astype(np.int32)
