"""What another memory clock would make of kernels: of those that the memory's bandwidth bounds.

Of a kernel that moves its bytes at 70 % of the memory's peak bandwidth or more, the part of its time
that the bytes take goes with the memory clock (the sum form of a two-domain model,
``t_c f_ref / f + t_m f_m,ref / f_m``); others wait for the memory's latency, which does not (AMD,
US patent 10048741). Where one becomes the other is our choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import arrow

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.dvfs.sensitivity import Sensitivities

    Array = npt.NDArray[Any]

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


def change(known: Sensitivities, ratio: Array) -> tuple[Array, Array]:
    """Logarithm of the time of each repeat then over that before, and its error.

    Parameters
    ----------
    known
        Sensitivities of a trace's kernels.
    ratio
        Memory clock of each repeat by the one asked about; not a number where it is not known.
    """
    part = _part(known)
    bound = np.where(part >= BOUND, np.minimum(part, 1.0), 0.0)
    more = np.nan_to_num(ratio - 1)
    log = np.log(1 + bound * more)
    doubt = np.where(part >= BOUND, _ERROR, part / 3**0.5)
    return log, np.abs(more) * doubt / (1 + bound * more)


def _part(known: Sensitivities) -> Array:
    """Share of its time that each repeat's bytes take, by counters, else by shapes; 0 if unknown."""
    r = known.repeats
    counted = r.mean(known.busy.memory)
    moved = np.full(len(r.node), np.nan)
    if "mem_bytes" in r.trace.nodes.column_names:
        moved = arrow.numbers(r.trace.nodes["mem_bytes"], 0)[r.node] / known.bandwidth
    by_shapes = r.mean(moved / r.dur)
    return np.nan_to_num(np.where(np.isnan(counted), by_shapes, counted))[r.key]
