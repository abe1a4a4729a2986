"""Pairs of streams that a wait can be between, and what the times of their work say about each.

A pair is possible if both streams are of one device and have work on their side of the wait. Times speak
for it if the waiting work started right when the awaited work ended, and could have started sooner; against
it if it started before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.sorted_groups import sorted_groups
from chopper_interop.edges.ordering_calls import NO_HANDLE
from chopper_interop.edges.pair_table import enlarged_places, place_of
from chopper_interop.edges.queues import NEVER_TOO_LATE, Queues, last_ended
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.edges.wait_streams import Sequence, Side

IMMEDIATE_START_NS = 20_000
"""Work that could have started earlier, and started so soon after the end of work elsewhere, waited
for that work. Chosen: an event reaches a waiting queue within some microseconds; a larger bound would
take chance neighbours for dependencies."""
HELD_NS = 3_000
"""Work that started so much later than it could have was held up. Chosen: starts vary by less."""
_NEIGHBOURS = 3
"""Launches before and behind a wait that are the same where it is repeated. Chosen: fewer are alike by chance."""

AT_ONCE_BIT = 1
"""The target was held up, and started right at the end of the source."""
UNEXPLAINED_BIT = 2
"""It was held up, and not by the source."""
EARLY_BIT = 4
"""It started before the source had ended."""
IN_TURN_BIT = 8
"""The source is the last of several collectives for which the wait can be."""
UNRECORDED_BIT = 16
"""Events are recorded, and none is known on the stream."""
SIDE_BIT = 32
"""Neither stream is the most used one of its device."""

RECORDED_BIT = 64
"""The event was recorded before, and is not of the moment of the wait."""
AHEAD_BIT = 128
"""No events are known, and another thread launches on the awaited stream, which may be several steps ahead."""


class Streams(NamedTuple):
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
    crossed
        The part of it for groups of waits between.
    """

    queue: Array
    slot: Array
    cost: Array
    crossed: Array


