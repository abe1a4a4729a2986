"""Core clock of a GPU over time, as far as its samples show it.

Where samples are close enough to follow the clock, each holds until the next. Where they are not,
the clock between them is expected from the work of the GPU: the clock that firmware sets follows
power, so samples are regressed on work as filters of several lengths see it. An expected clock has
no noise of its own, which would bias the exponent of power towards 0 as single samples do. Where
samples are too few for this, or their times too uncertain, the clock counts as constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.power import bins as power_bins
from chopper_interop.analyses.methods.power import products
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.bins import Bins
    from chopper_interop.annotate.telemetry.samples import Samples

FOLLOWED, EXPECTED, CONSTANT, UNKNOWN = (
    "followed by samples",
    "expected from the work between samples",
    "its mean",
    "not known",
)
_FOLLOWS = 0.8
"""Correlation of each sample with the next from which on samples follow the clock. Chosen: the clock then
changes by less between samples than over the run."""
_STILL = 0.002
"""Relative standard deviation up to which a clock is constant. Chosen: 4 MHz of 2000, a few steps of
reported clocks."""
_FILTERS_NS = (2e6, 8e6, 32e6, 128e6)
"""Time constants by which the clock may follow work. Chosen: factors of 4 around the tens of ms over which
firmware filters power."""
_SAMPLES_EACH = 5
"""Samples that each filter needs. Chosen: a few for each coefficient."""
_MAX_BLUR_NS = 20e6
"""Largest uncertainty of samples' times. Chosen: clocks change within that, see
`dvfs.kernel_clocks.CHANGES_NS`."""


@dataclass(frozen=True)
class BinnedClock:
    """Core clock of a GPU over bins of time.

    Parameters
    ----------
    bins
        Bins of time.
    kind
        Basis of the clock between samples: `FOLLOWED`, `EXPECTED`, `CONSTANT` or `UNKNOWN`.
    f_ref_mhz
        Mean clock over the bins; 0 if unknown.
    dies
        Samples of each die.
    expected
        Clock of each bin where it is not followed, MHz.
    """

    bins: Bins
    kind: str
    f_ref_mhz: float
    dies: tuple[Samples, ...]
    expected: Array

    @property
    def is_followed(self) -> bool:
        """True if samples show the clock at all times."""
        return self.kind == FOLLOWED

    @property
    def is_expected(self) -> bool:
        """True if the clock is expected from the work."""
        return self.kind == EXPECTED

    @property
    def period_ns(self) -> int:
        """Usual time between samples, nanoseconds."""
        return max((s.period_ns for s in self.dies), default=0)

    def logarithm(self, lag_ns: float) -> Array:
        """Logarithm of the clock over `f_ref_mhz` in each bin, if samples show it `lag_ns` late."""
        mhz = self.expected
        if self.is_followed:
            mhz = power_bins.mean_clock(self.bins, self.dies, lag_ns)
        if not self.f_ref_mhz:
            return np.zeros(self.bins.count)
        return np.log(np.maximum(mhz / self.f_ref_mhz, 1e-3))


def estimate_clock(bins: Bins, dies: Sequence[Samples], drawn: Array) -> BinnedClock:
    """Estimate the clock in each bin of time.

    Parameters
    ----------
    bins
        Bins of time.
    dies
        Samples of each die, MHz.
    drawn
        Expected power of the work in each bin above idle, in any unit.
    """
    end = bins.start_ns + bins.count * bins.width_ns
    inside = [(s.ts >= bins.start_ns) & (s.ts < end) for s in dies]
    seen = tuple(s for s, mask in zip(dies, inside, strict=True) if mask.any())
    if not seen:
        return BinnedClock(bins, UNKNOWN, 0.0, (), np.zeros(bins.count))
    if _follows(seen[0], bins.start_ns, end):
        mhz = power_bins.mean_clock(bins, seen)
        return BinnedClock(bins, FOLLOWED, float(mhz.mean()), seen, mhz)
    expected = _expected(bins, seen, drawn)
    if expected is not None:
        return BinnedClock(bins, EXPECTED, float(expected.mean()), seen, expected)
    mean = np.mean([s.value[(s.ts >= bins.start_ns) & (s.ts < end)].mean() for s in seen])
    constant = np.full(bins.count, float(mean))
    return BinnedClock(bins, CONSTANT, float(constant.mean()), seen, constant)


def _follows(samples: Samples, start: int, end: int) -> bool:
    """True if samples are so close to each other that each is correlated with the next."""
    value = samples.value[(samples.ts >= start) & (samples.ts < end)]
    if len(value) < 2 * _SAMPLES_EACH or samples.uncertainty_ns > _MAX_BLUR_NS:
        return False
    deviation = value - value.mean()
    squares = float(deviation @ deviation)
    if squares <= len(value) * (_STILL * value.mean()) ** 2:
        return False
    return float(deviation[1:] @ deviation[:-1]) >= _FOLLOWS * squares


def _expected(bins: Bins, dies: Sequence[Samples], drawn: Array) -> Array | None:
    """Regress the clock on the work before each time; None if there are too few samples."""
    last = bins.start_ns + bins.count * bins.width_ns
    first = bins.start_ns + int(2 * max(_FILTERS_NS))
    times = [s.ts[(s.ts >= first) & (s.ts < last)] for s in dies]
    values = [s.value[(s.ts >= first) & (s.ts < last)] for s in dies]
    number = min(len(times[0]) // _SAMPLES_EACH - 1, len(_FILTERS_NS))
    if number < 1 or max(s.uncertainty_ns for s in dies) > _MAX_BLUR_NS:
        return None
    signals = drawn[np.newaxis]
    seen = np.concatenate(
        [power_bins.filtered(signals, bins.width_ns, width) for width in _FILTERS_NS[:number]]
    )
    rows = np.concatenate([power_bins.interpolated(seen, bins, ts) for ts in times])
    y = np.concatenate(values)
    mean = rows.mean(axis=0)
    centred = np.ascontiguousarray(rows - mean)
    matrix, right = products.normal_equations(centred, np.ones(len(y)), y - y.mean())
    # filters of the same work are nearly collinear
    ridge = 1e-3 * np.trace(matrix) / number + 1e-12
    slope = np.linalg.solve(matrix + ridge * np.eye(number), right)
    in_bins = (seen[:, 1:] + seen[:, :-1]) / 2 - mean[:, np.newaxis]
    mhz = y.mean() + products.combined(slope, in_bins)
    return np.clip(mhz, y.min(), y.max())
