"""Sizes in bytes as words, in the unit in which they are not 0."""

from __future__ import annotations

_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_LEAST = 10
"""A unit is used from one tenth of it on: the last digit that is shown."""


def described(size: int) -> str:
    """Format a size with a unit of which it has a tenth at least, as users write GB in options.

    Examples
    --------
    >>> [described(size) for size in (1_234_567_890_000, 96_000_000, 2_097_152, 40_000, 12, 0)]
    ['1,234.6 GB', '96.0 MB', '2.1 MB', '40.0 kB', '12 bytes', '0 bytes']
    """
    for unit, length in _UNITS:
        if size * _LEAST >= length:
            return f"{size / length:,.1f} {unit}"
    return f"{size:,} bytes"
