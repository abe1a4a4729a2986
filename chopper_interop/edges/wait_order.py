"""Both streams of a wait, where only the order of calls and times are known.

A wait is between two streams: the one that waits, and the one that is awaited. Both are chosen among the
streams that its thread uses next, and those that it used last (`wait_streams`). What speaks for a pair of
streams:

- order: work that is launched right behind the wait, and work right before it;
- times: the waiting work started right when the awaited work ended, and could have started sooner. Work
  that started before the awaited work had ended did not wait for it (`wait_pairs`);
- repetition: the same wait in other steps and on other ranks, between launches of the same kernels, in whichever batches
  of ranks they are resolved (`wait_evidence`);
- purpose: nobody waits for what a stream has waited for already.

Each is a cost; costs add up, and the pair that costs least is chosen, of one wait after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.gather import preceding_rows
from chopper_interop.edges import wait_pairs
from chopper_interop.edges.pair_table import PairTable, empty_table, entry_of, with_pair
from chopper_interop.edges.wait_pairs import (
    AHEAD_BIT,
    AT_ONCE_BIT,
    EARLY_BIT,
    IN_TURN_BIT,
    RECORDED_BIT,
    SIDE_BIT,
    UNEXPLAINED_BIT,
    UNRECORDED_BIT,
    BatchEvidence,
    Pairs,
    QueueColumns,
    Streams,
    Totals,
    WorkColumns,
)
from chopper_interop.edges.wait_streams import Forks, Sequence, forks_of, read_sequence, streams_of
from chopper_interop.schemas.names import Role
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.edges.ordering_calls import OrderingCalls
    from chopper_interop.edges.queues import Queues

# Costs. Chosen so that one measured time outweighs any order of calls, and two steps that agree one time
# that may be chance. Their order of size is what matters.
_SIDE_TO_SIDE = 1.25
"""For a pair without the most used stream of its device: side streams fork off it, and join it."""
_REDUNDANT = 1.5
"""If the stream has waited for all that already."""
_PENDING, _MAX_PENDING = 0.2, 0.8
"""For each later collective of the stream that nothing has waited for yet, and at most: collectives are mostly
waited for one by one."""
_TOO_EARLY = 6.0
"""If the waiting work started before the awaited work had ended."""
_UNRECORDED = 1.0
"""If events are recorded, and none is known on the stream."""
_OLDER, _MAX_OLDER = 2.0, 3.0
"""If the event must be older than the last work of the stream, for the waiting work to have started; bound of the
sum over all repetitions of a wait, as a program may record events early each time."""
_AT_ONCE = -3.0
"""If the waiting work was held up, and started right at the end of the awaited work."""
_UNEXPLAINED = 1.0
"""If the waiting work was held up, and by something else."""
_MAX_EVIDENCE = 8.0
"""Bound of the sum of `_AT_ONCE` and `_TOO_EARLY` over all repetitions of a wait."""
_UNLIKELY = 7.0
"""Pairs that cost more are not chosen: what was awaited is not in the trace. Chosen: more than one contradiction."""
_JOINED_LATER = _REDUNDANT
"""If a stream waits that later joins all that were used since it did so last: one of both waits would be redundant."""
_NEVER_NS = np.iinfo(np.int64).min
"""Time of a wait that there was not."""
_CLOSE = 0.2
"""A wait is ambiguous if the next best pair costs less than that more. Chosen: such pairs differ only by how many
streams are used between."""
_CLEARLY = 3.0
"""The same for pairs of which only the order of calls speaks, as nothing held up the waiting work and the wait is
not repeated. Measured on random streams: where costs differ by less, 60 % of the chosen pairs are wrong, where
they differ by more, 30 %. Waits for or of communication are decided by the order of calls, so `_CLOSE` holds."""


class Resolved(NamedTuple):
    """Slots of the awaited and the waiting work of each wait; -1 if unknown.

    Parameters
    ----------
    ambiguous
        True if neither order nor times decide between two pairs of streams. They are used all the same: without them
        random streams had 53 instead of 135 wrong edges, and predictions were twice as far off (0.53 for 0.27 % in the mean).
    """

    source: Array
    target: Array
    ambiguous: Array


class _Costs(NamedTuple):
    """Costs of the times of pairs over all repetitions of their wait, by code of the pair.

    Parameters
    ----------
    decisive
        Cost of the waiting work's start at once behind the awaited work, or before its end.
    other
        Cost of all else that times say.
    repetitions
        How often the pair occurs.
    is_ahead
        True if an event that is not known was recorded before the wait, by another thread.
    """

    decisive: Array
    other: Array
    repetitions: Array
    is_ahead: Array


class _Joins(NamedTuple):
    """Waits of each queue that were decided last.

    Parameters
    ----------
    target, awaited
        Slot of the first work behind the last one, and queue that it is for; -1 if there was none.
    before, latest
        Time of the last wait before other work, and of the last one.
    """

    target: Array
    awaited: Array
    before: Array
    latest: Array


class _Marked(NamedTuple):
    """For each slot the first marked work from there on, in any queue, and how much there is before."""

    following: Array
    before: Array


class Waits(NamedTuple):
    """Waits of a batch of ranks of which only the order of calls is known.

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
    stated
        Queue of the stream that waits where that was recorded; else -1.
    """

    trace: Trace
    calls: OrderingCalls
    queues: Queues
    rows: Array
    stated: Array


class Evidence(NamedTuple):
    """Evidence that repetitions in all batches of ranks give of the waits of one of them.

    Parameters
    ----------
    for_older
        Mask of waits that are for no event that was recorded right before them.
    totals
        Of the pairs of each code.
    """

    for_older: Array
    totals: Totals


def resolve(waits: Waits, evidence: Evidence | None) -> Resolved:
    """Find the awaited and the waiting work of waits of which only the order of calls is known.

    A wait right behind a record is for that event, but where work starts before its end, and right behind older work::

        thread   [ copy 3 ] [ record ] [ wait ] [ kernel ]     for copy 1: memory of two layers ago is used again

    Parameters
    ----------
    waits
        The waits.
    evidence
        What their repetitions say; None to take those of these waits alone, which are all that there are.
    """
    candidates = find_candidates(waits, None if evidence is None else evidence.for_older)
    if candidates is None:
        none = np.full(len(waits.rows), -1, np.int64)
        return Resolved(none, none, none > 0)
    if evidence is not None:
        return candidates.chosen(evidence.totals)
    own = candidates.evidence
    if own.is_older.any():
        candidates = find_candidates(waits, own.is_older[own.repetitions.group]) or candidates
    return candidates.chosen(candidates.evidence.totals)


class Candidates(NamedTuple):
    """Waits of a batch with all pairs of streams that they can be between."""

    waits: Waits
    sequence: Sequence
    sides: tuple[Streams, Streams]
    work: WorkColumns
    columns: QueueColumns
    recorded: Array
    pairs: Pairs
    evidence: BatchEvidence

    def chosen(self, totals: Totals) -> Resolved:
        """Choose the pair of each wait, by what all repetitions say of the pairs of each code."""
        trace, calls, queues, rows, _ = self.waits
        ts, rank = (trace.array(column)[calls.node[rows]] for column in ("ts", "rank"))
        first_for_event = np.full(len(rows), -1, np.int64)
        is_wait = self.sequence.wait >= 0
        first_for_event[self.sequence.wait[is_wait]] = self.sequence.first_for_event[is_wait]
        chosen = _choose(
            np.lexsort((ts, rank)), rank.astype(np.int64), self.pairs, *self.sides, _costs(totals), self.work,
            self.columns, self.recorded, first_for_event, ts, forks_of(self.sequence, len(rows)), queues.submit,
        )  # fmt: skip
        return Resolved(*chosen)


def find_candidates(waits: Waits, for_older: Array | None) -> Candidates | None:
    """Find the pairs of streams that waits can be between; None if no work was launched.

    Waits of the mask `for_older` are for no event that was recorded right before them.
    """
    trace, calls, queues, rows, stated = waits
    node = calls.node[rows]
    rank_of_node, ts = trace.array("rank"), trace.array("ts")
    rank = rank_of_node[node].astype(np.int64)
    none = np.zeros(len(rows), bool)
    sequence = read_sequence(trace, calls, queues, rows, none if for_older is None else for_older)
    if not (sequence.queue >= 0).any():
        return None
    waiting, awaited = streams_of(
        sequence, len(rows), rank_of_node[sequence.node].astype(np.int64), queues.queue
    )
    behind_record = np.zeros(len(rows), bool)
    behind_record[sequence.wait[sequence.behind_record]] = True
    recorded = np.zeros(len(queues.node), bool)
    recorded[sequence.event[sequence.event >= 0]] = True
    last_event = np.maximum.accumulate(np.where(recorded, np.arange(len(recorded)), -1))
    of_records = rank_of_node[calls.node[calls.has_role(Role.RECORD)]]
    has_records = np.isin(rank, of_records)
    recorded |= ~np.isin(queues.rank[queues.queue], of_records)  # any may be
    until = _last_records(trace, calls, node)
    sides = wait_pairs.sides_of(
        queues, waiting, awaited, calls.stream[rows], stated, ts[node], until
    )
    stream, streams = wait_pairs.streams_of_ranks(trace, queues)
    work, columns = wait_pairs.work_of(queues), wait_pairs.columns_of(queues, stream)
    repetitions = wait_pairs.repetitions(trace, sequence, queues, behind_record, stream, streams)
    facts = wait_pairs.WaitFacts(
        waiting.served, awaited.event, awaited.elsewhere, last_event, behind_record, has_records,
        repetitions.group,
    )  # fmt: skip
    pairs, keys, codes, totals, older = wait_pairs.find_pairs(*sides, facts, work, columns)
    meaning = wait_pairs.meaning_of_codes(keys, codes, len(queues.lane))
    totals = Totals(*(values[: len(meaning[0])] for values in totals))
    is_older = np.bincount(repetitions.group, older, len(repetitions.nth)) > 0
    evidence = BatchEvidence(repetitions, *meaning, totals, is_older)
    return Candidates(waits, sequence, sides, work, columns, recorded, pairs, evidence)


def _last_records(trace: Trace, calls: OrderingCalls, waits: Array) -> Array:
    """Time of the last record before each wait, on any thread of its rank: the wait is for no work behind that.

    Before the first record, and where none are traced, the time of the wait itself.
    """
    rank, ts = trace.array("rank"), trace.array("ts")
    records = calls.node[calls.has_role(Role.RECORD)]
    last = preceding_rows(rank[records], ts[records], rank[waits], ts[waits])
    if not records.size:
        return ts[waits]
    return np.where(last >= 0, ts[records[last]], ts[waits])


def _costs(totals: Totals) -> _Costs:
    """Costs of times of the pairs of each code."""
    of_last = _AT_ONCE * totals.at_once + _TOO_EARLY * totals.older
    of_older = _AT_ONCE * totals.at_once_if_older + np.minimum(_OLDER * totals.older, _MAX_OLDER)
    decisive = np.minimum(of_last, of_older) + _TOO_EARLY * totals.early
    decisive = np.clip(decisive, -_MAX_EVIDENCE, _MAX_EVIDENCE)
    share = totals.unexplained / np.maximum(totals.pairs, 1)
    return _Costs(decisive, _UNEXPLAINED * share, totals.pairs, totals.ahead > 0)


# Compiled: what a stream has waited for already depends on what was decided for the waits before.
#
#   passed (w, a): first slot of queue a for which queue w has not waited, directly or through others
#
#   queue a   [ 0 ] [ 1 ] [ 2 ]                   WAIT by w for slot 1: passed (w, a) is 2 from then on
#   queue w               WAIT  [ 7 ]
#   queue v                     WAIT [ 9 ]        WAIT by v for slot 7 of w: passed (v, w) is 8, and
#                                                 passed (v, a) is 2 as well
#
#   thread   WAIT by w      WAIT by v for w  [ launch v ]   WAIT by u …   WAIT by w for u   WAIT by w    the last one is for v,
#            before (w)     latest (v)                                                                   that has forked
@jit
def _choose(  # noqa: PLR0913, PLR0917 # columns
    order: Array, rank: Array, pairs: Pairs, waiting_side: Streams, awaited_side: Streams,
    evidence: _Costs, work: WorkColumns, queues: QueueColumns, recorded: Array,
    first_for_event: Array, ts: Array, forks: Forks, submit: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Sources and targets of the pairs that cost least, in the order of the waits; ambiguous ones."""
    n = len(order)
    sources, targets = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    ambiguous = np.zeros(n, np.bool_)
    explained = np.zeros(len(work.communicates), np.bool_)
    passed = empty_table(len(queues.lane))
    last_wait = _last_waits(order, awaited_side.queue, len(queues.lane))
    collectives, events = _count_marked(work.communicates), _count_marked(recorded)
    event_waits, is_ahead = _waits_of_events(pairs, awaited_side.queue, evidence, len(queues.lane))
    none = np.full(len(queues.lane), -1, np.int64)
    never = np.full(len(none), _NEVER_NS)
    joins = _Joins(none, none.copy(), never, never.copy())
    queue_of_event = np.full(n, -1, np.int64)
    last, next_best = -1, -1
    for step in range(n):
        wait = order[step]
        known = first_for_event[wait]
        event = sources[known] if known >= 0 else -1
        event_queue = queue_of_event[known] if event >= 0 else -1
        if last < 0 or rank[wait] != rank[last]:
            next_best = -1
        best, slot, second, cheapest, next_cost = -1, -1, -1, np.inf, np.inf
        for i in range(pairs.first[wait], pairs.first[wait + 1]):
            total, s = _cost_of_pair(
                i, wait, pairs, waiting_side, awaited_side, evidence, passed, explained, collectives,
                events, event_waits, is_ahead, queues.first, joins, event_queue, event, work, forks, submit,
            )  # fmt: skip
            if total < cheapest:
                best, slot, second, cheapest, next_cost = i, s, best, total, cheapest
            elif total < next_cost:
                second, next_cost = i, total
        if best < 0 or pairs.flags[best] & EARLY_BIT or cheapest > _UNLIKELY:
            continue
        target = waiting_side.slot[wait, pairs.waiting[best]]
        w = waiting_side.queue[wait, pairs.waiting[best]]
        a = awaited_side.queue[wait, pairs.awaited[best]]
        # of two waits in a row, either may be for either of two pairs
        if (
            next_best >= 0
            and waiting_side.queue[last, pairs.waiting[next_best]] == w
            and awaited_side.queue[last, pairs.awaited[next_best]] == a
        ):
            ambiguous[last] = False
        last, next_best = wait, second
        targets[wait], sources[wait] = target, slot
        queue_of_event[wait] = a
        if joins.target[w] != target:
            joins.target[w], joins.before[w] = target, joins.latest[w]
        joins.latest[w], joins.awaited[w] = ts[wait], a
        # work that nothing held up says nothing of what it waited for, if it is not repeated either
        held = (pairs.flags[best] & (AT_ONCE_BIT | UNEXPLAINED_BIT)) != 0
        seen = held or work.communicates[target] or work.communicates[slot]
        seen = seen or evidence.repetitions[pairs.code[best]] > 1
        ambiguous[wait] = next_cost - cheapest < (_CLOSE if seen else _CLEARLY)
        explained[target] |= (pairs.flags[best] & AT_ONCE_BIT) != 0
        passed = _pass_on(passed, w, a, last_wait, step)
        if last_wait[a] > step:
            passed = with_pair(passed, w, a, slot + 1, 0)
    return sources, targets, ambiguous


