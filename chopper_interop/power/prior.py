"""What is expected of a GPU's power before any sample is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_interop.power.classes import CLASSES

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

FIXED, IDLING, FIRST = 0, 1, 2
"""Places of power that nothing changes, of that of a clock without work, and of the first part."""
EXPONENT, WIDTH, DELAY, LAG = -4, -3, -2, -1
"""Places of what does not enter linearly: exponent of the clock, ln of the sensor's width in ns, its
delay in bins, and that of the clock's samples in bins."""
LINEAR: Final = slice(0, EXPONENT)

PRIOR_EXPONENT, PRIOR_EXPONENT_ERROR = 2.4, 0.5
"""Power follows f V² and voltage about f^0.7 in the upper part of a GPU's range."""
LEAST_EXPONENT, MOST_EXPONENT = 1.0, 3.5
USUAL_WIDTH_NS = 10e6
_WIDTH_ERROR = 1.5
_FIXED, _FIXED_ERROR = 0.25, 0.1
_IDLING, _IDLING_ERROR = 0.06, 0.05
_AT_WORK, _AT_WORK_ERROR = 0.7, 0.4
"""Shares of the mean power."""
_PART_ERROR = 0.15
"""Spread of kernels of one class, as a share of what matrix products draw."""


@dataclass(frozen=True)
class Prior:
    """What is expected of the parameters: their mean and covariance, and its inverse."""

    mean: Array
    covariance: Array
    weight: Array


def prior(level_w: float, busy: Array, classes: Array, delays: tuple[float, float]) -> Prior:
    """What is expected of a GPU.

    Parameters
    ----------
    level_w
        Its mean power.
    busy
        Mean share of time of each part of its work.
    classes
        Class of each part.
    delays
        How uncertain the delay of the sensor and of the clock's samples is, in bins.
    """
    ratio = np.array([CLASSES[c].ratio for c in classes])
    spread = np.array([CLASSES[c].spread for c in classes])
    whole = _AT_WORK * level_w / max(float(ratio @ busy), 0.3)
    n = FIRST + len(ratio) - EXPONENT
    mean, covariance = np.zeros(n), np.zeros((n, n))
    mean[[FIXED, IDLING]] = _FIXED * level_w, _IDLING * level_w
    mean[FIRST:EXPONENT] = ratio * whole
    mean[EXPONENT], mean[WIDTH] = PRIOR_EXPONENT, np.log(USUAL_WIDTH_NS)
    same = classes[:, np.newaxis] == classes
    parts = _AT_WORK_ERROR**2 * np.outer(ratio, ratio) + np.outer(spread, spread) * same
    parts += _PART_ERROR**2 * np.eye(len(ratio))
    covariance[FIRST:EXPONENT, FIRST:EXPONENT] = parts * whole**2
    for place, error in (
        (FIXED, _FIXED_ERROR * level_w),
        (IDLING, _IDLING_ERROR * level_w),
        (EXPONENT, PRIOR_EXPONENT_ERROR),
        (WIDTH, _WIDTH_ERROR),
        (DELAY, max(delays[0], 1.0)),
        (LAG, max(delays[1], 1.0)),
    ):
        covariance[place, place] = error**2
    return Prior(mean, covariance, np.linalg.inv(covariance))
