"""Debug annotations as JSON objects: numba loops from the wire to text.

Nothing calls itself: what is nested is walked with a stack. Field numbers are those of
``debug_annotation.proto`` (Perfetto v58); `nested_value` is how Chrome nested until 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.columns.interning import Interned, number_of
from chopper_interop.converters.perfetto_read_interned_decode import (
    ANNOTATION_NAMES,
    STRINGS,
    Texts,
    text_of,
)
from chopper_interop.converters.perfetto_read_json_text import (
    decimal,
    json_or_string,
    null,
    pointer,
    put,
    string,
    truth,
)
from chopper_interop.files.wire import copied, field_at, real_of, varint_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

UNKNOWN = np.iinfo(np.int64).min
"""Value of a key that a slice does not have."""
KEYS = (
    b"begin_ns", b"end_ns", b"corr_id", b"correlation", b"queue", b"stream", b"stream_id",
    b"stream_ID", b"device", b"agent", b"agent_id", b"dst_agent", b"dst_agent_id", b"src_agent",
    b"src_agent_id", b"kernel_id", b"copy_bytes", b"bytes", b"allocation_size", b"Agent ID",
)  # fmt: skip
"""Arguments of which the values are wanted as columns."""
_AGENTS = np.array([k in (b"agent", b"dst_agent", b"src_agent") for k in KEYS])
GROUPS = (b"chopper", b"counters")
"""Dictionaries that our own writer makes of annotation columns and hardware counters."""
INTEGER, REAL, TEXT = 1, 2, 3
"""Types of values of `Facts`."""
NO_FACTS, OUR_FACTS, REAL_FACTS = range(3)
"""Of which annotations `Facts` are made."""
OF_KERNELS = 2
"""Group of facts that are in none of `GROUPS`: decimal numbers, as rocprofv3 gives counters."""
REALS, UNREADABLE, FACTS, TYPED = range(4)
"""What is counted: decimal numbers, annotations that cannot be read, facts, fields of events that
are arguments of Chrome's own types (and the time that threads ran)."""
_TRACK_EVENT = (1, 3, 4, 6, 9, 10, 11, 12, 16, 22, 23, 30, 31, 36, 42, 44, 45, 46, 47, 48, 52, 53)
_NOT_TYPED = np.isin(np.arange(64), _TRACK_EVENT)
"""Fields of track events that are read."""
REAL_ROOM = 26
"""Characters kept free for a decimal number, to be filled in afterwards."""
CPU = -2
"""Number of an agent that is said to be a processor."""
_DEEPEST = 64
_NONE, _BOOL, _UINT, _INT, _REAL, _STRING, _POINTER, _NESTED = 0, 2, 3, 4, 5, 6, 7, 8
_JSON, _DICT, _LIST, _PROTO, _STRING_IID, _OLD_DICT, _OLD_LIST = 9, 11, 12, 14, 17, 40, 41


class Known(NamedTuple):
    """Texts to be recognised, one behind the other."""

    text: Bytes
    first: Array


class Facts(NamedTuple):
    """Members of our own dictionaries: which slice and dictionary, name, type, value."""

    slice: Array
    group: Array
    name: Array
    type: Array
    value: Array


class Reals(NamedTuple):
    """Decimal numbers to be filled in: where in the text, and what."""

    at: Array
    value: Array


def known(texts: tuple[bytes, ...]) -> Known:
    """Texts to be recognised."""
    first = np.cumsum([0, *(len(t) for t in texts)]).astype(np.int64)
    return Known(np.frombuffer(bytearray(b"".join(texts)), np.uint8), first)


def is_agent() -> Array:
    """Which of `KEYS` have agents as values, which may be texts such as ``GPU-0``."""
    return _AGENTS.copy()


@jit
def recognised(buffer: Bytes, at: int, length: int, texts: Known) -> int:
    """Which of the texts buffer[at:at + length] is; -1 if none."""
    for k in range(len(texts.first) - 1):
        first = texts.first[k]
        if texts.first[k + 1] - first != length:
            continue
        j = 0
        while j < length and buffer[at + j] == texts.text[first + j]:
            j += 1
        if j == length:
            return k
    return -1


@jit
def _real(out: Bytes, i: int, value: float, reals: Reals, count: Array) -> int:
    k = count[REALS]
    if k < len(reals.at):
        reals.at[k], reals.value[k] = i, value
    count[REALS] = k + 1
    for _ in range(REAL_ROOM):
        i = put(out, i, 32)
    return i


