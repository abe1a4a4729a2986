"""Shapes of launches: workgroups of a kernel, and threads of one, by their axes.

Sources state them in different units. PyTorch writes what the call was given (`grid`, `block`), and so does
rpd (`grid`, `workgroup`): workgroups, but the threads of the whole grid where `hipExtModuleLaunchKernel`
launched. ROCm's other profilers always count the threads of the whole grid. Builds of PyTorch on
rocprofiler-sdk write the threads of a workgroup as `grid`, and those of the whole grid as `block`. Totals
without axes (`grid_size` of rocprof v1) are no shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chopper_interop import arguments
from chopper_interop.arrays import Array
from chopper_interop.trace import Trace

_AXES = 3
_MAX_EXTENT = (1 << 32) - 1
"""Perfetto's extents are of 32 bits."""
_MAX_THREADS = 1024
"""Threads of a workgroup: the limit of all GPUs of AMD and NVIDIA."""
_AS_CALLED = "rpd"
"""ROCm's format that writes a grid as the call was given it."""
_BY_THREADS = "hipExtModuleLaunchKernel"
"""The call that takes the threads of the whole grid (its parameter ``globalWorkSizeX``)."""


def launch_shapes(trace: Trace, work: Array) -> Array:
    """Shape of the launch of each piece of GPU work.

    Parameters
    ----------
    work
        Rows of GPU work.

    Returns
    -------
    array
        Six columns: workgroups in x, y and z, and threads of one in x, y and z; all 0 where unknown.
    """
    grid, block, workgroup = _extents(trace, work, "grid", "block", "workgroup")
    is_pytorch = np.any(block, axis=1)
    rank = trace.array("rank")[work]
    impossible = is_pytorch & (block.astype(float).prod(axis=1) > _MAX_THREADS)
    swapped = is_pytorch & np.isin(rank, rank[impossible])
    threads = np.where(is_pytorch[:, None], block, workgroup)
    grid[swapped], threads[swapped] = threads[swapped], grid[swapped]
    as_called = is_pytorch | any(source.format == _AS_CALLED for source in trace.meta.sources)
    in_threads = swapped | ~as_called | _launched_by(trace, work, _BY_THREADS)
    groups = np.where(in_threads[:, None], -(-grid // np.maximum(threads, 1)), grid)
    shapes = np.concatenate([groups, threads], axis=1)
    shapes[np.any(shapes == 0, axis=1)] = 0
    return shapes


def _launched_by(trace: Trace, work: Array, name: str) -> Array:
    """Mark the work that a call of this name launched."""
    call = trace.launch[work]
    is_name = np.array([*(one == name for one in trace.names()), False])
    return (call >= 0) & is_name[trace.array("name")[call]]


def _extents(trace: Trace, work: Array, *keys: str) -> list[Array]:
    """Arguments of work, or else of the calls that launched it, by axes; 0 where there are none."""
    call = trace.launch[work]
    rows = np.concatenate([work, np.maximum(call, 0)])
    extents = []
    for location in arguments.find(trace, rows, *keys):
        code, values = arguments.values_at(trace.text, location)
        table = np.array([*map(_extent, values), (0,) * _AXES], np.int64)  # the last is that of -1
        of_work, of_call = table[code[: len(work)]], table[code[len(work) :]]
        of_call[call < 0] = 0
        extents.append(np.where(np.any(of_work, axis=1)[:, None], of_work, of_call))
    return extents


def _extent(value: Any) -> tuple[int, ...]:
    """Three positive numbers as they are; zeros for anything else."""
    is_extent = isinstance(value, list) and len(value) == _AXES
    if is_extent and all(type(one) is int and 0 < one <= _MAX_EXTENT for one in value):
        return tuple(value)
    return (0,) * _AXES
