"""Find the critical path of a training step: the chain of waits that determines its length, and slack."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import concurrent_work, grouping, windows
from chopper_interop.analyses.methods.peers import hta_critical_path as peers_critical_path
from chopper_interop.analyses.methods.timing import critical, spans
from chopper_interop.analyses.methods.timing.paths import CLASS_CODE, CLASSES
from chopper_interop.arrays import Array, arrow, gather, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import OptionError, UsageError
from chopper_interop.result import LazyColumns, Result
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.schemas.names import LOADER_RANGE
from chopper_interop.timing.model import Timing, timing_of
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.timing.critical import NodeColumns, Path

__all__ = ["critical_path"]

_PIECE = "piece"
_BY = "class"
_NEAR_US = 10.0
"""Default for near-critical. Chosen: of the order of one kernel launch, so that work counts which a
small delay makes critical."""
_MAX_NEAR_US = 1e12
"""Twelve days: more is a mistake, and would overflow as nanoseconds."""

_CONVENTIONS = {
    "path": "chain of waits from the end of the window back to its start: of all that an endpoint (start "
    "or end of a node) waited for, the path follows the one that came last, with the minimum latency of "
    "its kind added. Its pieces cover the window without gaps",
    "classes": "compute, comm, copy: GPU work (comm from the time at which the last member had started); "
    "host, runtime: host threads in and between operators, in calls of the runtime, and before the "
    "first record of the rank with which the path begins; launch: from "
    "a call to its work; stream, event: between pieces of GPU work, and before it where no launch is recorded; sync: from the end of work to the "
    "return of the call that waited for it, or to where a host goes on that polled memory; handover: from one host thread to another; dependency: "
    "dependencies that a source records as such",
    "delay_ns": "time of a piece beyond the minimum that its kind of wait takes in this trace",
    "slack": "how much later a node could end without a later end of the window; everything else "
    "stays as it is, delays too",
    "drag": "how much sooner the window would end if the node took no time in it, for GPU work on the path; "
    "the transfer of a collective ends for all its members at once",
    "unknown_ns": "time on the path before GPU work beyond the least latencies: it waited for what is not recorded, "
    "such as its launch",
    "unknown_first_ns": "part of unknown_ns before the first GPU work of a rank: what ran before the recording is not in it",
    "unknown_busy_ns": "part of unknown_ns in which other work of the rank ran, which may be what was waited for",
    "host_first_ns": "part of host_ns before the first record of the rank with which the path begins, as ranks that "
    "were recorded earlier are in the window too",
    "host_gap_busy_ns": "part of host_ns in which no operation of the host was recorded, other than ranges around it, "
    "and the rank's GPU worked: the host may have waited for it in a call that was not recorded",
    "links": "all work counts; work without a recorded launch starts when it did",
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
    """Find the critical path of a job or of each step, over all ranks or some, with slack and drag.

    Parameters
    ----------
    by
        Rows: ``"piece"`` for the path itself, ``"class"`` for its time by class, or names of
        `grouping.GRAINS` of the nodes on it (``"class,operation"``, ``"rank"``, ``"layer"``).
    steps
        ``each``, ``10`` or ``10-12``: these training steps, with one path for each. If empty, one
        path from the first rank's start of the first step to the last rank's end of the last one.
    ranks
        Ranks to include (``"0,4-7"``); their waits for other ranks are then not known.
    near_us
        Nodes with at most this much slack, in microseconds, are near-critical.
    compat
        "hta": the path of each rank by Holistic Trace Analysis' definition, in microseconds:
        `duration_us` and number of `edges` of the path by `bound_by` and `edge_type`, with the
        total as `cp_weight_us` in the summary. "tracelens" has no critical path.

    Returns
    -------
    Result
        Rows by piece: `iteration`, `class`, `rank`, `node` (row of the trace's nodes), `name`,
        `start_ns`, `dur_ns`, `delay_ns`; else the groups with `pieces`, `dur_ns`, `delay_ns` and
        `path_share`. The summary has `path_ns` (the length of all windows), the time by class, and
        the number of near-critical nodes. Annotations: `critical_ns` with `critical_start_ns` and
        `critical_end_ns`, `critical_delay_ns`, `slack_ns`, `drag_ns`.

    Raises
    ------
    MissingDataError
        Operations have no times, only their order.

    Notes
    -----
    Vertices are starts and ends of all nodes, joined across ranks by collectives; see
    `chopper_interop.timing.model`. Slack is computed by a backward pass (critical path method, Kelley
    and Walker 1959), drag as Devaux (1999) defines it, for all edges of the path at once.
    """
    if compat:
        default = by == _BY and not steps and near_us == _NEAR_US
        return peers_critical_path.critical_path(trace, compat, ranks, default=default)
    grains = () if by == _PIECE else _grains(by)
    if not 0 <= near_us <= _MAX_NEAR_US:
        raise UsageError(f"near_us={near_us}: it must be from 0 to {_MAX_NEAR_US:,.0f}")
    windows.check_has_times(trace)
    part, rows = _select_ranks(trace, ranks)
    timing = timing_of(part)
    paths, columns = critical.critical_paths(
        timing, spans.spans_of_timing(timing, steps), round(near_us * 1000)
    )
    table = _pieces(part, paths, rows) if by == _PIECE else _grouped(part, paths, grains)
    notes = {
        "window": windows.describe(
            steps, "from the first start to the last end of all training steps, else of everything"
        )
        + "; a step lasts until the work that its host launched has ended",
        "ranks": f"{len(part.ranks)} of {len(trace.ranks)}",
    }
    if not paths:
        notes["no rows"] = "the trace has no operations"
    return Result(
        "critical_path",
        table,
        _summary(timing, paths),
        _CONVENTIONS,
        _annotations(trace, columns, rows),
        notes,
    )


def _grains(by: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    if _PIECE in names:
        raise OptionError(
            f"by={by}: {_PIECE} cannot be combined", hint="it gives every piece of the path"
        )
    grouping.parse_grains(by, (_PIECE,))
    return tuple(name for name in names if name != "job")


def _select_ranks(trace: Trace, ranks: str) -> tuple[Trace, Array | None]:
    """Return the trace of the chosen ranks, and the row of each of its nodes; None for all ranks."""
    chosen = windows.chosen_ranks(trace, ranks)
    if chosen == trace.ranks:
        return trace, None
    parts = [trace.rank_rows[rank] for rank in chosen]
    rows = np.concatenate([np.arange(p.start, p.stop) for p in parts])
    return trace.select_ranks(chosen), rows


def _annotations(trace: Trace, columns: NodeColumns, rows: Array | None) -> LazyColumns:
    """Columns of all nodes of the trace, of which those of ranks that were not chosen are null."""

    def make(name: str) -> pa.Array:
        with spill.when(spill.holds(trace.array("ts"))):
            column = columns.column(name)
            if rows is not None:
                of_chosen, column = column, spill.full(trace.nodes.num_rows, -1, np.int64)
                column[rows] = of_chosen
            return arrow.negative_to_null(column)

    return LazyColumns({name: partial(make, name) for name in columns.NAMES})


def _pieces(trace: Trace, paths: list[Path], rows: Array | None) -> pa.Table:
    node = _all(paths, "node")
    names = pa.array([*trace.names(), "(not recorded)"], pa.string())
    name = np.append(trace.array("name"), len(names) - 1)[node]  # node -1 takes the last one
    start, end = _all(paths, "start"), _all(paths, "end")
    trace_node = node if rows is None else np.where(node >= 0, rows[node], -1)
    return pa.table(
        {
            "iteration": _iterations(_steps(paths)),
            "class": _class_names(_all(paths, "class_code")),
            "rank": arrow.array(_all(paths, "rank"), pa.int32()),
            "node": arrow.array(trace_node, mask=node < 0),
            "name": names.take(arrow.array(name.astype(np.int64))),
            "start_ns": arrow.array(start),
            "dur_ns": arrow.array(end - start),
            "delay_ns": arrow.array(_all(paths, "delay")),
        }
    )


def _grouped(trace: Trace, paths: list[Path], grains: tuple[str, ...]) -> pa.Table:
    """Sum the time on the path by the grains of `by`."""
    node, path_number = _all(paths, "node"), _path_numbers(paths)
    dur = _all(paths, "end") - _all(paths, "start")
    node_grains = tuple(g for g in grains if g not in ("class", "rank", "iteration"))
    groups = (
        grouping.group_nodes(trace, np.maximum(node, 0), ",".join(node_grains))
        if node_grains
        else None
    )
    no_key = np.zeros(len(node), np.int64)
    code = np.where(node >= 0, groups.code, _unknown_group(groups.keys)) if groups else no_key
    rank = _all(paths, "rank") if "rank" in grains else no_key
    class_code = _all(paths, "class_code") if "class" in grains else no_key
    # groups in order of path, rank, class and key: `order` sorts them, `row` is the inverse of that
    first, group = gather.distinct(path_number, rank, class_code, code)
    order = np.lexsort((code[first], class_code[first], rank[first], path_number[first]))
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    group, first, size = row[group], first[order], len(order)
    columns: dict[str, Any] = {"iteration": _iterations(_steps(paths)[first])}
    if "rank" in grains:
        columns["rank"] = arrow.array(rank[first].astype(np.int32))
    if "class" in grains:
        columns["class"] = _class_names(class_code[first])
    if groups:
        key_row = arrow.array(code[first], mask=code[first] < 0)
        columns |= {g: groups.keys[g].combine_chunks().take(key_row) for g in node_grains}
    total = gather.group_sums(group, dur, size)
    span = np.array([max(p.end_ns - p.start_ns, 1) for p in paths], np.int64)
    columns["pieces"] = arrow.array(np.bincount(group, minlength=size))
    columns["dur_ns"] = arrow.array(total)
    columns["delay_ns"] = arrow.array(gather.group_sums(group, _all(paths, "delay"), size))
    columns["path_share"] = arrow.array(total / span[path_number[first]])
    return pa.table(columns)


def _unknown_group(keys: pa.Table) -> int:
    """Number of the group of which no key is known, to which time before the first record belongs; else -1."""
    unknown = [~arrow.is_valid(column) for column in keys.columns]
    return next(iter(np.flatnonzero(np.logical_and.reduce(unknown)).tolist()), -1)


def _summary(timing: Timing, paths: list[Path]) -> dict[str, Any]:
    class_code, dur = _all(paths, "class_code"), _all(paths, "end") - _all(paths, "start")
    by_class = gather.group_sums(class_code, dur, len(CLASSES)).tolist()
    return {
        "windows": len(paths),
        "path_ns": int(dur.sum()),
        **{f"{name}_ns": ns for name, ns in zip(CLASSES, by_class, strict=True)},
        "delay_ns": int(_all(paths, "delay").sum()),
        "bound_by": CLASSES[int(np.argmax(by_class))] if dur.size else None,
        "pieces": len(class_code),
        "near_critical_nodes": sum(p.near_nodes for p in paths),
        "near_critical_work_ns": sum(p.near_work_ns for p in paths),
        **_unknown(timing.trace, paths),
        "edges_left_out": timing.graph.left_out,
    }


def _unknown(trace: Trace, paths: list[Path]) -> dict[str, int]:
    """Time on paths for no known reason, and the part of it in which the rank's GPU worked."""
    code, delay, end = (_all(paths, name) for name in ("class_code", "delay", "end"))
    waits = np.isin(code, [CLASS_CODE[name] for name in ("launch", "stream", "event")])
    gaps = (code == CLASS_CODE["host"]) & _without_operation(trace, _all(paths, "node"))
    start = _all(paths, "start")
    begins = start == np.array([p.start_ns for p in paths], np.int64)[_path_numbers(paths)]
    since = np.where(waits, end - delay, start)
    rank, busy_ns = _all(paths, "rank"), np.zeros(len(end), np.int64)
    unknown, work = waits | gaps, np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    busy_ns[unknown] = concurrent_work.time_with_nodes(
        trace, work, rank[unknown], since[unknown], end[unknown]
    )
    first = waits & np.isin(_all(paths, "node"), _first_work(trace))
    return {
        "unknown_ns": int(delay[waits].sum()),
        "unknown_first_ns": int(delay[first].sum()),
        "unknown_busy_ns": int(busy_ns[waits].sum()),
        "host_first_ns": int((end - start)[gaps & begins & (_all(paths, "node") < 0)].sum()),
        "host_gap_busy_ns": int(busy_ns[gaps].sum()),
    }


def _first_work(trace: Trace) -> list[int]:
    """Number of the first GPU work of each rank."""
    work, ts = is_any(trace.array("kind"), GPU_WORK), trace.array("ts")
    rows = [np.flatnonzero(work[rows]) + rows.start for rows in trace.rank_rows.values()]
    return [int(row[np.argmin(ts[row])]) for row in rows if row.size]


def _without_operation(trace: Trace, node: Array) -> Array:
    """Mask of pieces in which nothing but ranges was recorded; a data loader's wait for its own threads."""
    loads = np.array([name.startswith(LOADER_RANGE) for name in trace.names()] or [False])
    in_range = (trace.array("kind") == Kind.ANNOTATION) & ~loads[trace.array("name")]
    return (node < 0) | in_range[node]


def _all(paths: list[Path], column: str) -> Array:
    """Concatenate an array of all paths."""
    return gather.joined([getattr(path, column) for path in paths])


def _path_numbers(paths: list[Path]) -> Array:
    """Return for each piece the number of its path."""
    return np.repeat(np.arange(len(paths)), [len(p.node) for p in paths])


def _steps(paths: list[Path]) -> Array:
    return np.array([p.iteration for p in paths], np.int32)[_path_numbers(paths)]


def _iterations(steps: Array) -> Any:
    return arrow.negative_to_null(steps)


def _class_names(class_code: Array) -> pa.Array:
    return arrow.texts_of(CLASSES, class_code)