@jit
def _look(
    buffer: Bytes,
    i: int,
    stop: int,
    old: bool,  # noqa: FBT001 # compiled functions take no keywords
) -> tuple[int, np.uint64, int, int, np.uint64, int, int]:
    """What an annotation holds: kind, value, its range, and its name (number, range).

    `old` is whether it is one of the nested values of old.
    """
    kind, bits, at, end = _NONE, np.uint64(0), 0, 0
    iid, name_at, name_end = np.uint64(0), 0, -1
    while i < stop:
        number, inner, value, begin, i = field_at(buffer, i, stop)
        if i < 0:
            return -1, bits, at, end, iid, name_at, name_end
        if old:
            if number == 1 and inner == 0:
                if value == np.uint64(1):
                    kind = _OLD_DICT
                elif value == np.uint64(2):
                    kind = _OLD_LIST
            elif number == 5 and inner == 0:
                kind, bits = _INT, value
            elif number == 6 and inner == 1:
                kind, bits = _REAL, value
            elif number == 7 and inner == 0:
                kind, bits = _BOOL, value
            elif number == 8 and inner == 2:
                kind, at, end = _STRING, begin, i
        elif number == 1 and inner == 0:
            iid = value
        elif number == 10 and inner == 2:
            name_at, name_end = begin, i
        elif number in (2, 3, 4, 7, 17) and inner == 0:
            kind, bits = number, value
        elif number == 5 and inner == 1:
            kind, bits = _REAL, value
        elif number in (6, 8, 9, 14) and inner == 2:
            kind, at, end = number, begin, i
        elif number in (11, 12) and inner == 2:
            kind = number
    return kind, bits, at, end, iid, name_at, name_end


@jit
def _plain(buffer: Bytes, i: int, stop: int) -> tuple[int, np.uint64, np.uint64]:
    """Kind, value and number of the name of an integer under a short number; else `_NONE`."""
    nothing = np.uint64(0)
    if i + 4 > stop or buffer[i] != 8 or buffer[i + 1] >= 128:
        return _NONE, nothing, nothing
    kind = np.int64(buffer[i + 2])
    if kind not in (8 * _UINT, 8 * _INT):
        return _NONE, nothing, nothing
    value, end = varint_at(buffer, i + 3, stop)
    if end != stop:
        return _NONE, nothing, nothing
    return kind >> 3, value, np.uint64(buffer[i + 1])


@jit
def _next(buffer: Bytes, i: int, stop: int, wanted: int) -> tuple[int, int, int]:
    """The next field of that number, with a length: its range, and the offset behind it."""
    while i < stop:
        number, inner, _, begin, i = field_at(buffer, i, stop)
        if i < 0:
            return 0, 0, -1
        if number == wanted and inner == 2:
            return begin, i, i
    return 0, 0, -1


@jit
def _value(
    buffer: Bytes, start: int, stop: int, state: int, texts: Texts, out: Bytes, i: int,
    reals: Reals, count: Array, stack: Array,
) -> int:  # fmt: skip
    """The value of an annotation as JSON, with all that is in it."""
    depth, at, end, old = 0, start, stop, False
    while True:
        kind, bits, first, last, _, _, _ = _look(buffer, at, end, old)
        open_bracket = 0
        if kind == _BOOL:
            i = truth(out, i, bits != np.uint64(0))
        elif kind == _INT:
            i = decimal(out, i, bits, np.int64(bits) < 0)
        elif kind == _UINT:
            i = decimal(out, i, bits, False)
        elif kind == _REAL:
            i = _real(out, i, real_of(bits), reals, count)
        elif kind == _POINTER:
            i = pointer(out, i, bits)
        elif kind == _STRING:
            i = string(out, i, buffer, first, last)
        elif kind == _STRING_IID:
            k = text_of(texts, state, STRINGS, bits)
            if k >= 0:
                i = string(out, i, buffer, texts.at[k], texts.at[k] + texts.length[k])
            else:
                i = null(out, i)
                count[UNREADABLE] += 1
        elif kind == _JSON:
            i = json_or_string(out, i, buffer, first, last)
        elif kind == _NESTED and depth + 1 < _DEEPEST:
            at, end, old = first, last, True
            continue
        elif kind in (_DICT, _OLD_DICT):
            open_bracket = 123
        elif kind in (_LIST, _OLD_LIST):
            open_bracket = 91
        else:
            i = null(out, i)
            count[UNREADABLE] += 1
        if open_bracket:
            if depth + 1 >= _DEEPEST:
                i = null(out, i)
                count[UNREADABLE] += 1
            else:
                i = put(out, i, open_bracket)
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = at, end, kind
                stack[depth, 3], stack[depth, 4] = at, 0
                depth += 1
        found = False
        while depth and not found:
            top = depth - 1
            kind = stack[top, 2]
            old = kind in (_OLD_DICT, _OLD_LIST)
            wanted = (3 if kind == _OLD_DICT else 4) if old else kind
            begin, behind, position = _next(buffer, stack[top, 0], stack[top, 1], wanted)
            key_at, key_end = 0, 0
            if position >= 0 and kind == _OLD_DICT:
                key_at, key_end, key = _next(buffer, stack[top, 3], stack[top, 1], 2)
                stack[top, 3] = key
                position = position if key >= 0 else -1
            if position < 0:
                i = put(out, i, 125 if kind in (_DICT, _OLD_DICT) else 93)
                depth -= 1
                continue
            stack[top, 0] = position
            if stack[top, 4]:
                i = put(out, i, 44)
            stack[top, 4] = 1
            if kind == _DICT:
                _, _, _, _, iid, key_at, key_end = _look(buffer, begin, behind, False)
                if key_end < 0:
                    k = text_of(texts, state, ANNOTATION_NAMES, iid)
                    key_at = texts.at[k] if k >= 0 else 0
                    key_end = key_at + texts.length[k] if k >= 0 else 0
            if kind in (_DICT, _OLD_DICT):
                i = string(out, i, buffer, key_at, key_end)
                i = put(out, i, 58)
            at, end, found = begin, behind, True
        if not found:
            return i


