"""Least squares of a GPU's power by what ran on it, with what is expected where samples are few.

Power at idle and of the parts of the work enters linearly. The exponent of the clock and how sensors
see things do not: the response is searched on a grid first, then all are found together by Gauss and
Newton's method. Errors come from the curvature there, and count residuals that follow each other as
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.power import products
from chopper_interop.power.prior import (
    DELAY,
    EXPONENT,
    FIXED,
    IDLING,
    LAG,
    LEAST_EXPONENT,
    LINEAR,
    MOST_EXPONENT,
    USUAL_WIDTH_NS,
    WIDTH,
    Prior,
)
from chopper_interop.power.response import FILTER, RATE, WINDOW, Response

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.power.bins import Bins
    from chopper_interop.power.clock import Clock
    from chopper_interop.power.response import Observed

_WIDTHS_NS = tuple(1e6 * w for w in (0.3, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
_ROUNDING = 1 / 12
"""Variance of values that are told in whole watts."""
_FEWEST = 20
"""So many samples do not tell how they were averaged."""
_ROUNDS = 8
_WHOLE_STEPS = 3
_CLOSE = 0.3
"""Steps below this part of a standard error lead nowhere."""
_HUBER = 2.5
"""Residuals beyond so many standard deviations count less."""
_DOUBT = 3.0
"""What is expected of residuals counts as this many samples."""
_REPEATED = 4.0
"""What an expected clock misses comes again whenever the work does, so that no more than one of so
many samples says something new."""
_BLOCKS = 10
_LAGS = 400
_LAGS_TRIED = (-0.5, 0.0, 0.5)
"""Of the clock's samples, by their period: where the search begins."""
_TELLS = 0.5
"""Part of an expected error above which what is left of it says that samples tell little."""
_TINY = 1e-9
_FORGOTTEN = 0.05
"""Residuals whose autocorrelation is below this are independent."""


@dataclass(frozen=True)
class Fit:
    """Parameters of a GPU's power.

    Parameters
    ----------
    value, covariance
        Of all parameters, by their places.
    response
        How the sensor sees power.
    lag_ns
        How much later the clock's samples show a clock than it was set.
    n
        How many samples of power were used.
    error_w
        Root mean square of residuals.
    r2
        Share of the variance that is explained; None where power did not vary.
    cross_share
        Root mean square of the residuals of blocks of time that were left out of the fit, by the
        mean power; None of few samples.
    """

    value: Array
    covariance: Array
    response: Response
    lag_ns: float
    n: int
    error_w: float
    r2: float | None
    cross_share: float | None


@dataclass(frozen=True)
class Problem:
    """What is fitted.

    Parameters
    ----------
    bins
        Bins of time.
    busy
        Share of each bin in which each part of the work ran, ``[part, bin]``.
    clock
        The core clock; parameters hold at its mean.
    what
        Samples of power.
    """

    bins: Bins
    busy: Array
    clock: Clock
    what: Observed

    def signals(self, exponent: float, log_clock: Array) -> Array:
        """What powers of idle and parts are multiplied by, ``[IDLING and parts, bin]``."""
        rise = np.exp(exponent * log_clock)
        return np.concatenate([rise[np.newaxis], self.busy * rise])

    def shows(self, response: Response, signals: Array) -> Array:
        """What samples show of signals, ``[sample, signal]``."""
        return response.seen(signals, self.bins, self.what)

    def kept(self, response: Response) -> Problem:
        """The same with the samples that see nothing but the time of the bins."""
        which = response.covers(self.what, self.bins)
        return self if which.all() else replace(self, what=self.what.only(which))


def fit(problem: Problem, prior: Prior, rough: tuple[Problem, Prior]) -> Fit | None:
    """Fit a GPU's power to samples; None if none is of the time of the bins.

    Parameters
    ----------
    problem, prior
        What is fitted, and what is expected of it.
    rough
        The same with few parts, for the search of what does not enter linearly.
    """
    is_rate = problem.what.is_rate
    usual = Response(RATE if is_rate else FILTER, USUAL_WIDTH_NS, 0.0)
    few, expected = rough[0].kept(usual), rough[1]
    if not len(few.what):
        return None
    several = not is_rate and len(few.what) >= _FEWEST
    responses = _searched(few, expected) if several else [usual]
    lags = _LAGS_TRIED if problem.clock.is_followed else (0.0,)
    tried = [_Search(few, expected, response, lag) for response in responses for lag in lags]
    for search in tried:
        search.go(together=False)
    first = min(tried, key=_Search.mean_square)
    search = _Search(problem.kept(usual), prior, first.response, 0.0)
    search.value[EXPONENT:] = first.value[EXPONENT:]
    search.go(together=False)
    search.go(together=True)
    return search.told()


