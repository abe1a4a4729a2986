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
from chopper_interop.edges.wait_pairs import IMMEDIATE_START_NS
from chopper_interop.schemas.kinds import CALLS, EdgeKind
from chopper_interop.schemas.meta import COMPUTED
from chopper_interop.schemas.names import COPY_TO_HOST, CUDA_CALL, ONLY_WAITS, Role
from chopper_interop.trace import Trace

_MIN_QUANTILE = 0.01
"""Quantile that stands for the minimum. Chosen: low enough for a least latency, and the very lowest
value, which may be an error of a clock, does not decide where there are 100 values or more."""
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
_MAX_LATENCY_NS = 50_000
"""By how much the least latency of a launch may exceed that of all launches to streams that were surely
idle. Chosen: well above the time in which a launch reaches an idle GPU; longer ones wait for something that was
not recorded, such as work from before the recording."""
_STEADY_QUANTILE = 0.05
"""Quantile from which the spread up to the median is taken, and below which a time may be negative
without counting. Chosen: wider than `_MIN_QUANTILE`, as a spread needs more than single values."""

_CUDA_STREAM_NS = 900
"""Least time between two kernels of a stream of CUDA, for traces in which no work waited for the one ahead: 672 ns on a V100,
864 and 960 on two H100, 992 on an A100, in public traces with times in nanoseconds. ROCm's kernels last until the next can begin
(1 ns at most in six traces of MI300X and MI350X)."""


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
    """

    min_ns: Array
    from_end: Array
    call_ns: Array


def edge_latencies(trace: Trace, before: Array) -> Latencies:
    """Latencies of a trace's stored edges.

    Parameters
    ----------
    before
        For each node the work before it on its stream; -1 if there is none.
    """
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    min_ns = np.zeros(len(src), np.int64)
    from_end = np.zeros(len(src), bool)
    call_ns = np.full(len(src), -1, np.int64)
    # by how much each node started later than its stream or its launch explains: a wait for an event
    # counts only where its own gap is shorter, so that nothing else was reached later
    excess = np.full(len(ts), np.iinfo(np.int64).max)
    behind = np.flatnonzero(before >= 0)
    excess[behind] = ts[behind] - end[before[behind]] - stream_latency(trace, before)
    free_at = np.where(before >= 0, end[before], np.iinfo(np.int64).min)
    free_at[dst[kind == EdgeKind.EVENT]] = np.iinfo(np.int64).max  # not known: never free
    from_end[kind == EdgeKind.POLL] = True
    rows = np.flatnonzero(kind == EdgeKind.LAUNCH)
    waits = np.flatnonzero(kind == EdgeKind.SYNC)
    of_waits = dst[waits].astype(np.int64) * len(ts) + src[waits]
    is_waited_for = gather.among(src[rows].astype(np.int64) * len(ts) + dst[rows], of_waits)
    from_end[rows], min_ns[rows], beyond = _launches(
        trace, src[rows], dst[rows], free_at, is_waited_for
    )
    np.minimum.at(excess, dst[rows], beyond)
    rows = np.flatnonzero(kind == EdgeKind.EVENT)
    gap = ts[dst[rows]] - end[src[rows]]
    alone = gap < excess[dst[rows]]
    min_ns[rows] = np.minimum(_quantile(gap[alone], _MIN_QUANTILE), gap)
    rows = np.flatnonzero(kind == EdgeKind.SYNC)
    min_ns[rows], call_ns[rows] = _waits(trace, src[rows], dst[rows], before)
    return Latencies(min_ns, from_end, call_ns)


def _launches(
    trace: Trace, call: Array, work: Array, free_at: Array, is_waited_for: Array
) -> tuple[Array, ...]:
    """Mask of launches that count from their call's end, least latencies, and the rest of each gap.

    Work that its call waits for was launched before the call's end, whatever clocks show.
    """
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    name = trace.array("name")[call]
    from_end = _counts_from_end(name, ts[call], end[call], ts[work], free_at[work])
    from_end &= ~is_waited_for
    since = np.where(from_end, end[call], ts[call])
    gap = ts[work] - since
    idle = free_at[work] <= since
    # work from before the recording may have kept a stream from its first recorded work
    sure = idle & (free_at[work] != np.iinfo(np.int64).min)
    max_ns = _quantile(gap[sure], _MIN_QUANTILE) + _MAX_LATENCY_NS
    idle &= gap <= np.where(from_end, max_ns, max_ns + end[call] - ts[call])
    min_ns = _min_by_name(name, from_end, gap, ts[work] - ts[call], idle)
    # of a graph's kernels the first to start bounds the latency, as the others wait for each other
    first_gap = np.full(len(ts), np.iinfo(np.int64).max)
    np.minimum.at(first_gap, call, gap)
    min_ns = np.minimum(min_ns, first_gap[call])
    return from_end, min_ns, gap - min_ns


def stream_latency(trace: Trace, before: Array) -> int:
    """Least time between two pieces of work on one stream, in nanoseconds.

    Taken from work whose launch had reached the GPU, as launches to idle streams usually do, before the
    work ahead of it had ended, as other work may have waited for its launch; where no launches are recorded, from
    work that waited for no other stream and began at once. Without any such work it is what is usual, and not the least time of the other
    work: that had waited for its launch (4.9 µs on an MI300X; 3.4 instead of 1.3 µs of a simulated host-bound job, of which
    the time with half the host's was then 7.5 % too long).

    Parameters
    ----------
    before
        For each node the work before it on its stream; -1 if there is none.
    """
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    behind = np.flatnonzero(before >= 0)
    ahead = before[behind]
    call = trace.launch[behind]
    launched = call >= 0
    idle = launched & (end[ahead] <= ts[call])
    arrives_ns = _quantile((ts[behind] - ts[call])[idle], 0.5)
    queued = launched & (end[call] <= end[ahead])
    if not queued.any():
        waits = np.zeros(len(ts), bool)
        waits[trace.array("dst", "edges")[trace.array("kind", "edges") == EdgeKind.EVENT]] = True
        queued = ~launched & ~waits[behind] & (ts[behind] - end[ahead] <= IMMEDIATE_START_NS)
    queued &= ~launched | (ts[call] + arrives_ns <= end[ahead])
    if not queued.any():
        return _usual_stream_latency(trace, call[launched])
    return _quantile((ts[behind] - end[ahead])[queued], _MIN_QUANTILE)


def _usual_stream_latency(trace: Trace, calls: Array) -> int:
    """Least time between two pieces of work on one stream, in nanoseconds, by the names of the calls that launched some.

    A computed trace has the least time that its nodes state, none.
    """
    if trace.meta.clock == COMPUTED:
        return 0
    names = trace.names()
    launched = np.unique(trace.array("name")[calls]).tolist()
    return _CUDA_STREAM_NS if any(CUDA_CALL.match(names[code]) for code in launched) else 0


def _counts_from_end(
    name: Array, called: Array, returned: Array, began: Array, free_at: Array
) -> Array:
    """Mark launches that count from the end of their call.

    It does for names of calls of which the work begins behind the call, and, where the stream was
    idle, the time since the call's end is at least as steady as the time since its start.
    """
    _, code = gather.distinct(name)
    since_end, since_call = began - returned, began - called
    by_end = np.zeros(int(code.max(initial=-1)) + 1, bool)
    for number, rows in enumerate(_rows_by_code(code)):
        by_end[number] = _quantile(since_end[rows], _STEADY_QUANTILE, floor=False) >= 0
        idle = rows[free_at[rows] <= called[rows]]
        if idle.size:
            by_end[number] &= _spread(since_end[idle]) <= _spread(since_call[idle])
    return by_end[code] & (began >= returned)


def _min_by_name(name: Array, from_end: Array, gap: Array, since_call: Array, free: Array) -> Array:
    """Least gap of each name, of work whose stream was free; never more than a gap itself.

    For names without such work it is the least of all names, since the same end of the call.
    """
    _, code = gather.distinct(name, from_end)
    min_ns = np.zeros(len(gap), np.int64)
    overall = [_quantile(gaps, _MIN_QUANTILE) for gaps in (since_call[free], gap[free & from_end])]
    for rows in _rows_by_code(code):
        idle = rows[free[rows]]
        min_ns[rows] = (
            _quantile(gap[idle], _MIN_QUANTILE) if idle.size else overall[int(from_end[rows[0]])]
        )
    return np.minimum(min_ns, gap)


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
    min_ns = _quantile(gap[sure] if sure.any() else np.minimum(gap, dur[call]), _MIN_QUANTILE)
    lower, upper = (_quantile(gap[sure], share) for share in (0.25, 0.75))
    usual = upper + _FENCE * (upper - lower) if sure.any() else min_ns
    _, name = gather.distinct(trace.array("name")[call])
    call_ns = np.zeros(len(call), np.int64)
    alone = np.where(waited > 0, gap, dur[call])
    steady = np.zeros(len(call), bool)
    for rows in _rows_by_code(name):
        call_ns[rows] = _quantile(alone[rows], _MIN_QUANTILE)
        steady[rows] = _returns_steadily(gap[rows], dur[call[rows]], waited[rows])
    role = ordering_calls.node_roles(trace)[call]
    only_waits = is_any(role, ONLY_WAITS)
    calls = dur[is_any(trace.array("kind"), CALLS)]
    call_ns[only_waits] = np.minimum(call_ns[only_waits], _quantile(calls, _MIN_QUANTILE))
    # a launch that waited did so for room in its queue, and has nothing else to do behind that
    own_work = trace.launch[work] == call
    launches = np.zeros(len(dur), bool)
    launches[trace.launch[trace.launch >= 0]] = True
    for_room = launches[call] & (role == Role.NONE) & ~own_work
    only_waits |= for_room
    call_ns[for_room] = _without_wait(trace, work[for_room], call[for_room], before)
    # a short wait may have been over before the call itself was
    own_ns = _quantile(dur[call[waited <= 0]], _MIN_QUANTILE)
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


def _spread(values: Array) -> int:
    """Distance of the median from a low quantile."""
    return _quantile(values, 0.5, floor=False) - _quantile(values, _STEADY_QUANTILE, floor=False)


def _quantile(values: Array, share: float, *, floor: bool = True) -> int:
    """Quantile that is one of the values; 0 of none. With `floor` only values from 0 on count."""
    if floor:
        values = values[values >= 0]
    if not values.size:
        return 0
    nth = int(share * (len(values) - 1))
    return int(np.partition(values, nth)[nth])
