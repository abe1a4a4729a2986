"""What ran on GPUs during given stretches of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping
from chopper_interop.columns import arrow, gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Shared:
    """Time that pieces of work share with stretches of time: a row a pair.

    Parameters
    ----------
    stretch
        Number of the stretch.
    row
        The node.
    time
        How long both are, nanoseconds.
    """

    stretch: Array
    row: Array
    time: Array

    def shifted(self, by: int) -> Shared:
        """The same with other numbers of stretches."""
        return Shared(self.stretch + by, self.row, self.time)


def shared(trace: Trace, rows: Array, start: Array, end: Array) -> Shared:
    """Time of work in stretches that ascend and do not overlap.

    Parameters
    ----------
    trace
        The trace.
    rows
        Nodes, in any order.
    start, end
        The stretches.
    """
    begin = trace.array("ts")[rows]
    stop = begin + trace.array("dur")[rows]
    first = np.searchsorted(end, begin, "right")
    count = np.maximum(np.searchsorted(start, stop, "left") - first, 0)
    pair = np.repeat(np.arange(len(rows)), count)
    before = np.cumsum(count) - count
    stretch = first[pair] + np.arange(len(pair)) - before[pair]
    time = np.minimum(stop[pair], end[stretch]) - np.maximum(begin[pair], start[stretch])
    some = time > 0
    return Shared(stretch[some], rows[pair[some]], time[some])


def joined(parts: Sequence[Shared]) -> Shared:
    """All of them."""
    none = np.zeros(0, np.int64)
    columns = [np.concatenate([none, *of]) for of in zip(*_columns(parts), strict=True)]
    return Shared(*(columns or [none] * 3))


def _columns(parts: Sequence[Shared]) -> list[tuple[Array, Array, Array]]:
    return [(part.stretch, part.row, part.time) for part in parts]


def mostly(trace: Trace, found: Shared, grain: str, count: int) -> tuple[pa.Array, pa.Array]:
    """What ran longest in each stretch, and for how long; null where nothing ran.

    Parameters
    ----------
    trace
        The trace.
    found
        Time of work in stretches.
    grain
        By what work is told apart, one of `grouping.GRAINS`. Where that is not known of any of it,
        it is null; of equal ones the first counts.
    count
        How many stretches there are.
    """
    groups = grouping.of(trace, found.row, grain)
    column = groups.keys[grain]
    known = arrow.known(column)[groups.code] if len(groups) else np.zeros(0, np.bool_)
    stretch, code = found.stretch[known], groups.code[known]
    first, pair = gather.distinct(stretch, code) if len(code) else (code, code)
    time = gather.sums(pair, found.time[known], len(first))
    order = np.lexsort((code[first], -time, stretch[first]))
    best = order[np.flatnonzero(np.diff(stretch[first][order], prepend=-1))]
    at = np.full(count, -1, np.int64)
    at[stretch[first[best]]] = best
    none = at < 0
    longest = np.append(time, [0])[at]
    place = np.append(code[first], [0])[at].astype(np.int64)
    if none.all():
        return pa.nulls(count, column.type), arrow.array(longest, mask=none)
    places = arrow.array(place, mask=none)
    return arrow.flat(column).take(places), arrow.array(longest, mask=none)


def pieces(found: Shared, count: int) -> Array:
    """How many pieces of work ran in each stretch."""
    return np.bincount(found.stretch, minlength=count).astype(np.int64)