@jit
def _agent(buffer: Bytes, at: int, stop: int) -> int:
    """The number at the end of a text such as ``GPU-0``, `CPU` if it is a processor's."""
    if at < stop and buffer[at] == 67:
        return CPU
    value, digits = 0, 0
    for k in range(at, stop):
        if 48 <= buffer[k] <= 57:
            value = (value if digits else 0) * 10 + np.int64(buffer[k]) - 48
            digits = min(digits + 1, 9)
        else:
            digits = 0
    return value if digits else UNKNOWN


@jit
def _fact(
    buffer: Bytes, row: int, group: int, key_at: int, key_end: int, type_: int, value: int,
    facts: Facts, count: Array, keys: Interned,
) -> None:  # fmt: skip
    f = count[FACTS]
    if f < len(facts.slice):
        facts.slice[f], facts.group[f], facts.type[f] = row, group, type_
        facts.name[f] = number_of(buffer, key_at, key_end, keys)
        facts.value[f] = value
    count[FACTS] = f + 1


@jit
def _members(
    buffer: Bytes, i: int, stop: int, state: int, texts: Texts, row: int, group: int,
    facts: Facts, count: Array, keys: Interned, words: Interned,
) -> None:  # fmt: skip
    """Take over the members of one of our own dictionaries."""
    while True:
        begin, end, i = _next(buffer, i, stop, _DICT)
        if i < 0:
            return
        kind, bits, at, last, iid, key_at, key_end = _look(buffer, begin, end, False)
        if key_end < 0:
            k = text_of(texts, state, ANNOTATION_NAMES, iid)
            if k < 0:
                continue
            key_at, key_end = texts.at[k], texts.at[k] + texts.length[k]
        if kind == _STRING_IID:
            k = text_of(texts, state, STRINGS, bits)
            if k < 0:
                continue
            at, last = texts.at[k], texts.at[k] + texts.length[k]
        value, type_ = np.int64(bits), INTEGER
        if kind in (_STRING, _STRING_IID):
            value, type_ = number_of(buffer, at, last, words), TEXT
        elif kind == _REAL:
            type_ = REAL
        elif kind not in (_BOOL, _INT, _UINT):
            continue
        _fact(buffer, row, group, key_at, key_end, type_, value, facts, count, keys)


