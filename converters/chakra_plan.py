"""The schedule of an ET: which nodes, what each waits for, how long it holds its slot.

A simulator such as ASTRA-sim has, for each rank, one slot for host operations, one for compute
and one for communication on the GPU. It knows no streams and no clock: a node starts when what
it depends on has ended and its slot is free. So that the measured time comes out,

* work that runs beside other work of its slot counts with the time by which it prolongs it;
* waits that no record explains become nodes of their own (`Kind.HOST_GAP`);
* work that starts after something on the other slot ended depends on that;
* work depends on its launch, or on what comes before that if it began long before the launch
  call ended, as that of a graph does;
* host operations are cut into the pieces between the starts of two of them, for they nest;
* a host operation that waits for the GPU lasts until it begins to, and what follows, a gap of its
  own time first, depends on the work that it waited for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.converters import chakra_schedule as schedule
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

HOST_KINDS = (Kind.CPU_OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.DRIVER, Kind.API)
"""Kinds of host operations that become nodes; Python frames only say who called these."""

_BETWEEN_HOST = (EdgeKind.FWDBWD, EdgeKind.DATA, EdgeKind.HANDOVER, EdgeKind.DEPENDENCY)
_BETWEEN_WORK = (EdgeKind.EVENT, EdgeKind.DEPENDENCY)
"""Edges that ETs carry as they are: the chain of the host and the slots of the GPU allow for them."""


@dataclass(frozen=True)
class Plan:
    """Nodes of one rank's ET, in order of start; dependencies point to earlier rows.

    Parameters
    ----------
    row
        Row of the trace's nodes; -1 for a gap.
    of
        For a gap, the row of the host operation whose own time it is; else -1.
    start_ns, duration_ns
        As measured, from the job's start.
    slot_us
        Microseconds for which the node holds its slot.
    on_host
        Whether it is a host operation.
    dep_first, dep
        Dependencies of node i are ``dep[dep_first[i]:dep_first[i + 1]]``.
    waits_as_time
        How many waits of the host are measured time and no dependency: what they are for ran beside
        other work, and comes later in a simulator that has one slot for both, or clocks contradict.
    """

    row: Array
    of: Array
    start_ns: Array
    duration_ns: Array
    slot_us: Array
    on_host: Array
    dep_first: Array
    dep: Array
    waits_as_time: int = 0


def plan(trace: Trace, *, host: bool, origin_ns: int) -> Plan:
    """The schedule of a trace of one rank.

    Parameters
    ----------
    trace
        Nodes of a single rank.
    host
        Whether host operations are part of it; else their absence shows as gaps.
    origin_ns
        When the job starts, on the trace's `ts` axis: before that nothing is simulated.
    """
    kind, ts, dur = (trace.array(c) for c in ("kind", "ts", "dur"))
    gpu = np.flatnonzero(is_any(kind, GPU_WORK))
    ts = ts - origin_ns
    hosted = _host_rows(trace) if host else np.empty(0, np.int64)
    launch = _launches(trace, hosted)[gpu]
    events = _stored(trace, _BETWEEN_WORK, gpu, gpu)
    before_work = gather.lists(events[1], events[0], len(gpu))
    sound = np.ones(len(gpu), np.bool_)
    asked = None
    while True:  # waits are sound if the schedule that they lead to is; each round leaves some out
        waits = _waits(trace, gpu, hosted, launch, ts, sound)
        calls = _calls(launch, hosted, ts[gpu], ts[hosted], _own_time(hosted, ts, dur, waits))
        gpu_part = schedule.gpu_schedule(
            ts[gpu],
            dur[gpu],
            np.where(kind[gpu] == Kind.COMM, schedule.COMM, schedule.COMPUTE),
            trace.array("lane")[gpu],
            calls.at_ns,
            len(trace.lanes),
            *before_work,
        )
        slot_us, ended_us, before, across, behind, gap_ns, gap_us, gap_after = gpu_part
        position = calls.position - calls.begun
        needs = schedule.needs(position, before, across, behind, gap_us, gap_after, *before_work)
        unsound = needs[waits.work] >= waits.held  # they would close a circle
        if asked is None:
            asked = len(waits.work)
            late = ended_us * 1000 > (ts + dur)[gpu] + schedule.UNEXPLAINED_NS
            unsound |= late[waits.work]
        if not unsound.any():
            break
        sound[waits.work[unsound]] = False
    host_part = schedule.host_schedule(
        ts[hosted],
        dur[hosted],
        _open_around(trace, hosted),
        waits.until_ns,
        _latest(waits, (ts + dur)[gpu]),
        _latest(waits, ended_us),
    )
    between = _stored(trace, _BETWEEN_HOST, hosted, hosted)
    links = _Links(calls, waits, events, between)
    waited = (before, across, behind, gap_ns, gap_us, gap_after)
    made = _joined(gpu, hosted, (slot_us, *waited), host_part, links, ts, dur)
    return replace(made, waits_as_time=asked - len(waits.work))


class _Waits(NamedTuple):
    """Where the host waits for the GPU.

    Parameters
    ----------
    work, held
        Pieces of GPU work, and the host operations that begin no sooner than they have ended.
    until_ns
        For each host operation, when it begins to wait; -1 if it does not.
    """

    work: Array
    held: Array
    until_ns: Array


def _waits(
    trace: Trace, gpu: Array, hosted: Array, launch: Array, ts: Array, sound: Array
) -> _Waits:
    """What of the recorded waits holds up the chain of the host; of this work alone."""
    work, call = _positions(trace, (EdgeKind.SYNC,), gpu, hosted)
    dur = trace.array("dur")
    end = (ts + dur)[gpu[work]]
    seen = sound[work] & (end <= (ts + dur)[hosted[call]])
    work, call, end = work[seen], call[seen], end[seen]
    own = launch[work] == hosted[call]
    held, until_ns = schedule.host_waits(
        ts[hosted], dur[hosted], trace.array("lane")[hosted], ts[gpu[work]], end, call, own
    )
    return _Waits(work[held >= 0], held[held >= 0], until_ns)


def _own_time(hosted: Array, ts: Array, dur: Array, waits: _Waits) -> Array:
    """How long each host operation lasts until it waits."""
    waiting = waits.until_ns >= 0
    return np.where(waiting, waits.until_ns - ts[hosted], dur[hosted])


def _latest(waits: _Waits, ended: Array) -> Array:
    """For each host operation, when the last of the work that holds it up has ended; -1 if none."""
    found = np.full(len(waits.until_ns), -1, np.int64)
    np.maximum.at(found, waits.held, ended[waits.work])
    return found


def _positions(
    trace: Trace, kinds: tuple[EdgeKind, ...], src_rows: Array, dst_rows: Array
) -> tuple[Array, Array]:
    """Edges of these kinds, as places among the rows of sources and of destinations."""
    place = np.full((2, trace.nodes.num_rows), -1, np.int64)
    place[0, src_rows], place[1, dst_rows] = np.arange(len(src_rows)), np.arange(len(dst_rows))
    drawn = is_any(trace.array("kind", "edges"), kinds)
    src, dst = (
        place[side][trace.array(c, "edges")[drawn]] for side, c in enumerate(("src", "dst"))
    )
    both = (src >= 0) & (dst >= 0)
    return src[both], dst[both]


def _stored(
    trace: Trace, kinds: tuple[EdgeKind, ...], src_rows: Array, dst_rows: Array
) -> tuple[Array, Array]:
    """The same, of edges whose source has ended when their destination begins."""
    src, dst = _positions(trace, kinds, src_rows, dst_rows)
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    behind = (end[src_rows[src]] <= ts[dst_rows[dst]]) & (src < dst)
    return src[behind], dst[behind]


class _Links(NamedTuple):
    """What connects host and GPU, and what is stored of dependencies within each."""

    calls: _Calls
    waits: _Waits
    events: tuple[Array, Array]
    between: tuple[Array, Array]


class _Calls(NamedTuple):
    """What of the host lets each piece of GPU work start.

    Parameters
    ----------
    position
        Of its launch among the host operations; -1 if that is not part of the plan.
    begun
        Whether it waits for the begin of the launch, not for its end.
    at_ns
        When that is; -1 without a launch.
    """

    position: Array
    begun: Array
    at_ns: Array


def _calls(launch: Array, hosted: Array, start: Array, host_ts: Array, host_dur: Array) -> _Calls:
    """What lets GPU work start that is launched by these nodes and begins at `start`."""
    if not len(hosted):
        none = np.full(len(start), -1, np.int64)
        return _Calls(none, np.zeros(len(start), np.bool_), none)
    position = np.where(launch >= 0, np.searchsorted(hosted, launch), -1)
    stop = host_ts + host_dur
    stop[:-1] = np.minimum(stop[:-1], host_ts[1:])
    begun = (position >= 0) & (start < stop[position] - schedule.UNEXPLAINED_NS)
    at_ns = np.where(begun, host_ts[position], stop[position])
    return _Calls(position, begun, np.where(position >= 0, np.maximum(at_ns, 0), -1))


def holds(trace: Trace, *, host: bool) -> bool:
    """Whether a plan would hold any node."""
    kinds = GPU_WORK + (HOST_KINDS if host else ())
    return bool(is_any(trace.array("kind"), kinds).any())


def first_start(trace: Trace, *, host: bool) -> int:
    """When the first node that a plan would hold starts."""
    kinds = GPU_WORK + (HOST_KINDS if host else ())
    ts = trace.array("ts")[is_any(trace.array("kind"), kinds)]
    return int(ts.min()) if ts.size else 0


def _host_rows(trace: Trace) -> Array:
    """Host operations, in order of start; those of the profiler's own lanes are none."""
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    kinds = is_any(trace.array("kind"), HOST_KINDS)
    return np.flatnonzero(kinds & threads[trace.array("lane")])


