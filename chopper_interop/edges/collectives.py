"""Communication across ranks: the kernels that are members of one collective, sends and receives.

Members are matched by group, kind and sequence number where every rank states it, else by their
order (see `collective_order`); never by their starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.edges.collective_order import (
    UNMATCHED,
    RankSequence,
    match_by_order,
    match_messages,
)
from chopper_interop.edges.communication import collective_of_kernel
from chopper_interop.graph import endpoints
from chopper_interop.grouping import by_key, grouped
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import POINT_TO_POINT, Collective, EdgeKind, Kind
from chopper_interop.trace import Trace

BY_ORDER = Fault.info(
    "collectives-by-order",
    "Collectives that do not state a sequence number were matched across ranks by their order.",
)
ALONE = Fault.info(
    "collectives-alone",
    "Collectives of which no other rank has a member: windows begin and end at different ones, or "
    "the other ranks are not in the trace.",
)
NOT_MATCHED = Fault.info(
    "collectives-unmatched",
    "Collectives could not be matched across ranks: the ranks ran different ones in their order, or "
    "they do not end together.",
)
UNEVEN = Fault.info(
    "collectives-uneven",
    "Collectives of which ranks have different numbers of kernels under one sequence number were "
    "not matched.",
)
UNPAIRED = Fault.info(
    "sends-unpaired", "Sends and receives of which the other end is not known or not in the trace."
)
CONTRADICTED = Fault.info(
    "collectives-contradicted",
    "Members that end before or when the last member of their collective starts, by more than clocks "
    "are uncertain: clocks of ranks differ, or the collective does not synchronize. They got no edge.",
)
ROOT_UNKNOWN = Fault.info(
    "collectives-root-unknown",
    "Members of collectives with a root (broadcast, reduce, gather, scatter) wait for the root "
    "alone, which is not known or not in the trace. They got no edge.",
)
KIND_UNKNOWN = Fault.info(
    "collectives-kind-unknown",
    "Members of collectives whose kind neither the source nor the name of the kernel states. They are "
    "taken to wait for each other, as in most kinds.",
)

SYNCHRONIZING = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.BARRIER,
)
"""Collectives in which no member ends before the last has started."""
FROM_ROOT = (Collective.BROADCAST, Collective.SCATTER)
"""Collectives in which members end once the root has started."""
TO_ROOT = (Collective.REDUCE, Collective.GATHER)
"""Collectives in which only the root ends no sooner than the last member has started."""
_WITHOUT_ORDER = (*POINT_TO_POINT, Collective.SEND_RECV)
_MAJORITY = 0.5
"""Chosen: sequence numbers are relied on if each rank of a group states them for at least this share
of the group's collectives; and sizes, if more than this share is matched by them."""

_CLOCK_ERRORS = 3
"""Standard deviations of clocks by which an edge may seem to lead backward in time. Chosen: of normal
errors, one in 370 is larger."""
_BEFORE = np.iinfo(np.int64).min
"""Stands for a launch before the recording."""
_MIN_OF_UNKNOWN_KIND = 5
"""Chosen: with fewer collectives of unknown kind on a rank, their ends may agree by chance."""


@dataclass(frozen=True)
class CommMembers:
    """Columns of communication nodes, in order of rank and start.

    Parameters
    ----------
    row
        Rows of the trace's nodes.
    rank
        Rank of each.
    group
        Number of the communicator.
    kind
        Number of the kind among `kinds`; -1 if unknown.
    size
        Bytes put in; -1 if unknown.
    seq, peer
        Sequence number, and rank of the other end, as the source states them; -1 if not.
    start, end
        When it started and ended, ns.
    called
        When it was launched, ns; `_BEFORE` if that is not recorded.
    kinds
        Names of the kinds.
    """

    row: Array
    rank: Array
    group: Array
    kind: Array
    size: Array
    seq: Array
    peer: Array
    start: Array
    end: Array
    called: Array
    kinds: tuple[str, ...]

    def is_kind(self, kinds: tuple[str, ...]) -> Array:
        """Mark the members of these kinds."""
        return np.isin(self.kind, [i for i, kind in enumerate(self.kinds) if kind in kinds])

    def describe(self, member: int) -> str:
        """Return kind, rank and sequence number of a member, for messages."""
        kind = self.kinds[self.kind[member]] if self.kind[member] >= 0 else "of unknown kind"
        seq = f", seq {self.seq[member]}" if self.seq[member] >= 0 else ""
        return f"{kind} of rank {self.rank[member]}{seq}"


