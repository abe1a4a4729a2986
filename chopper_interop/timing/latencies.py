"""Least latencies of launches, waits for events and returns of waiting calls, taken from the trace.

Of a kernel that started when several things had happened, the one that happened last need not be
the one it waited for: a launch takes microseconds to reach the GPU, an event less. So each kind of
edge has a least latency, the one seen where nothing else explains the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges import ordering_calls
from chopper_interop.schemas.kinds import CALLS, EdgeKind
from chopper_interop.schemas.names import COPY_TO_HOST, ONLY_WAITS, Role
from chopper_interop.timing.populations import Populations, quantiles
from chopper_interop.timing.start_latencies import (
    MIN_QUANTILE,
    find_least,
    least_times,
    start_latencies,
)
from chopper_interop.trace import Trace

_FENCE = 1.5
"""A call that waited returns as usual up to so many interquartile ranges above the upper quartile of the
sure ones (Tukey, Exploratory Data Analysis, 1977). Of calls that return later the excess counts as the
call's own work."""
_SURE_RATIO = 8
"""A call surely waited if it had waited for the work for so many times what it took to return after
the work's end. Chosen: then at most a ninth of the call is anything but waiting."""
_STEADIER, _MIN_CALLS = 3, 12
"""By how many times durations vary more than returns, of calls that end with their wait, and calls from which
that is known. Chosen: of pairs of twelve normal draws 1.6 % differ so by chance."""


@dataclass(frozen=True)
class Latencies:
    """Latencies of the trace's edges, in their order; all in nanoseconds.

    Parameters
    ----------
    min_ns
        Least time from the endpoint that an edge leads from to the one that it leads to.
    from_end
        Mask of launches that count from the end of the call: of calls that are steadier so, and
        only where the work began behind it. Polls count from the end of the work.
    call_ns
        Of waits of the host (SYNC edges): the least time of the call itself; -1 where the call did
        not end with that wait, but with its own work.
    stream_ns
        Least time between two pieces of work on one stream, of each population.
    """

    min_ns: Array
    from_end: Array
    call_ns: Array
    stream_ns: Array


def edge_latencies(trace: Trace, before: Array, of: Populations) -> Latencies:
    """Latencies of a trace's stored edges.

    Parameters
    ----------
    before
        As of `start_latencies.predecessors`.
    of
        Populations of which least times are.
    """
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    least = least_times(trace) if of.count == 1 else find_least(trace, of)
    min_ns, from_end = start_latencies(trace, before, least, of)
    from_end[kind == EdgeKind.POLL] = True
    call_ns = np.full(len(src), -1, np.int64)
    rows = np.flatnonzero(kind == EdgeKind.SYNC)
    if rows.size:
        min_ns[rows], call_ns[rows] = _waits(trace, src[rows], dst[rows], before, of)
    return Latencies(min_ns, from_end, call_ns, least.stream_ns)


def _waits(
    trace: Trace, work: Array, call: Array, before: Array, of: Populations
) -> tuple[Array, Array]:
    """Least time from the end of work to the end of calls that wait for it, and of the calls alone.

    A call that ended longer after the work than surely waiting ones usually do was busy with itself.
    A call that itself launched a copy to the host waits for it, however late it returns: what it does itself, as
    from a buffer of the runtime to memory that is not pinned, it can do only with what was copied.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    end, population = ts + dur, of.at(call)
    gap, waited = end[call] - end[work], end[work] - ts[call]
    sure = waited > _SURE_RATIO * gap

    def quantile(chosen: Array, values: Array, share: float) -> Array:
        """Quantile of each population of the chosen ones of the calls' values."""
        return quantiles(population[chosen], values[chosen], share, of.count)

    is_sure = np.zeros(of.count, bool)
    is_sure[population[sure]] = True
    # a call that began behind the work's end waited for less than it lasts
    counts = sure | ~is_sure[population]
    min_ns = quantile(counts, np.where(sure, gap, np.minimum(gap, dur[call])), MIN_QUANTILE)
    lower, upper = (quantile(sure, gap, share) for share in (0.25, 0.75))
    usual = np.where(is_sure, upper + _FENCE * (upper - lower), min_ns)[population]
    min_ns = min_ns[population]
    _, name = gather.distinct(population, trace.array("name")[call])
    alone = np.where(waited > 0, gap, dur[call])
    call_ns = quantiles(name, alone, MIN_QUANTILE, int(name.max()) + 1)[name]
    steady = _returns_steadily(name, gap, dur[call], waited)
    role = ordering_calls.node_roles(trace)[call]
    only_waits = is_any(role, ONLY_WAITS)
    rows = np.flatnonzero(is_any(trace.array("kind"), CALLS))
    usual_call_ns = quantiles(of.at(rows), dur[rows], MIN_QUANTILE, of.count)[population]
    call_ns[only_waits] = np.minimum(call_ns, usual_call_ns)[only_waits]
    # a launch that waited did so for room in its queue, and has nothing else to do behind that
    own_work = trace.launch[work] == call
    launches = np.zeros(len(dur), bool)
    launches[trace.launch[trace.launch >= 0]] = True
    for_room = launches[call] & (role == Role.NONE) & ~own_work
    only_waits |= for_room
    if for_room.any():
        call_ns[for_room] = _without_wait(trace, work[for_room], call[for_room], before, of)
    # a short wait may have been over before the call itself was
    own_ns = quantile(waited <= 0, dur[call], MIN_QUANTILE)[population]
    long = waited > np.maximum(own_ns, usual)
    ends_with_wait = sure | (gap <= usual) | (only_waits & long) | steady
    to_host = np.array([bool(COPY_TO_HOST.match(n)) for n in trace.names()] or [False])
    fetched = own_work & to_host[trace.array("name")[work]]
    ends_with_wait |= fetched
    latency_ns = np.where(fetched & (gap > usual), gap, np.minimum(min_ns, gap))
    return latency_ns, np.where(ends_with_wait, np.minimum(call_ns, dur[call]), -1)


