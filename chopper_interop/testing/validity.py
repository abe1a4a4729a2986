"""Check that a trace keeps the invariants of the hub's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import arrow, nest
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import NESTING, TABLE_KINDS

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace


def check_trace(trace: Trace) -> None:
    """Raise `AssertionError`, with the row, if a trace violates an invariant of the hub.

    Checked are types and nulls, kinds, references, order by (rank, ts, longest first), parents,
    durations, lanes' ranks, byte ranges of arguments, order of samples and counters, and that
    every event of a source became a node or was counted.
    """
    for table in hub.TABLES:
        _check_columns(table, getattr(trace, table))
    for table, kinds in TABLE_KINDS.items():
        known = is_any(trace.array("kind", table), kinds)
        _refuse(~known, f"{table}.kind", "is not a value of schemas.kinds")
    for table, column, target, min_row in hub.REFERENCES:
        values = trace.array(column, table)
        wrong = (values < min_row) | (values >= getattr(trace, target).num_rows)
        _refuse(wrong, f"{table}.{column}", f"is not a row of {target}")
    _check_groups(trace)
    _check_times(trace)
    _check_parents(trace)
    _check_text(trace)
    check_events(trace)


def check_events(trace: Trace) -> None:
    """Raise `AssertionError` unless every event of every source is a node or counted as an issue."""
    for source in trace.meta.sources:
        counted = sum(i.count for i in trace.meta.issues if i.events and i.source == source.path)
        if source.events != source.nodes + counted:
            raise AssertionError(
                f"{source.path}: {source.events} events are not {source.nodes} nodes + {counted} "
                "counted by issues with `events`"
            )
    paths = {source.path for source in trace.meta.sources}
    lost = [i for i in trace.meta.issues if i.events and i.source not in paths]
    if lost and paths:
        raise AssertionError(
            f"issue {lost[0].code} counts events of {lost[0].source!r}, which is no source"
        )


def _check_columns(table: str, data: pa.Table) -> None:
    for column in hub.TABLES[table]:
        if data[column.name].null_count:
            raise AssertionError(f"{table}.{column.name} holds nulls")
    if table == "nodes":
        for name, declared in hub.ANNOTATION_TYPES.items():
            if name in data.column_names and data[name].type != declared:
                raise AssertionError(f"nodes.{name} is {data[name].type}, not {declared}")


def _check_groups(trace: Trace) -> None:
    if "group" in trace.nodes.column_names:
        group = arrow.to_numpy(trace.nodes["group"].drop_null())
        _refuse(
            (group < 0) | (group >= trace.groups.num_rows), "nodes.group", "is not a row of groups"
        )


def _check_times(trace: Trace) -> None:
    rank, ts, dur = (trace.array(c) for c in ("rank", "ts", "dur"))
    _refuse(dur < 0, "nodes.dur", "is negative")
    order = np.lexsort((-dur, ts, rank))
    _refuse(
        (rank != rank[order]) | (ts != ts[order]) | (dur != dur[order]),
        "nodes",
        "is out of the order (rank, ts, longest first)",
    )
    _refuse(
        rank != trace.array("rank", "lanes")[trace.array("lane")],
        "nodes.lane",
        "is a lane of another rank",
    )
    series, sampled = (trace.array(c, "samples") for c in ("series", "ts"))
    same_series = series[:-1] == series[1:]
    late = (series[:-1] > series[1:]) | (same_series & (sampled[:-1] > sampled[1:]))
    _refuse(late, "samples", "is out of the order (series, ts)")
    node = trace.array("node", "counters")
    _refuse(node[:-1] > node[1:], "counters", "is out of the order of nodes")


def _check_parents(trace: Trace) -> None:
    """Check parents against nesting in time, which alone determines them."""
    nests = is_any(trace.array("kind", "lanes"), NESTING)
    lane, ts, dur = (np.array(trace.array(c)) for c in ("lane", "ts", "dur"))
    expected = nest.parents(lane, ts, dur, nests)
    _refuse(
        trace.array("parent") != expected, "nodes.parent", "is not the innermost node around it"
    )


def _check_text(trace: Trace) -> None:
    at, length = trace.array("args_at"), trace.array("args_len").astype(np.int64)
    _refuse(length < 0, "nodes.args_len", "is negative")
    rows = np.flatnonzero(length > 0)
    starts = trace.text.starts
    # a range must lie in one buffer: in that which begins last at or before it
    number = np.searchsorted(starts, at[rows], "right") - 1
    outside = (at[rows] < 0) | (at[rows] >= starts[-1])
    ends = starts[np.minimum(number + 1, len(starts) - 1)]
    _refuse(outside | (at[rows] + length[rows] > ends), "nodes.args_at", "is not in the text", rows)


def _refuse(wrong: Array, column: str, problem: str, rows: Array | None = None) -> None:
    """Raise `AssertionError` for the first wrong value; `rows` are those of the values, if not all."""
    index = np.flatnonzero(wrong)
    if index.size:
        row = index[0] if rows is None else rows[index[0]]
        more = f" (and {index.size - 1} more)" if index.size > 1 else ""
        raise AssertionError(f"{column} in row {row} {problem}{more}")