# Compiled: called for each pair by the loop above.
#
#   awaited queue of collectives, in turn   [ 3 ] [ 4 ] [ 5 ]     passed 4: the wait is for 4, and 5 is pending
#
#   awaited queue of a loader that is       [ 1 ] e [ 2 ] e [ 3 ] e    one event (e) for each wait: the first wait
#   steps ahead                                                        is for 1, though 3 is the newest
#
#   thread   [ launch a ] [ record ] [ WAIT by b ] [ launch b ] [ WAIT by c ] [ launch c ]    the second is for the same
#                                                                             event, so of a as well
@jit_in_place
def _cost_of_pair(  # noqa: PLR0913, PLR0917 # columns
    i: int, wait: int, pairs: Pairs, waiting_side: Streams, awaited_side: Streams, evidence: _Costs,
    passed: PairTable, explained: Array, collectives: _Marked, events: _Marked,
    event_waits: Array, is_ahead: Array, first_slot: Array, joins: _Joins, event_queue: int,
    event: int, work: WorkColumns, forks: Forks, submit: Array,
) -> tuple[float, int]:  # fmt: skip
    """Cost of pair i for a wait, and the slot of the awaited work."""
    k, j, flags = pairs.waiting[i], pairs.awaited[i], pairs.flags[i]
    newest, target = np.int64(pairs.source[i]), waiting_side.slot[wait, k]
    w, a = waiting_side.queue[wait, k], awaited_side.queue[wait, j]
    entry = entry_of(passed, w, a)
    behind = passed.slot[entry] if entry >= 0 else 0
    cost = waiting_side.cost[wait, k] + awaited_side.cost[wait, j]
    cost += _UNRECORDED * ((flags & UNRECORDED_BIT) != 0)
    is_of_event = a == event_queue and work.end[event] <= work.start[target]
    if is_of_event:
        cost = waiting_side.cost[wait, k]
    elif _has_forked(w, a, target, forks.joined_by[wait], joins):
        cost -= awaited_side.crossed[wait, j]
    elif w == forks.joined_by[wait]:
        cost += _JOINED_LATER * (submit[newest] > forks.since[wait])
    works = collectives.following[newest] > newest and collectives.following[target] > target
    cost += _SIDE_TO_SIDE * _is_between_sides(w, a, forks.joined_by[wait], works, flags)
    times = evidence.decisive[pairs.code[i]]
    # what is impossible once may be possible another time, but not the reverse
    if flags & EARLY_BIT:
        times = max(times, _TOO_EARLY)
    times += evidence.other[pairs.code[i]]
    in_turn = (flags & IN_TURN_BIT) != 0
    slot = newest
    if in_turn and not flags & AT_ONCE_BIT:
        slot = collectives.following[max(behind, first_slot[a])]
        pending = collectives.before[newest + 1] - collectives.before[min(slot, newest) + 1]
        cost += min(_PENDING * pending, _MAX_PENDING)
    # of two events or more for a wait any may be meant
    of_stream = events.before[first_slot[a + 1]] - events.before[first_slot[a]]
    before = flags & RECORDED_BIT or (flags & AHEAD_BIT and is_ahead[a])
    if before and not flags & AT_ONCE_BIT and of_stream < 2 * event_waits[a]:
        slot = min(events.following[max(behind, first_slot[a])], newest)
    total = cost + times
    if is_of_event:
        slot = newest = event
    if behind > slot or slot > newest:  # another wait is the reason for its times
        total = cost + max(times, 0) + _REDUNDANT
        slot = min(behind - 1, newest) if in_turn else slot
    if explained[target] and flags & UNEXPLAINED_BIT:
        total -= _UNEXPLAINED
    return total, slot


