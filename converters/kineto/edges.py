"""Edges of a Kineto file: launches by correlation id, forward → backward by arrows or numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays.members import is_any
from chopper_interop.converters.kineto.autograd_pairs import pairs_by_number
from chopper_interop.converters.kineto.lanes import find_lanes
from chopper_interop.converters.kineto.launch_arrows import calls_by_arrows
from chopper_interop.io.json_events import HAS_TS
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.kineto.ranks import Owners
    from chopper_interop.converters.kineto.trace_file import TraceFile
    from chopper_interop.trace import Trace

NO_LAUNCH = Fault(
    "launch-not-recorded",
    Severity.INFO,
    "GPU work whose launch is unknown, as neither a correlation id nor an arrow leads to it: it was "
    "queued before the window, or the profiler gave it none.",
)
LAUNCH_BY_ORDER = Fault(
    "launch-by-order",
    Severity.INFO,
    "Kernels without a correlation id were linked to launches of such kernels by their order.",
)
FLOW_UNBOUND = Fault(
    "fwdbwd-unbound",
    Severity.LOSS,
    "Forward → backward arrows of which an end starts at no operator were left out.",
)

_LAUNCH_NAME = re.compile(r"launch|memcpy|memset|fill|copy|graph", re.IGNORECASE)
_RCCL_LAUNCH = "hipExtLaunchKernel"
"""The call by which RCCL launches its kernels."""


def add_edges(trace: Trace, file: TraceFile, owners: Owners, issues: IssueLog) -> Trace:
    """Return the trace with its launch and forward → backward edges."""
    calls = calls_by_arrows(trace, file, owners, issues)
    launched = trace.with_edges(*launch_edges(trace, issues, calls), EdgeKind.LAUNCH)
    pairs = _forward_backward(trace, file, owners, issues)
    if not pairs[0].size:
        pairs = pairs_by_number(trace, issues)
    return launched.with_edges(*pairs, EdgeKind.FWDBWD)


def launch_edges(
    trace: Trace, issues: IssueLog, call_by_arrow: Array | None = None
) -> tuple[Array, Array]:
    """Find the call that launched each piece of GPU work, by correlation id within each rank.

    Of several calls with one id, the first that is named like a launch counts. A launch of a graph
    has many pieces of work.

    Parameters
    ----------
    trace
        The trace.
    issues
        Receives how many launches are unknown, or known by order only.
    call_by_arrow
        Call of each node, -1 for none, for work that no id links.

    Returns
    -------
    calls, work
        Rows of nodes, int32.
    """
    kind, rank, ts = (trace.array(c) for c in ("kind", "rank", "ts"))
    correlation = trace.array("correlation")
    calls = np.flatnonzero(is_any(kind, CALLS) & (correlation > 0))
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    is_launch_name = np.array([_LAUNCH_NAME.search(n) is not None for n in trace.names()], bool)
    is_launch = is_launch_name[trace.array("name")[calls]]
    order = np.lexsort((ts[calls], ~is_launch, correlation[calls], rank[calls]))
    calls = calls[order]
    at = _first_match(
        rank[calls],
        correlation[calls],
        rank[work],
        np.where(correlation[work] > 0, correlation[work], -1),
    )
    src = np.where(at >= 0, calls[at] if calls.size else -1, -1)
    src = _match_by_order(trace, src, work, issues)
    if call_by_arrow is not None:
        src = np.where(src >= 0, src, call_by_arrow[work])
    known = src >= 0
    issues.add(NO_LAUNCH, np.count_nonzero(~known))
    return src[known].astype(np.int32), work[known].astype(np.int32)


def _first_match(rank: Array, key: Array, wanted_rank: Array, wanted_key: Array) -> Array:
    """Position of the first row equal to each wanted (rank, key); -1 if there is none.

    The rows are ascending by rank, then key, so that each rank is a range in which a binary search
    by key alone finds the first.
    """
    position = np.full(len(wanted_key), -1, np.int64)
    for r in np.unique(rank):
        first, stop = np.searchsorted(rank, [r, r + 1])
        of_rank = wanted_rank == r
        at = first + np.searchsorted(key[first:stop], wanted_key[of_rank])
        hit = (at < stop) & (key[np.minimum(at, len(key) - 1)] == wanted_key[of_rank])
        position[of_rank] = np.where(hit, at, -1)
    return position


def _match_by_order(trace: Trace, src: Array, work: Array, issues: IssueLog) -> Array:
    """Link communication kernels without correlation id to RCCL launches that launched nothing.

    ROCm 6.1 gives all of them correlation 0. They run in the order of their launches, so if there
    are as many of the one as of the other in a rank, their order matches them.
    """
    kind, rank, name = (trace.array(c) for c in ("kind", "rank", "name"))
    lost = (src < 0) & (kind[work] == Kind.COMM) & (trace.array("correlation")[work] <= 0)
    names = trace.names()
    if not lost.any() or _RCCL_LAUNCH not in names:
        return src
    idle_calls = np.setdiff1d(np.flatnonzero(name == names.index(_RCCL_LAUNCH)), src)
    src = src.copy()
    for r in np.unique(rank[work[lost]]):
        kernels = np.flatnonzero(lost & (rank[work] == r))
        calls = idle_calls[rank[idle_calls] == r]
        if len(kernels) == len(calls):
            src[kernels] = calls
            issues.add(LAUNCH_BY_ORDER, len(kernels))
    return src


def _forward_backward(
    trace: Trace, file: TraceFile, owners: Owners, issues: IssueLog
) -> tuple[Array, Array]:
    """Forward operator → backward operator, by the arrows of category ``fwdbwd``."""
    if "fwdbwd" not in file.texts:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    fwdbwd = file.rows["cat"] == file.texts.index("fwdbwd")
    starts, ends = (np.flatnonzero(fwdbwd & file.phase(p)) for p in ("s", "f"))
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
    """Node of the operator that starts at each arrow's end; -1 if there is none.

    Lane and start make one number, ``lane * span + start``, that a binary search finds; of
    operators that start together, the shortest (`innermost`) or longest comes first.
    """
    lane = find_lanes(trace, LaneKind.THREAD, rank=owners.rank[rows], number=file.rows["tid"][rows])
    ts = file.rows["ts"][rows] + file.base_ns - trace.meta.origin_ns
    ops = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    if not ops.size:
        return np.full(len(rows), -1)
    op_ts, op_dur = trace.array("ts")[ops], trace.array("dur")[ops]
    op_lane = trace.array("lane")[ops]
    order = np.lexsort((op_dur if innermost else -op_dur, op_ts, op_lane))
    span = int(max(op_ts.max(), ts.max(initial=0))) + 2
    key = (op_lane.astype(np.int64) * span + op_ts)[order]
    wanted_key = lane * span + ts
    at = np.minimum(np.searchsorted(key, wanted_key), len(key) - 1)
    return np.where((key[at] == wanted_key) & (lane >= 0) & (ts >= 0), ops[order][at], -1)
