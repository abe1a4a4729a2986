"""Mean and peak of what telemetry tells of each GPU of a run, over some windows of time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.fleet import means as gpu_means
from chopper_interop.fleet.means import EDGE
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.telemetry import energy, lines
from chopper_interop.telemetry.gpus import Gpu, gpus, without_work
from chopper_interop.telemetry.names import (
    GFXCLK,
    POWER,
    TEMPERATURE,
    THROTTLE,
    Quantity,
    Told,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from chopper_interop.telemetry.lines import Lines
    from chopper_interop.telemetry.samples import Samples
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]
    Window = tuple[int, int]

UTILIZATION = Quantity(
    "utilization", "share", 0.0, 1.0, (Told(r"GFX activity(?: XCP 0)?", {"%": 0.01}),)
)
NEARLY_ALL = 0.9
"""So much of the time the power of all GPUs must be known for energy to be told."""
QUANTITIES = (POWER, TEMPERATURE, EDGE, GFXCLK, UTILIZATION, THROTTLE)


@dataclass(frozen=True)
class Seen:
    """What is known of a quantity.

    Parameters
    ----------
    mean, peak
        Over the time that it is known.
    covered_ns
        How long that is.
    """

    mean: float
    peak: float
    covered_ns: int


@dataclass(frozen=True)
class Sampled:
    """A GPU by its telemetry.

    Parameters
    ----------
    rank, device
        Who computes on it, -1 if nobody knows, and its number.
    seen
        By name of the quantity, of those that are known.
    """

    rank: int
    device: int
    seen: dict[str, Seen] = field(default_factory=dict)

    def value(self, quantity: Quantity, which: str) -> float | None:
        """The mean or peak of a quantity; None where it is not known."""
        found = self.seen.get(quantity.name)
        return None if found is None else float(getattr(found, which))


def found(trace: Trace) -> list[Gpu]:
    """GPUs that work ran on; of telemetry alone, all that it tells of."""
    if np.isin(trace.array("kind"), [int(k) for k in GPU_WORK]).any():
        return gpus(trace, quantities=QUANTITIES)
    return without_work(trace, (), QUANTITIES)


def extent(known: Iterable[Gpu]) -> Window | None:
    """From the first to the last sample of power, or where there is none, of anything.

    What little is known of the power of some GPUs alone is left out, as `efficiency` does.
    """
    known = list(known)
    told = [of for gpu in known if (of := gpu.told.get(POWER.name))]
    sources = [s for of in told for s in of] or [
        s for gpu in known for of in gpu.told.values() for s in of
    ]
    times = [samples.ts for source in sources for _, samples in source.samples]
    if not times:
        return None
    first, last = min(int(ts[0]) for ts in times), max(int(ts[-1]) for ts in times)
    best = [of[0].samples[0][1].ts for of in told]
    if not best:
        return first, last
    common = max(int(ts[0]) for ts in best), min(int(ts[-1]) for ts in best)
    return common if common[1] - common[0] >= NEARLY_ALL * (last - first) else (first, last)


def sampled(gpu: Gpu, windows: Sequence[Window]) -> Sampled:
    """What is known of a GPU over some windows.

    Power is that of which its energy is made; all else by the source that `fleet.means` chooses.
    """
    start, end = _bounds(windows)
    seen: dict[str, Seen] = {}
    for quantity in QUANTITIES:
        if quantity is POWER:
            told = _power(gpu, windows)
        else:
            told = _best(gpu_means.mean(gpu, quantity, start, end), start, end)
        if told is not None and told.covered_ns:
            seen[quantity.name] = told
    edge = seen.pop(EDGE.name, None)
    if edge and TEMPERATURE.name not in seen:  # all that rocm-smi and CharLLM-PPT tell of MI250
        seen[TEMPERATURE.name] = edge
    return Sampled(gpu.ranks[0] if gpu.ranks else gpu.rank, gpu.device, seen)


def _power(gpu: Gpu, windows: Sequence[Window]) -> Seen | None:
    """Mean power by what tells its energy best; the peak is of what is shown."""
    best = [samples for _, samples in energy.best_of(gpu)]
    if not best:
        return None
    shown = [samples for source, samples in energy.powers_of(gpu) if not source.told.is_counter]
    mean = _over(best, windows)
    return replace(mean, peak=_over(shown, windows).peak) if shown else mean


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
    peak = np.nanmax([_peak([one], lines.of_samples([one]), start, end) for one in parts])
    return Seen(area / int(known.sum()), float(peak), int(known.sum()))


def _over(parts: Sequence[Samples], windows: Sequence[Window]) -> Seen:
    start, end = _bounds(windows)
    told = lines.of_samples(parts)
    area, known = told.integrals(start, end)
    covered = int(known.sum())
    if not covered:
        return Seen(np.nan, np.nan, 0)
    return Seen(float(area.sum()) / covered, _peak(parts, told, start, end), covered)


def _peak(parts: Sequence[Samples], told: Lines, start: Array, end: Array) -> float:
    """The highest sample in any of these windows, and the highest value at their ends."""
    ts = np.concatenate([part.ts for part in parts])
    order = np.argsort(ts, kind="stable")
    ts, value = ts[order], np.append(np.concatenate([p.value for p in parts])[order], -np.inf)
    first, last = np.searchsorted(ts, start), np.searchsorted(ts, end, "right")
    most = np.maximum.reduceat(value, np.stack([first, last], axis=1).ravel())[::2]
    found = np.concatenate([most[first < last], told.at(start), told.at(end)])
    return float(np.fmax.reduce(found))
