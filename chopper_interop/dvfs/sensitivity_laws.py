"""Laws of repeats by the clock: which kernels have one, and where it holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.dvfs import clock_errors, sensitivity_sources
from chopper_interop.dvfs import sensitivity_fit as fit
from chopper_interop.dvfs.sensitivity_repeats import mean_of
from chopper_interop.dvfs.sensitivity_sources import CLASSES

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.sensitivity_repeats import Repeats

LEAST_REPEATS = 20
LEAST_SPREAD = 0.02
"""Standard deviation of the clock, as a share of it, below which it does not tell of its effect."""
LEAST_RELIABLE = 0.5
"""Slope of the true clock by the measured one, below which there is no law: it would be more than
doubled."""
_BEYOND_FAST, _BEYOND_SLOW = (0.88, 0.12), (1.0, 0.15)
"""Slope of a law beyond the fastest and slowest clock that it was fitted to, as a share of that
there, and its error: a law is convex, so it goes on as steeply to faster clocks or less; our choice."""


@dataclass(frozen=True)
class Regression:
    """Laws fitted to repeats, and where they hold.

    Parameters
    ----------
    laws
        The laws; x is the length of a clock period in nanoseconds.
    x
        Of each repeat, what its clock says of it and of the others: less spread than it says alone,
        by as much as its error makes.
    usable
        Which kernels have a law.
    why_not
        Number of what is lacking in `LACKING`, of those without.
    fast, slow
        Least and greatest x of the repeats of each.
    beside
        Which were fitted to repeats beside communication, as too few ran alone.
    unreliable
        By how much less than the measured clocks of each the true ones vary with them, as a share.
    """

    laws: fit.Laws
    x: Array
    usable: Array
    why_not: Array
    fast: Array
    slow: Array
    beside: Array
    unreliable: Array

    @cached_property
    def possible(self) -> Array:
        """Which kernels have a law that rises, and no more than all of the time being the core's.

        The slope of a convex law is least at its fast end, its share of the time most at the slow.
        """
        k = np.flatnonzero(self.usable)
        found = np.zeros(len(self.usable), bool)
        if k.size:
            fast, slow = self._share(k, self.fast[k]), self._share(k, self.slow[k])
            found[k] = (fast >= 0) & (slow <= 1)
        return found

    def _share(self, k: Array, x: Array) -> Array:
        """Share of the time that follows the clock."""
        slope = np.sum(self.laws.weight[k] * self.laws.slopes(k, x), axis=1)
        share: Array = slope * x / self.laws.times(k, x)
        return share

    def within(self, k: Array, x: Array, target: Array) -> tuple[Array, Array, Array, Array]:
        """Where laws are asked: beyond what they were fitted to less far than is asked.

        Also how much of the way from `x` to `target` lies there, and the error of slopes there.
        """
        fast, slow = self.fast[k], self.slow[k]
        under = np.abs(np.maximum(fast - target, 0.0) - np.maximum(fast - x, 0.0))
        over = np.abs(np.maximum(target - slow, 0.0) - np.maximum(x - slow, 0.0))
        doubt = np.where(under > 0, _BEYOND_FAST[1], _BEYOND_SLOW[1])
        return _drawn_in(x, fast, slow), _drawn_in(target, fast, slow), under + over, doubt


LACKING = ("", "repeats", "clock", "spread of the clock", "resolution of the clock")


def of(r: Repeats, classes: Array) -> Regression:
    """Laws of repeats that ran alone; also of others, in classes that these do not differ in."""
    alone = _fitted(r, r.solo)
    like = _not_slowed(r, alone, classes)[classes][r.key] | r.solo
    return _fitted(r, like) if (like & ~r.solo).any() else alone


_SLOWED = 0.01
"""Kernels of a class that take no more than so much longer beside communication are as alone."""


def _not_slowed(r: Repeats, alone: Regression, classes: Array) -> Array:
    """Classes whose kernels take no longer beside communication than alone at the same clock."""
    k = r.key
    within = (alone.x >= alone.fast[k]) & (alone.x <= alone.slow[k])
    rows = np.flatnonzero(~r.solo & within & alone.usable[k] & ~alone.beside[k])
    rest = np.log(r.dur[rows] / alone.laws.times(k[rows], alone.x[rows]))
    of = classes[k[rows]]
    count = np.bincount(of, minlength=len(CLASSES))
    mean = np.bincount(of, rest, len(CLASSES)) / np.maximum(count, 1)
    return (count >= LEAST_REPEATS) & (np.abs(mean) <= _SLOWED)


def _fitted(r: Repeats, alone: Array) -> Regression:
    n = len(r.count)
    known = ~np.isnan(r.clocks.mhz)
    x = np.where(known, 1000.0 / np.where(known, r.clocks.mhz, 1.0), np.nan)
    alone = known & alone
    enough = np.bincount(r.key[alone], minlength=n) >= LEAST_REPEATS
    enough &= _spread(x, r.key, alone, n) >= LEAST_SPREAD
    used = np.where(enough[r.key], alone, known)
    spread = _spread(x, r.key, used, n)
    reliable = _reliable(r, used, spread)
    count = np.bincount(r.key[used], minlength=n)
    lacking = [
        (count < LEAST_REPEATS, 1),
        (np.bincount(r.key[known], minlength=n) == 0, 2),
        (spread < LEAST_SPREAD, 3),
        (reliable < LEAST_RELIABLE, 4),
    ]
    resolution = sensitivity_sources.medians(
        np.where(used, r.clocks.resolution_ns, np.nan).astype(float), r.key, n
    )
    lacking.append((resolution > clock_errors.CHANGES_NS, 4))
    why_not = np.select([c for c, _ in lacking], [w for _, w in lacking], 0)
    middle = mean_of(x, r.key, used, n)
    calibrated = middle[r.key] + reliable[r.key] * (x - middle[r.key])
    rows = np.flatnonzero(used & (why_not[r.key] == 0))
    laws = fit.fitted(calibrated[rows], r.dur[rows], r.key[rows], _clusters(r, rows), n)
    usable = laws.weight.sum(axis=1) > 0
    least, most = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(least, r.key[rows], calibrated[rows])
    np.maximum.at(most, r.key[rows], calibrated[rows])
    return Regression(laws, calibrated, usable, why_not, least, most, ~enough, 1 - reliable)


def _reliable(r: Repeats, used: Array, spread: Array) -> Array:
    """How much the true clocks of each kernel's repeats vary with the measured ones: the slope."""
    variance = np.where(spread > 0, spread, np.inf) ** 2
    square = r.clocks.error_share**2
    changed, noise = (
        mean_of(np.where(of, square, 0.0), r.key, used, len(r.count)) / variance
        for of in (~r.clocks.is_counted, r.clocks.is_counted)
    )
    return np.clip(clock_errors.followed(changed) - noise, 0.0, 1.0)


