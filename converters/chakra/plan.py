"""The plan of an ET: its nodes, their dependencies, and the time each holds its slot.

A simulator such as ASTRA-sim has, for each rank, one slot for host operations, one for compute and one for
communication on the GPU. It knows no streams and no clock: a node starts when what it depends on has
ended and its slot is free. The plan is made of the timing model (`chopper_interop.timing.model`), whose
edges become dependencies, so that an ET reacts to changes as the model does:

* what a thread does itself is time (`host_chain`), what it waits for is a dependency;
* a call that launches work and waits for it is cut into issue, wait and return;
* GPU work depends on its stream, its launch, and what it waits for by events;
* of work that overlaps other work of its slot only a share counts (`slots`);
* what then is missing to the measured times (`schedule`) becomes nodes of its own, called unexplained.

Usual latencies of launches and streams have no slot. They are left out, and the return of the next wait
makes up for them; where more than `schedule` tolerates adds up on the GPU, that is a node as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import host_chain, slots
from chopper_interop.converters.chakra.schedule import (
    COMM,
    COMPUTE,
    HOST,
    MAX_LATENCY_US,
    NO_SLOT,
    Nodes,
    Schedule,
    leading_to,
    schedule,
    topological_order,
    unexplained_on_path,
)
from chopper_interop.edges.handover import IDLE_NS
from chopper_interop.graph.chains import stream_orders
from chopper_interop.schemas.chakra import CONTROL, Cause
from chopper_interop.schemas.kinds import GPU_LANES, GPU_WORK, EdgeKind, Kind, LaneKind
from chopper_interop.timing import variation
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace


class Mode(Enum):
    """How much of the host an ET holds."""

    FULL = "full"
    """Each operation of the host is a node."""
    GPU = "gpu"
    """A node stands for what the host does from one launch or wait to the next, as far as GPU work
    waits for it."""
    KERNELS = "kernels"
    """GPU work alone, as if hosts took no time: with it ASTRA-sim gives all its statistics."""


_WAITS = (EdgeKind.SYNC, EdgeKind.HANDOVER)
"""Edges of which the end of a wait of a host thread becomes a node."""


class Figures(NamedTuple):
    """Figures of a plan.

    Parameters
    ----------
    waits_as_time
        How many waits of the host are measured time and no dependency, because the work that they
        are for ends later in a simulator that has one slot for it and others.
    overlapped
        How many pieces of work have less than their duration, as they overlap others of their slot.
    unexplained_us, length_us
        Time without a known cause on the critical path of the plan, and the length of that path.
    span_ns
        Measured end of the last node, from the job's start; 0 if the plan does not keep it.
    """

    waits_as_time: int
    overlapped: int
    unexplained_us: int
    length_us: int
    span_ns: int


@dataclass(frozen=True)
class Plan:
    """Nodes of one rank's ET, as far as dependencies allow in order of start; these point to earlier rows.

    Parameters
    ----------
    row
        Row of the trace's nodes; -1 for nodes that stand for none.
    owner
        For the latter, the row of the host operation that they are part of; else -1.
    cause
        A `Cause`.
    start_ns, duration_ns
        As measured, from the job's start.
    slot_us
        Microseconds for which the node holds its slot.
    slot
        HOST, COMPUTE, COMM or NO_SLOT of `schedule`.
    late_us
        Microseconds from when work could begin until it began, of work that the NPU of a stream does.
    late_cause
        LATENCY, or UNEXPLAINED where that is longer than usual.
    dep_first, dep
        Dependencies of node i are ``dep[dep_first[i]:dep_first[i + 1]]``.
    figures
        Figures of all nodes together.
    """

    row: Array
    owner: Array
    cause: Array
    start_ns: Array
    duration_ns: Array
    slot_us: Array
    slot: Array
    late_us: Array
    late_cause: Array
    dep_first: Array
    dep: Array
    figures: Figures

    @property
    def on_host(self) -> Array:
        """Mask of host operations and gaps between them."""
        return self.slot == HOST


class Communication(NamedTuple):
    """Communication as a plan needs it, a value for each node of the trace.

    Parameters
    ----------
    sends, receives
        Masks of the nodes that do so.
    synchronous
        Mask of sends that wait for their receive, and of these receives.
    sends_end
        Mask of collectives whose members tell each other when they end.
    turn
        Turn among the collectives that simulators join, the same on all ranks; -1 of other nodes.
    npu
        NPU of the stream that does it, which is a receive here; -1 of what the rank's NPU does.
    """

    sends: Array
    receives: Array
    synchronous: Array
    sends_end: Array
    turn: Array
    npu: Array


def build_plan(trace: Trace, *, mode: Mode, origin_ns: int, comm: Communication) -> Plan:
    """Plan the ET of a trace of one rank.

    Parameters
    ----------
    trace
        Nodes of a single rank.
    mode
        How much of the host the plan holds.
    origin_ns
        When the job starts, on the trace's `ts` axis: before that nothing is simulated.
    comm
        Its communication.
    """
    gpu = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    host, nodes, order = _connected_nodes(timing_of(trace), gpu, mode, origin_ns, comm)
    times = schedule(order, nodes, mode is not Mode.KERNELS)
    plan = _assembled(trace, gpu, host, nodes, times, order, origin_ns, comm, mode)
    if mode is Mode.KERNELS:
        return replace(plan, figures=plan.figures._replace(span_ns=0))
    return plan


class _Host(NamedTuple):
    """Part of a `host_chain.HostChain` that connected nodes need."""

    row: Array
    owner: Array
    is_return: Array
    call_ns: Array


def _connected_nodes(
    timing: Timing, gpu: Array, mode: Mode, origin_ns: int, comm: Communication
) -> tuple[_Host, Nodes, Array]:
    """Host nodes, and these with GPU work and all dependencies, in a topological order.

    What this takes of memory is free again when it ends.
    """
    trace = timing.trace
    links = _links(timing, gpu)
    watches = host_chain.watching_threads(timing)
    host = host_chain.host_chain(
        timing,
        links.return_ns,
        links.sources | _idle_borders(timing),
        links.issue_ns,
        watches,
        operations=mode is Mode.FULL,
    )
    dep = _dependencies(timing, gpu, links, host, watches)
    joined = len(host.row) + _joined(gpu, comm.turn)
    columns = _shared_slots(trace, gpu, host, dep, comm, joined)
    columns, keep = _from_origin(columns, origin_ns, with_host=mode is not Mode.KERNELS)
    order, first, dep_of = _connected(columns, keep, mode, joined)
    nodes = Nodes(
        slot=columns.slot,
        is_return=columns.is_return,
        is_watch=np.append(watches, False)[columns.watched],
        is_apart=np.concatenate([np.zeros(len(host.row), bool), comm.npu[gpu] >= 0]),
        start_ns=columns.start_ns,
        began_ns=columns.began_ns,
        own_ns=columns.own_ns,
        known_ns=_known_latencies(timing, gpu, host, links, columns),
        dep_first=first,
        dep=dep_of,
    )
    return _Host(host.row, host.owner, host.is_return, host.call_ns), nodes, order


class _Links(NamedTuple):
    """Edges of a timing model that become dependencies between nodes of an ET.

    Parameters
    ----------
    src, dst, kind, lag_ns
        Endpoints, kind and time of each edge: the least one, and how it usually varies.
    return_ns
        Of endpoints that are ends of waits of hosts, the least latency of the wait; -1 of others.
    sources
        Mask of endpoints of hosts that others wait for.
    issue_ns
        For each call that waits for work that it launched itself, the time until it has issued it;
        else -1.
    """

    src: Array
    dst: Array
    kind: Array
    lag_ns: Array
    return_ns: Array
    sources: Array
    issue_ns: Array


def _links(timing: Timing, gpu: Array) -> _Links:
    """Select the edges between threads, and between threads, streams and each other."""
    trace, graph = timing.trace, timing.graph
    endpoints = 2 * trace.nodes.num_rows
    lane = trace.array("lane")
    on_thread = (trace.array("kind", "lanes") == LaneKind.THREAD)[lane]
    takes_part = on_thread.copy()
    takes_part[gpu] = True
    inside = (graph.src < endpoints) & (graph.after < endpoints)
    src = np.where(inside, graph.src, 0).astype(np.int64)
    dst = np.where(inside, graph.after, 0).astype(np.int64)
    a, b = src // 2, dst // 2
    inside &= takes_part[a] & takes_part[b]
    inside &= ~(on_thread[a] & on_thread[b] & (lane[a] == lane[b])) & (a != b)
    # work that seems to begin before the work ahead of it on its stream has ended follows it all the same,
    # and so does work its launch, where the GPU's clock is ahead by no more than launches take
    early_ns = timing.at_ns[graph.src] - timing.at_ns[graph.after]
    late_launch = (graph.kind == EdgeKind.LAUNCH) & (early_ns <= 1000 * MAX_LATENCY_US)
    inside &= (early_ns <= 0) | (graph.kind == EdgeKind.STREAM) | late_launch
    edge = np.flatnonzero(inside)
    src, dst, kind = src[edge], dst[edge], graph.kind[edge]
    lag = variation.on_edges(timing, timing.lag_ns, timing.delay_ns)[0][edge]
    return_ns = np.full(len(timing.at_ns), -1, np.int64)
    sources = np.zeros(len(timing.at_ns), bool)
    waits = np.flatnonzero(is_any(kind, _WAITS) & on_thread[dst // 2])
    np.maximum.at(return_ns, dst[waits], np.maximum(lag[waits], 0))
    sources[dst[on_thread[dst // 2]]] = True
    sources[src[on_thread[src // 2]]] = True
    return _Links(
        src, dst, kind, lag, return_ns, sources, _issue_times(timing, src, dst, kind, lag)
    )


def _issue_times(timing: Timing, src: Array, dst: Array, kind: Array, lag: Array) -> Array:
    """Time that each blocking call takes to issue the work that it launches and waits for; else -1."""
    issue = np.full(timing.trace.nodes.num_rows, -1, np.int64)
    launches = np.flatnonzero((kind == EdgeKind.LAUNCH) & (src % 2 == 0))
    waits = np.flatnonzero(kind == EdgeKind.SYNC)
    n = len(issue)
    waited_for = np.isin(
        src[launches] // 2 * n + dst[launches] // 2, dst[waits] // 2 * n + src[waits] // 2
    )
    blocking = launches[waited_for]
    np.maximum.at(issue, src[blocking] // 2, np.maximum(lag[blocking], 0))
    return issue


def _idle_borders(timing: Timing) -> Array:
    """Mask of endpoints between which a thread has no operation open for long."""
    trace = timing.trace
    ts, dur, lane = (trace.array(c) for c in ("ts", "dur", "lane"))
    mask = np.zeros(len(timing.at_ns), bool)
    # in a mere range a thread may wait
    operation = host_chain.is_operation(timing) & (trace.array("kind") != Kind.ANNOTATION)
    rows = np.flatnonzero(operation)
    rows = rows[np.lexsort((rows, ts[rows], lane[rows]))]
    if not len(rows):
        return mask
    # latest end so far on each thread: threads follow one another, so each begins above the last
    span = int((ts + dur).max() - min(ts.min(), 0)) + 1
    base = np.unique(lane[rows], return_inverse=True)[1] * span
    reached = np.maximum.accumulate(base + (ts + dur)[rows])
    holder = np.where(base + (ts + dur)[rows] == reached, np.arange(len(rows)), 0)
    holder = rows[np.maximum.accumulate(holder)]
    later = rows[1:]
    idle = (lane[later] == lane[rows[:-1]]) & (base[1:] + ts[later] - reached[:-1] > IDLE_NS)
    mask[2 * later[idle]] = True
    mask[2 * holder[:-1][idle] + 1] = True
    return mask


def _dependencies(
    timing: Timing, gpu: Array, links: _Links, host: host_chain.HostChain, watches: Array
) -> tuple[Array, Array]:
    """Pairs of nodes of which the second depends on the first: host nodes, then GPU work."""
    trace = timing.trace
    h = len(host.row)
    number = _gpu_numbers(trace, gpu, h)
    on_gpu = is_any(trace.array("kind", "lanes"), GPU_LANES)
    before = stream_orders(trace.array("ts"), trace.array("dur"), trace.array("lane"), on_gpu)
    before = np.append(before, -1)
    a, b = links.src // 2, links.dst // 2
    # what waits for the start of GPU work waits for the work before it on its stream
    of_gpu = np.where(links.src % 2 == 1, number[a], np.append(number, -1)[before[a]])
    src = np.where(number[a] >= 0, of_gpu, host.ends_at[links.src])
    # a blocking call has issued its work when its first piece ends
    issued = (links.kind == EdgeKind.LAUNCH) & (links.src % 2 == 0) & (links.issue_ns[a] >= 0)
    first_piece = host.begins_at[links.src]
    is_piece = first_piece >= 0
    is_piece[is_piece] = host.vertex[first_piece[is_piece]] == links.src[is_piece]
    src = np.where(issued & is_piece, first_piece, src)
    dst = np.where(number[b] >= 0, number[b], host.begins_at[links.dst])
    previous = host.previous(watches)
    src, dst = np.concatenate([previous, src]), np.concatenate([np.arange(h), dst])
    both = (src >= 0) & (dst >= 0) & (src != dst)
    return src[both], dst[both]


def _gpu_numbers(trace: Trace, gpu: Array, h: int) -> Array:
    """Number of each row of the trace as a node behind `h` host nodes; -1 if it is no GPU work."""
    number = np.full(trace.nodes.num_rows, -1, np.int64)
    number[gpu] = h + np.arange(len(gpu))
    return number


def _joined(gpu: Array, turn: Array) -> Array:
    """Positions in `gpu` of the collectives that simulators join, in the order that all ranks keep."""
    taken = np.flatnonzero(turn[gpu] >= 0)
    return taken[np.argsort(turn[gpu[taken]])]


class _Columns(NamedTuple):
    """Columns of host nodes and, behind them, GPU work; and dependencies between them.

    Parameters
    ----------
    slot, is_return, start_ns, own_ns
        As of `schedule.Nodes`.
    is_gpu
        Mask of GPU work.
    watched
        Lane of host nodes that begin an operation; -1 of others.
    began_ns
        Measured start of GPU work; of host nodes as `start_ns`.
    short_ns
        By how much sooner than measured each ends.
    src, dst
        Pairs of nodes of which the second depends on the first.
    """

    slot: Array
    is_gpu: Array
    watched: Array
    is_return: Array
    start_ns: Array
    own_ns: Array
    began_ns: Array
    short_ns: Array
    src: Array
    dst: Array


def _shared_slots(
    trace: Trace,
    gpu: Array,
    host: host_chain.HostChain,
    dep: tuple[Array, Array],
    comm: Communication,
    joined: Array,
) -> _Columns:
    """Give each node its share of its slot; `short_ns` is by how much sooner than measured it ends."""
    h = len(host.row)
    kind = trace.array("kind")[gpu]
    of_work = np.where(comm.receives[gpu], NO_SLOT, np.where(kind == Kind.COMM, COMM, COMPUTE))
    slot = np.concatenate([np.full(h, HOST), of_work])
    start = np.concatenate([host.at_ns, trace.array("ts")[gpu]])
    end = np.concatenate([host.at_ns + host.own_ns, (trace.array("ts") + trace.array("dur"))[gpu]])
    lane = np.concatenate([host.thread, trace.array("lane")[gpu].astype(np.int64)])
    # what a thread does outside of all operations may be no work at all; what no GPU work waits for
    # must not hold up what does, and neither must communication that is only timed what other ranks wait for
    timed = (of_work == COMM) & ~comm.sends[gpu] & (comm.turn[gpu] < 0)
    rank = np.concatenate([~host.in_operation, timed]).astype(np.int64)
    order, src, dst = _ordered(start, np.ones(len(slot), bool), *dep)
    needed = leading_to(order, np.arange(len(slot)) >= h, *gather.group_values(dst, src, len(slot)))
    rank += 2 * ~needed
    share = slots.shares(*slots.in_turn(start, end, joined), slot, lane, rank, slot == NO_SLOT)
    behind = np.flatnonzero(share.after >= 0)
    src = np.concatenate([dep[0], share.after[behind], joined[:-1]])
    dst = np.concatenate([dep[1], behind, joined[1:]])
    no_gpu = np.zeros(len(gpu), bool)
    return _Columns(
        slot=slot,
        is_gpu=np.concatenate([np.zeros(h, bool), ~no_gpu]),
        watched=np.concatenate([np.where(host.row >= 0, host.thread, -1), np.full(len(gpu), -1)]),
        is_return=np.concatenate([host.is_return & ~_are_covered(host.at_ns, share), no_gpu]),
        start_ns=share.start_ns,
        own_ns=share.end_ns - share.start_ns,
        began_ns=np.concatenate([share.start_ns[:h], start[h:]]),
        short_ns=end - share.end_ns,
        src=src,
        dst=dst,
    )


def _are_covered(at_ns: Array, share: slots.Shares) -> Array:
    """Mask of the host nodes at whose time other host work holds the slot.

    A return that waited for that slot would wait for what another thread does.
    """
    h = len(at_ns)
    held = np.flatnonzero(share.end_ns[:h] > share.start_ns[:h])
    held = held[np.argsort(share.start_ns[held])]
    if not held.size:
        return np.zeros(h, bool)
    before = np.searchsorted(share.start_ns[held], at_ns) - 1
    return (before >= 0) & (share.end_ns[held][before] > at_ns)


def _from_origin(columns: _Columns, origin_ns: int, *, with_host: bool) -> tuple[_Columns, Array]:
    """Columns with times from the job's start on, and a mask of the nodes that it has."""
    start, end = columns.start_ns - origin_ns, columns.start_ns + columns.own_ns - origin_ns
    before = (end <= 0) & (start < 0)
    own = np.where(columns.own_ns > 0, np.maximum(end, 0) - np.maximum(start, 0), 0)
    keep = columns.is_gpu | (~before & with_host)
    return columns._replace(start_ns=np.maximum(start, 0), own_ns=own), keep


