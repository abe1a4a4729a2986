"""Effect of another memory clock on kernels: on those that the memory's bandwidth bounds.

Of a kernel that moves its bytes at 70 % of the memory's peak bandwidth or more, the part of its time
that the bytes take follows the memory clock (the sum form of a two-domain model,
``t_c f_ref / f + t_m f_m,ref / f_m``). Other kernels wait for the memory's latency, which does not
follow it (AMD, US patent 10048741).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.sensitivity import Sensitivities

CLOCK = "memclk_mhz"
MIN_BOUND_SHARE = 0.7
"""Share of a kernel's time that its bytes take at peak bandwidth, from which on they bound it. Chosen:
the lower end of 0.7 to 0.8; the patent has such a threshold without a value."""
_SHARE_ERROR = 0.15
"""Error of the part of the time that follows the memory's clock. Chosen: about half of the
share that `MIN_BOUND_SHARE` leaves open."""


def measured_mhz(known: Sensitivities) -> Array:
    """Mean memory clock of each repeat, MHz; NaN where unknown."""
    mhz = known.repeats.trace.reals(CLOCK, known.repeats.node)
    return np.where(mhz > 0, mhz, np.nan)


def change(known: Sensitivities, ratio: Array, core: Array, periods: Array) -> tuple[Array, Array]:
    """Time of each repeat at another memory clock over its time before, and the error of its logarithm.

    The changes by the core's clock and by the memory's are added. So that both together are no more
    than all of a kernel's time, no kernel changes by more than if all of it followed the clock that
    changes more.

    Parameters
    ----------
    known
        Sensitivities of the trace's kernels.
    ratio
        Measured memory clock of each repeat over the requested one.
    core
        Time of each kernel at the new core clock over its measured time.
    periods
        New length of the core's clock period over the measured one; NaN where unknown.
    """
    key, part = known.repeats.key, _memory_share(known)
    core, periods = core[key], periods[key]
    more = ratio - 1
    furthest = np.where(more > 0, np.fmax(ratio, periods), np.fmin(ratio, periods))
    remaining = np.divide(furthest - core, more, out=np.ones(len(more)), where=more != 0)
    bound = np.where(part >= MIN_BOUND_SHARE, np.clip(np.minimum(part, remaining), 0.0, 1.0), 0.0)
    new = core + bound * more
    # Of an unbounded kernel anything from nothing to `part` may follow: a uniform distribution's error.
    error = np.where(part >= MIN_BOUND_SHARE, _SHARE_ERROR, part / 3**0.5)
    return new / core, np.abs(more) * error / new


def _memory_share(known: Sensitivities) -> Array:
    """Share of its time that each repeat's bytes take, by counters, else by shapes; 0 if unknown."""
    r = known.repeats
    counted = r.mean(known.busy.memory)
    moved = r.trace.integers("mem_bytes", r.node, unknown=0) / known.bandwidth
    by_shapes = r.mean(moved / r.dur)
    return np.nan_to_num(np.where(np.isnan(counted), by_shapes, counted))[r.key]
