"""The critical path by the definition of Holistic Trace Analysis (traceinsight 0.6.1), its CPGraph.

Each rank has its own graph. Vertices are starts and ends of host operators, of calls of the runtime
and driver, and of GPU work that a call of the window launched. Edges run

- along each host thread, with weight 0 between outermost operators and in calls known to wait
- from a launch to its work, if the stream was empty
- between pieces of work of a stream less than 1.5 ms apart
- by recorded waits (cuda_sync), with weight 0

The path is the longest one between any two vertices, by ``networkx.dag_longest_path``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.peers import hta_path_edges as joining
from chopper_interop.analyses.methods.peers import hta_path_events as reading
from chopper_interop.analyses.methods.peers import hta_path_loops as loops
from chopper_interop.analyses.methods.peers import temporal
from chopper_interop.arrays import Array, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.peers.hta_path_edges import Graph
    from chopper_interop.analyses.methods.peers.hta_path_events import HtaEvents

_HOST = (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER)
_TYPES = (
    "critical_path_operator", "critical_path_dependency", "critical_path_kernel_launch_delay",
    "critical_path_kernel_kernel_delay", "critical_path_sync_dependency",
)  # fmt: skip
_BOUNDS = ("cpu_bound", "gpu_compute_bound", "gpu_communication_bound", "gpu_kernel_launch_overhead",
           "gpu_kernel_kernel_overhead", "")  # fmt: skip

_CONVENTIONS = {
    "definition": "Holistic Trace Analysis (traceinsight 0.6.1), critical_path_analysis with "
    "annotation ProfilerStep and instance 0, or of all of a trace without ProfilerStep; a graph a rank",
    "window": "the first ProfilerStep of each rank's file, else everything; GPU work is in it if "
    "its launch is",
    "links": "work without a recorded launch is left out; launches are "
    + ", ".join(joining.LAUNCHES)
    + ", so not hipModuleLaunchKernel, hipExtLaunchKernel or launches of graphs",
    "path": "the longest from any start to any end: gaps between outermost operators "
    "have weight 0, so it is shorter than the window",
    "waits": "only those that the profiler recorded (cuda_sync): without them, as on AMD GPUs, the path "
    "cannot return from the GPU to the host",
    "order": "edges join work of one stream that is less than 1.5 ms apart, and a launch to its work if "
    "the stream was empty; calls of the CUDA runtime that allocate, launch and copy hold a lock",
    "parallel edges": "the last one between two endpoints counts, not the longest",
    "memset": "bounds as compute does",
    "copies": "bound as compute does",
    "rounding": "where times have fractions of microseconds, starts up and ends down to whole ones; "
    "negative durations count as 0 in the search for the path, but as they are in its sum",
}


def critical_path(trace: Trace, compat: str, ranks: str, *, default: bool) -> Result:
    """Find the critical path of each rank as another tool does, in microseconds by what bounds it.

    Parameters
    ----------
    compat
        "hta"; no other tool has a critical path.
    ranks
        As in `windows.chosen_ranks`.
    default
        True if all other options have their defaults.
    """
    if compat == "tracelens":
        raise NoSuchDefinitionsError(
            "compat=tracelens: TraceLens has no critical path", hint="there is hta"
        )
    if compat != "hta":
        raise NoSuchDefinitionsError(f"compat={compat}: there is hta")
    if not default:
        raise NoSuchDefinitionsError(
            "compat=hta has rows of bounds and a window of its own",
            hint="leave by, steps and near_us out",
        )
    chosen_ranks = windows.chosen_ranks(trace, ranks)
    starts, of_ranks = [], {}
    for rank in trace.ranks:  # also of those that are not chosen the first start counts
        events = reading.read_events(trace, rank)
        starts += [int(events.start.min())] if events.start.size else []
        if rank in chosen_ranks:
            of_ranks[rank] = _rank_path(trace, events)
        spill.release()
    since = min(starts, default=0)
    paths = {rank: of_ranks[rank] for rank in chosen_ranks}
    rows = [row | {"rank": rank} for rank, path in paths.items() for row in path.rows()]
    columns = {
        "rank": pa.int32(), "bound_by": pa.string(), "edge_type": pa.string(),
        "edges": pa.int64(), "duration_us": pa.float64(), "percent": pa.float64(),
    }  # fmt: skip
    table = pa.Table.from_pylist(rows, pa.schema(columns))
    failed = {rank: path.failed for rank, path in paths.items() if path.failed}
    notes = {}
    if failed:
        notes["failed"] = "; ".join(f"on rank {rank} {why}" for rank, why in failed.items())
    if not rows:
        notes["no rows"] = "HTA's definition gives no path"
    return Result("critical_path", table, _summary(paths, since), _CONVENTIONS, notes=notes)


def _summary(paths: dict[int, _Path], since: int) -> dict[str, Any]:
    """Return the longest path's length, and figures of each rank."""
    by_rank = [
        {
            "rank": rank,
            "cp_weight_us": float(path.weight.sum()),
            "nodes": path.nodes,
            "edges": path.edges,
            "cp_nodes": len(path.at),
            "first_ts_us": float(path.at[0] - since),
            "last_ts_us": float(path.at[-1] - since),
        }
        for rank, path in paths.items()
        if path.at.size
    ]
    longest = max((row["cp_weight_us"] for row in by_rank), default=None)
    return {"ranks": len(paths), "cp_weight_us": longest, "by_rank": by_rank}


