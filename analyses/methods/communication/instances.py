"""Instances of communication over all their members: starts, ends, ranks and sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop import number_ranges
from chopper_interop.analyses.methods.communication import sizes as collective_sizes
from chopper_interop.arrays import Array, gather
from chopper_interop.clocks.hosts import REFERENCE
from chopper_interop.clocks.relations import rank_of
from chopper_interop.schemas.kinds import POINT_TO_POINT, Collective
from chopper_interop.trace import Trace

UNKNOWN = -1
"""In place of a time, size or number that is not known."""


@dataclass(frozen=True)
class Instances:
    """Collectives, and pairs of a send and a receive, with members on two ranks or more.

    Parameters
    ----------
    number
        Number in the column `instance`.
    kind
        Kind as a number among `Members.kinds`; -1 if unknown.
    group
        Row of `groups`, -1 if unknown.
    members, ranks, group_size
        Number of kernels, of ranks that they are of, and of ranks of the process group.
    hosts
        Number of hosts of its ranks; -1 if one of these is not known.
    start, last_start, end
        First start, last start, last end of a member, as ts.
    last
        Member that started last, of equal ones that of the lowest rank; a position in `Times`.
        No rank is late where `late_by` is 0.
    late_by
        Time from the last start of a member of other ranks to its start.
    transfer, transfer_min, transfer_median
        From the last start to the last, first and median (lower of two) end of a member; a member
        that ended before the last start counts 0.
    size, put, got
        Bytes as nccl-tests counts them, put in, and got out; see `communication.sizes`.
    uncertainty
        Uncertainty of its ranks' clocks to each other, plus or minus; -1 if unknown.
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
    """Communication kernels of a trace, column by column.

    Parameters
    ----------
    trace, row
        The trace, and rows of its nodes.
    instance
        Number of the instance from 0 on; -1 where no other rank takes part.
    order
        Positions of those with an instance, by instance, start, and rank from high to low.
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


def build_instances(members: Members, number: Array, sizes: collective_sizes.Sizes) -> Instances:
    """Build the instances of these members.

    Parameters
    ----------
    members
        Members, and their instances.
    number
        Number of each instance in the column `instance`.
    sizes
        Bytes of the members.
    """
    order, count = members.order, len(number)
    # members stand in order of their instance: those of k are from at[k] to stop[k] - 1, and within
    # it they are sorted by start, so that the last one came last
    instance = members.instance[order]
    at = np.searchsorted(instance, np.arange(count))
    stop = np.append(at[1:], len(order))
    last = order[stop - 1] if count else order[:0]
    start, end = members.start[order], (members.start + members.dur)[order]
    last_start = members.start[last]
    kind = _kinds_of(members, last)
    group = members.trace.integers("group", members.row[last])
    of_rank, _ = gather.distinct(instance, members.rank[order]) if count else (at, at)
    ranks = np.bincount(instance[of_rank], minlength=count)
    ends = end[np.lexsort((end, instance))]  # of each instance ascending, at the same positions
    size, put, got = collective_sizes.instance_sizes(sizes, order, at, kind, members.kinds)
    return Instances(
        number=number,
        kind=kind,
        group=group,
        members=stop - at,
        ranks=ranks,
        group_size=_group_sizes(members.trace, group, ranks),
        hosts=_host_counts(members, instance, count),
        start=start[at],
        last_start=last_start,
        end=ends[stop - 1] if count else ends,
        last=last,
        late_by=_late_by(members, instance, last, at),
        transfer=(ends[stop - 1] if count else ends) - last_start,
        transfer_min=np.maximum(ends[at] - last_start, 0),
        transfer_median=np.maximum(ends[(at + stop - 1) // 2] - last_start, 0),
        size=size,
        put=put,
        got=got,
        uncertainty=_uncertainties(members, at),
    )


def _kinds_of(members: Members, last: Array) -> Array:
    """Kinds of instances; a send and a receive are a `send_recv`."""
    kind = members.kind[last]
    ends = [kind_code(members.kinds, name) for name in POINT_TO_POINT]
    return np.where(np.isin(kind, ends), kind_code(members.kinds, Collective.SEND_RECV), kind)


def _group_sizes(trace: Trace, group: Array, present: Array) -> Array:
    """Ranks of each process group: those listed, else all of the trace, at least those present."""
    listed = [len(ranks) or len(trace.ranks) for ranks in trace.groups["ranks"].to_pylist()]
    return np.maximum(np.array([*listed, len(trace.ranks)], np.int64)[group], present)


def _host_counts(members: Members, instance: Array, count: int) -> Array:
    """Number of hosts of each instance's ranks; -1 if one of these is not known."""
    names = {r.rank: r.host for r in members.trace.meta.ranks}
    hosts = sorted(set(names.values()) - {""})
    table = {r: hosts.index(h) if h else -1 for r, h in names.items()}
    host = _by_rank(members.rank[members.order], table)
    if not count:
        return host
    first, _ = gather.distinct(instance, host)
    number = np.bincount(instance[first], minlength=count)
    number[instance[host < 0]] = -1
    return number


