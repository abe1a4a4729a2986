"""Waits that the profiler recorded: the waiting and the awaited stream, and the record call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays.members import is_any
from chopper_interop.io import json_events
from chopper_interop.schemas.kinds import CALLS, Kind
from chopper_interop.schemas.names import (
    RECORDED_WAITS,
    WAIT_STREAM,
    WAITED_RECORD,
    WAITED_STREAM,
    Role,
)

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

_NO_NUMBER = 2**32 - 1
"""CUPTI's "invalid" id, as an unsigned number."""


@dataclass(frozen=True)
class RecordedWaits:
    """Recorded waits, one per row.

    Parameters
    ----------
    role
        Kind of wait, a number of `Role`.
    call
        The call that waited or made a stream wait; -1 if it is not in the trace.
    rank, device
        Rank and device of the wait.
    since
        Start of the call, or of the wait itself if there is no call, ns.
    stream
        Stream that waits, or for which the host waited; -1 if unknown.
    event_stream
        Stream on which the awaited event was recorded; -1 if unknown.
    record_call
        The call that recorded the awaited event; -1 if unknown.
    """

    role: Array
    call: Array
    rank: Array
    device: Array
    since: Array
    stream: Array
    event_stream: Array
    record_call: Array

    def rows(self, *roles: Role) -> Array:
        """Rows with one of these roles."""
        return np.flatnonzero(is_any(self.role, roles))


def read_recorded_waits(trace: Trace, chosen: Array) -> RecordedWaits:
    """Read the waits that were recorded, among the nodes marked in `chosen`."""
    of_name = np.array([int(RECORDED_WAITS.get(n, Role.NONE)) for n in trace.names()] or [0])
    kind, name = trace.array("kind"), trace.array("name")
    node = np.flatnonzero((kind == Kind.GPU_SYNC) & chosen)
    node = node[of_name[name[node]] != Role.NONE]
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    keys = (WAIT_STREAM, WAITED_STREAM, WAITED_RECORD)
    values, present = json_events.extract_integers(buffer, at, length, keys)
    values = np.where(present & (values >= 0) & (values != _NO_NUMBER), values, -1)
    rank = trace.array("rank")[node].astype(np.int64)
    call = _calls_by_correlation(trace, rank, trace.array("correlation")[node])
    ts = trace.array("ts")
    return RecordedWaits(
        role=of_name[name[node]].astype(np.int8),
        call=call,
        rank=rank,
        device=trace.array("device", "lanes")[trace.array("lane")[node]].astype(np.int64),
        since=np.where(call >= 0, ts[call], ts[node]),
        stream=values[0],
        event_stream=values[1],
        record_call=_calls_by_correlation(trace, rank, values[2]),
    )


def _calls_by_correlation(trace: Trace, rank: Array, correlation: Array) -> Array:
    """The call with each correlation id, searched within its rank; -1 if there is none."""
    result = np.full(len(rank), -1, np.int64)
    kind, ids = trace.array("kind"), trace.array("correlation")
    for r, rank_rows in trace.rank_rows.items():
        requested = np.flatnonzero((rank == r) & (correlation > 0))
        if not requested.size:
            continue
        is_call = is_any(kind[rank_rows], CALLS) & (ids[rank_rows] > 0)
        call = np.flatnonzero(is_call) + rank_rows.start
        call = call[np.argsort(ids[call], kind="stable")]
        if call.size:
            # ids are sorted: each is looked up at the place where it would be inserted
            index = np.minimum(np.searchsorted(ids[call], correlation[requested]), len(call) - 1)
            match = ids[call[index]] == correlation[requested]
            result[requested] = np.where(match, call[index], -1)
    return result
