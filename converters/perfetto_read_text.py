"""Debug annotations as JSON objects: numba loops from the wire to text.

Nothing calls itself: what is nested is walked with a stack. Field numbers are those of
``debug_annotation.proto`` (Perfetto v58); `nested_value` is how Chrome nested until 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.compiled import jit
from chopper_interop.converters.perfetto_read_interned_decode import Texts, text_of
from chopper_interop.interning import Interned, number_of
from chopper_interop.jsontext import skip_value
from chopper_interop.wire import field_at, real_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
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
def _put(out: Bytes, i: int, byte: int) -> int:
    if i < len(out):
        out[i] = byte
    return i + 1


@jit
def _decimal(out: Bytes, i: int, value: np.uint64, negative: bool) -> int:  # noqa: FBT001 # compiled functions take no keywords
    if negative:
        i = _put(out, i, 45)
        value = np.uint64(0) - value
    size, rest = 1, value // np.uint64(10)
    while rest:
        rest //= np.uint64(10)
        size += 1
    for k in range(size - 1, -1, -1):
        if i + k < len(out):
            out[i + k] = np.uint8(48) + np.uint8(value % np.uint64(10))
        value //= np.uint64(10)
    return i + size


@jit
def _hex(out: Bytes, i: int, value: np.uint64, digits: int) -> int:
    for k in range(digits - 1, -1, -1):
        digit = np.int64(value >> np.uint64(4 * k)) & 15
        i = _put(out, i, (48 if digit < 10 else 87) + digit)
    return i


@jit
def _utf8(buffer: Bytes, at: int, stop: int) -> int:
    """Bytes of the character at `at`; 0 if it is none."""
    c = buffer[at]
    size = 2 if 0xC2 <= c < 0xE0 else 3 if 0xE0 <= c < 0xF0 else 4 if 0xF0 <= c < 0xF5 else 0
    if size == 0 or at + size > stop:
        return 0
    for k in range(1, size):
        if buffer[at + k] & 0xC0 != 0x80:
            return 0
    second = buffer[at + 1]
    wrong = (c == 0xE0 and second < 0xA0) or (c == 0xED and second >= 0xA0)
    wrong = wrong or (c == 0xF0 and second < 0x90) or (c == 0xF4 and second >= 0x90)
    return 0 if wrong else size


@jit
def _string(out: Bytes, i: int, buffer: Bytes, at: int, stop: int) -> int:
    """A text as a JSON string; what is no UTF-8 is replaced by U+FFFD."""
    i = _put(out, i, 34)
    while at < stop:
        c = buffer[at]
        if c in (34, 92):
            i = _put(out, i, 92)
            i = _put(out, i, c)
            at += 1
        elif c < 32:
            i = _put(out, i, 92)
            i = _put(out, i, 117)
            i = _hex(out, i, np.uint64(c), 4)
            at += 1
        elif c < 128:
            i = _put(out, i, c)
            at += 1
        else:
            size = _utf8(buffer, at, stop)
            if size == 0:
                for part in (0xEF, 0xBF, 0xBD):
                    i = _put(out, i, part)
                at += 1
            for k in range(size):
                i = _put(out, i, buffer[at + k])
            at += size
    return _put(out, i, 34)


@jit
def _real(out: Bytes, i: int, value: float, reals: Reals, count: Array) -> int:
    k = count[0]
    if k < len(reals.at):
        reals.at[k], reals.value[k] = i, value
    count[0] = k + 1
    for _ in range(REAL_ROOM):
        i = _put(out, i, 32)
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
            i = _truth(out, i, bits != np.uint64(0))
        elif kind == _INT:
            i = _decimal(out, i, bits, np.int64(bits) < 0)
        elif kind == _UINT:
            i = _decimal(out, i, bits, False)
        elif kind == _REAL:
            i = _real(out, i, real_of(bits), reals, count)
        elif kind == _POINTER:
            i = _pointer(out, i, bits)
        elif kind == _STRING:
            i = _string(out, i, buffer, first, last)
        elif kind == _STRING_IID:
            k = text_of(texts, state, 29, bits)
            if k >= 0:
                i = _string(out, i, buffer, texts.at[k], texts.at[k] + texts.length[k])
            else:
                i = _null(out, i)
                count[1] += 1
        elif kind == _JSON:
            i = _raw(out, i, buffer, first, last)
        elif kind == _NESTED and depth + 1 < _DEEPEST:
            at, end, old = first, last, True
            continue
        elif kind in (_DICT, _OLD_DICT):
            open_bracket = 123
        elif kind in (_LIST, _OLD_LIST):
            open_bracket = 91
        else:
            i = _null(out, i)
            count[1] += 1
        if open_bracket:
            if depth + 1 >= _DEEPEST:
                i = _null(out, i)
                count[1] += 1
            else:
                i = _put(out, i, open_bracket)
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
                i = _put(out, i, 125 if kind in (_DICT, _OLD_DICT) else 93)
                depth -= 1
                continue
            stack[top, 0] = position
            if stack[top, 4]:
                i = _put(out, i, 44)
            stack[top, 4] = 1
            if kind == _DICT:
                _, _, _, _, iid, key_at, key_end = _look(buffer, begin, behind, False)
                if key_end < 0:
                    k = text_of(texts, state, 3, iid)
                    key_at = texts.at[k] if k >= 0 else 0
                    key_end = key_at + texts.length[k] if k >= 0 else 0
            if kind in (_DICT, _OLD_DICT):
                i = _string(out, i, buffer, key_at, key_end)
                i = _put(out, i, 58)
            at, end, found = begin, behind, True
        if not found:
            return i


@jit
def _truth(out: Bytes, i: int, value: bool) -> int:  # noqa: FBT001 # compiled functions take no keywords
    if value:
        for byte in (116, 114, 117, 101):
            i = _put(out, i, byte)
        return i
    for byte in (102, 97, 108, 115, 101):
        i = _put(out, i, byte)
    return i


@jit
def _null(out: Bytes, i: int) -> int:
    for byte in (110, 117, 108, 108):
        i = _put(out, i, byte)
    return i


@jit
def _pointer(out: Bytes, i: int, bits: np.uint64) -> int:
    """An address as a text, in the hexadecimal form that it is shown in."""
    digits, rest = 1, bits >> np.uint64(4)
    while rest:
        digits += 1
        rest >>= np.uint64(4)
    for byte in (34, 48, 120):
        i = _put(out, i, byte)
    return _put(out, _hex(out, i, bits, digits), 34)


@jit
def _raw(out: Bytes, i: int, buffer: Bytes, at: int, stop: int) -> int:
    """JSON as it stands, if it is an object or a list; else as a text."""
    if at < stop and buffer[at] in (91, 123) and skip_value(buffer, at, stop) == stop:
        for k in range(at, stop):
            i = _put(out, i, buffer[k])
        return i
    return _string(out, i, buffer, at, stop)


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
            k = text_of(texts, state, 3, iid)
            if k < 0:
                continue
            key_at, key_end = texts.at[k], texts.at[k] + texts.length[k]
        if kind == _STRING_IID:
            k = text_of(texts, state, 29, bits)
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
        f = count[2]
        if f < len(facts.slice):
            facts.slice[f], facts.group[f], facts.type[f] = row, group, type_
            facts.name[f] = number_of(buffer, key_at, key_end, keys)
            facts.value[f] = value
        count[2] = f + 1


@jit
def objects(
    buffer: Bytes, bodies_at: Array, bodies_len: Array, state: Array, first_row: int, texts: Texts,
    groups: Known, ours: bool, wanted: Known, agents: Array, values: Array, row_at: Array,  # noqa: FBT001 # compiled functions take no keywords
    row_len: Array, out: Bytes, reals: Reals, facts: Facts, count: Array, keys: Interned,
    words: Interned, stack: Array,
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
    groups, ours
        Names of our own dictionaries, and whether to take them apart.
    wanted, agents, values
        Names of arguments, which of them are agents, and where their values go.
    row_at, row_len
        Where the objects are in `out`.
    out, reals, facts
        What is written. If one is too small, `count` and the result say how large it must be.
    count
        Decimal numbers, annotations that cannot be read, and facts.
    keys, words
        Names and texts of facts.
    stack
        Room for what is nested.

    Returns
    -------
    size
        Bytes of the text.
    """
    i = 0
    for row in range(len(bodies_at)):
        start = i
        for part in range(2):
            j = bodies_at[row, part]
            stop = j + bodies_len[row, part]
            while j < stop:
                number, inner, bits, begin, j = field_at(buffer, j, stop)
                if j < 0:
                    break
                if number in (52, 53):
                    i = _put(out, i, 123 if i == start else 44)
                    for byte in (34, 99, 111, 114, 114, 101, 108, 97, 116, 105, 111, 110, 95, 105,
                                 100, 34, 58):  # fmt: skip
                        i = _put(out, i, byte)
                    if number == 52:
                        i = _decimal(out, i, bits, False)
                    else:
                        i = _string(out, i, buffer, begin, j)
                    continue
                if number != 4 or inner != 2:
                    continue
                kind, value, at, last, iid, key_at, key_end = _look(buffer, begin, j, False)
                if key_end < 0:
                    k = text_of(texts, state[row, part], 3, iid)
                    key_at = texts.at[k] if k >= 0 else 0
                    key_end = key_at + texts.length[k] if k >= 0 else -1
                if kind <= 0 or key_end < 0:
                    count[1] += 1
                    continue
                if ours and kind == _DICT:
                    group = recognised(buffer, key_at, key_end - key_at, groups)
                    if group >= 0:
                        _members(buffer, begin, j, state[row, part], texts, first_row + row, group,
                                 facts, count, keys, words)  # fmt: skip
                        continue
                which = recognised(buffer, key_at, key_end - key_at, wanted)
                if which >= 0:
                    if kind in (_BOOL, _INT, _UINT, _POINTER) and np.int64(value) != UNKNOWN:
                        values[which, row] = np.int64(value)
                    elif agents[which] and kind in (_STRING, _STRING_IID):
                        if kind == _STRING_IID:
                            k = text_of(texts, state[row, part], 29, value)
                            at = texts.at[k] if k >= 0 else 0
                            last = at + texts.length[k] if k >= 0 else 0
                        values[which, row] = _agent(buffer, at, last)
                i = _put(out, i, 123 if i == start else 44)
                i = _string(out, i, buffer, key_at, key_end)
                i = _put(out, i, 58)
                i = _value(buffer, begin, j, state[row, part], texts, out, i, reals, count, stack)
        if i > start:
            i = _put(out, i, 125)
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
