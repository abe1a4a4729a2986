"""Round trips through memory: bytes that a kernel writes and the next one on its stream reads again.

Sources say how much each kernel reads and writes, not which bytes. So all of this is an upper
bound: of two kernels, one right behind the other on a stream, the second reads again at most what
the first wrote and at most what it reads at all. It is what fusing the two could save of reads (of
writes as much again at most), the locality tax of "Eliminating Multi-GPU Performance Taxes"
(arXiv 2511.02168).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.gpus import ratings
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.trace import Trace

CONVENTION = (
    "upper bound: of each kernel that comes right behind another one on its stream, the lesser of "
    "what that one wrote and what it reads, by counters between L2 and the fabric (the cache before "
    "memory included); time is this at the GPU's peak bandwidth of memory, at most the kernel's own"
)
"""Convention of results with round trips."""


@dataclass(frozen=True)
class RoundTrips:
    """Bytes that kernels read again right after they were written; one value a node.

    Parameters
    ----------
    bytes
        Upper bound; 0 where unknown.
    ns
        Time to read them at the GPU's peak bandwidth, at most the node's duration; 0 where unknown.
    known
        Mask of nodes whose bytes are known: a kernel behind a kernel, both with counters.
    timed
        Mask of nodes whose `ns` is known: the GPU's bandwidth is known as well.
    """

    bytes: Array
    ns: Array
    known: Array
    timed: Array


def find_round_trips(trace: Trace) -> RoundTrips:
    """Round trips through memory of each node, charged to the one that reads again.

    Parameters
    ----------
    trace
        Without counters nothing is known.
    """
    count = trace.nodes.num_rows
    first, second = _neighbours(trace)
    size, known = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    ns = np.zeros(count, np.int64)
    if not trace.counters.num_rows or not len(first):
        return RoundTrips(size, ns, known, known.copy())
    node, metrics = counter_metrics.dispatch_metrics(trace, "bytes_read", "bytes_written")
    read, written = np.full(count, np.nan), np.full(count, np.nan)
    read[node], written[node] = metrics["bytes_read"], metrics["bytes_written"]
    again = np.fmin(written[first], read[second])
    both = ~(np.isnan(written[first]) | np.isnan(read[second]))
    first, second, again = first[both], second[both], again[both]
    known[second] = True
    size[second] = np.rint(again)
    speed = ratings.bandwidths(trace, second)
    timed = np.zeros(count, np.bool_)
    timed[second] = speed > 0
    read_ns = np.rint(again[speed > 0] / speed[speed > 0]).astype(np.int64)
    reader = second[speed > 0]
    ns[reader] = np.minimum(read_ns, trace.array("dur")[reader])
    return RoundTrips(size, ns, known, timed)


def _neighbours(trace: Trace) -> tuple[Array, Array]:
    """Kernels that compute, and the one right behind each on its stream, where that computes too."""
    kind = trace.array("kind")
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    lane = trace.array("lane")[work]
    _, ordered = gather.group_values(lane, work, int(lane.max(initial=-1)) + 1)
    compute = kind[ordered] == Kind.KERNEL
    same_lane = trace.array("lane")[ordered[1:]] == trace.array("lane")[ordered[:-1]]
    pairs = np.flatnonzero(same_lane & compute[1:] & compute[:-1])
    return ordered[pairs], ordered[pairs + 1]
