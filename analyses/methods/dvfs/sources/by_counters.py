"""Sensitivities by busy cycles of matrix and vector units, and bytes at the memory's peak bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.dvfs.sources.combination import Estimate, Ratio
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.sources.evidence import Evidence

_MODEL_ERROR = 0.2
"""Error of a sensitivity by counters. Chosen: wide, as counters alone do not show how computing and
moving data overlap in a kernel."""


def by_counters(known: Evidence, target: Array) -> Ratio:
    """Return ratios by counters; the time that these do not explain may be memory's or the core's.

    Parameters
    ----------
    known
        Kernels, with counters of some.
    target
        New clock period of each repeat, nanoseconds.
    """
    core, memory = (known.repeats.mean(part) for part in (known.busy.core, known.busy.memory))
    is_known = ~np.isnan(core) | (np.nan_to_num(memory) > 0)
    core, not_memory = np.nan_to_num(core), 1 - np.nan_to_num(memory)
    low, high = np.minimum(core, not_memory), np.maximum(core, not_memory)
    # Anything in between is as likely: the standard deviation of a uniform distribution.
    error = np.hypot((high - low) / 12**0.5, _MODEL_ERROR)
    value = np.where(is_known, (low + high) / 2, np.nan)
    return known.ratio_by(Estimate(value, np.where(is_known, error, np.nan)), target)
