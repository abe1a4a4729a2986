"""Forward → backward operators by the autograd numbers that both carry, where no arrows are drawn.

Profilers of 2021 to 2023, and those that record shapes alone, draw no ``fwdbwd`` arrows. What they
would join stands in the arguments all the same, as ``Sequence number`` and ``Fwd thread id``, which
is above 0 in the backward pass; see `autograd_numbers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.files import jsonscan
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Kind
from chopper_interop.structure import autograd_numbers

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

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
    sequence, thread = _numbered(trace)
    forward = autograd_numbers.operators_of(trace, sequence, thread)
    dst = np.flatnonzero(forward >= 0)
    dst = dst[~_is_inner(trace, sequence, thread, dst)]
    src = forward[dst]
    ts = trace.array("ts")
    known = ts[src] + trace.array("dur")[src] <= ts[dst]
    issues.add(BY_NUMBER, np.count_nonzero(known))
    return src[known], dst[known].astype(np.int32)


def _numbered(trace: Trace) -> tuple[Array, Array]:
    """Sequence number of each operator, -1 for none, and thread of the forward pass, 0 if in it."""
    engine = np.array([name.startswith(_ENGINE) for name in trace.names()] or [False])
    node = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    node = node[~engine[trace.array("name")[node]]]
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    values, found = jsonscan.extract(buffer, at, length, _KEYS)
    sequence = np.full(trace.nodes.num_rows, -1, np.int64)
    thread = np.zeros(trace.nodes.num_rows, np.int64)
    sequence[node] = np.where(found[0], values[0], -1)
    thread[node] = np.where(found[1], np.maximum(values[1], 0), 0)
    return sequence, thread


def _is_inner(trace: Trace, sequence: Array, thread: Array, node: Array) -> Array:
    """Which functions lie right within another of the same number and pass."""
    parent = trace.array("parent")[node]
    same = (sequence[parent] == sequence[node]) & (thread[parent] == thread[node])
    return (parent >= 0) & same
