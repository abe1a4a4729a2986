"""Track events of a Perfetto trace as columns, one row for each event.

Old fields are read as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.perfetto.read.interned_decode import InternedTexts, find_range
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
from chopper_interop.io.wire import FIXED64, LENGTH, VARINT, next_number, read_field, read_varints
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


_MICROS_FIELDS = (EVENT_TIMESTAMP_DELTA_US, EVENT_TIMESTAMP_ABSOLUTE_US)
"""Times of events of old traces."""
_TYPE_OF_PHASE = np.full(256, OTHER)
for _phases, _type in ((b"BbS", BEGIN), (b"EeF", END), (b"IiRn", INSTANT), (b"X", COMPLETE)):
    _TYPE_OF_PHASE[list(_phases)] = _type
_IS_ASYNCHRONOUS = np.isin(np.arange(256), list(b"bSneF"))
"""Of the phases of Chrome's JSON, by their letters."""


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


@jit_in_place
def decode_event(
    buffer: Bytes,
    packet: Packet,
    sequence: int,
    row: int,
    states: States,
    texts: InternedTexts,
    events: TrackEvents,
    lists: ListRows,
) -> bool:
    """Write one event into the columns; return False if it has no time.

    Texts are written as byte ranges of the trace, with length -1 where there is none.
    """
    state = states.number[sequence]
    ts, has_ts, clock = packet.ts, packet.has_ts, packet.clock
    kind, name_at, name_end = 0, 0, -1
    has_track = states.has_track[sequence] == 1
    track = states.track[sequence] if has_track else np.uint64(0)
    legacy_at, legacy_end, extra_at, typed = 0, 0, lists.total[1], False
    events.number[row], events.real[row], events.dur[row] = 0, False, 0
    events.category_at[row], events.category_len[row], events.categories[row] = 0, 0, 0
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
            name_at, name_end = _name(texts, state, value, name_at, name_end)
        elif number == EVENT_NAME and wire == LENGTH:
            name_at, name_end = begin, i
        elif number == EVENT_CATEGORY_IIDS:
            _decode_categories(buffer, begin, i, wire, value, state, texts, row, events)
        elif number == EVENT_CATEGORIES and wire == LENGTH:
            _add_category(begin, i, row, events)
        elif number == EVENT_COUNTER_VALUE and wire == VARINT:
            events.number[row] = np.int64(value)
        elif number == EVENT_DOUBLE_COUNTER_VALUE and wire == FIXED64:
            events.number[row], events.real[row] = np.int64(value), True
        elif number in _MICROS_FIELDS and wire == VARINT and not has_ts:
            ts, has_ts, clock = _micros(number, value, sequence, states) * 1000, True, DEFAULT_CLOCK
        elif number == EVENT_LEGACY_EVENT and wire == LENGTH:
            legacy_at, legacy_end = begin, i
        elif number in FLOW_FIELDS:
            decode_flows(buffer, begin, i, wire, number, value, row, lists)
        elif number in EXTRA_VALUE_FIELDS:
            decode_counter_values(buffer, begin, i, wire, number, value, row, lists)
    if not has_ts:
        return False
    events.ts[row], events.clock[row] = (
        _on_clock(ts, clock, sequence, states),
        clock_key(clock, sequence),
    )
    events.track[row] = track
    events.track_kind[row] = (
        ON_TRACK if has_track else ON_THREAD if states.pid[sequence] else ON_NO_TRACK
    )
    events.thread[row] = states.pid[sequence] << 32 | (states.tid[sequence] & 0xFFFFFFFF)
    if lists.total[1] > extra_at:
        decode_counter_tracks(buffer, packet.event_at, stop, sequence, states, lists, extra_at)
    if legacy_end and not typed:
        kind, iid = _decode_legacy(buffer, legacy_at, legacy_end, row, states, events)
        if name_end < 0:
            name_at, name_end = _name(texts, state, iid, name_at, name_end)
    events.type[row] = kind if kind <= COMPLETE else OTHER
    events.name_at[row], events.name_len[row] = name_at, max(name_end - name_at, -1)
    events.body_at[row], events.body_len[row] = packet.event_at, stop - packet.event_at
    events.state[row] = state
    return True


