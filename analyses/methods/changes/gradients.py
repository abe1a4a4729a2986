"""Gradient buckets of data-parallel training: all-reduces of the backward pass, and gradients in them.

A bucket is reduced when the last of its gradients is ready. Which gradients it holds is known if shapes
were recorded (``record_shapes=True``): PyTorch accumulates them one after the other, by
``torch::autograd::AccumulateGrad``, and those since the bucket before add up to the bucket's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chopper_interop import arguments
from chopper_interop.analyses.methods.communication.times import communication_times
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas import dtypes
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.trace import Trace

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_COMM_OPS = ("c10d::", "record_param_comms", "nccl:", "rccl:")
"""Beginnings of names of operators that issue communication."""


@dataclass(frozen=True)
class Buckets:
    """Buckets of one step and process group, in the order in which they are reduced.

    Parameters
    ----------
    row
        Node of each bucket's all-reduce on each rank (buckets by ranks).
    size
        Bytes of each bucket.
    ranks
        Ranks of the process group.
    """

    row: Array
    size: Array
    ranks: int


@dataclass(frozen=True)
class Gradients:
    """Gradients that become ready before a bucket is complete.

    Parameters
    ----------
    size
        Bytes of each gradient of a bucket, in order.
    host
        For each but the last, the host range that made it ready, on each rank.
    """

    size: Array
    host: Array


def find_buckets(trace: Trace, chosen: Array) -> tuple[list[Buckets], int]:
    """Find buckets among the chosen nodes, of each step and group.

    Returns
    -------
    buckets, others
        Those of which all ranks and sizes are known, and the number of all other all-reduces of ranks.
    """
    times = communication_times(trace)
    reduces = chosen[times.row] & trace.is_text("collective", (Collective.ALL_REDUCE,), times.row)
    backward = trace.is_text("step_part", ("backward",), times.row)
    if (reduces & backward).any():
        reduces &= backward
    reduces &= trace.integers("iteration", times.row) >= 0
    member = np.flatnonzero(reduces & (times.instance >= 0))
    order = member[np.lexsort((times.rank[member], times.instance[member]))]
    instance, instances = times.instance[order], times.instances
    step = trace.integers("iteration", times.row[order])
    groups = []
    for group, number in sorted(
        {*zip(instances.group[instance].tolist(), step.tolist(), strict=True)}
    ):
        of_group = order[(instances.group[instance] == group) & (step == number)]
        used, count = np.unique(times.instance[of_group], return_counts=True)
        if len(set(count.tolist())) > 1:
            continue
        row = times.row[of_group].reshape(len(used), count[0])
        by_start = np.argsort(instances.last_start[used], kind="stable")
        size = instances.size[used][by_start]
        ranks = int(instances.group_size[used[0]])
        groups.append(Buckets(row[by_start], size, ranks))
    groups = [one for one in groups if (one.size > 0).all()]
    return groups, int(np.count_nonzero(reduces)) - sum(one.row.size for one in groups)


def issuing_operator(trace: Trace, work: Array) -> Array:
    """Outermost operator that is about the communication alone, of each piece of work; -1 if unknown."""
    names = trace.cached("gradients.communication_names", _communication_names)
    name, parent = trace.array("name"), trace.array("parent")
    operator = trace.launch[work]
    while True:
        around = np.where(operator >= 0, parent[operator], -1)
        inner = (around >= 0) & names[name[around]]
        if not inner.any():
            return operator
        operator = np.where(inner, around, operator)


def _communication_names(trace: Trace) -> Array:
    """Mark the names of operators that issue communication."""
    return np.array([name.startswith(_COMM_OPS) for name in trace.names()], bool)


def gradients_of(trace: Trace, buckets: Buckets) -> list[Gradients] | None:
    """Gradients of each bucket; None where they are unknown, or do not add up to it on each rank."""
    accumulate = trace.cached("gradients.accumulations", _accumulations)
    if accumulate is None:
        return None
    node, size = accumulate.node, accumulate.size
    ts, lane, parent = trace.array("ts"), trace.array("lane"), trace.array("parent")
    # once for all buckets, as each has a call of this for each step
    iteration = trace.cached("gradients.iteration", _iterations)
    steps_of_bucket: list[list[tuple[Array, Array]]] = [[] for _ in buckets.size]
    for of_rank in buckets.row.T:
        call = trace.launch[of_rank]
        if (call < 0).any():
            return None
        since = 0
        step = int(iteration[of_rank[0]])
        same = accumulate.by_thread.get((int(lane[call[0]]), step), node[:0])
        stops = np.searchsorted(ts[node[same]], ts[call])
        for k, stop in enumerate(stops.tolist()):
            part = same[since:stop]
            if int(size[part].sum()) != int(buckets.size[k]):
                return None
            around = np.where(parent[node[part]] >= 0, parent[node[part]], node[part])
            steps_of_bucket[k].append((size[part], around[:-1]))
            since = stop
    if any(len({tuple(s.tolist()) for s, _ in of_bucket}) > 1 for of_bucket in steps_of_bucket):
        return None
    return [
        Gradients(of_bucket[0][0], np.stack([host for _, host in of_bucket], axis=1))
        for of_bucket in steps_of_bucket
    ]


def _iterations(trace: Trace) -> Array:
    """Training step of each node; -1 outside of all."""
    return trace.integers("iteration")


class _Accumulations(NamedTuple):
    """Nodes that accumulate gradients, bytes of each, and their positions by thread and step.

    Positions are in the order of start.
    """

    node: Array
    size: Array
    by_thread: dict[tuple[int, int], Array]


def _accumulations(trace: Trace) -> _Accumulations | None:
    """Nodes that accumulate gradients; None without any, or without shapes."""
    names = np.array([name == _ACCUMULATE for name in trace.names()], bool)
    node = np.flatnonzero(names[trace.array("name")] & (trace.array("kind") == Kind.CPU_OP))
    if not node.size:
        return None
    dims, shapes = arguments.values(trace, node, "Input Dims")
    types, listed = arguments.values(trace, node, "Input type")
    if (dims < 0).any() or (types < 0).any():
        return None
    try:
        count = np.array([math.prod(shape[0]) for shape in shapes], np.int64)
        width = np.array([dtypes.element_bytes(each[0]) for each in listed], np.int64)
    except (TypeError, IndexError):  # other arguments than one tensor
        return None
    lane, step = trace.array("lane")[node], trace.integers("iteration", node)
    order = np.lexsort((trace.array("ts")[node], step, lane))
    begins = np.flatnonzero(np.diff(lane[order], prepend=-1) | np.diff(step[order], prepend=-2))
    keys = zip(lane[order[begins]].tolist(), step[order[begins]].tolist(), strict=True)
    by_thread = dict(zip(keys, np.split(order, begins[1:]), strict=True))
    return _Accumulations(node, count[dims] * width[types], by_thread)


def last_kernels(trace: Trace, host: Array) -> Array:
    """Last kernel, copy or fill that the thread of each host range launched until the range ended; -1 if none."""
    work, lane, ts = trace.cached("gradients.launches_by_thread", _launches_by_thread)
    until = trace.array("ts")[host] + trace.array("dur")[host]
    thread = trace.array("lane")[host]
    last = np.full(host.shape, -1, np.int64)
    for number in np.unique(thread):
        begin, end = np.searchsorted(lane, number), np.searchsorted(lane, number, side="right")
        own = thread == number
        place = begin + np.searchsorted(ts[begin:end], until[own], side="right") - 1
        last[own] = work[np.where(place >= begin, place, -1)]
    return last


def _launches_by_thread(trace: Trace) -> tuple[Array, Array, Array]:
    """Launched kernels, copies and fills, and -1; and the threads and starts of their calls, in this order."""
    work = np.flatnonzero(
        is_any(trace.array("kind"), (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)) & (trace.launch >= 0)
    )
    call = trace.launch[work]
    ts, lane = trace.array("ts")[call], trace.array("lane")[call]
    order = np.lexsort((ts, lane))
    return np.append(work[order], -1), lane[order], ts[order]


class FixedTime(NamedTuple):
    """Part of the time of a transfer that does not depend on its size, and its standard error."""

    ns: float
    error_ns: float


def fixed_time(size: Array, transfer: Array) -> FixedTime | None:
    """Fit transfers by a line; None if their sizes hardly differ.

    Parameters
    ----------
    size, transfer
        Bytes and nanoseconds of each.

    Returns
    -------
    FixedTime or None
        The line's value at size 0, within 0 and the shortest transfer.
    """
    if len(size) < _MIN_TRANSFERS or size.max() < _MIN_SPREAD * size.min():
        return None
    apart = size - size.mean()
    slope = float((apart * transfer).sum() / (apart**2).sum())
    at_zero = float(transfer.mean() - slope * size.mean())
    residual = transfer - at_zero - slope * size
    variance = float((residual**2).sum()) / (len(size) - 2)
    error = math.sqrt(
        variance * (1 / len(size) + float(size.mean()) ** 2 / float((apart**2).sum()))
    )
    return FixedTime(min(max(at_zero, 0.0), float(transfer.min())), error)


_MIN_TRANSFERS = 4
"""Transfers from which a line and its error are known. Chosen: two more than a line's parameters, as one more
leaves the error a single residual."""
_MIN_SPREAD = 1.2
"""Ratio of the largest to the smallest size from which a fixed part of the time can be seen. Chosen:
over less, times vary by themselves as much as by size."""
