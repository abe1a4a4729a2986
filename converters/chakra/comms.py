"""Communication of a job as a simulator can run it: matched across ranks, sized, numbered.

A simulator joins the k-th collective of a group on one rank with the k-th on the others. If they
differ in kind or size, or if a rank is missing, it never ends and does not say why. So only
collectives that are sure to match are written as what they are. All other communication keeps its
measured time: it is written as a broadcast, which simulators only time and do not join.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather, sequences
from chopper_interop.edges import collectives
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.chakra import CommType, NodeType
from chopper_interop.schemas.collectives import bus_factor
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.timing.model import is_buffered

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

TIMED_UNKNOWN = Fault.info(
    "comm-timed-unknown",
    "Communication of unknown kind or size goes into the ET with its measured time only.",
)
TIMED_KIND = Fault.info(
    "comm-timed-kind",
    "Collectives that simulators cannot run (barrier, reduce, gather, scatter) go into the ET "
    "with their measured time only.",
)
TIMED_ABSENT = Fault.info(
    "comm-timed-rank-absent",
    "Collectives with ranks that are not in the trace go into the ET with their measured time only.",
)
TIMED_UNMATCHED = Fault.loss(
    "comm-timed-unmatched",
    "Collectives without a counterpart on every rank (a window's edge) go into the ET with their "
    "measured time only.",
)
SIZE_FROM_TIME = Fault.info(
    "comm-size-from-time",
    "Matched collectives of unknown size have the bytes that rings with links of 50 GB/s move in the time "
    "measured from the last member's start on (attribute bytes_from_time), so that simulators join them "
    "across ranks, and over such links they take that time.",
)
UNEVEN = Fault.info(
    "comm-size-uneven",
    "Ranks put different amounts into an all-to-all; the ET has their mean, and each rank's own "
    "amount in `bytes`.",
)

SIMULATED: dict[str, CommType] = {
    Collective.ALL_REDUCE: CommType.ALL_REDUCE,
    Collective.ALL_GATHER: CommType.ALL_GATHER,
    Collective.REDUCE_SCATTER: CommType.REDUCE_SCATTER,
    Collective.ALL_TO_ALL: CommType.ALL_TO_ALL,
}
"""Collectives that are joined across ranks."""

_TIMED = (Collective.BROADCAST,)
"""Collectives of which a simulator uses the measured time only."""
_P2P = (Collective.SEND, Collective.RECV)
NOMINAL_GBS = 50
"""Bandwidth of links, in 10^9 bytes a second, for collectives of unknown size. Chosen: of the order of one
link of today's nodes; whoever simulates such an ET knows it from the issue and gives the same."""
MIN_BYTES = 4
"""Bytes below which ASTRA-sim loops for ever (Sys.cc): it cuts an all-gather into
`preferred-dataset-splits` chunks, 4 in its examples."""


@dataclass
class Comms:
    """Communication in the ETs, a value for each row of the trace's nodes.

    Parameters
    ----------
    groups
        Number of a group → its ranks, as numbered in the ETs.
    node_type
        A `NodeType`; 0 for nodes that do not communicate.
    comm_type
        A `CommType` of collectives.
    size
        Bytes that this rank puts in.
    group
        Number of the group in the file of groups; 0 for all ranks.
    from_time
        1 where the size stands for the measured time.
    src, dst, tag
        Ranks of sends and receives, and the number that pairs a send with its receive.
    ready_tag
        Of a send that waits for its receive, and of this receive, the number of the message by which the
        receiver says that it is there; -1 for others.
    turn
        Number of a joined collective in the order in which all its members had come, the same on all ranks;
        -1 for others.
    """

    groups: dict[int, list[int]]
    node_type: Array
    comm_type: Array
    size: Array
    group: Array
    from_time: Array
    src: Array
    dst: Array
    tag: Array
    ready_tag: Array
    turn: Array


def communications(trace: Trace, numbering: dict[int, int], issues: IssueLog) -> Comms:
    """Match the communication of a trace across its ranks.

    Parameters
    ----------
    trace
        All ranks of a job.
    numbering
        Rank → its number in the ETs.
    issues
        Log of the communication that could not be matched.
    """
    trace = collectives.match_collectives(trace, IssueLog())
    n = trace.nodes.num_rows
    comms = Comms({}, *np.zeros((10, n), np.int64))
    comms.ready_tag[:] = comms.turn[:] = -1
    rows = np.flatnonzero(trace.array("kind") == Kind.COMM)
    kinds = trace.values("collective")[rows]
    sizes = trace.integers("bytes", rows)
    from_time = _sizes_from_time(trace, rows, kinds)
    assumed = (sizes < 0) & (from_time > 0)
    sizes = np.where(assumed, from_time, sizes)
    comms.node_type[rows] = NodeType.COMM_COLL
    comms.comm_type[rows] = CommType.BROADCAST
    comms.size[rows] = np.maximum(np.where(sizes >= 0, sizes, 0), MIN_BYTES)
    known = np.array([k in SIMULATED for k in kinds], bool) & (sizes >= 0)
    _note_timed(kinds, sizes, issues)
    _match_collectives(trace, comms, rows[known], kinds[known], numbering, issues)
    joined = assumed & (comms.comm_type[rows] != CommType.BROADCAST)
    comms.from_time[rows[joined]] = 1
    comms.size[rows[assumed & ~joined]] = MIN_BYTES
    issues.add(SIZE_FROM_TIME, np.count_nonzero(joined))
    _match_p2p(trace, comms, rows, kinds, sizes, numbering, issues)
    return comms


