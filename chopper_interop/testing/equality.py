"""Equality of traces."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.arrays import arrow, gather
from chopper_interop.schemas import hub
from chopper_interop.schemas.meta import Meta
from chopper_interop.testing.rendering import NUMBERED_FROM
from chopper_interop.trace import Trace

_UNORDERED = ("edges", "samples", "counters")
"""Tables whose rows no other table refers to, so that their order is arbitrary."""
_BYTE_RANGES = ("args_at", "args_len")
_LANES = [column.name for column in hub.LANES]
_BLANK = b" \t\r\n"
_MAX_SHOWN = 200
"""Characters of a differing value that a message shows. Chosen: a few lines of a terminal."""


def assert_trace_equal(a: Trace, b: Trace, *, ignore: Iterable[str] = ()) -> None:
    """Raise `AssertionError`, with the first difference, unless two traces are equal.

    Order within dictionaries, chunks, buffers, and the order of rows that no other table
    refers to (edges, samples, counters) do not matter. Arguments are compared as parsed JSON. A column of
    nulls equals an absent column.

    Parameters
    ----------
    a, b
        The traces.
    ignore
        Parts to leave out: tables ("samples"), columns ("nodes.correlation"; "nodes.args" for the
        arguments), "meta" or fields of it ("meta.sources").
    """
    ignored = set(ignore)
    _refuse_unknown(ignored, a, b)
    for table in hub.TABLES:
        if table not in ignored:
            skip = {name.partition(".")[2] for name in ignored if name.startswith(f"{table}.")}
            _compare_tables(table, a, b, skip)
    if not {"nodes", "nodes.args"} & ignored:
        _compare_args(a, b)
    if "meta" not in ignored:
        for field in fields(Meta):
            if f"meta.{field.name}" not in ignored:
                _compare_meta(field.name, getattr(a.meta, field.name), getattr(b.meta, field.name))


def _refuse_unknown(ignore: set[str], a: Trace, b: Trace) -> None:
    """Raise `ValueError` for a name to ignore that does not exist: it is most likely mistyped."""
    known = {*hub.TABLES, "meta", "nodes.args", *(f"meta.{f.name}" for f in fields(Meta))}
    for trace in (a, b):
        for table in hub.TABLES:
            known |= {f"{table}.{name}" for name in getattr(trace, table).column_names}
    known |= {f"nodes.{name}" for name in hub.ANNOTATION_TYPES}
    if ignore - known:
        raise ValueError(f"there is nothing called {sorted(ignore - known)} to ignore")


def _compare_tables(name: str, a: Trace, b: Trace, skip: set[str]) -> None:
    left, right = (_columns(getattr(t, name), skip) for t in (a, b))
    if getattr(a, name).num_rows != getattr(b, name).num_rows:
        _differ(f"{name}: {getattr(a, name).num_rows} rows", f"{getattr(b, name).num_rows} rows")
    for column in sorted(set(left) ^ set(right)):
        _differ(f"{name}.{column} is in one trace only", "absent in the other")
    for column in left:
        if left[column].type != right[column].type:
            _differ(f"{name}.{column}: type {left[column].type}", f"{right[column].type}")
    if name in _UNORDERED:
        left, right = _sorted(left), _sorted(right)
    rows = [(_first_difference(left[c], right[c]), c) for c in left]
    row, column = min(((r, c) for r, c in rows if r >= 0), default=(-1, ""))
    if row >= 0:
        where = f"{name}.{column} in row {row}{_describe_row(name, a, row)}"
        _differ(f"{where}: {left[column][row].as_py()!r}", repr(right[column][row].as_py()))


def _columns(table: pa.Table, skip: set[str]) -> dict[str, pa.Array]:
    """Columns with values, dictionaries decoded; core columns first."""
    columns = {}
    for name in table.column_names:
        column = arrow.single_chunk(table[name])
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        # numbers made up by readers count as equal
        if table.schema.names == _LANES and name == "number":
            column = pc.max_element_wise(column, pa.scalar(NUMBERED_FROM - 1))
        if (
            name not in skip
            and name not in _BYTE_RANGES
            and (not len(column) or column.null_count < len(column))
        ):
            columns[name] = column
    return columns if table.num_rows else {}


def _sorted(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    if not columns:
        return columns
    table = pa.table(columns)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])
    return {name: table[name].take(order).combine_chunks() for name in columns}


def _first_difference(a: pa.Array, b: pa.Array) -> int:
    """First row in which two columns of one type differ, -1 if none; NaN equals NaN."""
    if a.equals(b):
        return -1
    if pa.types.is_nested(a.type):
        pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
        return next((row for row, (x, y) in enumerate(pairs) if x != y), -1)
    same = pc.fill_null(pc.equal(a, b), False)
    same = pc.or_(same, pc.and_(pc.is_null(a), pc.is_null(b)))
    if pa.types.is_floating(a.type):
        both = pc.and_(pc.is_nan(a), pc.is_nan(b))
        same = pc.or_(same, pc.fill_null(both, False))
    rows = np.flatnonzero(~arrow.to_numpy(same))
    return int(rows[0]) if rows.size else -1


def _describe_row(table: str, trace: Trace, row: int) -> str:
    """Describe a node for a message; empty for rows of other tables."""
    if table != "nodes":
        return ""
    name = trace.names()[int(trace.array("name")[row])]
    return f" (rank {trace.array('rank')[row]}, {name[:60]!r} at {trace.array('ts')[row]} ns)"


def _compare_args(a: Trace, b: Trace) -> None:
    for row in _rows_with_different_bytes(a, b):
        left, right = _members(a, row), _members(b, row)
        keys = sorted(k for k in left.keys() | right.keys() if left.get(k) != right.get(k))
        where = f"nodes.args in row {row}{_describe_row('nodes', a, row)}"
        if keys:
            values = [side.get(keys[0], "absent") for side in (left, right)]
            _differ(f"{where}, {keys[0]!r}: {values[0]}", values[1])
        if not left and _raw(a, row) != _raw(b, row):  # no JSON object, or an empty one
            _differ(f"{where}: {_raw(a, row)!r}", repr(_raw(b, row)))


def _members(trace: Trace, row: int) -> dict[str, str]:
    """Members of a node's arguments, their values as canonical JSON: true is not 1."""
    args = trace.args(row)
    return {key: json.dumps(value, sort_keys=True) for key, value in args.items()}


