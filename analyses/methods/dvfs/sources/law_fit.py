"""Laws of the time of a kernel's repeats over the clock, and the errors of their parameters.

A law is convex and piecewise linear in the length x of a clock period: ``t = a + b x``, or with a
bend, ``t = a + b x + c max(0, x - k)`` with a, b, c >= 0: cycles that the core needs, and times that
it does not scale. Where the clock is low the core bounds the kernel, where it is high other things
do (the form of the Ascend model, ASPLOS 2025). One straight line and lines with a bend at several
positions are fitted to each kernel's repeats by iteratively reweighted least squares (Huber), and
averaged by how well they fit, as their Bayesian information criterion says. Parameters' errors are
from leaving out one cluster of repeats after the other (the delete-one jackknife).

The straight line is as steep as the repeats say, even if it falls or is steeper than all of the time
following the core: an estimate held within what kernels can do is biased near the ends of that, and
leaving out repeats does not show its error there. The time that follows from all sources together is
held within what is possible.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.statistics import MAD_TO_SIGMA

BENDS = 11
"""Positions of bends that are tried, evenly within the range of x of a kernel. Chosen: 8 % of the range
apart, closer than repeats can distinguish; more cost time in proportion."""
_BEND_MARGIN = 0.1
"""Share of the range on either side within which no bend is tried: too few repeats lie beyond it."""
_WEIGHT_ROUNDS = 5
"""Rounds of reweighting. Chosen: weights of these few parameters settle in as many."""
_HUBER_TUNING = 1.345
"""Huber's constant: 95 % efficiency for normal errors."""
_OUTLIER_DEVIATIONS = 4.0
"""Root mean squares beyond which a repeat counts less if only means of its clock are known. Chosen: a clock
that is 2 % of the time a third lower stays within them."""
_PARAMETERS = 3
"""Parameters of a law with a bend."""
_MIN_DETERMINANT = 1e-14
"""Relative determinant below which two equations are one: 50 times the resolution of doubles."""
_MIN_SHARE = 1e-3
"""Smallest time of a law as a share of its parts. Chosen: keeps times positive where a steep line, asked
far from its repeats, falls to 0."""


class Laws(NamedTuple):
    """Laws of kernels; arrays are (kernel, model) unless stated otherwise.

    Parameters
    ----------
    base, slope, bend, knee
        a [ns], b and c [ns / x], k [x] of each model: the straight line, and those with bends.
    weight
        Probability of each model; 0 throughout for kernels without a law.
    best
        Index of the likeliest model, (kernel,).
    covariance
        Covariance of a, b and c of the best model, (kernel, 3, 3).
    spread
        Robust standard deviation of the repeats around the best model, as a share, (kernel,).
    parts
        Deviation of a, b and c of the best model without each block of repeats, (kernel, block, 3). Kernels
        whose parameters deviate alike have errors in common.
    """

    base: Array
    slope: Array
    bend: Array
    knee: Array
    weight: Array
    best: Array
    covariance: Array
    spread: Array
    parts: Array

    def times(self, kernel: Array, x: Array) -> Array:
        """Time of each of these kernels at x, the weighted mean of all models."""
        weight = self.weight[kernel]
        return np.einsum("ij,ij->i", weight, self.each(kernel, x))

    def each(self, kernel: Array, x: Array) -> Array:
        """Time of each of these kernels at x by each model, (kernel, model)."""
        over = np.maximum(0.0, x[:, None] - self.knee[kernel])
        base, rising = self.base[kernel], self.slope[kernel] * x[:, None]
        lowest = _MIN_SHARE * (np.abs(base) + np.abs(rising))
        times: Array = np.maximum(base + rising + self.bend[kernel] * over, lowest)
        return times

    def slopes(self, kernel: Array, x: Array) -> Array:
        """Slope of each kernel's time over x at x by each model, (kernel, model)."""
        over = x[:, None] > self.knee[kernel]
        slope: Array = self.slope[kernel] + self.bend[kernel] * over
        return slope


class Groups(NamedTuple):
    """Groups of repeats with errors in common; all numbers from 0 on.

    Parameters
    ----------
    cluster
        Of one kernel, such as its repeats on one GPU.
    block
        Of all kernels, such as those at one time on one GPU.
    """

    cluster: Array
    block: Array