@jit
def objects(
    buffer: Bytes, bodies_at: Array, bodies_len: Array, state: Array, first_row: int, texts: Texts,
    groups: Known, facts_of: int, wanted: Known, agents: Array, values: Array, row_at: Array,
    row_len: Array, out: Bytes, reals: Reals, facts: Facts, count: Array, keys: Interned,
    words: Interned, stack: Array, seen: Array,
) -> int:  # fmt: skip
    """A JSON object for each slice, of the annotations of its events.

    Parameters
    ----------
    buffer
        The trace.
    bodies_at, bodies_len, state
        Two columns each: the event that begins a slice and the one that ends it.
    first_row
        Number of the first slice, for `facts`.
    texts
        Interned texts.
    groups, facts_of
        Names of our own dictionaries, and of what facts are made: `NO_FACTS`, `OUR_FACTS` of the
        members of these, `REAL_FACTS` of all decimal numbers.
    wanted, agents, values
        Names of arguments, which of them are agents, and where their values go.
    row_at, row_len
        Where the objects are in `out`.
    out, reals, facts
        What is written. If one is too small, `count` and the result say how large it must be.
    count
        By `REALS`, `UNREADABLE`, `FACTS`, `TYPED`.
    keys, words
        Names and texts of facts.
    stack
        Room for what is nested.
    seen
        For each interned text: where it is in `out` as a key, its length there, which of `wanted`
        it is, plus one. All 0 at first.

    Returns
    -------
    size
        Bytes of the text.
    """
    i, of_state = 0, np.int64(-1)
    near = np.full(128, -2, np.int64)  # entries of the first names of a state
    for row in range(len(bodies_at)):
        start = i
        for part in range(2):
            j = bodies_at[row, part]
            stop = j + bodies_len[row, part]
            while j < stop:
                number, inner, bits, begin, j = field_at(buffer, j, stop)
                if j < 0:
                    break
                if number != 4 or inner != 2:
                    if number in (52, 53):
                        i = put(out, i, 123 if i == start else 44)
                        for byte in (34, 99, 111, 114, 114, 101, 108, 97, 116, 105, 111, 110, 95,
                                     105, 100, 34, 58):  # fmt: skip
                            i = put(out, i, byte)
                        if number == 52:
                            i = decimal(out, i, bits, False)
                        else:
                            i = string(out, i, buffer, begin, j)
                    elif number >= len(_NOT_TYPED) or not _NOT_TYPED[number]:
                        count[TYPED] += 1
                    continue
                kind, value, iid = _plain(buffer, begin, j)
                at, last, key_at, key_end, k = 0, 0, 0, -1, -1
                if kind == _NONE:
                    kind, value, at, last, iid, key_at, key_end = _look(buffer, begin, j, False)
                if key_end < 0:
                    if state[row, part] != of_state:
                        near[:], of_state = -2, state[row, part]
                    k = near[iid] if iid < np.uint64(128) else -2
                    if k == -2:
                        k = text_of(texts, of_state, ANNOTATION_NAMES, iid)
                        if iid < np.uint64(128):
                            near[iid] = k
                    if k >= 0:
                        key_at, key_end = texts.at[k], texts.at[k] + texts.length[k]
                if kind <= 0 or key_end < 0:
                    count[UNREADABLE] += 1
                    continue
                if facts_of == OUR_FACTS and kind == _DICT:
                    group = recognised(buffer, key_at, key_end - key_at, groups)
                    if group >= 0:
                        _members(buffer, begin, j, state[row, part], texts, first_row + row, group,
                                 facts, count, keys, words)  # fmt: skip
                        continue
                elif facts_of == REAL_FACTS and kind == _REAL:
                    _fact(buffer, first_row + row, OF_KERNELS, key_at, key_end, REAL,
                          np.int64(value), facts, count, keys)  # fmt: skip
                known_key = k >= 0 and seen[k, 1] > 0
                which = seen[k, 2] - 1 if known_key else recognised(
                    buffer, key_at, key_end - key_at, wanted
                )  # fmt: skip
                if which >= 0:
                    if kind in (_BOOL, _INT, _UINT, _POINTER) and np.int64(value) != UNKNOWN:
                        values[which, row] = np.int64(value)
                    elif agents[which] and kind in (_STRING, _STRING_IID):
                        first, behind = at, last
                        if kind == _STRING_IID:
                            w = text_of(texts, state[row, part], STRINGS, value)
                            first = texts.at[w] if w >= 0 else 0
                            behind = first + texts.length[w] if w >= 0 else 0
                        values[which, row] = _agent(buffer, first, behind)
                i = put(out, i, 123 if i == start else 44)
                if known_key and i + seen[k, 1] <= len(out):
                    i = copied(out, i, out, seen[k, 0], seen[k, 0] + seen[k, 1])
                else:
                    key = i
                    i = put(out, string(out, i, buffer, key_at, key_end), 58)
                    if k >= 0 and i <= len(out):
                        seen[k, 0], seen[k, 1], seen[k, 2] = key, i - key, which + 1
                if kind in (_INT, _UINT):
                    i = decimal(out, i, value, kind == _INT and np.int64(value) < 0)
                elif kind == _STRING:
                    i = string(out, i, buffer, at, last)
                else:
                    i = _value(
                        buffer, begin, j, state[row, part], texts, out, i, reals, count, stack
                    )
        if i > start:
            i = put(out, i, 125)
        row_at[row], row_len[row] = start, i - start
    return i


@jit
def fill(out: Bytes, at: Array, text: Bytes, first: Array) -> None:
    """Write decimal numbers into the room that was kept for them."""
    for k in range(len(at)):
        i, whole = at[k], True
        for j in range(first[k], first[k + 1]):
            c = text[j]
            whole = whole and (c == 45 or 48 <= c <= 57)
            out[i] = c
            i += 1
        if whole:
            out[i], out[i + 1] = 46, 48


@jit
def numbers_of(buffer: Bytes, at: Array, length: Array, table: Interned) -> Array:
    """Numbers of texts, -1 of those that have a negative length."""
    codes = np.full(len(at), -1, np.int32)
    for i in range(len(at)):
        if length[i] >= 0:
            codes[i] = number_of(buffer, at[i], at[i] + length[i], table)
    return codes
