"""Flows and further counters of track events: what an event may have several of.

Field numbers are those of ``track_event.proto`` (Perfetto v58).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files.wire import field_at, fixed64_at, real_of, varint_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_state_decode import States

    Bytes = npt.NDArray[np.uint8]


class Lists(NamedTuple):
    """What events may have several of; `total` says how many flows and counters there are."""

    flow_event: Array
    flow: Array
    counter_event: Array
    counter_track: Array
    counter_value: Array
    total: Array


@jit
def take_flows(
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
            value = fixed64_at(buffer, i)
            i += 8
        else:
            value, i = varint_at(buffer, i, stop)
            if i < 0:
                break
        lists.flow_event[k], lists.flow[k] = row, value
        k += 1
    lists.total[0] = k


@jit
def take_values(
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
            value = fixed64_at(buffer, i)
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
def further_tracks(
    buffer: Bytes, at: int, stop: int, s: int, states: States, lists: Lists, first: int
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
