"""Times and cycles of kernels by counters: of another run, one kernel after the other, or of busy units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.annotate.counters.counter_metrics import CLOCK as COUNTED_CLOCK
from chopper_interop.annotate.counters.join_passes import DURATION
from chopper_interop.arrays import Array, arrow
from chopper_interop.trace import Trace


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
