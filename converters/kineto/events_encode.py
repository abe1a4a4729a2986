"""Trace events as JSON text, millions of them: compiled loops over columns.

An event consists of texts that were rendered once (its category, its name, its pid and tid), of its
times, and of its arguments: those of the source, copied byte by byte, and members that are added.
Every event begins with a comma and a new line, so the caller writes the first event of a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.converters.kineto import strict_json_text
from chopper_interop.io import json_text
from chopper_interop.io.wire import copy_bytes

DONE, NO_ROOM, IMPROPER = 0, 1, 2
"""Status of `write_events`: all events written, buffer full, or arguments that are not JSON."""

CHOPPER, COUNTERS = 0, 1
"""Numbers of the keys under which annotation columns and hardware counters stand."""
SOURCE_SUFFIX = b" (source)"
"""Appended to the key of a source's member that another value replaces."""

_QUOTE, _COMMA, _COLON, _CLOSE, _OPEN = 34, 44, 58, 125, 123
_MAX_LENGTH_BIT = 62
"""Highest bit of a set of key lengths in an int64; it stands for all longer keys too."""
_MEMBER_MAX = 64
"""Bytes of a member in addition to its texts: a number of up to 20 digits, quotes, signs."""
_EVENT_MAX = 256
"""Bytes of an event in addition to its texts and members: two times, names of members, brackets."""


class OutTexts(NamedTuple):
    """Texts one after the other: text k is ``data[first[k]:first[k + 1]]``."""

    data: Bytes
    first: Array


class OutEvents(NamedTuple):
    """Events in the order in which they are written.

    `ts` and `dur` are in nanoseconds, a `dur` of -1 marks an instant; `head`, `name` and `track`
    are indices of rendered texts.
    """

    ts: Array
    dur: Array
    head: Array
    name: Array
    track: Array


class Arguments(NamedTuple):
    """Arguments of the events in the source: byte ranges of a buffer, JSON objects."""

    buffer: Bytes
    at: Array
    length: Array


class Numbers(NamedTuple):
    """Members that are whole numbers: a row a member, a column an event.

    An `overriding` one replaces any other value of the source, else only what is not a number.
    """

    key: Array
    value: Array
    known: Array
    overriding: Array


class Rendered(NamedTuple):
    """Members whose values are texts rendered as JSON: indices of `texts`, -1 for none."""

    key: Array
    code: Array
    texts: OutTexts


class Lists(NamedTuple):
    """Hardware counters: keys and rendered values of event k lie in first[k] to first[k + 1]."""

    first: Array
    key: Array
    values: OutTexts


class Members(NamedTuple):
    """Members that are added to the source's arguments, at top level and within `CHOPPER`."""

    keys: OutTexts
    numbers: Numbers
    rendered: Rendered
    inner_numbers: Numbers
    inner_rendered: Rendered
    counters: Lists


class Fixed(NamedTuple):
    """Texts that many events have in common."""

    heads: OutTexts
    names: OutTexts
    tracks: OutTexts


def join_texts(parts: Iterable[bytes]) -> OutTexts:
    """Join texts, noting where each begins."""
    pieces = list(parts)
    data = np.frombuffer(bytearray(b"".join(pieces) or b"\0"), np.uint8)
    return OutTexts(data, np.cumsum([0, *map(len, pieces)]))


_TS = np.frombuffer(bytearray(b',"ts":'), np.uint8)
_DUR = np.frombuffer(bytearray(b',"dur":'), np.uint8)
_ARGS = np.frombuffer(bytearray(b',"args":{'), np.uint8)
_ID = np.frombuffer(bytearray(b'"id":'), np.uint8)
_VALUE = np.frombuffer(bytearray(b',"args":{"":'), np.uint8)
_SOURCE_SUFFIX = np.frombuffer(bytearray(SOURCE_SUFFIX), np.uint8)


@jit_in_place
def _write_text(out: Bytes, i: int, data: Bytes, first: Array, k: int) -> int:
    """Write the k-th text."""
    return copy_bytes(out, i, data, first[k], first[k + 1])


