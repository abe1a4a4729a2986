"""Whole numbers that a Kineto file states, where anything may stand in their place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_RANK = 1 << 20
"""Beyond this a number is no rank, nor a number of ranks: ten times the largest jobs, and small
enough to make a list of all ranks."""

MAX_ID = (1 << 31) - 1
"""Beyond this a number is no device, and no process id: the hub holds both as int32."""

_WHOLE_NUMBER = re.compile(r"\s*-?[0-9]{1,19}\s*", re.ASCII)


def whole_number(value: Any, minimum: int = 0, maximum: int = (1 << 62) - 1) -> int | None:
    """Return an integer, also of the text of one; None if it is none or out of these bounds."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if minimum <= value <= maximum else None


def rank_list(value: Any) -> tuple[int, ...] | None:
    """Return a list of ranks; None if it is empty, no list, or holds something else."""
    listed = value if isinstance(value, list) else []
    ranks = [whole_number(rank, maximum=MAX_RANK) for rank in listed]
    known = tuple(rank for rank in ranks if rank is not None)
    return known if known and len(known) == len(ranks) else None


def is_id(values: npt.NDArray[Any], maximum: int = MAX_ID) -> npt.NDArray[np.bool_]:
    """Mark numbers that can be devices, process ids or, up to `MAX_RANK`, ranks; -1 is none."""
    return np.asarray((values >= -1) & (values <= maximum))
