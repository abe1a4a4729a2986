"""Clock snapshots of a Perfetto trace, as they stand in ``clock_snapshot.proto`` (v58).

Compiled, as part of the pass over all packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit
from chopper_interop.io.wire import LENGTH, VARINT, read_field
from chopper_interop.schemas.perfetto import (
    CLOCK_CLOCK_ID,
    CLOCK_IS_INCREMENTAL,
    CLOCK_TIMESTAMP,
    CLOCK_UNIT_MULTIPLIER_NS,
    PACKET_CLOCK_SNAPSHOT,
    SNAPSHOT_CLOCKS,
)

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.read.state_decode import States

SEQUENCE_CLOCKS = 1 << 20
"""Clocks of sequence s are numbered from `SEQUENCE_CLOCKS` + 64 s on; others by their ids.

Chosen: above all ids of clocks that are in use.
"""


class Snapshots(NamedTuple):
    """Rows of clock snapshots: the number of the snapshot, a clock, and the time that it showed."""

    snapshot: Array
    clock: Array
    time: Array


@jit
def clock_key(clock: int, s: int) -> int:
    """Return the number of a clock; those from 64 to 127 belong to a sequence."""
    return SEQUENCE_CLOCKS + 64 * s + clock - 64 if 64 <= clock < 128 else clock


@jit
def decode_snapshot(
    buffer: Bytes,
    i: int,
    stop: int,
    s: int,
    p: int,
    states: States,
    snapshots: Snapshots,
    row: int,
) -> int:
    """Write the clocks of a snapshot from row `row` on; return the row behind them.

    The clocks of the sequence are set, as later times on them may be differences.
    """
    while i < stop:
        number, wire, _, begin, i = read_field(buffer, i, stop)
        if number != PACKET_CLOCK_SNAPSHOT or wire != LENGTH:
            continue
        j = begin
        while j < i:
            inner, kind, _, start, j = read_field(buffer, j, i)
            if j < 0:
                return row
            if inner != SNAPSHOT_CLOCKS or kind != LENGTH:
                continue
            clock, time, incremental, multiplier, k = 0, 0, 0, 1, start
            while k < j:
                f, w, value, _, k = read_field(buffer, k, j)
                if k < 0:
                    return row
                if w != VARINT:
                    continue
                if f == CLOCK_CLOCK_ID:
                    clock = np.int64(min(value, np.uint64(1 << 30)))
                elif f == CLOCK_TIMESTAMP:
                    time = np.int64(value)
                elif f == CLOCK_IS_INCREMENTAL:
                    incremental = np.int64(value != np.uint64(0))
                elif f == CLOCK_UNIT_MULTIPLIER_NS:
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
