"""Host nodes and GPU work with their shares of slots and all dependencies between them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import host_chain, slots
from chopper_interop.converters.chakra.planning.links import (
    Links,
    dependencies,
    gpu_numbers,
    idle_borders,
    links_of,
    resumptions,
)
from chopper_interop.converters.chakra.planning.plan import Communication, Mode
from chopper_interop.converters.chakra.planning.ranks import NodeRanks
from chopper_interop.converters.chakra.relays import NOTIFIES_RANK
from chopper_interop.converters.chakra.schedule import (
    COMM,
    COMPUTE,
    HOST,
    NO_SLOT,
    Nodes,
    leading_to,
    topological_order,
)
from chopper_interop.io import memory
from chopper_interop.schemas.kinds import HOST_WAITS, EdgeKind, Kind
from chopper_interop.timing.model import release_timing, timing_of_ranks
from chopper_interop.timing.populations import populations
from chopper_interop.trace import Trace


class Host(NamedTuple):
    """Part of a `host_chain.HostChain` that connected nodes need."""

    row: Array
    owner: Array
    thread: Array
    is_return: Array
    call_ns: Array


def connected_nodes(
    trace: Trace, gpu: Array, mode: Mode, origin_ns: int, comm: Communication
) -> tuple[Host, Nodes, Array]:
    """Host nodes, and these with GPU work and all dependencies, in a topological order.

    What this takes of memory is free again when it ends, and so is the trace's timing model.
    """
    host, columns, keep, joined, nodes = _unconnected(trace, gpu, mode, origin_ns, comm)
    memory.give_back(trace.nodes.nbytes)
    ranks = NodeRanks(len(trace.ranks), nodes.rank)
    order, first, dep = _connected(columns, keep, mode, joined, ranks)
    return host, nodes._replace(dep_first=first, dep=dep), order


def _of_model(
    trace: Trace, gpu: Array, mode: Mode, watches: Array
) -> tuple[Links, host_chain.HostChain]:
    """Edges and host nodes of the timing model, which is free again when these are made."""
    links = links_of(timing_of_ranks(trace), gpu)
    threads = host_chain.threads_of(timing_of_ranks(trace), links.issue_ns)
    resumed_ns = resumptions(timing_of_ranks(trace), links)
    host_chain.hide_time_of_polled_work(threads, timing_of_ranks(trace).at_ns, resumed_ns)
    release_timing(trace)
    memory.give_back(trace.nodes.nbytes)
    host = host_chain.host_chain(
        trace,
        threads,
        links.return_ns,
        links.sources | idle_borders(trace),
        watches,
        operations=mode is Mode.FULL,
    )
    host = host._replace(at_ns=np.where(host.is_return, resumed_ns[host.vertex], host.at_ns))
    # what only host nodes are made of: eleven bytes an endpoint
    return links._replace(return_ns=np.empty(0, np.int64), sources=np.empty(0, bool)), host


def _unconnected(
    trace: Trace, gpu: Array, mode: Mode, origin_ns: int, comm: Communication
) -> tuple[Host, _Columns, Array, Array, Nodes]:
    """Host nodes, columns of all nodes, those that there are, collectives in turn, and nodes without dependencies."""
    watches = host_chain.watching_threads(trace)
    links, host = _of_model(trace, gpu, mode, watches)
    memory.give_back(trace.nodes.nbytes)
    begins_ns = _begins(trace, gpu, comm, origin_ns)
    draft = _drafted(trace, gpu, links, host, comm, begins_ns)
    cut = host_chain.cut(host, draft.holder, draft.at_ns)
    if len(cut.row) > len(host.row):
        host = cut
        draft = _drafted(trace, gpu, links, host, comm, begins_ns)
    joined, ranks, columns = draft.joined, draft.ranks, _columns(gpu, host, draft, begins_ns)
    del draft, cut  # of which the columns are all that is needed: fifty bytes a node
    columns, keep = _from_origin(columns, origin_ns, with_host=mode is not Mode.KERNELS)
    behind, behind_ns = _behind_work(links, gpu_numbers(trace, gpu, len(host.row)), gpu)
    nodes = Nodes(
        rank=ranks.of_node,
        slot=columns.slot,
        is_return=columns.is_return,
        is_watch=np.append(watches, False)[columns.watched],
        is_apart=np.concatenate([np.zeros(len(host.row), bool), comm.npu[gpu] >= 0]),
        start_ns=columns.start_ns,
        own_ns=columns.own_ns,
        known_ns=_known_latencies(trace, gpu, host, links, columns),
        dep_first=np.empty(0, np.int64),
        dep=np.empty(0, np.int64),
        began_ns=columns.began_ns,
        notified_ns=_notified_by_others(gpu, comm),
        behind=behind,
        behind_ns=behind_ns,
    )
    of_host = Host(host.row, host.owner, host.thread, host.is_return, host.call_ns)
    return of_host, columns, keep, joined, nodes


def _ranks(trace: Trace, host: host_chain.HostChain, gpu: Array) -> NodeRanks:
    """Ranks of host nodes and, behind them, GPU work."""
    of, nodes = populations(trace, each_rank=True), len(host.row) + len(gpu)
    if of.count == 1:
        return NodeRanks(1, np.zeros(nodes, np.int32))
    of_lane = np.zeros(trace.lanes.num_rows, np.int32)
    of_lane[trace.array("lane")] = of.of_node
    return NodeRanks(of.count, np.concatenate([of_lane[host.thread], of.at(gpu)]))


def _behind_work(links: Links, number: Array, gpu: Array) -> tuple[Array, Array]:
    """Node before GPU work on its stream, and the least time between the two; -1 and 0 if there is none."""
    behind, behind_ns = np.full(len(gpu), -1, np.int64), np.zeros(len(gpu), np.int64)
    after = np.flatnonzero((links.kind == EdgeKind.STREAM) & (links.src % 2 == 1))
    src, dst = number[links.src[after] // 2], number[links.dst[after] // 2]
    both = (src >= 0) & (dst >= 0)
    work = np.searchsorted(gpu, links.dst[after[both]] // 2)
    behind[work] = src[both]
    behind_ns[work] = np.maximum(links.lag_ns[after[both]], 0)
    return behind, behind_ns


def _notified_by_others(gpu: Array, comm: Communication) -> Array:
    """Time at which the last other rank has notified GPU work of what it waits for; -1 of most."""
    notified_ns = np.full(len(gpu), -1, np.int64)
    received = np.flatnonzero((comm.relays.dst >= 0) & (comm.relays.use == NOTIFIES_RANK))
    place = np.searchsorted(gpu, comm.relays.dst[received])
    np.maximum.at(notified_ns, place, comm.relays.came_ns[received])
    return notified_ns


def joined_rows(gpu: Array, turn: Array, ranks: NodeRanks) -> Array:
    """Nodes of the collectives that simulators join, of each rank in the order that all ranks keep."""
    h = len(ranks.of_node) - len(gpu)
    taken = np.flatnonzero(turn[gpu] >= 0)
    return ranks.by_time(turn[gpu[taken]], h + taken).astype(np.int32)


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
        Measured start of GPU work.
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


def _begins(trace: Trace, gpu: Array, comm: Communication, origin_ns: int) -> Array:
    """Start of GPU work; of what waited for the unrecorded work of another rank, the end of that."""
    begins_ns = trace.array("ts")[gpu].copy()
    relays = comm.relays
    answered = (relays.of_answer >= 0) & (relays.use == NOTIFIES_RANK) & (relays.dst >= 0)
    place = np.searchsorted(gpu, relays.dst[answered])
    begins_ns[place] = np.maximum(begins_ns[place], relays.came_ns[answered] + origin_ns)
    return begins_ns


class _Draft(NamedTuple):
    """Dependencies between host nodes and, behind them, GPU work, and their shares of slots.

    Parameters
    ----------
    ranks
        Of these nodes.
    src, dst
        Pairs of nodes of which the second depends on the first.
    slot, end_ns, share
        Slot of each node, when it ends, and its share of the slot.
    joined
        Collectives in turn.
    holder, at_ns, due
        Nodes that begin at the earliest when the holder of the host's slot has come to a time, as the host time
        that they wait for is hidden by it, or is on the way to the device.
    """

    ranks: NodeRanks
    src: Array
    dst: Array
    slot: Array
    end_ns: Array
    share: slots.Shares
    joined: Array
    holder: Array
    at_ns: Array
    due: Array


def _drafted(
    trace: Trace,
    gpu: Array,
    links: Links,
    host: host_chain.HostChain,
    comm: Communication,
    begins_ns: Array,
) -> _Draft:
    """Give each node its share of its slot, and find for what of the host work waits without a slot for it::

        thread that has the slot    [ long operation   |       ]     cut where the launch of the other ended
        other thread                        [ launch ]
        GPU                                             [ kernel ]   waits for the first part of the long one

    What waits for host nodes that end while others have the slot, and work whose launch is long on its way.
    """
    h, ranks = len(host.row), _ranks(trace, host, gpu)
    src, dst = dependencies(trace, gpu, links, host, host_chain.watching_threads(trace))
    joined = joined_rows(gpu, comm.turn, ranks)
    kind = trace.array("kind")[gpu]
    of_work = np.where(comm.receives[gpu], NO_SLOT, np.where(kind == Kind.COMM, COMM, COMPUTE))
    slot = np.concatenate([np.full(h, HOST), of_work]).astype(np.uint8)
    start = np.concatenate([host.at_ns, begins_ns])
    needed = _needed(start, h, src, dst, ranks)
    memory.give_back(trace.nodes.nbytes)
    end = np.concatenate([host.at_ns + host.own_ns, (trace.array("ts") + trace.array("dur"))[gpu]])
    lane = np.concatenate([host.thread, trace.array("lane")[gpu]])
    # what a thread does outside of all operations may be no work at all; what no GPU work waits for
    # must not hold up what does, and neither must communication that is only timed what other ranks wait for
    timed = (of_work == COMM) & ~comm.sends[gpu] & (comm.turn[gpu] < 0)
    precedence = np.concatenate([~host.in_operation, timed]).astype(np.uint8)
    precedence[~needed] += 2
    times = slots.in_turn(start, end, joined, ranks.of_node)
    of_rank = slot + (NO_SLOT + 1) * ranks.of_node
    share = slots.shares(*times, of_rank, lane, precedence, slot == NO_SLOT)
    memory.give_back(trace.nodes.nbytes)
    hidden = np.append(share.end_ns[:h] < end[:h], np.zeros(len(gpu), bool))
    is_goal = np.append(host.is_return, np.ones(len(gpu), bool))
    behind = np.flatnonzero(hidden[src] & is_goal[dst])
    late = gpu_numbers(trace, gpu, h)[links.late]
    at_ns, due = np.append(end[src[behind]], links.late_ns), np.append(dst[behind], late)
    rank_of = np.append(ranks.of_node[src[behind]], ranks.of_node[late])
    holder = _holders(at_ns, rank_of, share, h, ranks)
    held = holder >= 0
    until = holder[held], at_ns[held], due[held]
    return _Draft(ranks, src, dst, slot, end, share, joined, *until)


def _holders(at_ns: Array, rank: Array, share: slots.Shares, h: int, ranks: NodeRanks) -> Array:
    """Node of the first h that has the slot of a rank at each time or until then; -1 if none does."""
    held = np.flatnonzero(share.end_ns[:h] > share.start_ns[:h])
    if not held.size:
        return np.full(len(at_ns), -1, np.int64)
    holder = ranks.last_until(held, share.start_ns[held], rank, at_ns - 1)
    return np.where((holder >= 0) & (share.end_ns[holder] >= at_ns), holder, -1)


def _columns(gpu: Array, host: host_chain.HostChain, draft: _Draft, begins_ns: Array) -> _Columns:
    """Columns of nodes; `short_ns` is by how much sooner than measured each ends."""
    share, ranks = draft.share, draft.ranks
    before, after = ranks.pairs(draft.joined)
    behind = np.flatnonzero(share.after >= 0)
    src = np.concatenate([draft.src, share.after[behind], before, draft.holder], dtype=np.int32)
    dst = np.concatenate([draft.dst, behind, after, draft.due], dtype=np.int32)
    no_gpu = np.zeros(len(gpu), bool)
    return _Columns(
        slot=draft.slot,
        is_gpu=np.concatenate([np.zeros(len(host.row), bool), ~no_gpu]),
        watched=np.concatenate(
            [np.where(host.row >= 0, host.thread, -1), np.full(len(gpu), -1, np.int32)]
        ),
        is_return=np.concatenate(
            [host.is_return & ~_are_covered(host.at_ns, share, ranks), no_gpu]
        ),
        start_ns=share.start_ns,
        own_ns=share.end_ns - share.start_ns,
        began_ns=begins_ns,
        short_ns=draft.end_ns - share.end_ns,
        src=src,
        dst=dst,
    )


def _needed(start_ns: Array, h: int, src: Array, dst: Array, ranks: NodeRanks) -> Array:
    """Mask of GPU work, the nodes behind the first h, and of what it waits for."""
    nodes = len(start_ns)
    order, src, dst = _ordered(start_ns, np.ones(nodes, bool), src, dst, ranks)
    return leading_to(order, np.arange(nodes) >= h, *gather.group_values(dst, src, nodes))


def _are_covered(at_ns: Array, share: slots.Shares, ranks: NodeRanks) -> Array:
    """Mask of the host nodes at whose time other host work holds the slot.

    A return that waited for that slot would wait for what another thread does.
    """
    h = len(at_ns)
    held = np.flatnonzero(share.end_ns[:h] > share.start_ns[:h])
    if not held.size:
        return np.zeros(h, bool)
    holder = ranks.last_until(held, share.start_ns[held], ranks.of_node[:h], at_ns - 1)
    return (holder >= 0) & (share.end_ns[holder] > at_ns)


def _from_origin(columns: _Columns, origin_ns: int, *, with_host: bool) -> tuple[_Columns, Array]:
    """Columns with times from the job's start on, and a mask of the nodes that it has."""
    start, end = columns.start_ns - origin_ns, columns.start_ns + columns.own_ns - origin_ns
    before = (end <= 0) & (start < 0)
    own = np.where(columns.own_ns > 0, np.maximum(end, 0) - np.maximum(start, 0), 0)
    keep = columns.is_gpu | (~before & with_host)
    return columns._replace(start_ns=np.maximum(start, 0), own_ns=own), keep