def _launches(trace: Trace, hosted: Array) -> Array:
    """For each node, the launching host operation if that is part of the plan; else -1."""
    call = np.full(trace.nodes.num_rows, -1, np.int64)
    drawn = trace.array("kind", "edges") == EdgeKind.LAUNCH
    src, dst = (trace.array(c, "edges")[drawn] for c in ("src", "dst"))
    planned = np.zeros(trace.nodes.num_rows, np.bool_)
    planned[hosted] = True
    call[dst] = np.where(planned[src], src, -1)
    return call


def _open_around(trace: Trace, hosted: Array) -> Array:
    """For each host operation, the position of the one around it on its thread; -1 if none."""
    position = np.full(trace.nodes.num_rows, -1, np.int64)
    position[hosted] = np.arange(len(hosted))
    return _nearest(trace.array("parent").astype(np.int64), position)[hosted]


@jit
def _nearest(parent: Array, position: Array) -> Array:
    """For each node, the position of the innermost node around it that has one."""
    around = np.full(len(parent), -1, np.int64)
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            around[i] = position[p] if position[p] >= 0 else around[p]
    return around


def _joined(
    gpu: Array,
    hosted: Array,
    gpu_part: tuple[Array, ...],
    host_part: tuple[Array, ...],
    links: _Links,
    ts: Array,
    dur: Array,
) -> Plan:
    """Both halves and their gaps as one list in order of start."""
    slot_us, before, across, behind, gap_ns, gap_us, gap_after = gpu_part
    host_us, host_gap_ns, host_gap_us, host_gap_of = host_part
    g, h = len(gpu), len(hosted)
    gpu_gaps, host_gaps = np.flatnonzero(gap_us >= 0), np.flatnonzero(host_gap_us >= 0)
    work = np.concatenate([gpu, hosted])
    none = np.full(len(gpu_gaps) + len(host_gaps), -1, np.int64)
    gap_start = np.concatenate([gap_ns[gpu_gaps], host_gap_ns[host_gaps]])
    owner = host_gap_of[host_gaps]
    mine = np.where(owner >= 0, hosted[owner] if h else -1, -1)
    gap_stop = np.concatenate([ts[gpu[gpu_gaps]], ts[hosted[host_gaps]]])
    columns = {
        "row": np.concatenate([work, none]),
        "of": np.concatenate(
            [np.full(g + h, -1, np.int64), np.full(len(gpu_gaps), -1, np.int64), mine]
        ),
        "start_ns": np.concatenate([ts[work], gap_start]),
        "duration_ns": np.concatenate([dur[work], gap_stop - gap_start]),
        "slot_us": np.concatenate([slot_us, host_us, gap_us[gpu_gaps], host_gap_us[host_gaps]]),
        "on_host": np.arange(g + h + len(none)) >= g,
    }
    columns["on_host"][g + h : g + h + len(gpu_gaps)] = False
    waits = (before, across, behind, gap_after)
    src, dst = _dependencies(waits, gpu_gaps, host_gaps, h, links)
    return _ordered(columns, src, dst, is_gap=np.arange(len(columns["row"])) >= g + h)


