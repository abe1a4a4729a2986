"""Communication across ranks: which kernels are members of one collective, or a send's receive.

Members are matched by group, kind and sequence number where every rank states it, else by their
order (see `collective_order`); never by when they started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop import moments
from chopper_interop.columns import arrow, gather
from chopper_interop.edges import collective_names, collective_order
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

BY_ORDER = Fault(
    "collectives-by-order",
    Severity.INFO,
    "Collectives that do not state a sequence number were matched across ranks by their order.",
)
ALONE = Fault(
    "collectives-alone",
    Severity.INFO,
    "Collectives of which no other rank has a member: windows begin and end at different ones, or "
    "the other ranks are not in the trace.",
)
UNLIKE = Fault(
    "collectives-unlike",
    Severity.INFO,
    "Collectives that could not be matched across ranks: in their order ranks ran different ones, "
    "or they do not end together.",
)
UNEVEN = Fault(
    "collectives-uneven",
    Severity.INFO,
    "Collectives of which ranks have different numbers of kernels under one sequence number were "
    "not matched.",
)
UNPAIRED = Fault(
    "sends-unpaired",
    Severity.INFO,
    "Sends and receives of which the other end is not known or not in the trace.",
)
LATE = Fault(
    "collectives-late",
    Severity.INFO,
    "Members that end before or when the last member of their collective starts: clocks of ranks "
    "differ, or it is not synchronising. They got no edge.",
)
ROOT_UNKNOWN = Fault(
    "collectives-root-unknown",
    Severity.INFO,
    "Members of collectives with a root (broadcast, reduce, gather, scatter) wait for it alone, and "
    "it is not told or not in the trace. They got no edge.",
)

TOGETHER = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.BARRIER,
)
"""Collectives that no member leaves before the last has come."""
FROM_ROOT = (Collective.BROADCAST, Collective.SCATTER)
"""Collectives that members leave once the root has come."""
TO_ROOT = (Collective.REDUCE, Collective.GATHER)
"""Collectives that the root alone leaves no sooner than the last member has come."""
_ENDS = (Collective.SEND, Collective.RECV)
_NO_ORDER = (*_ENDS, Collective.SEND_RECV)
_MOSTLY = 0.5
"""Sequence numbers are relied on if each rank states them of so many of a group's collectives."""

_SAID_BY_ENDS = 5
"""Of so many collectives of unknown kind the ends tell whether they are the same ones."""


@dataclass(frozen=True)
class Members:
    """Columns of what communicates, in order of rank and start.

    Parameters
    ----------
    row
        Rows of the trace's nodes.
    group
        Number of the communicator.
    kind
        Number of the kind among `kinds`; -1 if unknown.
    size
        Bytes put in; -1 if unknown.
    seq, peer
        As stated; -1 if not.
    end
        When it ended.
    """

    row: Array
    rank: Array
    group: Array
    kind: Array
    size: Array
    seq: Array
    peer: Array
    end: Array
    kinds: tuple[str, ...]

    def of(self, kinds: tuple[str, ...]) -> Array:
        """Which are of these kinds."""
        return np.isin(self.kind, [i for i, kind in enumerate(self.kinds) if kind in kinds])


def named(trace: Trace) -> Trace:
    """The trace with the kind of communication, where the kernel's name tells what no source did."""
    row = np.flatnonzero(trace.array("kind") == Kind.COMM)
    code, kinds = coded(trace, "collective", row)
    row = row[code < 0]
    names, of_node = trace.names(), trace.array("name")
    used, of_used = np.unique(of_node[row], return_inverse=True)
    told = [collective_names.of_kernel(names[name]) for name in used]
    if not any(told):
        return trace
    every = list(dict.fromkeys([*kinds, *(kind for kind in told if kind)]))
    column = np.full(trace.nodes.num_rows, -1, np.int32)
    if kinds:
        column[:] = arrow.numbers(trace.nodes["collective"], -1)
    column[row] = np.array([every.index(kind) if kind else -1 for kind in told], np.int32)[of_used]
    return trace.annotate(collective=arrow.dictionary(column, every, mask=column < 0))


