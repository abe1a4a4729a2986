"""Excursions of GPUs above their power limits, and their figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.power import limits as power_limits
from chopper_interop.annotate.telemetry import energy, lines
from chopper_interop.arrays import Array
from chopper_interop.grouping import by_key
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window
    from chopper_interop.analyses.methods.fleet.places import GpuPlace
    from chopper_interop.analyses.methods.power.limits import Limit
    from chopper_interop.annotate.telemetry.lines import PiecewiseLinear, PositiveIntervals


@dataclass(frozen=True)
class GpuWindow:
    """Excursions of a GPU in a window.

    Parameters
    ----------
    place, window
        GPU and window.
    power
        Power as far as it is known.
    limit
        Power limit.
    excursions
        Intervals above the limit.
    samples
        Number of samples above the limit in each excursion.
    source
        Tools that sampled power, the finest first.
    """

    place: GpuPlace
    window: Window
    power: PiecewiseLinear
    limit: Limit
    excursions: PositiveIntervals
    samples: Array
    source: str


def gpu_windows(
    trace: Trace,
    places: Sequence[GpuPlace],
    *,
    limit_w: float = 0.0,
    above: float = 1.0,
    gpus: str = "",
) -> tuple[list[GpuWindow], list[GpuPlace]]:
    """Find the excursions of GPUs in each of their windows with known power.

    Parameters
    ----------
    trace, places
        Trace and its GPUs.
    limit_w
        Power limit in watts; 0 for the limit that is known of each GPU.
    above
        Factor to that limit.
    gpus
        Path of the user's file of GPUs; empty if there is none.

    Returns
    -------
    parts
        GPUs in windows.
    without_limit
        GPUs that are left out, as no source has a limit for them.
    """
    power_limits.check(places, gpus)
    with_power = [gpu for gpu in map(_gpu_power, places) if len(gpu.known)]
    limits = power_limits.power_limits(
        trace,
        [gpu.place for gpu in with_power],
        [gpu.known for gpu in with_power],
        limit_w,
        gpus,
    )
    parts, without_limit = [], []
    for gpu, limit in zip(with_power, limits, strict=True):
        if limit is None:
            without_limit.append(gpu.place)
        else:
            parts += _in_windows(gpu, power_limits.Limit(limit.lines.scaled(above), limit.by))
    return parts, without_limit


@dataclass(frozen=True)
class _GpuPower:
    """Power of a GPU: all of it, the part within each window, and the part within any."""

    place: GpuPlace
    power: PiecewiseLinear
    by_window: list[PiecewiseLinear]
    known: PiecewiseLinear
    source: str


def _gpu_power(place: GpuPlace) -> _GpuPower:
    """Read the power of a GPU."""
    powers = energy.power_sources(place.gpu)
    power = lines.from_samples(samples for _, samples in powers)
    source = ", ".join(dict.fromkeys(source.tool for source, _ in powers))
    by_window = [power.within(w.start_ns, w.end_ns) for w in place.windows]
    return _GpuPower(place, power, by_window, lines.concatenated(by_window), source)


def _in_windows(gpu: _GpuPower, limit: Limit) -> list[GpuWindow]:
    """Find the excursions of a GPU in each of its windows with known power."""
    times, _ = gpu.power.points()
    parts = []
    for window, power in zip(gpu.place.windows, gpu.by_window, strict=True):
        height = lines.weighted_sum((power, limit.lines), (1.0, -1.0))
        excursions = lines.positive_intervals(height)
        high = times[height.at(times) > 0]
        # Each sample above the limit lies in the excursion that begins last before it.
        at = np.searchsorted(excursions.start, high, "right") - 1
        samples = np.bincount(at, minlength=len(excursions))
        if len(power):
            parts.append(
                GpuWindow(gpu.place, window, power, limit, excursions, samples, gpu.source)
            )
    return parts


def figures(
    power: PiecewiseLinear, limit: PiecewiseLinear, excursions: PositiveIntervals
) -> dict[str, Any]:
    """Figures of power over time and of its excursions; the limit is the mean while power is known."""
    mean, _ = power.means(power.start[:1], power.end[-1:])
    allowed, known = limit.integrals(power.start, power.end)
    top = np.maximum(power.first, power.last)
    peak = int(np.argmax(top))
    peak_ns = power.start[peak] if power.first[peak] >= power.last[peak] else power.end[peak]
    lengths = excursions.end - excursions.start
    above_ns = int(lengths.sum())
    some = len(excursions) > 0
    mean_above = float(excursions.area.sum() / (excursions.time.sum() * 1e-9)) if some else None
    return {
        "covered_ns": power.known_ns,
        "limit_w": float(allowed.sum() / known.sum()),
        "mean_power_w": float(mean[0]),
        "peak_power_w": float(top[peak]),
        "peak_start_ns": int(peak_ns),
        "excursions": len(excursions),
        "above_ns": above_ns,
        "above_share": above_ns / power.known_ns,
        "longest_ns": int(lengths.max()) if some else None,
        "peak_above_w": float(excursions.peak.max()) if some else None,
        "mean_above_w": mean_above,
        "above_j": float(excursions.area.sum()),
        "resolution_ns": int(power.resolution.max()),
    }


def by_node(parts: Iterable[GpuWindow]) -> list[list[GpuWindow]]:
    """Group GPUs in windows by node and step."""
    groups = by_key(parts, lambda part: (part.place.host, part.window.iteration))
    return [groups[key] for key in sorted(groups)]


def concurrency(parts: Sequence[GpuWindow]) -> tuple[int, int]:
    """Largest number of GPUs above their limits at once, and the time with two or more."""
    time = np.concatenate([t for p in parts for t in (p.excursions.start, p.excursions.end)])
    change = np.concatenate([np.repeat([1, -1], len(part.excursions)) for part in parts])
    order = np.lexsort((change, time))  # at one time, ends before starts
    count = np.cumsum(change[order])
    if not count.size:
        return 0, 0
    width = np.diff(time[order])
    return int(count.max()), int(width[count[:-1] > 1].sum())


def above_share(parts: Sequence[GpuWindow]) -> float:
    """Share of the known time of all GPUs in which they are above their limits."""
    known = sum(part.power.known_ns for part in parts)
    above = sum(int((p.excursions.end - p.excursions.start).sum()) for p in parts)
    return above / known if known else 0.0
