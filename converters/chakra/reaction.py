"""How an ET reacts to slower and faster GPU work, compared with the timing model that it is made of.

A simulator has one slot for all compute streams and one for all threads, so where these are concurrent an ET
cannot react as the model does. By how much not is known only by trying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import run
from chopper_interop.converters.chakra.host_chain import watching_threads
from chopper_interop.schemas.kinds import EdgeKind, Kind
from chopper_interop.timing import variation

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.chakra.planning.plan import Plan
    from chopper_interop.timing.model import Timing

DEVIATIONS = {"half_compute_deviation_ns": 0.5, "double_compute_deviation_ns": 2.0}
"""Attribute of a file → what durations of kernels, copies and fills are multiplied with. Chosen: about what
other clocks or the next generation of GPUs change."""
CONCURRENT = "concurrent_collectives_ns"
"""Attribute of a file: for how long its collectives run at the same time, which they cannot in a simulator."""
FACTORS = tuple(DEVIATIONS.values())
_SHOWN_SHARE = 0.02
"""Share of a span from which a deviation is worth a line. Chosen: what is asked of predictions of changes."""
_COMPUTE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


def is_far(share: float, span_ns: int) -> bool:
    """True if a deviation, as a share of the span, is worth a line."""
    return abs(share) > _SHOWN_SHARE and abs(share) * span_ns > run.ROUNDING_NS


def deviations(timing: Timing, plan: Plan, npu: Array) -> dict[float, float]:
    """By how much later the ET ends than the model predicts, for each of `FACTORS`.

    As a share of the measured span; what both predict without a change is subtracted.

    Parameters
    ----------
    timing, plan
        Model and ET of one rank.
    npu
        For each node of the trace the NPU of the stream that does it; -1 if that is the rank's.
    """
    compute = is_any(timing.trace.array("kind"), _COMPUTE)
    # a thread that only asks whether work has ended does so as long as the work takes
    moves = ~watching_threads(timing)[timing.trace.array("lane")]
    planned = plan.row[(plan.row >= 0) & moves[plan.row]]
    span_ns = plan.figures.span_ns
    if not span_ns or not planned.size:
        return {}
    model_ns = {f: _model_end_ns(timing, compute, planned, f) for f in (1.0, *FACTORS)}
    et_ns = {f: _et_end_ns(plan, compute, npu, f) for f in (1.0, *FACTORS)}
    return {f: (et_ns[f] - et_ns[1.0] - model_ns[f] + model_ns[1.0]) / span_ns for f in FACTORS}


def _model_end_ns(timing: Timing, compute: Array, planned: Array, factor: float) -> int:
    """End of the last of the planned nodes in the model, with compute scaled."""
    edges = timing.graph
    lag_ns = timing.lag_ns.astype(np.int64)
    lasting = np.flatnonzero(edges.kind == EdgeKind.DURATION)
    lasting = lasting[compute[edges.src[lasting] // 2]]
    lag_ns[lasting] = np.rint(lag_ns[lasting] * factor).astype(np.int64)
    lag_ns, delay_ns = variation.on_edges(timing, lag_ns, timing.delay_ns)
    return int(timing.retimed(lag_ns, delay_ns)[2 * planned + 1].max())


def _et_end_ns(plan: Plan, compute: Array, npu: Array, factor: float) -> int:
    """End of the last node of a plan by a simulator's rules, with compute scaled."""
    n = len(plan.row)
    first, after = gather.group_values(
        plan.dep, np.repeat(np.arange(n), np.diff(plan.dep_first)), n
    )
    scaled = np.where((plan.row >= 0) & compute[plan.row], factor, 1.0)
    none = np.zeros(n, np.int64)
    # work of streams with NPUs of their own has slots of its own, and the time until it is due
    stream = np.where(plan.row >= 0, npu[plan.row], -1)
    other_slot = run.NO_SLOT + np.unique(stream, return_inverse=True)[1]
    lasts_ns = np.where(stream >= 0, plan.duration_ns, 1000 * plan.slot_us) * scaled
    job = run.Job(
        rank=none,
        order=np.arange(n),
        slot=np.where(stream >= 0, other_slot, plan.slot).astype(np.int64),
        role=none,
        partner=none - 1,
        kind=none,
        size=none,
        members=np.ones(1, np.int64),
        duration=np.maximum(np.rint(lasts_ns).astype(np.int64) + 1000 * plan.late_us, 1),
        first=first,
        after=after,
        waits=np.diff(plan.dep_first),
    )
    return int(run.run(job, 1).end_ns.max())
