"""Events of trace-event JSON as columns, at the speed of the disk.

A trace of a training step is a JSON array of hundreds of thousands of small objects. As Python
objects it takes ten times its size and a second for each 60 MB. Here numba loops walk the text
once and return columns of integers. They leave `args` as byte ranges, to be looked into later: by
`extract_integers` for a few keys of many events, or by a JSON library for a few events.

Threads walk pieces of a long text at the same time. A piece begins at what looks like the start of
an event; whether it is one shows when the piece before it has been walked to its end. If that is
elsewhere, or an element is no proper event, the piece is walked again, from where it does begin:
events and numbers of strings are those of one walk, whatever the number of threads.

The walk is tolerant: an event that is no proper JSON is counted and left out, and the walk goes
on at the next position that looks like the start of an event.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.arrays import interning
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.interning import TextTable, intern_text, merge_texts
from chopper_interop.io.json_text import (
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    MINUS,
    OPEN,
    OPEN_LIST,
    QUOTE,
    parse_decimal,
    parse_integer,
    skip_blank,
    skip_string,
    skip_value,
    unclosed_brackets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from chopper_interop.arrays.types import Array, Bytes

EVENT = np.dtype([
    *((name, np.int64) for name in ("at", "ts", "dur", "pid", "tid", "id", "args_at")),
    *((name, np.int32) for name in ("args_len", "cat", "name")),
    *((name, np.uint8) for name in ("ph", "has")),
], align=True)  # fmt: skip
"""One event. `cat` and `name` number the strings (-1: absent); `ts` and `dur` are the text's
number times 1000, which makes nanoseconds of microseconds; `has` are the flags below."""

HAS_TS, HAS_DUR, BAD_TIME = 1, 2, 4
"""Flags of `has`: ``ts`` was a number, ``dur`` was one, one of them was something else."""
TEXT_ID = -(1 << 62)
"""A `pid`, `tid` or `id` that is a string is `TEXT_ID` + the string's number."""

_MAX_TIME_NS = 1 << 61
"""Bound of times: a start, a duration and what they count from then add up to less than 2**63."""

_MIN_NUMBER = TEXT_ID // 2
"""Numbers below this stand for strings; an id of a file that is so low is taken for a string."""

_PIECE = 1 << 23
"""Bytes of a text that a thread walks at a time (chosen: they take some hundredths of a second, so
that little is walked in vain, and threads end at about the same time)."""
_BATCH = 1 << 14
"""Events of a batch (chosen: 1 MiB of rows, which stay in the processor's cache)."""
_STRINGS = 1 << 12
"""Distinct strings that a piece has room for at first (chosen: most have some hundred)."""
_POSITIONS = 64
"""Positions that are kept of elements that are no proper events."""

_DONE, _MORE, _CUT, _REACHED, _DAMAGED = range(5)
"""Ends of a walk: at the array's end, with more to come, where the text breaks off, behind its
piece, at an element that is no proper event."""

_MAX_KEY = 4
"""Bytes of the longest key that is looked for."""
_PH, _TS, _DUR, _PID, _TID, _ID, _CAT, _NAME, _ARGS = (
    int.from_bytes(b"\1" + key, "big")
    for key in (b"ph", b"ts", b"dur", b"pid", b"tid", b"id", b"cat", b"name", b"args")
)
"""Keys of an event, as `_key_number` makes numbers of them."""


@dataclass(frozen=True)
class Events:
    """Events of a text, as `scan` returns them.

    Parameters
    ----------
    buffer
        The text.
    columns
        Each field of `EVENT` as a column, events in the order of the text.
    strings
        The distinct strings.
    end
        Offset at which the walk ended: behind the array, or the end of the text.
    closed
        True if the array was closed.
    malformed
        Number of elements that were no proper event.
    malformed_at
        Byte offsets of the first 64 of them.
    """

    buffer: Bytes
    columns: dict[str, Array]
    strings: TextTable
    end: int
    closed: bool
    malformed: int
    malformed_at: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.columns["at"])

    def texts(self) -> list[str]:
        """Return the distinct strings, unescaped; bytes that are no UTF-8 become U+FFFD."""
        return [unescape(raw) for raw in self.strings.texts(self.buffer)]


def unescape(raw: bytes) -> str:
    """Return the text of a JSON string between its quotes; as it is if that is no proper JSON."""
    if b"\\" not in raw:
        return raw.decode("utf-8", "replace")
    import msgspec

    try:
        return str(msgspec.json.decode(b'"' + raw + b'"'))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.decode("utf-8", "replace")


