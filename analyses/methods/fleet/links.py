"""Links between ranks: the sets of ranks that communicate, and those that transfer slower than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts
from chopper_interop.arrays import Array, gather

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.fleet.slowdowns import Slowdowns


@dataclass(frozen=True)
class LinkedRanks:
    """Sets of ranks that communicate.

    Parameters
    ----------
    ranks
        Ranks of each.
    code
        For each of `JobReplay.edge` the link over which it transfers; -1 for other work.
    others_ns
        For each edge the median time of such transfers over the other links; its own without any.
    compared
        Mask of the edges of which there are such transfers.
    instances
        Number of communications over each.
    """

    ranks: tuple[tuple[int, ...], ...]
    code: Array
    others_ns: Array
    compared: Array
    instances: Array


def links(slowdowns: Slowdowns) -> LinkedRanks:
    """Links of a job: one for each set of ranks that take part in a communication."""
    replay = slowdowns.replay
    trace, node = replay.trace, replay.node
    number = trace.integers("instance", node)
    matched = np.flatnonzero(number >= 0)
    code = np.full(len(node), -1, np.int64)
    if not matched.size:
        return LinkedRanks(
            (), code, replay.own_ns, np.zeros(len(node), bool), np.zeros(0, np.int64)
        )
    first, instance = gather.distinct(number[matched])
    members: list[set[int]] = [set() for _ in first]
    rank = trace.array("rank")[node[matched]]
    pair, _ = gather.distinct(instance, rank)
    for k, r in zip(instance[pair].tolist(), rank[pair].tolist(), strict=True):
        members[k].add(r)
    sets: dict[tuple[int, ...], int] = {}
    link = np.array([sets.setdefault(tuple(sorted(m)), len(sets)) for m in members], np.int64)
    single = np.array([len(ranks) < 2 for ranks in sets], bool)  # noqa: PLR2004
    of_edge = link[instance]
    code[matched] = np.where(single[of_edge], -1, of_edge)
    comparable = np.where(code >= 0, slowdowns.types.group, -1)
    # links between as many ranks are comparable, whichever ranks these are
    size = np.array([len(ranks) for ranks in sets], np.int64)
    _, group = gather.distinct(comparable, np.where(code >= 0, size[np.maximum(code, 0)], -1))
    group = np.where(code >= 0, group, -1)
    others, count = counterparts.group_medians(replay.own_ns, group, apart=code, between=True)
    return LinkedRanks(
        tuple(sets), code, others, (code >= 0) & (count > 0), np.bincount(link, minlength=len(sets))
    )