def _connected(
    columns: _Columns, keep: Array, mode: Mode, joined: Array, ranks: NodeRanks
) -> tuple[Array, Array, Array]:
    """Topological order of the nodes that stay, and dependencies by node.

    Dependencies lead past nodes without a share of their slot and, in mode kernels, past all of the host:
    what it waits for stays awaited. Joined collectives keep their order, also those without a share.
    """
    without_host = mode is Mode.KERNELS
    stays = np.ones(len(keep), bool) if without_host else keep
    both = stays[columns.src] & stays[columns.dst]
    pairs = columns.src[both], columns.dst[both]
    order, src, dst = _ordered(columns.start_ns, stays, *pairs, ranks)
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
    before, after = ranks.pairs(joined)
    follows = position[before] < position[after]
    src = np.concatenate([src, before[follows]])
    dst = np.concatenate([dst, after[follows]])
    both = keep[src] & keep[dst]
    first, dep = gather.group_values(dst[both], src[both], len(keep))
    order = order[keep[order]]
    if mode is Mode.GPU:
        order = order[leading_to(order, columns.is_gpu, first, dep)[order]]
    return order, first, dep


def _ordered(
    start_ns: Array, keep: Array, src: Array, dst: Array, ranks: NodeRanks
) -> tuple[Array, Array, Array]:
    """Nodes to keep in the topological order nearest to that of their starts, rank after rank, and dependencies.

    Dependencies against the order of starts are left out in ranks whose dependencies form cycles, as clocks
    contradict each other there.
    """
    by_start = ranks.in_order(start_ns)
    position = np.empty(len(by_start), np.int64)
    position[by_start] = np.arange(len(by_start))
    order = topological_order(position, *gather.group_values(src, dst, len(position)))
    if len(order) < len(position):
        left = np.ones(len(position), bool)
        left[order] = False
        circular = ranks.have(np.flatnonzero(left))[ranks.of_node]
        stays = ~circular[src] | (position[src] < position[dst])
        src, dst = src[stays], dst[stays]
        order = topological_order(position, *gather.group_values(src, dst, len(position)))
    return order[keep[order]], src, dst


