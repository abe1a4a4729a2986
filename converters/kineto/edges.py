"""Edges of Kineto files: launches and forward → backward, by numbers or by arrows.

Launches have correlation ids, except in files of rocmProfileData, rocprof and torch_npu, which draw
arrows. Those of torch_npu lead from CANN's call, often on a thread that does nothing but launch, and
from the operator: the call counts if an operator runs around it, else the operator.
Forward and backward operators are joined by ``fwdbwd`` arrows. Profilers of 2021 to 2023, and those
that record shapes alone, draw none; what they would connect is in the arguments all the same, as
``Sequence number`` and ``Fwd thread id``, which is above 0 in the backward pass
(`annotate.structure.autograd`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.structure import autograd
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.kineto.categories import LAUNCH_FLOWS, OPERATOR_FLOWS
from chopper_interop.converters.kineto.ranks import Owners, find_lanes, raw_pid
from chopper_interop.io import json_events
from chopper_interop.io.json_events import HAS_TS
from chopper_interop.issues import Fault
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind, LaneKind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.combined import SourceIssues
    from chopper_interop.converters.kineto.trace_file import TraceFile

NO_LAUNCH = Fault.info(
    "launch-not-recorded",
    "GPU work whose launch is unknown, as neither a correlation id nor an "
    "arrow leads to it: it was queued before the window, or the profiler gave it none.",
)
LAUNCH_BY_ORDER = Fault.info(
    "launch-by-order",
    "Kernels without a correlation id were linked to launches of such kernels by their order.",
)
LAUNCH_AMBIGUOUS = Fault.loss(
    "launch-ambiguous",
    "GPU work was linked to the first of several launches one after the other that have its correlation id, "
    "and may be another's.",
)
FLOW_UNBOUND = Fault.loss(
    "fwdbwd-unbound",
    "Forward → backward arrows of which an end starts at no operator were left out.",
)
ARROW_UNBOUND = Fault.loss(
    "launch-arrow-unbound",
    "Arrows from calls to GPU work that begin in no call, or end where no "
    "work or several starts, were left out: these launches are unknown.",
)
ARROW_OF_OTHERS = Fault.loss(
    "arrow-of-others",
    "Arrows that begin in no call and end at no GPU work, as those of the data between TensorFlow's operators, were left out.",
)
BY_NUMBER = Fault.info(
    "fwdbwd-by-number",
    "Backward operators were linked to forward operators by their sequence "
    "numbers, as the file draws no arrows between them.",
)

_LAUNCH_NAME = re.compile(r"launch|memcpy|memset|fill|copy|graph", re.IGNORECASE)
_RCCL_LAUNCH = "hipExtLaunchKernel"
"""The call by which RCCL launches its kernels."""
_ARROW_RESOLUTION_NS = 1000
"""Files with such arrows have whole microseconds: a span may end that much later than it states."""
_AUTOGRAD_KEYS = ("Sequence number", "Fwd thread id")
_ENGINE = "autograd::engine::"
"""The engine's own range around a backward operator carries the same numbers."""
_MAX_KEY = 1 << 62
"""Largest number of a lane and a time: half of what int64 holds, so that sums of it are safe."""


def add_edges(trace: Trace, file: TraceFile, owners: Owners, issues: SourceIssues) -> Trace:
    """Return the trace with its launch and forward → backward edges."""
    has_arrows = not (LAUNCH_FLOWS | OPERATOR_FLOWS).isdisjoint(file.texts)
    calls = _calls_by_arrows(trace, file, owners, issues) if has_arrows else None
    launched = trace.with_edges(*launch_edges(trace, issues, calls), EdgeKind.LAUNCH)
    src, dst = _forward_backward(trace, file, owners, issues)
    member = member_of_nodes(trace, file)
    drawn = gather.unique(member[src])  # files that draw arrows
    if len(drawn) < len(file.members):
        numbered = pairs_by_number(trace)
        silent = ~np.isin(member[numbered[0]], drawn)
        numbered = numbered[0][silent], numbered[1][silent]
        issues.add_rows(BY_NUMBER, numbered[0], member)
        src, dst = np.append(src, numbered[0]), np.append(dst, numbered[1])
    return launched.with_edges(src, dst, EdgeKind.FWDBWD)


def member_of_nodes(trace: Trace, file: TraceFile) -> Array:
    """Number of the file of each node."""
    if len(file.members) > 1:
        return trace.array("rank")
    return np.broadcast_to(np.int32(0), trace.nodes.num_rows)


