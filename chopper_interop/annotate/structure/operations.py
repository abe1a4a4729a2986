"""The operation that each host node is part of: an operator as its user calls it.

In a program that was annotated for Chopper (https://github.com/UnaryLab/chopper), with ranges
``Layer<n>`` and ``Iteration<n>``, operations are its other ranges: ``f_mlp_gp`` for work in the
range ``mlp_gp``, ``b_mlp_gp`` for its backward pass, and the plain name of a range where there is no
backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.structure.autograd import read_arguments
from chopper_interop.annotate.structure.names import ENGINE, OPTIMIZER, Names
from chopper_interop.arrays import Array, gather, nest
from chopper_interop.arrays.compiled import jit
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.structure.autograd import Autograd
    from chopper_interop.annotate.structure.phase import Passes


def find_operations(
    trace: Trace, names: Names, autograd: Autograd, passes: Passes
) -> tuple[Array, list[str]]:
    """Find the operation of each host node: its index in a list of texts, -1 where unknown."""
    texts = trace.names()
    code = _operators(trace, names, autograd, passes)
    kind, name = trace.array("kind"), trace.array("name")
    marks = names.chopper[name] & (kind == Kind.ANNOTATION)
    for_chopper = np.zeros(len(code), np.bool_)
    for rows in trace.rank_rows.values():
        for_chopper[rows] = marks[rows].any()
    if for_chopper.any():
        labels = _chopper_labels(trace, names, autograd)
        code = np.where(for_chopper, labels, code)
        texts = [*texts, *("f_" + t for t in trace.names()), *("b_" + t for t in trace.names())]
    used = {c: _without_engine(texts[c]) for c in gather.unique_codes(code).tolist()}
    return _renumber(code, used)


def _without_engine(name: str) -> str:
    """Return the name of an operator without the prefix of the engine's call of it."""
    return name[match.end() :] or name if (match := ENGINE.match(name)) else name


def _renumber(code: Array, texts: dict[int, str]) -> tuple[Array, list[str]]:
    """Codes that number distinct texts from 0 on, and the texts."""
    numbers: dict[str, int] = {}
    size = max(texts, default=-1) + 2
    new = np.full(size, -1, np.int32)
    for old, text in texts.items():
        new[old] = numbers.setdefault(text, len(numbers))
    return new[np.where(code >= 0, code, size - 1)], list(numbers)


def _operators(trace: Trace, names: Names, autograd: Autograd, passes: Passes) -> Array:
    """Name code of the outermost operator around each node, or of its forward operator's."""
    kind, name, parent = (trace.array(c) for c in ("kind", "name", "parent"))
    operator, ranges = kind == Kind.CPU_OP, kind == Kind.ANNOTATION
    is_named = (names.part[name] == OPTIMIZER) | (names.communication[name] & ~names.fsdp2[name])
    is_named = (operator & ~names.wrapper[name]) | ((operator | ranges) & is_named)
    own = np.where(is_named, name, -1).astype(np.int32)
    known = (passes.part >= 0) | passes.communication
    # one number for each combination of pass, recomputation and communication
    usage = passes.part + 1 + np.int8(4) * passes.recompute + np.int8(8) * passes.communication
    usage = np.where(known, usage, -1)
    engine = names.engine[name] & operator
    code = np.full(len(own), -1, np.int32)
    for _ in range(_ROUNDS):
        before = code
        code = _outermost(parent, own, usage, autograd.forward, before, engine)
        if np.array_equal(code, before):
            break
    marks = (names.step_kind[name] >= 0) | (names.layer[name] >= 0)
    for rows in trace.rank_rows.values():
        if not operator[rows].any():  # ranges of a program that uses no framework
            named = np.where(ranges & ~marks, name, -1).astype(np.int32)
            code[rows] = nest.inherited(parent, named)[rows]
    return code


_ROUNDS = 4
"""Rounds in which operations are passed on: forward, backward, what is recomputed there, and its own
backward pass. Recomputed operators have their own operation, and give it to their backward pass."""