def scan(buffer: Bytes, start: int) -> Events:
    """Read the array of events that opens at `start`.

    Parameters
    ----------
    buffer
        The whole text.
    start
        Offset of the array's ``[``.
    """
    damage = _Damage.room(_POSITIONS, len(buffer))
    strings = interning.empty_text_table(_STRINGS)
    batches: list[dict[str, Array]] = []
    end, status = start + 1, _REACHED
    for piece in _walked_ahead(_guessed_pieces(buffer, end, damage)):
        if piece.begin != end or piece.status == _DAMAGED:
            piece = _walk_piece(buffer, end, piece.stop, damage)  # noqa: PLW2901 # the right one
        strings = _renumber(buffer, piece, strings)
        batches += piece.batches
        end, status = piece.end, piece.status
        if status != _REACHED:
            break
    malformed = int(damage.number[0])
    return Events(
        buffer=buffer,
        columns={
            name: np.concatenate([b.pop(name) for b in batches]) for name in EVENT.names or ()
        },
        strings=strings,
        end=end,
        closed=status == _DONE,
        malformed=malformed,
        malformed_at=tuple(damage.positions[: min(malformed, _POSITIONS)].tolist()),
    )


class _Damage(NamedTuple):
    """Elements that are no proper events: the first positions, their number, and brackets.

    A walk that has room for no position ends at the first of them. `hopeless` marks the brackets
    that do not close (see `_give_up`).
    """

    positions: Array
    number: Array
    hopeless: Array

    @classmethod
    def room(cls, positions: int, size: int) -> _Damage:
        """Make room for so many positions, of a text of a size; what is not used takes no memory."""
        return cls(np.zeros(positions, np.int64), np.zeros(1, np.int64), np.zeros(size, np.bool_))


class _Piece(NamedTuple):
    """Events of a text that begin from `begin` on and before `stop`, and how their walk ended."""

    begin: int
    stop: int
    batches: list[dict[str, Array]]
    strings: TextTable
    end: int
    status: int


def _guessed_pieces(
    buffer: Bytes, start: int, damage: _Damage
) -> Iterator[tuple[Bytes, int, int, _Damage]]:
    """Yield what `_walk_piece` is called with, for pieces that begin where an event seems to."""
    at_first = _Damage.room(0, 0)
    for begin, stop in pairwise(_borders(buffer, start, damage.hopeless)):
        yield buffer, begin, stop, at_first


def _borders(buffer: Bytes, start: int, hopeless: Array) -> Iterator[int]:
    """Yield `start`, where events seem to begin at about every `_PIECE` bytes, and the end."""
    n = len(buffer)
    yield start
    for at in range(start + _PIECE, n, _PIECE):
        limit = min(at + _PIECE, n)
        border = _next_event(buffer, at, limit, hopeless)
        if border < limit:
            yield border
    yield n


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that all of a process share, for walks, which run without Python's lock."""
    return ThreadPoolExecutor(os.cpu_count(), "chopper-interop")


if hasattr(os, "register_at_fork"):  # a process that is forked has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _walked_ahead(pieces: Iterable[tuple[Bytes, int, int, _Damage]]) -> Iterator[_Piece]:
    """Yield walked pieces in order, while threads walk the next ones: two for each thread are under way."""
    waiting: deque[Future[_Piece]] = deque()
    pieces = iter(pieces)
    first, second = next(pieces), next(pieces, None)
    if second is None:  # handing over a text of one piece takes longer than a short walk
        yield _walk_piece(*first)
        return
    try:
        for piece in chain((first, second), pieces):
            waiting.append(_pool().submit(_walk_piece, *piece))
            if len(waiting) > 2 * (os.cpu_count() or 1):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _walk_piece(buffer: Bytes, begin: int, stop: int, damage: _Damage) -> _Piece:
    """Read the events from `begin` on and before `stop`."""
    strings = interning.empty_text_table(_STRINGS)
    batches: list[dict[str, Array]] = []
    rows = np.empty(_BATCH, EVENT)
    end, status = begin, _MORE
    while status == _MORE:
        if strings.used[0] == strings.capacity:
            strings = interning.enlarged_text_table(strings)
        end, count, status = _walk(buffer, end, rows, stop, strings, damage)
        batches.append({name: rows[name][:count].copy() for name in EVENT.names or ()})
    return _Piece(begin, stop, batches, strings, end, status)


