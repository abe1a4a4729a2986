"""Events of trace-event JSON as columns, at the speed of the disk.

A trace of a training step is a JSON array of hundreds of thousands of small objects. As Python
objects it takes ten times its size and a second for each 60 MB. Here numba loops walk the text
once and return columns of integers. They leave `args` as byte ranges, to be looked into later: by
`extract_integers` for a few keys of many events, or by a JSON library for a few events.

Threads walk pieces of a long text at the same time, which are all of it that is in memory: arguments
and distinct strings are copied out of them. A piece begins at what looks like the start of
an event; whether it is one shows when the piece before it has been walked to its end. If that is
elsewhere, or an element is no proper event, the piece is walked again, from where it does begin,
and with those behind it if what is in it leaves open how it goes on:
events and numbers of strings are those of one walk, whatever the number of threads.

The walk is tolerant: an event that is no proper JSON is counted and left out, and the walk goes
on at the next position that looks like the start of an event.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes, interning
from chopper_interop.arrays.compiled import jit, jit_in_place, jit_inlined
from chopper_interop.arrays.interning import TextTable, intern_text, merge_texts, word_at
from chopper_interop.io import json_members
from chopper_interop.io.background import ahead, each, threads
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
    plain_number,
    skip_blank,
    skip_string,
    skip_value,
    unclosed_brackets,
)
from chopper_interop.io.wire import copy_bytes

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import TypeAlias

    from chopper_interop.io.inputs import TextWindow

    Select: TypeAlias = Callable[[Bytes, Array, list[bytes]], Array]

EVENT = np.dtype([
    *((name, np.int64) for name in ("at", "ts", "dur", "pid", "tid", "id", "args_at")),
    *((name, np.int32) for name in ("args_len", "cat", "name")),
    *((name, np.uint8) for name in ("ph", "has")),
], align=True)  # fmt: skip
"""One event. `at` is its offset in the text, `args_at` that of its arguments among all arguments.
`cat` and `name` number the strings (-1: absent); `ts` and `dur` are the text's
number times 1000, which makes nanoseconds of microseconds; `has` are the flags below."""

HAS_TS, HAS_DUR, BAD_TIME, HAS_BIND_ID, IS_EMPTY, BAD_ARGS = 1, 2, 4, 8, 16, 32
"""Flags of `has`: ``ts`` was a number, ``dur`` was one, one of them was something else, the event has a
``bind_id``, it is ``{}``, its ``args`` hold something and are no object."""
_NULL = ord("n")
"""Begins ``null``."""
TEXT_ID = -(1 << 62)
"""A `pid`, `tid` or `id` that is a string is `TEXT_ID` + the string's number."""

_MAX_TIME_NS = 1 << 61
"""Bound of times: a start, a duration and what they count from then add up to less than 2**63."""

_MIN_NUMBER = TEXT_ID // 2
"""Numbers below this stand for strings; an id of a file that is so low is taken for a string."""

_PIECE = 1 << 22
"""Bytes of a text that a thread walks at a time (chosen: they take a hundredth of a second, so
that little is walked in vain, and stay in the processor's cache from reading to copying)."""
_READ_AHEAD = 1 << 25
"""Bytes of a text from which on a thread more reads it (chosen: of fewer, handing over takes as long as it saves)."""
_MAX_AHEAD = 8
"""Pieces that are under way at most (chosen: reading a text takes a fifth of the time of walking it, so that
more than five threads would wait)."""
_MIN_GROWTH = 1.25
"""Times as large as what it must hold that an array is made at least (chosen: a text in which events get shorter has
it moved a few times)."""
_MORE_THAN_EXPECTED = 1.5
"""Times as many events, arguments and strings as in the text so far that the rest is given room for (chosen: the first piece
of a real trace had two thirds of the events of later ones; moving them all took longer than all other copies)."""
_BATCH = 1 << 14
"""Events of a batch (chosen: 1 MiB of rows, which stay in the processor's cache)."""
_OBJECTS = 1 << 16
"""Objects that a thread looks into at a time (chosen: they take some milliseconds, a hundred times what handing over does)."""
_STRINGS = 1 << 12
"""Distinct strings that a piece has room for at first (chosen: most have some hundred)."""
_SHORT_EVENT = 32
"""Bytes of a short text for each event that there is room for (chosen: Kineto's events have a hundred and more)."""
_POSITIONS = 64
"""Positions that are kept of elements that are no proper events."""

