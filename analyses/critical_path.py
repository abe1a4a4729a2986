"""What a training step's time consists of: the chain of what waited for what, and all slack beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, grouping, peers_critical_path, timing_loops, windows
from chopper_interop.errors import UsageError
from chopper_interop.paths import CLASS, CLASSES, OF_EDGE, OF_NODE, ON_LANES
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind
from chopper_interop.timing import timing_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.timing import Timing
    from chopper_interop.trace import Trace
    from chopper_interop.windows import Window

    Array = npt.NDArray[Any]

__all__ = ["critical_path"]

_PIECE = "piece"
_BY = "class"
_NEAR_US = 10.0

_CONVENTIONS = {
    "path": "what the end of the window waited for, back to its start: of all that a moment waited "
    "for, what came last with the least latency of its kind added. Its pieces tile the window",
    "classes": "compute, comm, copy: work of GPUs (comm from when the last member had started); "
    "host, runtime: host threads in and between operators, in calls of the runtime; launch: from "
    "a call to its work; stream, event: between pieces of GPU work; sync: from the end of work to the "
    "return of the call that waited for it; handover: from one host thread to another; dependency: "
    "what a source calls so",
    "delay_ns": "of a piece, what it took beyond the least that its kind of wait takes in this trace",
    "slack": "how much later a node could end and the window would end no later; everything else "
    "stays as it is, delays too",
    "drag": "how much sooner the window would end if the node took no time, of GPU work on the path; "
    "a collective ends its transfer for all its members at once",
    "links": "all work counts; what has no recorded launch starts when it did",
    "memset": "counts as compute",
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute",
}


@dataclass(frozen=True)
class _Path:
    """Pieces of one window's path, first ones first."""

    window: Window
    node: Array
    """Whose each is; -1 for the host before anything that was recorded."""
    rank: Array
    what: Array
    """Number in `CLASSES`."""
    start: Array
    end: Array
    delay: Array
    near: int
    near_work_ns: int


def critical_path(
    trace: Trace,
    *,
    by: str = _BY,
    steps: str = "",
    ranks: str = "",
    near_us: float = _NEAR_US,
    compat: str = "",
) -> Result:
    """Critical path of a job or of each step, over all ranks or some, with slack and drag.

    Parameters
    ----------
    trace
        Any trace.
    by
        Rows: ``"piece"`` the path itself, ``"class"`` its time by what it consists of, or by
        ``grouping.GRAINS`` of the nodes that it runs over (``"class,operation"``, ``"rank"``, ``"layer"``).
    steps
        Training steps as of `windows.of_job`: each is a path of its own. By default one path from the
        first rank's first step to the last rank's end of the last one.
    ranks
        Ranks to look at (``"0,4-7"``); what these waited for of others is not known then.
    near_us
        Nodes with no more slack than this many microseconds are near-critical.
    compat
        "hta": the path of each rank by Holistic Trace Analysis' definition, in microseconds by what
        bounds it: `duration_us` of `edges` of the path by `bound_by` and `edge_type`, with the
        whole as `cp_weight_us` of the summary. "tracelens" has no critical path.

    Returns
    -------
    Result
        Rows by piece: `iteration`, `class`, `rank`, `node` (row of the trace's nodes), `name`,
        `start_ns`, `dur_ns`, `delay_ns`; else the groups with `pieces`, `dur_ns`, `delay_ns` and
        `path_share`. The summary has `path_ns` (the length of all windows), the time by class, and
        how many nodes are near-critical. Annotations: `critical_ns` with `critical_start_ns` and
        `critical_end_ns`, `slack_ns`, `drag_ns`.

    Notes
    -----
    Vertices are starts and ends of all nodes, joined across ranks by collectives; see
    `chopper_interop.timing`. Slack by a pass backwards (critical path method, Kelley and Walker
    1959), drag as Devaux (1999) defines it, for all edges of the path at once.
    """
    if compat:
        default = by == _BY and not steps and near_us == _NEAR_US
        return peers_critical_path.critical_path(trace, compat, ranks, default=default)
    grains = () if by == _PIECE else _grains(by)
    part, rows = _part(trace, ranks)
    timing = timing_of(part)
    found = [_extended(part, w) for w in windows.of_job(part, steps)]
    paths, columns = _paths(timing, found, int(near_us * 1000))
    table = _pieces(part, paths, rows) if by == _PIECE else _grouped(part, paths, grains)
    conventions = {
        "window": windows.described(
            steps, "from the first start to the last end of all training steps, else of everything"
        )
        + "; work that a step's host launched prolongs it until that has ended",
        "ranks": f"{len(part.ranks)} of {len(trace.ranks)}",
    }
    if not found:
        conventions["no rows"] = "the trace has no operations"
    return Result(
        "critical_path",
        table,
        _summary(timing, paths),
        conventions | _CONVENTIONS,
        _for_all(columns, rows, trace.nodes.num_rows),
    )


