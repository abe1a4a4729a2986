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

from chopper_interop import interning
from chopper_interop.compiled import jit
from chopper_interop.interning import Interned, number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]
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

_NEWLINE, _QUOTE, _BACKSLASH, _COMMA, _COLON = 10, 34, 92, 44, 58
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_TENTH_OF_LARGEST = np.uint64(1844674407370955161)
_LAST_OF_LARGEST = 53  # 2**64 - 1 ends in 5
_LARGEST_NEGATIVE = np.uint64(1 << 63)
_MOST_DIGITS = 19
_ZERO, _NINE, _MINUS, _PLUS, _DOT = 48, 57, 45, 43, 46


def table(members: bytes, *, but: bool = False) -> Array:
    """Which bytes are among these, or are not: one step for each byte of text."""
    return np.isin(np.arange(256), list(members), invert=but)


_BLANK = table(b" \t\n\v\f\r")
IN_STRING = table(b'"\\\n', but=True)
_NO_BRACKET = table(b'"{}[]', but=True)
_IN_SCALAR = table(bytes(range(33)) + b'":,{}[]', but=True)


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
    batches = []
    at, status = start + 1, MORE
    while status == MORE:
        if strings.known[0] + most > strings.capacity:
            strings = interning.enlarged(strings)
        batch = np.zeros(_BATCH, EVENT)
        at, n, status = _walk(buffer, at, batch, strings, errors, malformed)
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
def skip(buffer: Bytes, i: int, n: int, table: Array) -> int:
    """Offset of the next byte that is not in the table."""
    at, end = np.uint64(i), np.uint64(n)  # never below 0: saves a question at each byte
    while at < end and table[buffer[at]]:
        at += np.uint64(1)
    return np.int64(at)


@jit
def blank(buffer: Bytes, i: int, n: int) -> int:
    """Offset of the next byte that is no white space."""
    return skip(buffer, i, n, _BLANK)


@jit
def skip_string(buffer: Bytes, i: int, n: int) -> int:
    """Offset behind the string whose opening quote is at `i`.

    -1 if it does not end, -2 if it runs over the end of a line: no JSON string does, so a quote
    that was not escaped cannot swallow the events behind it.
    """
    i = skip(buffer, i + 1, n, IN_STRING)
    while i < n and buffer[i] == _BACKSLASH:
        i = skip(buffer, min(i + 2, n), n, IN_STRING)
    if i >= n:
        return -1
    return i + 1 if buffer[i] == _QUOTE else -2


@jit
def skip_value(buffer: Bytes, i: int, n: int) -> int:
    """Offset behind the value that starts at `i`; -1 if it does not end, -2 if it is none."""
    c = buffer[i]
    if c == _QUOTE:
        return skip_string(buffer, i, n)
    if c not in (_OPEN, _OPEN_LIST):
        end = skip(buffer, i, n, _IN_SCALAR)
        if end == n:
            return -1
        ends = buffer[end] in (_COMMA, _CLOSE, _CLOSE_LIST) or buffer[end] <= 32
        return end if end > i and ends else -2
    depth = 0
    while True:
        i = skip(buffer, i, n, _NO_BRACKET)
        if i >= n:
            return -1
        c = buffer[i]
        if c == _QUOTE:
            i = skip_string(buffer, i, n)
            if i < 0:
                return i
            i = blank(buffer, i, n)
            if i < n and buffer[i] not in (_COMMA, _COLON, _CLOSE, _CLOSE_LIST):
                return -2  # a quote that was not escaped
            continue
        depth += 1 if c in (_OPEN, _OPEN_LIST) else -1
        i += 1
        if depth == 0:
            return i


@jit
def _exponent(buffer: Bytes, i: int, n: int) -> tuple[int, int]:
    """The power of ten at `i`, and the offset behind it."""
    negative = i < n and buffer[i] == _MINUS
    if i < n and buffer[i] in (_MINUS, _PLUS):
        i += 1
    power = 0
    while i < n and _ZERO <= buffer[i] <= _NINE:
        power = min(10 * power + buffer[i] - _ZERO, 1000)
        i += 1
    return (-power if negative else power), i


