"""Arguments of operators that describe the training step, located in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.arguments import ArgumentRanges
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class OperatorArguments:
    """Locations of arguments of all operators of a framework.

    Parameters
    ----------
    operators
        Rows of nodes.
    sequence, thread
        Numbers by which autograd ties backward functions to operators.
    hierarchy
        Modules of a script around the operator.
    """

    operators: Array
    sequence: ArgumentRanges
    thread: ArgumentRanges
    hierarchy: ArgumentRanges


def locate_arguments(trace: Trace) -> OperatorArguments:
    """Locate the arguments; execution traces have another name for sequence numbers."""
    operators = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    profiled, in_et, thread, hierarchy = arguments.find(
        trace, operators, "Sequence number", "ET seq_id", "Fwd thread id", "Module Hierarchy"
    )
    sequence = profiled if profiled.length.any() else in_et
    return OperatorArguments(operators, sequence, thread, hierarchy)
