"""Least latencies of what GPU work waits for: launches, events, and the work ahead on its stream.

They are facts of a whole job, of which some ranks are looked at at a time: what a launch, a wait or a piece of work
says of them is kept, in files where columns are, and quantiles are of all of it (`least_times`). What follows for each
edge needs no other rank (`start_latencies`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

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
from chopper_interop.timing.populations import Populations, populations
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
    """Least latencies of each population, of which a job is one, nanoseconds.

    Parameters
    ----------
    stream_ns
        Between two pieces of work on one stream.
    counts_from_end
        For each population and code of a name of calls (`Populations.keys`), whether launches count from the end of
        the call.
    launch_ns
        By whether a launch counts from its call's end, and by the same: since there.
    event_ns
        From the end of work to the start of what waits for it by an event.
    """

    stream_ns: Array
    counts_from_end: Array
    launch_ns: Array
    event_ns: Array


class _Launches(NamedTuple):
    """Launches of some ranks.

    Parameters
    ----------
    population
        That each is of.
    name, called, returned
        Population and name of the call as `Populations.keys`, its start and its end.
    began, free_at
        Start of the work, and when its stream was free.
    is_waited_for
        True if the call waits for the work, which was launched before the call's end then, whatever clocks show.
    """

    population: Array
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
    arrived, arrived_ns
        Population of work whose stream was free when its call began, and the time since.
    queued, ahead_ns, queued_ns
        Population of work whose call had returned before the work ahead had ended: time from the call to that end, and
        from there.
    at_once, at_once_ns
        Population of work without a known launch that waited for no other stream and began at once: time since the
        work ahead.
    calls
        Populations and names of calls that launched any, as `Populations.keys`.
    """

    arrived: Array
    arrived_ns: Array
    queued: Array
    ahead_ns: Array
    queued_ns: Array
    at_once: Array
    at_once_ns: Array
    calls: Array


Columns = TypeVar("Columns", _Launches, _StreamStarts)


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
    return trace.cached("least latencies", lambda job: find_least(job, _together(job)))


def _together(trace: Trace) -> Populations:
    return populations(trace, each_rank=False)


def start_latencies(
    trace: Trace, before: Array, least: LeastTimes, of: Populations | None = None
) -> tuple[Array, Array]:
    """Least latency of each edge to GPU work by a launch or an event, and a mask of launches that count from their call's end.

    Parameters
    ----------
    trace
        A job, or a batch of its ranks.
    before
        As of `predecessors`.
    least
        Of the job.
    of
        Its populations; None if it is one.
    """
    of = _together(trace) if of is None else of
    dst, kind = (trace.array(c, "edges") for c in ("dst", "kind"))
    min_ns, from_end = np.zeros(len(kind), np.int64), np.zeros(len(kind), bool)
    rows = np.flatnonzero(kind == EdgeKind.LAUNCH)
    launches = _launches_of(trace, before, rows, of)
    from_end[rows], min_ns[rows], _ = _of_launches(trace, rows, launches, least)
    rows = np.flatnonzero(kind == EdgeKind.EVENT)
    src = trace.array("src", "edges")[rows]
    ts, dur = trace.array("ts"), trace.array("dur")
    event_ns = least.event_ns[of.at(dst[rows])]
    min_ns[rows] = np.minimum(event_ns, ts[dst[rows]] - ts[src] - dur[src])
    return min_ns, from_end


