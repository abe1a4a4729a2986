"""How values of several GPUs differ: from their median, from each other, and with one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array

FEWEST = 3
"""Two GPUs always lie on a line."""


def median(values: Array) -> float:
    """Median of the known; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else np.nan


def of_others(values: Array) -> Array:
    """Median of all but each; NaN where that is of none."""
    others = [median(np.delete(values, i)) for i in range(len(values))]
    return np.array(others, float).reshape(len(values))


def pearson(a: Array, b: Array) -> float:
    """Linear correlation of the pairs that are known; NaN of fewer than three, or of a constant."""
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < FEWEST or _is_constant(a) or _is_constant(b):
        return np.nan
    a, b = (a - a.mean()) / np.abs(a).max(), (b - b.mean()) / np.abs(b).max()
    scale = float(np.sqrt((a * a).sum()) * np.sqrt((b * b).sum()))
    return float(np.clip((a * b).sum() / scale, -1, 1)) if scale > 0 else np.nan


def spearman(a: Array, b: Array) -> float:
    """Correlation of ranks; equal values have the mean of theirs."""
    known = np.isfinite(a) & np.isfinite(b)
    return pearson(_ranks(a[known]), _ranks(b[known]))


def _is_constant(values: Array) -> bool:
    return bool((values == values[0]).all())


def _ranks(values: Array) -> Array:
    _, code, often = np.unique(values, return_inverse=True, return_counts=True)
    upto = np.cumsum(often)
    return (upto - (often - 1) / 2)[code]


def within(values: Array, groups: Sequence[Any]) -> Array:
    """Values less the median of their group."""
    found = np.full(len(values), np.nan)
    keys = np.array([hash(group) for group in groups])
    for key in np.unique(keys):
        mine = keys == key
        found[mine] = values[mine] - median(values[mine])
    return found