def matched(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with the column `instance`, unless it is stated or there is but one rank.

    Parameters
    ----------
    trace
        All ranks of a job. Their clocks may differ by any constant.
    issues
        Where it is noted what could not be matched.
    """
    if "instance" in trace.nodes.column_names or len(trace.ranks) < 2:  # noqa: PLR2004
        return trace
    members = _members(trace)
    if not members.row.size:
        return trace
    label = np.full(len(members.row), -1, np.int64)
    _label_collectives(members, label, issues)
    _label_pairs(members, label, issues)
    instance = np.full(trace.nodes.num_rows, -1, np.int32)
    known = np.flatnonzero(label >= 0)
    _, instance[members.row[known]] = gather.distinct(label[known])
    return trace.annotate(instance=arrow.array(instance, pa.int32(), mask=instance < 0))


def with_edges(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with edges between the members of a collective, unless it has some.

    They lead from the member that started last to all others, and from a send to its receive; of
    broadcast and scatter from the root to all others, of reduce and gather from those to the root.
    What a trace that was read back says of members without an edge is not noted again.
    """
    log = IssueLog(issues.source)
    trace = _drawn(trace, log)
    known = {(issue.source, issue.code) for issue in trace.meta.issues}
    issues.extend(issue for issue in log if (issue.source, issue.code) not in known)
    return trace


def _drawn(trace: Trace, issues: IssueLog) -> Trace:
    drawn = (trace.array("kind", "edges") == EdgeKind.COMM).any()
    if drawn or "instance" not in trace.nodes.column_names:
        return trace
    instance = arrow.numbers(trace.nodes["instance"], -1)
    row = np.flatnonzero(instance >= 0)
    first, instance = gather.distinct(instance)  # what states them numbers them as it likes
    kind, kinds = coded(trace, "collective", row)
    together, sends, receives, outward, inward = (
        np.isin(kind, [i for i, name in enumerate(kinds) if name in chosen])
        for chosen in (TOGETHER, (Collective.SEND,), (Collective.RECV,), FROM_ROOT, TO_ROOT)
    )
    root = roots(trace, row, instance[row])
    outward, inward = outward & (root >= 0), inward & (root >= 0)
    issues.add(ROOT_UNKNOWN, np.count_nonzero(~(together | sends | receives | outward | inward)))
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    src = np.full(len(first), -1, np.int64)
    ordered = row[together][np.argsort(ts[row[together]], kind="stable")]
    src[instance[ordered]] = ordered  # of equal ones the last is written last
    src[instance[row[sends]]] = row[sends]
    waits = together | receives
    start = np.concatenate([src[instance[row[waits]]], root[outward], row[inward]])
    dst = np.concatenate([row[waits], row[outward], root[inward]])
    dst, start = dst[(start >= 0) & (start != dst)], start[(start >= 0) & (start != dst)]
    holds = moments.forward(trace, start, dst, EdgeKind.COMM)
    late = np.flatnonzero(~holds)
    worst = int((ts[start] - end[dst])[late].max(initial=0))
    issues.add(LATE, len(late), f"by up to {worst / 1000:,.3f} us")
    return trace.with_edges(start[holds], dst[holds], EdgeKind.COMM) if holds.any() else trace


def roots(trace: Trace, row: Array, instance: Array) -> Array:
    """For each member the row of its collective's root; -1 if members tell of none or of several."""
    told, known = numbers(trace, "root", row), np.full(int(instance.max(initial=-1)) + 1, -1)
    stated = told >= 0
    known[instance[stated]] = told[stated]
    known[instance[stated & (told != known[instance])]] = -1
    heads = trace.array("rank")[row] == known[instance]
    head = np.full(len(known), -1)
    head[instance[heads]] = row[heads]
    return head[instance]


def numbers(trace: Trace, column: str, rows: Array) -> Array:
    """Integers of an annotation column; -1 where unknown."""
    if column not in trace.nodes.column_names:
        return np.full(len(rows), -1, np.int64)
    return np.asarray(arrow.numbers(trace.nodes[column], -1))[rows].astype(np.int64)


def coded(trace: Trace, column: str, rows: Array) -> tuple[Array, tuple[str, ...]]:
    """Codes of a column of names, and the names."""
    if column not in trace.nodes.column_names:
        return np.full(len(rows), -1, np.int64), ()
    names = arrow.flat(trace.nodes[column]).dictionary.to_pylist()
    return numbers(trace, column, rows), tuple(names)


def _members(trace: Trace) -> Members:
    row = np.flatnonzero(trace.array("kind") == Kind.COMM)
    kind, kinds = coded(trace, "collective", row)
    rank = trace.array("rank")[row].astype(np.int64)
    return Members(
        row=row,
        rank=rank,
        group=communicators(trace, numbers(trace, "group", row), rank),
        kind=kind,
        size=numbers(trace, "bytes", row),
        seq=numbers(trace, "seq", row),
        peer=numbers(trace, "peer", row),
        end=(trace.array("ts") + trace.array("dur"))[row],
        kinds=kinds,
    )


def communicators(trace: Trace, group: Array, rank: Array) -> Array:
    """Number of the communicator that rows of a `group` and `rank` are of.

    A group without ranks, and none at all, is all ranks of the job. Groups of the same ranks are one
    if each rank knows it by one name; else those with equal names are.
    """
    everyone = tuple(trace.ranks)
    listed = [tuple(sorted(g["ranks"])) or everyone for g in trace.groups.to_pylist()]
    first, _ = gather.distinct(group, rank)
    users: dict[int, set[int]] = {}
    for g, r in zip(group[first].tolist(), rank[first].tolist(), strict=True):
        users.setdefault(g, set()).add(r)
    alike: dict[tuple[int, ...], list[int]] = {}
    for g in users:
        alike.setdefault(listed[g] if g >= 0 else everyone, []).append(g)
    number = np.zeros(len(listed) + 1, np.int64)  # the last is that of none
    count = 0
    for rows in alike.values():
        one = sum(len(users[g]) for g in rows) == len(set().union(*(users[g] for g in rows)))
        for g in rows:
            number[g] = count
            count += not one
        count += one
    return number[group]


def _label_collectives(members: Members, label: Array, issues: IssueLog) -> None:
    chosen = np.flatnonzero(~members.of(_NO_ORDER))
    by_seq = _numbered(members, chosen)
    _by_sequence(members, chosen[by_seq], label, issues)
    _by_order(members, chosen[~by_seq], label, issues)


def _numbered(members: Members, chosen: Array) -> Array:
    """Which are of groups whose ranks all state sequence numbers."""
    if not chosen.size:
        return np.zeros(0, np.bool_)
    group = members.group[chosen]
    first, of_rank = gather.distinct(group, members.rank[chosen])
    share = np.bincount(of_rank, members.seq[chosen] >= 0) / np.bincount(of_rank)
    silent = group[first[share < _MOSTLY]]
    return ~np.isin(group, silent)


def _occurrence(code: Array) -> Array:
    """The how-many-th of its code each element is."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    nth = np.empty(len(code), np.int64)
    nth[order] = np.arange(len(code)) - np.searchsorted(ordered, ordered)
    return nth


def _by_sequence(members: Members, chosen: Array, label: Array, issues: IssueLog) -> None:
    """Match what states its sequence number: the k-th kernels under the same one."""
    issues.add(UNLIKE, np.count_nonzero(members.seq[chosen] < 0), "without a sequence number")
    chosen = chosen[members.seq[chosen] >= 0]
    if not chosen.size:
        return
    key = (members.group[chosen], members.kind[chosen], members.seq[chosen])
    rank = members.rank[chosen]
    first, call = gather.distinct(*key)
    of_rank_first, of_rank = gather.distinct(call, rank)
    kernels = np.bincount(of_rank)
    call_of = call[of_rank_first]
    low = np.full(len(first), np.iinfo(np.int64).max)
    high = np.zeros(len(first), np.int64)
    np.minimum.at(low, call_of, kernels)
    np.maximum.at(high, call_of, kernels)
    uneven = (low != high)[call]
    if uneven.any():
        issues.add(UNEVEN, np.count_nonzero(uneven), f"seq {key[2][uneven][0]}")
    _, instance = gather.distinct(call, _occurrence(of_rank))
    _give(instance, chosen, ~uneven, label, members, issues)


def _give(
    instance: Array, chosen: Array, use: Array, label: Array, members: Members, issues: IssueLog
) -> None:
    """Take over instances that more than one rank is in."""
    size = np.bincount(instance[use], minlength=int(instance.max(initial=-1)) + 1)
    shared = use & (size[instance] > 1)
    label[chosen[shared]] = instance[shared] + label.max(initial=-1) + 1
    alone = chosen[use & ~shared]
    if alone.size:
        issues.add(ALONE, len(alone), _told(members, int(alone[0])))


def _told(members: Members, i: int) -> str:
    kind = members.kinds[members.kind[i]] if members.kind[i] >= 0 else "of unknown kind"
    seq = f", seq {members.seq[i]}" if members.seq[i] >= 0 else ""
    return f"{kind} of rank {members.rank[i]}{seq}"


def _by_order(members: Members, chosen: Array, label: Array, issues: IssueLog) -> None:
    """Match what does not state its sequence number, by order within its group."""
    together = members.of(TOGETHER) | (members.kind < 0)  # most are, and it need but fit most
    to_all = members.of((Collective.ALL_TO_ALL,))
    sizes = (members.size, np.where(to_all, -1, members.size))  # ranks may put in what they like
    codes = [gather.distinct(members.kind, size)[1] for size in sizes]
    starts, order = gather.lists(
        members.group[chosen], chosen, int(members.group.max(initial=-1)) + 1
    )
    found = 0
    for group in range(len(starts) - 1):
        mine = order[starts[group] : starts[group + 1]]
        ranks = np.unique(members.rank[mine])
        if len(ranks) < 2:  # noqa: PLR2004
            if len(mine):
                issues.add(ALONE, len(mine), _told(members, int(mine[0])))
            continue
        parts = [mine[members.rank[mine] == r] for r in ranks]
        if (members.kind[mine] < 0).any() and min(map(len, parts)) < _SAID_BY_ENDS:
            issues.add(UNLIKE, len(mine), _told(members, int(mine[0])))
            continue
        best = mine[:0], mine[:0]
        for code in (*codes, members.kind):  # sizes may be uneven, or told by some ranks only
            if code is members.kind and len(best[0]) > _MOSTLY * len(mine):
                break
            told = [collective_order.Run(code[p], members.end[p], together[p]) for p in parts]
            place = np.concatenate(collective_order.places(told))
            there = place != collective_order.NOWHERE
            best = max(best, (mine[there], place[there]), key=lambda pair: len(pair[0]))
            if there.all():
                break
        kept, place = best
        lost = np.setdiff1d(mine, kept)
        if lost.size:
            issues.add(UNLIKE, len(lost), _told(members, int(lost[0])))
        _, instance = gather.distinct(place)
        _give(instance, kept, np.ones(len(kept), np.bool_), label, members, issues)
        found += np.count_nonzero(label[kept] >= 0)
    issues.add(BY_ORDER, found)


def _label_pairs(members: Members, label: Array, issues: IssueLog) -> None:
    """Pair sends with receives of each two ranks: by sequence number, else by order and size."""
    chosen = np.flatnonzero(members.of(_ENDS))
    sends = members.of((Collective.SEND,))[chosen]
    rank, peer = members.rank[chosen], members.peer[chosen]
    src, dst = np.where(sends, rank, peer), np.where(sends, peer, rank)
    first, pair = gather.distinct(members.group[chosen], src, dst)
    starts, order = gather.lists(pair, np.arange(len(chosen)), len(first))
    lost = np.count_nonzero(members.of((Collective.SEND_RECV,)))
    for k in range(len(first)):
        mine = order[starts[k] : starts[k + 1]]
        sent, received = chosen[mine[sends[mine]]], chosen[mine[~sends[mine]]]
        if peer[mine[0]] < 0 or src[mine[0]] == dst[mine[0]]:
            sent, received = sent[:0], received[:0]
        a, b = _paired(members, sent, received)
        new = np.arange(len(a)) + label.max(initial=-1) + 1
        label[sent[a]] = new
        label[received[b]] = new
        lost += len(mine) - 2 * len(a)
    issues.add(UNPAIRED, lost)


def _paired(members: Members, sent: Array, received: Array) -> tuple[Array, Array]:
    """Places of sends and of their receives."""
    by_number = _paired_by_number(members, sent, received)
    if by_number is not None:
        return by_number
    if np.array_equal(members.size[sent], members.size[received]):
        every = np.arange(len(sent))
        return every, every
    both = (sent, received)
    _, code = gather.distinct(members.size)
    told = [collective_order.Run(code[p], members.end[p], np.ones(len(p), np.bool_)) for p in both]
    a, b = collective_order.places(told) if all(map(len, both)) else both
    kept = a != collective_order.NOWHERE
    _, i, j = np.intersect1d(a[kept], b, assume_unique=True, return_indices=True)
    return np.flatnonzero(kept)[i], j


def _paired_by_number(members: Members, sent: Array, received: Array) -> tuple[Array, Array] | None:
    """Places of sends and receives under the same sequence numbers; None if these do not tell.

    A rank may count what it exchanges with all others: its numbers then mean nothing to the other
    end, and one end has some that the other lacks between the first and last that both have.
    """
    numbers = members.seq[sent], members.seq[received]
    shared = np.intersect1d(*numbers)
    if not shared.size or min(int(n.min()) for n in numbers) < 0:
        return None
    a, b = (np.argsort(n, kind="stable") for n in numbers)  # of equal ones in their order
    a, b = (
        p[(n[p] >= shared[0]) & (n[p] <= shared[-1])] for p, n in zip((a, b), numbers, strict=True)
    )
    if not np.array_equal(numbers[0][a], numbers[1][b]):
        return None
    size, other = members.size[sent[a]], members.size[received[b]]
    return None if ((size != other) & (size >= 0) & (other >= 0)).any() else (a, b)
