"""Track events as columns: one pass over the packets, in numba.

What each sequence has said before is kept on the way, as Perfetto's trace processor does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.converters.perfetto_read_events_decode import Events, events_of, take_event
from chopper_interop.converters.perfetto_read_interned_decode import Texts, texts_of_at_most
from chopper_interop.converters.perfetto_read_lists_decode import Lists
from chopper_interop.converters.perfetto_read_snapshots_decode import Snapshots, take_snapshot
from chopper_interop.converters.perfetto_read_state_decode import (
    States,
    fresh,
    packet_at,
    set_thread,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_packets_decode import Packets

    Bytes = npt.NDArray[np.uint8]

NO_TIME, NO_STATE = 1, 2
"""Why a packet with an event was left out."""


def decode(packets: Packets) -> tuple[Events, Lists, Snapshots, Texts, Array]:
    """All events of a trace, its clock snapshots and interned texts.

    Returns
    -------
    events, lists, snapshots, texts, lost
        `lost` is as long as there are packets: why it was left out, 0 if it was not.
    """
    n = int(np.count_nonzero(packets.kind == 11))
    texts = texts_of_at_most(int(packets.most[0]))
    events = events_of(n)
    lists = Lists(
        np.zeros(packets.most[1], np.int32),
        np.zeros(packets.most[1], np.uint64),
        np.zeros(packets.most[2], np.int32),
        np.zeros(packets.most[2], np.uint64),
        np.zeros(packets.most[2], np.float64),
        np.zeros(2, np.int64),
    )
    rows = int(packets.length[packets.kind == 6].sum())
    snapshots = Snapshots(*(np.zeros(rows // 2 + 1, np.int64) for _ in range(3)))
    lost = np.zeros(len(packets.at), np.uint8)
    used = _decode(
        packets.buffer,
        packets.at,
        packets.length,
        packets.kind,
        packets.sequence,
        fresh(packets.sequences),
        texts,
        events,
        lists,
        snapshots,
        lost,
    )
    events = Events(*(column[: used[0]] for column in events))
    flows, counters = lists.total.tolist()
    lists = Lists(
        lists.flow_event[:flows],
        lists.flow[:flows],
        lists.counter_event[:counters],
        lists.counter_track[:counters],
        lists.counter_value[:counters],
        lists.total,
    )
    return events, lists, Snapshots(*(c[: used[1]] for c in snapshots)), texts, lost


@jit
def _decode(
    buffer: Bytes,
    at: Array,
    length: Array,
    kind: Array,
    sequence: Array,
    states: States,
    texts: Texts,
    events: Events,
    lists: Lists,
    snapshots: Snapshots,
    lost: Array,
) -> tuple[int, int]:
    row, clocks = 0, 0
    for p in range(len(at)):
        if kind[p] == -1:
            continue
        s, stop = sequence[p], at[p] + length[p]
        packet = packet_at(buffer, at[p], stop, s, states, texts)
        if kind[p] == 6:
            clocks = take_snapshot(buffer, at[p], stop, s, p, states, snapshots, clocks)
        elif kind[p] == 44:
            set_thread(buffer, at[p], stop, s, states)
        elif kind[p] == 11 and packet.event_end:
            if packet.flags & 2 and not states.valid[s]:
                lost[p] = NO_STATE
            elif take_event(buffer, packet, s, row, states, texts, events, lists):
                row += 1
            else:
                lost[p] = NO_TIME
    return row, clocks
