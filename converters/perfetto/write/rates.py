"""Counter lanes of what a GPU achieves: rates of its kernels, and the energy that they took.

They are made of annotation columns: of kernels that run at once rates are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.perfetto.chopper_metadata import RATES_SOURCE
from chopper_interop.converters.perfetto.write.counter_lanes import CounterLane, Samples
from chopper_interop.converters.perfetto.write.derived_tracks import gpu_work
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class _Rate:
    """A lane of one column: its name, its unit, and the factor from the column's unit."""

    column: str
    name: str
    unit: str
    factor: float
    per_time: bool = True


_RATES = (
    _Rate("flops_counted", "FLOP rate (counters)", "TFLOP/s", 1e-3),
    _Rate("flops", "FLOP rate (shapes)", "TFLOP/s", 1e-3),
    _Rate("mem_bytes_counted", "memory rate (counters)", "GB/s", 1.0),
    _Rate("mem_bytes", "memory rate, at least (shapes)", "GB/s", 1.0),
    _Rate("mfma_util", "matrix cores busy", "%", 1.0, per_time=False),
)
"""FLOP and bytes are divided by nanoseconds."""
_ENERGY = "energy_j"


def rate_lanes(trace: Trace) -> Iterator[Samples]:
    """Yield the lanes of each GPU of which anything is known."""
    columns = {r.column: trace.reals(r.column) for r in _RATES if trace.has(r.column)}
    if trace.has(_ENERGY):
        columns[_ENERGY] = trace.reals(_ENERGY)
    for rank, device, nodes in gpu_work(trace) if columns else ():
        kernels = nodes[trace.array("kind")[nodes] == Kind.KERNEL]
        kernels = kernels[trace.array("dur")[kernels] > 0]
        for rate in _RATES:
            rows = _known(columns, rate.column, kernels)
            if len(rows):
                lane = CounterLane(rank, device, RATES_SOURCE, rate.name, rate.unit)
                yield Samples(lane, *_rate(trace, rate, rows, columns[rate.column][rows]))
        rows = _known(columns, _ENERGY, nodes)
        if len(rows):
            lane = CounterLane(rank, device, RATES_SOURCE, "energy of all work so far", "J")
            yield Samples(lane, *_total(trace, rows, columns[_ENERGY][rows]))


def _known(columns: dict[str, Array], name: str, nodes: Array) -> Array:
    """Return the nodes with a value in a column, which may be absent."""
    return nodes[np.isfinite(columns[name][nodes])] if name in columns else nodes[:0]


def _rate(trace: Trace, rate: _Rate, nodes: Array, value: Array) -> tuple[Array, Array]:
    """Sum of the rates of what runs, from each start and end on."""
    ts, dur = (trace.array(column)[nodes] for column in ("ts", "dur"))
    step = value * rate.factor / dur if rate.per_time else value
    time = np.concatenate([ts, ts + dur])
    order = np.argsort(time, kind="stable")
    time = time[order]
    running = np.cumsum(np.repeat([1, -1], len(ts))[order])
    total = np.cumsum(np.concatenate([step, -step])[order])
    total = np.where(running > 0, np.maximum(total, 0), 0.0)  # without the rest of rounding
    last = np.flatnonzero(np.diff(time, append=time[-1] + 1))  # of several changes at one time
    return time[last], total[last]


def _total(trace: Trace, nodes: Array, energy: Array) -> tuple[Array, Array]:
    """Sum of the energy of all work that has ended: over a part of the time, a difference."""
    end = trace.array("ts")[nodes] + trace.array("dur")[nodes]
    order = np.argsort(end, kind="stable")
    total = np.cumsum(energy[order])
    last = np.flatnonzero(np.diff(end[order], append=end.max() + 1))
    return end[order][last], total[last]