def _dependencies(
    waits: tuple[Array, ...], gpu_gaps: Array, host_gaps: Array, h: int, links: _Links
) -> tuple[Array, Array]:
    """Edges between the rows of `_joined`: GPU work, `h` host operations, gaps of both."""
    before, across, behind, gap_after = waits
    g = len(before)
    number = np.arange(g)
    gap = g + h + np.arange(len(gpu_gaps))
    host_gap = g + h + len(gpu_gaps) + np.arange(len(host_gaps))
    gap_of = np.full(g + 1, -1, np.int64)  # the last one is that of no work
    gap_of[gpu_gaps] = gap
    chain = np.arange(g, g + h)
    previous = np.concatenate([[-1], chain[:-1]]) if h else chain
    opens = np.append(previous, -1)  # what ends when a host operation begins
    opens[host_gaps] = host_gap
    ends = np.append(chain, -1)
    calls, held = links.calls, links.waits
    called = np.where(calls.begun, opens[calls.position], ends[calls.position])
    begins = chain.copy()  # what begins when a host operation may, or the gap before it
    begins[host_gaps] = host_gap
    pairs = [
        (before, number),
        (across, number),
        (gap_of[behind], number),
        (called, number),
        (before[gpu_gaps], gap),
        (across[gpu_gaps], gap),
        (gap_after[gpu_gaps], gap),
        (gap, number[gpu_gaps]),
        (previous, chain),
        (previous[host_gaps], host_gap),
        (host_gap, chain[host_gaps]),
        (held.work, begins[held.held]),
        links.events,
        (chain[links.between[0]], chain[links.between[1]]),
    ]
    src = np.concatenate([s for s, _ in pairs])
    dst = np.concatenate([d for _, d in pairs])
    return src[src >= 0], dst[src >= 0]


