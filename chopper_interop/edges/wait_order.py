"""Both streams of a wait, where only the order of calls and times are known.

A wait is between two streams: the one that waits, and the one that is awaited. Both are chosen among the
streams that its thread uses next, and those that it used last. What speaks for a pair of streams:

- order: work that is launched right behind the wait, and work right before it;
- times: the waiting work started right when the awaited work ended, and could have started sooner. Work
  that started before the awaited work had ended did not wait for it;
- repetition: the same wait in other steps, between launches of the same kernels;
- purpose: nobody waits for what a stream has waited for already.

Each is a cost; costs add up, and the pair with the least is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.edges.ordering_calls import NO_HANDLE
from chopper_interop.edges.queues import NEVER_TOO_LATE, numbers_in_groups
from chopper_interop.edges.wait_streams import read_sequence, streams_of
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.edges.ordering_calls import OrderingCalls
    from chopper_interop.edges.queues import Queues
    from chopper_interop.edges.wait_streams import Sequence, Side
    from chopper_interop.trace import Trace

IMMEDIATE_START_NS = 20_000
"""Work that could have started earlier, and started so soon after the end of work elsewhere, waited
for that work. Chosen: an event reaches a waiting queue within some microseconds; a larger bound would
take chance neighbours for dependencies."""
_HELD_NS = 3_000
"""Work that started so much later than it could have was held up. Chosen: starts vary by less."""
_NEIGHBOURS = 3
"""Launches before and behind a wait that are the same where it is repeated. Chosen: fewer are alike by chance."""

# Costs. Chosen so that one measured time outweighs any order of calls, and two steps that agree one time
# that may be chance. Their order of size is what matters.
_SIDE_TO_SIDE = 1.25
"""For a pair without the most used stream of its device: side streams fork off it, and join it."""
_REDUNDANT = 1.5
"""If the stream has waited for all that already."""
_TOO_EARLY = 6.0
"""If the waiting work started before the awaited work had ended."""
_OLDER = 2.0
"""If the event must be older than the last work of the stream, for the waiting work to have started."""
_UNRECORDED = 1.0
"""If events are recorded, and none is known on the stream."""
_MOST_OLDER = 3.0
"""Bound of the sum of that over all repetitions: a program may record events early each time."""
_AT_ONCE = -3.0
"""If the waiting work was held up, and started right at the end of the awaited work."""
_UNEXPLAINED = 1.0
"""If the waiting work was held up, and by something else."""
_MOST_EVIDENCE = 8.0
"""Bound of the sum of both over all repetitions of a wait."""
_UNLIKELY = 7.0
"""Pairs that cost more are not taken: what was awaited is not in the trace. Chosen: more than one contradiction."""
_CLOSE = 0.2
"""Pairs whose costs differ by less are not decided: they differ by how many streams are used between."""


class Resolved(NamedTuple):
    """Slots of the awaited and the waiting work of each wait; -1 if unknown.

    Parameters
    ----------
    ambiguous
        True if neither order nor times decide between two pairs of streams.
    """

    source: Array
    target: Array
    ambiguous: Array


@dataclass(frozen=True)
class _Pairs:
    """Pairs of streams that are possible for each wait: a row for each pair, ordered by wait.

    Parameters
    ----------
    wait
        Position of the wait.
    waiting, awaited
        Both queues.
    target, source
        Slots of the first work behind the wait, and of the last work before its event.
    in_turn
        True if the source is the last of several collectives for which the wait can be.
    cost
        What the order of calls says against the pair.
    """

    wait: Array
    waiting: Array
    awaited: Array
    target: Array
    source: Array
    in_turn: Array
    cost: Array


@dataclass(frozen=True)
class _Times:
    """Times of both pieces of work, compared: a row for each pair.

    Parameters
    ----------
    at_once
        True if the target was held up, and started right at the end of the source.
    unexplained
        True if it was held up, and not by the source.
    early
        True if it started before the source had ended.
    older
        True if only an event older than the last work of the stream had happened.
    """

    at_once: Array
    unexplained: Array
    early: Array
    older: Array


def resolve(trace: Trace, calls: OrderingCalls, queues: Queues, rows: Array) -> Resolved:
    """Find the awaited and the waiting work of waits of which only the order of calls is known.

    Parameters
    ----------
    trace
        The trace.
    calls
        Calls that order GPU work.
    queues
        GPU work in its queues.
    rows
        Those waits, as positions in `calls`.
    """
    node = calls.node[rows]
    rank, ts = trace.array("rank").astype(np.int64), trace.array("ts")
    sequence = read_sequence(trace, calls, queues, rows)
    if not (sequence.queue >= 0).any():
        none = np.full(len(rows), -1, np.int64)
        return Resolved(none, none, none > 0)
    waiting, awaited, behind_record = streams_of(sequence, len(rows), rank[sequence.node])
    has_records = np.isin(rank[node], rank[calls.node[calls.has_role(Role.RECORD)]])
    wait, one, other = _possible(queues, waiting, awaited, calls.stream[rows])
    pairs, times = _pairs(
        queues, (waiting, one), (awaited, other), wait, ts[node][wait], behind_record[wait],
        has_records[wait],
    )  # fmt: skip
    evidence = _evidence(pairs, times, _repetitions(trace, sequence, queues, behind_record))
    local, width = numbers_in_groups(queues.rank)
    return Resolved(*_decide(
        np.lexsort((ts[node], rank[node])), rank[node],
        np.searchsorted(pairs.wait, np.arange(len(rows) + 1)),
        local[pairs.waiting], local[pairs.awaited], pairs.target, pairs.source, pairs.in_turn,
        pairs.cost, evidence, times.at_once, times.unexplained, times.early,
        queues.first[pairs.awaited], queues.communicates, width,
    ))  # fmt: skip


def _possible(
    queues: Queues, waiting: Side, awaited: Side, handle: Array
) -> tuple[Array, Array, Array]:
    """Wait, waiting and awaited column of pairs of two streams of one device.

    A wait that names its stream by a `handle` is for no other.
    """
    other_handle = (handle[:, None] != NO_HANDLE) & (queues.handle[waiting.queue] != NO_HANDLE)
    other_handle &= queues.handle[waiting.queue] != handle[:, None]
    w, a = waiting.queue[:, :, None], awaited.queue[:, None, :]
    possible = (w >= 0) & (a >= 0) & ~other_handle[:, :, None]
    possible &= (queues.lane[w] != queues.lane[a]) & (queues.device[w] == queues.device[a])
    wait, one, other = np.nonzero(possible)
    return wait, one, other


def _pairs(  # noqa: PLR0913, PLR0917 # columns
    queues: Queues, waits: tuple[Side, Array], awaits: tuple[Side, Array], wait: Array, ts: Array,
    behind_record: Array, has_records: Array,
) -> tuple[_Pairs, _Times]:  # fmt: skip
    """Pairs with work on both sides, and its times.

    Where events are recorded, that of a wait is of the moment, or it was recorded before and not waited
    for; else it may be any of which the work had ended when the waiting work started.
    """
    (waiting, one), (awaited, other) = waits, awaits
    w, a = waiting.queue[wait, one], awaited.queue[wait, other]
    target = queues.first_submitted_since(w, ts)
    newest, _ = queues.last_before(a, ts, np.full(len(a), NEVER_TOO_LATE))
    ended, later = queues.last_before(a, ts, queues.start[target])
    in_turn = queues.communicates[newest] & ~behind_record
    exact = has_records & ~in_turn
    event = np.where(behind_record, -1, awaited.event[wait, other])
    source = np.where(exact, np.where(event >= 0, event, newest), ended)
    cost = waiting.cost[wait, one] + awaited.cost[wait, other]
    cost += _UNRECORDED * (exact & ~behind_record & (event < 0))
    hub = _most_used(queues)
    plain = ~queues.communicates[newest] & ~queues.communicates[target]
    cost += _SIDE_TO_SIDE * (plain & ~hub[w] & ~hub[a])
    times = _times(queues, target, source, waiting.served[wait, one])
    times = replace(times, older=~exact & ~in_turn & later)
    known = (target >= 0) & (source >= 0)
    columns = wait, w, a, target, source, in_turn, cost
    return _Pairs(*(c[known] for c in columns)), _Times(
        *(getattr(times, name)[known] for name in times.__dataclass_fields__)
    )


def _times(queues: Queues, target: Array, source: Array, served: Array) -> _Times:
    """Compare starts and ends; what was held up behind another wait, that one explains (`served`)."""
    free, held = _freedom(queues)
    gap = queues.start[target] - queues.end[source]
    at_once = held[target] & (queues.end[source] > free[target]) & ~served
    at_once &= (gap >= 0) & (gap <= IMMEDIATE_START_NS)
    return _Times(at_once, held[target] & ~at_once, gap < 0, np.zeros(len(gap), bool))


def _freedom(queues: Queues) -> tuple[Array, Array]:
    """Time at which each piece of work could have started, by its launch and its stream; if it was held.

    A launch takes a while to reach the GPU, and work does not start right behind the work before it:
    both as long as usual.
    """
    previous_end = np.concatenate([[0], queues.end[:-1]])
    behind = np.ones(len(queues.end), bool)
    behind[queues.first[:-1][np.diff(queues.first) > 0]] = False
    alone = ~behind | (previous_end < queues.submit)
    launched = queues.call >= 0
    latency = _usual(queues.start - queues.submit, alone & launched, 0.1)
    arrives = queues.submit + latency
    gap = _usual(queues.start - previous_end, behind & (previous_end > arrives), 0.5)
    free = np.where(behind, np.maximum(arrives, previous_end + gap), arrives)
    return free, queues.start - free > _HELD_NS


def _usual(ns: Array, chosen: Array, share: float) -> int:
    """A quantile of times, from nothing to what counts as at once."""
    if not chosen.any():
        return 0
    return int(np.clip(np.quantile(ns[chosen], share), 0, IMMEDIATE_START_NS))


def _most_used(queues: Queues) -> Array:
    """Mark the queue of each rank and device to which most work was submitted that is no communication."""
    count = np.bincount(queues.queue, ~queues.communicates, len(queues.lane))
    _, device = gather.distinct(queues.rank, queues.device)
    order = np.lexsort((count, device))
    last = np.ones(len(order), bool)
    last[:-1] = np.diff(device[order]) != 0
    result = np.zeros(len(order), bool)
    result[order[last]] = True
    return result


def _repetitions(trace: Trace, sequence: Sequence, queues: Queues, behind_record: Array) -> Array:
    """For each wait a number that it shares with others between launches of the same kernels."""
    launches = np.flatnonzero(sequence.queue >= 0)
    slot = sequence.slot[launches]
    _, work = gather.distinct(
        trace.array("name")[queues.node[slot]], queues.lane[sequence.queue[launches]]
    )
    waits = np.flatnonzero(sequence.wait >= 0)
    behind = np.searchsorted(launches, waits)  # launches before each wait
    thread = sequence.thread[launches]
    columns = []
    for step in range(-_NEIGHBOURS, _NEIGHBOURS):
        at = np.clip(behind + step, 0, len(launches) - 1)
        same = (behind + step == at) & (thread[at] == sequence.thread[waits])
        columns.append(np.where(same, work[at], -1))
    # the first, second … wait since the last launch
    nearest = np.where(behind > 0, launches[behind - 1], -1)
    since = np.arange(len(waits)) - np.searchsorted(waits, nearest)
    group = np.empty(len(waits), np.int64)
    wait = sequence.wait[waits]
    _, group[wait] = gather.distinct(*columns, since, behind_record[wait])
    return group


def _evidence(pairs: _Pairs, times: _Times, group: Array) -> Array:
    """Costs of times of each pair, over all repetitions of its wait."""
    _, code = gather.distinct(group[pairs.wait], pairs.waiting, pairs.awaited)
    count = np.bincount(code)

    def total(mask: Array) -> Array:
        return np.bincount(code, mask, len(count))[code]

    decisive = _AT_ONCE * total(times.at_once) + _TOO_EARLY * total(times.early)
    decisive = np.clip(decisive, -_MOST_EVIDENCE, _MOST_EVIDENCE)
    # what is impossible once may be possible another time, but not the reverse
    decisive = np.where(times.early, np.maximum(decisive, _TOO_EARLY), decisive)
    older = np.minimum(_OLDER * total(times.older), _MOST_OLDER)
    return decisive + older + _UNEXPLAINED * total(times.unexplained) / count[code]


# Compiled: what a stream has waited for already depends on what was decided for the waits before.
#
#   passed[w, a]: first slot of queue a for which queue w has not waited, directly or through others
@jit
def _decide(  # noqa: C901, PLR0913, PLR0917 # columns
    order: Array, rank: Array, first: Array, waiting: Array, awaited: Array, target: Array,
    source: Array, in_turn: Array, cost: Array, evidence: Array, at_once: Array,
    unexplained: Array, early: Array, first_slot: Array, communicates: Array, width: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Sources and targets of the pairs that cost least, in the order of the waits; ambiguous ones."""
    n = len(order)
    sources, targets = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    ambiguous = np.zeros(n, np.bool_)
    explained = np.zeros(len(communicates), np.bool_)
    passed = np.zeros((width, width), np.int64)
    next_communication = np.full(len(communicates) + 1, len(communicates), np.int64)
    for i in range(len(communicates) - 1, -1, -1):
        next_communication[i] = i if communicates[i] else next_communication[i + 1]
    last, next_best = -1, -1
    for wait in order:
        if last < 0 or rank[wait] != rank[last]:
            passed[:] = 0
            next_best = -1
        best, slot, second, least, more = -1, -1, -1, np.inf, np.inf
        for i in range(first[wait], first[wait + 1]):
            w, a, s = waiting[i], awaited[i], source[i]
            if in_turn[i] and not at_once[i]:
                s = max(passed[w, a], first_slot[i])
                s = next_communication[s] if s < len(communicates) else s
            total = cost[i] + evidence[i]
            if passed[w, a] > s or s > source[i]:  # another wait is the reason for its times
                total = cost[i] + max(evidence[i], 0) + _REDUNDANT
                s = min(passed[w, a] - 1, source[i]) if in_turn[i] else s
            if explained[target[i]] and unexplained[i]:
                total -= _UNEXPLAINED
            if total < least:
                best, slot, second, least, more = i, s, best, total, least
            elif total < more:
                second, more = i, total
        if best < 0 or early[best] or least > _UNLIKELY:
            continue
        w, a = waiting[best], awaited[best]
        # of two waits in a row, either may be for either of two pairs
        if next_best >= 0 and waiting[next_best] == w and awaited[next_best] == a:
            ambiguous[last] = False
        last, next_best = wait, second
        targets[wait], sources[wait] = target[best], slot
        ambiguous[wait] = more - least < _CLOSE
        explained[target[best]] |= at_once[best]
        for k in range(width):
            passed[w, k] = max(passed[w, k], passed[a, k])
        passed[w, a] = max(passed[w, a], slot + 1)
    return sources, targets, ambiguous
