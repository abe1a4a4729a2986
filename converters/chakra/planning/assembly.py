"""All nodes of a plan in order: host nodes, GPU work, gaps, control messages, begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array, gather, row_numbers
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra.planning.connected import Host, connected_nodes, joined_rows
from chopper_interop.converters.chakra.planning.control import (
    Control,
    control_messages,
    ready_before,
    with_ends,
    with_readiness,
    with_relays,
)
from chopper_interop.converters.chakra.planning.plan import Communication, Mode
from chopper_interop.converters.chakra.planning.ranks import NodeRanks
from chopper_interop.converters.chakra.schedule import (
    COMM,
    COMPUTE,
    HOST,
    MAX_LATENCY_US,
    NO_SLOT,
    Nodes,
    Schedule,
    schedule,
    topological_order,
    unexplained_on_path,
)
from chopper_interop.io import memory
from chopper_interop.schemas.chakra import CONTROL, Cause
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike


_TOGETHER_NS = 5_000
"""Time within which messages come together. Chosen: what differs between the two ways of an exchange, and below what any
work takes."""


def assembled(
    trace: Trace, gpu: Array, mode: Mode, origin_ns: int, comm: Communication
) -> tuple[dict[str, Any], Array, list[Array], dict[str, Array]]:
    """Columns of all nodes, their gaps and messages of a few bytes, which of them there are, and dependencies.

    Dependencies are a list of nodes and one of those that depend on them. Of `Figures` there is an array each, of one value a rank.
    """
    host, nodes, order = connected_nodes(trace, gpu, mode, origin_ns, comm)
    memory.give_back(trace.nodes.nbytes)
    times = schedule(order, nodes, mode is not Mode.KERNELS)
    ranks = NodeRanks(len(trace.ranks), nodes.rank)
    # numbers before sorting, begin and end of each rank: | host nodes | GPU work | gaps | control messages | begin | end |
    h, n = len(host.row), len(nodes.slot)
    used = np.zeros(n, bool)
    used[order] = True
    del order
    gapped = np.flatnonzero(used & (times.gap_us > 0) & ~nodes.is_apart)
    control = control_messages(h, gpu, used, comm)
    src, dst = _all_dependencies(nodes, times, used, gapped)
    left_out = np.searchsorted(nodes.dep_first, np.flatnonzero(~times.kept), "right") - 1
    waits_as_time = ranks.counts(left_out)
    unused = np.empty(0, np.int64)  # in place of a hundred bytes a node that nothing needs any more
    nodes = nodes._replace(dep_first=unused, dep=unused, known_ns=unused)
    src, dst = _with_messages(control, nodes, gpu, comm, gapped, src, dst, ranks)
    start, dur, end = _measured_times(trace, gpu, host, nodes, times, origin_ns)
    rows = np.flatnonzero(used)
    end_ns = ranks.largest(end, rows)
    del end
    overlapped = ranks.counts(h + np.flatnonzero(nodes.own_ns[h:] < trace.array("dur")[gpu]))
    nodes = nodes._replace(start_ns=unused, own_ns=unused)
    # latencies of the last launches, for which no return makes up
    late_us = (end_ns + 500) // 1000 - ranks.largest(times.ended_us, rows)
    end_us = np.where((late_us > 0) & (late_us <= MAX_LATENCY_US), late_us, 0)
    if mode is Mode.KERNELS:
        end_us[:] = 0
    has_host = ranks.have(np.flatnonzero(used[:h]))
    of_nodes = [nodes.rank, nodes.rank[gapped], nodes.rank[control.owner]]
    of_all = np.concatenate([*of_nodes, *(np.arange(ranks.count),) * 2])
    begins, leaves = _borders(
        control, gpu, used, len(gapped), comm, src, dst, has_host[of_all], (end_us > 0)[of_all]
    )
    unexplained = times.unexplained_us[gapped]
    columns: dict[str, Any] = _identities(host, gpu, unexplained, control, ranks.count)
    columns |= _times(nodes, times, gapped, control, start, dur, end_ns, end_us)
    columns["rank"] = of_all.astype(np.uint16)
    del start, dur
    unexplained_us, length_us = unexplained_on_path(times, nodes.rank, ranks.count)
    times = times._replace(
        gap_us=unused, unexplained_us=unused, ended_us=unused, anchor=unused, follows=unused
    )
    memory.give_back(trace.nodes.nbytes)
    own_ns = np.where(host.is_return, np.minimum(host.call_ns, 1000 * times.slot_us[:h]), -1)
    columns["own_ns"] = _sparse(own_ns, np.full(len(columns["row"]) - h, -1))
    del own_ns
    columns["relay"] = _sparse(
        np.full(n + len(gapped), -1, np.int8), control.relay, np.full(2 * ranks.count, -1, np.int8)
    )
    columns["slot"] = _column(
        np.uint8, nodes.slot, nodes.slot[gapped], np.where(control.is_sent, COMM, NO_SLOT),
        np.tile(np.where(has_host, HOST, COMPUTE), 2),
    )  # fmt: skip
    begin_of, end_of = of_all[begins], of_all[leaves]
    has_begin, has_end = np.zeros((2, ranks.count), bool)
    has_begin[begin_of], has_end[end_of] = True, True
    # simulators do not run files without any node
    has_end |= ~ranks.have(rows)
    del of_all
    between = np.ones(len(gapped) + len(control.owner), bool)
    keep = np.concatenate([used, between, has_begin, has_end])
    row_numbers.require(len(keep), "nodes of execution traces")
    begin = len(keep) - 2 * ranks.count
    src = _column(np.int32, src, begin + begin_of, leaves)
    dst = _column(np.int32, dst, begins, begin + ranks.count + end_of)
    columns, keep, src, dst = _with_latencies(
        columns, keep, src, dst, nodes, times, host, gapped, ranks.count
    )
    columns, keep, src, dst = _with_least_times(columns, keep, src, dst, nodes, times, used)
    columns, keep, src, dst = _with_answers(columns, keep, src, dst, control, n + len(gapped))
    figures = {
        "waits_as_time": waits_as_time,
        "overlapped": overlapped,
        "unexplained_us": unexplained_us,
        "length_us": length_us,
        "span_ns": end_ns,
    }
    return columns, keep, [src, dst], figures


def _with_messages(
    control: Control,
    nodes: Nodes,
    gpu: Array,
    comm: Communication,
    gapped: Array,
    src: Array,
    dst: Array,
    ranks: NodeRanks,
) -> tuple[Array, Array]:
    """Dependencies with those of control messages, which are numbered behind nodes and their gaps."""
    if not len(control.owner):
        return src, dst
    h, numbers = len(nodes.slot) - len(gpu), len(nodes.slot) + len(gapped)
    joined = joined_rows(gpu, comm.turn, ranks)
    npu = np.concatenate([np.full(h, -1, np.int64), comm.npu[gpu]])
    src, dst = with_readiness(control, npu, numbers, src, dst)
    later_ns = np.append(np.zeros(h, np.int64), comm.sender_later_ns[gpu])
    early, behind = ready_before(control, nodes, numbers, joined, later_ns, ranks)
    src, dst = np.append(src, early), np.append(dst, behind)
    src, dst = with_relays(control, nodes, gapped, joined, src, dst)
    return with_ends(control, numbers, joined, src, dst)


def _borders(
    control: Control,
    gpu: Array,
    used: Array,
    gaps: int,
    comm: Communication,
    src: Array,
    dst: Array,
    has_host: Array,
    last: Array,
) -> tuple[Array, Array]:
    """Communication that nothing comes before, and nodes that the node `end` of their rank waits for.

    These are messages, at which simulators of ranks with host nodes (`has_host`) must not end; and in ranks with `last`
    all nodes that nothing waits for, as `end` has time of its own then. Both are masks of nodes.
    """
    h, n = len(used) - len(gpu), len(used)
    others, on_host = np.zeros(gaps, bool), np.zeros(h, bool)
    sent = comm.sends[gpu] | (comm.turn[gpu] >= 0)
    transmits = np.concatenate([on_host, sent, others, control.is_sent])
    message = (comm.sends | comm.receives)[gpu]
    messages = np.concatenate([on_host, message, others, np.ones(len(control.owner), bool)])
    transmits[:n] &= used
    messages[:n] &= used
    has_source, has_target = np.zeros((2, len(messages)), bool)
    has_source[dst], has_target[src] = True, True
    awaited_by_end = messages & has_host[: len(messages)]
    awaited_by_end[:n] |= used & last[:n]
    return np.flatnonzero(transmits & ~has_source), np.flatnonzero(awaited_by_end & ~has_target)


def _times(
    nodes: Nodes,
    times: Schedule,
    gapped: Array,
    control: Control,
    start: Array,
    dur: Array,
    end_ns: Array,
    end_us: Array,
) -> dict[str, Array]:
    """Measured times and times in slots of all nodes; when each rank ends, and how long its `end` takes."""
    gap_us = times.gap_us[gapped]
    gap_start = np.maximum(start[gapped] - 1000 * gap_us, 0)
    none = np.zeros(len(control.owner), np.int64)
    ended = np.where(control.cause == Cause.ENDED, dur[control.owner], 0)
    begun = np.where(control.relay >= 0, control.ended_ns, start[control.owner] + ended)
    # when replayed, a notification of another rank comes when that was measured
    comes_us = np.where(control.is_sent | (control.relay < 0), 0, (control.ended_ns + 500) // 1000)
    comes_us += np.maximum(control.moves_us, 0)
    begin = np.zeros(len(end_us), np.int64)
    others = len(gapped) + len(none) + 2 * len(begin)
    late_cause = np.where(times.unexplained_us > 0, Cause.UNEXPLAINED, Cause.LATENCY)
    return {
        "start_ns": np.concatenate([
            start, gap_start, begun, begin, np.maximum(end_ns - 1000 * end_us, 0),
        ]),
        "duration_ns": np.concatenate([dur, 1000 * gap_us, none, begin, 1000 * end_us]),
        "slot_us": np.concatenate([times.slot_us, gap_us, comes_us, begin, end_us]),
        "late_us": _sparse(np.where(nodes.is_apart, times.gap_us, 0), np.zeros(others, np.int8)),
        "late_cause": _column(np.uint8, late_cause, np.full(others, Cause.LATENCY)),
    }  # fmt: skip


def _identities(
    host: Host, gpu: Array, unexplained_us: Array, control: Control, ranks: int
) -> dict[str, Array]:
    """Rows of the trace, owners and causes of host nodes, GPU work, gaps, control messages, begins and ends of ranks."""
    gaps = len(unexplained_us)
    is_row = host.row >= 0
    absent = np.full(gaps + len(control.owner) + 2 * ranks, -1)
    cause = np.where(is_row, Cause.WORK, np.where(host.is_return, Cause.RETURN, Cause.HOST))
    return {
        "row": _column(np.int32, host.row, gpu, absent),
        "owner": _column(
            np.int32, np.where(is_row, -1, host.owner), np.full(len(gpu) + gaps, -1),
            gpu[control.owner - len(is_row)], np.full(2 * ranks, -1),
        ),
        "thread": _sparse(host.thread, np.full(len(gpu) + len(absent), -1, np.int8)),
        "cause": _column(
            np.uint8, cause, np.full(len(gpu), Cause.WORK),
            np.where(unexplained_us > 0, Cause.UNEXPLAINED, Cause.LATENCY), control.cause,
            np.repeat([Cause.BEGIN, Cause.END], ranks),
        ),
    }  # fmt: skip


def _column(dtype: DTypeLike, *parts: ArrayLike) -> Array:
    """Column of all nodes from those of its parts."""
    return np.concatenate(parts, dtype=dtype, casting="unsafe")


def _sparse(*parts: ArrayLike) -> Array:
    """Column of all nodes from those of its parts, in the smallest type with room for them.

    Of such columns most values are 0 or -1, as are those that are appended later (`_append`).
    """
    arrays = [np.asarray(part) for part in parts]
    least = min(int(array.min(initial=0)) for array in arrays)
    largest = max(int(array.max(initial=0)) for array in arrays)
    return _column(np.min_scalar_type(min(least, -1 - largest)), *arrays)


def _measured_times(
    trace: Trace,
    gpu: Array,
    host: Host,
    nodes: Nodes,
    times: Schedule,
    origin_ns: int,
) -> tuple[Array, Array, Array]:
    """Measured starts, durations and ends of host nodes and GPU work."""
    h = len(host.row)
    ts, dur = trace.array("ts") - origin_ns, trace.array("dur")
    operation = np.flatnonzero(host.row >= 0)
    # a return has the time of its end, and begins within its call; other work has its measured start
    returns = np.flatnonzero(host.is_return)
    caller, lasts = host.owner[returns], 1000 * times.slot_us[returns]
    within = nodes.start_ns[returns] - ts[caller]
    start, own = nodes.start_ns.copy(), nodes.own_ns.copy()
    own[returns] = np.where(caller >= 0, np.clip(within, 0, lasts), lasts)
    start[returns] -= own[returns]
    start[h:], own[h:] = ts[gpu], dur[gpu]
    own[operation] = dur[host.row[operation]]
    end = start + own
    end[operation] = (ts + dur)[host.row[operation]]
    return start, own, end


def _all_dependencies(
    nodes: Nodes, times: Schedule, used: Array, gapped: Array
) -> tuple[Array, Array]:
    """Dependencies of nodes that hold, and of gaps: a gap depends on what its node depends on."""
    n = len(nodes.slot)
    gap_of = n + np.arange(len(gapped), dtype=np.int32)
    anchored = np.arange(n, dtype=np.int32)
    target = np.repeat(anchored, np.diff(nodes.dep_first))
    held = np.flatnonzero(times.kept & used[target] & used[nodes.dep])
    src, dst = nodes.dep[held], target[held]
    anchored[gapped] = gap_of
    into_gap = np.flatnonzero(anchored[dst] >= n)
    anchors, follows = np.flatnonzero(times.anchor >= 0), np.flatnonzero(times.follows >= 0)
    pairs = [
        (src, dst),
        (src[into_gap], anchored[dst[into_gap]]),
        (gap_of, gapped),
        (times.anchor[anchors], anchored[anchors]),
        (times.follows[follows], anchored[follows]),
    ]
    src, dst = (_column(np.int32, *side) for side in zip(*pairs, strict=True))
    return src, dst


def _with_latencies(
    columns: dict[str, Any],
    keep: Array,
    src: Array,
    dst: Array,
    nodes: Nodes,
    times: Schedule,
    host: Host,
    gapped: Array,
    ranks: int,
) -> tuple[dict[str, Any], Array, Array, Array]:
    """Nodes in which returns wait for their latency and not only take it, where the slot of communication is free.

    So a call that need not wait takes its own time alone::

        work      ...work ──> latency ─┐
        host      ...call ─────────────┴─> return: the call's own time

    Parameters
    ----------
    columns, keep, src, dst
        All nodes, which of them there are, and pairs of which the second depends on the first.
    nodes, times, host
        Host nodes and GPU work, the first of all nodes.
    gapped
        Those of them with a gap, which are numbered behind them.
    ranks
        How many ranks there are.
    """
    h, n, total = len(host.row), len(nodes.slot), len(keep)
    own_us = np.minimum((host.call_ns + 500) // 1000, times.slot_us[:h])
    binding = times.binding[:h]
    behind_work = (binding >= 0) & (nodes.slot[binding] != HOST)
    returns = np.flatnonzero(keep[:h] & host.is_return & behind_work & (times.slot_us[:h] > own_us))
    if not len(returns):
        return columns, keep, src, dst
    communicates = np.zeros(ranks, bool)
    communicates[columns["rank"][keep & (columns["slot"] == COMM)]] = True
    returns = returns[~communicates[columns["rank"][returns]]]
    if not len(returns):
        return columns, keep, src, dst
    latency = np.full(total, -1, np.int64)
    latency[returns] = total + np.arange(len(returns))
    of_gap = latency[gapped]
    latency[n : n + len(gapped)] = of_gap
    on_gpu = (src >= h) & (src < n) & (latency[dst] >= 0)
    dst = np.where(on_gpu, latency[dst], dst)
    waits = np.flatnonzero(latency >= 0)
    us = times.slot_us[returns] - own_us[returns]
    more = {
        name: column[returns] for name, column in columns.items()
    } | {
        "owner": np.full(len(returns), -1), "duration_ns": 1000 * us, "slot_us": us,
        "own_ns": np.full(len(returns), -1), "slot": np.full(len(returns), COMM),
    }  # fmt: skip
    columns["slot_us"][returns] = own_us[returns]
    keep = _append(columns, keep, more)
    return columns, keep, _column(np.int32, src, latency[waits]), _column(np.int32, dst, waits)


def _append(columns: dict[str, Any], keep: Array, more: dict[str, Array]) -> Array:
    """Append nodes to columns, one after the other, as all of them twice would take most of a plan's memory."""
    row_numbers.require(len(keep) + len(more["slot"]), "nodes of execution traces")
    for name, of_more in more.items():
        columns[name] = np.concatenate([columns[name], of_more.astype(columns[name].dtype)])
    return np.append(keep, np.ones(len(more["slot"]), bool))


