"""Work and clock of a GPU in short bins of time, and filters by which a sensor sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, intervals
from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.samples import Samples

_MIN_WIDTH_NS = 250_000
"""Narrowest bin from samples' periods. Chosen: a quarter of a period of 1 ms, the finest
that the recorder of this project is used with."""
_MAX_WIDTH_NS = 1_000_000
"""Widest bin that a quarter of the period asks for. Chosen: kernels and sensors' filters last ms."""
_MAX_COARSE_NS = 10_000_000
"""Widest bin of all. Chosen: the usual width of a sensor's filter (`prior.USUAL_WIDTH_NS`)."""
_PER_PERIOD = 64
"""Bins between samples that are far apart. Chosen: bounds the work of long runs that were sampled rarely."""
_MIN_BINS = 64
"""Bins of a window that is too short for the above. Chosen: enough to see its work come and go."""


@dataclass(frozen=True)
class Bins:
    """Bins of equal width.

    Parameters
    ----------
    start_ns, width_ns, count
        Start of the first, width of each, and their number.
    block
        Number of bins that follow each other in time; behind them comes another excerpt of the run.
    """

    start_ns: int
    width_ns: int
    count: int
    block: int

    @property
    def end_ns(self) -> int:
        """End of the last bin."""
        return self.start_ns + self.count * self.width_ns

    def within_ns(self, times: Array) -> Array:
        """Times since the start of the block that each lies in; negative before the first."""
        since = times - self.start_ns
        within: Array = np.where(since < 0, since, since % (self.block * self.width_ns))
        return within


def make_bins(start_ns: int, end_ns: int, period_ns: int) -> Bins:
    """Divide a window into bins that are fine enough for samples of this period."""
    span = max(end_ns - start_ns, 1)
    width = min(max(period_ns // 4, _MIN_WIDTH_NS), _MAX_WIDTH_NS)
    width = max(width, min(period_ns // _PER_PERIOD, _MAX_COARSE_NS))
    width = max(min(width, span // _MIN_BINS), 1)
    count = -(-span // width)
    return Bins(start_ns, width, count, count)


def busy_shares(bins: Bins, start: Array, end: Array, part: Array, parts: int) -> Array:
    """Share of each bin in which each part of the work ran, ``[part, bin]``.

    Parameters
    ----------
    bins
        Bins of time.
    start, end, part
        Times of the work, nanoseconds, and its part; several of one part at once count once.
    parts
        Number of parts.
    """
    shares = np.zeros((parts, bins.count))
    order = np.argsort(start, kind="stable")
    owner, first, last = intervals.group_unions(part[order], start[order], end[order], parts)
    _fill(owner, first, last, bins.start_ns, bins.width_ns, shares)
    return shares


def mean_clock(bins: Bins, dies: Sequence[Samples], lag_ns: float = 0.0) -> Array:
    """Mean core clock of each bin, MHz, over all dies.

    Parameters
    ----------
    bins
        Bins of time.
    dies
        Samples of each die; each holds until the next, and the first one before it too.
    lag_ns
        Time after a clock was set until a sample shows it.
    """
    edges = np.arange(bins.count + 1) * float(bins.width_ns)
    total = np.zeros(bins.count)
    for samples in dies:
        ts = (samples.ts - bins.start_ns) - lag_ns
        ts = np.concatenate([[min(0.0, ts[0]) - 1.0], ts[1:], [max(edges[-1], ts[-1]) + 1.0]])
        # The integral of the step function is linear between samples: its rise over each bin.
        integral = np.append([0.0], np.cumsum(samples.value * np.diff(ts)))
        total += np.diff(np.interp(edges, ts, integral)) / bins.width_ns
    return total / max(len(dies), 1)


def filtered(signals: Array, width_ns: int, constant_ns: float) -> Array:
    """Pass signals through an exponential filter; values at the edges of bins, ``[signal, bin + 1]``.

    Parameters
    ----------
    signals
        ``[signal, bin]``.
    width_ns
        Width of a bin.
    constant_ns
        Time constant of the filter, in which it forgets all but 1/e.
    """
    keep = float(np.exp(-width_ns / constant_ns))
    few = max(min(int(constant_ns / width_ns), signals.shape[1]), 1)
    out = np.empty((signals.shape[0], signals.shape[1] + 1))
    _exponential_filter(np.ascontiguousarray(signals), keep, signals[:, :few].mean(axis=1), out)
    return out


def summed(signals: Array) -> Array:
    """Sum signals up to each edge of the bins: ``[signal, bin + 1]``."""
    out = np.zeros((signals.shape[0], signals.shape[1] + 1))
    np.cumsum(signals, axis=1, out=out[:, 1:])
    return out


def interpolated(values: Array, bins: Bins, times: Array) -> Array:
    """Interpolate values at the edges of bins linearly: ``[time, signal]``."""
    position = np.clip((times - bins.start_ns) / bins.width_ns, 0, bins.count)
    low = np.minimum(position.astype(np.int64), bins.count - 1)
    part = position - low
    at_times: Array = (values[:, low] * (1 - part) + values[:, low + 1] * part).T
    return at_times


@jit
def _fill(owner: Array, start: Array, end: Array, origin: int, width: int, out: Array) -> None:
    """Add the share of each bin that intervals without overlap cover.

    Compiled: an interval covers any number of bins, so that there is no array of pairs to build.
    """
    last_bin = out.shape[1] - 1
    for i in range(len(start)):
        first, last = (start[i] - origin) // width, (end[i] - 1 - origin) // width
        for k in range(max(first, 0), min(last, last_bin) + 1):
            begin = origin + k * width
            covered = min(end[i], begin + width) - max(start[i], begin)
            out[owner[i], k] += covered / width


@jit
def _exponential_filter(signals: Array, keep: float, first: Array, out: Array) -> None:
    """Filter each signal from a first value on; compiled, as each value depends on the one before."""
    for s in range(signals.shape[0]):
        now = first[s]
        out[s, 0] = now
        for k in range(signals.shape[1]):
            now = keep * now + (1.0 - keep) * signals[s, k]
            out[s, k + 1] = now
