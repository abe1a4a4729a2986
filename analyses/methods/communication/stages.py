"""Pipelines of a job: ranks that hand microbatches on to each other, in the order of their stages.

Ranks are stages of one pipeline if they send to and receive from each other along a line, each to
and from its neighbours only. Where stages hold several parts of a model (interleaved schedules), the
last stage sends to the first as well, and gradients go back the same way: the line is a circle that
is used in both directions. Ranks on a circle that is used in one direction, as in ring attention, are
no pipeline, nor are ranks of which one has more than two neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.schemas.kinds import POINT_TO_POINT, Collective, EdgeKind, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    Links = dict[int, set[int]]

EXCHANGES = (*POINT_TO_POINT, Collective.SEND_RECV)
"""Communication between two ranks."""
_NEIGHBOURS = 2
"""Stages next to one in a pipeline."""
_NEVER = np.iinfo(np.int64).max
_RANGE = re.compile(r"PP:(\d+)(?:[FBIW]|FORWARD|BACKWARD\w*?)(\d+)")
"""Name of a pass in torch.distributed.pipelining: stage, action, microbatch."""


@dataclass(frozen=True)
class Pipeline:
    """Ranks in the order of their stages; several on one stage if they are known by ranges alone."""

    stages: tuple[tuple[int, ...], ...]
    by_ranges: bool = False

    @property
    def ranks(self) -> list[int]:
        """All of its ranks."""
        return [rank for stage in self.stages for rank in stage]


def is_exchange(trace: Trace) -> Array:
    """Mark the nodes that are sends or receives."""
    return (trace.array("kind") == Kind.COMM) & trace.is_text("collective", EXCHANGES)


def first_kernel_starts(trace: Trace) -> dict[int, int]:
    """First start of a kernel of each rank that has one, in whatever step, nanoseconds."""
    computes, ts = trace.array("kind") == Kind.KERNEL, trace.array("ts")
    return {
        rank: int(ts[rows][computes[rows]].min())
        for rank, rows in trace.rank_rows.items()
        if computes[rows].any()
    }


def complete_pipelines(trace: Trace, first_starts: Mapping[int, int]) -> list[Pipeline]:
    """Pipelines of which the trace has all ranks: of a part, neither windows nor the number of stages are known."""
    present = set(trace.ranks)
    return [line for line in find_pipelines(trace, first_starts) if present >= set(line.ranks)]


def find_pipelines(trace: Trace, first_starts: Mapping[int, int]) -> list[Pipeline]:
    """Pipelines of a trace, with the neighbours that it lacks.

    They follow from the peers that sends state, else from ranges that name stages, else from the receives
    that sends are matched with.

    Parameters
    ----------
    first_starts
        Time at which each rank first computed: of the two ends of a line the first stage begins
        sooner. Of a line of which a rank's time is not known it is that of the lower number.
    """
    if lines := _pipelines(_links(trace, trace.integers("peer")), first_starts):
        return lines
    named = pass_ranges(trace)
    numbers = sorted({stage for stage, _ in named.values()})
    if len(numbers) < _NEIGHBOURS:
        return _pipelines(_links(trace, _peers(trace)), first_starts)
    stages = (tuple(r for r, (stage, _) in sorted(named.items()) if stage == n) for n in numbers)
    return [Pipeline(tuple(stages), by_ranges=True)]


def _pipelines(groups: list[Links], first_starts: Mapping[int, int]) -> list[Pipeline]:
    """Pipelines of the ranks that send to each other."""
    pipelines: list[Pipeline] = []
    assigned: set[int] = set()
    for links in groups:
        for line in _lines(links, first_starts):
            if not assigned & set(line):
                assigned |= set(line)
                pipelines.append(Pipeline(tuple((rank,) for rank in line)))
    return sorted(pipelines, key=lambda pipeline: pipeline.stages)


def pass_ranges(trace: Trace) -> dict[int, tuple[int, int]]:
    """Stage and number of microbatches of each rank whose ranges name them (``PP:0F1``).

    A rank that has several stages is of the first of them.
    """
    passes = [_RANGE.fullmatch(name) for name in trace.names()]
    stage = np.array([int(t[1][-9:]) if t else -1 for t in passes] + [-1])
    batch = np.array([int(t[2][-9:]) if t else -1 for t in passes] + [-1])
    name = trace.array("name")
    rows = np.flatnonzero((trace.array("kind") == Kind.ANNOTATION) & (stage[name] >= 0))
    by_rank: dict[int, tuple[int, int]] = {}
    rank = trace.array("rank")[rows]
    for r in np.unique(rank).tolist():
        names = name[rows[rank == r]]
        by_rank[r] = int(stage[names].min()), len(np.unique(batch[names]))
    return by_rank


def _links(trace: Trace, peers: Array) -> list[Links]:
    """Ranks to which each rank sends, for each process group whose ranks exchange something.

    Parameters
    ----------
    peers
        Rank at the other end of each node; -1 if unknown.
    """
    directed = (trace.array("kind") == Kind.COMM) & trace.is_text("collective", POINT_TO_POINT)
    rows = np.flatnonzero(directed & (peers >= 0))
    peer, group = peers[rows], trace.integers("group", rows)
    rank, sends = trace.array("rank")[rows], trace.is_text("collective", (Collective.SEND,), rows)
    first, _ = gather.distinct(group, rank, peer, sends)
    members = [tuple(g["ranks"]) for g in trace.groups.to_pylist()]
    by_group: dict[tuple[int, ...], Links] = {}
    for i in first.tolist():
        links = by_group.setdefault(members[group[i]] if group[i] >= 0 else (), {})
        source, target = int(rank[i]), int(peer[i])
        if not sends[i]:
            source, target = target, source
        if source != target:
            links.setdefault(source, set()).add(target)
            links.setdefault(target, set())
    return list(by_group.values())


def _peers(trace: Trace) -> Array:
    """Rank at the other end of each node: as stated, else that of the message's other member; else -1."""
    peer = trace.integers("peer")
    src, dst = trace.array("src", "edges"), trace.array("dst", "edges")
    message = (trace.array("kind", "edges") == EdgeKind.COMM) & (peer[src] < 0)
    message &= trace.is_text("collective", (Collective.SEND,))[src]
    rank = trace.array("rank")
    peer[src[message]] = rank[dst[message]]
    return peer


