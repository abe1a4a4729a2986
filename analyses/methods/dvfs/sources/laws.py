"""Laws of repeats over the clock: the kernels that have one, and the clocks for which it holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks import kernel_clocks
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED
from chopper_interop.analyses.methods.dvfs.repeats import Repeats, mean_of
from chopper_interop.analyses.methods.dvfs.sources import law_fit as fit
from chopper_interop.analyses.methods.dvfs.sources.kernel_classes import CLASSES
from chopper_interop.arrays import Array, gather, statistics

MIN_REPEATS = 20
"""Repeats that a law needs. Chosen: at 2 % noise and 5 % spread of the clock, 20 repeats leave an error of
the sensitivity of 0.02 / (0.05 sqrt(20)) = 0.09, less than that of the classes' prior. Repeats whose clocks are of fewer
readings show no more than these."""
MIN_SPREAD = 0.02
"""Standard deviation of the clock, as a share of it, below which its effect cannot be seen. Chosen: at 2 %
noise, 20 repeats leave an error of the sensitivity of 0.22, no better than the prior's."""
_SENSED_SPREAD = 0.003
"""Standard deviation of a clock, as a share of it, below which its effect cannot be seen where a model of the sensor
predicts the clock, which is as smooth as the sensor's window is long: averaged noise leaves errors of laws that the jackknife shows. Chosen: several times rounding."""
MIN_RELIABLE = 0.5
"""Slope of the true clock over the measured clock below which there is no law: correcting for it would
more than double the law's slope."""
BEYOND_FAST, _BEYOND_SLOW = (0.92, 0.12), (1.0, 0.15)
"""Slope of a law beyond the fastest and slowest clock that it was fitted to, as a share of the slope
there, and its error. Chosen: a law is convex, so towards faster clocks it goes on as steeply or less."""


@dataclass(frozen=True)
class Regression:
    """Laws fitted to repeats, and the clocks for which they hold.

    Parameters
    ----------
    laws
        Laws, with the length of a clock period in nanoseconds as x.
    x
        Period of each repeat, drawn towards the mean of its kernel by as much as its error adds
        spread; NaN where the clock is unknown.
    usable
        Mark kernels that have a law.
    why_not
        Index in `MISSING` of the reason why a kernel has none; 0 if it has.
    fast, slow
        Smallest and largest x of the repeats of each kernel.
    overlapped
        Mark kernels fitted to repeats overlapped by communication, as too few ran alone.
    unreliable
        Share of the variation of the measured clocks that the true clocks do not follow.
    """

    laws: fit.Laws
    x: Array
    usable: Array
    why_not: Array
    fast: Array
    slow: Array
    overlapped: Array
    unreliable: Array

    @cached_property
    def possible(self) -> Array:
        """Mark kernels with a law that rises by no more than if all of the time followed the core.

        A convex law is flattest at its fast end, and the share of the time that follows the clock
        largest at its slow end, so both ends are all that must be checked.
        """
        k = np.flatnonzero(self.usable)
        possible = np.zeros(len(self.usable), bool)
        if k.size:
            fast = self._clock_share(k, self.fast[k])
            slow = self._clock_share(k, self.slow[k])
            possible[k] = (fast >= 0) & (slow <= 1)
        return possible

    def _clock_share(self, k: Array, x: Array) -> Array:
        """Share of the time that follows the clock."""
        slope = np.sum(self.laws.weight[k] * self.laws.slopes(k, x), axis=1)
        share: Array = slope * x / self.laws.times(k, x)
        return share

    def within(self, k: Array, x: Array, target: Array) -> tuple[Array, Array, Array, Array]:
        """Return where laws are evaluated: beyond their fitted range less far than requested.

        Laws flatten or go on there as `BEYOND_FAST` and `_BEYOND_SLOW` say. Also returns how much of
        the way from `x` to `target` lies beyond, and the relative error of slopes there.
        """
        fast, slow = self.fast[k], self.slow[k]
        under = np.abs(np.maximum(fast - target, 0.0) - np.maximum(fast - x, 0.0))
        over = np.abs(np.maximum(target - slow, 0.0) - np.maximum(x - slow, 0.0))
        error = np.where(under > 0, BEYOND_FAST[1], _BEYOND_SLOW[1])
        return _drawn_in(x, fast, slow), _drawn_in(target, fast, slow), under + over, error


_NO_REPEATS, _NO_CLOCK, _NO_SPREAD, _NO_RESOLUTION = range(1, 5)
MISSING = ("", "repeats", "clock", "spread of the clock", "resolution of the clock")
"""Reasons why a kernel has no law: too little of this."""


