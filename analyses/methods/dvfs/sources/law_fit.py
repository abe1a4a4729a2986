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


# Compiled, as all below: thousands of small fits cost numpy its overhead each. They are plain loops, as numba compiles
# expressions of arrays, medians and assignments to rows five times as long.
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
    """Fit all models to each kernel."""
    models = base.shape[1]
    for k in range(len(first) - 1):
        low, high = first[k], first[k + 1]
        n = high - low
        if n <= _PARAMETERS:
            continue
        own_x, y = x[low:high], np.empty(n)
        min_x = max_x = own_x[0]
        for i in range(n):
            y[i] = t[low + i]
            min_x, max_x = min(min_x, own_x[i]), max(max_x, own_x[i])
        scale = _median(y)
        if not max_x > min_x or not scale > 0:
            continue
        for i in range(n):
            y[i] = t[low + i] / scale
        w, spread[k] = _huber_weights(own_x, y, 0.5 * (min_x + max_x), bends[k])
        sums = np.empty(models)
        for m in range(models):
            bent = m > 0 and bends[k]
            part = _BEND_MARGIN + (1.0 - 2.0 * _BEND_MARGIN) * (m - 1) / max(models - 2, 1)
            at = min_x + part * (max_x - min_x) if bent else max_x
            theta, sums[m] = _fit_law(own_x, y, w, at, bent)
            base[k, m], slope[k, m] = theta[0] * scale, theta[1] * scale
            bend[k, m], knee[k, m] = theta[2] * scale, at
        weight[k, 0] = 1.0
        if bends[k]:
            _model_weights(sums, n, weight[k])
        for m in range(models):
            if weight[k, m] > weight[k, best[k]]:
                best[k] = m
        _jackknife(
            own_x, y, w, knee[k, best[k]], bend[k, best[k]] > 0,
            cluster[low:high], block[low:high], scale, parts[k], covariance[k],
        )  # fmt: skip


@jit
def _median(values: Array) -> float:
    """Median of values, which are put into another order (Hoare's selection)."""
    half, low, high = len(values) // 2, 0, len(values) - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if half <= j:
            high = j
        elif half >= i:
            low = i
        else:
            break
    upper = values[half]
    if len(values) % 2:
        return upper
    lower = values[0]
    for i in range(half):
        lower = max(lower, values[i])
    return (lower + upper) / 2.0


@jit
def _model_weights(sums: Array, n: int, weight: Array) -> None:
    """Write the probabilities of models by their weighted sums of squares.

    ``exp(-BIC / 2)``, where each of the bends is as likely as the others and all together as likely as
    the straight line.
    """
    models = len(sums)
    score = np.empty(models)
    lowest = np.inf
    for m in range(models):
        parameters = 2.0 if m == 0 else 3.0
        prior = 0.0 if m == 0 else 2.0 * np.log(models - 1.0)
        score[m] = n * np.log(max(sums[m], 1e-300)) + parameters * np.log(n) + prior
        lowest = min(lowest, score[m])
    total = 0.0
    for m in range(models):
        weight[m] = np.exp(-0.5 * (score[m] - lowest))
        total += weight[m]
    for m in range(models):
        weight[m] /= total


@jit
def _huber_weights(x: Array, y: Array, middle: float, bent: bool) -> tuple[Array, float]:  # noqa: FBT001
    """Huber's weights of repeats around a line, with one bend in the middle if `bent`, and their spread.

    Weights are relative to the fitted time, as errors of durations are shares of these. If only means of
    the clock are known, few repeats at another clock are no outliers: limits are by the root mean square.
    """
    n = len(x)
    w, fit, rest, sizes = np.ones(n), np.empty(n), np.empty(n), np.empty(n)
    sigma = 0.0
    for _ in range(_WEIGHT_ROUNDS):
        theta, _ = _fit_law(x, y, w, middle, bent)  # numba
        square = 0.0
        for i in range(n):
            fit[i] = theta[0] + theta[1] * x[i] + theta[2] * max(0.0, x[i] - middle)
            rest[i] = sizes[i] = y[i] / fit[i] - 1.0
            square += rest[i] * rest[i]
        if bent:
            centre = _median(sizes)
            for i in range(n):
                sizes[i] = abs(rest[i] - centre)
            sigma = MAD_TO_SIGMA * _median(sizes)
        else:
            sigma = np.sqrt(square / n)
        if sigma <= 0:
            break
        limit = (_HUBER_TUNING if bent else _OUTLIER_DEVIATIONS) * sigma
        for i in range(n):
            w[i] = min(1.0, limit / max(abs(rest[i]), 1e-300)) / (fit[i] * fit[i])
    return w, sigma


