"""Changes to launches, and operations that are inserted or fused."""

from __future__ import annotations

import numpy as np

from chopper_interop.analyses.methods.changes.changer import Change, ChangedTimes, Changer, scaled
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.graph.chains import stream_orders
from chopper_interop.schemas.kinds import GPU_LANES, GPU_WORK, EdgeKind, Kind
from chopper_interop.timing import variation


def launches(changer: Changer) -> Array:
    """Edges from launching calls to the work that they launched."""
    return np.flatnonzero(changer.timing.graph.kind == EdgeKind.LAUNCH)


def launch(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set or add the least time from launching calls to the start of their work."""
    graph, inside = changer.timing.graph, changer.within(chosen)
    edge = launches(changer)
    edge = edge[inside[graph.src[edge] // 2] | inside[graph.after[edge] // 2]]
    now.notes["launches changed"] += len(edge)
    now.lag_ns[edge] = change.value.applied_to(now.lag_ns[edge])


def calls(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set or add the own time of launching calls."""
    trace = changer.trace
    calls = np.zeros(len(chosen), bool)
    work = np.flatnonzero(trace.launch >= 0)
    calls[trace.launch[work]] = True
    inside = changer.within(chosen).copy()  # the query's result is read-only
    inside[trace.launch[work[chosen[work]]]] = True
    edge = changer.edges(calls & inside)
    # A call's own time passes along several edges where it waits in between; one leaves its start.
    begins = changer.timing.graph.src[edge] == 2 * changer.owner[edge]
    now.notes["launching calls changed"] += int(np.count_nonzero(begins))
    lag = now.lag_ns[edge]
    if change.value.is_added:
        lag[begins] = change.value.applied_to(lag[begins])
    else:  # the first part of a call has its whole time
        lag = np.minimum(lag, 0)
        lag[begins] = change.value.applied_to(lag[begins])
    now.lag_ns[edge] = lag


def insert(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Insert an operation before each node: it starts later by its time than all it waits for allows.

    On a stream the node also has the usual gap behind it.
    """
    has_cause = np.zeros(len(now.delay_ns), bool)
    has_cause[changer.timing.graph.after] = True
    start = 2 * np.flatnonzero(chosen)
    now.notes["nodes left unchanged as nothing is known to precede them"] += int(
        np.count_nonzero(~has_cause[start])
    )
    on_stream = is_any(changer.trace.array("kind")[chosen], GPU_WORK)
    gap_ns = np.where(on_stream, variation.usual_gap_ns(changer.timing), 0)
    now.inserted_ns[start] += change.value + gap_ns


def fuse(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Make one piece of the chosen work that follows each other on a stream.

    Of each run the launches of all but the first take no time, and neither do the gaps between; its
    durations are multiplied by the factor.
    """
    trace, graph = changer.trace, changer.timing.graph
    kind = trace.array("kind")
    work = chosen & is_any(kind, (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET))
    on_gpu = is_any(trace.array("kind", "lanes"), GPU_LANES)
    before = stream_orders(trace.array("ts"), trace.array("dur"), trace.array("lane"), on_gpu)
    joined = work & (before >= 0) & work[before]
    inside = joined.copy()
    inside[before[joined]] = True
    into = np.flatnonzero(is_any(graph.kind, (EdgeKind.STREAM, EdgeKind.LAUNCH)))
    into = into[joined[graph.node[graph.after[into]]]]
    now.lag_ns[into] = np.minimum(now.lag_ns[into], 0)
    now.delay_ns[2 * np.flatnonzero(joined)] = 0
    calls = np.zeros(len(joined), bool)
    calls[trace.launch[joined & (trace.launch >= 0)]] = True
    launching = changer.edges(calls)
    now.lag_ns[launching] = np.minimum(now.lag_ns[launching], 0)
    lasting = changer.edges(inside)
    now.lag_ns[lasting] = scaled(now.lag_ns[lasting], change.value)
    now.notes["pieces of work joined to the one before"] += int(np.count_nonzero(joined))
