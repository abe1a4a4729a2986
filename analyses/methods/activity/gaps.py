"""Gaps in which a GPU does nothing, and calls for the work behind them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.trace import Trace

NO_TIME = int(np.iinfo(np.int64).min)
"""In place of a time: there was no work before, or no call is known."""


def work_rows(trace: Trace, kinds: Iterable[Kind] = GPU_WORK) -> Array:
    """Rows of the GPU work of these kinds, within a rank in order of time."""
    return np.flatnonzero(is_any(trace.array("kind"), kinds))


def gpu_numbers(trace: Trace, rows: Array) -> tuple[Array, int]:
    """Number of the GPU of each of these nodes, and the count of GPUs; not all need be used."""
    lanes = trace.lanes.num_rows
    if not lanes:
        return np.zeros(len(rows), np.int64), 0
    keys = (trace.array(column, "lanes") for column in ("rank", "device"))
    first, code = gather.distinct(*keys)
    return code[trace.array("lane")[rows]], len(first)


def device_numbers(trace: Trace, rows: Array) -> Array:
    """Number of the device of each of these nodes, as its rank counts them."""
    lane = trace.array("lane")[rows]
    return trace.array("device", "lanes")[lane] if lane.size else lane


def call_times(trace: Trace, rows: Array) -> Array:
    """Start of the call that launched each piece of GPU work; `NO_TIME` where none is recorded."""
    call = trace.launch[rows]
    return np.where(call >= 0, trace.array("ts")[np.maximum(call, 0)], NO_TIME)


def is_first_of_call(trace: Trace, rows: Array) -> Array:
    """Mark the pieces of work that were the first of their call: launching a graph starts many."""
    call = trace.launch[rows]
    position = np.arange(len(rows))
    first = np.zeros(trace.nodes.num_rows + 1, np.int64)  # the last entry is that of no call
    first[call[::-1]] = position[::-1]  # written backwards, so that the first of a call remains
    return (call >= 0) & (first[call] == position)


def latest_end_before(group: Array, groups: int, end: Array) -> Array:
    """Latest end of the work of the same group that started before each piece; `NO_TIME` of none.

    Parameters
    ----------
    group
        Number of the group of each piece; pieces of a group come by their starts.
    groups
        Number of groups.
    end
        Times.
    """
    return _end_before(group, groups, end, True)


def previous_end(group: Array, groups: int, end: Array) -> Array:
    """End of the piece of the same group that started last before each; `NO_TIME` for the first.

    Parameters as of `latest_end_before`, for which it stands in where a tool defines gaps so.
    """
    return _end_before(group, groups, end, False)


@jit
def _end_before(group: Array, groups: int, end: Array, is_latest: bool) -> Array:  # noqa: FBT001 # compiled functions take no keywords
    """Latest or last end of each group before each piece.

    Compiled: a running maximum for each of many interleaved groups.
    """
    last = np.full(groups, NO_TIME, np.int64)
    before = np.empty(len(end), np.int64)
    for i in range(len(end)):
        before[i] = last[group[i]]
        last[group[i]] = max(last[group[i]], end[i]) if is_latest else end[i]
    return before
