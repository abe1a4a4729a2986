"""What GPU work can take at other clocks at the least and the most, whatever the laws of its kernels.

A kernel gets no shorter at a lower clock, and no longer than all of it being the core's makes it; at
a higher one it is the other way round. So far as the clock that it ran at is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.dvfs.clock_errors import PRIOR_SHARE
from chopper_interop.dvfs.intervals import TWO_SIDED, Limits

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.ideal import Durations
    from chopper_interop.dvfs.sensitivity import Sensitivities
    from chopper_interop.dvfs.target_clocks import Target


def of(known: Sensitivities, target: Target, told: Durations) -> Limits:
    """What GPU work can take at other clocks.

    Parameters
    ----------
    known
        Sensitivities of the trace.
    target
        The clocks.
    told
        How long it would take by what is known of it.
    """
    low, high = _of_kernels(known, target)
    doubt = TWO_SIDED * told.error  # of all else, and of kernels without a clock
    least = told.log - (0.0 if (low >= 0).all() else doubt)
    most = told.log + (0.0 if (high <= 0).all() else doubt)
    node = known.repeats.node
    some = (told.key[node] >= 0) & ~np.isnan(low)
    least[node[some]], most[node[some]] = low[some], high[some]
    return Limits(least, most)


def _of_kernels(known: Sensitivities, target: Target) -> tuple[Array, Array]:
    """The same of each repeat, by its clocks alone; not a number where one is not known."""
    r = known.repeats
    all_core = np.log(known.mhz / target.mhz)
    doubt = np.full(len(all_core), target.error_share)
    if not target.is_change:
        doubt = np.hypot(doubt, np.nan_to_num(r.clocks.error_share, nan=PRIOR_SHARE))
    low = np.minimum(all_core - TWO_SIDED * doubt, 0.0)
    high = np.maximum(all_core + TWO_SIDED * doubt, 0.0)
    floor = np.log(np.maximum(known.floors(target.mhz), 1.0) / r.dur)
    if target.memory is None:
        return np.maximum(low, np.minimum(floor, 0.0)), high
    all_memory = np.nan_to_num(np.log(target.memory))
    return np.minimum(low, all_memory), np.maximum(high, all_memory)  # it is one time that follows