def _connected(
    columns: _Columns, keep: Array, mode: Mode, joined: Array
) -> tuple[Array, Array, Array]:
    """Topological order of the nodes that stay, and dependencies by node.

    Dependencies lead past nodes without a share of their slot and, in mode kernels, past all of the host:
    what it waits for stays awaited. Joined collectives keep their order, also those without a share.
    """
    without_host = mode is Mode.KERNELS
    stays = np.ones(len(keep), bool) if without_host else keep
    both = stays[columns.src] & stays[columns.dst]
    order, src, dst = _ordered(columns.start_ns, stays, columns.src[both], columns.dst[both])
    # host nodes without time have none to be waited for either
    without_share = (columns.own_ns == 0) & ((columns.short_ns > 0) | ~columns.is_gpu)
    hidden = without_share & ~columns.is_return
    side = ~columns.is_gpu
    if without_host:
        hidden, side = hidden | ~columns.is_gpu, columns.slot >= COMM
    first, dep = gather.group_values(dst, src, len(keep))
    src, dst = slots.bypassed(order, hidden, side, columns.start_ns, first, dep)
    position = np.full(len(keep), -1, np.int64)
    position[order] = np.arange(len(order))
    follows = position[joined[:-1]] < position[joined[1:]]
    src = np.concatenate([src, joined[:-1][follows]])
    dst = np.concatenate([dst, joined[1:][follows]])
    both = keep[src] & keep[dst]
    first, dep = gather.group_values(dst[both], src[both], len(keep))
    order = order[keep[order]]
    if mode is Mode.GPU:
        order = order[leading_to(order, columns.is_gpu, first, dep)[order]]
    return order, first, dep