class Pairs(NamedTuple):
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
        Sum of the bits above that hold.
    code
        Number of the pair's queues among those of the repetitions of its wait.
    """

    first: Array
    waiting: Array
    awaited: Array
    source: Array
    flags: Array
    code: Array


class Totals(NamedTuple):
    """Over all repetitions of a wait, by code.

    A program records an event at one place, so that all repetitions wait for work as many launches before their last work::

        awaited   [ a ] [ b ] [ c ]                  first time: one launch before c, or more
        waiting               [ target ]
        awaited   [ a ] [ b ] [ c ]                  second time: if c was awaited here, it was there as well
        waiting                     [ target ]

    Parameters
    ----------
    pairs, unexplained, early
        How many pairs there are, and for how many a bit holds.
    older, ahead
        How many times the event must be older than the last work, launched by the thread that waits or by another one.
    skipped
        By how many launches it must be older at most.
    at_once, at_once_if_older
        How many targets started at once behind the last work, and behind work that is older by `skipped` launches.
    """

    pairs: Array
    unexplained: Array
    early: Array
    older: Array
    skipped: Array
    at_once: Array
    at_once_if_older: Array
    ahead: Array


class Repetitions(NamedTuple):
    """Waits between launches of the same kernels, which are repetitions of one.

    Parameters
    ----------
    group
        Number that a wait shares with its repetitions.
    around
        For each group the numbers of the work that is launched before and behind it, -1 for none: a column for each launch.
    nth, is_behind_record
        The place of its waits among those behind the last launch, and whether they are right behind a record.
    names, of_streams
        Of each number of work its name and the number of its stream.
    streams
        Of each number of a stream the number and the handle that its source has for it.
    """

    group: Array
    around: tuple[Array, ...]
    nth: Array
    is_behind_record: Array
    names: Array
    of_streams: Array
    streams: tuple[Array, Array]


class BatchEvidence(NamedTuple):
    """Evidence that the waits of a batch give.

    Parameters
    ----------
    repetitions
        Waits that are repeated.
    group, waiting, awaited
        For each code of pairs the number of the repeated wait, and of both streams.
    totals
        Sums over the pairs of each code.
    is_older
        True for repeated waits that surely are not for the event that was recorded right before them.
    """

    repetitions: Repetitions
    group: Array
    waiting: Array
    awaited: Array
    totals: Totals
    is_older: Array


class WaitFacts(NamedTuple):
    """Facts about each wait: see `Side` and `streams_of`.

    Parameters
    ----------
    served, event, elsewhere
        For each of the streams on the waiting side, and of those on the awaited side.
    last_event
        For each slot the last from there back, in any queue, before an event that may be waited for later; -1 for none.
    behind_record
        True right behind a record.
    has_records
        True if records of events are known.
    group
        Number that a wait shares with its repetitions.
    """

    served: Array
    event: Array
    elsewhere: Array
    last_event: Array
    behind_record: Array
    has_records: Array
    group: Array


class QueueColumns(NamedTuple):
    """Queues, as compiled loops take them: first slots, places, the most used ones of devices, streams on all ranks."""

    first: Array
    lane: Array
    device: Array
    is_hub: Array
    stream: Array


class WorkColumns(NamedTuple):
    """GPU work by slot, as compiled loops take it: see `Queues` and `_freedom`."""

    start: Array
    end: Array
    communicates: Array
    free: Array
    held: Array
    ended_sooner: Array
    jump: Array


def work_of(queues: Queues) -> WorkColumns:
    """Columns of GPU work that compiled loops take."""
    return WorkColumns(
        queues.start, queues.end, queues.communicates, *_freedom(queues), *queues.jumps
    )


def columns_of(queues: Queues, stream: Array) -> QueueColumns:
    """Columns of queues that compiled loops take, with the number of the stream of each."""
    return QueueColumns(queues.first, queues.lane, queues.device, _hubs(queues), stream)


def streams_of_ranks(trace: Trace, queues: Queues) -> tuple[Array, tuple[Array, Array]]:
    """A number of each queue that those of one stream have in common, on whichever rank and device; what it stands for."""
    columns = trace.array("number", "lanes")[queues.lane], queues.handle
    first, stream = gather.distinct(*columns)
    return stream, (columns[0][first], columns[1][first])


def _freedom(queues: Queues) -> tuple[Array, Array]:
    """Time at which each piece of work could have started, by its launch and its stream; if it was held.

    A launch takes a while to reach the GPU, and work does not start right behind the work before it:
    both as long as usual on its rank.
    """
    previous_end = np.concatenate([[0], queues.end[:-1]])
    behind = np.ones(len(queues.end), bool)
    behind[queues.first[:-1][np.diff(queues.first) > 0]] = False
    alone = ~behind | (previous_end < queues.submit)
    launched = queues.call >= 0
    rank = queues.rank_number
    latency = _usual(queues.start - queues.submit, alone & launched, 0.1, rank)
    arrives = queues.submit + latency
    gap = _usual(queues.start - previous_end, behind & (previous_end > arrives), 0.5, rank)
    free = np.where(behind, np.maximum(arrives, previous_end + gap), arrives)
    return free, queues.start - free > HELD_NS


def _usual(ns: Array, chosen: Array, share: float, rank: Array) -> Array | int:
    """A quantile of the times of each rank, from nothing to what counts as at once, for all work or for each piece."""
    if not chosen.any():
        return 0
    ranks = int(rank.max()) + 1
    if ranks == 1:
        usual = quantile(ns[chosen].astype(np.float64), share)  # of integers it may overflow
        return int(np.clip(usual, 0, IMMEDIATE_START_NS))
    of_ranks = sorted_groups([(rank[chosen], ns[chosen])], ranks).linear_quantile(share)
    return np.clip(of_ranks, 0, IMMEDIATE_START_NS).astype(np.int64)[rank]


def quantile(values: Array, share: float) -> float:
    """Quantile of numbers, between two of them in proportion: `numpy.quantile`, which imports masked arrays for it."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    ordered = np.partition(values, (low, high))
    below, above, weight = float(ordered[low]), float(ordered[high]), place - low
    step = above - below
    return below + step * weight if weight < 0.5 else above - step * (1 - weight)  # noqa: PLR2004 # the nearer one


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


def sides_of(  # noqa: PLR0913, PLR0917 # columns
    queues: Queues, waiting: Side, awaited: Side, handle: Array, stated: Array, ts: Array,
    until: Array,
) -> tuple[Streams, Streams]:  # fmt: skip
    """Streams with their work on either side of each wait, at `ts`, for an event of not later than `until`.

    A wait that names its stream by a `handle`, or of which the `stated` queue was recorded, is for no other.
    """
    named = queues.handle[waiting.queue]
    unlike = (handle[:, None] != NO_HANDLE) & (named != NO_HANDLE) & (named != handle[:, None])
    unlike |= (stated[:, None] >= 0) & (waiting.queue != stated[:, None])
    queue = np.where(unlike, -1, waiting.queue)
    times = np.broadcast_to(ts[:, None], queue.shape)
    target, last = np.full((2, *queue.shape), -1, np.int64)
    used = queue >= 0
    target[used] = queues.first_submitted_since(queue[used], times[used])
    used, times = awaited.queue >= 0, np.broadcast_to(until[:, None], queue.shape)
    last[used] = queues.last_submitted(awaited.queue[used], times[used])
    return (
        Streams(queue, target, waiting.cost, waiting.crossed),
        Streams(awaited.queue, last, awaited.cost, awaited.crossed),
    )


