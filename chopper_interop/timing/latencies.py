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
from chopper_interop.timing.start_latencies import MIN_QUANTILE, least_times, start_latencies
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
        Least time between two pieces of work on one stream.
    """

    min_ns: Array
    from_end: Array
    call_ns: Array
    stream_ns: int


def edge_latencies(trace: Trace, before: Array) -> Latencies:
    """Latencies of a trace's stored edges.

    Parameters
    ----------
    before
        As of `start_latencies.predecessors`.
    """
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    least = least_times(trace)
    min_ns, from_end = start_latencies(trace, before, least)
    from_end[kind == EdgeKind.POLL] = True
    call_ns = np.full(len(src), -1, np.int64)
    rows = np.flatnonzero(kind == EdgeKind.SYNC)
    min_ns[rows], call_ns[rows] = _waits(trace, src[rows], dst[rows], before)
    return Latencies(min_ns, from_end, call_ns, least.stream_ns)


def _waits(trace: Trace, work: Array, call: Array, before: Array) -> tuple[Array, Array]:
    """Least time from the end of work to the end of calls that wait for it, and of the calls alone.

    A call that ended longer after the work than surely waiting ones usually do was busy with itself.
    A call that itself launched a copy to the host waits for it, however late it returns: what it does itself, as
    from a buffer of the runtime to memory that is not pinned, it can do only with what was copied.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    end = ts + dur
    gap, waited = end[call] - end[work], end[work] - ts[call]
    sure = waited > _SURE_RATIO * gap
    # a call that began behind the work's end waited for less than it lasts
    min_ns = _quantile(gap[sure] if sure.any() else np.minimum(gap, dur[call]), MIN_QUANTILE)
    lower, upper = (_quantile(gap[sure], share) for share in (0.25, 0.75))
    usual = upper + _FENCE * (upper - lower) if sure.any() else min_ns
    _, name = gather.distinct(trace.array("name")[call])
    call_ns = np.zeros(len(call), np.int64)
    alone = np.where(waited > 0, gap, dur[call])
    steady = np.zeros(len(call), bool)
    for rows in _rows_by_code(name):
        call_ns[rows] = _quantile(alone[rows], MIN_QUANTILE)
        steady[rows] = _returns_steadily(gap[rows], dur[call[rows]], waited[rows])
    role = ordering_calls.node_roles(trace)[call]
    only_waits = is_any(role, ONLY_WAITS)
    calls = dur[is_any(trace.array("kind"), CALLS)]
    call_ns[only_waits] = np.minimum(call_ns[only_waits], _quantile(calls, MIN_QUANTILE))
    # a launch that waited did so for room in its queue, and has nothing else to do behind that
    own_work = trace.launch[work] == call
    launches = np.zeros(len(dur), bool)
    launches[trace.launch[trace.launch >= 0]] = True
    for_room = launches[call] & (role == Role.NONE) & ~own_work
    only_waits |= for_room
    call_ns[for_room] = _without_wait(trace, work[for_room], call[for_room], before)
    # a short wait may have been over before the call itself was
    own_ns = _quantile(dur[call[waited <= 0]], MIN_QUANTILE)
    long = waited > np.maximum(own_ns, usual)
    ends_with_wait = sure | (gap <= usual) | (only_waits & long) | steady
    to_host = np.array([bool(COPY_TO_HOST.match(n)) for n in trace.names()] or [False])
    fetched = own_work & to_host[trace.array("name")[work]]
    ends_with_wait |= fetched
    latency_ns = np.where(fetched & (gap > usual), gap, np.minimum(min_ns, gap))
    return latency_ns, np.where(ends_with_wait, np.minimum(call_ns, dur[call]), -1)


def poll_returns(gap_ns: Array, rested_ns: Array) -> tuple[Array, Array]:
    """Time from the end of work to where hosts went on that polled for it, and their own time until there.

    It is the measured one, negative where the work went on behind what it wrote, and at most that of hosts that surely
    waited. Of hosts that went on later than that their own time is not known (-1): they were busy with themselves.

    Parameters
    ----------
    gap_ns, rested_ns
        For each poll, time from the end of the work, and from what its thread did before.
    """
    sure = rested_ns > _SURE_RATIO * np.abs(gap_ns)
    usual = int(gap_ns[sure].max()) if sure.any() else 0
    return np.minimum(gap_ns, usual), np.where(gap_ns <= usual, 0, -1)


def _without_wait(trace: Trace, work: Array, call: Array, before: Array) -> Array:
    """Usual time of launches without their wait, for each that waited for room in its queue.

    Others of their names, for which there was room, show it. Where it was always full: there is room when the work behind
    that which a launch waited for has started; then the launch is done.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    end = ts + dur
    name, waits = trace.array("name"), end[work] > ts[call]
    alike = is_any(trace.array("kind"), CALLS) & np.isin(name, gather.unique(name[call[waits]]))
    alike[call[waits]] = False
    if np.count_nonzero(alike) >= _MIN_CALLS:
        return np.full(len(call), _quantile(dur[alike], 0.5))
    behind = np.flatnonzero(before >= 0)
    room_at = end.copy()
    room_at[before[behind]] = np.maximum(ts[behind], end[before[behind]])
    own_ns = np.where(room_at[work] > ts[call], end[call] - room_at[work], end[call] - ts[call])
    return np.full(len(call), _quantile(own_ns, 0.5))


def _returns_steadily(gap: Array, dur: Array, waited: Array) -> Array:
    """Mark calls of one name that end with their wait, by when such calls return.

    If what they do themselves determined their ends, their durations would vary less than the time
    since what they waited for, not several times as much.
    """
    real = waited > 0
    if np.count_nonzero(real) < _MIN_CALLS:
        return np.zeros(len(gap), bool)
    lower, upper = (_quantile(gap[real], share) for share in (0.25, 0.75))
    first, last = (_quantile(dur[real], share) for share in (0.25, 0.75))
    if _STEADIER * (upper - lower) > last - first:
        return np.zeros(len(gap), bool)
    # of calls that waited long, as the ends of others may be their own
    sure = gap[waited > _SURE_RATIO * gap]
    if sure.size:
        lower, upper = (_quantile(sure, share) for share in (0.25, 0.75))
    return real & (gap <= upper + _FENCE * (upper - lower))


def _rows_by_code(code: Array) -> list[Array]:
    """Rows of each code from 0 on."""
    first, row = gather.group_rows(code, int(code.max(initial=-1)) + 1)
    return np.split(row, first[1:-1]) if len(first) > 1 else []


def _quantile(values: Array, share: float, *, floor: bool = True) -> int:
    """Quantile that is one of the values; 0 of none. With `floor` only values from 0 on count."""
    if floor:
        values = values[values >= 0]
    if not values.size:
        return 0
    nth = int(share * (len(values) - 1))
    return int(np.partition(values, nth)[nth])
