"""GPUs of a job with their telemetry: the sources of each quantity, and energy counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry import quantity_series
from chopper_interop.annotate.telemetry.gpu_series import (
    SeriesOwner,
    series_locations,
    series_owners,
)
from chopper_interop.annotate.telemetry.source_reader import Source, SourceReader
from chopper_interop.arrays import Array
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.quantity_series import Quantity
    from chopper_interop.annotate.telemetry.samples import Samples

NO_POWER = Fault.info(
    "power-unknown",
    "GPUs whose telemetry has no power of their own, such as second dies and partitions, or 0 W "
    "throughout: power of their work is unknown, and energy is known only for second dies, as a "
    "part of their module's.",
)
FROM_COUNTER = Fault.info(
    "power-from-counter",
    "GPUs of which no power was sampled: it is the rise of their energy counter between samples.",
)
OF_MODULE = Fault.info(
    "power-of-module",
    "GPUs that are one of two dies of a module: the power that the first die reports is that of "
    "both, and its energy is shared among the work of both.",
)
BY_NUMBER = Fault.info(
    "telemetry-by-number",
    "A profiler's samples of GPUs were taken as those of the devices with the same numbers, which "
    "holds unless only some of the GPUs were visible to the process.",
)
PARTITIONS = Fault.info(
    "telemetry-of-partitions",
    "GPUs whose telemetry is of several partitions each: no source says which of them a process "
    "computes on, so its work has no telemetry of partitions.",
)


@dataclass(frozen=True)
class Gpu:
    """A GPU of the job with telemetry.

    Parameters
    ----------
    rank, device
        Those of its series; a rank of -1 is the node, whose number of the device holds for all.
    ranks
        Ranks that compute on it.
    rows
        Its work: rows of nodes, in their order.
    sources
        Sources by name of the quantity, the best first.
    counters
        Its energy counters by tool, joules; one for each capture.
    """

    rank: int
    device: int
    ranks: tuple[int, ...]
    rows: Array
    sources: dict[str, tuple[Source, ...]]
    counters: dict[str, tuple[Samples, ...]]


def gpus_with_telemetry(
    trace: Trace,
    issues: IssueLog | None = None,
    quantities: Sequence[Quantity] = quantity_series.QUANTITIES,
    *,
    include_unsampled: bool = False,
) -> list[Gpu]:
    """GPUs on which work ran, with the telemetry of each.

    Parameters
    ----------
    issues
        Log of what was chosen and left out.
    quantities
        Quantities to look for.
    include_unsampled
        Include GPUs without telemetry.
    """
    issues = IssueLog() if issues is None else issues
    owners = series_owners(trace, quantities, include_unsampled=include_unsampled)
    if not owners:
        return []
    reader = SourceReader(trace, issues)
    gpus = (_build_gpu(trace, reader, owner, quantities) for owner in owners)
    return [gpu for gpu in gpus if gpu.sources or gpu.counters or include_unsampled]


def gpus_without_work(
    trace: Trace,
    gpus_with_work: Sequence[Gpu],
    quantities: Sequence[Quantity] = quantity_series.QUANTITIES,
) -> list[Gpu]:
    """GPUs with telemetry on which no rank is known to compute.

    Parameters
    ----------
    gpus_with_work
        As of `gpus_with_telemetry`.
    quantities
        Quantities to look for.
    """
    used = {(gpu.rank, gpu.device) for gpu in gpus_with_work}
    used |= {(rank, -1) for gpu in gpus_with_work for rank in gpu.ranks}
    reader = SourceReader(trace, IssueLog())
    no_rows = np.zeros(0, np.int64)
    gpus = []
    for location, series in sorted(series_locations(trace, quantities).items()):
        if location in used:
            continue
        owner = SeriesOwner(location, (location[0],), no_rows, series)
        gpu = _build_gpu(trace, reader, owner, quantities)
        if gpu.sources or gpu.counters:
            gpus.append(replace(gpu, ranks=()))
    return gpus


def unassigned_power_series(trace: Trace, gpus: Sequence[Gpu]) -> Iterator[int]:
    """Yield rows of the node's series of power of GPUs on which no rank is known to compute."""
    patterns = [pattern for pattern in quantity_series.POWER.patterns if not pattern.is_counter]
    used = {(gpu.rank, gpu.device) for gpu in gpus}
    for row, series in enumerate(trace.series.to_pylist()):
        location = (series["rank"], series["device"])
        is_power = any(pattern.match(series["name"]) for pattern in patterns)
        if is_power and location[0] < 0 and location not in used:
            yield row


def _build_gpu(
    trace: Trace, reader: SourceReader, owner: SeriesOwner, quantities: Sequence[Quantity]
) -> Gpu:
    """Read the sources of a GPU from its series."""
    table = {row: reader.series[row] for row in owner.series}
    partitions = {
        s["name"] for s in table.values() if quantity_series.PARTITION.fullmatch(s["name"])
    }
    is_partitioned = _has_several_partitions(partitions)
    example = f"rank {owner.ranks[0]}: {min(partitions, default='')}"
    reader.issues.add(PARTITIONS, int(is_partitioned), example)
    usable = {} if is_partitioned else table
    sources = {one.name: reader.sources(one, usable, owner.ranks) for one in quantities}
    gpu = Gpu(
        *owner.location,
        owner.ranks,
        owner.rows,
        {name: several for name, several in sources.items() if several},
        reader.energy_counters(table),
    )
    _note_power(trace, gpu, reader.issues)
    all_sources = [source for several in gpu.sources.values() for source in several]
    numbered = [source.tool for source in all_sources if source.pattern.is_numbered]
    reader.issues.add(BY_NUMBER, bool(numbered), f"device {gpu.device} of {numbered[:1]}")
    return gpu


def _note_power(trace: Trace, gpu: Gpu, issues: IssueLog) -> None:
    """Count a GPU whose power is unknown, is computed from a counter, or is of two dies."""
    source = next(iter(gpu.sources.get(quantity_series.POWER.name, ())), None)
    example = f"rank {gpu.ranks[0]}, device {gpu.device}"
    issues.add(NO_POWER, int(source is None and bool(gpu.sources)), example)
    issues.add(FROM_COUNTER, int(source is not None and source.pattern.is_counter), example)
    is_dual = gpu.device in trace.cached("dual dies", _devices_of_two_dies)
    issues.add(OF_MODULE, int(source is not None and is_dual), example)


def _devices_of_two_dies(trace: Trace) -> set[int]:
    """Numbers of devices of which some GPU is one of two dies of a module."""
    return {d.device for d in trace.meta.devices if quantity_series.DUAL_DIE.search(d.name)}


def _has_several_partitions(series: set[str]) -> bool:
    """True if names of series are of more partitions than the one that a whole GPU is."""
    numbers = {
        int(match[1]) for name in series if (match := quantity_series.PARTITION.fullmatch(name))
    }
    return bool(numbers - {0})