def repetitions(
    trace: Trace, sequence: Sequence, queues: Queues, behind_record: Array, stream: Array,
    streams: tuple[Array, Array],
) -> Repetitions:  # fmt: skip
    """Number waits by the kernels that are launched around them; streams as `streams_of_ranks` has them."""
    launches = np.flatnonzero(sequence.queue >= 0)
    slot = sequence.slot[launches]
    name, of_stream = trace.array("name")[queues.node[slot]], stream[sequence.queue[launches]]
    of_work, work = gather.distinct(name, of_stream)
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
    is_behind = behind_record[wait]
    first, group[wait] = gather.distinct(*columns, since, is_behind)
    around = tuple(column[first] for column in columns)
    names, of_streams = name[of_work], of_stream[of_work]
    return Repetitions(group, around, since[first], is_behind[first], names, of_streams, streams)


# Compiled: up to 36 pairs for each wait, of which only what is needed later is kept. Wait i, between
# launches of a thread, with the columns of both sides:
#
#     launches   c   b   a | WAIT i | d   e
#     awaited    2   1   0          |             column j: the stream that was used last is nearest
#     waiting              |        | 0   1       column k: the stream that is used next is nearest
#
#     row of (k, j) for all k, and for each all j: first[i] <= row < first[i + 1]
@jit
def find_pairs(
    waiting_side: Streams,
    awaited_side: Streams,
    waits: WaitFacts,
    work: WorkColumns,
    queues: QueueColumns,
) -> tuple[Pairs, Array, Array, Totals, Array]:
    """Pairs of streams of one device with work on both sides, and their times over all repetitions.

    The second and third are a table of codes, see `meaning_of_codes`. The last is a mask of waits that are surely not for
    the event that was recorded right before them.
    """
    n, width = waiting_side.queue.shape
    size = _count_possible(waiting_side, awaited_side, queues)
    first = np.zeros(n + 1, np.int64)
    waiting, awaited = np.zeros(size, np.int8), np.zeros(size, np.int8)
    source, flags = np.zeros(size, np.int32), np.zeros(size, np.uint8)
    code = np.zeros(size, np.int32)
    keys, codes = np.full(1024, -1, np.int64), np.zeros(1024, np.int64)
    totals = np.zeros((8, 256), np.int64)
    for_older = np.zeros(n, np.bool_)
    known, at = 0, 0
    for i in range(n):
        for k in range(width):
            for j in range(width):
                if not _is_possible(waiting_side, awaited_side, queues, i, k, j):
                    continue
                slot, bits, skipped = _times_of_pair(
                    waiting_side, awaited_side, waits, work, queues, i, k, j
                )
                if slot < 0:
                    continue
                if waits.behind_record[i] and bits & EARLY_BIT and j == 0:  # the stream used last
                    target, low = waiting_side.slot[i, k], queues.first[awaited_side.queue[i, j]]
                    for_older[i] |= _is_at_once_behind_older(work, low, slot, target)
                w = queues.stream[waiting_side.queue[i, k]]
                a = queues.stream[awaited_side.queue[i, j]]
                key = (waits.group[i] * len(queues.lane) + w) * len(queues.lane) + a
                keys, codes, totals, number = _numbered(keys, codes, totals, known, key)
                known = max(known, number + 1)
                totals[0, number] += 1
                totals[1, number] += (bits & UNEXPLAINED_BIT) != 0
                totals[2, number] += (bits & EARLY_BIT) != 0
                if bits & AHEAD_BIT:  # by how many launches is not the same each time
                    totals[7, number] += skipped > 0
                    skipped = 0
                totals[3, number] += skipped > 0
                at_once = (bits & AT_ONCE_BIT) != 0
                if skipped > totals[4, number]:
                    totals[4, number], totals[6, number] = skipped, 0
                totals[5, number] += at_once and skipped == 0
                totals[6, number] += at_once and skipped == totals[4, number]
                waiting[at], awaited[at], source[at], code[at] = k, j, slot, number
                flags[at] = bits
                at += 1
        first[i + 1] = at
    return (
        Pairs(first, waiting, awaited, source, flags, code),
        keys,
        codes,
        Totals(
            totals[0], totals[1], totals[2], totals[3], totals[4], totals[5], totals[6], totals[7]
        ),
        for_older,
    )


def meaning_of_codes(keys: Array, codes: Array, queues: int) -> tuple[Array, Array, Array]:
    """The group of waits that each code of pairs stands for, and the numbers of the waiting and the awaited stream.

    ``key = (group * queues + waiting) * queues + awaited``, -1 where the table has no code.
    """
    used = np.flatnonzero(keys >= 0)
    key = np.empty(len(used), np.int64)
    key[codes[used]] = keys[used]
    key, awaited = np.divmod(key, queues)
    return *np.divmod(key, queues), awaited


