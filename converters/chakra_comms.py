"""Communication of a job as a simulator can run it: matched across ranks, sized, numbered.

A simulator joins the k-th collective of a group on one rank with the k-th on the others and never
ends if they differ in kind or size or if a rank is missing; it never says so. So only what is
sure to match is given out as the collective that it is. Whatever else communicates keeps its
measured time: it goes out as a broadcast, which simulators only time and do not join.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import sequences
from chopper_interop.edges import collectives
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.chakra import CommType, NodeType
from chopper_interop.schemas.kinds import Collective, Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

TIMED_UNKNOWN = Fault(
    "comm-timed-unknown",
    Severity.INFO,
    "Communication of unknown kind or size goes into the ET with its measured time only.",
)
TIMED_KIND = Fault(
    "comm-timed-kind",
    Severity.INFO,
    "Collectives that simulators cannot run (barrier, reduce, gather, scatter) go into the ET "
    "with their measured time only.",
)
TIMED_ABSENT = Fault(
    "comm-timed-rank-absent",
    Severity.INFO,
    "Collectives with ranks that are not in the trace go into the ET with their measured time only.",
)
TIMED_UNMATCHED = Fault(
    "comm-timed-unmatched",
    Severity.LOSS,
    "Collectives without a counterpart on every rank (a window's edge) go into the ET with their "
    "measured time only.",
)
UNEVEN = Fault(
    "comm-size-uneven",
    Severity.INFO,
    "Ranks put different amounts into an all-to-all; the ET has their mean, and each rank's own "
    "in `bytes`.",
)

SIMULATED: dict[str, CommType] = {
    Collective.ALL_REDUCE: CommType.ALL_REDUCE,
    Collective.ALL_GATHER: CommType.ALL_GATHER,
    Collective.REDUCE_SCATTER: CommType.REDUCE_SCATTER,
    Collective.ALL_TO_ALL: CommType.ALL_TO_ALL,
}
"""Collectives that are joined across ranks."""

_TIMED = (Collective.BROADCAST,)
"""Collectives whose measured time is all that a simulator uses anyway."""
_SMALLEST = 4
"""Bytes below which simulators loop for ever."""


@dataclass
class Comms:
    """What goes into the ETs about communication, a value for each row of the trace's nodes.

    Parameters
    ----------
    groups
        Number of a group → its ranks, as numbered in the ETs.
    node_type
        A `NodeType`; 0 for what does not communicate.
    comm_type
        A `CommType` of collectives.
    size
        Bytes that this rank puts in.
    group
        Number of the group in the file of groups; 0 for all ranks.
    src, dst, tag
        Ends of sends and receives, and what pairs them.
    """

    groups: dict[int, list[int]]
    node_type: Array
    comm_type: Array
    size: Array
    group: Array
    src: Array
    dst: Array
    tag: Array


def communications(trace: Trace, numbering: dict[int, int], issues: IssueLog) -> Comms:
    """Match the communication of a trace across its ranks.

    Parameters
    ----------
    trace
        All ranks of a job.
    numbering
        Rank → its number in the ETs.
    issues
        Where it is noted what could not be matched.
    """
    trace = collectives.matched(trace, IssueLog())
    n = trace.nodes.num_rows
    comms = Comms({}, *np.zeros((7, n), np.int64))
    rows = np.flatnonzero(trace.array("kind") == Kind.COMM)
    kinds = trace.annotated("collective")[rows]
    sizes = collectives.numbers(trace, "bytes", rows)
    comms.node_type[rows] = NodeType.COMM_COLL
    comms.comm_type[rows] = CommType.BROADCAST
    comms.size[rows] = np.maximum(np.where(sizes >= 0, sizes, 0), _SMALLEST)
    known = np.array([k in SIMULATED for k in kinds], bool) & (sizes >= 0)
    _note_timed(kinds, sizes, issues)
    _match_collectives(trace, comms, rows[known], kinds[known], numbering, issues)
    _pair(trace, comms, rows, kinds, sizes, numbering, issues)
    return comms


def _note_timed(kinds: Array, sizes: Array, issues: IssueLog) -> None:
    p2p = (Collective.SEND, Collective.RECV)
    unknown = [
        k is None or k == Collective.SEND_RECV or (s < 0 and (k in SIMULATED or k in p2p))
        for k, s in zip(kinds, sizes, strict=True)
    ]
    other = [
        k is not None and k not in SIMULATED and k not in (*_TIMED, *p2p, Collective.SEND_RECV)
        for k in kinds
    ]
    issues.add(TIMED_UNKNOWN, sum(unknown))
    issues.add(
        TIMED_KIND, sum(other), str(next((k for k, o in zip(kinds, other, strict=True) if o), ""))
    )


def _match_collectives(
    trace: Trace,
    comms: Comms,
    rows: Array,
    kinds: Array,
    numbering: dict[int, int],
    issues: IssueLog,
) -> None:
    """Give collectives that have a counterpart on every rank of their group their real kind."""
    group = collectives.numbers(trace, "group", rows)
    members = [g["ranks"] for g in trace.groups.to_pylist()]
    everyone = tuple(sorted(numbering))
    alike: dict[tuple[int, ...], list[int]] = {}
    for g in np.unique(group).tolist():
        alike.setdefault(tuple(members[g]) if g >= 0 and members[g] else everyone, []).append(g)
    for ranks, groups in alike.items():
        mine = np.isin(group, groups)
        if len(ranks) == 1 or not set(ranks) <= set(everyone):
            told = f"ranks {list(ranks)[:8]} of {list(everyone)[:8]}"
            issues.add(TIMED_ABSENT, np.count_nonzero(mine), told)
            continue
        number = 0
        if tuple(sorted(ranks)) != everyone:
            number = len(comms.groups) + 1
            comms.groups[number] = [numbering[r] for r in ranks]
        matched = _joined(trace, comms.size, rows[mine], kinds[mine], len(ranks))
        issues.add(TIMED_UNMATCHED, np.count_nonzero(mine) - matched.size)
        _give(comms, matched, trace, number, issues)
    if not comms.groups or everyone in {tuple(sorted(ranks)) for ranks in alike}:
        comms.groups[len(comms.groups) + 1] = [numbering[r] for r in everyone]


def _joined(trace: Trace, size: Array, rows: Array, kinds: Array, ranks: int) -> Array:
    """Rows of collectives that every rank has, in an order that all have, a row for each rank.

    Simulators join by order alone, so what one rank ran earlier and another later is left out.
    """
    instance = collectives.numbers(trace, "instance", rows)
    order = np.lexsort((rows, instance))
    order = order[instance[order] >= 0]
    first = np.searchsorted(instance[order], np.unique(instance[order]))
    first = first[np.diff(np.append(first, len(order))) == ranks]
    members = order[first[:, None] + np.arange(ranks)]  # ranks ascend, as rows do
    same = np.where(kinds == Collective.ALL_TO_ALL, 0, size[rows])[members]
    rank = trace.array("rank")[rows][members]
    sound = (same == same[:, :1]).all(axis=1) & (np.diff(rank, axis=1) > 0).all(axis=1)
    sound &= (kinds[members] == kinds[members][:, :1]).all(axis=1)
    matched = rows[members[sound]].T
    matched = matched[:, np.argsort(matched[0])]
    for mine in range(1, ranks):
        matched = matched[:, sequences.chain(np.ascontiguousarray(matched[mine]))]
    return matched


def _give(comms: Comms, matched: Array, trace: Trace, number: int, issues: IssueLog) -> None:
    if not matched.size:
        return
    kinds = trace.annotated("collective")[matched[0]]
    sizes = comms.size[matched]
    uneven = (sizes != sizes[0]).any(axis=0)
    issues.add(UNEVEN, int(uneven.sum()))
    common = np.where(uneven, np.rint(sizes.mean(axis=0)).astype(np.int64), sizes[0])
    comms.comm_type[matched] = [int(SIMULATED[k]) for k in kinds]
    comms.size[matched] = np.maximum(common, _SMALLEST)
    comms.group[matched] = number


def _pair(  # noqa: PLR0913, PLR0917 # columns of one table
    trace: Trace,
    comms: Comms,
    rows: Array,
    kinds: Array,
    sizes: Array,
    numbering: dict[int, int],
    issues: IssueLog,
) -> None:
    """Send what has a receive to it, numbered for each two ranks."""
    rank, instance = trace.array("rank")[rows], collectives.numbers(trace, "instance", rows)
    known = (sizes >= 0) & np.isin(kinds.astype(str), [Collective.SEND, Collective.RECV])
    ends = np.flatnonzero(known & (instance >= 0))
    ends = ends[np.lexsort((kinds[ends] == Collective.RECV, instance[ends]))]
    first = np.flatnonzero(np.diff(instance[ends], prepend=-1, append=-1)[:-1])
    first = first[np.diff(np.append(first, len(ends))) == 2]  # noqa: PLR2004
    sent, received = ends[first], ends[first + 1]
    sound = (sizes[sent] == sizes[received]) & (kinds[sent] != kinds[received])
    sound &= rank[sent] != rank[received]
    sent, received = sent[sound], received[sound]
    issues.add(TIMED_UNMATCHED, np.count_nonzero(known) - 2 * len(sent))
    tags: Counter[tuple[int, int]] = Counter()
    for s, r in sorted(zip(sent.tolist(), received.tolist(), strict=True)):
        a, b = numbering[int(rank[s])], numbering[int(rank[r])]
        both = rows[[s, r]]
        comms.node_type[both] = [NodeType.COMM_SEND, NodeType.COMM_RECV]
        comms.src[both], comms.dst[both], comms.tag[both] = a, b, tags[a, b]
        tags[a, b] += 1
