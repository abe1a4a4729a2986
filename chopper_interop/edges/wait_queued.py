"""Waits of work of which no calls are known: it had been queued before the recording began, or only GPU work was traced.

What was queued waited for the work of another stream right after which it started. Communication also waits for what
was launched before it, if all that is recorded on its stream does so: numbers of launches are known.

Of ranks without any launches nothing shows why work starts when it does: its host was late, or it waited for another
queue. Work of one queue started behind what ended on another if both take turns, or if it does so sooner than chance
has it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import preceding_rows
from chopper_interop.arrays.sorted_groups import sorted_groups
from chopper_interop.edges.queues import NEVER_TOO_LATE, Queues, group_pairs
from chopper_interop.edges.wait_pairs import HELD_NS, IMMEDIATE_START_NS
from chopper_interop.trace import Trace

_REPEATED_SHARE = 0.8
"""Share of the recorded communication of a stream that waits in the same way. Chosen: a wait that is missing or wrong is
one of five at most."""
_SIGMAS = 3.0
"""Standard deviations by which work starts sooner behind another queue's than by chance: of 740 pairs one seems to."""
_TURNS = 6.6
"""Negative logarithm of the probability by which independent queues never meet that take turns: one of 740 pairs."""
_FAR = np.iinfo(np.int64).max // 4
"""A time that no trace reaches, far enough from overflow for differences."""


def slots_by_time(queues: Queues) -> tuple[Array, Array]:
    """Slots of work, and of work queued before the recording that started right at its end.

    Work that was queued starts when the work before it on its lane has ended, if it waits for
    nothing else. So what ended later on the same device, right before the start, held it up, unless
    the time since the work before it is the usual one of its rank.
    """
    target = np.flatnonzero(queues.queued_before)
    # what takes no time holds nothing up, and what was queued later comes too late for a wait
    lasting = np.flatnonzero((queues.end > queues.start) & queues.queued_before)
    if not lasting.size:
        return lasting, lasting
    lane = queues.lane[queues.queue]
    _, device = gather.distinct(queues.rank, queues.device)
    device = device[queues.queue]
    start = queues.start[target]
    last, own = (
        preceding_rows(group[lasting], queues.end[lasting], group[target], start)
        for group in (device, lane)
    )
    gap = np.where(own >= 0, start - queues.end[lasting[own]], NEVER_TOO_LATE)
    known, last = last >= 0, lasting[last]
    elsewhere = lane[last] != lane[target]
    behind_own = known & ~elsewhere & (gap <= IMMEDIATE_START_NS)
    rank = queues.rank_number[target]
    own_gaps = sorted_groups([(rank[behind_own], gap[behind_own])], int(rank.max()) + 1)
    held = known & elsewhere & (gap > own_gaps.linear_quantile(0.5)[rank])
    held &= start - queues.end[last] <= IMMEDIATE_START_NS
    return last[held], target[held]


#   stream a   [ work 1 ]           [ work 4 ]
#   stream b              [ comm 2 ]           [ comm 5 ]     numbers of launches: 2 waits for 1, 5 for 4
def slots_by_repetition(
    trace: Trace, queues: Queues, source: Array, target: Array
) -> tuple[Array, Array]:
    """Slots of the last work launched on a stream, and of queued communication that waits for it.

    It waits as the communication recorded on its stream does, whose waits are known: `source` and `target`
    are their slots.
    """
    number = trace.integers("correlation", queues.node)
    lane = queues.lane[queues.queue]
    numbered = queues.communicates & (number >= 0)
    queued = np.flatnonzero(numbered & queues.queued_before)
    waits = np.flatnonzero(numbered[target] & ~queues.queued_before[target])
    if not queued.size or not waits.size:
        return queued[:0], queued[:0]
    _, kind = gather.distinct(lane, trace.array("name")[queues.node])
    recorded = np.flatnonzero(numbered & ~queues.queued_before)
    count = np.bincount(kind[recorded], minlength=int(kind.max()) + 1)
    # of each kind of communication and stream that it waits for, how often for the last work launched there
    source, target = source[waits], target[waits]
    last = preceding_rows(lane, number, lane[source], number[target] - 1)
    first, way = gather.distinct(kind[target], lane[source])
    agreeing = np.bincount(way[last == source], minlength=len(first))
    usual = first[agreeing >= _REPEATED_SHARE * count[kind[target[first]]]]
    queued_of, rule = group_pairs(kind[queued], kind[target[usual]])
    work = queued[queued_of]
    last = preceding_rows(lane, number, lane[source[usual]][rule], number[work] - 1)
    possible = (last >= 0) & (queues.end[last] <= queues.start[work])
    return last[possible], work[possible]