def _ordered(start_ns: Array, keep: Array, src: Array, dst: Array) -> tuple[Array, Array, Array]:
    """Nodes to keep in the topological order nearest to that of their starts, and dependencies.

    Dependencies against the order of starts are left out where dependencies form cycles, as clocks
    contradict each other there.
    """
    by_start = np.argsort(start_ns, kind="stable")
    position = np.empty(len(by_start), np.int64)
    position[by_start] = np.arange(len(by_start))
    order = topological_order(position, *gather.group_values(src, dst, len(position)))
    if len(order) < len(position):
        forward = position[src] < position[dst]
        src, dst, order = src[forward], dst[forward], by_start
    return order[keep[order]], src, dst


def _known_latencies(
    timing: Timing, gpu: Array, host: host_chain.HostChain, links: _Links, columns: _Columns
) -> Array:
    """Least latency of each return, and of each piece of GPU work since its launch; -1 if none."""
    h = len(host.row)
    known = np.concatenate([np.zeros(h, np.int64), np.full(len(gpu), -1, np.int64)])
    number = _gpu_numbers(timing.trace, gpu, h)
    launch = np.flatnonzero((links.kind == EdgeKind.LAUNCH) & (number[links.dst // 2] >= 0))
    issued = links.issue_ns[links.src[launch] // 2] >= 0
    target = number[links.dst[launch] // 2]
    np.maximum.at(known, target, np.where(issued, 0, np.maximum(links.lag_ns[launch], 0)))
    waits = np.flatnonzero(is_any(links.kind, _WAITS) & (host.begins_at[links.dst] >= 0))
    target = host.begins_at[links.dst[waits]]
    # work that ends sooner in its slot than measured prolongs the return by as much, and work that has
    # no share of it by all its time
    awaited = number[links.src[waits] // 2]
    # an edge leads from the end of work, vertex 2i + 1, so that the vertex before is its start
    waited = timing.at_ns[links.dst[waits]] - timing.at_ns[links.src[waits] - 1]
    short = np.where(columns.own_ns[awaited] > 0, columns.short_ns[awaited], waited)
    short = np.where(awaited >= 0, short, 0)
    is_return = host.is_return[target]
    lag = np.maximum(links.lag_ns[waits], 0) + short
    np.maximum.at(known, target[is_return], lag[is_return])
    return known


def _assembled(
    trace: Trace,
    gpu: Array,
    host: _Host,
    nodes: Nodes,
    times: Schedule,
    order: Array,
    origin_ns: int,
    comm: Communication,
    mode: Mode,
) -> Plan:
    """All nodes, their gaps and messages of a few bytes as one list in order of start."""
    # numbers before sorting: | host nodes | GPU work | gaps | control messages | begin | end |
    h, n = len(host.row), len(nodes.slot)
    used = np.zeros(n, bool)
    used[order] = True
    gapped = np.flatnonzero(used & (times.gap_us > 0) & ~nodes.is_apart)
    src, dst = _all_dependencies(nodes, times, used, gapped)
    control = _control_messages(h, gpu, used, comm)
    npu = np.concatenate([np.full(h, -1, np.int64), comm.npu[gpu]])
    src, dst = _with_readiness(control, npu, n + len(gapped), src, dst)
    early, behind = _ready_before(control, nodes, n + len(gapped), h + _joined(gpu, comm.turn))
    src, dst = np.append(src, early), np.append(dst, behind)
    src, dst = _with_ends(control, n + len(gapped), h + _joined(gpu, comm.turn), src, dst)
    start, dur, end_ns = _measured_times(trace, gpu, host, nodes, times, used, origin_ns)
    # latencies of the last launches, for which no return makes up
    late_us = (end_ns + 500) // 1000 - int(times.ended_us[used].max(initial=0))
    end_us = late_us if mode is not Mode.KERNELS and 0 < late_us <= MAX_LATENCY_US else 0
    others = np.zeros(len(gapped), bool)
    transmits = np.concatenate([
        np.zeros(h, bool), comm.sends[gpu] | (comm.turn[gpu] >= 0), others, control.is_sent,
    ])  # fmt: skip
    messages = np.concatenate([
        np.zeros(h, bool), (comm.sends | comm.receives)[gpu], others, np.ones(len(control.owner), bool),
    ])  # fmt: skip
    transmits[:n] &= used
    messages[:n] &= used
    has_source, has_target = np.zeros((2, len(messages)), bool)
    has_source[dst], has_target[src] = True, True
    begins = np.flatnonzero(transmits & ~has_source)
    awaited_by_end = messages & used[:h].any()
    awaited_by_end[:n] |= used & (end_us > 0)
    leaves = np.flatnonzero(awaited_by_end & ~has_target)
    gap_start = np.maximum(start[gapped] - 1000 * times.gap_us[gapped], 0)
    none = np.zeros(len(control.owner), np.int64)
    control_start = start[control.owner] + np.where(
        control.cause == Cause.ENDED, dur[control.owner], 0
    )
    columns: dict[str, Any] = _identities(host, gpu, times.unexplained_us[gapped], control) | {
        "start_ns": np.concatenate([start, gap_start, control_start, [0, max(end_ns - 1000 * end_us, 0)]]),
        "duration_ns": np.concatenate([dur, 1000 * times.gap_us[gapped], none, [0, 1000 * end_us]]),
        "slot_us": np.concatenate([times.slot_us, times.gap_us[gapped], none, [0, end_us]]),
        "late_us": np.concatenate([
            np.where(nodes.is_apart, times.gap_us, 0),
            np.zeros(len(gapped) + len(none) + 2, np.int64),
        ]),
        "late_cause": np.concatenate([
            np.where(times.unexplained_us > 0, Cause.UNEXPLAINED, Cause.LATENCY),
            np.full(len(gapped) + len(none) + 2, Cause.LATENCY),
        ]),
        "slot": np.concatenate([
            nodes.slot, nodes.slot[gapped], np.where(control.is_sent, COMM, NO_SLOT),
            np.repeat(HOST if used[:h].any() else COMPUTE, 2),
        ]),
    }  # fmt: skip
    # simulators do not run files without any node
    has_end = leaves.size > 0 or not used.any()
    between = np.ones(len(gapped) + len(control.owner), bool)
    keep = np.concatenate([used, between, [begins.size > 0, has_end]])
    begin, end = len(keep) - 2, len(keep) - 1
    src = np.concatenate([src, np.full(len(begins), begin), leaves])
    dst = np.concatenate([dst, begins, np.full(len(leaves), end)])
    columns, keep, src, dst = _with_latencies(columns, keep, src, dst, nodes, times, host, gapped)
    unexplained_us, length_us = unexplained_on_path(times)
    figures = Figures(
        waits_as_time=int(np.count_nonzero(~times.kept)),
        overlapped=int(np.count_nonzero(nodes.own_ns[h:] < trace.array("dur")[gpu])),
        unexplained_us=int(unexplained_us),
        length_us=int(length_us),
        span_ns=end_ns,
    )
    return Plan(**_in_order(columns, keep, src, dst), figures=figures)


class _Control(NamedTuple):
    """Messages of a few bytes that a rank sends or gets, in addition to those of the job.

    Parameters
    ----------
    owner
        Node that each is for.
    cause
        A `Cause`: READY or ENDED.
    is_sent
        Mask of those that the rank sends.
    """

    owner: Array
    cause: Array
    is_sent: Array


def _control_messages(h: int, gpu: Array, used: Array, comm: Communication) -> _Control:
    """Readiness of receives, and ends of collectives: one sent and one got."""
    waits = h + np.flatnonzero(comm.synchronous[gpu] & used[h:])
    ends = h + np.flatnonzero(comm.sends_end[gpu] & used[h:])
    return _Control(
        owner=np.concatenate([waits, ends, ends]),
        cause=np.repeat([Cause.READY, Cause.ENDED], [len(waits), 2 * len(ends)]),
        is_sent=np.concatenate([
            comm.receives[gpu][waits - h], np.ones(len(ends), bool), np.zeros(len(ends), bool),
        ]),
    )  # fmt: skip


def _identities(
    host: _Host, gpu: Array, unexplained_us: Array, control: _Control
) -> dict[str, Array]:
    """Rows of the trace, owners and causes of host nodes, GPU work, gaps, control messages, begin and end."""
    gaps = len(unexplained_us)
    is_row = host.row >= 0
    absent = np.full(gaps + len(control.owner) + 2, -1, np.int64)
    cause = np.where(is_row, Cause.WORK, np.where(host.is_return, Cause.RETURN, Cause.HOST))
    return {
        "row": np.concatenate([host.row, gpu, absent]),
        "owner": np.concatenate([
            np.where(is_row, -1, host.owner), np.full(len(gpu) + gaps, -1, np.int64),
            gpu[control.owner - len(is_row)], [-1, -1],
        ]),
        "cause": np.concatenate([
            cause, np.full(len(gpu), Cause.WORK), np.where(unexplained_us > 0, Cause.UNEXPLAINED, Cause.LATENCY), control.cause,
            [Cause.BEGIN, Cause.END],
        ]),
    }  # fmt: skip


def _measured_times(
    trace: Trace,
    gpu: Array,
    host: _Host,
    nodes: Nodes,
    times: Schedule,
    used: Array,
    origin_ns: int,
) -> tuple[Array, Array, int]:
    """Measured starts and durations of host nodes and GPU work, and the end of the last."""
    h = len(host.row)
    ts, dur = trace.array("ts") - origin_ns, trace.array("dur")
    operation = np.flatnonzero(host.row >= 0)
    # a return has the time of its end, and begins within its call; other work has its measured start
    returns = np.flatnonzero(host.is_return)
    caller, lasts = host.owner[returns], 1000 * times.slot_us[returns]
    within = nodes.start_ns[returns] - ts[caller]
    start, own = nodes.start_ns.copy(), nodes.own_ns.copy()
    own[returns] = np.where(caller >= 0, np.clip(within, 0, lasts), lasts)
    start[returns] -= own[returns]
    start[h:], own[h:] = ts[gpu], dur[gpu]
    own[operation] = dur[host.row[operation]]
    end = start + own
    end[operation] = (ts + dur)[host.row[operation]]
    return start, own, int(end[used].max(initial=0))


def _all_dependencies(
    nodes: Nodes, times: Schedule, used: Array, gapped: Array
) -> tuple[Array, Array]:
    """Dependencies of nodes that hold, and of gaps: a gap depends on what its node depends on."""
    n = len(nodes.slot)
    gap_before = np.full(n, -1, np.int64)
    gap_before[gapped] = n + np.arange(len(gapped))
    target = np.repeat(np.arange(n), np.diff(nodes.dep_first))
    held = times.kept & used[target] & used[nodes.dep]
    src, dst = nodes.dep[held], target[held]
    anchored = np.where(gap_before >= 0, gap_before, np.arange(n))
    pairs = [
        (src, dst),
        (src, gap_before[dst]),
        (gap_before[gapped], gapped),
        (times.anchor, anchored),
        (times.follows, anchored),
    ]
    real = [(a >= 0) & (b >= 0) for a, b in pairs]
    kept = [(a[taken], b[taken]) for (a, b), taken in zip(pairs, real, strict=True)]
    src, dst = (np.concatenate(side) for side in zip(*kept, strict=True))
    return src, dst


def _with_readiness(
    control: _Control, npu: Array, nodes: int, src: Array, dst: Array
) -> tuple[Array, Array]:
    """Dependencies with those of messages by which receivers say that they are there.

    Simulators' sends wait for no receive, so a send waits for such a message, which its receiver sends when
    the receive begins::

        receiver   ...work ──> ready to receive        ...work ──> receive
        sender     ...work ──> (receives that) ──> send

    It does not wait for work that the sender keeps in order by itself.

    Parameters
    ----------
    control
        Messages of a few bytes.
    npu
        NPU of the stream that does each node; -1 for the rank's. Gaps are numbered behind these nodes.
    nodes
        Number of both, behind which the messages are.
    src, dst
        Pairs of nodes of which the second depends on the first.
    """
    ready = np.flatnonzero(control.cause == Cause.READY)
    owner = control.owner[ready]
    message = np.full(nodes, -1, np.int64)
    message[owner] = nodes + ready
    likewise = np.flatnonzero((message[dst] >= 0) & (src < len(npu)))
    in_order = (npu[src[likewise]] >= 0) & (npu[src[likewise]] == npu[dst[likewise]])
    likewise = likewise[~in_order]
    heard = ~control.is_sent[ready]
    src = np.concatenate([src, src[likewise], message[owner[heard]]])
    return src, np.concatenate([dst, message[dst[likewise]], owner[heard]])


def _ready_before(
    control: _Control, nodes: Nodes, numbers: int, joined: Array
) -> tuple[Array, Array]:
    """Readiness of receives, and communication of its rank that begins just before and would hold its slot.

    Readiness takes no time, and the communication has most of its own before it: so it waits, and not the
    other rank::

        receive        ready──────────         becomes     ready──────────
        send         [       ]                                [       ]

    Not joined collectives, which other ranks wait for.
    """
    ready = np.flatnonzero((control.cause == Cause.READY) & control.is_sent)
    holds = (nodes.slot == COMM) & (nodes.own_ns > 0)
    holds[joined] = False
    rows = np.flatnonzero(holds)
    rows = rows[np.argsort(nodes.start_ns[rows], kind="stable")]
    start = nodes.start_ns[control.owner[ready]]
    last = np.searchsorted(nodes.start_ns[rows], start, side="right") - 1
    ready, start, last = ready[last >= 0], start[last >= 0], rows[last[last >= 0]]
    left = nodes.start_ns[last] + nodes.own_ns[last] - start
    short = start - nodes.start_ns[last] < left
    return numbers + ready[short], last[short]


def _with_ends(
    control: _Control, nodes: int, joined: Array, src: Array, dst: Array
) -> tuple[Array, Array]:
    """Dependencies in which what waits for a collective waits for its end on another rank too.

    In simulators a collective ends on a rank when the data of the others are there: for a rank that comes
    last at once, while its own data are still on their way. The rank that gets these last says so::

        last rank   ...work ──> collective ──> (receives that) ──> work
        another     collective             ──> collective has ended

    Parameters
    ----------
    control, nodes, src, dst
        As for `_with_readiness`.
    joined
        Collectives in their order. The next one begins when the end of the one before was told.
    """
    sent = np.flatnonzero((control.cause == Cause.ENDED) & control.is_sent)
    heard = np.flatnonzero((control.cause == Cause.ENDED) & ~control.is_sent)
    says, hears = np.full(nodes, -1, np.int64), np.full(nodes, -1, np.int64)
    says[control.owner[sent]], hears[control.owner[heard]] = nodes + sent, nodes + heard
    is_joined = np.zeros(nodes + len(control.owner), bool)
    is_joined[joined] = True
    behind = np.flatnonzero((src < nodes) & (hears[np.minimum(src, nodes - 1)] >= 0))
    in_turn = behind[is_joined[dst[behind]]]
    more_src = [hears[src[behind]], says[src[in_turn]], control.owner[sent], control.owner[heard]]
    more_dst = [dst[behind], dst[in_turn], nodes + sent, nodes + heard]
    return np.concatenate([src, *more_src]), np.concatenate([dst, *more_dst])


def _with_latencies(
    columns: dict[str, Any],
    keep: Array,
    src: Array,
    dst: Array,
    nodes: Nodes,
    times: Schedule,
    host: _Host,
    gapped: Array,
) -> tuple[dict[str, Any], Array, Array, Array]:
    """Nodes in which returns wait for their latency and not only take it, where the slot of communication is free.

    So a call that need not wait takes its own time alone::

        work      ...work ──> latency ─┐
        host      ...call ─────────────┴─> return: the call's own time

    Parameters
    ----------
    columns, keep, src, dst
        All nodes, which of them there are, and pairs of which the second depends on the first.
    nodes, times, host
        Host nodes and GPU work, the first of all nodes.
    gapped
        Those of them with a gap, which are numbered behind them.
    """
    h, n, total = len(host.row), len(nodes.slot), len(keep)
    own_us = np.minimum((host.call_ns + 500) // 1000, times.slot_us[:h])
    binding = times.binding[:h]
    behind_work = (binding >= 0) & (nodes.slot[binding] != HOST)
    returns = np.flatnonzero(keep[:h] & host.is_return & behind_work & (times.slot_us[:h] > own_us))
    if not len(returns) or (columns["slot"][keep] == COMM).any():
        return columns, keep, src, dst
    latency = np.full(total, -1, np.int64)
    latency[returns] = total + np.arange(len(returns))
    of_gap = latency[gapped]
    latency[n : n + len(gapped)] = of_gap
    on_gpu = (src >= h) & (src < n) & (latency[dst] >= 0)
    dst = np.where(on_gpu, latency[dst], dst)
    waits = np.flatnonzero(latency >= 0)
    us = times.slot_us[returns] - own_us[returns]
    more = {
        name: column[returns] for name, column in columns.items()
    } | {
        "owner": np.full(len(returns), -1), "duration_ns": 1000 * us, "slot_us": us,
        "slot": np.full(len(returns), COMM),
    }  # fmt: skip
    columns["slot_us"][returns] = own_us[returns]
    columns = {name: np.concatenate([column, more[name]]) for name, column in columns.items()}
    keep = np.append(keep, np.ones(len(returns), bool))
    return columns, keep, np.append(src, latency[waits]), np.append(dst, waits)


def _in_order(columns: dict[str, Any], keep: Array, src: Array, dst: Array) -> dict[str, Any]:
    """Rows to keep by start, a gap before what starts with it; dependencies renumbered and listed."""
    kept = np.flatnonzero(keep)
    number = np.full(len(keep), -1, np.int64)
    number[kept] = np.arange(len(kept))
    src, dst = number[src], number[dst]
    cause = columns["cause"][kept]
    precedes = is_any(cause, (Cause.UNEXPLAINED, Cause.LATENCY, *CONTROL))
    # "begin" must not wait for a gap that holds its slot
    turn = np.where(cause == Cause.BEGIN, 0, np.where(precedes, 1, 2))
    by_start = np.lexsort((turn, columns["start_ns"][kept]))
    position = np.empty(len(kept), np.int64)
    position[by_start] = np.arange(len(kept))
    order = by_start
    if (position[src] >= position[dst]).any():
        # clocks of host and device differ by microseconds: work may seem to start before its launch
        order = topological_order(position, *gather.group_values(src, dst, len(kept)))
        position[order] = np.arange(len(kept))
    # distinct pairs by (dst, src); those of node i lie between first[i] and first[i + 1]
    pair = np.sort(position[dst] * len(kept) + position[src])
    pair = pair[np.diff(pair, prepend=-1) != 0]
    dst, src = np.divmod(pair, max(len(kept), 1))
    chosen = kept[order]
    ordered = {name: column[chosen] for name, column in columns.items()}
    # pieces that stand for no row of the trace begin when rounded times say, but not out of order
    start, derived = ordered["start_ns"], ordered["row"] < 0
    ordered["start_ns"] = np.where(derived, np.maximum.accumulate(start), start)
    return ordered | {"dep_first": np.searchsorted(dst, np.arange(len(kept) + 1)), "dep": src}


def _planned(trace: Trace, mode: Mode) -> Array:
    """Mask of the nodes of kinds that a plan holds."""
    kinds = GPU_WORK + (host_chain.OPERATIONS if mode is Mode.FULL else ())
    return is_any(trace.array("kind"), kinds)


def is_plannable(trace: Trace, mode: Mode) -> bool:
    """True if a plan would hold any node."""
    return bool(_planned(trace, mode).any())


def first_start(trace: Trace, mode: Mode) -> int:
    """Start of the first node that a plan would hold; 0 if there is none."""
    ts = trace.array("ts")[_planned(trace, mode)]
    return int(ts.min()) if ts.size else 0
