"""Distributions of whole numbers in groups: counts, sums, percentiles, MAD; no loop over groups.

Percentiles are values that occur: that of p percent is the smallest value that at least p percent
of the group's values do not exceed (numpy's "inverted_cdf"; of an even number the median is the
lower of the two in the middle). So they stay whole nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.sorted_groups import SortedGroups, sorted_groups

PERCENTILE_DEFINITION = (
    "the smallest duration that so many percent do not exceed (numpy's inverted_cdf)"
)
"""Text by which a result describes its percentiles."""


class Distributions(SortedGroups):
    """Values of each group, ascending."""

    @cached_property
    def total(self) -> Array:
        """Sum of each group, exact."""
        total = np.zeros(len(self.count), np.int64)
        filled = self.count > 0  # `np.add.reduceat` gives no 0 for an empty group
        if filled.any():
            total[filled] = np.add.reduceat(self.values, self.offsets[:-1][filled])
        return total

    @cached_property
    def mean(self) -> Array:
        """Mean of each group; NaN for an empty one."""
        return self.total / np.where(self.count, self.count, np.nan)

    @cached_property
    def std(self) -> Array:
        """Standard deviation of each group's values themselves: divided by n, not by n - 1."""
        number = np.arange(len(self.count))
        summed: Array = np.zeros(len(self.count))
        for group, values in self.blocks():
            squares = np.square(values - self.mean[group])
            # the sums so far come first: all squares of a group are added in their order
            summed = np.bincount(np.append(number, group), np.append(summed, squares))
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
    return joined_distributions([(group, values)], n)


def joined_distributions(parts: Sequence[tuple[Array, Array]], n: int) -> Distributions:
    """Sort whole numbers of several parts, such as batches of ranks, within their groups; in a file if arrays are.

    Parameters
    ----------
    parts
        Group of each value of a part, and the values, as of `group_distributions`.
    n
        How many groups there are.
    """
    ordered = sorted_groups(parts, n)
    return Distributions(ordered.offsets, ordered.values)


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
