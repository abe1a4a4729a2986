"""Numbers and cells out of text, within what tables can hold."""

from __future__ import annotations

import csv
from decimal import Decimal, InvalidOperation

SECOND = 1_000_000_000
"""Nanoseconds."""
LATEST_S = 4_000_000_000
"""Epoch seconds beyond which nanoseconds with room for sums leave 64 bits (2096)."""
LARGEST_INDEX = (1 << 31) - 1
"""Of devices and parts of them."""
NOT_TOLD = -1


def cells_of(line: str) -> list[str]:
    """Cells of one line; what a writer left open ends with the line."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return line.split(",")


def whole_number(cell: str, largest: int) -> int:
    """A whole number out of its text; -1 if it is none or too large."""
    cell = cell.strip()
    if not (cell.isascii() and cell.isdigit() and len(cell) <= len(str(largest))):
        return NOT_TOLD
    return int(cell) if int(cell) <= largest else NOT_TOLD


def nanoseconds(text: str, unit_ns: int = SECOND) -> int | None:
    """A decimal number of seconds in whole nanoseconds, exactly; None if it is none.

    Digits beyond the nanosecond are rounded to the nearest.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    if not value.is_finite() or value.copy_abs() > LATEST_S * SECOND or "_" in text:
        return None
    ns = int((value * unit_ns).to_integral_value())
    return ns if abs(ns) <= LATEST_S * SECOND else None