def poll_returns(
    gap_ns: Array, rested_ns: Array, population: Array, count: int
) -> tuple[Array, Array]:
    """Time from the end of work to where hosts went on that polled for it, and their own time until there.

    It is the measured one, negative where the work went on behind what it wrote, and at most that of hosts that surely
    waited. Of hosts that went on later than that their own time is not known (-1): they were busy with themselves.

    Parameters
    ----------
    gap_ns, rested_ns
        For each poll, time from the end of the work, and from what its thread did before.
    population, count
        Population of each, and how many there are.
    """
    sure = rested_ns > _SURE_RATIO * np.abs(gap_ns)
    latest, is_sure = np.full(count, np.iinfo(np.int64).min), np.zeros(count, bool)
    np.maximum.at(latest, population[sure], gap_ns[sure])
    is_sure[population[sure]] = True
    usual = np.where(is_sure, latest, 0)[population]
    return np.minimum(gap_ns, usual), np.where(gap_ns <= usual, 0, -1)


def _without_wait(trace: Trace, work: Array, call: Array, before: Array, of: Populations) -> Array:
    """Usual time of launches without their wait, for each that waited for room in its queue.

    Others of their names, for which there was room, show it. Where it was always full: there is room when the work behind
    that which a launch waited for has started; then the launch is done.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    end, names = ts + dur, len(trace.names())
    name, waits = trace.array("name"), end[work] > ts[call]
    rows = np.flatnonzero(is_any(trace.array("kind"), CALLS))
    waiting = gather.unique(of.keys(call[waits], name[call[waits]], names))
    alike = np.isin(of.keys(rows, name[rows], names), waiting)
    alike[np.isin(rows, call[waits])] = False
    rows = rows[alike]
    with_room = quantiles(of.at(rows), dur[rows], 0.5, of.count)
    is_known = np.bincount(of.at(rows), minlength=of.count) >= _MIN_CALLS
    behind = np.flatnonzero(before >= 0)
    room_at = end.copy()
    room_at[before[behind]] = np.maximum(ts[behind], end[before[behind]])
    own_ns = np.where(room_at[work] > ts[call], end[call] - room_at[work], end[call] - ts[call])
    full = quantiles(of.at(call), own_ns, 0.5, of.count)
    return np.where(is_known, with_room, full)[of.at(call)]


def _returns_steadily(name: Array, gap: Array, dur: Array, waited: Array) -> Array:
    """Mark calls that end with their wait, by when such calls of their name return.

    If what they do themselves determined their ends, their durations would vary less than the time
    since what they waited for, not several times as much.
    """
    steady, real = np.zeros(len(gap), bool), waited > 0
    many = np.bincount(name[real], minlength=int(name.max(initial=-1)) + 1) >= _MIN_CALLS
    chosen = np.flatnonzero(real & many[name])
    if not chosen.size:
        return steady
    _, code = gather.distinct(name[chosen])
    count, gap, dur, waited = int(code.max()) + 1, gap[chosen], dur[chosen], waited[chosen]

    def spread(values: Array) -> tuple[Array, Array]:
        lower, upper = (quantiles(code, values, share, count) for share in (0.25, 0.75))
        return upper, upper - lower

    upper, of_gaps = spread(gap)
    returns = _STEADIER * of_gaps <= spread(dur)[1]
    # of calls that waited long, as the ends of others may be their own
    sure = waited > _SURE_RATIO * gap
    some = np.zeros(count, bool)
    some[code[sure]] = True
    lower_sure, upper_sure = (quantiles(code[sure], gap[sure], s, count) for s in (0.25, 0.75))
    of_gaps = np.where(some, upper_sure - lower_sure, of_gaps)
    upper = np.where(some, upper_sure, upper)
    steady[chosen] = returns[code] & (gap <= (upper + _FENCE * of_gaps)[code])
    return steady
