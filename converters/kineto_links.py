"""What a Kineto file says of dependencies: launches by correlation id, forward → backward."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.converters import kineto_arrows, kineto_backward
from chopper_interop.files.jsonscan import HAS_TS
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_events import TraceFile
    from chopper_interop.converters.kineto_ranks import Owners
    from chopper_interop.trace import Trace

NO_LAUNCH = Fault(
    "launch-not-recorded",
    Severity.INFO,
    "GPU work whose launch neither a correlation id nor an arrow that is known here tells: it was "
    "queued before the window, or the profiler gave it none.",
)
LAUNCH_BY_ORDER = Fault(
    "launch-by-order",
    Severity.INFO,
    "Kernels without a correlation id were tied to launches of such kernels by their order.",
)
FLOW_UNBOUND = Fault(
    "fwdbwd-unbound",
    Severity.LOSS,
    "Forward → backward arrows of which an end starts at no operator were left out.",
)

_LAUNCHES = re.compile(r"launch|memcpy|memset|fill|copy|graph", re.IGNORECASE)
_RCCL_LAUNCH = "hipExtLaunchKernel"


def link(trace: Trace, file: TraceFile, owners: Owners, issues: IssueLog) -> Trace:
    """Add launch and forward → backward edges."""
    told = kineto_arrows.drawn(trace, file, owners, issues)
    launched = trace.with_edges(*launches(trace, issues, told), EdgeKind.LAUNCH)
    pairs = _forward_backward(trace, file, owners, issues)
    if not pairs[0].size:
        pairs = kineto_backward.by_number(trace, issues)
    return launched.with_edges(*pairs, EdgeKind.FWDBWD)


def launches(trace: Trace, issues: IssueLog, told: Array | None = None) -> tuple[Array, Array]:
    """Call → GPU work, by correlation id within each rank; a graph launch has many.

    What has no such id has the call that arrows told.
    """
    kind, rank, ts = (trace.array(c) for c in ("kind", "rank", "ts"))
    correlation = trace.array("correlation")
    calls = np.flatnonzero(is_any(kind, CALLS) & (correlation > 0))
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    is_launch = np.array([_LAUNCHES.search(n) is not None for n in trace.names()], bool)
    likely = is_launch[trace.array("name")[calls]]
    order = np.lexsort((ts[calls], ~likely, correlation[calls], rank[calls]))
    calls = calls[order]
    found = _first_match(
        rank[calls],
        correlation[calls],
        rank[work],
        np.where(correlation[work] > 0, correlation[work], -1),
    )
    src = np.where(found >= 0, calls[found] if calls.size else -1, -1)
    src = _by_order(trace, src, work, issues)
    if told is not None:
        src = np.where(src >= 0, src, told[work])
    tied = src >= 0
    issues.add(NO_LAUNCH, np.count_nonzero(~tied))
    return src[tied].astype(np.int32), work[tied].astype(np.int32)


def _first_match(rank: Array, key: Array, wanted_rank: Array, wanted: Array) -> Array:
    """Position of the first row equal to each wanted (rank, key) in sorted rows; -1 if none."""
    result = np.full(len(wanted), -1, np.int64)
    for r in np.unique(rank):
        first, stop = np.searchsorted(rank, [r, r + 1])
        mine = wanted_rank == r
        at = first + np.searchsorted(key[first:stop], wanted[mine])
        hit = (at < stop) & (key[np.minimum(at, len(key) - 1)] == wanted[mine])
        result[mine] = np.where(hit, at, -1)
    return result


def _by_order(trace: Trace, src: Array, work: Array, issues: IssueLog) -> Array:
    """Tie communication kernels without correlation id to RCCL launches that launched nothing.

    ROCm 6.1 gives all of them correlation 0. They run in the order of their launches, so if there
    are as many of the one as of the other in a rank, the order tells which is which.
    """
    kind, rank, name = (trace.array(c) for c in ("kind", "rank", "name"))
    lost = (src < 0) & (kind[work] == Kind.COMM) & (trace.array("correlation")[work] <= 0)
    names = trace.names()
    if not lost.any() or _RCCL_LAUNCH not in names:
        return src
    spare = np.flatnonzero(name == names.index(_RCCL_LAUNCH))
    spare = np.setdiff1d(spare, src)
    src = src.copy()
    for r in np.unique(rank[work[lost]]):
        kernels = np.flatnonzero(lost & (rank[work] == r))
        calls = spare[rank[spare] == r]
        if len(kernels) == len(calls):
            src[kernels] = calls
            issues.add(LAUNCH_BY_ORDER, len(kernels))
    return src


def _forward_backward(
    trace: Trace, file: TraceFile, owners: Owners, issues: IssueLog
) -> tuple[Array, Array]:
    """Forward operator → backward operator, by the arrows of category ``fwdbwd``."""
    none = np.empty(0, np.int32)
    if "fwdbwd" not in file.texts:
        return none, none
    ours = file.rows["cat"] == file.texts.index("fwdbwd")
    starts, ends = (np.flatnonzero(ours & file.phase(p)) for p in ("s", "f"))
    ids = file.rows["id"]
    starts = starts[np.lexsort((ids[starts], owners.rank[starts]))]
    at = _first_match(owners.rank[starts], ids[starts], owners.rank[ends], ids[ends])
    ends, starts = ends[at >= 0], starts[at[at >= 0]]
    src = _operator_at(trace, file, owners, starts, innermost=True)
    dst = _operator_at(trace, file, owners, ends, innermost=False)
    timed = (file.rows["has"] & HAS_TS) != 0
    bound = (src >= 0) & (dst >= 0) & timed[starts] & timed[ends]
    issues.add(FLOW_UNBOUND, np.count_nonzero(~bound) + np.count_nonzero(at < 0))
    return src[bound].astype(np.int32), dst[bound].astype(np.int32)


def _operator_at(
    trace: Trace, file: TraceFile, owners: Owners, rows: Array, *, innermost: bool
) -> Array:
    """Node of the operator that starts where each arrow's end stands; -1 if there is none."""
    lane = _lane_of(trace, owners.rank[rows], file.rows["tid"][rows])
    ts = file.rows["ts"][rows] + file.base_ns - trace.meta.origin_ns
    ops = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    if not ops.size:
        return np.full(len(rows), -1)
    op_ts, op_dur = trace.array("ts")[ops], trace.array("dur")[ops]
    op_lane = trace.array("lane")[ops]
    order = np.lexsort((op_dur if innermost else -op_dur, op_ts, op_lane))
    span = int(max(op_ts.max(), ts.max(initial=0))) + 2
    key = (op_lane.astype(np.int64) * span + op_ts)[order]
    wanted = lane.astype(np.int64) * span + ts
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where((key[at] == wanted) & (lane >= 0) & (ts >= 0), ops[order][at], -1)


def _lane_of(trace: Trace, rank: Array, tid: Array) -> Array:
    """Lane of each thread; -1 if no node runs on it."""
    known = {
        (lane["rank"], lane["number"]): row
        for row, lane in enumerate(trace.lanes.to_pylist())
        if lane["kind"] == LaneKind.THREAD
    }
    return np.array(
        [known.get(key, -1) for key in zip(rank.tolist(), tid.tolist(), strict=True)], np.int64
    )
