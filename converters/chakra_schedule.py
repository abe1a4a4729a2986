"""How long each operation of an ET holds its slot, and the gaps before it: loops over one rank.

Times are exact nanoseconds; a simulator counts microseconds, so each gap also takes up what
rounding has made of the nodes before it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

COMPUTE, COMM = 0, 1
UNEXPLAINED_NS = 50_000
"""How far from its launch's end work may start, or from that of what kept its slot until then;
what starts further off has another reason."""


@jit
def _micros(ns: int) -> int:
    return (ns + 500) // 1000


@jit
def gpu_schedule(  # noqa: C901, PLR0913, PLR0915, PLR0917 # one loop over columns
    ts: Array,
    dur: Array,
    slot: Array,
    lane: Array,
    called: Array,
    lanes: int,
    event_first: Array,
    event: Array,
) -> tuple[Array, ...]:
    """Slot times, dependencies and gaps of GPU work in order of start.

    Work that has its launch in the plan, at `called` (else -1), needs no gap before it unless it
    starts so late that the launch does not explain it: its queue was busy with what has no record.
    Work i waits for events behind ``event[event_first[i]:event_first[i + 1]]``, all before it.

    Returns
    -------
    slot_us, ended_us
        For each piece of work: how long it holds its slot, and when it ends in simulated time.
    before, across
        Numbers of the work that it waits for: the one before it on its stream, and the one on the
        other slot; -1 if none.
    gap_ns, gap_us, gap_after
        For each piece of work, the gap before it: when it starts, how long it lasts, and the work
        on the compute slot that it follows; -1 if there is none.
    behind
        Number of the work whose gap it waits for as well: it starts beside that work; -1 if none.
    """
    n = len(ts)
    slot_us = np.zeros(n, np.int64)
    gap_after = np.full(n, -1, np.int64)
    before = np.full(n, -1, np.int64)
    across = np.full(n, -1, np.int64)
    behind = np.full(n, -1, np.int64)
    gapped, gap_end = -1, 0  # the last work with a gap, and the end of that in simulated time
    gap_ns = np.full(n, -1, np.int64)
    gap_us = np.full(n, -1, np.int64)
    stream_last = np.full(lanes, -1, np.int64)
    busy_until = np.zeros(2, np.int64)  # exact, of each slot
    free_at = np.zeros(2, np.int64)  # simulated microseconds, of each slot
    ended = np.zeros(n, np.int64)  # simulated microseconds
    done_end = np.zeros(2, np.int64)  # latest end of finished work of each slot
    done = np.full(2, -1, np.int64)
    latest = np.full(2, -1, np.int64)  # work that ends last, of each slot
    running = [[(np.int64(0), np.int64(0)) for _ in range(0)] for _ in range(2)]  # by end
    for i in range(n):
        s, start = slot[i], ts[i]
        other = 1 - s
        while len(running[other]) and running[other][0][0] <= start:
            done_end[other], done[other] = heapq.heappop(running[other])
        before[i] = stream_last[lane[i]]
        ready = free_at[s]
        if before[i] >= 0:
            ready = max(ready, ended[before[i]])
        known_until = busy_until[s]
        if done[other] >= 0 and done_end[other] > busy_until[s]:
            across[i] = done[other]
            known_until = done_end[other]
            ready = max(ready, ended[done[other]])
        for e in range(event_first[i], event_first[i + 1]):
            ready = max(ready, ended[event[e]])
            known_until = max(known_until, min(ts[event[e]] + dur[event[e]], start))
        if s == COMM and gapped >= 0 and ts[gapped] > known_until:
            behind[i], known_until = gapped, ts[gapped]
            ready = max(ready, gap_end)
        explained = known_until
        if called[i] >= 0:
            explained = max(known_until, called[i]) + UNEXPLAINED_NS
            ready = max(ready, _micros(called[i]))
        if start > explained:
            # a gap holds the compute slot, so there must be room for it
            begin = max(known_until, busy_until[COMPUTE])
            missing = _micros(start) - max(ready, free_at[COMPUTE])
            if begin < start and missing > 0:
                gap_ns[i], gap_us[i], gap_after[i] = begin, missing, latest[COMPUTE]
                busy_until[COMPUTE] = start
                free_at[COMPUTE] = max(ready, free_at[COMPUTE]) + missing
                ready = free_at[COMPUTE]
                gapped, gap_end = i, ready
        end = start + dur[i]
        alone = end - max(start, min(busy_until[s], end))
        slot_us[i] = _micros(dur[i]) if alone == dur[i] else _micros(max(alone, 0))
        ended[i] = ready + slot_us[i]
        free_at[s] = max(free_at[s], ended[i])
        if end >= busy_until[s]:
            busy_until[s], latest[s] = end, i
        stream_last[lane[i]] = i
        heapq.heappush(running[s], (np.int64(end), np.int64(i)))
    return slot_us, ended, before, across, behind, gap_ns, gap_us, gap_after


@jit
def needs(  # noqa: PLR0913, PLR0917 # columns
    called: Array,
    before: Array,
    across: Array,
    behind: Array,
    gap_us: Array,
    gap_after: Array,
    event_first: Array,
    event: Array,
) -> Array:
    """The last host operation that each piece of GPU work waits for, through whatever; -1 if none.

    Parameters
    ----------
    called
        Place of the host operation that each waits for itself; -1 if none.
    before, across, behind, gap_us, gap_after
        As `gpu_schedule` gives them.
    event_first, event
        As it takes them.
    """
    n = len(called)
    needed = np.full(n + 1, -1, np.int64)  # the last one is that of no work
    of_gap = np.full(n + 1, -1, np.int64)
    for i in range(n):
        if gap_us[i] >= 0:
            of_gap[i] = max(needed[before[i]], needed[across[i]], needed[gap_after[i]])
        last = max(called[i], needed[before[i]], needed[across[i]], of_gap[i], of_gap[behind[i]])
        for e in range(event_first[i], event_first[i + 1]):
            last = max(last, needed[event[e]])
        needed[i] = last
    return needed[:n]


@jit
def host_waits(  # noqa: PLR0913, PLR0917 # columns
    ts: Array, dur: Array, lane: Array, work_ts: Array, work_end: Array, call: Array, own: Array
) -> tuple[Array, Array]:
    """Where host operations that wait for GPU work hold up the host.

    Parameters
    ----------
    ts, dur, lane
        Of all host operations, in order of start.
    work_ts, work_end, call, own
        Of each wait: when the work starts and ends, the operation that waits, and whether that
        launched the work itself.

    Returns
    -------
    held
        Of each wait, the operation that begins no sooner than the work has ended: what follows the
        waiting one or, if others began meanwhile, what its thread does next; -1 if there is none.
    until_ns
        For each operation, when its own time ends: where it begins to wait; -1 if it does not.
    """
    n = len(ts)
    held = np.full(len(call), -1, np.int64)
    until_ns = np.full(n, -1, np.int64)
    for k in range(len(call)):
        i, end = call[k], work_end[k]
        if not own[k] and (end <= ts[i] or i + 1 == n):
            held[k] = i
        elif i + 1 < n and ts[i + 1] >= end:
            held[k] = i + 1
            begin = min(max(work_ts[k], ts[i]), ts[i] + dur[i]) if own[k] else ts[i]
            until_ns[i] = max(until_ns[i], begin)
        else:
            j = i + 1
            while j < n and (lane[j] != lane[i] or ts[j] < end):
                j += 1
            held[k] = j if j < n else -1
    return held, until_ns


@jit
def host_schedule(  # columns
    ts: Array, dur: Array, around: Array, until_ns: Array, free_ns: Array, free_us: Array
) -> tuple[Array, Array, Array, Array]:
    """One chain of all host operations, in order of start, that fills the time between them.

    Parameters
    ----------
    ts, dur, around
        Of all host operations; `around` is the one around each.
    until_ns
        When the own time of each ends early, because it waits; -1 if it does not.
    free_ns, free_us
        Of each: when what it is held up by has ended, exactly and in simulated time; -1 if nothing.

    Returns
    -------
    slot_us
        For each operation, the time until it ends, waits, or the next one starts.
    gap_ns, gap_us, gap_of
        For each operation, the gap before it: when it starts, how long it lasts (-1 if there is
        none), and the operation whose own time it is (-1 if no one's).
    """
    n = len(ts)
    slot_us = np.zeros(n, np.int64)
    gap_ns = np.full(n, -1, np.int64)
    gap_us = np.full(n, -1, np.int64)
    gap_of = np.full(n, -1, np.int64)
    now = 0
    filled = 0
    for i in range(n):
        filled = max(min(filled, ts[i]), min(free_ns[i], ts[i]))
        now = max(now, free_us[i])
        if _micros(ts[i]) > now and filled < ts[i]:
            gap_ns[i], gap_us[i] = filled, _micros(ts[i]) - now
            now += gap_us[i]
            p = i - 1
            while p >= 0 and ts[p] + dur[p] <= filled:
                p = around[p]
            gap_of[i] = p
        filled = ts[i] + dur[i]
        if until_ns[i] >= 0:
            filled = min(filled, until_ns[i])
        stop = filled
        if i + 1 < n:
            stop = min(stop, ts[i + 1])
        slot_us[i] = max(_micros(stop) - now, 0)
        now += slot_us[i]
    return slot_us, gap_ns, gap_us, gap_of
