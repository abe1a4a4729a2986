"""By how much two clocks differ, estimated: GPUs draw power, and are seen active, when busy.

How busy GPUs were is known of a profile to the nanosecond. Samples of their activity or power on
an unrelated clock follow it at one offset: that at which busy explains most of how samples vary,
by linear regression within the time of the profile. The estimate is refused where samples do not
follow closely, or follow at another offset nearly as well, as they do at a whole step of a
program that repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns import intervals
    from chopper_interop.columns.types import Array

_FEWEST_SAMPLES = 16
"""So many samples must lie in the time of the profile."""
_LEAST_LIKENESS = 0.7
"""Least correlation of busy and samples."""
_LEAST_VARIANCE = 0.03**2
"""Of the share of time in which a GPU is busy: below it, samples would show nothing but noise."""
_LEAST_COMMON = 0.5
"""Of the shorter of the profile and the samples so much must lie in the other."""
_LEAST_IF_ASSUMED = 0.85
_IDLE = ", if GPUs were idle before and after the profile"
_MOST_OF_SECOND = 0.8
"""What another offset explains, as a share of what the best explains, at most."""
_LOBE = 0.5
"""An offset is another one if between the two less than this share is explained."""
_WIDTH = 0.9
"""The peak is as wide as where this share of its height is explained."""
_MOST_CELLS = 1 << 20
_FINE, _MOST_FINE_SAMPLES = 40, 50_000
_STEPS_A_PERIOD = 2


@dataclass(frozen=True)
class Signal:
    """What two sources tell of one GPU.

    Parameters
    ----------
    busy
        When it was busy, on the clock of the trace, nanoseconds.
    ts
        When samples were taken, on the other clock, ascending nanoseconds.
    value
        Their activity or power.
    """

    busy: intervals.Union
    ts: Array
    value: Array


@dataclass(frozen=True)
class Estimate:
    """What is added to the other clock to get that of the trace.

    Parameters
    ----------
    offset_ns
        The estimate.
    uncertainty_ns
        From the width of the peak, and half the time between samples.
    likeness
        Correlation of busy and samples at this offset.
    samples
        How many samples lie in the time of the profile.
    """

    offset_ns: int
    uncertainty_ns: int
    likeness: float
    samples: int
    assumed: str = ""
    """What was assumed for it."""


def best(signals: Sequence[Signal], window: tuple[int, int]) -> Estimate | str:
    """The offset of the samples' clock, or why none is sure.

    First only what is in the time of the profile counts. If that does not show it, GPUs are taken
    to have been idle for a while before and after, as they are where a process was recorded whole,
    and samples must follow that more closely.

    Parameters
    ----------
    signals
        One for each GPU.
    window
        Time of the profile.
    """
    found = estimate(signals, window)
    if isinstance(found, str):
        around = (window[1] - window[0]) // 2
        wide = estimate(signals, (window[0] - around, window[1] + around))
        if not isinstance(wide, str) and wide.likeness >= _LEAST_IF_ASSUMED:
            return replace(wide, assumed=_IDLE)
    return found


def estimate(signals: Sequence[Signal], window: tuple[int, int]) -> Estimate | str:
    """The offset of the samples' clock, or why none is sure.

    Parameters
    ----------
    signals
        One for each GPU.
    window
        The time of which it is known when GPUs were busy.
    """
    usable = [s for s in map(_clean, signals) if s is not None]
    if not usable:
        return "no sample of activity or power varies"
    period = float(np.median([np.median(np.diff(s.ts)) for s in usable]))
    if (window[1] - window[0]) < _FEWEST_SAMPLES * period:
        return f"fewer than {_FEWEST_SAMPLES} samples fit in the time of the profile"
    first = min(int(s.ts[0]) for s in usable)
    last = max(int(s.ts[-1]) for s in usable)
    length = (last - first) + (window[1] - window[0])
    step = max(period / _STEPS_A_PERIOD, length / _MOST_CELLS)
    score, likeness = _scores(usable, window, first, last, step, period)
    best = int(score.argmax())
    refused = _refusal(score, likeness, best)
    if refused:
        return refused
    lags = len(score)
    bins = _bins(window, step)
    lag = best if best < lags - bins else best - lags  # what is before the first sample is behind
    coarse = window[0] - first - lag * step
    found = _fine(usable, window, coarse, step, period)
    if found.likeness < _LEAST_LIKENESS:
        return f"samples follow busy by {found.likeness:.2f} of 1 at most"
    return found


def _clean(signal: Signal) -> Signal | None:
    """Finite samples, one a time; None if they do not vary or are too few."""
    good = np.isfinite(signal.value)
    ts, at = np.unique(signal.ts[good], return_index=True)
    value = signal.value[good][at].astype(np.float64)
    if len(ts) < _FEWEST_SAMPLES or not signal.busy[0].size:
        return None
    spread = float(value.std())
    if not spread > 0:
        return None
    return Signal(signal.busy, ts, (value - value.mean()) / spread)


def _bins(window: tuple[int, int], step: float) -> int:
    return int((window[1] - window[0]) / step) + 1


def _scores(
    signals: list[Signal],
    window: tuple[int, int],
    first: int,
    last: int,
    step: float,
    period: float,
) -> tuple[Array, Array]:
    """For each lag what busy explains of all variance, and the correlation while both are known."""
    bins = _bins(window, step)
    cells = int((last - first) / step) + 1
    size = 1 << (bins + cells).bit_length()
    explained, varied, whole = np.zeros(size), np.zeros(size), 0.0
    since = np.arange(bins) * step
    fewest = max(_FEWEST_SAMPLES * period / step, _LEAST_COMMON * min(bins, cells))
    for signal in signals:
        share = _share(signal.busy, window, since, period)
        share = share - share.mean()
        at = np.arange(cells) * step
        value = np.interp(at, signal.ts - first, signal.value)
        there = (at >= signal.ts[0] - first) & (at <= signal.ts[-1] - first)
        value, known = np.where(there, value, 0.0), there.astype(np.float64)
        ones = np.ones(bins)
        n = _correlated(ones, known, size)
        some = np.maximum(n, 1.0)
        b, bb = _correlated(share, known, size), _correlated(share**2, known, size)
        v, vv = _correlated(ones, value, size), _correlated(ones, value**2, size)
        both = _correlated(share, value, size) - b * v / some
        of_busy, of_value = bb - b**2 / some, vv - v**2 / some
        enough = (n >= fewest) & (of_busy > _LEAST_VARIANCE * some) & (both > 0)
        explained += np.where(enough, both**2 / np.where(enough, of_busy, 1.0), 0.0)
        varied += np.where(enough, np.maximum(of_value, 0.0), 0.0)
        whole += float((value**2).sum())
    score = explained / max(whole, 1e-12)
    likeness = np.sqrt(explained / np.where(varied > 0, varied, np.inf))
    return score, np.minimum(likeness, 1.0)


def _correlated(pattern: Array, among: Array, size: int) -> Array:
    """Sum of products of a pattern and what lies so many cells behind, for each lag."""
    product = np.conj(np.fft.rfft(pattern, size)) * np.fft.rfft(among, size)
    found: Array = np.fft.irfft(product, size)
    return found


def _share(busy: intervals.Union, window: tuple[int, int], since: Array, period: float) -> Array:
    """Share of a sampling period around times in which it was busy, as far as that is known."""
    start, end = (np.asarray(x - window[0], np.float64) for x in busy)
    edges = np.stack([start, end], axis=1).ravel()
    total = np.concatenate([[0.0], np.cumsum(end - start)])
    filled = np.stack([total[:-1], total[1:]], axis=1).ravel()

    def until(t: Array) -> Array:
        found: Array = np.interp(t, edges, filled)
        return found

    low = np.maximum(since - period / 2, 0.0)
    high = np.minimum(since + period / 2, float(window[1] - window[0]))
    return (until(high) - until(low)) / np.maximum(high - low, 1.0)


def _refusal(score: Array, likeness: Array, best: int) -> str:
    """Why the best lag is not to be believed; empty if it is."""
    if likeness[best] < _LEAST_LIKENESS:
        return f"samples follow busy by {likeness[best]:.2f} of 1 at most"
    size = len(score)
    low = score < _LOBE * score[best]
    behind = np.roll(low, -best)
    ahead = behind[::-1]
    if not low.any():
        return "all offsets explain the samples alike"
    right, left = int(behind.argmax()), int(ahead.argmax()) + 1
    others = np.roll(score, -best)[right : size - left + 1]
    second = float(others.max()) if others.size else 0.0
    if second > _MOST_OF_SECOND * score[best]:
        return f"another offset explains {second / score[best]:.0%} of what the best does"
    return ""


def _fine(
    signals: list[Signal], window: tuple[int, int], coarse: float, step: float, period: float
) -> Estimate:
    """The best offset near a coarse one, by the samples themselves."""
    around = np.linspace(-2 * step, 2 * step, _FINE + 1)
    score = np.zeros(len(around))
    likeness = np.zeros(len(around))
    count = 0
    while True:
        for k, extra in enumerate(around):
            score[k], likeness[k], count = _explained(signals, window, coarse + extra, period)
        best = int(score.argmax())
        near = score >= _WIDTH * score[best]
        if not (near[0] or near[-1]) or around[-1] > 256 * step:
            break
        around = around * 2
    width = float(around[near].max() - around[near].min()) / 2
    offset = coarse + float(around[best])
    off = float(np.hypot(width, period / 2))
    return Estimate(round(offset), round(off), float(likeness[best]), count)


def _explained(
    signals: list[Signal], window: tuple[int, int], offset: float, period: float
) -> tuple[float, float, int]:
    """What busy explains of the samples at an offset, their correlation, and how many there are."""
    explained = varied = 0.0
    count = 0
    for signal in signals:
        shift = round(offset) - window[0]
        since = signal.ts + shift
        inside = np.flatnonzero((since >= 0) & (since <= window[1] - window[0]))
        inside = inside[:: len(inside) // _MOST_FINE_SAMPLES + 1]
        if len(inside) < _FEWEST_SAMPLES // 2:
            continue
        share = _share(signal.busy, window, since[inside].astype(np.float64), period)
        share, value = share - share.mean(), signal.value[inside] - signal.value[inside].mean()
        both, of_busy = float((share * value).sum()), float((share**2).sum())
        if of_busy > 0 and both > 0:
            explained += both**2 / of_busy
        varied += float((value**2).sum())
        count += len(inside)
    return explained, float(np.sqrt(explained / varied)) if varied > 0 else 0.0, count
