"""Reaction of an ET to slower and faster GPU work, compared with the timing model that it is made of.

A simulator has one slot for all compute streams, one for all communication and one for all threads, so where these are
concurrent an ET cannot react as the model does. By how much not is known only by trying.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import run
from chopper_interop.converters.chakra.files import integer
from chopper_interop.converters.chakra.host_chain import is_operation, watching_threads
from chopper_interop.converters.chakra.times import MAX_SUM_NS
from chopper_interop.io import memory
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind
from chopper_interop.timing import variation
from chopper_interop.timing.model import timing_of_ranks
from chopper_interop.timing.populations import populations
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.planning.plan import Plan
    from chopper_interop.timing.model import Timing
    from chopper_interop.timing.populations import Populations

_COPIES = (Kind.MEMCPY, Kind.MEMSET)
_COMPUTE = (Kind.KERNEL, *_COPIES)
_KERNELS_ALONE = "half_kernels_deviation_ns"


class Tried(NamedTuple):
    """A change that is tried: of which kinds of nodes, what they are called, and the factor of their durations.

    With `longest` it is of those of one name alone, on which most time is spent.
    """

    kinds: tuple[Kind, ...]
    name: str
    factor: float
    longest: bool = False

    def __str__(self) -> str:
        return f"{self.factor:g} times the time of {self.name}"


DEVIATIONS = {
    "half_compute_deviation_ns": Tried(_COMPUTE, "kernels and copies", 0.5),
    "double_compute_deviation_ns": Tried(_COMPUTE, "kernels and copies", 2.0),
    _KERNELS_ALONE: Tried((Kind.KERNEL,), "kernels alone", 0.5),
    "double_communication_deviation_ns": Tried((Kind.COMM,), "communication", 2.0),
    "tenth_kernel_deviation_ns": Tried(
        (Kind.KERNEL,), "the kernel with the most time", 0.1, longest=True
    ),
}
"""Attribute of a file → a change. Chosen: about what other clocks, the next generation of GPUs, half the bandwidth
or a kernel of one's own change. Copies that kernels hide come to light where only these are faster."""
CONCURRENT = "concurrent_collectives_ns"
"""Attribute of a file: for how long its collectives run at the same time, which they cannot in a simulator."""
NPUS_DEVIATION = "npus_deviation_ns"
"""Attribute of a file whose streams have no NPUs of their own: by how much it would end otherwise than predicted if they had."""
_UNCHANGED = ""
"""Name of the times without a change."""
_SHOWN_SHARE = 0.02
"""Share of a span from which a deviation is worth a line. Chosen: what is asked of predictions of changes."""


def is_far(share: float, span_ns: int, shown: float = _SHOWN_SHARE) -> bool:
    """True if a deviation, as a share of the span, is worth a line."""
    return abs(share) > shown and abs(share) * span_ns > run.ROUNDING_NS


def largest_ns(stated: dict[str, int | str]) -> int:
    """Largest time by which an ET may end otherwise than predicted, as its metadata state it; 0 if not worth a line."""
    stated_ns = [abs(integer(stated, name)) for name in (*DEVIATIONS, CONCURRENT)]
    span_ns, largest = integer(stated, "span_ns"), max(stated_ns)
    return largest if span_ns and is_far(largest / span_ns, span_ns) else 0


class Predicted(NamedTuple):
    """Ends of ranks in the timing model.

    Parameters
    ----------
    end_ns
        End of the last node of each rank's ET.
    is_tried
        Mask of the ranks in which the change changes anything.
    """

    end_ns: Array
    is_tried: Array


def predicted_ends(trace: Trace, *, operations: bool) -> dict[str, Predicted]:
    """End of the last node of each rank's ET in the timing model, without a change and for each of `DEVIATIONS`.

    Only changes that change anything. It does not need the plan, whose memory comes when the model's is free again.

    Parameters
    ----------
    operations
        True if the ETs have the operations of hosts.
    """
    of = populations(trace, each_rank=True)
    planned = is_any(trace.array("kind"), GPU_WORK)
    if operations:
        planned |= is_operation(trace)
    # a thread that only asks whether work has ended does so as long as the work takes
    planned = np.flatnonzero(planned & ~watching_threads(trace)[trace.array("lane")])
    # of what no simulator can count, there is no reaction
    largest = max(tried.factor for tried in DEVIATIONS.values())
    sums = np.bincount(of.at(planned), trace.array("dur")[planned], of.count)
    counts = (largest * sums <= MAX_SUM_NS) & (np.bincount(of.at(planned), minlength=of.count) > 0)
    if not counts.any():
        return {}
    timing = timing_of_ranks(trace)
    memory.give_back(trace.nodes.nbytes)
    ends = {
        name: Predicted(_model_ends_ns(timing, factor, planned), counts & is_tried)
        for name, factor, is_tried in _factors(trace, of)
    }
    memory.give_back(trace.nodes.nbytes)
    return ends


