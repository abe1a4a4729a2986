"""How values of groups are distributed: counts, sums, percentiles, spread; no loop over groups.

Percentiles are values that occur: that of p percent is the smallest value that at least p percent
of the group's values do not exceed (numpy's "inverted_cdf"; of an even number the median is the
lower of the two in the middle). So they stay whole nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

MAD_TO_SIGMA = 1.4826
"""Of a normal distribution, standard deviation by median absolute deviation."""
PERCENTILES = "the smallest duration that so many percent do not exceed (numpy's inverted_cdf)"
"""What a result says of its percentiles."""


@dataclass(frozen=True)
class Distributions:
    """Values of each group, ascending.

    Parameters
    ----------
    first
        Values of group g are ``values[first[g]:first[g + 1]]``.
    values
        Whole numbers.
    """

    first: Array
    values: Array

    @cached_property
    def count(self) -> Array:
        """How many values each group has."""
        return np.diff(self.first)

    @cached_property
    def code(self) -> Array:
        """Group of each of `values`."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @cached_property
    def total(self) -> Array:
        """Sum of each group, exact."""
        upto = np.concatenate([[0], np.cumsum(self.values)])
        return upto[self.first[1:]] - upto[self.first[:-1]]

    @cached_property
    def mean(self) -> Array:
        """Mean of each group; not a number for an empty one."""
        return self.total / np.where(self.count, self.count, np.nan)

    @cached_property
    def std(self) -> Array:
        """Standard deviation of each group's values themselves, not of what they are drawn from."""
        squares = np.square(self.values - self.mean[self.code])
        summed = np.bincount(self.code, squares, len(self.count))
        return np.sqrt(summed / np.where(self.count, self.count, np.nan))

    def percentile(self, percent: int) -> Array:
        """Percentile of each group as this module says; -1 for an empty one."""
        place = np.maximum(-(-percent * self.count // 100), 1) - 1
        some = self.count > 0
        found = np.full(len(self.count), -1, np.int64)
        found[some] = self.values[(self.first[:-1] + place)[some]]
        return found

    @cached_property
    def median(self) -> Array:
        """The 50th percentile of each group."""
        return self.percentile(50)

    @cached_property
    def mad(self) -> Array:
        """Median absolute deviation from the median, of each group; -1 for an empty one."""
        return _mad(self.first, self.values, self.median)


def of(code: Array, values: Array, count: int) -> Distributions:
    """How whole numbers are distributed in their groups.

    Parameters
    ----------
    code
        Group of each, from 0 to count - 1.
    values
        int64.
    count
        How many groups there are.
    """
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(code, minlength=count), out=first[1:])
    if not len(values):
        return Distributions(first, np.zeros(0, np.int64))
    low = int(values.min())
    width = int(values.max()) - low + 1
    if count * width < np.iinfo(np.int64).max:  # one number says both: sorts ten times as fast
        ordered = np.sort(code * np.int64(width) + (values - low))
        return Distributions(
            first, ordered - np.repeat(np.arange(count), np.diff(first)) * width + low
        )
    return Distributions(first, values[np.lexsort((values, code))])


def ratio(a: Array, b: Any) -> Array:
    """A share or rate; not a number where it is of nothing."""
    return a / np.where(np.asarray(b) > 0, b, np.nan)


@jit
def _mad(first: Array, values: Array, median: Array) -> Array:
    """Median distance from the median; outward from there distances ascend on both sides."""
    found = np.full(len(median), -1)
    for g in range(len(median)):
        left = first[g] - 1 + np.searchsorted(values[first[g] : first[g + 1]], median[g], "right")
        right = left + 1
        for _ in range((first[g + 1] - first[g] + 1) // 2):
            if right >= first[g + 1] or (
                left >= first[g] and median[g] - values[left] <= values[right] - median[g]
            ):
                found[g] = median[g] - values[left]
                left -= 1
            else:
                found[g] = values[right] - median[g]
                right += 1
    return found
