"""Least latencies of what GPU work waits for: launches, events, and the work ahead on its stream.

They are facts of a whole job, of which some ranks are looked at at a time: what a launch, a wait or a piece of work
says of them is kept, in files where columns are, and quantiles are of all of it (`least_times`). What follows for each
edge needs no other rank (`start_latencies`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, gather, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.arrays.sorted_groups import SortedGroups, sorted_groups
from chopper_interop.edges.wait_pairs import IMMEDIATE_START_NS
from chopper_interop.graph.chains import stream_orders
from chopper_interop.schemas.kinds import GPU_LANES, EdgeKind
from chopper_interop.schemas.meta import COMPUTED
from chopper_interop.schemas.names import CUDA_CALL
from chopper_interop.trace import Trace

MIN_QUANTILE = 0.01
"""Quantile that stands for the minimum. Chosen: low enough for a least latency, and the very lowest
value, which may be an error of a clock, does not decide where there are 100 values or more."""
_MAX_LATENCY_NS = 50_000
"""By how much the least latency of a launch may exceed that of all launches to streams that were surely
idle. Chosen: well above the time in which a launch reaches an idle GPU; longer ones wait for something that was
not recorded, such as work from before the recording."""
_STEADY_QUANTILE = 0.05
"""Quantile from which the spread up to the median is taken, and below which a time may be negative
without counting. Chosen: wider than `MIN_QUANTILE`, as a spread needs more than single values."""
_CUDA_STREAM_NS = 900
"""Least time between two kernels of a stream of CUDA, for traces in which no work waited for the one ahead: 672 ns on a V100,
864 and 960 on two H100, 992 on an A100, in public traces with times in nanoseconds. ROCm's kernels last until the next can begin
(1 ns at most in six traces of MI300X and MI350X)."""
_NEVER, _ALWAYS = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@dataclass(frozen=True)
class LeastTimes:
    """Least latencies of a job, nanoseconds.

    Parameters
    ----------
    stream_ns
        Between two pieces of work on one stream.
    counts_from_end
        For the code of each name of calls, whether launches count from the end of the call.
    launch_ns
        By whether a launch counts from its call's end, and the code of the call's name: since there.
    event_ns
        From the end of work to the start of what waits for it by an event.
    """

    stream_ns: int
    counts_from_end: Array
    launch_ns: Array
    event_ns: int


class _Launches(NamedTuple):
    """Launches of some ranks.

    Parameters
    ----------
    name, called, returned
        Name of the call as its code, its start and its end.
    began, free_at
        Start of the work, and when its stream was free.
    is_waited_for
        True if the call waits for the work, which was launched before the call's end then, whatever clocks show.
    """

    name: Array
    called: Array
    returned: Array
    began: Array
    free_at: Array
    is_waited_for: Array

    def from_end(self, counts_from_end: Array) -> Array:
        """Mark those that count from the end of the call."""
        by_end = counts_from_end[self.name] & (self.began >= self.returned)
        return np.asarray(by_end & ~self.is_waited_for)

    def since(self, from_end: Array) -> Array:
        """Time from which each counts."""
        return np.where(from_end, self.returned, self.called)


class _StreamStarts(NamedTuple):
    """Work of some ranks that has work ahead on its stream.

    Parameters
    ----------
    arrived_ns
        Of work whose stream was free when its call began, the time since.
    ahead_ns, queued_ns
        Of work whose call had returned before the work ahead had ended: time from the call to that end, and from there.
    at_once_ns
        Of work without a known launch that waited for no other stream and began at once: time since the work ahead.
    calls
        Names of calls that launched any.
    """

    arrived_ns: Array
    ahead_ns: Array
    queued_ns: Array
    at_once_ns: Array
    calls: Array


def predecessors(trace: Trace) -> Array:
    """For each node the work before it on its stream, -1 if there is none; found once for each trace."""
    return trace.cached("stream predecessors", _find_predecessors)


def _find_predecessors(trace: Trace) -> Array:
    on_gpu = is_any(trace.array("kind", "lanes"), GPU_LANES)
    # lanes of a job stay whole in a trace of some ranks, which has only some: a heap each for these
    lane = trace.array("lane")
    present = gather.unique_codes(lane)
    number = np.zeros(len(on_gpu), lane.dtype)
    number[present] = np.arange(len(present))
    ts, dur = trace.array("ts"), trace.array("dur")
    return np.asarray(stream_orders(ts, dur, number[lane], on_gpu[present]))


def least_times(trace: Trace) -> LeastTimes:
    """Least latencies of a trace, found once for each."""
    return trace.cached("least latencies", _find_least)


def start_latencies(trace: Trace, before: Array, least: LeastTimes) -> tuple[Array, Array]:
    """Least latency of each edge to GPU work by a launch or an event, and a mask of launches that count from their call's end.

    Parameters
    ----------
    trace
        A job, or a batch of its ranks.
    before
        As of `predecessors`.
    least
        Of the job.
    """
    dst, kind = (trace.array(c, "edges") for c in ("dst", "kind"))
    min_ns, from_end = np.zeros(len(kind), np.int64), np.zeros(len(kind), bool)
    rows = np.flatnonzero(kind == EdgeKind.LAUNCH)
    launches = _launches_of(trace, before, rows)
    from_end[rows], min_ns[rows], _ = _of_launches(trace, rows, launches, least)
    rows = np.flatnonzero(kind == EdgeKind.EVENT)
    src = trace.array("src", "edges")[rows]
    ts, dur = trace.array("ts"), trace.array("dur")
    min_ns[rows] = np.minimum(least.event_ns, ts[dst[rows]] - ts[src] - dur[src])
    return min_ns, from_end


def _find_least(trace: Trace) -> LeastTimes:
    launches, streams = [], []
    for _, part in rank_batches.batches(trace):
        before = predecessors(part)
        rows = np.flatnonzero(part.array("kind", "edges") == EdgeKind.LAUNCH)
        launches.append(_Launches(*map(spill.kept, _launches_of(part, before, rows))))
        streams.append(_StreamStarts(*map(spill.kept, _stream_starts(part, before))))
    stream_ns = _stream_ns(trace, streams)
    names = len(trace.names())
    counts_from_end = _counts_from_end(launches, names)
    launch_ns = _launch_ns(launches, counts_from_end, names)
    least = LeastTimes(stream_ns, counts_from_end, launch_ns, 0)
    gaps = [spill.kept(_event_gaps(part, least)) for _, part in rank_batches.batches(trace)]
    return LeastTimes(stream_ns, counts_from_end, launch_ns, _quantile(gaps, MIN_QUANTILE))


def _launches_of(trace: Trace, before: Array, rows: Array) -> _Launches:
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    free_at = np.where(before >= 0, end[before], _ALWAYS)
    free_at[dst[kind == EdgeKind.EVENT]] = _NEVER  # not known: never free
    waits = np.flatnonzero(kind == EdgeKind.SYNC)
    of_waits = dst[waits].astype(np.int64) * len(ts) + src[waits]
    call, work = src[rows], dst[rows]
    is_waited_for = gather.among(call.astype(np.int64) * len(ts) + work, of_waits)
    name = trace.array("name")[call]
    return _Launches(name, ts[call], end[call], ts[work], free_at[work], is_waited_for)


def _stream_starts(trace: Trace, before: Array) -> _StreamStarts:
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    behind = np.flatnonzero(before >= 0)
    ahead, call = before[behind], trace.launch[behind]
    launched = call >= 0
    idle = launched & (end[ahead] <= ts[call])
    queued = launched & (end[call] <= end[ahead])
    waits = np.zeros(len(ts), bool)
    waits[trace.array("dst", "edges")[trace.array("kind", "edges") == EdgeKind.EVENT]] = True
    gap = ts[behind] - end[ahead]
    at_once = ~launched & ~waits[behind] & (gap <= IMMEDIATE_START_NS)
    calls = gather.unique_codes(trace.array("name")[call[launched]])
    return _StreamStarts(
        (ts[behind] - ts[call])[idle],
        (end[ahead] - ts[call])[queued],
        gap[queued],
        gap[at_once],
        calls,
    )


def _stream_ns(trace: Trace, streams: list[_StreamStarts]) -> int:
    """Least time between two pieces of work on one stream, in nanoseconds.

    Taken from work whose launch had reached the GPU, as launches to idle streams usually do, before the
    work ahead of it had ended, as other work may have waited for its launch; where no launches are recorded, from
    work that waited for no other stream and began at once. Without any such work it is what is usual, and not the least time of the other
    work: that had waited for its launch (4.9 µs on an MI300X; 3.4 instead of 1.3 µs of a simulated host-bound job, of which
    the time with half the host's was then 7.5 % too long).
    """
    arrives_ns = _quantile([of.arrived_ns for of in streams], 0.5)
    if any(len(of.queued_ns) for of in streams):
        gaps = [spill.kept(of.queued_ns[of.ahead_ns >= arrives_ns]) for of in streams]
    else:
        gaps = [of.at_once_ns for of in streams]
    if not any(map(len, gaps)):
        return _usual_stream_ns(trace, (of.calls for of in streams))
    return _quantile(gaps, MIN_QUANTILE)


def _usual_stream_ns(trace: Trace, calls: Iterable[Array]) -> int:
    """Least time between two pieces of work on one stream, in nanoseconds, by the names of the calls that launched some.

    A computed trace has the least time that its nodes state, none.
    """
    if trace.meta.clock == COMPUTED:
        return 0
    names = trace.names()
    launched = {code for codes in calls for code in codes.tolist()}
    return _CUDA_STREAM_NS if any(CUDA_CALL.match(names[code]) for code in launched) else 0


def _counts_from_end(launches: list[_Launches], names: int) -> Array:
    """Mark names of calls of which launches count from the end of the call.

    They do if the work begins behind the call, and, where the stream was idle, the time since the call's end is at least
    as steady as the time since its start.
    """
    all_since = [(of.name, spill.kept(of.began - of.returned)) for of in launches]
    since_end: list[tuple[Array, Array]] = []
    since_call: list[tuple[Array, Array]] = []
    for of in launches:
        idle = of.free_at <= of.called
        name = spill.kept(of.name[idle])
        since_end.append((name, spill.kept((of.began - of.returned)[idle])))
        since_call.append((name, spill.kept((of.began - of.called)[idle])))
    begins_behind = sorted_groups(all_since, names).quantile(_STEADY_QUANTILE, floor=False) >= 0
    by_end, by_call = (_spread(sorted_groups(since, names)) for since in (since_end, since_call))
    return np.asarray(begins_behind & (by_end <= by_call))  # without idle streams both are 0


def _launch_ns(launches: list[_Launches], counts_from_end: Array, names: int) -> Array:
    """Least time of launches since where they count from, by that and by the names of calls, to streams that were free.

    For names without such work it is the least of all names, since the same end of the call.
    """
    sure = []
    for of in launches:
        since = of.since(of.from_end(counts_from_end))
        # work from before the recording may have kept a stream from its first recorded work
        idle = (of.free_at <= since) & (of.free_at != _ALWAYS)
        sure.append(spill.kept((of.began - since)[idle]))
    max_ns = _quantile(sure, MIN_QUANTILE) + _MAX_LATENCY_NS
    keys, since_call, gaps = [], [], []
    for of in launches:
        from_end = of.from_end(counts_from_end)
        since = of.since(from_end)
        gap = of.began - since
        idle = of.free_at <= since
        idle &= gap <= np.where(from_end, max_ns, max_ns + of.returned - of.called)
        keys.append(spill.kept((of.name + names * from_end.astype(np.int64))[idle]))
        since_call.append(spill.kept((of.began - of.called)[idle]))
        gaps.append(spill.kept(gap[idle]))
    by_name = sorted_groups(list(zip(keys, gaps, strict=True)), 2 * names)
    from_ends = [spill.kept(gap[key >= names]) for key, gap in zip(keys, gaps, strict=True)]
    overall = [_quantile(values, MIN_QUANTILE) for values in (since_call, from_ends)]
    of_all = np.repeat(overall, names)
    least = np.where(by_name.count > 0, by_name.quantile(MIN_QUANTILE), of_all)
    return least.reshape(2, names)


def _of_launches(
    trace: Trace, rows: Array, launches: _Launches, least: LeastTimes
) -> tuple[Array, Array, Array]:
    """Mask of launches that count from their call's end, least latencies, and the rest of each gap."""
    from_end = launches.from_end(least.counts_from_end)
    gap = launches.began - launches.since(from_end)
    min_ns = np.minimum(least.launch_ns[from_end.astype(np.int64), launches.name], gap)
    # of a graph's kernels the first to start bounds the latency, as the others wait for each other
    call = trace.array("src", "edges")[rows]
    first_gap = np.full(trace.nodes.num_rows, _NEVER)
    np.minimum.at(first_gap, call, gap)
    min_ns = np.minimum(min_ns, first_gap[call])
    return from_end, min_ns, gap - min_ns


def _event_gaps(trace: Trace, least: LeastTimes) -> Array:
    """Time from the end of work to the start of what waits for it by an event, where nothing else explains it."""
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    events = np.flatnonzero(kind == EdgeKind.EVENT)
    if not events.size:
        return np.empty(0, np.int64)
    before = predecessors(trace)
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    # by how much each node started later than its stream or its launch explains: a wait for an event
    # counts only where its own gap is shorter, so that nothing else was reached later
    excess = np.full(len(ts), _NEVER)
    behind = np.flatnonzero(before >= 0)
    excess[behind] = ts[behind] - end[before[behind]] - least.stream_ns
    rows = np.flatnonzero(kind == EdgeKind.LAUNCH)
    _, _, beyond = _of_launches(trace, rows, _launches_of(trace, before, rows), least)
    np.minimum.at(excess, dst[rows], beyond)
    gap = ts[dst[events]] - end[src[events]]
    return np.asarray(gap[gap < excess[dst[events]]])


def _spread(of_groups: SortedGroups) -> Array:
    """Distance of each group's median from a low quantile."""
    return of_groups.quantile(0.5, floor=False) - of_groups.quantile(_STEADY_QUANTILE, floor=False)


def _quantile(parts: list[Array], share: float) -> int:
    """Quantile of the values from 0 on of all parts that is one of them; 0 of none."""
    in_one = [(np.zeros(len(values), np.int64), values) for values in parts]
    return int(sorted_groups(in_one, 1).quantile(share)[0])
