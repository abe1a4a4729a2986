"""GPU work that ran during given intervals of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.arrays import Array, arrow, gather, intervals
from chopper_interop.trace import Trace


@dataclass(frozen=True)
class SharedTime:
    """Time that nodes share with intervals: one value for each pair of both that overlaps.

    Parameters
    ----------
    interval
        Number of the interval.
    row
        The node.
    time
        Length of the overlap, nanoseconds.
    """

    interval: Array
    row: Array
    time: Array

    def shifted(self, by: int) -> SharedTime:
        """Shared times with this added to the numbers of intervals."""
        return SharedTime(self.interval + by, self.row, self.time)


def shared_time(trace: Trace, rows: Array, start: Array, end: Array) -> SharedTime:
    """Time that nodes share with intervals that ascend and do not overlap.

    Parameters
    ----------
    rows
        Nodes, in any order.
    start, end
        The intervals, nanoseconds.
    """
    begin = trace.array("ts")[rows]
    stop = begin + trace.array("dur")[rows]
    # each node overlaps a row of neighbouring intervals: from the first that ends after its start to
    # the last that begins before its end.
    first = np.searchsorted(end, begin, "right")
    count = np.maximum(np.searchsorted(start, stop, "left") - first, 0)
    pair = np.repeat(np.arange(len(rows)), count)
    interval = gather.consecutive(first, count)
    time = np.minimum(stop[pair], end[interval]) - np.maximum(begin[pair], start[interval])
    overlaps = time > 0
    return SharedTime(interval[overlaps], rows[pair[overlaps]], time[overlaps])


def time_with_nodes(trace: Trace, rows: Array, rank: Array, start: Array, end: Array) -> Array:
    """Time of each interval of a rank in which any of some nodes of that rank ran.

    Parameters
    ----------
    rows
        Nodes, ascending.
    rank, start, end
        Rank of each interval, its start and its end, nanoseconds.
    """
    ranks, begin = trace.ranks, trace.array("ts")[rows]
    # nodes of a rank are in order of start
    number, count = np.searchsorted(ranks, trace.array("rank")[rows]), len(ranks)
    busy = intervals.group_unions(number, begin, begin + trace.array("dur")[rows], count)
    return intervals.covered_in_groups(np.searchsorted(ranks, rank), start, end, busy, count)


def concatenated(parts: Sequence[SharedTime]) -> SharedTime:
    """Join the pairs of several parts."""
    return SharedTime(
        gather.joined([part.interval for part in parts]),
        gather.joined([part.row for part in parts]),
        gather.joined([part.time for part in parts]),
    )


def longest_running(
    trace: Trace, shared: SharedTime, grain: str, count: int
) -> tuple[pa.Array, pa.Array]:
    """Group of work that ran longest in each interval, and for how long; null where nothing ran.

    Parameters
    ----------
    shared
        Time of work in intervals.
    grain
        By what work is grouped, one of `grouping.GRAINS`. Work of which that is not known does not
        count; of equal ones the first does.
    count
        Number of intervals.
    """
    groups = grouping.group_nodes(trace, shared.row, grain)
    column = groups.keys[grain]
    known = arrow.is_valid(column)[groups.code] if len(groups) else np.zeros(0, np.bool_)
    interval, code = shared.interval[known], groups.code[known]
    first, pair = gather.distinct(interval, code) if len(code) else (code, code)
    time = gather.group_sums(pair, shared.time[known], len(first))
    # by interval, the longest first: the first of each interval is the one
    order = np.lexsort((code[first], -time, interval[first]))
    best = order[np.flatnonzero(np.diff(interval[first][order], prepend=-1))]
    pair_of = np.full(count, -1, np.int64)  # -1 takes the value that is appended
    pair_of[interval[first[best]]] = best
    idle = pair_of < 0
    longest = np.append(time, [0])[pair_of]
    key_row = np.append(code[first], [0])[pair_of].astype(np.int64)
    if idle.all():
        return pa.nulls(count, column.type), arrow.array(longest, mask=idle)
    key_rows = arrow.array(key_row, mask=idle)
    return arrow.single_chunk(column).take(key_rows), arrow.array(longest, mask=idle)


def work_counts(shared: SharedTime, count: int) -> Array:
    """Number of nodes that ran in each interval."""
    return np.bincount(shared.interval, minlength=count).astype(np.int64)
