"""The schedule of an ET: its nodes, their dependencies, and the time each holds its slot.

A simulator such as ASTRA-sim has, for each rank, one slot for host operations, one for compute
and one for communication on the GPU. It knows no streams and no clock: a node starts when what
it depends on has ended and its slot is free. So that the measured time comes out,

* work that overlaps other work of its slot counts with the time that it adds to it;
* waits that no record explains become nodes of their own (`Kind.HOST_GAP`);
* work that starts after work on the other slot ended depends on that;
* work depends on its launch, or on the node before the launch if it began long before the launch
  call ended, as that of a graph does;
* host operations are cut where the next one starts, as they nest;
* a host operation that waits for the GPU lasts until it begins to wait. The node after it, which is
  a gap of its own time where it has one, depends on the work that it waited for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.members import is_any
from chopper_interop.converters.chakra import schedule
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

HOST_KINDS = (Kind.CPU_OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.DRIVER, Kind.API)
"""Kinds of host operations that become nodes; Python frames only say who called these."""

_BETWEEN_HOST = (EdgeKind.FWDBWD, EdgeKind.DATA, EdgeKind.HANDOVER, EdgeKind.DEPENDENCY)
_BETWEEN_WORK = (EdgeKind.EVENT, EdgeKind.DEPENDENCY)
"""Edges that ETs carry unchanged: the chain of the host and the slots of the GPU allow for them."""


@dataclass(frozen=True)
class Plan:
    """Nodes of one rank's ET, in order of start; dependencies point to earlier rows.

    Parameters
    ----------
    row
        Row of the trace's nodes; -1 for a gap.
    gap_owner
        For a gap, the row of the host operation whose own time it is; else -1.
    start_ns, duration_ns
        As measured, from the job's start.
    slot_us
        Microseconds for which the node holds its slot.
    on_host
        True for host operations and gaps between them.
    dep_first, dep
        Dependencies of node i are ``dep[dep_first[i]:dep_first[i + 1]]``.
    waits_as_time
        How many waits of the host are measured time and no dependency, because the work that they
        are for overlapped other work, and ends later in a simulator that has one slot for both, or
        because clocks contradict each other.
    """

    row: Array
    gap_owner: Array
    start_ns: Array
    duration_ns: Array
    slot_us: Array
    on_host: Array
    dep_first: Array
    dep: Array
    waits_as_time: int = 0


def build_plan(trace: Trace, *, host: bool, origin_ns: int) -> Plan:
    """Schedule a trace of one rank.

    Parameters
    ----------
    trace
        Nodes of a single rank.
    host
        Include host operations; without them, the waits for the host show as gaps.
    origin_ns
        When the job starts, on the trace's `ts` axis: before that nothing is simulated.
    """
    kind, ts, dur = (trace.array(c) for c in ("kind", "ts", "dur"))
    gpu = np.flatnonzero(is_any(kind, GPU_WORK))
    ts = ts - origin_ns
    host_rows = _host_rows(trace) if host else np.empty(0, np.int64)
    gpu_part, links, waits_as_time = _schedule_gpu(trace, gpu, host_rows, ts)
    host_part = schedule.host_schedule(
        ts[host_rows],
        dur[host_rows],
        _containing(trace, host_rows),
        links.waits.until_ns,
        _last_awaited(links.waits, (ts + dur)[gpu]),
        _last_awaited(links.waits, gpu_part.ended_us),
    )
    plan = _combine(gpu, host_rows, gpu_part, host_part, links, ts, dur)
    return replace(plan, waits_as_time=waits_as_time)


def _schedule_gpu(
    trace: Trace, gpu: Array, host_rows: Array, ts: Array
) -> tuple[schedule.GpuSchedule, _Links, int]:
    """Schedule GPU work with those waits of the host that hold in the schedule they lead to.

    Returns
    -------
    gpu_part, links
        The schedule, and the dependencies between host and GPU.
    waits_as_time
        How many recorded waits do not hold.
    """
    kind, dur = trace.array("kind"), trace.array("dur")
    launch = _launches(trace, host_rows)[gpu]
    events = _satisfied_edges(trace, _BETWEEN_WORK, gpu, gpu)
    host_edges = _satisfied_edges(trace, _BETWEEN_HOST, host_rows, host_rows)
    events_of_work = gather.group_values(events[1], events[0], len(gpu))
    # A wait is sound if its work still ends in time in the schedule, and does not itself depend on
    # what the wait delays. Each round drops the unsound ones, so the loop ends.
    sound = np.ones(len(gpu), np.bool_)
    recorded_waits = None
    while True:
        waits = _waits(trace, gpu, host_rows, launch, ts, sound)
        own_time = _time_before_wait(host_rows, ts, dur, waits)
        launches = _launch_times(launch, host_rows, ts[gpu], ts[host_rows], own_time)
        gpu_part = schedule.gpu_schedule(
            ts[gpu],
            dur[gpu],
            np.where(kind[gpu] == Kind.COMM, schedule.COMM, schedule.COMPUTE),
            trace.array("lane")[gpu],
            launches.at_ns,
            len(trace.lanes),
            *events_of_work,
        )
        launched_by = launches.position - launches.at_start
        needed = schedule.last_host_needed(launched_by, gpu_part, *events_of_work)
        unsound = needed[waits.work] >= waits.delayed  # they would close a circle
        if recorded_waits is None:
            recorded_waits = len(waits.work)
            late = gpu_part.ended_us * 1000 > (ts + dur)[gpu] + schedule.UNEXPLAINED_NS
            unsound |= late[waits.work]
        if not unsound.any():
            links = _Links(launches, waits, events, host_edges)
            return gpu_part, links, recorded_waits - len(waits.work)
        sound[waits.work[unsound]] = False


class _Waits(NamedTuple):
    """Waits of the host for the GPU.

    Parameters
    ----------
    work, delayed
        Pieces of GPU work, and the host operations that begin no sooner than they have ended.
    until_ns
        For each host operation, when it begins to wait; -1 if it does not.
    """

    work: Array
    delayed: Array
    until_ns: Array


def _waits(
    trace: Trace, gpu: Array, host_rows: Array, launch: Array, ts: Array, sound: Array
) -> _Waits:
    """Recorded waits for `sound` work that delay the chain of the host."""
    work, waiter = _edge_positions(trace, (EdgeKind.SYNC,), gpu, host_rows)
    dur = trace.array("dur")
    end = (ts + dur)[gpu[work]]
    usable = sound[work] & (end <= (ts + dur)[host_rows[waiter]])
    work, waiter, end = work[usable], waiter[usable], end[usable]
    launches_it = launch[work] == host_rows[waiter]
    delayed, until_ns = schedule.host_waits(
        ts[host_rows],
        dur[host_rows],
        trace.array("lane")[host_rows],
        ts[gpu[work]],
        end,
        waiter,
        launches_it,
    )
    return _Waits(work[delayed >= 0], delayed[delayed >= 0], until_ns)


def _time_before_wait(host_rows: Array, ts: Array, dur: Array, waits: _Waits) -> Array:
    """Duration of each host operation until it waits."""
    waiting = waits.until_ns >= 0
    return np.where(waiting, waits.until_ns - ts[host_rows], dur[host_rows])


def _last_awaited(waits: _Waits, ended: Array) -> Array:
    """Latest of the values `ended` of the work that delays each host operation; -1 if none."""
    latest = np.full(len(waits.until_ns), -1, np.int64)
    np.maximum.at(latest, waits.delayed, ended[waits.work])
    return latest


def _edge_positions(
    trace: Trace, kinds: tuple[EdgeKind, ...], src_rows: Array, dst_rows: Array
) -> tuple[Array, Array]:
    """Edges of these kinds, as positions in `src_rows` and in `dst_rows`."""
    position = np.full((2, trace.nodes.num_rows), -1, np.int64)
    position[0, src_rows], position[1, dst_rows] = (
        np.arange(len(src_rows)),
        np.arange(len(dst_rows)),
    )
    of_kind = is_any(trace.array("kind", "edges"), kinds)
    src, dst = (
        position[side][trace.array(c, "edges")[of_kind]] for side, c in enumerate(("src", "dst"))
    )
    both = (src >= 0) & (dst >= 0)
    return src[both], dst[both]


def _satisfied_edges(
    trace: Trace, kinds: tuple[EdgeKind, ...], src_rows: Array, dst_rows: Array
) -> tuple[Array, Array]:
    """`_edge_positions` of the edges whose source has ended when their destination begins."""
    src, dst = _edge_positions(trace, kinds, src_rows, dst_rows)
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    satisfied = (end[src_rows[src]] <= ts[dst_rows[dst]]) & (src < dst)
    return src[satisfied], dst[satisfied]


class _Launches(NamedTuple):
    """Launches that let each piece of GPU work start.

    Parameters
    ----------
    position
        Position of its launch among the host operations; -1 if that is not part of the plan.
    at_start
        True if it waits for the start of the launch, not for its end.
    at_ns
        When that is; -1 without a launch.
    """

    position: Array
    at_start: Array
    at_ns: Array


class _Links(NamedTuple):
    """Dependencies between host and GPU, and those recorded within each."""

    launches: _Launches
    waits: _Waits
    events: tuple[Array, Array]
    host_edges: tuple[Array, Array]


def _launch_times(
    launch: Array, host_rows: Array, start: Array, host_ts: Array, host_dur: Array
) -> _Launches:
    """Find when GPU work may start that is launched by these nodes and begins at `start`."""
    if not len(host_rows):
        absent = np.full(len(start), -1, np.int64)
        return _Launches(absent, np.zeros(len(start), np.bool_), absent)
    # a launch is one of `host_rows`, which ascend, so its position is found by bisection
    position = np.where(launch >= 0, np.searchsorted(host_rows, launch), -1)
    stop = host_ts + host_dur
    stop[:-1] = np.minimum(stop[:-1], host_ts[1:])  # an operation is cut where the next one starts
    at_start = (position >= 0) & (start < stop[position] - schedule.UNEXPLAINED_NS)
    at_ns = np.where(at_start, host_ts[position], stop[position])
    return _Launches(position, at_start, np.where(position >= 0, np.maximum(at_ns, 0), -1))


def _planned(trace: Trace, *, host: bool) -> Array:
    """Mask of the nodes of kinds that a plan holds."""
    return is_any(trace.array("kind"), GPU_WORK + (HOST_KINDS if host else ()))


def is_plannable(trace: Trace, *, host: bool) -> bool:
    """True if a plan would hold any node."""
    return bool(_planned(trace, host=host).any())


def first_start(trace: Trace, *, host: bool) -> int:
    """Start of the first node that a plan would hold; 0 if there is none."""
    ts = trace.array("ts")[_planned(trace, host=host)]
    return int(ts.min()) if ts.size else 0


def _host_rows(trace: Trace) -> Array:
    """Rows of host operations, in order of start, without those on the profiler's own lanes."""
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    kinds = is_any(trace.array("kind"), HOST_KINDS)
    return np.flatnonzero(kinds & threads[trace.array("lane")])


