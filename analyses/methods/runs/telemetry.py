"""Mean and peak of the telemetry of each GPU of a run, over some windows of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.fleet import means as gpu_means
from chopper_interop.annotate.telemetry import energy, lines
from chopper_interop.annotate.telemetry.quantity_series import (
    EDGE,
    GFXCLK,
    POWER,
    TEMPERATURE,
    THROTTLE,
    UTILIZATION,
    Quantity,
)
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.gpus import Gpu
    from chopper_interop.annotate.telemetry.job import Board
    from chopper_interop.annotate.telemetry.lines import PiecewiseLinear
    from chopper_interop.annotate.telemetry.samples import Samples

    Window = tuple[int, int]

_OTHERS = (TEMPERATURE, EDGE, GFXCLK, UTILIZATION, THROTTLE)
QUANTITIES = (POWER, *_OTHERS)


@dataclass(frozen=True)
class MeanAndPeak:
    """Mean and peak of a quantity.

    Parameters
    ----------
    mean, peak
        Over the time that it is known.
    covered_ns
        Length of that time, nanoseconds.
    """

    mean: float
    peak: float
    covered_ns: int


@dataclass(frozen=True)
class SampledGpu:
    """A GPU by its telemetry.

    Parameters
    ----------
    quantities
        By name, of those that are known.
    """

    quantities: dict[str, MeanAndPeak] = field(default_factory=dict)

    def value(self, quantity: Quantity, which: str) -> float | None:
        """The mean or peak of a quantity; None where it is not known."""
        known = self.quantities.get(quantity.name)
        return None if known is None else float(getattr(known, which))


def power(board: Board, windows: Sequence[Window]) -> MeanAndPeak | None:
    """Mean power by the best source of its energy; the peak is of displayed power."""
    if not board.powers:
        return None
    shown = [samples for _, samples in energy.instantaneous_sources(board.gpu)]
    mean = mean_and_peak(board.powers, windows)
    both = replace(mean, peak=mean_and_peak(shown, windows).peak) if shown else mean
    return both if both.covered_ns else None


def sampled(gpu: Gpu, windows: Sequence[Window], power_of: MeanAndPeak | None) -> SampledGpu:
    """Means and peaks of a GPU over some windows.

    Its power, if known, is passed in; all else is by the source that `fleet.means` chooses.
    """
    start, end = _bounds(windows)
    known: dict[str, MeanAndPeak] = {}
    if power_of is not None and gpu.sources.get(POWER.name):
        known[POWER.name] = power_of
    for quantity in _OTHERS:
        best = _best(gpu_means.mean(gpu, quantity, start, end), start, end)
        if best is not None and best.covered_ns:
            known[quantity.name] = best
    edge = known.pop(EDGE.name, None)
    if edge and TEMPERATURE.name not in known:  # all that rocm-smi and CharLLM-PPT report of MI250
        known[TEMPERATURE.name] = edge
    return SampledGpu(known)


def _bounds(windows: Sequence[Window]) -> tuple[Array, Array]:
    """Starts and ends of the windows that are not empty."""
    start, end = np.array([w for w in windows if w[1] > w[0]], np.int64).reshape(-1, 2).T
    return start, end


def _best(mean: gpu_means.Mean | None, start: Array, end: Array) -> MeanAndPeak | None:
    """Mean and peak by one source: the peak is that of any die."""
    if mean is None or not mean.known_ns.any():
        return None
    known = mean.known_ns
    area = float((np.where(known > 0, mean.values, 0.0) * known).sum())
    parts = [samples for _, samples in mean.source.samples]
    peak = np.nanmax([_peak([one], lines.from_samples([one]), start, end) for one in parts])
    return MeanAndPeak(area / int(known.sum()), float(peak), int(known.sum()))


def mean_and_peak(parts: Sequence[Samples], windows: Sequence[Window]) -> MeanAndPeak:
    """Mean and peak over some windows, by samples of times that do not overlap."""
    start, end = _bounds(windows)
    line = lines.from_samples(parts)
    area, known = line.integrals(start, end)
    covered = int(known.sum())
    if not covered:
        return MeanAndPeak(np.nan, np.nan, 0)
    return MeanAndPeak(float(area.sum()) / covered, _peak(parts, line, start, end), covered)


def _peak(parts: Sequence[Samples], line: PiecewiseLinear, start: Array, end: Array) -> float:
    """The highest sample in any of these windows, and the highest value at their ends."""
    ts = np.concatenate([part.ts for part in parts])
    order = np.argsort(ts, kind="stable")
    ts, value = ts[order], np.append(np.concatenate([p.value for p in parts])[order], -np.inf)
    first, last = np.searchsorted(ts, start), np.searchsorted(ts, end, "right")
    peaks = np.maximum.reduceat(value, np.stack([first, last], axis=1).ravel())[::2]
    values = np.concatenate([peaks[first < last], line.at(start), line.at(end)])
    return float(np.fmax.reduce(values))
