"""Times at other clocks by what is expected of a kernel's class: anything from no effect of the clock to all of it."""

from __future__ import annotations

import numpy as np

from chopper_interop.analyses.methods.dvfs.intervals import TWO_SIDED
from chopper_interop.analyses.methods.dvfs.sources.combination import Estimate, Ratio
from chopper_interop.analyses.methods.dvfs.sources.evidence import MIN_RATIO, Evidence
from chopper_interop.analyses.methods.dvfs.sources.kernel_classes import PRIORS
from chopper_interop.arrays import Array

_RANGE_MARGIN = 0.05
"""Share by which the range of a prior reaches beyond what is possible, which then limits it."""


def by_prior(known: Evidence, target: Array, clock_error: Array) -> Ratio:
    """Return ratios by the prior, whose interval reaches from none of the time following the clock to all.

    A range is no normal distribution: what the clocks may be wrong by at its end is added to it.

    Parameters
    ----------
    known
        Kernels and their classes.
    target
        New clock period of each repeat, nanoseconds.
    clock_error
        Error of the clock of each kernel, as a share; 0 where clocks change by as much as was asked for.
    """
    ratio = known.ratio_by(estimate(known), target)
    in_full = np.log(np.maximum(known.longer(target), MIN_RATIO))
    reach = np.maximum(np.abs(ratio.log), np.abs(in_full - ratio.log))
    form = (1 + _RANGE_MARGIN) * reach / TWO_SIDED + clock_error
    return ratio._replace(form=form, clock=0.0 * form)


def estimate(known: Evidence) -> Estimate:
    """Return the prior of each kernel's class; its error is so wide that the interval holds all that is possible."""
    value = np.array(list(PRIORS.values()))[known.classes]
    return Estimate(value, np.maximum(value, 1 - value) / TWO_SIDED)
