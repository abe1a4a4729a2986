"""The gap before each kernel: what the host was late with, and what it took to get it to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import gaps
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Columns = dict[str, Array]


def of(trace: Trace, rows: Array, compat: str = "") -> tuple[Columns, Array]:
    """Prep, call and launch of each kernel, -1 where its call is not known; where times contradict.

    Parameters
    ----------
    trace
        The trace.
    rows
        Its kernels, within a rank in order of time.
    compat
        "chopper": the end of the kernel that started last before, in place of the last end.

    Returns
    -------
    split, contradicted
        ``prep_ns``, ``call_ns``, ``launch_ns``, ``gap_ns`` and ``called`` of each, and which were
        called after they began.
    """
    start, dur = trace.array("ts")[rows], trace.array("dur")[rows]
    chain, chains = _chains(trace, rows)
    before = (gaps.previous if compat == "chopper" else gaps.reach)(
        chain, chains, start, start + dur
    )
    called = gaps.asked(trace, rows)
    linked, first = called != gaps.NEVER, before == gaps.NEVER
    contradicted = linked & (called > start)
    called = np.where(linked, np.minimum(called, start), start)
    since = np.where(first, start, before)
    gap = np.maximum(start - since, 0)
    prep = np.maximum(np.where(first, 0, called - since), 0)
    call = np.where(first, start - called, np.minimum(start - called, gap))
    split = {"prep": prep, "call": call, "launch": gap}
    told = {f"{name}_ns": np.where(linked, values, -1) for name, values in split.items()}
    told["gap_ns"], told["called"] = gap, np.where(linked, called, gaps.NEVER)
    return told, contradicted


def _chains(trace: Trace, rows: Array) -> tuple[Array, int]:
    """Kernels of one training step on one GPU; those of no step, between two of them, are one too."""
    gpu, gpus = gaps.gpus(trace, rows)
    if "iteration" not in trace.nodes.column_names:
        return gpu, gpus
    step = arrow.numbers(trace.nodes["iteration"], -1)[rows].astype(np.int64)
    run = np.where(step < 0, _runs(gpu, step, gpus), 0)
    first, chain = gather.distinct(gpu, step, run)
    return chain, len(first)


@jit
def _runs(group: Array, step: Array, groups: int) -> Array:
    """Number of the run of equal steps that each piece is in, within its group."""
    run, last = np.zeros(groups, np.int64), np.full(groups, -2, np.int64)
    found = np.empty(len(group), np.int64)
    for i in range(len(group)):
        g = group[i]
        run[g] += step[i] != last[g]
        last[g] = step[i]
        found[i] = run[g]
    return found