@jit_in_place
def _write_key(out: Bytes, i: int, data: Bytes, first: Array, k: int) -> int:
    """Write the k-th key in quotes, a comma before it unless it is the first, and a colon."""
    if out[i - 1] != _OPEN:
        out[i] = _COMMA
        i += 1
    out[i] = _QUOTE
    i = copy_bytes(out, i + 1, data, first[k], first[k + 1])
    out[i] = _QUOTE
    out[i + 1] = _COLON
    return i + 2


@jit_in_place
def _equals(buffer: Bytes, at: int, stop: int, data: Bytes, start: int) -> bool:
    """True if ``buffer[at:stop]`` equals `data` from `start` on."""
    for j in range(stop - at):  # noqa: SIM110 - numba knows no generators
        if data[start + j] != buffer[at + j]:
            return False
    return True


NUMBER, OVERRIDING, TEXT, DICTIONARY, LIST = 0, 1, 2, 3, 4
"""Form of an added member: a number, a number that overrides, a text, `CHOPPER`, `COUNTERS`."""
KEEP, RENAME, DROP = 0, 1, 2
"""Actions on a member of the source."""


@jit_in_place
def _action(
    buffer: Bytes, key: int, key_stop: int, value: int, stop: int, form: Array, new_key: Array,
    new_value: Array, is_present: Array, count: int, data: Bytes, first: Array,
) -> int:  # fmt: skip
    """Decide on a member of the source; mark in `is_present` a new member that it stands for."""
    size = key_stop - key
    for c in range(count):
        start = first[new_key[c]]
        if first[new_key[c] + 1] - start != size or not _equals(buffer, key, key_stop, data, start):
            continue
        if form[c] == DICTIONARY:
            return DROP
        if form[c] == LIST:
            return RENAME
        if form[c] != TEXT:
            number, _, ok = json_text.parse_integer(buffer, value, stop + 1, 0)
            if not ok or (form[c] == OVERRIDING and number != new_value[c]):
                return RENAME
        is_present[c] = True
        return KEEP
    return KEEP


@jit_in_place
def _copy_members(
    out: Bytes, i: int, buffer: Bytes, at: int, n: int, form: Array, new_key: Array,
    new_value: Array, is_present: Array, count: int, data: Bytes, first: Array, stack: Bytes,
) -> int:  # fmt: skip
    """Write the members of the source; return -1 if they are not a proper JSON object."""
    lengths = 0  # of the new keys, a bit each: most keys of a source have another
    for c in range(count):
        lengths |= 1 << min(first[new_key[c] + 1] - first[new_key[c]], _MAX_LENGTH_BIT)
    if buffer[at] != _OPEN:
        return -1
    at = strict_json_text.blank(buffer, at + 1, n)
    if at < n and buffer[at] == _CLOSE:
        return i if at + 1 == n else -1
    while True:
        key_stop = strict_json_text.string_end(buffer, at, n) - 1
        if key_stop < 0:
            return -1
        value = strict_json_text.blank(buffer, key_stop + 1, n)
        if value >= n or buffer[value] != _COLON:
            return -1
        value = strict_json_text.blank(buffer, value + 1, n)
        stop = strict_json_text.value_end(buffer, value, n, stack)
        if stop < 0:
            return -1
        action = KEEP
        if lengths >> min(key_stop - at - 1, _MAX_LENGTH_BIT) & 1:
            action = _action(
                buffer, at + 1, key_stop, value, stop, form, new_key, new_value, is_present, count,
                data, first,
            )  # fmt: skip
        if action != DROP:
            if out[i - 1] != _OPEN:
                out[i] = _COMMA
                i += 1
            i = copy_bytes(out, i, buffer, at, key_stop)
            if action == RENAME:
                i = copy_bytes(out, i, _SOURCE_SUFFIX, 0, len(_SOURCE_SUFFIX))
            out[i] = _QUOTE
            out[i + 1] = _COLON
            i = copy_bytes(out, i + 2, buffer, value, stop)
        at = strict_json_text.blank(buffer, stop, n)
        if at < n and buffer[at] == _COMMA:
            at = strict_json_text.blank(buffer, at + 1, n)
        elif at + 1 == n and buffer[at] == _CLOSE:
            return i
        else:
            return -1


