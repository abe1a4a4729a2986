"""What telemetry says of each piece of GPU work: its GPU's clocks, power, temperature meanwhile.

A value is given where samples tell it for the whole time of a node: null before the first sample,
after the last, and where samples are missing (`telemetry.samples.GAP`). A node shorter than
the time between two samples has what they say of its moment; `telemetry_ns` tells how long that
time is, and by how much a sample's own time is uncertain. Of several sources the finest that tells
a quantity for the whole time of a node gives it. Energy is added up from the finest source of each
stretch of time, so that it may be known where no one source tells the power of all of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import stated
from chopper_interop.columns import arrow
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.telemetry import energy
from chopper_interop.telemetry.gpus import Gpu, gpus
from chopper_interop.telemetry.job import joined
from chopper_interop.telemetry.names import GFXCLK, POWER, QUANTITIES
from chopper_interop.telemetry.samples import Seen, seen

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.gpus import Source
    from chopper_interop.telemetry.names import Quantity
    from chopper_interop.telemetry.samples import Samples
    from chopper_interop.trace import Trace

ENERGY, RESOLUTION = "energy_j", "telemetry_ns"
COARSE = Fault(
    "telemetry-coarse",
    Severity.INFO,
    "GPU work that took less time than lies between samples of its telemetry has what was sampled "
    "around it; telemetry_ns says how long that is.",
)
NOT_SAMPLED = Fault(
    "telemetry-missing",
    Severity.INFO,
    "GPU work that ran before, after or between samples of its GPU's telemetry has none.",
)


def columns(trace: Trace, issues: IssueLog | None = None) -> dict[str, pa.Array]:
    """Columns of GPU work from the telemetry of its GPU.

    Parameters
    ----------
    trace
        Any trace.
    issues
        Where it is told what was chosen, what is not known, and how well the rest is.

    Returns
    -------
    dict
        Those of `hub.ANNOTATIONS` from ``gfxclk_mhz`` to ``telemetry_ns`` of which something is
        known; those of single dies only where more than one is told.
    """
    made = _Columns(trace.nodes.num_rows)
    told = stated.rows(trace, RESOLUTION)
    log = IssueLog() if issues is None or (told.size and told.all()) else issues
    for board in joined(trace, gpus(trace, log, every=True)):
        untold = [_add_told(made, trace, die) for die in board.dies]
        _add_energy(made, trace, board.gpu, np.concatenate(untold))
        for die in (one for one in board.dies if one.told or one.counters):
            _note(die, trace.array("dur")[die.rows], made.step_of(die.rows), log)
    return made.arrays()


def _note(gpu: Gpu, dur: Array, step: Array, issues: IssueLog) -> None:
    """Say of how much work telemetry tells nothing, and of how much less than its own time."""
    told = sorted({source.tool for sources in gpu.told.values() for source in sources})
    example = f"rank {gpu.ranks[0]}, telemetry of {', '.join(told)}"
    issues.add(NOT_SAMPLED, np.count_nonzero(step == 0), example)
    coarse = dur < step
    if coarse.any():
        usual = int(np.median(step[coarse])) / 1e6
        issues.add(COARSE, np.count_nonzero(coarse), f"{example}: {usual:,.3f} ms")


class _Columns:
    """Columns of a trace's nodes, made at their first value."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: dict[str, Array] = {}

    def put(self, name: str, rows: Array, values: Array) -> None:
        """Values of nodes; NaN for unknown."""
        if np.isnan(values).all():
            return
        if name not in self.found:
            self.found[name] = np.full(self.count, np.nan)
        self.found[name][rows] = values

    def put_step(self, rows: Array, step: Array) -> None:
        """Times between samples; the longest of all quantities of a node holds."""
        if step.any():
            if RESOLUTION not in self.found:
                self.found[RESOLUTION] = np.zeros(self.count, np.int64)
            column = self.found[RESOLUTION]
            column[rows] = np.maximum(column[rows], step)

    def step_of(self, rows: Array) -> Array:
        """Times between samples of nodes; 0 where nothing is known."""
        none = np.zeros(len(rows), np.int64)
        return self.found[RESOLUTION][rows] if RESOLUTION in self.found else none

    def arrays(self) -> dict[str, pa.Array]:
        """Arrow columns in the hub's order, null where unknown."""
        order = [name for name in hub.ANNOTATION_TYPES if name in self.found]
        return {
            name: arrow.array(
                self.found[name],
                mask=self.found[name] == 0 if name == RESOLUTION else np.isnan(self.found[name]),
            )
            for name in order
        }


def _add_told(made: _Columns, trace: Trace, gpu: Gpu) -> Array:
    """Columns of all quantities; rows of work of whose power no one source tells."""
    start = trace.array("ts")[gpu.rows]
    end = start + trace.array("dur")[gpu.rows]
    untold = {one.name: _add(made, gpu, one, start, end) for one in QUANTITIES}
    return gpu.rows[untold[POWER.name]]


def _add(made: _Columns, gpu: Gpu, quantity: Quantity, start: Array, end: Array) -> Array:
    """Columns of one quantity by the best source of each piece; which pieces none tells of."""
    left = np.arange(len(start))
    for source in gpu.told.get(quantity.name, ()):
        if not left.size:
            break
        whole = _add_of(source, made, gpu.rows[left], quantity, start[left], end[left])
        left = left[np.isnan(whole.mean)]
    return left


def _add_energy(made: _Columns, trace: Trace, gpu: Gpu, untold: Array) -> None:
    """Energy, and how coarse it is of pieces whose power is not told by one source alone."""
    powers = energy.best_of(gpu)
    if powers:
        start = trace.array("ts")[gpu.rows]
        end = start + trace.array("dur")[gpu.rows]
        of_each = energy.shared([samples for _, samples in powers], start, end).of_each
        made.put(ENERGY, gpu.rows, of_each)
        rows = np.intersect1d(untold, gpu.rows[~np.isnan(of_each)])
        coarsest = max(samples.resolution_ns for _, samples in powers)
        made.put_step(rows, np.full(len(rows), coarsest))


def _add_of(  # a source, and where and of what it is asked
    source: Source, made: _Columns, rows: Array, quantity: Quantity, start: Array, end: Array
) -> Seen:
    """Columns of one quantity by one source: of each die, and of all."""
    by_die: dict[int, list[Samples]] = {}
    for die, samples in source.samples:
        by_die.setdefault(die, []).append(samples)
    seen_of = {die: _joined([seen(s, start, end) for s in of]) for die, of in by_die.items()}
    if quantity is GFXCLK and len(seen_of) > 1:
        for die, one in seen_of.items():
            _put(made, rows, quantity.columns(die), one)
    whole = _joined(list(seen_of.values()))
    _put(made, rows, quantity.columns(), whole)
    made.put_step(rows, whole.step_ns)
    return whole


def _put(made: _Columns, rows: Array, columns_: tuple[str, str, str], one: Seen) -> None:
    for name, values in zip(columns_, (one.mean, one.least, one.most), strict=True):
        if name in hub.ANNOTATION_TYPES:
            made.put(name, rows, values)


def _joined(parts: list[Seen]) -> Seen:
    """What several series of one quantity, as those of dies, say together: the mean."""
    if len(parts) == 1:
        return parts[0]
    means = np.stack([p.mean for p in parts])
    count = np.count_nonzero(~np.isnan(means), axis=0)
    return Seen(
        np.nansum(means, axis=0) / np.where(count, count, np.nan),
        np.fmin.reduce([p.least for p in parts]),
        np.fmax.reduce([p.most for p in parts]),
        np.maximum.reduce([p.step_ns for p in parts]),
    )
