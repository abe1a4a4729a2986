"""Robust statistics: medians of groups, a scale and a slope that few outliers do not change.

There is one rule for the median of real numbers: the middle value, or the mean of the two in the
middle, of those that are known. Whole nanoseconds have another, which gives a value that occurs:
`chopper_interop.analyses.methods.distributions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from chopper_interop.arrays import Array

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation (MAD):
the reciprocal of the 75 % quantile of the standard normal distribution, 0.6745."""

_MAX_LAG = 400
"""Largest lag of the autocorrelation of residuals, samples. Chosen: bounds its time."""
_UNCORRELATED = 0.05
"""Autocorrelation below which residuals count as independent. Chosen: the noise of 400 samples'."""
_MIN_PAIRS = 3
"""Pairs of values from which on a correlation says something: two always lie on a line."""

NO_VALUE = np.iinfo(np.int64).max
"""Median of no integers."""


def mad_sigma(residuals: Array) -> float:
    """Standard deviation of normal residuals, estimated by their median absolute size.

    Parameters
    ----------
    residuals
        Deviations from a centre or a fitted curve; they are not centred again.
    """
    return MAD_TO_SIGMA * float(np.median(np.abs(residuals)))


def correlated_samples(residuals: Array) -> float:
    """Number of samples in a row that count as one, by the autocorrelation of their residuals.

    Parameters
    ----------
    residuals
        Residuals at equal distances.
    """
    residuals = residuals - residuals.mean()
    power, total = float(residuals @ residuals), 1.0
    for lag in range(1, min(len(residuals) // 5, _MAX_LAG) if power > 0 else 0):
        rho = float(residuals[:-lag] @ residuals[lag:]) / power
        if rho < _UNCORRELATED:
            break
        total += 2 * rho
    return total


def median_slope(x: Array, y: Array, strides: Iterable[int]) -> float:
    """Median slope of pairs of points, as of Theil and Sen; 0 where no pair differs in `x`.

    All pairs would be quadratically many: only points that lie one of `strides` rows apart are
    paired, so that each point takes part in at most twice as many pairs as there are strides.

    Parameters
    ----------
    x, y
        Coordinates of points, as a rule ascending in `x`; pairs that descend are left out.
    strides
        Numbers of rows between the points of a pair, each at least 1.
    """
    slopes = []
    for stride in strides:
        run, rise = x[stride:] - x[:-stride], y[stride:] - y[:-stride]
        slopes.append(rise[run > 0] / run[run > 0])
    all_slopes = np.concatenate(slopes)
    return float(np.median(all_slopes)) if all_slopes.size else 0.0


def finite_median(values: Array) -> float:
    """Median of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else np.nan


def finite_or_none(value: float) -> float | None:
    """A number, or None where it is not known."""
    return float(value) if np.isfinite(value) else None


def group_medians(values: Array, group: Array, n: int) -> Array:
    """Median of the values of each group, NaN left out; NaN for a group that has none.

    Parameters
    ----------
    values
        Real numbers.
    group
        Number of each value's group, from 0 to n - 1.
    n
        How many groups there are.
    """
    # sorted by (group, value), a group is a slice, and its median in the middle of that:
    #   group   0 0 0 1 1 3        offsets  0 3 5 5 6
    #   value   2 5 9 4 6 8        median   5 5 - 8
    known = ~np.isnan(values)
    order = np.lexsort((values[known], group[known]))
    value, group = values[known][order], group[known][order]
    offsets = np.searchsorted(group, np.arange(n + 1))
    count = np.diff(offsets)
    median = np.full(n, np.nan)
    filled = np.flatnonzero(count)
    lower = offsets[filled] + (count[filled] - 1) // 2
    upper = offsets[filled] + count[filled] // 2
    median[filled] = (value[lower] + value[upper]) / 2
    return median


def lower_median(values: Array) -> int:
    """The lower of the two middle values: exact, as float64 cannot hold nanoseconds since 1970."""
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])


def lower_medians(group: Array, values: Array, n: int) -> Array:
    """Lower median of the values of each of n groups; `NO_VALUE` of none."""
    order = np.lexsort((values, group))
    present, first, count = np.unique(group[order], return_index=True, return_counts=True)
    medians = np.full(n, NO_VALUE)
    medians[present] = values[order[first + (count - 1) // 2]]
    return medians


def less_group_median(values: Array, groups: Sequence[Any]) -> Array:
    """Values less the median of the finite values of their group.

    Parameters
    ----------
    values
        Real numbers.
    groups
        What names the group of each value: anything that can be hashed.
    """
    numbers: dict[Any, int] = {}
    group = np.array([numbers.setdefault(key, len(numbers)) for key in groups], np.int64)
    finite = np.where(np.isfinite(values), values, np.nan)
    return values - group_medians(finite, group, len(numbers))[group]


def medians_of_others(values: Array) -> Array:
    """For each value, the median of all finite others; NaN if there are none."""
    is_finite = np.isfinite(values)
    ordered = np.sort(values[is_finite]).astype(float)
    others = len(ordered) - is_finite  # how many there are
    # to leave out any of equal values leaves the same ones; what is not finite stands behind all
    place = np.where(is_finite, np.searchsorted(ordered, values), len(ordered))
    medians = np.full(len(values), np.nan)
    some = np.flatnonzero(others)
    low, high = ((others[some] - odd) // 2 for odd in (1, 0))
    low, high = (ordered[middle + (middle >= place[some])] for middle in (low, high))
    medians[some] = (low + high) / 2
    return medians


def pearson(a: Array, b: Array) -> float:
    """Linear correlation of the finite pairs; NaN for fewer than three, or if one is constant."""
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    if len(a) < _MIN_PAIRS or _is_constant(a) or _is_constant(b):
        return np.nan
    # scaled by the largest value, so that squares neither overflow nor vanish
    a, b = (a - a.mean()) / np.abs(a).max(), (b - b.mean()) / np.abs(b).max()
    scale = float(np.sqrt((a * a).sum()) * np.sqrt((b * b).sum()))
    return float(np.clip((a * b).sum() / scale, -1, 1)) if scale > 0 else np.nan


def spearman(a: Array, b: Array) -> float:
    """Correlation of ranks of the finite pairs; equal values share their mean rank."""
    finite = np.isfinite(a) & np.isfinite(b)
    return pearson(_mean_ranks(a[finite]), _mean_ranks(b[finite]))


def _is_constant(values: Array) -> bool:
    return bool((values == values[0]).all())


def _mean_ranks(values: Array) -> Array:
    """Rank of each value from 1 on; equal ones have the mean of the ranks that they take up."""
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(count)
    return (last_rank - (count - 1) / 2)[code]
