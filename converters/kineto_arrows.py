"""Launches that only arrows tell, as rocmProfileData and rocprof draw them: no correlation ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.converters.kineto_tables import LAUNCH_FLOWS
from chopper_interop.files.jsonscan import HAS_TS
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, LaneKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_events import TraceFile
    from chopper_interop.converters.kineto_ranks import Owners
    from chopper_interop.trace import Trace

UNBOUND = Fault(
    "launch-arrow-unbound",
    Severity.LOSS,
    "Arrows from calls to GPU work that begin in no call, or end where no work or several starts, "
    "were left out: these launches are unknown.",
)

_GRAIN_NS = 1000
"""Such files have whole microseconds: a span may end that much later than it says."""


def drawn(trace: Trace, file: TraceFile, owners: Owners, issues: IssueLog) -> Array:
    """For each node the call from which an arrow leads to it; -1 where none does."""
    told = np.full(trace.nodes.num_rows, -1, np.int64)
    codes = [i for i, text in enumerate(file.texts) if text in LAUNCH_FLOWS]
    if not codes:
        return told
    ours = np.isin(file.rows["cat"], codes) & ((file.rows["has"] & HAS_TS) != 0)
    starts, ends = (np.flatnonzero(ours & file.phase(*p)) for p in ("s", "tf"))
    rank, ids = owners.rank.astype(np.int64), file.rows["id"]
    both = np.concatenate([starts, ends])
    first, code = gather.distinct(rank[both], ids[both])
    begin = np.where(first < len(starts), both[first], -1)[code[len(starts) :]]
    call = _call_around(trace, file, owners, np.maximum(begin, 0))
    work = _work_at(trace, file, owners, ends)
    bound = (begin >= 0) & (call >= 0) & (work >= 0)
    told[work[bound][::-1]] = call[bound][::-1]
    issues.add(UNBOUND, np.count_nonzero(~bound))
    return told


def _call_around(trace: Trace, file: TraceFile, owners: Owners, rows: Array) -> Array:
    """The call that runs where each arrow begins, the last to start; -1 if none does."""
    calls = np.flatnonzero(is_any(trace.array("kind"), CALLS))
    lanes = {
        (lane["rank"], lane["number"]): row
        for row, lane in enumerate(trace.lanes.to_pylist())
        if lane["kind"] == LaneKind.THREAD
    }
    lane = _lane_of(lanes, owners.rank[rows], file.rows["tid"][rows])
    found, key, ts = _placed(trace, file, calls, lane, rows)
    if not found.size:
        return np.full(len(rows), -1, np.int64)
    at = np.searchsorted(key[0], key[1], side="right") - 1
    node = found[np.maximum(at, 0)]
    same = (at >= 0) & (trace.array("lane")[node] == lane)
    end = trace.array("ts")[node] + trace.array("dur")[node]
    return np.where(same & (ts <= end + _GRAIN_NS), node, -1)


def _work_at(trace: Trace, file: TraceFile, owners: Owners, rows: Array) -> Array:
    """The GPU work that starts where each arrow ends; -1 if none does, or several."""
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    lanes = {
        (lane["rank"], lane["device"], lane["number"]): row
        for row, lane in enumerate(trace.lanes.to_pylist())
        if lane["kind"] == LaneKind.STREAM
    }
    columns = (owners.rank, owners.raw_pid, file.rows["tid"])
    lane = _lane_of(lanes, *(column[rows] for column in columns))
    found, key, _ = _placed(trace, file, work, lane, rows)
    if not found.size:
        return np.full(len(rows), -1, np.int64)
    low, high = (np.searchsorted(key[0], key[1], side=side) for side in ("left", "right"))
    alone = (high - low == 1) & (lane >= 0)
    return np.where(alone, found[np.minimum(low, len(found) - 1)], -1)


def _lane_of(lanes: dict[Any, int], *columns: Array) -> Array:
    """The lane of each row by these columns; -1 if there is none."""
    first, code = gather.distinct(*(column.astype(np.int64) for column in columns))
    places = zip(*(column[first].tolist() for column in columns), strict=True)
    return np.array([*(lanes.get(place, -1) for place in places), -1], np.int64)[code]


def _placed(
    trace: Trace, file: TraceFile, nodes: Array, lane: Array, rows: Array
) -> tuple[Array, tuple[Array, Array], Array]:
    """Nodes in order of lane and start, these as one key, that of each row, and its time."""
    ts = file.rows["ts"][rows] + file.base_ns - trace.meta.origin_ns
    if not nodes.size:
        return nodes, (nodes, nodes), ts
    starts, lanes = trace.array("ts")[nodes], trace.array("lane")[nodes].astype(np.int64)
    last = int(starts.max())
    span = last + 3
    order = np.lexsort((starts, lanes))
    inside = np.clip(ts, -1, last + 1)
    return nodes[order], ((lanes * span + starts)[order], lane * span + inside), ts
