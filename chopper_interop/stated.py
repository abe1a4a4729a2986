"""Which annotation columns sources stated, rank by rank: what they did not is told by the trace.

A trace may be annotated in part: ranks that were read back have their columns, others joined to
them have none yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


def rows(trace: Trace, name: str) -> Array:
    """Which nodes are of a rank that has values in an annotation column."""
    told = np.zeros(trace.nodes.num_rows, np.bool_)
    if name in trace.nodes.column_names:
        known = arrow.known(trace.nodes[name])
        for mine in trace.rank_rows.values():
            told[mine] = known[mine].any()
    return told


def lacking(trace: Trace, names: Iterable[str]) -> list[str]:
    """Those of these annotation columns in which some rank has no value."""
    return [name for name in names if not rows(trace, name).all()]


def filled(trace: Trace, columns: dict[str, Any]) -> Trace:
    """The trace with these columns, where ranks have no values in columns of these names.

    Parameters
    ----------
    trace
        Any trace.
    columns
        Name → Arrow array, one value a node.
    """
    merged = {}
    for name, found in columns.items():
        told = rows(trace, name)
        if not told.any():
            merged[name] = found
        elif (arrow.known(found) & ~told).any():
            merged[name] = _merged(trace.nodes[name], found, told)
    return trace.annotate(**merged) if merged else trace


def _merged(old: pa.ChunkedArray, new: Any, told: Array) -> pa.Array:
    """Values of the old column where told, else of the new."""
    both = pa.chunked_array([arrow.flat(old), arrow.column(new, old.type)])
    n = len(told)
    return arrow.take(arrow.flat(both.unify_dictionaries()), np.arange(n) + np.where(told, 0, n))
