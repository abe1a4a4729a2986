"""Pieces of JSON text in numba: each is written at `i` of a byte array; returned is the offset behind.

Bytes for which there is no room are not written, but the offset advances: the caller learns from it
how much room is needed, and writes again.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io.json_text import skip_value

_NULL, _TRUE, _FALSE, _REPLACEMENT, _UNICODE, _HEX = (
    np.frombuffer(text.encode(), np.uint8)
    for text in ("null", "true", "false", "\N{REPLACEMENT CHARACTER}", "\\u", '"0x')
)


@jit_in_place
def put(out: Bytes, i: int, byte: int) -> int:
    """Write one byte, if there is room."""
    if i < len(out):
        out[i] = byte
    return i + 1


@jit_in_place
def word(out: Bytes, i: int, text: Bytes) -> int:
    """Write a text that needs no escapes."""
    for byte in text:
        i = put(out, i, byte)
    return i


@jit_in_place
def decimal(out: Bytes, i: int, value: np.uint64, negative: bool) -> int:  # noqa: FBT001 # compiled functions take no keywords
    """Write an integer: the 64 bits `value`, which are those of a negative number if `negative`.

    From the end, two digits at a time: half the divisions, which take most of the time.
    """
    if negative:
        i = put(out, i, 45)
        value = np.uint64(0) - value
    size, bound = 1, np.uint64(10)
    while size < 20 and value >= bound:
        size += 1
        bound = bound * np.uint64(10) if size < 20 else bound
    if i + size <= len(out):
        at = i + size - 1
        while value >= np.uint64(10):
            rest = value // np.uint64(100)
            pair = np.uint32(value - rest * np.uint64(100))
            tens = pair // np.uint32(10)
            out[at], out[at - 1] = 48 + pair - np.uint32(10) * tens, 48 + tens
            value = rest
            at -= 2
        if at >= i:
            out[at] = np.uint64(48) + value
    return i + size


# Writes the digits from the highest on, as they stand in the text.
@jit_in_place
def _hex(out: Bytes, i: int, value: np.uint64, digits: int) -> int:
    for k in range(digits - 1, -1, -1):
        digit = np.int64(value >> np.uint64(4 * k)) & 15
        i = put(out, i, (48 if digit < 10 else 87) + digit)
    return i


@jit_in_place
def _utf8(buffer: Bytes, at: int, stop: int) -> int:
    """Return the length of the UTF-8 character at `at`; 0 if there is none."""
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


@jit_in_place
def string(out: Bytes, i: int, buffer: Bytes, at: int, stop: int) -> int:
    """Write a text as a JSON string; what is no UTF-8 is replaced by U+FFFD.

    Most texts need no escapes: a first loop copies up to the first byte that does.
    """
    i = put(out, i, 34)
    if i + stop - at <= len(out):
        c = np.uint8(0)
        while at < stop:
            c = buffer[at]
            if c < 32 or c >= 128 or c in (34, 92):
                break
            out[i] = c
            i += 1
            at += 1
    while at < stop:
        c = buffer[at]
        if c in (34, 92):
            i = put(out, i, 92)
            i = put(out, i, c)
            at += 1
        elif c < 32:
            i = _hex(out, word(out, i, _UNICODE), np.uint64(c), 4)
            at += 1
        elif c < 128:
            i = put(out, i, c)
            at += 1
        else:
            size = _utf8(buffer, at, stop)
            if size == 0:
                i = word(out, i, _REPLACEMENT)
                at += 1
            for k in range(size):
                i = put(out, i, buffer[at + k])
            at += size
    return put(out, i, 34)


@jit_in_place
def truth(out: Bytes, i: int, value: bool) -> int:  # noqa: FBT001 # compiled functions take no keywords
    """Write true or false."""
    return word(out, i, _TRUE if value else _FALSE)


@jit_in_place
def null(out: Bytes, i: int) -> int:
    """Write null, which stands for a value that cannot be read."""
    return word(out, i, _NULL)


@jit_in_place
def pointer(out: Bytes, i: int, bits: np.uint64) -> int:
    """Write an address as a hexadecimal text, as Perfetto shows it."""
    digits, rest = 1, bits >> np.uint64(4)
    while rest:
        digits += 1
        rest >>= np.uint64(4)
    i = word(out, i, _HEX)
    return put(out, _hex(out, i, bits, digits), 34)


@jit_in_place
def json_or_string(out: Bytes, i: int, buffer: Bytes, at: int, stop: int) -> int:
    """Copy JSON if it is a well-formed object or list; else write it as a text."""
    if at < stop and buffer[at] in (91, 123) and skip_value(buffer, at, stop) == stop:
        for k in range(at, stop):
            i = put(out, i, buffer[k])
        return i
    return string(out, i, buffer, at, stop)
