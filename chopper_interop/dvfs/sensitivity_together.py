"""What several sources tell, as one: by the inverses of their variances."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.dvfs.sensitivity_sources import Told

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

SOURCES = ("regression", "counted", "counters", "class", "prior")
REGRESSION, COUNTED, COUNTERS, CLASS, PRIOR = range(len(SOURCES))
_LEAST_ERROR = 1e-3
_FREEDOM, _ROUNDS = 3, 20


class Ratio(NamedTuple):
    """How much longer kernels would take at other clocks: the logarithm, for each kernel.

    Parameters
    ----------
    log
        Of the time then over the time measured.
    statistical, clock, form
        Its errors (one standard deviation): of its own; of the clocks, common to all; of the law.
    """

    log: Array
    statistical: Array
    clock: Array
    form: Array

    @property
    def variance(self) -> Array:
        """All errors together."""
        return self.statistical**2 + self.clock**2 + self.form**2


def values(told: list[Told]) -> tuple[Told, Array]:
    """Values by the inverses of their variances; wider where they contradict each other."""
    value, error = (np.stack([getattr(one, name) for one in told]) for name in ("value", "error"))
    good = ~np.isnan(value) & ~np.isnan(error)
    good[PRIOR] &= ~good[CLASS]
    weight = np.where(good, 1 / np.where(good, error, 1.0) ** 2, 0.0)
    total = weight.sum(axis=0)
    mean = np.sum(weight * np.where(good, value, 0), axis=0) / np.where(total > 0, total, np.nan)
    apart = np.sum(weight * np.where(good, value - mean, 0.0) ** 2, axis=0)
    degrees = np.maximum(good.sum(axis=0) - 1, 1)
    wider = np.sqrt(np.maximum(apart / degrees, 1.0))
    error = wider / np.sqrt(np.where(total > 0, total, np.nan))
    return Told(np.clip(mean, 0.0, 1.0), error), weight / np.where(total > 0, total, 1.0)


def random_effects(value: Array, error: Array, expected: float) -> tuple[float, float]:
    """Mean of what differs among itself, and how far one of it is from that mean.

    Parameters
    ----------
    value, error
        What was found of each.
    expected
        How much they differ in truth, before these tell; worth `_FREEDOM` of them.
    """
    between, degrees = expected**2, len(value) - 1
    for _ in range(_ROUNDS):
        weight = 1 / (error**2 + between)
        mean = float(np.sum(weight * value) / np.sum(weight))
        rest = float(np.sum(weight * ((value - mean) ** 2 - error**2)) / np.sum(weight))
        between = (_FREEDOM * expected**2 + degrees * max(rest, 0.0)) / (_FREEDOM + degrees)
    return mean, float(np.sqrt(between + 1 / np.sum(weight)))


def ratios(told: list[Ratio]) -> tuple[Ratio, Array]:
    """Sources by the inverses of their variances; the prior where nothing else tells."""
    log = np.stack([one.log for one in told])
    variance = np.stack([one.variance for one in told]) + _LEAST_ERROR**2
    good = ~np.isnan(log) & ~np.isnan(variance)
    good[PRIOR] &= ~good[CLASS]
    weight = np.where(good, 1 / np.where(good, variance, 1.0), 0.0)
    total = weight.sum(axis=0)
    weight /= np.where(total > 0, total, 1.0)
    known = np.where(good, log, 0.0)
    mean = np.where(total > 0, np.sum(weight * known, axis=0), np.nan)
    parts = [
        np.stack([getattr(one, name) for one in told]) for name in ("statistical", "clock", "form")
    ]
    statistical, clock, form = (np.where(good, part, 0.0) for part in parts)
    apart = np.sum(weight * (known - mean) ** 2, axis=0)
    expected = np.where(total > 0, (good.sum(axis=0) - 1) / np.where(total > 0, total, 1), 0)
    disagree = np.sqrt(np.maximum(apart - expected, 0.0))
    return Ratio(
        mean,
        np.hypot(np.sqrt(np.sum((weight * statistical) ** 2, axis=0)), disagree),
        np.sum(weight * clock, axis=0),
        np.sqrt(np.sum((weight * form) ** 2, axis=0)),
    ), weight
