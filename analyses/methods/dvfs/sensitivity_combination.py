"""Estimates of several sources combined by the inverses of their variances."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.sensitivity_sources import Estimate

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array

SOURCES = ("regression", "counted", "counters", "class", "prior")
REGRESSION, COUNTED, COUNTERS, CLASS, PRIOR = range(len(SOURCES))
_MIN_ERROR = 1e-3
"""Smallest error of a source, so that none has infinite weight. Chosen: far below all errors that matter."""
_PRIOR_FREEDOM = 3
"""Number of values that the expected spread counts as. Chosen: few, so that six kernels outweigh it."""
_TINY = 1e-12
_ROUNDS = 20
"""Rounds of the fixed-point iteration for the spread. Chosen: more than it takes to converge."""


class Ratio(NamedTuple):
    """Times of kernels at other clocks over their measured times.

    Parameters
    ----------
    log
        Logarithm of the ratio for each kernel.
    statistical, clock, form
        Standard deviations of `log`: of each kernel by itself; by the clocks, common to all kernels;
        by the form of the law.
    sensor
        Half of the range of `log` over the assumptions on the clock's sensor, with a sign.
    direction
        Which statistical errors are alike, (kernel, block), with a length of at most 1: those of two kernels
        have its product as their correlation. None if all are independent.
    """

    log: Array
    statistical: Array
    clock: Array
    form: Array
    sensor: Array | float = 0.0
    direction: Array | None = None

    @property
    def variance(self) -> Array:
        """Variance of `log` by all errors."""
        return self.statistical**2 + self.clock**2 + self.form**2


def combine_estimates(sources: list[Estimate]) -> tuple[Estimate, Array]:
    """Combine estimates by the inverses of their variances; wider where they contradict each other.

    Also returns the weight of each source, (source, kernel).
    """
    value, error = (
        np.stack([getattr(one, name) for one in sources]) for name in ("value", "error")
    )
    good = ~np.isnan(value) & ~np.isnan(error)
    good[PRIOR] &= ~good[:PRIOR].any(axis=0)
    weight = np.where(good, 1 / np.where(good, error, 1.0) ** 2, 0.0)
    total = weight.sum(axis=0)
    mean = np.sum(weight * np.where(good, value, 0), axis=0) / np.where(total > 0, total, np.nan)
    deviations = np.sum(weight * np.where(good, value - mean, 0.0) ** 2, axis=0)
    degrees = np.maximum(good.sum(axis=0) - 1, 1)
    wider = np.sqrt(np.maximum(deviations / degrees, 1.0))  # Birge's ratio
    error = wider / np.sqrt(np.where(total > 0, total, np.nan))
    return Estimate(np.clip(mean, 0.0, 1.0), error), weight / np.where(total > 0, total, 1.0)


def random_effects(value: Array, error: Array, expected: float) -> tuple[float, float]:
    """Mean of values that differ among themselves, and the standard deviation of one from it.

    Parameters
    ----------
    value, error
        Measured values and their errors.
    expected
        Expected standard deviation of the true values; counts as `_PRIOR_FREEDOM` values.
    """
    between, degrees = expected**2, len(value) - 1
    for _ in range(_ROUNDS):
        weight = 1 / (error**2 + between)
        mean = float(np.sum(weight * value) / np.sum(weight))
        rest = float(np.sum(weight * ((value - mean) ** 2 - error**2)) / np.sum(weight))
        between = (_PRIOR_FREEDOM * expected**2 + degrees * max(rest, 0.0)) / (
            _PRIOR_FREEDOM + degrees
        )
    return mean, float(np.sqrt(between + 1 / np.sum(weight)))


def first_known(first: Ratio, second: Ratio) -> Ratio:
    """Return the first ratio of each kernel, the second where it is not known."""
    unknown = np.isnan(first.log)
    return Ratio(*(np.where(unknown, b, a) for a, b in zip(first[:4], second[:4], strict=True)))


def combine_ratios(sources: list[Ratio]) -> tuple[Ratio, Array]:
    """Combine ratios by the inverses of their variances; the prior counts only where there is no other.

    Also returns the weight of each source, (source, kernel).
    """
    log = np.stack([one.log for one in sources])
    variance = np.stack([one.variance for one in sources]) + _MIN_ERROR**2
    good = np.isfinite(log) & np.isfinite(variance)
    good[PRIOR] &= ~good[:PRIOR].any(axis=0)
    weight = np.where(good, 1 / np.where(good, variance, 1.0), 0.0)
    total = weight.sum(axis=0)
    weight /= np.where(total > 0, total, 1.0)
    known = np.where(good, log, 0.0)
    mean = np.where(total > 0, np.sum(weight * known, axis=0), np.nan)
    parts = [
        np.stack([getattr(one, name) for one in sources])
        for name in ("statistical", "clock", "form")
    ]
    statistical, clock, form = (np.where(good, part, 0.0) for part in parts)
    scatter = np.sum(weight * (known - mean) ** 2, axis=0)
    expected = np.where(total > 0, (good.sum(axis=0) - 1) / np.where(total > 0, total, 1), 0)
    disagreement = np.sqrt(np.maximum(scatter - expected, 0.0))
    together = np.hypot(np.sqrt(np.sum((weight * statistical) ** 2, axis=0)), disagreement)
    direction = sources[REGRESSION].direction
    if direction is not None:
        of_law = weight[REGRESSION] * statistical[REGRESSION] / np.maximum(together, _TINY)
        direction = direction * of_law[:, np.newaxis]
    # Errors of one source are independent of the others'; those by the clocks are common to all.
    return Ratio(
        mean,
        together,
        np.sum(weight * clock, axis=0),
        np.sqrt(np.sum((weight * form) ** 2, axis=0)),
        direction=direction,
    ), weight
