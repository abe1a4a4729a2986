"""What a GPU did and how it was clocked, by short bins of time, and what a sensor sees of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import intervals
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.samples import Samples

_FINEST_NS = 250_000
_COARSEST_NS = 1_000_000
_SLOWEST_NS = 10_000_000
_PER_PERIOD = 64
_FEWEST_BINS = 64


@dataclass(frozen=True)
class Bins:
    """Bins of equal width.

    Parameters
    ----------
    start_ns, width_ns, count
        Where they begin, how wide each is, and how many there are.
    block
        So many follow each other in time; then comes another stretch of the run.
    """

    start_ns: int
    width_ns: int
    count: int
    block: int

    @property
    def end_ns(self) -> int:
        """Where they end."""
        return self.start_ns + self.count * self.width_ns

    def within_ns(self, moments: Array) -> Array:
        """How long after the begin of its block each moment is."""
        since = moments - self.start_ns
        found: Array = np.where(since < 0, since, since % (self.block * self.width_ns))
        return found


def bins(start_ns: int, end_ns: int, period_ns: int) -> Bins:
    """Bins over a window, fine enough for samples that are so far apart."""
    span = max(end_ns - start_ns, 1)
    width = min(max(period_ns // 4, _FINEST_NS), _COARSEST_NS)
    width = max(width, min(period_ns // _PER_PERIOD, _SLOWEST_NS))
    width = max(min(width, span // _FEWEST_BINS), 1)
    count = -(-span // width)
    return Bins(start_ns, width, count, count)


def shares(of: Bins, start: Array, end: Array, part: Array, parts: int) -> Array:
    """Share of each bin in which each part of the work ran, ``[part, bin]``.

    Parameters
    ----------
    of
        The bins.
    start, end, part
        When work ran, nanoseconds, and its part; several of one part at once count once.
    parts
        How many parts there are.
    """
    found = np.zeros((parts, of.count))
    order = np.argsort(start, kind="stable")
    owner, first, last = intervals.unions(part[order], start[order], end[order], parts)
    _fill(owner, first, last, of.start_ns, of.width_ns, found)
    return found


def clock(of: Bins, dies: Sequence[Samples], lag_ns: float = 0.0) -> Array:
    """Mean core clock of each bin, MHz, of all dies.

    Parameters
    ----------
    of
        The bins.
    dies
        Samples of each die; each holds until the next, and the first one counts before it too.
    lag_ns
        How long after a clock was set a sample shows it.
    """
    edges = np.arange(of.count + 1) * float(of.width_ns)
    total = np.zeros(of.count)
    for samples in dies:
        ts = (samples.ts - of.start_ns) - lag_ns
        ts = np.concatenate([[min(0.0, ts[0]) - 1.0], ts[1:], [max(edges[-1], ts[-1]) + 1.0]])
        sums = np.append([0.0], np.cumsum(samples.value * np.diff(ts)))
        total += np.diff(np.interp(edges, ts, sums)) / of.width_ns
    return total / max(len(dies), 1)


def filtered(signals: Array, width_ns: int, constant_ns: float) -> Array:
    """Signals through an exponential filter, at the borders of bins: ``[signal, bin + 1]``.

    Parameters
    ----------
    signals
        ``[signal, bin]``.
    width_ns
        Of a bin.
    constant_ns
        Time in which the filter forgets all but 1/e.
    """
    kept = float(np.exp(-width_ns / constant_ns))
    few = max(min(int(constant_ns / width_ns), signals.shape[1]), 1)
    out = np.empty((signals.shape[0], signals.shape[1] + 1))
    _forget(np.ascontiguousarray(signals), kept, signals[:, :few].mean(axis=1), out)
    return out


def summed(signals: Array) -> Array:
    """Sums of signals up to each border of bins: ``[signal, bin + 1]``."""
    out = np.zeros((signals.shape[0], signals.shape[1] + 1))
    np.cumsum(signals, axis=1, out=out[:, 1:])
    return out


def at(values: Array, of: Bins, moments: Array) -> Array:
    """Values at borders of bins, straight between these: ``[moment, signal]``."""
    place = np.clip((moments - of.start_ns) / of.width_ns, 0, of.count)
    low = np.minimum(place.astype(np.int64), of.count - 1)
    part = place - low
    found: Array = (values[:, low] * (1 - part) + values[:, low + 1] * part).T
    return found


@jit
def _fill(owner: Array, start: Array, end: Array, origin: int, width: int, out: Array) -> None:
    """Share of each bin that intervals without overlap cover."""
    last_bin = out.shape[1] - 1
    for i in range(len(start)):
        first, last = (start[i] - origin) // width, (end[i] - 1 - origin) // width
        for k in range(max(first, 0), min(last, last_bin) + 1):
            begin = origin + k * width
            covered = min(end[i], begin + width) - max(start[i], begin)
            out[owner[i], k] += covered / width


@jit
def _forget(signals: Array, kept: float, first: Array, out: Array) -> None:
    for s in range(signals.shape[0]):
        now = first[s]
        out[s, 0] = now
        for k in range(signals.shape[1]):
            now = kept * now + (1.0 - kept) * signals[s, k]
            out[s, k + 1] = now
