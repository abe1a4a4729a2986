"""Response of a power sensor to what a GPU draws: averaged over some time, filtered, late.

The running average of amd-smi is documented nowhere. NVML's average is over 1 s, and on some GPUs its
instant power over 25 ms of every 100 ms. So the response is fitted too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.power import bins as power_bins
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.bins import Bins
    from chopper_interop.annotate.telemetry.samples import Samples

FILTER, WINDOW, RATE = "exponential filter", "mean of a window", "mean between samples"
_MEMORY = {FILTER: 4.0, WINDOW: 1.0, RATE: 0.0}
"""Widths of each response before a sample that still count: of a filter, all but 2 %."""
_NARROW = 0.5
"""Share of a bin below which the uncertainty of samples' times is ignored: bins are no finer."""


@dataclass(frozen=True)
class Observed:
    """Samples of a GPU's power by one source.

    Parameters
    ----------
    start, end
        Interval of which each value is the mean, nanoseconds; both the time of the sample where the
        source does not say.
    value
        Power, watts.
    is_rate
        True if these intervals are known, as those between readings of an energy counter are.
    period_ns, uncertainty_ns
        Usual time between samples, and the uncertainty of their times.
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
        """Return the samples moved in time, and their times known exactly."""
        shift = int(ns)
        return replace(self, start=self.start + shift, end=self.end + shift, uncertainty_ns=0)

    def only(self, mask: Array) -> Observed:
        """Return the marked samples."""
        start, end, value = self.start[mask], self.end[mask], self.value[mask]
        return replace(self, start=start, end=end, value=value)


_MIN_INTERVAL_NS = 20_000_000
"""Shortest interval between readings of an energy counter that is used; shorter ones are joined. Chosen: the
steps in which counters count would show in shorter ones."""


def observed(samples: Samples, *, is_rate: bool) -> Observed:
    """Return samples of power with the interval that each is the mean of.

    Parameters
    ----------
    samples
        Samples of power, watts.
    is_rate
        True if each value is the mean until the next sample.
    """
    if not is_rate:
        start = end = samples.ts
        value = samples.value
    else:
        known = np.flatnonzero(~samples.unknown[:-1])
        start, end = samples.ts[known], samples.ts[known + 1]
        value = samples.value[known]
        joined = _MIN_INTERVAL_NS // max(samples.period_ns, 1)
        if joined > 1 and len(known) >= joined:
            start, end, value = _joined(start, end, value, joined)
    return Observed(start, end, value, is_rate, samples.period_ns, samples.uncertainty_ns)


def _joined(start: Array, end: Array, value: Array, count: int) -> tuple[Array, Array, Array]:
    """Join each `count` intervals to their mean; without those that have a gap in between."""
    n = len(start) // count
    first, last = np.arange(n) * count, np.arange(1, n + 1) * count - 1
    total = np.add.reduceat((value * (end - start))[: n * count], first)
    span = end[last] - start[first]
    covered = np.add.reduceat((end - start)[: n * count], first)
    gapless = covered == span
    return start[first][gapless], end[last][gapless], (total / span)[gapless]


@dataclass(frozen=True)
class Response:
    """Response of a sensor to power.

    Parameters
    ----------
    kind
        `FILTER`, `WINDOW` or `RATE`.
    width_ns
        Time constant of the filter, or length of the window.
    delay_ns
        Time until a value shows.
    """

    kind: str
    width_ns: float
    delay_ns: float

    @property
    def memory_ns(self) -> float:
        """Time before a sample that still counts for it."""
        return _MEMORY[self.kind] * self.width_ns + self.delay_ns

    def covers(self, observed: Observed, bins: Bins) -> Array:
        """Mark samples that depend on nothing but the time of the bins."""
        blur = observed.uncertainty_ns
        since = bins.within_ns(observed.start)
        covered: Array = (since >= self.memory_ns + blur) & (observed.end >= observed.start)
        rest = bins.block * bins.width_ns - since - (observed.end - observed.start)
        covered &= rest + self.delay_ns >= blur
        covered &= observed.end - self.delay_ns + blur <= bins.end_ns
        return covered

    def seen(
        self, signals: Array, bins: Bins, observed: Observed, sums: Array | None = None
    ) -> Array:
        """Return signals as the samples show them: ``[sample, signal]``.

        A mean over an interval is a difference of the signals' running sums; a mean over uncertain
        times of that, one of the running sums of these.

        Parameters
        ----------
        signals
            ``[signal, bin]``.
        bins
            Bins of time.
        observed
            Samples.
        sums
            Running sums of the signals (`bins.summed`), where several responses share them.
        """
        start, end = observed.start - self.delay_ns, observed.end - self.delay_ns
        blur = float(observed.uncertainty_ns)
        if observed.uncertainty_ns <= _NARROW * bins.width_ns:
            blur = 0.0
        if self.kind == FILTER:
            signals = power_bins.filtered(signals, bins.width_ns, self.width_ns)
            if not blur:
                return power_bins.interpolated(signals, bins, end)
            signals = (signals[:, 1:] + signals[:, :-1]) / 2
            start, end, blur, sums = end - blur, end + blur, 0.0, None
        elif self.kind == WINDOW:
            start = end - max(self.width_ns, bins.width_ns)
        sums = power_bins.summed(signals) if sums is None else sums
        if not blur:
            return _mean(sums, bins, start, end)
        twice = power_bins.summed((sums[:, 1:] + sums[:, :-1]) / 2)
        late, early = (_rise(twice, bins, at - blur, at + blur) for at in (end, start))
        count = 2 * blur / bins.width_ns * ((end - start) / bins.width_ns)
        means: Array = (late - early) / count[:, np.newaxis]
        return means


def _rise(sums: Array, bins: Bins, start: Array, end: Array) -> Array:
    """Rise of running sums over intervals."""
    rise: Array = power_bins.interpolated(sums, bins, end)
    rise -= power_bins.interpolated(sums, bins, start)
    return rise


def _mean(sums: Array, bins: Bins, start: Array, end: Array) -> Array:
    """Mean of signals over intervals by their running sums."""
    means: Array = _rise(sums, bins, start, end) / ((end - start) / bins.width_ns)[:, np.newaxis]
    return means