# Bytes that the numbers of event k take at most, so that room is made once for each event.
@jit_in_place
def _numbers_size(k: int, numbers: Numbers, keys: OutTexts) -> int:
    max_size = 0
    for c in range(len(numbers.key)):
        if numbers.known[c, k]:
            max_size += _MEMBER_MAX + keys.first[numbers.key[c] + 1] - keys.first[numbers.key[c]]
    return max_size


# The same of texts that are rendered already.
@jit_in_place
def _rendered_size(k: int, rendered: Rendered, keys: OutTexts) -> int:
    max_size = 0
    for c in range(len(rendered.key)):
        code = rendered.code[c, k]
        if code >= 0:
            max_size += _MEMBER_MAX + keys.first[rendered.key[c] + 1] - keys.first[rendered.key[c]]
            max_size += rendered.texts.first[code + 1] - rendered.texts.first[code]
    return max_size


@jit
def max_sizes(
    start: int, stop: int, events: OutEvents, arguments: Arguments, members: Members, fixed: Fixed
) -> Array:
    """Upper bound of the bytes of each event from `start` to `stop`; 0 for the rest.

    With it `write_events` needs to look at the buffer's end only once for each event.
    """
    max_size = np.zeros(len(events.ts), np.int64)
    heads, names, tracks = fixed.heads.first, fixed.names.first, fixed.tracks.first
    keys, values, first = members.keys.first, members.counters.values.first, members.counters.first
    for k in range(start, stop):
        size = _EVENT_MAX + arguments.length[k]
        size += heads[events.head[k] + 1] - heads[events.head[k]]
        size += names[events.name[k] + 1] - names[events.name[k]]
        size += tracks[events.track[k] + 1] - tracks[events.track[k]]
        size += _numbers_size(k, members.numbers, members.keys)
        size += _numbers_size(k, members.inner_numbers, members.keys)
        size += _rendered_size(k, members.rendered, members.keys)
        size += _rendered_size(k, members.inner_rendered, members.keys)
        for c in range(first[k], first[k + 1]):
            key = members.counters.key[c]
            size += _MEMBER_MAX + keys[key + 1] - keys[key] + values[c + 1] - values[c]
        max_size[k] = size
    return max_size