def find_least(trace: Trace, of: Populations) -> LeastTimes:
    """Find the least latencies of the populations of a trace."""
    launches, streams = [], []
    for batch, part in rank_batches.batches(trace):
        before, of_part = predecessors(part), of.of_rows(batch)
        rows = np.flatnonzero(part.array("kind", "edges") == EdgeKind.LAUNCH)
        launches.append(_kept(_launches_of(part, before, rows, of_part)))
        streams.append(_kept(_stream_starts(part, before, of_part)))
    stream_ns = _stream_ns(trace, streams, of.count)
    names = len(trace.names())
    counts_from_end = _counts_from_end(launches, of.count * names)
    launch_ns = _launch_ns(launches, counts_from_end, names, of.count)
    least = LeastTimes(stream_ns, counts_from_end, launch_ns, np.zeros(of.count, np.int64))
    gaps = [_event_gaps(part, least, of.of_rows(at)) for at, part in rank_batches.batches(trace)]
    return LeastTimes(
        stream_ns, counts_from_end, launch_ns, _quantiles(gaps, MIN_QUANTILE, of.count)
    )


def _kept(columns: Columns) -> Columns:
    """Columns in files where arrays are; not the population of each value of a single one, which takes no memory."""
    return type(columns)(*(spill.kept(c) if c.flags.owndata else c for c in columns))


def _launches_of(trace: Trace, before: Array, rows: Array, of: Populations) -> _Launches:
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    free_at = np.where(before >= 0, end[before], _ALWAYS)
    free_at[dst[kind == EdgeKind.EVENT]] = _NEVER  # not known: never free
    waits = np.flatnonzero(kind == EdgeKind.SYNC)
    of_waits = dst[waits].astype(np.int64) * len(ts) + src[waits]
    call, work = src[rows], dst[rows]
    is_waited_for = gather.among(call.astype(np.int64) * len(ts) + work, of_waits)
    name = of.keys(call, trace.array("name")[call], len(trace.names()))
    return _Launches(of.at(call), name, ts[call], end[call], ts[work], free_at[work], is_waited_for)


def _stream_starts(trace: Trace, before: Array, of: Populations) -> _StreamStarts:
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
    by_call = call[launched]
    calls = of.keys(by_call, trace.array("name")[by_call], len(trace.names()))
    return _StreamStarts(
        arrived=of.at(behind[idle]),
        arrived_ns=(ts[behind] - ts[call])[idle],
        queued=of.at(behind[queued]),
        ahead_ns=(end[ahead] - ts[call])[queued],
        queued_ns=gap[queued],
        at_once=of.at(behind[at_once]),
        at_once_ns=gap[at_once],
        calls=gather.unique_codes(calls),
    )


def _stream_ns(trace: Trace, streams: list[_StreamStarts], count: int) -> Array:
    """Least time between two pieces of work on one stream, in nanoseconds, of each population.

    Taken from work whose launch had reached the GPU, as launches to idle streams usually do, before the
    work ahead of it had ended, as other work may have waited for its launch; where no launches are recorded, from
    work that waited for no other stream and began at once. Without any such work it is what is usual, and not the least time of the other
    work: that had waited for its launch (4.9 µs on an MI300X; 3.4 instead of 1.3 µs of a simulated host-bound job, of which
    the time with half the host's was then 7.5 % too long).
    """
    arrives_ns = _quantiles([(of.arrived, of.arrived_ns) for of in streams], 0.5, count)
    has_queued = np.zeros(count, bool)
    for of in streams:
        has_queued[of.queued] = True
    gaps = []
    for of in streams:
        arrived = of.ahead_ns >= arrives_ns[of.queued]
        alone = ~has_queued[of.at_once]
        population = np.concatenate([of.queued[arrived], of.at_once[alone]])
        gap_ns = np.concatenate([of.queued_ns[arrived], of.at_once_ns[alone]])
        gaps.append((population, spill.kept(gap_ns)))
    of_gaps = sorted_groups(gaps, count)
    usual_ns = _usual_stream_ns(trace, (of.calls for of in streams), count)
    return np.where(of_gaps.count > 0, of_gaps.quantile(MIN_QUANTILE), usual_ns)