# Compiled: called for each pair by the function above. Two streams of which the one forked off the other, joined or not:
#
#   thread   [ launch w ]  WAIT by a  [ launch a ]  …  WAIT by w for a  [ launch w ]
@jit_in_place
def _has_forked(w: int, a: int, target: int, hub: int, joins: _Joins) -> bool:
    """True if queue a has forked off w, which joins streams with this wait; or if w forks off the hub that joins all."""
    joined = (
        joins.target[w] == target and joins.awaited[a] == w and joins.latest[a] > joins.before[w]
    )
    return joined or a == hub


# Compiled: called for each pair.
@jit_in_place
def _is_between_sides(w: int, a: int, hub: int, works: bool, flags: int) -> bool:  # noqa: FBT001
    """True for a pair without the stream from which others fork off, by order or else the most used one; `works` computes."""
    is_side = (flags & SIDE_BIT) != 0
    if hub >= 0:
        is_side |= works and hub not in (w, a)
    return is_side


# Compiled: called by the loop above.
@jit
def _count_marked(marked: Array) -> _Marked:
    """Find the next marked work from each slot on, and count what is before; of the end as well."""
    n = len(marked)
    following, before = np.full(n + 1, n, np.int64), np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        following[i] = i if marked[i] else following[i + 1]
    for i in range(n):
        before[i + 1] = before[i] + marked[i]
    return _Marked(following, before)


# Compiled: called by the loop above.
@jit
def _waits_of_events(
    pairs: Pairs, awaited: Array, evidence: _Costs, queues: int
) -> tuple[Array, Array]:  # fmt: skip
    """Number of waits that can be for an event that was recorded before on each queue; if one surely is, of those not known."""
    result, counted = np.zeros(queues, np.int64), np.full(queues, -1, np.int64)
    is_ahead = np.zeros(queues, np.bool_)
    for wait in range(len(awaited)):
        for i in range(pairs.first[wait], pairs.first[wait + 1]):
            a = awaited[wait, pairs.awaited[i]]
            if pairs.flags[i] & (RECORDED_BIT | AHEAD_BIT) and counted[a] < wait:
                counted[a] = wait
                result[a] += 1
            is_ahead[a] |= evidence.is_ahead[pairs.code[i]]
    return result, is_ahead


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
