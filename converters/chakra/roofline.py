"""Operations and bytes of GPU work, for a simulator's roofline model.

ASTRA-sim with ``roofline-enabled`` computes the time of each compute node of a GPU from `num_ops` and
`tensor_size`, and stalls at nodes without. Work of which the bytes are not known gets those that the
GPU's memory moves in the measured time, so that it lasts as long as measured at that bandwidth. So does
work of so few bytes that they take less than a nanosecond: ASTRA-sim aborts where a node takes no time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.arrays.statistics import group_medians
from chopper_interop.gpus import ratings
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.timing.populations import populations
from chopper_interop.trace import Trace

_UNKNOWN_GBS = 1000.0
"""Bandwidth of memory, in 10^9 bytes a second, of GPUs that are not known. Chosen: a round number, which
the ET's metadata states, so that whoever runs it can give the simulator the same."""
_MIN_NS = 2
"""Nanoseconds that a node takes at least. Chosen: one, and one for what simulators cut off."""

_MAX_BYTES = 2.0**62
"""Bytes that stand for any longer time; below what a signed 64-bit number holds."""


class Roofline(NamedTuple):
    """Columns of nodes for a roofline model.

    Parameters
    ----------
    num_ops
        Floating-point operations, at least 1.
    tensor_size
        Bytes moved, at least those of two nanoseconds.
    is_computed
        Mask of the nodes that a simulator computes: those of the GPU's compute slot.
    is_assumed
        Mask of those whose bytes stand for their measured time.
    """

    num_ops: Array
    tensor_size: Array
    is_computed: Array
    is_assumed: Array


def bandwidths_gbs(trace: Trace, devices: ratings.DevicesOfRanks) -> Array:
    """Bandwidth of the memory of each rank's GPU in 10^9 bytes a second; a round number if not known.

    Parameters
    ----------
    trace, devices
        Ranks, and the devices of their job.
    """
    of, work = (
        populations(trace, each_rank=True),
        np.flatnonzero(is_any(trace.array("kind"), GPU_WORK)),
    )
    known = ratings.bandwidths(trace, work, devices=devices) if len(work) else np.empty(0)
    if of.count == 1:
        known = known[~np.isnan(known)]
        median = np.array([np.median(known) if known.size else np.nan])
    else:
        median = group_medians(known, of.at(work), of.count)
    return np.where(np.isnan(median), _UNKNOWN_GBS, median)


def roofline(
    trace: Trace, bandwidth: Array, row: Array, computed: Array, slot_us: Array
) -> Roofline:
    """Operations and bytes of nodes.

    Parameters
    ----------
    trace
        Ranks.
    bandwidth
        For each of the nodes that of its rank, or one for all (`bandwidths_gbs`).
    row, computed, slot_us
        Rows of the nodes in the trace or -1, whether a simulator computes them, and their times.
    """
    is_node, node = row >= 0, np.maximum(row, 0)
    copies = is_any(trace.array("kind")[node], (Kind.MEMCPY, Kind.MEMSET))
    size = np.where(copies, trace.integers("bytes", node), trace.integers("mem_bytes", node))
    size = np.where(is_node, size, 0)
    flops = np.where(is_node, trace.integers("flops", node), 0)
    min_size = np.ceil(_MIN_NS * bandwidth).astype(np.int64)
    assumed = computed & (size < min_size)
    slot_us = np.where(assumed, slot_us, 0)
    # weeks at this bandwidth are more bytes than 64 bits hold
    as_measured = np.rint(np.minimum(1000 * slot_us * bandwidth, _MAX_BYTES)).astype(np.int64)
    size = np.where(assumed, as_measured, size)
    flops = np.where(assumed, 1, flops)
    return Roofline(np.maximum(flops, 1), np.maximum(size, min_size), computed, assumed)
