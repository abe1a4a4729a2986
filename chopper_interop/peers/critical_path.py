"""The critical path as Holistic Trace Analysis (traceinsight 0.6.1) finds it: its CPGraph, not ours.

Each rank is a graph of its own. Vertices are starts and ends of host operators, calls of the
runtime and driver, and GPU work that a call of the window launched. Edges run along each host
thread (at no cost between operators of the outermost level, and in calls that it knows to wait),
from a launch to work that found its stream empty, between pieces of work of a stream less than
1.5 ms apart, and by recorded waits (cuda_sync), which cost nothing. The path is the longest one
from anywhere to anywhere, by `networkx.dag_longest_path`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import windows
from chopper_interop.columns.members import is_any
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.peers import critical_path_edges as joining
from chopper_interop.peers import critical_path_events as reading
from chopper_interop.peers import critical_path_loops as loops
from chopper_interop.peers import temporal
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.peers.critical_path_edges import Graph
    from chopper_interop.peers.critical_path_events import Events
    from chopper_interop.trace import Trace

_HOST = (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER)
_TYPES = (
    "critical_path_operator", "critical_path_dependency", "critical_path_kernel_launch_delay",
    "critical_path_kernel_kernel_delay", "critical_path_sync_dependency",
)  # fmt: skip
_BOUNDS = ("cpu_bound", "gpu_compute_bound", "gpu_communication_bound", "gpu_kernel_launch_overhead",
           "gpu_kernel_kernel_overhead", "")  # fmt: skip

_CONVENTIONS = {
    "definition": "Holistic Trace Analysis (traceinsight 0.6.1), critical_path_analysis with "
    "annotation ProfilerStep and instance 0, of a trace without ProfilerStep of all; a graph a rank",
    "window": "the first ProfilerStep of each rank's file, else everything; work of GPUs is in it if "
    "its launch is",
    "links": "work without a recorded launch is left out; launches are "
    + ", ".join(joining.LAUNCHES)
    + ", so neither hipModuleLaunchKernel nor hipExtLaunchKernel nor launches of graphs",
    "path": "the longest from any start to any end: gaps between operators of the outermost level "
    "cost nothing, so it is shorter than the window",
    "waits": "only those that the profiler recorded (cuda_sync): without them, as on AMD GPUs, the path "
    "cannot come back from the GPU to the host",
    "order": "on one stream, if less than 1.5 ms lie between; from its launch where the stream was "
    "empty; calls of the CUDA runtime that allocate, launch and copy hold a lock",
    "parallel edges": "the last one between two moments counts, not the longest",
    "memset": "bounds as compute does",
    "copies": "bound as compute does",
    "rounding": "where times have fractions of microseconds, starts up and ends down to whole ones; "
    "negative durations are no way to gain, but count in what the path adds up to",
}


def critical_path(trace: Trace, compat: str, ranks: str, *, default: bool) -> Result:
    """The critical path of each rank as another tool gives it: microseconds by what bounds it.

    Parameters
    ----------
    trace
        Any trace.
    compat
        "hta"; no other tool has a critical path.
    ranks
        As of `windows.chosen_ranks`.
    default
        Whether the other options are as they are by default.
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
    chosen = windows.chosen_ranks(trace, ranks)
    events = {rank: reading.read(trace, rank) for rank in trace.ranks}
    since = min((int(e.start.min()) for e in events.values() if e.start.size), default=0)
    found = {rank: _path(trace, events[rank]) for rank in chosen}
    rows = [row | {"rank": rank} for rank, path in found.items() for row in path.rows()]
    columns = {
        "rank": pa.int32(), "bound_by": pa.string(), "edge_type": pa.string(),
        "edges": pa.int64(), "duration_us": pa.float64(), "percent": pa.float64(),
    }  # fmt: skip
    table = pa.table({n: pa.array([row[n] for row in rows], t) for n, t in columns.items()})
    failed = {rank: path.failed for rank, path in found.items() if path.failed}
    notes = {}
    if failed:
        notes["failed"] = "; ".join(f"on rank {rank} {why}" for rank, why in failed.items())
    if not rows:
        notes["no rows"] = "it finds no path"
    return Result("critical_path", table, _summary(found, since), _CONVENTIONS, notes=notes)


def _summary(found: dict[int, _Path], since: int) -> dict[str, Any]:
    """The longest of the ranks, and what each rank has."""
    each = [
        {
            "rank": rank,
            "cp_weight_us": float(path.weight.sum()),
            "nodes": path.nodes,
            "edges": path.edges,
            "cp_nodes": len(path.at),
            "first_ts_us": float(path.at[0] - since),
            "last_ts_us": float(path.at[-1] - since),
        }
        for rank, path in found.items()
        if path.at.size
    ]
    longest = max((one["cp_weight_us"] for one in each), default=None)
    return {"ranks": len(found), "cp_weight_us": longest, "by_rank": each}


