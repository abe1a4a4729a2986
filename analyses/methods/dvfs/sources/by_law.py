"""Times at other clocks by laws fitted to repeats (`laws`), and their slopes at the clocks that kernels ran at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs.sources.combination import Estimate, Ratio
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.sources.evidence import Evidence

_ATTENUATION_ERROR = 0.5
"""Error of the correction of a slope for the errors of its clocks, as a share of it. Chosen: wide, as that
error is itself an estimate."""
_MIN_SLOPE_ERROR = 0.01
"""Smallest error of a slope. Chosen: the spread of repeats at one clock."""


def by_law(known: Evidence, target: Array) -> Ratio:
    """Return ratios by laws, with errors that grow beyond the clocks that these were fitted to.

    Parameters
    ----------
    known
        Kernels, with laws of some.
    target
        New clock period of each repeat, nanoseconds.
    """
    r, regression = known.repeats, known.regression
    laws, usable = regression.laws, regression.usable
    none = np.full(len(r.count), np.nan)
    rows = np.flatnonzero(usable[r.key] & ~np.isnan(regression.x) & ~np.isnan(target))
    if not rows.size:
        return Ratio(none, none, none, none)
    k = r.key[rows]
    x, to, beyond, slope_error = regression.within(k, regression.x[rows], target[rows])
    mean = _mean_of_kernels(known, rows, np.log(laws.each(k, to) / laws.each(k, x)))
    log = np.sum(laws.weight * mean, axis=1)
    models = np.sum(laws.weight * (mean - log[:, None]) ** 2, axis=1)
    # Error propagation: the derivative of the mean logarithm by the best model's a, b and c.
    best = laws.best[k]
    pick = np.arange(len(k)), best
    new, now = laws.each(k, to)[pick], laws.each(k, x)[pick]
    knee = laws.knee[k, best]
    bent = np.maximum(0, to - knee) / new - np.maximum(0, x - knee) / now
    u = _mean_of_kernels(known, rows, np.stack([1 / new - 1 / now, to / new - x / now, bent]).T)
    variance = np.maximum(np.einsum("ki,kij,kj->k", u, laws.covariance, u), 0.0)
    parts = np.einsum("ki,kci->kc", u, laws.parts)
    steep = np.einsum("ij,ij->i", laws.weight[k], laws.slopes(k, to)) / laws.times(k, to)
    form = _mean_of_kernels(known, rows, (steep * beyond * slope_error)[:, None])[:, 0]
    core = np.maximum(_mean_of_kernels(known, rows, (steep * to)[:, None])[:, 0], 0.0)
    columns = [
        log,
        np.sqrt(variance),
        np.hypot(core * known.clock_error, size_error(known, log)),
        np.sqrt(models + form**2),
    ]
    for column in columns:
        column[~usable] = np.nan
    length = np.sqrt(np.sum(parts**2, axis=1, keepdims=True))
    direction = parts / np.where(length > 0, length, np.inf)
    return Ratio(*columns)._replace(direction=direction)


def slopes(known: Evidence) -> Estimate:
    """Return sensitivities by laws, at the clocks that kernels ran at."""
    r, regression = known.repeats, known.regression
    laws, usable = regression.laws, regression.usable
    none = np.full(len(r.count), np.nan)
    rows = np.flatnonzero(usable[r.key] & ~np.isnan(regression.x))
    if not rows.size:
        return Estimate(none, none)
    k = r.key[rows]
    x = np.clip(regression.x[rows], regression.fast[k], regression.slow[k])
    times = laws.each(k, x)
    each = laws.slopes(k, x) * x[:, None] / times
    mean = _mean_of_kernels(known, rows, each)
    beta = np.sum(laws.weight * mean, axis=1)
    models = np.sum(laws.weight * (mean - beta[:, None]) ** 2, axis=1)
    # Error propagation: the derivative of the mean sensitivity by the best model's a, b and c.
    pick = np.arange(len(k)), laws.best[k]
    best_ns, best_beta, knee = times[pick], each[pick], laws.knee[k, laws.best[k]]
    over = np.maximum(0, x - knee)
    gradient = np.stack(
        [-best_beta, x * (1 - best_beta), x * (x > knee) - best_beta * over], axis=1
    )
    u = _mean_of_kernels(known, rows, gradient / best_ns[:, None])
    mixed = np.sum(laws.weight[k] * each, axis=1)
    varies = _mean_of_kernels(known, rows, ((mixed - beta[k]) ** 2)[:, None])[:, 0]
    variance = np.einsum("ki,kij,kj->k", u, laws.covariance, u) + models + varies
    attenuated = _ATTENUATION_ERROR * regression.unreliable * beta
    variance += attenuated**2 + size_error(known, beta) ** 2
    estimate = Estimate(beta, np.sqrt(np.maximum(variance, 0)) + _MIN_SLOPE_ERROR)
    for column in estimate:
        column[~usable] = np.nan
    return estimate


def size_error(known: Evidence, log: Array) -> Array:
    """Return the error of these ratios by the size of the clock's changes, which all laws have in common."""
    size: Array = known.repeats.mean(known.repeats.clocks.size_error) * np.abs(log)
    return size


def _mean_of_kernels(known: Evidence, rows: Array, values: Array) -> Array:
    """Mean of columns over the repeats of each kernel, weighted with their durations."""
    r, n = known.repeats, len(known.repeats.count)
    weight = r.dur[rows]
    total = np.bincount(r.key[rows], weight, n)
    columns = [np.bincount(r.key[rows], weight * column, n) for column in values.T]
    return np.stack(columns, axis=1) / np.where(total > 0, total, 1.0)[:, None]
