"""By how much GPUs are ahead of each other: the same kernels on all ranks, by their starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.communication import stages
from chopper_interop.communication.stage_times import StageTimes
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


class Lead(NamedTuple):
    """How far a rank is ahead of the last of its peers.

    Parameters
    ----------
    kernels
        So many of its kernels all peers have as well.
    total_ns, median_ns
        Over these, how much sooner each started than on the last rank: sum and median (of an even
        number the lower).
    last
        Of how many it was the last to start.
    """

    kernels: int
    total_ns: int
    median_ns: int
    last: int


def peers(trace: Trace) -> dict[int, int]:
    """A number for each rank that it shares with those that do the same: its stage, else 0."""
    found = dict.fromkeys(trace.ranks, 0)
    if not stages.exchanges(trace).any():
        return found
    for line in stages.pipelines(trace, StageTimes(trace).began()):
        for number, same in enumerate(line.stages):
            found |= dict.fromkeys(same, number)
    return found


def of(
    trace: Trace, rows: Array, unit: Array, peer: Mapping[int, int]
) -> dict[tuple[int, int], Lead]:
    """Leads of each rank in each unit of time; of ranks alone there are none.

    Kernels are the same that have the same name and are the same one of that name in their training
    step (without steps, in their unit). Names that peers have not equally often are left out.

    Parameters
    ----------
    trace
        Ranks on one clock.
    rows
        Nodes; of these, kernels that compute count.
    unit
        Which step, or other unit of time, each belongs to.
    peer
        Number of each rank: those with equal numbers are compared.
    """
    kernel = trace.array("kind")[rows] == Kind.KERNEL
    rows, unit = rows[kernel], unit[kernel].astype(np.int64)
    step = unit
    if "iteration" in trace.nodes.column_names:
        step = arrow.numbers(trace.nodes["iteration"], -1)[rows].astype(np.int64)
    rank = trace.array("rank")[rows]
    every = sorted(peer)
    of_rank = np.array([peer[r] for r in every], np.int64)
    place = np.searchsorted(every, rank)
    found: dict[tuple[int, int], Lead] = {}
    for number in sorted(set(peer.values())):
        mine = [r for r in every if peer[r] == number]
        which = np.flatnonzero(of_rank[place] == number)
        if len(mine) > 1 and which.size:
            keys = (unit[which], step[which], trace.array("name")[rows[which]])
            start = trace.array("ts")[rows[which]]
            found |= _of_peers(mine, np.searchsorted(mine, rank[which]), keys, start)
    return found


def _of_peers(
    ranks: list[int], place: Array, keys: tuple[Array, ...], start: Array
) -> dict[tuple[int, int], Lead]:
    """Leads of ranks that do the same; `place` is that of each kernel's rank among them."""
    count = len(ranks)
    first, code = gather.distinct(*keys)
    often = np.bincount(code * count + place, minlength=len(first) * count).reshape(-1, count)
    whole = (often == often[:, :1]).all(axis=1)
    used = np.flatnonzero(whole[code])
    key = place[used] * len(first) + code[used]
    order = used[gather.places(key, count * len(first))[1]]  # starts of a rank ascend
    table = start[order].reshape(count, -1)  # each rank has the same kernels in the same order
    unit = keys[0][order[: table.shape[1]]]
    lead = table.max(axis=0) - table
    last = _last(table)
    found = {}
    numbers = unit[gather.distinct(unit)[0]].tolist() if unit.size else []
    several = len(numbers) > 1
    for number in numbers:
        these = unit == number if several else slice(None)
        part = lead[:, these]
        at = (part.shape[1] - 1) // 2
        middle = np.partition(part, at, axis=1)[:, at]
        for i, rank in enumerate(ranks):
            found[rank, number] = Lead(
                part.shape[1], int(part[i].sum()), int(middle[i]), int(last[i, these].sum())
            )
    return found


def _last(table: Array) -> Array:
    """Which rank started each alone as the last."""
    most = table == table.max(axis=0)
    return most & (most.sum(axis=0) == 1)
