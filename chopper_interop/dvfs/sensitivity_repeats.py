"""Repeats of kernels: how long each took, at which clock, and whether alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import beside, pieces, windows
from chopper_interop.dvfs import clock_errors, repeats

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.clock_errors import Clocks
    from chopper_interop.trace import Trace

_SOLO = 0.05
"""Share of a kernel's time in which communication runs beside it, up to which it counts as alone."""


@dataclass(frozen=True)
class Repeats:
    """Kernels, which of them do the same, and the clocks that they ran at.

    Parameters
    ----------
    trace
        The trace.
    node, key
        As of `repeats.of`.
    clocks
        What is known of their clocks.
    dur
        Durations, nanoseconds.
    solo
        Which ran without communication beside them.
    """

    trace: Trace
    node: Array
    key: Array
    clocks: Clocks
    dur: Array
    solo: Array

    @cached_property
    def count(self) -> Array:
        """How many repeats each has."""
        return np.bincount(self.key)

    def mean(self, values: Array, which: Array | None = None) -> Array:
        """Mean over the repeats of each, weighted with their durations; not a number of none."""
        good = ~np.isnan(values) if which is None else which & ~np.isnan(values)
        weight = np.bincount(self.key[good], self.dur[good], len(self.count))
        total = np.bincount(self.key[good], self.dur[good] * values[good], len(self.count))
        return total / np.where(weight > 0, weight, np.nan)


def of(trace: Trace) -> Repeats:
    """Repeats of a trace's kernels."""
    node, key = repeats.of(trace)
    whole = windows.of_ranks(trace, "")
    work = pieces.within(trace, whole)
    told = beside.of(trace, whole, work)
    covered = np.zeros(trace.nodes.num_rows, np.int64)
    np.add.at(covered, work.row, told.covered)
    dur = trace.array("dur")[node].astype(float)
    solo = covered[node] <= _SOLO * dur
    return Repeats(trace, node, key, clock_errors.of(trace, node), dur, solo)


def mean_of(values: Array, key: Array, used: Array, n: int) -> Array:
    """Mean of those that are used of each key; not a number of none."""
    count = np.bincount(key[used], minlength=n)
    total = np.bincount(key[used], values[used], n)
    return total / np.where(count > 0, count, np.nan)
