"""Trace events as JSON text, millions of them: numba loops over columns.

An event is put together of texts that were rendered once (its category, its name, where it
stands), of its times, and of its arguments: those that its source gave, byte by byte, and members
that are added. Every event begins with a comma and a new line, so that the first of a file must be
written by others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.converters.kineto_text import (
    DEEPEST,
    blank,
    integer,
    micros,
    string_end,
    value_end,
)
from chopper_interop.files import jsontext
from chopper_interop.files.wire import copied

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

DONE, NO_ROOM, IMPROPER = 0, 1, 2
"""How `events` ended: with the last event, for want of room, at arguments that are no JSON."""

GROUP, COUNTERS = 0, 1
"""Keys of the dictionaries that hold annotation columns and hardware counters."""
ASIDE = b" (source)"
"""Put behind the key of a source's member whose place another value takes."""

_QUOTE, _COMMA, _COLON, _CLOSE, _OPEN = 34, 44, 58, 125, 123
_LONGEST = 62
_MEMBER_MAX = 64
_EVENT_MAX = 256


class Texts(NamedTuple):
    """Texts one behind the other: text k is ``data[first[k]:first[k + 1]]``."""

    data: Bytes
    first: Array


class Events(NamedTuple):
    """Events in the order in which they are written.

    `ts` and `dur` in nanoseconds, a `dur` of -1 for moments; `head`, `name` and `place` number
    rendered texts.
    """

    ts: Array
    dur: Array
    head: Array
    name: Array
    place: Array


class Arguments(NamedTuple):
    """What the source said of the events: byte ranges of a buffer, JSON objects."""

    buffer: Bytes
    at: Array
    length: Array


class Numbers(NamedTuple):
    """Members that are whole numbers: a row a member, a column an event.

    Where `binding`, any other value of the source makes way; else only what is no number does.
    """

    key: Array
    value: Array
    known: Array
    binding: Array


class Rendered(NamedTuple):
    """Members whose values are texts rendered as JSON: numbers of `texts`, -1 for none."""

    key: Array
    code: Array
    texts: Texts


class Lists(NamedTuple):
    """For each event its hardware counters, from `first` [k] on: keys and rendered values."""

    first: Array
    key: Array
    values: Texts


class Members(NamedTuple):
    """What is added to the source's arguments: members of their own, and those of `GROUP`."""

    keys: Texts
    numbers: Numbers
    rendered: Rendered
    group_numbers: Numbers
    group_rendered: Rendered
    counters: Lists


class Fixed(NamedTuple):
    """Texts that events are put together of."""

    heads: Texts
    names: Texts
    places: Texts


def texts(parts: Iterable[bytes]) -> Texts:
    """Texts of a list of them."""
    pieces = list(parts)
    data = np.frombuffer(bytearray(b"".join(pieces) or b"\0"), np.uint8)
    return Texts(data, np.cumsum([0, *map(len, pieces)]))


_TS = np.frombuffer(bytearray(b',"ts":'), np.uint8)
_DUR = np.frombuffer(bytearray(b',"dur":'), np.uint8)
_ARGS = np.frombuffer(bytearray(b',"args":{'), np.uint8)
_ID = np.frombuffer(bytearray(b'"id":'), np.uint8)
_VALUE = np.frombuffer(bytearray(b',"args":{"":'), np.uint8)
_ASIDE = np.frombuffer(bytearray(ASIDE), np.uint8)


@jit
def _put(out: Bytes, i: int, data: Bytes, first: Array, k: int) -> int:
    """Write the k-th text."""
    return copied(out, i, data, first[k], first[k + 1])


@jit
def _key(out: Bytes, i: int, data: Bytes, first: Array, k: int) -> int:
    """Write the k-th key with what goes before and behind it."""
    if out[i - 1] != _OPEN:
        out[i] = _COMMA
        i += 1
    out[i] = _QUOTE
    i = copied(out, i + 1, data, first[k], first[k + 1])
    out[i] = _QUOTE
    out[i + 1] = _COLON
    return i + 2


@jit
def _is(buffer: Bytes, at: int, stop: int, data: Bytes, start: int) -> bool:
    """Whether buffer[at:stop] is what stands in `data` from `start` on."""
    for j in range(stop - at):  # noqa: SIM110 - numba knows no generators
        if data[start + j] != buffer[at + j]:
            return False
    return True


NUMBER, BINDING, TEXT, DICTIONARY, LIST = 0, 1, 2, 3, 4
"""What is added: a number, one that other values make way for, a text, `GROUP`, `COUNTERS`."""
KEEP, PUT_ASIDE, DROP = 0, 1, 2
"""What becomes of a member that the source gave."""


@jit
def _fate(
    buffer: Bytes, key: int, key_stop: int, value: int, stop: int, what: Array, wanted_key: Array,
    wanted: Array, met: Array, count: int, data: Bytes, first: Array,
) -> int:  # fmt: skip
    """What becomes of the source's member; notes in `met` which wanted one it stands for."""
    size = key_stop - key
    for c in range(count):
        start = first[wanted_key[c]]
        if first[wanted_key[c] + 1] - start != size or not _is(buffer, key, key_stop, data, start):
            continue
        if what[c] == DICTIONARY:
            return DROP
        if what[c] == LIST:
            return PUT_ASIDE
        if what[c] != TEXT:
            found, _, ok = jsontext.integer(buffer, value, stop + 1, 0)
            if not ok or (what[c] == BINDING and found != wanted[c]):
                return PUT_ASIDE
        met[c] = True
        return KEEP
    return KEEP


