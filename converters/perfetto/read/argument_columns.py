"""Annotation columns and hardware counters from the arguments of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.perfetto.read.annotations_text import (
    INTEGER,
    KERNEL_COUNTERS,
    REAL,
    TEXT,
    UNKNOWN,
    ColumnEntries,
)
from chopper_interop.converters.perfetto.read.lanes import first_argument
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.perfetto.read.arguments import SliceArguments

GROUPS_UNKNOWN = Fault.info(
    "process-groups-unknown",
    "Collectives are without their process group, of which older versions "
    "of this package wrote no more than a number.",
)
SUMS = Fault.loss(
    "counter-values-are-sums",
    "Counters of kernels were left among their arguments: rocprofv3 of "
    "ROCm 6.4, and rocpd's conversion, give each kernel the sum over all of them; CSV, JSON or "
    "rocpd have the values of each.",
)

_WITH_BYTES = (Kind.MEMCPY, Kind.MEMSET, Kind.ALLOCATION)


def annotation_columns(
    builder: TraceBuilder,
    args: SliceArguments,
    kind: Array,
    groups: list[dict[str, Any]],
    issues: IssueLog,
) -> tuple[dict[str, Any], Array]:
    """Make annotation columns and correlation ids.

    Parameters
    ----------
    builder
        Builder of the trace, to which process groups are added.
    args
        Arguments of all slices.
    kind
        Kind of each.
    groups
        Process groups of the trace's metadata.
    issues
        Log in which collectives of unknown groups are counted.

    Returns
    -------
    columns, correlation
        Arrow arrays by name; int64, -1 where unknown.
    """
    n = len(kind)
    correlation = first_argument(args.values, n, "corr_id", "correlation")
    columns: dict[str, Any] = {}
    entries = args.entries
    is_column = entries.group == 0
    for code in np.unique(entries.name[is_column]).tolist():
        label = args.names[code]
        rows = np.flatnonzero(is_column & (entries.name == code))
        if label == "correlation":
            correlation[entries.slice[rows]] = entries.value[rows]
        elif label == "group":
            columns |= _group_column(builder, groups, entries, rows, n, issues)
        elif label in hub.ANNOTATION_TYPES:
            column = _column(label, entries, rows, args.words, n)
            if column is not None:
                columns[label] = column
    size = first_argument(args.values, n, "copy_bytes", "bytes", "allocation_size")
    known = is_any(kind, _WITH_BYTES) & (size >= 0)
    if known.any() and "bytes" not in columns:
        columns["bytes"] = arrow.array(np.where(known, size, 0), mask=~known)
    return columns, np.where(correlation == UNKNOWN, -1, correlation)


def _group_column(
    builder: TraceBuilder,
    groups: list[dict[str, Any]],
    entries: ColumnEntries,
    rows: Array,
    n: int,
    issues: IssueLog,
) -> dict[str, Any]:
    """Make the column of process groups, if the trace's metadata has the groups."""
    numbers = [builder.group(**group) for group in groups]
    values = entries.value[rows]
    good = (entries.type[rows] == INTEGER) & (values >= 0) & (values < len(numbers))
    issues.add(GROUPS_UNKNOWN, np.count_nonzero(~good))
    if not good.any():
        return {}
    column, unknown = np.zeros(n, np.int64), np.ones(n, np.bool_)
    at = entries.slice[rows[good]]
    column[at], unknown[at] = np.array(numbers, np.int64)[values[good]], False
    return {"group": arrow.array(column, hub.ANNOTATION_TYPES["group"], mask=unknown)}


def _column(label: str, entries: ColumnEntries, rows: Array, words: list[str], n: int) -> Any:
    """Make an annotation column that our writer wrote; None if its values are of the wrong type."""
    declared = hub.ANNOTATION_TYPES[label]
    at, types, values = entries.slice[rows], entries.type[rows], entries.value[rows]
    unknown = np.ones(n, np.bool_)
    if pa.types.is_dictionary(declared):
        good = (types == TEXT) & (values >= 0)
        codes = np.zeros(n, np.int64)
        codes[at[good]], unknown[at[good]] = values[good], False
        return arrow.dictionary(codes, words or [""], mask=unknown) if good.any() else None
    real = pa.types.is_floating(declared)
    good = np.isin(types, (REAL, INTEGER)) if real else types == INTEGER
    if declared == pa.int32():
        good &= (values >= -(1 << 31)) & (values < 1 << 31)
    column = np.zeros(n, np.float64 if real else np.int64)
    column[at[good]] = _as_reals(types[good], values[good]) if real else values[good]
    unknown[at[good]] = False
    return arrow.array(column, declared, mask=unknown) if good.any() else None


def _as_reals(types: Array, values: Array) -> Array:
    """Convert values of entries to doubles: decimal numbers are there as the bits of doubles."""
    return np.where(types == REAL, values.view(np.float64), values.astype(np.float64))


def add_counters(builder: TraceBuilder, args: SliceArguments) -> None:
    """Add the hardware counters that our writer put with nodes."""
    entries = args.entries
    rows = np.flatnonzero((entries.group == 1) & np.isin(entries.type, (INTEGER, REAL)))
    if len(rows):
        value = _as_reals(entries.type[rows], entries.value[rows])
        names = arrow.dictionary(entries.name[rows], args.names)
        builder.counters(entries.slice[rows], names, value)


def add_kernel_counters(
    builder: TraceBuilder, args: SliceArguments, kind: Array, issues: IssueLog
) -> None:
    """Add the decimal arguments of rocprofv3's kernels, which are their hardware counters."""
    entries = args.entries
    rows = np.flatnonzero(entries.group == KERNEL_COUNTERS)
    # what rocprofv3 calls kernels: also RCCL's, and those that copy and fill
    rows = rows[is_any(kind[entries.slice[rows]], GPU_WORK) & (entries.name[rows] >= 0)]
    if not len(rows):
        return
    order = np.argsort(entries.name[rows], kind="stable")
    node, name = entries.slice[rows][order], entries.name[rows][order]
    value = entries.value[rows][order].view(np.float64)
    first, code = gather.distinct(name)
    good = np.isfinite(value) & ~_is_sum(args, node, code, len(first), value)
    issues.add(SUMS, np.count_nonzero(~good))
    names = arrow.dictionary(name[good], args.names)
    builder.counters(node[good], names, value[good])


def _is_sum(args: SliceArguments, node: Array, code: Array, n: int, value: Array) -> Array:
    """Mark values of counters that are equal for all kernels, in versions that write sums.

    Those are the versions that have no ``stream_ID``: ROCm 6.4, and rocpd's conversion.
    """
    stream = args.values.get("stream_ID")
    by_kernel = stream is not None and bool((stream[node] != UNKNOWN).any())
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, code, value)
    np.maximum.at(high, code, value)
    equal = (low == high) & (np.bincount(code, minlength=n) > 1)
    return equal[code] & (not by_kernel)
