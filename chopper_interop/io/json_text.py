"""JSON text in numba loops: skipping blanks, strings and values of any depth; exact numbers.

Positions are offsets in a buffer of bytes; `n` is where the text ends. A function that skips
something returns the offset behind it, or a negative number where the text is no proper JSON:
-1 where it breaks off, -2 where something else stands.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes, nest
from chopper_interop.arrays.byte_masks import WIDTH, equal_bytes, lowest_bit
from chopper_interop.arrays.compiled import jit, jit_in_place

# Characters by their codes.
_NEWLINE, QUOTE, _BACKSLASH, COMMA, COLON = 10, 34, 92, 44, 58
OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = 123, 125, 91, 93
_TENTH_OF_LARGEST = np.uint64(1844674407370955161)
_LAST_OF_LARGEST = 53  # 2**64 - 1 ends in 5
_LARGEST_NEGATIVE = np.uint64(1 << 63)
_SIXTEENTH_OF_LARGEST = 1 << 59
_MAX_DIGITS = 19
"""Decimal digits of the largest power of ten that 64 bits hold, and of which they hold any number."""
_LARGEST_POWER = 1 << 40
"""Exponents are cut to this: far more digits than any text has, so that a sum with the number of
digits cannot overflow."""
_BITS_DEPTH = 64
"""Depth of brackets whose kinds the bits of one number can hold."""
# Characters by their codes.
_ZERO, _NINE, MINUS, _PLUS, _DOT = 48, 57, 45, 43, 46
_CASE = 32
"""Bit in which brackets of objects differ from those of lists, as small letters do from large ones."""


def byte_table(members: bytes, *, but: bool = False) -> Array:
    """Return a table of 256 truth values: which bytes are among `members`, or are not if `but`.

    Looking a byte up in it is one step, however many members there are.
    """
    return np.isin(np.arange(256), list(members), invert=but)


_BLANK = byte_table(b" \t\n\v\f\r")
IN_STRING = byte_table(b'"\\\n', but=True)
_NO_BRACKET = byte_table(b'"{}[]', but=True)
_IN_NUMBER = byte_table(b"0123456789.eE")
_IN_SCALAR = byte_table(bytes(range(33)) + b'":,{}[]', but=True)


@jit_in_place
def skip_bytes(buffer: Bytes, i: int, n: int, table: Array) -> int:
    """Return the offset of the next byte that is not in the table, n if there is none."""
    at, end = np.uint64(i), np.uint64(n)  # unsigned: no check for a negative index at each byte
    while at < end and table[buffer[at]]:
        at += np.uint64(1)
    return np.int64(at)


@jit_in_place
def skip_blank(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset of the next byte that is no white space, n if there is none."""
    return skip_bytes(buffer, i, n, _BLANK)


