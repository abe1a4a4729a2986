"""The pass that each host node serves, and what of it is recomputing or communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.structure import autograd as structure_autograd
from chopper_interop.structure.names import BACKWARD, FORWARD, OPTIMIZER

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.structure.autograd import Autograd
    from chopper_interop.structure.names import Names
    from chopper_interop.trace import Trace

_AGAIN, _COMMUNICATION, _DATA, _ENGINE = 1, 2, 4, 8
_RANGES = (Kind.CPU_OP, Kind.ANNOTATION)
_BY_THREAD = (
    Kind.CPU_OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.DRIVER, Kind.API, Kind.ALLOCATION,
)  # fmt: skip


@dataclass(frozen=True)
class Passes:
    """For each host node, which pass it serves and how.

    Parameters
    ----------
    part
        Number of one of `structure.names.PARTS`; -1 if unknown or of none.
    again
        Whether it computes activations once more, for the backward pass.
    communication
        Whether it is communication, or within.
    assumed
        Whether nothing names its pass: its thread and step do.
    """

    part: Array
    again: Array
    communication: Array
    assumed: Array


def passes(trace: Trace, names: Names, autograd: Autograd, iteration: Array) -> Passes:
    """Which pass each host node serves."""
    kind, name, parent = (trace.array(c) for c in ("kind", "name", "parent"))
    ranges = is_any(kind, _RANGES)
    own = np.where(ranges, names.part[name], -1)
    own = np.where(kind == Kind.PYTHON, names.python_part[name], own)
    own = np.where(autograd.backward & ranges, BACKWARD, own)
    own = np.where((own < 0) & autograd.led, FORWARD, own)
    own = np.where(names.step_kind[name] >= 0, -1, own).astype(np.int8)
    flags = _COMMUNICATION * (names.communication[name] & ranges)
    flags = flags + _DATA * (names.data[name] & ranges) + _ENGINE * (names.engine[name] & ranges)
    part, flags = _passed_down(
        parent,
        own,
        flags.astype(np.int8),
        structure_autograd.recomputed(trace, names, autograd),
        names.engine[name] & ranges,
        names.checkpoint[name] & (kind == Kind.CPU_OP),
    )
    assumed = _assumed(trace, names, part, iteration)
    part = np.where((flags & _DATA) > 0, -1, np.where(assumed >= 0, assumed, part))
    return Passes(
        part.astype(np.int8),
        (flags & _AGAIN) > 0,
        (flags & _COMMUNICATION) > 0,
        (assumed >= 0) & ((flags & _DATA) == 0),
    )


@jit
def _passed_down(  # a name wins over what is around it
    parent: Array, own: Array, flags: Array, begins: Array, engine: Array, checkpoint: Array
) -> tuple[Array, Array]:
    """Pass and flags of each node: its own, or those of the innermost node around it.

    A forward pass within a function of autograd is the recomputing of activations; within a range
    that somebody called backward it is one.
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
            flag[i] &= ~np.int8(_AGAIN)
        elif around == BACKWARD and (begins[i] or checkpoint[p] or (within and own[i] == FORWARD)):
            part[i] = BACKWARD
            flag[i] |= np.int8(_AGAIN)
        elif own[i] < 0:
            part[i] = around
    return part, flag


def _assumed(trace: Trace, names: Names, part: Array, iteration: Array) -> Array:
    """Pass of what nothing names, where a model is trained; -1 where it stays unknown."""
    assumed = np.full(len(part), -1, np.int8)
    trained = np.isin(part, [BACKWARD, OPTIMIZER])
    kind = trace.array("kind")
    for mine in trace.rank_rows.values():
        if not trained[mine].any():
            continue
        rest = (part[mine] < 0) & (iteration[mine] >= 0)
        rest &= is_any(kind[mine], _BY_THREAD)
        rest &= names.step_kind[trace.array("name")[mine]] < 0
        told = _pass_of_thread(trace, names, part, mine)[trace.array("lane")[mine]]
        late = _after_backward(trace, part, iteration, mine)
        assumed[mine] = np.where(rest, np.where(late & (told == FORWARD), OPTIMIZER, told), -1)
    return assumed


def _pass_of_thread(trace: Trace, names: Names, part: Array, mine: slice) -> Array:
    """Of each lane backward if only that is named there (autograd's), else forward if anything."""
    lane, lanes = trace.array("lane")[mine], len(trace.lanes)
    step = names.step_kind[trace.array("name")[mine]] >= 0
    step &= trace.array("kind")[mine] != Kind.GPU_ANNOTATION
    backward = np.bincount(lane[part[mine] == BACKWARD], minlength=lanes) > 0
    others = (
        np.bincount(lane[step | np.isin(part[mine], [FORWARD, OPTIMIZER])], minlength=lanes) > 0
    )
    return np.where(others, FORWARD, np.where(backward, BACKWARD, -1)).astype(np.int8)


def _after_backward(trace: Trace, part: Array, iteration: Array, mine: slice) -> Array:
    """Which nodes start behind the last of the backward pass of their iteration.

    Clipping of gradients and reading the loss are named by nobody and belong to the update.
    """
    ts, end = trace.array("ts")[mine], (trace.array("ts") + trace.array("dur"))[mine]
    steps = iteration[mine]
    _, step = gather.distinct(steps)
    backward = (part[mine] == BACKWARD) & (steps >= 0)
    backward &= ~is_any(trace.array("kind")[mine], GPU_WORK)
    last = np.full(int(step.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    last[np.unique(step[backward])] = 0
    np.maximum.at(last, step[backward], end[backward])
    late: Array = ts >= last[step]
    return late
