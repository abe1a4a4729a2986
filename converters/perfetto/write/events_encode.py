"""Track events in Perfetto's wire format, millions a second: numba loops over columns.

Field numbers are those of ``trace_packet.proto``, ``track_event.proto`` and
``debug_annotation.proto`` (Perfetto v58). All packets are of one sequence, whose state gives the
interned numbers their meaning. Compiled, as a trace has millions of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes, nest
from chopper_interop.arrays.compiled import jit, jit_in_place, jit_inlined
from chopper_interop.arrays.interning import TextTable, intern_text
from chopper_interop.arrays.reals import real_number
from chopper_interop.io import json_text, wire
from chopper_interop.io.wire import FIXED64, LENGTH, VARINT, tag, write_fixed64, write_varint
from chopper_interop.schemas import perfetto as fields

SEQUENCE = 1
"""The one packet sequence of a file."""

_PACKET = tag(1, LENGTH)
PACKET = bytes([_PACKET])
"""Beginning of a packet in a trace, ahead of its length."""
_TIMESTAMP = tag(8, VARINT)
_SEQUENCE_ID = tag(10, VARINT)
_TRACK_EVENT = tag(11, LENGTH)
_SEQUENCE_FLAGS = tag(13, VARINT)
NEEDS_STATE = 2
"""SEQ_NEEDS_INCREMENTAL_STATE of TracePacket's flags."""

_CATEGORY_IID = tag(3, VARINT)
_ANNOTATION = tag(4, LENGTH)
_TYPE = tag(9, VARINT)
_NAME_IID = tag(10, VARINT)
_TRACK_UUID = tag(11, VARINT)
_DOUBLE_COUNTER = tag(44, FIXED64)
_FLOW_ID = tag(47, FIXED64)
_CORRELATION = tag(fields.GPU_CALL_CORRELATION, LENGTH)
_SUBMITTED = tag(fields.CORRELATION_SUBMITTED, VARINT)
_WAITED = tag(fields.CORRELATION_WAITED, VARINT)
_BEGIN, _END, _COUNTER = 1, 2, 4
"""TYPE_SLICE_BEGIN, TYPE_SLICE_END and TYPE_COUNTER of TrackEvent."""

_A_NAME_IID = tag(1, VARINT)
_A_BOOL = tag(2, VARINT)
_A_INT = tag(4, VARINT)
_A_UINT = tag(3, VARINT)
_A_DOUBLE = tag(5, FIXED64)
_A_STRING = tag(6, LENGTH)
_A_JSON = tag(9, LENGTH)
_A_NAME = tag(10, LENGTH)
_A_DICT = tag(11, LENGTH)
_A_STRING_IID = tag(17, VARINT)

INTERNED_FROM = 24
"""Texts from this length on are written once and then referred to.

Chosen: above numbers and short words, which cost less where they stand than in a hash table.
"""
_PACKET_MAX = 96
"""Bytes of a packet without arguments and flows, at most: tags, lengths and five 64-bit varints."""
_COLUMN_MAX = 40
"""Bytes of a column's value, at most: tags, a length and two varints, rounded up."""
TRACK_ROOM = 2 * _PACKET_MAX
"""Bytes of a slice without data, at most: of its BEGIN and its END."""
_CLOSING_MAX = 512 * _PACKET_MAX
"""Bytes of the ENDs of all slices that can be open on a track."""
# Characters by their codes.
_COMMA, _MINUS, _POINT, _QUOTE = 44, 45, 46, 34
_TRUE, _FALSE = 116, 102
_IN_INTEGER = json_text.byte_table(b".eE", but=True)
_KEPT = json_text.byte_table(b" \t\n\v\f\r", but=True).astype(np.uint64)
"""Bytes to move on after a byte of JSON outside strings: 0 after blanks, which are written over."""


_SEARCHED = 256
"""Rows of a lane that are searched for room. Chosen: real lanes take a dozen. What overlaps more is no lane, and to
search all its rows would take the square of its events."""


class Slices(NamedTuple):
    """Slices of one lane, in order of start, longest first.

    `uuid` is the track of each and `row` its number among the lane's tracks; `name` and `category`
    are interned numbers.
    """

    ts: Array
    dur: Array
    uuid: Array
    row: Array
    name: Array
    category: Array