def _launches(trace: Trace, host_rows: Array) -> Array:
    """For each node, the launching host operation if that is part of the plan; else -1."""
    launch = np.full(trace.nodes.num_rows, -1, np.int64)
    of_kind = trace.array("kind", "edges") == EdgeKind.LAUNCH
    src, dst = (trace.array(c, "edges")[of_kind] for c in ("src", "dst"))
    planned = np.zeros(trace.nodes.num_rows, np.bool_)
    planned[host_rows] = True
    launch[dst] = np.where(planned[src], src, -1)
    return launch


def _containing(trace: Trace, host_rows: Array) -> Array:
    """For each host operation, the position of the one around it on its thread; -1 if none."""
    position = np.full(trace.nodes.num_rows, -1, np.int64)
    position[host_rows] = np.arange(len(host_rows))
    return _nearest_planned(trace.array("parent").astype(np.int64), position)[host_rows]


@jit
def _nearest_planned(parent: Array, position: Array) -> Array:
    """For each node, the position of the innermost node around it that has one; -1 if none."""
    # parents come before their children, so what is around a skipped parent is already known
    around = np.full(len(parent), -1, np.int64)
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            around[i] = position[p] if position[p] >= 0 else around[p]
    return around


def _combine(
    gpu: Array,
    host_rows: Array,
    gpu_part: schedule.GpuSchedule,
    host_part: schedule.HostSchedule,
    links: _Links,
    ts: Array,
    dur: Array,
) -> Plan:
    """Both halves and their gaps as one list in order of start."""
    # numbers before sorting: | GPU work | host operations | gaps of GPU work | gaps of the host |
    g, h = len(gpu), len(host_rows)
    gpu_gaps = np.flatnonzero(gpu_part.gap_us >= 0)
    host_gaps = np.flatnonzero(host_part.gap_us >= 0)
    work = np.concatenate([gpu, host_rows])
    no_row = np.full(len(gpu_gaps) + len(host_gaps), -1, np.int64)
    gap_start = np.concatenate([gpu_part.gap_ns[gpu_gaps], host_part.gap_ns[host_gaps]])
    gap_stop = np.concatenate([ts[gpu[gpu_gaps]], ts[host_rows[host_gaps]]])
    gap_us = [gpu_part.gap_us[gpu_gaps], host_part.gap_us[host_gaps]]
    owner = host_part.gap_owner[host_gaps]
    owner_row = np.where(owner >= 0, host_rows[owner] if h else -1, -1)
    columns = {
        "row": np.concatenate([work, no_row]),
        "gap_owner": np.concatenate([np.full(g + h + len(gpu_gaps), -1, np.int64), owner_row]),
        "start_ns": np.concatenate([ts[work], gap_start]),
        "duration_ns": np.concatenate([dur[work], gap_stop - gap_start]),
        "slot_us": np.concatenate([gpu_part.slot_us, host_part.slot_us, *gap_us]),
        "on_host": np.arange(g + h + len(no_row)) >= g,
    }
    columns["on_host"][g + h : g + h + len(gpu_gaps)] = False
    src, dst = _dependencies(gpu_part, gpu_gaps, host_gaps, h, links)
    return _in_order(columns, src, dst, is_gap=np.arange(len(columns["row"])) >= g + h)


