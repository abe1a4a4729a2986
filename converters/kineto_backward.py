"""Forward → backward operators by the autograd numbers that both carry, where no arrows are drawn.

Profilers of 2021 to 2023, and those that record shapes alone, draw no ``fwdbwd`` arrows. What they
would join stands in the arguments all the same: an operator carries the number that the next node
of the graph will get (``Sequence number``), so that of all forward operators of a thread with one
number the last to start made the node; its backward carries the same number and which thread that
was (``Fwd thread id``, above 0). Source: ``generateForwardBackwardLinks`` of torch 1.9 to 2.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import gather, jsonscan
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

BY_NUMBER = Fault(
    "fwdbwd-by-number",
    Severity.INFO,
    "Backward operators were tied to forward operators by their sequence numbers, as the file "
    "draws no arrows between them.",
)
_KEYS = ("Sequence number", "Fwd thread id")
_ENGINE = "autograd::engine::"
"""The engine's own range around a backward operator carries the same numbers."""


def by_number(trace: Trace, issues: IssueLog) -> tuple[Array, Array]:
    """Forward operator → backward operator, as rows of `nodes`."""
    node, number, of_thread = _numbered(trace)
    backward = of_thread > 0
    if not backward.any():
        return np.empty(0, np.int32), np.empty(0, np.int32)
    rank, lane = (trace.array(c)[node].astype(np.int64) for c in ("rank", "lane"))
    thread = _lane_of_thread(rank, lane, of_thread, number)
    made, key = gather.distinct(rank, np.where(backward, thread, lane), number)
    last = np.full(len(made), -1, np.int64)
    forward = np.flatnonzero(~backward)  # in order of their starts: the last is written last
    last[key[forward]] = node[forward]
    wanted = np.flatnonzero(backward & ~_is_inner(trace, node, key, backward))
    src, dst = last[key[wanted]], node[wanted]
    end = trace.array("ts") + trace.array("dur")
    known = (src >= 0) & (end[src] <= trace.array("ts")[dst])
    issues.add(BY_NUMBER, np.count_nonzero(known))
    return src[known].astype(np.int32), dst[known].astype(np.int32)


def _numbered(trace: Trace) -> tuple[Array, Array, Array]:
    """Operators that carry a sequence number, the number, and the thread of the forward pass."""
    engine = np.array([name.startswith(_ENGINE) for name in trace.names()] or [False])
    node = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    node = node[~engine[trace.array("name")[node]]]
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    values, found = jsonscan.extract(buffer, at, length, _KEYS)
    kept = found[0] & (values[0] >= 0)
    return node[kept], values[0][kept], np.where(found[1], values[1], 0)[kept]


def _lane_of_thread(rank: Array, lane: Array, of_thread: Array, number: Array) -> Array:
    """For each backward operator the lane on which its forward operator ran; -1 if none fits.

    Numbers of threads are PyTorch's own, and each thread counts for itself. The thread that one
    stands for is the one that has most of the numbers that the backward operators name.
    """
    result = np.full(len(lane), -1, np.int64)
    backward = of_thread > 0
    for r in np.unique(rank[backward]).tolist():
        of_rank = rank == r
        threads = np.unique(lane[of_rank & ~backward])
        has = {t: np.unique(number[of_rank & ~backward & (lane == t)]) for t in threads.tolist()}
        for told in np.unique(of_thread[of_rank & backward]).tolist():
            mine = of_rank & (of_thread == told)
            common = {t: np.count_nonzero(np.isin(number[mine], n)) for t, n in has.items()}
            if common:
                result[mine] = max(common, key=lambda t: common[t])
    return result


def _is_inner(trace: Trace, node: Array, key: Array, backward: Array) -> Array:
    """Which operators lie right within another of the same number and pass."""
    row = np.full(trace.nodes.num_rows, -1, np.int64)
    row[node] = np.arange(len(node))
    parent = trace.array("parent")[node]
    above = np.where(parent >= 0, row[parent], -1)
    return (above >= 0) & (key[above] == key) & backward[above]