def _ordered(columns: dict[str, Array], src: Array, dst: Array, is_gap: Array) -> Plan:
    """Rows by start, a gap before what starts with it; dependencies renumbered and listed."""
    row = columns["row"]
    order = np.lexsort((row, ~is_gap, columns["start_ns"]))
    order = _dependencies_first(order, src, dst)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    src, dst = place[src], place[dst]
    by_node = np.lexsort((src, dst))
    src, dst = src[by_node], dst[by_node]
    new = np.concatenate([[True], (np.diff(src) != 0) | (np.diff(dst) != 0)])[: len(src)]
    src, dst = src[new], dst[new]
    first = np.searchsorted(dst, np.arange(len(order) + 1))
    ordered: dict[str, Any] = {n: c[order] for n, c in columns.items()}
    return Plan(**ordered, dep_first=first, dep=src)


def _dependencies_first(order: Array, src: Array, dst: Array) -> Array:
    """The order itself, or the nearest to it in which no dependency points forward.

    Clocks of host and device differ by microseconds, so work may seem to start before its launch.
    """
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if (place[src] < place[dst]).all():
        return order
    by_source = np.argsort(src, kind="stable")
    first = np.searchsorted(src[by_source], np.arange(len(order) + 1))
    return _topological(place, first, dst[by_source])


@jit
def _topological(place: Array, first: Array, dst: Array) -> Array:
    """Kahn's order, taking of all that is ready the one that comes first in `place`."""
    n = len(place)
    waiting = np.zeros(n, np.int64)
    for d in dst:
        waiting[d] += 1
    by_place = np.empty(n, np.int64)
    for i in range(n):
        by_place[place[i]] = i
    heap = [place[i] for i in range(n) if waiting[i] == 0]
    heapq.heapify(heap)
    order = np.empty(n, np.int64)
    k = 0
    while heap:
        i = by_place[heapq.heappop(heap)]
        order[k] = i
        k += 1
        for e in range(first[i], first[i + 1]):
            waiting[dst[e]] -= 1
            if waiting[dst[e]] == 0:
                heapq.heappush(heap, place[dst[e]])
    return order[:k]
