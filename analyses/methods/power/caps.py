"""Clock that a power cap leaves a GPU whose firmware holds average power at the cap.

Firmware averages power over some time. While the work of that time draws less at the highest clock
than the cap allows, the clock is the highest and the rest of the cap is not used; else the clock is
the one at which that work draws just the cap. The averaging time is identified from the run: the one
whose clocks come closest to the measured clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chopper_interop.analyses.methods.power import products
from chopper_interop.arrays import Array

_MAX_BINS = 20_000
"""Bins of a profile; more are averaged. Chosen: bounds the time of the search."""
_AVERAGING_NS = tuple(1e6 * w for w in (2, 5, 10, 20, 40, 80, 160, 320))
"""Averaging times that are tried. Chosen: steps of about a factor of 2 around the tens of ms over which
firmware filters power."""
_USUAL = 3
"""Index of the averaging time (20 ms) for runs whose clocks do not show it. Chosen: as
`kernel_clocks.CHANGES_NS`."""
_HALVINGS = 40
"""Halvings of the search for a cap: a part in 1e12, below what doubles of these sums resolve."""
_NEAR = 0.01
"""Relative distance to the highest clock below which a mean clock says nothing of how caps are held.
Chosen: errors of the clock are of that size."""
_MAX_DROP_RATIO = 2.0
"""Limit of `Capping.drop_ratio` either way. Chosen: runs that deviate by more are held by something else."""


@dataclass(frozen=True)
class PowerProfile:
    """Power of a GPU above `fixed_w` over time, as if at its reference clock.

    Parameters
    ----------
    classes
        Power of each class of work in each bin of time, watts.
    idling_w, fixed_w
        Power of the clock without work, and power that the clock does not change.
    width_ns
        Width of a bin.
    exponent
        Exponent of the clock.
    ratio
        Clock of each bin over the reference clock.
    is_followed
        True if that clock was measured.
    low, top
        Lowest and highest clock over the reference clock.
    """

    classes: Array
    idling_w: float
    fixed_w: float
    width_ns: float
    exponent: float
    ratio: Array
    is_followed: bool
    low: float
    top: float


@dataclass(frozen=True)
class Capping:
    """Behaviour of a GPU that is held at a cap.

    Parameters
    ----------
    profile
        Power over time.
    averaging
        Index of the averaging time in `_AVERAGING_NS`.
    drop_ratio
        Distance of the measured mean clock to the highest, over the distance of the modelled one.
    held_w
        Cap under which the model draws the mean power of the run.
    """

    profile: PowerProfile
    averaging: int
    drop_ratio: float
    held_w: float

    def mean_ratio(self, cap_w: float, factors: Array) -> tuple[float, float]:
        """Mean clock under a cap over the reference clock, and its error by the averaging time.

        Parameters
        ----------
        cap_w
            Power cap.
        factors
            New share of time of each class over its share in the run.
        """
        drawn = self.profile.idling_w + products.combined(factors, self.profile.classes)
        around = [
            float(_ratios(self.profile, drawn, averaging, cap_w).mean())
            for averaging in (self.averaging - 1, self.averaging, self.averaging + 1)
            if 0 <= averaging < len(_AVERAGING_NS)
        ]
        modelled = around[min(self.averaging, 1)]
        low, top = self.profile.low, self.profile.top
        ratio = float(np.clip(top - (top - modelled) * self.drop_ratio, low, top))
        error = max(abs(neighbour - modelled) for neighbour in around)
        return ratio, error + abs(ratio - modelled)


def identify_capping(profile: PowerProfile) -> Capping:
    """Identify how a GPU was held at its cap, whatever that was."""
    step = -(-profile.classes.shape[1] // _MAX_BINS)
    n = profile.classes.shape[1] // step * step

    def coarse(values: Array) -> Array:
        means: Array = values[..., :n].reshape(*values.shape[:-1], -1, step).mean(axis=-1)
        return means

    ratio = coarse(profile.ratio)
    width = profile.width_ns * step
    profile = replace(profile, classes=coarse(profile.classes), ratio=ratio, width_ns=width)
    drawn = profile.idling_w + profile.classes.sum(axis=0)
    measured = float((drawn * ratio**profile.exponent).mean())
    if not profile.is_followed:
        return Capping(profile, _USUAL, 1.0, _cap_w(profile, drawn, _USUAL, measured))
    best, min_error = Capping(profile, _USUAL, 1.0, 0.0), np.inf
    for averaging in range(len(_AVERAGING_NS)):
        cap_w = _cap_w(profile, drawn, averaging, measured)
        clocks = _ratios(profile, drawn, averaging, cap_w)
        error = float(np.mean((clocks - ratio) ** 2))
        if error < min_error:
            min_error = error
            best = Capping(profile, averaging, _drop_ratio(profile, clocks), cap_w)
    return best


def _drop_ratio(profile: PowerProfile, clocks: Array) -> float:
    """Distance of the measured mean clock to the highest, over the distance of these clocks."""
    below = profile.top - float(clocks.mean())
    if below < _NEAR * profile.top:
        return 1.0
    ratio = (profile.top - profile.ratio.mean()) / below
    return float(np.clip(ratio, 1 / _MAX_DROP_RATIO, _MAX_DROP_RATIO))


def _averaged(profile: PowerProfile, drawn: Array, averaging: int) -> Array:
    """Power around each bin, averaged over the averaging time by differences of running sums."""
    number = max(round(_AVERAGING_NS[averaging] / profile.width_ns), 1)
    if number > 1:
        sums = np.append([0.0], np.cumsum(drawn))
        first = np.maximum(np.arange(len(drawn)) - number // 2, 0)
        last = np.minimum(first + number, len(drawn))
        drawn = (sums[last] - sums[first]) / (last - first)
    return np.maximum(drawn, 1e-6)


def _ratios(profile: PowerProfile, drawn: Array, averaging: int, cap_w: float) -> Array:
    """Clock in each bin over the reference clock, under a cap."""
    allowed = max(cap_w - profile.fixed_w, 0.0) / _averaged(profile, drawn, averaging)
    ratios: Array = np.clip(allowed ** (1 / profile.exponent), profile.low, profile.top)
    return ratios


def _cap_w(profile: PowerProfile, drawn: Array, averaging: int, above_w: float) -> float:
    """Cap under which the mean power above `fixed_w` is `above_w`, found by halving."""
    min_rise, max_rise = profile.low**profile.exponent, profile.top**profile.exponent
    averaged = _averaged(profile, drawn, averaging)
    low, high = profile.fixed_w, profile.fixed_w + float(drawn.max()) * max_rise
    for _ in range(_HALVINGS):
        cap_w = (low + high) / 2
        rise = np.clip(max(cap_w - profile.fixed_w, 0.0) / averaged, min_rise, max_rise)
        if float((drawn * rise).mean()) > above_w:
            high = cap_w
        else:
            low = cap_w
    return (low + high) / 2
