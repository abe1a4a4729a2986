"""Where times at other clocks lie: by their errors, and within what is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

TWO_SIDED = 1.96
"""Standard errors on either side of 95 % of a normal distribution."""
_WIDEST = 50.0
"""Of a logarithm: beyond all limits."""


class Limits(NamedTuple):
    """What GPU work can take at the least and the most: logarithms of that over the time measured.

    Parameters
    ----------
    least, most
        Of each node; 0 of what stays.
    """

    least: Array
    most: Array


def around(ns: Array, error_ns: Array, least_ns: Array, most_ns: Array) -> tuple[Array, Array]:
    """From where to where 95 % lie: as far down as up by the logarithm, so that none is below 0.

    Parameters
    ----------
    ns, error_ns
        Times and their standard deviations.
    least_ns, most_ns
        What they can be.
    """
    half = np.minimum(TWO_SIDED * error_ns / np.where(ns > 0, ns, 1), _WIDEST)
    low, high = np.maximum(ns * np.exp(-half), least_ns), np.minimum(ns * np.exp(half), most_ns)
    return np.minimum(low, ns), np.maximum(high, ns)