_FEW_CLUSTERS = 5


def _clusters(r: Repeats, rows: Array) -> Array:
    """What repeats have errors in common: of one GPU; else of one training step on one; else none."""
    rank = r.trace.array("rank")[r.node[rows]].astype(np.int64)
    coarser = [rank]
    if "iteration" in r.trace.nodes.column_names:
        step = r.trace.annotated("iteration")[r.node[rows]].astype(np.int64)
        coarser.append(rank * (int(step.max(initial=0)) + 2) + step + 1)
    found = np.arange(len(rows)) + 1 + int(max(c.max(initial=0) for c in coarser))
    undecided = np.ones(len(rows), bool)
    for cluster in coarser:
        first, _ = gather.distinct(r.key[rows], cluster)
        enough = np.bincount(r.key[rows][first], minlength=len(r.count)) >= _FEW_CLUSTERS
        taken = undecided & enough[r.key[rows]]
        found[taken] = cluster[taken]
        undecided &= ~taken
    return found


def _spread(x: Array, key: Array, used: Array, n: int) -> Array:
    """Standard deviation over the mean; 0 where there is nothing."""
    mean = mean_of(x, key, used, n)
    square = mean_of((x - mean[key]) ** 2, key, used, n)
    return np.nan_to_num(np.sqrt(np.maximum(square, 0)) / mean)


def _drawn_in(x: Array, fast: Array, slow: Array) -> Array:
    """Lengths of periods beyond those that a law was fitted to, where it is taken to be the same."""
    found = np.clip(x, fast, slow)
    found -= _BEYOND_FAST[0] * np.maximum(fast - x, 0.0)
    found += _BEYOND_SLOW[0] * np.maximum(x - slow, 0.0)
    return found
