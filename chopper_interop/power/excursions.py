"""GPUs against their limits of power: when they are above, and the figures of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.power import limits as power_limits
from chopper_interop.telemetry import energy, lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.fleet.places import Place
    from chopper_interop.power.limits import Limit
    from chopper_interop.telemetry.lines import Above, Lines
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Part:
    """A GPU in a window.

    Parameters
    ----------
    place, window
        Which, and when.
    power
        What it drew, as far as that is known.
    limit
        What counts as its limit.
    found
        When it was above.
    samples
        So many samples are above in each of these.
    source
        Tools that sampled power, the finest first.
    """

    place: Place
    window: Window
    power: Lines
    limit: Limit
    found: Above
    samples: Array
    source: str


def of(
    trace: Trace,
    places: Sequence[Place],
    *,
    limit_w: float = 0.0,
    above: float = 1.0,
    gpus: str = "",
) -> tuple[list[Part], list[Place]]:
    """GPUs in each of their windows in which their power is known.

    Parameters
    ----------
    trace, places
        Which GPUs.
    limit_w
        Their limit in watts; 0 for the one that is known of each.
    above
        As so many times that limit counts.
    gpus
        The user's file of GPUs; empty if there is none.

    Returns
    -------
    parts, bare
        Also those that are left out, as nothing tells a limit of them.
    """
    power_limits.check(places, gpus)
    known = [drawn for drawn in map(_drawn, places) if len(drawn.known)]
    those, powers = [d.place for d in known], [d.known for d in known]
    parts, bare = [], []
    for drawn, limit in zip(
        known, power_limits.of(trace, those, powers, limit_w, gpus), strict=True
    ):
        if limit is None:
            bare.append(drawn.place)
        else:
            parts += _parts(drawn, power_limits.Limit(limit.lines.times(above), limit.by))
    return parts, bare


@dataclass(frozen=True)
class _Drawn:
    """Power of a GPU: all of it, what of it is in each window, and all that is in one."""

    place: Place
    power: Lines
    inside: list[Lines]
    known: Lines
    source: str


def _drawn(place: Place) -> _Drawn:
    powers = energy.powers_of(place.gpu)
    power = lines.of_samples(samples for _, samples in powers)
    source = ", ".join(dict.fromkeys(source.tool for source, _ in powers))
    inside = [power.within(w.start_ns, w.end_ns) for w in place.windows]
    return _Drawn(place, power, inside, lines.together(inside), source)


def _parts(of: _Drawn, limit: Limit) -> list[Part]:
    moments, _ = of.power.points()
    found = []
    for window, drawn in zip(of.place.windows, of.inside, strict=True):
        height = lines.summed((drawn, limit.lines), (1.0, -1.0))
        own = lines.above(height)
        high = moments[height.at(moments) > 0]
        samples = np.bincount(np.searchsorted(own.start, high, "right") - 1, minlength=len(own))
        if len(drawn):
            found.append(Part(of.place, window, drawn, limit, own, samples, of.source))
    return found


def sums(power: Lines, limit: Lines, found: Above) -> dict[str, Any]:
    """Figures of a power over time, and of its excursions; the limit is the mean while power is known."""
    mean, _ = power.means(power.start[:1], power.end[-1:])
    allowed, known = limit.integrals(power.start, power.end)
    top = np.maximum(power.first, power.last)
    at = int(np.argmax(top))
    when = power.start[at] if power.first[at] >= power.last[at] else power.end[at]
    lasted = int((found.end - found.start).sum())
    some = len(found) > 0
    return {
        "covered_ns": power.known_ns,
        "limit_w": float(allowed.sum() / known.sum()),
        "mean_power_w": float(mean[0]),
        "peak_power_w": float(top[at]),
        "peak_start_ns": int(when),
        "excursions": len(found),
        "above_ns": lasted,
        "above_share": lasted / power.known_ns,
        "longest_ns": int((found.end - found.start).max()) if some else None,
        "peak_above_w": float(found.peak.max()) if some else None,
        "mean_above_w": float(found.area.sum() / (found.time.sum() * 1e-9)) if some else None,
        "above_j": float(found.area.sum()),
        "resolution_ns": int(power.resolution.max()),
    }


def by_node(parts: Iterable[Part]) -> list[list[Part]]:
    """GPUs of each node and step."""
    found: dict[tuple[str, int], list[Part]] = {}
    for part in parts:
        found.setdefault((part.place.host, part.window.iteration), []).append(part)
    return [found[key] for key in sorted(found)]


def at_once(parts: Sequence[Part]) -> tuple[int, int]:
    """How many GPUs are above their limits at once at most, and how long two or more are."""
    moment = np.concatenate([t for p in parts for t in (p.found.start, p.found.end)])
    change = np.concatenate([np.repeat([1, -1], len(part.found)) for part in parts])
    order = np.lexsort((change, moment))
    there = np.cumsum(change[order])
    if not there.size:
        return 0, 0
    width = np.diff(moment[order])
    return int(there.max()), int(width[there[:-1] > 1].sum())


def share(parts: Sequence[Part]) -> float:
    """Share of the known time of all GPUs in which they are above their limits."""
    known = sum(part.power.known_ns for part in parts)
    return sum(int((p.found.end - p.found.start).sum()) for p in parts) / known if known else 0.0
