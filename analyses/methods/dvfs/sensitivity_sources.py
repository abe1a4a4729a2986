"""Sources of kernels' sensitivity to the core clock other than a law fitted to their repeats.

All sensitivities b here hold between two clocks: ``t(f) = t_ref (b f_ref / f + 1 - b)`` from the clock
that a kernel ran at to the clock that is asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.annotate.counters.counter_metrics import CLOCK as COUNTED_CLOCK
from chopper_interop.annotate.counters.join_passes import DURATION
from chopper_interop.annotate.work import kernels as work_kernels
from chopper_interop.arrays import arrow

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

PRIORS = {
    "matrix": 0.80,
    "matrix-memory": 0.50,
    "attention": 0.80,
    "vector": 0.15,
}
"""Expected sensitivity by class: large products and attention 0.85 to 1, small
ones 0.4 to 0.7, kernels that only move data 0 to 0.3 (maximum achievable FLOPS of MI300X, AMD 2025;
decode of LLMs, arXiv 2501.08219). Our own reading of these: single kernels may have any from 0 to 1."""
CLASSES = tuple(PRIORS)
_MATRIX, _MEMORY, _ATTENTION, _VECTOR = range(len(CLASSES))
_ATTENTION_NAMES = ("attn", "attention", "fmha", "flash", "_mha")
_RIDGE = 150.0
"""FLOP a byte below which memory may bound a product. Of MI300X, 1307 TFLOP/s at 5.3 TB/s meet at 247;
somewhat more than half of that, as products do not reach the peak rate."""
MODEL_ERROR = 0.2
"""Error of a sensitivity by counters. Chosen: wide, as counters alone do not show how computing and
moving data overlap in a kernel."""


class Estimate(NamedTuple):
    """Estimates of one source for each kernel.

    Parameters
    ----------
    value
        Sensitivity or ratio of each kernel; NaN where the source has none.
    error
        Standard deviation.
    """

    value: Array
    error: Array


def classes(trace: Trace, node: Array) -> Array:
    """Class of each kernel, an index of `CLASSES`, by its name and, where known, its sizes."""
    names = trace.names()
    code = trace.array("name")[node]
    role = work_kernels.roles(names, code)
    number = np.where(role == work_kernels.WORKER, _MATRIX, _VECTOR)
    lower = [name.lower() for name in names]
    attends = np.array([any(w in name for w in _ATTENTION_NAMES) for name in lower] + [False])
    number[attends[code] & (role == work_kernels.WORKER)] = _ATTENTION
    flops, moved = (trace.reals(name, node) for name in ("flops", "mem_bytes"))
    low = (flops > 0) & (moved > 0) & (flops < _RIDGE * moved)
    number[low & (number == _MATRIX)] = _MEMORY
    return number


class Counted(NamedTuple):
    """Repeats in the run in which they were counted, one kernel after the other.

    Parameters
    ----------
    position
        Index of each among the requested nodes.
    mhz
        Mean clock in that run.
    dur
        Duration in that run, nanoseconds.
    """

    position: Array
    mhz: Array
    dur: Array


def counted_repeats(trace: Trace, node: Array) -> Counted:
    """Return kernels that were counted in another run, with their clocks and durations there."""
    none = Counted(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    if not trace.has(COUNTED_CLOCK) or not trace.counters.num_rows:
        return none
    names = arrow.single_chunk(trace.counters["name"])
    texts = names.dictionary.to_pylist()
    if DURATION not in texts:
        return none
    rows = np.flatnonzero(arrow.to_numpy(names, -1) == texts.index(DURATION))
    owner, dur = trace.array("node", "counters")[rows], trace.array("value", "counters")[rows]
    position = np.full(trace.nodes.num_rows, -1, np.int64)
    position[node] = np.arange(len(node))
    mhz = trace.reals(COUNTED_CLOCK, owner)
    good = (position[owner] >= 0) & (mhz > 0) & (dur > 0)
    return Counted(position[owner][good], mhz[good], dur[good])


class Busy(NamedTuple):
    """Busy cycles and bytes of kernels by their counters; NaN where not counted.

    Parameters
    ----------
    core
        Share of the time in which matrix cores, or vector units if more, were busy.
    memory
        Share of the time that the moved bytes take at the memory's peak bandwidth.
    core_cycles
        Cycles in which these units were busy.
    memory_ns
        Time that the moved bytes take at that bandwidth.
    """

    core: Array
    memory: Array
    core_cycles: Array
    memory_ns: Array


_UNITS = ("mfma_util", "valu_util")


def busy(trace: Trace, node: Array, bandwidth: Array) -> Busy:
    """Return busy cycles and bytes of kernels by their counters.

    Parameters
    ----------
    trace
        Trace with counters.
    node
        Rows of its kernels.
    bandwidth
        Peak bandwidth of the memory of each kernel's GPU, 1e9 byte/s.
    """
    if not trace.counters.num_rows or not len(node):
        unknown = np.full(len(node), np.nan)
        return Busy(unknown, unknown, unknown, unknown)
    counted_node, values = counter_metrics.dispatch_metrics(
        trace, *_UNITS, "cycles", "mem_bytes_counted"
    )
    position = np.full(trace.nodes.num_rows, -1, np.int64)
    position[counted_node] = np.arange(len(counted_node))
    at = position[node]  # -1, the appended NaN, for kernels that were not counted
    column = {name: np.append(value, np.nan)[at] for name, value in values.items()}
    core = np.fmax.reduce([column[name] for name in _UNITS]) / 100.0
    moved = column["mem_bytes_counted"] / bandwidth
    dur = trace.array("dur")[node].astype(float)
    counted_run = counted_repeats(trace, node)
    dur[counted_run.position] = counted_run.dur
    return Busy(core, moved / dur, core * column["cycles"], moved)
