"""Least-squares fit of a GPU's power to its work, with expectations where samples are few.

Power at idle and of the parts of the work enters linearly. The exponent of the clock and the response
of the sensor do not: the response is searched on a grid first, then all are found together by Gauss
and Newton's method. Errors come from the curvature at the solution, and count residuals that are
correlated in time as one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.power import bins as power_bins
from chopper_interop.analyses.methods.power import products
from chopper_interop.analyses.methods.power.decays import Decay, idle_decay
from chopper_interop.analyses.methods.power.prior import (
    DELAY,
    EXPONENT,
    FIRST,
    FIXED,
    IDLING,
    LAG,
    LINEAR,
    MAX_EXPONENT,
    MIN_EXPONENT,
    USUAL_WIDTH_NS,
    WIDTH,
    Prior,
)
from chopper_interop.analyses.methods.power.response import FILTER, RATE, WINDOW, Observed, Response
from chopper_interop.arrays import Array, statistics

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.bins import Bins
    from chopper_interop.analyses.methods.power.clock import BinnedClock

_WIDTHS_NS = {
    FILTER: 1e6 * np.array([0.3, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]),
    WINDOW: 1e6 * np.append([0.3, 0.6], np.geomspace(1, 1024, 81)),
}
"""Widths of responses that are tried first, which the fit then moves. Chosen: factors of 2 up to NVML's
average of 1 s; of windows the eighth root of that, as short idle times show their ends sharply and the fit
finds none from afar. All together take 20 ms of 10,000 bins of a GPU, the most that there are, as they share
the running sums."""
_ROUNDING = 1 / 12
"""Variance of values that are rounded to whole watts: that of a uniform distribution."""
_MIN_SAMPLES = 20
"""Samples below which the response cannot be fitted. Chosen: more than the dozen
parameters of a fit by classes."""
_ROUNDS = 8
"""Rounds of Gauss and Newton's method. Chosen: bounds its time where it goes to and fro."""
_FULL_STEPS = 3
"""Rounds before steps are halved. Chosen: Newton's steps converge in that, or go to and fro."""
_CLOSE = 0.3
"""Standard errors below which a step ends the search. Chosen: what is left moves no figure noticeably."""
_HUBER = 2.5
"""Standard deviations beyond which residuals count less. Chosen: only outliers do, 1 % of normal ones."""
_PRIOR_SAMPLES = 3.0
"""Number of samples that the expected variance of residuals counts as. Chosen: few, so that samples
outweigh it soon."""
_REPEATED = 4.0
"""Samples that count as one where the clock is expected from work. Chosen: what such a clock misses comes
again whenever the work does."""
_BLOCKS = 10
"""Blocks of time that are left out of the fit in turn for its cross-validation: tenths, as is usual."""
_LAGS_TRIED = (-0.5, 0.0, 0.5)
"""Lags of the clock's samples at which the search begins, in periods of these. Chosen: a tool reads clock and
power within one period, in either order."""
_UNLEARNT = 0.5
"""Share of an expected error above which the remaining error shows that samples say little. Chosen: a power
held at 0 is then as uncertain as it was."""
_IDLE_SHARE = 0.01
"""Share of work in a sample up to which it shows an idle GPU. Chosen: work then draws a few watts."""
_TINY = 1e-9


@dataclass(frozen=True)
class Fit:
    """Fitted parameters of a GPU's power.

    Parameters
    ----------
    value, covariance
        Values of all parameters (by the indices of `prior`), and their covariance.
    response
        Response of the power sensor.
    lag_ns
        Time after a clock was set until its samples show it.
    n
        Number of samples of power that were used.
    error_w
        Root mean square of residuals.
    r2
        Share of the variance that is explained; None where power did not vary.
    cross_share
        Root mean square of the residuals of blocks of time that were left out of the fit, over the
        mean power; None for few samples.
    idle_missed_w
        Power of idle times, by decays or by samples that show nothing else, less that of the model; 0 without any.
    shows_decay
        True if samples within idle times determined filter and idle power alone.
    """

    value: Array
    covariance: Array
    response: Response
    lag_ns: float
    n: int
    error_w: float
    r2: float | None
    cross_share: float | None
    idle_missed_w: float
    shows_decay: bool