def _searched(few: Problem, prior: Prior) -> list[Response]:
    """Of each kind, the response out of a grid that explains the samples best."""
    signals = few.signals(prior.mean[EXPONENT], few.clock.logarithm(-few.clock.period_ns / 2))
    found = []
    for kind in (FILTER, WINDOW):
        best, response_of = np.inf, Response(FILTER, USUAL_WIDTH_NS, 0.0)
        for width in _WIDTHS_NS:
            response = Response(kind, width, 0.0)
            tried = few.kept(response)
            if 2 * width < few.bins.width_ns or 2 * len(tried.what) < max(
                len(few.what), 2 * _FEWEST
            ):
                continue
            error = _linear_error(tried.shows(response, signals), tried.what.value, prior)
            if error < best:
                best, response_of = error, response
        found.append(response_of)
    return found


def _linear_error(x: Array, y: Array, prior: Prior) -> float:
    """Mean square of residuals of the linear parameters alone."""
    rows = np.ones((len(x), 1 + x.shape[1]))
    rows[:, 1:] = x
    weight, mean = prior.weight[LINEAR, LINEAR], prior.mean[LINEAR]
    matrix, right = products.normal(rows, np.ones(len(y)), y)
    value = np.linalg.solve(matrix + weight, right + weight @ mean)
    return float(np.mean((y - products.combined(value, rows.T)) ** 2))