def launch_edges(
    trace: Trace, issues: SourceIssues, call_by_arrow: Array | None = None
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
    names, name = trace.names(), trace.array("name")[calls]
    launches = [n for n in gather.unique(name).tolist() if _LAUNCH_NAME.search(names[n])]
    is_launch = np.isin(name, launches)
    order = np.lexsort((ts[calls], ~is_launch, correlation[calls], rank[calls]))
    calls = calls[order]
    at = _first_match(
        rank[calls],
        correlation[calls],
        rank[work],
        np.where(correlation[work] > 0, correlation[work], -1),
    )
    src = np.where(at >= 0, calls[at] if calls.size else -1, -1)
    several = _has_successor(trace, calls, is_launch[order])
    issues.add_rows(LAUNCH_AMBIGUOUS, work[several[at] & (at >= 0)], rank)
    src = _match_by_order(trace, src, work, issues)
    if call_by_arrow is not None:
        src = np.where(src >= 0, src, call_by_arrow[work])
    known = src >= 0
    issues.add_rows(NO_LAUNCH, work[~known], rank)
    return src[known].astype(np.int32), work[known].astype(np.int32)


def _has_successor(trace: Trace, calls: Array, is_launch: Array) -> Array:
    """Mark the calls behind which the next row is a launch of the same id that began after it, and False for none."""
    rank, ts, correlation = (trace.array(c)[calls] for c in ("rank", "ts", "correlation"))
    same = (rank[1:] == rank[:-1]) & (correlation[1:] == correlation[:-1]) & is_launch[1:]
    same &= ts[1:] >= (ts + trace.array("dur")[calls])[:-1]  # else one called the other
    return np.append(same, False)


def _first_match(rank: Array, key: Array, wanted_rank: Array, wanted_key: Array) -> Array:
    """Position of the first row equal to each wanted (rank, key); -1 if there is none.

    The rows are ascending by rank, then key, and stay so when the place of a key among all keys stands for it. Place
    and rank fit into one number, so that one binary search finds the first row.
    """
    if not len(key):
        return np.full(len(wanted_key), -1, np.int64)
    keys = np.sort(key, kind="stable")  # of each rank ascending already; np.unique would hash them
    keys = keys[np.append(True, keys[1:] != keys[:-1])]
    place = np.minimum(np.searchsorted(keys, wanted_key), len(keys) - 1)
    row = rank.astype(np.int64) * len(keys) + np.searchsorted(keys, key)
    wanted = wanted_rank.astype(np.int64) * len(keys) + place
    return np.where(keys[place] == wanted_key, gather.find(row, wanted), -1)


def _match_by_order(trace: Trace, src: Array, work: Array, issues: SourceIssues) -> Array:
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
    for r in gather.unique(rank[work[lost]]):
        kernels = np.flatnonzero(lost & (rank[work] == r))
        calls = idle_calls[rank[idle_calls] == r]
        if len(kernels) == len(calls):
            src[kernels] = calls
            issues.add_rows(LAUNCH_BY_ORDER, work[kernels], rank)
    return src


def _calls_by_arrows(trace: Trace, file: TraceFile, owners: Owners, issues: SourceIssues) -> Array:
    """Call or operator from which an arrow leads to each node; -1 where none does."""
    call_of_node, *of_calls = _by_arrows(trace, file, owners, LAUNCH_FLOWS)
    operator, *of_operators = _by_arrows(trace, file, owners, OPERATOR_FLOWS)
    for fault, *rows in zip((ARROW_UNBOUND, ARROW_OF_OTHERS), of_calls, of_operators, strict=True):
        issues.add_rows(fault, np.concatenate(rows), file.member)
    is_operator = trace.array("kind") == Kind.CPU_OP
    within = gather.nearest_ancestor(call_of_node, trace.array("parent"), is_operator) >= 0
    return np.where((operator >= 0) & ~within, operator, call_of_node)


def _by_arrows(
    trace: Trace, file: TraceFile, owners: Owners, categories: frozenset[str]
) -> tuple[Array, Array, Array]:
    """Host node from which an arrow leads to each node, and the rows of arrows of which one end binds none, or both."""
    call_of_node = np.full(trace.nodes.num_rows, -1, np.int64)
    codes = [i for i, text in enumerate(file.texts) if text in categories]
    launch_flow = np.isin(file.columns["cat"], codes) & ((file.columns["has"] & HAS_TS) != 0)
    starts, ends = (np.flatnonzero(launch_flow & file.phase(*p)) for p in ("s", "tf"))
    rank, ids = owners.rank.astype(np.int64), file.columns["id"]
    # number the (rank, category, id) over starts and ends alike; the first of each is its start,
    # unless the arrow has none
    both = np.concatenate([starts, ends])
    category = file.columns["cat"].astype(np.int64)
    first, code = gather.distinct(rank[both], category[both], ids[both])
    begin = np.where(first < len(starts), both[first], -1)[code[len(starts) :]]
    find = _calls_around if categories is LAUNCH_FLOWS else _operators_at
    call = find(trace, file, owners, np.maximum(begin, 0))
    work = _work_at(trace, file, owners, ends)
    from_call = (begin >= 0) & (call >= 0)
    bound, neither = from_call & (work >= 0), ~from_call & (work < 0)
    call_of_node[work[bound][::-1]] = call[bound][::-1]  # of several, the first stays
    return call_of_node, ends[~bound & ~neither], ends[neither]


def _calls_around(trace: Trace, file: TraceFile, owners: Owners, rows: Array) -> Array:
    """Call that runs where each arrow begins, the last to start; -1 if none does.

    Calls may be nested, and the last that started may have ended::

        CANN   [ aclopCompileAndExecute          ^ ]   the arrow is of the outer call
                  [ opCompile ]
    """
    is_call = is_any(trace.array("kind"), CALLS)
    calls = np.flatnonzero(is_call)
    lane = find_lanes(
        trace, LaneKind.THREAD, rank=owners.rank[rows], number=file.columns["tid"][rows]
    )
    calls, node_key, row_key, ts = _keys_by_lane_and_time(trace, file, owners, calls, lane, rows)
    if not calls.size:
        return np.full(len(rows), -1, np.int64)
    at = np.searchsorted(node_key, row_key, side="right") - 1
    node = calls[np.maximum(at, 0)]
    node = np.where((at >= 0) & (trace.array("lane")[node] == lane), node, -1)
    end, parent = trace.array("ts") + trace.array("dur"), trace.array("parent")
    while True:
        over = np.flatnonzero((node >= 0) & (ts > end[node] + _ARROW_RESOLUTION_NS))
        if not over.size:
            return node
        node[over] = gather.nearest_ancestor(parent[node[over]], parent, is_call)


def _work_at(trace: Trace, file: TraceFile, owners: Owners, rows: Array) -> Array:
    """GPU work that starts where each arrow ends; -1 if none does, or several."""
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    lane = find_lanes(
        trace,
        LaneKind.STREAM,
        rank=owners.rank[rows],
        device=raw_pid(file)[rows],
        number=file.columns["tid"][rows],
    )
    work, node_key, row_key, _ = _keys_by_lane_and_time(trace, file, owners, work, lane, rows)
    if not work.size:
        return np.full(len(rows), -1, np.int64)
    low, high = (np.searchsorted(node_key, row_key, side=side) for side in ("left", "right"))
    single = (high - low == 1) & (lane >= 0)
    return np.where(single, work[np.minimum(low, len(work) - 1)], -1)


def _keys_by_lane_and_time(  # nodes, and what is searched among them
    trace: Trace, file: TraceFile, owners: Owners, nodes: Array, lane: Array, rows: Array
) -> tuple[Array, Array, Array, Array]:
    """Make one number of lane and time, so that one binary search finds nodes by both.

    The number is ``lane * span + time``, `span` being greater than all times, which count from the first
    start of their rank: clocks of several files may be years apart. Times of events
    outside of those of the nodes are moved to just before or after them, so that they stay in
    their lane's range. Where such numbers are too large (one time of 1970 among others of today), the place of a time
    among the nodes' times stands for it.

    Parameters
    ----------
    trace, file, owners
        The trace, the file that it was made of, and the ranks of its events.
    nodes
        Nodes among which to search.
    lane, rows
        Lane and row of the events for which to search.

    Returns
    -------
    nodes, node_key, row_key, ts
        The nodes by ascending key, their keys, the events' keys, and the events' times.
    """
    ts = file.columns["ts"][rows] + file.base_ns - trace.meta.origin_ns
    if not nodes.size:
        return nodes, nodes, np.zeros_like(ts), ts
    starts = trace.array("ts")[nodes]
    from_first = starts - _first_starts(trace, trace.array("rank")[nodes])
    lanes = trace.array("lane")[nodes].astype(np.int64)
    sought = ts - _first_starts(trace, owners.rank[rows])
    if int(from_first.max()) > _MAX_KEY // (trace.lanes.num_rows + 1):
        from_first, sought = _places(from_first, sought)
    last = int(from_first.max())
    span = last + 3
    order = np.lexsort((starts, lanes))
    inside = np.clip(sought, -1, last + 1)
    return nodes[order], (lanes * span + from_first)[order], lane * span + inside, ts


def _places(times: Array, sought: Array) -> tuple[Array, Array]:
    """Numbers for times of nodes and of events, in the same order, of which only equal times have equal ones.

    ::

        nodes' times      10    20    30
        number          0  1  2  3  4  5  6      of an event at 20: 3, at 25: 4
    """
    distinct = gather.unique(times)
    low, high = (np.searchsorted(distinct, sought, side) for side in ("left", "right"))
    return 2 * np.searchsorted(distinct, times) + 1, low + high


def _first_starts(trace: Trace, rank: Array) -> Array | int:
    """First start of each of these ranks; 0 if there is only one, as times count from it."""
    of_nodes = trace.array("rank")
    if of_nodes[0] == of_nodes[-1]:
        return 0
    first = np.minimum(np.searchsorted(of_nodes, rank), len(of_nodes) - 1)
    return np.asarray(trace.array("ts")[first])


def _forward_backward(
    trace: Trace, file: TraceFile, owners: Owners, issues: SourceIssues
) -> tuple[Array, Array]:
    """Forward operator → backward operator, by the arrows of category ``fwdbwd``."""
    if "fwdbwd" not in file.texts:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    fwdbwd = file.columns["cat"] == file.texts.index("fwdbwd")
    starts, ends = (np.flatnonzero(fwdbwd & file.phase(p)) for p in ("s", "f"))
    ids = file.columns["id"]
    starts = starts[np.lexsort((ids[starts], owners.rank[starts]))]
    at = _first_match(owners.rank[starts], ids[starts], owners.rank[ends], ids[ends])
    lost = ends[at < 0]
    ends, starts = ends[at >= 0], starts[at[at >= 0]]
    src = _operator_at(trace, file, owners, starts, innermost=True)
    dst = _operator_at(trace, file, owners, ends, innermost=False)
    timed = (file.columns["has"] & HAS_TS) != 0
    bound = (src >= 0) & (dst >= 0) & timed[starts] & timed[ends]
    issues.add_rows(FLOW_UNBOUND, np.append(ends[~bound], lost), file.member)
    return src[bound].astype(np.int32), dst[bound].astype(np.int32)


def _operators_at(trace: Trace, file: TraceFile, owners: Owners, rows: Array) -> Array:
    return _operator_at(trace, file, owners, rows, innermost=True)


def _operator_at(
    trace: Trace, file: TraceFile, owners: Owners, rows: Array, *, innermost: bool
) -> Array:
    """Node of the operator that starts at each arrow's end; -1 if there is none.

    Of operators that start together it is the shortest (`innermost`) or the longest.
    """
    lane = find_lanes(
        trace, LaneKind.THREAD, rank=owners.rank[rows], number=file.columns["tid"][rows]
    )
    ops = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    dur = trace.array("dur")[ops]
    ops = ops[np.argsort(dur if innermost else -dur, kind="stable")]
    ops, node_key, row_key, _ = _keys_by_lane_and_time(trace, file, owners, ops, lane, rows)
    return np.append(ops, -1)[gather.find(node_key, row_key)]


def pairs_by_number(trace: Trace) -> tuple[Array, Array]:
    """Rows of forward operators, and of the backward operators that belong to them."""
    sequence, thread = _sequence_and_thread(trace)
    if not ((sequence >= 0) & (thread > 0)).any():  # no backward operator states its number
        return np.empty(0, np.int32), np.empty(0, np.int32)
    forward = autograd.forward_operators(trace, sequence, thread)
    dst = np.flatnonzero(forward >= 0)
    dst = dst[~_is_inner(trace, sequence, thread, dst)]
    src = forward[dst]
    ts = trace.array("ts")
    in_order = ts[src] + trace.array("dur")[src] <= ts[dst]
    return src[in_order], dst[in_order].astype(np.int32)


def _sequence_and_thread(trace: Trace) -> tuple[Array, Array]:
    """Sequence number of each operator (-1: none), and its forward thread (0: it is forward)."""
    engine = np.array([name.startswith(_ENGINE) for name in trace.names()] or [False])
    node = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    node = node[~engine[trace.array("name")[node]]]
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    values, present = json_events.extract_integers(buffer, at, length, _AUTOGRAD_KEYS)
    sequence = np.full(trace.nodes.num_rows, -1, np.int64)
    thread = np.zeros(trace.nodes.num_rows, np.int64)
    sequence[node] = np.where(present[0], values[0], -1)
    thread[node] = np.where(present[1], np.maximum(values[1], 0), 0)
    return sequence, thread


def _is_inner(trace: Trace, sequence: Array, thread: Array, node: Array) -> Array:
    """Mark operators directly within another one of the same number and pass."""
    parent = trace.array("parent")[node]
    same = (sequence[parent] == sequence[node]) & (thread[parent] == thread[node])
    return (parent >= 0) & same
