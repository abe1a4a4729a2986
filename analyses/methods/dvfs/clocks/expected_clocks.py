"""Clocks of kernels that readings of a sensor lead to expect, so that slopes over them are those over the clock.

They follow the changes of readings from step to step (`step_changes`), by the share to which the clock follows them
(`followed_share`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks.best_mean import best_mean
from chopper_interop.analyses.methods.dvfs.clocks.followed_share import followed_share, is_shown
from chopper_interop.analyses.methods.dvfs.clocks.step_changes import Changes
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import (
        Assumption,
        Readings,
        Work,
    )


class Expected(NamedTuple):
    """Clocks of a GPU's kernels by its readings.

    Parameters
    ----------
    mhz
        Expected clock of each kernel.
    apart
        Logarithm of how much longer each takes at its place in the step than in the mean.
    size_error
        Error of the size of the clock's changes, as a share of it.
    is_resolved
        True if readings show the clock within their windows too.
    beta, beta_error
        Mean sensitivity of all kernels by how they follow these changes, and its standard error.
    unseen
        Standard deviation of the clocks of kernels around the expected, by the readings' changes, as a share.
    usual_error
        Error of how each kernel's mean clock differs from that of the GPU, as a share.
    """

    mhz: Array
    apart: Array
    size_error: float
    is_resolved: bool
    beta: float
    beta_error: float
    unseen: float
    usual_error: float


class Shown(NamedTuple):
    """Figures that the readings of all GPUs with one kind of sensor give, under an assumption on it.

    Parameters
    ----------
    share
        Share to which clocks follow the readings spread over kernels, and its error.
    beta
        Mean sensitivity of all kernels, and its error; NaN if they show none.
    """

    share: tuple[float, float]
    beta: tuple[float, float]


def expected_clocks(
    gpus: list[Readings], work: Work, assumed: Assumption, shown: Shown | None = None
) -> list[Expected]:
    """Return the expected clocks of the kernels of GPUs with one kind of sensor; `shown` if that is known already."""
    changes = [Changes(gpu, work, assumed) for gpu in gpus]
    (share, error), beta = shown or _shown(gpus, work, assumed, changes)
    # Where durations do not show the share, slopes over changes within a GPU say nothing of single kernels.
    used, error = (share, error / share) if is_shown(changes) else (0.0, 0.0)
    apart = [one.unseen(used) for one in changes]
    between = [one.between for one in changes]
    if np.mean(np.square(between)) < np.mean(np.square(apart)):
        return [
            Expected(
                gpu.at_kernels(assumed),
                0 * one.apart,
                one.size_error,
                one.is_steady,
                *beta,
                unseen,
                0.0,
            )
            for gpu, one, unseen in zip(gpus, changes, between, strict=True)
        ]
    usual = _usual_of_gpus(gpus, work, changes, is_shown=used > 0)
    return [
        Expected(
            one.clocks(used, of_kernels),
            one.apart,
            error,
            one.is_resolved,
            *beta,
            unseen,
            one.usual_error,
        )
        for one, unseen, of_kernels in zip(changes, apart, usual, strict=True)
    ]


def _usual_of_gpus(
    gpus: list[Readings], work: Work, changes: list[Changes], *, is_shown: bool
) -> list[Array]:
    """Return what is usual of each kernel's clock, by GPU, as a share.

    GPUs that do the same have much the same, and a slope over differences that are errors is too flat. So those of one
    kernel are drawn together by as much as errors explain how they differ: wholly where durations do not show that
    readings are of these kernels.
    """
    each = [one.usual for one in changes]
    if len(gpus) == 1:
        return each
    k = np.concatenate([gpu.kernel for gpu in gpus])
    _, key = np.unique(work.key[k], return_inverse=True)
    value, time = np.concatenate(each), work.dur[k]
    mean = (np.bincount(key, time * value) / np.bincount(key, time))[key]
    squares, trust = float(time @ (value - mean) ** 2), 0.0
    if is_shown and squares > 0:
        errors = float(time @ np.concatenate([one.usual_variance for one in changes]))
        trust = max(1 - errors / squares, 0.0)
    ends = np.cumsum([len(one) for one in each])[:-1]
    return np.split(mean + trust * (value - mean), ends)


def _shown(gpus: list[Readings], work: Work, assumed: Assumption, changes: list[Changes]) -> Shown:
    return Shown(followed_share(changes), best_mean(gpus, work, assumed, changes))


class Saved(NamedTuple):
    """Time that kernels would save at the highest clock: the least, the most and its standard error; with what it follows from."""

    least_ns: float
    most_ns: float
    error_ns: float
    shown: Shown


def saved_time(gpus: list[Readings], work: Work, assumed: Assumption, reach: float) -> Saved:
    """Return the time that kernels would save at the highest clock.

    With one sensitivity of all kernels, which may be wrong by `reach` standard errors.
    """
    changes = [Changes(gpu, work, assumed) for gpu in gpus]
    shown = _shown(gpus, work, assumed, changes)
    (share, _), (beta, wide) = shown
    in_full = 0.0
    for gpu, one in zip(gpus, changes, strict=True):
        k = gpu.kernel
        in_full += float(np.nansum(work.dur[k] * (1 - one.clocks(share) / work.highest[k])))
    if np.isnan(beta):
        beta, wide = 0.5, 0.25
    low, high = in_full * np.clip([beta - reach * wide, beta + reach * wide], 0.0, 1.0)
    return Saved(min(low, high), max(low, high), abs(in_full) * wide, shown)
