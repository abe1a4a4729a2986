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

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.edges.ordering_calls import NO_HANDLE
from chopper_interop.edges.pair_table import (
    empty_table,
    enlarged_places,
    entry_of,
    place_of,
    with_pair,
)
from chopper_interop.edges.queues import NEVER_TOO_LATE, last_ended
from chopper_interop.edges.wait_streams import read_sequence, streams_of
from chopper_interop.schemas.names import Role

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.edges.ordering_calls import OrderingCalls
    from chopper_interop.edges.pair_table import PairTable
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
_PENDING, _MAX_PENDING = 0.2, 0.8
"""For each later collective of the stream that nothing has waited for yet: collectives are mostly waited for one by one."""
_TOO_EARLY = 6.0
"""If the waiting work started before the awaited work had ended."""
_OLDER = 2.0
"""If the event must be older than the last work of the stream, for the waiting work to have started."""
_UNRECORDED = 1.0
"""If events are recorded, and none is known on the stream."""
_MAX_OLDER = 3.0
"""Bound of the sum of that over all repetitions: a program may record events early each time."""
_AT_ONCE = -3.0
"""If the waiting work was held up, and started right at the end of the awaited work."""
_UNEXPLAINED = 1.0
"""If the waiting work was held up, and by something else."""
_MAX_EVIDENCE = 8.0
"""Bound of the sum of both over all repetitions of a wait."""
_UNLIKELY = 7.0
"""Pairs that cost more are not taken: what was awaited is not in the trace. Chosen: more than one contradiction."""
_CLOSE = 0.2
"""Pairs whose costs differ by less are not decided: they differ by how many streams are used between."""

_CLEARLY = 3.0
"""The same where only the order of calls speaks, but for communication, which it decides. Measured: of such pairs of random streams with smaller differences 60 % are
wrong, with larger ones 30 %."""


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


class _Streams(NamedTuple):
    """Streams on one side of each wait: a row for each wait, a column for each stream.

    Parameters
    ----------
    queue
        The queue; -1 for none.
    slot
        Of streams that may wait, the first work behind the wait; of awaited ones the last before it. -1
        for none.
    cost
        What the order of calls says against the stream.
    """

    queue: Array
    slot: Array
    cost: Array


class _Pairs(NamedTuple):
    """Pairs of streams that are possible for each wait: a row for each pair, ordered by wait.

    Rows are many, up to 36 for each wait: so their columns are as narrow as can be.

    Parameters
    ----------
    first
        Wait i has the pairs ``first[i]:first[i + 1]``.
    waiting, awaited
        Columns of both streams on their sides.
    source
        Slot of the last work before the event.
    flags
        The `_…_BIT` values below that hold.
    code
        Number of the pair's queues among those of the repetitions of its wait.
    """

    first: Array
    waiting: Array
    awaited: Array
    source: Array
    flags: Array
    code: Array


_AT_ONCE_BIT = 1
"""The target was held up, and started right at the end of the source."""
_UNEXPLAINED_BIT = 2
"""It was held up, and not by the source."""
_EARLY_BIT = 4
"""It started before the source had ended."""
_IN_TURN_BIT = 8
"""The source is the last of several collectives for which the wait can be."""
_UNRECORDED_BIT = 16
"""Events are recorded, and none is known on the stream."""
_SIDE_BIT = 32
"""Neither stream is the most used one of its device."""


class _Totals(NamedTuple):
    """Over all repetitions of a wait, how many there are of each pair, and how often times speak for or against it."""

    pairs: Array
    at_once: Array
    unexplained: Array
    early: Array
    older: Array


class _WaitFacts(NamedTuple):
    """Facts about each wait: see `Side` and `streams_of`.

    Parameters
    ----------
    served, event
        For each of the streams on the waiting and the awaited side.
    behind_record
        True right behind a record.
    has_records
        True if records of events are known.
    group
        Number that a wait shares with its repetitions.
    """

    served: Array
    event: Array
    behind_record: Array
    has_records: Array
    group: Array