@jit
def _given(
    out: Bytes, i: int, buffer: Bytes, at: int, n: int, what: Array, wanted_key: Array,
    wanted: Array, met: Array, count: int, data: Bytes, first: Array, stack: Bytes,
) -> int:  # fmt: skip
    """Write the members that the source gave; -1 if they are no proper JSON object."""
    lengths = 0  # of the wanted keys, a bit each: most keys of a source have another
    for c in range(count):
        lengths |= 1 << min(first[wanted_key[c] + 1] - first[wanted_key[c]], _LONGEST)
    if buffer[at] != _OPEN:
        return -1
    at = blank(buffer, at + 1, n)
    if at < n and buffer[at] == _CLOSE:
        return i if at + 1 == n else -1
    while True:
        key_stop = string_end(buffer, at, n) - 1
        if key_stop < 0:
            return -1
        value = blank(buffer, key_stop + 1, n)
        if value >= n or buffer[value] != _COLON:
            return -1
        value = blank(buffer, value + 1, n)
        stop = value_end(buffer, value, n, stack)
        if stop < 0:
            return -1
        fate = KEEP
        if lengths >> min(key_stop - at - 1, _LONGEST) & 1:
            fate = _fate(
                buffer, at + 1, key_stop, value, stop, what, wanted_key, wanted, met, count, data,
                first,
            )  # fmt: skip
        if fate != DROP:
            if out[i - 1] != _OPEN:
                out[i] = _COMMA
                i += 1
            i = copied(out, i, buffer, at, key_stop)
            if fate == PUT_ASIDE:
                i = copied(out, i, _ASIDE, 0, len(_ASIDE))
            out[i] = _QUOTE
            out[i + 1] = _COLON
            i = copied(out, i + 2, buffer, value, stop)
        at = blank(buffer, stop, n)
        if at < n and buffer[at] == _COMMA:
            at = blank(buffer, at + 1, n)
        elif at + 1 == n and buffer[at] == _CLOSE:
            return i
        else:
            return -1


@jit
def _numbers_room(k: int, numbers: Numbers, keys: Texts) -> int:
    room = 0
    for c in range(len(numbers.key)):
        if numbers.known[c, k]:
            room += _MEMBER_MAX + keys.first[numbers.key[c] + 1] - keys.first[numbers.key[c]]
    return room


@jit
def _rendered_room(k: int, rendered: Rendered, keys: Texts) -> int:
    room = 0
    for c in range(len(rendered.key)):
        code = rendered.code[c, k]
        if code >= 0:
            room += _MEMBER_MAX + keys.first[rendered.key[c] + 1] - keys.first[rendered.key[c]]
            room += rendered.texts.first[code + 1] - rendered.texts.first[code]
    return room


@jit
def rooms(
    start: int, stop: int, these: Events, arguments: Arguments, members: Members, fixed: Fixed
) -> Array:
    """Bytes that each event from `start` to `stop` takes at most; 0 for the rest."""
    room = np.zeros(len(these.ts), np.int64)
    heads, names, places = fixed.heads.first, fixed.names.first, fixed.places.first
    keys, values, first = members.keys.first, members.counters.values.first, members.counters.first
    for k in range(start, stop):
        size = _EVENT_MAX + arguments.length[k]
        size += heads[these.head[k] + 1] - heads[these.head[k]]
        size += names[these.name[k] + 1] - names[these.name[k]]
        size += places[these.place[k] + 1] - places[these.place[k]]
        size += _numbers_room(k, members.numbers, members.keys)
        size += _numbers_room(k, members.group_numbers, members.keys)
        size += _rendered_room(k, members.rendered, members.keys)
        size += _rendered_room(k, members.group_rendered, members.keys)
        for c in range(first[k], first[k + 1]):
            key = members.counters.key[c]
            size += _MEMBER_MAX + keys[key + 1] - keys[key] + values[c + 1] - values[c]
        room[k] = size
    return room