def _dependencies(
    gpu: schedule.GpuSchedule, gpu_gaps: Array, host_gaps: Array, h: int, links: _Links
) -> tuple[Array, Array]:
    """Edges between the rows of `_combine`: GPU work, `h` host operations, gaps of both."""
    g = len(gpu.slot_us)
    work = np.arange(g)
    gap = g + h + np.arange(len(gpu_gaps))
    host_gap = g + h + len(gpu_gaps) + np.arange(len(host_gaps))
    gap_before = np.full(g + 1, -1, np.int64)  # index -1, no work, reaches the extra last entry
    gap_before[gpu_gaps] = gap
    chain = np.arange(g, g + h)
    previous = np.concatenate([[-1], chain[:-1]]) if h else chain
    # a launch lets work start at its end or at its start, which is the end of the node before it
    at_start = np.append(previous, -1)
    at_start[host_gaps] = host_gap
    at_end = np.append(chain, -1)
    launches, waits = links.launches, links.waits
    launched_by = np.where(
        launches.at_start, at_start[launches.position], at_end[launches.position]
    )
    first_delayed = chain.copy()  # a wait delays the gap before an operation, if it has one
    first_delayed[host_gaps] = host_gap
    pairs = [
        (gpu.stream_dep, work),
        (gpu.slot_dep, work),
        (gap_before[gpu.gap_dep], work),
        (launched_by, work),
        (gpu.stream_dep[gpu_gaps], gap),
        (gpu.slot_dep[gpu_gaps], gap),
        (gpu.gap_after[gpu_gaps], gap),
        (gap, work[gpu_gaps]),
        (previous, chain),
        (previous[host_gaps], host_gap),
        (host_gap, chain[host_gaps]),
        (waits.work, first_delayed[waits.delayed]),
        links.events,
        (chain[links.host_edges[0]], chain[links.host_edges[1]]),
    ]
    src = np.concatenate([s for s, _ in pairs])
    dst = np.concatenate([d for _, d in pairs])
    return src[src >= 0], dst[src >= 0]