class _Queues(NamedTuple):
    """Queues, as compiled loops take them: their first slots, where they are, and the most used ones of devices."""

    first: Array
    lane: Array
    device: Array
    is_hub: Array


class _Evidence(NamedTuple):
    """Costs of times over all repetitions, by code of a pair: what times decide, what else they say; if there are any."""

    decisive: Array
    other: Array
    is_repeated: Array


class _Collectives(NamedTuple):
    """Of each slot the first communication from there on, in any queue, and how many there are before."""

    following: Array
    before: Array


class _Work(NamedTuple):
    """GPU work by slot, as compiled loops take it: see `Queues` and `_freedom`."""

    start: Array
    end: Array
    communicates: Array
    free: Array
    held: Array
    ended_sooner: Array
    jump: Array


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
    one, other = _sides(queues, waiting, awaited, calls.stream[rows], ts[node])
    work = _Work(
        queues.start, queues.end, queues.communicates, *_freedom(queues), *queues.jumps
    )  # fmt: skip
    waits = _WaitFacts(
        waiting.served, awaited.event, behind_record, has_records,
        _repetitions(trace, sequence, queues, behind_record),
    )  # fmt: skip
    columns = _Queues(queues.first, queues.lane, queues.device, _hubs(queues))
    pairs, totals = _pairs(one, other, waits, work, columns)
    order = np.lexsort((ts[node], rank[node]))
    chosen = _decide(order, rank[node], pairs, one, other, _evidence(totals), work, columns)
    return Resolved(*chosen)


def _sides(
    queues: Queues, waiting: Side, awaited: Side, handle: Array, ts: Array
) -> tuple[_Streams, _Streams]:
    """Streams with their work on either side of each wait.

    A wait that names its stream by a `handle` is for no other.
    """
    named = queues.handle[waiting.queue]
    unlike = (handle[:, None] != NO_HANDLE) & (named != NO_HANDLE) & (named != handle[:, None])
    one = np.where(unlike, -1, waiting.queue)
    times = np.broadcast_to(ts[:, None], one.shape)
    target, last = np.full((2, *one.shape), -1, np.int64)
    used = one >= 0
    target[used] = queues.first_submitted_since(one[used], times[used])
    used = awaited.queue >= 0
    last[used] = queues.last_submitted(awaited.queue[used], times[used])
    return _Streams(one, target, waiting.cost), _Streams(awaited.queue, last, awaited.cost)


# Compiled: up to 36 pairs for each wait, of which only what is needed later is kept. Wait i, between
# launches of a thread, with the columns of both sides:
#
#     launches   c   b   a | WAIT i | d   e
#     awaited    2   1   0          |             column j: the stream that was used last is nearest
#     waiting              |        | 0   1       column k: the stream that is used next is nearest
#
#     row of (k, j) for all k, and for each all j: first[i] <= row < first[i + 1]
@jit
def _pairs(
    one: _Streams, other: _Streams, waits: _WaitFacts, work: _Work, queues: _Queues
) -> tuple[_Pairs, _Totals]:
    """Pairs of streams of one device with work on both sides, and their times over all repetitions."""
    n, width = one.queue.shape
    size = _count_possible(one, other, queues)
    first = np.zeros(n + 1, np.int64)
    waiting, awaited = np.zeros(size, np.int8), np.zeros(size, np.int8)
    source, flags = np.zeros(size, np.int32), np.zeros(size, np.uint8)
    code = np.zeros(size, np.int32)
    keys, codes = np.full(1024, -1, np.int64), np.zeros(1024, np.int64)
    totals = np.zeros((5, 256), np.int64)
    known, at = 0, 0
    for i in range(n):
        for k in range(width):
            for j in range(width):
                if not _is_possible(one, other, queues, i, k, j):
                    continue
                slot, bits, is_older = _times_of_pair(one, other, waits, work, queues, i, k, j)
                if slot < 0:
                    continue
                w, a = one.queue[i, k], other.queue[i, j]
                key = (waits.group[i] * len(queues.lane) + w) * len(queues.lane) + a
                keys, codes, totals, number = _numbered(keys, codes, totals, known, key)
                known = max(known, number + 1)
                totals[0, number] += 1
                totals[1, number] += (bits & _AT_ONCE_BIT) != 0
                totals[2, number] += (bits & _UNEXPLAINED_BIT) != 0
                totals[3, number] += (bits & _EARLY_BIT) != 0
                totals[4, number] += is_older
                waiting[at], awaited[at], source[at], code[at] = k, j, slot, number
                flags[at] = bits
                at += 1
        first[i + 1] = at
    return (
        _Pairs(first, waiting, awaited, source, flags, code),
        _Totals(totals[0], totals[1], totals[2], totals[3], totals[4]),
    )


