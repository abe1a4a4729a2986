"""Forward operators and what autograd made of them: by sequence numbers and recorded arrows.

What the numbers are is told in `autograd_numbers`. In the backward pass the function bears them,
and so does the engine's call of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.columns.compiled import jit
from chopper_interop.schemas.kinds import EdgeKind, Kind
from chopper_interop.structure import autograd_numbers

if TYPE_CHECKING:
    from chopper_interop.arguments import Found
    from chopper_interop.columns.types import Array
    from chopper_interop.structure.arguments import Stated
    from chopper_interop.structure.names import Names
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Autograd:
    """What autograd's numbers tell of each node.

    Parameters
    ----------
    forward
        Node of the operator that made a backward function; -1 for all others and if unknown.
    sequence
        Sequence number, -1 for none.
    backward
        Whether it is a function of the backward pass or the engine's call of one.
    made
        Whether it is a forward operator that made such a function.
    led
        Whether it is one, or an operator around one.
    """

    forward: Array
    sequence: Array
    backward: Array
    made: Array
    led: Array


def read(trace: Trace, names: Names, stated: Stated) -> Autograd:
    """Numbers of all operators, and which made which."""
    rows = trace.nodes.num_rows
    sequence, thread = (_numbers(trace, stated, p) for p in (stated.sequence, stated.thread))
    forward = autograd_numbers.operators_of(trace, sequence, thread)
    backward = thread > 0
    _by_arrows(trace, names, forward)
    made = np.zeros(rows, np.bool_)
    made[forward[forward >= 0]] = True
    operator = (trace.array("kind") == Kind.CPU_OP) & ~names.engine[trace.array("name")] & ~backward
    led = _led(trace.array("parent"), operator, made)
    return Autograd(forward, sequence, backward, made, led)


@jit
def _led(parent: Array, operator: Array, made: Array) -> Array:
    led = made.copy()
    for i in range(len(parent) - 1, -1, -1):  # what is around comes before
        p = parent[i]
        if led[i] and p >= 0 and operator[p]:
            led[p] = True
    return led


def _numbers(trace: Trace, stated: Stated, place: Found) -> Array:
    """Number that each node states at a place; -1 for none."""
    value, known = arguments.numbers_at(trace.text, place)
    column = np.full(trace.nodes.num_rows, -1, np.int64)
    column[stated.operators] = np.where(known & (value >= 0), value, -1)
    return column


def _by_arrows(trace: Trace, names: Names, forward: Array) -> None:
    """Fill in what recorded arrows say, which wins, and the engine's calls around functions."""
    drawn = trace.array("kind", "edges") == EdgeKind.FWDBWD
    src, dst = trace.array("src", "edges")[drawn], trace.array("dst", "edges")[drawn]
    forward[dst] = src
    _around(trace.array("parent"), names.engine[trace.array("name")], forward)


@jit
def _around(parent: Array, engine: Array, forward: Array) -> None:
    for i in range(len(forward)):
        p = parent[i]
        if forward[i] >= 0 and p >= 0 and engine[p] and forward[p] < 0:
            forward[p] = forward[i]


def recomputed(trace: Trace, names: Names, autograd: Autograd) -> Array:
    """Whether each node begins the recomputing of activations within the backward pass.

    There gradients are recorded, so that operators are numbered, which those of the backward
    pass itself are not. A backward pass that is itself recorded, for second derivatives, numbers
    all operators, and is told by it.
    """
    kind, name = trace.array("kind"), trace.array("name")
    operator = kind == Kind.CPU_OP
    numbered = operator & (autograd.sequence >= 0) & ~autograd.backward
    engine = names.engine[name] & operator
    begins = _numbered_within(trace.array("parent"), operator, numbered, autograd.backward, engine)
    return begins | (names.again[name] & np.isin(kind, [int(Kind.PYTHON), int(Kind.ANNOTATION)]))


@jit
def _numbered_within(
    parent: Array, operator: Array, numbered: Array, backward: Array, engine: Array
) -> Array:
    """Numbered operators in an engine's call that has others, not in numbered ones, without."""
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