@dataclass(frozen=True)
class Problem:
    """Data of a fit.

    Parameters
    ----------
    bins
        Bins of time.
    busy
        Share of each bin in which each part of the work ran, ``[part, bin]``.
    clock
        Core clock; parameters hold at its mean.
    observed
        Samples of power.
    """

    bins: Bins
    busy: Array
    clock: BinnedClock
    observed: Observed

    @property
    def is_idle(self) -> Array:
        """Mark the bins in which nothing ran."""
        idle: Array = self.busy.sum(axis=0) == 0
        return idle

    def signals(self, exponent: float, log_clock: Array) -> Array:
        """Factors of the powers of idle and parts, ``[IDLING and parts, bin]``."""
        rise = np.exp(exponent * log_clock)
        return np.concatenate([rise[np.newaxis], self.busy * rise])

    def shows(self, response: Response, signals: Array, sums: Array | None = None) -> Array:
        """Signals as the samples show them, ``[sample, signal]``; `sums` as for `Response.seen`."""
        return response.seen(signals, self.bins, self.observed, sums)

    def covered(self, response: Response) -> Problem:
        """Return the problem with the samples that depend on nothing but the time of the bins."""
        mask = response.covers(self.observed, self.bins)
        return self if mask.all() else replace(self, observed=self.observed.only(mask))


def fit(problem: Problem, prior: Prior, rough: tuple[Problem, Prior]) -> Fit | None:
    """Fit a GPU's power to samples; None if no sample lies in the time of the bins.

    Parameters
    ----------
    problem, prior
        Data, and the expected parameters.
    rough
        The same with few parts, for the search of the parameters that do not enter linearly.
    """
    is_rate = problem.observed.is_rate
    usual = Response(RATE if is_rate else FILTER, USUAL_WIDTH_NS, 0.0)
    few, expected = rough[0].covered(usual), rough[1]
    if not len(few.observed):
        return None
    enough = not is_rate and len(few.observed) >= _MIN_SAMPLES
    responses = _best_responses(few, expected) if enough else [usual]
    lags = _LAGS_TRIED if problem.clock.is_followed else (0.0,)
    every = problem.covered(usual)
    searches = []
    # Few parts leave more unexplained than a wrong kind of response does: all of them choose the kind.
    for response in responses:
        tried = [_Search(few, expected, response, lag) for lag in lags]
        for search in tried:
            search.iterate(correlated=False)
        first = min(tried, key=_Search.mean_square)
        search = _Search(every, prior, first.response, 0.0)
        search.value[EXPONENT:] = first.value[EXPONENT:]
        search.iterate(correlated=False)
        searches.append(search)
    search = min(searches, key=_Search.mean_square)
    if search.kind == FILTER and (by_decay := search.with_decay(every, prior)):
        search = by_decay
        search.iterate(correlated=False)
    search.iterate(correlated=True)
    return search.result()


def _best_responses(few: Problem, prior: Prior) -> list[Response]:
    """Return the response of each kind, out of a grid, that explains the samples best."""
    signals = few.signals(prior.mean[EXPONENT], few.clock.logarithm(-few.clock.period_ns / 2))
    responses, sums = [], power_bins.summed(signals)
    for kind in (FILTER, WINDOW):
        min_error, best = np.inf, Response(FILTER, USUAL_WIDTH_NS, 0.0)
        for width in _WIDTHS_NS[kind]:
            response = Response(kind, float(width), 0.0)
            tried = few.covered(response)
            if 2 * width < few.bins.width_ns or 2 * len(tried.observed) < max(
                len(few.observed), 2 * _MIN_SAMPLES
            ):
                continue
            error = _linear_error(tried.shows(response, signals, sums), tried.observed.value, prior)
            if error < min_error:
                min_error, best = error, response
        responses.append(best)
    return responses


def _linear_error(x: Array, y: Array, prior: Prior) -> float:
    """Mean square of residuals where only the linear parameters are fitted."""
    rows = np.ones((len(x), 1 + x.shape[1]))
    rows[:, 1:] = x
    weight, mean = prior.weight[LINEAR, LINEAR], prior.mean[LINEAR]
    matrix, right = products.normal_equations(rows, np.ones(len(y)), y)
    value = np.linalg.solve(matrix + weight, right + weight @ mean)
    return float(np.mean((y - products.combined(value, rows.T)) ** 2))


