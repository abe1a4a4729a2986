"""State of the sequences of a Perfetto trace: defaults, thread, running clocks.

Packets of a sequence leave out what earlier ones set; the rules are those of Perfetto's trace
processor. Field numbers are those of ``trace_packet.proto``,
``trace_packet_defaults.proto`` and ``thread_descriptor.proto`` (Perfetto v58).

Compiled, as part of the pass over all packets, in their order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.perfetto.read.interned_decode import InternedTexts, intern_texts
from chopper_interop.io.wire import LENGTH, VARINT, next_message, read_field, read_varints
from chopper_interop.schemas.perfetto import (
    DEFAULTS_TIMESTAMP_CLOCK_ID,
    DEFAULTS_TRACK_EVENT_DEFAULTS,
    EVENT_TRACK_UUID,
    PACKET_INCREMENTAL_STATE_CLEARED,
    PACKET_INTERNED_DATA,
    PACKET_PREVIOUS_PACKET_DROPPED,
    PACKET_SEQUENCE_FLAGS,
    PACKET_THREAD_DESCRIPTOR,
    PACKET_TIMESTAMP,
    PACKET_TIMESTAMP_CLOCK_ID,
    PACKET_TRACE_PACKET_DEFAULTS,
    PACKET_TRACK_EVENT,
    THREAD_PID,
    THREAD_REFERENCE_TIMESTAMP_US,
    THREAD_TID,
)

DEFAULT_CLOCK = -1
"""The clock of packets that name none, where their sequence does not either."""
_FIELDS = 20
"""Fields of which the varints are kept while a message is read: those of old events end at 19."""


class States(NamedTuple):
    """States of the sequences, one row each.

    `number` is that of the incremental state; `valid` is 0 after packets were dropped. `clock`,
    `track` and `defaults_…` are the defaults of packets and events. `pid`, `tid` and `micros` are
    the thread and the time of old traces. `last`, `multiplier` and `incremental` have a column for
    each of the sequence's clocks. `states` [0] is the number of incremental states of all. `values` and
    `given` are room for the varints of one message.
    """

    number: Array
    valid: Array
    clock: Array
    track: Array
    has_track: Array
    defaults_at: Array
    defaults_len: Array
    pid: Array
    tid: Array
    micros: Array
    last: Array
    multiplier: Array
    incremental: Array
    states: Array
    values: Array
    given: Array


class Packet(NamedTuple):
    """Header of a packet, and the byte range of the event in it."""

    ts: int
    has_ts: bool
    clock: int
    event_at: int
    event_end: int
    flags: int


def initial_states(n: int) -> States:
    """Return the states of n sequences before their first packets."""
    columns = [np.zeros(n, np.int64) for _ in range(10)]
    clocks = [np.zeros((n, 64), np.int64) for _ in range(3)]
    room = (np.zeros(_FIELDS, np.uint64), np.zeros(_FIELDS, np.bool_))
    states = States(*[*columns, *clocks, np.full(1, n, np.int64), *room])
    states.number[:] = np.arange(n)
    states.clock[:] = DEFAULT_CLOCK
    states.multiplier[:] = 1
    return states._replace(track=np.zeros(n, np.uint64))


@jit_in_place
def decode_packet(
    buffer: Bytes, at: int, stop: int, sequence: int, states: States, texts: InternedTexts
) -> Packet:
    """Decode a packet's header, and write what it sets for its sequence into the state.

    Interned texts and defaults are read in a second pass: whether the state is cleared before
    them may be a later field of the packet.
    """
    ts, has_ts, clock, flags, event_at, event_end = 0, False, -2, 0, 0, 0
    is_shared, cleared, dropped = False, False, False
    i = at
    while i < stop:
        number, wire, value, begin, i = read_field(buffer, i, stop)
        if number == PACKET_TIMESTAMP and wire == VARINT:
            ts, has_ts = np.int64(value), True
        elif number == PACKET_TIMESTAMP_CLOCK_ID and wire == VARINT:
            clock = np.int64(min(value, np.uint64(1 << 30)))
        elif number == PACKET_SEQUENCE_FLAGS and wire == VARINT:
            flags = np.int64(value)
            cleared = cleared or bool(flags & 1)
        elif number == PACKET_INCREMENTAL_STATE_CLEARED:
            cleared = cleared or value != np.uint64(0)
        elif number == PACKET_PREVIOUS_PACKET_DROPPED:
            dropped = value != np.uint64(0)
        elif number in (PACKET_INTERNED_DATA, PACKET_TRACE_PACKET_DEFAULTS):
            is_shared = True
        elif number == PACKET_TRACK_EVENT and wire == LENGTH:
            event_at, event_end = begin, i
    if cleared:
        _clear(states, sequence)
    elif dropped:
        states.valid[sequence] = 0
    if is_shared:
        _decode_shared(buffer, at, stop, sequence, states, texts)
    if clock == -2:
        clock = states.clock[sequence]
    return Packet(ts, has_ts, clock, event_at, event_end, flags)


@jit_in_place
def _clear(states: States, sequence: int) -> None:
    """Begin a new incremental state of a sequence."""
    states.number[sequence] = states.states[0]
    states.states[0] += 1
    states.valid[sequence], states.clock[sequence], states.has_track[sequence] = 1, DEFAULT_CLOCK, 0
    states.defaults_len[sequence] = 0


@jit_in_place
def _decode_shared(
    buffer: Bytes, i: int, stop: int, sequence: int, states: States, texts: InternedTexts
) -> None:
    """Read what a packet sets for those after it: interned texts and defaults."""
    while i < stop:
        number, wire, _, begin, i = read_field(buffer, i, stop)
        if number == PACKET_INTERNED_DATA and wire == LENGTH:
            intern_texts(buffer, begin, i, states.number[sequence], texts)
        elif number == PACKET_TRACE_PACKET_DEFAULTS and wire == LENGTH:
            _defaults(buffer, begin, i, sequence, states)


@jit_in_place
def _defaults(buffer: Bytes, i: int, stop: int, sequence: int, states: States) -> None:
    """Replace a sequence's defaults: its clock, track and extra counter tracks."""
    states.clock[sequence], states.has_track[sequence], states.defaults_len[sequence] = (
        DEFAULT_CLOCK,
        0,
        0,
    )
    while i < stop:
        number, wire, value, begin, i = read_field(buffer, i, stop)
        if i < 0:
            return
        if number == DEFAULTS_TIMESTAMP_CLOCK_ID and wire == VARINT:
            states.clock[sequence] = np.int64(min(value, np.uint64(1 << 30)))
        elif number == DEFAULTS_TRACK_EVENT_DEFAULTS and wire == LENGTH:
            states.defaults_at[sequence], states.defaults_len[sequence] = begin, i - begin
            j = begin
            while j < i:
                inner, kind, uuid, _, j = read_field(buffer, j, i)
                if j < 0:
                    break
                if inner == EVENT_TRACK_UUID and kind == VARINT:
                    states.track[sequence], states.has_track[sequence] = uuid, 1


@jit_in_place
def decode_thread(buffer: Bytes, i: int, stop: int, sequence: int, states: States) -> None:
    """Set the thread of a sequence of old traces, and the time from which its events count."""
    values, given = states.values, states.given
    begin, end, i = next_message(buffer, i, stop, PACKET_THREAD_DESCRIPTOR)
    while i >= 0:
        read_varints(buffer, begin, end, values, given)
        if given[THREAD_PID]:
            states.pid[sequence] = np.int64(np.int32(values[THREAD_PID]))
        if given[THREAD_TID]:
            states.tid[sequence] = np.int64(np.int32(values[THREAD_TID]))
        if given[THREAD_REFERENCE_TIMESTAMP_US]:
            states.micros[sequence] = np.int64(values[THREAD_REFERENCE_TIMESTAMP_US])
        begin, end, i = next_message(buffer, i, stop, PACKET_THREAD_DESCRIPTOR)
