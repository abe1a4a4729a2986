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
class Seen:
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
class Sampled:
    """A GPU by its telemetry.

    Parameters
    ----------
    seen
        By name of the quantity, of those that are known.
    """

    seen: dict[str, Seen] = field(default_factory=dict)

    def value(self, quantity: Quantity, which: str) -> float | None:
        """The mean or peak of a quantity; None where it is not known."""
        seen = self.seen.get(quantity.name)
        return None if seen is None else float(getattr(seen, which))


def power(board: Board, windows: Sequence[Window]) -> Seen | None:
    """Mean power by the best source of its energy; the peak is of displayed power."""
    if not board.powers:
        return None
    shown = [samples for _, samples in energy.instantaneous_sources(board.gpu)]
    mean = _seen_in(board.powers, windows)
    seen = replace(mean, peak=_seen_in(shown, windows).peak) if shown else mean
    return seen if seen.covered_ns else None


def sampled(gpu: Gpu, windows: Sequence[Window], power_of: Seen | None) -> Sampled:
    """Means and peaks of a GPU over some windows.

    Its power, if known, is passed in; all else is by the source that `fleet.means` chooses.
    """
    start, end = _bounds(windows)
    seen: dict[str, Seen] = {}
    if power_of is not None and gpu.sources.get(POWER.name):
        seen[POWER.name] = power_of
    for quantity in _OTHERS:
        best = _best(gpu_means.mean(gpu, quantity, start, end), start, end)
        if best is not None and best.covered_ns:
            seen[quantity.name] = best
    edge = seen.pop(EDGE.name, None)
    if edge and TEMPERATURE.name not in seen:  # all that rocm-smi and CharLLM-PPT report of MI250
        seen[TEMPERATURE.name] = edge
    return Sampled(seen)


def _bounds(windows: Sequence[Window]) -> tuple[Array, Array]:
    """Starts and ends of the windows that are not empty."""
    start, end = np.array([w for w in windows if w[1] > w[0]], np.int64).reshape(-1, 2).T
    return start, end


def _best(mean: gpu_means.Mean | None, start: Array, end: Array) -> Seen | None:
    """Mean and peak by one source: the peak is that of any die."""
    if mean is None or not mean.known_ns.any():
        return None
    known = mean.known_ns
    area = float((np.where(known > 0, mean.values, 0.0) * known).sum())
    parts = [samples for _, samples in mean.source.samples]
    peak = np.nanmax([_peak([one], lines.from_samples([one]), start, end) for one in parts])
    return Seen(area / int(known.sum()), float(peak), int(known.sum()))


def _seen_in(parts: Sequence[Samples], windows: Sequence[Window]) -> Seen:
    start, end = _bounds(windows)
    line = lines.from_samples(parts)
    area, known = line.integrals(start, end)
    covered = int(known.sum())
    if not covered:
        return Seen(np.nan, np.nan, 0)
    return Seen(float(area.sum()) / covered, _peak(parts, line, start, end), covered)


def _peak(parts: Sequence[Samples], line: PiecewiseLinear, start: Array, end: Array) -> float:
    """The highest sample in any of these windows, and the highest value at their ends."""
    ts = np.concatenate([part.ts for part in parts])
    order = np.argsort(ts, kind="stable")
    ts, value = ts[order], np.append(np.concatenate([p.value for p in parts])[order], -np.inf)
    first, last = np.searchsorted(ts, start), np.searchsorted(ts, end, "right")
    peaks = np.maximum.reduceat(value, np.stack([first, last], axis=1).ravel())[::2]
    values = np.concatenate([peaks[first < last], line.at(start), line.at(end)])
    return float(np.fmax.reduce(values))
