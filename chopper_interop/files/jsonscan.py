"""Trace-event JSON into columns, at the speed of the disk.

A trace of a training step is a JSON array of hundreds of thousands of small objects. Made into
Python objects it takes ten times its size and a second for each 60 MB; here numba loops walk the
text once, give columns of integers, and leave `args` as byte ranges to be looked into later, by
`extract` for a few keys of many events or by a JSON library for a few events.

The walk is tolerant: an event that is no proper JSON is counted and left out, and the walk goes
on at the next place that looks like the start of an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import interning
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.interning import Interned, number_of
from chopper_interop.files.jsontext import (
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    MINUS,
    OPEN,
    OPEN_LIST,
    QUOTE,
    blank,
    brackets,
    decimal,
    integer,
    skip_string,
    skip_value,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

EVENT = np.dtype(
    [
        ("at", np.int64),
        ("ts", np.int64),
        ("dur", np.int64),
        ("pid", np.int64),
        ("tid", np.int64),
        ("id", np.int64),
        ("args_at", np.int64),
        ("args_len", np.int32),
        ("cat", np.int32),
        ("name", np.int32),
        ("ph", np.uint8),
        ("has", np.uint8),
    ],
    align=True,
)
"""One event. `cat` and `name` number the strings (-1: absent); `ts` and `dur` are the text's
number times 1000, which makes nanoseconds of microseconds; `has` tells which were numbers."""

HAS_TS, HAS_DUR, BAD_TIME = 1, 2, 4
TEXT = -(1 << 62)
"""A `pid`, `tid` or `id` that is a string is `TEXT` + the string's number."""

_MOST_TIME = 1 << 61
"""Nanoseconds: a start, a duration and what they count from add up to less than 2**63."""

_LEAST_NUMBER = TEXT // 2
"""Below this lie those of strings; a number so low is taken for a string, too."""

_BATCH = 1 << 14
_STRINGS_PER_EVENT = 5

DONE, MORE, CUT = 0, 1, 2
"""How a walk ended: at the array's end, with more to come, where the text broke off."""

_LONGEST_WORD = 4
_PH, _TS, _DUR, _PID, _TID, _ID, _CAT, _NAME, _ARGS = (
    int.from_bytes(b"\1" + key, "big")
    for key in (b"ph", b"ts", b"dur", b"pid", b"tid", b"id", b"cat", b"name", b"args")
)
"""Keys of an event, as `_word` makes numbers of them."""


@dataclass(frozen=True)
class Events:
    """What `scan` found.

    Parameters
    ----------
    buffer
        The text.
    rows
        One `EVENT` a row, in the order of the text.
    strings
        The distinct strings.
    end
        Where the walk ended: behind the array, or at the end of the text.
    closed
        Whether the array was closed.
    malformed
        Number of pieces that were no proper event.
    malformed_at
        Byte offsets of the first of them.
    """

    buffer: Bytes
    rows: Array
    strings: Interned
    end: int
    closed: bool
    malformed: int
    malformed_at: tuple[int, ...]

    def texts(self) -> list[str]:
        """The distinct strings, unescaped; what is no UTF-8 is replaced by U+FFFD."""
        return [unescape(raw) for raw in self.strings.texts(self.buffer)]


def unescape(raw: bytes) -> str:
    """The text of a JSON string between its quotes; as it stands if that is no proper JSON."""
    if b"\\" not in raw:
        return raw.decode("utf-8", "replace")
    import msgspec

    try:
        return str(msgspec.json.decode(b'"' + raw + b'"'))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.decode("utf-8", "replace")


def scan(buffer: Bytes, start: int) -> Events:
    """Walk the array of events that opens at `start`.

    Parameters
    ----------
    buffer
        The whole text.
    start
        Offset of the array's ``[``.
    """
    most = _BATCH * _STRINGS_PER_EVENT
    strings = interning.interned(2 * most)
    errors = np.zeros(64, np.int64)
    malformed = np.zeros(1, np.int64)
    hopeless = np.zeros(len(buffer), np.bool_)  # costs nothing until it is written to
    batches = []
    at, status = start + 1, MORE
    while status == MORE:
        if strings.known[0] + most > strings.capacity:
            strings = interning.enlarged(strings)
        batch = np.zeros(_BATCH, EVENT)
        at, n, status = _walk(buffer, at, batch, strings, errors, malformed, hopeless)
        batches.append(batch[:n])
    return Events(
        buffer=buffer,
        rows=np.concatenate(batches),
        strings=strings,
        end=at,
        closed=status == DONE,
        malformed=int(malformed[0]),
        malformed_at=tuple(errors[: min(int(malformed[0]), len(errors))].tolist()),
    )