def fit_laws(
    x: Array, t: Array, key: Array, groups: Groups, n_keys: int, bends: Array | None = None
) -> Laws:
    """Fit a law to the repeats of each kernel.

    Parameters
    ----------
    x
        Length of a clock period while each repeat ran, in any unit.
    t
        Duration of each repeat, nanoseconds.
    key
        Kernel of each repeat, from 0 on.
    groups
        Groups of the repeats.
    n_keys
        Number of kernels.
    bends
        Mark kernels whose laws may have bends; all if None. Others are those of whose clock only means are
        known, so that times deviate by as much as it does around these.
    """
    bends = np.ones(n_keys, np.bool_) if bends is None else bends
    # repeats of kernel k: order[first[k]:first[k + 1]]
    first, order = gather.group_rows(key, n_keys)
    models = BENDS + 1
    base, slope, bend, knee, weight = (np.zeros((n_keys, models)) for _ in range(5))
    best = np.zeros(n_keys, np.int64)
    covariance, spread = np.zeros((n_keys, _PARAMETERS, _PARAMETERS)), np.zeros(n_keys)
    cluster, block = (np.ascontiguousarray(column[order], np.int64) for column in groups)
    parts = np.zeros((n_keys, int(block.max(initial=0)) + 1, _PARAMETERS))
    _fit_all(
        np.ascontiguousarray(x[order], float), np.ascontiguousarray(t[order], float),
        cluster, block, first, bends, base, slope, bend, knee, weight, best, covariance, spread, parts,
    )  # fmt: skip
    return Laws(base, slope, bend, knee, weight, best, covariance, spread, parts)


@jit
def _fit_all(  # noqa: PLR0913, PLR0917 # columns
    x: Array,
    t: Array,
    cluster: Array,
    block: Array,
    first: Array,
    bends: Array,
    base: Array,
    slope: Array,
    bend: Array,
    knee: Array,
    weight: Array,
    best: Array,
    covariance: Array,
    spread: Array,
    parts: Array,
) -> None:
    """Fit all models to each kernel; compiled, as thousands of small fits cost numpy its overhead each."""
    models = base.shape[1]
    for k in range(len(first) - 1):
        low, high = first[k], first[k + 1]
        n = high - low
        if n <= _PARAMETERS:
            continue
        own_x, own_t = x[low:high], t[low:high]
        scale = np.median(own_t)
        min_x, max_x = own_x.min(), own_x.max()
        if not max_x > min_x or not scale > 0:
            continue
        y = own_t / scale
        w, sigma = _huber_weights(own_x, y, bends[k])
        sums = np.full(models, np.inf)
        for m in range(models):
            bent = m > 0 and bends[k]
            part = _BEND_MARGIN + (1.0 - 2.0 * _BEND_MARGIN) * (m - 1) / max(models - 2, 1)
            at = min_x + part * (max_x - min_x) if bent else max_x
            theta, sums[m] = _fit_law(own_x, y, w, at, bent)
            base[k, m], slope[k, m], bend[k, m] = (
                theta[0] * scale,
                theta[1] * scale,
                theta[2] * scale,
            )
            knee[k, m] = at if bent else max_x
        _model_weights(sums, n, models, weight[k])
        if not bends[k]:
            weight[k, 1:] = 0.0
            weight[k, 0] = 1.0
        best[k] = np.argmax(weight[k])
        spread[k] = sigma
        is_bent = bend[k, best[k]] > 0
        own = cluster[low:high], block[low:high]
        matrix = _jackknife(own_x, y, w, knee[k, best[k]], is_bent, own, parts[k])
        covariance[k] = matrix * scale * scale


@jit
def _model_weights(sums: Array, n: int, models: int, weight: Array) -> None:
    """Write the probabilities of models by their weighted sums of squares.

    ``exp(-BIC / 2)``, where each of the bends is as likely as the others and all together as likely as
    the straight line.
    """
    score = np.empty(models)
    for m in range(models):
        parameters = 2.0 if m == 0 else 3.0
        prior = 0.0 if m == 0 else 2.0 * np.log(models - 1.0)
        score[m] = n * np.log(max(sums[m], 1e-300)) + parameters * np.log(n) + prior
    lowest = score.min()
    for m in range(models):
        weight[m] = np.exp(-0.5 * (score[m] - lowest))
    weight /= weight.sum()


