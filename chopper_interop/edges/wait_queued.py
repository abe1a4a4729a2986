"""Waits of work that had been queued before the recording began, of which no calls are known.

Such work waited for the work of another stream right after which it started. Communication also waits for what
was launched before it, if all that is recorded on its stream does so: numbers of launches are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.edges.queues import NEVER_TOO_LATE, group_pairs, preceding_rows
from chopper_interop.edges.wait_pairs import IMMEDIATE_START_NS

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.edges.queues import Queues
    from chopper_interop.trace import Trace

_REPEATED_SHARE = 0.8
"""Share of the recorded communication of a stream that waits in the same way. Chosen: a wait that is missing or wrong is
one of five at most."""


def slots_by_time(queues: Queues) -> tuple[Array, Array]:
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
    # what takes no time holds nothing up, and what was queued later comes too late for a wait
    lasting = np.flatnonzero((queues.end > queues.start) & queues.queued_before)
    last, own = (
        preceding_rows(group[lasting], queues.end[lasting], group[target], start)
        for group in (device, lane)
    )
    gap = np.where(own >= 0, start - queues.end[lasting[own]], NEVER_TOO_LATE)
    known, last = last >= 0, lasting[last]
    elsewhere = lane[last] != lane[target]
    behind_own = known & ~elsewhere & (gap <= IMMEDIATE_START_NS)
    usual = np.median(gap[behind_own]) if behind_own.any() else 0
    held = known & elsewhere & (gap > usual)
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