@jit
def decimal(buffer: Bytes, i: int, n: int, decimals: int) -> tuple[int, int, bool]:
    """The number at `i` times 10**decimals, to the nearest integer.

    Returns
    -------
    value, end, ok
        `end` is the offset behind what was taken; `ok` is False if it is no number or does not
        fit. A value above 2**63 - 1 that fits an unsigned integer comes out modulo 2**64.
    """
    negative = i < n and buffer[i] == _MINUS
    if i < n and buffer[i] in (_MINUS, _PLUS):
        i += 1
    value, digits, point, fits = np.uint64(0), 0, -1, True
    while i < n:
        c = buffer[i]
        if c == _DOT and point < 0:
            point = 0
        elif _ZERO <= c <= _NINE:
            digits += 1
            if value < _TENTH_OF_LARGEST or (value == _TENTH_OF_LARGEST and c <= _LAST_OF_LARGEST):
                value = value * np.uint64(10) + np.uint64(c - _ZERO)
                point += 1 if point >= 0 else 0
            elif point < 0:
                fits = False
        else:
            break
        i += 1
    shift = decimals - max(point, 0)
    if digits and i < n and buffer[i] in (69, 101):  # an exponent
        power, i = _exponent(buffer, i + 1, n)
        shift += power
    while shift > 0 and value:
        if value > _TENTH_OF_LARGEST:
            return 0, i, False
        value *= np.uint64(10)
        shift -= 1
    if shift < 0:
        unit = np.uint64(1)
        for _ in range(min(-shift, _MOST_DIGITS)):
            unit *= np.uint64(10)
        rest = value % unit
        value //= unit
        if -shift > _MOST_DIGITS:
            value = np.uint64(0)
        elif rest >= unit - rest:
            value += np.uint64(1)
    if negative and value > _LARGEST_NEGATIVE:
        fits = False
    signed = np.int64(value)
    return (-signed if negative else signed), i, digits > 0 and fits


@jit
def integer(buffer: Bytes, i: int, n: int, decimals: int) -> tuple[int, int, bool]:
    """A number, possibly in quotes, possibly hexadecimal; the offset behind the value."""
    quoted = buffer[i] == _QUOTE
    end = skip_value(buffer, i, n)
    if end < 0:
        return 0, end, False
    at, stop = (i + 1, end - 1) if quoted else (i, end)
    if stop - at > 2 and buffer[at] == _ZERO and buffer[at + 1] in (88, 120):
        value = np.uint64(0)
        for k in range(at + 2, stop):
            c = buffer[k]
            digit = c - 48 if c <= 57 else (c | 32) - 87
            if digit < 0 or digit > 15:
                return 0, end, False
            value = value * np.uint64(16) + np.uint64(digit)
        return np.int64(value), end, stop - at <= 18
    value, behind, ok = decimal(buffer, at, stop, decimals)
    return value, end, ok and behind == stop


@jit
def _identity(buffer: Bytes, i: int, n: int, strings: Interned) -> tuple[int, int]:
    """A pid, tid or id, and the offset behind it."""
    end = skip_value(buffer, i, n)
    if end < 0:
        return 0, end
    if buffer[i] == _QUOTE:
        return TEXT + number_of(buffer, i + 1, end - 1, strings), end
    value, _, ok = decimal(buffer, i, end, 0)
    if ok and value > _LEAST_NUMBER:
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
    size, first = key_end - key, buffer[key]
    last = buffer[key_end - 1] if size else 0
    text = buffer[i] == _QUOTE
    if size == 2 and last == 104 and text:  # ph
        event.ph = buffer[i + 1]
    elif size == 2 and first == 116 and last == 115:  # ts
        event.ts, end, ok = integer(buffer, i, n, 3)
        event.has |= HAS_TS if ok and -_MOST_TIME < event.ts < _MOST_TIME else BAD_TIME
        return end
    elif size == 3 and first == 100:  # dur
        event.dur, end, ok = integer(buffer, i, n, 3)
        event.has |= HAS_DUR if ok and -_MOST_TIME < event.dur < _MOST_TIME else BAD_TIME
        return end
    elif size == 3 and first == 112:  # pid
        event.pid, end = _identity(buffer, i, n, strings)
        return end
    elif size == 3 and first == 116:  # tid
        event.tid, end = _identity(buffer, i, n, strings)
        return end
    elif size == 2 and first == 105:  # id
        event.id, end = _identity(buffer, i, n, strings)
        return end
    elif (text and (size == 3 and first == 99)) or (size == 4 and first == 110):  # cat, name
        end = skip_value(buffer, i, n)
        if end > 0:
            cut = 1 if text else 0
            number = number_of(buffer, i + cut, end - cut, strings)
            if size == 3:
                event.cat = number
            else:
                event.name = number
        return end
    elif size == 4 and first == 97 and buffer[i] == _OPEN:  # args
        end = skip_value(buffer, i, n)
        event.args_at, event.args_len = i, end - i
        return end
    return skip_value(buffer, i, n)


