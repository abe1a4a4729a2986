"""Offset between two clocks, estimated: GPUs draw power, and are seen active, when they are busy.

A profile records to the nanosecond when its GPUs were busy. Samples of their activity or power on
an unrelated clock follow that at one offset: the one at which the busy share explains most of the
variance of the samples, by linear regression within the time of the profile. The estimate is
refused where samples do not follow closely, or follow nearly as well at another offset, as they do
at a whole step of a program that repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chopper_interop.arrays import Array, intervals

_MIN_SAMPLES = 16
"""Samples that must lie in the time of the profile; chosen: fewer correlate by chance."""
_MIN_CORRELATION = 0.7
"""Least correlation of busy share and samples; chosen: half of the variance is explained."""
_MIN_VARIANCE = 0.03**2
"""Least variance of the share of time in which a GPU is busy; chosen: below a standard deviation of
3 %, samples show little but noise."""
_MIN_OVERLAP = 0.5
"""Share of the shorter of profile and samples that must lie in the other; chosen: the majority."""
_MIN_CORRELATION_IF_IDLE_AROUND = 0.85
"""Least correlation where GPUs are assumed idle around the profile; chosen: an assumption has to
explain more than a measurement."""
_IDLE_AROUND = ", if GPUs were idle before and after the profile"
_MAX_SECOND_PEAK = 0.8
"""Most that another offset may explain, as a share of what the best explains; chosen: well below
the 0.9 at which the width of the peak is read."""
_BETWEEN_PEAKS = 0.5
"""An offset belongs to another peak if between the two less than this share is explained: the half
width of a peak."""
_PEAK_WIDTH_AT = 0.9
"""Share of its height at which the width of the peak is read, as the uncertainty; chosen: noise
moves the top of a peak within what explains the samples nearly as well."""
_MAX_CELLS = 1 << 20
"""Bounds the size of the Fourier transforms; 1M cells take a fraction of a second."""
_FINE_STEPS, _MAX_FINE_SAMPLES = 40, 50_000
"""Offsets tried around the coarse one, and samples looked at for each: bounds time."""
_CELLS_PER_PERIOD = 2
"""Cells in the time between two samples: the rate at which a sampled signal is fully described."""


@dataclass(frozen=True)
class Signal:
    """Recordings of one GPU by two sources.

    Parameters
    ----------
    busy
        When it was busy, on the clock of the trace, nanoseconds.
    ts
        Times of samples on the other clock, ascending, nanoseconds.
    value
        Activity or power sampled at them.
    """

    busy: intervals.Intervals
    ts: Array
    value: Array


@dataclass(frozen=True)
class Estimate:
    """Offset to add to times of the other clock to get those of the trace.

    Parameters
    ----------
    offset_ns
        The estimate.
    uncertainty_ns
        From the width of the peak, and half the time between samples.
    correlation
        Correlation of busy share and samples at this offset.
    samples
        Number of samples in the time of the profile.
    """

    offset_ns: int
    uncertainty_ns: int
    correlation: float
    samples: int
    assumed: str = ""
    """Assumption, as the end of a sentence."""


def estimate_offset(signals: Sequence[Signal], window: tuple[int, int]) -> Estimate | str:
    """Estimate the offset of the samples' clock; a reason as text where none is certain.

    First only the time of the profile counts. If that does not suffice, GPUs are assumed to have
    been idle for a while before and after, as they are where a process was recorded completely,
    and samples must follow that more closely.

    Parameters
    ----------
    signals
        One for each GPU.
    window
        First and last time of the profile.
    """
    estimate = _estimate_in(window, signals)
    if isinstance(estimate, str):
        margin = (window[1] - window[0]) // 2
        wide = _estimate_in((window[0] - margin, window[1] + margin), signals)
        if not isinstance(wide, str) and wide.correlation >= _MIN_CORRELATION_IF_IDLE_AROUND:
            return replace(wide, assumed=_IDLE_AROUND)
    return estimate


def _estimate_in(window: tuple[int, int], signals: Sequence[Signal]) -> Estimate | str:
    """Estimate from the samples within a window in which it is known when GPUs were busy."""
    usable = [s for s in map(_normalised, signals) if s is not None]
    if not usable:
        return "no sample of activity or power varies"
    period = float(np.median([np.median(np.diff(s.ts)) for s in usable]))
    if (window[1] - window[0]) < _MIN_SAMPLES * period:
        return f"fewer than {_MIN_SAMPLES} samples fit in the time of the profile"
    first = min(int(s.ts[0]) for s in usable)
    last = max(int(s.ts[-1]) for s in usable)
    length = (last - first) + (window[1] - window[0])
    step = max(period / _CELLS_PER_PERIOD, length / _MAX_CELLS)
    score, correlation = _scores(usable, window, first, last, step, period)
    best = int(score.argmax())
    refusal = _refusal(score, correlation, best)
    if refusal:
        return refusal
    lags = len(score)
    bins = _bins(window, step)
    # a circular correlation: lags before the first sample stand at the end
    lag = best if best < lags - bins else best - lags
    coarse = window[0] - first - lag * step
    estimate = _refined(usable, window, coarse, step, period)
    if estimate.correlation < _MIN_CORRELATION:
        return f"samples follow busy by {estimate.correlation:.2f} of 1 at most"
    return estimate


def _normalised(signal: Signal) -> Signal | None:
    """Finite samples, one for each time, of mean 0 and deviation 1; None if constant or too few."""
    finite = np.isfinite(signal.value)
    ts, at = np.unique(signal.ts[finite], return_index=True)
    value = signal.value[finite][at].astype(np.float64)
    if len(ts) < _MIN_SAMPLES or not signal.busy[0].size:
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
    """Score every lag of the samples against the busy share at once.

    The sums that a linear regression needs (numbers, values, squares, products) are correlations
    of the busy share, or of ones, with the samples, or their mask; each is one product of Fourier
    transforms, for all lags.

    Returns
    -------
    score, correlation
        For each lag the share of all variance that is explained, and the correlation within the
        time in which both are known.
    """
    bins = _bins(window, step)
    cells = int((last - first) / step) + 1
    size = 1 << (bins + cells).bit_length()
    explained, varied, total = np.zeros(size), np.zeros(size), 0.0
    since = np.arange(bins) * step
    min_overlap = max(_MIN_SAMPLES * period / step, _MIN_OVERLAP * min(bins, cells))
    for signal in signals:
        share = _busy_share(signal.busy, window, since, period)
        share = share - share.mean()
        at = np.arange(cells) * step
        value = np.interp(at, signal.ts - first, signal.value)
        sampled = (at >= signal.ts[0] - first) & (at <= signal.ts[-1] - first)
        value, mask = np.where(sampled, value, 0.0), sampled.astype(np.float64)
        ones = np.ones(bins)
        n = _correlated(ones, mask, size)
        count = np.maximum(n, 1.0)
        b, bb = _correlated(share, mask, size), _correlated(share**2, mask, size)
        v, vv = _correlated(ones, value, size), _correlated(ones, value**2, size)
        covariance = _correlated(share, value, size) - b * v / count
        of_busy, of_value = bb - b**2 / count, vv - v**2 / count
        enough = (n >= min_overlap) & (of_busy > _MIN_VARIANCE * count) & (covariance > 0)
        explained += np.where(enough, covariance**2 / np.where(enough, of_busy, 1.0), 0.0)
        varied += np.where(enough, np.maximum(of_value, 0.0), 0.0)
        total += float((value**2).sum())
    score = explained / max(total, 1e-12)
    correlation = np.sqrt(explained / np.where(varied > 0, varied, np.inf))
    return score, np.minimum(correlation, 1.0)


def _correlated(pattern: Array, signal: Array, size: int) -> Array:
    """Sum of products of a pattern and the part of a signal so many cells later, for each lag."""
    product = np.conj(np.fft.rfft(pattern, size)) * np.fft.rfft(signal, size)
    sums: Array = np.fft.irfft(product, size)
    return sums


def _busy_share(
    busy: intervals.Intervals, window: tuple[int, int], since: Array, period: float
) -> Array:
    """Share of a sampling period around times in which it was busy, within the window.

    The busy time up to t is a line that rises by 1 within busy intervals and is flat between them:
    interpolated at the edges of the intervals, so that a share is the difference of two values.
    """
    start, end = (np.asarray(x - window[0], np.float64) for x in busy)
    edges = np.stack([start, end], axis=1).ravel()
    total = np.concatenate([[0.0], np.cumsum(end - start)])
    busy_until_edge = np.stack([total[:-1], total[1:]], axis=1).ravel()

    def busy_until(t: Array) -> Array:
        times: Array = np.interp(t, edges, busy_until_edge)
        return times

    low = np.maximum(since - period / 2, 0.0)
    high = np.minimum(since + period / 2, float(window[1] - window[0]))
    return (busy_until(high) - busy_until(low)) / np.maximum(high - low, 1.0)


def _refusal(score: Array, correlation: Array, best: int) -> str:
    """Reason why the best lag is not certain; empty if it is.

    Scores are rolled so that the best lag is first; its peak then ends at the first low score
    after it and at the last one before it, and all between these two belongs to other peaks.
    """
    if correlation[best] < _MIN_CORRELATION:
        return f"samples follow busy by {correlation[best]:.2f} of 1 at most"
    size = len(score)
    low = score < _BETWEEN_PEAKS * score[best]
    after = np.roll(low, -best)
    before = after[::-1]
    if not low.any():
        return "all offsets explain the samples alike"
    right, left = int(after.argmax()), int(before.argmax()) + 1
    others = np.roll(score, -best)[right : size - left + 1]
    second = float(others.max()) if others.size else 0.0
    if second > _MAX_SECOND_PEAK * score[best]:
        return f"another offset explains {second / score[best]:.0%} of what the best does"
    return ""


def _refined(
    signals: list[Signal], window: tuple[int, int], coarse: float, step: float, period: float
) -> Estimate:
    """Best offset near a coarse one, by the samples themselves instead of cells."""
    nearby = np.linspace(-2 * step, 2 * step, _FINE_STEPS + 1)
    score = np.zeros(len(nearby))
    correlation = np.zeros(len(nearby))
    count = 0
    while True:
        for k, extra in enumerate(nearby):
            score[k], correlation[k], count = _explained(signals, window, coarse + extra, period)
        best = int(score.argmax())
        peak = score >= _PEAK_WIDTH_AT * score[best]
        if not (peak[0] or peak[-1]) or nearby[-1] > 256 * step:
            break
        nearby = nearby * 2
    width = float(nearby[peak].max() - nearby[peak].min()) / 2
    offset = coarse + float(nearby[best])
    uncertainty = float(np.hypot(width, period / 2))
    return Estimate(round(offset), round(uncertainty), float(correlation[best]), count)


def _explained(
    signals: list[Signal], window: tuple[int, int], offset: float, period: float
) -> tuple[float, float, int]:
    """Variance explained by the busy share at an offset, the correlation, and number of samples."""
    explained = varied = 0.0
    count = 0
    for signal in signals:
        shift = round(offset) - window[0]
        since = signal.ts + shift
        inside = np.flatnonzero((since >= 0) & (since <= window[1] - window[0]))
        inside = inside[:: len(inside) // _MAX_FINE_SAMPLES + 1]
        if len(inside) < _MIN_SAMPLES // 2:
            continue
        share = _busy_share(signal.busy, window, since[inside].astype(np.float64), period)
        share, value = share - share.mean(), signal.value[inside] - signal.value[inside].mean()
        covariance, of_busy = float((share * value).sum()), float((share**2).sum())
        if of_busy > 0 and covariance > 0:
            explained += covariance**2 / of_busy
        varied += float((value**2).sum())
        count += len(inside)
    return explained, float(np.sqrt(explained / varied)) if varied > 0 else 0.0, count
