"""GPUs of a job: modules of two dies with one reading of power, and the time with samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry import energy, quantity_series
from chopper_interop.annotate.telemetry.gpu_series import Location, node_locations
from chopper_interop.annotate.telemetry.gpus import Gpu, gpus_with_telemetry, gpus_without_work
from chopper_interop.arrays.gather import is_any
from chopper_interop.gpus.devices import devices_on_host, only_host
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.quantity_series import Quantity
    from chopper_interop.annotate.telemetry.samples import Samples
    from chopper_interop.schemas.meta import Device

    Window = tuple[int, int]

QUANTITIES = (*quantity_series.QUANTITIES, quantity_series.EDGE, quantity_series.UTILIZATION)
"""Quantities whose series show that there is a GPU, where no work does."""
NEARLY_ALL = 0.9
"""Share of the time in which any GPU's power is sampled that must be common to all GPUs to be taken
as the job's time. Chosen: samplers that start seconds apart pass, a capture that ended early does
not cut the others."""


@dataclass(frozen=True)
class Board:
    """A GPU, or a module of two dies: the unit that one reading of power is for.

    Parameters
    ----------
    gpu
        All of it: the telemetry of the die with power, the ranks and work of every die.
    dies
        The GPUs that it is made of, each with telemetry and work of its own.
    """

    gpu: Gpu
    dies: tuple[Gpu, ...]

    @cached_property
    def powers(self) -> list[Samples]:
        """Samples that its energy is computed from, as of `energy.energy_sources`."""
        return [samples for _, samples in energy.energy_sources(self.gpu)]


def has_gpu_work(trace: Trace) -> bool:
    """True if any work of GPUs was recorded."""
    return bool(is_any(trace.array("kind"), GPU_WORK).any())


def boards(
    trace: Trace,
    quantities: Sequence[Quantity] = QUANTITIES,
    selected_ranks: Collection[int] | None = None,
) -> list[Board]:
    """All GPUs that work ran on; of telemetry without work, all GPUs with known quantities.

    Parameters
    ----------
    quantities
        Quantities to look for in telemetry.
    selected_ranks
        Ranks whose GPUs count, and of these only the dies that they work on; None for all GPUs,
        including those of no rank.
    """
    if has_gpu_work(trace):
        gpus = gpus_with_telemetry(trace, quantities=quantities, include_unsampled=True)
    else:
        gpus = gpus_without_work(trace, (), QUANTITIES)
    all_boards = join_dies(trace, gpus)
    if selected_ranks is None:
        return all_boards
    selected = (replace(one, dies=_dies_of_ranks(one.dies, selected_ranks)) for one in all_boards)
    return [one for one in selected if one.dies]


def power_extent(boards: Sequence[Board]) -> Window | None:
    """Time from the first to the last sample of power or, where there is none, of anything.

    The time common to all GPUs if that is nearly all of it, so that short parts in which only
    some are sampled are left out.
    """
    samples = [one.powers for one in boards if one.powers] or [
        [samples for source in sources for _, samples in source.samples]
        for one in boards
        for sources in one.gpu.sources.values()
    ]
    if not samples:
        return None
    firsts = [min(int(part.ts[0]) for part in parts) for parts in samples]
    lasts = [max(int(part.ts[-1]) for part in parts) for parts in samples]
    total, common = (min(firsts), max(lasts)), (max(firsts), min(lasts))
    is_nearly_all = common[1] - common[0] >= NEARLY_ALL * (total[1] - total[0])
    return common if is_nearly_all else total


def _dies_of_ranks(dies: Sequence[Gpu], ranks: Collection[int]) -> tuple[Gpu, ...]:
    return tuple(die for die in dies if set(die.ranks or (die.rank,)) & set(ranks))


def join_dies(trace: Trace, gpus: Sequence[Gpu]) -> list[Board]:
    """Join each GPU without power to the other die of its module, if that one has power."""
    second = _second_dies(trace, gpus) if any(map(_is_dual, trace.meta.devices)) else {}
    seconds = set(second.values())
    return [
        _module(gpu, gpus[second[i]]) if i in second else Board(gpu, (gpu,))
        for i, gpu in enumerate(gpus)
        if i not in seconds
    ]


def _second_dies(trace: Trace, gpus: Sequence[Gpu]) -> dict[int, int]:
    """Index of each first die, whose power is that of both → index of its second die."""
    with_power: dict[tuple[str, int], list[int]] = {}
    without_power: list[tuple[int, tuple[str, int]]] = []
    hosts = {rank.rank: rank.host for rank in trace.meta.ranks}
    for i, gpu in enumerate(gpus):
        host = hosts.get(gpu.ranks[0] if gpu.ranks else gpu.rank, "") or only_host(trace)
        number = _die_number(trace, gpu, host)
        if number is not None and gpu.sources.get(quantity_series.POWER.name):
            with_power.setdefault((host, number), []).append(i)
        elif number is not None:
            without_power.append((i, (host, number)))
    second: dict[int, int] = {}
    for i, (host, number) in without_power:
        if partners := with_power.get((host, number ^ 1)):
            second[partners.pop(0)] = i
    return second


def _module(first: Gpu, second: Gpu) -> Board:
    ranks = tuple(sorted({*first.ranks, *second.ranks}))
    rows = np.sort(np.concatenate([first.rows, second.rows]))
    return Board(replace(first, ranks=ranks, rows=rows), (first, second))


def _die_number(trace: Trace, gpu: Gpu, host: str) -> int | None:
    """Number in its node of a die; the two dies of a module are numbered 2 n and 2 n + 1."""
    device = min(gpu_locations(trace, gpu))[1]
    devices = trace.meta.devices
    same = devices_on_host([one for one in devices if one.device == device], host)
    if device < 0 or not all(map(_is_dual, same or devices_on_host(devices, host))):
        return None
    numbers = {one.index for one in same} - {-1} or {
        match.number
        for match in trace.meta.device_matches
        if match.rank in gpu.ranks or (match.rank < 0 and match.device == device)
    }
    return min(numbers) if len(numbers) == 1 else device


def _is_dual(device: Device) -> bool:
    return bool(quantity_series.DUAL_DIE.search(device.name))


def gpu_locations(trace: Trace, gpu: Gpu) -> list[Location]:
    """Ranks and devices of a GPU's work; of a GPU without work, those of its series."""
    return node_locations(trace, gpu.rows) if len(gpu.rows) else [(gpu.rank, gpu.device)]
