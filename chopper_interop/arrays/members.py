"""Masks of values that are members of a subset of an enumeration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.arrays.types import Array


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
    return np.isin(values, [int(member) for member in members])