@jit
def _huber_weights(x: Array, y: Array, bent: bool) -> tuple[Array, float]:  # noqa: FBT001
    """Huber's weights of repeats around a line, with one bend in the middle if `bent`, and their spread.

    Weights are relative to the fitted time, as errors of durations are shares of these. If only means of
    the clock are known, few repeats at another clock are no outliers: limits are by the root mean square.
    """
    w = np.ones(len(x))
    sigma = 0.0
    middle = 0.5 * (x.min() + x.max())
    for _ in range(_WEIGHT_ROUNDS):
        theta, _ = _fit_law(x, y, w, middle, bent)  # numba
        fit = theta[0] + theta[1] * x + theta[2] * np.maximum(0.0, x - middle)
        rest = y / fit - 1.0
        if bent:
            sigma = MAD_TO_SIGMA * np.median(np.abs(rest - np.median(rest)))
        else:
            sigma = np.sqrt(np.mean(rest**2))
        if sigma <= 0:
            break
        limit = (_HUBER_TUNING if bent else _OUTLIER_DEVIATIONS) * sigma
        for i in range(len(x)):
            w[i] = min(1.0, limit / max(abs(rest[i]), 1e-300)) / (fit[i] * fit[i])
    return w, sigma


@jit
def _fit_law(x: Array, y: Array, w: Array, knee: float, bent: bool) -> tuple[Array, float]:  # noqa: FBT001
    """Parameters of a law with a bend at `knee` or none, and the weighted sum of squared residuals."""
    h, r = np.zeros((_PARAMETERS, _PARAMETERS)), np.zeros(_PARAMETERS)
    _normal_equations(x, y, w, knee, h, r)
    theta = _convex(h, r, knee) if bent else _line(h, r)
    total = 0.0
    for i in range(len(x)):
        fit = theta[0] + theta[1] * x[i] + theta[2] * max(0.0, x[i] - knee)
        total += w[i] * (y[i] - fit) ** 2
    return theta, total


@jit
def _normal_equations(x: Array, y: Array, w: Array, knee: float, h: Array, r: Array) -> None:
    """Add repeats to the normal equations ``h theta = r`` of (1, x, max(0, x - knee)).

    Compiled as one pass: no matrix of the three columns is built.
    """
    for i in range(len(x)):
        over = max(0.0, x[i] - knee)
        h[0, 0] += w[i]
        h[0, 1] += w[i] * x[i]
        h[0, 2] += w[i] * over
        h[1, 1] += w[i] * x[i] * x[i]
        h[1, 2] += w[i] * x[i] * over
        h[2, 2] += w[i] * over * over
        r[0] += w[i] * y[i]
        r[1] += w[i] * x[i] * y[i]
        r[2] += w[i] * over * y[i]
    h[1, 0], h[2, 0], h[2, 1] = h[0, 1], h[0, 2], h[1, 2]


@jit
def _convex(h: Array, r: Array, knee: float) -> Array:
    """Parameters of a law that bends up and rises; of the straight line where none fits better."""
    theta = _solve_3(h, r)
    if theta[2] > 0 and not theta[1] >= 0:  # flat up to the bend
        theta = _line(h, r, 2)
    if not (theta[2] > 0 and theta[0] >= 0):
        return _line(h, r)
    theta[2] = min(theta[2], theta[0] / knee)  # no kernel takes fewer cycles beyond the bend
    return theta


@jit
def _line(h: Array, r: Array, k: int = 1) -> Array:
    """Parameters of a law with no others but 0 and `k`.

    With 1 it is the straight line, whatever its slope; with 2 it does not rise before its bend.
    """
    theta = np.zeros(_PARAMETERS)
    d = h[0, 0] * h[k, k] - h[0, k] * h[0, k]
    if d > _MIN_DETERMINANT * h[0, 0] * h[k, k]:
        theta[k] = (h[0, 0] * r[k] - h[0, k] * r[0]) / d
    theta[0] = (r[0] - h[0, k] * theta[k]) / h[0, 0]
    return theta