def fit_repeats(repeats: Repeats, classes: Array) -> Regression:
    """Fit laws to repeats that ran alone; also to others, in classes where overlap costs nothing."""
    alone = _fit(repeats, repeats.solo)
    use = _not_slowed(repeats, alone, classes)[classes][repeats.key] | repeats.solo
    return _fit(repeats, use) if (use & ~repeats.solo).any() else alone


_MAX_SLOWDOWN = 0.01
"""Mean slow-down by communication up to which kernels of a class count as if alone. Chosen: the spread of
repeats at one clock, against 18.9 % where overlap does slow kernels (Lit Silicon, arXiv 2511.09861)."""


def _not_slowed(repeats: Repeats, alone: Regression, classes: Array) -> Array:
    """Mark classes whose kernels take as long with communication as alone at the same clock."""
    k = repeats.key
    in_range = (alone.x >= alone.fast[k]) & (alone.x <= alone.slow[k])
    rows = np.flatnonzero(~repeats.solo & in_range & alone.usable[k] & ~alone.overlapped[k])
    residual = np.log(repeats.dur[rows] / alone.laws.times(k[rows], alone.x[rows]))
    row_class = classes[k[rows]]
    count = np.bincount(row_class, minlength=len(CLASSES))
    mean = np.bincount(row_class, residual, len(CLASSES)) / np.maximum(count, 1)
    return (count >= MIN_REPEATS) & (np.abs(mean) <= _MAX_SLOWDOWN)


def _fit(repeats: Repeats, preferred: Array) -> Regression:
    """Fit laws to the preferred repeats of each kernel, or to all where these are too few."""
    n = len(repeats.count)
    known = ~np.isnan(repeats.clocks.mhz)
    x = np.where(known, 1000.0 / np.where(known, repeats.clocks.mhz, 1.0), np.nan)
    preferred = known & preferred
    enough = np.bincount(repeats.key[preferred], minlength=n) >= MIN_REPEATS
    enough &= _spread(x, repeats.key, preferred, n) >= _min_spread(repeats)
    used = np.where(enough[repeats.key], preferred, known)
    spread = _spread(x, repeats.key, used, n)
    reliable = _reliable(repeats, used, spread)
    why_not = _why_not(repeats, used, spread, reliable)
    # Regression calibration: each period is drawn towards the mean by its reliability, so that the
    # slope over the calibrated periods is that over the true ones.
    mean_x = mean_of(x, repeats.key, used, n)
    calibrated = mean_x[repeats.key] + reliable[repeats.key] * (x - mean_x[repeats.key])
    rows = np.flatnonzero(used & (why_not[repeats.key] == 0))
    # Where readings average the clock, durations bend over it by that.
    averaged = (
        np.bincount(
            repeats.key[repeats.clocks.is_sensed & ~repeats.clocks.is_resolved], minlength=n
        )
        > 0
    )
    dur = repeats.dur[rows] * np.exp(-repeats.clocks.apart[rows])
    laws = fit.fit_laws(
        calibrated[rows], dur, repeats.key[rows], _groups(repeats, rows), n, ~averaged
    )
    usable = laws.weight.sum(axis=1) > 0
    fast, slow = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(fast, repeats.key[rows], calibrated[rows])
    np.maximum.at(slow, repeats.key[rows], calibrated[rows])
    # Times are means over clocks that averaged readings do not show: laws hold for these too.
    sensed = used & repeats.clocks.is_sensed
    unseen = np.nan_to_num(
        mean_of(np.where(sensed, repeats.clocks.error_share, 0.0), repeats.key, sensed, n)
    )
    fast, slow = fast / (1 + 2 * unseen), slow * (1 + 2 * unseen)
    return Regression(laws, calibrated, usable, why_not, fast, slow, ~enough, 1 - reliable)


