"""Series of each GPU that ran work, and the GPU work of each rank on each device."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry import quantity_series
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.quantity_series import Quantity

Location = tuple[int, int]
"""Rank and device of a series; a rank of -1 is the node."""


@dataclass(frozen=True)
class SeriesOwner:
    """Work of a GPU, and the series that belong to it.

    Parameters
    ----------
    location
        Rank and device of its series, the first of several.
    ranks
        Ranks that compute on it.
    rows
        Its work: rows of nodes, in their order.
    series
        Rows of series.
    """

    location: Location
    ranks: tuple[int, ...]
    rows: Array
    series: list[int]


def series_owners(
    trace: Trace,
    quantities: Sequence[Quantity] = quantity_series.QUANTITIES,
    *,
    all_series: bool = False,
    include_unsampled: bool = False,
) -> list[SeriesOwner]:
    """Assign series to the GPUs on which work ran.

    Parameters
    ----------
    quantities
        Quantities whose series count, in addition to those of `QUANTITIES`.
    all_series
        Count all series, not only those of quantities of nodes.
    include_unsampled
        Include GPUs without series, each rank's devices as its own.
    """
    locations = series_locations(trace, quantities, all_series=all_series)
    if not locations and not include_unsampled:
        return []
    work = work_by_location(trace)
    devices = Counter(rank for rank, _ in work)
    users: dict[tuple[Location, ...], list[tuple[int, Array]]] = defaultdict(list)
    for (rank, device), rows in work.items():
        matched = _matching_locations(trace, locations, rank, device, is_only=devices[rank] == 1)
        if matched or include_unsampled:
            users[matched or ((rank, device),)].append((rank, rows))
    return [
        SeriesOwner(
            matched[0],
            tuple(sorted(rank for rank, _ in parts)),
            parts[0][1] if len(parts) == 1 else np.sort(np.concatenate([r for _, r in parts])),
            [row for location in matched for row in locations.get(location, ())],
        )
        for matched, parts in users.items()
    ]


def work_by_location(trace: Trace) -> dict[Location, Array]:
    """Rows of the GPU work of each rank on each device, ascending."""
    rows = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    lane, device_of_lane = trace.array("lane")[rows], trace.array("device", "lanes")
    work: dict[Location, Array] = {}
    for rank, rank_slice in trace.rank_rows.items():
        bounds = slice(*np.searchsorted(rows, [rank_slice.start, rank_slice.stop]))
        rank_work, lanes = rows[bounds], lane[bounds]
        devices = np.unique(device_of_lane[gather.unique_codes(lanes)])
        of_devices = [rank_work] * len(devices)
        if len(devices) > 1:  # one pass over the rank's work, and not one for each device
            code = np.searchsorted(devices, device_of_lane[lanes])
            first, by_device = gather.group_rows(code, len(devices))
            of_devices = np.split(rank_work[by_device], first[1:-1])
        numbers = [(rank, number) for number in devices.tolist()]
        work |= dict(zip(numbers, of_devices, strict=True))
    return work


def node_locations(trace: Trace, rows: Array) -> list[Location]:
    """Distinct ranks and devices of these nodes, in the order of their first."""
    device = trace.array("device", "lanes")[trace.array("lane")[rows]]
    rank = trace.array("rank")[rows]
    first, _ = gather.distinct(rank, device)
    return list(zip(rank[first].tolist(), device[first].tolist(), strict=True))


def series_locations(
    trace: Trace, quantities: Sequence[Quantity], *, all_series: bool = False
) -> dict[Location, list[int]]:
    """Rows of the series of each rank and device: those of quantities and partitions, or all."""
    locations: dict[Location, list[int]] = defaultdict(list)
    accepted = (
        *quantity_series.QUANTITIES,
        *(q for q in quantities if q not in quantity_series.QUANTITIES),
    )
    for row, series in enumerate(trace.series.to_pylist()):
        if (
            all_series
            or any(pattern.match(series["name"]) for q in accepted for pattern in q.patterns)
            or (quantity_series.PARTITION.fullmatch(series["name"]) and series["rank"] >= 0)
        ):
            locations[series["rank"], series["device"]].append(row)
    return locations


def _matching_locations(
    trace: Trace, locations: dict[Location, list[int]], rank: int, device: int, *, is_only: bool
) -> tuple[Location, ...]:
    """Locations whose series are of the GPU that a rank's work ran on.

    Parameters
    ----------
    trace, locations
        The trace, and the locations of its series.
    rank, device
        Rank and device of the work.
    is_only
        True if the rank works on no other device: its own series are then of this one, whatever
        their number of the device.
    """
    matched = [(rank, device)] if (rank, device) in locations else []
    if is_only and not matched:
        of_rank = [location for location in locations if location[0] == rank]
        numbered = [location for location in of_rank if location[1] >= 0]
        matched = numbered if len(numbered) == 1 else []
        matched += [location for location in of_rank if location[1] < 0]
    elif is_only and (rank, -1) in locations and device >= 0:
        matched.append((rank, -1))
    if matched or (-1, device) not in locations or device < 0:
        return tuple(matched)
    return ((-1, device),) if _numbered_as_lanes(trace, locations[-1, device], device) else ()


def _numbered_as_lanes(trace: Trace, series: list[int], device: int) -> bool:
    """True if the node's series number a GPU as lanes do, and are of one machine alone."""
    if len({r.host for r in trace.meta.ranks}) > 1:
        return False
    rows = arrow.take(trace.series, np.array(series)).to_pylist()
    keys = [(s["name"], s["source"]) for s in rows]
    if len(set(keys)) < len(keys):  # from two files: of two machines, or of two runs
        return False
    is_matched = any(m.rank < 0 and m.device == device for m in trace.meta.device_matches)
    return is_matched or {tool for _, tool in keys} <= set(quantity_series.NUMBERED_AS_LANES)
