"""How a power sensor sees what a GPU draws: averaged over a while, filtered, late.

What amd-smi tells is a running average that is documented nowhere; NVML's average is over 1 s, and
on some GPUs its instant power over 25 ms of every 100 ms. So how is fitted too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.power import bins as power_bins

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.power.bins import Bins
    from chopper_interop.telemetry.samples import Samples

FILTER, WINDOW, RATE = "exponential filter", "mean of a window", "mean between samples"
_MEMORY = {FILTER: 4.0, WINDOW: 1.0, RATE: 0.0}
"""So many of its widths before a sample still count."""
_NARROW = 0.5
"""Uncertainty of time below this part of a bin does not matter."""


@dataclass(frozen=True)
class Observed:
    """What a source tells of a GPU's power.

    Parameters
    ----------
    start, end
        The stretch of time that each value is the mean of, nanoseconds; where it is sampled, both
        are the moment.
    value
        Watts.
    is_rate
        Whether stretches are known, as those between readings of an energy counter are.
    period_ns, uncertainty_ns
        Usual time between samples, and how well their times are known.
    """

    start: Array
    end: Array
    value: Array
    is_rate: bool
    period_ns: int
    uncertainty_ns: int

    def __len__(self) -> int:
        return len(self.value)

    def moved(self, ns: float) -> Observed:
        """The same at other times, which are known."""
        late = int(ns)
        return replace(self, start=self.start + late, end=self.end + late, uncertainty_ns=0)

    def only(self, which: Array) -> Observed:
        """Some of it."""
        start, end, value = self.start[which], self.end[which], self.value[which]
        return replace(self, start=start, end=end, value=value)


_SHORTEST_NS = 20_000_000
"""Energy counters are read no finer: the steps in which they count would show."""


def observed(samples: Samples, *, is_rate: bool) -> Observed:
    """What samples of power tell.

    Parameters
    ----------
    samples
        They, watts.
    is_rate
        Whether each value is the mean until the next sample.
    """
    if not is_rate:
        start = end = samples.ts
        value = samples.value
    else:
        known = np.flatnonzero(~samples.unknown[:-1])
        start, end = samples.ts[known], samples.ts[known + 1]
        value = samples.value[known]
        joined = _SHORTEST_NS // max(samples.period_ns, 1)
        if joined > 1 and len(known) >= joined:
            start, end, value = _joined(start, end, value, joined)
    return Observed(start, end, value, is_rate, samples.period_ns, samples.uncertainty_ns)


def _joined(start: Array, end: Array, value: Array, count: int) -> tuple[Array, Array, Array]:
    """Means of so many stretches each that follow each other without a gap."""
    n = len(start) // count
    first, last = np.arange(n) * count, np.arange(1, n + 1) * count - 1
    whole = np.add.reduceat((value * (end - start))[: n * count], first)
    span = end[last] - start[first]
    covered = np.add.reduceat((end - start)[: n * count], first)
    kept = covered == span
    return start[first][kept], end[last][kept], (whole / span)[kept]


@dataclass(frozen=True)
class Response:
    """How a sensor sees power.

    Parameters
    ----------
    kind
        `FILTER`, `WINDOW` or `RATE`.
    width_ns
        Time constant of the filter, or length of the window.
    delay_ns
        How long after it was so a value shows.
    """

    kind: str
    width_ns: float
    delay_ns: float

    @property
    def memory_ns(self) -> float:
        """How long before a sample what happened still counts."""
        return _MEMORY[self.kind] * self.width_ns + self.delay_ns

    def covers(self, what: Observed, of: Bins) -> Array:
        """Which samples see nothing but the time of the bins."""
        blur = what.uncertainty_ns
        since = of.within_ns(what.start)
        found: Array = (since >= self.memory_ns + blur) & (what.end >= what.start)
        rest = of.block * of.width_ns - since - (what.end - what.start)
        found &= (rest + self.delay_ns >= blur) & (what.end - self.delay_ns + blur <= of.end_ns)
        return found

    def seen(self, signals: Array, of: Bins, what: Observed) -> Array:
        """What samples show of signals: ``[sample, signal]``.

        Parameters
        ----------
        signals
            ``[signal, bin]``.
        of
            The bins.
        what
            The samples.
        """
        start, end = what.start - self.delay_ns, what.end - self.delay_ns
        blur = float(what.uncertainty_ns) if what.uncertainty_ns > _NARROW * of.width_ns else 0.0
        if self.kind == FILTER:
            signals = power_bins.filtered(signals, of.width_ns, self.width_ns)
            if not blur:
                return power_bins.at(signals, of, end)
            signals = (signals[:, 1:] + signals[:, :-1]) / 2
        elif self.kind == WINDOW:
            start = end - max(self.width_ns, of.width_ns)
        if self.kind == FILTER:
            start, end, blur = end - blur, end + blur, 0.0
        sums = power_bins.summed(signals)
        if not blur:
            return _mean(sums, of, start, end)
        twice = power_bins.summed((sums[:, 1:] + sums[:, :-1]) / 2)
        late = power_bins.at(twice, of, end + blur) - power_bins.at(twice, of, end - blur)
        early = power_bins.at(twice, of, start + blur) - power_bins.at(twice, of, start - blur)
        bins = 2 * blur / of.width_ns * ((end - start) / of.width_ns)
        found: Array = (late - early) / bins[:, np.newaxis]
        return found


def _mean(sums: Array, of: Bins, start: Array, end: Array) -> Array:
    rise = power_bins.at(sums, of, end) - power_bins.at(sums, of, start)
    found: Array = rise / ((end - start) / of.width_ns)[:, np.newaxis]
    return found
