"""Where operators state what tells of the training step: found in one go through arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.arguments import Found
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Stated:
    """Places of arguments of all operators of a framework.

    Parameters
    ----------
    operators
        Rows of nodes.
    sequence, thread
        Numbers by which autograd ties functions to operators.
    hierarchy
        Modules of a script around it.
    """

    operators: Array
    sequence: Found
    thread: Found
    hierarchy: Found


def read(trace: Trace) -> Stated:
    """Find them; programs without times have another name for sequence numbers."""
    operators = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    profiled, programmed, thread, hierarchy = arguments.find(
        trace, operators, "Sequence number", "ET seq_id", "Fwd thread id", "Module Hierarchy"
    )
    sequence = profiled if profiled.length.any() else programmed
    return Stated(operators, sequence, thread, hierarchy)
