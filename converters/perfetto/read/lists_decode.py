"""Flows and extra counter values of track events, of which an event may have several.

Field numbers are those of ``track_event.proto`` (Perfetto v58).

Compiled, as part of the pass over all packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit
from chopper_interop.io.wire import (
    LENGTH,
    VARINT,
    double_from_bits,
    read_field,
    read_fixed64,
    read_varint,
)
from chopper_interop.schemas.perfetto import (
    EVENT_EXTRA_COUNTER_TRACK_UUIDS,
    EVENT_EXTRA_COUNTER_VALUES,
    EVENT_EXTRA_DOUBLE_COUNTER_TRACK_UUIDS,
    EVENT_EXTRA_DOUBLE_COUNTER_VALUES,
    EVENT_FLOW_IDS,
    EVENT_FLOW_IDS_OLD,
    EVENT_TERMINATING_FLOW_IDS,
    EVENT_TERMINATING_FLOW_IDS_OLD,
)

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.read.state_decode import States

_FIXED_FLOW_FIELDS = (EVENT_FLOW_IDS, EVENT_TERMINATING_FLOW_IDS)
FLOW_FIELDS = (EVENT_FLOW_IDS_OLD, EVENT_TERMINATING_FLOW_IDS_OLD, *_FIXED_FLOW_FIELDS)
"""Fields of flow ids: varints until v17, of eight bytes since."""
EXTRA_VALUE_FIELDS = (EVENT_EXTRA_COUNTER_VALUES, EVENT_EXTRA_DOUBLE_COUNTER_VALUES)
FIXED_LIST_FIELDS = (EVENT_EXTRA_DOUBLE_COUNTER_VALUES, *_FIXED_FLOW_FIELDS)
"""Of both, the fields of numbers of eight bytes."""


class ListRows(NamedTuple):
    """Flows and extra counter values with the rows of their events; `total` has their numbers."""

    flow_event: Array
    flow: Array
    counter_event: Array
    counter_track: Array
    counter_value: Array
    total: Array


@jit
def decode_flows(
    buffer: Bytes, i: int, stop: int, wire: int, number: int, value: np.uint64, row: int,
    lists: ListRows,
) -> None:  # fmt: skip
    """Append a flow id, or a packed list of them."""
    k = lists.total[0]
    if wire != LENGTH:
        lists.flow_event[k], lists.flow[k] = row, value
        lists.total[0] = k + 1
        return
    while i < stop:
        if number in _FIXED_FLOW_FIELDS:
            if i + 8 > stop:
                break
            value = read_fixed64(buffer, i)
            i += 8
        else:
            value, i = read_varint(buffer, i, stop)
            if i < 0:
                break
        lists.flow_event[k], lists.flow[k] = row, value
        k += 1
    lists.total[0] = k


@jit
def decode_counter_values(
    buffer: Bytes, i: int, stop: int, wire: int, number: int, value: np.uint64, row: int,
    lists: ListRows,
) -> None:  # fmt: skip
    """Append an extra counter value, or a packed list of them.

    Those that are doubles have ``~row`` as their event, which is negative, until their tracks are
    known: integers and doubles have lists of tracks of their own.
    """
    k = lists.total[1]
    if wire != LENGTH:
        lists.counter_event[k] = row if number == EVENT_EXTRA_COUNTER_VALUES else ~row
        lists.counter_value[k] = (
            double_from_bits(value)
            if number == EVENT_EXTRA_DOUBLE_COUNTER_VALUES
            else float(np.int64(value))
        )
        lists.total[1] = k + 1
        return
    while i < stop:
        if number == EVENT_EXTRA_DOUBLE_COUNTER_VALUES:
            if i + 8 > stop:
                break
            value = read_fixed64(buffer, i)
            i += 8
            lists.counter_value[k] = double_from_bits(value)
        else:
            value, i = read_varint(buffer, i, stop)
            if i < 0:
                break
            lists.counter_value[k] = float(np.int64(value))
        lists.counter_event[k] = row if number == EVENT_EXTRA_COUNTER_VALUES else ~row
        k += 1
    lists.total[1] = k


@jit
def decode_counter_tracks(
    buffer: Bytes, at: int, stop: int, s: int, states: States, lists: ListRows, first: int
) -> None:
    """Assign tracks to the extra counter values of an event from entry `first` on.

    The tracks are those that the event lists, else those of its sequence's defaults; their order is
    that of the values.
    """
    for integer in (True, False):
        field = (
            EVENT_EXTRA_COUNTER_TRACK_UUIDS if integer else EVENT_EXTRA_DOUBLE_COUNTER_TRACK_UUIDS
        )
        k = first
        for of_event in (True, False):
            i = at if of_event else states.defaults_at[s]
            end = stop if of_event else i + states.defaults_len[s]
            listed = False
            while i < end:
                number, wire, value, begin, i = read_field(buffer, i, end)
                if i < 0:
                    break
                if number != field:
                    continue
                listed = True
                while begin < i:
                    if wire == VARINT:
                        begin = i
                    else:
                        value, begin = read_varint(buffer, begin, i)
                        if begin < 0:
                            break
                    while k < lists.total[1] and (lists.counter_event[k] >= 0) != integer:
                        k += 1
                    if k < lists.total[1]:
                        lists.counter_track[k] = value
                        k += 1
            if listed:
                break
    for k in range(first, lists.total[1]):
        if lists.counter_event[k] < 0:
            lists.counter_event[k] = ~lists.counter_event[k]
