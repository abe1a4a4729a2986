"""Waiting and transfer of matched communication: which member waited for which, and for how long.

No member of a synchronising collective gets on before the last has come: until then it waits, from
then on it transfers. Of collectives with a root, receivers wait for the root, and the root of a
reduce or gather for the last of the others; a receive waits for its send. A member that sends waits
only where that shows: if it ends after the other side has come, it waited until then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop import rank_batches
from chopper_interop.analyses.methods.communication import instances as collective_instances
from chopper_interop.analyses.methods.communication import sizes as collective_sizes
from chopper_interop.analyses.methods.communication.instances import (
    UNKNOWN,
    Instances,
    Members,
    kind_code,
)
from chopper_interop.arrays import Array, gather
from chopper_interop.edges import collectives
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.trace import Trace


@dataclass(frozen=True)
class CommunicationTimes:
    """All communication kernels of a trace, in order of rank and start.

    Parameters
    ----------
    row
        Rows of the trace's nodes.
    kind
        Number among `kinds`; -1 if unknown.
    instance
        Position in `instances`; -1 where no other rank takes part.
    wait, transfer
        Parts of its duration, which they add up to; -1 where unknown.
    waited_for
        Position of the member that it waited for; -1 if it did not.
    is_early
        Mask of members that ended before that for which they must have waited: clocks differ by
        more than that, or the instance is wrong.
    """

    row: Array
    rank: Array
    start: Array
    dur: Array
    kind: Array
    size: Array
    instance: Array
    wait: Array
    transfer: Array
    waited_for: Array
    is_early: Array
    kinds: tuple[str, ...]
    instances: Instances


def communication_times(trace: Trace) -> CommunicationTimes:
    """Waiting and transfer of all communication of a trace, found once for each.

    Without the column `instance` both are unknown.
    """
    return trace.cached("collective_times", _find_times)


def _find_times(trace: Trace) -> CommunicationTimes:
    row = rank_batches.rows_where(trace, "kind", lambda kind: kind == Kind.COMM)
    kind, kinds = trace.texts("collective", row)
    if Collective.SEND_RECV not in kinds:
        kinds = (*kinds, Collective.SEND_RECV)
    rank = trace.array("rank")[row].astype(np.int64)
    start, dur = trace.array("ts")[row], trace.array("dur")[row]
    column = trace.integers("instance", row)
    instance, number = _shared(column, rank)
    matched = np.flatnonzero(instance >= 0)
    sizes = collective_sizes.member_sizes(
        trace, row, kind == kind_code(kinds, Collective.ALL_TO_ALL)
    )
    order = matched[np.lexsort((-rank[matched], start[matched], instance[matched]))]
    members = Members(trace, row, rank, start, dur, kind, kinds, instance, order)
    instances = collective_instances.build_instances(members, number, sizes)
    wait, waited_for, early = _waits(members, instances)
    transfer = np.where(wait >= 0, dur - wait, UNKNOWN)
    return CommunicationTimes(
        row, rank, start, dur, kind, sizes.size, instance, wait, transfer, waited_for, early, kinds,
        instances,
    )  # fmt: skip


def _shared(column: Array, rank: Array) -> tuple[Array, Array]:
    """Number each member's instance from 0 on, -1 if of one rank alone; and the column's number of each."""
    known = np.flatnonzero(column >= 0)
    instance = np.full(len(column), -1, np.int64)
    first, code = gather.distinct(column[known])
    pair, _ = gather.distinct(code, rank[known])
    several = np.bincount(code[pair], minlength=len(first)) > 1
    number = np.cumsum(several) - 1
    instance[known] = np.where(several[code], number[code], -1)
    return instance, column[known][first][several]


def _waits(members: Members, instances: Instances) -> tuple[Array, Array, Array]:
    """Wait of each member, the member that it waited for, and a mask of those that ended too soon."""
    awaited, only_if_seen = _awaited(members, instances)
    until = members.start[np.maximum(awaited, 0)]
    end = members.start + members.dur
    gap = np.maximum(until - members.start, 0)
    wait = np.minimum(gap, members.dur)
    wait[only_if_seen & (end <= until)] = 0
    wait[awaited < 0] = UNKNOWN
    early = (awaited >= 0) & ~only_if_seen & (gap > members.dur)
    return wait, np.where(wait > 0, awaited, -1), early


def _awaited(members: Members, instances: Instances) -> tuple[Array, Array]:
    """Member that each waits for, and a mask of those that do only if they end after it has come."""
    n = len(members.row)
    awaited, only_if_seen = np.full(n, -1, np.int64), np.zeros(n, np.bool_)
    order = members.order
    if not order.size:
        return awaited, only_if_seen
    instance, kind = members.instance[order], members.kind[order]
    last = instances.last[instance]

    def of_kinds(*names: str) -> Array:
        return np.isin(kind, [kind_code(members.kinds, name) for name in names])

    together = collectives.waits_together(kind, members.kinds)
    awaited[order[together]] = last[together]
    for waiting, opposite, seen in ((Collective.RECV, Collective.SEND, False),
                              (Collective.SEND, Collective.RECV, True)):  # fmt: skip
        counterpart = np.full(len(instances), -1, np.int64)
        counterpart[instance[of_kinds(opposite)]] = order[of_kinds(opposite)]
        rows = order[of_kinds(waiting)]
        awaited[rows] = counterpart[members.instance[rows]]
        only_if_seen[rows] = seen
    head = _heads(members, instance)
    for kinds, root_waits_if_seen in ((collectives.FROM_ROOT, True), (collectives.TO_ROOT, False)):
        rooted = of_kinds(*kinds) & (head >= 0)
        is_head = order == head
        awaited[order[rooted]] = np.where(is_head, last, head)[rooted]
        only_if_seen[order[rooted]] = (is_head == root_waits_if_seen)[rooted]
    return awaited, only_if_seen


def _heads(members: Members, instance: Array) -> Array:
    """Position of the root of each matched member's collective; -1 if unknown or not in the trace."""
    row = members.row[members.order]
    head = collectives.collective_roots(members.trace, row, instance)
    return gather.find(members.row, head)


def bandwidths(times: CommunicationTimes) -> tuple[Array, Array]:
    """Algorithmic and bus bandwidth of each instance in GB/s (1e9 byte/s); NaN where unknown."""
    instances = times.instances
    factor = collective_sizes.bandwidth_factors(instances.kind, times.kinds, instances.group_size)
    known = (instances.size > 0) & (instances.transfer > 0) & (factor != 0)
    speed = np.full(len(instances), np.nan)
    speed[known] = instances.size[known] / instances.transfer[known]
    return speed, speed * factor