@jit_in_place
def skip_string(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset behind the string whose opening quote is at `i`.

    -1 if it does not end, -2 if it runs over the end of a line: no JSON string does, so a quote
    that was not escaped cannot swallow the events behind it.
    """
    i = skip_bytes(buffer, i + 1, n, IN_STRING)
    while i < n and buffer[i] == _BACKSLASH:
        i = skip_bytes(buffer, min(i + 2, n), n, IN_STRING)
    if i >= n:
        return -1
    return i + 1 if buffer[i] == QUOTE else -2


@jit_in_place
def _ends_value(c: int) -> bool:
    """True for a byte that may stand behind a number or word."""
    return c in (COMMA, CLOSE, CLOSE_LIST) or c <= 32


@jit_in_place
def skip_value(buffer: Bytes, i: int, n: int) -> int:
    """Return the offset behind the value at `i`; -1 if it does not end, -2 if it is no value.

    Strings and brackets are followed, but scalars within are not checked: that is fast, and a
    JSON library checks what is looked into later.
    """
    c = buffer[i]
    if c == QUOTE:
        return skip_string(buffer, i, n)
    if c not in (OPEN, OPEN_LIST):
        end = skip_bytes(buffer, i, n, _IN_SCALAR)
        if end == n:
            return -1
        return end if end > i and _ends_value(buffer[end]) else -2
    end = _skip_plain(buffer, i, n)
    if end > i:
        return end
    start, depth = i, 0
    lists = np.uint64(0)  # a bit for each bracket around, the innermost lowest: 1 for a list
    while True:
        i = _next_bracket(buffer, i, n)
        if i < 0:
            return i
        c = buffer[i]
        i += 1
        if c in (OPEN, OPEN_LIST):
            if depth == _BITS_DEPTH:
                return _skip_deep(buffer, start, n)
            lists = (lists << np.uint64(1)) | np.uint64(c == OPEN_LIST)
            depth += 1
            continue
        if (c == CLOSE_LIST) != (lists & np.uint64(1) == np.uint64(1)):
            return -2
        lists >>= np.uint64(1)
        depth -= 1
        if depth == 0:
            return i


@jit_in_place
def _skip_plain(buffer: Bytes, i: int, n: int) -> int:
    """Return what `skip_value` does of a list or object that is as most are; of all else `i`.

    It takes 64 bytes at a time as masks. Bits of `inside` are those of strings with their opening quotes: of each bit,
    whether the number of quotes up to it is odd. Where there is an escape, a string runs over the end of a line, or brackets do
    not match, a walk of bytes decides what that means.
    """
    at, depth, lists, carried, behind = np.uint64(i), 0, np.uint64(0), np.uint64(0), np.uint64(0)
    one, top = np.uint64(1), np.uint64(63)
    while np.int64(at) + WIDTH <= len(buffer):
        quotes = _bytes(buffer, at, 0, QUOTE)
        inside = quotes
        for shift in (1, 2, 4, 8, 16, 32):
            inside ^= inside << np.uint64(shift)
        inside ^= carried
        opened = _bytes(buffer, at, _CASE, OPEN) & ~inside
        closed = _bytes(buffer, at, _CASE, CLOSE) & ~inside
        left, before = opened | closed, ~np.uint64(0)
        while left:
            bit = left & (~left + one)
            c = buffer[at + lowest_bit(left)]
            left ^= bit
            if bit & opened:
                if depth == _BITS_DEPTH:
                    return i
                lists = (lists << one) | np.uint64(c == OPEN_LIST)
                depth += 1
                continue
            if (c == CLOSE_LIST) != (lists & one == one):
                return i
            lists >>= one
            depth -= 1
            if depth == 0:
                before = bit | (bit - one)
                break
        if (_bytes(buffer, at, 0, _BACKSLASH) | _bytes(buffer, at, 0, _NEWLINE) & inside) & before:
            return i
        ended = quotes & ~inside
        next_ = (ended << one | behind) & before
        next_ &= ~(closed | _bytes(buffer, at, 0, COMMA) | _bytes(buffer, at, 0, COLON))
        while next_:
            k = skip_blank(buffer, np.int64(at + lowest_bit(next_)), n)
            if k < n and buffer[k] not in (COMMA, COLON, CLOSE, CLOSE_LIST):
                return i
            next_ &= next_ - one
        if depth == 0:
            end = np.int64(at + lowest_bit(before + one if ~before else np.uint64(0)))
            return end if end <= n else i
        carried = np.uint64(0) - (inside >> top)
        behind = ended >> top
        at += np.uint64(WIDTH)
        if np.int64(at) >= n:
            return i
    return i


@jit_in_place
def _bytes(buffer: Bytes, at: np.uint64, ignored: int, byte: int) -> np.uint64:
    return equal_bytes(buffer, at, np.uint8(ignored), np.uint8(byte))


@jit_in_place
def _next_bracket(buffer: Bytes, i: int, n: int) -> int:
    """Offset of the next bracket outside of strings; -1 if there is none, -2 at a stray quote."""
    while True:
        i = skip_bytes(buffer, i, n, _NO_BRACKET)
        if i >= n:
            return -1
        if buffer[i] != QUOTE:
            return i
        i = skip_string(buffer, i, n)
        if i < 0:
            return i
        i = skip_blank(buffer, i, n)
        if i < n and buffer[i] not in (COMMA, COLON, CLOSE, CLOSE_LIST):
            return -2  # a quote that was not escaped


@jit
def unclosed_brackets(buffer: Bytes, i: int, n: int) -> tuple[int, Array, int]:
    """Return the offset behind the list or object at `i`, and the brackets that do not close.

    Returns
    -------
    end, opened, depth
        `end` is negative if the text is damaged; opened[:depth] are the offsets of the brackets
        that are open where the walk ended.
    """
    opened, depth = np.empty(_BITS_DEPTH, np.int64), 0
    while True:
        i = _next_bracket(buffer, i, n)
        if i < 0:
            return i, opened, depth
        c = buffer[i]
        if c in (OPEN, OPEN_LIST):
            if depth == len(opened):
                opened = nest.enlarged(opened, 2 * depth)
            opened[depth] = i
            depth += 1
        elif buffer[opened[depth - 1]] + 2 != c:  # brackets of a pair are two apart
            return -2, opened, depth
        else:
            depth -= 1
        i += 1
        if depth == 0:
            return i, opened, depth


@jit
def _skip_deep(buffer: Bytes, i: int, n: int) -> int:
    """`skip_value` for a list or object of any depth."""
    end, _, _ = unclosed_brackets(buffer, i, n)
    return end


@jit_in_place
def _exponent(buffer: Bytes, i: int, n: int) -> tuple[int, int]:
    """Power of ten behind the ``e`` at `i`, and the offset behind it: `i` if no digit follows."""
    at = i + 1
    negative = at < n and buffer[at] == MINUS
    if at < n and buffer[at] in (MINUS, _PLUS):
        at += 1
    if at >= n or not _ZERO <= buffer[at] <= _NINE:
        return 0, i
    power = 0
    while at < n and _ZERO <= buffer[at] <= _NINE:
        power = min(10 * power + buffer[at] - _ZERO, _LARGEST_POWER)
        at += 1
    return (-power if negative else power), at


@jit_in_place
def _digits(buffer: Bytes, i: int, n: int) -> tuple[np.uint64, int, int, int, int]:
    """Digits and decimal point at `i`: as many of the first digits as fit 64 bits, as a number.

    Returns
    -------
    value, power, dropped, digits, end
        The number is `value` times 10**`power`, and `dropped` is the first digit that did not
        fit, if any; there are `digits` in all.
    """
    value, power, dropped, digits, decimals = np.uint64(0), 0, -1, 0, 0
    while i < n:
        c = buffer[i]
        if _ZERO <= c <= _NINE:
            digits += 1
            room = digits < _MAX_DIGITS or value < _TENTH_OF_LARGEST
            room = room or (value == _TENTH_OF_LARGEST and c <= _LAST_OF_LARGEST)
            if dropped < 0 and room:
                value = value * np.uint64(10) + np.uint64(c - _ZERO)
                power -= decimals
            else:
                dropped = np.int64(c) - _ZERO if dropped < 0 else dropped
                power += 1 - decimals
        elif c == _DOT and not decimals:
            decimals = 1
        else:
            break
        i += 1
    return value, power, dropped, digits, i


@jit_in_place
def _short_number(buffer: Bytes, i: int, n: int, decimals: int) -> tuple[int, int]:
    """Return what `parse_decimal` does of a number without sign, exponent and rounding that fits 63 bits.

    Nearly all are such, and no digit is tested for fitting. Of others the offset behind is `i`. Offsets are
    unsigned, as in `skip_bytes`.
    """
    one, ten, zero = np.uint64(1), np.uint64(10), np.uint64(_ZERO)
    at, end, value = np.uint64(i), np.uint64(n), np.uint64(0)
    last = min(end, at + np.uint64(_MAX_DIGITS - decimals))
    while at < last and _ZERO <= buffer[at] <= _NINE:
        value = ten * value + (np.uint64(buffer[at]) - zero)
        at += one
    if at == np.uint64(i):
        return 0, i
    if at < end and buffer[at] == _DOT:
        at += one
        while decimals > 0 and at < end and _ZERO <= buffer[at] <= _NINE:
            value = ten * value + (np.uint64(buffer[at]) - zero)
            decimals -= 1
            at += one
    for _ in range(decimals):
        value *= ten
    if value >= _LARGEST_NEGATIVE or (at < end and _IN_NUMBER[buffer[at]]):
        return 0, i
    return np.int64(value), np.int64(at)


@jit_in_place
def parse_decimal(buffer: Bytes, i: int, n: int, decimals: int) -> tuple[int, int, bool]:
    """Return the number at `i` times 10**decimals, rounded to the nearest integer.

    In integers throughout: times since 1970 in nanoseconds have more digits than a double.


    Returns
    -------
    value, end, ok
        `end` is the offset behind the number; `ok` is False if there is none or it does not
        fit. A value above 2**63 - 1 that fits an unsigned integer comes out modulo 2**64.
    """
    short, end = _short_number(buffer, i, n, decimals)
    if end > i:
        return short, end, True
    negative = i < n and buffer[i] == MINUS
    if i < n and buffer[i] in (MINUS, _PLUS):
        i += 1
    value, shift, dropped, digits, i = _digits(buffer, i, n)
    shift += decimals
    if digits and i < n and buffer[i] in (69, 101):
        power, i = _exponent(buffer, i, n)
        shift += power
    while shift > 0 and value:
        if value > _TENTH_OF_LARGEST or dropped >= 0:
            return 0, i, False
        value *= np.uint64(10)
        shift -= 1
    up = shift == 0 and dropped >= 5  # half of ten
    if shift < 0:
        value, up = _without_digits(value, -shift)
    if up:
        value += np.uint64(1)
        if value == 0:
            return 0, i, False
    if negative and value > _LARGEST_NEGATIVE:
        return 0, i, False
    signed = np.int64(value)
    return (-signed if negative else signed), i, digits > 0


@jit_in_place
def _without_digits(value: np.uint64, count: int) -> tuple[np.uint64, bool]:
    """Return a number without its last digits, and whether these are half of what they were counted in, or more."""
    if count > _MAX_DIGITS:
        return np.uint64(0), False
    unit = np.uint64(1)
    for _ in range(count):
        unit *= np.uint64(10)
    rest = value % unit
    return value // unit, rest >= unit - rest


@jit_in_place
def plain_number(buffer: Bytes, i: int, n: int, decimals: int) -> tuple[int, int]:
    """Return what `_short_number` does of one with which a value ends; of all else the offset behind is `i`."""
    short, end = _short_number(buffer, i, n, decimals)
    return (short, end) if i < end < n and _ends_value(buffer[end]) else (0, i)


@jit_in_place
def parse_integer(buffer: Bytes, i: int, n: int, decimals: int) -> tuple[int, int, bool]:
    """Return the whole number at `i` times 10**decimals, which may be quoted or hexadecimal.

    Returns
    -------
    value, end, ok
        `end` is the offset behind the value; `ok` is False if it is no number, or none that an
        int64 can hold.
    """
    short, end = plain_number(buffer, i, n, decimals)
    if end > i:
        return short, end, True
    end = skip_value(buffer, i, n)
    if end < 0:
        return 0, end, False
    value, ok = parse_integer_within(buffer, i, end, decimals)
    return value, end, ok


@jit_in_place
def parse_integer_within(buffer: Bytes, at: int, stop: int, decimals: int) -> tuple[int, bool]:
    """Return `parse_integer` of the value buffer[at:stop], whose end is known, and if it is one."""
    if buffer[at] == QUOTE:
        at, stop = at + 1, stop - 1
    if stop - at > 2 and buffer[at] == _ZERO and buffer[at + 1] in (88, 120):
        return _hexadecimal(buffer, at + 2, stop)
    value, behind, ok = parse_decimal(buffer, at, stop, decimals)
    wrapped = value < 0 and buffer[at] != MINUS
    if not ok or behind != stop or wrapped:
        return 0, False
    return value, True


@jit_in_place
def _hexadecimal(buffer: Bytes, at: int, stop: int) -> tuple[int, bool]:
    """Value of hexadecimal digits; False if they are none, or of more than 63 bits."""
    value = np.int64(0)
    for k in range(at, stop):
        c = np.int64(buffer[k])
        digit = c - 48 if c <= 57 else (c | 32) - 87
        if digit < 0 or digit > 15 or (c > 57 and digit < 10) or value >= _SIXTEENTH_OF_LARGEST:
            return 0, False
        value = value * 16 + digit
    return value, True