def extract(buffer: Bytes, at: Array, length: Array, keys: Sequence[str]) -> tuple[Array, Array]:
    """Integer values of some keys of many JSON objects.

    Numbers may stand in quotes, and then also in hexadecimal, as HIP's arguments do.

    Parameters
    ----------
    buffer, at, length
        The objects, as byte ranges of a text; length 0 for none.
    keys
        Names of the members to look for.

    Returns
    -------
    values, found
        int64 and bool, each of shape (keys, objects).
    """
    encoded = [key.encode() for key in keys]
    ends = np.cumsum([len(key) for key in encoded])
    wanted = np.frombuffer(b"".join(encoded), np.uint8)
    values = np.zeros((len(keys), len(at)), np.int64)
    found = np.zeros(values.shape, np.bool_)
    _extract(
        buffer, np.ascontiguousarray(at), np.ascontiguousarray(length), wanted, ends, values, found
    )
    return values, found


@jit
def _identity(buffer: Bytes, i: int, n: int, strings: Interned) -> tuple[int, int]:
    """A pid, tid or id, and the offset behind it."""
    end = skip_value(buffer, i, n)
    if end < 0:
        return 0, end
    if buffer[i] == QUOTE:
        return TEXT + number_of(buffer, i + 1, end - 1, strings), end
    value, behind, ok = decimal(buffer, i, end, 0)
    wrapped = value < 0 and buffer[i] != MINUS
    if ok and behind == end and value > _LEAST_NUMBER and not wrapped:
        return value, end
    return TEXT + number_of(buffer, i, end, strings), end


@jit
def _member(
    buffer: Bytes,
    key: int,
    key_end: int,
    i: int,
    n: int,
    event: Any,
    strings: Interned,
) -> int:
    """Take one member of an event over; the offset behind its value, negative if broken."""
    word = _word(buffer, key, key_end)
    text = buffer[i] == QUOTE
    if word == _TS:
        event.ts, end, good = _time(buffer, i, n)
        event.has = event.has | HAS_TS if good else event.has & ~HAS_TS | BAD_TIME
        return end
    if word == _DUR:
        event.dur, end, good = _time(buffer, i, n)
        event.has = event.has | HAS_DUR if good else event.has & ~HAS_DUR | BAD_TIME
        return end
    if word == _PID:
        event.pid, end = _identity(buffer, i, n, strings)
        return end
    if word == _TID:
        event.tid, end = _identity(buffer, i, n, strings)
        return end
    if word == _ID:
        event.id, end = _identity(buffer, i, n, strings)
        return end
    end = skip_value(buffer, i, n)
    if end < 0:
        return end
    if word == _PH:
        event.ph = buffer[i + 1] if text and end == i + 3 else 0
    elif word == _CAT and text:
        event.cat = number_of(buffer, i + 1, end - 1, strings)
    elif word == _NAME:
        cut = 1 if text else 0
        event.name = number_of(buffer, i + cut, end - cut, strings)
    elif word == _ARGS and buffer[i] == OPEN:
        event.args_at, event.args_len = i, end - i
    return end


@jit
def _word(buffer: Bytes, key: int, key_end: int) -> int:
    """A short key's bytes as one number; 0 for a longer one."""
    if key_end - key > _LONGEST_WORD:
        return 0
    word = 1  # so that leading zeros count
    for k in range(key, key_end):
        word = word << 8 | np.int64(buffer[k])
    return word


@jit
def _time(buffer: Bytes, i: int, n: int) -> tuple[int, int, bool]:
    """Nanoseconds of the microseconds at `i`, 0 if they are none; the offset behind them."""
    value, end, ok = integer(buffer, i, n, 3)
    good = ok and -_MOST_TIME < value < _MOST_TIME
    return (value if good else 0), end, good


@jit
def _event(buffer: Bytes, i: int, n: int, event: Any, strings: Interned) -> tuple[int, int]:
    """Take the object that opens at `i` over.

    Returns
    -------
    end, at
        The offset behind it, negative if it is broken; and where the piece of it starts, a value
        or what is none, from which on nothing is known.
    """
    event.at, event.cat, event.name = i, -1, -1
    i = blank(buffer, i + 1, n)
    if i < n and buffer[i] == CLOSE:
        return i + 1, i
    while i < n:
        at = i
        if buffer[i] != QUOTE:
            return -2, at
        key = i + 1
        i = skip_string(buffer, i, n)
        if i < 0:
            return i, at
        key_end = i - 1
        i = blank(buffer, i, n)
        if i >= n or buffer[i] != COLON:
            return -2, i
        i = blank(buffer, i + 1, n)
        if i >= n:
            return -1, i
        at = i
        i = _member(buffer, key, key_end, i, n, event, strings)
        if i < 0:
            return i, at
        i = blank(buffer, i, n)
        if i >= n:
            return -1, i
        if buffer[i] == CLOSE:
            return i + 1, i
        if buffer[i] != COMMA:
            return -2, i
        i = blank(buffer, i + 1, n)
    return -1, n