class Tracks(NamedTuple):
    """Tracks one behind the other: where the slices of each begin, and the number of all.

    Ahead of those of track t are the packets ``heads[head_first[t]:head_first[t + 1]]``.
    """

    first: Array
    heads: Bytes
    head_first: Array

    @classmethod
    def of_heads(cls, heads: list[bytes], first: Array) -> Tracks:
        """Tracks with the packets ahead of each."""
        buffer = np.frombuffer(bytearray(b"".join(heads) or b" "), np.uint8)
        return cls(first, buffer, np.cumsum([0, *map(len, heads)]))


class Arguments(NamedTuple):
    """Arguments of the slices, as JSON objects: byte ranges of a buffer."""

    buffer: Bytes
    at: Array
    length: Array

    def part(self, rows: slice) -> Arguments:
        """Return the arguments of some slices."""
        return Arguments(self.buffer, self.at[rows], self.length[rows])


class Columns(NamedTuple):
    """Annotation columns of the slices: integers, decimals and interned texts.

    Each `…_iid` has one interned name a column; values and `…_known` have a row a column.
    """

    iid: int
    ints: Array
    ints_known: Array
    ints_iid: Array
    floats: Array
    floats_known: Array
    floats_iid: Array
    texts: Array
    texts_iid: Array


class Lists(NamedTuple):
    """For each slice, its flow ids, its typed GPU events, and its counters, as interned names and values.

    Numbers of GPU events are positive of those that a slice submits, negative of those that it waits for.
    """

    flow_first: Array
    flow: Array
    gpu_first: Array
    gpu_event: Array
    counter_first: Array
    counter_iid: Array
    counter_value: Array
    counters_iid: int


class OpenSlices(NamedTuple):
    """Slices that have begun and not ended: ends of those on row r from ``ends[first[r]]`` on, outermost first."""

    ends: Array
    first: Array
    depth: Array

    @classmethod
    def of_rows(cls, count: int, max_depth: int) -> OpenSlices:
        """None on so many rows that `rows_without_overlap` returned: beyond the searched ones, slices do not nest."""
        levels = np.where(np.arange(count) < _SEARCHED, max_depth, 1)
        first = np.cumsum(levels) - levels
        return cls(np.zeros(levels.sum(), np.int64), first, np.zeros(count, np.int64))


def rows_without_overlap(ts: Array, dur: Array, max_depth: int) -> Array:
    """Return for each slice the row on which it neither cuts nor is cut by another.

    Slices that nest share a row up to `max_depth` levels; what overlaps otherwise goes to the first
    further row where it fits, beyond the searched rows to any that is free. Expects order of start, longest first::

        row 0  |---- a ----|  |-- d --|
        row 0    |- b -|
        row 1           |--- c ---|         cuts a
    """
    return rows_of_lanes(ts, dur, np.array([0, len(ts)]), np.array([max_depth]))


def rows_of_lanes(ts: Array, dur: Array, first: Array, max_depth: Array) -> Array:
    """Return the rows of `rows_without_overlap` on each of several lanes, at once.

    Parameters
    ----------
    ts, dur
        Slices, lane by lane.
    first
        First slice of each lane, and behind the last one their number.
    max_depth
        Levels of each lane.
    """
    row = _searched_rows(ts, dur, first, max_depth)
    rest = np.flatnonzero(row == _SEARCHED)
    for of_lane in np.split(rest, np.searchsorted(rest, first[1:-1])) if rest.size else ():
        end = ts[of_lane] + dur[of_lane]
        row[of_lane] += _free_rows(ts[of_lane], end, np.argsort(end, kind="stable"))
    return row


@jit_in_place
def _fill_free_rows(start: Array, end: Array, by_end: Array, free: Array, row: Array) -> None:
    """Set for each slice a row on which the one before has ended; `by_end` is their order of end, `free` is scratch."""
    n_free = used = ended = 0
    for i in range(len(start)):
        # one that begins and ends now may come later, and has no row yet
        while by_end[ended] < i and end[by_end[ended]] <= start[i]:
            free[n_free] = row[by_end[ended]]
            n_free += 1
            ended += 1
        if n_free:
            n_free -= 1
            row[i] = free[n_free]
        else:
            row[i] = used
            used += 1