def _renumber(buffer: Bytes, piece: _Piece, strings: TextTable) -> TextTable:
    """Give a piece's strings the numbers that they have in the whole text; return its table."""
    used = int(piece.strings.used[0])
    while strings.used[0] + used > strings.capacity:
        strings = interning.enlarged_text_table(strings)
    number = np.full(used + 1, -1, np.int32)  # the last of an event without such a string
    merge_texts(buffer, piece.strings, strings, number)
    for batch in piece.batches:
        for name in ("cat", "name"):
            batch[name] = number[batch[name]]
        for name in ("pid", "tid", "id"):
            textual = np.flatnonzero(batch[name] < TEXT_ID + used)
            batch[name][textual] = number[batch[name][textual] - TEXT_ID] + np.int64(TEXT_ID)
    return strings


def extract_integers(
    buffer: Bytes, at: Array, length: Array, keys: Sequence[str]
) -> tuple[Array, Array]:
    """Return integer values of some keys of many JSON objects.

    Numbers may be quoted or hexadecimal, as HIP's arguments are.

    Parameters
    ----------
    buffer, at, length
        The objects, as byte ranges of a text; length 0 for none.
    keys
        Names of the members to look for.

    Returns
    -------
    values, present
        int64, and True where an object has the key with such a number; each (keys, objects).
    """
    encoded = [key.encode() for key in keys]
    ends = np.cumsum([len(key) for key in encoded])
    names = np.frombuffer(b"".join(encoded), np.uint8)
    values = np.zeros((len(keys), len(at)), np.int64)
    present = np.zeros(values.shape, np.bool_)
    _extract(
        buffer, np.ascontiguousarray(at), np.ascontiguousarray(length), names, ends, values, present
    )
    return values, present


@jit_in_place
def _identity(buffer: Bytes, i: int, n: int, strings: TextTable) -> tuple[int, int]:
    """A pid, tid or id as a number, and the offset behind it; a string as `EVENT` says."""
    end = skip_value(buffer, i, n)
    if end < 0:
        return 0, end
    if buffer[i] == QUOTE:
        return TEXT_ID + intern_text(buffer, i + 1, end - 1, strings), end
    value, behind, ok = parse_decimal(buffer, i, end, 0)
    wrapped = value < 0 and buffer[i] != MINUS
    if ok and behind == end and value > _MIN_NUMBER and not wrapped:
        return value, end
    return TEXT_ID + intern_text(buffer, i, end, strings), end


@jit_in_place
def _member(
    buffer: Bytes,
    key: int,
    key_end: int,
    i: int,
    n: int,
    event: Any,
    strings: TextTable,
) -> int:
    """Read one member of an event into it; the offset behind its value, negative if broken."""
    word = _key_number(buffer, key, key_end)
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
        event.cat = intern_text(buffer, i + 1, end - 1, strings)
    elif word == _NAME:
        quote = 1 if text else 0
        event.name = intern_text(buffer, i + quote, end - quote, strings)
    elif word == _ARGS and buffer[i] == OPEN:
        event.args_at, event.args_len = i, end - i
    return end


@jit_in_place
def _key_number(buffer: Bytes, key: int, key_end: int) -> int:
    """Bytes of a short key as one number, to compare keys in one step; 0 for a longer one."""
    if key_end - key > _MAX_KEY:
        return 0
    word = 1  # so that leading zeros count
    for k in range(key, key_end):
        word = word << 8 | np.int64(buffer[k])
    return word


@jit_in_place
def _time(buffer: Bytes, i: int, n: int) -> tuple[int, int, bool]:
    """Nanoseconds of the microseconds at `i`, 0 if there are none; offset behind; if it is a time."""
    value, end, ok = parse_integer(buffer, i, n, 3)
    good = ok and -_MAX_TIME_NS < value < _MAX_TIME_NS
    return (value if good else 0), end, good


@jit_in_place
def _event(buffer: Bytes, i: int, n: int, event: Any, strings: TextTable) -> tuple[int, int]:
    """Read the object that opens at `i` into an event.

    Returns
    -------
    end, at
        The offset behind it, negative if it is broken; and then where the part of it begins that
        could not be read.
    """
    event.at, event.ts, event.dur, event.pid, event.tid, event.id = i, 0, 0, 0, 0, 0
    event.args_at, event.args_len, event.cat, event.name = 0, 0, -1, -1
    event.ph, event.has = 0, 0
    i = skip_blank(buffer, i + 1, n)
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
        i = skip_blank(buffer, i, n)
        if i >= n or buffer[i] != COLON:
            return -2, i
        i = skip_blank(buffer, i + 1, n)
        if i >= n:
            return -1, i
        at = i
        i = _member(buffer, key, key_end, i, n, event, strings)
        if i < 0:
            return i, at
        i = skip_blank(buffer, i, n)
        if i >= n:
            return -1, i
        if buffer[i] == CLOSE:
            return i + 1, i
        if buffer[i] != COMMA:
            return -2, i
        i = skip_blank(buffer, i + 1, n)
    return -1, n


