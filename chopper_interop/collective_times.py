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

from chopper_interop import arrow, collective_sizes, collectives, gather
from chopper_interop.clocks import rank_of
from chopper_interop.host_clocks import REFERENCE
from chopper_interop.schemas.kinds import Collective, Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

UNKNOWN = -1
"""Stands for a time, size or number that is not known."""


@dataclass(frozen=True)
class Instances:
    """Collectives, and pairs of a send and a receive, of which two ranks or more have members.

    Parameters
    ----------
    number
        As the column `instance` has it.
    kind
        Its kind as a number among `Times.kinds`; -1 if unknown.
    group
        Row of `groups`, -1 if unknown.
    members, ranks, group_size
        Kernels, ranks that they are of, and ranks of the process group.
    hosts
        So many hosts its ranks are on; -1 if that is not known of each.
    start, last_start, end
        First start, last start, last end of a member, as ts.
    last
        Which member started last, of equal ones that of the lowest rank; a place in `Times`.
    late_by
        How much later it started than all members of other ranks.
    transfer, transfer_min, transfer_median
        From the last start to the last, first and median (lower of two) end of a member; a member
        that ended before the last start counts 0.
    size, put, got
        Bytes as nccl-tests counts them, put in, and given; see `collective_sizes`.
    uncertainty
        Of the times of its ranks' clocks to each other, plus or minus this; -1 if unknown.
    """

    number: Array
    kind: Array
    group: Array
    members: Array
    ranks: Array
    group_size: Array
    hosts: Array
    start: Array
    last_start: Array
    end: Array
    last: Array
    late_by: Array
    transfer: Array
    transfer_min: Array
    transfer_median: Array
    size: Array
    put: Array
    got: Array
    uncertainty: Array

    def __len__(self) -> int:
        return len(self.number)


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
    """Waiting and transfer of all communication of a trace.

    Parameters
    ----------
    trace
        Any trace; without the column `instance` nothing is known of either.
    """
    row = np.flatnonzero(trace.array("kind") == Kind.COMM)
    kind, kinds = collectives.coded(trace, "collective", row)
    if Collective.SEND_RECV not in kinds:
        kinds = (*kinds, Collective.SEND_RECV)
    rank = trace.array("rank")[row].astype(np.int64)
    start, dur = trace.array("ts")[row], trace.array("dur")[row]
    stated = collectives.numbers(trace, "instance", row)
    instance, number = _shared(stated, rank)
    which = np.flatnonzero(instance >= 0)
    sizes = collective_sizes.of_members(trace, row, kind == _code(kinds, Collective.ALL_TO_ALL))
    order = which[np.lexsort((-rank[which], start[which], instance[which]))]
    found = _Found(trace, row, rank, start, dur, kind, kinds, instance, order)
    instances = _instances(found, number, sizes)
    wait, waited_for, early = _waits(found, instances)
    transfer = np.where(wait >= 0, dur - wait, UNKNOWN)
    return Times(
        row, rank, start, dur, kind, sizes.size, instance, wait, transfer, waited_for, early, kinds,
        instances,
    )  # fmt: skip


@dataclass(frozen=True)
class _Found:
    """Members; `order` has those that are matched, by instance, start and rank from high to low."""

    trace: Trace
    row: Array
    rank: Array
    start: Array
    dur: Array
    kind: Array
    kinds: tuple[str, ...]
    instance: Array
    order: Array


def _code(kinds: tuple[str, ...], name: str) -> int:
    return kinds.index(name) if name in kinds else -2


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


