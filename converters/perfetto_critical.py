"""The critical path as tracks of its own: what it runs over, and what sort of thing that is.

Made of the columns that an analysis gives (``critical_start_ns``, ``critical_end_ns``), which count
from the trace's origin, as `ts` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.columns.compiled import jit
from chopper_interop.schemas.kinds import CALLS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

START, END, OWN = "critical_start_ns", "critical_end_ns", "critical_ns"

_SORTS: dict[int, str] = {
    int(Kind.KERNEL): "compute",
    int(Kind.MEMSET): "compute",
    int(Kind.COMM): "communication",
    int(Kind.MEMCPY): "copy",
    int(Kind.GPU_SYNC): "wait",
    int(Kind.HOST_GAP): "wait",
    **dict.fromkeys(map(int, CALLS), "runtime call"),
    int(Kind.API): "runtime call",
}
_HOST = "host"


@dataclass(frozen=True)
class Path:
    """A critical path: of the job, or of one rank where several run at once.

    Parameters
    ----------
    rank
        Whose it is; -1 if it is the job's.
    nodes
        Rows of the nodes on it, by `ts` and longest first.
    ts, dur
        When it runs over each of them.
    """

    rank: int
    nodes: Array
    ts: Array
    dur: Array


def paths(trace: Trace) -> Iterator[Path]:
    """The critical paths that a trace's columns tell; none if they tell of none."""
    if not {START, END} <= set(trace.nodes.column_names):
        return
    start, end = (arrow.numbers(trace.nodes[c]).astype(np.int64) for c in (START, END))
    known = arrow.known(trace.nodes[START]) & arrow.known(trace.nodes[END])
    nodes = np.flatnonzero(known & (end > start))
    rank = trace.array("rank")[nodes]
    if not len(nodes):
        return
    if _is_one(trace, nodes, start, end):
        rank = np.full(len(nodes), -1, np.int64)
    for one in np.unique(rank).tolist():
        mine = nodes[rank == one]
        ts, dur = start[mine], end[mine] - start[mine]
        order = np.lexsort((-dur, ts))
        yield Path(one, mine[order], ts[order], dur[order])


def _is_one(trace: Trace, nodes: Array, start: Array, end: Array) -> bool:
    """Whether there is one path: then the nodes' own times on it fit between its ends."""
    if OWN not in trace.nodes.column_names:
        return True
    own = arrow.numbers(trace.nodes[OWN])[nodes]
    return int(own.sum()) <= int(end[nodes].max() - start[nodes].min())


def stretches(trace: Trace, path: Path) -> tuple[Array, Array, list[str]]:
    """Starts, durations and names of what a path runs over, alike neighbours as one.

    Of nodes within each other the innermost counts.
    """
    time, what = _innermost(path.ts, path.ts + path.dur)
    last = np.flatnonzero(np.diff(time, append=time[-1] + 1))  # of what happens at one moment
    time, what = time[last], what[last]
    label, texts = _labels(trace, path)
    code = np.where(what >= 0, label[what], -1)
    first = np.flatnonzero(np.diff(code, prepend=-2))
    length = np.diff(time[first], append=time[-1])
    shown = (code[first] >= 0) & (length > 0)
    names = [texts[c] for c in code[first][shown].tolist()]
    return time[first][shown], length[shown], names


@jit
def _innermost(ts: Array, end: Array) -> tuple[Array, Array]:
    """Moments, and which node is innermost from each on, -1 if none; the later of two that cross."""
    n = len(ts)
    time, what = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    stack = np.empty(n, np.int64)
    told = depth = 0
    for i in range(n + 1):
        while depth and (i == n or end[stack[depth - 1]] <= ts[i]):
            at = end[stack[depth - 1]]
            while depth and end[stack[depth - 1]] <= at:
                depth -= 1
            time[told], what[told] = at, stack[depth - 1] if depth else -1
            told += 1
        if i < n:
            stack[depth] = i
            depth += 1
            time[told], what[told] = ts[i], i
            told += 1
    return time[:told], what[:told]


def _labels(trace: Trace, path: Path) -> tuple[Array, list[str]]:
    """What sort each node is, on which rank, as codes of texts."""
    sorts = sorted({*_SORTS.values(), _HOST})
    of_kind = np.full(256, sorts.index(_HOST), np.int64)
    for kind, sort in _SORTS.items():
        of_kind[kind] = sorts.index(sort)
    rank = trace.array("rank")[path.nodes]
    pair = rank.astype(np.int64) * len(sorts) + of_kind[trace.array("kind")[path.nodes]]
    known, code = np.unique(pair, return_inverse=True)
    one_rank = path.rank >= 0 or len(trace.rank_rows) == 1
    texts = [
        sorts[p % len(sorts)] + ("" if one_rank else f", rank {p // len(sorts)}")
        for p in known.tolist()
    ]
    return code, texts
