"""Expected parameters of a GPU's power, before any sample is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopper_interop.analyses.methods.power.classes import CLASSES
from chopper_interop.arrays import Array

FIXED, IDLING, FIRST = 0, 1, 2
"""Indices of the parameters that enter linearly: constant power, power of a clock without
work, and the power of the first part of the work."""
EXPONENT, WIDTH, DELAY, LAG = -4, -3, -2, -1
"""Indices of the parameters that do not enter linearly: exponent of the clock, ln of the sensor's width in
ns, its delay in bins, and the lag of the clock's samples in bins."""
LINEAR: Final = slice(0, EXPONENT)

PRIOR_EXPONENT, PRIOR_EXPONENT_ERROR = 2.4, 0.5
"""Power follows f V², and voltage about f^0.7 in the upper part of a GPU's range. One standard deviation
either way spans voltages of f^0.45 to f^0.95."""
MIN_EXPONENT, MAX_EXPONENT = 1.0, 3.5
"""Limits of the exponent: a constant voltage gives 1, voltage in proportion to the clock 3; and a margin."""
USUAL_WIDTH_NS = 10e6
"""Expected width of a sensor's filter. Chosen: amd-smi's running average is documented nowhere; within the
factor of ``exp(1.5)`` either way of `_WIDTH_ERROR` lie 2 to 45 ms."""
_WIDTH_ERROR = 1.5
_FIXED, _FIXED_ERROR = 0.25, 0.1
_IDLING, _IDLING_ERROR = 0.06, 0.05
_AT_WORK, _AT_WORK_ERROR = 0.7, 0.4
"""Powers and their errors as shares of the mean power: fixed, of the idling clock, and of the work. Chosen:
together they make about the mean power, with idle at 0.31 +- 0.11 of it."""
_PART_ERROR = 0.15
"""Standard deviation of the power of kernels in a class, as a share of that of matrix products. Chosen:
wide, so that a few steps of telemetry outweigh it."""
_MIN_BUSY = 0.3
"""Smallest busy share by which the mean power is divided. Chosen: of a GPU that hardly works, the mean power
says little of what work draws."""


@dataclass(frozen=True)
class Prior:
    """Expected parameters: mean, covariance, and the inverse of the covariance as weight."""

    mean: Array
    covariance: Array
    weight: Array

    def with_parameter(self, index: int, value: float, error: float) -> Prior:
        """Return what is expected if one parameter is this, with this error."""
        mean, covariance = self.mean.copy(), self.covariance.copy()
        mean[index] = value
        covariance[index], covariance[:, index] = 0.0, 0.0
        covariance[index, index] = error**2
        return Prior(mean, covariance, np.linalg.inv(covariance))

    def with_sum(self, factors: Array, value: float, error: float) -> Prior:
        """Return what is expected after a sum of parameters times factors was seen, with this error."""
        toward = self.covariance @ factors
        gain = toward / (float(factors @ toward) + error**2)
        mean = self.mean + gain * (value - float(factors @ self.mean))
        covariance = self.covariance - np.outer(gain, toward)
        return Prior(mean, covariance, np.linalg.inv(covariance))


def expected_parameters(
    level_w: float, busy: Array, classes: Array, delays: tuple[float, float]
) -> Prior:
    """Return the expected parameters of a GPU.

    Parameters
    ----------
    level_w
        Mean power of the GPU.
    busy
        Mean share of time of each part of its work.
    classes
        Class of each part.
    delays
        Standard deviations of the sensor's delay and of the lag of the clock's samples, in bins.
    """
    ratio = np.array([CLASSES[c].ratio for c in classes])
    spread = np.array([CLASSES[c].spread for c in classes])
    matrix_w = _AT_WORK * level_w / max(float(ratio @ busy), _MIN_BUSY)
    n = FIRST + len(ratio) - EXPONENT
    mean, covariance = np.zeros(n), np.zeros((n, n))
    mean[[FIXED, IDLING]] = _FIXED * level_w, _IDLING * level_w
    mean[FIRST:EXPONENT] = ratio * matrix_w
    mean[EXPONENT], mean[WIDTH] = PRIOR_EXPONENT, np.log(USUAL_WIDTH_NS)
    # Errors: one common to all parts, one common to each class, and one of each part.
    same = classes[:, np.newaxis] == classes
    parts = _AT_WORK_ERROR**2 * np.outer(ratio, ratio) + np.outer(spread, spread) * same
    parts += _PART_ERROR**2 * np.eye(len(ratio))
    covariance[FIRST:EXPONENT, FIRST:EXPONENT] = parts * matrix_w**2
    for index, error in (
        (FIXED, _FIXED_ERROR * level_w),
        (IDLING, _IDLING_ERROR * level_w),
        (EXPONENT, PRIOR_EXPONENT_ERROR),
        (WIDTH, _WIDTH_ERROR),
        (DELAY, max(delays[0], 1.0)),
        (LAG, max(delays[1], 1.0)),
    ):
        covariance[index, index] = error**2
    return Prior(mean, covariance, np.linalg.inv(covariance))
