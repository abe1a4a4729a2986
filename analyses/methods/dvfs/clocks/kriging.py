"""Mean clocks of intervals of time by readings that are apart from each other (kriging).

The clock is taken to be exponentially correlated. Then only the readings before and after show it at any time in
between, and its expected deviation from the mean is a sum of two exponentials, which is integrated over each interval:
the clock in the middle of a long kernel is not its mean clock, and slopes over it are too flat.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array

_MAX_STRAIGHT_TIME = 1e-3
"""Time between readings, in correlation times, below which the clock in between is on a straight line."""


class Kriged:
    """Expected deviation of a clock from its mean, by readings each of which shows a window of time.

    Parameters
    ----------
    centre
        Middles of the windows, nanoseconds, ascending.
    window_ns
        Length of each; the deviation within it is that of its reading.
    values
        Deviation that each reading shows.
    correlation_ns
        Time in which the correlation of the clock falls to 1 / e.
    """

    def __init__(
        self, centre: Array, window_ns: float, values: Array, correlation_ns: float
    ) -> None:
        self._time = correlation_ns
        half = np.minimum(window_ns, np.diff(centre, append=np.inf)) / 2
        half = np.minimum(half, np.append(np.inf, half[:-1]))
        self._from = np.stack([centre - half, centre + half], axis=1).ravel()
        self._at = np.repeat(values, 2)
        # Before the first reading and after the last one, the other one of the two has no weight.
        length = np.diff(self._from)
        inside = length * self._at[:-1]
        between = np.arange(len(length)) % 2 == 1
        inside[between] = self._bridge(
            length[between], length[between], self._at[:-1][between], self._at[1:][between]
        )
        self._area = np.append([0.0], np.cumsum(inside))

    def means(self, start: Array, end: Array) -> Array:
        """Return the expected mean deviation over each interval, which has a length."""
        mean: Array = (self._until(end) - self._until(start)) / np.maximum(end - start, 1.0)
        return mean

    def _until(self, time: Array) -> Array:
        """Integral of the expected deviation from the first window's begin to each time."""
        i = np.clip(np.searchsorted(self._from, time, side="right") - 1, 0, len(self._from) - 2)
        since, length = time - self._from[i], self._from[i + 1] - self._from[i]
        first, last = self._at[i], self._at[i + 1]
        within = np.clip(since, 0.0, length)
        part = np.where(i % 2 == 0, within * first, self._bridge(within, length, first, last))
        before, after = np.maximum(-since, 0.0), np.maximum(since - length, 0.0)
        outside = self._time * (
            last * -np.expm1(-after / self._time) + first * np.expm1(-before / self._time)
        )
        total: Array = self._area[i] + part + outside
        return total

    def _bridge(self, since: Array, length: Array, first: Array, last: Array) -> Array:
        """Integral of the expected deviation over the time since the reading before."""
        a, v = length / self._time, since / self._time
        scale = self._time / -np.expm1(-2 * np.maximum(a, _MAX_STRAIGHT_TIME))
        by_first = 1 + np.exp(-2 * a) - np.exp(-v) - np.exp(v - 2 * a)
        by_last = np.exp(v - a) + np.exp(-v - a) - 2 * np.exp(-a)
        exact = scale * (by_first * first + by_last * last)
        share = since / np.where(length > 0, length, 1.0)
        straight = since * (first + share / 2 * (last - first))
        return np.where(a < _MAX_STRAIGHT_TIME, straight, exact)