@jit_in_place
def _name(texts: InternedTexts, state: int, iid: np.uint64, at: int, end: int) -> tuple[int, int]:
    """Find the byte range of an interned name; the one at hand if there is none."""
    first, behind = find_range(texts, state, INTERNED_EVENT_NAMES, iid)
    return (first, behind) if behind >= 0 else (at, end)


@jit_in_place
def _decode_categories(
    buffer: Bytes, i: int, stop: int, wire: int, iid: np.uint64, state: int, texts: InternedTexts, row: int,
    events: TrackEvents,
) -> None:  # fmt: skip
    """Add interned categories: one, or a packed list of them."""
    while i < stop and wire in (VARINT, LENGTH):
        iid, i = next_number(buffer, i, stop, wire, iid, False)
        if i < 0:
            break
        at, end = find_range(texts, state, INTERNED_EVENT_CATEGORIES, iid)
        _add_category(at, end, row, events)


@jit_in_place
def _add_category(at: int, end: int, row: int, events: TrackEvents) -> None:
    """Count a category, and keep the byte range of the first that has one."""
    events.categories[row] += 1
    if end >= 0 and events.category_at[row] == 0:
        events.category_at[row], events.category_len[row] = at, end - at


@jit_in_place
def _micros(number: int, value: np.uint64, sequence: int, states: States) -> int:
    """Return the time of an event of old traces, which may be the difference to the one before."""
    if number == EVENT_TIMESTAMP_ABSOLUTE_US:
        return np.int64(value)
    states.micros[sequence] += np.int64(value)
    return states.micros[sequence]


@jit_in_place
def _on_clock(ts: int, clock: int, sequence: int, states: States) -> int:
    """Return a time in nanoseconds: clocks of a sequence have own units, and may show differences."""
    if not 64 <= clock < 128:
        return ts
    ts *= states.multiplier[sequence, clock - 64]
    if states.incremental[sequence, clock - 64]:
        states.last[sequence, clock - 64] += ts
        ts = states.last[sequence, clock - 64]
    return ts


@jit_in_place
def _decode_legacy(
    buffer: Bytes, i: int, stop: int, row: int, states: States, events: TrackEvents
) -> tuple[int, np.uint64]:
    """Return type and name of an event with a phase of Chrome's JSON; set its duration and track.

    An asynchronous event is on a track of its id and process, which are mixed into one number.
    """
    values, given = states.values, states.given
    read_varints(buffer, i, stop, values, given)
    events.dur[row] = np.int64(values[LEGACY_DURATION_US]) * 1000
    pid, tid = events.thread[row] >> 32, events.thread[row] & 0xFFFFFFFF
    if given[LEGACY_PID_OVERRIDE]:
        pid = np.int64(np.int32(values[LEGACY_PID_OVERRIDE]))
    if given[LEGACY_TID_OVERRIDE]:
        tid = np.int64(np.int32(values[LEGACY_TID_OVERRIDE])) & 0xFFFFFFFF
    if given[LEGACY_PID_OVERRIDE] or given[LEGACY_TID_OVERRIDE]:
        events.thread[row], events.track_kind[row] = pid << 32 | tid, ON_THREAD
    phase = np.int64(min(values[LEGACY_PHASE], np.uint64(255)))
    for identity in (LEGACY_UNSCOPED_ID, LEGACY_LOCAL_ID, LEGACY_GLOBAL_ID):
        if given[identity] and _IS_ASYNCHRONOUS[phase]:
            events.track[row] = values[identity] * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(pid)
            events.track_kind[row] = ON_ID
    return _TYPE_OF_PHASE[phase], values[LEGACY_NAME_IID]
