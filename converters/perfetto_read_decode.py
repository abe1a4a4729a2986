"""Track events as columns: one pass over the packets, in numba.

Keeps what each sequence's state says (interned texts, defaults, incremental clocks) as it goes, as
Perfetto's trace processor does. Field numbers are those of ``track_event.proto``,
``interned_data.proto`` and ``clock_snapshot.proto`` (Perfetto v58), the old ones included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.compiled import jit
from chopper_interop.wire import field_at, varint_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.converters.perfetto_read_packets_decode import Packets

    Array = npt.NDArray[Any]
    Bytes = npt.NDArray[np.uint8]

OTHER, BEGIN, END, INSTANT, COUNTER, COMPLETE = range(6)
"""Types of events; the first is one of the old phases that is not known here."""
ON_TRACK, ON_THREAD, ON_ID, ON_NOTHING = range(4)
"""What `Events.track` is: a track's uuid, a thread of an old trace (process and thread id), an
asynchronous id of an old trace, or nothing."""
NO_TIME, NO_STATE = 1, 2
"""Why a packet with an event was left out."""

SEQUENCE_CLOCKS = 1 << 20
"""Clocks of sequence s are numbered from `SEQUENCE_CLOCKS` + 64 s on; others by their ids."""
DEFAULT_CLOCK = -1
_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _STRINGS = 1, 2, 3, 29


class Texts(NamedTuple):
    """Interned texts: an open hash table by state, field and number.

    Entry k is ``buffer[at[k]:at[k] + length[k]]``; `known` [0] says how many there are.
    """

    slots: Array
    state: Array
    field: Array
    iid: Array
    at: Array
    length: Array
    known: Array


class Events(NamedTuple):
    """Track events in the order of the file."""

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


class Lists(NamedTuple):
    """What events may have several of; `total` says how many flows and counters there are."""

    flow_event: Array
    flow: Array
    counter_event: Array
    counter_track: Array
    counter_value: Array
    total: Array


class Snapshots(NamedTuple):
    """Clock snapshots: the time on a clock, one row a clock."""

    snapshot: Array
    clock: Array
    time: Array


class _States(NamedTuple):
    """What sequences' states say, a row a sequence."""

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


class _Packet(NamedTuple):
    ts: int
    has_ts: bool
    clock: int
    event_at: int
    event_end: int
    flags: int


def decode(packets: Packets) -> tuple[Events, Lists, Snapshots, Texts, Array]:
    """All events of a trace, its clock snapshots and interned texts.

    Returns
    -------
    events, lists, snapshots, texts, lost
        `lost` is as long as there are packets: why it was left out, 0 if it was not.
    """
    n = int(np.count_nonzero(packets.kind == 11))
    texts = _texts(int(packets.most[0]))
    events = _events(n)
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
        _fresh(packets.sequences),
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


def _texts(most: int) -> Texts:
    size = 1 << max(4, (2 * most + 1).bit_length())
    return Texts(
        np.full(size, -1, np.int32),
        np.zeros(most, np.int64),
        np.zeros(most, np.int32),
        np.zeros(most, np.uint64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int32),
        np.zeros(1, np.int64),
    )


def _events(n: int) -> Events:
    types: dict[str, Any] = {
        "type": np.uint8,
        "clock": np.int32,
        "track": np.uint64,
        "track_kind": np.uint8,
        "name_len": np.int32,
        "category_len": np.int32,
        "categories": np.int32,
        "body_len": np.int32,
        "state": np.int32,
        "real": np.bool_,
    }
    return Events(*(np.zeros(n, types.get(name, np.int64)) for name in Events._fields))


def _fresh(n: int) -> _States:
    whole = [np.zeros(n, np.int64) for _ in range(10)]
    clocks = [np.zeros((n, 64), np.int64) for _ in range(3)]
    states = _States(*[*whole, *clocks, np.full(1, n, np.int64)])
    states.number[:] = np.arange(n)
    states.clock[:] = DEFAULT_CLOCK
    states.multiplier[:] = 1
    return states._replace(track=np.zeros(n, np.uint64))


@jit
def _slot(texts: Texts, state: int, field: int, iid: np.uint64) -> int:
    """The slot of an interned text, or the free one where it would go."""
    mask = np.uint64(len(texts.slots) - 1)
    value = iid * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(state * 64 + field)
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    slot = (value ^ (value >> np.uint64(32))) & mask
    while texts.slots[slot] >= 0:
        k = texts.slots[slot]
        if texts.iid[k] == iid and texts.state[k] == state and texts.field[k] == field:
            break
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@jit
def text_of(texts: Texts, state: int, field: int, iid: np.uint64) -> int:
    """Entry of an interned text; -1 if it was not told."""
    return texts.slots[_slot(texts, state, field, iid)]


