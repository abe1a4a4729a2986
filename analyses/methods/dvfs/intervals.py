"""Confidence intervals of times at other clocks, within what is possible."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array

TWO_SIDED = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""
_MAX_HALF_WIDTH = 50.0
"""Largest half width of the logarithm: its exponential is beyond all bounds, and finite."""


_OPEN_SHARE = 0.95
"""Share of what is possible from which on an interval says nothing but that. Chosen: both are of 95 %."""
_OPEN_SHARE_AT_END = 0.8
"""The same where the time is at an end of its interval, held there by what is possible and not by measurements. Chosen: below
the 0.87 of a generated job whose estimate was off by 37 %; of 104 others the four above 0.8 were within, and at most 4 % off."""
_END_SHARE = 0.05
"""Part of an interval that is its end. Chosen: what an interval of 95 % leaves out."""
_MIN_RANGE = 0.01
"""Width of what is possible, as a share of the time, from which on a time within must be known. Chosen: ten times what
steps of real jobs differ by; a time within less is right whatever kernels follow."""


class Limits(NamedTuple):
    """Bounds of the durations of GPU work, as logarithms of the time over the measured time.

    Parameters
    ----------
    lower, upper
        Bounds of each node; 0 where the time stays.
    """

    lower: Array
    upper: Array


def student(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's distribution, to 1 % from 3 degrees of freedom on.

    Expansion by powers of 1 / degrees (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5).
    """
    z, n = TWO_SIDED, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def jackknife(without: Array) -> float:
    """Return the error of an estimate by its values without one block after the other; infinite if one block is all of it."""
    n = len(without)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = (n - 1) / n * float(np.sum((without - without.mean()) ** 2))
    return float(np.sqrt(variance)) if np.isfinite(variance) else np.inf


def confidence_interval(
    ns: Array, error_ns: Array, min_ns: Array, max_ns: Array, shift_ns: Array | float = 0.0
) -> tuple[Array, Array]:
    """Return both ends of the 95 % intervals of times.

    Ends are as far down as up in the logarithm, so that none is below 0.

    Parameters
    ----------
    ns, error_ns
        Times and their standard deviations.
    min_ns, max_ns
        Bounds of what is possible.
    shift_ns
        Middle of the interval less the times.
    """
    middle = np.maximum(ns + shift_ns, 0.0)
    half = np.minimum(TWO_SIDED * error_ns / np.where(ns > 0, ns, 1), _MAX_HALF_WIDTH)
    low = np.maximum(middle * np.exp(-half), min_ns)
    high = np.minimum(middle * np.exp(half), max_ns)
    return np.minimum(low, ns), np.maximum(high, ns)


def is_open(ns: Array, low: Array, high: Array, min_ns: Array, max_ns: Array) -> Array:
    """Mark times of which is known only what is possible, so that none within is an estimate.

    Parameters
    ----------
    ns
        Times.
    low, high
        Both ends of their intervals.
    min_ns, max_ns
        Bounds of what is possible.
    """
    possible = max_ns - min_ns
    within = np.minimum(high, max_ns) - np.maximum(low, min_ns)
    is_at_end = np.minimum(ns - low, high - ns) <= _END_SHARE * (high - low)
    share = np.where(is_at_end, _OPEN_SHARE_AT_END, _OPEN_SHARE)
    return (within >= share * possible) & (possible > _MIN_RANGE * max_ns)
