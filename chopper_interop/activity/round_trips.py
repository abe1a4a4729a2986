"""Round trips through memory: what a kernel writes and the next one on its stream reads again.

Sources say how much each kernel reads and writes, not which bytes. So all of this is an upper
bound: of two kernels, one right behind the other on a stream, the second reads again at most what
the first wrote and at most what it reads at all. It is what fusing the two could save of reads (of
writes as much again at most), the locality tax of "Eliminating Multi-GPU Performance Taxes"
(arXiv 2511.02168).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.counters import counted
from chopper_interop.gpus import rated
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

CONVENTION = (
    "upper bound: of each kernel that comes right behind another one on its stream, the lesser of "
    "what that one wrote and what it reads, by counters between L2 and the fabric (the cache before "
    "memory included); time is this at the GPU's peak bandwidth of memory, at most the kernel's own"
)
"""What a result says of it."""


@dataclass(frozen=True)
class RoundTrips:
    """Bytes that kernels read again right after they were written; one value a node.

    Parameters
    ----------
    bytes
        At most so many; 0 where unknown.
    ns
        What reading them takes at the GPU's peak bandwidth, at most as long as the node took;
        0 where unknown.
    known
        Whether bytes are known: a kernel behind a kernel, both counted.
    timed
        Whether `ns` is: the GPU's bandwidth is known as well.
    """

    bytes: Array
    ns: Array
    known: Array
    timed: Array


def of(trace: Trace) -> RoundTrips:
    """Round trips through memory of each node, charged to the one that reads again.

    Parameters
    ----------
    trace
        Any trace; without counters nothing is known.
    """
    count = trace.nodes.num_rows
    first, second = _neighbours(trace)
    size, known = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    ns = np.zeros(count, np.int64)
    if not trace.counters.num_rows or not len(first):
        return RoundTrips(size, ns, known, known.copy())
    node, told = counted.metrics(trace, "bytes_read", "bytes_written")
    read, written = np.full(count, np.nan), np.full(count, np.nan)
    read[node], written[node] = told["bytes_read"], told["bytes_written"]
    again = np.fmin(written[first], read[second])
    there = ~(np.isnan(written[first]) | np.isnan(read[second]))
    first, second, again = first[there], second[there], again[there]
    known[second] = True
    size[second] = np.rint(again)
    speed = rated.bandwidths(trace, second)
    timed = np.zeros(count, np.bool_)
    timed[second] = speed > 0
    least = np.rint(again[speed > 0] / speed[speed > 0]).astype(np.int64)
    reader = second[speed > 0]
    ns[reader] = np.minimum(least, trace.array("dur")[reader])
    return RoundTrips(size, ns, known, timed)


def _neighbours(trace: Trace) -> tuple[Array, Array]:
    """Kernels that compute, and each time the one right behind on the stream, if that computes."""
    kind = trace.array("kind")
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    lane = trace.array("lane")[work]
    _, ordered = gather.lists(lane, work, int(lane.max(initial=-1)) + 1)
    compute = kind[ordered] == Kind.KERNEL
    same = trace.array("lane")[ordered[1:]] == trace.array("lane")[ordered[:-1]]
    both = np.flatnonzero(same & compute[1:] & compute[:-1])
    return ordered[both], ordered[both + 1]
