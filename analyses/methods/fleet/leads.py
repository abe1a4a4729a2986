"""Time by which GPUs are ahead of each other: the same kernels on all ranks, by their starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.communication import stages
from chopper_interop.analyses.methods.communication.stage_times import StageTimes
from chopper_interop.arrays import Array, gather
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.trace import Trace


class Lead(NamedTuple):
    """Lead of a rank over the last of its peers.

    Parameters
    ----------
    kernels
        Number of its kernels that all peers have as well.
    total_ns, median_ns
        Over these, the time by which each started before the last rank's: sum and median (of an
        even number the lower).
    last
        Number of them that this rank was the last to start.
    """

    kernels: int
    total_ns: int
    median_ns: int
    last: int


def peer_groups(trace: Trace) -> dict[int, int]:
    """A number for each rank that it shares with those that do the same: its stage, else 0."""
    number_of = dict.fromkeys(trace.ranks, 0)
    if not stages.is_exchange(trace).any():
        return number_of
    for line in stages.find_pipelines(trace, StageTimes(trace).first_starts()):
        for number, same in enumerate(line.stages):
            number_of |= dict.fromkeys(same, number)
    return number_of


def rank_leads(
    trace: Trace, rows: Array, period: Array, peer: Mapping[int, int]
) -> dict[tuple[int, int], Lead]:
    """Leads of each rank in each period; of ranks alone there are none.

    Kernels are the same that have the same name and are the same one of that name in their training
    step (without steps, in their period). Names whose counts differ among peers are left out.

    Parameters
    ----------
    trace
        Ranks on one clock.
    rows
        Nodes; of these, kernels that compute count.
    period
        The step, or other period of time, that each belongs to.
    peer
        Number of each rank: those with equal numbers are compared.
    """
    kernel = trace.array("kind")[rows] == Kind.KERNEL
    rows, period = rows[kernel], period[kernel].astype(np.int64)
    step = trace.integers("iteration", rows) if trace.has("iteration") else period
    rank = trace.array("rank")[rows]
    ranks = sorted(peer)
    of_rank = np.array([peer[r] for r in ranks], np.int64)
    place = np.searchsorted(ranks, rank)
    result: dict[tuple[int, int], Lead] = {}
    for number in sorted(set(peer.values())):
        members = [r for r in ranks if peer[r] == number]
        of_group = np.flatnonzero(of_rank[place] == number)
        if len(members) > 1 and of_group.size:
            keys = (period[of_group], step[of_group], trace.array("name")[rows[of_group]])
            start = trace.array("ts")[rows[of_group]]
            result |= _of_peers(members, np.searchsorted(members, rank[of_group]), keys, start)
    return result


def _of_peers(
    ranks: list[int], place: Array, keys: tuple[Array, ...], start: Array
) -> dict[tuple[int, int], Lead]:
    """Leads of ranks that do the same; `place` is that of each kernel's rank among them."""
    count = len(ranks)
    first, code = gather.distinct(*keys)
    count_of_rank = np.bincount(code * count + place, minlength=len(first) * count).reshape(
        -1, count
    )
    is_everywhere = (count_of_rank == count_of_rank[:, :1]).all(axis=1)
    used = np.flatnonzero(is_everywhere[code])
    key = place[used] * len(first) + code[used]
    order = used[gather.group_rows(key, count * len(first))[1]]  # starts of a rank ascend
    table = start[order].reshape(count, -1)  # each rank has the same kernels in the same order
    period = keys[0][order[: table.shape[1]]]
    lead = table.max(axis=0) - table
    last = _last(table)
    result = {}
    numbers = period[gather.distinct(period)[0]].tolist() if period.size else []
    has_several = len(numbers) > 1
    for number in numbers:
        these = period == number if has_several else slice(None)
        part = lead[:, these]
        at = (part.shape[1] - 1) // 2
        middle = np.partition(part, at, axis=1)[:, at]
        for i, rank in enumerate(ranks):
            result[rank, number] = Lead(
                part.shape[1], int(part[i].sum()), int(middle[i]), int(last[i, these].sum())
            )
    return result


def _last(table: Array) -> Array:
    """Mark the rank that alone was the last to start each kernel."""
    is_last = table == table.max(axis=0)
    return is_last & (is_last.sum(axis=0) == 1)
