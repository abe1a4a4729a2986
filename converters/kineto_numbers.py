"""Whole numbers that a Kineto file states, where anything may stand in their place."""

from __future__ import annotations

import re
from typing import Any

MOST_RANKS = 1 << 20
"""Beyond this a number is no rank, nor a number of ranks."""

_WHOLE = re.compile(r"\s*-?[0-9]{1,19}\s*", re.ASCII)


def whole(value: Any, least: int = 0, most: int = (1 << 62) - 1) -> int | None:
    """An integer or the text of one; None if it is neither, or not within these bounds."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if least <= value <= most else None


def ranks(value: Any) -> tuple[int, ...] | None:
    """A list of ranks; None if it is none, or something in it is no rank."""
    listed = [whole(rank, most=MOST_RANKS) for rank in value] if isinstance(value, list) else []
    known = tuple(rank for rank in listed if rank is not None)
    return known if known and len(known) == len(listed) else None
