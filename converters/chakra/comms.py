"""Communication of a job as a simulator can run it: matched across ranks, sized, numbered.

A simulator joins the k-th collective of a group on one rank with the k-th on the others. If they
differ in kind or size, or if a rank is missing, it never ends and does not say why. So only
collectives that are sure to match are written as what they are. All other communication keeps its
measured time: it is written as a broadcast, which simulators only time and do not join.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, gather, sequences, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges import collectives
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.chakra import CommType, NodeType
from chopper_interop.schemas.collectives import bus_factor
from chopper_interop.schemas.kinds import Collective
from chopper_interop.timing.model import is_buffered
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
    "from the last member's start to the last end (attribute bytes_from_time), so that simulators join them "
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

_ENDING_EARLY = (CommType.ALL_GATHER, CommType.REDUCE_SCATTER, CommType.ALL_TO_ALL)
"""Collectives that end on a rank in simulators as soon as the data of the others are there: for the last
member at once, before any other has its data. All-reduces need an answer to what each member puts in."""
_TIMED = (Collective.BROADCAST,)
"""Collectives of which a simulator uses the measured time only."""
_P2P = (Collective.SEND, Collective.RECV)
NOMINAL_GBS = 50
"""Bandwidth of links, in 10^9 bytes a second, for collectives of unknown size. Chosen: of the order of one
link of today's nodes; whoever simulates such an ET knows it from the issue and gives the same."""
_TYPES = {"size": np.int64, "node_type": np.int8, "comm_type": np.int8, "from_time": np.int8}
"""Types of the columns of `Comms` that are not int32: numbers of ranks, groups and messages fit into that."""
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
        Ranks of sends and receives, and the number that pairs a send with its receive. Of a collective whose
        members send each other a message when it ends: the rank that sends to this one, the rank that this
        one sends to, and the number of that message.
    control_tag
        Of a send that waits for its receive, and of this receive, the number of the message by which the
        receiver says that it is there; of a collective whose members tell each other when it ends, the number
        of the message that this one gets; -1 for others.
    sender_later_ns
        Of such a receive by how much later than it its send began, at most what the column holds; 0 of others.
    turn
        Number of a joined collective in the order in which all its members had come, the same on all ranks;
        -1 for others.
    npu
        NPU of the stream that does it, if that is another one than the rank's (`streams`); else -1.
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
    control_tag: Array
    sender_later_ns: Array
    turn: Array
    npu: Array


def copied(comms: Comms, *names: str) -> Comms:
    """Copy columns, to files where all nodes' are kept in files."""
    copies: dict[str, Any] = {}
    for name in names:
        column = getattr(comms, name)
        copies[name] = spill.empty(len(column), column.dtype)
        copies[name][:] = column
    return replace(comms, **copies)


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
    unset = {"control_tag": -1, "turn": -1, "npu": -1}
    names = [column.name for column in fields(Comms) if column.name != "groups"]
    comms = Comms(
        {},
        **{name: spill.full(n, unset.get(name, 0), _TYPES.get(name, np.int32)) for name in names},
    )
    rows = collectives.communication_rows(trace)
    sizes = trace.integers("bytes", rows)
    from_time = _sizes_from_time(trace, rows)
    assumed = (sizes < 0) & (from_time > 0)
    sizes = np.where(assumed, from_time, sizes)
    comms.node_type[rows] = NodeType.COMM_COLL
    comms.comm_type[rows] = CommType.BROADCAST
    comms.size[rows] = np.maximum(np.where(sizes >= 0, sizes, 0), MIN_BYTES)
    _note_timed(trace, rows, sizes, issues)
    known = rows[trace.is_text("collective", SIMULATED, rows) & (sizes >= 0)]
    matched = _match_collectives(trace, comms, known, numbering, issues)
    joined = assumed & (comms.comm_type[rows] != CommType.BROADCAST)
    comms.from_time[rows[joined]] = 1
    comms.size[rows[assumed & ~joined]] = MIN_BYTES
    issues.add(SIZE_FROM_TIME, np.count_nonzero(joined))
    sent, received, waits = _match_p2p(trace, comms, rows, sizes, issues)
    number = np.array([numbering[rank] for rank in trace.ranks], np.int64)
    of_node = spill.empty(n, np.int64)
    for number_of_rank, of_rank in zip(number.tolist(), trace.rank_rows.values(), strict=True):
        of_node[of_rank] = number_of_rank
    _set_messages(comms, of_node, (sent, received, waits), matched)
    later_ns = trace.array("ts")[sent[waits]] - trace.array("ts")[received[waits]]
    comms.sender_later_ns[received[waits]] = np.clip(later_ns, 0, np.iinfo(np.int32).max)
    return comms


