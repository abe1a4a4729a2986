"""Share to which the clock of kernels follows the readings that cover them, by durations or by readings alone.

Changes of readings, spread over the kernels that readings cover, are followed by the clock to a share that depends on
its spectrum. Durations show this share, whatever their sensitivity: averaged as the sensor averages and spread like its
readings, they follow the readings in full; the share is how much less they do themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import usual_left
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED, jackknife
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.step_changes import Changes

_MIN_SIGNIFICANCE = 3.0
"""Standard errors by which averaged durations must follow readings to show the share. Chosen: fewer are chance."""
MIN_SHARE_ERROR = {False: 0.02, True: 0.06}
"""Smallest error of the share by durations, for readings that touch and for those apart. Chosen: deviations of
generated jobs, as the shape of the clock's spectrum is not known."""
_UNSHOWN_SHARE_ERROR = 0.5
"""Error of the share, as a share of it, where durations do not show that they follow the readings."""
_MIN_SHARE = 1e-3
"""Smallest share, so that it has a relative error."""
_TINY = 1e-12
"""Keeps quotients finite; far below all values."""


def followed_share(changes: list[Changes]) -> tuple[float, float]:
    """Return the share to which clocks follow the readings spread over kernels, and its error.

    By durations where these follow the readings, left out in blocks of time for the error, and by the
    readings' variances; both by the inverses of their variances.
    """
    weights = [one.size for one in changes]
    share = average([one.expected_share[0] for one in changes], weights)
    error = max(one.expected_share[1] for one in changes)
    true = average([one.reliability for one in changes], weights)
    parts = summed(changes)
    vague = vagueness(changes) * share
    if is_shown(changes):
        kept, lost = (average([one.of_kernels[i] for one in changes], weights) for i in (0, 1))
        total = parts.sum(axis=1, keepdims=True)
        value = kept * float(_follow(total)[0])
        own_error = np.hypot(kept * jackknife(_follow(total - parts)), value * lost / kept)
        own_error = np.hypot(own_error, MIN_SHARE_ERROR[any(one.is_sparse for one in changes)])
        inverse = np.maximum([error, own_error], _TINY) ** -2.0
        share, error = float(inverse @ [share, value] / inverse.sum()), float(inverse.sum() ** -0.5)
    return max(share, _MIN_SHARE) * true, float(np.hypot(error, vague)) * true


def _follow(sums: Array) -> Array:
    """Slope of durations over what kernels see of readings, over that of durations as read; by `Changes.sums`."""
    own, of_seen, as_read, in_full = sums
    slope: Array = (own / of_seen) / (as_read / in_full)
    return slope


def vagueness(changes: list[Changes]) -> float:
    """Return the error of the share, as a share of it, as kernels may differ in it where windows hide most of the clock."""
    as_read = summed(changes)[2]
    unseen = 1 - min(one.resolution for one in changes)
    shown = min(_MIN_SIGNIFICANCE / max(_significance(as_read), _TINY), 1.0)
    unsettled = flatter(changes)[0] - 1
    return float(np.hypot(unseen * _UNSHOWN_SHARE_ERROR * shown, unsettled / TWO_SIDED))


def flatter(changes: list[Changes]) -> tuple[float, float]:
    """Return by how much slopes over readings may be too flat at most, as some of their changes may be usual in the step.

    Of slopes over readings less their neighbours in the step, and of those over what is left without what is usual at places.
    """
    *by_neighbours, rest = np.sum([one.squares for one in changes], axis=0)
    of_readings = 1 / (1 - usual_left(np.array(by_neighbours)))
    return of_readings, of_readings * max(rest / max(by_neighbours[0], _TINY), 1.0)


def is_shown(changes: list[Changes]) -> bool:
    """Return True if durations follow the readings by more than chance."""
    return _significance(summed(changes)[2]) > _MIN_SIGNIFICANCE


def _significance(parts: Array) -> float:
    """Absolute value of a sum over its error."""
    total = float(parts.sum())
    return abs(total) / max(jackknife(total - parts), _TINY)


def average(values: list[float], weights: list[float]) -> float:
    """Return the mean over GPUs."""
    return float(np.average(values, weights=np.maximum(weights, _TINY)))


def summed(changes: list[Changes]) -> Array:
    """Return `Changes.sums` of all GPUs."""
    return np.concatenate([one.sums for one in changes], axis=1)


def ratio_error(part: Array, whole: Array) -> float:
    """Return the error of the ratio of two sums, by leaving out one block after the other."""
    with np.errstate(divide="ignore", invalid="ignore"):  # where one block is all of it
        return jackknife((part.sum() - part) / (whole.sum() - whole))