def _in_order(columns: dict[str, Array], src: Array, dst: Array, is_gap: Array) -> Plan:
    """Rows by start, a gap before what starts with it; dependencies renumbered and listed."""
    row = columns["row"]
    order = np.lexsort((row, ~is_gap, columns["start_ns"]))
    order = _dependencies_first(order, src, dst)
    position = _inverse(order)
    src, dst = position[src], position[dst]
    # distinct pairs by (dst, src); those of node i lie between first[i] and first[i + 1]
    by_node = np.lexsort((src, dst))
    src, dst = src[by_node], dst[by_node]
    new = np.concatenate([[True], (np.diff(src) != 0) | (np.diff(dst) != 0)])[: len(src)]
    src, dst = src[new], dst[new]
    first = np.searchsorted(dst, np.arange(len(order) + 1))
    ordered: dict[str, Any] = {n: c[order] for n, c in columns.items()}
    return Plan(**ordered, dep_first=first, dep=src)


def _inverse(order: Array) -> Array:
    """Position of each row in an order."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


def _dependencies_first(order: Array, src: Array, dst: Array) -> Array:
    """Return the order itself, or the nearest to it in which no dependency points forward.

    Clocks of host and device differ by microseconds, so work may seem to start before its launch.
    """
    position = _inverse(order)
    if (position[src] < position[dst]).all():
        return order
    return _topological(position, *gather.group_values(src, dst, len(order)))


@jit
def _topological(position: Array, first: Array, dst: Array) -> Array:
    """Kahn's order, which takes of all ready nodes the one with the lowest `position`."""
    # the heap holds positions, from which `by_position` gives the node
    n = len(position)
    waiting = np.zeros(n, np.int64)
    for d in dst:
        waiting[d] += 1
    by_position = np.empty(n, np.int64)
    for i in range(n):
        by_position[position[i]] = i
    heap = [position[i] for i in range(n) if waiting[i] == 0]
    heapq.heapify(heap)
    order = np.empty(n, np.int64)
    k = 0
    while heap:
        i = by_position[heapq.heappop(heap)]
        order[k] = i
        k += 1
        for e in range(first[i], first[i + 1]):
            waiting[dst[e]] -= 1
            if waiting[dst[e]] == 0:
                heapq.heappush(heap, position[dst[e]])
    return order[:k]
