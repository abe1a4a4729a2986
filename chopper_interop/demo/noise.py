"""Random numbers that are functions of what they belong to, so that two runs can share them.

A draw is named by a purpose and three indices (rank, step, item …); nothing is stored, and the
order of the draws does not matter.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from chopper_interop.arrays.compiled import jit

HOST_COST: Final = 1
KERNEL_TIME: Final = 2
TRANSFER_TIME: Final = 3
CLOCK_DRIFT: Final = 4
GPU_OFFSET: Final = 5
TELEMETRY: Final = 6
IDENTITY: Final = 7
COUNTER_RUN: Final = 8
"""Purposes; a counter run adds the number of its pass."""

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)
_TO_UNIT = 1.0 / (1 << 53)
"""A double holds 53 bits."""


# The finalizer of SplitMix64: it spreads each bit of its argument over all bits of the result.
@jit
def _mix(z: int) -> int:
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@jit
def bits(seed: int, purpose: int, a: int, b: int, c: int) -> int:
    """64 random bits, the same for the same arguments."""
    z = _mix(np.uint64(seed) * _WEYL + np.uint64(purpose))
    z = _mix(z + np.uint64(a) * _WEYL)
    z = _mix(z + np.uint64(b) * _WEYL)
    return _mix(z + np.uint64(c) * _WEYL)


@jit
def uniform(seed: int, purpose: int, a: int, b: int, c: int) -> float:
    """Draw from [0, 1)."""
    return float(bits(seed, purpose, a, b, c) >> _S11) * _TO_UNIT


@jit
def normal(seed: int, purpose: int, a: int, b: int, c: int) -> float:
    """Draw from the standard normal distribution."""
    word = bits(seed, purpose, a, b, c)
    first = (float(word >> _S11) + 0.5) * _TO_UNIT
    second = float(_mix(word + _WEYL) >> _S11) * _TO_UNIT
    return math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)


@jit
def lognormal(spread: float, seed: int, purpose: int, a: int, b: int, c: int) -> float:
    """Draw a factor of mean 1 whose logarithm has this standard deviation."""
    return math.exp(spread * normal(seed, purpose, a, b, c) - 0.5 * spread * spread)
