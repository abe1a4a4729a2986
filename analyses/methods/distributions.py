"""Distributions of whole numbers in groups: counts, sums, percentiles, MAD; no loop over groups.

Percentiles are values that occur: that of p percent is the smallest value that at least p percent
of the group's values do not exceed (numpy's "inverted_cdf"; of an even number the median is the
lower of the two in the middle). So they stay whole nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.compiled import jit

PERCENTILE_DEFINITION = (
    "the smallest duration that so many percent do not exceed (numpy's inverted_cdf)"
)
"""Text by which a result describes its percentiles."""


@dataclass(frozen=True)
class Distributions:
    """Values of each group, ascending.

    Parameters
    ----------
    offsets
        Values of group g are ``values[offsets[g]:offsets[g + 1]]``.
    values
        Whole numbers.
    """

    offsets: Array
    values: Array

    @cached_property
    def count(self) -> Array:
        """Number of values of each group."""
        return np.diff(self.offsets)

    @cached_property
    def group(self) -> Array:
        """Group of each of `values`."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @cached_property
    def total(self) -> Array:
        """Sum of each group, exact."""
        # difference of running totals: `np.add.reduceat` gives no 0 for an empty group
        running = np.concatenate([[0], np.cumsum(self.values)])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    @cached_property
    def mean(self) -> Array:
        """Mean of each group; NaN for an empty one."""
        return self.total / np.where(self.count, self.count, np.nan)

    @cached_property
    def std(self) -> Array:
        """Standard deviation of each group's values themselves: divided by n, not by n - 1."""
        squares = np.square(self.values - self.mean[self.group])
        summed = np.bincount(self.group, squares, len(self.count))
        return np.sqrt(summed / np.where(self.count, self.count, np.nan))

    def percentile(self, percent: int) -> Array:
        """Percentile of each group as this module defines it; -1 for an empty one."""
        # ceil(percent * count / 100) values of the group are at most the percentile
        position = np.maximum(-(-percent * self.count // 100), 1) - 1
        filled = self.count > 0
        result = np.full(len(self.count), -1, np.int64)
        result[filled] = self.values[(self.offsets[:-1] + position)[filled]]
        return result

    @cached_property
    def median(self) -> Array:
        """The 50th percentile of each group; -1 for an empty one."""
        return self.percentile(50)

    @cached_property
    def median_or_nan(self) -> Array:
        """The 50th percentile of each group as a real number; NaN for an empty one."""
        return np.where(self.count > 0, self.median, np.nan)

    @cached_property
    def mad(self) -> Array:
        """Median absolute deviation from the median, of each group; -1 for an empty one."""
        return _median_absolute_deviation(self.offsets, self.values, self.median)


def group_distributions(group: Array, values: Array, n: int) -> Distributions:
    """Sort whole numbers within their groups.

    Parameters
    ----------
    group
        Group of each value, from 0 to n - 1.
    values
        int64.
    n
        How many groups there are.
    """
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=n), out=offsets[1:])
    if not len(values):
        return Distributions(offsets, np.zeros(0, np.int64))
    low = int(values.min())
    width = int(values.max()) - low + 1
    if n * width < np.iinfo(np.int64).max:  # group and value in one number: sorts ten times as fast
        keys = np.sort(group * np.int64(width) + (values - low))
        return Distributions(
            offsets, keys - np.repeat(np.arange(n), np.diff(offsets)) * width + low
        )
    return Distributions(offsets, values[np.lexsort((values, group))])


def ratios(part: Array, total: Array) -> Any:
    """Ratios as an Arrow array; null where the divisor is not positive."""
    empty = total <= 0
    return arrow.array(part / np.where(empty, 1, total), mask=empty)


def ratio_or_nan(numerator: Array, denominator: Any) -> Array:
    """A share or rate; NaN where the denominator is not positive."""
    return numerator / np.where(np.asarray(denominator) > 0, denominator, np.nan)


@jit
def _median_absolute_deviation(offsets: Array, values: Array, median: Array) -> Array:
    """Median distance of sorted values from their median, of each group.

    Distances ascend outward from the median, to the left and to the right: merging both runs up
    to the middle finds their median without a second sort, in one pass over each group::

        values     2  5 [9] 11 30       median 9
        distances  7  4  0   2 21       merged 0 2 4 …, of which the middle is 4
    """
    result = np.full(len(median), -1)
    for g in range(len(median)):
        start, stop = offsets[g], offsets[g + 1]
        left = start - 1 + np.searchsorted(values[start:stop], median[g], "right")
        right = left + 1
        for _ in range((stop - start + 1) // 2):
            if right >= stop or (
                left >= start and median[g] - values[left] <= values[right] - median[g]
            ):
                result[g] = median[g] - values[left]
                left -= 1
            else:
                result[g] = values[right] - median[g]
                right += 1
    return result
