"""Times at other clocks by the laws of other kernels of a class in this trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs.repeats import mean_of
from chopper_interop.analyses.methods.dvfs.sources import combination
from chopper_interop.analyses.methods.dvfs.sources.combination import Estimate, Ratio
from chopper_interop.analyses.methods.dvfs.sources.kernel_classes import CLASSES
from chopper_interop.analyses.methods.dvfs.sources.laws import MIN_SPREAD
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.sources.evidence import Evidence

_MIN_LAWS = 6
"""Kernels with laws that a class needs. Chosen: twice what the expected spread counts as, so that the
trace outweighs it."""
_CLASS_SPREAD = 0.12
"""Expected standard deviation of the sensitivities in a class. Chosen: somewhat less than the priors'
errors, which also hold what traces differ by."""


def by_class(known: Evidence, law: Ratio, target: Array) -> Ratio:
    """Return ratios by the mean sensitivity of the kernels of each class that have laws; NaN where too few have one.

    Parameters
    ----------
    known
        Kernels and their classes.
    law
        Ratios by laws.
    target
        New clock period of each repeat, nanoseconds.
    """
    share = 1 - known.longer(target)
    good = ~np.isnan(law.log) & (np.abs(share) >= MIN_SPREAD)
    value = np.full(len(share), np.nan)
    value[good] = (1 - np.exp(law.log[good])) / share[good]
    error = np.full(len(share), np.nan)
    error[good] = np.hypot(law.statistical, law.form)[good] / np.abs(share[good])
    return known.ratio_by(class_means(known, value, error), target)


def class_means(known: Evidence, value: Array, error: Array) -> Estimate:
    """Return the mean of the known sensitivities of each class, and the deviation of one from it."""
    means = np.full((2, len(value)), np.nan)
    for number in range(len(CLASSES)):
        of_class = known.classes == number
        is_known = np.flatnonzero(of_class & ~np.isnan(value))
        if len(is_known) >= _MIN_LAWS:
            some = value[is_known], error[is_known]
            mean, between = combination.random_effects(*some, _CLASS_SPREAD)
            means[:, of_class] = [[mean], [between]]
    return Estimate(*means)


def common_error(known: Evidence, law: Ratio) -> Array:
    """Return the error that laws of each kernel's class have in common, and so has their mean; NaN without laws."""
    mean = _mean_of_class(known, law.clock)
    if law.direction is None:
        return mean
    parts = (law.direction * law.statistical[:, np.newaxis]).T
    square: Array = sum((_mean_of_class(known, part) ** 2 for part in parts), mean**2)
    return np.sqrt(square)


def _mean_of_class(known: Evidence, values: Array) -> Array:
    """Mean of the known values of each kernel's class."""
    return mean_of(values, known.classes, ~np.isnan(values), len(CLASSES))[known.classes]