class _Search:
    """State of the search for all parameters."""

    def __init__(
        self,
        problem: Problem,
        prior: Prior,
        response: Response,
        lag: float,
        decay: Decay | None = None,
    ) -> None:
        """Begin at a response, and a lag of the clock's samples as a share of their period.

        After a decay the width of the response stays as it is, with the error that is expected of it.
        """
        covered = problem.covered(response)
        problem = covered if 2 * len(covered.observed) >= len(problem.observed) else problem
        self.problem, self.prior, self.kind = problem, prior, response.kind
        self.decay = decay
        width = problem.bins.width_ns
        self.value = prior.mean.copy()
        self.value[WIDTH] = np.log(response.width_ns)
        self.value[DELAY] = response.delay_ns / width
        self.value[LAG] = lag * problem.clock.period_ns / width
        self.free = self._free()
        self.held: Array = ~self.free
        self.expected_variance = self._expected_variance(response)
        self.weights = np.ones(len(problem.observed))

    def _free(self) -> Array:
        """Mark the parameters that are fitted at all."""
        free = np.ones(len(self.value), np.bool_)
        enough = len(self.problem.observed) >= _MIN_SAMPLES
        free[EXPONENT] = self.problem.clock.is_followed
        free[LAG] = self.problem.clock.is_followed and enough
        free[DELAY] = enough
        free[WIDTH] = enough and self.kind != RATE and not self.decay
        return free

    def _expected_variance(self, response: Response) -> float:
        """Variance of residuals by rounding to 1 W, uncertain times and parameters that are not fitted.

        Samples are predicted at several times and widths; the variance of these predictions counts.
        """
        problem, observed = self.problem, self.problem.observed
        signals = problem.signals(self.value[EXPONENT], problem.clock.logarithm(self.lag_ns))
        total = products.combined(self.value[LINEAR][IDLING:], signals)[np.newaxis]
        late, responses = 0.0, [response]
        if not self.free[DELAY]:
            late = math.sqrt(self.prior.covariance[DELAY, DELAY]) * problem.bins.width_ns
        if not self.free[WIDTH] and self.kind != RATE:
            times = math.exp(math.sqrt(self.prior.covariance[WIDTH, WIDTH]))
            responses += [
                replace(response, width_ns=width)
                for width in (response.width_ns / times, response.width_ns * times)
            ]
        blur = (
            float(observed.uncertainty_ns)
            if 2 * observed.uncertainty_ns > problem.bins.width_ns
            else 0.0
        )
        if not blur and not late and len(responses) == 1:
            return _ROUNDING
        moved = [
            one.seen(total, problem.bins, observed.moved(share * blur - max(share, 0.0) * late))[
                :, 0
            ]
            for share in (np.linspace(-1, 1, 9) if blur or late else (0.0,))
            for one in responses
        ]
        return _ROUNDING + float(np.var(moved, axis=0).mean())

    def with_decay(self, problem: Problem, prior: Prior) -> _Search | None:
        """Return the search from here on with filter and idle power by decays; None if these do not show them."""
        problem = problem.covered(self.response)
        decay = idle_decay(problem.bins, problem.is_idle, problem.observed, self.response.delay_ns)
        if decay is None:
            return None
        known = prior.with_parameter(WIDTH, decay.log_width, decay.log_width_error)
        row = self._idle_row()
        row[WIDTH] = -decay.idle_rise_w
        at_width = decay.idle_w - decay.idle_rise_w * decay.log_width
        known = known.with_sum(row, at_width, decay.idle_error_w)
        response = replace(self.response, width_ns=math.exp(decay.log_width))
        search = _Search(problem, known, response, 0.0, decay)
        for parameter in (EXPONENT, DELAY, LAG):
            search.value[parameter] = self.value[parameter]
        return search

    def _idle_row(self) -> Array:
        """Factors of the parameters in the mean power of idle times."""
        row = np.zeros(len(self.value))
        log_clock = self.problem.clock.logarithm(self.lag_ns)[self.problem.is_idle]
        row[FIXED], row[IDLING] = 1.0, float(np.exp(self.value[EXPONENT] * log_clock).mean())
        return row

    def _missed_at_idle(self, rows: Array, residual: Array) -> float:
        """Power of idle times, by their decays or samples that show nothing else, less that of the model."""
        if self.decay:
            return self.decay.idle_w - float(self._idle_row() @ self.value)
        idle = rows[:, FIRST:EXPONENT].sum(axis=1) < _IDLE_SHARE * rows[:, IDLING]
        return float(residual[idle].mean()) if idle.any() else 0.0

    @property
    def response(self) -> Response:
        """Response by the present parameters."""
        width = float(np.exp(self.value[WIDTH]))
        return Response(self.kind, width, float(self.value[DELAY]) * self.problem.bins.width_ns)

    @property
    def lag_ns(self) -> float:
        """Lag of the clock's samples by the present parameters."""
        return float(self.value[LAG]) * self.problem.bins.width_ns

    def rows(self) -> Array:
        """Derivatives of predicted samples by each parameter, ``[sample, parameter]``."""
        problem, value, response = self.problem, self.value, self.response
        rows = np.zeros((len(problem.observed), len(value)))
        rows[:, FIXED] = 1.0
        log_clock = problem.clock.logarithm(self.lag_ns)
        signals = problem.signals(value[EXPONENT], log_clock)
        linear = rows[:, LINEAR]
        linear[:, IDLING:] = problem.shows(response, signals)
        power = value[LINEAR][IDLING:]
        now = products.combined(power, linear[:, IDLING:].T)
        total = products.combined(power, signals)[np.newaxis]
        if problem.clock.f_ref_mhz:
            rows[:, EXPONENT] = problem.shows(response, total * log_clock)[:, 0]
        if self.free[WIDTH] or self.decay:
            wider = replace(response, width_ns=response.width_ns * 1.02)
            rows[:, WIDTH] = (problem.shows(wider, total)[:, 0] - now) / np.log(1.02)
        if self.free[DELAY]:
            later = replace(response, delay_ns=response.delay_ns + 0.1 * problem.bins.width_ns)
            rows[:, DELAY] = (problem.shows(later, total)[:, 0] - now) / 0.1
        if self.free[LAG]:
            moved = problem.clock.logarithm(self.lag_ns + 0.1 * problem.bins.width_ns)
            moved_total = total * np.exp(value[EXPONENT] * (moved - log_clock))
            rows[:, LAG] = (problem.shows(response, moved_total)[:, 0] - now) / 0.1
        return rows

    def mean_square(self) -> float:
        """Mean square of residuals."""
        return float(np.mean(self.residual(self.rows()) ** 2))

    def residual(self, rows: Array) -> Array:
        """Samples less their prediction."""
        predicted = products.combined(self.value[LINEAR], rows[:, LINEAR].T)
        residual: Array = self.problem.observed.value - predicted
        return residual

    def scale(self, residual: Array, *, correlated: bool) -> float:
        """Variance of a residual; if `correlated`, times the number of samples that count as one."""
        n = len(residual)
        parameters = len(self.value) if n > 4 * len(self.value) else 0
        squares = float(self.weights @ residual**2)
        variance = (_PRIOR_SAMPLES * self.expected_variance + squares) / (
            _PRIOR_SAMPLES + max(n - parameters, n / 2)
        )
        if n < _MIN_SAMPLES:  # as many parameters as samples leave small residuals that say nothing
            variance = max(variance, self.expected_variance)
        if not correlated:
            return variance
        as_one = statistics.correlated_samples(residual)
        return variance * (max(as_one, _REPEATED) if self.problem.clock.is_expected else as_one)

    def step(self, *, correlated: bool) -> float:
        """Take one step; return its length in standard errors."""
        rows = self.rows()
        residual = self.residual(rows)
        spread = max(statistics.mad_sigma(residual), 1e-3)
        self.weights = np.minimum(1.0, _HUBER * spread / np.maximum(np.abs(residual), 1e-9))
        weight = self.weights / self.scale(residual, correlated=correlated)
        matrix, right = products.normal_equations(rows, weight, residual)
        matrix += self.prior.weight
        right += self.prior.weight @ (self.prior.mean - self.value)
        before = self.value
        self.value = self._bounded(before + self._solved(matrix, right))
        step = np.where(self.free, self.value - before, 0.0)
        return math.sqrt(max(float(step @ matrix @ step), 0.0))

    def iterate(self, *, correlated: bool) -> None:
        """Take steps until they are short; half of each where they go to and fro."""
        for round_ in range(_ROUNDS):
            before = self.value
            if self.step(correlated=correlated) < _CLOSE:
                break
            if round_ >= _FULL_STEPS:
                self.value = (before + self.value) / 2

    def result(self) -> Fit:
        """Return the fit at the present parameters."""
        rows, y = self.rows(), self.problem.observed.value
        residual = self.residual(rows)
        weight = self.weights / self.scale(residual, correlated=True)
        matrix = products.normal_equations(rows, weight, residual)[0] + self.prior.weight
        error, spread = float(np.sqrt(np.mean(residual**2))), float(np.var(y))
        return Fit(
            value=self.value,
            covariance=_covariance(matrix, ~self.free | self._at_bound(matrix), self.prior),
            response=self.response,
            lag_ns=self.lag_ns,
            n=len(y),
            error_w=error,
            r2=1 - error**2 / spread if spread > _TINY else None,
            cross_share=_cross_validated(rows, residual, weight, self.prior, self.value, y),
            idle_missed_w=self._missed_at_idle(rows, residual),
            shows_decay=self.decay is not None,
        )

    def _at_bound(self, matrix: Array) -> Array:
        """Mark powers held at 0 of which samples say little: these are as uncertain as they were."""
        error = np.sqrt(np.diag(_covariance(matrix, ~self.free, self.prior)))
        expected = np.sqrt(np.diag(self.prior.covariance))
        at_bound: Array = self.held & (error > _UNLEARNT * expected)
        return at_bound

    def _solved(self, matrix: Array, right: Array) -> Array:
        """Solve for the step to the least squares without powers below 0.

        An active-set method: powers that would fall below 0 are held there, until none would.
        """
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
        """Hold the parameters that do not enter linearly within their limits."""
        bins = self.problem.bins.width_ns
        # Twice the period of samples, but no fewer than the 8 bins of two periods of a fine recorder.
        late = max(2.0 * self.problem.observed.period_ns / bins, 8.0)
        lag = max(self.problem.clock.period_ns / bins, 1.0)
        value[EXPONENT] = np.clip(value[EXPONENT], MIN_EXPONENT, MAX_EXPONENT)
        value[WIDTH] = np.clip(value[WIDTH], np.log(bins / 2), np.log(3e9))
        value[DELAY] = np.clip(value[DELAY], 0.0, late)
        value[LAG] = np.clip(value[LAG], -lag, lag)
        return value


