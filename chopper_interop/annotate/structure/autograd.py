"""Forward operators and their backward functions, by sequence numbers and recorded edges.

`backward_links` explains the numbers. In the backward pass the function has them, and so does the
engine's call of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.annotate.structure import backward_links
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.members import is_any
from chopper_interop.schemas.kinds import EdgeKind, Kind

if TYPE_CHECKING:
    from chopper_interop.annotate.structure.names import Names
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


@dataclass(frozen=True)
class Autograd:
    """Links between forward operators and backward functions, for each node.

    Parameters
    ----------
    forward
        Node of the operator that made a backward function; -1 for all others and if unknown.
    sequence
        Sequence number, -1 for none.
    backward
        Mask of functions of the backward pass and of the engine's calls of them.
    made_backward
        Mask of forward operators that made such a function.
    has_backward
        Mask of these and of the operators around them.
    """

    forward: Array
    sequence: Array
    backward: Array
    made_backward: Array
    has_backward: Array


def link_autograd(trace: Trace, names: Names, located: OperatorArguments) -> Autograd:
    """Read the numbers of all operators and link forward operators with backward functions."""
    rows = trace.nodes.num_rows
    sequence, thread = (_numbers(trace, located, p) for p in (located.sequence, located.thread))
    forward = backward_links.forward_operators(trace, sequence, thread)
    backward = thread > 0
    _apply_recorded_edges(trace, names, forward)
    made_backward = np.zeros(rows, np.bool_)
    made_backward[forward[forward >= 0]] = True
    operator = (trace.array("kind") == Kind.CPU_OP) & ~names.engine[trace.array("name")] & ~backward
    has_backward = _with_parents(trace.array("parent"), operator, made_backward)
    return Autograd(forward, sequence, backward, made_backward, has_backward)


# Compiled: marks are passed up through parents, of children before their parents.
@jit
def _with_parents(parent: Array, operator: Array, marked: Array) -> Array:
    """Marked nodes, and the chains of operators around them."""
    result = marked.copy()
    for i in range(len(parent) - 1, -1, -1):  # a parent comes before its children
        p = parent[i]
        if result[i] and p >= 0 and operator[p]:
            result[p] = True
    return result


def _numbers(trace: Trace, located: OperatorArguments, argument: ArgumentRanges) -> Array:
    """Number that each node has in an argument; -1 for none."""
    value, known = arguments.integers_at(trace.text, argument)
    column = np.full(trace.nodes.num_rows, -1, np.int64)
    column[located.operators] = np.where(known & (value >= 0), value, -1)
    return column


def _apply_recorded_edges(trace: Trace, names: Names, forward: Array) -> None:
    """Overwrite links by recorded edges, and fill in the engine's calls around functions."""
    is_link = trace.array("kind", "edges") == EdgeKind.FWDBWD
    src, dst = trace.array("src", "edges")[is_link], trace.array("dst", "edges")[is_link]
    forward[dst] = src
    _fill_engine_calls(trace.array("parent"), names.engine[trace.array("name")], forward)


# Compiled: the first linked function within each engine's call, of millions of nodes.
@jit
def _fill_engine_calls(parent: Array, engine: Array, forward: Array) -> None:
    for i in range(len(forward)):
        p = parent[i]
        if forward[i] >= 0 and p >= 0 and engine[p] and forward[p] < 0:
            forward[p] = forward[i]


def begins_recompute(trace: Trace, names: Names, autograd: Autograd) -> Array:
    """Mark nodes that begin the recomputation of activations within the backward pass.

    While activations are recomputed, autograd records, so that operators have sequence numbers;
    those of the backward pass itself have none. A backward pass that is itself recorded, for second
    derivatives, numbers all its operators, which distinguishes it.
    """
    kind, name = trace.array("kind"), trace.array("name")
    operator = kind == Kind.CPU_OP
    numbered = operator & (autograd.sequence >= 0) & ~autograd.backward
    engine = names.engine[name] & operator
    begins = _numbered_within(trace.array("parent"), operator, numbered, autograd.backward, engine)
    return begins | (names.recompute[name] & is_any(kind, (Kind.PYTHON, Kind.ANNOTATION)))


# Compiled: which engine's call each node is in, and what else is in that call, is carried from parents
# to children.
@jit
def _numbered_within(
    parent: Array, operator: Array, numbered: Array, backward: Array, engine: Array
) -> Array:
    """Outermost numbered operators in an engine's call that also has unnumbered ones."""
    n = len(parent)
    call = np.full(n, -1, np.int32)
    under = np.zeros(n, np.bool_)
    plain = np.zeros(n, np.bool_)
    for i in range(n):
        p = parent[i]
        if engine[i]:
            call[i] = i
            continue
        if p < 0 or call[p] < 0:
            continue
        call[i] = call[p]
        under[i] = under[p] or numbered[p]
        if operator[i] and not numbered[i] and not under[i] and not backward[i]:
            plain[call[i]] = True
    begins = np.zeros(n, np.bool_)
    for i in range(n):
        begins[i] = numbered[i] and not under[i] and call[i] >= 0 and plain[call[i]]
    return begins