def _with_least_times(
    columns: dict[str, Any],
    keep: Array,
    src: Array,
    dst: Array,
    nodes: Nodes,
    times: Schedule,
    used: Array,
) -> tuple[dict[str, Any], Array, Array, Array]:
    """Nodes of the least time between work of a stream, for which nothing but the work behind it waits.

    So a stream that was waiting for its host, and no longer does, takes that time too.
    """
    h = len(nodes.slot) - len(nodes.behind)
    work = np.flatnonzero(used[h:] & (times.behind_us > 0))
    later, before, us = h + work, nodes.behind[work], times.behind_us[work]
    ended_ns = columns["start_ns"][before] + columns["duration_ns"][before]
    more = {name: np.full(len(later), -1) for name in ("row", "owner", "thread", "own_ns", "relay")} | {
        "cause": np.full(len(later), Cause.LATENCY), "late_cause": np.full(len(later), Cause.LATENCY),
        "start_ns": np.minimum(ended_ns, columns["start_ns"][later]), "duration_ns": 1000 * us, "slot_us": us,
        "late_us": np.zeros(len(later), np.int64), "slot": nodes.slot[later], "rank": nodes.rank[later],
    }  # fmt: skip
    number = len(keep) + np.arange(len(later))
    keep = _append(columns, keep, more)
    return (
        columns,
        keep,
        _column(np.int32, src, before, number),
        _column(np.int32, dst, number, later),
    )


