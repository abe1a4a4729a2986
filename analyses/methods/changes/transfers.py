"""Transfers over another network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.changes.changer import scaled
from chopper_interop.analyses.methods.communication import network
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.changes.changer import Change, ChangedTimes, Changer
    from chopper_interop.arrays.types import Array
    from chopper_interop.timing.model import Timing


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
        new = transfer[changer.owner[edge]]
        unknown = new < 0
        now.notes["transfers of unknown kind or size, left unchanged"] += int(unknown.sum())
        sent_before = _receives_behind_sends(changer.timing)[changer.owner[edge]]
        new = np.where(unknown | sent_before, lag, new)
    now.notes["transfers changed"] += int(np.count_nonzero(new != lag))
    now.lag_ns[edge] = new


def _receives_behind_sends(timing: Timing) -> Array:
    """Mask of receives of buffered sends: the transfer is the send's time, behind whose end they end."""
    graph = timing.graph
    from_end = (graph.kind == EdgeKind.COMM) & (graph.src % 2 == 1) & ~timing.is_barrier[graph.src]
    receives = np.zeros(timing.trace.nodes.num_rows, bool)
    receives[graph.after[from_end] // 2] = True
    return receives
