"""Track events of a Perfetto trace as columns, one row for each event.

Old fields are read as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit
from chopper_interop.converters.perfetto.read.interned_decode import (
    InternedTexts,
    find_text,
)
from chopper_interop.converters.perfetto.read.lists_decode import (
    EXTRA_VALUE_FIELDS,
    FLOW_FIELDS,
    ListRows,
    decode_counter_tracks,
    decode_counter_values,
    decode_flows,
)
from chopper_interop.converters.perfetto.read.snapshots_decode import clock_key
from chopper_interop.converters.perfetto.read.state_decode import DEFAULT_CLOCK, Packet, States
from chopper_interop.io.wire import FIXED64, LENGTH, VARINT, read_field, read_varint
from chopper_interop.schemas.perfetto import (
    EVENT_CATEGORIES,
    EVENT_CATEGORY_IIDS,
    EVENT_COUNTER_VALUE,
    EVENT_DEBUG_ANNOTATIONS,
    EVENT_DOUBLE_COUNTER_VALUE,
    EVENT_LEGACY_EVENT,
    EVENT_NAME,
    EVENT_NAME_IID,
    EVENT_TIMESTAMP_ABSOLUTE_US,
    EVENT_TIMESTAMP_DELTA_US,
    EVENT_TRACK_UUID,
    EVENT_TYPE,
    INTERNED_EVENT_CATEGORIES,
    INTERNED_EVENT_NAMES,
    LEGACY_DURATION_US,
    LEGACY_GLOBAL_ID,
    LEGACY_LOCAL_ID,
    LEGACY_NAME_IID,
    LEGACY_PHASE,
    LEGACY_PID_OVERRIDE,
    LEGACY_TID_OVERRIDE,
    LEGACY_UNSCOPED_ID,
)

OTHER, BEGIN, END, INSTANT, COUNTER, COMPLETE = range(6)
"""Types of events; `OTHER` is an old phase that is not known here."""
ON_TRACK, ON_THREAD, ON_ID, ON_NO_TRACK = range(4)
"""Meaning of `TrackEvents.track`: a track's uuid, a thread of an old trace (process and thread id), an
asynchronous id of an old trace, or none."""


class TrackEvents(NamedTuple):
    """Track events in the order of the file, one row each.

    `name_…`, `category_…` and `body_…` are byte ranges of the trace: name, first category (of
    `categories`), and the whole event. `state` is the incremental state that its numbers refer to;
    `number` a counter's value, the bits of a double if `real`; `dur` that of old complete events.
    """

    type: Array
    ts: Array
    clock: Array
    track: Array
    track_kind: Array
    thread: Array
    name_at: Array
    name_len: Array
    category_at: Array
    category_len: Array
    categories: Array
    body_at: Array
    body_len: Array
    state: Array
    number: Array
    real: Array
    dur: Array


def empty_events(n: int) -> TrackEvents:
    """Return columns for n events, all 0."""
    types: dict[str, Any] = {
        "type": np.uint8, "clock": np.int32, "track": np.uint64, "track_kind": np.uint8,
        "name_len": np.int32, "category_len": np.int32, "categories": np.int32,
        "body_len": np.int32, "state": np.int32, "real": np.bool_,
    }  # fmt: skip
    return TrackEvents(*(np.zeros(n, types.get(name, np.int64)) for name in TrackEvents._fields))


@jit
def decode_event(
    buffer: Bytes,
    packet: Packet,
    s: int,
    row: int,
    states: States,
    texts: InternedTexts,
    events: TrackEvents,
    lists: ListRows,
) -> bool:
    """Write one event into the columns; return False if it has no time.

    Texts are written as byte ranges of the trace, with length -1 where there is none.
    """
    state = states.number[s]
    ts, has_ts, clock = packet.ts, packet.has_ts, packet.clock
    kind, has_track, track = 0, False, np.uint64(0)
    name_at, name_end, category_at, category_end, categories = 0, -1, 0, 0, 0
    legacy_at, legacy_end, extra_at, typed = 0, 0, lists.total[1], False
    events.number[row], events.real[row], events.dur[row] = 0, False, 0
    i, stop = packet.event_at, packet.event_end
    while i < stop:
        number, wire, value, begin, i = read_field(buffer, i, stop)
        if number == EVENT_DEBUG_ANNOTATIONS:
            continue  # annotations are decoded with the arguments of slices
        if number == EVENT_TYPE and wire == VARINT:
            kind, typed = np.int64(min(value, np.uint64(99))), True
        elif number == EVENT_TRACK_UUID and wire == VARINT:
            track, has_track = value, True
        elif number == EVENT_NAME_IID and wire == VARINT:
            k = find_text(texts, state, INTERNED_EVENT_NAMES, value)
            if k >= 0:
                name_at, name_end = texts.at[k], texts.at[k] + texts.length[k]
        elif number == EVENT_NAME and wire == LENGTH:
            name_at, name_end = begin, i
        elif number == EVENT_CATEGORY_IIDS and wire in (VARINT, LENGTH):
            while begin < i:
                iid, begin = read_varint(buffer, begin, i)
                if begin < 0:
                    break
                categories += 1
                k = find_text(texts, state, INTERNED_EVENT_CATEGORIES, iid)
                if k >= 0 and category_end == 0:
                    category_at, category_end = texts.at[k], texts.at[k] + texts.length[k]
        elif number == EVENT_CATEGORIES and wire == LENGTH:
            categories += 1
            if category_end == 0:
                category_at, category_end = begin, i
        elif number == EVENT_COUNTER_VALUE and wire == VARINT:
            events.number[row] = np.int64(value)
        elif number == EVENT_DOUBLE_COUNTER_VALUE and wire == FIXED64:
            events.number[row], events.real[row] = np.int64(value), True
        elif number == EVENT_TIMESTAMP_DELTA_US and wire == VARINT and not has_ts:
            states.micros[s] += np.int64(value)
            ts, has_ts, clock = states.micros[s] * 1000, True, DEFAULT_CLOCK
        elif number == EVENT_TIMESTAMP_ABSOLUTE_US and wire == VARINT and not has_ts:
            ts, has_ts, clock = np.int64(value) * 1000, True, DEFAULT_CLOCK
        elif number == EVENT_LEGACY_EVENT and wire == LENGTH:
            legacy_at, legacy_end = begin, i
        elif number in FLOW_FIELDS:
            decode_flows(buffer, begin, i, wire, number, value, row, lists)
        elif number in EXTRA_VALUE_FIELDS:
            decode_counter_values(buffer, begin, i, wire, number, value, row, lists)
    if not has_ts:
        return False
    if 64 <= clock < 128:
        ts *= states.multiplier[s, clock - 64]
        if states.incremental[s, clock - 64]:
            states.last[s, clock - 64] += ts
            ts = states.last[s, clock - 64]
    track_kind = ON_TRACK if has_track else ON_NO_TRACK
    thread = states.pid[s] << 32 | (states.tid[s] & 0xFFFFFFFF)
    if not has_track and states.has_track[s]:
        track, track_kind = states.track[s], ON_TRACK
    elif not has_track and states.pid[s]:
        track_kind = ON_THREAD
    if lists.total[1] > extra_at:
        decode_counter_tracks(buffer, packet.event_at, stop, s, states, lists, extra_at)
    if legacy_end and not typed:
        kind, track, track_kind, thread = _legacy(
            buffer, legacy_at, legacy_end, row, track, track_kind, thread, events
        )
        if name_end < 0:
            j = legacy_at
            while j < legacy_end:
                number, wire, value, begin, j = read_field(buffer, j, legacy_end)
                if j < 0:
                    break
                if number == LEGACY_NAME_IID and wire == VARINT:
                    k = find_text(texts, state, INTERNED_EVENT_NAMES, value)
                    if k >= 0:
                        name_at, name_end = texts.at[k], texts.at[k] + texts.length[k]
    events.type[row] = kind if kind <= COMPLETE else OTHER
    events.ts[row], events.clock[row] = ts, clock_key(clock, s)
    events.track[row], events.track_kind[row] = track, track_kind
    events.thread[row] = thread
    events.name_at[row], events.name_len[row] = name_at, name_end - name_at
    if name_end < 0:
        events.name_len[row] = -1
    events.category_at[row], events.category_len[row] = category_at, category_end - category_at
    events.categories[row] = categories
    events.body_at[row], events.body_len[row] = packet.event_at, stop - packet.event_at
    events.state[row] = state
    return True


@jit
def _legacy(
    buffer: Bytes,
    i: int,
    stop: int,
    row: int,
    track: np.uint64,
    track_kind: int,
    thread: int,
    events: TrackEvents,
) -> tuple[int, np.uint64, int, int]:
    """Return type and track of an event with one of the phases of Chrome's JSON.

    An asynchronous event is on a track of its id and process, which are mixed into one number.
    """
    phase, identity, has_id = 0, np.uint64(0), False
    pid, tid = thread >> 32, thread & 0xFFFFFFFF
    has_thread = False
    while i < stop:
        number, wire, value, _, i = read_field(buffer, i, stop)
        if i < 0:
            break
        if wire != VARINT:
            continue
        if number == LEGACY_PHASE:
            phase = np.int64(min(value, np.uint64(255)))
        elif number == LEGACY_DURATION_US:
            events.dur[row] = np.int64(value) * 1000
        elif number in (LEGACY_UNSCOPED_ID, LEGACY_LOCAL_ID, LEGACY_GLOBAL_ID):
            identity, has_id = value, True
        elif number == LEGACY_PID_OVERRIDE:
            pid, has_thread = np.int64(np.int32(value)), True
        elif number == LEGACY_TID_OVERRIDE:
            tid, has_thread = np.int64(np.int32(value)) & 0xFFFFFFFF, True
    thread = pid << 32 | tid
    if has_thread:
        track_kind = ON_THREAD
    kind = OTHER
    if phase == 66:  # B
        kind = BEGIN
    elif phase == 69:  # E
        kind = END
    elif phase == 88:  # X
        kind = COMPLETE
    elif phase in (73, 105, 82, 110):  # I, i, R, n
        kind = INSTANT
    elif phase in (98, 83):  # b, S
        kind = BEGIN
    elif phase in (101, 70):  # e, F
        kind = END
    if phase in (98, 83, 101, 70, 110) and has_id:
        track = identity * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(pid)
        track_kind = ON_ID
    return kind, track, track_kind, thread
