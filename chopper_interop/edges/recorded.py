"""Waits that the profiler recorded itself: what waited, for which stream, since which record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.files import jsonscan
from chopper_interop.schemas.kinds import CALLS, Kind
from chopper_interop.schemas.names import (
    RECORDED_WAITS,
    WAIT_STREAM,
    WAITED_RECORD,
    WAITED_STREAM,
    Role,
)

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_NO_NUMBER = 2**32 - 1
"""CUPTI's "invalid", as an unsigned number."""


@dataclass(frozen=True)
class Recorded:
    """Recorded waits, one a row.

    Parameters
    ----------
    role
        What kind of wait, a number of `Role`.
    call
        The call that waited or made a stream wait; -1 if it is not recorded.
    rank, device
        Where.
    since
        Start of the call, or of the wait itself.
    stream
        Stream that waits, or that was waited for by the host; -1 if not known.
    waited
        Stream that the event was recorded on; -1 if not known.
    record
        The call that recorded it; -1 if not known.
    """

    role: Array
    call: Array
    rank: Array
    device: Array
    since: Array
    stream: Array
    waited: Array
    record: Array

    def rows(self, *roles: Role) -> Array:
        """Rows of these roles."""
        return np.flatnonzero(is_any(self.role, roles))


def recorded(trace: Trace, chosen: Array) -> Recorded:
    """The recorded waits among the chosen nodes of a trace."""
    of_name = np.array([int(RECORDED_WAITS.get(n, Role.NONE)) for n in trace.names()] or [0])
    kind, name = trace.array("kind"), trace.array("name")
    node = np.flatnonzero((kind == Kind.GPU_SYNC) & chosen)
    node = node[of_name[name[node]] != Role.NONE]
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    keys = (WAIT_STREAM, WAITED_STREAM, WAITED_RECORD)
    values, found = jsonscan.extract(buffer, at, length, keys)
    values = np.where(found & (values >= 0) & (values != _NO_NUMBER), values, -1)
    rank = trace.array("rank")[node].astype(np.int64)
    call = _called(trace, rank, trace.array("correlation")[node])
    ts = trace.array("ts")
    return Recorded(
        role=of_name[name[node]].astype(np.int8),
        call=call,
        rank=rank,
        device=trace.array("device", "lanes")[trace.array("lane")[node]].astype(np.int64),
        since=np.where(call >= 0, ts[call], ts[node]),
        stream=values[0],
        waited=values[1],
        record=_called(trace, rank, values[2]),
    )


def _called(trace: Trace, rank: Array, correlation: Array) -> Array:
    """The call of each correlation id within its rank; -1 if there is none."""
    result = np.full(len(rank), -1, np.int64)
    kind, ids = trace.array("kind"), trace.array("correlation")
    for r, rows in trace.rank_rows.items():
        mine = np.flatnonzero((rank == r) & (correlation > 0))
        if not mine.size:
            continue
        calls = is_any(kind[rows], CALLS) & (ids[rows] > 0)
        call = np.flatnonzero(calls) + rows.start
        call = call[np.argsort(ids[call], kind="stable")]
        if call.size:
            at = np.minimum(np.searchsorted(ids[call], correlation[mine]), len(call) - 1)
            result[mine] = np.where(ids[call[at]] == correlation[mine], call[at], -1)
    return result
