"""Clock snapshots of a Perfetto trace, as they stand in ``clock_snapshot.proto`` (v58)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files.wire import field_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_state_decode import States

    Bytes = npt.NDArray[np.uint8]

SEQUENCE_CLOCKS = 1 << 20
"""Clocks of sequence s are numbered from `SEQUENCE_CLOCKS` + 64 s on; others by their ids."""


class Snapshots(NamedTuple):
    """Clock snapshots: the time on a clock, one row a clock."""

    snapshot: Array
    clock: Array
    time: Array


@jit
def clock_key(clock: int, s: int) -> int:
    """Number of a clock: those from 64 to 127 are a sequence's own."""
    return SEQUENCE_CLOCKS + 64 * s + clock - 64 if 64 <= clock < 128 else clock


@jit
def take_snapshot(
    buffer: Bytes,
    i: int,
    stop: int,
    s: int,
    p: int,
    states: States,
    snapshots: Snapshots,
    row: int,
) -> int:
    """Take over the clocks of a snapshot from row `row` on; the row behind them."""
    while i < stop:
        number, wire, _, begin, i = field_at(buffer, i, stop)
        if number != 6 or wire != 2:
            continue
        j = begin
        while j < i:
            inner, kind, _, start, j = field_at(buffer, j, i)
            if j < 0:
                return row
            if inner != 1 or kind != 2:
                continue
            clock, time, incremental, multiplier, k = 0, 0, 0, 1, start
            while k < j:
                f, w, value, _, k = field_at(buffer, k, j)
                if k < 0:
                    return row
                if w != 0:
                    continue
                if f == 1:
                    clock = np.int64(min(value, np.uint64(1 << 30)))
                elif f == 2:
                    time = np.int64(value)
                elif f == 3:
                    incremental = np.int64(value != np.uint64(0))
                elif f == 4:
                    multiplier = max(np.int64(value), 1)
            if 64 <= clock < 128:
                states.multiplier[s, clock - 64] = multiplier
                states.incremental[s, clock - 64] = incremental
                states.last[s, clock - 64] = time * multiplier
            snapshots.snapshot[row] = p
            snapshots.clock[row] = clock_key(clock, s)
            snapshots.time[row] = time * multiplier
            row += 1
    return row
