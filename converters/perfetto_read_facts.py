"""Facts that arguments of slices tell: columns of our own, and counters of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow, gather
from chopper_interop.converters.perfetto_read_annotations_text import (
    INTEGER,
    OF_KERNELS,
    REAL,
    TEXT,
    UNKNOWN,
)
from chopper_interop.converters.perfetto_read_places import first_of
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_annotations_text import Facts
    from chopper_interop.converters.perfetto_read_arguments import Arguments

GROUPS_UNKNOWN = Fault(
    "process-groups-unknown",
    Severity.INFO,
    "Collectives are without their process group, of which older versions of this package wrote no "
    "more than a number.",
)
SUMS = Fault(
    "counter-values-are-sums",
    Severity.LOSS,
    "Counters of kernels were left among their arguments: rocprofv3 of ROCm 6.4, and rocpd's "
    "conversion, give each kernel the sum over all of them; CSV, JSON or rocpd have its own.",
)

_DISPATCHED = (int(Kind.KERNEL), int(Kind.COMM), int(Kind.MEMCPY), int(Kind.MEMSET))
"""Kinds of what rocprofv3 calls kernels: RCCL's, and those that copy and fill, are among them."""


def columns(
    builder: TraceBuilder,
    args: Arguments,
    kind: Array,
    groups: list[dict[str, Any]],
    issues: IssueLog,
) -> tuple[dict[str, Any], Array]:
    """Annotation columns and correlation ids.

    Parameters
    ----------
    builder
        Where process groups go.
    args
        Of all slices.
    kind
        Kind of each.
    groups
        Process groups that the trace tells of.
    issues
        Where groups that are not known are counted.
    """
    n = len(kind)
    correlation = first_of(args.values, n, "corr_id", "correlation")
    found: dict[str, Any] = {}
    size = first_of(args.values, n, "copy_bytes", "bytes", "allocation_size")
    moves = np.isin(kind, (int(Kind.MEMCPY), int(Kind.MEMSET), int(Kind.ALLOCATION)))
    known = moves & (size >= 0)
    facts = args.facts
    mine = facts.group == 0
    for code in np.unique(facts.name[mine]).tolist():
        label = args.names[code]
        rows = np.flatnonzero(mine & (facts.name == code))
        if label == "correlation":
            correlation = np.full(n, UNKNOWN, np.int64) if correlation is None else correlation
            correlation[facts.slice[rows]] = facts.value[rows]
        elif label == "group":
            found |= _groups(builder, groups, facts, rows, n, issues)
        elif label in hub.ANNOTATION_TYPES:
            column = _column(label, facts, rows, args.words, n)
            if column is not None:
                found[label] = column
    if known.any() and "bytes" not in found:
        found["bytes"] = arrow.array(np.where(known, size, 0), mask=~known)
    return found, np.where(correlation == UNKNOWN, -1, correlation)


def _groups(
    builder: TraceBuilder,
    groups: list[dict[str, Any]],
    facts: Facts,
    rows: Array,
    n: int,
    issues: IssueLog,
) -> dict[str, Any]:
    """The column of process groups, if the trace says what they are."""
    made = [builder.group(**group) for group in groups]
    values = facts.value[rows]
    good = (facts.type[rows] == INTEGER) & (values >= 0) & (values < len(made))
    issues.add(GROUPS_UNKNOWN, np.count_nonzero(~good))
    if not good.any():
        return {}
    column, unknown = np.zeros(n, np.int64), np.ones(n, np.bool_)
    at = facts.slice[rows[good]]
    column[at], unknown[at] = np.array(made, np.int64)[values[good]], False
    return {"group": arrow.array(column, hub.ANNOTATION_TYPES["group"], mask=unknown)}


def _column(label: str, facts: Any, rows: Array, words: list[str], n: int) -> Any:
    """An annotation column of our own; None if its values are of the wrong type."""
    declared = hub.ANNOTATION_TYPES[label]
    at, types, values = facts.slice[rows], facts.type[rows], facts.value[rows]
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
    whole = values[good]
    column[at[good]] = (
        np.where(types[good] == REAL, whole.view(np.float64), whole) if real else whole
    )
    unknown[at[good]] = False
    return arrow.array(column, declared, mask=unknown) if good.any() else None


def counters(builder: TraceBuilder, args: Arguments) -> None:
    """Counters that our writer put with nodes."""
    facts = args.facts
    rows = np.flatnonzero((facts.group == 1) & np.isin(facts.type, (INTEGER, REAL)))
    if len(rows):
        bits = facts.value[rows]
        real = facts.type[rows] == REAL
        value = np.where(real, bits.view(np.float64), bits.astype(np.float64))
        names = arrow.dictionary(facts.name[rows], args.names)
        builder.counters(facts.slice[rows], names, value)


def counters_of_kernels(
    builder: TraceBuilder, args: Arguments, kind: Array, issues: IssueLog
) -> None:
    """Decimal arguments of rocprofv3's kernels, which are their hardware counters."""
    facts = args.facts
    rows = np.flatnonzero(facts.group == OF_KERNELS)
    rows = rows[np.isin(kind[facts.slice[rows]], _DISPATCHED) & (facts.name[rows] >= 0)]
    if not len(rows):
        return
    order = np.argsort(facts.name[rows], kind="stable")
    node, name = facts.slice[rows][order], facts.name[rows][order]
    value = facts.value[rows][order].view(np.float64)
    first, code = gather.distinct(name)
    of_kernel = np.isfinite(value) & ~_is_sum(args, node, code, len(first), value)
    issues.add(SUMS, np.count_nonzero(~of_kernel))
    names = arrow.dictionary(name[of_kernel], args.names)
    builder.counters(node[of_kernel], names, value[of_kernel])


def _is_sum(args: Arguments, node: Array, code: Array, n: int, value: Array) -> Array:
    """Which counters are the same for all kernels, in a version that gives them their sum.

    The versions that do not say the stream as ``stream_ID`` do so: ROCm 6.4, and rocpd's conversion.
    """
    stream = args.values.get("stream_ID")
    by_kernel = stream is not None and bool((stream[node] != UNKNOWN).any())
    least, most = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(least, code, value)
    np.maximum.at(most, code, value)
    same = (least == most) & (np.bincount(code, minlength=n) > 1)
    return same[code] & (not by_kernel)