def _usual_stream_ns(trace: Trace, calls: Iterable[Array], count: int) -> Array:
    """Least time between two pieces of work on one stream, in nanoseconds, by the names of the calls that launched some.

    A computed trace has the least time that its nodes state, none.
    """
    names = trace.names()
    by_cuda = np.zeros(count * len(names), bool)
    if trace.meta.clock != COMPUTED:
        is_cuda = np.array([bool(CUDA_CALL.match(name)) for name in names], bool)
        for codes in calls:
            by_cuda[codes] = is_cuda[codes % max(len(names), 1)]
    return np.where(by_cuda.reshape(count, -1).any(axis=1), _CUDA_STREAM_NS, 0)


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


def _launch_ns(launches: list[_Launches], counts_from_end: Array, names: int, count: int) -> Array:
    """Least time of launches since where they count from, by that and by the names of calls, to streams that were free.

    For names without such work it is the least of all names of the population, since the same end of the call.
    """
    sure = []
    for of in launches:
        since = of.since(of.from_end(counts_from_end))
        # work from before the recording may have kept a stream from its first recorded work
        idle = (of.free_at <= since) & (of.free_at != _ALWAYS)
        sure.append((of.population[idle], spill.kept((of.began - since)[idle])))
    longest_ns = _quantiles(sure, MIN_QUANTILE, count) + _MAX_LATENCY_NS
    keys, since_call, from_ends, gaps = [], [], [], []
    all_names = count * names
    for of in launches:
        from_end = of.from_end(counts_from_end)
        since = of.since(from_end)
        gap = of.began - since
        max_ns = longest_ns[of.population]
        idle = of.free_at <= since
        idle &= gap <= np.where(from_end, max_ns, max_ns + of.returned - of.called)
        population, gap, from_end = of.population[idle], gap[idle], from_end[idle]
        keys.append(spill.kept(of.name[idle] + all_names * from_end.astype(np.int64)))
        since_call.append((population, spill.kept((of.began - of.called)[idle])))
        from_ends.append((population[from_end], spill.kept(gap[from_end])))
        gaps.append(spill.kept(gap))
    by_name = sorted_groups(list(zip(keys, gaps, strict=True)), 2 * all_names)
    overall = [_quantiles(parts, MIN_QUANTILE, count) for parts in (since_call, from_ends)]
    of_all = np.repeat(np.concatenate(overall), names)
    least = np.where(by_name.count > 0, by_name.quantile(MIN_QUANTILE), of_all)
    return least.reshape(2, all_names)


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


def _event_gaps(trace: Trace, least: LeastTimes, of: Populations) -> tuple[Array, Array]:
    """Time from the end of work to the start of what waits for it by an event, where nothing else explains it.

    And the population of each.
    """
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    events = np.flatnonzero(kind == EdgeKind.EVENT)
    if not events.size:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    before = predecessors(trace)
    ts = trace.array("ts")
    end = ts + trace.array("dur")
    # by how much each node started later than its stream or its launch explains: a wait for an event
    # counts only where its own gap is shorter, so that nothing else was reached later
    excess = np.full(len(ts), _NEVER)
    behind = np.flatnonzero(before >= 0)
    excess[behind] = ts[behind] - end[before[behind]] - least.stream_ns[of.at(behind)]
    rows = np.flatnonzero(kind == EdgeKind.LAUNCH)
    _, _, beyond = _of_launches(trace, rows, _launches_of(trace, before, rows, of), least)
    np.minimum.at(excess, dst[rows], beyond)
    gap = ts[dst[events]] - end[src[events]]
    sole = gap < excess[dst[events]]
    return of.at(dst[events][sole]), spill.kept(gap[sole])


def _spread(of_groups: SortedGroups) -> Array:
    """Distance of each group's median from a low quantile."""
    return of_groups.quantile(0.5, floor=False) - of_groups.quantile(_STEADY_QUANTILE, floor=False)


def _quantiles(parts: list[tuple[Array, Array]], share: float, count: int) -> Array:
    """Quantile of each population of the values from 0 on of all parts that is one of them; 0 of none."""
    return sorted_groups(parts, count).quantile(share)