def _free_rows(start: Array, end: Array, by_end: Array) -> Array:
    row, free = np.zeros(len(start), np.int32), np.zeros(len(start), np.int32)
    _fill_free_rows(start, end, by_end, free, row)
    return row


@jit
def _searched_rows(ts: Array, dur: Array, first: Array, max_depth: Array) -> Array:
    """Return the rows of `rows_of_lanes`; the number of rows that are searched for what fits on none.

    Each row has a stack of the ends of its open slices, so that one pass is enough.
    """
    row = np.zeros(len(ts), np.int32)
    ends = np.zeros(4, np.int64)
    depth = np.zeros(4, np.int64)
    for lane in range(len(max_depth)):
        most = max_depth[lane]
        for r in range(len(depth)):
            depth[r] = 0
        if len(ends) < len(depth) * most:
            ends = nest.enlarged(ends, len(depth) * most)
        for i in range(first[lane], first[lane + 1]):
            start, end, r = ts[i], ts[i] + dur[i], 0
            while r < _SEARCHED:
                if r == len(depth):
                    ends = nest.enlarged(ends, max(len(ends), 2 * r * most))
                    depth = nest.enlarged(depth, 2 * r)
                stack = r * most
                while depth[r] and ends[stack + depth[r] - 1] <= start:
                    depth[r] -= 1
                if depth[r] == 0 or (depth[r] < most and ends[stack + depth[r] - 1] >= end):
                    break
                r += 1
            row[i] = r
            if r < _SEARCHED:
                ends[r * most + depth[r]] = end
                depth[r] += 1
    return row


@jit_in_place
def encode_packet(out: Bytes, i: int, ts: int, payload: int, event: Bytes, size: int) -> int:
    """Write one packet around the event in event[:size], whose tag is `payload`."""
    body = 1 + wire.varint_size(ts) + 1 + 1 + 2  # timestamp, sequence, flags
    body += wire.varint_size(payload) + wire.varint_size(size) + size
    i = write_varint(out, write_varint(out, i, _PACKET), body)
    i = wire.write_number(out, i, _TIMESTAMP, ts)
    i = wire.write_number(out, i, _SEQUENCE_ID, SEQUENCE)
    i = wire.write_number(out, i, _SEQUENCE_FLAGS, NEEDS_STATE)
    return wire.write_text(out, i, payload, event, 0, size)


@jit_in_place
def _encode_end(out: Bytes, i: int, ts: int, uuid: int, event: Bytes) -> int:
    size = wire.write_number(event, 0, _TYPE, _END)
    size = wire.write_number(event, size, _TRACK_UUID, uuid)
    return encode_packet(out, i, ts, _TRACK_EVENT, event, size)


@jit_in_place
def bits(value: float) -> int:
    """Return the bits of a decimal, as `write_fixed64` takes them."""
    return np.float64(value).view(np.int64)


@jit_inlined
def _encode_value(out: Bytes, i: int, buffer: Bytes, at: int, stop: int, texts: TextTable) -> int:
    """Write the value of an annotation, of the type that the JSON text buffer[at:stop] has."""
    c = buffer[at]
    if c == _QUOTE:
        plain = json_text.skip_bytes(buffer, at + 1, stop, json_text.IN_STRING) == stop - 1
        if plain and stop - at - 2 >= INTERNED_FROM:
            iid = intern_text(buffer, at + 1, stop - 1, texts)
            if iid >= 0:
                return wire.write_number(out, i, _A_STRING_IID, iid)
        if plain:
            return wire.write_text(out, i, _A_STRING, buffer, at + 1, stop - 1)
    elif c in (_TRUE, _FALSE):
        return wire.write_number(out, i, _A_BOOL, 1 if c == _TRUE else 0)
    elif c == _MINUS or 48 <= c <= 57:
        return _encode_number(out, i, buffer, at, stop)
    elif c not in (91, 123):  # null, or NaN and the like: no JSON
        return wire.write_text(out, i, _A_STRING, buffer, at, stop)
    return _encode_json(out, i, buffer, at, stop)