@dataclass(frozen=True)
class _Path:
    """The path of a rank, edge by edge; `at` has the times of its vertices."""

    at: Array
    weight: Array
    edge_type: Array
    bound: Array
    nodes: int = 0
    edges: int = 0
    failed: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Time by bound and type of edge."""
        total = float(self.weight.sum())
        key = self.bound * len(_TYPES) + self.edge_type
        count = np.bincount(key)
        table_rows = []
        for k in np.flatnonzero(count).tolist():
            us = float(self.weight[key == k].sum())
            table_rows.append(
                {
                    "bound_by": _BOUNDS[k // len(_TYPES)],
                    "edge_type": _TYPES[k % len(_TYPES)],
                    "edges": int(count[k]),
                    "duration_us": us,
                    "percent": 100 * us / total if total else None,
                }
            )
        return sorted(table_rows, key=lambda row: -row["duration_us"])


def _no_path(failed: str = "") -> _Path:
    empty = np.empty(0, np.int64)
    return _Path(empty, empty, empty, empty, failed=failed)


def _rank_path(trace: Trace, events: HtaEvents) -> _Path:
    """Find the path of one rank."""
    if not events.examined.any():
        return _no_path()
    host = events.stream == -1
    begin, stop = reading.window(trace, events)
    within = host & events.examined & (events.start >= begin) & (events.start <= stop)
    within &= events.end > events.start
    launched = np.zeros(len(host), np.bool_)
    has_launch = within & (events.link >= 0)
    launched[events.link[has_launch]] = True
    launched |= events.named_in(reading.named(trace, "Stream Wait Event"))
    clipped = within | (launched & ~host & events.examined)
    vertex = is_any(events.kind, _HOST) | (~host & (events.correlation >= 0))
    graph = joining.Graph.of_events(events, np.flatnonzero(clipped & vertex))
    edges = [
        joining.lock_edges(trace, events, graph),
        joining.thread_edges(trace, events, graph, np.flatnonzero(within & events.on_host)),
    ]
    queued = joining.queued_work(trace, events)
    if queued is None:
        return _no_path("HTA fails: not every launch has just one piece of work (AssertionError)")
    at_gpu = ~host | events.named_in(reading.named(trace, *reading.OF_DEVICE))
    work, ok = joining.work_edges(
        trace, events, graph, np.flatnonzero(clipped & at_gpu & (events.correlation >= 0)), queued
    )
    if not ok:
        return _no_path("HTA fails: no launch of work in the window (AssertionError)")
    return _longest(trace, events, graph, np.concatenate([*edges, work]))


def _longest(trace: Trace, events: HtaEvents, graph: Graph, edges: Array) -> _Path:
    """Find the longest path.

    Of several edges between the same vertices the last one counts, at the position of the first:
    networkx replaces the attributes of an edge that is added again.
    """
    n = len(graph.at)
    if not len(edges):
        return _no_path()
    key = edges[:, 0] * n + edges[:, 1]
    first, inverse = np.unique(key, return_index=True, return_inverse=True)[1:]
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, inverse.reshape(-1), np.arange(len(edges)))
    src, dst, edge_type, free = edges[last[np.argsort(first)]].T.copy()
    is_free = free.astype(np.bool_) | np.isin(edge_type, [loops.DEPENDENCY, loops.SYNC])
    weight = np.where(is_free, 0, graph.at[dst] - graph.at[src])
    stream = events.stream[graph.event]
    if ((edge_type == loops.SYNC) & (stream[src] != -1) & (stream[src] == stream[dst])).any():
        return _no_path("HTA gives up: a wait between work of one stream")
    seeds, first_use = np.unique(edges[:, :2].reshape(-1), return_index=True)
    out, into = np.argsort(src, kind="stable"), np.argsort(dst, kind="stable")
    vertices = np.arange(n + 1)
    path = loops.longest_path(
        seeds[np.argsort(first_use)], np.searchsorted(src[out], vertices), dst[out],
        np.searchsorted(dst[into], vertices), into, src, np.maximum(weight, 0),
    )  # fmt: skip
    if not path.size:
        return _no_path("HTA gives up: the graph has a cycle")
    order = np.argsort(src * n + dst)
    path_edge = order[np.searchsorted((src * n + dst)[order], path[:-1] * n + path[1:])]
    bound = _bounds(trace, events, graph.event[src[path_edge]], edge_type[path_edge])
    return _Path(
        graph.at[path], weight[path_edge], edge_type[path_edge], bound, len(seeds), len(src)
    )


def _bounds(trace: Trace, events: HtaEvents, event: Array, edge_type: Array) -> Array:
    """Return what bounds each edge, as an index into `_BOUNDS`."""
    comm = np.array([*(temporal.hta_event_type(t) == temporal.COMM for t in trace.names()), False])
    bound = np.where(events.stream[event] < 0, 0, 1 + events.named_in(comm)[event])
    bound[edge_type == loops.LAUNCH] = _BOUNDS.index("gpu_kernel_launch_overhead")
    bound[edge_type == loops.KERNEL] = _BOUNDS.index("gpu_kernel_kernel_overhead")
    bound[np.isin(edge_type, [loops.DEPENDENCY, loops.SYNC])] = _BOUNDS.index("")
    return bound
