"""Track events in Perfetto's wire format, millions a second: numba loops over columns.

Field numbers are those of ``trace_packet.proto``, ``track_event.proto`` and
``debug_annotation.proto`` (Perfetto v58). All packets are of one sequence, whose state says what
the interned numbers mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.columns.interning import Interned, number_of
from chopper_interop.columns.reals import real_number
from chopper_interop.files import wire
from chopper_interop.files.jsontext import (
    IN_STRING,
    blank,
    decimal,
    skip,
    skip_string,
    skip_value,
    table,
)
from chopper_interop.files.wire import FIXED64, LENGTH, VARINT, fixed64, tag, varint

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

SEQUENCE = 1
"""The one packet sequence of a file."""

_PACKET = tag(1, LENGTH)
_TIMESTAMP = tag(8, VARINT)
_SEQUENCE_ID = tag(10, VARINT)
_TRACK_EVENT = tag(11, LENGTH)
_SEQUENCE_FLAGS = tag(13, VARINT)
_NEEDS_STATE = 2

_CATEGORY_IID = tag(3, VARINT)
_ANNOTATION = tag(4, LENGTH)
_TYPE = tag(9, VARINT)
_NAME_IID = tag(10, VARINT)
_TRACK_UUID = tag(11, VARINT)
_DOUBLE_COUNTER = tag(44, FIXED64)
_FLOW_ID = tag(47, FIXED64)
_BEGIN, _END, _COUNTER = 1, 2, 4

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
"""Texts from this length on are written once and then referred to."""
_PACKET_MAX = 96
"""Bytes that a packet takes at most beside its arguments and flows."""
_COLUMN_MAX = 40
_POPS_MAX = 512 * _PACKET_MAX
_COMMA, _MINUS, _QUOTE = 44, 45, 34
_TRUE, _FALSE, _NULL = 116, 102, 110
_IN_INTEGER = table(b".eE", but=True)
_SOLID = table(b" \t\n\v\f\r", but=True).astype(np.uint64)
"""How far a byte of JSON outside strings moves on: blanks are written over."""


class Slices(NamedTuple):
    """Slices of one lane, in order of start, longest first.

    `uuid` is the track of each, `name` and `category` are interned numbers.
    """

    ts: Array
    dur: Array
    uuid: Array
    row: Array
    name: Array
    category: Array


class Arguments(NamedTuple):
    """Arguments of the slices, as JSON objects: byte ranges of a buffer."""

    buffer: Bytes
    at: Array
    length: Array


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
    """For each slice, its flow ids; and its counters, as interned names and values."""

    flow_first: Array
    flow: Array
    counter_first: Array
    counter_iid: Array
    counter_value: Array
    counters_iid: int


@jit
def rows_without_overlap(ts: Array, dur: Array, deepest: int) -> Array:
    """For each slice the row on which it neither cuts nor is cut by another.

    Slices that nest share a row up to `deepest` levels; what overlaps otherwise goes to the first
    further row where it fits. Expects order of start, longest first.
    """
    n = len(ts)
    row = np.zeros(n, np.int32)
    ends = np.zeros((4, deepest), np.int64)
    depth = np.zeros(4, np.int64)
    for i in range(n):
        start, end, r = ts[i], ts[i] + dur[i], 0
        while True:
            if r == len(depth):
                grown = np.zeros((2 * r, deepest), np.int64)
                grown[:r] = ends
                ends = grown
                deeper = np.zeros(2 * r, np.int64)
                deeper[:r] = depth
                depth = deeper
            while depth[r] and ends[r, depth[r] - 1] <= start:
                depth[r] -= 1
            if depth[r] == 0 or (depth[r] < deepest and ends[r, depth[r] - 1] >= end):
                break
            r += 1
        ends[r, depth[r]] = end
        depth[r] += 1
        row[i] = r
    return row


@jit
def _packet(out: Bytes, i: int, ts: int, event: Bytes, size: int) -> int:
    """One packet around the track event in event[:size]."""
    body = (
        1 + wire.varint_size(ts) + 1 + 1 + 2 + 1 + wire.varint_size(size) + size
    )  # timestamp, sequence, flags, event
    i = varint(out, varint(out, i, _PACKET), body)
    i = wire.number(out, i, _TIMESTAMP, ts)
    i = wire.number(out, i, _SEQUENCE_ID, SEQUENCE)
    i = wire.number(out, i, _SEQUENCE_FLAGS, _NEEDS_STATE)
    return wire.text(out, i, _TRACK_EVENT, event, 0, size)


@jit
def _end(out: Bytes, i: int, ts: int, uuid: int, event: Bytes) -> int:
    size = wire.number(event, 0, _TYPE, _END)
    size = wire.number(event, size, _TRACK_UUID, uuid)
    return _packet(out, i, ts, event, size)


@jit
def _bits(value: float) -> int:
    box = np.empty(1, np.float64)
    box[0] = value
    return box.view(np.int64)[0]


@jit
def _value(out: Bytes, i: int, buffer: Bytes, at: int, stop: int, texts: Interned) -> int:
    """The value of an annotation, typed as it stands in the JSON text buffer[at:stop]."""
    c = buffer[at]
    if c == _QUOTE:
        plain = skip(buffer, at + 1, stop, IN_STRING) == stop - 1
        if plain and stop - at - 2 >= INTERNED_FROM:
            iid = number_of(buffer, at + 1, stop - 1, texts)
            if iid >= 0:
                return wire.number(out, i, _A_STRING_IID, iid)
        if plain:
            return wire.text(out, i, _A_STRING, buffer, at + 1, stop - 1)
    elif c in (_TRUE, _FALSE):
        return wire.number(out, i, _A_BOOL, 1 if c == _TRUE else 0)
    elif c == _NULL:
        return wire.text(out, i, _A_STRING, buffer, at, stop)
    elif c == _MINUS or 48 <= c <= 57:
        integral = skip(buffer, at, stop, _IN_INTEGER) == stop
        if integral:
            value, _, ok = decimal(buffer, at, stop, 0)
            if ok:
                large = c != _MINUS and value < 0
                return wire.number(out, i, _A_UINT if large else _A_INT, value)
        real, ok = real_number(buffer, at, stop)
        if ok and not integral:
            return fixed64(out, varint(out, i, _A_DOUBLE), _bits(real))
        return wire.text(out, i, _A_STRING, buffer, at, stop)  # the processor drops such as JSON
    elif c not in (91, 123):  # NaN and the like: no JSON
        return wire.text(out, i, _A_STRING, buffer, at, stop)
    return _compact(out, i, buffer, at, stop)


@jit
def _compact(out: Bytes, i: int, buffer: Bytes, at: int, stop: int) -> int:
    """An array or object of JSON without the blanks between its parts."""
    start = varint(out, i, _A_JSON)
    text = start + wire.varint_size(stop - at)
    one, j, k, end = np.uint64(1), np.uint64(text), np.uint64(at), np.uint64(stop)
    while k < end:
        c = buffer[k]
        out[j] = c
        j += _SOLID[c]
        k += one
        if c == _QUOTE:
            string = np.uint64(skip_string(buffer, np.int64(k) - 1, stop))
            while k < string:
                out[j] = buffer[k]
                j += one
                k += one
    wire.padded(out, start, text - start, np.int64(j) - text)
    return np.int64(j)


@jit
def _arguments(
    out: Bytes, i: int, buffer: Bytes, at: int, length: int, scratch: Bytes, keys: Interned,
    texts: Interned,
) -> int:  # fmt: skip
    """One annotation for each member of a JSON object."""
    stop = at + length
    j = blank(buffer, at + 1, stop)
    while j < stop and buffer[j] == _QUOTE:
        key = j + 1
        j = skip_string(buffer, j, stop)
        if j < 0:
            return i
        key_stop = j - 1
        value = blank(buffer, blank(buffer, j, stop) + 1, stop)
        if value >= stop:
            return i
        j = skip_value(buffer, value, stop)
        if j < 0:
            return i
        iid = number_of(buffer, key, key_stop, keys)
        if iid >= 0:
            size = wire.number(scratch, 0, _A_NAME_IID, iid)
        else:
            size = wire.text(scratch, 0, _A_NAME, buffer, key, key_stop)
        size = _value(scratch, size, buffer, value, j, texts)
        i = wire.text(out, i, _ANNOTATION, scratch, 0, size)
        j = blank(buffer, j, stop)
        if j >= stop or buffer[j] != _COMMA:
            return i
        j = blank(buffer, j + 1, stop)
    return i


@jit
def _columns(out: Bytes, i: int, k: int, columns: Columns, scratch: Bytes) -> int:
    """The annotation columns of slice k as one dictionary."""
    size = wire.number(scratch, 0, _A_NAME_IID, columns.iid)
    empty = size
    for c in range(len(columns.ints_iid)):
        if columns.ints_known[c, k]:
            inner = 1 + wire.varint_size(columns.ints_iid[c])
            inner += 1 + wire.varint_size(columns.ints[c, k])
            size = varint(scratch, varint(scratch, size, _A_DICT), inner)
            size = wire.number(scratch, size, _A_NAME_IID, columns.ints_iid[c])
            size = wire.number(scratch, size, _A_INT, columns.ints[c, k])
    for c in range(len(columns.floats_iid)):
        if columns.floats_known[c, k]:
            inner = 1 + wire.varint_size(columns.floats_iid[c]) + 9
            size = varint(scratch, varint(scratch, size, _A_DICT), inner)
            size = wire.number(scratch, size, _A_NAME_IID, columns.floats_iid[c])
            size = fixed64(scratch, varint(scratch, size, _A_DOUBLE), _bits(columns.floats[c, k]))
    for c in range(len(columns.texts_iid)):
        iid = columns.texts[c, k]
        if iid >= 0:
            inner = 1 + wire.varint_size(columns.texts_iid[c]) + 2 + wire.varint_size(iid)
            size = varint(scratch, varint(scratch, size, _A_DICT), inner)
            size = wire.number(scratch, size, _A_NAME_IID, columns.texts_iid[c])
            size = wire.number(scratch, size, _A_STRING_IID, iid)
    return i if size == empty else wire.text(out, i, _ANNOTATION, scratch, 0, size)


@jit
def _counters(out: Bytes, i: int, k: int, lists: Lists, scratch: Bytes) -> int:
    """The hardware counters of slice k as one dictionary."""
    first, stop = lists.counter_first[k], lists.counter_first[k + 1]
    if first == stop:
        return i
    size = wire.number(scratch, 0, _A_NAME_IID, lists.counters_iid)
    for c in range(first, stop):
        inner = 1 + wire.varint_size(lists.counter_iid[c]) + 9
        size = varint(scratch, varint(scratch, size, _A_DICT), inner)
        size = wire.number(scratch, size, _A_NAME_IID, lists.counter_iid[c])
        size = fixed64(scratch, varint(scratch, size, _A_DOUBLE), _bits(lists.counter_value[c]))
    return wire.text(out, i, _ANNOTATION, scratch, 0, size)


@jit
def room_for(k: int, arguments: Arguments, columns: Columns, lists: Lists) -> int:
    """Bytes that the packets up to and with slice k's BEGIN take at most."""
    room = _PACKET_MAX + 4 * arguments.length[k] + 64
    fields = len(columns.ints_iid) + len(columns.floats_iid) + len(columns.texts_iid)
    room += _COLUMN_MAX * (fields + lists.counter_first[k + 1] - lists.counter_first[k] + 2)
    return room + 12 * (lists.flow_first[k + 1] - lists.flow_first[k])


