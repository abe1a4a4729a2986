"""What a training step's time consists of: the chain of what waited for what, and all slack beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping, windows
from chopper_interop.columns import arrow, gather
from chopper_interop.errors import UsageError
from chopper_interop.peers import critical_path as peers_critical_path
from chopper_interop.result import Result
from chopper_interop.timing import critical, spans
from chopper_interop.timing.model import timing_of
from chopper_interop.timing.paths import CLASSES

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.critical import Path
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace

__all__ = ["critical_path"]

_PIECE = "piece"
_BY = "class"
_NEAR_US = 10.0
_MOST_US = 1e12

_CONVENTIONS = {
    "path": "what the end of the window waited for, back to its start: of all that a moment waited "
    "for, what came last with the least latency of its kind added. Its pieces tile the window",
    "classes": "compute, comm, copy: work of GPUs (comm from when the last member had started); "
    "host, runtime: host threads in and between operators, in calls of the runtime, and before the "
    "first record of the rank with which the path begins; launch: from "
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
        names of `grouping.GRAINS` of the nodes that it runs over (``"class,operation"``, ``"rank"``, ``"layer"``).
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself, of which each is a path of its
        own; else one path from the first rank's first step to the last rank's end of the last one.
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
    `chopper_interop.timing.model`. Slack by a pass backwards (critical path method, Kelley and Walker
    1959), drag as Devaux (1999) defines it, for all edges of the path at once.
    """
    if compat:
        default = by == _BY and not steps and near_us == _NEAR_US
        return peers_critical_path.critical_path(trace, compat, ranks, default=default)
    grains = () if by == _PIECE else _grains(by)
    if not 0 <= near_us <= _MOST_US:
        raise UsageError(f"near_us={near_us}: it is from 0 to {_MOST_US:,.0f}")
    part, rows = _part(trace, ranks)
    timing = timing_of(part)
    paths, columns = critical.paths(timing, spans.of(timing, steps), round(near_us * 1000))
    table = _pieces(part, paths, rows) if by == _PIECE else _grouped(part, paths, grains)
    notes = {
        "window": windows.described(
            steps, "from the first start to the last end of all training steps, else of everything"
        )
        + "; work that a step's host launched prolongs it until that has ended",
        "ranks": f"{len(part.ranks)} of {len(trace.ranks)}",
    }
    if not paths:
        notes["no rows"] = "the trace has no operations"
    return Result(
        "critical_path",
        table,
        _summary(timing, paths),
        _CONVENTIONS,
        _for_all(columns, rows, trace.nodes.num_rows),
        notes,
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


def _for_all(columns: dict[str, Array], rows: Array | None, nodes: int) -> dict[str, Any]:
    """The columns for all nodes of the trace that was asked, null where nothing is known."""
    made = {}
    for name, values in columns.items():
        column = values
        if rows is not None:
            column = np.full(nodes, -1, np.int64)
            column[rows] = values
        made[name] = arrow.array(column, mask=column < 0)
    return made


def _pieces(trace: Trace, paths: list[Path], rows: Array | None) -> pa.Table:
    node = _all(paths, "node")
    names = pa.array([*trace.names(), "(not recorded)"], pa.string())
    name = np.append(trace.array("name"), len(names) - 1)[node]  # the last one is nobody's
    start, end = _all(paths, "start"), _all(paths, "end")
    shown = node if rows is None else np.where(node >= 0, rows[node], -1)
    return pa.table(
        {
            "iteration": _iterations(_steps(paths)),
            "class": _class_names(_all(paths, "what")),
            "rank": arrow.array(_all(paths, "rank"), pa.int32()),
            "node": arrow.array(shown, mask=node < 0),
            "name": names.take(arrow.array(name.astype(np.int64))),
            "start_ns": arrow.array(start),
            "dur_ns": arrow.array(end - start),
            "delay_ns": arrow.array(_all(paths, "delay")),
        }
    )


def _grouped(trace: Trace, paths: list[Path], grains: tuple[str, ...]) -> pa.Table:
    """Time on the path by class, and by what else the nodes have in common."""
    node, which = _all(paths, "node"), _numbers(paths)
    dur = _all(paths, "end") - _all(paths, "start")
    others = tuple(g for g in grains if g not in ("class", "rank", "iteration"))
    groups = grouping.of(trace, np.maximum(node, 0), ",".join(others)) if others else None
    code = np.where(node >= 0, groups.code, -1) if groups else np.zeros(len(node), np.int64)
    nothing = np.zeros(len(node), np.int64)
    rank = _all(paths, "rank") if "rank" in grains else nothing
    what = _all(paths, "what") if "class" in grains else nothing
    first, number = gather.distinct(which, rank, what, code)
    order = np.lexsort((code[first], what[first], rank[first], which[first]))
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    number, first, size = row[number], first[order], len(order)
    columns: dict[str, Any] = {"iteration": _iterations(_steps(paths)[first])}
    if "rank" in grains:
        columns["rank"] = arrow.array(rank[first].astype(np.int32))
    if "class" in grains:
        columns["class"] = _class_names(what[first])
    if groups:
        at = arrow.array(code[first], mask=code[first] < 0)
        columns |= {g: groups.keys[g].combine_chunks().take(at) for g in others}
    total = gather.sums(number, dur, size)
    span = np.array([max(p.end_ns - p.start_ns, 1) for p in paths], np.int64)
    columns["pieces"] = arrow.array(np.bincount(number, minlength=size))
    columns["dur_ns"] = arrow.array(total)
    columns["delay_ns"] = arrow.array(gather.sums(number, _all(paths, "delay"), size))
    columns["path_share"] = arrow.array(total / span[which[first]])
    return pa.table(columns)


def _summary(timing: Timing, paths: list[Path]) -> dict[str, Any]:
    what, dur = _all(paths, "what"), _all(paths, "end") - _all(paths, "start")
    by_class = gather.sums(what, dur, len(CLASSES)).tolist()
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


def _all(paths: list[Path], column: str) -> Array:
    parts = [getattr(path, column) for path in paths]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _numbers(paths: list[Path]) -> Array:
    """Which of the paths each piece is of."""
    return np.repeat(np.arange(len(paths)), [len(p.node) for p in paths])


def _steps(paths: list[Path]) -> Array:
    return np.array([p.iteration for p in paths], np.int32)[_numbers(paths)]


def _iterations(steps: Array) -> Any:
    return arrow.array(steps, mask=steps < 0)


def _class_names(what: Array) -> pa.Array:
    return pa.array(CLASSES, pa.string()).take(arrow.array(what.astype(np.int64)))