def _lines(links: Links, first_starts: Mapping[int, int]) -> list[list[int]]:
    """Lines of ranks, in the order of their stages."""
    neighbours = {
        rank: targets | {source for source, sent_to in links.items() if rank in sent_to}
        for rank, targets in links.items()
    }
    lines = []
    left = set(links)
    while left:
        part = _connected(neighbours, min(left))
        left -= part
        ends = [rank for rank in part if len(neighbours[rank]) < _NEIGHBOURS]
        both_ways_round = not ends and all(links[r] == neighbours[r] for r in part)
        if max(len(neighbours[r]) for r in part) <= _NEIGHBOURS and (ends or both_ways_round):
            starts = first_starts if part <= first_starts.keys() else {}
            first = min(ends or part, key=lambda rank: (starts.get(rank, _NEVER), rank))
            lines.append(_line_from(neighbours, first, starts))
    return lines


def _connected(neighbours: Links, first: int) -> set[int]:
    """All ranks that can be reached from one."""
    part, pending = {first}, [first]
    while pending:
        new = neighbours[pending.pop()] - part
        part |= new
        pending += new
    return part


def _line_from(neighbours: Links, first: int, first_starts: Mapping[int, int]) -> list[int]:
    """Ranks from neighbour to neighbour; on a circle towards the one that began sooner."""
    line = [first]
    while new := neighbours[line[-1]] - set(line):
        line.append(min(new, key=lambda rank: (first_starts.get(rank, _NEVER), rank)))
    return line
