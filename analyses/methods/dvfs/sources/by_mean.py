"""Times at other clocks by the mean sensitivity of all kernels: of single ones, and of all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs.clocks.best_mean import DECISIVE_GPU_ERROR
from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED
from chopper_interop.analyses.methods.dvfs.sources import combination
from chopper_interop.analyses.methods.dvfs.sources.combination import (
    CLASS,
    REGRESSION,
    Estimate,
    Ratio,
)
from chopper_interop.analyses.methods.dvfs.sources.laws import BEYOND_FAST
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.sources.evidence import Evidence

_FORM_ERROR = 0.12
"""Error of the mean sensitivity beyond the clocks that were seen, as a share of it; as of laws."""
_UNEVEN_ERROR = 0.05
"""Error of what all kernels save by their mean sensitivity, as a share of it, as those that follow the clock are those
that lower it. Chosen: with it 12 of 12 intervals of generated jobs hold, without it 10."""
_UNIFORM_PART = 3.0
"""Largest variance of sensitivities with a given mean over that of sensitivities that are uniform from 0 to 1: 1/4
over 1/12."""
_TINY = 1e-12
"""Keeps a division by a way of 0 finite."""


def by_mean(known: Evidence, target: Array) -> Ratio:
    """Return ratios by the mean sensitivity of all kernels; each deviates from it by what is possible.

    Parameters
    ----------
    known
        Kernels and their mean sensitivity.
    target
        New clock period of each repeat, nanoseconds.
    """
    beta, error = known.mean_estimate
    unsure = np.hypot(error, _FORM_ERROR * beta)
    ratio = known.ratio_by(Estimate(beta, unsure), target)
    # Of a sensitivity that may be more, errors of the clock are too.
    highest = np.minimum(np.hypot(beta, unsure), 1.0)
    ratio = ratio._replace(clock=highest * known.clock_error / np.exp(ratio.log))
    share = np.abs(1 - known.longer(target))
    deviation = np.sqrt(beta * (1 - beta) / _UNIFORM_PART) * share
    return ratio._replace(statistical=deviation)


def with_mean(
    known: Evidence, ratio: Ratio, target: Array, weight: Array, *, is_estimated: bool
) -> Ratio:
    """Return ratios of which all together have the mean sensitivity, where it is known.

    Durations that do not show the sensor bound the mean under each assumption on it: it counts where it is known
    better than by laws.

    Parameters
    ----------
    known
        Kernels and their mean sensitivity.
    ratio
        Ratios by all sources.
    target
        New clock period of each repeat, nanoseconds.
    weight
        Weight of each source, (source, kernel).
    is_estimated
        True if durations show which assumptions on the sensors are best.
    """
    r = known.repeats
    beta, error = known.mean_estimate
    is_known = ~np.isnan(beta) & ~np.isnan(ratio.log)
    if not is_known.any():
        return ratio
    has_target = ~np.isnan(target)
    ns = np.bincount(r.key[has_target], r.dur[has_target], len(r.count)) * is_known
    change = np.nan_to_num((1 - known.longer(target)) * ns)
    beyond = _beyond(known, target)
    flatter, unsure = BEYOND_FAST
    saved = np.nan_to_num(beta) * change
    errors_ns = (
        np.nan_to_num(error) @ np.abs(change), unsure * (saved @ beyond), _UNEVEN_ERROR * saved.sum()
    )  # fmt: skip
    error_ns = np.sqrt(np.sum(np.square(errors_ns)))
    changed_ns = ns.sum() - saved @ (1 - (1 - flatter) * beyond)
    of_level = np.nan_to_num(beta) * known.clock_error / np.exp(ratio.log)
    of_slope = np.abs(ratio.log) * weight[[REGRESSION, CLASS]].sum(axis=0)
    mean = combination.Mean(ns, float(changed_ns), float(error_ns), of_level, of_slope)
    together = combination.with_mean(ratio, mean)
    is_better = together.of_sum(ns)[1] < ratio.of_sum(ns)[1]
    return (
        together if is_estimated or is_better or contradicts_gpus(known, ratio, target) else ratio
    )


def contradicts_gpus(known: Evidence, ratio: Ratio, target: Array) -> bool:
    """True if what kernels save in sum is not what differences between GPUs show, whatever the sensor.

    Under a wrong delay or window, laws fitted to changes that are not those of the kernels are too flat, and their
    errors know nothing of it.
    """
    r = known.repeats
    beta, error = r.mean(r.clocks.gpu_beta), r.mean(r.clocks.gpu_beta_error)
    has_target = ~np.isnan(target)
    ns = np.bincount(r.key[has_target], r.dur[has_target], len(r.count)) * ~np.isnan(ratio.log)
    is_shown = np.nan_to_num(error, nan=np.inf) < DECISIVE_GPU_ERROR
    if not ns.sum() > 0 or not is_shown[ns > 0].all():
        return False
    change = ((1 - known.longer(target)) * ns)[ns > 0]
    saved = float(beta[ns > 0] @ change)
    of_saved = np.hypot(error[ns > 0] @ np.abs(change), _FORM_ERROR * saved)
    log, of_log = ratio.of_sum(ns)
    by_ratio = float(ns.sum()) * (1 - np.exp(log))
    return bool(abs(by_ratio - saved) > TWO_SIDED * np.hypot(of_saved, of_log * ns.sum()))


def _beyond(known: Evidence, target: Array) -> Array:
    """Part of the way from each kernel's mean period to the new one beyond its shortest; 0 to longer ones."""
    r = known.repeats
    # Standard deviation of each repeat's clock around what averaged readings show.
    unseen = np.where(r.clocks.is_sensed, np.nan_to_num(r.clocks.error_share), 0.0)
    fastest = np.full(len(r.count), np.inf)
    np.minimum.at(fastest, r.key, known.period / (1 + 2 * unseen))
    to = np.nan_to_num(r.mean(target), nan=np.inf)
    mean = r.mean(known.period)
    way = np.maximum(mean - to, _TINY)
    return np.clip((np.minimum(fastest, mean) - to) / way, 0.0, 1.0)
