"""Gap before each kernel, split into lateness of the host, the call, and the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import gaps
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    Columns = dict[str, Array]


def split_gaps(trace: Trace, rows: Array, compat: str = "") -> tuple[Columns, Array]:
    """Split the gap before each kernel into preparation, call and launch.

    Parameters
    ----------
    rows
        Kernels of the trace, within a rank in order of time.
    compat
        "chopper": the end of the kernel that started last before, in place of the last end.

    Returns
    -------
    split, contradicted
        ``prep_ns``, ``call_ns`` and ``launch_ns`` of each, -1 where its call is not known, ``gap_ns``
        and ``called``; and a mask of kernels that began before they were called, by their times.
    """
    start, dur = trace.array("ts")[rows], trace.array("dur")[rows]
    chain, chains = _chains(trace, rows)
    before = (gaps.previous_end if compat == "chopper" else gaps.latest_end_before)(
        chain, chains, start + dur
    )
    called = gaps.call_times(trace, rows)
    linked, first = called != gaps.NO_TIME, before == gaps.NO_TIME
    contradicted = linked & (called > start)
    called = np.where(linked, np.minimum(called, start), start)
    since = np.where(first, start, before)
    gap = np.maximum(start - since, 0)
    prep = np.maximum(np.where(first, 0, called - since), 0)
    call = np.where(first, start - called, np.minimum(start - called, gap))
    split = {"prep": prep, "call": call, "launch": gap}
    columns = {f"{name}_ns": np.where(linked, values, -1) for name, values in split.items()}
    columns["gap_ns"], columns["called"] = gap, np.where(linked, called, gaps.NO_TIME)
    return columns, contradicted


def _chains(trace: Trace, rows: Array) -> tuple[Array, int]:
    """Number of each kernel's chain, and the count of chains.

    A chain is the kernels of one training step on one GPU, or those of no step between two steps.
    """
    gpu, gpus = gaps.gpu_numbers(trace, rows)
    if not trace.has("iteration"):
        return gpu, gpus
    step = trace.integers("iteration", rows)
    run = np.where(step < 0, _runs(gpu, step, gpus), 0)
    first, chain = gather.distinct(gpu, step, run)
    return chain, len(first)


@jit
def _runs(group: Array, step: Array, groups: int) -> Array:
    """Number of the run of equal steps that each kernel is in, within its group.

    Compiled: the last step of each of several interleaved groups is carried along.
    """
    run, last = np.zeros(groups, np.int64), np.full(groups, -2, np.int64)
    run_of = np.empty(len(group), np.int64)
    for i in range(len(group)):
        g = group[i]
        run[g] += step[i] != last[g]
        last[g] = step[i]
        run_of[i] = run[g]
    return run_of