def _sizes_from_time(trace: Trace, rows: Array) -> Array:
    """Bytes that members of matched collectives put in if links have `NOMINAL_GBS`; -1 where unknown.

    The transfer is from the last start to the last end of a member, after which the next collective can begin: parts
    of uneven all-to-alls end up to a quarter sooner.
    """
    sizes = np.full(len(rows), -1, np.int64)
    instance = trace.integers("instance", rows)
    matched = np.flatnonzero((instance >= 0) & trace.is_text("collective", SIMULATED, rows))
    if not matched.size:
        return sizes
    _, code = gather.distinct(instance[matched])
    count = np.bincount(code)
    start = trace.array("ts")[rows[matched]]
    last_start, end = np.zeros((2, len(count)), np.int64)
    np.maximum.at(last_start, code, start)
    np.maximum.at(end, code, start + trace.array("dur")[rows[matched]])
    transfer = end - last_start
    members = count[code]
    for kind in SIMULATED:
        of_kind = trace.is_text("collective", (kind,), rows[matched]) & (members > 1)
        groups, of_groups = np.unique(members[of_kind], return_inverse=True)
        factor = np.array([_carried(kind, n) for n in groups.tolist()])
        size = transfer[code[of_kind]] * NOMINAL_GBS / factor[of_groups]
        share = members[of_kind] if kind == Collective.ALL_GATHER else 1
        sizes[matched[of_kind]] = np.rint(size / share).astype(np.int64)
    return sizes


def _carried(kind: str, ranks: int) -> float:
    """Bytes over each link of a simulator's ring per byte that a member puts in.

    Its all-to-alls pass data on from rank to rank: the part for the k-th next one goes over k links::

        rank 0 ──parts for 1, 2, 3──▶ 1 ──parts for 2, 3──▶ 2 ──part for 3──▶ 3      3 + 2 + 1 parts of 1/4
    """
    return (ranks - 1) / 2 if kind == Collective.ALL_TO_ALL else bus_factor(kind, ranks)


def _note_timed(trace: Trace, rows: Array, sizes: Array, issues: IssueLog) -> None:
    """Log the communication of which only the measured time is used, by its kind alone."""
    code, names = trace.texts("collective", rows)
    named = code >= 0
    sized = trace.is_text("collective", (*SIMULATED, *_P2P), rows)
    runnable = sized | trace.is_text("collective", (*_TIMED, Collective.SEND_RECV), rows)
    unknown = ~named | trace.is_text("collective", (Collective.SEND_RECV,), rows)
    issues.add(TIMED_UNKNOWN, np.count_nonzero(unknown | (sized & (sizes < 0))))
    unsupported = np.flatnonzero(named & ~runnable)
    example = names[code[unsupported[0]]] if unsupported.size else ""
    issues.add(TIMED_KIND, len(unsupported), example)


def _match_collectives(
    trace: Trace, comms: Comms, rows: Array, numbering: dict[int, int], issues: IssueLog
) -> list[Array]:
    """Give collectives that have a counterpart on every rank of their group their real kind.

    Returns
    -------
    list of Array
        For each group the rows of its collectives: a column for each, with a row a rank.
    """
    members = [g["ranks"] for g in trace.groups.to_pylist()]
    all_ranks = tuple(sorted(numbering))
    # rows of groups with the same ranks are matched together: -1, no group, is that of all ranks
    ranks_by_group = [tuple(ranks) or all_ranks for ranks in members] + [all_ranks]
    distinct = list(dict.fromkeys(ranks_by_group))
    number_of = {ranks: k for k, ranks in enumerate(distinct)}
    of_ranks = np.array([number_of[ranks] for ranks in ranks_by_group])
    first, by_ranks = gather.group_rows(of_ranks[trace.integers("group", rows)], len(distinct))
    joined: list[Array] = []
    used = [k for k in range(len(distinct)) if first[k] < first[k + 1]]
    for k in used:
        ranks, of_group = distinct[k], rows[by_ranks[first[k] : first[k + 1]]]
        if len(ranks) == 1 or not set(ranks) <= set(all_ranks):
            example = f"ranks {list(ranks)[:8]} of {list(all_ranks)[:8]}"
            issues.add(TIMED_ABSENT, len(of_group), example)
            continue
        number = 0
        if tuple(sorted(ranks)) != all_ranks:
            number = len(comms.groups) + 1
            comms.groups[number] = [numbering[r] for r in ranks]
        matched = _matched_rows(trace, comms.size, of_group, len(ranks))
        issues.add(TIMED_UNMATCHED, len(of_group) - matched.size)
        _set_collectives(comms, matched, trace, number, issues)
        joined.append(matched)
    _set_turns(comms, joined, trace.array("ts"))
    if not comms.groups or all_ranks in {tuple(sorted(distinct[k])) for k in used}:
        comms.groups[len(comms.groups) + 1] = [numbering[r] for r in all_ranks]
    return joined