@jit_in_place
def _encode_number(out: Bytes, i: int, buffer: Bytes, at: int, stop: int) -> int:
    """Write a number; as a text if no type of the format has it: the trace processor drops such JSON."""
    if json_text.skip_bytes(buffer, at, stop, _IN_INTEGER) == stop:
        value, _, ok = json_text.parse_decimal(buffer, at, stop, 0)
        if ok:
            large = buffer[at] != _MINUS and value < 0
            return wire.write_number(out, i, _A_UINT if large else _A_INT, value)
    else:
        real, ok = real_number(buffer, at, stop)
        if ok:
            return write_fixed64(out, write_varint(out, i, _A_DOUBLE), bits(real))
    return wire.write_text(out, i, _A_STRING, buffer, at, stop)


@jit_in_place
def _encode_json(out: Bytes, i: int, buffer: Bytes, at: int, stop: int) -> int:
    """Write an array or object of JSON without the blanks between its parts.

    Its length is known afterwards, so it is written as a padded varint. Indices are unsigned, as
    numba tests signed ones for being negative.
    """
    start = write_varint(out, i, _A_JSON)
    text = start + wire.varint_size(stop - at)
    one, j, k, end = np.uint64(1), np.uint64(text), np.uint64(at), np.uint64(stop)
    while k < end:
        c = buffer[k]
        out[j] = c
        j += _KEPT[c]
        k += one
        if c == _QUOTE:
            string = np.uint64(json_text.skip_string(buffer, np.int64(k) - 1, stop))
            while k < string:
                out[j] = buffer[k]
                j += one
                k += one
    wire.write_padded_varint(out, start, text - start, np.int64(j) - text)
    return np.int64(j)


@jit_inlined
def _encode_arguments(
    out: Bytes, i: int, buffer: Bytes, at: int, length: int, keys: TextTable, texts: TextTable
) -> int:
    """Write one annotation for each member of a JSON object; up to where it is broken."""
    stop = at + length
    j = json_text.skip_blank(buffer, at + 1, stop)
    while j < stop and buffer[j] == _QUOTE:
        key = j + 1
        j = json_text.skip_string(buffer, j, stop)
        if j < 0:
            return i
        key_stop = j - 1
        value = json_text.skip_blank(buffer, json_text.skip_blank(buffer, j, stop) + 1, stop)
        if value >= stop:
            return i
        number, j = json_text.plain_number(buffer, value, stop, 0)
        is_short = j > value and buffer[j - 1] != _POINT  # "1." is a decimal
        if not is_short:
            j = json_text.skip_value(buffer, value, stop)
        if j < 0:
            return i
        iid, end = intern_text(buffer, key, key_stop, keys), wire.begin_text(i, _ANNOTATION)
        if iid >= 0:
            end = wire.write_number(out, end, _A_NAME_IID, iid)
        else:
            end = wire.write_text(out, end, _A_NAME, buffer, key, key_stop)
        if is_short:
            end = wire.write_number(out, end, _A_INT, number)
        else:
            end = _encode_value(out, end, buffer, value, j, texts)
        i = wire.end_text(out, i, _ANNOTATION, end)
        j = json_text.skip_blank(buffer, j, stop)
        if j >= stop or buffer[j] != _COMMA:
            return i
        j = json_text.skip_blank(buffer, j + 1, stop)
    return i


