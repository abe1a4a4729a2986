"""Changes to the own time of nodes, and to delays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts, operation_types
from chopper_interop.analyses.methods.changes import operations
from chopper_interop.analyses.methods.changes.changer import Change, ChangedTimes, Changer, scaled
from chopper_interop.analyses.methods.dvfs import ideal, sensitivity, target_clocks
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import MissingDataError
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind
from chopper_interop.timing import variation

if TYPE_CHECKING:
    from chopper_interop.timing.model import Timing

_NO_WAIT_NS = -(2**60)
"""Least time along an edge that no longer makes anything wait."""


def scale(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Multiply own time of nodes by a factor."""
    edge = changer.edges(changer.within(chosen))
    now.lag_ns[edge] = scaled(now.lag_ns[edge], change.value)


def remove(changer: Changer, now: ChangedTimes, _change: Change, chosen: Array) -> None:
    """Set own time of nodes to 0, the delay of launches by these calls, and the gaps before GPU work."""
    inside = changer.within(chosen)
    work = chosen & is_any(changer.trace.array("kind"), GPU_WORK)
    variation.without_gaps(changer.timing, work, now.lag_ns, now.delay_ns)
    edge = changer.edges(inside)
    now.lag_ns[edge] = np.minimum(now.lag_ns[edge], 0)
    launches = operations.launches(changer)
    from_removed = launches[inside[changer.timing.graph.src[launches] // 2]]
    now.lag_ns[from_removed] = np.minimum(now.lag_ns[from_removed], 0)


def delays(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Multiply the waits of endpoints without a known reason by a factor."""
    endpoint = np.flatnonzero(changer.within(chosen)[changer.timing.graph.node])
    now.delay_ns[endpoint] = scaled(now.delay_ns[endpoint], change.value)


def nowait(changer: Changer, now: ChangedTimes, _change: Change, chosen: Array) -> None:
    """Let calls of hosts return without the GPU work that they waited for, and threads go on that polled for what they launched."""
    calls = changer.within(chosen) & is_any(changer.trace.array("kind"), CALLS)
    return_without_waiting(changer.timing, calls, now.lag_ns, now.delay_ns, polled=GPU_WORK)


def return_without_waiting(
    timing: Timing,
    calls: Array,
    lag_ns: Array,
    delay_ns: Array,
    polled: Sequence[Kind] = (Kind.MEMCPY,),
) -> None:
    """Write into lags and delays that the marked calls wait neither for GPU work nor for what is not known.

    Nor do threads for work of the kinds `polled` that these calls launched: a copy may end behind the call that waits for it.
    """
    graph, trace = timing.graph, timing.trace
    ends = np.zeros(len(graph), bool)
    ends[2 * np.flatnonzero(calls) + 1] = True
    lag_ns[(graph.kind == EdgeKind.SYNC) & ends[graph.after]] = _NO_WAIT_NS
    delay_ns[ends] = 0
    polls = np.flatnonzero(graph.kind == EdgeKind.POLL)
    work = graph.node[graph.src[polls]]
    launch = trace.launch[work]
    polls = polls[(launch >= 0) & calls[launch] & is_any(trace.array("kind")[work], polled)]
    lag_ns[polls] = _NO_WAIT_NS
    delay_ns[graph.after[polls]] = 0


def clock(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set the duration of kernels to that at another core clock.

    Raises
    ------
    MissingDataError
        No clock of the chosen kernels is known: none would change, which is no answer.
    """
    trace, beta = changer.trace, change.options["beta"]
    known = sensitivity.kernel_sensitivities(trace)
    measured, node, is_change = known.repeats.clocks, known.repeats.node, change.value.is_change
    read = change.value.applied_to(measured.read_mhz if beta is not None else known.read_mhz)
    towards, mhz, _ = known.at_readings(read, is_change=is_change)
    kernels = chosen & (trace.array("kind") == Kind.KERNEL)
    is_known = np.zeros(len(kernels), bool)
    log = np.zeros(len(kernels))
    if beta is None:
        target_clocks.check_possible(read, known.read_mhz, target_clocks.highest(known))
        ratio, *_ = towards.ratio(mhz, is_change=is_change)
        durations = ideal.durations(towards, ratio, mhz, is_change=is_change)
        is_known, log = durations.key >= 0, durations.log
    else:
        has_clock = ~np.isnan(measured.mhz)
        is_known[node] = has_clock
        log[node[has_clock]] = np.log(beta * measured.mhz / mhz + 1 - beta)[has_clock]
    unchanged = int((kernels & ~is_known).sum())
    if unchanged and not (kernels & is_known).any():
        raise MissingDataError(
            "clock: at which clock the kernels ran is not known", hint=target_clocks.HOW_TO_RECORD
        )
    now.notes["kernels without a known clock, left unchanged"] += unchanged
    edge = changer.edges(kernels & is_known)
    factor = np.exp(log[changer.owner[edge]])
    now.lag_ns[edge] = paths.rounded(now.lag_ns[edge] * factor)


def median(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set the median of the counterparts that are not chosen; of all, where all are chosen."""
    inside = changer.within(chosen)
    kind = changer.trace.array("kind")
    same_kind = np.zeros(256, bool)  # counterparts are of one kind, which is 8 bits wide
    same_kind[kind[inside]] = True
    edge = changer.edges(same_kind[kind])
    key = _edge_keys(changer, edge, changer.group(change.value))
    selected = inside[changer.owner[edge]]
    edge, key, selected = edge[key >= 0], key[key >= 0], selected[key >= 0]
    lag = now.lag_ns[edge]
    new, count = counterparts.group_medians(lag, key)
    if not selected.all():
        median, others = counterparts.group_medians(lag, key, counts=~selected)
        new = np.where(others > 0, median, new)
    changes = selected & (count > 1)
    now.lag_ns[edge[changes]] = new[changes]
    unchanged = np.append(inside, False)[changer.owner]
    unchanged[edge[changes]] = False
    nodes = np.unique(changer.owner[unchanged])
    now.notes["nodes left unchanged at least in part for lack of a counterpart"] += len(nodes)


def ideal_times(changer: Changer, now: ChangedTimes, _change: Change, chosen: Array) -> None:
    """Set GPU work of training steps to what is ideal for its type, see `activity.operation_types`."""
    trace = changer.trace
    work = is_any(trace.array("kind"), GPU_WORK) & (trace.integers("iteration") >= 0)
    edge = changer.edges(work)
    node = changer.owner[edge].astype(np.int64)
    group = operation_types.operation_types(trace, node, changer.timing.lag_ns[edge]).group
    new = operation_types.ideal_durations(trace, node, now.lag_ns[edge], group)
    changes = chosen[node]
    now.lag_ns[edge[changes]] = new[changes]
    outside = chosen & is_any(trace.array("kind"), GPU_WORK) & ~work
    now.notes["pieces of work outside of steps, left unchanged"] += int(np.count_nonzero(outside))


def _edge_keys(changer: Changer, edge: Array, group: Array) -> Array:
    """Number edges so that those between counterparts share a number; -1 where there are none."""
    graph = changer.timing.graph
    src, dst = graph.src[edge], graph.after[edge]
    nodes = len(group)
    from_barrier = src >= 2 * nodes  # vertices behind all endpoints are collective barriers
    before = np.where(from_barrier, 0, src)
    begin = np.where(from_barrier, -2, _endpoint_group(group, before))
    end = _endpoint_group(group, dst)
    _, number = gather.distinct(begin, end)
    return np.where((end >= 0) & (begin != -1), number, -1)


def _endpoint_group(group: Array, endpoint: Array) -> Array:
    """Group of counterparts of endpoints, starts and ends apart; -1 where there is none."""
    of_node = group[endpoint // 2]
    return np.where(of_node >= 0, 2 * of_node + endpoint % 2, -1)