def _matched_rows(trace: Trace, size: Array, rows: Array, ranks: int) -> Array:
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
    kind = trace.integers("collective", rows)
    uneven = trace.is_text("collective", (Collective.ALL_TO_ALL,), rows)
    compared_size = np.where(uneven, 0, size[rows])[members]
    rank = trace.array("rank")[rows][members]
    sound = (compared_size == compared_size[:, :1]).all(axis=1)
    sound &= (np.diff(rank, axis=1) > 0).all(axis=1)
    sound &= (kind[members] == kind[members][:, :1]).all(axis=1)
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
    code, names = trace.texts("collective", matched[0])
    comm_type = np.array([int(SIMULATED.get(name, CommType.BROADCAST)) for name in names])
    sizes = comms.size[matched]
    uneven = (sizes != sizes[0]).any(axis=0)
    issues.add(UNEVEN, int(uneven.sum()))
    common = np.where(uneven, np.rint(sizes.mean(axis=0)).astype(np.int64), sizes[0])
    comms.comm_type[matched] = comm_type[code]
    comms.size[matched] = np.maximum(common, MIN_BYTES)
    comms.group[matched] = number


def _set_turns(comms: Comms, joined: list[Array], ts: Array) -> None:
    """Number joined collectives, columns of the arrays in `joined`, by when the last member came.

    All ranks can keep this order, as what waits for a collective starts behind all its members. In the order in
    which each rank starts them, ranks with several streams may wait for each other for ever.
    """
    if not joined:
        return
    last = np.concatenate([ts[matched].max(axis=0) for matched in joined])
    turn = np.empty(len(last), np.int64)
    turn[np.lexsort((np.concatenate([matched[0] for matched in joined]), last))] = np.arange(
        len(last)
    )
    bounds = np.cumsum([matched.shape[1] for matched in joined])[:-1]
    for matched, turns in zip(joined, np.split(turn, bounds), strict=True):
        comms.turn[matched] = turns