@jit_inlined
def _encode_columns(out: Bytes, i: int, k: int, columns: Columns) -> int:
    """Write the annotation columns of slice k as one dictionary."""
    empty = wire.write_number(out, wire.begin_text(i, _ANNOTATION), _A_NAME_IID, columns.iid)
    size = empty
    for c in range(len(columns.ints_iid)):
        if columns.ints_known[c, k]:
            inner = 1 + wire.varint_size(columns.ints_iid[c])
            inner += 1 + wire.varint_size(columns.ints[c, k])
            size = write_varint(out, write_varint(out, size, _A_DICT), inner)
            size = wire.write_number(out, size, _A_NAME_IID, columns.ints_iid[c])
            size = wire.write_number(out, size, _A_INT, columns.ints[c, k])
    for c in range(len(columns.floats_iid)):
        if columns.floats_known[c, k]:
            inner = 1 + wire.varint_size(columns.floats_iid[c]) + 9
            size = write_varint(out, write_varint(out, size, _A_DICT), inner)
            size = wire.write_number(out, size, _A_NAME_IID, columns.floats_iid[c])
            size = write_fixed64(
                out, write_varint(out, size, _A_DOUBLE), bits(columns.floats[c, k])
            )
    for c in range(len(columns.texts_iid)):
        iid = columns.texts[c, k]
        if iid >= 0:
            inner = 1 + wire.varint_size(columns.texts_iid[c]) + 2 + wire.varint_size(iid)
            size = write_varint(out, write_varint(out, size, _A_DICT), inner)
            size = wire.write_number(out, size, _A_NAME_IID, columns.texts_iid[c])
            size = wire.write_number(out, size, _A_STRING_IID, iid)
    return i if size == empty else wire.end_text(out, i, _ANNOTATION, size)


@jit_inlined
def _encode_counters(out: Bytes, i: int, k: int, lists: Lists) -> int:
    """Write the hardware counters of slice k as one dictionary."""
    first, stop = lists.counter_first[k], lists.counter_first[k + 1]
    if first == stop:
        return i
    begin = wire.begin_text(i, _ANNOTATION)
    size = wire.write_number(out, begin, _A_NAME_IID, lists.counters_iid)
    for c in range(first, stop):
        inner = 1 + wire.varint_size(lists.counter_iid[c]) + 9
        size = write_varint(out, write_varint(out, size, _A_DICT), inner)
        size = wire.write_number(out, size, _A_NAME_IID, lists.counter_iid[c])
        size = write_fixed64(out, write_varint(out, size, _A_DOUBLE), bits(lists.counter_value[c]))
    return wire.end_text(out, i, _ANNOTATION, size)


@jit_inlined
def _encode_gpu_events(out: Bytes, i: int, k: int, lists: Lists) -> int:
    """Write the typed GPU events that slice k submits and waits for as one message."""
    empty = wire.begin_text(i, _CORRELATION)
    size = empty
    for g in range(lists.gpu_first[k], lists.gpu_first[k + 1]):
        number = lists.gpu_event[g]
        field = _SUBMITTED if number > 0 else _WAITED
        size = wire.write_number(out, size, field, abs(number))
    return i if size == empty else wire.end_text(out, i, _CORRELATION, size)


@jit_in_place
def room_for(k: int, arguments: Arguments, columns: Columns, lists: Lists) -> int:
    """Return how many bytes the BEGIN packet of slice k takes at most."""
    room = _PACKET_MAX + 4 * arguments.length[k] + 64
    fields = len(columns.ints_iid) + len(columns.floats_iid) + len(columns.texts_iid)
    room += _COLUMN_MAX * (fields + lists.counter_first[k + 1] - lists.counter_first[k] + 2)
    room += 12 * (lists.gpu_first[k + 1] - lists.gpu_first[k])
    return room + 12 * (lists.flow_first[k + 1] - lists.flow_first[k])


@jit_inlined
def _begin_event(event: Bytes, slices: Slices, k: int) -> int:
    """Write what the BEGIN of every slice has."""
    size = wire.write_number(event, 0, _TYPE, _BEGIN)
    size = wire.write_number(event, size, _TRACK_UUID, slices.uuid[k])
    size = wire.write_number(event, size, _NAME_IID, slices.name[k])
    return wire.write_number(event, size, _CATEGORY_IID, slices.category[k])


_LONG = 1 << 12
"""Bytes of arguments from which equal ones of several slices are encoded once."""


