"""Tracks of the critical path: merged spans above all, the classes of work, and the nodes.

They are made of annotation columns of an analysis (``critical_start_ns``, ``critical_end_ns``, …),
which count from the trace's origin, as `ts` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.converters.perfetto.write.derived_tracks import NamedSlices
from chopper_interop.schemas.kinds import CALLS, Kind
from chopper_interop.trace import Trace

SPAN_TRACK, CLASS_TRACK, NODE_TRACK = "path", "class", "nodes"
"""Names of the tracks: merged spans, classes of work, and the nodes."""
START, _END, _TIME = "critical_start_ns", "critical_end_ns", "critical_ns"
_DELAY = "critical_delay_ns"
_SPANS_PER_STEP = 200
"""Merged spans of a training step, at most. Chosen: as many as can be distinguished on a screen."""

_CLASSES: dict[int, str] = {
    int(Kind.KERNEL): "compute", int(Kind.MEMSET): "compute", int(Kind.COMM): "communication",
    int(Kind.MEMCPY): "copy", int(Kind.GPU_SYNC): "wait", int(Kind.HOST_GAP): "wait",
    **dict.fromkeys(map(int, CALLS), "runtime call"), int(Kind.API): "runtime call",
}  # fmt: skip
_HOST = "host"
CLASS_NAMES = sorted({*_CLASSES.values(), _HOST})
"""Classes of work, in the order of their codes."""
_ON_HOST = (_HOST, "runtime call", "wait")
"""Classes that are one in merged spans."""
_HOST_CODE = CLASS_NAMES.index(_HOST)
_CLASS_OF_KIND = np.full(256, _HOST_CODE, np.int64)
for _kind, _name in _CLASSES.items():
    _CLASS_OF_KIND[_kind] = CLASS_NAMES.index(_name)
_SIDE_OF_CLASS = np.array(
    [CLASS_NAMES.index(_HOST if name in _ON_HOST else name) for name in CLASS_NAMES]
)


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
    start, end = (trace.integers(column, unknown=0) for column in (START, _END))
    known = trace.known(START) & trace.known(_END)
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


def node_classes(trace: Trace, nodes: Array) -> Array:
    """Class of the work of each node, as a code of `CLASS_NAMES`."""
    return _CLASS_OF_KIND[trace.array("kind")[nodes]]


@dataclass(frozen=True)
class Segments:
    """Segments of a path, each of one node: of nodes within each other the innermost counts.

    Parameters
    ----------
    ts, dur
        Start and duration, ns.
    node
        Row of its node in the trace.
    rank, code
        Rank of the node, and its class as in `CLASS_NAMES`.
    """

    ts: Array
    dur: Array
    node: Array
    rank: Array
    code: Array

    def __len__(self) -> int:
        return len(self.ts)


def segments(trace: Trace, path: CriticalPath) -> Segments:
    """Return the segments of a path, in order; between them it is on no node."""
    time, position = _innermost(path.ts, path.ts + path.dur)
    last = np.flatnonzero(np.diff(time, append=time[-1] + 1))  # of several changes at one time
    time, position = time[last], position[last]
    dur = np.diff(time, append=time[-1])
    on_node = (position >= 0) & (dur > 0)
    node = path.nodes[position[on_node]]
    rank = trace.array("rank")[node].astype(np.int64)
    return Segments(time[on_node], dur[on_node], node, rank, node_classes(trace, node))


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


def class_slices(parts: Segments, *, with_rank: bool) -> NamedSlices:
    """Return the runs of segments of one class and rank that follow each other without a gap."""
    key = _keys(parts.rank, parts.code)
    end = parts.ts + parts.dur
    new = np.append(True, (np.diff(key) != 0) | (parts.ts[1:] != end[:-1]))
    first = np.flatnonzero(new[: len(parts)])
    total = np.add.reduceat(parts.dur, first)
    code, names = _names(key[first], [], with_rank=with_rank)
    return NamedSlices(parts.ts[first], total, code, names)


def span_slices(trace: Trace, parts: Segments, *, with_rank: bool) -> NamedSlices:
    """Return spans in which the path is mostly on one rank and class, or on one thread of a host.

    What is shorter than a two-hundredth of a training step is part of the span around it. A span
    has the name of where most of its time is, and the times of all classes as arguments.
    """
    if not len(parts):
        return NamedSlices(parts.ts, parts.dur, parts.ts, [])
    end = parts.ts + parts.dur
    length = int(end[-1] - parts.ts[0])
    iteration = trace.integers("iteration", parts.node)
    steps = len(np.unique(iteration[iteration >= 0]))
    place = _SIDE_OF_CLASS[parts.code]
    lane = np.where(place == _HOST_CODE, trace.array("lane")[parts.node], -1)
    side = _keys(parts.rank, place, lane)
    shortest_ns = length // max(steps, 1) // _SPANS_PER_STEP
    cuts = _cuts(side, parts.ts, end, shortest_ns)
    span = np.searchsorted(cuts, np.arange(len(parts)), "right") - 1
    key = _longest_keys(span, side, parts.dur, len(cuts))
    is_behind_gap = parts.ts[cuts] - end[cuts - 1] > shortest_ns
    # others join the one before
    first = np.flatnonzero((np.diff(key, prepend=-1) != 0) | is_behind_gap)
    span, key = np.repeat(np.arange(len(first)), np.diff(first, append=len(cuts)))[span], key[first]
    cuts = cuts[first]
    stop, after = end[np.append(cuts[1:], len(parts)) - 1], np.append(parts.ts[cuts[1:]], end[-1])
    stop = np.where(after - stop > shortest_ns, stop, after)
    arguments = _span_arguments(trace, parts, span, stop - parts.ts[cuts], length)
    code, names = _names(key, trace.lanes["name"].to_pylist(), with_rank=with_rank)
    return NamedSlices(parts.ts[cuts], stop - parts.ts[cuts], code, names, arguments)


@jit
def _cuts(side: Array, ts: Array, end: Array, shortest_ns: int) -> Array:
    """Return the segments with which spans begin: those from which on `shortest_ns` ns are not as before.

    Where the path is on no node for longer than that, as between windows, a span begins, too.
    """
    cuts = np.empty(len(side), np.int64)
    cuts[0], count = 0, 1
    current, other = side[0], -1
    for i in range(1, len(side)):
        if ts[i] - end[i - 1] > shortest_ns:
            cuts[count], count = i, count + 1
            current, other = side[i], -1
        if side[i] == current:
            other = -1
            continue
        if other < 0:
            other = i
        if end[i] - ts[other] > shortest_ns:
            cuts[count], count = other, count + 1
            current, other = side[i], -1
    return cuts[:count]


def _longest_keys(span: Array, key: Array, dur: Array, n: int) -> Array:
    """Return for each of n spans the key with the most time in it."""
    first, group = gather.distinct(span, key)
    total = gather.group_sums(group, dur, len(first))
    order = np.lexsort((total, span[first]))
    result = np.empty(n, np.int64)
    result[span[first][order]] = key[first][order]  # of each span the last, with the most, stays
    return result


def _span_arguments(
    trace: Trace, parts: Segments, span: Array, dur: Array, length: int
) -> list[bytes]:
    """Return the arguments of each span as JSON: share of the path, time by class, longest node."""
    n, classes, names = len(dur), len(CLASS_NAMES), trace.names()
    times = gather.group_sums(span * classes + parts.code, parts.dur, n * classes).reshape(n, -1)
    longest = _longest_keys(span, trace.array("name")[parts.node].astype(np.int64), parts.dur, n)
    once = np.unique(parts.node, return_index=True)[1]  # a node has several segments around others
    delay = trace.integers(_DELAY, parts.node[once], unknown=0)
    columns = {
        "share": (dur / length).tolist(),
        "pieces": np.bincount(span, minlength=n).tolist(),
        "delay_ns": gather.group_sums(span[once], delay, n).tolist(),
        "longest": [names[code] for code in longest.tolist()],
    }
    columns |= {
        f"{c.replace(' ', '_')}_ns": times[:, k].tolist() for k, c in enumerate(CLASS_NAMES)
    }
    rows = zip(*columns.values(), strict=True)
    return [json.dumps(dict(zip(columns, row, strict=True))).encode() for row in rows]


def _keys(rank: Array, code: Array, lane: Array | int = -1) -> Array:
    """One number for rank, class and lane (-1 for none)."""
    return (np.asarray(lane, np.int64) + 1) << 32 | rank * len(CLASS_NAMES) + code


def _names(key: Array, lanes: list[str], *, with_rank: bool) -> tuple[Array, list[str]]:
    """Number of each key's name, and the names: class, lane if it has one, rank where it is needed."""
    keys, code = np.unique(key, return_inverse=True)
    texts = []
    for number in keys.tolist():
        rank, class_code = divmod(number & 0xFFFFFFFF, len(CLASS_NAMES))
        lane = f" {lanes[(number >> 32) - 1]}" if number >> 32 else ""
        texts.append(CLASS_NAMES[class_code] + lane + (f", rank {rank}" if with_rank else ""))
    return code, texts