def concurrent_ns(trace: Trace, comms: Comms) -> dict[int, int]:
    """Time for which each rank's joined collectives ran at the same time as others of them.

    Each is counted as long as its transfer, the duration of the member that waits the least::

        transfers   [    ]  [    ]         6 + 6 + 5 long, together 13: concurrent for 4
                       [     ]
    """
    rows = np.flatnonzero(comms.turn >= 0)
    turn, dur = comms.turn[rows], trace.array("dur")
    transfer = np.full(int(turn.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(transfer, turn, dur[rows])
    end = (trace.array("ts") + dur)[rows]
    start = end - transfer[turn]
    rank = np.searchsorted(trace.ranks, trace.array("rank")[rows])
    by_start = np.lexsort((start, rank))
    rank, start, end = rank[by_start], start[by_start], end[by_start]
    # ranks one behind the other on one axis, so that one running maximum serves all
    base = rank * (int(end.max(initial=0)) - int(start.min(initial=0)) + 1)
    free = np.concatenate([base[:1] + start[:1], np.maximum.accumulate(base + end)[:-1]])
    apart = np.maximum(base + end - np.maximum(base + start, free), 0)
    shared = gather.group_sums(rank, end - start - apart, len(trace.ranks))
    return dict(zip(trace.ranks, shared.tolist(), strict=True))


def _match_p2p(
    trace: Trace, comms: Comms, rows: Array, sizes: Array, issues: IssueLog
) -> tuple[Array, Array, Array]:
    """Find sends and receives that belong together: their nodes, and a mask of those that wait for each other."""
    rank, instance = trace.array("rank")[rows], trace.integers("instance", rows)
    receives = trace.is_text("collective", (Collective.RECV,), rows)
    known = (sizes >= 0) & trace.is_text("collective", _P2P, rows)
    # sorted by (instance, send before receive); `first` are starts of instances with two entries
    ends = np.flatnonzero(known & (instance >= 0))
    ends = ends[np.lexsort((receives[ends], instance[ends]))]
    first = np.flatnonzero(np.diff(instance[ends], prepend=-1, append=-1)[:-1])
    first = first[np.diff(np.append(first, len(ends))) == 2]  # noqa: PLR2004
    sent, received = ends[first], ends[first + 1]
    sound = (sizes[sent] == sizes[received]) & (receives[sent] != receives[received])
    sound &= rank[sent] != rank[received]
    sent, received = sent[sound], received[sound]
    by_send = np.argsort(sent)
    sent, received = rows[sent[by_send]], rows[received[by_send]]
    issues.add(TIMED_UNMATCHED, np.count_nonzero(known) - 2 * len(sent))
    return sent, received, _waits_for_receive(trace, comms, sent, received)


def _set_messages(
    comms: Comms, number: Array, p2p: tuple[Array, Array, Array], joined: list[Array]
) -> None:
    """Set ends and tags of messages: sends, readiness of their receivers, and ends of collectives.

    Parameters
    ----------
    number
        Number of each node's rank in the ETs.
    p2p
        As `_match_p2p` returns them.
    joined
        As `_match_collectives` returns them.
    """
    sent, received, waits = p2p
    comms.node_type[sent], comms.node_type[received] = NodeType.COMM_SEND, NodeType.COMM_RECV
    # each member sends to the next one, in a ring: that is the last to get what this one puts in
    collective, following = (
        np.concatenate([np.empty(0, np.int64), *(members.ravel() for members in of_groups)])
        for of_groups in (joined, [np.roll(members, -1, axis=0) for members in joined])
    )
    early = is_any(comms.comm_type[collective], _ENDING_EARLY)
    collective, following = collective[early], following[early]
    src = number[np.concatenate([sent, received[waits], collective])]
    dst = number[np.concatenate([received, sent[waits], following])]
    tag, ready_tag, end_tag = np.split(tags(src, dst), np.cumsum([len(sent), waits.sum()]))
    for ends in (sent, received):
        comms.src[ends], comms.dst[ends], comms.tag[ends] = number[sent], number[received], tag
        comms.control_tag[ends[waits]] = ready_tag
    comms.dst[collective], comms.tag[collective] = number[following], end_tag
    comms.src[following], comms.control_tag[following] = number[collective], end_tag


def tags(src: Array, dst: Array) -> Array:
    """Number messages from 0 on among those of the same source and destination."""
    distinct, pair = gather.distinct(src, dst)
    first, by_pair = gather.group_rows(pair, len(distinct))
    tag = np.empty(len(pair), np.int64)
    tag[by_pair] = np.arange(len(pair)) - np.repeat(first[:-1], np.diff(first))
    return tag


def _waits_for_receive(trace: Trace, comms: Comms, sent: Array, received: Array) -> Array:
    """Mask of the sends that wait for their receives, as the timing model has it.

    Not of those whose receive began while a collective held the slot of communication: what the receiver
    has to say would have to wait for that, and ranks might wait for each other for ever.
    """
    ts, rank = trace.array("ts"), trace.array("rank")
    dur = trace.array("dur")
    waits = ~is_buffered(
        ts[sent], ts[sent] + dur[sent], ts[received], trace.integers("bytes", sent)
    )
    return waits & ~during_collectives(trace, comms, rank[received], ts[received])


def during_collectives(trace: Trace, comms: Comms, rank: Array, at_ns: Array) -> Array:
    """Mask of the times at which a joined collective of a rank waits for others, and holds its slot."""
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    joined = collectives.communication_rows(trace)
    joined = joined[comms.turn[joined] >= 0]
    mask = np.zeros(len(at_ns), bool)
    for of_rank in np.unique(rank).tolist():
        held = joined[trace.array("rank")[joined] == of_rank]
        held = held[np.argsort(ts[held], kind="stable")]
        until = np.append(np.maximum.accumulate(end[held]), 0)
        times = np.flatnonzero(rank == of_rank)
        before = np.searchsorted(ts[held], at_ns[times], side="right") - 1
        mask[times] = (before >= 0) & (until[before] > at_ns[times])
    return mask
