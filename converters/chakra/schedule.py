"""Slot times of each operation of an ET, and the gaps before it: loops over one rank.

Times are exact nanoseconds. A simulator counts whole microseconds, so each gap also makes up for
the rounding of the nodes before it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array

COMPUTE, COMM = 0, 1
UNEXPLAINED_NS = 50_000
"""Work that starts later than this after its launch, or after what kept its slot busy, started
then for another reason. Chosen: well above the time that a launch takes to reach an idle GPU, so that
launches are not padded with gaps; a larger value would hide real waits of a queue."""


class GpuSchedule(NamedTuple):
    """Slot times, dependencies and gaps of GPU work, a value for each piece in order of start.

    Parameters
    ----------
    slot_us
        How long it holds its slot.
    ended_us
        When it ends in simulated time.
    stream_dep
        Number of the work before it on its stream; -1 if none.
    slot_dep
        Number of the work on the other slot that it waits for; -1 if none.
    gap_dep
        Number of the work whose gap it waits for as well, as both start at its end; -1 if none.
    gap_ns, gap_us
        Start of the gap before it, and how long that lasts; -1 if there is none.
    gap_after
        Number of the work on the compute slot that its gap follows; -1 if none.
    """

    slot_us: Array
    ended_us: Array
    stream_dep: Array
    slot_dep: Array
    gap_dep: Array
    gap_ns: Array
    gap_us: Array
    gap_after: Array


class HostSchedule(NamedTuple):
    """Slot times and gaps of host operations, a value for each in order of start.

    Parameters
    ----------
    slot_us
        Time until it ends, waits, or the next one starts.
    gap_ns, gap_us
        Start of the gap before it, and how long that lasts; -1 if there is none.
    gap_owner
        The operation whose own time that gap is; -1 if no operation's.
    """

    slot_us: Array
    gap_ns: Array
    gap_us: Array
    gap_owner: Array


@jit
def _micros(ns: int) -> int:
    """Nanoseconds rounded to microseconds."""
    return (ns + 500) // 1000


@jit
def gpu_schedule(  # noqa: C901, PLR0913, PLR0915, PLR0917 # one loop over columns
    ts: Array,
    dur: Array,
    slot: Array,
    lane: Array,
    launched_ns: Array,
    lanes: int,
    event_first: Array,
    event: Array,
) -> GpuSchedule:
    """Schedule GPU work, which is in order of start, on its two slots.

    Work with a launch in the plan, at `launched_ns` (else -1), needs no gap before it unless it
    starts so late that the launch does not explain it: its queue was busy with unrecorded work.
    Work i waits for the events behind ``event[event_first[i]:event_first[i + 1]]``, all before it.
    """
    # A sweep in order of start that keeps two clocks for each slot: the measured one
    # (`busy_until`) and the simulated one (`free_at`). Dependencies come from the measured clock;
    # what is then still missing in the simulated one becomes a gap:
    #
    #   measured   ...work|          |work i         known_until = end of all that explains a wait
    #   simulated  ...work|dep|~gap~~|work i         ready = when the dependencies allow it
    n = len(ts)
    slot_us = np.zeros(n, np.int64)
    ended = np.zeros(n, np.int64)  # simulated microseconds
    stream_dep = np.full(n, -1, np.int64)
    slot_dep = np.full(n, -1, np.int64)
    gap_dep = np.full(n, -1, np.int64)
    gap_ns = np.full(n, -1, np.int64)
    gap_us = np.full(n, -1, np.int64)
    gap_after = np.full(n, -1, np.int64)
    gapped, gap_end = -1, 0  # the last work with a gap, and the end of that in simulated time
    stream_last = np.full(lanes, -1, np.int64)
    busy_until = np.zeros(2, np.int64)  # exact, of each slot
    free_at = np.zeros(2, np.int64)  # simulated microseconds, of each slot
    done_end = np.zeros(2, np.int64)  # latest end of finished work of each slot
    done = np.full(2, -1, np.int64)
    latest = np.full(2, -1, np.int64)  # work that ends last, of each slot
    running = [[(np.int64(0), np.int64(0)) for _ in range(0)] for _ in range(2)]  # by end
    for i in range(n):
        s, start = slot[i], ts[i]
        other = 1 - s
        while len(running[other]) and running[other][0][0] <= start:
            done_end[other], done[other] = heapq.heappop(running[other])
        stream_dep[i] = stream_last[lane[i]]
        ready = free_at[s]
        if stream_dep[i] >= 0:
            ready = max(ready, ended[stream_dep[i]])
        known_until = busy_until[s]
        if done[other] >= 0 and done_end[other] > busy_until[s]:
            slot_dep[i] = done[other]
            known_until = done_end[other]
            ready = max(ready, ended[done[other]])
        for e in range(event_first[i], event_first[i + 1]):
            ready = max(ready, ended[event[e]])
            known_until = max(known_until, min(ts[event[e]] + dur[event[e]], start))
        if s == COMM and gapped >= 0 and ts[gapped] > known_until:
            gap_dep[i], known_until = gapped, ts[gapped]
            ready = max(ready, gap_end)
        explained = known_until
        if launched_ns[i] >= 0:
            explained = max(known_until, launched_ns[i]) + UNEXPLAINED_NS
            ready = max(ready, _micros(launched_ns[i]))
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
        # work that overlaps other work of its slot holds it only for the time it adds
        alone = end - max(start, min(busy_until[s], end))
        slot_us[i] = _micros(dur[i]) if alone == dur[i] else _micros(max(alone, 0))
        ended[i] = ready + slot_us[i]
        free_at[s] = max(free_at[s], ended[i])
        if end >= busy_until[s]:
            busy_until[s], latest[s] = end, i
        stream_last[lane[i]] = i
        heapq.heappush(running[s], (np.int64(end), np.int64(i)))
    return GpuSchedule(slot_us, ended, stream_dep, slot_dep, gap_dep, gap_ns, gap_us, gap_after)


@jit
def last_host_needed(
    launched_by: Array, gpu: GpuSchedule, event_first: Array, event: Array
) -> Array:
    """The last host operation that each piece of GPU work depends on, directly or not; else -1.

    Parameters
    ----------
    launched_by
        Position of the host operation that each depends on directly; -1 if none.
    gpu
        Dependencies of the work.
    event_first, event
        As `gpu_schedule` takes them.
    """
    # All dependencies point to earlier work, so one pass in order of start suffices. Index -1
    # reaches the extra last entry, which stands for no work and stays -1.
    n = len(launched_by)
    needed = np.full(n + 1, -1, np.int64)
    by_gap = np.full(n + 1, -1, np.int64)
    for i in range(n):
        before = max(needed[gpu.stream_dep[i]], needed[gpu.slot_dep[i]])
        if gpu.gap_us[i] >= 0:
            by_gap[i] = max(before, needed[gpu.gap_after[i]])
        last = max(launched_by[i], before, by_gap[i], by_gap[gpu.gap_dep[i]])
        for e in range(event_first[i], event_first[i + 1]):
            last = max(last, needed[event[e]])
        needed[i] = last
    return needed[:n]


@jit
def host_waits(  # noqa: PLR0913, PLR0917 # columns
    ts: Array,
    dur: Array,
    lane: Array,
    work_ts: Array,
    work_end: Array,
    waiter: Array,
    launches_it: Array,
) -> tuple[Array, Array]:
    """Find where host operations that wait for GPU work delay the host.

    Parameters
    ----------
    ts, dur, lane
        Of all host operations, in order of start.
    work_ts, work_end, waiter, launches_it
        Of each wait: when the work starts and ends, the operation that waits, and whether that
        launched the work itself.

    Returns
    -------
    delayed
        Of each wait, the operation that begins no sooner than the work has ended: the one after
        the waiting one or, if others began meanwhile, the next of its thread; -1 if there is none.
    until_ns
        For each operation, when its own time ends: where it begins to wait; -1 if it does not.
    """
    # Host operations form one chain, so a wait acts on the first operation that it can delay:
    #
    #   wait   |---------|            work ended before it, or it is the last: itself
    #   work  ------|                 nothing began meanwhile: the next one (wait ends its own time)
    #                 |next           others began meanwhile: the next one of the same thread
    n = len(ts)
    delayed = np.full(len(waiter), -1, np.int64)
    until_ns = np.full(n, -1, np.int64)
    for k in range(len(waiter)):
        i, end = waiter[k], work_end[k]
        if not launches_it[k] and (end <= ts[i] or i + 1 == n):
            delayed[k] = i
        elif i + 1 < n and ts[i + 1] >= end:
            delayed[k] = i + 1
            begin = min(max(work_ts[k], ts[i]), ts[i] + dur[i]) if launches_it[k] else ts[i]
            until_ns[i] = max(until_ns[i], begin)
        else:
            j = i + 1
            while j < n and (lane[j] != lane[i] or ts[j] < end):
                j += 1
            delayed[k] = j if j < n else -1
    return delayed, until_ns


@jit
def host_schedule(
    ts: Array, dur: Array, around: Array, until_ns: Array, free_ns: Array, free_us: Array
) -> HostSchedule:
    """Schedule all host operations as one chain, in order of start, that fills the time between.

    Parameters
    ----------
    ts, dur, around
        Of all host operations; `around` is the innermost operation that contains each.
    until_ns
        When the own time of each ends early, because it waits; -1 if it does not.
    free_ns, free_us
        Of each: when the GPU work that it waits for has ended, in measured and in simulated time;
        -1 if it waits for none.
    """
    # The host has one slot while its operations nest, so each is cut where the next one starts;
    # the rest of an outer operation becomes a gap that it owns:
    #
    #   measured   |outer ........... |
    #                   |inner|
    #   one slot   |outer|inner|gap of outer|
    n = len(ts)
    slot_us = np.zeros(n, np.int64)
    gap_ns = np.full(n, -1, np.int64)
    gap_us = np.full(n, -1, np.int64)
    gap_owner = np.full(n, -1, np.int64)
    now = 0  # simulated microseconds
    filled = 0  # measured time up to which nodes account for the host
    for i in range(n):
        filled = max(min(filled, ts[i]), min(free_ns[i], ts[i]))
        now = max(now, free_us[i])
        if _micros(ts[i]) > now and filled < ts[i]:
            gap_ns[i], gap_us[i] = filled, _micros(ts[i]) - now
            now += gap_us[i]
            p = i - 1
            while p >= 0 and ts[p] + dur[p] <= filled:
                p = around[p]
            gap_owner[i] = p
        filled = ts[i] + dur[i]
        if until_ns[i] >= 0:
            filled = min(filled, until_ns[i])
        stop = filled
        if i + 1 < n:
            stop = min(stop, ts[i + 1])
        slot_us[i] = max(_micros(stop) - now, 0)
        now += slot_us[i]
    return HostSchedule(slot_us, gap_ns, gap_us, gap_owner)
