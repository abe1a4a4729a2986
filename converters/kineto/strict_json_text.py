"""Strict JSON in loops over bytes: checks of what may be copied into a file, and numbers to write.

Arguments that a tolerant reader took over need not be proper JSON (bare ``NaN``, unescaped
backslashes, broken UTF-8), and other tools cannot load a file that holds such.

Compiled, as every byte of the arguments of millions of events is looked at.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from chopper_interop.arrays import Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io.json_text import byte_table, skip_bytes

MAX_DEPTH = 256
"""Levels of lists and objects; chosen: far more than profilers write, and well below the 1,000 at
which Python's own parser gives up."""

# Characters by their codes.
_OPEN, _CLOSE, _OPEN_LIST = 123, 125, 91
_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58
_ZERO, _NINE, _MINUS, _PLUS, _DOT = 48, 57, 45, 43, 46
_SPACE = 32
_PLAIN = byte_table(bytes(c for c in range(_SPACE, 128) if c not in (_QUOTE, _BACKSLASH)))
"""Characters that stand for themselves in a string: nearly all, so one look-up decides."""
_BLANK = byte_table(b"\t\n\r ")
_DIGIT = byte_table(b"0123456789")


def json_bytes(value: Any, separators: tuple[str, str] = (",", ":")) -> bytes:
    """Render a value as JSON in UTF-8; a question mark stands for half a surrogate pair."""
    return json.dumps(value, ensure_ascii=False, separators=separators).encode("utf-8", "replace")


