"""Unions and intersections of intervals in time: exact, in nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Union = tuple[Array, Array]


def union(start: Array, end: Array) -> Union:
    """Intervals that cover the same time, sorted, without overlap and not touching.

    Parameters
    ----------
    start, end
        Nanoseconds; an interval that does not end after its start covers nothing.
    """
    some = end > start
    order = np.argsort(start[some], kind="stable")
    start, end = start[some][order], end[some][order]
    if not start.size:
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def length(intervals: Union) -> int:
    """Time that a union covers."""
    start, end = intervals
    return int((end - start).sum())


def common(a: Union, b: Union) -> int:
    """Time that two unions share."""
    both = union(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))
    return length(a) + length(b) - length(both)
