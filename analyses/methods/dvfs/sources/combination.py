"""Estimates of several sources combined by the inverses of their variances."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED
from chopper_interop.arrays import Array

SOURCES = ("regression", "counted", "counters", "class", "prior")
REGRESSION, COUNTED, COUNTERS, CLASS, PRIOR = range(len(SOURCES))
_MIN_ERROR = 1e-3
"""Smallest error of a source, so that none has infinite weight. Chosen: far below all errors that matter."""
_PRIOR_FREEDOM = 3
"""Number of values that the expected spread counts as. Chosen: few, so that six kernels outweigh it."""
_TINY = 1e-12
_MAX_SLOPE_ERROR = 1.0
"""Largest error that all slopes have in common, as a share of them. Chosen: all that they say."""
_SPREAD_ROUNDS = 20
"""Rounds of the fixed-point iteration for the spread. Chosen: more than it takes to converge."""


class Estimate(NamedTuple):
    """Estimates of one source for each kernel.

    A sensitivity b holds between two clocks: ``t(f) = t_ref (b f_ref / f + 1 - b)`` from the clock that a kernel ran
    at to the clock that is asked about.

    Parameters
    ----------
    value
        Sensitivity or ratio of each kernel; NaN where the source has none.
    error
        Standard deviation.
    """

    value: Array
    error: Array


class Ratio(NamedTuple):
    """Times of kernels at other clocks over their measured times.

    Parameters
    ----------
    log
        Logarithm of the ratio for each kernel.
    statistical, clock, form
        Standard deviations of `log`: of each kernel by itself; by the clocks, common to all kernels;
        by the form of the law.
    sensor
        Half of the range of `log` over the assumptions on the clock's sensor, with a sign.
    shift
        Middle of that range less `log`.
    direction
        Which statistical errors are alike, (kernel, block), with a length of at most 1: those of two kernels
        have its product as their correlation. None if all are independent.
    settled
        What of the statistical errors a known sum takes away: a direction among the kernels' own errors and those of
        blocks, one after the other. None if it takes away nothing.
    """

    log: Array
    statistical: Array
    clock: Array
    form: Array
    sensor: Array | float = 0.0
    direction: Array | None = None
    settled: Array | None = None
    shift: Array | float = 0.0

    @property
    def variance(self) -> Array:
        """Variance of `log` by all errors."""
        return self.statistical**2 + self.clock**2 + self.form**2

    @property
    def common(self) -> Array:
        """Errors that ratios of kernels have in common."""
        squares = self.clock**2 + self.form**2
        if self.direction is not None:
            blocks = np.sum(self.direction**2, axis=1)
            alike = blocks > 0  # others have no error in common, even if their own is infinite
            squares[alike] += blocks[alike] * self.statistical[alike] ** 2
        return np.sqrt(squares)

    def of_sum(self, ns: Array) -> tuple[float, float]:
        """Return the logarithm of a sum's change, and its standard error.

        Parameters
        ----------
        ns
            Measured time of all repeats of each kernel.
        """
        time = _changed_ns(self, ns)
        clock, form = (float(time @ np.nan_to_num(error)) for error in self[2:4])
        independent = float(np.sum(self._sources(time, self.settled) ** 2))
        total = max(float(time.sum()), _TINY)
        error = float(np.sqrt(independent + clock**2 + form**2)) / total
        return float(np.log(total / max(float(ns @ ~np.isnan(self.log)), _TINY))), error

    def _sources(self, time: Array, settled: Array | None = None) -> Array:
        errors = time * np.nan_to_num(self.statistical)
        sources: Array = by_source(errors[np.newaxis], self.direction, settled)[0]
        return sources

    def with_error_of_sum(self, time: Array, error: float) -> Ratio:
        """Return the ratio with errors of which those of the sum take no more than this.

        Errors of single kernels stay as large as they are; what they have to do with the sum is less.

        Parameters
        ----------
        time
            Changed time of all repeats of each kernel.
        error
            Standard error of their sum by statistical errors.
        """
        of_sum = self._sources(time)
        length = float(np.sqrt(of_sum @ of_sum))
        if not length > error:
            return self._replace(settled=None)
        return self._replace(settled=of_sum / length * np.sqrt(1 - error / length))

    def with_part_of_errors(self, share: float) -> Ratio:
        """Return the ratio with this part of its errors."""
        return self._replace(
            statistical=share * self.statistical, clock=share * self.clock, form=share * self.form
        )


def combine_estimates(sources: list[Estimate]) -> tuple[Estimate, Array]:
    """Combine estimates by the inverses of their variances; wider where they contradict each other.

    Also returns the weight of each source, (source, kernel).
    """
    value, error = (
        np.stack([getattr(one, name) for one in sources]) for name in ("value", "error")
    )
    good = ~np.isnan(value) & ~np.isnan(error)
    good[PRIOR] &= ~good[:PRIOR].any(axis=0)
    weight = np.where(good, 1 / np.where(good, error, 1.0) ** 2, 0.0)
    total = weight.sum(axis=0)
    mean = np.sum(weight * np.where(good, value, 0), axis=0) / np.where(total > 0, total, np.nan)
    deviations = np.sum(weight * np.where(good, value - mean, 0.0) ** 2, axis=0)
    degrees = np.maximum(good.sum(axis=0) - 1, 1)
    wider = np.sqrt(np.maximum(deviations / degrees, 1.0))  # Birge's ratio
    error = wider / np.sqrt(np.where(total > 0, total, np.nan))
    return Estimate(np.clip(mean, 0.0, 1.0), error), weight / np.where(total > 0, total, 1.0)


def random_effects(value: Array, error: Array, expected: float) -> tuple[float, float]:
    """Mean of values that differ among themselves, and the standard deviation of one from it.

    Parameters
    ----------
    value, error
        Measured values and their errors.
    expected
        Expected standard deviation of the true values; counts as `_PRIOR_FREEDOM` values.
    """
    between, degrees = expected**2, len(value) - 1
    for _ in range(_SPREAD_ROUNDS):
        weight = 1 / (error**2 + between)
        mean = float(np.sum(weight * value) / np.sum(weight))
        rest = float(np.sum(weight * ((value - mean) ** 2 - error**2)) / np.sum(weight))
        between = (_PRIOR_FREEDOM * expected**2 + degrees * max(rest, 0.0)) / (
            _PRIOR_FREEDOM + degrees
        )
    return mean, float(np.sqrt(between + 1 / np.sum(weight)))


def first_known(first: Ratio, second: Ratio) -> Ratio:
    """Return the first ratio of each kernel, the second where it is not known."""
    unknown = np.isnan(first.log)
    return Ratio(*(np.where(unknown, b, a) for a, b in zip(first[:4], second[:4], strict=True)))


def combine_ratios(sources: list[Ratio]) -> tuple[Ratio, Array]:
    """Combine ratios by the inverses of their variances; the prior counts only where there is no other.

    Also returns the weight of each source, (source, kernel).
    """
    log = np.stack([one.log for one in sources])
    variance = np.stack([one.variance for one in sources]) + _MIN_ERROR**2
    good = np.isfinite(log) & np.isfinite(variance)
    good[PRIOR] &= ~good[:PRIOR].any(axis=0)
    weight = np.where(good, 1 / np.where(good, variance, 1.0), 0.0)
    total = weight.sum(axis=0)
    weight /= np.where(total > 0, total, 1.0)
    known = np.where(good, log, 0.0)
    mean = np.where(total > 0, np.sum(weight * known, axis=0), np.nan)
    parts = [
        np.stack([getattr(one, name) for one in sources])
        for name in ("statistical", "clock", "form")
    ]
    statistical, clock, form = (np.where(good, part, 0.0) for part in parts)
    scatter = np.sum(weight * (known - mean) ** 2, axis=0)
    expected = np.where(total > 0, (good.sum(axis=0) - 1) / np.where(total > 0, total, 1), 0)
    disagreement = np.sqrt(np.maximum(scatter - expected, 0.0))
    together = np.hypot(np.sqrt(np.sum((weight * statistical) ** 2, axis=0)), disagreement)
    direction = sources[REGRESSION].direction
    if direction is not None:
        of_law = weight[REGRESSION] * statistical[REGRESSION] / np.maximum(together, _TINY)
        direction = direction * of_law[:, np.newaxis]
    # Errors of one source are independent of the others'; those by the clocks are common to all.
    return Ratio(
        mean,
        together,
        np.sum(weight * clock, axis=0),
        np.sqrt(np.sum((weight * form) ** 2, axis=0)),
        direction=direction,
    ), weight


def by_source(errors: Array, direction: Array | None, settled: Array | None = None) -> Array:
    """Resolve statistical errors of kernels that are partly alike into independent ones.

    Parameters
    ----------
    errors
        (sum, kernel).
    direction, settled
        As of `Ratio`.

    Returns
    -------
    Array
        (sum, source of error): what each kernel has of its own, and what those of a block have in common.
    """
    n = errors.shape[1]
    if direction is None:
        direction = np.zeros((n, 0))
    own = errors * np.sqrt(np.maximum(1 - np.sum(direction[:n] ** 2, axis=1), 0.0))
    sources = np.hstack([own, errors @ direction[:n]])
    if settled is not None:
        settled = np.append(settled[:n], settled[len(direction) :])
        sources -= np.outer(sources @ settled, settled)
    return sources


def variances_of_sums(
    errors: Array, of: tuple[Array, Array, int], direction: Array | None, settled: Array | None
) -> Array:
    """Return the variances of sums over some kernels each, as those of `by_source`, without a table of all kernels.

    Parameters
    ----------
    errors
        Statistical error of a kernel in a sum.
    of
        Number of the sum and of the kernel that each is of, and the number of sums.
    direction, settled
        As of `Ratio`.
    """
    number, kernel, n = of
    if direction is None:
        direction = np.zeros((int(kernel.max(initial=-1)) + 1, 0))
    alike = errors[:, np.newaxis] * direction[kernel]
    own = np.sqrt(np.maximum(errors**2 - np.sum(alike**2, axis=1), 0.0))
    common = np.zeros((n, alike.shape[1]))
    np.add.at(common, number, alike)
    variance: Array = np.bincount(number, own**2, n) + np.sum(common**2, axis=1)
    if settled is not None:
        of_own, of_common = settled[: len(direction)], settled[len(direction) :]
        along = np.bincount(number, own * of_own[kernel], n) + common @ of_common
        variance -= (2 - settled @ settled) * along**2
    return np.maximum(variance, 0.0)


def _changed_ns(ratio: Ratio, ns: Array) -> Array:
    """Times that all repeats of each kernel take together after the change; 0 where unknown."""
    return np.where(np.isnan(ratio.log), 0.0, ns * np.exp(np.nan_to_num(ratio.log)))


def between(ratio: Ratio, ends: list[Ratio], errors: list[float], ns: Array) -> Ratio:
    """Return the ratio with a range from one assumption on the sensor to another, each with its own errors.

    Parameters
    ----------
    ratio
        Ratio under the assumption that is most likely.
    ends
        Ratios under those by which all kernels together take the least and the most time.
    errors
        Errors of these sums, as shares.
    ns
        Measured time of all repeats of each kernel.
    """
    low, high = ends
    mean_ns = (_changed_ns(low, ns) + _changed_ns(high, ns)) / 2
    below, above = (
        common * error * mean_ns.sum() / max(float(mean_ns @ common), _TINY)
        for common, error in zip((np.nan_to_num(one.common) for one in ends), errors, strict=True)
    )
    log, reach = (low.log + high.log) / 2, (high.log - low.log) / 2
    shift = np.nan_to_num(log + TWO_SIDED * (above - below) / 2 - ratio.log)
    statistical, clock, form = ((a + b) / 2 for a, b in zip(low[1:4], high[1:4], strict=True))
    wider = ends[int(np.argmax(errors))]
    new = Ratio(
        ratio.log, statistical, clock, form, np.nan_to_num(reach), wider.direction, None, shift
    )
    of_sum = np.mean(errors) * mean_ns.sum()
    others = [mean_ns @ np.nan_to_num(error) for error in (clock, form)]
    own = np.sqrt(max(of_sum**2 - others[0] ** 2 - others[1] ** 2, 0.0))
    return new.with_error_of_sum(mean_ns, float(own))


class Mean(NamedTuple):
    """A known sum of the changed times of kernels.

    Parameters
    ----------
    ns
        Measured time of all repeats of each kernel.
    changed_ns
        Sum of their times at other clocks.
    error_ns
        Its standard error.
    by_level
        Part of each kernel's `Ratio.clock` by clocks that are wrong for all, which the sum has too.
    by_slope
        Part of the logarithm of each ratio, without sign, that rests on slopes of durations over clocks.
    """

    ns: Array
    changed_ns: float
    error_ns: float
    by_level: Array
    by_slope: Array


def with_mean(ratio: Ratio, mean: Mean) -> Ratio:
    """Return the ratios that a known sum of all leads to expect, with errors that are less by what it shows.

    Each ratio moves by how much its error has to do with that of the sum, as a Kalman filter updates a state.
    """
    time = _changed_ns(ratio, mean.ns)
    statistical, clock, form = (np.nan_to_num(error) for error in ratio[1:4])
    direction = np.zeros((len(time), 0)) if ratio.direction is None else ratio.direction
    blocks = statistical[:, np.newaxis] * direction
    own = np.sqrt(np.maximum(statistical**2 - np.sum(blocks**2, axis=1), 0.0))
    level = np.minimum(np.nan_to_num(mean.by_level), clock)
    size = np.sqrt(clock**2 - level**2)
    missing = mean.changed_ns - float(time.sum())

    def variance_of_sum() -> float:
        return float(
            np.sum((time * own) ** 2)
            + np.sum((time @ blocks) ** 2)
            + (time @ size) ** 2
            + (time @ form) ** 2
        )

    # Where single ratios contradict the sum by more than both errors, slopes over clocks have an error in common.
    unexplained = max(missing**2 - mean.error_ns**2 - variance_of_sum(), 0.0)
    by_slope = np.nan_to_num(mean.by_slope)
    wrong = min(np.sqrt(unexplained) / max(float(time @ by_slope), _TINY), _MAX_SLOPE_ERROR)
    size = np.hypot(size, by_slope * wrong)
    variance = variance_of_sum()
    if not variance > 0:
        return ratio
    common = np.column_stack([blocks, size, form])
    # Both rest on the same readings and durations: the sum counts by as much as it is known better.
    gain = max(1 - mean.error_ns**2 / variance, 0.0)
    wider = max(abs(missing) / np.sqrt(variance + mean.error_ns**2), 1.0)  # Birge's ratio
    log = ratio.log + (time * own**2 + common @ (time @ common)) / variance * gain * missing
    new = wider * np.hypot(own, np.sqrt(np.sum(common**2, axis=1)))
    unknown = np.isnan(ratio.log)
    statistical, clock = (np.where(unknown, np.nan, error) for error in (new, level))
    direction = wider * common / np.maximum(new, _TINY)[:, np.newaxis]
    together = ratio._replace(
        log=log, statistical=statistical, clock=clock, form=np.where(unknown, np.nan, 0.0),
        direction=direction,
    )  # fmt: skip
    return together.with_error_of_sum(time, wider * float(np.sqrt(variance * (1 - gain))))
