"""Members of JSON objects that are looked for: objects without all others, so that their text takes less memory."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes, interning
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io.json_text import (
    CLOSE,
    COLON,
    COMMA,
    MINUS,
    OPEN,
    QUOTE,
    skip_blank,
    skip_string,
    skip_value,
)
from chopper_interop.io.wire import copy_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chopper_interop.arrays.interning import TextTable

_SPACE, _0, _9, _POINT, _PLUS, _e, _E = b" 09.+eE"
_SPAN = ord("X")
"""Phase of events of which a reader looks for some arguments alone; of others it may look for any."""
NO_MEMBERS = len("{}")
"""Bytes of an object that had no members; one that has none any more is ``{ }``, so that the two differ."""


class Keys(NamedTuple):
    """Keys, one behind the other, and where each ends."""

    text: Bytes
    ends: Array


LOOKED_FOR: ContextVar[Keys | None] = ContextVar("LOOKED_FOR", default=None)
"""Keys of the arguments that a reader need keep; None for all."""


def keys(names: Sequence[str]) -> Keys:
    """Return names of members as compiled loops take them."""
    encoded = [name.encode() for name in names]
    ends = np.cumsum([len(name) for name in encoded])
    return Keys(np.frombuffer(bytearray(b"".join(encoded)), np.uint8), ends)


@contextmanager
def keeping(names: Sequence[str] | None) -> Iterator[None]:
    """Have readers keep only arguments that are looked for, within a block; with None, all of them."""
    before = LOOKED_FOR.set(None if names is None else keys(names))
    try:
        yield
    finally:
        LOOKED_FOR.reset(before)


def looked_for_in(window: Bytes, batches: list[Array], keys: Keys) -> Bytes:
    """Return a copy of the arguments of events without those of spans that nothing looks for; the events then refer to it."""
    args = np.empty(sum(int(rows["args_len"].sum(dtype=np.int64)) for rows in batches), np.uint8)
    used = 0
    for rows in batches:
        used = _copy_looked_for(window, rows, *keys, args, used)
    return args


@jit_in_place
def _copy_looked_for(
    window: Bytes, rows: Array, key_text: Bytes, key_ends: Array, args: Bytes, used: int
) -> int:
    """Append arguments of events to those kept, of which so many bytes are used, as `looked_for_in` says.

    Compiled, as each is of some hundred bytes.
    """
    for k in range(len(rows)):
        row = rows[k]
        start, stop, begin = row.args_at, row.args_at + row.args_len, used
        if row.ph == _SPAN and row.args_len:
            used = copy_members(window, start, stop, key_text, key_ends, True, args, used)
        else:
            used = copy_bytes(args, used, window, start, stop)
        row.args_at, row.args_len = begin, used - begin
    return used


@jit_in_place
def copy_members(
    buffer: Bytes,
    at: int,
    stop: int,
    key_text: Bytes,
    key_ends: Array,
    only_numbers: bool,  # noqa: FBT001 # compiled functions have no keywords
    out: Bytes,
    used: int,
) -> int:
    """Append the object buffer[at:stop] without members that are not looked for; return how many bytes are used then.

    With `only_numbers`, only those are left out whose value is a number. An object that is no proper JSON is copied as it
    is: what is behind the place where it is broken must not come to be read. The result is never longer than the object::

        { "a": 1, "b": [2], "c": "x" }   looked for: c   {"c":"x"}      only numbers   {"b":[2],"c":"x"}
    """
    begin = used
    out[used] = OPEN
    used += 1
    i = skip_blank(buffer, at + 1, stop)
    had_members = i < stop - 1 or (stop - at == NO_MEMBERS + 1 and buffer[at + 1] == _SPACE)
    is_good = buffer[at] == OPEN
    while is_good and i < stop and buffer[i] == QUOTE:
        key = i
        i = skip_string(buffer, i, stop)
        behind_key = i
        i = skip_blank(buffer, i, stop) if i >= 0 else stop
        is_good = i < stop and buffer[i] == COLON
        value = skip_blank(buffer, i + 1, stop) if is_good else stop
        i = skip_value(buffer, value, stop) if value < stop else -1
        is_good = i >= 0
        if not is_good:
            break
        is_kept = only_numbers and not _is_number(buffer, value, i)
        if is_kept or key_index(buffer, key + 1, behind_key - key - 2, key_text, key_ends) >= 0:
            if used > begin + 1:
                out[used] = COMMA
                used += 1
            used = copy_bytes(out, used, buffer, key, behind_key)
            out[used] = COLON
            used = copy_bytes(out, used + 1, buffer, value, i)
        i = skip_blank(buffer, i, stop)
        if i >= stop or buffer[i] != COMMA:
            break
        i = skip_blank(buffer, i + 1, stop)
        is_good = i < stop and buffer[i] == QUOTE  # no comma before the end
    if not is_good or i != stop - 1 or buffer[i] != CLOSE:
        return copy_bytes(out, begin, buffer, at, stop)
    if used == begin + 1 and had_members:
        out[used] = _SPACE
        used += 1
    out[used] = CLOSE
    return used + 1


@jit_in_place
def copy_distinct(
    buffer: Bytes,
    start: Array,
    size: Array,
    nodes: Array,
    key_text: Bytes,
    key_ends: Array,
    only_numbers: bool,  # noqa: FBT001 # compiled functions have no keywords
    done: int,
    out: Bytes,
    used: Array,
    table: TextTable,
    at: Array,
    length: Array,
) -> int:
    """Copy what is looked for in objects from `done` on, each text once, until the table is full; return how many are done.

    Compiled, as it visits every byte of the arguments.
    """
    for row in range(done, len(start)):
        begin, stop = used[0], start[row] + size[row]
        end = copy_members(buffer, start[row], stop, key_text, key_ends, only_numbers, out, begin)
        number = interning.intern_text(out, begin, end, table)
        if number < 0:
            return row
        at[nodes[row]], length[nodes[row]] = table.start[number], end - begin
        if table.start[number] == begin:
            used[0] = end
    return len(start)


@jit_in_place
def key_index(buffer: Bytes, at: int, length: int, key_bytes: Bytes, key_ends: Array) -> int:
    """Index of the requested key that these bytes are; -1 if none.

    Requested keys are few, so comparing with each in turn is quicker than a hash of every key read.
    """
    begin = 0
    for k in range(len(key_ends)):
        if key_ends[k] - begin == length:
            i = 0
            while i < length and buffer[at + i] == key_bytes[begin + i]:
                i += 1
            if i == length:
                return k
        begin = key_ends[k]
    return -1


@jit_in_place
def _is_number(buffer: Bytes, at: int, stop: int) -> bool:
    """True if buffer[at:stop] is a number as JSON has it: of others, JSON libraries refuse the whole object."""
    i = at + 1 if buffer[at] == MINUS else at
    whole = i
    i = _skip_digits(buffer, i, stop)
    if i == whole or (buffer[whole] == _0 and i > whole + 1):
        return False
    if i < stop and buffer[i] == _POINT:
        fraction = i + 1
        i = _skip_digits(buffer, fraction, stop)
        if i == fraction:
            return False
    if i < stop and buffer[i] in (_e, _E):
        i += 1
        if i < stop and buffer[i] in (MINUS, _PLUS):
            i += 1
        exponent = i
        i = _skip_digits(buffer, i, stop)
        if i == exponent:
            return False
    return i == stop


@jit_in_place
def _skip_digits(buffer: Bytes, i: int, stop: int) -> int:
    """Offset behind the digits at `i`; compiled, as it is part of the loop over members."""
    while i < stop and _0 <= buffer[i] <= _9:
        i += 1
    return i