def _sizes_from_time(trace: Trace, rows: Array, kinds: Array) -> Array:
    """Bytes that members of matched collectives put in if links have `NOMINAL_GBS`; -1 where unknown.

    The transfer is the duration of the member that waits the least, which is the last to start.
    """
    sizes = np.full(len(rows), -1, np.int64)
    instance = trace.integers("instance", rows)
    matched = np.flatnonzero((instance >= 0) & np.isin(kinds.astype(str), list(SIMULATED)))
    if not matched.size:
        return sizes
    _, code = gather.distinct(instance[matched])
    count = np.bincount(code)
    transfer = np.full(len(count), np.iinfo(np.int64).max)
    np.minimum.at(transfer, code, trace.array("dur")[rows[matched]])
    members = count[code]
    for kind in SIMULATED:
        of_kind = (kinds[matched] == kind) & (members > 1)
        factor = [bus_factor(kind, n) for n in members[of_kind].tolist()]
        size = transfer[code[of_kind]] * NOMINAL_GBS / np.array(factor)
        share = members[of_kind] if kind == Collective.ALL_GATHER else 1
        sizes[matched[of_kind]] = np.rint(size / share).astype(np.int64)
    return sizes


def _note_timed(kinds: Array, sizes: Array, issues: IssueLog) -> None:
    """Log the communication of which only the measured time is used, by its kind alone."""
    unknown = [
        k is None or k == Collective.SEND_RECV or (s < 0 and (k in SIMULATED or k in _P2P))
        for k, s in zip(kinds, sizes, strict=True)
    ]
    runnable = {*SIMULATED, *_TIMED, *_P2P, Collective.SEND_RECV, None}
    unsupported = [k for k in kinds if k not in runnable]
    issues.add(TIMED_UNKNOWN, sum(unknown))
    issues.add(TIMED_KIND, len(unsupported), str(next(iter(unsupported), "")))


def _match_collectives(
    trace: Trace,
    comms: Comms,
    rows: Array,
    kinds: Array,
    numbering: dict[int, int],
    issues: IssueLog,
) -> None:
    """Give collectives that have a counterpart on every rank of their group their real kind."""
    group = trace.integers("group", rows)
    members = [g["ranks"] for g in trace.groups.to_pylist()]
    all_ranks = tuple(sorted(numbering))
    groups_by_ranks: dict[tuple[int, ...], list[int]] = {}
    joined: list[Array] = []
    for g in np.unique(group).tolist():
        ranks = tuple(members[g]) if g >= 0 and members[g] else all_ranks
        groups_by_ranks.setdefault(ranks, []).append(g)
    for ranks, groups in groups_by_ranks.items():
        of_group = np.isin(group, groups)
        if len(ranks) == 1 or not set(ranks) <= set(all_ranks):
            example = f"ranks {list(ranks)[:8]} of {list(all_ranks)[:8]}"
            issues.add(TIMED_ABSENT, np.count_nonzero(of_group), example)
            continue
        number = 0
        if tuple(sorted(ranks)) != all_ranks:
            number = len(comms.groups) + 1
            comms.groups[number] = [numbering[r] for r in ranks]
        matched = _matched_rows(trace, comms.size, rows[of_group], kinds[of_group], len(ranks))
        issues.add(TIMED_UNMATCHED, np.count_nonzero(of_group) - matched.size)
        _set_collectives(comms, matched, trace, number, issues)
        joined += list(matched.T)
    _set_turns(comms, joined, trace.array("ts"))
    if not comms.groups or all_ranks in {tuple(sorted(ranks)) for ranks in groups_by_ranks}:
        comms.groups[len(comms.groups) + 1] = [numbering[r] for r in all_ranks]


def _matched_rows(trace: Trace, size: Array, rows: Array, kinds: Array, ranks: int) -> Array:
    """Rows of collectives that every rank has, in an order common to all; a row for each rank.

    Simulators join by order alone, so collectives in another order on some rank are left out.
    """
    # `members`: a line for each instance with exactly one entry a rank, as positions in `rows`.
    # Sorting by (instance, row) puts an instance's entries side by side, ranks ascending.
    instance = trace.integers("instance", rows)
    order = np.lexsort((rows, instance))
    order = order[instance[order] >= 0]
    first = np.searchsorted(instance[order], np.unique(instance[order]))
    first = first[np.diff(np.append(first, len(order))) == ranks]
    members = order[first[:, None] + np.arange(ranks)]
    compared_size = np.where(kinds == Collective.ALL_TO_ALL, 0, size[rows])[members]
    rank = trace.array("rank")[rows][members]
    sound = (compared_size == compared_size[:, :1]).all(axis=1)
    sound &= (np.diff(rank, axis=1) > 0).all(axis=1)
    sound &= (kinds[members] == kinds[members][:, :1]).all(axis=1)
    matched = rows[members[sound]].T
    # in the first rank's order, keep the longest subsequence that ascends on each other rank too
    matched = matched[:, np.argsort(matched[0])]
    for other in range(1, ranks):
        matched = matched[:, sequences.longest_ascending(np.ascontiguousarray(matched[other]))]
    return matched


