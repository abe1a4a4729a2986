"""Forward → backward operators by the autograd numbers that both carry, where no arrows are drawn.

Profilers of 2021 to 2023, and those that record shapes alone, draw no ``fwdbwd`` arrows. What these
would connect stands in the arguments all the same, as ``Sequence number`` and ``Fwd thread id``,
which is above 0 in the backward pass; see `autograd_numbers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.structure import backward_links
from chopper_interop.io import json_events
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

BY_NUMBER = Fault(
    "fwdbwd-by-number",
    Severity.INFO,
    "Backward operators were linked to forward operators by their sequence numbers, as the file "
    "draws no arrows between them.",
)
_KEYS = ("Sequence number", "Fwd thread id")
_ENGINE = "autograd::engine::"
"""The engine's own range around a backward operator carries the same numbers."""


def pairs_by_number(trace: Trace, issues: IssueLog) -> tuple[Array, Array]:
    """Rows of forward operators, and of the backward operators that belong to them."""
    sequence, thread = _sequence_and_thread(trace)
    forward = backward_links.forward_operators(trace, sequence, thread)
    dst = np.flatnonzero(forward >= 0)
    dst = dst[~_is_inner(trace, sequence, thread, dst)]
    src = forward[dst]
    ts = trace.array("ts")
    in_order = ts[src] + trace.array("dur")[src] <= ts[dst]
    issues.add(BY_NUMBER, np.count_nonzero(in_order))
    return src[in_order], dst[in_order].astype(np.int32)


def _sequence_and_thread(trace: Trace) -> tuple[Array, Array]:
    """Sequence number of each operator (-1: none), and its forward thread (0: it is forward)."""
    engine = np.array([name.startswith(_ENGINE) for name in trace.names()] or [False])
    node = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    node = node[~engine[trace.array("name")[node]]]
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    values, present = json_events.extract_integers(buffer, at, length, _KEYS)
    sequence = np.full(trace.nodes.num_rows, -1, np.int64)
    thread = np.zeros(trace.nodes.num_rows, np.int64)
    sequence[node] = np.where(present[0], values[0], -1)
    thread[node] = np.where(present[1], np.maximum(values[1], 0), 0)
    return sequence, thread


def _is_inner(trace: Trace, sequence: Array, thread: Array, node: Array) -> Array:
    """Mark operators directly within another one of the same number and pass."""
    parent = trace.array("parent")[node]
    same = (sequence[parent] == sequence[node]) & (thread[parent] == thread[node])
    return (parent >= 0) & same
