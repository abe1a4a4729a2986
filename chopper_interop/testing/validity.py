"""Whether a trace keeps the promises that the hub's tables make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.build import NESTING
from chopper_interop.columns import arrow, nest
from chopper_interop.columns.members import is_any
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_REFERENCES = (
    ("nodes", "lane", "lanes", 0),
    ("nodes", "parent", "nodes", -1),
    ("edges", "src", "nodes", 0),
    ("edges", "dst", "nodes", 0),
    ("samples", "series", "series", 0),
    ("counters", "node", "nodes", 0),
)
"""Table, column, the table that it refers to, the least value that it may have."""
_KINDS = (("nodes", Kind), ("edges", EdgeKind), ("lanes", LaneKind))


def check_trace(trace: Trace) -> None:
    """Raise `AssertionError` if a trace breaks a promise of the hub; it says which and where.

    Checked are types and nulls, kinds, references, order by (rank, ts, longest first), parents,
    durations, lanes' ranks, byte ranges of arguments, order of samples and counters, and that
    every event of a source became a node or was counted.

    Parameters
    ----------
    trace
        What a reader made.
    """
    for table in hub.TABLES:
        _check_columns(table, getattr(trace, table))
    for table, kinds in _KINDS:
        known = is_any(trace.array("kind", table), kinds)
        _refuse(~known, f"{table}.kind", "is no number of schemas.kinds")
    for table, column, target, least in _REFERENCES:
        values = trace.array(column, table)
        wrong = (values < least) | (values >= getattr(trace, target).num_rows)
        _refuse(wrong, f"{table}.{column}", f"is no row of {target}")
    _check_groups(trace)
    _check_times(trace)
    _check_parents(trace)
    _check_text(trace)
    check_events(trace)


def check_events(trace: Trace) -> None:
    """Raise `AssertionError` unless every event of every source is a node or counted."""
    for source in trace.meta.sources:
        counted = sum(i.count for i in trace.meta.issues if i.events and i.source == source.path)
        if source.events != source.nodes + counted:
            raise AssertionError(
                f"{source.path}: {source.events} events are not {source.nodes} nodes + {counted} "
                "that issues with `events` count"
            )
    paths = {source.path for source in trace.meta.sources}
    lost = [i for i in trace.meta.issues if i.events and i.source not in paths]
    if lost and paths:
        raise AssertionError(f"issue {lost[0].code} counts events of {lost[0].source!r}, no source")


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
        group = arrow.numbers(trace.nodes["group"].drop_null())
        _refuse(
            (group < 0) | (group >= trace.groups.num_rows), "nodes.group", "is no row of groups"
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
    series, when = (trace.array(c, "samples") for c in ("series", "ts"))
    late = (series[:-1] > series[1:]) | ((series[:-1] == series[1:]) & (when[:-1] > when[1:]))
    _refuse(late, "samples", "is out of the order (series, ts)")
    node = trace.array("node", "counters")
    _refuse(node[:-1] > node[1:], "counters", "is out of the order of nodes")


def _check_parents(trace: Trace) -> None:
    """Parents are found by nesting alone, so that they can be found again."""
    nests = is_any(trace.array("kind", "lanes"), NESTING)
    lane, ts, dur = (np.array(trace.array(c)) for c in ("lane", "ts", "dur"))
    expected = nest.parents(lane, ts, dur, nests)
    _refuse(trace.array("parent") != expected, "nodes.parent", "is not the innermost node around")


def _check_text(trace: Trace) -> None:
    at, length = trace.array("args_at"), trace.array("args_len").astype(np.int64)
    _refuse(length < 0, "nodes.args_len", "is negative")
    some = np.flatnonzero(length > 0)
    starts = trace.text.starts
    which = np.searchsorted(starts, at[some], "right") - 1
    outside = (at[some] < 0) | (at[some] >= starts[-1])
    ends = starts[np.minimum(which + 1, len(starts) - 1)]
    _refuse(outside | (at[some] + length[some] > ends), "nodes.args_at", "is not in the text", some)


def _refuse(wrong: Array, what: str, why: str, rows: Array | None = None) -> None:
    found = np.flatnonzero(wrong)
    if found.size:
        row = found[0] if rows is None else rows[found[0]]
        more = f" (and {found.size - 1} more)" if found.size > 1 else ""
        raise AssertionError(f"{what} in row {row} {why}{more}")