class _Search:
    """Where the search for all parameters is."""

    def __init__(self, problem: Problem, prior: Prior, response: Response, lag: float) -> None:
        """Begin at a response, and a lag of the clock's samples as a share of their period."""
        kept = problem.kept(response)
        problem = kept if 2 * len(kept.what) >= len(problem.what) else problem
        self.problem, self.prior, self.kind = problem, prior, response.kind
        width = problem.bins.width_ns
        self.value = prior.mean.copy()
        self.value[WIDTH] = np.log(response.width_ns)
        self.value[DELAY] = response.delay_ns / width
        self.value[LAG] = lag * problem.clock.period_ns / width
        self.free = self._free()
        self.held: Array = ~self.free
        self.doubt = self._doubt(response)
        self.weights = np.ones(len(problem.what))

    def _free(self) -> Array:
        """Which parameters are fitted at all."""
        free = np.ones(len(self.value), np.bool_)
        several = len(self.problem.what) >= _FEWEST
        free[EXPONENT] = self.problem.clock.is_followed
        free[LAG] = self.problem.clock.is_followed and several
        free[DELAY] = several
        free[WIDTH] = several and self.kind != RATE
        return free

    def _doubt(self, response: Response) -> float:
        """Expected variance of residuals: of rounding to 1 W, of times and of what is not fitted."""
        problem, what = self.problem, self.problem.what
        signals = problem.signals(self.value[EXPONENT], problem.clock.logarithm(self.lag_ns))
        whole = products.combined(self.value[LINEAR][IDLING:], signals)[np.newaxis]
        late, tried = 0.0, [response]
        if not self.free[DELAY]:
            late = math.sqrt(self.prior.covariance[DELAY, DELAY]) * problem.bins.width_ns
        if not self.free[WIDTH] and self.kind != RATE:
            times = math.exp(math.sqrt(self.prior.covariance[WIDTH, WIDTH]))
            tried += [
                replace(response, width_ns=width)
                for width in (response.width_ns / times, response.width_ns * times)
            ]
        blur = (
            float(what.uncertainty_ns) if 2 * what.uncertainty_ns > problem.bins.width_ns else 0.0
        )
        if not blur and not late and len(tried) == 1:
            return _ROUNDING
        moved = [
            one.seen(whole, problem.bins, what.moved(share * blur - max(share, 0.0) * late))[:, 0]
            for share in (np.linspace(-1, 1, 9) if blur or late else (0.0,))
            for one in tried
        ]
        return _ROUNDING + float(np.var(moved, axis=0).mean())

    @property
    def response(self) -> Response:
        width = float(np.exp(self.value[WIDTH]))
        return Response(self.kind, width, float(self.value[DELAY]) * self.problem.bins.width_ns)

    @property
    def lag_ns(self) -> float:
        return float(self.value[LAG]) * self.problem.bins.width_ns

    def rows(self) -> Array:
        """Derivatives of what samples show by each parameter, ``[sample, parameter]``."""
        problem, value, response = self.problem, self.value, self.response
        rows = np.zeros((len(problem.what), len(value)))
        rows[:, FIXED] = 1.0
        log_clock = problem.clock.logarithm(self.lag_ns)
        signals = problem.signals(value[EXPONENT], log_clock)
        linear = rows[:, LINEAR]
        linear[:, IDLING:] = problem.shows(response, signals)
        power = value[LINEAR][IDLING:]
        now = products.combined(power, linear[:, IDLING:].T)
        whole = products.combined(power, signals)[np.newaxis]
        if problem.clock.f_ref_mhz:
            rows[:, EXPONENT] = problem.shows(response, whole * log_clock)[:, 0]
        if self.free[WIDTH]:
            wider = replace(response, width_ns=response.width_ns * 1.02)
            rows[:, WIDTH] = (problem.shows(wider, whole)[:, 0] - now) / np.log(1.02)
        if self.free[DELAY]:
            later = replace(response, delay_ns=response.delay_ns + 0.1 * problem.bins.width_ns)
            rows[:, DELAY] = (problem.shows(later, whole)[:, 0] - now) / 0.1
        if self.free[LAG]:
            moved = problem.clock.logarithm(self.lag_ns + 0.1 * problem.bins.width_ns)
            moved_whole = whole * np.exp(value[EXPONENT] * (moved - log_clock))
            rows[:, LAG] = (problem.shows(response, moved_whole)[:, 0] - now) / 0.1
        return rows

    def mean_square(self) -> float:
        """Mean square of residuals."""
        return float(np.mean(self.residual(self.rows()) ** 2))

    def residual(self, rows: Array) -> Array:
        shown = products.combined(self.value[LINEAR], rows[:, LINEAR].T)
        found: Array = self.problem.what.value - shown
        return found

    def scale(self, residual: Array, *, together: bool) -> float:
        """Variance that a residual counts with; `together` times how many are as one."""
        n = len(residual)
        parameters = len(self.value) if n > 4 * len(self.value) else 0
        squares = float(self.weights @ residual**2)
        variance = (_DOUBT * self.doubt + squares) / (_DOUBT + max(n - parameters, n / 2))
        if n < _FEWEST:  # as many parameters as samples leave small residuals that tell nothing
            variance = max(variance, self.doubt)
        if not together:
            return variance
        as_one = _together(residual)
        return variance * (max(as_one, _REPEATED) if self.problem.clock.is_expected else as_one)

    def step(self, *, together: bool) -> float:
        """Go on; how far that was, in standard errors."""
        rows = self.rows()
        residual = self.residual(rows)
        spread = max(float(np.median(np.abs(residual))) * 1.4826, 1e-3)
        self.weights = np.minimum(1.0, _HUBER * spread / np.maximum(np.abs(residual), 1e-9))
        weight = self.weights / self.scale(residual, together=together)
        matrix, right = products.normal(rows, weight, residual)
        matrix += self.prior.weight
        right += self.prior.weight @ (self.prior.mean - self.value)
        before = self.value
        self.value = self._bounded(before + self._solved(matrix, right))
        step = np.where(self.free, self.value - before, 0.0)
        return math.sqrt(max(float(step @ matrix @ step), 0.0))

    def go(self, *, together: bool) -> None:
        """Go on until that leads nowhere; half of the way where it goes to and fro."""
        for round_ in range(_ROUNDS):
            before = self.value
            if self.step(together=together) < _CLOSE:
                break
            if round_ >= _WHOLE_STEPS:
                self.value = (before + self.value) / 2

    def told(self) -> Fit:
        """What was found."""
        rows, y = self.rows(), self.problem.what.value
        residual = self.residual(rows)
        weight = self.weights / self.scale(residual, together=True)
        matrix = products.normal(rows, weight, residual)[0] + self.prior.weight
        error, spread = float(np.sqrt(np.mean(residual**2))), float(np.var(y))
        return Fit(
            value=self.value,
            covariance=_covariance(matrix, ~self.free | self._at_bound(matrix), self.prior),
            response=self.response,
            lag_ns=self.lag_ns,
            n=len(y),
            error_w=error,
            r2=1 - error**2 / spread if spread > _TINY else None,
            cross_share=_crossed(rows, residual, weight, self.prior, self.value, y),
        )

    def _at_bound(self, matrix: Array) -> Array:
        """Powers held at 0 of which samples tell little: these are as uncertain as they were."""
        error = np.sqrt(np.diag(_covariance(matrix, ~self.free, self.prior)))
        found: Array = self.held & (error > _TELLS * np.sqrt(np.diag(self.prior.covariance)))
        return found

    def _solved(self, matrix: Array, right: Array) -> Array:
        """Step to where squares are least with no power below 0."""
        held, value = ~self.free, self.value
        step = np.zeros(len(value))
        for _ in range(len(value)):
            free = ~held
            step[held] = np.where(self.free, -value, 0.0)[held]
            target = right[free] - matrix[np.ix_(free, held)] @ step[held]
            step[free] = np.linalg.solve(matrix[np.ix_(free, free)], target)
            below = np.zeros(len(value), np.bool_)
            below[LINEAR] = (free & (value + step < -_TINY))[LINEAR]
            if not below.any():
                break
            held = held | below
        self.held = held
        return step

    def _bounded(self, value: Array) -> Array:
        bins = self.problem.bins.width_ns
        late = max(2.0 * self.problem.what.period_ns / bins, 8.0)
        lag = max(self.problem.clock.period_ns / bins, 1.0)
        value[EXPONENT] = np.clip(value[EXPONENT], LEAST_EXPONENT, MOST_EXPONENT)
        value[WIDTH] = np.clip(value[WIDTH], np.log(bins / 2), np.log(3e9))
        value[DELAY] = np.clip(value[DELAY], 0.0, late)
        value[LAG] = np.clip(value[LAG], -lag, lag)
        return value