@jit
def slices(
    out: Bytes,
    k: int,
    these: Slices,
    arguments: Arguments,
    columns: Columns,
    lists: Lists,
    keys: Interned,
    texts: Interned,
    ends: Array,
    depth: Array,
    scratch: Bytes,
) -> tuple[int, int]:
    """Write slices from the k-th on, as BEGIN and END packets in nesting order.

    `ends` and `depth` are the open slices of each row, kept from call to call; after the last
    slice all are closed.

    Returns
    -------
    bytes, next
        How much was written, and the first slice that found no room.
    """
    i, n = 0, len(these.ts)
    half = len(scratch) // 2
    event, annotation = scratch[:half], scratch[half:]
    while k < n:
        room = room_for(k, arguments, columns, lists)
        if i + room + _POPS_MAX > len(out) or room > half:
            return i, k
        start, r = these.ts[k], these.row[k]
        while depth[r] and ends[r, depth[r] - 1] <= start:
            depth[r] -= 1
            i = _end(out, i, ends[r, depth[r]], these.uuid[k], event)
        ends[r, depth[r]] = start + these.dur[k]
        depth[r] += 1
        size = wire.number(event, 0, _TYPE, _BEGIN)
        size = wire.number(event, size, _TRACK_UUID, these.uuid[k])
        size = wire.number(event, size, _NAME_IID, these.name[k])
        size = wire.number(event, size, _CATEGORY_IID, these.category[k])
        size = _columns(event, size, k, columns, annotation)
        size = _counters(event, size, k, lists, annotation)
        if arguments.length[k]:
            at, length = arguments.at[k], arguments.length[k]
            size = _arguments(event, size, arguments.buffer, at, length, annotation, keys, texts)
        for f in range(lists.flow_first[k], lists.flow_first[k + 1]):
            size = fixed64(event, varint(event, size, _FLOW_ID), lists.flow[f])
        i = _packet(out, i, start, event, size)
        k += 1
    return i, k


@jit
def close(out: Bytes, ends: Array, depth: Array, uuid: Array) -> int:
    """END packets of all slices that are still open; `uuid` is each row's track."""
    i = 0
    event = np.empty(_PACKET_MAX, np.uint8)
    for r in range(len(depth)):
        while depth[r]:
            depth[r] -= 1
            i = _end(out, i, ends[r, depth[r]], uuid[r], event)
    return i


@jit
def counter(out: Bytes, ts: Array, value: Array, uuid: int) -> int:
    """Samples of one counter track."""
    i = 0
    event = np.empty(_PACKET_MAX, np.uint8)
    for k in range(len(ts)):
        size = wire.number(event, 0, _TYPE, _COUNTER)
        size = wire.number(event, size, _TRACK_UUID, uuid)
        size = fixed64(event, varint(event, size, _DOUBLE_COUNTER), _bits(value[k]))
        i = _packet(out, i, ts[k], event, size)
    return i


SAMPLE_MAX = _PACKET_MAX
"""Bytes that one sample takes at most."""