@jit
def _event(buffer: Bytes, i: int, n: int, event: Any, strings: Interned) -> int:
    """Take the object that opens at `i` over; the offset behind it, negative if broken."""
    event.at, event.cat, event.name = i, -1, -1
    i = blank(buffer, i + 1, n)
    if i < n and buffer[i] == _CLOSE:
        return i + 1
    while i < n:
        if buffer[i] != _QUOTE:
            return -2
        key = i + 1
        i = skip_string(buffer, i, n)
        if i < 0:
            return i
        key_end = i - 1
        i = blank(buffer, i, n)
        if i >= n:
            return -1
        if buffer[i] != _COLON:
            return -2
        i = blank(buffer, i + 1, n)
        if i >= n:
            return -1
        i = _member(buffer, key, key_end, i, n, event, strings)
        if i < 0:
            return i
        i = blank(buffer, i, n)
        if i >= n:
            return -1
        if buffer[i] == _CLOSE:
            return i + 1
        if buffer[i] != _COMMA:
            return -2
        i = blank(buffer, i + 1, n)
    return -1


@jit
def _next_event(buffer: Bytes, i: int, n: int) -> int:
    """Offset of the next ``{"`` that follows ``},``: the likely start of an event; n if none."""
    while i < n:
        if buffer[i] == _OPEN:
            after = blank(buffer, i + 1, n)
            before = i - 1
            while before > 0 and buffer[before] <= 32:
                before -= 1
            if after < n and buffer[after] == _QUOTE and buffer[before] == _COMMA:
                before -= 1
                while before > 0 and buffer[before] <= 32:
                    before -= 1
                if buffer[before] == _CLOSE and _event_key(buffer, after + 1, n):
                    return i
        i += 1
    return n


@jit
def _event_key(buffer: Bytes, key: int, n: int) -> bool:
    """Whether one of the keys with which writers begin an event stands here: ph, name, cat, …"""
    if key + 3 >= n:
        return False
    a, b, c = buffer[key], buffer[key + 1], buffer[key + 2]
    return (
        (a == 112 and b == 104 and c == _QUOTE)  # ph
        or (a == 110 and b == 97 and c == 109)  # name
        or (a == 99 and b == 97 and c == 116)  # cat
        or (a == 116 and b == 115 and c == _QUOTE)  # ts
        or (c == 100 and b == 105 and a in (112, 116))  # pid, tid
        or (a == 97 and b == 114 and c == 103)  # args
    )


@jit
def _walk(
    buffer: Bytes,
    i: int,
    batch: Array,
    strings: Interned,
    errors: Array,
    malformed: Array,
) -> tuple[int, int, int]:
    """Fill a batch with events; where it stopped, how many there are, how it ended."""
    n, count = len(buffer), 0
    while True:
        i = blank(buffer, i, n)
        if i >= n:
            return n, count, CUT
        if buffer[i] == _CLOSE_LIST:
            return i + 1, count, DONE
        if buffer[i] == _COMMA:
            i += 1
            continue
        if count == len(batch):
            return i, count, MORE
        if buffer[i] == _OPEN:
            end = _event(buffer, i, n, batch[count], strings)
        else:
            end = skip_value(buffer, i, n)
            end = -3 if end > 0 else end
        if end > 0:
            count += 1
            i = end
            continue
        batch[count] = np.zeros(1, EVENT)[0]
        if malformed[0] < len(errors):
            errors[malformed[0]] = i
        malformed[0] += 1
        i = skip_value(buffer, i, n) if end == -3 else _next_event(buffer, i + 1, n)


@jit
def _extract(
    buffer: Bytes, at: Array, length: Array, wanted: Bytes, ends: Array, values: Array, found: Array
) -> None:
    for row in range(len(at)):
        i, n = at[row], at[row] + length[row]
        if length[row] < 2:
            continue
        i = blank(buffer, i + 1, n)
        while i < n and buffer[i] == _QUOTE:
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
            if i >= n or buffer[i] != _COMMA:
                break
            i = blank(buffer, i + 1, n)