def _set_collectives(
    comms: Comms, matched: Array, trace: Trace, number: int, issues: IssueLog
) -> None:
    """Set kind, size and group of matched collectives: a column for each, with a row a rank."""
    if not matched.size:
        return
    kinds = trace.values("collective")[matched[0]]
    sizes = comms.size[matched]
    uneven = (sizes != sizes[0]).any(axis=0)
    issues.add(UNEVEN, int(uneven.sum()))
    common = np.where(uneven, np.rint(sizes.mean(axis=0)).astype(np.int64), sizes[0])
    comms.comm_type[matched] = [int(SIMULATED[k]) for k in kinds]
    comms.size[matched] = np.maximum(common, MIN_BYTES)
    comms.group[matched] = number


def _set_turns(comms: Comms, joined: list[Array], ts: Array) -> None:
    """Number joined collectives, of which each entry lists the rows, by when the last member came.

    All ranks can keep this order, as what waits for a collective starts behind all its members. In the order in
    which each rank starts them, ranks with several streams may wait for each other for ever.
    """
    order = sorted(joined, key=lambda rows: (int(ts[rows].max()), int(rows[0])))
    for turn, rows in enumerate(order):
        comms.turn[rows] = turn


def _match_p2p(  # noqa: PLR0913, PLR0917 # columns of one table
    trace: Trace,
    comms: Comms,
    rows: Array,
    kinds: Array,
    sizes: Array,
    numbering: dict[int, int],
    issues: IssueLog,
) -> None:
    """Give sends and receives that belong together their real type, with tags for each two ranks."""
    rank, instance = trace.array("rank")[rows], trace.integers("instance", rows)
    known = (sizes >= 0) & np.isin(kinds.astype(str), _P2P)
    # sorted by (instance, send before receive); `first` are starts of instances with two entries
    ends = np.flatnonzero(known & (instance >= 0))
    ends = ends[np.lexsort((kinds[ends] == Collective.RECV, instance[ends]))]
    first = np.flatnonzero(np.diff(instance[ends], prepend=-1, append=-1)[:-1])
    first = first[np.diff(np.append(first, len(ends))) == 2]  # noqa: PLR2004
    sent, received = ends[first], ends[first + 1]
    sound = (sizes[sent] == sizes[received]) & (kinds[sent] != kinds[received])
    sound &= rank[sent] != rank[received]
    sent, received = sent[sound], received[sound]
    issues.add(TIMED_UNMATCHED, np.count_nonzero(known) - 2 * len(sent))
    waits = _waits_for_receive(trace, comms, rows[sent], rows[received])
    next_tag: Counter[tuple[int, int]] = Counter()
    for s, r, is_waiting in sorted(
        zip(sent.tolist(), received.tolist(), waits.tolist(), strict=True)
    ):
        src, dst = numbering[int(rank[s])], numbering[int(rank[r])]
        both = rows[[s, r]]
        comms.node_type[both] = [NodeType.COMM_SEND, NodeType.COMM_RECV]
        comms.src[both], comms.dst[both], comms.tag[both] = src, dst, next_tag[src, dst]
        next_tag[src, dst] += 1
        if is_waiting:
            comms.ready_tag[both] = next_tag[dst, src]
            next_tag[dst, src] += 1


def _waits_for_receive(trace: Trace, comms: Comms, sent: Array, received: Array) -> Array:
    """Mask of the sends that wait for their receives, as the timing model has it.

    Not of those whose receive began while a collective held the slot of communication: what the receiver
    has to say would have to wait for that, and ranks might wait for each other for ever.
    """
    ts, rank = trace.array("ts"), trace.array("rank")
    end = ts + trace.array("dur")
    waits = ~is_buffered(end[sent], ts[received], trace.integers("bytes")[sent])
    joined = np.flatnonzero(comms.turn >= 0)
    for of_rank in np.unique(rank[received]).tolist():
        held = joined[rank[joined] == of_rank]
        held = held[np.argsort(ts[held], kind="stable")]
        until = np.maximum.accumulate(end[held])
        of_pair = np.flatnonzero(rank[received] == of_rank)
        before = np.searchsorted(ts[held], ts[received[of_pair]], side="right") - 1
        waits[of_pair] &= (before < 0) | (np.append(until, 0)[before] <= ts[received[of_pair]])
    return waits
