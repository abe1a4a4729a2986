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

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.communication import sizes
from chopper_interop.analyses.methods.communication.times import (
    CommunicationTimes,
    communication_times,
)
from chopper_interop.arrays import Array, gather
from chopper_interop.schemas.collectives import BUS_FACTORS
from chopper_interop.schemas.kinds import Collective
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.instances import Instances


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
    rings = _rings(times, ranks)
    ns = np.rint(rings.moved / bandwidth_gbs + rings.steps * latency_ns)
    per_instance = np.where(rings.moved >= 0, ns, -1).astype(np.int64)
    transfer[times.row[matched]] = per_instance[times.instance[matched]]
    return transfer


class _Rings(NamedTuple):
    """Bytes that each link carries for each instance, -1 where unknown, and steps one after the other."""

    moved: Array
    steps: Array


def _rings(times: CommunicationTimes, ranks: int) -> _Rings:
    """Rings of the instances in groups of so many ranks; of their own size if 0."""
    instances = times.instances
    n = np.full_like(instances.group_size, ranks) if ranks else instances.group_size
    size = _sizes_in_groups(instances, times.kinds, n)
    moved = size * sizes.bandwidth_factors(instances.kind, times.kinds, n)
    steps = sizes.ring_steps(instances.kind, times.kinds, n)
    return _Rings(np.where((size >= 0) & ~np.isnan(moved), moved, -1), steps)


class Regrouped(NamedTuple):
    """Collectives that all ranks of a group share, in groups of another size.

    Parameters
    ----------
    row
        Rows of the trace's nodes, of which the rest has a value each.
    group
        Number of their kind and group's size.
    size, transfer_ns
        Bytes, and nanoseconds from the last member's start to the last end.
    steps
        Of a ring one after the other, as measured.
    moved_ratio, steps_ratio
        Bytes that each link carries, and steps, in the other group by those in its own.
    """

    row: Array
    group: Array
    size: Array
    transfer_ns: Array
    steps: Array
    moved_ratio: Array
    steps_ratio: Array


def regrouped(trace: Trace, ranks: int) -> Regrouped:
    """Collectives of known kind and size, in groups of so many ranks: what each rank puts in stays."""
    times = communication_times(trace)
    own, other = _rings(times, 0), _rings(times, ranks)
    instances = times.instances
    shared = [k for k, kind in enumerate(times.kinds) if BUS_FACTORS.get(kind, (0, False))[1]]
    known = np.isin(instances.kind, shared) & (own.moved > 0) & (own.steps > 0)
    matched = np.flatnonzero(times.instance >= 0)
    matched = matched[known[times.instance[matched]]]
    one = times.instance[matched]
    _, group = gather.distinct(instances.kind[one], instances.group_size[one])
    return Regrouped(
        times.row[matched], group, instances.size[one], instances.transfer[one], own.steps[one],
        other.moved[one] / own.moved[one], other.steps[one] / own.steps[one],
    )  # fmt: skip


def _sizes_in_groups(instances: Instances, kinds: tuple[str, ...], n: Array) -> Array:
    """Sizes in groups of n ranks of which each puts in as much: an all-gather has n times that."""
    gathers = np.isin(
        instances.kind, [k for k, kind in enumerate(kinds) if kind == Collective.ALL_GATHER]
    )
    own = instances.size // np.maximum(instances.group_size, 1)
    return np.where(gathers & (instances.size >= 0), own * n, instances.size)