def waits_together(kind: Array, kinds: Sequence[str]) -> Array:
    """Mark members, by number of their kind, of which none ends before the last has started.

    They are those of kinds of which that is known, and those of unknown kind (-1): most do.
    """
    return np.append([name in SYNCHRONIZING for name in kinds], True).astype(bool)[kind]


def name_collectives(trace: Trace) -> Trace:
    """Return the trace with kinds of communication by kernel name, where no source states them."""
    row = communication_rows(trace)
    code, kinds = trace.texts("collective", row)
    row = row[code < 0]
    names, name = trace.names(), trace.array("name")
    distinct_names, of_distinct = np.unique(name[row], return_inverse=True)
    by_name = [collective_of_kernel(names[n]) for n in distinct_names]
    if not any(by_name):
        return trace
    texts = list(dict.fromkeys([*kinds, *(kind for kind in by_name if kind)]))
    codes = np.array([texts.index(kind) if kind else -1 for kind in by_name], np.int32)
    values = arrow.dictionary(codes, texts)
    return rank_batches.with_values(trace, "collective", row, arrow.take(values, of_distinct))


def match_collectives(trace: Trace, issues: IssueLog) -> Trace:
    """Return the trace with the column `instance`, unless it has one or there is only one rank.

    Parameters
    ----------
    trace
        All ranks of a job. Their clocks may differ by any constant.
    issues
        Log for what could not be matched.
    """
    if trace.has("instance") or len(trace.ranks) < 2:  # noqa: PLR2004
        return trace
    members = _read_members(trace)
    if not members.row.size:
        return trace
    label = np.full(len(members.row), -1, np.int64)
    _label_collectives(members, label, issues)
    _label_point_to_point(members, label, issues)
    known = np.flatnonzero(label >= 0)
    _, instance = gather.distinct(label[known])
    values = arrow.array(instance, pa.int32())
    return rank_batches.with_values(trace, "instance", members.row[known], values)


def communication_rows(trace: Trace) -> Array:
    """Rows of the nodes that are communication."""
    return rank_batches.rows_where(trace, "kind", lambda kind: kind == Kind.COMM)


def add_collective_edges(trace: Trace, issues: IssueLog) -> Trace:
    """Return the trace with COMM edges between members of a collective, unless it has any.

    They lead from the member that started last to all others, and from a send to its receive; in
    broadcast and scatter from the root to all others, in reduce and gather from those to the root.
    Issues that a trace that was read back has already are not added again.
    """
    log = IssueLog(issues.source)
    trace = _with_comm_edges(trace, log)
    known = {(issue.source, issue.code) for issue in trace.meta.issues}
    issues.extend(issue for issue in log if (issue.source, issue.code) not in known)
    return trace


def _with_comm_edges(trace: Trace, issues: IssueLog) -> Trace:
    has_edges = (trace.array("kind", "edges") == EdgeKind.COMM).any()
    if has_edges or not trace.has("instance"):
        return trace
    src, dst, unknown = _awaited_pairs(trace)
    for fault, count in unknown.items():
        issues.add(fault, count)
    possible = _possible(trace, src, dst)
    late = np.flatnonzero(~possible)
    ts, before, after = trace.array("ts"), src[late], dst[late]
    max_late_ns = int((ts[before] - ts[after] - trace.array("dur")[after]).max(initial=0))
    issues.add(CONTRADICTED, len(late), f"by up to {max_late_ns / 1000:,.3f} us")
    if not possible.any():
        return trace
    return trace.with_edges(src[possible], dst[possible], EdgeKind.COMM)