@jit_in_place
def blank(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset of the next byte that is not white space of JSON."""
    return skip_bytes(buffer, i, n, _BLANK)


@jit_in_place
def string_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset after the string that starts at `i`; -1 if it is not one, or not UTF-8."""
    if i >= n or buffer[i] != _QUOTE:
        return -1
    i += 1
    while i < n:
        i = skip_bytes(buffer, i, n, _PLAIN)
        if i == n:
            return -1
        c = buffer[i]
        if c == _QUOTE:
            return i + 1
        i = _escape_end(buffer, i + 1, n) if c == _BACKSLASH else _character_end(buffer, i, n)
        if i < 0:
            return -1
    return -1


@jit_in_place
def _escape_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset after what follows a backslash; -1 if that is no escape."""
    if i >= n:
        return -1
    c = buffer[i]
    if c == 117:  # u
        if i + 4 >= n:
            return -1
        for k in range(i + 1, i + 5):
            d = buffer[k]
            if not (_ZERO <= d <= _NINE or 97 <= (d | 32) <= 102):
                return -1
        return i + 5
    return i + 1 if c in (34, 92, 47, 98, 102, 110, 114, 116) else -1


@jit_in_place
def _character_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset after a character of several bytes; -1 if not of Unicode's table 3-7."""
    c = buffer[i]
    low, high, more = 0x80, 0xBF, 0
    if 0xC2 <= c <= 0xDF:
        more = 1
    elif 0xE0 <= c <= 0xEF:
        more = 2
        low = 0xA0 if c == 0xE0 else 0x80
        high = 0x9F if c == 0xED else 0xBF
    elif 0xF0 <= c <= 0xF4:
        more = 3
        low = 0x90 if c == 0xF0 else 0x80
        high = 0x8F if c == 0xF4 else 0xBF
    if more == 0 or i + more >= n or not low <= buffer[i + 1] <= high:
        return -1
    for k in range(i + 2, i + more + 1):
        if not 0x80 <= buffer[k] <= 0xBF:
            return -1
    return i + more + 1


@jit_in_place
def _digits_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset after the digits at `i`; -1 if there are none."""
    end = skip_bytes(buffer, i, n, _DIGIT)
    return end if end > i else -1


@jit_in_place
def _number_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset after the number at `i`; -1 if it is none."""
    if i < n and buffer[i] == _MINUS:
        i += 1
    start = i
    i = _digits_end(buffer, i, n)
    if i < 0 or (buffer[start] == _ZERO and i > start + 1):
        return -1
    if i < n and buffer[i] == _DOT:
        i = _digits_end(buffer, i + 1, n)
        if i < 0:
            return -1
    if i < n and buffer[i] in (69, 101):  # an exponent
        i += 1
        if i < n and buffer[i] in (_MINUS, _PLUS):
            i += 1
        i = _digits_end(buffer, i, n)
    return i


@jit_in_place
def _literal_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset after true, false or null; -1 if it is none of them."""
    for word in (b"true", b"false", b"null"):
        size = len(word)
        if i + size <= n:
            same = True
            for k in range(size):
                if buffer[i + k] != word[k]:
                    same = False
            if same:
                return i + size
    return -1


@jit_in_place
def _scalar_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset after the string, number or word at `i`; -1 if it is none."""
    c = buffer[i]
    if c == _QUOTE:
        return string_end(buffer, i, n)
    if c == _MINUS or _ZERO <= c <= _NINE:
        return _number_end(buffer, i, n)
    return _literal_end(buffer, i, n)


@jit_in_place
def key_end(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset of the value after the key at `i`; -1 if there is no key and colon."""
    i = string_end(buffer, i, n)
    if i < 0:
        return -1
    i = blank(buffer, i, n)
    if i >= n or buffer[i] != _COLON:
        return -1
    return blank(buffer, i + 1, n)


@jit_in_place
def value_end(buffer: Bytes, i: int, n: int, stack: Bytes) -> int:
    """Return the offset after the value that starts at `i`; -1 if it is not JSON.

    `stack` has room for the kinds of the lists and objects around a value.
    """
    depth = 0
    while i < n:
        c = buffer[i]
        if c in (_OPEN, _OPEN_LIST):
            if depth == len(stack):
                return -1
            stack[depth] = c
            depth += 1
            i = blank(buffer, i + 1, n)
            if i >= n:
                return -1
            if buffer[i] != c + 2:  # brackets of a pair are two apart
                if c == _OPEN:
                    i = key_end(buffer, i, n)
                    if i < 0:
                        return -1
                continue
        else:
            i = _scalar_end(buffer, i, n)
        if depth:
            i, depth = _after_value(buffer, i, n, stack, depth)
        if i < 0 or depth == 0:
            return i
    return -1


@jit_in_place
def _after_value(buffer: Bytes, i: int, n: int, stack: Bytes, depth: int) -> tuple[int, int]:
    """Return where the value after the one that ends at `i` starts, and its depth.

    Closing brackets are passed; at depth 0 the outermost value has ended.
    """
    while depth and i >= 0:
        i = blank(buffer, i, n)
        if i >= n:
            return -1, depth
        top = stack[depth - 1]
        if buffer[i] == _COMMA:
            i = blank(buffer, i + 1, n)
            return (key_end(buffer, i, n) if top == _OPEN else i), depth
        if buffer[i] != top + 2:
            return -1, depth
        depth -= 1
        i += 1
    return i, depth


@jit_in_place
def integer(out: Bytes, i: int, value: int) -> int:
    """Write a whole number; return the offset after it."""
    rest = np.uint64(value)
    if value < 0:
        out[i] = _MINUS
        i += 1
        rest = np.uint64(0) - rest
    size, probe = 1, rest
    while probe >= np.uint64(10):
        probe //= np.uint64(10)
        size += 1
    for k in range(size - 1, -1, -1):
        out[i + k] = np.uint8(_ZERO + rest % np.uint64(10))
        rest //= np.uint64(10)
    return i + size


@jit_in_place
def micros(out: Bytes, i: int, ns: int) -> int:
    """Write nanoseconds as microseconds with three decimals, exactly; return the offset after."""
    if ns < 0:
        out[i] = _MINUS
        i += 1
        ns = -ns
    i = integer(out, i, ns // 1000)
    rest = ns % 1000
    out[i] = _DOT
    out[i + 1] = _ZERO + rest // 100
    out[i + 2] = _ZERO + rest // 10 % 10
    out[i + 3] = _ZERO + rest % 10
    return i + 4
