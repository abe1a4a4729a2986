"""How long launches, waits for events and returns of waits take at least: taken from the trace.

Of a kernel that started when several things had happened, the one that happened last need not be
the one it waited for: a launch takes microseconds to reach the GPU, an event less. So each kind of
edge has a least latency, the one that is seen where nothing else explains the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_LEAST = 0.01
"""Quantile that stands for the least: a single one may be an error of a clock."""
_SPREAD = 0.75
_SURELY = 8
"""A call surely waited if the work went on for so many times what the call took behind its end."""


@dataclass(frozen=True)
class Latencies:
    """Of the trace's edges, in their order; all in nanoseconds.

    Parameters
    ----------
    least_ns
        Least time from the moment that an edge leads from to the one that it leads to.
    from_end
        Which launches count from the end of the call: of calls that are steadier so, and only where
        the work began behind it.
    own_ns
        Of waits of the host (SYNC edges): what the call itself takes at least; -1 where it was not
        that wait which it ended with, but its own work.
    """

    least_ns: Array
    from_end: Array
    own_ns: Array


def of(trace: Trace, before: Array) -> Latencies:
    """Latencies of a trace's stored edges.

    Parameters
    ----------
    trace
        Any trace.
    before
        For each node the work before it on its stream; -1 if there is none.
    """
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    least = np.zeros(len(src), np.int64)
    from_end = np.zeros(len(src), bool)
    own = np.full(len(src), -1, np.int64)
    excess = np.full(len(ts), np.iinfo(np.int64).max)  # of a start over what is known to explain it
    behind = np.flatnonzero(before >= 0)
    since_work = ts[behind] - end[before[behind]]
    excess[behind] = since_work - _quantile(since_work, _LEAST)
    free_at = np.where(before >= 0, end[before], np.iinfo(np.int64).min)
    free_at[dst[kind == EdgeKind.EVENT]] = np.iinfo(np.int64).max  # nobody knows when
    chosen = np.flatnonzero(kind == EdgeKind.LAUNCH)
    from_end[chosen], least[chosen], more = _of_launches(trace, src[chosen], dst[chosen], free_at)
    np.minimum.at(excess, dst[chosen], more)
    chosen = np.flatnonzero(kind == EdgeKind.EVENT)
    gap = ts[dst[chosen]] - end[src[chosen]]
    alone = gap < excess[dst[chosen]]
    least[chosen] = np.minimum(_quantile(gap[alone], _LEAST), gap)
    chosen = np.flatnonzero(kind == EdgeKind.SYNC)
    least[chosen], own[chosen] = _of_waits(trace, src[chosen], dst[chosen])
    return Latencies(least, from_end, own)


def _of_launches(trace: Trace, call: Array, work: Array, free_at: Array) -> tuple[Array, ...]:
    """Which launches count from their call's end, their least time, and what each took beyond that."""
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    name = trace.array("name")[call]
    from_end = _from_end(name, ts[call], end[call], ts[work], free_at[work])
    since = np.where(from_end, end[call], ts[call])
    gap = ts[work] - since
    least = _by_code(name, from_end, gap, free_at[work] <= since)
    return from_end, least, gap - least


def of_streams(ts: Array, end: Array, before: Array) -> int:
    """Least time between two pieces of work on one stream."""
    behind = np.flatnonzero(before >= 0)
    return _quantile(ts[behind] - end[before[behind]], _LEAST)


def _from_end(name: Array, called: Array, returned: Array, began: Array, free_at: Array) -> Array:
    """Which launches count from the end of their call.

    For each name of call it is that end which makes the time to the start of work that found its
    stream idle steadier.
    """
    _, code = gather.distinct(name)
    since_end, since_call = began - returned, began - called
    chosen = np.zeros(int(code.max(initial=-1)) + 1, bool)
    for number, mine in enumerate(_by(code)):
        chosen[number] = _quantile(since_end[mine], 0.05, floor=False) >= 0
        idle = mine[free_at[mine] <= called[mine]]
        if idle.size:
            chosen[number] &= _spread(since_end[idle]) <= _spread(since_call[idle])
    return chosen[code] & (began >= returned)


def _by_code(name: Array, from_end: Array, gap: Array, free: Array) -> Array:
    """Least of the gaps of each name, of work whose stream was free; never more than a gap itself.

    Where no stream was free, the least of all names stands for it.
    """
    _, code = gather.distinct(name, from_end)
    least = np.zeros(len(gap), np.int64)
    every = [_quantile(gap[free & (from_end == way)], _LEAST) for way in (False, True)]
    for mine in _by(code):
        told = mine[free[mine]]
        least[mine] = _quantile(gap[told], _LEAST) if told.size else every[int(from_end[mine[0]])]
    return np.minimum(least, gap)


def _of_waits(trace: Trace, work: Array, call: Array) -> tuple[Array, Array]:
    """Least time from the end of work to the end of waits for it, and what the calls take themselves.

    A call that ended longer after the work than surely waiting ones usually do was busy with itself.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    end = ts + dur
    gap, waited = end[call] - end[work], end[work] - ts[call]
    sure = waited > _SURELY * gap
    least = _quantile(gap[sure] if sure.any() else gap, _LEAST)
    usual = _quantile(gap[sure], _SPREAD) if sure.any() else least
    _, name = gather.distinct(trace.array("name")[call])
    own = np.zeros(len(call), np.int64)
    alone = np.where(waited > 0, gap, dur[call])
    for mine in _by(name):
        own[mine] = _quantile(alone[mine], _LEAST)
    of_wait = sure | (gap <= usual)
    return np.minimum(least, gap), np.where(of_wait, np.minimum(own, dur[call]), -1)


def _by(code: Array) -> list[Array]:
    """Places of each code."""
    first, place = gather.places(code, int(code.max(initial=-1)) + 1)
    return np.split(place, first[1:-1]) if len(first) > 1 else []


def _spread(values: Array) -> int:
    return _quantile(values, 0.5, floor=False) - _quantile(values, 0.05, floor=False)


def _quantile(values: Array, share: float, *, floor: bool = True) -> int:
    """A quantile that is one of the values; 0 if there are none, and not below 0 if so asked."""
    if floor:
        values = values[values >= 0]
    if not values.size:
        return 0
    place = int(share * (len(values) - 1))
    return int(np.partition(values, place)[place])