# Compiled: called by the loop above.
@jit
def _count_possible(one: _Streams, other: _Streams, queues: _Queues) -> int:
    """How many pairs of streams are possible for all waits together."""
    n, width = one.queue.shape
    count = 0
    for i in range(n):
        for k in range(width):
            for j in range(width):
                count += _is_possible(one, other, queues, i, k, j)
    return count


# Compiled: called by the loops above.
@jit_in_place
def _is_possible(one: _Streams, other: _Streams, queues: _Queues, i: int, k: int, j: int) -> bool:
    """True if both are streams of one device with work on both sides of the wait."""
    w, a = one.queue[i, k], other.queue[i, j]
    if one.slot[i, k] < 0 or other.slot[i, j] < 0:
        return False
    return queues.lane[w] != queues.lane[a] and queues.device[w] == queues.device[a]


# Compiled: called for each pair.
#
#   awaited stream   [ event ]  [ newest  ]
#   waiting stream              |         [ target ]     at once: at the end of what was awaited, later than
#                               free                     it was free to start
@jit_in_place
def _times_of_pair(  # noqa: PLR0913, PLR0917 # columns
    one: _Streams, other: _Streams, waits: _WaitFacts, work: _Work, queues: _Queues, i: int, k: int, j: int,
) -> tuple[int, int, bool]:  # fmt: skip
    """Slot of the awaited work, or -1; bits of what times say; true if the event must be older than that stream's last work.

    Where events are recorded, that of a wait is of the moment, or it was recorded before and not waited
    for; else it may be any of which the work had ended when the waiting work started.
    """
    w, a = one.queue[i, k], other.queue[i, j]
    target, last, event = one.slot[i, k], other.slot[i, j], waits.event[i, j]
    low = queues.first[a]
    newest = last_ended(low, work.end, work.ended_sooner, work.jump, last, NEVER_TOO_LATE)
    in_turn = work.communicates[newest] and not waits.behind_record[i]
    exact = waits.has_records[i] and not in_turn
    slot = newest if waits.behind_record[i] or event < 0 else event
    if not exact:
        slot = last_ended(
            low, work.end, work.ended_sooner, work.jump, last, work.start[target]
        )  # fmt: skip
    if slot < 0:
        return -1, 0, False
    gap = work.start[target] - work.end[slot]
    at_once = work.held[target] and work.end[slot] > work.free[target]
    at_once = at_once and not waits.served[i, k] and 0 <= gap <= IMMEDIATE_START_NS
    side = not queues.is_hub[w] and not queues.is_hub[a]
    side = side and not (work.communicates[newest] or work.communicates[target])
    bits = (
        at_once * _AT_ONCE_BIT
        + (work.held[target] and not at_once) * _UNEXPLAINED_BIT
        + (gap < 0) * _EARLY_BIT
        + in_turn * _IN_TURN_BIT
        + (exact and not waits.behind_record[i] and event < 0) * _UNRECORDED_BIT
        + side * _SIDE_BIT
    )
    is_older = not exact and not in_turn and work.end[last] > work.start[target]
    return slot, bits, is_older


