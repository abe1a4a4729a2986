"""Whole numbers that a Kineto file states, where anything may stand in their place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

MOST_RANKS = 1 << 20
"""Beyond this a number is no rank, nor a number of ranks."""

MOST_NUMBER = (1 << 31) - 1
"""Beyond this a number is no device, and no process id."""

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


def in_reach(value: npt.NDArray[Any], most: int = MOST_NUMBER) -> npt.NDArray[np.bool_]:
    """Which numbers can be devices, process ids or, up to `MOST_RANKS`, ranks; -1 is none."""
    return np.asarray((value >= -1) & (value <= most))
