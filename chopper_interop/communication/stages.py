"""Pipelines of a job: which ranks hand microbatches on to each other, and in which order.

Ranks are stages of one pipeline if they send to and receive from each other along a line: each
with its neighbours only. Of stages that hold several parts of a model (interleaved schedules) the
last one hands on to the first as well, and gradients go back the same way. What only goes round
in one direction, as in ring attention, is no pipeline, nor is what meets more than two others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.schemas.kinds import Collective, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Links = dict[int, set[int]]

EXCHANGES = (Collective.SEND, Collective.RECV, Collective.SEND_RECV)
"""Communication between two ranks."""
_ENDS = (Collective.SEND, Collective.RECV)
_NEIGHBOURS = 2
_RANGE = re.compile(r"PP:(\d+)(?:[FBIW]|FORWARD|BACKWARD\w*?)(\d+)")
"""How torch.distributed.pipelining calls a pass: stage, action, microbatch."""


@dataclass(frozen=True)
class Pipeline:
    """Ranks in the order of their stages; several on one stage if only their ranges tell it."""

    stages: tuple[tuple[int, ...], ...]
    by_ranges: bool = False

    @property
    def ranks(self) -> list[int]:
        """All of its ranks."""
        return [rank for stage in self.stages for rank in stage]


def valued(trace: Trace, column: str, wanted: Iterable[str]) -> Array:
    """Which nodes have one of these texts in a column; none if the trace lacks it."""
    if column not in trace.nodes.column_names:
        return np.zeros(trace.nodes.num_rows, np.bool_)
    coded = arrow.flat(trace.nodes[column])
    names = coded.dictionary.to_pylist()
    chosen = np.array([name in set(wanted) for name in names] + [False])
    return np.asarray(chosen[arrow.numbers(coded, -1)])


def exchanges(trace: Trace) -> Array:
    """Which nodes are sends or receives."""
    return (trace.array("kind") == Kind.COMM) & valued(trace, "collective", EXCHANGES)


def began(trace: Trace) -> dict[int, int]:
    """When each rank first computed, of those that did, whatever the step."""
    computes, ts = trace.array("kind") == Kind.KERNEL, trace.array("ts")
    return {
        rank: int(ts[rows][computes[rows]].min())
        for rank, rows in trace.rank_rows.items()
        if computes[rows].any()
    }


def pipelines(trace: Trace, began: Mapping[int, int]) -> list[Pipeline]:
    """Pipelines of a trace, by what its ranks send each other, else by ranges that name stages.

    Parameters
    ----------
    trace
        Any trace.
    began
        When each rank first computed: of the two ends of a line the first stage begins sooner.
    """
    found: list[Pipeline] = []
    taken: set[int] = set()
    for links in _links(trace):
        for line in _lines(links, began):
            if not taken & set(line):
                taken |= set(line)
                found.append(Pipeline(tuple((rank,) for rank in line)))
    if found:
        return sorted(found, key=lambda pipeline: pipeline.stages)
    named = ranges(trace)
    numbers = sorted({stage for stage, _ in named.values()})
    if len(numbers) < _NEIGHBOURS:
        return []
    stages = (tuple(r for r, (stage, _) in sorted(named.items()) if stage == n) for n in numbers)
    return [Pipeline(tuple(stages), by_ranges=True)]


def ranges(trace: Trace) -> dict[int, tuple[int, int]]:
    """Stage and number of microbatches of each rank whose ranges tell (``PP:0F1``).

    A rank that has several stages is of the first of them.
    """
    told = [_RANGE.fullmatch(name) for name in trace.names()]
    stage = np.array([int(t[1][-9:]) if t else -1 for t in told] + [-1])
    batch = np.array([int(t[2][-9:]) if t else -1 for t in told] + [-1])
    name = trace.array("name")
    rows = np.flatnonzero((trace.array("kind") == Kind.ANNOTATION) & (stage[name] >= 0))
    found: dict[int, tuple[int, int]] = {}
    rank = trace.array("rank")[rows]
    for r in np.unique(rank).tolist():
        mine = name[rows[rank == r]]
        found[r] = int(stage[mine].min()), len(np.unique(batch[mine]))
    return found


def _links(trace: Trace) -> list[Links]:
    """For each process group whose ranks exchange something, to whom each rank sends."""
    if "peer" not in trace.nodes.column_names:
        return []
    rows = np.flatnonzero((trace.array("kind") == Kind.COMM) & valued(trace, "collective", _ENDS))
    peer = arrow.numbers(trace.nodes["peer"], -1)[rows]
    rows, peer = rows[peer >= 0], peer[peer >= 0]
    rank, sends = trace.array("rank")[rows], valued(trace, "collective", _ENDS[:1])[rows]
    group = np.full(len(rows), -1)
    if "group" in trace.nodes.column_names:
        group = arrow.numbers(trace.nodes["group"], -1)[rows]
    first, _ = gather.distinct(group, rank, peer, sends)
    members = [tuple(g["ranks"]) for g in trace.groups.to_pylist()]
    found: dict[tuple[int, ...], Links] = {}
    for i in first.tolist():
        links = found.setdefault(members[group[i]] if group[i] >= 0 else (), {})
        source, target = int(rank[i]), int(peer[i])
        if not sends[i]:
            source, target = target, source
        if source != target:
            links.setdefault(source, set()).add(target)
            links.setdefault(target, set())
    return list(found.values())


def _lines(links: Links, began: Mapping[int, int]) -> list[list[int]]:
    """Lines of ranks, in the order of their stages."""
    beside = {
        rank: targets | {other for other, of in links.items() if rank in of}
        for rank, targets in links.items()
    }
    found = []
    left = set(links)
    while left:
        part = _connected(beside, min(left))
        left -= part
        ends = [rank for rank in part if len(beside[rank]) < _NEIGHBOURS]
        round_ = not ends and all(links[r] == beside[r] for r in part)
        if max(len(beside[r]) for r in part) <= _NEIGHBOURS and (ends or round_):
            first = min(ends or part, key=lambda rank: (began.get(rank, _NEVER), rank))
            found.append(_along(beside, first, began))
    return found


_NEVER = np.iinfo(np.int64).max


def _connected(beside: Links, first: int) -> set[int]:
    part, next_ = {first}, [first]
    while next_:
        new = beside[next_.pop()] - part
        part |= new
        next_ += new
    return part


def _along(beside: Links, first: int, began: Mapping[int, int]) -> list[int]:
    """Ranks from neighbour to neighbour; on a circle towards the one that began sooner."""
    line = [first]
    while new := beside[line[-1]] - set(line):
        line.append(min(new, key=lambda rank: (began.get(rank, _NEVER), rank)))
    return line
