"""Values in order within their groups: quantiles of groups without a loop over them, in a file where arrays are.

One sort orders all of them, as group and value make one number::

    group, value   1 7   0 9   1 2   0 4
    values         4 9 | 2 7             offsets 0 2 4
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chopper_interop.arrays import Array, spill

_BLOCK = 1 << 20
"""Values that are looked at together (chosen: a few megabytes)."""


@dataclass(frozen=True)
class SortedGroups:
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

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield the group of each of the values, some at a time, and a view of these."""
        for start in range(0, len(self.values), _BLOCK):
            stop = min(start + _BLOCK, len(self.values))
            first = int(np.searchsorted(self.offsets, start, "right")) - 1
            last = int(np.searchsorted(self.offsets, stop, "left"))
            bounds = np.clip(self.offsets[first : last + 1], start, stop)
            values = self.values[start:stop]
            yield np.repeat(np.arange(first, last), np.diff(bounds)), values
            spill.copied(values.nbytes)

    def quantile(self, share: float, *, floor: bool = True) -> Array:
        """Quantile of each group that is one of its values, the lower of two; 0 of none.

        Parameters
        ----------
        share
            From 0 to 1.
        floor
            True if only values from 0 on count.
        """
        first = self.offsets[:-1].copy()
        if floor:
            for group, values in self.blocks():
                first += np.bincount(group[values < 0], minlength=len(first))
        count = self.offsets[1:] - first
        result = np.zeros(len(first), np.int64)
        filled = count > 0
        nth = (share * (count - 1)).astype(np.int64)
        result[filled] = self.values[(first + nth)[filled]]
        return result

    def linear_quantile(self, share: float) -> Array:
        """Quantile of each group between its two values nearest to it, as `numpy.quantile`; 0 of none."""
        result = np.zeros(len(self.count))
        filled = np.flatnonzero(self.count)
        at = share * (self.count[filled] - 1)
        low = at.astype(np.int64)
        high = np.minimum(low + 1, self.count[filled] - 1)
        below, above = (
            self.values[self.offsets[filled] + nth].astype(np.float64) for nth in (low, high)
        )
        weight, step = at - low, above - below
        # from the nearer of the two, so that both ends are exact
        result[filled] = np.where(
            weight < 0.5,  # noqa: PLR2004
            below + step * weight,
            above - step * (1 - weight),
        )
        return result


def sorted_groups(parts: Sequence[tuple[Array, Array]], n: int) -> SortedGroups:
    """Sort whole numbers of several parts, such as batches of ranks, within their groups.

    Parameters
    ----------
    parts
        Group of each value of a part, from 0 to n - 1, and the values.
    n
        How many groups there are.
    """
    offsets = np.zeros(n + 1, np.int64)
    for group, _ in parts:
        offsets[1:] += np.bincount(group, minlength=n)
    np.cumsum(offsets, out=offsets)
    filled = [(group, values) for group, values in parts if len(values)]
    if not filled:
        return SortedGroups(offsets, np.zeros(0, np.int64))
    low = min(int(values.min()) for _, values in filled)
    width = max(int(values.max()) for _, values in filled) - low + 1
    if n * width >= np.iinfo(np.int64).max:
        group, values = (np.concatenate(of_parts) for of_parts in zip(*filled, strict=True))
        return SortedGroups(offsets, values[np.lexsort((values, group))])
    # group and value in one number: sorts ten times as fast
    keys, at = spill.empty(int(offsets[-1]), np.int64), 0
    for group, values in filled:
        keys[at : at + len(values)] = group.astype(np.int64) * width + (values - low)
        at += len(values)
        spill.copied(values.nbytes)
    keys.sort()
    result = SortedGroups(offsets, keys)
    for group, of_block in result.blocks():
        of_block[:] += low - group * width
    return result