@jit
def events(
    out: Bytes, k: int, stop: int, these: Events, arguments: Arguments, members: Members,
    fixed: Fixed, room: Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Write events k, k + 1, … before `stop`; `room` is that of `rooms`.

    Returns
    -------
    bytes, next, status
        How much was written, the first event that was not, and why.
    """
    # numba counts references whenever a tuple's field is taken: all of them are taken here, once
    ts, dur, head, name, place = these
    buffer, args_at, args_len = arguments
    keys_of, numbers, rendered, group_numbers, group_rendered, counters = members
    keys, keys_first = keys_of
    number_key, number_value, number_known, binding = numbers
    text_key, text_code, (texts_data, texts_first) = rendered
    inner_key, inner_value, inner_known, _ = group_numbers
    inner_text_key, inner_text_code, (inner_data, inner_first) = group_rendered
    counter_first, counter_key, (counter_data, counter_texts) = counters
    (heads, heads_first), (names, names_first), (places, places_first) = fixed
    i = 0
    stack = np.empty(DEEPEST, np.uint8)
    most = len(number_key) + len(text_key) + 2
    what, wanted_key = np.zeros(most, np.int64), np.zeros(most, np.int64)
    wanted, met = np.zeros(most, np.int64), np.zeros(most, np.bool_)
    while k < stop:
        if i + room[k] > len(out):
            return i, k, NO_ROOM
        count = 0
        for c in range(len(number_key)):
            if number_known[c, k]:
                what[count] = BINDING if binding[c] else NUMBER
                wanted_key[count], wanted[count] = number_key[c], number_value[c, k]
                count += 1
        for c in range(len(text_key)):
            if text_code[c, k] >= 0:
                what[count], wanted_key[count], wanted[count] = TEXT, text_key[c], text_code[c, k]
                count += 1
        inner = False
        for c in range(len(inner_key)):
            inner |= inner_known[c, k]
        for c in range(len(inner_text_key)):
            inner |= inner_text_code[c, k] >= 0
        if inner:
            what[count], wanted_key[count] = DICTIONARY, GROUP
            count += 1
        if counter_first[k] < counter_first[k + 1]:
            what[count], wanted_key[count] = LIST, COUNTERS
            count += 1
        start = i
        i = _put(out, i, heads, heads_first, head[k])
        i = _put(out, i, names, names_first, name[k])
        i = _put(out, i, places, places_first, place[k])
        i = micros(out, copied(out, i, _TS, 0, len(_TS)), ts[k])
        if dur[k] >= 0:
            i = micros(out, copied(out, i, _DUR, 0, len(_DUR)), dur[k])
        before = i
        i = copied(out, i, _ARGS, 0, len(_ARGS))
        empty = i
        met[:count] = False
        if args_len[k]:
            i = _given(
                out, i, buffer, args_at[k], args_at[k] + args_len[k], what, wanted_key, wanted,
                met, count, keys, keys_first, stack,
            )  # fmt: skip
            if i < 0:
                return start, k, IMPROPER
        for c in range(count):
            if met[c]:
                continue
            i = _key(out, i, keys, keys_first, wanted_key[c])
            if what[c] <= BINDING:
                i = integer(out, i, wanted[c])
            elif what[c] == TEXT:
                i = _put(out, i, texts_data, texts_first, wanted[c])
            elif what[c] == DICTIONARY:
                out[i] = _OPEN
                i += 1
                for d in range(len(inner_key)):
                    if inner_known[d, k]:
                        i = _key(out, i, keys, keys_first, inner_key[d])
                        i = integer(out, i, inner_value[d, k])
                for d in range(len(inner_text_key)):
                    if inner_text_code[d, k] >= 0:
                        i = _key(out, i, keys, keys_first, inner_text_key[d])
                        i = _put(out, i, inner_data, inner_first, inner_text_code[d, k])
                out[i] = _CLOSE
                i += 1
            else:
                out[i] = _OPEN
                i += 1
                for d in range(counter_first[k], counter_first[k + 1]):
                    i = _key(out, i, keys, keys_first, counter_key[d])
                    i = _put(out, i, counter_data, counter_texts, d)
                out[i] = _CLOSE
                i += 1
        if i == empty:
            i = before
        else:
            out[i] = _CLOSE
            i += 1
        out[i] = _CLOSE
        i += 1
        k += 1
    return i, k, DONE


ARROW_MAX = 128
"""Bytes that an arrow's end takes at most beside its head and place."""


@jit
def arrows(
    out: Bytes, k: int, head: Bytes, ids: Array, place: Array, ts: Array, places: Texts
) -> tuple[int, int]:
    """Write ends of arrows from the k-th on; how much was written, and the first that was not."""
    i = 0
    while k < len(ids):
        if i + len(head) + ARROW_MAX + places.first[place[k] + 1] - places.first[place[k]] > len(
            out
        ):
            break
        i = copied(out, i, head, 0, len(head))
        i = integer(out, copied(out, i, _ID, 0, len(_ID)), ids[k])
        i = _put(out, i, places.data, places.first, place[k])
        i = micros(out, copied(out, i, _TS, 0, len(_TS)), ts[k])
        out[i] = _CLOSE
        i += 1
        k += 1
    return i, k


@jit
def samples(out: Bytes, k: int, head: Bytes, ts: Array, values: Texts) -> tuple[int, int]:
    """Write samples from the k-th on; how much was written, and the first that was not."""
    i = 0
    while k < len(ts):
        if i + len(head) + ARROW_MAX + values.first[k + 1] - values.first[k] > len(out):
            break
        i = copied(out, i, head, 0, len(head))
        i = micros(out, copied(out, i, _TS, 0, len(_TS)), ts[k])
        i = copied(out, i, _VALUE, 0, len(_VALUE))
        i = _put(out, i, values.data, values.first, k)
        out[i] = _CLOSE
        out[i + 1] = _CLOSE
        i += 2
        k += 1
    return i, k