@jit
def _intern(buffer: Bytes, i: int, stop: int, state: int, texts: Texts) -> None:
    """Take over the texts of an InternedData."""
    while i < stop:
        field, wire, _, begin, i = field_at(buffer, i, stop)
        if i < 0:
            return
        if wire != 2 or field not in (_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _STRINGS):
            continue
        iid, at, end, j = np.uint64(0), 0, 0, begin
        while j < i:
            number, inner, value, start, j = field_at(buffer, j, i)
            if j < 0:
                break
            if number == 1 and inner == 0:
                iid = value
            elif number == 2 and inner == 2:
                at, end = start, j
        if j < 0 or iid == np.uint64(0):
            continue
        slot = _slot(texts, state, field, iid)
        k = texts.slots[slot]
        if k < 0:
            k = texts.known[0]
            texts.known[0] += 1
            texts.slots[slot] = k
        texts.state[k], texts.field[k], texts.iid[k] = state, field, iid
        texts.at[k], texts.length[k] = at, end - at


@jit
def _decode(
    buffer: Bytes,
    at: Array,
    length: Array,
    kind: Array,
    sequence: Array,
    states: _States,
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
        packet = _packet(buffer, at[p], stop, s, states, texts)
        if kind[p] == 6:
            clocks = _snapshot(buffer, at[p], stop, s, p, states, snapshots, clocks)
        elif kind[p] == 44:
            _thread(buffer, at[p], stop, s, states)
        elif kind[p] == 11 and packet.event_end:
            if packet.flags & 2 and not states.valid[s]:
                lost[p] = NO_STATE
            elif _event(buffer, packet, s, row, states, texts, events, lists):
                row += 1
            else:
                lost[p] = NO_TIME
    return row, clocks


@jit
def _packet(buffer: Bytes, at: int, stop: int, s: int, states: _States, texts: Texts) -> _Packet:
    """What a packet says of itself; what it says of its sequence goes into the state."""
    ts, has_ts, clock, flags, event_at, event_end = 0, False, -2, 0, 0, 0
    interned, defaults, cleared, dropped = False, False, False, False
    i = at
    while i < stop:
        number, wire, value, begin, i = field_at(buffer, i, stop)
        if number == 8 and wire == 0:
            ts, has_ts = np.int64(value), True
        elif number == 58 and wire == 0:
            clock = np.int64(min(value, np.uint64(1 << 30)))
        elif number == 13 and wire == 0:
            flags = np.int64(value)
            cleared = cleared or bool(flags & 1)
        elif number == 41:
            cleared = cleared or value != np.uint64(0)
        elif number == 42:
            dropped = value != np.uint64(0)
        elif number == 12:
            interned = True
        elif number == 59:
            defaults = True
        elif number == 11 and wire == 2:
            event_at, event_end = begin, i
    if cleared:
        states.number[s] = states.states[0]
        states.states[0] += 1
        states.valid[s], states.clock[s], states.has_track[s] = 1, DEFAULT_CLOCK, 0
        states.defaults_len[s] = 0
    elif dropped:
        states.valid[s] = 0
    if interned or defaults:
        i = at
        while i < stop:
            number, wire, _, begin, i = field_at(buffer, i, stop)
            if number == 12 and wire == 2:
                _intern(buffer, begin, i, states.number[s], texts)
            elif number == 59 and wire == 2:
                _defaults(buffer, begin, i, s, states)
    if clock == -2:
        clock = states.clock[s]
    return _Packet(ts, has_ts, clock, event_at, event_end, flags)


@jit
def _defaults(buffer: Bytes, i: int, stop: int, s: int, states: _States) -> None:
    states.clock[s], states.has_track[s], states.defaults_len[s] = DEFAULT_CLOCK, 0, 0
    while i < stop:
        number, wire, value, begin, i = field_at(buffer, i, stop)
        if i < 0:
            return
        if number == 58 and wire == 0:
            states.clock[s] = np.int64(min(value, np.uint64(1 << 30)))
        elif number == 11 and wire == 2:
            states.defaults_at[s], states.defaults_len[s] = begin, i - begin
            j = begin
            while j < i:
                inner, kind, uuid, _, j = field_at(buffer, j, i)
                if j < 0:
                    break
                if inner == 11 and kind == 0:
                    states.track[s], states.has_track[s] = uuid, 1


@jit
def _thread(buffer: Bytes, i: int, stop: int, s: int, states: _States) -> None:
    """The thread of an old sequence, and the time from which it counts."""
    while i < stop:
        number, wire, _, begin, i = field_at(buffer, i, stop)
        if number != 44 or wire != 2:
            continue
        j = begin
        while j < i:
            inner, kind, value, _, j = field_at(buffer, j, i)
            if j < 0:
                return
            if kind == 0 and inner == 1:
                states.pid[s] = np.int64(np.int32(value))
            elif kind == 0 and inner == 2:
                states.tid[s] = np.int64(np.int32(value))
            elif kind == 0 and inner == 6:
                states.micros[s] = np.int64(value)


@jit
def _clock_key(clock: int, s: int) -> int:
    """Number of a clock: those from 64 to 127 are a sequence's own."""
    return SEQUENCE_CLOCKS + 64 * s + clock - 64 if 64 <= clock < 128 else clock


@jit
def _snapshot(
    buffer: Bytes,
    i: int,
    stop: int,
    s: int,
    p: int,
    states: _States,
    snapshots: Snapshots,
    row: int,
) -> int:
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
            snapshots.clock[row] = _clock_key(clock, s)
            snapshots.time[row] = time * multiplier
            row += 1
    return row


@jit
def _event(
    buffer: Bytes,
    packet: _Packet,
    s: int,
    row: int,
    states: _States,
    texts: Texts,
    events: Events,
    lists: Lists,
) -> bool:
    """Write one event into the columns; whether it has a time."""
    state = states.number[s]
    ts, has_ts, clock = packet.ts, packet.has_ts, packet.clock
    kind, has_track, track = 0, False, np.uint64(0)
    name_at, name_end, category_at, category_end, categories = 0, -1, 0, 0, 0
    legacy_at, legacy_end, extra_at, typed = 0, 0, lists.total[1], False
    events.number[row], events.real[row], events.dur[row] = 0, False, 0
    i, stop = packet.event_at, packet.event_end
    while i < stop:
        number, wire, value, begin, i = field_at(buffer, i, stop)
        if number == 9 and wire == 0:
            kind, typed = np.int64(min(value, np.uint64(99))), True
        elif number == 11 and wire == 0:
            track, has_track = value, True
        elif number == 10 and wire == 0:
            k = text_of(texts, state, _NAMES, value)
            if k >= 0:
                name_at, name_end = texts.at[k], texts.at[k] + texts.length[k]
        elif number == 23 and wire == 2:
            name_at, name_end = begin, i
        elif number == 3 and wire in (0, 2):
            while begin < i:
                iid, begin = varint_at(buffer, begin, i)
                if begin < 0:
                    break
                categories += 1
                k = text_of(texts, state, _CATEGORIES, iid)
                if k >= 0 and category_end == 0:
                    category_at, category_end = texts.at[k], texts.at[k] + texts.length[k]
        elif number == 22 and wire == 2:
            categories += 1
            if category_end == 0:
                category_at, category_end = begin, i
        elif number == 30 and wire == 0:
            events.number[row] = np.int64(value)
        elif number == 44 and wire == 1:
            events.number[row], events.real[row] = np.int64(value), True
        elif number == 1 and wire == 0 and not has_ts:
            states.micros[s] += np.int64(value)
            ts, has_ts, clock = states.micros[s] * 1000, True, DEFAULT_CLOCK
        elif number == 16 and wire == 0 and not has_ts:
            ts, has_ts, clock = np.int64(value) * 1000, True, DEFAULT_CLOCK
        elif number == 6 and wire == 2:
            legacy_at, legacy_end = begin, i
        elif number in (36, 42, 47, 48):
            _flows(buffer, begin, i, wire, number, value, row, lists)
        elif number in (12, 46):
            _further(buffer, begin, i, wire, number, value, row, lists)
    if not has_ts:
        return False
    if 64 <= clock < 128:
        ts *= states.multiplier[s, clock - 64]
        if states.incremental[s, clock - 64]:
            states.last[s, clock - 64] += ts
            ts = states.last[s, clock - 64]
    track_kind = ON_TRACK if has_track else ON_NOTHING
    thread = states.pid[s] << 32 | (states.tid[s] & 0xFFFFFFFF)
    if not has_track and states.has_track[s]:
        track, track_kind = states.track[s], ON_TRACK
    elif not has_track and states.pid[s]:
        track_kind = ON_THREAD
    if lists.total[1] > extra_at:
        _further_tracks(buffer, packet.event_at, stop, s, states, lists, extra_at)
    if legacy_end and not typed:
        kind, track, track_kind, thread = _legacy(
            buffer, legacy_at, legacy_end, row, track, track_kind, thread, events
        )
        if name_end < 0:
            j = legacy_at
            while j < legacy_end:
                number, wire, value, begin, j = field_at(buffer, j, legacy_end)
                if j < 0:
                    break
                if number == 1 and wire == 0:
                    k = text_of(texts, state, _NAMES, value)
                    if k >= 0:
                        name_at, name_end = texts.at[k], texts.at[k] + texts.length[k]
    events.type[row] = kind if kind <= COMPLETE else OTHER
    events.ts[row], events.clock[row] = ts, _clock_key(clock, s)
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
def _flows(
    buffer: Bytes, i: int, stop: int, wire: int, number: int, value: np.uint64, row: int,
    lists: Lists,
) -> None:  # fmt: skip
    """One flow id, or a packed list of them."""
    k = lists.total[0]
    if wire != 2:
        lists.flow_event[k], lists.flow[k] = row, value
        lists.total[0] = k + 1
        return
    while i < stop:
        if number in (47, 48):
            if i + 8 > stop:
                break
            value = np.uint64(0)
            for b in range(8):
                value |= np.uint64(buffer[i + b]) << np.uint64(8 * b)
            i += 8
        else:
            value, i = varint_at(buffer, i, stop)
            if i < 0:
                break
        lists.flow_event[k], lists.flow[k] = row, value
        k += 1
    lists.total[0] = k


@jit
def real_of(bits: np.uint64) -> float:
    """The double that these bits are."""
    box = np.empty(1, np.uint64)
    box[0] = bits
    return box.view(np.float64)[0]


@jit
def _further(
    buffer: Bytes, i: int, stop: int, wire: int, number: int, value: np.uint64, row: int,
    lists: Lists,
) -> None:  # fmt: skip
    """A value of a further counter, or a packed list of them."""
    k = lists.total[1]
    if wire != 2:
        lists.counter_event[k] = row if number == 12 else ~row
        lists.counter_value[k] = real_of(value) if number == 46 else float(np.int64(value))
        lists.total[1] = k + 1
        return
    while i < stop:
        if number == 46:
            if i + 8 > stop:
                break
            value = np.uint64(0)
            for b in range(8):
                value |= np.uint64(buffer[i + b]) << np.uint64(8 * b)
            i += 8
            lists.counter_value[k] = real_of(value)
        else:
            value, i = varint_at(buffer, i, stop)
            if i < 0:
                break
            lists.counter_value[k] = float(np.int64(value))
        lists.counter_event[k] = row if number == 12 else ~row
        k += 1
    lists.total[1] = k


@jit
def _further_tracks(
    buffer: Bytes, at: int, stop: int, s: int, states: _States, lists: Lists, first: int
) -> None:
    """The tracks of further counters: as the event says, else as its sequence's defaults do."""
    for whole in (True, False):
        field = 31 if whole else 45
        k = first
        for own in (True, False):
            i = at if own else states.defaults_at[s]
            end = stop if own else i + states.defaults_len[s]
            found = False
            while i < end:
                number, wire, value, begin, i = field_at(buffer, i, end)
                if i < 0:
                    break
                if number != field:
                    continue
                found = True
                while begin < i:
                    if wire == 0:
                        begin = i
                    else:
                        value, begin = varint_at(buffer, begin, i)
                        if begin < 0:
                            break
                    while k < lists.total[1] and (lists.counter_event[k] >= 0) != whole:
                        k += 1
                    if k < lists.total[1]:
                        lists.counter_track[k] = value
                        k += 1
            if found:
                break
    for k in range(first, lists.total[1]):
        if lists.counter_event[k] < 0:
            lists.counter_event[k] = ~lists.counter_event[k]


@jit
def _legacy(
    buffer: Bytes,
    i: int,
    stop: int,
    row: int,
    track: np.uint64,
    track_kind: int,
    thread: int,
    events: Events,
) -> tuple[int, np.uint64, int, int]:
    """Type and track of an event with one of the phases of Chrome's JSON."""
    phase, identity, has_id = 0, np.uint64(0), False
    pid, tid = thread >> 32, thread & 0xFFFFFFFF
    moved = False
    while i < stop:
        number, wire, value, _, i = field_at(buffer, i, stop)
        if i < 0:
            break
        if wire != 0:
            continue
        if number == 2:
            phase = np.int64(min(value, np.uint64(255)))
        elif number == 3:
            events.dur[row] = np.int64(value) * 1000
        elif number in (6, 10, 11):
            identity, has_id = value, True
        elif number == 18:
            pid, moved = np.int64(np.int32(value)), True
        elif number == 19:
            tid, moved = np.int64(np.int32(value)) & 0xFFFFFFFF, True
    thread = pid << 32 | tid
    if moved:
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
