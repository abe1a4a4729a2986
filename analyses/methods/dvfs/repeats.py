"""Repeats of kernels: the same kernel again on any GPU of a product, in any step.

Repeats have one name, grid, workgroup, and shapes of operands. `Repeats` has the duration of each, its
clock, and a mask of those that ran without communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.analyses.methods.activity import comm_overlap, pieces, windows
from chopper_interop.analyses.methods.dvfs.clocks import kernel_clocks
from chopper_interop.arrays import Array, gather
from chopper_interop.gpus import ratings
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.kernel_clocks import Clocks

_LAUNCH_ARGUMENTS = ("grid", "grid_size", "block", "workgroup", "workgroup_size")
"""Arguments of kernels, or of the calls that launch them."""
_SHAPE_ARGUMENTS = ("Input Dims", "Input dims")
_MAX_LEVELS = 4
"""Levels above a launching call that are searched for an operator with shapes. Chosen:
enough for operators within operators; shapes further up are of something else than the kernel."""
_MAX_SOLO_OVERLAP = 0.05
"""Share of a kernel's time overlapped by communication up to which it counts as alone. Chosen: at the
18.9 % that overlap costs on average (Lit Silicon, arXiv 2511.09861), this is below 1 % of its time."""


@dataclass(frozen=True)
class Repeats:
    """Kernels, the repeats among them, and the clocks that they ran at.

    Parameters
    ----------
    trace
        Trace of the kernels.
    node
        Rows of the kernels, ascending.
    key
        Number from 0 on that each shares with its repeats.
    clocks
        Core clocks of the kernels.
    dur
        Durations, nanoseconds.
    solo
        Mark kernels that ran without communication.
    """

    trace: Trace
    node: Array
    key: Array
    clocks: Clocks
    dur: Array
    solo: Array

    @cached_property
    def count(self) -> Array:
        """Number of repeats of each key."""
        return np.bincount(self.key)

    def mean(self, values: Array, mask: Array | None = None) -> Array:
        """Mean over the repeats of each key, weighted with their durations; NaN where none is known."""
        good = ~np.isnan(values) if mask is None else mask & ~np.isnan(values)
        weight = np.bincount(self.key[good], self.dur[good], len(self.count))
        total = np.bincount(self.key[good], self.dur[good] * values[good], len(self.count))
        return total / np.where(weight > 0, weight, np.nan)


def kernel_repeats(trace: Trace) -> Repeats:
    """Return the kernels of a trace with their repeats and clocks."""
    node, key = same_kernels(trace)
    window = windows.rank_windows(trace, "")
    work = pieces.pieces_in_windows(trace, window)
    covered = np.zeros(trace.nodes.num_rows, np.int64)
    np.add.at(covered, work.row, comm_overlap.measure_overlap(trace, window, work).overlap_ns)
    dur = trace.array("dur")[node].astype(float)
    solo = covered[node] <= _MAX_SOLO_OVERLAP * dur
    return Repeats(trace, node, key, kernel_clocks.kernel_clocks(trace, node), dur, solo)


_MIN_REPEATS_AT_PLACE = 5
"""Repeats of each place in the mean that show what is usual there."""


def places(repeats: Repeats) -> tuple[Array, Array]:
    """Return the place of each kernel in the training steps of its rank.

    Returns
    -------
    place
        Number that repeats share before which the same kernel ran equally often in the step; that of all
        repeats of the kernel if there are no steps, or too few.
    phase
        Share of the step's kernels that started earlier; 0 throughout without steps.
    """
    trace = repeats.trace
    step, rank = (
        trace.integers("iteration", repeats.node, unknown=-1),
        trace.array("rank")[repeats.node],
    )
    start = trace.array("ts")[repeats.node]
    first, place = gather.distinct(repeats.key, _count_before(start, repeats.key, step, rank))
    if len(first) * _MIN_REPEATS_AT_PLACE > len(place):
        return repeats.key, np.zeros(len(place))
    _, of_step = gather.distinct(rank, step)
    return place, _count_before(start, step, rank) / np.bincount(of_step)[of_step]


def _count_before(start: Array, *columns: Array) -> Array:
    """Number of those with equal values in all columns that started before each."""
    order = np.lexsort((start, *columns))
    index = np.arange(len(order))
    changes = [np.append([True], np.diff(column[order]) != 0)[: len(order)] for column in columns]
    before = np.empty(len(order), np.int64)
    before[order] = index - np.maximum.accumulate(np.where(np.logical_or.reduce(changes), index, 0))
    return before


def mean_of(values: Array, key: Array, mask: Array, n: int) -> Array:
    """Mean of the marked values of each of `n` keys; NaN where none is marked."""
    count = np.bincount(key[mask], minlength=n)
    total = np.bincount(key[mask], values[mask], n)
    return total / np.where(count > 0, count, np.nan)


def same_kernels(trace: Trace) -> tuple[Array, Array]:
    """Number kernels by what they do: one name, grid, workgroup, and shapes of operands.

    Kernels on different products differ: other units or memory take another time at the same clock.

    Returns
    -------
    node
        Kernels with a duration, ascending. Communication is not among them.
    key
        Number from 0 on that each shares with those that do the same.
    """
    kernel = trace.array("kind") == Kind.KERNEL
    node = np.flatnonzero(kernel & (trace.array("dur") > 0))
    columns = [trace.array("name")[node], _products(trace, node)]
    columns += arguments.codes_of_launches(trace, node, *_LAUNCH_ARGUMENTS)
    columns += _shapes(trace, node)
    _, key = gather.distinct(*columns) if node.size else (node, node)
    return node, key


def _products(trace: Trace, node: Array) -> Array:
    """Codes of GPUs that are alike: of one product (or else name), architecture, units."""
    devices, device = ratings.rate_gpus_of_nodes(trace, node)
    code: dict[tuple[str, str, int | None], int] = {}
    code_of_device = []
    for gpu in devices.values():
        name = gpu.product.name if gpu.product else gpu.name
        code_of_device.append(code.setdefault((name, gpu.arch, gpu.cus), len(code)))
    return np.array(code_of_device, np.int64)[device]


def _shapes(trace: Trace, node: Array) -> list[Array]:
    """Codes of the shapes of the innermost operator with shapes around each launching call."""
    parent = np.append(trace.array("parent"), -1)
    around = parent[trace.launch[node]]
    around[trace.launch[node] < 0] = -1
    # Each distinct caller is looked up once; each round goes one level up where shapes are missing.
    caller, code_of = np.unique(around, return_inverse=True)
    shapes = np.full((len(_SHAPE_ARGUMENTS), len(caller)), -1, np.int64)
    for _ in range(_MAX_LEVELS):
        missing = np.flatnonzero((caller >= 0) & (shapes < 0).all(axis=0))
        if not missing.size:
            break
        locations = arguments.find(trace, caller[missing], *_SHAPE_ARGUMENTS)
        for row, location in zip(shapes, locations, strict=True):
            row[missing] = arguments.values_at(trace.text, location)[0]
        caller = np.where((shapes < 0).all(axis=0), parent[caller], -1)
    return [row[code_of] for row in shapes]
