"""Waits within the graphs that one call launches (CUDA and HIP graphs), and of what is around them, without calls.

A graph begins when the work before it on its stream has ended, and what follows there begins when all of the graph
has ended, whatever streams its branches run on. Within it, branches join.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import preceding_rows
from chopper_interop.edges.queues import Queues, group_pairs
from chopper_interop.edges.wait_pairs import HELD_NS
from chopper_interop.schemas.names import GRAPH_LAUNCH
from chopper_interop.trace import Trace

_JOINED_RATIO = 2.5
"""Time between work of a graph and the work before it on its lane, over the median, from which it has other
predecessors too. Measured on an H200: 0.25 to 0.45 µs behind one predecessor, 1.3 to 1.9 µs behind several."""
_JOINED_EXCESS_NS = 500
"""And from which it is so much longer than the median: the least that was measured is 850 ns."""


#   stream 7    [ before ] [ a ]      [ b ] [ behind ]
#   stream 174             [ c ][ d ]                    before -> c; d -> b, as b started later behind a than
#   stream 176                   [ e ]                   others do; before -> e; d, e -> behind
def slots_of_graphs(trace: Trace, queues: Queues, ranks: Array) -> tuple[Array, Array, Array]:
    """Slots of work, of work of the same graph or around it on another lane that waits for it, and of held up work.

    Of the graphs of some ranks.

    That work started right behind other work of its graph does not show that it waited for it: on an H200 up to
    eight of twelve branches of short kernels did so by chance. So forks within graphs stay unknown.
    """
    lane = queues.lane[queues.queue]
    members, launch = _members(trace, queues, ranks, lane)
    if not members.size:
        return members, members, members
    previous, following = _neighbours(queues, lane)
    captured = _around_captured(trace, queues, lane, members, launch)
    joins = _joins(queues, lane, members, launch, previous)
    around = _around(lane, members, launch, (previous, following), captured)
    source, target = (np.concatenate(side) for side in zip(joins, around, strict=True))
    possible = (source >= 0) & (target >= 0)
    possible &= queues.end[source] <= queues.start[target]
    source, target = source[possible], target[possible]
    return source, target, _held_up(queues, members, launch, previous, source, target)


def _members(trace: Trace, queues: Queues, ranks: Array, lane: Array) -> tuple[Array, Array]:
    """Slots of work of graphs, by start, and the number of the call that launched it.

    Graphs on one lane that has other work as well are left out: its order is all that is to be known of them.
    """
    launches = np.array([bool(GRAPH_LAUNCH.match(name)) for name in trace.names()] or [False])
    slot = np.flatnonzero((queues.call >= 0) & np.isin(queues.rank, ranks)[queues.queue])
    slot = slot[launches[trace.array("name")[queues.call[slot]]]]
    _, launch = gather.distinct(queues.call[slot], queues.device[queues.queue[slot]])
    first, _ = gather.distinct(launch, lane[slot])
    is_shared = _has_other_work(lane, slot)
    chosen = (np.bincount(launch[first]) > 1)[launch] | ~is_shared[lane[slot]]
    slot, launch = slot[chosen], launch[chosen]
    order = np.lexsort((queues.start[slot], launch))
    return slot[order], launch[order]


def _neighbours(queues: Queues, lane: Array) -> tuple[Array, Array]:
    """For each slot the one before and the one behind it on its lane; -1 if there is none."""
    order = np.lexsort((queues.start, lane))
    same = lane[order[1:]] == lane[order[:-1]]
    previous, following = np.full((2, len(lane)), -1, np.int64)
    previous[order[1:][same]] = order[:-1][same]
    following[order[:-1][same]] = order[1:][same]
    return previous, following


def _held_up(
    queues: Queues, members: Array, launch: Array, previous: Array, source: Array, target: Array
) -> Array:
    """Work of graphs that could have started sooner, by what it is known to wait for and when its graph began."""
    free = np.where(previous >= 0, queues.end[previous], np.iinfo(np.int64).min // 2)
    np.maximum.at(free, target, queues.end[source])
    begins = np.full(int(launch.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, launch, queues.start[members])
    return members[queues.start[members] - np.maximum(free[members], begins[launch]) > HELD_NS]


def _joins(
    queues: Queues, lane: Array, members: Array, launch: Array, previous: Array
) -> tuple[Array, Array]:
    """Last work of each branch, and the first work behind its end on another lane that joins anything.

    What has one predecessor starts sooner behind it than what has several. So joins show that hold up nothing.
    """
    own = previous[members]
    call = queues.call
    inside = (own >= 0) & (call[own] == call[members])
    rank = queues.rank[queues.queue[members[inside]]]
    gap = queues.start[members[inside]] - queues.end[own[inside]]
    joins = np.zeros(len(members), bool)
    joins[inside] = gap >= _min_joined_ns(rank, gap)
    joins[_without_branches(queues, lane, members, launch, joins)[launch]] = False
    joined = members[joins]
    _, number = gather.distinct(np.append(call[joined], call[members]))
    of_lane, branch = gather.distinct(launch, lane[members])
    last = np.zeros(len(of_lane), np.int64)
    last[branch] = np.arange(len(members))
    ends = members[last]
    # the first join that started since the branch's end: times are negated to look ahead
    row = preceding_rows(
        number[: len(joined)], -queues.start[joined],
        number[len(joined) :][last], -queues.end[ends],
    )  # fmt: skip
    branches = np.flatnonzero(row >= 0)
    branches = branches[lane[joined[row[branches]]] != lane[ends[branches]]]
    return ends[branches], joined[row[branches]]


#   stream 7      [ a ]   [ b ][ c ]   [ d ]      b may join the branch; nothing has ended between b and d that d
#   stream 174      [ ]                           could join, so that here gaps show no joins: a and c are copies
def _without_branches(
    queues: Queues, lane: Array, members: Array, launch: Array, joins: Array
) -> Array:
    """Mask of graphs in which work seems to join, but no work of other lanes has ended since what joined before."""
    row = np.flatnonzero(joins)
    start = queues.start[members[row]]
    of_lane, branch = gather.distinct(launch, lane[members])
    at, other = group_pairs(launch[row], launch[of_lane])
    last = preceding_rows(branch, queues.end[members], other, start[at])
    known = (last >= 0) & (other != branch[row[at]])
    ended = np.full(len(row), np.iinfo(np.int64).min)
    np.maximum.at(ended, at[known], queues.end[members[last[known]]])
    since = preceding_rows(launch[row], start, launch[row], start - 1)
    before = np.where(since >= 0, start[since], np.iinfo(np.int64).min)
    result = np.zeros(int(launch.max()) + 1, bool)
    result[launch[row[ended <= before]]] = True
    return result


def _min_joined_ns(rank: Array, gap: Array) -> Array:
    """For each gap the shortest of its rank behind which work joins others: never where times are whole µs, or most are 0."""
    _, number = gather.distinct(rank)
    count = np.bincount(number)
    usual = gap[np.lexsort((gap, number))][np.cumsum(count) - (count + 1) // 2]  # medians
    is_fine = (np.bincount(number, gap % 1_000 != 0) > 0) & (usual > 0)
    bound_ns = np.maximum(_JOINED_RATIO * usual, usual + _JOINED_EXCESS_NS)
    return np.where(is_fine, bound_ns, np.inf)[number]


def _has_other_work(lane: Array, members: Array) -> Array:
    """Mask of lanes that have work of no graph."""
    is_other = np.ones(len(lane), bool)
    is_other[members] = False
    result = np.zeros(int(lane.max()) + 1, bool)
    result[lane[is_other]] = True
    return result


def _around(
    lane: Array,
    members: Array,
    launch: Array,
    neighbours: tuple[Array, Array],
    captured: tuple[Array, Array],
) -> tuple[Array, Array]:
    """First work of branches behind the work before the graph, and the work behind the graph behind their last.

    A graph is launched into the stream that has other work as well; its branches run on streams of their own. If all
    of them do, it is the stream into which its thread launched before.
    """
    is_used = _has_other_work(lane, members)
    of_lane, branch = gather.distinct(launch, lane[members])
    last = np.zeros(len(of_lane), np.int64)
    last[branch] = np.arange(len(members))  # members are in order: the last one stays
    main = is_used[lane[members[of_lane]]]
    (previous, following), (before, behind) = neighbours, captured
    before[launch[of_lane[main]]] = previous[members[of_lane[main]]]
    behind[launch[of_lane[main]]] = following[members[last[main]]]
    begins, ends = members[of_lane[~main]], members[last[~main]]
    of_launch = launch[of_lane[~main]]
    return (
        np.concatenate([before[of_launch], ends]),
        np.concatenate([begins, behind[of_launch]]),
    )


#   thread       launch a   launch graph   launch b
#   stream 7       [ a ]                      [ b ]      a -> c, d -> b: the graph was captured on a stream of its own
#   stream 164           [ c ][ d ]                      (`torch.cuda.graph`), and CUPTI shows its work there
def _around_captured(
    trace: Trace, queues: Queues, lane: Array, members: Array, launch: Array
) -> tuple[Array, Array]:
    """Work before and behind each graph on the stream into which its thread launched last; -1 if it cannot be that."""
    first = np.flatnonzero(np.diff(launch, prepend=-1))
    graph = launch[first]
    others = queues.call >= 0
    others[members] = False
    row = np.flatnonzero(others)
    thread = trace.array("lane")
    at, asked = queues.submit[members[first]], thread[queues.call[members[first]]]
    before, behind = np.full((2, int(launch.max()) + 1), -1, np.int64)
    known = preceding_rows(thread[queues.call[row]], queues.submit[row], asked, at)
    graph, first = graph[known >= 0], first[known >= 0]
    at, asked, source = at[known >= 0], asked[known >= 0], row[known[known >= 0]]
    same = lane[source]
    _, number = gather.distinct(
        np.append(thread[queues.call[row]], asked), np.append(lane[row], same)
    )
    following = preceding_rows(number[: len(row)], -queues.submit[row], number[len(row) :], -at)
    target = np.where(following >= 0, row[following], -1)
    begin = queues.start[members[first]]
    end = np.full(len(before), np.iinfo(np.int64).min)
    np.maximum.at(end, launch, queues.end[members])
    fits = queues.end[source] <= begin
    fits &= (target < 0) | (queues.start[target] >= end[graph])
    before[graph[fits]], behind[graph[fits]] = source[fits], target[fits]
    return before, behind
