"""Decoding of all packets: events, extra values, clock snapshots and interned texts, in one pass.

Packets of a sequence refer to earlier ones, so the states of all sequences are kept on the way.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.perfetto.read.events_decode import (
    TrackEvents,
    decode_event,
    empty_events,
)
from chopper_interop.converters.perfetto.read.framing_decode import BROKEN_PACKET, Packets
from chopper_interop.converters.perfetto.read.interned_decode import InternedTexts, empty_texts
from chopper_interop.converters.perfetto.read.lists_decode import ListRows
from chopper_interop.converters.perfetto.read.snapshots_decode import Snapshots, decode_snapshot
from chopper_interop.converters.perfetto.read.state_decode import (
    States,
    decode_packet,
    decode_thread,
    initial_states,
)
from chopper_interop.schemas.perfetto import (
    PACKET_CLOCK_SNAPSHOT,
    PACKET_THREAD_DESCRIPTOR,
    PACKET_TRACK_EVENT,
)

NO_TIME, NO_STATE = 1, 2
"""Reasons why a packet with an event was left out."""


def decode(packets: Packets) -> tuple[TrackEvents, ListRows, Snapshots, InternedTexts, Array]:
    """Decode all events of a trace, its clock snapshots and interned texts.

    Returns
    -------
    events, lists, snapshots, texts, lost
        `lost` has an entry for each packet: why it was left out, 0 if it was not.
    """
    n = int(np.count_nonzero(packets.kind == PACKET_TRACK_EVENT))
    max_texts, max_flows, max_values = packets.upper_bounds.tolist()
    texts = empty_texts(max_texts)
    events = empty_events(n)
    lists = ListRows(
        flow_event=np.zeros(max_flows, np.int32),
        flow=np.zeros(max_flows, np.uint64),
        counter_event=np.zeros(max_values, np.int32),
        counter_track=np.zeros(max_values, np.uint64),
        counter_value=np.zeros(max_values, np.float64),
        total=np.zeros(2, np.int64),
    )
    # a clock takes two bytes of a snapshot at least, which bounds the number of rows
    rows = int(packets.length[packets.kind == PACKET_CLOCK_SNAPSHOT].sum())
    snapshots = Snapshots(*(np.zeros(rows // 2 + 1, np.int64) for _ in range(3)))
    lost = np.zeros(len(packets.at), np.uint8)
    used = _decode(
        packets.buffer,
        packets.at,
        packets.length,
        packets.kind,
        packets.sequence,
        initial_states(packets.sequences),
        texts,
        events,
        lists,
        snapshots,
        lost,
    )
    events = TrackEvents(*(column[: used[0]] for column in events))
    flows, counters = lists.total.tolist()
    lists = ListRows(
        flow_event=lists.flow_event[:flows],
        flow=lists.flow[:flows],
        counter_event=lists.counter_event[:counters],
        counter_track=lists.counter_track[:counters],
        counter_value=lists.counter_value[:counters],
        total=lists.total,
    )
    return events, lists, Snapshots(*(c[: used[1]] for c in snapshots)), texts, lost


@jit_in_place
def _decode(
    buffer: Bytes,
    at: Array,
    length: Array,
    kind: Array,
    sequence: Array,
    states: States,
    texts: InternedTexts,
    events: TrackEvents,
    lists: ListRows,
    snapshots: Snapshots,
    lost: Array,
) -> tuple[int, int]:
    """Decode all packets in the order of the file; return the numbers of events and clock rows."""
    row, clocks = 0, 0
    for p in range(len(at)):
        if kind[p] == BROKEN_PACKET:
            continue
        s, stop = sequence[p], at[p] + length[p]
        packet = decode_packet(buffer, at[p], stop, s, states, texts)
        if kind[p] == PACKET_CLOCK_SNAPSHOT:
            clocks = decode_snapshot(buffer, at[p], stop, s, p, states, snapshots, clocks)
        elif kind[p] == PACKET_THREAD_DESCRIPTOR:
            decode_thread(buffer, at[p], stop, s, states)
        elif kind[p] == PACKET_TRACK_EVENT and packet.event_end:
            if packet.flags & 2 and not states.valid[s]:
                lost[p] = NO_STATE
            elif decode_event(buffer, packet, s, row, states, texts, events, lists):
                row += 1
            else:
                lost[p] = NO_TIME
    return row, clocks
