"""Flows and extra counter values of track events, of which an event may have several.

Field numbers are those of ``track_event.proto`` (Perfetto v58).

Compiled, as part of the pass over all packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io.wire import double_from_bits, next_number, read_field
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


@jit_in_place
def decode_flows(
    buffer: Bytes, i: int, stop: int, wire: int, number: int, value: np.uint64, row: int,
    lists: ListRows,
) -> None:  # fmt: skip
    """Append a flow id, or a packed list of them."""
    k = lists.total[0]
    while i < stop:
        value, i = next_number(buffer, i, stop, wire, value, number in _FIXED_FLOW_FIELDS)
        if i < 0:
            break
        lists.flow_event[k], lists.flow[k] = row, value
        k += 1
    lists.total[0] = k


@jit_in_place
def decode_counter_values(
    buffer: Bytes, i: int, stop: int, wire: int, number: int, value: np.uint64, row: int,
    lists: ListRows,
) -> None:  # fmt: skip
    """Append an extra counter value, or a packed list of them.

    Those that are doubles have ``~row`` as their event, which is negative, until their tracks are
    known: integers and doubles have lists of tracks of their own.
    """
    k, real = lists.total[1], number == EVENT_EXTRA_DOUBLE_COUNTER_VALUES
    while i < stop:
        value, i = next_number(buffer, i, stop, wire, value, real)
        if i < 0:
            break
        lists.counter_event[k] = ~row if real else row
        lists.counter_value[k] = double_from_bits(value) if real else float(np.int64(value))
        k += 1
    lists.total[1] = k


@jit_in_place
def decode_counter_tracks(
    buffer: Bytes, at: int, stop: int, sequence: int, states: States, lists: ListRows, first: int
) -> None:
    """Assign tracks to the extra counter values of an event from entry `first` on.

    The tracks are those that the event lists, else those of its sequence's defaults; their order is
    that of the values.
    """
    begin, end = (
        states.defaults_at[sequence],
        states.defaults_at[sequence] + states.defaults_len[sequence],
    )
    for real in (False, True):
        if not _assign_tracks(buffer, at, stop, real, lists, first):
            _assign_tracks(buffer, begin, end, real, lists, first)
    for k in range(first, lists.total[1]):
        if lists.counter_event[k] < 0:
            lists.counter_event[k] = ~lists.counter_event[k]


@jit_in_place
def _assign_tracks(
    buffer: Bytes, i: int, stop: int, real: bool, lists: ListRows, k: int  # noqa: FBT001 # compiled functions take no keywords
) -> bool:  # fmt: skip
    """Assign the tracks that an event or its defaults list to the integers or doubles from entry `k` on.

    Returns
    -------
    listed
        False if it lists none.
    """
    field = EVENT_EXTRA_DOUBLE_COUNTER_TRACK_UUIDS if real else EVENT_EXTRA_COUNTER_TRACK_UUIDS
    listed = False
    while 0 <= i < stop:
        number, wire, value, begin, i = read_field(buffer, i, stop)
        if i < 0 or number != field:
            continue
        listed = True
        while 0 <= begin < i:
            value, begin = next_number(buffer, begin, i, wire, value, False)
            while k < lists.total[1] and (lists.counter_event[k] < 0) != real:
                k += 1
            if begin >= 0 and k < lists.total[1]:
                lists.counter_track[k] = value
                k += 1
    return listed
