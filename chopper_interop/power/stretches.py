"""Stretches of a long run put behind each other: as much as a fit needs, from all over the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.power import bins as power_bins

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.power.bins import Bins
    from chopper_interop.power.response import Observed
    from chopper_interop.telemetry.samples import Samples

_MOST_BINS = 10_000
_NUMBER = 8


@dataclass(frozen=True)
class Stretches:
    """Stretches of time of equal length, and the bins that they become.

    Parameters
    ----------
    begins
        Where they begin, nanoseconds, ascending and apart.
    bins
        Bins over all of them, put behind each other from `Bins.start_ns` on.
    """

    begins: Array
    bins: Bins

    @property
    def length_ns(self) -> int:
        """Of each."""
        return self.bins.block * self.bins.width_ns

    def work(self, start: Array, end: Array) -> tuple[Array, Array, Array]:
        """Rows of the work within, and when it is, as far as it is within."""
        rows, starts, ends = [], [], []
        for begin, to in self._moved():
            mine = np.flatnonzero((start < begin + self.length_ns) & (end > begin))
            rows.append(mine)
            starts.append(np.maximum(start[mine], begin) - begin + to)
            ends.append(np.minimum(end[mine], begin + self.length_ns) - begin + to)
        return np.concatenate(rows), np.concatenate(starts), np.concatenate(ends)

    def observed(self, what: Observed) -> Observed:
        """What is told of the time within."""
        found = []
        for begin, to in self._moved():
            mine = (what.start >= begin) & (what.end < begin + self.length_ns)
            found.append((what.start[mine] - begin + to, what.end[mine] - begin + to, mine))
        start, end = (np.concatenate([part[i] for part in found]) for i in (0, 1))
        value = np.concatenate([what.value[part[2]] for part in found])
        return replace(what, start=start, end=end, value=value)

    def samples(self, of: Samples) -> Samples:
        """Samples that hold, those of the time within and the one before each."""
        ts, rows = [], []
        for begin, to in self._moved():
            low, high = np.searchsorted(of.ts, [begin, begin + self.length_ns]).tolist()
            first = max(low - 1, 0)
            rows.append(np.arange(first, high))
            ts.append(np.maximum(of.ts[first:high], begin) - begin + to)
        row, at = np.concatenate(rows), np.concatenate(ts)
        once = np.append(at[1:] != at[:-1], [True]) if len(at) else np.zeros(0, np.bool_)
        row, at = row[once], at[once]
        return replace(of, ts=at, value=of.value[row], unknown=of.unknown[row])

    def _moved(self) -> list[tuple[int, int]]:
        """Where each begins, and where it is moved to."""
        to = self.bins.start_ns + np.arange(len(self.begins)) * self.length_ns
        return list(zip(self.begins.tolist(), to.tolist(), strict=True))


def stretches(start_ns: int, end_ns: int, period_ns: int) -> Stretches:
    """Stretches of a run for samples that are so far apart; all of it if that is not too much."""
    whole = power_bins.bins(start_ns, end_ns, period_ns)
    if whole.count <= _MOST_BINS:
        return Stretches(np.array([start_ns], np.int64), whole)
    block = _MOST_BINS // _NUMBER
    span = end_ns - start_ns - block * whole.width_ns
    begins = start_ns + np.arange(_NUMBER) * (span // (_NUMBER - 1))
    return Stretches(begins, replace(whole, count=block * _NUMBER, block=block))
