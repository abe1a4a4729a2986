"""Provenance of annotations: values that sources stated are kept, others are derived.

The unit is a rank: of a trace that was read back and joined with profiles, some ranks have their
columns already and the others have none yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.trace import Trace


def stated_rows(trace: Trace, name: str) -> Array:
    """Mark the nodes of ranks that have any value in an annotation column."""
    known = trace.known(name)
    if not known.any():
        return known
    of_ranks = trace.rank_rows.values()
    any_known = np.logical_or.reduceat(known, [rows.start for rows in of_ranks])
    return np.repeat(any_known, [rows.stop - rows.start for rows in of_ranks])


def incomplete_columns(trace: Trace, names: Iterable[str]) -> list[str]:
    """Select the annotation columns in which some rank has no value."""
    return [name for name in names if not stated_rows(trace, name).all()]


def fill_columns(trace: Trace, columns: dict[str, Any]) -> Trace:
    """Add derived columns for the ranks that have no values in columns of the same names.

    Parameters
    ----------
    columns
        Name → Arrow array, one value a node.
    """
    merged = filled(trace, columns)
    return trace.with_columns(**merged) if merged else trace


def filled(trace: Trace, columns: dict[str, Any]) -> dict[str, Any]:
    """Columns that `fill_columns` would add or replace.

    Parameters
    ----------
    columns
        Name → Arrow array, one value a node.
    """
    merged = {}
    for name, derived in columns.items():
        stated = stated_rows(trace, name)
        if not stated.any():
            merged[name] = derived
        elif (arrow.is_valid(derived) & ~stated).any():
            merged[name] = _merged(trace.nodes[name], derived, stated)
    return merged


def _merged(old: pa.ChunkedArray, new: Any, stated: Array) -> pa.Array:
    """Take values of the old column where stated, else of the new."""
    both = pa.chunked_array([arrow.single_chunk(old), arrow.column(new, old.type)])
    n = len(stated)  # row i of the old column, or row n + i: row i of the new one behind it
    return arrow.take(
        arrow.single_chunk(both.unify_dictionaries()), np.arange(n) + np.where(stated, 0, n)
    )
