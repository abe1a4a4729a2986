"""Edges of a timing model that become dependencies between nodes of an ET."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import host_chain
from chopper_interop.converters.chakra.schedule import MAX_LATENCY_US
from chopper_interop.edges.handover import IDLE_NS
from chopper_interop.edges.queues import MAX_AHEAD_NS
from chopper_interop.graph.chains import stream_orders
from chopper_interop.schemas.kinds import GPU_LANES, HOST_WAITS, EdgeKind, Kind, LaneKind
from chopper_interop.timing import variation
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.timing.model import Timing


class Links(NamedTuple):
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
    late, late_ns
        Rows of the work that is long on its way to the device, and when it has come there. By clocks that differ that
        may be long before its launch.
    """

    src: Array
    dst: Array
    kind: Array
    lag_ns: Array
    return_ns: Array
    sources: Array
    issue_ns: Array
    late: Array
    late_ns: Array


def links_of(timing: Timing, gpu: Array) -> Links:
    """Select the edges between threads, and between threads, streams and each other."""
    trace, graph = timing.trace, timing.graph
    endpoints = 2 * trace.nodes.num_rows
    lane = trace.array("lane")
    on_thread = (trace.array("kind", "lanes") == LaneKind.THREAD)[lane]
    takes_part = on_thread.copy()
    takes_part[gpu] = True
    inside = (graph.src < endpoints) & (graph.after < endpoints)
    src, dst = np.where(inside, graph.src, 0), np.where(inside, graph.after, 0)
    a, b = src // 2, dst // 2
    inside &= takes_part[a] & takes_part[b]
    inside &= ~(on_thread[a] & on_thread[b] & (lane[a] == lane[b])) & (a != b)
    lag_ns = variation.on_edges(timing, timing.lag_ns, timing.delay_ns)[0]
    late = np.flatnonzero(
        inside & (graph.kind == EdgeKind.LAUNCH) & (np.abs(lag_ns) > 1000 * MAX_LATENCY_US)
    )
    # work that seems to begin before the work ahead of it on its stream has ended follows it all the same,
    # and so does work its launch, or a wait its work, where the GPU's clock is off by no more than launches or waits take
    early_ns = timing.at_ns[graph.src] - timing.at_ns[graph.after]
    late_launch = (graph.kind == EdgeKind.LAUNCH) & (early_ns <= 1000 * MAX_LATENCY_US)
    early = is_any(graph.kind, (EdgeKind.STREAM, EdgeKind.POLL))
    early_wait = (graph.kind == EdgeKind.SYNC) & (early_ns <= MAX_AHEAD_NS)
    inside &= (early_ns <= 0) | early | late_launch | early_wait
    edge = np.flatnonzero(inside)
    src, dst, kind = src[edge].astype(np.int64), dst[edge].astype(np.int64), graph.kind[edge]
    lag = lag_ns[edge]
    return_ns = np.full(endpoints, -1, np.int64)
    sources = np.zeros(endpoints, bool)
    waits = np.flatnonzero(is_any(kind, HOST_WAITS) & on_thread[dst // 2])
    np.maximum.at(return_ns, dst[waits], np.maximum(lag[waits], 0))
    sources[dst[on_thread[dst // 2]]] = True
    sources[src[on_thread[src // 2]]] = True
    sources[graph.src[late]] = True
    issue_ns = _issue_times(timing, src, dst, kind, lag)
    late_ns = timing.at_ns[graph.src[late]] + lag_ns[late]
    return Links(src, dst, kind, lag, return_ns, sources, issue_ns, b[late], late_ns)


def resumptions(timing: Timing, links: Links) -> Array:
    """Time of each endpoint; of those at which hosts go on while the work that they waited for seems to run, its end."""
    at_ns = timing.at_ns[: 2 * timing.trace.nodes.num_rows].copy()
    waits = np.flatnonzero(is_any(links.kind, (EdgeKind.SYNC, EdgeKind.POLL)))
    np.maximum.at(at_ns, links.dst[waits], at_ns[links.src[waits]])
    return at_ns


def _issue_times(timing: Timing, src: Array, dst: Array, kind: Array, lag: Array) -> Array:
    """Time that each blocking call takes to issue the work that it launches and waits for; else -1."""
    issue = np.full(timing.trace.nodes.num_rows, -1, np.int64)
    launches = np.flatnonzero((kind == EdgeKind.LAUNCH) & (src % 2 == 0))
    waits = np.flatnonzero(is_any(kind, (EdgeKind.SYNC, EdgeKind.POLL)))
    n = len(issue)
    waited_for = np.isin(
        src[launches] // 2 * n + dst[launches] // 2, dst[waits] // 2 * n + src[waits] // 2
    )
    blocking = launches[waited_for]
    np.maximum.at(issue, src[blocking] // 2, np.maximum(lag[blocking], 0))
    return issue


def idle_borders(trace: Trace) -> Array:
    """Mask of endpoints between which a thread has no operation open for long."""
    ts, dur, lane = (trace.array(c) for c in ("ts", "dur", "lane"))
    mask = np.zeros(2 * trace.nodes.num_rows, bool)
    # in a mere range a thread may wait
    operation = host_chain.is_operation(trace) & (trace.array("kind") != Kind.ANNOTATION)
    rows = np.flatnonzero(operation)
    rows = rows[np.lexsort((rows, ts[rows], lane[rows]))]
    if not len(rows):
        return mask
    # latest end so far on each thread
    reached = gather.running_max(lane[rows], (ts + dur)[rows])
    # of operations that end together the outermost, which comes first: behind it none is open
    reaches = np.append(True, (lane[rows[1:]] != lane[rows[:-1]]) | (np.diff(reached) > 0))
    holder = np.where(reaches, np.arange(len(rows)), 0)
    holder = rows[np.maximum.accumulate(holder)]
    later = rows[1:]
    idle = (lane[later] == lane[rows[:-1]]) & (ts[later] - reached[:-1] > IDLE_NS)
    mask[2 * later[idle]] = True
    mask[2 * holder[:-1][idle] + 1] = True
    return mask


def dependencies(
    trace: Trace, gpu: Array, links: Links, host: host_chain.HostChain, watches: Array
) -> tuple[Array, Array]:
    """Pairs of nodes of which the second depends on the first: host nodes, then GPU work."""
    h = len(host.row)
    number = gpu_numbers(trace, gpu, h)
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
    src, dst = np.concatenate([previous, src]), np.concatenate([np.arange(h, dtype=np.int32), dst])
    both = (src >= 0) & (dst >= 0) & (src != dst)
    return src[both], dst[both]


def gpu_numbers(trace: Trace, gpu: Array, h: int) -> Array:
    """Number of each row of the trace as a node behind `h` host nodes; -1 if it is no GPU work."""
    number = np.full(trace.nodes.num_rows, -1, np.int32)
    number[gpu] = h + np.arange(len(gpu))
    return number