def _covariance(matrix: Array, held: Array, prior: Prior) -> Array:
    """Covariance of all parameters, where some were held at their expected values.

    These stay as uncertain as they were, and their effect on the others adds to the errors of those
    (Schmidt's consider parameters).
    """
    free = ~held
    covariance = np.zeros_like(matrix)
    inverse = np.linalg.inv(matrix[np.ix_(free, free)])
    pull = -inverse @ matrix[np.ix_(free, held)]
    expected = prior.covariance[np.ix_(held, held)]
    covariance[np.ix_(free, free)] = inverse + pull @ expected @ pull.T
    covariance[np.ix_(free, held)] = pull @ expected
    covariance[np.ix_(held, free)] = expected @ pull.T
    covariance[np.ix_(held, held)] = expected
    return covariance


def _cross_validated(
    rows: Array, residual: Array, weight: Array, prior: Prior, value: Array, y: Array
) -> float | None:
    """Error of blocks of time that were left out of the fit, over the mean power.

    One step of Newton's method without each block, by taking its part off the normal equations.
    """
    if len(y) < 4 * _BLOCKS or not y.mean() > 0:
        return None
    row_blocks, weight_blocks, residual_blocks = (
        np.array_split(values, _BLOCKS) for values in (rows, weight, residual)
    )
    sides = [
        products.normal_equations(*block)
        for block in zip(row_blocks, weight_blocks, residual_blocks, strict=True)
    ]
    total = sum((matrix for matrix, _ in sides), prior.weight)
    total_right = sum((right for _, right in sides), prior.weight @ (prior.mean - value))
    squares = 0.0
    for (matrix, right), block, missed in zip(sides, row_blocks, residual_blocks, strict=True):
        step = np.linalg.solve(total - matrix, total_right - right)
        squares += float(np.sum((missed - products.combined(step, block.T)) ** 2))
    return float(np.sqrt(squares / len(y)) / y.mean())