_DONE, _MORE, _CUT, _REACHED, _DAMAGED = range(5)
"""Ends of a walk: at the array's end, with more to come, where the text breaks off, behind its
piece, at an element that is no proper event."""

_PH, _TS, _DUR, _PID, _TID, _ID, _CAT, _NAME, _ARGS, _BIND_ID = (
    np.uint64(int.from_bytes(key + b'"', "little"))
    for key in (b"ph", b"ts", b"dur", b"pid", b"tid", b"id", b"cat", b"name", b"args", b"bind_id")
)
"""Keys of an event with the quote behind them, as `_word` makes numbers of bytes; the longest one fills the number."""
_THREE, _FOUR, _FIVE = (np.uint64(256**count - 1) for count in (3, 4, 5))
"""Masks of so many bytes of a number: of shorter keys with their quotes."""
_SPACE = ord(" ")


@dataclass(frozen=True)
class Events:
    """Events of a text, as `scan` returns them.

    Parameters
    ----------
    args
        The arguments of all events, one behind the other.
    columns
        Each field of `EVENT` as a column, events in the order of the text.
    strings
        The distinct strings, between their quotes.
    end
        Offset at which the walk ended: behind the array, or the end of the text.
    closed
        True if the array was closed.
    malformed
        Number of elements that were no proper event.
    malformed_at
        Byte offsets of the first 64 of them.
    """

    args: Bytes
    columns: dict[str, Array]
    strings: list[bytes]
    end: int
    closed: bool
    malformed: int
    malformed_at: tuple[int, ...]
    left_out: int = 0
    """Number of events that the caller of `scan` did not select."""

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.columns["at"])

    def texts(self) -> list[str]:
        """Return the distinct strings, unescaped; bytes that are no UTF-8 become U+FFFD."""
        return [unescape(raw) for raw in self.strings]


def unescape(raw: bytes) -> str:
    """Return the text of a JSON string between its quotes; as it is if that is no proper JSON."""
    if b"\\" not in raw:
        return raw.decode("utf-8", "replace")
    import msgspec

    try:
        return str(msgspec.json.decode(b'"' + raw + b'"'))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.decode("utf-8", "replace")


def scan(text: TextWindow, start: int, select: Select | None = None) -> Events:
    """Read the array of events that opens at an offset of the window; the window then begins behind it.

    Parameters
    ----------
    text, start
        The window, and the offset.
    select
        ``(window, rows, strings) -> mask`` of the events that are kept, called of some at a time by threads, also of
        what turns out to be none; by default all are.
    """
    events = _Collected(text.expected)
    end, status = text.base + start + 1, _REACHED
    open_pieces: deque[_Piece] = deque()  # those behind `end`, in their order
    undecided, tried = 0, 0  # of these, how many are walked, and how many bytes did not do together
    pieces = _guessed_pieces(text, start + 1, open_pieces)
    walk_piece = partial(_walk_piece, keys=json_members.LOOKED_FOR.get(), select=select)
    if text.expected >= _READ_AHEAD:
        pieces = ahead(pieces)
    with closing(_walked_ahead(pieces, walk_piece)) as walks:
        for walk in walks:
            undecided += 1
            if undecided > 1 or not _is_right(walk, end):
                whole = _joined([open_pieces[k] for k in range(undecided)], end)
                if len(whole.window) < 2 * tried and not whole.is_last:
                    continue
                walk = walk_piece(whole, _Damage.room(_POSITIONS, len(whole.window)))  # noqa: PLW2901 # the right one
                if walk.status == _CUT and not whole.is_last:
                    tried = len(whole.window)
                    continue
            end, status = walk.piece.base + walk.end, walk.status
            if status != _REACHED:
                events.add(walk)
                break
            windows = [open_pieces.popleft().window for _ in range(undecided)]
            events.add(walk, partial(_reuse, text, windows))
            undecided = tried = 0
    # the window is the last piece, or begins behind it, if there was no memory to make the next one
    behind = [piece for piece in open_pieces if piece.base + piece.stop <= text.base]
    text.put_back([piece.window[: piece.stop] for piece in behind], end)
    return events.finish(end, closed=status == _DONE)