# Compiled: called for pairs of which the target started too early.
@jit_in_place
def _is_at_once_behind_older(work: WorkColumns, low: int, slot: int, target: int) -> bool:
    """True if the target was held up until older work of the awaited queue, from slot `low` on, ended."""
    older = last_ended(low, work.end, work.ended_sooner, work.jump, slot, work.start[target])
    if older < low or not work.held[target]:
        return False
    gap = work.start[target] - work.end[older]
    return work.end[older] > work.free[target] and gap <= IMMEDIATE_START_NS


# Compiled: called by the loop above.
@jit
def _count_possible(waiting_side: Streams, awaited_side: Streams, queues: QueueColumns) -> int:
    """Number of pairs of streams that are possible for all waits together."""
    n, width = waiting_side.queue.shape
    count = 0
    for i in range(n):
        for k in range(width):
            for j in range(width):
                count += _is_possible(waiting_side, awaited_side, queues, i, k, j)
    return count


# Compiled: called by the loops above.
@jit_in_place
def _is_possible(
    waiting_side: Streams, awaited_side: Streams, queues: QueueColumns, i: int, k: int, j: int
) -> bool:
    """True if both are streams of one device with work on both sides of the wait."""
    w, a = waiting_side.queue[i, k], awaited_side.queue[i, j]
    if waiting_side.slot[i, k] < 0 or awaited_side.slot[i, j] < 0:
        return False
    return queues.lane[w] != queues.lane[a] and queues.device[w] == queues.device[a]


# Compiled: called for each pair.
#
#   awaited stream   [ event ]  [ newest  ]
#   waiting stream              |         [ target ]     at once: at the end of what was awaited, later than
#                               free                     it was free to start
@jit_in_place
def _times_of_pair(  # noqa: PLR0913, PLR0917 # columns
    waiting_side: Streams, awaited_side: Streams, waits: WaitFacts, work: WorkColumns,
    queues: QueueColumns, i: int, k: int, j: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Slot of the awaited work, or -1; bits of what times say; by how many launches the event must be older than the last work.

    Where events are recorded, that of a wait is of the moment, or the last that was recorded before and not waited
    for of which the work had ended when the waiting work started; else it may be any that had ended then.
    """
    w, a = waiting_side.queue[i, k], awaited_side.queue[i, j]
    target, last, event = waiting_side.slot[i, k], awaited_side.slot[i, j], waits.event[i, j]
    low = queues.first[a]
    newest = last_ended(low, work.end, work.ended_sooner, work.jump, last, NEVER_TOO_LATE)
    in_turn = work.communicates[newest] and not waits.behind_record[i]
    exact = waits.has_records[i] and not in_turn
    slot = newest if waits.behind_record[i] or event < 0 else event
    if not exact:
        slot = last_ended(
            low, work.end, work.ended_sooner, work.jump, last, work.start[target]
        )  # fmt: skip
    elif not waits.behind_record[i] and event >= 0 and work.end[slot] > work.start[target]:
        ended = last_ended(low, work.end, work.ended_sooner, work.jump, slot, work.start[target])
        slot = waits.last_event[ended] if ended >= 0 else -1
    if slot < low:
        return -1, 0, 0
    gap = work.start[target] - work.end[slot]
    at_once = work.held[target] and work.end[slot] > work.free[target]
    at_once = at_once and not waits.served[i, k] and 0 <= gap <= IMMEDIATE_START_NS
    side = not queues.is_hub[w] and not queues.is_hub[a]
    side = side and not (work.communicates[newest] or work.communicates[target])
    bits = (
        at_once * AT_ONCE_BIT
        + (work.held[target] and not at_once) * UNEXPLAINED_BIT
        + (gap < 0) * EARLY_BIT
        + in_turn * IN_TURN_BIT
        + (exact and not waits.behind_record[i] and event < 0) * UNRECORDED_BIT
        + side * SIDE_BIT
        + (exact and not waits.behind_record[i] and event >= 0) * RECORDED_BIT
        + (not waits.has_records[i] and not in_turn and waits.elsewhere[i, j]) * AHEAD_BIT
    )
    is_older = not exact and not in_turn and work.end[last] > work.start[target]
    return slot, bits, (last - slot) * is_older


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
        larger = np.zeros((len(totals), 2 * known), np.int64)
        for row in range(len(totals)):  # compiles sooner than an assignment to a slice
            for i in range(known):
                larger[row, i] = totals[row, i]
        totals = larger
    keys[place], codes[place] = key, known
    return keys, codes, totals, known
