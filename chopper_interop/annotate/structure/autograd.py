"""Forward operators and their backward functions, by sequence numbers and recorded edges.

PyTorch numbers the functions of the backward pass as they are made, on each thread separately. An
operator of the forward pass has the number of the next function: of all operators with that number,
the last one made it. The function has the number in the backward pass, together with a number of the
thread that made it, which is no thread id and can be any positive number. Source:
``generateForwardBackwardLinks`` of torch 1.9 to 2.8.

In the backward pass the function has the numbers, and so does the engine's call of it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop import arguments
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import EdgeKind, Kind
from chopper_interop.trace import Trace

HIERARCHY = "Module Hierarchy"
"""Argument of operators of a script: the stack of calls of modules."""

if TYPE_CHECKING:
    from chopper_interop.annotate.structure.names import Names
    from chopper_interop.arguments import ArgumentRanges, Integers


class OperatorArguments(NamedTuple):
    """Arguments of all operators of a framework.

    Parameters
    ----------
    operators
        Rows of nodes.
    sequence, thread
        Numbers by which autograd ties backward functions to operators, for each node; -1 for none.
    hierarchy
        Byte ranges of the modules of a script around each of `operators`.
    """

    operators: Array
    sequence: Array
    thread: Array
    hierarchy: ArgumentRanges


def read_arguments(trace: Trace) -> OperatorArguments:
    """Read the arguments; execution traces have another name for sequence numbers."""
    operators = np.flatnonzero(trace.array("kind") == Kind.CPU_OP)
    (hierarchy,), (profiled, in_et, thread) = arguments.find_with_integers(
        trace, operators, (HIERARCHY,), ("Sequence number", "ET seq_id", "Fwd thread id")
    )
    sequence = profiled
    if in_et.known.any():  # of ranks of execution traces
        rank = trace.array("rank")[operators]
        is_profiled = (np.bincount(rank, profiled.known) > 0)[rank]
        pairs = zip(profiled, in_et, strict=True)
        sequence = arguments.Integers(*(np.where(is_profiled, *values) for values in pairs))
    return OperatorArguments(
        operators,
        _of_nodes(trace, operators, sequence),
        _of_nodes(trace, operators, thread),
        hierarchy,
    )


def _of_nodes(trace: Trace, operators: Array, number: Integers) -> Array:
    """Number that each node has; -1 for none."""
    column = np.full(trace.nodes.num_rows, -1, np.int64)
    has = number.known & (number.value >= 0)
    column[operators[has]] = number.value[has]
    return column


@dataclass(frozen=True)
class Autograd:
    """Links between forward operators and backward functions, for each node.

    Parameters
    ----------
    forward
        Node of the operator that made a backward function; -1 for all others and if unknown.
    numbered
        Mask of nodes with a sequence number.
    backward
        Mask of functions of the backward pass and of the engine's calls of them.
    made_backward
        Mask of forward operators that made such a function.
    has_backward
        Mask of these and of the operators around them.
    """

    forward: Array
    numbered: Array
    backward: Array
    made_backward: Array
    has_backward: Array


def link_autograd(trace: Trace, names: Names, sequence: Array, thread: Array) -> Autograd:
    """Link forward operators with backward functions, by the numbers of `OperatorArguments`."""
    rows = trace.nodes.num_rows
    forward = forward_operators(trace, sequence, thread)
    backward = thread > 0
    _apply_recorded_edges(trace, names, forward)
    made_backward = np.zeros(rows, np.bool_)
    made_backward[forward[forward >= 0]] = True
    operator = (trace.array("kind") == Kind.CPU_OP) & ~names.engine[trace.array("name")] & ~backward
    has_backward = _with_parents(trace.array("parent"), operator, made_backward)
    return Autograd(forward, sequence >= 0, backward, made_backward, has_backward)


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
    numbered = operator & autograd.numbered & ~autograd.backward
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


def forward_operators(trace: Trace, sequence: Array, thread: Array) -> Array:
    """For each node the forward operator that made it, -1 for none (int32).

    Parameters
    ----------
    sequence
        Sequence number of each node, below 0 for none.
    thread
        Number of the thread that made it, as functions state it; 0 for a forward operator.
    """
    forward = np.full(trace.nodes.num_rows, -1, np.int32)
    ts, lane = trace.array("ts"), trace.array("lane")
    for rank_rows in trace.rank_rows.values():
        numbered = np.flatnonzero(sequence[rank_rows] >= 0) + rank_rows.start
        operators, functions = numbered[thread[numbered] == 0], numbered[thread[numbered] > 0]
        if not operators.size or not functions.size:
            continue
        nodes = np.concatenate([operators, functions])
        operator_lane = lane[operators].astype(np.int64)
        made_on = _lanes_of_functions(sequence[nodes], ts[nodes], operator_lane, thread[functions])
        _, key = gather.distinct(np.concatenate([lane[operators], made_on]), sequence[nodes])
        n = len(operators)
        match = gather.preceding_rows(key[:n], ts[operators], key[n:], ts[functions])
        forward[functions] = np.where(match >= 0, nodes[match], -1)
    return forward


def _lanes_of_functions(sequence: Array, ts: Array, lane: Array, thread: Array) -> Array:
    """Lane on which each function was made; -1 if none fits.

    Each thread counts separately, so that a number occurs on several lanes. A thread number is
    assigned to the lane that has most of the numbers of its functions, and no lane to two of them.

    Parameters
    ----------
    sequence, ts
        Of operators, then of functions.
    lane
        Of each operator.
    thread
        Of each function.
    """
    lanes, lane = np.unique(lane, return_inverse=True)
    _, thread = np.unique(thread, return_inverse=True)
    _, number = gather.distinct(sequence)
    order = np.argsort(ts[: len(lane)], kind="stable")  # the first of its number and lane counts
    entry, _ = gather.distinct(number[order], lane[order])
    entry = order[entry]
    first, entry = gather.group_values(number[entry], entry, int(number.max()) + 1)
    of_thread, function = gather.group_rows(thread, int(thread.max()) + 1)
    function += len(lane)
    free = np.ones(len(lanes), np.bool_)

    def best(t: int) -> tuple[int, int, int]:
        functions = function[of_thread[t] : of_thread[t + 1]]
        votes = _votes(functions, number, ts, first, entry, lane, free)
        return -int(votes.max()), t, int(votes.argmax())

    # greedy assignment: the thread with the most votes takes its lane, and one whose lane was taken
    # in the meantime votes again among those that are free
    result = np.full(len(of_thread) - 1, -1, np.int64)
    waiting = [best(t) for t in range(len(result))]
    heapq.heapify(waiting)
    while waiting:
        votes, t, index = heapq.heappop(waiting)
        if not votes:
            break
        if free[index]:
            free[index] = False
            result[t] = lanes[index]
        else:
            heapq.heappush(waiting, best(t))
    return result[thread]


# Compiled: for each function, all lanes on which its number occurs.
@jit
def _votes(  # noqa: PLR0913, PLR0917 # columns
    functions: Array, number: Array, ts: Array, first: Array, entry: Array, lane: Array, free: Array
) -> Array:
    """Number of functions that have an operator of their number before them, by lane."""
    votes = np.zeros(len(free), np.int64)
    for f in functions:
        for e in range(first[number[f]], first[number[f] + 1]):
            i = entry[e]
            if ts[i] <= ts[f] and free[lane[i]]:
                votes[lane[i]] += 1
    return votes