def _covariance(matrix: Array, kept: Array, prior: Prior) -> Array:
    """Covariance of all parameters, where some were kept at what was expected of them.

    These stay as uncertain as they were, and what they do to the others adds to the errors of those
    (Schmidt's consider parameters).
    """
    free = ~kept
    found = np.zeros_like(matrix)
    known = np.linalg.inv(matrix[np.ix_(free, free)])
    pull = -known @ matrix[np.ix_(free, kept)]
    doubt = prior.covariance[np.ix_(kept, kept)]
    found[np.ix_(free, free)] = known + pull @ doubt @ pull.T
    found[np.ix_(free, kept)] = pull @ doubt
    found[np.ix_(kept, free)] = doubt @ pull.T
    found[np.ix_(kept, kept)] = doubt
    return found


def _together(residual: Array) -> float:
    """How many samples in a row are as good as one, by the autocorrelation of residuals."""
    residual = residual - residual.mean()
    power, total = float(residual @ residual), 1.0
    for lag in range(1, min(len(residual) // 5, _LAGS) if power > 0 else 0):
        rho = float(residual[:-lag] @ residual[lag:]) / power
        if rho < _FORGOTTEN:
            break
        total += 2 * rho
    return total


def _crossed(
    rows: Array, residual: Array, weight: Array, prior: Prior, value: Array, y: Array
) -> float | None:
    """Error of blocks of time that were left out of the fit, by the mean power."""
    if len(y) < 4 * _BLOCKS or not y.mean() > 0:
        return None
    blocks = [np.array_split(of, _BLOCKS) for of in (rows, weight, residual)]
    sides = [products.normal(*block) for block in zip(*blocks, strict=True)]
    whole = sum((matrix for matrix, _ in sides), prior.weight)
    right = sum((mine for _, mine in sides), prior.weight @ (prior.mean - value))
    squares = 0.0
    for (matrix, mine), seen, missed in zip(sides, blocks[0], blocks[2], strict=True):
        step = np.linalg.solve(whole - matrix, right - mine)
        squares += float(np.sum((missed - products.combined(step, seen.T)) ** 2))
    return float(np.sqrt(squares / len(y)) / y.mean())