@jit_in_place
def encode_slices(
    out: Bytes,
    i: int,
    k: int,
    stop: int,
    slices: Slices,
    arguments: Arguments,
    columns: Columns,
    lists: Lists,
    keys: TextTable,
    texts: TextTable,
    opened: OpenSlices,
    scratch: Bytes,
) -> tuple[int, int]:
    """Write slices from k to `stop`, as BEGIN and END packets in nesting order, behind the `i` bytes written before.

    `opened` is kept from call to call; what is open after the last slice is left to `close_slices`.

    Returns
    -------
    bytes, next
        Number of bytes in all, and the first slice for which there was no room.
    """
    ends, depth = opened.ends, opened.depth
    half = len(scratch) // 2
    event, kept = scratch[:half], scratch[half:]
    kept_at, kept_length, kept_size = -1, 0, 0  # long arguments, which many may share
    while k < stop:
        room = room_for(k, arguments, columns, lists)
        if i + room + _CLOSING_MAX > len(out) or room > half:
            return i, k
        start, r = slices.ts[k], slices.row[k]
        stack = opened.first[r]
        while depth[r] and ends[stack + depth[r] - 1] <= start:
            depth[r] -= 1
            i = _encode_end(out, i, ends[stack + depth[r]], slices.uuid[k], event)
        ends[stack + depth[r]] = start + slices.dur[k]
        depth[r] += 1
        size = _begin_event(event, slices, k)
        size = _encode_columns(event, size, k, columns)
        size = _encode_counters(event, size, k, lists)
        if arguments.length[k]:
            at, length = arguments.at[k], arguments.length[k]
            begin = size
            if at == kept_at and length == kept_length:
                size = wire.copy_bytes(event, size, kept, 0, kept_size)
            else:
                size = _encode_arguments(event, size, arguments.buffer, at, length, keys, texts)
                if length > _LONG:
                    kept_size = wire.copy_bytes(kept, 0, event, begin, size)
                    kept_at, kept_length = at, length
        for f in range(lists.flow_first[k], lists.flow_first[k + 1]):
            size = write_fixed64(event, write_varint(event, size, _FLOW_ID), lists.flow[f])
        size = _encode_gpu_events(event, size, k, lists)
        i = encode_packet(out, i, start, _TRACK_EVENT, event, size)
        k += 1
    return i, k


@jit_in_place
def encode_tracks(
    out: Bytes, track: int, k: int, tracks: Tracks, slices: Slices, event: Bytes
) -> tuple[int, int, int]:
    """Write tracks of slices that do not overlap, from slice `k` of a track on; `event` is scratch.

    Compiled for many tracks at once, as of many ranks each has few slices.

    Returns
    -------
    bytes, track, next
        Number of bytes, and the track and the slice for which there was no room.
    """
    i, head, first = 0, tracks.head_first, tracks.first
    while track < len(first) - 1:
        is_new = k == first[track]
        room = TRACK_ROOM + (head[track + 1] - head[track] if is_new else 0)
        if i + room > len(out):
            break
        if is_new:
            i = wire.copy_bytes(out, i, tracks.heads, head[track], head[track + 1])
        if k < first[track + 1]:
            size = _begin_event(event, slices, k)
            i = encode_packet(out, i, slices.ts[k], _TRACK_EVENT, event, size)
            i = _encode_end(out, i, slices.ts[k] + slices.dur[k], slices.uuid[k], event)
            k += 1
        if k == first[track + 1]:
            track += 1
    return i, track, k


@jit
def close_slices(out: Bytes, opened: OpenSlices, uuid: Array) -> int:
    """Write END packets of slices that are still open, as many as there is room for; `uuid` is each row's track.

    Returns
    -------
    bytes
        Number of bytes written; 0 if no slice is open.
    """
    i = 0
    event = np.empty(_PACKET_MAX, np.uint8)
    for r in range(len(opened.depth)):
        while opened.depth[r]:
            if i + _PACKET_MAX > len(out):
                return i
            opened.depth[r] -= 1
            i = _encode_end(out, i, opened.ends[opened.first[r] + opened.depth[r]], uuid[r], event)
    return i


@jit
def encode_samples(out: Bytes, ts: Array, value: Array, uuid: int) -> int:
    """Write the samples of one counter track."""
    i = 0
    event = np.empty(_PACKET_MAX, np.uint8)
    for k in range(len(ts)):
        size = wire.write_number(event, 0, _TYPE, _COUNTER)
        size = wire.write_number(event, size, _TRACK_UUID, uuid)
        size = write_fixed64(event, write_varint(event, size, _DOUBLE_COUNTER), bits(value[k]))
        i = encode_packet(out, i, ts[k], _TRACK_EVENT, event, size)
    return i


SAMPLE_MAX = _PACKET_MAX
"""Bytes of one sample, at most."""