def _by_rank(rank: Array, table: dict[int, int]) -> Array:
    """Value of each member's rank; -1 if the table has none."""
    first, code = gather.distinct(rank)
    return np.array([table.get(r, -1) for r in rank[first].tolist()], np.int64)[code]


def _late_by(members: Members, instance: Array, last: Array, at: Array) -> Array:
    """Time from the last start of a member of another rank to that of the last member."""
    start = members.start[members.order]
    others = np.where(
        members.rank[members.order] != members.rank[last][instance], start, np.iinfo(np.int64).min
    )
    return members.start[last] - np.maximum.reduceat(others, at)


def _uncertainties(members: Members, at: Array) -> Array:
    """Largest uncertainty of a member's clock; unknown if that of one is."""
    known = rank_uncertainties(members.trace)
    of_member = _by_rank(members.rank[members.order], known)
    largest = np.maximum.reduceat(of_member, at)
    return np.where(np.minimum.reduceat(of_member, at) < 0, UNKNOWN, largest)


def rank_uncertainties(trace: Trace) -> dict[int, int]:
    """Uncertainty of each rank's clock against the reference clock, plus or minus nanoseconds."""
    known: dict[int, int] = {}
    for fit in trace.meta.clocks:
        rank = rank_of(fit)
        if rank >= 0 and (fit.applied or fit.pairs or fit.reason == REFERENCE):
            known[rank] = max(known.get(rank, 0), fit.uncertainty_ns)
    return known


def ranks_apart(trace: Trace) -> str:
    """Name the ranks whose clock nothing relates to those of others; empty if none is related at all."""
    known = rank_uncertainties(trace)
    apart = [rank for rank in trace.ranks if rank not in known]
    return number_ranges.named("rank", apart) if known and apart else ""


def kind_code(kinds: tuple[str, ...], name: str) -> int:
    """Number of a kind, -2 if it does not occur."""
    return kinds.index(name) if name in kinds else -2


def clock_notes(trace: Trace, figures: str) -> dict[str, str]:
    """Note on how well ranks' clocks are known to each other; none for a single rank.

    Parameters
    ----------
    figures
        Names of the figures that are meaningless below that uncertainty.
    """
    if len(trace.ranks) <= 1:
        return {}
    uncertainties = rank_uncertainties(trace)
    if not uncertainties:
        return {"clocks": "how ranks' clocks relate is not known: times are used as recorded"}
    apart = ranks_apart(trace)
    return {
        "clocks": f"ranks' clocks are known to each other within {max(uncertainties.values())} ns (one "
        f"standard deviation, the worst rank): {figures} below that mean nothing"
        + (f"; nothing relates {apart} to the others" if apart else "")
    }