#   queue a   [ w ]                   [ work ]      last work elsewhere ended within the gap before `work`:
#   queue b        [ last ]               [ next ]  delay since then, of the time in which it could have been
#             <------- gap --------->
#                           <-delay->
#                           <-------between------>
class _Starts(NamedTuple):
    """Work that started behind a gap of its lane in which work of another lane of its device was the last to end.

    Parameters
    ----------
    slot, last
        Slots of the work, and of what ended last.
    share
        Time between the two, as part of the longest possible one: up to the work before on its own lane, or to the
        next end on any other lane of the device. Where the lanes are independent, it is anything from 0 to 1 alike.
    overlaps
        Mask of work that started while work of the other lane ran.
    apart
        Part of the longest possible time before the next work of the other lane began: the probability of no meeting
        where the lanes are independent. The time in which that lane works says too little, as a short gap behind an end
        is over before the next work begins.
    """

    slot: Array
    last: Array
    share: Array
    overlaps: Array
    apart: Array


def slots_between_queues(queues: Queues, stated: Array) -> tuple[Array, Array]:
    """Slots of work, and of work on another lane of its device, without launches, that started behind it.

    Not of the ranks in `stated`: what their work depends on is known.
    """
    launched = gather.unique(queues.rank[queues.queue[queues.call >= 0]])
    slot = np.flatnonzero(~np.isin(queues.rank[queues.queue], np.append(launched, stated)))
    lane = queues.lane[queues.queue[slot]]
    if not slot.size or (lane == lane[0]).all():
        return slot[:0], slot[:0]
    starts = _starts_behind_others(queues, slot, lane)
    follows = _follows(queues, starts)
    return starts.last[follows], starts.slot[follows]


def _starts_behind_others(queues: Queues, slot: Array, lane: Array) -> _Starts:
    """Starts behind gaps in which work of another lane ended."""
    queue = queues.queue[slot]
    _, device = gather.distinct(queues.rank[queue], queues.device[queue])
    start, end = queues.start[slot], queues.end[slot]
    last = preceding_rows(device, end, device, start)
    own = preceding_rows(lane, end, lane, start)
    gap = np.where(own >= 0, start - end[own], _FAR)
    chosen = np.flatnonzero((last >= 0) & (lane[last] != lane) & (gap > HELD_NS))
    last, start, gap = last[chosen], start[chosen], gap[chosen]
    # the next work on that lane: times are negated to look ahead
    following = preceding_rows(lane, -end, lane[last], -start - 1)
    begins = np.where(following >= 0, queues.start[slot][following], _FAR)
    until_next = begins - end[last]
    between = _until_next_end(device, lane, end, last, lane[chosen])
    longest, delay = np.minimum(gap, between), start - end[last]
    return _Starts(
        slot[chosen], slot[last], delay / longest, delay > until_next,
        np.clip(until_next, 1, longest) / longest,
    )  # fmt: skip


#   ends, by time   b  a  c  a  a  b      behind the first b the next end elsewhere than on a is that of c, and behind c
#   last | next     0     2        5      it is where the run of ends on a is over
def _until_next_end(device: Array, lane: Array, end: Array, last: Array, own: Array) -> Array:
    """Time from each last end to the next one on its device that is not on the own lane."""
    order = np.lexsort((end, device))
    n = len(order)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    of_lane = lane[order]
    changes = np.flatnonzero(np.diff(of_lane, append=-1)) + 1
    at = place[last] + 1
    is_own = of_lane[np.minimum(at, n - 1)] == own
    at = np.where(is_own, changes[np.searchsorted(changes[:-1], at, "right")], at)
    row = order[np.minimum(at, n - 1)]
    is_there = (at < n) & (device[row] == device[last])
    return np.where(is_there, end[row], _FAR) - end[last]


def _follows(queues: Queues, starts: _Starts) -> Array:
    """Mask of the starts between two lanes that take turns, or one of which starts sooner behind the other than by chance."""
    lane = queues.lane[queues.queue]
    own, other = lane[starts.slot], lane[starts.last]
    _, way = gather.distinct(own, other)
    count = np.bincount(way)
    # the sum of n independent shares has the mean n / 2 and the variance n / 12
    sooner = (count / 2 - np.bincount(way, starts.share)) / np.sqrt(count / 12)
    low, high = np.minimum(own, other), np.maximum(own, other)
    _, pair = gather.distinct(low, high)
    apart = np.bincount(pair, np.log(starts.apart))
    turns = (apart <= -_TURNS) & (np.bincount(pair, starts.overlaps) == 0)
    return (sooner >= _SIGMAS)[way] | turns[pair]
