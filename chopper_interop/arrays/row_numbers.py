"""Row numbers are int32: what has more rows than these can number is an error, as casts would wrap around in silence."""

from __future__ import annotations

from chopper_interop.errors import TooLargeError

MOST = 2**31 - 1
"""The most rows: int32 numbers them from 0 on, and -1 is for none."""


def require(count: int, what: str, *, rows_each: int = 1, remedy: str = "") -> None:
    """Raise `TooLargeError` if there are more of something than row numbers.

    Parameters
    ----------
    count
        How many there are.
    what
        Their name in the plural.
    rows_each
        Rows, such as vertices, that each of them has.
    remedy
        Which options bound them; by default those of the ranks and steps that are read.
    """
    most = MOST // rows_each
    if count > most:
        percent = 100 * most // count
        raise TooLargeError(
            f"{count:,} {what} are too many for row numbers of 32 bits: at most {most:,} are possible",
            hint=remedy
            or f"read at most {percent} % of them: fewer ranks with --ranks, or fewer steps with --steps",
        )
