"""Choice of the series of links: the best one for each link and direction of a GPU or node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.series import link_counters, samples
from chopper_interop.analyses.methods.series.link_counters import BOTH, COUNTER, Flow, LinkSeries
from chopper_interop.annotate.telemetry import lines
from chopper_interop.annotate.telemetry.gpu_series import node_locations
from chopper_interop.grouping import by_key
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.series.samples import Series, SeriesPlace

COLUMNS = {"PCIe": "pcie_bytes", "NVLink": "nvlink_bytes", "xGMI": "xgmi_bytes"}
"""Links of GPUs → column of what went over them, sent and received."""


@dataclass(frozen=True, eq=False)
class LinkTraffic:
    """A series, the link that it is of, and the traffic over that link."""

    series: Series
    way: LinkSeries
    flow: Flow


def read(trace: Trace, ranks: str = "") -> list[Series]:
    """Series of links, as of `series.samples.read`."""

    def is_link(series: dict[str, Any]) -> bool:
        return link_counters.parse_link_series(series["name"], series["unit"]) is not None

    return samples.read(trace, ranks, is_link)


def resolve(series: Series) -> LinkTraffic:
    """Resolve the link and the traffic of a series of `read`."""
    way = link_counters.parse_link_series(series.name, series.unit)
    assert way is not None  # noqa: S101 - for the type checker
    return LinkTraffic(series, way, link_counters.link_flow(series.samples, way))


def best(links: Sequence[LinkTraffic]) -> list[LinkTraffic]:
    """One series for each link, direction and port of a place: counters first, then the finest."""
    by_link = by_key(links, lambda one: (one.series.place, one.way.link.link, one.way.direction))
    kept = []
    for (place, link, direction), candidates in by_link.items():
        apart = {d for p, k, d in by_link if (p, k) == (place, link)} - {BOTH}
        if direction == BOTH and apart:
            continue
        tools = by_key(candidates, lambda one: (one.way.link.method, one.series.source))
        kept += tools[min(tools, key=lambda tool: _rank(tools[tool]))]
    chosen = set(map(id, kept))
    return [one for one in links if id(one) in chosen]


def _rank(several: list[LinkTraffic]) -> tuple[bool, int]:
    resolution = min(one.series.samples.resolution_ns for one in several)
    return several[0].way.link.method != COUNTER, resolution


def gpu_bytes(
    trace: Trace, windows: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], dict[str, float]]:
    """Bytes over links of each GPU in some windows, while they are known.

    Parameters
    ----------
    windows
        From when to when, nanoseconds.

    Returns
    -------
    dict
        By rank and device, as `COLUMNS` calls them, of those of which something is known. What is
        of several GPUs under one number (of several machines) is left out.
    """
    start, end = np.array(windows, np.int64).reshape(-1, 2).T
    sums: dict[tuple[int, int], dict[str, float]] = {}
    repeated, seen = set(), set()
    for one in best([resolve(series) for series in read(trace)]):
        column, at = COLUMNS.get(one.way.link.link), _gpu(trace, one.series.place)
        if column is None or at is None:
            continue
        way = (at, one.way.link.link, one.way.direction, one.way.port)
        repeated |= {at} if way in seen else set()
        seen.add(way)
        carried, known = lines.from_samples([one.flow.rates]).integrals(start, end)
        if known.any():
            volumes = sums.setdefault(at, {})
            volumes[column] = volumes.get(column, 0.0) + float(carried.sum()) * 1e-9
    return {at: volumes for at, volumes in sums.items() if at not in repeated}


def _gpu(trace: Trace, place: SeriesPlace) -> tuple[int, int] | None:
    """Rank and device of the work of a series' GPU, or where there is none, those of the series."""
    if not place.is_owned:
        return (place.rank, place.device) if place.device >= 0 else None
    return node_locations(trace, place.rows)[0]
