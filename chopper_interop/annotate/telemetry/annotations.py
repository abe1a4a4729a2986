"""Columns of telemetry of GPU work: clocks, power, temperature, throttling and energy of its GPU.

A node has a value if it is known for all of the node's time: null before the first sample, after
the last, and in gaps (`telemetry.samples.GAP`). A node shorter than the time between two samples
has the values around it; `telemetry_ns` is that time between samples, plus the uncertainty of the
samples' own times. Of several sources the finest that covers all of a node's time gives a quantity.
Energy is summed up from the finest source of each interval of time, so that it may be known where
no single source covers all of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate import provenance
from chopper_interop.annotate.telemetry import energy
from chopper_interop.annotate.telemetry.gpus import Gpu, gpus_with_telemetry
from chopper_interop.annotate.telemetry.job import join_dies
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK, POWER, QUANTITIES, Quantity
from chopper_interop.annotate.telemetry.samples import SampleStatistics, sample_statistics
from chopper_interop.arrays import Array, arrow
from chopper_interop.grouping import grouped
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.annotate.telemetry.source_reader import Source

ENERGY, RESOLUTION = "energy_j", "telemetry_ns"
COARSE = Fault.info(
    "telemetry-coarse",
    "GPU work that is shorter than the time between samples of its telemetry has the values that "
    "were sampled around it; telemetry_ns is the time between these samples.",
)
NOT_SAMPLED = Fault.info(
    "telemetry-missing",
    "GPU work that ran before, after or between samples of its GPU's telemetry has none.",
)


def columns(trace: Trace, issues: IssueLog | None = None) -> dict[str, pa.Array]:
    """Compute columns of GPU work from the telemetry of its GPU.

    Parameters
    ----------
    issues
        Log of what was chosen, what is unknown, and how coarse the rest is.

    Returns
    -------
    dict
        Columns of `hub.ANNOTATIONS` from ``gfxclk_mhz`` to ``telemetry_ns`` with at least one
        value; those of single dies only where more than one is sampled.
    """
    table = _TelemetryColumns(trace.nodes.num_rows)
    is_stated = provenance.stated_rows(trace, RESOLUTION)
    log = IssueLog() if issues is None or (is_stated.size and is_stated.all()) else issues
    for board in join_dies(trace, gpus_with_telemetry(trace, log, include_unsampled=True)):
        without_power = [_add_quantities(table, trace, die) for die in board.dies]
        _add_energy(table, trace, board.gpu, np.concatenate(without_power))
        for die in (one for one in board.dies if one.sources or one.counters):
            _note(die, trace.array("dur")[die.rows], table.step_of(die.rows), log)
    return table.arrays()


def _note(gpu: Gpu, dur: Array, step: Array, issues: IssueLog) -> None:
    """Count work without telemetry, and work that is shorter than the time between samples."""
    tools = sorted({source.tool for sources in gpu.sources.values() for source in sources})
    example = f"rank {gpu.ranks[0]}, telemetry of {', '.join(tools)}"
    issues.add(NOT_SAMPLED, np.count_nonzero(step == 0), example)
    coarse = dur < step
    if coarse.any():
        usual = int(np.median(step[coarse])) / 1e6
        issues.add(COARSE, np.count_nonzero(coarse), f"{example}: {usual:,.3f} ms")


class _TelemetryColumns:
    """Columns of a trace's nodes, created at their first value."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.columns: dict[str, Array] = {}

    def put(self, name: str, rows: Array, values: Array) -> None:
        """Set values of nodes; NaN for unknown."""
        if np.isnan(values).all():
            return
        if name not in self.columns:
            self.columns[name] = np.full(self.count, np.nan)
        self.columns[name][rows] = values

    def put_step(self, rows: Array, step: Array) -> None:
        """Set times between samples; of all quantities of a node the longest counts."""
        if step.any():
            if RESOLUTION not in self.columns:
                self.columns[RESOLUTION] = np.zeros(self.count, np.int64)
            column = self.columns[RESOLUTION]
            column[rows] = np.maximum(column[rows], step)

    def step_of(self, rows: Array) -> Array:
        """Times between samples of nodes; 0 where nothing is known."""
        if RESOLUTION not in self.columns:
            return np.zeros(len(rows), np.int64)
        return self.columns[RESOLUTION][rows]

    def arrays(self) -> dict[str, pa.Array]:
        """Arrow columns in the hub's order, null where unknown."""
        arrays = {}
        for name in hub.ANNOTATION_TYPES:
            if name in self.columns:
                values = self.columns[name]
                unknown = values == 0 if name == RESOLUTION else np.isnan(values)
                arrays[name] = arrow.array(values, mask=unknown)
        return arrays