def _with_answers(
    columns: dict[str, Any],
    keep: Array,
    src: Array,
    dst: Array,
    control: Control,
    numbers: int,
) -> tuple[dict[str, Any], Array, Array, Array]:
    """Nodes of the work of a single rank before it recorded, which others waited for, one after the other.

    Messages notify it of what it follows; others say that it has ended, those that move no data first, and the next
    work comes behind them.

    Parameters
    ----------
    columns, keep, src, dst
        All nodes, which of them there are, and pairs of which the second depends on the first.
    control, numbers
        Messages of a few bytes, and the number of nodes before them.
    """
    ends = np.flatnonzero(control.moves_us >= 0)
    ends = ends[np.argsort(control.ended_ns[ends], kind="stable")]
    if not len(ends):
        return columns, keep, src, dst
    # what ends together is one piece of work
    group = np.cumsum(
        np.diff(control.ended_ns[ends], prepend=control.ended_ns[ends[0]]) > _TOGETHER_NS
    )
    of_answer = np.full(int(control.of_answer.max()) + 1, -1, np.int64)
    of_answer[control.of_answer[ends]] = group
    notifies = np.flatnonzero((control.of_answer >= 0) & ~control.is_sent & ~control.notifies)
    notified = of_answer[control.of_answer[notifies]]
    until_us, since_us, moved_us = np.zeros((3, int(group[-1]) + 1), np.int64)
    np.maximum.at(until_us, group, (control.ended_ns[ends] + 500) // 1000)
    np.maximum.at(since_us, notified, (control.ended_ns[notifies] + 500) // 1000)
    np.add.at(moved_us, group, control.moves_us[ends])
    since_us[1:] = np.maximum(since_us[1:], (until_us + moved_us)[:-1])
    us = np.maximum(until_us - since_us, 0)
    count = len(us)
    more = {name: np.full(count, -1) for name in ("row", "owner", "thread", "own_ns", "relay")} | {
        "cause": np.full(count, Cause.UNRECORDED), "late_cause": np.full(count, Cause.LATENCY),
        "start_ns": 1000 * (until_us - us), "duration_ns": 1000 * us, "slot_us": us,
        "late_us": np.zeros(count, np.int64), "slot": np.full(count, COMM), "rank": np.zeros(count, np.int64),
    }  # fmt: skip
    work, total = len(keep) + group, len(keep) + count
    before = work + 1 < total
    in_turn = np.lexsort((control.moves_us[ends], group))
    first, then = in_turn[:-1], in_turn[1:]
    together = group[first] == group[then]
    pairs = [
        (numbers + notifies, len(keep) + notified), (work, numbers + ends),
        (numbers + ends[before], work[before] + 1),
        (numbers + ends[first[together]], numbers + ends[then[together]]),
    ]  # fmt: skip
    src, dst = (
        np.concatenate([a, *b]) for a, b in zip((src, dst), zip(*pairs, strict=True), strict=True)
    )
    return columns, _append(columns, keep, more), src, dst


def in_order(columns: dict[str, Any], keep: Array, pairs: list[Array]) -> dict[str, Any]:
    """Rows to keep by rank and start, a gap before what starts with it; dependencies renumbered and listed.

    The columns and pairs that are given are used up.
    """
    kept = np.flatnonzero(keep)
    number = np.full(len(keep), -1, np.int32)
    number[kept] = np.arange(len(kept))
    dst, src = number[pairs.pop()], number[pairs.pop()]
    del number
    cause = columns["cause"][kept]
    precedes = is_any(cause, (Cause.UNEXPLAINED, Cause.LATENCY, *CONTROL))
    # "begin" must not wait for a gap that holds its slot
    turn = np.full(len(kept), 2, np.uint8)
    turn[precedes] = 1
    turn[cause == Cause.BEGIN] = 0
    keys = (turn, columns["start_ns"][kept])
    rank = columns.pop("rank")[kept]
    by_start = np.lexsort((*keys, rank) if rank.any() else keys)
    position = np.empty(len(kept), np.int64)
    position[by_start] = np.arange(len(kept))
    order = by_start
    if (position[src] >= position[dst]).any():
        # clocks of host and device differ by microseconds: work may seem to start before its launch
        order = topological_order(position, *gather.group_values(src, dst, len(kept)))
        position[order] = np.arange(len(kept))
    # distinct pairs by (dst, src); those of node i lie between first[i] and first[i + 1]
    pair = position[dst] * len(kept) + position[src]
    pair.sort()
    pair = pair[np.diff(pair, prepend=-1) != 0]
    dst, src = np.divmod(pair, max(len(kept), 1))
    chosen = kept[order]
    ordered = {name: columns.pop(name)[chosen] for name in list(columns)}
    # pieces that stand for no row of the trace begin when rounded times say, but not out of order
    start, derived = ordered["start_ns"], ordered["row"] < 0
    ordered["start_ns"] = np.where(derived, gather.running_max(rank[order], start), start)
    ordered["rank"] = rank[order]
    return ordered | {"dep_first": np.searchsorted(dst, np.arange(len(kept) + 1)), "dep": src}