def connected_members(trace: Trace) -> dict[int, int]:
    """Count the members of each rank that COMM edges of `add_collective_edges` would lead from or to."""
    if not trace.has("instance"):
        return {}
    src, dst, _ = _awaited_pairs(trace)
    possible = _possible(trace, src, dst)
    members = np.unique(np.concatenate([src[possible], dst[possible]]))
    ranks, count = np.unique(trace.array("rank")[members], return_counts=True)
    return dict(zip(ranks.tolist(), count.tolist(), strict=True))


def _awaited_pairs(trace: Trace) -> tuple[Array, Array, dict[Fault, int]]:
    """Awaited member and waiting member of each COMM edge, and numbers of members of which something is unknown."""
    row = member_rows(trace)
    # sources may number instances as they like
    first, instance = gather.distinct(trace.integers("instance", row))
    kind, kinds = trace.texts("collective", row)
    together = waits_together(kind, kinds)
    sends, receives, outward, inward = (
        np.isin(kind, [i for i, name in enumerate(kinds) if name in chosen])
        for chosen in ((Collective.SEND,), (Collective.RECV,), FROM_ROOT, TO_ROOT)
    )
    root = collective_roots(trace, row, instance)
    rooted = outward | inward
    outward, inward = outward & (root >= 0), inward & (root >= 0)
    unknown = {
        KIND_UNKNOWN: int(np.count_nonzero(kind < 0)),
        ROOT_UNKNOWN: int(np.count_nonzero(rooted & (root < 0))),
        UNPAIRED: int(np.count_nonzero(~(together | sends | receives | rooted))),
    }
    ts = trace.array("ts")
    # the member of each instance for which the others wait: the last to start, or the send
    awaited = np.full(len(first), -1, np.int64)
    order = np.flatnonzero(together)[np.argsort(ts[row[together]], kind="stable")]
    awaited[instance[order]] = row[order]  # of one instance, the last to start is written last
    awaited[instance[sends]] = row[sends]
    waits = together | receives
    src = np.concatenate([awaited[instance[waits]], root[outward], row[inward]])
    dst = np.concatenate([row[waits], row[outward], root[inward]])
    used = (src >= 0) & (src != dst)
    return src[used], dst[used], unknown


def _possible(trace: Trace, src: Array, dst: Array) -> Array:
    """Mark edges that lead forward in time, or backward by no more than clocks of ranks are uncertain."""
    late = trace.array("ts")[src] - trace.array("ts")[dst] - trace.array("dur")[dst]
    label = {f"rank {rank}": k for k, rank in enumerate(trace.ranks)}
    error = np.zeros(len(label), np.int64)
    for fit in trace.meta.clocks:
        if fit.of in label:
            error[label[fit.of]] = max(error[label[fit.of]], fit.uncertainty_ns)
    of_src, of_dst = (
        error[np.searchsorted(trace.ranks, trace.array("rank")[r])] for r in (src, dst)
    )
    of_pair = np.hypot(of_src, of_dst)
    within = (late > 0) & (late <= _CLOCK_ERRORS * of_pair)
    return endpoints.forward(trace, src, dst, EdgeKind.COMM) | within


def collective_roots(trace: Trace, row: Array, instance: Array) -> Array:
    """For each member the row of its collective's root; -1 if no root, or several, are stated."""
    stated = trace.integers("root", row)
    root_rank = np.full(int(instance.max(initial=-1)) + 1, -1)
    has_root = stated >= 0
    root_rank[instance[has_root]] = stated[has_root]
    root_rank[instance[has_root & (stated != root_rank[instance])]] = -1
    is_root = trace.array("rank")[row] == root_rank[instance]
    root_row = np.full(len(root_rank), -1)
    root_row[instance[is_root]] = row[is_root]
    return root_row[instance]


def member_rows(trace: Trace) -> Array:
    """Rows of the nodes that are known to be members of a communication."""
    return rank_batches.known_rows(trace, "instance")


