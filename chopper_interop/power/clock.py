"""The core clock of a GPU at every moment, as far as its samples tell.

Where samples are close enough to follow the clock, each holds until the next. Where they are not,
what was between them is expected from what the GPU did: the clock that a firmware sets follows
power, so samples are regressed on work as filters of several lengths see it. An expected clock has
no noise of its own, and does not dilute what power says of it as single samples would. Where
samples are too few for this, or their times too uncertain, the clock counts as constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.power import bins as power_bins
from chopper_interop.power import products

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.power.bins import Bins
    from chopper_interop.telemetry.samples import Samples

FOLLOWED, EXPECTED, CONSTANT, UNKNOWN = (
    "followed by samples",
    "expected from the work between samples",
    "its mean",
    "not known",
)
_FOLLOWS = 0.8
"""Samples follow the clock if each is correlated with the next by this much."""
_STILL = 0.002
"""A clock that varies by no more than this share is constant."""
_FILTERS_NS = (2e6, 8e6, 32e6, 128e6)
_EACH = 5
"""So many samples are needed for each filter."""
_MOST_BLUR_NS = 20e6


@dataclass(frozen=True)
class Clock:
    """Core clock of a GPU over bins of time.

    Parameters
    ----------
    bins
        The bins.
    kind
        How it is known between samples.
    f_ref_mhz
        Its mean over the bins; 0 if nothing is known.
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
        """Whether samples themselves tell it at every moment."""
        return self.kind == FOLLOWED

    @property
    def is_expected(self) -> bool:
        """Whether it is expected from the work."""
        return self.kind == EXPECTED

    @property
    def period_ns(self) -> int:
        """Usual time between its samples."""
        return max((s.period_ns for s in self.dies), default=0)

    def logarithm(self, lag_ns: float) -> Array:
        """Of the clock by `f_ref_mhz`, in each bin, if samples show it so much later than it was."""
        mhz = self.expected
        if self.is_followed:
            mhz = power_bins.clock(self.bins, self.dies, lag_ns)
        if not self.f_ref_mhz:
            return np.zeros(self.bins.count)
        return np.log(np.maximum(mhz / self.f_ref_mhz, 1e-3))


def clock(bins: Bins, dies: Sequence[Samples], drawn: Array) -> Clock:
    """The clock over bins of time.

    Parameters
    ----------
    bins
        The bins.
    dies
        Samples of each die, MHz.
    drawn
        Power that the work in each bin is expected to draw above idle, in any unit.
    """
    end = bins.start_ns + bins.count * bins.width_ns
    inside = [(s.ts >= bins.start_ns) & (s.ts < end) for s in dies]
    seen = tuple(s for s, which in zip(dies, inside, strict=True) if which.any())
    if not seen:
        return Clock(bins, UNKNOWN, 0.0, (), np.zeros(bins.count))
    if _follows(seen[0], bins.start_ns, end):
        mhz = power_bins.clock(bins, seen)
        return Clock(bins, FOLLOWED, float(mhz.mean()), seen, mhz)
    found = _expected(bins, seen, drawn)
    kind = CONSTANT if found is None else EXPECTED
    if found is None:
        mean = np.mean([s.value[(s.ts >= bins.start_ns) & (s.ts < end)].mean() for s in seen])
        found = np.full(bins.count, float(mean))
    return Clock(bins, kind, float(found.mean()), seen, found)


def _follows(samples: Samples, start: int, end: int) -> bool:
    """Whether samples are so close to each other that each tells of the next."""
    value = samples.value[(samples.ts >= start) & (samples.ts < end)]
    if len(value) < 2 * _EACH or samples.uncertainty_ns > _MOST_BLUR_NS:
        return False
    about = value - value.mean()
    power = float(about @ about)
    if power <= len(value) * (_STILL * value.mean()) ** 2:
        return False
    return float(about[1:] @ about[:-1]) >= _FOLLOWS * power


def _expected(bins: Bins, dies: Sequence[Samples], drawn: Array) -> Array | None:
    """The clock as a function of the work until then; None of too few samples."""
    last = bins.start_ns + bins.count * bins.width_ns
    first = bins.start_ns + int(2 * max(_FILTERS_NS))
    moments = [s.ts[(s.ts >= first) & (s.ts < last)] for s in dies]
    values = [s.value[(s.ts >= first) & (s.ts < last)] for s in dies]
    number = min(len(moments[0]) // _EACH - 1, len(_FILTERS_NS))
    if number < 1 or max(s.uncertainty_ns for s in dies) > _MOST_BLUR_NS:
        return None
    signals = drawn[np.newaxis]
    seen = np.concatenate(
        [power_bins.filtered(signals, bins.width_ns, width) for width in _FILTERS_NS[:number]]
    )
    rows = np.concatenate([power_bins.at(seen, bins, ts) for ts in moments])
    y = np.concatenate(values)
    middle = rows.mean(axis=0)
    about = np.ascontiguousarray(rows - middle)
    matrix, right = products.normal(about, np.ones(len(y)), y - y.mean())
    doubt = 1e-3 * np.trace(matrix) / number + 1e-12
    slope = np.linalg.solve(matrix + doubt * np.eye(number), right)
    between = (seen[:, 1:] + seen[:, :-1]) / 2 - middle[:, np.newaxis]
    found = y.mean() + products.combined(slope, between)
    return np.clip(found, y.min(), y.max())
