"""What another memory clock would make of kernels: of those that the memory's bandwidth bounds.

Of a kernel that moves its bytes at 70 % of the memory's peak bandwidth or more, the part of its time
that the bytes take goes with the memory clock (the sum form of a two-domain model,
``t_c f_ref / f + t_m f_m,ref / f_m``); others wait for the memory's latency, which does not (AMD,
US patent 10048741). Where one becomes the other is our choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.sensitivity import Sensitivities

CLOCK = "memclk_mhz"
BOUND = 0.7
"""Share of its time that a kernel's bytes take at peak bandwidth, from which on they bound it."""
_ERROR = 0.15
"""Error of the part of the time that goes with the memory's clock."""


def measured(known: Sensitivities) -> Array:
    """Mean memory clock of each repeat, MHz; not a number where it is not known."""
    r = known.repeats
    if CLOCK not in r.trace.nodes.column_names:
        return np.full(len(r.node), np.nan)
    mhz = arrow.numbers(r.trace.nodes[CLOCK], np.nan)[r.node]
    return np.where(mhz > 0, mhz, np.nan)


def change(known: Sensitivities, ratio: Array, core: Array, periods: Array) -> tuple[Array, Array]:
    """Time of each repeat then over that before, and the error of its logarithm.

    What the core's clock and what the memory's adds is one sum. So that both together are no more
    than all of a kernel's time, none changes by more than if all of it followed the clock that
    changes more.

    Parameters
    ----------
    known
        Sensitivities of a trace's kernels.
    ratio
        Memory clock of each repeat by the one asked about.
    core
        How much longer each kernel takes by the core's clock.
    periods
        How much longer the core's periods are; not a number where that is not known.
    """
    key, part = known.repeats.key, _part(known)
    core, periods = core[key], periods[key]
    more = ratio - 1
    most = np.where(more > 0, np.fmax(ratio, periods), np.fmin(ratio, periods))
    left = np.divide(most - core, more, out=np.ones(len(more)), where=more != 0)
    bound = np.where(part >= BOUND, np.clip(np.minimum(part, left), 0.0, 1.0), 0.0)
    then = core + bound * more
    doubt = np.where(part >= BOUND, _ERROR, part / 3**0.5)
    return then / core, np.abs(more) * doubt / then


def _part(known: Sensitivities) -> Array:
    """Share of its time that each repeat's bytes take, by counters, else by shapes; 0 if unknown."""
    r = known.repeats
    counted = r.mean(known.busy.memory)
    moved = np.full(len(r.node), np.nan)
    if "mem_bytes" in r.trace.nodes.column_names:
        moved = arrow.numbers(r.trace.nodes["mem_bytes"], 0)[r.node] / known.bandwidth
    by_shapes = r.mean(moved / r.dur)
    return np.nan_to_num(np.where(np.isnan(counted), by_shapes, counted))[r.key]
