"""Excerpts of a long run, one behind the other: as much as a fit needs, from all over the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.power import bins as power_bins
from chopper_interop.arrays import Array, intervals

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.bins import Bins
    from chopper_interop.analyses.methods.power.response import Observed
    from chopper_interop.annotate.telemetry.samples import Samples

_MAX_BINS = 10_000
"""Bins of all excerpts. Chosen: bounds the time of a fit; 2.5 s of a run that is sampled every ms."""
_NUMBER = 8
"""Excerpts of a run. Chosen: enough to see it warm up and change, each still longer than sensors' filters."""


@dataclass(frozen=True)
class Excerpts:
    """Excerpts of equal length, and the bins that they become.

    Parameters
    ----------
    begins
        Start of each, nanoseconds, ascending; they do not overlap.
    bins
        Bins over all of them, one behind the other from `Bins.start_ns` on.
    """

    begins: Array
    bins: Bins

    @property
    def length_ns(self) -> int:
        """Length of each."""
        return self.bins.block * self.bins.width_ns

    def work(self, start: Array, end: Array) -> tuple[Array, Array, Array]:
        """Rows, starts and ends of the work within, cut at the excerpts and moved behind each other."""
        rows, starts, ends = [], [], []
        for begin, to in self._moved():
            inside = np.flatnonzero((start < begin + self.length_ns) & (end > begin))
            rows.append(inside)
            starts.append(np.maximum(start[inside], begin) - begin + to)
            ends.append(np.minimum(end[inside], begin + self.length_ns) - begin + to)
        return np.concatenate(rows), np.concatenate(starts), np.concatenate(ends)

    def observed(self, all_samples: Observed) -> Observed:
        """Return the samples within, moved alike."""
        parts = []
        for begin, to in self._moved():
            inside = all_samples.only(
                (all_samples.start >= begin) & (all_samples.end < begin + self.length_ns)
            )
            parts.append((inside.start - begin + to, inside.end - begin + to, inside.value))
        start, end, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return replace(all_samples, start=start, end=end, value=value)

    def samples(self, of: Samples) -> Samples:
        """Return samples that hold until the next: those within, and the one before each excerpt."""
        ts, rows = [], []
        for begin, to in self._moved():
            low, high = np.searchsorted(of.ts, [begin, begin + self.length_ns]).tolist()
            first = max(low - 1, 0)
            rows.append(np.arange(first, high))
            ts.append(np.maximum(of.ts[first:high], begin) - begin + to)
        row, time = np.concatenate(rows), np.concatenate(ts)
        # Of several at one time the last holds: those before an excerpt are all moved to its start.
        once = np.append(time[1:] != time[:-1], [True]) if len(time) else np.zeros(0, np.bool_)
        row, time = row[once], time[once]
        return replace(of, ts=time, value=of.value[row], unknown=of.unknown[row])

    def _moved(self) -> list[tuple[int, int]]:
        """Start of each excerpt, and the time that it is moved to."""
        to = self.bins.start_ns + np.arange(len(self.begins)) * self.length_ns
        return list(zip(self.begins.tolist(), to.tolist(), strict=True))


def excerpts(start: Array, end: Array, period_ns: int) -> Excerpts:
    """Choose excerpts of a run for samples of this period; all of it if that is not too much.

    Parameters
    ----------
    start, end
        Times of its work, nanoseconds.
    period_ns
        Usual time between samples.
    """
    first, last = int(start.min()), int(end.max())
    bins = power_bins.make_bins(first, last, period_ns)
    if bins.count <= _MAX_BINS:
        return Excerpts(np.array([first], np.int64), bins)
    block = _MAX_BINS // _NUMBER
    length = block * bins.width_ns
    begins = first + np.arange(_NUMBER) * ((last - first - length) // (_NUMBER - 1))
    begins = _with_idle(begins, length, period_ns, intervals.union(start, end))
    return Excerpts(begins, replace(bins, count=block * _NUMBER, block=block))


def _with_idle(begins: Array, length_ns: int, period_ns: int, work: intervals.Intervals) -> Array:
    """Move half of the excerpts to the longest idle times of their parts of the run that samples show.

    A part lasts until the next one. All excerpts may lie between the idle times of steps.
    """
    since, until = work[1][:-1], work[0][1:]
    shown = until - since >= period_ns
    since, until = since[shown], until[shown]
    part = np.maximum(np.searchsorted(begins, since, side="right") - 1, 0)
    order = np.argsort(until - since, kind="stable")
    longest = np.full(len(begins), -1)
    longest[part[order]] = order  # the last write is the longest
    parts = part[order][::-1]
    parts = parts[np.sort(np.unique(parts, return_index=True)[1])][: len(begins) // 2]
    to = (since + until)[longest[parts]] // 2 - length_ns // 2
    ends = np.append(begins[1:], begins[-1] + length_ns)
    moved = begins.copy()
    moved[parts] = np.clip(to, begins[parts], ends[parts] - length_ns)
    return moved