# Compiled: called for each pair.
@jit
def _numbered(
    keys: Array, codes: Array, totals: Array, known: int, key: int
) -> tuple[Array, Array, Array, int]:
    """Number of a key, `known` if it is new; and the tables, enlarged if they were full."""
    place = place_of(keys, key)
    if keys[place] >= 0:
        return keys, codes, totals, codes[place]
    if known == totals.shape[1]:
        keys, codes = enlarged_places(keys, codes)
        place = place_of(keys, key)
        larger = np.zeros((5, 2 * known), np.int64)
        larger[:, :known] = totals
        totals = larger
    keys[place], codes[place] = key, known
    return keys, codes, totals, known


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


def _hubs(queues: Queues) -> Array:
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


def _evidence(totals: _Totals) -> _Evidence:
    """Costs of times of the pairs of each code."""
    decisive = _AT_ONCE * totals.at_once + _TOO_EARLY * totals.early
    decisive = np.clip(decisive, -_MAX_EVIDENCE, _MAX_EVIDENCE)
    older = np.minimum(_OLDER * totals.older, _MAX_OLDER)
    share = totals.unexplained / np.maximum(totals.pairs, 1)
    return _Evidence(decisive, older + _UNEXPLAINED * share, totals.pairs > 1)


# Compiled: what a stream has waited for already depends on what was decided for the waits before.
#
#   passed (w, a): first slot of queue a for which queue w has not waited, directly or through others
#
#   queue a   [ 0 ] [ 1 ] [ 2 ]                   WAIT by w for slot 1: passed (w, a) is 2 from then on
#   queue w               WAIT  [ 7 ]
#   queue v                     WAIT [ 9 ]        WAIT by v for slot 7 of w: passed (v, w) is 8, and
#                                                 passed (v, a) is 2 as well
@jit
def _decide(  # noqa: PLR0913, PLR0917 # columns
    order: Array, rank: Array, pairs: _Pairs, one: _Streams, other: _Streams, evidence: _Evidence,
    work: _Work, queues: _Queues,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Sources and targets of the pairs that cost least, in the order of the waits; ambiguous ones."""
    n = len(order)
    sources, targets = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    ambiguous = np.zeros(n, np.bool_)
    explained = np.zeros(len(work.communicates), np.bool_)
    passed = empty_table(len(queues.lane))
    last_wait = _last_waits(order, other.queue, len(queues.lane))
    collectives = _collectives(work.communicates)
    last, next_best = -1, -1
    for step in range(n):
        wait = order[step]
        if last < 0 or rank[wait] != rank[last]:
            next_best = -1
        best, slot, second, cheapest, next_cost = -1, -1, -1, np.inf, np.inf
        for i in range(pairs.first[wait], pairs.first[wait + 1]):
            total, s = _cost_of_pair(
                i, wait, pairs, one, other, evidence, passed, explained, collectives, queues.first
            )  # fmt: skip
            if total < cheapest:
                best, slot, second, cheapest, next_cost = i, s, best, total, cheapest
            elif total < next_cost:
                second, next_cost = i, total
        if best < 0 or pairs.flags[best] & _EARLY_BIT or cheapest > _UNLIKELY:
            continue
        target = one.slot[wait, pairs.waiting[best]]
        w, a = one.queue[wait, pairs.waiting[best]], other.queue[wait, pairs.awaited[best]]
        # of two waits in a row, either may be for either of two pairs
        if (
            next_best >= 0
            and one.queue[last, pairs.waiting[next_best]] == w
            and other.queue[last, pairs.awaited[next_best]] == a
        ):
            ambiguous[last] = False
        last, next_best = wait, second
        targets[wait], sources[wait] = target, slot
        # work that nothing held up says nothing of what it waited for, if it is not repeated either
        held = (pairs.flags[best] & (_AT_ONCE_BIT | _UNEXPLAINED_BIT)) != 0
        seen = held or work.communicates[target] or work.communicates[slot]
        seen = seen or evidence.is_repeated[pairs.code[best]]
        ambiguous[wait] = next_cost - cheapest < (_CLOSE if seen else _CLEARLY)
        explained[target] |= (pairs.flags[best] & _AT_ONCE_BIT) != 0
        passed = _pass_on(passed, w, a, last_wait, step)
        if last_wait[a] > step:
            passed = with_pair(passed, w, a, slot + 1, 0)
    return sources, targets, ambiguous


# Compiled: called for each pair by the loop above.
#
#   awaited queue of collectives, in turn   [ 3 ] [ 4 ] [ 5 ]     passed 4: the wait is for 4, and 5 is pending
@jit_in_place
def _cost_of_pair(  # noqa: PLR0913, PLR0917 # columns
    i: int, wait: int, pairs: _Pairs, one: _Streams, other: _Streams, evidence: _Evidence,
    passed: PairTable, explained: Array, collectives: _Collectives, first_slot: Array,
) -> tuple[float, int]:  # fmt: skip
    """Cost of pair i for a wait, and the slot of the awaited work."""
    k, j, flags, newest = (
        pairs.waiting[i],
        pairs.awaited[i],
        pairs.flags[i],
        np.int64(pairs.source[i]),
    )
    w, a = one.queue[wait, k], other.queue[wait, j]
    entry = entry_of(passed, w, a)
    behind = passed.slot[entry] if entry >= 0 else 0
    cost = one.cost[wait, k] + other.cost[wait, j]
    cost += _UNRECORDED * ((flags & _UNRECORDED_BIT) != 0)
    cost += _SIDE_TO_SIDE * ((flags & _SIDE_BIT) != 0)
    times = evidence.decisive[pairs.code[i]]
    # what is impossible once may be possible another time, but not the reverse
    if flags & _EARLY_BIT:
        times = max(times, _TOO_EARLY)
    times += evidence.other[pairs.code[i]]
    in_turn = (flags & _IN_TURN_BIT) != 0
    slot = newest
    if in_turn and not flags & _AT_ONCE_BIT:
        slot = collectives.following[max(behind, first_slot[a])]
        pending = collectives.before[newest + 1] - collectives.before[min(slot, newest) + 1]
        cost += min(_PENDING * pending, _MAX_PENDING)
    total = cost + times
    if behind > slot or slot > newest:  # another wait is the reason for its times
        total = cost + max(times, 0) + _REDUNDANT
        slot = min(behind - 1, newest) if in_turn else slot
    if explained[one.slot[wait, k]] and flags & _UNEXPLAINED_BIT:
        total -= _UNEXPLAINED
    return total, slot


# Compiled: called by the loop above.
@jit
def _collectives(communicates: Array) -> _Collectives:
    """Find the next communication from each slot on, and count those before; of the end as well."""
    n = len(communicates)
    following, before = np.full(n + 1, n, np.int64), np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        following[i] = i if communicates[i] else following[i + 1]
    for i in range(n):
        before[i + 1] = before[i] + communicates[i]
    return _Collectives(following, before)


# Compiled: called by the loop above.
@jit
def _last_waits(order: Array, awaited: Array, queues: int) -> Array:
    """Position in `order` of the last wait for which each queue may be awaited; -1 if none."""
    result = np.full(queues, -1, np.int64)
    for step in range(len(order)):
        for queue in awaited[order[step]]:
            if queue >= 0:
                result[queue] = step
    return result


# Compiled: called by the loop above. Without the queues that no later wait asks for, rows stay short.
@jit
def _pass_on(passed: PairTable, w: int, a: int, last_wait: Array, step: int) -> PairTable:
    """Let queue w have waited for all that queue a has waited for; drop queues that are not asked for again."""
    before, entry = -1, passed.head[a]
    while entry >= 0:
        following = passed.following[entry]
        if last_wait[passed.other[entry]] > step:
            passed = with_pair(passed, w, passed.other[entry], passed.slot[entry], 0)
            before = entry
        elif before >= 0:
            passed.following[before] = following
        else:
            passed.head[a] = following
        entry = following
    return passed
