"""Transfers over another network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.changes.changer import Change, ChangedTimes, Changer, scaled
from chopper_interop.analyses.methods.changes.gradients import fixed_time
from chopper_interop.analyses.methods.communication import network
from chopper_interop.analyses.methods.communication.times import communication_times
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.statistics import NO_VALUE, lower_medians
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.timing.model import Timing


def bandwidth(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set transfers to those of another network: divided by a factor, or by sizes and bandwidth."""
    if change.value.is_factor and change.options["ranks"]:
        raise UsageError(f"change={change.text}: ranks= needs a bandwidth such as 50GB/s")
    communicates = chosen & (changer.trace.array("kind") == Kind.COMM)
    if not communicates.any():
        count = int(np.count_nonzero(chosen))
        now.notes["nodes chosen"] -= count
        now.notes[
            "nodes chosen, no communication is among them, so another network changes nothing"
        ] += count
        return
    edge = changer.edges(communicates)
    lag = now.lag_ns[edge]
    latency_ns = change.options["latency"]
    if change.value.is_factor:
        fixed = np.minimum(lag, latency_ns)
        cut = _cut_off(changer.trace)[changer.owner[edge]]
        now.notes[
            "transfers at an edge of the recording, of which waiting for others is not known, left unchanged"
        ] += int(cut.sum())
        new = np.where(cut, lag, fixed + scaled(lag - fixed, 1 / change.value.value))
    else:
        transfer = network.transfer_times(
            changer.trace, change.value.value, latency_ns, change.options["ranks"]
        )
        owner = changer.owner[edge]
        new = transfer[owner]
        unknown = new < 0
        sent_before = _receives_behind_sends(changer.timing)[owner]
        new = np.where(unknown | sent_before, lag, new)
        like = _as_others(changer.trace, owner, ~unknown, lag, new)
        unknown &= like == NO_VALUE
        now.notes["transfers of unknown kind or size, left unchanged"] += int(unknown.sum())
        new = np.where(like == NO_VALUE, new, like)
    now.notes["transfers changed"] += int(np.count_nonzero(new != lag))
    now.lag_ns[edge] = new


def ranks(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set transfers of collectives to those of groups of another size, over the network as it was measured.

    Of rings the part that does not depend on size grows with their steps, the rest with the bytes that each link carries.
    """
    other = network.regrouped(changer.trace, change.value)
    is_chosen = chosen[other.row]
    fixed_ns = _fixed_times(change, other, is_chosen)
    at = np.full(len(chosen), -1)
    at[other.row[is_chosen]] = np.flatnonzero(is_chosen)
    edge = changer.edges(chosen & (changer.trace.array("kind") == Kind.COMM))
    of_edge = at[changer.owner[edge]]
    now.notes["transfers of unknown kind or size, or not of rings, left unchanged"] += int(
        np.count_nonzero(of_edge < 0)
    )
    edge, of_edge = edge[of_edge >= 0], of_edge[of_edge >= 0]
    if not edge.size:
        raise UsageError(
            f"change={change.text}: no collective among ranks of the trace has a known kind and size"
        )
    lag = now.lag_ns[edge]
    fixed = np.clip(lag, 0, fixed_ns[of_edge])
    longer = fixed * other.steps_ratio[of_edge] + scaled(lag - fixed, other.moved_ratio[of_edge])
    now.lag_ns[edge] = np.rint(longer).astype(np.int64)
    now.notes["transfers changed"] += len(edge)


def _fixed_times(change: Change, other: network.Regrouped, is_chosen: Array) -> Array:
    """Part of each transfer that does not depend on its size: as stated, else by those of its kind and group's size."""
    latency_ns = change.options["latency"]
    if latency_ns is not None:
        return other.steps * latency_ns
    fixed_ns = np.zeros(len(other.row))
    for group in np.unique(other.group[is_chosen]).tolist():
        alike = np.flatnonzero(is_chosen & (other.group == group))
        known = fixed_time(other.size[alike], other.transfer_ns[alike])
        if known is None:
            raise UsageError(
                f"change={change.text}: collectives of one kind are of about one size, so that the time of "
                "one that does not depend on size is unknown",
                hint="state it: latency=5us for each step of a ring",
            )
        fixed_ns[alike] = known.ns
    return fixed_ns


def _cut_off(trace: Trace) -> Array:
    """Mask of communication of unknown size that cannot be matched as the recording of a rank begins or ends next to it.

    It is before the first or behind the last collective that all recorded ranks of its group share and of which the
    launch is recorded, as kinds of others may be unknown::

        rank 0   [ waits   ] [all]  …  [all] [ waits ]
        rank 1    not yet    [all]  …  [all]
    """
    times = communication_times(trace)
    largest = np.zeros(len(trace.groups) + 1, np.int64)  # the last one is that of no group, -1
    np.maximum.at(largest, times.instances.group, times.instances.ranks)
    is_shared = np.append(times.instances.ranks == largest[times.instances.group], False)
    shared = is_shared[times.instance]
    launched = trace.launch[times.row] >= 0
    inner = shared & (launched | ~launched.any())
    number = np.searchsorted(trace.ranks, times.rank)
    first = np.full(len(trace.ranks), NO_VALUE)
    np.minimum.at(first, number[inner], times.start[inner])
    last = first.copy()
    np.maximum.at(last, number[inner], times.start[inner])
    outside = (times.start < first[number]) | (times.start > last[number])
    mask = np.zeros(trace.nodes.num_rows, bool)
    mask[times.row] = ~shared & outside & (first[number] != NO_VALUE) & (times.size < 0)
    return mask


def _as_others(trace: Trace, owner: Array, known: Array, lag_ns: Array, new_ns: Array) -> Array:
    """Times of transfers of which no other member is recorded: as much longer as others of their kind and size.

    `NO_VALUE` of all others, and where there are none.
    """
    kind, _ = trace.texts("collective", owner)
    size = trace.integers("bytes", owner)
    distinct, code = gather.distinct(kind, size)
    before, after = (
        lower_medians(code[known], of[known], len(distinct))[code] for of in (lag_ns, new_ns)
    )
    alike = ~known & (kind >= 0) & (size >= 0) & (before != NO_VALUE)
    factor = after / np.maximum(before, 1)
    return np.where(alike, scaled(lag_ns, np.where(alike, factor, 1.0)), NO_VALUE)


def _receives_behind_sends(timing: Timing) -> Array:
    """Mask of receives of buffered sends: the transfer is the send's time, behind whose end they end."""
    graph = timing.graph
    from_end = (graph.kind == EdgeKind.COMM) & (graph.src % 2 == 1) & ~timing.is_barrier[graph.src]
    receives = np.zeros(timing.trace.nodes.num_rows, bool)
    receives[graph.after[from_end] // 2] = True
    return receives