def _read_members(trace: Trace) -> CommMembers:
    row = communication_rows(trace)
    kind, kinds = trace.texts("collective", row)
    rank = trace.array("rank")[row].astype(np.int64)
    call = trace.launch[row]
    return CommMembers(
        row=row,
        rank=rank,
        group=communicator_numbers(trace, trace.integers("group", row), rank),
        kind=kind,
        size=trace.integers("bytes", row),
        seq=trace.integers("seq", row),
        peer=trace.integers("peer", row),
        start=trace.array("ts")[row],
        end=trace.array("ts")[row] + trace.array("dur")[row],
        called=np.where(call >= 0, trace.array("ts")[call], _BEFORE),
        kinds=kinds,
    )


def communicator_numbers(trace: Trace, group: Array, rank: Array) -> Array:
    """Number of the communicator of each row, given its `group` and `rank`.

    A group without ranks, and a row without a group, means all ranks of the job. Groups of the same
    ranks are one communicator if each rank knows it by one name; else only those with equal names
    are.
    """
    all_ranks = tuple(trace.ranks)
    group_ranks = [tuple(sorted(g["ranks"])) or all_ranks for g in trace.groups.to_pylist()]
    first, _ = gather.distinct(group, rank)
    users = grouped(zip(group[first].tolist(), rank[first].tolist(), strict=True))
    same_ranks = by_key(users, lambda g: group_ranks[g] if g >= 0 else all_ranks)
    number = np.zeros(len(group_ranks) + 1, np.int64)  # the last is that of rows without a group
    count = 0
    for groups in same_ranks.values():
        uses = sum(len(users[g]) for g in groups)
        is_one = uses == len(set().union(*(users[g] for g in groups)))
        for g in groups:
            number[g] = count
            count += not is_one
        count += is_one
    return number[group]


def _label_collectives(members: CommMembers, label: Array, issues: IssueLog) -> None:
    chosen = np.flatnonzero(~members.is_kind(_WITHOUT_ORDER))
    by_seq = _in_numbered_groups(members, chosen)
    _label_by_sequence(members, chosen[by_seq], label, issues)
    _label_by_order(members, chosen[~by_seq], label, issues)


def _in_numbered_groups(members: CommMembers, chosen: Array) -> Array:
    """Mark members of groups whose ranks all state sequence numbers."""
    group = members.group[chosen]
    first, group_rank = gather.distinct(group, members.rank[chosen])
    share = np.bincount(group_rank, members.seq[chosen] >= 0) / np.bincount(group_rank)
    unnumbered = group[first[share < _MAJORITY]]
    return ~np.isin(group, unnumbered)