# Compiled: operations go from parents to children, and from forward operators to functions.
@jit
def _outermost(
    parent: Array, own: Array, usage: Array, forward: Array, known: Array, engine: Array
) -> Array:
    """Code of the outermost node of equal usage around each; of a backward function its origin's.

    A node without a usage (-1) has that of its parent.
    """
    code, usages = np.full(len(parent), -1, np.int32), usage.copy()
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0 and usages[i] < 0:
            usages[i] = usages[p]
        same = p >= 0 and (usages[p] < 0 or usages[p] == usages[i])
        if same and code[p] >= 0 and not engine[i]:
            code[i] = code[p]
        elif forward[i] >= 0 and known[forward[i]] >= 0:
            code[i] = known[forward[i]]
        else:
            code[i] = own[i]
    return code


def _chopper_labels(trace: Trace, names: Names, autograd: Autograd) -> Array:
    """Chopper's labels: the range's code, plus once or twice the number of names for f_ or b_."""
    kind, name, parent = (trace.array(c) for c in ("kind", "name", "parent"))
    size = len(trace.names())
    marks = names.chopper[name] | (names.step_kind[name] >= 0)
    label = np.where((kind == Kind.ANNOTATION) & ~marks, name, -1).astype(np.int32)
    label = nest.inherited(parent, label)
    label = np.where(label < 0, _labels_on_main_thread(trace, names, label), label)
    linked = np.full(len(label), -1, np.int32)
    made = autograd.made_backward & ~autograd.backward
    linked[made] = np.where(label[made] >= 0, label[made] + size, -1)
    origin = autograd.forward
    has_origin = origin >= 0
    origin_label = label[origin[has_origin]]
    linked[has_origin] = np.where(origin_label >= 0, origin_label + 2 * size, -1)
    # read again for jobs with such marks, as numbers of all nodes take as much as their times
    sequence = read_arguments(trace).sequence
    _extend_to_parents(parent, sequence, autograd.backward, linked)
    linked = nest.inherited(parent, linked)
    return np.where(linked >= 0, linked, label)


# Compiled: each linked node's parents are followed up.
@jit
def _extend_to_parents(parent: Array, sequence: Array, backward: Array, linked: Array) -> None:
    """Copy labels of linked operators to those around them with the same number, in place."""
    for i in range(len(parent)):
        p = parent[i]
        if linked[i] < 0:
            continue
        while p >= 0 and linked[p] < 0:
            if sequence[p] == sequence[i] and backward[p] == backward[i]:
                linked[p] = linked[i]
            p = parent[p]


def _labels_on_main_thread(trace: Trace, names: Names, label: Array) -> Array:
    """Label of the innermost range at each node's start, on the thread with the program's marks."""
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    kind, lane, parent = trace.array("kind"), trace.array("lane"), trace.array("parent")
    marks = names.chopper[trace.array("name")] & (kind == Kind.ANNOTATION)
    result = np.full(len(label), -1, np.int32)
    for rows in trace.rank_rows.values():
        if marks[rows].any():
            main = np.bincount(lane[rows][marks[rows]]).argmax()
            ranges = np.flatnonzero((lane[rows] == main) & (kind[rows] == Kind.ANNOTATION))
            ranges += rows.start
            started = np.searchsorted(ts[ranges], ts[rows], "right") - 1
            result[rows] = _labels_at(ranges, started, ts[rows], end, parent, label)
    return result


# Compiled: from the range that started last, parents are followed until one lasts long enough.
@jit
def _labels_at(
    ranges: Array, started: Array, time: Array, end: Array, parent: Array, label: Array
) -> Array:
    """Label of the innermost range that lasts beyond each time; -1 if there is none."""
    result = np.full(len(started), -1, np.int32)
    for i in range(len(started)):
        node = ranges[started[i]] if started[i] >= 0 else -1
        while node >= 0 and end[node] <= time[i]:
            node = parent[node]
        if node >= 0:
            result[i] = label[node]
    return result