def _rows_with_different_bytes(a: Trace, b: Trace) -> list[int]:
    """Rows whose arguments differ in bytes: only these are parsed and compared."""
    lengths = [t.array("args_len").astype(np.int64) for t in (a, b)]
    if np.array_equal(lengths[0], lengths[1]):
        texts = [
            gather.concatenate_ranges(t.text.buffers, t.text.starts, t.array("args_at"), length)
            for t, length in zip((a, b), lengths, strict=True)
        ]
        different = np.flatnonzero(texts[0] != texts[1])
        ends = np.cumsum(lengths[0])  # byte i is of the first row that ends behind it
        return [int(row) for row in np.unique(np.searchsorted(ends, different, "right"))]
    return [int(row) for row in np.flatnonzero((lengths[0] > 0) | (lengths[1] > 0))]


def _raw(trace: Trace, row: int) -> bytes:
    """Bytes of a node's arguments; none for an empty object."""
    at, length = (trace.array(c)[row : row + 1] for c in ("args_at", "args_len"))
    if not length[0]:
        return b""
    buffer, start = trace.text.block(at, length)
    raw = bytes(buffer[start[0] : start[0] + length[0]])
    return b"" if raw.translate(None, _BLANK) == b"{}" else raw


def _compare_meta(name: str, a: Any, b: Any) -> None:
    if a == b:
        return
    if isinstance(a, tuple) and isinstance(b, tuple):
        for k, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                _differ(f"meta.{name}[{k}]: {x}", str(y))
        _differ(f"meta.{name}: {len(a)} entries", f"{len(b)}")
    _differ(f"meta.{name}: {a!r}", repr(b))


def _differ(left: str, right: str) -> None:
    raise AssertionError(f"{left} ≠ {right[:_MAX_SHOWN]}")
