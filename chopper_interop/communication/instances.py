"""Collectives as wholes: who has a part in each, when they came, how large it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.clocks.hosts import REFERENCE
from chopper_interop.clocks.relations import rank_of
from chopper_interop.columns import gather
from chopper_interop.communication import sizes as collective_sizes
from chopper_interop.edges import collectives
from chopper_interop.schemas.kinds import Collective

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

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
        Its kind as a number among `Members.kinds`; -1 if unknown.
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
        Nobody is late where `late_by` is 0.
    late_by
        How much later it started than all members of other ranks.
    transfer, transfer_min, transfer_median
        From the last start to the last, first and median (lower of two) end of a member; a member
        that ended before the last start counts 0.
    size, put, got
        Bytes as nccl-tests counts them, put in, and given; see `communication.sizes`.
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
class Members:
    """What communicates, column by column.

    Parameters
    ----------
    trace, row
        Rows of which trace they are.
    instance
        Number of the collective from 0 on; -1 of what no other rank has a part in.
    order
        Those that are matched, by instance, start, and rank from high to low.
    """

    trace: Trace
    row: Array
    rank: Array
    start: Array
    dur: Array
    kind: Array
    kinds: tuple[str, ...]
    instance: Array
    order: Array


def of(found: Members, number: Array, sizes: collective_sizes.Sizes) -> Instances:
    """Collectives of these members.

    Parameters
    ----------
    found
        Members, and in what order they make collectives.
    number
        What each collective is called in the column `instance`.
    sizes
        Bytes of the members.
    """
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


def _kinds_of(found: Members, last: Array) -> Array:
    """Kinds of instances; a send and a receive are a `send_recv`."""
    kind = found.kind[last]
    ends = [code_of(found.kinds, name) for name in (Collective.SEND, Collective.RECV)]
    return np.where(np.isin(kind, ends), code_of(found.kinds, Collective.SEND_RECV), kind)


def _group_sizes(trace: Trace, group: Array, present: Array) -> Array:
    listed = [len(ranks) or len(trace.ranks) for ranks in trace.groups["ranks"].to_pylist()]
    return np.maximum(np.array([*listed, len(trace.ranks)], np.int64)[group], present)


def _hosts(found: Members, instance: Array, count: int) -> Array:
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


def _leads(found: Members, instance: Array, last: Array, at: Array) -> Array:
    """By how much the last member started after those of other ranks."""
    if not len(at):
        return at
    start = found.start[found.order]
    others = np.where(
        found.rank[found.order] != found.rank[last][instance], start, np.iinfo(np.int64).min
    )
    return found.start[last] - np.maximum.reduceat(others, at)


def _uncertainties(found: Members, at: Array) -> Array:
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


def code_of(kinds: tuple[str, ...], name: str) -> int:
    """Number of a kind, -2 if it does not occur."""
    return kinds.index(name) if name in kinds else -2
