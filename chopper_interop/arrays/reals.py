"""Decimal text to the nearest double, in numba.

A double keeps 53 bits, so the product of a mantissa and a power of ten has to be known to more
than that before it is rounded once. Both are taken as sums of two doubles, which know 106 bits
(T. J. Dekker, A floating-point technique for extending the available precision, 1971).
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit_in_place

_LARGEST_POWER = 280
"""Powers of ten beyond which the pieces of a product leave the range of doubles."""
_MAX_DIGITS = 19
"""Decimal digits that always fit 64 bits; those behind them are dropped."""
_SPLITTER = 134217729.0
"""2**27 + 1: a double times it splits into two halves of 26 bits (Dekker, 1971)."""
_EXACT = np.uint64(1 << 53)
"""Whole numbers up to here are doubles."""
_LOW_BITS = np.uint64(2047)
"""The 11 of 64 bits that a double has no place for."""


def _powers() -> Array:
    """Powers of ten as sums of two doubles, from 10**-_LARGEST_POWER on."""
    table = np.zeros((2 * _LARGEST_POWER + 1, 2))
    for row, power in enumerate(range(-_LARGEST_POWER, _LARGEST_POWER + 1)):
        top, bottom = 10 ** max(power, 0), 10 ** max(-power, 0)
        high = top / bottom  # Python rounds a quotient of integers once
        a, b = high.as_integer_ratio()
        table[row] = high, (top * b - a * bottom) / (b * bottom)
    return table


_POWERS = _powers()


@jit_in_place
def real_number(buffer: Array, at: int, stop: int) -> tuple[float, bool]:
    """Return the double nearest to the number in buffer[at:stop], and False if there is none.

    There is none where the text is no number, or where its power of ten is too large. Compiled, as
    a file has millions of numbers: Python would make an object of each.
    """
    i = at
    negative = i < stop and buffer[i] == 45
    if negative:
        i += 1
    mantissa, digits, power, point = np.uint64(0), 0, 0, False
    while i < stop:
        c = buffer[i]
        if c == 46 and not point:
            point = True
        elif 48 <= c <= 57:
            if digits < _MAX_DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(c - 48)
                digits += 1 if mantissa else 0
                power -= 1 if point else 0
            else:
                power += 0 if point else 1
        else:
            break
        i += 1
    if i < stop and buffer[i] in (69, 101):
        exponent, i = _exponent(buffer, i + 1, stop)
        power += exponent
    if i != stop:
        return 0.0, False
    if mantissa == 0:
        return (-0.0 if negative else 0.0), True
    if abs(power) > _LARGEST_POWER:
        return 0.0, False
    value = _product(
        mantissa, _POWERS[power + _LARGEST_POWER, 0], _POWERS[power + _LARGEST_POWER, 1]
    )
    return (-value if negative else value), True


@jit_in_place
def _exponent(buffer: Array, i: int, stop: int) -> tuple[int, int]:
    """Return the power of ten behind the ``e`` of a number, and the offset behind it."""
    downward = i < stop and buffer[i] == 45
    if i < stop and buffer[i] in (43, 45):
        i += 1
    power = 0
    while i < stop and 48 <= buffer[i] <= 57:
        power = min(10 * power + buffer[i] - 48, 100_000)
        i += 1
    return -power if downward else power, i


@jit_in_place
def _product(mantissa: int, high: float, low: float) -> float:
    """Mantissa times (high + low), rounded once.

    The error of the product of the high parts is computed exactly from their halves (Dekker).
    """
    bits = np.uint64(mantissa)
    rest = bits & _LOW_BITS if bits >= _EXACT else np.uint64(0)
    large, small = np.float64(bits - rest), np.float64(rest)
    product = large * high
    a, b = large * _SPLITTER, high * _SPLITTER
    a_high, b_high = a - (a - large), b - (b - high)
    a_low, b_low = large - a_high, high - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product + (error + (large * low + small * high))
