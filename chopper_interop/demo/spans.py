"""Intervals of time: sorted lists of disjoint intervals.

Compiled passes over two sorted lists at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array

    Spans = tuple[Array, Array]


def union(start: Array, end: Array) -> Spans:
    """Disjoint sorted intervals that cover the same time."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    new = np.ones(len(start), dtype=bool)
    new[1:] = start[1:] > reach[:-1]
    return start[new], reach[np.append(new[1:], True)] if len(new) else reach


def length_ns(spans: Spans) -> int:
    """Time that disjoint intervals cover."""
    return int((spans[1] - spans[0]).sum())


def free(spans: Spans, begin: int, end: int) -> Spans:
    """Disjoint sorted intervals of what others leave free between two instants."""
    starts, ends = (np.clip(of, begin, end) for of in spans)
    return np.append(begin, ends), np.append(starts, end)


@jit
def overlap_ns(start_a: Array, end_a: Array, start_b: Array, end_b: Array) -> int:
    """Time that two sorted lists of disjoint intervals have in common."""
    i, j, total = 0, 0, 0
    while i < len(start_a) and j < len(start_b):
        total += max(0, min(end_a[i], end_b[j]) - max(start_a[i], start_b[j]))
        if end_a[i] < end_b[j]:
            i += 1
        else:
            j += 1
    return total