@jit_in_place
def _next_event(buffer: Bytes, i: int, n: int, hopeless: Array) -> int:
    """Offset of the next ``{"`` that follows ``},``: the likely start of an event; n if none."""
    while i < n:
        if buffer[i] == OPEN and not hopeless[i]:
            after = skip_blank(buffer, i + 1, n)
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


@jit_in_place
def _event_key(buffer: Bytes, key: int, n: int) -> bool:
    """True if at `key` stands one of the keys with which writers begin an event."""
    end = key
    while end < n and end - key <= _MAX_KEY and buffer[end] != QUOTE:
        end += 1
    if end >= n:
        return False
    return _key_number(buffer, key, end) in (_PH, _NAME, _CAT, _TS, _PID, _TID, _ARGS)


@jit
def _give_up(buffer: Bytes, at: int, n: int, hopeless: Array) -> None:
    """Mark the brackets that do not close where the value at `at` breaks.

    An object that starts at one of them would break at the same position. Without the marks each
    would be walked to there once more, and a file of n bytes would take n**2 steps.
    """
    if at < n and buffer[at] in (OPEN, OPEN_LIST):
        end, opened, depth = unclosed_brackets(buffer, at, n)
        if end < 0:
            hopeless[opened[:depth]] = True


@jit_in_place
def _walk(
    buffer: Bytes, i: int, batch: Array, stop: int, strings: TextTable, damage: _Damage
) -> tuple[int, int, int]:
    """Fill a batch with events; the offset reached, the number of events, and how it ended.

    Written to, besides: distinct `strings` and `damage`. If the strings are full, some of the last
    event may lack: it is left to the next walk.
    """
    n, count = len(buffer), 0
    while True:
        i = skip_blank(buffer, i, n)
        if i >= n:
            return n, count, _CUT
        if buffer[i] == CLOSE_LIST:
            return i + 1, count, _DONE
        if buffer[i] == COMMA:
            i += 1
            continue
        if i >= stop:
            return i, count, _REACHED
        if count == len(batch):
            return i, count, _MORE
        is_object = buffer[i] == OPEN
        if is_object:
            end, at = _event(buffer, i, n, batch[count], strings)
        else:
            end, at = skip_value(buffer, i, n), i
        if strings.used[0] == len(strings.start):
            return i, count, _MORE
        if is_object and end > 0:
            count += 1
            i = end
            continue
        if len(damage.positions) == 0:
            return i, count, _DAMAGED
        if damage.number[0] < len(damage.positions):
            damage.positions[damage.number[0]] = i
        damage.number[0] += 1
        if end < 0:
            _give_up(buffer, at, n, damage.hopeless)
            end = _next_event(buffer, max(at, i + 1), n, damage.hopeless)
        i = end


@jit_in_place
def _extract(
    buffer: Bytes,
    at: Array,
    length: Array,
    names: Bytes,
    ends: Array,
    values: Array,
    present: Array,
) -> None:
    """Write values of keys, whose `names` lie one behind the other, to `values` and `present`.

    Members of other keys are skipped, not parsed.
    """
    for row in range(len(at)):
        i, n = at[row], at[row] + length[row]
        if length[row] < 2:
            continue
        i = skip_blank(buffer, i + 1, n)
        while i < n and buffer[i] == QUOTE:
            key = i + 1
            i = skip_string(buffer, i, n)
            if i < 0:
                break
            key_end = i - 1
            i = skip_blank(buffer, skip_blank(buffer, i, n) + 1, n)
            if i >= n:
                break
            match = -1
            start = 0
            for k in range(len(ends)):
                if ends[k] - start == key_end - key:
                    same = True
                    for j in range(key_end - key):
                        if names[start + j] != buffer[key + j]:
                            same = False
                            break
                    if same:
                        match = k
                        break
                start = ends[k]
            if match >= 0:
                value, i, ok = parse_integer(buffer, i, n, 0)
                values[match, row], present[match, row] = value, ok
            else:
                i = skip_value(buffer, i, n)
            if i < 0:
                break
            i = skip_blank(buffer, i, n)
            if i >= n or buffer[i] != COMMA:
                break
            i = skip_blank(buffer, i + 1, n)
