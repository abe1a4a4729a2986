"""The pass of each host node, and marks for recomputation and communication."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.annotate.structure.autograd import Autograd, begins_recompute
from chopper_interop.annotate.structure.names import BACKWARD, FORWARD, OPTIMIZER, Names
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, RANGES, Kind
from chopper_interop.trace import Trace

_RECOMPUTE, _COMMUNICATION, _DATA, _ENGINE = (np.int8(flag) for flag in (1, 2, 4, 8))
"""Flags of a node."""
_ASSUMABLE = (
    Kind.CPU_OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.DRIVER, Kind.API, Kind.ALLOCATION,
)  # fmt: skip


@dataclass(frozen=True)
class Passes:
    """The pass of each host node.

    Parameters
    ----------
    part
        Number of one of `structure.names.PARTS`; -1 if unknown or of none.
    recompute
        Mask of nodes that compute activations once more, for the backward pass.
    communication
        Mask of communication and of what lies within it.
    assumed
        Mask of nodes whose pass no name says, but their thread and step.
    """

    part: Array
    recompute: Array
    communication: Array
    assumed: Array


def find_passes(trace: Trace, names: Names, autograd: Autograd, iteration: Array) -> Passes:
    """Find the pass of each host node.

    By names, and by links to autograd; else by what is around the node; else by its thread and step.
    """
    kind, name, parent = (trace.array(c) for c in ("kind", "name", "parent"))
    ranges = is_any(kind, RANGES)
    own = np.where(ranges, names.part[name], -1)
    own = np.where(kind == Kind.PYTHON, names.python_part[name], own)
    own = np.where(autograd.backward & ranges, BACKWARD, own)
    own = np.where((own < 0) & autograd.has_backward, FORWARD, own)
    own = np.where(names.step_kind[name] >= 0, -1, own)
    flags = _COMMUNICATION * (names.communication[name] & ranges)
    flags = flags + _DATA * (names.data[name] & ranges) + _ENGINE * (names.engine[name] & ranges)
    part, flags = _inherit_passes(
        parent,
        own,
        flags,
        begins_recompute(trace, names, autograd),
        names.engine[name] & ranges,
        names.checkpoint[name] & (kind == Kind.CPU_OP),
    )
    assumed = _assumed_passes(trace, names, part, iteration)
    part = np.where((flags & _DATA) > 0, -1, np.where(assumed >= 0, assumed, part))
    return Passes(
        part,
        (flags & _RECOMPUTE) > 0,
        (flags & _COMMUNICATION) > 0,
        (assumed >= 0) & ((flags & _DATA) == 0),
    )


# Compiled: passes and flags go from parents to children, in the order of nodes.
@jit
def _inherit_passes(  # a name wins over what is around it
    parent: Array, own: Array, flags: Array, begins: Array, engine: Array, checkpoint: Array
) -> tuple[Array, Array]:
    """Pass and flags of each node: its own, or those of the innermost node around it.

    A forward pass within a function of autograd is a recomputation of activations; within a range
    that somebody called backward it is a forward pass.
    """
    part, flag = own.copy(), flags.copy()
    for i in range(len(own)):
        p = parent[i]
        if p < 0:
            continue
        around = part[p]
        flag[i] |= flag[p]
        within = flag[i] & np.int8(_ENGINE) > 0
        if engine[i] or own[i] == OPTIMIZER:
            flag[i] &= ~np.int8(_RECOMPUTE)
        elif around == BACKWARD and (begins[i] or checkpoint[p] or (within and own[i] == FORWARD)):
            part[i] = BACKWARD
            flag[i] |= np.int8(_RECOMPUTE)
        elif own[i] < 0:
            part[i] = around
    return part, flag


def _assumed_passes(trace: Trace, names: Names, part: Array, iteration: Array) -> Array:
    """Pass of nodes that no name gives one, where a model is trained; -1 where it stays unknown."""
    assumed = np.full(len(part), -1, np.int8)
    trained = np.isin(part, [BACKWARD, OPTIMIZER])
    kind = trace.array("kind")
    for rows in trace.rank_rows.values():
        if not trained[rows].any():
            continue
        unknown = (part[rows] < 0) & (iteration[rows] >= 0)
        unknown &= is_any(kind[rows], _ASSUMABLE)
        unknown &= names.step_kind[trace.array("name")[rows]] < 0
        nodes = np.flatnonzero(unknown) + rows.start
        by_thread = _passes_of_threads(trace, names, part, rows)[trace.array("lane")[nodes]]
        assumed[nodes] = by_thread
        forward = nodes[by_thread == FORWARD]
        assumed[forward[_after_backward(trace, part, iteration, rows, forward)]] = OPTIMIZER
    return assumed


def _passes_of_threads(trace: Trace, names: Names, part: Array, rows: slice) -> Array:
    """For each lane: backward if only that is named there (autograd's), forward if others are."""
    lane, lanes = trace.array("lane")[rows], len(trace.lanes)
    step = names.step_kind[trace.array("name")[rows]] >= 0
    step &= trace.array("kind")[rows] != Kind.GPU_ANNOTATION
    backward = np.bincount(lane[part[rows] == BACKWARD], minlength=lanes) > 0
    others = (
        np.bincount(lane[step | np.isin(part[rows], [FORWARD, OPTIMIZER])], minlength=lanes) > 0
    )
    return np.where(others, FORWARD, np.where(backward, BACKWARD, -1)).astype(np.int8)


def _after_backward(
    trace: Trace, part: Array, iteration: Array, rows: slice, nodes: Array
) -> Array:
    """Mark those of some nodes that start after the last of the backward pass of their iteration.

    Clipping of gradients and reading the loss have no names of their own and belong to the update.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    backward = (part[rows] == BACKWARD) & (iteration[rows] >= 0)
    backward &= ~is_any(trace.array("kind")[rows], GPU_WORK)
    of_backward = np.flatnonzero(backward) + rows.start
    first, step = gather.distinct(iteration[of_backward])
    steps = iteration[of_backward[first]]
    last = np.zeros(len(steps), np.int64)
    np.maximum.at(last, step, ts[of_backward] + dur[of_backward])
    ascending = np.argsort(steps)
    # a step without a backward pass has the place -1, which is the last, and whose end never comes
    last = np.append(last[ascending], np.iinfo(np.int64).max)
    return ts[nodes] >= last[gather.find(steps[ascending], iteration[nodes])]