@dataclass(frozen=True)
class _Path:
    """The path of a rank, edge by edge; `at` are times of its vertices."""

    at: Array
    weight: Array
    sort: Array
    bound: Array
    nodes: int = 0
    edges: int = 0
    failed: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Time by bound and type of edge."""
        total = float(self.weight.sum())
        key = self.bound * len(_TYPES) + self.sort
        count = np.bincount(key)
        made = []
        for k in np.flatnonzero(count).tolist():
            us = float(self.weight[key == k].sum())
            made.append(
                {
                    "bound_by": _BOUNDS[k // len(_TYPES)],
                    "edge_type": _TYPES[k % len(_TYPES)],
                    "edges": int(count[k]),
                    "duration_us": us,
                    "percent": 100 * us / total if total else None,
                }
            )
        return sorted(made, key=lambda row: -row["duration_us"])


def _no_path(failed: str = "") -> _Path:
    nothing = np.empty(0, np.int64)
    return _Path(nothing, nothing, nothing, nothing, failed=failed)


def _path(trace: Trace, events: Events) -> _Path:
    """The path of one rank."""
    if not events.kept.any():
        return _no_path()
    host = events.stream == -1
    begin, stop = reading.window(trace, events)
    within = host & events.kept & (events.start >= begin) & (events.start <= stop)
    within &= events.end > events.start
    launched = np.zeros(len(host), np.bool_)
    asked = within & (events.link >= 0)
    launched[events.link[asked]] = True
    launched |= events.like(reading.named(trace, "Stream Wait Event"))
    clipped = within | (launched & ~host & events.kept)
    vertex = is_any(events.kind, _HOST) | (~host & (events.correlation >= 0))
    graph = joining.Graph.of(events, np.flatnonzero(clipped & vertex))
    edges = [
        joining.lock_edges(trace, events, graph),
        joining.thread_edges(trace, events, graph, np.flatnonzero(within & events.on_host)),
    ]
    queued = joining.queued(trace, events)
    if queued is None:
        return _no_path("it fails: not every launch has just one piece of work (AssertionError)")
    at_gpu = ~host | events.like(reading.named(trace, *reading.OF_DEVICE))
    work, ok = joining.work_edges(
        trace, events, graph, np.flatnonzero(clipped & at_gpu & (events.correlation >= 0)), queued
    )
    if not ok:
        return _no_path("it fails: no launch of work in the window (AssertionError)")
    return _longest(trace, events, graph, np.concatenate([*edges, work]))


def _longest(trace: Trace, events: Events, graph: Graph, edges: Array) -> _Path:
    """The longest path; of edges between the same vertices the last counts, in the first's place."""
    n = len(graph.at)
    if not len(edges):
        return _no_path()
    key = edges[:, 0] * n + edges[:, 1]
    first, inverse = np.unique(key, return_index=True, return_inverse=True)[1:]
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, inverse.reshape(-1), np.arange(len(edges)))
    src, dst, sort, free = edges[last[np.argsort(first)]].T.copy()
    nothing = free.astype(np.bool_) | np.isin(sort, [loops.DEPENDENCY, loops.SYNC])
    weight = np.where(nothing, 0, graph.at[dst] - graph.at[src])
    stream = events.stream[graph.event]
    if ((sort == loops.SYNC) & (stream[src] != -1) & (stream[src] == stream[dst])).any():
        return _no_path("it gives up: a wait between work of one stream")
    seeds, place = np.unique(edges[:, :2].reshape(-1), return_index=True)
    out, into = np.argsort(src, kind="stable"), np.argsort(dst, kind="stable")
    steps = np.arange(n + 1)
    path = loops.longest(
        seeds[np.argsort(place)], np.searchsorted(src[out], steps), dst[out],
        np.searchsorted(dst[into], steps), into, src, np.maximum(weight, 0),
    )  # fmt: skip
    if not path.size:
        return _no_path("it gives up: the graph goes round in a circle")
    order = np.argsort(src * n + dst)
    on = order[np.searchsorted((src * n + dst)[order], path[:-1] * n + path[1:])]
    bound = _bounds(trace, events, graph.event[src[on]], sort[on])
    return _Path(graph.at[path], weight[on], sort[on], bound, len(seeds), len(src))


def _bounds(trace: Trace, events: Events, event: Array, sort: Array) -> Array:
    """What bounds each edge, a number in `_BOUNDS`."""
    comm = np.array([*(temporal.hta_sort(t) == temporal.COMM for t in trace.names()), False])
    bound = np.where(events.stream[event] < 0, 0, 1 + events.like(comm)[event])
    bound[sort == loops.LAUNCH] = _BOUNDS.index("gpu_kernel_launch_overhead")
    bound[sort == loops.KERNEL] = _BOUNDS.index("gpu_kernel_kernel_overhead")
    bound[np.isin(sort, [loops.DEPENDENCY, loops.SYNC])] = _BOUNDS.index("")
    return bound
