"""What tells how sensitive kernels are to the core clock, beside a law fitted to their repeats.

All sensitivities here are those between two clocks that matter: ``t(f) = t_ref (b f_ref / f + 1 - b)``
from the clock that a kernel ran at to the one that it is asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.counters import counted
from chopper_interop.counters.align import DURATION
from chopper_interop.counters.counted import CLOCK as COUNTED_CLOCK
from chopper_interop.work import kernels as work_kernels

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

PRIORS = {
    "matrix": (0.80, 0.15),
    "matrix-memory": (0.50, 0.25),
    "attention": (0.80, 0.15),
    "vector": (0.15, 0.20),
}
"""Sensitivity by class, and its standard deviation: large products and attention 0.85 to 1, small
ones 0.4 to 0.7, what only moves data 0 to 0.3 (maximum achievable FLOPS of MI300X, AMD 2025; decode
of LLMs, arXiv 2501.08219). Wide, as it is our own reading of these."""
CLASSES = tuple(PRIORS)
_MATRIX, _MEMORY, _ATTENTION, _VECTOR = range(len(CLASSES))
_ATTENTION_NAMES = ("attn", "attention", "fmha", "flash", "_mha")
_RIDGE = 150.0
"""FLOP a byte below which memory may bound a product: about half of where it does at peak rates."""
MODEL_ERROR = 0.2
"""Counters alone do not tell how computing and moving data overlap in a kernel."""


class Told(NamedTuple):
    """What a source tells of kernels.

    Parameters
    ----------
    value
        Sensitivity or ratio of each; not a number where it tells nothing.
    error
        Standard deviation.
    """

    value: Array
    error: Array


def classes(trace: Trace, node: Array) -> Array:
    """Class of each kernel, a number of `CLASSES`, by name, and by its sizes where known."""
    names = trace.names()
    code = trace.array("name")[node]
    role = work_kernels.roles(names, code)
    found = np.where(role == work_kernels.WORKER, _MATRIX, _VECTOR)
    lower = [name.lower() for name in names]
    attends = np.array([any(w in name for w in _ATTENTION_NAMES) for name in lower] + [False])
    found[attends[code] & (role == work_kernels.WORKER)] = _ATTENTION
    flops, moved = (_column(trace, name, node) for name in ("flops", "mem_bytes"))
    low = (flops > 0) & (moved > 0) & (flops < _RIDGE * moved)
    found[low & (found == _MATRIX)] = _MEMORY
    return found


class Counted(NamedTuple):
    """Repeats in the run in which they were counted, one kernel after the other.

    Parameters
    ----------
    place
        Which of the asked nodes each is.
    mhz
        Mean clock then.
    dur
        How long it took then, nanoseconds.
    """

    place: Array
    mhz: Array
    dur: Array


def counted_repeats(trace: Trace, node: Array) -> Counted:
    """Kernels that were counted in another run, with their clocks and times then."""
    none = np.zeros(0)
    if COUNTED_CLOCK not in trace.nodes.column_names or not trace.counters.num_rows:
        return Counted(np.zeros(0, np.int64), none, none)
    names = arrow.flat(trace.counters["name"])
    told = names.dictionary.to_pylist()
    if DURATION not in told:
        return Counted(np.zeros(0, np.int64), none, none)
    rows = np.flatnonzero(arrow.numbers(names, -1) == told.index(DURATION))
    owner, dur = trace.array("node", "counters")[rows], trace.array("value", "counters")[rows]
    place = np.full(trace.nodes.num_rows, -1, np.int64)
    place[node] = np.arange(len(node))
    mhz = arrow.numbers(trace.nodes[COUNTED_CLOCK], np.nan)[owner]
    good = (place[owner] >= 0) & (mhz > 0) & (dur > 0)
    return Counted(place[owner][good], mhz[good], dur[good])


class Busy(NamedTuple):
    """What counters tell of kernels as they were counted; not a number where they tell nothing.

    Parameters
    ----------
    core
        Share of the time in which matrix cores, or vector units if more, were busy.
    memory
        Share of the time that what was moved takes at the memory's peak bandwidth.
    core_cycles
        Cycles in which they were busy.
    memory_ns
        Time that what was moved takes so.
    """

    core: Array
    memory: Array
    core_cycles: Array
    memory_ns: Array


def busy(trace: Trace, node: Array, bandwidth: Array) -> Busy:
    """What counters tell of kernels.

    Parameters
    ----------
    trace
        Any trace.
    node
        Rows of its kernels.
    bandwidth
        Peak bandwidth of the memory of each one's GPU, 1e9 byte/s.
    """
    if not trace.counters.num_rows or not len(node):
        none = np.full(len(node), np.nan)
        return Busy(none, none, none, none)
    counted_node, values = counted.metrics(trace, *_UNITS, "cycles", "mem_bytes_counted")
    place = np.full(trace.nodes.num_rows, -1, np.int64)
    place[counted_node] = np.arange(len(counted_node))
    at = place[node]
    column = {name: np.append(value, np.nan)[at] for name, value in values.items()}
    core = np.fmax.reduce([column[name] for name in _UNITS]) / 100.0
    moved = column["mem_bytes_counted"] / bandwidth
    dur = trace.array("dur")[node].astype(float)
    then = counted_repeats(trace, node)
    dur[then.place] = then.dur
    return Busy(core, moved / dur, core * column["cycles"], moved)


_UNITS = ("mfma_util", "valu_util")


def _column(trace: Trace, name: str, node: Array) -> Array:
    if name not in trace.nodes.column_names:
        return np.full(len(node), -1.0)
    return arrow.numbers(trace.nodes[name], -1)[node].astype(float)


def medians(values: Array, key: Array, n: int) -> Array:
    """Median of the known values of each key; not a number where there is none."""
    good = ~np.isnan(values)
    order = np.lexsort((values[good], key[good]))
    value, of = values[good][order], key[good][order]
    first = np.searchsorted(of, np.arange(n + 1))
    count = np.diff(first)
    found = np.full(n, np.nan)
    some = np.flatnonzero(count)
    low, high = first[some] + (count[some] - 1) // 2, first[some] + count[some] // 2
    found[some] = (value[low] + value[high]) / 2
    return found
