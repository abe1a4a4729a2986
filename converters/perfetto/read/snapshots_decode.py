"""Clock snapshots of a Perfetto trace, as they stand in ``clock_snapshot.proto`` (v58).

Compiled, as part of the pass over all packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io.wire import next_message, read_varints
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


@jit_in_place
def clock_key(clock: int, sequence: int) -> int:
    """Return the number of a clock; those from 64 to 127 belong to a sequence."""
    return SEQUENCE_CLOCKS + 64 * sequence + clock - 64 if 64 <= clock < 128 else clock


@jit_in_place
def decode_snapshot(
    buffer: Bytes,
    i: int,
    stop: int,
    sequence: int,
    p: int,
    states: States,
    snapshots: Snapshots,
    row: int,
) -> int:
    """Write the clocks of a snapshot from row `row` on; return the row behind them.

    The clocks of the sequence are set, as later times on them may be differences.
    """
    values, given = states.values, states.given
    begin, end, i = next_message(buffer, i, stop, PACKET_CLOCK_SNAPSHOT)
    while i >= 0:
        start, behind, j = next_message(buffer, begin, end, SNAPSHOT_CLOCKS)
        while j >= 0:
            if not read_varints(buffer, start, behind, values, given):
                return row
            clock = np.int64(min(values[CLOCK_CLOCK_ID], np.uint64(1 << 30)))
            multiplier = max(np.int64(values[CLOCK_UNIT_MULTIPLIER_NS]), 1)
            time = np.int64(values[CLOCK_TIMESTAMP]) * multiplier
            if 64 <= clock < 128:
                states.multiplier[sequence, clock - 64] = multiplier
                states.incremental[sequence, clock - 64] = values[
                    CLOCK_IS_INCREMENTAL
                ] != np.uint64(0)
                states.last[sequence, clock - 64] = time
            snapshots.snapshot[row], snapshots.clock[row] = p, clock_key(clock, sequence)
            snapshots.time[row] = time
            row += 1
            start, behind, j = next_message(buffer, j, end, SNAPSHOT_CLOCKS)
        begin, end, i = next_message(buffer, i, stop, PACKET_CLOCK_SNAPSHOT)
    return row