def deviations(
    trace: Trace, predicted: dict[str, Predicted], plan: Plan, npu: Array
) -> list[dict[str, float]]:
    """Time by which each rank's ET ends later than the model predicts, for each of `DEVIATIONS` that changes anything.

    As a share of the measured span; what both predict without a change is subtracted.

    Parameters
    ----------
    trace, predicted, plan
        Ranks, their `predicted_ends`, and their ETs.
    npu
        For each node of the trace the NPU of the stream that does it; -1 if that is the rank's.
    """
    of = populations(trace, each_rank=True)
    span_ns = np.array([of_rank.span_ns for of_rank in plan.figures])
    shares: list[dict[str, float]] = [{} for _ in span_ns]
    if not span_ns.any() or not predicted:
        return shares
    job, lasts_ns = _job(plan, npu)
    memory.give_back(trace.nodes.nbytes)

    def later_ns(name: str, factor: Array) -> Array:
        scaled = factor[plan.row]
        scaled[plan.row < 0] = 1.0
        scaled *= lasts_ns
        duration = np.rint(scaled, out=scaled).astype(np.int64)
        del scaled
        late = np.flatnonzero(plan.late_us)
        duration[late] += 1000 * plan.late_us[late].astype(np.int64)
        np.maximum(duration, 1, out=duration)
        end_ns = run.run(job._replace(duration=duration), of.count).end_ns
        return np.maximum.reduceat(end_ns, plan.first[:-1]) - predicted[name].end_ns

    later = {name: later_ns(name, factor) for name, factor, _ in _factors(trace, of)}
    before_ns = later.pop(_UNCHANGED)
    memory.give_back(trace.nodes.nbytes)
    for name, ns in later.items():
        tried = np.flatnonzero(predicted[name].is_tried & (span_ns > 0))
        more_ns = (ns - before_ns)[tried].tolist()
        for rank, more, span in zip(tried.tolist(), more_ns, span_ns[tried].tolist(), strict=True):
            shares[rank][name] = more / span
    return shares


def _factors(trace: Trace, of: Populations) -> Iterator[tuple[str, Array, Array]]:
    """Factors of the durations of nodes, without a change and for each of `DEVIATIONS` that changes anything.

    And a mask of the ranks in which it does.
    """
    yield _UNCHANGED, np.ones(trace.nodes.num_rows), np.ones(of.count, bool)
    has_copies = _have(is_any(trace.array("kind"), _COPIES), of)
    for name, tried in DEVIATIONS.items():
        mask = _chosen(trace, tried, of)
        # where there are no copies, half the time of kernels is that of all compute, which is tried already
        is_tried = _have(mask, of) & (has_copies | (name != _KERNELS_ALONE))
        if is_tried.any():
            yield name, np.where(mask, tried.factor, 1.0), is_tried


def _have(mask: Array, of: Populations) -> Array:
    """Mask of the ranks with any of these nodes."""
    have = np.zeros(of.count, bool)
    have[of.at(np.flatnonzero(mask))] = True
    return have


def _chosen(trace: Trace, tried: Tried, of: Populations) -> Array:
    """Mask of the nodes that a change is of."""
    mask = is_any(trace.array("kind"), tried.kinds)
    if tried.longest and mask.any():
        name, names, rows = trace.array("name"), len(trace.names()), np.flatnonzero(mask)
        key = of.keys(rows, name[rows], names)
        spent = np.bincount(key, trace.array("dur")[rows], of.count * names)
        longest = spent.reshape(of.count, names).argmax(axis=1)
        mask[rows] = name[rows] == longest[of.at(rows)]
    return mask


def _model_ends_ns(timing: Timing, factor: Array, planned: Array) -> Array:
    """End of the last of each rank's planned nodes in the model, with durations multiplied."""
    edges, of = timing.graph, timing.populations
    lag_ns = timing.lag_ns.astype(np.int64)
    lasting = np.flatnonzero(edges.kind == EdgeKind.DURATION)
    of_node = factor[edges.src[lasting] // 2]
    lasting, of_node = lasting[of_node != 1], of_node[of_node != 1]
    lag_ns[lasting] = np.rint(lag_ns[lasting] * of_node).astype(np.int64)
    lag_ns, delay_ns = variation.on_edges(timing, lag_ns, timing.delay_ns)
    end_ns = timing.retimed(lag_ns, delay_ns)[2 * planned + 1]
    last_ns = np.full(of.count, np.iinfo(np.int64).min)
    np.maximum.at(last_ns, of.at(planned), end_ns)
    return last_ns


def _job(plan: Plan, npu: Array) -> tuple[run.JobNodes, Array]:
    """Nodes of plans for a run by a simulator's rules, and the time that each takes without delays."""
    n = len(plan.row)
    first, after = gather.group_values(
        plan.dep, np.repeat(np.arange(n), np.diff(plan.dep_first)), n
    )
    # work of streams with NPUs of their own has slots of its own, and the time until it is due
    stream, rank = np.where(plan.row >= 0, npu[plan.row], -1), plan.rank
    slot = np.where(stream >= 0, run.NO_SLOT + 1 + _numbers_within(rank, stream), plan.slot)
    lasts_ns = np.where(stream >= 0, plan.duration_ns, 1000 * plan.slot_us)
    stated = {
        "rank": rank, "order": np.arange(n), "slot": slot, "partner": np.full(n, -1),
        "waits": np.diff(plan.dep_first),
    }  # fmt: skip
    columns = {
        name: stated[name].astype(dtype) if name in stated else np.zeros(n, dtype)
        for name, dtype in run.TYPES.items()
    }
    return run.JobNodes(**columns, members=np.ones(1, np.int64), first=first, after=after), lasts_ns


def _numbers_within(rank: Array, stream: Array) -> Array:
    """Number of each stream among those of its rank, from 0 on; of no use where it is -1."""
    if (stream < 0).all():
        return np.zeros(len(stream), np.int64)
    first, code = gather.distinct(rank, stream)
    order = np.lexsort((stream[first], rank[first]))
    of_rank = rank[first][order]
    used = stream[first][order] >= 0
    before: Array = np.cumsum(used) - used
    number = np.empty(len(first), np.int64)
    number[order] = before - before[np.searchsorted(of_rank, of_rank)]
    return number[code]
