"""Modules and layers of the backward pass: those of the forward operators that it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.schemas.kinds import Kind
from chopper_interop.structure.modules import Modules

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.structure.autograd import Autograd
    from chopper_interop.structure.names import Names
    from chopper_interop.trace import Trace

_ROUNDS = 4
"""Forward, backward, what is recomputed there, and its own backward pass."""


def completed(trace: Trace, names: Names, autograd: Autograd, modules: Modules) -> Modules:
    """Modules and layers of all host nodes."""
    parent, lane = trace.array("parent"), trace.array("lane")
    operator = trace.array("kind") == Kind.CPU_OP
    engine = names.engine[trace.array("name")] & operator
    module, layer = modules.module.copy(), modules.layer.copy()
    if not (module >= 0).any() and not (layer >= 0).any():
        return modules
    for _ in range(_ROUNDS):
        if not _spread(parent, autograd.forward, module, layer):
            break
    accumulates = engine & names.accumulates[trace.array("name")]
    calls = np.flatnonzero(engine)
    accumulates = names.accumulates[trace.array("name")[calls]]
    before = _before(lane[calls], len(trace.lanes))
    _behind(calls, before, accumulates, module, layer)
    _spread(parent, autograd.forward, module, layer)
    return Modules(module, layer, modules.texts)


@jit
def _spread(parent: Array, forward: Array, module: Array, layer: Array) -> bool:
    """Give what is known to backward functions, and to what lies within; whether any was given."""
    given = False
    for i in range(len(parent)):
        for source in (forward[i], parent[i]):
            if source >= 0:
                if module[i] < 0 and module[source] >= 0:
                    module[i] = module[source]
                    given = True
                if layer[i] < 0 and layer[source] >= 0:
                    layer[i] = layer[source]
                    given = True
    return given


@jit
def _before(lane: Array, lanes: int) -> Array:
    """Which of some nodes is the one before each on its lane, -1 for none."""
    last = np.full(lanes, -1, np.int32)
    before = np.full(len(lane), -1, np.int32)
    for i in range(len(lane)):
        before[i] = last[lane[i]]
        last[lane[i]] = i
    return before


@jit
def _behind(calls: Array, before: Array, accumulates: Array, module: Array, layer: Array) -> None:
    """Give the accumulation of a gradient what the call of the engine before it has.

    It has no number, but is done at once when the gradient is there.
    """
    for k in range(len(calls)):
        i = calls[k]
        if accumulates[k] and before[k] >= 0 and layer[i] < 0:
            layer[i], module[i] = layer[calls[before[k]]], module[calls[before[k]]]