@jit
def _solve_3(h: Array, r: Array) -> Array:
    """Solution of three equations, by cofactors of a scaled matrix; NaN if there is none."""
    s = np.empty(_PARAMETERS)
    for i in range(_PARAMETERS):
        s[i] = np.sqrt(h[i, i]) if h[i, i] > 0 else 1.0
    m = np.empty((_PARAMETERS, _PARAMETERS))
    for i in range(_PARAMETERS):
        for j in range(_PARAMETERS):
            m[i, j] = h[i, j] / (s[i] * s[j])
    inverse, d = _cofactors(m)
    theta = np.full(_PARAMETERS, np.nan)
    if d > 1e-12:  # noqa: PLR2004 # below that, rounding of doubles decides
        for i in range(_PARAMETERS):
            total = 0.0
            for j in range(_PARAMETERS):
                total += inverse[i, j] * r[j] / s[j]
            theta[i] = total / d / s[i]
    return theta


@jit
def _cofactors(m: Array) -> tuple[Array, float]:
    """Adjugate and determinant of a symmetric matrix of three rows."""
    c = np.empty((_PARAMETERS, _PARAMETERS))
    c[0, 0] = m[1, 1] * m[2, 2] - m[1, 2] * m[1, 2]
    c[0, 1] = m[0, 2] * m[1, 2] - m[0, 1] * m[2, 2]
    c[0, 2] = m[0, 1] * m[1, 2] - m[0, 2] * m[1, 1]
    c[1, 1] = m[0, 0] * m[2, 2] - m[0, 2] * m[0, 2]
    c[1, 2] = m[0, 1] * m[0, 2] - m[0, 0] * m[1, 2]
    c[2, 2] = m[0, 0] * m[1, 1] - m[0, 1] * m[0, 1]
    c[1, 0], c[2, 0], c[2, 1] = c[0, 1], c[0, 2], c[1, 2]
    return c, m[0, 0] * c[0, 0] + m[0, 1] * c[0, 1] + m[0, 2] * c[0, 2]


@jit
def _jackknife(  # noqa: PLR0913, PLR0917 # compiled
    x: Array,
    y: Array,
    w: Array,
    knee: float,
    bent: bool,  # noqa: FBT001
    groups: tuple[Array, Array],
    parts: Array,
) -> Array:
    """Covariance of a law's parameters by fits without one cluster of repeats after the other.

    Parameters are not held within what is possible. Repeats are visited sorted by cluster, and each
    cluster's part of the normal equations is taken off, so that all fits together cost one pass.
    `parts` receives the deviations by block.
    """
    cluster, block = groups
    h, r = np.zeros((_PARAMETERS, _PARAMETERS)), np.zeros(_PARAMETERS)
    _normal_equations(x, y, w, knee, h, r)
    order = np.argsort(cluster)
    thetas, blocks = np.zeros((len(x), _PARAMETERS)), np.zeros(len(x), np.int64)
    count, start = 0, 0
    while start < len(order):
        stop = start
        while stop < len(order) and cluster[order[stop]] == cluster[order[start]]:
            stop += 1
        rows = order[start:stop]
        h_out, r_out = np.zeros((_PARAMETERS, _PARAMETERS)), np.zeros(_PARAMETERS)
        _normal_equations(x[rows], y[rows], w[rows], knee, h_out, r_out)
        if h[0, 0] - h_out[0, 0] > 1e-9 * h[0, 0]:
            theta = _solve_3(h - h_out, r - r_out) if bent else _line(h - h_out, r - r_out)
            if not np.isnan(theta[0]):
                thetas[count], blocks[count] = theta, block[rows[0]]
                count += 1
        start = stop
    matrix = np.zeros((_PARAMETERS, _PARAMETERS))
    if count <= _PARAMETERS:
        return np.full((_PARAMETERS, _PARAMETERS), np.inf)
    mean = np.zeros(_PARAMETERS)
    for c in range(count):
        mean += thetas[c] / count
    for c in range(count):
        parts[blocks[c]] += thetas[c] - mean
        for i in range(_PARAMETERS):
            for j in range(_PARAMETERS):
                matrix[i, j] += (thetas[c, i] - mean[i]) * (thetas[c, j] - mean[j])
    # Few clusters do not show errors well: the variance of Student's distribution.
    wider = (count - 1.0) / (count - _PARAMETERS)
    return matrix * ((count - 1.0) / count * wider)
