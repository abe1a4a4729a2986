"""The same kernel again: on any GPU of a product, in any step, for operands of the same shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.columns import gather
from chopper_interop.gpus import rated
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_LAUNCH = ("grid", "grid_size", "block", "workgroup", "workgroup_size")
"""Arguments of kernels, or of the calls that launch them."""
_SHAPES = ("Input Dims", "Input dims")
_LEVELS = 4
"""So far above a launching call the operator stands that has shapes, if one has."""


def of(trace: Trace) -> tuple[Array, Array]:
    """Kernels that do the same: of one name, grid, workgroup, and shapes of the operator's operands.

    On one product: what differs in units or memory takes another time at the same clock.

    Parameters
    ----------
    trace
        Any trace.

    Returns
    -------
    node
        Its kernels that last a time, ascending. Communication is not among them.
    key
        Number from 0 on that each shares with those that do the same.
    """
    kernel = trace.array("kind") == Kind.KERNEL
    node = np.flatnonzero(kernel & (trace.array("dur") > 0))
    columns = [trace.array("name")[node], _products(trace, node)]
    columns += [*_launches(trace, node), *_shapes(trace, node)]
    _, key = gather.distinct(*columns) if node.size else (node, node)
    return node, key


def _products(trace: Trace, node: Array) -> Array:
    """Codes of what GPUs are: product or else name, architecture, units."""
    found, which = rated.of_nodes(trace, node)
    code: dict[tuple[str, str, int | None], int] = {}
    of_gpu = []
    for one in found.values():
        name = one.product.name if one.product else one.name
        of_gpu.append(code.setdefault((name, one.arch, one.cus), len(code)))
    return np.array(of_gpu, np.int64)[which]


def _launches(trace: Trace, node: Array) -> list[Array]:
    """Codes of grids and workgroups, as kernels state them or else the calls that launched them."""
    call = trace.launch[node]
    asked = np.concatenate([node, np.maximum(call, 0)])
    found = []
    for place in arguments.find(trace, asked, *_LAUNCH):
        code, _ = arguments.values_at(trace.text, place)
        own, of_call = code[: len(node)], np.where(call >= 0, code[len(node) :], -1)
        found.append(np.where(own >= 0, own, of_call))
    return found


def _shapes(trace: Trace, node: Array) -> list[Array]:
    """Codes of the shapes of the innermost operators around the launching calls that have some."""
    parent = np.append(trace.array("parent"), -1)
    around = parent[trace.launch[node]]
    around[trace.launch[node] < 0] = -1
    caller, code_of = np.unique(around, return_inverse=True)
    found = np.full((len(_SHAPES), len(caller)), -1, np.int64)
    for _ in range(_LEVELS):
        ask = np.flatnonzero((caller >= 0) & (found < 0).all(axis=0))
        if not ask.size:
            break
        places = arguments.find(trace, caller[ask], *_SHAPES)
        for row, place in zip(found, places, strict=True):
            row[ask] = arguments.values_at(trace.text, place)[0]
        caller = np.where((found < 0).all(axis=0), parent[caller], -1)
    return [row[code_of] for row in found]
