"""Launches that only arrows show, as rocmProfileData and rocprof draw them: no correlation ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.members import is_any
from chopper_interop.converters.kineto.categories import LAUNCH_FLOWS
from chopper_interop.converters.kineto.lanes import find_lanes
from chopper_interop.io.json_events import HAS_TS
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, LaneKind

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.kineto.ranks import Owners
    from chopper_interop.converters.kineto.trace_file import TraceFile
    from chopper_interop.trace import Trace

UNBOUND = Fault(
    "launch-arrow-unbound",
    Severity.LOSS,
    "Arrows from calls to GPU work that begin in no call, or end where no work or several starts, "
    "were left out: these launches are unknown.",
)

_RESOLUTION_NS = 1000
"""Such files have whole microseconds: a span may end that much later than it states."""


def calls_by_arrows(trace: Trace, file: TraceFile, owners: Owners, issues: IssueLog) -> Array:
    """Call from which an arrow leads to each node; -1 where none does."""
    call_of_node = np.full(trace.nodes.num_rows, -1, np.int64)
    codes = [i for i, text in enumerate(file.texts) if text in LAUNCH_FLOWS]
    if not codes:
        return call_of_node
    launch_flow = np.isin(file.rows["cat"], codes) & ((file.rows["has"] & HAS_TS) != 0)
    starts, ends = (np.flatnonzero(launch_flow & file.phase(*p)) for p in ("s", "tf"))
    rank, ids = owners.rank.astype(np.int64), file.rows["id"]
    # number the (rank, id) pairs over starts and ends alike; the first of each pair is its start,
    # unless the arrow has none
    both = np.concatenate([starts, ends])
    first, code = gather.distinct(rank[both], ids[both])
    begin = np.where(first < len(starts), both[first], -1)[code[len(starts) :]]
    call = _calls_around(trace, file, owners, np.maximum(begin, 0))
    work = _work_at(trace, file, owners, ends)
    bound = (begin >= 0) & (call >= 0) & (work >= 0)
    call_of_node[work[bound][::-1]] = call[bound][::-1]  # of several, the first stays
    issues.add(UNBOUND, np.count_nonzero(~bound))
    return call_of_node


def _calls_around(trace: Trace, file: TraceFile, owners: Owners, rows: Array) -> Array:
    """Call that runs where each arrow begins, the last to start; -1 if none does."""
    calls = np.flatnonzero(is_any(trace.array("kind"), CALLS))
    lane = find_lanes(trace, LaneKind.THREAD, rank=owners.rank[rows], number=file.rows["tid"][rows])
    calls, node_key, row_key, ts = _keys_by_lane_and_time(trace, file, calls, lane, rows)
    if not calls.size:
        return np.full(len(rows), -1, np.int64)
    at = np.searchsorted(node_key, row_key, side="right") - 1
    node = calls[np.maximum(at, 0)]
    same_lane = (at >= 0) & (trace.array("lane")[node] == lane)
    end = trace.array("ts")[node] + trace.array("dur")[node]
    return np.where(same_lane & (ts <= end + _RESOLUTION_NS), node, -1)


def _work_at(trace: Trace, file: TraceFile, owners: Owners, rows: Array) -> Array:
    """GPU work that starts where each arrow ends; -1 if none does, or several."""
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    lane = find_lanes(
        trace,
        LaneKind.STREAM,
        rank=owners.rank[rows],
        device=owners.raw_pid[rows],
        number=file.rows["tid"][rows],
    )
    work, node_key, row_key, _ = _keys_by_lane_and_time(trace, file, work, lane, rows)
    if not work.size:
        return np.full(len(rows), -1, np.int64)
    low, high = (np.searchsorted(node_key, row_key, side=side) for side in ("left", "right"))
    single = (high - low == 1) & (lane >= 0)
    return np.where(single, work[np.minimum(low, len(work) - 1)], -1)


def _keys_by_lane_and_time(
    trace: Trace, file: TraceFile, nodes: Array, lane: Array, rows: Array
) -> tuple[Array, Array, Array, Array]:
    """Make one number of lane and time, so that one binary search finds nodes by both.

    The number is ``lane * span + time``, `span` being greater than all times. Times of events
    outside of those of the nodes are moved to just before or after them, so that they stay in
    their lane's range.

    Parameters
    ----------
    trace, file
        The trace, and the file that it was made of.
    nodes
        Nodes among which to search.
    lane, rows
        Lane and row of the events for which to search.

    Returns
    -------
    nodes, node_key, row_key, ts
        The nodes by ascending key, their keys, the events' keys, and the events' times.
    """
    ts = file.rows["ts"][rows] + file.base_ns - trace.meta.origin_ns
    if not nodes.size:
        return nodes, nodes, nodes, ts
    starts, lanes = trace.array("ts")[nodes], trace.array("lane")[nodes].astype(np.int64)
    last = int(starts.max())
    span = last + 3
    order = np.lexsort((starts, lanes))
    inside = np.clip(ts, -1, last + 1)
    return nodes[order], (lanes * span + starts)[order], lane * span + inside, ts
