"""Masks of values that are members of a subset of an enumeration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.arrays.types import Array

_BYTES = 256
"""Values of a column of kinds, for which a table is the quickest test."""


def is_any(values: Array, members: Iterable[int]) -> Array:
    """Mark the values that are one of `members`, such as kinds of nodes in ``GPU_WORK``.

    Parameters
    ----------
    values
        Numbers, of any shape.
    members
        Numbers or members of an `IntEnum`.

    Returns
    -------
    Array
        Truth values, of the shape of `values`.
    """
    numbers = [int(member) for member in members]
    if values.dtype != np.uint8:
        return np.isin(values, numbers)
    is_member = np.zeros(_BYTES, np.bool_)
    is_member[[number for number in numbers if 0 <= number < _BYTES]] = True
    return is_member[values]
