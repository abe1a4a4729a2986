"""Windows of a sensor's readings and the kernels within them: means over windows, and readings spread over kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import Assumption, Readings

_INSTANT_NS = 1e3
"""Window of an instant, so that it has a length."""
_MIN_WINDOW_SHARE = 1e-3
"""Share of a window that work must take, so that a reading counts."""


class _Overlaps:
    """Time that intervals of one kind have in common with others, as an operator on values of these.

    Parameters
    ----------
    start, end
        Intervals with values, nanoseconds.
    low, high
        Spans over which values are integrated.
    """

    def __init__(self, start: Array, end: Array, low: Array, high: Array) -> None:
        time = np.concatenate([start, end]).astype(float)
        self._order = np.argsort(time, kind="stable")
        self._time = time[self._order]
        self._length = np.append(np.diff(self._time), 0.0)
        at = np.stack([low, high])
        self._ends = np.maximum(np.searchsorted(self._time, at, side="right") - 1, 0)
        self._after = np.maximum(at - self._time[self._ends], 0.0)

    def sums(self, values: Array) -> Array:
        """Return the integral of the values over each span; of each row, if there are several."""
        rows = np.atleast_2d(values.astype(float))
        integrals = _integrals(rows, self._order, self._length, self._ends, self._after)
        sums: Array = integrals.reshape(*values.shape[:-1], -1)
        return sums


# Compiled: one pass over ends of intervals, in their order, carries the sum of the values that hold and its integral.
@jit
def _integrals(values: Array, order: Array, length: Array, ends: Array, after: Array) -> Array:
    """Integral of a sum of values over each span, of which `ends` and `after` state where both ends are; by row of values."""
    rows, count = values.shape
    n = len(order)
    rates, area = np.zeros(n), np.zeros(n)
    integrals = np.zeros((rows, ends.shape[1]))
    for row in range(rows):
        rate = total = 0.0
        for k in range(n):
            i = order[k]
            rate += values[row, i] if i < count else -values[row, i - count]
            area[k] = total
            total += rate * length[k]
            rates[k] = rate
        rates[n - 1] = 0.0  # rounding
        for span in range(ends.shape[1]):
            low, high = ends[0, span], ends[1, span]
            integrals[row, span] = (area[high] + rates[high] * after[1, span]) - (
                area[low] + rates[low] * after[0, span]
            )
    return integrals


class Windows:
    """Windows of readings and the intervals of work within them."""

    def __init__(self, gpu: Readings, assumed: Assumption, start: Array, end: Array) -> None:
        middle = gpu.centres(assumed)
        window = max(assumed.window_ns, _INSTANT_NS)
        reach = max(assumed.window_ns, gpu.period_ns)
        low, high = middle - window / 2, middle + window / 2
        self._read = _Overlaps(start, end, low, high)
        self._spread = _Overlaps(middle - reach / 2, middle + reach / 2, start, end)
        self._min_ns = _MIN_WINDOW_SHARE * window
        inside = (low >= gpu.start.min()) & (high <= gpu.end.max())
        self.weight = self._read.sums(np.ones(len(start))) * inside
        self.weight[self.weight < self._min_ns] = 0.0
        total = self._spread.sums(self.weight)
        self._total = np.where(total > self._min_ns, total, np.inf)

    def read(self, values: Array, counts: Array | None = None) -> Array:
        """Return the mean of a quantity of the intervals in each window; 0 where there is none.

        Parameters
        ----------
        values
            Value of each interval; rows of several quantities, as `spread` takes them too.
        counts
            Mark intervals that have one; all if None.
        """
        weight = self.weight if counts is None else self._read.sums(counts.astype(float))
        good = (weight >= self._min_ns) & (self.weight > 0)
        mean: Array = self._read.sums(values) / np.where(good, weight, np.inf)
        return mean

    def holds(self, counts: Array) -> Array:
        """Mark windows with marked intervals."""
        some: Array = (self._read.sums(counts.astype(float)) >= self._min_ns) & (self.weight > 0)
        return some

    def spread(self, readings: Array) -> Array:
        """Return the mean of the readings that cover each interval; 0 where none does."""
        mean: Array = self._spread.sums(readings * self.weight) / self._total
        return mean
