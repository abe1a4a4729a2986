"""Tracks of slices that stand for no event: iterations, phases and layers, and the critical path.

They are made of annotation columns. Those of the critical path are of an analysis
(``critical_start_ns``, ``critical_end_ns``), and count from the trace's origin, as `ts` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.arrays.compiled import jit
from chopper_interop.converters.perfetto.write.tracks import DERIVED_TRACKS
from chopper_interop.schemas.kinds import CALLS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

    DerivedTrack: TypeAlias = tuple[int, int, str, Array, Array, list[str]]

CLASS_TRACK = "class"
"""Name of the track of the classes of work."""
_START, _END, _TIME = "critical_start_ns", "critical_end_ns", "critical_ns"

_CLASSES: dict[int, str] = {
    int(Kind.KERNEL): "compute", int(Kind.MEMSET): "compute", int(Kind.COMM): "communication",
    int(Kind.MEMCPY): "copy", int(Kind.GPU_SYNC): "wait", int(Kind.HOST_GAP): "wait",
    **dict.fromkeys(map(int, CALLS), "runtime call"), int(Kind.API): "runtime call",
}  # fmt: skip
_HOST = "host"


@dataclass(frozen=True)
class CriticalPath:
    """A critical path: of the job, or of one rank where several run at once.

    Parameters
    ----------
    rank
        Rank that it belongs to; -1 if it is the job's.
    nodes
        Rows of the nodes on it, by `ts` and longest first.
    ts, dur
        Start and duration of its segment on each of them, ns.
    """

    rank: int
    nodes: Array
    ts: Array
    dur: Array


def critical_paths(trace: Trace) -> Iterator[CriticalPath]:
    """Yield the critical paths that a trace's columns describe, if there are such columns."""
    start, end = (trace.integers(column, unknown=0) for column in (_START, _END))
    known = trace.known(_START) & trace.known(_END)
    nodes = np.flatnonzero(known & (end > start))
    rank = trace.array("rank")[nodes]
    if not len(nodes):
        return
    if _is_one_path(trace, nodes, start, end):
        rank = np.full(len(nodes), -1, np.int64)
    for path_rank in np.unique(rank).tolist():
        rows = nodes[rank == path_rank]
        ts, dur = start[rows], end[rows] - start[rows]
        order = np.lexsort((-dur, ts))
        yield CriticalPath(path_rank, rows[order], ts[order], dur[order])


def _is_one_path(trace: Trace, nodes: Array, start: Array, end: Array) -> bool:
    """True if all nodes are on one path: then their own times on it fit between its ends."""
    if not trace.has(_TIME):
        return True
    own = trace.integers(_TIME, nodes, unknown=0)
    return int(own.sum()) <= int(end[nodes].max() - start[nodes].min())


def class_segments(trace: Trace, path: CriticalPath) -> tuple[Array, Array, list[str]]:
    """Return starts, durations and names of the segments of a path that are of one class.

    Of nodes within each other the innermost counts.
    """
    time, node = _innermost(path.ts, path.ts + path.dur)
    last = np.flatnonzero(np.diff(time, append=time[-1] + 1))  # of several changes at one time
    time, node = time[last], node[last]
    label, texts = _labels(trace, path)
    code = np.where(node >= 0, label[node], -1)
    first = np.flatnonzero(np.diff(code, prepend=-2))
    length = np.diff(time[first], append=time[-1])
    shown = (code[first] >= 0) & (length > 0)
    names = [texts[c] for c in code[first][shown].tolist()]
    return time[first][shown], length[shown], names


@jit
def _innermost(ts: Array, end: Array) -> tuple[Array, Array]:
    """Times, and the node that is innermost from each on, -1 if none; the later of two that cross.

    One pass with a stack of the nodes that are open: a start and an end each give one time. Node 0
    from 0 to 9 and node 1 from 2 to 6 give the times 0, 2, 6, 9 and the nodes 0, 1, 0, -1.
    """
    n = len(ts)
    time, node = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    stack = np.empty(n, np.int64)
    count = depth = 0
    for i in range(n + 1):
        while depth and (i == n or end[stack[depth - 1]] <= ts[i]):
            at = end[stack[depth - 1]]
            while depth and end[stack[depth - 1]] <= at:
                depth -= 1
            time[count], node[count] = at, stack[depth - 1] if depth else -1
            count += 1
        if i < n:
            stack[depth] = i
            depth += 1
            time[count], node[count] = ts[i], i
            count += 1
    return time[:count], node[:count]


def _labels(trace: Trace, path: CriticalPath) -> tuple[Array, list[str]]:
    """Class of each node, and its rank where there are several, as codes of texts."""
    classes = sorted({*_CLASSES.values(), _HOST})
    kind_class = np.full(256, classes.index(_HOST), np.int64)
    for kind, name in _CLASSES.items():
        kind_class[kind] = classes.index(name)
    rank = trace.array("rank")[path.nodes]
    pair = rank.astype(np.int64) * len(classes) + kind_class[trace.array("kind")[path.nodes]]
    pairs, code = np.unique(pair, return_inverse=True)
    one_rank = path.rank >= 0 or len(trace.rank_rows) == 1
    texts = [
        classes[p % len(classes)] + ("" if one_rank else f", rank {p // len(classes)}")
        for p in pairs.tolist()
    ]
    return code, texts


def derived_tracks(trace: Trace) -> Iterator[DerivedTrack]:
    """Yield the tracks of a trace's GPUs.

    Yields
    ------
    rank, device, track name, ts, dur, names
        Slices in order that do not overlap: consecutive kernels with the same value are one slice,
        from the first start to the last end, or to where the next slice begins, known or not.
    """
    present = [(track, c) for track, c in DERIVED_TRACKS.items() if trace.has(c)]
    is_kernel = trace.array("kind") == Kind.KERNEL
    lane_device = trace.array("device", "lanes")
    for track, column in present:
        code, texts = _coded(trace, column)
        for rank, rows in trace.rank_rows.items():
            kernels = np.flatnonzero(is_kernel[rows]) + rows.start
            device = lane_device[trace.array("lane")[kernels]]
            for d in np.unique(device).tolist():
                nodes = kernels[device == d]
                if (code[nodes] >= 0).any():
                    yield rank, d, track, *_slices(trace, nodes, code[nodes], texts)


def _coded(trace: Trace, column: str) -> tuple[Array, list[str]]:
    """Codes of an annotation column, -1 where unknown, and the names that they stand for."""
    data = arrow.single_chunk(trace.nodes[column]).dictionary_encode()
    label = "{}" if column == "phase" else f"{column} {{}}"
    texts = [label.format(value) for value in data.dictionary.to_pylist()]
    return arrow.to_numpy(data, -1), texts


def _slices(
    trace: Trace, nodes: Array, code: Array, texts: list[str]
) -> tuple[Array, Array, list[str]]:
    """Start, duration and name of each run of nodes, in order of start, that have the same code."""
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    first = np.flatnonzero(np.diff(code, prepend=code[0] - 1))
    stop = np.maximum.reduceat(end, first)  # the last end of each run
    start = ts[first]
    stop[:-1] = np.minimum(stop[:-1], start[1:])
    known = code[first] >= 0
    names = [texts[c] for c in code[first[known]]]
    return start[known], (stop - start)[known], names