def scan_short(texts: Sequence[tuple[bytes, int]]) -> list[Events | None]:
    """Read the arrays of events of short texts, which open at these offsets; None where only `scan` can.

    Buffers are of all texts: to make some for each would take longer than the walk of a few events.
    """
    begin = np.cumsum([0, *(len(text) for text, _ in texts)])
    window = np.frombuffer(bytearray(b"".join(text for text, _ in texts)), np.uint8)
    rows = np.empty(len(window) // _SHORT_EVENT + 1, EVENT)
    strings = interning.empty_text_table(_STRINGS)
    damage = _Damage.room(0, 0)
    walks, used = [], 0
    for k, (text, start) in enumerate(texts):
        strings.slots.fill(-1)
        strings.used[0] = 0
        view = window[begin[k] : begin[k + 1]]
        end, count, status = _walk(view, start + 1, rows[used:], len(text), True, strings, damage)
        count = count if status == _DONE else 0
        walks.append((used, used + count, end, strings.texts(view), status == _DONE))
        used += count
    columns = {name: rows[name][:used].copy() for name in EVENT.names or ()}
    text_of = np.repeat(np.arange(len(texts)), [behind - first for first, behind, *_ in walks])
    length = columns["args_len"]
    args_at = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
    args = np.empty(args_at[-1], np.uint8)
    columns["args_at"] += begin[text_of]
    _copy_arguments(window, columns["args_at"], length, args, 0)
    first_args = args_at[[first for first, *_ in walks]]
    columns["args_at"] = np.where(length > 0, columns["args_at"] - first_args[text_of], 0)
    return [
        Events(
            args=args[args_at[first] : args_at[behind]],
            columns={name: column[first:behind] for name, column in columns.items()},
            strings=of_text,
            end=end,
            closed=True,
            malformed=0,
            malformed_at=(),
        )
        if is_done
        else None
        for first, behind, end, of_text, is_done in walks
    ]


class _Damage(NamedTuple):
    """Elements that are no proper events: the first positions, their number, and brackets.

    A walk that has room for no position ends at the first of them. `hopeless` marks the brackets
    that do not close (see `_give_up`), and `number` [1] is the offset behind the last of them.
    """

    positions: Array
    number: Array
    hopeless: Array

    @classmethod
    def room(cls, positions: int, size: int) -> _Damage:
        """Make room for so many positions, of a text of a size; what is not used takes no memory."""
        return cls(np.zeros(positions, np.int64), np.zeros(2, np.int64), np.zeros(size, np.bool_))


class _Piece(NamedTuple):
    """Events of a text that begin from `begin` on and before `stop`, offsets of a window at `base` of the text."""

    window: Bytes
    base: int
    begin: int
    stop: int
    is_last: bool


class _Walk(NamedTuple):
    """Events and strings of a piece, and how its walk ended; offsets are those of its window, of arguments in `args`."""

    piece: _Piece
    batches: list[Array]
    args: Bytes
    strings: TextTable
    end: int
    status: int
    damage: _Damage
    left_out: int


def _guessed_pieces(
    text: TextWindow, begin: int, open_pieces: deque[_Piece]
) -> Generator[tuple[_Piece, _Damage]]:
    """Yield what `_walk_piece` is called with, for pieces that end where an event seems to begin."""
    at_first = _Damage.room(0, 0)
    if not text.complete:  # what is in a piece says how much room the rest needs
        text.move(0, _PIECE)
    while True:
        window = text.bytes
        stop = len(window) if text.complete else _last_event(window, begin)
        if stop < 0:
            text.extend()
            continue
        open_pieces.append(_Piece(window, text.base, begin, stop, text.complete))
        yield open_pieces[-1], at_first
        if text.complete:
            return
        text.move(stop, _PIECE)
        begin = 0


def _is_right(walk: _Walk, end: int) -> bool:
    """True if a piece that was walked on a guess begins at `end`, and no more of the text would change what it has."""
    piece, status = walk.piece, walk.status
    is_decided = status in (_REACHED, _DONE) or (status == _CUT and piece.is_last)
    return piece.base + piece.begin == end and is_decided


def _joined(pieces: list[_Piece], start: int) -> _Piece:
    """Return pieces as one, with events from an offset of the text on."""
    last = pieces[-1]
    parts = [piece.window[: piece.stop] for piece in pieces[:-1]]
    window = np.concatenate([*parts, last.window]) if parts else last.window
    base = pieces[0].base
    return last._replace(
        window=window, base=base, begin=start - base, stop=last.base + last.stop - base
    )


def _walked_ahead(
    pieces: Generator[tuple[_Piece, _Damage]], walk_piece: Callable[[_Piece, _Damage], _Walk]
) -> Generator[_Walk]:
    """Yield walked pieces in order, while threads walk the next ones: two for each thread are under way.

    When it is closed, no thread goes on with the pieces.
    """
    waiting: deque[Future[_Walk]] = deque()
    try:
        first = next(pieces)
        if first[0].is_last:  # handing over a text of one piece takes longer than a short walk
            yield walk_piece(*first)
            return
        for piece in chain((first,), pieces):
            waiting.append(threads().submit(walk_piece, *piece))
            if len(waiting) > min(2 * (os.cpu_count() or 1), _MAX_AHEAD):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        pieces.close()


def _walk_piece(
    piece: _Piece, damage: _Damage, keys: json_members.Keys | None, select: Select | None
) -> _Walk:
    """Read the selected events of a piece; of spans, the arguments with these keys and those that are no numbers."""
    strings = interning.empty_text_table(_STRINGS)
    batches: list[Array] = []
    end, status = piece.begin, _MORE
    while status == _MORE:
        if strings.used[0] == strings.capacity:
            strings = interning.enlarged_text_table(strings)
        rows = np.empty(_BATCH, EVENT)
        end, count, status = _walk(
            piece.window, end, rows, piece.stop, piece.is_last, strings, damage
        )
        batches.append(rows[:count])
    count = sum(map(len, batches))
    if select is not None:
        texts = strings.texts(piece.window)
        batches = [rows[select(piece.window, rows, texts)] for rows in batches]
    left_out = count - sum(map(len, batches))
    args = piece.window if keys is None else json_members.looked_for_in(piece.window, batches, keys)
    return _Walk(piece, batches, args, strings, end, status, damage, left_out)


def _reuse(text: TextWindow, windows: list[Bytes]) -> None:
    """Give windows back of which all events are copied."""
    for window in windows:
        text.reuse(window)


class _Columns(NamedTuple):
    """The fields of `EVENT`, each as a column."""

    at: Array
    ts: Array
    dur: Array
    pid: Array
    tid: Array
    id: Array
    args_at: Array
    args_len: Array
    cat: Array
    name: Array
    ph: Array
    has: Array


class _Collected:
    """Events of the pieces of a text of about so many bytes, with copies of their arguments and strings.

    Threads copy them, each piece to where it goes::

        columns   | piece 1 | piece 2 |  3 | piece 4   |   room   |
                    copied    thread A   copied  thread B

    Copying takes twice as long as walking where memory is touched for the first time.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._growth = _MIN_GROWTH
        self._columns = _Columns(*(np.empty(0, EVENT[name]) for name in _Columns._fields))
        self._count = 0
        self._args = np.empty(0, np.uint8)
        self._args_size = 0
        self._table = interning.empty_text_table(_STRINGS)
        self._strings = np.empty(0, np.uint8)
        self._strings_size = 0
        self._malformed = 0
        self._malformed_at: list[int] = []
        self._left_out = 0
        self._copies: deque[Future[None]] = deque()

    def add(self, walk: _Walk, behind: Callable[[], None] = lambda: None) -> None:
        """Add the events of the next piece; call `behind` when its window is not used any more, by any thread."""
        malformed, base = int(walk.damage.number[0]), walk.piece.base
        self._growth = max(_MORE_THAN_EXPECTED * self._expected / (base + walk.end), _MIN_GROWTH)
        self._malformed += malformed
        self._left_out += walk.left_out
        self._malformed_at += (walk.damage.positions[:malformed] + base).tolist()
        number = self._number_strings(walk)
        count = sum(map(len, walk.batches))
        size = int(sum(rows["args_len"].sum(dtype=np.int64) for rows in walk.batches))
        self._make_room(count, size)
        copy = partial(
            _copy, walk, number, self._columns, self._count, self._args, self._args_size, behind
        )
        self._count += count
        self._args_size += size
        if walk.piece.is_last and not self._copies:  # a short text
            copy()
            return
        self._copies.append(threads().submit(copy))
        if len(self._copies) > min(os.cpu_count() or 1, _MAX_AHEAD):
            self._copies.popleft().result()

    def _make_room(self, count: int, size: int) -> None:
        """Have room in all columns for more events, and for their arguments."""
        is_enough = self._count + count <= len(self._columns.at)
        if is_enough and self._args_size + size <= len(self._args):
            return
        self._wait()
        self._columns = _Columns(*(self._with_room(c, self._count, count) for c in self._columns))
        self._args = self._with_room(self._args, self._args_size, size)

    def _wait(self) -> None:
        """Wait until all is copied."""
        while self._copies:
            self._copies.popleft().result()

    def _number_strings(self, walk: _Walk) -> Array:
        """Numbers in the whole text of a piece's strings; a last one of an event without such a string."""
        strings, used = walk.strings, int(walk.strings.used[0])
        while self._table.used[0] + used > self._table.capacity:
            self._table = interning.enlarged_text_table(self._table)
        size = int(strings.length[:used].sum())
        self._strings = self._with_room(self._strings, self._strings_size, size)
        number = np.full(used + 1, -1, np.int32)
        self._strings_size = merge_texts(
            walk.piece.window, strings, self._strings, self._strings_size, self._table, number
        )
        return number

    def _with_room(self, values: Array, used: int, more: int) -> Array:
        """Return an array with the used values and room for more: as many as the whole text has by what is known.

        Room that is never used takes no memory; moving to a larger array would take twice as much for a while.
        """
        if used + more <= len(values):
            return values
        larger = np.empty(int((used + more) * self._growth) + 1, values.dtype)
        larger[:used] = values[:used]
        return larger

    def finish(self, end: int, *, closed: bool) -> Events:
        """Return all of them."""
        self._wait()
        return Events(
            args=self._args[: self._args_size],
            columns={n: column[: self._count] for n, column in self._columns._asdict().items()},
            strings=self._table.texts(self._strings),
            end=end,
            closed=closed,
            malformed=self._malformed,
            malformed_at=tuple(self._malformed_at[:_POSITIONS]),
            left_out=self._left_out,
        )


def _copy(
    walk: _Walk,
    number: Array,
    columns: _Columns,
    count: int,
    args: Bytes,
    used: int,
    behind: Callable[[], None],
) -> None:
    """Append the events of a piece, as `_append` does, and call `behind`."""
    for rows in walk.batches:
        used = _append(walk.args, walk.piece.base, rows, number, columns, count, args, used)
        count += len(rows)
    behind()


@jit_in_place
def _append(
    source: Bytes,
    base: int,
    rows: Array,
    number: Array,
    columns: _Columns,
    count: int,
    args: Bytes,
    used: int,
) -> int:
    """Append events to columns that have so many, and their arguments to those kept, of which so many bytes are used.

    Their strings get other numbers; a last `number` is that of none. Compiled, as it is one pass over rows instead
    of one for each column.
    """
    textual = TEXT_ID + len(number) - 1
    for k in range(len(rows)):
        row, i = rows[k], count + k
        columns.at[i] = row.at + base
        columns.ts[i], columns.dur[i] = row.ts, row.dur
        columns.pid[i] = _renumbered(row.pid, textual, number)
        columns.tid[i] = _renumbered(row.tid, textual, number)
        columns.id[i] = _renumbered(row.id, textual, number)
        columns.args_at[i], columns.args_len[i] = 0, row.args_len
        columns.cat[i], columns.name[i] = number[row.cat], number[row.name]
        columns.ph[i], columns.has[i] = row.ph, row.has
        if row.args_len:
            columns.args_at[i] = used
            used = copy_bytes(args, used, source, row.args_at, row.args_at + row.args_len)
    return used


@jit_in_place
def _renumbered(value: int, textual: int, number: Array) -> int:
    """A pid, tid or id; of one below `textual`, which is a string, with another number of it."""
    return value if value >= textual else number[value - TEXT_ID] + TEXT_ID


@jit_in_place
def _copy_arguments(window: Bytes, at: Array, length: Array, kept: Bytes, used: int) -> int:
    """Append the arguments of events to those kept, of which so many bytes are used; `at` is where they are then.

    Compiled, as each is of some hundred bytes.
    """
    for k in range(len(at)):
        if length[k]:
            start = at[k]
            at[k] = used
            used = copy_bytes(kept, used, window, start, start + length[k])
    return used


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
        Names of the members to look for, 63 at most; of equal ones in an object the first counts.

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
    at, length = np.ascontiguousarray(at), np.ascontiguousarray(length)

    def extract(first: int) -> None:
        behind = min(first + _OBJECTS, len(at))
        _extract(buffer, at, length, first, behind, names, ends, values, present)

    each(extract, range(0, len(at), _OBJECTS))
    return values, present


@jit_inlined
def _identity(buffer: Bytes, i: int, n: int, strings: TextTable) -> tuple[int, int]:
    """A pid, tid or id as a number, and the offset behind it; a string as `EVENT` says."""
    short, end = plain_number(buffer, i, n, 0)
    if end > i:
        return short, end
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


@jit_inlined
def _member(buffer: Bytes, i: int, n: int, event: Any, strings: TextTable) -> tuple[int, int]:
    """Read the member whose key's opening quote is at `i` into an event.

    Where its value begins follows from which key it is by a jump: processors guess jumps, and go on before they know the
    bytes of the key, which a sum would wait for.

    Returns
    -------
    end, at
        The offset behind the value, negative if it is broken; and then where what is broken begins.
    """
    word = _word(buffer, i + 1, n)
    if word & _THREE == _TS:
        at = _value(buffer, i + 4, n)
        if 0 <= at < n:
            event.ts, end, good = _time(buffer, at, n)
            event.has = event.has | HAS_TS if good else event.has & ~HAS_TS | BAD_TIME
            return end, at
    elif word & _FOUR == _DUR:
        at = _value(buffer, i + 5, n)
        if 0 <= at < n:
            event.dur, end, good = _time(buffer, at, n)
            event.has = event.has | HAS_DUR if good else event.has & ~HAS_DUR | BAD_TIME
            return end, at
    elif word & _FOUR == _PID:
        at = _value(buffer, i + 5, n)
        if 0 <= at < n:
            event.pid, end = _identity(buffer, at, n, strings)
            return end, at
    elif word & _FOUR == _TID:
        at = _value(buffer, i + 5, n)
        if 0 <= at < n:
            event.tid, end = _identity(buffer, at, n, strings)
            return end, at
    elif word & _THREE == _ID:
        at = _value(buffer, i + 4, n)
        if 0 <= at < n:
            event.id, end = _identity(buffer, at, n, strings)
            return end, at
    else:
        return _text_member(buffer, word, i, n, event, strings)
    return _broken(at, n)


@jit_inlined
def _text_member(
    buffer: Bytes, word: np.uint64, i: int, n: int, event: Any, strings: TextTable
) -> tuple[int, int]:
    """Do what `_member` does of a key whose value is no number; `word` is what begins the key."""
    if word & _THREE == _PH:
        at = _value(buffer, i + 4, n)
        if 0 <= at < n:
            end = skip_value(buffer, at, n)
            event.ph = buffer[at + 1] if buffer[at] == QUOTE and end == at + 3 else 0
            return end, at
    elif word & _FOUR == _CAT:
        at = _value(buffer, i + 5, n)
        if 0 <= at < n:
            end = skip_value(buffer, at, n)
            if end >= 0 and buffer[at] == QUOTE:
                event.cat = intern_text(buffer, at + 1, end - 1, strings)
            return end, at
    elif word & _FIVE == _NAME:
        at = _value(buffer, i + 6, n)
        if 0 <= at < n:
            end = skip_value(buffer, at, n)
            if end >= 0:
                quote = 1 if buffer[at] == QUOTE else 0
                event.name = intern_text(buffer, at + quote, end - quote, strings)
            return end, at
    elif word & _FIVE == _ARGS:
        at = _value(buffer, i + 6, n)
        if 0 <= at < n:
            end = skip_value(buffer, at, n)
            if end >= 0 and buffer[at] == OPEN:
                event.args_at, event.args_len = at, end - at
            elif end >= 0 and not _is_empty(buffer, at, end):
                event.has = event.has | BAD_ARGS
            return end, at
    else:
        behind = skip_string(buffer, i, n)
        if behind < 0:
            return behind, i
        at = _value(buffer, behind, n)
        if 0 <= at < n:
            event.has = event.has | HAS_BIND_ID if word == _BIND_ID else event.has
            return skip_value(buffer, at, n), at
    return _broken(at, n)


@jit_in_place
def _broken(at: int, n: int) -> tuple[int, int]:
    """Return what `_member` does if there is no value, where `_value` returned `at`."""
    return (-1, n) if at >= n else (-2, ~at)


@jit_inlined
def _value(buffer: Bytes, i: int, n: int) -> int:
    """Offset of the value of a key that ends at `i`; `n` or more if the text ends, ``~k`` if at k no colon stands."""
    at, one = np.uint64(i), np.uint64(1)  # unsigned: no check for a negative index
    if i + 2 < n and buffer[at] == COLON and buffer[at + one] == _SPACE < buffer[at + one + one]:
        return i + 2  # as most writers have it
    i = skip_blank(buffer, i, n)
    if i < n and buffer[i] != COLON:
        return ~i
    return skip_blank(buffer, i + 1, n)


@jit_in_place
def _is_empty(buffer: Bytes, i: int, end: int) -> bool:
    """Return True for null, an empty text, and a list that holds no more than blanks."""
    if buffer[i] == OPEN_LIST:
        return skip_blank(buffer, i + 1, end) == end - 1
    return end == i + 2 if buffer[i] == QUOTE else buffer[i] == _NULL


@jit_inlined
def _word(buffer: Bytes, at: int, n: int) -> np.uint64:
    """Eight bytes from `at` on as a number, the lowest first; those behind the text are 0."""
    if at + 8 <= n:
        return word_at(buffer, np.uint64(at))
    word = np.uint64(0)
    for k in range(n - at):
        word |= np.uint64(buffer[at + k]) << np.uint64(8 * k)
    return word


@jit_in_place
def _is_first_key(buffer: Bytes, i: int, n: int) -> bool:
    """True if the key whose opening quote is at `i` is one with which writers begin an event."""
    word = _word(buffer, i + 1, n)
    three, four, five = word & _THREE, word & _FOUR, word & _FIVE
    return three in (_PH, _TS) or four in (_CAT, _PID, _TID) or five in (_NAME, _ARGS)


@jit_in_place
def _time(buffer: Bytes, i: int, n: int) -> tuple[int, int, bool]:
    """Nanoseconds of the microseconds at `i`, 0 if there are none; offset behind; if it is a time."""
    value, end, ok = parse_integer(buffer, i, n, 3)
    good = ok and -_MAX_TIME_NS < value < _MAX_TIME_NS
    return (value if good else 0), end, good


@jit_inlined
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
        event.has = IS_EMPTY if i == event.at + 1 else 0
        return i + 1, i
    while i < n:
        at = i
        if buffer[i] != QUOTE:
            return -2, at
        i, at = _member(buffer, i, n, event, strings)
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
    """Offset of the next likely start of an event; n if none."""
    while i < n:
        if buffer[i] == OPEN and not hopeless[i] and _seems_event(buffer, i, n):
            return i
        i += 1
    return n


@jit_in_place
def _last_event(buffer: Bytes, begin: int) -> int:
    """Offset of the last likely start of an event behind `begin`; -1 if none."""
    for i in range(len(buffer) - 1, begin, -1):
        if buffer[i] == OPEN and _seems_event(buffer, i, len(buffer)):
            return i
    return -1


@jit_in_place
def _seems_event(buffer: Bytes, i: int, n: int) -> bool:
    """True if the brace at `i` opens what is likely an event: ``{"`` that follows ``},``."""
    after = skip_blank(buffer, i + 1, n)
    before = i - 1
    while before > 0 and buffer[before] <= 32:
        before -= 1
    if after >= n or buffer[after] != QUOTE or before < 1 or buffer[before] != COMMA:
        return False
    before -= 1
    while before > 0 and buffer[before] <= 32:
        before -= 1
    return buffer[before] == CLOSE and _is_first_key(buffer, after, n)


@jit
def _give_up(buffer: Bytes, at: int, n: int, damage: _Damage) -> bool:
    """Mark the brackets that do not close where the value at `at` breaks; return True if it is at the end.

    An object that starts at one of them would break at the same position. Without the marks each
    would be walked to there once more, and a file of n bytes would take n**2 steps.
    """
    if at < n and buffer[at] in (OPEN, OPEN_LIST):
        end, opened, depth = unclosed_brackets(buffer, at, n)
        if end < 0:
            damage.hopeless[opened[:depth]] = True
            damage.number[1] = max(damage.number[1], opened[depth - 1] + 1)
        return end == -1
    return at >= n


@jit_in_place
def _walk(
    buffer: Bytes,
    i: int,
    batch: Array,
    stop: int,
    is_last: bool,  # noqa: FBT001 # compiled functions have no keywords
    strings: TextTable,
    damage: _Damage,
) -> tuple[int, int, int]:
    """Fill a batch with events; the offset reached, the number of events, and how it ended.

    Written to, besides: distinct `strings` and `damage`. If the strings are full, some of the last
    event may lack: it is left to the next walk. Unless it `is_last`, a text ends the walk where how it goes on
    behind the buffer would decide what is damaged.
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
        if i >= stop and i >= damage.number[1]:
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
        is_open = end == -1
        if end < 0:
            is_open |= _give_up(buffer, at, n, damage)
            end = _next_event(buffer, max(at, i + 1), n, damage.hopeless)
        if not is_last and (is_open or end >= n):
            return i, count, _CUT
        i = end


@jit_in_place
def _extract(
    buffer: Bytes,
    at: Array,
    length: Array,
    first: int,
    behind: int,
    names: Bytes,
    ends: Array,
    values: Array,
    present: Array,
) -> None:
    """Write values of keys, whose `names` lie one behind the other, to `values` and `present`, for rows from `first` on.

    Members of other keys are skipped, not parsed, and those behind the last key that is looked for are not visited.
    """
    one = np.uint64(1)
    every = (one << np.uint64(len(ends))) - one  # a bit for each key
    for row in range(first, behind):
        i, n = at[row], at[row] + length[row]
        keys_read = np.uint64(0)
        if length[row] < 2:
            continue
        i = skip_blank(buffer, i + 1, n)
        while keys_read != every and i < n and buffer[i] == QUOTE:
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
            bit = one << np.uint64(max(match, 0))
            if match >= 0 and not keys_read & bit:
                keys_read |= bit
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