@jit
def write_events(
    out: Bytes, k: int, stop: int, events: OutEvents, arguments: Arguments, members: Members,
    fixed: Fixed, max_size: Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Write events k, k + 1, … before `stop`.

    One loop for all events, as each is appended where the one before ended, and as a call for each
    event would cost more than its bytes.

    Returns
    -------
    bytes, next, status
        Number of bytes written, the first event that was not written, and why.
    """
    # numba counts references whenever a tuple's field is taken: all of them are taken here, once
    ts, dur, head, name, track = events
    buffer, args_at, args_len = arguments
    keys_of, numbers, rendered, inner_numbers, inner_rendered, counters = members
    keys, keys_first = keys_of
    number_key, number_value, number_known, overriding = numbers
    text_key, text_code, (texts_data, texts_first) = rendered
    inner_key, inner_value, inner_known, _ = inner_numbers
    inner_text_key, inner_text_code, (inner_data, inner_first) = inner_rendered
    counter_first, counter_key, (counter_data, counter_texts) = counters
    (heads, heads_first), (names, names_first), (tracks, tracks_first) = fixed
    i = 0
    stack = np.empty(strict_json_text.MAX_DEPTH, np.uint8)
    max_members = len(number_key) + len(text_key) + 2
    form, new_key = np.zeros(max_members, np.int64), np.zeros(max_members, np.int64)
    new_value, is_present = np.zeros(max_members, np.int64), np.zeros(max_members, np.bool_)
    while k < stop:
        if i + max_size[k] > len(out):
            return i, k, NO_ROOM
        count = 0
        for c in range(len(number_key)):
            if number_known[c, k]:
                form[count] = OVERRIDING if overriding[c] else NUMBER
                new_key[count], new_value[count] = number_key[c], number_value[c, k]
                count += 1
        for c in range(len(text_key)):
            if text_code[c, k] >= 0:
                form[count], new_key[count], new_value[count] = TEXT, text_key[c], text_code[c, k]
                count += 1
        inner = False
        for c in range(len(inner_key)):
            inner |= inner_known[c, k]
        for c in range(len(inner_text_key)):
            inner |= inner_text_code[c, k] >= 0
        if inner:
            form[count], new_key[count] = DICTIONARY, CHOPPER
            count += 1
        if counter_first[k] < counter_first[k + 1]:
            form[count], new_key[count] = LIST, COUNTERS
            count += 1
        start = i
        i = _write_text(out, i, heads, heads_first, head[k])
        i = _write_text(out, i, names, names_first, name[k])
        i = _write_text(out, i, tracks, tracks_first, track[k])
        i = strict_json_text.micros(out, copy_bytes(out, i, _TS, 0, len(_TS)), ts[k])
        if dur[k] >= 0:
            i = strict_json_text.micros(out, copy_bytes(out, i, _DUR, 0, len(_DUR)), dur[k])
        before = i
        i = copy_bytes(out, i, _ARGS, 0, len(_ARGS))
        empty = i
        is_present[:count] = False
        if args_len[k]:
            i = _copy_members(
                out, i, buffer, args_at[k], args_at[k] + args_len[k], form, new_key, new_value,
                is_present, count, keys, keys_first, stack,
            )  # fmt: skip
            if i < 0:
                return start, k, IMPROPER
        for c in range(count):
            if is_present[c]:
                continue
            i = _write_key(out, i, keys, keys_first, new_key[c])
            if form[c] <= OVERRIDING:
                i = strict_json_text.integer(out, i, new_value[c])
            elif form[c] == TEXT:
                i = _write_text(out, i, texts_data, texts_first, new_value[c])
            elif form[c] == DICTIONARY:
                out[i] = _OPEN
                i += 1
                for d in range(len(inner_key)):
                    if inner_known[d, k]:
                        i = _write_key(out, i, keys, keys_first, inner_key[d])
                        i = strict_json_text.integer(out, i, inner_value[d, k])
                for d in range(len(inner_text_key)):
                    if inner_text_code[d, k] >= 0:
                        i = _write_key(out, i, keys, keys_first, inner_text_key[d])
                        i = _write_text(out, i, inner_data, inner_first, inner_text_code[d, k])
                out[i] = _CLOSE
                i += 1
            else:
                out[i] = _OPEN
                i += 1
                for d in range(counter_first[k], counter_first[k + 1]):
                    i = _write_key(out, i, keys, keys_first, counter_key[d])
                    i = _write_text(out, i, counter_data, counter_texts, d)
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


_END_MAX = 128
"""Bytes of an arrow's end, or of a sample, in addition to its texts: a number, a time, brackets."""


@jit_in_place
def write_arrows(
    out: Bytes, k: int, head: Bytes, ids: Array, track: Array, ts: Array, tracks: OutTexts
) -> tuple[int, int]:
    """Write ends of arrows from the k-th on; return the bytes written, and the next end."""
    i = 0
    while k < len(ids):
        if i + len(head) + _END_MAX + tracks.first[track[k] + 1] - tracks.first[track[k]] > len(
            out
        ):
            break
        i = copy_bytes(out, i, head, 0, len(head))
        i = strict_json_text.integer(out, copy_bytes(out, i, _ID, 0, len(_ID)), ids[k])
        i = _write_text(out, i, tracks.data, tracks.first, track[k])
        i = strict_json_text.micros(out, copy_bytes(out, i, _TS, 0, len(_TS)), ts[k])
        out[i] = _CLOSE
        i += 1
        k += 1
    return i, k


@jit_in_place
def write_samples(out: Bytes, k: int, head: Bytes, ts: Array, values: OutTexts) -> tuple[int, int]:
    """Write samples from the k-th on; return the bytes written, and the next sample."""
    i = 0
    while k < len(ts):
        if i + len(head) + _END_MAX + values.first[k + 1] - values.first[k] > len(out):
            break
        i = copy_bytes(out, i, head, 0, len(head))
        i = strict_json_text.micros(out, copy_bytes(out, i, _TS, 0, len(_TS)), ts[k])
        i = copy_bytes(out, i, _VALUE, 0, len(_VALUE))
        i = _write_text(out, i, values.data, values.first, k)
        out[i] = _CLOSE
        out[i + 1] = _CLOSE
        i += 2
        k += 1
    return i, k
