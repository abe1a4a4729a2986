"""Check that a trace keeps the invariants of the hub's tables, on which compiled loops rely."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.arrays import Array, arrow, nest
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import SchemaError, first_line
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import NESTING, TABLE_KINDS
from chopper_interop.schemas.meta import Meta
from chopper_interop.tables import Text
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


_INT64 = 1 << 63
_MAX_NS = (1 << 62) - 1
"""Largest uncertainty, and time before the origin, 146 years: with another one it has a place in 64 bits."""


def check(trace: Trace) -> None:
    """Raise `SchemaError`, with the row, if a trace violates an invariant of the hub.

    Checked are types and nulls, kinds, references, order by (rank, ts, longest first), parents,
    durations, ranks, byte ranges of arguments, and order of samples and counters.
    """
    _check_meta(trace.meta)
    for table in hub.TABLES:
        _check_columns(table, getattr(trace, table))
    for table, kinds in TABLE_KINDS.items():
        known = is_any(trace.array("kind", table), kinds)
        _refuse(~known, f"{table}.kind", "is not a value of schemas.kinds")
    check_references(trace)
    check_times(trace)
    _check_series(trace)
    _check_parents(trace)
    _check_text(trace)


def check_numbers(value: Any) -> None:
    """Raise `SchemaError` for a number among facts that columns have no place for: those of Python and JSON have any length."""
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise SchemaError("it has numbers beyond 64 bits")
    inner = [getattr(value, f.name) for f in fields(value)] if is_dataclass(value) else []
    for each in value if isinstance(value, list | tuple) else inner:
        check_numbers(each)


def _check_meta(meta: Any) -> None:
    try:
        msgspec.convert(msgspec.to_builtins(meta), Meta)
    except (TypeError, msgspec.ValidationError) as error:
        raise SchemaError(f"meta: {first_line(error)}") from error
    check_numbers(meta)


def check_references(trace: Trace) -> None:
    """Raise `SchemaError` for a reference to a row that is not there."""
    for table, column, target, min_row in hub.REFERENCES:
        _check_reference(trace.array(column, table), f"{table}.{column}", trace, target, min_row)
    if "group" in trace.nodes.column_names:
        group = arrow.to_numpy(trace.nodes["group"].drop_null())
        _check_reference(group, "nodes.group", trace, "groups", 0)
    # callers are followed upwards until there is none: one that is called by a later node might call itself
    parent, lane = trace.array("parent"), trace.array("lane")
    is_later = parent >= np.arange(len(parent))
    of_other_lane = (parent >= 0) & (lane[np.maximum(parent, 0)] != lane)
    _refuse(is_later | of_other_lane, "nodes.parent", "is not an earlier node of the same lane")


def _check_reference(values: Array, column: str, trace: Trace, target: str, min_row: int) -> None:
    wrong = (values < min_row) | (values >= getattr(trace, target).num_rows)
    _refuse(wrong, column, f"is not a row of {target}")


def check_times(trace: Trace) -> None:
    """Raise `SchemaError` for ranks and durations that cannot be, and for rows out of order."""
    rank, ts, dur, of_lane = (
        *(trace.array(c) for c in ("rank", "ts", "dur")), trace.array("rank", "lanes"),
    )  # fmt: skip
    _refuse((of_lane < 0) | (of_lane > hub.MAX_RANK), "lanes.rank", f"is not 0 to {hub.MAX_RANK}")
    _refuse(rank != of_lane[trace.array("lane")], "nodes.lane", "is a lane of another rank")
    _refuse(dur < 0, "nodes.dur", "is negative")
    series, sampled = (trace.array(c, "samples") for c in ("series", "ts"))
    # readers leave clocks that were not read as they are: up to 2^63 - 1
    for column, times in (("nodes.ts", ts), ("samples.ts", sampled)):
        _refuse(times < -_MAX_NS, column, "is before -2^62 ns")
    _refuse(ts > _INT64 - 1 - dur, "nodes.dur", "ends beyond 64 bits")
    _refuse(~_in_order(rank, ts, -dur), "nodes", "is out of the order (rank, ts, longest first)", 1)
    _refuse(~_in_order(series, sampled), "samples", "is out of the order (series, ts)", 1)
    node = trace.array("node", "counters")
    _refuse(~_in_order(node), "counters", "is out of the order of nodes", 1)


def _in_order(*keys: Array) -> Array:
    """True for each row but the first that is not before the row before it; the first key counts most."""
    later = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in reversed(keys):
        later = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & later)
    return later


def _check_columns(table: str, data: pa.Table) -> None:
    for column in hub.TABLES[table]:
        if data[column.name].null_count:
            raise SchemaError(f"{table}.{column.name} holds nulls")
    if table == "nodes":
        for name, declared in hub.ANNOTATION_TYPES.items():
            if name in data.column_names and data[name].type != declared:
                raise SchemaError(f"nodes.{name} is {data[name].type}, not {declared}")


def _check_parents(trace: Trace) -> None:
    """Check parents against nesting in time, which alone determines them."""
    nests = is_any(trace.array("kind", "lanes"), NESTING)
    lane, ts, dur = (np.array(trace.array(c)) for c in ("lane", "ts", "dur"))
    expected = nest.parents(lane, ts, dur, nests)
    _refuse(
        trace.array("parent") != expected, "nodes.parent", "is not the innermost node around it"
    )


def _check_series(trace: Trace) -> None:
    rank, error_ns = (trace.array(c, "series") for c in ("rank", "uncertainty_ns"))
    _refuse((rank < -1) | (rank > hub.MAX_RANK), "series.rank", f"is not -1 to {hub.MAX_RANK}")
    _refuse((error_ns < 0) | (error_ns > _MAX_NS), "series.uncertainty_ns", "cannot be")


def _check_text(trace: Trace) -> None:
    if not isinstance(trace.text, Text):
        raise SchemaError(f"text is a {type(trace.text).__name__}, not a Text")
    at, length = trace.array("args_at"), trace.array("args_len").astype(np.int64)
    _refuse(length < 0, "nodes.args_len", "is negative")
    rows = np.flatnonzero(length > 0)
    starts = trace.text.starts
    # a range must lie in one buffer: in that which begins last at or before it
    number = np.searchsorted(starts, at[rows], "right") - 1
    outside = (at[rows] < 0) | (at[rows] >= starts[-1])
    ends = starts[np.minimum(number + 1, len(starts) - 1)]
    wrong = np.zeros(len(at), bool)
    wrong[rows] = outside | (at[rows] + length[rows] > ends)
    _refuse(wrong, "nodes.args_at", "is not in the text")


def _refuse(wrong: Array, column: str, problem: str, first: int = 0) -> None:
    """Raise `SchemaError` for the first wrong value; `first` is the row of the first that was looked at."""
    index = np.flatnonzero(wrong)
    if index.size:
        more = f" (and {index.size - 1} more)" if index.size > 1 else ""
        raise SchemaError(f"{column} in row {index[0] + first} {problem}{more}")