@jit
def _next_event(buffer: Bytes, i: int, n: int, hopeless: Array) -> int:
    """Offset of the next ``{"`` that follows ``},``: the likely start of an event; n if none."""
    while i < n:
        if buffer[i] == OPEN and not hopeless[i]:
            after = blank(buffer, i + 1, n)
            before = i - 1
            while before > 0 and buffer[before] <= 32:
                before -= 1
            if after < n and buffer[after] == QUOTE and buffer[before] == COMMA:
                before -= 1
                while before > 0 and buffer[before] <= 32:
                    before -= 1
                if buffer[before] == CLOSE and _event_key(buffer, after + 1, n):
                    return i
        i += 1
    return n


@jit
def _event_key(buffer: Bytes, key: int, n: int) -> bool:
    """Whether one of the keys with which writers begin an event stands here."""
    end = key
    while end < n and end - key <= _LONGEST_WORD and buffer[end] != QUOTE:
        end += 1
    if end >= n:
        return False
    return _word(buffer, key, end) in (_PH, _NAME, _CAT, _TS, _PID, _TID, _ARGS)


@jit
def _give_up(buffer: Bytes, at: int, n: int, hopeless: Array) -> None:
    """Note the brackets that do not close where the value at `at` breaks.

    An object that starts at one of them would break at the same place: without this note each
    would be walked to there once more, and a file of n bytes take n**2 steps.
    """
    if at < n and buffer[at] in (OPEN, OPEN_LIST):
        end, opened, depth = brackets(buffer, at, n)
        if end < 0:
            hopeless[opened[:depth]] = True


@jit
def _walk(
    buffer: Bytes,
    i: int,
    batch: Array,
    strings: Interned,
    errors: Array,
    malformed: Array,
    hopeless: Array,
) -> tuple[int, int, int]:
    """Fill a batch with events; where it stopped, how many there are, how it ended."""
    n, count = len(buffer), 0
    while True:
        i = blank(buffer, i, n)
        if i >= n:
            return n, count, CUT
        if buffer[i] == CLOSE_LIST:
            return i + 1, count, DONE
        if buffer[i] == COMMA:
            i += 1
            continue
        if count == len(batch):
            return i, count, MORE
        is_object = buffer[i] == OPEN
        if is_object:
            end, at = _event(buffer, i, n, batch[count], strings)
        else:
            end, at = skip_value(buffer, i, n), i
        if is_object and end > 0:
            count += 1
            i = end
            continue
        batch[count] = np.zeros(1, EVENT)[0]
        if malformed[0] < len(errors):
            errors[malformed[0]] = i
        malformed[0] += 1
        if end < 0:
            _give_up(buffer, at, n, hopeless)
            end = _next_event(buffer, max(at, i + 1), n, hopeless)
        i = end


@jit
def _extract(
    buffer: Bytes, at: Array, length: Array, wanted: Bytes, ends: Array, values: Array, found: Array
) -> None:
    for row in range(len(at)):
        i, n = at[row], at[row] + length[row]
        if length[row] < 2:
            continue
        i = blank(buffer, i + 1, n)
        while i < n and buffer[i] == QUOTE:
            key = i + 1
            i = skip_string(buffer, i, n)
            if i < 0:
                break
            key_end = i - 1
            i = blank(buffer, blank(buffer, i, n) + 1, n)
            if i >= n:
                break
            match = -1
            start = 0
            for k in range(len(ends)):
                if ends[k] - start == key_end - key:
                    same = True
                    for j in range(key_end - key):
                        if wanted[start + j] != buffer[key + j]:
                            same = False
                            break
                    if same:
                        match = k
                        break
                start = ends[k]
            if match >= 0:
                value, i, ok = integer(buffer, i, n, 0)
                values[match, row], found[match, row] = value, ok
            else:
                i = skip_value(buffer, i, n)
            if i < 0:
                break
            i = blank(buffer, i, n)
            if i >= n or buffer[i] != COMMA:
                break
            i = blank(buffer, i + 1, n)