def _grains(by: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    if _PIECE in names:
        raise UsageError(f"by={by}: {_PIECE} stands alone", hint="it gives every piece of the path")
    grouping.grains(by)
    return tuple(name for name in names if name != "job")


def _part(trace: Trace, ranks: str) -> tuple[Trace, Array | None]:
    """The chosen ranks alone, and which rows of the whole its nodes are; None if all."""
    chosen = windows.chosen_ranks(trace, ranks)
    if chosen == trace.ranks:
        return trace, None
    parts = [trace.rank_rows[rank] for rank in chosen]
    rows = np.concatenate([np.arange(p.start, p.stop) for p in parts])
    return trace.of_ranks(chosen), rows


def _extended(trace: Trace, window: Window) -> Window:
    """The window until the work that was launched in it has ended."""
    work = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    call = trace.launch
    ts = trace.array("ts")
    mine = work & (call >= 0)
    at = ts[call[mine]]
    within = (at >= window.start_ns) & (at < window.end_ns)
    if window.iteration != windows.WHOLE:
        step = arrow.numbers(trace.nodes["iteration"], -1)
        within &= step[mine] == window.iteration
    end = (ts + trace.array("dur"))[mine][within].max(initial=window.end_ns)
    return windows.Window(window.rank, window.iteration, window.start_ns, int(end))


def _paths(
    timing: Timing, found: list[Window], near_ns: int
) -> tuple[list[_Path], dict[str, Array]]:
    """The path of each window, and columns of all nodes."""
    graph, at = timing.graph, timing.at_ns
    nodes = graph.trace.nodes.num_rows
    columns = {
        name: np.full(nodes, timing_loops.NEVER)
        for name in ("slack_ns", "drag_ns", "critical_start_ns")
    }
    columns |= {name: np.full(nodes, -1, np.int64) for name in ("critical_ns", "critical_end_ns")}
    found = sorted(found, key=lambda w: (w.start_ns, w.end_ns))
    start = np.array([w.start_ns for w in found], np.int64)
    end = np.maximum.accumulate(np.array([w.end_ns for w in found], np.int64))
    first, chosen = timing.windows(start, end)
    late = np.empty(len(at), np.int64)
    place = np.zeros(len(at), np.int64)
    work = np.isin(graph.trace.array("kind"), [int(k) for k in GPU_WORK])
    paths = []
    for k, window in enumerate(found):
        order = chosen[first[k] : first[k + 1]]
        if not order.size:
            continue
        last = int(order[::-1][np.argmax(at[order[::-1]])])
        window_end = int(at[last])
        timing.latest(order, window_end, late)
        ends = order[(order % 2 == 1) & (order < 2 * nodes)]
        node, slack = (
            graph.node[ends],
            (late - at)[ends] if len(found) == 1 else late[ends] - at[ends],
        )
        columns["slack_ns"][node] = np.minimum(columns["slack_ns"][node], slack)
        edges = timing.path(last, window.start_ns)
        beside = timing_loops.least_beside(
            order, graph.first, graph.after, timing.lag_ns, timing.delay_ns, at, late,
            window_end, edges, graph.src, timing.meets, place,
        )  # fmt: skip
        near = node[slack <= near_ns]
        busy = int(graph.trace.array("dur")[near[work[near]]].sum())
        path = _path(timing, window, edges, (len(near), busy))
        _note_drag(timing, edges, beside, columns["drag_ns"])
        _note_pieces(path, columns)
        paths.append(path)
    return paths, columns


def _path(timing: Timing, window: Window, edges: Array, near: tuple[int, int]) -> _Path:
    """Pieces of a path, neighbours of one node and class joined."""
    graph, trace = timing.graph, timing.graph.trace
    src, dst, kind = graph.src[edges], graph.after[edges], graph.kind[edges]
    node, what = graph.node[dst].astype(np.int64), OF_EDGE[kind].copy()
    lanes = np.isin(kind, [int(k) for k in ON_LANES])
    node[lanes] = _innermost(trace, src[lanes])
    meets = timing.meets[src]
    node[meets] = graph.node[src[meets]]
    sends = (kind == EdgeKind.COMM) & ~meets
    node[sends] = graph.node[src[sends]]
    inside = lanes & (node >= 0)
    what[inside] = OF_NODE[trace.array("kind")[node[inside]]]
    what[lanes & (node < 0)] = CLASS["host"]
    rank = trace.array("rank")[graph.node[np.where(meets | sends, src, dst)]]
    end = timing.at_ns[dst]
    start = np.maximum(timing.at_ns[src], window.start_ns)
    delay = np.minimum(timing.delay_ns[dst], end - start)
    if not edges.size or start[0] > window.start_ns:  # the rank's host came later
        before = int(start[0]) if edges.size else window.end_ns
        first = graph.node[src[0]] if edges.size else 0
        node, what = np.insert(node, 0, -1), np.insert(what, 0, CLASS["host"])
        rank = np.insert(rank, 0, trace.array("rank")[first])
        start, end = np.insert(start, 0, window.start_ns), np.insert(end, 0, before)
        delay = np.insert(delay, 0, 0)
    lasts = end > start
    node, what, rank, start, end, delay = (
        column[lasts] for column in (node, what, rank, start, end, delay)
    )
    key = np.stack([node, what, rank])
    new = np.ones(len(node), bool)
    new[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    first = np.flatnonzero(new)
    total = np.add.reduceat(delay, first) if first.size else delay
    stop = np.append(start[first][1:], end[-1:])
    return _Path(window, node[first], rank[first], what[first], start[first], stop, total, *near)


def _innermost(trace: Trace, moment: Array) -> Array:
    """What a lane is in behind each moment: the node that starts there, or what is around the one that ends."""
    node = moment // 2
    return np.where(moment % 2 == 0, node, trace.array("parent")[node]).astype(np.int64)


def _note_drag(timing: Timing, edges: Array, beside: Array, drag: Array) -> None:
    """Drag of GPU work on the path."""
    graph = timing.graph
    kind, src, dst = graph.kind[edges], graph.src[edges], graph.after[edges]
    work = np.isin(graph.trace.array("kind")[graph.node[dst]], [int(k) for k in GPU_WORK])
    lasting = work & ((kind == EdgeKind.DURATION) | ((kind == EdgeKind.COMM) & (dst % 2 == 1)))
    node = np.where(timing.meets[src], graph.node[src], graph.node[dst])[lasting]
    drag[node] = np.minimum(timing.lag_ns[edges], beside)[lasting]


def _note_pieces(path: _Path, columns: dict[str, Array]) -> None:
    own = path.node >= 0
    own &= ~np.isin(
        path.what, [CLASS[c] for c in ("launch", "stream", "event", "sync", "handover")]
    )
    node, start, end = path.node[own], path.start[own], path.end[own]
    total = columns["critical_ns"]
    total[node] = np.maximum(total[node], 0)
    np.add.at(total, node, end - start)
    np.minimum.at(columns["critical_start_ns"], node, start)
    np.maximum.at(columns["critical_end_ns"], node, end)


def _for_all(columns: dict[str, Array], rows: Array | None, nodes: int) -> dict[str, Any]:
    """The columns for all nodes of the trace that was asked, null where nothing is known."""
    made = {}
    for name, values in columns.items():
        column = values
        if rows is not None:
            column = np.full(nodes, -1, np.int64)
            column[rows] = values
        made[name] = arrow.array(column, mask=(column < 0) | (column == timing_loops.NEVER))
    return made


def _pieces(trace: Trace, paths: list[_Path], rows: Array | None) -> pa.Table:
    names = trace.names()
    node = _all(paths, "node")
    named = trace.array("name")[node] if len(node) else node
    texts = [
        names[n] if own else "" for n, own in zip(named.tolist(), (node >= 0).tolist(), strict=True)
    ]
    start, end = _all(paths, "start"), _all(paths, "end")
    shown = node if rows is None else np.where(node >= 0, rows[node], -1)
    return pa.table(
        {
            "iteration": _iterations(paths),
            "class": _class_names(_all(paths, "what")),
            "rank": arrow.array(_all(paths, "rank"), pa.int32()),
            "node": arrow.array(shown, mask=node < 0),
            "name": arrow.texts(texts),
            "start_ns": arrow.array(start),
            "dur_ns": arrow.array(end - start),
            "delay_ns": arrow.array(_all(paths, "delay")),
        }
    )


def _grouped(trace: Trace, paths: list[_Path], grains: tuple[str, ...]) -> pa.Table:
    """Time on the path by class, and by what else the nodes have in common."""
    node, what = _all(paths, "node"), _all(paths, "what")
    start, end, delay = _all(paths, "start"), _all(paths, "end"), _all(paths, "delay")
    step = _steps(paths)
    others = tuple(g for g in grains if g not in ("class", "rank", "iteration"))
    groups = grouping.of(trace, np.maximum(node, 0), ",".join(others)) if others else None
    code = np.where(node >= 0, groups.code, -1) if groups else np.zeros(len(node), np.int64)
    rank = _all(paths, "rank") if "rank" in grains else np.zeros(len(node), np.int64)
    kind = what if "class" in grains else np.zeros(len(node), np.int64)
    table = np.stack([step, rank.astype(np.int64), kind.astype(np.int64), code])
    used, number = np.unique(table, axis=1, return_inverse=True)
    size = used.shape[1]
    columns: dict[str, Any] = {"iteration": arrow.array(used[0].astype(np.int32), mask=used[0] < 0)}
    if "rank" in grains:
        columns["rank"] = arrow.array(used[1].astype(np.int32))
    if "class" in grains:
        columns["class"] = _class_names(used[2])
    for name in others:
        assert groups is not None  # noqa: S101 # there are others
        values = groups.keys[name].combine_chunks()
        columns[name] = values.take(arrow.array(used[3], mask=used[3] < 0))
    dur = _summed(number, end - start, size)
    whole = {w.iteration: w.span_ns for w in (_window(p) for p in paths)}
    columns["pieces"] = arrow.array(np.bincount(number, minlength=size))
    columns["dur_ns"] = arrow.array(dur)
    columns["delay_ns"] = arrow.array(_summed(number, delay, size))
    spans = np.array([max(whole[s], 1) for s in used[0].tolist()], np.int64)
    columns["path_share"] = arrow.array(dur / spans)
    return pa.table(columns)


def _summary(timing: Timing, paths: list[_Path]) -> dict[str, Any]:
    what, dur = _all(paths, "what"), _all(paths, "end") - _all(paths, "start")
    by_class = _summed(what.astype(np.int64), dur, len(CLASSES)).tolist()
    return {
        "windows": len(paths),
        "path_ns": int(dur.sum()),
        **{f"{name}_ns": ns for name, ns in zip(CLASSES, by_class, strict=True)},
        "delay_ns": int(_all(paths, "delay").sum()),
        "bound_by": CLASSES[int(np.argmax(by_class))] if dur.size else None,
        "pieces": len(what),
        "near_critical_nodes": sum(p.near for p in paths),
        "near_critical_work_ns": sum(p.near_work_ns for p in paths),
        "edges_left_out": timing.graph.left_out,
    }


def _summed(code: Array, values: Array, size: int) -> Array:
    total = np.zeros(size, np.int64)
    np.add.at(total, code, values)
    return total


def _window(path: _Path) -> Window:
    end = int(path.end[-1]) if len(path.end) else path.window.start_ns
    return windows.Window(path.window.rank, path.window.iteration, path.window.start_ns, end)


def _all(paths: list[_Path], column: str) -> Array:
    parts = [getattr(path, column) for path in paths]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _steps(paths: list[_Path]) -> Array:
    steps = [p.window.iteration for p in paths]
    return np.repeat(np.array(steps, np.int64), [len(p.node) for p in paths])


def _iterations(paths: list[_Path]) -> Any:
    steps = _steps(paths).astype(np.int32)
    return arrow.array(steps, mask=steps < 0)


def _class_names(what: Array) -> pa.Array:
    return pa.array([CLASSES[c] for c in what.tolist()], pa.string())