@jit
def _fit_law(x: Array, y: Array, w: Array, knee: float, bent: bool) -> tuple[Array, float]:  # noqa: FBT001
    """Parameters of a law with a bend at `knee` or none, and the weighted sum of squared residuals."""
    h, r = np.zeros((_PARAMETERS, _PARAMETERS)), np.zeros(_PARAMETERS)
    _normal_equations(x, y, w, knee, h, r)
    theta = _convex(h, r, knee) if bent else _line(h, r, 1)
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
        return _line(h, r, 1)
    theta[2] = min(theta[2], theta[0] / knee)  # no kernel takes fewer cycles beyond the bend
    return theta


@jit
def _line(h: Array, r: Array, k: int) -> Array:
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
    x: Array, y: Array, w: Array, knee: float, bent: bool,  # noqa: FBT001
    cluster: Array, block: Array, scale: float, parts: Array, covariance: Array,
) -> None:  # fmt: skip
    """Write the covariance of a law's parameters by fits without one cluster of repeats after the other.

    Parameters are not held within what is possible. Repeats are visited sorted by cluster, and each
    cluster's part of the normal equations is taken off, so that all fits together cost one pass.

    Parameters
    ----------
    x, y, w, knee, bent
        As of `_fit_law`.
    cluster, block
        Groups of the repeats.
    scale
        Time of y = 1.
    parts, covariance
        Written here.
    """
    n = len(x)
    h, r = np.zeros((_PARAMETERS, _PARAMETERS)), np.zeros(_PARAMETERS)
    _normal_equations(x, y, w, knee, h, r)
    own_x, own_y, own_w = np.empty(n), np.empty(n), np.empty(n)
    rows = np.argsort(cluster)
    for i in range(n):
        row = rows[i]
        own_x[i], own_y[i], own_w[i] = x[row], y[row], w[row]
    thetas, blocks = np.zeros((n, _PARAMETERS)), np.zeros(n, np.int64)
    count, start = 0, 0
    while start < n:
        stop = start
        while stop < n and cluster[rows[stop]] == cluster[rows[start]]:
            stop += 1
        h_left, r_left = np.zeros((_PARAMETERS, _PARAMETERS)), np.zeros(_PARAMETERS)
        some = slice(start, stop)
        _normal_equations(own_x[some], own_y[some], own_w[some], knee, h_left, r_left)
        _take_from(h, r, h_left, r_left)
        if h_left[0, 0] > 1e-9 * h[0, 0]:
            theta = _solve_3(h_left, r_left) if bent else _line(h_left, r_left, 1)
            if not np.isnan(theta[0]):
                for i in range(_PARAMETERS):
                    thetas[count, i] = theta[i]
                blocks[count] = block[rows[start]]
                count += 1
        start = stop
    _write_scatter(thetas, blocks, count, scale, parts, covariance)


@jit
def _take_from(h: Array, r: Array, h_part: Array, r_part: Array) -> None:
    """Replace a part of normal equations by what is left without it."""
    for i in range(_PARAMETERS):
        r_part[i] = r[i] - r_part[i]
        for j in range(_PARAMETERS):
            h_part[i, j] = h[i, j] - h_part[i, j]


@jit
def _write_scatter(
    thetas: Array, blocks: Array, count: int, scale: float, parts: Array, covariance: Array
) -> None:
    """Write the deviations of `count` fits by block, and the covariance that these show."""
    mean = np.zeros(_PARAMETERS)
    for c in range(count):
        for i in range(_PARAMETERS):
            mean[i] += thetas[c, i] / count
    # Few clusters do not show errors well: the variance of Student's distribution.
    wider = (count - 1.0) / (count - _PARAMETERS)
    for i in range(_PARAMETERS):
        for j in range(_PARAMETERS):
            total = 0.0
            for c in range(count):
                total += (thetas[c, i] - mean[i]) * (thetas[c, j] - mean[j])
            total *= (count - 1.0) / count * wider
            covariance[i, j] = total * scale * scale if count > _PARAMETERS else np.inf
    if count > _PARAMETERS:
        for c in range(count):
            for i in range(_PARAMETERS):
                parts[blocks[c], i] += thetas[c, i] - mean[i]
