"""Figures of groups that are added up batch by batch of a trace, in place of a value for each node of all ranks.

A batch measures its own groups. Keys of groups are numbers that mean the same in all batches, so that groups of
several batches are one, and all come in the order that the whole trace gives them::

    batch 0    a 3   c 5
    batch 1    c 2   b 1
    total      a 3   c 7   b 1     in order of occurrence
    ordered    a 3   b 1   c 7

Whole numbers are added exactly. Reals are added one by one in the order of nodes, as over the whole trace: ranks follow
each other, and a batch goes on with the sums of those before (`Totals.add_each`).
"""

from __future__ import annotations

import numpy as np

from chopper_interop.analyses.methods.activity.grouping import Keys
from chopper_interop.arrays import Array, gather


class Totals:
    """Groups of all batches so far, in order of occurrence, and their figures."""

    def __init__(self) -> None:
        self.keys = Keys((), (), 0)
        self._figures: dict[str, Array] = {}

    def numbers(self, keys: Keys) -> Array:
        """Number of each of a batch's groups among all so far; new ones are added."""
        before = self.keys
        if not keys.names:
            self.keys = Keys((), (), max(before.count, keys.count))
            return np.zeros(keys.count, np.int64)
        known = before.codes if before.names else [np.empty(0, np.int64)] * len(keys.names)
        both = [np.concatenate(pair) for pair in zip(known, keys.codes, strict=True)]
        first, number = gather.distinct(*both)  # those before are distinct, and keep their numbers
        self.keys = Keys(keys.names, tuple(codes[first] for codes in both), len(first))
        return number[before.count :]

    def add(self, numbers: Array, **figures: Array) -> None:
        """Add figures of a batch's groups, one of each group."""
        for name, values in figures.items():
            np.add.at(self._of_all(name, values), numbers, values)

    def add_each(self, numbers: Array, code: Array, **values: Array) -> None:
        """Add reals of a batch's nodes, one by one, to their groups.

        Parameters
        ----------
        numbers
            Of the batch's groups.
        code
            Group of each node in the batch.
        """
        own = np.arange(len(numbers))
        for name, reals in values.items():
            total = self._of_all(name, reals)
            # the sum so far comes first, so that all are added in their order
            both = np.append(own, code), np.append(total[numbers], reals)
            total[numbers] = np.bincount(*both, len(numbers))

    def least(self, numbers: Array, **figures: Array) -> None:
        """Take the least of figures of a batch's groups and of those before."""
        for name, values in figures.items():
            np.minimum.at(self._of_all(name, values, np.iinfo(np.int64).max), numbers, values)

    def figures(self) -> dict[str, Array]:
        """Figures of all groups, in order of occurrence."""
        return {name: self._sized(name) for name in self._figures}

    def order(self) -> Array:
        """Numbers of the groups in ascending order of their keys."""
        return np.lexsort(self.keys.codes[::-1]) if self.keys.names else np.arange(self.keys.count)

    def ordered(self) -> tuple[Keys, dict[str, Array]]:
        """Keys and figures of all groups in ascending order of keys."""
        order = self.order()
        return self.keys.at(order), {name: of[order] for name, of in self.figures().items()}

    def _of_all(self, name: str, values: Array, start: int = 0) -> Array:
        """Figures of all groups under a name, of the kind of some values; new groups begin with a number."""
        if name not in self._figures:
            self._figures[name] = np.empty((0, *values.shape[1:]), values.dtype)
        return self._sized(name, start)

    def _sized(self, name: str, start: int = 0) -> Array:
        figures = self._figures[name]
        more = self.keys.count - len(figures)
        if more:
            added = np.full((more, *figures.shape[1:]), start, figures.dtype)
            self._figures[name] = np.concatenate([figures, added])
        return self._figures[name]