def _occurrence(code: Array) -> Array:
    """For each element the number of equal codes before it."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    nth = np.empty(len(code), np.int64)
    nth[order] = np.arange(len(code)) - np.searchsorted(ordered, ordered)
    return nth


def _label_by_sequence(members: CommMembers, chosen: Array, label: Array, issues: IssueLog) -> None:
    """Match members that state their sequence number: the k-th kernels under the same one."""
    issues.add(NOT_MATCHED, np.count_nonzero(members.seq[chosen] < 0), "without a sequence number")
    chosen = chosen[members.seq[chosen] >= 0]
    if not chosen.size:
        return
    seq = members.seq[chosen]
    rank = members.rank[chosen]
    first, call = gather.distinct(members.group[chosen], members.kind[chosen], seq)
    first_of_part, part = gather.distinct(call, rank)  # a part is what one rank has of a call
    kernels = np.bincount(part)
    call_of_part = call[first_of_part]
    min_kernels = np.full(len(first), np.iinfo(np.int64).max)
    max_kernels = np.zeros(len(first), np.int64)
    np.minimum.at(min_kernels, call_of_part, kernels)
    np.maximum.at(max_kernels, call_of_part, kernels)
    uneven = (min_kernels != max_kernels)[call]
    if uneven.any():
        issues.add(UNEVEN, np.count_nonzero(uneven), f"seq {seq[uneven][0]}")
    _, instance = gather.distinct(call, _occurrence(part))
    first_label = int(label.max(initial=-1)) + 1
    _assign_labels(instance[~uneven], chosen[~uneven], label, members, issues, first_label)


def _assign_labels(
    instance: Array,
    chosen: Array,
    label: Array,
    members: CommMembers,
    issues: IssueLog,
    first_label: int,
) -> int:
    """Write labels from the first one on for the instances that have more than one member, in place; return the next one."""
    shared = np.bincount(instance)[instance] > 1
    label[chosen[shared]] = instance[shared] + first_label
    alone = chosen[~shared]
    if alone.size:
        issues.add(ALONE, len(alone), members.describe(int(alone[0])))
    return first_label + int(instance[shared].max(initial=-1)) + 1


def _label_by_order(members: CommMembers, chosen: Array, label: Array, issues: IssueLog) -> None:
    """Match members that do not state their sequence number, by order within their group."""
    together = waits_together(members.kind, members.kinds)
    codes = _order_codes(members)
    starts, order = gather.group_values(
        members.group[chosen], chosen, int(members.group.max(initial=-1)) + 1
    )
    matched, next_label = 0, int(label.max(initial=-1)) + 1
    for group in range(len(starts) - 1):
        group_rows = order[starts[group] : starts[group + 1]]
        by_rank, bounds = _as_launched(members, group_rows)
        if len(bounds) < 3:  # noqa: PLR2004 # of two ranks
            if len(group_rows):
                issues.add(ALONE, len(group_rows), members.describe(int(group_rows[0])))
            continue
        unknown_kind = (members.kind[group_rows] < 0).any()
        if unknown_kind and np.diff(bounds).min() < _MIN_OF_UNKNOWN_KIND:
            issues.add(NOT_MATCHED, len(group_rows), members.describe(int(group_rows[0])))
            continue
        rows, position = _best_order(members, codes, together, by_rank, bounds)
        if len(rows) < len(group_rows):
            lost = np.setdiff1d(group_rows, rows)
            issues.add(NOT_MATCHED, len(lost), members.describe(int(lost[0])))
        _, instance = gather.distinct(position)
        next_label = _assign_labels(instance, rows, label, members, issues, next_label)
        matched += np.count_nonzero(label[rows] >= 0)
    issues.add(BY_ORDER, matched)


#   rank 0, slow   stream a          [ 2 ]      all ranks launch 1 before 2, and 2 starts before 1 where its
#                  stream b      [ 1 ]          stream is free sooner
#   rank 1         stream a   [ 2    ]
#                  stream b     [ 1]
def _as_launched(members: CommMembers, group_rows: Array) -> tuple[Array, Array]:
    """Members of a group rank by rank, each in the order of its launches, which all ranks share, if these are known.

    Those without a launch had been queued before the recording began, if none starts behind others.

    Returns
    -------
    rows, bounds
        The members; where those of each rank begin, and behind the last one their number.
    """
    rows = group_rows[np.argsort(members.rank[group_rows], kind="stable")]
    rank, called = members.rank[rows], members.called[rows]
    is_first = np.diff(rank, prepend=rank[:1] - 1) != 0
    queued_before = called == _BEFORE
    behind_others = queued_before & ~np.roll(queued_before, 1) & ~is_first
    part = np.cumsum(is_first) - 1
    unordered = np.bincount(part, behind_others) > 0
    rows = rows[np.lexsort((np.where(unordered[part], 0, called), part))]
    return rows, np.append(np.flatnonzero(is_first), len(rows))


def _order_codes(members: CommMembers) -> tuple[Array, ...]:
    """Codes by which members are compared, the strictest first.

    By kind and size; without the sizes of all-to-all, as ranks may put in what they like; and by
    kind alone, as sizes may be uneven or stated by some ranks only.
    """
    to_all = members.is_kind((Collective.ALL_TO_ALL,))
    sizes = (members.size, np.where(to_all, -1, members.size))
    return *(gather.distinct(members.kind, size)[1] for size in sizes), members.kind


def _best_order(
    members: CommMembers,
    codes: tuple[Array, ...],
    together: Array,
    group_rows: Array,
    bounds: Array,
) -> tuple[Array, Array]:
    """Members of a group that can be matched by order, and their common positions.

    Parameters
    ----------
    members, codes, together
        All members, see `_order_codes` and `RankSequence`.
    group_rows, bounds
        Members of the group, see `_as_launched`.
    """
    end, ends_together = members.end[group_rows], together[group_rows]
    parts = [slice(*pair) for pair in pairwise(bounds.tolist())]
    best = group_rows[:0], group_rows[:0]
    for code in codes:
        if code is codes[-1] and len(best[0]) > _MAJORITY * len(group_rows):
            break
        of_group = code[group_rows]
        ranks = [RankSequence(of_group[p], end[p], ends_together[p]) for p in parts]
        position = np.concatenate(match_by_order(ranks))
        matched = position != UNMATCHED
        candidate = group_rows[matched], position[matched]
        best = max(best, candidate, key=lambda pair: len(pair[0]))
        if matched.all():
            break
    return best


def _label_point_to_point(members: CommMembers, label: Array, issues: IssueLog) -> None:
    """Pair sends with receives of two ranks: by sequence number, else by order and size."""
    chosen = np.flatnonzero(members.is_kind(POINT_TO_POINT))
    sends = members.is_kind((Collective.SEND,))[chosen]
    rank, peer = members.rank[chosen], members.peer[chosen]
    src, dst = np.where(sends, rank, peer), np.where(sends, peer, rank)
    first, pair = gather.distinct(members.group[chosen], src, dst)
    starts, order = gather.group_values(pair, np.arange(len(chosen)), len(first))
    lost = np.count_nonzero(members.is_kind((Collective.SEND_RECV,)))
    for k in range(len(first)):
        pair_rows = order[starts[k] : starts[k + 1]]
        is_send = sends[pair_rows]
        sent, received = chosen[pair_rows[is_send]], chosen[pair_rows[~is_send]]
        if peer[pair_rows[0]] < 0 or src[pair_rows[0]] == dst[pair_rows[0]]:
            sent, received = sent[:0], received[:0]
        a, b = _pair_messages(members, sent, received)
        new = np.arange(len(a)) + label.max(initial=-1) + 1
        label[sent[a]] = new
        label[received[b]] = new
        lost += len(pair_rows) - 2 * len(a)
    issues.add(UNPAIRED, lost)


def _pair_messages(members: CommMembers, sent: Array, received: Array) -> tuple[Array, Array]:
    """Positions of sends and of their receives."""
    by_number = _pair_by_number(members, sent, received)
    if by_number is not None:
        return by_number
    if np.array_equal(members.size[sent], members.size[received]):
        every = np.arange(len(sent))
        return every, every
    ends = (sent, received)
    _, code = gather.distinct(members.size)
    out, into = (RankSequence(code[p], members.end[p], np.ones(len(p), np.bool_)) for p in ends)
    a, b = match_messages(out, into, members.start[sent]) if all(map(len, ends)) else ends
    known_a, known_b = (np.flatnonzero(position != UNMATCHED) for position in (a, b))
    _, i, j = np.intersect1d(a[known_a], b[known_b], assume_unique=True, return_indices=True)
    return known_a[i], known_b[j]


def _pair_by_number(
    members: CommMembers, sent: Array, received: Array
) -> tuple[Array, Array] | None:
    """Positions of sends and receives with equal sequence numbers; None if these do not agree.

    A rank may count all messages that it exchanges with any rank: its numbers then mean nothing to
    the other end, and one end has some that the other lacks between the first and last that both
    have.
    """
    seq = members.seq[sent], members.seq[received]
    shared = np.intersect1d(*seq)
    if not shared.size or min(int(n.min()) for n in seq) < 0:
        return None
    a, b = (np.argsort(n, kind="stable") for n in seq)  # equal ones stay in their order
    a, b = (p[(n[p] >= shared[0]) & (n[p] <= shared[-1])] for p, n in zip((a, b), seq, strict=True))
    if not np.array_equal(seq[0][a], seq[1][b]):
        return None
    size, size_received = members.size[sent[a]], members.size[received[b]]
    known = (size >= 0) & (size_received >= 0)
    return None if ((size != size_received) & known).any() else (a, b)