def _why_not(repeats: Repeats, used: Array, spread: Array, reliable: Array) -> Array:
    """Index in `MISSING` of the first reason why each kernel has no law; 0 if it has."""
    n = len(repeats.count)
    known = ~np.isnan(repeats.clocks.mhz)
    count = np.bincount(repeats.key[used], minlength=n)
    resolution = statistics.group_medians(
        np.where(used & ~repeats.clocks.is_sensed, repeats.clocks.resolution_ns, np.nan).astype(
            float
        ),
        repeats.key,
        n,
    )
    # Where changes of the clock may be none, slopes over them have no bound, and errors in proportion to these say nothing.
    may_be_none = mean_of(repeats.clocks.size_error, repeats.key, used, n) * TWO_SIDED >= 1
    reasons = (
        (count < MIN_REPEATS, _NO_REPEATS),
        (np.bincount(repeats.key[known], minlength=n) == 0, _NO_CLOCK),
        (mean_of(repeats.clocks.readings, repeats.key, used, n) < MIN_REPEATS, _NO_RESOLUTION),
        (spread < _min_spread(repeats), _NO_SPREAD),
        (reliable < MIN_RELIABLE, _NO_RESOLUTION),
        (may_be_none, _NO_RESOLUTION),
        (resolution > kernel_clocks.CHANGES_NS, _NO_RESOLUTION),
    )
    return np.select([mask for mask, _ in reasons], [number for _, number in reasons], 0)


def _min_spread(repeats: Repeats) -> Array:
    """Least spread of the clock that a law of each kernel needs."""
    sensed = np.bincount(repeats.key[repeats.clocks.is_sensed], minlength=len(repeats.count)) > 0
    return np.where(sensed, _SENSED_SPREAD, MIN_SPREAD)


def _reliable(repeats: Repeats, used: Array, spread: Array) -> Array:
    """Slope of the true clocks of each kernel's repeats over the measured clocks, from 0 to 1."""
    variance = np.where(spread > 0, spread, np.inf) ** 2
    square = repeats.clocks.error_share**2
    changed, noise = (
        mean_of(np.where(mask, square, 0.0), repeats.key, used, len(repeats.count)) / variance
        for mask in (
            ~repeats.clocks.is_counted & ~repeats.clocks.is_sensed,
            repeats.clocks.is_counted,
        )
    )
    return np.clip(kernel_clocks.attenuation(changed) - noise, 0.0, 1.0)


_MIN_CLUSTERS = 5
"""Clusters that a kernel needs for its jackknife. Chosen: two more than a law has parameters, as no error
is left with as many."""
_TIME_PARTS = 8
"""Parts of the time on each GPU whose repeats have errors in common; of a single GPU, twice as many. Chosen:
long enough for clocks that no sample shows to be independent, enough for an error."""


_MAX_BLOCKS = 64
"""Blocks that show which errors kernels have in common. Chosen: memory is in proportion; GPUs beyond share them."""


def _groups(repeats: Repeats, rows: Array) -> fit.Groups:
    """Number repeats that have errors in common: of one GPU, else of a part of the time on one, else alone."""
    rank = repeats.trace.array("rank")[repeats.node[rows]].astype(np.int64)
    start = repeats.trace.array("ts")[repeats.node[rows]]
    first, length = int(start.min(initial=0)), max(int(np.ptp(start)) if len(start) else 0, 1)
    parts = max(_TIME_PARTS, -(-2 * _TIME_PARTS // len(np.unique(rank))) if len(rank) else 1)
    part = np.minimum((start - first) * parts // length, parts - 1)
    coarser = [rank, rank * parts + part]
    block = np.unique(coarser[1], return_inverse=True)[1] % _MAX_BLOCKS
    # The coarsest clusters of which a kernel has enough; numbers above all of them stand for none.
    cluster = np.arange(len(rows)) + 1 + int(max(c.max(initial=0) for c in coarser))
    undecided = np.ones(len(rows), bool)
    for candidate in coarser:
        first_rows, _ = gather.distinct(repeats.key[rows], candidate)
        enough = (
            np.bincount(repeats.key[rows][first_rows], minlength=len(repeats.count))
            >= _MIN_CLUSTERS
        )
        decided = undecided & enough[repeats.key[rows]]
        cluster[decided] = candidate[decided]
        undecided &= ~decided
    return fit.Groups(cluster, block)


def _spread(x: Array, key: Array, mask: Array, n: int) -> Array:
    """Standard deviation over the mean of the marked values of each key; 0 where there are none."""
    mean = mean_of(x, key, mask, n)
    square = mean_of((x - mean[key]) ** 2, key, mask, n)
    return np.nan_to_num(np.sqrt(np.maximum(square, 0)) / mean)


def _drawn_in(x: Array, fast: Array, slow: Array) -> Array:
    """Draw periods beyond a law's fitted range closer to it, by its slope out there."""
    drawn = np.clip(x, fast, slow)
    drawn -= BEYOND_FAST[0] * np.maximum(fast - x, 0.0)
    drawn += _BEYOND_SLOW[0] * np.maximum(x - slow, 0.0)
    return drawn
