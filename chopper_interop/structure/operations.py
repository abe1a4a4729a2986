"""The operation that each host node is part of: an operator as its user calls it.

In a program that was annotated for Chopper (https://github.com/UnaryLab/chopper), with ranges
``Layer<n>`` and ``Iteration<n>``, operations are the other ranges of it: ``f_mlp_gp`` for what the
range ``mlp_gp`` holds, ``b_mlp_gp`` for its backward pass, and the plain name of a range where
there is no backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.schemas.kinds import Kind
from chopper_interop.structure.names import ENGINE, OPTIMIZER

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.structure.autograd import Autograd
    from chopper_interop.structure.names import Names
    from chopper_interop.structure.phase import Passes
    from chopper_interop.trace import Trace


def operations(
    trace: Trace, names: Names, autograd: Autograd, passes: Passes
) -> tuple[Array, list[str]]:
    """Operation of each host node as a number of a list of texts; -1 where unknown."""
    texts = trace.names()
    code = _operators(trace, names, autograd, passes)
    kind, name = trace.array("kind"), trace.array("name")
    marks = names.chopper[name] & (kind == Kind.ANNOTATION)
    chosen = np.zeros(len(code), np.bool_)
    for mine in trace.rank_rows.values():
        chosen[mine] = marks[mine].any()
    if chosen.any():
        labels = _labels(trace, names, autograd)
        code = np.where(chosen, labels, code)
        texts = [*texts, *("f_" + t for t in trace.names()), *("b_" + t for t in trace.names())]
    engine = {c: _function(texts[c]) for c in gather.used(code).tolist()}
    return _distinct(code, engine)


def _function(name: str) -> str:
    """Name of an operator without the engine's call of it."""
    return name[match.end() :] or name if (match := ENGINE.match(name)) else name


def _distinct(code: Array, texts: dict[int, str]) -> tuple[Array, list[str]]:
    """Codes and texts of what is used."""
    numbers: dict[str, int] = {}
    size = max(texts, default=-1) + 2
    new = np.full(size, -1, np.int32)
    for old, text in texts.items():
        new[old] = numbers.setdefault(text, len(numbers))
    return new[np.where(code >= 0, code, size - 1)], list(numbers)


def _operators(trace: Trace, names: Names, autograd: Autograd, passes: Passes) -> Array:
    """Code of the name of the outermost operator around each node, or of its forward operator."""
    kind, name, parent = (trace.array(c) for c in ("kind", "name", "parent"))
    operator, ranges = kind == Kind.CPU_OP, kind == Kind.ANNOTATION
    stated = (names.part[name] == OPTIMIZER) | (names.communication[name] & ~names.placed[name])
    stated = (operator & ~names.wrapper[name]) | ((operator | ranges) & stated)
    own = np.where(stated, name, -1).astype(np.int32)
    some = (passes.part >= 0) | passes.communication
    sort = np.where(some, passes.part + 1 + 4 * passes.again + 8 * passes.communication, -1)
    engine = names.engine[name] & operator
    code = np.full(len(own), -1, np.int32)
    for _ in range(_ROUNDS):
        before = code
        code = _outermost(parent, own, sort.astype(np.int8), autograd.forward, before, engine)
        if np.array_equal(code, before):
            break
    marks = (names.step_kind[name] >= 0) | (names.layer[name] >= 0)
    for mine in trace.rank_rows.values():
        if not operator[mine].any():  # ranges of a program that is no framework's
            named = np.where(ranges & ~marks, name, -1).astype(np.int32)
            code[mine] = _innermost(parent, named)[mine]
    return code


_ROUNDS = 4
"""What is recomputed has its operation from itself, and gives it to its own backward pass."""


@jit
def _outermost(
    parent: Array, own: Array, sort: Array, forward: Array, known: Array, engine: Array
) -> Array:
    """Code of the outermost node around each of its sort; of a backward function its origin's.

    A node without a sort (-1) is of that of what is around it.
    """
    code, sorts = np.full(len(parent), -1, np.int32), sort.copy()
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0 and sorts[i] < 0:
            sorts[i] = sorts[p]
        same = p >= 0 and (sorts[p] < 0 or sorts[p] == sorts[i])
        if same and code[p] >= 0 and not engine[i]:
            code[i] = code[p]
        elif forward[i] >= 0 and known[forward[i]] >= 0:
            code[i] = known[forward[i]]
        else:
            code[i] = own[i]
    return code


def _labels(trace: Trace, names: Names, autograd: Autograd) -> Array:
    """Chopper's labels: the range's code, plus once or twice the number of names for f_ or b_."""
    kind, name, parent = (trace.array(c) for c in ("kind", "name", "parent"))
    size = len(trace.names())
    marks = names.chopper[name] | (names.step_kind[name] >= 0)
    label = np.where((kind == Kind.ANNOTATION) & ~marks, name, -1).astype(np.int32)
    label = _innermost(parent, label)
    label = np.where(label < 0, _meanwhile(trace, names, label), label)
    linked = np.full(len(label), -1, np.int32)
    made = autograd.made & ~autograd.backward
    linked[made] = np.where(label[made] >= 0, label[made] + size, -1)
    origin = autograd.forward
    has = origin >= 0
    linked[has] = np.where(label[origin[has]] >= 0, label[origin[has]] + 2 * size, -1)
    _promoted(parent, autograd.sequence, autograd.backward, linked)
    linked = _innermost(parent, linked)
    return np.where(linked >= 0, linked, label)


@jit
def _innermost(parent: Array, own: Array) -> Array:
    """Each node's own value, or that of the innermost node around it that has one."""
    result = own.copy()
    for i in range(len(own)):
        if result[i] < 0 and parent[i] >= 0:
            result[i] = result[parent[i]]
    return result


@jit
def _promoted(parent: Array, sequence: Array, backward: Array, linked: Array) -> None:
    """Give what linked operators have to those around them with the same number."""
    for i in range(len(parent)):
        p = parent[i]
        if linked[i] < 0:
            continue
        while p >= 0 and linked[p] < 0:
            if sequence[p] == sequence[i] and backward[p] == backward[i]:
                linked[p] = linked[i]
            p = parent[p]


def _meanwhile(trace: Trace, names: Names, label: Array) -> Array:
    """Label of the innermost range around each moment on the thread with the program's marks."""
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    kind, lane, parent = trace.array("kind"), trace.array("lane"), trace.array("parent")
    marks = names.chopper[trace.array("name")] & (kind == Kind.ANNOTATION)
    result = np.full(len(label), -1, np.int32)
    for mine in trace.rank_rows.values():
        if marks[mine].any():
            main = np.bincount(lane[mine][marks[mine]]).argmax()
            ranges = np.flatnonzero((lane[mine] == main) & (kind[mine] == Kind.ANNOTATION))
            ranges += mine.start
            at = np.searchsorted(ts[ranges], ts[mine], "right") - 1
            result[mine] = _around(ranges, at, ts[mine], end, parent, label)
    return result


@jit
def _around(
    ranges: Array, at: Array, moment: Array, end: Array, parent: Array, label: Array
) -> Array:
    result = np.full(len(at), -1, np.int32)
    for i in range(len(at)):
        node = ranges[at[i]] if at[i] >= 0 else -1
        while node >= 0 and end[node] <= moment[i]:
            node = parent[node]
        if node >= 0:
            result[i] = label[node]
    return result
