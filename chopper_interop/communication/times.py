"""Of matched communication: who waited for whom, and how long the transfer itself took.

No member of a synchronising collective gets on before the last has come: until then it waits, from
then on it transfers. Of collectives with a root, receivers wait for the root, and the root of a
reduce or gather for the last of the others; a receive waits for its send. Whoever sends waits only
where that shows: if it ends after the other side has come, it stood until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.communication import instances as collective_instances
from chopper_interop.communication import sizes as collective_sizes
from chopper_interop.communication.instances import UNKNOWN, Instances, Members, code_of
from chopper_interop.edges import collectives
from chopper_interop.schemas.kinds import Collective, Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Times:
    """All that communicates, in order of rank and start.

    Parameters
    ----------
    row
        Rows of the trace's nodes.
    kind
        Number among `kinds`; -1 if unknown.
    instance
        Place in `instances`; -1 of what no other rank has a part in.
    wait, transfer
        Parts of its duration, which they add up to; -1 where nothing tells them.
    waited_for
        Place of the member that it waited for; -1 if it did not.
    is_early
        Whether it ended before that for which it must have waited: clocks differ by more, or it is
        not what it was taken for.
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


def of(trace: Trace) -> Times:
    """Waiting and transfer of all communication of a trace; found out once for each.

    Parameters
    ----------
    trace
        Any trace; without the column `instance` nothing is known of either.
    """
    return trace.kept("collective_times", _times)


def _times(trace: Trace) -> Times:
    row = np.flatnonzero(trace.array("kind") == Kind.COMM)
    kind, kinds = collectives.coded(trace, "collective", row)
    if Collective.SEND_RECV not in kinds:
        kinds = (*kinds, Collective.SEND_RECV)
    rank = trace.array("rank")[row].astype(np.int64)
    start, dur = trace.array("ts")[row], trace.array("dur")[row]
    stated = collectives.numbers(trace, "instance", row)
    instance, number = _shared(stated, rank)
    which = np.flatnonzero(instance >= 0)
    sizes = collective_sizes.of_members(trace, row, kind == code_of(kinds, Collective.ALL_TO_ALL))
    order = which[np.lexsort((-rank[which], start[which], instance[which]))]
    found = Members(trace, row, rank, start, dur, kind, kinds, instance, order)
    instances = collective_instances.of(found, number, sizes)
    wait, waited_for, early = _waits(found, instances)
    transfer = np.where(wait >= 0, dur - wait, UNKNOWN)
    return Times(
        row, rank, start, dur, kind, sizes.size, instance, wait, transfer, waited_for, early, kinds,
        instances,
    )  # fmt: skip


def _shared(stated: Array, rank: Array) -> tuple[Array, Array]:
    """Instances from 0 on of members, and what number is stated of each; -1 if of one rank alone."""
    known = np.flatnonzero(stated >= 0)
    instance = np.full(len(stated), -1, np.int64)
    if not known.size:
        return instance, stated[:0]
    first, code = gather.distinct(stated[known])
    pair, _ = gather.distinct(code, rank[known])
    several = np.bincount(code[pair], minlength=len(first)) > 1
    number = np.cumsum(several) - 1
    instance[known] = np.where(several[code], number[code], -1)
    return instance, stated[known][first][several]


def _waits(found: Members, instances: Instances) -> tuple[Array, Array, Array]:
    """Of each member how long it waited, for which member, and whether it ended too soon for that."""
    awaited, only_if_seen = _awaited(found, instances)
    until = found.start[np.maximum(awaited, 0)]
    end = found.start + found.dur
    gap = np.maximum(until - found.start, 0)
    wait = np.minimum(gap, found.dur)
    wait[only_if_seen & (end <= until)] = 0
    wait[awaited < 0] = UNKNOWN
    early = (awaited >= 0) & ~only_if_seen & (gap > found.dur)
    return wait, np.where(wait > 0, awaited, -1), early


def _awaited(found: Members, instances: Instances) -> tuple[Array, Array]:
    """For which member each waits, and whether it does only if it ends after that has come."""
    n = len(found.row)
    awaited, only_if_seen = np.full(n, -1, np.int64), np.zeros(n, np.bool_)
    which = found.order
    if not which.size:
        return awaited, only_if_seen
    instance, kind = found.instance[which], found.kind[which]
    last = instances.last[instance]

    def of_kinds(*names: str) -> Array:
        return np.isin(kind, [code_of(found.kinds, name) for name in names])

    together = of_kinds(*collectives.TOGETHER) | (kind < 0)
    awaited[which[together]] = last[together]
    for here, there, seen in ((Collective.RECV, Collective.SEND, False),
                              (Collective.SEND, Collective.RECV, True)):  # fmt: skip
        other = np.full(len(instances), -1, np.int64)
        other[instance[of_kinds(there)]] = which[of_kinds(there)]
        mine = which[of_kinds(here)]
        awaited[mine] = other[found.instance[mine]]
        only_if_seen[mine] = seen
    head = _heads(found, instance)
    for kinds, root_waits_if_seen in ((collectives.FROM_ROOT, True), (collectives.TO_ROOT, False)):
        rooted = of_kinds(*kinds) & (head >= 0)
        is_head = which == head
        awaited[which[rooted]] = np.where(is_head, last, head)[rooted]
        only_if_seen[which[rooted]] = (is_head == root_waits_if_seen)[rooted]
    return awaited, only_if_seen


def _heads(found: Members, instance: Array) -> Array:
    """Place of the root of each matched member's collective; -1 if it is not known or not there."""
    row = found.row[found.order]
    head = collectives.roots(found.trace, row, instance)
    place = np.full(found.trace.nodes.num_rows, -1, np.int64)
    place[found.row] = np.arange(len(found.row))
    return np.where(head >= 0, place[head], -1)


def bandwidths(times: Times) -> tuple[Array, Array]:
    """Algorithmic and bus bandwidth of each instance in GB/s (1e9 byte/s); NaN where unknown."""
    them = times.instances
    factor = collective_sizes.factors(them.kind, times.kinds, them.group_size)
    sound = (them.size > 0) & (them.transfer > 0) & (factor != 0)
    speed = np.full(len(them), np.nan)
    speed[sound] = them.size[sound] / them.transfer[sound]
    return speed, speed * factor


def known(values: Array) -> Any:
    """An Arrow array of these, null where they are `UNKNOWN`."""
    return arrow.array(values, mask=values < 0)
