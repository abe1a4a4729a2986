"""Times of transfers over another network: the alpha-beta model of rings, by kind, size and group.

With n ranks in a ring, links of bandwidth B and a latency "a" a step, S bytes take (Thakur et al.,
Optimization of Collective Communication Operations in MPICH, 2005, sections 4.1, 4.4 and 4.5)::

    all_reduce                       2 (n - 1) (S / (n B) + a)
    all_gather, reduce_scatter         (n - 1) (S / (n B) + a)
    all_to_all, by direct exchange     (n - 1) (S / (n B) + a)
    broadcast, reduce, send                     S / B     + a

S is counted as nccl-tests does: of an all-gather what each rank has in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.communication import sizes
from chopper_interop.analyses.methods.communication.times import communication_times
from chopper_interop.schemas.kinds import Collective

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.instances import Instances
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace


def transfer_times(trace: Trace, bandwidth_gbs: float, latency_ns: int, ranks: int = 0) -> Array:
    """Time of each communication's transfer, without waiting for members.

    Parameters
    ----------
    trace
        A trace whose communication is matched across ranks.
    bandwidth_gbs
        Bandwidth of a link, 10^9 bytes a second.
    latency_ns
        Of each step of a ring.
    ranks
        Size of all groups; that of each if 0. What each rank puts in stays.

    Returns
    -------
    Array
        Nanoseconds, one value a node; -1 of nodes that do not communicate, and where kind, size or
        members are unknown.
    """
    times = communication_times(trace)
    transfer = np.full(trace.nodes.num_rows, -1, np.int64)
    matched = np.flatnonzero(times.instance >= 0)
    if not matched.size:
        return transfer
    instances, instance = times.instances, times.instance[matched]
    n = np.full_like(instances.group_size, ranks) if ranks else instances.group_size
    size = _sizes_in_groups(instances, times.kinds, n)
    moved = size * sizes.bandwidth_factors(instances.kind, times.kinds, n)
    steps = sizes.ring_steps(instances.kind, times.kinds, n)
    with np.errstate(invalid="ignore"):
        ns = np.rint(moved / bandwidth_gbs + steps * latency_ns)
    known = (size >= 0) & ~np.isnan(ns)
    per_instance = np.where(known, np.where(np.isnan(ns), 0, ns), -1).astype(np.int64)
    transfer[times.row[matched]] = per_instance[instance]
    return transfer


def _sizes_in_groups(instances: Instances, kinds: tuple[str, ...], n: Array) -> Array:
    """Sizes in groups of n ranks of which each puts in as much: an all-gather has n times that."""
    gathers = np.isin(
        instances.kind, [k for k, kind in enumerate(kinds) if kind == Collective.ALL_GATHER]
    )
    own = instances.size // np.maximum(instances.group_size, 1)
    return np.where(gathers & (instances.size >= 0), own * n, instances.size)