def _instances(found: _Found, number: Array, sizes: collective_sizes.Sizes) -> Instances:
    order, count = found.order, len(number)
    instance = found.instance[order]
    at = np.searchsorted(instance, np.arange(count))
    stop = np.append(at[1:], len(order))
    last = order[stop - 1] if count else order[:0]
    start, end = found.start[order], (found.start + found.dur)[order]
    last_start = found.start[last]
    kind = _kinds_of(found, last)
    group = collectives.numbers(found.trace, "group", found.row[last])
    of_rank, _ = gather.distinct(instance, found.rank[order]) if count else (at, at)
    ranks = np.bincount(instance[of_rank], minlength=count)
    ends = end[np.lexsort((end, instance))]
    size, put, got = collective_sizes.of_instances(sizes, order, at, kind, found.kinds)
    return Instances(
        number=number,
        kind=kind,
        group=group,
        members=stop - at,
        ranks=ranks,
        group_size=_group_sizes(found.trace, group, ranks),
        hosts=_hosts(found, instance, count),
        start=start[at],
        last_start=last_start,
        end=ends[stop - 1] if count else ends,
        last=last,
        late_by=_leads(found, instance, last, at),
        transfer=(ends[stop - 1] if count else ends) - last_start,
        transfer_min=np.maximum(ends[at] - last_start, 0),
        transfer_median=np.maximum(ends[(at + stop - 1) // 2] - last_start, 0),
        size=size,
        put=put,
        got=got,
        uncertainty=_uncertainties(found, at),
    )


def _kinds_of(found: _Found, last: Array) -> Array:
    """Kinds of instances; a send and a receive are a `send_recv`."""
    kind = found.kind[last]
    ends = [_code(found.kinds, name) for name in (Collective.SEND, Collective.RECV)]
    return np.where(np.isin(kind, ends), _code(found.kinds, Collective.SEND_RECV), kind)


def _group_sizes(trace: Trace, group: Array, present: Array) -> Array:
    listed = [len(ranks) or len(trace.ranks) for ranks in trace.groups["ranks"].to_pylist()]
    return np.maximum(np.array([*listed, len(trace.ranks)], np.int64)[group], present)


def _hosts(found: _Found, instance: Array, count: int) -> Array:
    names = {r.rank: r.host for r in found.trace.meta.ranks}
    every = sorted(set(names.values()) - {""})
    table = {r: every.index(h) if h else -1 for r, h in names.items()}
    host = _by_rank(found.rank[found.order], table)
    if not count:
        return host
    first, _ = gather.distinct(instance, host)
    hosts = np.bincount(instance[first], minlength=count)
    hosts[instance[host < 0]] = -1
    return hosts


def _by_rank(rank: Array, table: dict[int, int]) -> Array:
    """What is known of each member's rank; -1 if nothing."""
    first, code = gather.distinct(rank)
    return np.array([table.get(r, -1) for r in rank[first].tolist()], np.int64)[code]


def _leads(found: _Found, instance: Array, last: Array, at: Array) -> Array:
    """By how much the last member started after those of other ranks."""
    if not len(at):
        return at
    start = found.start[found.order]
    others = np.where(
        found.rank[found.order] != found.rank[last][instance], start, np.iinfo(np.int64).min
    )
    return found.start[last] - np.maximum.reduceat(others, at)


def _uncertainties(found: _Found, at: Array) -> Array:
    known = uncertainties(found.trace)
    of_each = _by_rank(found.rank[found.order], known)
    if not len(at):
        return of_each
    worst, least = np.maximum.reduceat(of_each, at), np.minimum.reduceat(of_each, at)
    return np.where(least < 0, UNKNOWN, worst)


def uncertainties(trace: Trace) -> dict[int, int]:
    """Of each rank, plus or minus what its clock is known against that of the reference."""
    known: dict[int, int] = {}
    for fit in trace.meta.clocks:
        rank = rank_of(fit)
        if rank >= 0 and (fit.applied or fit.pairs or fit.reason == REFERENCE):
            known[rank] = max(known.get(rank, 0), fit.uncertainty_ns)
    return known


def _waits(found: _Found, instances: Instances) -> tuple[Array, Array, Array]:
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


def _awaited(found: _Found, instances: Instances) -> tuple[Array, Array]:
    """For which member each waits, and whether it does only if it ends after that has come."""
    n = len(found.row)
    awaited, only_if_seen = np.full(n, -1, np.int64), np.zeros(n, np.bool_)
    which = found.order
    if not which.size:
        return awaited, only_if_seen
    instance, kind = found.instance[which], found.kind[which]
    last = instances.last[instance]

    def of_kinds(*names: str) -> Array:
        return np.isin(kind, [_code(found.kinds, name) for name in names])

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


def _heads(found: _Found, instance: Array) -> Array:
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