def _known_latencies(
    trace: Trace, gpu: Array, host: host_chain.HostChain, links: Links, columns: _Columns
) -> Array:
    """Least latency of each return, and of each piece of GPU work since its launch; -1 if none."""
    h = len(host.row)
    known = np.concatenate([np.zeros(h, np.int64), np.full(len(gpu), -1, np.int64)])
    number = gpu_numbers(trace, gpu, h)
    launch = np.flatnonzero((links.kind == EdgeKind.LAUNCH) & (number[links.dst // 2] >= 0))
    issued = links.issue_ns[links.src[launch] // 2] >= 0
    target = number[links.dst[launch] // 2]
    np.maximum.at(known, target, np.where(issued, 0, np.maximum(links.lag_ns[launch], 0)))
    waits = np.flatnonzero(is_any(links.kind, HOST_WAITS) & (host.begins_at[links.dst] >= 0))
    target = host.begins_at[links.dst[waits]]
    # work that ends sooner in its slot than measured prolongs the return by as much, and work that has
    # no share of it by all its time
    awaited = number[links.src[waits] // 2]
    # an edge leads from the end of work to the end of a call
    ts, dur, call = trace.array("ts"), trace.array("dur"), links.dst[waits] // 2
    waited = ts[call] + dur[call] - ts[links.src[waits] // 2]
    short = np.where(columns.own_ns[awaited] > 0, columns.short_ns[awaited], waited)
    short = np.where(awaited >= 0, short, 0)
    is_return = host.is_return[target]
    lag = np.maximum(links.lag_ns[waits], 0) + short
    np.maximum.at(known, target[is_return], lag[is_return])
    return known
