"""Transfers over another network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.changes.changer import scaled
from chopper_interop.analyses.methods.communication import network
from chopper_interop.arrays import gather
from chopper_interop.arrays.statistics import NO_VALUE, lower_medians
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.changes.changer import Change, ChangedTimes, Changer
    from chopper_interop.arrays.types import Array
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace


def bandwidth(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set transfers to those of another network: divided by a factor, or by sizes and bandwidth."""
    edge = changer.edges(chosen & (changer.trace.array("kind") == Kind.COMM))
    lag = now.lag_ns[edge]
    latency_ns = change.options["latency"]
    if change.value.is_factor:
        if change.options["ranks"]:
            raise UsageError(f"change={change.text}: ranks= needs a bandwidth such as 50GB/s")
        fixed = np.minimum(lag, latency_ns)
        new = fixed + scaled(lag - fixed, 1 / change.value.value)
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