def _add_quantities(columns: _TelemetryColumns, trace: Trace, gpu: Gpu) -> Array:
    """Add columns of all quantities; return rows of work whose power no single source covers."""
    start = trace.array("ts")[gpu.rows]
    end = start + trace.array("dur")[gpu.rows]
    uncovered = {one.name: _add_quantity(columns, gpu, one, start, end) for one in QUANTITIES}
    return gpu.rows[uncovered[POWER.name]]


def _add_quantity(
    columns: _TelemetryColumns, gpu: Gpu, quantity: Quantity, start: Array, end: Array
) -> Array:
    """Add a quantity by the best source that covers each node; return nodes that none covers."""
    uncovered = np.arange(len(start))
    for source in gpu.sources.get(quantity.name, ()):
        if not uncovered.size:
            break
        times = start[uncovered], end[uncovered]
        statistics = _add_source(source, columns, gpu.rows[uncovered], quantity, *times)
        uncovered = uncovered[np.isnan(statistics.mean)]
    return uncovered


def _add_energy(columns: _TelemetryColumns, trace: Trace, gpu: Gpu, without_power: Array) -> None:
    """Add energy, and its resolution for work whose power no single source covers."""
    powers = energy.energy_sources(gpu)
    if powers:
        start = trace.array("ts")[gpu.rows]
        end = start + trace.array("dur")[gpu.rows]
        shares = energy.share_energy([samples for _, samples in powers], start, end).of_each
        columns.put(ENERGY, gpu.rows, shares)
        rows = np.intersect1d(without_power, gpu.rows[~np.isnan(shares)])
        coarsest = max(samples.resolution_ns for _, samples in powers)
        columns.put_step(rows, np.full(len(rows), coarsest))


def _add_source(
    source: Source,
    columns: _TelemetryColumns,
    rows: Array,
    quantity: Quantity,
    start: Array,
    end: Array,
) -> SampleStatistics:
    """Add columns of one quantity by one source, of each die and of all; return those of all."""
    of_die = {
        die: _combine([sample_statistics(samples, start, end) for samples in parts])
        for die, parts in grouped(source.samples).items()
    }
    if quantity is GFXCLK and len(of_die) > 1:
        for die, one in of_die.items():
            _put(columns, rows, quantity.columns(die), one)
    combined = _combine(list(of_die.values()))
    _put(columns, rows, quantity.columns(), combined)
    columns.put_step(rows, combined.step_ns)
    return combined


def _put(
    columns: _TelemetryColumns, rows: Array, names: tuple[str, str, str], one: SampleStatistics
) -> None:
    for name, values in zip(names, (one.mean, one.min, one.max), strict=True):
        if name in hub.ANNOTATION_TYPES:
            columns.put(name, rows, values)


def _combine(parts: list[SampleStatistics]) -> SampleStatistics:
    """Combine several series of one quantity, such as those of dies: mean of their means."""
    if len(parts) == 1:
        return parts[0]
    means = np.stack([p.mean for p in parts])
    count = np.count_nonzero(~np.isnan(means), axis=0)
    return SampleStatistics(
        np.nansum(means, axis=0) / np.where(count, count, np.nan),
        np.fmin.reduce([p.min for p in parts]),
        np.fmax.reduce([p.max for p in parts]),
        np.maximum.reduce([p.step_ns for p in parts]),
    )
