"""Passes of microbatches through the stages of a pipeline, as they were measured.

A pass is the kernels of one microbatch in one direction on one stage. On a stage passes follow each
other: a new one begins where the direction changes, behind what was received, and behind what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.communication import stages
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.stages import Pipeline
    from chopper_interop.timing.model import Timing

FORWARD, BACKWARD = "forward", "backward"
_DEPENDENCIES = (EdgeKind.EVENT, EdgeKind.DATA, EdgeKind.DEPENDENCY)


@dataclass(frozen=True)
class StagePasses:
    """Passes of a rank in one step, in their order.

    Parameters
    ----------
    is_forward
        Direction of each.
    first, last
        First and last kernel of each.
    """

    is_forward: Array
    first: Array
    last: Array

    @property
    def order(self) -> str:
        """Directions as text: ``"FFBFBB"``."""
        return "".join("F" if forward else "B" for forward in self.is_forward)


def stage_passes(trace: Trace, rank: int, steps: Sequence[int]) -> list[StagePasses]:
    """Passes of a rank in each step; none where it is not known which kernels are of passes."""
    rows = np.arange(trace.nodes.num_rows)[trace.rank_rows[rank]]
    kernel = rows[(trace.array("kind")[rows] == Kind.KERNEL)]
    forward = trace.is_text("step_part", (FORWARD,), kernel)
    known = forward | trace.is_text("step_part", (BACKWARD,), kernel)
    kernel, forward = kernel[known], forward[known]
    number = trace.integers("iteration", kernel)
    order = np.lexsort((trace.array("ts")[kernel], number))
    kernel, forward, number = kernel[order], forward[order], number[order]
    bounds = zip(*(np.searchsorted(number, steps, side) for side in ("left", "right")), strict=True)
    ends = exchange_ends(trace)
    return [_passes(kernel[begin:end], forward[begin:end], *ends) for begin, end in bounds]


def _passes(kernel: Array, forward: Array, received: Array, sent: Array) -> StagePasses:
    """Passes of one step's kernels, which are in order of start."""
    if not kernel.size:
        return StagePasses(forward, kernel, kernel)
    begins = np.ones(len(kernel), bool)
    begins[1:] = (forward[1:] != forward[:-1]) | received[kernel[1:]] | sent[kernel[:-1]]
    at = np.flatnonzero(begins)
    return StagePasses(forward[at], kernel[at], kernel[np.append(at[1:], len(kernel)) - 1])


def exchange_ends(trace: Trace) -> tuple[Array, Array]:
    """Masks of work that waits for a receive, and of work that a send waits for."""
    return trace.cached("exchange_ends", _find_exchange_ends)


def _find_exchange_ends(trace: Trace) -> tuple[Array, Array]:
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    waits = is_any(kind, _DEPENDENCIES)
    src, dst = src[waits], dst[waits]
    received, sent = (np.zeros(trace.nodes.num_rows, bool) for _ in range(2))
    received[dst[trace.is_text("collective", (Collective.RECV,), src)]] = True
    sent[src[trace.is_text("collective", (Collective.SEND,), dst)]] = True
    return received, sent


@dataclass(frozen=True)
class Exchanges:
    """Common properties of a job's sends and receives.

    Parameters
    ----------
    transfer_ns
        Median time of a transfer, from when both ends have come, or from the send if it is buffered.
    buffered
        True if sends wait for nobody.
    after_passes
        True if a receive begins behind the pass before it, as PyTorch's process groups do.
    latency_ns
        From the end of work to what waits for it on another stream.
    """

    transfer_ns: int
    buffered: bool
    after_passes: bool
    latency_ns: int


def exchanges(timing: Timing, lag_ns: Array, line: Pipeline) -> Exchanges:
    """Return the common properties of a pipeline's sends and receives."""
    trace, graph = timing.trace, timing.graph
    of_line = stages.is_exchange(trace) & np.isin(trace.array("rank"), line.ranks)
    receive = np.flatnonzero(of_line & trace.is_text("collective", (Collective.RECV,)))
    is_end = np.zeros(len(graph), bool)
    is_end[2 * receive + 1] = True
    edge = np.flatnonzero(is_end[graph.after] & (graph.kind == EdgeKind.COMM))
    through_barrier = timing.is_barrier[graph.src[edge]]
    transfer_ns = lag_ns[edge] + _sending_ns(timing, lag_ns, edge)
    is_start = np.zeros(len(graph), bool)
    is_start[2 * receive] = True
    into = np.flatnonzero(is_start[graph.after] & is_any(graph.kind, _DEPENDENCIES))
    return Exchanges(
        int(np.median(transfer_ns)) if edge.size else 0,
        not through_barrier.any(),
        len(into) > len(receive) // 2,
        int(np.median(lag_ns[into])) if into.size else 0,
    )


def _sending_ns(timing: Timing, lag_ns: Array, edge: Array) -> Array:
    """Durations of the sends behind whose ends these edges lead, which are a part of their transfers."""
    graph = timing.graph
    own_ns = np.zeros(len(graph), np.int64)
    lasts = np.flatnonzero(graph.kind == EdgeKind.DURATION)
    own_ns[graph.after[lasts]] = lag_ns[lasts]
    src = graph.src[edge]
    return np.where(timing.is_barrier[src] | (src % 2 == 0), 0, own_ns[src])
